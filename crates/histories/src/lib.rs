//! Proof of isolation from the outside: what clients saw, checked for a serial order.
//!
//! - [`history`]: what is recorded;
//! - [`world`], [`search`]: whether a serial order explains it;
//! - [`explain`]: the least that cannot be explained, in words;
//! - [`arena`]: a directory, and transactions over it;
//! - [`driver`], [`hot`]: random work of several processes, recorded and checked;
//! - [`listings`]: directories that change while others look;
//! - [`maildir`], [`maze`]: pairs of programs that fail on a plain directory;
//! - [`exclusion`]: locks of files, tried out by processes that come, go and are killed;
//! - [`accounts`]: three files that belong together, with crashes.
//!
//! Nothing here knows how systx works: it is used as everybody uses it, by paths, by its command
//! and by its library.

pub mod accounts;
pub mod arena;
pub mod dice;
pub mod driver;
pub mod exclusion;
pub mod explain;
pub mod history;
pub mod hot;
pub mod listings;
pub mod maildir;
mod mapping_unsafe;
pub mod maze;
pub mod pair;
mod record_unsafe;
pub mod search;
pub mod world;

pub use history::{Atom, Cell, History, Kind, Outcome, State, Step, Unit};
pub use search::{Verdict, check};
