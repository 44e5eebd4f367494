//! Which transactions have a history file, without a look for each: to look for a name that is not there, a file system
//! reads the directory and remembers the answer, which is the larger part of a small begin.

use crate::io::{Handle, Io};
use crate::layout::{found, history_name, history_of, names};
use std::collections::HashSet;
use std::io::Result;
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};

/// So many questions are answered by a look each before all names are read: who asks once does not pay for a long history.
const LOOKS: u32 = 16;

/// See the module.  Nobody else writes to the directory.
pub(crate) struct Kept(Mutex<State>);

#[derive(Default)]
struct State {
    known: HashSet<TxnId>,
    /// `known` are all.
    all: bool,
    asked: u32,
}

impl Kept {
    pub fn new() -> Kept {
        Kept(Mutex::new(rank::LEAF, State::default()))
    }

    /// Whether the directory `history` has a file of this transaction.
    pub fn has(&self, io: &dyn Io, history: &Handle, txn: TxnId) -> Result<bool> {
        let mut state = self.0.lock();
        if state.known.contains(&txn) {
            return Ok(true);
        }
        if !state.all && state.asked < LOOKS {
            state.asked += 1;
            drop(state);
            return Ok(found(io.stat_at(history, &history_name(txn)))?.is_some());
        }
        if !state.all {
            state.known.extend(names(io, history)?.iter().filter_map(|name| history_of(name)));
            state.all = true;
        }
        Ok(state.known.contains(&txn))
    }

    /// It is going to have one.
    pub fn comes(&self, txn: TxnId) {
        self.0.lock().known.insert(txn);
    }

    /// It has none any more.
    pub fn went(&self, txn: TxnId) {
        self.0.lock().known.remove(&txn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn what_is_kept_is_known_by_looks_and_by_a_listing() {
        let scratch = Scratch::new();
        let io = scratch.io();
        let dir = io.root();
        let file = |n| history_name(TxnId(n));
        io.create_file(&dir, &file(7), 0o600).expect("a history file");
        io.create_file(&dir, b"something else, of the same length", 0o600).expect("no history");
        let kept = Kept::new();
        for n in 1..=2 * u64::from(LOOKS) {
            let here = kept.has(&*io, &dir, TxnId(n)).expect("an answer");
            assert_eq!(here, n == 7, "transaction {n}");
        }
        // From now on it is told.
        for (known, tell) in [(true, Kept::comes as fn(&Kept, TxnId)), (false, Kept::went)] {
            tell(&kept, TxnId(9));
            assert_eq!(kept.has(&*io, &dir, TxnId(9)).expect("an answer"), known);
        }
    }

    #[test]
    fn what_came_before_the_listing_is_known() {
        let scratch = Scratch::new();
        let io = scratch.io();
        let dir = io.root();
        let kept = Kept::new();
        // Told, and not there yet when the names are read.
        kept.comes(TxnId(5));
        for _ in 0..=LOOKS {
            assert!(!kept.has(&*io, &dir, TxnId(6)).expect("an answer"));
        }
        assert!(kept.has(&*io, &dir, TxnId(5)).expect("an answer"));
    }
}
