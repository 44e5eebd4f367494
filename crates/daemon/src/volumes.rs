//! The table of the open volumes: each is opened once, and recovered by that.
//!
//! An open volume holds its file system, also when that is unmounted: the kernel then writes
//! nothing back, and the device stays in use.  So a volume is closed soon after its last use
//! ([`Volumes::let_go`]); `/` is not, since nobody unmounts it.

use crate::chores::Chores;
use crate::elsewhere::{self, Elsewhere};
use crate::fuse_mount::FS_TYPE;
use crate::guarded::Guarded;
use crate::hall::Hall;
use crate::ledger::Ledger;
use crate::mounts;
use crate::opening::Openings;
use crate::path_views::PathViews;
use crate::protocol::{Failure, FailureKind, HostPath, Place};
use crate::unprotected::Unprotected;
use crate::volume::{self, Location, Memory, OpenVolume};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use systx_base::Uid;
use systx_base::sync::{Event, Mutex, rank};
use systx_protocol::runtime::Runtime;
use systx_store::Member;

/// See the module.
pub struct Volumes {
    uid: Uid,
    home: Option<PathBuf>,
    tables: Mutex<Tables>,
    /// A volume was opened, or cannot be.
    opened: Event,
    openings: Arc<Openings>,
    /// Views with a path.
    pub(crate) path_views: PathViews,
    /// What this machine has noted of its stores.
    ledger: Arc<Ledger>,
    /// What is outside of transactions.
    pub(crate) unprotected: Unprotected,
    /// Among them: to let go of what is not in use any more.
    chores: Arc<Chores>,
    /// This table, for threads that outlive a call.
    me: Weak<Volumes>,
}

#[derive(Default)]
struct Tables {
    open: HashMap<Location, Arc<OpenVolume>>,
    /// Somebody is opening them.
    opening: HashSet<Location>,
    /// Also of those that are closed.
    memories: HashMap<Location, Arc<Memory>>,
}

/// The right to open the volume at a location, which ends also with a panic.
struct OpeningTurn<'a> {
    volumes: &'a Volumes,
    location: &'a Location,
}

impl Drop for OpeningTurn<'_> {
    fn drop(&mut self) {
        self.volumes.tables.lock().opening.remove(self.location);
        self.volumes.opened.notify_all();
    }
}

impl Volumes {
    /// Nothing open.
    pub(crate) fn new(
        runtime: Option<&Runtime>,
        ledger: Ledger,
        chores: Arc<Chores>,
    ) -> Arc<Volumes> {
        Arc::new_cyclic(|me| Volumes {
            uid: rustix::process::geteuid().as_raw(),
            home: std::env::var_os("HOME").map(PathBuf::from),
            tables: Mutex::new(rank::DAEMON, Tables::default()),
            opened: Event::new(),
            openings: Openings::new(),
            path_views: PathViews::new(runtime.map(Runtime::dir)),
            unprotected: Unprotected::new(ledger.dir()),
            ledger: Arc::new(ledger),
            chores,
            me: me.clone(),
        })
    }

    /// The open volumes.
    pub(crate) fn all(&self) -> Vec<Arc<OpenVolume>> {
        self.tables.lock().open.values().cloned().collect()
    }

    /// The volume of a place, opened (and recovered) if it is not open yet.
    pub(crate) fn at(&self, place: &Place) -> Result<Arc<OpenVolume>, Failure> {
        self.open_place(place, false)
    }

    /// As [`Volumes::at`]; `trusted`: also if its store is not this machine's.
    pub(crate) fn open_place(
        &self,
        place: &Place,
        trusted: bool,
    ) -> Result<Arc<OpenVolume>, Failure> {
        let location = self.locate(place)?;
        self.check_one_engine(&location)?;
        self.open_at(location, trusted)
    }

    /// Where the volume of a place is.
    pub(crate) fn locate(&self, place: &Place) -> Result<Location, Failure> {
        self.not_in_a_view(place)?;
        let dir = place.root.as_ref().unwrap_or(&place.cwd);
        let store = place.store.as_ref().map(HostPath::as_path);
        let home = self.home.as_deref();
        let guarded: Vec<_> = self.all_guarded().into_iter().map(|(_, g)| g).collect();
        let mounted = self.mounted();
        let known = (&*guarded, &*mounted);
        Ok(volume::locate(dir.as_path(), store, self.uid, home, known)?)
    }

    /// The log-structured volumes that are mounted.
    pub(crate) fn mounted(&self) -> Vec<Arc<OpenVolume>> {
        self.all().into_iter().filter(|volume| volume.is_image()).collect()
    }

    /// A log-structured volume is mounted.
    pub(crate) fn add_mounted(&self, volume: Arc<OpenVolume>) {
        self.tables.lock().open.insert(volume.location.clone(), volume);
    }

    /// It is not any more.
    pub(crate) fn remove_mounted(&self, volume: &OpenVolume) {
        self.tables.lock().open.remove(&volume.location);
    }

    /// What this machine has noted of its stores.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The volume at a location, opened (and recovered) if it is not open yet.
    pub(crate) fn open_at(
        &self,
        location: Location,
        trusted: bool,
    ) -> Result<Arc<OpenVolume>, Failure> {
        // Whatever it is used for, it is not from some time on.
        self.chores.are_due();
        let mut tables = self.tables.lock();
        loop {
            if let Some(open) = tables.open.get(&location) {
                let open = open.clone();
                drop(tables);
                return self.look_at_store(open, trusted);
            }
            // Two requests must not open one store twice. The table is not held meanwhile: who has
            // nothing to do with a file system that hangs does not wait for it.
            if tables.opening.insert(location.clone()) {
                break;
            }
            self.opened.wait(&mut tables);
        }
        let memory = Arc::clone(tables.memories.entry(location.clone()).or_default());
        drop(tables);
        let opened = {
            let _turn = OpeningTurn { volumes: self, location: &location };
            let opened = volume::open(&location, &self.ledger, memory).map(Arc::new);
            if let Ok(open) = &opened {
                self.tables.lock().open.insert(location.clone(), open.clone());
            }
            opened
        };
        self.look_at_store(opened?, trusted)
    }

    /// Before anybody looks at a file system, what was committed there is in its place; also what
    /// another daemon left.  `trusted`: also if its store is not this machine's.
    fn look_at_store(
        &self,
        open: Arc<OpenVolume>,
        trusted: bool,
    ) -> Result<Arc<OpenVolume>, Failure> {
        let was_open = open.store.if_open().is_some();
        open.trust(trusted);
        let Some(_store) = open.finish_left()? else { return Ok(open) };
        if was_open {
            return Ok(open);
        }
        // What was committed together is there again together, as far as it is mounted.
        let (others, failed) = self.recover_others(&open);
        for note in others.iter().flat_map(|other| other.recovery_notes()).chain(failed) {
            tracing::info!(note);
        }
        Ok(open)
    }

    /// Every guarded directory, by path.
    pub(crate) fn all_guarded(&self) -> Vec<(Arc<OpenVolume>, Arc<Guarded>)> {
        let of = |volume: Arc<OpenVolume>| {
            let guarded = volume.guarded();
            guarded.into_iter().map(move |g| (Arc::clone(&volume), g))
        };
        let mut all: Vec<_> = self.all().into_iter().flat_map(of).collect();
        all.sort_by(|(_, a), (_, b)| a.dir.cmp(&b.dir));
        all
    }

    /// Everywhere that threads have transactions.
    pub(crate) fn all_halls(&self) -> Vec<Arc<Hall>> {
        self.all().iter().flat_map(|volume| volume.halls()).collect()
    }

    /// What is guarded is ordered by one engine: that of the volume that it was mounted with.
    pub(crate) fn check_one_engine(&self, location: &Location) -> Result<(), Failure> {
        let other = |(_, g): &(_, Arc<Guarded>)| {
            g.location != *location && g.location.dev == location.dev && reaches(location, g)
        };
        let Some((_, guarded)) = self.all_guarded().into_iter().find(other) else { return Ok(()) };
        let (dir, store) = (guarded.dir.display(), guarded.location.store.display());
        let text = format!(
            "{dir} is guarded with the store {store}: transactions on the same files need the same store"
        );
        let mount = guarded.location.mount.display();
        Err(Failure::new(FailureKind::State, text)
            .hint(format!("work below {mount}, without --store; or: systx umount {dir}"))
            .path(guarded.dir.as_path()))
    }

    /// A place that is in a view is in no volume.
    pub(crate) fn not_in_a_view(&self, place: &Place) -> Result<(), Failure> {
        for dir in place.root.iter().chain([&place.cwd]) {
            if self.path_views.has(dir.as_path()) {
                let text = format!("{dir} is in the view of a transaction");
                return Err(Failure::new(FailureKind::Invalid, text)
                    .hint("name the directory itself: `systx status` shows it (-C DIR)")
                    .path(dir.clone()));
            }
        }
        Ok(())
    }

    /// What is remembered of those that are closed, and where they are.
    pub(crate) fn closed(&self) -> Vec<(Location, Arc<Memory>)> {
        let tables = self.tables.lock();
        let closed = tables.memories.iter().filter(|(at, _)| !tables.open.contains_key(at));
        closed.map(|(at, memory)| (at.clone(), Arc::clone(memory))).collect()
    }

    /// The volume of another store of a joint commit.
    pub(crate) fn volume_of(&self, member: &Member) -> Result<Arc<OpenVolume>, Failure> {
        let others = Elsewhere { owner: elsewhere::own(), ledger: &self.ledger };
        let absent = || {
            let text = format!(
                "part of the transaction is in {}, which is not there",
                elsewhere::named(member)
            );
            Failure::new(FailureKind::NotFound, text).hint("mount that file system")
        };
        let store = others.find(member).ok_or_else(absent)?;
        // One whose store is open may itself be waiting for the one that asks: whoever waits here
        // has an open store already, and waits only for what is not open, so nobody waits in a
        // circle.
        if let Some(known) = self.all().into_iter().find(|v| v.location.store == store) {
            return self.look_at_store(known, false);
        }
        let top = HostPath::from(store.parent().ok_or_else(absent)?);
        let (root, store) = (Some(top.clone()), Some(HostPath::from(store)));
        let mut opened = self.that_answer(vec![Place { cwd: top, root, store }]);
        let named = |mut failure: Failure| {
            failure.message = format!("{}: {}", elsewhere::named(member), failure.message);
            failure
        };
        opened.pop().ok_or_else(absent)?.map_err(named)
    }

    /// The volumes of file systems that are mounted below a directory, but for that of the directory
    /// itself, as far as they have a store and can be opened.
    pub(crate) fn below(&self, dir: &Path, own: &Location) -> Vec<Arc<OpenVolume>> {
        self.that_are_mounted(own, |at| at != dir && at.starts_with(dir))
    }

    /// All but this one, as far as they have a store and can be opened.
    pub(crate) fn others(&self, own: &Location) -> Vec<Arc<OpenVolume>> {
        let mut all = self.all();
        all.retain(|volume| volume.location != *own);
        for volume in self.that_are_mounted(own, |_| true) {
            if !all.iter().any(|known| known.location == volume.location) {
                all.push(volume);
            }
        }
        all
    }

    fn that_are_mounted(
        &self,
        own: &Location,
        is_there: impl Fn(&Path) -> bool,
    ) -> Vec<Arc<OpenVolume>> {
        let table = mounts::here().unwrap_or_default();
        let (guarded, mounted) = (self.all_guarded(), self.mounted());
        // Another daemon, or whatever has its name, is never asked: it may not answer.
        let is_own = |m: &mounts::Mount| {
            mounted.iter().any(|volume| volume.is_mounted_as(m))
                || guarded.iter().any(|(_, guarded)| guarded.is(m))
        };
        let of_stores = |m: &&mounts::Mount| elsewhere::is_local(m) || is_own(m);
        let mut found: Vec<Location> = Vec::new();
        for mount in table.iter().filter(|m| is_there(&m.at)).filter(of_stores) {
            let place = Place { cwd: HostPath::from(mount.at.as_path()), root: None, store: None };
            let Ok(location) = self.locate(&place) else { continue };
            if location != *own && !found.contains(&location) {
                found.push(location);
            }
        }
        let is_open = |location: &Location| self.tables.lock().open.contains_key(location);
        found.retain(|location| is_open(location) || location.store.is_dir());
        found.into_iter().filter_map(|location| self.open_at(location, false).ok()).collect()
    }

    /// Opens the stores that this one has decided for, and which have not got to know it; sentences
    /// about those that cannot be opened.
    pub(crate) fn recover_others(
        &self,
        volume: &OpenVolume,
    ) -> (Vec<Arc<OpenVolume>>, Vec<String>) {
        let (mut opened, mut failed) = (Vec::new(), Vec::new());
        let Some(store) = volume.store.if_open() else { return (opened, failed) };
        let decisions = store.decisions().unwrap_or_default();
        let recovered = volume.other_members();
        let decided = decisions.iter().flat_map(|d| &d.others);
        for member in decided.chain(&recovered) {
            match self.volume_of(member) {
                Ok(other) => opened.push(other),
                // It is named by `waiting_notes`.
                Err(failure) if failure.kind == FailureKind::NotFound => {}
                Err(failure) => failed.push(failure.to_string()),
            }
        }
        failed.dedup();
        (opened, failed)
    }

    fn that_answer(&self, places: Vec<Place>) -> Vec<Result<Arc<OpenVolume>, Failure>> {
        let me = self.me.clone();
        self.openings.all(places, move |place| match me.upgrade() {
            Some(volumes) => volumes.at(place),
            None => Err(Failure::new(FailureKind::Internal, "the daemon ends")),
        })
    }

    /// Opens the volumes of further file systems, where that is possible; sentences for everybody,
    /// and for who wants details.
    pub(crate) fn further(
        &self,
        roots: &[HostPath],
        volumes: &mut Vec<Arc<OpenVolume>>,
    ) -> (Vec<String>, Vec<String>) {
        let (mut notes, mut details) = (Vec::new(), Vec::new());
        let place =
            |root: &HostPath| Place { cwd: root.clone(), root: Some(root.clone()), store: None };
        let opened = self.that_answer(roots.iter().map(place).collect());
        for (root, opened) in roots.iter().zip(opened) {
            match opened {
                Ok(volume) if volumes.iter().any(|v| Arc::ptr_eq(v, &volume)) => {}
                Ok(volume) => volumes.push(volume),
                Err(failure) => {
                    let text = format!("{root} is read-only in the transaction: {failure}");
                    let quiet = matches!(failure.kind, FailureKind::Unsupported | FailureKind::Io);
                    if quiet { &mut details } else { &mut notes }.push(text);
                }
            }
        }
        (notes, details)
    }

    /// None is open by a thread that may hang: such a thread keeps what is left of a process, and
    /// with it descriptors, from ending.
    pub(crate) fn all_have_answered(&self) -> bool {
        self.openings.is_empty()
    }

    /// Closes the volumes that nothing needs any more.  `in_use`: by an open transaction.  True if
    /// others may follow without a further event: a request is under way, a store is about to be
    /// closed, a program has something open of a view whose transaction has ended.
    pub(crate) fn let_go(&self, in_use: impl Fn(&Arc<OpenVolume>) -> bool) -> bool {
        let mut tables = self.tables.lock();
        let unused: Vec<_> = tables.open.extract_if(|_, volume| volume.is_unused()).collect();
        unused.iter().for_each(|(_, volume)| volume.keep_counts());
        let left: Vec<_> = tables.open.values().cloned().collect();
        drop(tables);
        if !unused.is_empty() {
            // What holds a file system last that was unmounted writes back all that is dirty.
            std::thread::spawn(move || drop(unused));
        }
        left.iter().any(|volume| volume.may_be_unmounted() && !in_use(volume))
    }

    /// Lets go of all of them: the daemon ends.
    pub(crate) fn close(&self) {
        self.tables.lock().open.clear();
    }
}

/// Whether a guarded directory is among the files of a volume on the same device.
fn reaches(location: &Location, guarded: &Guarded) -> bool {
    let table = mounts::here().unwrap_or_default();
    let mount = |at: &Path| table.iter().rev().find(|m| m.at == at && m.fs != FS_TYPE);
    let inner = mount(&guarded.location.mount).and_then(|m| m.inner(&guarded.dir));
    match (mount(&location.mount), inner) {
        (Some(theirs), Some(inner)) => {
            inner.starts_with(&theirs.root) || theirs.root.starts_with(&inner)
        }
        // A mount that is gone is no reason to let them meet.
        _ => true,
    }
}
