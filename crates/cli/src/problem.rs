//! Errors of a command: what is said, and which exit code it means.

use serde::Serialize;
use systx_protocol::{Failure, FailureKind, Holder, HostPath};
use systx_session::SessionError;

/// Lost a conflict; try again (`EX_TEMPFAIL`).
pub const CONFLICT: i32 = 75;
/// Committed, but a change by an outsider was met while installing, and kept.
pub const OUTSIDE: i32 = 76;
/// The time limit passed, as timeout(1).
pub const TIMED_OUT: i32 = 124;
/// systx itself failed, where the code could otherwise be CMD's (run, enter).
pub const FAILED: i32 = 125;
/// A command other than run and enter failed.
pub const ERROR: i32 = 1;
/// Bad usage of a command other than run and enter.
pub const USAGE: i32 = 2;

/// What went wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// For a person; lower case, no full stop.
    pub message: String,
    /// What the person could do.
    pub hint: Option<String>,
    /// What it was about.
    pub paths: Vec<HostPath>,
    /// Which kind, where the daemon said so.
    pub kind: Option<FailureKind>,
    /// Exit code, if it is not the command's usual one.
    pub code: Option<i32>,
    /// Who is in the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
}

impl Problem {
    /// Only a message.
    pub fn new(message: impl Into<String>) -> Problem {
        Problem {
            message: message.into(),
            hint: None,
            paths: Vec::new(),
            kind: None,
            code: None,
            holders: Vec::new(),
        }
    }
    /// Adds what the person could do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }
    /// Sets the exit code.
    #[must_use]
    pub fn code(mut self, code: i32) -> Problem {
        self.code = Some(code);
        self
    }
}

impl From<Failure> for Problem {
    fn from(f: Failure) -> Problem {
        // Someone else has it right now: the same command may succeed a moment later.
        let code = (f.kind == FailureKind::Busy).then_some(CONFLICT);
        Problem {
            hint: f.hint,
            paths: f.paths,
            kind: Some(f.kind),
            code,
            ..Problem::new(f.message)
        }
    }
}

impl From<SessionError> for Problem {
    fn from(e: SessionError) -> Problem {
        let hint = e.hint();
        Problem { hint, code: Some(e.exit_code()), ..Problem::new(e.to_string()) }
    }
}

impl From<std::io::Error> for Problem {
    fn from(e: std::io::Error) -> Problem {
        Problem::new(e.to_string())
    }
}
