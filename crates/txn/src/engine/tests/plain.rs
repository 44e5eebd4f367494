//! Plain reads and mutations, case by case.

use super::*;
use crate::{Caller, Mutation, Plain, Stall};
use std::time::Duration;

fn who() -> Caller {
    Caller::new(4711, 0, b"vi")
}

fn decided<'e>(e: &'e Engine, objects: &[ObjectRef<'_>]) -> Mutation<'e> {
    match e.plain_mutation(objects, who(), Stall::Never) {
        Plain::Decided(guard) => guard,
        other => panic!("{other:?}"),
    }
}

fn aged() -> BeginOptions {
    BeginOptions { age: 3, ..BeginOptions::default() }
}

#[test]
fn a_mutation_only_passes_the_gate_while_there_is_no_transaction() {
    let e = Engine::new();
    let first = decided(&e, &[ObjectRef::Attr(F)]);
    let second = decided(&e, &[ObjectRef::Attr(F)]);
    assert_eq!((first.id(), second.id()), (None, None));
    assert_eq!(e.stats(), Stats::default());
    drop((first, second));
    e.begin(A, BeginOptions::default());
    let third = decided(&e, &[ObjectRef::Attr(F)]);
    assert!(third.id().is_some());
    e.abort(A);
    assert!(decided(&e, &[ObjectRef::Attr(F)]).id().is_none(), "the gate is open again");
}

#[test]
fn a_mutation_makes_everybody_lose_who_is_in_its_way() {
    let e = serializable();
    e.begin(TxnId(9), BeginOptions { priority: -20, age: 100, ..BeginOptions::default() });
    assert_eq!(e.write(TxnId(9), ObjectRef::Size(F)), Access::Granted);
    assert_eq!(e.read(A, entry("x")), Access::Granted);
    let other = ObjectRef::Entry { dir: F, name: b"z" };
    assert_eq!(e.read(B, ObjectRef::List(F)), Access::Granted);
    assert_eq!(e.write(C, entry("y")), Access::Granted);
    let guard = decided(&e, &[entry("x"), other, ObjectRef::Size(F)]);
    assert_eq!(guard.doomed().len(), 3);
    assert_eq!(
        lost(&e, A),
        (entry("x").to_object(), Opponent::Plain(who()), Side::Read, Side::Write)
    );
    assert_eq!(lost(&e, B).1, Opponent::Plain(who()));
    assert_eq!(lost(&e, TxnId(9)).1, Opponent::Plain(who()));
    assert_eq!(e.status(C), Some(Status::Active), "writers of other names are no rivals");
}

#[test]
fn a_mutation_is_waited_for_until_it_ends() {
    let e = serializable();
    let guard = decided(&e, &[entry("x"), ObjectRef::Attr(F)]);
    let id = guard.id().unwrap();
    assert_eq!(e.read(A, ObjectRef::Attr(F)), Access::Wait(id));
    assert_eq!(e.write(A, entry("x")), Access::Wait(id));
    assert_eq!(e.read(A, ObjectRef::List(D)), Access::Wait(id));
    assert_eq!(e.write(A, entry("y")), Access::Granted);
    let both = [ObjectRef::Size(F), ObjectRef::Attr(F)];
    assert!(matches!(e.plain_mutation(&both, who(), Stall::Never), Plain::Wait(w) if w == id));
    drop(decided(&e, &[ObjectRef::Size(F)]));
    std::thread::scope(|s| {
        let waiter = s.spawn(|| e.wait_installed(id));
        drop(guard);
        waiter.join().unwrap();
    });
    assert_eq!(e.read(A, ObjectRef::Attr(F)), Access::Granted);
    drop(decided(&e, &both));
    assert_eq!(e.status(A), Some(Status::Doomed));
    check(&e);
}

#[test]
fn a_mutation_waits_for_a_commit_that_installs() {
    let e = serializable();
    assert_eq!(e.write(A, entry("x")), Access::Granted);
    assert_eq!(e.read(A, ObjectRef::Attr(F)), Access::Granted);
    e.decide(A).unwrap();
    let x = [entry("x")];
    assert!(matches!(e.plain_mutation(&x, who(), Stall::Bounded), Plain::Wait(A)));
    // Also where it has only read: who sees the change must see the commit, too.
    let attr = [ObjectRef::Attr(F)];
    assert!(matches!(e.plain_mutation(&attr, who(), Stall::Bounded), Plain::Wait(A)));
    drop(decided(&e, &[ObjectRef::Size(F), entry("y")]));
    e.installed(A);
    drop(decided(&e, &x));
}

#[test]
fn a_mutation_leaves_stale_reads_unless_it_failed() {
    let e = three(&snapshot());
    assert_eq!(e.read(A, ObjectRef::Size(F)), Access::Granted);
    match e.plain_mutation(&[ObjectRef::Size(F)], who(), Stall::Never) {
        Plain::Decided(guard) => guard.failed(),
        other => panic!("{other:?}"),
    }
    assert_eq!(e.stale_reads(A), []);
    drop(decided(&e, &[ObjectRef::Size(F)]));
    assert_eq!(e.stale_reads(A), [(Object::Size(F), Opponent::Plain(who()))]);
    assert_eq!(e.write(A, ObjectRef::Size(F)), Access::Doomed);
    assert_eq!(lost(&e, A).1, Opponent::Plain(who()));
}

#[test]
fn only_an_aged_transaction_may_ask_for_time() {
    let e = Engine::new();
    e.begin(A, BeginOptions { age: 2, ..BeginOptions::default() });
    e.begin(B, aged());
    assert!(!e.reserve(A) && e.reserve(B) && !e.reserve(C));
    assert_eq!(e.read(A, ObjectRef::Attr(F)), Access::Granted);
    let attr = [ObjectRef::Attr(F)];
    assert!(matches!(e.plain_mutation(&attr, who(), Stall::Bounded), Plain::Decided(_)));
    assert_eq!(e.status(A), Some(Status::Doomed));
    assert!(!e.reserve(A));
}

#[test]
fn a_mutation_of_a_file_is_held_for_an_aged_transaction_until_its_limit() {
    let e = Engine::new();
    e.begin(A, aged());
    assert!(e.reserve(A));
    assert_eq!(e.read(A, pages(0, 3)), Access::Granted);
    let page = [pages(2, 2)];
    assert!(matches!(e.plain_mutation(&page, who(), Stall::Bounded), Plain::Hold(A)));
    assert!(!e.wait_ended(A, Duration::from_millis(1)), "it runs on");
    assert_eq!(decided(&e, &page).doomed(), [A]);
    assert!(e.wait_ended(A, Duration::MAX), "it has lost");
}

#[test]
fn who_is_held_is_woken_when_the_aged_one_loses_or_ends() {
    let e = Engine::new();
    for lose in [true, false] {
        e.begin(A, aged());
        e.reserve(A);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| e.wait_ended(A, Duration::MAX));
            if lose {
                assert_eq!(e.read(A, ObjectRef::Attr(F)), Access::Granted);
                assert_eq!(decided(&e, &[ObjectRef::Attr(F)]).doomed(), [A]);
            } else {
                e.decide(A).unwrap();
                e.installed(A);
            }
            assert!(waiter.join().unwrap());
        });
        e.abort(A);
    }
}

#[test]
fn mutations_are_held_only_where_the_aged_one_has_not_written() {
    let e = Engine::new();
    e.begin(A, aged());
    assert!(e.reserve(A));
    let other = |name| ObjectRef::Entry { dir: F, name };
    for o in [entry("x"), ObjectRef::List(D), pages(0, 9)] {
        assert_eq!(e.read(A, o), Access::Granted);
    }
    for o in [other(b"z"), pages(5, 5)] {
        assert_eq!(e.write(A, o), Access::Granted);
    }
    for o in [entry("x"), entry("y"), pages(3, 4)] {
        assert!(matches!(e.plain_mutation(&[o], who(), Stall::Bounded), Plain::Hold(A)));
    }
    // It would lose anyway by the other: then nobody has to wait.
    for o in [other(b"z"), pages(5, 6)] {
        match e.plain_mutation(&[entry("x"), o], who(), Stall::Bounded) {
            Plain::Decided(guard) => assert_eq!(guard.doomed(), [A]),
            other => panic!("{other:?}"),
        }
        e.abort(A);
        e.begin(A, aged());
        assert!(e.reserve(A));
        assert_eq!(e.read(A, entry("x")), Access::Granted);
        assert_eq!(e.write(A, pages(5, 5)), Access::Granted);
    }
}

#[test]
#[should_panic(expected = "exists")]
fn ids_of_plain_mutations_are_not_for_transactions() {
    Engine::new().begin(TxnId(1 << 63), BeginOptions::default());
}

#[test]
fn a_begin_that_does_not_wait_fails_while_a_mutation_is_inside_the_gate() {
    let e = Engine::new();
    let inside = decided(&e, &[ObjectRef::Attr(F)]);
    assert_eq!(inside.id(), None);
    assert_eq!(e.try_begin(A, BeginOptions::default()), None);
    // It left nothing behind: the gate is open for the next one.
    let second = decided(&e, &[ObjectRef::Attr(F)]);
    assert_eq!(second.id(), None, "the gate is open again");
    drop((inside, second));
    assert!(e.try_begin(A, BeginOptions::default()).is_some());
    let third = decided(&e, &[ObjectRef::Attr(F)]);
    assert!(third.id().is_some(), "closed");
    // What is recorded is in nobody's way.
    assert!(e.try_begin(B, BeginOptions::default()).is_some());
    drop(third);
    e.abort(A);
    e.abort(B);
    assert_eq!(decided(&e, &[ObjectRef::Attr(F)]).id(), None, "open again");
}
