//! What the tests of this crate share: scratch volumes, write sets built from paths, pictures of
//! trees, and an [`Io`] that dies at its n-th call.

use crate::dir_store::DirStore;
use crate::history::{CommitMeta, TxnKind};
use crate::instance::Instance;
pub use crate::interface::Store;
use crate::io::{
    Class, Fixed, FsInfo, Handle, Io, ListItem, Open, Openers, Outsiders, Project, Rename, Stamp,
    Stat, Tree as _,
};
use crate::real::RealIo;
use crate::writeset::{
    Attrs, Bind, Content, Data, Extent, Ix, NewKind, Object, Origin, SlotId, WriteSet,
};
use crate::{ApplyReport, Config, RecoveryReport};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use systx_base::{Gid, Kind, Time, TxnId, Uid};

pub const STATE: &str = ".systx";

/// Where the tests that look at more than one file system have their scratch directories: what
/// `SYSTX_TEST_DIRS` names (separated by colons), else one in memory and one on a disk.
pub fn bases() -> Vec<String> {
    let named = std::env::var("SYSTX_TEST_DIRS").unwrap_or_else(|_| "/dev/shm:/tmp".into());
    named.split(':').map(str::to_owned).collect()
}

/// A directory that is gone at the end, also after a failure.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn on(base: &str) -> Scratch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("{base}/systx-store-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }
    pub fn new() -> Scratch {
        Scratch::on(&bases()[0])
    }
    pub fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }
    pub fn write(&self, below: &str, data: impl AsRef<[u8]>) {
        if let Some(parent) = self.path(below).parent() {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(self.path(below), data).unwrap();
    }
    pub fn read(&self, below: &str) -> Vec<u8> {
        std::fs::read(self.path(below)).unwrap()
    }
    pub fn io(&self) -> Arc<dyn Io> {
        Arc::new(RealIo::open(&self.0).unwrap())
    }
    pub fn open(&self) -> (DirStore, RecoveryReport) {
        DirStore::open(config(), self.io()).unwrap()
    }
    pub fn store(&self) -> DirStore {
        self.open().0
    }
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut inodes = HashMap::new();
        walk(&self.0, Path::new(""), &mut tree, &mut inodes);
        tree
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn config() -> Config {
    let instance = Instance { boot: [7; 16], mount: 7 };
    Config { instance, segment_bytes: 128 << 10, inline_before: 4096, ..Config::new(STATE) }
}

/// As [`config`], in the next run of the kernel.
pub fn rebooted() -> Config {
    Config { instance: Instance { boot: [8; 16], mount: 7 }, ..config() }
}

/// Everything that is the same after a faithful copy; times where a test set them.
pub type Tree = BTreeMap<String, String>;

fn walk(root: &Path, below: &Path, tree: &mut Tree, inodes: &mut HashMap<u64, String>) {
    let mut entries: Vec<_> =
        std::fs::read_dir(root.join(below)).unwrap().map(|entry| entry.unwrap()).collect();
    // Which of its names stands for a file must not depend on the order of the listing.
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let name = below.join(entry.file_name());
        if name == Path::new(STATE) {
            continue;
        }
        let path = root.join(&name);
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let key = name.to_string_lossy().into_owned();
        let mut text = format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid());
        if meta.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            text += &format!(" {} {:08x}", bytes.len(), crc32c::crc32c(&bytes));
            // Set explicitly by tests that care; anything recent is just "now".
            if meta.mtime() < 2_000_000 {
                text += &format!(" @{}.{}", meta.mtime(), meta.mtime_nsec());
            }
            if meta.nlink() > 1 {
                let first = inodes.entry(meta.ino()).or_insert(key.clone());
                text += &format!(" ={first}");
            }
        } else if meta.is_symlink() {
            text += &format!(" -> {:?}", std::fs::read_link(&path).unwrap());
        } else if !meta.is_dir() {
            text += &format!(" dev {}", meta.rdev());
        }
        let io = RealIo::open(root.join(below)).unwrap();
        let mut keys = io.list_xattr(&io.root(), entry.file_name().as_bytes()).unwrap();
        keys.sort();
        for key in keys {
            let value = io.get_xattr(&io.root(), entry.file_name().as_bytes(), &key).unwrap();
            text +=
                &format!(" {}={}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
        }
        tree.insert(key, text);
        if meta.is_dir() {
            walk(root, &name, tree, inodes);
        }
    }
}

/// Builds a write set by paths of the tree as it is before the transaction.
pub struct Ws<'a> {
    io: &'a dyn Io,
    pub set: WriteSet,
    known: HashMap<PathBuf, Ix>,
}

impl<'a> Ws<'a> {
    pub fn new(io: &'a dyn Io) -> Ws<'a> {
        let mut this = Ws { io, set: WriteSet::default(), known: HashMap::new() };
        let root = this.push(Origin::Root);
        this.known.insert(PathBuf::new(), root);
        this
    }

    fn push(&mut self, origin: Origin) -> Ix {
        self.set.objects.push(Object {
            origin,
            attrs: Attrs::default(),
            xattrs: Vec::new(),
            content: Content::Keep,
        });
        Ix(self.set.objects.len() as u32 - 1)
    }

    pub fn obj(&mut self, ix: Ix) -> &mut Object {
        &mut self.set.objects[ix.0 as usize]
    }

    fn dir(&self, path: &Path) -> Handle {
        let mut dir = self.io.root();
        for part in path.components() {
            dir = self.io.open_dir(&dir, part.as_os_str().as_bytes()).unwrap();
        }
        dir
    }

    fn stat(&self, path: &Path) -> Option<Stat> {
        let dir = self.dir(path.parent().unwrap());
        self.io.stat_at(&dir, path.file_name().unwrap().as_bytes()).ok()
    }

    /// The object at a path, as it is now.
    pub fn host(&mut self, path: impl AsRef<Path>) -> Ix {
        let path = path.as_ref();
        if let Some(ix) = self.known.get(path) {
            return *ix;
        }
        let parent = self.host(path.parent().unwrap());
        let stat = self.stat(path).unwrap();
        // Another name of the same file is the same object.
        for (i, object) in self.set.objects.iter().enumerate() {
            if let Origin::Host { stamp, .. } = &object.origin
                && stamp.id == stat.id
            {
                return Ix(i as u32);
            }
        }
        let ix = self.push(Origin::Host {
            parent,
            name: path.file_name().unwrap().as_bytes().to_vec(),
            kind: stat.kind,
            stamp: stat.stamp(),
        });
        self.known.insert(path.to_path_buf(), ix);
        ix
    }

    fn new_object(&mut self, kind: NewKind, mode: u32) -> Ix {
        let link = matches!(kind, NewKind::Symlink(_));
        let ix = self.push(Origin::New(kind));
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        self.obj(ix).attrs = Attrs {
            mode: (!link).then_some(mode),
            owner: Some((uid, gid)),
            atime: Some(Time { secs: 1000, nanos: 1 }),
            mtime: Some(Time { secs: 1000, nanos: 2 }),
        };
        ix
    }

    pub fn file(&mut self, data: impl AsRef<[u8]>) -> Ix {
        let ix = self.new_object(NewKind::File, 0o644);
        self.obj(ix).content = whole(data.as_ref());
        ix
    }
    pub fn slot_file(&mut self, slot: SlotId) -> Ix {
        let ix = self.new_object(NewKind::File, 0o640);
        self.obj(ix).content = Content::Slot(slot);
        ix
    }
    pub fn mkdir(&mut self) -> Ix {
        self.new_object(NewKind::Dir, 0o755)
    }
    pub fn symlink(&mut self, target: &str) -> Ix {
        self.new_object(NewKind::Symlink(target.into()), 0)
    }
    pub fn fifo(&mut self) -> Ix {
        self.new_object(NewKind::Special { kind: Kind::Fifo, rdev: 0 }, 0o600)
    }

    /// Binds a path whose directory exists on the host.
    pub fn bind(&mut self, path: impl AsRef<Path>, target: Option<Ix>) {
        let path = path.as_ref();
        let dir = self.host(path.parent().unwrap());
        let displaces = self.stat(path).is_some().then(|| self.host(path));
        let name = path.file_name().unwrap().as_bytes().to_vec();
        self.set.binds.push(Bind { dir, name, target, displaces });
    }
    /// Binds a name in a directory that the transaction made.
    pub fn bind_in(&mut self, dir: Ix, name: &str, target: Ix) {
        let name = name.as_bytes().to_vec();
        self.set.binds.push(Bind { dir, name, target: Some(target), displaces: None });
    }
    pub fn create(&mut self, path: &str, data: impl AsRef<[u8]>) -> Ix {
        let ix = self.file(data);
        self.bind(path, Some(ix));
        ix
    }
    pub fn remove(&mut self, path: &str) {
        self.bind(path, None);
    }
    pub fn rename(&mut self, from: &str, to: &str) {
        let ix = self.host(from);
        self.bind(from, None);
        self.bind(to, Some(ix));
    }
    pub fn rewrite(&mut self, path: &str, data: impl AsRef<[u8]>) {
        let ix = self.host(path);
        self.obj(ix).content = whole(data.as_ref());
        self.obj(ix).attrs.mtime = Some(Time { secs: 2000, nanos: 3 });
    }
    pub fn patch(&mut self, path: &str, len: u64, keep: u64, pieces: &[(u64, &[u8])]) {
        let ix = self.host(path);
        let extents = pieces.iter().map(|(offset, bytes)| inline(*offset, bytes)).collect();
        self.obj(ix).content = Content::Patch { len, keep, extents };
        self.obj(ix).attrs.mtime = Some(Time { secs: 3000, nanos: 4 });
    }
    pub fn done(self) -> WriteSet {
        self.set.check().unwrap();
        self.set
    }
}

pub fn inline(offset: u64, bytes: &[u8]) -> Extent {
    Extent { offset, data: Data::Inline(bytes.to_vec()) }
}

pub fn whole(data: &[u8]) -> Content {
    let extents = if data.is_empty() { Vec::new() } else { vec![inline(0, data)] };
    Content::Whole { len: data.len() as u64, extents }
}

pub fn meta(txn: u64) -> CommitMeta {
    CommitMeta {
        txn: TxnId(txn),
        kind: TxnKind::Run,
        argv: vec![b"make".to_vec()],
        cwd: b"/".to_vec(),
        uid: 0,
        started: Time { secs: 1, nanos: 0 },
        finished: Time { secs: 2 + txn as i64, nanos: 0 },
        told: None,
        order: None,
    }
}

/// Commits and installs, with nobody else there.
pub fn run(store: &DirStore, txn: u64, set: WriteSet) {
    assert_eq!(run_beside(store, txn, set).outside, []);
}

/// Commits and installs, whoever else is there.
pub fn run_beside(store: &DirStore, txn: u64, set: WriteSet) -> ApplyReport {
    let reservation = store.reserve(&set).unwrap();
    let committed = store.commit(reservation, set, meta(txn)).unwrap();
    store.apply(committed.lsn).unwrap()
}

/// Takes `of` back, as transaction `txn`, with nobody else there.
pub fn undo(store: &DirStore, of: u64, txn: u64) {
    assert_eq!(undo_beside(store, of, txn).outside, []);
}

/// Takes `of` back, as transaction `txn`, whoever else is there.
pub fn undo_beside(store: &DirStore, of: u64, txn: u64) -> ApplyReport {
    let undo = store.undo_set(TxnId(of)).unwrap();
    undo.set.check().unwrap();
    let reservation = store.reserve(&undo.set).unwrap();
    let meta = CommitMeta { kind: TxnKind::Undo { of: TxnId(of) }, ..meta(txn) };
    let committed = store.commit(reservation, undo.set, meta).unwrap();
    drop(undo.slots);
    store.apply(committed.lsn).unwrap()
}

/// An [`Io`] whose calls fail from the n-th on, as if the process had died there; or that has a
/// quota.
pub struct Dying {
    inner: Arc<dyn Io>,
    left: AtomicU64,
    made: AtomicU64,
    class: Option<Class>,
    limited: bool,
    /// So many durable writes are beyond the quota.
    beyond: AtomicU64,
    /// So many directories may be open.
    few: usize,
    open: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

impl Dying {
    pub fn after(inner: Arc<dyn Io>, calls: u64) -> Arc<Dying> {
        Arc::new(Dying::new(inner, calls))
    }
    fn new(inner: Arc<dyn Io>, calls: u64) -> Dying {
        let [left, made, beyond] = [calls, 0, 0].map(AtomicU64::new);
        let (few, open) = (usize::MAX, Mutex::default());
        Dying { inner, left, made, class: None, limited: false, beyond, few, open }
    }
    /// One that has no more than so many directories open.
    pub fn with_few(inner: Arc<dyn Io>, few: usize) -> Arc<Dying> {
        Arc::new(Dying { few, ..Dying::new(inner, u64::MAX) })
    }
    /// One that does not die and has a quota.
    pub fn limited(inner: Arc<dyn Io>) -> Arc<Dying> {
        Arc::new(Dying { limited: true, ..Dying::new(inner, u64::MAX) })
    }
    /// After so many further calls it dies.
    pub fn dies_after(&self, calls: u64) {
        self.left.store(calls, Ordering::Relaxed);
    }
    /// From now on so many durable writes are beyond the quota.
    pub fn is_beyond(&self, writes: u64) {
        self.beyond.store(writes, Ordering::Relaxed);
    }
    /// The same, pretending that the file system is of this class.
    pub fn of_class(inner: Arc<dyn Io>, calls: u64, class: Class) -> Arc<Dying> {
        Arc::new(Dying { class: Some(class), ..Dying::new(inner, calls) })
    }
    pub fn calls(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
    fn alive(&self) -> Result<()> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let alive =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        alive.map(|_| ()).map_err(|_| Error::from_raw_os_error(libc::EIO))
    }
}

macro_rules! forward {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) -> $ret:ty;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) -> $ret {
            self.alive()?;
            self.inner.$name($($arg),*)
        })*
    };
}

impl crate::io::Tree for Dying {
    fn root(&self) -> Handle {
        self.inner.root()
    }
    fn now(&self) -> Time {
        self.inner.now()
    }
    fn fs_info(&self) -> Result<FsInfo> {
        self.alive()?;
        let info = self.inner.fs_info()?;
        Ok(FsInfo { class: self.class.unwrap_or(info.class), ..info })
    }
    fn shares_files(&self) -> bool {
        self.inner.shares_files()
    }
    fn longest_target(&self) -> usize {
        self.inner.longest_target()
    }
    fn open_dir(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.alive()?;
        let mut open = self.open.lock().unwrap();
        if open.len() >= self.few {
            open.retain(|dir| dir.strong_count() > 0);
        }
        if open.len() >= self.few {
            return Err(Error::from_raw_os_error(libc::EMFILE));
        }
        let dir = self.inner.open_dir(at, name)?;
        open.push(dir.weak());
        Ok(dir)
    }
    forward! {
        fn open_file(&self, at: &Handle, name: &[u8], how: Open) -> Result<Handle>;
        fn pin(&self, at: &Handle, name: &[u8]) -> Result<Handle>;
        fn stat_at(&self, at: &Handle, name: &[u8]) -> Result<Stat>;
        fn stat(&self, h: &Handle) -> Result<Stat>;
        fn list(&self, dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<()>;
        fn path_of(&self, dir: &Handle) -> Result<Vec<u8>>;
        fn read_link(&self, at: &Handle, name: &[u8]) -> Result<Vec<u8>>;
        fn get_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<Vec<u8>>;
        fn list_xattr(&self, at: &Handle, name: &[u8]) -> Result<Vec<Vec<u8>>>;
        fn read_at(&self, h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize>;
        fn next_data(&self, h: &Handle, offset: u64) -> Result<Option<(u64, u64)>>;
        fn fixed(&self, at: &Handle, name: &[u8]) -> Result<Fixed>;
        fn project(&self, at: &Handle, name: &[u8]) -> Result<Project>;
    }
}

impl Outsiders for Dying {
    fn is_settled(&self, version: &Stamp) -> bool {
        self.inner.is_settled(version)
    }
    forward! {
        fn sync_data(&self, h: &Handle) -> Result<()>;
        fn openers(&self, h: &Handle) -> Result<Openers>;
    }
}

impl Io for Dying {
    fn makers(&self) -> usize {
        3
    }
    fn unmask(&self) {
        self.inner.unmask();
    }
    fn has_quota(&self) -> bool {
        self.limited
    }
    fn write_durable(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()> {
        self.alive()?;
        let less = |n: u64| n.checked_sub(1);
        match self.beyond.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Err(Error::from_raw_os_error(libc::EDQUOT)),
            Err(_) => self.inner.write_durable(h, data, offset),
        }
    }
    // The locks of a process that dies end, too.
    fn hold(&self, h: &Handle, hold: bool) -> Result<()> {
        if hold { Ok(()) } else { self.inner.hold(h, false) }
    }
    fn max_len(&self, h: &Handle) -> u64 {
        self.inner.max_len(h)
    }
    forward! {
        fn open_to_write(&self, at: &Handle, name: &[u8]) -> Result<Handle>;
        fn create_file(&self, at: &Handle, name: &[u8], mode: u32) -> Result<Handle>;
        fn write_at(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()>;
        fn set_len(&self, h: &Handle, len: u64) -> Result<()>;
        fn punch_hole(&self, h: &Handle, offset: u64, len: u64) -> Result<()>;
        fn allocate(&self, h: &Handle, offset: u64, len: u64) -> Result<()>;
        fn copy_range(&self, from: &Handle, from_at: u64, to: &Handle, to_at: u64, len: u64)
            -> Result<()>;
        fn mkdir(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()>;
        fn symlink(&self, target: &[u8], at: &Handle, name: &[u8]) -> Result<()>;
        fn mknod(&self, at: &Handle, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> Result<()>;
        fn link(&self, from: &Handle, from_name: &[u8], to: &Handle, to_name: &[u8]) -> Result<()>;
        fn rename(&self, from: &Handle, from_name: &[u8], to: &Handle, to_name: &[u8], how: Rename)
            -> Result<()>;
        fn unlink(&self, at: &Handle, name: &[u8]) -> Result<()>;
        fn rmdir(&self, at: &Handle, name: &[u8]) -> Result<()>;
        fn set_mode(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()>;
        fn set_project(&self, at: &Handle, name: &[u8], project: Project) -> Result<()>;
        fn set_owner(&self, at: &Handle, name: &[u8], uid: Uid, gid: Gid) -> Result<()>;
        fn set_times(&self, at: &Handle, name: &[u8], atime: Option<Time>, mtime: Option<Time>)
            -> Result<()>;
        fn set_xattr(&self, at: &Handle, name: &[u8], key: &[u8], value: &[u8]) -> Result<()>;
        fn remove_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<()>;
        fn sync_all(&self, h: &Handle) -> Result<()>;
        fn sync_fs(&self) -> Result<()>;
        fn try_lock(&self, h: &Handle) -> Result<bool>;
        fn touch(&self, at: &Handle, name: &[u8]) -> Result<()>;
        fn is_locked(&self, h: &Handle) -> Result<bool>;
        fn ask_for_lock(&self, h: &Handle, ask: bool) -> Result<()>;
        fn is_lock_asked_for(&self, h: &Handle) -> Result<bool>;
    }
}
