//! File locks of a view, forwarded to the files of the host: see [`crate::locks`].

use crate::api::{Lock, LockKind, Reply};
use crate::below::Below;
use crate::locks::{Ask, Locks, Openings, Relocked, Sections, Wait};
use crate::node::Base;
use crate::paths::path_below;
use crate::reach::Reach;
use crate::state::State;
use crate::volume::errno;
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};
use systx_store::host_locks::LockFile;
use systx_store::io::Handle;
use systx_store::real::RealIo;

/// The locks of one view.
pub(crate) struct HostLocks {
    held: Mutex<Arc<Locks>>,
    sections: Mutex<Sections>,
    openings: Mutex<Option<Arc<dyn Openings>>>,
}

impl HostLocks {
    /// None.
    pub fn new() -> HostLocks {
        let held = Mutex::new(rank::LEAF, Locks::new());
        let sections = Mutex::new(rank::LEAF, Sections::default());
        HostLocks { held, sections, openings: Mutex::new(rank::LEAF, None) }
    }

    /// See [`View::set_openings`](crate::view::View::set_openings).
    pub fn set_openings(&self, openings: Arc<dyn Openings>) {
        *self.openings.lock() = Some(openings);
    }

    /// The locks of the view, and of what takes its place.
    pub fn all(&self) -> Arc<Locks> {
        Arc::clone(&self.held.lock())
    }

    pub fn set(
        &self,
        (below, state): (&Below, &Mutex<State>),
        (node, lock): (NodeId, Lock),
        wait: Option<&Arc<Wait>>,
    ) -> Reply<()> {
        let (locks, reach) = (self.all(), &below.reach);
        if lock.kind == LockKind::Unlock {
            return locks.clear(node, &lock);
        }
        reach.work.alive()?;
        let ino = state.lock().node(node)?.attr.ino;
        if below.taken.limits_locks() && !locks.knows(node, &lock) {
            below.taken.lock(locks.count())?;
        }
        let openings = self.openings.lock().clone();
        let ask = Ask { node, lock, ino, openings, wait };
        locks.set(&ask, &|| lock_file(reach, state, &locks, node))?;
        self.sections.lock().note(node, &lock);
        Ok(())
    }

    /// See [`View::lock_again`](crate::view::View::lock_again).
    pub fn lock_again(
        &self,
        (reach, state): (&Reach, &Mutex<State>),
        over: bool,
    ) -> Result<Relocked, NodeId> {
        let (locks, sections) = (self.all(), self.sections.lock().clone());
        locks.lock_again(&sections, over, &|node| lock_file(reach, state, &locks, node))
    }

    /// Whether a file was locked for writing.
    pub fn have_locked(&self, node: NodeId) -> bool {
        self.sections.lock().has(node)
    }

    pub fn test(
        &self,
        reach: &Reach,
        state: &Mutex<State>,
        (node, lock): (NodeId, Lock),
    ) -> Reply<Option<Lock>> {
        let locks = self.all();
        locks.test(node, &lock, &|| lock_file(reach, state, &locks, node))
    }

    /// See [`Handover::move_locks`](crate::handover::Handover::move_locks).
    pub fn move_to_files(&self, reach: &Reach, state: &Mutex<State>, over: bool) {
        let locks = self.all();
        if locks.count() > 0 && reach.others.keeps_locks() == over {
            locks.move_to(&|node| lock_file(reach, state, &locks, node).ok());
        }
    }

    /// The locks that are held, for whoever serves their owners from now on.
    pub fn take(&self) -> Arc<Locks> {
        std::mem::replace(&mut *self.held.lock(), Locks::new())
    }
}

/// A new description of the file that stands for a node.
fn lock_file(reach: &Reach, state: &Mutex<State>, locks: &Locks, node: NodeId) -> Reply<LockFile> {
    let (io, files) = (reach.vol.on_host(), reach.vol.lock_files());
    if io.is_none() && files.is_none() && !reach.others.keeps_locks() {
        return Err(Errno::NOSYS);
    }
    let st = state.lock();
    // Whoever reads the past keeps nobody out.
    let shared = |b: &Base| !b.foreign && !reach.work.is_frozen(b.oid());
    if !st.node(node)?.base.as_ref().is_some_and(shared) {
        drop(st);
        return locks.unnamed(node).map_err(errno);
    }
    let id = st.base(node)?.stamp.id();
    if let Some(files) = files {
        return files.of(id).map_err(errno);
    }
    let (dir, name) = reach.backing_place(&st, node)?;
    drop(st);
    let dir = reach.work.bare(&dir);
    if reach.others.keeps_locks()
        && let Some(below) = path_to(reach, dir)
        && let Some(shown) = reach.others.shown(id, &below, &name)?
    {
        return LockFile::over(shown).map_err(errno);
    }
    lock_file_of(reach, io.ok_or(Errno::NOLCK)?, dir, &name)
}

/// The path of a directory below the volume's root, if it is there.
fn path_to(reach: &Reach, dir: &Handle) -> Option<Vec<u8>> {
    match reach.vol.on_host() {
        Some(io) => {
            let root = reach.tree().root();
            path_below(io.descriptor(&root), io.descriptor(dir)).ok()
        }
        None => reach.vol.tree.path_of(dir).ok(),
    }
}

/// On an overlay opening for writing copies a file up, as it would have for the program
/// itself: what that moves is no outsider's change.
fn lock_file_of(reach: &Reach, io: &RealIo, dir: &Handle, name: &[u8]) -> Reply<LockFile> {
    let look = || reach.tree().stat_at(dir, name).ok().map(|stat| stat.stamp());
    let before = reach.vol.overlay.as_ref().and_then(|_| look());
    let file = LockFile::of(io, dir, name).map_err(errno)?;
    if let (Some(before), Some(after)) = (before, before.and_then(|_| look()))
        && before.has_data_of(&after)
    {
        reach.vol.note_own(before, after);
    }
    Ok(file)
}
