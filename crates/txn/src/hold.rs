//! Who holds an object, in four bytes: most objects are held by nobody or by one transaction, and
//! only the others ("/", "/usr", …) have a list on the side.
//!
//! Invariants: every transaction occurs at most once in a cell, with at least one flag; a list on
//! the side has at least two members.

use crate::index::Slab;

/// Position of a transaction in the engine's slab of transactions.
pub(crate) type Slot = u32;

/// What a transaction did to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flags(pub(crate) u8);

impl Flags {
    /// Nothing.
    pub(crate) const NONE: Flags = Flags(0);
    /// Read, and protected against writers.
    pub(crate) const READ: Flags = Flags(1);
    /// Written.
    pub(crate) const WRITE: Flags = Flags(2);
    /// Read without protection: writers only make it stale.
    pub(crate) const SOFT: Flags = Flags(4);
    /// A soft read that is out of date.
    pub(crate) const STALE: Flags = Flags(8);

    pub(crate) fn any(self, of: Flags) -> bool {
        self.0 & of.0 != 0
    }
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
    pub(crate) const fn and(self, more: Flags) -> Flags {
        Flags(self.0 | more.0)
    }
}

/// One holder: 4 bits of flags, 27 bits of slot; the top bit is never set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hold(u32);

impl Hold {
    /// One more than the highest slot that fits.
    pub(crate) const SLOTS: u32 = 1 << 27;

    pub(crate) fn new(slot: Slot, flags: Flags) -> Hold {
        debug_assert!(slot < Hold::SLOTS && !flags.is_none() && flags.0 < 16);
        Hold(slot << 4 | u32::from(flags.0))
    }
    pub(crate) fn slot(self) -> Slot {
        self.0 >> 4
    }
    pub(crate) fn flags(self) -> Flags {
        Flags((self.0 & 15) as u8)
    }
}

/// Lists of holders that do not fit into their cells.
pub(crate) type Lists = Slab<Vec<Hold>>;

/// The holders of one object: 0 for none, one [`Hold`], or the top bit and a position in [`Lists`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell(Hold);

const SIDE: u32 = 1 << 31;

impl Cell {
    fn list(self) -> Option<u32> {
        (self.0.0 & SIDE != 0).then_some(self.0.0 & !SIDE)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0.0 == 0
    }

    pub(crate) fn holds<'a>(&'a self, lists: &'a Lists) -> &'a [Hold] {
        match self.list() {
            Some(at) => &lists[at],
            None if self.is_empty() => &[],
            None => std::slice::from_ref(&self.0),
        }
    }

    pub(crate) fn flags(&self, slot: Slot, lists: &Lists) -> Flags {
        let found = self.holds(lists).iter().find(|h| h.slot() == slot);
        found.map_or(Flags::NONE, |h| h.flags())
    }

    /// Adds flags to a holder, which need not be there yet.
    pub(crate) fn add(&mut self, slot: Slot, flags: Flags, lists: &mut Lists) {
        let new = Hold::new(slot, flags);
        if let Some(at) = self.list() {
            let list = &mut lists[at];
            match list.iter_mut().find(|h| h.slot() == slot) {
                Some(hold) => *hold = Hold::new(slot, hold.flags().and(flags)),
                None => list.push(new),
            }
        } else if self.is_empty() {
            self.0 = new;
        } else if self.0.slot() == slot {
            self.0 = Hold::new(slot, self.0.flags().and(flags));
        } else {
            self.0 = Hold(SIDE | lists.insert(vec![self.0, new]));
        }
    }

    /// Removes a holder, if it is there.
    pub(crate) fn remove(&mut self, slot: Slot, lists: &mut Lists) {
        if let Some(at) = self.list() {
            let list = &mut lists[at];
            list.retain(|h| h.slot() != slot);
            if let [last] = list[..] {
                lists.remove(at);
                self.0 = last;
            }
        } else if !self.is_empty() && self.0.slot() == slot {
            self.0 = Hold::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_come_and_go() {
        let mut lists = Lists::default();
        let mut cell = Cell::default();
        assert!(cell.holds(&lists).is_empty());
        cell.add(0, Flags::READ, &mut lists);
        cell.add(0, Flags::WRITE, &mut lists);
        assert_eq!(cell.flags(0, &lists), Flags::READ.and(Flags::WRITE));
        assert_eq!(lists.len(), 0, "one holder needs no list");
        for slot in 1..5 {
            cell.add(slot, Flags::SOFT, &mut lists);
        }
        cell.add(3, Flags::STALE, &mut lists);
        assert_eq!(cell.flags(3, &lists), Flags::SOFT.and(Flags::STALE));
        assert_eq!(cell.holds(&lists).len(), 5);
        for slot in [2, 0, 4, 9, 3] {
            cell.remove(slot, &mut lists);
        }
        assert_eq!(cell.holds(&lists), [Hold::new(1, Flags::SOFT)]);
        assert_eq!(lists.len(), 0);
        cell.remove(1, &mut lists);
        assert!(cell.is_empty());
    }

    #[test]
    fn the_highest_slot_fits() {
        let all = Flags(15);
        let hold = Hold::new(Hold::SLOTS - 1, all);
        assert_eq!((hold.slot(), hold.flags(), hold.0 & SIDE), (Hold::SLOTS - 1, all, 0));
    }
}
