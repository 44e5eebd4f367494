//! Transactions that commit in the order of their numbers, by the helper `systx-e2e-together`,
//! which checks each case where it happens.

use std::io::BufRead;
use std::process::Child;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use systx_e2e::cases::{Guarded, started};
use systx_e2e::{Lab, lab};

fn guarded(lab: &Lab) -> Guarded<'_> {
    Guarded::new(lab, env!("CARGO_BIN_EXE_systx-e2e-together"))
}

#[test]
fn numbers_are_used_up_by_commits() {
    let lab = lab!();
    guarded(&lab).cases(&["numbers"]);
}

#[test]
fn a_number_that_does_not_come_is_named() {
    let lab = lab!();
    guarded(&lab).cases(&["missing"]);
}

#[test]
fn threads_in_an_order_end_as_one_after_another() {
    let lab = lab!();
    let numbers = if std::env::var_os("SYSTX_LONG").is_some() { 1000 } else { 100 };
    guarded(&lab).case("replay", numbers);
}

#[test]
fn what_is_done_side_by_side_is_committed_in_order() {
    let lab = lab!();
    guarded(&lab).case("pipeline", 8);
}

/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(120);

/// A process that does its share of an order, and tells of each number.
fn share(guarded: &Guarded<'_>, n: usize, end: u32, tell: &Sender<usize>) -> Child {
    let (child, out) = started(guarded.program(&format!("lasting-{n}"), end));
    let tell = tell.clone();
    std::thread::spawn(move || {
        out.lines().map_while(Result::ok).take_while(|line| line != "ok").for_each(|_| {
            let _ = tell.send(n);
        });
    });
    child
}

fn wait_for(said: &Receiver<usize>, count: usize, lab: &Lab) {
    for _ in 0..count {
        said.recv_timeout(HANG).unwrap_or_else(|why| panic!("{why}\n{}", lab.daemon_log()));
    }
}

/// Each number once, in order, but for those that commit nothing.
fn log_of(numbers: u32) -> String {
    (0..numbers).filter(|n| n % 3 != 2).map(|n| format!("{n}\n")).collect()
}

#[test]
fn an_order_goes_on_with_exactly_the_next_number_whoever_is_killed() {
    let lab = lab!();
    let end = if std::env::var_os("SYSTX_LONG").is_some() { 4000 } else { 400 };
    let guarded = guarded(&lab);
    let (tell, said) = channel();
    let mut shares = [0, 1].map(|n| share(&guarded, n, end, &tell));
    // The daemon, and each of them. More daemons within a minute, and the directory would not come
    // back.
    for round in 0..4 {
        wait_for(&said, end as usize / 10, &lab);
        lab.kill_and_come_back();
        wait_for(&said, end as usize / 20, &lab);
        let which = round % 2;
        shares[which].kill().unwrap();
        shares[which].wait().unwrap();
        shares[which] = share(&guarded, which, end, &tell);
    }
    for child in &mut shares {
        assert!(child.wait().unwrap().success(), "{}", lab.daemon_log());
    }
    assert_eq!(lab.read("guarded/log"), log_of(end));
    // Nor does an end in peace start it over.
    guarded.again();
    let mut shares = [0, 1].map(|n| share(&guarded, n, end + 6, &tell));
    for child in &mut shares {
        assert!(child.wait().unwrap().success(), "{}", lab.daemon_log());
    }
    assert_eq!(lab.read("guarded/log"), log_of(end + 6));
}
