//! One transaction from begin to end.
//!
//! Commit, in order: freeze the view; validate against outsiders; reserve space; decide (from here
//! the transaction cannot lose, and others that touch what it wrote wait); make durable; install;
//! release.  Before the decision every failure leaves the transaction as it was; after it, only the
//! store can fail, and then recovery finishes the work.

use crate::classes;
use crate::counts::Counts;
use crate::deferred;
use crate::describe::{self, Opponents};
use crate::path_views::PathView;
use crate::processes::Visitor;
use crate::protocol::{
    self, Content, Doorbell, Failure, FailureKind, HostPath, Listed, Outcome, State, Summary,
    Version,
};
use crate::stopped::{NotInstalled, outside_changes};
use crate::volume::OpenVolume;
use selection::{Below, Committed};
use several::Alarm;
use spill::Room;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use systx_base::sync::{Mutex, rank};
use systx_base::{Oid, Time, TxnId, Uid};
use systx_commit::{Commit, Durable, Part, Stopped};
use systx_fuse::Connection;
use systx_protocol::modes::Way;
use systx_store::writeset::WriteSet;
use systx_store::{CommitMeta, TxnKind};
use systx_txn::{Access, BeginOptions, Isolation, Object, Opponent, Side, Status};
use systx_vfs::content::{Budget, Spill};
use systx_vfs::freeze::Frozen;
use systx_vfs::neighbours::NotQuiet;
use systx_vfs::snapshot;
use systx_vfs::view::{Ids, View, ViewConfig};

mod certified;
mod committing;
mod selection;
mod several;
mod spill;
mod terms;

pub use committing::{Rest, Step};
pub use terms::{Lives, Terms, Whose};

/// See the module.
pub struct Transaction {
    /// Its id.
    pub id: TxnId,
    /// Seniority, kept over retries.
    pub timestamp: u64,
    /// How often it has lost before.
    pub age: u32,
    /// When it began.
    pub begun: Time,
    /// What it was begun with.
    pub terms: Terms,
    /// Where it works.
    pub volume: Arc<OpenVolume>,
    /// What its processes see.
    pub view: Arc<View>,
    /// Its parts on further file systems, see [`several`].
    others: OnceLock<Vec<Arc<Transaction>>>,
    /// It is counted as lost.
    outdone: Arc<AtomicBool>,
    /// The conflict that it has lost to somebody whom the engine does not know.
    verdict: OnceLock<protocol::Conflict>,
    /// What its command wants done outside after the commit.
    pub deferred: deferred::Wanted,
    /// What in it is not isolated as everything else is.
    pub told: classes::Told,
    budget: Budget,
    /// There was no room for its content.
    full: Arc<AtomicBool>,
    life: Mutex<Life>,
}

/// Where a transaction is in its life.
struct Life {
    state: State,
    code: Option<i32>,
    connections: Vec<Connection>,
    /// Why an earlier one was cut off.
    cut_off: Option<String>,
    /// First process, and mount namespace, of whoever is in the view.
    visitor: Option<Visitor>,
    /// Where the view is, if it has a path.
    path: Option<Arc<PathView>>,
    /// Somebody is ending it.
    ending: bool,
}

impl Default for Life {
    /// Of one that has begun.
    fn default() -> Life {
        let (code, cut_off, visitor, path) = Default::default();
        let (state, connections, ending) = (State::Running, Vec::new(), false);
        Life { state, code, connections, cut_off, visitor, path, ending }
    }
}

/// The right to end a transaction that several may try to end at once.
pub struct Turn<'a>(&'a Transaction);

impl Turn<'_> {
    /// Nobody else gets it any more: its end is under way.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.life.lock().ending = false;
    }
}

/// How a commit ended.
pub enum Ended {
    /// It is done.
    Committed(Outcome),
    /// It lost, or could not: nothing was committed, the transaction still is. Or it is decided and
    /// not in place ([`Outcome::Unfinished`]), and the transaction is over.
    Refused(Outcome),
}

impl Transaction {
    /// Begins: registers with the engine and makes the view, in which what is not protected is
    /// a place at which something else is mounted.  `doorbell` rings when it loses.
    ///
    /// # Errors
    /// The volume's root cannot be read.
    pub fn begin(
        id: TxnId,
        volume: Arc<OpenVolume>,
        terms: Terms,
        options: BeginOptions,
        (ids, unprotected): (Ids, &[HostPath]),
        doorbell: Option<Doorbell>,
    ) -> Result<Arc<Transaction>, Failure> {
        let mount_points = volume.mount_points(unprotected, terms.lives == Lives::Command);
        let alarm = Alarm::new(doorbell);
        Transaction::begin_over(id, volume, terms, options, (ids, mount_points), alarm)
    }

    /// As [`Transaction::begin`], for who sees a guarded directory only, in which nothing is
    /// mounted.
    ///
    /// # Errors
    /// As there.
    pub fn begin_within(
        id: TxnId,
        volume: Arc<OpenVolume>,
        terms: Terms,
        options: BeginOptions,
        ids: Ids,
    ) -> Result<Arc<Transaction>, Failure> {
        Transaction::begin_over(id, volume, terms, options, (ids, Vec::new()), Alarm::new(None))
    }

    fn begin_over(
        id: TxnId,
        volume: Arc<OpenVolume>,
        terms: Terms,
        options: BeginOptions,
        (ids, mount_points): (Ids, Vec<Vec<u8>>),
        alarm: Arc<Alarm>,
    ) -> Result<Arc<Transaction>, Failure> {
        let (isolation, age) = (options.isolation, options.age);
        let room = Room::new(&volume, &terms, &alarm);
        let frozen = Transaction::frozen(&volume, &terms, &room.spill)?;
        let timestamp = registered(&volume, id, options, terms.at_once)?;
        // Who has lost often enough may hold plain requests up for a while.
        if frozen.is_none() {
            volume.vol.engine.reserve(id);
        }
        let config = ViewConfig {
            txn: id,
            isolation,
            ids,
            spill: Arc::clone(&room.spill),
            budget: room.budget.clone(),
            mount_points,
            opaque: terms.lives == Lives::Thread,
        };
        let view = shown(&volume, frozen, config, (&room, &terms))?;
        Counts::count(&volume.counts().begun);
        alarm.add(&view);
        let outdone = rung_when_lost(&volume, id, alarm);
        Ok(Arc::new(Transaction {
            id,
            timestamp,
            age,
            begun: volume.vol.tree.now(),
            terms,
            volume,
            view,
            others: OnceLock::new(),
            outdone,
            verdict: OnceLock::new(),
            deferred: deferred::Wanted::default(),
            told: classes::Told::default(),
            budget: room.budget,
            full: room.full,
            life: Mutex::new(rank::TXN_STATE, Life::default()),
        }))
    }

    /// The moment that it shows, if it only reads and other programs can change what it reads.
    fn frozen(
        volume: &OpenVolume,
        terms: &Terms,
        spill: &Arc<dyn Spill>,
    ) -> Result<Option<snapshot::Frozen>, Failure> {
        if !terms.read_only {
            return Ok(None);
        }
        if !terms.at_once {
            return Ok(volume.vol.snapshot(Arc::clone(spill)));
        }
        let busy = "a commit, a request or a file that is written to is in the way";
        let frozen = volume.vol.try_snapshot(Arc::clone(spill));
        frozen.map_err(|_| Failure::new(FailureKind::Busy, busy))
    }

    /// A FUSE connection now serves the view to `visitor`.
    pub fn attached(&self, connection: Connection, visitor: Visitor) {
        let mut life = self.life.lock();
        life.connections.push(connection);
        life.visitor = Some(visitor);
    }

    /// Its view has a path, and no client owns it.
    pub fn opened(&self, path: Arc<PathView>) {
        let mut life = self.life.lock();
        life.state = State::Open;
        life.path = Some(path);
    }

    /// The path of its view, if it has one.
    pub fn path_view(&self) -> Option<Arc<PathView>> {
        self.life.lock().path.clone()
    }

    /// The path goes; what is open of it stays.
    pub fn leave_path(&self) {
        let path = self.life.lock().path.take();
        if let Some(path) = path {
            path.leave();
        }
    }

    /// Takes the right to end it.
    ///
    /// # Errors
    /// Somebody else has it.
    pub fn take_turn(&self) -> Result<Turn<'_>, Failure> {
        let mut life = self.life.lock();
        if std::mem::replace(&mut life.ending, true) {
            let text = format!("transaction {} is being ended by another command", self.id);
            return Err(Failure::new(FailureKind::State, text));
        }
        drop(life);
        Ok(Turn(self))
    }

    /// Who is in the view.
    pub fn visitor(&self) -> Option<Visitor> {
        self.life.lock().visitor
    }

    /// Why its changes may not be all that its command made: a connection was cut off.
    fn cut_off(&self) -> Option<Failure> {
        if let Some(failure) = self.others().iter().find_map(|o| o.cut_off()) {
            return Some(failure);
        }
        let life = self.life.lock();
        let now = || life.connections.iter().find_map(Connection::cut_off);
        let why = life.cut_off.as_deref().or_else(now)?;
        let message = format!("the view of transaction {} was cut off: {why}", self.id);
        Some(
            Failure::new(FailureKind::Internal, message)
                .hint("what its programs wrote last may be missing, so it is not committed"),
        )
    }

    /// Nobody is in the view any more: its connections are ended.
    pub fn vacated(&self) {
        let connections = {
            let mut life = self.life.lock();
            life.visitor = None;
            let connections = std::mem::take(&mut life.connections);
            if let Some(why) = connections.iter().find_map(Connection::cut_off) {
                life.cut_off = Some(why.into());
            }
            connections
        };
        for connection in connections {
            connection.stop();
        }
        self.others().iter().for_each(|o| o.vacated());
    }

    /// Keeps it open after its command ended.
    pub fn keep(&self, code: Option<i32>) -> Summary {
        let mut life = self.life.lock();
        life.state = State::Kept;
        life.code = code;
        drop(life);
        self.summary()
    }

    /// Where it is.
    pub fn state(&self) -> State {
        let status = |t: &Transaction| t.volume.vol.engine.status(self.id);
        let any = |wanted| self.parts().any(|t| status(t) == Some(wanted));
        match () {
            () if any(Status::Doomed) => State::Doomed,
            () if any(Status::Committing) => State::Committing,
            () => self.life.lock().state,
        }
    }

    /// Everything that changed.
    pub fn changes(&self) -> Vec<protocol::Change> {
        let of = |t: &Transaction| describe::changes(&t.view, &self.terms.patterns);
        let mut all: Vec<_> = self.parts().flat_map(of).collect();
        if !self.others().is_empty() {
            all.sort_by(|a, b| a.path.cmp(&b.path));
        }
        all
    }

    /// How much changed.
    pub fn summary(&self) -> Summary {
        describe::summary(&self.changes())
    }

    /// As listings show it.
    pub fn listed(&self, opponents: &dyn Opponents) -> Listed {
        let (code, visitor, path) = {
            let life = self.life.lock();
            (life.code, life.visitor, life.path.clone())
        };
        Listed {
            id: self.id,
            state: self.state(),
            argv: self.terms.argv.clone(),
            cwd: self.terms.cwd.clone(),
            volume: HostPath::from(self.volume.location.mount.as_path()),
            begun: self.begun,
            code,
            isolation: self.terms.isolation,
            read_only: self.terms.read_only,
            pid: visitor.map(|v| v.pid),
            view: path.map(|path| HostPath::from(path.path.as_path())),
            summary: self.summary(),
            conflict: self.conflict(opponents),
            deferred: self.deferred.get(),
            limited: self.budget.was_reached(),
            full: self.parts().any(|part| part.full.load(Ordering::Relaxed)),
        }
    }

    /// Why it lost, if it did.
    pub fn conflict(&self, opponents: &dyn Opponents) -> Option<protocol::Conflict> {
        if let Some(verdict) = self.parts().find_map(|part| part.verdict.get()) {
            return Some(verdict.clone());
        }
        let Some(found) = self.volume.vol.engine.conflict(self.id) else {
            return self.others().iter().find_map(|o| o.conflict(opponents));
        };
        // What loses under snapshot isolation loses under every isolation, also by a read on which
        // a write rests; and two writers exclude each other.
        let serializable = self.terms.isolation == protocol::Isolation::Serializable;
        let read = found.mine == Side::Read || found.theirs == Side::Read;
        let path = self.view.path_of_object(&found.object);
        let replaced = || self.view.changes().iter().any(|c| c.path == path);
        let stale_only = serializable && read && !(found.theirs == Side::Write && replaced());
        Some(describe::conflict(&self.view, &found, stale_only, opponents))
    }

    /// Exit code of its command, once ended.
    pub fn code(&self) -> Option<i32> {
        self.life.lock().code
    }

    /// Content of one side of a change; if `whose` is said, of that user's files only.
    ///
    /// # Errors
    /// The path did not change, or cannot be read.
    pub fn content(
        &self,
        path: &HostPath,
        version: Version,
        limit: u64,
        whose: Option<Uid>,
    ) -> Result<Content, Failure> {
        let changed = |t: &Transaction| t.view.changes().iter().any(|c| c.path == path.0);
        if let Some(other) = self.others().iter().find(|o| changed(o)) {
            return other.content(path, version, limit, whose);
        }
        let changes = self.view.changes();
        let change = changes.iter().find(|c| c.path == path.0).ok_or_else(|| {
            let message = format!("transaction {} did not change {path}", self.id);
            Failure::new(FailureKind::Invalid, message).path(path.clone())
        })?;
        let side = match version {
            Version::Old => &change.old,
            Version::New => &change.new,
        };
        let Some(side) = side else { return Ok(Content::default()) };
        if whose.is_some_and(|uid| side.attr.uid != uid) {
            return Ok(Content { bytes: Vec::new(), total: side.attr.size, unknown: true });
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let bytes = self.view.read_side(side, limit).map_err(|e| {
            Failure::new(FailureKind::Io, format!("cannot read {path}: {e}")).path(path.clone())
        })?;
        Ok(Content { bytes, total: side.attr.size, unknown: false })
    }

    /// Ends it without effect.
    pub fn abort(&self) -> Summary {
        let summary = self.summary();
        for part in self.parts() {
            part.view.cancel();
            // Its program may tell of what it has seen.
            part.view.land_seen();
            part.volume.vol.engine.abort(self.id);
        }
        summary
    }

    /// What the transaction met and outsiders have changed since, as the conflict that it is under
    /// this transaction's isolation; stale reads that only need to be told are the second part.
    ///
    /// With a conflict it has lost for good: [`Transaction::settle`], or its end, has to follow.
    fn validate(&self, opponents: &dyn Opponents) -> (Option<protocol::Conflict>, Vec<HostPath>) {
        let mut found = self.view.validate();
        found.retain(|c| c.written || !self.told.is_passed_through(&c.path));
        let serializable = self.terms.isolation == protocol::Isolation::Serializable;
        let fatal: Vec<_> = found.iter().filter(|c| serializable || c.written).cloned().collect();
        let stale = found.iter().filter(|c| !c.written).map(|c| HostPath(c.path.clone())).collect();
        if !fatal.is_empty() && !self.outdone.swap(true, Ordering::Relaxed) {
            Counts::count(&self.volume.counts().lost);
        }
        let conflict = describe::outside(&fatal).map(|mut conflict| {
            if let Some(by) = self.who_replaced(&conflict.path) {
                conflict.opponent = describe::opponent(&by, opponents);
            }
            self.verdict.get_or_init(|| conflict).clone()
        });
        (conflict, stale)
    }

    /// Who made a path stale that was read under snapshot isolation, if the engine knows: what
    /// was found there is not what was met, but it need not be an outsider's.
    fn who_replaced(&self, path: &HostPath) -> Option<Opponent> {
        let stale = self.volume.vol.engine.stale_reads(self.id);
        let known = stale.into_iter().filter(|(_, by)| *by != Opponent::Outside);
        let is_it = |object: &Object| self.view.path_of_object(object) == path.0;
        known.into_iter().find(|(object, _)| is_it(object)).map(|(_, by)| by)
    }

    /// Where its commit has found that it has lost to somebody whom the engine does not know: it
    /// is in nobody's way any more, and nothing more is done in it.
    pub fn settle(&self) {
        if !self.parts().any(|part| part.verdict.get().is_some()) {
            return;
        }
        for part in self.parts() {
            let object = Object::List(Oid(0));
            let (opponent, mine, theirs) = (Opponent::Outside, Side::Read, Side::Write);
            // What is told is the verdict.
            let why = systx_txn::Conflict { object, opponent, mine, theirs };
            part.volume.vol.engine.doom(self.id, why);
        }
    }

    /// What a transaction has read that commits nothing is all that it is good for.
    fn must_be_of_one_moment(&self) -> bool {
        self.terms.read_only && self.terms.isolation == protocol::Isolation::Serializable
    }

    /// A sentence for each file that a process outside could overwrite right after the commit.
    fn open_elsewhere(&self, frozen: &Frozen) -> Vec<String> {
        let paths = self.view.open_elsewhere(frozen);
        let say = |path: &Vec<u8>| {
            let path = String::from_utf8_lossy(path);
            format!(
                "{path} is open for writing in a program outside: what it writes from now on mixes with what was committed"
            )
        };
        paths.iter().map(say).collect()
    }

    /// What a transaction that commits nothing has written all the same: a sentence.
    fn read_only_note(&self, changes: &[protocol::Change]) -> Option<String> {
        const SHOWN: usize = 3;
        if !self.terms.read_only || changes.is_empty() {
            return None;
        }
        let shown: Vec<String> = changes.iter().take(SHOWN).map(|c| c.path.to_string()).collect();
        let more = match changes.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (n, s) = (changes.len(), if changes.len() == 1 { "" } else { "s" });
        let shown = shown.join(", ");
        Some(format!("read-only: {n} change{s} dropped, of {shown}{more}"))
    }

    fn outcome(
        &self,
        id: TxnId,
        summary: Summary,
        outside: Vec<protocol::OutsideChange>,
        mut stale: Vec<HostPath>,
        dropped: u64,
    ) -> Outcome {
        stale.sort();
        stale.dedup();
        Outcome::Committed { id, summary, outside, stale, dropped, notes: Vec::new() }
    }

    /// The end of a commit that lost to another transaction; `None`: the engine knows to whom.
    fn lost(
        &self,
        why: Option<systx_txn::Conflict>,
        kept: bool,
        opponents: &dyn Opponents,
    ) -> Ended {
        Ended::Refused(self.lost_to(why, kept, opponents))
    }

    fn lost_to(
        &self,
        why: Option<systx_txn::Conflict>,
        kept: bool,
        opponents: &dyn Opponents,
    ) -> Outcome {
        let why = why.map(|c| describe::conflict(&self.view, &c, false, opponents));
        match why.or_else(|| self.conflict(opponents)) {
            Some(conflict) => Outcome::Conflict { conflict, kept },
            None => refused(Failure::new(
                FailureKind::State,
                "the transaction was aborted while it was being committed",
            )),
        }
    }

    /// Commits what lies below `paths`, as transaction `id`, which has this one's reads; the rest
    /// stays.
    pub fn commit_part(&self, id: TxnId, paths: &[HostPath], opponents: &dyn Opponents) -> Ended {
        if let Some(failure) = self.cut_off() {
            return Ended::Refused(Outcome::Refused { failure, kept: true });
        }
        if let Some(certifier) = self.certifier() {
            let failure = certifier.not_asked(Way::Part);
            return Ended::Refused(Outcome::Refused { failure, kept: true });
        }
        if !self.others().is_empty() {
            return self.commit_part_of_several(id, paths, opponents);
        }
        self.commit_part_here(id, paths, opponents)
    }

    fn commit_part_here(&self, id: TxnId, paths: &[HostPath], opponents: &dyn Opponents) -> Ended {
        // From before the check on.
        let _turn = match self.volume.turn() {
            Ok(turn) => turn,
            Err(failure) => return Ended::Refused(Outcome::Refused { failure, kept: true }),
        };
        self.view.let_go_of_files();
        let selection = Below { patterns: &self.terms.patterns, paths, volume: &self.volume };
        let mut frozen = self.view.freeze(&selection);
        if !frozen.appended.is_empty() {
            if self.view.stop_growing_in(&frozen).is_err() {
                return self.lost(None, true, opponents);
            }
            frozen = self.view.freeze(&selection);
        }
        let quiet = match self.view.quiet_others() {
            Ok(quiet) => quiet,
            Err(why) => {
                return Ended::Refused(Outcome::Refused { failure: never_quiet(why), kept: true });
            }
        };
        let (conflict, stale) = self.validate(opponents);
        drop(quiet);
        if let Some(conflict) = conflict.or_else(|| self.conflict(opponents)) {
            return Ended::Refused(Outcome::Conflict { conflict, kept: true });
        }
        let below = |c: &&protocol::Change| !c.dropped && selection.has(&c.path.0);
        let summary = describe::summary(self.changes().iter().filter(below));
        let engine = &self.volume.vol.engine;
        let isolation = engine_isolation(self.terms.isolation);
        let guest = self.terms.whose.guest;
        engine.begin(id, BeginOptions { isolation, guest, ..BeginOptions::default() });
        let owned = match engine.merge_reads(self.id, id) {
            Access::Granted => self.view.claim(id, &frozen.writes),
            Access::Doomed | Access::Wait(_) => Err(None),
        };
        if let Err(lost) = owned {
            // The part's own, which nobody knows any more when that has ended.
            let lost = lost.or_else(|| engine.conflict(id));
            engine.abort(id);
            return self.lost(lost, true, opponents);
        }
        let writes = std::mem::take(&mut frozen.writes);
        let meta = self.meta(id, TxnKind::Partial, summary);
        match self.install_part(id, meta, writes, &frozen) {
            Ok(outside) => {
                Counts::count(&self.volume.counts().begun);
                Counts::count(&self.volume.counts().committed);
                Ended::Committed(self.outcome(id, summary, outside, stale, 0))
            }
            Err(stopped) => {
                // What was not decided is still known to the engine.
                engine.abort(id);
                match NotInstalled::from(stopped) {
                    NotInstalled::Lost(_, why) => self.lost(Some(*why), true, opponents),
                    NotInstalled::Outside(paths) => Ended::Refused(late_change(paths, true)),
                    NotInstalled::Failed(failure) => Ended::Refused(refused(failure)),
                    NotInstalled::Unfinished(failure) => {
                        Ended::Refused(Outcome::Unfinished { id, failure, kept: true })
                    }
                }
            }
        }
    }

    fn install_part(
        &self,
        id: TxnId,
        meta: CommitMeta,
        writes: WriteSet,
        frozen: &Frozen,
    ) -> Result<Vec<protocol::OutsideChange>, Stopped> {
        let site = &self.volume.site;
        let part = Part { site: Arc::clone(site), writes, appended: Vec::new() };
        let decided = Commit::new(id, meta, vec![part]);
        let decided = decided.reserve()?.decide()?;
        let placed = decided.durable().and_then(Durable::place)?;
        self.view.rebase(frozen, placed.stamps(site));
        Ok(outside_changes(&placed.release()))
    }

    fn meta(&self, id: TxnId, kind: TxnKind, summary: Summary) -> CommitMeta {
        CommitMeta {
            txn: id,
            kind,
            argv: self.terms.argv.iter().map(|a| a.0.clone()).collect(),
            cwd: self.terms.cwd.0.clone(),
            uid: self.terms.whose.uid,
            started: self.begun,
            finished: self.volume.vol.tree.now(),
            told: Some(describe::told(summary)),
            order: None,
        }
    }
}

/// What a snapshot needed was more than there is room for.
fn given_up() -> Failure {
    let text = "the snapshot was given up: too much was changed while it was open";
    Failure::new(FailureKind::Space, text).hint("what was read is not complete; try again")
}

fn with_notes(mut outcome: Outcome, more: Vec<String>) -> Outcome {
    if let Outcome::Committed { notes, .. } = &mut outcome {
        notes.extend(more);
    }
    outcome
}

/// Outsiders were faster than the installation.
fn late_change(paths: Vec<HostPath>, kept: bool) -> Outcome {
    let conflict = protocol::Conflict {
        path: paths.first().cloned().unwrap_or_default(),
        part: protocol::Part::Any,
        opponent: protocol::Opponent::outside("changed while it was committed"),
        stale_only: false,
        stale: paths,
    };
    Outcome::Conflict { conflict, kept }
}

fn never_quiet(why: NotQuiet) -> Failure {
    match why {
        NotQuiet::Busy => {
            let text = "a program outside does not come to the end of a write to what was read";
            Failure::new(FailureKind::State, text).hint("nothing was committed; try again")
        }
        NotQuiet::Shut => {
            let text = "files that were read are open for writing in a volume whose root its \
                        user may not search";
            Failure::new(FailureKind::State, text)
                .hint("nothing was committed; chmod u+x where it is mounted, and try again")
        }
        NotQuiet::Many(count) => {
            let text = format!(
                "{count} of the files that were read are open for writing outside, too many to keep their writers waiting"
            );
            let hint = "nothing was committed; --read-only reads all of them as of one moment";
            Failure::new(FailureKind::State, text).hint(hint)
        }
        NotQuiet::Unwatched(count) => {
            let text = format!(
                "{count} of the files that were read are known to programs where opens ask nobody \
                 (in a volume, or --fast-open): too many to watch at once with the daemon's limit \
                 of open files"
            );
            Failure::new(FailureKind::State, text).hint(
                "nothing was committed; raise that limit (ulimit -Hn, a quarter of which serves \
                 here) and start the daemon anew, or mount the volume with --threads, the \
                 directory without --fast-open",
            )
        }
    }
}

fn refused(failure: Failure) -> Outcome {
    Outcome::Refused { failure, kept: false }
}

/// The engine knows it from now on; its seniority.
fn registered(
    volume: &OpenVolume,
    id: TxnId,
    options: BeginOptions,
    at_once: bool,
) -> Result<u64, Failure> {
    let engine = &volume.vol.engine;
    let begun =
        if at_once { engine.try_begin(id, options) } else { Some(engine.begin(id, options)) };
    let busy = || Failure::new(FailureKind::Busy, "a change from outside is under way");
    Ok(begun.ok_or_else(busy)?.0)
}

/// The view of one that the engine knows.
fn shown(
    volume: &OpenVolume,
    frozen: Option<snapshot::Frozen>,
    config: ViewConfig,
    (room, terms): (&Room, &Terms),
) -> Result<Arc<View>, Failure> {
    let id = config.txn;
    let made = match frozen {
        Some(frozen) => View::of_snapshot(volume.vol.clone(), frozen, config),
        None => View::new(volume.vol.clone(), config),
    };
    let mut view = made.map_err(|e| {
        volume.vol.engine.abort(id);
        Failure::new(FailureKind::Io, format!("cannot look at the volume's root: {e}"))
    })?;
    view.set_limits(room.limits.view);
    view.set_patience(terms.patience);
    if !terms.merged.is_empty() {
        view.let_grow(Arc::new(terms.merged.clone()));
    }
    Ok(Arc::new(view))
}

/// Has its loss counted, once, and told; whether it was counted.
fn rung_when_lost(volume: &Arc<OpenVolume>, id: TxnId, alarm: Arc<Alarm>) -> Arc<AtomicBool> {
    let theirs = Arc::downgrade(volume);
    let outdone = Arc::new(AtomicBool::new(false));
    let counted = Arc::clone(&outdone);
    // Called on the winner's thread, which holds the lock of the winner's view: no lock of a view
    // is taken.
    volume.vol.engine.on_doom(id, move |_, _| {
        if let Some(volume) = theirs.upgrade()
            && !counted.swap(true, Ordering::Relaxed)
        {
            Counts::count(&volume.counts().lost);
        }
        alarm.ring();
    });
    outdone
}

/// The engine's word for the protocol's.
pub fn engine_isolation(isolation: protocol::Isolation) -> Isolation {
    match isolation {
        protocol::Isolation::Serializable => Isolation::Serializable,
        protocol::Isolation::Snapshot => Isolation::Snapshot,
    }
}
