//! What a transaction has recorded in the conflict engine, and how it stands.
//!
//! Whatever a view shows is recorded here first.  What a snapshot shows does not change, whatever
//! others do, so nothing is recorded of it.

use crate::api::Reply;
use crate::claim::{overlaps, written};
use crate::neighbours::{Before, Neighbours};
use crate::node::Base;
use crate::snapshot::Frozen;
use crate::volume::Volume;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use systx_base::{Oid, TxnId};
use systx_store::io::{Handle, HostId, Tree};
use systx_store::writeset::WriteSet;
use systx_txn::{Access, Conflict, Isolation, Object, ObjectRef, Opponent, Side};

/// See the module.
pub(crate) struct Workset {
    pub txn: TxnId,
    pub isolation: Isolation,
    /// The moment that the view shows of guarded directories, if it is a snapshot's.
    frozen: Option<Frozen>,
    vol: Arc<Volume>,
    others: Arc<dyn Neighbours>,
    /// Requests that wait for a commit which is being installed.
    waiting: AtomicUsize,
    lost: AtomicBool,
    /// How long a read of content that would lose waits for the winner.
    patience: Duration,
}

impl Workset {
    /// Of a transaction that has begun and has met nothing.
    pub fn new(
        others: &Arc<dyn Neighbours>,
        frozen: Option<Frozen>,
        (txn, isolation): (TxnId, Isolation),
    ) -> Workset {
        Workset {
            txn,
            isolation,
            frozen,
            vol: Arc::clone(others.volume()),
            others: Arc::clone(others),
            waiting: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
            patience: Duration::ZERO,
        }
    }

    /// See [`crate::view::View::set_patience`].
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// See [`crate::view::View::cancel`].
    pub fn cancel(&self) {
        self.lost.store(true, Ordering::Release);
        self.others.let_writers_in(self.txn);
    }

    /// See [`crate::view::View::alive`].
    pub fn alive(&self) -> Reply<()> {
        if self.lost.load(Ordering::Acquire) { Err(Errno::CANCELED) } else { Ok(()) }
    }

    /// The backing file system as the view shows it.
    pub fn tree(&self) -> &Arc<dyn Tree> {
        self.frozen.as_ref().map_or(&self.vol.tree, |frozen| &frozen.tree)
    }

    /// Records an access; returns whether a commit had to be waited for, after which what was seen
    /// before may be old.
    fn access(&self, ask: impl Fn() -> Access) -> Reply<bool> {
        let mut waited = false;
        loop {
            match ask() {
                Access::Granted => return Ok(waited),
                Access::Doomed => {
                    self.cancel();
                    return Err(Errno::CANCELED);
                }
                Access::Wait(winner) => {
                    self.waiting(|| self.vol.wait_installed(self.txn, winner))?;
                    waited = true;
                }
            }
        }
    }

    fn waiting(&self, wait: impl FnOnce() -> Reply<()>) -> Reply<()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = wait();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        waited
    }

    /// Before these pages of a file are read or written: waits for a running transaction that is in
    /// the way, see [`Workset::set_patience`].  The caller holds no lock.
    ///
    /// # Errors
    /// `EINTR`: who asks has been killed.
    pub fn stall(&self, oid: Oid, pages: Range<u64>, writes: bool) -> Reply<()> {
        let (first, last) = (pages.start, pages.end.saturating_sub(1));
        let what = (ObjectRef::Pages { oid, first, last }, writes);
        self.waiting(|| self.vol.stall(self.txn, what, self.patience))
    }

    /// Whether an access may wait.
    pub fn is_patient(&self) -> bool {
        !self.patience.is_zero() && self.alive().is_ok()
    }

    /// See [`crate::api::Requests::waits`].
    pub fn waits_for_commit(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub fn read_of(&self, object: ObjectRef<'_>) -> Reply<bool> {
        if self.is_frozen(oid_in(object)) {
            return Ok(false);
        }
        self.access(|| self.vol.engine.read(self.txn, object))
    }

    pub fn depend_on(&self, object: ObjectRef<'_>) -> Reply<()> {
        if self.is_frozen(oid_in(object)) {
            return Ok(());
        }
        self.access(|| self.vol.engine.depend(self.txn, object)).map(|_| ())
    }

    pub fn write_of(&self, object: ObjectRef<'_>) -> Reply<()> {
        self.alive()?;
        if self.is_frozen(oid_in(object)) {
            return Ok(());
        }
        if self.isolation == Isolation::Snapshot {
            // First committer wins, by what is left at the end: see `claim`.
            return self.read_of(object).map(|_| ());
        }
        self.access(|| self.vol.engine.write(self.txn, object)).map(|_| ())
    }

    /// Something of the backing file system is not what this view met: an outsider changed it. The
    /// transaction loses; under snapshot isolation validation will list the stale read, but there
    /// is nothing left to read.
    pub fn outsider(&self, object: ObjectRef<'_>) -> Errno {
        if self.isolation == Isolation::Snapshot {
            return Errno::STALE;
        }
        let (mine, theirs) = (Side::Read, Side::Write);
        let opponent = Opponent::Outside;
        let why = Conflict { object: object.to_object(), opponent, mine, theirs };
        self.vol.engine.doom(self.txn, why);
        self.cancel();
        Errno::CANCELED
    }

    /// As [`Workset::outsider`], where snapshot isolation can go on with what it has.
    pub fn lose_unless_snapshot(&self, object: ObjectRef<'_>) -> Reply<()> {
        match self.isolation {
            Isolation::Snapshot => Ok(()),
            Isolation::Serializable => Err(self.outsider(object)),
        }
    }

    /// Whether an object that was met is of a snapshot: it does not change, whatever others do.
    pub fn is_frozen(&self, oid: Oid) -> bool {
        self.frozen.as_ref().is_some_and(|frozen| frozen.covers(oid))
    }

    /// Whether it shows a snapshot of guarded directories.
    pub fn is_snapshot(&self) -> bool {
        self.frozen.is_some()
    }

    /// Whether the snapshot that it shows was given up, because there was no room to keep it.
    pub fn is_given_up(&self) -> bool {
        self.frozen.as_ref().is_some_and(Frozen::is_given_up)
    }

    /// A handle as the file system itself knows it.
    pub fn bare<'h>(&self, handle: &'h Handle) -> &'h Handle {
        self.frozen.as_ref().map_or(handle, |frozen| frozen.moment.bare(handle))
    }

    /// Whether an object that is met for the first time is of the snapshot.
    pub fn meet_frozen(&self, dir: Option<&Base>, id: HostId) -> bool {
        let Some(frozen) = &self.frozen else { return false };
        let covered = frozen.covers_in(dir.map(Base::oid), id);
        if covered {
            frozen.meet(id.oid());
        }
        covered
    }

    /// Waits until the kernel knows what the transaction has seen of plain changes.
    pub fn land(&self, before: Before) {
        let before = if self.is_snapshot() { Before::EndOfSnapshot } else { before };
        self.others.land_seen(self.txn, before);
    }

    /// See [`crate::view::View::claim`].
    pub fn claim(&self, id: TxnId, set: &WriteSet) -> Result<(), Option<Conflict>> {
        let engine = &self.vol.engine;
        let objects = written(&self.vol, set);
        for object in &objects {
            loop {
                match engine.write(id, object.as_ref()) {
                    Access::Granted => break,
                    Access::Doomed => return Err(None),
                    Access::Wait(winner) => engine.wait_installed(winner),
                }
            }
        }
        if self.isolation != Isolation::Snapshot {
            return Ok(());
        }
        // Only now: from here on nobody can commit a change of what was claimed.
        let stale: Vec<(Object, Opponent)> = engine.stale_reads(self.txn);
        for (object, opponent) in stale {
            if objects.iter().any(|mine| overlaps(mine, &object)) {
                let (mine, theirs) = (Side::Write, Side::Write);
                return Err(Some(Conflict { object, opponent, mine, theirs }));
            }
        }
        Ok(())
    }
}

/// The inode that an object of the engine is about.
fn oid_in(object: ObjectRef<'_>) -> Oid {
    match object {
        ObjectRef::Entry { dir, .. } | ObjectRef::List(dir) => dir,
        ObjectRef::Attr(oid) | ObjectRef::Size(oid) | ObjectRef::Pages { oid, .. } => oid,
    }
}
