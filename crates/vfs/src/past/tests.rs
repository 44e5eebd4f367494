use super::*;
use crate::content::Slot;
use crate::plain::{Change, sys};
use std::fs::File;
use std::os::fd::AsFd;
use systx_base::Oid;
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
