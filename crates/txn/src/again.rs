//! Attempts after a loss: in which order those begin that have lost over the same.
//!
//! All who lost to one transaction would begin again when it ends, and all but the strongest lose
//! once more: of N that want one thing, N - 1 attempts for each commit. So an attempt stands in
//! line for the parts of the volume over which those before it lost, and begins when nobody
//! stronger ([`ContentionPolicy`]) is in line for the same, and nobody from it is running. It
//! leaves the line when it is decided, has lost, or has ended.
//!
//! This gives way only, and forbids nothing: each waits for a bounded time and begins then in any
//! case; who wins is decided as ever. Who waits holds nothing. It waits for running transactions,
//! and for stronger ones that wait; of these somebody who waits for the end of another one than it
//! does is not in its way. So no circle.
//!
//! So does the first attempt of a thread that keeps losing, at what it has lost over before.
//!
//! Beside the line it waits for running transactions that have now what it lost over, and are
//! stronger.  One of those that sleeps ([`Engine::defer_while`]) is not waited for: it may wait for
//! the one in line.
//!
//! Each is woken when the next stronger one leaves, and by nobody else: not all of them by every
//! commit.

use crate::engine::{BeginOptions, Engine};
use crate::object::{Conflict, ObjectRef, Opponent};
use crate::policy::{Contender, ContentionPolicy};
use crate::scope::Part;
use crate::state::{State, Stronger};
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
    /// Whom it waits for at this moment.
    waits_for: Option<TxnId>,
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
    /// It has waited for somebody.
    pub waited: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = self.engine.state.lock();
        if state.status(self.id).is_none() {
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

/// What is in the way of an attempt.
enum InTheWay {
    /// One in line, which wakes it.
    InLine(TxnId),
    /// One that runs.
    Runs(TxnId),
    /// The same, if it does not sleep.
    Look(Stronger),
}

impl State {
    fn in_the_way(
        &mut self,
        id: TxnId,
        lost: &[Conflict],
        policy: &dyn ContentionPolicy,
        looked: &[TxnId],
    ) -> Option<InTheWay> {
        let found = if self.waits_again(id, policy) {
            self.again.line.get(&id).and_then(|me| me.behind).map(InTheWay::InLine)
        } else {
            let me = self.again.line.get(&id)?;
            let winner = me.winner.filter(|winner| self.stands(*winner)).map(InTheWay::Runs);
            let has = || self.stronger_holder(&me.contender, lost, policy);
            winner.or_else(|| {
                Some(match has()? {
                    (id, Some(look)) if !looked.contains(&id) => {
                        InTheWay::Look(Stronger { id, look })
                    }
                    (id, _) => InTheWay::Runs(id),
                })
            })
        };
        let waits_for = match &found {
            Some(InTheWay::InLine(id) | InTheWay::Runs(id)) => Some(*id),
            Some(InTheWay::Look(_)) | None => None,
        };
        self.again.line.entry(id).and_modify(|me| me.waits_for = waits_for);
        found
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
        let mut state = self.state.lock();
        let contender = state.contender_of(id, options);
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
                let goes_on = (patience.goes_on)();
                state = self.state.lock();
                if !goes_on {
                    break;
                }
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
