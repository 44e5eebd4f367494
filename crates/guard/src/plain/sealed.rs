//! A directory in which plain programs change nothing: only transactions do.

use super::Gate;
use crate::change::Change;
use crate::inode_locks::Ticket;
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::Oid;
use systx_store::io::HostId;
use systx_txn::ObjectRef;
use systx_vfs::api::{Reply, Valid};

/// The gate inside, for those who read.
pub struct Sealed(pub Arc<dyn Gate>);

impl Gate for Sealed {
    fn read(&self, reads: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        self.0.read(reads, act)
    }
    fn mutate(&self, _: Change<'_>, _: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        Err(Errno::ROFS)
    }
    fn before_writing(&self, _: HostId) -> Reply<()> {
        Err(Errno::ROFS)
    }
    fn born(&self, id: HostId) {
        self.0.born(id);
    }
    fn is_publishing(&self) -> bool {
        self.0.is_publishing()
    }
    fn valid(&self, oid: Oid, name: Option<&[u8]>) -> Valid {
        self.0.valid(oid, name)
    }
    fn may_keep(&self, oid: Oid) -> bool {
        self.0.may_keep(oid)
    }
    fn barrier(&self, dir: Oid) {
        self.0.barrier(dir);
    }
    fn file_barrier(&self, ticket: Ticket) {
        self.0.file_barrier(ticket);
    }
    fn wait_durable(&self) {
        self.0.wait_durable();
    }
    fn changed_mode(&self, file: HostId) {
        self.0.changed_mode(file);
    }
    fn land(&self, file: HostId) -> bool {
        self.0.land(file)
    }
    fn appended_elsewhere(&self, file: HostId) -> bool {
        self.0.appended_elsewhere(file)
    }
}
