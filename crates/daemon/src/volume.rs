//! Which volume a command works on: the file system that holds a directory, where it is mounted,
//! and where its store lives.

use crate::counts::Counts;
use crate::elsewhere::{self, Elsewhere};
use crate::guarded::Guarded;
use crate::hall::Hall;
use crate::ledger::Ledger;
use crate::mounts::{self, Mount};
use crate::protocol::{Failure, HostPath, Inspected, Recovered, VolumeFacts};
use crate::stopped::{image_stopped, outside_change, store_stopped};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock, Weak};
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};
use systx_commit::{Checkpoints, Relaxed, Site};
use systx_guard::shared::SharedVolume;
use systx_protocol::modes::{self, Way};
use systx_store::io::{Class, HostId, Io, Tree};
use systx_store::overlay::{described, is_overlay};
use systx_store::real::RealIo;
use systx_store::{
    Bundled, Config, Instance, Known, Lease, Looked, Member, OnDemand, OpenError, Opens, Past,
    RecoveryReport, Registry, Store, check_place, overlay_of,
};
use systx_txn::Stalls;
use systx_vfs::volume::Volume;

mod location;
mod mounted;
mod refused;
pub use location::{Location, locate};
use location::{device, note, seen};
use mounted::AsMounted;
pub use refused::VolumeError;
use refused::failed;

/// Of all volumes: a transaction has parts on several, of one id.
static STALLS: LazyLock<Arc<Stalls>> = LazyLock::new(Arc::default);

/// What is remembered of a volume while it is closed.
#[derive(Default)]
pub(crate) struct Memory {
    recovered: Reports,
    /// What happened on it.
    pub counts: Counts,
    /// See [`Config::bundled`].
    bundled: Bundled,
    /// See [`Config::looked`].
    looked: Looked,
}

/// What each opening of a volume's store is told, and what it tells.
struct Standing {
    /// Somebody has said that the store counts, whoever made it.
    trusted: AtomicBool,
    memory: Arc<Memory>,
}

/// What the recoveries of a store did, each time that it was opened.
struct Reports(Mutex<Told>);

#[derive(Default)]
struct Told {
    all: RecoveryReport,
    /// What nobody was told of yet.
    new: RecoveryReport,
}

impl Default for Reports {
    fn default() -> Reports {
        Reports(Mutex::new(rank::LEAF, Told::default()))
    }
}

impl Reports {
    fn add(&self, report: &RecoveryReport) {
        let mut told = self.0.lock();
        told.all.add(report);
        told.new.add(report);
    }
}

/// An open volume with its store.
pub struct OpenVolume {
    /// Where it is.
    pub location: Location,
    /// What views share.
    pub vol: Arc<SharedVolume>,
    /// The durable side, while somebody needs it.
    pub store: Arc<OnDemand>,
    standing: Arc<Standing>,
    /// On an overlay file system it is always open.
    _always: Option<Lease>,
    /// Of a log-structured volume: as long as it is mounted the store is open.
    image: Option<AsMounted>,
    /// The same two, as a commit knows them.
    pub site: Arc<Site>,
    /// What this machine has noted.
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) relaxed: Relaxed,
    guarded: Mutex<Vec<Arc<Guarded>>>,
    /// What a committed transaction changed, that was asked for last: a diff asks for many
    /// contents.
    looked: Mutex<Option<(TxnId, Arc<Vec<Past>>)>>,
    /// References to `vol` that this has by itself; views have more.
    own_references: usize,
}

impl OpenVolume {
    /// As a client must know it to build a view.
    pub(crate) fn facts(&self) -> VolumeFacts {
        VolumeFacts {
            root: HostPath::from(self.location.mount.as_path()),
            dev: self.location.dev,
            store: HostPath::from(self.location.store.as_path()),
            guarded: self.guarded().iter().map(|g| g.at()).collect(),
        }
    }

    /// The guarded directories of this volume.
    pub fn guarded(&self) -> Vec<Arc<Guarded>> {
        self.guarded.lock().clone()
    }

    /// Where threads have transactions in it.
    pub(crate) fn halls(&self) -> Vec<Arc<Hall>> {
        let below = self.guarded().into_iter().map(|guarded| Arc::clone(&guarded.hall));
        below.chain(self.image.as_ref().and_then(AsMounted::hall)).collect()
    }

    /// Why nothing is committed in it any more, and what to do: a sentence.
    pub(crate) fn stopped(&self) -> Option<String> {
        let why = self.store.if_open()?.stopped()?;
        Some(match &self.image {
            Some(_) => image_stopped(&why, &self.location.mount),
            None => store_stopped(&why),
        })
    }

    /// Keeps what a look at a committed transaction has found.
    pub(crate) fn has_looked_at(&self, id: TxnId, found: Arc<Vec<Past>>) {
        *self.looked.lock() = Some((id, found));
    }

    /// What the last look has found, if it was at this transaction.
    pub(crate) fn looked_at(&self, id: TxnId) -> Option<Arc<Vec<Past>>> {
        let looked = self.looked.lock();
        looked.as_ref().filter(|(of, _)| *of == id).map(|(_, found)| Arc::clone(found))
    }

    pub(crate) fn add_guarded(&self, guarded: Arc<Guarded>) {
        self.guarded.lock().push(guarded);
    }

    pub(crate) fn remove_guarded(&self, guarded: &Arc<Guarded>) {
        self.guarded.lock().retain(|g| !Arc::ptr_eq(g, guarded));
    }

    /// What happened on it, also before it was opened this time.
    pub fn counts(&self) -> &Counts {
        &self.standing.memory.counts
    }

    /// Keeps what its engine has counted: it is about to be closed.
    pub(crate) fn keep_counts(&self) {
        let stats = self.vol.engine.stats();
        self.counts().conflicts.fetch_add(stats.conflicts, Ordering::Relaxed);
        self.counts().waits.fetch_add(stats.waits, Ordering::Relaxed);
    }

    /// Nothing but the table of open volumes has it: no request, no transaction, no view that lives
    /// on after its commit, no guarded directory, no thread that closes or tidies its store.
    pub(crate) fn is_unused(self: &Arc<Self>) -> bool {
        self.may_be_unmounted()
            && Arc::strong_count(self) == 1
            && Arc::strong_count(&self.site) == 1
            && Arc::strong_count(&self.vol) <= self.own_references
            && self.store.is_closed()
    }

    /// Whether its file system would be unmounted by somebody, as far as this daemon guards nothing
    /// there.
    pub(crate) fn may_be_unmounted(&self) -> bool {
        let stays = self.site.is_root || self.is_overlay() || self.image.is_some();
        !stays && self.guarded.lock().is_empty()
    }

    /// Every place at which something else is mounted, or the original of what is not protected, so
    /// that a view shows that. Below the guarded directories of this volume a view sees what they
    /// show. No mounts if the mount table cannot be read.
    ///
    /// With `mounts`, the view has the host's mounts as well. Then a place is none of these whose
    /// own content is seen by one of them: of a directory that is mounted onto itself, say.
    pub fn mount_points(&self, unprotected: &[HostPath], mounts: bool) -> Vec<Vec<u8>> {
        let guarded = self.guarded();
        let ours = |m: &Mount| guarded.iter().any(|g| g.is(m));
        let table = mounts::here().unwrap_or_default();
        let seen = if mounts { seen(&table, &self.location.mount) } else { Vec::new() };
        let others = table.into_iter().filter(|m| !ours(m) && !seen.contains(&m.at));
        let others = others.map(|m| m.at.into_os_string().into_vec());
        others.chain(unprotected.iter().map(|path| path.0.clone())).collect()
    }

    /// What recovery did when the volume was opened, as sentences; empty if there was nothing to
    /// do.
    pub fn recovery_notes(&self) -> Vec<String> {
        let report = self.standing.memory.recovered.0.lock().all.clone();
        self.recovered(&report).notes
    }

    /// What recovery did, for whoever asks first.  Everybody else is told that there was nothing
    /// to do.
    pub fn tell_recovered(&self) -> Recovered {
        let report = std::mem::take(&mut self.standing.memory.recovered.0.lock().new);
        self.recovered(&report)
    }

    /// Other stores of the transactions that recovery has met.
    pub(crate) fn other_members(&self) -> Vec<Member> {
        self.standing.memory.recovered.0.lock().all.others.clone()
    }

    /// Somebody has said that the store counts, whoever made it.
    pub(crate) fn trust(&self, trusted: bool) {
        self.standing.trusted.fetch_or(trusted, Ordering::Relaxed);
    }

    /// The store, open as long as this lives.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn lease(&self) -> Result<Lease, Failure> {
        Ok(self.store.lease().map_err(|error| self.refused(error))?)
    }

    /// As [`OpenVolume::lease`], for as long as somebody likes.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn lasting(&self) -> Result<Lease, Failure> {
        Ok(self.store.lasting().map_err(|error| self.refused(error))?)
    }

    /// As [`OpenVolume::lease`], before a commit; see [`OnDemand::turn`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn turn(&self) -> Result<Lease, Failure> {
        Ok(self.store.turn().map_err(|error| self.refused(error))?)
    }

    /// As [`OpenVolume::lease`], if there is one: makes none.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn existing(&self) -> Result<Option<Lease>, Failure> {
        Ok(self.store.existing().map_err(|error| self.refused(error))?)
    }

    /// Finishes what another process has left in the store; the lease if it is open.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn finish_left(&self) -> Result<Option<Lease>, Failure> {
        // A list of what is to be done, of which nobody knows whether it is due.
        let undecided = |store| self.ledger.is_undecided(store);
        if let Ok(below) = self.location.store.strip_prefix(&self.location.mount) {
            self.vol.hide_name(place_of(&*self.vol.tree, below.as_os_str().as_bytes()));
        }
        Ok(self.store.finish_left(undecided).map_err(|error| self.refused(error))?)
    }

    /// Before a transaction begins that may commit: see [`OnDemand::make_way`].  Where that
    /// fails, its commit will say so.
    pub(crate) fn make_way(&self) {
        let store = &self.location.store;
        // As a rule; and the place is checked again by whoever makes the store.
        if store.parent().is_some_and(Path::is_dir) {
            return;
        }
        if let Err(error) = self.store.make_way(elsewhere::own()) {
            tracing::warn!(%error, "the way to a store");
        }
    }

    fn refused(&self, error: OpenError) -> VolumeError {
        refused(&self.location, error)
    }

    fn recovered(&self, report: &RecoveryReport) -> Recovered {
        let mut notes = Vec::new();
        if !report.finished.is_empty() {
            let ids: Vec<_> = report.finished.iter().map(ToString::to_string).collect();
            notes.push(format!("recovery finished transaction {}", ids.join(", ")));
        }
        if report.discarded {
            notes.push("recovery discarded a commit that was cut off before its decision".into());
        }
        if !report.dropped.is_empty() {
            let ids: Vec<_> = report.dropped.iter().map(ToString::to_string).collect();
            let text = "recovery dropped what was prepared of transaction";
            notes.push(format!("{text} {}, which was never committed", ids.join(", ")));
        }
        let outside = report.outside.iter();
        let outside = outside.map(|c| outside_change(|path| self.absolute(path), c)).collect();
        Recovered {
            store: HostPath::from(self.location.store.as_path()),
            finished: report.finished.len() as u64,
            discarded: report.discarded.into(),
            outside,
            notes,
        }
    }

    /// What other file systems have to be mounted for: sentences.
    pub fn waiting_notes(&self) -> Vec<String> {
        let others = Elsewhere { owner: elsewhere::own(), ledger: &self.ledger };
        let say = |member| {
            format!(
                "part of a committed transaction waits in {}: mount that file system, then run `systx recover`",
                elsewhere::named(member)
            )
        };
        let Ok(Some(store)) = self.finish_left() else { return Vec::new() };
        others.settle(&*store).iter().map(say).collect()
    }

    /// Whether it is an overlay file system.
    pub fn is_overlay(&self) -> bool {
        self._always.is_some()
    }

    /// What is special about its file system: sentences.
    fn kind_notes(&self) -> Vec<String> {
        self.is_overlay().then(|| described(self.location.dev)).into_iter().collect()
    }

    /// Whether something goes on there in these modes.
    ///
    /// # Errors
    /// One of them excludes what this file system is.
    pub(crate) fn check(&self, wanted: &[Way]) -> Result<(), Failure> {
        let is_volume = self.image.is_some();
        let own = modes::chosen([(self.is_overlay(), Way::Overlay), (is_volume, Way::Volume)]);
        let mount = self.location.mount.as_path();
        modes::check(&[own.as_slice(), wanted].concat(), mount.display())
            .map_err(|failure| failure.path(mount))
    }

    /// Facts for `doctor`.
    pub fn inspected(&self) -> Inspected {
        let class = match self.site.class {
            Class::Strong => "journaled: renames are atomic and ordered across a power cut",
            Class::Weak => "not journaled: commits are installed in two synced steps",
            Class::Memory => "in memory: nothing survives a power cut",
        };
        Inspected {
            root: HostPath::from(self.location.mount.as_path()),
            store: HostPath::from(self.location.store.as_path()),
            class: class.into(),
            pending: 0,
            bytes: disk_usage(&self.location.store),
            notes: [self.kind_notes(), self.recovery_notes(), self.waiting_notes()].concat(),
        }
    }

    /// The absolute host path of a path below the volume's root.
    pub fn absolute(&self, relative: &[u8]) -> Vec<u8> {
        self.site.absolute(relative)
    }
}

/// What one opening asks about a store.
struct Asked {
    ledger: Arc<Ledger>,
    store: PathBuf,
    /// Whoever made it, somebody has said that it counts.
    trusted: bool,
}

impl Known for Asked {
    fn knows(&self, store: u64) -> bool {
        self.trusted || self.ledger.knows(store)
    }

    fn note(&self, store: u64) -> io::Result<()> {
        self.ledger.note(store, &self.store)
    }
}

/// What the opening of a volume's store needs.
struct Opener {
    config: Config,
    io: Arc<dyn Io>,
    location: Location,
    ledger: Arc<Ledger>,
    standing: Arc<Standing>,
    /// Whose views hide the store.
    vol: Arc<OnceLock<Weak<SharedVolume>>>,
}

impl Opens for Opener {
    /// Runs recovery if the store needs it.
    fn open(&self) -> Result<Arc<dyn Store>, OpenError> {
        let (ledger, store) = (&self.ledger, &self.location.store);
        let trusted = self.standing.trusted.load(Ordering::Relaxed);
        let asked = Asked { ledger: Arc::clone(ledger), store: store.clone(), trusted };
        let registry = Registry::new(Arc::new(asked));
        let config = Config { registry, ..self.config.clone() };
        let others = Elsewhere { owner: elsewhere::own(), ledger };
        let (opened, report) = systx_store::open_among(config, Arc::clone(&self.io), &others)?;
        self.standing.memory.recovered.add(&report);
        note(&self.location);
        if let Some(vol) = self.vol.get().and_then(Weak::upgrade) {
            vol.hide_store(opened.own_object());
        }
        if let Some(number) = opened.known_as() {
            let known = trusted || ledger.knows(number);
            bring_up_to_date(ledger, number, &*opened, known.then_some(store));
            others.settle(&*opened);
        }
        Ok(opened)
    }

    fn removes(&self) {
        if let Some(vol) = self.vol.get().and_then(Weak::upgrade) {
            vol.hide_store(None);
        }
    }
}

/// Whether a store can be written, or made, when something is committed: asked before anything is
/// done that could not be committed.
fn check_writable(store: &Path) -> Result<(), VolumeError> {
    use rustix::fs::{Access, access};
    let asked = access(home_of(store), Access::WRITE_OK | Access::EXEC_OK);
    asked.map_err(|e| failed("write to", store, e.into()))
}

/// The directory of a store, or the nearest one above it as long as it has none.
fn home_of(store: &Path) -> &Path {
    store.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"))
}

/// The directory of a path below a root, if that is there, and the name in it.
fn place_of(tree: &dyn Tree, path: &[u8]) -> Option<(HostId, Vec<u8>)> {
    let mut parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    let (name, mut at) = (parts.pop()?, tree.root());
    for part in parts {
        at = tree.open_dir(&at, part).ok()?;
    }
    Some((tree.stat(&at).ok()?.id, name.to_vec()))
}

fn refused(location: &Location, error: OpenError) -> VolumeError {
    let path = location.store.display().to_string();
    VolumeError::Store { path, error: error.as_on_host(&location.mount) }
}

/// The path of a mount; `/` is empty.
fn without_slash(mount: &Path) -> Vec<u8> {
    match mount.as_os_str().as_bytes() {
        b"/" => Vec::new(),
        path => path.to_vec(),
    }
}

/// How the store `below` a mount is opened.
fn config(
    mount: &Path,
    owner: systx_store::Owner,
    below: &[u8],
    memory: &Memory,
) -> Result<Config, VolumeError> {
    Ok(Config {
        instance: instance(mount)?,
        owner: Some(owner),
        bundled: memory.bundled.clone(),
        looked: memory.looked.clone(),
        seed: seed(),
        committer_applies: true,
        ..Config::new(below)
    })
}

/// Opens a volume.  Its store is opened when it is needed.
/// `memory`: of earlier openings.
///
/// # Errors
/// Its file system, or the place of its store, cannot be used.
pub(crate) fn open(
    location: &Location,
    ledger: &Arc<Ledger>,
    memory: Arc<Memory>,
) -> Result<OpenVolume, VolumeError> {
    let real = RealIo::from_dir(open_root(&location.mount)?);
    let real = real.map_err(|e| failed("open", &location.mount, e))?;
    let real = Arc::new(real.has_store_in(home_of(&location.store)));
    let io: Arc<dyn Io> = real.clone();
    let info = io.fs_info().map_err(|e| failed("look at", &location.mount, e))?;
    let no_store = |_| VolumeError::NoStore { mount: location.mount.display().to_string() };
    let relative = location.store.strip_prefix(&location.mount).map_err(no_store)?;
    let refused = |error| refused(location, error);
    let (owner, below) = (elsewhere::own(), relative.as_os_str().as_bytes());
    check_place(&*io, below, owner).map_err(refused)?;
    check_writable(&location.store)?;
    if is_overlay(info.magic) && !has_lasting_numbers(location)? {
        return Err(VolumeError::Overlay { mount: location.mount.display().to_string() });
    }
    let config = config(&location.mount, owner, below, &memory)?;
    let versions = config.versions.clone();
    let standing = Arc::new(Standing { trusted: AtomicBool::new(false), memory });
    let opened = Arc::new(OnceLock::new());
    let opener = Opener {
        config,
        io: Arc::clone(&io),
        location: location.clone(),
        ledger: Arc::clone(ledger),
        standing: Arc::clone(&standing),
        vol: Arc::clone(&opened),
    };
    let store = OnDemand::new(io.clone(), below, opener);
    let always = is_overlay(info.magic).then(|| store.lease()).transpose().map_err(refused)?;
    let overlay = overlay_of(&io, below).map_err(refused)?;
    let hidden = HashSet::from_iter(ledger_on(location.dev, ledger));
    let vol = Volume::new(io, without_slash(&location.mount), hidden)
        .map_err(|e| failed("look at", &location.mount, e.into()))?
        .sharing(&STALLS)
        .with_overlay(overlay)
        .with_locks(real.clone());
    vol.hide_store(always.as_ref().and_then(|store| store.own_object()));
    let vol = Arc::new(SharedVolume::over(vol));
    let _ = opened.set(Arc::downgrade(&vol));
    versions.by(vol.clone());
    let programs = Arc::downgrade(&vol);
    real.ask_first(move |file| programs.upgrade()?.openers(file));
    let site = Site {
        vol: Arc::clone(&vol),
        store: Arc::clone(&store),
        class: info.class,
        checkpoints: Checkpoints::new(),
        store_path: location.store.as_os_str().as_bytes().to_vec(),
        is_root: location.mount == Path::new("/"),
        is_image: false,
    };
    Ok(OpenVolume {
        location: location.clone(),
        own_references: Arc::strong_count(&vol),
        vol,
        store,
        site: Arc::new(site),
        standing,
        _always: always,
        image: None,
        ledger: Arc::clone(ledger),
        relaxed: Relaxed::new(),
        guarded: Mutex::new(rank::LEAF, Vec::new()),
        looked: Mutex::new(rank::LEAF, None),
    })
}

/// What the ledger has of a store that was recovered; `at`: where, if it is this machine's.
fn bring_up_to_date(ledger: &Ledger, number: u64, store: &dyn Store, at: Option<&PathBuf>) {
    let noted = at.map_or(Ok(()), |at| ledger.note(number, at));
    let settled = noted.and_then(|()| ledger.settle(number, |txn| store.has_history(txn)));
    if let Err(error) = settled {
        tracing::warn!(%error, "{} could not be brought up to date", ledger.dir().display());
    }
}

/// The ledger's directory, if it is on this file system.
fn ledger_on(dev: u64, ledger: &Ledger) -> Option<HostId> {
    let io = RealIo::open(ledger.dir()).ok()?;
    let stat = io.stat(&io.root()).ok()?;
    (stat.dev == dev).then_some(stat.id)
}

/// Whether inode numbers of an overlay stay what they are when a file is copied up. Where they do,
/// all that is in it has the device number of the overlay; where they do not, a file has another
/// one than a directory.
fn has_lasting_numbers(location: &Location) -> Result<bool, VolumeError> {
    let lock = location.store.join("lock");
    let mut made = Vec::new();
    if lock.symlink_metadata().is_err() {
        if let Some(parent) = location.store.parent().filter(|parent| !parent.is_dir()) {
            std::fs::create_dir_all(parent).map_err(|e| failed("create", parent, e))?;
        }
        // As the store would make them: of what is there already nothing is changed.
        let new = std::fs::DirBuilder::new().mode(0o700).create(&location.store).is_ok();
        made.extend(new.then(|| location.store.clone()));
        let options = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
        options.open(&lock).map_err(|e| failed("create", &lock, e))?;
        made.push(lock.clone());
    }
    let lasting = device(&lock)? == device(&location.mount)?;
    if !lasting {
        for path in made.iter().rev() {
            let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path));
        }
    }
    Ok(lasting)
}

/// The mount instance of a file system, looked at where it is mounted.
fn instance(mount: &Path) -> Result<Instance, VolumeError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(mount, flags, Mode::empty());
    Ok(Instance::of(dir.map_err(|e| failed("open", mount, e.into()))?.as_fd()))
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    // Without random bytes the identity of a new store is still distinct by its creation time.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// The volume's root without what is mounted below it; where the kernel does not allow that
/// (without privilege), the ordinary root, where mount points show the other file system and are
/// passed over.
pub(crate) fn open_root(mount: &Path) -> Result<OwnedFd, VolumeError> {
    use rustix::mount::{OpenTreeFlags, open_tree};
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(CWD, mount, flags) {
        Ok(fd) => Ok(fd),
        Err(Errno::PERM | Errno::NOSYS | Errno::INVAL | Errno::ACCESS) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(mount, flags, Mode::empty())
                .map_err(|e| failed("open", mount, e.into()))
        }
        Err(e) => Err(failed("open", mount, e.into())),
    }
}

/// Bytes allocated below a directory; what cannot be read counts as nothing.
fn disk_usage(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => disk_usage(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
