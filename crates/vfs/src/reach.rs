//! How a view reaches backing objects: by open directories, one name at a time, each verified to be
//! what was met.
//!
//! Nothing new is met here: whoever has only this and the nodes ([`State`]) cannot add to what the
//! transaction has read, but for the objects that these stand for.

use crate::api::Reply;
use crate::handles::HandleCache;
use crate::ids::Ids;
use crate::neighbours::Neighbours;
use crate::node::{Base, Name};
use crate::state::State;
use crate::volume::{Volume, errno};
use crate::workset::Workset;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use systx_base::sync::{Rank, rank};
use systx_base::{NodeId, Time, Uid};
use systx_store::io::{Fixed, Handle, Open, Openers, Project, Stamp, Stat, Tree};
use systx_txn::ObjectRef;

mod appends;
mod bytes;

pub(crate) use bytes::StillOneMoment;

/// Open directories, and open files, that one view keeps at the most.
const HANDLES_MAX: usize = 512;

/// See the module.
pub(crate) struct Reach {
    pub vol: Arc<Volume>,
    /// Who else works on it.
    pub others: Arc<dyn Neighbours>,
    pub work: Workset,
    /// The user whose the view is.
    own: Uid,
    dirs: HandleCache,
    files: HandleCache,
}

impl Reach {
    /// Of the view of a transaction that has met nothing.
    pub fn new(others: Arc<dyn Neighbours>, work: Workset, ids: &Ids) -> Reach {
        Reach {
            vol: Arc::clone(others.volume()),
            others,
            work,
            own: ids.own(),
            dirs: HandleCache::new(rank::HANDLES, HANDLES_MAX),
            files: HandleCache::new(Rank(rank::HANDLES.0 + 1), HANDLES_MAX),
        }
    }

    /// The backing file system as the view shows it.
    pub fn tree(&self) -> &Arc<dyn Tree> {
        self.work.tree()
    }

    pub fn now(&self) -> Time {
        self.vol.tree.now()
    }

    /// After a look at the backing file system: what was seen is of the moment that the view shows.
    /// Who makes this transaction lose does so before it changes anything, so as long as it has not
    /// lost, all that it has looked at is of one moment; what it sees afterwards may be of another.
    pub fn still_one_moment(&self) -> Reply<()> {
        self.work.alive()
    }

    /// Closes the files that are open.
    pub fn close_files(&self) {
        self.files.clear();
    }

    /// Closes all that is open.
    pub fn close(&self) {
        self.dirs.clear();
        self.files.clear();
    }

    // ---- what is there ----------------------------------------------------------------------

    /// Whether the backing object is still the version that was met, own commits aside: by what was
    /// seen, or else by looking again.
    pub fn is_current(
        &self,
        base: &Base,
        seen: &Stat,
        look: impl Fn() -> io::Result<Stat>,
    ) -> bool {
        if self.work.is_frozen(base.oid()) {
            return base.stamp == seen.stamp();
        }
        let same = |now: Stamp| self.vol.is_own(base.stamp, now);
        if same(seen.stamp()) {
            return true;
        }
        // The difference may come from a plain request that has yet to say so, and was perhaps half
        // done; or from a commit that is installing, or did so between the two looks.
        let _nobody = self.others.still();
        let again = || look().is_ok_and(|now| same(now.stamp()));
        if again() {
            return true;
        }
        if !self.vol.is_installing(base.stamp.id()) && self.vol.current(base.stamp) == base.stamp {
            return false;
        }
        let _quiet = self.vol.quiesce();
        again()
    }

    /// Looks at an object of which this transaction has recorded attributes and length.
    pub fn look_whole(&self, look: impl Fn() -> io::Result<Stat>) -> Reply<Stat> {
        let engine = &self.vol.engine;
        let moment = engine.moment();
        let quiet = self.vol.quiesce();
        let seen = look().map_err(errno)?;
        drop(quiet);
        if !engine.is_changing(seen.id.oid()) && engine.moment() == moment {
            return Ok(seen);
        }
        // A plain write leaves alone what was recorded, and moves the version.
        let _nobody = self.others.still();
        let _quiet = self.vol.quiesce();
        look().map_err(errno)
    }

    /// Objects of other file systems show through as places, not to be changed.
    pub fn check_writable(&self, st: &State, node: NodeId) -> Reply<()> {
        self.work.alive()?;
        match &st.node(node)?.base {
            Some(base) if base.foreign => Err(Errno::ROFS),
            _ => Ok(()),
        }
    }

    /// That nothing keeps an object from being changed: at most `bearable` does.
    pub fn check_fixed(&self, st: &mut State, node: NodeId, bearable: Fixed) -> Reply<()> {
        let Some(base) = &st.node(node)?.base else { return Ok(()) };
        let fixed = match base.fixed {
            Some(fixed) => fixed,
            None => {
                let (dir, name) = self.backing_place(st, node)?;
                let fixed = match self.tree().fixed(&dir, &name) {
                    Ok(fixed) => fixed,
                    // It is found at the commit what has become of it.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Fixed::No,
                    Err(e) => return Err(errno(e)),
                };
                if let Some(base) = &mut st.node_mut(node)?.base {
                    base.fixed = Some(fixed);
                }
                fixed
            }
        };
        match fixed {
            Fixed::No => Ok(()),
            Fixed::Encrypted => Err(Errno::OPNOTSUPP),
            kept if kept == bearable => Ok(()),
            Fixed::Append | Fixed::Immutable => Err(Errno::PERM),
        }
    }

    /// Refuses, as a file system that keeps projects does, to move or link an object of another
    /// project into a directory that gives its own to all that is in it.
    pub fn check_project(&self, st: &mut State, node: NodeId, dir: NodeId) -> Reply<()> {
        let Some(wanted) = self.given_in(st, dir)? else { return Ok(()) };
        let at = st.node(node)?;
        let has = match (&at.base, &at.place) {
            (Some(_), _) => self.project(st, node)?.id,
            // Made in the transaction, where it is now.
            (None, Some((above, _))) => self.given_in(st, *above)?.unwrap_or_default(),
            _ => wanted,
        };
        if has == wanted { Ok(()) } else { Err(Errno::XDEV) }
    }

    /// The project that what is made in a directory gets: of a new directory, that of the existing
    /// one around it.
    fn given_in(&self, st: &mut State, mut dir: NodeId) -> Reply<Option<u32>> {
        while let (None, Some((above, _))) = (&st.node(dir)?.base, &st.node(dir)?.place) {
            dir = *above;
        }
        let project = self.project(st, dir)?;
        Ok(project.given.then_some(project.id))
    }

    /// The project of an object of the backing file system.
    fn project(&self, st: &mut State, node: NodeId) -> Reply<Project> {
        if let Some(known) = st.node(node)?.dir().and_then(|dir| dir.project) {
            return Ok(known);
        }
        let (dir, name) = self.backing_place(st, node)?;
        let project = self.tree().project(&dir, &name).map_err(errno)?;
        if let Some(dir) = st.node_mut(node)?.dir_mut() {
            dir.project = Some(project);
        }
        Ok(project)
    }

    /// That a name in a directory may be made; with `goes`, that one may go.
    pub fn check_names(&self, st: &mut State, dir: NodeId, goes: bool) -> Reply<()> {
        let bearable = if goes { Fixed::No } else { Fixed::Append };
        self.check_fixed(st, dir, bearable)
    }

    // ---- the way there ----------------------------------------------------------------------

    /// The open backing directory of a node; verified to be the one that was met.
    pub fn dir_handle(&self, st: &State, node: NodeId) -> Reply<Handle> {
        self.open_way(st, node).map_err(|(at, e)| match st.base(at).map(|base| &base.place) {
            Ok(Some((parent, name))) if is_gone(&e) => match st.base(*parent) {
                Ok(base) => self.work.outsider(ObjectRef::Entry { dir: base.oid(), name }),
                Err(e) => e,
            },
            _ => errno(e),
        })
    }

    /// As [`Reach::dir_handle`], without any record: validation must look even where the
    /// transaction has lost.
    pub fn open_unrecorded(&self, st: &State, node: NodeId) -> io::Result<Handle> {
        self.open_way(st, node).map_err(|(_, e)| e)
    }

    /// A backing directory by the way it was met; or the one at which that ends, and why.
    fn open_way(&self, st: &State, node: NodeId) -> Result<Handle, (NodeId, io::Error)> {
        let (mut handle, way) = self.way_to(st, node).map_err(|e| (node, e.into()))?;
        for id in way.into_iter().rev() {
            let step = || -> io::Result<Handle> {
                let base = st.base(id)?;
                let Some((_, name)) = &base.place else { return Ok(handle.clone()) };
                let next = self.tree().open_dir(&handle, name)?;
                let same = self.tree().stat(&next)?.id == base.stamp.id();
                if same { Ok(next) } else { Err(Errno::NOENT.into()) }
            };
            handle = step().map_err(|e| (id, e))?;
            self.dirs.put(id, handle.clone());
        }
        Ok(handle)
    }

    /// The nearest directory at or above `node` that is open, and those that are to be opened from
    /// there, the last one first.  Not by recursion: trees may be deeper than a stack.
    fn way_to(&self, st: &State, node: NodeId) -> Reply<(Handle, Vec<NodeId>)> {
        let mut way = Vec::new();
        let mut at = node;
        loop {
            if let Some(handle) = self.dirs.get(at) {
                return Ok((handle, way));
            }
            let Some((parent, _)) = &st.base(at)?.place else {
                return Ok((self.tree().root(), way));
            };
            way.push(at);
            at = *parent;
        }
    }

    /// The backing directory and name of a node with a base.
    pub fn backing_place(&self, st: &State, node: NodeId) -> Reply<(Handle, Name)> {
        match &st.base(node)?.place {
            Some((parent, name)) => Ok((self.dir_handle(st, *parent)?, name.clone())),
            // An empty name is the directory itself (see `Io`).
            None => Ok((self.tree().root(), Name::from(&b""[..]))),
        }
    }

    /// The open backing file of a node; verified to be the version that was met.
    pub fn file_handle(&self, st: &State, node: NodeId) -> Reply<Handle> {
        if let Some(handle) = self.files.get(node) {
            return Ok(handle);
        }
        let base = st.base(node)?;
        // What programs have stored in mappings of it comes first; that of a snapshot has come.
        let settled =
            self.work.is_frozen(base.oid()) || self.others.flush(self.work.txn, base.stamp.id());
        let (dir, name) = self.backing_place(st, node)?;
        let handle = match self.tree().open_file(&dir, &name, self.how_to_open(st, base)) {
            Ok(handle) => handle,
            Err(e) if is_gone(&e) => return Err(self.work.outsider(whole(base))),
            Err(e) => return Err(errno(e)),
        };
        let (outsiders, bare) = (&self.vol.outsiders, self.work.bare(&handle));
        // A page that another process changes through a mapping, and that was dirty already when
        // it was met, moves no time stamp.  Writing it back makes the next store fault, and that
        // moves the stamp.  A sync of everything since the last change has done so.
        if !settled
            && !outsiders.is_settled(&base.stamp)
            && outsiders.openers(bare).map_err(errno)? == Openers::Writers
        {
            outsiders.sync_data(bare).map_err(errno)?;
        }
        self.files.put(node, handle.clone());
        Ok(handle)
    }

    /// How a backing file can be opened for reading, by who may change names in its directory.
    fn how_to_open(&self, st: &State, base: &Base) -> Open {
        let dir = base.place.as_ref().and_then(|(parent, _)| st.nodes.get(*parent));
        // What this transaction made of mode and owner says nothing about the backing directory. An
        // access control list that lets others write shows in the group's bits.
        let safe = dir.is_some_and(|dir| {
            let (attr, dirty) = (&dir.attr, dir.dirty);
            let mine = attr.uid == self.own || attr.uid == 0;
            !dirty.mode && !dirty.owner && mine && attr.mode & 0o022 == 0
        });
        if safe { Open::ReadOwn } else { Open::Read }
    }

    /// As [`Reach::backing_place`], without any record.
    pub fn place_unrecorded(&self, st: &State, node: NodeId) -> Option<(Handle, Name)> {
        let base = st.nodes.get(node)?.base.as_ref()?;
        match &base.place {
            Some((parent, name)) => Some((self.open_unrecorded(st, *parent).ok()?, name.clone())),
            None => Some((self.tree().root(), Name::from(&b""[..]))),
        }
    }
}

/// The object of the engine that stands for "this version of this file".
pub(crate) fn whole(base: &Base) -> ObjectRef<'static> {
    ObjectRef::Attr(base.oid())
}

pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::INVAL)
    )
}
