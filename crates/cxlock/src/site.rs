//! What each call site of an optimistic section has met lately.
//!
//! The values are hints: updates that race may be lost, and sites that find no place of their own
//! in the table share one.

use crate::cause::Cause;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

const SITES: usize = 512;
const PROBES: usize = 8;
const CAUSES: usize = Cause::ALL.len();

static TABLE: [Site; SITES] = [const { Site::new() }; SITES];

/// How often attempts of a call site ended by each cause: moving averages over about eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Averages([u32; CAUSES]);

impl Averages {
    /// The average of what happens every time.
    pub const ALWAYS: u32 = 1024;

    /// The average of one cause, up to [`Averages::ALWAYS`].
    #[must_use]
    pub fn of(&self, cause: Cause) -> u32 {
        self.0[cause.index()]
    }

    #[cfg(test)]
    pub(crate) fn set(&mut self, cause: Cause, average: u32) {
        self.0[cause.index()] = average;
    }
}

pub(crate) struct Site {
    /// The address of its location in the program; 0 if the place is empty.
    key: AtomicUsize,
    averages: [AtomicU32; CAUSES],
    /// Sections that take the lock at once before the next attempt.
    skip: AtomicU32,
}

/// The site of a location.
pub(crate) fn of(location: &'static Location<'static>) -> &'static Site {
    let key = std::ptr::from_ref(location) as usize;
    let first = (key >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize) >> 7;
    for probe in 0..PROBES {
        let site = &TABLE[(first + probe) % SITES];
        let found = site.key.load(Relaxed);
        if found == key
            || found == 0
                && site
                    .key
                    .compare_exchange(0, key, Relaxed, Relaxed)
                    .map_or_else(|other| other == key, |_| true)
        {
            return site;
        }
    }
    &TABLE[first % SITES]
}

impl Site {
    const fn new() -> Self {
        Self {
            key: AtomicUsize::new(0),
            averages: [const { AtomicU32::new(0) }; CAUSES],
            skip: AtomicU32::new(0),
        }
    }

    pub(crate) fn averages(&self) -> Averages {
        Averages(std::array::from_fn(|i| self.averages[i].load(Relaxed)))
    }

    /// Whether the section should take the lock at once, this time.
    pub(crate) fn skips(&self) -> bool {
        if cfg!(loom) {
            return false; // an exploration must not depend on the one before
        }
        let left = self.skip.load(Relaxed);
        if left > 0 {
            self.skip.store(left - 1, Relaxed);
        }
        left > 0
    }

    /// An attempt has committed, or ended by a cause.
    pub(crate) fn note(&self, ended: Option<Cause>) {
        if cfg!(loom) {
            return;
        }
        for (i, average) in self.averages.iter().enumerate() {
            let (old, hit) = (average.load(Relaxed), ended.is_some_and(|cause| cause.index() == i));
            let new = if hit { old + (Averages::ALWAYS - old).div_ceil(8) } else { old - old / 8 };
            if new != old {
                average.store(new, Relaxed);
            }
        }
    }

    /// The section gave up being optimistic: for how many of the next ones that holds.
    ///
    /// One for something that happened once, more the more often it happens, up to 256 for what
    /// happens every time: so a site that changes is tried again, and one that does not costs
    /// little.
    pub(crate) fn give_up(&self, cause: Cause) {
        let average = self.averages().of(cause);
        let skip = match cause {
            Cause::Locked | Cause::Panicked => 0,
            Cause::Conflict => 1 << (average * 4 / Averages::ALWAYS),
            _ => 1 << (average * 8 / Averages::ALWAYS),
        };
        if skip > self.skip.load(Relaxed) {
            self.skip.store(skip, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_known_again_and_apart_from_others() {
        let here = Location::caller();
        #[track_caller]
        fn site() -> &'static Site {
            of(Location::caller())
        }
        let (a, b) = (site(), site());
        assert!(!std::ptr::eq(a, b));
        assert!(std::ptr::eq(of(here), of(here)));
    }

    #[test]
    fn what_happens_every_time_is_remembered_longer_and_forgotten_again() {
        let site = Site::new();
        let mut skips = Vec::new();
        for _ in 0..80 {
            site.note(Some(Cause::NeedExclusive));
            site.give_up(Cause::NeedExclusive);
            skips.push(std::iter::from_fn(|| site.skips().then_some(())).count());
        }
        assert!(skips.is_sorted(), "{skips:?}");
        assert_eq!((skips[0], skips[79]), (2, 256));
        for _ in 0..80 {
            site.note(None);
        }
        site.note(Some(Cause::NeedExclusive));
        site.give_up(Cause::NeedExclusive);
        assert_eq!(std::iter::from_fn(|| site.skips().then_some(())).count(), 2);
    }

    #[test]
    fn averages_stay_in_their_range() {
        let site = Site::new();
        for _ in 0..1000 {
            site.note(Some(Cause::Capacity));
        }
        assert_eq!(site.averages().of(Cause::Capacity), Averages::ALWAYS);
        assert_eq!(site.averages().of(Cause::Conflict), 0);
    }
}
