//! The order of one directory's names while names come and go.
//!
//! Every name has a number that it keeps as long as it is there; a listing goes through the numbers
//! upwards, and a cookie is the number to go on from.  `.` is 0, `..` is 1, the names that the
//! directory started with count up from [`MIDDLE`], and names added later count *down* from there.
//!
//! So a listing that is under way sees every name that is there all the time exactly once, whatever
//! else happens, and it never runs into names made behind its back.  That matters: a program that
//! renames each name that it reads would otherwise never come to an end (tmpfs and btrfs both had
//! this fault: "fix infinite directory reads").
//!
//! **Invariants**: numbers ascend in `first` and descend in `added`, and are never used twice; an
//! item without length is dead.  Dead items are swept out when they are more than half of all.
//!
//! Names lie one after another in one buffer, and names are only indexed when the first one is
//! changed: most directories are listed and left alone, and then a name costs 16 bytes more than
//! its length.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

/// Number of the first name.  Numbers stay below 2^31 on both sides for any thinkable directory:
/// 32-bit programs cannot read on from larger cookies.
const MIDDLE: u64 = 1 << 30;
/// The lowest number of a name.
const LOWEST: u64 = 2;
/// Fewer dead items than this are not worth a sweep.
const SWEEP: usize = 64;

/// The names of one directory in their order.
#[derive(Debug, Default)]
pub struct Listing {
    /// All names, also dead ones until the next sweep.
    bytes: Vec<u8>,
    first: Vec<Item>,
    added: Vec<Item>,
    dead: usize,
    /// (hash of the name, number) of every living item; made at the first change.
    index: Option<BTreeSet<(u64, u64)>>,
    hasher: RandomState,
}

/// One name: its number, and where its bytes are (offset << 16 | length).
#[derive(Clone, Copy, Debug)]
struct Item {
    number: u64,
    place: u64,
}

impl Item {
    fn is_dead(self) -> bool {
        self.place & 0xFFFF == 0
    }
}

impl Listing {
    /// A directory with these names, in this order; without `.` and `..`.
    pub fn new(base_names: Vec<Box<[u8]>>) -> Self {
        let mut listing = Listing {
            bytes: Vec::with_capacity(base_names.iter().map(|name| name.len()).sum()),
            first: Vec::with_capacity(base_names.len()),
            ..Listing::default()
        };
        for (number, name) in (MIDDLE..).zip(&base_names) {
            let place = listing.store(name);
            listing.first.push(Item { number, place });
        }
        listing
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.first.len() + self.added.len() - self.dead
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `name` is there.
    pub fn contains(&mut self, name: &[u8]) -> bool {
        !self.numbers(name).is_empty()
    }

    /// Adds a name.  Listings that have begun do not come to it; nothing happens if it is there.
    pub fn insert(&mut self, name: &[u8]) {
        if name.is_empty() || self.contains(name) {
            return;
        }
        let place = self.store(name);
        let lowest = self.added.last().map_or(MIDDLE, |item| item.number);
        let number = if lowest > LOWEST {
            self.added.push(Item { number: lowest - 1, place });
            lowest - 1
        } else {
            // A thousand million names were added: they go on at the far end.
            let number = self.first.last().map_or(MIDDLE, |item| item.number + 1);
            self.first.push(Item { number, place });
            number
        };
        let hash = self.hasher.hash_one(name);
        if let Some(index) = &mut self.index {
            index.insert((hash, number));
        }
    }

    /// Takes a name out; nothing happens if it is not there.
    pub fn remove(&mut self, name: &[u8]) {
        for number in self.numbers(name) {
            if let Some(item) = self.item_mut(number) {
                item.place &= !0xFFFF;
                self.dead += 1;
            }
            let hash = self.hasher.hash_one(name);
            if let Some(index) = &mut self.index {
                index.remove(&(hash, number));
            }
        }
        if self.dead > SWEEP && self.dead * 2 > self.first.len() + self.added.len() {
            self.sweep();
        }
    }

    /// The first name at or behind `cookie` (0: from the start) and the cookie to go on from after
    /// it; `None` at the end.
    pub fn next(&self, cookie: u64) -> Option<(u64, &[u8])> {
        match cookie {
            0 => return Some((1, b".")),
            1 => return Some((2, b"..")),
            _ => {}
        }
        // Descending numbers: what is at or behind the cookie is the front of `added`, backwards.
        let until = self.added.partition_point(|item| item.number >= cookie);
        let from = self.first.partition_point(|item| item.number < cookie);
        let mut items = self.added[..until].iter().rev().chain(&self.first[from..]);
        let item = items.find(|item| !item.is_dead())?;
        Some((item.number + 1, self.name(*item)))
    }

    fn name(&self, item: Item) -> &[u8] {
        let at = (item.place >> 16) as usize;
        &self.bytes[at..at + (item.place & 0xFFFF) as usize]
    }

    /// Appends the bytes of a name; no name is longer than 65535 bytes on Linux.
    fn store(&mut self, name: &[u8]) -> u64 {
        let name = &name[..name.len().min(0xFFFF)];
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(name);
        at << 16 | name.len() as u64
    }

    fn item(&self, number: u64) -> Option<Item> {
        let list = if number >= MIDDLE { &self.first } else { &self.added };
        list.get(self.position(number)?).copied()
    }

    fn item_mut(&mut self, number: u64) -> Option<&mut Item> {
        let at = self.position(number)?;
        let list = if number >= MIDDLE { &mut self.first } else { &mut self.added };
        list.get_mut(at)
    }

    fn position(&self, number: u64) -> Option<usize> {
        if number >= MIDDLE {
            self.first.binary_search_by(|item| item.number.cmp(&number)).ok()
        } else {
            self.added.binary_search_by(|item| number.cmp(&item.number)).ok()
        }
    }

    /// Numbers of all items of this name: none or one, unless the directory told it twice because
    /// it was changed while it was read.
    fn numbers(&mut self, name: &[u8]) -> Vec<u64> {
        if self.index.is_none() {
            let living = self.first.iter().chain(&self.added).filter(|item| !item.is_dead());
            let entry = |item: &Item| (self.hasher.hash_one(self.name(*item)), item.number);
            self.index = Some(living.map(entry).collect());
        }
        let hash = self.hasher.hash_one(name);
        let index = self.index.iter().flat_map(|index| index.range((hash, 0)..=(hash, u64::MAX)));
        let same = |number: &u64| self.item(*number).is_some_and(|i| self.name(i) == name);
        index.map(|(_, number)| *number).filter(same).collect()
    }

    /// Drops dead items and their bytes; numbers stay.
    fn sweep(&mut self) {
        let old = std::mem::take(&mut self.bytes);
        let mut bytes = Vec::new();
        for list in [&mut self.first, &mut self.added] {
            // The lowest number must stay known, so that it is not given out again.
            let last = list.last().map(|item| item.number);
            list.retain(|item| !item.is_dead() || Some(item.number) == last);
            list.shrink_to_fit();
            for item in list {
                let (at, len) = ((item.place >> 16) as usize, (item.place & 0xFFFF) as usize);
                item.place = (bytes.len() as u64) << 16 | len as u64;
                bytes.extend_from_slice(&old[at..at + len]);
            }
        }
        self.bytes = bytes;
        let all = self.first.iter().chain(&self.added);
        self.dead = all.filter(|item| item.is_dead()).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn names(list: &[&str]) -> Vec<Box<[u8]>> {
        list.iter().map(|name| name.as_bytes().into()).collect()
    }

    fn all(listing: &Listing) -> Vec<String> {
        let mut found = Vec::new();
        let mut cookie = 0;
        while let Some((next, name)) = listing.next(cookie) {
            assert!(next > cookie, "cookies rise");
            found.push(String::from_utf8(name.to_vec()).unwrap());
            cookie = next;
        }
        found
    }

    #[test]
    fn starts_with_the_dots_and_keeps_the_order() {
        assert_eq!(all(&Listing::new(names(&[]))), [".", ".."]);
        assert_eq!(all(&Listing::new(names(&["b", "a"]))), [".", "..", "b", "a"]);
    }

    #[test]
    fn a_program_that_renames_what_it_reads_comes_to_an_end() {
        let mut listing = Listing::new(names(&["a", "b", "c"]));
        let mut cookie = 2;
        let mut steps = 0;
        while let Some((next, name)) = listing.next(cookie) {
            let (old, new) = (name.to_vec(), [b"x", name].concat());
            listing.remove(&old);
            listing.insert(&new);
            cookie = next;
            steps += 1;
            assert!(steps <= 3, "the listing meets its own renames");
        }
        let found: BTreeSet<_> = all(&listing).into_iter().skip(2).collect();
        assert_eq!(found, ["xa", "xb", "xc"].map(String::from).into());
    }

    #[test]
    fn names_that_come_and_go_leave_nothing_behind() {
        let mut listing = Listing::new(names(&["stays"]));
        for i in 0..100_000 {
            let name = format!("temporary-{i}");
            listing.insert(name.as_bytes());
            listing.remove(name.as_bytes());
        }
        assert_eq!(all(&listing), [".", "..", "stays"]);
        assert_eq!(listing.len(), 1);
        assert!(listing.added.capacity() < 1000 && listing.bytes.capacity() < 10_000);
    }

    #[test]
    fn a_listed_directory_costs_little() {
        let listing =
            Listing::new((0..1000).map(|i| format!("{i:04}").into_bytes().into()).collect());
        assert_eq!(listing.bytes.capacity(), 4000);
        assert_eq!(listing.first.capacity() * size_of::<Item>(), 16_000);
        assert!(listing.index.is_none());
    }

    #[test]
    fn a_name_told_twice_goes_at_once() {
        let mut listing = Listing::new(names(&["a", "b", "a"]));
        listing.remove(b"a");
        assert_eq!(all(&listing), [".", "..", "b"]);
    }

    #[test]
    fn when_numbers_run_out_names_go_to_the_end() {
        let mut listing = Listing::new(names(&["a"]));
        listing.added.push(Item { number: LOWEST, place: 0 });
        listing.dead += 1;
        listing.insert(b"b");
        listing.insert(b"c");
        assert_eq!(all(&listing), [".", "..", "a", "b", "c"]);
        listing.remove(b"b");
        assert_eq!(all(&listing), [".", "..", "a", "c"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// A scan with changes between its steps sees each name that stays exactly once, no name
        /// twice unless it came anew, and a scan afterwards sees exactly what is there.
        #[test]
        fn a_scan_sees_what_stays_exactly_once(
            base in prop::collection::btree_set(0u8..60, 0..40),
            steps in prop::collection::vec(
                prop::collection::vec((any::<bool>(), 0u8..80), 0..12), 1..30),
        ) {
            let name = |n: u8| format!("name{n}").into_bytes();
            let mut listing = Listing::new(base.iter().map(|n| name(*n).into()).collect());
            let mut model: BTreeSet<u8> = base;
            let mut stays = model.clone();
            let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            let mut cookie = 2;
            let mut changes = steps.into_iter();
            loop {
                for (add, n) in changes.next().unwrap_or_default() {
                    if add {
                        listing.insert(&name(n));
                        model.insert(n);
                    } else {
                        listing.remove(&name(n));
                        model.remove(&n);
                        stays.remove(&n);
                    }
                    prop_assert_eq!(listing.contains(&name(n)), add);
                }
                prop_assert_eq!(listing.len(), model.len());
                let Some((next, found)) = listing.next(cookie) else { break };
                prop_assert!(next > cookie);
                *seen.entry(found.to_vec()).or_default() += 1;
                cookie = next;
            }
            for n in &stays {
                prop_assert_eq!(seen.get(&name(*n)), Some(&1), "name{}", n);
            }
            let mut now: Vec<String> = all(&listing).split_off(2);
            now.sort();
            let mut expected: Vec<String> = model.iter().map(|n| format!("name{n}")).collect();
            expected.sort();
            prop_assert_eq!(now, expected);
        }

        /// Sweeping changes nothing that can be seen.
        #[test]
        fn sweeping_is_invisible(gone in prop::collection::btree_set(0u32..300, 150..300)) {
            let name = |n: u32| n.to_string().into_bytes();
            let mut listing = Listing::new((0..200).map(|n| name(n).into()).collect());
            (200..300).for_each(|n| listing.insert(&name(n)));
            let mut cookies = BTreeMap::new();
            let mut cookie = 2;
            while let Some((next, found)) = listing.next(cookie) {
                cookies.insert(found.to_vec(), next);
                cookie = next;
            }
            gone.iter().for_each(|n| listing.remove(&name(*n)));
            let left: Vec<u32> = (0..300).filter(|n| !gone.contains(n)).collect();
            let mut cookie = 2;
            let mut count = 0;
            while let Some((next, found)) = listing.next(cookie) {
                prop_assert_eq!(cookies.get(found), Some(&next));
                cookie = next;
                count += 1;
            }
            prop_assert_eq!(count, left.len());
            listing.insert(b"new");
            prop_assert!(cookies.values().all(|c| *c != listing.next(2).unwrap().0));
        }
    }
}
