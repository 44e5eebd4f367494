//! What a rename cannot move: a directory of which a lower layer of an overlay has a part
//! ([`crate::overlay`]). Its content is carried, name by name, to a new directory, its
//! *substitute*, and it is removed.
//!
//! Every step is a rename, and a name that has been carried is not there any more, so an attempt
//! that was cut off is simply gone on with. What is in there and belongs elsewhere after the commit
//! is put aside first: it is not to go where it could not be found.

use super::{Install, Place, Site, Step};
use crate::env::is;
use crate::io::{Class, Handle, Rename, Stat};
use crate::layout::{ensure_dir, names};
use crate::report::Outside;
use crate::writeset::{Ix, Origin};
use std::io::{Error, Result};
use systx_base::Kind;

/// How often a directory is looked through again because somebody puts names into it.
const TRIES: usize = 64;

impl Install<'_> {
    /// Carries the directory at `from` to `to`, which is not there yet or was begun by an earlier
    /// run.
    pub(super) fn carry(&mut self, from: &Place, to: &Place) -> Step<bool> {
        // What is above is made, and what is above is removed last: [from, to], the deepest at the
        // end.
        let mut todo = vec![(from.clone(), to.clone(), None, 0)];
        while let Some((from, to, seen, tries)) = todo.last().cloned() {
            let (seen, below) = self.carry_names(&from, &to, seen)?;
            if let Some(last) = todo.last_mut() {
                last.2 = Some(seen);
            }
            if !below.is_empty() {
                todo.extend(below.into_iter().map(|(from, to)| (from, to, None, 0)));
                continue;
            }
            match self.site.env.io.rmdir(&from.dir, &from.name) {
                Err(e) if is(&e, libc::ENOTEMPTY) && tries < TRIES => {
                    if let Some(last) = todo.last_mut() {
                        last.3 += 1;
                    }
                    continue;
                }
                done => {
                    let done = crate::layout::found(done);
                    if self.site.soft(|_| from.name.clone(), done)?.is_none() {
                        return Ok(false);
                    }
                }
            }
            todo.pop();
        }
        Ok(true)
    }

    /// Brings a directory that cannot be moved to the graveyard.
    pub(super) fn carry_to_grave(&mut self, ix: Ix, from: &Place, grave: Place) -> Step<()> {
        if self.carry(from, &grave)? {
            let state = self.site.state(ix);
            state.place = Some((&grave).into());
            state.placed = false;
        }
        Ok(())
    }

    /// Clears a name of a directory that can only be carried: it stands for nothing for that long.
    pub(super) fn carry_away(
        &mut self,
        at: &Place,
        expected: Option<Ix>,
        seen: &Stat,
        path: &[u8],
    ) -> Step<()> {
        if let Some(ix) = expected.filter(|ix| self.site.origin_id(*ix) == Some(seen.id)) {
            return self.bury(ix, at);
        }
        let kept = self.keep(at, &at.name)?;
        self.site.report(path.to_vec(), Outside::Appeared, Some(kept));
        Ok(())
    }

    /// Whether this is the directory that the transaction knew, which can only be carried.
    pub(super) fn is_unmovable(&self, ix: Ix, at: &Place) -> Step<bool> {
        let here = self.site.soft_stat(&at.dir, &at.name)?;
        let known = |h: Stat| h.kind == Kind::Dir && self.site.origin_id(ix) == Some(h.id);
        Ok(self.site.env.overlay && here.is_some_and(known))
    }

    /// Whether an earlier run has begun to carry what is `here`, to what is `there`.
    pub(super) fn is_begun(&self, ix: Ix, here: Option<Stat>, there: &Stat) -> bool {
        let known = |h: Stat| h.kind == Kind::Dir && self.site.origin_id(ix) == Some(h.id);
        self.site.redo
            && self.site.env.overlay
            && there.kind == Kind::Dir
            && here.is_some_and(known)
    }

    /// Makes the substitute and gives it all that can be renamed; what the directory was at first,
    /// and the directories in it that cannot be.
    fn carry_names(
        &mut self,
        from: &Place,
        to: &Place,
        seen: Option<Stat>,
    ) -> Step<(Stat, Vec<(Place, Place)>)> {
        let stop = |s: &Site<'_>, e| s.stop(from.name.clone(), e);
        let io = self.site.env.io;
        let open = || -> Result<(Handle, Stat, Handle)> {
            let old = io.open_dir(&from.dir, &from.name)?;
            let stat = io.stat(&old)?;
            Ok((old, stat, ensure_dir(io, &to.dir, &to.name)?))
        };
        let (old, now, new) = open().map_err(|e| stop(&self.site, e))?;
        let stat = seen.unwrap_or(now);
        let mut below = Vec::new();
        for name in names(io, &old).map_err(|e| stop(&self.site, e))? {
            let here = Place::own(&old, &name);
            let there = Place::own(&new, &name);
            let Some(seen) = self.site.soft_stat(&here.dir, &here.name)? else { continue };
            let known = self.site.old.get(&seen.id).copied();
            if let Some(ix) = known.filter(|ix| self.site.index.leaves(*ix, now.id, &name)) {
                self.put_aside(ix, &here)?;
                continue;
            }
            let told = known.filter(|ix| self.is_told(*ix, &now, &name, &seen));
            match self.site.rename(&here, &there, Rename::NoReplace) {
                Err(e) if is(&e, libc::EXDEV) && seen.kind == Kind::Dir => {
                    below.push((here, there));
                }
                // Begun by an earlier run.
                Err(e)
                    if is(&e, libc::EEXIST)
                        && self.site.redo
                        && self.are_dirs(&seen, &there)? =>
                {
                    below.push((here, there));
                }
                Err(e) if is(&e, libc::ENOENT) => {}
                Err(e) if is(&e, libc::EEXIST) => {
                    // An outsider has put another one where one was carried from.
                    let kept = self.keep(&here, &here.name)?;
                    self.site.report(here.name.clone(), Outside::Appeared, Some(kept));
                }
                done => {
                    done.map_err(|e| stop(&self.site, e))?;
                    self.site.stirred.insert(seen.id);
                    self.survivors.extend(told.map(|ix| (ix, there)));
                }
            }
        }
        // Last, for the time moves with the names.
        self.site.copy_attributes(from, to, &stat).map_err(|e| stop(&self.site, e))?;
        Ok((stat, below))
    }

    /// Whether the version of an object that is carried under this name is told, as one by which
    /// the transaction goes on.
    fn is_told(&self, ix: Ix, dir: &Stat, name: &[u8], seen: &Stat) -> bool {
        let Origin::Host { parent, name: known, stamp, .. } = &self.site.object(ix).origin else {
            return false;
        };
        if self.site.index.is_followed(ix) {
            // Who has changed it since the transaction met it is an outsider.
            return *stamp == seen.stamp();
        }
        let known_here = self.site.origin_id(*parent) == Some(dir.id) && known == name;
        known_here && seen.kind != Kind::Dir
    }

    fn are_dirs(&self, seen: &Stat, there: &Place) -> Step<bool> {
        let other = self.site.soft_stat(&there.dir, &there.name)?;
        Ok(seen.kind == Kind::Dir && other.is_some_and(|s| s.kind == Kind::Dir))
    }

    /// Something that is to have another place: it waits in staging, if it has not got there yet.
    fn put_aside(&mut self, ix: Ix, here: &Place) -> Step<()> {
        let io = self.site.env.io;
        let stop = |s: &Site<'_>, e: Error| s.stop(here.name.clone(), e);
        let is_dir = self.site.object(ix).kind() == Kind::Dir;
        if self.site.states[ix.0 as usize].placed && !is_dir {
            // By a link, of which nothing says that it is durable.
            if self.site.env.class == Class::Weak {
                self.site.sync()?;
            }
            return self.drop_seen(ix, here);
        }
        let parked = self.site.temp('p', ix);
        if is_dir || self.site.env.class != Class::Weak {
            self.site.rename(here, &parked, Rename::NoReplace).map_err(|e| stop(&self.site, e))?;
        } else {
            let linked = io.link(&here.dir, &here.name, &parked.dir, &parked.name);
            linked.map_err(|e| stop(&self.site, e))?;
            self.site.sync()?;
            self.drop_seen(ix, here)?;
        }
        self.site.stirred.extend(self.site.origin_id(ix));
        self.site.is_parked(ix, &parked);
        Ok(())
    }
}
