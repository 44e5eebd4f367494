#![allow(clippy::unwrap_used)]
use super::*;
use crate::policy::{Choice, Contender};
use crate::{Isolation, PAGE};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use systx_base::Oid;

mod inject;
mod model;
mod plain;
mod policy;
mod stall;
mod threads;

use policy::Nices;

const A: TxnId = TxnId(1);
const B: TxnId = TxnId(2);
const C: TxnId = TxnId(3);
const F: Oid = Oid(10);
const D: Oid = Oid(20);

fn entry(name: &str) -> ObjectRef<'_> {
    ObjectRef::Entry { dir: D, name: name.as_bytes() }
}

fn pages(first: u64, last: u64) -> ObjectRef<'static> {
    ObjectRef::Pages { oid: F, first, last }
}

fn snapshot() -> BeginOptions {
    BeginOptions { isolation: Isolation::Snapshot, ..BeginOptions::default() }
}

/// A, B and C in this order of age.
fn three(o: &BeginOptions) -> Engine {
    let engine = Engine::new();
    for t in [A, B, C] {
        engine.begin(t, o.clone());
    }
    engine
}

fn serializable() -> Engine {
    three(&BeginOptions::default())
}

fn commit(engine: &Engine, t: TxnId) {
    engine.decide(t).unwrap();
    engine.installed(t);
}

fn lost(engine: &Engine, t: TxnId) -> (Object, Opponent, Side, Side) {
    let c = engine.conflict(t).unwrap();
    (c.object, c.opponent, c.mine, c.theirs)
}

fn check(engine: &Engine) {
    engine.state.lock().units.check();
}

#[test]
fn readers_share_and_the_older_writer_wins() {
    let e = serializable();
    for t in [A, B, C] {
        assert_eq!(e.read(t, ObjectRef::Attr(F)), Access::Granted);
    }
    assert_eq!(e.write(A, ObjectRef::Attr(F)), Access::Granted);
    for t in [B, C] {
        assert_eq!(e.status(t), Some(Status::Doomed));
        let expected = (Object::Attr(F), Opponent::Txn(A), Side::Read, Side::Write);
        assert_eq!(lost(&e, t), expected);
        assert_eq!(e.read(t, ObjectRef::Size(F)), Access::Doomed);
        assert_eq!(e.decide(t), Err(e.conflict(t).unwrap()));
    }
    check(&e);
}

#[test]
fn the_younger_loses_whether_it_comes_first_or_last() {
    let e = serializable();
    assert_eq!(e.write(A, entry("x")), Access::Granted);
    assert_eq!(e.write(B, entry("x")), Access::Doomed);
    let expected = (entry("x").to_object(), Opponent::Txn(A), Side::Write, Side::Write);
    assert_eq!(lost(&e, B), expected);
    assert_eq!(e.read(C, entry("x")), Access::Doomed);
    assert_eq!(lost(&e, C).2, Side::Read);
    assert_eq!(e.status(A), Some(Status::Active));
}

#[test]
fn a_challenger_that_loses_harms_nobody() {
    // C is younger than A but more urgent than B: it would beat B, but not A.
    let e = Engine::new();
    e.begin(A, BeginOptions { priority: -5, ..BeginOptions::default() });
    e.begin(B, BeginOptions { priority: 5, ..BeginOptions::default() });
    e.begin(C, BeginOptions::default());
    e.read(A, ObjectRef::Size(F));
    e.read(B, ObjectRef::Size(F));
    assert_eq!(e.write(C, ObjectRef::Size(F)), Access::Doomed);
    assert_eq!(lost(&e, C).1, Opponent::Txn(A));
    assert_eq!(e.status(B), Some(Status::Active));
}

#[test]
fn different_objects_of_one_file_do_not_conflict() {
    let e = serializable();
    assert_eq!(e.write(A, ObjectRef::Attr(F)), Access::Granted);
    assert_eq!(e.write(B, ObjectRef::Size(F)), Access::Granted);
    assert_eq!(e.write(C, pages(0, u64::MAX)), Access::Granted);
    assert_eq!(e.write(B, ObjectRef::Attr(D)), Access::Granted);
}

#[test]
fn pages_conflict_where_they_overlap() {
    let e = serializable();
    assert_eq!(e.write(A, pages(3, 5)), Access::Granted);
    assert_eq!(e.write(B, pages(6, 6)), Access::Granted);
    assert_eq!(e.read(B, pages(0, 2)), Access::Granted);
    assert_eq!(e.read(C, pages(6, u64::MAX)), Access::Doomed);
    assert_eq!(
        lost(&e, C),
        (pages(6, u64::MAX).to_object(), Opponent::Txn(B), Side::Read, Side::Write)
    );
    assert_eq!(e.write(B, pages(4, 4)), Access::Doomed);
    check(&e);
}

#[test]
fn bytes_become_pages() {
    assert_eq!(ObjectRef::bytes(F, 4095, 2), Some(pages(0, 1)));
    assert_eq!(ObjectRef::bytes(F, 4096, 4096), Some(pages(1, 1)));
    assert_eq!(ObjectRef::bytes(F, 1, 0), None);
    assert_eq!(ObjectRef::bytes(F, u64::MAX, 9), Some(pages(u64::MAX / PAGE, u64::MAX / PAGE)));
    assert_eq!(ObjectRef::bytes_from(F, 4096), pages(1, u64::MAX));
}

// ---- lists: TxOS Table 3 ----

#[test]
fn different_names_in_one_directory_do_not_conflict() {
    let e = serializable();
    assert_eq!(e.write(A, entry("a")), Access::Granted);
    assert_eq!(e.write(B, entry("b")), Access::Granted);
    assert_eq!(e.read(C, entry("c")), Access::Granted);
    for t in [C, B, A] {
        commit(&e, t);
    }
}

#[test]
fn listing_conflicts_with_every_change_of_a_name() {
    let e = serializable();
    e.write(B, entry("b"));
    e.write(C, entry("c"));
    assert_eq!(e.read(A, ObjectRef::List(D)), Access::Granted, "state exclusive or read");
    for t in [B, C] {
        assert_eq!(lost(&e, t), (Object::List(D), Opponent::Txn(A), Side::Write, Side::Read));
    }
    let e = serializable();
    e.read(A, ObjectRef::List(D));
    e.read(B, ObjectRef::List(D));
    assert_eq!(e.write(C, entry("c")), Access::Doomed, "state read");
    assert_eq!(lost(&e, C), (entry("c").to_object(), Opponent::Txn(A), Side::Write, Side::Read));
}

#[test]
fn a_writer_that_lists_excludes_other_writers() {
    let e = serializable();
    e.write(A, entry("a"));
    e.write(B, entry("b"));
    assert_eq!(e.read(A, ObjectRef::List(D)), Access::Granted);
    assert_eq!(e.status(B), Some(Status::Doomed), "own names are no listing: state exclusive");
    assert_eq!(e.write(C, entry("c")), Access::Doomed);
    assert_eq!(e.write(A, entry("d")), Access::Granted);
}

#[test]
fn a_read_of_a_name_does_not_read_the_list() {
    let e = serializable();
    assert_eq!(e.read(A, entry("absent")), Access::Granted);
    assert_eq!(e.write(B, entry("other")), Access::Granted);
    assert_eq!(e.write(C, entry("absent")), Access::Doomed);
}

#[test]
fn a_list_written_as_such_is_as_a_name_written() {
    let e = serializable();
    assert_eq!(e.write(A, ObjectRef::List(D)), Access::Granted);
    assert_eq!(e.write(B, entry("b")), Access::Granted);
    assert_eq!(e.read(C, ObjectRef::List(D)), Access::Doomed);
}

// ---- decisions and waiting ----

#[test]
fn what_a_decided_transaction_wrote_is_waited_for() {
    let e = serializable();
    e.write(C, entry("c"));
    e.write(C, pages(0, 9));
    e.read(C, ObjectRef::Attr(F));
    e.decide(C).unwrap();
    assert_eq!(e.read(A, entry("c")), Access::Wait(C), "age does not matter any more");
    assert_eq!(e.write(A, pages(9, 10)), Access::Wait(C));
    assert_eq!(e.read(A, ObjectRef::List(D)), Access::Wait(C));
    assert_eq!(e.write(A, entry("a")), Access::Granted, "another name");
    assert_eq!(e.write(A, ObjectRef::Attr(F)), Access::Granted, "only read");
    assert_eq!(e.workset(A), Some(Workset { reads: 0, writes: 2 }), "what waits is not recorded");
    assert_eq!(e.decide(C), Ok(()), "deciding twice is one decision");
    assert!(!e.doom(C, e.conflict(A).unwrap_or(conflict())));
    e.installed(C);
    e.wait_installed(C);
    assert_eq!(e.read(A, entry("c")), Access::Granted);
    assert_eq!((e.status(C), e.stats().waits), (None, 3));
    check(&e);
}

fn conflict() -> Conflict {
    Conflict {
        object: Object::Attr(F),
        opponent: Opponent::Outside,
        mine: Side::Read,
        theirs: Side::Write,
    }
}

#[test]
fn waiting_comes_before_losing() {
    // B, asking for two pages, meets decided C and stronger A: it learns of A after C is installed.
    let e = serializable();
    e.write(C, pages(0, 0));
    e.write(A, pages(1, 1));
    e.decide(C).unwrap();
    assert_eq!(e.read(B, pages(0, 1)), Access::Wait(C));
    assert_eq!(e.status(B), Some(Status::Active));
    e.installed(C);
    assert_eq!(e.read(B, pages(0, 1)), Access::Doomed);
}

#[test]
fn a_failed_commit_releases_those_who_wait() {
    let e = Arc::new(serializable());
    e.write(B, ObjectRef::Size(F));
    e.decide(B).unwrap();
    let (told, waits) = std::sync::mpsc::channel();
    let waiter = {
        let e = e.clone();
        std::thread::spawn(move || {
            assert_eq!(e.read(A, ObjectRef::Size(F)), Access::Wait(B));
            told.send(()).unwrap();
            e.wait_installed(B);
            e.read(A, ObjectRef::Size(F))
        })
    };
    waits.recv().unwrap();
    e.abort(B);
    assert_eq!(waiter.join().unwrap(), Access::Granted);
}

#[test]
fn the_end_of_another_commit_wakes_nobody_for_good() {
    let e = Arc::new(serializable());
    e.decide(A).unwrap();
    let (told, waits) = std::sync::mpsc::channel();
    let waiter = {
        let e = e.clone();
        std::thread::spawn(move || {
            told.send(()).unwrap();
            e.wait_installed(A);
            e.status(A)
        })
    };
    waits.recv().unwrap();
    for id in 100..2000 {
        e.begin(TxnId(id), BeginOptions::default());
        e.decide(TxnId(id)).unwrap();
        e.installed(TxnId(id));
        std::thread::yield_now();
    }
    e.installed(A);
    assert_eq!(waiter.join().unwrap(), None);
}

#[test]
fn a_decided_transaction_takes_nothing_new() {
    let e = serializable();
    e.write(A, ObjectRef::Size(F));
    e.decide(A).unwrap();
    assert_eq!(e.write(A, ObjectRef::Size(F)), Access::Granted);
    assert_eq!(e.write(A, ObjectRef::Attr(F)), Access::Doomed);
    assert_eq!(e.read(A, ObjectRef::Attr(F)), Access::Granted, "stragglers may look");
    assert_eq!(e.write(B, ObjectRef::Attr(F)), Access::Granted, "and hold nothing by it");
}

#[test]
fn an_aborted_transaction_is_in_nobodys_way() {
    let e = serializable();
    e.write(A, entry("x"));
    e.abort(A);
    assert_eq!(e.write(B, entry("x")), Access::Granted);
    assert_eq!(e.read(A, entry("x")), Access::Doomed, "an unknown transaction");
    e.abort(A);
    e.installed(A);
    e.wait_installed(A);
    assert_eq!(e.status(A), None);
}

#[test]
fn a_loser_is_in_nobodys_way_before_it_ends() {
    let e = serializable();
    e.write(B, entry("x"));
    e.write(B, pages(0, 5));
    e.write(A, entry("x"));
    assert_eq!(e.write(C, pages(0, 5)), Access::Granted);
    e.abort(B);
    assert_eq!(e.status(C), Some(Status::Active));
    check(&e);
}

#[test]
fn everything_is_given_back_at_the_end() {
    let e = serializable();
    for i in 0..5000u64 {
        let name = format!("file{i}");
        e.write(A, ObjectRef::Entry { dir: Oid(i % 7), name: name.as_bytes() });
        e.read(B, ObjectRef::Attr(Oid(i)));
        e.read(C, ObjectRef::Attr(Oid(i)));
        e.write(C, ObjectRef::Pages { oid: Oid(i), first: i, last: i + 3 });
    }
    check(&e);
    commit(&e, A);
    check(&e);
    e.abort(B);
    e.abort(C);
    check(&e);
    assert_eq!(e.stats(), Stats { conflicts: 0, ..Stats::default() });
    assert!(e.memory() < 200_000, "{} bytes are left", e.memory());
}

#[test]
fn ids_are_checked() {
    let e = Arc::new(serializable());
    let twice = e.clone();
    let twice = std::thread::spawn(move || twice.begin(A, BeginOptions::default()));
    assert!(twice.join().is_err(), "an id in use");
    let unknown = e.clone();
    let unknown = std::thread::spawn(move || unknown.decide(TxnId(99)));
    assert!(unknown.join().is_err(), "an id not in use");
    assert_eq!(e.read(A, ObjectRef::Attr(F)), Access::Granted, "the engine goes on");
}

// ---- outsiders ----

#[test]
fn an_outside_change_dooms_whoever_touched_the_object() {
    let e = serializable();
    e.read(A, pages(0, 3));
    e.write(B, ObjectRef::Attr(F));
    e.read(C, ObjectRef::List(D));
    assert_eq!(e.outside_change(pages(4, 9)), []);
    assert_eq!(e.outside_change(pages(3, 3)), [A]);
    assert_eq!(e.outside_change(pages(3, 3)), [], "once");
    assert_eq!(e.outside_change(ObjectRef::Attr(F)), [B]);
    assert_eq!(e.outside_change(entry("new")), [C]);
    assert_eq!(lost(&e, B), (Object::Attr(F), Opponent::Outside, Side::Write, Side::Write));
    assert_eq!(lost(&e, C), (entry("new").to_object(), Opponent::Outside, Side::Read, Side::Write));
}

#[test]
fn an_outside_change_of_another_name_spares_writers_of_names() {
    let e = serializable();
    e.write(A, entry("a"));
    assert_eq!(e.outside_change(entry("b")), []);
    assert_eq!(e.outside_change(ObjectRef::List(D)), []);
    assert_eq!(e.outside_change(entry("a")), [A]);
}

#[test]
fn an_outside_change_does_not_reach_the_decided() {
    let e = serializable();
    e.write(A, ObjectRef::Attr(F));
    e.decide(A).unwrap();
    assert_eq!(e.outside_change(ObjectRef::Attr(F)), []);
    assert_eq!(e.status(A), Some(Status::Committing));
}

// ---- snapshot isolation ----

#[test]
fn snapshot_reads_do_not_conflict_and_stale_ones_are_listed() {
    let e = three(&snapshot());
    e.read(B, ObjectRef::Attr(F));
    e.read(B, entry("x"));
    e.read(B, ObjectRef::List(D));
    e.read(B, pages(0, 9));
    assert_eq!(e.write(C, ObjectRef::Attr(F)), Access::Granted, "younger, and still");
    assert_eq!(e.write(C, entry("y")), Access::Granted);
    assert_eq!(e.write(C, pages(8, 12)), Access::Granted);
    assert_eq!(e.stale_reads(B), [], "not before it is installed");
    e.decide(C).unwrap();
    assert_eq!(
        e.read(B, ObjectRef::Attr(F)),
        Access::Wait(C),
        "no look at a half-installed commit"
    );
    e.installed(C);
    let mut stale = e.stale_reads(B);
    stale.sort();
    let by = Opponent::Txn(C);
    assert_eq!(
        stale,
        [(Object::List(D), by), (Object::Attr(F), by), (pages(8, 9).to_object(), by)]
    );
    assert_eq!(e.read(B, ObjectRef::Attr(F)), Access::Granted);
    assert_eq!(e.outside_change(entry("x")), []);
    assert_eq!(e.outside_change(ObjectRef::Attr(F)), []);
    assert_eq!(e.stale_reads(B).len(), 4, "each once, with the first who changed it");
    assert_eq!(e.decide(B), Ok(()));
    check(&e);
}

#[test]
fn snapshot_writes_conflict_with_everybody() {
    let e = Engine::new();
    e.begin(A, BeginOptions::default());
    e.begin(B, snapshot());
    e.begin(C, snapshot());
    e.read(A, ObjectRef::Size(F));
    assert_eq!(e.write(B, ObjectRef::Size(F)), Access::Doomed, "a serializable reader");
    e.write(C, ObjectRef::Attr(F));
    assert_eq!(e.write(A, ObjectRef::Attr(F)), Access::Granted, "a serializable writer");
    assert_eq!(lost(&e, C), (Object::Attr(F), Opponent::Txn(A), Side::Write, Side::Write));
    assert_eq!(e.outside_change(ObjectRef::Attr(F)), [A]);
}

#[test]
fn a_stale_read_may_not_be_built_upon() {
    for dependent in [false, true] {
        let e = three(&snapshot());
        e.read(A, entry("x"));
        e.write(C, entry("x"));
        commit(&e, C);
        assert_eq!(e.write(A, entry("y")), Access::Granted, "another object");
        let ask = if dependent { Engine::depend } else { Engine::write };
        assert_eq!(ask(&e, A, entry("x")), Access::Doomed, "the first committer has won");
        let (object, opponent, mine, theirs) = lost(&e, A);
        assert_eq!((object, opponent), (entry("x").to_object(), Opponent::Txn(C)));
        assert_eq!((mine == Side::Read, theirs), (dependent, Side::Write));
    }
    // Pages: only those that are stale.
    let e = three(&snapshot());
    e.read(A, pages(0, 9));
    e.outside_change(pages(4, 5));
    assert_eq!(e.write(A, pages(6, 9)), Access::Granted);
    assert_eq!(e.write(A, pages(0, 4)), Access::Doomed);
    assert_eq!(lost(&e, A).1, Opponent::Outside);
}

#[test]
fn what_is_first_read_after_a_commit_is_not_stale() {
    let e = three(&snapshot());
    e.write(C, ObjectRef::Size(F));
    commit(&e, C);
    assert_eq!(e.read(A, ObjectRef::Size(F)), Access::Granted);
    assert_eq!(e.write(A, ObjectRef::Size(F)), Access::Granted);
    assert_eq!(e.stale_reads(A), []);
}

#[test]
fn an_aborted_writer_leaves_nothing_stale() {
    let e = three(&snapshot());
    e.read(A, ObjectRef::Size(F));
    e.write(B, ObjectRef::Size(F));
    e.decide(B).unwrap();
    e.abort(B);
    assert_eq!(e.stale_reads(A), []);
    assert_eq!(e.write(A, ObjectRef::Size(F)), Access::Granted);
}

#[test]
fn what_is_depended_on_conflicts_under_snapshot_isolation_too() {
    let e = three(&snapshot());
    e.depend(A, ObjectRef::List(D));
    assert_eq!(e.write(B, entry("b")), Access::Doomed, "the directory is about to be removed");
    assert_eq!(e.outside_change(entry("c")), [A]);
}

#[test]
fn a_read_only_transaction_never_loses_and_stops_nobody() {
    let o = BeginOptions { read_only: true, ..BeginOptions::default() };
    let e = Engine::new();
    e.begin(A, o);
    e.begin(B, BeginOptions::default());
    e.read(A, ObjectRef::Attr(F));
    e.depend(A, ObjectRef::List(D));
    assert_eq!(e.write(A, entry("scratch")), Access::Granted);
    assert_eq!(e.write(B, ObjectRef::Attr(F)), Access::Granted);
    assert_eq!(e.write(B, entry("scratch")), Access::Granted);
    e.decide(B).unwrap();
    assert_eq!(e.write(A, entry("scratch")), Access::Wait(B), "its copy may be read from there");
    e.installed(B);
    assert_eq!(e.outside_change(ObjectRef::Attr(F)), []);
    let stale: Vec<_> = e.stale_reads(A).into_iter().map(|(o, _)| o).collect();
    assert_eq!(stale.len(), 2);
    assert!(stale.contains(&Object::Attr(F)) && stale.contains(&Object::List(D)));
    assert_eq!(e.status(A), Some(Status::Active));
}

// ---- losing ----

#[test]
fn a_loser_is_told_before_the_winner_goes_on() {
    let e = serializable();
    let told = Arc::new(AtomicU64::new(0));
    for t in [A, B, C] {
        let told = told.clone();
        e.on_doom(t, move |t, why| {
            assert_eq!(why.object, Object::Size(F));
            told.fetch_add(t.0 * 10, Ordering::SeqCst);
        });
    }
    e.read(B, ObjectRef::Size(F));
    assert_eq!(e.write(A, ObjectRef::Size(F)), Access::Granted);
    assert_eq!(told.load(Ordering::SeqCst), 20);
    assert_eq!(e.write(C, ObjectRef::Size(F)), Access::Doomed);
    assert_eq!(told.load(Ordering::SeqCst), 50, "a challenger that loses is told as well");
    let late = told.clone();
    e.on_doom(B, move |_, _| late.store(7, Ordering::SeqCst));
    assert_eq!(told.load(Ordering::SeqCst), 7, "who asks late is told at once");
    commit(&e, A);
    assert_eq!(told.load(Ordering::SeqCst), 7);
}

#[test]
fn the_engine_may_be_called_when_a_loser_is_told() {
    let e = Arc::new(serializable());
    let again = e.clone();
    e.on_doom(B, move |t, _| again.abort(t));
    e.write(B, ObjectRef::Size(F));
    e.write(A, ObjectRef::Size(F));
    assert_eq!(e.status(B), None);
}

#[test]
fn doom_is_final_and_happens_once() {
    let e = serializable();
    assert!(e.doom(A, conflict()));
    assert!(!e.doom(A, conflict()));
    assert_eq!(e.conflict(A), Some(conflict()));
    assert_eq!(e.write(A, entry("x")), Access::Doomed);
    assert!(!e.doom(TxnId(77), conflict()));
}

#[test]
fn a_transaction_can_defer_to_others() {
    let e = Engine::new();
    let nices = Arc::new(Nices::default());
    for id in [A, B] {
        let follows = Some(nices.clone().of_transaction(id.0));
        e.begin(id, BeginOptions { follows, ..BeginOptions::default() });
    }
    e.read(A, ObjectRef::List(D));
    nices.set(A.0, 19);
    assert_eq!(e.write(B, entry("awaited")), Access::Granted, "TxOS+ lockfile test");
    assert_eq!(e.status(A), Some(Status::Doomed));
}

// ---- aging ----

/// One low-priority transaction needs ten objects in a row; before each step a fresh urgent one
/// takes the next of them.  Returns the attempts it took.
fn attempts_against_a_tight_loop(choice: Choice) -> u32 {
    let e = Engine::new();
    let ids = AtomicU64::new(1);
    let fresh = || TxnId(ids.fetch_add(1, Ordering::Relaxed));
    let mut first = None;
    for age in 0..100 {
        let old = fresh();
        let usual = BeginOptions { choice, ..BeginOptions::default() };
        let o = BeginOptions { priority: 19, age, timestamp: first, ..usual.clone() };
        let Timestamp(began) = e.begin(old, o);
        first = first.or(Some(began));
        for step in 0..10 {
            let young = fresh();
            e.begin(young, BeginOptions { priority: -20, ..usual.clone() });
            e.write(young, ObjectRef::Attr(Oid(100 + step)));
            for more in 0..15 {
                e.write(young, ObjectRef::Attr(Oid(200 + 20 * step + more)));
            }
            e.read(old, ObjectRef::Size(Oid(step)));
            if e.write(young, ObjectRef::Size(Oid(step))) == Access::Granted {
                commit(&e, young);
            } else {
                e.abort(young);
            }
        }
        if e.decide(old).is_ok() {
            e.installed(old);
            return age + 1;
        }
        e.abort(old);
    }
    u32::MAX
}

#[test]
fn a_loser_ages_and_then_wins() {
    for choice in [Choice::OsPrio, Choice::SizeMatters, Choice::Karma] {
        assert_eq!(attempts_against_a_tight_loop(choice), 4, "{choice:?}");
    }
    assert_eq!(attempts_against_a_tight_loop(Choice::Timestamp), 1);
}

/// Who sleeps loses, also if it is older and aged, until it asks for something itself.
#[test]
fn who_sleeps_loses_to_who_does_not() {
    let e = Engine::new();
    e.begin(A, BeginOptions { age: 9, ..BeginOptions::default() });
    e.begin(B, BeginOptions::default());
    e.begin(C, BeginOptions::default());
    let (asleep, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (sleeps, looked) = (asleep.clone(), looks.clone());
    e.defer_while(A, move || {
        looked.fetch_add(1, Ordering::SeqCst);
        sleeps.load(Ordering::SeqCst)
    });
    e.write(A, entry("x"));
    assert_eq!(e.read(B, entry("y")), Access::Granted);
    assert_eq!(looks.load(Ordering::SeqCst), 0, "nobody is in conflict");
    assert_eq!(e.write(B, entry("x")), Access::Doomed);
    assert_eq!((looks.load(Ordering::SeqCst), e.lost_asleep(B)), (1, false));
    asleep.store(true, Ordering::SeqCst);
    assert_eq!(e.write(C, entry("x")), Access::Granted);
    assert_eq!((e.status(A), e.lost_asleep(A)), (Some(Status::Doomed), true));
    // Awake again it is as strong as it was.
    for t in [A, C] {
        e.abort(t);
        e.begin(t, BeginOptions::default());
    }
    e.defer_while(A, || true);
    e.write(A, entry("x"));
    e.write(C, entry("z"));
    e.state.lock().defer(A);
    assert_eq!(e.write(A, entry("z")), Access::Granted);
    assert_eq!(e.status(C), Some(Status::Doomed));
}

#[test]
fn any_policy_can_be_plugged_in() {
    struct LatestComer;
    impl ContentionPolicy for LatestComer {
        fn challenger_wins(&self, _: &Contender, _: &Contender) -> bool {
            true
        }
    }
    let e = Engine::with_policy(Box::new(LatestComer));
    e.begin(A, BeginOptions::default());
    e.begin(B, BeginOptions::default());
    e.write(A, entry("x"));
    assert_eq!(e.write(B, entry("x")), Access::Granted);
    assert_eq!(e.status(A), Some(Status::Doomed));
}

// ---- part of a transaction commits ----

#[test]
fn a_part_keeps_the_read_set_and_does_not_fight_the_rest() {
    let e = serializable();
    e.read(A, entry("config"));
    e.read(A, pages(0, 3));
    e.read(A, pages(8, 9));
    e.write(A, entry("out"));
    e.write(A, ObjectRef::Attr(F));
    let part = TxnId(50);
    e.begin(part, BeginOptions::default());
    assert_eq!(e.merge_reads(A, part), Access::Granted);
    check(&e);
    let mut reads = e.workset_objects(part);
    reads.sort();
    let expected = [entry("config"), pages(0, 3), pages(8, 9)];
    assert_eq!(reads, expected.map(|o| (o.to_object(), Side::Read)));
    assert_eq!(e.write(part, ObjectRef::Attr(F)), Access::Granted, "the rest wrote it");
    assert_eq!(e.write(part, pages(0, 0)), Access::Granted, "the rest read it");
    assert_eq!(e.write(C, pages(9, 9)), Access::Doomed, "the read set is protected");
    commit(&e, part);
    assert_eq!(e.status(A), Some(Status::Active));
    assert_eq!(e.write(B, ObjectRef::Attr(F)), Access::Doomed, "the rest still holds it");
    commit(&e, A);
    check(&e);
}

#[test]
fn a_part_loses_what_the_rest_loses() {
    let e = serializable();
    e.read(B, entry("config"));
    let part = TxnId(50);
    e.begin(part, BeginOptions::default());
    e.merge_reads(B, part);
    e.write(A, entry("config"));
    assert_eq!(e.status(part), Some(Status::Doomed));
    let late = TxnId(51);
    e.begin(late, BeginOptions::default());
    assert_eq!(e.merge_reads(B, late), Access::Doomed);
    assert_eq!(e.conflict(late), e.conflict(B));
    assert_eq!(e.merge_reads(TxnId(99), late), Access::Doomed);
}

#[test]
fn a_part_inherits_stale_reads() {
    let e = three(&snapshot());
    e.read(A, ObjectRef::Attr(F));
    e.read(A, ObjectRef::Size(F));
    e.outside_change(ObjectRef::Attr(F));
    let part = TxnId(50);
    e.begin(part, BeginOptions::default());
    e.merge_reads(A, part);
    e.abort(A);
    e.outside_change(ObjectRef::Size(F));
    let stale = [Object::Attr(F), Object::Size(F)].map(|o| (o, Opponent::Outside));
    assert_eq!(e.stale_reads(part), stale);
    assert_eq!(e.write(part, ObjectRef::Attr(F)), Access::Doomed);
    e.abort(part);
    check(&e);
}

#[test]
fn a_part_goes_on_noting_after_the_rest_has_ended() {
    let e = Engine::new();
    let part = TxnId(50);
    e.begin(A, snapshot());
    e.begin(B, BeginOptions::default());
    e.begin(part, BeginOptions::default());
    e.read(A, ObjectRef::Size(F));
    e.merge_reads(A, part);
    e.abort(A);
    e.write(B, ObjectRef::Size(F));
    commit(&e, B);
    assert_eq!(e.stale_reads(part), [(Object::Size(F), Opponent::Txn(B))]);
}

#[test]
fn others_wait_where_a_part_installs() {
    let e = serializable();
    e.write(B, ObjectRef::Size(F));
    let part = TxnId(50);
    e.begin(part, BeginOptions::default());
    e.merge_reads(B, part);
    assert_eq!(e.write(part, ObjectRef::Size(F)), Access::Granted);
    e.decide(part).unwrap();
    assert_eq!(e.read(A, ObjectRef::Size(F)), Access::Wait(part), "before it beats the rest");
    e.installed(part);
    assert_eq!(e.read(A, ObjectRef::Size(F)), Access::Granted);
    assert_eq!(e.status(B), Some(Status::Doomed));
}

#[test]
fn a_census_counts_every_kind_by_side() {
    let e = serializable();
    e.read(A, entry("x"));
    e.write(A, entry("y"));
    e.read(A, ObjectRef::Attr(F));
    e.write(A, ObjectRef::Attr(F));
    e.read(A, ObjectRef::Size(F));
    e.write(A, pages(0, 9));
    e.read(A, pages(20, 21));
    let want =
        Census { entries: (1, 1), lists: (0, 1), attributes: (1, 1), sizes: (1, 0), pages: (1, 1) };
    assert_eq!(e.census(A), want);
    assert_eq!(e.census(B), Census::default());
    // More than are looked at under one lock.
    for n in 0..3 * SWEEP as u64 {
        e.read(B, ObjectRef::Attr(Oid(1000 + n)));
    }
    assert_eq!(e.census(B).attributes, (3 * SWEEP as u64, 0));
    e.abort(A);
    assert_eq!(e.census(A), Census::default());
}
