//! A graph in one file. Blocks of requests come in an order that others have agreed on; threads
//! execute each block in ordered transactions, and the file ends as if one thread had executed one
//! request after another. README.md says what is promised and how it is used.

pub mod blocks;
pub mod execute;
pub mod executor;
pub mod file;
pub mod request;
pub mod serial;
pub mod server;

use std::io;

/// An error in words.
pub(crate) fn wrong(words: impl Into<String>) -> io::Error {
    io::Error::other(words.into())
}
