//! Transactions that no client owns: a directory to work below, until they are committed or
//! aborted.

use super::{HostPath, Isolation, Place, Policy, Transport, VolumeFacts, id_text};
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
    /// How urgent it is, as a nice value: lower wins.  `None`: as the thread is, at the moment of a
    /// conflict, that works in it.
    pub nice: Option<i32>,
    /// As [`super::Begin::policy`].
    #[serde(default)]
    pub policy: Option<Policy>,
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

/// A visit to a kept transaction may begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// The volume.
    pub volume: VolumeFacts,
    /// The further volumes that it covers.
    pub others: Vec<VolumeFacts>,
    /// A process that is in the view now: join its namespaces, do not mount and do not attach.
    pub live: Option<u32>,
    /// Where the volume is mounted as the transaction sees it: show that, do not attach, do not
    /// leave.
    pub mounted: Option<HostPath>,
    /// As [`super::Begun::unprotected`].
    pub unprotected: Vec<HostPath>,
}
