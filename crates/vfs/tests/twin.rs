//! The same random calls on a view and on a directory of the host: results and trees must agree.
//! The host is right by definition; whatever differs is a bug of the view.

use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systx_base::{Kind, NodeId, TxnId};
use systx_store::io::Io;
use systx_store::real::RealIo;
use systx_txn::{BeginOptions, Isolation};
use systx_vfs::api::*;
use systx_vfs::content::{Budget, Slot, Spill};
use systx_vfs::view::{Ids, View, ViewConfig};
use systx_vfs::volume::Volume;

/// Files in these tests are small: nothing is ever spilled.
struct NoSpill;

impl Spill for NoSpill {
    fn stage(&self) -> io::Result<Slot> {
        Err(Errno::NOSPC.into())
    }
}

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1 };

#[derive(Clone, Debug)]
enum Op {
    Create(usize, u32),
    Mkdir(usize, u32),
    Symlink(usize),
    Fifo(usize),
    Link(usize, usize),
    Unlink(usize),
    Rmdir(usize),
    Rename(usize, usize, RenameHow),
    Write(usize, u16, Vec<u8>),
    Truncate(usize, u16),
    Chmod(usize, u32),
    Chown(usize, u32, u32),
    SetXattr(usize, u8, Vec<u8>),
    RemoveXattr(usize, u8),
    Punch(usize, u16, u16),
    List(usize),
    Stat(usize),
}

impl Op {
    fn paths(&self) -> (usize, Option<usize>) {
        match self {
            Op::Link(a, b) | Op::Rename(a, b, _) => (*a, Some(*b)),
            Op::Create(p, _) | Op::Mkdir(p, _) | Op::Symlink(p) | Op::Fifo(p) => (*p, None),
            Op::Unlink(p) | Op::Rmdir(p) | Op::Write(p, ..) | Op::Truncate(p, _) => (*p, None),
            Op::Chmod(p, _) | Op::Chown(p, ..) | Op::SetXattr(p, ..) => (*p, None),
            Op::RemoveXattr(p, _) | Op::Punch(p, ..) | Op::List(p) | Op::Stat(p) => (*p, None),
        }
    }
}

/// Paths: some exist at the start, some do not, directories among them.
const PATHS: [&str; 12] = [
    "f", "g", "d", "e", "d/f", "d/g", "d/s", "e/f", "d/s/f", "e/n", "n", "l",
];

fn op() -> impl Strategy<Value = Op> {
    let p = || 0..PATHS.len();
    let how = prop_oneof![
        4 => Just(RenameHow::Replace),
        1 => Just(RenameHow::NoReplace),
        1 => Just(RenameHow::Exchange)
    ];
    let bytes = || proptest::collection::vec(any::<u8>(), 1..40);
    prop_oneof![
        3 => (p(), 0u32..0o10000).prop_map(|(p, m)| Op::Create(p, m)),
        2 => (p(), 0u32..0o2000).prop_map(|(p, m)| Op::Mkdir(p, m)),
        1 => p().prop_map(Op::Symlink),
        1 => p().prop_map(Op::Fifo),
        2 => (p(), p()).prop_map(|(a, b)| Op::Link(a, b)),
        3 => p().prop_map(Op::Unlink),
        2 => p().prop_map(Op::Rmdir),
        5 => (p(), p(), how).prop_map(|(a, b, h)| Op::Rename(a, b, h)),
        4 => (p(), 0u16..20_000, bytes()).prop_map(|(p, o, d)| Op::Write(p, o, d)),
        2 => (p(), 0u16..20_000).prop_map(|(p, l)| Op::Truncate(p, l)),
        2 => (p(), 0u32..0o10000).prop_map(|(p, m)| Op::Chmod(p, m)),
        1 => (p(), 0u32..3, 0u32..3).prop_map(|(p, u, g)| Op::Chown(p, u, g)),
        1 => (p(), 0u8..2, bytes()).prop_map(|(p, k, v)| Op::SetXattr(p, k, v)),
        1 => (p(), 0u8..2).prop_map(|(p, k)| Op::RemoveXattr(p, k)),
        1 => (p(), 0u16..20_000, 1u16..9_000).prop_map(|(p, o, l)| Op::Punch(p, o, l)),
        1 => p().prop_map(Op::List),
        1 => p().prop_map(Op::Stat),
    ]
}

/// What both sides start with.
fn populate(root: &Path) -> io::Result<()> {
    let write = |name: &str, data: &[u8], mode: u32| {
        let path = root.join(name);
        std::fs::write(&path, data)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
    };
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?;
    for dir in ["d", "e", "d/s"] {
        std::fs::create_dir(root.join(dir))?;
    }
    write("f", b"first", 0o644)?;
    write("d/f", &[b'x'; 9000], 0o4755)?;
    write("d/s/f", b"", 0o600)?;
    std::fs::hard_link(root.join("d/f"), root.join("e/f"))?;
    std::os::unix::fs::symlink("d/f", root.join("l"))
}

fn xattr_name(k: u8) -> &'static str {
    if k == 0 { "user.a" } else { "user.b" }
}

/// The calls on the host.
struct Host(PathBuf);

impl Host {
    fn run(&self, op: &Op) -> Result<(), Errno> {
        let at = |i: usize| self.0.join(PATHS[i]);
        let raw = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let (first, second) = op.paths();
        self.check_parents(first)?;
        if let Some(second) = second {
            self.check_parents(second)?;
        }
        match op {
            Op::Create(p, mode) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
                rustix::fs::open(at(*p), flags, Mode::from_raw_mode(*mode)).map(drop)
            }
            Op::Mkdir(p, mode) => rustix::fs::mkdir(at(*p), Mode::from_raw_mode(*mode)),
            Op::Symlink(p) => rustix::fs::symlink("target", at(*p)),
            Op::Fifo(p) => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(CWD, at(*p), kind, Mode::from_raw_mode(0o640), 0)
            }
            Op::Link(a, b) => rustix::fs::linkat(CWD, at(*a), CWD, at(*b), AtFlags::empty()),
            Op::Unlink(p) => rustix::fs::unlink(at(*p)),
            Op::Rmdir(p) => rustix::fs::rmdir(at(*p)),
            Op::Rename(a, b, how) => {
                let flags = match how {
                    RenameHow::NoReplace => RenameFlags::NOREPLACE,
                    RenameHow::Exchange => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                rustix::fs::renameat_with(CWD, at(*a), CWD, at(*b), flags)
            }
            Op::Write(p, offset, data) => {
                let fd = self.open(*p)?;
                rustix::io::pwrite(&fd, data, u64::from(*offset)).map(drop)
            }
            Op::Truncate(p, len) => rustix::fs::ftruncate(self.open(*p)?, u64::from(*len)),
            Op::Punch(p, offset, len) => {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE
                    | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(self.open(*p)?, flags, (*offset).into(), (*len).into())
            }
            Op::Chmod(p, mode) => {
                self.not_a_link(*p)?;
                rustix::fs::chmod(at(*p), Mode::from_raw_mode(*mode))
            }
            Op::Chown(p, uid, gid) => std::os::unix::fs::lchown(at(*p), Some(*uid), Some(*gid)).map_err(raw),
            Op::SetXattr(p, k, v) => {
                rustix::fs::lsetxattr(at(*p), xattr_name(*k), v, XattrFlags::empty())
            }
            Op::RemoveXattr(p, k) => rustix::fs::lremovexattr(at(*p), xattr_name(*k)),
            Op::List(p) => std::fs::read_dir(self.dir(*p)?).map(drop).map_err(raw),
            Op::Stat(p) => std::fs::symlink_metadata(at(*p)).map(drop).map_err(raw),
        }
    }
    /// Symbolic links on the way are not followed in these tests.
    fn check_parents(&self, p: usize) -> Result<(), Errno> {
        let raw = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let mut at = self.0.clone();
        let names: Vec<_> = PATHS[p].split('/').collect();
        for name in &names[..names.len() - 1] {
            at.push(name);
            if !std::fs::symlink_metadata(&at).map_err(raw)?.is_dir() {
                return Err(Errno::NOTDIR);
            }
        }
        Ok(())
    }
    fn not_a_link(&self, p: usize) -> Result<std::fs::Metadata, Errno> {
        let raw = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let meta = std::fs::symlink_metadata(self.0.join(PATHS[p])).map_err(raw)?;
        if meta.is_symlink() { Err(Errno::LOOP) } else { Ok(meta) }
    }
    fn dir(&self, p: usize) -> Result<PathBuf, Errno> {
        if self.not_a_link(p)?.is_dir() { Ok(self.0.join(PATHS[p])) } else { Err(Errno::NOTDIR) }
    }
    /// Only regular files, so that a FIFO never blocks.
    fn open(&self, p: usize) -> Result<rustix::fd::OwnedFd, Errno> {
        if !self.not_a_link(p)?.is_file() {
            return Err(Errno::INVAL);
        }
        rustix::fs::open(self.0.join(PATHS[p]), OFlags::RDWR, Mode::empty())
    }
}

/// The calls on the view, with the checks that the kernel would make before it asks.
struct Twin(View);

impl Twin {
    fn over(root: &Path) -> Twin {
        let io: Arc<dyn Io> = Arc::new(RealIo::open(root).expect("backing directory"));
        let vol = Arc::new(Volume::new(io, Vec::new(), HashSet::new()).expect("volume"));
        let txn = TxnId(7);
        vol.engine.begin(txn, BeginOptions::default());
        let config = ViewConfig {
            txn,
            isolation: Isolation::Serializable,
            ids: Ids::Faithful,
            spill: Arc::new(NoSpill),
            budget: Budget::new(64 << 20),
        };
        Twin(View::new(vol, config).expect("view"))
    }

    fn walk(&self, path: &str) -> Result<Entry, Errno> {
        let mut at = self.0.root()?;
        for name in path.split('/') {
            if at.attr.kind != Kind::Dir {
                return Err(Errno::NOTDIR);
            }
            at = self.0.lookup(CALLER, at.node, name.as_bytes())?.ok_or(Errno::NOENT)?;
        }
        Ok(at)
    }

    /// The directory of a path, and the last name.
    fn parent<'a>(&self, path: &'a str) -> Result<(NodeId, &'a [u8]), Errno> {
        let Some((dir, name)) = path.rsplit_once('/') else {
            return Ok((NodeId::ROOT, path.as_bytes()));
        };
        let up = self.walk(dir)?;
        if up.attr.kind != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        Ok((up.node, name.as_bytes()))
    }

    fn file(&self, p: usize) -> Result<NodeId, Errno> {
        let entry = self.walk(PATHS[p])?;
        match entry.attr.kind {
            Kind::File => Ok(entry.node),
            Kind::Symlink => Err(Errno::LOOP),
            _ => Err(Errno::INVAL),
        }
    }

    fn run(&self, op: &Op) -> Result<(), Errno> {
        let v = &self.0;
        match op {
            Op::Create(p, mode) => {
                let (up, name) = self.parent(PATHS[*p])?;
                let new = NewAttr { mode: *mode, umask: 0o022 };
                v.create(CALLER, up, name, new, true).map(drop)
            }
            Op::Mkdir(p, mode) => {
                let (up, name) = self.parent(PATHS[*p])?;
                v.mkdir(CALLER, up, name, NewAttr { mode: *mode, umask: 0o022 }).map(drop)
            }
            Op::Symlink(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                v.symlink(CALLER, up, name, b"target").map(drop)
            }
            Op::Fifo(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                let new = NewAttr { mode: 0o640, umask: 0o022 };
                v.mknod(CALLER, up, name, Kind::Fifo, new, 0).map(drop)
            }
            Op::Link(a, b) => {
                self.parent(PATHS[*a])?;
                let (up, name) = self.parent(PATHS[*b])?;
                let node = self.walk(PATHS[*a])?;
                if v.lookup(CALLER, up, name)?.is_some() {
                    return Err(Errno::EXIST);
                }
                v.link(CALLER, node.node, up, name).map(drop)
            }
            Op::Unlink(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                v.unlink(CALLER, up, name)
            }
            Op::Rmdir(p) => {
                let (up, name) = self.parent(PATHS[*p])?;
                v.rmdir(CALLER, up, name)
            }
            Op::Rename(a, b, how) => {
                let from = self.parent(PATHS[*a])?;
                let to = self.parent(PATHS[*b])?;
                v.rename(CALLER, from, to, *how)
            }
            Op::Write(p, offset, data) => {
                v.write(self.file(*p)?, u64::from(*offset), data, false).map(drop)
            }
            Op::Truncate(p, len) => {
                let set = SetAttr { size: Some(u64::from(*len)), ..SetAttr::default() };
                v.setattr(CALLER, self.file(*p)?, set).map(drop)
            }
            Op::Punch(p, offset, len) => v.fallocate(
                self.file(*p)?,
                Fallocate::PunchHole,
                (*offset).into(),
                (*len).into(),
            ),
            Op::Chmod(p, mode) => {
                let entry = self.walk(PATHS[*p])?;
                if entry.attr.kind == Kind::Symlink {
                    return Err(Errno::LOOP);
                }
                let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                v.setattr(CALLER, entry.node, set).map(drop)
            }
            Op::Chown(p, uid, gid) => {
                let node = self.walk(PATHS[*p])?.node;
                let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
                v.setattr(CALLER, node, set).map(drop)
            }
            Op::SetXattr(p, k, value) => {
                let node = self.walk(PATHS[*p])?.node;
                let key = xattr_name(*k).as_bytes();
                v.setxattr(CALLER, node, key, value, SetXattr::Any, false)
            }
            Op::RemoveXattr(p, k) => {
                let node = self.walk(PATHS[*p])?;
                let special = !matches!(node.attr.kind, Kind::File | Kind::Dir);
                if special {
                    // The kernel answers this one itself (fs/xattr.c `xattr_permission`).
                    return Err(Errno::PERM);
                }
                v.removexattr(CALLER, node.node, xattr_name(*k).as_bytes())
            }
            Op::List(p) => {
                let entry = self.walk(PATHS[*p])?;
                match entry.attr.kind {
                    Kind::Dir => v.readdir(entry.node, 0, true, &mut |_| true),
                    Kind::Symlink => Err(Errno::LOOP),
                    _ => Err(Errno::NOTDIR),
                }
            }
            Op::Stat(p) => self.walk(PATHS[*p]).map(drop),
        }
    }
}

/// One object as the comparison sees it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: Kind,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    data: Bytes,
    xattrs: Vec<(u8, Vec<u8>)>,
}

/// Bytes that print short.
#[derive(PartialEq, Eq)]
struct Bytes(Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = &self.0[..self.0.len().min(12)];
        write!(f, "{} bytes {head:?}", self.0.len())
    }
}

fn host_tree(root: &Path) -> BTreeMap<String, Seen> {
    fn go(dir: &Path, prefix: &str, out: &mut BTreeMap<String, Seen>) {
        for item in std::fs::read_dir(dir).expect("list") {
            let item = item.expect("entry");
            let path = item.path();
            let name = format!("{prefix}/{}", item.file_name().to_string_lossy());
            let meta = std::fs::symlink_metadata(&path).expect("stat");
            let kind = Kind::from_mode(meta.mode()).expect("kind");
            let data = match kind {
                Kind::File => std::fs::read(&path).expect("read"),
                Kind::Symlink => {
                    std::fs::read_link(&path).expect("link").into_os_string().into_encoded_bytes()
                }
                _ => Vec::new(),
            };
            let mut xattrs = Vec::new();
            for k in 0..2 {
                let mut buf = vec![0; 64];
                if let Ok(n) = rustix::fs::lgetxattr(&path, xattr_name(k), &mut buf[..]) {
                    buf.truncate(n);
                    xattrs.push((k, buf));
                }
            }
            let seen = Seen {
                kind,
                mode: meta.mode() & 0o7777,
                uid: meta.uid(),
                gid: meta.gid(),
                nlink: meta.nlink() as u32,
                data: Bytes(data),
                xattrs,
            };
            out.insert(name.clone(), seen);
            if kind == Kind::Dir {
                go(&path, &name, out);
            }
        }
    }
    let mut out = BTreeMap::new();
    go(root, "", &mut out);
    out
}

fn view_tree(view: &View) -> BTreeMap<String, Seen> {
    fn go(view: &View, dir: NodeId, prefix: &str, out: &mut BTreeMap<String, Seen>) {
        let mut found = Vec::new();
        view.readdir(dir, 0, true, &mut |e| {
            if let Some(entry) = e.entry {
                found.push((String::from_utf8_lossy(e.name).into_owned(), entry));
            }
            true
        })
        .expect("readdir");
        for (name, entry) in found {
            let a = entry.attr;
            let data = match a.kind {
                Kind::File => {
                    let mut buf = vec![0; a.size as usize];
                    let n = view.read(entry.node, 0, &mut buf).expect("read");
                    assert_eq!(n, buf.len());
                    buf
                }
                Kind::Symlink => view.readlink(entry.node).expect("readlink"),
                _ => Vec::new(),
            };
            let xattrs = (0..2)
                .filter_map(|k| {
                    Some((k, view.getxattr(entry.node, xattr_name(k).as_bytes()).ok()?))
                })
                .collect();
            let name = format!("{prefix}/{name}");
            let seen = Seen {
                kind: a.kind,
                mode: a.mode,
                uid: a.uid,
                gid: a.gid,
                nlink: a.nlink,
                data: Bytes(data),
                xattrs,
            };
            out.insert(name.clone(), seen);
            if a.kind == Kind::Dir {
                go(view, entry.node, &name, out);
            }
        }
    }
    let mut out = BTreeMap::new();
    go(view, NodeId::ROOT, "", &mut out);
    out
}

fn scratch() -> tempfile::TempDir {
    // Ownership and device nodes need root, which continuous integration has; tmpfs keeps it quick.
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    tempfile::Builder::new().prefix("systx-twin-").tempdir_in(base).expect("scratch directory")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_view_behaves_as_the_host_file_system(ops in proptest::collection::vec(op(), 1..40)) {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: chown needs root");
            return Ok(());
        }
        let (backing, host) = (scratch(), scratch());
        populate(backing.path()).expect("populate");
        populate(host.path()).expect("populate");
        let before = host_tree(backing.path());
        let host = Host(host.path().to_path_buf());
        let twin = Twin::over(backing.path());
        for (i, op) in ops.iter().enumerate() {
            let (want, got) = (host.run(op), twin.run(op));
            prop_assert_eq!(want, got, "call {}: {:?}", i, op);
        }
        prop_assert_eq!(host_tree(&host.0), view_tree(&twin.0));
        // Nothing of it reached the backing directory.
        prop_assert_eq!(before, host_tree(backing.path()));
    }
}
