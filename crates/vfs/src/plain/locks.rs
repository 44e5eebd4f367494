//! File locks, taken on the backing files, so that they exclude everybody: programs that came
//! through the mount, views, and outsiders (see [`crate::locks`]).  Opens have messages, so the
//! layer above knows when an owner has closed, and unlocks.

use super::Plain;
use crate::api::{Lock, LockKind, Reply};
use crate::locks::{Ask, Locks, Wait};
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::NodeId;
use systx_store::host_locks::LockFile;

impl Plain {
    /// Those of the view in whose place this one is go on.
    pub(crate) fn adopt_locks(&self, locks: Arc<Locks>) {
        let own = std::mem::replace(&mut *self.locks.lock(), locks);
        drop(own);
    }

    fn locks(&self) -> Arc<Locks> {
        Arc::clone(&self.locks.lock())
    }

    pub(super) fn set_lock(&self, node: NodeId, lock: Lock, wait: Option<&Arc<Wait>>) -> Reply<()> {
        let locks = self.locks();
        if lock.kind == LockKind::Unlock {
            return locks.clear(node, &lock);
        }
        let ask = Ask { node, lock, ino: 0, openings: None, wait };
        locks.set(&ask, &|| self.lock_file(node))
    }

    pub(super) fn test_lock(&self, node: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        self.locks().test(node, &lock, &|| self.lock_file(node))
    }

    /// A new description of a node's file.
    fn lock_file(&self, id: NodeId) -> Reply<LockFile> {
        let node = self.table.node(id)?;
        let file = LockFile::over(&*self.table.path(&node)?);
        file.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }
}
