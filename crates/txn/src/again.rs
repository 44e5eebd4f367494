//! Attempts after a loss: in which order those begin that have lost over the same.
//!
//! All who lost to one transaction would begin again when it ends, and all but the strongest lose
//! once more: of N that want one thing, N - 1 attempts for each commit. So an attempt stands in
//! line for the parts of the volume over which those before it lost, and begins when nobody
//! stronger ([`crate::ContentionPolicy`]) is in line for the same, and nobody from it is running.
//! It leaves the line when it is decided, has lost, or has ended.
//!
//! This gives way only, and forbids nothing: each waits for a bounded time and begins then in any
//! case; who wins is decided as ever. Who waits holds nothing. It waits for running transactions,
//! and for stronger ones that wait; of these somebody who waits for the end of another one than it
//! does is not in its way. So no circle.
//!
//! So does the first attempt of a thread that keeps losing, at what it has lost over before.
//!
//! Beside the line it waits for running transactions that have now what it lost over, and are
//! stronger.  One of those that sleeps ([`crate::Engine::defer_while`]) is not waited for: it may
//! wait for the one in line.
//!
//! Each is woken when the next stronger one leaves, and by nobody else: not all of them by every
//! commit.

use crate::policy::Contender;
use crate::scope::Part;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use systx_base::TxnId;
use systx_base::sync::Event;

/// An attempt in line.
pub(crate) struct Entry {
    pub(crate) contender: Contender,
    /// Over which it lost.
    pub(crate) parts: Vec<Part>,
    /// Whom it lost to, until it has had its turn.
    pub(crate) winner: Option<TxnId>,
    /// Whose leaving wakes it.
    pub(crate) behind: Option<TxnId>,
    /// It has had its turn.
    pub(crate) runs: bool,
    /// Whom it waits for at this moment.
    pub(crate) waits_for: Option<TxnId>,
    pub(crate) turn: Arc<Event>,
}

impl Entry {
    pub(crate) fn meets(&self, other: &Entry) -> bool {
        self.parts.iter().any(|mine| other.parts.iter().any(|theirs| mine.overlaps(theirs)))
    }
}

/// The attempts of a volume that lost before: those that are to begin, and those that have.
#[derive(Default)]
pub(crate) struct Again {
    pub(crate) line: HashMap<TxnId, Entry>,
    /// Work of attempts that lost, by the timestamp of the first of them, where it counts.
    karma: BTreeMap<u64, u64>,
}

/// Losers whose work is remembered for their next attempts.
const KARMA_MAX: usize = 1024;

impl Again {
    pub(crate) fn has_turn(&mut self, id: TxnId) {
        self.line.entry(id).and_modify(|me| (me.runs, me.winner) = (true, None));
    }

    /// It is as urgent as this now, if that is known.
    pub(crate) fn becomes(&mut self, id: TxnId, urgency: Option<i32>) {
        if let (Some(me), Some(urgency)) = (self.line.get_mut(&id), urgency) {
            me.contender.priority = urgency;
        }
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
