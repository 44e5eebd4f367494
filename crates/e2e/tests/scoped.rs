//! Transactions that declare what they will touch and get in line for it, by the helper
//! `systx-e2e-together`, which checks each case where it happens.

use serde_json::{Value, json};
use std::io::Write;
use systx_e2e::cases::{Guarded, eventually, line, started};
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
fn descriptors_that_are_held_take_nobody_the_turn() {
    let lab = lab!();
    guarded(&lab).cases(&["scope-held"]);
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

#[test]
fn top_shows_who_is_in_line_for_what_and_behind_whom() {
    let lab = lab!();
    let guarded = guarded(&lab);
    // The line of the volume, as soon as so many are in it.
    let in_line = |count: usize| {
        let mut line = Vec::new();
        eventually(&format!("{count} in line"), || {
            let top = lab.do_systx(["top", "--once", "--json"]).ok().json();
            line = top["top"]["volumes"][0]["line"].as_array().expect("a list").clone();
            line.len() == count
        });
        line
    };
    let (mut holder, mut held) = started(guarded.program("scope-hold", 0));
    assert_eq!(line(&mut held), "in");
    let holds = lab.open_ids().remove(0);
    assert_eq!(in_line(0), [Value::Null; 0], "who has begun is in line no more");
    let (mut first, mut first_says) = started(guarded.program("scope-wait", 0));
    in_line(1);
    let (mut second, mut second_says) = started(guarded.program("scope-wait", 1));
    let waiting = in_line(2);
    let path = |name: &str| guarded.dir.join(name).to_str().expect("UTF-8").to_owned();
    let expected = [
        (first.id(), json!({ "path": path("a"), "transaction": holds })),
        (second.id(), json!({ "path": path("mark"), "position": 1 })),
    ];
    let since = |w: &Value| w["since"]["secs"].as_i64().expect("a time");
    for (n, (w, (pid, behind))) in waiting.iter().zip(expected).enumerate() {
        let here = (&w["position"], &w["pid"], &w["behind"]);
        assert_eq!(here, (&json!(n + 1), &json!(pid), &behind), "{waiting:?}");
        let command = w["argv"][0].as_str().expect("a command");
        assert!(command.ends_with("systx-e2e-together"), "{waiting:?}");
        assert!(w["tid"].is_u64() && since(w) > 1_600_000_000, "{waiting:?}");
    }
    let text = lab.do_systx(["top", "--once"]).ok().out;
    let words = [
        "in line to begin with a scope".to_owned(),
        format!("waits for {}, behind transaction {holds}", path("a")),
        format!("waits for {}, behind number 1 in line", path("mark")),
    ];
    assert!(words.iter().all(|words| text.contains(words)), "{text}");
    // It has waited since it came, however often it was asked again meanwhile.
    let again = in_line(2);
    let times = |all: &[Value]| all.iter().map(|w| w["since"].clone()).collect::<Vec<_>>();
    assert_eq!(times(&again), times(&waiting));
    // Who gives up makes room.
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(line(&mut second_says), "in", "nobody has the mark");
    assert!(second.wait().unwrap().success());
    assert_eq!(in_line(0), [Value::Null; 0]);
    assert_eq!(line(&mut first_says), "");
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(holder.wait().unwrap().success());
}
