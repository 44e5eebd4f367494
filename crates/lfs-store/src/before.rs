//! The last snapshot of a volume from before a transaction, by what the history of each time says:
//! a snapshot has the history as it was.

use crate::own;
use std::collections::BTreeSet;
use systx_base::{Kind, TxnId};
use systx_lfs::format::ROOT;
use systx_lfs::{Error, Ops, Result, Volume};
use systx_store::record::history_of;

/// What is known of a transaction and the snapshots of its volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Before {
    /// The last one from before it.
    Snapshot(String),
    /// Every snapshot that there is has it already, or is older than what the history tells.
    TooYoung(TxnId),
    /// No history tells of it.
    Unknown,
    /// Several have ids that begin like this.
    Several(BTreeSet<TxnId>),
}

impl Before {
    /// The snapshot's name; else a sentence that says why there is none.  `id`: what was asked for.
    ///
    /// # Errors
    /// There is none.
    pub fn name(self, id: &str) -> std::result::Result<String, String> {
        Err(match self {
            Before::Snapshot(name) => return Ok(name),
            Before::TooYoung(txn) => format!("no snapshot is from before transaction {txn}"),
            Before::Unknown => {
                format!("there is no snapshot {id:?}, and no history of it has a transaction {id}")
            }
            Before::Several(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                format!("{id} is the beginning of several transactions: {}", all.join(", "))
            }
        })
    }
}

/// The snapshot from before the transaction whose id begins with `id`.
///
/// # Errors
/// What reading the volume says.
pub fn before(volume: &Volume, id: &str) -> Result<Before> {
    // A snapshot that the next one has the transaction and it has not is from before it: what was
    // forgotten does not come back.
    let mut known = BTreeSet::new();
    let (mut last, mut found) = (None, None);
    for snapshot in volume.snapshots() {
        let seen = match volume.at(&snapshot.name) {
            // It was removed meanwhile.
            Err(Error::NotFound) => continue,
            view => view?.look(|ops| told(ops, id))?,
        };
        if !seen.is_empty() && found.is_none() {
            found = Some(last.take());
        }
        known.extend(seen);
        last = Some(snapshot.name);
    }
    let seen = volume.look(|ops| told(ops, id))?;
    if !seen.is_empty() && found.is_none() {
        found = Some(last);
    }
    known.extend(seen);
    Ok(match (known.len(), found, known.first()) {
        (0, ..) | (_, None, _) | (.., None) => Before::Unknown,
        (1, Some(Some(name)), _) => Before::Snapshot(name),
        (1, Some(None), Some(txn)) => Before::TooYoung(*txn),
        _ => Before::Several(known),
    })
}

/// The transactions that the history of a tree tells of, and whose ids begin like this.
fn told(ops: &mut Ops<'_>, id: &str) -> Result<BTreeSet<TxnId>> {
    let mut at = ROOT;
    for name in [own::NAME, own::HISTORY] {
        match ops.lookup(at, name) {
            Ok(link) if link.kind == Kind::Dir => at = link.ino,
            // Nobody has mounted it before that.
            Ok(_) | Err(Error::NotFound) => return Ok(BTreeSet::new()),
            Err(error) => return Err(error),
        }
    }
    let all = ops.list(at, None, usize::MAX)?.into_iter();
    let ids = all.filter_map(|(name, _)| history_of(&name));
    Ok(ids.filter(|txn| txn.to_string().starts_with(id)).collect())
}
