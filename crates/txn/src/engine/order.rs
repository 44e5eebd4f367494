//! Orders, for callers.

use super::Engine;
use crate::order::{Order, OrderError, Turn};
use std::sync::Arc;
use std::time::Duration;
use systx_base::{OrderName, Orders, TxnId};

/// An order that nobody may join, until this is dropped.
#[must_use = "dropping it lets others join"]
pub struct Seized<'e> {
    engine: &'e Engine,
    at: u32,
}

impl Drop for Seized<'_> {
    fn drop(&mut self) {
        self.engine.state.lock().units.orders.give_back(self.at);
    }
}

impl Engine {
    /// Gives a transaction that has just begun its place in an order, whose numbers are in this
    /// table.
    ///
    /// # Errors
    /// See [`OrderError`]; the transaction stays as it was.
    pub fn enlist(&self, t: TxnId, order: &Order, numbers: &Arc<Orders>) -> Result<(), OrderError> {
        let ended = self.ended.clone();
        let wake = Box::new(move |_, _: &_| ended.notify_all());
        self.state.lock().enlist(t, order, numbers, wake)
    }

    /// The place that a transaction has in an order: what its record has to say, for its number to
    /// be used up.
    pub fn place_in_order(&self, t: TxnId) -> Option<Order> {
        self.state.lock().units.place_in_order(t)
    }

    /// Whether it may be decided.  Once it may, it may until it ends.
    pub fn turn(&self, t: TxnId) -> Turn {
        self.state.lock().units.turn(t)
    }

    /// As [`Engine::turn`], after waiting for it at most `limit` long.
    ///
    /// Others wait for who waits here if it is a member with a lower number, and for their numbers
    /// only; the caller must hold no lock that the others need.
    pub fn wait_turn(&self, t: TxnId, limit: Duration) -> Turn {
        self.wait_while(limit, |state| matches!(state.units.turn(t), Turn::After { .. }));
        self.turn(t)
    }

    /// Keeps everybody out of an order, for a reset that is known as `t`.
    ///
    /// # Errors
    /// `Taken`: there are members, or another reset; `Full`.
    pub fn seize_order(
        &self,
        t: TxnId,
        order: &OrderName,
        numbers: &Arc<Orders>,
    ) -> Result<Seized<'_>, OrderError> {
        let at = self.state.lock().units.orders.seize(t, order, numbers)?;
        Ok(Seized { engine: self, at })
    }
}
