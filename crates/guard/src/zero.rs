//! View 0, beside which threads see their transactions ([`crate::aliases`]).

use crate::publication::ViewZero;
use std::os::fd::OwnedFd;
use systx_base::NodeId;
use systx_store::io::HostId;
use systx_vfs::api::{Entry, Reply, Requests};

/// The plain view of a mount, as its alias roots know it.
pub trait Zero: Requests + ViewZero {
    /// Which object a node is, if it is a socket or a FIFO.
    fn special(&self, node: NodeId) -> Option<HostId>;
    /// Hands an object out that a transaction has met: one more lookup of its node. `file`: a
    /// descriptor of it (`O_PATH`), where there is a file system below. `None`: it is in no view.
    ///
    /// # Errors
    /// It cannot be read.
    fn hand_out_met(&self, file: Option<OwnedFd>, id: HostId) -> Reply<Option<Entry>>;
    /// The names that lead from the root to a directory, as the kernel knows them now.
    ///
    /// # Errors
    /// `ENOENT`: it is removed, or not below the root any more; `ENOSYS`: nobody can tell.
    fn names_of(&self, dir: NodeId) -> Reply<Vec<Vec<u8>>>;
    /// How many nodes the kernel knows.
    fn known(&self) -> usize;
    /// Whether opens make messages.
    fn is_told(&self) -> bool;
}
