//! The daemon's side of the protocol as a trait.

use super::{
    Attach, Attached, Begin, BeginOpen, Begun, BegunOpen, Change, Collected, Conflict, Content,
    Deferred, Entered, Failure, Finish, Gc, GuardedDir, HostPath, Inspected, Listed, LogEntry,
    Mount, MountVolume, Mounted, MountedVolume, Outcome, Place, Protect, Protection, Recovered,
    Settle, Snapshots, Status, Target, Umount, Undo, Undone, Unmounted, Version, VolumeActivity,
    VolumeSnapshot,
};
use std::os::fd::OwnedFd;
use systx_base::TxnId;

/// The process at the other end, as the kernel vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id, in the daemon's pid namespace; 0 if it is not in it.
    pub pid: u32,
    /// User id: the daemon's own, or that of a guest (`crate::guests`).
    pub uid: u32,
}

/// Tells a client that its transaction lost.
#[derive(Debug)]
pub struct Doorbell(pub OwnedFd);

impl Doorbell {
    /// Rings.  Never blocks, may be called with any lock held, any number of times.
    pub fn ring(&self) {
        // An eventfd refuses only when its counter is full: then it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The daemon's side.  Methods are called from one thread per connection, concurrently; each may
/// take as long as it needs.
pub trait Control: Send + Sync {
    /// Begins a transaction.  `doorbell` is rung when it has lost.
    ///
    /// # Errors
    /// The volume or its store cannot be used.
    fn begin(&self, peer: Peer, begin: Begin, doorbell: Doorbell) -> Result<Begun, Failure>;
    /// Begins a transaction that belongs to no client and has a path.
    ///
    /// # Errors
    /// The volume or its store cannot be used, or the view cannot be mounted.
    fn begin_open(&self, peer: Peer, begin: BeginOpen) -> Result<BegunOpen, Failure>;
    /// Serves the view over `fuse`.  For a run, and for a visit after [`Control::enter`].
    ///
    /// # Errors
    /// The kernel does not speak a FUSE that we can use, or the transaction is not there.
    fn attach(&self, attach: Attach, fuse: OwnedFd) -> Result<Attached, Failure>;
    /// Ends a run.  The view is no longer used by anyone.
    ///
    /// # Errors
    /// The transaction is not there.  Reasons not to commit are outcomes.
    fn finish(&self, finish: Finish) -> Result<Outcome, Failure>;
    /// Why the transaction lost, if it did.
    ///
    /// # Errors
    /// The transaction is not there.
    fn doom(&self, id: TxnId) -> Result<Option<Conflict>, Failure>;
    /// Waits until the transaction has ended or `limit_ms` passed; true if it has ended.
    ///
    /// # Errors
    /// None that matters: an unknown transaction has ended.
    fn wait_for(&self, id: TxnId, limit_ms: u64) -> Result<bool, Failure>;
    /// Every open transaction.
    ///
    /// # Errors
    /// Internal faults only.
    fn list(&self) -> Result<Vec<Listed>, Failure>;
    /// What goes on, volume by volume.
    ///
    /// # Errors
    /// Internal faults only.
    fn top(&self) -> Result<Vec<VolumeActivity>, Failure>;
    /// One open transaction.
    ///
    /// # Errors
    /// The transaction is not there.
    fn status(&self, id: TxnId) -> Result<Status, Failure>;
    /// What changed, sorted by path.
    ///
    /// # Errors
    /// The transaction is not there, a path is outside the volume.
    fn diff(&self, target: Target, paths: Vec<HostPath>) -> Result<Vec<Change>, Failure>;
    /// Content of a regular file that changed, before or after.
    ///
    /// # Errors
    /// The transaction is not there, the path is not one of its changes, I/O.
    fn content(
        &self,
        target: Target,
        path: HostPath,
        version: Version,
        limit: u64,
    ) -> Result<Content, Failure>;
    /// Commits a kept transaction, or the part of it below `paths` (a new transaction with the
    /// same reads; the rest stays kept).
    ///
    /// # Errors
    /// It is not there, it still runs, a path is outside the volume or does not name a change.
    fn commit(&self, id: TxnId, paths: Vec<HostPath>) -> Result<Outcome, Failure>;
    /// Drops an open transaction, for `peer`, whom its owner is told of; a running one is doomed
    /// and its processes are ended.
    ///
    /// # Errors
    /// It is not there, or it was decided already.
    fn abort(&self, peer: Peer, id: TxnId) -> Result<Outcome, Failure>;
    /// Begins a visit to a kept or running transaction.
    ///
    /// # Errors
    /// It is not there, or it is being committed.
    fn enter(&self, peer: Peer, id: TxnId) -> Result<Entered, Failure>;
    /// Ends a visit that was begun with [`Control::enter`] and had its own view.
    ///
    /// # Errors
    /// The transaction is not there.
    fn leave(&self, id: TxnId) -> Result<(), Failure>;
    /// Committed transactions, the latest first; of those that changed something at one of the
    /// paths, if there are some.
    ///
    /// # Errors
    /// The store cannot be used.
    fn log(
        &self,
        place: Place,
        limit: Option<u64>,
        paths: Vec<HostPath>,
    ) -> Result<Vec<LogEntry>, Failure>;
    /// What committed transactions wanted done outside, and nobody has done yet; on all open
    /// volumes, if `None`.
    ///
    /// # Errors
    /// The store cannot be used.
    fn deferred(&self, place: Option<Place>) -> Result<Vec<Deferred>, Failure>;
    /// Some of it was done, or is not wanted any more.
    ///
    /// # Errors
    /// The store cannot be used.
    fn settle(&self, settle: Settle) -> Result<(), Failure>;
    /// Undoes a committed transaction, as a new transaction.
    ///
    /// # Errors
    /// It is not there, cannot be undone any more, or later changes overlap.
    fn undo(&self, peer: Peer, undo: Undo) -> Result<Undone, Failure>;
    /// Undoes an undo.
    ///
    /// # Errors
    /// As [`Control::undo`].
    fn redo(&self, peer: Peer, undo: Undo) -> Result<Undone, Failure>;
    /// Finishes or discards what a crash left in the store of `place`; `trusted`: also in one that
    /// this machine does not know.
    ///
    /// # Errors
    /// The store cannot be used.
    fn recover(&self, place: Place, trusted: bool) -> Result<Recovered, Failure>;
    /// Bounds the space of a store.
    ///
    /// # Errors
    /// The store cannot be used.
    fn gc(&self, gc: Gc) -> Result<Collected, Failure>;
    /// Facts about a volume for `doctor`.
    ///
    /// # Errors
    /// The volume cannot be used.
    fn inspect(&self, place: Place) -> Result<Inspected, Failure>;
    /// Guards a directory: from now on every process that opens through its path goes through the
    /// daemon.
    ///
    /// # Errors
    /// It cannot be guarded (not root, not a directory, guarded already, ...).
    fn mount(&self, peer: Peer, mount: Mount) -> Result<Mounted, Failure>;
    /// Ends that.
    ///
    /// # Errors
    /// It is not guarded, or cannot be unmounted.
    fn umount(&self, peer: Peer, umount: Umount) -> Result<Unmounted, Failure>;
    /// The guarded directories.
    ///
    /// # Errors
    /// Internal faults only.
    fn guarded(&self) -> Result<Vec<GuardedDir>, Failure>;
    /// Mounts a log-structured volume, or a snapshot of one.
    ///
    /// # Errors
    /// It is none, is mounted already, is damaged, or cannot be mounted there; there is no such
    /// snapshot.
    fn mount_volume(&self, peer: Peer, mount: MountVolume) -> Result<MountedVolume, Failure>;
    /// The log-structured volumes that are mounted.
    ///
    /// # Errors
    /// Internal faults only.
    fn volumes(&self) -> Result<Vec<MountedVolume>, Failure>;
    /// The snapshots of a volume that is mounted, oldest first, after a change to them.
    ///
    /// # Errors
    /// It is not mounted; the name is taken, not there, in use, or cannot be one; no space.
    fn snapshots(&self, snapshots: Snapshots) -> Result<Vec<VolumeSnapshot>, Failure>;
    /// Whether something is protected, after a change of that for the transactions that begin
    /// from then on.
    ///
    /// # Errors
    /// There is nothing, it cannot be left unprotected, or it is so with a directory above it.
    fn protect(&self, peer: Peer, protect: Protect) -> Result<Vec<Protection>, Failure>;
    /// The client that began this run, or a visit to it, is gone without ending it: end what
    /// still runs in its view; a run aborts, a visited transaction stays kept.
    fn client_gone(&self, id: TxnId);
    /// True while nothing is open, guarded or mounted: the daemon may exit.
    fn idle(&self) -> bool;
    /// The daemon is about to exit: abort what is open, unmount what is guarded, close the stores.
    fn shutdown(&self);
}
