//! What a joint commit ([`crate::joint`]) does in each of its stores.

use super::{DirStore, Phase};
use crate::error::{CommitError, Poisoned};
use crate::footprint::Footprint;
use crate::interface::Committed;
use crate::report::ApplyReport;
use crate::super_block::Super;
use crate::writeset::WriteSet;

impl DirStore {
    /// As [`DirStore::claim`], for what a write set touches.
    pub(crate) fn claim_set(&self, set: &WriteSet) -> Result<u64, CommitError> {
        self.claim(Footprint::new(set, self.root))
    }

    /// Gives a claim back.
    pub(crate) fn unclaim(&self, ticket: u64) {
        self.state.lock().inflight.remove(&ticket);
        self.changed.notify_all();
    }

    /// What became of a prepared transaction. One that was not committed leaves nothing but its
    /// place in the journal.
    pub(crate) fn decided(&self, lsn: u64, committed: bool) {
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get_mut(&lsn).filter(|e| e.phase == Phase::Prepared) {
            if committed {
                entry.phase = Phase::Durable;
            } else {
                entry.phase = Phase::Applied;
                entry.footprint.dropped();
                entry.commit = None;
                entry.room = None;
                let (stamps, outside) = (Vec::new(), Vec::new());
                entry.report = Some(ApplyReport { txn: entry.txn, lsn, stamps, outside });
                entry.taken = true;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether a transaction is committed cannot be found out while this process lives.
    pub(crate) fn in_doubt(&self, why: &str) {
        let mut state = self.state.lock();
        state.poisoned.get_or_insert(Poisoned { why: why.to_owned() });
        drop(state);
        self.changed.notify_all();
    }

    /// What tells this store from all others; makes its journal if there is none.  The store is
    /// noted first: whoever asks is about to write the number where recovery looks for it.
    ///
    /// # Errors
    /// The journal cannot be made, or the store not be noted.
    pub fn number(&self) -> Result<u64, CommitError> {
        let number = self.own_number()?;
        self.config.registry.note(number).map_err(CommitError::Io)?;
        Ok(number)
    }

    fn own_number(&self) -> Result<u64, CommitError> {
        let mut state = self.live().map_err(CommitError::Poisoned)?;
        loop {
            if let Some(poisoned) = &state.poisoned {
                return Err(CommitError::Poisoned(poisoned.clone()));
            }
            if let Some(block) = state.block {
                return Ok(block.store);
            }
            if !state.leading {
                break;
            }
            self.changed.wait(&mut state);
        }
        state.leading = true;
        drop(state);
        let made = self.take_ring();
        let mut state = self.state.lock();
        state.leading = false;
        let made = made.map(|ring| {
            let number = ring.identity().store;
            state.ring = Some(ring);
            number
        });
        let made =
            made.map_err(|e| e.nothing().map_or_else(CommitError::Poisoned, CommitError::Io));
        drop(state);
        self.changed.notify_all();
        made
    }

    /// Whether the journal does not need this record any more.
    pub fn has_let_go(&self, committed: Committed) -> bool {
        !self.state.lock().entries.contains_key(&committed.lsn)
    }

    pub(crate) fn block(&self) -> Option<Super> {
        self.state.lock().block
    }
}
