//! What was committed: log, show, undo, redo, gc.
//!
//! An undo is an ordinary transaction: its write set comes from the store (which has compared what
//! is there now with what the undone transaction left), its names and objects are written in the
//! engine, so that it conflicts with whatever runs, and it is decided and installed like any other.

use crate::deferred;
use crate::protocol::{
    Action, Change, ChangeKind, Collected, Content, Failure, FailureKind, Gc, HostPath, LogEntry,
    Outcome, Summary, Undo, Undone, Version,
};
use crate::stopped;
use crate::top::Counts;
use crate::transactions::Transactions;
use crate::volume::OpenVolume;
use std::collections::HashMap;
use std::sync::Arc;
use systx_base::TxnId;
use systx_commit::{Commit, Durable, Part, stamp_of};
use systx_store::io::Stamp;
use systx_store::writeset::WriteSet;
use systx_store::{
    self as stored, CommitMeta, HistoryEntry, Joint, Keep, Member, TxnKind, UndoError,
};
use systx_txn::{Access, BeginOptions, Object};

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Take a transaction back.
    Undo,
    /// Take an undo back.
    Redo,
}

/// Whether the volume's history has this id.
pub fn knows(volume: &OpenVolume, id: TxnId) -> bool {
    volume.store.has_history(id).unwrap_or(false)
}

fn entries(volume: &OpenVolume) -> Result<Vec<HistoryEntry>, Failure> {
    // What its program has been told of is there.
    volume.vol.wait_durable();
    let mut all = volume.store.history().map_err(|e| {
        Failure::new(FailureKind::Store, format!("cannot read the history: {e}"))
            .path(volume.location.store.as_path())
    })?;
    all.sort_by_key(|e| std::cmp::Reverse(e.lsn));
    Ok(all)
}

/// Committed transactions, the latest first.
///
/// # Errors
/// The store cannot be read.
pub fn log(
    table: &Transactions,
    volume: &OpenVolume,
    limit: Option<u64>,
) -> Result<Vec<LogEntry>, Failure> {
    let all = entries(volume)?;
    let undone_by = undone_by(&all);
    let waiting: HashMap<TxnId, Vec<Action>> =
        deferred::due(volume)?.into_iter().map(|d| (d.id, d.actions)).collect();
    let limit = limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
    let mut others = Others::new(|member: &Member| {
        let other = table.volume_of(member).ok()?;
        let all = entries(&other).ok()?.into_iter();
        let joint = all.filter(|entry| entry.joint.is_some());
        Some(joint.map(|entry| (entry.meta.txn, entry.changes)).collect())
    });
    Ok(all
        .iter()
        .take(limit)
        .map(|e| LogEntry {
            id: e.meta.txn,
            time: e.meta.finished,
            argv: e.meta.argv.iter().map(|a| HostPath(a.clone())).collect(),
            cwd: HostPath(e.meta.cwd.clone()),
            summary: summary(&e.changes, others.changes(e)),
            undoes: undoes(&e.meta),
            undone_by: undone_by.get(&e.meta.txn).copied(),
            undoable: !undone_by.contains_key(&e.meta.txn),
            deferred: waiting.get(&e.meta.txn).cloned().unwrap_or_default(),
        })
        .collect())
}

fn undoes(meta: &CommitMeta) -> Option<TxnId> {
    match meta.kind {
        TxnKind::Undo { of } | TxnKind::Redo { of } => Some(of),
        TxnKind::Run | TxnKind::Partial => None,
    }
}

/// Which transaction took which back, where that still holds: an undo that was itself taken back
/// undoes nothing.
fn undone_by(all: &[HistoryEntry]) -> HashMap<TxnId, TxnId> {
    let mut by: HashMap<TxnId, TxnId> = HashMap::new();
    // Latest first: a later undo of an undo is seen before the undo.
    for entry in all {
        if let Some(of) = undoes(&entry.meta)
            && !by.contains_key(&entry.meta.txn)
        {
            by.insert(of, entry.meta.txn);
        }
    }
    by
}

/// What joint transactions changed on other file systems.  Each history is read once, however many transactions of it are
/// asked for.
struct Others<R> {
    /// Reads one, if it is there.
    read: R,
    /// By store.
    known: HashMap<u64, HashMap<TxnId, Vec<stored::Change>>>,
}

impl<R: FnMut(&Member) -> Option<HashMap<TxnId, Vec<stored::Change>>>> Others<R> {
    fn new(read: R) -> Others<R> {
        Others { read, known: HashMap::new() }
    }

    fn changes(&mut self, entry: &HistoryEntry) -> Vec<&stored::Change> {
        let members = || entry.joint.iter().flat_map(Joint::others);
        for member in members() {
            let read = || (self.read)(member).unwrap_or_default();
            self.known.entry(member.store).or_insert_with(read);
        }
        let of = |member: &Member| self.known.get(&member.store)?.get(&entry.meta.txn);
        members().filter_map(of).flatten().collect()
    }
}

fn summary<'a>(
    changes: &'a [stored::Change],
    others: impl IntoIterator<Item = &'a stored::Change>,
) -> Summary {
    let all = changes.iter().chain(others);
    crate::describe::summary(all.map(|c| described(b"", c)).collect::<Vec<_>>().iter())
}

fn described(mount: &[u8], change: &stored::Change) -> Change {
    let absolute = |path: &[u8]| {
        let mut all = mount.to_vec();
        all.push(b'/');
        all.extend_from_slice(path);
        HostPath(all)
    };
    let (kind, from) = match &change.kind {
        stored::ChangeKind::Created => (ChangeKind::Added, None),
        stored::ChangeKind::Removed => (ChangeKind::Deleted, None),
        stored::ChangeKind::Replaced | stored::ChangeKind::Modified => (ChangeKind::Modified, None),
        stored::ChangeKind::Renamed { from } => (ChangeKind::Renamed, Some(absolute(from))),
    };
    Change {
        kind,
        path: absolute(&change.path),
        from,
        old: None,
        new: None,
        content: true,
        xattrs: Vec::new(),
        dropped: false,
    }
}

fn find(volume: &OpenVolume, id: TxnId) -> Result<HistoryEntry, Failure> {
    entries(volume)?.into_iter().find(|e| e.meta.txn == id).ok_or_else(|| {
        Failure::new(FailureKind::NotFound, format!("the history has no transaction {id}"))
            .hint("`systx log` lists what it has")
    })
}

/// What a committed transaction changed, on all file systems that are there.
///
/// # Errors
/// It is not in the history.
pub fn changes(
    table: &Transactions,
    volume: &OpenVolume,
    id: TxnId,
) -> Result<Vec<Change>, Failure> {
    let entry = find(volume, id)?;
    let of = |volume: &OpenVolume, entry: &HistoryEntry| {
        let mount = &volume.vol.mount_path;
        entry.changes.iter().map(|c| described(mount, c)).collect::<Vec<_>>()
    };
    let mut all = of(volume, &entry);
    for member in entry.joint.iter().flat_map(Joint::others) {
        let Ok(other) = table.volume_of(member) else { continue };
        all.extend(find(&other, id).map(|entry| of(&other, &entry)).unwrap_or_default());
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// Content of a side of a committed change: the history keeps what undo needs, not what a review
/// would show, so this is unknown.
///
/// # Errors
/// The transaction is not in the history, or did not change the path.
pub fn content(
    table: &Transactions,
    volume: &OpenVolume,
    id: TxnId,
    path: &HostPath,
    _version: Version,
    _limit: u64,
) -> Result<Content, Failure> {
    if !changes(table, volume, id)?.iter().any(|c| c.path == *path) {
        let message = format!("transaction {id} did not change {path}");
        return Err(Failure::new(FailureKind::Invalid, message).path(path.clone()));
    }
    Ok(Content { unknown: true, ..Content::default() })
}

/// Undoes or redoes.
///
/// # Errors
/// There is nothing to undo, it cannot be undone any more, or later changes overlap.
pub fn undo(table: &Transactions, ask: &Undo, direction: Direction) -> Result<Undone, Failure> {
    let volume = table.volume(&ask.place)?;
    let target = choose(&volume, ask.id, direction)?;
    let mut volumes = vec![volume];
    for member in target.joint.iter().flat_map(Joint::others) {
        volumes.push(table.volume_of(member)?);
    }
    // One order wherever locks of several volumes are taken.
    volumes.sort_by_key(|volume| volume.vol.order());
    let argv = target.meta.argv.iter().map(|a| HostPath(a.clone())).collect();
    let (changes, outcome) = if ask.dry_run {
        (Plan::make(&volumes, &target)?.changes, None)
    } else {
        let (changes, outcome) = run(table, &volumes, &target, direction, ask)?;
        (changes, Some(outcome))
    };
    Ok(Undone { target: target.meta.txn, argv, changes, outcome })
}

/// What takes a transaction back.
struct Plan {
    /// For each volume.
    sets: Vec<WriteSet>,
    changes: Vec<Change>,
    /// What the sets refer to: they must live until they are committed.
    _slots: Vec<stored::Slot>,
}

impl Plan {
    /// By what is there at this moment.
    fn make(volumes: &[Arc<OpenVolume>], target: &HistoryEntry) -> Result<Plan, Failure> {
        let mut plan = Plan { sets: Vec::new(), changes: Vec::new(), _slots: Vec::new() };
        for volume in volumes {
            let undo = volume.store.undo_set(target.meta.txn);
            let undo = undo.map_err(|e| cannot(volume, target, e))?;
            let mount = &volume.vol.mount_path;
            plan.changes.extend(stored::changes(&undo.set).iter().map(|c| described(mount, c)));
            plan.sets.push(undo.set);
            plan._slots.extend(undo.slots);
        }
        Ok(plan)
    }

    /// With everything that it changes recorded as written by transaction `id`, and what it displaces as read.  What that
    /// is can be said only by looking, and only then can it be recorded; somebody may have committed in between, whose
    /// changes would be taken back, too.  So it is looked at again until nothing is new in it.
    fn claim(
        volumes: &[Arc<OpenVolume>],
        target: &HistoryEntry,
        id: TxnId,
    ) -> Result<Plan, Failure> {
        let moments = || volumes.iter().map(|v| v.vol.engine.moment()).collect::<Vec<_>>();
        let mut claimed = None;
        loop {
            let before = moments();
            let plan = Plan::make(volumes, target)?;
            let worksets: Vec<_> =
                volumes.iter().zip(&plan.sets).map(|(v, set)| Workset::of(v, set)).collect();
            if claimed.as_ref() == Some(&worksets) {
                return Ok(plan);
            }
            let mut all = volumes.iter().zip(&worksets);
            if !all.all(|(volume, workset)| workset.record(volume, id)) {
                let of = target.meta.txn;
                let message = format!("a running transaction uses what transaction {of} changed");
                return Err(Failure::new(FailureKind::Busy, message)
                    .hint("try again when it has ended; `systx list` shows it"));
            }
            if moments() == before {
                return Ok(plan);
            }
            claimed = Some(worksets);
        }
    }
}

/// The transaction to take back: the given one, or the latest that was not taken back yet.
fn choose(
    volume: &OpenVolume,
    id: Option<TxnId>,
    direction: Direction,
) -> Result<HistoryEntry, Failure> {
    let all = entries(volume)?;
    let undone = undone_by(&all);
    let is_undo = |e: &HistoryEntry| matches!(e.meta.kind, TxnKind::Undo { .. });
    let fits = |e: &HistoryEntry| is_undo(e) == (direction == Direction::Redo);
    let word = if direction == Direction::Undo { "undo" } else { "redo" };
    match id {
        // `redo ID` may name the undone transaction or the undo.
        Some(id) => {
            let named = if direction == Direction::Redo {
                undone.get(&id).copied().unwrap_or(id)
            } else {
                id
            };
            let entry = all.into_iter().find(|e| e.meta.txn == named).ok_or_else(|| {
                Failure::new(FailureKind::NotFound, format!("the history has no transaction {id}"))
                    .hint("`systx log` lists what it has")
            })?;
            if let Some(by) = undone.get(&entry.meta.txn) {
                let message = format!("transaction {} was undone already, by {by}", entry.meta.txn);
                return Err(Failure::new(FailureKind::State, message)
                    .hint(format!("`systx redo {by}` brings it back")));
            }
            if direction == Direction::Redo && !is_undo(&entry) {
                let message = format!("transaction {id} was not undone");
                return Err(Failure::new(FailureKind::State, message));
            }
            Ok(entry)
        }
        None => all
            .into_iter()
            .find(|e| fits(e) && !undone.contains_key(&e.meta.txn))
            .ok_or_else(|| Failure::new(FailureKind::NotFound, format!("nothing to {word}"))),
    }
}

fn cannot(volume: &OpenVolume, target: &HistoryEntry, error: UndoError) -> Failure {
    let id = target.meta.txn;
    match error {
        UndoError::Unknown(_) => {
            Failure::new(FailureKind::NotFound, format!("the history has no transaction {id}"))
        }
        UndoError::Gone { path, .. } => {
            let message = format!(
                "transaction {id} cannot be undone any more: gc has freed what it replaced, or the file has lost its last name since"
            );
            Failure::new(FailureKind::State, message).path(HostPath(volume.absolute(&path)))
        }
        UndoError::Overlap(paths) => {
            let message = format!("later changes overlap with transaction {id}");
            let mut failure = Failure::new(FailureKind::Overlap, message)
                .hint("undo the later transactions first, or restore these paths by hand");
            for path in paths {
                failure = failure.path(HostPath(volume.absolute(&path)));
            }
            failure
        }
        UndoError::Io(e) => {
            Failure::new(FailureKind::Io, format!("cannot look at what transaction {id} left: {e}"))
        }
    }
}

fn run(
    table: &Transactions,
    volumes: &[Arc<OpenVolume>],
    target: &HistoryEntry,
    direction: Direction,
    ask: &Undo,
) -> Result<(Vec<Change>, Outcome), Failure> {
    let Some(first) = volumes.first() else {
        return Err(Failure::new(FailureKind::Internal, "a transaction without a volume"));
    };
    let id = table.new_id_in(volumes)?;
    let started = first.vol.io.now();
    let give_up = || volumes.iter().for_each(|v| v.vol.engine.abort(id));
    for volume in volumes {
        volume.vol.engine.begin(id, BeginOptions::default());
    }
    let mut plan = Plan::claim(volumes, target, id).inspect_err(|_| give_up())?;
    let of = target.meta.txn;
    let (kind, word) = match direction {
        Direction::Undo => (TxnKind::Undo { of }, "undo"),
        Direction::Redo => (TxnKind::Redo { of }, "redo"),
    };
    let meta = CommitMeta {
        txn: id,
        kind,
        argv: vec![b"systx".to_vec(), word.into(), of.to_string().into_bytes()],
        cwd: ask.place.cwd.0.clone(),
        uid: rustix::process::geteuid().as_raw(),
        started,
        finished: first.vol.io.now(),
    };
    let sets = std::mem::take(&mut plan.sets);
    let parts = volumes.iter().zip(sets).map(|(volume, writes)| Part {
        site: Arc::clone(&volume.site),
        writes,
        appended: Vec::new(),
    });
    let decided = Commit::new(id, meta, parts.collect()).reserve().and_then(|r| r.decide());
    match decided.and_then(|decided| decided.durable()).and_then(Durable::place) {
        Ok(placed) => {
            let outside = stopped::outside_changes(&placed.release());
            for volume in volumes {
                Counts::count(&volume.counts.begun);
                Counts::count(&volume.counts.committed);
            }
            let summary = crate::describe::summary(&plan.changes);
            let (stale, notes) = (Vec::new(), Vec::new());
            let outcome = Outcome::Committed { id, summary, outside, stale, dropped: 0, notes };
            Ok((plan.changes, outcome))
        }
        Err(why) => {
            give_up();
            Err(stopped::failure(why))
        }
    }
}

/// What a write set that was made by looking touches in the engine.
#[derive(PartialEq)]
struct Workset {
    written: Vec<Object>,
    /// Every version that it was made for: who displaces a file relies on its being that one.
    read: Vec<Object>,
}

impl Workset {
    fn of(volume: &OpenVolume, set: &WriteSet) -> Workset {
        let written = systx_vfs::claim::written(&volume.vol, set);
        let met = set.objects.iter().filter_map(|object| stamp_of(&object.origin));
        let whole = |stamp: Stamp| {
            let oid = volume.vol.oid(stamp.id);
            [Object::Attr(oid), Object::Size(oid), Object::Pages { oid, first: 0, last: u64::MAX }]
        };
        Workset { written, read: met.flat_map(whole).collect() }
    }

    /// False if the transaction lost.
    fn record(&self, volume: &OpenVolume, id: TxnId) -> bool {
        let engine = &volume.vol.engine;
        let granted = |ask: &dyn Fn() -> Access| loop {
            match ask() {
                Access::Granted => return true,
                Access::Doomed => return false,
                Access::Wait(winner) => engine.wait_installed(winner),
            }
        };
        self.read.iter().all(|o| granted(&|| engine.read(id, o.as_ref())))
            && self.written.iter().all(|o| granted(&|| engine.write(id, o.as_ref())))
    }
}

/// Frees what only old undos need.
///
/// # Errors
/// The store cannot be written.
pub fn gc(volume: &OpenVolume, ask: &Gc) -> Result<Collected, Failure> {
    let count = ask.keep.map_or(usize::MAX, |k| usize::try_from(k).unwrap_or(usize::MAX));
    if ask.dry_run {
        let transactions = entries(volume)?.len().saturating_sub(count) as u64;
        return Ok(Collected { transactions, ..Collected::default() });
    }
    let mut keep = Keep::default();
    if ask.keep.is_some() {
        keep.count = count;
    }
    if let Some(bytes) = ask.max_bytes {
        keep.bytes = bytes;
    }
    let report = volume.store.gc(keep).map_err(|e| {
        Failure::new(FailureKind::Store, format!("gc failed: {e}"))
            .path(volume.location.store.as_path())
    })?;
    Ok(Collected {
        transactions: report.removed.len() as u64,
        bytes: report.freed,
        remaining: report.kept,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_base::Time;

    fn member(store: u64) -> Member {
        Member { store, memory: false, path: format!("/{store}/.systx").into_bytes() }
    }

    fn created(path: String) -> stored::Change {
        stored::Change { kind: stored::ChangeKind::Created, path: path.into_bytes() }
    }

    #[test]
    fn a_log_of_joint_transactions_reads_each_other_history_once() {
        const MANY: u64 = 3000;
        let entry = |n: u64| HistoryEntry {
            meta: CommitMeta {
                txn: TxnId(n),
                kind: TxnKind::Run,
                argv: Vec::new(),
                cwd: Vec::new(),
                uid: 0,
                started: Time::default(),
                finished: Time::default(),
            },
            lsn: n,
            changes: vec![created(format!("a{n}"))],
            outside: 0,
            joint: Some(Joint {
                id: n,
                members: vec![member(1), member(2), member(3)],
                decider: 0,
                me: 0,
            }),
        };
        let mut reads = Vec::new();
        let mut others = Others::new(|member: &Member| {
            reads.push(member.store);
            // One of them is not there.
            let changes = |n| (TxnId(n), vec![created(format!("b{n}"))]);
            (member.store == 2).then(|| (1..=MANY).map(changes).collect())
        });
        for n in 1..=MANY {
            let entry = entry(n);
            assert_eq!(summary(&entry.changes, others.changes(&entry)).added, 2);
        }
        assert_eq!(reads, [2, 3]);
    }
}
