//! What happened on one volume since it was opened, as numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers of one volume since it was opened.
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
}

impl Counts {
    /// One more.
    pub fn count(number: &AtomicU64) {
        number.fetch_add(1, Relaxed);
    }
}
