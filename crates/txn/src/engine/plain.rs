//! Plain units: requests of programs outside every transaction, on directories that are served by
//! the daemon (docs/decisions/0003, Choice 3).
//!
//! A plain *read* needs no record and does not come here: that it shows nothing of a commit too
//! early is up to whoever publishes that. A plain *mutation* is a very short transaction that is
//! decided as it begins: active transactions in its way lose, however old they are (asymmetric
//! conflict, TxOS SOSP'09 §4.4), decided ones are waited for, and until it ends it is waited for
//! itself. The kernel's own locks already order most of those that touch one object; the others are
//! ordered here.
//!
//! While no transaction is open a mutation only passes a gate, see `gate.rs`.

use super::{Engine, tell};
use crate::gate::Pass;
use crate::object::{Caller, ObjectRef};
use crate::state::{Entered, State};
use crate::terms::Stall;
use crate::units::Fallout;
use std::time::{Duration, Instant};
use systx_base::{Oid, TxnId};

/// Answer to a plain mutation.
#[derive(Debug)]
pub enum Plain<'e> {
    /// It is decided: perform it, then drop the guard.
    Decided(Mutation<'e>),
    /// A decided unit that wrote one of the objects is not over yet: call
    /// [`Engine::wait_installed`], then ask again. Nothing is held.
    Wait(TxnId),
    /// An aged transaction asks for time: call [`Engine::wait_ended`] with what is left of the
    /// limit, then ask again, with [`Stall::Never`] once nothing is left.  Nothing is held.
    Hold(TxnId),
}

/// A plain mutation that is being performed.  Dropping it says that what it wrote can be seen.
#[must_use = "dropping it ends the mutation"]
pub struct Mutation<'e> {
    engine: &'e Engine,
    way: Way,
    doomed: Vec<TxnId>,
}

enum Way {
    Gate(Pass),
    Table(TxnId),
    Over,
}

impl Mutation<'_> {
    /// The id for which others wait; `None` if it only passed the gate.
    pub fn id(&self) -> Option<TxnId> {
        match self.way {
            Way::Table(id) => Some(id),
            Way::Gate(_) | Way::Over => None,
        }
    }

    /// Transactions that lost by it.
    pub fn doomed(&self) -> &[TxnId] {
        &self.doomed
    }

    /// Says who made it, if that was not known before.
    pub fn tell(&self, by: Caller) {
        self.engine.state.lock().name_opponent(&self.doomed, by);
    }

    /// Ends it without effect: the call failed.  Nothing becomes stale by it; who lost has lost.
    pub fn failed(mut self) {
        self.end(false);
    }

    fn end(&mut self, installed: bool) {
        match std::mem::replace(&mut self.way, Way::Over) {
            Way::Gate(pass) => self.engine.gate.leave(pass),
            Way::Table(id) => self.engine.end(id, installed),
            Way::Over => {}
        }
    }
}

impl Drop for Mutation<'_> {
    fn drop(&mut self) {
        self.end(true);
    }
}

impl std::fmt::Debug for Mutation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mutation").field("id", &self.id()).field("doomed", &self.doomed).finish()
    }
}

impl Engine {
    /// Asks before a plain mutation that writes these objects, all at once.  Of a name, the list of
    /// its directory is understood.
    ///
    /// While no transaction is open this takes no lock; else the engine's. Calls of
    /// [`Engine::on_doom`] are made before it returns. As long as a mutation that passed the gate
    /// is being performed, a first [`Engine::begin`] waits for it: performing it must not need a
    /// lock that callers of `begin` hold, and must not begin a transaction itself.
    pub fn plain_mutation(&self, objects: &[ObjectRef<'_>], by: Caller, stall: Stall) -> Plain<'_> {
        if let Some(pass) = self.gate.enter() {
            return Plain::Decided(self.mutation(Way::Gate(pass), Vec::new()));
        }
        let mut fallout = Fallout::new();
        let both = (&*self.policy, &mut fallout);
        let entered = self.state.lock().plain_mutation(objects, by, stall, both);
        tell(fallout);
        match entered {
            Entered::Decided(id, doomed) => Plain::Decided(self.mutation(Way::Table(id), doomed)),
            Entered::Wait(id) => Plain::Wait(id),
            Entered::Hold(id) => Plain::Hold(id),
        }
    }

    /// Whether this transaction has read or written any part of an object.
    pub fn holds(&self, t: TxnId, o: ObjectRef<'_>) -> bool {
        self.state.lock().units.holds(t, o)
    }

    /// Whether any transaction has read or written an object.
    pub fn is_held(&self, o: ObjectRef<'_>) -> bool {
        self.gate.is_closed() && self.state.lock().units.is_held(o)
    }

    /// Whether a plain mutation of an inode's attributes, length or content is being performed: one
    /// look at the inode may find it half done, as a new ctime beside an old mtime. One that has
    /// ended has moved [`Engine::moment`], which is to be asked after this.
    pub fn is_changing(&self, inode: Oid) -> bool {
        self.gate.is_closed() && self.state.lock().units.is_changing(inode)
    }

    fn mutation(&self, way: Way, doomed: Vec<TxnId>) -> Mutation<'_> {
        Mutation { engine: self, way, doomed }
    }

    /// An aged transaction, or an urgent one, asks that plain mutations are held for a bounded time
    /// instead of making it lose, where it has only read: a directory that it lists, a file that it
    /// reads. Where it has written as well, it would wait for them itself when it publishes that:
    /// INVAL_ENTRY needs the lock of the directory, INVAL_INODE that of the page
    /// (`research/fuse.md` §2). False if the policy does not allow it
    /// ([`crate::ContentionPolicy::may_reserve`]) or it is not active.
    pub fn reserve(&self, t: TxnId) -> bool {
        let ended = self.ended.clone();
        let wake = Box::new(move |_, _: &_| ended.notify_all());
        self.state.lock().reserve(t, &*self.policy, wake)
    }

    /// A transaction that has asked for that and has read content of a file, but not changed it.
    pub fn reserved_for(&self, file: Oid) -> Option<TxnId> {
        if self.gate.is_closed() { self.state.lock().units.reserved_for(file) } else { None }
    }

    /// Whether it has asked for that, and is still active.
    pub fn is_reserved(&self, t: TxnId) -> bool {
        self.state.lock().units.is_reserved(t)
    }

    /// Blocks until a transaction has ended or lost, at most `limit` long; whether it has.
    pub fn wait_ended(&self, t: TxnId, limit: Duration) -> bool {
        self.wait_while(limit, |state| state.units.stands(t))
    }

    /// Waits as long as this holds, at most `limit` long; whether it has ceased to.
    pub(crate) fn wait_while(&self, limit: Duration, holds: impl Fn(&State) -> bool) -> bool {
        // As in `again.rs` beside this, and nowhere else in this crate; no answer of the engine
        // depends on it.
        let until = Instant::now().checked_add(limit);
        let mut state = self.state.lock();
        let mut left = until.map(|_| limit);
        while holds(&state) && left != Some(Duration::ZERO) {
            match left {
                Some(left) => self.ended.wait_for(&mut state, left),
                None => self.ended.wait(&mut state),
            }
            left = until.map(|until| until.saturating_duration_since(Instant::now()));
        }
        !holds(&state)
    }
}
