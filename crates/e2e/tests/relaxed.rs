//! Commits whose programs do not wait for the disk (`SYSTX_RELAXED`), by libsystx in the helper
//! `systx-e2e-threads`: where threads go into views, and where the daemon tells them by their
//! numbers.

use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use systx_e2e::cases::{Guarded, started};
use systx_e2e::lab::{Frozen, find_program};
use systx_e2e::{Lab, lab, skip};

const HELPER: &str = env!("CARGO_BIN_EXE_systx-e2e-threads");

/// How threads get at what is theirs.
type Mount = fn(&Lab) -> Guarded<'_>;

fn by_views(lab: &Lab) -> Guarded<'_> {
    Guarded::new(lab, HELPER)
}

fn by_numbers(lab: &Lab) -> Guarded<'_> {
    Guarded::routed(lab, HELPER)
}

/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(120);
/// Long enough to show who does not wait; too short shows nothing wrong.
const A_WHILE: Duration = Duration::from_millis(300);

/// A helper at work, and what it says as it says it.
struct Helper<'a> {
    lab: &'a Lab,
    child: Child,
    says: Receiver<String>,
    input: Option<ChildStdin>,
}

impl<'a> Helper<'a> {
    fn start(lab: &'a Lab, guarded: &Guarded<'_>, case: &str) -> Helper<'a> {
        let (mut child, out) = started(guarded.program(case, 0));
        let (said, says) = channel();
        std::thread::spawn(move || {
            for text in out.lines().map_while(Result::ok) {
                if said.send(text).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Helper { lab, child, says, input }
    }

    /// The next line, `None` at the end.
    fn says(&self) -> Option<String> {
        match self.says.recv_timeout(HANG) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it hangs\n{}", self.lab.daemon_log()),
        }
    }

    fn expect(&self, word: &str) {
        assert_eq!(self.says().as_deref(), Some(word), "{}", self.lab.daemon_log());
    }

    fn go_on(&mut self) {
        self.input.as_mut().expect("a pipe").write_all(b"\n").expect("it reads");
    }

    fn ends(mut self) {
        self.expect("ok");
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
    }
}

#[test]
fn an_end_does_not_wait_for_the_disk_and_who_looks_or_wants_it_durable_does() {
    waiting(by_views);
}

#[test]
fn an_end_does_not_wait_for_the_disk_and_who_looks_or_wants_it_durable_does_where_threads_are_known_by_numbers()
 {
    waiting(by_numbers);
}

fn waiting(mount: Mount) {
    let lab = lab!();
    if let Some(why) = Frozen::impossible(&lab) {
        skip!("{why}");
    }
    let guarded = mount(&lab);
    let mut helper = Helper::start(&lab, &guarded, "relaxed");
    helper.expect("ready");
    let frozen = lab.freeze();
    helper.go_on();
    helper.expect("committed");
    let early = helper.says.recv_timeout(A_WHILE);
    assert_eq!(early, Err(RecvTimeoutError::Timeout), "on a disk that takes nothing");
    drop(frozen);
    let mut words: Vec<_> = (0..3).map(|_| helper.says()).collect();
    words.sort();
    assert_eq!(words, ["durable", "read", "synced"].map(|w| Some(w.into())));
    helper.ends();
    // Each is in the history, which waits for them, too.
    assert_eq!(lab.logged_ids().len(), 6);
}

#[test]
fn a_daemon_that_dies_loses_the_last_ones_of_a_program_and_none_before_a_durable_one() {
    dying(by_views);
}

#[test]
fn a_daemon_that_dies_loses_the_last_ones_of_a_program_and_none_before_a_durable_one_where_threads_are_known_by_numbers()
 {
    dying(by_numbers);
}

fn dying(mount: Mount) {
    let lab = lab!();
    let guarded = mount(&lab);
    // More of them within a minute, and the directory would not come back.
    for round in 0..4_u64 {
        let helper = Helper::start(&lab, &guarded, "relaxed-stream");
        let (mut last, mut durable) = (0_u64, 0_u64);
        while let Some(line) = helper.says() {
            let Some((n, word)) = line.split_once(' ') else { break };
            last = n.parse().expect("a number");
            durable = if word == "durable" { last } else { durable };
            if last == 40 + 17 * round {
                lab.kill_and_come_back();
            }
        }
        assert!(last >= 40 + 17 * round, "{last}\n{}", lab.daemon_log());
        let count = |n: u64| -> u64 {
            let text = lab.read(format!("guarded/count-{n}"));
            text.trim().parse().unwrap_or_else(|_| panic!("round {round}: {text:?}"))
        };
        let counts: Vec<u64> = (0..8).map(count).collect();
        let reached = counts.iter().copied().max().expect("eight");
        assert!((durable..=last + 1).contains(&reached), "{durable} {counts:?} {last}");
        for (n, count) in (0..).zip(&counts) {
            let due = (0..=reached).rev().find(|at| at % 8 == n).unwrap_or(0);
            assert_eq!(*count, due, "round {round}, file {n}: {counts:?}, {durable}, {last}");
        }
    }
}

#[test]
fn what_cannot_be_made_durable_afterwards_is_told_by_the_next_begin() {
    failing(by_views);
}

#[test]
fn what_cannot_be_made_durable_afterwards_is_told_by_the_next_begin_where_threads_are_known_by_numbers()
 {
    failing(by_numbers);
}

fn failing(mount: Mount) {
    if find_program("prlimit").is_none() {
        skip!("there is no prlimit");
    }
    let lab = lab!();
    let guarded = mount(&lab);
    lab.run(&[], "printf before > guarded/a").ok();
    // A daemon that has just begun has no checkpoint before it, which the limit would stop as well.
    lab.kill_and_come_back();
    let mut helper = Helper::start(&lab, &guarded, "relaxed-failure");
    helper.expect("ready");
    let limit = |bytes: &str| {
        lab.native(&format!("prlimit --pid {} --fsize={bytes}:", lab.daemons()[0])).ok();
    };
    // No file may be written beyond its first byte.
    limit("1");
    helper.go_on();
    helper.expect("told");
    limit("unlimited");
    helper.ends();
    assert_eq!(lab.read("guarded/a"), "before");
}
