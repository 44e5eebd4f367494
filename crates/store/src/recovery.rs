//! Opening a store: what a crash left is finished, what never was committed is dropped.
//!
//! 1. Lock the store; read the newest valid super block.
//! 2. Read the journal from there on.  No super block means that nothing was ever committed.
//! 3. Install every record again, in order.  Records overlap in files at most that they change in
//!    place ([`crate::footprint`]): whether what is found in such a file is ours is asked of all of
//!    them, at the first, which also makes its bytes what the last of them leaves
//!    ([`crate::content`], `chain`).  If the file system has been mounted all the time (a process
//!    died, nothing that was written is lost), those that the mark calls installed are skipped
//!    ([`crate::mark`]).
//! 4. Sync, then write a super block that begins after the last record, with the next epoch: what
//!    is left of a torn group can never become valid. Only now slots are emptied.
//!
//! Until step 4 the journal is not touched, and installing is idempotent: recovery may crash at any
//! call and starts over.  An error leaves everything as it was for the next attempt.

use crate::class::network;
use crate::dir_store::{Config, DirStore, Opened};
use crate::env::{Env, Ground};
use crate::error::{OpenError, open_io, shown};
use crate::footprint::is_in_place;
use crate::history::{Commit, History};
use crate::install::{Versions, install_among};
use crate::interface::Store;
use crate::io::{Class, Handle, HostId, Io, Stamp};
use crate::joint::{Joint, Member, Nobody, Outcome, Outcomes};
use crate::journal::{Head, Identity, Record, Scan, scan};
use crate::kept::{Bundled, Kept};
use crate::layout::{Layout, ensure_file, found, history_of, names, remove_all, walk};
use crate::lock::StoreLock;
use crate::mark::Mark;
use crate::orders::{Named, Numbers};
use crate::overlay::Overlay;
use crate::report::OutsideChange;
use crate::staging::Pool;
use crate::super_block::{FORMAT, Found, Super, Supers, read};
use crate::trust::{Owner, Refused};
use crate::writeset::index::Index;
use crate::writeset::{Content, Ix, Origin, SlotId};
use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Result};
use std::sync::Arc;
use systx_base::TxnId;

/// What opening a store had to do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Transactions that were committed and are installed now.
    pub finished: Vec<TxnId>,
    /// Transactions over several stores that were prepared here and never committed.
    pub dropped: Vec<TxnId>,
    /// Other stores of the transactions that the journal still had.
    pub others: Vec<Member>,
    /// Whether a commit was cut off before its commit point; nothing of it is left.
    pub discarded: bool,
    /// What outsiders had done meanwhile.
    pub outside: Vec<OutsideChange>,
}

impl RecoveryReport {
    /// This one, and then the other.
    pub fn add(&mut self, other: &RecoveryReport) {
        self.finished.extend(&other.finished);
        self.dropped.extend(&other.dropped);
        self.others.extend(other.others.iter().cloned());
        self.discarded |= other.discarded;
        self.outside.extend(other.outside.iter().cloned());
    }
}

impl Super {
    pub(crate) fn named(&self) -> Named {
        Named { store: self.store, number: self.orders }
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity {
            store: self.store,
            epoch: self.epoch,
            segments: self.segments,
            segment_bytes: self.segment_bytes,
        }
    }
}

/// A committed transaction that was found in the journal.
struct Pending {
    record: Record,
    commit: Commit,
}

/// Opens the store of a volume that keeps what is committed as plain files, making it if there is
/// none, and finishes what a crash left.
///
/// # Errors
/// Why it is not opened; then nothing was changed that another try would miss.
pub fn open(
    config: Config,
    io: Arc<dyn Io>,
) -> std::result::Result<(Arc<dyn Store>, RecoveryReport), OpenError> {
    open_among(config, io, &Nobody)
}

/// As [`open`]; `others` knows what other stores decided.
///
/// # Errors
/// As there.
pub fn open_among(
    config: Config,
    io: Arc<dyn Io>,
    others: &dyn Outcomes,
) -> std::result::Result<(Arc<dyn Store>, RecoveryReport), OpenError> {
    let (store, report) = open_dir(config, io, others)?;
    Ok((Arc::new(store), report))
}

#[cfg(test)]
impl DirStore {
    /// As [`open`].
    pub fn open(
        config: Config,
        io: Arc<dyn Io>,
    ) -> std::result::Result<(DirStore, RecoveryReport), OpenError> {
        open_dir(config, io, &Nobody)
    }
}

/// As [`open_among`].
fn open_dir(
    config: Config,
    io: Arc<dyn Io>,
    others: &dyn Outcomes,
) -> std::result::Result<(DirStore, RecoveryReport), OpenError> {
    let path = config.state_dir.clone();
    let failed = open_io(&path);
    let info = io.fs_info().map_err(&failed)?;
    if let Some(kind) = network(info.magic) {
        return Err(OpenError::Network { kind });
    }
    let (layout, lock) = locked(&*io, &path, config.owner)?;
    let lock = StoreLock::of(&io, lock);
    let mut block = find_super(&*io, &layout)?;
    let root = io.stat(&io.root()).map_err(&failed)?.id;
    let mut report = RecoveryReport::default();
    let class = info.class;
    let overlay = info.magic == crate::class::OVERLAY;
    if overlay {
        crate::overlay::prepare(&*io, &layout).map_err(&failed)?;
    }
    let numbers = match &block {
        None => Numbers::none(),
        Some(block) => Numbers::load(&*io, &layout, block.named())?,
    };
    let pool = match &mut block {
        None => {
            // A first commit may have been cut off before its record.
            clear_staging(&*io, &layout).map_err(&failed)?;
            Pool::open(Arc::clone(&io), &layout, &[]).map_err(&failed)?
        }
        Some(block) => {
            let numbers = &numbers;
            let (io, layout, config) = (&io, &layout, &config);
            let stage = Stage { io, layout, class, overlay, config, numbers };
            match recover(stage, others, block, &mut report) {
                // Others have used up a quota since.  It starts over, as after a crash.
                Err(error) if error.is_full() && crate::spare::give_up(&**io, layout) => {
                    report = RecoveryReport::default();
                    recover(stage, others, block, &mut report)?
                }
                recovered => recovered?,
            }
        }
    };
    let (highest, kept) = kept(&*io, &layout, &config.bundled).map_err(&failed)?;
    let highest_txn = highest.max(TxnId(block.map_or(0, |b| b.txn)));
    let ground = Ground { io, layout, pool, class, overlay };
    let opened = Opened { ground, config, root, block, highest_txn, kept, numbers, lock };
    Ok((DirStore::assemble(opened), report))
}

/// Whether the directory `path` below the root of `io` is a store of `owner`, or may become one;
/// changes nothing.
///
/// # Errors
/// Why it may not.
pub fn check_place(io: &dyn Io, path: &[u8], owner: Owner) -> std::result::Result<(), OpenError> {
    walk(io, path, Some(owner)).map(drop).map_err(|why| refused(path, why))
}

/// The overlay file system of a store that is there, if it is on one.
///
/// # Errors
/// Of the look.
pub fn overlay_of(
    io: &Arc<dyn Io>,
    path: &[u8],
) -> std::result::Result<Option<Overlay>, OpenError> {
    if io.fs_info().map_err(open_io(path))?.magic != crate::class::OVERLAY {
        return Ok(None);
    }
    let layout = Layout::look(&**io, path, None).map_err(|why| refused(path, why))?;
    Ok(layout.map(|layout| Overlay::new(Arc::clone(io), layout.state)))
}

pub(crate) fn refused(store: &[u8], why: Refused) -> OpenError {
    let path = shown(store);
    match why {
        Refused::Io(source) => OpenError::Io { path, source },
        Refused::Foreign(owner) => OpenError::Foreign { path, owner },
        Refused::Unsafe(at, why) => OpenError::Unsafe { path, at: shown(&at), why },
    }
}

/// The store's directory with its lock.  A process that gives up a store in which nothing was
/// committed removes it: then another one is made.
fn locked(
    io: &dyn Io,
    path: &[u8],
    owner: Option<Owner>,
) -> std::result::Result<(Layout, Handle), OpenError> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        let state = match Layout::make(io, path, owner) {
            Err(Refused::Io(e)) if e.kind() == ErrorKind::NotFound => continue,
            made => made.map_err(|why| refused(path, why))?,
        };
        match take_lock(io, &state) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Ok(Some(lock)) if !is_still(io, &state, &lock) => {}
            // Only now: whoever removes a store has its lock.
            Ok(Some(lock)) => {
                let layout = Layout::complete(io, path, state).map_err(open_io(path))?;
                return Ok((layout, lock));
            }
            Ok(None) => break,
            Err(e) => return Err(open_io(path)(e)),
        }
    }
    Err(OpenError::Locked { path: shown(path) })
}

fn take_lock(io: &dyn Io, state: &Handle) -> Result<Option<Handle>> {
    let lock = ensure_file(io, state, b"lock")?;
    Ok(io.try_lock(&lock)?.then_some(lock))
}

/// Whether a lock is of the file that everybody finds.
fn is_still(io: &dyn Io, state: &Handle, lock: &Handle) -> bool {
    let there = io.stat_at(state, b"lock");
    there.is_ok_and(|there| io.stat(lock).is_ok_and(|own| own.id == there.id))
}

fn damaged(layout: &Layout, what: impl Into<String>) -> OpenError {
    OpenError::Damaged { path: shown(&layout.path), what: what.into() }
}

fn find_super(io: &dyn Io, layout: &Layout) -> std::result::Result<Option<Super>, OpenError> {
    let failed = open_io(&layout.path);
    match read(io, layout).map_err(&failed)? {
        Found::Valid(block) => Ok(Some(block)),
        Found::Version(found) => {
            Err(OpenError::Version { path: shown(&layout.path), found, known: FORMAT })
        }
        Found::Damaged => Err(damaged(layout, "no valid super block")),
        Found::Nothing => {
            // History is only written after a commit, and no commit precedes the super block.
            if names(io, &layout.history).map_err(&failed)?.is_empty() {
                Ok(None)
            } else {
                Err(damaged(layout, "the super block is missing"))
            }
        }
    }
}

/// Where recovery works.
#[derive(Clone, Copy)]
struct Stage<'a> {
    io: &'a Arc<dyn Io>,
    layout: &'a Layout,
    class: Class,
    overlay: bool,
    config: &'a Config,
    numbers: &'a Numbers,
}

/// Reads the journal, installs what it holds, and begins a new epoch.
fn recover(
    stage: Stage<'_>,
    others: &dyn Outcomes,
    block: &mut Super,
    report: &mut RecoveryReport,
) -> std::result::Result<Arc<Pool>, OpenError> {
    let Stage { io, layout, class, overlay, config, numbers } = stage;
    let failed = open_io(&layout.path);
    let Left { mut pending, installed, end, torn } = read_journal(stage, block)?;
    // Before anything is changed.
    let dropped = never_decided(layout, others, &pending, installed)?;
    let keep: Vec<SlotId> = pending
        .iter()
        .flat_map(|p| p.commit.set.slots().into_iter().chain(p.record.side))
        .collect();
    let pool = Pool::open(Arc::clone(io), layout, &keep).map_err(&failed)?;
    if pending.is_empty() && !torn {
        clear_staging(&**io, layout).map_err(&failed)?;
        return Ok(pool);
    }
    report.discarded = torn;
    let env = Env { io: &**io, layout, pool: &pool, class, overlay };
    let mut gone = HashSet::new();
    let again = |p: &Pending| p.record.lsn > installed && !dropped.contains(&p.record.lsn);
    let mut chains = Chains::new(&pending, again);
    for n in 0..pending.len() {
        let p = &pending[n];
        // Also of what is installed here: it may not be there.
        note(p, numbers, report);
        if p.record.lsn <= installed || p.commit.is_bare() {
            continue;
        }
        if dropped.contains(&p.record.lsn) {
            report.dropped.push(p.commit.meta.txn);
            continue;
        }
        let run = block.epoch << 24 | 0x80_0000 | n as u64;
        chains.carry_forward(n, &mut pending);
        let p = &pending[n];
        let versions = chains.versions(n, &pending);
        let (slots, stamps) = install_again(env, p, (run, config.instance.boot), versions, report)?;
        gone.extend(slots);
        chains.installed(n, &stamps);
    }
    let txn = pending.iter().map(|p| p.commit.meta.txn.0).fold(block.txn, u64::max);
    finish(stage, block, end, txn).map_err(&failed)?;
    clear_staging(&**io, layout).map_err(&failed)?;
    for slot in keep {
        let linked = io_linked(&**io, layout, slot).map_err(&failed)?;
        pool.release(slot, gone.contains(&slot) || linked);
    }
    Ok(pool)
}

/// What a journal holds.
struct Left {
    pending: Vec<Pending>,
    /// Up to this record all are installed.
    installed: u64,
    /// Behind the last one.
    end: Head,
    /// One was cut off before its decision.
    torn: bool,
}

/// Reads the journal, and how much of it is installed.
fn read_journal(stage: Stage<'_>, block: &Super) -> std::result::Result<Left, OpenError> {
    let Stage { io, layout, class, config, .. } = stage;
    let failed = open_io(&layout.path);
    let Scan { records, damaged: lost, torn } =
        scan(&**io, layout, block.identity(), block.head).map_err(&failed)?;
    let end = records.last().map_or(block.head, |r| r.after);
    if let Some(lsn) = lost {
        return Err(damaged(
            layout,
            format!("record {lsn} of the journal, followed by valid ones"),
        ));
    }
    let mark = Mark::load(&**io, layout).map_err(&failed)?;
    let mark = mark.filter(|m| m.store == block.store && m.epoch == block.epoch);
    if let Some(mark) = mark.filter(|m| m.lsn >= end.lsn) {
        return Err(damaged(
            layout,
            format!("record {} of the journal, which was installed", mark.lsn),
        ));
    }
    let pending = decode_all(layout, records, || config.registry.knows(block.store))?;
    let believed = |m: Mark| m.believed(&**io, layout, config.instance, class);
    let installed = mark.filter(|_| !pending.is_empty()).map_or(0, believed);
    Ok(Left { pending, installed, end, torn })
}

/// The records that wait for a decision elsewhere, which was that there is none.
fn never_decided(
    layout: &Layout,
    others: &dyn Outcomes,
    pending: &[Pending],
    installed: u64,
) -> std::result::Result<HashSet<u64>, OpenError> {
    let mut dropped = HashSet::new();
    for p in pending.iter().filter(|p| p.record.lsn > installed) {
        let Some(joint) = p.commit.joint.as_ref().filter(|j| !j.decides()) else { continue };
        match others.outcome(joint) {
            Outcome::Committed => {}
            Outcome::Aborted => {
                dropped.insert(p.record.lsn);
            }
            Outcome::Unknown => {
                return Err(OpenError::Waits {
                    path: shown(&layout.path),
                    txn: p.commit.meta.txn,
                    decider: shown(joint.decider().map_or(b"", |m| &m.path)),
                });
            }
        }
    }
    Ok(dropped)
}

/// What counts of a record, whether it is installed already or not.
fn note(p: &Pending, numbers: &Numbers, report: &mut RecoveryReport) {
    report.others.extend(p.commit.joint.iter().flat_map(Joint::others).cloned());
    numbers.take(p.commit.ordered(), p.commit.meta.finished);
}

/// Whether a slot's file is not in the pool's directory any more, or also elsewhere.
fn io_linked(io: &dyn Io, layout: &Layout, slot: SlotId) -> Result<bool> {
    let name = crate::staging::slot_name(slot);
    let stat = found(io.stat_at(&layout.slots, &name))?;
    let elsewhere = stat.is_none_or(|s| s.nlink > 1);
    if elsewhere && stat.is_some() {
        io.unlink(&layout.slots, &name)?;
    }
    Ok(elsewhere)
}

fn decode_all(
    layout: &Layout,
    records: Vec<Record>,
    known: impl FnOnce() -> bool,
) -> std::result::Result<Vec<Pending>, OpenError> {
    if !records.is_empty() && !known() {
        return Err(OpenError::Unknown { path: shown(&layout.path) });
    }
    let mut pending = Vec::with_capacity(records.len());
    for record in records {
        let commit = Commit::decode_record(&record.body).map_err(|e| {
            damaged(layout, format!("record {} of the journal cannot be decoded ({e})", record.lsn))
        })?;
        pending.push(Pending { record, commit });
    }
    Ok(pending)
}

/// The files that several records change in place: which records, by their position, and the object
/// in each.
struct Chains {
    files: HashMap<HostId, Chain>,
    /// The files that a record has in common with others, by the record's number.
    of: HashMap<usize, Vec<(Ix, HostId)>>,
}

#[derive(Default)]
struct Chain {
    records: Vec<(usize, Ix)>,
    /// What the last one of them that was installed has left.
    left: Option<Stamp>,
}

impl Chains {
    /// Of the records that are to be installed `again`.
    fn new(pending: &[Pending], again: impl Fn(&Pending) -> bool) -> Chains {
        let mut files: HashMap<HostId, Chain> = HashMap::new();
        for (n, p) in pending.iter().enumerate().filter(|(_, p)| again(p)) {
            let index = Index::new(&p.commit.set);
            for (i, object) in p.commit.set.objects.iter().enumerate() {
                let ix = Ix(u32::try_from(i).unwrap_or(u32::MAX));
                if let Origin::Host { stamp, .. } = &object.origin
                    && is_in_place(&index, ix)
                {
                    files.entry(stamp.id).or_default().records.push((n, ix));
                }
            }
        }
        files.retain(|_, chain| chain.records.len() > 1);
        let mut of: HashMap<usize, Vec<(Ix, HostId)>> = HashMap::new();
        for (id, chain) in &files {
            for (n, ix) in &chain.records {
                of.entry(*n).or_default().push((*ix, *id));
            }
        }
        Chains { files, of }
    }

    /// The files that record `n` has in common with others.
    fn of(&self, n: usize) -> &[(Ix, HostId)] {
        self.of.get(&n).map_or(&[], Vec::as_slice)
    }

    /// All records of each such file, if this is the first of them that changes its bytes: it does
    /// so for all.
    fn versions<'a>(&self, n: usize, pending: &'a [Pending]) -> Versions<'a> {
        let commits = |id: &HostId| {
            let chain = self.files.get(id).map_or(&[][..], |chain| &chain.records);
            let all = chain.iter().map(|(at, ix)| (*at, (&pending[*at].commit, *ix)));
            let writes = |(_, (commit, ix)): &(usize, (&Commit, Ix))| {
                commit.set.object(*ix).content != Content::Keep
            };
            let first = all.clone().find(writes).map(|(at, _)| at);
            if first == Some(n) { all.map(|(_, record)| record).collect() } else { Vec::new() }
        };
        self.of(n).iter().map(|(ix, id)| (*ix, commits(id))).collect()
    }

    /// A record that met what an earlier one left meets what that has left now: so undo goes from
    /// one to the next.
    fn carry_forward(&self, n: usize, pending: &mut [Pending]) {
        for (ix, id) in self.of(n) {
            let object = &mut pending[n].commit.set.objects[ix.0 as usize];
            let left = self.files.get(id).and_then(|chain| chain.left);
            if let (Some(left), Origin::Host { stamp, .. }) = (left, &mut object.origin) {
                *stamp = left;
            }
        }
    }

    /// Record `n` was installed, which left these.
    fn installed(&mut self, n: usize, stamps: &[Option<Stamp>]) {
        for (ix, id) in self.of.get(&n).into_iter().flatten() {
            let now = stamps.get(ix.0 as usize).copied().flatten().filter(|now| now.id == *id);
            if let (Some(now), Some(chain)) = (now, self.files.get_mut(id)) {
                chain.left = Some(now);
            }
        }
    }
}

fn install_again(
    env: Env<'_>,
    pending: &Pending,
    (run, boot): (u64, [u8; 16]),
    versions: Versions<'_>,
    report: &mut RecoveryReport,
) -> std::result::Result<(HashSet<SlotId>, Vec<Option<Stamp>>), OpenError> {
    let txn = pending.commit.meta.txn;
    let failed = |path: &[u8], source| OpenError::Recovery { txn, path: shown(path), source };
    let installed = install_among(env, &pending.commit, pending.record.lsn, (run, true), versions)
        .map_err(|stopped| failed(&stopped.path, stopped.error))?;
    report.outside.extend(installed.outside);
    report.finished.push(txn);
    let stamps = installed.done.stamps.clone();
    // Not into a bundle: an earlier attempt may have left it in one, and a file counts instead.
    History::new(&pending.commit, installed.done)
        .save(env.io, env.layout)
        .map_err(|e| failed(b"history", e))?;
    crate::decisions::note(env.io, env.layout, &pending.commit, boot)
        .map_err(|e| failed(b"decision", e))?;
    Ok((installed.gone, stamps))
}

/// Makes the installation durable and begins a new epoch after the last record.
fn finish(stage: Stage<'_>, block: &mut Super, end: Head, txn: u64) -> Result<()> {
    let Stage { io, layout, class, numbers, .. } = stage;
    let orders = numbers.write(&**io, layout, block.named())?;
    if class != Class::Memory {
        io.sync_fs()?;
    }
    let (seq, epoch) = (block.seq + 1, block.epoch + 1);
    let next =
        Super { format: FORMAT, seq, epoch, head: end, txn, orders: orders.number, ..*block };
    Supers::open(&**io, layout)?.write(&**io, &next)?;
    numbers.written(&orders);
    *block = next;
    Ok(())
}

/// Empties staging.  No record is left to be installed, so nothing in there is needed: what belongs
/// to outsiders was moved to `conflict/` by the installation that met it.
fn clear_staging(io: &dyn Io, layout: &Layout) -> Result<()> {
    for name in names(io, &layout.temp)? {
        remove_all(io, &layout.temp, &name)?;
    }
    Ok(())
}

/// The highest id among the history files, the graveyard and the conflicts (what else was committed
/// the super block knows), and which have a history.
fn kept(io: &dyn Io, layout: &Layout, bundled: &Bundled) -> Result<(TxnId, Kept)> {
    let mut highest = 0;
    let mut note = |name: &[u8]| {
        let id = name.split(|b| *b == b'.').next().and_then(|id| std::str::from_utf8(id).ok());
        if let Some(id) = id.and_then(|id| u64::from_str_radix(id, 16).ok()) {
            highest = highest.max(id);
        }
    };
    let history = names(io, &layout.history)?;
    history.iter().filter(|n| history_of(n).is_some()).for_each(|n| note(n));
    names(io, &layout.grave)?.iter().for_each(|n| note(n));
    if let Some(conflict) = found(io.open_dir(&layout.state, b"conflict"))? {
        names(io, &conflict)?.iter().for_each(|n| note(n));
    }
    Ok((TxnId(highest), Kept::new(&history, bundled.clone())))
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod in_place;
#[cfg(test)]
mod tests;
