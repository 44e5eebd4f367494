#[allow(dead_code, reason = "the tests of views use all of it")]
#[path = "../../../vfs/tests/common/hooked.rs"]
mod hooked;

use super::*;
use crate::change::{Change, Place};
use crate::sys;
use hooked::Hooked;
use std::fs::File;
use std::os::fd::AsFd;
use systx_base::Oid;
use systx_store::io::{Open, Tree};
use systx_store::real::RealIo;
use systx_txn::ObjectRef;
use systx_vfs::content::Slot;

struct NoSpace;

impl Spill for NoSpace {
    fn stage(&self) -> std::io::Result<Slot> {
        Err(Errno::NOSPC.into())
    }
}

fn change<'a>(
    subject: Option<(Oid, Place<'a>)>,
    writes: &'a [ObjectRef<'a>],
    places: &'a [(Oid, Place<'a>)],
) -> Change<'a> {
    let by = systx_vfs::api::Caller { uid: 0, gid: 0, tid: 1 };
    Change { by, reads: &[], writes, subject, places, may_stall: false }
}

fn oid(file: &File) -> Oid {
    place(file).0
}

fn place(file: &File) -> (Oid, Place<'_>) {
    let id = sys::stat(file).unwrap().id;
    (id.oid(), Place::Fd(id, file.as_fd()))
}

#[test]
fn where_there_is_no_room_the_snapshot_is_given_up_and_the_next_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let dir = File::open(dir.path()).unwrap();
    let places = [place(&dir)];
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
    past.keep(&change(Some(place(&file)), &writes, &[]));
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
    let keep = || past.keep(&change(Some(place(&file)), &writes, &[]));
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

/// Everything is changed right before the file system below is asked, or after: the old value must
/// be found, although there was none a moment ago.
#[test]
fn a_change_between_the_question_and_the_answer_is_not_seen() {
    const OLD: &[u8] = b"old content";
    type Ask = fn(&dyn Tree, &Handle) -> String;
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
        for moment in 0..12 {
            let scratch = tempfile::tempdir().unwrap();
            let at = |name: &str| scratch.path().join(name);
            std::fs::write(at("f"), OLD).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            // Where there are none, that is what is asked for.
            let _ = rustix::fs::setxattr(at("f"), "user.key", b"before", flags);
            let dir = File::open(scratch.path()).unwrap();
            let root = sys::stat(&dir).unwrap().id;
            let hooked = Hooked::new(RealIo::open(scratch.path()).unwrap());
            let past = Arc::new(Past::with_limits(100, 100));
            let snapshot = Arc::new(past.begin(Arc::new(NoSpace)));
            let roots = Arc::new(HashSet::from([root]));
            let tree = frozen::past_tree(hooked.clone(), snapshot, roots);
            let top = tree.root();
            let want = ask(&tree, &top);
            let change = {
                let (path, past) = (scratch.path().to_owned(), Arc::clone(&past));
                move || change_everything(&path, &past)
            };
            hooked.at(moment, change);
            assert_eq!(ask(&tree, &top), want, "{what}, changed at moment {moment}");
            assert_eq!(ask(&tree, &top), want, "{what}, later");
        }
    }
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
    past.keep(&change(Some(place(&file)), &content, &[]));
    std::fs::write(top.join("f"), b"x").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(top.join("f"), mode).unwrap();
    let _ = rustix::fs::removexattr(top.join("f"), "user.key");
    let names = [&b"f"[..], b"moved", b"new"];
    let places = [place(&dir)];
    for name in names {
        past.keep(&change(None, &[ObjectRef::Entry { dir: d, name }], &places));
    }
    std::fs::rename(top.join("f"), top.join("moved")).unwrap();
    std::fs::create_dir(top.join("new")).unwrap();
}
