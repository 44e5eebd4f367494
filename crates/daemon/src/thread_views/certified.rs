//! The end of a thread's transaction that a certifier decides: it is offered and over, and the
//! thread asks for the verdict until that is there.

use super::last::Last;
use super::{Desk, Place, Work};
use crate::certify::{Awaited, Certifier};
use crate::counts::Counts;
use crate::lasting::Relaxing;
use crate::protocol::{Outcome, Summary};
use crate::thread_orders;
use crate::transaction::{Ended, Transaction};
use crate::transactions::Transactions;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use systx_abi as abi;
use systx_vfs::api::Reply;

/// A transaction that is offered.
pub(super) struct Pending {
    txn: Arc<Transaction>,
    certifier: Arc<Certifier>,
    summary: Summary,
    awaited: Awaited,
}

/// Who decides about a transaction.
enum Decides {
    /// Nobody else.
    Engine,
    /// It is on its way.
    Certifier(Box<Pending>),
    /// It cannot be asked.
    Nobody(Box<Outcome>),
}

fn decides(txn: &Arc<Transaction>, table: &Transactions) -> Decides {
    let Some(certifier) = txn.certifier() else { return Decides::Engine };
    let refused = |failure| Box::new(Outcome::Refused { failure, kept: false });
    let asking = match certifier.approach() {
        Ok(asking) => asking,
        Err(failure) => return Decides::Nobody(refused(failure)),
    };
    let (offer, summary) = match txn.offered(&certifier.dir, table) {
        Ok(offered) => offered,
        Err(outcome) => return Decides::Nobody(outcome),
    };
    // Whoever installs it must not wait for it.
    txn.abort();
    txn.let_writers_in();
    match asking.offer(&offer) {
        Ok(awaited) => {
            Decides::Certifier(Box::new(Pending { txn: txn.clone(), certifier, summary, awaited }))
        }
        Err(error) => Decides::Nobody(Box::new(certifier.outcome(txn.id, summary, Err(error)))),
    }
}

impl Desk {
    /// Commits what is open on a seat, or has it committed.
    pub(super) fn commit_work(
        &self,
        place: &Place,
        table: &Arc<Transactions>,
        work: &Work,
        last: &mut Last,
    ) -> Relaxing {
        let Work { txn, lasting, .. } = work;
        match decides(txn, table) {
            Decides::Engine if work.relaxed => table.commit_relaxed(txn, lasting),
            Decides::Engine => {
                let (ended, still) = table.commit_lasting(txn, lasting);
                Relaxing::Ended(ended, still)
            }
            Decides::Nobody(outcome) => Relaxing::Ended(Ended::Refused(*outcome), None),
            Decides::Certifier(pending) => {
                place.now.lock().pending = Some(pending);
                last.state = abi::state::WAITS;
                last.errno = Errno::TIMEDOUT.raw_os_error();
                let aborted = Outcome::Aborted { summary: Summary::default() };
                Relaxing::Ended(Ended::Refused(aborted), None)
            }
        }
    }

    /// Ends what is open on a seat, or goes on waiting for the verdict.
    pub(super) fn commit(&self, place: &Place, flags: u32) -> Reply<abi::End> {
        if place.now.lock().pending.is_none() {
            if let Some(end) = self.not_yet(place, flags)? {
                return Ok(end);
            }
            let end = self.end(place, true)?;
            if end.state != abi::state::WAITS {
                return Ok(end);
            }
        }
        Ok(self.verdict(place, flags))
    }

    fn verdict(&self, place: &Place, flags: u32) -> abi::End {
        let Some(mut pending) = place.now.lock().pending.take() else {
            return place.now.lock().last.answer();
        };
        let late = flags & abi::end::NOW != 0;
        let limit = if late { Duration::from_millis(1) } else { thread_orders::WAIT };
        let Some(verdict) = pending.awaited.wait(Some(limit)) else {
            if late {
                return over(place, &pending, pending.certifier.unknown(pending.txn.id));
            }
            let mut now = place.now.lock();
            now.pending = Some(pending);
            return now.last.answer();
        };
        let (id, summary) = (pending.txn.id, pending.summary);
        over(place, &pending, pending.certifier.outcome(id, summary, verdict))
    }
}

fn over(place: &Place, pending: &Pending, outcome: Outcome) -> abi::End {
    if matches!(outcome, Outcome::Committed { .. }) {
        Counts::count(&pending.txn.volume.counts().committed);
    }
    let mut now = place.now.lock();
    let before = now.last.lost.clone();
    let mut last = Last { id: pending.txn.id.0, retries: pending.txn.age, ..Last::default() };
    last.ended(outcome, &pending.txn);
    last.after(&before);
    now.last = last;
    now.last.answer()
}
