//! A bounded soak: mixed load on guarded, routed and plain directories, in cycles of equal work,
//! with a look at the daemon between them.
//!
//! Nothing may grow without bound: memory, descriptors and threads of the daemon and of programs
//! whose threads have transactions, mounts, open transactions, what the daemon remembers, what the
//! store keeps for undo after `systx gc`. Between the cycles nothing is open, so that quiet moments
//! after equal work are compared. A life of the daemon lasts some cycles, then it is killed and has
//! to come back.
//!
//! - `load`: the cycle; `threads`: what programs with libsystx do in it; `sample`: what is looked
//!   at.
//! - `volume`: a soak of a log-structured volume.

mod load;
mod sample;
mod threads;
pub mod volume;

use crate::Lab;
use crate::lab::{find_program, guard_mounts};
use load::Load;
use sample::{OF_DIRECTORIES, OF_VOLUMES, SEGMENT};
pub use sample::{Process, Sample};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
pub use threads::{PROGRAM, program};

/// How long, and how long one daemon lives.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// In all.
    pub time: Duration,
    /// Cycles until the daemon is killed; at least [`LIFE`].
    pub life: usize,
}

/// The least that a daemon lives. One that was started five times within a minute leaves its
/// directories unguarded.
pub const LIFE: Duration = Duration::from_secs(15);

/// What a soak was.
#[derive(Debug, Default)]
pub struct Report {
    /// After each cycle.
    pub samples: Vec<Sample>,
    /// Transactions that lost.
    pub lost: u64,
    /// What grew, in words.
    pub growth: Vec<String>,
}

/// A column of the table: what stands above it, and what is in it.
type Column = (&'static str, fn(&Sample) -> u64);

const COLUMNS: [Column; 15] = [
    ("second", |s| s.second),
    ("life", |s| s.life as u64),
    ("KiB", |s| s.daemon.memory),
    ("files", |s| s.daemon.descriptors()),
    ("threads", |s| s.daemon.threads),
    ("mounts", |s| s.mounts),
    ("nodes", |s| remembered(s, "nodes")),
    ("seats", |s| remembered(s, "seats")),
    ("members", |s| remembered(s, "members")),
    ("programs", |s| s.programs.memory),
    ("files", |s| s.programs.descriptors()),
    ("journal", |s| s.journal),
    ("store", |s| s.store),
    ("inodes", |s| s.inodes),
    ("committed", |s| s.committed),
];

fn remembered(sample: &Sample, what: &str) -> u64 {
    sample.remembered.get(what).copied().unwrap_or(0)
}

impl Report {
    /// A table of at most so many rows.
    pub fn table(&self, rows: usize) -> String {
        let step = self.samples.len().div_ceil(rows.max(1)).max(1);
        let row = |cells: Vec<String>| {
            let cells = cells.iter().map(|cell| format!("{cell:>9}"));
            cells.collect::<String>() + "\n"
        };
        let mut out = row(COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect());
        for sample in self.samples.iter().step_by(step) {
            out += &row(COLUMNS.iter().map(|(_, of)| of(sample).to_string()).collect());
        }
        out
    }

    /// Which kinds of descriptors were more or fewer at the end of each daemon's life than after
    /// its first cycle.
    pub fn opened(&self) -> String {
        let mut out = String::new();
        for life in 0..=self.samples.last().map_or(0, |s| s.life) {
            let mut of = self.samples.iter().filter(|s| s.life == life);
            let Some(first) = of.next() else { continue };
            let last = of.next_back().unwrap_or(first);
            for (who, of) in WHO {
                let (first, last) = (of(first), of(last));
                out += &format!(
                    "life {life}, {who}: {} descriptors, then {}\n",
                    first.descriptors(),
                    last.descriptors()
                );
                let kinds: BTreeSet<&String> =
                    first.kinds.keys().chain(last.kinds.keys()).collect();
                for kind in kinds {
                    let of = |process: &Process| process.kinds.get(kind).copied().unwrap_or(0);
                    if of(first) != of(last) {
                        out += &format!("{:>6} {:>6} {kind}\n", of(first), of(last));
                    }
                }
            }
        }
        out
    }
}

/// Some of the processes that are looked at: who that is, and what was seen of them.
type Who = (&'static str, fn(&Sample) -> &Process);

const WHO: [Who; 2] = [("daemon", |s| &s.daemon), ("programs", |s| &s.programs)];

/// What this machine does not have, for the skip message.
pub fn obstacle() -> Option<String> {
    find_program("setpriv").is_none().then(|| "no setpriv (package util-linux)".into())
}

/// Runs the load; panics where a program sees what it must not.
pub fn soak(lab: &Lab, options: Options) -> Report {
    let begun = Instant::now();
    let mut load = Load::new(lab);
    let mut report = Report::default();
    let (mut life, mut cycle) = (0, 0);
    let (mut born, mut first) = (begun, 0);
    while begun.elapsed() < options.time || report.samples.len() < 3 {
        load.cycle(cycle);
        lab.do_systx(["gc", "--keep", "5", "--max-size", "1M"]).ok();
        let mut sample = sample::quiet(lab, &load.pids());
        (sample.second, sample.life) = (begun.elapsed().as_secs(), life);
        report.samples.push(sample);
        cycle += 1;
        let old = cycle - first >= options.life && born.elapsed() >= LIFE;
        if old && begun.elapsed() < options.time {
            lab.kill_daemon();
            // The mounts answer again when the next daemon serves them; without a mount it is the
            // plain directory.
            lab.until("the daemon comes back", || {
                let answers = lab.native("cat g/count r/counted").code == 0;
                answers && guard_mounts(&lab.root()).len() == 2
            });
            (born, first) = (Instant::now(), cycle);
            life += 1;
        }
    }
    report.lost = load.lost;
    drop(load);
    for dir in ["g", "r"] {
        lab.do_systx(["umount", dir]).ok();
    }
    assert_eq!(guard_mounts(&lab.root()), Vec::<std::path::PathBuf>::new());
    report.growth = growth(&report.samples);
    report
}

/// Cycles in a third of a life from which on its memory is to have settled.
const LONG: usize = 10;

/// What is more in the last third of a daemon's life than in the second, after a warm-up in the
/// first.
fn growth(samples: &[Sample]) -> Vec<String> {
    let mut found = Vec::new();
    let lives = samples.last().map_or(0, |s| s.life);
    for life in 0..=lives {
        let of: Vec<&Sample> = samples.iter().filter(|s| s.life == life).collect();
        let third = of.len() / 3;
        if third < 2 {
            continue;
        }
        let (before, after) = (&of[third..of.len() - third], &of[of.len() - third..]);
        let mut compare = |what: &str, slack: u64, read: &dyn Fn(&Sample) -> u64| {
            let median = |part: &[&Sample]| {
                let mut values: Vec<u64> = part.iter().map(|s| read(s)).collect();
                values.sort_unstable();
                values[values.len() / 2]
            };
            let (was, is) = (median(before), median(after));
            if is > was + slack {
                found.push(format!("life {life}: {what}: {was}, then {is}"));
            }
        };
        // A leak of one object a cycle shows in a long run; the allocator keeps some megabytes at
        // will, and a short life is all warm-up. The view of a transaction that has ended goes a
        // moment later, with a mount, a few descriptors and perhaps a thread.
        let long = third >= LONG;
        for (who, of) in WHO {
            let mut compare = |what: &str, slack, read: &dyn Fn(&Process) -> u64| {
                compare(&format!("{who}: {what}"), slack, &|s| read(of(s)));
            };
            compare("memory in KiB", if long { 4096 } else { 16384 }, &|p| p.memory);
            compare("descriptors", if long { 4 } else { 16 }, &|p| {
                p.descriptors() - p.kinds.get(SEGMENT).copied().unwrap_or(0)
            });
            compare("threads", if long { 3 } else { 8 }, &|p| p.threads);
        }
        compare("mounts", if long { 1 } else { 4 }, &|s| s.mounts);
        // What the kernel still knows it lets go of at will; all else is exactly what is open.
        for what in OF_VOLUMES.iter().chain(&OF_DIRECTORIES) {
            let slack = match *what {
                "nodes" => 16,
                "members" => 4,
                _ => 0,
            };
            compare(what, slack, &|s| remembered(s, what));
        }
        compare("store in KiB, without the journal", 2048, &|s| s.store);
        // It gets its four segments one after the other.
        compare("journal in KiB", 4096, &|s| s.journal);
        compare("inodes of the file system", 16, &|s| s.inodes);
        compare("names in the daemon's directories", 4, &|s| s.runtime);
    }
    found
}
