//! What outsiders change is found if the transaction had met it, under the right path, and not
//! otherwise; what other transactions of the same volume install is no outside change.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use systx_base::{Kind, NodeId, TxnId};
use systx_txn::{Isolation, Opponent};
use systx_vfs::api::*;
use systx_vfs::validate::What;
use systx_vfs::view::View;
use systx_vfs::volume::Volume;

/// A populated directory with a view over it.
struct Fixture {
    dir: tempfile::TempDir,
    vol: Arc<Volume>,
    twin: Twin,
}

fn fixture(isolation: Isolation) -> Fixture {
    let dir = scratch();
    populate(dir.path()).expect("populate");
    fs::create_dir(dir.path().join("empty")).expect("mkdir");
    fs::set_permissions(dir.path().join("d"), fs::Permissions::from_mode(0o755)).expect("chmod");
    let vol = open_volume(dir.path());
    let twin = Twin(open_view(&vol, 7, isolation));
    Fixture { dir, vol, twin }
}

impl Fixture {
    fn node(&self, path: &str) -> NodeId {
        self.twin.walk(path).expect(path).node
    }
    fn found(&self) -> Vec<(String, What, bool)> {
        let found = self.twin.0.validate();
        let text = |path: Vec<u8>| String::from_utf8(path).expect("text");
        let mut found: Vec<_> =
            found.into_iter().map(|c| (text(c.path), c.what, c.written)).collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }
}

fn append(path: &Path) {
    let mut file = fs::OpenOptions::new().append(true).open(path).expect("open");
    file.write_all(b"more").expect("write");
}

fn set_xattr(path: &Path, key: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, key, value, XattrFlags::empty()).expect("setxattr");
}

type Meet = fn(&Fixture);
type Act = fn(&Path);
type Found = &'static [(&'static str, What, bool)];

/// (name, what the view does, what the outsider does, what is found).
const CASES: &[(&str, Meet, Act, Found)] = &[
    (
        "content",
        |f| {
            f.node("f");
        },
        |p| append(&p.join("f")),
        &[("/f", What::Changed, false)],
    ),
    (
        "content of the same length",
        |f| {
            f.node("f");
        },
        |p| fs::write(p.join("f"), "other").unwrap(),
        &[("/f", What::Changed, false)],
    ),
    (
        "times",
        |f| {
            f.node("f");
        },
        |p| {
            let time = Timespec { tv_sec: 5, tv_nsec: 5 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, p.join("f"), &times, AtFlags::empty()).unwrap();
        },
        &[("/f", What::Changed, false)],
    ),
    (
        "extended attribute",
        |f| {
            f.node("f");
        },
        |p| set_xattr(&p.join("f"), "user.x", b"1"),
        &[("/f", What::Changed, false)],
    ),
    (
        "rights",
        |f| {
            f.node("f");
        },
        |p| fs::set_permissions(p.join("f"), fs::Permissions::from_mode(0o600)).unwrap(),
        &[("/f", What::Changed, false)],
    ),
    (
        "replaced by rename",
        |f| {
            f.node("f");
        },
        |p| {
            fs::write(p.join("f.new"), "other").unwrap();
            fs::rename(p.join("f.new"), p.join("f")).unwrap();
        },
        &[("/f", What::Replaced, false)],
    ),
    (
        "deleted",
        |f| {
            f.node("d/s/f");
        },
        |p| fs::remove_file(p.join("d/s/f")).unwrap(),
        &[("/d/s/f", What::Replaced, false)],
    ),
    (
        "renamed",
        |f| {
            f.node("f");
        },
        |p| fs::rename(p.join("f"), p.join("f2")).unwrap(),
        &[("/f", What::Replaced, false)],
    ),
    (
        "appeared where nothing was",
        |f| assert_eq!(f.twin.walk("d/n"), Err(Errno::NOENT)),
        |p| fs::write(p.join("d/n"), "").unwrap(),
        &[("/d/n", What::Appeared, false)],
    ),
    (
        "appeared where a file came and went",
        |f| {
            f.twin.run(&Op::Create(10, 0o644)).unwrap();
            f.twin.run(&Op::Unlink(10)).unwrap();
        },
        |p| fs::write(p.join("n"), "").unwrap(),
        &[("/n", What::Appeared, false)],
    ),
    (
        "a listing has one more",
        |f| f.twin.run(&Op::List(2)).unwrap(),
        |p| fs::write(p.join("d/new"), "").unwrap(),
        &[("/d", What::ListingChanged, false)],
    ),
    (
        "a listing has one less",
        |f| f.twin.run(&Op::List(2)).unwrap(),
        |p| fs::remove_file(p.join("d/f")).unwrap(),
        &[("/d", What::ListingChanged, false)],
    ),
    (
        "a listing has one less, and it was looked at",
        |f| {
            f.twin.run(&Op::List(2)).unwrap();
            f.node("d/f");
        },
        |p| fs::remove_file(p.join("d/f")).unwrap(),
        &[("/d", What::ListingChanged, false), ("/d/f", What::Replaced, false)],
    ),
    (
        "listed files and nothing of their names",
        |f| f.twin.run(&Op::List(2)).unwrap(),
        |p| {
            append(&p.join("d/f"));
            fs::set_permissions(p.join("d/s"), fs::Permissions::from_mode(0o700)).unwrap();
            // As editors save.
            fs::write(p.join("d.new"), "other").unwrap();
            fs::rename(p.join("d.new"), p.join("d/f")).unwrap();
        },
        &[],
    ),
    (
        "a listed name is one of another type",
        |f| f.twin.run(&Op::List(2)).unwrap(),
        |p| {
            fs::remove_file(p.join("d/f")).unwrap();
            fs::create_dir(p.join("d/f")).unwrap();
        },
        &[("/d", What::ListingChanged, false)],
    ),
    (
        "the root's listing",
        |f| f.twin.0.readdir(NodeId::ROOT, 0, false, &mut |_| true).unwrap(),
        |p| fs::write(p.join("new"), "").unwrap(),
        &[("/", What::ListingChanged, false)],
    ),
    (
        "a directory renamed away",
        |f| {
            f.node("d/s/f");
        },
        |p| fs::rename(p.join("d"), p.join("d2")).unwrap(),
        &[("/d", What::Replaced, false)],
    ),
    (
        "a directory replaced by another",
        |f| {
            f.node("d/s/f");
        },
        |p| {
            fs::rename(p.join("d"), p.join("d2")).unwrap();
            fs::create_dir(p.join("d")).unwrap();
        },
        &[("/d", What::Replaced, false)],
    ),
    (
        "a directory replaced by a link",
        |f| {
            f.node("d");
        },
        |p| {
            fs::rename(p.join("d"), p.join("d2")).unwrap();
            symlink("d2", p.join("d")).unwrap();
        },
        &[("/d", What::Replaced, false)],
    ),
    (
        "a hard link through its other name",
        |f| {
            f.node("e/f");
        },
        |p| append(&p.join("d/f")),
        &[("/e/f", What::Changed, false)],
    ),
    (
        "a hard link met under both names",
        |f| {
            f.node("d/f");
            f.node("e/f");
        },
        |p| append(&p.join("d/f")),
        &[("/d/f", What::Changed, false), ("/e/f", What::Changed, false)],
    ),
    (
        "a link's target",
        |f| drop(f.twin.0.readlink(f.node("l")).unwrap()),
        |p| {
            fs::remove_file(p.join("l")).unwrap();
            symlink("e/f", p.join("l")).unwrap();
        },
        &[("/l", What::Replaced, false)],
    ),
    (
        "a directory's rights",
        |f| {
            f.node("d");
        },
        |p| fs::set_permissions(p.join("d"), fs::Permissions::from_mode(0o700)).unwrap(),
        &[("/d", What::Changed, false)],
    ),
    (
        "the root's rights",
        |f| {
            f.node("f");
        },
        |p| fs::set_permissions(p, fs::Permissions::from_mode(0o711)).unwrap(),
        &[("/", What::Changed, false)],
    ),
    (
        "a directory's attribute that was read",
        |f| assert_eq!(f.twin.0.getxattr(f.node("d"), b"user.x"), Err(Errno::NODATA)),
        |p| set_xattr(&p.join("d"), "user.x", b"1"),
        &[("/d", What::Changed, false)],
    ),
    (
        "a directory's default ACL, under which a file was made",
        |f| f.twin.run(&Op::Create(5, 0o666)).unwrap(),
        |p| set_xattr(&p.join("d"), "system.posix_acl_default", &acl_bytes([7, 7, 7, 7, 7])),
        &[("/d", What::Changed, false)],
    ),
    (
        "a file that the transaction wrote",
        |f| f.twin.run(&Op::Write(0, 0, b"mine".to_vec())).unwrap(),
        |p| append(&p.join("f")),
        &[("/f", What::Changed, true)],
    ),
    (
        "a file that the transaction removed",
        |f| f.twin.run(&Op::Unlink(0)).unwrap(),
        |p| append(&p.join("f")),
        &[("/f", What::Changed, true)],
    ),
    (
        "a file that the transaction moved, with its directory",
        |f| {
            f.twin.run(&Op::Rename(0, 9, RenameHow::Replace)).unwrap();
            f.twin.run(&Op::Rename(3, 10, RenameHow::Replace)).unwrap();
        },
        |p| append(&p.join("f")),
        &[("/f", What::Changed, true)],
    ),
    (
        "below a directory that the transaction moved",
        |f| {
            f.node("d/s/f");
            f.twin.run(&Op::Rename(2, 10, RenameHow::Replace)).unwrap();
        },
        |p| append(&p.join("d/s/f")),
        &[("/d/s/f", What::Changed, false)],
    ),
    (
        "a name that the transaction gave",
        |f| f.twin.run(&Op::Create(10, 0o644)).unwrap(),
        |p| fs::write(p.join("n"), "").unwrap(),
        &[("/n", What::Appeared, true)],
    ),
    (
        "rights of a directory that the transaction set, too",
        |f| f.twin.run(&Op::Chmod(2, 0o711)).unwrap(),
        |p| fs::set_permissions(p.join("d"), fs::Permissions::from_mode(0o700)).unwrap(),
        &[("/d", What::Changed, true)],
    ),
    (
        "a directory in which the transaction made a file, renamed away",
        |f| f.twin.run(&Op::Create(5, 0o644)).unwrap(),
        |p| fs::rename(p.join("d"), p.join("d2")).unwrap(),
        &[("/d", What::Replaced, true)],
    ),
    (
        "a directory that the transaction removed is no longer empty",
        |f| {
            f.twin.0.rmdir(CALLER, NodeId::ROOT, b"empty").unwrap();
        },
        |p| fs::write(p.join("empty/new"), "").unwrap(),
        &[("/empty", What::ListingChanged, true)],
    ),
];

#[test]
fn what_was_met_and_changed_is_found() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        for (case, meet, act, want) in CASES {
            let f = fixture(isolation);
            meet(&f);
            assert_eq!(f.found(), [], "{case}: before anything happened");
            act(f.dir.path());
            let want: Vec<_> = want.iter().map(|(p, w, b)| ((*p).to_owned(), *w, *b)).collect();
            assert_eq!(f.found(), want, "{case}");
        }
    }
}

#[test]
fn what_was_not_met_may_change() {
    for (case, _, act, _) in CASES.iter().filter(|(case, ..)| *case != "the root's rights") {
        let f = fixture(Isolation::Serializable);
        act(f.dir.path());
        assert_eq!(f.found(), [], "{case}");
    }
    // Changes of other names in a directory in which one was met.
    let f = fixture(Isolation::Serializable);
    f.node("d/s/f");
    f.node("f");
    let p = f.dir.path();
    fs::write(p.join("new"), "").unwrap();
    fs::write(p.join("d/new"), "").unwrap();
    append(&p.join("d/f"));
    fs::remove_file(p.join("l")).unwrap();
    set_xattr(&p.join("d"), "user.unread", b"1");
    fs::rename(p.join("e"), p.join("d/s/e")).unwrap();
    assert_eq!(f.found(), []);
}

#[test]
fn what_other_transactions_install_is_not_outside() {
    let f = fixture(Isolation::Serializable);
    let node = f.node("f");
    f.twin.0.readdir(NodeId::ROOT, 0, true, &mut |_| true).unwrap();
    let io = &f.vol.tree;
    let install = || {
        let before = io.stat_at(&io.root(), b"f").unwrap();
        f.vol.installing([before.id], || {
            append(&f.dir.path().join("f"));
            let after = io.stat_at(&io.root(), b"f").unwrap();
            ((), vec![(before.stamp(), after.stamp())])
        });
    };
    install();
    install();
    assert_eq!(f.found(), []);
    let mut buf = [0; 5];
    assert_eq!(f.twin.0.read(node, 0, &mut buf), Ok(5));
    append(&f.dir.path().join("f"));
    assert_eq!(f.found(), [("/f".to_owned(), What::Changed, false)]);
}

#[test]
fn names_that_other_transactions_install_are_stale_not_outside() {
    let f = fixture(Isolation::Snapshot);
    f.twin.run(&Op::List(2)).unwrap();
    assert_eq!(f.twin.walk("n"), Err(Errno::NOENT));
    let other = Twin(open_view(&f.vol, 8, Isolation::Serializable));
    other.run(&Op::Create(5, 0o644)).unwrap();
    other.run(&Op::Create(10, 0o644)).unwrap();
    other.run(&Op::Chmod(3, 0o700)).unwrap();
    f.vol.engine.decide(TxnId(8)).unwrap();
    f.vol.installing([], || {
        fs::write(f.dir.path().join("d/g"), "").unwrap();
        fs::write(f.dir.path().join("n"), "").unwrap();
        ((), vec![])
    });
    f.vol.engine.installed(TxnId(8));
    assert_eq!(f.found(), []);
    assert_eq!(f.vol.engine.stale_reads(TxnId(7)).len(), 2);
    // An outsider on top of it.
    fs::write(f.dir.path().join("e/g"), "").unwrap();
    fs::remove_file(f.dir.path().join("l")).unwrap();
    assert_eq!(f.found(), []);
}

fn lost_to_outsiders(view: &View, vol: &Volume) {
    let why = vol.engine.conflict(TxnId(7)).expect("a conflict");
    assert_eq!(why.opponent, Opponent::Outside);
    assert_eq!(view.root().map(|e| e.attr.kind), Ok(Kind::Dir));
    assert_eq!(view.lookup(CALLER, NodeId::ROOT, b"e"), Err(Errno::CANCELED));
}

#[test]
fn reading_what_an_outsider_changed() {
    let mut buf = [0; 8];
    let f = fixture(Isolation::Serializable);
    let node = f.node("f");
    append(&f.dir.path().join("f"));
    assert_eq!(f.twin.0.read(node, 0, &mut buf), Err(Errno::CANCELED));
    lost_to_outsiders(&f.twin.0, &f.vol);

    let f = fixture(Isolation::Snapshot);
    let node = f.node("f");
    append(&f.dir.path().join("f"));
    assert_eq!(f.twin.0.read(node, 0, &mut buf), Ok(5), "no more than what was met");
    assert_eq!(f.found(), [("/f".to_owned(), What::Changed, false)]);
    assert_eq!(f.vol.engine.conflict(TxnId(7)), None);
}

#[test]
fn a_hard_link_that_changed_between_its_names() {
    let f = fixture(Isolation::Serializable);
    f.node("e/f");
    append(&f.dir.path().join("d/f"));
    assert_eq!(f.twin.walk("d/f"), Err(Errno::CANCELED));
    lost_to_outsiders(&f.twin.0, &f.vol);

    let f = fixture(Isolation::Snapshot);
    let first = f.twin.walk("e/f").unwrap();
    append(&f.dir.path().join("d/f"));
    assert_eq!(f.twin.walk("d/f"), Ok(first), "what was met first stays");
}

#[test]
fn below_a_directory_that_went_away() {
    let f = fixture(Isolation::Serializable);
    f.node("d");
    fs::rename(f.dir.path().join("d"), f.dir.path().join("d2")).unwrap();
    assert_eq!(f.twin.walk("d/f"), Err(Errno::CANCELED));
    lost_to_outsiders(&f.twin.0, &f.vol);

    // There is nothing left to read, and nothing better to say.
    let f = fixture(Isolation::Snapshot);
    f.node("d");
    fs::rename(f.dir.path().join("d"), f.dir.path().join("d2")).unwrap();
    assert_eq!(f.twin.walk("d/f"), Err(Errno::STALE));
    assert_eq!(f.vol.engine.conflict(TxnId(7)), None);
}

/// What the store keeps in the tree is in no view, and its coming is nobody's change.
#[test]
fn a_hidden_directory_is_not_found() {
    let dir = scratch();
    populate(dir.path()).unwrap();
    fs::create_dir(dir.path().join(STATE)).unwrap();
    let io: Arc<dyn systx_store::io::Io> =
        Arc::new(systx_store::real::RealIo::open(dir.path()).unwrap());
    let id = io.stat_at(&io.root(), STATE.as_bytes()).unwrap().id;
    let vol = Arc::new(Volume::new(io, Vec::new(), [id].into()).unwrap());
    let twin = Twin(open_view(&vol, 7, Isolation::Serializable));
    assert_eq!(twin.walk(STATE), Err(Errno::NOENT));
    twin.0
        .readdir(NodeId::ROOT, 0, true, &mut |e| {
            assert_ne!(e.name, STATE.as_bytes());
            true
        })
        .unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(twin.0.validate(), []);
}

/// Opening a FIFO wakes who waits to write to it, and opening a device may do anything.
#[test]
fn what_others_may_have_put_in_a_files_place_is_not_opened_unseen() {
    use rustix::fs::{Mode, inotify};
    // Mode of the directory on the host, what the transaction changes it to, whether others can
    // have put something there.
    for (mode, change, theirs) in [
        (0o755, None, false),
        (0o777, None, true),
        (0o775, None, true),
        (0o1777, None, true),
        (0o777, Some(0o755), true),
    ] {
        let f = fixture(Isolation::Serializable);
        let dir = f.dir.path().join("d");
        fs::write(dir.join("f"), b"text").unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        let node = f.node("d/f");
        if let Some(mode) = change {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            f.twin.0.setattr(Caller { uid: 0, gid: 0, tid: 0 }, f.node("d"), set).unwrap();
        }
        fs::remove_file(dir.join("f")).unwrap();
        rustix::fs::mknodat(
            CWD,
            dir.join("f"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, dir.join("f"), inotify::WatchFlags::OPEN).unwrap();
        f.twin.0.read(node, 0, &mut [0; 10]).unwrap_err();
        let opened = rustix::io::read(&watch, &mut [0; 256][..]).is_ok();
        assert!(!opened || !theirs, "opened in a directory of mode {mode:o}");
        if !is_root() {
            continue;
        }
        assert_eq!(opened, !theirs, "looked at twice in a directory of mode {mode:o}");
    }
}
