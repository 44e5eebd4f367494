//! File locks, taken on the backing files, so that they exclude everybody: programs that came through
//! the mount, views, and outsiders.  Each owner has an open file description of its own for each file
//! (see `systx_store::host_locks`).  Opens have messages, so the layer above knows when an owner has
//! closed, and unlocks.

use super::Plain;
use crate::api::{Lock, LockKind, Reply};
use crate::volume::errno;
use rustix::io::Errno;
use std::collections::HashMap;
use systx_base::NodeId;
use systx_store::host_locks::{LockFile, LockRange};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub node: NodeId,
    pub key: u64,
    pub flock: bool,
}

/// What is held.
#[derive(Default)]
pub(super) struct LockTable {
    held: HashMap<Owner, LockFile>,
}

impl LockTable {
    pub fn adopt(&mut self, owner: Owner, file: LockFile) {
        self.held.insert(owner, file);
    }
}

fn range(lock: &Lock) -> LockRange {
    let exclusive = lock.kind == LockKind::Exclusive;
    LockRange { start: lock.start, end: lock.end, exclusive }
}

impl Plain {
    pub(super) fn set_lock(&self, id: NodeId, lock: Lock) -> Reply<()> {
        let owner = Owner { node: id, key: lock.owner, flock: lock.flock };
        if lock.kind == LockKind::Unlock {
            let mut table = self.locks.lock();
            let Some(file) = table.held.get(&owner) else { return Ok(()) };
            if !owner.flock && (lock.start > 0 || lock.end < i64::MAX as u64) {
                return file.clear(lock.start, lock.end).map_err(errno);
            }
            table.held.remove(&owner);
            return Ok(());
        }
        let known = self.locks.lock().held.contains_key(&owner);
        let opened = if known { None } else { Some(self.lock_file(id)?) };
        let mut table = self.locks.lock();
        let first = !table.held.contains_key(&owner);
        if let (true, Some(file)) = (first, opened) {
            table.held.insert(owner, file);
        }
        // Released by another thread of the owner just now: the layer above asks again.
        let Some(file) = table.held.get(&owner) else { return Err(Errno::AGAIN) };
        let result = if owner.flock {
            file.flock(Some(lock.kind == LockKind::Exclusive))
        } else {
            file.set(range(&lock))
        };
        match result {
            Ok(true) => Ok(()),
            refused => {
                if first {
                    table.held.remove(&owner);
                }
                refused.map_err(errno).and(Err(Errno::AGAIN))
            }
        }
    }

    pub(super) fn test_lock(&self, id: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        let owner = Owner { node: id, key: lock.owner, flock: false };
        let held = self.locks.lock().held.get(&owner).map(|file| file.test(range(&lock)));
        let found = match held {
            Some(found) => found,
            None => self.lock_file(id)?.test(range(&lock)),
        };
        Ok(found.map_err(errno)?.map(|(range, pid)| Lock {
            owner: 0,
            pid,
            start: range.start,
            end: range.end,
            kind: if range.exclusive { LockKind::Exclusive } else { LockKind::Shared },
            flock: false,
        }))
    }

    /// A new description of a node's file.
    fn lock_file(&self, id: NodeId) -> Reply<LockFile> {
        let node = self.table.node(id)?;
        LockFile::over(&*self.table.path(&node)?).map_err(errno)
    }
}
