//! A log-structured volume behind the interface of stores: above it nothing knows which kind of
//! store it is.
//!
//! A transaction is one commit of the volume: its write set, what of before is kept for undo, and
//! its record in the history are outcomes of one transaction of the log, and so one write.  There
//! is no journal.  The volume makes the commit durable before anybody sees it
//! ([`systx_lfs::Volume::commit_hidden`]), and [`Store::apply`](systx_store::Store::apply) only
//! shows it.
//!
//! From the bottom up: `error`, `own`, `before`, `orders`, `slot`, `tree`, `install`, `flow`,
//! `keep`, `reserve`, `commit`, `open`, `unnamed`, `interface`.

#![forbid(unsafe_code)]

mod before;
mod commit;
mod error;
mod flow;
mod install;
mod interface;
mod keep;
mod open;
mod orders;
mod own;
mod reserve;
mod slot;
mod tree;
mod unnamed;

pub use before::{Before, before};
pub use open::{Config, VolumeStore, open};
pub use own::NAME as OWN_DIRECTORY;
pub use tree::{VolumeTree, check_namespace, id_of, path_of, stamp_of};
