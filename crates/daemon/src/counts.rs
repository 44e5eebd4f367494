//! What happened on one volume since the daemon knows it, as numbers.

use crate::protocol;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use systx_txn::Stats;

/// Numbers of one volume, over all times that it was opened.
#[derive(Debug, Default)]
pub struct Counts {
    /// Begun.
    pub begun: AtomicU64,
    /// Committed.
    pub committed: AtomicU64,
    /// Ended without a commit.
    pub aborted: AtomicU64,
    /// Lost a conflict.
    pub lost: AtomicU64,
    /// Conflicts that its engine decided, each time until it was closed.
    pub conflicts: AtomicU64,
    /// Waits there, likewise.
    pub waits: AtomicU64,
}

impl Counts {
    /// All of them; `now`: what the engine has counted since the volume was opened this time.
    pub(crate) fn since_the_first(&self, now: &Stats) -> protocol::Counts {
        protocol::Counts {
            begun: self.begun.load(Relaxed),
            committed: self.committed.load(Relaxed),
            aborted: self.aborted.load(Relaxed),
            lost: self.lost.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed) + now.conflicts,
            waits: self.waits.load(Relaxed) + now.waits,
        }
    }

    /// One more.
    pub fn count(number: &AtomicU64) {
        number.fetch_add(1, Relaxed);
    }
}
