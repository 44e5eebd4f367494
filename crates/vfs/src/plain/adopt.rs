//! Taking over from another view: nodes that the kernel knows, and what is open of them.

use super::Plain;
use crate::plain::files::Opens;
use std::os::fd::OwnedFd;
use systx_base::{Kind, NodeId};
use systx_store::io::HostId;

impl Plain {
    /// Inodes get these numbers when they are met, and nothing else gets a number up to `last`.
    pub(crate) fn keep_numbers(&self, numbers: impl Iterator<Item = (HostId, NodeId)>, last: u64) {
        self.table.keep_numbers(numbers, last);
    }

    /// Whether the node is here already.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.table.has(id)
    }

    /// `fd` (`O_PATH`) is what the kernel knows as node `id` and has open in these ways. It is here
    /// until the kernel forgets it or closes the last of these opens.
    pub(crate) fn adopt(&self, id: NodeId, fd: OwnedFd, host: HostId, kind: Kind, opens: Opens) {
        let node = self.table.adopt(id, fd, host, kind);
        node.files.lock().adopt(opens);
        for _ in 0..opens.count() {
            self.table.opened(id);
        }
    }
}
