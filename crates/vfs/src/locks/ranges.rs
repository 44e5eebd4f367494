//! What one owner holds of one file, by the rules of fcntl(2).

use systx_store::host_locks::LockRange;

/// The last byte of any file.
pub(super) const LAST: u64 = i64::MAX as u64;

/// Disjoint ranges in the order of their bytes; those that touch each other and are of one kind
/// are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<LockRange>);

impl Ranges {
    /// Takes a range, in the place of all that was held there.
    pub fn set(&mut self, range: LockRange) {
        self.clear(range.start, range.end);
        let at = self.0.partition_point(|r| r.start < range.start);
        self.0.insert(at, range);
        self.join(at);
        if let Some(before) = at.checked_sub(1) {
            self.join(before);
        }
    }

    /// Makes one of the ranges at `at` and after it, if they are.
    fn join(&mut self, at: usize) {
        if let [this, next, ..] = &mut self.0[at..]
            && this.exclusive == next.exclusive
            && this.end.checked_add(1) == Some(next.start)
        {
            this.end = next.end;
            self.0.remove(at + 1);
        }
    }

    /// Gives up the bytes `start..=end`.
    pub fn clear(&mut self, start: u64, end: u64) {
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for range in self.0.drain(..) {
            if range.end < start || range.start > end {
                left.push(range);
                continue;
            }
            if range.start < start {
                left.push(LockRange { end: start - 1, ..range });
            }
            if range.end > end {
                left.push(LockRange { start: end + 1, ..range });
            }
        }
        self.0 = left;
    }

    /// The first range that keeps somebody else from having this one.
    pub fn in_the_way(&self, asked: &LockRange) -> Option<LockRange> {
        let meets = |r: &&LockRange| r.start <= asked.end && asked.start <= r.end;
        self.0.iter().filter(meets).find(|r| r.exclusive || asked.exclusive).copied()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = LockRange> {
        self.0.iter().copied()
    }
}
