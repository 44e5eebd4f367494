//! A watch over the connections of this process.  A request that is never answered, by a fault of
//! ours, would keep its client in the kernel for ever, where not even SIGKILL reaches it.
//!
//! - What a worker has had in service for [`Patience::warn`] is named in the log, again whenever
//!   its time has doubled, and once more when it is over.
//! - What is in service for [`Patience::request`], every worker of a queue for
//!   [`Patience::exhausted`], or requests that the kernel holds for that long while no worker has
//!   one (a lost answer): the connection is *cut off*.  Its clients get `ECONNABORTED`, it takes no
//!   request any more, and the workers that are stuck are given up.
//!
//! Not a fault is waiting for a file lock, whose request gives signs of life ([`Post::beat`]), and
//! waiting for a commit that is being installed ([`Requests::waits`]): the limits are longer then.
//!
//! `Judge` decides, from what it is shown and the time it is told, with no clock of its own.  One
//! thread per process looks, every [`LOOK`], while there are connections.  If it could not look for
//! longer (the process was stopped, the machine busy), that time does not count: nobody was served.
//!
//! [`Post::beat`]: crate::post::Post::beat
//! [`Requests::waits`]: systx_vfs::api::Requests::waits

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use systx_base::sync::{Event, Mutex, rank};

use crate::config::Patience;
use crate::connection::Shared;
use crate::post::{Group, Seen};
use crate::wire::Opcode;

/// How often connections are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// What is allowed while the view waits for a commit, as a multiple.
const LONGER: u32 = 6;

/// A connection at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    /// Its workers; `None`: it changed just now.
    pub posts: Vec<Option<Seen>>,
    /// The view waits for something that is not a fault.
    pub waits: bool,
    /// Requests without an answer as the kernel counts them; known only while nobody serves.
    pub unanswered: Option<u64>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// In service for long.
    Slow(Slow),
    /// It came to an end after all.
    Over(Slow),
    /// The kernel has requests that no worker has.
    Unserved(Duration),
    /// The connection is to be cut off.
    Cut(Reason),
}

/// One request in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slow {
    pub opcode: u32,
    pub node: u64,
    pub thread: i32,
    pub time: Duration,
}

/// Why a connection is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Request(Slow),
    Exhausted(Slow),
    Unserved(Duration),
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Opcode::from_wire(self.opcode) {
            Some(opcode) => write!(f, "{opcode:?}")?,
            None => write!(f, "request {}", self.opcode)?,
        }
        let (node, thread, seconds) = (self.node, self.thread, self.time.as_secs());
        write!(f, " of node {node} in thread {thread} for {seconds} s")
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Request(slow) => write!(f, "a request is not answered: {slow}"),
            Reason::Exhausted(slow) => write!(f, "no worker is left, the last one: {slow}"),
            Reason::Unserved(time) => {
                write!(f, "requests wait for {} s while every worker is idle", time.as_secs())
            }
        }
    }
}

/// The memory between looks at one connection.
pub(crate) struct Judge {
    patience: Patience,
    now: Duration,
    /// By thread.
    turns: HashMap<i32, Turn>,
    /// Sum of all turns, and since when it and the requests without an answer stand still.
    unserved: Option<(u64, Duration)>,
    warned_unserved: bool,
}

struct Turn {
    seen: Seen,
    since: Duration,
    /// The time that is next worth a word.
    word: Duration,
}

impl Judge {
    pub fn new(patience: Patience) -> Self {
        Judge {
            patience,
            now: Duration::ZERO,
            turns: HashMap::new(),
            unserved: None,
            warned_unserved: false,
        }
    }

    /// Looks at a connection, `passed` after the last time.
    pub fn look(&mut self, passed: Duration, picture: &Picture) -> Vec<Finding> {
        self.now += passed;
        let mut findings = Vec::new();
        self.note(picture, &mut findings);
        let factor = if picture.waits { LONGER } else { 1 };
        let cut = self.request(factor).or_else(|| self.exhausted(picture, factor));
        let unserved = self.unserved(picture, &mut findings);
        findings.extend(cut.or(unserved).map(Finding::Cut));
        findings
    }

    /// Brings `turns` up to date, with a word for those that are slow.
    fn note(&mut self, picture: &Picture, findings: &mut Vec<Finding>) {
        let (now, warn) = (self.now, self.patience.warn);
        let busy = |seen: &&Seen| seen.turn % 2 == 1;
        let current: HashMap<i32, Seen> =
            picture.posts.iter().flatten().filter(busy).map(|s| (s.thread, *s)).collect();
        self.turns.retain(|thread, turn| {
            let stays = current.get(thread) == Some(&turn.seen);
            if !stays && turn.word > warn {
                findings.push(Finding::Over(turn.slow(now)));
            }
            stays
        });
        for (thread, seen) in current {
            let turn = self.turns.entry(thread).or_insert(Turn { seen, since: now, word: warn });
            let slow = turn.slow(now);
            if slow.time >= turn.word {
                turn.word = slow.time * 2;
                findings.push(Finding::Slow(slow));
            }
        }
    }

    fn request(&self, factor: u32) -> Option<Reason> {
        let limit = self.patience.request * factor;
        let slow = self.turns.values().map(|turn| turn.slow(self.now));
        slow.filter(|slow| slow.time >= limit).max_by_key(|slow| slow.time).map(Reason::Request)
    }

    /// A group in which everybody is stuck.
    fn exhausted(&self, picture: &Picture, factor: u32) -> Option<Reason> {
        let limit = self.patience.exhausted * factor;
        // The one that was taken last, by group; `None` if somebody is not stuck.
        let mut groups: HashMap<Group, Option<Slow>> = HashMap::new();
        for seen in picture.posts.iter() {
            // One that changes is not stuck; which group it is in does not matter for a look.
            let seen = seen.as_ref()?;
            let turn = self.turns.get(&seen.thread).map(|turn| turn.slow(self.now));
            let stuck = turn.filter(|slow| slow.time >= limit);
            let last = groups.entry(seen.group).or_insert(stuck);
            *last = match (*last, stuck) {
                (Some(a), Some(b)) => Some(if b.time < a.time { b } else { a }),
                _ => None,
            };
        }
        groups.remove(&Group::Alone);
        groups.into_values().flatten().next().map(Reason::Exhausted)
    }

    fn unserved(&mut self, picture: &Picture, findings: &mut Vec<Finding>) -> Option<Reason> {
        let idle = picture.posts.iter().all(|seen| seen.is_some_and(|seen| seen.turn % 2 == 0));
        if !idle || picture.unanswered.unwrap_or(0) == 0 {
            self.unserved = None;
            self.warned_unserved = false;
            return None;
        }
        let served = picture.posts.iter().flatten().map(|seen| seen.turn).sum();
        let since = match self.unserved {
            Some((before, since)) if before == served => since,
            _ => {
                self.warned_unserved = false;
                self.now
            }
        };
        self.unserved = Some((served, since));
        let time = self.now - since;
        if time >= self.patience.warn && !self.warned_unserved {
            self.warned_unserved = true;
            findings.push(Finding::Unserved(time));
        }
        (time >= self.patience.exhausted).then_some(Reason::Unserved(time))
    }
}

impl Turn {
    fn slow(&self, now: Duration) -> Slow {
        let Seen { opcode, node, thread, .. } = self.seen;
        Slow { opcode, node, thread, time: now - self.since }
    }
}

// ---- the thread --------------------------------------------------------------------------------

/// The connections of this process.  Lock order: a leaf, never held while one is looked at.
struct Register {
    state: Mutex<State>,
    changed: Event,
}

struct State {
    connections: Vec<Weak<Shared>>,
    /// The one that is being looked at.
    at: Option<Weak<Shared>>,
    running: bool,
}

static REGISTER: Register = Register {
    state: Mutex::new(rank::LEAF, State { connections: Vec::new(), at: None, running: false }),
    changed: Event::new(),
};

/// Watches a connection until [`unwatch`].
pub(crate) fn watch(shared: &Arc<Shared>) -> std::io::Result<()> {
    let mut state = REGISTER.state.lock();
    if !state.running {
        std::thread::Builder::new().name("fuse-watch".into()).spawn(run)?;
        state.running = true;
    }
    state.connections.push(Arc::downgrade(shared));
    Ok(())
}

/// Returns when nobody looks at the connection any more.
pub(crate) fn unwatch(shared: &Arc<Shared>) {
    let this = Arc::downgrade(shared);
    let mut state = REGISTER.state.lock();
    state.connections.retain(|c| !c.ptr_eq(&this));
    REGISTER.changed.notify_all();
    while state.at.as_ref().is_some_and(|at| at.ptr_eq(&this)) {
        REGISTER.changed.wait(&mut state);
    }
}

/// Ends with the last connection.
fn run() {
    let mut last = Instant::now();
    let mut state = REGISTER.state.lock();
    loop {
        if state.connections.is_empty() {
            state.running = false;
            return;
        }
        let early = LOOK.saturating_sub(last.elapsed());
        if !early.is_zero() {
            REGISTER.changed.wait_for(&mut state, early);
            continue;
        }
        let passed = last.elapsed().min(LOOK * 2);
        last = Instant::now();
        for connection in state.connections.clone() {
            state.at = Some(connection.clone());
            drop(state);
            if let Some(shared) = connection.upgrade() {
                shared.look(passed);
            }
            state = REGISTER.state.lock();
            state.at = None;
            REGISTER.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
