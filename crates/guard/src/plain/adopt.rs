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

    /// Opens below what is open of a file, which is done with the first request as a rule.
    pub(crate) fn open_at_once(&self, id: NodeId) {
        let Ok(node) = self.table.node(id) else { return };
        if node.kind != Kind::File {
            return;
        }
        let is_written = node.files.lock().is_written();
        let opened = if is_written {
            self.writer(&node, false).map(drop)
        } else {
            self.reader(&node).map(drop)
        };
        if let Err(errno) = opened {
            tracing::debug!(%errno, ?id, "not opened");
        }
    }
}
