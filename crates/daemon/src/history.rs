//! What was committed: log, show, undo, redo, gc.
//!
//! An undo is an ordinary transaction: its write set comes from the store (which has compared what
//! is there now with what the undone transaction left), its names and objects are written in the
//! engine, so that it conflicts with whatever runs, and it is decided and installed like any other.

use crate::certify;
use crate::counts::Counts;
use crate::deferred;
use crate::protocol::{
    Action, Change, ChangeKind, Collected, Failure, FailureKind, Gc, HostPath, LogEntry, Outcome,
    Peer, Place, Summary, Undo, Undone,
};
use crate::stopped;
use crate::transactions::Transactions;
use crate::urgency::{LastThread, OfLast};
use crate::volume::OpenVolume;
use choose::{Choice, choose};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systx_base::TxnId;
use systx_commit::{Commit, Durable, Part, stamp_of};
use systx_protocol::is_below;
use systx_protocol::modes::Way;
use systx_store::io::Stamp;
use systx_store::writeset::{self, WriteSet};
use systx_store::{
    self as stored, CommitMeta, HistoryEntry, Joint, Keep, Member, TxnKind, UndoError,
};
use systx_txn::{Access, BeginOptions, Object, Urgency};

mod choose;
mod review;

pub use choose::that_has;
pub use review::{changes, content};

/// Where to look for a transaction that was not found.
const NOT_THERE: &str = "`systx log` lists those of this file system, `systx log -C DIR` those of \
                         another; one that is not mounted is not looked at";

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Take a transaction back.
    Undo,
    /// Take an undo back.
    Redo,
}

impl Direction {
    fn word(self) -> &'static str {
        match self {
            Direction::Undo => "undo",
            Direction::Redo => "redo",
        }
    }
}

/// Whether the volume's history has this id.
pub fn knows(volume: &OpenVolume, id: TxnId) -> bool {
    volume.store.has_history(id)
}

fn entries(volume: &OpenVolume) -> Result<Vec<HistoryEntry>, Failure> {
    // What its program has been told of is there.
    volume.vol.wait_durable();
    let Some(store) = volume.existing()? else { return Ok(Vec::new()) };
    let mut all = store.history().map_err(|e| unreadable(volume, &e))?;
    all.sort_by_key(|e| std::cmp::Reverse(e.lsn));
    Ok(all)
}

fn unreadable(volume: &OpenVolume, error: &std::io::Error) -> Failure {
    Failure::new(FailureKind::Store, format!("cannot read the history: {error}"))
        .path(volume.location.store.as_path())
}

/// Committed transactions, the latest first: of a place, or those that changed something at one of
/// some paths, each in the history of its own file system.
///
/// # Errors
/// A store cannot be read.
pub fn log(
    table: &Transactions,
    place: &Place,
    limit: Option<u64>,
    paths: &[HostPath],
) -> Result<Vec<LogEntry>, Failure> {
    let own = table.volumes.at(place)?;
    let mut volumes = vec![Arc::clone(&own)];
    let elsewhere = paths.iter().filter(|_| place.store.is_none());
    for volume in elsewhere.filter_map(|path| holder(table, path)) {
        if !volumes.iter().any(|known| known.location == volume.location) {
            volumes.push(volume);
        }
    }
    let limit = limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
    let mut all: Vec<LogEntry> = Vec::new();
    for volume in volumes {
        let known: HashSet<TxnId> = all.iter().map(|entry| entry.id).collect();
        let more = of_volume(table, &volume, limit, paths)?;
        all.extend(more.into_iter().filter(|entry| !known.contains(&entry.id)));
    }
    if !paths.is_empty() {
        all.sort_by_key(|entry| std::cmp::Reverse(entry.time));
    }
    all.truncate(limit);
    Ok(all)
}

/// The volume that a path is in, or was, by the nearest directory that is there.
fn holder(table: &Transactions, path: &HostPath) -> Option<Arc<OpenVolume>> {
    let cwd = path.as_path().ancestors().find(|dir| dir.is_dir())?;
    let place = Place { cwd: HostPath::from(cwd), root: None, store: None };
    table.volumes.at(&place).ok()
}

fn of_volume(
    table: &Transactions,
    volume: &OpenVolume,
    limit: usize,
    paths: &[HostPath],
) -> Result<Vec<LogEntry>, Failure> {
    let all = entries(volume)?;
    let undone_by = undone_by(&all);
    let waiting: HashMap<TxnId, Vec<Action>> = deferred::listed(&volume.ledger, Some(volume))?
        .into_iter()
        .map(|d| (d.id, d.actions))
        .collect();
    let mut others = Others::new(|member: &Member| {
        let other = table.volumes.volume_of(member).ok()?;
        let all = entries(&other).ok()?.into_iter();
        let joint = all.filter(|entry| entry.joint.is_some());
        Some(joint.map(|entry| (entry.meta.txn, entry.changes)).collect())
    });
    let wanted = |e: &&HistoryEntry| {
        paths.is_empty() || paths.iter().any(|path| choose::touches(volume, e, &path.0))
    };
    Ok(all
        .iter()
        .filter(wanted)
        .take(limit)
        .map(|e| LogEntry {
            id: e.meta.txn,
            time: e.meta.finished,
            argv: e.meta.argv.iter().map(|a| HostPath(a.clone())).collect(),
            cwd: HostPath(e.meta.cwd.clone()),
            summary: match e.meta.told {
                Some(told) => crate::describe::as_told(told),
                None => summary(&e.changes, others.changes(e)),
            },
            undoes: undoes(&e.meta),
            undone_by: undone_by.get(&e.meta.txn).copied(),
            undoable: !e.forgotten && !undone_by.contains_key(&e.meta.txn),
            deferred: waiting.get(&e.meta.txn).cloned().unwrap_or_default(),
        })
        .collect())
}

fn undoes(meta: &CommitMeta) -> Option<TxnId> {
    match meta.kind {
        TxnKind::Undo { of } | TxnKind::Redo { of } => Some(of),
        TxnKind::Run | TxnKind::Partial | TxnKind::UndoPart { .. } => None,
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

/// What joint transactions changed on other file systems. Each history is read once, however many
/// transactions of it are asked for.
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
        bytes: 0,
        xattrs: Vec::new(),
        dropped: false,
    }
}

fn find(volume: &OpenVolume, id: TxnId) -> Result<HistoryEntry, Failure> {
    entries(volume)?.into_iter().find(|e| e.meta.txn == id).ok_or_else(|| {
        Failure::new(FailureKind::NotFound, format!("the history has no transaction {id}"))
            .hint(NOT_THERE)
    })
}

/// Undoes or redoes.
///
/// # Errors
/// There is nothing to undo, it cannot be undone any more, or later changes overlap.
pub fn undo(
    table: &Transactions,
    peer: Peer,
    ask: &Undo,
    direction: Direction,
) -> Result<Undone, Failure> {
    let (volume, Choice { target, notes }) = choose(&table.volumes, &ask.place, ask.id, direction)?;
    let mut volumes = vec![volume];
    for member in target.joint.iter().flat_map(Joint::others) {
        volumes.push(table.volumes.volume_of(member)?);
    }
    // One order wherever locks of several volumes are taken.
    volumes.sort_by_key(|volume| volume.vol.order());
    let argv = target.meta.argv.iter().map(|a| HostPath(a.clone())).collect();
    if !ask.paths.is_empty() {
        check_paths(table, &volumes, &target, &ask.paths)?;
        volumes.retain(|volume| {
            let has = |entry: HistoryEntry| {
                ask.paths.iter().any(|path| choose::changed_below(volume, &entry, &path.0))
            };
            find(volume, target.meta.txn).is_ok_and(has)
        });
    }
    let (changes, outcome) = if ask.dry_run {
        (Plan::make(&volumes, &target, &ask.paths)?.changes, None)
    } else {
        let (changes, outcome) = run(table, peer, &volumes, &target, (direction, ask))?;
        (changes, Some(outcome))
    };
    let cwd = HostPath(target.meta.cwd.clone());
    Ok(Undone { target: target.meta.txn, argv, cwd, changes, notes, outcome })
}

/// What takes a transaction back.
#[derive(Default)]
struct Plan {
    /// For each volume.
    sets: Vec<WriteSet>,
    changes: Vec<Change>,
    /// What the sets refer to: they must live until they are committed.
    _slots: Vec<stored::Slot>,
    /// Until it is installed.
    _in_use: Vec<stored::InUse>,
    /// The stores that all of this is in.
    _stores: Vec<stored::Lease>,
}

impl Plan {
    /// By what is there at this moment.
    fn make(
        volumes: &[Arc<OpenVolume>],
        target: &HistoryEntry,
        paths: &[HostPath],
    ) -> Result<Plan, Failure> {
        let mut plan = Plan::default();
        for volume in volumes {
            let wanted = |path: &[u8]| {
                let path = volume.absolute(path);
                paths.iter().any(|top| is_below(&path, &top.0))
            };
            let store = volume.lease()?;
            let undo = match paths.is_empty() {
                true => store.undo_set(target.meta.txn),
                false => store.undo_part(target.meta.txn, &wanted),
            };
            let undo = undo.map_err(|e| cannot(volume, target, e))?;
            let mount = &volume.vol.mount_path;
            plan.changes.extend(stored::changes(&undo.set).iter().map(|c| described(mount, c)));
            plan.sets.push(undo.set);
            plan._slots.extend(undo.slots);
            plan._in_use.push(undo.in_use);
            plan._stores.push(store);
        }
        Ok(plan)
    }

    /// With everything that it changes recorded as written by transaction `id`, and what it
    /// displaces as read. What that is can be said only by looking, and only then can it be
    /// recorded; somebody may have committed in between, whose changes would be taken back, too. So
    /// it is looked at again until nothing is new in it.
    fn claim(
        volumes: &[Arc<OpenVolume>],
        target: &HistoryEntry,
        paths: &[HostPath],
        id: TxnId,
    ) -> Result<Plan, Failure> {
        let moments = || volumes.iter().map(|v| v.vol.engine.moment()).collect::<Vec<_>>();
        let mut claimed = None;
        loop {
            let before = moments();
            let plan = Plan::make(volumes, target, paths)?;
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

fn forgotten(id: TxnId) -> Failure {
    let message =
        format!("transaction {id} cannot be undone any more: what it replaced was given back");
    Failure::new(FailureKind::State, message)
        .hint("the history has a bound, `systx gc --help` says which; `systx log` marks what is beyond it")
}

fn cannot(volume: &OpenVolume, target: &HistoryEntry, error: UndoError) -> Failure {
    let id = target.meta.txn;
    match error {
        UndoError::Unknown(_) => {
            Failure::new(FailureKind::NotFound, format!("the history has no transaction {id}"))
        }
        UndoError::Forgotten(_) => forgotten(id),
        UndoError::Gone { path, .. } => {
            let message = format!(
                "transaction {id} cannot be undone any more: the file has lost its last name since"
            );
            Failure::new(FailureKind::State, message).path(HostPath(volume.absolute(&path)))
        }
        UndoError::Overlap(paths) => overlap(volume, target, paths),
        UndoError::Io(e) => {
            Failure::new(FailureKind::Io, format!("cannot look at what transaction {id} left: {e}"))
        }
    }
}

/// What came later stands in the way: by whom each path was changed, and what to do about it.
fn overlap(volume: &OpenVolume, target: &HistoryEntry, paths: Vec<Vec<u8>>) -> Failure {
    const SHOWN: usize = 10;
    let id = target.meta.txn;
    let all = entries(volume).unwrap_or_default();
    let undone = undone_by(&all);
    let mut first: Vec<TxnId> = Vec::new();
    let (mut named, mut outside) = (Vec::new(), false);
    let mut failure = Failure::new(FailureKind::Overlap, "");
    for path in paths {
        let path = HostPath(volume.absolute(&path));
        let later = |e: &&HistoryEntry| {
            e.lsn > target.lsn
                && undoes(&e.meta) != Some(id)
                && !undone.contains_key(&e.meta.txn)
                && choose::touches(volume, e, &path.0)
        };
        let by = match all.iter().find(later) {
            Some(entry) => {
                if !first.contains(&entry.meta.txn) {
                    first.push(entry.meta.txn);
                }
                format!("transaction {}", entry.meta.txn)
            }
            None => {
                outside = true;
                "a program outside of transactions".into()
            }
        };
        if named.len() < SHOWN {
            named.push(format!("{path} (by {by})"));
        }
        failure = failure.path(path);
    }
    failure.message = format!("changed again since transaction {id}: {}", named.join(", "));
    let mut hint = Vec::new();
    if !first.is_empty() {
        let ids: Vec<String> = first.iter().map(|id| format!("systx undo {id}")).collect();
        hint.push(format!("undo what came later first: {}", ids.join("; ")));
    }
    if outside {
        hint.push("put back by hand what was changed outside".into());
    }
    hint.push(format!("or take back a part only: systx undo {id} PATH"));
    failure.hint(hint.join("; "))
}

/// Each path must be one of what the transaction changed, or above some of it.
fn check_paths(
    table: &Transactions,
    volumes: &[Arc<OpenVolume>],
    target: &HistoryEntry,
    paths: &[HostPath],
) -> Result<(), Failure> {
    let id = target.meta.txn;
    let Some(first) = volumes.first() else { return Ok(()) };
    for path in paths {
        let has = |volume: &Arc<OpenVolume>| {
            find(volume, id).is_ok_and(|entry| choose::changed_below(volume, &entry, &path.0))
        };
        if volumes.iter().any(has) {
            continue;
        }
        let changes = changes(table, first, id)?;
        let failure = Failure::new(
            FailureKind::Invalid,
            format!("transaction {id} changed nothing at {path}"),
        );
        let above = |c: &&Change| is_below(&path.0, &c.path.0) && c.kind != ChangeKind::Modified;
        return Err(match changes.iter().find(above) {
            Some(c) => {
                failure.hint(format!("it changed {} as a whole: that can be taken back", c.path))
            }
            None => failure.hint(format!("`systx show {id}` lists what it changed")),
        });
    }
    Ok(())
}

/// What somebody else decides about is not taken back past that one.
fn refuse_certified(volumes: &[Arc<OpenVolume>], changes: &[Change]) -> Result<(), Failure> {
    let halls = volumes.iter().flat_map(|volume| volume.halls());
    let all = halls.filter_map(|hall| hall.conflicts.certifier.clone());
    match certify::of_paths(all, changes) {
        Some(certifier) => Err(certifier.not_asked(Way::Undo)),
        None => Ok(()),
    }
}

fn run(
    table: &Transactions,
    peer: Peer,
    volumes: &[Arc<OpenVolume>],
    target: &HistoryEntry,
    (direction, ask): (Direction, &Undo),
) -> Result<(Vec<Change>, Outcome), Failure> {
    let Some(first) = volumes.first() else {
        return Err(Failure::new(FailureKind::Internal, "a transaction without a volume"));
    };
    let id = table.new_id_in(volumes)?;
    let started = first.vol.tree.now();
    let give_up = || volumes.iter().for_each(|v| v.vol.engine.abort(id));
    // As urgent as who asks for it.
    let asks: Arc<dyn Urgency> = Arc::new(OfLast(LastThread::new(peer.pid.into())));
    for volume in volumes {
        let options = BeginOptions { follows: Some(Arc::clone(&asks)), ..BeginOptions::default() };
        volume.vol.engine.begin(id, options);
    }
    // In the order of all commits.
    let mut in_order: Vec<_> = volumes.iter().collect();
    in_order.sort_by_key(|v| (v.location.dev, &v.location.store));
    let stores = in_order.iter().map(|volume| volume.turn()).collect::<Result<Vec<_>, _>>();
    let _stores = stores.inspect_err(|_| give_up())?;
    let mut plan = Plan::claim(volumes, target, &ask.paths, id).inspect_err(|_| give_up())?;
    refuse_certified(volumes, &plan.changes).inspect_err(|_| give_up())?;
    let of = target.meta.txn;
    let kind = match direction {
        Direction::Undo if !ask.paths.is_empty() => TxnKind::UndoPart { of },
        Direction::Undo => TxnKind::Undo { of },
        Direction::Redo => TxnKind::Redo { of },
    };
    let word = direction.word();
    let summary = mirrored(target, &plan, ask.paths.is_empty());
    let mut argv = vec![b"systx".to_vec(), word.into(), of.to_string().into_bytes()];
    argv.extend(ask.paths.iter().map(|path| path.0.clone()));
    let meta = CommitMeta {
        txn: id,
        kind,
        argv,
        cwd: ask.place.cwd.0.clone(),
        uid: rustix::process::geteuid().as_raw(),
        started,
        finished: first.vol.tree.now(),
        told: Some(crate::describe::told(summary)),
        order: None,
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
            let installed = placed.release();
            let outside = stopped::outside_changes(&installed);
            for volume in volumes {
                Counts::count(&volume.counts().begun);
                Counts::count(&volume.counts().committed);
            }
            let (stale, notes) = (Vec::new(), installed.notes);
            let outcome = Outcome::Committed { id, summary, outside, stale, dropped: 0, notes };
            Ok((plan.changes, outcome))
        }
        Err(why) => {
            give_up();
            Err(stopped::failure(why))
        }
    }
}

/// What is told of an undo: what was told of the transaction that it takes back, the other way
/// round. Its own write set has one name for a directory that goes with all that is in it.
fn mirrored(target: &HistoryEntry, plan: &Plan, whole: bool) -> Summary {
    let own = crate::describe::summary(&plan.changes);
    if !whole {
        return own;
    }
    let Some(told) = target.meta.told.map(crate::describe::as_told) else { return own };
    let bytes = plan.sets.iter().map(written).sum();
    Summary { added: told.deleted, deleted: told.added, bytes, ..told }
}

/// Bytes that a write set writes; what comes back from the graveyard is not written again, and a
/// hole has none.
fn written(set: &WriteSet) -> u64 {
    let of = |object: &writeset::Object| match &object.content {
        writeset::Content::Patch { extents, .. } | writeset::Content::Whole { extents, .. } => {
            let bytes = |e: &writeset::Extent| match &e.data {
                writeset::Data::Hole { .. } => 0,
                data => data.len(),
            };
            extents.iter().map(bytes).sum()
        }
        writeset::Content::Keep | writeset::Content::Slot(_) => 0,
    };
    set.objects.iter().map(of).sum()
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
            let oid = stamp.id().oid();
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

/// Frees what only old undos need: what is beyond the limits that are given, or else the usual
/// ones.
///
/// # Errors
/// The store cannot be written.
pub fn gc(volume: &OpenVolume, ask: &Gc) -> Result<Collected, Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(FailureKind::Store, format!("gc failed: {e}"))
            .path(volume.location.store.as_path())
    };
    // What the journal needs cannot go.
    volume.vol.wait_durable();
    let Some(store) = volume.existing()? else { return Ok(Collected::default()) };
    store.checkpoint().map_err(|e| failed(std::io::Error::other(e)))?;
    let keep = if ask.keep.is_none() && ask.max_bytes.is_none() {
        store.usual_limits().map_err(failed)?
    } else {
        Keep {
            count: ask.keep.map_or(usize::MAX, |k| usize::try_from(k).unwrap_or(usize::MAX)),
            bytes: ask.max_bytes.unwrap_or(u64::MAX),
            log: stored::LOGGED,
            ..Keep::default()
        }
    };
    let report = match ask.dry_run {
        true => store.would_gc(keep),
        false => store.gc(keep),
    };
    let report = report.map_err(failed)?;
    Ok(Collected {
        transactions: report.removed.len() as u64,
        bytes: report.freed,
        remaining: report.kept,
        undoable: report.left as u64,
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
                told: None,
                order: None,
            },
            lsn: n,
            forgotten: false,
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
