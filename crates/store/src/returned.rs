//! Versions that came back: after a transaction was undone, the objects that it met are as it met
//! them, although their stamps are new. Whoever made the versions that it met can be undone, too.

use crate::history::{History, TxnKind};
use crate::io::{HostId, Stamp};
use crate::writeset::Origin;
use std::collections::HashMap;
use systx_base::TxnId;

/// What undos, and undos of undos, brought back.
pub(crate) struct Returned {
    /// A version that a transaction met, and what its undo left of that inode; the first undo
    /// first.
    steps: HashMap<HostId, Vec<(Stamp, Stamp)>>,
}

impl Returned {
    /// By what is known, in the order of commits.
    pub fn of(all: &[History]) -> Returned {
        let by_txn: HashMap<TxnId, &History> = all.iter().map(|h| (h.commit.meta.txn, h)).collect();
        let mut steps: HashMap<HostId, Vec<(Stamp, Stamp)>> = HashMap::new();
        for undo in all {
            let (TxnKind::Undo { of } | TxnKind::UndoPart { of } | TxnKind::Redo { of }) =
                undo.commit.meta.kind
            else {
                continue;
            };
            let Some(undone) = by_txn.get(&of) else { continue };
            let left: HashMap<HostId, Stamp> =
                undo.done.stamps.iter().flatten().map(|stamp| (stamp.id, *stamp)).collect();
            for object in &undone.commit.set.objects {
                let (Origin::Host { stamp: met, .. } | Origin::Grave { stamp: met, .. }) =
                    &object.origin
                else {
                    continue;
                };
                if let Some(left) = left.get(&met.id) {
                    steps.entry(met.id).or_default().push((*met, *left));
                }
            }
        }
        Returned { steps }
    }

    /// Whether `now` is what was `left`: the very version, or one that undos brought back from it.
    pub fn is_same(&self, left: Stamp, now: Stamp) -> bool {
        let steps = self.steps.get(&left.id).into_iter().flatten();
        let last = steps.fold(left, |at, (met, back)| if at == *met { *back } else { at });
        left == now || last == now
    }
}
