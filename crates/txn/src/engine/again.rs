//! Attempts after a loss, for callers.

use super::Engine;
use crate::again::Entry;
use crate::object::{Conflict, Opponent};
use crate::scope::Part;
use crate::state::InTheWay;
use crate::terms::BeginOptions;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::TxnId;
use systx_base::sync::Event;

/// The place in line of an attempt.  Dropping it gives that up, if it has not begun.
#[must_use = "dropping it gives the place up"]
pub struct Attempt<'e> {
    engine: &'e Engine,
    id: TxnId,
    /// It has waited for somebody.
    pub waited: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = self.engine.state.lock();
        if state.units.status(self.id).is_none() {
            state.again.leave(self.id);
        }
    }
}

/// How long an attempt waits for its turn.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// At the most.
    pub limit: Duration,
    /// Whether the client is still there: asked every [`Patience::LOOK`].
    pub goes_on: &'a dyn Fn() -> bool,
}

impl Patience<'_> {
    /// How often somebody who waits looks around.
    pub const LOOK: Duration = Duration::from_millis(50);

    /// So long, whatever becomes of the client.
    pub fn of(limit: Duration) -> Patience<'static> {
        Patience { limit, goes_on: &|| true }
    }
}

impl Engine {
    /// Puts the next attempt at what has `lost`, the last time last, in line with others that lost
    /// over the same; it is to begin as `id` and with these options. Waits until whom it lost to
    /// has ended, nobody stronger has what it lost over, and it is its turn.
    ///
    /// The caller must hold no lock that others need to end.
    pub fn await_turn(
        &self,
        id: TxnId,
        options: &BeginOptions,
        lost: &[Conflict],
        patience: Patience<'_>,
    ) -> Attempt<'_> {
        // Another attempt lets it end also if it would win by now.
        let winner = match lost.last().map(|lost| lost.opponent) {
            Some(Opponent::Txn(winner)) if options.timestamp.is_some() => Some(winner),
            _ => None,
        };
        let mut parts: Vec<Part> = lost.iter().map(|lost| Part::of(lost.object.as_ref())).collect();
        parts.sort();
        parts.dedup();
        let turn = Arc::new(Event::new());
        let begun = Instant::now();
        // It conflicts here and now, so it is as urgent as its thread is now.
        let urgency = || options.follows.as_ref().and_then(|who| who.now());
        let now = urgency();
        let mut state = self.state.lock();
        let mut contender = state.contender_of(id, options);
        contender.priority = now.unwrap_or(contender.priority);
        let (behind, waits_for, runs, turns) = (None, None, false, Arc::clone(&turn));
        let entry = Entry { contender, parts, winner, behind, waits_for, runs, turn: turns };
        state.again.line.insert(id, entry);
        let (mut waited, mut looked, mut last_look) = (false, Vec::new(), begun);
        loop {
            let left = patience.limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            let slice = left.min(Patience::LOOK);
            match state.in_the_way(id, lost, &*self.policy, &looked) {
                None => break,
                Some(InTheWay::Look(stronger)) => {
                    drop(state);
                    let sleeps = (stronger.look)();
                    looked.push(stronger.id);
                    state = self.state.lock();
                    if sleeps {
                        state.defer(stronger.id);
                    }
                    continue;
                }
                Some(InTheWay::InLine(_)) => turn.wait_for(&mut state, slice),
                Some(InTheWay::Runs(_)) => self.ended.wait_for(&mut state, slice),
            };
            waited = true;
            if last_look.elapsed() >= Patience::LOOK {
                (last_look, looked) = (Instant::now(), Vec::new());
                drop(state);
                let (goes_on, now) = ((patience.goes_on)(), urgency());
                state = self.state.lock();
                if !goes_on {
                    break;
                }
                state.again.becomes(id, now);
            }
        }
        state.again.has_turn(id);
        drop(state);
        Attempt { engine: self, id, waited }
    }

    /// Whom an attempt waits for that is in line, see [`Engine::await_turn`].
    pub fn waits_for_turn(&self, id: TxnId) -> Option<TxnId> {
        self.state.lock().again.line.get(&id).filter(|me| !me.runs)?.waits_for
    }
}
