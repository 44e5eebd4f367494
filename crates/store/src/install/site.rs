//! Where the objects of a commit are while it is installed, and what is told of that.

use crate::content::copy_data;
use crate::env::{Env, is, is_fatal};
use crate::history::{Before, Commit, OldContent};
use crate::io::{Handle, HostId, Project, Rename, Stamp, Stat};
use crate::layout::{ensure_dir, history_name, temp_name};
use crate::open_dirs::OpenDirs;
use crate::overlay::loses_number;
use crate::report::{Outside, OutsideChange};
use crate::writeset::index::Index;
use crate::writeset::{Bind, Ix, Object, Origin};
use std::collections::{HashMap, HashSet};
use std::io::{Error, Result};
use systx_base::{Kind, TxnId};

/// Why an installation stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// What was being installed, below the volume root.
    pub path: Vec<u8>,
    pub error: Error,
}

pub(super) type Step<T> = std::result::Result<T, Stopped>;

/// A name in an open directory.
#[derive(Clone)]
pub(super) struct Place {
    pub dir: Handle,
    pub name: Vec<u8>,
    /// Which object the directory is; `None`: one of the store's own, or none that the transaction
    /// names.
    pub of: Option<Ix>,
}

impl Place {
    /// In a directory of the store.
    pub fn own(dir: &Handle, name: &[u8]) -> Place {
        Place { dir: dir.clone(), name: name.to_vec(), of: None }
    }

    /// What is open.
    pub fn open(dir: Handle) -> Place {
        Place { dir, name: Vec::new(), of: None }
    }
}

/// A place that is remembered: it keeps no directory of the tree open.
#[derive(Clone)]
pub(super) struct Spot {
    pub name: Vec<u8>,
    pub of: Option<Ix>,
    /// One of the store's own directories.
    dir: Option<Handle>,
}

impl From<&Place> for Spot {
    fn from(Place { dir, name, of }: &Place) -> Spot {
        Spot { name: name.clone(), of: *of, dir: of.is_none().then(|| dir.clone()) }
    }
}

/// What is known about an object while it is installed.
#[derive(Default)]
pub(super) struct State {
    /// Where it is now: one of its names.
    pub place: Option<Spot>,
    /// The name that it had before and that it may be moved away from.
    pub home: Option<Spot>,
    pub id: Option<HostId>,
    /// Made by this run and not yet under any name that an outsider could see.
    pub hidden: bool,
    /// A new file that is complete and waits for its name, see [`super::ahead`].
    pub ahead: bool,
    /// Changed or linked by this run, which moves its stamp.
    pub touched: bool,
    /// In the tree under at least one final name.
    pub placed: bool,
    /// What it was when it was made; a look that need not be repeated if it was not touched since.
    pub stamp: Option<Stamp>,
    pub busy: bool,
    /// Of a directory that was asked: the project that it gives.
    gives: Option<Option<Project>>,
}

/// What is told of outsiders.
#[derive(Default)]
pub(super) struct Told {
    pub outside: Vec<OutsideChange>,
    /// So many names were given in `conflict/`.
    kept: u32,
}

/// See the module.
pub(super) struct Site<'a> {
    pub env: Env<'a>,
    pub commit: &'a Commit,
    pub index: Index<'a>,
    pub befores: HashMap<Ix, &'a Before>,
    pub redo: bool,
    pub run: u64,
    pub states: Vec<State>,
    /// Directories that are needed.
    pub dirs: OpenDirs,
    /// Objects that existed before, by identity.
    pub old: HashMap<HostId, Ix>,
    /// For resuming: where identities were left in staging.
    pub leftovers: HashMap<HostId, Vec<u8>>,
    pub told: Told,
    /// Inodes of which this run changed a name, which moves their change time, whichever of their
    /// names is looked at afterwards.
    pub stirred: HashSet<HostId>,
}

fn old_ids(commit: &Commit) -> HashMap<HostId, Ix> {
    let id = |(i, o): (usize, &Object)| match &o.origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some((stamp.id, Ix(i as u32))),
        _ => None,
    };
    commit.set.objects.iter().enumerate().filter_map(id).collect()
}

impl<'a> Site<'a> {
    pub(super) fn new(env: Env<'a>, commit: &'a Commit, run: u64, redo: bool) -> Site<'a> {
        let count = commit.set.objects.len();
        Site {
            env,
            commit,
            index: Index::new(&commit.set),
            befores: commit.befores.iter().map(|b| (b.ix, b)).collect(),
            redo,
            run,
            states: std::iter::repeat_with(State::default).take(count).collect(),
            dirs: OpenDirs::default(),
            old: old_ids(commit),
            leftovers: HashMap::new(),
            told: Told::default(),
            stirred: HashSet::new(),
        }
    }

    pub(super) fn object(&self, ix: Ix) -> &'a Object {
        self.commit.set.object(ix)
    }

    pub(super) fn state(&mut self, ix: Ix) -> &mut State {
        &mut self.states[ix.0 as usize]
    }

    pub(super) fn id(&self, ix: Ix) -> Option<HostId> {
        self.states[ix.0 as usize].id
    }

    pub(super) fn has_place(&self, ix: Ix) -> bool {
        self.states[ix.0 as usize].place.is_some()
    }

    /// Where an object is now; `None` while that is nowhere to be found.
    pub(super) fn place(&mut self, ix: Ix) -> Step<Option<Place>> {
        self.at(self.states[ix.0 as usize].place.clone())
    }

    /// A place that was remembered.
    pub(super) fn at(&mut self, spot: Option<Spot>) -> Step<Option<Place>> {
        match spot {
            Some(Spot { name, of: None, dir: Some(dir) }) => Ok(Some(Place::own(&dir, &name))),
            Some(Spot { name, of: Some(of), .. }) => self.place_of(of, &name),
            _ => Ok(None),
        }
    }

    /// The identity that an object had when the transaction saw it.
    pub(super) fn origin_id(&self, ix: Ix) -> Option<HostId> {
        match &self.object(ix).origin {
            Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(stamp.id),
            _ => self.id(ix),
        }
    }

    pub(super) fn txn(&self) -> TxnId {
        self.commit.meta.txn
    }

    pub(super) fn temp(&self, role: char, ix: Ix) -> Place {
        let name = temp_name(self.txn(), self.run, role, ix.0);
        Place::own(&self.env.layout.temp, &name)
    }

    /// Path of an object for reports: where it ends up, or where it was.
    pub(super) fn path(&self, ix: Ix) -> Vec<u8> {
        let path = self.index.final_path(ix).or_else(|| self.index.origin_path(ix));
        path.unwrap_or_default()
    }

    pub(super) fn bind_path(&self, bind: &Bind) -> Vec<u8> {
        self.index.bind_path(bind).unwrap_or_else(|| bind.name.clone())
    }

    pub(super) fn stop(&self, path: Vec<u8>, error: Error) -> Stopped {
        Stopped { path, error }
    }

    pub(super) fn report(&mut self, path: Vec<u8>, what: Outside, kept_as: Option<Vec<u8>>) {
        self.told.outside.push(OutsideChange { path, what, kept_as });
    }

    /// Stops at errors of the whole store; reports any other and goes on with `None`.
    pub(super) fn soft<T>(
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
    pub(super) fn soft_stat(&self, dir: &Handle, name: &[u8]) -> Step<Option<Stat>> {
        match self.env.io.stat_at(dir, name) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if is_fatal(&e) => Err(self.stop(name.to_vec(), e)),
            Err(_) => Ok(None),
        }
    }

    /// Renames.  The owner of a directory without write permission may move it all the same.
    pub(super) fn rename(&self, from: &Place, to: &Place, how: Rename) -> Result<()> {
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

    /// The project that a directory gives to what is made in it.
    pub(super) fn given_by(&mut self, dir: Ix) -> Step<Option<Project>> {
        if let Some(known) = self.states[dir.0 as usize].gives {
            return Ok(known);
        }
        let Some(handle) = self.dir_of(dir)? else { return Ok(None) };
        let given = self.env.io.project(&handle, b"").ok().filter(|project| project.given);
        self.state(dir).gives = Some(given);
        Ok(given)
    }

    /// An object that was made in staging joins the project of a directory in which it gets a name,
    /// as if it had been made there: into that one the file system moves nothing else.
    pub(super) fn join_project(&mut self, ix: Ix, at: &Place) -> Step<()> {
        for i in self.index.targets(ix).to_vec() {
            let dir = self.commit.set.binds[i].dir;
            if at.of != Some(dir)
                && let Some(project) = self.given_by(dir)?
            {
                // What cannot have it is refused where it is moved, and reported.
                let _ = self.env.io.set_project(&at.dir, &at.name, project);
                break;
            }
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> Step<()> {
        self.env.io.sync_fs().map_err(|e| self.stop(Vec::new(), e))
    }

    pub(super) fn is_empty(&self, place: &Place) -> Step<bool> {
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

    pub(super) fn arrived(&mut self, ix: Ix, place: &Place) {
        let state = self.state(ix);
        state.placed = true;
        state.hidden = false;
        state.place = Some(place.into());
    }

    pub(super) fn is_parked(&mut self, ix: Ix, at: &Place) {
        let state = self.state(ix);
        state.home = Some(at.into());
        state.place = Some(at.into());
    }

    /// Whether an object that loses its last name in the write set has others in the tree.  The
    /// graveyard keeps no link to it then, or users would count one too many; undo finds it by
    /// another name ([`crate::survivors`]).  Where none is known and another may tell another
    /// number, the graveyard does keep one.
    pub(super) fn lives_on(&self, ix: Ix, now: &Stat) -> bool {
        now.kind != Kind::Dir
            && now.nlink > 1
            && self.index.is_removed(ix)
            && !self.is_exchanged(ix)
            && !(self.env.overlay && self.loses_origin(ix) && loses_number(now))
    }

    /// Whether another inode takes the place of this one.
    pub(super) fn is_exchanged(&self, ix: Ix) -> bool {
        self.befores.get(&ix).is_some_and(|b| b.content == OldContent::Exchanged)
    }

    /// Whether an object is changed and loses every name that is known here: resuming might not
    /// find it again, so the change must be durable before the name goes.
    pub(super) fn is_last_look(&self, ix: Ix) -> bool {
        let object = self.object(ix);
        object.is_changed() && object.kind() != Kind::Dir && self.index.is_removed(ix)
    }

    /// Whether the name by which an object was known goes.
    pub(super) fn loses_origin(&self, ix: Ix) -> bool {
        match &self.object(ix).origin {
            Origin::Host { parent, name, .. } => {
                self.index.at(*parent, name).is_some() || self.index.inside_removed(ix)
            }
            _ => true,
        }
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
            Origin::Grave { stamp, .. } => !stamp.has_data_of(&now),
            _ => false,
        }
    }

    /// Reports an object that an outsider changed since the transaction saw it.
    pub(super) fn note_if_changed(&mut self, ix: Ix, place: &Place) -> Step<bool> {
        let stat = self.soft_stat(&place.dir, &place.name)?;
        let changed = stat.is_some_and(|s| self.is_changed_outside(ix, &s));
        if changed {
            let path = self.path(ix);
            self.report(path, Outside::Changed, None);
        }
        Ok(changed)
    }

    pub(super) fn conflict_dir(&self) -> Step<(Handle, Vec<u8>)> {
        let txn = history_name(self.txn());
        let open = || -> Result<Handle> {
            let conflict = ensure_dir(self.env.io, &self.env.layout.state, b"conflict")?;
            ensure_dir(self.env.io, &conflict, &txn)
        };
        let dir = open().map_err(|e| self.stop(b"conflict".to_vec(), e))?;
        Ok((dir, [b"conflict/", &txn[..]].concat()))
    }

    pub(super) fn conflict_name(&mut self, as_name: &[u8]) -> Vec<u8> {
        self.told.kept += 1;
        let mut name = format!("{}-", self.told.kept).into_bytes();
        let room = 255 - name.len();
        name.extend_from_slice(&as_name[..as_name.len().min(room)]);
        name
    }

    /// An empty file in `conflict/`, and where that is.
    pub(super) fn new_in_conflict(&mut self, path: &[u8], base: &[u8]) -> Step<(Vec<u8>, Handle)> {
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

    /// Keeps a copy of an outsider's version before it is overwritten in place.
    pub(super) fn keep_copy(&mut self, ix: Ix, file: &Handle) -> Step<()> {
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
}
