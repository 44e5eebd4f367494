//! Scopes in the state: what a transaction may not lose, and what it may not touch.

use super::{Fallout, State, side};
use crate::hold::{Flags, Slot};
use crate::object::{Conflict, ObjectRef, Opponent, Side};
use crate::scope::{Claim, Claimant};
use systx_base::TxnId;

impl State {
    /// See [`crate::Engine::line_up`].
    pub(crate) fn line_up(&mut self, who: Claimant, claims: Vec<Claim>, since: Option<u64>) -> u64 {
        debug_assert!(self.find(who.id).is_none(), "a scope comes before its transaction");
        self.scopes.line_up(who, claims, since)
    }

    /// See [`crate::Engine::leave_line`].
    pub(crate) fn leave_line(&mut self, id: TxnId) -> bool {
        self.find(id).is_none() && self.scopes.remove(id)
    }

    /// Whether an access, or a hold, is within the scope of its transaction.
    pub(super) fn in_scope(&self, slot: Slot, o: ObjectRef<'_>, write: bool) -> bool {
        let contender = &self.txn(slot).contender;
        contender.scoped && self.scopes.covers(contender.id, o, write)
    }

    /// In whose scope an object is that a transaction goes for, so that it loses, and whether that
    /// one declared to write it; `sure`: it is in its own as well.
    pub(super) fn claimed(
        &self,
        slot: Slot,
        (o, want, sure): (ObjectRef<'_>, Flags, bool),
    ) -> Option<(TxnId, bool)> {
        let (family, mine) = (self.txn(slot).family, side(want));
        let guest = self.txn(slot).contender.guest;
        // One that has its turn may be about to begin.
        let other = |id: TxnId| self.find(id).is_none_or(|at| self.txn(at).family != family);
        let mut claimants = self.scopes.claimants(o, mine == Side::Write, (guest, sure));
        claimants.find(|(id, _)| other(*id))
    }

    /// Whether a transaction loses by going for what is in the scope of another.
    pub(super) fn trespasses(
        &mut self,
        slot: Slot,
        (o, want, sure): (ObjectRef<'_>, Flags, bool),
        fallout: &mut Fallout,
    ) -> bool {
        let Some((id, write)) = self.claimed(slot, (o, want, sure)) else { return false };
        let (mine, theirs) = (side(want), if write { Side::Write } else { Side::Read });
        self.conflicts += 1;
        let opponent = Opponent::Txn(id);
        self.lose(slot, Conflict { object: o.to_object(), opponent, mine, theirs }, fallout)
    }
}
