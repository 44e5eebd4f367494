//! Plain changes of names and attributes that have been performed, and of which the kernel may not know yet.
//!
//! The answer to such a change is on its way for a moment, and for long on a busy machine.  All that time whoever asks
//! the kernel sees what was before: a name that it has cached, or that it has cached to stand for nothing, an old mode.  A
//! transaction asks the daemon, and sees what is.  So before it ends it waits until what it has seen has *landed*
//! ([`Volume::land_seen`]); else a program could look for what it has told of, and not find it.
//!
//! A call that changes names has their directory locked from before its request until it is over, one that changes
//! attributes its inode (`i_rwsem`).  So there is one at the most for each of these, and it is over when
//! - the next one in the same place asks for something: it is only performed when it has the lock;
//! - its thread asks for another change;
//! - a barrier has returned ([`Caches::barrier`], [`Caches::file_barrier`]).
//!
//! **Why nobody waits in a circle.**  A barrier waits for whoever has the lock.  He may be held for the very transaction that waits
//! here, if it is aged; but then he has asked already, and that is the first of the above.  And it does not wait for ever.
//!
//! What is in flight in content is in [`inode_locks`](crate::inode_locks).
//!
//! [`Caches::barrier`]: crate::publication::Caches::barrier
//! [`Caches::file_barrier`]: crate::publication::Caches::file_barrier

use crate::inode_locks::Ticket;
use crate::plain::{Change, sys};
use crate::volume::Volume;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};
use systx_base::{Oid, TxnId};
use systx_store::io::HostId;
use systx_txn::ObjectRef;

/// How long a transaction waits: longer than an answer takes to arrive on the busiest machine.
const LANDING: Duration = Duration::from_secs(2);

/// Calls that are remembered in any case.
const MANY: usize = 64;

/// Beyond that, those that are so old are over.
const OLD: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Landing {
    state: Mutex<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    last: u64,
    /// By the directory whose names are changed, or the inode whose attributes are.
    calls: HashMap<Oid, Call>,
    /// The last call of each thread, and where.
    threads: HashMap<u32, (u64, Vec<Oid>)>,
    /// When so many are remembered, old ones are forgotten.
    many: usize,
}

#[derive(Clone)]
struct Call {
    number: u64,
    host: HostId,
    what: What,
    thread: u32,
    since: Instant,
}

#[derive(Clone)]
enum What {
    /// These, in the directory.
    Names(Vec<Box<[u8]>>),
    Attributes,
}

/// Where the kernel has a lock for a change, and what is changed there.
fn places<'a>(change: &'a Change<'_>) -> impl Iterator<Item = (Oid, What)> + 'a {
    let names = |dir: Oid| {
        let of_it = |o: &ObjectRef<'_>| match *o {
            ObjectRef::Entry { dir: of, name } if of == dir => Some(name.into()),
            _ => None,
        };
        What::Names(change.writes.iter().filter_map(of_it).collect())
    };
    let is_attr = |o: &ObjectRef<'_>| matches!(o, ObjectRef::Attr(_));
    // What is stored in a mapping is written back without the lock.
    let is_content = |o: &ObjectRef<'_>| matches!(o, ObjectRef::Pages { .. });
    let attributes = change.writes.iter().any(is_attr) && !change.writes.iter().any(is_content);
    let subject = change.subject.filter(|_| attributes);
    let dirs = change.places.iter().map(move |(dir, _)| (*dir, names(*dir)));
    dirs.chain(subject.map(|(inode, _)| (inode, What::Attributes)))
}

impl Landing {
    pub fn new() -> Landing {
        let state = State { many: MANY, ..State::default() };
        Landing { state: Mutex::new(rank::LEAF, state), changed: Event::new() }
    }

    /// The request of a change is here: others in the same places are over, and so is what its thread did before.
    pub fn asks(&self, change: &Change<'_>) {
        let mut state = self.state.lock();
        let before = state.calls.len();
        for (place, _) in places(change) {
            state.calls.remove(&place);
        }
        // Threads that the kernel cannot name here are all 0.
        if change.by.tid != 0
            && let Some((number, places)) = state.threads.remove(&change.by.tid)
        {
            places.iter().for_each(|place| state.is_over(*place, number));
        }
        if state.calls.len() != before {
            self.changed.notify_all();
        }
    }

    /// It is performed now: who sees it finds this.
    pub fn performs(&self, change: &Change<'_>) {
        let host = |place| {
            let mut all = change.places.iter().chain(&change.subject);
            let (_, fd) = all.find(|(oid, _)| *oid == place)?;
            sys::stat(*fd).ok().map(|seen| seen.id)
        };
        let here: Vec<_> =
            places(change).filter_map(|(p, what)| Some((p, host(p)?, what))).collect();
        if here.is_empty() {
            return;
        }
        let (mut state, since) = (self.state.lock(), Instant::now());
        state.last += 1;
        let (number, thread) = (state.last, change.by.tid);
        state.threads.insert(thread, (number, here.iter().map(|(place, ..)| *place).collect()));
        for (place, host, what) in here {
            state.calls.insert(place, Call { number, host, what, thread, since });
        }
        if state.calls.len() > state.many {
            state.calls.retain(|_, call| call.since.elapsed() < OLD);
            let State { calls, threads, .. } = &mut *state;
            threads.retain(|_, (number, places)| {
                places.iter().any(|p| calls.get(p).is_some_and(|c| c.number == *number))
            });
            state.many = MANY.max(2 * state.calls.len());
        }
    }

    fn all(&self) -> Vec<(Oid, Call)> {
        self.state.lock().calls.iter().map(|(place, call)| (*place, call.clone())).collect()
    }

    fn landed(&self, place: Oid, number: u64) {
        self.state.lock().is_over(place, number);
        self.changed.notify_all();
    }

    /// Whether it was over in time.
    fn wait(&self, place: Oid, number: u64, until: Instant) -> bool {
        let mut state = self.state.lock();
        while state.calls.get(&place).is_some_and(|call| call.number == number) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut state, left);
        }
        true
    }
}

impl State {
    fn is_over(&mut self, place: Oid, number: u64) {
        if self.calls.get(&place).is_some_and(|call| call.number == number) {
            self.calls.remove(&place);
        }
    }
}

impl Volume {
    /// Waits until the kernel knows of every plain change of a name or of attributes that a transaction may have seen; one of
    /// a snapshot, which is in no conflict with anybody, may have seen `all`.  No longer than a moment: what an answer
    /// takes to arrive, nobody has to be sure of.
    ///
    /// Hold no lock that a request of a plain program may need.
    pub fn land_seen(&self, owner: TxnId, all: bool) {
        let engine = &self.engine;
        let saw = |(place, call): &(Oid, Call)| match &call.what {
            _ if all => true,
            What::Attributes => engine.holds(owner, ObjectRef::Attr(*place)),
            What::Names(names) => {
                engine.holds(owner, ObjectRef::List(*place))
                    || names
                        .iter()
                        .any(|name| engine.holds(owner, ObjectRef::Entry { dir: *place, name }))
            }
        };
        let seen: Vec<_> = self.landing.all().into_iter().filter(saw).collect();
        let until = Instant::now() + LANDING;
        for (place, call) in &seen {
            self.send_landing(*place, call);
        }
        for (place, call) in &seen {
            if !self.landing.wait(*place, call.number, until) {
                tracing::warn!(
                    ?place,
                    thread = call.thread,
                    "a change that was seen may not be known everywhere"
                );
            }
        }
    }

    /// A barrier, in a thread.
    fn send_landing(&self, place: Oid, call: &Call) {
        let known = self.guarded_now().into_iter().find_map(|guarded| {
            let node = guarded.plain.node_of(call.host)?;
            Some((guarded, node))
        });
        let Some((guarded, node)) = known else {
            // What the kernel does not know it does not show.
            self.landing.landed(place, call.number);
            return;
        };
        let (landing, number) = (Arc::clone(&self.landing), call.number);
        let barrier = move || {
            let passed = if guarded.plain.is_dir(node) {
                guarded.caches.barrier(node)
            } else {
                guarded.caches.file_barrier(node, Ticket::PASS)
            };
            match passed {
                Ok(()) => landing.landed(place, number),
                Err(errno) => tracing::warn!(%errno, ?node, "no barrier"),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("landing".into()).spawn(barrier) {
            tracing::warn!(%error, "no thread for a barrier");
        }
    }
}
