//! Plain changes of names, attributes and lengths that have been performed, and of which the kernel
//! may not know yet.
//!
//! The answer to such a change is on its way for a moment, and for long on a busy machine.  All
//! that time whoever asks the kernel sees what was before: a name that it has cached, or that it
//! has cached to stand for nothing, an old mode or length.  A transaction asks the daemon, and sees
//! what is.  So before it ends it waits until what it has seen has *landed*
//! ([`land_seen`](systx_vfs::neighbours::Neighbours::land_seen)); else a program could look
//! for what it has told of, and not find it.
//!
//! A call that changes names has their directory locked from before its request until it is over,
//! one that changes attributes or the length its inode (`i_rwsem`).  So there is one at the most
//! for each of these, and it is over when
//! - the next one in the same place asks for something: it is only performed when it has the lock;
//! - its thread asks for another change;
//! - a barrier has returned ([`Caches::barrier`], [`Caches::file_barrier`]).
//!
//! **Why nobody waits in a circle.**  A barrier waits for whoever has the lock.  He may be held for
//! the very transaction that would wait here, if it is aged: so those do not wait.  And nobody
//! waits for ever.
//!
//! What is in flight in content is in [`inode_locks`](crate::inode_locks).
//!
//! [`Caches::barrier`]: crate::publication::Caches::barrier
//! [`Caches::file_barrier`]: crate::publication::Caches::file_barrier

use crate::change::Change;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::Oid;
use systx_base::sync::{Event, Mutex, rank};
use systx_store::io::HostId;
use systx_txn::ObjectRef;

/// How long a transaction waits: longer than an answer takes to arrive on the busiest machine.
pub(crate) const LANDING: Duration = Duration::from_secs(2);

/// Calls that are remembered in any case.
const MANY: usize = 64;

/// Barriers at once: each takes a thread.
pub(crate) const AT_ONCE: usize = 32;

/// What is so old is over.
const OLD: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Landing {
    state: Mutex<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    last: u64,
    /// By the directory whose names are changed, or the inode whose attributes or length are.
    calls: HashMap<Oid, Arc<Call>>,
    /// The last call of each thread, and where.
    threads: HashMap<u32, (u64, Vec<Oid>)>,
    /// When so many are remembered, old ones are forgotten.
    many: usize,
}

pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) host: HostId,
    pub(crate) what: What,
    pub(crate) thread: u32,
    pub(crate) since: Instant,
}

/// What is changed in one place.
#[derive(Clone, Default)]
pub(crate) struct What {
    /// Names in the directory.
    pub(crate) names: Vec<Box<[u8]>>,
    pub(crate) attributes: bool,
    pub(crate) length: bool,
}

/// Where the kernel has a lock for a change, and what is changed there.
fn places<'a>(change: &'a Change<'_>) -> impl Iterator<Item = (Oid, What)> + 'a {
    let names = |dir: Oid| {
        let of_it = |o: &ObjectRef<'_>| match *o {
            ObjectRef::Entry { dir: of, name } if of == dir => Some(name.into()),
            _ => None,
        };
        change.writes.iter().filter_map(of_it).collect()
    };
    let has = |is: fn(&ObjectRef<'_>) -> bool| change.writes.iter().any(is);
    let length = has(|o| matches!(o, ObjectRef::Size(_)));
    // What is stored in a mapping is written back without the lock, and changes no length.
    let locked = length || !has(|o| matches!(o, ObjectRef::Pages { .. }));
    let attributes = locked && has(|o| matches!(o, ObjectRef::Attr(_)));
    let subject = change.subject.filter(|_| attributes || length);
    let of_it = What { attributes, length, ..What::default() };
    let dirs = change.places.iter();
    let dirs = dirs.map(move |(dir, _)| (*dir, What { names: names(*dir), ..What::default() }));
    dirs.chain(subject.map(move |(inode, _)| (inode, of_it)))
}

/// Whose call it is; 0: that is not known.  Of content it is not: the change is of who has opened
/// the file.
fn thread_of(change: &Change<'_>) -> u32 {
    let content = change.writes.iter().any(|o| matches!(o, ObjectRef::Pages { .. }));
    if content { 0 } else { change.by.tid }
}

impl Landing {
    pub fn new() -> Landing {
        let state = State { many: MANY, ..State::default() };
        Landing { state: Mutex::new(rank::LEAF, state), changed: Event::new() }
    }

    /// The request of a change is here: others in the same places are over, and so is what its
    /// thread did before.
    pub fn asks(&self, change: &Change<'_>) {
        let mut state = self.state.lock();
        let before = state.calls.len();
        for (place, _) in places(change) {
            state.calls.remove(&place);
        }
        let thread = thread_of(change);
        // Threads that the kernel cannot name here are all 0.
        if thread != 0
            && let Some((number, places)) = state.threads.remove(&thread)
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
            all.find(|(oid, _)| *oid == place).map(|(_, found)| found.id())
        };
        let here: Vec<_> =
            places(change).filter_map(|(p, what)| Some((p, host(p)?, what))).collect();
        if here.is_empty() {
            return;
        }
        let (mut state, since) = (self.state.lock(), Instant::now());
        state.last += 1;
        let (number, thread) = (state.last, thread_of(change));
        state.threads.insert(thread, (number, here.iter().map(|(place, ..)| *place).collect()));
        for (place, host, what) in here {
            state.calls.insert(place, Arc::new(Call { number, host, what, thread, since }));
        }
        // Of threads that have ended nobody asks any more.
        if state.size() > state.many {
            state.calls.retain(|_, call| call.since.elapsed() < OLD);
            let State { calls, threads, .. } = &mut *state;
            threads.retain(|_, (number, places)| {
                places.iter().any(|p| calls.get(p).is_some_and(|c| c.number == *number))
            });
            state.many = MANY.max(2 * state.size());
        }
    }

    /// Those that may not be over.
    pub(crate) fn all(&self) -> Vec<(Oid, Arc<Call>)> {
        let state = self.state.lock();
        let recent = state.calls.iter().filter(|(_, call)| call.since.elapsed() < OLD);
        recent.map(|(place, call)| (*place, Arc::clone(call))).collect()
    }

    pub(crate) fn landed(&self, place: Oid, number: u64) {
        self.state.lock().is_over(place, number);
        self.changed.notify_all();
    }

    /// Whether it was over in time.
    pub(crate) fn wait(&self, place: Oid, number: u64, until: Instant) -> bool {
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
    fn size(&self) -> usize {
        self.calls.len().max(self.threads.len())
    }

    fn is_over(&mut self, place: Oid, number: u64) {
        if self.calls.get(&place).is_some_and(|call| call.number == number) {
            self.calls.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Place;
    use std::os::fd::AsFd;
    use systx_vfs::api::Caller;

    const HOME: Oid = Oid(1);
    const AWAY: Oid = Oid(2);

    /// A change of a name in a directory by a thread.
    fn rename(tid: u32, dir: Oid, act: impl FnOnce(&Change<'_>)) {
        let at = std::fs::File::open("/").unwrap();
        let writes = [ObjectRef::Entry { dir, name: b"name" }, ObjectRef::List(dir)];
        let id = crate::sys::stat(&at).unwrap().id;
        let (by, places) = (Caller { uid: 0, gid: 0, tid }, [(dir, Place::Fd(id, at.as_fd()))]);
        let (reads, subject, may_stall) = (&[][..], None, false);
        act(&Change { by, reads, writes: &writes, subject, places: &places, may_stall });
    }

    #[test]
    fn threads_that_have_ended_are_forgotten() {
        let landing = Landing::new();
        (1..10_000).for_each(|tid| perform(&landing, tid, HOME));
        assert!(landing.state.lock().size() < 3 * MANY);
    }

    fn perform(landing: &Landing, tid: u32, dir: Oid) {
        rename(tid, dir, |change| {
            landing.asks(change);
            landing.performs(change);
        });
    }

    fn places_of(landing: &Landing) -> Vec<Oid> {
        let mut places: Vec<Oid> = landing.all().into_iter().map(|(place, _)| place).collect();
        places.sort_by_key(|oid| oid.0);
        places
    }

    #[test]
    fn a_call_is_over_when_the_next_one_has_its_lock_or_its_thread() {
        let landing = Landing::new();
        perform(&landing, 7, HOME);
        perform(&landing, 8, AWAY);
        assert_eq!(places_of(&landing), [HOME, AWAY]);
        // Who only asks has the lock, and may be held before anybody sees what he does.
        rename(9, HOME, |change| landing.asks(change));
        assert_eq!(places_of(&landing), [AWAY]);
        perform(&landing, 8, HOME);
        assert_eq!(places_of(&landing), [HOME]);
        // Threads that are not known may be several.
        perform(&landing, 0, HOME);
        perform(&landing, 0, AWAY);
        assert_eq!(places_of(&landing), [HOME, AWAY]);
    }

    #[test]
    fn who_waits_goes_on_when_it_is_over() {
        let landing = Landing::new();
        perform(&landing, 7, HOME);
        let (place, call) = landing.all().remove(0);
        assert!(!landing.wait(place, call.number, Instant::now()));
        std::thread::scope(|scope| {
            scope.spawn(|| perform(&landing, 8, HOME));
            assert!(landing.wait(place, call.number, Instant::now() + OLD * 30));
        });
        // What came in its place is another one.
        landing.landed(place, call.number);
        assert_eq!(places_of(&landing), [HOME]);
    }

    #[test]
    fn what_is_old_is_not_remembered_without_end() {
        let landing = Landing::new();
        for n in 0..10 * MANY as u32 {
            perform(&landing, n + 1, Oid(u64::from(n)));
            let long_ago = Instant::now().checked_sub(OLD).unwrap();
            landing
                .state
                .lock()
                .calls
                .values_mut()
                .for_each(|call| Arc::get_mut(call).unwrap().since = long_ago);
        }
        let state = landing.state.lock();
        assert!(state.calls.len() <= MANY + 1 && state.threads.len() <= MANY + 1);
    }
}
