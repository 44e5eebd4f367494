//! Locks of files through a view, where nobody says that a descriptor was closed: who wants a lock and who looks
//! from time to time may find out at the same moment.

mod common;

use common::*;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use systx_base::NodeId;
use systx_store::real::RealIo;
use systx_txn::Isolation;
use systx_vfs::Openings;
use systx_vfs::api::*;
use systx_vfs::view::View;
use systx_vfs::volume::Volume;

/// What the processes of the view have open, told by a function that may do something meanwhile.
struct Told<F>(F);

impl<F: Fn() -> bool + Send + Sync> Openings for Told<F> {
    fn has_open(&self, _: Option<u32>, _: u64) -> bool {
        self.0()
    }
    fn descriptions(&self, _: u32, _: u64) -> Vec<OwnedFd> {
        Vec::new()
    }
    fn has_description(&self, _: u64, _: &[Arc<OwnedFd>]) -> bool {
        self.0()
    }
}

fn view() -> (tempfile::TempDir, Arc<View>, NodeId) {
    let dir = scratch();
    std::fs::write(dir.path().join("f"), "x").expect("a file");
    let io = Arc::new(RealIo::open(dir.path()).expect("the directory"));
    let volume = Volume::new(io.clone(), Vec::new(), Default::default()).expect("volume");
    let view = open_view(&Arc::new(volume.with_locks(io)), 1, Isolation::Serializable);
    let node = view.lookup(CALLER, NodeId::ROOT, b"f").expect("lookup").expect("f").node;
    (dir, view, node)
}

fn lock(owner: u64, flock: bool) -> Lock {
    let end = i64::MAX as u64;
    Lock { owner, pid: owner as u32, start: 0, end, kind: LockKind::Exclusive, flock }
}

#[test]
fn what_was_swept_meanwhile_is_not_in_the_way() {
    for flock in [true, false] {
        let (_dir, view, node) = view();
        view.setlk(node, lock(1, flock)).expect("nobody has it");
        view.set_openings(Arc::new(Told(|| true)));
        assert_eq!(view.setlk(node, lock(2, flock)), Err(Errno::AGAIN));
        // The owner has closed, and somebody else finds out while this one looks.
        let other: Weak<View> = Arc::downgrade(&view);
        view.set_openings(Arc::new(Told(move || {
            assert_eq!(other.upgrade().expect("a view").sweep_locks(&Told(|| false)), 1);
            false
        })));
        assert_eq!(view.setlk(node, lock(2, flock)), Ok(()));
    }
}

#[test]
fn who_locks_under_the_key_of_one_that_has_closed_keeps_the_lock() {
    let (_dir, view, node) = view();
    view.setlk(node, lock(1, true)).expect("nobody has it");
    view.set_openings(Arc::new(Told(|| true)));
    let other = Arc::downgrade(&view);
    // Found closed, and swept by somebody else; then the key comes again.
    let swept = view.sweep_locks(&Told(move || {
        let view = other.upgrade().expect("a view");
        assert_eq!(view.sweep_locks(&Told(|| false)), 1);
        view.setlk(node, lock(1, true)).expect("nobody has it");
        false
    }));
    assert_eq!(swept, 0);
    assert!(view.holds_locks());
    assert_eq!(view.setlk(node, lock(2, true)), Err(Errno::AGAIN));
}

/// The lock has ended when the table has no entry, not when the descriptor is closed later.
#[test]
fn a_swept_lock_is_free_for_outsiders_at_once() {
    let (dir, view, node) = view();
    let outsider = std::fs::File::open(dir.path().join("f")).expect("f");
    let free = || {
        let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        let free = rustix::fs::flock(&outsider, how).is_ok();
        let _ = rustix::fs::flock(&outsider, rustix::fs::FlockOperation::Unlock);
        free
    };
    view.setlk(node, lock(1, true)).expect("nobody has it");
    assert!(!free());
    assert_eq!(view.sweep_locks(&Told(|| false)), 1);
    assert!(free());
    view.setlk(node, lock(1, true)).expect("nobody has it");
    view.setlk(node, Lock { kind: LockKind::Unlock, ..lock(1, true) }).expect("unlock");
    assert!(free());
}
