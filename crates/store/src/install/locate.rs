//! Finding the objects of a write set in the tree, by identity.

use super::compare::is_whole;
use super::site::{Place, Site, Spot, Step};
use crate::env::is_fatal;
use crate::io::{Class, Handle, HostId, Stat};
use crate::layout::{found, grave_name, names, parse_temp};
use crate::report::Outside;
use crate::staging::slot_name;
use crate::writeset::{Content, Ix, NewKind, Origin, SlotId};
use std::io::{Error, Result};
use systx_base::Kind;

/// Where an object was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Where the transaction saw it.
    Origin,
    /// Where the transaction wants it.
    Target,
    /// In staging, in the graveyard or in `lost+found`.
    Store,
}

impl Site<'_> {
    /// Finds an object that exists; reports it if it is gone and the transaction needs it.
    pub(super) fn locate(&mut self, ix: Ix) -> Step<()> {
        if ix.0 == 0 {
            let root = self.env.io.root();
            let stat = self.env.io.stat(&root).map_err(|e| self.stop(Vec::new(), e))?;
            self.state(ix).id = Some(stat.id);
            return Ok(());
        }
        if let Origin::Host { parent, .. } = &self.object(ix).origin {
            self.dir_of(*parent)?;
        }
        self.find(ix)?;
        let needed = self.object(ix).is_changed() || !self.index.targets(ix).is_empty();
        // A file that is changed and loses its name may have lost it already, and have no other
        // that is known here; the change was durable before that.
        let done = self.redo
            && self.index.is_removed(ix)
            && (self.env.class == Class::Weak || self.is_last_look(ix));
        if !self.has_place(ix) && needed && !done {
            let path = self.path(ix);
            self.report(path, Outside::Gone, None);
        }
        Ok(())
    }

    /// Finds an object whose directory, if it can be, was opened before.
    fn find(&mut self, ix: Ix) -> Step<()> {
        if self.state(ix).busy || self.has_place(ix) {
            return Ok(());
        }
        let Some(id) = self.origin_id(ix) else { return Ok(()) };
        self.state(ix).busy = true;
        let found = self.search(ix, id);
        self.state(ix).busy = false;
        if let Some((place, at)) = found? {
            let state = self.state(ix);
            state.id = Some(id);
            // A final name is not to be moved away from.
            state.home = (at != At::Target).then(|| (&place).into());
            state.place = Some((&place).into());
        }
        Ok(())
    }

    fn search(&mut self, ix: Ix, id: HostId) -> Step<Option<(Place, At)>> {
        match &self.object(ix).origin {
            Origin::Host { parent, name, .. } => {
                let place = self.in_open(*parent, name);
                if let Some(place) = self.check_place(place, id)? {
                    return Ok(Some((place, At::Origin)));
                }
            }
            Origin::Grave { name, .. } => {
                let place = Place::own(&self.env.layout.grave, name);
                if let Some(place) = self.check_place(Some(place), id)? {
                    return Ok(Some((place, At::Store)));
                }
            }
            _ => return Ok(None),
        }
        if !self.redo {
            return Ok(None);
        }
        for bind in self.index.targets(ix).to_vec() {
            let bind = &self.commit.set.binds[bind];
            let place = self.place_of(bind.dir, &bind.name)?;
            if let Some(place) = self.check_place(place, id)? {
                return Ok(Some((place, At::Target)));
            }
        }
        if let Some(name) = self.leftovers.get(&id) {
            return Ok(Some((Place::own(&self.env.layout.temp, name), At::Store)));
        }
        let grave = Place::own(&self.env.layout.grave, &grave_name(self.txn(), ix.0));
        if let Some(place) = self.check_place(Some(grave), id)? {
            return Ok(Some((place, At::Store)));
        }
        Ok(self.search_lost_and_found(id)?.map(|place| (place, At::Store)))
    }

    /// Where e2fsck puts an inode that a power cut left without a name.
    fn search_lost_and_found(&mut self, id: HostId) -> Step<Option<Place>> {
        let root = self.env.io.root();
        let Ok(dir) = self.env.io.open_dir(&root, b"lost+found") else { return Ok(None) };
        let name = format!("#{}", id.ino).into_bytes();
        self.check_place(Some(Place::own(&dir, &name)), id)
    }

    fn check_place(&self, place: Option<Place>, id: HostId) -> Step<Option<Place>> {
        let Some(place) = place else { return Ok(None) };
        let stat = self.soft_stat(&place.dir, &place.name)?;
        Ok(stat.filter(|s| s.id == id).map(|_| place))
    }

    /// A name in a directory; `None` while that is nowhere to be found.
    pub(super) fn place_of(&mut self, dir: Ix, name: &[u8]) -> Step<Option<Place>> {
        let of = Some(dir);
        Ok(self.dir_of(dir)?.map(|dir| Place { dir, name: name.to_vec(), of }))
    }

    /// The same, if the directory is open.
    fn in_open(&self, dir: Ix, name: &[u8]) -> Option<Place> {
        let of = Some(dir);
        self.opened(dir).map(|dir| Place { dir, name: name.to_vec(), of })
    }

    pub(super) fn opened(&self, ix: Ix) -> Option<Handle> {
        if ix.0 == 0 { Some(self.env.io.root()) } else { self.dirs.get(ix) }
    }

    /// The directory that an object is looked for in.
    fn above(&self, ix: Ix) -> Option<Ix> {
        let state = &self.states[ix.0 as usize];
        let of = match (&state.place, &self.object(ix).origin) {
            (Some(place), _) => place.of,
            (None, Origin::Host { parent, .. }) => Some(*parent),
            (None, Origin::New(_)) => {
                self.index.targets(ix).first().map(|i| self.commit.set.binds[*i].dir)
            }
            (None, Origin::Grave { .. } | Origin::Root) => None,
        };
        of.filter(|of| of.0 != 0 && !self.states[of.0 as usize].busy)
    }

    /// The open directory of an object; `None` while it is nowhere to be found.  Those above it are
    /// opened first, and not by recursion: trees may be deeper than a stack.
    pub(super) fn dir_of(&mut self, ix: Ix) -> Step<Option<Handle>> {
        if let Some(dir) = self.opened(ix) {
            return Ok(Some(dir));
        }
        let above = self.dirs.closed_above(ix, |ix| self.above(ix));
        for dir in above.into_iter().rev() {
            self.open_in_open(dir)?;
        }
        self.open_in_open(ix)
    }

    /// The same, where the directory above, if it can be, is open.
    fn open_in_open(&mut self, ix: Ix) -> Step<Option<Handle>> {
        if let Some(dir) = self.opened(ix) {
            return Ok(Some(dir));
        }
        if !self.has_place(ix) {
            if self.object(ix).is_new() {
                return self.find_new_dir(ix);
            }
            self.find(ix)?;
        }
        let spot = self.states[ix.0 as usize].place.clone();
        let place = match &spot {
            Some(Spot { name, of: Some(of), .. }) => self.in_open(*of, name),
            _ => self.at(spot)?,
        };
        let (Some(place), Some(id)) = (place, self.id(ix)) else { return Ok(None) };
        let Some(dir) = self.soft_open(&place)? else { return Ok(None) };
        let stat = self.env.io.stat(&dir).map_err(|e| self.stop(place.name.clone(), e))?;
        if stat.id != id {
            return Ok(None);
        }
        self.dirs.put(ix, dir.clone());
        Ok(Some(dir))
    }

    /// `open_dir`; `None` for what is no directory, and for what cannot be reached.
    fn soft_open(&self, place: &Place) -> Step<Option<Handle>> {
        match self.env.io.open_dir(&place.dir, &place.name) {
            Ok(dir) => Ok(Some(dir)),
            Err(e) if is_fatal(&e) => Err(self.stop(place.name.clone(), e)),
            Err(_) => Ok(None),
        }
    }

    /// For resuming: a new directory that was begun.  If it is in staging it was not placed yet;
    /// else any directory at its place that is not the one that it replaces counts as it.
    fn find_new_dir(&mut self, ix: Ix) -> Step<Option<Handle>> {
        if !self.redo || self.state(ix).busy {
            return Ok(None);
        }
        let Some(bind) = self.index.targets(ix).first().copied() else { return Ok(None) };
        let bind = &self.commit.set.binds[bind];
        let begun = |name: &&Vec<u8>| {
            parse_temp(name).is_some_and(|(_, _, role, n)| role == 'b' && n == ix.0)
        };
        let begun: Vec<Vec<u8>> = self.leftovers.values().filter(begun).cloned().collect();
        for name in &begun {
            let place = Place::own(&self.env.layout.temp, name);
            if let Some(dir) = self.take_new_dir(ix, place, true, false)? {
                return Ok(Some(dir));
            }
        }
        let Some(place) = self.in_open(bind.dir, &bind.name) else { return Ok(None) };
        let hidden = self.state(bind.dir).hidden;
        self.take_new_dir(ix, place, hidden, true)
    }

    fn take_new_dir(
        &mut self,
        ix: Ix,
        place: Place,
        hidden: bool,
        placed: bool,
    ) -> Step<Option<Handle>> {
        let Some(stat) = self.soft_stat(&place.dir, &place.name)? else { return Ok(None) };
        if stat.kind != Kind::Dir || self.is_old(stat.id) {
            return Ok(None);
        }
        let Some(here) = self.soft_open(&place)? else { return Ok(None) };
        self.dirs.put(ix, here.clone());
        let state = self.state(ix);
        state.id = Some(stat.id);
        state.place = Some((&place).into());
        state.hidden = hidden;
        state.placed = placed;
        Ok(Some(here))
    }

    /// Whether this is the identity of an object that existed before the transaction.
    pub(super) fn is_old(&self, id: HostId) -> bool {
        self.old.contains_key(&id)
    }

    /// Whether what is at `place` can only be the object `ix` as this transaction makes it,
    /// complete or as a power cut left it.
    pub(super) fn is_ours(&mut self, ix: Ix, place: &Place, stat: &Stat) -> Step<bool> {
        let object = self.object(ix);
        if self.id(ix) == Some(stat.id) {
            return Ok(true);
        }
        if stat.kind != object.kind() {
            return Ok(false);
        }
        let result = match (&object.origin, &object.content) {
            (_, Content::Slot(slot)) => {
                Ok(self.commit.slots.iter().any(|(s, id)| s == slot && *id == stat.id))
            }
            (Origin::New(NewKind::Dir), _) => Ok(!self.is_old(stat.id)),
            (Origin::New(NewKind::Symlink(target)), _) => {
                self.env.io.read_link(&place.dir, &place.name).map(|t| t == *target)
            }
            (Origin::New(NewKind::Special { rdev, .. }), _) => Ok(stat.rdev == *rdev),
            (_, Content::Whole { len, extents }) => is_whole(self.env, place, stat, *len, extents),
            (Origin::New(NewKind::File), _) => Ok(stat.size == 0),
            _ => Ok(false),
        };
        result.map_err(|e| self.stop(place.name.clone(), e))
    }

    /// For resuming: what earlier runs left in staging.
    pub(super) fn note_leftovers(&mut self) -> Step<()> {
        let names = self.leftover_names(u64::MAX)?;
        let runs = names.iter().filter_map(|name| parse_temp(name)).map(|(_, run, _, _)| run);
        self.run = runs.fold(self.run, |max, run| max.max(run.saturating_add(1)));
        for name in names {
            if let Some(stat) = self.soft_stat(&self.env.layout.temp, &name)? {
                self.leftovers.insert(stat.id, name);
            }
        }
        Ok(())
    }

    pub(super) fn leftover_names(&self, below: u64) -> Step<Vec<Vec<u8>>> {
        let names =
            names(self.env.io, &self.env.layout.temp).map_err(|e| self.stop(Vec::new(), e))?;
        let ours = |name: &Vec<u8>| {
            parse_temp(name).is_some_and(|(txn, run, _, _)| txn == self.txn() && run < below)
        };
        Ok(names.into_iter().filter(ours).collect())
    }

    pub(super) fn find_slot(&self, slot: SlotId) -> Result<Place> {
        let io = self.env.io;
        let name = slot_name(slot);
        let id = self.commit.slots.iter().find(|(s, _)| *s == slot).map(|(_, id)| *id);
        let dir = self.env.layout.slots.clone();
        if let Some(stat) = found(io.stat_at(&dir, &name))?
            && id.is_none_or(|id| id == stat.id)
        {
            return Ok(Place::own(&dir, &name));
        }
        // A resumed installation: an earlier run had taken it out already.
        let left = id.and_then(|id| self.leftovers.get(&id)).cloned();
        let left = left.ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))?;
        Ok(Place::own(&self.env.layout.temp, &left))
    }
}
