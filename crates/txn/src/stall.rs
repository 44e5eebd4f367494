//! A read that would lose waits for the winner instead, where that can do good; and accesses that
//! wait because both sides want that ([`crate::Choice::TwoPhase`]).
//!
//! Nobody's victory is touched by this: who wins is decided as ever, by the access that follows.
//! Only a read that would lose is held back, as long as the stronger transaction is there.
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
//! **No circle.**  Only a transaction that does not wait is waited for, and only one for which
//! nobody waits begins to wait.  So no chain of these waits has more than one link, whatever the
//! policy says, and however priorities change meanwhile.  The caller bounds each wait; it must hold
//! no lock that the stronger one may need, as that of a directory.
//!
//! **Two-phase locking.**  There reads and writes wait, for a holder that waits itself, too.  A
//! wait that would close a circle does not begin: the access is decided by age, so one of the two
//! loses, and never the oldest of the circle.
//!
//! **Progress.**  A read that cannot lose does not wait here, but in two-phase locking.  A
//! transaction that waits can still lose, to anybody stronger than itself, and is woken by that.

use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};

/// Who waits for whom.  Engines whose transactions have parts of the same ids share
/// one, so that there is no circle through several of them either.
#[derive(Debug)]
pub struct Stalls(Mutex<Vec<Wait>>);

/// Who waits, and for whom.
type Wait = (TxnId, TxnId);

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls(Mutex::new(rank::LEAF, Vec::new()))
    }
}

impl Stalls {
    /// Notes a wait, unless the one that is waited for waits, or somebody waits for the one that is
    /// to wait; whether it is noted.
    pub(crate) fn enter(&self, waiter: TxnId, winner: TxnId) -> bool {
        let apart = |all: &[Wait]| !all.iter().any(|(who, to)| *who == winner || *to == waiter);
        self.enter_if((waiter, winner), apart)
    }

    /// Notes a wait, unless the one that is waited for waits for the other, directly or not;
    /// whether it is noted.
    pub(crate) fn enter_chain(&self, waiter: TxnId, winner: TxnId) -> bool {
        self.enter_if((waiter, winner), |all| {
            let mut ahead = vec![winner];
            let mut at = 0;
            while let Some(next) = ahead.get(at).copied() {
                for (_, whom) in all.iter().filter(|(who, _)| *who == next) {
                    if !ahead.contains(whom) {
                        ahead.push(*whom);
                    }
                }
                at += 1;
            }
            !ahead.contains(&waiter)
        })
    }

    fn enter_if(&self, wait: Wait, free: impl FnOnce(&[Wait]) -> bool) -> bool {
        let mut all = self.0.lock();
        let free = free(&all);
        if free {
            all.push(wait);
        }
        free
    }

    pub(crate) fn leave(&self, waiter: TxnId, winner: TxnId) {
        let mut all = self.0.lock();
        if let Some(at) = all.iter().position(|stall| *stall == (waiter, winner)) {
            all.swap_remove(at);
        }
    }
}
