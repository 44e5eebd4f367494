//! The table of the open transactions, and of those that ended last.

use crate::chores::{Chores, SWEEP};
use crate::counts::Counts;
use crate::describe::Opponents;
use crate::history;
use crate::processes;
use crate::protocol::{Failure, FailureKind, HostPath, Outcome, State};
use crate::runs::Runs;
use crate::transaction::{Ended, Lives, Transaction, Turn};
use crate::volume::OpenVolume;
use crate::volumes::Volumes;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};
use systx_base::{Gid, TxnId, Uid};
use systx_protocol::is_below;
use systx_txn::Inject;
use systx_vfs::view::Ids;

/// Longest wait for the transactions of dead clients: a commit of any size ends within it.
const SETTLE: Duration = Duration::from_secs(60);

/// How many ended transactions are remembered for conflict messages.
const ENDED_MAX: usize = 256;

/// See the module.
pub struct Transactions {
    /// Where they work.
    pub(crate) volumes: Arc<Volumes>,
    /// Whose daemon this is.
    owner: Owner,
    tables: Mutex<Tables>,
    /// Something ended.
    ended: Event,
    /// What has become of runs that try again.
    pub(crate) runs: Runs,
    inject: Option<Inject>,
    pub(crate) chores: Arc<Chores>,
}

struct Owner {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

#[derive(Default)]
struct Tables {
    open: HashMap<TxnId, Arc<Transaction>>,
    /// Owners and commands of transactions that ended, for messages about conflicts with them.
    past: Vec<(TxnId, Uid, Vec<HostPath>)>,
    /// Who aborted transactions that were somebody's, for whoever asks after them; the latest.
    aborted: VecDeque<(TxnId, String)>,
}

impl Transactions {
    /// Nothing open.  `inject`: where transactions of programs lose for a test.
    pub(crate) fn new(
        volumes: Arc<Volumes>,
        inject: Option<Inject>,
        chores: Arc<Chores>,
    ) -> Transactions {
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: rustix::process::getgroups()
                .map(|g| g.into_iter().map(|g| g.as_raw()).collect())
                .unwrap_or_default(),
        };
        let tables = Mutex::new(rank::DAEMON, Tables::default());
        let (ended, runs) = (Event::new(), Runs::new());
        Transactions { volumes, owner, tables, ended, runs, inject, chores }
    }

    /// The daemon's user.
    pub(crate) fn uid(&self) -> Uid {
        self.owner.uid
    }

    /// Where transactions of programs lose for a test.
    pub(crate) fn inject(&self) -> Option<Inject> {
        self.inject
    }

    /// Nothing is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.lock().open.is_empty()
    }

    /// Notes who aborts a transaction.
    pub(crate) fn note_abort(&self, id: TxnId, by: String) {
        self.tables.lock().note_abort(id, by);
    }

    /// Waits until a transaction has ended or `limit_ms` passed; true if it has ended.
    pub(crate) fn wait_for(&self, id: TxnId, limit_ms: u64) -> bool {
        let until = Instant::now() + Duration::from_millis(limit_ms.min(86_400_000));
        let mut tables = self.tables.lock();
        loop {
            if !tables.open.contains_key(&id) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.ended.wait_for(&mut tables, left);
        }
    }

    /// Whether somebody works on a volume.
    pub(crate) fn in_use(&self, volume: &Arc<OpenVolume>) -> bool {
        self.tables.lock().open.values().any(|t| t.works_on(volume))
    }

    /// The open transactions of a volume that changed something below a directory.
    pub(crate) fn open_below(&self, volume: &Arc<OpenVolume>, dir: &Path) -> Vec<TxnId> {
        let open = self.open();
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
        let open = self.open();
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
    pub(crate) fn wait_for_the_dead(&self, volume: &Arc<OpenVolume>) {
        let until = Instant::now() + SETTLE;
        let mut tables = self.tables.lock();
        loop {
            let unsettled = |t: &Arc<Transaction>| {
                t.works_on(volume)
                    && t.state() != State::Kept
                    && !processes::is_alive(t.terms.whose.client)
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !tables.open.values().any(unsettled) {
                return;
            }
            // A client may die while we wait, which notifies nobody: look again soon.
            self.ended.wait_for(&mut tables, left.min(SWEEP));
        }
    }

    /// Every open transaction.
    pub(crate) fn open(&self) -> Vec<Arc<Transaction>> {
        self.tables.lock().open.values().cloned().collect()
    }

    /// Every volume and every open transaction.
    pub(crate) fn everything(&self) -> (Vec<Arc<OpenVolume>>, Vec<Arc<Transaction>>) {
        (self.volumes.all(), self.open())
    }

    /// Takes a transaction onto the table.
    pub(crate) fn add(&self, txn: Arc<Transaction>) {
        self.tables.lock().open.insert(txn.id, txn);
        self.chores.are_due();
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
            let counts = part.volume.counts();
            Counts::count(if committed { &counts.committed } else { &counts.aborted });
        }
        let volumes = self.volumes.all();
        let mut tables = self.tables.lock();
        tables.open.remove(&txn.id);
        if tables.past.len() >= ENDED_MAX {
            tables.past.remove(0);
        }
        tables.past.push((txn.id, txn.terms.whose.uid, txn.terms.argv.clone()));
        let volume_idle = |v: &Arc<OpenVolume>| !tables.open.values().any(|t| t.works_on(v));
        for volume in &volumes {
            if volume_idle(volume) {
                volume.vol.forget_history();
            }
        }
        drop(tables);
        self.ended.notify_all();
        self.chores.are_due();
        txn.vacated();
        if let (false, Some(view)) = (committed, txn.path_view()) {
            view.lost();
        }
        if txn.terms.lives == Lives::Command {
            // The next may need the room at once, and may execute a file that was committed.
            txn.parts().for_each(|part| part.view.discard());
        }
        txn.leave_path();
    }

    /// Takes the right to end a transaction that is open. An abort beside a commit would take the
    /// ground away from under its decision.
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
            return (Some(open.terms.whose.uid), open.terms.argv.clone(), false);
        }
        match tables.past.iter().rev().find(|(past, ..)| *past == id) {
            Some((_, uid, argv)) => (Some(*uid), argv.clone(), true),
            None => (None, Vec::new(), true),
        }
    }
}

impl Tables {
    /// Notes who aborts a transaction.
    fn note_abort(&mut self, id: TxnId, by: String) {
        self.aborted.truncate(ENDED_MAX);
        self.aborted.push_front((id, by));
    }
    /// Who has aborted, or is aborting, a transaction.
    fn who_aborted(&self, id: TxnId) -> Option<Failure> {
        let (_, by) = self.aborted.iter().find(|(aborted, _)| *aborted == id)?;
        let text = format!("transaction {id} was aborted by {by}");
        Some(Failure::new(FailureKind::NotFound, text))
    }
}
