//! Where each open makes a message: view 0 knows who has what open.

use super::{KeptOut, Relied, Writers};
use crate::publication::Opens;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use systx_base::NodeId;
use systx_store::io::{HostId, Openers};
use systx_vfs::api::Reply;
use systx_vfs::neighbours::NotQuiet;

/// See the module.
pub(super) struct Told {
    pub opens: Arc<dyn Opens>,
}

impl Told {
    fn written(&self, relied: &Relied<'_>) -> impl Iterator<Item = (NodeId, HostId)> {
        self.opens.open_for_writing().into_iter().filter(|(node, id)| relied.has(*node, *id))
    }
}

impl Writers for Told {
    fn written_to(&self, id: HostId) -> Option<NodeId> {
        self.opens.written_to(id)
    }
    fn open_for_writing(&self) -> Vec<(NodeId, HostId)> {
        self.opens.open_for_writing()
    }
    fn openers(&self, id: HostId) -> Option<Openers> {
        self.opens.openers(id)
    }
    /// Nobody has to be kept out of a file that is not open: its next opening is held.
    fn to_lock(&self, id: HostId) -> Option<NodeId> {
        self.opens.written_to(id)
    }
    fn keep_out(&self, id: HostId) -> Option<KeptOut> {
        self.opens.written_to(id).is_none().then(KeptOut::default)
    }
    fn keep_all_out(
        &self,
        relied: &Relied<'_>,
        _: &mut KeptOut,
    ) -> Result<Vec<(NodeId, HostId)>, NotQuiet> {
        Ok(self.written(relied).collect())
    }
    fn are_kept_out(&self, relied: &Relied<'_>, locked: &HashSet<HostId>, _: &KeptOut) -> bool {
        self.written(relied).all(|(_, id)| locked.contains(&id))
    }
    fn shown(&self, _: HostId, _: &[u8]) -> Reply<Option<OwnedFd>> {
        Ok(None)
    }
    fn keeps_locks(&self) -> bool {
        false
    }
}
