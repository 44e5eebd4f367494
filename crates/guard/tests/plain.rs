//! The plain view called directly on a temporary directory: which objects each request passes the
//! gate with, how long nodes live, and odd input.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::io::Errno;
use systx_base::{Kind, NodeId, Oid};
use systx_guard::plain::{Change, Gate, NoGate, Plain};
use systx_store::io::Tree;
use systx_store::real::RealIo;
use systx_txn::ObjectRef;
use systx_vfs::api::*;

const ROOT: Caller = Caller { uid: 0, gid: 0, tid: 1 };
const NEW: NewAttr = NewAttr { mode: 0o644, umask: 0o022 };

/// Notes what passes, and who changed something last.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>, Mutex<Option<Caller>>);

/// An object as `kind inode [name or pages]`.
fn brief(object: &ObjectRef<'_>) -> String {
    match object {
        ObjectRef::Entry { dir, name } => {
            format!("entry {} {}", dir.0, String::from_utf8_lossy(name))
        }
        ObjectRef::List(oid) => format!("list {}", oid.0),
        ObjectRef::Attr(oid) => format!("attr {}", oid.0),
        ObjectRef::Size(oid) => format!("size {}", oid.0),
        ObjectRef::Pages { oid, first, last: u64::MAX } => format!("pages {} {first}..", oid.0),
        ObjectRef::Pages { oid, first, last } => format!("pages {} {first}-{last}", oid.0),
    }
}

impl Notes {
    fn note(&self, how: &str, objects: &[ObjectRef<'_>]) {
        self.0.lock().unwrap().extend(objects.iter().map(|o| format!("{how} {}", brief(o))));
    }
    fn take(&self) -> Vec<String> {
        let mut notes = std::mem::take(&mut *self.0.lock().unwrap());
        notes.sort();
        notes
    }
}

impl Gate for Notes {
    fn read(&self, reads: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        self.note("r", reads);
        act()
    }
    fn mutate(&self, change: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        *self.1.lock().unwrap() = Some(change.by);
        self.note("r", change.reads);
        self.note("w", change.writes);
        act()
    }
}

fn open_dir(dir: &Path) -> OwnedFd {
    File::open(dir).unwrap().into()
}

fn plain(dir: &Path) -> Plain {
    Plain::new(open_dir(dir), HashSet::new(), Arc::new(NoGate)).unwrap()
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// The key of an object in the conflict engine.
fn key(path: impl AsRef<Path>) -> u64 {
    let (dir, name) = (path.as_ref().parent().unwrap(), path.as_ref().file_name().unwrap());
    let io = RealIo::from_dir(open_dir(dir)).unwrap();
    io.stat_at(&io.root(), name.as_bytes()).unwrap().id.oid().0
}

#[test]
fn each_request_passes_the_gate_with_what_it_touches() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::create_dir(at("e")).unwrap();
    fs::write(at("f"), vec![1; 10_000]).unwrap();
    symlink("f", at("l")).unwrap();
    let notes = Arc::new(Notes::default());
    let v = Plain::new(open_dir(dir.path()), HashSet::new(), notes.clone()).unwrap();
    let (top, d, e, f) = (key(dir.path()), key(at("d")), key(at("e")), key(at("f")));
    let passed = |want: &[String]| {
        let mut want = want.to_vec();
        want.sort();
        assert_eq!(notes.take(), want);
    };
    let s = |text: String| text;
    let node = |name: &str| {
        let node = v.lookup(ROOT, NodeId::ROOT, name.as_bytes()).unwrap().unwrap().node;
        notes.take();
        node
    };
    let (dn, fn_, ln) = (node("d"), node("f"), node("l"));

    v.lookup(ROOT, NodeId::ROOT, b"f").unwrap();
    passed(&[s(format!("r entry {top} f")), s(format!("r attr {f}")), s(format!("r size {f}"))]);
    v.lookup(ROOT, dn, b"none").unwrap();
    passed(&[format!("r entry {d} none")]);
    v.getattr(fn_).unwrap();
    passed(&[format!("r attr {f}"), format!("r size {f}")]);
    v.readlink(ln).unwrap();
    passed(&[format!("r pages {} 0-0", key(at("l")))]);

    let mut buf = [0; 4096];
    v.read(fn_, 4096, &mut buf).unwrap();
    passed(&[format!("r pages {f} 1-1")]);
    v.read(fn_, 8000, &mut buf).unwrap();
    passed(&[format!("r pages {f} 1-2"), format!("r size {f}")]);
    v.write(fn_, 4095, b"xy", false).unwrap();
    passed(&[format!("w pages {f} 0-1")]);
    v.write(fn_, 9_999, b"xy", true).unwrap();
    passed(&[format!("w pages {f} 2-2"), format!("w size {f}")]);
    fs::set_permissions(at("f"), Permissions::from_mode(0o4755)).unwrap();
    v.write(fn_, 0, b"x", true).unwrap();
    passed(&[format!("w pages {f} 0-0"), format!("w attr {f}")]);
    assert_eq!(v.getattr(fn_).unwrap().mode, 0o755);
    notes.take();
    v.fallocate(fn_, Fallocate::PunchHole, 0, 4096).unwrap();
    passed(&[format!("w pages {f} 0-0")]);
    v.lseek(fn_, 5000, Seek::Hole).unwrap();
    passed(&[format!("r pages {f} 1.."), format!("r size {f}")]);
    v.copy_file_range((fn_, 0), (fn_, 12_288), 4096).unwrap();
    let copied = [format!("r pages {f} 0-0"), format!("w pages {f} 3-3"), format!("w size {f}")];
    passed(&copied);

    // Content is changed by who has the file open for that.
    assert_eq!(notes.1.lock().unwrap().unwrap().tid, 0);
    let user = Caller { uid: 1, gid: 2, tid: 3 };
    let how = OpenHow { write: true, ..OpenHow::default() };
    let opened = v.open(user, fn_, how).unwrap();
    v.write(fn_, 0, b"x", true).unwrap();
    assert_eq!(notes.1.lock().unwrap().unwrap(), user);
    v.release(fn_, opened.handle);
    notes.take();

    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    v.setattr(ROOT, fn_, chmod).unwrap();
    passed(&[format!("w attr {f}")]);
    let cut = SetAttr { size: Some(5000), ..SetAttr::default() };
    v.setattr(ROOT, fn_, cut).unwrap();
    passed(&[format!("w pages {f} 1.."), format!("w size {f}")]);
    v.setxattr(ROOT, fn_, b"user.a", b"1", SetXattr::Any, false).unwrap();
    passed(&[format!("w attr {f}")]);
    v.getxattr(fn_, b"user.a").unwrap();
    passed(&[format!("r attr {f}")]);

    let name = |how: &str, dir: u64, name: &str| {
        [format!("{how} entry {dir} {name}"), format!("{how} list {dir}")]
    };
    v.mkdir(ROOT, dn, b"sub", NEW).unwrap();
    passed(&name("w", d, "sub"));
    let sub = key(at("d/sub"));
    v.create(ROOT, dn, b"new", NEW, true).unwrap();
    passed(&name("w", d, "new"));
    v.link(ROOT, fn_, dn, b"hard").unwrap();
    passed(&name("w", d, "hard"));
    v.unlink(ROOT, dn, b"hard").unwrap();
    passed(&name("w", d, "hard"));
    v.rename(ROOT, (dn, b"sub"), (NodeId::ROOT, b"e"), RenameHow::Replace).unwrap();
    passed(&[&name("w", d, "sub")[..], &name("w", top, "e"), &[format!("r list {e}")]].concat());
    v.rename(ROOT, (dn, b"new"), (dn, b"newer"), RenameHow::Replace).unwrap();
    passed(&[format!("w entry {d} new"), format!("w entry {d} newer"), format!("w list {d}")]);
    let user = Caller { uid: 1, gid: 2, tid: 3 };
    v.rmdir(user, NodeId::ROOT, b"e").unwrap();
    assert_eq!(notes.1.lock().unwrap().unwrap(), user);
    passed(&[&name("w", top, "e")[..], &[format!("r list {sub}")]].concat());

    v.readdir(dn, 0, false, &mut |_| true).unwrap();
    let listed = notes.take();
    assert!(listed.iter().all(|n| *n == format!("r list {d}")), "{listed:?}");
    // What was read since has other attributes than the kernel was told.
    let read = v.lookup(ROOT, dn, b"newer").unwrap().unwrap().node;
    v.read(read, 0, &mut [0; 1]).unwrap();
    notes.take();
    v.readdir(dn, 0, true, &mut |_| true).unwrap();
    let mut listed = notes.take();
    listed.dedup();
    let newer = key(at("d/newer"));
    assert_eq!(
        listed,
        [
            format!("r attr {newer}"),
            format!("r entry {d} newer"),
            format!("r list {d}"),
            format!("r size {newer}")
        ]
    );
    // The directory itself is no object of its entries.
    assert!(!listed.contains(&format!("r attr {d}")));
}

#[test]
fn a_gate_that_refuses_keeps_everything_as_it_is() {
    struct Shut;
    impl Gate for Shut {
        fn read(&self, _: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
            act()
        }
        fn mutate(&self, _: Change<'_>, _: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
            Err(Errno::CANCELED)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), b"x").unwrap();
    let v = Plain::new(open_dir(dir.path()), HashSet::new(), Arc::new(Shut)).unwrap();
    let f = v.lookup(ROOT, NodeId::ROOT, b"f").unwrap().unwrap().node;
    assert_eq!(v.write(f, 0, b"y", false), Err(Errno::CANCELED));
    assert_eq!(v.unlink(ROOT, NodeId::ROOT, b"f"), Err(Errno::CANCELED));
    assert_eq!(v.mkdir(ROOT, NodeId::ROOT, b"d", NEW).map(drop), Err(Errno::CANCELED));
    assert_eq!(v.tmpfile(ROOT, NodeId::ROOT, NEW).map(drop), Err(Errno::CANCELED));
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"x");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Whatever a request waits for, it tells all that it changes.
#[test]
fn a_write_tells_what_it_changes_beside_the_bytes_after_it_has_waited() {
    type Commit = fn(&File);
    /// Once, something is committed that the request waits for.
    struct Meanwhile(Mutex<Option<(File, Commit)>>, Notes);
    impl Gate for Meanwhile {
        fn read(&self, _: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
            act()
        }
        fn mutate(&self, change: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
            if let Some((file, committed)) = self.0.lock().unwrap().take() {
                committed(&file);
            }
            self.1.take();
            self.1.note("w", change.writes);
            act()
        }
    }
    if !is_root() {
        return;
    }
    let cases: [(Commit, &str); 2] = [
        (|file| file.set_len(5).unwrap(), "size"),
        (|file| file.set_permissions(Permissions::from_mode(0o4755)).unwrap(), "attr"),
    ];
    for (committed, what) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, vec![b'x'; 10_000]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let gate = Arc::new(Meanwhile(Mutex::new(Some((file, committed))), Notes::default()));
        let v = Plain::new(open_dir(dir.path()), HashSet::new(), gate.clone()).unwrap();
        let f = v.lookup(ROOT, NodeId::ROOT, b"f").unwrap().unwrap().node;
        assert_eq!(v.write(f, 8, b"y", true), Ok(1));
        let n = key(&path);
        let mut want = [format!("w pages {n} 0-0"), format!("w {what} {n}")];
        want.sort();
        assert_eq!(gate.1.take(), want);
        assert_eq!(fs::read(&path).unwrap()[8], b'y');
    }
}

#[test]
fn nodes_live_as_long_as_the_kernel_knows_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), b"content").unwrap();
    fs::hard_link(at("a"), at("b")).unwrap();
    let v = plain(dir.path());
    let find = |name: &[u8]| v.lookup(ROOT, NodeId::ROOT, name).unwrap().unwrap().node;
    let a = find(b"a");
    assert_eq!(find(b"b"), a);
    let how = OpenHow { read: true, ..OpenHow::default() };
    let opened = v.open(ROOT, a, how).unwrap();
    v.forget(a, 2);
    // Open, so it stays, also without a name.
    fs::remove_file(at("a")).unwrap();
    fs::remove_file(at("b")).unwrap();
    let mut buf = [0; 7];
    assert_eq!(v.read(a, 0, &mut buf), Ok(7));
    assert_eq!(v.getattr(a).unwrap().nlink, 0);
    v.release(a, opened.handle);
    assert_eq!(v.getattr(a), Err(Errno::STALE));
    assert_eq!(v.size(), (1, 1));
    // The number is free for another file, which is another node.
    fs::write(at("a"), b"x").unwrap();
    assert_ne!(find(b"a"), a);
    // The root is never forgotten.
    v.forget(NodeId::ROOT, u64::MAX);
    assert!(v.getattr(NodeId::ROOT).is_ok());
}

/// A listing of thousands of names in which one has changed costs no look at each of them.
#[test]
fn a_listing_tells_attributes_of_what_the_kernel_does_not_have_them_of() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    ["a", "b", "c"].iter().for_each(|name| fs::write(at(name), b"content").unwrap());
    let v = plain(dir.path());
    let told = || {
        let (mut names, mut told) = (0, BTreeMap::new());
        v.readdir(NodeId::ROOT, 0, true, &mut |entry| {
            names += usize::from(!entry.name.starts_with(b"."));
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            told.extend(entry.entry.map(|entry| (name, entry.node)));
            true
        })
        .unwrap();
        (names, told)
    };
    let (names, nodes) = told();
    assert_eq!((names, nodes.len()), (3, 3));
    let none = || {
        let (names, told) = told();
        (names, told.len())
    };
    assert_eq!(none(), (3, 0));
    let only = |name: &str| {
        let (_, told) = told();
        assert_eq!(told.keys().collect::<Vec<_>>(), [name]);
        assert_eq!(none().1, 0);
    };
    // The kernel takes what it has for old: a reading moves the time of access.
    let how = OpenHow { read: true, write: true, ..OpenHow::default() };
    for name in ["a", "b"] {
        v.open(ROOT, nodes[name], how).unwrap();
    }
    assert_eq!(v.read(nodes["a"], 0, &mut [0; 7]), Ok(7));
    only("a");
    assert_eq!(v.write(nodes["b"], 7, b", more", false), Ok(6));
    only("b");
    // Two lookups of it, by the first listing and by this one.
    assert_eq!(v.lookup(ROOT, NodeId::ROOT, b"c").unwrap().unwrap().node, nodes["c"]);
    v.forget(nodes["c"], 2);
    only("c");
    fs::write(at("d"), b"new").unwrap();
    assert_eq!(told().1.into_keys().collect::<Vec<_>>(), ["d"]);
}

#[test]
fn a_number_that_is_used_again_is_another_node() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |i: u32| dir.path().join(format!("f{i}"));
    let v =
        Plain::with_descriptors(open_dir(dir.path()), HashSet::new(), Arc::new(NoGate), 8).unwrap();
    let find = |i: u32| {
        let name = format!("f{i}");
        v.lookup(ROOT, NodeId::ROOT, name.as_bytes()).unwrap().unwrap().node
    };
    (0..64).for_each(|i| fs::write(at(i), b"old").unwrap());
    let old: Vec<NodeId> = (0..64).map(find).collect();
    if v.size().1 > 32 {
        return eprintln!("skipped: no file handles here");
    }
    // All are gone, made by others; the numbers come back.
    (0..64).for_each(|i| fs::remove_file(at(i)).unwrap());
    (0..64).for_each(|i| fs::write(at(i), b"new").unwrap());
    let mut stale = 0;
    for i in 0..64 {
        let node = find(i);
        assert!(!old.contains(&node));
        let mut buf = [0; 3];
        v.read(node, 0, &mut buf).unwrap();
        assert_eq!(&buf, b"new");
    }
    for node in old {
        match v.getattr(node) {
            Ok(attr) => assert_eq!(attr.nlink, 0),
            Err(errno) => {
                assert_eq!(errno, Errno::STALE);
                stale += 1;
            }
        }
    }
    assert!(stale > 16, "{stale}");
}

#[test]
fn odd_input_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), b"x").unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    let v = plain(dir.path());
    let find = |name: &[u8]| v.lookup(ROOT, NodeId::ROOT, name);
    let (f, d) = (find(b"f").unwrap().unwrap().node, find(b"d").unwrap().unwrap().node);
    let none = NodeId(99);
    assert_eq!(v.getattr(none), Err(Errno::STALE));
    v.forget(none, 3);
    v.release(none, 7);
    // A release too many, with bits that no open ever gave.
    v.release(f, u8::MAX);
    v.release(f, 0);
    assert_eq!(v.lookup(ROOT, f, b"x"), Err(Errno::NOTDIR));
    assert_eq!(v.read(d, 0, &mut [0; 8]), Err(Errno::ISDIR));
    assert_eq!(v.write(d, 0, b"x", false), Err(Errno::ISDIR));
    assert_eq!(v.readdir(f, 0, true, &mut |_| true), Err(Errno::NOTDIR));
    assert!(v.readdir(d, u64::MAX, true, &mut |_| true).is_err());
    assert!(v.read(f, u64::MAX - 2, &mut [0; 8]).is_err());
    assert_eq!(v.write(f, u64::MAX - 2, b"xxxx", false), Err(Errno::FBIG));
    assert_eq!(v.fallocate(f, Fallocate::Allocate, u64::MAX, 2), Err(Errno::FBIG));
    assert_eq!(v.fallocate(f, Fallocate::Allocate, 0, 0), Err(Errno::INVAL));
    assert!(v.lseek(f, u64::MAX, Seek::Data).is_err());
    assert!(v.copy_file_range((f, u64::MAX), (f, u64::MAX), u64::MAX).is_ok_and(|n| n == 0));
    let nobody = Caller { uid: u32::MAX, gid: u32::MAX, tid: 0 };
    assert_eq!(v.mkdir(nobody, NodeId::ROOT, b"x", NEW).map(drop), Err(Errno::OVERFLOW));
    // What the layer above never lets pass.
    for name in [&b""[..], b"..", b"a/b", b"/", b"a\0b"] {
        assert!(v.lookup(ROOT, d, name).is_err() || v.lookup(ROOT, d, name) == Ok(None));
    }
    assert!(v.getxattr(f, b"").is_err());
    assert!(
        Plain::new(open_file(&dir.path().join("f")), HashSet::new(), Arc::new(NoGate)).is_err()
    );
}

fn open_file(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

#[test]
fn the_thread_is_itself_again_after_acting_for_others() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let v = plain(dir.path());
    let user = Caller { uid: 12345, gid: 54321, tid: 1 };
    let before = rustix::thread::capabilities(None).unwrap();
    let made = v.mkdir(user, NodeId::ROOT, b"d", NewAttr { mode: 0o777, umask: 0o70 }).unwrap();
    assert_eq!((made.attr.uid, made.attr.gid, made.attr.mode), (12345, 54321, 0o707));
    // Refused on the way, too.
    assert_eq!(v.mkdir(user, NodeId::ROOT, b"d", NEW).map(drop), Err(Errno::EXIST));
    let after = rustix::thread::capabilities(None).unwrap();
    assert_eq!(before.effective, after.effective);
    let mine = dir.path().join("mine");
    fs::create_dir(&mine).unwrap();
    assert_eq!(fs::metadata(&mine).unwrap().uid(), 0);
    assert_ne!(Oid(made.attr.ino), Oid(0));
    assert_eq!(made.attr.kind, Kind::Dir);
}

/// What a descriptor per node saves, and what a handle costs: printed, for the comment in
/// `table.rs`.
#[test]
#[ignore = "a measurement"]
fn cost_of_descriptors_and_handles() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..1000 {
        fs::write(dir.path().join(format!("f{i}")), b"x").unwrap();
    }
    for limit in [1 << 16, 16] {
        let v =
            Plain::with_descriptors(open_dir(dir.path()), HashSet::new(), Arc::new(NoGate), limit)
                .unwrap();
        let mut nodes = Vec::new();
        let start = Instant::now();
        for i in 0..1000 {
            let name = format!("f{i}");
            nodes.push(v.lookup(ROOT, NodeId::ROOT, name.as_bytes()).unwrap().unwrap().node);
        }
        let met = start.elapsed() / 1000;
        let start = Instant::now();
        nodes.iter().for_each(|n| assert!(v.getattr(*n).is_ok()));
        let first = start.elapsed() / 1000;
        let start = Instant::now();
        nodes.iter().for_each(|n| assert!(v.getattr(*n).is_ok()));
        println!("limit {limit}: met {met:?}, getattr {first:?} then {:?}", start.elapsed() / 1000);
    }
}
