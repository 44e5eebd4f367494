//! The interface, by one line for each of its methods.

use crate::commit::decision_name;
use crate::error::io_error;
use crate::open::VolumeStore;
use crate::own::{self, clear};
use std::io::Result;
use std::sync::Arc;
use systx_base::codec::Decoder;
use systx_base::{Orders, TxnId};
use systx_lfs::PAGES_MAX;
use systx_lfs::format::BLOCK;
use systx_store::io::{Class, HostId};
use systx_store::record::{Commit, look_back};
use systx_store::writeset::WriteSet;
use systx_store::{
    ApplyError, ApplyReport, CheckpointError, CommitError, Committed, Decision, Disjoint, GcReport,
    HistoryEntry, Joint, Keep, Late, Past, PastSide, Ready, Reservation, ReserveError, Slot,
    Staging, Store, Times, Undo, UndoError, Wanted,
};

type Written<T> = std::result::Result<T, CommitError>;

impl Store for VolumeStore {
    fn class(&self) -> Class {
        Class::Strong
    }
    fn own_object(&self) -> Option<HostId> {
        Some(self.own_id)
    }
    fn known_as(&self) -> Option<u64> {
        Some(self.id())
    }
    fn number(&self) -> Written<u64> {
        Ok(self.id())
    }
    fn max_len(&self) -> u64 {
        PAGES_MAX * BLOCK as u64
    }
    fn times(&self) -> Result<Times> {
        Ok(Times::ALL)
    }

    fn stage(&self) -> Result<Slot> {
        Ok(self.slot()?)
    }
    fn adopt(&self, _: &dyn Staging) {
        // A volume is open from the first of its slots to the last.
    }
    fn forget_for_content(&self, bytes: u64) -> bool {
        self.forget_for(bytes)
    }

    fn reserve(&self, set: &WriteSet) -> std::result::Result<Reservation, ReserveError> {
        self.reserve_for(set)
    }
    fn disjoint(&self) -> Disjoint {
        Disjoint::below(self.root)
    }
    fn commit_group(&self, members: Vec<Ready>) -> Vec<Written<Committed>> {
        self.commit_all(members)
    }
    fn apply(&self, lsn: u64) -> std::result::Result<ApplyReport, ApplyError> {
        self.apply_one(lsn)
    }
    fn late(&self) -> Vec<Late> {
        let late = self.flow.lock().late().into_iter();
        late.map(|(lsn, txn, set)| Late { lsn, txn, set }).collect()
    }
    fn checkpoint(&self) -> std::result::Result<(), CheckpointError> {
        let installed: Vec<u64> = self.flow.lock().reports.keys().copied().collect();
        if self.volume.sync().is_err() {
            self.flow.stop(None);
        }
        self.flow.goes_on()?;
        self.flow.lock().reports.retain(|lsn, _| !installed.contains(lsn));
        if let Err(error) = self.tidy() {
            tracing::warn!(%error, "slots that nobody has stay");
        }
        Ok(())
    }
    fn has_let_go(&self, committed: Committed) -> bool {
        self.flow.lock().has_let_go(committed.lsn)
    }

    fn claim(&self, set: &WriteSet) -> Written<u64> {
        let places = self.enter(&[set])?;
        places.first().copied().ok_or(CommitError::Overlaps)
    }
    fn unclaim(&self, claim: u64) {
        self.flow.leave(claim, None);
    }
    fn prepare(&self, claim: u64, ready: Ready, joint: Joint) -> Written<u64> {
        self.prepare_one(claim, ready, joint)
    }
    fn decided(&self, lsn: u64, committed: bool) {
        self.decide(lsn, committed);
    }
    fn in_doubt(&self, why: &str) {
        self.flow.stop(Some(why));
    }
    fn stopped(&self) -> Option<String> {
        // The volume knows what has failed, if it is that.
        self.volume.stopped().or_else(|| self.flow.goes_on().err().map(|poisoned| poisoned.why))
    }
    fn decisions(&self) -> Result<Vec<Decision>> {
        let all = self.tree.look(|ops| {
            let mut all = Vec::new();
            for (_, link) in ops.list(self.own.decisions, None, usize::MAX)? {
                all.push(own::read(ops, link.ino)?);
            }
            Ok(all)
        })?;
        let mut decisions = Vec::new();
        for bytes in all {
            let commit = Commit::decode(&mut Decoder::new(&bytes));
            let commit = commit.map_err(std::io::Error::other)?;
            if let Some(joint) = commit.joint {
                let others = joint.others().cloned().collect();
                decisions.push(Decision { id: joint.id, txn: commit.meta.txn, others });
            }
        }
        Ok(decisions)
    }
    fn forget_decision(&self, id: u64) -> Result<()> {
        let name = decision_name(id);
        self.volume.plain(|ops| clear(ops, self.own.decisions, &name)).map_err(io_error)
    }

    fn history(&self) -> Result<Vec<HistoryEntry>> {
        Ok(HistoryEntry::of_all(self.histories()?))
    }
    fn has_history(&self, txn: TxnId) -> Result<bool> {
        self.is_kept(txn)
    }
    fn undo_set(&self, txn: TxnId) -> std::result::Result<Undo, UndoError> {
        self.undo_some(txn, None)
    }
    fn undo_part(&self, txn: TxnId, wanted: Wanted<'_>) -> std::result::Result<Undo, UndoError> {
        self.undo_some(txn, Some(wanted))
    }
    fn look_back(&self, txn: TxnId) -> Result<Option<Vec<Past>>> {
        look_back(self.graveyard(), self.histories()?, txn)
    }
    fn read_back(&self, side: &PastSide, limit: usize) -> Result<Option<Vec<u8>>> {
        self.graveyard().read_back(side, limit)
    }
    fn would_gc(&self, keep: Keep) -> Result<GcReport> {
        self.would(keep)
    }
    fn gc(&self, keep: Keep) -> Result<GcReport> {
        self.collect(keep)
    }
    fn usual_limits(&self) -> Result<Keep> {
        self.limits()
    }
    fn bound_history(&self) -> Result<Option<GcReport>> {
        self.bound()
    }

    fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.orders)
    }

    fn is_at_rest(&self) -> bool {
        self.flow.lock().is_empty()
    }
    fn is_asked_for(&self) -> bool {
        // The file of a volume is locked for as long as it is open; nobody else can ask.
        false
    }
    fn is_unused(&self) -> bool {
        // It is the volume: nothing of it is there for the store alone.
        false
    }
    fn remove(&self) {}
}
