//! File locks that are brought to the view: waiting, interruption, and release at close.
//!
//! A blocking request (`F_SETLKW`, `flock` without `LOCK_NB`) is brought to the view as repeated
//! calls of [`Calls::setlkw`]: at once, whenever the view says that somebody has let go, after
//! every release that passes through this connection, and after at most [`PAUSE_MAX`], because a
//! process outside of all views may hold the lock.  The worker thread waits inside its request; the
//! crew starts another thread before a queue runs out of them, so that waiting never keeps other
//! requests from being served.  Each try is a sign of life for the watchdog: waiting for a lock is
//! not a fault, being stuck in a try is.
//!
//! INTERRUPT may arrive before the request that it names has begun to wait (over io_uring the two
//! take different ways).  The last few unmatched ones are therefore remembered.  It may also never
//! come ([`client`]): so a wait looks for signals by itself, every [`client::LOOK`].  Without that,
//! a killed waiter stays until its lock is free, and its parent may hold that lock and wait for its
//! end.
//!
//! Close: the kernel tells about it by FLUSH (a process's locks, which end with the first close by
//! it) and by RELEASE (locks of open file descriptions, by flock(2) or `F_OFD_SETLK`).  It sends
//! neither for zero-message opens: with [`FileLocks::View`](crate::FileLocks) the view finds out by
//! itself, at the latest when somebody else wants the lock; with `ViewToldOfClose` opens have
//! messages, and `held` remembers who ever locked, so that all other closes cost the view nothing.
//!
//! A description is known by the number of its open, which no other open ever has: the kernel's own
//! number for it (`owner`) is that of an address, which the next one may have before the RELEASE of
//! the first has come.  SETLK does not say whether it is for a process or for a description; the
//! call in which the client waits does ([`client::lock_call`]), and is looked at when an open is
//! used for a lock for the first time.
//!
//! close(2) waits for FLUSH and not for RELEASE: who asks for a lock right after its holder has
//! closed could come first.  So a request that does not wait is refused for the sake of a
//! description only when RELEASE has had [`RELEASE_MAX`] to follow the last FLUSH.
//!
//! Lock order: `Shared::state` is a leaf; it is never held while the view is called.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use systx_base::NodeId;
use systx_base::sync::{Event, Guard, Mutex, rank};
use systx_vfs::api::{Calls, Lock, LockKind, Reply, Requests};
use systx_vfs::client;
use systx_vfs::locks::Wait;

use crate::post::Post;

/// Longest time until a lock is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// Between FLUSH and RELEASE of one close.  A FLUSH may come without: descriptors are duplicated,
/// and inherited.
const RELEASE_MAX: Duration = Duration::from_millis(200);
/// Unmatched interrupts that are remembered.  Every request can be interrupted, few wait.
const EARLY_MAX: usize = 256;

pub(crate) struct Locks {
    shared: Arc<Shared>,
    /// [`RELEASE_MAX`]
    release_max: Duration,
}

struct Shared {
    state: Mutex<State>,
    changed: Event,
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
    /// Files with locks of descriptions, with the moment of the last FLUSH.
    flushed: HashMap<NodeId, Instant>,
    stopped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Owner {
    flock: bool,
    /// The kernel's number.
    key: u64,
    /// The open whose description it is; 0: it is a process, or opens have no numbers.
    open: u64,
}

impl Owner {
    /// As the view knows it.
    fn number(self) -> u64 {
        if self.open != 0 { self.open } else { self.key }
    }
}

/// Who asks: the thread, and the open by which it does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct By {
    pub tid: u32,
    pub handle: u64,
}

impl State {
    /// Whether a description has locked the file, in the way that matters to such a request.
    fn is_described(&self, node: NodeId, flock: impl Fn(bool) -> bool) -> bool {
        let described = |owner: &Owner| owner.open != 0 && flock(owner.flock);
        self.held.get(&node).is_some_and(|owners| owners.keys().any(described))
    }

    /// The owner that has locked the file by this open already.
    fn known(&self, node: NodeId, handle: u64, lock: &Lock) -> Option<Owner> {
        let owners = self.held.get(&node)?;
        let description = Owner { flock: false, key: lock.owner, open: handle };
        let process = Owner { open: 0, ..description };
        match owners.get(&process) {
            _ if owners.contains_key(&description) => Some(description),
            Some(handles) if handles.contains(&handle) => Some(process),
            _ => None,
        }
    }

    /// Takes out the owners of which this is true.
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

impl Shared {
    fn released(&self) {
        self.state.lock().releases += 1;
        self.changed.notify_all();
    }
}

impl Locks {
    pub fn new() -> Self {
        let state = Mutex::new(rank::LEAF, State::default());
        Locks {
            shared: Arc::new(Shared { state, changed: Event::new() }),
            release_max: RELEASE_MAX,
        }
    }

    fn state(&self) -> Guard<'_, State> {
        self.shared.state.lock()
    }

    /// Whose a lock is.
    fn owner_of(&self, node: NodeId, by: By, lock: &Lock) -> Owner {
        let process = Owner { flock: lock.flock, key: lock.owner, open: 0 };
        let description = Owner { open: by.handle, ..process };
        match by.handle {
            // The kernel opened without us: the view looks by itself.
            0 => process,
            _ if lock.flock => Owner { key: 0, ..description },
            handle => {
                let known = self.state().known(node, handle, lock);
                known.unwrap_or_else(|| match client::lock_call(by.tid) {
                    Some(call) if call.description => description,
                    _ => process,
                })
            }
        }
    }

    /// The lock that is in the way of this one.
    pub fn get(
        &self,
        view: &dyn Requests,
        post: &Post,
        node: NodeId,
        (by, lock): (By, Lock),
    ) -> Reply<Option<Lock>> {
        let known = self.state().known(node, by.handle, &lock);
        let owner = known.filter(|_| by.handle != 0).map_or(lock.owner, Owner::number);
        let lock = Lock { owner, ..lock };
        match view.getlk(node, lock)? {
            Some(_) if self.ends_soon(node, false) => {
                let mut found = None;
                let free = self.after_release(post, node, false, || {
                    found = view.getlk(node, lock)?;
                    if found.is_some() { Err(Errno::AGAIN) } else { Ok(()) }
                });
                if free == Err(Errno::AGAIN) { Ok(found) } else { free.map(|()| None) }
            }
            found => Ok(found),
        }
    }

    /// Sets or releases a lock.  `wait`: the request's `unique` if it may wait.
    pub fn set(
        &self,
        view: &dyn Requests,
        post: &Post,
        node: NodeId,
        (by, lock): (By, Lock),
        wait: Option<u64>,
    ) -> Reply<()> {
        let owner = self.owner_of(node, by, &lock);
        let description = owner.open != 0 && !owner.flock;
        let lock = Lock { owner: owner.number(), description, ..lock };
        let result = match wait {
            Some(unique) if lock.kind != LockKind::Unlock => {
                self.wait(view, post, node, lock, unique)
            }
            _ => {
                let ends = self.ends_soon(node, lock.flock);
                match view.setlk(node, lock) {
                    Err(Errno::AGAIN) if ends => {
                        self.after_release(post, node, lock.flock, || view.setlk(node, lock))
                    }
                    decided => decided,
                }
            }
        };
        if result.is_ok() {
            let mut state = self.state();
            if lock.kind != LockKind::Unlock && by.handle != 0 {
                let owners = state.held.entry(node).or_default();
                owners.entry(owner).or_default().insert(by.handle);
            }
            drop(state);
            if lock.kind != LockKind::Exclusive {
                // An unlock, or a step down from exclusive.
                self.shared.released();
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
            let mut state = self.state();
            if let Some(at) = state.early.iter().position(|u| *u == unique) {
                state.early.remove(at);
                return Err(Errno::INTR);
            }
            state.waiting.insert(unique, false);
            state.releases
        };
        let _entered = Waiting { locks: self, unique };
        let shared = Arc::clone(&self.shared);
        let wait = Wait::new(move || shared.released());
        let mut pause = Duration::from_millis(1);
        let mut signals = Signals::new();
        loop {
            post.beat();
            match view.setlkw(node, lock, &wait) {
                Err(Errno::AGAIN) => {}
                decided => return decided,
            }
            let mut state = self.state();
            let interrupted = |s: &State| s.stopped || s.waiting.get(&unique) != Some(&false);
            if state.releases == seen && !interrupted(&state) {
                self.shared.changed.wait_for(&mut state, pause);
            }
            if interrupted(&state) {
                return Err(Errno::INTR);
            }
            seen = state.releases;
            drop(state);
            if signals.end_it() {
                return Err(Errno::INTR);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Whether a RELEASE is to be expected that such a request has to wait for.
    fn ends_soon(&self, node: NodeId, flock: bool) -> bool {
        let mut state = self.state();
        let over = |since: &Instant| since.elapsed() >= self.release_max;
        let soon = !state.stopped && !state.flushed.get(&node).is_none_or(over);
        if !soon {
            state.flushed.remove(&node);
        }
        soon && state.is_described(node, |kind| kind == flock)
    }

    /// Tries again until no RELEASE is to be expected any more; others that open and close the file
    /// meanwhile make it no longer.
    fn after_release(
        &self,
        post: &Post,
        node: NodeId,
        flock: bool,
        mut ask: impl FnMut() -> Reply<()>,
    ) -> Reply<()> {
        let mut pause = Duration::from_millis(1);
        let begun = Instant::now();
        loop {
            post.beat();
            // In this order: what ended in between has let go of its lock.
            let ends = self.ends_soon(node, flock) && begun.elapsed() < self.release_max;
            let seen = self.state().releases;
            match ask() {
                Err(Errno::AGAIN) if ends => {}
                decided => return decided,
            }
            let mut state = self.state();
            if state.releases == seen {
                self.shared.changed.wait_for(&mut state, pause);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A FLUSH, perhaps of the last descriptor of a description that has a lock.
    pub fn may_end(&self, node: NodeId) {
        let mut state = self.state();
        if state.is_described(node, |_| true) {
            state.flushed.insert(node, Instant::now());
        }
    }

    /// INTERRUPT of the request `unique`.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state();
        if let Some(interrupted) = state.waiting.get_mut(&unique) {
            *interrupted = true;
            self.shared.changed.notify_all();
            return;
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// A process closed a descriptor of the file: releases what it may hold.
    pub fn close(&self, view: &dyn Requests, node: NodeId, key: u64) {
        let process = Owner { flock: false, key, open: 0 };
        let closed = self.state().take(node, |owner, _| *owner == process);
        self.unlock_all(view, node, closed);
    }

    /// An open ended: releases the locks of its description.  A process that has locked by it has
    /// closed since, and holds nothing of it any more, unless it did both at once.
    pub fn end(&self, view: &dyn Requests, node: NodeId, handle: u64) {
        // The kernel opened without us: no open can be told from another.
        if handle == 0 {
            return;
        }
        let ended = self.state().take(node, |_, handles| handles.contains(&handle));
        self.unlock_all(view, node, ended);
    }

    fn unlock_all(&self, view: &dyn Requests, node: NodeId, owners: Vec<Owner>) {
        if owners.is_empty() {
            return;
        }
        owners.into_iter().for_each(|owner| self.unlock(view, node, owner));
        // Not before they have let go.
        let mut state = self.state();
        if !state.is_described(node, |_| true) {
            state.flushed.remove(&node);
        }
    }

    fn unlock(&self, view: &dyn Requests, node: NodeId, of: Owner) {
        let (owner, flock, kind) = (of.number(), of.flock, LockKind::Unlock);
        let lock = Lock { owner, pid: 0, start: 0, end: u64::MAX, kind, flock, description: false };
        if let Err(errno) = view.setlk(node, lock) {
            tracing::warn!(node = node.0, owner, %errno, "a lock was not released at close");
        }
        self.shared.released();
    }

    /// The connection ends: nobody waits any longer.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.shared.changed.notify_all();
    }
}

/// Looks for a signal that ends the wait of this thread's client, and of which no INTERRUPT tells.
struct Signals {
    looked: Instant,
    /// There was one.
    seen: bool,
}

impl Signals {
    fn new() -> Self {
        Signals { looked: Instant::now(), seen: false }
    }

    /// Whether one was there at two looks. The kernel starts the call again that is answered
    /// `EINTR`, and must find the signal: without one the program would see `ERESTARTSYS`.
    fn end_it(&mut self) -> bool {
        if self.looked.elapsed() < client::LOOK {
            return false;
        }
        self.looked = Instant::now();
        let before = std::mem::replace(&mut self.seen, client::has_signal());
        before && self.seen
    }
}

/// Takes a request off the list of waiting ones, also when the view panics.
struct Waiting<'a> {
    locks: &'a Locks,
    unique: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.locks.state().waiting.remove(&self.unique);
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
        let flock = true;
        Lock { owner, pid: 1, start: 0, end: u64::MAX, kind, flock, description: false }
    }

    fn set(all: &(Locks, Memfs), lock: Lock, wait: Option<u64>) -> Reply<()> {
        let post = Posts::new().take(Group::Alone);
        all.0.set(&all.1, &post, FILE, (By { tid: 0, handle: lock.owner }, lock), wait)
    }

    /// A holder, and a thread that waits for it as request 42.
    fn contended() -> (Arc<(Locks, Memfs)>, std::thread::JoinHandle<Reply<()>>) {
        let both = Arc::new((Locks::new(), Memfs::default()));
        set(&both, lock(1, LockKind::Exclusive), None).unwrap();
        let theirs = Arc::clone(&both);
        let waiter = std::thread::spawn(move || set(&theirs, lock(2, LockKind::Shared), Some(42)));
        while both.0.state().waiting.is_empty() {
            std::thread::yield_now();
        }
        (both, waiter)
    }

    #[test]
    fn a_waiter_gets_the_lock_when_its_holder_closes() {
        let (both, waiter) = contended();
        assert!(!waiter.is_finished());
        both.0.close(&both.1, FILE, 1);
        assert!(!waiter.is_finished(), "closing for fcntl does not release a flock");
        both.0.end(&both.1, FILE, 1);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert!(both.0.state().waiting.is_empty());
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
        assert!(!both.0.state().flushed.contains_key(&NodeId(8)), "nobody has a lock there");
        // A FLUSH that nothing follows.
        let both = with(Duration::from_millis(1));
        both.0.may_end(FILE);
        assert_eq!(set(&both, lock(2, LockKind::Exclusive), None), Err(Errno::AGAIN));
        assert!(!both.0.ends_soon(FILE, true), "it has been waited for");
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
        assert!(both.0.state().held[&FILE].keys().all(|owner| owner.key == 2));
    }

    /// The kernel's number for a description is that of an address, which the next one may have
    /// before the end of the first has been told.
    #[test]
    fn who_locks_under_the_number_of_one_that_has_closed_keeps_the_lock() {
        let both = (Locks::new(), Memfs::default());
        let post = Posts::new().take(Group::Alone);
        let ask = |handle, owner, flock| {
            let lock = Lock { flock, ..lock(owner, LockKind::Exclusive) };
            both.0.set(&both.1, &post, FILE, (By { tid: 0, handle }, lock), None)
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
    fn a_signal_ends_a_wait_also_if_no_interrupt_tells_of_it() {
        use rustix::process::{Pid, Signal, kill_process};
        use systx_vfs::api::Caller;
        let mut client = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&client);
        // What is sent to a stopped process stays pending.
        kill_process(pid, Signal::STOP).unwrap();
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap();
        let both = (Locks::new(), Memfs::default());
        set(&both, lock(1, LockKind::Exclusive), None).unwrap();
        std::thread::scope(|threads| {
            let waiter = threads.spawn(|| {
                let (uid, gid) = (0, 0);
                let _client = client::serving(Caller { uid, gid, tid: client.id() });
                set(&both, lock(2, LockKind::Shared), Some(42))
            });
            while both.0.state().waiting.is_empty() {
                std::thread::yield_now();
            }
            kill_process(pid, Signal::USR1).unwrap();
            assert_eq!(waiter.join().unwrap(), Err(Errno::INTR));
        });
        client.kill().unwrap();
        client.wait().unwrap();
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
        assert!(both.0.state().early.is_empty());
        for unique in 0..2000 {
            both.0.interrupt(unique);
        }
        assert_eq!(both.0.state().early.len(), EARLY_MAX);
    }

    #[test]
    fn the_end_of_the_connection_ends_waiting() {
        let (both, waiter) = contended();
        both.0.stop();
        assert_eq!(waiter.join().unwrap(), Err(Errno::INTR));
    }
}
