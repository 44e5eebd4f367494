//! The `dir` store as what is above knows it.

use super::DirStore;
use crate::decisions;
use crate::error::{ApplyError, CheckpointError, CommitError, ReserveError, UndoError};
use crate::footprint::Disjoint;
use crate::history::HistoryEntry;
use crate::interface::{
    Committed, GcReport, Keep, Late, Past, PastSide, Ready, Reservation, Store, Undo, Wanted,
};
use crate::io::{Class, HostId};
use crate::joint::{Decision, Joint};
use crate::report::ApplyReport;
use crate::times::Times;
use crate::writeset::{Slot, Staging, WriteSet};
use std::any::Any;
use std::io::Result;
use std::sync::Arc;
use systx_base::{Orders, TxnId};

type Written<T> = std::result::Result<T, CommitError>;

impl Store for DirStore {
    fn class(&self) -> Class {
        self.ground.class
    }
    fn own_object(&self) -> Option<HostId> {
        Some(self.ground.layout.id)
    }
    fn known_as(&self) -> Option<u64> {
        self.block().map(|block| block.store)
    }
    fn number(&self) -> Written<u64> {
        self.number()
    }
    fn max_len(&self) -> u64 {
        self.bounds.max_len
    }
    fn times(&self) -> Result<Times> {
        let slot = self.stage()?;
        Times::of(&*self.ground.io, slot.handle())
    }
    fn stage(&self) -> Result<Slot> {
        Ok(Arc::new(self.ground.pool.take()?))
    }
    fn adopt(&self, slot: &dyn Staging) {
        if let Some(slot) = (slot as &dyn Any).downcast_ref() {
            self.ground.pool.adopt(slot);
        }
    }
    fn forget_for_content(&self, bytes: u64) -> bool {
        self.forget_for_content(bytes)
    }
    fn reserve(&self, set: &WriteSet) -> std::result::Result<Reservation, ReserveError> {
        self.reserve(set)
    }
    fn disjoint(&self) -> Disjoint {
        Disjoint::below(self.root)
    }
    fn commit_group(&self, members: Vec<Ready>) -> Vec<Written<Committed>> {
        self.commit_group(members)
    }
    fn apply(&self, lsn: u64) -> std::result::Result<ApplyReport, ApplyError> {
        self.apply(lsn)
    }
    fn late(&self) -> Vec<Late> {
        self.late()
    }
    fn checkpoint(&self) -> std::result::Result<(), CheckpointError> {
        self.checkpoint()
    }
    fn has_let_go(&self, committed: Committed) -> bool {
        self.has_let_go(committed)
    }
    fn claim(&self, set: &WriteSet) -> Written<u64> {
        self.claim_set(set)
    }
    fn unclaim(&self, claim: u64) {
        self.unclaim(claim);
    }
    fn prepare(&self, claim: u64, ready: Ready, joint: Joint) -> Written<u64> {
        self.commit_claimed(claim, ready, Some(joint))
    }
    fn decided(&self, lsn: u64, committed: bool) {
        self.decided(lsn, committed);
    }
    fn in_doubt(&self, why: &str) {
        self.in_doubt(why);
    }
    fn stopped(&self) -> Option<String> {
        self.live().err().map(|poisoned| poisoned.why)
    }
    fn decisions(&self) -> Result<Vec<Decision>> {
        decisions::all(&*self.ground.io, &self.ground.layout, self.config.instance.boot)
    }
    fn forget_decision(&self, id: u64) -> Result<()> {
        decisions::forget(&*self.ground.io, &self.ground.layout, id)
    }
    fn history(&self) -> Result<Vec<HistoryEntry>> {
        self.archive.entries()
    }
    fn has_history(&self, txn: TxnId) -> Result<bool> {
        self.archive.has(txn)
    }
    fn undo_set(&self, txn: TxnId) -> std::result::Result<Undo, UndoError> {
        self.archive.undo(txn, None)
    }
    fn undo_part(&self, txn: TxnId, wanted: Wanted<'_>) -> std::result::Result<Undo, UndoError> {
        self.archive.undo(txn, Some(wanted))
    }
    fn look_back(&self, txn: TxnId) -> Result<Option<Vec<Past>>> {
        self.archive.look_back(txn)
    }
    fn read_back(&self, side: &PastSide, limit: usize) -> Result<Option<Vec<u8>>> {
        self.archive.read_back(side, limit)
    }
    fn would_gc(&self, keep: Keep) -> Result<GcReport> {
        self.archive.would_gc(keep)
    }
    fn gc(&self, keep: Keep) -> Result<GcReport> {
        self.archive.gc(keep)
    }
    fn usual_limits(&self) -> Result<Keep> {
        self.usual_limits()
    }
    fn bound_history(&self) -> Result<Option<GcReport>> {
        self.bound_history()
    }
    fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.numbers.table)
    }
    fn is_at_rest(&self) -> bool {
        let state = self.state.lock();
        let idle = state.queue.is_empty() && state.inflight.is_empty() && !state.leading;
        idle && state.entries.is_empty() && !state.checkpointing && state.poisoned.is_none()
    }
    fn is_asked_for(&self) -> bool {
        self.ground.io.is_lock_asked_for(self.lock.file()).unwrap_or(false)
    }
    fn is_unused(&self) -> bool {
        self.block().is_none()
    }
    fn remove(&self) {
        if let Err(error) = crate::unused::remove_unused(&*self.ground.io, &self.ground.layout) {
            tracing::debug!(%error, "an unused store stays");
        }
    }
}
