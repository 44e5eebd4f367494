//! Laying the veil over a commit, and taking it away ([`crate::veil`]).

use super::State;
use crate::error::Result;
use crate::format::Ino;
use crate::moments::Old;
use crate::object::{Body, Node};
use crate::txn::{Patch, Rebind, Staged, Txn};
use crate::veil::Hides;
use std::collections::{BTreeMap, BTreeSet};

/// What is to be put above the tree for a commit that is about to be applied.
pub struct Cover {
    hides: Hides,
    above: Txn,
}

fn whole(node: &Node, changes: &Patch) -> Patch {
    let a = &node.attrs;
    let was = |name: &Vec<u8>| (name.clone(), node.xattrs.get(name).cloned());
    Patch {
        mode: Some(a.mode),
        uid: Some(a.uid),
        gid: Some(a.gid),
        size: Some(a.size),
        atime: Some(a.atime),
        mtime: Some(a.mtime),
        ctime: Some(a.ctime),
        parent: Some(node.parent),
        xattrs: changes.xattrs.keys().map(was).collect(),
    }
}

impl Cover {
    /// What lies above the tree for whoever does not see the commit.
    pub fn into_old(self) -> Old {
        Old { above: self.above, links: self.hides.links }
    }

    /// For a transaction, before it is applied.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn of(state: &mut State, txn: &Txn) -> Result<Cover> {
        let (mut hides, mut above) = (Hides::default(), Txn::new());
        let is_new = |ino: &Ino| txn.created.contains_key(ino);
        for (dir, names) in txn.entries.iter().filter(|(dir, _)| !is_new(dir)) {
            for (name, rebind) in names {
                let reverse = Rebind { old: rebind.new, new: rebind.old };
                above.entries.entry(*dir).or_default().insert(name.clone(), reverse);
                hides.names.push((*dir, name.clone()));
            }
        }
        for (ino, delta) in txn.links.iter().filter(|(ino, _)| !is_new(ino)) {
            hides.links.insert(*ino, *delta);
            if *delta < 0 {
                hides.held.push(*ino);
            }
        }
        let none = Patch::default();
        let objects = txn.patches.keys().chain(txn.links.keys()).filter(|ino| !is_new(ino));
        for ino in objects {
            let changes = txn.patches.get(ino).unwrap_or(&none);
            above.patches.insert(*ino, whole(&state.tree.get(*ino)?.node, changes));
            hides.objects.insert(*ino);
        }
        let taken = txn.taken.iter().map(|(ino, _)| ino);
        let files = txn.pages.keys().chain(txn.cuts.keys()).chain(taken);
        let files: BTreeSet<Ino> = files.copied().collect();
        for ino in files.into_iter().filter(|ino| !is_new(ino)) {
            let pages = old_pages(state, txn, ino, &mut hides.segments)?;
            hides.pages.insert(ino, pages.keys().copied().collect());
            above.pages.insert(ino, pages);
        }
        hides.segments.sort_unstable();
        hides.segments.dedup();
        Ok(Cover { hides, above })
    }
}

/// The pages of a file that a transaction overwrites, cuts off or takes out of it.
fn old_pages(
    state: &mut State,
    txn: &Txn,
    ino: Ino,
    segments: &mut Vec<u32>,
) -> Result<BTreeMap<u64, Staged>> {
    let geometry = state.tree.env.geometry;
    let mut old = BTreeMap::new();
    let Body::Pages(pages) = &state.tree.get(ino)?.body else { return Ok(old) };
    let cut = txn.cuts.get(&ino).copied().unwrap_or(u64::MAX);
    let written = txn.pages.get(&ino).into_iter().flatten().map(|(page, _)| *page);
    let cut_off = pages.range(cut..).map(|(page, _)| *page);
    let taken = txn.taken.range((ino, 0)..=(ino, u64::MAX)).map(|(_, page)| *page);
    for page in written.chain(cut_off).chain(taken) {
        let found = pages.get(&page);
        let staged = match found.map(|found| (&found.memory, found.place)) {
            Some((Some(bytes), _)) => Staged::Memory(bytes.clone()),
            Some((None, Some(place))) => {
                segments.extend(geometry.locate(place.at).map(|(segment, _)| segment));
                Staged::Spilled(place)
            }
            _ => Staged::Hole,
        };
        old.insert(page, staged);
    }
    Ok(old)
}

impl State {
    /// Holds on to what a commit is about to take away.
    pub fn hold_for(&mut self, cover: &Cover) {
        for ino in &cover.hides.held {
            *self.held.entry(*ino).or_insert(0) += 1;
        }
        cover.hides.segments.iter().for_each(|segment| self.usage.veil(*segment, 1));
    }

    /// The commit did not come about.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn let_go(&mut self, cover: Cover) -> Result<()> {
        cover.hides.segments.iter().for_each(|segment| self.usage.veil(*segment, -1));
        cover.hides.held.iter().try_for_each(|ino| self.release(*ino))
    }

    /// Lays the veil over a commit that was applied just now.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn cover(&mut self, ticket: u64, cover: Cover) -> Result<()> {
        let Cover { hides, above } = cover;
        for ino in &hides.objects {
            let attrs = &self.tree.get(*ino)?.node.attrs;
            let after = (attrs.mtime, attrs.ctime);
            self.tree.veil.times.entry(*ino).or_default().push_back(after);
        }
        let veil = &mut self.tree.veil;
        for (ino, patch) in above.patches {
            let older = veil.above.patches.entry(ino).or_insert_with(|| patch.clone());
            for (name, value) in patch.xattrs {
                older.xattrs.entry(name).or_insert(value);
            }
        }
        for (dir, names) in above.entries {
            veil.above.entries.entry(dir).or_default().extend(names);
        }
        for (ino, pages) in above.pages {
            let all = veil.above.pages.entry(ino).or_default();
            for (page, old) in pages {
                all.entry(page).or_insert(old);
            }
        }
        for (ino, delta) in &hides.links {
            *veil.above.links.entry(*ino).or_insert(0) -= delta;
        }
        veil.commits.insert(ticket, hides);
        Ok(())
    }

    /// Takes the veil from a commit.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn show(&mut self, ticket: u64) -> Result<()> {
        let veil = &mut self.tree.veil;
        let Some(hides) = veil.commits.remove(&ticket) else { return Ok(()) };
        for (dir, name) in &hides.names {
            if let Some(names) = veil.above.entries.get_mut(dir) {
                names.remove(name);
            }
        }
        veil.above.entries.retain(|_, names| !names.is_empty());
        for (ino, delta) in &hides.links {
            *veil.above.links.entry(*ino).or_insert(0) += delta;
        }
        veil.above.links.retain(|_, delta| *delta != 0);
        for ino in &hides.objects {
            let times = veil.times.entry(*ino).or_default();
            let next = times.pop_front();
            if let (false, Some(next)) = (times.is_empty(), next) {
                let patch = veil.above.patch(*ino);
                (patch.mtime, patch.ctime) = (Some(next.0), Some(next.1));
                continue;
            }
            veil.times.remove(ino);
            veil.above.patches.remove(ino);
        }
        for (ino, pages) in &hides.pages {
            if let Some(above) = veil.above.pages.get_mut(ino) {
                pages.iter().for_each(|page| drop(above.remove(page)));
            }
        }
        veil.above.pages.retain(|_, pages| !pages.is_empty());
        hides.segments.iter().for_each(|segment| self.usage.veil(*segment, -1));
        hides.held.iter().try_for_each(|ino| self.release(*ino))
    }

    /// Nobody holds an object any longer, or one less.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn release(&mut self, ino: Ino) -> Result<()> {
        let Some(count) = self.held.get_mut(&ino) else { return Ok(()) };
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        self.held.remove(&ino);
        self.flow.released.notify_all();
        if self.orphans.contains(&ino) {
            match self.delete(ino) {
                // It stays, without a name: what it takes is known to nobody.
                Err(e) if e.is_damage() => {}
                done => done?,
            }
            self.flow.applied += 1;
        }
        Ok(())
    }
}
