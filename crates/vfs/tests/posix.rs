//! Corners of the interface, each made on a directory of the host and in a view: what the host says
//! is right.  (Random calls on plain files: twin.rs.)

mod common;

use common::*;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systx_base::{Kind, NodeId, TxnId};
use systx_txn::{BeginOptions, Isolation};
use systx_vfs::api::*;
use systx_vfs::content::Budget;
use systx_vfs::freeze::Everything;
use systx_vfs::view::{Ids, View, ViewConfig};

const NEW: NewAttr = NewAttr { mode: 0o644, umask: 0o022 };
const ROOT: NodeId = NodeId::ROOT;

/// The same start on both sides.
fn pair(start: impl Fn(&Path)) -> (tempfile::TempDir, PathBuf, Twin) {
    let dirs = scratch();
    let (backing, host) = (dirs.path().join("backing"), dirs.path().join("host"));
    for dir in [&backing, &host] {
        fs::create_dir(dir).expect("mkdir");
        start(dir);
    }
    let twin = Twin(open_view(&open_volume(&backing), 1, Isolation::Serializable));
    (dirs, host, twin)
}

fn make(view: &View, dir: NodeId, name: &[u8]) -> NodeId {
    view.create(CALLER, dir, name, NEW, true).expect("create").node
}

#[test]
fn set_group_directories_pass_their_group_on() {
    if !is_root() {
        return;
    }
    let (_dirs, host, twin) = pair(|dir| {
        fs::create_dir(dir.join("d")).unwrap();
        std::os::unix::fs::chown(dir.join("d"), Some(3), Some(7)).unwrap();
        fs::set_permissions(dir.join("d"), fs::Permissions::from_mode(0o2775)).unwrap();
    });
    fs::create_dir(host.join("d/sub")).unwrap();
    fs::write(host.join("d/sub/f"), "").unwrap();
    rustix::fs::symlink("x", host.join("d/l")).unwrap();
    let d = twin.walk("d").unwrap().node;
    let dir = NewAttr { mode: 0o777, umask: 0o022 };
    let sub = twin.0.mkdir(CALLER, d, b"sub", dir).unwrap().node;
    twin.0.create(CALLER, sub, b"f", NewAttr { mode: 0o666, umask: 0o022 }, true).unwrap();
    twin.0.symlink(CALLER, d, b"l", b"x").unwrap();
    assert_eq!(difference(&host_tree(&host), &view_tree(&twin.0)), None);
    assert_eq!(twin.walk("d/sub").unwrap().attr.mode, 0o2755);
}

/// Where owners are shown as others than they are, the kernel cannot check the sticky bit.
#[test]
fn the_sticky_bit_protects_what_others_own() {
    if !is_root() {
        return;
    }
    let dir = scratch();
    fs::create_dir(dir.path().join("tmp")).unwrap();
    fs::set_permissions(dir.path().join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    for (name, owner) in [("mine", 1000), ("theirs", 1001)] {
        fs::write(dir.path().join("tmp").join(name), "").unwrap();
        std::os::unix::fs::chown(dir.path().join("tmp").join(name), Some(owner), Some(owner))
            .unwrap();
    }
    let vol = open_volume(dir.path());
    vol.engine.begin(TxnId(1), BeginOptions::default());
    let view = View::new(
        Arc::new(systx_vfs::neighbours::Nobody(vol)),
        ViewConfig {
            txn: TxnId(1),
            isolation: Isolation::Serializable,
            ids: Ids::Single { uid: 1000, gid: 1000, groups: vec![] },
            spill: Arc::new(NoSpill),
            budget: Budget::new(1 << 20),
            mount_points: Vec::new(),
            opaque: false,
        },
    )
    .unwrap();
    let me = Caller { uid: 1000, gid: 1000, tid: 1 };
    let tmp = view.lookup(me, ROOT, b"tmp").unwrap().unwrap();
    assert_eq!(tmp.attr.uid, 1000, "what may be written is shown as one's own");
    assert_eq!(view.unlink(me, tmp.node, b"theirs"), Err(Errno::PERM));
    let to = (tmp.node, &b"stolen"[..]);
    assert_eq!(view.rename(me, (tmp.node, b"theirs"), to, RenameHow::Replace), Err(Errno::PERM));
    let onto = (tmp.node, &b"theirs"[..]);
    assert_eq!(view.rename(me, (tmp.node, b"mine"), onto, RenameHow::Replace), Err(Errno::PERM));
    assert_eq!(view.unlink(me, tmp.node, b"mine"), Ok(()));
}

#[test]
fn long_names_and_strange_ones() {
    let (_dirs, host, twin) = pair(|dir| fs::create_dir(dir.join("d")).unwrap());
    let view = &twin.0;
    let made = view.mkdir(CALLER, ROOT, b"new", NewAttr { mode: 0o755, umask: 0 }).unwrap().node;
    fs::create_dir(host.join("new")).unwrap();
    fs::set_permissions(host.join("new"), fs::Permissions::from_mode(0o755)).unwrap();
    let names: [&[u8]; 6] =
        [&[b'a'; 255], &[b'a'; 256], &[0xff, 0xfe, b'\n', 1], b" ", "ü\u{202e}".as_bytes(), b"..."];
    for (dir, up) in [("d", twin.walk("d").unwrap().node), ("new", made)] {
        for name in names {
            let path = host.join(dir).join(std::ffi::OsStr::from_bytes(name));
            let absent = |e: Errno| if e == Errno::NOENT { Ok(false) } else { Err(e) };
            let want = rustix::fs::lstat(&path).map(|_| true).or_else(absent);
            let got = view.lookup(CALLER, up, name).map(|found| found.is_some());
            assert_eq!(got, want, "lookup of {name:?} in {dir}");
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            let want = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644)).map(drop);
            assert_eq!(view.create(CALLER, up, name, NEW, true).map(drop), want, "{name:?}");
            let to = path.with_file_name(
                [name, b"2"].concat().iter().map(|b| *b as char).collect::<String>(),
            );
            if want.is_ok() && name.is_ascii() {
                let want = rustix::fs::renameat(CWD, &path, CWD, &to);
                let to = to.file_name().unwrap().as_bytes().to_vec();
                let how = RenameHow::Replace;
                assert_eq!(view.rename(CALLER, (up, name), (up, &to), how), want, "{name:?}");
            }
        }
    }
    assert_eq!(difference(&host_tree(&host), &view_tree(view)), None);
    let frozen = view.freeze(&Everything);
    assert_eq!(frozen.writes.check(), Ok(()));
}

/// Content of files without a name can be used as long as somebody holds them, and costs nothing
/// afterwards.
#[test]
fn files_without_a_name() {
    let dir = scratch();
    populate(dir.path()).unwrap();
    let vol = open_volume(dir.path());
    vol.engine.begin(TxnId(1), BeginOptions::default());
    let budget = Budget::new(64 << 20);
    let view = View::new(
        Arc::new(systx_vfs::neighbours::Nobody(vol)),
        ViewConfig {
            txn: TxnId(1),
            isolation: Isolation::Serializable,
            ids: Ids::Faithful,
            spill: Arc::new(NoSpill),
            budget: budget.clone(),
            mount_points: Vec::new(),
            opaque: false,
        },
    )
    .unwrap();
    let data = vec![5; 100_000];
    let mut buf = vec![0; 100_000];
    for round in 0..100 {
        let file = make(&view, ROOT, b"temporary");
        view.write(file, 0, &data, false).unwrap();
        let found = view.lookup(CALLER, ROOT, b"temporary").unwrap().unwrap();
        assert_eq!(found.node, file);
        match round % 3 {
            0 => view.unlink(CALLER, ROOT, b"temporary").unwrap(),
            1 => {
                let other = make(&view, ROOT, b"other");
                let (from, to) = ((ROOT, &b"other"[..]), (ROOT, &b"temporary"[..]));
                view.rename(CALLER, from, to, RenameHow::Replace).unwrap();
                view.unlink(CALLER, ROOT, b"temporary").unwrap();
                view.forget(other, 1);
            }
            _ => {
                let open = view.tmpfile(CALLER, ROOT, NEW).unwrap().node;
                view.write(open, 0, &data, false).unwrap();
                view.forget(open, 1);
                view.unlink(CALLER, ROOT, b"temporary").unwrap();
            }
        }
        assert_eq!(view.getattr(file).map(|a| (a.nlink, a.size)), Ok((0, 100_000)));
        view.forget(file, 1);
        assert_eq!(view.read(file, 0, &mut buf), Ok(100_000), "held by the lookup");
        assert_eq!(buf, data);
        view.write(file, 50_000, b"still", false).unwrap();
        view.forget(file, 1);
        assert_eq!(budget.used(), 0, "round {round}");
    }
    // A forgotten file that has a name keeps its content.
    let file = make(&view, ROOT, b"kept");
    view.write(file, 0, b"kept", false).unwrap();
    view.forget(file, 1);
    assert_eq!(view.read(file, 0, &mut buf), Ok(4));
    // An existing one, removed while open.
    let f = view.lookup(CALLER, ROOT, b"f").unwrap().unwrap().node;
    view.unlink(CALLER, ROOT, b"f").unwrap();
    view.write(f, 5, b"!", false).unwrap();
    assert_eq!(view.read(f, 0, &mut buf), Ok(6));
    assert_eq!(&buf[..6], b"first!");
    let frozen = view.freeze(&Everything);
    assert_eq!(frozen.writes.check(), Ok(()));
    assert_eq!(frozen.writes.binds.len(), 2, "f is gone, kept is new");
}

#[test]
fn capabilities_go_with_every_change_of_content_or_owner() {
    if !is_root() {
        return;
    }
    const CAPS: &str = "security.capability";
    // Version 2: cap_net_raw, effective.
    let mut caps = [0u8; 20];
    caps[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
    caps[5] = 0x20;
    type Change = (&'static str, fn(&Path), fn(&View, NodeId));
    let changes: [Change; 5] = [
        (
            "write",
            |p| fs::write(p, "other").unwrap(),
            |v, f| {
                let set = SetAttr { size: Some(0), ..SetAttr::default() };
                v.setattr(CALLER, f, set).unwrap();
                v.write(f, 0, b"other", false).map(drop).unwrap();
            },
        ),
        (
            "truncate",
            |p| fs::OpenOptions::new().write(true).open(p).unwrap().set_len(2).unwrap(),
            |v, f| {
                let set = SetAttr { size: Some(2), ..SetAttr::default() };
                v.setattr(CALLER, f, set).map(drop).unwrap();
            },
        ),
        (
            "chown",
            |p| std::os::unix::fs::chown(p, Some(1), None).unwrap(),
            |v, f| {
                let set = SetAttr { uid: Some(1), ..SetAttr::default() };
                v.setattr(CALLER, f, set).map(drop).unwrap();
            },
        ),
        (
            "chmod",
            |p| fs::set_permissions(p, fs::Permissions::from_mode(0o755)).unwrap(),
            |v, f| {
                let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
                v.setattr(CALLER, f, set).map(drop).unwrap();
            },
        ),
        (
            "another attribute",
            |p| rustix::fs::setxattr(p, "user.x", b"1", XattrFlags::empty()).unwrap(),
            |v, f| v.setxattr(CALLER, f, b"user.x", b"1", SetXattr::Any, false).unwrap(),
        ),
    ];
    for (what, on_host, in_view) in changes {
        let (_dirs, host, twin) = pair(|dir| {
            fs::write(dir.join("f"), "content").unwrap();
            rustix::fs::setxattr(dir.join("f"), CAPS, &caps, XattrFlags::empty()).unwrap();
        });
        on_host(&host.join("f"));
        in_view(&twin.0, twin.walk("f").unwrap().node);
        assert_eq!(difference(&host_tree(&host), &view_tree(&twin.0)), None, "{what}");
    }
}

/// Holes, allocation and shifts, on the file system of the temporary directory as far as it has
/// them.
#[test]
fn holes_and_shifts() {
    let dirs = tempfile::Builder::new().prefix("systx-posix-").tempdir_in("/var/tmp").unwrap();
    let (backing, host) = (dirs.path().join("backing"), dirs.path().join("host"));
    let bytes = |n: usize| (0..n).map(|i| (i / 7) as u8 | 1).collect::<Vec<u8>>();
    for dir in [&backing, &host] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("f"), bytes(40_000)).unwrap();
    }
    let view = open_view(&open_volume(&backing), 1, Isolation::Serializable);
    let node = view.lookup(CALLER, ROOT, b"f").unwrap().unwrap().node;
    let file = rustix::fs::open(host.join("f"), OFlags::RDWR, Mode::empty()).unwrap();
    use Fallocate as F;
    let keep = FallocateFlags::KEEP_SIZE;
    let calls: [(F, FallocateFlags, u64, u64); 12] = [
        (F::PunchHole, FallocateFlags::PUNCH_HOLE | keep, 4096, 8192),
        (F::PunchHole, FallocateFlags::PUNCH_HOLE | keep, 100, 20),
        (F::ZeroRangeKeepSize, FallocateFlags::ZERO_RANGE | keep, 39_000, 5000),
        (F::ZeroRange, FallocateFlags::ZERO_RANGE, 39_500, 3000),
        (F::CollapseRange, FallocateFlags::COLLAPSE_RANGE, 4096, 8192),
        (F::CollapseRange, FallocateFlags::COLLAPSE_RANGE, 4097, 4096),
        (F::InsertRange, FallocateFlags::INSERT_RANGE, 8192, 4096),
        (F::InsertRange, FallocateFlags::INSERT_RANGE, 1 << 20, 4096),
        (F::CollapseRange, FallocateFlags::COLLAPSE_RANGE, 32_768, 1 << 20),
        (F::Allocate, FallocateFlags::empty(), 40_000, 20_000),
        (F::KeepSize, keep, 100_000, 4096),
        (F::PunchHole, FallocateFlags::PUNCH_HOLE | keep, 0, 1 << 20),
    ];
    for (how, flags, offset, len) in calls {
        let want = rustix::fs::fallocate(&file, flags, offset, len);
        if want == Err(Errno::OPNOTSUPP) {
            eprintln!("skipped: {how:?} is not known to the file system of /var/tmp");
            continue;
        }
        let call = format!("{how:?} {offset} {len}");
        assert_eq!(view.fallocate(node, how, offset, len), want, "{call}");
        let content = fs::read(host.join("f")).unwrap();
        let mut seen = vec![0; content.len() + 1];
        let n = view.read(node, 0, &mut seen).unwrap();
        assert_eq!(seen[..n], content, "{call}");
        assert_eq!(view.getattr(node).map(|a| a.size), Ok(content.len() as u64), "{call}");
        // Every byte that is not zero lies in data; the end is a hole; beyond it is nothing.
        let mut at = 0;
        while let Ok(data) = view.lseek(node, at, Seek::Data) {
            assert!(content[at as usize..data as usize].iter().all(|b| *b == 0), "{call}");
            at = view.lseek(node, data, Seek::Hole).unwrap();
            assert!(at > data && at <= content.len() as u64, "{call}");
        }
        assert!(content[(at as usize).min(content.len())..].iter().all(|b| *b == 0), "{call}");
        let past = content.len() as u64;
        let want = rustix::fs::seek(&file, SeekFrom::Hole(past));
        assert_eq!(view.lseek(node, past, Seek::Hole), want, "{call}");
    }
}

#[test]
fn special_files_and_links() {
    if !is_root() {
        return;
    }
    let (_dirs, host, twin) = pair(|_| {});
    let kinds = [
        (Kind::Fifo, rustix::fs::FileType::Fifo, 0),
        (Kind::Socket, rustix::fs::FileType::Socket, 0),
        (Kind::CharDev, rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        (Kind::BlockDev, rustix::fs::FileType::BlockDevice, rustix::fs::makedev(259, 1_000_000)),
        (Kind::File, rustix::fs::FileType::RegularFile, 0),
    ];
    for (i, (kind, file_type, dev)) in kinds.into_iter().enumerate() {
        let name = format!("n{i}");
        rustix::fs::mknodat(CWD, host.join(&name), file_type, Mode::from_raw_mode(0o666), dev)
            .unwrap();
        let new = NewAttr { mode: 0o666, umask: 0o022 };
        twin.0.mknod(CALLER, ROOT, name.as_bytes(), kind, new, dev).unwrap();
    }
    // Several names, each of which can go.
    for (from, to) in [("n0", "m0"), ("n4", "m4"), ("m4", "o4")] {
        rustix::fs::linkat(CWD, host.join(from), CWD, host.join(to), AtFlags::empty()).unwrap();
        let node = twin.walk(from).unwrap().node;
        twin.0.link(CALLER, node, ROOT, to.as_bytes()).unwrap();
    }
    fs::remove_file(host.join("n4")).unwrap();
    twin.0.unlink(CALLER, ROOT, b"n4").unwrap();
    let long = vec![b'x'; 4095];
    rustix::fs::symlink(std::ffi::OsStr::from_bytes(&long), host.join("l")).unwrap();
    twin.0.symlink(CALLER, ROOT, b"l", &long).unwrap();
    assert_eq!(difference(&host_tree(&host), &view_tree(&twin.0)), None);
    assert_eq!(
        fs::symlink_metadata(host.join("l")).unwrap().size(),
        twin.walk("l").unwrap().attr.size
    );
    let frozen = twin.0.freeze(&Everything);
    assert_eq!(frozen.writes.check(), Ok(()));
    let paths: Vec<String> =
        frozen.paths.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
    assert!(paths.contains(&"/m4".to_owned()) && !paths.contains(&"/n4".to_owned()), "{paths:?}");
}
