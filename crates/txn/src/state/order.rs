//! Places in orders, in the state: who may be decided, and as whom a member contends.

use super::{Phase, State};
use crate::hold::Slot;
use crate::order::{GroupName, Order, OrderError, Turn};
use crate::policy::{Contender, Place};
use crate::state::DoomFn;
use systx_base::TxnId;

/// A transaction's place.
#[derive(Clone, Copy)]
pub(super) struct Seated {
    group: u32,
    number: u64,
    /// It ends without effect, and that was its turn.
    passes: bool,
}

impl State {
    /// See [`crate::Engine::enlist`]; `wake` is called when it loses.
    pub(crate) fn enlist(
        &mut self,
        id: TxnId,
        order: &Order,
        wake: DoomFn,
    ) -> Result<(), OrderError> {
        let slot = self.find(id).ok_or(OrderError::NotFree)?;
        let txn = self.txn(slot);
        if txn.phase != Phase::Active || txn.place.is_some() || txn.workset != Default::default() {
            return Err(OrderError::NotFree);
        }
        let group = self.orders.enter(id, order)?;
        let txn = self.txn_mut(slot);
        txn.place = Some(Seated { group, number: order.number, passes: false });
        txn.on_doom.calls.push(wake);
        // It may have to wait for one that is weaker.
        self.again.leave(id);
        Ok(())
    }

    /// See [`crate::Engine::turn`].
    pub(crate) fn turn(&self, id: TxnId) -> Turn {
        let Some(txn) = self.find(id).map(|slot| self.txn(slot)) else { return Turn::Lost };
        match (txn.phase, txn.place) {
            (Phase::Doomed | Phase::Ending, _) => Turn::Lost,
            (Phase::Active, Some(place)) => {
                let group = self.orders.group(place.group);
                if group.next == place.number {
                    return Turn::Now;
                }
                Turn::After { number: group.next, by: group.members.get(&group.next).copied() }
            }
            (Phase::Active, None) | (Phase::Committing | Phase::Installing, _) => Turn::Now,
        }
    }

    /// See [`crate::Engine::pass`]: to be followed by an end without effect.
    pub(crate) fn pass(&mut self, id: TxnId) {
        let Some(slot) = self.find(id) else { return };
        let txn = self.txn_mut(slot);
        if let (Phase::Active | Phase::Committing, Some(place)) = (txn.phase, &mut txn.place) {
            place.passes = true;
        }
    }

    /// A transaction ends, with its changes in place if `installed`.
    pub(super) fn leave_order(&mut self, slot: Slot, installed: bool) {
        if let Some(place) = self.txn_mut(slot).place.take() {
            self.orders.leave(place.group, place.number, installed || place.passes);
        }
    }

    /// See [`crate::Engine::reset_order`].
    pub(crate) fn reset_order(&mut self, group: &GroupName, next: u64) -> Result<(), OrderError> {
        self.orders.reset(group, next)
    }

    /// As whom a transaction contends: a member of a group as the first member that is active, but
    /// for its number.
    pub(super) fn contender(&self, slot: Slot) -> Contender {
        let txn = self.txn(slot);
        let Some(Seated { group, number, .. }) = txn.place else {
            return txn.contends();
        };
        let members = self.orders.group(group).members.range(..=number);
        let mut before = members
            .filter_map(|(_, id)| Some(self.txn(self.find(*id)?)))
            .filter(|txn| txn.phase == Phase::Active)
            .peekable();
        let first = before.peek().map_or_else(|| txn.contends(), |txn| txn.contends());
        let place = Some(Place { group, number });
        // It cannot commit before them.
        let asleep = before.any(|txn| txn.contender.asleep);
        Contender { id: txn.contender.id, place, asleep, ..first }
    }
}
