//! The way in and out of one seat's mount namespace, for its own thread and for threads that were
//! made inside.
//!
//! Those are in the namespace from their first moment on, and have no seat. They find the door by
//! the namespace that they are in, as long as they are of the same process: what a transaction's
//! state is stands in its memory.

use crate::State;
use crate::sys_unsafe::{enter, unshare};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// All doors of this process, and again those whose seat is gone while somebody may be inside.
static DOORS: Mutex<Doors> = Mutex::new(Doors { all: Vec::new(), left: Vec::new() });

struct Doors {
    all: Vec<Weak<Door>>,
    left: Vec<Arc<Door>>,
}

/// Whose they are: in a forked child the copy of that lock may be held for ever.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// See the module.
pub struct Door {
    /// Inside and outside; none if the daemon routes the thread's requests.
    ways: Option<(OwnedFd, OwnedFd)>,
    /// `st_ino` of the inside; 0 if there is none.
    pub namespace: u64,
    /// A forked child has a copy, which tells it nothing.
    process: rustix::process::Pid,
    now: Mutex<Now>,
}

/// What goes on inside.
#[derive(Clone, Copy)]
pub struct Now {
    /// The transaction that is open, or was the last one; 0: none yet.
    pub id: u64,
    pub phase: Phase,
}

/// Where a transaction is, for others than its own thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Open,
    /// Its thread ends it.
    Ending,
    Over(State),
}

impl Door {
    pub fn new(inside: OwnedFd, outside: OwnedFd) -> Result<Arc<Door>, Errno> {
        let namespace = rustix::fs::fstat(&inside)?.st_ino;
        let now = Mutex::new(Now { id: 0, phase: Phase::Over(State::None) });
        let process = rustix::process::getpid();
        let ways = Some((inside, outside));
        let door = Arc::new(Door { ways, namespace, process, now });
        let mut doors = DOORS.lock().unwrap_or_else(PoisonError::into_inner);
        PROCESS.store(process.as_raw_nonzero().get(), Relaxed);
        doors.left.retain(|door| door.has_somebody());
        doors.all.retain(|door| door.strong_count() > 0);
        doors.all.push(Arc::downgrade(&door));
        Ok(door)
    }

    /// Of a seat whose thread goes nowhere.  Nobody is made inside.
    pub fn routed() -> Arc<Door> {
        let now = Mutex::new(Now { id: 0, phase: Phase::Over(State::None) });
        let process = rustix::process::getpid();
        Arc::new(Door { ways: None, namespace: 0, process, now })
    }

    /// Whether it is one of those.
    pub fn is_routed(&self) -> bool {
        self.ways.is_none()
    }

    /// Its seat goes, and threads may be inside that have to find out.
    pub fn leave(door: &Arc<Door>) {
        if !door.is_routed() && door.has_somebody() {
            DOORS.lock().unwrap_or_else(PoisonError::into_inner).left.push(Arc::clone(door));
        }
    }

    fn has_somebody(&self) -> bool {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        tasks
            .filter_map(|task| std::fs::metadata(task.path().join("ns/mnt")).ok())
            .any(|namespace| namespace.ino() == self.namespace)
    }

    /// The one of the namespace that this thread is in, if it was made inside.
    pub fn here() -> Option<Arc<Door>> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/mnt").ok()?.ino();
        let process = rustix::process::getpid();
        if PROCESS.load(Relaxed) != process.as_raw_nonzero().get() {
            return None;
        }
        let doors = DOORS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut doors = doors.all.iter().filter_map(Weak::upgrade);
        doors.find(|door| (door.namespace, door.process) == (namespace, process))
    }

    /// What goes on; it does not change while this is held.
    pub fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, id: u64, phase: Phase) {
        *self.now() = Now { id, phase };
    }

    pub fn go_in(&self) -> Result<(), Errno> {
        self.ways.as_ref().map_or(Ok(()), |(inside, _)| go(inside.as_fd()))
    }

    pub fn go_out(&self) -> Result<(), Errno> {
        self.ways.as_ref().map_or(Ok(()), |(_, outside)| go(outside.as_fd()))
    }
}

fn go(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    match enter(namespace) {
        // A thread that was made since shares the working directory with this one.
        Err(Errno::INVAL) => {
            unshare(false)?;
            enter(namespace)
        }
        other => other,
    }
}
