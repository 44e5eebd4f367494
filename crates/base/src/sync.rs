//! Ranked locks: state lives inside its lock, and a thread may only take a lock of a higher rank
//! than every lock it already holds.  Debug builds panic on a violation, so that every test run is
//! also a search for lock-order cycles.
//!
//! Poisoning: a panic while a lock is held leaves state that nobody can vouch for.  The one policy
//! of the whole project is to pass the panic on to every later user of that state.

pub mod record;

use std::ops::{Deref, DerefMut};
#[cfg(feature = "record")]
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{
    Condvar, Mutex as StdMutex, MutexGuard as StdGuard, RwLock as StdRwLock, RwLockReadGuard,
    RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

/// Position of a lock in the one global order; a lower rank is taken first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(pub u8);

/// The global lock order, top to bottom.  Every lock of the project names its rank here.
pub mod rank {
    use super::Rank;
    /// The daemon's guarded directories: one is mounted or unmounted at a time.
    pub const GUARDS: Rank = Rank(5);
    /// The daemon's table of volumes and transactions.
    pub const DAEMON: Rank = Rank(10);
    /// One transaction's life cycle.
    pub const TXN_STATE: Rank = Rank(20);
    /// A volume's publications: one at a time.
    pub const PUBLICATION: Rank = Rank(25);
    /// One view's tree of nodes.
    pub const VIEW: Rank = Rank(30);
    /// What a publication marks: shared by the plain requests under way.
    pub const MARKS: Rank = Rank(32);
    /// A volume's installations: one at a time, and none while a view is validated.
    pub const INSTALL: Rank = Rank(35);
    /// One file's private content.
    pub const CONTENT: Rank = Rank(40);
    /// A volume's table of backing objects.
    pub const VOLUME: Rank = Rank(50);
    /// The conflict table.
    pub const ENGINE: Rank = Rank(60);
    /// Whether a store is open, and for whom.
    pub const STORES: Rank = Rank(65);
    /// A store's commit queue and ring.
    pub const STORE: Rank = Rank(70);
    /// Caches of open descriptors.
    pub const HANDLES: Rank = Rank(80);
    /// The segment of a log-structured volume that those who commit clean.
    pub const CLEANING: Rank = Rank(85);
    /// The state of a log-structured volume.
    pub const LOG: Rank = Rank(90);
    /// Which of a volume's files are open.
    pub const OPEN: Rank = Rank(95);
    /// Locks that protect nothing but themselves: free lists, statistics.
    pub const LEAF: Rank = Rank(100);
}

#[cfg(any(debug_assertions, feature = "ranks"))]
mod held {
    use super::Rank;
    use std::cell::RefCell;
    thread_local!(static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) });

    pub(super) fn push(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            if let Some(top) = held.iter().max() {
                assert!(*top < rank, "lock order: {rank:?} taken while {top:?} is held");
            }
            held.push(rank);
        });
    }
    pub(super) fn push_beside(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            if let Some(top) = held.iter().max() {
                assert!(*top <= rank, "lock order: {rank:?} taken while {top:?} is held");
            }
            held.push(rank);
        });
    }
    pub(super) fn is_held(rank: Rank) -> bool {
        HELD.with_borrow(|held| held.contains(&rank))
    }
    pub(super) fn pop(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|r| *r == rank) {
                held.remove(at);
            }
        });
    }
}

/// Whether this thread holds a lock of this rank, for tests that make something happen in the
/// middle of a call: only debug builds know, and those with the feature `ranks`.
#[cfg(any(debug_assertions, feature = "ranks"))]
pub fn is_held(rank: Rank) -> bool {
    held::is_held(rank)
}

/// A mutex with a rank.
#[derive(Debug)]
pub struct Mutex<T> {
    rank: Rank,
    inner: StdMutex<T>,
}

/// Access to the state inside a [`Mutex`].
pub struct Guard<'a, T> {
    rank: Rank,
    // `None` only while `Event::wait` has handed the guard to the condition variable.
    inner: Option<StdGuard<'a, T>>,
    recorded: Recorded,
}

/// A section that is written down if the feature `record` is on; nothing otherwise.
#[derive(Clone, Copy)]
struct Recorded {
    /// When the lock was wanted.
    #[cfg(feature = "record")]
    wanted: u64,
    /// Its address, once it was taken.
    #[cfg(feature = "record")]
    lock: usize,
}

impl Recorded {
    /// Before a lock is waited for.
    #[inline(always)]
    fn wants() -> Recorded {
        Recorded {
            #[cfg(feature = "record")]
            wanted: record::wants(),
            #[cfg(feature = "record")]
            lock: 0,
        }
    }

    /// It has been taken alone.
    #[inline(always)]
    #[cfg_attr(feature = "record", track_caller)]
    #[cfg_attr(not(feature = "record"), allow(unused_variables))]
    fn begin<T>(self, rank: Rank, lock: &T) -> Recorded {
        self.begin_as(rank, lock, false)
    }

    #[inline(always)]
    #[cfg_attr(feature = "record", track_caller)]
    #[cfg_attr(not(feature = "record"), allow(unused_variables))]
    fn begin_as<T>(self, rank: Rank, lock: &T, shared: bool) -> Recorded {
        #[cfg(feature = "record")]
        {
            let lock = std::ptr::from_ref(lock).addr();
            record::begin(rank, lock, shared, self.wanted, Location::caller());
            Recorded { lock, ..self }
        }
        #[cfg(not(feature = "record"))]
        self
    }

    /// Before it is released.
    #[inline(always)]
    fn end(self) {
        #[cfg(feature = "record")]
        record::end(self.lock);
    }

    /// After a wait that had released it.
    #[inline(always)]
    #[cfg_attr(feature = "record", track_caller)]
    #[cfg_attr(not(feature = "record"), allow(unused_variables))]
    fn again(self, rank: Rank) {
        #[cfg(feature = "record")]
        record::begin(rank, self.lock, false, record::wants(), Location::caller());
    }
}

impl<T> Mutex<T> {
    /// A mutex at `rank`.
    pub const fn new(rank: Rank, value: T) -> Self {
        Mutex { rank, inner: StdMutex::new(value) }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// If a holder panicked before; in debug builds also if a lock of the same or a higher rank is
    /// held by this thread.
    #[cfg_attr(feature = "record", track_caller)]
    pub fn lock(&self) -> Guard<'_, T> {
        #[cfg(any(debug_assertions, feature = "ranks"))]
        held::push(self.rank);
        let recorded = Recorded::wants();
        let inner = self.inner.lock().expect("a holder of this lock panicked");
        Guard { rank: self.rank, inner: Some(inner), recorded: recorded.begin(self.rank, self) }
    }

    /// The lock, if nobody has it.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[cfg_attr(feature = "record", track_caller)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        #[cfg(any(debug_assertions, feature = "ranks"))]
        held::push(self.rank);
        let recorded = Recorded::wants();
        match self.inner.try_lock() {
            Ok(inner) => {
                let recorded = recorded.begin(self.rank, self);
                Some(Guard { rank: self.rank, inner: Some(inner), recorded })
            }
            Err(TryLockError::WouldBlock) => {
                #[cfg(any(debug_assertions, feature = "ranks"))]
                held::pop(self.rank);
                None
            }
            Err(TryLockError::Poisoned(_)) => panic!("a holder of this lock panicked"),
        }
    }

    /// As [`Mutex::lock`], also while this thread holds locks of the same rank. Whoever takes
    /// several of one rank takes them in one order that all follow.
    ///
    /// # Panics
    /// If a holder panicked before; in debug builds also if a lock of a higher rank is held.
    #[cfg_attr(feature = "record", track_caller)]
    pub fn lock_beside(&self) -> Guard<'_, T> {
        #[cfg(any(debug_assertions, feature = "ranks"))]
        held::push_beside(self.rank);
        let recorded = Recorded::wants();
        let inner = self.inner.lock().expect("a holder of this lock panicked");
        Guard { rank: self.rank, inner: Some(inner), recorded: recorded.begin(self.rank, self) }
    }

    /// The state, when the mutex itself is owned.
    ///
    /// # Panics
    /// If a holder panicked before.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().expect("a holder of this lock panicked")
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("guard in use")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("guard in use")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.recorded.end();
        self.inner = None;
        #[cfg(any(debug_assertions, feature = "ranks"))]
        held::pop(self.rank);
    }
}

/// A lock with a rank that many may share.  Who waits to have it alone is not overtaken for ever.
#[derive(Debug)]
pub struct RwLock<T> {
    rank: Rank,
    inner: StdRwLock<T>,
}

/// Shared access to the state inside a [`RwLock`].
pub struct ReadGuard<'a, T> {
    _recorded: InGuard,
    inner: RwLockReadGuard<'a, T>,
    _held: Held,
}

/// Access alone to the state inside a [`RwLock`].
pub struct WriteGuard<'a, T> {
    _recorded: InGuard,
    inner: RwLockWriteGuard<'a, T>,
    _held: Held,
}

/// Ends a section that is written down, before the lock goes.
struct InGuard(Recorded);

impl Drop for InGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An entry in this thread's list of held locks.  Fields are dropped in order: the lock goes first.
struct Held {
    #[cfg(any(debug_assertions, feature = "ranks"))]
    rank: Rank,
}

impl Held {
    #[cfg_attr(not(debug_assertions), allow(unused_variables))]
    fn new(rank: Rank) -> Held {
        #[cfg(any(debug_assertions, feature = "ranks"))]
        held::push(rank);
        Held {
            #[cfg(any(debug_assertions, feature = "ranks"))]
            rank,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        #[cfg(any(debug_assertions, feature = "ranks"))]
        held::pop(self.rank);
    }
}

impl<T> RwLock<T> {
    /// A lock at `rank`.
    pub const fn new(rank: Rank, value: T) -> Self {
        RwLock { rank, inner: StdRwLock::new(value) }
    }

    /// Waits until nobody has the lock alone, and shares it.
    ///
    /// # Panics
    /// As [`Mutex::lock`]: sharing it twice in one thread is a violation, too.
    #[cfg_attr(feature = "record", track_caller)]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let held = Held::new(self.rank);
        let recorded = Recorded::wants();
        let inner = self.inner.read().expect("a holder of this lock panicked");
        let _recorded = InGuard(recorded.begin_as(self.rank, self, true));
        ReadGuard { _recorded, inner, _held: held }
    }

    /// The lock alone, if nobody has it.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[cfg_attr(feature = "record", track_caller)]
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        let held = Held::new(self.rank);
        let recorded = Recorded::wants();
        match self.inner.try_write() {
            Ok(inner) => {
                let _recorded = InGuard(recorded.begin(self.rank, self));
                Some(WriteGuard { _recorded, inner, _held: held })
            }
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("a holder of this lock panicked"),
        }
    }

    /// Waits until nobody has the lock.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[cfg_attr(feature = "record", track_caller)]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let held = Held::new(self.rank);
        let recorded = Recorded::wants();
        let inner = self.inner.write().expect("a holder of this lock panicked");
        let _recorded = InGuard(recorded.begin(self.rank, self));
        WriteGuard { _recorded, inner, _held: held }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A condition variable for a ranked mutex.
///
/// To notify costs no system call while nobody waits. So what is waited for has to change under the
/// mutex: then who has found it unchanged is counted before the change is made, and who comes later
/// sees it.
#[derive(Debug, Default)]
pub struct Event {
    condition: Condvar,
    waiters: AtomicUsize,
}

impl Event {
    /// A condition nobody waits for yet.
    pub const fn new() -> Self {
        Event { condition: Condvar::new(), waiters: AtomicUsize::new(0) }
    }
    /// Wakes every waiter.
    pub fn notify_all(&self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.condition.notify_all();
        }
    }
    /// Wakes one waiter.
    pub fn notify_one(&self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.condition.notify_one();
        }
    }
    /// Whether anybody waits: what is said with the lock held holds until it is released.
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }
    /// Releases the lock, waits for a notification, takes the lock again. Wakes spuriously: call in
    /// a loop over the condition.
    ///
    /// # Panics
    /// If a holder of the lock panicked.
    #[cfg_attr(feature = "record", track_caller)]
    pub fn wait<T>(&self, guard: &mut Guard<'_, T>) {
        guard.recorded.end();
        let inner = guard.inner.take().expect("guard in use");
        let _waiting = Waiting::new(&self.waiters);
        guard.inner = Some(self.condition.wait(inner).expect("a holder of this lock panicked"));
        guard.recorded.again(guard.rank);
    }
    /// As [`Event::wait`], at most `limit` long.
    ///
    /// # Panics
    /// If a holder of the lock panicked.
    #[cfg_attr(feature = "record", track_caller)]
    pub fn wait_for<T>(&self, guard: &mut Guard<'_, T>, limit: Duration) {
        guard.recorded.end();
        let inner = guard.inner.take().expect("guard in use");
        let _waiting = Waiting::new(&self.waiters);
        let woken = self.condition.wait_timeout(inner, limit);
        guard.inner = Some(woken.expect("a holder of this lock panicked").0);
        guard.recorded.again(guard.rank);
    }
}

/// Counted from before the lock is released, by who holds it: the lock orders the count.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, Ordering::Relaxed);
        Waiting(waiters)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rising_ranks_are_fine() {
        let a = Mutex::new(Rank(1), 1);
        let b = Mutex::new(Rank(2), 2);
        let ga = a.lock();
        let gb = b.lock();
        assert_eq!(*ga + *gb, 3);
        drop(ga);
        drop(gb);
        assert_eq!(*b.lock() + 1, 3);
    }

    #[test]
    fn no_notification_is_lost_on_somebody_who_is_about_to_wait() {
        const ROUNDS: u32 = 20_000;
        let (turn, changed) = (Mutex::new(rank::LEAF, 0), Event::new());
        let play = |mine: u32| {
            let mut now = turn.lock();
            while *now < ROUNDS {
                if *now % 2 == mine {
                    *now += 1;
                    drop(now);
                    changed.notify_one();
                    now = turn.lock();
                } else {
                    changed.wait(&mut now);
                }
            }
        };
        std::thread::scope(|s| {
            s.spawn(|| play(0));
            s.spawn(|| play(1));
        });
        assert_eq!((*turn.lock(), changed.waiters.into_inner()), (ROUNDS, 0));
    }

    #[test]
    fn a_lock_that_somebody_has_is_not_waited_for() {
        let (a, b) = (Mutex::new(Rank(1), 1), RwLock::new(Rank(2), 2));
        let (theirs, shared) = (a.lock(), b.read());
        std::thread::scope(|s| {
            let refused = s.spawn(|| a.try_lock().is_none() && b.try_write().is_none());
            assert!(refused.join().expect("it looks"), "both are taken");
        });
        drop((theirs, shared));
        // What was refused, or given back, is not counted as held: the lower rank can be taken
        // again.
        drop(b.try_write().expect("it is free"));
        assert_eq!(*a.try_lock().expect("it is free") + *b.read(), 3);
        drop(a.lock());
    }

    #[test]
    #[cfg(any(debug_assertions, feature = "ranks"))]
    #[should_panic(expected = "lock order")]
    fn a_falling_rank_panics_in_debug_builds() {
        let a = Mutex::new(Rank(1), ());
        let b = Mutex::new(Rank(2), ());
        let _gb = b.lock();
        let _ga = a.lock();
    }
}
