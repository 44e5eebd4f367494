//! File locks, forwarded to the files of the host (see `systx_store::host_locks`): one open file
//! description for each owner and file, for as long as the owner holds anything.
//!
//! Zero-message open means that nobody says when a descriptor is closed.  So what is held is checked
//! against the processes of the view, whenever a lock is in the way and from time to time
//! ([`View::sweep_locks`]): an owner whose process has the file open no more has lost its locks.  A lock by
//! flock(2) belongs to an open file description, which other processes may have inherited, and whoever asks
//! for a lock has the file open, too: so a duplicate of the description is kept, and compared.  Without [`Openings`] whoever
//! serves the view is told of closes.

use crate::api::{Lock, LockKind, Reply};
use crate::node::Base;
use crate::view::View;
use crate::volume::errno;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use systx_base::NodeId;
use systx_store::host_locks::{LockFile, LockRange};
use systx_store::io::Handle;
use systx_store::real::RealIo;

/// Who has which files of the view open.
pub trait Openings: Send + Sync {
    /// Whether the process still has the inode open; `None` as a process: whether any process of
    /// the view has.
    fn has_open(&self, pid: Option<u32>, ino: u64) -> bool;
    /// Duplicates of the open file descriptions of the inode that the process has; none where that is not
    /// allowed.  Closing one may bring a request to the view.
    fn descriptions(&self, pid: u32, ino: u64) -> Vec<OwnedFd>;
    /// Whether any process of the view has one of these descriptions of the inode.
    fn has_description(&self, ino: u64, descriptions: &[Arc<OwnedFd>]) -> bool;
}

/// The locks that are held through one view.
#[derive(Default)]
pub(crate) struct LockTable {
    held: HashMap<Owner, Held>,
    /// Of the owner that is entered next.
    serial: u64,
    /// What locks of files are made on that exist in this view only.
    unnamed: HashMap<NodeId, LockFile>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    node: NodeId,
    key: u64,
    flock: bool,
}

struct Held {
    file: LockFile,
    /// Which entry of the table this is: the keys of owners come again.
    serial: u64,
    /// The process that asked; an flock(2) lock may have been inherited by others.
    pid: u32,
    ino: u64,
    /// Of an flock(2) lock: its description is one of these.
    descriptions: Vec<Arc<OwnedFd>>,
}

impl View {
    pub(super) fn set_lock(&self, node: NodeId, lock: Lock) -> Reply<()> {
        self.alive()?;
        let owner = Owner { node, key: lock.owner, flock: lock.flock };
        if lock.kind == LockKind::Unlock {
            return self.unlock(owner, lock);
        }
        if self.try_lock(owner, lock)? {
            return Ok(());
        }
        let Some(openings) = self.openings.lock().clone() else { return Err(Errno::AGAIN) };
        self.sweep(Some(node), &*openings);
        // Also if there was nothing left to sweep: what was in the way may have been swept by another thread since.
        if self.try_lock(owner, lock)? { Ok(()) } else { Err(Errno::AGAIN) }
    }

    fn try_lock(&self, owner: Owner, lock: Lock) -> Reply<bool> {
        let ino = self.state.lock().node(owner.node)?.attr.ino;
        let known = self.locks.lock().held.contains_key(&owner);
        if !known {
            self.taken.lock(self.locks.lock().held.len())?;
        }
        let opened = if known { None } else { Some(self.lock_file(owner.node)?) };
        let openings = self.openings.lock().clone().filter(|_| owner.flock && !known);
        let found = openings.map(|o| o.descriptions(lock.pid, ino)).unwrap_or_default();
        let descriptions = found.into_iter().map(Arc::new).collect();
        // Let go of only when the table is.
        let mut refused = None;
        let mut table = self.locks.lock();
        if let Some(file) = opened {
            table.serial += 1;
            let new = Held { file, serial: table.serial, pid: lock.pid, ino, descriptions };
            table.held.entry(owner).or_insert(new);
        }
        let Some(held) = table.held.get(&owner) else { return Err(Errno::AGAIN) };
        let exclusive = lock.kind == LockKind::Exclusive;
        let result = if owner.flock {
            held.file.flock(Some(exclusive))
        } else {
            held.file.set(LockRange { start: lock.start, end: lock.end, exclusive })
        };
        if !known && !matches!(result, Ok(true)) {
            refused = table.held.remove(&owner);
        }
        drop(table);
        drop(refused);
        result.map_err(errno)
    }

    fn unlock(&self, owner: Owner, lock: Lock) -> Reply<()> {
        let mut table = self.locks.lock();
        let Some(held) = table.held.get(&owner) else { return Ok(()) };
        let all = lock.start == 0 && lock.end >= i64::MAX as u64;
        if owner.flock || all {
            held.file.release();
            let released = table.held.remove(&owner);
            drop(table);
            drop(released);
            return Ok(());
        }
        held.file.clear(lock.start, lock.end).map_err(errno)
    }

    pub(super) fn test_lock(&self, node: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        let owner = Owner { node, key: lock.owner, flock: false };
        let range = LockRange {
            start: lock.start,
            end: lock.end,
            exclusive: lock.kind == LockKind::Exclusive,
        };
        let test = |file: &LockFile| file.test(range).map_err(errno);
        let held = self.locks.lock().held.get(&owner).map(|h| test(&h.file));
        let found = match held {
            Some(found) => found?,
            None => test(&self.lock_file(node)?)?,
        };
        Ok(found.map(|(range, pid)| Lock {
            owner: 0,
            pid,
            start: range.start,
            end: range.end,
            kind: if range.exclusive { LockKind::Exclusive } else { LockKind::Shared },
            flock: false,
        }))
    }

    /// A new description of the file that stands for a node.
    fn lock_file(&self, node: NodeId) -> Reply<LockFile> {
        let io = self.vol.locks.as_ref().ok_or(Errno::NOSYS)?;
        let st = self.state.lock();
        // Whoever reads the past keeps nobody out.
        let shared = |b: &Base| !b.foreign && !self.is_frozen(b.oid());
        if st.node(node)?.base.as_ref().is_some_and(shared) {
            let (dir, name) = self.backing_place(&st, node)?;
            let id = st.base(node)?.stamp.id;
            drop(st);
            let (root, dir) = (self.io().root(), self.bare(&dir));
            if let Some(shown) =
                self.vol.shown(id, (io.descriptor(&root), io.descriptor(dir)), &name)?
            {
                return LockFile::over(shown).map_err(errno);
            }
            return self.lock_file_of(io, dir, &name);
        }
        drop(st);
        let mut table = self.locks.lock();
        if let Some(first) = table.unnamed.get(&node) {
            return first.another().map_err(errno);
        }
        let first = LockFile::unnamed().map_err(errno)?;
        let another = first.another().map_err(errno)?;
        table.unnamed.insert(node, first);
        Ok(another)
    }

    /// On an overlay opening for writing copies a file up, as it would have for the program itself: what that moves
    /// is no outsider's change.
    fn lock_file_of(&self, io: &RealIo, dir: &Handle, name: &[u8]) -> Reply<LockFile> {
        let look = || self.io().stat_at(dir, name).ok().map(|stat| stat.stamp());
        let before = self.vol.overlay.as_ref().and_then(|_| look());
        let file = LockFile::of(io, dir, name).map_err(errno)?;
        if let (Some(before), Some(after)) = (before, before.and_then(|_| look()))
            && (before.id, before.mtime, before.size) == (after.id, after.mtime, after.size)
        {
            self.vol.note_own(before, after);
        }
        Ok(file)
    }

    /// Releases the locks of owners that have closed; returns how many did.
    pub fn sweep_locks(&self, openings: &dyn Openings) -> usize {
        self.sweep(None, openings)
    }

    fn sweep(&self, node: Option<NodeId>, openings: &dyn Openings) -> usize {
        let candidates: Vec<_> = {
            let table = self.locks.lock();
            let held = table.held.iter().filter(|(owner, _)| node.is_none_or(|n| n == owner.node));
            held.map(|(owner, h)| (*owner, h.serial, h.pid, h.ino, h.descriptions.clone()))
                .collect()
        };
        let lives = |owner: &Owner, pid: u32, ino: u64, descriptions: &[Arc<OwnedFd>]| match owner {
            Owner { flock: false, .. } => openings.has_open(Some(pid), ino),
            _ if descriptions.is_empty() => openings.has_open(None, ino),
            _ => openings.has_description(ino, descriptions),
        };
        let closed: Vec<(Owner, u64)> = candidates
            .into_iter()
            .filter(|(owner, _, pid, ino, descriptions)| !lives(owner, *pid, *ino, descriptions))
            .map(|(owner, serial, ..)| (owner, serial))
            .collect();
        // Their locks end with the table's lock: whoever finds no entry finds no lock either.  What they have
        // open is let go of later, which may bring requests.
        let gone: Vec<Held> = {
            let mut table = self.locks.lock();
            let mut take = |(owner, serial): &(Owner, u64)| {
                let held = table.held.get(owner).filter(|held| held.serial == *serial)?;
                held.file.release();
                table.held.remove(owner)
            };
            closed.iter().filter_map(&mut take).collect()
        };
        gone.len()
    }

    /// The locks that are held, for whoever serves their owners from now on: node, owner, whether by
    /// flock(2), description.
    pub(crate) fn take_locks(&self) -> Vec<(NodeId, u64, bool, LockFile)> {
        let held = std::mem::take(&mut self.locks.lock().held);
        held.into_iter().map(|(o, held)| (o.node, o.key, o.flock, held.file)).collect()
    }

    /// Releases open files of the host, but not the locks: their owners live on.
    pub fn let_go_of_files(&self) {
        self.files.clear();
    }

    /// Releases locks and open files of the host: no process is in the view any more, and a file that
    /// nobody has open can be replaced in one step.
    pub fn let_go(&self) {
        let all = std::mem::take(&mut *self.locks.lock());
        drop(all);
        self.files.clear();
    }

    /// Whether any lock is held through this view.
    pub fn holds_locks(&self) -> bool {
        !self.locks.lock().held.is_empty()
    }
}
