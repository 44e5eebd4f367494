//! What commits and snapshots ask of the plain view of a guarded directory.

use super::Plain;
use crate::inode_locks::writers::FileAt;
use crate::publication::{Opens, ViewZero};
use std::sync::atomic::Ordering::Relaxed;
use systx_base::{NodeId, Oid};
use systx_store::io::{HostId, Openers};

impl ViewZero for Plain {
    fn root_id(&self) -> Option<HostId> {
        self.table.node(NodeId::ROOT).ok().map(|node| node.host)
    }
    fn node_of(&self, id: HostId) -> Option<NodeId> {
        self.table.of_host(id).map(|node| node.id)
    }
    fn is_dir(&self, node: NodeId) -> bool {
        Plain::is_dir(self, node)
    }
    fn file_of(&self, oid: Oid) -> Option<FileAt> {
        self.table.of_oid(oid)
    }
    fn files(&self) -> Vec<(NodeId, HostId)> {
        self.table.files()
    }
    fn supersede(&self, id: HostId) {
        if let Some(node) = self.table.of_host(id) {
            node.superseded.store(true, Relaxed);
        }
    }
    fn opens(&self) -> Option<&dyn Opens> {
        self.told.then_some(self)
    }
}

impl Opens for Plain {
    fn written_to(&self, id: HostId) -> Option<NodeId> {
        self.table.of_host(id).filter(|node| node.files.lock().is_written()).map(|node| node.id)
    }
    fn openers(&self, id: HostId) -> Option<Openers> {
        self.table.of_host(id)?.files.lock().openers()
    }
    fn open_for_writing(&self) -> Vec<(NodeId, HostId)> {
        let open = self.table.open_nodes();
        open.iter().filter(|n| n.files.lock().is_written()).map(|n| (n.id, n.host)).collect()
    }
}
