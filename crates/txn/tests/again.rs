//! Attempts after a loss: of those that lost over the same one begins at a time, the strongest
//! first.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use systx_base::{Oid, TxnId};
use systx_txn::{Access, BeginOptions, Conflict, Engine, ObjectRef, Opponent, Patience, Urgency};

const FILE: Oid = Oid(7);
/// Long enough to show who does not wait; too short shows nothing wrong.
const A_WHILE: Duration = Duration::from_millis(100);
/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(300);

fn page(oid: Oid) -> ObjectRef<'static> {
    ObjectRef::Pages { oid, first: 0, last: 0 }
}

fn attempt(timestamp: u64, age: u32) -> BeginOptions {
    BeginOptions { timestamp: Some(timestamp), age, ..BeginOptions::default() }
}

/// What one loses by that reads a file which a stronger one has written.
fn loses(engine: &Engine, id: TxnId, options: BeginOptions, oid: Oid) -> [Conflict; 1] {
    engine.begin(id, options);
    assert_eq!(engine.read(id, page(oid)), Access::Doomed);
    let lost = engine.conflict(id).unwrap();
    engine.abort(id);
    [lost]
}

fn writes(engine: &Engine, id: u64, timestamp: u64, oid: Oid) -> TxnId {
    engine.begin(TxnId(id), attempt(timestamp, 100));
    assert_eq!(engine.write(TxnId(id), page(oid)), Access::Granted);
    TxnId(id)
}

fn commits(engine: &Engine, id: TxnId) {
    engine.decide(id).unwrap();
    engine.installed(id);
}

fn in_line(engine: &Engine, many: u64) {
    let begun = Instant::now();
    while engine.stats().again != many {
        assert!(begun.elapsed() < HANG / 10, "{} in line, not {many}", engine.stats().again);
        thread::yield_now();
    }
}

/// Reads and writes the file when it is its turn, says so, and commits when it is told to; it never
/// loses.
fn goes_again(engine: &Engine, n: u64, lost: &[Conflict], said: &Sender<u64>, go: &Receiver<()>) {
    let (id, options) = (TxnId(100 + n), attempt(10 + n, 3));
    let turn = engine.await_turn(id, &options, lost, Patience::of(HANG));
    engine.begin(id, options);
    drop(turn);
    // The one before it may have yet to be installed.
    while let Access::Wait(before) = engine.read(id, page(FILE)) {
        engine.wait_installed(before);
    }
    assert_eq!(engine.write(id, page(FILE)), Access::Granted, "it has lost");
    said.send(n).unwrap();
    go.recv_timeout(HANG).unwrap();
    commits(engine, id);
}

#[test]
fn of_many_that_lost_over_one_file_one_begins_at_a_time_the_oldest_first() {
    const MANY: u64 = 8;
    let engine = Engine::new();
    let winner = writes(&engine, 1, 1, FILE);
    let (said, says) = channel();
    thread::scope(|scope| {
        let mut gos = Vec::new();
        // They come in another order.
        for n in [5, 2, 7, 0, 3, 6, 1, 4] {
            let lost = loses(&engine, TxnId(10 + n), attempt(10 + n, 2), FILE);
            let (go, goes) = channel();
            gos.push((n, go));
            let (engine, said) = (&engine, said.clone());
            scope.spawn(move || goes_again(engine, n, &lost, &said, &goes));
        }
        gos.sort_by_key(|(n, _)| *n);
        in_line(&engine, MANY);
        assert!(says.recv_timeout(A_WHILE).is_err(), "before the winner has ended");
        commits(&engine, winner);
        for (n, go) in gos {
            assert_eq!(says.recv_timeout(HANG).unwrap(), n);
            assert!(says.recv_timeout(A_WHILE).is_err(), "two at a time");
            go.send(()).unwrap();
        }
    });
    assert_eq!(engine.stats().again, 0);
}

#[test]
fn who_waits_for_another_one_is_in_nobodys_way() {
    const OTHER: Oid = Oid(8);
    let engine = Engine::new();
    let first = writes(&engine, 1, 1, FILE);
    let older = loses(&engine, TxnId(10), attempt(10, 2), FILE);
    engine.abort(first);
    // It lost over the file to one that has ended; the older one to one that goes on.
    let (second, goes_on) = (writes(&engine, 2, 2, FILE), writes(&engine, 3, 3, OTHER));
    let younger = loses(&engine, TxnId(11), attempt(11, 2), FILE);
    let [older] = older;
    let older = [Conflict { opponent: Opponent::Txn(goes_on), ..older }];
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            drop(engine.await_turn(TxnId(100), &attempt(10, 3), &older, Patience::of(HANG)))
        });
        in_line(&engine, 1);
        commits(&engine, second);
        let turn = engine.await_turn(TxnId(101), &attempt(11, 3), &younger, Patience::of(HANG));
        assert!(!waits.is_finished());
        drop(turn);
        commits(&engine, goes_on);
        waits.join().unwrap();
    });
}

#[test]
fn a_place_in_line_is_given_up_and_what_is_waited_for_too_long_is_not_waited_for() {
    let engine = Engine::new();
    let winner = writes(&engine, 1, 1, FILE);
    let lost = loses(&engine, TxnId(10), attempt(10, 2), FILE);
    // Time is over.
    let first = engine.await_turn(
        TxnId(100),
        &attempt(10, 3),
        &lost,
        Patience::of(Duration::from_millis(1)),
    );
    commits(&engine, winner);
    thread::scope(|scope| {
        let (engine, lost) = (&engine, &lost);
        let next = scope.spawn(|| {
            drop(engine.await_turn(TxnId(101), &attempt(11, 3), lost, Patience::of(HANG)))
        });
        in_line(engine, 2);
        // It never begins.
        drop(first);
        next.join().unwrap();
        // Over something else nobody waits.
        let turn = engine.await_turn(TxnId(102), &attempt(12, 3), lost, Patience::of(HANG));
        let elsewhere =
            lost.clone().map(|lost| Conflict { object: page(Oid(8)).to_object(), ..lost });
        drop(engine.await_turn(TxnId(103), &attempt(13, 3), &elsewhere, Patience::of(HANG)));
        // Nor for what is decided.
        engine.begin(TxnId(102), attempt(12, 3));
        drop(turn);
        assert_eq!(engine.stats().again, 1);
        engine.decide(TxnId(102)).unwrap();
        drop(engine.await_turn(TxnId(104), &attempt(14, 3), lost, Patience::of(HANG)));
        engine.installed(TxnId(102));
    });
    assert_eq!(engine.stats().again, 0);
}

#[test]
fn nobody_begins_beside_a_weaker_one_from_the_line() {
    let engine = Engine::new();
    let winner = writes(&engine, 1, 1, FILE);
    let weaker = loses(&engine, TxnId(11), attempt(11, 2), FILE);
    let stronger = loses(&engine, TxnId(10), attempt(10, 2), FILE);
    commits(&engine, winner);
    let turn = engine.await_turn(TxnId(101), &attempt(11, 3), &weaker, Patience::of(HANG));
    engine.begin(TxnId(101), attempt(11, 3));
    drop(turn);
    let (said, says) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let turn =
                engine.await_turn(TxnId(100), &attempt(10, 3), &stronger, Patience::of(HANG));
            said.send(()).unwrap();
            drop(turn);
        });
        in_line(&engine, 2);
        assert!(says.recv_timeout(A_WHILE).is_err(), "it would make the weaker one lose");
        engine.abort(TxnId(101));
        says.recv_timeout(HANG).unwrap();
    });
}

#[test]
fn who_lost_over_two_files_waits_for_who_runs_in_either() {
    const OTHER: Oid = Oid(8);
    let engine = Engine::new();
    let mut lost = Vec::new();
    for (id, oid) in [(1, OTHER), (2, FILE)] {
        let winner = writes(&engine, id, id, oid);
        lost.extend(loses(&engine, TxnId(10), attempt(10, 2), oid));
        commits(&engine, winner);
    }
    let turn = engine.await_turn(TxnId(101), &attempt(11, 3), &lost[..1], Patience::of(HANG));
    thread::scope(|scope| {
        let both = scope.spawn(|| {
            drop(engine.await_turn(TxnId(100), &attempt(10, 3), &lost, Patience::of(HANG)))
        });
        in_line(&engine, 2);
        thread::sleep(A_WHILE);
        assert!(!both.is_finished(), "over the first one of them");
        drop(turn);
        both.join().unwrap();
    });
}

#[test]
fn whose_winner_has_ended_is_not_overtaken() {
    let engine = Engine::new();
    let mut lost = Vec::new();
    // Each lost to another one; all of those have ended.
    for n in 0..3 {
        let winner = writes(&engine, 1 + n, 1 + n, FILE);
        lost.push(loses(&engine, TxnId(10 + n), attempt(10 + n, 2), FILE));
        commits(&engine, winner);
    }
    let running = engine.await_turn(TxnId(100), &attempt(10, 3), &lost[0], Patience::of(HANG));
    thread::scope(|scope| {
        let (said, says) = channel();
        for n in [1, 2] {
            let (engine, lost, said) = (&engine, &lost, said.clone());
            scope.spawn(move || {
                let id = TxnId(100 + n);
                let turn = engine.await_turn(
                    id,
                    &attempt(10 + n, 3),
                    &lost[n as usize],
                    Patience::of(HANG),
                );
                said.send(n).unwrap();
                drop(turn);
            });
            in_line(engine, 1 + n);
        }
        drop(running);
        assert_eq!((says.recv_timeout(HANG), says.recv_timeout(HANG)), (Ok(1), Ok(2)));
    });
}

/// Whoever has it, not only whom it lost to, and not who is weaker.
#[test]
fn nobody_begins_at_what_a_stronger_one_has() {
    let engine = Engine::new();
    let winner = writes(&engine, 1, 1, FILE);
    let lost = loses(&engine, TxnId(10), attempt(20, 2), FILE);
    commits(&engine, winner);
    // Younger: it would lose.
    engine.begin(TxnId(3), attempt(30, 0));
    assert_eq!(engine.write(TxnId(3), page(FILE)), Access::Granted);
    assert!(!engine.await_turn(TxnId(100), &attempt(20, 3), &lost, Patience::of(HANG)).waited);
    engine.abort(TxnId(3));
    for commit in [true, false] {
        // It was in no line, and the other one has never met it.
        let holder = writes(&engine, 2, 2, FILE);
        thread::scope(|scope| {
            let held = scope.spawn(|| {
                let turn =
                    engine.await_turn(TxnId(101), &attempt(20, 3), &lost, Patience::of(HANG));
                turn.waited
            });
            in_line(&engine, 1);
            let begun = Instant::now();
            while engine.waits_for_turn(TxnId(101)) != Some(holder) {
                assert!(begun.elapsed() < HANG / 10);
                thread::yield_now();
            }
            assert!(!held.is_finished());
            if commit {
                commits(&engine, holder)
            } else {
                engine.abort(holder)
            }
            assert!(held.join().unwrap(), "it waited");
        });
        assert_eq!(engine.waits_for_turn(TxnId(101)), None);
    }
}

#[test]
fn whose_client_has_gone_does_not_wait_and_nobody_waits_for_who_sleeps() {
    let engine = Engine::new();
    let winner = writes(&engine, 1, 1, FILE);
    let lost = loses(&engine, TxnId(10), attempt(20, 2), FILE);
    let gone = Patience { limit: HANG, goes_on: &|| false };
    drop(engine.await_turn(TxnId(100), &attempt(20, 3), &lost, gone));
    commits(&engine, winner);
    let holder = writes(&engine, 2, 2, FILE);
    engine.defer_while(holder, || true);
    drop(engine.await_turn(TxnId(101), &attempt(20, 3), &lost, Patience::of(HANG)));
    assert_eq!(engine.read(holder, page(Oid(9))), Access::Granted, "it has not lost by that");
}

/// A thread whose urgency changes, and is not told at the begin.
#[derive(Debug, Default)]
struct Thread(AtomicI32);

impl Urgency for Thread {
    fn now(&self) -> Option<i32> {
        Some(self.0.load(Relaxed))
    }

    fn first(&self) -> Option<i32> {
        None
    }

    fn of(&self, _thread: u32) -> Option<i32> {
        None
    }
}

#[test]
fn who_is_or_becomes_more_urgent_than_what_runs_does_not_wait_for_it() {
    let engine = Engine::new();
    let winner = writes(&engine, 1, 1, FILE);
    let lost = loses(&engine, TxnId(10), attempt(10, 0), FILE);
    let its = Arc::new(Thread::default());
    let follows: Arc<dyn Urgency> = its.clone();
    // The first attempt of a thread that keeps losing.
    let options = BeginOptions { follows: Some(follows), ..BeginOptions::default() };
    // That was an aged one, which urgency does not beat.
    engine.abort(winner);
    engine.begin(TxnId(2), BeginOptions { timestamp: Some(1), ..BeginOptions::default() });
    assert_eq!(engine.write(TxnId(2), page(FILE)), Access::Granted);
    let turn = |id| {
        let begun = Instant::now();
        let turn = engine.await_turn(TxnId(id), &options, &lost, Patience::of(HANG / 10));
        assert!(begun.elapsed() < HANG / 10, "it has waited until its time was over");
        turn.waited
    };
    thread::scope(|scope| {
        let waits = scope.spawn(|| turn(100));
        in_line(&engine, 1);
        its.0.store(-5, Relaxed);
        assert!(waits.join().unwrap());
    });
    assert!(!turn(101));
    engine.abort(TxnId(2));
}
