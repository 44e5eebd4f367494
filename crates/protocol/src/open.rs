//! Transactions that no client owns: a directory to work below, until they are committed or
//! aborted.

use super::{HostPath, Isolation, Place, Transport, VolumeFacts, id_text};
use serde::{Deserialize, Serialize};
use systx_base::TxnId;

/// Asks for a new transaction with a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginOpen {
    /// Where; `cwd` is the directory that the path shows, without symbolic links.
    pub place: Place,
    /// How strongly it is isolated.
    pub isolation: Isolation,
    /// Nothing will be committed; the reads are still validated.
    pub read_only: bool,
    /// Its nice value in the conflict policy: lower wins.
    pub nice: i32,
    /// How the view is served.
    pub transport: Transport,
    /// The open transaction that this one is another attempt of: it is dropped, and this one has
    /// its seniority, which grows with each loss.
    #[serde(with = "super::id_text::option", default)]
    pub retry: Option<TxnId>,
}

/// A transaction with a path was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunOpen {
    /// Its id.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// What is below here is in the transaction.
    pub path: HostPath,
    /// The directory of the host that it shows.
    pub directory: HostPath,
    /// The volume.
    pub volume: VolumeFacts,
    /// Sentences for the user.
    pub notes: Vec<String>,
}
