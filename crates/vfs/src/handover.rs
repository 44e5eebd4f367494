//! What a view tells of its nodes to who goes on with them after its commit.
//!
//! The kernel keeps the numbers of nodes, whatever serves them.  So a plain view that takes the
//! place of a committed one has to know which object each number is, and holds what is open while
//! the commit puts other inodes into the places of those that are there.

use crate::api::Reply;
use crate::locks::Locks;
use crate::view::View;
use crate::volume::errno;
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::{Kind, NodeId};
use systx_store::io::{Handle, HostId};

/// See the module.
pub struct Handover<'v>(&'v View);

/// A node, as far as it matters to who serves it next.
pub struct Met {
    /// What it is.
    pub kind: Kind,
    /// It was there before the transaction, or has been committed.
    pub is_committed: bool,
    /// It has a name in the view.
    pub is_named: bool,
    /// The transaction has changed more of it than its names.
    pub is_changed: bool,
}

impl<'v> Handover<'v> {
    /// Of this view.
    pub fn of(view: &'v View) -> Handover<'v> {
        Handover(view)
    }

    /// A node that the view has handed out.
    ///
    /// # Errors
    /// `ESTALE`: it has not.
    pub fn met(&self, id: NodeId) -> Reply<Met> {
        let st = self.0.state.lock();
        let node = st.node(id)?;
        Ok(Met {
            kind: node.attr.kind,
            is_committed: node.base.is_some(),
            is_named: node.attr.nlink > 0,
            is_changed: node.is_changed(),
        })
    }

    /// The node of an object of the file system below, if the view has met it.
    pub fn node_of(&self, id: HostId) -> Option<NodeId> {
        self.0.state.lock().nodes.of_host(id)
    }

    /// Which object a node is, by what was installed last.
    pub fn committed_as(&self, id: NodeId) -> Option<HostId> {
        let st = self.0.state.lock();
        st.nodes.get(id)?.base.as_ref().map(|base| base.stamp.id())
    }

    /// The committed object of a node, found where it was installed: a handle of the file system
    /// below, also in the view of a snapshot.
    ///
    /// # Errors
    /// `ESTALE`: it is not there, or has been replaced.
    pub fn committed(&self, id: NodeId) -> Reply<(Handle, HostId, Kind)> {
        let reach = self.0.reach();
        let st = self.0.state.lock();
        let base = st.node(id)?.base.as_ref().filter(|base| !base.foreign).ok_or(Errno::STALE)?;
        let handle = match &base.place {
            None => reach.tree().root(),
            Some((parent, name)) => {
                let dir = reach.open_unrecorded(&st, *parent).map_err(|_| Errno::STALE)?;
                reach.tree().pin(&dir, name).map_err(|_| Errno::STALE)?
            }
        };
        let stat = reach.tree().stat(&handle).map_err(errno)?;
        if stat.id != base.stamp.id() {
            return Err(Errno::STALE);
        }
        Ok((reach.work.bare(&handle).clone(), stat.id, stat.kind))
    }

    /// The committed objects that have names, and their nodes.
    pub fn numbers(&self) -> Vec<(HostId, NodeId)> {
        let st = self.0.state.lock();
        st.nodes
            .iter()
            .filter_map(|(id, node)| {
                let base = node.base.as_ref().filter(|b| !b.foreign && node.attr.nlink > 0)?;
                Some((base.stamp.id(), id))
            })
            .collect()
    }

    /// What the transaction has made, or put in the place of something else, is there now: it is
    /// what its locks are on.  Asked while nobody else can get at it; where that is told by the
    /// mount itself (`--fast-open`), when the commit is `over`, since the mount waits for that.
    pub fn move_locks(&self, over: bool) {
        self.0.locks.move_to_files(self.0.reach(), &self.0.state, over);
    }

    /// The locks that are held, for whoever serves their owners from now on.
    pub fn take_locks(&self) -> Arc<Locks> {
        self.0.locks.take()
    }
}
