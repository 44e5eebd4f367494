//! What is protected by transactions, and what is outside of them.

use super::HostPath;
use serde::{Deserialize, Serialize};

/// Asks what is protected, and perhaps to change that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protect {
    /// What, absolute; `None`: everything that bears a mark of the user's own.
    pub path: Option<HostPath>,
    /// Whether it is to be protected from now on; `None`: it stays as it is.
    pub change: Option<bool>,
    /// Inode of the client's mount namespace: paths mean something only in one.
    pub mnt_ns: u64,
}

/// Whether something is protected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// What.
    pub path: HostPath,
    /// Its changes are a matter of transactions.
    pub protected: bool,
    /// Where the mark is that says that it is not: here, or at a directory above.  Of what is
    /// protected: a mark that means something which is not there any more.
    pub mark: Option<HostPath>,
    /// Sentences for the user.
    pub notes: Vec<String>,
}
