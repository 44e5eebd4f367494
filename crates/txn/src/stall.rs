//! A read that would lose waits for the winner instead, where that can do good.
//!
//! Nobody's victory is touched by this: who wins is decided as ever, by the access that follows.  Only
//! a read that would lose is held back, as long as the stronger transaction is there.
//!
//! | the one that reads | the stronger one | then |
//! |---|---|---|
//! | nobody waits for it | runs | the read waits |
//! | nobody waits for it | waits itself | the reader loses at once |
//! | somebody waits for it | runs | the reader loses at once |
//! | of a snapshot, or read only | runs | no conflict, no wait |
//! | inside a scope of its own | runs, and has none there | the reader wins |
//! | outside of the other's scope | is about to begin in it | the reader loses at once |
//!
//! **No circle.**  Only a transaction that does not wait is waited for, and only one for which nobody
//! waits begins to wait.  So no chain of these waits has more than one link, whatever the policy
//! says, and however priorities change meanwhile.  The caller bounds each wait; it must hold no lock
//! that the stronger one may need, as that of a directory.
//!
//! **Progress.**  Who cannot lose does not wait here.  Who waits can still lose, to anybody stronger
//! than itself, and is woken by that.

use crate::engine::Engine;
use crate::object::ObjectRef;
use crate::state::DoomFn;
use std::sync::Arc;
use std::time::Duration;
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};

/// Who waits for whom with a read.  Engines whose transactions have parts of the same ids share one,
/// so that there is no circle through several of them either.
#[derive(Debug)]
pub struct Stalls(Mutex<Vec<(TxnId, TxnId)>>);

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls(Mutex::new(rank::LEAF, Vec::new()))
    }
}

impl Stalls {
    /// Notes a wait, unless the one that is waited for waits, or somebody waits for the one that is
    /// to wait; whether it is noted.
    pub(crate) fn enter(&self, waiter: TxnId, winner: TxnId) -> bool {
        let mut all = self.0.lock();
        let free = !all.iter().any(|(who, whom)| *who == winner || *whom == waiter);
        if free {
            all.push((waiter, winner));
        }
        free
    }

    fn leave(&self, waiter: TxnId, winner: TxnId) {
        let mut all = self.0.lock();
        if let Some(at) = all.iter().position(|stall| *stall == (waiter, winner)) {
            all.swap_remove(at);
        }
    }
}

/// A read that is held back, as long as this lives.
#[must_use = "dropping it ends the wait"]
pub struct Stalled<'e> {
    engine: &'e Engine,
    waiter: TxnId,
    winner: TxnId,
}

impl Stalled<'_> {
    /// To whom the read would lose.
    pub fn winner(&self) -> TxnId {
        self.winner
    }

    /// Whether there is nothing left to wait for: the stronger one has ended or lost, or the one that
    /// waits has.
    pub fn is_over(&self) -> bool {
        !self.engine.state.lock().stalls(self.waiter, self.winner)
    }

    /// Blocks until it is over, at most `limit` long; whether it is.
    pub fn wait(&self, limit: Duration) -> bool {
        self.engine.wait_while(limit, |state| state.stalls(self.waiter, self.winner))
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        self.engine.stalls.leave(self.waiter, self.winner);
    }
}

impl Engine {
    /// Before a read of `o` by `t`: whether it would lose to an active transaction, and waiting may
    /// help.  Nothing is recorded.  When the wait is over, or has taken too long, ask for the read
    /// as ever.
    ///
    /// A stronger one that sleeps ([`Engine::defer_while`]) is not waited for: the read wins.
    pub fn stall(&self, t: TxnId, o: ObjectRef<'_>) -> Option<Stalled<'_>> {
        let mut looked = Vec::new();
        loop {
            let both = (&*self.policy, &*self.stalls);
            let answer = self.state.lock().stall(t, o, both, &looked, || self.waker());
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
