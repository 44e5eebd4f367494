//! Transactions of threads in a log-structured volume that is mounted with `--threads`: what is of
//! such volumes alone, with plain programs and runs beside. Everything else of such transactions is
//! asked by the suites `threads`, `members`, `ordered`, `scoped`, `composing` and `regions`, on a
//! volume with `SYSTX_E2E_FS=volume`.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use systx_e2e::cases::{line, started};
use systx_e2e::driven::Driven;
use systx_e2e::run::{Limits, eventually, finish};
use systx_e2e::volume::Mounted;
use systx_e2e::{CONFLICT, lab};

fn driven(v: &Mounted<'_>) -> Driven {
    Driven::start(v.lab, v.lab.command(env!("CARGO_BIN_EXE_systx-e2e-threads")), &v.dir)
}

fn run(v: &Mounted<'_>, script: &str) {
    let mut command = v.lab.systx(["run", "--", "sh", "-c", script]);
    command.current_dir(&v.dir);
    finish(command, Limits::seconds(60), v.lab).ok();
}

fn is_free(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

const LOST: &str = "error 125";

#[test]
fn a_commit_is_seen_whole_and_is_there_when_the_volume_is_mounted_again() {
    let lab = lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("echo old > f; mkdir d; echo old > d/moved").ok();
    let listed = lab.do_systx(["mount"]).ok().out;
    assert!(listed.contains("volume in") && listed.contains("threads"), "{listed}");
    let mut program = driven(&v);
    let work = "sh mv d/moved here; echo new > f; rmdir d; ln f hard; cat f";
    program.all(&[("begin", "ok"), (work, "0 new"), ("read here", "old")]);
    assert_eq!(v.sh("cat f d/moved; ls").ok().out, "old\nold\nd\nf\n");
    program.all(&[("end", "ok"), ("read f", "new")]);
    assert_eq!(v.sh("cat f here; ls; stat -c %h f").ok().out, "new\nold\nf\nhard\nhere\n2\n");
    program.all(&[("begin", "ok"), ("sh rm f here", "0"), ("abort", "ok"), ("read here", "old")]);
    program.ends();
    // What the kernel remembers of it is in nobody's way.
    v.again();
    assert_eq!(v.sh("cat f here; ls").ok().out, "new\nold\nf\nhard\nhere\n");
    assert!(lab.do_systx(["log", "-C", "v"]).ok().out.contains("systx-e2e-threads"));
}

#[test]
fn who_has_read_what_others_change_loses_to_programs_runs_and_threads() {
    let lab = lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("echo 0 > f").ok();
    let (mut program, mut other) = (driven(&v), driven(&v));
    let reads = [("begin", "ok"), ("sh cat f; echo mine > mine", "0 0")];
    let mut lose = |act: &mut dyn FnMut()| {
        program.all(&reads);
        act();
        program.all(&[("end", LOST)]);
        assert!(!v.path("mine").exists());
        v.sh("echo 0 > f").ok();
    };
    lose(&mut || drop(v.sh("echo 1 > f").ok()));
    lose(&mut || drop(v.sh("echo 1 > new; mv new f").ok()));
    lose(&mut || run(&v, "echo 1 > f"));
    lose(&mut || other.all(&[("begin", "ok"), ("sh echo 1 > f", "0"), ("end", "ok")]));
    program.all(&[("retry", "ok"), ("sh cat f; echo mine > mine", "0 0"), ("end", "ok")]);
    assert!(v.path("mine").exists());
    program.ends();
    other.ends();
}

#[test]
fn descriptors_over_the_end_are_the_committed_file_whoever_changes_it_then() {
    let lab = lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("seq 3000 > f; echo 1 > script; chmod 755 script").ok();
    let mut program = driven(&v);
    for name in ["f", "script", "made"] {
        let open = format!("open {name}");
        let acts = [("begin", "ok"), ("sh echo inside > made", "0"), (open.as_str(), "ok")];
        program.all(&acts);
        program.all(&[("put inside", "ok"), ("end", "ok"), ("put after", "ok")]);
        let text = || fs::read_to_string(v.path(name)).unwrap();
        assert!(text().starts_with("after"), "{name}: {}", text());
        // By others: a program, a run, and another thread.
        v.sh(&format!("printf plain > {name}")).ok();
        eventually("the plain change", || program.does("get") == "plain");
        run(&v, &format!("printf run > {name}"));
        eventually("the commit of a run", || program.does("get") == "run");
        let mut other = driven(&v);
        let write = format!("sh printf thread > {name}");
        other.all(&[("begin", "ok"), (write.as_str(), "0"), ("end", "ok")]);
        other.ends();
        eventually("the commit of a thread", || program.does("get") == "thread");
        program.all(&[("put still", "ok")]);
        assert!(text().starts_with("still"), "{name}: {}", text());
        program.all(&[("close", "ok")]);
    }
    // What has lost its name is there for who has it open.
    program.all(&[("begin", "ok"), ("open f", "ok"), ("sh rm f", "0"), ("end", "ok")]);
    program.all(&[("put gone", "ok"), ("get", "goneld")]);
    assert!(!v.path("f").exists());
    program.ends();
    v.again();
}

#[test]
fn locks_are_those_of_programs_outside() {
    let lab = lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("touch f g").ok();
    let mut program = driven(&v);
    let own = || File::options().read(true).write(true).open(v.path("f")).unwrap();
    // Of an open file description, which keeps a process's out, and the other way round.
    let ofd = "import fcntl, struct, sys
f = open('f', 'r+')
try: fcntl.fcntl(f, 37, struct.pack('hhqqi4x', 1, 0, 0, 0, 0))
except BlockingIOError: sys.exit()
print(1, flush=True)
sys.stdin.read()";
    fs::write(lab.path("ofd.py"), ofd).unwrap();
    let description = || {
        let mut command = lab.command("python3");
        command.arg(lab.path("ofd.py")).current_dir(&v.dir);
        started(command)
    };
    let ofd_is_free = || {
        let (mut child, mut out) = description();
        drop(child.stdin.take());
        let got = line(&mut out) == "1";
        child.wait().unwrap();
        got
    };
    for outside in [true, false] {
        // Inside of a transaction, and not.
        if outside {
            program.all(&[("begin", "ok")]);
        }
        let file = own();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        program.all(&[("flock f", "busy"), ("flock g", "locked"), ("unlock", "ok")]);
        drop(file);
        eventually("it is free", || program.does("flock f") == "locked");
        assert!(!is_free(&own()));
        program.all(&[("unlock", "ok")]);
        eventually("it is free", || is_free(&own()));
        let (mut holder, mut said) = description();
        assert_eq!(line(&mut said), "1");
        program.all(&[("posix f", "busy")]);
        drop(holder.stdin.take());
        holder.wait().unwrap();
        eventually("it is free", || program.does("posix f") == "locked");
        assert!(!ofd_is_free());
        if outside {
            // It is kept over the commit.
            program.all(&[("sh echo changed > f", "0"), ("end", "ok")]);
            assert!(!ofd_is_free());
        }
        program.all(&[("unlock", "ok")]);
        eventually("it is free", ofd_is_free);
    }
    program.ends();
}

#[test]
fn a_volume_in_which_one_is_open_is_unmounted_by_force_alone() {
    let lab = lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("echo old > f; sync f").ok();
    let mut program = driven(&v);
    program.all(&[("begin", "ok"), ("sh echo new > f", "0"), ("open f", "ok")]);
    let refused = lab.do_systx(["umount", "v"]).expect(CONFLICT);
    let id = &lab.open_ids()[0];
    assert!(refused.err.contains(id), "{refused}");
    program.all(&[("end", "ok")]);
    // It has a file open, and its seat.
    let used = lab.do_systx(["umount", "v"]).expect(CONFLICT);
    assert!(used.err.contains("in use") && used.err.contains("(systx-e2e-"), "{used}");
    program.all(&[("close", "ok"), ("begin", "ok"), ("sh echo lost > f", "0")]);
    lab.do_systx(["umount", "--force", "v"]).ok();
    assert!(program.does("end").starts_with("error"), "nobody has committed it");
    assert!(lab.open_ids().is_empty());
    lab.do_systx(["fsck", "image"]).ok();
    v.mount();
    assert_eq!(v.sh("cat f").ok().out, "new\n");
    // The same program has transactions in it again.
    drop(program);
    let mut program = driven(&v);
    program.all(&[("begin", "ok"), ("sh cat f; echo again > f", "0 new"), ("end", "ok")]);
    assert_eq!(v.sh("cat f").ok().out, "again\n");
    program.ends();
}

#[test]
fn a_daemon_that_is_killed_leaves_all_of_a_threads_commit_or_nothing() {
    let lab = lab!();
    let v = Mounted::for_threads(&lab);
    v.begin_rounds();
    let mut committed = 0;
    for round in 1..=4_u64 {
        let mut program = driven(&v);
        let work = format!(
            "sh echo {round} > a; echo {round} > d/b; rm d/at-*; echo {round} > d/at-{round}; \
             head -c 3000000 /dev/zero > d/filler"
        );
        // What is open over the end is asked about in the mount itself, where it may be killed.
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

/// More attempts than anybody needs.
const ATTEMPTS: u32 = 500;

/// Programs with threads, runs, and plain programs count in one file each, and together in another.
#[test]
fn threads_runs_and_plain_programs_lose_no_count_of_each_other() {
    let lab = lab!();
    let v = Mounted::for_threads(&lab);
    v.sh("echo 0 > count; : > log").ok();
    std::thread::scope(|scope| {
        let of_threads = || {
            let mut program = driven(&v);
            let work = "sh echo $(($(cat count) + 1)) > count; echo thread >> log";
            for _ in 0..10 {
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
        };
        scope.spawn(of_threads);
        scope.spawn(of_threads);
        scope.spawn(|| {
            for _ in 0..10 {
                let work = "echo $(($(cat count) + 1)) > count";
                let script = "run --retries 50 -- sh -c";
                let mut command = lab.systx(script.split(' ').chain([work]));
                command.current_dir(&v.dir);
                finish(command, Limits::seconds(100), &lab).ok();
            }
        });
        scope.spawn(|| v.sh("for i in $(seq 30); do echo plain >> log; done").ok());
    });
    assert_eq!(v.sh("cat count; grep -c thread log; grep -c plain log").ok().out, "30\n20\n30\n");
}

const PAGE: u64 = 4096;
const PROGRAMS: u64 = 4;
const ROUNDS: u32 = 12;

/// The number that a page begins with.
fn number(file: &File, page: u64) -> u32 {
    let mut digits = [0; 8];
    file.read_exact_at(&mut digits, page * PAGE).expect("a page");
    std::str::from_utf8(&digits).expect("digits").parse().expect("a number")
}

/// Each program overwrites two pages of its own of one file, again and again; commits of several
/// are under way at once. Who reads these pages one after the other never sees the second one as it
/// was before.
#[test]
fn commits_that_overwrite_different_pages_of_one_file_are_whole() {
    let lab = lab!();
    let v = Mounted::for_threads(&lab);
    let all = 2 * PROGRAMS;
    v.sh(&format!("for p in $(seq {all}); do printf %-4096s 00000000 >> pages; done")).ok();
    let file = File::open(v.dir.join("pages")).expect("it is there");
    let working = AtomicU64::new(PROGRAMS);
    std::thread::scope(|scope| {
        for own in 0..PROGRAMS {
            let (v, working) = (&v, &working);
            scope.spawn(move || {
                let _ends = Ends(working);
                let mut program = driven(v);
                for round in 1..=ROUNDS {
                    let put = |page| {
                        let to =
                            format!("dd of=pages bs=4096 seek={page} conv=notrunc status=none");
                        format!("printf %08d {round} | {to}")
                    };
                    let work = format!("sh {}; {}", put(2 * own), put(2 * own + 1));
                    let mut begin = "begin";
                    let attempt = (0..ATTEMPTS).find(|_| {
                        let said = [begin, &work, "end"].map(|words| program.does(words));
                        let done = said == ["ok", "0", "ok"];
                        if !done {
                            program.does("abort");
                            begin = "retry";
                        }
                        done
                    });
                    assert!(attempt.is_some(), "{}", v.lab.daemon_log());
                    let now = File::open(v.dir.join("pages")).expect("it is there");
                    for page in [2 * own, 2 * own + 1] {
                        assert_eq!(number(&now, page), round, "after its commit");
                    }
                }
                program.ends();
            });
        }
        while working.load(Ordering::Relaxed) > 0 {
            for own in 0..PROGRAMS {
                let first = number(&file, 2 * own);
                let second = number(&file, 2 * own + 1);
                assert!(first <= second, "{own}: {first} and then {second}");
            }
        }
    });
    assert!((0..all).all(|page| number(&file, page) == ROUNDS));
    drop(file);
    v.again();
    let file = File::open(v.dir.join("pages")).expect("it is there");
    assert!((0..all).all(|page| number(&file, page) == ROUNDS));
}

/// Counts down also if the test fails.
struct Ends<'a>(&'a AtomicU64);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn without_the_option_threads_are_refused() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    let mut program = driven(&v);
    program.all(&[("begin", &format!("error {}", libc::EOPNOTSUPP))]);
    program.ends();
    let stall = lab.do_systx(["mount", "image", "w", "--stall", "1"]);
    assert!(stall.code != 0 && stall.err.contains("--threads"), "{stall}");
}
