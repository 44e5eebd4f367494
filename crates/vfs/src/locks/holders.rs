//! Who of ours holds what of one file.  Pure: nothing here asks anybody.

use super::ranges::Ranges;
use systx_store::host_locks::LockRange;

/// Whose a lock is, which decides when it ends and whom it keeps out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Class {
    /// A process's, by `F_SETLK`: until that closes any descriptor of the file.
    Process,
    /// An open file description's, by `F_OFD_SETLK`: until its last descriptor is closed, in
    /// whatever process.
    Description,
    /// An open file description's, by flock(2): of the whole file, and apart from the other two.
    Whole,
}

/// One owner.
#[derive(Clone, Debug)]
pub(super) struct Holder<K> {
    pub owner: K,
    /// The process that asked.
    pub pid: u32,
    pub class: Class,
    ranges: Ranges,
}

/// In the order in which they got their first lock, as the kernel has them: `F_GETLK` tells the
/// first one.
#[derive(Clone, Debug)]
pub(super) struct Holders<K>(Vec<Holder<K>>);

impl<K: Copy + Eq> Holders<K> {
    pub fn new() -> Self {
        Holders(Vec::new())
    }

    /// The first holder that keeps this owner from having a range, and by what.
    pub fn in_the_way(
        &self,
        owner: K,
        whole: bool,
        asked: &LockRange,
    ) -> Option<(&Holder<K>, LockRange)> {
        let others = self.0.iter().filter(|h| h.owner != owner);
        let mut matter = others.filter(|h| (h.class == Class::Whole) == whole);
        matter.find_map(|holder| Some((holder, holder.ranges.in_the_way(asked)?)))
    }

    /// Whether one of these holders keeps others from having a range.
    pub fn any_in_the_way(&self, whole: bool, asked: &LockRange, one: impl Fn(&K) -> bool) -> bool {
        let mut matter = self.0.iter().filter(|h| (h.class == Class::Whole) == whole);
        matter.any(|h| one(&h.owner) && h.ranges.in_the_way(asked).is_some())
    }

    /// An owner has got a range.
    pub fn set(&mut self, owner: K, pid: u32, class: Class, range: LockRange) {
        if let Some(holder) = self.of(owner) {
            return holder.ranges.set(range);
        }
        let mut holder = Holder { owner, pid, class, ranges: Ranges::default() };
        holder.ranges.set(range);
        self.0.push(holder);
    }

    /// It has turned out whose an owner's locks are.
    pub fn classify(&mut self, owner: K, class: Class) {
        if let Some(holder) = self.of(owner) {
            holder.class = class;
        }
    }

    /// An owner has given up the bytes `start..=end`.
    pub fn clear(&mut self, owner: K, start: u64, end: u64) {
        if let Some(holder) = self.of(owner) {
            holder.ranges.clear(start, end);
        }
        self.0.retain(|holder| !holder.ranges.is_empty());
    }

    /// An owner has given up everything.
    pub fn remove(&mut self, owner: K) {
        self.0.retain(|holder| holder.owner != owner);
    }

    /// What an owner holds.
    pub fn ranges(&self, owner: K) -> Option<&Holder<K>> {
        self.0.iter().find(|holder| holder.owner == owner)
    }

    fn of(&mut self, owner: K) -> Option<&mut Holder<K>> {
        self.0.iter_mut().find(|holder| holder.owner == owner)
    }
}

impl<K> Holder<K> {
    pub fn iter(&self) -> impl Iterator<Item = LockRange> {
        self.ranges.iter()
    }
}
