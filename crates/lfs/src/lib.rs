//! A log-structured volume: the log is the recovery data, the before-images and the only copy at
//! once, and a commit is one sequential write.
//!
//! Nothing is overwritten while anything may need it.  A group of changes is written as one piece
//! of a segment, a summary and blocks; its sums, its chain, its epoch and its generation say that
//! it is there, and nothing else does.  The inode map and the usage table are written by
//! checkpoints, into two regions in turn; opening reads the newest and follows the log from
//! there.
//!
//! A [`Volume`] is opened on a [`device::Device`].  Programs' changes are [`Txn`]s: operations
//! ([`Ops`]) whose outcomes nobody else sees, until a commit makes them visible and durable as a
//! whole.  Isolation beyond that is for the layer above: a commit here refuses only what would
//! break the tree.
//!
//! From the bottom up: `device`, `format`, `usage`, `object`, `pack`, `entry`, `rules`, `piece`,
//! `txn`, `veil`, `moments`, `reads`, `tree`, `group`, `superblock`, `root`, `promise`, `ops`,
//! `pending`, `state`, `checkpoint`, `recovery`, `cleaner`, `fsck`, `snapshots`, `volume`,
//! `stream`, `background`.

#![forbid(unsafe_code)]

mod background;
mod checkpoint;
mod cleaner;
pub mod device;
mod entry;
mod error;
pub mod format;
pub mod fsck;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod group;
mod moments;
mod object;
mod objects;
mod ops;
mod pack;
mod pending;
mod piece;
mod promise;
mod reads;
mod recovery;
mod root;
mod rules;
mod snapshots;
mod state;
mod strays;
mod stream;
mod superblock;
mod tree;
mod turns;
mod txn;
mod usage;
mod veil;
mod volume;

pub use background::{CleanerThread, Figures};
pub use cleaner::{Candidate, Cleaned, CostBenefit, Greedy, Policy, Scatter};
pub use error::{Error, Result, Structure};
pub use object::{Attrs, Link, PAGES_MAX, XATTRS_MAX};
pub use ops::{Ops, Rename, SetAttrs, SetXattr, Shape};
pub use promise::Promise;
pub use recovery::Report;
pub use root::Origin;
pub use snapshots::{SnapshotInfo, View};
pub use state::Limits;
pub use stream::{StreamHeader, receive, send};
pub use superblock::{grow, mend as mend_super, read_super};
pub use tree::Clock;
pub use txn::Txn;
pub use veil::Hidden;
pub use volume::{
    Format, Moment, Packed, Plan, Round, Space, Tended, Tending, Volume, fitting, mkfs,
};
