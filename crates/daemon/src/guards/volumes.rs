//! Log-structured volumes: mounted, unmounted, brought back after the death of a daemon.

use super::{Guards, SUCCESSION_LIMIT, State, check_stall, not_unmounted};
use crate::fuse_mount::FS_TYPE;
use crate::holders::{self, Sought};
use crate::image::{Image, Opened, Wanted, Which, cannot_open};
use crate::mounts;
use crate::protocol::{
    Failure, FailureKind, Holder, HostPath, MountVolume, MountedVolume, Peer, SnapshotChange,
    Snapshots, Umount, Unmounted, VolumeSnapshot,
};
use crate::roster::VolumeEntry;
use crate::served;
use crate::snapshots;
use crate::transaction::Transaction;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_protocol::modes::{self, Way};

impl State {
    /// What is open of an image.
    pub(super) fn opened(&self, which: Which) -> Option<Arc<Opened>> {
        self.images.iter().filter(|image| image.which == which).find_map(|image| image.opened())
    }

    /// Those whose mounts are there, and nobody serves.
    fn dead(&self) -> impl Iterator<Item = &VolumeEntry> {
        let is_served = |dir: &Path| self.images.iter().any(|image| image.dir == dir);
        self.roster.volumes.iter().filter(move |entry| !is_served(entry.dir.as_path()))
    }

    /// Strikes those whose dead mounts somebody has taken away.
    fn strike_gone(&mut self) {
        let gone = self.dead().filter(|entry| !served::is_ours_at(entry.dir.as_path()));
        let gone: Vec<HostPath> = gone.map(|entry| entry.dir.clone()).collect();
        self.roster.volumes.retain(|entry| !gone.contains(&entry.dir));
    }

    /// Where the live tree of an image was mounted that could not be brought back.
    fn dead_mount_of(&self, which: Which) -> Option<HostPath> {
        let is_it = |entry: &&VolumeEntry| {
            let named = || Which::of(entry.file.as_path()).ok();
            let its = entry.identity.as_ref().map(Which::known).or_else(named);
            entry.snapshot.is_none() && its == Some(which)
        };
        self.dead().find(is_it).map(|entry| entry.dir.clone())
    }

    /// Takes the dead mount of a volume away that could not be brought back, if it is that.
    fn umount_dead(&mut self, dir: &Path) -> Option<Result<Unmounted, Failure>> {
        self.dead().find(|entry| entry.dir.as_path() == dir)?;
        if let Err(e) = served::clear_away(dir, 0) {
            return Some(Err(not_unmounted(dir, e)));
        }
        self.roster.volumes.retain(|entry| entry.dir.as_path() != dir);
        let dir = HostPath::from(dir);
        let done = Unmounted::Done { dir, cut: Vec::new(), notes: Vec::new() };
        Some(self.settle().map(|()| done))
    }

    /// The mount of an image, if there is one only.
    fn only_mount(&self, which: Which) -> Option<&Arc<Image>> {
        let mut mounts = self.images.iter().filter(|image| image.which == which);
        mounts.next().filter(|_| mounts.next().is_none())
    }

    /// What is said of an image with several mounts, by which it does not tell the one that is meant.
    fn several_mounts(&self, which: Which) -> Option<Failure> {
        let its = self.images.iter().filter(|image| image.which == which);
        let all: Vec<_> = its.clone().map(|image| image.dir.display().to_string()).collect();
        let file = its.clone().next()?.file.as_path();
        let text = format!("{} is mounted on {}", file.display(), all.join(" and on "));
        let hint = "name the directory of the mount that is to end";
        Some(Failure::new(FailureKind::Invalid, text).hint(hint).path(file))
    }

    /// Whether this is the last mount of an image that has no name any more.
    fn would_lose(&self, image: &Image) -> bool {
        let is_removed = || image.opened().is_some_and(|opened| opened.is_removed());
        self.only_mount(image.which).is_some() && is_removed()
    }

    /// A volume is not mounted any more.
    fn strike_volume(&mut self, image: &Arc<Image>) {
        self.images.retain(|other| !Arc::ptr_eq(other, image));
        self.roster.volumes.retain(|entry| entry.dir.as_path() != image.dir);
        if let Err(failure) = self.settle() {
            tracing::error!("the list of mounted volumes: {failure}");
        }
    }
}

/// Nobody can mount it again.
fn last_way(image: &Image) -> Failure {
    let (file, dir) = (image.file.display(), image.dir.display());
    let text = format!("{file} was removed: what is in {dir} is lost when it is unmounted");
    let hint = "copy what is still needed to somewhere else; then --force";
    Failure::new(FailureKind::State, text).hint(hint).path(image.dir.as_path())
}

/// As listings show what nobody serves.
fn listed_dead(entry: &VolumeEntry) -> MountedVolume {
    MountedVolume {
        file: entry.file.clone(),
        dir: entry.dir.clone(),
        label: String::new(),
        dev: 0,
        transport: entry.transport,
        snapshot: entry.snapshot.clone(),
        threads: entry.threads.clone(),
        which: entry.identity.as_ref().map_or((0, 0), |identity| identity.at),
        dead: true,
        stopped: None,
    }
}

/// Without symbolic links.
fn resolved(path: &Path) -> Result<PathBuf, Failure> {
    std::fs::canonicalize(path).map_err(|e| {
        let text = format!("cannot find {}: {e}", path.display());
        let failure = Failure::new(FailureKind::Io, text).path(path);
        match Errno::from_io_error(&e) {
            Some(Errno::NOTCONN) => failure.hint("what served it is dead: systx umount DIR first"),
            _ => failure,
        }
    })
}

/// What lies in a mount that a daemon of systx serves cannot carry one: the daemon would have to
/// ask itself, or another one that may ask it.
fn check_outside(path: &Path) -> Result<(), Failure> {
    let table = mounts::here()
        .map_err(|e| Failure::new(FailureKind::Io, format!("cannot read the mount table: {e}")))?;
    match mounts::holding(&table, path).filter(|mount| mount.fs == FS_TYPE) {
        Some(mount) => {
            let (path, at) = (path.display(), mount.at.display());
            let text = format!("{path} lies in {at}, which is mounted by systx");
            Err(Failure::new(FailureKind::Invalid, text)
                .hint("image and directory of a volume lie outside of such mounts"))
        }
        None => Ok(()),
    }
}

/// The next daemon opens the image again, by its path, and whoever has mounted something below the
/// directory could not reach it any more.
fn check_hides_nothing(dir: &Path, file: &Path) -> Result<(), Failure> {
    let table = mounts::here().unwrap_or_default();
    let below = |path: &Path| path != dir && path.starts_with(dir);
    let hidden = match table.iter().find(|mount| below(&mount.at)) {
        Some(mount) => format!("{}, where something is mounted", mount.at.display()),
        None if below(file) => format!("{}, the image itself", file.display()),
        None => return Ok(()),
    };
    let text = format!("a mount on {} would hide {hidden}", dir.display());
    Err(Failure::new(FailureKind::State, text).hint("mount it on another directory").path(dir))
}

/// Another image may have come to the path: programs would go on in a volume that they do not mean.
fn check_same(entry: &VolumeEntry, which: Which, opened: Option<&Opened>) -> Result<(), Failure> {
    let file = entry.file.as_path();
    match entry.identity {
        Some(identity) if which.identity(file, opened)? != identity => {
            let text = format!("{} is another image than the one that was mounted", file.display());
            Err(Failure::new(FailureKind::State, text).path(file))
        }
        _ => Ok(()),
    }
}

/// Threads have transactions in a live tree.
fn check_threads(request: &MountVolume, dir: &Path) -> Result<(), Failure> {
    let Some(how) = &request.threads else { return Ok(()) };
    check_stall(how.stall_ms)?;
    if request.snapshot.is_some() {
        return Err(modes::refusal(Way::Thread, Way::Moment, dir.display()).path(dir));
    }
    Ok(())
}

impl Guards {
    /// See [`crate::protocol::call::Calls::volumes`].
    pub(crate) fn volumes(&self) -> Vec<MountedVolume> {
        let mut state = self.state.lock();
        state.strike_gone();
        let mut all: Vec<_> = state.images.iter().map(|i| i.listed()).collect();
        all.extend(state.dead().map(listed_dead));
        drop(state);
        all.sort_by(|a, b| a.dir.as_path().cmp(b.dir.as_path()));
        all
    }

    /// Whether any is mounted.
    pub(crate) fn has_volumes(&self) -> bool {
        !self.state.lock().images.is_empty()
    }

    /// See [`crate::protocol::call::Calls::mount_volume`].
    pub(crate) fn mount_volume(&self, request: &MountVolume) -> Result<MountedVolume, Failure> {
        let mut state = self.state.lock();
        state.check_namespace(request.mnt_ns)?;
        let given = request.file.as_path();
        let file = std::fs::canonicalize(given).map_err(|e| cannot_open(given, &e))?;
        let dir = resolved(request.dir.as_path())?;
        let which = Which::of(&file)?;
        let live = |image: &&Arc<Image>| image.which == which && image.snapshot.is_none();
        if let Some(other) = state.images.iter().find(live).filter(|_| request.snapshot.is_none()) {
            let text = format!("{} is mounted already, on {}", file.display(), other.dir.display());
            return Err(Failure::new(FailureKind::State, text)
                .hint(format!("systx umount {} ends that", other.dir.display()))
                .path(file.as_path()));
        }
        state.strike_gone();
        if let Some(other) = state.dead_mount_of(which).filter(|_| request.snapshot.is_none()) {
            let (image, at) = (file.display(), other.as_path().display());
            let text = format!("{image} is mounted on {at}, where nobody serves it any more");
            return Err(Failure::new(FailureKind::State, text)
                .hint(format!("systx umount {at} takes the dead mount away"))
                .path(file.as_path()));
        }
        if !dir.is_dir() || dir == Path::new("/") {
            let what = if dir.is_dir() { "not on /" } else { "and this is none" };
            let text = format!("{}: a volume is mounted on a directory, {what}", dir.display());
            return Err(Failure::new(FailureKind::Invalid, text).path(dir.as_path()));
        }
        check_outside(&file)?;
        check_outside(&dir)?;
        check_hides_nothing(&dir, &file)?;
        check_threads(request, &dir)?;
        let opened = state.opened(which);
        let identity = which.identity(&file, opened.as_deref())?;
        // Before it is mounted: a mount that is on no list would stay behind dead.
        state.roster.volumes.push(VolumeEntry {
            file: HostPath::from(file.as_path()),
            dir: HostPath::from(dir.as_path()),
            transport: request.transport,
            snapshot: request.snapshot.clone(),
            threads: request.threads.clone(),
            identity: Some(identity),
        });
        let mounted = state.settle().and_then(|()| {
            self.mount_image(&Wanted {
                file: &file,
                dir: &dir,
                transport: request.transport,
                snapshot: request.snapshot.as_deref(),
                threads: request.threads.as_ref(),
                opened,
                volumes: &self.table.volumes,
                replaces: false,
            })
        });
        match mounted {
            Ok(image) => {
                tracing::info!(file = %file.display(), ?dir, "mounted");
                let listed = image.listed();
                state.images.push(image);
                Ok(listed)
            }
            Err(failure) => {
                state.roster.volumes.pop();
                if let Err(failure) = state.settle() {
                    tracing::error!("the list of mounted volumes: {failure}");
                }
                Err(failure)
            }
        }
    }

    /// See [`crate::protocol::call::Calls::snapshots`].
    pub(crate) fn snapshots(&self, about: &Snapshots) -> Result<Vec<VolumeSnapshot>, Failure> {
        // Held, so that it is not unmounted meanwhile.
        let state = self.state.lock();
        let path = about.volume.as_path();
        let which = Which::of(path).ok();
        let is_it = |image: &&Arc<Image>| {
            Some(image.which) == which
                || image.dir == path
                || image.place().as_deref() == Some(path)
        };
        let image = state.images.iter().find(is_it);
        let Some((image, opened)) = image.and_then(|i| Some((i, i.opened()?))) else {
            let text = format!("{} is no volume that is mounted here", path.display());
            return Err(Failure::new(FailureKind::NotFound, text)
                .hint("systx mount lists those that are")
                .path(path));
        };
        if let (Some(shown), SnapshotChange::Make(_)) = (&image.snapshot, &about.change)
            && Some(image.which) != which
        {
            let text = format!("{} shows the snapshot {shown:?} of a volume", path.display());
            let hint = format!(
                "a snapshot is made of {}, or of where that is mounted",
                image.file.display()
            );
            return Err(Failure::new(FailureKind::Invalid, text).hint(hint).path(path));
        }
        snapshots::change(opened.volume(), &image.file, &about.change)
    }

    /// The transactions that work in a volume.
    fn working_in(&self, image: &Image) -> Vec<Arc<Transaction>> {
        let Some(volume) = image.volume() else { return Vec::new() };
        self.table.open().into_iter().filter(|txn| txn.works_on(&volume)).collect()
    }

    /// Ends them, and what is still in use of others: the volume is not served any more.  One that
    /// is being committed goes on.
    fn end_working_in(&self, image: &Image) {
        for txn in self.working_in(image) {
            let Ok(_turn) = self.table.turn(&txn) else { continue };
            self.table.note_abort(txn.id, format!("systx umount {}", image.dir.display()));
            let running = txn.visitor();
            txn.abort();
            if let Some(visitor) = running {
                visitor.end_all();
            }
            self.table.retire(&txn, false);
        }
        if let Some(volume) = image.volume() {
            self.table.volumes.path_views.end_left_on(&volume.vol);
        }
    }

    /// Who has something open in it; who uses a view of a transaction that has ended uses the volume.
    fn users_of(&self, image: &Image, but: Peer) -> Vec<Holder> {
        let views = image.volume().map(|v| self.table.volumes.path_views.left_on(&v.vol));
        let places = std::iter::once(image.dev).chain(views.into_iter().flatten());
        places.flat_map(|dev| holders::find(&Sought::Through { dev }, &[but.pid])).collect()
    }

    fn mount_image(&self, wanted: &Wanted<'_>) -> Result<Arc<Image>, Failure> {
        let image = Image::mount(wanted, self.desk())?;
        let guards = self.me.clone();
        image.watch(move |image| {
            if let Some(guards) = guards.upgrade() {
                guards.image_ended(image);
            }
        });
        Ok(image)
    }

    /// Unmounts a volume, if there is one at this place.
    pub(super) fn umount_volume(
        &self,
        state: &mut State,
        peer: Peer,
        request: &Umount,
    ) -> Option<Result<Unmounted, Failure>> {
        let given = request.dir.as_path();
        let is_at = |image: &&Arc<Image>, path: &Path| {
            image.dir == path || image.place().as_deref() == Some(path)
        };
        let find = |path: &Path| state.images.iter().find(|i| is_at(i, path)).cloned();
        let found = find(given).or_else(|| find(&std::fs::canonicalize(given).ok()?));
        let found = found.or_else(|| state.only_mount(Which::of(given).ok()?).cloned());
        let several = || state.several_mounts(Which::of(given).ok()?).map(Err);
        let Some(image) = found else { return several().or_else(|| state.umount_dead(given)) };
        if let Some(txn) = self.working_in(&image).first().filter(|_| !request.force) {
            let (id, dir) = (txn.id, image.dir.display());
            let text = format!("transaction {id} is open in {dir}");
            return Some(Err(Failure::new(FailureKind::Busy, text)
                .hint(format!(
                    "try again when it has ended: systx commit {id} or systx abort {id} ends it, \
                     and so does --force"
                ))
                .path(image.dir.as_path())));
        }
        if !request.force && state.would_lose(&image) {
            return Some(Err(last_way(&image)));
        }
        let users = self.users_of(&image, peer);
        let alone = users.is_empty() && image.copies().is_empty();
        if alone && let Some(volume) = image.volume() {
            // What the kernel remembers of them are descriptors of this mount, here.
            volume.halls().iter().for_each(|hall| hall.aliases.drop_over());
        }
        let elsewhere = image.elsewhere();
        let quietly = if alone { image.unmount() } else { Err(Errno::BUSY) };
        let cut = match quietly {
            Ok(()) => Vec::new(),
            Err(Errno::BUSY) if !request.force => {
                let mounts = super::mounts_of(&image);
                let holders = if users.is_empty() { self.users_of(&image, peer) } else { users };
                return Some(Ok(Unmounted::InUse { holders, mounts }));
            }
            Err(Errno::BUSY) => match image.detach() {
                Ok(()) => users,
                Err(e) => return Some(Err(not_unmounted(&image.dir, e))),
            },
            Err(e) => return Some(Err(not_unmounted(&image.dir, e))),
        };
        self.end_working_in(&image);
        let closed = image.end();
        state.strike_volume(&image);
        let dir = image.dir.clone();
        tracing::info!(?dir, cut = cut.len(), "unmounted");
        Some(match closed {
            Ok(()) => {
                let notes = image.left_notes(&elsewhere);
                Ok(Unmounted::Done { dir: HostPath::from(dir), cut, notes })
            }
            Err(e) => {
                let text = format!(
                    "{} is unmounted, but what was not durable yet may be lost: {e}",
                    dir.display()
                );
                Err(Failure::new(FailureKind::Io, text).hint(
                    "what fsync(2) has returned for is there when the volume is mounted again",
                ))
            }
        })
    }

    /// The connection of a volume ended, and nobody here asked for it.
    fn image_ended(&self, image: &Arc<Image>) {
        let mut state = self.state.lock();
        if !state.images.iter().any(|other| Arc::ptr_eq(other, image)) {
            return;
        }
        let dir = image.dir.clone();
        let dead = image.place().is_some();
        self.end_working_in(image);
        if let Err(error) = image.end() {
            tracing::error!(?dir, %error, "what was not durable yet may be lost");
        }
        let entry = state.roster.volumes.iter().find(|e| e.dir.as_path() == dir).cloned();
        state.strike_volume(image);
        let Some(entry) = entry.filter(|_| dead) else {
            tracing::info!(?dir, "unmounted from outside");
            return;
        };
        tracing::error!(?dir, "the connection broke: mounting again");
        let calm = state.roster.note_restart();
        self.bring_volume_back(&mut state, entry, calm);
        if let Err(failure) = state.settle() {
            tracing::error!("the list of mounted volumes: {failure}");
        }
    }

    /// Mounts again all that a daemon before this one had mounted.  One may wait for what another
    /// one has decided.
    pub(super) fn bring_volumes_back(&self, state: &mut State, calm: bool) {
        let mut left = std::mem::take(&mut state.roster.volumes);
        let mut before = usize::MAX;
        while calm && left.len() > 1 && left.len() < before {
            before = left.len();
            left.retain(|entry| {
                let Ok(image) = self.mount_again(state, entry) else { return true };
                tracing::info!(dir = ?image.dir, "mounted again");
                state.images.push(image);
                state.roster.volumes.push(entry.clone());
                false
            });
        }
        for entry in left {
            self.bring_volume_back(state, entry, calm);
        }
    }

    /// Mounts again what a daemon before this one had mounted. Where that cannot be done the dead
    /// mount stays, and answers `ENOTCONN`: what programs would write into the directory below, the
    /// next mount would hide.
    pub(super) fn bring_volume_back(&self, state: &mut State, entry: VolumeEntry, calm: bool) {
        let dir = entry.dir.as_path().to_owned();
        let back = match calm {
            true => self.mount_again(state, &entry),
            false => {
                let text = "it breaks again and again";
                Err(Failure::new(FailureKind::Internal, text))
            }
        };
        match back {
            Ok(image) => {
                tracing::info!(?dir, "mounted again");
                state.images.push(image);
                state.roster.volumes.push(entry);
            }
            Err(failure) if served::is_ours_at(&dir) => {
                tracing::error!(?dir, "the dead mount of a volume stays: {failure}");
                state.roster.volumes.push(entry);
            }
            Err(failure) => tracing::error!(?dir, "not mounted any more: {failure}"),
        }
    }

    fn mount_again(&self, state: &State, entry: &VolumeEntry) -> Result<Arc<Image>, Failure> {
        let (file, dir) = (entry.file.as_path(), entry.dir.as_path());
        served::clear_away(dir, 1).map_err(|e| super::unreadable(dir, e))?;
        let replaces = served::is_ours_at(dir);
        let volumes = &self.table.volumes;
        let (transport, snapshot) = (entry.transport, entry.snapshot.as_deref());
        let threads = entry.threads.as_ref();
        let which = Which::of(file)?;
        let opened = state.opened(which);
        let wanted = Wanted { file, dir, transport, snapshot, threads, opened, volumes, replaces };
        // The kernel may not have closed all files of a killed process yet.
        let until = Instant::now() + SUCCESSION_LIMIT;
        loop {
            let same = check_same(entry, which, wanted.opened.as_deref());
            match same.and_then(|()| self.mount_image(&wanted)) {
                Err(f) if f.kind == FailureKind::Busy && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }

    /// Unmounts all of them: the daemon ends.
    pub(super) fn end_volumes(&self, state: &mut State) {
        for image in state.images.clone() {
            let dir = image.dir.clone();
            let gone = match image.copies().is_empty() {
                true => image.unmount().or_else(|_| image.detach()),
                false => image.detach(),
            };
            match gone {
                Ok(()) => tracing::info!(?dir, "unmounted"),
                Err(e) => tracing::error!(?dir, "cannot be unmounted: {e}"),
            }
            self.end_working_in(&image);
            if let Err(error) = image.end() {
                tracing::error!(?dir, %error, "what was not durable yet may be lost");
            }
            state.strike_volume(&image);
        }
    }
}
