//! What a store keeps of committed transactions, for one that keeps them as this crate does: the
//! records of [`crate::history`], and a *graveyard*, a directory of the tree with what was
//! displaced under the names of [`grave_name`] and [`before_name`].
//!
//! What undoes a transaction, and what one has changed, is found from these alone.  So the store
//! of plain files and others share it.

pub use crate::graveyard::{Graveyard, Hold, Stage, Users};
pub use crate::history::{Before, Commit, Done, History, OldContent};
pub use crate::layout::{before_name, grave_name, grave_of, history_name, history_of};
pub use crate::look_back::look_back;
pub use crate::prepare::restored;
pub use crate::space::overwritten;
pub use crate::undo::undo;
pub use crate::writeset::index::Index;
