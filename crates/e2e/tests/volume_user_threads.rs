//! Transactions of threads in an ordinary user's volume that is mounted with `--threads`: of
//! programs that `systx exec` has launched. What holds for threads in any volume is asked by
//! `volume_threads`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use systx_e2e::driven::Driven;
use systx_e2e::lab::tool;
use systx_e2e::run::{Limits, eventually, finish};
use systx_e2e::volume::Mounted;
use systx_e2e::{CONFLICT, Finished, Lab, lab, skip};

macro_rules! user_lab {
    () => {
        match lab!().as_known_user().and_then(allowed) {
            Ok(lab) => lab,
            Err(why) => skip!("{why}"),
        }
    };
}

/// The program that does what it is told, where the lab's user can execute it.
fn helper(lab: &Lab) -> PathBuf {
    lab.outside().join("threads")
}

fn allowed(lab: Lab) -> Result<Lab, String> {
    let copy = ["-m", "755", env!("CARGO_BIN_EXE_systx-e2e-threads")];
    tool(Command::new("install").args(copy).arg(helper(&lab))).expect("a copy");
    let tried = lab.do_systx(["exec", "--", "true"]);
    match tried.code {
        0 => Ok(lab),
        _ if tried.err.contains("user namespace") => {
            Err("user namespaces are not allowed here".into())
        }
        _ => panic!("{tried}"),
    }
}

fn driven(v: &Mounted<'_>) -> Driven {
    let mut command = v.lab.systx(["exec", "--"]);
    command.arg(helper(v.lab));
    Driven::start(v.lab, command, &v.dir)
}

fn run(v: &Mounted<'_>, script: &str) -> Finished {
    let mut command = v.lab.command("sh");
    let go = "cd \"$1\" && exec \"$2\" run --retries=50 -- sh -c \"$3\"";
    command.args(["-c", go, "sh"]).arg(&v.dir).arg(v.lab.binary()).arg(script);
    finish(command, Limits::seconds(100), v.lab)
}

#[test]
fn a_commit_of_a_users_thread_is_seen_whole_and_what_is_open_goes_on() {
    let lab = user_lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("echo old > f; mkdir d; echo old > d/moved").ok();
    // Without the privilege that `systx exec` gives in its own user namespace.
    let mut bare = Driven::start(&lab, lab.command(helper(&lab)), &v.dir);
    bare.all(&[("begin", &format!("error {}", libc::EPERM))]);
    bare.ends();
    let mut program = driven(&v);
    let work = "sh mv d/moved here; echo new > f; rmdir d; ln f hard; cat f";
    program.all(&[("begin", "ok"), (work, "0 new"), ("read here", "old"), ("open f", "ok")]);
    assert_eq!(v.sh("cat f d/moved; ls").ok().out, "old\nold\nd\nf\n");
    program.all(&[("end", "ok"), ("read f", "new"), ("put after", "ok")]);
    assert_eq!(v.sh("head -c 5 f; ls; stat -c %h f").ok().out, "afterf\nhard\nhere\n2\n");
    // Whoever changes it then, also where no path leads to it.
    v.sh("printf plain > f").ok();
    eventually("the plain change", || program.does("get") == "plain");
    run(&v, "printf run > f; mkdir shut; mv f hard shut; chmod 0 shut").ok();
    eventually("the commit of a run", || program.does("get") == "run");
    program.all(&[("put still", "ok"), ("close", "ok")]);
    assert_eq!(v.sh("chmod 700 shut; cat shut/f").ok().out, "still");
    program.all(&[("begin", "ok"), ("sh rm here", "0"), ("abort", "ok"), ("read here", "old")]);
    program.ends();
    v.again();
    assert_eq!(v.sh("cat shut/hard; ls").ok().out, "stillhere\nshut\n");
}

#[test]
fn a_users_thread_loses_to_programs_runs_and_threads_and_is_unmounted_by_force_alone() {
    const LOST: &str = "error 125";
    let lab = user_lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("echo 0 > f").ok();
    let (mut program, mut other) = (driven(&v), driven(&v));
    let reads = [("begin", "ok"), ("sh cat f; echo mine > mine", "0 0")];
    let mut lose = |act: &mut dyn FnMut()| {
        program.all(&reads);
        act();
        program.all(&[("end", LOST)]);
        assert_ne!(v.sh("cat mine").code, 0);
        v.sh("echo 0 > f").ok();
    };
    lose(&mut || drop(v.sh("echo 1 > f").ok()));
    lose(&mut || drop(run(&v, "echo 1 > f").ok()));
    lose(&mut || other.all(&[("begin", "ok"), ("sh echo 1 > f", "0"), ("end", "ok")]));
    other.ends();
    program.all(&[("retry", "ok"), ("sh cat f; echo mine > mine", "0 0"), ("end", "ok")]);
    v.sh("cat mine").ok();
    program.all(&[("begin", "ok"), ("sh echo new > f", "0"), ("open f", "ok")]);
    let refused = lab.do_systx(["umount", "v"]).expect(CONFLICT);
    assert!(refused.err.contains(&lab.open_ids()[0]), "{refused}");
    program.all(&[("end", "ok")]);
    let used = lab.do_systx(["umount", "v"]).expect(CONFLICT);
    assert!(used.err.contains("in use"), "{used}");
    program.all(&[("close", "ok"), ("begin", "ok"), ("sh echo lost > f", "0")]);
    lab.do_systx(["umount", "--force", "v"]).ok();
    assert!(program.does("end").starts_with("error"), "nobody has committed it");
    lab.do_systx(["fsck", "image"]).ok();
    v.mount();
    assert_eq!(v.sh("cat f").ok().out, "new\n");
}

#[test]
fn a_killed_daemon_of_a_user_leaves_all_of_a_threads_commit_or_nothing() {
    let lab = user_lab!();
    let v = Mounted::for_threads(&lab);
    v.begin_rounds();
    let mut committed = 0;
    for round in 1..=3_u64 {
        let mut program = driven(&v);
        let work = format!(
            "sh echo {round} > a; echo {round} > d/b; rm d/at-*; echo {round} > d/at-{round}; \
             head -c 3000000 /dev/zero > d/filler"
        );
        program.all(&[("begin", "ok"), (work.as_str(), "0"), ("open a", "ok")]);
        program.tell("end");
        // Some are killed before they decide, others after that.
        std::thread::sleep(Duration::from_millis((round - 1) * 12));
        lab.kill_and_come_back();
        let said = program.answer();
        drop(program);
        committed = v.all_or_nothing(committed, round, (said == "ok", &said));
        v.again();
    }
}

#[test]
fn threads_runs_and_plain_programs_of_a_user_lose_no_count() {
    /// More attempts than anybody needs.
    const ATTEMPTS: u32 = 500;
    let lab = user_lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("echo 0 > count; : > log").ok();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut program = driven(&v);
                let work = "sh echo $(($(cat count) + 1)) > count; echo thread >> log";
                for _ in 0..6 {
                    let mut begin = "begin";
                    let attempt = (0..ATTEMPTS).find(|_| {
                        let said = [begin, work, "end"].map(|words| program.does(words));
                        let done = said == ["ok", "0", "ok"];
                        if !done {
                            program.does("abort");
                            begin = "retry";
                        }
                        done
                    });
                    assert!(attempt.is_some(), "{}", lab.daemon_log());
                }
                program.ends();
            });
        }
        scope.spawn(|| {
            (0..6).for_each(|_| drop(run(&v, "echo $(($(cat count) + 1)) > count").ok()));
        });
        scope.spawn(|| v.sh("for i in $(seq 20); do echo plain >> log; done").ok());
    });
    assert_eq!(v.sh("cat count; grep -c thread log; grep -c plain log").ok().out, "18\n12\n20\n");
}
