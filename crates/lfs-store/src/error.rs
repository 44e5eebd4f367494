//! Errors of a volume as the interface of stores has them.

use systx_lfs::Error;
use systx_store::{CommitError, Poisoned};

/// What a system call would say.
pub(crate) fn io_error(error: Error) -> std::io::Error {
    match error {
        Error::Io(error) => error,
        Error::Corrupt { .. } | Error::Unread { .. } => {
            tracing::error!(%error, "a volume is damaged");
            error.errno().into()
        }
        error => error.errno().into(),
    }
}

/// Why nothing was committed.
pub(crate) fn not_committed(error: Error) -> CommitError {
    match error {
        Error::Poisoned => CommitError::Poisoned(poisoned()),
        error => CommitError::Io(io_error(error)),
    }
}

/// An earlier write has failed.
pub(crate) fn poisoned() -> Poisoned {
    Poisoned { why: Error::Poisoned.to_string() }
}
