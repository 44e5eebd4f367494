//! Who wins by each policy, and that urgency is that of the moment.

use super::*;
use crate::policy::{Chosen, Contender, ContentionPolicy, Place, Urgency};
use crate::{Caller, Plain, Stall};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Nice values by thread; those of transactions are not those of plain programs.
#[derive(Debug, Default)]
pub(super) struct Nices(Mutex<BTreeMap<u32, i32>>);

impl Nices {
    fn thread(transaction: u64) -> u32 {
        1_000_000 + transaction as u32
    }

    pub(super) fn set(&self, transaction: u64, nice: i32) {
        self.0.lock().unwrap().insert(Nices::thread(transaction), nice);
    }

    pub(super) fn of_transaction(self: Arc<Nices>, id: u64) -> Arc<dyn Urgency> {
        Arc::new(OfThread { thread: Nices::thread(id), all: self })
    }
}

#[derive(Debug)]
struct OfThread {
    thread: u32,
    all: Arc<Nices>,
}

impl Urgency for OfThread {
    fn now(&self) -> Option<i32> {
        self.of(self.thread)
    }

    fn of(&self, thread: u32) -> Option<i32> {
        self.all.0.lock().unwrap().get(&thread).copied()
    }
}

/// What was so when they began is no matter, and who became urgent is not behind who was.
#[test]
fn the_moment_of_the_conflict_decides_who_is_urgent() {
    let e = Engine::new();
    let nices = Arc::new(Nices::default());
    for (id, begins, then) in [(A, -20, 5), (B, 19, -1)] {
        nices.set(id.0, begins);
        let follows = Some(nices.clone().of_transaction(id.0));
        e.begin(id, BeginOptions { follows, ..BeginOptions::default() });
        nices.set(id.0, then);
    }
    e.write(A, ObjectRef::Size(F));
    assert_eq!(e.write(B, ObjectRef::Size(F)), Access::Granted);
    assert_eq!(e.status(A), Some(Status::Doomed));
}

/// A plain program waits for a transaction that is more urgent than it is, and for no other.
#[test]
fn a_mutation_is_held_for_who_is_more_urgent() {
    for (transaction, plain, held) in
        [(-1, 0, true), (-1, -1, false), (-1, -5, false), (-30, -5, true)]
    {
        let e = Engine::new();
        let nices = Arc::new(Nices::default());
        nices.set(A.0, transaction);
        nices.0.lock().unwrap().insert(77, plain);
        let follows = Some(nices.clone().of_transaction(A.0));
        e.begin(A, BeginOptions { follows, ..BeginOptions::default() });
        assert!(e.reserve(A));
        e.read(A, ObjectRef::Attr(F));
        let by = Caller { pid: 77, ..Caller::default() };
        let answer = e.plain_mutation(&[ObjectRef::Attr(F)], by, Stall::Bounded);
        assert_eq!(matches!(answer, Plain::Hold(A)), held, "{transaction} {plain}");
    }
    let e = serializable();
    assert!(!e.reserve(A), "one that is as urgent as others asks for nothing");
}

/// Of two that began with these sizes and losses, whether the younger one wins by each policy.
#[test]
fn what_each_policy_looks_at() {
    use Choice::*;
    let wins = |choice: Choice, size: u64, (lost, priority): (u64, i32)| {
        let e = Engine::new();
        let options = BeginOptions { choice, priority, ..BeginOptions::default() };
        e.begin(A, BeginOptions { priority: 0, ..options.clone() });
        let first = e.begin(B, options.clone()).0;
        for object in 0..lost {
            e.write(B, ObjectRef::Attr(Oid(1000 + object)));
        }
        if lost > 0 {
            e.doom(B, conflict());
            e.abort(B);
            e.begin(B, BeginOptions { timestamp: Some(first), ..options });
        }
        e.write(A, ObjectRef::Size(F));
        for object in 0..size {
            e.write(B, ObjectRef::Attr(Oid(1000 + object)));
        }
        let granted = e.write(B, ObjectRef::Size(F)) == Access::Granted;
        let (winner, loser) = if granted { (B, A) } else { (A, B) };
        assert_eq!(e.status(winner), Some(Status::Active));
        assert_eq!(e.status(loser), Some(Status::Doomed));
        granted
    };
    let table = [
        // Larger; that lost much; that is urgent; that is larger, and behind in urgency.
        (OsPrio, [false, false, true, false]),
        (Timestamp, [false, false, false, false]),
        (SizeMatters, [true, false, true, false]),
        (Karma, [true, true, true, false]),
    ];
    for (choice, expected) in table {
        let cases = [(3, (0, 0)), (0, (9, 0)), (0, (0, -1)), (99, (0, 1))];
        let told = cases.map(|(size, rest)| wins(choice, size, rest));
        assert_eq!(told, expected, "{choice:?}");
    }
}

/// Policies are not mixed: between two that chose different ones the usual one decides.
#[test]
fn two_policies_meet_in_the_usual_one() {
    let e = Engine::new();
    e.begin(A, BeginOptions { choice: Choice::SizeMatters, ..BeginOptions::default() });
    e.begin(B, BeginOptions { choice: Choice::Karma, ..BeginOptions::default() });
    for object in 0..9 {
        e.write(B, ObjectRef::Attr(Oid(1000 + object)));
    }
    e.write(A, ObjectRef::Size(F));
    assert_eq!(e.write(B, ObjectRef::Size(F)), Access::Doomed);
}

#[test]
fn each_policy_is_a_total_order() {
    let mut all: Vec<Contender> = Vec::new();
    let mut add = |priority, age, timestamp, guest, place| {
        let n = all.len() as u64;
        let (size, karma, choice) = ([3, 90][n as usize % 2], n % 3, Choice::default());
        let (id, scoped, asleep) = (TxnId(n), timestamp == 6, age == 2);
        let (timestamp, place) = (timestamp, place);
        all.push(Contender {
            id,
            priority,
            size,
            karma,
            choice,
            age,
            timestamp,
            guest,
            place,
            scoped,
            asleep,
        });
    };
    for _ in 0..3 {
        for (priority, age, timestamp) in
            [(0, 0, 5), (0, 0, 6), (-5, 0, 9), (7, 2, 1), (7, 3, 8), (-7, 4, 9)]
        {
            for guest in [false, true] {
                add(priority, age, timestamp, guest, None);
            }
        }
    }
    // Members of groups contend as the first one of theirs.
    for group in 0..3 {
        for member in 0..4 {
            let first = Place { group, number: member };
            add(0, 0, 10 + u64::from(group), group == 2, Some(first));
        }
    }
    // But for the number, also in what changes.
    let members = all.iter_mut().filter(|c| c.place.is_some());
    members.for_each(|c| (c.size, c.karma) = (3, 0));
    for choice in
        [Choice::OsPrio, Choice::Timestamp, Choice::SizeMatters, Choice::Karma, Choice::TwoPhase]
    {
        all.iter_mut().for_each(|c| c.choice = choice);
        is_a_total_order(&Chosen, &all);
    }
}

fn is_a_total_order(policy: &dyn ContentionPolicy, all: &[Contender]) {
    for a in all {
        for b in all {
            let (ab, ba) = (policy.challenger_wins(a, b), policy.challenger_wins(b, a));
            assert!(ab != ba || a == b, "{a:?} {b:?}");
            for c in all {
                assert!(!(ab && policy.challenger_wins(b, c)) || policy.challenger_wins(a, c));
            }
        }
    }
}
