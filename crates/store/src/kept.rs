//! Which transactions have a history, without a look for each: to look for a name that is not there, a file system
//! reads the directory and remembers the answer, which is the larger part of a small begin.

use crate::bundle;
use crate::io::{Handle, Io};
use crate::layout::{bundle_of, history_of};
use std::collections::HashSet;
use std::io::Result;
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};

/// See the module.  Nobody else writes to the directory.
pub(crate) struct Kept(Mutex<State>);

struct State {
    known: HashSet<TxnId>,
    /// Bundles that nobody has looked into, by their first transaction.
    unread: Vec<TxnId>,
}

impl Kept {
    /// From the names in the directory.
    pub fn new(names: &[Vec<u8>]) -> Kept {
        let known = names.iter().filter_map(|name| history_of(name)).collect();
        let unread = names.iter().filter_map(|name| bundle_of(name)).collect();
        Kept(Mutex::new(rank::LEAF, State { known, unread }))
    }

    /// Whether the directory `history` of this store has something of this transaction.
    pub fn has(&self, io: &dyn Io, history: &Handle, store: u64, txn: TxnId) -> Result<bool> {
        let mut state = self.0.lock();
        while let Some(first) = state.unread.last().copied() {
            let there = bundle::transactions(io, history, store, first)?;
            state.known.extend(there);
            state.unread.pop();
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
    use crate::bundle::Bundles;
    use crate::layout::{bundle_name, history_name, names};
    use crate::testing::Scratch;

    #[test]
    fn what_is_kept_is_known_by_the_names_and_from_bundles() {
        let scratch = Scratch::new();
        let io = scratch.io();
        let dir = io.root();
        io.create_file(&dir, &history_name(TxnId(7)), 0o600).expect("a history file");
        io.create_file(&dir, b"something else, of the same length", 0o600).expect("no history");
        let bundles = Bundles::new();
        for n in [3, 11] {
            let done = bundles.append(&*io, &dir, 5, TxnId(n), b"a history");
            assert!(done.expect("an entry"));
        }
        let there = names(&*io, &dir).expect("names");
        assert!(there.contains(&bundle_name(TxnId(3))));
        let kept = Kept::new(&there);
        for n in 1..=20 {
            let here = kept.has(&*io, &dir, 5, TxnId(n)).expect("an answer");
            assert_eq!(here, [3, 7, 11].contains(&n), "transaction {n}");
        }
        // From now on it is told.
        for (known, tell) in [(true, Kept::comes as fn(&Kept, TxnId)), (false, Kept::went)] {
            tell(&kept, TxnId(9));
            assert_eq!(kept.has(&*io, &dir, 5, TxnId(9)).expect("an answer"), known);
        }
    }
}
