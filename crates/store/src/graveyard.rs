//! Where a store keeps what its transactions have displaced: what undo and a look back work with.

use crate::interface::InUse;
use crate::io::{Handle, HostId, Tree};
use crate::writeset::Slot;
use systx_base::TxnId;

/// Where what was displaced is.
#[derive(Clone, Copy)]
pub struct Graveyard<'a> {
    /// The committed tree.
    pub tree: &'a dyn Tree,
    /// The directory with what was displaced.
    pub dir: &'a Handle,
    /// The store's own directory.
    pub own: HostId,
    /// Whether the tree is an overlay file system, see [`crate::overlay`].
    pub overlay: bool,
    /// Whether an undo moves what a transaction has overwritten out of its before-file, which is
    /// empty then, instead of copying it.
    pub moves: bool,
}

/// Makes a staging slot with the first bytes of a before-file, as many as are said; `ENOENT` if
/// they were moved away.
pub type Stage<'a> = dyn Fn(&Handle, u64) -> std::io::Result<Slot> + 'a;

/// Keeps what transactions have displaced from being collected; `None` if that has begun.
pub type Hold<'a> = dyn Fn(Vec<TxnId>) -> Option<InUse> + 'a;
