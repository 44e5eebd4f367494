//! Installing a committed transaction: making the plain tree equal to its outcome.
//!
//! 1. *Locate* every object that exists, by identity: at its origin, or, when an installation is
//!    resumed, at one of its new names, in staging, in the graveyard, or in `lost+found`.
//! 2. *Make* new directories out of sight, with all that is new in them.
//! 3. *Change* content and attributes of existing objects: in place, or by a new inode that is
//!    exchanged for the old one.
//! 4. *Names* ([`names`]): each changed name is brought to its outcome; new files are made somewhat
//!    [`ahead`].  What is in the way is exchanged out first and looked at then: what the
//!    transaction knew goes to the graveyard, what an outsider put there to `conflict/`, reported.
//!    What a name waits for goes first; only a cycle parks one of its members in staging.
//! 5. On a weak file system everything so far only added names; after one sync the old names go.
//! 6. *Finish*: times and narrow modes of directories, then the stamps that are reported.
//!
//! **Idempotence.**  Each step looks before it acts and does nothing where the outcome holds, so a
//! resumed installation (`redo`) ends in the same tree from any point.  Resuming never trusts what
//! it finds under a staging name: it builds anew under new names and sorts the old ones out at the
//! end. An object of ours that was placed before a power cut is known by its content, where a block
//! may also be zeros (written, never flushed).  Anything else at a name counts as an outsider's.
//!
//! **Failing steps.**  No space and device errors stop the installation, which can be resumed.  An
//! extended attribute that the file system has no room for with that file is kept in `conflict/`.
//! Any other refusal (an immutable file, a parent directory that an outsider removed) is reported,
//! what could not be placed is kept in `conflict/`, and the rest goes on: committed work is never
//! undone.
//!
//! No locks are taken here: the store lets one thread install a transaction, and never two that
//! overlap.

mod ahead;
mod attributes;
mod carry;
mod compare;
mod emptied;
mod locate;
mod names;
mod objects;
mod site;

use crate::env::{Env, is};
use crate::history::{Commit, Done, OldContent};
use crate::io::{Class, Rename, Stamp};
use crate::layout::parse_temp;
use crate::open_dirs::OPEN_MAX;
use crate::report::{Outside, OutsideChange};
use crate::writeset::{Content, Ix, NewKind, Origin, SlotId};
use std::collections::{HashMap, HashSet};
use systx_base::Kind;
use systx_base::progress::{self, Phase};

use ahead::Order;
use names::Turn;
pub(crate) use site::Stopped;
use site::{Place, Site, Spot, Step};

/// What waits until the new names are durable (weak file systems only).
enum Later {
    /// A name is to go; its bind.
    Name(usize),
    /// A name of ours in staging is to go.
    Temp(Place),
    /// A name in the tree that an object has moved away from.
    Home(Ix, Spot),
    /// A slot now has its place in the tree.
    Slot(SlotId),
}

/// The outcome of [`install`].
pub(crate) struct Installed {
    pub done: Done,
    pub outside: Vec<OutsideChange>,
    /// Slots whose files are in the tree now.
    pub gone: HashSet<SlotId>,
}

/// What brings it about.
struct Install<'a> {
    site: Site<'a>,
    /// For resuming: what else the journal has of files that are changed in place.
    versions: Versions<'a>,
    /// How far each bind is.
    turns: Vec<Turn>,
    later: Vec<Later>,
    /// Host directories that are writable for the time being, and their modes.
    widened: Vec<(Ix, u32)>,
    /// Whether old names may only go after a sync.
    needs_sync: bool,
    gone: HashSet<SlotId>,
    /// Whether a new file came with fewer permission bits than it was made with.
    masked: bool,
    /// Files that lost a name and live on under others that nothing here knows; and where those are
    /// that went with a directory that was carried, and live on or were changed.
    survivors: Vec<(Ix, Place)>,
}

/// For objects that further records of the journal change in place as well: all records that do, in
/// their order, with the object's position in each. Empty where another one of them looks, and
/// writes, for all.
pub(crate) type Versions<'a> = HashMap<Ix, Vec<(&'a Commit, Ix)>>;

/// Installs a commit.  `run` is unique to this attempt; `redo` says that an earlier one may have
/// done any part of it.
pub(crate) fn install(
    env: Env<'_>,
    commit: &Commit,
    lsn: u64,
    run: u64,
    redo: bool,
) -> Step<Installed> {
    install_among(env, commit, lsn, (run, redo), Versions::new())
}

/// As [`install`], while the journal has more of some files.
pub(crate) fn install_among<'a>(
    env: Env<'a>,
    commit: &'a Commit,
    lsn: u64,
    (run, redo): (u64, bool),
    versions: Versions<'a>,
) -> Step<Installed> {
    let mut this = Install {
        site: Site::new(env, commit, run, redo),
        versions,
        turns: vec![Turn::Open; commit.set.binds.len()],
        later: Vec::new(),
        needs_sync: false,
        widened: Vec::new(),
        gone: HashSet::new(),
        masked: false,
        survivors: Vec::new(),
    };
    this.perform()?;
    let stamps = this.stamps()?;
    let graves = this.graves()?;
    let outside = this.site.told.outside;
    let count = u32::try_from(outside.len()).unwrap_or(u32::MAX);
    let done = Done { lsn, stamps, graves, outside: count };
    Ok(Installed { done, outside, gone: this.gone })
}

impl<'a> Install<'a> {
    fn perform(&mut self) -> Step<()> {
        if self.site.redo {
            self.site.note_leftovers()?;
        }
        let all = || (0..self.site.commit.set.objects.len() as u32).map(Ix);
        let changed = |s: &Site<'_>, ix| !s.object(ix).is_new() && s.object(ix).is_changed();
        progress::phase(Phase::Installing, || {
            let changed = all().filter(|ix| changed(&self.site, *ix)).count();
            (changed + self.site.commit.set.binds.len()) as u64
        });
        for ix in all() {
            if !self.site.object(ix).is_new() {
                self.site.locate(ix)?;
            }
        }
        for ix in all() {
            if self.site.object(ix).is_new() && self.site.object(ix).kind() == Kind::Dir {
                self.make_dir(ix)?;
            }
        }
        for ix in all() {
            if changed(&self.site, ix) {
                self.change(ix)?;
                progress::step();
            }
        }
        self.widen()?;
        self.anchor()?;
        self.bind_all()?;
        if self.site.redo {
            self.drop_old_names()?;
        }
        self.old_names_go()?;
        // Not before: what is to have another place may have been in there until now.
        for ix in all() {
            if self.site.object(ix).kind() == Kind::Dir && self.site.index.is_removed(ix) {
                self.look_into_grave(ix)?;
            }
        }
        self.narrow()?;
        // What is in a directory comes before it: with a narrow mode it may be closed to its owner.
        let mut dirs: Vec<Ix> =
            all().filter(|ix| self.site.object(*ix).kind() == Kind::Dir).collect();
        dirs.sort_by_cached_key(|ix| std::cmp::Reverse(self.site.path(*ix).len()));
        for ix in dirs {
            self.site.finish_dir(ix)?;
        }
        if self.site.redo { self.sort_leftovers() } else { Ok(()) }
    }

    /// Makes the new files among these names that can be made now.
    fn make_ahead(&mut self, binds: &[usize]) -> Step<()> {
        let (mut orders, mut dirs) = (Vec::new(), HashSet::new());
        for i in binds {
            let dir = self.site.commit.set.binds[*i].dir;
            // Each order keeps its directory open.
            if dirs.len() == OPEN_MAX && !dirs.contains(&dir) {
                break;
            }
            let Some(order) = self.order(*i)? else { continue };
            dirs.insert(dir);
            // What is to belong to a project is made in its turn.
            if order.place.of.is_some() || self.site.given_by(dir)?.is_none() {
                orders.push(order);
            }
        }
        ahead::make(self.site.env, &mut orders)?;
        for Order { ix, place, made, .. } in orders {
            let Some(stat) = made else { continue };
            let state = self.site.state(ix);
            state.id = Some(stat.id);
            state.stamp = Some(stat.stamp());
            state.place = Some((&place).into());
            state.hidden = true;
            state.ahead = true;
        }
        Ok(())
    }

    /// The file that a name waits for, if it can be made ahead.
    fn order(&mut self, bind: usize) -> Step<Option<Order<'a>>> {
        let bind = &self.site.commit.set.binds[bind];
        let Some(ix) = bind.target.filter(|_| !self.site.redo) else { return Ok(None) };
        let object = self.site.object(ix);
        let alone = matches!(object.origin, Origin::New(NewKind::File))
            && matches!(object.content, Content::Keep | Content::Whole { .. })
            && object.xattrs.is_empty()
            && self.site.index.targets(ix).len() == 1;
        if !alone || self.site.has_place(ix) {
            return Ok(None);
        }
        let hidden = self.site.state(bind.dir).hidden;
        let inside = if hidden { self.site.place_of(bind.dir, &bind.name)? } else { None };
        let place = inside.unwrap_or_else(|| self.site.temp('b', ix));
        Ok(Some(Order { ix, object, place, made: None }))
    }

    /// Weak file systems: makes the new names durable, then removes the old ones.
    fn old_names_go(&mut self) -> Step<()> {
        if self.later.is_empty() {
            return Ok(());
        }
        // What only the journal makes anew needs no sync: it stays there until the checkpoint.
        if self.needs_sync {
            self.site.sync()?;
        }
        for later in std::mem::take(&mut self.later) {
            match later {
                Later::Name(bind) => {
                    let bind = &self.site.commit.set.binds[bind];
                    self.remove_name(bind)?;
                }
                Later::Temp(place) => self.drop_or_bury(&place)?,
                Later::Home(ix, home) => {
                    if let Some(home) = self.site.at(Some(home))? {
                        self.drop_seen(ix, &home)?;
                    }
                }
                Later::Slot(slot) => {
                    let name = crate::staging::slot_name(slot);
                    let done = self.site.env.io.unlink(&self.site.env.layout.slots, &name);
                    crate::layout::found(done).map_err(|e| self.site.stop(name, e))?;
                    self.gone.insert(slot);
                }
            }
        }
        Ok(())
    }

    /// The version that each object has now.
    fn stamps(&mut self) -> Step<Vec<Option<Stamp>>> {
        let mut stamps = Vec::with_capacity(self.site.states.len());
        for ix in (0..self.site.states.len() as u32).map(Ix) {
            let state = &self.site.states[ix.0 as usize];
            // What is only followed is told where this run has moved it, and nobody else before.
            let here =
                state.placed || !self.site.index.is_removed(ix) && !self.site.index.is_followed(ix);
            if let Some(stamp) = state.stamp.filter(|_| state.placed && !state.touched) {
                stamps.push(Some(stamp));
                continue;
            }
            let at = match self.site.opened(ix) {
                _ if !here || state.id.is_none() => None,
                Some(dir) => Some(Place::open(dir)),
                None => self.site.place(ix)?,
            };
            let stat = match at {
                Some(at) => self.site.soft_stat(&at.dir, &at.name)?,
                None => None,
            };
            stamps.push(stat.map(|s| s.stamp()));
        }
        for (ix, Place { dir, name, .. }) in &self.survivors {
            if let Some(stat) = self.site.soft_stat(dir, name)?.filter(|s| s.nlink > 0) {
                stamps[ix.0 as usize] = Some(stat.stamp());
            }
        }
        Ok(stamps)
    }

    /// What this transaction put into the graveyard.
    fn graves(&self) -> Step<Vec<(Ix, Stamp)>> {
        let mut graves = Vec::new();
        for ix in (0..self.site.states.len() as u32).map(Ix) {
            // A name that is not there is not looked for without need: the file system searches the
            // directory, and keeps the answer. An earlier run may have exchanged what is to be
            // overwritten, and so may this one.
            let may_be = self.site.redo || self.site.id(ix) != self.site.origin_id(ix);
            let exchanged = self.site.befores.get(&ix).is_some_and(|b| match b.content {
                OldContent::Keep => false,
                OldContent::InPlace { .. } => may_be,
                OldContent::Exchanged => true,
            });
            if !self.site.index.is_displaced(ix) && !exchanged {
                continue;
            }
            let name = crate::layout::grave_name(self.site.txn(), ix.0);
            // A directory may have been carried: its substitute has another number.
            let carried = self.site.env.overlay && self.site.object(ix).kind() == Kind::Dir;
            if let Some(stat) = self.site.soft_stat(&self.site.env.layout.grave, &name)?
                && (self.site.origin_id(ix) == Some(stat.id) || carried && stat.kind == Kind::Dir)
            {
                graves.push((ix, stat.stamp()));
            }
        }
        Ok(graves)
    }

    /// Moves something that a commit would have destroyed, or could not place, to `conflict/`;
    /// returns where it is kept.
    fn keep(&mut self, from: &Place, as_name: &[u8]) -> Step<Vec<u8>> {
        let (dir, below) = self.site.conflict_dir()?;
        loop {
            let name = self.site.conflict_name(as_name);
            match self.site.rename(from, &Place::own(&dir, &name), Rename::NoReplace) {
                Ok(()) => {
                    let kept = [&below[..], b"/", &name].concat();
                    return Ok(self.site.env.layout.path_of(&kept));
                }
                Err(e) if is(&e, libc::EEXIST) => {}
                Err(e) if is(&e, libc::EXDEV) && self.site.env.overlay => {
                    self.carry(from, &Place::own(&dir, &name))?;
                    return Ok(self.site.env.layout.path_of(&[&below[..], b"/", &name].concat()));
                }
                Err(e) => return Err(self.site.stop(from.name.clone(), e)),
            }
        }
    }

    /// Takes out of a directory in the graveyard what was not meant to go with it.
    fn look_into_grave(&mut self, ix: Ix) -> Step<()> {
        let Some(path) = self.site.index.origin_path(ix) else { return Ok(()) };
        if self.site.index.emptied(&path).is_none() {
            return Ok(());
        }
        let name = crate::layout::grave_name(self.site.txn(), ix.0);
        let grave = Place::own(&self.site.env.layout.grave, &name);
        let is_ours = |id| self.site.states.iter().any(|state| state.id == Some(id));
        let (env, index) = (&self.site.env, &self.site.index);
        for found in emptied::strangers(env, index, (grave, &path), &is_ours)? {
            let kept = self.keep(&found.place, &found.place.name)?;
            self.site.report(found.path, Outside::Appeared, Some(kept));
        }
        Ok(())
    }

    /// For resuming: what is still in staging is a built object that nobody needs, a displaced one
    /// whose way to the graveyard was interrupted, or an outsider's.
    fn sort_leftovers(&mut self) -> Step<()> {
        let names = self.site.leftover_names(self.site.run)?;
        let changed = || self.site.old.values().any(|ix| self.site.is_last_look(*ix));
        if !names.is_empty() && (self.site.env.class == Class::Weak || changed()) {
            self.site.sync()?;
        }
        for name in names {
            let place = Place::own(&self.site.env.layout.temp, &name);
            let Some(stat) = self.site.soft_stat(&place.dir, &place.name)? else { continue };
            if let Some(ix) = self.site.old.get(&stat.id).copied() {
                let elsewhere = !self.site.index.targets(ix).is_empty()
                    && self.site.states[ix.0 as usize].placed
                    && stat.nlink > 1;
                if elsewhere {
                    self.drop_temp(&place)?
                } else if self.site.lives_on(ix, &stat) {
                    self.let_go(ix, &place)?
                } else {
                    self.bury(ix, &place)?
                }
                continue;
            }
            let built = parse_temp(&place.name).and_then(|(_, _, role, number)| match role {
                'l' => self.site.commit.set.binds.get(number as usize)?.target,
                _ => Some(Ix(number)).filter(|ix| (ix.0 as usize) < self.site.states.len()),
            });
            if stat.kind != Kind::Dir && stat.nlink > 1 {
                // Another name of a file that is in the tree.
                self.drop_temp(&place)?;
                continue;
            }
            let ours = match built {
                Some(_) if stat.kind == Kind::Dir => self.site.is_empty(&place)?,
                Some(ix) => self.site.is_ours(ix, &place, &stat)?,
                None => false,
            };
            // Ours stays until the journal has forgotten the transaction: what a power cut leaves
            // of a removed file need not look like ours any more.
            if !ours {
                let path = built.map(|ix| self.site.path(ix)).unwrap_or_default();
                let base = path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
                let kept = self.keep(&place, &base)?;
                self.site.report(path, Outside::Appeared, Some(kept));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
