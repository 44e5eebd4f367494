use super::*;
use crate::content::Slot;
use crate::plain::{Change, sys};
use std::fs::File;
use std::os::fd::AsFd;
use systx_base::{Gid, Oid, Time, Uid};
use systx_store::io::{FsInfo, Io, ListItem, Open, Openers, Rename};
use systx_store::real::RealIo;
use systx_txn::ObjectRef;

struct NoSpace;

impl Spill for NoSpace {
    fn stage(&self) -> std::io::Result<Slot> {
        Err(Errno::NOSPC.into())
    }
}

fn change<'a>(
    subject: Option<(Oid, std::os::fd::BorrowedFd<'a>)>,
    writes: &'a [ObjectRef<'a>],
    places: &'a [(Oid, std::os::fd::BorrowedFd<'a>)],
) -> Change<'a> {
    let by = crate::api::Caller { uid: 0, gid: 0, tid: 1 };
    Change { by, reads: &[], writes, subject, places, may_stall: false }
}

fn oid(file: &File) -> Oid {
    crate::node::oid_of(sys::stat(file).unwrap().id)
}

#[test]
fn where_there_is_no_room_the_snapshot_is_given_up_and_the_next_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let dir = File::open(dir.path()).unwrap();
    let places = [(oid(&dir), dir.as_fd())];
    let past = Arc::new(Past::with_limits(2, 100));
    let snapshot = past.begin(Arc::new(NoSpace));
    for name in ["a", "b", "c"] {
        assert!(!snapshot.is_given_up());
        let writes = [ObjectRef::Entry { dir: oid(&dir), name: name.as_bytes() }];
        past.keep(&change(None, &writes, &places));
    }
    assert!(snapshot.is_given_up() && !past.is_open());
    assert_eq!(snapshot.meaning(sys::stat(&dir).unwrap().id, b"a").unwrap_err(), Errno::CANCELED);
    assert_eq!(past.size(), Size::default(), "nothing is held for it");
    let next = past.begin(Arc::new(NoSpace));
    assert!(!next.is_given_up() && past.is_open());
    drop(snapshot);
    assert!(past.is_open());
    drop(next);
    assert!(!past.is_open());
}

#[test]
fn pages_that_find_no_room_on_the_disk_are_no_reason_to_fail() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("f");
    std::fs::write(&path, vec![1; 20 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    let past = Arc::new(Past::with_limits(10, 100));
    let snapshot = past.begin(Arc::new(NoSpace));
    let writes = [ObjectRef::Pages { oid: oid(&file), first: 0, last: u64::MAX }];
    past.keep(&change(Some((oid(&file), file.as_fd())), &writes, &[]));
    assert!(snapshot.is_given_up());
    assert_eq!(past.size(), Size::default());
}

#[test]
fn what_was_made_since_is_not_kept() {
    let scratch = tempfile::tempdir().unwrap();
    let past = Arc::new(Past::with_limits(10, 100));
    let first = past.begin(Arc::new(NoSpace));
    let path = scratch.path().join("f");
    std::fs::write(&path, b"x").unwrap();
    let file = File::open(&path).unwrap();
    let id = sys::stat(&file).unwrap().id;
    past.born(id);
    let writes = [ObjectRef::Pages { oid: oid(&file), first: 0, last: 0 }];
    let keep = || past.keep(&change(Some((oid(&file), file.as_fd())), &writes, &[]));
    keep();
    assert_eq!(past.size().memory, 0);
    // The next snapshot has seen it, and when that ends nobody has any more.
    let second = past.begin(Arc::new(NoSpace));
    keep();
    assert_eq!(past.size().memory, 4096);
    assert!(second.stat(id).unwrap().is_some());
    drop(second);
    assert_eq!((past.size().memory, past.size().snapshots), (0, 1));
    drop(first);
}

/// The file system, with something that happens right before a call.
struct Hooked {
    io: RealIo,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Hooked {
    fn run(&self) {
        let before = self.before.lock().take();
        if let Some(before) = before {
            before();
        }
    }
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.run();
            self.io.$name($($arg),*)
        })*
    };
}

type Out<T> = std::io::Result<T>;

impl Io for Hooked {
    pass_on! {
        open_dir(at: &Handle, name: &[u8]) -> Out<Handle>;
        open_file(at: &Handle, name: &[u8], how: Open) -> Out<Handle>;
        pin(at: &Handle, name: &[u8]) -> Out<Handle>;
        create_file(at: &Handle, name: &[u8], mode: u32) -> Out<Handle>;
        stat_at(at: &Handle, name: &[u8]) -> Out<Stat>;
        stat(h: &Handle) -> Out<Stat>;
        list(dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Out<()>;
        read_link(at: &Handle, name: &[u8]) -> Out<Vec<u8>>;
        get_xattr(at: &Handle, name: &[u8], key: &[u8]) -> Out<Vec<u8>>;
        list_xattr(at: &Handle, name: &[u8]) -> Out<Vec<Vec<u8>>>;
        read_at(h: &Handle, buf: &mut [u8], offset: u64) -> Out<usize>;
        write_at(h: &Handle, data: &[u8], offset: u64) -> Out<()>;
        write_durable(h: &Handle, data: &[u8], offset: u64) -> Out<()>;
        set_len(h: &Handle, len: u64) -> Out<()>;
        punch_hole(h: &Handle, offset: u64, len: u64) -> Out<()>;
        allocate(h: &Handle, offset: u64, len: u64) -> Out<()>;
        next_data(h: &Handle, offset: u64) -> Out<Option<(u64, u64)>>;
        copy_range(a: &Handle, b: u64, c: &Handle, d: u64, e: u64) -> Out<()>;
        mkdir(at: &Handle, name: &[u8], mode: u32) -> Out<()>;
        symlink(target: &[u8], at: &Handle, name: &[u8]) -> Out<()>;
        mknod(at: &Handle, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> Out<()>;
        link(a: &Handle, b: &[u8], c: &Handle, d: &[u8]) -> Out<()>;
        rename(a: &Handle, b: &[u8], c: &Handle, d: &[u8], how: Rename) -> Out<()>;
        unlink(at: &Handle, name: &[u8]) -> Out<()>;
        rmdir(at: &Handle, name: &[u8]) -> Out<()>;
        set_mode(at: &Handle, name: &[u8], mode: u32) -> Out<()>;
        set_owner(at: &Handle, name: &[u8], uid: Uid, gid: Gid) -> Out<()>;
        set_times(at: &Handle, name: &[u8], a: Option<Time>, m: Option<Time>) -> Out<()>;
        set_xattr(at: &Handle, name: &[u8], key: &[u8], value: &[u8]) -> Out<()>;
        remove_xattr(at: &Handle, name: &[u8], key: &[u8]) -> Out<()>;
        sync_data(h: &Handle) -> Out<()>;
        sync_all(h: &Handle) -> Out<()>;
        sync_fs() -> Out<()>;
        openers(h: &Handle) -> Out<Openers>;
        try_lock(h: &Handle) -> Out<bool>;
        fs_info() -> Out<FsInfo>;
    }
    fn root(&self) -> Handle {
        self.io.root()
    }
    fn now(&self) -> Time {
        self.io.now()
    }
}

/// Everything is changed right before the file system below is asked: the old value must be found, although there
/// was none a moment ago.
#[test]
fn a_change_between_the_question_and_the_answer_is_not_seen() {
    const OLD: &[u8] = b"old content";
    type Ask = fn(&dyn Io, &Handle) -> String;
    let asks: [(&str, Ask); 7] = [
        ("stat_at", |io, d| io.stat_at(d, b"f").unwrap().mode.to_string()),
        ("find", |io, d| io.stat(&io.pin(d, b"f").unwrap()).unwrap().size.to_string()),
        ("list", |io, d| {
            let mut names = Vec::new();
            io.list(d, &mut |item| {
                names.push(String::from_utf8_lossy(item.name).into_owned());
                true
            })
            .unwrap();
            format!("{names:?}")
        }),
        ("absent", |io, d| format!("{:?}", io.stat_at(d, b"new").map_err(|e| e.kind()))),
        ("xattr", |io, d| format!("{:?}", io.get_xattr(d, b"f", b"user.key"))),
        ("open", |io, d| {
            let file = io.open_file(d, b"f", Open::Read).unwrap();
            let mut buf = [0; 100];
            let n = io.read_at(&file, &mut buf, 0).unwrap();
            String::from_utf8_lossy(&buf[..n]).into_owned()
        }),
        ("attributes", |io, d| io.stat(d).unwrap().nlink.to_string()),
    ];
    for (what, ask) in asks {
        // Before which of the calls below the change comes.
        for nth in 0..6 {
            let scratch = tempfile::tempdir().unwrap();
            let at = |name: &str| scratch.path().join(name);
            std::fs::write(at("f"), OLD).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            // Where there are none, that is what is asked for.
            let _ = rustix::fs::setxattr(at("f"), "user.key", b"before", flags);
            let dir = File::open(scratch.path()).unwrap();
            let root = sys::stat(&dir).unwrap().id;
            let io = RealIo::open(scratch.path()).unwrap();
            let hooked = Arc::new(Hooked { io, before: Mutex::new(rank::VIEW, None) });
            let past = Arc::new(Past::with_limits(100, 100));
            let snapshot = past.begin(Arc::new(NoSpace));
            let frozen = Frozen::new(hooked.clone(), snapshot, HashSet::from([root]));
            let top = frozen.io.root();
            let want = ask(&*frozen.io, &top);
            let change = {
                let (path, past) = (scratch.path().to_owned(), Arc::clone(&past));
                move || change_everything(&path, &past)
            };
            let late = {
                let hooked = Arc::downgrade(&hooked);
                move |left: usize| delayed(hooked, left, Box::new(change))
            };
            *hooked.before.lock() = Some(late(nth));
            assert_eq!(ask(&*frozen.io, &top), want, "{what}, changed before call {nth}");
            assert_eq!(ask(&*frozen.io, &top), want, "{what}, later");
        }
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// `change` happens so many calls later.
fn delayed(hooked: std::sync::Weak<Hooked>, left: usize, change: Hook) -> Hook {
    Box::new(move || match (left, hooked.upgrade()) {
        (1.., Some(hooked)) => {
            let next = delayed(Arc::downgrade(&hooked), left - 1, change);
            *hooked.before.lock() = Some(next);
        }
        _ => change(),
    })
}

/// As plain requests do it.
fn change_everything(top: &std::path::Path, past: &Past) {
    let dir = File::open(top).unwrap();
    let file = File::options().read(true).write(true).open(top.join("f")).unwrap();
    let (d, f) = (oid(&dir), oid(&file));
    let content = [
        ObjectRef::Pages { oid: f, first: 0, last: u64::MAX },
        ObjectRef::Size(f),
        ObjectRef::Attr(f),
    ];
    past.keep(&change(Some((f, file.as_fd())), &content, &[]));
    std::fs::write(top.join("f"), b"x").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(top.join("f"), mode).unwrap();
    let _ = rustix::fs::removexattr(top.join("f"), "user.key");
    let names = [&b"f"[..], b"moved", b"new"];
    let places = [(d, dir.as_fd())];
    for name in names {
        past.keep(&change(None, &[ObjectRef::Entry { dir: d, name }], &places));
    }
    std::fs::rename(top.join("f"), top.join("moved")).unwrap();
    std::fs::create_dir(top.join("new")).unwrap();
}
