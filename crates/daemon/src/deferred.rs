//! What transactions want done outside after their commit, kept until somebody has done it.
//!
//! The daemon keeps the list and nothing more: the client carries it out, with the environment and
//! the rights of whoever started the transaction.  It is in the [`crate::ledger`], never on the
//! volume: what a medium says is not carried out.  The store decides whether it is due by what
//! became of the commit, so a client or a machine that dies in between loses nothing.

use crate::ledger::Ledger;
use crate::protocol::{ACTIONS_MAX, Action, Deferred, Failure, FailureKind};
use crate::stopped;
use crate::transaction::Transaction;
use crate::volume::OpenVolume;
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};
use systx_commit::Stopped;

/// What an open transaction wants done.
pub struct Wanted(Mutex<Vec<Action>>);

impl Default for Wanted {
    fn default() -> Self {
        Wanted(Mutex::new(rank::LEAF, Vec::new()))
    }
}

impl Wanted {
    /// All of it; beyond a bound it is cut.
    pub fn set(&self, mut actions: Vec<Action>) {
        actions.truncate(ACTIONS_MAX);
        *self.0.lock() = actions;
    }

    /// All of it.
    pub fn get(&self) -> Vec<Action> {
        self.0.lock().clone()
    }
}

/// A list that was written before the commit, if there is anything to be done. Dropped, it is
/// forgotten.
pub(crate) struct Promise<'a> {
    txn: &'a Transaction,
    written: bool,
}

impl<'a> Promise<'a> {
    /// Writes the list of a transaction that is about to be committed, where a part of it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn on(txn: &'a Transaction, actions: &[Action]) -> Result<Promise<'a>, Failure> {
        let written = !actions.is_empty() && !txn.terms.read_only;
        if written {
            let volume = &txn.volume;
            let lease = volume.lease()?;
            // Of another one's list it would be said that it is due.
            if lease.has_history(txn.id).map_err(|e| cannot_keep(volume, &e))? {
                return Err(stopped::failure(Stopped::Taken(txn.id)));
            }
            let store = lease.number().map_err(|e| cannot_keep(volume, &e))?;
            let kept = volume.ledger.defer(store, txn.id, &encode(actions)?);
            kept.map_err(|e| cannot_keep(volume, &e))?;
        }
        Ok(Promise { txn, written })
    }

    /// The transaction is committed.
    pub(crate) fn keep(mut self) {
        if std::mem::take(&mut self.written)
            && let Some(store) = self.txn.volume.store.known_as()
            && let Err(e) = self.txn.volume.ledger.due(store, self.txn.id)
        {
            tracing::warn!(id = %self.txn.id, "the list of what is to be done: {e}");
        }
    }

    /// Whether it is committed is not known here; the store knows when it is opened next.
    pub(crate) fn leave(mut self) {
        self.written = false;
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if self.written
            && let Some(store) = self.txn.volume.store.known_as()
            && let Err(e) = self.txn.volume.ledger.not_due(store, self.txn.id)
        {
            tracing::warn!(id = %self.txn.id, "the list of what is not to be done: {e}");
        }
    }
}

/// What waits to be done after a commit.
struct Due {
    /// The store that the transaction is in.
    store: u64,
    list: Deferred,
}

/// What waits to be done after the commits in a volume; in all that this machine has noted, if
/// `None`: also of file systems that are not in use, or not mounted.
///
/// # Errors
/// The lists cannot be read.
pub(crate) fn listed(
    ledger: &Ledger,
    volume: Option<&OpenVolume>,
) -> Result<Vec<Deferred>, Failure> {
    let all = due(ledger, volume.map(number))?;
    Ok(all.into_iter().map(|due| due.list).collect())
}

/// The number of its store; of one that has none nothing waits.
fn number(volume: &OpenVolume) -> u64 {
    volume.store.known_as().unwrap_or_default()
}

fn due(ledger: &Ledger, of: Option<u64>) -> Result<Vec<Due>, Failure> {
    let notes = ledger.all_due(of).map_err(|e| failed(ledger, &e))?;
    let decode = |(store, id, note): (u64, TxnId, Vec<u8>)| match serde_json::from_slice(&note) {
        Ok(actions) => Some(Due { store, list: Deferred { id, actions } }),
        Err(e) => {
            tracing::warn!(%id, "the list of what is to be done cannot be read: {e}");
            None
        }
    };
    Ok(notes.into_iter().filter_map(decode).collect())
}

/// Some was done.
///
/// # Errors
/// The lists cannot be written, or there is none of this transaction.
pub(crate) fn settle(
    ledger: &Ledger,
    volume: Option<&OpenVolume>,
    id: TxnId,
    left: &[Action],
) -> Result<(), Failure> {
    let note = if left.is_empty() { None } else { Some(encode(left)?) };
    // Only what is there: nobody may add to a list.
    let is = |due: &Due| due.list.id == id && left.iter().all(|a| due.list.actions.contains(a));
    let Some(due) = due(ledger, volume.map(number))?.into_iter().find(is) else {
        let text = format!("nothing of transaction {id} waits to be done");
        return Err(Failure::new(FailureKind::NotFound, text));
    };
    ledger.set_due(due.store, id, note.as_deref()).map_err(|e| failed(ledger, &e))
}

fn encode(actions: &[Action]) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(actions).map_err(|e| Failure::new(FailureKind::Internal, e.to_string()))
}

fn failed(ledger: &Ledger, e: &std::io::Error) -> Failure {
    let text = format!("cannot use the lists of what is to be done: {e}");
    Failure::new(FailureKind::Store, text).path(ledger.dir())
}

fn cannot_keep(volume: &OpenVolume, e: &dyn std::fmt::Display) -> Failure {
    let text = format!("cannot keep the list of what is to be done after it: {e}");
    Failure::new(FailureKind::Io, text).path(volume.ledger.dir())
}
