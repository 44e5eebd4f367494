//! Reads that wait for whom they would lose to.

use super::{Ask, Intent, Phase, State, Stronger};
use crate::hold::Flags;
use crate::object::ObjectRef;
use crate::policy::ContentionPolicy;
use crate::stall::Stalls;
use crate::state::DoomFn;
use systx_base::TxnId;

impl State {
    /// See [`crate::Engine::stall`]: the one that is waited for from now on.  `waker`: makes calls for
    /// when one of the two loses.
    pub(crate) fn stall(
        &mut self,
        id: TxnId,
        o: ObjectRef<'_>,
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
        let sure = self.in_scope(slot, o, false);
        let (want, place) = (self.wants(slot, Intent::Read, sure), self.table.locate(o, false));
        // Without a record there is no rival to be found, and nothing to lose.
        let covered = self.table.held(slot, o, place).any(super::covering(o, want));
        if want != Flags::READ || covered || self.claimed(slot, (o, want, sure)).is_some() {
            return Ok(None);
        }
        let ask = Ask { slot, o, place, write: false, want, sure };
        let mut rivals = Vec::new();
        if self.rivals(&ask, &mut rivals).is_some() || rivals.is_empty() {
            return Ok(None);
        }
        let me = self.contender(slot);
        let Some(winner) = self.stronger(&ask, &me, &rivals, policy) else { return Ok(None) };
        if let Some(stronger) = self.not_looked_at(&winner, looked) {
            return Err(stronger);
        }
        if !stalls.enter(id, winner.id) {
            return Ok(None);
        }
        self.waits += 1;
        for slot in [slot, winner.slot] {
            let txn = self.txn_mut(slot);
            if !std::mem::replace(&mut txn.wakes, true) {
                txn.on_doom.push(waker());
            }
        }
        Ok(Some(winner.id))
    }

    /// Whether one that waits for another has to go on waiting.
    pub(crate) fn stalls(&self, waiter: TxnId, winner: TxnId) -> bool {
        self.phase(waiter) == Some(Phase::Active) && self.stands(winner)
    }
}
