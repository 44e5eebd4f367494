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
use std::collections::HashMap;

/// What transactions have kept of inodes that stayed in their places.
pub(crate) struct Befores<'h>(HashMap<HostId, Vec<(&'h History, &'h Before)>>);

impl<'h> Befores<'h> {
    /// `all` is in the order of commits.
    pub fn new(all: &'h [History]) -> Befores<'h> {
        let mut of: HashMap<HostId, Vec<(&History, &Before)>> = HashMap::new();
        for history in all {
            for before in &history.commit.befores {
                let Some(met) = met(history, before.ix) else { continue };
                if before.content != OldContent::Exchanged {
                    of.entry(met.id).or_default().push((history, before));
                }
            }
        }
        Befores(of)
    }

    /// Of an inode, in the order of commits.
    pub fn of(&self, id: HostId) -> &[(&'h History, &'h Before)] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }
}

/// The changes in place of one inode.
pub(crate) struct Versions<'h> {
    /// In the order of commits.
    changes: Vec<(&'h History, &'h Before)>,
    /// The version before each change, and the present one: what has the same number is the same.
    versions: Vec<usize>,
}

impl<'h> Versions<'h> {
    /// Of an inode.
    pub fn of(befores: &Befores<'h>, id: HostId) -> Versions<'h> {
        let in_place = |(_, before): &&(&History, &Before)| {
            matches!(before.content, OldContent::InPlace { .. })
        };
        let changes: Vec<_> = befores.of(id).iter().filter(in_place).copied().collect();
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

/// The version that a transaction met.
pub(crate) fn met(history: &History, ix: Ix) -> Option<Stamp> {
    match &history.commit.set.object(ix).origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    }
}
