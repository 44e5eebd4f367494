//! Sockets and FIFOs that were there before a transaction.
//!
//! Who listens at a socket, and who has a FIFO open at its other end, is known to the kernel by the
//! inode. So a transaction sees such a file as the inode of view 0, under that one's number, and
//! connect(2) and open(2) meet whoever is there. Its names are the transaction's, as those of all
//! files; what the transaction makes itself is its own until the commit.
//!
//! The attributes are those of view 0 as well. If somebody in a transaction changed them, all would
//! see that at once, so it is refused.

use super::member::Member;
use super::{Aliases, At};
use crate::plain::is_special;
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::NodeId;
use systx_vfs::api::*;
use systx_vfs::client;

impl Aliases {
    /// What is found in a transaction, as the kernel is told of it.
    ///
    /// # Errors
    /// Those of view 0.
    pub(super) fn told(&self, member: &Arc<Member>, entry: Entry) -> Reply<Entry> {
        let before = Some(entry.node).filter(|_| is_special(entry.attr.kind));
        if let Some((file, id)) = before.and_then(|node| member.lasting.untouched(node))
            && let Some(shared) = self.zero.hand_out_met(file, id)?
        {
            member.shared.lock().insert(shared.node);
            return Ok(shared);
        }
        member.told(entry)
    }

    /// The same node in a transaction, of one of view 0 that it sees.
    pub(super) fn in_member(&self, member: &Arc<Member>, node: NodeId) -> Option<NodeId> {
        member.lasting.node_of(self.zero.special(node)?)
    }

    /// Before attributes are changed.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: they are those of view 0, and who asks is in a transaction.
    pub(super) fn check_special(&self, at: &At) -> Reply<()> {
        let At::Zero(node) = at else { return Ok(()) };
        if self.zero.special(*node).is_none() || self.table.lock().members.is_empty() {
            return Ok(());
        }
        let routed = || Ok(self.routes.as_ref().map_or(Ok(None), |r| r.find())?.is_some());
        let inside = || self.control.get().is_some_and(|c| c.is_inside(client::thread()));
        if routed()? || inside() { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }
}
