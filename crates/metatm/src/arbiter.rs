//! The contention manager of the hardware.  The decision itself is that of systx
//! ([`systx_txn::Chosen`]); here stands what it is told.

use crate::settings::Contention;
use crate::tx::Standing;
use cxlock::{Contest, Fair, Policy, Verdict};
use systx_base::TxnId;
use systx_txn::{Chosen, Contender, ContentionPolicy};

/// One side of a conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    /// Of the transaction, or of the wish for a lock.
    pub standing: Standing,
    /// Words that it has touched.
    pub size: u64,
    /// What `xgettxid` says; 0 for a thread in no transaction.
    pub id: u64,
}

/// Whether `challenger` wins.
#[must_use]
pub fn wins(contention: Contention, challenger: Side, holder: Side) -> bool {
    let [challenger, holder] = [challenger, holder].map(|side| contender(contention, side));
    Chosen.challenger_wins(&challenger, &holder)
}

fn contender(contention: Contention, side: Side) -> Contender {
    let told = contention.is_told();
    Contender {
        id: TxnId(side.id),
        priority: if told { side.standing.priority } else { 0 },
        size: side.size,
        karma: side.standing.karma,
        choice: contention.choice(),
        age: if contention.ages() { side.standing.losses } else { 0 },
        timestamp: side.standing.timestamp,
        guest: false,
        place: None,
        scoped: false,
        asleep: false,
    }
}

/// Whether `xcas` gets a lock although transactions have looked at it.  One that is more urgent
/// than the thread keeps it; one that is less urgent does not; else cxlock's usual policy is asked.
#[must_use]
pub fn may_take(contention: Contention, thread: Standing, inside: &[Side], rounds: u32) -> bool {
    let mut urgencies = inside.iter().map(|side| side.standing.priority);
    if contention.is_told() {
        if urgencies.any(|priority| priority < thread.priority) {
            return false;
        }
        if inside.iter().all(|side| side.standing.priority > thread.priority) {
            return true;
        }
    }
    let contest = Contest { inside: inside.len() as u64, waiting: 1, rounds };
    Fair.exclusive(&contest) == Verdict::Proceed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(priority: i32, size: u64, timestamp: u64, losses: u32) -> Side {
        let standing = Standing { timestamp, losses, karma: 10 * u64::from(losses), priority };
        Side { standing, size, id: timestamp + 1 }
    }

    #[test]
    fn each_policy_looks_at_what_it_says() {
        let (old, large, urgent, loser) =
            (side(0, 1, 0, 0), side(0, 9, 5, 0), side(-5, 1, 6, 0), side(5, 1, 7, 3));
        let winner = |contention| {
            let all = [("old", old), ("large", large), ("urgent", urgent), ("loser", loser)];
            all.into_iter()
                .find(|(_, one)| all.iter().all(|(_, o)| o == one || wins(contention, *one, *o)))
                .map(|(name, _)| name)
        };
        assert_eq!(winner(Contention::Timestamp), Some("old"));
        assert_eq!(winner(Contention::SizeMatters), Some("large"));
        assert_eq!(winner(Contention::OsPrio), Some("urgent"));
        assert_eq!(winner(Contention::Polka), Some("loser"));
        assert_eq!(winner(Contention::Aging), Some("loser"));
    }

    #[test]
    fn exclusive_sections_wait_for_what_is_more_urgent_and_for_nothing_else_for_ever() {
        let me = side(0, 0, 9, 0).standing;
        let take = |contention, priority, rounds| {
            may_take(contention, me, &[side(priority, 1, 1, 0)], rounds)
        };
        assert!(!take(Contention::OsPrio, -1, u32::MAX));
        assert!(take(Contention::OsPrio, 1, 0));
        assert!(!take(Contention::OsPrio, 0, 0) && take(Contention::OsPrio, 0, Fair::PATIENCE));
        for contention in [Contention::SizeMatters, Contention::Timestamp, Contention::Polka] {
            assert!(!take(contention, -1, 0) && take(contention, -1, Fair::PATIENCE));
        }
    }
}
