//! What a view asks about the snapshot that it shows, if it shows one.

use super::{State, View};
use crate::node::Base;
use crate::snapshot::Frozen;
use systx_base::{NodeId, Oid};
use systx_store::io::{Handle, HostId};

impl View {
    /// Whether an object that was met is of a snapshot: it does not change, whatever others do.
    pub(crate) fn is_frozen(&self, oid: Oid) -> bool {
        self.frozen.as_ref().is_some_and(|frozen| frozen.covers(oid))
    }

    /// Whether it shows a snapshot of guarded directories.
    pub fn is_snapshot(&self) -> bool {
        self.frozen.is_some()
    }

    /// Whether the snapshot that it shows was given up, because there was no room to keep it.
    pub fn is_given_up(&self) -> bool {
        self.frozen.as_ref().is_some_and(Frozen::is_given_up)
    }

    /// A handle as the file system itself knows it.
    pub(crate) fn bare<'h>(&self, handle: &'h Handle) -> &'h Handle {
        self.frozen.as_ref().map_or(handle, |frozen| frozen.moment.bare(handle))
    }

    /// Whether an object that is met for the first time is of the snapshot.
    pub(crate) fn meet_frozen(&self, st: &State, dir: NodeId, id: HostId) -> bool {
        let Some(frozen) = &self.frozen else { return false };
        let dir = st.base(dir).ok().map(Base::oid);
        let covered = frozen.covers_in(dir, id);
        if covered {
            frozen.meet(self.vol.oid(id));
        }
        covered
    }
}
