//! Proof of isolation from the outside: what clients saw, checked for a serial order.
//!
//! - [`history`]: what is recorded;
//! - [`world`], [`search`]: whether a serial order explains it;
//! - [`explain`]: the least that cannot be explained, in words.
//!
//! Nothing here knows how systx works: it is used as everybody uses it, by paths and by its command.

pub mod explain;
pub mod history;
pub mod search;
pub mod world;

pub use history::{Atom, Cell, History, Kind, Outcome, State, Step, Unit};
pub use search::{Verdict, check};
