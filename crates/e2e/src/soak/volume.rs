//! A soak of one log-structured volume: mixed load, the cleaner's thread beside it, snapshots that
//! come and go, and kills in the middle of all that.
//!
//! After each cycle of equal work the same is there, so what the volume has in use may not grow
//! from one moment without snapshots to the next, nor be more than a part of it in between.
//! After each kill the image is checked as it was left, by a copy, before anybody recovers it; what
//! was told to be committed is there, and what runs change together is of one commit. A snapshot
//! shows what was there when it was made, after each kill and before it is deleted.

use super::LIFE;
use super::threads::Program;
use crate::run::{Finished, Limits, Running, finish};
use crate::volume::{Mounted, shell};
use crate::{CONFLICT, Lab, Tree};
use std::collections::VecDeque;
use std::fs;
use std::time::{Duration, Instant};

/// Snapshots that are there at once.
const SNAPSHOTS: usize = 3;
/// After so many cycles all of them are deleted.
const ALL: u64 = 6;
/// The size of the image; the work of a cycle is some 24 MiB of content.
const SIZE: &str = "128M";
/// What may be in use with all snapshots that are there: 9 MiB are live, and as much again may have
/// changed since each of them, and may be dead beside what they keep.
const MOST: u64 = 40 << 20;
/// What the parts that are compared may differ by: the log of the last commits, and what is kept
/// for undo.
const SLACK: u64 = 3 << 20;

/// Names and content, in the order of their numbers: the same is left whatever the cycle.
const PLAIN: &str = "mkdir plain; for i in $(seq 120); do \
     head -c $((i * 401)) /dev/urandom > plain/new; mv plain/new plain/f$((i % 40)); \
     test $((i % 10)) = 0 && sync plain/f0; ls plain > /dev/null; done; \
     for i in $(seq 200); do \
     dd if=/dev/urandom of=big bs=4096 count=1 seek=$((i * 7919 % 2048)) conv=notrunc status=none; \
     done; rm -r plain";

/// What a soak of a volume was.
#[derive(Debug, Default)]
pub struct Report {
    /// Cycles of work.
    pub cycles: u64,
    /// Kills, each in the middle of work.
    pub kills: u64,
    /// Looks at snapshots.
    pub looks: u64,
    /// Transactions of threads and runs that were told to be committed.
    pub committed: u64,
    /// Bytes in use in quiet moments after cycles, when there are no snapshots.
    pub used: Vec<u64>,
    /// The most that was in use after a cycle.
    pub most: u64,
    /// What grew, in words.
    pub growth: Vec<String>,
}

struct Soak<'a> {
    lab: &'a Lab,
    v: Mounted<'a>,
    program: Program,
    /// The last round of runs that is there for certain.
    round: u64,
    /// The oldest first: names, and what they show.
    snapshots: VecDeque<(String, Tree)>,
    report: Report,
}

/// Works until the time is over, and at least so many cycles between two kills, and [`LIFE`].
///
/// # Panics
/// If something is lost, or is not as it was told.
pub fn soak(lab: &Lab, time: Duration, life: u64) -> Report {
    let begun = Instant::now();
    let mut soak = Soak::new(lab);
    let (mut born, mut first) = (begun, 0);
    while begun.elapsed() < time || soak.report.used.len() < 2 {
        soak.cycle();
        if soak.report.cycles - first >= life && born.elapsed() >= LIFE {
            soak.kill();
            (born, first) = (Instant::now(), soak.report.cycles);
        }
    }
    let Soak { program, v, snapshots, mut report, .. } = soak;
    drop(program);
    for (name, _) in snapshots {
        lab.do_systx(["snapshot", "v", &name, "--delete"]).ok();
    }
    // Unmounts it, and has it checked.
    drop(v);
    if report.most > MOST {
        report.growth.push(format!("bytes in use beside snapshots: {}", report.most));
    }
    let third = report.used.len() / 3;
    if third >= 2 {
        let median = |part: &[u64]| {
            let mut part = part.to_vec();
            part.sort_unstable();
            part[part.len() / 2]
        };
        let was = median(&report.used[third..report.used.len() - third]);
        let is = median(&report.used[report.used.len() - third..]);
        if is > was + SLACK {
            report.growth.push(format!("bytes in use: {was}, then {is}"));
        }
    }
    report
}

impl<'a> Soak<'a> {
    fn new(lab: &'a Lab) -> Soak<'a> {
        let v = Mounted::sized_for_threads(lab, SIZE);
        v.sh("mkdir threads kept; head -c 8M /dev/urandom > big; sync big").ok();
        v.begin_rounds();
        fs::create_dir_all(lab.path("w")).expect("the lab is writable");
        let program = Program::start(
            lab.command(std::env::current_exe().expect("a binary")),
            &v.path("threads"),
        );
        let (snapshots, report) = (VecDeque::new(), Report::default());
        Soak { lab, v, program, round: 0, snapshots, report }
    }

    /// A run that writes the next round to all that is changed together; `then` comes behind it.
    fn run(&self, options: &[&str], then: &str) -> Running {
        let next = self.round + 1;
        let script = format!("rm d/at-*; echo {next} > a; echo {next} > d/b; : > d/at-{next}");
        let mut command = self.lab.systx(["run"].iter().chain(options));
        command.args(["--", "sh", "-c", &format!("{script}; {then}")]).current_dir(&self.v.dir);
        Running::start(command, Limits::seconds(300))
    }

    fn plain(&self) -> Running {
        let mut command = self.lab.command("sh");
        command.args(["-c", PLAIN]).current_dir(&self.v.dir);
        Running::start(command, Limits::seconds(300))
    }

    /// Work of every kind, and a look at what became of it.
    fn cycle(&mut self) {
        self.report.cycles += 1;
        let plain = self.plain();
        self.program.go_on();
        self.run(&["--on-exit=abort"], "false").finish(self.lab);
        self.commits();
        self.snapshot();
        self.report.committed += self.program.done(self.lab).counted;
        plain.finish(self.lab).ok();
        let cycle = self.report.cycles;
        self.v.sh(&format!("cd kept; echo {cycle} > f{0}; mv f{0} g{0}", cycle % 7)).ok();
        let mut gc = self.lab.systx(["gc", "--keep", "5", "--max-size", "1M"]);
        gc.current_dir(&self.v.dir);
        finish(gc, Limits::seconds(100), self.lab).ok();
        self.v.sh("sync .").ok();
        self.report.most = self.report.most.max(self.used());
        if cycle.is_multiple_of(ALL) {
            while let Some(oldest) = self.snapshots.pop_front() {
                self.delete(&oldest);
            }
            let used = self.used();
            self.report.used.push(used);
        }
    }

    /// Bytes in use.
    fn used(&self) -> u64 {
        let space = rustix::fs::statvfs(&self.v.dir).expect("it is mounted");
        (space.f_blocks - space.f_bfree) * space.f_frsize
    }

    /// Runs of which each is committed, or loses and is tried again.
    fn commits(&mut self) {
        for _ in 0..4 {
            let end = self.run(&["--retries", "20"], "true").finish(self.lab);
            assert!([0, CONFLICT].contains(&end.code), "{end}\n{}", self.lab.daemon_log());
            self.found(&end);
        }
        // One that ends in the middle, by a signal.
        let end = self.run(&[], "kill -9 $$").finish(self.lab);
        assert_ne!(end.code, 0, "{end}");
        self.found(&end);
    }

    fn found(&mut self, end: &Finished) {
        let committed = end.code == 0;
        self.report.committed += u64::from(committed);
        let words = end.to_string();
        self.round = self.v.all_or_nothing(self.round, self.round + 1, (committed, &words));
    }

    /// Makes one, and deletes the oldest after a last look.
    fn snapshot(&mut self) {
        let name = format!("s{}", self.report.cycles);
        let then = Tree::capture(self.v.path("kept"));
        self.lab.do_systx(["snapshot", "v", &name]).ok();
        self.snapshots.push_back((name, then));
        if self.snapshots.len() > SNAPSHOTS
            && let Some(oldest) = self.snapshots.pop_front()
        {
            self.delete(&oldest);
        }
    }

    fn delete(&mut self, (name, then): &(String, Tree)) {
        self.look(name, then);
        self.lab.do_systx(["snapshot", "v", name, "--delete"]).ok();
    }

    fn look(&mut self, name: &str, then: &Tree) {
        self.report.looks += 1;
        self.lab.do_systx(["mount", "image", "w", "--at", name]).ok();
        then.assert_same(&Tree::capture(self.lab.path("w/kept")), "a snapshot, then and now");
        // All of it can be read.
        shell(self.lab, &self.lab.path("w"), 100, "cat big a d/b threads/counted > /dev/null").ok();
        self.lab.do_systx(["umount", "w"]).ok();
    }

    /// kill -9 of the daemon while plain programs and a run work, in turns with its keeper.
    fn kill(&mut self) {
        self.report.kills += 1;
        let plain = self.plain();
        let run = self.run(&[], "true");
        // At a moment that differs.
        let moment = self.report.kills * 37 % 400;
        std::thread::sleep(Duration::from_millis(moment));
        if self.report.kills.is_multiple_of(2) {
            self.lab.kill_and_come_back();
        } else {
            self.lab.kill_daemon_and_keeper();
            let copy = self.lab.path("copy");
            fs::copy(&self.v.image, &copy).expect("a copy");
            self.lab.do_systx(["fsck", "copy"]).ok();
            fs::remove_file(copy).expect("ours");
            self.lab.do_systx(["mount"]).ok();
        }
        let end = run.finish(self.lab);
        plain.finish(self.lab);
        self.v.sh("rm -rf plain").ok();
        self.found(&end);
        let count = fs::read_to_string(&self.program.counter).expect("it is there");
        assert_eq!(count, self.program.counted.to_string(), "what threads were told");
        for (name, then) in self.snapshots.clone() {
            self.look(&name, &then);
        }
    }
}
