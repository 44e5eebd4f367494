//! The daemon: one process per user, outside every view, that keeps the transactions and serves
//! their views; and the control connection by which `systx` talks to it.

#![deny(unsafe_code)]

use systx_protocol::{self as protocol, wire};

mod averages;
pub mod blocked;
pub mod certify;
mod chores;
mod classes;
mod counts;
pub mod daemon;
mod deferred;
pub mod describe;
mod descriptors;
mod elsewhere;
mod fuse_mount;
mod fusermount;
pub mod guarded;
mod guards;
pub mod guests;
pub mod hall;
pub mod history;
pub mod holders;
mod image;
mod images;
mod in_line;
mod kcmp_unsafe;
pub mod keeper;
mod lasting;
pub mod ledger;
pub mod members;
mod memory_unsafe;
mod mount_private_unsafe;
pub mod mounts;
mod namespace_unsafe;
mod offer;
mod opening;
pub mod path_views;
pub mod patterns;
mod pidfd_unsafe;
pub mod processes;
#[cfg(feature = "record")]
mod recorded;
mod roster;
mod runs;
mod served;
pub mod server;
mod snapshots;
pub mod spawn;
mod spawn_unsafe;
mod stopped;
mod strays;
pub mod thread_orders;
pub mod thread_scopes;
pub mod thread_views;
pub mod top;
pub mod transaction;
pub mod transactions;
mod transports;
mod unprotected;
mod urgency;
mod urgency_unsafe;
pub mod volume;
mod volumes;
pub mod watch;
