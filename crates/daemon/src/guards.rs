//! The life of guarded directories: mounted, unmounted, brought back after the death of a daemon.
//! Mounted volumes are in the same list (`volumes`).
//!
//! One at a time, behind one lock. Paths through a guarded mount are walked here (to find what a
//! user means, to unmount): these are threads of control connections, never those that answer the
//! mount.

use crate::fuse_mount::FS_TYPE;
use crate::guarded::{Guarded, MakeDesk, Replaced, Wanted};
use crate::hall::Conflicts;
use crate::holders::{self, Bypass, Sought};
use crate::image::Image;
use crate::keeper::Keeper;
use crate::mounts::{self, Mount};
use crate::protocol::{
    self, Failure, FailureKind, GuardedDir, Holder, HostPath, Mounted, Peer, Place, STALL_MS_MAX,
    Umount, Unmounted,
};
use crate::roster::{Entry, Roster};
use crate::served::{self, ServedMount};
use crate::strays::Strays;
use crate::thread_views::Desk;
use crate::transactions::Transactions;
use crate::unprotected;
use crate::volume::{self, Location, OpenVolume};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use systx_base::sync::{Mutex, rank};
use systx_protocol::modes::{self, Way};
use systx_protocol::runtime::Runtime;

mod volumes;

/// File systems that the kernel makes up: there is nothing in them to be guarded.
const KERNEL_TREES: [&str; 20] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devtmpfs",
    "devpts",
    "debugfs",
    "tracefs",
    "securityfs",
    "configfs",
    "fusectl",
    "bpf",
    "pstore",
    "mqueue",
    "hugetlbfs",
    "autofs",
    "binfmt_misc",
    "efivarfs",
    "selinuxfs",
    "nsfs",
];

/// How long a store may stay locked by a daemon that was killed.
const SUCCESSION_LIMIT: Duration = Duration::from_secs(20);

/// What there is once for all guarded directories.
pub(crate) struct Guards {
    table: Arc<Transactions>,
    /// For threads that outlive a call.
    me: Weak<Guards>,
    state: Mutex<State>,
}

/// What changes of it.
struct State {
    /// Where the list of them is kept; without it they end with the daemon.
    runtime: Option<Runtime>,
    keeper: Option<Keeper>,
    roster: Roster,
    /// Volumes that are mounted.
    images: Vec<Arc<Image>>,
}

impl State {
    /// Writes the list, and sees to it that there is a keeper exactly if something is guarded.
    fn settle(&mut self) -> Result<(), Failure> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        self.roster.save(&runtime.roster())?;
        if self.roster.is_empty() {
            self.keeper = None;
        } else if self.keeper.is_none() {
            let keeper = Keeper::start(runtime).map_err(|e| {
                Failure::new(FailureKind::Internal, format!("no keeper can be started: {e}"))
            })?;
            self.keeper = Some(keeper);
        }
        Ok(())
    }

    /// Where it is known which threads are in transactions of a directory that routes.
    fn strays(&self, identity: (u64, u64)) -> Option<PathBuf> {
        Some(Strays::path(self.runtime.as_ref()?.dir(), identity))
    }

    /// Whether a client sees what is mounted here.
    fn check_namespace(&self, of_client: u64) -> Result<(), Failure> {
        match self.runtime.as_ref().is_some_and(|r| r.namespace() != of_client) {
            true => Err(Failure::new(
                FailureKind::Invalid,
                "the daemon is in another mount namespace than you: the mount would not be seen \
                 here",
            )),
            false => Ok(()),
        }
    }

    fn strike(&mut self, dir: &Path) {
        let gone = self.roster.entries.iter().filter(|e| e.routed && e.dir.as_path() == dir);
        for path in gone.filter_map(|entry| self.strays((entry.ino, entry.dev))) {
            // Also where there is none.
            let _ = std::fs::remove_file(path);
        }
        self.roster.entries.retain(|e| e.dir.as_path() != dir);
        if let Err(failure) = self.settle() {
            tracing::error!("the list of guarded directories: {failure}");
        }
    }
}

/// Whether a change may be held that long.
fn check_stall(ms: u64) -> Result<(), Failure> {
    if ms <= STALL_MS_MAX {
        return Ok(());
    }
    let text = format!("a change is held for {STALL_MS_MAX} ms at most");
    Err(Failure::new(FailureKind::Invalid, text))
}

/// As it is listed.
fn entry(
    request: &protocol::Mount,
    dir: &Path,
    (ino, dev): (u64, u64),
    volume: &OpenVolume,
) -> Entry {
    Entry {
        dir: HostPath::from(dir),
        ino,
        dev,
        mount: HostPath::from(volume.location.mount.as_path()),
        store: HostPath::from(volume.location.store.as_path()),
        transport: request.transport,
        stall_ms: request.stall_ms,
        policy: request.policy,
        routed: request.routed,
        fast_open: request.fast_open,
        certifier: request.certifier.clone(),
    }
}

impl Guards {
    /// Nothing is guarded.
    pub(crate) fn new(runtime: Option<Runtime>, table: Arc<Transactions>) -> Arc<Guards> {
        let (keeper, images) = Default::default();
        let state = State { runtime, keeper, roster: Roster::empty(), images };
        let state = Mutex::new(rank::GUARDS, state);
        Arc::new_cyclic(|me| Guards { table, me: me.clone(), state })
    }

    /// The runtime directory, and the mount namespace.
    pub(crate) fn place(&self) -> Option<(PathBuf, u64)> {
        let state = self.state.lock();
        state.runtime.as_ref().map(|r| (r.dir().to_owned(), r.namespace()))
    }

    /// See [`protocol::call::Calls::guarded`].
    pub(crate) fn listed(&self) -> Vec<GuardedDir> {
        self.table.volumes.all_guarded().iter().map(|(_, g)| g.listed()).collect()
    }

    /// See [`protocol::call::Calls::mount`].
    pub(crate) fn guard(&self, peer: Peer, request: &protocol::Mount) -> Result<Mounted, Failure> {
        let mut guards = self.state.lock();
        let (dir, holder, volume) = self.may_be_guarded(&guards, request)?;
        let inner = holder.inner(&dir).ok_or_else(|| odd(&dir))?;
        let sought = Sought::Below { dir: dir.clone(), inner, dev: holder.dev };
        let but = [peer.pid];
        let past = holders::find(&sought, &but);
        if !past.is_empty() && !request.force {
            return Ok(Mounted::InUse { holders: past });
        }
        let bypasses = holders::bypasses(&dir, &holder);
        let stat = rustix::fs::lstat(&dir).map_err(|e| unreadable(&dir, e))?;
        // Before it is mounted: a mount that is on no list would stay behind dead.
        let identity = (stat.st_ino, stat.st_dev);
        guards.roster.entries.push(entry(request, &dir, identity, &volume));
        let mounted = guards.settle().and_then(|()| {
            self.mount_now(Wanted {
                dir: &dir,
                identity,
                volume: &volume,
                transport: request.transport,
                conflicts: Conflicts::new(request.stall_ms, request.policy)
                    .certified(&dir, request.certifier.as_ref()),
                fast_open: request.fast_open,
                routed: request.routed.then(|| guards.strays(identity)),
                past,
                notes: bypasses.iter().map(bypass_note).collect(),
                replaces: None,
                desk: self.desk(),
            })
        });
        let guarded = mounted.inspect_err(|_| guards.strike(&dir))?;
        // Somebody may have come in between the look and the mount.
        let late = holders::find(&sought, &but);
        let new = |h: &&Holder| !guarded.found.past.iter().any(|p| p.pid == h.pid);
        let late: Vec<Holder> = late.iter().filter(new).cloned().collect();
        if !late.is_empty() && !request.force {
            // Just mounted: nobody loses anything.
            let gone = guarded.unmount().or_else(|_| guarded.detach());
            guarded.end(&volume);
            guards.strike(&dir);
            gone.map_err(|e| not_unmounted(&dir, e))?;
            return Ok(Mounted::InUse { holders: late });
        }
        tracing::info!(?dir, transport = ?guarded.transport, "guarded");
        let mut listed = guarded.listed();
        listed.past.extend(late);
        Ok(Mounted::Guarded(listed))
    }

    /// The directory that is meant, the mount that holds it and its volume, if it may be guarded.
    fn may_be_guarded(
        &self,
        guards: &State,
        request: &protocol::Mount,
    ) -> Result<(PathBuf, Mount, Arc<OpenVolume>), Failure> {
        let given = request.dir.as_path();
        let is_user = !rustix::process::geteuid().is_root();
        let wanted = [modes::chosen([(is_user, Way::User)]), request.modes()].concat();
        modes::check(&wanted, given.display())?;
        guards.check_namespace(request.mnt_ns)?;
        check_stall(request.stall_ms)?;
        let dir = std::fs::canonicalize(given).map_err(|e| {
            Failure::new(FailureKind::Io, format!("cannot find {}: {e}", given.display()))
                .path(given)
        })?;
        let holder = self.check(guards, &dir)?;
        self.check_protected(&dir, request.certifier.is_some())?;
        let (cwd, store) = (HostPath::from(dir.as_path()), request.store.clone());
        let volume = self.table.volumes.at(&Place { cwd, root: None, store })?;
        volume.check(&wanted)?;
        check_store(&dir, &volume)?;
        self.check_no_other_engine(&dir, &volume)?;
        Ok((dir, holder, volume))
    }

    fn mount_now(&self, wanted: Wanted<'_>) -> Result<Arc<Guarded>, Failure> {
        let guarded = Guarded::over(wanted)?;
        let guards = self.me.clone();
        guarded.watch(move |guarded| {
            if let Some(guards) = guards.upgrade() {
                guards.guard_ended(guarded);
            }
        });
        Ok(guarded)
    }

    /// Makes what serves the threads that use a directory.
    pub(super) fn desk(&self) -> MakeDesk {
        let table = Arc::downgrade(&self.table);
        Box::new(move |volume, hall, strays| Desk::new(table, volume, hall, strays))
    }

    /// Whether `dir` (without symbolic links) may be guarded; the mount that holds it.
    fn check(&self, state: &State, dir: &Path) -> Result<Mount, Failure> {
        let no = |kind, text: String| Err(Failure::new(kind, text).path(dir));
        let shown = dir.display();
        if dir == Path::new("/") {
            let text = "/ cannot be guarded: what runs already holds it";
            return no(FailureKind::Invalid, text.into());
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let stat = rustix::fs::statx(CWD, dir, flags, mask).map_err(|e| unreadable(dir, e))?;
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
            return no(FailureKind::Invalid, format!("{shown} is not a directory"));
        }
        let dev = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        for (_, other) in self.table.volumes.all_guarded() {
            let theirs = other.dir.display();
            if other.dev == dev && other.dir == dir {
                return no(FailureKind::State, format!("{shown} is guarded already"));
            }
            if other.dev == dev || dir.starts_with(&other.dir) {
                let text = format!("{shown} lies in {theirs}, which is guarded as a whole");
                return no(FailureKind::Invalid, text);
            }
            if other.dir.starts_with(dir) {
                let text = format!("{theirs}, which lies in {shown}, is guarded already");
                return Err(Failure::new(FailureKind::Invalid, text)
                    .hint(format!("systx umount {theirs}, then guard the whole"))
                    .path(dir));
            }
        }
        let table = mounts::here().map_err(|e| {
            Failure::new(FailureKind::Io, format!("cannot read the mount table: {e}"))
        })?;
        let holder = table.iter().find(|m| m.id == stat.stx_mnt_id).ok_or_else(|| odd(dir))?;
        if KERNEL_TREES.contains(&holder.fs.as_str()) {
            let text = format!("{shown} belongs to the kernel ({}): nothing to guard", holder.fs);
            return no(FailureKind::Invalid, text);
        }
        if state.images.iter().any(|image| image.dev == holder.dev) {
            let refused = modes::refusal(Way::Guarded, Way::Volume, holder.at.display());
            return Err(refused.path(dir));
        }
        if holder.fs == FS_TYPE {
            let text = format!("{shown} is in a mount that another daemon of systx serves");
            return no(FailureKind::Invalid, text);
        }
        if holder.read_only {
            let text = format!("{shown} is mounted read-only: nothing there can change");
            return no(FailureKind::Invalid, text);
        }
        if let Some(inside) = table.iter().find(|m| m.at != dir && m.at.starts_with(dir)) {
            let text = format!("{} is mounted inside {shown}", inside.at.display());
            return Err(Failure::new(FailureKind::Invalid, text)
                .hint(
                    "a guarded directory lies on one file system: unmount it first, or guard \
                       directories beside it",
                )
                .path(dir));
        }
        Ok(holder.clone())
    }

    /// A directory that is not protected has nothing to be guarded; and where somebody else
    /// decides, nothing in it may be left out.
    fn check_protected(&self, dir: &Path, is_certified: bool) -> Result<(), Failure> {
        let marks = &self.table.volumes.unprotected;
        if let Some(mark) = marks.mark_of(dir) {
            return Err(unprotected::not_protected(dir, &mark));
        }
        match is_certified.then(|| marks.any_in(dir)).flatten() {
            Some(mark) => {
                let failure = modes::refusal(Way::Certifier, Way::Unprotected, mark.display());
                Err(failure.path(mark))
            }
            None => Ok(()),
        }
    }

    /// The same from the other side: nobody may be at work with another store.
    fn check_no_other_engine(&self, dir: &Path, volume: &Arc<OpenVolume>) -> Result<(), Failure> {
        let dev = volume.location.dev;
        let other = |v: &Arc<OpenVolume>| {
            !Arc::ptr_eq(v, volume) && v.location.dev == dev && self.table.in_use(v)
        };
        let Some(other) = self.table.volumes.all().into_iter().find(other) else { return Ok(()) };
        let store = other.location.store.display();
        let text = format!(
            "transactions with the store {store} are open on the file system of {}",
            dir.display()
        );
        Err(Failure::new(FailureKind::State, text).hint("systx list; end them first").path(dir))
    }

    /// See [`protocol::call::Calls::umount`].
    pub(crate) fn unguard(&self, peer: Peer, request: &Umount) -> Result<Unmounted, Failure> {
        let mut guards = self.state.lock();
        if let Some(done) = self.umount_volume(&mut guards, peer, request) {
            return done;
        }
        let (volume, guarded) = self.find_guarded(request.dir.as_path())?;
        let dir = guarded.dir.clone();
        let sought = Sought::Through { dev: guarded.dev };
        let but = [peer.pid];
        let users = holders::find(&sought, &but);
        let (mut cut, elsewhere) = (Vec::new(), guarded.elsewhere());
        // Processes in other namespaces are in nobody's way here, but would be cut off.
        let alone = users.is_empty() && guarded.copies().is_empty();
        let quietly = if alone { guarded.unmount() } else { Err(Errno::BUSY) };
        match quietly {
            Ok(()) => {}
            Err(Errno::BUSY) if !request.force => {
                let users = if users.is_empty() { holders::find(&sought, &but) } else { users };
                return Ok(Unmounted::InUse { holders: users, mounts: mounts_of(&guarded) });
            }
            Err(Errno::BUSY) => {
                guarded.detach().map_err(|e| not_unmounted(&dir, e))?;
                cut = users;
            }
            Err(e) => return Err(not_unmounted(&dir, e)),
        }
        guarded.end(&volume);
        guards.strike(&dir);
        tracing::info!(?dir, cut = cut.len(), "not guarded any more");
        let mut notes = guarded.left_notes(&elsewhere);
        for id in self.table.open_below(&volume, &dir) {
            notes.push(format!("transaction {id} has changes below {} and goes on", dir.display()));
        }
        Ok(Unmounted::Done { dir: HostPath::from(dir), cut, notes })
    }

    fn find_guarded(&self, given: &Path) -> Result<(Arc<OpenVolume>, Arc<Guarded>), Failure> {
        let all = self.table.volumes.all_guarded();
        let named = |path: &Path| {
            all.iter().find(|(_, g)| g.dir == path || g.place().as_deref() == Some(path)).cloned()
        };
        let resolved = || std::fs::canonicalize(given).ok();
        if let Some(found) = named(given).or_else(|| named(&resolved()?)) {
            return Ok(found);
        }
        let shown = given.display();
        let text = match served::is_ours_at(given) {
            true => format!("{shown} is guarded by another daemon"),
            false if given.is_file() => format!("{shown} is mounted nowhere"),
            false => format!("{shown} is not guarded, and no volume is mounted on it"),
        };
        Err(Failure::new(FailureKind::NotFound, text)
            .hint("`systx mount` lists the guarded directories and the mounted volumes")
            .path(given))
    }

    /// The connection of a guarded directory ended, and nobody here asked for it.
    fn guard_ended(&self, guarded: &Arc<Guarded>) {
        let mut guards = self.state.lock();
        let found =
            self.table.volumes.all_guarded().into_iter().find(|(_, g)| Arc::ptr_eq(g, guarded));
        let Some((volume, _)) = found else { return };
        let dir = guarded.dir.clone();
        let dead = guarded.place().is_some();
        guarded.end(&volume);
        if !dead {
            tracing::warn!(?dir, "unmounted from outside: not guarded any more");
            guards.strike(&dir);
            return;
        }
        tracing::error!(?dir, "the connection broke: mounting again");
        let entry = guards.roster.entries.iter().find(|e| e.dir.as_path() == dir).cloned();
        let again = match entry {
            Some(entry) if guards.roster.note_restart() => {
                self.bring_back(&entry, guards.strays((entry.ino, entry.dev)))
            }
            _ => Err(Failure::new(FailureKind::Internal, "it breaks again and again")),
        };
        if let Err(failure) = again {
            lost(&dir, &failure);
            guards.strike(&dir);
        }
    }

    /// Mounts again what a daemon before this one had mounted when it was killed.
    pub(crate) fn restore(&self) {
        let mut guards = self.state.lock();
        let Some(file) = guards.runtime.as_ref().map(Runtime::roster) else { return };
        guards.roster = Roster::load(&file);
        if guards.roster.is_empty() {
            return;
        }
        let calm = guards.roster.note_restart();
        // A death in what follows counts too.
        if let Err(failure) = guards.roster.save(&file) {
            tracing::error!("the list of guarded directories: {failure}");
        }
        let entries = std::mem::take(&mut guards.roster.entries);
        for entry in entries {
            let dir = entry.dir.as_path().to_owned();
            let back = match calm {
                true => self.bring_back(&entry, guards.strays((entry.ino, entry.dev))),
                false => {
                    // Who gets past the guard finds what was committed in its place.
                    if let Err(failure) = self.reopen(&entry) {
                        tracing::error!(?dir, "what was committed there: {failure}");
                    }
                    let text = "the daemon has died again and again";
                    Err(Failure::new(FailureKind::Internal, text))
                }
            };
            match back {
                Ok(()) => {
                    tracing::info!(?dir, "guarded again");
                    guards.roster.entries.push(entry);
                }
                Err(failure) => lost(&dir, &failure),
            }
        }
        self.bring_volumes_back(&mut guards, calm);
        if let Err(failure) = guards.settle() {
            tracing::error!("guarded directories: {failure}");
        }
    }

    /// The volume of what was guarded, recovered, with the last dead mount still over the directory
    /// if that can be.
    fn reopen(&self, entry: &Entry) -> Result<Arc<OpenVolume>, Failure> {
        let (dir, location) = (entry.dir.as_path(), entry.location());
        let cleared = |e| unreadable(dir, e);
        if location.mount == dir {
            // The dead mount covers the very root of the volume.
            served::clear_away(dir, 0).map_err(cleared)?;
        }
        served::clear_away(dir, 1).map_err(cleared)?;
        self.open_after_the_last(&location)
    }

    /// `strays`: where it is known which threads were in transactions there.
    fn bring_back(&self, entry: &Entry, strays: Option<PathBuf>) -> Result<(), Failure> {
        let dir = entry.dir.as_path();
        let volume = self.reopen(entry)?;
        let replaces = served::is_ours_at(dir);
        let backing = below(dir, &volume).map_err(|e| unreadable(dir, e))?;
        let mut past = Vec::new();
        if let Some(holder) = mount_of(&volume.location.mount)
            && let Some(inner) = holder.inner(dir)
        {
            let sought = Sought::Below { dir: dir.to_owned(), inner, dev: holder.dev };
            past = holders::find(&sought, &[]);
        }
        let guarded = self.mount_now(Wanted {
            dir,
            identity: (entry.ino, entry.dev),
            volume: &volume,
            transport: entry.transport,
            conflicts: Conflicts::new(entry.stall_ms, entry.policy)
                .certified(dir, entry.certifier.as_ref()),
            fast_open: entry.fast_open,
            routed: entry.routed.then_some(strays),
            past,
            notes: Vec::new(),
            replaces: replaces.then_some(Replaced { backing }),
            desk: self.desk(),
        })?;
        let past: Vec<u32> = guarded.found.past.iter().map(|h| h.pid).collect();
        if !past.is_empty() {
            tracing::warn!(?dir, ?past, "these processes are past the guard");
        }
        Ok(())
    }

    /// The volume of a daemon that was killed just now: the kernel may not have closed all of its
    /// files yet, the store's lock among them.
    fn open_after_the_last(&self, location: &Location) -> Result<Arc<OpenVolume>, Failure> {
        let until = Instant::now() + SUCCESSION_LIMIT;
        loop {
            match self.table.volumes.open_at(location.clone(), false) {
                Err(f) if f.kind == FailureKind::Busy && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }

    /// Unmounts everything: the daemon ends.
    pub(crate) fn end(&self) {
        let mut guards = self.state.lock();
        for (volume, guarded) in self.table.volumes.all_guarded() {
            let dir = guarded.dir.clone();
            let gone = match guarded.copies().is_empty() {
                true => guarded.unmount().or_else(|_| guarded.detach()),
                false => guarded.detach(),
            };
            match gone {
                Ok(()) => tracing::info!(?dir, "unmounted"),
                Err(e) => tracing::error!(?dir, "cannot be unmounted: {e}"),
            }
            guarded.end(&volume);
            guards.strike(&dir);
        }
        self.end_volumes(&mut guards);
        guards.keeper = None;
    }
}

/// A directory that cannot be guarded any more becomes an ordinary one.
fn lost(dir: &Path, why: &Failure) {
    tracing::error!(?dir, "not guarded any more: {why}");
    if let Err(e) = served::clear_away(dir, 0) {
        tracing::error!(?dir, "cannot unmount what is dead: {e}");
    }
}

/// Opens a directory of a volume, whatever is mounted over it.
fn below(dir: &Path, volume: &OpenVolume) -> Result<OwnedFd, Errno> {
    let mount = &volume.location.mount;
    let root = volume::open_root(mount).map_err(|_| Errno::NOENT)?;
    let relative = match dir.strip_prefix(mount) {
        Ok(rest) if !rest.as_os_str().is_empty() => rest,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, relative, flags, Mode::empty(), resolve)
}

fn mount_of(path: &Path) -> Option<Mount> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::MNT_ID).ok()?;
    mounts::here().ok()?.into_iter().find(|m| m.id == stat.stx_mnt_id)
}

/// Mount points inside a guarded directory, and where else it is mounted.
fn mounts_of(guarded: &ServedMount) -> Vec<HostPath> {
    let table = mounts::here().unwrap_or_default();
    let at = table.iter().find(|m| guarded.is(m)).map(|m| m.at.clone());
    let inside = |m: &&Mount| !guarded.is(m) && at.as_ref().is_some_and(|at| m.at.starts_with(at));
    let inside: Vec<PathBuf> = table.iter().filter(inside).map(|m| m.at.clone()).collect();
    inside.into_iter().chain(guarded.copies()).map(HostPath::from).collect()
}

fn check_store(dir: &Path, volume: &OpenVolume) -> Result<(), Failure> {
    let store: &PathBuf = &volume.location.store;
    if !dir.starts_with(store) {
        return Ok(());
    }
    let text = format!("{} belongs to the store of systx", dir.display());
    Err(Failure::new(FailureKind::Invalid, text).path(dir))
}

fn bypass_note(bypass: &Bypass) -> String {
    let at = bypass.at.display();
    match &bypass.seen_by {
        None => format!("it can also be changed, past the guard, through the mount at {at}"),
        Some((pid, command)) => format!(
            "processes in another mount namespace, such as {pid} ({command}), can change it past \
             the guard through their mount at {at}"
        ),
    }
}

fn unreadable(dir: &Path, e: Errno) -> Failure {
    Failure::new(FailureKind::Io, format!("cannot look at {}: {e}", dir.display())).path(dir)
}

fn odd(dir: &Path) -> Failure {
    let text = format!("cannot find the mount of {} in the mount table", dir.display());
    Failure::new(FailureKind::Invalid, text).path(dir)
}

fn not_unmounted(dir: &Path, e: Errno) -> Failure {
    let failure = match e {
        Errno::INVAL => {
            let text = format!("something else is mounted over {}", dir.display());
            Failure::new(FailureKind::State, text).hint("unmount that first")
        }
        e => Failure::new(FailureKind::Io, format!("cannot unmount {}: {e}", dir.display())),
    };
    failure.path(dir)
}
