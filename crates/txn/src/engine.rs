//! The public face of the engine: one lock around [`State`], and the calls that have to be made
//! without it.
//!
//! Lock order: the engine's lock ([`rank::ENGINE`]) is held for the time of one access, or of
//! [`SWEEP`] records of an end; nothing is called while it is held but the policy. The gate's lock
//! is never held together with it.
//!
//! Waiting: these calls block. [`Engine::wait_installed`], of an active transaction, a plain read
//! or a plain mutation, for a decided unit. [`Engine::wait_ended`], of a plain mutation, for an
//! active transaction that asks for time; it is bounded. [`Stalled::wait`](crate::Stalled::wait),
//! of a read that would lose, for the winner. The first [`Engine::begin`], for the mutations inside
//! the gate. No circle of waits can arise. Units come in four kinds:
//! 1. decided, or inside the gate: never told to wait;
//! 2. active transactions: wait for kind 1 only, or for one of kind 2 that does not wait for one of
//!    kind 2 (`stall.rs`);
//! 3. plain requests not decided yet: wait for kinds 1 and 2.  They hold nothing, since a mutation
//!    gets all its objects at once or none, so nobody waits for them;
//! 4. transactions that do not exist yet, in `begin`: wait for kind 1; nobody knows them. With a
//!    scope, in line for their turn, or after a loss (`again.rs`): wait for kinds 1 and 2, and for
//!    those before them in line.
//!
//! Each waits for lower kinds, and where it waits for its own that one does not.  What the proof
//! does not see are locks that the waiting *caller* holds: see the calls, and docs/decisions/0003,
//! Choice 5, for those of the kernel.
//!
//! Nothing here survives a crash: the engine is about running transactions, and those end with the
//! process that serves them.

use crate::gate::Gate;
use crate::object::{Conflict, Object, ObjectRef, Opponent, Side};
use crate::policy::{Choice, Chosen, ContentionPolicy};
use crate::stall::Stalls;
use crate::state::State;
use crate::terms::{Access, BeginOptions, Census, Stats, Status, Timestamp, Workset};
use crate::units::{DoomFn, Fallout, Intent};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use systx_base::sync::{Event, Mutex, rank, record};
use systx_base::{Oid, TxnId};

mod again;
mod order;
mod plain;
mod scope;
pub use again::{Attempt, Patience};
pub use order::Seized;
pub use plain::{Mutation, Plain};

/// Records that an end releases before it lets others have the lock: some 100 µs.
const SWEEP: usize = 1024;

/// One volume's conflict table, and the transactions that use it.
///
/// Begin; `read`, `depend` and `write` before doing so; `decide`, then make the changes durable and
/// visible, then `installed`.  Or `abort`, at any moment before `installed`.  Calls for one
/// transaction may come from several threads; the calls that end it must not race each other.
pub struct Engine {
    pub(crate) state: Mutex<State>,
    /// Some decided transaction ended, or one that mutations are held for lost.
    pub(crate) ended: Arc<Event>,
    pub(crate) policy: Box<dyn ContentionPolicy>,
    /// Closed while there are transactions.
    pub(crate) gate: Gate,
    /// Reads that wait for whom they would lose to.
    pub(crate) stalls: Arc<Stalls>,
    /// Ends of units so far; see [`Engine::moment`].
    moment: AtomicU64,
}

impl Default for Engine {
    fn default() -> Self {
        Engine::new()
    }
}

/// A number for an object in records of sections.
fn number(o: ObjectRef<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    o.hash(&mut hasher);
    hasher.finish()
}

impl Engine {
    /// Each transaction has the policy that it chooses, by default [`Choice::OsPrio`].
    pub fn new() -> Engine {
        Engine::with_policy(Box::new(Chosen))
    }

    /// With another policy.
    pub fn with_policy(policy: Box<dyn ContentionPolicy>) -> Engine {
        Engine {
            state: Mutex::new(rank::ENGINE, State::default()),
            ended: Arc::new(Event::new()),
            policy,
            gate: Gate::new(),
            stalls: Arc::default(),
            moment: AtomicU64::new(0),
        }
    }

    // ---- accesses ---------------------------------------------------------------------------

    /// Records a read, before it is performed.
    ///
    /// If it is granted and the transaction has still not lost when the read has been performed,
    /// then what was read is the committed version: a writer first makes the reader lose, and the
    /// reader's [`Engine::on_doom`] calls return before the writer's access is granted.  Under
    /// `Isolation::Snapshot` a commit may install while the read is performed: the reader has to
    /// compare the version before and after, and asks again if it differs.
    pub fn read(&self, t: TxnId, o: ObjectRef<'_>) -> Access {
        self.access(t, o, Intent::Read)
    }

    /// As [`Engine::read`], and conflicts even under `Isolation::Snapshot`: for what a write
    /// relies on, as the emptiness of a directory that is removed, or the name of a file that is
    /// changed.
    pub fn depend(&self, t: TxnId, o: ObjectRef<'_>) -> Access {
        self.access(t, o, Intent::Depend)
    }

    /// Records a write, before it is performed.
    pub fn write(&self, t: TxnId, o: ObjectRef<'_>) -> Access {
        self.access(t, o, Intent::Write)
    }

    fn access(&self, t: TxnId, o: ObjectRef<'_>, intent: Intent) -> Access {
        let mut fallout = Fallout::new();
        let mut looked = Vec::new();
        loop {
            let both = (&looked[..], &mut fallout);
            let mut state = self.state.lock();
            record::touch(|| (number(o), intent == Intent::Write));
            let answer = state.access(t, o, intent, &*self.policy, both);
            drop(state);
            match answer {
                Ok(answer) => {
                    tell(fallout);
                    return answer;
                }
                // Nobody has lost yet.  Looking may take a while.
                Err(stronger) => {
                    if (stronger.look)() {
                        self.state.lock().defer(stronger.id);
                    }
                    looked.push(stronger.id);
                }
            }
        }
    }

    /// Blocks until a decided unit is installed or aborted; returns at once for any other.
    ///
    /// This cannot deadlock among units, see the head of this file.  The
    /// caller must hold no lock that an installation needs: neither the volume's nor the store's,
    /// nor those of another transaction's view.
    pub fn wait_installed(&self, id: TxnId) {
        while !self.wait_installed_for(id, Duration::MAX) {}
    }

    /// As [`Engine::wait_installed`], at most `limit` long; whether it is installed or aborted.
    pub fn wait_installed_for(&self, id: TxnId, limit: Duration) -> bool {
        self.wait_while(limit, |state| state.units.decided(id))
    }

    /// An outsider changed an object: every active transaction that touched it loses, except that
    /// reads under snapshot isolation only go stale. Decided ones are past losing and not affected:
    /// their installation looks for itself. Returns those that lost by this.
    pub fn outside_change(&self, o: ObjectRef<'_>) -> Vec<TxnId> {
        let mut fallout = Fallout::new();
        let doomed = self.state.lock().outside_change(o, &mut fallout);
        tell(fallout);
        doomed
    }

    /// Gives `into`, just begun, the read set of `from`, its stale reads included. From then on the
    /// two do not conflict with each other: they are two parts of one, of which `into` commits
    /// first. `into` is as urgent as `from`, by the same policy, though not as old. It still has to
    /// `write` each object that it will install, or others do not wait for that installation.
    /// Doomed if `from` has lost (then `into` loses the same conflict) or one of them is not
    /// active.
    pub fn merge_reads(&self, from: TxnId, into: TxnId) -> Access {
        let mut fallout = Fallout::new();
        let answer = self.state.lock().merge_reads(from, into, &mut fallout);
        tell(fallout);
        answer
    }

    // ---- life cycle -------------------------------------------------------------------------

    /// Registers a transaction.  A retry passes the timestamp that its first attempt got here.
    ///
    /// The first one while there is no other waits for the plain mutations inside the gate, see
    /// [`Engine::plain_mutation`].
    ///
    /// # Panics
    /// If a transaction of this id exists, or the id has its top bit set.
    pub fn begin(&self, id: TxnId, o: BeginOptions) -> Timestamp {
        self.gate.close();
        self.begin_closed(id, &o)
    }

    /// As [`Engine::begin`]; `None`, and nothing is begun, if it would have to wait.
    ///
    /// # Panics
    /// As there.
    pub fn try_begin(&self, id: TxnId, o: BeginOptions) -> Option<Timestamp> {
        self.gate.try_close().then(|| self.begin_closed(id, &o))
    }

    /// With the gate closed for it.
    fn begin_closed(&self, id: TxnId, o: &BeginOptions) -> Timestamp {
        let mut state = self.state.lock();
        let begun = state.begin(id, o);
        if begun.is_some() && state.units.scopes.runs(id) {
            // Who waits for what it claims.
            let ended = self.ended.clone();
            state.on_doom(id, Box::new(move |_, _: &_| ended.notify_all()));
        }
        drop(state);
        if begun.is_none() {
            self.gate.open();
        }
        // Not while the lock is held: that would end the engine for everybody.
        Timestamp(begun.unwrap_or_else(|| panic!("transaction {id} exists")))
    }

    /// Decides a commit: from here on the transaction cannot lose, and others wait where it wrote.
    /// Deciding twice is one decision.
    ///
    /// # Errors
    /// The conflict, if it has lost.
    ///
    /// # Panics
    /// If there is no such transaction (it was aborted, or is installed).
    pub fn decide(&self, t: TxnId) -> Result<(), Conflict> {
        let mut fallout = Fallout::new();
        let decided = self.state.lock().decide(t, &mut fallout);
        tell(fallout);
        decided.unwrap_or_else(|| panic!("transaction {t} has ended"))
    }

    /// The end of a commit: everything that a decided transaction wrote can be seen in the
    /// committed state. Releases what it held, lists what became stale by it, wakes those who wait.
    pub fn installed(&self, t: TxnId) {
        self.end(t, true);
    }

    /// The end without effect: of a running transaction, of one that lost, or of a decided one
    /// whose commit failed.
    pub fn abort(&self, t: TxnId) {
        self.end(t, false);
    }

    pub(crate) fn end(&self, t: TxnId, installed: bool) {
        let mut state = self.state.lock();
        let Some((slot, records)) = state.start_end(t, installed) else { return };
        // Before the first of its holds is released, and also where it failed: it may have changed
        // something.
        self.moment.fetch_add(1, Ordering::AcqRel);
        drop(state);
        for some in records.chunks(SWEEP) {
            self.state.lock().sweep(slot, some);
        }
        let mut state = self.state.lock();
        let plain = state.finish_end(slot);
        drop(state);
        self.ended.notify_all();
        // A plain mutation may outlive the last transaction: those that pass the gate then are
        // ordered with it as they are with each other, by the kernel's locks.
        if !plain {
            self.gate.open();
        }
    }

    /// Makes an active transaction lose; false if it was not active.
    pub fn doom(&self, t: TxnId, why: Conflict) -> bool {
        let mut fallout = Fallout::new();
        let doomed = self.state.lock().doom(t, why, &mut fallout);
        tell(fallout);
        doomed
    }

    /// Calls `f` once when `t` loses; at once if it has lost already, never if it is decided or
    /// ends.
    ///
    /// The call is made without the engine's lock, but on the thread whose access made `t` lose (it
    /// may be one of `t`'s own) and before that access returns: it must be short, take no lock of a
    /// view, and leave work to others.
    pub fn on_doom(&self, t: TxnId, f: impl FnOnce(TxnId, &Conflict) + Send + 'static) {
        let call: DoomFn = Box::new(f);
        let late = self.state.lock().on_doom(t, call);
        if let Some((call, why)) = late {
            call(t, &why);
        }
    }

    /// Has `waits` asked, before somebody loses to `t`, whether `t` waits for something that the
    /// engine does not see, as a lock of threads or a pipe: then it loses to everybody who does not
    /// (deferential mode of TxOS+, EuroSys'12 §6.1).
    ///
    /// The call is made without the engine's lock, on the thread of the access that would lose.
    pub fn defer_while(&self, t: TxnId, waits: impl Fn() -> bool + Send + Sync + 'static) {
        self.state.lock().defer_while(t, Arc::new(waits));
    }

    /// Whether `t` has lost, and slept when it did.
    pub fn lost_asleep(&self, t: TxnId) -> bool {
        self.state.lock().units.lost_asleep(t)
    }

    // ---- questions --------------------------------------------------------------------------

    /// Where a transaction is; `None` if it has ended or never was.
    pub fn status(&self, t: TxnId) -> Option<Status> {
        self.state.lock().units.status(t)
    }

    /// The conflict that a transaction lost.
    pub fn conflict(&self, t: TxnId) -> Option<Conflict> {
        self.state.lock().units.conflict(t)
    }

    /// What a transaction read under snapshot isolation and others have changed since, with whom
    /// changed it first.
    pub fn stale_reads(&self, t: TxnId) -> Vec<(Object, Opponent)> {
        self.state.lock().units.stale_reads(t)
    }

    /// The size of a workset.
    pub fn workset(&self, t: TxnId) -> Option<Workset> {
        self.state.lock().units.workset(t)
    }

    /// What a workset is made of.  Goes through it, a part at a time.
    pub fn census(&self, t: TxnId) -> Census {
        let mut census = Census::default();
        let mut from = 0;
        while self.state.lock().units.census(t, from..from + SWEEP, &mut census) {
            from += SWEEP;
        }
        census
    }

    /// What a transaction touched, and how; the lists of directories in which it wrote names are
    /// among it.
    pub fn workset_objects(&self, t: TxnId) -> Vec<(Object, Side)> {
        self.state.lock().units.workset_objects(t)
    }

    /// The inodes of which a transaction has read or written content or length.
    pub fn files_of(&self, t: TxnId) -> Vec<Oid> {
        self.state.lock().units.files_of(t)
    }

    /// A number that is another one when a transaction has ended since, or a plain mutation that
    /// was recorded.
    ///
    /// For who has to look at something before it can name it in a record, as an inode behind a
    /// name: if the number is the same before the look and after the record, what was seen is what
    /// was recorded. Whoever changed it in between would have ended in between; whoever had not
    /// ended yet would have made the record wait; and whoever comes later makes this transaction
    /// lose. Else look again.
    pub fn moment(&self) -> u64 {
        self.moment.load(Ordering::Acquire)
    }

    /// Numbers.
    pub fn stats(&self) -> Stats {
        self.state.lock().stats()
    }

    /// Heap memory of the engine in bytes, about.  Goes through all records.
    pub fn memory(&self) -> usize {
        self.state.lock().units.bytes()
    }

    /// Before a read of `o` by `t`: whether it would lose to an active transaction, and waiting may
    /// help.  Nothing is recorded.  When the wait is over, or has taken too long, ask for the read
    /// as ever.
    ///
    /// A stronger one that sleeps ([`Engine::defer_while`]) is not waited for: the read wins.
    ///
    /// Under [`crate::Choice::TwoPhase`] also for a rival that the read would win against.
    pub fn stall(&self, t: TxnId, o: ObjectRef<'_>) -> Option<Stalled<'_>> {
        self.stall_as(t, (o, Intent::Read))
    }

    /// Whether it is one whose writes may have to wait ([`Engine::stall_write`]).
    pub fn locks(&self, t: TxnId) -> bool {
        self.state.lock().units.chose(t) == Some(Choice::TwoPhase)
    }

    /// As [`Engine::stall`], before a write: under [`crate::Choice::TwoPhase`] only.
    pub fn stall_write(&self, t: TxnId, o: ObjectRef<'_>) -> Option<Stalled<'_>> {
        self.stall_as(t, (o, Intent::Write))
    }

    fn stall_as(&self, t: TxnId, what: (ObjectRef<'_>, Intent)) -> Option<Stalled<'_>> {
        let mut looked = Vec::new();
        loop {
            let both = (&*self.policy, &*self.stalls);
            let answer = self.state.lock().stall(t, what, both, &looked, || self.waker());
            match answer {
                Ok(winner) => return Some(Stalled { engine: self, waiter: t, winner: winner? }),
                Err(stronger) => {
                    if (stronger.look)() {
                        self.state.lock().defer(stronger.id);
                    }
                    looked.push(stronger.id);
                }
            }
        }
    }

    /// Has an engine that nobody uses yet share the waits of others.
    #[must_use]
    pub fn with_stalls(mut self, stalls: &Arc<Stalls>) -> Engine {
        self.stalls = Arc::clone(stalls);
        self
    }

    fn waker(&self) -> DoomFn {
        let ended = self.ended.clone();
        Box::new(move |_, _: &_| ended.notify_all())
    }
}

/// An access that is held back, as long as this lives.
#[must_use = "dropping it ends the wait"]
pub struct Stalled<'e> {
    engine: &'e Engine,
    waiter: TxnId,
    winner: TxnId,
}

impl Stalled<'_> {
    /// Whose end it waits for.
    pub fn winner(&self) -> TxnId {
        self.winner
    }

    /// Whether there is nothing left to wait for: the stronger one has ended or lost, or the one
    /// that waits has.
    pub fn is_over(&self) -> bool {
        !self.engine.state.lock().units.stalls(self.waiter, self.winner)
    }

    /// Blocks until it is over, at most `limit` long; whether it is.
    pub fn wait(&self, limit: Duration) -> bool {
        self.engine.wait_while(limit, |state| state.units.stalls(self.waiter, self.winner))
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        self.engine.stalls.leave(self.waiter, self.winner);
    }
}

pub(crate) fn tell(fallout: Fallout) {
    for (call, id, why) in fallout {
        call(id, &why);
    }
}

#[cfg(test)]
mod tests;
