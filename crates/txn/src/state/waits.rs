//! Transactions that wait: for what the engine does not see, and with an access for the one to
//! which they would lose, or which has what they want.

use super::{Ask, Intent, Look, Phase, State, Stronger, Winner};
use crate::hold::{Flags, Slot};
use crate::object::{Conflict, ObjectRef, Side};
use crate::policy::{Choice, Contender, ContentionPolicy};
use crate::stall::Stalls;
use crate::state::DoomFn;
use systx_base::TxnId;

impl State {
    /// See [`crate::Engine::defer_while`].
    pub(crate) fn defer_while(&mut self, id: TxnId, look: Look) {
        if let Some(slot) = self.find(id) {
            self.txn_mut(slot).look = Some(look);
        }
    }

    /// A rival that would win, if it would defer, nobody has looked at it yet, and it can be looked
    /// at.
    pub(super) fn not_looked_at(&self, rival: &Winner, looked: &[TxnId]) -> Option<Stronger> {
        if !rival.defers || looked.contains(&rival.id) {
            return None;
        }
        let look = self.txn(rival.slot).look.clone()?;
        Some(Stronger { id: rival.id, look })
    }

    /// It was seen to wait.
    pub(crate) fn defer(&mut self, id: TxnId) {
        if let Some(slot) = self.find(id) {
            let txn = self.txn_mut(slot);
            txn.contender.asleep |= txn.phase == Phase::Active;
        }
    }

    /// See [`crate::Engine::lost_asleep`].
    pub(crate) fn lost_asleep(&self, id: TxnId) -> bool {
        let lost =
            |slot: Slot| self.txn(slot).phase == Phase::Doomed && self.txn(slot).contender.asleep;
        self.find(id).is_some_and(lost)
    }

    /// See [`crate::Engine::stall`]: the one that is waited for from now on. `waker`: makes calls
    /// for when one of the two loses.
    pub(crate) fn stall(
        &mut self,
        id: TxnId,
        (o, intent): (ObjectRef<'_>, Intent),
        (policy, stalls): (&dyn ContentionPolicy, &Stalls),
        looked: &[TxnId],
        waker: impl Fn() -> DoomFn,
    ) -> Result<Option<TxnId>, Stronger> {
        let Some(slot) = self.find(id) else { return Ok(None) };
        let me = self.txn_mut(slot);
        if me.phase != Phase::Active {
            return Ok(None);
        }
        // Who asks does not sleep.
        me.contender.asleep = false;
        let write = intent == Intent::Write;
        let sure = self.in_scope(slot, o, write);
        let (want, place) = (self.wants(slot, intent, sure), self.table.locate(o, write));
        // Without a record there is no rival to be found, and nothing to lose.
        let covered = self.table.held(slot, o, place).any(super::covering(o, want));
        let hard = want.any(Flags::READ.and(Flags::WRITE));
        if !hard || covered || self.claimed(slot, (o, want, sure)).is_some() {
            return Ok(None);
        }
        let ask = Ask { slot, o, place, write, want, sure };
        let mut rivals = Vec::new();
        if self.rivals(&ask, &mut rivals).is_some() || rivals.is_empty() {
            return Ok(None);
        }
        let locked_by = self.locked_by(slot, &rivals, policy);
        let locks = locked_by.is_some();
        let stronger = || self.stronger(&ask, &self.contender(slot), &rivals, policy);
        let winner = locked_by.or_else(|| if write { None } else { stronger() });
        let Some(winner) = winner else { return Ok(None) };
        if let Some(stronger) = self.not_looked_at(&winner, looked) {
            return Err(stronger);
        }
        let enters = if locks { Stalls::enter_chain } else { Stalls::enter };
        if !enters(stalls, id, winner.id) {
            return Ok(None);
        }
        self.waits += 1;
        for slot in [slot, winner.slot] {
            let txn = self.txn_mut(slot);
            if !std::mem::replace(&mut txn.on_doom.wakes, true) {
                txn.on_doom.calls.push(waker());
            }
        }
        Ok(Some(winner.id))
    }

    /// The rule that a transaction has asked for.
    pub(crate) fn chose(&self, id: TxnId) -> Option<Choice> {
        self.find(id).map(|slot| self.txn(slot).contender.choice)
    }

    /// The first of these rivals that the challenger waits for, whoever would win.
    fn locked_by(
        &self,
        slot: Slot,
        rivals: &[(Slot, Side)],
        policy: &dyn ContentionPolicy,
    ) -> Option<Winner> {
        // In an order the numbers say who waits.
        let contends = |slot: Slot| Some(self.txn(slot)).filter(|txn| txn.place.is_none());
        let me = contends(slot)?;
        rivals.iter().copied().find_map(|(slot, side)| {
            let other = contends(slot)?.contender;
            let winner = Winner { slot, side, id: other.id, defers: true };
            policy.waits(&me.contender, &other).then_some(winner)
        })
    }

    /// Whether one that waits for another has to go on waiting.
    pub(crate) fn stalls(&self, waiter: TxnId, winner: TxnId) -> bool {
        self.phase(waiter) == Some(Phase::Active) && self.stands(winner)
    }

    /// Somebody who runs and has what one that has not begun lost over, to whom that would lose
    /// again; and how to find out whether it sleeps.
    pub(crate) fn stronger_holder(
        &self,
        me: &Contender,
        lost: &[Conflict],
        policy: &dyn ContentionPolicy,
    ) -> Option<(TxnId, Option<Look>)> {
        lost.iter().find_map(|Conflict { object, mine, .. }| {
            let (o, write) = (object.as_ref(), *mine == Side::Write);
            let in_the_way = if write { Flags::READ.and(Flags::WRITE) } else { Flags::WRITE };
            let mut found = None;
            self.table.holders(o, self.table.locate(o, write), write, |slot, flags| {
                let txn = self.txn(slot);
                let decided = txn.phase.decided() && flags.any(Flags::WRITE);
                let runs = txn.phase == Phase::Active && flags.any(in_the_way);
                let wins = || !policy.challenger_wins(me, &self.contender(slot));
                if decided || runs && wins() {
                    let look = txn.look.clone().filter(|_| runs);
                    found = Some((txn.contender.id, look));
                }
                found.is_none()
            });
            found
        })
    }
}
