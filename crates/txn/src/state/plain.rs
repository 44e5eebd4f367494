//! Plain units in the state: what a request from outside every transaction does.
//!
//! A mutation is entered as a transaction that is decided from the start: the accesses of others,
//! their waiting and what goes stale at its end are then those of any commit that installs. It is
//! entered with all its objects at once or not at all, so one that has to wait holds nothing.

use super::State;
use crate::hold::Flags;
use crate::object::{Caller, Conflict, ObjectRef, Opponent, Side};
use crate::policy::{Choice, Contender, ContentionPolicy};
use crate::terms::Stall;
use crate::units::{DoomFn, Fallout, Phase, Rival, Txn, side};
use systx_base::TxnId;

/// Ids of plain mutations: in the half that is never given to a transaction.
const PLAIN: u64 = 1 << 63;

pub(super) fn is_plain(id: TxnId) -> bool {
    id.0 & PLAIN != 0
}

/// What becomes of a mutation.
pub(crate) enum Entered {
    /// It is decided.
    Decided(TxnId, Vec<TxnId>),
    Wait(TxnId),
    Hold(TxnId),
}

impl State {
    pub(crate) fn plain_mutation(
        &mut self,
        objects: &[ObjectRef<'_>],
        by: Caller,
        stall: Stall,
        (policy, fallout): (&dyn ContentionPolicy, &mut Fallout),
    ) -> Entered {
        let mut winner = None;
        let mut rivals: Vec<Rival<'_>> = Vec::new();
        for o in objects {
            self.units.table.holders(*o, self.units.table.locate(*o, true), true, |slot, flags| {
                let txn = self.units.txn(slot);
                // Also what it only read: who sees this mutation must not miss that commit
                // afterwards.
                if txn.phase.decided() && flags.any(Flags::READ.and(Flags::WRITE)) {
                    winner = Some(txn.contender.id);
                } else if txn.phase == Phase::Active {
                    let soft = !flags.any(Flags::READ.and(Flags::WRITE));
                    rivals.push(Rival { slot, object: *o, side: side(flags), soft });
                }
                winner.is_none()
            });
        }
        if let Some(winner) = winner {
            self.waits += 1;
            return Entered::Wait(winner);
        }
        if let (Stall::Bounded, Some(slot)) = (stall, self.units.held_for(&rivals, by, policy)) {
            self.waits += 1;
            return Entered::Hold(self.units.txn(slot).contender.id);
        }
        let mut doomed = Vec::new();
        for Rival { slot, object, side: mine, .. } in rivals.into_iter().filter(|r| !r.soft) {
            let (object, opponent, theirs) = (object.to_object(), Opponent::Plain(by), Side::Write);
            if self.lose(slot, Conflict { object, opponent, mine, theirs }, fallout) {
                doomed.push(self.units.txn(slot).contender.id);
            }
        }
        Entered::Decided(self.enter_plain(objects, by), doomed)
    }

    /// The plain unit that these lost to was made by `by`.
    pub(crate) fn name_opponent(&mut self, doomed: &[TxnId], by: Caller) {
        for id in doomed {
            let Some(slot) = self.units.find(*id) else { continue };
            if let Some(Conflict { opponent: Opponent::Plain(known), .. }) =
                &mut self.units.txn_mut(slot).conflict
            {
                *known = by;
            }
        }
    }

    fn enter_plain(&mut self, objects: &[ObjectRef<'_>], by: Caller) -> TxnId {
        let id = TxnId(PLAIN | self.next_plain);
        self.next_plain += 1;
        let contender = Contender {
            id,
            priority: 0,
            size: 0,
            karma: 0,
            choice: Choice::default(),
            age: 0,
            timestamp: 0,
            guest: false,
            place: None,
            scoped: false,
            asleep: false,
        };
        let mut txn = Txn::new(Phase::Committing, contender);
        txn.caller = Some(by);
        let slot = self.units.add(txn);
        self.plain += 1;
        for o in objects {
            let place = self.units.table.locate(*o, true);
            // The same object twice in one call: held once.
            if !self.units.table.held(slot, *o, place).any(Flags::WRITE) {
                self.units.record(slot, *o, place, Flags::WRITE);
            }
        }
        id
    }

    /// See [`crate::Engine::reserve`]; `wake` is called when the transaction loses.
    pub(crate) fn reserve(
        &mut self,
        id: TxnId,
        policy: &dyn ContentionPolicy,
        wake: DoomFn,
    ) -> bool {
        let Some(slot) = self.units.find(id) else { return false };
        let txn = self.units.txn_mut(slot);
        if txn.phase != Phase::Active || !policy.may_reserve(&txn.contends()) {
            return false;
        }
        if !std::mem::replace(&mut txn.reserved, true) {
            txn.on_doom.calls.push(wake);
        }
        true
    }
}
