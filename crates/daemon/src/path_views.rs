//! Views with a path: `<runtime directory>/views/ID` shows a directory as a transaction has it, to
//! any program of the daemon's user.
//!
//! 1. A FUSE mount of its own for each view, of the whole volume, at `views/.ID`; served from then
//!    on.
//! 2. A clone of the directory in it, at `views/ID`. (A mount must be somewhere before a piece of
//!    it can be cloned, before Linux 6.15. `systx enter` shows the whole one.) An ordinary user's
//!    daemon may not mount: [`crate::fusermount`] mounts the whole one for it, and `views/ID` is a
//!    symbolic link into that.
//! 3. When the transaction has ended both leave the name space; what is still open keeps the
//!    connection alive, and a thread waits for its end.
//!
//! The view of a guest has its directory as the root of the one mount, in a place with a name by
//! chance: everybody may read the list of mounts, and finds neither directories nor ids of others
//! there.
//!
//! `views` is the daemon's user's alone, so nobody else gets to a view, whatever the modes inside.
//!
//! Nothing here is called by a thread that serves a view: opening, syncing and invalidating wait
//! for answers of that view.

use crate::fuse_mount::{self, FS_TYPE};
use crate::fusermount;
use crate::mount_private_unsafe;
use crate::mounts::{self, Mount};
use crate::processes;
use crate::protocol::{Failure, FailureKind, HostPath, Transport};
use crate::transports;
use crate::unprotected::{self, protect_first};
use crate::urgency::{Followed, LastThread};
use crate::watch::{Keeps, Watcher};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};
use systx_base::{Kind, NodeId, TxnId, Uid};
use systx_fuse::Connection;
use systx_guard::retired::{Lasting, StillOpen};
use systx_guard::shared::SharedVolume;
use systx_protocol::modes::{self, Way};
use systx_vfs::api::{Caller, Calls, Requests};
use systx_vfs::view::View;

/// How long a connection takes to end that was told to.
const ENDING_LIMIT: Duration = Duration::from_secs(5);

/// What does the same as a view without a path.
const INSTEAD: &str =
    "without a path, `systx run --on-exit=keep -- CMD` and then `systx enter ID` do the same";

/// Views that have left the name space and are still in use.
#[derive(Default)]
struct Lingering {
    count: AtomicUsize,
    /// Some may be gone.
    views: OnceLock<Mutex<Vec<Weak<PathView>>>>,
}

impl Lingering {
    fn views(&self) -> &Mutex<Vec<Weak<PathView>>> {
        self.views.get_or_init(|| Mutex::new(rank::LEAF, Vec::new()))
    }

    fn add(&self, view: &Arc<PathView>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        let mut views = self.views().lock();
        views.retain(|view| view.strong_count() > 0);
        views.push(Arc::downgrade(view));
    }
}

/// The place of all path views of a daemon.
pub struct PathViews {
    dir: Option<PathBuf>,
    lingering: Arc<Lingering>,
    watcher: Arc<Watcher>,
}

/// One of them.
pub struct PathView {
    /// What users work below.
    pub path: PathBuf,
    /// The whole volume as the transaction sees it.
    pub whole: PathBuf,
    /// Where `path` leads if it is a symbolic link, as the mount was made by fusermount3.
    linked: Option<PathBuf>,
    /// The directory of the host that `path` shows.
    pub directory: HostPath,
    /// Who answers.
    pub lasting: Arc<Lasting>,
    view: Arc<View>,
    connection: Connection,
    /// `st_dev` as /proc/PID/maps writes it.
    device: String,
    /// [`PathView::lost`] was called.
    cut_off: AtomicBool,
    /// The mount, until it leaves the name space.
    mount: Mutex<Option<OwnedFd>>,
    lingering: Arc<Lingering>,
    watcher: Arc<Watcher>,
    /// Whoever else's it is, to the end of the last use.
    _seat: Option<Seat>,
}

/// For whom a view is made that is not the daemon's own user.
pub(crate) struct ForGuest<'a> {
    /// Where its path is.
    pub room: PathBuf,
    /// Counts it.
    pub seat: Seat,
    /// The guest's own descriptor of the directory.
    pub directory: &'a OwnedFd,
}

impl ForGuest<'_> {
    /// The directory in the view.
    ///
    /// # Errors
    /// `ESTALE`: by its name it is another one by now, which the guest could not reach.
    fn reached(&self, view: &Lasting, below: &Path) -> Result<NodeId, Errno> {
        let nobody = Caller { uid: 0, gid: 0, tid: 0 };
        let mut at = view.root()?;
        for name in below.components() {
            // A link that somebody puts in the way leads nowhere.
            let name = name.as_os_str().as_bytes();
            at = view.lookup(nobody, at.node, name)?.ok_or(Errno::NOENT)?;
        }
        let same = at.attr.kind == Kind::Dir && at.attr.ino == inode_of(self.directory)?;
        if same { Ok(at.node) } else { Err(Errno::STALE) }
    }
}

/// How many there are of something, for each user and in all.
pub(crate) struct Seats {
    /// Of one user, and of all.
    limits: (usize, usize),
    taken: Mutex<HashMap<Uid, usize>>,
    given_back: Event,
}

/// One of them, until it is dropped.
pub(crate) struct Seat {
    of: Arc<Seats>,
    uid: Uid,
}

impl Seats {
    pub fn new(limits: (usize, usize)) -> Seats {
        let taken = Mutex::new(rank::LEAF, HashMap::new());
        Seats { limits, taken, given_back: Event::new() }
    }

    /// `None` if there are enough.
    pub fn take(self: &Arc<Self>, uid: Uid) -> Option<Seat> {
        self.sit(&mut self.taken.lock(), uid)
    }

    fn sit(self: &Arc<Self>, taken: &mut HashMap<Uid, usize>, uid: Uid) -> Option<Seat> {
        let all: usize = taken.values().sum();
        let own = taken.get(&uid).copied().unwrap_or(0);
        if own >= self.limits.0 || all >= self.limits.1 {
            return None;
        }
        taken.insert(uid, own + 1);
        Some(Seat { of: Arc::clone(self), uid })
    }

    /// Waits for one: for those who keep theirs for a bounded time.
    pub fn wait(self: &Arc<Self>, uid: Uid) -> Seat {
        let mut taken = self.taken.lock();
        loop {
            if let Some(seat) = self.sit(&mut taken, uid) {
                return seat;
            }
            self.given_back.wait(&mut taken);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        match taken.get_mut(&self.uid) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&self.uid)),
        }
        self.of.given_back.notify_all();
    }
}

/// Where the views of a daemon are.
pub(crate) fn place(runtime: &Path) -> PathBuf {
    runtime.join("views")
}

fn cannot_serve(e: &io::Error) -> Failure {
    Failure::new(FailureKind::Unsupported, format!("cannot serve the view: {e}"))
        .hint("`systx doctor` shows what this kernel offers")
}

impl PathViews {
    /// Below a daemon's runtime directory; without one there are no path views.
    pub fn new(runtime: Option<&Path>) -> PathViews {
        let dir = runtime.map(place);
        if let Some(dir) = &dir {
            sweep(dir);
        }
        PathViews { dir, lingering: Arc::default(), watcher: Arc::default() }
    }

    /// How many views are in use whose transactions have ended.
    pub fn lingering(&self) -> usize {
        self.lingering.count.load(Ordering::Acquire)
    }

    /// Those of a volume, as `st_dev` of their mounts.
    pub(crate) fn left_on(&self, vol: &Arc<SharedVolume>) -> Vec<u64> {
        self.all_left_on(vol).iter().filter_map(|view| view.dev()).collect()
    }

    fn all_left_on(&self, vol: &Arc<SharedVolume>) -> Vec<Arc<PathView>> {
        let all: Vec<_> = self.lingering.views().lock().iter().filter_map(Weak::upgrade).collect();
        all.into_iter().filter(|view| view.lasting.is_on(vol)).collect()
    }

    /// Ends those of a volume that is not served any more: what is open of them answers with
    /// an error.
    pub(crate) fn end_left_on(&self, vol: &Arc<SharedVolume>) {
        let all = self.all_left_on(vol);
        all.iter().for_each(|view| view.connection.stop());
        let ended: Vec<_> = all.iter().map(Arc::downgrade).collect();
        drop(all);
        let until = Instant::now() + ENDING_LIMIT;
        // Their own threads drop them.
        while ended.iter().any(|view| view.strong_count() > 0) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Who has the kernel drop pages of what is open of views that were committed.
    pub(crate) fn watcher(&self) -> Arc<Watcher> {
        Arc::clone(&self.watcher)
    }

    /// Whether a path leads into a view.
    pub fn has(&self, path: &Path) -> bool {
        self.dir.as_ref().is_some_and(|dir| path.starts_with(dir))
    }

    /// Mounts a transaction's view so that `directory`, which is `below` the volume's root, has a
    /// path.
    ///
    /// # Errors
    /// This user may not mount, or the directory is not there.
    pub(crate) fn mount(
        &self,
        id: TxnId,
        (view, volume): (Arc<View>, Arc<SharedVolume>),
        (directory, below): (HostPath, &Path),
        (transport, thread): (Transport, LastThread),
        guest: Option<ForGuest<'_>>,
    ) -> Result<PathView, Failure> {
        let dir = self.dir.as_ref().ok_or_else(|| {
            Failure::new(FailureKind::Unsupported, "this daemon has no runtime directory")
        })?;
        private(dir)?;
        let mut attributes = mounts::limits_at(directory.as_path());
        if guest.is_some() {
            // What a guest makes of programs and devices is for nobody to trust.
            attributes |= MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        }
        let whole = match &guest {
            Some(guest) => guest.room.join(by_chance()?),
            None => dir.join(format!(".{id}")),
        };
        let (mount, fuse) = match fuse_mount::detached(fuse_mount::SOURCE.as_bytes(), attributes) {
            Ok((mount, fuse)) => (Some(mount), fuse),
            Err(Errno::PERM) if guest.is_none() => (None, by_helper(&whole)?),
            Err(errno) => return Err(refused(errno)),
        };
        let lasting = Arc::new(Lasting::new(Arc::clone(&view), volume));
        let root = match &guest {
            Some(guest) => guest.reached(&lasting, below).map_err(|e| not_shown(&directory, e))?,
            None => NodeId::ROOT,
        };
        let noted = Followed::over(lasting.clone(), &thread);
        let connection = systx_fuse::serve(fuse, noted, config(transport, root));
        let linked = mount.is_none().then(|| join(&whole, below));
        let served = connection.map_err(|e| cannot_serve(&e)).and_then(|connection| {
            let mount = mount.map_or_else(|| root_of(&whole).map_err(refused), Ok)?;
            Ok((connection, mount))
        });
        let (connection, mount) = served.inspect_err(|_| {
            if linked.is_some() {
                take_away(&whole);
            }
        })?;
        let (path, below, seat) = match guest {
            Some(guest) => (whole.clone(), Path::new(""), Some(guest.seat)),
            None => (dir.join(id.to_string()), below, None),
        };
        let new = PathView {
            path,
            whole,
            linked,
            directory,
            lasting,
            view,
            connection,
            device: device_of(&mount).unwrap_or_default(),
            cut_off: AtomicBool::new(false),
            mount: Mutex::new(rank::LEAF, None),
            lingering: Arc::clone(&self.lingering),
            watcher: Arc::clone(&self.watcher),
            _seat: seat,
        };
        match new.place(mount, below) {
            Ok(()) => Ok(new),
            Err(e) => {
                let failure = not_shown(&new.directory, e);
                Arc::new(new).leave();
                Err(failure)
            }
        }
    }
}

impl PathView {
    /// Shows the originals of what is not protected, instead of empty places.
    ///
    /// # Errors
    /// This user may not mount, or one of them is not there any more; the view is gone then.
    pub(crate) fn with_originals(self, unprotected: &[HostPath]) -> Result<PathView, Failure> {
        let inside = |path: &HostPath, other: &HostPath| {
            path != other && path.as_path().starts_with(other.as_path())
        };
        // What is in another one comes along with that.
        let mut tops = unprotected.iter().filter(|p| !unprotected.iter().any(|o| inside(p, o)));
        let shown = tops.try_for_each(|path| match &self.linked {
            Some(_) => {
                let refused = modes::refusal(Way::Helper, Way::Unprotected, path);
                Err(refused.path(path.clone()))
            }
            None => self.original(path),
        });
        match shown {
            Ok(()) => Ok(self),
            Err(failure) => {
                Arc::new(self).leave();
                Err(failure)
            }
        }
    }

    fn original(&self, path: &HostPath) -> Result<(), Failure> {
        let failed = |e: Errno| {
            let text = format!("cannot show {path}, which is not protected: {e}");
            protect_first(Failure::new(FailureKind::Io, text), path.as_path())
        };
        let below = path.as_path().strip_prefix(self.directory.as_path());
        let below = below.map_err(|_| failed(Errno::NOENT))?;
        let there = unprotected::open(path.as_path()).map_err(failed)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = rustix::mount::open_tree(&there, c"", flags).map_err(failed)?;
        // Else what is mounted in the original would be unmounted with the view.
        mount_private_unsafe::make_private(mount.as_fd()).map_err(failed)?;
        let view = rustix::fs::open(&self.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let place = rustix::fs::openat2(view.map_err(failed)?, below, flags, Mode::empty(), within);
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&mount, c"", place.map_err(failed)?, c"", flags).map_err(failed)
    }

    fn place(&self, mount: OwnedFd, below: &Path) -> Result<(), Errno> {
        let from = rustix::io::fcntl_dupfd_cloexec(&mount, 0)?;
        *self.mount.lock() = Some(mount);
        if self.linked.is_none() {
            attach(&from, &self.whole)?;
        }
        if self.path == self.whole {
            return Ok(());
        }
        let mut piece = from;
        if !below.as_os_str().is_empty() {
            // A link that somebody puts in the way must not lead out of the view.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            piece = rustix::fs::openat2(&piece, below, flags, Mode::empty(), within)?;
        }
        if let (Some(_), Some(name)) = (&self.linked, self.whole.file_name()) {
            // Relative, as it is for whoever sees the directory somewhere else.
            return rustix::fs::symlink(join(Path::new(name), below), &self.path);
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let clone = rustix::mount::open_tree(&piece, c"", flags)?;
        attach(&clone, &self.path)
    }

    /// Has the kernel write back what is dirty in shared mappings.
    ///
    /// # Errors
    /// Some of it could not be written.
    pub fn flush(&self) -> io::Result<()> {
        let root = {
            let mount = self.mount.lock();
            let Some(mount) = &*mount else { return Ok(()) };
            rustix::io::fcntl_dupfd_cloexec(mount, 0)?
        };
        // That of the mount itself is `O_PATH`, which syncfs does not take.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&root, c".", flags, Mode::empty())?;
        rustix::fs::syncfs(&dir)?;
        Ok(())
    }

    /// Processes with a shared writable mapping of a file of this view: what they store has no
    /// moment at which it could be told whether it belongs to the transaction.
    pub fn writable_mappings(&self) -> Vec<(u32, String)> {
        // A file that is mapped is open.
        if !self.lasting.is_open_for_writing() {
            return Vec::new();
        }
        processes::find(|pid| {
            let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
            let mut lines = maps.split(|b| *b == b'\n');
            lines.any(|line| maps_writable(line, self.device.as_bytes())).then(|| {
                let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
                (pid, String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
            })
        })
    }

    /// After the commit: what the kernel keeps of the view is of no use, and pages of what is
    /// `open` are of use until somebody changes the file.
    pub fn retired(self: &Arc<Self>, open: &[StillOpen]) {
        let this: Arc<dyn Keeps> = self.clone();
        for one in open {
            if let Some((file, id)) = &one.file {
                self.watcher.add(&this, one.node, (file.as_fd(), *id));
            }
        }
        let nodes: Vec<NodeId> = open.iter().map(|one| one.node).collect();
        self.forget(&nodes);
    }

    /// Has the kernel drop what it keeps of the view: pages and listings of what is `open`, all
    /// names, all attributes.
    pub fn forget(&self, open: &[NodeId]) {
        self.lasting.settled();
        self.forget_names();
        for node in open {
            self.drop_pages(*node);
        }
        for node in 1..=self.view.objects_met() as u64 {
            let _ = self.connection.invalidate_inode(NodeId(node), None);
        }
    }

    /// After a lost conflict, or an abort: every name has to be looked up again, in vain. Only the
    /// first call does something.
    pub fn lost(&self) {
        if !self.cut_off.swap(true, Ordering::AcqRel) {
            self.forget_names();
        }
    }

    fn forget_names(&self) {
        if self.connection.invalidate_all_names().is_err() {
            // Before Linux 6.16. What the kernel does not know (any more) is an error that says so.
            for (dir, name) in self.view.names() {
                let _ = self.connection.invalidate_entry(dir, &name, false);
            }
        }
    }

    /// Takes the view out of the name space.  It is served until nobody has anything of it open.
    pub fn leave(self: Arc<Self>) {
        if self.linked.is_some() {
            remove_link(&self.path);
            take_away(&self.whole);
        }
        let mounts = [&self.path, &self.whole];
        for place in mounts.into_iter().filter(|_| self.linked.is_none()) {
            match rustix::mount::unmount(place, UnmountFlags::DETACH) {
                // Not there: somebody unmounted it, or it never got that far.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
                Err(errno) => tracing::warn!(%errno, path = %place.display(), "unmount"),
            }
            match std::fs::remove_dir(place) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("cannot remove {}: {e}", place.display());
                }
                _ => {}
            }
        }
        *self.mount.lock() = None;
        self.lingering.add(&self);
        let lingering = Arc::clone(&self.lingering);
        let waiter = std::thread::Builder::new().name("view's end".into()).spawn(move || {
            self.connection.wait();
            let this: Arc<dyn Keeps> = self.clone();
            self.watcher.remove(&this);
            drop(this);
            let lingering = Arc::clone(&self.lingering);
            drop(self);
            lingering.count.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = waiter {
            // The view went with the closure, and its connection ended.
            tracing::error!(%error, "no thread for a view in use");
            lingering.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// `st_dev` of its mount.
    fn dev(&self) -> Option<u64> {
        let (major, minor) = self.device.split_once(':')?;
        let number = |hex| u32::from_str_radix(hex, 16).ok();
        Some(rustix::fs::makedev(number(major)?, number(minor)?))
    }

    /// A path below the view as one of the host; any other as it is.
    pub fn to_host(&self, path: HostPath) -> HostPath {
        let tops = std::iter::once(&self.path).chain(&self.linked);
        match tops.filter_map(|top| path.as_path().strip_prefix(top).ok()).next() {
            Some(rest) => HostPath::from(join(self.directory.as_path(), rest)),
            None => path,
        }
    }
}

impl Keeps for PathView {
    fn drop_pages(&self, node: NodeId) -> bool {
        // The only view of this connection: it is removed at once when nothing of it is open.
        let _ = self.connection.invalidate_inode(node, Some((0, 0)));
        true
    }
}

fn config(transport: Transport, root: NodeId) -> systx_fuse::Config {
    systx_fuse::Config {
        transport: transports::of_server(transport),
        root,
        // Whoever works here may be any process: only closes that are told of are known.
        locks: systx_fuse::FileLocks::ViewToldOfClose,
        ..systx_fuse::Config::default()
    }
}

/// `st_dev` of a mount as /proc/PID/maps writes it, without asking who serves it.
fn device_of(mount: &OwnedFd) -> Result<String, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let seen = rustix::fs::statx(mount, c"", flags, StatxFlags::empty())?;
    Ok(format!("{:02x}:{:02x}", seen.stx_dev_major, seen.stx_dev_minor))
}

/// The number of an inode, without asking who serves it.
fn inode_of(fd: &OwnedFd) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(fd, c"", flags, StatxFlags::INO)?.stx_ino)
}

fn attach(mount: &OwnedFd, at: &Path) -> Result<(), Errno> {
    rustix::fs::mkdir(at, Mode::from_raw_mode(0o700))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", CWD, at, flags)
}

/// Has a view mounted where this user may not; the device by which it is served.
fn by_helper(whole: &Path) -> Result<OwnedFd, Failure> {
    rustix::fs::mkdir(whole, Mode::from_raw_mode(0o700)).map_err(refused)?;
    let what = fusermount::What {
        called: "the view",
        source: fuse_mount::SOURCE.as_bytes(),
        read_only: false,
        instead: INSTEAD,
    };
    fusermount::mount(whole, &what).inspect_err(|_| {
        let _ = std::fs::remove_dir(whole);
    })
}

/// The root of a mount that is served.
fn root_of(whole: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(whole, flags, Mode::empty())?;
    // Not the directory below it.
    let there =
        mounts::here().unwrap_or_default().into_iter().any(|m| is_view(&m) && m.at == whole);
    if there { Ok(root) } else { Err(Errno::INVAL) }
}

/// Unmounts a view that may be anybody's work, and removes its directory.
fn take_away(place: &Path) {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(place, flags) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(Errno::PERM) => {
            // Somebody else may have unmounted it.
            let table = mounts::here().unwrap_or_default();
            if table.iter().any(|m| is_view(m) && m.at == place)
                && let Err(error) = fusermount::unmount(place, true)
            {
                tracing::warn!(%error, path = %place.display(), "unmount");
            }
        }
        Err(errno) => tracing::warn!(%errno, path = %place.display(), "unmount"),
    }
    match std::fs::remove_dir(place) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}: {e}", place.display());
        }
        _ => {}
    }
}

fn remove_link(path: &Path) {
    if std::fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink())
        && let Err(e) = std::fs::remove_file(path)
    {
        tracing::warn!("cannot remove {}: {e}", path.display());
    }
}

fn is_view(mount: &Mount) -> bool {
    mount.fs == FS_TYPE
}

/// As `Path::join`, without the trailing slash for an empty tail.
fn join(base: &Path, tail: &Path) -> PathBuf {
    if tail.as_os_str().is_empty() { base.to_owned() } else { base.join(tail) }
}

/// A name that says nothing.
fn by_chance() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(refused)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

fn not_shown(directory: &HostPath, errno: Errno) -> Failure {
    let text = format!("cannot show {directory}: {errno}");
    Failure::new(FailureKind::Io, text).path(directory.clone())
}

fn refused(errno: Errno) -> Failure {
    Failure::new(FailureKind::Unsupported, format!("cannot mount the view: {errno}"))
        .hint("`systx doctor` shows what this machine offers")
}

/// Makes the directory of the views, or checks that it is closed to others.
fn private(dir: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt;
    let failed = |e: io::Error| {
        let text = format!("cannot make {}: {e}", dir.display());
        Failure::new(FailureKind::Io, text).path(dir)
    };
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(dir).map_err(failed)?;
    let own = meta.uid() == rustix::process::geteuid().as_raw();
    if meta.is_dir() && own && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!("{} is not a directory of your own that is closed to others", dir.display());
    Err(Failure::new(FailureKind::Invalid, text).hint("remove it").path(dir))
}

/// Where views are mounted in this mount namespace, the last one first: one may lie over another.
pub(crate) fn mounted(dir: &Path) -> Vec<PathBuf> {
    let ours = |m: &Mount| is_view(m) && m.at.parent() == Some(dir);
    let table = mounts::here().unwrap_or_default();
    table.into_iter().rev().filter(ours).map(|m| m.at).collect()
}

/// Unmounts what a daemon before this one left. In another mount namespace another one may have
/// views here: those are no mounts of ours and stay.
fn sweep(dir: &Path) {
    for point in mounted(dir) {
        tracing::info!("clearing away {}", point.display());
        take_away(&point);
        // What leads there.
        let name = point.file_name().and_then(|name| name.to_str()?.strip_prefix('.'));
        if let Some(id) = name {
            remove_link(&dir.join(id));
        }
    }
}

/// As [`sweep`], in a whole tree of directories.
pub(crate) fn sweep_below(top: &Path) {
    let ours = |m: &Mount| is_view(m) && m.at.starts_with(top) && m.at != top;
    for mount in mounts::here().unwrap_or_default().iter().rev().filter(|m| ours(m)) {
        tracing::info!("clearing away {}", mount.at.display());
        let _ = rustix::mount::unmount(&mount.at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let _ = std::fs::remove_dir(&mount.at);
    }
}

/// Whether a line of /proc/PID/maps is a shared writable mapping of a file on this device.
fn maps_writable(line: &[u8], device: &[u8]) -> bool {
    let mut fields = line.split(|b| *b == b' ');
    let rights = fields.nth(1).unwrap_or_default();
    rights.get(1) == Some(&b'w') && rights.get(3) == Some(&b's') && fields.nth(1) == Some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_writable_mappings_are_told_from_others() {
        let line = |rights: &str| format!("7f00-7f01 {rights} 00001000 00:2a 17   /x y");
        assert!(maps_writable(line("rw-s").as_bytes(), b"00:2a"));
        assert!(maps_writable(line("-w-s").as_bytes(), b"00:2a"));
        assert!(!maps_writable(line("rw-p").as_bytes(), b"00:2a"));
        assert!(!maps_writable(line("r--s").as_bytes(), b"00:2a"));
        assert!(!maps_writable(line("rw-s").as_bytes(), b"00:2b"));
        assert!(!maps_writable(b"", b"00:2a") && !maps_writable(b"x", b""));
    }
}
