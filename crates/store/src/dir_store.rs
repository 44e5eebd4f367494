//! The `dir` store: committed state is plain files, and a journal makes groups of changes atomic.
//!
//! A transaction goes through it in these steps:
//! 1. [`DirStore::stage`]: what does not fit into memory goes to staging slots.
//! 2. [`DirStore::reserve`]: the only step that reports a full disk.
//! 3. [`DirStore::commit`]: before-images, sync of slots, one durable write of the group's records.
//!    When it returns the transaction survives whatever happens.
//! 4. [`DirStore::apply`]: installs it in the tree ([`crate::install`]) and writes its history.
//! 5. [`DirStore::checkpoint`]: syncs the file system and lets the journal forget what is
//!    installed.
//!
//! **Group commit** ([`committing`]). Callers put their records into a queue; the first one that
//! finds no leader becomes it, writes all that is queued with one durable write, and wakes the
//! rest. Who has several transactions at hand commits them by [`DirStore::commit_group`], which
//! also syncs what they refer to only once.
//!
//! **Overlap.**  The journal never holds two transactions that touch the same things (see
//! [`crate::footprint`]): a commit that meets an earlier one first installs and checkpoints that.
//!
//! **Locks.**  One mutex (rank `STORE`) over the queue and the table of records; it is never held
//! during I/O.  The ring is taken out of it by the leader.  The pool of slots has its own (`LEAF`).
//!
//! **Errors.** After a failed sync or journal write the store is poisoned: every later call says
//! so. Opening it again decides by what is on disk.

use crate::archive::{Archive, Journal};
use crate::bundle::Bundles;
use crate::env::Ground;
use crate::error::{ApplyError, CheckpointError, Poisoned, is_full, shown};
use crate::footprint::Footprint;
use crate::graveyard::{Tracked, Users, brought_back};
use crate::history::{Commit, History};
use crate::install::install;
use crate::instance::Instance;
use crate::interface::Late;
use crate::io::{Class, HostId};
use crate::journal::{Body, Head, Ring};
use crate::kept::{Bundled, Kept};
use crate::lock::StoreLock;
use crate::mark::{Mark, Marks};
use crate::orders::{Numbers, Version};
use crate::report::ApplyReport;
use crate::space::{Inodes, Promise};
use crate::spare::Spare;
use crate::staging::Slot;
use crate::super_block::{FORMAT, Super, Supers};
use crate::trust::{Owner, Registry};
use crate::writeset::SlotId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use systx_base::TxnId;
use systx_base::sync::{Event, Guard, Mutex, rank};

/// More slots than this are synced with one `syncfs`.
const SYNC_EACH: usize = 8;
/// Below this need, and with plenty of free space, no blocks are set aside.
const BALLAST_FROM: u64 = 1 << 20;

/// Reports that wait for the one who committed.
const REPORTS: usize = 4096;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// The store's directory: a relative path below the volume root.  Missing parts are made with
    /// mode 0700.
    pub state_dir: Vec<u8>,
    /// The mount instance of the volume's file system: if it is the one that a mark was written
    /// under, what the mark speaks of is there.
    pub instance: Instance,
    /// Whose the store must be ([`crate::trust`]): recovery does what the journal in there says,
    /// with the rights of this process.  `None`: not checked.
    pub owner: Option<Owner>,
    /// Which stores this machine knows: of another one nothing is installed.
    pub registry: Registry,
    /// What earlier openings have read.
    pub bundled: Bundled,
    /// When earlier ones have looked at the bound of the history.
    pub looked: Looked,
    /// Told of the versions that a collection moves.
    pub versions: Tracked,
    /// Who commits applies at once, and may have something to do around that: others who need what
    /// is committed in the tree wait for him. Else they install it themselves.
    pub committer_applies: bool,
    /// Mixed into the identity of a new store.
    pub seed: u64,
    /// Segments of a new store's journal.
    pub segments: u32,
    /// Bytes in each, a multiple of 4096.
    pub segment_bytes: u64,
    /// Before-images up to this size go into the journal record, larger ones into a file.
    pub inline_before: u64,
}

impl Config {
    /// The defaults, with the store at `state_dir`.
    pub fn new(state_dir: impl Into<Vec<u8>>) -> Config {
        Config {
            state_dir: state_dir.into(),
            instance: Instance::default(),
            owner: None,
            registry: Registry::default(),
            bundled: Bundled::default(),
            looked: Looked::default(),
            versions: Tracked::default(),
            committer_applies: false,
            seed: 0,
            segments: 4,
            segment_bytes: 1 << 20,
            inline_before: 256 << 10,
        }
    }
}

/// Room for one commit.
#[derive(Default)]
pub(crate) struct Room {
    /// Holds blocks until the record is made, where a quota may bind; only its drop matters.
    ahead: Option<Slot>,
    /// As well, until it is installed.
    ballast: Option<Slot>,
    /// Until what needs them is installed.
    _inodes: Promise,
}

/// Why a record is not in the journal.
#[derive(Clone)]
enum NotWritten {
    /// It may be.
    InDoubt(Poisoned),
    /// There was no room for it, as this errno says: nothing of it is there.
    NoRoom(i32),
    /// The machine could not note the store before: nothing of it is there.
    Unnoted(Arc<std::io::Error>),
}

impl NotWritten {
    /// Why nothing of it is there, or that it may be.
    fn nothing(self) -> Result<std::io::Error, Poisoned> {
        match self {
            NotWritten::InDoubt(why) => Err(why),
            NotWritten::NoRoom(code) => Ok(std::io::Error::from_raw_os_error(code)),
            NotWritten::Unnoted(why) => Ok(std::io::Error::new(why.kind(), why.to_string())),
        }
    }
}

impl From<Poisoned> for NotWritten {
    fn from(poisoned: Poisoned) -> NotWritten {
        NotWritten::InDoubt(poisoned)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// A part of a joint commit that is not decided yet.
    Prepared,
    Durable,
    Applying,
    Applied,
}

/// A record that the journal still needs.
pub(crate) struct Entry {
    phase: Phase,
    txn: TxnId,
    /// Until it is installed.
    commit: Option<Arc<Commit>>,
    /// Room for the installation.
    room: Option<Room>,
    footprint: Footprint,
    /// But those whose files are in the tree.
    slots: Vec<SlotId>,
    segment: u32,
    after: Head,
    report: Option<ApplyReport>,
    /// Whether the one who committed it has had the report.
    taken: bool,
    /// Whether an earlier attempt may have done part of the installation.
    redo: bool,
}

struct Queued {
    ticket: u64,
    body: Body,
    commit: Arc<Commit>,
    slots: Vec<SlotId>,
    room: Room,
}

pub(crate) struct State {
    next_ticket: u64,
    /// Footprints of commits under way, by ticket.
    inflight: HashMap<u64, Footprint>,
    queue: Vec<Queued>,
    leading: bool,
    results: HashMap<u64, Result<u64, NotWritten>>,
    pub(crate) entries: BTreeMap<u64, Entry>,
    ring: Option<Ring>,
    pub(crate) block: Option<Super>,
    supers: Option<Arc<Supers>>,
    /// Reports of installations that another commit needed, and that are checkpointed already.
    reports: BTreeMap<u64, ApplyReport>,
    /// Entries whose installation was tried in vain; every commit asks.
    late: BTreeSet<u64>,
    checkpointing: bool,
    poisoned: Option<Poisoned>,
    runs: u64,
    highest_txn: TxnId,
}

/// What the file system takes.
struct Bounds {
    /// The longest file.
    max_len: u64,
    inodes: Arc<Inodes>,
}

/// A store; shared by reference between threads.
pub struct DirStore {
    pub(crate) ground: Arc<Ground>,
    pub(crate) config: Config,
    root: HostId,
    state: Arc<Mutex<State>>,
    changed: Event,
    pub(crate) archive: Archive,
    pub(crate) numbers: Numbers,
    marks: Marks,
    bounds: Bounds,
    spare: Spare,
    lock: StoreLock,
}

/// What opening found; the parts of a store.
pub(crate) struct Opened {
    pub ground: Ground,
    pub config: Config,
    pub root: HostId,
    pub block: Option<Super>,
    pub highest_txn: TxnId,
    pub kept: Kept,
    pub numbers: Numbers,
    pub lock: StoreLock,
}

impl DirStore {
    pub(crate) fn assemble(opened: Opened) -> DirStore {
        let state = State {
            next_ticket: 1,
            inflight: HashMap::new(),
            queue: Vec::new(),
            leading: false,
            results: HashMap::new(),
            entries: BTreeMap::new(),
            ring: opened.block.map(|b| Ring::new(b.identity(), b.head)),
            block: opened.block,
            supers: None,
            reports: BTreeMap::new(),
            late: BTreeSet::new(),
            checkpointing: false,
            poisoned: None,
            runs: 1,
            highest_txn: opened.highest_txn,
        };
        let state = Arc::new(Mutex::new(rank::STORE, state));
        let ground = Arc::new(opened.ground);
        let archive = Archive {
            ground: Arc::clone(&ground),
            versions: opened.config.versions.clone(),
            kept: opened.kept,
            bundles: Bundles::new(),
            users: Users::new(),
            journal: Arc::clone(&state) as Arc<dyn Journal>,
        };
        DirStore {
            bounds: Bounds {
                max_len: ground.io.max_len(opened.lock.file()),
                inodes: Arc::default(),
            },
            ground,
            config: opened.config,
            root: opened.root,
            state,
            changed: Event::new(),
            spare: Spare::default(),
            archive,
            numbers: opened.numbers,
            marks: Marks::new(),
            lock: opened.lock,
        }
    }

    /// The highest transaction id that was ever committed here and is still known: new ones must be
    /// above it.
    #[cfg(test)]
    pub(crate) fn highest_txn(&self) -> TxnId {
        self.state.lock().highest_txn
    }

    /// A staging slot: an empty file on the volume's file system, out of sight.
    pub fn stage(&self) -> std::io::Result<Slot> {
        self.ground.pool.take()
    }

    fn live(&self) -> Result<Guard<'_, State>, Poisoned> {
        let state = self.state.lock();
        match &state.poisoned {
            Some(poisoned) => Err(poisoned.clone()),
            None => Ok(state),
        }
    }

    fn poison(&self, what: &str, error: &std::io::Error) -> Poisoned {
        let poisoned = Poisoned { why: format!("{what}: {error}") };
        tracing::error!(what, %error, "the store stops");
        let mut state = self.state.lock();
        let poisoned = state.poisoned.get_or_insert(poisoned).clone();
        drop(state);
        self.changed.notify_all();
        poisoned
    }

    /// As [`DirStore::poison`], where what was installed may be gone as well.
    fn sync_failed(&self, what: &str, error: &std::io::Error) -> Poisoned {
        self.marks.withdraw(&*self.ground.io, &self.ground.layout);
        self.poison(what, error)
    }

    /// Installs a committed transaction in the tree, or waits for whoever does, and returns the
    /// report. Calling it again returns the same report until the checkpoint.
    pub fn apply(&self, lsn: u64) -> Result<ApplyReport, ApplyError> {
        if let Some(report) = self.state.lock().reports.remove(&lsn) {
            return Ok(report);
        }
        let result = self.install_entry(lsn, true);
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get_mut(&lsn) {
            entry.taken |= result.is_ok();
        }
        match result {
            // Checkpointed by another thread since.
            Err(ApplyError::Unknown(_)) => {
                state.reports.remove(&lsn).ok_or(ApplyError::Unknown(lsn))
            }
            other => {
                state.reports.remove(&lsn);
                other
            }
        }
    }

    /// Installs, or waits for whoever does; `mine`: this is who committed it.
    fn install_entry(&self, lsn: u64, mine: bool) -> Result<ApplyReport, ApplyError> {
        let wait = self.config.committer_applies && !mine;
        let (commit, ballast, mut run, redo) = {
            let mut state = self.live().map_err(ApplyError::Poisoned)?;
            loop {
                if let Some(poisoned) = &state.poisoned {
                    return Err(ApplyError::Poisoned(poisoned.clone()));
                }
                let run = state.runs;
                let entry = state.entries.get_mut(&lsn).ok_or(ApplyError::Unknown(lsn))?;
                match (entry.phase, &entry.report, &entry.commit) {
                    (Phase::Applied, Some(report), _) => return Ok(report.clone()),
                    // One that he has tried in vain is not for whoever meets it: what changes is
                    // published first.
                    (Phase::Durable, ..) if wait && entry.redo => return Err(ApplyError::Later),
                    (Phase::Durable, ..) if wait => self.changed.wait(&mut state),
                    (Phase::Durable, _, Some(commit)) => {
                        let commit = Arc::clone(commit);
                        let redo = std::mem::replace(&mut entry.redo, true);
                        entry.phase = Phase::Applying;
                        let ballast = entry.room.as_mut().and_then(|r| r.ballast.take());
                        state.late.remove(&lsn);
                        state.runs += 1;
                        break (commit, ballast, run, redo);
                    }
                    _ => self.changed.wait(&mut state),
                }
            }
        };
        // The room that was held is for what comes now.
        drop(ballast);
        let epoch = self.state.lock().block.map_or(0, |b| b.epoch);
        let mut result = self.install_one(&commit, lsn, epoch << 24 | run, redo);
        // Others may have used up a quota since.
        if let Err(ApplyError::Io { source, .. }) = &result
            && is_full(source)
            && self.spare.give_up(&*self.ground.io, &self.ground.layout)
        {
            run = self.next_run();
            result = self.install_one(&commit, lsn, epoch << 24 | run, true);
        }
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get_mut(&lsn) {
            match &result {
                Ok((report, gone)) => {
                    entry.phase = Phase::Applied;
                    entry.commit = None;
                    entry.room = None;
                    entry.slots.retain(|slot| !gone.contains(slot));
                    entry.footprint.installed(&commit.set, &report.stamps, self.root);
                    entry.report = Some(report.clone());
                }
                Err(_) => {
                    entry.phase = Phase::Durable;
                    state.late.insert(lsn);
                }
            }
        }
        self.changed.notify_all();
        let mark = result.is_ok().then(|| self.mark(&state)).flatten();
        drop(state);
        if let Some(mark) = mark {
            // A hint: without it recovery looks at more than it needs to.
            if let Err(error) = self.marks.advance(&*self.ground.io, &self.ground.layout, mark) {
                tracing::warn!(%error, "the mark of what is installed was not written");
            }
        }
        result.map(|(report, _)| report)
    }

    /// Committed transactions whose installation was tried in vain, the oldest first:
    /// [`DirStore::apply`] tries again.
    pub fn late(&self) -> Vec<Late> {
        let state = self.state.lock();
        let late = state.late.iter().filter_map(|lsn| {
            let commit = state.entries.get(lsn)?.commit.as_ref()?;
            let (txn, set) = (commit.meta.txn, commit.set.clone());
            Some(Late { lsn: *lsn, txn, set })
        });
        late.collect()
    }

    fn next_run(&self) -> u64 {
        let mut state = self.state.lock();
        state.runs += 1;
        state.runs - 1
    }

    fn mark(&self, state: &State) -> Option<Mark> {
        let block = state.block?;
        let applied = state.entries.iter().take_while(|(_, e)| e.phase == Phase::Applied);
        let lsn = *applied.last()?.0;
        let (store, epoch, instance) = (block.store, block.epoch, self.config.instance);
        Some(Mark { store, epoch, lsn, instance })
    }

    fn install_one(
        &self,
        commit: &Commit,
        lsn: u64,
        run: u64,
        redo: bool,
    ) -> Result<(ApplyReport, HashSet<SlotId>), ApplyError> {
        let failed = |path: &[u8], source| ApplyError::Io { path: shown(path), source };
        let installed = install(self.ground.env(), commit, lsn, run, redo)
            .map_err(|stopped| failed(&stopped.path, stopped.error))?;
        let mut stamps = installed.done.stamps.clone();
        for (ix, stamp) in &installed.done.graves {
            if let Some(left) = stamps.get_mut(ix.0 as usize) {
                // A file in the graveyard may have other names, under which it is still read.
                left.get_or_insert(*stamp);
            }
        }
        let report = ApplyReport { txn: commit.meta.txn, lsn, stamps, outside: installed.outside };
        if !commit.is_bare() {
            self.archive.kept.comes(commit.meta.txn);
            let history = History::new(commit, installed.done);
            self.archive.save(&history, redo).map_err(|e| failed(b"history", e))?;
            self.displaced(&history);
        }
        crate::decisions::note(
            &*self.ground.io,
            &self.ground.layout,
            commit,
            self.config.instance.boot,
        )
        .map_err(|e| failed(b"decision", e))?;
        // A program among them can be executed as soon as nobody has it open for writing.
        installed.gone.iter().for_each(|slot| self.ground.pool.release(*slot, true));
        Ok((report, installed.gone))
    }

    /// When nobody writes a super block.
    fn wait_checkpointed(&self) -> Result<Guard<'_, State>, Poisoned> {
        let mut state = self.live()?;
        while state.checkpointing {
            self.changed.wait(&mut state);
            if let Some(poisoned) = &state.poisoned {
                return Err(poisoned.clone());
            }
        }
        Ok(state)
    }

    /// Writes the numbers of orders for the super block that comes after this one.
    fn write_orders(&self, block: &Super) -> std::io::Result<Version> {
        match self.numbers.write(&*self.ground.io, &self.ground.layout, block.named()) {
            Err(e) if is_full(&e) && self.spare.give_up(&*self.ground.io, &self.ground.layout) => {
                self.numbers.write(&*self.ground.io, &self.ground.layout, block.named())
            }
            written => written,
        }
    }

    /// Writes a super block; durable on return.
    fn write_super(
        &self,
        supers: Option<Arc<Supers>>,
        block: &Super,
    ) -> std::io::Result<Arc<Supers>> {
        let supers = match supers {
            Some(supers) => supers,
            None => Arc::new(Supers::open(&*self.ground.io, &self.ground.layout)?),
        };
        match supers.write(&*self.ground.io, block) {
            Err(e) if is_full(&e) && self.spare.give_up(&*self.ground.io, &self.ground.layout) => {
                supers.write(&*self.ground.io, block)?;
            }
            written => written?,
        }
        Ok(supers)
    }

    /// Makes what is installed durable, and lets the journal forget it.
    ///
    /// # Errors
    /// Nothing is lost: the journal keeps what is installed until the next attempt, or the next
    /// opening.
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        let (upto, after, txn, block, supers) = {
            let mut state = self.wait_checkpointed()?;
            let applied = state.entries.iter().take_while(|(_, e)| e.phase == Phase::Applied);
            let (Some((lsn, entry)), Some(block)) = (applied.last(), state.block) else {
                return Ok(());
            };
            let (lsn, after) = (*lsn, entry.after);
            let txn = state.entries.range(..=lsn).map(|(_, e)| e.txn.0).fold(block.txn, u64::max);
            state.checkpointing = true;
            (lsn, after, txn, block, state.supers.clone())
        };
        let next = Super { format: FORMAT, seq: block.seq + 1, head: after, txn, ..block };
        let write = || -> std::io::Result<(Arc<Supers>, Super, Version)> {
            let orders = self.write_orders(&block)?;
            if self.ground.class != Class::Memory {
                self.ground.io.sync_fs()?;
            }
            let block = Super { orders: orders.number, ..next };
            Ok((self.write_super(supers, &block)?, block, orders))
        };
        let written = write();
        let mut state = self.state.lock();
        state.checkpointing = false;
        let done = match written {
            Ok((supers, block, orders)) => {
                state.supers = Some(supers);
                state.block = Some(block);
                self.numbers.written(&orders);
                let rest = state.entries.split_off(&(upto + 1));
                let mut done = std::mem::replace(&mut state.entries, rest);
                for (lsn, entry) in &mut done {
                    if let Some(report) = entry.report.take().filter(|_| !entry.taken) {
                        state.reports.insert(*lsn, report);
                    }
                }
                // Nobody asks for those of a caller that gave up.
                while state.reports.len() > REPORTS {
                    state.reports.pop_first();
                }
                Ok(done)
            }
            Err(e) => Err(e),
        };
        drop(state);
        self.changed.notify_all();
        let done = match done {
            Err(e) if is_full(&e) => return Err(CheckpointError::NoRoom(e)),
            done => done.map_err(|e| self.sync_failed("writing a checkpoint", &e))?,
        };
        for entry in done.into_values() {
            for slot in entry.slots {
                self.ground.pool.release(slot, false);
            }
        }
        Ok(())
    }

    /// Transactions whose record the journal still needs.
    #[cfg(test)]
    pub(crate) fn uncheckpointed(&self) -> Vec<TxnId> {
        self.state.lock().entries.values().map(|e| e.txn).collect()
    }
}

impl Journal for Mutex<State> {
    fn block(&self) -> Option<Super> {
        self.lock().block
    }

    fn needed(&self) -> HashSet<TxnId> {
        let state = self.lock();
        let mut needed: HashSet<TxnId> = state.entries.values().map(|e| e.txn).collect();
        for commit in state.entries.values().filter_map(|e| e.commit.as_ref()) {
            needed.extend(brought_back(&commit.set));
        }
        needed
    }
}

mod committing;
mod interface;
mod joining;
mod reserving;

pub use reserving::{AGE, LEAST, LOGGED, Looked, SHARE, usual_limits};

#[cfg(test)]
pub(crate) mod tests;
