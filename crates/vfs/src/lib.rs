//! POSIX meaning: what every request does to one view.
//!
//! A view knows nothing of plain programs and of commits on their way to them but by the trait
//! [`Neighbours`](neighbours::Neighbours).  What it is asked by who implements that, and by who
//! goes on with its nodes after its commit, is public and small: [`Frozen`](snapshot::Frozen),
//! [`Handover`](handover::Handover), and a few methods of [`Volume`](volume::Volume).

#![deny(unsafe_code)]

pub mod acl;
pub mod api;
mod below;
pub mod changes;
pub mod claim;
pub mod client;
pub mod content;
pub mod freeze;
pub mod growing;
mod habits;
mod handles;
pub mod handover;
mod host_locks;
mod ids;
pub mod limits;
pub mod listing;
pub mod locks;
pub mod neighbours;
mod node;
mod numbers;
mod ops;
pub mod paths;
pub use locks::Openings;
mod reach;
mod request;
pub mod scope;
pub mod snapshot;
mod state;
pub mod validate;
pub mod view;
pub mod volume;
mod workset;
