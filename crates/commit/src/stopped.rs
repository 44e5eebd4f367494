//! Why a commit went no further.

use crate::Site;
use rustix::io::Errno;
use systx_base::TxnId;
use systx_store::{ApplyError, CommitError, OpenError, ReserveError};
use systx_txn::Conflict;
use thiserror::Error;

/// Why a commit went no further.  Paths are absolute.
#[derive(Debug, Error)]
pub enum Stopped {
    /// Another transaction has won before the decision.
    #[error("another transaction has won")]
    Lost {
        /// The place of the file system among all, see [`systx_vfs::volume::Volume::order`].
        at: usize,
        /// Over what.  The engine may know it no more.
        why: Box<Conflict>,
    },
    /// Programs outside have changed these paths after the validation.
    #[error("programs outside have changed what it changes")]
    Changed(Vec<Vec<u8>>),
    /// There is no room for it.  It is still there, and may commit when there is.
    #[error(transparent)]
    NoRoom(ReserveError),
    /// The store of a file system cannot be opened.
    #[error("{error}")]
    NoStore {
        /// Its directory, absolute.
        store: Vec<u8>,
        /// Why.
        error: OpenError,
    },
    /// Another transaction with this number was committed meanwhile, by another process.
    #[error(
        "another transaction with the number {0} was committed meanwhile: nothing of this one is \
         committed"
    )]
    Taken(TxnId),
    /// The kernel's caches of a guarded directory could not be invalidated.
    #[error("the kernel's caches of a guarded directory could not be invalidated: {0}")]
    NotPublished(Errno),
    /// The store has refused the record.
    #[error(transparent)]
    NotCommitted(CommitError),
    /// The commit point was reached or may have been.  Recovery finds out, and finishes it.
    #[error(transparent)]
    InDoubt(CommitError),
    /// It is committed and not in place.  A later commit there, or recovery, tries again.
    #[error(transparent)]
    NotPlaced(ApplyError),
}

impl Stopped {
    pub(crate) fn no_store(site: &Site, error: OpenError) -> Stopped {
        Stopped::NoStore { store: site.store_path.clone(), error }
    }

    /// The store's answer to a record; `absolute` makes a path of that store absolute.
    pub(crate) fn by_store(error: CommitError, absolute: impl Fn(&[u8]) -> Vec<u8>) -> Stopped {
        match error {
            CommitError::Changed { paths } => {
                Stopped::Changed(paths.iter().map(|path| absolute(path)).collect())
            }
            CommitError::InDoubt(_) => Stopped::InDoubt(error),
            _ => Stopped::NotCommitted(error),
        }
    }
}
