//! How far a request is.

use serde::{Deserialize, Serialize};
use systx_base::progress::{self, Seen};

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Is everything that was met as it was?
    Checking,
    /// What will be overwritten is kept for undo.
    Saving,
    /// Waits for the disk.
    Syncing,
    /// The outcomes are put in place.
    Installing,
}

/// How far a request is that another connection made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// So many objects or names are done.
    pub done: u64,
    /// Of so many; 0 if they are not counted.
    pub total: u64,
}

impl From<Seen> for Progress {
    fn from(seen: Seen) -> Progress {
        let phase = match seen.phase {
            progress::Phase::Checking => Phase::Checking,
            progress::Phase::Saving => Phase::Saving,
            progress::Phase::Syncing => Phase::Syncing,
            progress::Phase::Installing => Phase::Installing,
        };
        Progress { phase, done: seen.done, total: seen.total }
    }
}
