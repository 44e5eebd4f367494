//! `systx run -- X` is as X: some eighty ways of starting, stopping and ending a command, natively
//! and in a run, by what the command and its parent saw.  What has to differ is in SEMANTICS.

use std::path::{Path, PathBuf};
use systx_e2e::begin::{Change, Step, c};
use systx_e2e::rows::{Difference, Facts, Row, Side, compare, needed};
use systx_e2e::{Lab, lab, skip};

/// The lines of the table in SEMANTICS, "A command in a run", with the facts that they are about.
const KNOWN: &[Difference] = &[
    ("*", "pid", PROCESS),
    ("*", "parent", PROCESS),
    ("*", "death-signal", "what ends it"),
    ("*", "namespace mnt", "namespaces"),
    ("*", "namespace user", "namespaces"),
    ("a user*", "CapBnd", "namespaces"),
    ("*", "transaction", "environment"),
    ("*", "path", "environment"),
    ("*", "Seccomp", "a filter of system calls"),
    ("a core", "core", "a core"),
    ("a name of its own", "argv0", "`argv[0]`"),
    ("the terminal goes away, which is caught", "got", SENDER),
    ("a user, the terminal goes away, which is caught", "got", SENDER),
    ("few descriptors for ever", "", NOT_STARTED),
    ("its directory is removed", "", NOT_STARTED),
    ("no /proc", "", NOT_STARTED),
    ("a user, whose directory is closed", "", NOT_STARTED),
];

const PROCESS: &str = "process number";
const SENDER: &str = "who sent a signal";
const NOT_STARTED: &str = "what keeps it from starting";

fn probe(lab: &Lab) -> PathBuf {
    // Where an ordinary user and a command in a run can execute it.
    let copy = lab.outside().join("probe");
    let mut cp = std::process::Command::new("cp");
    systx_e2e::lab::tool(cp.arg(env!("CARGO_BIN_EXE_systx-e2e-probe")).arg(&copy)).expect("a copy");
    copy
}

#[track_caller]
fn check(lab: &Lab, rows: &[Row]) {
    let (wrong, met) = compare(lab, &probe(lab), rows, KNOWN);
    assert!(wrong.is_empty(), "{wrong}");
    // What does not differ any more is not to be listed.
    let is_idle =
        |known: &&Difference| rows.iter().any(|row| row.name == known.0) && !met.contains(&known.2);
    let idle: Vec<_> = KNOWN.iter().filter(is_idle).collect();
    assert!(idle.is_empty(), "{idle:?}");
}

/// Each difference that is met here is in the list, and each item of the list is met here.
#[test]
fn what_differs_is_told() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SEMANTICS.md"))
            .unwrap();
    let (_, section) = text.split_once("\n### A command in a run\n").expect("the section");
    let items = section.lines().skip_while(|line| !line.starts_with("- "));
    let items = items.take_while(|line| !line.is_empty());
    let told: std::collections::BTreeSet<&str> = items
        .filter_map(|line| Some(line.strip_prefix("- ")?.split_once(": ")?.0.trim_matches('*')))
        .collect();
    let known: std::collections::BTreeSet<&str> = KNOWN.iter().map(|known| known.2).collect();
    assert_eq!(told, known);
}

macro_rules! rows {
    ($($name:literal: $go:expr;)*) => { &[$(Row { name: $name, go: $go }),*] };
}

/// Starts it, with what it sees.
fn state(mut side: Side<'_>) -> Facts {
    side.start("state");
    side.end()
}

fn closed<const N: usize>(mut side: Side<'_>, which: [i32; N]) -> Facts {
    for fd in which {
        side.step(Step::Close(fd));
    }
    side.start("state read write=x");
    side.end()
}

const DESCRIPTORS: &[Row] = rows! {
    "plain": state;
    "0 closed": |side| closed(side, [0]);
    "1 closed": |side| closed(side, [1]);
    "2 closed": |side| closed(side, [2]);
    "0 and 1 closed": |side| closed(side, [0, 1]);
    "0 and 2 closed": |side| closed(side, [0, 2]);
    "1 and 2 closed": |side| closed(side, [1, 2]);
    "0 to 2 closed, the first run": |side| {
        side.lab().kill_daemon();
        closed(side, [0, 1, 2])
    };
    "standard input a directory": |mut side| {
        side.step(Step::Open(c("/"), libc::O_RDONLY | libc::O_DIRECTORY, 0));
        side.start("state read");
        side.end()
    };
    "standard input a socket": |mut side| {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let a = side.keep(a.into());
        side.keep(b.into());
        side.step(Step::Dup(a, 0));
        side.start("state read");
        side.end()
    };
    "standard input for writing only": |mut side| {
        side.step(Step::Open(c("/dev/null"), libc::O_WRONLY, 0));
        side.start("state read");
        side.end()
    };
    "standard input without waiting": |mut side| {
        let (r, w) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let r = side.keep(r);
        let w = side.keep(w);
        side.step(Step::Dup(r, 0));
        side.step(Step::Dup(w, 60));
        side.start("state read");
        side.end()
    };
    "standard output full": |mut side| {
        side.step(Step::Open(c("/dev/full"), libc::O_WRONLY, 1));
        side.step(Step::Dup(1, 2));
        side.start("state write=x");
        side.end()
    };
    "standard output appends": |mut side| {
        let out = c(side.lab().outside().join("out"));
        side.step(Step::Open(out, libc::O_WRONLY | libc::O_APPEND, 1));
        side.step(Step::Dup(1, 2));
        side.start("state write=x write=y");
        side.end()
    };
    "many and odd ones": |mut side| {
        let odd = [libc::O_PATH, libc::O_RDWR | libc::O_DIRECT, libc::O_SYNC];
        for (n, flags) in odd.iter().enumerate() {
            let path = if n == 1 { side.lab().outside().join("out") } else { "/".into() };
            side.step(Step::Open(c(path), *flags, 200 + n as i32));
        }
        side.step(Step::Dup(0, 3));
        side.step(Step::Dup(1, 9));
        side.start("state");
        side.end()
    };
};

#[test]
fn descriptors() {
    let lab = lab!();
    check(&lab, DESCRIPTORS);
}

const ORDINARY: [i32; 27] = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
    31,
];

/// Those that end a process by default.
const DEADLY: [i32; 25] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 25, 26, 27, 29, 30, 31, 34, 64];

const SIGNALS: &[Row] = rows! {
    "SIGCHLD ignored, the first run": |mut side| {
        side.lab().kill_daemon();
        side.step(Step::Ignore(libc::SIGCHLD));
        side.start("state child say=done exit=5");
        side.end()
    };
    "every signal ignored": |mut side| {
        for signal in ORDINARY.into_iter().chain([17, 18, 34, 50, 63]) {
            side.step(Step::Ignore(signal));
        }
        side.start("state");
        side.end()
    };
    "every signal blocked": |mut side| {
        for signal in ORDINARY.into_iter().chain([17, 18, 34, 50, 63, 64]) {
            side.step(Step::Block(signal));
        }
        side.start("state");
        side.end()
    };
    "a signal that waits": |mut side| {
        side.step(Step::Block(libc::SIGTERM));
        side.step(Step::Raise(libc::SIGTERM));
        side.start("record until=15 say=got-it");
        side.end()
    };
    "nohup": |mut side| {
        side.script("exec nohup @", "state record say=x");
        side.end()
    };
    "every signal sent": |mut side| {
        side.step(Step::Group);
        side.start("record until=12");
        side.wait_for("recording");
        for signal in ORDINARY.into_iter().filter(|s| *s != 12).chain([34, 35, 64]) {
            side.signal(signal);
            side.wait_for(&format!("got={signal} "));
        }
        side.signal(12);
        side.end()
    };
    "a signal with a value": |mut side| {
        side.start("record until=35");
        side.wait_for("recording");
        side.begun().queue(libc::SIGUSR1, 4711);
        side.wait_for("got=10");
        side.begun().queue(35, 1 << 40);
        side.end()
    };
    "a timer from before": |mut side| {
        side.step(Step::Timer(2_000_000));
        side.start("record until=14");
        side.end()
    };
    "a timer from before runs": |mut side| {
        side.step(Step::Timer(1_000_000_000));
        side.start("state");
        side.end()
    };
    "SIGTERM": |side| sent(side, libc::SIGTERM);
    "SIGSEGV": |side| sent(side, libc::SIGSEGV);
    "SIGTERM while stopped": |mut side| {
        side.step(Step::Group);
        side.start("record say=up until=15");
        side.wait_for("said=up");
        side.signal(libc::SIGSTOP);
        side.change();
        side.signal(libc::SIGTERM);
        side.signal(libc::SIGCONT);
        side.end()
    };
    "stopped and continued": |mut side| {
        side.step(Step::Group);
        side.start("say=up wait");
        side.wait_for("said=up");
        for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            side.signal(signal);
            side.change();
            side.signal(libc::SIGCONT);
        }
        side.signal(libc::SIGTERM);
        side.end()
    };
    "stops itself": |mut side| {
        side.step(Step::Group);
        side.start("stop=19 stop=20 say=done");
        for _ in 0..2 {
            side.change();
            side.signal(libc::SIGCONT);
        }
        side.end()
    };
    "sends its group a signal": |mut side| {
        side.step(Step::Group);
        side.start("record group=10 group=15 until=15 exit=4");
        side.end()
    };
};

#[test]
fn signals() {
    let lab = lab!();
    check(&lab, SIGNALS);
}

fn sent(mut side: Side<'_>, signal: i32) -> Facts {
    side.start("say=up wait");
    side.wait_for("said=up");
    side.signal(signal);
    side.end()
}

const TERMINALS: &[Row] = rows! {
    "leads a session with a terminal": |mut side| {
        side.on_a_terminal();
        side.start("state");
        side.end()
    };
    "a job": |mut side| {
        side.on_a_terminal();
        side.job("state exit=3");
        side.end()
    };
    "^C": |side| typed(side, "\u{3}");
    "^\\": |side| typed(side, "\u{1c}");
    "^C and ^\\ are caught": |mut side| {
        side.on_a_terminal();
        side.job("record say=up until=3 exit=7");
        side.wait_for("said=up");
        side.types("\u{3}");
        side.wait_for("got=2");
        side.types("\u{1c}");
        side.end()
    };
    "^Z, fg": |mut side| {
        side.on_a_terminal();
        side.job("say=up line say=end exit=6");
        side.wait_for("said=up");
        side.types("\u{1a}");
        side.wait_for("job=Stopped");
        side.tell_shell("fg");
        side.types("a line\n");
        side.end()
    };
    "^Z, bg, reads, fg": |mut side| {
        side.on_a_terminal();
        side.job("say=up line say=end");
        side.wait_for("said=up");
        side.types("\u{1a}");
        side.wait_for("job=Stopped");
        side.tell_shell("bg");
        side.wait_for("job=Stopped(21)");
        side.tell_shell("fg");
        side.types("a line\n");
        side.end()
    };
    "^Z, kill": |mut side| {
        side.on_a_terminal();
        side.job("say=up line");
        side.wait_for("said=up");
        side.types("\u{1a}");
        side.wait_for("job=Stopped");
        side.tell_shell("15");
        side.end()
    };
    "^C ends the loop of a script": |mut side| {
        side.on_a_terminal();
        side.script("for i in 1 2 3; do @; done", "say=up wait");
        side.wait_for("said=up");
        side.types("\u{3}");
        side.end()
    };
    "the terminal goes away": |mut side| {
        side.on_a_terminal();
        side.start("say=up wait");
        side.wait_for("said=up");
        side.hang_up();
        side.end()
    };
    "the terminal goes away, which is caught": |mut side| {
        side.on_a_terminal();
        side.start("record say=up until=1 say=end exit=4");
        side.wait_for("said=up");
        side.hang_up();
        side.end()
    };
    "the terminal of a job goes away": |mut side| {
        side.on_a_terminal();
        side.job("record say=up until=1 say=end exit=4");
        side.wait_for("said=up");
        side.hang_up();
        side.end()
    };
    "script(1)": |mut side| {
        side.script("exec script -qec '@' /dev/null", "state exit=9");
        side.end()
    };
};

#[test]
fn terminals() {
    let lab = lab!();
    check(&lab, TERMINALS);
}

fn typed(mut side: Side<'_>, key: &str) -> Facts {
    side.on_a_terminal();
    side.job("say=up wait");
    side.wait_for("said=up");
    side.types(key);
    side.end()
}

const ENDS: &[Row] = rows! {
    "death by each signal": |side| {
        let (lab, inside) = (side.lab(), side.inside);
        let mut all = Facts::new();
        let probe = lab.outside().join("probe");
        for signal in DEADLY {
            let mut one = Side::new(lab, &probe, inside);
            one.step(Step::Limit(libc::RLIMIT_CORE as i32, 0, 0));
            one.start(&format!("die={signal}"));
            let facts = one.end();
            let ended = format!("{:?} {:?}", facts.get("end"), facts.get("core"));
            all.insert(format!("signal {signal}"), ended);
        }
        all
    };
    "a core": |mut side| {
        side.step(Step::Limit(libc::RLIMIT_CORE as i32, 1 << 20, 1 << 20));
        side.start("die=6");
        side.end()
    };
    "not found": |side| other(side, &["systx-e2e-no-such-program"]);
    "not found, by path": |side| other(side, &["/nonexistent/program"]);
    "a directory": |side| other(side, &["/etc"]);
    "not executable": |side| other(side, &["/etc/passwd"]);
    "no name": |side| other(side, &[""]);
    "a name that is too long": |side| other(side, &[&"x".repeat(5000)]);
    "a script without a line for its interpreter": |side| file(side, "exit 5\n");
    "a script without an interpreter": |side| file(side, "#!/nonexistent/interpreter\n");
    "a file of no known kind": |side| file(side, "\u{1}\u{2}\u{3}\u{4}");
};

#[test]
fn ends() {
    let lab = lab!();
    check(&lab, ENDS);
}

/// What env(1) says of a program that cannot be executed, only its exit code counts.
fn other(mut side: Side<'_>, argv: &[&str]) -> Facts {
    side.start_argv(argv);
    let mut facts = side.end();
    facts.remove("err");
    facts
}

fn file(side: Side<'_>, text: &str) -> Facts {
    use std::os::unix::fs::PermissionsExt;
    let path = side.row().join("file");
    let script = format!("printf %s \"$1\" > {}", path.display());
    systx_e2e::lab::tool(std::process::Command::new("sh").args(["-c", &script, "sh", text]))
        .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    other(side, &["env", "./file"])
}

#[test]
fn each_exit_code() {
    let lab = lab!();
    let probe = probe(&lab);
    for code in 0..=255 {
        let mut side = Side::new(&lab, &probe, true);
        side.start(&format!("exit={code}"));
        assert_eq!(side.change(), Change::Exited(code));
    }
}

const PROCESSES: &[Row] = rows! {
    "a session of its own": |mut side| {
        side.step(Step::Session);
        side.start("state");
        side.end()
    };
    "a group of its own": |mut side| {
        side.step(Step::Group);
        side.start("state");
        side.end()
    };
    "setsid(1)": |mut side| {
        side.script("exec setsid -w @", "state exit=3");
        side.end()
    };
    "an orphan that ends": |mut side| {
        side.start("orphan say=late");
        side.end()
    };
    "a daemon that ends": |mut side| {
        side.start("daemon say=late");
        side.end()
    };
    "a child from before": |mut side| {
        side.with_a_child();
        side.start("say=up");
        while !matches!(side.change(), Change::Exited(_)) {}
        side.slip_leash();
        side.wait_for("child=lived");
        side.end()
    };
    "a child from before, and a daemon": |mut side| {
        side.with_a_child();
        side.start("daemon say=late");
        while !matches!(side.change(), Change::Exited(_)) {}
        side.slip_leash();
        side.wait_for("child=lived");
        side.end()
    };
    "its output to a process of the shell": |mut side| {
        side.script("exec @ > >(cat; sleep 2; echo later >&2)", "write=x");
        side.end()
    };
    "timeout(1)": |mut side| {
        side.script("timeout 0.5 @; echo $?", "wait");
        side.end()
    };
    "timeout(1), by SIGKILL": |mut side| {
        side.script("exec 2>/dev/null; timeout -s KILL 0.5 @; echo $?", "wait");
        side.end()
    };
    "timeout(1) that is not needed": |mut side| {
        side.script("timeout --foreground 60 @; echo $?", "state exit=2");
        side.end()
    };
    "xargs(1), four at once": |mut side| {
        side.any_order = true;
        side.script("printf '1\\n2\\n3\\n4\\n' | xargs -P4 -I{} @; echo $?", "say={}");
        side.end()
    };
    "xargs(1), one fails": |mut side| {
        side.script("echo 1 | xargs -I{} @ 2>/dev/null; echo $?", "die=15");
        side.end()
    };
    "a pipe whose reader is gone": |mut side| {
        let (_, writer) = std::io::pipe().unwrap();
        let writer = side.keep(writer.into());
        side.step(Step::Dup(writer, 1));
        side.start("write=x die=13");
        side.end()
    };
    "a signal in a pipeline": |mut side| {
        side.script("@ | cat; echo ${PIPESTATUS[*]}", "die=13");
        side.end()
    };
    "in a pipeline": |mut side| {
        side.script("echo in | @ | cat; echo ${PIPESTATUS[*]}", "read write=out exit=3");
        side.end()
    };
    "in the background": |mut side| {
        side.script("@ & wait $!; echo $?", "state exit=8");
        side.end()
    };
    "a job of a script that is killed": |mut side| {
        let script = "@ & p=$!; sleep 0.3; kill $p; wait $p; echo $?";
        side.script(script, "wait");
        side.end()
    };
    "in brackets of a script": |mut side| {
        let script = "if x=$(@ 2>&1); then echo yes $x; else echo no $x; fi";
        side.script(script, "write=x exit=1");
        side.end()
    };
};

#[test]
fn processes() {
    let lab = lab!();
    check(&lab, PROCESSES);
}

const LIMITS_AND_PRIORITIES: &[Row] = rows! {
    "few descriptors": |side| limited(side, libc::RLIMIT_NOFILE as i32, 12, 4096);
    "32 descriptors for ever": |side| limited(side, libc::RLIMIT_NOFILE as i32, 32, 32);
    "few descriptors for ever": |side| limited(side, libc::RLIMIT_NOFILE as i32, 12, 12);
    "no file may grow": |side| limited(side, libc::RLIMIT_FSIZE as i32, 0, 0);
    "little memory": |side| limited(side, libc::RLIMIT_AS as i32, 64 << 20, 64 << 20);
    "little data": |side| limited(side, libc::RLIMIT_DATA as i32, 16 << 20, 16 << 20);
    "few processes": |side| limited(side, libc::RLIMIT_NPROC as i32, 1, 1);
    "little time": |side| limited(side, libc::RLIMIT_CPU as i32, 7, 9);
    "small stack": |side| limited(side, libc::RLIMIT_STACK as i32, 128 << 10, 16 << 20);
    "no signals in a queue": |side| limited(side, libc::RLIMIT_SIGPENDING as i32, 0, 0);
    "no cores, no locked memory": |mut side| {
        side.step(Step::Limit(libc::RLIMIT_MEMLOCK as i32, 0, 0));
        limited(side, libc::RLIMIT_CORE as i32, 0, 0)
    };
    "umask 0": |mut side| {
        side.step(Step::Umask(0));
        state(side)
    };
    "umask 777, the first run": |mut side| {
        side.lab().kill_daemon();
        side.step(Step::Umask(0o777));
        state(side)
    };
    "nice": |mut side| {
        side.step(Step::Nice(7));
        state(side)
    };
    "a policy of its own": |mut side| {
        side.step(Step::Policy(libc::SCHED_IDLE));
        state(side)
    };
    "one processor": |mut side| {
        side.step(Step::Processor(0));
        state(side)
    };
    "first to be ended without memory": |mut side| {
        side.step(Step::Write(c("/proc/self/oom_score_adj"), c("500")));
        state(side)
    };
    "a cgroup of its own": |mut side| {
        let Some(at) = cgroup() else {
            eprintln!("left out: no cgroup can be made here");
            return Facts::new();
        };
        side.step(Step::Write(c(at.join("cgroup.procs")), c("0")));
        let facts = state(side);
        let _ = std::fs::remove_dir(at);
        facts
    };
};

#[test]
fn limits_and_priorities() {
    let lab = lab!();
    check(&lab, LIMITS_AND_PRIORITIES);
}

fn cgroup() -> Option<PathBuf> {
    let at = Path::new("/sys/fs/cgroup").join(format!("systx-e2e.{}", std::process::id()));
    let procs = at.join("cgroup.procs");
    (std::fs::create_dir(&at).is_ok() && procs.exists()).then_some(at)
}

fn limited(mut side: Side<'_>, resource: i32, soft: u64, hard: u64) -> Facts {
    side.step(Step::Limit(resource, soft, hard));
    state(side)
}

const ENVIRONMENTS: &[Row] = rows! {
    "no environment": |mut side| {
        side.env = needed(side.lab());
        state(side)
    };
    "odd variables": |mut side| {
        let odd = ["no-value", "=", "=x=y", "a-b=c", "A=1", "A=2", "B=a=b", "1=2", " ="];
        side.env.extend(["LINES=\n\n", "BASH_FUNC_f%%=() {  :; }"].map(c));
        side.env.extend(odd.map(c));
        state(side)
    };
    "a large environment": |mut side| {
        side.env.extend((0..60).map(|n| c(format!("V{n}={}", "x".repeat(2000)))));
        state(side)
    };
    "PATH with the working directory": |mut side| {
        side.env.retain(|line| !line.as_bytes().starts_with(b"PATH="));
        side.env.push(c("PATH=:/bin"));
        state(side)
    };
    "a name of its own": |mut side| {
        side.argv0 = Some("");
        state(side)
    };
    "cron": |mut side| {
        side.env = needed(side.lab());
        let few = ["SHELL=/bin/sh", "PATH=/usr/bin:/bin", "LOGNAME=root", "HOME=/root"];
        side.env.extend(few.map(c));
        side.step(Step::Session);
        side.step(Step::Close(0));
        side.script("exec @", "state child read write=mail");
        side.end()
    };
};

#[test]
fn environments() {
    let lab = lab!();
    check(&lab, ENVIRONMENTS);
}

const PLACES: &[Row] = rows! {
    "by a link to its directory": |mut side| {
        let link = side.lab().path("link");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(side.row(), &link).unwrap();
        side.env.push(c(format!("PWD={}", link.display())));
        side.step(Step::Directory(c(&link)));
        state(side)
    };
    "its directory is removed": |mut side| {
        let gone = side.row().join("gone");
        std::fs::create_dir(&gone).unwrap();
        side.step(Step::Directory(c(&gone)));
        side.step(Step::Remove(c(&gone)));
        state(side)
    };
    "another root": |side| jail(side, "mount --rbind / jail && exec chroot jail @");
    "no /proc": |mut side| {
        side.step(Step::Unshare(libc::CLONE_NEWNS));
        side.step(Step::Unmount(c("/proc")));
        state(side)
    };
    "no new privileges": |mut side| {
        side.step(Step::Prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
        state(side)
    };
    "kept capabilities and a time slack": |mut side| {
        side.step(Step::Prctl(libc::PR_SET_KEEPCAPS, 1));
        side.step(Step::Prctl(libc::PR_SET_TIMERSLACK, 1000));
        side.step(Step::Prctl(libc::PR_SET_THP_DISABLE, 1));
        state(side)
    };
    "a user namespace": |mut side| {
        side.script("exec unshare -r @", "state make=x exit=0");
        let mut facts = side.end();
        // A new one on each side.
        facts.remove("namespace user");
        facts
    };
    "namespaces of its own": |mut side| {
        side.step(Step::Unshare(libc::CLONE_NEWIPC | libc::CLONE_NEWUTS));
        let mut facts = state(side);
        // New ones on each side.
        facts.retain(|name, _| !name.starts_with("namespace "));
        facts
    };
    "a service with a private /srv": |mut side| {
        side.step(Step::Session);
        side.step(Step::Unshare(libc::CLONE_NEWNS));
        side.step(Step::Mount(c("/srv")));
        side.step(Step::Prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
        state(side)
    };
};

#[test]
fn places() {
    let lab = lab!();
    check(&lab, PLACES);
    lab.kill_all();
}

fn jail(mut side: Side<'_>, script: &str) -> Facts {
    std::fs::create_dir(side.row().join("jail")).unwrap();
    side.step(Step::Unshare(libc::CLONE_NEWNS));
    side.script(script, "state");
    side.end()
}

const OF_A_USER: &[Row] = rows! {
    "a user": |mut side| {
        side.step(Step::User(systx_e2e::lab::USER));
        side.start("state make=x");
        side.end()
    };
    "a user, all closed": |mut side| {
        side.step(Step::User(systx_e2e::lab::USER));
        closed(side, [0, 1, 2])
    };
    "a user, SIGCHLD ignored": |mut side| {
        side.step(Step::Ignore(libc::SIGCHLD));
        side.step(Step::User(systx_e2e::lab::USER));
        side.start("state child exit=3");
        side.end()
    };
    "a user, few descriptors": |mut side| {
        side.step(Step::User(systx_e2e::lab::USER));
        limited(side, libc::RLIMIT_NOFILE as i32, 12, 4096)
    };
    "a user, no file may grow": |mut side| {
        side.step(Step::User(systx_e2e::lab::USER));
        limited(side, libc::RLIMIT_FSIZE as i32, 0, 0)
    };
    "a user, a child from before": |mut side| {
        side.step(Step::User(systx_e2e::lab::USER));
        side.with_a_child();
        side.start("daemon say=late");
        while !matches!(side.change(), Change::Exited(_)) {}
        side.slip_leash();
        side.wait_for("child=lived");
        side.end()
    };
    "a user, the terminal goes away": |mut side| {
        side.on_a_terminal();
        side.step(Step::User(systx_e2e::lab::USER));
        side.start("say=up wait");
        side.wait_for("said=up");
        side.hang_up();
        side.end()
    };
    "a user, the terminal goes away, which is caught": |mut side| {
        side.on_a_terminal();
        side.step(Step::User(systx_e2e::lab::USER));
        side.start("record say=up until=1");
        side.wait_for("said=up");
        side.hang_up();
        side.end()
    };
    "a user, whose directory is closed": |mut side| {
        let shut = side.row().join("shut");
        std::fs::create_dir(&shut).unwrap();
        side.step(Step::Directory(c(&shut)));
        side.step(Step::Mode(c(&shut), 0));
        side.step(Step::User(systx_e2e::lab::USER));
        state(side)
    };
    "a user without new privileges": |mut side| {
        side.step(Step::User(systx_e2e::lab::USER));
        side.step(Step::Prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
        state(side)
    };
};

#[test]
fn of_an_ordinary_user() {
    let lab = match Lab::new() {
        Ok(lab) => lab.as_user(),
        Err(why) => skip!("{why}"),
    };
    check(&lab, OF_A_USER);
}
