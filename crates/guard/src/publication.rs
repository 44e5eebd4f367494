//! Publication: how a commit becomes visible in guarded directories at one instant, although the
//! kernel caches their names, attributes, listings and pages (docs/decisions/0003, Choice 5).
//!
//! 1. *Mark* what changes ([`SharedVolume::publish`]): from here on answers of view 0 about it
//!    carry the old value with timeout 0, and READs of changed files are held.
//! 2. *Invalidate*: for each directory a barrier, then its changed names, then its listing; the
//!    attributes; the pages. What was answered old since its invalidation began is invalidated
//!    again; a directory that is listed without pause is locked for that ([`Marked::lock`]).
//! 3. *Settle and decide* in one step: nothing is left, and nobody is being answered. From here on
//!    all requests about what is marked are held, so that nothing has to be invalidated any more.
//! 4. The caller makes durable and installs; the next publication may begin
//!    ([`Publication::let_next`]).
//! 5. *Release*: the held changes go first, and only when they are done the reads.  (An
//!    invalidation may have dropped a page while a write of it was on its way here: a READ that is
//!    answered before that write is performed would be kept by the kernel without it.)
//! 6. *Tell* the kernel the attributes, while answers about them have timeout 0 still, and only
//!    then drop the marks ([`UnderWay::tell`]).
//!
//! **Why a held READ does no harm.** It keeps its pages locked, and INVAL_INODE waits for each
//! page. A READ that came before the invalidation of its file began is let go at its beginning: the
//! invalidation waits for that page, so the old value leaves again. One that came later is let go,
//! and noted, if the invalidation has not ended a moment later. Nothing else waits for pages: after
//! the decision nothing is invalidated, and before it a held READ is let go after [`PATIENCE`] in
//! any case.
//!
//! **Several at once.**  One is on its way to its decision; any number are decided, and wait for
//! the disk or are being installed.  So several share a wait for the disk.  What is on its way does
//! not meet what is decided ([`Marked::meets`]): it waits for that in [`SharedVolume::publish`],
//! and so lets those go that were held by it.  So no two publications mark the same, but for files
//! in a volume of which they overwrite different pages, as long as no program is held.  To the one
//! on its way what others hold is a request that is slow: an invalidation that would wait for any
//! waits for it.  Nobody decided ever waits for somebody who is not.
//!
//! **Lock order**: `publishing` (PUBLICATION), `marks` (MARKS), then everything that requests need.
//! A plain read shares `marks` while it is performed; who takes it alone waits for those.

use crate::inode_locks::writers::{self, FileAt, Writers, Writing};
use crate::inode_locks::{Locked, Ticket};
use crate::shared::SharedVolume;
use marked::{Objects, Old};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use systx_base::sync::Guard;
use systx_base::{NodeId, Oid, TxnId};
use systx_store::io::{HostId, Openers, Stamp, Stat};
use systx_store::writeset::WriteSet;

mod marked;

pub(crate) use marked::{Admitted, Held, Marked};

/// The name that a barrier asks for: nothing has it in any guarded directory.
pub const BARRIER: &[u8] = b".systx\x01barrier";

/// How long a READ is held that an invalidation may be waiting for.
const STUCK: Duration = Duration::from_millis(2);

/// How long a READ is held before the decision, whatever happens.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long it may take until all directories are locked that are to be locked at once: somebody
/// else may lock two of them in another order.
const LOCKING: Duration = Duration::from_millis(20);

/// How long reads wait for changes that were held: for longer only where the disk hangs.
const HELD_MAX: Duration = Duration::from_secs(1);

/// Rounds of invalidation before directories are locked, and before the commit is given up.
const ROUNDS_FREE: usize = 3;
const ROUNDS_MAX: usize = 200;

/// Most directories that are locked at once: each takes a thread and a request.
const LOCKED_MAX: usize = 32;

/// Most objects of which the kernel is told the attributes after a commit: each takes a request.
const TOLD_MAX: usize = 512;

/// How long after a commit of more than these attributes are told without validity, so that what
/// somebody asks for is stored, see [`UnderWay::tell`].
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

/// What the kernel has cached of a guarded directory, from the side of who serves it. Nothing to
/// drop is success, and so is a mount that is gone.
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
    /// Has it ask for the attributes of these nodes, and returns when it has stored them.
    ///
    /// # Errors
    /// The kernel's.
    fn store_attributes(&self, nodes: &[NodeId]) -> Result<(), Errno>;
    /// Makes it forget a listing.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_listing(&self, dir: NodeId) -> Result<(), Errno>;
    /// Makes it write back what was stored in pages of a file, and forget them. Waits for each READ
    /// and WRITE of them.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_pages(&self, node: NodeId) -> Result<(), Errno>;
    /// Makes every name known so far stale.  Never waits.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` before Linux 6.16.
    fn drop_all_names(&self) -> Result<(), Errno>;
    /// Has the directory's lock exclusively for as long as looking up [`BARRIER`] in it takes: when
    /// it returns, every lookup and listing that was under way has reached the kernel's caches.
    ///
    /// # Errors
    /// The kernel's.
    fn barrier(&self, dir: NodeId) -> Result<(), Errno>;
    /// The same, and the lock stays until the look-up of [`BARRIER`] is answered.
    ///
    /// # Errors
    /// The kernel's; it is not locked.
    fn lock(&self, dir: NodeId) -> Result<(), Errno>;
    /// Has a file's lock exclusively for as long as removing the attribute [`Ticket::name`] from it
    /// takes: when it returns, every write that was in flight has landed.
    ///
    /// # Errors
    /// The kernel's.
    fn file_barrier(&self, file: NodeId, ticket: Ticket) -> Result<(), Errno>;
    /// Of files in a mount where opens make no messages: who may be writing to them.
    ///
    /// # Errors
    /// The kernel's.
    fn keep_unwritten(&self, files: &[NodeId]) -> Result<Vec<Writing>, Errno>;
    /// A descriptor (`O_PATH`) of a node, through the mount; see [`ViewZero::number_of`].
    ///
    /// # Errors
    /// The kernel's; `ESTALE`: it does not know the node, and cannot find it by its number.
    fn reach(&self, node: NodeId) -> Result<OwnedFd, Errno>;
    /// A descriptor (`O_PATH`) of what has this path on the host, through the mount.
    ///
    /// # Errors
    /// The kernel's; `EXDEV`: it is not in the mount.
    fn find(&self, path: &[u8]) -> Result<OwnedFd, Errno>;
    /// Whether a call that changes the content of a file may have been performed, but not have
    /// landed.
    fn is_in_flight(&self, file: NodeId) -> bool;
}

/// View 0 of a place that commits are published in: which objects the kernel knows there, and who
/// has them open.
pub trait ViewZero: Send + Sync {
    /// The directory that it is a view of.
    fn root_id(&self) -> Option<HostId>;
    /// The node of an object, if the kernel knows it.
    fn node_of(&self, id: HostId) -> Option<NodeId>;
    /// The node of any object, where that follows from its number, so that the kernel finds it by a
    /// file handle.
    fn number_of(&self, _id: HostId) -> Option<NodeId> {
        None
    }
    /// Whether a node is a directory.
    fn is_dir(&self, node: NodeId) -> bool;
    /// A regular file that the kernel knows, by its key in the conflict engine.
    fn file_of(&self, oid: Oid) -> Option<FileAt>;
    /// All regular files that the kernel knows.
    fn files(&self) -> Vec<(NodeId, HostId)>;
    /// A commit has put another object in the place of this one: see [`UnderWay::replaced`].
    fn supersede(&self, id: HostId);
    /// Who has what open, where opens make messages; where they make none, the kernel is asked.
    fn opens(self: Arc<Self>) -> Option<Arc<dyn Opens>>;

    /// As [`ViewZero::file_of`].
    fn file_at(&self, id: HostId) -> Option<FileAt> {
        self.file_of(id.oid()).filter(|file| file.id == id)
    }
}

/// Who has objects of a view open, by the messages that opens make.
pub trait Opens: Send + Sync {
    /// The node of an object, if somebody has it open for writing.
    fn written_to(&self, id: HostId) -> Option<NodeId>;
    /// Who has it open; `None`: nobody.
    fn openers(&self, id: HostId) -> Option<Openers>;
    /// All that is open for writing.
    fn open_for_writing(&self) -> Vec<(NodeId, HostId)>;
}

/// A guarded directory, or a volume that is mounted, as commits know it.
pub struct Guarded {
    /// View 0.
    pub plain: Arc<dyn ViewZero>,
    /// What the kernel has of it.
    pub caches: Arc<dyn Caches>,
    /// How long an aged transaction may hold plain writers up; 0: not at all.
    pub stall: Duration,
    /// How it is known who may be writing there.
    pub(crate) writers: Box<dyn Writers>,
}

impl Guarded {
    /// One that commits are published in. See the members.
    pub fn new(plain: Arc<dyn ViewZero>, caches: Arc<dyn Caches>, stall: Duration) -> Guarded {
        let writers = writers::of(&plain, &caches);
        Guarded { plain, caches, stall, writers }
    }
}

/// Why a commit was not decided.
#[derive(Debug)]
pub enum NotDecided<E> {
    /// The decision itself failed.
    Lost(E),
    /// The kernel refused an invalidation, or could not be brought to an end with it (`EBUSY`).
    Kernel(Errno),
}

impl<E> From<Errno> for NotDecided<E> {
    fn from(errno: Errno) -> Self {
        NotDecided::Kernel(errno)
    }
}

/// A commit on its way into view 0.  Dropping it unmarks.
pub struct Publication<'v> {
    on: UnderWay,
    /// Until the next one may begin.
    alone: Option<Guard<'v, ()>>,
}

/// A commit whose requests are marked; from its decision on they are held. Dropping it releases
/// them.
pub struct UnderWay {
    vol: Arc<SharedVolume>,
    txn: TxnId,
    marked: Arc<Marked>,
    guarded: Vec<Arc<Guarded>>,
}

impl SharedVolume {
    /// Marks what `writes` of a transaction changes. Waits for the decision of the publication
    /// before it, and for the end of those that it meets. Of several volumes at once: always in the
    /// order of [`Volume::order`](systx_vfs::volume::Volume::order).
    pub fn publish(self: &Arc<Self>, txn: TxnId, writes: &WriteSet) -> Publication<'_> {
        let alone = self.publishing.lock_beside();
        let guarded = self.guarded_now();
        let root = self.tree.stat(&self.tree.root()).map(|stat| stat.id).ok();
        let how = (!guarded.is_empty(), self.tree.shares_files());
        let marked = Arc::new(Marked::new(writes, root, how));
        // Else a program could be held by one after the other for ever.
        let in_way = |other: &Marked| self.held.load(Acquire) > 0 && other.shares(&marked);
        self.wait_over(|other| other.meets(&marked) || in_way(other));
        {
            let mut marks = self.marks.write();
            self.is_publishing.store(true, Release);
            marks.push(Arc::clone(&marked));
        }
        let on = UnderWay { vol: Arc::clone(self), txn, marked, guarded };
        Publication { on, alone: Some(alone) }
    }

    /// Waits until no publication like this is under way. For who has `publishing`: no other
    /// begins.
    fn wait_over(&self, like: impl Fn(&Marked) -> bool) {
        loop {
            let met = self.marks.read().iter().find(|marked| like(marked)).cloned();
            let Some(met) = met else { return };
            met.wait_over();
        }
    }

    /// Waits until every commit is durable, and in its place, whose program went on before that.
    /// What is decided meanwhile is not waited for.
    pub fn wait_durable(&self) {
        if !self.is_publishing.load(Acquire) {
            return;
        }
        let relaxed: Vec<Arc<Marked>> = {
            let marks = self.marks.read();
            marks.iter().filter(|marked| marked.phase.lock().relaxed).cloned().collect()
        };
        relaxed.iter().for_each(|marked| marked.wait_seen());
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

    /// Who has a file open in a guarded directory, as far as it concerns whether another inode may
    /// take its place; `None`: nobody there. Who reads a file that may be executed may be running
    /// it: to him it stays what it is, so he is not in the way.
    pub fn openers(&self, file: &Stat) -> Option<Openers> {
        let open = self.guarded_now().iter().find_map(|g| g.writers.openers(file.id))?;
        let may_run = file.mode & 0o111 != 0;
        Some(if may_run && open == Openers::Readers { Openers::None } else { open })
    }

    /// Whether a file is open for writing in a guarded directory.
    pub(crate) fn is_open_guarded(&self, id: HostId) -> bool {
        self.guarded_now().iter().any(|g| g.writers.written_to(id).is_some())
    }
}

impl Publication<'_> {
    /// Invalidates until nothing is left, and decides by `decide` at that instant.
    ///
    /// # Errors
    /// It is not decided.
    pub fn decide<E>(&self, decide: impl FnMut() -> Result<(), E>) -> Result<(), NotDecided<E>> {
        self.on.decide(decide)
    }

    /// Decided, and nothing is invalidated any more: the next publication may begin.
    pub fn let_next(&mut self) {
        self.alone = None;
    }

    /// As [`Publication::let_next`]; what is left to do may be done by any thread.
    pub fn into_under_way(self) -> UnderWay {
        self.on
    }

    /// As [`UnderWay::replaced`].
    pub fn replaced(&self, moves: &[(Stamp, Stamp)]) {
        self.on.replaced(moves);
    }
}

impl UnderWay {
    fn decide<E>(&self, mut decide: impl FnMut() -> Result<(), E>) -> Result<(), NotDecided<E>> {
        if self.guarded.is_empty() {
            return decide().map_err(NotDecided::Lost);
        }
        self.decide_guarded(decide)?;
        // From here on they are held where that matters.
        self.vol.let_writers_in(self.txn);
        Ok(())
    }

    fn decide_guarded<E>(
        &self,
        mut decide: impl FnMut() -> Result<(), E>,
    ) -> Result<(), NotDecided<E>> {
        let mut todo = self.marked.everything();
        for round in 0..ROUNDS_MAX {
            self.invalidate(&todo)?;
            // After the barriers of directories: who removes a file has its directory locked while
            // he waits for the file's lock.
            let files = self.vol.lock_written(self.txn, Some(&self.marked.pages)).ok();
            let files = match files {
                Some(files) if self.invalidate_pages(&todo.pages, &files)? => files,
                _ => {
                    let pages = std::mem::take(&mut todo.pages);
                    todo = self.marked.answered_old();
                    todo.pages.extend(pages);
                    continue;
                }
            };
            if round >= ROUNDS_FREE && !todo.dirs.is_empty() && todo.dirs.len() <= LOCKED_MAX {
                if let Some(done) = self.decide_locked(&todo, files, &mut decide) {
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

    /// Decides if nothing was answered old since its invalidation began, and no write is in flight
    /// where the transaction has read; whether it did.
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
        Ok(true)
    }

    fn invalidate(&self, todo: &Objects) -> Result<(), Errno> {
        for g in &self.guarded {
            for dir in &todo.dirs {
                // First: what is answered from here on counts, whoever is known by now.
                self.marked.forget_dir(dir.oid());
                let Some(node) = g.plain.node_of(*dir) else { continue };
                g.caches.barrier(node)?;
                for name in self.marked.names.get(&dir.oid()).into_iter().flat_map(|n| n.keys()) {
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

    /// Drops pages; whether no write could be in flight in any of them.
    fn invalidate_pages(&self, files: &[HostId], locked: &Locked<'_>) -> Result<bool, Errno> {
        for g in &self.guarded {
            for id in files {
                // Somebody may have opened it for writing since the locks were taken.
                let unwritten = self.vol.without_writers(*id);
                if unwritten.is_none() && !locked.has(*id) {
                    return Ok(false);
                }
                self.marked.begin_pages(id.oid());
                let node = g.plain.node_of(*id);
                let dropped = node.map_or(Ok(()), |node| g.caches.drop_pages(node));
                self.marked.end_pages();
                dropped?;
                if unwritten.is_some_and(|unwritten| !unwritten.is_still()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// As [`Publication::settle`], with directories locked in which somebody looks up names or
    /// reads listings all the time. `None`: they could not all be locked.
    fn decide_locked<E>(
        &self,
        todo: &Objects,
        files: Locked<'_>,
        decide: &mut impl FnMut() -> Result<(), E>,
    ) -> Option<Result<(), NotDecided<E>>> {
        let known = |dir: &HostId| {
            self.guarded.iter().filter_map(|g| Some((g, g.plain.node_of(*dir)?, dir.oid()))).next()
        };
        let dirs: Vec<_> = todo.dirs.iter().filter_map(known).collect();
        std::thread::scope(|scope| {
            // Whatever happens in here, the threads must come to their end.
            let unlock = Unlock(&self.marked);
            for &(g, node, oid) in &dirs {
                self.marked.lock(oid);
                scope.spawn(move || match g.caches.lock(node) {
                    Ok(()) => self.marked.reached(oid, false),
                    Err(errno) => tracing::warn!(%errno, ?node, "directory not locked"),
                });
            }
            if !self.marked.all_reached(LOCKING) {
                // Who removes a file may have a directory locked, and wait for the file's lock.
                drop(files);
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
                Ok(()) => self.settle(&files, decide).map_err(NotDecided::Lost),
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

    /// Its program goes on now: who wants to know that all is durable waits for it
    /// ([`SharedVolume::wait_durable`]).
    pub fn relax(&self) {
        self.marked.phase.lock().relaxed = true;
    }

    /// Nobody is held any more, and the kernel stores the attributes that were changed. It declares
    /// what it is told valid before it has stored all of it, and stat(2) takes no lock
    /// (`fuse_change_attributes_common`): who asks while somebody else is told the new owner or
    /// mode could see the old one. Told without validity, as long as they are marked, they are
    /// stored and believed by nobody; what is told from then on, with validity, is what is there.
    /// And a length that is not stored is not the end up to which read(2) reads, even if somebody
    /// is just asking for it: the next commit's invalidation has the kernel drop that answer.
    fn tell(&self) {
        self.marked.phase.lock().seen = true;
        self.marked.changed.notify_all();
        let mut attrs = self.marked.all.attrs.clone();
        {
            // Of several that share a file the last one does it for all.
            let marks = self.vol.marks.read();
            attrs.retain(|id| !marks.iter().any(|other| other.will_tell(id.oid())));
        }
        if attrs.len() > TOLD_MAX {
            self.vol.afterwards.begin();
        }
        for g in &self.guarded {
            let known = attrs.iter().take(TOLD_MAX).filter_map(|id| g.plain.node_of(*id));
            let known: Vec<_> = known.collect();
            if let Err(errno) = g.caches.store_attributes(&known) {
                tracing::warn!(%errno, "attributes are not told");
            }
        }
    }

    /// The objects that were replaced by others when the commit was installed: versions before and
    /// after. Who found one by its name and has yet to open it is to look again.
    pub fn replaced(&self, moves: &[(Stamp, Stamp)]) {
        for (before, _) in moves.iter().filter(|(before, after)| before.id() != after.id()) {
            for g in &self.guarded {
                g.plain.supersede(before.id());
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.marked.let_changes_go();
        let decided = self.marked.phase.lock().decided;
        if decided {
            self.tell();
        }
        {
            let mut marks = self.vol.marks.write();
            marks.retain(|marked| !Arc::ptr_eq(marked, &self.marked));
            self.vol.is_publishing.store(!marks.is_empty(), Release);
        }
        self.marked.phase.lock().over = true;
        self.marked.changed.notify_all();
        if decided {
            self.vol.tell_follower(&self.marked.all.pages);
        }
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
