//! A guarded directory whose commits are certified in an order that all replicas agree on
//! (docs/decisions/0049-replicated-directories.md).

pub mod install;
pub mod limits;
pub mod model;
pub mod replica;
pub mod snapshot;
pub mod socket;
pub mod versions;

use std::io;

/// The replica's own directory in the one that is replicated.
pub const OWN: &str = ".replicate";

/// What is not as it should be.
pub fn wrong(why: impl Into<String>) -> io::Error {
    io::Error::other(why.into())
}
