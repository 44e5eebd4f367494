//! Who wins a conflict: by the urgency of threads at that moment, and by the policy that was
//! chosen.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use systx_e2e::lab::{Lab, chmod};
use systx_e2e::open::Open;
use systx_e2e::run::{Shell, eventually};
use systx_e2e::{CONFLICT, lab, needs};

/// Two shells in runs: each writes a file of its own, sets its priority, then both write one file.
/// Whether the younger one wins.
fn younger_wins(lab: &Lab, older: &str, younger: &str) -> bool {
    lab.write("d/f", "before\n");
    let mut a = lab.shell(&[]);
    // It has begun.
    a.eval("echo a > d/a");
    let mut b = lab.shell(&[]);
    b.eval("echo b > d/b");
    a.eval(older);
    b.eval(younger);
    a.eval("echo a > d/f");
    b.try_eval("(echo b > d/f) 2>/dev/null; :");
    let (first, second) = (a.exit(0), b.exit(0));
    let (winner, codes) = match lab.read("d/f").trim() {
        "a" => (false, [0, CONFLICT]),
        "b" => (true, [CONFLICT, 0]),
        other => panic!("{other:?}: {first} {second}"),
    };
    assert_eq!([first.code, second.code], codes, "{first} {second}");
    winner
}

/// When they began all were as urgent as each other.
#[test]
fn the_priority_at_the_moment_of_the_conflict_decides() {
    needs!("renice");
    needs!("chrt");
    let lab = lab!();
    let nice = |n: i32| format!("renice -n {n} -p $$ >/dev/null");
    let real_time = |n: u32| format!("chrt -f -p {n} $$");
    for (older, younger, expected) in [
        (":".to_owned(), ":".to_owned(), false),
        (nice(10), ":".into(), true),
        (":".into(), nice(-1), true),
        (nice(-5), nice(-4), false),
        (nice(-20), real_time(1), true),
        (real_time(2), real_time(1), false),
        ("chrt -i -p 0 $$".into(), nice(19), true),
    ] {
        assert_eq!(younger_wins(&lab, &older, &younger), expected, "{older} / {younger}");
    }
}

/// What nice value is asked for counts whatever the threads have.
#[test]
fn a_nice_value_that_was_given_stays() {
    needs!("renice");
    let lab = lab!();
    lab.write("d/f", "before\n");
    let older = Open::begin(&lab, "d", &["--nice", "-5"]);
    let mut younger = lab.shell(&[]);
    younger.eval("renice -n -4 -p $$ >/dev/null");
    older.sh("echo older > f").ok();
    younger.try_eval("(echo younger > d/f) 2>/dev/null; :");
    younger.exit(0).expect(CONFLICT);
    older.systx("commit").ok();
    assert_eq!(lab.read("d/f"), "older\n");
}

/// How urgent a thread is.
#[derive(Clone, Copy)]
enum Urgent {
    Nice(i32),
    RealTime,
}

/// Ends the program.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// What becomes of the program's change.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    /// It waits until the run has ended: a time longer than that takes on any machine.
    Held,
    /// It waits for the time that the directory allows.
    HeldFor(u64),
    /// It is made at once.
    Made,
}

/// A program changes a file's attributes without pause; a run that is `urgent` reads them, lets the
/// program come, and commits something.
fn run_against_a_program(lab: &Lab, urgent: i32, program: Urgent, change: Change) -> i32 {
    lab.write("g/f", "");
    let stall = if let Change::HeldFor(ms) = change { ms } else { 30000 };
    lab.do_systx(["mount", "--stall", &stall.to_string(), "g"]).ok();
    let (stop, tid) = (AtomicBool::new(false), AtomicU32::new(0));
    let (tried, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let code = std::thread::scope(|scope| {
        scope.spawn(|| {
            let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            match program {
                Urgent::Nice(n) => {
                    rustix::process::setpriority_process(None, n).expect("root may");
                }
                Urgent::RealTime => drop(lab.native(&format!("chrt -f -p 1 {me}")).ok()),
            }
            tid.store(me, SeqCst);
            for mode in [0o600, 0o644].into_iter().cycle() {
                tried.fetch_add(1, SeqCst);
                chmod(&lab.path("g/f"), mode);
                done.fetch_add(1, SeqCst);
                if stop.load(SeqCst) {
                    break;
                }
            }
        });
        // Also where something is not as expected.
        let _end = End(&stop);
        let some = |more| {
            let before = done.load(SeqCst);
            eventually("a change", || done.load(SeqCst) >= before + more);
        };
        some(1);
        let mut command = lab.command("nice");
        command.args(["-n", &urgent.to_string()]).arg(lab.binary()).args(["run", "--", "sh"]);
        let mut run = Shell::start(lab, command);
        run.try_eval("stat g/f > /dev/null");
        let begun = Instant::now();
        if change == Change::Made {
            some(2);
        } else {
            let sleeps = || {
                let path = format!("/proc/self/task/{}/stat", tid.load(SeqCst));
                let stat = std::fs::read_to_string(path).expect("it lives");
                stat.rsplit(')')
                    .next()
                    .is_some_and(|rest| rest.trim_start().starts_with(['S', 'D']))
            };
            eventually("a change that waits", || {
                tried.load(SeqCst) > done.load(SeqCst) && sleeps()
            });
        }
        if let Change::HeldFor(ms) = change {
            some(1);
            let held = begun.elapsed();
            assert!(held >= Duration::from_millis(ms) / 2, "{held:?}");
        }
        run.try_eval("(echo done > g/done) 2>/dev/null; :");
        run.exit(0).code
    });
    lab.do_systx(["umount", "g"]).ok();
    code
}

/// It waits as it does for a run that has lost three times before.
#[test]
fn a_program_waits_for_a_run_that_is_more_urgent() {
    needs!("nice");
    needs!("chrt");
    let lab = lab!();
    let run = |urgent, program, change| run_against_a_program(&lab, urgent, program, change);
    assert_eq!(run(-5, Urgent::Nice(0), Change::Held), 0);
    // For a time: then the run has lost.
    assert_eq!(run(-5, Urgent::Nice(0), Change::HeldFor(2000)), CONFLICT);
    // Not for one that is no more urgent than it is.
    assert_eq!(run(-5, Urgent::Nice(-5), Change::Made), CONFLICT);
    assert_eq!(run(0, Urgent::Nice(0), Change::Made), CONFLICT);
    assert_eq!(run(-20, Urgent::RealTime, Change::Made), CONFLICT);
}

/// Who polls for a file has read the directory's names, so who is to make it would lose: until the
/// one that polls lowers itself in its loop, as TxOS+ advises (EuroSys'12, §6).
#[test]
fn a_polling_loop_that_lowers_itself_lets_the_other_one_pass() {
    needs!("renice");
    let lab = lab!();
    lab.write("d/other", "");
    let mut polls = lab.shell(&[]);
    polls.eval("look() { for f in d/*; do [ $f = d/lock ] && return; done; return 1; }; ! look");
    lab.run(&[], ": > d/lock").expect(CONFLICT);
    assert!(!lab.has("d/lock"));
    polls.eval("renice -n 1 -p $$ >/dev/null; echo again > d/looked; ! look");
    lab.run(&[], ": > d/lock").ok();
    assert!(lab.has("d/lock"));
    // It hears of that, and the next attempt sees the file.
    polls.try_eval("look 2>/dev/null; :");
    polls.exit(0).expect(CONFLICT);
    lab.run(&[], "[ -e d/lock ] && [ ! -e d/looked ]").ok();
}

/// The younger one has read and written more, or less.
fn larger_younger_wins(lab: &Lab, options: &[&str]) -> bool {
    lab.write("d/f", "before\n");
    let (older, younger) = (Open::begin(lab, "d", options), Open::begin(lab, "d", options));
    younger.sh("for n in 1 2 3 4 5; do echo $n > many$n; done").ok();
    older.sh("echo older > f").ok();
    let won = younger.sh("echo younger > f").code == 0;
    let (winner, loser) = if won { (younger, older) } else { (older, younger) };
    loser.systx("commit").expect(CONFLICT);
    loser.systx("abort").ok();
    winner.systx("commit").ok();
    lab.do_systx(["undo"]).ok();
    won
}

/// The same of runs.
fn larger_younger_run_wins(lab: &Lab, options: &[&str]) -> bool {
    lab.write("d/f", "before\n");
    let mut older = lab.shell(options);
    // It has begun.
    older.eval("echo older > d/f");
    let mut younger = lab.shell(options);
    younger.eval("for n in 1 2 3 4 5; do echo $n > d/many$n; done");
    younger.try_eval("(echo younger > d/f) 2>/dev/null; :");
    let codes = [older.exit(0).code, younger.exit(0).code];
    lab.do_systx(["undo"]).ok();
    assert!([[0, CONFLICT], [CONFLICT, 0]].contains(&codes), "{codes:?}");
    codes[1] == 0
}

#[test]
fn the_policy_is_chosen_by_run_by_transaction_and_by_directory() {
    let lab = lab!();
    assert!(!larger_younger_wins(&lab, &[]));
    assert!(!larger_younger_wins(&lab, &["--policy", "timestamp"]));
    assert!(larger_younger_wins(&lab, &["--policy", "size"]));
    assert!(larger_younger_wins(&lab, &["--policy", "karma"]));
    assert!(!larger_younger_run_wins(&lab, &[]));
    assert!(!larger_younger_run_wins(&lab, &["--policy", "timestamp"]));
    assert!(larger_younger_run_wins(&lab, &["--policy", "size"]));
    lab.do_systx(["mount", "--policy", "size", "d"]).ok();
    assert!(larger_younger_wins(&lab, &[]));
    assert!(!larger_younger_wins(&lab, &["--policy", "osprio"]));
    let told = || lab.do_systx(["mount", "--json"]).ok().json()["guarded"][0]["policy"].clone();
    assert_eq!(told(), "size");
    // It is kept with the directory.
    lab.kill_and_come_back();
    assert_eq!(told(), "size");
    assert!(larger_younger_wins(&lab, &[]));
    lab.do_systx(["umount", "d"]).ok();
}

/// One file rewritten in place: its name and length are the same for everybody.
const IN_PLACE: &str = "printf after_ | dd of=f conv=notrunc status=none";

/// Whom a transaction waits for, as `systx top` tells.
fn waits_for(lab: &Lab, id: &str) -> Option<String> {
    let told = lab.do_systx(["top", "--once", "--json"]).ok().json();
    let volumes = told["top"]["volumes"].as_array().expect("volumes");
    let all = volumes.iter().flat_map(|v| v["transactions"].as_array().expect("an array"));
    let me = all.into_iter().find(|t| t["id"] == id);
    Some(me?["waits_for"].as_str()?.to_owned())
}

/// A younger transaction reads what an older one has rewritten; then the older one ends by `end`.
/// What it read, and how its commit ended.
fn read_beside(lab: &Lab, end: impl FnOnce(&Open<'_>)) -> (String, i32) {
    lab.write("g/f", "before");
    let (winner, reader) = (Open::begin(lab, "g", &[]), Open::begin(lab, "g", &[]));
    winner.sh(IN_PLACE).ok();
    let read = std::thread::scope(|scope| {
        let read = scope.spawn(|| reader.sh("cat f && echo -n mine > other"));
        lab.until("the read waits", || waits_for(lab, &reader.id) == Some(winner.id.clone()));
        end(&winner);
        read.join().expect("it ends")
    });
    if read.code == 0 {
        // As what its commit left.
        return (read.out, reader.systx("commit").code);
    }
    let committed = reader.systx("commit").code;
    reader.systx("abort").ok();
    (read.err, committed)
}

#[test]
fn a_read_that_would_lose_waits_for_the_end_of_the_winner() {
    let lab = lab!();
    lab.write("g/f", "before");
    // Longer than it takes on any machine.
    lab.do_systx(["mount", "--stall", "30000", "g"]).ok();
    let commits = read_beside(&lab, |winner| drop(winner.systx("commit").ok()));
    assert_eq!(commits, ("after_".to_owned(), 0));
    assert_eq!(lab.read("g/other"), "mine");
    let aborts = read_beside(&lab, |winner| drop(winner.systx("abort").ok()));
    assert_eq!(aborts, ("before".to_owned(), 0));
    lab.do_systx(["umount", "g"]).ok();
}

/// By age or urgency one of the two would lose.
#[test]
fn in_two_phase_locking_writes_wait_and_only_a_circle_costs_somebody() {
    let lab = lab!();
    lab.write("g/f", "before");
    lab.do_systx(["mount", "--stall", "30000", "--policy", "two-phase", "g"]).ok();
    let write = |text: &str| format!("printf {text} | dd of=f conv=notrunc status=none");
    // The older one comes later, and the younger one.
    for holder_is_older in [false, true] {
        let (older, younger) = (Open::begin(&lab, "g", &[]), Open::begin(&lab, "g", &[]));
        let (holder, later) = if holder_is_older { (older, younger) } else { (younger, older) };
        holder.sh(&write("HOLDER")).ok();
        std::thread::scope(|scope| {
            let later_write = scope.spawn(|| later.sh(&write("late")));
            let waits = || waits_for(&lab, &later.id) == Some(holder.id.clone());
            lab.until("the write waits", waits);
            holder.systx("commit").ok();
            later_write.join().expect("it ends").ok();
        });
        later.systx("commit").ok();
        assert_eq!(lab.read("g/f"), "lateER");
    }
    // Both have read what both go on to write.
    let (older, younger) = (Open::begin(&lab, "g", &[]), Open::begin(&lab, "g", &[]));
    for one in [&older, &younger] {
        one.sh("cat f").ok();
    }
    std::thread::scope(|scope| {
        let first = scope.spawn(|| younger.sh(&write("young")));
        lab.until("the write waits", || waits_for(&lab, &younger.id).is_some());
        older.sh(&write("old")).ok();
        first.join().expect("it ends");
    });
    younger.systx("commit").expect(CONFLICT);
    younger.systx("abort").ok();
    older.systx("commit").ok();
    assert_eq!(lab.read("g/f"), "oldeER");
    lab.do_systx(["umount", "g"]).ok();
}

/// It is no more than others wait: after its time, or without any, it has lost.
#[test]
fn a_read_that_would_lose_does_not_wait_for_ever() {
    let lab = lab!();
    lab.write("g/f", "before");
    for stall in ["0", "100"] {
        lab.do_systx(["mount", "--stall", stall, "g"]).ok();
        let (winner, reader) = (Open::begin(&lab, "g", &[]), Open::begin(&lab, "g", &[]));
        winner.sh(IN_PLACE).ok();
        reader.sh("cat f > /dev/null; :").ok();
        reader.systx("commit").expect(CONFLICT);
        reader.systx("abort").ok();
        winner.systx("abort").ok();
        lab.do_systx(["umount", "g"]).ok();
    }
}

/// The winner is a run whose client is killed, or the whole daemon goes.
#[test]
fn a_read_that_waits_goes_on_when_the_winner_is_killed() {
    let lab = lab!();
    lab.write("g/f", "before");
    lab.do_systx(["mount", "--stall", "30000", "g"]).ok();
    for daemon in [false, true] {
        lab.write("g/f", "before");
        let mut winner = lab.shell(&[]);
        winner.eval(&format!("cd g; {IN_PLACE}"));
        let reader = Open::begin(&lab, "g", &[]);
        let waits = || waits_for(&lab, &reader.id).is_some();
        let read = std::thread::scope(|scope| {
            let read = scope.spawn(|| reader.sh("cat f"));
            lab.until("the read waits", waits);
            if daemon {
                lab.kill_and_come_back();
            } else {
                winner.signal(rustix::process::Signal::KILL);
            }
            read.join().expect("it ends")
        });
        if daemon {
            // Its transaction went with the daemon.
            assert_ne!(read.code, 0, "{read}");
        } else {
            assert_eq!(read.ok().out, "before");
            reader.systx("commit").ok();
        }
        assert_eq!(lab.read("g/f"), "before");
    }
    lab.do_systx(["umount", "g"]).ok();
}
