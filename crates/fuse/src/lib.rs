//! FUSE server: brings the kernel's requests to a view ([`systx_vfs::api::Requests`]) and the
//! answers back.
//!
//! Layers, top to bottom:
//! - `connection`: set-up, life and end of one connection; the public interface;
//! - `uring`, `dev`: the two transports, threads that fetch requests and send answers;
//!   `crew`: those threads' beginning and end; `ring_unsafe`, `device`: the kernel's interfaces;
//! - `server`: one request from bytes to answer; `locks`: waiting for file locks; `mapped`: what
//!   was stored to mappings and has not come here; `listings`: what the kernel keeps of directories
//!   that change;
//! - `post`, `watchdog`, `control`: who serves what since when, and the end of a connection that
//!   does not answer;
//! - `idle_class`: the scheduling class of the workers, by what else the machine has to do;
//! - `decode`, `reply`, `init`, `wire`: the protocol, pure.
//!
//! Trust: the kernel is trusted to be the kernel, yet every length is checked: malformed bytes end
//! in `EIO` or in the end of the connection, never in a panic.  The view is trusted with content,
//! not with liveness: its panics become `EIO`, its blocking blocks one request, and if it never
//! answers the connection is cut off.

#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as systx_fuse;
#[cfg(test)]
#[path = "../tests/memfs/mod.rs"]
mod memfs;

mod caches;
mod config;
mod connection;
mod control;
mod cpu;
mod crew;
pub mod decode;
mod dev;
mod device;
mod device_unsafe;
mod idle_class;
mod in_flight;
mod init;
mod listings;
mod locks;
mod mapped;
mod node_unsafe;
mod post;
mod reply;
mod ring_unsafe;
mod sched_unsafe;
mod server;
mod stats;
mod uring;
mod watchdog;
pub mod wire;

pub use caches::KernelCaches;
pub use config::{Config, FileLocks, Patience, Readdirplus, Transport, Users};
pub use connection::{Connection, serve};
pub use stats::Stats;
