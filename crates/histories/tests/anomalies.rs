//! Histories that the checker must accept, and for each classical anomaly one that it must reject.

use systx_histories::explain::{cycle, reduce, verify, words};
use systx_histories::history::{Atom, Cell, History, Kind, Outcome, Step, Unit, token};
use systx_histories::{Verdict, check};

const X: Cell = Cell::Slot(1, 0);
const Y: Cell = Cell::Slot(2, 0);
const N: Cell = Cell::Entry(0, 0);
const M: Cell = Cell::Entry(0, 1);

fn is(cell: Cell, value: u64) -> Atom {
    Atom::Is(cell, value)
}

fn set(cell: Cell, value: u64) -> Atom {
    Atom::Set(cell, value)
}

/// From, to, what.
fn unit(process: u32, kind: Kind, from: u64, to: u64, steps: &[&[Atom]]) -> Unit {
    let steps = steps.iter().map(|atoms| Step { atoms: atoms.to_vec(), how: "test".into() });
    let outcome = Outcome::Done;
    Unit { process, kind, outcome, begin: from, end: to, steps: steps.collect() }
}

fn txn(process: u32, from: u64, to: u64, atoms: &[Atom]) -> Unit {
    unit(process, Kind::Transaction, from, to, &[atoms])
}

fn call(process: u32, from: u64, to: u64, atoms: &[Atom]) -> Unit {
    unit(process, Kind::Call, from, to, &[atoms])
}

fn ended(mut unit: Unit, outcome: Outcome) -> Unit {
    unit.outcome = outcome;
    unit
}

fn history(units: &[Unit]) -> History {
    History { initial: [(X, 1), (Y, 2)].into(), units: units.to_vec() }
}

#[track_caller]
fn accepted(units: &[Unit]) {
    let history = history(units);
    if let Err(why) = verify(&history) {
        panic!("{why}");
    }
}

/// Rejected; the explanation has a cycle through these units, or none is asked for.
#[track_caller]
fn rejected(units: &[Unit], in_cycle: usize) -> String {
    let history = history(units);
    assert!(check(&history).is_anomaly(), "{:?}", check(&history));
    let reduced = reduce(&history).expect("an anomaly can be reduced");
    assert!(check(&reduced).is_anomaly());
    let words = words(&reduced, &history);
    match cycle(&reduced) {
        Some(cycle) => assert_eq!(cycle.len(), in_cycle, "{words}"),
        None => assert_eq!(in_cycle, 0, "{words}"),
    }
    words
}

// Accepted.

#[test]
fn nothing_and_one_after_the_other() {
    accepted(&[]);
    accepted(&[
        txn(0, 0, 9, &[is(X, 1), set(X, 10), set(Y, 11)]),
        call(1, 10, 11, &[is(X, 10)]),
        call(1, 12, 13, &[is(Y, 11)]),
    ]);
}

#[test]
fn who_overlaps_may_see_old_or_new() {
    for value in [1, 10] {
        accepted(&[txn(0, 0, 9, &[set(X, 10)]), call(1, 3, 4, &[is(X, value)])]);
    }
}

#[test]
fn a_call_of_several_requests_may_see_before_then_after() {
    let both = txn(0, 0, 9, &[set(X, 10), set(Y, 11)]);
    let walk = unit(1, Kind::Call, 1, 8, &[&[is(X, 1)], &[is(Y, 11)]]);
    accepted(&[both, walk]);
}

#[test]
fn a_listing_by_names_may_be_of_several_moments() {
    // Two renames that a name follows: seen twice is right for a plain reader.
    let to = call(0, 1, 2, &[Atom::Rename(N, M)]);
    let survey = unit(1, Kind::Survey, 0, 9, &[&[is(M, 7)], &[is(N, 7)]]);
    let mut seen = history(&[to, survey]);
    seen.initial.insert(N, 7);
    assert!(check(&seen).is_serializable());
}

#[test]
fn blind_writes_have_the_order_that_reads_give_them() {
    accepted(&[
        call(0, 0, 9, &[set(X, 10)]),
        call(1, 0, 9, &[set(X, 11)]),
        call(2, 0, 9, &[set(X, 12)]),
        call(3, 10, 11, &[is(X, 11)]),
    ]);
}

#[test]
fn an_unknown_end_may_be_either() {
    for value in [1, 10] {
        accepted(&[
            ended(txn(0, 0, 5, &[set(X, 10)]), Outcome::Unknown),
            call(1, 6, 7, &[is(X, value)]),
        ]);
    }
}

#[test]
fn an_abort_leaves_nothing_and_its_reads_are_of_one_moment() {
    accepted(&[
        ended(txn(0, 0, 9, &[is(X, 1), set(X, 10), is(X, 10), is(Y, 2)]), Outcome::Aborted),
        call(1, 5, 6, &[is(X, 1)]),
        call(1, 10, 11, &[is(X, 1)]),
    ]);
}

#[test]
fn a_rename_of_two_names_of_one_file_does_nothing() {
    let mut seen =
        history(&[call(0, 0, 1, &[Atom::Rename(N, M)]), call(0, 2, 3, &[is(N, 7), is(M, 7)])]);
    seen.initial.extend([(N, 7), (M, 7)]);
    assert!(check(&seen).is_serializable());
}

// Rejected.

#[test]
fn lost_update() {
    let words = rejected(
        &[
            txn(0, 0, 9, &[is(X, 1), set(X, 10)]),
            txn(1, 0, 9, &[is(X, 1), set(X, 11)]),
            call(2, 20, 21, &[is(Y, 2)]),
        ],
        2,
    );
    assert!(words.contains("A before B: it saw 1 at file 1 record 0, which B replaced"), "{words}");
    assert!(!words.contains("plain call"), "{words}");
}

#[test]
fn dirty_read() {
    rejected(
        &[ended(txn(0, 0, 9, &[set(X, 10)]), Outcome::Aborted), call(1, 3, 4, &[is(X, 10)])],
        0,
    );
    // Of a transaction that writes again before it commits.
    rejected(&[txn(0, 0, 9, &[set(X, 10), set(X, 11)]), call(1, 3, 4, &[is(X, 10)])], 0);
}

#[test]
fn non_repeatable_read() {
    let writer = call(0, 3, 4, &[set(X, 10)]);
    rejected(&[writer, txn(1, 0, 9, &[is(X, 1), is(X, 10)])], 2);
}

#[test]
fn write_skew() {
    rejected(
        &[
            txn(0, 0, 9, &[is(X, 1), is(Y, 2), set(X, 10)]),
            txn(1, 0, 9, &[is(X, 1), is(Y, 2), set(Y, 11)]),
        ],
        2,
    );
}

#[test]
fn read_skew_over_two_files() {
    rejected(&[txn(0, 3, 6, &[set(X, 10), set(Y, 11)]), txn(1, 0, 9, &[is(X, 1), is(Y, 11)])], 2);
}

#[test]
fn read_skew_through_two_writers_in_real_time() {
    rejected(
        &[
            call(0, 1, 2, &[set(X, 10)]),
            call(0, 3, 4, &[set(Y, 11)]),
            txn(1, 0, 9, &[is(X, 1), is(Y, 11)]),
        ],
        3,
    );
}

#[test]
fn phantom_in_a_listing() {
    // The message is renamed once, and the transaction lists it under no name.
    let mut seen =
        history(&[call(0, 3, 4, &[Atom::Rename(N, M)]), txn(1, 0, 9, &[is(N, 0), is(M, 0)])]);
    seen.initial.insert(N, 7);
    assert!(check(&seen).is_anomaly());
    // A name is created between two listings of one transaction.
    rejected(
        &[
            call(0, 3, 4, &[is(N, 0), set(N, 7)]),
            txn(1, 0, 9, &[is(N, 0), is(M, 0), is(N, 7), is(M, 0)]),
        ],
        2,
    );
}

#[test]
fn a_plain_survey_misses_no_name_that_was_always_there() {
    let mut seen = history(&[
        call(0, 3, 4, &[Atom::Rename(N, M)]),
        unit(1, Kind::Survey, 5, 9, &[&[is(N, 0)], &[is(M, 0)]]),
    ]);
    seen.initial.insert(N, 7);
    assert!(check(&seen).is_anomaly());
}

#[test]
fn stale_read_after_real_time_order() {
    rejected(&[txn(0, 0, 4, &[set(X, 10)]), call(1, 5, 6, &[is(X, 1)])], 2);
    rejected(&[call(0, 0, 4, &[set(X, 10)]), txn(1, 5, 6, &[is(X, 1)])], 2);
    // Between plain calls alone.
    rejected(&[call(0, 0, 4, &[set(X, 10)]), call(1, 5, 6, &[is(X, 1)])], 2);
}

#[test]
fn new_then_old_while_the_commit_goes_on() {
    rejected(
        &[txn(0, 0, 9, &[set(X, 10)]), call(1, 1, 2, &[is(X, 10)]), call(2, 3, 4, &[is(X, 1)])],
        3,
    );
}

#[test]
fn aborted_effect_seen() {
    let abort = ended(txn(0, 0, 2, &[Atom::Append(3, 10)]), Outcome::Aborted);
    rejected(&[abort, call(1, 3, 4, &[is(Cell::Size(3), 1)])], 0);
}

#[test]
fn an_aborted_transaction_saw_two_moments() {
    rejected(
        &[
            txn(0, 3, 6, &[set(X, 10), set(Y, 11)]),
            ended(txn(1, 0, 9, &[is(X, 1), is(Y, 11)]), Outcome::Aborted),
        ],
        2,
    );
}

#[test]
fn half_a_commit_seen() {
    // By whichever way: path then descriptor, listing then page.
    rejected(
        &[
            txn(0, 0, 9, &[set(X, 10), set(Y, 11)]),
            call(1, 1, 2, &[is(X, 10)]),
            call(1, 3, 4, &[is(Y, 2)]),
        ],
        3,
    );
    rejected(
        &[
            txn(0, 0, 9, &[is(N, 0), set(N, 7), set(Y, 11)]),
            call(1, 1, 2, &[is(N, 7)]),
            call(2, 3, 4, &[is(Y, 2)]),
        ],
        3,
    );
}

#[test]
fn after_then_before_in_one_call() {
    let both = txn(0, 0, 9, &[set(X, 10), set(Y, 11)]);
    let words = rejected(&[both, unit(1, Kind::Call, 1, 8, &[&[is(X, 10)], &[is(Y, 2)]])], 0);
    assert!(
        words.contains("after A B1: B saw 2 at file 2 record 0, but there is 11, by A"),
        "{words}"
    );
}

#[test]
fn a_record_torn_or_lost() {
    rejected(&[call(0, 0, 1, &[set(X, 10)]), call(1, 0, 4, &[is(X, 77)])], 0);
    // Two appends, one overwrote the other.
    rejected(
        &[
            call(0, 0, 4, &[Atom::Append(3, 10)]),
            txn(1, 0, 4, &[Atom::Append(3, 11)]),
            call(2, 5, 6, &[is(Cell::Size(3), 1)]),
        ],
        0,
    );
}

#[test]
fn a_link_to_what_was_never_there_at_the_same_time() {
    let mut seen = history(&[
        unit(0, Kind::Call, 0, 9, &[&[Atom::Resolve(N)], &[Atom::Bind(M)]]),
        call(1, 2, 3, &[is(N, 7), set(N, 0)]),
        call(1, 4, 5, &[set(N, 8)]),
        call(1, 10, 11, &[is(M, 7)]),
    ]);
    seen.initial.insert(N, 7);
    assert!(check(&seen).is_serializable());
    seen.units[3].steps[0].atoms[0] = is(M, 9);
    assert!(check(&seen).is_anomaly());
}

#[test]
fn the_reduction_finds_three_units_among_thousands() {
    let mut units = Vec::new();
    for i in 0..3000_u64 {
        let (at, file) = (i * 10, 10 + (i % 7) as u32);
        let value = token(1, i as u32);
        units.push(call(1, at, at + 4, &[set(Cell::Slot(file, 0), value)]));
        units.push(call(2, at + 5, at + 6, &[is(Cell::Slot(file, 0), value)]));
        units.push(txn(3, at + 1, at + 8, &[set(X, token(3, i as u32))]));
    }
    let old = token(3, 1499);
    units.push(call(4, 15_009, 15_010, &[is(X, old)]));
    let seen = history(&units);
    assert!(matches!(check(&seen), Verdict::Anomaly(..)));
    let reduced = reduce(&seen).expect("an anomaly");
    let words = words(&reduced, &seen);
    assert!(reduced.units.len() <= 3, "{words}");
    assert!(cycle(&reduced).is_some(), "{words}");
}
