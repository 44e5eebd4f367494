//! Making new objects and changing existing ones.

use super::attributes::OWNER_WX;
use super::compare::only_ours_or_old;
use super::{Install, Place, Site, Step};
use crate::content::{Patch, copy_data};
use crate::env::is;
use crate::io::{Class, Handle, Open, Rename, Stat};
use crate::writeset::{Attrs, Content, Ix, NewKind, Origin, SlotId};
use std::io::{Error, Result};
use systx_base::Kind;

impl Install<'_> {
    /// Makes a new directory out of sight: in staging, or inside another new one, which is made
    /// first.  Not by recursion: trees may be deeper than a stack.
    pub(super) fn make_dir(&mut self, ix: Ix) -> Step<()> {
        let (mut begun, mut at) = (Vec::new(), ix);
        while self.site.object(at).is_new() && !self.site.state(at).busy {
            if self.site.id(at).is_some() {
                break;
            }
            self.site.state(at).busy = true;
            begun.push(at);
            at = self.site.commit.set.binds[self.site.index.targets(at)[0]].dir;
        }
        for ix in begun.iter().rev() {
            self.site.state(*ix).busy = false;
            if self.site.dir_of(*ix)?.is_none() {
                self.make_dir_in(*ix)?;
            }
        }
        Ok(())
    }

    /// Makes a new directory, in the one that it is in if that is new and was made.
    fn make_dir_in(&mut self, ix: Ix) -> Step<()> {
        let bind = &self.site.commit.set.binds[self.site.index.targets(ix)[0]];
        let hidden = self.site.state(bind.dir).hidden;
        let inside = if hidden { self.site.place_of(bind.dir, &bind.name)? } else { None };
        let place = inside.unwrap_or_else(|| self.site.temp('b', ix));
        let make = || -> Result<Handle> {
            self.site.env.io.mkdir(&place.dir, &place.name, 0o700)?;
            self.site.env.io.open_dir(&place.dir, &place.name)
        };
        let dir = make().map_err(|e| self.site.stop(self.site.path(ix), e))?;
        self.site.join_project(ix, &place)?;
        let stat =
            self.site.env.io.stat(&dir).map_err(|e| self.site.stop(self.site.path(ix), e))?;
        self.site.dirs.put(ix, dir);
        let state = self.site.state(ix);
        state.id = Some(stat.id);
        state.place = Some((&place).into());
        state.hidden = true;
        state.placed = place.of.is_some();
        Ok(())
    }

    /// Makes a new object that is no directory at `place`, complete.
    pub(super) fn build(&mut self, ix: Ix, place: &Place) -> Step<bool> {
        let made = self.create(ix, place);
        let Some(file) = self.site.soft(|s| s.path(ix), made)? else { return Ok(false) };
        self.site.join_project(ix, place)?;
        // By its descriptor, where there is one: no name is looked up again.
        let at = file.map_or_else(|| place.clone(), Place::open);
        let stat = self.dress(ix, &at)?;
        // A slot that has yet to lose its own name (weak file systems) changes once more.
        let later = self.site.env.class == Class::Weak;
        let ends_later = later && matches!(self.site.object(ix).content, Content::Slot(_));
        let state = self.site.state(ix);
        state.id = Some(stat.id);
        state.stamp = Some(stat.stamp()).filter(|_| !ends_later);
        state.place = Some(place.into());
        Ok(true)
    }

    /// Gives a new object its attributes; returns what it is then.
    fn dress(&mut self, ix: Ix, at: &Place) -> Step<Stat> {
        let io = self.site.env.io;
        let object = self.site.object(ix);
        let looked = if object.xattrs.is_empty() {
            let mode = object.attrs.mode.filter(|_| object.kind() != Kind::Symlink);
            let attrs = Attrs { mode, ..object.attrs };
            let report = |set| self.site.soft(|s| s.path(ix), set).map(drop);
            dress(io, at, attrs, &mut self.masked, report)?
        } else {
            self.site.set_attributes(ix, at)?;
            io.stat_at(&at.dir, &at.name)
        };
        looked.map_err(|e| self.site.stop(self.site.path(ix), e))
    }

    /// Makes a new object; the open file, if it is one that was just made.
    fn create(&mut self, ix: Ix, place: &Place) -> Result<Option<Handle>> {
        let io = self.site.env.io;
        let object = self.site.object(ix);
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
                    self.site.env.write_whole(&file, *len, extents, true)?;
                }
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// Gives a slot's file its place.  On a weak file system the slot keeps its name until the new
    /// one is durable: there a rename may lose both.
    fn take_slot(&mut self, slot: SlotId, place: &Place) -> Result<()> {
        let io = self.site.env.io;
        let from = self.site.find_slot(slot)?;
        if self.site.env.class == Class::Weak {
            io.link(&from.dir, &from.name, &place.dir, &place.name)?;
            self.needs_sync = true;
            self.later.push(super::Later::Slot(slot));
        } else {
            io.rename(&from.dir, &from.name, &place.dir, &place.name, Rename::NoReplace)?;
            self.gone.insert(slot);
        }
        Ok(())
    }

    /// Directories of ours that names are changed in, and that we may not write to, become writable
    /// until [`Install::narrow`]: for root they are anyway.
    pub(super) fn widen(&mut self) -> Step<()> {
        let store = self.site.env.io.stat(&self.site.env.layout.state);
        let owner = store.map_err(|e| self.site.stop(Vec::new(), e))?.uid;
        if owner == 0 {
            return Ok(());
        }
        let dirs: std::collections::BTreeSet<Ix> =
            self.site.commit.set.binds.iter().map(|b| b.dir).collect();
        for ix in dirs {
            if self.site.object(ix).is_new() {
                continue;
            }
            let Some(dir) = self.site.dir_of(ix)? else { continue };
            let Some(stat) = self.site.soft_stat(&dir, b"")? else { continue };
            if stat.uid == owner
                && stat.mode & OWNER_WX != OWNER_WX
                && self.site.env.io.set_mode(&dir, b"", stat.mode | OWNER_WX).is_ok()
            {
                self.widened.push((ix, stat.mode));
            }
        }
        Ok(())
    }

    /// Takes back what [`Install::widen`] gave.
    pub(super) fn narrow(&mut self) -> Step<()> {
        for (ix, mode) in std::mem::take(&mut self.widened) {
            if let Some(dir) = self.site.dir_of(ix)? {
                let set = self.site.env.io.set_mode(&dir, b"", mode);
                self.site.soft(|s| s.path(ix), set)?;
            }
        }
        Ok(())
    }

    /// Changes an existing object.
    pub(super) fn change(&mut self, ix: Ix) -> Step<()> {
        let object = self.site.object(ix);
        if object.kind() == Kind::Dir {
            return self.site.widen_dir(ix);
        }
        let exchanged = self.site.is_exchanged(ix);
        if self.site.redo && exchanged {
            return self.replace_again(ix);
        }
        let Some(place) = self.site.place(ix)? else { return Ok(()) };
        let swapped = object.content != Content::Keep && place.of.is_none();
        if swapped
            && self.site.redo
            && self.site.index.targets(ix).is_empty()
            && !self.site.index.is_displaced(ix)
        {
            // An earlier run found it in use as a program and has already exchanged it.
            return Ok(());
        }
        if object.content == Content::Keep {
            self.site.note_if_changed(ix, &place)?;
            self.site.state(ix).touched = true;
            return self.site.set_attributes(ix, &place);
        }
        if exchanged { self.replace(ix, &place) } else { self.overwrite(ix, &place) }
    }

    /// Overwrites content in place.
    fn overwrite(&mut self, ix: Ix, place: &Place) -> Step<()> {
        let io = self.site.env.io;
        if self.is_written_by_another(ix) {
            self.site.state(ix).touched = true;
            return self.site.set_attributes(ix, place);
        }
        let Some(seen) = self.site.soft_stat(&place.dir, &place.name)? else { return Ok(()) };
        let open = || io.open_to_write(&place.dir, &place.name);
        let file = match self.site.as_owner(place, open) {
            // A running program's file cannot be written to: a new inode takes its place.
            Err(e) if is(&e, libc::ETXTBSY) => return self.replace(ix, place),
            other => match self.site.soft(|s| s.path(ix), other)? {
                Some(file) => file,
                None => return Ok(()),
            },
        };
        let stop = |s: &Site<'_>, e| s.stop(s.path(ix), e);
        let stat = self.site.env.io.stat(&file).map_err(|e| stop(&self.site, e))?;
        let strange = if self.site.redo {
            let this = [(self.site.commit, ix)];
            let records = self.versions.get(&ix).map_or(&this[..], Vec::as_slice);
            !only_ours_or_old(self.site.env, records, &file).map_err(|e| stop(&self.site, e))?
        } else {
            // Opening may have moved the change time.
            !seen.stamp().has_data_of(&stat.stamp()) || self.site.is_changed_outside(ix, &seen)
        };
        if strange {
            self.site.keep_copy(ix, &file)?;
        }
        self.site.state(ix).touched = true;
        let written = match &self.site.object(ix).content {
            Content::Patch { .. } => match self.patch(ix) {
                Some(patch) => self.site.env.write_patch(&file, &patch),
                None => Ok(()),
            },
            Content::Whole { len, extents } => {
                self.site.env.write_whole(&file, *len, extents, false)
            }
            Content::Slot(slot) => self.site.env.copy_slot(*slot, &file),
            Content::Keep => Ok(()),
        };
        written.map_err(|e| stop(&self.site, e))?;
        self.site.set_attributes(ix, &Place::open(file))
    }

    /// Whether another record of the journal has brought about what this one changes in place, too.
    fn is_written_by_another(&self, ix: Ix) -> bool {
        self.versions.get(&ix).is_some_and(Vec::is_empty)
    }

    /// How the bytes of a file change in place, by all records of the journal that change it.
    fn patch(&self, ix: Ix) -> Option<Patch<'_>> {
        let Some(records) = self.versions.get(&ix) else {
            return Patch::of(&self.site.object(ix).content);
        };
        let each = records.iter().filter_map(|(c, ix)| Patch::of(&c.set.object(*ix).content));
        each.reduce(Patch::then)
    }

    /// Replaces an object by a new inode with all of its attributes; the old one is exchanged out.
    fn replace(&mut self, ix: Ix, place: &Place) -> Step<()> {
        self.replace_from(ix, place, place)
    }

    fn replace_from(&mut self, ix: Ix, old: &Place, place: &Place) -> Step<()> {
        let Some(stat) = self.site.soft_stat(&old.dir, &old.name)? else { return Ok(()) };
        let new = self.site.temp('b', ix);
        let built = self.copy_object(ix, old, &new, &stat);
        let Some(()) = self.site.soft(|s| s.path(ix), built)? else { return Ok(()) };
        self.site.set_attributes(ix, &new)?;
        let path = self.site.path(ix);
        let made = self.site.env.io.stat_at(&new.dir, &new.name);
        let id = made.map_err(|e| self.site.stop(path.clone(), e))?.id;
        if self.exchange_in(&new, place, Some(ix), path)? {
            let state = self.site.state(ix);
            state.id = Some(id);
            state.place = Some(place.into());
            state.placed = true;
        }
        Ok(())
    }

    /// [`Install::replace`] when an earlier run may have got anywhere in it.
    fn replace_again(&mut self, ix: Ix) -> Step<()> {
        let Origin::Host { parent, name, .. } = &self.site.object(ix).origin else { return Ok(()) };
        let Some(place) = self.site.place_of(*parent, name)? else { return Ok(()) };
        let stat = self.site.soft_stat(&place.dir, &place.name)?;
        if let Some(stat) = &stat
            && self.site.origin_id(ix) != Some(stat.id)
            && self.site.is_ours(ix, &place, stat)?
        {
            if let Some(old) = self.site.place(ix)?
                && let Some(stat) = self.site.soft_stat(&old.dir, &old.name)?
            {
                let copied = self.site.copy_attributes(&old, &place, &stat);
                self.site.soft(|s| s.path(ix), copied)?;
            }
            self.repair(ix, &place)?;
            let state = self.site.state(ix);
            state.id = Some(stat.id);
            state.place = Some((&place).into());
            state.placed = true;
            return Ok(());
        }
        // Attributes come from the old inode, wherever it is now.
        let old = match (&stat, self.site.place(ix)?) {
            (Some(stat), _) if self.site.origin_id(ix) == Some(stat.id) => place.clone(),
            (_, Some(place)) => place,
            (Some(_), None) => place.clone(),
            (None, None) => return Ok(()),
        };
        self.replace_from(ix, &old, &place)
    }

    fn copy_object(&mut self, ix: Ix, old: &Place, new: &Place, stat: &Stat) -> Result<()> {
        let io = self.site.env.io;
        if let Content::Slot(slot) = &self.site.object(ix).content {
            self.take_slot(*slot, new)?;
        } else {
            let file = io.create_file(&new.dir, &new.name, 0o600)?;
            match &self.site.object(ix).content {
                Content::Whole { len, extents } => {
                    self.site.env.write_whole(&file, *len, extents, true)?
                }
                Content::Patch { .. } => {
                    if let Some(patch) = self.patch(ix) {
                        let from = io.open_file(&old.dir, &old.name, Open::Read)?;
                        copy_data(io, &from, &file, stat.size.min(patch.keep))?;
                        self.site.env.write_patch(&file, &patch)?;
                    }
                }
                _ => {}
            }
        }
        self.site.copy_attributes(old, new, stat)
    }

    /// Completes a file of ours that an earlier run placed.
    pub(super) fn repair(&mut self, ix: Ix, place: &Place) -> Step<()> {
        let object = self.site.object(ix);
        if let (Kind::File, Content::Whole { len, extents }) = (object.kind(), &object.content) {
            let write = || -> Result<()> {
                let io = self.site.env.io;
                let open = || io.open_to_write(&place.dir, &place.name);
                let file = self.site.as_owner(place, open)?;
                self.site.env.write_whole(&file, *len, extents, false)
            };
            write().map_err(|e| self.site.stop(self.site.path(ix), e))?;
        }
        if let Content::Slot(slot) = object.content {
            // It may still have its name among the slots.
            self.needs_sync |= self.site.env.class == Class::Weak;
            self.later.push(super::Later::Slot(slot));
        }
        if object.kind() != Kind::Dir {
            self.site.set_attributes(ix, place)?;
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
