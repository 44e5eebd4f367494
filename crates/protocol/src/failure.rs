//! Why a request failed.

use super::HostPath;
use serde::{Deserialize, Serialize};

/// Which kind of failure; decides the exit code and the hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No such transaction.
    NotFound,
    /// The request makes no sense in this state (for instance commit of a running transaction).
    State,
    /// The request itself is wrong (a path outside the volume, …).
    Invalid,
    /// Someone else uses it: another daemon the store, a process the file.
    Busy,
    /// Later changes overlap (undo).
    Overlap,
    /// This kernel, file system or user cannot do it.
    Unsupported,
    /// No space, a limit.
    Space,
    /// A quota is used up.
    Quota,
    /// The store is damaged or of another version.
    Store,
    /// An I/O error.
    Io,
    /// The other side does not speak this version.
    Version,
    /// A fault of systx itself.
    Internal,
}

/// A request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which kind.
    pub kind: FailureKind,
    /// For a person: lower case, no full stop, names what it was about.
    pub message: String,
    /// What the person could do.
    pub hint: Option<String>,
    /// What it was about.
    pub paths: Vec<HostPath>,
}

impl Failure {
    /// A failure without hint and paths.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into(), hint: None, paths: Vec::new() }
    }
    /// Adds what the person could do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// Adds what it was about.
    #[must_use]
    pub fn path(mut self, path: impl Into<HostPath>) -> Self {
        self.paths.push(path.into());
        self
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
