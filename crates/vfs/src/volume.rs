//! What all views of one volume share: the backing file system, the conflict engine, the identity
//! of objects, and the memory of which changes of the backing files were our own.
//!
//! Own changes and those of outsiders move the same `ctime`. When a commit installs, the volume
//! notes for every changed object the stamp before and after; a stamp that a view remembers is
//! first carried forward along these notes, and only a difference that remains is an outsider's.
//!
//! **Lock order**: a view's state, then [`Volume::quiesce`], then files' contents, then the tables
//! here (leaf).

use crate::api::Reply;
use crate::client;
use crate::content::TimesHeld;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::TxnId;
use systx_base::sync::{Guard, Mutex, RwLock, rank};
use systx_store::host_locks::LockFiles;
use systx_store::io::{Alone, HostId, Io, Outsiders, Stamp, Tree};
use systx_store::overlay::Overlay;
use systx_store::real::RealIo;
use systx_txn::{Engine, ObjectRef, Stalls};

/// Shared by the views of one volume.
pub struct Volume {
    /// The backing file system.
    pub tree: Arc<dyn Tree>,
    /// What it knows of programs that work in it directly.
    pub(crate) outsiders: Arc<dyn Outsiders>,
    /// Who read and wrote what.
    pub engine: Engine,
    /// Device number of the backing file system.
    pub dev: u64,
    /// Where the volume is mounted on the host, without a trailing slash (`/` is empty).
    pub mount_path: Vec<u8>,
    locks: Locked,
    /// It is an overlay file system.
    pub(crate) overlay: Option<Overlay>,
    hidden: Hidden,
    objects: Mutex<Objects>,
    install: Mutex<()>,
    /// The times that files can have.
    pub(crate) times: TimesHeld,
    /// Who waits for whose installation, or end.
    waits: Mutex<Vec<(TxnId, TxnId)>>,
}

/// What is locked where a program locks a file.
enum Locked {
    /// Nothing: locks are not served.
    Nothing,
    /// The file of the host.
    Host(Arc<RealIo>),
    /// There is none.
    Own(Arc<LockFiles>),
}

/// What is in no view.
struct Hidden {
    always: HashSet<HostId>,
    /// The directory of the store, once it was opened.
    store: RwLock<Option<HostId>>,
    /// It has this name in this directory, whether it is there or not.
    name: RwLock<Option<(HostId, Vec<u8>)>>,
}

impl Hidden {
    fn new(always: HashSet<HostId>) -> Hidden {
        let store = RwLock::new(rank::LEAF, None);
        Hidden { always, store, name: RwLock::new(rank::LEAF, None) }
    }
}

#[derive(Default)]
struct Objects {
    /// Stamp before → stamp after, of our own changes.
    own: HashMap<Stamp, Stamp>,
    /// Objects that a commit is changing at this moment.
    installing: HashSet<HostId>,
}

impl Objects {
    /// The versions that followed one by our own changes.
    fn since(&self, stamp: Stamp) -> impl Iterator<Item = Stamp> {
        let next = |at: &Stamp| self.own.get(at).filter(|next| *next != at).copied();
        // A chain cannot loop: ctime only grows.  The bound is for a clock that was set back.
        std::iter::successors(next(&stamp), next).take(CHAIN_MAX)
    }
}

/// Longest chain of own changes that is followed.
const CHAIN_MAX: usize = 100_000;

impl Volume {
    /// A volume over a file system; objects in `hidden` (the store's own directory) are in no view.
    pub fn new(io: Arc<dyn Io>, mount_path: Vec<u8>, hidden: HashSet<HostId>) -> Reply<Volume> {
        Volume::over((io.clone(), io), mount_path, hidden)
    }

    /// A volume over a tree that nobody reaches but through its store.
    pub fn alone(
        tree: Arc<dyn Tree>,
        mount_path: Vec<u8>,
        hidden: HashSet<HostId>,
    ) -> Reply<Volume> {
        Volume::over((tree, Arc::new(Alone)), mount_path, hidden)
    }

    fn over(
        (tree, outsiders): (Arc<dyn Tree>, Arc<dyn Outsiders>),
        mount_path: Vec<u8>,
        hidden: HashSet<HostId>,
    ) -> Reply<Volume> {
        let root = tree.stat(&tree.root()).map_err(errno)?;
        Ok(Volume {
            tree,
            outsiders,
            engine: Engine::new(),
            dev: root.dev,
            mount_path,
            locks: Locked::Nothing,
            overlay: None,
            hidden: Hidden::new(hidden),
            objects: Mutex::new(rank::LEAF, Objects::default()),
            install: Mutex::new(rank::INSTALL, ()),
            times: TimesHeld::default(),
            waits: Mutex::new(rank::LEAF, Vec::new()),
        })
    }

    /// Its transactions have parts on other volumes, which share this.
    #[must_use]
    pub fn sharing(mut self, stalls: &Arc<Stalls>) -> Volume {
        self.engine = self.engine.with_stalls(stalls);
        self
    }

    /// Forwards file locks to the files of the host.
    #[must_use]
    pub fn with_locks(mut self, io: Arc<RealIo>) -> Volume {
        self.locks = Locked::Host(io);
        self
    }

    /// Locks are on these.
    #[must_use]
    pub fn with_lock_files(mut self, files: Arc<LockFiles>) -> Volume {
        self.locks = Locked::Own(files);
        self
    }

    /// The file system of the host that the volume is; `None`: it is one of its own.
    pub fn on_host(&self) -> Option<&Arc<RealIo>> {
        if let Locked::Host(io) = &self.locks { Some(io) } else { None }
    }

    /// What is locked where there are no files on the host.
    pub fn lock_files(&self) -> Option<&Arc<LockFiles>> {
        if let Locked::Own(files) = &self.locks { Some(files) } else { None }
    }

    /// The volume is an overlay file system, on which some calls do less.
    #[must_use]
    pub fn with_overlay(mut self, overlay: Option<Overlay>) -> Volume {
        self.overlay = overlay;
        self
    }

    /// What has this name in this directory is in no view from now on, also if it is made later.
    pub fn hide_name(&self, name: Option<(HostId, Vec<u8>)>) {
        if *self.hidden.name.read() != name {
            *self.hidden.name.write() = name;
        }
    }

    /// The directory of the store is this one from now on, and in no view.  `None`: it is removed,
    /// and what gets its number is somebody else's.
    pub fn hide_store(&self, id: Option<HostId>) {
        *self.hidden.store.write() = id;
    }

    /// Objects that are in no view.
    pub fn hidden(&self) -> HashSet<HostId> {
        self.hidden.always.iter().copied().chain(*self.hidden.store.read()).collect()
    }

    /// Whether an object must not be seen by any view, which has this name in the directory `dir`.
    pub fn is_hidden(&self, dir: HostId, name: &[u8], id: HostId) -> bool {
        self.hides_name(dir, name) || self.hides(id)
    }

    fn hides(&self, id: HostId) -> bool {
        self.hidden.always.contains(&id) || *self.hidden.store.read() == Some(id)
    }

    /// As [`Volume::is_hidden`], by what a listing tells.
    pub fn hides_ino(&self, dir: HostId, name: &[u8], ino: u64) -> bool {
        let store = *self.hidden.store.read();
        let always = self.hidden.always.iter();
        self.hides_name(dir, name) || always.chain(&store).any(|id| id.number() == ino)
    }

    fn hides_name(&self, dir: HostId, name: &[u8]) -> bool {
        let store = self.hidden.name.read();
        store.as_ref().is_some_and(|(at, hidden)| *at == dir && hidden == name)
    }

    /// `stamp` carried forward over our own changes since it was taken.
    pub fn current(&self, stamp: Stamp) -> Stamp {
        self.objects.lock().since(stamp).last().unwrap_or(stamp)
    }

    /// Whether only changes of our own lie between two versions of an inode, or nothing; and none
    /// of our own has put another inode in its place since.
    pub(crate) fn is_own(&self, before: Stamp, after: Stamp) -> bool {
        let objects = self.objects.lock();
        let mut met = before == after;
        let mut last = before.id();
        for stamp in objects.since(before) {
            met |= stamp == after;
            last = stamp.id();
        }
        met && last == after.id()
    }

    /// A plain request moved the version of an object, and no transaction lost by that.
    pub fn note_own(&self, before: Stamp, after: Stamp) {
        // Who has not met it will not ask.
        if before != after && self.engine.is_held(ObjectRef::Attr(before.id().oid())) {
            self.objects.lock().own.insert(before, after);
        }
    }

    /// Whether a commit is changing this object right now, so that a stamp taken now means nothing.
    pub fn is_installing(&self, id: HostId) -> bool {
        self.objects.lock().installing.contains(&id)
    }

    /// Waits until `winner` has installed what `waiter` wants to touch.
    ///
    /// # Errors
    /// `EINTR`: who asks has been killed.
    pub(crate) fn wait_installed(&self, waiter: TxnId, winner: TxnId) -> Reply<()> {
        let _noted = self.note_wait(waiter, winner);
        loop {
            if self.engine.wait_installed_for(winner, client::LOOK) {
                return Ok(());
            }
            client::check()?;
        }
    }

    /// Before an access of `waiter`: as long as a running transaction is in its way and waiting may
    /// help ([`Engine::stall`], [`Engine::stall_write`]), waits for that; at most `limit` long. The
    /// caller holds no lock of a view.
    ///
    /// # Errors
    /// `EINTR`: who asks has been killed.
    pub(crate) fn stall(
        &self,
        waiter: TxnId,
        (object, writes): (ObjectRef<'_>, bool),
        limit: Duration,
    ) -> Reply<()> {
        let stalls = if writes { Engine::stall_write } else { Engine::stall };
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            let Some(stall) = stalls(&self.engine, waiter, object) else { return Ok(()) };
            let _noted = self.note_wait(waiter, stall.winner());
            stall.wait(left.min(client::LOOK));
            client::check()?;
        }
    }

    fn note_wait(&self, waiter: TxnId, winner: TxnId) -> Noted<'_> {
        self.waits.lock().push((waiter, winner));
        Noted { vol: self, wait: (waiter, winner) }
    }

    /// Who waits for whose installation, or end, at this moment.
    pub fn waits(&self) -> Vec<(TxnId, TxnId)> {
        self.waits.lock().clone()
    }

    /// Waits for the installation in progress, if any, and keeps the next one out while the guard
    /// lives.  Installations never wait for a view, so this cannot deadlock.
    pub fn quiesce(&self) -> Guard<'_, ()> {
        self.install.lock()
    }

    /// Runs an installation: `objects` are about to change; `install` returns the stamps before and
    /// after.
    pub fn installing<T>(
        &self,
        objects: impl IntoIterator<Item = HostId>,
        install: impl FnOnce() -> (T, Vec<(Stamp, Stamp)>),
    ) -> T {
        let installing = self.start_installing(objects);
        let (result, moves) = install();
        installing.end(moves);
        result
    }

    /// Begins an installation. Of several volumes at once: always in the order of
    /// [`Volume::order`].
    pub fn start_installing(&self, objects: impl IntoIterator<Item = HostId>) -> Installing<'_> {
        let alone = self.install.lock_beside();
        self.objects.lock().installing.extend(objects);
        Installing { vol: self, _alone: alone }
    }

    /// Where this volume comes among others, wherever locks of several are taken at once.
    pub fn order(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Forgets own changes: only when no view exists.
    pub fn forget_history(&self) {
        let mut objects = self.objects.lock();
        objects.own = HashMap::new();
    }
}

/// A wait that is shown, as long as this lives.
struct Noted<'v> {
    vol: &'v Volume,
    wait: (TxnId, TxnId),
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut waits = self.vol.waits.lock();
        if let Some(at) = waits.iter().position(|wait| *wait == self.wait) {
            waits.swap_remove(at);
        }
    }
}

/// An installation under way, see [`Volume::start_installing`].
pub struct Installing<'v> {
    vol: &'v Volume,
    _alone: Guard<'v, ()>,
}

impl Installing<'_> {
    /// It is over; these are the stamps before and after.
    pub fn end(self, moves: Vec<(Stamp, Stamp)>) {
        self.vol.objects.lock().own.extend(moves);
    }
}

impl Drop for Installing<'_> {
    fn drop(&mut self) {
        self.vol.objects.lock().installing.clear();
    }
}

/// The errno of an I/O error; `EIO` where the error has none (the store's own checks).
pub fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_base::Time;

    fn stamp(ino: u64, secs: i64) -> Stamp {
        let time = Time { secs, nanos: 0 };
        Stamp::new(HostId::new(ino, Time::default()), time, time, 0)
    }

    #[test]
    fn a_version_is_followed_over_own_changes_but_not_to_an_inode_that_was_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(dir.path()).unwrap().into();
        let io = Arc::new(RealIo::from_dir(root).unwrap());
        let volume = Volume::new(io, Vec::new(), HashSet::new()).unwrap();
        let [a, b, c, d] = [stamp(1, 1), stamp(1, 2), stamp(2, 3), stamp(2, 4)];
        assert!(volume.is_own(a, a) && !volume.is_own(a, b));
        volume.installing([], || ((), vec![(a, b)]));
        assert!(volume.is_own(a, a) && volume.is_own(a, b) && !volume.is_own(b, a));
        volume.installing([], || ((), vec![(b, c), (c, d)]));
        assert_eq!(volume.current(a), d);
        assert!(volume.is_own(a, c) && volume.is_own(a, d));
        // The old inode is still there for whoever has it open, and is not what its name means.
        assert!(!volume.is_own(a, a) && !volume.is_own(a, b));
    }
}
