//! File locks of a view, forwarded to the files of the host: see [`crate::locks`].

use crate::api::{Lock, LockKind, Reply};
use crate::locks::{Ask, Locks, Openings, Wait};
use crate::node::Base;
use crate::paths::path_below;
use crate::view::View;
use crate::volume::errno;
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::NodeId;
use systx_store::host_locks::LockFile;
use systx_store::io::Handle;
use systx_store::real::RealIo;

impl View {
    /// Tells who can say which files the processes of the view have open.  Without it, whoever
    /// serves the view tells of closes.
    pub fn set_openings(&self, openings: Arc<dyn Openings>) {
        *self.openings.lock() = Some(openings);
    }

    /// The locks of the view, and of what takes its place.
    pub(crate) fn locks(&self) -> Arc<Locks> {
        Arc::clone(&self.locks.lock())
    }

    pub(super) fn set_lock(&self, node: NodeId, lock: Lock, wait: Option<&Arc<Wait>>) -> Reply<()> {
        let locks = self.locks();
        if lock.kind == LockKind::Unlock {
            return locks.clear(node, &lock);
        }
        self.alive()?;
        let ino = self.state.lock().node(node)?.attr.ino;
        if self.taken.limits_locks() && !locks.knows(node, &lock) {
            self.taken.lock(locks.count())?;
        }
        let openings = self.openings.lock().clone();
        let ask = Ask { node, lock, ino, openings, wait };
        locks.set(&ask, &|| self.lock_file(&locks, node))
    }

    pub(super) fn test_lock(&self, node: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        let locks = self.locks();
        locks.test(node, &lock, &|| self.lock_file(&locks, node))
    }

    /// A new description of the file that stands for a node.
    fn lock_file(&self, locks: &Locks, node: NodeId) -> Reply<LockFile> {
        let (io, files) = (self.vol.locks.as_ref(), self.vol.lock_files.as_ref());
        if io.is_none() && files.is_none() && !self.others.keeps_locks() {
            return Err(Errno::NOSYS);
        }
        let st = self.state.lock();
        // Whoever reads the past keeps nobody out.
        let shared = |b: &Base| !b.foreign && !self.work.is_frozen(b.oid());
        if !st.node(node)?.base.as_ref().is_some_and(shared) {
            drop(st);
            return locks.unnamed(node).map_err(errno);
        }
        let id = st.base(node)?.stamp.id;
        if let Some(files) = files {
            return files.of(id).map_err(errno);
        }
        let (dir, name) = self.backing_place(&st, node)?;
        drop(st);
        let dir = self.work.bare(&dir);
        if self.others.keeps_locks()
            && let Some(below) = self.path_to(dir)
            && let Some(shown) = self.others.shown(id, &below, &name)?
        {
            return LockFile::over(shown).map_err(errno);
        }
        self.lock_file_of(io.ok_or(Errno::NOLCK)?, dir, &name)
    }

    /// The path of a directory below the volume's root, if it is there.
    fn path_to(&self, dir: &Handle) -> Option<Vec<u8>> {
        match &self.vol.locks {
            Some(io) => {
                let root = self.tree().root();
                path_below(io.descriptor(&root), io.descriptor(dir)).ok()
            }
            None => self.vol.tree.path_of(dir).ok(),
        }
    }

    /// On an overlay opening for writing copies a file up, as it would have for the program
    /// itself: what that moves is no outsider's change.
    fn lock_file_of(&self, io: &RealIo, dir: &Handle, name: &[u8]) -> Reply<LockFile> {
        let look = || self.tree().stat_at(dir, name).ok().map(|stat| stat.stamp());
        let before = self.vol.overlay.as_ref().and_then(|_| look());
        let file = LockFile::of(io, dir, name).map_err(errno)?;
        if let (Some(before), Some(after)) = (before, before.and_then(|_| look()))
            && (before.id, before.mtime, before.size) == (after.id, after.mtime, after.size)
        {
            self.vol.note_own(before, after);
        }
        Ok(file)
    }

    /// Releases the locks of owners that have closed; returns how many did.
    pub fn sweep_locks(&self) -> usize {
        self.locks().sweep()
    }

    /// See [`Handover::move_locks`](crate::handover::Handover::move_locks).
    pub(crate) fn move_locks(&self, over: bool) {
        let locks = self.locks();
        if locks.count() > 0 && self.others.keeps_locks() == over {
            locks.move_to(&|node| self.lock_file(&locks, node).ok());
        }
    }

    /// The locks that are held, for whoever serves their owners from now on.
    pub(crate) fn take_locks(&self) -> Arc<Locks> {
        std::mem::replace(&mut *self.locks.lock(), Locks::new())
    }

    /// Releases open files of the host, but not the locks: their owners live on.
    pub fn let_go_of_files(&self) {
        self.files.clear();
    }

    /// Releases locks and open files of the host: no process is in the view any more, and a file
    /// that nobody has open can be replaced in one step.
    pub fn let_go(&self) {
        self.locks().end();
        self.files.clear();
    }

    /// Whether any lock is held through this view.
    pub fn holds_locks(&self) -> bool {
        self.locks().count() > 0
    }
}
