//! One guarded directory: a plain view of it, mounted over it.
//!
//! The directory is opened first and mounted over then, so that every path to it leads through the
//! mount and only that descriptor leads below. The mount is served before it is anywhere, so nobody
//! ever waits for its first answer. The descriptor of /dev/fuse is in this process alone: with the
//! process the connection ends, and everything that was opened through it answers `ENOTCONN`.

use crate::fuse_mount::{self, FS_TYPE};
use crate::in_line::Waiting;
use crate::protocol::{
    Failure, FailureKind, GuardedAt, GuardedDir, Holder, HostPath, Policy, ThreadActivity,
    Transport,
};
use crate::strays::Strays;
use crate::transports;
use crate::volume::{Location, OpenVolume};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MoveMountFlags, UnmountFlags, move_mount, unmount};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};
use systx_fuse::{Config, Connection, FileLocks};
use systx_store::Lease;
use systx_txn::Engine;
use systx_vfs::aliases::{Aliases, Control, Seat};
use systx_vfs::inode_locks::writers::Writing;
use systx_vfs::plain::{Order, Plain};
use systx_vfs::publication;

/// How long a cut-off of a directory in use waits for pages that programs dirtied through mappings.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

/// Ends the connection at once, so that whoever has something open gets `ENOTCONN`, and takes the
/// mount away. (Without `FORCE` the kernel ends it when the last descriptor of the device is gone,
/// which may take a moment longer than the process that had it.)
const CUT_OFF: UnmountFlags =
    UnmountFlags::FORCE.union(UnmountFlags::DETACH).union(UnmountFlags::NOFOLLOW);

/// A guarded directory.
pub struct Guarded {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// Where it lies.
    pub location: Location,
    /// `st_dev` of what is below the mount.
    pub dev: u64,
    /// Id of the mount.
    pub mount: u64,
    /// The directory below.
    pub backing: OwnedFd,
    /// View 0.
    pub plain: Arc<Plain>,
    /// View 0 as the kernel sees it: with the alias roots of threads.
    pub aliases: Arc<Aliases>,
    /// How it is served.
    pub transport: Transport,
    /// What is done about conflicts.
    pub(crate) conflicts: Conflicts,
    /// What the user should know.
    pub(crate) found: Found,
    desk: OnceLock<Arc<dyn Desk>>,
    serving: Mutex<Option<Serving>>,
    /// As commits know it.
    published: Mutex<Option<Arc<publication::Guarded>>>,
    /// Nobody else commits there meanwhile.
    _store: Lease,
}

/// What serves the threads that use a guarded directory.
pub(crate) trait Desk: Control {
    /// Who of the transactions with these ids, which are in line, begins here, with the command.
    fn waiting(&self, ids: &[TxnId]) -> Vec<(Waiting, Vec<HostPath>)>;
    /// The threads that have had a transaction here.
    fn threads(&self, engine: &Engine) -> Vec<ThreadActivity>;
    /// Threads whose transactions have lost hear of it, and what is left of those that are over
    /// goes.
    fn look_round(&self);
    /// Ends all seats: the directory is not served any more.
    fn close_all(&self);
}

/// Makes the desk of a directory that is mounted already.
pub(crate) type MakeDesk =
    Box<dyn FnOnce(&Arc<OpenVolume>, &Arc<Guarded>, Strays) -> Arc<dyn Desk>>;

struct Serving {
    connection: Arc<Connection>,
    /// Ends when the watching thread has let go of the connection.
    watched: Option<Receiver<()>>,
}

/// Called before the first request of a program comes.
fn register(volume: &Arc<OpenVolume>, guarded: &Arc<Guarded>) {
    volume.add_guarded(Arc::clone(guarded));
    let Some(connection) = guarded.connection() else { return };
    let this = Arc::downgrade(guarded);
    let root = move || this.upgrade().ok_or(Errno::NODEV)?.open_root();
    let caches = Arc::new(connection.caches(root));
    let published = Arc::new(publication::Guarded {
        plain: Arc::clone(&guarded.plain),
        caches,
        stall: guarded.conflicts.stall,
    });
    volume.vol.guard(Arc::clone(&published));
    *guarded.published.lock() = Some(published);
}

/// Called when no further request will come, and before the connection ends.
fn unregister(volume: &Arc<OpenVolume>, guarded: &Arc<Guarded>) {
    let published = guarded.published.lock().take();
    if let Some(published) = published {
        volume.vol.unguard(&published);
    }
    volume.remove_guarded(guarded);
}

/// What the kernel may believe, and for how long: everything until it is told otherwise, by a
/// commit.
fn config(transport: Transport, fast_open: bool) -> Config {
    let locks = if fast_open { FileLocks::Kernel } else { FileLocks::ViewToldOfClose };
    Config { transport: transports::of_server(transport), locks, shared: true, ..Config::default() }
}

/// What is done in a guarded directory about conflicts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflicts {
    /// How long a plain change may be held for a transaction.
    pub stall: Duration,
    /// Who wins.
    pub policy: Policy,
}

impl Conflicts {
    pub(crate) fn new(stall_ms: u64, policy: Policy) -> Conflicts {
        Conflicts { stall: Duration::from_millis(stall_ms), policy }
    }
}

/// What a directory is guarded with.
pub(crate) struct Wanted<'a> {
    /// Where: absolute, without symbolic links.
    pub dir: &'a Path,
    /// Inode and device number of the directory that is meant, whatever happens to its path
    /// meanwhile.
    pub identity: (u64, u64),
    pub volume: &'a Arc<OpenVolume>,
    pub transport: Transport,
    /// What is done about conflicts.
    pub conflicts: Conflicts,
    /// Transactions of threads are seen by routing; where the list of them is kept, if anywhere.
    pub routed: Option<Option<PathBuf>>,
    /// Opens make no messages.
    pub fast_open: bool,
    pub past: Vec<Holder>,
    pub notes: Vec<String>,
    /// A dead mount of ours lies over the directory, and gives way.
    pub replaces: Option<Replaced>,
    /// What serves its threads.
    pub desk: MakeDesk,
}

/// A dead mount that is to be replaced, and the directory below it.
pub(crate) struct Replaced {
    pub backing: OwnedFd,
}

/// What was found as a directory was guarded.
pub(crate) struct Found {
    /// Who held something below it from before.
    pub past: Vec<Holder>,
    /// Sentences.
    pub notes: Vec<String>,
}

/// The directory that is guarded, and no other.
fn backing(dir: &Path, meant: (u64, u64), replaces: Option<&Replaced>) -> Result<OwnedFd, Failure> {
    let backing = match replaces {
        Some(replaced) => open_dir(replaced.backing.as_fd(), Path::new(".")),
        None => open_dir(CWD, dir),
    };
    let backing = backing.map_err(|e| refusal(dir, "open", e))?;
    let found = rustix::fs::fstat(&backing).map_err(|e| refusal(dir, "look at", e))?;
    if (found.st_ino, found.st_dev) != meant {
        let text = format!("{} is another directory than it was", dir.display());
        return Err(Failure::new(FailureKind::State, text).path(dir));
    }
    Ok(backing)
}

impl Guarded {
    /// Mounts it.
    ///
    /// # Errors
    /// The kernel refuses, or the directory cannot be read.
    pub(crate) fn over(wanted: Wanted<'_>) -> Result<Arc<Guarded>, Failure> {
        let Wanted { dir, identity: meant, volume, transport, conflicts, past, .. } = wanted;
        let Wanted { routed, fast_open, notes, replaces, desk, .. } = wanted;
        let refused = |what: &'static str| move |e| refusal(dir, what, e);
        let backing = backing(dir, meant, replaces.as_ref())?;
        let root = open_dir(backing.as_fd(), Path::new(".")).map_err(refused("open"))?;
        let store = volume.lasting()?;
        let hidden = HashSet::from_iter(store.own_object());
        let order = if routed.is_some() { Order::of_routed } else { Order::new };
        let order = Arc::new(order(Arc::clone(&volume.vol), conflicts.stall));
        let plain = Plain::new(root, hidden, order).map_err(refused("look at"))?;
        let plain = Arc::new(if fast_open { plain.untold() } else { plain });
        let (mount, device) =
            detached_mount(backing.as_fd()).map_err(refused("make a mount for"))?;
        let (dev, id) = identity(mount.as_fd()).map_err(refused("look at the mount of"))?;
        let aliases = if routed.is_some() { Aliases::routed } else { Aliases::new };
        let aliases = Arc::new(aliases(Arc::clone(&plain)));
        let (strays, found) = match &routed {
            Some(Some(path)) => Strays::load(path),
            _ => Default::default(),
        };
        found.into_iter().for_each(|rider| aliases.strand(rider));
        let connection = systx_fuse::serve(device, aliases.clone(), config(transport, fast_open));
        let connection = connection.map_err(|e| {
            let text = format!("cannot serve {}: {e}", dir.display());
            Failure::new(FailureKind::Unsupported, text)
                .hint("`systx doctor` shows what this kernel offers")
        })?;
        let transport = transports::of(&connection);
        let serving = Serving { connection: Arc::new(connection), watched: None };
        let guarded = Arc::new(Guarded {
            dir: dir.to_owned(),
            location: volume.location.clone(),
            dev,
            mount: id,
            backing,
            plain,
            aliases,
            transport,
            conflicts,
            found: Found { past, notes },
            desk: OnceLock::new(),
            serving: Mutex::new(rank::LEAF, Some(serving)),
            published: Mutex::new(rank::LEAF, None),
            _store: store,
        });
        if fast_open && let Err(e) = learn_opens(mount.as_fd()) {
            guarded.end(volume);
            let text = format!("cannot guard {} with --fast-open: {e}", dir.display());
            return Err(Failure::new(FailureKind::Unsupported, text).path(dir).hint(
                "the kernel has to give leases on files of FUSE (/proc/sys/fs/leases-enable), which tell who writes; without the \
                 option they are not needed",
            ));
        }
        register(volume, &guarded);
        let desk = desk(volume, &guarded, strays);
        guarded.aliases.set_control(desk.clone());
        let _ = guarded.desk.set(desk);
        let put = match replaces {
            Some(_) => put_under(&mount, dir),
            None => put_over(&mount, guarded.backing.as_fd()),
        };
        if let Err(e) = put {
            guarded.end(volume);
            return Err(refused("mount over")(e));
        }
        Ok(guarded)
    }

    /// Its connection with the kernel, while it has one.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        self.serving.lock().as_ref().map(|s| Arc::clone(&s.connection))
    }

    /// The thread of a seat has ended.
    pub(crate) fn desk_closes(&self, seat: Seat) {
        if let Some(desk) = self.desk.get() {
            desk.vacated(seat);
        }
    }

    /// Who is in line to begin here, see [`Desk::waiting`].
    pub(crate) fn waiting(&self, ids: &[TxnId]) -> Vec<(Waiting, Vec<HostPath>)> {
        self.desk.get().map(|desk| desk.waiting(ids)).unwrap_or_default()
    }

    /// See [`Desk::threads`].
    pub(crate) fn threads(&self, engine: &Engine) -> Vec<ThreadActivity> {
        self.desk.get().map(|desk| desk.threads(engine)).unwrap_or_default()
    }

    /// Threads whose transactions have lost hear of it, and what is left of those that are over
    /// goes.
    pub(crate) fn desk_looks_round(&self) {
        if let Some(desk) = self.desk.get() {
            desk.look_round();
        }
    }

    /// Calls `ended` in a thread if the connection ends and nobody here has asked for it.
    pub(crate) fn watch(self: &Arc<Self>, ended: impl FnOnce(&Arc<Guarded>) + Send + 'static) {
        let (alive, watched): (Sender<()>, _) = channel();
        let Some(connection) = self.connection() else { return };
        if let Some(serving) = &mut *self.serving.lock() {
            serving.watched = Some(watched);
        }
        let guarded = Arc::downgrade(self);
        let watching = std::thread::Builder::new().name("guard".into()).spawn(move || {
            connection.wait();
            drop(connection);
            drop(alive);
            let still = |g: &Arc<Guarded>| g.serving.lock().is_some();
            if let Some(guarded) = Weak::upgrade(&guarded).filter(still) {
                ended(&guarded);
            }
        });
        if let Err(e) = watching {
            tracing::error!(dir = ?self.dir, "no thread to watch a guarded directory: {e}");
        }
    }

    /// Where its mount is now: somebody may have renamed a directory above it. `None`: nowhere
    /// here.
    pub(crate) fn place(&self) -> Option<PathBuf> {
        let table = crate::mounts::here().unwrap_or_default();
        table.into_iter().find(|m| m.id == self.mount).map(|m| m.at)
    }

    /// Unmounts it if nobody uses it.
    ///
    /// # Errors
    /// `EBUSY`; `EINVAL` if something else is mounted over it.
    pub(crate) fn unmount(&self) -> Result<(), Errno> {
        match self.exposed()? {
            Some(at) => unmount(&at, UnmountFlags::NOFOLLOW),
            None => Ok(()),
        }
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
            unmount(copy, CUT_OFF)?;
        }
        unmount(&at, CUT_OFF)
    }

    /// Where else here its content is mounted, in a mount that does not go with this one.
    pub(crate) fn copies(&self) -> Vec<PathBuf> {
        let table = crate::mounts::here().unwrap_or_default();
        let group = table.iter().find(|m| m.id == self.mount).and_then(|m| m.shared);
        let other = |m: &crate::mounts::Mount| {
            m.dev == self.dev && m.id != self.mount && (group.is_none() || m.shared != group)
        };
        table.into_iter().filter(other).map(|m| m.at).collect()
    }

    /// The path that leads to this mount.
    fn exposed(&self) -> Result<Option<PathBuf>, Errno> {
        let Some(at) = self.place() else { return Ok(None) };
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
        let top = rustix::fs::statx(CWD, &at, flags, StatxFlags::MNT_ID)?;
        if top.stx_mnt_id == self.mount { Ok(Some(at)) } else { Err(Errno::INVAL) }
    }

    /// Its root, through the mount itself.  For a moment only: as long as that is open, nobody can
    /// unmount it.
    fn open_root(&self) -> Result<OwnedFd, Errno> {
        let open = |at: &Path| {
            let root = open_dir(CWD, at)?;
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let seen = rustix::fs::statx(&root, "", flags, StatxFlags::MNT_ID)?;
            if seen.stx_mnt_id == self.mount { Ok(root) } else { Err(Errno::INVAL) }
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

    /// Ends its service: whoever still has it open gets `ENOTCONN` from now on.
    pub(crate) fn end(self: &Arc<Self>, volume: &Arc<OpenVolume>) {
        unregister(volume, self);
        if let Some(desk) = self.desk.get() {
            desk.close_all();
        }
        let serving = self.serving.lock().take();
        if let Some(Serving { connection, watched }) = serving {
            connection.stop();
            drop(connection);
            // The watching thread holds the connection too, and with it the descriptor.
            let _ = watched.map(|w| w.recv());
        }
    }

    /// As listings show it.
    pub(crate) fn listed(&self) -> GuardedDir {
        GuardedDir {
            dir: HostPath::from(self.dir.as_path()),
            volume: HostPath::from(self.location.mount.as_path()),
            store: HostPath::from(self.location.store.as_path()),
            dev: self.dev,
            transport: self.transport,
            stall_ms: u64::try_from(self.conflicts.stall.as_millis()).unwrap_or(u64::MAX),
            policy: self.conflicts.policy,
            routed: self.aliases.routes(),
            fast_open: !self.plain.is_told(),
            past: self.found.past.clone(),
            notes: self.found.notes.clone(),
        }
    }

    /// As the maker of a view must know it.
    pub(crate) fn at(&self) -> GuardedAt {
        GuardedAt { dir: HostPath::from(self.dir.as_path()), mount: self.mount, dev: self.dev }
    }
}

fn refusal(dir: &Path, what: &str, e: Errno) -> Failure {
    let text = format!("cannot {what} {}: {e}", dir.display());
    let failure = match e {
        Errno::PERM | Errno::ACCESS => Failure::new(FailureKind::Unsupported, text)
            .hint("guarding a directory needs the right to mount (CAP_SYS_ADMIN)"),
        Errno::NODEV | Errno::NOENT if !Path::new("/dev/fuse").exists() => {
            Failure::new(FailureKind::Unsupported, text).hint(
                "there is no /dev/fuse: load the fuse module, or have it passed into the container",
            )
        }
        _ => Failure::new(FailureKind::Io, text),
    };
    failure.path(dir)
}

fn open_dir(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

/// A FUSE mount that is not yet anywhere, with what the mount around the directory does not allow.
fn detached_mount(around: BorrowedFd<'_>) -> Result<(OwnedFd, OwnedFd), Errno> {
    let around = rustix::fs::fstatvfs(around)?.f_flag;
    let mut attributes = MountAttrFlags::empty();
    for (theirs, ours) in [
        (StatVfsMountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (StatVfsMountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (StatVfsMountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ] {
        if around.contains(theirs) {
            attributes |= ours;
        }
    }
    fuse_mount::detached(attributes)
}

/// Has the kernel learn that opens are not to be told, and looks whether it gives leases, by which
/// they are found.
fn learn_opens(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Writing::of(rustix::fs::openat(mount, systx_base::FIRST_OPEN, flags, Mode::empty())?).map(drop)
}

/// Device and mount id, without a request to the server.
fn identity(mount: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(mount, "", flags, StatxFlags::MNT_ID)?;
    Ok((rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_mnt_id))
}

/// Puts a mount over a directory.
fn put_over(mount: &OwnedFd, directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", directory, "", how)
}

/// Puts a mount in the place of the dead one that is seen at `dir`: under its cover where the
/// kernel can do that (Linux 6.5), so that nobody gets past the guard meanwhile.
fn put_under(mount: &OwnedFd, dir: &Path) -> Result<(), Errno> {
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
        let table = crate::mounts::here().unwrap_or_default();
        let ours = table.iter().filter(|m| m.at == dir && m.fs == FS_TYPE).count();
        if ours <= leave || !is_ours_at(dir) {
            return Ok(());
        }
        unmount(dir, CUT_OFF)?;
    }
}

/// Whether what is seen at a path is a mount of this program's type.
pub(crate) fn is_ours_at(dir: &Path) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let Ok(top) = rustix::fs::statx(CWD, dir, flags, StatxFlags::MNT_ID) else { return false };
    let table = crate::mounts::here().unwrap_or_default();
    table.iter().any(|m| m.id == top.stx_mnt_id && m.at == dir && m.fs == FS_TYPE)
}
