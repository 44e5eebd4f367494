//! File locks, taken on the backing files, so that they exclude everybody: programs that came
//! through the mount, views, and outsiders (see [`systx_vfs::locks`]).  Opens have messages, so the
//! layer above knows when an owner has closed, and unlocks.

use super::table::Table;
use std::sync::Arc;
use systx_base::NodeId;
use systx_store::host_locks::{LockFile, LockFiles};
use systx_vfs::api::{Lock, Reply};
use systx_vfs::locks::{PlainLocks, Wait};
use systx_vfs::volume::errno;

/// The locks of one plain view.
#[derive(Default)]
pub(super) struct BackingLocks {
    pub held: PlainLocks,
    /// What is locked instead of the backing files.
    pub files: Option<Arc<LockFiles>>,
}

impl BackingLocks {
    pub fn set(
        &self,
        table: &Table,
        (node, lock): (NodeId, Lock),
        wait: Option<&Arc<Wait>>,
    ) -> Reply<()> {
        self.held.set(node, lock, wait, &|| self.file(table, node))
    }

    pub fn test(&self, table: &Table, (node, lock): (NodeId, Lock)) -> Reply<Option<Lock>> {
        self.held.test(node, lock, &|| self.file(table, node))
    }

    /// A new description of a node's file.
    fn file(&self, table: &Table, id: NodeId) -> Reply<LockFile> {
        let node = table.node(id)?;
        match &self.files {
            Some(files) => files.of(node.host),
            None => LockFile::over(&*table.path(&node)?),
        }
        .map_err(errno)
    }
}
