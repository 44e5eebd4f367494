//! The commit of a transaction on one file system, in two steps: to its decision ([`Transaction::decide`]), and from there
//! to its end ([`Half::finish`]), which needs the disk.

use super::{
    Committed, Ended, Transaction, given_up, late_change, never_quiet, refused, with_notes,
};
use crate::deferred;
use crate::describe::{self, Opponents};
use crate::install::{Decided, Installed, NotInstalled, Written, decide};
use crate::protocol::{HostPath, Outcome, Summary};
use std::sync::Arc;
use systx_base::progress::{self, Phase};
use systx_store::TxnKind;
use systx_store::io::Stamp;
use systx_store::writeset::Ix;
use systx_txn::Side;
use systx_vfs::freeze::Frozen;
use systx_vfs::view::View;

/// A commit that cannot lose any more.
pub struct Half {
    decided: Decided,
    rest: Rest,
}

/// What the end of a commit needs beside the store.
pub struct Rest {
    /// What was committed, if its view goes on.
    lives_on: Option<(Arc<View>, Frozen)>,
    summary: Summary,
    stale: Vec<HostPath>,
    dropped: u64,
    notes: Vec<String>,
}

/// How far a commit has come.
pub enum Step {
    /// Everybody who was asked agrees, and there is something to be written.
    Decided(Box<Half>),
    /// There is nothing to be written; it is to be passed by the engine.
    Nothing(Outcome),
    /// Nothing is committed, the transaction still is.
    Refused(Outcome),
}

impl Transaction {
    /// Commits everything (but what is never committed): the end of the transaction.
    pub fn commit(&self, opponents: &dyn Opponents) -> Ended {
        progress::phase(Phase::Checking, || 0);
        if let Some(failure) = self.cut_off() {
            return Ended::Refused(refused(failure));
        }
        if !self.others().is_empty() {
            return self.commit_several(opponents);
        }
        self.view.let_go();
        self.commit_and(opponents, || ())
    }

    /// As [`Transaction::commit`], of a view that processes still work in.  `landed` is called when
    /// everything is in place and nobody else can touch it yet.
    pub fn commit_and(&self, opponents: &dyn Opponents, landed: impl FnOnce()) -> Ended {
        let ended = self.commit_now(opponents, landed);
        self.volume.vol.let_writers_in(self.id);
        ended
    }

    fn commit_now(&self, opponents: &dyn Opponents, landed: impl FnOnce()) -> Ended {
        let promise = match deferred::Promise::of(self) {
            Ok(promise) => promise,
            Err(failure) => return Ended::Refused(refused(failure)),
        };
        let half = match self.decide(opponents) {
            Step::Decided(half) => half,
            Step::Nothing(outcome) => {
                promise.keep();
                landed();
                self.volume.vol.engine.pass(self.id);
                return Ended::Committed(outcome);
            }
            Step::Refused(outcome) => return Ended::Refused(outcome),
        };
        match half.finish(self, opponents, landed) {
            Ended::Committed(outcome) => {
                promise.keep();
                Ended::Committed(outcome)
            }
            Ended::Refused(outcome) => {
                if matches!(outcome, Outcome::Refused { .. } | Outcome::Unfinished { .. }) {
                    promise.leave();
                }
                Ended::Refused(outcome)
            }
        }
    }

    /// From the freeze to the decision.
    pub fn decide(&self, opponents: &dyn Opponents) -> Step {
        self.view.let_go_of_files();
        if self.view.is_given_up() {
            return Step::Refused(refused(given_up()));
        }
        let selection = Committed { patterns: &self.terms.patterns, volume: &self.volume };
        let changes = self.changes();
        let mut frozen = self.view.freeze(&selection);
        let quiet = match self.view.quiet_others() {
            Ok(quiet) => quiet,
            Err(why) => return Step::Refused(refused(never_quiet(why))),
        };
        let (conflict, mut stale) = self.validate();
        if let Some(conflict) = conflict.or_else(|| self.conflict(opponents)) {
            return Step::Refused(Outcome::Conflict { conflict, kept: false });
        }
        if !self.terms.read_only
            && let Err(lost) = self.view.claim(self.id, &frozen.writes)
        {
            return Step::Refused(self.lost_to(lost, false, opponents));
        }
        let reads = self.volume.vol.engine.stale_reads(self.id);
        for (object, _) in &reads {
            stale.push(HostPath(self.view.path_of_object(object)));
        }
        if let (true, Some((object, opponent))) = (self.must_be_of_one_moment(), reads.first()) {
            let (object, opponent) = (object.clone(), *opponent);
            let (mine, theirs) = (Side::Read, Side::Write);
            let why = systx_txn::Conflict { object, opponent, mine, theirs };
            let mut conflict = describe::conflict(&self.view, &why, true, opponents);
            conflict.stale = stale;
            return Step::Refused(Outcome::Conflict { conflict, kept: false });
        }
        if self.terms.read_only || frozen.is_empty() {
            let outcome = self.outcome(self.id, Summary::default(), vec![], stale, 0);
            return Step::Nothing(outcome);
        }
        // The decision does this once more: the publication before it may need these files.
        drop(quiet);
        let notes = self.open_elsewhere(&frozen);
        let dropped = changes.iter().filter(|c| c.dropped).count() as u64;
        let summary = describe::summary(changes.iter().filter(|c| !c.dropped));
        let writes = std::mem::take(&mut frozen.writes);
        let appended = std::mem::take(&mut frozen.appended);
        let meta = self.meta(self.id, TxnKind::Run);
        match decide(&self.volume, self.id, writes, &appended, meta) {
            Ok(decided) => {
                let lives_on = self.terms.lives_on.then(|| (Arc::clone(&self.view), frozen));
                let rest = Rest { lives_on, summary, stale, dropped, notes };
                Step::Decided(Box::new(Half { decided, rest }))
            }
            Err(error) => Step::Refused(self.not_installed(error, opponents)),
        }
    }

    fn not_installed(&self, error: NotInstalled, opponents: &dyn Opponents) -> Outcome {
        match error {
            NotInstalled::Lost => self.lost_to(None, false, opponents),
            NotInstalled::Outside(paths) => late_change(paths, false),
            NotInstalled::Failed(failure) => refused(failure),
            NotInstalled::Unfinished(failure) => {
                Outcome::Unfinished { id: self.id, failure, kept: false }
            }
        }
    }
}

impl Half {
    /// Makes durable, and installs; `landed` as in [`Transaction::commit_and`].
    fn finish(self, txn: &Transaction, opponents: &dyn Opponents, landed: impl FnOnce()) -> Ended {
        let Half { decided, rest } = self;
        let done = decided.finish(|stamps| rest.place(stamps, landed));
        rest.end(txn, opponents, done)
    }

    /// What is to be written, for others to do, while the program goes on; and what is left then.
    pub fn relax(self) -> (Decided, Rest) {
        self.decided.relax();
        (self.decided, self.rest)
    }
}

impl Rest {
    /// As the second step of [`Half::finish`].
    pub fn finish(
        self,
        txn: &Transaction,
        opponents: &dyn Opponents,
        written: Written,
        landed: impl FnOnce(),
    ) -> Ended {
        let done = written.place(|stamps| self.place(stamps, landed));
        self.end(txn, opponents, done)
    }

    fn place(&self, stamps: &[(Ix, Stamp)], landed: impl FnOnce()) {
        if let Some((view, frozen)) = &self.lives_on {
            view.rebase(frozen, stamps);
        }
        landed();
    }

    fn end(
        self,
        txn: &Transaction,
        opponents: &dyn Opponents,
        done: Result<Installed, NotInstalled>,
    ) -> Ended {
        let Rest { summary, stale, dropped, mut notes, .. } = self;
        match done {
            Ok(installed) => {
                notes.extend(installed.notes);
                let outcome = txn.outcome(txn.id, summary, installed.outside, stale, dropped);
                Ended::Committed(with_notes(outcome, notes))
            }
            Err(error) => Ended::Refused(txn.not_installed(error, opponents)),
        }
    }
}
