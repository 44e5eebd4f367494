//! Transactions that wait for what the engine does not see.

use super::{Look, Phase, State, Stronger, Winner};
use crate::hold::Slot;
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
}
