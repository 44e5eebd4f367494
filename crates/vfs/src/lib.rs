//! POSIX meaning: what every request does to one view.  `errno` is made here and nowhere else.

#![deny(unsafe_code)]

pub mod acl;
pub mod aliases;
pub mod api;
pub mod change;
pub mod changes;
pub mod claim;
pub mod client;
pub mod content;
pub mod freeze;
mod glimpse;
mod ground;
pub mod growing;
mod habits;
mod handles;
pub mod inode_locks;
pub mod landing;
pub mod limits;
pub mod listing;
pub mod locks;
pub mod neighbours;
mod node;
mod numbers;
mod ops;
pub use locks::Openings;
pub use node::oid_of;
pub mod past;
pub mod plain;
pub mod publication;
mod reach;
mod request;
pub mod retired;
pub mod scope;
pub mod shared;
pub mod snapshot;
mod sys;
pub mod validate;
pub mod view;
pub mod volume;
pub mod zero;
