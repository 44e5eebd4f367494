//! Making new objects and changing existing ones.
//!
//! Order on every object: data, owner, extended attributes (POSIX ACLs and capabilities among
//! them), mode, times: each step may disturb what a later one sets, or take the right to set it.

use super::chain::Patch;
use super::{Env, Install, Outside, Place, Step, is};
use crate::error::available;
use crate::io::{Class, Handle, Open, Rename, Stat};
use crate::layout::found;
use crate::staging::slot_name;
use crate::writeset::{Attrs, Content, Data, Extent, Ix, NewKind, Origin, SlotId};
use crate::xattrs::{change, is_refused, set_all};
use std::io::{Error, Result};
use std::ops::Range;
use systx_base::Kind;

/// Bits without which the owner could not add names to a directory.
const OWNER_WX: u32 = 0o300;

impl Install<'_> {
    /// Makes a new directory out of sight: in staging, or inside another new one.
    pub(super) fn make_dir(&mut self, ix: Ix) -> Step<()> {
        if self.state(ix).busy || self.dir_of(ix)?.is_some() {
            return Ok(());
        }
        let bind = &self.commit.set.binds[self.index.targets(ix)[0]];
        if self.object(bind.dir).is_new() {
            self.state(ix).busy = true;
            let made = self.make_dir(bind.dir);
            self.state(ix).busy = false;
            made?;
        }
        let parent = self.states[bind.dir.0 as usize].dir.clone();
        let inside = self.state(bind.dir).hidden;
        let place = match parent {
            Some(dir) if inside => Place { dir, name: bind.name.clone(), of: Some(bind.dir) },
            _ => self.temp('b', ix),
        };
        let make = || -> Result<Handle> {
            self.env.io.mkdir(&place.dir, &place.name, 0o700)?;
            self.env.io.open_dir(&place.dir, &place.name)
        };
        let dir = make().map_err(|e| self.stop(self.path(ix), e))?;
        let stat = self.env.io.stat(&dir).map_err(|e| self.stop(self.path(ix), e))?;
        let state = self.state(ix);
        state.id = Some(stat.id);
        state.dir = Some(dir);
        state.place = Some(place);
        state.hidden = true;
        state.placed = inside;
        Ok(())
    }

    /// Makes a new object that is no directory at `place`, complete.
    pub(super) fn build(&mut self, ix: Ix, place: &Place) -> Step<bool> {
        let made = self.create(ix, place);
        let Some(file) = self.soft(|s| s.path(ix), made)? else { return Ok(false) };
        // By its descriptor, where there is one: no name is looked up again.
        let at = file.map_or_else(|| place.clone(), Place::open);
        let stat = self.dress(ix, &at)?;
        // A slot that has yet to lose its own name (weak file systems) changes once more.
        let later = self.env.class == Class::Weak;
        let ends_later = later && matches!(self.object(ix).content, Content::Slot(_));
        let state = self.state(ix);
        state.id = Some(stat.id);
        state.stamp = Some(stat.stamp()).filter(|_| !ends_later);
        state.place = Some(place.clone());
        Ok(true)
    }

    /// Gives a new object its attributes; returns what it is then.
    fn dress(&mut self, ix: Ix, at: &Place) -> Step<Stat> {
        let io = self.env.io;
        let object = self.object(ix);
        let looked = if object.xattrs.is_empty() {
            let mode = object.attrs.mode.filter(|_| object.kind() != Kind::Symlink);
            let attrs = Attrs { mode, ..object.attrs };
            let mut masked = self.masked;
            let report = |set| self.soft(|s| s.path(ix), set).map(drop);
            let looked = dress(io, at, attrs, &mut masked, report)?;
            self.masked = masked;
            looked
        } else {
            self.set_attributes(ix, at)?;
            io.stat_at(&at.dir, &at.name)
        };
        looked.map_err(|e| self.stop(self.path(ix), e))
    }

    /// Makes a new object; the open file, if it is one that was just made.
    fn create(&mut self, ix: Ix, place: &Place) -> Result<Option<Handle>> {
        let io = self.env.io;
        let object = self.object(ix);
        match (&object.origin, &object.content) {
            (Origin::New(NewKind::Dir) | Origin::Root, _) => {
                return Err(Error::from_raw_os_error(libc::EISDIR));
            }
            (Origin::New(NewKind::Symlink(target)), _) => {
                io.symlink(target, &place.dir, &place.name)?;
            }
            (Origin::New(NewKind::Special { kind, rdev }), _) => {
                io.mknod(&place.dir, &place.name, *kind, 0o600, *rdev)?;
            }
            (_, Content::Slot(slot)) => self.take_slot(*slot, place)?,
            (_, content) => {
                // Nobody sees it yet, so it may have its bits from the start.
                let mode = object.attrs.mode.map_or(0o600, |m| m & 0o777);
                let file = io.create_file(&place.dir, &place.name, mode)?;
                if let Content::Whole { len, extents } = content {
                    self.env.write_whole(&file, *len, extents, true)?;
                }
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// Gives a slot's file its place.  On a weak file system the slot keeps its name until the new
    /// one is durable: there a rename may lose both.
    fn take_slot(&mut self, slot: SlotId, place: &Place) -> Result<()> {
        let io = self.env.io;
        let from = self.find_slot(slot)?;
        if self.env.class == Class::Weak {
            io.link(&from.dir, &from.name, &place.dir, &place.name)?;
            self.needs_sync = true;
            self.later.push(super::Later::Slot(slot));
        } else {
            io.rename(&from.dir, &from.name, &place.dir, &place.name, Rename::NoReplace)?;
            self.gone.insert(slot);
        }
        Ok(())
    }

    fn find_slot(&self, slot: SlotId) -> Result<Place> {
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

    /// Sets everything that a write set says about an object, in the one right order.
    pub(super) fn set_attributes(&mut self, ix: Ix, place: &Place) -> Step<()> {
        let io = self.env.io;
        let object = self.object(ix);
        let (dir, name) = (&place.dir, &place.name[..]);
        self.set_owner(ix, place, object.attrs)?;
        self.set_xattrs(ix, place, &object.xattrs)?;
        self.set_mode(ix, place, self.mode_to_be(ix))?;
        let Attrs { atime, mtime, .. } = object.attrs;
        if atime.is_some() || mtime.is_some() {
            let set = match io.set_times(dir, name, atime, mtime) {
                // Another's file, to which this user may write, as the transaction did: no time
                // that
                // it has there is one that was chosen.
                Err(e) if is(&e, libc::EPERM) && object.content != Content::Keep => Ok(()),
                Err(e) if is(&e, libc::EPERM) => io.touch(dir, name),
                set => set,
            };
            self.soft(|s| s.path(ix), set)?;
        }
        Ok(())
    }

    fn set_owner(&mut self, ix: Ix, place: &Place, attrs: Attrs) -> Step<()> {
        let Some(owner) = attrs.owner else { return Ok(()) };
        let io = self.env.io;
        let stat = io.stat_at(&place.dir, &place.name).map_err(|e| self.stop(self.path(ix), e))?;
        if owner != (stat.uid, stat.gid) {
            let set = io.set_owner(&place.dir, &place.name, owner.0, owner.1);
            self.soft(|s| s.path(ix), set)?;
        }
        Ok(())
    }

    /// The mode that an object ends up with; `None` if nothing that is done to it touches the mode.
    /// A change of owner and writing clear set-id bits, so where the write set says nothing of the
    /// mode it is what the before-image says: an earlier run may have cleared bits already.
    fn mode_to_be(&self, ix: Ix) -> Option<u32> {
        let object = self.object(ix);
        let cleared = object.attrs.owner.is_some() || object.content != Content::Keep;
        let before = || self.befores.get(&ix).filter(|_| cleared).and_then(|b| b.attrs.mode);
        object.attrs.mode.or_else(before)
    }

    /// After owner and ACL, both of which change the mode.
    fn set_mode(&mut self, ix: Ix, place: &Place, mode: Option<u32>) -> Step<()> {
        let Some(mode) = mode else { return Ok(()) };
        let io = self.env.io;
        let stat = io.stat_at(&place.dir, &place.name).map_err(|e| self.stop(self.path(ix), e))?;
        if mode != stat.mode && stat.kind != Kind::Symlink {
            let set = io.set_mode(&place.dir, &place.name, mode);
            self.soft(|s| s.path(ix), set)?;
        }
        Ok(())
    }

    /// Does something to an entry.  Where its owner lacks the permission bits for it, it gets them
    /// for that long: the transaction had the right to do it, perhaps under another mode.
    fn as_owner<T>(&self, place: &Place, call: impl Fn() -> Result<T>) -> Result<T> {
        const OWNER_RW: u32 = 0o600;
        let io = self.env.io;
        let first = call();
        let refused = |e: &Error| is(e, libc::EACCES) || is(e, libc::EPERM);
        if !first.as_ref().is_err_and(refused) {
            return first;
        }
        let stat = io.stat_at(&place.dir, &place.name)?;
        let more = stat.mode | OWNER_RW;
        if more == stat.mode
            || stat.kind == Kind::Symlink
            || io.set_mode(&place.dir, &place.name, more).is_err()
        {
            return first;
        }
        let second = call();
        io.set_mode(&place.dir, &place.name, stat.mode)?;
        second
    }

    /// Directories of ours that names are changed in, and that we may not write to, become writable
    /// until [`Install::narrow`]: for root they are anyway.
    pub(super) fn widen(&mut self) -> Step<()> {
        let store = self.env.io.stat(&self.env.layout.state);
        let owner = store.map_err(|e| self.stop(Vec::new(), e))?.uid;
        if owner == 0 {
            return Ok(());
        }
        let dirs: std::collections::BTreeSet<Ix> =
            self.commit.set.binds.iter().map(|b| b.dir).collect();
        for ix in dirs {
            if self.object(ix).is_new() {
                continue;
            }
            let Some(dir) = self.dir_of(ix)? else { continue };
            let Some(stat) = self.soft_stat(&dir, b"")? else { continue };
            if stat.uid == owner
                && stat.mode & OWNER_WX != OWNER_WX
                && self.env.io.set_mode(&dir, b"", stat.mode | OWNER_WX).is_ok()
            {
                self.widened.push((ix, stat.mode));
            }
        }
        Ok(())
    }

    /// Takes back what [`Install::widen`] gave.
    pub(super) fn narrow(&mut self) -> Step<()> {
        for (ix, mode) in std::mem::take(&mut self.widened) {
            if let Some(dir) = self.dir_of(ix)? {
                let set = self.env.io.set_mode(&dir, b"", mode);
                self.soft(|s| s.path(ix), set)?;
            }
        }
        Ok(())
    }

    fn set_xattrs(
        &mut self,
        ix: Ix,
        place: &Place,
        xattrs: &[(Vec<u8>, Option<Vec<u8>>)],
    ) -> Step<()> {
        let io = self.env.io;
        let failed = set_all(xattrs, |key, value| {
            self.as_owner(place, || change(io, (&place.dir, &place.name), key, value))
        });
        for ((key, value), e) in failed {
            match value {
                Some(value) if is_refused(&e) && !self.is_full(&e, value.len()) => {
                    self.keep_xattr(ix, key, value, &e)?;
                }
                _ => drop(self.soft(|s| s.path(ix), Err::<(), _>(e))?),
            }
        }
        Ok(())
    }

    /// Whether there may be room later: the disk is full, or a quota used up, not the file.
    fn is_full(&self, e: &Error, len: usize) -> bool {
        let room = crate::dir_store::MARGIN.saturating_add(len as u64);
        is(e, libc::EDQUOT)
            || is(e, libc::ENOSPC) && available(self.env.io).is_ok_and(|free| free < room)
    }

    /// The file system does not take an extended attribute, although it was asked before the commit
    /// (or by a version of this program that did not ask): the installation goes on, and the value
    /// is kept where the user finds it.
    fn keep_xattr(&mut self, ix: Ix, key: &[u8], value: &[u8], e: &Error) -> Step<()> {
        let path = self.path(ix);
        let base = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let room = 200usize.saturating_sub(key.len());
        let name = [&base[..base.len().min(room)], b".", key].concat();
        let name: Vec<u8> = name.into_iter().map(|b| if b == b'/' { b'_' } else { b }).collect();
        let (kept, copy) = self.new_in_conflict(&path, &name)?;
        self.env.io.write_at(&copy, value, 0).map_err(|e| self.stop(path.clone(), e))?;
        let (key, errno) = (key.to_vec(), e.raw_os_error().unwrap_or(0));
        self.report(path, Outside::NoXattr { key, errno }, Some(kept));
        Ok(())
    }

    /// Changes an existing object.
    pub(super) fn change(&mut self, ix: Ix) -> Step<()> {
        let object = self.object(ix);
        if object.kind() == Kind::Dir {
            return self.widen_dir(ix);
        }
        let exchanged = self.is_exchanged(ix);
        if self.redo && exchanged {
            return self.replace_again(ix);
        }
        let Some(place) = self.place(ix) else { return Ok(()) };
        let swapped = object.content != Content::Keep && place.of.is_none();
        if swapped && self.redo && self.index.targets(ix).is_empty() && !self.index.is_displaced(ix)
        {
            // An earlier run found it in use as a program and has already exchanged it.
            return Ok(());
        }
        if object.content == Content::Keep {
            self.note_if_changed(ix, &place)?;
            self.state(ix).touched = true;
            return self.set_attributes(ix, &place);
        }
        if exchanged { self.replace(ix, &place) } else { self.overwrite(ix, &place) }
    }

    /// Modes that let names be added are set before the names change, so that a directory that is
    /// made private is private before anything private is in it; narrow ones wait for
    /// [`Install::finish_dir`].
    fn widen_dir(&mut self, ix: Ix) -> Step<()> {
        let attrs = self.object(ix).attrs;
        let (Some(dir), Some(mode)) = (self.dir_of(ix)?, attrs.mode) else { return Ok(()) };
        if mode & OWNER_WX == OWNER_WX {
            let set = self.env.io.set_mode(&dir, b"", mode);
            self.soft(|s| s.path(ix), set)?;
        }
        Ok(())
    }

    /// Reports an object that an outsider changed since the transaction saw it.
    fn note_if_changed(&mut self, ix: Ix, place: &Place) -> Step<bool> {
        let stat = self.soft_stat(&place.dir, &place.name)?;
        let changed = stat.is_some_and(|s| self.is_changed_outside(ix, &s));
        if changed {
            let path = self.path(ix);
            self.report(path, Outside::Changed, None);
        }
        Ok(changed)
    }

    /// Whether this is another version than the one that the transaction saw.  A resumed
    /// installation cannot tell by the change time, which it moves itself.
    pub(super) fn is_changed_outside(&self, ix: Ix, stat: &Stat) -> bool {
        let now = stat.stamp();
        match &self.object(ix).origin {
            _ if self.redo || self.states[ix.0 as usize].touched => false,
            Origin::Host { stamp, .. } if self.stirred.contains(&now.id) => {
                (stamp.mtime, stamp.size) != (now.mtime, now.size)
            }
            Origin::Host { stamp, .. } => *stamp != now,
            Origin::Grave { stamp, .. } => {
                (stamp.id, stamp.mtime, stamp.size) != (now.id, now.mtime, now.size)
            }
            _ => false,
        }
    }

    /// Overwrites content in place.
    fn overwrite(&mut self, ix: Ix, place: &Place) -> Step<()> {
        let io = self.env.io;
        if self.is_written_by_another(ix) {
            self.state(ix).touched = true;
            return self.set_attributes(ix, place);
        }
        let Some(seen) = self.soft_stat(&place.dir, &place.name)? else { return Ok(()) };
        let open = || io.open_to_write(&place.dir, &place.name);
        let file = match self.as_owner(place, open) {
            // A running program's file cannot be written to: a new inode takes its place.
            Err(e) if is(&e, libc::ETXTBSY) => return self.replace(ix, place),
            other => match self.soft(|s| s.path(ix), other)? {
                Some(file) => file,
                None => return Ok(()),
            },
        };
        let stop = |s: &Self, e| s.stop(s.path(ix), e);
        let stat = self.env.io.stat(&file).map_err(|e| stop(self, e))?;
        let strange = if self.redo {
            !self.only_ours_or_old(ix, &file).map_err(|e| stop(self, e))?
        } else {
            // Opening may have moved the change time.
            let same = (seen.id, seen.mtime, seen.size) == (stat.id, stat.mtime, stat.size);
            !same || self.is_changed_outside(ix, &seen)
        };
        if strange {
            self.keep_copy(ix, &file)?;
        }
        self.state(ix).touched = true;
        let written = match &self.object(ix).content {
            Content::Patch { .. } => match self.patch(ix) {
                Some(patch) => self.env.write_patch(&file, &patch),
                None => Ok(()),
            },
            Content::Whole { len, extents } => self.env.write_whole(&file, *len, extents, false),
            Content::Slot(slot) => self.copy_slot(*slot, &file),
            Content::Keep => Ok(()),
        };
        written.map_err(|e| stop(self, e))?;
        self.set_attributes(ix, &Place::open(file))
    }

    /// Whether another record of the journal has brought about what this one changes in place, too.
    fn is_written_by_another(&self, ix: Ix) -> bool {
        self.versions.get(&ix).is_some_and(Vec::is_empty)
    }

    /// How the bytes of a file change in place, by all records of the journal that change it.
    fn patch(&self, ix: Ix) -> Option<Patch<'_>> {
        let Some(records) = self.versions.get(&ix) else {
            return Patch::of(&self.object(ix).content);
        };
        let each = records.iter().filter_map(|(c, ix)| Patch::of(&c.set.object(*ix).content));
        each.reduce(Patch::then)
    }

    fn copy_slot(&self, slot: SlotId, file: &Handle) -> Result<()> {
        let from = self.env.pool.handle(slot);
        let from = from.ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))?;
        let len = self.env.io.stat(&from)?.size;
        self.env.clear(file, 0, len, self.env.io.stat(file)?.size)?;
        copy_data(self.env.io, &from, file, len)?;
        self.env.io.set_len(file, len)
    }

    /// Keeps a copy of an outsider's version before it is overwritten in place.
    fn keep_copy(&mut self, ix: Ix, file: &Handle) -> Step<()> {
        let path = self.path(ix);
        let base = path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
        let (kept, copy) = self.new_in_conflict(&path, &base)?;
        let copied = self.env.io.stat(file).and_then(|stat| {
            copy_data(self.env.io, file, &copy, stat.size)?;
            self.env.io.set_len(&copy, stat.size)
        });
        copied.map_err(|e| self.stop(path.clone(), e))?;
        self.report(path, Outside::Changed, Some(kept));
        Ok(())
    }

    /// An empty file in `conflict/`, and where that is.
    fn new_in_conflict(&mut self, path: &[u8], base: &[u8]) -> Step<(Vec<u8>, Handle)> {
        let (dir, below) = self.conflict_dir()?;
        loop {
            let name = self.conflict_name(base);
            match self.env.io.create_file(&dir, &name, 0o600) {
                Ok(file) => {
                    let below = [&below[..], b"/", &name].concat();
                    return Ok((self.env.layout.path_of(&below), file));
                }
                Err(e) if is(&e, libc::EEXIST) => {}
                Err(e) => return Err(self.stop(path.to_vec(), e)),
            }
        }
    }

    /// Replaces an object by a new inode with all of its attributes; the old one is exchanged out.
    fn replace(&mut self, ix: Ix, place: &Place) -> Step<()> {
        self.replace_from(ix, place, place)
    }

    fn replace_from(&mut self, ix: Ix, old: &Place, place: &Place) -> Step<()> {
        let Some(stat) = self.soft_stat(&old.dir, &old.name)? else { return Ok(()) };
        let new = self.temp('b', ix);
        let built = self.copy_object(ix, old, &new, &stat);
        let Some(()) = self.soft(|s| s.path(ix), built)? else { return Ok(()) };
        self.set_attributes(ix, &new)?;
        let id =
            self.env.io.stat_at(&new.dir, &new.name).map_err(|e| self.stop(self.path(ix), e))?.id;
        let path = self.path(ix);
        if self.exchange_in(&new, place, Some(ix), path)? {
            let state = self.state(ix);
            state.id = Some(id);
            state.place = Some(place.clone());
            state.placed = true;
        }
        Ok(())
    }

    /// [`Install::replace`] when an earlier run may have got anywhere in it.
    fn replace_again(&mut self, ix: Ix) -> Step<()> {
        let Origin::Host { parent, name, .. } = &self.object(ix).origin else { return Ok(()) };
        let Some(place) = self.place_of(*parent, name)? else { return Ok(()) };
        let stat = self.soft_stat(&place.dir, &place.name)?;
        if let Some(stat) = &stat
            && self.origin_id(ix) != Some(stat.id)
            && self.is_ours(ix, &place, stat)?
        {
            if let Some(old) = self.place(ix)
                && let Some(stat) = self.soft_stat(&old.dir, &old.name)?
            {
                let copied = self.copy_attributes(&old, &place, &stat);
                self.soft(|s| s.path(ix), copied)?;
            }
            self.repair(ix, &place)?;
            let state = self.state(ix);
            state.id = Some(stat.id);
            state.place = Some(place);
            state.placed = true;
            return Ok(());
        }
        // Attributes come from the old inode, wherever it is now.
        let old = match (&stat, self.place(ix)) {
            (Some(stat), _) if self.origin_id(ix) == Some(stat.id) => place.clone(),
            (_, Some(place)) => place,
            (Some(_), None) => place.clone(),
            (None, None) => return Ok(()),
        };
        self.replace_from(ix, &old, &place)
    }

    fn copy_object(&mut self, ix: Ix, old: &Place, new: &Place, stat: &Stat) -> Result<()> {
        let io = self.env.io;
        if let Content::Slot(slot) = &self.object(ix).content {
            self.take_slot(*slot, new)?;
        } else {
            let file = io.create_file(&new.dir, &new.name, 0o600)?;
            match &self.object(ix).content {
                Content::Whole { len, extents } => {
                    self.env.write_whole(&file, *len, extents, true)?
                }
                Content::Patch { .. } => {
                    if let Some(patch) = self.patch(ix) {
                        let from = io.open_file(&old.dir, &old.name, Open::Read)?;
                        copy_data(io, &from, &file, stat.size.min(patch.keep))?;
                        self.env.write_patch(&file, &patch)?;
                    }
                }
                _ => {}
            }
        }
        self.copy_attributes(old, new, stat)
    }

    /// Gives a new inode all attributes of the one that it replaces.
    pub(super) fn copy_attributes(&self, old: &Place, new: &Place, stat: &Stat) -> Result<()> {
        let io = self.env.io;
        let made = io.stat_at(&new.dir, &new.name)?;
        if (made.uid, made.gid) != (stat.uid, stat.gid) {
            io.set_owner(&new.dir, &new.name, stat.uid, stat.gid)?;
        }
        io.set_mode(&new.dir, &new.name, stat.mode)?;
        for key in io.list_xattr(&old.dir, &old.name)? {
            let value = io.get_xattr(&old.dir, &old.name, &key)?;
            io.set_xattr(&new.dir, &new.name, &key, &value)?;
        }
        io.set_times(&new.dir, &new.name, Some(stat.atime), Some(stat.mtime))
    }

    /// What a directory gets when all names in it are done.
    pub(super) fn finish_dir(&mut self, ix: Ix) -> Step<()> {
        let object = self.object(ix);
        if !object.is_changed() {
            return Ok(());
        }
        let Some(dir) = self.states[ix.0 as usize].dir.clone() else {
            // Nothing below it was touched, so it was never opened.
            let Some(place) = self.place(ix) else { return Ok(()) };
            return self.set_attributes(ix, &place);
        };
        self.set_attributes(ix, &Place::open(dir))
    }

    /// Owner, extended attributes and (if it stays writable) mode of a new directory, before it is
    /// seen.
    pub(super) fn dress_dir(&mut self, ix: Ix) -> Step<()> {
        let Some(dir) = self.states[ix.0 as usize].dir.clone() else { return Ok(()) };
        let place = Place::open(dir);
        let object = self.object(ix);
        let mode = object.attrs.mode.filter(|m| m & OWNER_WX == OWNER_WX);
        self.set_owner(ix, &place, object.attrs)?;
        self.set_xattrs(ix, &place, &object.xattrs)?;
        self.set_mode(ix, &place, mode)
    }

    /// Completes a file of ours that an earlier run placed.
    pub(super) fn repair(&mut self, ix: Ix, place: &Place) -> Step<()> {
        let object = self.object(ix);
        if let (Kind::File, Content::Whole { len, extents }) = (object.kind(), &object.content) {
            let write = || -> Result<()> {
                let io = self.env.io;
                let open = || io.open_to_write(&place.dir, &place.name);
                let file = self.as_owner(place, open)?;
                self.env.write_whole(&file, *len, extents, false)
            };
            write().map_err(|e| self.stop(self.path(ix), e))?;
        }
        if let Content::Slot(slot) = object.content {
            // It may still have its name among the slots.
            self.needs_sync |= self.env.class == Class::Weak;
            self.later.push(super::Later::Slot(slot));
        }
        if object.kind() != Kind::Dir {
            self.set_attributes(ix, place)?;
        }
        Ok(())
    }
}

/// Gives a new object without extended attributes its owner, mode and times; returns what it is
/// then. Mostly only the times are left to set, so they come first, and one look tells whether
/// owner and mode are wanting: setting those does not move the times again. `masked`: the umask
/// took bits from the one before, as it does every time. What the system refuses is for `tell` to
/// judge.
pub(super) fn dress<E>(
    io: &dyn crate::io::Io,
    at: &Place,
    Attrs { mode, owner, atime, mtime }: Attrs,
    masked: &mut bool,
    mut tell: impl FnMut(Result<()>) -> std::result::Result<(), E>,
) -> std::result::Result<Result<Stat>, E> {
    if let Some(mode) = mode.filter(|_| *masked) {
        tell(io.set_mode(&at.dir, &at.name, mode))?;
    }
    if atime.is_some() || mtime.is_some() {
        tell(io.set_times(&at.dir, &at.name, atime, mtime))?;
    }
    let stat = match io.stat_at(&at.dir, &at.name) {
        Ok(stat) => stat,
        failed => return Ok(failed),
    };
    let chown = owner.filter(|o| *o != (stat.uid, stat.gid));
    if let Some((uid, gid)) = chown {
        tell(io.set_owner(&at.dir, &at.name, uid, gid))?;
    }
    // A change of owner may have cleared bits.
    let chmod = mode.filter(|m| chown.is_some() || *m != stat.mode);
    if let Some(mode) = chmod {
        *masked |= mode != stat.mode;
        tell(io.set_mode(&at.dir, &at.name, mode))?;
    }
    let again = chown.is_some() || chmod.is_some();
    Ok(if again { io.stat_at(&at.dir, &at.name) } else { Ok(stat) })
}

impl Env<'_> {
    /// Writes data and holes; `fresh` says that the file is empty.
    pub(super) fn write_whole(
        &self,
        file: &Handle,
        len: u64,
        extents: &[Extent],
        fresh: bool,
    ) -> Result<()> {
        let io = self.io;
        let old = if fresh { 0 } else { io.stat(file)?.size };
        let mut at = 0;
        for extent in extents {
            self.clear(file, at, extent.offset, old)?;
            self.write_extent(file, extent, old)?;
            at = extent.offset + extent.data.len();
        }
        self.clear(file, at, len, old)?;
        if fresh {
            // It ends where the last bytes were written.
            let is_data = |e: &&Extent| !e.data.is_empty() && !matches!(e.data, Data::Hole { .. });
            let end = extents.iter().rfind(is_data);
            let end = end.map_or(0, |e| e.offset + e.data.len());
            return if end != len { io.set_len(file, len) } else { Ok(()) };
        }
        if io.stat(file)?.size != len { io.set_len(file, len) } else { Ok(()) }
    }

    /// Makes a range read as zeros, as far as it lies within the old length.
    fn clear(&self, file: &Handle, from: u64, to: u64, old: u64) -> Result<()> {
        let to = to.min(old);
        if from < to { self.io.punch_hole(file, from, to - from) } else { Ok(()) }
    }

    fn write_extent(&self, file: &Handle, extent: &Extent, old: u64) -> Result<()> {
        match &extent.data {
            Data::Inline(bytes) => self.io.write_at(file, bytes, extent.offset),
            Data::Hole { len } => self.clear(file, extent.offset, extent.offset + len, old),
            Data::Slot { slot, at, len } => {
                let from = self.pool.handle(*slot);
                let from = from.ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))?;
                self.io.copy_range(&from, *at, file, extent.offset, *len)
            }
        }
    }

    /// Overwrites part of a file.
    fn write_patch(&self, file: &Handle, patch: &Patch<'_>) -> Result<()> {
        let io = self.io;
        let Patch { len, keep, ref extents } = *patch;
        let old = io.stat(file)?.size;
        let mut at = 0;
        for extent in &**extents {
            self.clear(file, keep.max(at), extent.offset, old)?;
            self.write_extent(file, extent, old)?;
            at = extent.offset + extent.data.len();
        }
        self.clear(file, keep.max(at), len, old)?;
        if io.stat(file)?.size != len { io.set_len(file, len) } else { Ok(()) }
    }
}

/// Copies the data of the first `len` bytes, leaving holes as holes.
pub(crate) fn copy_data(
    io: &dyn crate::io::Io,
    from: &Handle,
    to: &Handle,
    len: u64,
) -> Result<()> {
    copy_data_in(io, from, to, 0..len)
}

/// Copies the data of a range to the same offsets, leaving holes as holes.
pub(crate) fn copy_data_in(
    io: &dyn crate::io::Io,
    from: &Handle,
    to: &Handle,
    range: Range<u64>,
) -> Result<()> {
    let copy = |r: Range<u64>| io.copy_range(from, r.start, to, r.start, r.end - r.start);
    data_in(io, from, range)?.into_iter().try_for_each(copy)
}

/// The parts of a range that are data, ascending; the rest of it are holes.
pub(crate) fn data_in(
    io: &dyn crate::io::Tree,
    file: &Handle,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>> {
    let (mut at, mut data) = (range.start, Vec::new());
    while at < range.end
        && let Some((start, end)) = io.next_data(file, at)?
    {
        let (start, end) = (start.max(at), end.min(range.end));
        if start < end {
            data.push(start..end);
        }
        at = end.max(start).max(at + 1);
    }
    Ok(data)
}
