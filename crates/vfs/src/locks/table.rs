//! The table of this process: one entry for each file of the host that one of ours has locked.
//!
//! **Lock order**: a file's entry, then the table, which is a leaf.  Nothing is opened, closed or
//! looked at under either but the locks on the host themselves, which never wait.

use super::holders::{Class, Holders};
use super::ranges::LAST;
use super::waits::Wait;
use super::{Ask, PLAIN, Taken};
use crate::api::{Lock, Reply};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use systx_base::NodeId;
use systx_base::sync::{Mutex, Rank, rank};
use systx_store::host_locks::{LockFile, LockRange};

/// An owner, of all views.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Owner {
    pub view: u64,
    pub node: NodeId,
    pub flock: bool,
    pub key: u64,
}

impl Owner {
    /// All owners of a view.
    pub fn of(view: u64) -> RangeInclusive<Owner> {
        let end = |node, flock, key| Owner { view, node: NodeId(node), flock, key };
        end(0, false, 0)..=end(u64::MAX, true, u64::MAX)
    }
}

/// A file of the host.
pub(super) struct Object {
    /// Device and inode: nobody else's while one of ours has it open.
    id: (u64, u64),
    state: Mutex<Entry>,
}

struct Entry {
    holders: Holders<Owner>,
    grips: BTreeMap<Owner, Grip>,
    /// Those that somebody was in the way of since the last release.
    waiting: Vec<Weak<Wait>>,
}

/// By what an owner holds its locks.
struct Grip {
    file: LockFile,
    /// Which grant was the last one.
    grant: u64,
    /// What the locks depend on, where nobody tells of closes.
    taken: Option<Arc<dyn Taken>>,
}

struct Table {
    objects: BTreeMap<(u64, u64), Weak<Object>>,
    owners: BTreeMap<Owner, Arc<Object>>,
}

/// One for the process, since any two of its views may show one file.
static TABLE: Mutex<Table> =
    Mutex::new(rank::LEAF, Table { objects: BTreeMap::new(), owners: BTreeMap::new() });
static GRANTS: AtomicU64 = AtomicU64::new(0);

/// What became of a request.
pub(super) enum Tried {
    /// With the number of the grant.
    Granted(u64),
    /// Somebody is in the way.
    Refused,
    /// It would wait for ever.
    Circle,
    /// The owner has no description of the file yet, or lost it a moment ago.
    Unopened,
}

/// To be dropped without any lock: closing a file may bring a request, and wakes others.
#[must_use = "somebody may wait"]
#[derive(Default)]
pub(super) struct Released {
    woken: Vec<Arc<Wait>>,
    grips: Vec<Grip>,
    objects: Vec<Arc<Object>>,
}

impl Drop for Released {
    fn drop(&mut self) {
        self.grips.clear();
        self.woken.drain(..).for_each(|wait| wait.wake());
    }
}

/// Where an owner has a description.
pub(super) fn object_of(owner: Owner) -> Option<Arc<Object>> {
    TABLE.lock().owners.get(&owner).cloned()
}

/// All files that owners of a view have.
pub(super) fn objects_of(view: u64) -> Vec<Arc<Object>> {
    let table = TABLE.lock();
    let mut seen = BTreeSet::new();
    let owned = table.owners.range(Owner::of(view)).map(|(_, object)| object);
    owned.filter(|object| seen.insert(object.id)).cloned().collect()
}

/// All owners of a view.
pub(super) fn owners_of(view: u64) -> Vec<Owner> {
    TABLE.lock().owners.range(Owner::of(view)).map(|(owner, _)| *owner).collect()
}

/// How many owners of a view there are.
pub(super) fn count(view: u64) -> usize {
    TABLE.lock().owners.range(Owner::of(view)).count()
}

/// The entry of the file of a description.
pub(super) fn object_at(file: &LockFile) -> Reply<Arc<Object>> {
    let id = file.identity().map_err(errno)?;
    let mut table = TABLE.lock();
    if let Some(object) = table.objects.get(&id).and_then(Weak::upgrade) {
        return Ok(object);
    }
    let state = Entry { holders: Holders::new(), grips: BTreeMap::new(), waiting: Vec::new() };
    let object = Arc::new(Object { id, state: Mutex::new(Rank(rank::HANDLES.0 + 2), state) });
    table.objects.insert(id, Arc::downgrade(&object));
    Ok(object)
}

/// Locks a range for writing; true as well where some transaction has it locked, and where it
/// cannot be locked at all.
pub(super) fn lock_again(file: &LockFile, flock: bool, range: LockRange) -> bool {
    let got = match flock {
        true => file.flock(Some(true)),
        false => file.set(range),
    };
    let Ok(false) = got else { return true };
    let in_transactions = |object: Arc<Object>| {
        let state = object.state.lock();
        state.holders.any_in_the_way(flock, &range, |owner| owner.view & PLAIN == 0)
    };
    object_at(file).is_ok_and(in_transactions)
}

impl Drop for Object {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        // Perhaps the next one has it already.
        if table.objects.get(&self.id).is_some_and(|other| other.strong_count() == 0) {
            table.objects.remove(&self.id);
        }
    }
}

/// What the host said.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

pub(super) fn range_of(lock: &Lock) -> LockRange {
    let exclusive = lock.kind == crate::api::LockKind::Exclusive;
    match lock.flock {
        true => LockRange { start: 0, end: LAST, exclusive },
        false => LockRange { start: lock.start, end: lock.end.min(LAST), exclusive },
    }
}

impl Entry {
    /// All waits are over: each asks again.
    fn wake(&mut self, released: &mut Released) {
        for wait in self.waiting.drain(..).filter_map(|wait| wait.upgrade()) {
            wait.clear();
            released.woken.push(wait);
        }
    }

    /// An owner holds nothing any more: now, whatever still has its description open.
    fn end(&mut self, owner: Owner, released: &mut Released) {
        let Some(grip) = self.grips.remove(&owner) else { return };
        grip.file.release();
        self.holders.remove(owner);
        released.grips.push(grip);
        released.objects.extend(TABLE.lock().owners.remove(&owner));
        self.wake(released);
    }

    /// Refused by one of ours: `wait` waits for it.
    fn refuse(&mut self, owner: Owner, ask: &Ask<'_>, wait: Option<&Arc<Wait>>) -> Tried {
        let Some(wait) = wait else { return Tried::Refused };
        let found = self.holders.in_the_way(owner, owner.flock, &range_of(&ask.lock));
        let process = |class| class == Class::Process;
        let holder = match found {
            Some((holder, _)) if process(holder.class) => holder.pid,
            _ => 0,
        };
        let waits = wait.class.get().is_some_and(|class| process(*class));
        if !wait.blocks(ask.lock.pid, if waits { holder } else { 0 }) {
            return Tried::Circle;
        }
        self.waiting.retain(|other| other.strong_count() > 0);
        if !self.waiting.iter().any(|other| std::ptr::eq(other.as_ptr(), &raw const **wait)) {
            self.waiting.push(Arc::downgrade(wait));
        }
        Tried::Refused
    }
}

impl Object {
    /// Whether an owner has a description of it.
    pub fn has(&self, owner: Owner) -> bool {
        self.state.lock().grips.contains_key(&owner)
    }

    /// Tries once.  `new`: a description for the owner, if it has none.
    pub fn grant(
        self: &Arc<Self>,
        owner: Owner,
        ask: &Ask<'_>,
        new: &mut Option<LockFile>,
        wait: Option<&Arc<Wait>>,
    ) -> Reply<Tried> {
        let mut released = Released::default();
        let mut state = self.state.lock();
        let range = range_of(&ask.lock);
        if state.holders.in_the_way(owner, owner.flock, &range).is_some() {
            // By flock(2) the lock that is to become another one is given up first, also if that
            // fails.
            if owner.flock {
                state.end(owner, &mut released);
            }
            let refused = state.refuse(owner, ask, wait);
            drop(state);
            return Ok(refused);
        }
        let known = state.grips.get(&owner);
        let Some(file) = known.map(|grip| &grip.file).or(new.as_ref()) else {
            return Ok(Tried::Unopened);
        };
        let got = match owner.flock {
            true => file.flock(Some(range.exclusive)),
            false => file.set(range),
        };
        if !matches!(got, Ok(true)) {
            if owner.flock {
                state.end(owner, &mut released);
            }
            let refused = state.refuse(owner, ask, wait);
            drop(state);
            return got.map(|_| refused).map_err(errno);
        }
        let grant = GRANTS.fetch_add(1, Relaxed);
        match state.grips.get_mut(&owner) {
            Some(grip) => grip.grant = grant,
            None => {
                let Some(file) = new.take() else { return Ok(Tried::Unopened) };
                state.grips.insert(owner, Grip { file, grant, taken: None });
                TABLE.lock().owners.insert(owner, Arc::clone(self));
            }
        }
        state.holders.set(owner, ask.lock.pid, ask.class(), range);
        if !range.exclusive {
            // It may have been, before.
            state.wake(&mut released);
        }
        drop(state);
        Ok(Tried::Granted(grant))
    }

    /// What the locks of an owner depend on, if that is known.
    pub fn taken(&self, owner: Owner) -> Option<Arc<dyn Taken>> {
        self.state.lock().grips.get(&owner)?.taken.clone()
    }

    /// Notes that of a grant, unless there was another one since.
    pub fn note(&self, owner: Owner, grant: u64, taken: Arc<dyn Taken>) {
        let mut state = self.state.lock();
        let class = taken.class();
        let Some(grip) = state.grips.get_mut(&owner).filter(|grip| grip.grant == grant) else {
            return;
        };
        let before = grip.taken.replace(taken);
        if let Some(class) = class.filter(|_| !owner.flock) {
            state.holders.classify(owner, class);
        }
        drop(state);
        drop(before);
    }

    /// Gives up a range, or all.
    pub fn clear(&self, owner: Owner, lock: &Lock) -> Reply<Released> {
        let mut released = Released::default();
        let mut state = self.state.lock();
        let range = range_of(lock);
        if owner.flock || (range.start == 0 && range.end == LAST) {
            state.end(owner, &mut released);
        } else if let Some(grip) = state.grips.get(&owner) {
            grip.file.clear(range.start, range.end).map_err(errno)?;
            state.holders.clear(owner, range.start, range.end);
            state.wake(&mut released);
        }
        Ok(released)
    }

    /// All that an owner holds.
    pub fn end(&self, owner: Owner) -> Released {
        let mut released = Released::default();
        self.state.lock().end(owner, &mut released);
        released
    }

    /// What an owner has locked for writing stays locked without it, by the description that this
    /// returns; what it has locked for reading does not.
    pub fn hand_over(&self, owner: Owner) -> Option<(LockFile, Vec<LockRange>)> {
        let mut released = Released::default();
        let mut state = self.state.lock();
        let all: Vec<LockRange> = state.holders.ranges(owner)?.iter().collect();
        let Grip { file, .. } = state.grips.remove(&owner)?;
        state.holders.remove(owner);
        released.objects.extend(TABLE.lock().owners.remove(&owner));
        let (written, read) = all.into_iter().partition::<Vec<_>, _>(|range| range.exclusive);
        match owner.flock {
            // It is one lock of the whole file.
            true if !read.is_empty() => file.release(),
            _ => read.iter().for_each(|range| drop(file.clear(range.start, range.end))),
        }
        state.wake(&mut released);
        drop(state);
        Some((file, written))
    }

    /// Ends the locks of owners that have closed; how many did.  What was locked anew since the
    /// look is not touched: it depends on something else.
    pub fn sweep(&self) -> usize {
        let looked: Vec<(Owner, u64, Arc<dyn Taken>)> = {
            let state = self.state.lock();
            let known =
                |(owner, grip): (&Owner, &Grip)| Some((*owner, grip.grant, grip.taken.clone()?));
            state.grips.iter().filter_map(known).collect()
        };
        let over: Vec<_> = looked.into_iter().filter(|(.., taken)| !taken.lives()).collect();
        let mut released = Released::default();
        let mut state = self.state.lock();
        let mut ended = 0;
        for (owner, grant, _) in &over {
            if state.grips.get(owner).is_some_and(|grip| grip.grant == *grant) {
                state.end(*owner, &mut released);
                ended += 1;
            }
        }
        drop(state);
        ended
    }

    /// The first lock in the way: of ours, with its process, or of others.  `file`: a description
    /// of it.
    pub fn test(&self, owner: Owner, range: LockRange, file: Option<&LockFile>) -> Reply<Found> {
        let state = self.state.lock();
        if let Some((holder, range)) = state.holders.in_the_way(owner, false, &range) {
            // What is no process's has no number that the kernel would hand on.
            let pid = if holder.class == Class::Process { holder.pid } else { 0 };
            return Ok(Some((range, pid)));
        }
        match state.grips.get(&owner).map(|grip| &grip.file).or(file) {
            Some(file) => file.test(range).map_err(errno),
            None => Err(Errno::AGAIN),
        }
    }

    /// What an owner holds is held on another file from now on, unless it is already or somebody
    /// is in the way there.
    pub fn move_to(self: &Arc<Self>, owner: Owner, file: LockFile) -> Reply<Released> {
        let to = object_at(&file)?;
        if Arc::ptr_eq(self, &to) {
            return Ok(Released::default());
        }
        let Some((holder, grant, taken)) = ({
            let state = self.state.lock();
            let grip = state.grips.get(&owner);
            let grip = grip.map(|grip| (grip.grant, grip.taken.clone()));
            grip.and_then(|(grant, taken)| {
                Some((state.holders.ranges(owner)?.clone(), grant, taken))
            })
        }) else {
            return Ok(Released::default());
        };
        let mut there = to.state.lock();
        for range in holder.iter() {
            let ours = there.holders.in_the_way(owner, owner.flock, &range).is_some();
            let got = match owner.flock {
                true => file.flock(Some(range.exclusive)),
                false => file.set(range),
            };
            if ours || !got.map_err(errno)? {
                return Err(Errno::AGAIN);
            }
        }
        drop(there);
        let mut released = Released::default();
        self.state.lock().end(owner, &mut released);
        there = to.state.lock();
        holder.iter().for_each(|range| {
            there.holders.set(owner, holder.pid, holder.class, range);
        });
        there.grips.insert(owner, Grip { file, grant, taken });
        TABLE.lock().owners.insert(owner, Arc::clone(&to));
        drop(there);
        Ok(released)
    }
}

/// A lock that is in the way, and the process that holds it; 0: not known, or an open file
/// description.
pub(super) type Found = Option<(LockRange, u32)>;
