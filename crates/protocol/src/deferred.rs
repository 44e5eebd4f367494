//! What a transaction wants done outside after its commit: actions of service managers, which act
//! on what is committed.

use super::{HostPath, Place, id_text};
use serde::{Deserialize, Serialize};
use systx_base::TxnId;

/// A command and its arguments.
pub type Action = Vec<HostPath>;

/// At most so many actions of one transaction are kept.
pub const ACTIONS_MAX: usize = 1000;

/// The actions of a committed transaction that nobody has carried out yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferred {
    /// The transaction.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// In order.
    pub actions: Vec<Action>,
}

/// Somebody has carried out (or dropped) actions of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settle {
    /// Which volume; the one that has it among the open ones, if `None`.
    pub place: Option<Place>,
    /// Which transaction.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// What is left to do.
    pub left: Vec<Action>,
}
