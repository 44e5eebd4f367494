//! A volume with all that works on it beside views: plain programs in guarded directories, commits
//! that are being published, snapshots that are open.
//!
//! A view knows none of this but as [`Neighbours`].

use crate::inode_locks::InodeLocks;
use crate::landing::Landing;
use crate::past::{self, Past};
use crate::publication::{Afterwards, Guarded, Marked};
use rustix::io::Errno;
use std::collections::HashSet;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use systx_base::TxnId;
use systx_base::sync::{Mutex, RwLock, rank};
use systx_store::Versions;
use systx_store::io::{Handle, HostId, Moments, Tree};
use systx_store::writeset::WriteSet;
use systx_vfs::api::Reply;
use systx_vfs::content::Spill;
use systx_vfs::neighbours::{Before, Hold, Neighbours, NotQuiet};
use systx_vfs::snapshot::Frozen;
use systx_vfs::volume::Volume;

mod landing;

/// See the module.  What is guarded is explained in `publication.rs`.
pub struct SharedVolume {
    vol: Arc<Volume>,
    pub(crate) guarded: Mutex<Vec<Arc<Guarded>>>,
    pub(crate) publishing: Mutex<()>,
    /// In the order in which they were decided; the last one may be on its way to that.
    pub(crate) marks: RwLock<Vec<Arc<Marked>>>,
    /// Whether there may be marks: a hint that spares looking.
    pub(crate) is_publishing: AtomicBool,
    /// How many plain requests are held by commits.
    pub(crate) held: AtomicUsize,
    pub(crate) afterwards: Afterwards,
    /// What open snapshots need of what has been changed since they began.
    pub past: Arc<Past>,
    /// Who keeps the past instead, where the store does.
    moments: Option<Arc<dyn Moments>>,
    /// Locks on inodes of guarded directories.
    pub(crate) inode_locks: Arc<InodeLocks>,
    /// Plain changes of names and attributes that the kernel may not know of yet.
    pub(crate) landing: Arc<Landing>,
    follower: OnceLock<Arc<dyn Follower>>,
}

/// Who is told of commits that no file system tells of.
pub trait Follower: Send + Sync {
    /// A commit has changed what is in these files, and everybody can see it.  Must not wait.
    fn changed(&self, files: &[HostId]);
}

impl Deref for SharedVolume {
    type Target = Volume;
    fn deref(&self) -> &Volume {
        &self.vol
    }
}

impl SharedVolume {
    /// Nothing is guarded yet.
    #[must_use]
    pub fn over(vol: Volume) -> SharedVolume {
        SharedVolume {
            vol: Arc::new(vol),
            guarded: Mutex::new(rank::LEAF, Vec::new()),
            publishing: Mutex::new(rank::PUBLICATION, ()),
            marks: RwLock::new(rank::MARKS, Vec::new()),
            is_publishing: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            afterwards: Afterwards::new(),
            past: Arc::new(Past::new()),
            moments: None,
            inode_locks: Arc::new(InodeLocks::new()),
            landing: Arc::new(Landing::new()),
            follower: OnceLock::new(),
        }
    }

    /// Its past is the store's to keep.
    #[must_use]
    pub fn with_moments(self, moments: Arc<dyn Moments>) -> SharedVolume {
        SharedVolume { moments: Some(moments), ..self }
    }

    /// Commits are told to `follower` from now on; the first call counts.
    pub fn tell_commits(&self, follower: Arc<dyn Follower>) {
        let _ = self.follower.set(follower);
    }

    /// A commit is over that has changed these files.
    pub(crate) fn tell_follower(&self, files: &[HostId]) {
        if let (Some(follower), false) = (self.follower.get(), files.is_empty()) {
            follower.changed(files);
        }
    }

    /// A snapshot of all guarded directories at one moment: between commits, and between plain
    /// requests.
    /// `None` if nothing is guarded.  What plain programs have stored in mappings is written back
    /// first, and writes in flight land. Old content that is too much for memory goes to `spill`.
    pub fn snapshot(&self, spill: Arc<dyn Spill>) -> Option<Frozen> {
        for guarded in self.guarded_now() {
            for (_, id) in guarded.writers.open_for_writing() {
                self.flush(None, id);
            }
        }
        let _no_commit = self.without_commits();
        let _no_request = self.marks.write();
        self.freeze(spill)
    }

    /// As [`SharedVolume::snapshot`].
    ///
    /// # Errors
    /// `EAGAIN`: it would have to wait: for a commit or a request under way, or for the write-back
    /// of a file that somebody has open for writing, who may have stored something in a mapping.
    pub fn try_snapshot(&self, spill: Arc<dyn Spill>) -> Reply<Option<Frozen>> {
        if self.guarded_now().iter().any(|g| !g.writers.open_for_writing().is_empty()) {
            return Err(Errno::AGAIN);
        }
        let _no_commit = self.publishing.try_lock().ok_or(Errno::AGAIN)?;
        let no_request = self.marks.try_write().ok_or(Errno::AGAIN)?;
        if !no_request.is_empty() {
            return Err(Errno::AGAIN);
        }
        Ok(self.freeze(spill))
    }

    /// With commits and requests kept out.
    fn freeze(&self, spill: Arc<dyn Spill>) -> Option<Frozen> {
        let roots = self.guarded_roots();
        if roots.is_empty() {
            return None;
        }
        if let Some(moments) = &self.moments {
            return Some(Frozen::of(moments.moment(), Arc::new(roots)));
        }
        // A past of ours is of descriptors.
        self.on_host()?;
        Some(past::frozen(Arc::clone(&self.tree), self.past.begin(spill), roots))
    }

    /// Before a decided commit is installed: keeps what open snapshots need of what it changes.
    pub fn keep_past(&self, writes: &WriteSet) {
        if !self.past.is_open() {
            return;
        }
        // Without it there are no snapshots.
        let Some(real) = self.on_host() else { return };
        match real.duplicate(&real.root()) {
            Ok(root) => self.past.keep_commit(writes, root),
            Err(error) => self.past.give_up(&error),
        }
    }
}

/// A collection takes a name of a file that has further ones: its change time moves, and whoever
/// has met it by another name has met the same file.  An open snapshot keeps it as it was.
impl Versions for SharedVolume {
    fn moves(&self, file: &Handle, change: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        let _no_commit = self.without_commits();
        let _no_request = self.marks.write();
        if self.past.is_open()
            && let Some(real) = self.on_host()
        {
            match real.duplicate(file) {
                Ok(file) => self.past.keep_attributes(file.as_fd()),
                Err(error) => self.past.give_up(&error),
            }
        }
        let before = self.tree.stat(file)?;
        self.installing([before.id], || {
            let changed = change();
            let after = self.tree.stat(file).ok();
            (changed, after.map(|after| (before.stamp(), after.stamp())).into_iter().collect())
        })
    }
}

impl Neighbours for SharedVolume {
    fn volume(&self) -> &Arc<Volume> {
        &self.vol
    }
    fn is_guarded(&self) -> bool {
        !self.guarded_now().is_empty()
    }
    fn guarded_roots(&self) -> HashSet<HostId> {
        SharedVolume::guarded_roots(self)
    }
    fn is_open(&self, id: HostId) -> bool {
        self.is_open_guarded(id)
    }
    fn still(&self) -> Box<dyn Hold + '_> {
        Box::new(self.marks.write())
    }
    fn keep_writers_out(&self, owner: TxnId, id: HostId) {
        SharedVolume::keep_writers_out(self, owner, id);
    }
    fn recorded(&self, owner: TxnId, id: HostId) {
        SharedVolume::recorded(self, owner, id);
    }
    fn let_writers_in(&self, owner: TxnId) {
        SharedVolume::let_writers_in(self, owner);
    }
    fn quiet(&self, owner: TxnId) -> Result<Box<dyn Hold + '_>, NotQuiet> {
        let locked = self.lock_written(owner, None)?;
        locked.flush();
        Ok(Box::new(locked))
    }
    fn flush(&self, owner: TxnId, id: HostId) -> bool {
        SharedVolume::flush(self, Some(owner), id)
    }
    fn land_seen(&self, owner: TxnId, before: Before) {
        SharedVolume::land_seen(self, owner, before);
    }
    fn shown(&self, id: HostId, dir: &[u8], name: &[u8]) -> Reply<Option<OwnedFd>> {
        SharedVolume::shown(self, id, dir, name)
    }
    fn keeps_locks(&self) -> bool {
        self.guarded_now().iter().any(|guarded| guarded.writers.keeps_locks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_store::real::RealIo;

    struct Nowhere;

    impl Spill for Nowhere {
        fn stage(&self) -> std::io::Result<systx_vfs::content::Slot> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_snapshot_that_does_not_wait_fails_while_a_commit_or_a_request_is_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(dir.path()).unwrap().into();
        let io = Arc::new(RealIo::from_dir(root).unwrap());
        let volume =
            Arc::new(SharedVolume::over(Volume::new(io, Vec::new(), HashSet::new()).unwrap()));
        let refused = || {
            let attempt = || volume.try_snapshot(Arc::new(Nowhere)).err();
            std::thread::scope(|s| s.spawn(attempt).join().unwrap())
        };
        let commit = volume.publishing.lock();
        assert_eq!(refused(), Some(Errno::AGAIN));
        drop(commit);
        let request = volume.marks.read();
        assert_eq!(refused(), Some(Errno::AGAIN));
        drop(request);
        let mut decided = volume.publish(TxnId(1), &WriteSet::default());
        decided.decide(|| Ok::<(), ()>(())).unwrap();
        decided.let_next();
        assert_eq!(refused(), Some(Errno::AGAIN));
        drop(decided);
        assert_eq!(refused(), None);
    }
}
