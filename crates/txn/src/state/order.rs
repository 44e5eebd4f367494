//! Places in orders, in the state: who may be decided, and as whom a member contends.

use super::{Phase, State};
use crate::hold::Slot;
use crate::order::{Order, OrderError, Turn};
use crate::policy::{Contender, Place};
use crate::state::DoomFn;
use std::sync::Arc;
use systx_base::{OrderName, Orders, TxnId};

/// A transaction's place.
#[derive(Clone, Copy)]
pub(super) struct Seated {
    group: u32,
    number: u64,
}

impl State {
    /// See [`crate::Engine::enlist`]; `wake` is called when it loses.
    pub(crate) fn enlist(
        &mut self,
        id: TxnId,
        order: &Order,
        numbers: &Arc<Orders>,
        wake: DoomFn,
    ) -> Result<(), OrderError> {
        let slot = self.find(id).ok_or(OrderError::NotFree)?;
        let txn = self.txn(slot);
        if txn.phase != Phase::Active || txn.place.is_some() || txn.workset != Default::default() {
            return Err(OrderError::NotFree);
        }
        let group = self.orders.enter(id, order, numbers)?;
        let txn = self.txn_mut(slot);
        txn.place = Some(Seated { group, number: order.number });
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
            (Phase::Active, Some(place)) => self.orders.group(place.group).turn(place.number),
            (Phase::Active, None) | (Phase::Committing | Phase::Installing, _) => Turn::Now,
        }
    }

    /// See [`crate::Engine::place_in_order`].
    pub(crate) fn place_in_order(&self, id: TxnId) -> Option<Order> {
        let place = self.txn(self.find(id)?).place?;
        let group = self.orders.group(place.group).name.clone();
        Some(Order { group, number: place.number })
    }

    /// A transaction ends.
    pub(super) fn leave_order(&mut self, slot: Slot) {
        if let Some(place) = self.txn_mut(slot).place.take() {
            self.orders.leave(place.group, place.number);
        }
    }

    /// See [`crate::Engine::seize_order`].
    pub(crate) fn seize_order(
        &mut self,
        id: TxnId,
        order: &OrderName,
        numbers: &Arc<Orders>,
    ) -> Result<u32, OrderError> {
        self.orders.seize(id, order, numbers)
    }

    /// See [`crate::order::Seized`].
    pub(crate) fn give_back_order(&mut self, at: u32) {
        self.orders.give_back(at);
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
