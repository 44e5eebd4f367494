//! Who waits, who aborts, and what becomes of an attempt that was undone.

use crate::cause::Cause;
use crate::site::Averages;
use std::fmt::Debug;

/// A lock that an exclusive section could take, with optimistic sections inside.
#[derive(Clone, Copy, Debug)]
pub struct Contest {
    /// Attempts of optimistic sections that are under way.
    pub inside: u64,
    /// Exclusive sections that want the lock, the asking one included.
    pub waiting: u64,
    /// How often the asking section has been told to wait in this acquisition.
    pub rounds: u32,
}

/// What a policy says to a section that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.  An exclusive section that does so aborts the optimistic ones that are inside.
    Proceed,
    /// Wait a little and ask again.
    Wait,
}

/// An attempt of an optimistic section that was undone.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    /// Why.
    pub cause: Cause,
    /// Attempts of this section so far, this one included, by [`Cause::index`].
    pub tries: [u32; Cause::ALL.len()],
    /// What this call site has met lately.
    pub averages: Averages,
}

/// What a section does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try again, after so many rounds of a pause.
    Again(u32),
    /// Take the lock.
    Exclusive,
}

/// The contention policy of a lock.  It is asked only where sections meet.  It must not panic.
///
/// The right of an exclusive section to the lock word is decided here, as the paper's contention
/// manager decides the instruction `xcas`.
pub trait Policy: Debug + Sync {
    /// An exclusive section finds the lock free and optimistic sections inside.  It is asked again
    /// after each `Wait`; a policy that never says `Proceed` lets sections wait for ever.
    fn exclusive(&self, contest: &Contest) -> Verdict;

    /// An optimistic section finds the lock free, and exclusive sections that want it.
    fn optimistic(&self, contest: &Contest) -> Verdict;

    /// An attempt was undone.
    fn after(&self, failed: &Failed) -> Next {
        retry(failed)
    }
}

/// The usual answer to an aborted attempt, by its cause and by what the call site has met lately.
#[must_use]
pub fn retry(failed: &Failed) -> Next {
    let tries = failed.tries[failed.cause.index()];
    let again = |limit: u32, pause: u32| match tries < limit {
        true => Next::Again(pause),
        false => Next::Exclusive,
    };
    let often = failed.averages.of(failed.cause) > Averages::ALWAYS / 2;
    match failed.cause {
        // Longer pauses each time; where most attempts end so, the lock is the faster way.
        Cause::Conflict => again(if often { 3 } else { 8 }, 1 << tries.min(8)),
        // A neighbour on the same core may have taken the room; twice in a row it is the section.
        Cause::Capacity | Cause::Other => again(if often { 1 } else { 3 }, 1),
        Cause::Locked => again(8, 0),
        Cause::NeedExclusive | Cause::Nested | Cause::Panicked => Next::Exclusive,
    }
}

/// The usual policy.  Sections that are inside finish; newcomers let the waiting ones pass.
///
/// An exclusive section waits for those inside, at most [`Fair::PATIENCE`] rounds; meanwhile no
/// further optimistic section begins, at most as many rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fair;

impl Fair {
    /// Rounds that one kind of sections waits for the other.
    pub const PATIENCE: u32 = 100;
}

impl Policy for Fair {
    fn exclusive(&self, contest: &Contest) -> Verdict {
        wait_if(contest.inside > 0 && contest.rounds < Self::PATIENCE)
    }

    fn optimistic(&self, contest: &Contest) -> Verdict {
        wait_if(contest.rounds < Self::PATIENCE)
    }
}

/// Exclusive sections take the lock at once and abort the optimistic ones, as with a plain lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExclusiveFirst;

impl Policy for ExclusiveFirst {
    fn exclusive(&self, _: &Contest) -> Verdict {
        Verdict::Proceed
    }

    fn optimistic(&self, contest: &Contest) -> Verdict {
        wait_if(contest.rounds < Fair::PATIENCE)
    }
}

/// Optimistic sections go on beginning while an exclusive one waits for a moment without any, at
/// most [`OptimisticFirst::PATIENCE`] rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct OptimisticFirst;

impl OptimisticFirst {
    /// Rounds that an exclusive section waits.
    pub const PATIENCE: u32 = 10_000;
}

impl Policy for OptimisticFirst {
    fn exclusive(&self, contest: &Contest) -> Verdict {
        wait_if(contest.inside > 0 && contest.rounds < Self::PATIENCE)
    }

    fn optimistic(&self, _: &Contest) -> Verdict {
        Verdict::Proceed
    }
}

fn wait_if(wait: bool) -> Verdict {
    if wait { Verdict::Wait } else { Verdict::Proceed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(cause: Cause, tries: u32, average: u32) -> Next {
        let mut failed = Failed { cause, tries: [0; 7], averages: Averages::default() };
        failed.tries[cause.index()] = tries;
        failed.averages.set(cause, average);
        retry(&failed)
    }

    #[test]
    fn each_cause_has_its_own_patience() {
        for cause in [Cause::NeedExclusive, Cause::Nested, Cause::Panicked] {
            assert_eq!(after(cause, 1, 0), Next::Exclusive, "{cause:?}");
        }
        for (cause, seldom, often) in
            [(Cause::Conflict, 8, 3), (Cause::Capacity, 3, 1), (Cause::Other, 3, 1)]
        {
            for (average, limit) in [(0, seldom), (Averages::ALWAYS, often)] {
                assert_eq!(after(cause, limit, average), Next::Exclusive, "{cause:?}");
                if limit > 1 {
                    assert_ne!(after(cause, limit - 1, average), Next::Exclusive, "{cause:?}");
                }
            }
        }
    }

    #[test]
    fn pauses_grow_with_conflicts() {
        assert_eq!(after(Cause::Conflict, 1, 0), Next::Again(2));
        assert_eq!(after(Cause::Conflict, 5, 0), Next::Again(32));
    }

    #[test]
    fn every_policy_ends_every_wait() {
        let last = Contest { inside: 3, waiting: 2, rounds: OptimisticFirst::PATIENCE };
        for policy in [&Fair as &dyn Policy, &ExclusiveFirst, &OptimisticFirst] {
            assert_eq!(policy.exclusive(&last), Verdict::Proceed, "{policy:?}");
            assert_eq!(policy.optimistic(&last), Verdict::Proceed, "{policy:?}");
        }
        let first = Contest { rounds: 0, ..last };
        assert_eq!(Fair.exclusive(&first), Verdict::Wait);
        assert_eq!(Fair.exclusive(&Contest { inside: 0, ..first }), Verdict::Proceed);
        assert_eq!(ExclusiveFirst.exclusive(&first), Verdict::Proceed);
        assert_eq!(OptimisticFirst.exclusive(&first), Verdict::Wait);
    }
}
