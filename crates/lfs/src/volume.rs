//! An open volume: its lock, group commit, and who waits for whom.

mod cleaning;
mod moment;
mod packing;
mod payments;

pub use cleaning::{Packed, Plan, Round, Tended, Tending};
pub use moment::Moment;

use crate::checkpoint;
use crate::cleaner;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::{
    BLOCK, Blob, Checkpoint, Compression, Geometry, Head, Ino, ROOT, SEGMENT_BLOCKS, Super,
    VolumeId,
};
use crate::object::{Attrs, Node, Object};
use crate::ops::Ops;
use crate::pack::Unpacked;
use crate::pending::Pending;
use crate::piece::Purpose;
use crate::promise::Promise;
use crate::recovery::{self, Report};
use crate::root::Kept;
use crate::snapshots::{self, SnapshotInfo, View};
use crate::state::{Cover, Flow, Limits, Need, State, Stopped, capacity};
use crate::superblock;
use crate::tree::{Clock, Env, Tree};
use crate::txn::{self, Txn};
use crate::usage::Usage;
use crate::veil::Hidden;
use payments::Payments;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use systx_base::Kind;
use systx_base::sync::{Event, Guard, Mutex, rank};

/// What a new volume is to be.
#[derive(Clone, Debug)]
pub struct Format {
    /// Blocks of a segment, [`crate::format::SEGMENT_BLOCKS`].
    pub segment_blocks: u32,
    /// Pages of a file that are written together: 1, or a power of two up to
    /// [`crate::format::CLUSTER_MAX`].
    pub cluster: u32,
    /// Identity, random.
    pub id: VolumeId,
    /// A name for persons, at most 255 bytes.
    pub label: String,
    /// Owner and group of the root directory.
    pub owner: (systx_base::Uid, systx_base::Gid),
    /// Whether the cleaner compresses what is cold.
    pub compression: Compression,
}

/// How full a volume is, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// What may be in use.
    pub total: u64,
    /// What is in use.
    pub used: u64,
    /// Segments that are free.
    pub free_segments: u32,
}

impl Space {
    /// What may still be used.
    pub fn free(&self) -> u64 {
        self.total.saturating_sub(self.used)
    }
}

/// An open volume.  Whoever drops it without [`Volume::close`] loses what was not made durable,
/// as if the power had failed.
pub struct Volume {
    state: Mutex<State>,
    written: Event,
    /// There is something to clean: that of [`State::flow`].
    work: Arc<Event>,
    /// Commits so far, but those of the cleaner.
    commits: AtomicU64,
    /// Commits that were made durable by a group, for those that wait without the lock.
    durable: AtomicU64,
    env: Env,
    label: String,
    report: Report,
    /// Snapshots that somebody reads.
    views: Mutex<BTreeMap<String, Arc<()>>>,
    payments: Mutex<Payments>,
    /// Blocks for which commits have to pay yet.
    owed: AtomicU64,
}

/// How a device of so many blocks, of which `cluster` are written together, is best divided: into
/// segments of 1 MiB, shorter ones where that leaves more of a small device, longer ones where a
/// large one would have too many.
///
/// # Errors
/// [`Error::Invalid`] if the device is too small or too large.
pub fn fitting(blocks: u64, cluster: u32) -> Result<Geometry> {
    let lengths = |of: std::ops::RangeInclusive<u32>| of.map(|shift| 1 << shift);
    let new = |segment| Geometry::new(blocks, segment, cluster);
    let all = lengths(4..=8).filter_map(|segment| new(segment).ok());
    match all.max_by_key(capacity) {
        Some(best) => Ok(best),
        None => lengths(9..=14)
            .find_map(|segment| new(segment).ok())
            .map_or_else(|| new((*SEGMENT_BLOCKS.start()).max(cluster.saturating_mul(4))), Ok),
    }
}

/// Makes a volume on a device.
///
/// What was there is no volume any longer before the first other block is written, and the new
/// one is not there before all of it is.
///
/// # Errors
/// [`Error::Invalid`] if the device is too small; [`Error::Io`].
pub fn mkfs(dev: Arc<dyn Device>, format: &Format, clock: Clock) -> Result<()> {
    let geometry = Geometry::new(dev.blocks(), format.segment_blocks, format.cluster)?;
    if format.label.len() > 255 {
        return Err(Error::Invalid("a label has at most 255 bytes"));
    }
    let (last, blocks) = (dev.blocks() - 1, dev.blocks());
    for at in [0, last] {
        dev.write(at, &[0; BLOCK])?;
    }
    dev.sync()?;
    // Only now: a super block with an older checkpoint than its last would be an older volume.
    dev.write(1, &vec![0; BLOCK * 4])?;
    let (id, compression, unpacked) = (format.id, format.compression, Unpacked::default());
    let env = Env { dev: dev.clone(), geometry, id, clock, compression, unpacked };
    let mut state = empty(env, format.owner);
    checkpoint::write(&mut state)?;
    // The other region has the same: from here on one that cannot be read is damaged.
    let same = Checkpoint { sequence: 0, ..state.last.clone() }.encode(&format.id)?;
    Checkpoint::copies(0).try_for_each(|at| dev.write(at, &same))?;
    let label = format.label.clone();
    let sup = Super { id: format.id, geometry, blocks, label, compression };
    dev.write(last, &sup.encode())?;
    dev.write(0, &sup.encode())?;
    Ok(dev.sync()?)
}

fn empty(env: Env, (uid, gid): (systx_base::Uid, systx_base::Gid)) -> State {
    let now = (env.clock)();
    let mut usage = Usage::new(env.geometry);
    let segment = usage.take(0).unwrap_or(0);
    let next = usage.take(0).unwrap_or(0);
    let head = Head { segment, offset: 0, next, lsn: 0, chain: 0, epoch: 1 };
    let attrs = Attrs {
        kind: Kind::Dir,
        mode: 0o755,
        uid,
        gid,
        nlink: 2,
        size: 0,
        rdev: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    };
    let root = Node { attrs, xattrs: BTreeMap::new(), parent: ROOT, target: Vec::new() };
    let mut tree = Tree::new(env, BTreeMap::new());
    tree.insert(ROOT, Object::new(root));
    let none = Blob::default();
    State {
        tree,
        usage,
        head,
        next_ino: ROOT + 1,
        pending: Pending::default(),
        orphans: BTreeSet::new(),
        held: HashMap::new(),
        kept: Kept::default(),
        last: Checkpoint { sequence: 0, head, time: now, root: none.clone(), usage: none },
        returned: txn::returned(),
        flow: Flow::default(),
        limits: Limits::default(),
    }
}

impl Volume {
    /// Opens a volume: recovers it, and begins a new epoch, so that nothing of what the last one
    /// left behind can be taken for what this one writes.  `salt` is random, for the same reason.
    ///
    /// # Errors
    /// [`Error::NotAVolume`], [`Error::Corrupt`], [`Error::Io`].
    pub fn open(dev: Arc<dyn Device>, clock: Clock, salt: u64, limits: Limits) -> Result<Volume> {
        Self::begun(recovery::recover(dev, clock)?, salt, limits)
    }

    /// As [`Volume::open`], also if the log breaks off before its end.  What was behind that is
    /// given up for ever: only where somebody has decided so.
    ///
    /// # Errors
    /// As [`Volume::open`], but for that.
    pub fn open_broken(
        dev: Arc<dyn Device>,
        clock: Clock,
        salt: u64,
        limits: Limits,
    ) -> Result<Volume> {
        Self::begun(recovery::recover_broken(dev, clock)?, salt, limits)
    }

    fn begun(
        (mut state, report, sup): (State, Report, Super),
        salt: u64,
        limits: Limits,
    ) -> Result<Volume> {
        state.limits = limits;
        superblock::mend(&*state.tree.env.dev, &sup)?;
        checkpoint::mend(&state)?;
        state.head.epoch += 1;
        state.head.chain = crc32c::crc32c_append(state.head.chain, &salt.to_le_bytes());
        checkpoint::write(&mut state)?;
        Ok(Self::with(state, report, sup))
    }

    /// Opens a volume to read it: the device is not written to, and whatever would change the
    /// volume says [`Error::ReadOnly`].  Also if the log breaks off before its end: snapshots are
    /// whole then.
    ///
    /// # Errors
    /// As [`Volume::open`], but for that.
    pub fn open_to_read(dev: Arc<dyn Device>, clock: Clock) -> Result<Volume> {
        let (mut state, report, sup) = recovery::recover_broken(dev, clock)?;
        state.flow.stopped = Some(Stopped::ReadOnly);
        Ok(Self::with(state, report, sup))
    }

    fn with(state: State, report: Report, sup: Super) -> Volume {
        let (env, work) = (state.tree.env.clone(), Arc::clone(&state.flow.work));
        let state = Mutex::new(rank::LOG, state);
        let views = Mutex::new(rank::LEAF, BTreeMap::new());
        let payments = Mutex::new(rank::CLEANING, Payments::default());
        let (written, commits, durable, owed) = Default::default();
        let label = sup.label;
        Volume { state, written, work, commits, durable, env, label, report, views, payments, owed }
    }

    /// What recovery has found.
    pub fn report(&self) -> Report {
        self.report
    }

    /// The volume's name.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Identity and geometry.
    pub fn identity(&self) -> (VolumeId, Geometry) {
        (self.env.id, self.env.geometry)
    }

    /// How full it is.
    pub fn space(&self) -> Space {
        let state = self.state.lock();
        let used = state.usage.occupied() + state.pending.page_count();
        Space { total: state.capacity(), used, free_segments: state.usage.free() }
    }

    /// Why nothing can be changed any more, if a write has failed: what it said.
    pub fn stopped(&self) -> Option<String> {
        match &self.state.lock().flow.stopped {
            Some(Stopped::Poisoned(why)) => Some(why.clone()),
            Some(Stopped::ReadOnly) | None => None,
        }
    }

    /// Looks at the committed tree, but for what is hidden; nothing can be changed.
    ///
    /// # Errors
    /// What `look` says.
    pub fn look<T>(&self, look: impl FnOnce(&mut Ops<'_>) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        let mut above = std::mem::take(&mut state.tree.veil.above);
        let mut ops = state.ops(&mut above);
        ops.maker = None;
        let seen = look(&mut ops);
        state.tree.veil.above = above;
        self.tell_of_reads(&mut state);
        seen
    }

    /// Runs operations in a transaction, which sees what is committed and what it did itself.
    ///
    /// # Errors
    /// What `act` says.  Operations before the one that failed stay in the transaction.
    pub fn within<T>(
        &self,
        txn: &mut Txn,
        act: impl FnOnce(&mut Ops<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state.lock();
        state.flow.goes_on()?;
        // Others may take it until the spill: it is asked again whenever half of the rest is used.
        let left = |pages| state.limits.txn_pages_max.saturating_sub(pages);
        if 2 * left(txn.in_memory) <= left(txn.asked) + 1 {
            txn.asked = txn.in_memory;
            self.make_room_to_spill(&mut state, 0, txn.own)?;
        }
        let done = act(&mut state.ops(txn));
        self.tell_of_reads(&mut state);
        done
    }

    /// Whether a transaction has as much in memory as it may.
    fn is_large(&self, txn: &Txn) -> bool {
        txn.in_memory >= self.state.lock().limits.txn_pages_max
    }

    /// Makes room for so many blocks of a transaction that is larger than memory, and for as many
    /// as it may have in memory beyond: no operation makes room, but each may take segments.  What
    /// does not fit says so itself.
    fn make_room_to_spill(
        &self,
        state: &mut Guard<'_, State>,
        blocks: u64,
        own: u64,
    ) -> Result<()> {
        let blocks = blocks + state.limits.txn_pages_max + self.spare();
        match self.make_room(state, Need { own, ..Need::of(blocks) }) {
            Err(Error::NoSpace) => Ok(()),
            done => done,
        }
    }

    /// Blocks of the segments that a transaction which spills begins and does not fill.
    fn spare(&self) -> u64 {
        3 * u64::from(self.env.geometry.usable())
    }

    /// A file may have become worth to be written in order.
    fn tell_of_reads(&self, state: &mut State) {
        if state.tree.reads.take_news() {
            self.work.notify_all();
        }
    }

    /// Runs operations as plain system calls do: all of them at once, visible when this returns,
    /// durable with the next [`Volume::sync`], commit, or when much has gathered.
    ///
    /// `act` may run more than once, if another commit comes between; each time on a clean slate.
    ///
    /// # Errors
    /// What `act` says, [`Error::NoSpace`], [`Error::Poisoned`]; then nothing has changed.
    pub fn plain<T>(&self, mut act: impl FnMut(&mut Ops<'_>) -> Result<T>) -> Result<T> {
        let mut had = 0;
        loop {
            let mut txn = Txn::new();
            let done = self.within(&mut txn, &mut act);
            let has = txn.in_memory + txn.spilled();
            if matches!(done, Err(Error::NoSpace)) && self.is_large(&txn) && has > had {
                had = has;
                drop(txn);
                self.make_room_to_spill(&mut self.state.lock(), had, 0)?;
                continue;
            }
            let out = done?;
            match self.commit_relaxed(txn) {
                Err(Error::Conflict { .. } | Error::Removed(_)) => {}
                Err(e) => return Err(e),
                Ok(_) => return Ok(out),
            }
        }
    }

    /// Commits a transaction.  It is visible and durable when this returns.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::Removed`], [`Error::NoSpace`]: nothing has changed.
    /// [`Error::Io`], [`Error::Poisoned`]: whether it is durable is known after the volume was
    /// opened again.
    pub fn commit(&self, txn: Txn) -> Result<()> {
        let ticket = self.commit_relaxed(txn)?;
        self.durable(ticket)
    }

    /// Commits a transaction.  It is visible when this returns; [`Volume::durable`] waits for the
    /// rest.  Of several commits a prefix becomes durable.
    ///
    /// # Errors
    /// As [`Volume::commit`].
    pub fn commit_relaxed(&self, txn: Txn) -> Result<u64> {
        self.apply(txn, &mut None, false)
    }

    /// As [`Volume::commit_relaxed`], and nobody sees it before it is shown ([`Volume::show`]):
    /// [`Volume::look`] does not, while transactions do.  Of what two hidden commits change they
    /// may share directories in which both change names.  `promise` is room for it, and is used up
    /// by a commit that succeeds alone: one that is tried again finds the room that it had.
    ///
    /// # Errors
    /// As [`Volume::commit`].
    pub fn commit_hidden(&self, txn: Txn, promise: &mut Option<Promise>) -> Result<Hidden> {
        Ok(Hidden { ticket: self.apply(txn, promise, true)? })
    }

    /// A commit that was hidden is seen from here on.  Showing it again does nothing.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn show(&self, hidden: Hidden) -> Result<()> {
        self.state.lock().show(hidden.ticket)
    }

    /// Room for a later commit of at most so many blocks: others do not get it as long as the
    /// promise lives.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; as [`Volume::durable`].
    pub fn promise(&self, blocks: u64) -> Result<Promise> {
        let mut state = self.state.lock();
        state.flow.goes_on()?;
        let spills = blocks >= state.limits.txn_pages_max;
        let blocks = blocks + if spills { self.spare() } else { 0 };
        self.make_room(&mut state, Need::of(blocks))?;
        Ok(state.flow.promised.give(blocks))
    }

    /// Blocks that the next checkpoint may write for changes of these objects, as they are now.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn cost(&self, inos: &BTreeSet<Ino>) -> Result<u64> {
        self.state.lock().dirtied(inos)
    }

    fn apply(&self, mut txn: Txn, promise: &mut Option<Promise>, hidden: bool) -> Result<u64> {
        let mut state = self.state.lock();
        state.flow.goes_on()?;
        if txn.is_empty() {
            return Ok(state.flow.applied);
        }
        let removes = state.only_removes(&txn)?;
        // The promise stands until the room is used: others commit while this one waits for it.
        let own = promise.as_ref().map_or(0, Promise::blocks);
        let mut need = Need { own, removes, ..state.need(&txn)? };
        if own > 0 {
            // A promise is of all that is written, and is kept: records of pages are not in it.
            need.spilled = need.spilled.min(own.saturating_sub(need.blocks));
        }
        self.make_room(&mut state, need)?;
        // A page that is taken out of its file stays where it lies, so it has to lie somewhere.
        while !txn.taken.is_empty() && state.flow.writing {
            self.wait_for_writer(&mut state)?;
            self.make_room(&mut state, need)?;
        }
        let waited = state.pending.page_count();
        let written = state.written(&txn);
        let cover = if hidden { Some(Cover::of(&mut state, &txn)?) } else { None };
        cover.iter().for_each(|cover| state.hold_for(cover));
        if let Err(error) = state.apply(&mut txn) {
            cover.map_or(Ok(()), |cover| state.let_go(cover))?;
            return Err(error);
        }
        *promise = None;
        state.write_along(&written);
        let ticket = state.flow.applied;
        if let Some(cover) = cover {
            state.cover(ticket, cover)?;
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        if state.flow.wake_below > 100 || state.is_below(state.flow.wake_below) {
            self.work.notify_all();
        }
        let pays = state.shortage() > 0 && !removes;
        // With what is written along, and a summary.
        let blocks = state.pending.page_count().saturating_sub(waited) + 1;
        let gathered = state.pending.page_count() > state.limits.dirty_pages_max;
        drop(state);
        if pays {
            self.pay(blocks);
        }
        if gathered {
            self.durable(ticket)?;
        }
        Ok(ticket)
    }

    /// Waits until there is space, and makes some: by a checkpoint, which frees what is dead, and
    /// by cleaning.
    fn make_room(&self, state: &mut Guard<'_, State>, need: Need) -> Result<()> {
        loop {
            if state.has_room(need) {
                return Ok(());
            }
            // Both would move the same, and the one with the lock would let nobody else go on.
            if state.flow.cleaning {
                self.written.wait(state);
                continue;
            }
            self.wait_for_writer(state)?;
            let gives = !state.returned.lock().is_empty();
            if gives || !state.tree.dirty_chunks.is_empty() || !state.pending.is_empty() {
                checkpoint::write(state)?;
            } else if !(need.removes || state.has_capacity(need.blocks + need.spilled))
                || !cleaner::round(state, need.blocks)?
            {
                return Err(Error::NoSpace);
            }
        }
    }

    fn wait_for_writer(&self, state: &mut Guard<'_, State>) -> Result<()> {
        while state.flow.writing {
            self.written.wait(state);
        }
        state.flow.goes_on()
    }

    /// Waits until a commit is durable.  One of those that wait writes for all of them.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Poisoned`]: the outcome is unknown until the volume is opened
    /// again.
    pub fn durable(&self, ticket: u64) -> Result<()> {
        let mut state = self.state.lock();
        let mut done = Ok(());
        while done.is_ok() && state.flow.durable < ticket {
            if !state.flow.writing {
                (state, done) = self.lead(state);
                continue;
            }
            state.flow.turns.wait_for(ticket);
            drop(state);
            thread::park();
            if self.durable.load(Ordering::Acquire) >= ticket {
                return Ok(());
            }
            state = self.state.lock();
            state.flow.turns.leave();
        }
        let next = state.flow.hand_on();
        drop(state);
        next.iter().for_each(Thread::unpark);
        done
    }

    /// Writes all that waits, while others go on.
    fn lead<'a>(&'a self, mut state: Guard<'a, State>) -> (Guard<'a, State>, Result<()>) {
        let covers = state.flow.applied;
        let assembled = state.flow.goes_on().and_then(|()| state.assemble(Purpose::Commit));
        let group = match assembled {
            Ok(group) => group,
            Err(error) => return (state, Err(error)),
        };
        state.flow.writing = true;
        drop(state);
        let mut done = group.write_durable(&*self.env.dev);
        let mut state = self.state.lock();
        state.flow.writing = false;
        self.written.notify_all();
        match &done {
            Ok(()) => {
                state.flow.durable = covers;
                self.durable.store(covers, Ordering::Release);
                done = state.settle(&group).and_then(|()| self.checkpoint_if_due(&mut state));
            }
            Err(error) => state.flow.poison(error),
        }
        (state, done)
    }

    fn checkpoint_if_due(&self, state: &mut Guard<'_, State>) -> Result<()> {
        let geometry = &self.env.geometry;
        let log = u64::from(geometry.segments) * u64::from(geometry.segment_blocks) / 8;
        // 64 MiB of log are read again in a fraction of a second.
        let due = state.flow.since >= log.min(16 << 10);
        if due || state.frees() {
            checkpoint::write(state)?;
        }
        Ok(())
    }

    /// Makes all that was committed durable.
    ///
    /// # Errors
    /// As [`Volume::durable`].
    pub fn sync(&self) -> Result<()> {
        let applied = self.state.lock().flow.applied;
        self.durable(applied)
    }

    /// Makes a checkpoint: opening the volume has nothing to read again, and what is dead is
    /// free.
    ///
    /// # Errors
    /// As [`Volume::durable`].
    pub fn checkpoint(&self) -> Result<()> {
        let mut state = self.state.lock();
        self.wait_for_writer(&mut state)?;
        checkpoint::write(&mut state)
    }

    /// Holds an object: it stays, also without a name, until it is released as often.
    ///
    /// # Errors
    /// [`Error::NotFound`]; what reading can say.
    pub fn hold(&self, ino: Ino) -> Result<()> {
        let mut state = self.state.lock();
        state.tree.load(ino)?;
        *state.held.entry(ino).or_insert(0) += 1;
        Ok(())
    }

    /// The opposite of [`Volume::hold`].
    ///
    /// # Errors
    /// What reading can say.
    pub fn release(&self, ino: Ino) -> Result<()> {
        self.state.lock().release(ino)
    }

    /// Those of these objects, and of all that have no name, that somebody holds.
    pub fn held_unnamed(&self, these: &[Ino]) -> BTreeSet<Ino> {
        let state = self.state.lock();
        let all = these.iter().chain(&state.orphans).copied();
        all.filter(|ino| state.held.contains_key(ino)).collect()
    }

    /// Waits until one of these objects is not held any longer. Whether one is not: none of no
    /// objects, and maybe none in all of this time.
    pub fn wait_for_release(&self, of: &BTreeSet<Ino>, limit: Duration) -> bool {
        let (until, mut state) = (Instant::now() + limit, self.state.lock());
        let released = Arc::clone(&state.flow.released);
        loop {
            if of.iter().any(|ino| !state.held.contains_key(ino)) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if of.is_empty() || left.is_zero() {
                return false;
            }
            released.wait_for(&mut state, left);
        }
    }

    /// Makes a snapshot of the committed tree; it is durable when this returns.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NameTooLong`], [`Error::Invalid`] for the name;
    /// [`Error::NoSpace`]; as [`Volume::durable`].
    pub fn snapshot(&self, name: &str) -> Result<()> {
        snapshots::check_name(&self.state.lock(), name)?;
        self.gather()?;
        let mut state = self.state.lock();
        self.wait_for_writer(&mut state)?;
        self.make_room(&mut state, Need::of(16))?;
        snapshots::take(&mut state, name, None)
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        snapshots::list(&self.state.lock())
    }

    /// The tree of a snapshot.
    ///
    /// # Errors
    /// [`Error::NotFound`]; what reading can say.
    pub fn at(&self, name: &str) -> Result<View> {
        let state = self.state.lock();
        let snapshot = snapshots::find(&state, name)?;
        let open = self.views.lock().entry(name.to_owned()).or_default().clone();
        View::new(&self.env, snapshot, open)
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Busy`] while somebody reads it; as [`Volume::durable`].
    pub fn remove_snapshot(&self, name: &str) -> Result<()> {
        let mut state = self.state.lock();
        self.wait_for_writer(&mut state)?;
        let mut views = self.views.lock();
        if views.get(name).is_some_and(|open| Arc::strong_count(open) > 1) {
            return Err(Error::Busy(format!("snapshot {name:?}")));
        }
        views.remove(name);
        drop(views);
        snapshots::remove(&mut state, name)
    }

    /// The state, when nobody is writing a group.
    pub(crate) fn with_state<T>(&self, act: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        self.wait_for_writer(&mut state)?;
        act(&mut state)
    }

    /// Makes room for a transaction, and lets `act` install it, when nobody is writing a group.
    pub(crate) fn install<T>(
        &self,
        mut txn: Txn,
        act: impl FnOnce(&mut State, &mut Txn) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state.lock();
        let need = state.need(&txn)?;
        self.make_room(&mut state, need)?;
        self.wait_for_writer(&mut state)?;
        act(&mut state, &mut txn)
    }

    /// Writes everything, and a last checkpoint.
    ///
    /// # Errors
    /// As [`Volume::durable`].
    pub fn close(self) -> Result<()> {
        self.checkpoint()
    }
}
