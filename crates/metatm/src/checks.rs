//! What holds in every run.  A run in which it does not is no result, but a list of these texts.

use crate::tx::Unit;
use crate::workload::Addr;
use cxlock::table::{Event, State, allows};

/// Checks, and what they have found.
#[derive(Debug)]
pub struct Checks {
    /// What sections that have ended left.
    shadow: Vec<u64>,
    /// Transitions of cxspinlocks that occurred, with how often.
    pub transitions: Vec<((State, Event, State), u64)>,
    /// Checked sections.
    pub units: u64,
    broken: Vec<String>,
}

const TEXTS: usize = 20;

impl Checks {
    /// Over memory that is all zero.
    #[must_use]
    pub fn new(words: u32) -> Self {
        Checks {
            shadow: vec![0; words as usize],
            transitions: Vec::new(),
            units: 0,
            broken: Vec::new(),
        }
    }

    /// Something does not hold.
    pub fn broken(&mut self, text: String) {
        if self.broken.len() < TEXTS {
            self.broken.push(text);
        }
    }

    /// What has been found.
    #[must_use]
    pub fn found(&self) -> &[String] {
        &self.broken
    }

    /// A section ends: it has seen what those that ended before it left.  So the sections are
    /// serializable, in the order of their ends.
    pub fn unit(&mut self, what: &str, unit: &Unit) {
        self.units += 1;
        for (at, seen) in &unit.reads {
            let left = self.shadow[*at as usize];
            if left != *seen {
                let text = format!("{what} saw {seen} in word {at}, where {left} had been left");
                self.broken(text);
            }
        }
        for (at, value) in &unit.writes {
            self.shadow[*at as usize] = *value;
        }
    }

    /// At the end, memory is what the sections left.
    pub fn memory(&mut self, value: impl Fn(Addr) -> u64) {
        for at in 0..self.shadow.len() as Addr {
            let (left, is) = (self.shadow[at as usize], value(at));
            if left != is {
                self.broken(format!("word {at} is {is} at the end, and {left} was left there"));
            }
        }
    }

    /// A cxspinlock changes its state, as the paper's Table 3 has it.
    pub fn transition(&mut self, lock: &str, from: State, event: Event, to: State) {
        if !allows(from, event, to) {
            self.broken(format!("{lock}: {event:?} leads from {from:?} to {to:?}"));
        }
        let key = (from, event, to);
        match self.transitions.iter_mut().find(|(k, _)| *k == key) {
            Some((_, n)) => *n += 1,
            None => self.transitions.push((key, 1)),
        }
    }

    /// A processor's cycles are all accounted for.
    pub fn ledger(&mut self, processor: usize, sum: u64, clock: u64) {
        if sum != clock {
            self.broken(format!(
                "processor {processor}: {sum} of {clock} cycles are accounted for"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_that_saw_what_nobody_left_is_found() {
        let mut checks = Checks::new(4);
        let wrote = Unit { reads: vec![(0, 0)], writes: vec![(0, 7), (1, 8)] };
        checks.unit("a", &wrote);
        checks.unit("b", &Unit { reads: vec![(0, 7)], writes: vec![] });
        assert_eq!(checks.found(), [""; 0]);
        // Lost update: it read before `a` ended.
        checks.unit("c", &Unit { reads: vec![(0, 0)], writes: vec![(0, 9)] });
        assert_eq!(checks.found().len(), 1);
    }

    #[test]
    fn memory_that_differs_and_cycles_that_are_missing_are_found() {
        let mut checks = Checks::new(2);
        checks.memory(|_| 0);
        checks.ledger(0, 5, 5);
        assert_eq!(checks.found().len(), 0);
        checks.memory(u64::from);
        checks.ledger(1, 4, 5);
        assert_eq!(checks.found().len(), 2);
    }

    #[test]
    fn a_lock_that_does_what_the_table_does_not_have_is_found() {
        let mut checks = Checks::new(0);
        checks.transition("l", State::Free, Event::Optimistic, State::Transactional);
        assert_eq!(checks.found().len(), 0);
        checks.transition("l", State::Exclusive, Event::Optimistic, State::Transactional);
        assert_eq!(checks.found().len(), 1);
    }
}
