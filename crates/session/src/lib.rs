//! The processes of one transaction: a private root for them, their start, their end.
#![deny(unsafe_code)]

mod calls;
mod channel;
mod error;
mod ids;
mod inherited_unsafe;
mod launch;
mod limits;
pub mod mountinfo;
pub mod plan;
pub mod processes;
mod seccomp_unsafe;
mod sockets;
pub mod stand_in;
mod start;
mod supervise;
mod sys_unsafe;
mod terminal;
mod unix_diag;
mod view;
mod watch;

/// What mount tables name as the source of a view; guarded directories are of the same type.
pub const VIEW_SOURCE: &str = "systx-view";

pub use error::{Failed, SessionError};
pub use inherited_unsafe::{own_signals, suffer};
pub use launch::become_server;
pub use limits::Limits;
pub use start::{
    PlaceToRun, Serve, Spec, Started, ViewFacts, execute, plan_here, privileged, start,
};
pub use supervise::{Answer, Ended, GRACE, Leftovers, Listen, Settled};
pub use view::{Backing, Fill};
pub use watch::Sighting;
