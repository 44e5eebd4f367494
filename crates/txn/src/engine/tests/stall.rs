//! Reads that wait for whom they would lose to.

use super::*;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(600);

/// A, the older one, has written an object; B asks to read it.
fn would_lose() -> Engine {
    let e = serializable();
    assert_eq!(e.write(A, pages(0, 3)), Access::Granted);
    e
}

#[test]
fn a_read_that_would_lose_waits_for_the_winner_and_sees_what_it_leaves() {
    for commits in [true, false] {
        let e = would_lose();
        let stall = e.stall(B, pages(2, 2)).expect("A is stronger");
        assert_eq!((stall.winner(), stall.is_over()), (A, false));
        std::thread::scope(|threads| {
            threads.spawn(|| if commits { commit(&e, A) } else { e.abort(A) });
            assert!(stall.wait(PATIENCE));
        });
        drop(stall);
        assert_eq!(e.read(B, pages(2, 2)), Access::Granted);
        assert_eq!(e.conflict(B), None);
        check(&e);
    }
}

/// A decided one does not lose any more: it is waited for as ever, to its end.
#[test]
fn a_wait_goes_on_when_the_winner_is_decided() {
    let e = would_lose();
    let stall = e.stall(B, pages(0, 0)).unwrap();
    e.decide(A).unwrap();
    assert!(!stall.wait(Duration::ZERO));
    drop(stall);
    assert!(e.stall(B, pages(0, 0)).is_none());
    assert_eq!(e.read(B, pages(0, 0)), Access::Wait(A));
}

/// By a third one, which is stronger than both, by a program, or from outside.
#[test]
fn a_wait_is_over_when_one_of_the_two_loses() {
    for loser in [A, B] {
        let e = would_lose();
        let stall = e.stall(B, pages(0, 0)).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| e.doom(loser, conflict()));
            assert!(stall.wait(PATIENCE));
        });
        drop(stall);
        let expected = if loser == A { Access::Granted } else { Access::Doomed };
        assert_eq!(e.read(B, pages(0, 0)), expected);
    }
}

#[test]
fn after_its_time_a_read_loses_as_ever() {
    let e = would_lose();
    let stall = e.stall(B, pages(0, 0)).unwrap();
    assert!(!stall.wait(Duration::from_millis(1)));
    drop(stall);
    assert_eq!(e.read(B, pages(0, 0)), Access::Doomed);
}

#[test]
fn there_is_no_chain_of_waits_and_no_circle() {
    let e = would_lose();
    e.write(B, ObjectRef::Size(F));
    e.write(B, pages(9, 9));
    let b = e.stall(B, pages(0, 0)).expect("B waits for A");
    // C may not wait for one that waits: it loses, and tries again.
    assert!(e.stall(C, ObjectRef::Size(F)).is_none());
    // A goes on through what B has.
    assert!(e.stall(A, pages(9, 9)).is_none());
    assert_eq!(e.read(A, pages(9, 9)), Access::Granted);
    assert_eq!((e.status(B), b.is_over()), (Some(Status::Doomed), true));
    drop(b);
    // One that is waited for does not wait itself.
    let e = would_lose();
    e.write(B, ObjectRef::Size(F));
    let c = e.stall(C, ObjectRef::Size(F)).expect("C waits for B");
    assert!(e.stall(B, pages(0, 0)).is_none());
    drop(c);
    assert!(e.stall(B, pages(0, 0)).is_some());
}

/// A, B and C, from the oldest to the youngest, which lock pages.
fn locking() -> Engine {
    three(&BeginOptions { choice: Choice::TwoPhase, ..BeginOptions::default() })
}

#[test]
fn in_two_phase_locking_who_comes_later_waits_whoever_is_older_and_nobody_loses() {
    // What the holder does, what the one that comes later does, and whether that is in the way.
    for (holds, asks, waits) in
        [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
    {
        for (first, later) in [(A, B), (B, A)] {
            let e = locking();
            let access = |t, write| match write {
                true => e.write(t, pages(1, 1)),
                false => e.read(t, pages(1, 1)),
            };
            let stall = |t| match asks {
                true => e.stall_write(t, pages(1, 1)),
                false => e.stall(t, pages(1, 1)),
            };
            assert_eq!(access(first, holds), Access::Granted);
            assert!(stall(later).is_some() == waits);
            if let Some(stall) = stall(later) {
                assert_eq!(stall.winner(), first);
                std::thread::scope(|threads| {
                    threads.spawn(|| commit(&e, first));
                    assert!(stall.wait(PATIENCE));
                });
            }
            assert_eq!(access(later, asks), Access::Granted);
            assert!(stall(later).is_none() && e.conflict(later).is_none());
            check(&e);
        }
    }
}

/// The one that would close the circle does not wait, and of these two the older one goes on.
#[test]
fn a_circle_of_two_phase_locks_costs_the_younger_one() {
    for (waits, closes) in [(A, B), (B, A)] {
        let e = locking();
        for t in [A, B] {
            assert_eq!(e.read(t, pages(1, 1)), Access::Granted);
        }
        let stall = e.stall_write(waits, pages(1, 1)).expect("the other one has read it");
        assert!(e.stall_write(closes, pages(1, 1)).is_none());
        let goes_on = e.write(closes, pages(1, 1)) == Access::Granted;
        assert_eq!(goes_on, closes == A);
        assert!(stall.is_over(), "one of them has lost");
        drop(stall);
        assert_eq!(e.status(B), Some(Status::Doomed));
        if !goes_on {
            assert_eq!(e.write(A, pages(1, 1)), Access::Granted);
        }
        commit(&e, A);
    }
    // A longer one: B waits for A, and C for B; A would wait for C.
    let e = locking();
    for (t, page) in [(A, 1), (B, 2), (C, 3)] {
        e.write(t, pages(page, page));
    }
    let _b = e.stall_write(B, pages(1, 1)).expect("A has it");
    let _c = e.stall(C, pages(2, 2)).expect("a chain is none");
    assert!(e.stall(A, pages(3, 3)).is_none());
    assert_eq!((e.read(A, pages(3, 3)), e.status(C)), (Access::Granted, Some(Status::Doomed)));
    assert_eq!(e.status(B), Some(Status::Active));
}

#[test]
fn only_who_locks_waits_and_only_for_who_locks() {
    let locks = BeginOptions { choice: Choice::TwoPhase, ..BeginOptions::default() };
    let e = Engine::new();
    e.begin(A, BeginOptions::default());
    e.begin(B, locks.clone());
    e.begin(C, BeginOptions { guest: true, ..locks });
    for t in [A, B] {
        e.write(t, pages(t.0, t.0));
    }
    assert!(e.stall_write(A, pages(2, 2)).is_none() && e.stall_write(B, pages(1, 1)).is_none());
    assert!(e.stall_write(C, pages(2, 2)).is_none(), "a guest loses");
    let sleeps = locking();
    sleeps.write(A, pages(1, 1));
    sleeps.defer_while(A, || true);
    assert!(sleeps.stall_write(B, pages(1, 1)).is_none(), "it may wait for B");
    assert_eq!(sleeps.write(B, pages(1, 1)), Access::Granted);
}

/// That may be waiting for the one that reads.
#[test]
fn one_that_sleeps_is_not_waited_for() {
    let e = would_lose();
    let sleeps = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&sleeps);
    e.defer_while(A, move || asks.load(Ordering::Relaxed));
    drop(e.stall(B, pages(0, 0)).expect("it is at work"));
    sleeps.store(true, Ordering::Relaxed);
    assert!(e.stall(B, pages(0, 0)).is_none());
    assert_eq!(e.read(B, pages(0, 0)), Access::Granted);
    assert_eq!(e.status(A), Some(Status::Doomed));
}

/// Counts how often somebody asks.
#[derive(Debug, Default)]
struct Counting(AtomicU32);

impl crate::Urgency for Counting {
    fn now(&self) -> Option<i32> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Some(0)
    }
    fn of(&self, _: u32) -> Option<i32> {
        self.now()
    }
}

/// It is a system call.
#[test]
fn in_a_conflict_the_urgency_of_each_is_asked_for_once() {
    let e = Engine::new();
    let counts: Vec<Arc<Counting>> = (0..3).map(|_| Arc::default()).collect();
    for (t, count) in [A, B, C].into_iter().zip(&counts) {
        let follows: Arc<dyn crate::Urgency> = count.clone();
        e.begin(t, BeginOptions { follows: Some(follows), ..BeginOptions::default() });
    }
    let asked =
        || -> Vec<u32> { counts.iter().map(|count| count.0.swap(0, Ordering::Relaxed)).collect() };
    assert_eq!(asked(), [1, 1, 1], "at the begin");
    for t in [A, B] {
        // Each holds two parts of what C asks for.
        e.read(t, pages(0, 0));
        e.read(t, pages(7, 7));
    }
    assert_eq!(asked(), [0, 0, 0]);
    assert_eq!(e.write(C, pages(0, 9)), Access::Doomed);
    let told = asked();
    assert!(told.iter().all(|times| *times <= 1), "{told:?}");
    assert_eq!((told[2], told[0] + told[1]), (1, 1));
    assert_eq!(e.write(A, pages(0, 9)), Access::Granted);
    assert_eq!(asked(), [1, 1, 0]);
    // A plain change of several things that one transaction has read.
    let e = Engine::new();
    let follows: Arc<dyn crate::Urgency> = counts[0].clone();
    e.begin(A, BeginOptions { follows: Some(follows), age: 3, ..BeginOptions::default() });
    e.reserve(A);
    let parts = [ObjectRef::Size(F), ObjectRef::Attr(F)];
    for o in parts {
        assert_eq!(e.read(A, o), Access::Granted);
    }
    asked();
    let by = crate::Caller { pid: 7, ..crate::Caller::default() };
    let answer = e.plain_mutation(&parts, by, crate::Stall::Bounded);
    assert!(matches!(answer, crate::Plain::Hold(A)));
    assert_eq!(asked()[0], 2, "of the transaction, and of the plain thread");
}
