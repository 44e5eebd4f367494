//! The commit of a transaction, over all of its parts: the check ([`Transaction::decide`] begins
//! with it), the decision, and from there to its end ([`Half::finish`]), which needs the disk.  The
//! order of the steps is that of [`systx_commit`].

use super::{
    Committed, Ended, Lives, Transaction, given_up, late_change, never_quiet, refused, with_notes,
};
use crate::deferred::Promise;
use crate::describe::{self, Opponents};
use crate::protocol::{self, Asker, Failure, FailureKind, HostPath, Outcome, Summary};
use crate::stopped::{NotInstalled, outside_changes};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::progress::{self, Phase};
use systx_commit::{Commit, Decided, Durable, Installed, Part, Placed, Site, Stopped};
use systx_protocol::modes::Way;
use systx_store::{CommitMeta, Lease, TxnKind};
use systx_txn::{Order, Side};
use systx_vfs::freeze::Frozen;
use systx_vfs::locks::Relocked;
use systx_vfs::view::View;

/// How long a commit waits for a program outside that is at work under a lock which the
/// transaction has had as well, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);

fn locked_outside(path: Vec<u8>) -> Failure {
    let path = HostPath(path);
    let text = format!(
        "a program outside is at work under the lock of {path}, which the transaction has had as well: nothing committed"
    );
    Failure::new(FailureKind::Busy, text).hint("try again when it has given up the lock").path(path)
}

fn no_longer(path: Vec<u8>) -> Failure {
    let path = HostPath(path);
    let text = format!(
        "ended while it waited for a program outside that is at work under the lock of {path}: nothing committed"
    );
    Failure::new(FailureKind::State, text).path(path)
}

/// A transaction that everybody who was asked agrees with.
pub(super) struct Checked<'t> {
    /// Its parts, and what each changes.
    pub(super) parts: Vec<(&'t Transaction, Frozen)>,
    /// From before the check on: what another daemon commits is found by it, or comes later.
    stores: Vec<Lease>,
    stale: Vec<HostPath>,
    pub(super) summary: Summary,
    dropped: u64,
    /// What was written, though nothing is to be committed.
    unwanted: Option<String>,
}

/// A commit that cannot lose any more.
pub struct Half {
    decided: Decided,
    rest: Rest,
}

/// What the end of a commit needs beside the store.
pub struct Rest {
    /// What was committed, if its view goes on.
    lives_on: Option<LivesOn>,
    summary: Summary,
    stale: Vec<HostPath>,
    dropped: u64,
    notes: Vec<String>,
}

/// A view that goes on after the commit, and what was committed of it.
struct LivesOn {
    view: Arc<View>,
    frozen: Frozen,
    site: Arc<Site>,
}

/// How far a commit has come.
pub enum Step {
    /// Everybody who was asked agrees, and there is something to be written.
    Decided(Box<Half>),
    /// There is nothing to be written; it is to be passed by the engines ([`Transaction::pass`]).
    Nothing(Outcome),
    /// Nothing is committed, the transaction still is.
    Refused(Outcome),
}

impl Transaction {
    /// Commits everything (but what is never committed): the end of the transaction.
    pub fn commit(&self, asker: &Asker, opponents: &dyn Opponents) -> Ended {
        progress::phase(Phase::Checking, || 0);
        if let Some(failure) = self.cut_off() {
            return Ended::Refused(refused(failure));
        }
        let _locked = match self.lock_again(true, asker) {
            Ok(locked) => locked,
            Err(failure) => return Ended::Refused(refused(failure)),
        };
        if let Some(ended) = self.commit_by_certifier(opponents) {
            return ended;
        }
        self.commit_and(opponents, || ())
    }

    /// Locks once more what its programs have had locked, until the end of a commit. `over`: they
    /// have ended.
    ///
    /// # Errors
    /// A program outside has it locked, for too long or longer than the asker waits.
    pub fn lock_again(&self, over: bool, asker: &Asker) -> Result<Vec<Relocked>, Failure> {
        let locked = self.locked_again(over, asker);
        if over {
            self.parts().for_each(|part| part.view.let_go());
        }
        locked
    }

    fn locked_again(&self, over: bool, asker: &Asker) -> Result<Vec<Relocked>, Failure> {
        if self.terms.read_only || !self.parts().any(|part| part.view.is_changed()) {
            return Ok(Vec::new());
        }
        let until = Instant::now() + PATIENCE;
        let lost = |part: &Transaction| part.volume.vol.engine.conflict(part.id).is_some();
        loop {
            let again = self.parts().map(|part| part.view.lock_again(over));
            match again.collect::<Result<_, _>>() {
                Ok(locked) => return Ok(locked),
                // The check will tell.
                Err(_) if self.parts().any(lost) => return Ok(Vec::new()),
                Err(path) if Instant::now() >= until => return Err(locked_outside(path)),
                Err(_) if asker.waits(PAUSE) => {}
                Err(path) => return Err(no_longer(path)),
            }
        }
    }

    /// As [`Transaction::commit`], of a view that processes still work in.  `landed` is called when
    /// everything is in place and nobody else can touch it yet.
    pub fn commit_and(&self, opponents: &dyn Opponents, landed: impl FnOnce()) -> Ended {
        let ended = self.commit_now(opponents, landed);
        self.let_writers_in();
        ended
    }

    /// Programs that were kept from writing to what it has read may go on.
    pub fn let_writers_in(&self) {
        self.parts().for_each(|part| part.volume.vol.let_writers_in(self.id));
    }

    /// What it has lost to, a change outside included that nobody has looked for yet. With a
    /// conflict its end has to follow.
    pub fn lost_by_now(&self, opponents: &dyn Opponents) -> Option<protocol::Conflict> {
        let outside = || self.parts().find_map(|part| part.validate(opponents).0);
        self.conflict(opponents).or_else(outside)
    }

    /// Ends a transaction that has nothing to be written.
    pub fn pass(&self) {
        self.parts().for_each(|part| part.volume.vol.engine.abort(self.id));
    }

    fn commit_now(&self, opponents: &dyn Opponents, landed: impl FnOnce()) -> Ended {
        let checked = match self.check(opponents) {
            Ok(checked) => checked,
            Err(outcome) => return Ended::Refused(*outcome),
        };
        // Where something is committed, or that store would not know what became of it.
        let promise = match Promise::on(checked.keeper(self), &self.deferred.get()) {
            Ok(promise) => promise,
            Err(failure) => return Ended::Refused(refused(failure)),
        };
        let half = match self.decide_checked(checked, opponents) {
            Step::Decided(half) => half,
            Step::Nothing(outcome) => {
                promise.keep();
                landed();
                self.pass();
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
        match self.check(opponents) {
            Ok(checked) => self.decide_checked(checked, opponents),
            Err(outcome) => Step::Refused(*outcome),
        }
    }

    /// The stores of all parts that change something, in one order for all daemons.
    fn lease_changed(&self) -> Result<Vec<Lease>, Failure> {
        if self.terms.read_only {
            return Ok(Vec::new());
        }
        let mut changed: Vec<_> = self.parts().filter(|part| part.view.is_changed()).collect();
        changed.sort_by_key(|part| (part.volume.location.dev, &part.volume.location.store));
        changed.iter().map(|part| part.volume.turn()).collect()
    }

    /// Freezes all parts, and asks everybody who may be against it.  The parts are in the order of
    /// their volumes, in which locks of several are taken.
    pub(super) fn check(&self, opponents: &dyn Opponents) -> Result<Checked<'_>, Box<Outcome>> {
        let stores = self.lease_changed().map_err(|failure| Box::new(refused(failure)))?;
        let changes = self.changes();
        let mut in_order: Vec<&Transaction> = self.parts().collect();
        in_order.sort_by_key(|part| part.volume.vol.order());
        let (mut parts, mut stale) = (Vec::with_capacity(in_order.len()), Vec::new());
        let mut lost: Option<protocol::Conflict> = None;
        for part in in_order {
            let (frozen, conflict) = part.check_here(&mut stale, opponents)?;
            match conflict {
                // All that it has read is to be told of, whatever the part.
                Some(mut conflict) if self.must_be_of_one_moment() => {
                    stale.append(&mut conflict.stale);
                    lost.get_or_insert(conflict);
                }
                Some(conflict) => return Err(Outcome::Conflict { conflict, kept: false }.into()),
                None => {}
            }
            parts.push((part, frozen));
        }
        stale.sort();
        stale.dedup();
        if let Some(mut conflict) = lost {
            conflict.stale = stale;
            return Err(Outcome::Conflict { conflict, kept: false }.into());
        }
        let dropped = changes.iter().filter(|c| c.dropped).count() as u64;
        let summary = describe::summary(changes.iter().filter(|c| !c.dropped));
        let unwanted = self.read_only_note(&changes);
        Ok(Checked { parts, stores, stale, summary, dropped, unwanted })
    }

    /// As [`Transaction::check`], of one part; also what its reads have lost to.
    fn check_here(
        &self,
        stale: &mut Vec<HostPath>,
        opponents: &dyn Opponents,
    ) -> Result<(Frozen, Option<protocol::Conflict>), Box<Outcome>> {
        self.view.let_go_of_files();
        if self.view.is_given_up() {
            return Err(refused(given_up()).into());
        }
        let selection = Committed { patterns: &self.terms.patterns, volume: &self.volume };
        let frozen = self.view.freeze(&selection);
        // Until the end of this check; the decision keeps them out once more.
        let _quiet = self.view.quiet_others().map_err(|why| Box::new(refused(never_quiet(why))))?;
        let (conflict, old) = self.validate(opponents);
        stale.extend(old);
        if conflict.is_some() {
            return Ok((frozen, conflict));
        }
        if let Some(conflict) = self.conflict(opponents) {
            return Err(Outcome::Conflict { conflict, kept: false }.into());
        }
        if !self.terms.read_only
            && let Err(lost) = self.view.claim(self.id, &frozen.writes)
        {
            return Err(self.lost_to(lost, false, opponents).into());
        }
        let reads = self.volume.vol.engine.stale_reads(self.id);
        stale.extend(reads.iter().map(|(o, _)| HostPath(self.view.path_of_object(o))));
        let first = reads.first().filter(|_| self.must_be_of_one_moment());
        let conflict = first.map(|(object, opponent)| {
            let (object, opponent) = (object.clone(), *opponent);
            let (mine, theirs) = (Side::Read, Side::Write);
            let why = systx_txn::Conflict { object, opponent, mine, theirs };
            describe::conflict(&self.view, &why, true, opponents)
        });
        Ok((frozen, conflict))
    }

    fn decide_checked(&self, checked: Checked<'_>, opponents: &dyn Opponents) -> Step {
        let Checked { parts, stores: _stores, stale, summary, dropped, unwanted } = checked;
        let order = self.volume.vol.engine.place_in_order(self.id).map(Order::step);
        let nothing = self.terms.read_only || parts.iter().all(|(_, frozen)| frozen.is_empty());
        if nothing && order.is_none() {
            let outcome = self.outcome(self.id, Summary::default(), vec![], stale, 0);
            let notes = unwanted.into_iter().collect();
            return Step::Nothing(with_notes(outcome, notes));
        }
        if !nothing && let Some(certifier) = self.certifier() {
            return Step::Refused(refused(certifier.not_asked(Way::Path)));
        }
        let summary = if nothing { Summary::default() } else { summary };
        let (mut notes, mut lives_on) = (Vec::from_iter(unwanted), None);
        let mut all = Vec::with_capacity(parts.len());
        for (part, mut frozen) in parts {
            let (mut writes, mut appended) = Default::default();
            if !nothing && !frozen.is_empty() {
                notes.extend(part.open_elsewhere(&frozen));
                writes = std::mem::take(&mut frozen.writes);
                appended = std::mem::take(&mut frozen.appended);
            }
            let site = Arc::clone(&part.volume.site);
            all.push(Part { site: Arc::clone(&site), writes, appended });
            if self.terms.lives != Lives::Command && !nothing {
                lives_on = Some(LivesOn { view: Arc::clone(&part.view), frozen, site });
            }
        }
        let meta = CommitMeta { order, ..self.meta(self.id, TxnKind::Run, summary) };
        let commit = Commit::new(self.id, meta, all);
        match commit.reserve().and_then(|reserved| reserved.decide()) {
            Ok(decided) => {
                let rest = Rest { lives_on, summary, stale, dropped, notes };
                Step::Decided(Box::new(Half { decided, rest }))
            }
            Err(stopped) => Step::Refused(self.not_installed(stopped.into(), opponents)),
        }
    }

    fn not_installed(&self, error: NotInstalled, opponents: &dyn Opponents) -> Outcome {
        match error {
            NotInstalled::Lost(at, why) => {
                let part = self.parts().find(|part| part.volume.vol.order() == at);
                part.unwrap_or(self).lost_to(Some(*why), false, opponents)
            }
            NotInstalled::Outside(paths) => late_change(paths, false),
            NotInstalled::Failed(failure) => refused(failure),
            NotInstalled::Unfinished(failure) => {
                Outcome::Unfinished { id: self.id, failure, kept: false }
            }
        }
    }
}

impl<'t> Checked<'t> {
    /// The part whose store keeps what is promised for after the commit.
    fn keeper(&self, whole: &'t Transaction) -> &'t Transaction {
        let changed = self.parts.iter().find(|(_, frozen)| !frozen.is_empty());
        changed.or(self.parts.first()).map_or(whole, |(part, _)| part)
    }
}

impl Half {
    /// Makes durable, and installs; `landed` as in [`Transaction::commit_and`].
    fn finish(self, txn: &Transaction, opponents: &dyn Opponents, landed: impl FnOnce()) -> Ended {
        let Half { decided, rest } = self;
        rest.finish(txn, opponents, decided.durable(), landed)
    }

    /// What is to be written, for others to do, while the program goes on; and what is left then.
    pub fn relax(self) -> (Decided, Rest) {
        self.decided.relax();
        (self.decided, self.rest)
    }
}

impl Rest {
    /// From the record to the end.
    pub fn finish(
        self,
        txn: &Transaction,
        opponents: &dyn Opponents,
        durable: Result<Durable, Stopped>,
        landed: impl FnOnce(),
    ) -> Ended {
        let done = durable.and_then(Durable::place).map(|placed| self.land(placed, landed));
        let Rest { summary, stale, dropped, mut notes, .. } = self;
        match done {
            Ok(installed) => {
                let outside = outside_changes(&installed);
                notes.extend(installed.notes);
                let outcome = txn.outcome(txn.id, summary, outside, stale, dropped);
                Ended::Committed(with_notes(outcome, notes))
            }
            Err(stopped) => Ended::Refused(txn.not_installed(stopped.into(), opponents)),
        }
    }

    /// A view that goes on becomes one of what is in place, before anybody else sees that.
    fn land(&self, placed: Placed, landed: impl FnOnce()) -> Installed {
        if let Some(LivesOn { view, frozen, site }) = &self.lives_on {
            view.rebase(frozen, placed.stamps(site));
        }
        landed();
        placed.release()
    }
}
