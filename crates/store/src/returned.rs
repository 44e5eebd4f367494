//! Versions that came back: after a transaction was undone, the objects that it met are as it met
//! them, although their stamps are new. Whoever made the versions that it met can be undone, too,
//! and so can whoever brought the directory back that they are in.

use crate::history::{History, TxnKind};
use crate::io::{HostId, Stamp};
use crate::writeset::Origin;
use std::collections::HashMap;
use systx_base::{Kind, Time, TxnId};

/// What undos, and undos of undos, brought back.
pub(crate) struct Returned {
    /// Pairs of versions of an inode that are the same: what a transaction met, and what there was
    /// once it was undone.
    same: HashMap<HostId, Vec<(Stamp, Stamp)>>,
    /// What the transactions after the one in question met first of an inode; `None`: they made it.
    first: HashMap<HostId, Option<Stamp>>,
}

impl Returned {
    /// By what is known, in the order of commits; the one in question is the one at `lsn`.
    pub fn of(all: &[History], lsn: u64) -> Returned {
        let by_txn: HashMap<TxnId, &History> = all.iter().map(|h| (h.commit.meta.txn, h)).collect();
        let mut same: HashMap<HostId, Vec<(Stamp, Stamp)>> = HashMap::new();
        for undo in all {
            let (of, whole) = match undo.commit.meta.kind {
                TxnKind::Undo { of } | TxnKind::Redo { of } => (of, true),
                TxnKind::UndoPart { of } => (of, false),
                TxnKind::Run | TxnKind::Partial => continue,
            };
            let Some(undone) = by_txn.get(&of) else { continue };
            let mut after = HashMap::new();
            if whole {
                // What the undo had no need to touch: it may be another version all the same, as of
                // a file of which only a further name goes, with the directory that it is in.
                after.extend(left(undone).map(|stamp| (stamp.id, stamp)));
                after.extend(met(undo).map(|stamp| (stamp.id, stamp)));
            }
            after.extend(left(undo).map(|stamp| (stamp.id, stamp)));
            for met in met(undone) {
                if let Some(after) = after.get(&met.id) {
                    same.entry(met.id).or_default().push((met, *after));
                }
            }
        }
        let later = all.iter().filter(|history| history.done.lsn > lsn);
        Returned { same, first: first(later) }
    }

    /// Whether `now` is what was `left`: the very version, or one that undos brought back from it.
    pub fn is_same(&self, left: Stamp, now: Stamp) -> bool {
        self.are_same(left, now, |a, b| a == b)
    }

    /// Whether what the transaction in question did not name is what it was at that time, `since`.
    /// Of a directory that is told `by_names` only the time of its names counts.
    pub fn is_untouched(&self, since: Time, now: Stamp, by_names: bool) -> bool {
        let time = |stamp: Stamp| if by_names { stamp.mtime } else { stamp.ctime };
        match self.first.get(&now.id).copied() {
            None => time(now) <= since,
            Some(None) => false,
            Some(Some(met)) if by_names => {
                met.mtime <= since && self.are_same(met, now, |a, b| a.mtime == b.mtime)
            }
            Some(Some(met)) => met.ctime <= since && self.is_same(met, now),
        }
    }

    /// Whether one version is the same as another by way of any number of pairs.
    fn are_same(&self, one: Stamp, other: Stamp, eq: impl Fn(&Stamp, &Stamp) -> bool) -> bool {
        let pairs = self.same.get(&one.id).map_or(&[][..], Vec::as_slice);
        let (mut known, mut at) = (vec![one], 0);
        while let Some(version) = known.get(at).copied() {
            if eq(&version, &other) {
                return true;
            }
            at += 1;
            for (a, b) in pairs.iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
                if eq(&version, a) && !known.iter().any(|known| eq(known, b)) {
                    known.push(*b);
                }
            }
        }
        false
    }
}

/// The versions that a transaction met.
fn met(history: &History) -> impl Iterator<Item = Stamp> {
    let objects = history.commit.set.objects.iter();
    objects.filter_map(|object| match &object.origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    })
}

/// The versions that it left.
fn left(history: &History) -> impl Iterator<Item = Stamp> {
    history.done.stamps.iter().flatten().copied()
}

/// What these transactions, in the order of commits, met first of each inode.
fn first<'a>(later: impl Iterator<Item = &'a History>) -> HashMap<HostId, Option<Stamp>> {
    let mut first = HashMap::new();
    for history in later {
        for (object, left) in history.commit.set.objects.iter().zip(&history.done.stamps) {
            let met = match &object.origin {
                Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
                Origin::Root | Origin::New(_) => None,
            };
            if let Some(met) = met {
                first.entry(met.id).or_insert(Some(met));
            }
            // A file may have been replaced by another one; a directory on an overlay has another
            // number when it was carried.
            let replaced = met.is_none() || object.kind() != Kind::Dir;
            if let Some(left) = left.filter(|_| replaced) {
                first.entry(left.id).or_insert(None);
            }
        }
    }
    first
}
