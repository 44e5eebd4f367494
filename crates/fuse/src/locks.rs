//! File locks that are brought to the view: waiting, interruption, and release at close.
//!
//! A blocking request (`F_SETLKW`, `flock` without `LOCK_NB`) is brought to the view as repeated
//! calls of [`Requests::setlk`]: at once, after every release that passes through this connection,
//! and after at most [`PAUSE_MAX`], because a process outside the view may hold the lock.  The
//! worker thread waits inside its request; the crew starts another thread before a queue runs out
//! of them, so that waiting never keeps other requests from being served.  Each try is a sign of life
//! for the watchdog: waiting for a lock is not a fault, being stuck in a try is.
//!
//! INTERRUPT may arrive before the request that it names has begun to wait (over io_uring the two
//! take different ways).  The last few unmatched ones are therefore remembered.
//!
//! Close: the kernel tells about it by FLUSH (fcntl locks, which end with the first close by their
//! owner) and by RELEASE (flock, and locks of open file descriptions).  It sends neither for zero-message opens: with
//! [`FileLocks::View`](crate::FileLocks) the view finds out by itself, at the latest when somebody
//! else wants the lock; with `ViewToldOfClose` opens have messages, and `held` remembers who ever
//! locked, so that all other closes cost the view nothing.  close(2) waits for FLUSH and not for RELEASE: who asks for a lock
//! right after its holder has closed could come first.  So an flock(2) that does not wait is refused only when RELEASE has had
//! [`RELEASE_MAX`] to follow the last FLUSH.
//!
//! Lock order: `Locks::state` is a leaf; it is never held while the view is called.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use systx_base::NodeId;
use systx_base::sync::{Event, Mutex, rank};
use systx_vfs::api::{Lock, LockKind, Reply, Requests};

use crate::post::Post;

/// Longest time until a lock is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// Between FLUSH and RELEASE of one close.  A FLUSH may come without: descriptors are duplicated, and inherited.
const RELEASE_MAX: Duration = Duration::from_millis(200);
/// Unmatched interrupts that are remembered.  Every request can be interrupted, few wait.
const EARLY_MAX: usize = 256;

pub(crate) struct Locks {
    state: Mutex<State>,
    changed: Event,
    /// [`RELEASE_MAX`]
    release_max: Duration,
}

#[derive(Default)]
struct State {
    /// Waiting requests by `unique`; true once interrupted.
    waiting: HashMap<u64, bool>,
    early: VecDeque<u64>,
    /// Counts releases, so that one between a try and the wait is not missed.
    releases: u64,
    /// Who ever locked a file, with the opens through which it was done.
    held: HashMap<NodeId, HashMap<Owner, HashSet<u64>>>,
    /// Files with locks by flock(2), with the moment of the last FLUSH.
    flushed: HashMap<NodeId, Instant>,
    stopped: bool,
}

/// The owner of an flock(2) lock is its open: the kernel's own number for a description is given again before RELEASE
/// has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Owner {
    key: u64,
    flock: bool,
}

impl Owner {
    fn of(handle: u64, lock: &Lock) -> Owner {
        let key = if lock.flock && handle != 0 { handle } else { lock.owner };
        Owner { key, flock: lock.flock }
    }
}

impl State {
    /// Whether somebody has locked the file by flock(2).
    fn has_flock(&self, node: NodeId) -> bool {
        self.held.get(&node).is_some_and(|owners| owners.keys().any(|owner| owner.flock))
    }

    /// Takes out the owners of which this is true, with these opens.
    fn take(&mut self, node: NodeId, is: impl Fn(&Owner, &HashSet<u64>) -> bool) -> Vec<Owner> {
        let Some(owners) = self.held.get_mut(&node) else { return Vec::new() };
        let taken = owners.extract_if(|owner, handles| is(owner, handles)).map(|(owner, _)| owner);
        let taken = taken.collect();
        if owners.is_empty() {
            self.held.remove(&node);
        }
        taken
    }
}

impl Locks {
    pub fn new() -> Self {
        Locks {
            state: Mutex::new(rank::LEAF, State::default()),
            changed: Event::new(),
            release_max: RELEASE_MAX,
        }
    }

    /// Sets or releases a lock, by this open.  `wait`: the request's `unique` if it may wait.
    pub fn set(
        &self,
        view: &dyn Requests,
        post: &Post,
        node: NodeId,
        (handle, lock): (u64, Lock),
        wait: Option<u64>,
    ) -> Reply<()> {
        let owner = Owner::of(handle, &lock);
        let lock = Lock { owner: owner.key, ..lock };
        let result = match wait {
            Some(unique) if lock.kind != LockKind::Unlock => {
                self.wait(view, post, node, lock, unique)
            }
            _ => {
                let ends = lock.flock && self.ends_soon(node);
                match view.setlk(node, lock) {
                    Err(Errno::AGAIN) if ends => self.after_release(view, post, node, lock),
                    decided => decided,
                }
            }
        };
        if result.is_ok() {
            let mut state = self.state.lock();
            if lock.kind != LockKind::Unlock {
                let owners = state.held.entry(node).or_default();
                owners.entry(owner).or_default().insert(handle);
            }
            if lock.kind != LockKind::Exclusive {
                // An unlock, or a step down from exclusive.
                state.releases += 1;
                self.changed.notify_all();
            }
        }
        result
    }

    fn wait(
        &self,
        view: &dyn Requests,
        post: &Post,
        node: NodeId,
        lock: Lock,
        unique: u64,
    ) -> Reply<()> {
        let mut seen = {
            let mut state = self.state.lock();
            if let Some(at) = state.early.iter().position(|u| *u == unique) {
                state.early.remove(at);
                return Err(Errno::INTR);
            }
            state.waiting.insert(unique, false);
            state.releases
        };
        let _entered = Waiting { locks: self, unique };
        let mut pause = Duration::from_millis(1);
        loop {
            post.beat();
            match view.setlk(node, lock) {
                Err(Errno::AGAIN) => {}
                decided => return decided,
            }
            let mut state = self.state.lock();
            let interrupted = |s: &State| s.stopped || s.waiting.get(&unique) != Some(&false);
            if state.releases == seen && !interrupted(&state) {
                self.changed.wait_for(&mut state, pause);
            }
            if interrupted(&state) {
                return Err(Errno::INTR);
            }
            seen = state.releases;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Whether a RELEASE is to be expected.
    fn ends_soon(&self, node: NodeId) -> bool {
        let mut state = self.state.lock();
        let over = |since: &Instant| since.elapsed() >= self.release_max;
        let soon = !state.stopped && !state.flushed.get(&node).is_none_or(over);
        if !soon {
            state.flushed.remove(&node);
        }
        soon
    }

    /// Tries again until no RELEASE is to be expected any more; others that open and close the file meanwhile make it
    /// no longer.
    fn after_release(
        &self,
        view: &dyn Requests,
        post: &Post,
        node: NodeId,
        lock: Lock,
    ) -> Reply<()> {
        let mut pause = Duration::from_millis(1);
        let begun = Instant::now();
        loop {
            post.beat();
            // In this order: what ended in between has let go of its lock.
            let ends = self.ends_soon(node) && begun.elapsed() < self.release_max;
            let seen = self.state.lock().releases;
            match view.setlk(node, lock) {
                Err(Errno::AGAIN) if ends => {}
                decided => return decided,
            }
            let mut state = self.state.lock();
            if state.releases == seen {
                self.changed.wait_for(&mut state, pause);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A FLUSH, perhaps of the last descriptor of a description that has a lock.
    pub fn may_end(&self, node: NodeId) {
        let mut state = self.state.lock();
        if state.has_flock(node) {
            state.flushed.insert(node, Instant::now());
        }
    }

    /// INTERRUPT of the request `unique`.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if let Some(interrupted) = state.waiting.get_mut(&unique) {
            *interrupted = true;
            self.changed.notify_all();
            return;
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// The owner closed: releases what it may hold.
    pub fn close(&self, view: &dyn Requests, node: NodeId, key: u64, flock: bool) {
        let closed = self.state.lock().take(node, |owner, _| *owner == Owner { key, flock });
        self.unlock_all(view, node, closed);
    }

    fn unlock_all(&self, view: &dyn Requests, node: NodeId, owners: Vec<Owner>) {
        if owners.is_empty() {
            return;
        }
        owners.into_iter().for_each(|owner| self.unlock(view, node, owner));
        // Not before they have let go.
        let mut state = self.state.lock();
        if !state.has_flock(node) {
            state.flushed.remove(&node);
        }
    }

    /// An open ended: releases what locks of its description were taken, by flock(2) and by `F_OFD_SETLK`.  The owner of
    /// the latter is not named by FLUSH nor RELEASE.  Who else locked by this open, a process,
    /// has closed since and holds nothing of it any more.
    pub fn end(&self, view: &dyn Requests, node: NodeId, handle: u64) {
        // The kernel opened without us: no open can be told from another.
        if handle == 0 {
            return;
        }
        let ended = self.state.lock().take(node, |_, handles| handles.contains(&handle));
        self.unlock_all(view, node, ended);
    }

    fn unlock(&self, view: &dyn Requests, node: NodeId, Owner { key: owner, flock }: Owner) {
        let kind = LockKind::Unlock;
        let lock = Lock { owner, pid: 0, start: 0, end: u64::MAX, kind, flock };
        if let Err(errno) = view.setlk(node, lock) {
            tracing::warn!(node = node.0, owner, %errno, "a lock was not released at close");
        }
        self.state.lock().releases += 1;
        self.changed.notify_all();
    }

    /// The connection ends: nobody waits any longer.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

/// Takes a request off the list of waiting ones, also when the view panics.
struct Waiting<'a> {
    locks: &'a Locks,
    unique: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.locks.state.lock().waiting.remove(&self.unique);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;
    use crate::memfs::Memfs;
    use crate::post::{Group, Posts};

    const FILE: NodeId = NodeId(7);

    fn lock(owner: u64, kind: LockKind) -> Lock {
        Lock { owner, pid: 1, start: 0, end: u64::MAX, kind, flock: true }
    }

    fn set(all: &(Locks, Memfs), lock: Lock, wait: Option<u64>) -> Reply<()> {
        let post = Posts::new().take(Group::Alone);
        all.0.set(&all.1, &post, FILE, (lock.owner, lock), wait)
    }

    /// A holder, and a thread that waits for it as request 42.
    fn contended() -> (Arc<(Locks, Memfs)>, std::thread::JoinHandle<Reply<()>>) {
        let both = Arc::new((Locks::new(), Memfs::default()));
        set(&both, lock(1, LockKind::Exclusive), None).unwrap();
        let theirs = Arc::clone(&both);
        let waiter = std::thread::spawn(move || set(&theirs, lock(2, LockKind::Shared), Some(42)));
        while both.0.state.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        (both, waiter)
    }

    #[test]
    fn a_waiter_gets_the_lock_when_its_holder_closes() {
        let (both, waiter) = contended();
        assert!(!waiter.is_finished());
        both.0.close(&both.1, FILE, 1, false);
        assert!(!waiter.is_finished(), "closing for fcntl does not release a flock");
        both.0.end(&both.1, FILE, 1);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert!(both.0.state.lock().waiting.is_empty());
    }

    #[test]
    fn who_asks_right_after_a_close_does_not_come_before_its_end() {
        let with = |release_max| {
            let both = (Locks { release_max, ..Locks::new() }, Memfs::default());
            set(&both, lock(1, LockKind::Exclusive), None).unwrap();
            both
        };
        let both = Arc::new(with(Duration::from_secs(60)));
        assert_eq!(set(&both, lock(2, LockKind::Exclusive), None), Err(Errno::AGAIN), "no close");
        both.0.may_end(FILE);
        let theirs = Arc::clone(&both);
        let asks = std::thread::spawn(move || set(&theirs, lock(2, LockKind::Exclusive), None));
        both.0.end(&both.1, FILE, 1);
        assert_eq!(asks.join().unwrap(), Ok(()));
        both.0.may_end(NodeId(8));
        assert!(!both.0.state.lock().flushed.contains_key(&NodeId(8)), "nobody has a lock there");
        // A FLUSH that nothing follows.
        let both = with(Duration::from_millis(1));
        both.0.may_end(FILE);
        assert_eq!(set(&both, lock(2, LockKind::Exclusive), None), Err(Errno::AGAIN));
        assert!(!both.0.ends_soon(FILE), "it has been waited for");
    }

    #[test]
    fn who_closes_again_and_again_keeps_nobody_waiting() {
        let both =
            (Locks { release_max: Duration::from_millis(50), ..Locks::new() }, Memfs::default());
        set(&both, lock(1, LockKind::Exclusive), None).unwrap();
        let (both, ended) = (Arc::new(both), Arc::new(AtomicBool::new(false)));
        both.0.may_end(FILE);
        let (theirs, told) = (Arc::clone(&both), Arc::clone(&ended));
        let asks = std::thread::spawn(move || {
            let decided = set(&theirs, lock(2, LockKind::Exclusive), None);
            told.store(true, Relaxed);
            decided
        });
        let until = Instant::now() + Duration::from_secs(60);
        while !ended.load(Relaxed) && Instant::now() < until {
            both.0.may_end(FILE);
            std::thread::yield_now();
        }
        assert!(ended.load(Relaxed), "it waits as long as somebody closes the file");
        assert_eq!(asks.join().unwrap(), Err(Errno::AGAIN));
    }

    #[test]
    fn the_end_of_an_open_releases_the_locks_of_its_description() {
        let both = (Locks::new(), Memfs::default());
        let record = |owner, kind| Lock { flock: false, ..lock(owner, kind) };
        set(&both, record(1, LockKind::Exclusive), None).unwrap();
        both.0.end(&both.1, FILE, 6);
        assert_eq!(set(&both, record(2, LockKind::Exclusive), None), Err(Errno::AGAIN));
        both.0.end(&both.1, FILE, 1);
        assert_eq!(set(&both, record(2, LockKind::Exclusive), None), Ok(()));
        assert!(both.0.state.lock().held[&FILE].keys().all(|owner| owner.key == 2));
    }

    /// The kernel's number for a description is that of an address, which the next one may have before the end of the
    /// first has been told.
    #[test]
    fn who_locks_under_the_number_of_one_that_has_closed_keeps_the_lock() {
        let both = (Locks::new(), Memfs::default());
        let post = Posts::new().take(Group::Alone);
        let ask = |handle, owner, flock| {
            let lock = Lock { flock, ..lock(owner, LockKind::Exclusive) };
            both.0.set(&both.1, &post, FILE, (handle, lock), None)
        };
        ask(10, 1, true).unwrap();
        both.0.stop();
        assert_eq!(ask(11, 1, true), Err(Errno::AGAIN), "another open of the same number");
        both.0.end(&both.1, FILE, 10);
        ask(11, 1, true).unwrap();
        both.0.end(&both.1, FILE, 10);
        assert_eq!(ask(12, 2, true), Err(Errno::AGAIN));
    }

    #[test]
    fn a_waiter_gets_a_lock_released_outside_this_connection() {
        let (both, waiter) = contended();
        both.1.setlk(FILE, lock(1, LockKind::Unlock)).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }

    #[test]
    fn interrupts_end_waiting_early_and_late() {
        let (both, waiter) = contended();
        both.0.interrupt(41);
        both.0.interrupt(42);
        assert_eq!(waiter.join().unwrap(), Err(Errno::INTR));
        // 41 was interrupted before it arrived.
        let late = set(&both, lock(3, LockKind::Shared), Some(41));
        assert_eq!(late, Err(Errno::INTR));
        assert!(both.0.state.lock().early.is_empty());
        for unique in 0..2000 {
            both.0.interrupt(unique);
        }
        assert_eq!(both.0.state.lock().early.len(), EARLY_MAX);
    }

    #[test]
    fn the_end_of_the_connection_ends_waiting() {
        let (both, waiter) = contended();
        both.0.stop();
        assert_eq!(waiter.join().unwrap(), Err(Errno::INTR));
    }
}
