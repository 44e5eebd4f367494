//! Two containers for the conflict table, which holds hundreds of thousands of small records: a
//! slab that names records by 32-bit positions, and an index from hashes to such positions that
//! costs about 16 bytes a record and needs no copy of the key.
//!
//! Both give their memory back when they become empty, so that a daemon that once served a large
//! transaction is small again afterwards.

/// Below this capacity an empty container keeps its memory.
const KEEP: usize = 1024;

/// Records under stable positions; positions are reused.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Slab<T> {
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self.items[at as usize] = item;
            return at;
        }
        let at = u32::try_from(self.items.len()).expect("memory ends before four billion records");
        self.items.push(item);
        at
    }

    /// Takes a record out; its position may be given to another.
    pub(crate) fn remove(&mut self, at: u32) -> T {
        let item = std::mem::take(&mut self.items[at as usize]);
        self.free.push(at);
        if self.free.len() == self.items.len() {
            self.items.clear();
            self.free.clear();
            if self.items.capacity() > KEEP {
                *self = Slab::default();
            }
        }
        item
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// All records, with a default one at every free position.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }

    /// Heap memory of the slab itself.
    pub(crate) fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<T>() + self.free.capacity() * size_of::<u32>()
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, at: u32) -> &T {
        &self.items[at as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.items[at as usize]
    }
}

/// Open addressing with linear probing; deletion closes gaps, so there are no tombstones. Keys stay
/// in the records and are compared by the caller; hashes are kept here, so that a probe that meets
/// other records, and growth, do not touch them.
///
/// Invariant: from the home cell of every value to the cell where it is, no cell is free.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// The length is 0 or a power of two.
    cells: Vec<IndexCell>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct IndexCell {
    hash: u32,
    /// The value plus one; 0: free.
    value: u32,
}

impl Index {
    fn mask(&self) -> usize {
        self.cells.len().wrapping_sub(1)
    }

    /// The value with this hash for which `is` holds.
    pub(crate) fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        if self.cells.is_empty() {
            return None;
        }
        let mut at = hash as usize & self.mask();
        loop {
            let cell = self.cells[at];
            match cell.value.checked_sub(1) {
                None => return None,
                Some(value) if cell.hash == hash && is(value) => return Some(value),
                Some(_) => at = (at + 1) & self.mask(),
            }
        }
    }

    /// Adds a value that is not there yet.
    pub(crate) fn insert(&mut self, hash: u32, value: u32) {
        // At most 5/8 full.
        if (self.len + 1) * 8 > self.cells.len() * 5 {
            let wider = (self.cells.len() * 2).max(16);
            let old = std::mem::replace(&mut self.cells, vec![IndexCell::default(); wider]);
            for cell in old.into_iter().filter(|c| c.value != 0) {
                self.put(cell);
            }
        }
        self.put(IndexCell { hash, value: value + 1 });
        self.len += 1;
    }

    fn put(&mut self, cell: IndexCell) {
        let mut at = cell.hash as usize & self.mask();
        while self.cells[at].value != 0 {
            at = (at + 1) & self.mask();
        }
        self.cells[at] = cell;
    }

    /// Removes a value that is there.
    pub(crate) fn remove(&mut self, hash: u32, value: u32) {
        let mask = self.mask();
        let mut gap = hash as usize & mask;
        while self.cells[gap].value != value + 1 {
            debug_assert_ne!(self.cells[gap].value, 0, "value {value} is not in the index");
            gap = (gap + 1) & mask;
        }
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell.value == 0 {
                break;
            }
            // A value may move back into the gap if its home is not between the gap and itself.
            let home = cell.hash as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.cells[gap] = cell;
                gap = at;
            }
        }
        self.cells[gap] = IndexCell::default();
        self.len -= 1;
        if self.len == 0 && self.cells.len() > KEEP {
            *self = Index::default();
        }
    }

    /// Heap memory of the index.
    pub(crate) fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<IndexCell>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_slab_reuses_positions_and_gives_memory_back() {
        let mut slab = Slab::default();
        let all: Vec<u32> = (0..5000u64).map(|i| slab.insert(i)).collect();
        assert_eq!(slab.remove(all[7]), 7);
        assert_eq!(slab.insert(70), all[7]);
        assert_eq!((slab[all[7]], slab.len()), (70, 5000));
        for at in all {
            slab.remove(at);
        }
        assert_eq!((slab.len(), slab.bytes()), (0, 0));
    }

    proptest! {
        /// Few distinct hashes, so that runs of probes overlap and wrap around.
        #[test]
        fn an_index_finds_exactly_what_is_in_it(
            steps in prop::collection::vec((any::<bool>(), 0u32..60), 0..400),
            spread in 1u32..70,
        ) {
            let hash = |v: u32| (v % spread).wrapping_mul(0x9e37_79b9) >> 27;
            let mut index = Index::default();
            let mut model = BTreeSet::new();
            for (add, v) in steps {
                if add && model.insert(v) {
                    index.insert(hash(v), v);
                } else if !add && model.remove(&v) {
                    index.remove(hash(v), v);
                }
                for x in 0..60 {
                    prop_assert_eq!(index.find(hash(x), |y| y == x).is_some(), model.contains(&x));
                }
            }
        }
    }
}
