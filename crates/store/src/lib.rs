//! Durable versions. A transaction arrives as a [`WriteSet`](writeset::WriteSet) of absolute
//! outcomes; the store makes it durable in one step and then installs it, so that a crash at any
//! instant leaves the state before or after. The store knows bytes, names and attributes; isolation
//! is the job of the layers above it. All disk access goes through [`io::Io`], so that the same
//! code runs on a real file system, in the crash simulator, and under fault injection.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
#[path = "allocations_unsafe.rs"]
mod allocations;
mod archive;
mod bundle;
mod class;
mod content;
mod decisions;
mod dir_store;
mod env;
mod error;
mod footprint;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod graveyard;
mod history;
pub mod host_locks;
mod host_locks_unsafe;
mod install;
mod instance;
mod interface;
pub mod io;
mod joiner;
mod joint;
mod journal;
mod kept;
mod layout;
pub mod lease;
mod lock;
mod look_back;
mod mark;
mod on_demand;
mod open_dirs;
mod orders;
mod origins;
pub mod overlay;
mod prepare;
pub mod quota;
pub mod real;
mod real_unsafe;
pub mod record;
mod recovery;
mod report;
mod returned;
mod space;
mod spare;
mod staging;
mod super_block;
mod survivors;
#[cfg(test)]
mod testing;
mod times;
mod trust;
mod undo;
mod unused;
mod versions;
pub mod writeset;
mod xattrs;

pub use decisions::{is_there, is_undecided, outcome};
pub use dir_store::{AGE, Config, LEAST, LOGGED, Looked, SHARE, usual_limits};
pub use error::{
    ApplyError, CheckpointError, CommitError, OpenError, Poisoned, Refused, ReserveError, UndoError,
};
pub use footprint::{Disjoint, Footprint, Meeting, overwritten_pages};
pub use graveyard::{Tracked, Versions};
pub use history::{Change, ChangeKind, CommitMeta, HistoryEntry, Told, TxnKind, changes};
pub use instance::Instance;
pub use interface::{
    Committed, Forgotten, GcReport, InUse, Keep, Late, Past, PastSide, Ready, Reservation, Seat,
    Store, Undo, Wanted,
};
pub use joiner::{Joiner, JointError, Part};
pub use joint::{Decision, Joint, Member, Nobody, Outcome, Outcomes};
pub use kept::Bundled;
pub use on_demand::{Lease, OnDemand, Opens};
pub use recovery::{RecoveryReport, check_place, open, open_among, overlay_of};
pub use report::{ApplyReport, Outside, OutsideChange};
pub use times::Times;
pub use trust::{Known, Owner, Registry};
pub use writeset::{Slot, Staging};
