//! What an installation tells of itself.

use crate::io::Stamp;
use systx_base::TxnId;

/// What an outsider did that met a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outside {
    /// Something was at a name that the transaction gives to an object of its own.
    Appeared,
    /// The object itself was changed.
    Changed,
    /// The object, or the directory that it belongs in, was gone.
    Gone,
    /// The system refused a step, with this errno.
    Refused(i32),
    /// The file system did not take an extended attribute; its value is kept.
    NoXattr {
        /// Its name.
        key: Vec<u8>,
        /// What the file system said.
        errno: i32,
    },
}

/// One collision of an installation with an outsider.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutsideChange {
    /// Path below the volume root.
    pub path: Vec<u8>,
    /// What was found.
    pub what: Outside,
    /// Where the outsider's version is kept, or (where `path` could not be written) ours; below the
    /// volume root.  `None`: there is nothing to keep, or it was left where it is.
    pub kept_as: Option<Vec<u8>>,
}

/// What an installation did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApplyReport {
    /// The transaction.
    pub txn: TxnId,
    /// Its position in the log.
    pub lsn: u64,
    /// For each object of the write set, its version after the installation, also of what is in the
    /// graveyard now; `None` if it is nowhere.
    pub stamps: Vec<Option<Stamp>>,
    /// What outsiders had done meanwhile.
    pub outside: Vec<OutsideChange>,
}
