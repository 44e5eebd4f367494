//! File locks are what they are natively, in every place: as answers of single calls, and as
//! mutual exclusion between processes that come, go, and are killed.  Longer runs:
//! docs/TESTING.md.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use systx_e2e::lab::{built, find_program, tool};
use systx_e2e::open::Open;
use systx_e2e::run::{Dialogue, Limits, finish};
use systx_e2e::{Finished, Fs, Lab, lab, skip};

/// Where programs lock files of the directory `d`.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// On the machine's own file system.
    Host,
    /// In the guarded directory, mounted so.
    Guarded(&'static [&'static str]),
    /// In a transaction that has a path.
    View(&'static [&'static str]),
    /// In a `systx run`, on the plain directory.
    Run(&'static [&'static str]),
    /// In a `systx run`, on the guarded directory.
    RunOver(&'static [&'static str]),
}

use Place::*;

const PLACES: &[Place] = &[
    Guarded(&[]),
    Guarded(&["--routed"]),
    Guarded(&["--fast-open"]),
    View(&[]),
    View(&["--transport", "dev"]),
    Run(&[]),
    Run(&["--transport", "dev"]),
    RunOver(&[]),
    RunOver(&["--fast-open"]),
];

/// Those that an ordinary user makes for itself.
const OF_USERS: &[Place] = &[Run(&[]), Run(&["--transport", "dev"])];

impl Place {
    /// Makes it.
    fn enter(self, lab: &Lab) -> There<'_> {
        let mut there = There { lab, place: self, open: None };
        let files = "touch f0 f1 locked0 locked1 locked2 locked3; chmod 666 *";
        let dir = there.dir().display().to_string();
        lab.native(&format!("rm -rf {dir}; mkdir {dir}; chmod 777 {dir}; cd {dir}; {files}")).ok();
        if let Guarded(how) | RunOver(how) = self {
            assert!(lab.guards("d", how), "{self:?} is not in `Place::of`");
        }
        if let View(how) = self {
            there.open = Some(Open::begin(lab, "d", how));
        }
        there
    }

    /// Those that the lab's file system has; on a volume, all is guarded, and nothing in another
    /// way.
    fn of<'p>(lab: &Lab, places: &'p [Place]) -> impl Iterator<Item = Place> + use<'p> {
        let is_volume = lab.fs == Fs::Volume;
        let has = move |place: &Place| match place {
            RunOver(_) => !is_volume,
            Guarded(how) => !is_volume || how.is_empty(),
            _ => true,
        };
        places.iter().copied().filter(has)
    }

    /// Whether nobody tells the daemon of opens and closes.
    fn looks(self) -> bool {
        matches!(self, Run(_) | RunOver(_))
    }
}

struct There<'a> {
    lab: &'a Lab,
    place: Place,
    open: Option<Open<'a>>,
}

impl There<'_> {
    /// Its directory, for programs that are in it.
    fn dir(&self) -> PathBuf {
        match (&self.open, self.place) {
            (Some(open), _) => open.path.clone(),
            (None, Host) => self.lab.outside().join("d"),
            (None, _) => self.lab.path("d"),
        }
    }

    /// What begins the command line of a program there.
    fn by(&self) -> Vec<String> {
        let run = |how: &[&str]| {
            let systx = self.lab.binary().display().to_string();
            let run = [&systx, "-q", "run", "--on-exit=abort"];
            run.iter().chain(how).map(ToString::to_string).chain(["--".into()]).collect()
        };
        match self.place {
            Run(how) => run(how),
            RunOver(_) => run(&[]),
            Host | Guarded(_) | View(_) => Vec::new(),
        }
    }

    /// `sh -c` there.
    fn sh(&self, script: &str) -> Finished {
        let words = [self.by(), vec!["sh".into(), "-c".into(), script.into()]].concat();
        let mut command = self.lab.command(&words[0]);
        command.args(&words[1..]).current_dir(self.dir());
        finish(command, Limits::seconds(240), self.lab)
    }

    fn leave(self) {
        if let Some(open) = &self.open {
            open.systx("abort").ok();
        }
        if let Guarded(_) | RunOver(_) = self.place {
            self.lab.unguard("d");
        }
    }
}

/// A copy that every user of the lab can read.
fn given(lab: &Lab, name: &str, from: &Path) -> PathBuf {
    let copy = lab.outside().join(name);
    if !copy.exists() {
        tool(Command::new("cp").arg(from).arg(&copy)).expect("a copy");
        lab.give(&copy);
    }
    copy
}

#[test]
fn random_lock_calls_are_answered_as_natively() {
    let lab = lab!();
    answered(&lab, PLACES);
    if lab.fs != Fs::Volume {
        answered(&lab!().as_user(), OF_USERS);
    }
}

fn answered(lab: &Lab, places: &[Place]) {
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    let calls = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/locks.py");
    let calls = given(lab, "locks.py", &calls);
    let seed: u64 = std::env::var("SYSTX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for place in Place::of(lab, places) {
        let seen = if place.looks() { "seen" } else { "" };
        for seed in seed * 10..seed * 10 + 3 {
            let script = format!("python3 {} {seed} 250 {seen}", calls.display());
            let asked = |place: Place| {
                let there = place.enter(lab);
                let said = there.sh(&script).ok().out;
                there.leave();
                said
            };
            let (want, got) = (asked(Host), asked(place));
            let differs = want.lines().zip(got.lines()).position(|(want, got)| want != got);
            if let Some(at) = differs {
                let until = |text: &str| text.lines().take(at + 1).collect::<Vec<_>>().join("\n");
                let last = got.lines().nth(at).unwrap_or_default();
                panic!("{place:?}, seed {seed}, natively:\n{}\nnot: {last}", until(&want));
            }
            assert_eq!(want.lines().count(), got.lines().count(), "{place:?}, seed {seed}");
        }
    }
}

/// Lets processes lock in a directory, all started by `within` and those of each command line of
/// `by` in turn, and fails if two were inside at once.
#[track_caller]
fn exclude(there: &There<'_>, within: &[String], by: &[String], what: &str) {
    let (lab, dir) = (there.lab, there.dir());
    let program = built(&["--bin", "systx-histories"], "systx-histories");
    let program = given(lab, "systx-histories", &program).display().to_string();
    let words = [within, &[program]].concat();
    let mut command = lab.command(&words[0]);
    command.args(&words[1..]).current_dir(&dir);
    let seed = std::env::var("SYSTX_SEED").unwrap_or_else(|_| "1".into());
    let seconds = long().unwrap_or_else(|| "4".into());
    let limit = Limits::seconds(seconds.parse::<u64>().expect("a number") + 120);
    command.args(["locks", "--seed", &seed, "--seconds", &seconds, "--dir"]).arg(dir);
    for by in by {
        command.args(["--by", by]);
    }
    if within.is_empty() && matches!(there.place, Run(_) | RunOver(&["--fast-open"])) {
        // Programs outside of all views take part.
        command.arg("--no-circles");
    }
    if there.place.looks() {
        command.arg("--no-late-duplicates");
    }
    let done = finish(command, limit, lab);
    eprintln!("{what}: {}{}", done.out, done.err);
    assert_eq!(done.code, 0, "{what}: {done}\n{}", lab.daemon_log());
    let report = done.json();
    for seen in ["entered", "refused", "killed", "opened"] {
        assert!(report[seen].as_u64() > Some(0), "{what}: nothing was {seen}: {report}");
    }
}

/// How long each place is tried, if longer than usual; all of them at the same time then.
fn long() -> Option<String> {
    std::env::var("SYSTX_LOCK_SECONDS").ok()
}

#[test]
fn two_are_never_inside_at_once() {
    let lab = lab!();
    let at = |lab: &Lab, place: Place| {
        let there = place.enter(lab);
        exclude(&there, &there.by(), &[], &format!("{place:?}"));
        there.leave();
    };
    let places = [Host].into_iter().chain(Place::of(&lab, PLACES));
    if long().is_none() {
        return places.for_each(|place| at(&lab, place));
    }
    std::thread::scope(|all| {
        for place in places {
            all.spawn(move || at(&Lab::new().expect("as the first one"), place));
        }
    });
}

#[test]
fn runs_views_and_programs_outside_exclude_each_other() {
    let lab = lab!();
    let places = [Run(&[]), RunOver(&[]), RunOver(&["--routed"]), RunOver(&["--fast-open"])];
    for place in Place::of(&lab, &places) {
        let there = place.enter(&lab);
        // Programs outside, and two runs beside each of them.
        let run = there.by().join(" ");
        let by = [String::new(), run.clone(), run];
        exclude(&there, &[], &by, &format!("{place:?} and outside"));
        there.leave();
    }
}

#[test]
fn ordinary_users_exclude_each_other_in_their_runs() {
    let lab = lab!();
    if lab.fs == Fs::Volume {
        skip!("runs of its users are refused in a volume of root's");
    }
    let lab = lab.as_user();
    for place in OF_USERS {
        let there = place.enter(&lab);
        exclude(&there, &there.by(), &[], &format!("{place:?} of a user"));
        there.leave();
    }
}

/// Adds one to a number under a lock; says what it has done, and waits for a line then.
const UPDATE: &str = r#"
import fcntl, sys
def said(what): print(what, flush=True); sys.stdin.readline()
how, slow = sys.argv[1], sys.argv[2:]
lock = open("locked0", "r+")
(fcntl.flock if how == "flock" else fcntl.lockf)(lock, fcntl.LOCK_EX)
with open("f0") as file: number = int(file.read() or 0)
if slow: said("read")
with open("f0", "w") as file: file.write(str(number + 1))
lock.close()
if not slow: said("changed")
"#;

/// Changes the number in a transaction, and has a program outside read it under the lock that is free
/// again. The first one goes on to its end, the other one when it is told to.
fn at_work_outside<'l>(lab: &'l Lab, there: &There<'_>, how: &str) -> (Dialogue<'l>, Dialogue<'l>) {
    let update = lab.outside().join("update.py");
    std::fs::write(&update, UPDATE).expect("a script");
    let python = |mut command: Command, slow: &[&str], dir: PathBuf| {
        command.arg(&update).arg(how).args(slow).current_dir(dir);
        Dialogue::start(lab, command)
    };
    let command = match there.open {
        Some(_) => lab.command("python3"),
        None => lab.systx(["run", "--", "python3"]),
    };
    let mut inside = python(command, &[], there.dir());
    inside.wait_for("changed");
    let mut outside = python(lab.command("python3"), &["slow"], lab.path("d"));
    outside.wait_for("read");
    inside.send("\n");
    (inside, outside)
}

/// What is changed under a lock in a transaction, and what a program outside changes that gets the
/// lock before the commit, do not write over each other.
#[test]
fn no_change_that_is_made_under_a_lock_is_lost_at_a_commit() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    let places = [Run(&[]), RunOver(&[]), RunOver(&["--fast-open"]), View(&[])];
    let how = ["flock", "record"];
    for (place, how) in Place::of(&lab, &places).flat_map(|place| how.map(|how| (place, how))) {
        let mut there = place.enter(&lab);
        let (inside, mut outside) = at_work_outside(&lab, &there, how);
        let (ended, slow) = std::thread::scope(|both| {
            let commit = both.spawn(|| {
                let ended = inside.close();
                there.open.as_ref().map_or(ended, |open| open.systx("commit"))
            });
            // Also a commit that waits for nobody has time to come to its end.
            let until = Instant::now() + Duration::from_secs(3);
            while !commit.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            outside.send("\n");
            (commit.join().expect("no panic"), outside.close())
        });
        let what = format!("{place:?}, {how}\n{ended}\n{slow}");
        assert!([0, 75].contains(&ended.code) && slow.code == 0, "{what}");
        let changes = if ended.code == 0 { "2" } else { "1" };
        assert_eq!(lab.read("d/f0"), changes, "{what}");
        if ended.code == 0 {
            there.open = None;
        }
        there.leave();
    }
}

/// Longer than an end takes, and not as long as a commit waits for a program outside.
const SOON: Duration = Duration::from_secs(15);

fn is_in_nobodys_way(pid: u32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let waits = std::fs::read_to_string(format!("/proc/{pid}/wchan"));
    children.is_ok_and(|pids| pids.is_empty()) && waits.is_ok_and(|what| what.contains("poll"))
}

/// The end of a command that waits for a lock of a program outside ends that wait: of a run nothing
/// is committed, also when the lock is free; another transaction is there as it was.
#[test]
fn the_end_of_a_command_ends_its_wait_for_a_program_outside() {
    use rustix::process::Signal;
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL];
    let places = [Run(&[]), View(&[])];
    for (place, signal) in Place::of(&lab, &places).flat_map(|p| signals.map(|signal| (p, signal)))
    {
        let there = place.enter(&lab);
        let (mut inside, mut outside) = at_work_outside(&lab, &there, "record");
        if let Some(open) = &there.open {
            inside.close().ok();
            inside = Dialogue::start(&lab, lab.systx(["commit", &open.id]));
        }
        let pid = inside.child().pid();
        lab.until("it waits", || is_in_nobodys_way(pid));
        let begun = Instant::now();
        lab.until("its end", || {
            inside.child().signal(signal);
            inside.child().ended()
        });
        let ended = inside.close();
        assert_eq!(ended.code, 128 + signal.as_raw(), "{place:?}\n{ended}");
        if there.open.is_none() {
            lab.until("nothing is open", || lab.open_ids().is_empty());
            // Of one that cannot say so any more, the time tells.
            match signal {
                Signal::KILL => assert!(begun.elapsed() < SOON, "{place:?}"),
                _ => assert!(ended.err.contains("ended while it waited"), "{ended}"),
            }
        } else {
            there.sh("echo more >>f1").ok();
        }
        outside.send("\n");
        outside.close().ok();
        assert_eq!(lab.read("d/f0"), "1", "{place:?}, {signal:?}");
        there.leave();
    }
}

/// Has both locks, one after the other, and makes a file.
const BOTH: &str = r#"
import fcntl, sys
for name in "locked0", "locked1":
    with open(name, "r+") as lock: fcntl.lockf(lock, fcntl.LOCK_EX)
open(sys.argv[1], "w").close()
print("changed", flush=True); sys.stdin.readline()
"#;

/// Commits that want the same locks have them one after the other.
#[test]
fn commits_that_want_the_locks_of_each_other_all_come_to_their_end() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    let both = lab.outside().join("both.py");
    std::fs::write(&both, BOTH).expect("a script");
    for place in Place::of(&lab, &[Run(&[]), RunOver(&[])]) {
        let there = place.enter(&lab);
        for round in 0..4 {
            let run = |name: String| {
                let mut command = lab.systx(["run", "--", "python3"]);
                command.arg(&both).arg(name).current_dir(there.dir());
                Dialogue::start(&lab, command)
            };
            let mut all: Vec<_> = (0..3).map(|n| run(format!("new{round}-{n}"))).collect();
            all.iter_mut().for_each(|run| drop(run.wait_for("changed")));
            all.iter_mut().for_each(|run| run.send("\n"));
            // One that has waited for too long commits nothing, and says so.
            for run in all {
                run.close().ok();
            }
            (0..3).for_each(|n| assert!(lab.has(format!("d/new{round}-{n}")), "{n} of {round}"));
        }
        there.leave();
    }
}

/// Two processes, each of which waits for what the other one has.
const CIRCLE: &str = r#"
import fcntl, os, signal
signal.alarm(100)
def lock(fd, start, how=fcntl.LOCK_EX): fcntl.lockf(fd, how, 1, start)
(go, gone), (told, tell) = os.pipe(), os.pipe()
child = os.fork() == 0
fd = os.open("f0", os.O_RDWR)
lock(fd, 10 if child else 20)
# Both have theirs.
os.write(tell if child else gone, b"x"); os.read(go if child else told, 1)
try:
    lock(fd, 20 if child else 10)
    said = "got it"
except OSError as e:
    said = e.strerror
os.write(1, (said + "\n").encode())
os.close(fd)
child or os.wait()
"#;

/// Of two processes that wait for each other one is told so, and the other one gets what it waits
/// for.
#[test]
fn a_wait_that_closes_a_circle_ends() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    for place in [Host].into_iter().chain(Place::of(&lab, PLACES)) {
        let there = place.enter(&lab);
        std::fs::write(lab.outside().join("circle.py"), CIRCLE).expect("a script");
        let script = format!("python3 {}", lab.outside().join("circle.py").display());
        let out = there.sh(&script).ok().out;
        let mut said: Vec<&str> = out.lines().collect();
        said.sort_unstable();
        assert_eq!(said, ["Resource deadlock avoided", "got it"], "{place:?}");
        there.leave();
    }
}

/// A process that holds a lock for all the time, and waits for the end of others that wait for it
/// and that a signal meets at about the moment at which they begin to.
const SIGNALLED: &str = r#"
import fcntl, os, random, signal, sys, time
random.seed(7)
fd = os.open("f0", os.O_RDWR)
def wait(flock): (fcntl.flock if flock else fcntl.lockf)(os.open("f0", os.O_RDWR), fcntl.LOCK_EX)
fcntl.lockf(fd, fcntl.LOCK_EX)
fcntl.flock(fd, fcntl.LOCK_EX)
for i in range(120):
    begun, begin = os.pipe()
    after = random.random() * 3e-4 + 1e-6
    child = os.fork()
    if child == 0:
        if i % 2:
            signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
            # Again: the first may come before the call, also natively.
            signal.setitimer(signal.ITIMER_REAL, after, 0.05)
        os.write(begin, b"x")
        wait(i % 4 < 2)
        os._exit(1)
    os.close(begin); os.read(begun, 1); os.close(begun)
    until = time.perf_counter() + after
    while time.perf_counter() < until: pass
    if i % 2 == 0: os.kill(child, signal.SIGKILL)
    # Its own end, should that never come.
    signal.alarm(60)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) not in (0, -9): sys.exit("got it")
    signal.alarm(0)
"#;

/// A wait for a lock ends with a signal, whenever that comes: who waits for the end of the waiter
/// may be the one that holds the lock.
#[test]
fn a_signal_ends_a_wait_whenever_it_comes() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("no python3");
    }
    let script = lab.outside().join("signalled.py");
    std::fs::write(&script, SIGNALLED).expect("a script");
    for place in [Host].into_iter().chain(Place::of(&lab, PLACES)) {
        let there = place.enter(&lab);
        there.sh(&format!("python3 {}", script.display())).ok();
        there.leave();
    }
}

fn rw(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("open")
}

/// A lock of a file that the transaction has made, or has put in the place of another one, is one
/// of the file that is there after the commit.
#[test]
fn locks_go_with_their_files_into_the_commit() {
    let lab = lab!();
    for way in [&[][..], &["--fast-open"]] {
        lab.native("rm -rf g; mkdir g; echo old >g/replaced; echo old >g/kept").ok();
        if !lab.guards("g", way) {
            continue;
        }
        let open = Open::begin(&lab, "g", &[]);
        open.sh("echo new >new; echo other >other; mv other replaced; echo more >>kept").ok();
        let names = ["new", "replaced", "kept"];
        let inside = names.map(|name| rw(&open.path.join(name)));
        inside.iter().for_each(|file| file.try_lock().expect("free"));
        open.systx("commit").ok();
        for (name, file) in names.iter().zip(inside) {
            let outside = rw(&lab.path("g").join(name));
            assert!(outside.try_lock().is_err(), "{way:?}: {name} is locked");
            drop(file);
            lab.until("its close ends the lock", || outside.try_lock().is_ok());
        }
        lab.unguard("g");
    }
}
