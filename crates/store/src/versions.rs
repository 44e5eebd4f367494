//! Which versions of a file's content are the same, and what leads back to one.
//!
//! Each change in place leads from one version to the next, and keeps what leads back.  After an
//! undo the content is what it was before what was undone: the same version once more.  A store
//! may have moved what the undone transaction had kept into the file, and what the file had to what
//! the undo keeps ([`crate::Store::undo_set`]).  So of all changes that lead away from a version it
//! is the last one that has what leads back to it.

use crate::history::{Before, History, OldContent, TxnKind};
use crate::io::{HostId, Stamp};
use crate::writeset::{Ix, Origin};

/// The changes in place of one inode.
pub(crate) struct Versions<'h> {
    /// In the order of commits.
    changes: Vec<(&'h History, &'h Before)>,
    /// The version before each change, and the present one: what has the same number is the same.
    versions: Vec<usize>,
}

impl<'h> Versions<'h> {
    /// Of an inode; `all` is in the order of commits.
    pub fn of(all: &'h [History], id: HostId) -> Versions<'h> {
        let change = |history: &'h History| {
            let before = before_of(history, id)?;
            matches!(before.content, OldContent::InPlace { .. }).then_some((history, before))
        };
        let changes: Vec<_> = all.iter().filter_map(change).collect();
        let mut versions = vec![0];
        for (n, (history, _)) in changes.iter().enumerate() {
            let undone = match history.commit.meta.kind {
                TxnKind::Undo { of } | TxnKind::UndoPart { of } | TxnKind::Redo { of } => {
                    changes[..n].iter().position(|(h, _)| h.commit.meta.txn == of)
                }
                TxnKind::Run | TxnKind::Partial => None,
            };
            versions.push(undone.map_or(n + 1, |undone| versions[undone]));
        }
        Versions { changes, versions }
    }

    /// What is to be taken back of the present content, one after the other, to come to what it was
    /// before the commit at this position.
    pub fn back_to(&self, lsn: u64) -> Vec<(&'h History, &'h Before)> {
        let first = self.changes.iter().take_while(|(h, _)| h.done.lsn < lsn).count();
        let (mut wanted, now) = (self.versions[first], self.versions[self.changes.len()]);
        let mut back = Vec::new();
        while wanted != now {
            let leads = |n: &usize| self.versions[*n] == wanted;
            let Some(n) = (0..self.changes.len()).rev().find(leads) else { break };
            back.push(self.changes[n]);
            wanted = self.versions[n + 1];
        }
        back.reverse();
        back
    }
}

/// What a transaction has kept of an inode that stayed in its place.
pub(crate) fn before_of(history: &History, id: HostId) -> Option<&Before> {
    history.commit.befores.iter().find(|before| {
        before.content != OldContent::Exchanged
            && met(history, before.ix).is_some_and(|stamp| stamp.id == id)
    })
}

/// The version that a transaction met.
pub(crate) fn met(history: &History, ix: Ix) -> Option<Stamp> {
    match &history.commit.set.object(ix).origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    }
}
