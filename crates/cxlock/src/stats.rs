//! What a lock has gone through.

use crate::cause::Cause;
use crate::sync::{Apart, token};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const CAUSES: usize = Cause::ALL.len();

/// What has happened at a lock, since it was made.  Read while others work it is near the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sections that were entered, each counted once whatever it took.
    pub acquisitions: u64,
    /// Of these, sections that ended as transactions.
    pub optimistic: u64,
    /// Of these, sections that were asked for as exclusive.
    pub exclusive: u64,
    /// Of these, optimistic sections that took the lock in the end, or at once.
    pub fallbacks: u64,
    /// Attempts that were undone, by [`Cause::index`].
    pub restarts: [u64; CAUSES],
    /// Sections of other locks that were entered as a part of one of this lock.
    pub nested: u64,
    /// Exclusive acquisitions and polls that had to wait.
    pub waits: u64,
    /// Time that sections waited for the lock, in ticks of the hardware.
    pub waited: u64,
    /// Time of attempts that were undone, in ticks of the hardware.
    pub wasted: u64,
}

impl Stats {
    /// Attempts that were undone for one cause.
    #[must_use]
    pub fn restarts(&self, cause: Cause) -> u64 {
        self.restarts[cause.index()]
    }

    /// Attempts that were undone.
    #[must_use]
    pub fn all_restarts(&self) -> u64 {
        self.restarts.iter().sum()
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Event {
    Begun,
    Optimistic,
    Exclusive,
    Fallback,
    Nested,
    Waits,
    Waited,
    Wasted,
    Restart(Cause),
}

const EVENTS: usize = 8 + CAUSES;

impl Event {
    const fn index(self) -> usize {
        match self {
            Self::Begun => 0,
            Self::Optimistic => 1,
            Self::Exclusive => 2,
            Self::Fallback => 3,
            Self::Nested => 4,
            Self::Waits => 5,
            Self::Waited => 6,
            Self::Wasted => 7,
            Self::Restart(cause) => 8 + cause.index(),
        }
    }
}

type Shard = Apart<[AtomicU64; EVENTS]>;

/// Counters in several copies, so that threads seldom share a cache line.
#[derive(Debug)]
pub(crate) struct Counters {
    shards: Box<[Shard]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shards = threads.next_power_of_two().min(16);
        Self { shards: (0..shards).map(|_| Shard::default()).collect() }
    }

    /// Counts; never in a transaction.
    #[inline]
    pub(crate) fn add(&self, event: Event, n: u64) {
        let shard = &self.shards[token() as usize & (self.shards.len() - 1)];
        shard.0[event.index()].fetch_add(n, Relaxed);
    }

    fn sum(&self, event: Event) -> u64 {
        self.shards.iter().fold(0, |sum, s| sum.wrapping_add(s.0[event.index()].load(Relaxed)))
    }

    /// Attempts that are under way.
    pub(crate) fn inside(&self) -> u64 {
        let restarts = Cause::ALL.map(|cause| self.sum(Event::Restart(cause))).iter().sum::<u64>();
        let ended = self.sum(Event::Optimistic) + restarts;
        self.sum(Event::Begun).saturating_sub(ended)
    }

    pub(crate) fn stats(&self) -> Stats {
        let [optimistic, exclusive, fallbacks] =
            [Event::Optimistic, Event::Exclusive, Event::Fallback].map(|event| self.sum(event));
        Stats {
            acquisitions: optimistic + exclusive + fallbacks,
            optimistic,
            exclusive,
            fallbacks,
            restarts: Cause::ALL.map(|cause| self.sum(Event::Restart(cause))),
            nested: self.sum(Event::Nested),
            waits: self.sum(Event::Waits),
            waited: self.sum(Event::Waited),
            wasted: self.sum(Event::Wasted),
        }
    }
}
