//! One guarded directory: a plain view of it, mounted over it.
//!
//! The directory is opened first and mounted over then, so that every path to it leads through the
//! mount and only that descriptor leads below. The mount is served before it is anywhere, so nobody
//! ever waits for its first answer. The descriptor of /dev/fuse is in this process alone: with the
//! process the connection ends, and everything that was opened through it answers `ENOTCONN`.

use crate::fuse_mount;
use crate::hall::{Conflicts, Desk, Hall};
use crate::protocol::{Failure, FailureKind, GuardedAt, GuardedDir, Holder, HostPath, Transport};
use crate::served::{ServedMount, Serving, identity, open_dir, put_over, put_under};
use crate::strays::Strays;
use crate::transports;
use crate::volume::{Location, OpenVolume};
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use std::collections::HashSet;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use systx_base::sync::{Mutex, rank};
use systx_fuse::{Config, Connection, FileLocks, Users};
use systx_guard::aliases::Aliases;
use systx_guard::inode_locks::writers::Writing;
use systx_guard::plain::{Gate, Order, Plain, Sealed};
use systx_guard::publication;
use systx_guard::zero::Zero;
use systx_store::Lease;

/// A guarded directory.
pub struct Guarded {
    /// Its mount.
    at: ServedMount,
    /// Where it lies.
    pub location: Location,
    /// The directory below.
    pub backing: OwnedFd,
    /// View 0.
    pub plain: Arc<Plain>,
    /// Where threads' views are.
    pub hall: Arc<Hall>,
    /// How it is served.
    pub transport: Transport,
    /// What the user should know.
    pub(crate) found: Found,
    serving: Arc<Serving>,
    /// As commits know it.
    published: Mutex<Option<Arc<publication::Guarded>>>,
    /// Nobody else commits there meanwhile.
    _store: Lease,
}

/// Makes what serves the threads of what is mounted already.
pub(crate) type MakeDesk = Box<dyn FnOnce(&Arc<OpenVolume>, &Arc<Hall>, Strays) -> Arc<dyn Desk>>;

impl Deref for Guarded {
    type Target = ServedMount;
    fn deref(&self) -> &ServedMount {
        &self.at
    }
}

/// Called before the first request of a program comes.
fn register(volume: &Arc<OpenVolume>, guarded: &Arc<Guarded>) {
    volume.add_guarded(Arc::clone(guarded));
    let Some(connection) = guarded.connection() else { return };
    let this = Arc::downgrade(guarded);
    let root = move || this.upgrade().ok_or(Errno::NODEV)?.open_root();
    let caches = Arc::new(connection.caches(root));
    let plain = Arc::clone(&guarded.plain);
    let stall = guarded.hall.conflicts.stall;
    let published = Arc::new(publication::Guarded::new(plain, caches, stall));
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
    Config {
        transport: transports::of_server(transport),
        locks,
        users: Users::Many,
        ..Config::default()
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
        let gate = |order| -> Arc<dyn Gate> {
            if conflicts.certifier.is_some() { Arc::new(Sealed(order)) } else { order }
        };
        let plain = Plain::new(root, hidden, gate(order)).map_err(refused("look at"))?;
        let plain = Arc::new(if fast_open { plain.untold() } else { plain });
        let (mount, device) =
            detached_mount(backing.as_fd()).map_err(refused("make a mount for"))?;
        let (dev, id) = identity(mount.as_fd()).map_err(refused("look at the mount of"))?;
        let aliases = if routed.is_some() { Aliases::routed } else { Aliases::new };
        let aliases = Arc::new(aliases(Arc::clone(&plain) as Arc<dyn Zero>));
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
        let serving = Arc::new(Serving::new(connection));
        let hall = Hall::new(dir, aliases, conflicts, Arc::clone(&serving));
        let guarded = Arc::new(Guarded {
            at: ServedMount { dir: dir.to_owned(), dev, mount: id },
            location: volume.location.clone(),
            backing,
            plain,
            hall,
            transport,
            found: Found { past, notes },
            serving,
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
        guarded.hall.open(desk(volume, &guarded.hall, strays));
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
        self.serving.connection()
    }

    /// Calls `ended` in a thread if the connection ends and nobody here has asked for it.
    pub(crate) fn watch(self: &Arc<Self>, ended: impl FnOnce(&Arc<Guarded>) + Send + 'static) {
        let guarded = Arc::downgrade(self);
        self.serving.watch(&self.dir, move || {
            if let Some(guarded) = Weak::upgrade(&guarded).filter(|g| g.serving.is_on()) {
                ended(&guarded);
            }
        });
    }

    /// Ends its service: whoever still has it open gets `ENOTCONN` from now on.
    pub(crate) fn end(self: &Arc<Self>, volume: &Arc<OpenVolume>) {
        unregister(volume, self);
        self.hall.close();
        self.serving.end();
    }

    /// As listings show it.
    pub(crate) fn listed(&self) -> GuardedDir {
        GuardedDir {
            dir: HostPath::from(self.dir.as_path()),
            volume: HostPath::from(self.location.mount.as_path()),
            store: HostPath::from(self.location.store.as_path()),
            dev: self.dev,
            transport: self.transport,
            stall_ms: self.hall.conflicts.stall_ms(),
            policy: self.hall.conflicts.policy,
            certifier: self.hall.conflicts.socket(),
            routed: self.hall.aliases.routes(),
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
    fuse_mount::detached(fuse_mount::SOURCE.as_bytes(), attributes)
}

/// Has the kernel learn that opens are not to be told, and looks whether it gives leases, by which
/// they are found.
pub(crate) fn learn_opens(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Writing::of(rustix::fs::openat(mount, systx_base::FIRST_OPEN, flags, Mode::empty())?).map(drop)
}
