//! Transactions that declare what they will touch and get in line for it, by the helper `systx-e2e-together`, which checks
//! each case where it happens.

use std::io::Write;
use systx_e2e::cases::{Guarded, line, started};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Lab, lab};

fn guarded(lab: &Lab) -> Guarded<'_> {
    Guarded::new(lab, env!("CARGO_BIN_EXE_systx-e2e-together"))
}

#[test]
fn a_begin_that_does_not_get_its_turn_opens_nothing_and_names_who_has_it() {
    let lab = lab!();
    guarded(&lab).cases(&["scope-answers"]);
}

#[test]
fn scopes_that_have_something_in_common_wait_for_each_other_and_others_do_not() {
    let lab = lab!();
    guarded(&lab).cases(&["scope-parts"]);
}

#[test]
fn who_declared_wins_against_who_did_not() {
    let lab = lab!();
    guarded(&lab).cases(&["scope-wins", "scope-asleep"]);
}

#[test]
fn what_was_replaced_while_somebody_was_in_line_is_in_its_scope() {
    let lab = lab!();
    guarded(&lab).cases(&["scope-replaced"]);
}

#[test]
fn all_that_declare_commit_at_their_first_attempt_beside_those_that_do_not() {
    const PROCESSES: u32 = 4;
    const TIMES: u32 = 15;
    let lab = lab!();
    let guarded = Guarded::stalling(&lab, env!("CARGO_BIN_EXE_systx-e2e-together"));
    for n in 0..4 {
        lab.write(format!("guarded/{n}"), "1000");
    }
    lab.write("guarded/rate", "1");
    let (mut plain, _told) = started(guarded.program("scope-plain", 0));
    let noise = || guarded.program("scope-noise", TIMES);
    let scoped = || guarded.program("scope-transfers", TIMES);
    std::thread::scope(|s| {
        let lab = &lab;
        let mut programs: Vec<_> = (0..PROCESSES).map(|_| scoped()).collect();
        programs.extend((0..2).map(|_| noise()));
        let run = |program| s.spawn(move || drop(finish(program, Limits::seconds(240), lab).ok()));
        let running: Vec<_> = programs.into_iter().map(run).collect();
        running.into_iter().for_each(|running| running.join().unwrap());
    });
    plain.stdin.take().unwrap().write_all(b"stop\n").unwrap();
    assert!(plain.wait().unwrap().success());
    let amounts = (0..4).map(|n| lab.read(format!("guarded/{n}")).parse::<i64>().unwrap());
    assert_eq!(amounts.sum::<i64>(), 4000);
    let notes = std::fs::read_dir(lab.path("guarded")).unwrap();
    let notes =
        notes.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("note"));
    assert_eq!(notes.count() as u32, PROCESSES * TIMES);
    assert!(lab.open_ids().is_empty());
}

#[test]
fn who_is_killed_in_line_or_inside_is_waited_for_no_more() {
    let lab = lab!();
    let guarded = guarded(&lab);
    let probe = |wanted: u32| drop(guarded.case("scope-probe", wanted));
    let probe_beside = |wanted: u32| {
        drop(finish(guarded.program("scope-probe", wanted), Limits::seconds(240), &lab).ok())
    };
    let (mut holder, mut out) = started(guarded.program("scope-hold", 0));
    assert_eq!(line(&mut out), "in");
    let (mut waiter, _told) = started(guarded.program("scope-wait", 0));
    probe_beside(1);
    waiter.kill().unwrap();
    waiter.wait().unwrap();
    probe_beside(0);
    let (mut waiter, mut out) = started(guarded.program("scope-wait", 0));
    probe_beside(1);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(line(&mut out), "in");
    assert!(waiter.wait().unwrap().success());
    assert_eq!(lab.read("guarded/a"), "waited");
    probe(0);
}
