//! Attempts after a loss: in which order those begin that have lost over the same.
//!
//! All who lost to one transaction would begin again when it ends, and all but the strongest lose once more: of N that want
//! one thing, N - 1 attempts for each commit.  So an attempt stands in line for the parts of the volume over which those before it
//! lost, and begins when nobody stronger ([`ContentionPolicy`]) is in line for the same, and nobody from it is running.  It leaves the line when
//! it is decided, has lost, or has ended.
//!
//! This gives way only, and forbids nothing: each waits for a bounded time and begins then in any case; who wins is decided as
//! ever.  Who waits holds nothing.  It waits for running transactions, and for stronger ones that wait; of these somebody who waits for
//! the end of another one than it does is not in its way.  So no circle.
//!
//! Each is woken when the next stronger one leaves, and by nobody else: not all of them by every commit.

use crate::engine::{BeginOptions, Engine};
use crate::object::{Conflict, ObjectRef, Opponent};
use crate::policy::{Contender, ContentionPolicy};
use crate::scope::Part;
use crate::state::State;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::TxnId;
use systx_base::sync::Event;

struct Entry {
    contender: Contender,
    /// Over which it lost.
    parts: Vec<Part>,
    /// Whom it lost to, until it has had its turn.
    winner: Option<TxnId>,
    /// Whose leaving wakes it.
    behind: Option<TxnId>,
    /// It has had its turn.
    runs: bool,
    turn: Arc<Event>,
}

impl Entry {
    fn meets(&self, other: &Entry) -> bool {
        self.parts.iter().any(|mine| other.parts.iter().any(|theirs| mine.overlaps(theirs)))
    }
}

/// The attempts of a volume that lost before: those that are to begin, and those that have.
#[derive(Default)]
pub(crate) struct Again {
    line: HashMap<TxnId, Entry>,
    /// Work of attempts that lost, by the timestamp of the first of them, where it counts.
    karma: BTreeMap<u64, u64>,
}

/// Losers whose work is remembered for their next attempts.
const KARMA_MAX: usize = 1024;

impl Again {
    fn has_turn(&mut self, id: TxnId) {
        self.line.entry(id).and_modify(|me| (me.runs, me.winner) = (true, None));
    }

    /// It is in nobody's way any more.
    pub(crate) fn leave(&mut self, id: TxnId) {
        if self.line.remove(&id).is_some() {
            let behind = self.line.values().filter(|e| e.behind == Some(id));
            behind.for_each(|e| e.turn.notify_all());
        }
    }

    /// What the attempts that began at this moment have done so far.
    pub(crate) fn karma(&self, first: Option<u64>) -> u64 {
        first.and_then(|first| self.karma.get(&first)).copied().unwrap_or(0)
    }

    /// Remembers the work of an attempt that lost, and of those before it.
    pub(crate) fn lost(&mut self, first: u64, work: u64) {
        self.karma.insert(first, work);
        // Who never tried again.
        if self.karma.len() > KARMA_MAX {
            self.karma.pop_first();
        }
    }

    /// The next attempt has begun, and knows it.
    pub(crate) fn took_over(&mut self, first: u64) {
        self.karma.remove(&first);
    }

    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }
}

impl State {
    /// Notes the next one that is in the way of an attempt; whether there is one.
    fn waits_again(&mut self, id: TxnId, policy: &dyn ContentionPolicy) -> bool {
        let line = &self.again.line;
        let Some(me) = line.get(&id) else { return false };
        let others = || line.values().filter(|e| e.contender.id != id && e.meets(me));
        let wins = |a: &Entry, b: &Entry| policy.challenger_wins(&a.contender, &b.contender);
        let waits_for_another =
            |e: &Entry| e.winner != me.winner && e.winner.is_some_and(|winner| self.stands(winner));
        let stronger = others().filter(|e| wins(e, me) && !waits_for_another(e));
        let next = stronger.reduce(|a, b| if wins(a, b) { b } else { a });
        let in_the_way = |e: &&Entry| e.runs && !me.contender.outranks(&e.contender);
        let next = next.or_else(|| others().find(in_the_way)).map(|e| e.contender.id);
        self.again.line.entry(id).and_modify(|me| me.behind = next);
        next.is_some()
    }
}

impl Part {
    /// What an object is part of.
    fn of(o: ObjectRef<'_>) -> Part {
        match o {
            ObjectRef::Entry { dir, name } => Part::Name { dir, name: name.into() },
            ObjectRef::List(dir) => Part::Names(dir),
            ObjectRef::Attr(oid) | ObjectRef::Size(oid) | ObjectRef::Pages { oid, .. } => {
                Part::Inode(oid)
            }
        }
    }
}

/// The place in line of an attempt.  Dropping it gives that up, if it has not begun.
#[must_use = "dropping it gives the place up"]
pub struct Attempt<'e> {
    engine: &'e Engine,
    id: TxnId,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = self.engine.state.lock();
        if state.status(self.id).is_none() {
            state.again.leave(self.id);
        }
    }
}

impl Engine {
    /// Puts the next attempt at what has `lost`, the last time last, in line with others that lost over the same; it is to begin as `id`
    /// and with these options.  Waits until whom it lost to has ended and it is its turn, at most `limit` long.
    ///
    /// The caller must hold no lock that others need to end.
    pub fn await_turn(
        &self,
        id: TxnId,
        options: &BeginOptions,
        lost: &[Conflict],
        limit: Duration,
    ) -> Attempt<'_> {
        let winner = match lost.last().map(|lost| lost.opponent) {
            Some(Opponent::Txn(winner)) => Some(winner),
            _ => None,
        };
        let mut parts: Vec<Part> = lost.iter().map(|lost| Part::of(lost.object.as_ref())).collect();
        parts.sort();
        parts.dedup();
        let turn = Arc::new(Event::new());
        let begun = Instant::now();
        let mut state = self.state.lock();
        let contender = state.contender_of(id, options);
        let (behind, runs) = (None, false);
        let entry = Entry { contender, parts, winner, behind, runs, turn: Arc::clone(&turn) };
        state.again.line.insert(id, entry);
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            if state.waits_again(id, &*self.policy) {
                turn.wait_for(&mut state, left);
            } else if winner.is_some_and(|winner| state.stands(winner)) {
                self.ended.wait_for(&mut state, left);
            } else {
                break;
            }
        }
        state.again.has_turn(id);
        drop(state);
        Attempt { engine: self, id }
    }
}
