//! Threads that keep losing are held before they begin, and nobody is treated unfairly by that.

use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command};
use systx_e2e::cases::{Guarded, eventually, line, started};
use systx_e2e::lab::{LIBRARY, built, find_program};
use systx_e2e::open::Open;
use systx_e2e::run::Shell;
use systx_e2e::{Lab, lab, skip};

/// A program that loses as it is told to.
struct Loser {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Loser {
    fn start(guarded: &Guarded<'_>) -> Loser {
        let (child, out) = started(guarded.program("losing", 0));
        let mut loser = Loser { child, out };
        assert_eq!(line(&mut loser.out), "ready");
        loser
    }

    fn tell(&mut self, what: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{what}").expect("it reads");
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        line(&mut self.out)
    }

    /// What `systx top` tells of its thread.
    fn thread(&self, lab: &Lab) -> Option<serde_json::Value> {
        let told = lab.do_systx(["top", "--once", "--json"]).ok().json();
        let volumes = told["top"]["volumes"].as_array().expect("volumes");
        let guarded = volumes.iter().flat_map(|v| v["guarded"].as_array().expect("an array"));
        let mut threads = guarded.flat_map(|g| g["threads"].as_array().expect("an array"));
        threads.find(|thread| thread["pid"] == self.child.id()).cloned()
    }

    fn is_held(&self, lab: &Lab) -> bool {
        self.thread(lab).is_some_and(|thread| thread["held_for"].is_string())
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// A run that has the file, and is older than all that the loser begins.
fn rival(lab: &Lab) -> Shell<'_> {
    let mut shell = lab.shell(&[]);
    let page = "head -c 4096 /dev/zero | tr '\\0' r";
    shell.eval(&format!("{page} | dd of=guarded/f bs=4096 conv=notrunc status=none"));
    shell
}

fn guarded(lab: &Lab) -> Guarded<'_> {
    let guarded = Guarded::stalling(lab, env!("CARGO_BIN_EXE_systx-e2e-threads"));
    lab.write("guarded/f", [b'-'; 4096]);
    guarded
}

fn first(lab: &Lab) -> char {
    lab.read("guarded/f").chars().next().expect("a page")
}

/// Attempt after attempt would lose to somebody who takes long.
#[test]
fn a_thread_that_keeps_losing_is_held_until_who_it_would_lose_to_has_ended() {
    let lab = lab!();
    let guarded = guarded(&lab);
    let mut loser = Loser::start(&guarded);
    for ends in ["killed", "commits", "aborts"] {
        let rival = rival(&lab);
        // As soon as it keeps losing it does not begin any more.
        let before = loser.thread(&lab).map_or(0, |thread| thread["lost"].as_u64().expect("many"));
        let keeps = |loser: &Loser| loser.thread(&lab).is_some_and(|t| t["keeps_losing"] == true);
        while !keeps(&loser) {
            assert_eq!(loser.ask("lose"), "lost");
            let lost = loser.thread(&lab).expect("it has a seat")["lost"].as_u64();
            assert!(lost.expect("many") <= before + 3, "three in a row are enough");
        }
        loser.tell("commit");
        lab.until("it is held", || loser.is_held(&lab));
        match ends {
            "killed" => rival.signal(rustix::process::Signal::KILL),
            "commits" => drop(rival.exit(0).expect(0)),
            _ => drop(rival.exit(3).expect(3)),
        }
        assert_eq!(line(&mut loser.out), "committed", "{ends}");
        assert_eq!(first(&lab), 'h', "{ends}");
        assert!(!loser.is_held(&lab));
    }
    let thread = loser.thread(&lab).expect("it lives");
    assert_eq!((thread["held"].as_u64(), thread["ended"].as_u64()), (Some(3), Some(6)), "{thread}");
    loser.end();
}

/// Who is held is no worse off than who runs: it can become urgent, be killed, and hears of a
/// daemon that goes.
#[test]
fn a_held_thread_hears_of_what_happens() {
    let lab = lab!();
    let guarded = guarded(&lab);
    let shell = rival(&lab);
    let losing = || {
        let mut loser = Loser::start(&guarded);
        (0..3).for_each(|_| assert_eq!(loser.ask("lose"), "lost"));
        loser
    };
    let mut killed = losing();
    killed.tell("commit");
    lab.until("it is held", || killed.is_held(&lab));
    killed.child.kill().expect("it lives");
    // Not before it has left the kernel, where it waits for an answer.
    killed.child.wait().expect("it ends");
    assert_eq!(lab.open_ids().len(), 1, "the rival's");
    // It would not lose any more: it is not held, and the rival loses.
    let mut urgent = losing();
    assert_eq!(urgent.ask("urgent"), "urgent");
    assert_eq!(urgent.ask("commit"), "committed");
    // The rival had not ended: who is held goes on after a minute in any case.
    assert_eq!(urgent.thread(&lab).expect("it lives")["held"], 0);
    shell.exit(0).expect(systx_e2e::CONFLICT);
    urgent.end();
    let second = rival(&lab);
    let mut left = losing();
    left.tell("commit");
    lab.until("it is held", || left.is_held(&lab));
    lab.kill_and_come_back();
    let told = line(&mut left.out);
    assert!(told.starts_with("failed: "), "{told}");
    // The next ones are those of any thread.
    eventually("it commits", || left.ask("commit") == "committed");
    left.end();
    drop(second);
    assert_eq!(first(&lab), 'h');
}

/// One value turns it off, with all else that waits.
#[test]
fn where_nothing_stalls_nobody_is_held() {
    let lab = lab!();
    lab.write("guarded/f", [b'-'; 4096]);
    lab.do_systx(["mount", "--stall", "0", "guarded"]).ok();
    let rival = rival(&lab);
    let mut command = lab.command(env!("CARGO_BIN_EXE_systx-e2e-threads"));
    command.arg("losing").arg(lab.path("guarded"));
    let (child, out) = started(command);
    let mut loser = Loser { child, out };
    assert_eq!(line(&mut loser.out), "ready");
    for _ in 0..6 {
        assert_eq!(loser.ask("lose"), "lost");
    }
    let thread = loser.thread(&lab).expect("it lives");
    assert_eq!((&thread["keeps_losing"], &thread["held"]), (&true.into(), &0.into()), "{thread}");
    loser.end();
    rival.exit(0).expect(0);
    lab.do_systx(["umount", "guarded"]).ok();
}

/// What `systx top` tells of the runs that have lost and are not over.
fn runs(lab: &Lab) -> Vec<serde_json::Value> {
    let told = lab.do_systx(["top", "--once", "--json"]).ok().json();
    let volumes = told["top"]["volumes"].as_array().expect("volumes");
    volumes.iter().flat_map(|v| v["runs"].as_array().expect("an array").clone()).collect()
}

/// A run that has lost tries again with another transaction, and is one run to whoever looks.
#[test]
fn a_run_that_loses_is_shown_as_long_as_it_tries() {
    let lab = lab!();
    lab.write("d/f", "before\n");
    for killed in [false, true] {
        let winner = Open::begin(&lab, "d", &[]);
        winner.sh("echo winner > f").ok();
        let mut command = lab.systx(["run", "--retries", "9", "--", "sh", "-c"]);
        command.arg("echo mine > d/mine; echo run > d/f && echo wrote && read line");
        let (mut run, mut out) = started(command);
        let lost = |tries: bool| {
            let is =
                |told: &serde_json::Value| told["lost"] == 1 && told["tries"].is_null() != tries;
            runs(&lab).into_iter().find(is)
        };
        lab.until("it waits to try again", || lost(false).is_some());
        let told = lost(false).expect("it waits");
        assert_eq!((&told["pid"], &told["argv"][0]), (&run.id().into(), &"sh".into()), "{told}");
        assert_eq!(told["over"]["path"], lab.path("d/f").to_str().expect("UTF-8"), "{told}");
        assert!(told["over"]["opponent"].to_string().contains(&winner.id), "{told}");
        assert!(told["size"].as_u64() > Some(1) && told["lost_us"].as_u64() > Some(0), "{told}");
        let text = lab.do_systx(["top", "--once"]).ok().out;
        assert!(text.contains("1 attempts lost") && text.contains("waits to try again"), "{text}");
        winner.systx("abort").ok();
        assert_eq!(line(&mut out), "wrote");
        let told = lost(true).expect("its second attempt");
        assert_eq!(lab.open_ids(), [told["tries"].as_str().expect("an id")], "{told}");
        assert!(told["waited_us"].as_u64() > Some(0), "{told}");
        if killed {
            run.kill().expect("it lives");
            run.wait().expect("it ends");
        } else {
            writeln!(run.stdin.as_mut().expect("a pipe")).expect("it reads");
            assert!(run.wait().expect("it ends").success());
            assert_eq!(lab.read("d/f"), "run\n");
        }
        assert!(runs(&lab).is_empty());
    }
}

fn python(lab: &Lab, dir: &Path, milliseconds: u32) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = built(&["--lib"], LIBRARY).with_file_name("libsystx.so");
    let mut command = lab.command("python3");
    command.arg("-B").arg(root.join("tests/counting.py")).arg(dir).arg(milliseconds.to_string());
    command.env("SYSTX_LIBRARY", library);
    command.env("PYTHONPATH", root.join("../../bindings/python"));
    command
}

/// Programs in two languages count in one file: none of them starves, no update is lost, and most
/// attempts are worth it.
#[test]
fn who_is_held_gets_its_share() {
    const MILLISECONDS: u32 = 3000;
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    let lab = lab!();
    let guarded = Guarded::new(&lab, env!("CARGO_BIN_EXE_systx-e2e-threads"));
    lab.write("guarded/count", "0");
    let rust = || guarded.program("counts", MILLISECONDS);
    let all = [rust(), python(&lab, &guarded.dir, MILLISECONDS), rust()];
    let mut all = all.map(started);
    for (_, out) in &mut all {
        assert_eq!(line(out), "ready");
    }
    for (child, _) in &mut all {
        writeln!(child.stdin.as_mut().expect("a pipe")).expect("it reads");
    }
    let numbers = all.map(|(mut child, mut out)| {
        let told = line(&mut out);
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
        let (done, attempts) = told.split_once(' ').expect("two numbers");
        let number = |text: &str| text.parse::<f64>().expect("a number");
        (number(done), number(attempts))
    });
    println!("{numbers:?}");
    let (sum, attempts) = numbers.iter().fold((0.0, 0.0), |all, n| (all.0 + n.0, all.1 + n.1));
    let counted: f64 = lab.read("guarded/count").parse().expect("a number");
    assert_eq!(counted, sum, "{numbers:?}");
    // Jain's index: 1 if all have the same, a third if one has all.
    let squares: f64 = numbers.iter().map(|(done, _)| done * done).sum();
    let jain = sum * sum / (3.0 * squares);
    assert!(jain > 0.7, "{jain}: {numbers:?}");
    assert!(attempts < 2.0 * sum, "{numbers:?}");
}
