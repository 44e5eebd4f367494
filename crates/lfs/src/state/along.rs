//! What is written along: a file's pages lie together by clusters
//! ([`crate::format::Geometry::cluster`]).
//!
//! Where a page has to be written, the others of its cluster are written again, as they are.  That
//! is what the cleaner does when it moves them: no version, snapshot, moment, conflict or undo sees
//! it, and the format and recovery know nothing of it.  What they are is what the tree has when the
//! group is made, so it is never older than what another commit has changed.  And it is nobody's
//! reason to wait or to fail: without room beyond what is promised, or if they cannot be read, they
//! stay where they lie.

#[cfg(test)]
mod tests;

use super::{Need, State};
use crate::format::Ino;
use crate::object::Object;
use crate::txn::{Staged, Txn};

impl State {
    /// The pages that a transaction writes, in order, where others may be written along.
    pub fn written(&self, txn: &Txn) -> Vec<(Ino, u64)> {
        if self.tree.env.geometry.cluster == 1 {
            return Vec::new();
        }
        let staged = txn.pages.iter().flat_map(|(ino, pages)| pages.iter().map(|at| (*ino, at)));
        let written = staged.filter(|(_, (_, staged))| matches!(staged, Staged::Memory(_)));
        written.map(|(ino, (page, _))| (ino, *page)).collect()
    }

    /// Has the next flush write what is missing of the clusters of these pages, which wait to be
    /// written.  What is part of a commit and lies somewhere already stays there.
    pub fn write_along(&mut self, written: &[(Ino, u64)]) {
        let (geometry, most) = (self.tree.env.geometry, self.limits.txn_pages_max);
        let mut last = None;
        for (ino, page) in written {
            let cluster = geometry.cluster_of(*page);
            if last.replace((*ino, cluster.start)) == Some((*ino, cluster.start)) {
                continue;
            }
            let Some(pages) = self.tree.loaded(*ino).and_then(Object::pages) else { continue };
            let there = pages.range(cluster).filter(|(_, found)| found.place.is_some());
            let there = there.map(|(page, _)| *page);
            let missing: Vec<u64> = there.filter(|page| !self.pending.waits(*ino, *page)).collect();
            let count = missing.len() as u64;
            // They are in memory when they are written.
            if count == 0 || self.pending.along_count() + count > most {
                continue;
            }
            if !self.has_room(Need::of(count + 1)) {
                return;
            }
            missing.into_iter().for_each(|page| self.pending.along(*ino, page));
        }
    }

    /// Brings into memory what is written along.
    pub(super) fn read_along(&mut self) {
        for (ino, page) in self.pending.take_along() {
            let pages = self.tree.loaded(ino).and_then(Object::pages);
            let Some(found) = pages.and_then(|pages| pages.get(&page)) else { continue };
            let place = found.place.filter(|_| found.memory.is_none());
            let Some(place) = place.filter(|_| self.pending.has_page(ino, page)) else { continue };
            match self.tree.env.read_page(place) {
                Ok(bytes) => {
                    if let Some(slot) = self.tree.page_mut(ino, page) {
                        slot.memory = Some(bytes.into());
                    }
                }
                // Whoever asks for it is told.
                Err(_) => self.pending.leave(ino, page),
            }
        }
    }
}
