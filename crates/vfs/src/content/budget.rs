//! How much memory the private contents of one transaction may take together.
//!
//! The limit is soft: a file asks before it grows, and two files that ask at the same moment may
//! pass it together by one write each.  What is charged is what the vectors really take.
//!
//! A budget may also bound the sum of what is in memory and what is elsewhere, in staging slots
//! ([`Elsewhere`]).

use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory for private content, shared by all files of a transaction.  Cheap to clone: the clones
/// are one budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    used: AtomicU64,
    limit: u64,
    /// Bytes in slots.
    elsewhere: AtomicU64,
    /// Of both together.
    most: u64,
    /// Something did not fit.
    reached: AtomicBool,
}

impl Budget {
    /// At most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Budget::with_most(limit, u64::MAX)
    }

    /// At most `limit` bytes in memory, and `most` in all.
    pub fn with_most(limit: u64, most: u64) -> Self {
        Budget(Arc::new(Inner {
            used: AtomicU64::new(0),
            limit,
            elsewhere: AtomicU64::new(0),
            most,
            reached: AtomicBool::new(false),
        }))
    }

    /// A write was refused because it was too much in all.
    pub fn was_reached(&self) -> bool {
        self.0.reached.load(Ordering::Relaxed)
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Whether `more` bytes still fit.
    pub(crate) fn has_room(&self, more: u64) -> bool {
        let all = self.used().saturating_add(more);
        let elsewhere = self.0.elsewhere.load(Ordering::Relaxed);
        all <= self.0.limit && all.saturating_add(elsewhere) <= self.0.most
    }
}

/// What one slot has taken of a budget's sum; given back when the slot goes. Counted are the bytes
/// that were written behind all that was written before: what lies in a hole is counted when the
/// hole is left, not when it is filled.
#[derive(Debug)]
pub struct Elsewhere {
    of: Budget,
    /// The end of what was written.
    high: AtomicU64,
    taken: AtomicU64,
}

impl Elsewhere {
    /// Nothing yet.
    pub fn new(of: &Budget) -> Elsewhere {
        Elsewhere { of: of.clone(), high: AtomicU64::new(0), taken: AtomicU64::new(0) }
    }

    /// Before `len` bytes are written.
    ///
    /// # Errors
    /// `EDQUOT`: it is too much.
    pub fn write(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let inner = &self.of.0;
        let (end, high) = (offset.saturating_add(len), self.high.load(Ordering::Relaxed));
        let more = end.saturating_sub(high).min(len);
        let fits = |elsewhere: u64| {
            let all = elsewhere.checked_add(more)?;
            (more == 0 || all.saturating_add(self.of.used()) <= inner.most).then_some(all)
        };
        if inner.elsewhere.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            inner.reached.store(true, Ordering::Relaxed);
            return Err(Errno::DQUOT);
        }
        self.taken.fetch_add(more, Ordering::Relaxed);
        self.high.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    /// The slot has this length now.
    pub fn set_len(&self, len: u64) {
        let high = self.high.fetch_min(len, Ordering::Relaxed);
        let back = high.saturating_sub(len).min(self.taken.load(Ordering::Relaxed));
        self.taken.fetch_sub(back, Ordering::Relaxed);
        self.of.0.elsewhere.fetch_sub(back, Ordering::Relaxed);
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.of.0.elsewhere.fetch_sub(self.taken.load(Ordering::Relaxed), Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_slots_together_keep_to_the_sum() {
        let budget = Budget::with_most(1000, 100);
        let mut file = Charge::default();
        file.set(&budget, 40);
        assert!(budget.has_room(60) && !budget.has_room(61));
        let slot = Elsewhere::new(&budget);
        slot.write(0, 50).unwrap();
        // Again in place: nothing more.
        slot.write(10, 40).unwrap();
        assert!(budget.has_room(10) && !budget.has_room(11) && !budget.was_reached());
        assert_eq!(slot.write(45, 20), Err(Errno::DQUOT));
        assert!(budget.was_reached());
        slot.write(45, 15).unwrap();
        assert!(!budget.has_room(1));
        slot.set_len(20);
        assert!(budget.has_room(40) && !budget.has_room(41));
        drop(slot);
        assert!(budget.has_room(60));
        let free = Elsewhere::new(&Budget::new(0));
        free.write(u64::MAX - 1, 1).unwrap();
        free.write(0, u64::MAX).unwrap();
    }
}
