//! The order of plain requests among transactions: a [`Gate`] that asks the conflict engine about
//! what is changed, and the publication under way about what is read.

use super::gate::Gate;
use crate::behalf;
use crate::change::{Change, Place};
use crate::inode_locks::Ticket;
use crate::publication::{Admitted, Held, Marked};
use crate::shared::SharedVolume;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};
use systx_base::sync::ReadGuard;
use systx_base::{Oid, TxnId};
use systx_store::io::{HostId, Stamp};
use systx_txn::{Caller as Opponent, ObjectRef, Plain, Stall};
use systx_vfs::api::{Caller, Reply, Valid};
use systx_vfs::client::{self, LOOK};

/// How long a plain mutation of a file may be held for an aged transaction.
pub const STALL: Duration = Duration::from_millis(500);

/// See the module.
pub struct Order {
    vol: Arc<SharedVolume>,
    stall: Duration,
    /// Changes of names are never held.
    names_go: bool,
    /// The kernel has the locks of view 0 while it asks.
    has_locks: bool,
}

/// A request that is held, from the first commit that does so on.
struct Waits<'v>(&'v AtomicUsize);

impl Waits<'_> {
    fn in_(count: &AtomicUsize) -> Waits<'_> {
        count.fetch_add(1, AcqRel);
        Waits(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

impl Order {
    /// The order of a volume. `stall`: how long a mutation may be held for an aged transaction, see
    /// [`systx_txn::Engine::reserve`].
    pub fn new(vol: Arc<SharedVolume>, stall: Duration) -> Order {
        Order { vol, stall, names_go: false, has_locks: true }
    }

    /// The same where the transactions for which it is held need the kernel's lock of the directory
    /// themselves: who is held in the middle of a change of names has that lock, so there no such
    /// change is held.
    pub fn of_routed(vol: Arc<SharedVolume>, stall: Duration) -> Order {
        Order { vol, stall, names_go: true, has_locks: true }
    }

    /// The same for a view beside view 0, whose inodes are others in the kernel.
    pub(super) fn aside(vol: Arc<SharedVolume>, stall: Duration) -> Order {
        Order { vol, stall, names_go: false, has_locks: false }
    }

    /// Waits until these objects may be read and changed; they may as long as the guard is held.
    ///
    /// # Errors
    /// `EINTR`: who asks has been killed.
    fn admit(
        &self,
        reads: &[ObjectRef<'_>],
        changes: (&[ObjectRef<'_>], Option<Oid>),
        held: &mut Option<Held>,
    ) -> Reply<ReadGuard<'_, Vec<Arc<Marked>>>> {
        let mut arrival = None;
        let mut waits = None;
        let mut looked = Instant::now();
        let is_change = !changes.0.is_empty();
        loop {
            let marks = self.vol.marks.read();
            let later = |marked: &&Arc<Marked>| {
                marked.admit(reads, changes, &mut arrival) == Admitted::Later
            };
            let Some(marked) = marks.iter().find(later) else { return Ok(marks) };
            // Who installs this commit may be asking who has a file open, for which the kernel
            // wants to know its mode.
            if is_about_attributes(reads, changes.0) && client::is_own() {
                return Ok(marks);
            }
            let marked = Arc::clone(marked);
            // Before the lock is given back, so that the release cannot miss it.
            if is_change && !held.as_ref().is_some_and(|held| held.is_of(&marked)) {
                *held = Some(marked.hold());
            }
            waits.get_or_insert_with(|| Waits::in_(&self.vol.held));
            drop(marks);
            marked.wait(is_change);
            if looked.elapsed() >= LOOK {
                client::check()?;
                looked = Instant::now();
            }
        }
    }
}

impl Order {
    /// Waits for an aged transaction; whether it has ended in time.
    fn wait_for_aged(&self, aged: TxnId, until: Instant) -> Reply<bool> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if self.vol.engine.wait_ended(aged, left.min(LOOK)) {
                return Ok(true);
            }
            client::check()?;
        }
    }
}

impl Gate for Order {
    fn read(&self, reads: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        let _marks = self.admit(reads, (&[], None), &mut None)?;
        act()
    }

    fn mutate(&self, change: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        let engine = &self.vol.engine;
        // Plain views that work by way of this mount ask for others.
        let change = Change { by: behalf::behind(change.by), ..change };
        let by = Opponent::new(change.by.tid, change.by.uid, b"");
        let until = Instant::now() + self.stall;
        if self.has_locks {
            self.vol.landing.asks(&change);
        }
        // To the end of the change.
        let mut held = None;
        let is_name = |o: &ObjectRef<'_>| matches!(o, ObjectRef::Entry { .. });
        let goes = self.names_go && change.writes.iter().any(is_name);
        let mut stall = if change.may_stall && !goes { Stall::Bounded } else { Stall::Never };
        loop {
            // Kept to the end: whoever decides a commit, or doubts a version, waits for it.
            let marks =
                self.admit(change.reads, (change.writes, change.subject.map(|s| s.0)), &mut held)?;
            match engine.plain_mutation(change.writes, by, stall) {
                Plain::Decided(mutation) => {
                    if !mutation.doomed().is_empty() {
                        mutation.tell(opponent(change.by));
                    }
                    if self.vol.past.is_open() {
                        self.vol.past.keep(&change);
                    }
                    let recorded = mutation.id().is_some();
                    let before = if recorded { stamp_of(change.subject) } else { None };
                    if self.has_locks {
                        self.vol.landing.performs(&change);
                    }
                    let done = act();
                    if let (Some(before), Some(after)) =
                        (before, if recorded { stamp_of(change.subject) } else { None })
                    {
                        self.vol.note_own(before, after);
                    }
                    match done {
                        Ok(()) => drop(mutation),
                        Err(_) => mutation.failed(),
                    }
                    return done;
                }
                Plain::Wait(winner) => {
                    drop(marks);
                    while !engine.wait_installed_for(winner, LOOK) {
                        client::check()?;
                    }
                }
                Plain::Hold(aged) => {
                    drop(marks);
                    if !self.wait_for_aged(aged, until)? {
                        stall = Stall::Never;
                    }
                }
            }
        }
    }

    fn is_publishing(&self) -> bool {
        self.vol.is_publishing.load(Acquire) || self.vol.afterwards.is_now()
    }

    fn valid(&self, oid: Oid, name: Option<&[u8]>) -> Valid {
        let zero = Some(Duration::ZERO);
        // Attributes may come along of anything that changes: none are to be kept meanwhile, nor
        // right afterwards.
        let marks = self.vol.marks.read();
        if marks.is_empty() {
            let attr = if self.vol.afterwards.is_now() { zero } else { None };
            return Valid { attr, ..Valid::default() };
        }
        let changes = marks.iter().any(|marked| marked.has_name(oid, name));
        Valid { name: if changes { zero } else { None }, attr: zero, dir_attr: None }
    }

    fn born(&self, id: HostId) {
        if self.vol.past.is_open() {
            self.vol.past.born(id);
        }
    }

    fn may_keep(&self, oid: Oid) -> bool {
        !self.is_publishing()
            || !self.vol.marks.read().iter().any(|marked| marked.has_name(oid, None))
    }

    fn file_barrier(&self, ticket: Ticket) {
        self.vol.inode_locks.stay(ticket);
    }

    fn changed_mode(&self, file: HostId) {
        for guarded in self.vol.guarded_now() {
            if let Some(node) = guarded.plain.node_of(file)
                && let Err(errno) = guarded.caches.drop_attributes(node)
            {
                tracing::warn!(%errno, ?node, "the kernel has an old mode");
            }
        }
    }
    fn wait_durable(&self) {
        self.vol.wait_durable();
    }

    fn land(&self, file: HostId) -> bool {
        self.vol.land(file)
    }

    fn before_writing(&self, file: HostId) -> Reply<()> {
        let until = Instant::now() + self.stall;
        while let Some(aged) = self.vol.reader_of(file) {
            if !self.wait_for_aged(aged, until)? {
                break;
            }
        }
        if self.has_locks {
            self.vol.wait_dropped(file);
        }
        Ok(())
    }

    fn appended_elsewhere(&self, file: HostId) -> bool {
        if !self.has_locks {
            return false;
        }
        // The caller has the file's lock until it is answered.
        let vol = Arc::clone(&self.vol);
        let drop = move || vol.drop_changed(file);
        std::thread::Builder::new().name("systx-drop".into()).spawn(drop).is_ok()
    }

    fn barrier(&self, dir: Oid) {
        // Of one at most: the others are decided.
        let marks: Vec<_> = self.vol.marks.read().iter().cloned().collect();
        marks.iter().for_each(|marked| marked.reached(dir, true));
    }
}

fn is_about_attributes(reads: &[ObjectRef<'_>], changes: &[ObjectRef<'_>]) -> bool {
    let is_one = |o: &ObjectRef<'_>| matches!(o, ObjectRef::Attr(_) | ObjectRef::Size(_));
    changes.is_empty() && reads.iter().all(is_one)
}

fn stamp_of(subject: Option<(Oid, Place<'_>)>) -> Option<Stamp> {
    subject?.1.stamp().ok()
}

/// Whom the losers of a request are told of.
fn opponent(by: Caller) -> Opponent {
    Opponent::new(by.tid, by.uid, &client::command(by.tid))
}
