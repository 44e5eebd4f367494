//! A mount that this process serves itself: where it is, how it goes, and its connection.

use crate::fuse_mount::FS_TYPE;
use crate::fusermount;
use crate::holders::{self, Bypass};
use crate::mounts::{self, Along, Mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use systx_base::sync::{Mutex, rank};
use systx_fuse::Connection;

/// How long a cut-off of a mount in use waits for pages that programs dirtied through mappings.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

/// Ends the connection at once, so that whoever has something open gets `ENOTCONN`, and takes the
/// mount away. (Without `FORCE` the kernel ends it when the last descriptor of the device is gone,
/// which may take a moment longer than the process that had it.)
pub(crate) const CUT_OFF: UnmountFlags =
    UnmountFlags::FORCE.union(UnmountFlags::DETACH).union(UnmountFlags::NOFOLLOW);

/// Where the kernel has its connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Where a mount is.
pub struct ServedMount {
    /// Where it was mounted.
    pub dir: PathBuf,
    /// `st_dev` of what is seen through it.
    pub dev: u64,
    /// Its id.
    pub mount: u64,
}

impl ServedMount {
    /// Whether this mount of a table is it. The kernel gives the id of a mount that is gone to the
    /// next one, while the service of this one may go on for another mount namespace; no other
    /// mount has its id and its device meanwhile.
    pub(crate) fn is(&self, mount: &Mount) -> bool {
        (mount.dev, mount.id) == (self.dev, self.mount)
    }

    /// Whether what was looked at, with the id of its mount, is in it.
    pub(crate) fn has(&self, seen: &Statx) -> bool {
        numbers(seen) == (self.dev, self.mount)
    }

    /// Where its mount is now: somebody may have renamed a directory above it. `None`: nowhere
    /// here.
    pub(crate) fn place(&self) -> Option<PathBuf> {
        let table = mounts::here().unwrap_or_default();
        table.into_iter().find(|m| self.is(m)).map(|m| m.at)
    }

    /// Unmounts it if nobody uses it.
    ///
    /// # Errors
    /// `EBUSY`; `EINVAL` if something else is mounted over it.
    pub(crate) fn unmount(&self) -> Result<(), Errno> {
        match self.exposed()? {
            Some(at) => take_off(&at, UnmountFlags::NOFOLLOW),
            None => Ok(()),
        }
    }

    /// Where else it is mounted, in other mount namespaces.
    pub(crate) fn elsewhere(&self) -> Vec<(u64, Bypass)> {
        holders::elsewhere(self.dev)
    }

    /// Where it is mounted still, of where it was before it was unmounted here and its service
    /// ended: sentences.
    pub(crate) fn left_notes(&self, before: &[(u64, Bypass)]) -> Vec<String> {
        if before.is_empty() {
            return Vec::new();
        }
        let mut left = self.elsewhere();
        // Its device number may be another one's by now.
        left.retain(|(id, _)| before.iter().any(|(earlier, _)| earlier == id));
        let note = |(_, Bypass { seen_by, at }): (u64, Bypass)| {
            let ((pid, command), at) = (seen_by?, at.display());
            Some(format!(
                "it is still mounted in the mount namespace of process {pid} ({command}), on {at}: \
                 there it answers with errors, until nsenter -m -t {pid} umount {at}"
            ))
        };
        left.into_iter().filter_map(note).collect()
    }

    /// Unmounts it whoever uses it. What was written through shared mappings is saved first, if
    /// that can be had soon.
    ///
    /// # Errors
    /// `EINVAL` if something else is mounted over it.
    pub(crate) fn detach(&self) -> Result<(), Errno> {
        let Some(at) = self.exposed()? else { return Ok(()) };
        if !self.sync_within(&at, SYNC_LIMIT) {
            tracing::warn!(dir = ?at, "not all mapped pages were written back");
        }
        for copy in self.copies().iter().rev() {
            match unmount(copy, CUT_OFF) {
                // Root's, made of a user's mount; it shows nothing when the connection has ended.
                Err(Errno::PERM) => {}
                done => done?,
            }
        }
        take_off(&at, CUT_OFF)
    }

    /// Where else here its content is mounted, in a mount that does not go with this one.
    pub(crate) fn copies(&self) -> Vec<PathBuf> {
        let table = mounts::here().unwrap_or_default();
        let own = table.iter().find(|m| self.is(m));
        let along = own.and_then(|own| Along::with(own, &table, table.iter()));
        let goes = |m: &Mount| along.as_ref().is_some_and(|along| along.has(m, &table));
        let other = |m: &&Mount| m.dev == self.dev && m.id != self.mount && !goes(m);
        table.iter().filter(other).map(|m| m.at.clone()).collect()
    }

    /// The path that leads to this mount.
    fn exposed(&self) -> Result<Option<PathBuf>, Errno> {
        let Some(at) = self.place() else { return Ok(None) };
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
        let top = rustix::fs::statx(CWD, &at, flags, StatxFlags::MNT_ID)?;
        if self.has(&top) { Ok(Some(at)) } else { Err(Errno::INVAL) }
    }

    /// Its root, through the mount itself.  For a moment only: as long as that is open, nobody can
    /// unmount it.
    pub(crate) fn open_root(&self) -> Result<OwnedFd, Errno> {
        self.root_as(OFlags::RDONLY)
    }

    /// What has this path in it (`O_PATH`), without symbolic links; an empty one: its root.
    pub(crate) fn reach(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let root = self.root_as(OFlags::PATH)?;
        if path.is_empty() {
            return Ok(root);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
        openat2(root, path, flags, Mode::empty(), how)
    }

    fn root_as(&self, how: OFlags) -> Result<OwnedFd, Errno> {
        let open = |at: &Path| {
            let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let root = rustix::fs::open(at, flags, Mode::empty())?;
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let seen = rustix::fs::statx(&root, "", flags, StatxFlags::MNT_ID)?;
            if self.has(&seen) { Ok(root) } else { Err(Errno::INVAL) }
        };
        open(&self.dir).or_else(|_| open(&self.exposed()?.ok_or(Errno::NODEV)?))
    }

    /// In a thread, because it goes through the mount itself.
    fn sync_within(&self, at: &Path, limit: Duration) -> bool {
        let (done, wait) = channel();
        let at = at.to_owned();
        let syncing = std::thread::Builder::new().name("sync".into()).spawn(move || {
            let synced = open_dir(CWD, &at).and_then(rustix::fs::syncfs);
            let _ = done.send(synced.is_ok());
        });
        syncing.is_ok() && wait.recv_timeout(limit).unwrap_or(false)
    }
}

/// The service of a mount, until it is ended.
pub(crate) struct Serving(Mutex<Option<On>>);

struct On {
    connection: Arc<Connection>,
    /// Ends when the watching thread has let go of the connection.
    watched: Option<Receiver<()>>,
}

impl Serving {
    pub fn new(connection: Connection) -> Serving {
        let on = On { connection: Arc::new(connection), watched: None };
        Serving(Mutex::new(rank::LEAF, Some(on)))
    }

    /// The connection with the kernel, while there is one.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        self.0.lock().as_ref().map(|on| Arc::clone(&on.connection))
    }

    /// Whether nobody has ended it.
    pub fn is_on(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Calls `ended` in a thread when the connection has ended.
    pub fn watch(&self, dir: &Path, ended: impl FnOnce() + Send + 'static) {
        let (alive, watched): (Sender<()>, _) = channel();
        let Some(connection) = self.connection() else { return };
        if let Some(on) = &mut *self.0.lock() {
            on.watched = Some(watched);
        }
        let watching = std::thread::Builder::new().name("guard".into()).spawn(move || {
            connection.wait();
            drop(connection);
            drop(alive);
            ended();
        });
        if let Err(e) = watching {
            tracing::error!(?dir, "no thread to watch a mount: {e}");
        }
    }

    /// Ends it: whoever has something open gets `ENOTCONN` from now on.
    pub fn end(&self) {
        let on = self.0.lock().take();
        if let Some(On { connection, watched }) = on {
            connection.stop();
            drop(connection);
            // The watching thread holds the connection too, and with it the descriptor.
            let _ = watched.map(|w| w.recv());
        }
    }
}

/// A directory, for reading.
pub(crate) fn open_dir(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

/// Device and mount id, without a request to the server.
pub(crate) fn identity(mount: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(numbers(&rustix::fs::statx(mount, "", flags, StatxFlags::MNT_ID)?))
}

/// Device and mount id of what was looked at.
fn numbers(seen: &Statx) -> (u64, u64) {
    (rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor), seen.stx_mnt_id)
}

/// Puts a mount over a directory.
pub(crate) fn put_over(mount: &OwnedFd, directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", directory, "", how)
}

/// Puts a mount in the place of the dead one that is seen at `dir`: under its cover where the
/// kernel can do that (Linux 6.5), so that nobody gets past the guard meanwhile.
pub(crate) fn put_under(mount: &OwnedFd, dir: &Path) -> Result<(), Errno> {
    let away = || if is_ours_at(dir) { unmount(dir, CUT_OFF) } else { Err(Errno::NOENT) };
    let beneath = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    match move_mount(mount, "", CWD, dir, beneath) {
        Ok(()) => away(),
        Err(e) => {
            tracing::info!("no mount beneath another here ({e}): there is a gap");
            away()?;
            move_mount(mount, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        }
    }
}

/// Removes dead mounts of ours from a directory, but for the last `leave`. Nothing is asked of
/// them.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn clear_away(dir: &Path, leave: usize) -> Result<(), Errno> {
    loop {
        let table = mounts::here().unwrap_or_default();
        let ours = table.iter().filter(|m| m.at == dir && m.fs == FS_TYPE).count();
        if ours <= leave || !is_ours_at(dir) {
            return Ok(());
        }
        take_off(dir, CUT_OFF)?;
    }
}

/// Unmounts what is seen at a path; a mount of an ordinary user's by fusermount3, which does not
/// end the connection: whoever serves it does.
pub(crate) fn take_off(at: &Path, how: UnmountFlags) -> Result<(), Errno> {
    match unmount(at, how) {
        Err(Errno::PERM) => {}
        done => return done,
    }
    fusermount::unmount(at, how.contains(UnmountFlags::DETACH)).map_err(|e| {
        if e.kind() == io::ErrorKind::ResourceBusy {
            return Errno::BUSY;
        }
        tracing::warn!(?at, "cannot be unmounted: {e}");
        Errno::PERM
    })
}

/// Ends the connection of the mount that is seen at a path; the mount stays, dead.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn cut_off(at: &Path) -> io::Result<()> {
    // Held, it cannot be unmounted: only the connection ends.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::open(at, flags, Mode::empty());
    match unmount(at, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => Ok(()),
        // The kernel has a file for the user whose mount it is. It answers so too where nothing is
        // mounted any more, and the device there may have the number of another connection.
        Err(Errno::PERM) => {
            let held = held?;
            let (dev, id) = identity(held.as_fd())?;
            if !is_ours(id, at) {
                return Err(io::Error::other("nothing of ours is mounted there"));
            }
            std::fs::write(format!("{CONNECTIONS}/{}/abort", rustix::fs::minor(dev)), "1")
        }
        Ok(()) => Err(io::Error::other("it could not be held, and is unmounted")),
        Err(e) => Err(e.into()),
    }
}

/// Whether what is seen at a path is a mount of this program's type.
pub(crate) fn is_ours_at(dir: &Path) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let Ok(top) = rustix::fs::statx(CWD, dir, flags, StatxFlags::MNT_ID) else { return false };
    is_ours(top.stx_mnt_id, dir)
}

/// Whether the mount with this id is at this path, and of this program's type.
pub(crate) fn is_ours(id: u64, at: &Path) -> bool {
    let table = mounts::here().unwrap_or_default();
    table.iter().any(|m| m.id == id && m.at == at && m.fs == FS_TYPE)
}
