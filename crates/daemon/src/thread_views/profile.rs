//! What has become of a thread's transactions: how often they lose, how large they are, how long
//! they are held before they begin (the transactional profile of TxLinux, SOSP'07 §6.4).
//!
//! A thread *keeps losing* from the third loss in a row on, or by as many among others that end
//! otherwise.  Then also its first attempts are held while somebody stronger has what it lost over
//! before ([`systx_txn::Engine::await_turn`]).  An end without a loss counts against that only if
//! nobody had to be waited for: else what holding has prevented would be what ends it, and every
//! few transactions one would be lost to find out.

use crate::averages::average;
use std::time::Duration;
use systx_txn::Conflict;

/// Of losses among attempts, in thousandths: from here on a thread keeps losing,
const KEEPS_LOSING: u64 = 500;
/// and from here on downwards it does not any more.
const RECOVERED: u64 = 100;
/// All of them.
const ALWAYS: u64 = 1000;

/// See the module.
#[derive(Clone, Default, Debug)]
pub(super) struct Profile {
    /// Attempts that ended.
    pub ended: u64,
    /// Those that lost.
    pub lost: u64,
    /// Attempts that had to wait before they began.
    pub held: u64,
    /// Losses among the last attempts, in thousandths.
    pub losses: u64,
    /// Objects that the last attempts had touched.
    pub size: u64,
    /// How long the last attempts waited before they began, in microseconds.
    pub waited_us: u64,
    keeps_losing: bool,
    over: Vec<Conflict>,
}

/// How an attempt came to its end.
pub(super) struct Attempt<'a> {
    /// It has lost by these, and those before it.
    pub lost: Option<&'a [Conflict]>,
    /// Objects that it had touched.
    pub size: u64,
    /// How long it had to wait before it began; `None`: for nobody.
    pub waited: Option<Duration>,
    /// It has touched something of what it was held for.
    pub met: bool,
}

impl Profile {
    /// One more attempt has ended.
    pub fn ended(&mut self, attempt: &Attempt<'_>) {
        self.ended += 1;
        self.held += u64::from(attempt.waited.is_some());
        average(&mut self.size, attempt.size);
        let waited = attempt.waited.unwrap_or_default().as_micros();
        average(&mut self.waited_us, waited.try_into().unwrap_or(u64::MAX));
        if let Some(lost) = attempt.lost {
            self.lost += 1;
            average(&mut self.losses, ALWAYS);
            self.over = lost.to_vec();
        } else if attempt.waited.is_none() || !attempt.met {
            average(&mut self.losses, 0);
        }
        self.keeps_losing = match self.losses {
            KEEPS_LOSING.. => true,
            ..=RECOVERED => false,
            _ => self.keeps_losing,
        };
    }

    /// Over which it keeps losing; empty if it does not.
    pub fn keeps_losing_over(&self) -> &[Conflict] {
        if self.keeps_losing { &self.over } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_base::Oid;
    use systx_txn::{Object, Opponent, Side};

    fn conflict() -> Conflict {
        let (mine, theirs) = (Side::Write, Side::Write);
        Conflict { object: Object::Attr(Oid(1)), opponent: Opponent::Outside, mine, theirs }
    }

    const FINE: Attempt<'_> = Attempt { lost: None, size: 4, waited: None, met: true };

    fn after(profile: &mut Profile, times: u32, attempt: &Attempt<'_>) -> bool {
        (0..times).for_each(|_| profile.ended(attempt));
        !profile.keeps_losing_over().is_empty()
    }

    #[test]
    fn a_thread_keeps_losing_by_three_losses_in_a_row_or_as_many_among_others() {
        let over = [conflict()];
        let lost = Attempt { lost: Some(&over), ..FINE };
        let mut profile = Profile::default();
        assert!(!after(&mut profile, 2, &lost));
        assert!(after(&mut profile, 1, &lost));
        assert_eq!(profile.keeps_losing_over(), over);
        assert!(!after(&mut profile, 20, &FINE));
        assert_eq!((profile.ended, profile.lost, profile.losses), (23, 3, 0));
        // One in four never.
        let mut profile = Profile::default();
        for _ in 0..100 {
            assert!(!after(&mut profile, 1, &lost));
            assert!(!after(&mut profile, 3, &FINE));
        }
        // Two in three do.
        assert!((0..20).any(|_| {
            let keeps = after(&mut profile, 2, &lost);
            profile.ended(&FINE);
            keeps
        }));
    }

    /// Losses that did not happen, since somebody was waited for, are no reason to stop that.
    #[test]
    fn what_holding_prevents_does_not_end_it() {
        let over = [conflict()];
        let mut profile = Profile::default();
        after(&mut profile, 3, &Attempt { lost: Some(&over), ..FINE });
        let waited = Some(Duration::from_millis(2));
        assert!(after(&mut profile, 1000, &Attempt { waited, ..FINE }));
        assert_eq!((profile.held, profile.waited_us, profile.size), (1000, 2000, 4));
        // Where it did something else, it was held for nothing.
        assert!(!after(&mut profile, 10, &Attempt { waited, met: false, ..FINE }));
    }
}
