//! What the programs of a view have had locked for writing, which its commit locks once more.
//!
//! A program gives up a lock when it has made its change.  One that is made in a transaction is
//! there for others at the commit only: a program outside that gets the lock in between makes its
//! own change of what was there before, and writes it over what is committed.  So a commit has the
//! locks from before its check until it is in place.  A program that is at work under one is waited
//! for, and what it has changed is found; whoever comes later finds what was committed.

use super::ranges::Ranges;
use super::table::range_of;
use crate::api::{Lock, LockKind};
use std::collections::BTreeMap;
use systx_base::NodeId;
use systx_store::host_locks::{LockFile, LockRange};

/// More files than this are not remembered.
const FILES_MAX: usize = 1024;
/// More ranges of a file than this are one.
const RANGES_MAX: usize = 64;

/// See the module: for each file, and kind of lock.
#[derive(Clone, Default)]
pub(crate) struct Sections(BTreeMap<(NodeId, bool), Ranges>);

impl Sections {
    /// A lock was granted.
    pub fn note(&mut self, node: NodeId, lock: &Lock) {
        let key = (node, lock.flock);
        if lock.kind != LockKind::Exclusive
            || (self.0.len() >= FILES_MAX && !self.0.contains_key(&key))
        {
            return;
        }
        let ranges = self.0.entry(key).or_default();
        ranges.set(range_of(lock));
        if ranges.iter().count() > RANGES_MAX {
            let (first, last) = (ranges.iter().next(), ranges.iter().last());
            if let (Some(first), Some(last)) = (first, last) {
                ranges.set(LockRange { end: last.end, ..first });
            }
        }
    }

    /// Whether programs of the view have changed a file, perhaps, while they had it locked.
    pub fn has(&self, node: NodeId) -> bool {
        [false, true].iter().any(|flock| self.0.contains_key(&(node, *flock)))
    }

    /// Each file, whether it was locked by flock(2), and what of it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, bool, &Ranges)> {
        self.0.iter().map(|((node, flock), ranges)| (*node, *flock, ranges))
    }
}

/// Locks that a commit holds, until this is dropped.
#[derive(Default)]
pub struct Relocked(pub(super) Vec<LockFile>);

impl Drop for Relocked {
    fn drop(&mut self) {
        self.0.iter().for_each(LockFile::release);
    }
}
