//! Locks of files through a view, where nobody says that a descriptor was closed.

mod common;

use common::*;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use systx_base::NodeId;
use systx_store::real::RealIo;
use systx_txn::Isolation;
use systx_vfs::Openings;
use systx_vfs::api::*;
use systx_vfs::locks::{Asker, Class, Taken};
use systx_vfs::view::View;
use systx_vfs::volume::Volume;

/// What one owner has open of the file.
#[derive(Default)]
struct Open {
    closed: AtomicBool,
}

impl Taken for Open {
    fn lives(&self) -> bool {
        !self.closed.load(SeqCst)
    }
    fn class(&self) -> Option<Class> {
        None
    }
}

/// The opens by which locks are taken from now on.
struct Opens(Arc<Open>);

impl Openings for Opens {
    fn taken(&self, _: &Asker, _: Option<Arc<dyn Taken>>) -> Arc<dyn Taken> {
        self.0.clone()
    }
}

/// From now on locks are taken by an open of its own.
fn open(view: &View) -> Arc<Open> {
    let open = Arc::new(Open::default());
    view.set_openings(Arc::new(Opens(open.clone())));
    open
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
    let (start, end, kind) = (0, i64::MAX as u64, LockKind::Exclusive);
    Lock { owner, pid: owner as u32, start, end, kind, flock, description: false }
}

#[test]
fn what_an_owner_held_that_has_closed_is_not_in_the_way() {
    for flock in [true, false] {
        let (_dir, view, node) = view();
        let first = open(&view);
        view.setlk(node, lock(1, flock)).expect("nobody has it");
        open(&view);
        assert_eq!(view.setlk(node, lock(2, flock)), Err(Errno::AGAIN));
        assert_eq!(view.sweep_locks(), 0);
        first.closed.store(true, SeqCst);
        assert_eq!(view.setlk(node, lock(2, flock)), Ok(()));
        assert_eq!(view.setlk(node, lock(1, flock)), Err(Errno::AGAIN));
    }
}

/// The keys of owners come again, and one process may close, open and lock anew.
#[test]
fn who_locks_under_the_key_of_one_that_has_closed_keeps_the_lock() {
    for flock in [true, false] {
        let (_dir, view, node) = view();
        let first = open(&view);
        view.setlk(node, lock(1, flock)).expect("nobody has it");
        first.closed.store(true, SeqCst);
        let second = open(&view);
        view.setlk(node, lock(1, flock)).expect("its own");
        assert_eq!(view.sweep_locks(), 0);
        assert!(view.holds_locks());
        open(&view);
        assert_eq!(view.setlk(node, lock(2, flock)), Err(Errno::AGAIN));
        second.closed.store(true, SeqCst);
        assert_eq!(view.sweep_locks(), 1);
        assert!(!view.holds_locks());
    }
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
    let owner = open(&view);
    view.setlk(node, lock(1, true)).expect("nobody has it");
    assert!(!free());
    owner.closed.store(true, SeqCst);
    assert_eq!(view.sweep_locks(), 1);
    assert!(free());
    open(&view);
    view.setlk(node, lock(1, true)).expect("nobody has it");
    view.setlk(node, Lock { kind: LockKind::Unlock, ..lock(1, true) }).expect("unlock");
    assert!(free());
}
