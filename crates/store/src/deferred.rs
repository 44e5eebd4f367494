//! What is to be done outside once a transaction is committed, kept until somebody has done it.
//!
//! The bytes are the caller's.  They are in `o/TXN.new` before the commit and become `o/TXN.due` after it; which of
//! the two a crash leaves does not matter: a note whose transaction is in the history is due, another one never was.
//! So the commit's own record decides about both, and the journal knows nothing of it.

use crate::dir_store::DirStore;
use crate::io::{Handle, Rename};
use crate::layout::{ensure_dir, found, history_name, names};
use std::io::Result;
use systx_base::TxnId;

const DIR: &[u8] = b"o";
const NEW: &[u8] = b".new";
const DUE: &[u8] = b".due";
/// A note longer than this is not read back.
const LONGEST: u64 = 1 << 20;

fn name(txn: TxnId, state: &[u8]) -> Vec<u8> {
    [&history_name(txn)[..], state].concat()
}

fn parse(name: &[u8], state: &[u8]) -> Option<TxnId> {
    let digits = std::str::from_utf8(name.strip_suffix(state)?).ok()?;
    u64::from_str_radix(digits, 16).ok().map(TxnId)
}

impl DirStore {
    /// Keeps a note for a transaction that is about to be committed; durable when this returns.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn defer(&self, txn: TxnId, note: &[u8]) -> Result<()> {
        let dir = ensure_dir(&*self.io, &self.layout.state, DIR)?;
        self.write_note(&dir, &name(txn, NEW), note)?;
        self.io.sync_all(&self.layout.state)
    }

    /// The transaction is committed: its note is due.
    ///
    /// # Errors
    /// The disk's.  The note is due all the same, when the store is opened next.
    pub fn due(&self, txn: TxnId) -> Result<()> {
        let Some(dir) = self.notes_dir()? else { return Ok(()) };
        self.io.rename(&dir, &name(txn, NEW), &dir, &name(txn, DUE), Rename::NoReplace)?;
        self.io.sync_all(&dir)
    }

    /// The transaction was not committed: its note is forgotten.
    ///
    /// # Errors
    /// The disk's.
    pub fn not_due(&self, txn: TxnId) -> Result<()> {
        let Some(dir) = self.notes_dir()? else { return Ok(()) };
        found(self.io.unlink(&dir, &name(txn, NEW))).map(drop)
    }

    /// The notes that are due, by transaction.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn notes(&self) -> Result<Vec<(TxnId, Vec<u8>)>> {
        let Some(dir) = self.notes_dir()? else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for name in names(&*self.io, &dir)? {
            let Some(txn) = parse(&name, DUE) else { continue };
            let Some(file) = found(self.io.open_file(&dir, &name, crate::io::Open::Read))? else {
                continue;
            };
            let len = usize::try_from(self.io.stat(&file)?.size.min(LONGEST)).unwrap_or(0);
            let mut bytes = vec![0; len];
            let got = self.io.read_at(&file, &mut bytes, 0)?;
            bytes.truncate(got);
            all.push((txn, bytes));
        }
        Ok(all)
    }

    /// What is left to do of a note that is due; nothing: it is forgotten.
    ///
    /// # Errors
    /// The disk's.
    pub fn set_note(&self, txn: TxnId, left: Option<&[u8]>) -> Result<()> {
        let Some(dir) = self.notes_dir()? else { return Ok(()) };
        match left {
            None => {
                found(self.io.unlink(&dir, &name(txn, DUE)))?;
            }
            Some(note) => {
                // Whole or not at all: the old note stays until the new one is there.
                let part = name(txn, b".part");
                self.write_note(&dir, &part, note)?;
                self.io.rename(&dir, &part, &dir, &name(txn, DUE), Rename::Replace)?;
            }
        }
        self.io.sync_all(&dir)
    }

    /// After recovery: decides about notes that a crash left undecided.
    pub(crate) fn settle_notes(&self) -> Result<()> {
        let Some(dir) = self.notes_dir()? else { return Ok(()) };
        for note in names(&*self.io, &dir)? {
            let Some(txn) = parse(&note, NEW) else {
                if note.ends_with(b".part") {
                    found(self.io.unlink(&dir, &note))?;
                }
                continue;
            };
            if self.has_history(txn)? { self.due(txn)? } else { self.not_due(txn)? }
        }
        Ok(())
    }

    fn notes_dir(&self) -> Result<Option<Handle>> {
        found(self.io.open_dir(&self.layout.state, DIR))
    }

    fn write_note(&self, dir: &Handle, name: &[u8], note: &[u8]) -> Result<()> {
        found(self.io.unlink(dir, name))?;
        let file = self.io.create_file(dir, name, 0o600)?;
        self.io.write_at(&file, note, 0)?;
        self.io.sync_all(&file)?;
        self.io.sync_all(dir)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Scratch, Ws, meta};
    use systx_base::TxnId;

    #[test]
    fn a_note_is_due_once_its_transaction_is_in_the_history() {
        let scratch = Scratch::new();
        let (store, _) = scratch.open();
        assert!(store.notes().unwrap().is_empty());
        store.defer(TxnId(7), b"restart").unwrap();
        assert!(store.notes().unwrap().is_empty());
        store.due(TxnId(7)).unwrap();
        assert_eq!(store.notes().unwrap(), [(TxnId(7), b"restart".to_vec())]);
        store.set_note(TxnId(7), Some(b"the rest")).unwrap();
        assert_eq!(store.notes().unwrap(), [(TxnId(7), b"the rest".to_vec())]);
        // One whose commit never came is gone with the next opening; what is due stays.
        store.defer(TxnId(8), b"never").unwrap();
        // One whose commit came, and then a crash before it was told.
        store.defer(TxnId(9), b"crashed").unwrap();
        let io = scratch.io();
        let mut changes = Ws::new(&*io);
        changes.create("f", "x");
        let set = changes.done();
        let reservation = store.reserve(&set).unwrap();
        store.commit(reservation, set, meta(9)).unwrap();
        drop(store);
        let (store, _) = scratch.open();
        let due = store.notes().unwrap();
        assert_eq!(due, [(TxnId(7), b"the rest".to_vec()), (TxnId(9), b"crashed".to_vec())]);
        store.set_note(TxnId(7), None).unwrap();
        store.set_note(TxnId(9), None).unwrap();
        assert!(store.notes().unwrap().is_empty());
        let left = std::fs::read_dir(scratch.path(crate::testing::STATE).join("o")).unwrap();
        assert_eq!(left.count(), 0);
    }
}
