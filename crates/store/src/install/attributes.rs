//! Attributes of objects.
//!
//! Order on every object: data, owner, extended attributes (POSIX ACLs and capabilities among
//! them), mode, times: each step may disturb what a later one sets, or take the right to set it.

use super::site::{Place, Site, Step};
use crate::env::is;
use crate::error::available;
use crate::io::{Project, Stat};
use crate::report::Outside;
use crate::space::MARGIN;
use crate::writeset::{Attrs, Content, Ix};
use crate::xattrs::{change, is_refused, set_all};
use std::io::{Error, Result};
use systx_base::Kind;

/// Bits without which the owner could not add names to a directory.
pub(super) const OWNER_WX: u32 = 0o300;

impl Site<'_> {
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
                // that it has there is one that was chosen.
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
    pub(super) fn as_owner<T>(&self, place: &Place, call: impl Fn() -> Result<T>) -> Result<T> {
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
        let room = MARGIN.saturating_add(len as u64);
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

    /// Modes that let names be added are set before the names change, so that a directory that is
    /// made private is private before anything private is in it; narrow ones wait for
    /// [`Site::finish_dir`].
    pub(super) fn widen_dir(&mut self, ix: Ix) -> Step<()> {
        let attrs = self.object(ix).attrs;
        let (Some(dir), Some(mode)) = (self.dir_of(ix)?, attrs.mode) else { return Ok(()) };
        if mode & OWNER_WX == OWNER_WX {
            let set = self.env.io.set_mode(&dir, b"", mode);
            self.soft(|s| s.path(ix), set)?;
        }
        Ok(())
    }

    /// Gives a new inode all attributes of the one that it replaces.
    pub(super) fn copy_attributes(&self, old: &Place, new: &Place, stat: &Stat) -> Result<()> {
        let io = self.env.io;
        let made = io.stat_at(&new.dir, &new.name)?;
        if (made.uid, made.gid) != (stat.uid, stat.gid) {
            io.set_owner(&new.dir, &new.name, stat.uid, stat.gid)?;
        }
        io.set_mode(&new.dir, &new.name, stat.mode)?;
        let project = io.project(&old.dir, &old.name)?;
        if project != Project::default() {
            let _ = io.set_project(&new.dir, &new.name, project);
        }
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
        let at = match self.dir_of(ix)? {
            Some(dir) => Some(Place::open(dir)),
            None => self.place(ix)?,
        };
        at.map_or(Ok(()), |at| self.set_attributes(ix, &at))
    }

    /// Owner, extended attributes and (if it stays writable) mode of a new directory, before it is
    /// seen.
    pub(super) fn dress_dir(&mut self, ix: Ix) -> Step<()> {
        let Some(dir) = self.dir_of(ix)? else { return Ok(()) };
        let place = Place::open(dir);
        let object = self.object(ix);
        let mode = object.attrs.mode.filter(|m| m & OWNER_WX == OWNER_WX);
        self.set_owner(ix, &place, object.attrs)?;
        self.set_xattrs(ix, &place, &object.xattrs)?;
        self.set_mode(ix, &place, mode)
    }
}
