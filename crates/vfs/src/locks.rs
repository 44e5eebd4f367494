//! File locks: who holds what of which file, in all views of this process.
//!
//! Each owner has an open file description of its own for each file of the host that it locks, and
//! the lock is taken on that ([`systx_store::host_locks`]): so programs outside are excluded as
//! ever, and are asked first.  The table here knows what the host cannot tell: which holders are
//! ours, for which processes ([`table`]), who waits for whom ([`waits`]), and when an owner that
//! does not say so has closed.
//!
//! **When a lock ends.**  The layer above tells of closes, and unlocks; or it does not, where
//! opens make no messages. Then a grant is followed by a look at what the owner has open
//! ([`Openings`]), while it waits for the answer: the very descriptors and descriptions that its
//! locks depend on ([`Taken`]).  They are looked at again by whoever finds the lock in the way, by
//! the owner's next request, and from time to time.  A lock is ended for what was seen at its own
//! grant, and only if there was no other one since: who closes, opens and locks anew keeps what it
//! has locked.

mod holders;
mod ranges;
mod sections;
mod table;
#[cfg(test)]
mod tests;
mod waits;

pub use holders::Class;
pub use sections::Relocked;
pub(crate) use sections::Sections;
pub use waits::Wait;

use crate::api::{Lock, LockKind, Reply};
use crate::client;
use rustix::io::Errno;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};
use systx_store::host_locks::{LockFile, LockRange};
use table::{Object, Owner, Tried, range_of};

/// Who asks for a lock, and waits in that call.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The thread; 0: not known.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// By flock(2).
    pub flock: bool,
    /// How it asks, if that can be seen.
    pub call: Option<client::LockCall>,
    /// `st_ino` of the file.
    pub ino: u64,
}

impl Asker {
    fn of(lock: &Lock, ino: u64) -> Asker {
        let (tid, pid, flock) = (client::thread(), lock.pid, lock.flock);
        Asker { tid, pid, flock, call: client::lock_call(tid), ino }
    }

    /// Whose the lock is, if that can be seen.
    pub fn class(&self) -> Option<Class> {
        match (self.flock, self.call) {
            (true, _) => Some(Class::Whole),
            (false, Some(call)) if call.description => Some(Class::Description),
            (false, Some(_)) => Some(Class::Process),
            (false, None) => None,
        }
    }
}

/// Who can say what processes have open.
pub trait Openings: Send + Sync {
    /// What a lock depends on that was just granted to this asker.  `before`: what its locks of the
    /// file depended on until now, if it has others.
    fn taken(&self, asker: &Asker, before: Option<Arc<dyn Taken>>) -> Arc<dyn Taken>;
}

/// What a lock depends on.
pub trait Taken: Any + Send + Sync {
    /// Whether the owner has closed nothing of it since.
    fn lives(&self) -> bool;
    /// Whose the lock is, if that could be seen.
    fn class(&self) -> Option<Class>;
}

/// A request for a lock.
pub(crate) struct Ask<'a> {
    pub node: NodeId,
    pub lock: Lock,
    /// `st_ino` of the file.
    pub ino: u64,
    pub openings: Option<Arc<dyn Openings>>,
    /// It waits if somebody is in the way.
    pub wait: Option<&'a Arc<Wait>>,
}

impl Ask<'_> {
    fn class(&self) -> Class {
        match (self.lock.flock, self.lock.description) {
            (true, _) => Class::Whole,
            (false, true) => Class::Description,
            (false, false) => Class::Process,
        }
    }
}

/// The locks of one view, which go on with those who hold them when something else takes its place.
pub struct Locks {
    view: u64,
    /// What locks of files are made on that exist in this view only.
    unnamed: Mutex<BTreeMap<NodeId, LockFile>>,
    /// Somebody has locked something.
    used: AtomicBool,
}

/// The locks of a plain view, whose owners' closes are told of.
pub struct PlainLocks(Mutex<Arc<Locks>>);

impl Default for PlainLocks {
    fn default() -> PlainLocks {
        PlainLocks(Mutex::new(rank::LEAF, Locks::numbered(PLAIN)))
    }
}

impl PlainLocks {
    /// Those of the view in whose place this one is go on.
    pub fn adopt(&self, locks: Arc<Locks>) {
        let own = std::mem::replace(&mut *self.0.lock(), locks);
        drop(own);
    }

    fn now(&self) -> Arc<Locks> {
        Arc::clone(&self.0.lock())
    }

    /// Sets or gives up a lock; `open` makes a description of the file.
    ///
    /// # Errors
    /// `EAGAIN`: somebody is in the way; with a wait that is woken then. `EDEADLK`: it would wait
    /// for ever. Those of `open` and of the host.
    pub fn set(
        &self,
        node: NodeId,
        lock: Lock,
        wait: Option<&Arc<Wait>>,
        open: &dyn Fn() -> Reply<LockFile>,
    ) -> Reply<()> {
        let locks = self.now();
        if lock.kind == LockKind::Unlock {
            return locks.clear(node, &lock);
        }
        locks.set(&Ask { node, lock, ino: 0, openings: None, wait }, open)
    }

    /// The first lock in the way.
    ///
    /// # Errors
    /// Those of `open` and of the host.
    pub fn test(
        &self,
        node: NodeId,
        lock: Lock,
        open: &dyn Fn() -> Reply<LockFile>,
    ) -> Reply<Option<Lock>> {
        self.now().test(node, &lock, open)
    }
}

static VIEWS: AtomicU64 = AtomicU64::new(0);
/// In the number of a plain view.
const PLAIN: u64 = 1 << 63;

impl Locks {
    pub(crate) fn new() -> Arc<Locks> {
        Locks::numbered(0)
    }

    fn numbered(kind: u64) -> Arc<Locks> {
        let view = VIEWS.fetch_add(1, Relaxed) | kind;
        let unnamed = Mutex::new(rank::HANDLES, BTreeMap::new());
        Arc::new(Locks { view, unnamed, used: AtomicBool::new(false) })
    }

    fn owner(&self, node: NodeId, lock: &Lock) -> Owner {
        Owner { view: self.view, node, flock: lock.flock, key: lock.owner }
    }

    /// Sets a lock; `open` makes a description of the file.
    ///
    /// # Errors `EAGAIN`: somebody is in the way; with a wait that is woken then.  `EDEADLK`: it
    /// would wait for ever.  Those of `open` and of the host.
    pub(crate) fn set(&self, ask: &Ask<'_>, open: &dyn Fn() -> Reply<LockFile>) -> Reply<()> {
        let owner = self.owner(ask.node, &ask.lock);
        self.used.store(true, Relaxed);
        // What it held before may have ended with a close.
        if ask.openings.is_some()
            && let Some(object) = table::object_of(owner)
            && object.taken(owner).is_some_and(|taken| !taken.lives())
        {
            drop(object.end(owner));
        }
        let (object, mut tried) = self.attempt(owner, ask, open, None)?;
        if matches!(tried, Tried::Refused) {
            object.sweep();
            if let Some(wait) = ask.wait {
                wait.class.get_or_init(|| self.class_of(ask));
            }
            // Also if that ended nothing: somebody else may have looked at the same time.
            tried = self.attempt(owner, ask, open, ask.wait)?.1;
        }
        let grant = match tried {
            Tried::Granted(grant) => grant,
            Tried::Refused | Tried::Unopened => return Err(Errno::AGAIN),
            Tried::Circle => return Err(Errno::DEADLK),
        };
        if let Some(openings) = &ask.openings {
            let asker = Asker::of(&ask.lock, ask.ino);
            object.note(owner, grant, openings.taken(&asker, object.taken(owner)));
        }
        Ok(())
    }

    fn class_of(&self, ask: &Ask<'_>) -> Class {
        match ask.class() {
            Class::Process if ask.openings.is_some() => {
                Asker::of(&ask.lock, ask.ino).class().unwrap_or(Class::Process)
            }
            class => class,
        }
    }

    /// Tries once, on the file where the owner holds something already, else on what is there now.
    fn attempt(
        &self,
        owner: Owner,
        ask: &Ask<'_>,
        open: &dyn Fn() -> Reply<LockFile>,
        wait: Option<&Arc<Wait>>,
    ) -> Reply<(Arc<Object>, Tried)> {
        loop {
            let known = table::object_of(owner).filter(|object| object.has(owner));
            let (object, mut file) = match known {
                Some(object) => (object, None),
                None => {
                    let file = open()?;
                    (table::object_at(&file)?, Some(file))
                }
            };
            match object.grant(owner, ask, &mut file, wait)? {
                // Another thread of the owner has closed meanwhile.
                Tried::Unopened => continue,
                tried => return Ok((object, tried)),
            }
        }
    }

    /// Gives up a range, or all.
    ///
    /// # Errors
    /// Those of the host.
    pub(crate) fn clear(&self, node: NodeId, lock: &Lock) -> Reply<()> {
        let owner = self.owner(node, lock);
        match table::object_of(owner) {
            Some(object) => object.clear(owner, lock).map(drop),
            None => Ok(()),
        }
    }

    /// The first lock in the way.
    ///
    /// # Errors
    /// Those of `open` and of the host.
    pub(crate) fn test(
        &self,
        node: NodeId,
        lock: &Lock,
        open: &dyn Fn() -> Reply<LockFile>,
    ) -> Reply<Option<Lock>> {
        let (owner, range) = (self.owner(node, lock), range_of(lock));
        let known = table::object_of(owner).filter(|object| object.has(owner));
        let (object, file): (Arc<Object>, _) = match known {
            Some(object) => (object, None),
            None => {
                let file = open()?;
                (table::object_at(&file)?, Some(file))
            }
        };
        let mut found = object.test(owner, range, file.as_ref());
        if matches!(found, Ok(Some(_))) {
            object.sweep();
            found = object.test(owner, range, file.as_ref());
        }
        let found = match found {
            // The owner has closed meanwhile.
            Err(Errno::AGAIN) if file.is_none() => {
                let file = open()?;
                table::object_at(&file)?.test(owner, range, Some(&file))?
            }
            found => found?,
        };
        Ok(found.map(|(range, pid)| Lock {
            owner: 0,
            pid,
            start: range.start,
            end: range.end,
            kind: if range.exclusive { LockKind::Exclusive } else { LockKind::Shared },
            flock: false,
            description: false,
        }))
    }

    /// A description of the file that stands for one which exists in this view only.
    ///
    /// # Errors
    /// Those of the host.
    pub(crate) fn unnamed(&self, node: NodeId) -> std::io::Result<LockFile> {
        let mut unnamed = self.unnamed.lock();
        if let Some(first) = unnamed.get(&node) {
            return first.another();
        }
        let first = LockFile::unnamed()?;
        let another = first.another()?;
        unnamed.insert(node, first);
        Ok(another)
    }

    /// Releases the locks of owners that have closed; returns how many did.
    pub(crate) fn sweep(&self) -> usize {
        table::objects_of(self.view).iter().map(|object| object.sweep()).sum()
    }

    /// Locks once more what the programs of the view have had locked, but for what is locked in
    /// transactions, this one or another: those find out about each other. `over`: no process is
    /// in the view any more, and what they have left locked goes on as locked by this. `open` makes
    /// a description of a file.
    ///
    /// # Errors
    /// A file that a program outside has locked.
    pub(crate) fn lock_again(
        &self,
        sections: &Sections,
        over: bool,
        open: &dyn Fn(NodeId) -> Reply<LockFile>,
    ) -> Result<Relocked, NodeId> {
        let (mut locked, mut left) = (Relocked::default(), BTreeMap::<_, Vec<LockRange>>::new());
        for owner in table::owners_of(self.view).into_iter().filter(|_| over) {
            let Some(object) = table::object_of(owner) else { continue };
            let Some((file, ranges)) = object.hand_over(owner) else { continue };
            if !ranges.is_empty() {
                left.entry((owner.node, owner.flock)).or_default().extend(ranges);
                locked.0.push(file);
            }
        }
        for (node, flock, ranges) in sections.iter() {
            let mut ranges = ranges.clone();
            for range in left.remove(&(node, flock)).into_iter().flatten() {
                ranges.clear(range.start, range.end);
            }
            // Nobody is at work on a file that is not there any more.
            let Ok(file) = open(node) else { continue };
            for range in ranges.iter() {
                if !table::lock_again(&file, flock, range) {
                    return Err(node);
                }
            }
            locked.0.push(file);
        }
        Ok(locked)
    }

    /// Whether an owner is among those that are counted.
    pub(crate) fn knows(&self, node: NodeId, lock: &Lock) -> bool {
        table::object_of(self.owner(node, lock)).is_some()
    }

    /// How many owners hold something, or have not closed since.
    pub fn count(&self) -> usize {
        table::count(self.view)
    }

    /// Releases everything.
    pub(crate) fn end(&self) {
        for owner in table::owners_of(self.view) {
            if let Some(object) = table::object_of(owner) {
                drop(object.end(owner));
            }
        }
        let unnamed = std::mem::take(&mut *self.unnamed.lock());
        drop(unnamed);
    }

    /// What stands for a file is another one than before, perhaps: locks go with the file.  No
    /// request may be under way.
    pub(crate) fn move_to(&self, file_of: &dyn Fn(NodeId) -> Option<LockFile>) {
        for owner in table::owners_of(self.view) {
            let Some((object, file)) = table::object_of(owner).zip(file_of(owner.node)) else {
                continue;
            };
            match object.move_to(owner, file) {
                Ok(released) => drop(released),
                Err(errno) => {
                    tracing::warn!(node = owner.node.0, %errno, "a lock excludes nobody outside");
                }
            }
        }
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        if *self.used.get_mut() {
            self.end();
        }
    }
}
