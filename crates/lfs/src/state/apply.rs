//! The commit of a transaction in memory: all of its outcomes, or none.

use super::State;
use crate::error::{Error, Result};
use crate::format::{CHUNK, Ino, ROOT};
use crate::object::{Body, Object, PAGE_RECORD, Page, entry_record, node_record};
use crate::ops::changed;
use crate::pack;
use crate::txn::{Staged, Txn};
use std::collections::{BTreeMap, BTreeSet};

impl State {
    /// Commits a transaction.  The log has it with the next flush.
    ///
    /// # Errors
    /// [`Error::Conflict`] or [`Error::Removed`] if another commit came before it; what reading
    /// the volume can say.  Nothing has changed then.
    pub fn apply(&mut self, txn: &mut Txn) -> Result<()> {
        self.check(txn)?;
        self.keep_changed(txn)?;
        // What follows only fails if the medium or an invariant does: `check` has loaded all
        // objects.  Half of a commit in memory must then never reach the log.
        self.install(txn).inspect_err(|error| self.flow.poison(error))?;
        self.flow.applied += 1;
        Ok(())
    }

    fn check(&mut self, txn: &Txn) -> Result<()> {
        let touched = txn.patches.keys().chain(txn.pages.keys()).chain(txn.cuts.keys());
        let taken = txn.taken.iter().map(|(ino, _)| *ino);
        let touched = touched.chain(txn.links.keys()).chain(txn.entries.keys()).copied();
        let inos: BTreeSet<Ino> = touched.chain(taken).collect();
        let chunks: BTreeSet<u64> =
            inos.iter().chain(txn.created.keys()).map(|ino| ino / CHUNK).collect();
        chunks.into_iter().try_for_each(|chunk| self.tree.check_chunk(chunk))?;
        for ino in inos.into_iter().filter(|ino| !txn.created.contains_key(ino)) {
            self.exists(ino)?;
            let linked = txn.links.get(&ino).is_some_and(|delta| *delta > 0);
            let named = linked || txn.entries.contains_key(&ino);
            if named && self.tree.get(ino)?.node.attrs.nlink == 0 {
                return Err(Error::Removed(ino));
            }
        }
        for (dir, names) in &txn.entries {
            let base = self.tree.loaded(*dir).and_then(Object::entries);
            for (name, rebind) in names {
                let current = base.and_then(|entries| entries.get(name)).copied();
                if current != rebind.old {
                    return Err(Error::Conflict { dir: *dir, name: name.clone() });
                }
            }
        }
        self.check_dirs(txn)
    }

    fn exists(&mut self, ino: Ino) -> Result<()> {
        match self.tree.load(ino) {
            Err(Error::NotFound) => Err(Error::Removed(ino)),
            other => other,
        }
    }

    /// Directories that are removed are empty, and those that move do not come to lie below
    /// themselves, also by what others have committed since.
    fn check_dirs(&mut self, txn: &Txn) -> Result<()> {
        for (ino, delta) in txn.links.iter().filter(|(_, delta)| **delta < 0) {
            let Some(object) = self.tree.loaded(*ino) else { continue };
            let Some(entries) = object.entries() else { continue };
            if changed(object.node.attrs.nlink, *delta) > 0 {
                continue;
            }
            let own = txn.entries.get(ino);
            let stays = |name: &Vec<u8>| own.is_none_or(|own| !own.contains_key(name));
            let left = entries.keys().find(|name| stays(name)).cloned().or_else(|| {
                let own = own.into_iter().flatten();
                own.filter(|(_, r)| r.new.is_some()).map(|(n, _)| n.clone()).next()
            });
            if let Some(name) = left {
                return Err(Error::Conflict { dir: *ino, name });
            }
        }
        for ino in txn.patches.iter().filter(|(_, p)| p.parent.is_some()).map(|(ino, _)| *ino) {
            let mut at = self.parent(txn, ino)?;
            let mut seen = BTreeSet::new();
            while at != ROOT {
                if at == ino || !seen.insert(at) {
                    return Err(Error::Removed(ino));
                }
                at = self.parent(txn, at)?;
            }
        }
        Ok(())
    }

    fn parent(&mut self, txn: &Txn, dir: Ino) -> Result<Ino> {
        if let Some(parent) = txn.patches.get(&dir).and_then(|p| p.parent) {
            return Ok(parent);
        }
        if let Some(node) = txn.created.get(&dir) {
            return Ok(node.parent);
        }
        self.exists(dir)?;
        Ok(self.tree.get(dir)?.node.parent)
    }

    fn install(&mut self, txn: &mut Txn) -> Result<()> {
        for (ino, node) in std::mem::take(&mut txn.created) {
            self.pending.bytes += node_record(&node);
            self.tree.added(node_record(&node));
            self.pending.nodes.insert(ino);
            self.tree.insert(ino, Object::new(node));
        }
        for (ino, patch) in std::mem::take(&mut txn.patches) {
            let node = &mut self.tree.change(ino)?.node;
            patch.apply(node);
            let bytes = node_record(node);
            self.pending.bytes += bytes;
            self.pending.nodes.insert(ino);
            let xattrs = patch.xattrs.iter().map(|(n, v)| n.len() + v.as_ref().map_or(0, Vec::len));
            self.tree.grow(ino, xattrs.sum::<usize>() as u64);
        }
        self.install_content(txn)?;
        for (dir, names) in std::mem::take(&mut txn.entries) {
            for (name, rebind) in names {
                let Body::Entries(entries) = &mut self.tree.change(dir)?.body else { continue };
                match rebind.new {
                    Some(link) => drop(entries.insert(name.clone(), link)),
                    None => drop(entries.remove(&name)),
                }
                self.tree.grow(dir, entry_record(&name));
                self.pending.bytes += entry_record(&name) + 16;
                self.pending.names.entry(dir).or_default().insert(name);
            }
        }
        for (ino, delta) in std::mem::take(&mut txn.links) {
            let attrs = &mut self.tree.change(ino)?.node.attrs;
            attrs.nlink = changed(attrs.nlink, delta);
            let nlink = attrs.nlink;
            self.pending.bytes += node_record(&self.tree.get(ino)?.node);
            self.pending.nodes.insert(ino);
            if nlink == 0 {
                self.orphans.insert(ino);
                if !self.held.contains_key(&ino) {
                    self.delete(ino)?;
                }
            }
        }
        Ok(())
    }

    fn install_content(&mut self, txn: &mut Txn) -> Result<()> {
        let mut taken = self.take_out(std::mem::take(&mut txn.taken))?;
        for (ino, first) in std::mem::take(&mut txn.cuts) {
            let Body::Pages(pages) = &mut self.tree.change(ino)?.body else { continue };
            pack::cut(&mut self.usage, pages, first);
            self.pending.cut(ino, first);
        }
        if let Some(mut private) = txn.private.take() {
            for segment in std::mem::take(&mut private.segments) {
                let generation = self.usage.segment(segment).generation;
                self.pending.adopted.push((segment, generation));
                self.usage.release(segment);
            }
        }
        for (ino, staged) in std::mem::take(&mut txn.pages) {
            for (page, staged) in staged {
                let staged = match staged {
                    Staged::Taken(from, page) => match taken.remove(&(from, page)) {
                        None => Staged::Hole,
                        Some(Page { memory: Some(bytes), .. }) => Staged::Memory(bytes),
                        Some(Page { place, memory: None }) => {
                            place.iter().for_each(|place| self.tree.note_stray(ino, *place));
                            place.map_or(Staged::Hole, Staged::Spilled)
                        }
                    },
                    staged => staged,
                };
                self.install_page(ino, page, staged)?;
            }
        }
        Ok(())
    }

    /// Takes pages out of their files.
    fn take_out(&mut self, taken: BTreeSet<(Ino, u64)>) -> Result<BTreeMap<(Ino, u64), Page>> {
        let mut out = BTreeMap::new();
        for (ino, page) in taken {
            let Body::Pages(pages) = &mut self.tree.change(ino)?.body else { continue };
            if let Some(found) = pages.remove(&page) {
                if let Some(place) = found.place {
                    pack::lost(&mut self.usage, pages, page, place);
                }
                out.insert((ino, page), found);
                self.pending.page(ino, page, false);
            }
        }
        Ok(out)
    }

    fn install_page(&mut self, ino: Ino, page: u64, staged: Staged) -> Result<()> {
        let Body::Pages(pages) = &mut self.tree.change(ino)?.body else { return Ok(()) };
        let is_block = matches!(staged, Staged::Memory(_));
        match staged {
            Staged::Memory(bytes) => pages.entry(page).or_default().memory = Some(bytes),
            Staged::Spilled(place) => {
                let new = Page { place: Some(place), memory: None };
                let old = pages.insert(page, new).and_then(|p| p.place);
                pack::gained(&mut self.usage, pages, page, place)?;
                if let Some(old) = old {
                    pack::lost(&mut self.usage, pages, page, old);
                }
            }
            Staged::Hole | Staged::Taken(..) => {
                if let Some(old) = pages.remove(&page).and_then(|p| p.place) {
                    pack::lost(&mut self.usage, pages, page, old);
                }
            }
        }
        self.tree.grow(ino, PAGE_RECORD);
        self.pending.page(ino, page, is_block);
        Ok(())
    }
}
