//! Bringing every changed name to its outcome.
//!
//! **Order.**  New directories come first, the deepest before those that they are in, so that one
//! is complete when it appears (on a weak file system, but for existing directories in it); names
//! that go come last.  A bind is done in that order unless it waits for another object:
//! - the one at its name, which has yet to move elsewhere, or
//! - where it would put a directory below itself, one on the way between, which has yet to move
//!   out.
//!
//! That one's bind is done first.  If that one waits, directly or not, for this bind, the two names
//! are exchanged, or the object that is waited for is parked in staging, which nothing can prevent.
//! docs/decisions/0022-order-of-moves.md has why this always ends, from any tree that an
//! interrupted installation may leave.
//!
//! Nothing at a visible name is overwritten or removed blindly: what is put there is put with
//! `RENAME_NOREPLACE` or link, and what is in the way comes out by `RENAME_EXCHANGE` or a rename
//! into the graveyard, and is looked at where it arrived.

use super::ahead::WINDOW;
use super::{Install, Later, Place, Spot, Step};
use crate::env::is;
use crate::io::{Class, HostId, Open, Openers, Rename, Stat};
use crate::layout::{grave_name, parse_temp};
use crate::report::Outside;
use crate::writeset::{Bind, Ix, Origin};
use std::io::Result;
use systx_base::{Kind, progress};

/// How often a step is tried again because an outsider changed the name in between.
const TRIES: usize = 64;

/// How far a bind is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Open,
    /// It waits for what is being done, or for a sync.
    Begun,
    Done,
}

impl Install<'_> {
    pub(super) fn bind_all(&mut self) -> Step<()> {
        let (now, late): (Vec<_>, Vec<_>) =
            self.ordered().into_iter().partition(|i| !self.is_late(*i));
        late.iter().for_each(|i| self.turns[*i] = Turn::Begun);
        for some in now.chunks(WINDOW) {
            self.make_ahead(some)?;
            for i in some {
                self.bind_in_turn(*i)?;
            }
        }
        if !late.is_empty() {
            self.site.sync()?;
            late.iter().for_each(|i| self.turns[*i] = Turn::Open);
        }
        late.into_iter().try_for_each(|i| self.bind_in_turn(i))
    }

    /// Weak file systems: whether an existing directory gets into a new one, which has to be
    /// durable before: a rename may lose both names, and nothing tells then what the new directory
    /// was and had in it.
    fn is_late(&self, i: usize) -> bool {
        let bind = &self.site.commit.set.binds[i];
        let moves =
            |ix: Ix| !self.site.object(ix).is_new() && self.site.object(ix).kind() == Kind::Dir;
        let into_new = self.site.object(bind.dir).is_new() && bind.target.is_some_and(moves);
        self.site.env.class == Class::Weak && into_new
    }

    /// Does a bind, and before it those that it waits for.  Not by recursion: they may be many.
    fn bind_in_turn(&mut self, i: usize) -> Step<()> {
        let mut begun: Vec<usize> =
            Some(i).filter(|i| self.turns[*i] != Turn::Done).into_iter().collect();
        while let Some(i) = begun.last().copied() {
            self.turns[i] = Turn::Begun;
            let bind = &self.site.commit.set.binds[i];
            let next = match self.try_bind(i, bind)? {
                None => None,
                Some(other) => match self.next_bind(other) {
                    Some(next) if self.turns[next] == Turn::Open => Some(next),
                    _ if self.swap(bind, other)? || self.park(other)?.is_some() => continue,
                    // It cannot be moved at all, which was reported.
                    _ => {
                        self.give_up(bind)?;
                        None
                    }
                },
            };
            match next {
                Some(next) => begun.push(next),
                None => {
                    progress::step();
                    self.turns[i] = Turn::Done;
                    begun.pop();
                }
            }
        }
        Ok(())
    }

    /// The first of the names of an object that it does not have yet.
    fn next_bind(&self, ix: Ix) -> Option<usize> {
        self.site.index.targets(ix).iter().copied().find(|i| self.turns[*i] != Turn::Done)
    }

    /// Weak file systems: a file that lives on and whose old name is given to another object gets a
    /// further name in staging, durable before the old one is lost: its new name may not be durable
    /// by then.
    pub(super) fn anchor(&mut self) -> Step<()> {
        if self.site.env.class != Class::Weak {
            return Ok(());
        }
        let mut any = false;
        for ix in (0..self.site.states.len() as u32).map(Ix) {
            let Origin::Host { parent, name, .. } = &self.site.object(ix).origin else { continue };
            let taken = self
                .site
                .index
                .at(*parent, name)
                .is_some_and(|b| b.target.is_some() && b.target != Some(ix));
            let object = self.site.object(ix);
            let lives = !self.site.index.targets(ix).is_empty() || object.is_changed();
            let wanted = taken && lives && object.kind() != Kind::Dir;
            if !wanted {
                continue;
            }
            let Some(place) = self.site.place(ix)? else { continue };
            let anchor = self.site.temp('a', ix);
            let linked = self.site.env.io.link(&place.dir, &place.name, &anchor.dir, &anchor.name);
            if self.site.soft(|s| s.path(ix), linked)?.is_some() {
                self.site.state(ix).touched = true;
                self.needs_sync = true;
                self.later.push(Later::Temp(anchor));
                any = true;
            }
        }
        if any { self.site.sync() } else { Ok(()) }
    }

    /// Deepest new directories first, removals last, so that one round is the rule.
    fn ordered(&self) -> Vec<usize> {
        let mut depth = vec![0usize; self.site.states.len()];
        let mut order: Vec<usize> = (0..self.site.commit.set.binds.len()).collect();
        for ix in (0..self.site.states.len() as u32).map(Ix) {
            let mut at = ix;
            while self.site.object(at).is_new()
                && let Some(i) = self.site.index.targets(at).first()
                && depth[ix.0 as usize] < self.site.states.len()
            {
                depth[ix.0 as usize] += 1;
                at = self.site.commit.set.binds[*i].dir;
            }
        }
        order.sort_by_key(|i| {
            let bind = &self.site.commit.set.binds[*i];
            (bind.target.is_none(), std::cmp::Reverse(depth[bind.dir.0 as usize]))
        });
        order
    }

    /// Does one bind if it can be done now; else returns the object that has to leave its place
    /// first.
    fn try_bind(&mut self, i: usize, bind: &Bind) -> Step<Option<Ix>> {
        let Some(place) = self.site.place_of(bind.dir, &bind.name)? else {
            self.give_up(bind)?;
            return Ok(None);
        };
        let Some(target) = bind.target else {
            self.unbind(i, bind)?;
            return Ok(None);
        };
        // Where nothing was, a new object is put without a look: putting it never overwrites.
        let free = bind.displaces.is_none() && self.site.object(target).is_new();
        let fresh = (free || self.site.states[bind.dir.0 as usize].hidden) && !self.site.redo;
        let now = if fresh { None } else { self.site.soft_stat(&place.dir, &place.name)? };
        if let Some(stat) = &now {
            if self.site.id(target) == Some(stat.id) {
                self.site.arrived(target, &place);
                return Ok(None);
            }
            let occupant = self.site.old.get(&stat.id).copied();
            if let Some(occupant) = occupant
                && self.next_bind(occupant).is_some()
                && self.is_home(occupant, &place)
            {
                return Ok(Some(occupant));
            }
        }
        if let Some(between) = self.between(bind.dir, target) {
            return Ok(Some(between));
        }
        if self.site.object(target).is_new() {
            self.bind_new(target, bind, &place, now)?;
        } else {
            self.bind_host(target, bind, &place, now.is_some())?;
        }
        Ok(None)
    }

    /// Does a bind to nothing.  What moves elsewhere has done so.
    fn unbind(&mut self, i: usize, bind: &Bind) -> Step<()> {
        let last_look = bind.displaces.is_some_and(|d| self.site.is_last_look(d));
        if bind.displaces.is_some() && (self.site.env.class == Class::Weak || last_look) {
            // Under another name that nobody knows here the file lives on, with the change.
            self.needs_sync |= bind.displaces.is_some_and(|d| self.site.object(d).is_changed());
            self.later.push(Later::Name(i));
            return Ok(());
        }
        self.remove_name(bind)
    }

    /// Whether this is the name that an object is to be moved away from.
    fn is_home(&self, ix: Ix, place: &Place) -> bool {
        let home = self.site.states[ix.0 as usize].home.as_ref();
        home.is_some_and(|home| home.of == place.of && home.name == place.name)
    }

    /// Where the directory `dir` is `top`, which has yet to get its name, or now somewhere below
    /// it: what has yet to move on the way up from there.  There is such a thing, or else `dir`
    /// would be below `top` in the end, too.
    fn between(&self, dir: Ix, top: Ix) -> Option<Ix> {
        if self.site.object(top).kind() != Kind::Dir || self.site.states[top.0 as usize].placed {
            return None;
        }
        let (mut at, mut found) = (dir, None);
        // Bounded, should outsiders have made what is known a circle.
        for _ in 0..=self.site.states.len() {
            if at == top {
                return found;
            }
            if !self.site.object(at).is_new() && self.next_bind(at).is_some() {
                found = found.or(Some(at));
            }
            at = self.site.states[at.0 as usize].place.as_ref()?.of?;
        }
        None
    }

    /// An object cannot get a name, for the directory is gone: what nobody sees is kept aside.
    fn give_up(&mut self, bind: &Bind) -> Step<()> {
        let Some(target) = bind.target else { return Ok(()) };
        if !self.site.has_place(target) && self.site.object(target).is_new() {
            let place = self.site.temp('b', target);
            if !self.build(target, &place)? {
                return Ok(());
            }
        }
        let state = &self.site.states[target.0 as usize];
        let staged = |p: &Spot| p.of.is_none() && !state.placed && parse_temp(&p.name).is_some();
        let staged = state.place.clone().filter(staged);
        let Some(place) = self.site.at(staged)? else { return Ok(()) };
        let path = self.site.bind_path(bind);
        let kept = self.keep(&place, &bind.name)?;
        self.site.state(target).place = None;
        self.site.report(path, Outside::Gone, Some(kept));
        Ok(())
    }

    /// For resuming: finds a new file under any of its names, and completes it. All names are
    /// looked at before it is made anew, or they would end up naming different files.
    fn adopt(&mut self, ix: Ix) -> Step<()> {
        for i in self.site.index.targets(ix).to_vec() {
            let bind = &self.site.commit.set.binds[i];
            let Some(place) = self.site.place_of(bind.dir, &bind.name)? else { continue };
            let Some(stat) = self.site.soft_stat(&place.dir, &place.name)? else { continue };
            if self.site.old.contains_key(&stat.id) || !self.site.is_ours(ix, &place, &stat)? {
                continue;
            }
            self.repair(ix, &place)?;
            let state = self.site.state(ix);
            state.id = Some(stat.id);
            state.place = Some((&place).into());
            state.placed = true;
            return Ok(());
        }
        Ok(())
    }

    fn bind_new(&mut self, ix: Ix, bind: &Bind, place: &Place, now: Option<Stat>) -> Step<()> {
        let is_dir = self.site.object(ix).kind() == Kind::Dir;
        if self.site.redo && !is_dir && !self.site.states[ix.0 as usize].placed {
            self.adopt(ix)?;
        }
        if now.is_some_and(|stat| Some(stat.id) == self.site.id(ix)) {
            self.site.arrived(ix, place);
            return Ok(());
        }
        if !is_dir && self.site.states[ix.0 as usize].placed {
            return self.add_link(ix, bind, place, now.is_some());
        }
        if is_dir {
            self.site.dress_dir(ix)?;
            if self.site.states[ix.0 as usize].placed {
                self.site.arrived(ix, place);
                return Ok(());
            }
        } else {
            let in_place = now.is_none() && self.site.states[bind.dir.0 as usize].hidden;
            if !std::mem::take(&mut self.site.state(ix).ahead) {
                let at = if in_place { place.clone() } else { self.site.temp('b', ix) };
                if !self.build(ix, &at)? {
                    return Ok(());
                }
            }
            if in_place {
                self.site.arrived(ix, place);
                return Ok(());
            }
        }
        let Some(staged) = self.site.place(ix)? else { return Ok(()) };
        // Getting its name moves its change time.
        self.site.state(ix).stamp = None;
        if self.put(&staged, place, bind)? {
            self.site.arrived(ix, place);
        }
        Ok(())
    }

    fn bind_host(&mut self, ix: Ix, bind: &Bind, place: &Place, occupied: bool) -> Step<()> {
        if !self.site.has_place(ix) {
            return Ok(());
        }
        let is_dir = self.site.object(ix).kind() == Kind::Dir;
        let leaves = self.site.loses_origin(ix);
        let mut open =
            self.site.index.targets(ix).iter().rev().filter(|i| self.turns[**i] != Turn::Done);
        let last = open.nth(1).is_none();
        // On a weak file system a rename may lose both names; a link and a later unlink cannot.
        if !is_dir && (!leaves || !last || self.site.env.class == Class::Weak) {
            self.add_link(ix, bind, place, occupied)?;
            if leaves && last && self.site.states[ix.0 as usize].placed {
                self.leave_home(ix)?;
            }
            return Ok(());
        }
        match self.site.at(self.site.states[ix.0 as usize].home.clone())? {
            Some(from) => self.move_host(ix, bind, place, occupied, from),
            None => self.add_link(ix, bind, place, occupied),
        }
    }

    fn move_host(
        &mut self,
        ix: Ix,
        bind: &Bind,
        place: &Place,
        occupied: bool,
        mut from: Place,
    ) -> Step<()> {
        self.site.stirred.extend(self.site.id(ix));
        if occupied {
            // What comes out of the way arrives where this was.
            let Some(parked) = self.park(ix)? else { return Ok(()) };
            from = parked;
        }
        if self.put(&from, place, bind)? {
            self.site.state(ix).home = None;
            self.site.arrived(ix, place);
        }
        Ok(())
    }

    /// Moves an object to staging, until its turn comes.
    fn park(&mut self, ix: Ix) -> Step<Option<Place>> {
        let parked = self.site.temp('p', ix);
        let state = &self.site.states[ix.0 as usize];
        let home = state.home.as_ref().or(state.place.as_ref()).cloned();
        let Some(home) = self.site.at(home)? else { return Ok(None) };
        if home.name != parked.name {
            let moved = self.site.rename(&home, &parked, Rename::NoReplace);
            let Some(()) = self.site.soft(|s| s.path(ix), moved)? else { return Ok(None) };
            self.site.is_parked(ix, &parked);
        }
        Ok(Some(parked))
    }

    /// The old name of a file that moved by link goes with its own bind; one that has none (it was
    /// in the graveyard, parked, or in a directory that is removed) goes here.
    fn leave_home(&mut self, ix: Ix) -> Step<()> {
        let Some(home) = self.site.state(ix).home.take() else { return Ok(()) };
        if let Origin::Host { parent, name, .. } = &self.site.object(ix).origin
            && self.site.index.at(*parent, name).is_some()
            && home.of == Some(*parent)
            && home.name == *name
        {
            return Ok(());
        }
        self.drop_home(ix, home)
    }

    /// Removes the name that an object has moved away from by a link.
    fn drop_home(&mut self, ix: Ix, home: Spot) -> Step<()> {
        if home.of.is_some() && self.site.env.class == Class::Weak {
            self.later.push(Later::Home(ix, home));
            return Ok(());
        }
        let Some(home) = self.site.at(Some(home))? else { return Ok(()) };
        if home.of.is_some() { self.drop_seen(ix, &home) } else { self.drop_later(home) }
    }

    /// Removes a name that others see, if it still names this object.
    pub(super) fn drop_seen(&mut self, ix: Ix, home: &Place) -> Step<()> {
        match self.site.soft_stat(&home.dir, &home.name)?.map(|stat| stat.id) {
            Some(id) if [self.site.id(ix), self.site.origin_id(ix)].contains(&Some(id)) => {
                self.drop_name(ix, home, id)
            }
            _ => Ok(()),
        }
    }

    /// For resuming: names without a bind of their own of files that have moved by link.
    pub(super) fn drop_old_names(&mut self) -> Step<()> {
        for ix in (0..self.site.states.len() as u32).map(Ix) {
            let placed = self.site.states[ix.0 as usize].placed;
            if !placed
                || self.site.index.targets(ix).is_empty()
                || self.site.object(ix).kind() == Kind::Dir
            {
                continue;
            }
            let old = match &self.site.object(ix).origin {
                Origin::Host { parent, name, .. } if self.site.index.inside_removed(ix) => {
                    self.site.place_of(*parent, name)?
                }
                Origin::Grave { name, .. } => Some(Place::own(&self.site.env.layout.grave, name)),
                _ => None,
            };
            let Some(old) = old else { continue };
            let stat = self.site.soft_stat(&old.dir, &old.name)?;
            if stat.is_some_and(|s| Some(s.id) == self.site.origin_id(ix) && s.nlink > 1) {
                self.drop_home(ix, (&old).into())?;
            }
        }
        Ok(())
    }

    fn drop_later(&mut self, place: Place) -> Step<()> {
        if self.site.env.class == Class::Weak {
            self.later.push(Later::Temp(place));
            return Ok(());
        }
        self.drop_temp(&place)
    }

    /// Removes a name of an object that has another.
    pub(super) fn drop_temp(&mut self, place: &Place) -> Step<()> {
        let done = self.site.env.io.unlink(&place.dir, &place.name);
        crate::layout::found(done).map_err(|e| self.site.stop(place.name.clone(), e))?;
        Ok(())
    }

    /// Gives an object that is in the tree a further name.
    fn add_link(&mut self, ix: Ix, bind: &Bind, place: &Place, occupied: bool) -> Step<()> {
        let Some(from) = self.site.place(ix)? else { return Ok(()) };
        let io = self.site.env.io;
        let linked = if occupied {
            Err(std::io::Error::from_raw_os_error(libc::EEXIST))
        } else {
            io.link(&from.dir, &from.name, &place.dir, &place.name)
        };
        self.needs_sync = true;
        self.site.state(ix).touched = true;
        self.site.stirred.extend(self.site.id(ix));
        let put = match linked {
            Ok(()) => true,
            Err(e) if is(&e, libc::EEXIST) => {
                // What gives way may stay there for a while: each name has its own.
                let number = self.site.index.position(bind.dir, &bind.name).unwrap_or_default();
                let staged = self.site.temp('l', Ix(number as u32));
                let made = io.link(&from.dir, &from.name, &staged.dir, &staged.name);
                match self.site.soft(|s| s.path(ix), made)? {
                    Some(()) => self.put(&staged, place, bind)?,
                    None => false,
                }
            }
            Err(e) if is(&e, libc::EPERM) && !self.site.object(ix).is_new() => {
                // Others' files may not be linked, but perhaps moved.
                return self.move_host(ix, bind, place, occupied, from);
            }
            Err(e) => self.site.soft(|s| s.path(ix), Err::<(), _>(e))?.is_some(),
        };
        if put {
            let state = self.site.state(ix);
            state.placed = true;
            state.hidden = false;
            state.place = Some(place.into());
        }
        Ok(())
    }

    /// Gives what is at `from` the name `to`.  Returns whether it has it.
    fn put(&mut self, from: &Place, to: &Place, bind: &Bind) -> Step<bool> {
        let path = self.site.bind_path(bind);
        let placed = self.exchange_in(from, to, bind.displaces, path.clone())?;
        // What somebody sees stays where it is.
        if !placed && from.of.is_none() {
            let kept = self.keep(from, &bind.name)?;
            if let Some(last) = self.site.told.outside.last_mut().filter(|o| o.path == path) {
                last.kept_as = Some(kept);
            }
        }
        Ok(placed)
    }

    /// [`Install::put`]; what was at `to` is settled: `expected` is what the transaction knew
    /// there.
    pub(super) fn exchange_in(
        &mut self,
        from: &Place,
        to: &Place,
        expected: Option<Ix>,
        path: Vec<u8>,
    ) -> Step<bool> {
        for _ in 0..TRIES {
            match self.site.rename(from, to, Rename::NoReplace) {
                Ok(()) => return Ok(true),
                Err(e) if is(&e, libc::EEXIST) => {}
                Err(e) => return Ok(self.site.soft(|_| path, Err::<(), _>(e))?.is_some()),
            }
            let Some(before) = self.site.soft_stat(&to.dir, &to.name)? else { continue };
            match self.site.rename(from, to, Rename::Exchange) {
                Ok(()) => {
                    self.settle(from, expected, &before, path)?;
                    return Ok(true);
                }
                Err(e) if is(&e, libc::ENOENT) => {}
                Err(e)
                    if is(&e, libc::EXDEV) && before.kind == Kind::Dir && self.site.env.overlay =>
                {
                    self.carry_away(to, expected, &before, &path)?;
                }
                Err(e) if is(&e, libc::EINVAL) => {
                    // No exchange on this file system: the old one steps aside first.
                    let aside = self.site.temp('x', expected.unwrap_or(Ix(0)));
                    let out = self.site.rename(to, &aside, Rename::NoReplace);
                    if self.site.soft(|_| path.clone(), out)?.is_none() {
                        return Ok(false);
                    }
                    self.settle(&aside, expected, &before, path.clone())?;
                }
                Err(e) => return Ok(self.site.soft(|_| path, Err::<(), _>(e))?.is_some()),
            }
        }
        self.site.report(path, Outside::Refused(libc::EBUSY), None);
        Ok(false)
    }

    /// Looks at what came out of the way, and puts it where it belongs.
    fn settle(
        &mut self,
        at: &Place,
        expected: Option<Ix>,
        before: &Stat,
        path: Vec<u8>,
    ) -> Step<()> {
        let Some(now) = self.site.soft_stat(&at.dir, &at.name)? else { return Ok(()) };
        let known = self.site.old.get(&now.id).copied().filter(|ix| {
            // The same object may have been found under another of its names.
            Some(*ix) == expected || self.site.redo
        });
        let known =
            known.or_else(|| expected.filter(|ix| self.site.origin_id(*ix) == Some(now.id)));
        let base = path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
        let Some(ix) = known else {
            let kept = self.keep(at, &base)?;
            self.site.report(path, Outside::Appeared, Some(kept));
            return Ok(());
        };
        let same = before.stamp().has_data_of(&now.stamp());
        let content_differs = now.kind == Kind::File
            && (!same
                || self.site.is_changed_outside(ix, before)
                    && self.site.index.targets(ix).is_empty());
        self.site.stirred.insert(now.id);
        if content_differs || self.has_writers(ix, at, &now)? {
            let kept = self.keep(at, &base)?;
            self.site.report(path, Outside::Changed, Some(kept));
            return Ok(());
        }
        if !self.site.index.targets(ix).is_empty() {
            if self.site.states[ix.0 as usize].placed || self.next_bind(ix).is_some() {
                return self.drop_later(at.clone());
            }
            // It could not get the name that it was to have.
            let kept = self.keep(at, &base)?;
            self.site.report(path, Outside::Gone, Some(kept));
            return Ok(());
        }
        if self.site.lives_on(ix, &now) {
            if self.site.is_last_look(ix) {
                self.needs_sync = true;
                self.hold(ix, at);
                self.later.push(Later::Temp(at.clone()));
                return Ok(());
            }
            return self.let_go(ix, at);
        }
        self.bury(ix, at)
    }

    /// Removes a name, out of sight already, of an object that lives on.
    pub(super) fn let_go(&mut self, ix: Ix, staged: &Place) -> Step<()> {
        self.hold(ix, staged);
        self.drop_temp(staged)
    }

    /// Removes a name in staging, unless it is the last one of an object that undo needs.
    pub(super) fn drop_or_bury(&mut self, staged: &Place) -> Step<()> {
        let Some(stat) = self.site.soft_stat(&staged.dir, &staged.name)? else { return Ok(()) };
        match self.site.old.get(&stat.id).copied() {
            Some(ix) if stat.nlink == 1 && self.site.index.is_removed(ix) => self.bury(ix, staged),
            _ => self.drop_temp(staged),
        }
    }

    /// Keeps an object open that loses the name by which it is known here: its version is looked at
    /// when all is done.
    fn hold(&mut self, ix: Ix, at: &Place) {
        self.site.stirred.extend(self.site.origin_id(ix));
        let held = self.site.env.io.pin(&at.dir, &at.name).map(Place::open);
        self.survivors.extend(held.map(|held| (ix, held)));
        let state = self.site.state(ix);
        state.place = None;
        state.placed = false;
    }

    /// Whether somebody could still write into a file that was exchanged for a rewritten one. One
    /// that was changed in place, and only loses a name, goes on as what it is.
    fn has_writers(&self, ix: Ix, at: &Place, now: &Stat) -> Step<bool> {
        if now.kind != Kind::File || !self.site.is_exchanged(ix) {
            return Ok(false);
        }
        let probe = || -> Result<bool> {
            let file = self.site.env.io.open_file(&at.dir, &at.name, Open::Read)?;
            Ok(self.site.env.io.openers(&file)? == Openers::Writers)
        };
        Ok(probe().unwrap_or(false))
    }

    /// Removes a name, if what it names is what the transaction knew.
    pub(super) fn remove_name(&mut self, bind: &Bind) -> Step<()> {
        let place = self.site.place_of(bind.dir, &bind.name)?;
        let (Some(ix), Some(place)) = (bind.displaces, place) else { return Ok(()) };
        let Some(stat) = self.site.soft_stat(&place.dir, &place.name)? else { return Ok(()) };
        if self.site.origin_id(ix) != Some(stat.id) {
            // Made after the transaction removed its own: that is a serial order, it stays.
            let path = self.site.bind_path(bind);
            self.site.report(path, Outside::Appeared, None);
            return Ok(());
        }
        if !self.site.index.targets(ix).is_empty() {
            if !self.site.states[ix.0 as usize].placed || stat.kind == Kind::Dir {
                // It could not be moved, which was reported, or an outsider has moved it back.
                return Ok(());
            }
            self.site.stirred.insert(stat.id);
            return self.drop_name(ix, &place, stat.id);
        }
        if stat.kind == Kind::File && self.site.is_changed_outside(ix, &stat) {
            let path = self.site.bind_path(bind);
            let kept = self.keep(&place, &bind.name)?;
            self.site.report(path, Outside::Changed, Some(kept));
            return Ok(());
        }
        if self.site.lives_on(ix, &stat) {
            return self.drop_name(ix, &place, stat.id);
        }
        self.bury(ix, &place)
    }

    /// Removes a further name of an object that keeps others. The name is moved out of sight before
    /// it is looked at: between a look and an unlink an outsider could put a file of his own there.
    fn drop_name(&mut self, ix: Ix, from: &Place, id: HostId) -> Step<()> {
        let staged = self.site.temp('d', ix);
        let moved = self.site.rename(from, &staged, Rename::NoReplace);
        let Some(()) = self.site.soft(|s| s.path(ix), moved)? else { return Ok(()) };
        let Some(stat) = self.site.soft_stat(&staged.dir, &staged.name)? else { return Ok(()) };
        if stat.id == id && self.site.lives_on(ix, &stat) {
            return self.let_go(ix, &staged);
        }
        if stat.id == id {
            // The last one after all, where an outsider was busy with the others.
            let last = self.site.index.is_removed(ix) && stat.nlink == 1;
            return if last { self.bury(ix, &staged) } else { self.drop_temp(&staged) };
        }
        let path = self.site.path(ix);
        let kept = match self.site.rename(&staged, from, Rename::NoReplace) {
            Ok(()) => None,
            Err(_) => Some(self.keep(&staged, &from.name)?),
        };
        self.site.report(path, Outside::Appeared, kept);
        Ok(())
    }

    /// Moves a displaced object to the graveyard.
    pub(super) fn bury(&mut self, ix: Ix, from: &Place) -> Step<()> {
        self.site.stirred.extend(self.site.origin_id(ix));
        let name = grave_name(self.site.txn(), ix.0);
        let grave = Place::own(&self.site.env.layout.grave, &name);
        if let Some(there) = self.site.soft_stat(&grave.dir, &grave.name)? {
            let here = self.site.soft_stat(&from.dir, &from.name)?;
            if here.is_some_and(|h| h.id == there.id) {
                return self.drop_name(ix, from, there.id);
            }
            if self.is_begun(ix, here, &there) {
                return self.carry_to_grave(ix, from, grave);
            }
            crate::layout::remove_all(self.site.env.io, &grave.dir, &grave.name)
                .map_err(|e| self.site.stop(grave.name.clone(), e))?;
        }
        let moved = self.site.rename(from, &grave, Rename::NoReplace);
        if moved.as_ref().is_err_and(|e| is(e, libc::EXDEV)) && self.is_unmovable(ix, from)? {
            return self.carry_to_grave(ix, from, grave);
        }
        let Some(()) = self.site.soft(|s| s.path(ix), moved)? else { return Ok(()) };
        let arrived = self.site.soft_stat(&grave.dir, &grave.name)?;
        if let Some(stat) = arrived
            && self.site.origin_id(ix) != Some(stat.id)
        {
            // An outsider was faster: theirs goes back if the name is still free.
            let path = self.site.path(ix);
            let kept = match self.site.rename(&grave, from, Rename::NoReplace) {
                Ok(()) => None,
                Err(_) => Some(self.keep(&grave, &from.name)?),
            };
            self.site.report(path, Outside::Appeared, kept);
            return Ok(());
        }
        if arrived.is_some_and(|stat| stat.kind != Kind::Dir && stat.nlink > 1) {
            self.survivors.push((ix, grave.clone()));
        }
        if self.site.id(ix) == self.site.origin_id(ix) {
            // Otherwise a new inode is the object already, and this was its predecessor.
            let state = self.site.state(ix);
            state.place = Some((&grave).into());
            state.placed = false;
        }
        Ok(())
    }

    /// Exchanges the names of two objects, if the other one is at the name of this bind and is to
    /// have the one that its target has now.
    fn swap(&mut self, bind: &Bind, other: Ix) -> Step<bool> {
        let Some(target) = bind.target.filter(|t| !self.site.object(*t).is_new()) else {
            return Ok(false);
        };
        let [there, here] = [target, other].map(|ix| self.site.states[ix.0 as usize].home.clone());
        let homes = [self.site.at(there)?, self.site.at(here)?];
        let ([Some(there), Some(here)], [i]) = (homes, self.site.index.targets(other)) else {
            return Ok(false);
        };
        let is_at =
            |place: &Place, bind: &Bind| place.of == Some(bind.dir) && place.name == bind.name;
        if !is_at(&here, bind) || !is_at(&there, &self.site.commit.set.binds[*i]) {
            return Ok(false);
        }
        if self.site.rename(&there, &here, Rename::Exchange).is_err() {
            return Ok(false);
        }
        for (ix, place) in [(target, here), (other, there)] {
            self.site.state(ix).home = None;
            self.site.arrived(ix, &place);
        }
        Ok(true)
    }
}
