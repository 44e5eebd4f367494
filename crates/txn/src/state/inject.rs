//! Transactions that lose because a test wants it, see [`crate::Inject`].
//!
//! They lose as to an opponent: with all that they hold, the object at which it happens included.

use super::{Fallout, Phase, State, side};
use crate::hold::{Flags, Slot};
use crate::object::{Conflict, ObjectRef, Opponent};

impl State {
    /// The transaction has just added an object; whether it loses by that.
    pub(super) fn inject_at(
        &mut self,
        slot: Slot,
        (o, want): (ObjectRef<'_>, Flags),
        fallout: &mut Fallout,
    ) -> bool {
        let txn = self.txn_mut(slot);
        let Some(inject) = txn.inject else { return false };
        txn.added = txn.added.saturating_add(1);
        let me = txn.contender;
        if !inject.strikes_at(me.id, me.age, txn.added) {
            return false;
        }
        let (opponent, mine) = (Opponent::Injected, side(want));
        let why = Conflict { object: o.to_object(), opponent, mine, theirs: mine };
        self.lose(slot, why, fallout)
    }

    /// The transaction is about to be decided.
    pub(super) fn inject_at_end(&mut self, slot: Slot, fallout: &mut Fallout) {
        let txn = self.txn(slot);
        let strikes = txn.inject.is_some_and(|i| i.strikes_at_end(txn.contender.age));
        if !strikes || txn.phase != Phase::Active {
            return;
        }
        // Who holds nothing cannot lose.
        let Some(last) = txn.records.last() else { return };
        let held = self.table.held_of(slot, *last);
        if let Some((object, flags)) = held.into_iter().next() {
            let (opponent, mine) = (Opponent::Injected, side(flags));
            self.lose(slot, Conflict { object, opponent, mine, theirs: mine }, fallout);
        }
    }
}
