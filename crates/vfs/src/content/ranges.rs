//! A set of page numbers, kept as runs.
//!
//! **Invariants**: runs are not empty, ascend, and never touch: two neighbours have at least one
//! page between them that is not in the set.  So equal sets have equal runs.
//!
//! A tree rather than a sorted vector, because scattered writes into a large file make hundreds of
//! thousands of runs and each insertion must stay cheap.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of page numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// First page of a run -> the page after its last.
    runs: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adds every page of `range`.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // The last run that starts at or before the range may reach into it or up to it.
        if let Some((&s, e)) = self.runs.range_mut(..=start).next_back()
            && *e >= start
        {
            if *e >= end {
                return;
            }
            start = s;
        }
        // Whatever else starts inside it or right behind it is swallowed.
        while let Some((&s, &e)) = self.runs.range(start..=end).next() {
            self.runs.remove(&s);
            end = end.max(e);
        }
        self.runs.insert(start, end);
    }

    /// Takes out every page of `range`.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((_, e)) = self.runs.range_mut(..range.start).next_back()
            && *e > range.start
        {
            let tail = *e;
            *e = range.start;
            if tail > range.end {
                self.runs.insert(range.end, tail);
                return;
            }
        }
        while let Some((&s, &e)) = self.runs.range(range.start..range.end).next() {
            self.runs.remove(&s);
            if e > range.end {
                self.runs.insert(range.end, e);
                return;
            }
        }
    }

    /// Where the state of `page` ends: `(true, end)` if it is in the set up to `end`, else
    /// `(false, next)` with the next page that is (`u64::MAX`: none).
    pub(crate) fn state(&self, page: u64) -> (bool, u64) {
        if let Some((_, &e)) = self.runs.range(..=page).next_back()
            && e > page
        {
            return (true, e);
        }
        let next = self.runs.range(page..).next().map_or(u64::MAX, |(&s, _)| s);
        (false, next)
    }

    /// Whether `page` is in the set.
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.state(page).0
    }

    /// The runs, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(&s, &e)| s..e)
    }

    /// As [`RangeSet::iter`], taking the set.
    pub(crate) fn into_runs(self) -> impl Iterator<Item = Range<u64>> {
        self.runs.into_iter().map(|(s, e)| s..e)
    }

    /// Number of pages.
    pub(crate) fn count(&self) -> u64 {
        self.runs.iter().map(|(s, e)| e - s).sum()
    }

    /// Number of pages below `limit`.
    pub(crate) fn count_below(&self, limit: u64) -> u64 {
        self.runs.range(..limit).map(|(s, e)| limit.min(*e) - s).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn check_invariants(set: &RangeSet) {
        let mut before = None;
        for run in set.iter() {
            assert!(run.start < run.end, "empty run {run:?}");
            if let Some(end) = before {
                assert!(end < run.start, "run {run:?} touches the one that ends at {end}");
            }
            before = Some(run.end);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
        /// The set agrees with a plain set of numbers after any sequence of changes.
        #[test]
        fn agrees_with_a_plain_set(
            ops in prop::collection::vec((any::<bool>(), 0u64..48, 0u64..14), 1..40)
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (add, start, len) in ops {
                let range = start..start + len;
                if add {
                    set.insert(range.clone());
                    model.extend(range);
                } else {
                    set.remove(range.clone());
                    for page in range {
                        model.remove(&page);
                    }
                }
                check_invariants(&set);
                let pages: Vec<u64> = set.iter().flatten().collect();
                prop_assert_eq!(&pages, &model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.count(), model.len() as u64);
                prop_assert_eq!(set.is_empty(), model.is_empty());
                for page in 0..64 {
                    prop_assert_eq!(set.count_below(page), model.range(..page).count() as u64);
                    let (inside, until) = set.state(page);
                    prop_assert_eq!(inside, model.contains(&page));
                    let expected = if inside {
                        (page..).find(|p| !model.contains(p))
                    } else {
                        model.range(page..).next().copied().or(Some(u64::MAX))
                    };
                    prop_assert_eq!(Some(until), expected);
                }
            }
        }
    }

    #[test]
    fn the_highest_pages_are_ordinary() {
        let mut set = RangeSet::default();
        set.insert(u64::MAX - 2..u64::MAX);
        assert_eq!(set.state(0), (false, u64::MAX - 2));
        assert_eq!(set.state(u64::MAX - 1), (true, u64::MAX));
        set.remove(u64::MAX - 1..u64::MAX);
        assert_eq!(set.count(), 1);
    }
}
