//! A transaction over several file systems: a transaction for each, with one id, of which the first
//! is on the table and has the others. They are begun together, lose together and end together.
//!
//! Each has a view, an engine and a store of its own. A lost conflict on one of them dooms the
//! transaction: the views of all are cut off at once. At the commit every part is decided, also
//! those that were only read, before the first one is made durable; so it has a place in the order
//! of each engine, and whoever has another order with one of them has lost, or made this one lose,
//! at the access.

use super::{Ended, Transaction};
use crate::describe::Opponents;
use crate::protocol::{Doorbell, Failure, FailureKind, HostPath, Outcome};
use crate::volume::OpenVolume;
use std::sync::{Arc, OnceLock, Weak};
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};
use systx_protocol::is_below;
use systx_protocol::modes::{self, Way};
use systx_txn::BeginOptions;
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
        (ids, unprotected): (&Ids, &[HostPath]),
        doorbell: Doorbell,
    ) -> Result<Arc<Transaction>, Failure> {
        let alarm = Alarm::new(Some(doorbell));
        let mut parts: Vec<Arc<Transaction>> = Vec::with_capacity(volumes.len());
        for volume in volumes {
            let first = parts.is_empty();
            // Each engine has a clock of its own: seniority on one means nothing on another.
            let timestamp = options.timestamp.filter(|_| first);
            let (options, terms) = (BeginOptions { timestamp, ..options.clone() }, terms.clone());
            let seen = (ids.clone(), volume.mount_points(unprotected, true));
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
                let failure = modes::refusal(Way::Part, Way::Several, "");
                Ended::Refused(Outcome::Refused { failure, kept: true })
            }
        }
    }
}
