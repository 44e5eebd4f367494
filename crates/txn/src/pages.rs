//! Sets of pages as runs, and who holds which runs of one file.
//!
//! A file that is read from end to end is one run, however many reads that takes: adjacent and
//! overlapping runs merge.  Only scattered access (a database) needs a tree.
//!
//! Invariants: runs of a set neither overlap nor touch; a set is never empty; in a file's list
//! every (slot, kind) occurs at most once.

use crate::hold::{Flags, Slot};
use std::collections::BTreeMap;

/// A non-empty set of pages.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Runs {
    One(u64, u64),
    /// First page to last page.  Boxed, so that the common case is 24 bytes and not 32.
    #[allow(clippy::box_collection)]
    Many(Box<BTreeMap<u64, u64>>),
}

impl Runs {
    /// Adds `first..=last`.
    pub(crate) fn add(&mut self, first: u64, last: u64) {
        match self {
            Runs::One(a, b) if first <= b.saturating_add(1) && *a <= last.saturating_add(1) => {
                *a = first.min(*a);
                *b = last.max(*b);
            }
            Runs::One(a, b) => {
                *self = Runs::Many(Box::new(BTreeMap::from([(*a, *b), (first, last)])));
            }
            Runs::Many(tree) => {
                let (mut first, mut last) = (first, last);
                // What overlaps or touches starts at or before last + 1; go backwards from there.
                while let Some((&a, &b)) = tree.range(..=last.saturating_add(1)).next_back() {
                    if b.saturating_add(1) < first {
                        break;
                    }
                    tree.remove(&a);
                    first = first.min(a);
                    last = last.max(b);
                }
                tree.insert(first, last);
                if tree.len() == 1 {
                    *self = Runs::One(first, last);
                }
            }
        }
    }

    /// Whether all of `first..=last` is in the set.
    pub(crate) fn covers(&self, first: u64, last: u64) -> bool {
        match self {
            Runs::One(a, b) => *a <= first && last <= *b,
            Runs::Many(tree) => tree.range(..=first).next_back().is_some_and(|(_, b)| last <= *b),
        }
    }

    /// Whether any of `first..=last` is in the set.
    pub(crate) fn meets(&self, first: u64, last: u64) -> bool {
        match self {
            Runs::One(a, b) => *a <= last && first <= *b,
            Runs::Many(tree) => tree.range(..=last).next_back().is_some_and(|(_, b)| first <= *b),
        }
    }

    /// The runs, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let (one, many) = match self {
            Runs::One(a, b) => (Some((*a, *b)), None),
            Runs::Many(tree) => (None, Some(tree.iter().map(|(a, b)| (*a, *b)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The parts of the set within `first..=last`, ascending.
    pub(crate) fn within(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        match self {
            Runs::One(a, b) if *a <= last && first <= *b => vec![((*a).max(first), (*b).min(last))],
            Runs::One(..) => Vec::new(),
            Runs::Many(tree) => {
                // The one run that may begin before `first`, then those that begin inside.
                let before = tree.range(..first).next_back().filter(|(_, b)| first <= **b);
                let inside = tree.range(first..=last);
                before
                    .into_iter()
                    .chain(inside)
                    .map(|(a, b)| ((*a).max(first), (*b).min(last)))
                    .collect()
            }
        }
    }
}

/// The parts of `first..=last` that are not in a set; of no set, all of it.
pub(crate) fn missing(set: Option<&Runs>, first: u64, last: u64) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut next = Some(first);
    for (a, b) in set.map_or_else(Vec::new, |set| set.within(first, last)) {
        if let Some(from) = next.filter(|from| *from < a) {
            parts.push((from, a - 1));
        }
        next = b.checked_add(1);
    }
    parts.extend(next.filter(|from| *from <= last).map(|from| (from, last)));
    parts
}

/// The pages of one file that one transaction holds in one way.
#[derive(Clone, Debug)]
pub(crate) struct PageHold {
    pub(crate) slot: Slot,
    /// Exactly one kind.
    pub(crate) kind: Flags,
    pub(crate) runs: Runs,
}

/// All that is held of one file's pages.
#[derive(Debug, Default)]
pub(crate) struct PageHolds(Vec<PageHold>);

impl PageHolds {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PageHold> {
        self.0.iter()
    }

    pub(crate) fn get(&self, slot: Slot, kind: Flags) -> Option<&Runs> {
        self.0.iter().find(|h| h.slot == slot && h.kind == kind).map(|h| &h.runs)
    }

    /// Adds a run; true if the transaction held no page of the file in this way before.
    pub(crate) fn add(&mut self, slot: Slot, kind: Flags, first: u64, last: u64) -> bool {
        if let Some(hold) = self.0.iter_mut().find(|h| h.slot == slot && h.kind == kind) {
            hold.runs.add(first, last);
            return false;
        }
        // Most files have one or two holders: no room for more than there are.
        self.0.reserve_exact(1);
        self.0.push(PageHold { slot, kind, runs: Runs::One(first, last) });
        true
    }

    /// Removes all that a transaction holds.
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.0.retain(|h| h.slot != slot);
    }

    /// Heap memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let trees = self.0.iter().map(|h| match &h.runs {
            Runs::One(..) => 0,
            Runs::Many(tree) => tree.len() * 24,
        });
        self.0.capacity() * size_of::<PageHold>() + trees.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn runs_are_a_set_of_pages(
            start in (0u64..40, 0u64..6),
            adds in prop::collection::vec((0u64..40, 0u64..6), 0..30),
            ask in (0u64..40, 0u64..12),
        ) {
            let mut runs = Runs::One(start.0, start.0 + start.1);
            let mut model: BTreeSet<u64> = (start.0..=start.0 + start.1).collect();
            for (first, more) in adds {
                runs.add(first, first + more);
                model.extend(first..=first + more);
                let all: Vec<_> = runs.iter().collect();
                prop_assert!(all.windows(2).all(|w| w[0].1 + 1 < w[1].0), "{all:?} touch");
                prop_assert_eq!(matches!(runs, Runs::One(..)), all.len() == 1);
                let pages: BTreeSet<u64> = all.iter().flat_map(|(a, b)| *a..=*b).collect();
                prop_assert_eq!(&pages, &model);
            }
            let (first, last) = (ask.0, ask.0 + ask.1);
            prop_assert_eq!(runs.covers(first, last), (first..=last).all(|p| model.contains(&p)));
            prop_assert_eq!(runs.meets(first, last), (first..=last).any(|p| model.contains(&p)));
            let within: BTreeSet<u64> =
                runs.within(first, last).iter().flat_map(|(a, b)| *a..=*b).collect();
            let expected = model.range(first..=last).copied().collect::<BTreeSet<u64>>();
            prop_assert_eq!(&within, &expected);
            let missing: BTreeSet<u64> =
                missing(Some(&runs), first, last).iter().flat_map(|(a, b)| *a..=*b).collect();
            prop_assert!(missing.is_disjoint(&expected));
            prop_assert_eq!(missing.len() + expected.len(), (last - first + 1) as usize);
        }
    }

    #[test]
    fn the_last_page_of_all_is_no_special_case() {
        let mut runs = Runs::One(5, u64::MAX);
        runs.add(0, 2);
        runs.add(u64::MAX, u64::MAX);
        assert_eq!(runs.iter().collect::<Vec<_>>(), [(0, 2), (5, u64::MAX)]);
        assert_eq!(missing(Some(&runs), 1, u64::MAX), [(3, 4)]);
        assert_eq!(missing(None, 1, u64::MAX), [(1, u64::MAX)]);
        runs.add(2, u64::MAX);
        assert_eq!(runs, Runs::One(0, u64::MAX));
    }
}
