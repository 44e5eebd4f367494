//! The commit of a view that goes on as a plain one: one with a path, or a thread's.
//!
//! Requests wait ([`systx_guard::retired`]); what is open is held; the transaction commits as any
//! other; from then on requests are plain ones.  Where it is refused, requests go on as before.

use crate::protocol::Outcome;
use crate::transaction::{Ended, Rest, Step, Transaction};
use crate::transactions::Transactions;
use std::sync::Arc;
use systx_commit::Decided;
use systx_guard::retired::{Lasting, Pause, StillOpen};

impl Transactions {
    /// Commits a transaction whose view goes on as a plain one. Requests wait meanwhile. Also what
    /// is still open of it, if it is committed.
    pub(crate) fn commit_lasting(
        &self,
        txn: &Transaction,
        lasting: &Arc<Lasting>,
    ) -> (Ended, Option<Vec<StillOpen>>) {
        let mut pause = lasting.pause();
        if txn.view.is_snapshot() {
            // What is open of a moment that is over cannot become a plain view of another one.
            let ended = txn.commit_and(self, || ());
            if matches!(ended, Ended::Committed(_)) {
                txn.view.cancel();
            }
            return (ended, None);
        }
        pause.pin(txn.terms.read_only);
        let ended = txn.commit_and(self, || pause.landed());
        let open = retire(pause, &ended);
        (ended, open)
    }

    /// As [`Transactions::commit_lasting`], of a transaction whose program does not wait for the
    /// disk.
    pub(crate) fn commit_relaxed(
        &self,
        txn: &Arc<Transaction>,
        lasting: &Arc<Lasting>,
    ) -> Relaxing {
        let mut pause = lasting.pause();
        pause.pin(txn.terms.read_only);
        let step = txn.decide(self);
        txn.let_writers_in();
        match step {
            Step::Decided(half) => {
                let (decided, rest) = half.relax();
                Relaxing::Decided(Box::new(Tail { txn: Arc::clone(txn), decided, rest, pause }))
            }
            Step::Nothing(outcome) => {
                pause.landed();
                txn.pass();
                let ended = Ended::Committed(outcome);
                let open = retire(pause, &ended);
                Relaxing::Ended(ended, open)
            }
            Step::Refused(outcome) => Relaxing::Ended(Ended::Refused(outcome), None),
        }
    }
}

/// What the kernel has open of a view, which goes on as a plain one if it is committed.
fn retire(pause: Pause, ended: &Ended) -> Option<Vec<StillOpen>> {
    let Ended::Committed(_) = ended else { return None };
    let open = pause.retire().inspect_err(|errno| {
        tracing::error!(%errno, "open files of a committed view are lost");
    });
    open.ok()
}

/// How far a commit has come when its program may go on.
pub(crate) enum Relaxing {
    /// It is decided, and this is left to do.
    Decided(Box<Tail>),
    /// To its end.
    Ended(Ended, Option<Vec<StillOpen>>),
}

/// What is left of a commit after its decision.
pub(crate) struct Tail {
    txn: Arc<Transaction>,
    decided: Decided,
    rest: Rest,
    pause: Pause,
}

impl Tail {
    /// Has it done by the volume's own thread; `then` is called with how it ended, and what is
    /// still open.
    pub(crate) fn finish(
        self,
        table: &Arc<Transactions>,
        then: impl FnOnce(Outcome, Option<Vec<StillOpen>>) + Send + 'static,
    ) {
        let Tail { txn, decided, rest, mut pause } = self;
        let (table, volume) = (Arc::clone(table), Arc::clone(&txn.volume));
        let end = move |durable| {
            let ended = rest.finish(&txn, &*table, durable, || pause.landed());
            let open = retire(pause, &ended);
            then(table.end(&txn, ended), open);
        };
        volume.relaxed.finish(decided, Box::new(end));
    }
}
