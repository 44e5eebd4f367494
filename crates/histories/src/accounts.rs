//! passwd, shadow and group, updated together while others read them, and while the daemon is
//! killed.
//!
//! Every line of the three files carries the *generation* of the update that wrote it.  A reader
//! that is a transaction sees one generation; a plain reader may see a later one in what it reads
//! later, never an earlier one; and nobody sees less than what was acknowledged before he began.

use crate::arena::{Arena, Ending, Transactions, canceled};
use crate::dice::Dice;
use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::io::Errno;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// An empty directory, guarded if there are transactions
    #[arg(long)]
    dir: PathBuf,
    /// Updates that are acknowledged
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    #[command(flatten)]
    transactions: Transactions,
    /// The transaction of a reader is a frozen snapshot
    #[arg(long)]
    read_only: bool,
    /// A shell command that kills the daemon with SIGKILL, to be run now and then
    #[arg(long, value_name = "SCRIPT")]
    crash: Option<String>,
    /// Milliseconds between two crashes, on average
    #[arg(long, default_value_t = 500)]
    crash_every: u64,
    /// Users in the files: 100 make two or three pages
    #[arg(long, default_value_t = 100)]
    users: u32,
    /// Plain readers
    #[arg(long, default_value_t = 2)]
    readers: u32,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What was seen.
#[derive(Serialize, Debug, Default)]
pub struct Report {
    /// Updates that were acknowledged.
    pub updates: u64,
    /// Updates that lost a conflict.
    pub conflicts: u64,
    /// Updates of which nobody said how they ended.
    pub unknown: u64,
    /// How often the daemon was killed.
    pub crashes: u64,
    /// Readings by plain readers.
    pub plain_readings: u64,
    /// Readings in a transaction.
    pub snapshots: u64,
    /// Readings and updates that a crash cut short.
    pub interrupted: u64,
    /// Snapshots of more than one generation.
    pub mixed: u64,
    /// Plain readings of a later generation before an earlier one, or a file that was cut.
    pub backwards: u64,
    /// Readings of a generation older than one acknowledged, or seen, before they began.
    pub lost: u64,
}

impl Report {
    /// What may never happen.
    pub fn violations(&self) -> u64 {
        self.mixed + self.backwards + self.lost
    }
}

const FILES: [&str; 3] = ["passwd", "shadow", "group"];
/// A daemon that dies more often than this in a minute is not started again.
const DEATHS: usize = 4;
const MINUTE: Duration = Duration::from_secs(61);
/// Longer than any recovery takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What all threads share.
struct Shared<'a> {
    options: &'a Options,
    arena: Arena,
    stop: AtomicBool,
    acknowledged: AtomicU64,
    crashes: AtomicU64,
    plain_readings: AtomicU64,
    snapshots: AtomicU64,
    interrupted: AtomicU64,
    mixed: AtomicU64,
    backwards: AtomicU64,
    lost: AtomicU64,
}

/// What the end of a daemon answers to calls that were on their way, or use what it served.
fn cut_short(error: &io::Error) -> bool {
    // ECANCELED is the kernel's, of a request that the daemon's ring held when its task died.
    [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED]
        .iter()
        .any(|e| error.raw_os_error() == Some(e.raw_os_error()))
}

/// Lines stay where they are when the generation changes: a plain reading of several requests may
/// be of two generations, and is still made of whole lines.
fn content(file: usize, users: u32, generation: u64) -> String {
    let mut out = String::new();
    for user in 0..users {
        let _ = match file {
            0 => writeln!(
                out,
                "user{user:04}:x:{}:100:{generation:010}:/home/user{user:04}:/bin/sh",
                1000 + user
            ),
            1 => {
                writeln!(out, "user{user:04}:$6$salt$hash{user:020}:{generation:010}:0:99999:7:::")
            }
            _ => writeln!(out, "group{user:04}:x:{generation:010}:user{user:04}"),
        };
    }
    out
}

fn line_generation(file: usize, line: &str) -> Option<u64> {
    line.split(':').nth([4, 2, 2][file])?.parse().ok()
}

/// The generations of a file's lines from the first to the last; `None` if it is not whole.
fn generations(file: usize, text: &str, users: u32) -> Option<Vec<u64>> {
    let all: Option<Vec<u64>> = text.lines().map(|l| line_generation(file, l)).collect();
    all.filter(|all| all.len() == users as usize && text.ends_with('\n'))
}

/// Writes all three: in place, or as a new file that gets the name.
fn update(dir: &Path, users: u32, generation: u64) -> io::Result<()> {
    for (file, name) in FILES.iter().enumerate() {
        let text = content(file, users, generation);
        if generation.is_multiple_of(2) {
            let mut out = OpenOptions::new().write(true).truncate(true).open(dir.join(name))?;
            out.write_all(text.as_bytes())?;
        } else {
            let new = dir.join(format!("{name}.new"));
            fs::write(&new, text)?;
            fs::rename(new, dir.join(name))?;
        }
    }
    Ok(())
}

impl Shared<'_> {
    fn crashing(&self) -> bool {
        self.options.crash.is_some()
    }

    /// The failure may be a crash's doing: then it counts, and there is a next time.
    fn forgive<T>(&self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(_) if self.crashing() => {
                self.interrupted.fetch_add(1, SeqCst);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// All three files, in an order of the dice's choice: the generations in the order of reading.
    fn read(&self, dir: &Path, dice: &mut Dice) -> io::Result<Option<Vec<u64>>> {
        let first = dice.below(3) as usize;
        let step = 1 + dice.below(2) as usize;
        let mut seen = Vec::new();
        for n in 0..3 {
            let file = (first + n * step) % 3;
            let text = fs::read_to_string(dir.join(FILES[file]))?;
            match generations(file, &text, self.options.users) {
                Some(all) => seen.extend(all),
                None => return Ok(None),
            }
        }
        Ok(Some(seen))
    }

    fn plain_reader(&self, seed: u64) -> Result<()> {
        let (mut dice, mut latest) = (Dice::new(seed), 0);
        while !self.stop.load(SeqCst) {
            let floor = latest.max(self.acknowledged.load(SeqCst));
            let seen = match self.read(&self.options.dir, &mut dice) {
                Err(e) if cut_short(&e) && self.crashing() => {
                    self.interrupted.fetch_add(1, SeqCst);
                    std::thread::yield_now();
                    continue;
                }
                other => other.context("a plain reader failed")?,
            };
            self.plain_readings.fetch_add(1, SeqCst);
            let Some(seen) = seen else {
                self.backwards.fetch_add(1, SeqCst);
                continue;
            };
            if !seen.is_sorted() {
                self.backwards.fetch_add(1, SeqCst);
            }
            if seen.iter().any(|g| *g < floor) {
                self.lost.fetch_add(1, SeqCst);
            }
            latest = seen.into_iter().fold(latest, u64::max);
        }
        Ok(())
    }

    fn snapshot(&self, dice: &mut Dice) -> Result<Option<Vec<u64>>> {
        let view = self.arena.begin(self.options.read_only)?;
        let seen = match self.read(&view.path, dice) {
            Ok(seen) => seen.unwrap_or_default(),
            Err(e) => {
                self.arena.lost(&view);
                return if canceled(&e) { Ok(None) } else { Err(e).context("a snapshot failed") };
            }
        };
        // Only its end says that it was of one moment, if it was not frozen.
        match self.arena.commit(&view)? {
            Ending::Committed => Ok(Some(seen)),
            Ending::Conflict => Ok(None),
            Ending::Displaced(why) | Ending::Failed(why) => bail!("a snapshot failed: {why}"),
        }
    }

    fn transactional_reader(&self) -> Result<()> {
        let (mut dice, mut latest) = (Dice::new(self.options.seed ^ 77), 0);
        while !self.stop.load(SeqCst) {
            let floor = self.acknowledged.load(SeqCst).max(latest);
            let Some(Some(seen)) = self.forgive(self.snapshot(&mut dice))? else { continue };
            self.snapshots.fetch_add(1, SeqCst);
            let Some(first) = seen.first().copied() else {
                self.mixed.fetch_add(1, SeqCst);
                continue;
            };
            if seen.iter().any(|g| *g != first) {
                self.mixed.fetch_add(1, SeqCst);
            }
            if first < floor {
                self.lost.fetch_add(1, SeqCst);
            }
            latest = first;
        }
        Ok(())
    }

    fn killer(&self, script: &str) -> Result<()> {
        let mut dice = Dice::new(self.options.seed ^ 99);
        let mut deaths: Vec<Instant> = Vec::new();
        while !self.stop.load(SeqCst) {
            deaths.retain(|death| death.elapsed() < MINUTE);
            if deaths.len() == DEATHS {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let pause = 1 + dice.below(2 * self.options.crash_every);
            let wake = Instant::now() + Duration::from_millis(pause);
            while Instant::now() < wake && !self.stop.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(5.min(pause)));
            }
            let status = Command::new("sh").args(["-c", script]).status();
            if status.context("cannot start a shell")?.success() {
                self.crashes.fetch_add(1, SeqCst);
                deaths.push(Instant::now());
            }
        }
        Ok(())
    }

    /// One update: how its transaction ended.
    fn attempt(&self, generation: u64) -> Result<Ending> {
        let view = self.arena.begin(false)?;
        match update(&view.path, self.options.users, generation) {
            Ok(()) => self.arena.commit(&view),
            Err(e) if canceled(&e) => {
                self.arena.lost(&view);
                Ok(Ending::Conflict)
            }
            Err(e) => Err(e).context("an update failed"),
        }
    }

    fn writer(&self, report: &mut Report) -> Result<()> {
        let mut generation = 0;
        let mut progress = Instant::now();
        while report.updates < self.options.rounds && !self.stop.load(SeqCst) {
            if progress.elapsed() > PATIENCE {
                bail!("no update for {} s", PATIENCE.as_secs());
            }
            generation += 1;
            match self.forgive(self.attempt(generation))? {
                Some(Ending::Committed) => {
                    self.acknowledged.store(generation, SeqCst);
                    report.updates += 1;
                    progress = Instant::now();
                }
                Some(Ending::Conflict) => report.conflicts += 1,
                Some(Ending::Failed(_)) if self.crashing() => report.unknown += 1,
                Some(Ending::Displaced(why) | Ending::Failed(why)) => {
                    bail!("a commit failed: {why}")
                }
                // It was cut short before its commit was asked for.
                None => {}
            }
        }
        Ok(())
    }
}

/// Stops the others however this one ends.
struct StopsOthers<'a>(&'a AtomicBool);

impl Drop for StopsOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Updates the three files while others read, and says what was seen.
///
/// # Errors
/// What of it could not be done.
pub fn run(options: &Options) -> Result<Report> {
    for (file, name) in FILES.iter().enumerate() {
        let path = options.dir.join(name);
        fs::write(&path, content(file, options.users, 0))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let shared = Shared {
        options,
        arena: Arena::new(options.dir.clone(), options.transactions.by()),
        stop: AtomicBool::new(false),
        acknowledged: AtomicU64::new(0),
        crashes: AtomicU64::new(0),
        plain_readings: AtomicU64::new(0),
        snapshots: AtomicU64::new(0),
        interrupted: AtomicU64::new(0),
        mixed: AtomicU64::new(0),
        backwards: AtomicU64::new(0),
        lost: AtomicU64::new(0),
    };
    let mut report = Report::default();
    std::thread::scope(|scope| -> Result<()> {
        let shared = &shared;
        let mut others = Vec::new();
        let seeds = (0..u64::from(options.readers)).map(|n| options.seed * 31 + n);
        for seed in seeds {
            others.push(scope.spawn(move || {
                let _stop = StopsOthers(&shared.stop);
                shared.plain_reader(seed)
            }));
        }
        others.push(scope.spawn(move || {
            let _stop = StopsOthers(&shared.stop);
            shared.transactional_reader()
        }));
        if let Some(script) = &options.crash {
            others.push(scope.spawn(move || {
                let _stop = StopsOthers(&shared.stop);
                shared.killer(script)
            }));
        }
        let written = {
            let _stop = StopsOthers(&shared.stop);
            shared.writer(&mut report)
        };
        for other in others {
            other.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        }
        written
    })?;
    report.crashes = shared.crashes.into_inner();
    report.plain_readings = shared.plain_readings.into_inner();
    report.snapshots = shared.snapshots.into_inner();
    report.interrupted = shared.interrupted.into_inner();
    report.mixed = shared.mixed.into_inner();
    report.backwards = shared.backwards.into_inner();
    report.lost = shared.lost.into_inner();
    Ok(report)
}
