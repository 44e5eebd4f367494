//! Transactions that wait: for what the engine does not see, and with an access for the one to
//! which they would lose, or which has what they want.

use super::State;
use crate::hold::Flags;
use crate::object::ObjectRef;
use crate::policy::ContentionPolicy;
use crate::stall::Stalls;
use crate::units::{Ask, DoomFn, Intent, Look, Phase, Stronger, covering};
use systx_base::TxnId;

impl State {
    /// See [`crate::Engine::defer_while`].
    pub(crate) fn defer_while(&mut self, id: TxnId, look: Look) {
        if let Some(slot) = self.units.find(id) {
            self.units.txn_mut(slot).look = Some(look);
        }
    }

    /// It was seen to wait.
    pub(crate) fn defer(&mut self, id: TxnId) {
        if let Some(slot) = self.units.find(id) {
            let txn = self.units.txn_mut(slot);
            txn.contender.asleep |= txn.phase == Phase::Active;
        }
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
        let Some(slot) = self.units.find(id) else { return Ok(None) };
        let me = self.units.txn_mut(slot);
        if me.phase != Phase::Active {
            return Ok(None);
        }
        // Who asks does not sleep.
        me.contender.asleep = false;
        let write = intent == Intent::Write;
        let sure = self.units.in_scope(slot, o, write);
        let want = self.units.wants(slot, intent, sure);
        let place = self.units.table.locate(o, write);
        // Without a record there is no rival to be found, and nothing to lose.
        let covered = self.units.table.held(slot, o, place).any(covering(o, want));
        let hard = want.any(Flags::READ.and(Flags::WRITE));
        if !hard || covered || self.units.claimed(slot, (o, want, sure)).is_some() {
            return Ok(None);
        }
        let ask = Ask { slot, o, place, write, want, sure };
        let mut rivals = Vec::new();
        if self.units.rivals(&ask, &mut rivals).is_some() || rivals.is_empty() {
            return Ok(None);
        }
        let locked_by = self.units.locked_by(slot, &rivals, policy);
        let locks = locked_by.is_some();
        let stronger = || self.units.stronger(&ask, &self.units.contender(slot), &rivals, policy);
        let winner = locked_by.or_else(|| if write { None } else { stronger() });
        let Some(winner) = winner else { return Ok(None) };
        if let Some(stronger) = self.units.not_looked_at(&winner, looked) {
            return Err(stronger);
        }
        let enters = if locks { Stalls::enter_chain } else { Stalls::enter };
        if !enters(stalls, id, winner.id) {
            return Ok(None);
        }
        self.waits += 1;
        for slot in [slot, winner.slot] {
            let txn = self.units.txn_mut(slot);
            if !std::mem::replace(&mut txn.on_doom.wakes, true) {
                txn.on_doom.calls.push(waker());
            }
        }
        Ok(Some(winner.id))
    }
}
