//! File locks, taken on the backing files, so that they exclude everybody: programs that came
//! through the mount, views, and outsiders (see [`systx_vfs::locks`]).  Opens have messages, so the
//! layer above knows when an owner has closed, and unlocks.

use super::Plain;
use std::sync::Arc;
use systx_base::NodeId;
use systx_store::host_locks::{LockFile, LockFiles};
use systx_vfs::api::{Lock, Reply};
use systx_vfs::locks::{Locks, Wait};
use systx_vfs::volume::errno;

impl Plain {
    /// Those of the view in whose place this one is go on.
    pub(crate) fn adopt_locks(&self, locks: Arc<Locks>) {
        self.locks.adopt(locks);
    }

    /// The same, where locks are on these and not on the backing files.
    #[must_use]
    pub(crate) fn locking(self, lock_files: Option<Arc<LockFiles>>) -> Plain {
        Plain { lock_files, ..self }
    }

    pub(super) fn set_lock(&self, node: NodeId, lock: Lock, wait: Option<&Arc<Wait>>) -> Reply<()> {
        self.locks.set(node, lock, wait, &|| self.lock_file(node))
    }

    pub(super) fn test_lock(&self, node: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        self.locks.test(node, lock, &|| self.lock_file(node))
    }

    /// A new description of a node's file.
    fn lock_file(&self, id: NodeId) -> Reply<LockFile> {
        let node = self.table.node(id)?;
        match &self.lock_files {
            Some(files) => files.of(node.host),
            None => LockFile::over(&*self.table.path(&node)?),
        }
        .map_err(errno)
    }
}
