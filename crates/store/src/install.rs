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
mod carry;
mod chain;
mod compare;
mod emptied;
mod locate;
mod names;
mod objects;

use crate::history::{Before, Commit, Done, OldContent};
use crate::io::{Class, Handle, HostId, Io, Stamp, Stat};
use crate::layout::{Layout, ensure_dir, parse_temp};
use crate::staging::Pool;
use crate::writeset::index::Index;
use crate::writeset::{Bind, Ix, Origin, SlotId};
use std::collections::{HashMap, HashSet};
use std::io::{Error, Result};
use systx_base::progress::{self, Phase};
use systx_base::{Kind, TxnId};

use names::Turn;

/// What an outsider did that met a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outside {
    /// Something was at a name that the transaction gives to an object of its own.
    Appeared,
    /// The object itself was changed.
    Changed,
    /// The object, or the directory that it belongs in, was gone.
    Gone,
    /// The system refused a step, with this errno.
    Refused(i32),
    /// The file system did not take an extended attribute; its value is kept.
    NoXattr {
        /// Its name.
        key: Vec<u8>,
        /// What the file system said.
        errno: i32,
    },
}

/// One collision of an installation with an outsider.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutsideChange {
    /// Path below the volume root.
    pub path: Vec<u8>,
    /// What was found.
    pub what: Outside,
    /// Where the outsider's version is kept, or (where `path` could not be written) ours; below the
    /// volume root.  `None`: there is nothing to keep, or it was left where it is.
    pub kept_as: Option<Vec<u8>>,
}

/// What an installation did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApplyReport {
    /// The transaction.
    pub txn: TxnId,
    /// Its position in the log.
    pub lsn: u64,
    /// For each object of the write set, its version after the installation, also of what is in the
    /// graveyard now; `None` if it is nowhere.
    pub stamps: Vec<Option<Stamp>>,
    /// What outsiders had done meanwhile.
    pub outside: Vec<OutsideChange>,
}

/// Why an installation stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// What was being installed, below the volume root.
    pub path: Vec<u8>,
    pub error: Error,
}

type Step<T> = std::result::Result<T, Stopped>;

/// What an installation works with.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub io: &'a dyn Io,
    pub layout: &'a Layout,
    pub pool: &'a Pool,
    pub class: Class,
    /// Whether this is an overlay file system, see [`crate::overlay`].
    pub overlay: bool,
}

/// A name in an open directory.
#[derive(Clone)]
struct Place {
    dir: Handle,
    name: Vec<u8>,
    /// Which object the directory is; `None`: one of the store's own, or none that the transaction
    /// names.
    of: Option<Ix>,
}

impl Place {
    /// In a directory of the store.
    fn own(dir: &Handle, name: &[u8]) -> Place {
        Place { dir: dir.clone(), name: name.to_vec(), of: None }
    }

    /// What is open.
    fn open(dir: Handle) -> Place {
        Place { dir, name: Vec::new(), of: None }
    }
}

/// What is known about an object while it is installed.
#[derive(Default)]
struct State {
    /// Where it is now: one of its names.
    place: Option<Place>,
    /// The name that it had before and that it may be moved away from.
    home: Option<Place>,
    id: Option<HostId>,
    /// For directories that are needed: the directory itself.
    dir: Option<Handle>,
    /// Made by this run and not yet under any name that an outsider could see.
    hidden: bool,
    /// A new file that is complete and waits for its name, see [`ahead`].
    ahead: bool,
    /// Changed or linked by this run, which moves its stamp.
    touched: bool,
    /// In the tree under at least one final name.
    placed: bool,
    /// What it was when it was made; a look that need not be repeated if it was not touched since.
    stamp: Option<Stamp>,
    busy: bool,
}

/// What waits until the new names are durable (weak file systems only).
enum Later {
    /// A name is to go; its bind.
    Name(usize),
    /// A name of ours in staging is to go.
    Temp(Place),
    /// A name in the tree that an object has moved away from.
    Home(Ix, Place),
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

pub(crate) struct Install<'a> {
    env: Env<'a>,
    commit: &'a Commit,
    index: Index<'a>,
    befores: HashMap<Ix, &'a Before>,
    redo: bool,
    /// For resuming: what else the journal has of files that are changed in place.
    versions: Versions<'a>,
    run: u64,
    states: Vec<State>,
    /// Objects that existed before, by identity.
    old: HashMap<HostId, Ix>,
    /// For resuming: where identities were left in staging.
    leftovers: HashMap<HostId, Vec<u8>>,
    /// How far each bind is.
    turns: Vec<Turn>,
    later: Vec<Later>,
    /// Host directories that are writable for the time being, and their modes.
    widened: Vec<(Ix, u32)>,
    /// Whether old names may only go after a sync.
    needs_sync: bool,
    outside: Vec<OutsideChange>,
    kept: u32,
    gone: HashSet<SlotId>,
    /// Whether a new file came with fewer permission bits than it was made with.
    masked: bool,
    /// Files that lost a name and live on under others that nothing here knows; and where those are
    /// that went with a directory that was carried, and live on or were changed.
    survivors: Vec<(Ix, Place)>,
    /// Inodes of which this run changed a name, which moves their change time, whichever of their
    /// names is looked at afterwards.
    stirred: HashSet<HostId>,
}

fn old_ids(commit: &Commit) -> HashMap<HostId, Ix> {
    let id = |(i, o): (usize, &crate::writeset::Object)| match &o.origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some((stamp.id, Ix(i as u32))),
        _ => None,
    };
    commit.set.objects.iter().enumerate().filter_map(id).collect()
}

/// Whether an error concerns the whole store, so that going on makes no sense.
pub(crate) fn is_fatal(e: &Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            libc::EIO
                | libc::ENOSPC
                | libc::EDQUOT
                | libc::EROFS
                | libc::ENOMEM
                | libc::EMFILE
                | libc::ENFILE
        ) | None
    )
}

fn is(e: &Error, code: i32) -> bool {
    e.raw_os_error() == Some(code)
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
    let count = commit.set.objects.len();
    let mut this = Install {
        env,
        commit,
        index: Index::new(&commit.set),
        befores: commit.befores.iter().map(|b| (b.ix, b)).collect(),
        redo,
        versions,
        run,
        states: std::iter::repeat_with(State::default).take(count).collect(),
        old: old_ids(commit),
        leftovers: HashMap::new(),
        turns: vec![Turn::Open; commit.set.binds.len()],
        later: Vec::new(),
        needs_sync: false,
        widened: Vec::new(),
        outside: Vec::new(),
        kept: 0,
        gone: HashSet::new(),
        masked: false,
        survivors: Vec::new(),
        stirred: HashSet::new(),
    };
    this.perform()?;
    let stamps = this.stamps()?;
    let graves = this.graves()?;
    let outside = this.outside;
    let count = u32::try_from(outside.len()).unwrap_or(u32::MAX);
    let done = Done { lsn, stamps, graves, outside: count };
    Ok(Installed { done, outside, gone: this.gone })
}

impl<'a> Install<'a> {
    fn perform(&mut self) -> Step<()> {
        if self.redo {
            self.note_leftovers()?;
        }
        let all = || (0..self.commit.set.objects.len() as u32).map(Ix);
        let changed = |s: &Self, ix| !s.object(ix).is_new() && s.object(ix).is_changed();
        progress::phase(Phase::Installing, || {
            let changed = all().filter(|ix| changed(self, *ix)).count();
            (changed + self.commit.set.binds.len()) as u64
        });
        for ix in all() {
            if !self.object(ix).is_new() {
                self.locate(ix)?;
            }
        }
        for ix in all() {
            if self.object(ix).is_new() && self.object(ix).kind() == Kind::Dir {
                self.make_dir(ix)?;
            }
        }
        for ix in all() {
            if changed(self, ix) {
                self.change(ix)?;
                progress::step();
            }
        }
        self.widen()?;
        self.anchor()?;
        self.bind_all()?;
        if self.redo {
            self.drop_old_names()?;
        }
        self.old_names_go()?;
        // Not before: what is to have another place may have been in there until now.
        for ix in all() {
            if self.object(ix).kind() == Kind::Dir && self.index.is_removed(ix) {
                self.look_into_grave(ix)?;
            }
        }
        self.narrow()?;
        for ix in all() {
            if self.object(ix).kind() == Kind::Dir {
                self.finish_dir(ix)?;
            }
        }
        if self.redo { self.sort_leftovers() } else { Ok(()) }
    }

    fn sync(&self) -> Step<()> {
        self.env.io.sync_fs().map_err(|e| self.stop(Vec::new(), e))
    }

    /// Weak file systems: makes the new names durable, then removes the old ones.
    fn old_names_go(&mut self) -> Step<()> {
        if self.later.is_empty() {
            return Ok(());
        }
        // What only the journal makes anew needs no sync: it stays there until the checkpoint.
        if self.needs_sync {
            self.sync()?;
        }
        for later in std::mem::take(&mut self.later) {
            match later {
                Later::Name(bind) => {
                    let bind = &self.commit.set.binds[bind];
                    self.remove_name(bind)?;
                }
                Later::Temp(place) => self.drop_or_bury(&place)?,
                Later::Home(ix, place) => self.drop_seen(ix, &place)?,
                Later::Slot(slot) => {
                    let name = crate::staging::slot_name(slot);
                    let done = self.env.io.unlink(&self.env.layout.slots, &name);
                    crate::layout::found(done).map_err(|e| self.stop(name, e))?;
                    self.gone.insert(slot);
                }
            }
        }
        Ok(())
    }

    /// The version that each object has now.
    fn stamps(&self) -> Step<Vec<Option<Stamp>>> {
        let mut stamps = Vec::with_capacity(self.states.len());
        for (i, state) in self.states.iter().enumerate() {
            let ix = Ix(i as u32);
            // What is only followed is told where this run has moved it, and nobody else before.
            let here = state.placed || !self.index.is_removed(ix) && !self.index.is_followed(ix);
            if let Some(stamp) = state.stamp.filter(|_| state.placed && !state.touched) {
                stamps.push(Some(stamp));
                continue;
            }
            let stat = match (&state.dir, &state.place) {
                _ if !here || state.id.is_none() => None,
                (Some(dir), _) => self.soft_stat(dir, b"")?,
                (None, Some(place)) => self.soft_stat(&place.dir, &place.name)?,
                (None, None) => None,
            };
            stamps.push(stat.map(|s| s.stamp()));
        }
        for (ix, Place { dir, name, .. }) in &self.survivors {
            if let Some(stat) = self.soft_stat(dir, name)?.filter(|s| s.nlink > 0) {
                stamps[ix.0 as usize] = Some(stat.stamp());
            }
        }
        Ok(stamps)
    }

    /// What this transaction put into the graveyard.
    fn graves(&self) -> Step<Vec<(Ix, Stamp)>> {
        let mut graves = Vec::new();
        for ix in (0..self.states.len() as u32).map(Ix) {
            // A name that is not there is not looked for without need: the file system searches the
            // directory, and keeps the answer. An earlier run may have exchanged what is to be
            // overwritten, and so may this one.
            let may_be = self.redo || self.id(ix) != self.origin_id(ix);
            let exchanged = self.befores.get(&ix).is_some_and(|b| match b.content {
                OldContent::Keep => false,
                OldContent::InPlace { .. } => may_be,
                OldContent::Exchanged => true,
            });
            if !self.index.is_displaced(ix) && !exchanged {
                continue;
            }
            let name = crate::layout::grave_name(self.txn(), ix.0);
            // A directory may have been carried: its substitute has another number.
            let carried = self.env.overlay && self.object(ix).kind() == Kind::Dir;
            if let Some(stat) = self.soft_stat(&self.env.layout.grave, &name)?
                && (self.origin_id(ix) == Some(stat.id) || carried && stat.kind == Kind::Dir)
            {
                graves.push((ix, stat.stamp()));
            }
        }
        Ok(graves)
    }

    fn object(&self, ix: Ix) -> &'a crate::writeset::Object {
        self.commit.set.object(ix)
    }

    fn state(&mut self, ix: Ix) -> &mut State {
        &mut self.states[ix.0 as usize]
    }

    fn id(&self, ix: Ix) -> Option<HostId> {
        self.states[ix.0 as usize].id
    }

    fn place(&self, ix: Ix) -> Option<Place> {
        self.states[ix.0 as usize].place.clone()
    }

    /// The identity that an object had when the transaction saw it.
    fn origin_id(&self, ix: Ix) -> Option<HostId> {
        match &self.object(ix).origin {
            Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(stamp.id),
            _ => self.id(ix),
        }
    }

    fn txn(&self) -> TxnId {
        self.commit.meta.txn
    }

    fn temp(&self, role: char, ix: Ix) -> Place {
        let name = crate::layout::temp_name(self.txn(), self.run, role, ix.0);
        Place::own(&self.env.layout.temp, &name)
    }

    /// Path of an object for reports: where it ends up, or where it was.
    fn path(&self, ix: Ix) -> Vec<u8> {
        let path = self.index.final_path(ix).or_else(|| self.index.origin_path(ix));
        path.unwrap_or_default()
    }

    fn bind_path(&self, bind: &Bind) -> Vec<u8> {
        self.index.bind_path(bind).unwrap_or_else(|| bind.name.clone())
    }

    fn stop(&self, path: Vec<u8>, error: Error) -> Stopped {
        Stopped { path, error }
    }

    fn report(&mut self, path: Vec<u8>, what: Outside, kept_as: Option<Vec<u8>>) {
        self.outside.push(OutsideChange { path, what, kept_as });
    }

    /// Stops at errors of the whole store; reports any other and goes on with `None`.
    fn soft<T>(
        &mut self,
        path: impl FnOnce(&Self) -> Vec<u8>,
        result: Result<T>,
    ) -> Step<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_fatal(&error) => Err(self.stop(path(self), error)),
            Err(error) => {
                let path = path(self);
                let code = error.raw_os_error().unwrap_or(0);
                self.report(path, Outside::Refused(code), None);
                Ok(None)
            }
        }
    }

    /// `stat_at`; `None` for nothing there and for what cannot be reached.
    fn soft_stat(&self, dir: &Handle, name: &[u8]) -> Step<Option<Stat>> {
        match self.env.io.stat_at(dir, name) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if is_fatal(&e) => Err(self.stop(name.to_vec(), e)),
            Err(_) => Ok(None),
        }
    }

    /// Moves something that a commit would have destroyed, or could not place, to `conflict/`;
    /// returns where it is kept.
    fn keep(&mut self, from: &Place, as_name: &[u8]) -> Step<Vec<u8>> {
        let (dir, below) = self.conflict_dir()?;
        loop {
            let name = self.conflict_name(as_name);
            let how = crate::io::Rename::NoReplace;
            match self.rename(from, &Place::own(&dir, &name), how) {
                Ok(()) => {
                    let kept = [&below[..], b"/", &name].concat();
                    return Ok(self.env.layout.path_of(&kept));
                }
                Err(e) if is(&e, libc::EEXIST) => {}
                Err(e) if is(&e, libc::EXDEV) && self.env.overlay => {
                    self.carry(from, &Place::own(&dir, &name))?;
                    return Ok(self.env.layout.path_of(&[&below[..], b"/", &name].concat()));
                }
                Err(e) => return Err(self.stop(from.name.clone(), e)),
            }
        }
    }

    /// Takes out of a directory in the graveyard what was not meant to go with it.
    fn look_into_grave(&mut self, ix: Ix) -> Step<()> {
        let Some(path) = self.index.origin_path(ix) else { return Ok(()) };
        if self.index.emptied(&path).is_none() {
            return Ok(());
        }
        let name = crate::layout::grave_name(self.txn(), ix.0);
        let grave = Place::own(&self.env.layout.grave, &name);
        let is_ours = |id| self.states.iter().any(|state| state.id == Some(id));
        for found in emptied::strangers(&self.env, &self.index, (grave, &path), &is_ours)? {
            let kept = self.keep(&found.place, &found.place.name)?;
            self.report(found.path, Outside::Appeared, Some(kept));
        }
        Ok(())
    }

    fn conflict_dir(&self) -> Step<(Handle, Vec<u8>)> {
        let txn = crate::layout::history_name(self.txn());
        let open = || -> Result<Handle> {
            let conflict = ensure_dir(self.env.io, &self.env.layout.state, b"conflict")?;
            ensure_dir(self.env.io, &conflict, &txn)
        };
        let dir = open().map_err(|e| self.stop(b"conflict".to_vec(), e))?;
        Ok((dir, [b"conflict/", &txn[..]].concat()))
    }

    fn conflict_name(&mut self, as_name: &[u8]) -> Vec<u8> {
        self.kept += 1;
        let mut name = format!("{}-", self.kept).into_bytes();
        let room = 255 - name.len();
        name.extend_from_slice(&as_name[..as_name.len().min(room)]);
        name
    }

    /// Renames.  The owner of a directory without write permission may move it all the same.
    fn rename(&self, from: &Place, to: &Place, how: crate::io::Rename) -> Result<()> {
        let io = self.env.io;
        let first = io.rename(&from.dir, &from.name, &to.dir, &to.name, how);
        let Err(error) = &first else { return Ok(()) };
        if !is(error, libc::EACCES) && !is(error, libc::EPERM) {
            return first;
        }
        let stat = io.stat_at(&from.dir, &from.name)?;
        if stat.kind != Kind::Dir || stat.mode & 0o200 != 0 {
            return first;
        }
        io.set_mode(&from.dir, &from.name, stat.mode | 0o700)?;
        let second = io.rename(&from.dir, &from.name, &to.dir, &to.name, how);
        let now = if second.is_ok() { to } else { from };
        io.set_mode(&now.dir, &now.name, stat.mode)?;
        second
    }

    /// For resuming: what earlier runs left in staging.
    fn note_leftovers(&mut self) -> Step<()> {
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

    fn leftover_names(&self, below: u64) -> Step<Vec<Vec<u8>>> {
        let names = crate::layout::names(self.env.io, &self.env.layout.temp)
            .map_err(|e| self.stop(Vec::new(), e))?;
        let ours = |name: &Vec<u8>| {
            parse_temp(name).is_some_and(|(txn, run, _, _)| txn == self.txn() && run < below)
        };
        Ok(names.into_iter().filter(ours).collect())
    }

    /// For resuming: what is still in staging is a built object that nobody needs, a displaced one
    /// whose way to the graveyard was interrupted, or an outsider's.
    fn sort_leftovers(&mut self) -> Step<()> {
        let names = self.leftover_names(self.run)?;
        let changed = || self.old.values().any(|ix| self.is_last_look(*ix));
        if !names.is_empty() && (self.env.class == Class::Weak || changed()) {
            self.sync()?;
        }
        for name in names {
            let place = Place::own(&self.env.layout.temp, &name);
            let Some(stat) = self.soft_stat(&place.dir, &place.name)? else { continue };
            if let Some(ix) = self.old.get(&stat.id).copied() {
                let elsewhere = !self.index.targets(ix).is_empty()
                    && self.states[ix.0 as usize].placed
                    && stat.nlink > 1;
                if elsewhere {
                    self.drop_temp(&place)?
                } else if self.lives_on(ix, &stat) {
                    self.let_go(ix, &place)?
                } else {
                    self.bury(ix, &place)?
                }
                continue;
            }
            let built = parse_temp(&place.name).and_then(|(_, _, role, number)| match role {
                'l' => self.commit.set.binds.get(number as usize)?.target,
                _ => Some(Ix(number)).filter(|ix| (ix.0 as usize) < self.states.len()),
            });
            if stat.kind != Kind::Dir && stat.nlink > 1 {
                // Another name of a file that is in the tree.
                self.drop_temp(&place)?;
                continue;
            }
            let ours = match built {
                Some(_) if stat.kind == Kind::Dir => self.is_empty(&place)?,
                Some(ix) => self.is_ours(ix, &place, &stat)?,
                None => false,
            };
            // Ours stays until the journal has forgotten the transaction: what a power cut leaves
            // of a removed file need not look like ours any more.
            if !ours {
                let path = built.map(|ix| self.path(ix)).unwrap_or_default();
                let base = path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
                let kept = self.keep(&place, &base)?;
                self.report(path, Outside::Appeared, Some(kept));
            }
        }
        Ok(())
    }

    fn is_empty(&self, place: &Place) -> Step<bool> {
        let mut empty = true;
        let list = || -> Result<()> {
            let dir = self.env.io.open_dir(&place.dir, &place.name)?;
            self.env.io.list(&dir, &mut |_| {
                empty = false;
                false
            })
        };
        let mut list = list;
        list().map_err(|e| self.stop(place.name.clone(), e))?;
        Ok(empty)
    }
}

pub(crate) use objects::{copy_data, copy_data_in, data_in};

#[cfg(test)]
mod tests;
