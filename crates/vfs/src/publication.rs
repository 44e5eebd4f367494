//! Publication: how a commit becomes visible in guarded directories at one instant, although the
//! kernel caches their names, attributes, listings and pages (docs/decisions/0003, Choice 5).
//!
//! 1. *Mark* what changes ([`Volume::publish`]): from here on answers of view 0 about it carry the old
//!    value with timeout 0, and READs of changed files are held.
//! 2. *Invalidate*: for each directory a barrier, then its changed names, then its listing; the attributes;
//!    the pages.  What was answered old since its invalidation began is invalidated again; a directory that is
//!    listed without pause is locked for that ([`Marked::lock`]).
//! 3. *Settle and decide* in one step: nothing is left, and nobody is being answered.  From here on all
//!    requests about what is marked are held, so that nothing has to be invalidated any more.
//! 4. The caller makes durable and installs; the next publication may begin ([`Publication::let_next`]).
//! 5. *Release*: the held changes go first, and only when they are done the reads, and the marks.  (An
//!    invalidation may have dropped a page while a write of it was on its way here: a READ that is
//!    answered before that write is performed would be kept by the kernel without it.)
//!
//! **Why a held READ does no harm.**  It keeps its pages locked, and INVAL_INODE waits for each page.  A
//! READ that came before the invalidation of its file began is let go at its beginning: the invalidation
//! waits for that page, so the old value leaves again.  One that came later is let go, and noted, if the
//! invalidation has not ended a moment later.  Nothing else waits for pages: after the decision nothing is
//! invalidated, and before it a held READ is let go after [`PATIENCE`] in any case.
//!
//! **Several at once.**  One is on its way to its decision; any number are decided, and wait for the disk or are being
//! installed.  So several share a wait for the disk.  What is on its way does not meet what is decided
//! ([`Marked::meets`]): it waits for that in [`Volume::publish`], and so lets those go that were held by it.  So no two
//! publications mark the same, and to the one on its way what others hold is a request that is slow: an invalidation
//! that would wait for any waits for it.  Nobody decided ever waits for somebody who is not.
//!
//! **Lock order**: `publishing` (PUBLICATION), `marks` (MARKS), then everything that requests need.  A plain
//! read shares `marks` while it is performed; who takes it alone waits for those.

use crate::client;
use crate::inode_locks::{Locked, Ticket};
use crate::node::oid_of;
use crate::plain::Plain;
use crate::volume::Volume;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Guard, Mutex, Rank, rank};
use systx_base::{Kind, NodeId, Oid, TxnId};
use systx_store::io::{HostId, Stamp};
use systx_store::writeset::{Content, Ix, Origin, WriteSet};
use systx_store::{Footprint, Meeting};
use systx_txn::ObjectRef;

/// The name that a barrier asks for: nothing has it in any guarded directory.
pub const BARRIER: &[u8] = b".systx\x01barrier";

/// How long a READ is held that an invalidation may be waiting for.
const STUCK: Duration = Duration::from_millis(2);

/// How long a READ is held before the decision, whatever happens.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long it may take until all directories are locked that are to be locked at once: somebody else
/// may lock two of them in another order.
const LOCKING: Duration = Duration::from_millis(20);

/// How long reads wait for changes that were held: for longer only where the disk hangs.
const HELD_MAX: Duration = Duration::from_secs(1);

/// Rounds of invalidation before directories are locked, and before the commit is given up.
const ROUNDS_FREE: usize = 3;
const ROUNDS_MAX: usize = 200;

/// Most directories that are locked at once: each takes a thread and a request.
const LOCKED_MAX: usize = 32;

/// How long after a commit attributes are told without validity. The kernel declares what it is told valid before it has
/// stored all of it, and stat(2) takes no lock (`fuse_change_attributes_common`): who asks while somebody else is told
/// the new owner or mode could see the old one. Told without validity it is stored, and believed by nobody; what is told
/// afterwards, with validity, is what is there. That is so of what somebody asks for in this time; of the rest, see "Not
/// built" of decision 0003.
const TOLD_AGAIN: Duration = Duration::from_millis(3);

/// The time after a commit in which attributes are told without validity.
pub(crate) struct Afterwards {
    epoch: Instant,
    /// When it ends, in nanoseconds since `epoch`; 0: it has.
    until: AtomicU64,
}

impl Afterwards {
    pub(crate) fn new() -> Afterwards {
        Afterwards { epoch: Instant::now(), until: AtomicU64::new(0) }
    }

    fn after(&self, time: Duration) -> u64 {
        u64::try_from((self.epoch.elapsed() + time).as_nanos()).unwrap_or(u64::MAX)
    }

    fn begin(&self) {
        self.until.store(self.after(TOLD_AGAIN), Release);
    }

    /// Whether it is that time.
    pub(crate) fn is_now(&self) -> bool {
        let until = self.until.load(Acquire);
        if until == 0 {
            return false;
        }
        let is_over = self.after(Duration::ZERO) >= until;
        if is_over {
            // No clock is read until the next commit. Another one may have begun: its time stays.
            let _ = self.until.compare_exchange(until, 0, AcqRel, Relaxed);
        }
        !is_over
    }
}

/// What the kernel has cached of a guarded directory, from the side of who serves it.  Nothing to drop
/// is success, and so is a mount that is gone.
pub trait Caches: Send + Sync {
    /// Makes the kernel forget a name.  Waits for whatever is under way in the directory.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_name(&self, dir: NodeId, name: &[u8]) -> Result<(), Errno>;
    /// Makes it forget attributes.  Never waits.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_attributes(&self, node: NodeId) -> Result<(), Errno>;
    /// Makes it forget a listing.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_listing(&self, dir: NodeId) -> Result<(), Errno>;
    /// Makes it write back what was stored in pages of a file, and forget them.  Waits for each READ and
    /// WRITE of them.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_pages(&self, node: NodeId) -> Result<(), Errno>;
    /// Makes every name known so far stale.  Never waits.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` before Linux 6.16.
    fn drop_all_names(&self) -> Result<(), Errno>;
    /// Has the directory's lock exclusively for as long as looking up [`BARRIER`] in it takes: when it
    /// returns, every lookup and listing that was under way has reached the kernel's caches.
    ///
    /// # Errors
    /// The kernel's.
    fn barrier(&self, dir: NodeId) -> Result<(), Errno>;
    /// Has a file's lock exclusively for as long as removing the attribute [`Ticket::name`] from it takes: when
    /// it returns, every write that was in flight has landed.
    ///
    /// # Errors
    /// The kernel's.
    fn file_barrier(&self, file: NodeId, ticket: Ticket) -> Result<(), Errno>;
    /// Whether a call that changes the content of a file may have been performed, but not have landed.
    fn is_in_flight(&self, file: NodeId) -> bool;
}

/// A guarded directory as its volume knows it.
pub struct Guarded {
    /// View 0.
    pub plain: Arc<Plain>,
    /// What the kernel has of it.
    pub caches: Arc<dyn Caches>,
    /// How long an aged transaction may hold plain writers up; 0: not at all.
    pub stall: Duration,
}

/// Why a commit was not decided.
#[derive(Debug)]
pub enum NotDecided<E> {
    /// The decision itself failed.
    Lost(E),
    /// The kernel refused an invalidation, or could not be brought to an end with it (`EBUSY`).
    Kernel(Errno),
}

/// A commit on its way into view 0.  Dropping it unmarks.
pub struct Publication<'v> {
    vol: &'v Volume,
    txn: TxnId,
    marked: Arc<Marked>,
    guarded: Vec<Arc<Guarded>>,
    /// Until the next one may begin.
    alone: Option<Guard<'v, ()>>,
}

impl Volume {
    /// Marks what `writes` of a transaction changes.  Waits for the decision of the publication before it, and for the
    /// end of those that it meets.  Of several volumes at once: always in the order of [`Volume::order`].
    pub fn publish(&self, txn: TxnId, writes: &WriteSet) -> Publication<'_> {
        let alone = self.publishing.lock_beside();
        let guarded = self.guarded_now();
        let root = self.io.stat(&self.io.root()).map(|stat| stat.id).ok();
        let marked = Arc::new(Marked::new(writes, root, !guarded.is_empty()));
        self.wait_over(|other| other.meets(&marked));
        {
            let mut marks = self.marks.write();
            self.is_publishing.store(true, Release);
            marks.push(Arc::clone(&marked));
        }
        Publication { vol: self, txn, marked, guarded, alone: Some(alone) }
    }

    /// Waits until no publication like this is under way.  For who has `publishing`: no other begins.
    fn wait_over(&self, like: impl Fn(&Marked) -> bool) {
        loop {
            let met = self.marks.read().iter().find(|marked| like(marked)).cloned();
            let Some(met) = met else { return };
            met.wait_over();
        }
    }

    /// No commit is under way as long as the guard lives.
    pub(crate) fn without_commits(&self) -> Guard<'_, ()> {
        let alone = self.publishing.lock();
        self.wait_over(|_| true);
        alone
    }

    /// From now on commits are published in this directory.
    pub fn guard(&self, guarded: Arc<Guarded>) {
        // A commit on its way would not know of it.
        let _alone = self.without_commits();
        self.guarded.lock().push(guarded);
    }

    /// A copy: nothing is called with that lock held.
    pub(crate) fn guarded_now(&self) -> Vec<Arc<Guarded>> {
        self.guarded.lock().clone()
    }

    /// The guarded directories themselves.
    pub(crate) fn guarded_roots(&self) -> HashSet<HostId> {
        self.guarded_now().iter().filter_map(|g| g.plain.root_id()).collect()
    }

    /// The directory is not served any more.
    pub fn unguard(&self, guarded: &Arc<Guarded>) {
        self.guarded.lock().retain(|g| !Arc::ptr_eq(g, guarded));
    }

    /// Whether a file is open for writing in a guarded directory.
    pub(crate) fn is_open_guarded(&self, id: HostId) -> bool {
        self.guarded_now().iter().any(|g| g.plain.written_to(id).is_some())
    }
}

impl Publication<'_> {
    /// Invalidates until nothing is left, and decides by `decide` at that instant.
    ///
    /// # Errors
    /// It is not decided.
    pub fn decide<E>(
        &self,
        mut decide: impl FnMut() -> Result<(), E>,
    ) -> Result<(), NotDecided<E>> {
        if self.guarded.is_empty() {
            return decide().map_err(NotDecided::Lost);
        }
        let mut todo = self.marked.everything();
        for round in 0..ROUNDS_MAX {
            self.invalidate(&todo).map_err(NotDecided::Kernel)?;
            // After the barriers of directories: who removes a file has its directory locked while he waits for the
            // file's lock.
            let Some(files) = self.vol.lock_written(self.txn) else {
                let pages = std::mem::take(&mut todo.pages);
                todo = self.marked.answered_old();
                todo.pages.extend(pages);
                continue;
            };
            self.invalidate_pages(&todo.pages).map_err(NotDecided::Kernel)?;
            if round >= ROUNDS_FREE && !todo.dirs.is_empty() && todo.dirs.len() <= LOCKED_MAX {
                if let Some(done) = self.decide_locked(&todo, &files, &mut decide) {
                    return done;
                }
            } else if self.settle(&files, &mut decide).map_err(NotDecided::Lost)? {
                return Ok(());
            }
            todo = self.marked.answered_old();
        }
        let Old { lists, names, pages } = &self.marked.phase.lock().old;
        tracing::warn!(?lists, ?names, ?pages, "what is read all the time cannot be invalidated");
        Err(NotDecided::Kernel(Errno::BUSY))
    }

    /// Decides if nothing was answered old since its invalidation began, and no write is in flight where the
    /// transaction has read; whether it did.
    fn settle<E>(
        &self,
        files: &Locked<'_>,
        decide: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<bool, E> {
        // Whoever is being answered at this moment is waited for.
        let _nobody = self.vol.marks.write();
        let mut phase = self.marked.phase.lock();
        if !phase.old.is_empty() || !files.is_enough() {
            return Ok(false);
        }
        decide()?;
        phase.decided = true;
        // From here on they are held where that matters.
        self.vol.let_writers_in(self.txn);
        Ok(true)
    }

    /// Decided, and nothing is invalidated any more: the next publication may begin.
    pub fn let_next(&mut self) {
        self.alone = None;
    }

    fn invalidate(&self, todo: &Objects) -> Result<(), Errno> {
        for g in &self.guarded {
            for dir in &todo.dirs {
                // First: what is answered from here on counts, whoever is known by now.
                self.marked.forget_dir(oid_of(*dir));
                let Some(node) = g.plain.node_of(*dir) else { continue };
                g.caches.barrier(node)?;
                for name in self.marked.names.get(&oid_of(*dir)).into_iter().flat_map(|n| n.keys())
                {
                    g.caches.drop_name(node, name)?;
                }
                g.caches.drop_attributes(node)?;
                g.caches.drop_listing(node)?;
            }
            for id in &todo.attrs {
                if let Some(node) = g.plain.node_of(*id) {
                    g.caches.drop_attributes(node)?;
                }
            }
        }
        Ok(())
    }

    fn invalidate_pages(&self, files: &[HostId]) -> Result<(), Errno> {
        for g in &self.guarded {
            for id in files {
                self.marked.begin_pages(oid_of(*id));
                let node = g.plain.node_of(*id);
                let dropped = node.map_or(Ok(()), |node| g.caches.drop_pages(node));
                self.marked.end_pages();
                dropped?;
            }
        }
        Ok(())
    }

    /// As [`Publication::settle`], with directories locked in which somebody looks up names or reads
    /// listings all the time.  `None`: they could not all be locked.
    fn decide_locked<E>(
        &self,
        todo: &Objects,
        files: &Locked<'_>,
        decide: &mut impl FnMut() -> Result<(), E>,
    ) -> Option<Result<(), NotDecided<E>>> {
        let known = |dir: &HostId| {
            self.guarded
                .iter()
                .filter_map(|g| Some((g, g.plain.node_of(*dir)?, oid_of(*dir))))
                .next()
        };
        let dirs: Vec<_> = todo.dirs.iter().filter_map(known).collect();
        std::thread::scope(|scope| {
            // Whatever happens in here, the threads must come to their end.
            let unlock = Unlock(&self.marked);
            for &(g, node, oid) in &dirs {
                self.marked.lock(oid);
                scope.spawn(move || {
                    if let Err(errno) = g.caches.barrier(node) {
                        tracing::warn!(%errno, ?node, "directory not locked");
                    }
                    self.marked.reached(oid, false);
                });
            }
            if !self.marked.all_reached(LOCKING) {
                return None;
            }
            let dropped = dirs.iter().try_for_each(|(g, node, oid)| {
                g.caches.drop_listing(*node)?;
                if self.marked.forget_dir(*oid) {
                    // A directory was looked up by its old name, which cannot be dropped now.
                    g.caches.drop_all_names()?;
                }
                Ok(())
            });
            let decided = match dropped {
                Ok(()) => self.settle(files, decide).map_err(NotDecided::Lost),
                Err(errno) => Err(NotDecided::Kernel(errno)),
            };
            drop(unlock);
            match decided {
                Ok(true) => Some(Ok(())),
                Ok(false) => None,
                Err(e) => Some(Err(e)),
            }
        })
    }

    /// The objects that were replaced by others when the commit was installed: versions before and after.
    /// Who found one by its name and has yet to open it is to look again.
    pub fn replaced(&self, moves: &[(Stamp, Stamp)]) {
        for (before, _) in moves.iter().filter(|(before, after)| before.id != after.id) {
            for g in &self.guarded {
                g.plain.supersede(before.id);
            }
        }
    }
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        self.marked.let_changes_go();
        if !self.guarded.is_empty() {
            self.vol.afterwards.begin();
        }
        {
            let mut marks = self.vol.marks.write();
            marks.retain(|marked| !Arc::ptr_eq(marked, &self.marked));
            self.vol.is_publishing.store(!marks.is_empty(), Release);
        }
        self.marked.phase.lock().over = true;
        self.marked.changed.notify_all();
    }
}

/// A change that is held, or is being performed after it was.
pub(crate) struct Held(Arc<Marked>);

impl Held {
    /// Whether it is held by this one.
    pub fn is_of(&self, marked: &Arc<Marked>) -> bool {
        Arc::ptr_eq(&self.0, marked)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.phase.lock().held -= 1;
        self.0.changed.notify_all();
    }
}

/// Ends the locks on directories.
struct Unlock<'m>(&'m Marked);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.phase.lock().locks.clear();
        self.0.changed.notify_all();
    }
}

/// Objects by what is to be invalidated of them.
#[derive(Default)]
struct Objects {
    /// Directories with changed names.
    dirs: Vec<HostId>,
    attrs: Vec<HostId>,
    pages: Vec<HostId>,
}

/// What a publication marks.
pub(crate) struct Marked {
    /// What it must not meet while it is decided and not over.
    footprint: Footprint,
    all: Objects,
    /// Changed names by directory; whether what has the name so far is a directory.
    names: HashMap<Oid, HashMap<Box<[u8]>, bool>>,
    attrs: HashSet<Oid>,
    pages: HashSet<Oid>,
    /// Names by which the installation finds what is there, by directory.
    places: HashMap<Oid, HashSet<Box<[u8]>>>,
    /// Taken after `marks`; the decision is made with it held.
    phase: Mutex<Phase>,
    changed: Event,
}

#[derive(Default)]
struct Phase {
    decided: bool,
    /// Changes may go.
    released: bool,
    /// How many of them were held and are not yet done.
    held: usize,
    over: bool,
    /// What was answered old since its invalidation began.
    old: Old,
    /// READs are numbered as they come; those of a file below this number may go.
    arrivals: u64,
    let_go: HashMap<Oid, u64>,
    /// The file whose pages are being invalidated, and since when.
    invalidating: Option<(Oid, Instant)>,
    /// Directories to be locked; whether they are.
    locks: HashMap<Oid, bool>,
}

#[derive(Default)]
struct Old {
    lists: HashSet<Oid>,
    /// Directories in which a name of a directory was looked up.
    names: HashSet<Oid>,
    pages: HashSet<Oid>,
}

impl Old {
    fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.names.is_empty() && self.pages.is_empty()
    }
}

/// What becomes of a plain read.
#[derive(PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It may be performed.
    Now,
    /// It has to wait: [`Marked::wait`], then ask again.
    Later,
}

/// When a read that has to wait came.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    number: u64,
    at: Instant,
}

impl Marked {
    /// `guarded`: whether there is a guarded directory, in which it could be seen.
    fn new(writes: &WriteSet, root: Option<HostId>, guarded: bool) -> Marked {
        let footprint = root.map_or_else(Footprint::default, |root| Footprint::new(writes, root));
        let nothing = WriteSet::default();
        let writes = if guarded { writes } else { &nothing };
        let id_of = |ix: Ix| match &writes.objects.get(ix.0 as usize)?.origin {
            Origin::Root => root,
            Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(stamp.id),
            Origin::New(_) => None,
        };
        let is_dir = |ix: Ix| {
            let origin = writes.objects.get(ix.0 as usize).map(|o| &o.origin);
            matches!(origin, Some(Origin::Host { kind: Kind::Dir, .. }))
        };
        let mut names: HashMap<Oid, HashMap<Box<[u8]>, bool>> = HashMap::new();
        let mut dirs = HashMap::new();
        let mut attrs = HashMap::new();
        let mut pages = HashMap::new();
        for bind in &writes.binds {
            if let Some(dir) = id_of(bind.dir) {
                let old_is_dir = bind.displaces.is_some_and(is_dir);
                names.entry(oid_of(dir)).or_default().insert((&*bind.name).into(), old_is_dir);
                dirs.insert(oid_of(dir), dir);
            }
            for id in [Some(bind.dir), bind.target, bind.displaces].into_iter().flatten() {
                if let Some(id) = id_of(id) {
                    attrs.insert(oid_of(id), id);
                }
            }
        }
        for (i, object) in writes.objects.iter().enumerate() {
            let Some(id) = id_of(Ix(i as u32)) else { continue };
            // It may be replaced by another inode, which its name then means.
            if let (Content::Whole { .. } | Content::Slot(_), Origin::Host { parent, name, .. }) =
                (&object.content, &object.origin)
                && let Some(dir) = id_of(*parent)
            {
                names.entry(oid_of(dir)).or_default().entry((&**name).into()).or_insert(false);
                dirs.insert(oid_of(dir), dir);
            }
            let content = object.content != Content::Keep;
            if content {
                pages.insert(oid_of(id), id);
            }
            if content || object.attrs != Default::default() || !object.xattrs.is_empty() {
                attrs.insert(oid_of(id), id);
            }
        }
        let mut places: HashMap<Oid, HashSet<Box<[u8]>>> = HashMap::new();
        for object in &writes.objects {
            if let Origin::Host { parent, name, .. } = &object.origin
                && let Some(dir) = id_of(*parent)
            {
                places.entry(oid_of(dir)).or_default().insert((&**name).into());
            }
        }
        Marked {
            footprint,
            names,
            places,
            attrs: attrs.keys().copied().collect(),
            pages: pages.keys().copied().collect(),
            all: Objects {
                dirs: dirs.into_values().collect(),
                attrs: attrs.into_values().collect(),
                pages: pages.into_values().collect(),
            },
            phase: Mutex::new(Rank(rank::MARKS.0 + 1), Phase::default()),
            changed: Event::new(),
        }
    }

    fn everything(&self) -> Objects {
        let Objects { dirs, attrs, pages } = &self.all;
        Objects { dirs: dirs.clone(), attrs: attrs.clone(), pages: pages.clone() }
    }

    fn answered_old(&self) -> Objects {
        let phase = self.phase.lock();
        let old = &phase.old;
        let is_old = |id: &&HostId| {
            let oid = oid_of(**id);
            old.lists.contains(&oid) || old.names.contains(&oid)
        };
        let dirs = self.all.dirs.iter().filter(is_old).copied().collect();
        let pages =
            self.all.pages.iter().filter(|id| old.pages.contains(&oid_of(**id))).copied().collect();
        Objects { dirs, attrs: Vec::new(), pages }
    }

    /// Whether this name, or the listing, of a directory changes.
    pub fn has_name(&self, dir: Oid, name: Option<&[u8]>) -> bool {
        self.names.get(&dir).is_some_and(|names| name.is_none_or(|name| names.contains_key(name)))
    }

    fn has(&self, object: ObjectRef<'_>) -> bool {
        match object {
            ObjectRef::Entry { dir, name } => self.has_name(dir, Some(name)),
            ObjectRef::List(dir) => self.has_name(dir, None),
            ObjectRef::Attr(oid) | ObjectRef::Size(oid) => self.attrs.contains(&oid),
            ObjectRef::Pages { oid, .. } => self.pages.contains(&oid),
        }
    }

    /// Asks for a plain request, with `marks` shared.  If the answer is now, the request is to be performed
    /// before that is given back.
    ///
    /// Of what it changes (`writes`, and the version of `subject`) the engine decides.  But what is not in
    /// conflict is held after the decision, too, where the installation relies on it: it finds objects by
    /// the names that they had, and looks at their versions.
    pub fn admit(
        &self,
        reads: &[ObjectRef<'_>],
        (writes, subject): (&[ObjectRef<'_>], Option<Oid>),
        arrival: &mut Option<Arrival>,
    ) -> Admitted {
        let relied_upon = |o: &ObjectRef<'_>| match *o {
            ObjectRef::Entry { dir, name } => {
                self.places.get(&dir).is_some_and(|names| names.contains(name))
            }
            _ => false,
        };
        if !subject.is_some_and(|oid| self.attrs.contains(&oid))
            && !writes.iter().any(relied_upon)
            && !reads.iter().any(|o| self.has(*o))
        {
            return Admitted::Now;
        }
        let mut phase = self.phase.lock();
        if phase.decided {
            let goes = phase.released && !writes.is_empty();
            return if goes { Admitted::Now } else { Admitted::Later };
        }
        let pages = reads.iter().find_map(|o| match o {
            ObjectRef::Pages { oid, .. } if self.pages.contains(oid) => Some(*oid),
            _ => None,
        });
        if let Some(oid) = pages {
            let came = *arrival.get_or_insert_with(|| {
                phase.arrivals += 1;
                Arrival { number: phase.arrivals, at: Instant::now() }
            });
            let before = phase.let_go.get(&oid).is_some_and(|limit| came.number < *limit);
            let stuck = phase
                .invalidating
                .is_some_and(|(of, since)| of == oid && since.max(came.at).elapsed() >= STUCK);
            if !before {
                if !stuck && came.at.elapsed() < PATIENCE {
                    return Admitted::Later;
                }
                phase.old.pages.insert(oid);
            }
        }
        for object in reads {
            match *object {
                ObjectRef::List(dir) if self.has_name(dir, None) => {
                    phase.old.lists.insert(dir);
                }
                ObjectRef::Entry { dir, name }
                    if self.names.get(&dir).and_then(|n| n.get(name)) == Some(&true) =>
                {
                    phase.old.names.insert(dir);
                }
                _ => {}
            }
        }
        Admitted::Now
    }

    /// Waits until it is worth asking again, for a change or a read, or whether the client lives.  Nothing may be held.
    pub fn wait(&self, changes: bool) {
        let mut phase = self.phase.lock();
        if phase.over || changes && phase.released {
            return;
        }
        if phase.decided {
            self.changed.wait_for(&mut phase, client::LOOK);
        } else {
            self.changed.wait_for(&mut phase, STUCK);
        }
    }

    fn wait_over(&self) {
        let mut phase = self.phase.lock();
        while !phase.over {
            self.changed.wait(&mut phase);
        }
    }

    /// Whether another one has to wait for the end of this one: they touch the same, or change names in one directory.
    /// There a barrier waits in any case: it needs the attributes of the directory, and these are held.
    fn meets(&self, other: &Marked) -> bool {
        self.footprint.meets(&other.footprint) != Meeting::Apart
            || self.names.keys().any(|dir| other.names.contains_key(dir))
    }

    /// A change has to wait: reads wait for it in turn, until the answer is dropped.
    pub fn hold(self: &Arc<Self>) -> Held {
        self.phase.lock().held += 1;
        Held(Arc::clone(self))
    }

    fn let_changes_go(&self) {
        let begun = Instant::now();
        let mut phase = self.phase.lock();
        phase.released = true;
        self.changed.notify_all();
        while phase.held > 0 && begun.elapsed() < HELD_MAX {
            self.changed.wait_for(&mut phase, HELD_MAX);
        }
    }

    /// What was answered old in a directory so far does not count; whether a directory's name was.
    fn forget_dir(&self, dir: Oid) -> bool {
        let mut phase = self.phase.lock();
        phase.old.lists.remove(&dir);
        phase.old.names.remove(&dir)
    }

    fn begin_pages(&self, oid: Oid) {
        {
            let mut phase = self.phase.lock();
            phase.old.pages.remove(&oid);
            let limit = phase.arrivals + 1;
            phase.let_go.insert(oid, limit);
            phase.invalidating = Some((oid, Instant::now()));
        }
        self.changed.notify_all();
    }

    fn end_pages(&self) {
        self.phase.lock().invalidating = None;
    }

    // ---- locked directories -----------------------------------------------------------------

    /// The next barrier in this directory is to stay.
    fn lock(&self, dir: Oid) {
        self.phase.lock().locks.insert(dir, false);
    }

    /// A barrier has the directory's lock, and keeps it if that is wanted and `stay`.
    pub fn reached(&self, dir: Oid, stay: bool) {
        let mut phase = self.phase.lock();
        let Some(reached) = phase.locks.get_mut(&dir) else { return };
        *reached = true;
        self.changed.notify_all();
        while stay && !phase.over && phase.locks.contains_key(&dir) {
            self.changed.wait(&mut phase);
        }
    }

    fn all_reached(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        let mut phase = self.phase.lock();
        loop {
            if phase.locks.values().all(|reached| *reached) {
                return true;
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut phase, left);
        }
    }
}
