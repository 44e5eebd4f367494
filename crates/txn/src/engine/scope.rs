//! Scopes, for callers.

use super::Engine;
use crate::scope::{Ahead, Claim, Claimant, InLine};
use std::time::Duration;
use systx_base::TxnId;

impl Engine {
    /// Puts a transaction that is still to begin, `who`, in line with a scope: at the end, or at a
    /// place that an earlier call returned (`since`).  That is taken over with other claims, from
    /// the same one, or from another one that was begun and has to be aborted.  Returns its place.
    ///
    /// It leaves by [`Engine::leave_line`], or with the end or the loss of the transaction that
    /// [`Engine::begin`] makes of it.
    pub fn line_up(&self, who: Claimant, claims: Vec<Claim>, since: Option<u64>) -> u64 {
        let place = self.state.lock().line_up(who, claims, since);
        if since.is_some() {
            // It may claim less than before.
            self.ended.notify_all();
        }
        place
    }

    /// Waits at most `limit` for the turn of one in line; from then on what it claims is kept for
    /// it.
    ///
    /// Who waits holds nothing but its place; the caller must hold no lock that others need to end.
    ///
    /// # Errors
    /// Who is ahead.
    pub fn await_scope(&self, id: TxnId, limit: Duration) -> Result<(), Ahead> {
        self.wait_while(limit, |state| state.units.scopes.ahead(id).is_some());
        self.state.lock().units.scopes.admit(id)
    }

    /// Who is in line and has not had its turn, in that order.
    pub fn in_line(&self) -> Vec<InLine> {
        self.state.lock().units.scopes.waiting()
    }

    /// It waits no more.  Nothing happens if its transaction has begun, or it is not in line.
    pub fn leave_line(&self, id: TxnId) {
        if self.state.lock().leave_line(id) {
            self.ended.notify_all();
        }
    }
}
