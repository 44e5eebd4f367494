//! What commits and snapshots ask of the plain view of a guarded directory.

use super::{Plain, is_special};
use crate::inode_locks::writers::FileAt;
use crate::publication::{Opens, ViewZero};
use crate::sys;
use crate::zero::Zero;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use systx_base::{NodeId, Oid};
use systx_store::io::{HostId, Openers};
use systx_vfs::api::{Entry, Reply};

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
    fn opens(self: Arc<Self>) -> Option<Arc<dyn Opens>> {
        self.told.then_some(self as Arc<dyn Opens>)
    }
}

impl Zero for Plain {
    fn special(&self, node: NodeId) -> Option<HostId> {
        let node = self.table.node(node).ok()?;
        is_special(node.kind).then_some(node.host)
    }
    fn hand_out_met(&self, file: Option<OwnedFd>, _: HostId) -> Reply<Option<Entry>> {
        file.map_or(Ok(None), |file| self.hand_out(file))
    }
    fn names_of(&self, dir: NodeId) -> Reply<Vec<Vec<u8>>> {
        if dir == NodeId::ROOT {
            return Ok(Vec::new());
        }
        let open = |node| self.table.path(&*self.table.node(node)?);
        let rest = sys::path_below(open(NodeId::ROOT)?.as_fd(), open(dir)?.as_fd())?;
        Ok(rest.split(|b| *b == b'/').map(<[u8]>::to_vec).collect())
    }
    fn known(&self) -> usize {
        self.size().0
    }
    fn is_told(&self) -> bool {
        self.told
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
