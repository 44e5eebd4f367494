//! Where threads' views are, of a guarded directory or of a volume: the alias roots of its mount,
//! and who serves the threads that use them.

use crate::certify::{self, Certifier};
use crate::in_line::Waiting;
use crate::protocol::{ForThreads, HostPath, Policy, ThreadActivity};
use crate::served::Serving;
use crate::watch::Keeps;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use systx_base::{NodeId, TxnId};
use systx_fuse::Connection;
use systx_guard::aliases::{Aliases, Control, Seat};
use systx_protocol::modes::{Way, chosen};
use systx_txn::Engine;

/// See the module.
pub struct Hall {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// The view that the kernel sees.
    pub aliases: Arc<Aliases>,
    /// What is done about conflicts.
    pub(crate) conflicts: Conflicts,
    serving: Arc<Serving>,
    desk: OnceLock<Arc<dyn Desk>>,
}

/// What serves the threads.
pub(crate) trait Desk: Control {
    /// Who of the transactions with these ids, which are in line, begins here, with the command.
    fn waiting(&self, ids: &[TxnId]) -> Vec<(Waiting, Vec<HostPath>)>;
    /// The threads that have had a transaction here.
    fn threads(&self, engine: &Engine) -> Vec<ThreadActivity>;
    /// Threads whose transactions have lost hear of it, and what is left of those that are over
    /// goes.
    fn look_round(&self);
    /// Ends all seats: the directory is not served any more.
    fn close_all(&self);
}

/// What is done about conflicts.
#[derive(Clone, Debug)]
pub(crate) struct Conflicts {
    /// How long a plain change may be held for a transaction.
    pub stall: Duration,
    /// Who wins.
    pub policy: Policy,
    /// Who is asked before a commit.
    pub certifier: Option<Arc<Certifier>>,
}

impl Conflicts {
    pub(crate) fn new(stall_ms: u64, policy: Policy) -> Conflicts {
        Conflicts { stall: Duration::from_millis(stall_ms), policy, certifier: None }
    }

    /// In a volume.
    pub(crate) fn of(dir: &Path, how: &ForThreads) -> Conflicts {
        Conflicts::new(how.stall_ms, how.policy).certified(dir, how.certifier.as_ref())
    }

    /// Where a certifier is asked, if a socket is named.
    pub(crate) fn certified(self, dir: &Path, socket: Option<&HostPath>) -> Conflicts {
        Conflicts { certifier: certify::at(dir, socket), ..self }
    }

    pub(crate) fn stall_ms(&self) -> u64 {
        u64::try_from(self.stall.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn socket(&self) -> Option<HostPath> {
        self.certifier.as_ref().map(|c| HostPath::from(c.socket.as_path()))
    }
}

impl Hall {
    /// Nobody serves its threads yet.
    pub(crate) fn new(
        dir: &Path,
        aliases: Arc<Aliases>,
        conflicts: Conflicts,
        serving: Arc<Serving>,
    ) -> Arc<Hall> {
        let desk = OnceLock::new();
        Arc::new(Hall { dir: dir.to_owned(), aliases, conflicts, serving, desk })
    }

    /// How it is mounted.  Without being told of opens nobody knows what a thread has open at the
    /// end of its transaction, and who has locks.
    pub(crate) fn modes(&self) -> Vec<Way> {
        chosen([
            (!self.aliases.tells(), Way::FastOpen),
            (self.aliases.routes(), Way::Routed),
            (self.conflicts.certifier.is_some(), Way::Certifier),
        ])
    }

    /// Threads are served from now on.
    pub(crate) fn open(&self, desk: Arc<dyn Desk>) {
        self.aliases.set_control(desk.clone());
        let _ = self.desk.set(desk);
    }

    /// They are not any more: what they have open is dropped.
    pub(crate) fn close(&self) {
        if let Some(desk) = self.desk.get() {
            desk.close_all();
        }
    }

    /// Its connection with the kernel, while it has one.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        self.serving.connection()
    }

    /// The thread of a seat has ended.
    pub(crate) fn vacated(&self, seat: Seat) {
        if let Some(desk) = self.desk.get() {
            desk.vacated(seat);
        }
    }

    /// Who is in line to begin here, see [`Desk::waiting`].
    pub(crate) fn waiting(&self, ids: &[TxnId]) -> Vec<(Waiting, Vec<HostPath>)> {
        self.desk.get().map(|desk| desk.waiting(ids)).unwrap_or_default()
    }

    /// See [`Desk::threads`].
    pub(crate) fn threads(&self, engine: &Engine) -> Vec<ThreadActivity> {
        self.desk.get().map(|desk| desk.threads(engine)).unwrap_or_default()
    }

    /// See [`Desk::look_round`].
    pub(crate) fn look_round(&self) {
        if let Some(desk) = self.desk.get() {
            desk.look_round();
        }
    }
}

impl Keeps for Hall {
    fn drop_pages(&self, node: NodeId) -> bool {
        let Some(connection) = self.connection() else { return false };
        connection.invalidate_inode(node, Some((0, 0))).is_ok()
    }
}
