//! How much memory the private contents of one transaction may take together.
//!
//! The limit is soft: a file asks before it grows, and two files that ask at the same moment may
//! pass it together by one write each.  What is charged is what the vectors really take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory for private content, shared by all files of a transaction.  Cheap to clone: the clones
/// are one budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    /// At most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Budget(Arc::new(Inner { used: AtomicU64::new(0), limit }))
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Whether `more` bytes still fit.
    pub(crate) fn has_room(&self, more: u64) -> bool {
        self.used().saturating_add(more) <= self.0.limit
    }
}

/// What one file has taken from the budget; given back when the file goes.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    from: Option<Budget>,
    bytes: u64,
}

impl Charge {
    /// The file now takes `bytes`, from `budget` if nothing was charged to another one before.
    pub(crate) fn set(&mut self, budget: &Budget, bytes: u64) {
        let used = &self.from.get_or_insert_with(|| budget.clone()).0.used;
        // Only this charge's own share is taken off, so the sum cannot fall below zero.
        if bytes >= self.bytes {
            used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// The file takes none any more.
    pub(crate) fn clear(&mut self) {
        if let Some(budget) = self.from.take() {
            budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.bytes = 0;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.clear();
    }
}
