//! What of a request passes the gate, and what commits ask of the view.

use crate::{VolumeView, ino_of};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use systx_base::{Kind, NodeId, Oid};
use systx_guard::change::{Change, Place, Versioned};
use systx_guard::inode_locks::writers::FileAt;
use systx_guard::publication::{BARRIER, Opens, ViewZero};
use systx_guard::zero::Zero;
use systx_lfs_store::stamp_of;
use systx_store::io::{HostId, Stamp};
use systx_txn::ObjectRef;
use systx_vfs::api::{Caller, Entry, Reply};

/// An object that a request changes.
pub(crate) struct Object<'v> {
    pub view: &'v VolumeView,
    pub id: HostId,
    pub kind: Kind,
}

impl std::fmt::Debug for Object<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id.fmt(f)
    }
}

impl Object<'_> {
    /// Its key in the conflict engine.
    pub fn oid(&self) -> Oid {
        self.id.oid()
    }

    pub fn place(&self) -> (Oid, Place<'_>) {
        (self.oid(), Place::Own(self))
    }

    /// The two objects that every change of a name in it writes.
    pub fn change_of<'n>(&self, name: &'n [u8]) -> [ObjectRef<'n>; 2] {
        [ObjectRef::Entry { dir: self.oid(), name }, ObjectRef::List(self.oid())]
    }

    /// A change of this object alone.
    pub fn touched<'a>(&'a self, by: Caller, writes: &'a [ObjectRef<'a>]) -> Change<'a> {
        let subject = Some(self.place());
        // For a change of a directory the kernel keeps the lock that all its names need.
        let may_stall = self.kind != Kind::Dir;
        Change { by, reads: &[], writes, subject, places: &[], may_stall }
    }

    pub fn id(&self) -> HostId {
        self.id
    }

    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }
}

impl Versioned for Object<'_> {
    fn id(&self) -> HostId {
        self.id
    }
    fn stamp(&self) -> Reply<Stamp> {
        let number = self.id.number();
        Ok(stamp_of(number, &self.view.look(|ops| ops.attrs(number))?))
    }
}

/// A change of names in directories.
pub(crate) fn renaming<'a>(
    by: Caller,
    writes: &'a [ObjectRef<'a>],
    places: &'a [(Oid, Place<'a>)],
) -> Change<'a> {
    Change { by, reads: &[], writes, subject: None, places, may_stall: true }
}

/// Refuses the name of barriers.
pub(crate) fn expect_free(name: &[u8]) -> Reply<()> {
    if name == BARRIER { Err(Errno::PERM) } else { Ok(()) }
}

impl ViewZero for VolumeView {
    fn root_id(&self) -> Option<HostId> {
        self.table.id(ino_of(NodeId::ROOT)).map(|(id, _)| id)
    }
    fn node_of(&self, id: HostId) -> Option<NodeId> {
        let (known, _) = self.table.id(id.number())?;
        (known == id).then_some(NodeId(id.number()))
    }
    fn number_of(&self, id: HostId) -> Option<NodeId> {
        Some(NodeId(id.number()))
    }
    fn is_dir(&self, node: NodeId) -> bool {
        self.table.id(ino_of(node)).is_some_and(|(_, kind)| kind == Kind::Dir)
    }
    fn file_of(&self, oid: Oid) -> Option<FileAt> {
        self.table.file_of(oid)
    }
    fn files(&self) -> Vec<(NodeId, HostId)> {
        self.table.files()
    }
    fn supersede(&self, id: HostId) {
        self.table.supersede(id);
    }
    fn opens(self: Arc<Self>) -> Option<Arc<dyn Opens>> {
        self.told.clone().map(|told| told as Arc<dyn Opens>)
    }
}

impl Zero for VolumeView {
    fn special(&self, node: NodeId) -> Option<HostId> {
        let (id, kind) = self.table.id(ino_of(node))?;
        matches!(kind, Kind::Socket | Kind::Fifo).then_some(id)
    }
    fn hand_out_met(&self, _: Option<OwnedFd>, id: HostId) -> Reply<Option<Entry>> {
        match self.hand_out(id.number()) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT | Errno::STALE) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
    fn names_of(&self, _: NodeId) -> Reply<Vec<Vec<u8>>> {
        Err(Errno::NOSYS)
    }
    fn known(&self) -> usize {
        self.table.len()
    }
    fn is_told(&self) -> bool {
        self.told.is_some()
    }
}
