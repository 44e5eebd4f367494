//! The daemon as a whole: the transactions, what is guarded, and what each request does to them.

use crate::chores::{Chores, Ending};
use crate::guards::Guards;
use crate::guests::Guests;
use crate::ledger::Ledger;
use crate::protocol::State;
use crate::transaction::Transaction;
use crate::transactions::Transactions;
use crate::volumes::Volumes;
use std::sync::{Arc, OnceLock, Weak};
use systx_protocol::runtime::Runtime;
use systx_txn::Inject;

mod control;
mod guest;
mod paths;
mod protection;

/// See the module.
pub struct Daemon {
    table: Arc<Transactions>,
    guards: Arc<Guards>,
    /// Once something is guarded.
    guests: OnceLock<Guests>,
    /// For threads that outlive a call.
    me: Weak<Daemon>,
    /// Of the housekeeping thread.
    _ending: Ending,
}

impl Daemon {
    /// With the housekeeping thread, which ends with the last reference.  The directories that are
    /// guarded according to the files of `runtime` are mounted again.  `inject`: where transactions
    /// of programs lose for a test.
    pub fn start(runtime: Option<Runtime>, ledger: Ledger, inject: Option<Inject>) -> Arc<Daemon> {
        let chores = Chores::new();
        let volumes = Volumes::new(runtime.as_ref(), ledger, Arc::clone(&chores));
        let table = Arc::new(Transactions::new(volumes, inject, Arc::clone(&chores)));
        let daemon = Arc::new_cyclic(|me| Daemon {
            guards: Guards::new(runtime, Arc::clone(&table)),
            table,
            guests: OnceLock::new(),
            me: me.clone(),
            _ending: Ending(Arc::clone(&chores)),
        });
        Arc::clone(&chores).begin(Arc::downgrade(&daemon.table), look_round);
        daemon.guards.restore();
        chores.are_due();
        if !daemon.table.volumes.all_guarded().is_empty() {
            daemon.take_guests();
        }
        daemon
    }
}

/// What is done from time to time; whether there is more to do.
fn look_round(table: &Transactions) -> bool {
    table.sweep_locks();
    cut_off_losers(table);
    let takes_looks = |txn: &Arc<Transaction>| {
        txn.path_view().is_some() || txn.parts().any(|part| part.view.holds_locks())
    };
    table.volumes.let_go(|volume| table.in_use(volume))
        || table.open().iter().any(takes_looks)
        || !table.volumes.all_halls().is_empty()
}

/// Has the kernel forget the names of views that have lost, since whoever makes a transaction lose
/// cannot wait for that.
fn cut_off_losers(table: &Transactions) {
    let open = table.open();
    let views = open.iter().filter_map(|txn| Some((txn, txn.path_view()?)));
    for (_, view) in views.filter(|(txn, _)| txn.state() == State::Doomed) {
        view.lost();
    }
    for hall in table.volumes.all_halls() {
        hall.look_round();
    }
}
