//! A transaction over several file systems: a transaction for each, with one id, of which the first is on the
//! table and has the others.  They are begun together, lose together and end together.
//!
//! Each has a view, an engine and a store of its own.  A lost conflict on one of them dooms the transaction: the
//! views of all are cut off at once.  At the commit every part is decided, also those that were only read, before the
//! first one is made durable; so it has a place in the order of each engine, and whoever has another order
//! with one of them has lost, or made this one lose, at the access.

use super::{Committed, Ended, Transaction, given_up, late_change, never_quiet, refused};
use crate::deferred::Promise;
use crate::describe::{self, Opponents};
use crate::install::NotInstalled;
use crate::joint::{self, Share};
use crate::protocol::{Doorbell, Failure, FailureKind, HostPath, Outcome, Summary};
use crate::transactions::is_below;
use crate::volume::OpenVolume;
use std::sync::{Arc, OnceLock, Weak};
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};
use systx_store::TxnKind;
use systx_txn::{BeginOptions, Side};
use systx_vfs::content::Budget;
use systx_vfs::view::{Ids, View};

/// What the parts share: what happens when one has lost, and what private data they may have.
pub(super) struct Alarm {
    doorbell: Option<Doorbell>,
    views: Mutex<Vec<Weak<View>>>,
    budget: OnceLock<Budget>,
}

impl Alarm {
    pub(super) fn new(doorbell: Option<Doorbell>) -> Arc<Alarm> {
        let views = Mutex::new(rank::LEAF, Vec::new());
        Arc::new(Alarm { doorbell, views, budget: OnceLock::new() })
    }

    pub(super) fn budget(&self, make: impl FnOnce() -> Budget) -> Budget {
        self.budget.get_or_init(make).clone()
    }

    pub(super) fn add(&self, view: &Arc<View>) {
        self.views.lock().push(Arc::downgrade(view));
    }

    /// Cuts off all views.  No lock of a view is taken.
    pub(super) fn ring(&self) {
        let views = self.views.lock().clone();
        for view in views.iter().filter_map(Weak::upgrade) {
            view.cancel();
        }
        if let Some(doorbell) = &self.doorbell {
            doorbell.ring();
        }
    }
}

impl Transaction {
    /// Begins on several volumes; see [`Transaction::begin`].
    ///
    /// # Errors
    /// The root of a volume cannot be read.
    pub fn begin_several(
        id: TxnId,
        volumes: &[Arc<OpenVolume>],
        terms: &super::Terms,
        options: &BeginOptions,
        ids: &Ids,
        doorbell: Doorbell,
    ) -> Result<Arc<Transaction>, Failure> {
        let alarm = Alarm::new(Some(doorbell));
        let mut parts: Vec<Arc<Transaction>> = Vec::with_capacity(volumes.len());
        for volume in volumes {
            let first = parts.is_empty();
            // Each engine has a clock of its own: seniority on one means nothing on another.
            let timestamp = options.timestamp.filter(|_| first);
            let (options, terms) = (BeginOptions { timestamp, ..options.clone() }, terms.clone());
            let seen = (ids.clone(), volume.mount_points());
            let (volume, alarm) = (Arc::clone(volume), Arc::clone(&alarm));
            match Transaction::begin_over(id, volume, terms, options, seen, alarm) {
                Ok(part) => parts.push(part),
                Err(failure) => {
                    for part in parts {
                        part.abort();
                    }
                    return Err(failure);
                }
            }
        }
        if parts.is_empty() {
            return Err(Failure::new(FailureKind::Internal, "a transaction without a volume"));
        }
        let first = parts.remove(0);
        let _ = first.others.set(parts);
        Ok(first)
    }

    /// Its parts on further file systems.
    pub fn others(&self) -> &[Arc<Transaction>] {
        self.others.get().map_or(&[], Vec::as_slice)
    }

    /// All parts, this one first.
    pub fn parts(&self) -> impl Iterator<Item = &Transaction> {
        std::iter::once(self).chain(self.others().iter().map(|o| &**o))
    }

    /// The `n`-th part.
    pub fn part(&self, n: u32) -> Option<&Transaction> {
        self.parts().nth(n as usize)
    }

    /// Whether one of its parts is on this volume.
    pub fn works_on(&self, volume: &Arc<OpenVolume>) -> bool {
        self.parts().any(|part| Arc::ptr_eq(&part.volume, volume))
    }

    /// As [`Transaction::commit`], of all parts.
    pub(super) fn commit_several(&self, opponents: &dyn Opponents) -> Ended {
        let mut parts: Vec<&Transaction> = self.parts().collect();
        parts.sort_by_key(|part| part.volume.vol.order());
        for part in &parts {
            part.view.let_go();
        }
        let ended = self.commit_parts(&parts, opponents);
        for part in &parts {
            part.volume.vol.let_writers_in(self.id);
        }
        ended
    }

    fn commit_parts(&self, parts: &[&Transaction], opponents: &dyn Opponents) -> Ended {
        let changes = self.changes();
        let (mut shares, mut stale, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        let mut empty = true;
        for part in parts {
            part.view.let_go_of_files();
            if part.view.is_given_up() {
                return Ended::Refused(refused(given_up()));
            }
            let selection = Committed { patterns: &self.terms.patterns, volume: &part.volume };
            let mut frozen = part.view.freeze(&selection);
            let quiet = match part.view.quiet_others() {
                Ok(quiet) => quiet,
                Err(why) => return Ended::Refused(refused(never_quiet(why))),
            };
            let (conflict, old) = part.validate();
            stale.extend(old);
            if let Some(conflict) = conflict.or_else(|| self.conflict(opponents)) {
                return Ended::Refused(Outcome::Conflict { conflict, kept: false });
            }
            if !self.terms.read_only
                && let Err(lost) = part.view.claim(self.id, &frozen.writes)
            {
                return part.lost(lost, false, opponents);
            }
            let reads = part.volume.vol.engine.stale_reads(self.id);
            stale.extend(reads.iter().map(|(o, _)| HostPath(part.view.path_of_object(o))));
            if let (true, Some((object, opponent))) = (self.must_be_of_one_moment(), reads.first())
            {
                let (object, opponent) = (object.clone(), *opponent);
                let (mine, theirs) = (Side::Read, Side::Write);
                let why = systx_txn::Conflict { object, opponent, mine, theirs };
                let conflict = describe::conflict(&part.view, &why, true, opponents);
                return Ended::Refused(Outcome::Conflict { conflict, kept: false });
            }
            drop(quiet);
            let mut writes = systx_store::writeset::WriteSet::default();
            if !frozen.is_empty() {
                empty = false;
                notes.extend(part.open_elsewhere(&frozen));
                writes = std::mem::take(&mut frozen.writes);
            }
            shares.push(Share { volume: &part.volume, writes, appended: frozen.appended });
        }
        // Where something is committed, or the store would not know what became of it.
        let at = shares.iter().position(|s| !s.writes.objects.is_empty()).unwrap_or(0);
        let promise = match parts.get(at).map(|part| Promise::on(part, &self.deferred.get())) {
            Some(Ok(promise)) => Some(promise),
            Some(Err(failure)) => return Ended::Refused(refused(failure)),
            None => None,
        };
        if self.terms.read_only || empty {
            parts.iter().for_each(|part| part.volume.vol.engine.abort(self.id));
            let summary = Summary::default();
            promise.into_iter().for_each(Promise::keep);
            return Ended::Committed(self.outcome(self.id, summary, vec![], stale, 0));
        }
        let dropped = changes.iter().filter(|c| c.dropped).count() as u64;
        let summary = describe::summary(changes.iter().filter(|c| !c.dropped));
        match joint::install_several(shares, self.id, &self.meta(self.id, TxnKind::Run)) {
            Ok((outside, more)) => {
                promise.into_iter().for_each(Promise::keep);
                notes.extend(more);
                let outcome = self.outcome(self.id, summary, outside, stale, dropped);
                Ended::Committed(super::with_notes(outcome, notes))
            }
            Err(NotInstalled::Lost) => self.lost(None, false, opponents),
            Err(NotInstalled::Outside(paths)) => Ended::Refused(late_change(paths, false)),
            Err(NotInstalled::Failed(failure)) => {
                promise.into_iter().for_each(Promise::leave);
                Ended::Refused(refused(failure))
            }
            Err(NotInstalled::Unfinished(failure)) => {
                promise.into_iter().for_each(Promise::leave);
                Ended::Refused(Outcome::Unfinished { id: self.id, failure, kept: false })
            }
        }
    }

    /// As [`Transaction::commit_part`]: what lies below `paths` must be on one file system.
    pub(super) fn commit_part_of_several(
        &self,
        id: TxnId,
        paths: &[HostPath],
        opponents: &dyn Opponents,
    ) -> Ended {
        if let Some(conflict) = self.conflict(opponents) {
            return Ended::Refused(Outcome::Conflict { conflict, kept: true });
        }
        let below = |path: &[u8]| paths.iter().any(|top| is_below(path, &top.0));
        let touched = |part: &&Transaction| part.view.changes().iter().any(|c| below(&c.path));
        let mut parts = self.parts().filter(touched);
        match (parts.next(), parts.next()) {
            (Some(part), None) => part.commit_part_here(id, paths, opponents),
            _ => {
                let text = "these paths are on several file systems";
                let failure = Failure::new(FailureKind::Unsupported, text)
                    .hint("commit those of one file system at a time, or all of the transaction");
                Ended::Refused(Outcome::Refused { failure, kept: true })
            }
        }
    }
}
