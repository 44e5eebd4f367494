//! Which transactions have a history, without a look for each: to look for a name that is not
//! there, a file system reads the directory and remembers the answer, which is the larger part of a
//! small begin.

use crate::bundle;
use crate::io::{Handle, Io};
use crate::layout::{bundle_of, history_of};
use std::collections::{HashMap, HashSet};
use std::io::Result;
use std::sync::Arc;
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};

/// What was read of bundles, by the store and their first transaction, for openings that follow: a
/// bundle that an earlier opening has left gets no further transactions.
#[derive(Clone)]
pub struct Bundled(Arc<Mutex<Members>>);

/// The transactions of bundles, by the number of the store and the first of them.
type Members = HashMap<(u64, TxnId), Vec<TxnId>>;

impl std::fmt::Debug for Bundled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bundled").finish_non_exhaustive()
    }
}

impl Default for Bundled {
    fn default() -> Bundled {
        Bundled(Arc::new(Mutex::new(rank::LEAF, HashMap::new())))
    }
}

/// See the module.  Nobody else writes to the directory.
pub(crate) struct Kept {
    state: Mutex<State>,
    bundled: Bundled,
}

struct State {
    known: HashSet<TxnId>,
    /// Bundles that nobody has looked into, by their first transaction.
    unread: Vec<TxnId>,
}

impl Kept {
    /// From the names in the directory.
    pub fn new(names: &[Vec<u8>], bundled: Bundled) -> Kept {
        let known = names.iter().filter_map(|name| history_of(name)).collect();
        let unread = names.iter().filter_map(|name| bundle_of(name)).collect();
        Kept { state: Mutex::new(rank::LEAF, State { known, unread }), bundled }
    }

    /// Whether the directory `history` of this store has something of this transaction.
    pub fn has(&self, io: &dyn Io, history: &Handle, store: u64, txn: TxnId) -> Result<bool> {
        loop {
            let first = self.state.lock().unread.last().copied();
            let Some(first) = first else { break };
            let there = self.read(io, history, store, first)?;
            let mut state = self.state.lock();
            state.known.extend(there);
            state.unread.retain(|unread| *unread != first);
        }
        Ok(self.state.lock().known.contains(&txn))
    }

    /// The transactions of a bundle.
    fn read(&self, io: &dyn Io, history: &Handle, store: u64, first: TxnId) -> Result<Vec<TxnId>> {
        let known = self.bundled.0.lock().get(&(store, first)).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let there: Vec<_> = bundle::transactions(io, history, store, first)?.into_iter().collect();
        self.bundled.0.lock().insert((store, first), there.clone());
        Ok(there)
    }

    /// It is going to have one.
    pub fn comes(&self, txn: TxnId) {
        self.state.lock().known.insert(txn);
    }

    /// It has none any more.
    pub fn went(&self, txn: TxnId) {
        self.state.lock().known.remove(&txn);
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
        let kept = Kept::new(&there, Bundled::default());
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
