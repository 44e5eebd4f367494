//! The commit: the one place where the order of its steps stands.
//!
//! A commit has one part for each file system on which its transaction works; one part is the
//! usual case.  Each step is a type that is made by the step before it:
//!
//! | step | made by | what holds from then on |
//! |---|---|---|
//! | [`Commit`] | [`Commit::new`] | the write sets are frozen and validated by the caller |
//! | [`Reserved`] | [`Commit::reserve`] | there is room for all parts |
//! | [`Decided`] | [`Reserved::decide`] | the transaction cannot lose; requests about it are held |
//! | [`Durable`] | [`Decided::durable`], [`durable_all`] | a power cut does not take it |
//! | [`Placed`] | [`Durable::place`] | its changes are in the tree, still held |
//! | [`Installed`] | [`Placed::release`] | everybody sees all of it |
//!
//! Each step has two exits.  One is the next step.  The other is to stop: the error of the next
//! step, or the drop of the value.  Before the first part is decided a stop leaves the transaction
//! as it was, and it may commit again.  From then on a stop aborts it on all of its file systems.
//!
//! | module | |
//! |---|---|
//! | `site` | where a part takes effect |
//! | `steps` | the steps up to the decision |
//! | `record` | the commit point: one record, or a joint commit over several stores |
//! | `place` | installation and release |
//! | `late` | commits that are decided and could not be installed then |
//! | `numbers` | what a store is told of an order beside its commits |
//! | `relaxed` | the thread that finishes commits whose programs did not wait for the disk |
//! | `checkpoints` | lets a journal forget what is installed |

#![forbid(unsafe_code)]

mod checkpoints;
mod late;
mod numbers;
mod place;
mod record;
mod relaxed;
mod site;
mod steps;
mod stopped;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing;

pub use checkpoints::Checkpoints;
pub use late::finish_late;
pub use numbers::set_order;
pub use place::{Installed, Placed};
pub use record::{Durable, durable_all};
pub use relaxed::{Relaxed, Then};
pub use site::Site;
pub use steps::{Commit, Decided, Part, Reserved, stamp_of};
pub use stopped::Stopped;
