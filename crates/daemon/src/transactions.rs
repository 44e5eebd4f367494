//! The daemon's table of volumes and open transactions, and what each request does to it.

use crate::chores::{Chores, Ending, Noted, SWEEP};
use crate::classes::of_class;
use crate::deferred;
use crate::describe::Opponents;
use crate::descriptors;
use crate::guards::Guards;
use crate::guests::Guests;
use crate::history;
use crate::ledger::Ledger;
use crate::opening::Openings;
use crate::path_views::PathViews;
use crate::patterns::Patterns;
use crate::processes;
use crate::protocol::*;
use crate::stopped;
use crate::top::Counts;
use crate::transaction::{Ended, Terms, Transaction, Turn, Visitor, engine_isolation};
use crate::transports;
use crate::volume::{self, Location, OpenVolume};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};
use systx_base::{Gid, TxnId, Uid};
use systx_fuse::FileLocks;
use systx_protocol::runtime::Runtime;
use systx_txn::{BeginOptions, Inject};
use systx_vfs::view::Ids;

/// Longest wait for the transactions of dead clients: a commit of any size ends within it.
const SETTLE: Duration = Duration::from_secs(60);

/// How many ended transactions are remembered for conflict messages.
pub(crate) const ENDED_MAX: usize = 256;

/// See the module.
pub struct Transactions {
    owner: Owner,
    tables: Mutex<Tables>,
    /// Something ended.
    ended: Event,
    /// A volume was opened, or cannot be.
    opened: Event,
    pub(crate) openings: Openings,
    pub(crate) guards: Mutex<Guards>,
    /// This table, for threads that outlive a call.
    pub(crate) me: Weak<Transactions>,
    /// Views with a path.
    pub(crate) path_views: PathViews,
    /// Once something is guarded.
    pub(crate) guests: OnceLock<Guests>,
    inject: Option<Inject>,
    /// What this machine has noted of its stores.
    pub(crate) ledger: Arc<Ledger>,
    chores: Ending,
}

/// Whose daemon this is.
struct Owner {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    home: Option<PathBuf>,
}

#[derive(Default)]
pub(crate) struct Tables {
    volumes: HashMap<Location, Arc<OpenVolume>>,
    /// Somebody is opening them.
    opening: HashSet<Location>,
    open: HashMap<TxnId, Arc<Transaction>>,
    /// Owners and commands of transactions that ended, for messages about conflicts with them.
    past: Vec<(TxnId, Uid, Vec<HostPath>)>,
    /// Who aborted transactions that were somebody's, for whoever asks after them; the latest.
    pub(crate) aborted: VecDeque<(TxnId, String)>,
}

/// The right to open the volume at a location, which ends also with a panic.
struct OpeningTurn<'a> {
    table: &'a Transactions,
    location: &'a Location,
}

impl Drop for OpeningTurn<'_> {
    fn drop(&mut self) {
        self.table.tables.lock().opening.remove(self.location);
        self.table.opened.notify_all();
    }
}

impl Transactions {
    /// Nothing open.
    fn new(
        runtime: Option<Runtime>,
        ledger: Ledger,
        inject: Option<Inject>,
        me: Weak<Transactions>,
    ) -> Self {
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: rustix::process::getgroups()
                .map(|g| g.into_iter().map(|g| g.as_raw()).collect())
                .unwrap_or_default(),
            home: std::env::var_os("HOME").map(PathBuf::from),
        };
        Transactions {
            owner,
            tables: Mutex::new(rank::DAEMON, Tables::default()),
            ended: Event::new(),
            opened: Event::new(),
            openings: Openings::new(),
            path_views: PathViews::new(runtime.as_ref().map(Runtime::dir)),
            guards: Mutex::new(rank::GUARDS, Guards::new(runtime)),
            me,
            guests: OnceLock::new(),
            inject,
            ledger: Arc::new(ledger),
            chores: Ending(Chores::new()),
        }
    }

    pub(crate) fn chores(&self) -> &Arc<Chores> {
        &self.chores.0
    }

    /// Where transactions of programs lose for a test.
    pub(crate) fn inject(&self) -> Option<Inject> {
        self.inject
    }

    /// With the housekeeping thread, which ends with the last reference.  The directories that are guarded
    /// according to the files of `runtime` are mounted again.  `inject`: where transactions of programs lose for a
    /// test.
    pub fn start(
        runtime: Option<Runtime>,
        ledger: Ledger,
        inject: Option<Inject>,
    ) -> Arc<Transactions> {
        let table = Arc::new_cyclic(|me| Transactions::new(runtime, ledger, inject, me.clone()));
        table.chores().clone().begin(Arc::downgrade(&table));
        table.restore();
        table.chores().are_due();
        if !table.all_guarded().is_empty() {
            let place = table.guards.lock().place();
            if let Some((dir, namespace)) = place {
                table.take_guests(&dir, namespace);
            }
        }
        table
    }

    /// The open volumes.
    pub(crate) fn volumes(&self) -> Vec<Arc<OpenVolume>> {
        self.tables.lock().volumes.values().cloned().collect()
    }

    /// The volume of a place, opened (and recovered) if it is not open yet.
    pub(crate) fn volume(&self, place: &Place) -> Result<Arc<OpenVolume>, Failure> {
        self.open_place(place, false)
    }

    /// As [`Transactions::volume`]; `trusted`: also if its store is not this machine's.
    fn open_place(&self, place: &Place, trusted: bool) -> Result<Arc<OpenVolume>, Failure> {
        self.not_in_a_view(place)?;
        let dir = place.root.as_ref().unwrap_or(&place.cwd);
        let store = place.store.as_ref().map(HostPath::as_path);
        let home = self.owner.home.as_deref();
        let guarded: Vec<_> = self.all_guarded().into_iter().map(|(_, g)| g).collect();
        let location = volume::locate(dir.as_path(), store, self.owner.uid, home, &guarded)?;
        self.check_one_engine(&location)?;
        self.open_at(location, trusted)
    }

    /// The volume of a place; all that are open, if `None`.
    fn volumes_of(&self, place: Option<&Place>) -> Result<Vec<Arc<OpenVolume>>, Failure> {
        place.map_or_else(|| Ok(self.volumes()), |place| Ok(vec![self.volume(place)?]))
    }

    /// The volume at a location, opened (and recovered) if it is not open yet.
    pub(crate) fn open_at(
        &self,
        location: Location,
        trusted: bool,
    ) -> Result<Arc<OpenVolume>, Failure> {
        let mut tables = self.tables.lock();
        loop {
            if let Some(open) = tables.volumes.get(&location) {
                return Ok(open.clone());
            }
            // Two requests must not open one store twice.  The table is not held meanwhile: who has nothing to do
            // with a file system that hangs does not wait for it.
            if tables.opening.insert(location.clone()) {
                break;
            }
            self.opened.wait(&mut tables);
        }
        drop(tables);
        let opened = {
            let _turn = OpeningTurn { table: self, location: &location };
            let opened = volume::open(&location, &self.ledger, trusted).map(Arc::new);
            if let Ok(open) = &opened {
                self.tables.lock().volumes.insert(location.clone(), open.clone());
            }
            opened
        };
        let open = opened?;
        volume::note(&open.location, self.owner.uid, self.owner.home.as_deref());
        // What was committed together is there again together, as far as it is mounted.
        let (others, failed) = self.recover_others(&open);
        for note in others.iter().flat_map(|other| other.recovery_notes()).chain(failed) {
            tracing::info!(note);
        }
        Ok(open)
    }

    /// Whether somebody works on a volume.
    pub(crate) fn in_use(&self, volume: &Arc<OpenVolume>) -> bool {
        self.tables.lock().open.values().any(|t| t.works_on(volume))
    }

    /// The open transactions of a volume that changed something below a directory.
    pub(crate) fn open_below(&self, volume: &Arc<OpenVolume>, dir: &Path) -> Vec<TxnId> {
        let open: Vec<_> = self.tables.lock().open.values().cloned().collect();
        let top = HostPath::from(dir);
        let below = |t: &Arc<Transaction>| {
            t.works_on(volume)
                && t.parts().any(|p| p.view.changes().iter().any(|c| is_below(&c.path, &top.0)))
        };
        let mut ids: Vec<TxnId> = open.iter().filter(|t| below(t)).map(|t| t.id).collect();
        ids.sort();
        ids
    }

    /// Releases the locks of owners in views that have closed: to be called from time to time, for
    /// the sake of processes outside that wait for them.
    pub fn sweep_locks(&self) {
        let open: Vec<_> = self.tables.lock().open.values().cloned().collect();
        for txn in open {
            for part in txn.parts().filter(|part| part.view.holds_locks()) {
                part.view.sweep_locks();
            }
        }
    }

    pub(crate) fn get(&self, id: TxnId) -> Result<Arc<Transaction>, Failure> {
        let tables = self.tables.lock();
        tables.open.get(&id).cloned().ok_or_else(|| {
            if let Some(failure) = tables.who_aborted(id) {
                return failure;
            }
            Failure::new(FailureKind::NotFound, format!("there is no open transaction {id}"))
                .hint("`systx list` shows the open ones, `systx log` the committed ones")
        })
    }

    /// A new id, unknown to the open transactions and to the volume's history.
    pub(crate) fn new_id(&self, volume: &Arc<OpenVolume>) -> Result<TxnId, Failure> {
        self.new_id_in(std::slice::from_ref(volume))
    }

    /// As [`Transactions::new_id`], unknown to the histories of several volumes.
    pub(crate) fn new_id_in(&self, volumes: &[Arc<OpenVolume>]) -> Result<TxnId, Failure> {
        loop {
            let mut bytes = [0; 4];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(
                |e| Failure::new(FailureKind::Internal, format!("no random bytes: {e}")),
            )?;
            let id = TxnId(u64::from(u32::from_le_bytes(bytes)));
            let open = self.tables.lock().open.contains_key(&id);
            if id.0 != 0 && !open && !volumes.iter().any(|v| history::knows(v, id)) {
                return Ok(id);
            }
        }
    }

    /// Waits until no transaction of a dead client is left on a volume.
    fn wait_for_the_dead(&self, volume: &Arc<OpenVolume>) {
        let until = Instant::now() + SETTLE;
        let mut tables = self.tables.lock();
        loop {
            let unsettled = |t: &Arc<Transaction>| {
                t.works_on(volume)
                    && t.state() != State::Kept
                    && !processes::is_alive(t.terms.client)
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !tables.open.values().any(unsettled) {
                return;
            }
            // A client may die while we wait, which notifies nobody: look again soon.
            self.ended.wait_for(&mut tables, left.min(SWEEP));
        }
    }

    /// Every volume and every open transaction.
    pub(crate) fn everything(&self) -> (Vec<Arc<OpenVolume>>, Vec<Arc<Transaction>>) {
        let tables = self.tables.lock();
        let volumes = tables.volumes.values().cloned().collect();
        (volumes, tables.open.values().cloned().collect())
    }

    /// Takes a transaction onto the table.
    pub(crate) fn add(&self, txn: Arc<Transaction>) {
        self.tables.lock().open.insert(txn.id, txn);
        self.chores().are_due();
    }

    pub(crate) fn ids(&self) -> Ids {
        match self.owner.uid {
            0 => Ids::Faithful,
            uid => Ids::Single { uid, gid: self.owner.gid, groups: self.owner.groups.clone() },
        }
    }

    /// Takes an ended transaction off the table.
    pub(crate) fn retire(&self, txn: &Transaction, committed: bool) {
        for part in txn.parts() {
            let counts = &part.volume.counts;
            Counts::count(if committed { &counts.committed } else { &counts.aborted });
        }
        let mut tables = self.tables.lock();
        tables.open.remove(&txn.id);
        if tables.past.len() >= ENDED_MAX {
            tables.past.remove(0);
        }
        tables.past.push((txn.id, txn.terms.uid, txn.terms.argv.clone()));
        let volume_idle = |v: &Arc<OpenVolume>| !tables.open.values().any(|t| t.works_on(v));
        for volume in tables.volumes.values() {
            if volume_idle(volume) {
                volume.vol.forget_history();
            }
        }
        drop(tables);
        self.ended.notify_all();
        txn.vacated();
        if let (false, Some(view)) = (committed, txn.path_view()) {
            view.lost();
        }
        txn.leave_path();
    }

    /// Takes the right to end a transaction that is open.  An abort beside a commit would take the ground away from under
    /// its decision.
    pub(crate) fn turn<'t>(&self, txn: &'t Transaction) -> Result<Turn<'t>, Failure> {
        let aborted = |busy| self.tables.lock().who_aborted(txn.id).unwrap_or(busy);
        let turn = txn.take_turn().map_err(aborted)?;
        // Who had it before may have ended it.
        self.get(txn.id)?;
        Ok(turn)
    }

    pub(crate) fn end(&self, txn: &Transaction, ended: Ended) -> Outcome {
        match ended {
            Ended::Committed(outcome) => {
                self.retire(txn, true);
                outcome
            }
            Ended::Refused(outcome) => {
                txn.abort();
                self.retire(txn, false);
                outcome
            }
        }
    }

    /// As [`Transactions::end`], but what was refused stays kept.
    pub(crate) fn end_kept(&self, txn: &Transaction, ended: Ended) -> Outcome {
        match ended {
            Ended::Committed(outcome) => {
                self.retire(txn, true);
                outcome
            }
            // What is decided cannot be committed once more, nor dropped.
            unfinished @ Ended::Refused(Outcome::Unfinished { .. }) => self.end(txn, unfinished),
            Ended::Refused(Outcome::Conflict { conflict, .. }) => {
                txn.settle();
                Outcome::Conflict { conflict, kept: true }
            }
            Ended::Refused(Outcome::Refused { failure, .. }) => {
                Outcome::Refused { failure, kept: true }
            }
            Ended::Refused(other) => other,
        }
    }
}

impl Opponents for Transactions {
    fn find(&self, id: TxnId) -> (Option<Uid>, Vec<HostPath>, bool) {
        let tables = self.tables.lock();
        if let Some(open) = tables.open.get(&id) {
            return (Some(open.terms.uid), open.terms.argv.clone(), false);
        }
        match tables.past.iter().rev().find(|(past, ..)| *past == id) {
            Some((_, uid, argv)) => (Some(*uid), argv.clone(), true),
            None => (None, Vec::new(), true),
        }
    }
}

impl Control for Transactions {
    fn begin(&self, peer: Peer, begin: Begin, doorbell: Doorbell) -> Result<Begun, Failure> {
        let volume = self.volume(&begin.place)?;
        let patterns = Patterns::compile(&of_class(&begin.rules, Class::NoCommit))?;
        let merged = Patterns::compile(&of_class(&begin.rules, Class::AppendMerge))?;
        let mut volumes = vec![volume];
        let (notes, details) = self.further(&begin.others, &mut volumes);
        let id = self.new_id_in(&volumes)?;
        let options = BeginOptions {
            isolation: engine_isolation(begin.isolation),
            priority: begin.nice,
            age: begin.losses,
            read_only: begin.read_only,
            timestamp: begin.timestamp,
            guest: false,
            inject: self.inject(),
        };
        let terms = Terms {
            argv: begin.argv,
            cwd: begin.place.cwd.clone(),
            isolation: begin.isolation,
            read_only: begin.read_only,
            patterns,
            merged,
            uid: peer.uid,
            client: peer.pid,
            transport: begin.transport,
            lives_on: false,
            opaque: false,
            guest: false,
            limit_bytes: begin.limit_bytes,
            at_once: false,
        };
        let ids = self.ids();
        let txn = Transaction::begin_several(id, &volumes, &terms, &options, &ids, doorbell)?;
        let timestamp = txn.timestamp;
        txn.told.patterns(begin.rules);
        self.add(txn);
        let mut notes =
            [notes, volumes.iter().flat_map(|v| v.tell_recovered().notes).collect()].concat();
        notes.dedup();
        let mut facts = volumes.iter().map(|v| facts(v));
        let volume = facts
            .next()
            .ok_or_else(|| Failure::new(FailureKind::Internal, "a transaction without a volume"))?;
        Ok(Begun { id, timestamp, volume, others: facts.collect(), notes, details })
    }

    fn begin_open(&self, peer: Peer, begin: BeginOpen) -> Result<BegunOpen, Failure> {
        self.begin_with_path(peer, begin, None)
    }

    fn attach(&self, attach: Attach, fuse: OwnedFd) -> Result<Attached, Failure> {
        let txn = self.get(attach.id)?;
        let part = txn.part(attach.volume).ok_or_else(|| {
            let text = format!("transaction {} has no volume {}", attach.id, attach.volume);
            Failure::new(FailureKind::Invalid, text)
        })?;
        let looks = descriptors::can_be_seen(attach.pid);
        let config = systx_fuse::Config {
            transport: transports::of_server(txn.terms.transport),
            locks: if looks { FileLocks::View } else { FileLocks::ViewToldOfClose },
            number: u32::try_from(attach.connection).ok().filter(|n| *n != 0),
            ..systx_fuse::Config::default()
        };
        part.told.passed_through(&attach.rules);
        if looks {
            part.view.set_openings(Arc::new(Noted(self.chores().clone())));
        }
        part.view.built_by(attach.pid);
        let connection = systx_fuse::serve(fuse, part.view.clone(), config).map_err(|e| {
            Failure::new(FailureKind::Unsupported, format!("cannot serve the view: {e}"))
                .hint("`systx doctor` shows what this kernel offers")
        })?;
        let transport = transports::of(&connection);
        if attach.volume == 0 {
            txn.told.places(attach.rules);
        }
        part.attached(
            connection,
            Visitor { pid: attach.pid, mnt_ns: attach.mnt_ns, connection: attach.connection },
        );
        Ok(Attached { transport })
    }

    fn finish(&self, finish: Finish) -> Result<Outcome, Failure> {
        let txn = self.get(finish.id)?;
        let _turn = self.turn(&txn)?;
        if finish.end != End::Commit
            && let Some(conflict) = txn.conflict(self)
        {
            // The command saw its calls cancelled: what it did then, and its exit code, mean nothing.
            txn.abort();
            self.retire(&txn, false);
            return Ok(Outcome::Conflict { conflict, kept: false });
        }
        txn.deferred.set(finish.deferred);
        match finish.end {
            End::Commit => {
                let ended = txn.commit(self);
                Ok(self.end(&txn, ended))
            }
            End::Abort => {
                let summary = txn.abort();
                self.retire(&txn, false);
                Ok(Outcome::Aborted { summary })
            }
            End::Keep => {
                let summary = txn.keep(finish.code);
                txn.vacated();
                Ok(Outcome::Kept { summary })
            }
        }
    }

    fn doom(&self, id: TxnId) -> Result<Option<Conflict>, Failure> {
        Ok(self.get(id)?.conflict(self))
    }

    fn wait_for(&self, id: TxnId, limit_ms: u64) -> Result<bool, Failure> {
        let until = Instant::now() + Duration::from_millis(limit_ms.min(86_400_000));
        let mut tables = self.tables.lock();
        loop {
            if !tables.open.contains_key(&id) {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.ended.wait_for(&mut tables, left);
        }
    }

    fn list(&self) -> Result<Vec<Listed>, Failure> {
        let open: Vec<_> = self.tables.lock().open.values().cloned().collect();
        let mut listed: Vec<_> = open.iter().map(|t| t.listed(self)).collect();
        listed.sort_by_key(|t| (t.begun, t.id));
        Ok(listed)
    }

    fn top(&self) -> Result<Vec<VolumeActivity>, Failure> {
        Ok(self.activity())
    }

    fn status(&self, id: TxnId) -> Result<Status, Failure> {
        let txn = self.get(id)?;
        Ok(Status { listed: txn.listed(self), classes: txn.classes() })
    }

    fn diff(&self, target: Target, mut paths: Vec<HostPath>) -> Result<Vec<Change>, Failure> {
        let mut changes = match target {
            Target::Open { id } => {
                let txn = self.get(id)?;
                paths = self.as_on_the_host(&txn, paths);
                txn.changes()
            }
            Target::Committed { place, id } => history::changes(self, &*self.volume(&place)?, id)?,
        };
        if !paths.is_empty() {
            changes.retain(|c| paths.iter().any(|p| is_below(&c.path.0, &p.0)));
        }
        Ok(changes)
    }

    fn content(
        &self,
        target: Target,
        path: HostPath,
        version: Version,
        limit: u64,
    ) -> Result<Content, Failure> {
        match target {
            Target::Open { id } => self.get(id)?.content(&path, version, limit, None),
            Target::Committed { place, id } => {
                history::content(self, &*self.volume(&place)?, id, &path, version, limit)
            }
        }
    }

    fn commit(&self, id: TxnId, paths: Vec<HostPath>) -> Result<Outcome, Failure> {
        let txn = self.get(id)?;
        if txn.state() == State::Running {
            return Err(Failure::new(
                FailureKind::State,
                format!("transaction {id} is still running"),
            )
            .hint("it is committed when its command ends"));
        }
        if let Some(visitor) = txn.visitor() {
            return Err(Failure::new(
                FailureKind::State,
                format!("somebody is in transaction {id} (process {})", visitor.pid),
            )
            .hint("leave what `systx enter` started, then commit"));
        }
        let paths = self.as_on_the_host(&txn, paths);
        let with_path = txn.path_view().is_some();
        if paths.is_empty() && with_path {
            return self.commit_open(&txn, &paths);
        }
        if paths.is_empty() {
            let _turn = self.turn(&txn)?;
            let ended = txn.commit(self);
            return Ok(self.end_kept(&txn, ended));
        }
        let changes = txn.changes();
        for path in &paths {
            if !changes.iter().any(|c| is_below(&c.path.0, &path.0)) {
                return Err(Failure::new(
                    FailureKind::Invalid,
                    format!("transaction {id} changed nothing at {path}"),
                )
                .path(path.clone()));
            }
        }
        if with_path {
            return self.commit_open(&txn, &paths);
        }
        let _turn = self.turn(&txn)?;
        let part = self.new_id(&txn.volume)?;
        let ended = txn.commit_part(part, &paths, self);
        txn.settle();
        Ok(match ended {
            Ended::Committed(outcome) | Ended::Refused(outcome) => outcome,
        })
    }

    fn abort(&self, peer: Peer, id: TxnId) -> Result<Outcome, Failure> {
        let txn = self.get(id)?;
        if txn.state() == State::Committing {
            return Err(Failure::new(
                FailureKind::State,
                format!("transaction {id} is decided and cannot be aborted any more"),
            ));
        }
        let _turn = self.turn(&txn)?;
        let running = txn.visitor();
        // Before anybody can notice: the processes that end now have a client that asks why.
        self.tables.lock().note_abort(id, processes::described(peer.pid, peer.uid));
        let summary = txn.abort();
        if let Some(visitor) = running {
            processes::end_all_in(visitor.mnt_ns, visitor.connection);
        }
        self.retire(&txn, false);
        Ok(Outcome::Aborted { summary })
    }

    fn enter(&self, _peer: Peer, id: TxnId) -> Result<Entered, Failure> {
        let txn = self.get(id)?;
        match txn.state() {
            State::Running | State::Kept | State::Open => {}
            state => {
                return Err(Failure::new(
                    FailureKind::State,
                    format!("transaction {id} cannot be entered: it is {state:?}").to_lowercase(),
                ));
            }
        }
        let mounted = txn.path_view().map(|view| HostPath::from(view.whole.as_path()));
        let live = txn.visitor().map(|v| v.pid);
        let others = txn.others().iter().map(|o| facts(&o.volume)).collect();
        Ok(Entered { volume: facts(&txn.volume), others, live, mounted })
    }

    fn leave(&self, id: TxnId) -> Result<(), Failure> {
        self.get(id)?.vacated();
        Ok(())
    }

    fn log(
        &self,
        place: Place,
        limit: Option<u64>,
        paths: Vec<HostPath>,
    ) -> Result<Vec<LogEntry>, Failure> {
        history::log(self, &*self.volume(&place)?, limit, &paths)
    }

    fn deferred(&self, place: Option<Place>) -> Result<Vec<Deferred>, Failure> {
        let mut all = Vec::new();
        for volume in self.volumes_of(place.as_ref())? {
            all.extend(deferred::due(&volume)?);
        }
        Ok(all)
    }

    fn settle(&self, settle: Settle) -> Result<(), Failure> {
        deferred::settle(&self.volumes_of(settle.place.as_ref())?, settle.id, &settle.left)
    }

    fn undo(&self, undo: Undo) -> Result<Undone, Failure> {
        history::undo(self, &undo, history::Direction::Undo)
    }

    fn redo(&self, undo: Undo) -> Result<Undone, Failure> {
        history::undo(self, &undo, history::Direction::Redo)
    }

    fn recover(&self, place: Place, trusted: bool) -> Result<Recovered, Failure> {
        // Opening a store recovers it.  In an open one, what a dead client left behind is either
        // being committed or about to be aborted: wait for that, so that the tree is at rest.
        let volume = self.open_place(&place, trusted)?;
        self.wait_for_the_dead(&volume);
        let finished = systx_commit::finish_late(&volume.site, &mut HashSet::new())
            .map_err(stopped::failure)?;
        let mut recovered = volume.tell_recovered();
        recovered.finished += finished.len() as u64;
        recovered.notes.extend(finished.iter().map(|id| format!("installed transaction {id}")));
        let (others, failed) = self.recover_others(&volume);
        for other in others.iter().map(|other| other.tell_recovered()) {
            recovered.notes.extend(other.notes);
            recovered.outside.extend(other.outside);
        }
        recovered.notes.extend(failed);
        recovered.notes.dedup();
        recovered.notes.extend(volume.waiting_notes());
        Ok(recovered)
    }

    fn gc(&self, gc: Gc) -> Result<Collected, Failure> {
        history::gc(&*self.volume(&gc.place)?, &gc)
    }

    fn inspect(&self, place: Place) -> Result<Inspected, Failure> {
        Ok(self.volume(&place)?.inspected())
    }

    fn mount(&self, peer: Peer, mount: Mount) -> Result<Mounted, Failure> {
        let mounted = self.guard(peer, &mount);
        self.chores().are_due();
        mounted
    }

    fn umount(&self, peer: Peer, umount: Umount) -> Result<Unmounted, Failure> {
        self.unguard(peer, &umount)
    }

    fn guarded(&self) -> Result<Vec<GuardedDir>, Failure> {
        Ok(self.list_guarded())
    }

    fn client_gone(&self, id: TxnId) {
        let Ok(txn) = self.get(id) else { return };
        if let Some(visitor) = txn.visitor() {
            processes::end_all_in(visitor.mnt_ns, visitor.connection);
        }
        if txn.state() == State::Kept {
            txn.vacated();
        } else {
            let Ok(_turn) = self.turn(&txn) else { return };
            tracing::warn!(%id, "client is gone, transaction aborted");
            txn.abort();
            self.retire(&txn, false);
        }
    }

    fn idle(&self) -> bool {
        let open = !self.tables.lock().open.is_empty();
        // A thread that hangs keeps what is left of a process, and with it descriptors, from ending.
        let opening = !self.openings.is_empty();
        !open && !opening && self.all_guarded().is_empty() && self.path_views.lingering() == 0
    }

    fn shutdown(&self) {
        let open: Vec<_> = self.tables.lock().open.values().cloned().collect();
        for txn in open {
            if let Some(visitor) = txn.visitor() {
                processes::end_all_in(visitor.mnt_ns, visitor.connection);
            }
            // What somebody is committing is decided, or recovery finds that it was not.
            if let Ok(_turn) = self.turn(&txn) {
                txn.abort();
                self.retire(&txn, false);
            }
        }
        self.unguard_all();
        self.tables.lock().volumes.clear();
    }
}

pub(crate) fn facts(volume: &OpenVolume) -> VolumeFacts {
    VolumeFacts {
        root: HostPath::from(volume.location.mount.as_path()),
        dev: volume.location.dev,
        store: HostPath::from(volume.location.store.as_path()),
        guarded: volume.guarded().iter().map(|g| g.at()).collect(),
    }
}

/// Whether `path` is `top` or lies below it.
pub(crate) fn is_below(path: &[u8], top: &[u8]) -> bool {
    top == b"/"
        || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
