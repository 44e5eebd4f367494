//! kill -9 at random moments, then `systx recover`: the tree is exactly as before or as after.
//!
//! The work makes, changes, renames and removes a few hundred files, so that the commit takes
//! long enough to be hit.  The moment is measured from the end of the command, which it reports
//! through a fifo outside, and chosen at random within the duration of an undisturbed commit.

use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use systx_e2e::lab::signal;
use systx_e2e::random::Random;
use systx_e2e::run::{Limits, Running, Shell};
use systx_e2e::{Fs, Lab, Tree, lab};

const PREPARE: &str = "rm -rf work; mkdir work; cd work; mkdir keep old sub; echo same > same; \
    for i in $(seq 60); do echo old $i > old/$i; done; head -c 200000 /dev/zero > pages; ln pages pages2; \
    for i in $(seq 20); do echo k$i > keep/$i; done; ln -s same link; sync -f .";

const WORK: &str = "cd work; mkdir -p new/deep; for i in $(seq 120); do echo new $i > new/$i; done; \
    for i in $(seq 20); do echo changed $i > keep/$i; done; for i in $(seq 1 30); do rm old/$i; done; \
    for i in $(seq 31 50); do mv old/$i new/deep/moved-$i; done; mv sub renamed; ln same same2; \
    head -c 300000 /dev/zero | tr '\\0' n > big; chmod 700 keep; ln -sf other link; \
    printf X | dd of=pages bs=1 seek=100000 conv=notrunc 2>/dev/null";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Command,
    Run,
    Daemon,
    RunAndDaemon,
    /// And the volume is unmounted and mounted again before recovery.
    EverythingThenRemount,
}

struct Crash {
    lab: Lab,
    before: Tree,
    after: Tree,
    /// The fifo by which the command says that it is done.
    done: fs::File,
    script: String,
    commit_takes: Duration,
}

impl Crash {
    fn new(lab: Lab) -> Crash {
        lab.native(PREPARE).ok();
        let before = lab.tree();
        lab.native(WORK).ok();
        let after = lab.tree();
        assert!(before.differences(&after).len() > 100);
        let fifo = fifo(&lab, "done");
        let done = both_ends(&fifo);
        let script = format!("{WORK}; echo d > {}", fifo.display());
        let mut crash = Crash { lab, before, after, done, script, commit_takes: Duration::ZERO };
        for _ in 0..2 {
            crash.lab.native(PREPARE).ok();
            let run = crash.start();
            crash.wait_for_end_of_command();
            let begun = Instant::now();
            run.finish(&crash.lab).ok();
            crash.commit_takes = begun.elapsed();
            crash.after.assert_same(&crash.lab.tree(), "an undisturbed run");
        }
        eprintln!("an undisturbed commit takes {:?}", crash.commit_takes);
        crash
    }

    fn start(&self) -> Running {
        Running::start(self.lab.systx(["run", "--", "sh", "-c", &self.script]), Limits::default())
    }

    fn wait_for_end_of_command(&mut self) {
        self.done.read_exact(&mut [0; 2]).expect("held open");
    }

    /// One crash; true if the transaction turned out to be committed.
    fn round(&mut self, victim: Victim, random: &mut Random) -> bool {
        self.lab.native(PREPARE).ok();
        let run = self.start();
        if victim == Victim::Command {
            // Anywhere in the command: there is no commit to wait for.
            std::thread::sleep(Duration::from_micros(random.below(150_000)));
            if kill_command(&self.lab) {
                let end = run.finish(&self.lab);
                self.check_after_recovery(Some(end.code), victim)
            } else {
                let end = run.finish(&self.lab); // it was done already, or not yet there
                self.drain();
                self.check_after_recovery(Some(end.code), victim)
            }
        } else {
            self.wait_for_end_of_command();
            let within = self.commit_takes.as_micros() as u64 * 5 / 4 + 500;
            std::thread::sleep(Duration::from_micros(random.below(within)));
            let pid = run.pid();
            match victim {
                Victim::Run => run.signal(Signal::KILL),
                Victim::Daemon => self.lab.kill_daemon(),
                Victim::RunAndDaemon => {
                    run.signal(Signal::KILL);
                    self.lab.kill_daemon();
                }
                Victim::EverythingThenRemount => self.lab.kill_all(),
                Victim::Command => unreachable!("handled above"),
            }
            let end = run.finish(&self.lab);
            assert!(!Path::new(&format!("/proc/{pid}")).exists());
            if victim == Victim::EverythingThenRemount {
                self.lab.remount();
            }
            self.check_after_recovery(Some(end.code), victim)
        }
    }

    /// The fifo may have the message of a command that came to its end.
    fn drain(&mut self) {
        let flags = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&self.done, flags).unwrap();
        let _ = self.done.read(&mut [0; 64]);
        rustix::fs::fcntl_setfl(&self.done, rustix::fs::OFlags::empty()).unwrap();
    }

    fn check_after_recovery(&self, code: Option<i32>, victim: Victim) -> bool {
        self.lab.do_systx(["recover"]).ok();
        let found = self.lab.tree();
        let (from_before, from_after) =
            (self.before.differences(&found), self.after.differences(&found));
        assert!(
            from_before.is_empty() || from_after.is_empty(),
            "{victim:?} killed, code {code:?}: neither before nor after\nagainst before:\n  {}\nagainst after:\n  {}\n{}",
            from_before.iter().take(10).cloned().collect::<Vec<_>>().join("\n  "),
            from_after.iter().take(10).cloned().collect::<Vec<_>>().join("\n  "),
            self.lab.daemon_log(),
        );
        let committed = from_after.is_empty();
        if code == Some(0) {
            assert!(committed, "{victim:?} killed: reported as committed, but it is not there");
        }
        if victim == Victim::Command && code != Some(0) {
            assert!(!committed, "a killed command was committed");
        }
        committed
    }
}

fn fifo(lab: &Lab, name: &str) -> PathBuf {
    let at = lab.outside().join(name);
    lab.native(&format!("mkfifo {}", at.display())).ok();
    at
}

/// A fifo whose other end nobody has to hold.
fn both_ends(fifo: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(fifo).unwrap()
}

/// kill -9 of the shell that `systx run` started; false if there is none.
fn kill_command(lab: &Lab) -> bool {
    let commands = lab.processes().into_iter().filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"sh\0-c\0cd work")
    });
    let mut killed = false;
    for pid in commands {
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
        killed |= rustix::process::kill_process(pid, Signal::KILL).is_ok();
    }
    killed
}

fn rounds(lab: Lab, victim: Victim) {
    let mut random = Random::from_environment();
    let budget = if std::env::var_os("SYSTX_LONG").is_some() { 240 } else { 20 };
    let deadline = Instant::now() + Duration::from_secs(budget);
    let mut crash = Crash::new(lab);
    let (mut committed, mut total) = (0, 0);
    // Those that are needed to say anything, however slow the machine is.
    while total < 4 || (Instant::now() < deadline && total < 400) {
        committed += u32::from(crash.round(victim, &mut random));
        total += 1;
    }
    eprintln!("{victim:?}: {total} rounds, {committed} committed");
    // The volume goes on working.
    crash.lab.run(&[], "echo works > afterwards").ok();
    assert_eq!(crash.lab.read("afterwards"), "works\n");
}

#[test]
fn the_command_is_killed() {
    rounds(lab!(), Victim::Command);
}

#[test]
fn systx_run_is_killed() {
    rounds(lab!(), Victim::Run);
}

#[test]
fn the_daemon_is_killed() {
    rounds(lab!(), Victim::Daemon);
}

#[test]
fn both_are_killed() {
    rounds(lab!(), Victim::RunAndDaemon);
}

#[test]
fn everything_is_killed_and_the_volume_mounted_anew() {
    rounds(lab!(Fs::Ext4NoJournal), Victim::EverythingThenRemount);
}

/// The kernel gives the numbers of a dead run's namespace and mount to the next run, which may be
/// another daemon's; what the first daemon ends then must not be in the second's.
#[test]
fn a_killed_run_takes_no_other_along() {
    let (one, other) = (lab!(), lab!());
    let numbers = |shell: &mut Shell<'_>| shell.eval("readlink /proc/self/ns/mnt; stat -c %d .");
    let given_again = (0..100).any(|_| {
        let mut killed = one.shell(&[]);
        let before = numbers(&mut killed);
        let daemons = one.daemons();
        signal(&daemons, Signal::STOP);
        killed.signal(Signal::KILL);
        one.until("only the daemon is left", || one.processes() == daemons);
        let mut lives = other.shell(&[]);
        let same = numbers(&mut lives) == before;
        signal(&daemons, Signal::CONT);
        one.until("the daemon has noticed", || one.open_ids().is_empty());
        lives.eval("echo lives > file");
        lives.exit(0).ok();
        assert_eq!(other.read("file"), "lives\n");
        same
    });
    assert!(given_again, "never met: the kernel gave out other numbers each time");
}

/// A number of a process is given out again, too: who enters must not end up elsewhere.
#[test]
fn a_run_is_entered_by_what_is_left_when_its_command_was_killed() {
    let lab = lab!();
    let (said, wait) = (fifo(&lab, "said"), fifo(&lab, "wait"));
    let script = format!(
        "echo 1 > file; (read x < {}; echo $x >> file) & echo $$ > {}; wait",
        wait.display(),
        said.display()
    );
    let mut said = BufReader::new(both_ends(&said));
    let argv = ["run", "--leftovers=wait", "--", "sh", "-c", &script];
    let run = Running::start(lab.systx(argv), Limits::default());
    let mut command = String::new();
    said.read_line(&mut command).unwrap();
    let command: u32 = command.trim().parse().unwrap();
    signal(&[command], Signal::KILL);
    lab.until("it has ended", || !Path::new(&format!("/proc/{command}")).exists());
    let id = lab.open_ids().remove(0);
    let entered = lab.do_systx(["enter", &id, "--", "cat", "file"]);
    lab.native(&format!("echo 3 > {}", wait.display())).ok();
    run.finish(&lab).expect(137);
    assert_eq!((entered.code, &*entered.out), (0, "1\n"), "{entered}");
    assert!(!lab.has("file"), "a killed command was committed");
}

#[test]
fn a_run_whose_daemon_dies_early_fails_and_leaves_nothing() {
    let lab = lab!();
    let before = lab.tree();
    let mut shell = lab.shell(&[]);
    shell.eval("echo x > new");
    lab.kill_daemon();
    shell.try_eval("echo y > other");
    shell.begin_exit(0);
    let done = shell.finished();
    assert!(done.code != 0, "{done}");
    before.assert_same(&lab.tree(), "the daemon died");
    lab.run(&[], "echo z > third").ok();
    assert_eq!(lab.read("third"), "z\n");
}

#[test]
fn a_kept_run_dies_with_the_daemon_and_leaves_nothing() {
    let lab = lab!();
    let before = lab.tree();
    lab.run(&["--on-exit=keep"], "head -c 80M /dev/zero | tr '\\0' k > kept").ok();
    lab.kill_daemon();
    lab.do_systx(["recover"]).ok();
    before.assert_same(&lab.tree(), "a kept run after a crash");
    // What it had staged does not use up the volume for ever.
    let used = lab.native("du -sm --exclude=lost+found . | cut -f1").ok();
    let megabytes: u64 = used.out.trim().parse().unwrap();
    assert!(megabytes < 80, "{megabytes} MB are still in use");
}
