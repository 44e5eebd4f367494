//! One mount of a log-structured volume: its image is open, and a plain view of it served, of the
//! live tree or of a snapshot.
//!
//! The image is locked as long as it is open, so nobody else changes it; it is open from before the
//! first mount of it is anywhere until nobody can get at the last one any more.

use crate::elsewhere::{self, Elsewhere};
use crate::guarded::{MakeDesk, learn_opens};
use crate::hall::{Conflicts, Hall};
use crate::ledger::Ledger;
use crate::memory_unsafe::give_back;
use crate::protocol::{
    Failure, FailureKind, ForThreads, HostPath, MountedVolume, Policy, Transport,
};
use crate::roster::ImageIdentity;
use crate::served::{ServedMount, Serving};
use crate::snapshots;
use crate::stopped::image_stopped;
use crate::strays::Strays;
use crate::transports;
use crate::volume::OpenVolume;
use crate::volumes::Volumes;
use place::{Place, refused};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use systx_base::Time;
use systx_base::sync::{Mutex, rank};
use systx_fuse::{Config, FileLocks, Users};
use systx_guard::aliases::Aliases;
use systx_guard::plain::{Gate, Order, STALL, Sealed};
use systx_guard::publication;
use systx_guard::zero::Zero;
use systx_lfs::device::{Cached, FileDevice};
use systx_lfs::{CleanerThread, CostBenefit, Error, Limits, Plan, Volume, read_super};
use systx_lfs_store::VolumeStore;
use systx_lfs_view::{VolumeView, Way};
use systx_protocol::stores::STORE_DIR;
use systx_store::host_locks::LockFiles;
use systx_store::{OpenError, Store};
use systx_vfs::api::Requests;

mod place;

/// What was written is durable after so long at the latest, without being asked for.
const PATIENCE: Duration = Duration::from_secs(5);

/// One mount of a volume.
pub(crate) struct Image {
    /// Its mount.
    at: ServedMount,
    /// The image or the block device.
    pub file: PathBuf,
    /// Which that is, whatever its path.
    pub which: Which,
    /// The snapshot that it shows; `None`: the live tree.
    pub snapshot: Option<String>,
    label: String,
    transport: Transport,
    threads: Option<ForThreads>,
    serving: Arc<Serving>,
    shown: Mutex<Option<Shown>>,
    volumes: Arc<Volumes>,
}

impl Deref for Image {
    type Target = ServedMount;
    fn deref(&self) -> &ServedMount {
        &self.at
    }
}

/// A file by its device and number, or a block device by its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Which(u64, u64);

impl Which {
    /// What a path leads to.
    ///
    /// # Errors
    /// There is nothing, or nothing that can be an image.
    pub fn of(file: &Path) -> Result<Which, Failure> {
        let found = std::fs::metadata(file).map_err(|e| cannot_open(file, &e))?;
        match found.file_type() {
            kind if kind.is_block_device() => Ok(Which(found.rdev(), 0)),
            kind if kind.is_file() => Ok(Which(found.dev(), found.ino())),
            _ => Err(cannot_open(file, &io::ErrorKind::InvalidInput.into())),
        }
    }

    /// What was said of one.
    pub fn known(identity: &ImageIdentity) -> Which {
        Which(identity.at.0, identity.at.1)
    }

    /// With the number that the volume in it has, which the super block says.
    ///
    /// # Errors
    /// It is no volume, or somebody else has it open.
    pub fn identity(self, file: &Path, opened: Option<&Opened>) -> Result<ImageIdentity, Failure> {
        let volume = match opened {
            Some(opened) => opened.volume().identity().0,
            None => {
                let device = FileDevice::open(file).map_err(|e| cannot_open(file, &e))?;
                read_super(&device).map_err(|e| cannot_use(file, &e))?.id
            }
        };
        Ok(ImageIdentity { at: (self.0, self.1), volume })
    }
}

/// Blocks of an open image in memory, 16 MiB, beside what waits to be written
/// ([`Limits::dirty_pages_max`], twice that).
const BLOCKS_KEPT: usize = 4 << 10;

/// An image that is open, for all mounts of it.
pub(crate) struct Opened {
    store: Arc<VolumeStore>,
    cleaner: CleanerThread,
    /// What it lies in, to be looked at.
    medium: OwnedFd,
}

impl Opened {
    /// Opens it: recovers what a crash has left.
    fn new(file: &Path, dir: &Path, ledger: &Ledger) -> Result<Arc<Opened>, Failure> {
        let device = FileDevice::open(file).map_err(|e| cannot_open(file, &e))?;
        let medium = open(file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let medium = medium.map_err(|e| cannot_open(file, &e.into()))?;
        // Before anything is written, and said in its own words.
        read_super(&device).map_err(|e| cannot_use(file, &e))?;
        let config = systx_lfs_store::Config {
            path: file.display().to_string(),
            clock: Arc::new(now),
            salt: salt(),
            limits: Limits::default(),
        };
        let others = Elsewhere { owner: elsewhere::own(), ledger };
        let device = Arc::new(Cached::new(device, BLOCKS_KEPT));
        let store = systx_lfs_store::open(device, config, &others);
        let store = store.map_err(|e| not_recovered(file, &e))?;
        if let Some(number) = store.known_as() {
            ledger.images.opened(number, &dir.join(STORE_DIR), &store);
        }
        others.settle(&*store);
        let volume = Arc::clone(store.volume());
        let cleaner = CleanerThread::start(volume, Plan::default(), Arc::new(CostBenefit));
        let cleaner = cleaner.map_err(|e| no_thread(file, &e))?;
        Ok(Arc::new(Opened { store, cleaner, medium }))
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        self.store.volume()
    }

    /// Whether its image has no name any more: whoever closes it loses it.
    pub fn is_removed(&self) -> bool {
        let is_file = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
        fstat(&self.medium).is_ok_and(|found| is_file(found.st_mode) && found.st_nlink == 0)
    }

    /// As [`Opened::leave`], where a mount has failed.
    fn give_up(this: Arc<Opened>, file: &Path) {
        if let Err(error) = Opened::leave(this) {
            tracing::error!(%error, file = %file.display(), "not closed cleanly");
        }
    }

    /// Makes everything durable, and closes it if this was its last mount.
    fn leave(this: Arc<Opened>) -> io::Result<()> {
        // Mounts end one after the other, under the lock of their list.
        match Arc::try_unwrap(this) {
            Ok(Opened { store, cleaner, medium: _ }) => {
                drop(cleaner);
                let closed = store.close();
                give_back();
                closed
            }
            Err(opened) => opened.volume().sync().map_err(|e| e.errno().into()),
        }
    }
}

/// What one mount shows.
struct Shown {
    view: Arc<VolumeView>,
    /// The same with the alias roots of threads, where they have transactions.
    aliases: Option<Arc<Aliases>>,
    /// Of the live tree: what transactions in it share.
    live: Option<Live>,
    of: Arc<Opened>,
}

/// A live tree, as transactions and commits know it.
#[derive(Clone)]
struct Live {
    volume: Arc<OpenVolume>,
    /// Once it is served.
    published: Option<Arc<publication::Guarded>>,
}

impl Shown {
    fn new(wanted: &Wanted<'_>, place: &Place, of: Arc<Opened>) -> Result<Shown, Failure> {
        let view = match wanted.snapshot {
            None => Shown::live(wanted, place, &of),
            Some(name) => Shown::past(wanted, name, &of).map(|view| (view, None)),
        };
        match view {
            Ok((view, live)) => {
                let view = Arc::new(view);
                let zero = || Arc::new(Aliases::new(Arc::clone(&view) as Arc<dyn Zero>));
                let aliases = wanted.threads.map(|_| zero());
                Ok(Shown { view, aliases, live, of })
            }
            Err(failure) => {
                Opened::give_up(of, wanted.file);
                Err(failure)
            }
        }
    }

    fn live(
        wanted: &Wanted<'_>,
        place: &Place,
        of: &Arc<Opened>,
    ) -> Result<(VolumeView, Option<Live>), Failure> {
        let locks = wanted.tells_of_opens(place).then(|| Arc::new(LockFiles::default()));
        let below = (&of.store, locks.clone());
        let volume = OpenVolume::mounted(wanted.dir, place.is, below, wanted.volumes.ledger())?;
        volume.vol.tell_commits(wanted.volumes.path_views.watcher());
        let conflicts = wanted.conflicts();
        let order = Arc::new(Order::new(Arc::clone(&volume.vol), conflicts.stall));
        let gate: Arc<dyn Gate> =
            if conflicts.certifier.is_some() { Arc::new(Sealed(order)) } else { order };
        let view = VolumeView::live(Arc::clone(&of.store), (PATIENCE, give_back), gate);
        let view = view.map_err(|e| no_thread(wanted.file, &e))?;
        let view = match locks {
            Some(files) => view.told_of(files),
            None => view,
        };
        let view = if place.is_roots() {
            view
        } else {
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            view.with_numbers(salt(), (uid.as_raw(), gid.as_raw()))
        };
        Ok((view, Some(Live { volume: Arc::new(volume), published: None })))
    }

    fn past(wanted: &Wanted<'_>, name: &str, of: &Opened) -> Result<VolumeView, Failure> {
        let snapshot = of.volume().at(name);
        let snapshot = snapshot.map_err(|e| snapshots::failed(wanted.file, name, &e))?;
        let view = VolumeView::of_snapshot(Arc::clone(of.volume()), snapshot);
        view.map_err(|e| no_thread(wanted.file, &e))
    }

    /// Who answers the kernel.
    fn requests(&self) -> Arc<dyn Requests> {
        match &self.aliases {
            Some(aliases) => Arc::clone(aliases) as Arc<dyn Requests>,
            None => Arc::clone(&self.view) as Arc<dyn Requests>,
        }
    }

    /// Nobody begins a transaction in it any more.
    fn leave(&self, volumes: &Volumes) {
        if let Some(Live { volume, published }) = &self.live {
            volumes.remove_mounted(volume);
            if let Some(hall) = volume.take_hall() {
                hall.close();
            }
            published.iter().for_each(|published| volume.vol.unguard(published));
        }
    }

    /// It is not served any more.
    fn end(self) -> io::Result<()> {
        let Shown { view, aliases, live, of } = self;
        view.end();
        if let Some(Live { volume, .. }) = &live {
            volume.is_gone();
        }
        drop((view, aliases, live));
        Opened::leave(of)
    }
}

/// How a volume is mounted.
pub(crate) struct Wanted<'a> {
    /// The image or the block device, absolute.
    pub file: &'a Path,
    /// Where: absolute, without symbolic links.
    pub dir: &'a Path,
    pub transport: Transport,
    /// A snapshot, read-only; `None`: the live tree.
    pub snapshot: Option<&'a str>,
    /// Threads have transactions in it.
    pub threads: Option<&'a ForThreads>,
    /// It is open already, for another mount of it.
    pub opened: Option<Arc<Opened>>,
    /// Where transactions find it.
    pub volumes: &'a Arc<Volumes>,
    /// A dead mount of ours lies there, and gives way.
    pub replaces: bool,
}

impl Wanted<'_> {
    fn conflicts(&self) -> Conflicts {
        let usual = || Conflicts::new(STALL.as_millis() as u64, Policy::default());
        self.threads.map_or_else(usual, |how| Conflicts::of(self.dir, how))
    }

    /// Opens and locks make messages: for threads; and where who writes cannot be asked of the
    /// kernel, since files are not opened by their numbers.
    fn tells_of_opens(&self, place: &Place) -> bool {
        self.snapshot.is_none() && (self.threads.is_some() || !place.is_roots())
    }
}

impl Image {
    /// Mounts it.  `desk`: makes what serves its threads.
    ///
    /// # Errors
    /// It cannot be used, or not be mounted there; then it is closed, and nothing has changed but
    /// that it was recovered.
    pub fn mount(wanted: &Wanted<'_>, desk: MakeDesk) -> Result<Arc<Image>, Failure> {
        let which = Which::of(wanted.file)?;
        // Nobody is to wait at the mount while it is recovered, or see it if that fails.
        let of = match wanted.opened.clone() {
            Some(opened) => opened,
            None => Opened::new(wanted.file, wanted.dir, wanted.volumes.ledger())?,
        };
        let (place, device) = match Place::make(wanted) {
            Ok(made) => made,
            Err(failure) => {
                Opened::give_up(of, wanted.file);
                return Err(failure);
            }
        };
        let served = Image::serve(wanted, (&place, which), device, (of, desk));
        served.inspect_err(|_| place.withdraw(wanted))
    }

    fn serve(
        wanted: &Wanted<'_>,
        (place, which): (&Place, Which),
        device: OwnedFd,
        (of, desk): (Arc<Opened>, MakeDesk),
    ) -> Result<Arc<Image>, Failure> {
        let Wanted { file, dir, transport, .. } = *wanted;
        let not_closed =
            |error| tracing::error!(%error, file = %file.display(), "not closed cleanly");
        let shown = Shown::new(wanted, place, of)?;
        let config = Config {
            transport: transports::of_server(transport),
            locks: match wanted.tells_of_opens(place) {
                true => FileLocks::ViewToldOfClose,
                false => FileLocks::Kernel,
            },
            users: Users::ManyByNumber,
            ..Config::default()
        };
        let connection = match systx_fuse::serve(device, shown.requests(), config) {
            Ok(connection) => connection,
            Err(e) => {
                shown.end().unwrap_or_else(not_closed);
                let text = format!("cannot serve {}: {e}", dir.display());
                return Err(Failure::new(FailureKind::Unsupported, text)
                    .hint("`systx doctor` shows what this kernel offers"));
            }
        };
        let image = Arc::new(Image {
            at: ServedMount { dir: dir.to_owned(), dev: place.is.0, mount: place.is.1 },
            file: file.to_owned(),
            which,
            snapshot: wanted.snapshot.map(str::to_owned),
            label: shown.of.volume().label().to_owned(),
            transport: transports::of(&connection),
            threads: wanted.threads.cloned(),
            serving: Arc::new(Serving::new(connection)),
            shown: Mutex::new(rank::LEAF, Some(shown)),
            volumes: Arc::clone(wanted.volumes),
        });
        let begun = image.begin(wanted, place, desk).map_err(|e| refused("mount over", dir, e));
        if let Err(failure) = begun.and_then(|()| place.show(wanted)) {
            // Nobody has seen it, or had an answer of it that matters.
            image.end().unwrap_or_else(not_closed);
            return Err(failure);
        }
        Ok(image)
    }

    /// Transactions may work in it from now on, if it is the live tree.
    fn begin(
        self: &Arc<Self>,
        wanted: &Wanted<'_>,
        place: &Place,
        desk: MakeDesk,
    ) -> Result<(), Errno> {
        let of = |s: &Shown| (Arc::clone(&s.view), s.aliases.clone(), s.live.clone());
        let found = self.shown.lock().as_ref().map(of);
        let Some((view, aliases, Some(Live { volume, .. }))) = found else { return Ok(()) };
        if !wanted.tells_of_opens(place) {
            learn_opens(place.mount.as_fd())?;
        }
        let conflicts = wanted.conflicts();
        let connection = self.serving.connection().ok_or(Errno::NOTCONN)?;
        let this = Arc::downgrade(self);
        let this = move || this.upgrade().ok_or(Errno::NODEV);
        let caches = Arc::new(match place.is_roots() {
            true => connection.caches(move || this()?.open_root()),
            false => {
                let view = Arc::downgrade(&view);
                let way_to = move |node| view.upgrade().ok_or(Errno::NODEV)?.way_to(node);
                connection.caches_reached(move |node| this()?.open_by(way_to(node)?))
            }
        });
        let published = Arc::new(publication::Guarded::new(view, caches, conflicts.stall));
        volume.vol.guard(Arc::clone(&published));
        if let Some(live) = self.shown.lock().as_mut().and_then(|shown| shown.live.as_mut()) {
            live.published = Some(published);
        }
        if let Some(aliases) = aliases {
            let hall = Hall::new(&self.dir, aliases, conflicts, Arc::clone(&self.serving));
            hall.open(desk(&volume, &hall, Strays::default()));
            volume.set_hall(hall);
        }
        self.volumes.add_mounted(volume);
        Ok(())
    }

    /// Goes a way once.
    fn open_by(&self, way: Way) -> Result<OwnedFd, Errno> {
        let opened = self.reach(&way.path);
        if let (Some((dir, name)), Some(on)) = (way.forget, self.serving.connection()) {
            // It may not be there any more.
            let _ = on.invalidate_entry(dir, &name, false);
        }
        opened
    }

    /// What transactions in it share, as long as it is served and the live tree.
    pub fn volume(&self) -> Option<Arc<OpenVolume>> {
        let shown = self.shown.lock();
        let live = shown.as_ref().and_then(|shown| shown.live.as_ref());
        live.map(|live| Arc::clone(&live.volume))
    }

    /// Calls `ended` in a thread if the connection ends and nobody here has asked for it.
    pub fn watch(self: &Arc<Self>, ended: impl FnOnce(&Arc<Image>) + Send + 'static) {
        let image = Arc::downgrade(self);
        self.serving.watch(&self.dir, move || {
            if let Some(image) = Weak::upgrade(&image).filter(|image| image.serving.is_on()) {
                ended(&image);
            }
        });
    }

    /// What is open, as long as this mount is served.
    pub fn opened(&self) -> Option<Arc<Opened>> {
        self.shown.lock().as_ref().map(|shown| Arc::clone(&shown.of))
    }

    /// Ends its service, and closes the image if nothing else shows it; again: does nothing.
    ///
    /// # Errors
    /// What was not durable yet could not be made so.
    pub fn end(&self) -> io::Result<()> {
        let shown = self.shown.lock().take();
        shown.iter().for_each(|shown| shown.leave(&self.volumes));
        self.serving.end();
        shown.map_or(Ok(()), Shown::end)
    }

    /// As listings show it.
    pub fn listed(&self) -> MountedVolume {
        let say = |why: String| image_stopped(&why, &self.dir);
        MountedVolume {
            file: HostPath::from(self.file.as_path()),
            dir: HostPath::from(self.dir.as_path()),
            label: self.label.clone(),
            dev: self.dev,
            transport: self.transport,
            snapshot: self.snapshot.clone(),
            threads: self.threads.clone(),
            which: (self.which.0, self.which.1),
            dead: false,
            stopped: self.opened().and_then(|opened| opened.store.stopped()).map(say),
        }
    }
}

fn no_thread(file: &Path, e: &dyn std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Internal, format!("{}: {e}", file.display())).path(file)
}

fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Time { secs: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) }
}

/// What tells this opening from others; without random bytes, the time does.
fn salt() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(_) => u64::from_ne_bytes(bytes),
        Err(_) => now().secs.unsigned_abs() ^ u64::from(now().nanos) << 32,
    }
}

/// A file that cannot be opened.
pub(crate) fn cannot_open(file: &Path, e: &io::Error) -> Failure {
    let shown = file.display();
    let failure = match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => Failure::new(
            FailureKind::Busy,
            format!("{shown}: it is mounted by another daemon, or another process works on it"),
        )
        .hint("one daemon at a time has a volume open: unmount it there first, or wait"),
        io::ErrorKind::NotFound => Failure::new(FailureKind::NotFound, format!("{shown}: {e}"))
            .hint("systx mkfs FILE --size 10G makes an image"),
        io::ErrorKind::PermissionDenied => Failure::new(
            FailureKind::Io,
            format!("{shown}: you may not read and write it, and both are needed to mount it"),
        )
        .hint("mount a copy that is yours (cp); an image belongs to a user, a device to root"),
        io::ErrorKind::ReadOnlyFilesystem => Failure::new(FailureKind::Io, format!("{shown}: {e}"))
            .hint(
                "a volume is opened to be written, also to look at a snapshot: copy the image to \
                 where it can be",
            ),
        io::ErrorKind::InvalidInput => Failure::new(
            FailureKind::Invalid,
            format!("{shown}: neither a file nor a block device"),
        )
        .hint("name an image that systx mkfs has made, or a device"),
        _ => Failure::new(FailureKind::Io, format!("{shown}: {e}")),
    };
    failure.path(file)
}

/// What is no volume, or a damaged one.
fn cannot_use(file: &Path, e: &Error) -> Failure {
    let text = format!("{}: {e}", file.display());
    let failure = match e {
        Error::NotAVolume(_) => Failure::new(FailureKind::Invalid, text)
            .hint("is it the right file?  systx mkfs FILE makes a volume"),
        Error::Corrupt { .. } | Error::Unread { .. } => {
            Failure::new(FailureKind::Store, text).hint("systx fsck FILE names all damage")
        }
        _ => Failure::new(FailureKind::Io, text),
    };
    failure.path(file)
}

fn not_recovered(file: &Path, e: &OpenError) -> Failure {
    let shown = file.display();
    let failure = match e {
        OpenError::Damaged { what, .. } => {
            Failure::new(FailureKind::Store, format!("{shown}: {what}; nothing was changed"))
                .hint("systx fsck FILE names all damage")
        }
        OpenError::Io { source, .. } => Failure::new(FailureKind::Io, format!("{shown}: {source}"))
            .hint("look at the device (dmesg), or the file system that the image is on"),
        other => Failure::new(FailureKind::Store, format!("{shown}: {other}")),
    };
    failure.path(file)
}
