//! Mutual exclusion by file locks, as those who lock see it.
//!
//! Workers are processes that lock parts of two files, in every way that Linux has: by `F_SETLK`
//! and `F_SETLKW`, by `F_OFD_SETLK`, by flock(2), shared and exclusive, waiting or not.  They give
//! up by unlocking, by closing, by closing a duplicate, by dying, or leave a lock to a child that
//! has inherited its description.  Others only open the files and close them, and some are killed
//! while they wait.
//!
//! Who has got a lock notes that in memory which all of them share, looks who else has, and takes
//! the note back before it gives up.  Of two that are inside at once at least one sees the other.
//! A worker that nobody lets in for long has met a lock that was lost the other way: nobody has it
//! and it excludes.
//!
//! Nothing here knows how locks are made; a run is a function of its seed, but for the order in
//! which the kernel lets processes run.

use crate::dice::Dice;
use crate::record_unsafe::{Shared, record};
use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A directory that can be written to
    #[arg(long)]
    dir: PathBuf,
    /// How long
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Processes that lock
    #[arg(long, default_value_t = 6)]
    workers: u64,
    /// Processes that only open and close
    #[arg(long, default_value_t = 1)]
    openers: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Commands that workers are started by, one after the other: `sh -c "..."` in another view,
    /// for instance.  Each gets the worker's own command as its arguments
    #[arg(long)]
    by: Vec<String>,
    /// Nobody closes a duplicate that was made after the lock: in a view whose opens make no
    /// messages that does not end the lock
    #[arg(long)]
    no_late_duplicates: bool,
    /// Nobody waits for a lock while it has another: a circle of waits through programs outside of
    /// all views is found by nobody
    #[arg(long)]
    no_circles: bool,
}

/// One worker, or with `opener` one that only opens and closes.
#[derive(Args, Clone, Debug)]
pub struct Worker {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    memory: PathBuf,
    #[arg(long)]
    number: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    opener: bool,
    #[arg(long)]
    no_late_duplicates: bool,
    #[arg(long)]
    no_circles: bool,
    /// It has inherited a description from the worker with this number: what that notes is taken
    /// back at its end
    #[arg(long)]
    heir: bool,
}

/// What was seen.
#[derive(Serialize, Debug, Default)]
pub struct Report {
    /// With which it was run.
    pub seed: u64,
    /// Locks that were got.
    pub entered: u64,
    /// Of these: somebody else was inside.
    pub together: u64,
    /// In words, the first of them.
    pub first: String,
    /// Requests that did not wait and were refused.
    pub refused: u64,
    /// Requests that would have waited for each other.
    pub circles: u64,
    /// Workers that were killed while they waited.
    pub killed: u64,
    /// Workers that ended with what they held.
    pub died: u64,
    /// Locks that were left to a child.
    pub inherited: u64,
    /// What the openers did.
    pub opened: u64,
    /// A worker that got nothing for so long that a lock must have been left behind.
    pub stuck: Option<String>,
    /// Calls that failed in a way that no lock explains.
    pub errors: Vec<String>,
}

impl Report {
    /// Whether locks did not do what they are for.
    pub fn is_violated(&self) -> bool {
        self.together > 0 || self.stuck.is_some() || !self.errors.is_empty()
    }
}

const FILES: u64 = 4;
/// Of these, the last two are only locked by processes, which wait for one while they have the
/// other: a circle of waits that leads through one for a description is not found by Linux.
const MIXED: u64 = 2;
/// Parts of a file, so many bytes each.
const PARTS: u64 = 4;
const PART: i64 = 10;
/// Record locks of a part of a file, and flock(2), which knows nothing of them.
const PLACES: usize = (FILES * (PARTS + 1)) as usize;
const WORKERS: usize = 64;
/// Who gets nothing for so long is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// Of a worker: what it is inside of, a word for each place; then what it does, and counts.
const STATE: usize = PLACES;
const ENTERED: usize = PLACES + 1;
const TOGETHER: usize = PLACES + 2;
const REFUSED: usize = PLACES + 3;
const CIRCLES: usize = PLACES + 4;
const DIED: usize = PLACES + 5;
const INHERITED: usize = PLACES + 6;
/// With whom it was together, and where.
const FIRST: usize = PLACES + 7;
/// Its process.
const PROCESS: usize = PLACES + 8;
const WORDS: usize = PLACES + 9;
/// The last words are those of all.
const STOP: usize = WORDS * WORKERS;
const OPENED: usize = STOP + 1;
const ALL: usize = STOP + 2;

/// States of a worker: at work, waiting for a lock, chosen to be killed as it waits.
const BUSY: u64 = 0;
const WAITS: u64 = 1;
const DOOMED: u64 = 2;

const SHARED: u64 = 1;
const EXCLUSIVE: u64 = 2;

fn map(memory: &Path) -> Result<Shared> {
    let file = File::options().read(true).write(true).open(memory);
    let file = file.with_context(|| format!("no memory {}", memory.display()))?;
    Ok(Shared::new(&file, ALL)?)
}

/// A process that is started again when it has ended.
struct Seat {
    number: u64,
    lives: u64,
    child: Child,
    /// Locks that it had got when it was looked at the last time it had got more.
    seen: (u64, Instant),
}

struct Scene<'a> {
    options: &'a Options,
    memory: PathBuf,
    shared: Shared,
}

impl Scene<'_> {
    fn start(&self, number: u64, lives: u64, opener: bool) -> Result<Child> {
        let me = std::env::current_exe()?;
        let by = &self.options.by;
        let at = usize::try_from(number).unwrap_or(0);
        let mut command = match by.get(at % by.len().max(1)) {
            Some(by) => {
                let mut sh = Command::new("sh");
                sh.args(["-c", &format!("{by} \"$@\""), "sh"]).arg(&me);
                sh
            }
            None => Command::new(&me),
        };
        let seed = self.options.seed.wrapping_mul(1_000_003) + number * 1009 + lives;
        command.arg("lock-worker").arg("--dir").arg(&self.options.dir);
        command.arg("--memory").arg(&self.memory);
        command.args(["--number", &number.to_string(), "--seed", &seed.to_string()]);
        if opener {
            command.arg("--opener");
        }
        if self.options.no_late_duplicates {
            command.arg("--no-late-duplicates");
        }
        if self.options.no_circles {
            command.arg("--no-circles");
        }
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command.spawn().context("a worker cannot be started")
    }

    fn word(&self, number: u64, word: usize) -> u64 {
        self.shared.word(slot(number) + word).load(SeqCst)
    }
}

fn slot(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0) * WORDS
}

/// Lets the workers lock for so long, kills some, and says what was seen.
///
/// # Errors
/// What of it could not be done.
pub fn run(options: &Options) -> Result<Report> {
    if options.workers + options.openers > WORKERS as u64 {
        bail!("at most {WORKERS} processes");
    }
    for file in 0..FILES {
        File::options().append(true).create(true).open(options.dir.join(name(file)))?;
    }
    let file = rustix::fs::memfd_create("locks", rustix::fs::MemfdFlags::empty())?;
    rustix::fs::ftruncate(&file, (ALL * 8) as u64)?;
    let memory = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
    let shared = Shared::new(&File::from(file.try_clone()?), ALL)?;
    let scene = Scene { options, memory, shared };
    let mut report = Report { seed: options.seed, ..Report::default() };
    let mut seats = Vec::new();
    for number in 0..options.workers + options.openers {
        let child = scene.start(number, 0, number >= options.workers)?;
        seats.push(Seat { number, lives: 0, child, seen: (0, Instant::now()) });
    }
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut dice = Dice::new(options.seed);
    while Instant::now() < end && !report.is_violated() {
        std::thread::sleep(Duration::from_millis(5));
        for seat in &mut seats {
            look(&scene, seat, &mut report, &mut dice)?;
        }
    }
    scene.shared.word(STOP).store(1, SeqCst);
    let late = Instant::now() + STUCK;
    for seat in &mut seats {
        over(seat, late, &mut report)?;
    }
    // Before the first is killed with what it has noted.
    sum(&scene, &mut report);
    for seat in &mut seats {
        if seat.child.try_wait()?.is_none() {
            kill(&scene, seat);
            seat.child.kill()?;
            seat.child.wait()?;
        }
    }
    Ok(report)
}

/// Kills a worker now and then as it waits, and starts another in the place of one that has ended.
fn look(scene: &Scene<'_>, seat: &mut Seat, report: &mut Report, dice: &mut Dice) -> Result<()> {
    let (options, number) = (scene.options, seat.number);
    let state = scene.shared.word(slot(number) + STATE);
    // The note of a wait is exchanged: who gets the lock in that moment does not go in.
    if dice.permille(20) && state.compare_exchange(WAITS, DOOMED, SeqCst, SeqCst).is_ok() {
        kill(scene, seat);
        report.killed += 1;
    }
    let entered = scene.word(number, ENTERED);
    if entered != seat.seen.0 || number >= options.workers {
        seat.seen = (entered, Instant::now());
    } else if seat.seen.1.elapsed() > STUCK && report.stuck.is_none() {
        report.stuck = Some(format!("worker {number} got nothing after {entered} locks"));
    }
    let Some(status) = seat.child.try_wait()? else { return Ok(()) };
    complain(seat, status.code(), report);
    if report.errors.is_empty() {
        state.store(BUSY, SeqCst);
        seat.lives += 1;
        seat.child = scene.start(number, seat.lives, number >= options.workers)?;
    }
    Ok(())
}

/// The worker itself, by the number that it has noted, whatever command it was started by.
fn kill(scene: &Scene<'_>, seat: &mut Seat) {
    let pid = i32::try_from(scene.word(seat.number, PROCESS)).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Gone is as good.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// An exit code is a call that failed; killed are those that were to be, and what has started
/// them says so.
fn complain(seat: &mut Seat, code: Option<i32>, report: &mut Report) {
    if code.is_some_and(|code| code != 0 && code != 128 + libc::SIGKILL) {
        let text = seat.child.stderr.take().map(io::read_to_string);
        let text = text.and_then(Result::ok).unwrap_or_default();
        report.errors.push(format!("worker {}: {}", seat.number, text.trim()));
    }
}

/// Waits for a worker's end.
fn over(seat: &mut Seat, late: Instant, report: &mut Report) -> Result<()> {
    while Instant::now() < late {
        if let Some(status) = seat.child.try_wait()? {
            complain(seat, status.code(), report);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if report.stuck.is_none() && !report.is_violated() {
        report.stuck = Some(format!("worker {} does not end", seat.number));
    }
    Ok(())
}

fn sum(scene: &Scene<'_>, report: &mut Report) {
    for number in 0..scene.options.workers {
        let word = |word| scene.word(number, word);
        report.entered += word(ENTERED);
        report.together += word(TOGETHER);
        report.refused += word(REFUSED);
        report.circles += word(CIRCLES);
        report.died += word(DIED);
        report.inherited += word(INHERITED);
        if word(FIRST) != 0 && report.first.is_empty() {
            let (other, place) = (word(FIRST) >> 32, word(FIRST) & 0xffff_ffff);
            report.first = format!("workers {number} and {} in place {place}", other - 1);
        }
    }
    report.opened = scene.shared.word(OPENED).load(SeqCst);
}

fn name(file: u64) -> String {
    format!("locked{file}")
}

/// A lock that a worker asks for.
#[derive(Clone, Copy, Debug)]
struct Wish {
    by: By,
    file: u64,
    /// Parts of the file.
    from: u64,
    to: u64,
    exclusive: bool,
    waits: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Process,
    Description,
    Whole,
}

impl Wish {
    fn random(dice: &mut Dice) -> Wish {
        let by = match dice.below(4) {
            0 | 1 => By::Process,
            2 => By::Description,
            _ => By::Whole,
        };
        let from = dice.below(PARTS);
        let to = from + dice.below(PARTS - from);
        let (exclusive, waits) = (dice.permille(600), dice.permille(700));
        Wish { by, file: dice.below(MIXED), from, to, exclusive, waits }
    }

    /// The words of the places.
    fn places(&self) -> impl Iterator<Item = usize> {
        let first = self.file * (PARTS + 1);
        let (from, to) = match self.by {
            By::Whole => (PARTS, PARTS),
            _ => (self.from, self.to),
        };
        (first + from..=first + to).map(|place| usize::try_from(place).unwrap_or(0))
    }

    fn ask(&self, file: &File, kind: i32) -> io::Result<()> {
        let unlocks = kind == libc::F_UNLCK;
        let command = match (self.by, self.waits && !unlocks) {
            (By::Process, true) => libc::F_SETLKW,
            (By::Process, false) => libc::F_SETLK,
            (By::Description, true) => libc::F_OFD_SETLKW,
            (By::Description, false) => libc::F_OFD_SETLK,
            (By::Whole, waits) => {
                let how = match (unlocks, self.exclusive, waits) {
                    (true, ..) => FlockOperation::Unlock,
                    (_, true, true) => FlockOperation::LockExclusive,
                    (_, true, false) => FlockOperation::NonBlockingLockExclusive,
                    (_, false, true) => FlockOperation::LockShared,
                    (_, false, false) => FlockOperation::NonBlockingLockShared,
                };
                return Ok(rustix::fs::flock(file, how)?);
            }
        };
        let parts = i64::try_from(self.to - self.from + 1).unwrap_or(1);
        let start = i64::try_from(self.from).unwrap_or(0) * PART;
        record(file.as_fd(), command, (kind, start, parts * PART)).map(drop)
    }

    fn lock(&self, file: &File) -> io::Result<()> {
        self.ask(file, if self.exclusive { libc::F_WRLCK } else { libc::F_RDLCK })
    }
}

struct Inside {
    shared: Shared,
    me: usize,
    options: Worker,
    dice: Dice,
}

impl Inside {
    fn word(&self, word: usize) -> &std::sync::atomic::AtomicU64 {
        self.shared.word(self.me + word)
    }

    fn count(&self, word: usize) {
        self.word(word).fetch_add(1, SeqCst);
    }

    /// Gets the lock; false if it was refused.  Notes what was got and looks for others.
    fn enter(&self, wish: &Wish, file: &File) -> Result<bool> {
        // Who has noted something is not killed: nobody would take the note back.
        let noted = (0..PLACES).any(|place| self.word(place).load(SeqCst) != 0);
        let waits = wish.waits && !noted;
        if waits {
            self.word(STATE).store(WAITS, SeqCst);
        }
        let got = wish.lock(file);
        if waits && self.word(STATE).swap(BUSY, SeqCst) == DOOMED {
            self.word(STATE).store(DOOMED, SeqCst);
            die();
        }
        match got {
            Ok(()) => {}
            Err(e) => {
                match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::EACCES) if !wish.waits => self.count(REFUSED),
                    Some(libc::EDEADLK) if wish.by == By::Process => self.count(CIRCLES),
                    Some(libc::EINTR) => {}
                    _ => return Err(e).with_context(|| format!("{wish:?}")),
                }
                return Ok(false);
            }
        }
        let note = if wish.exclusive { EXCLUSIVE } else { SHARED };
        wish.places().for_each(|place| self.word(place).store(note, SeqCst));
        self.count(ENTERED);
        self.check(wish, note);
        Ok(true)
    }

    /// Whether somebody else is inside.
    fn check(&self, wish: &Wish, note: u64) {
        for place in wish.places() {
            for other in 0..WORKERS {
                let there = self.shared.word(other * WORDS + place).load(SeqCst);
                let excludes = there == EXCLUSIVE || (there == SHARED && note == EXCLUSIVE);
                if other * WORDS != self.me && excludes {
                    self.count(TOGETHER);
                    let first = ((other as u64 + 1) << 32) | place as u64;
                    let _ = self.word(FIRST).compare_exchange(0, first, SeqCst, SeqCst);
                }
            }
        }
    }

    /// Takes the notes back.
    fn leave(&self) {
        (0..PLACES).for_each(|place| self.word(place).store(0, SeqCst));
    }

    fn pause(&mut self, most: u64) {
        match self.dice.below(4) {
            0 => {}
            1 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(self.dice.below(most))),
        }
    }

    fn open(&self, file: u64) -> Result<File> {
        let path = self.options.dir.join(name(file));
        let open = File::options().read(true).write(true).open(&path);
        open.with_context(|| format!("cannot open {}", path.display()))
    }

    /// A child that has the description as well, and ends a moment later.
    fn heir(&mut self, file: &File) -> Result<Child> {
        let me = std::env::current_exe()?;
        let mut command = Command::new(me);
        command.arg("lock-worker").arg("--dir").arg(&self.options.dir);
        command.arg("--memory").arg(&self.options.memory).arg("--heir");
        command.args(["--number", &self.options.number.to_string()]);
        command.args(["--seed", &self.dice.below(1 << 30).to_string()]);
        command.stdin(OwnedFd::from(file.try_clone()?));
        command.spawn().context("an heir cannot be started")
    }

    /// One lock, held for a while, and given up in some way.
    fn round(&mut self, kept: &mut Vec<(u64, File)>) -> Result<()> {
        if !self.options.no_circles && self.dice.permille(150) {
            return self.circle();
        }
        let wish = Wish::random(&mut self.dice);
        // By a descriptor that is there already, perhaps beside others of the same file.
        let at = kept.iter().position(|(file, _)| *file == wish.file);
        let at = at.filter(|_| self.dice.permille(500));
        let file = match at {
            Some(at) => kept.swap_remove(at).1,
            None => self.open(wish.file)?,
        };
        let other = if self.dice.permille(200) { Some(self.open(wish.file)?) } else { None };
        if !self.enter(&wish, &file)? {
            self.pause(300);
            return Ok(());
        }
        self.pause(400);
        let inherits = wish.by != By::Process && self.dice.permille(15);
        if inherits {
            let mut child = self.heir(&file)?;
            drop(file);
            self.count(INHERITED);
            child.wait()?;
            return Ok(());
        }
        self.leave();
        if let Some(other) = other {
            // Closed is closed, by whichever descriptor.
            drop(other);
            kept.extend((wish.by == By::Process).then_some((wish.file, file)));
            return Ok(());
        }
        match self.dice.below(100) {
            0..40 => {
                wish.ask(&file, libc::F_UNLCK)?;
                if self.dice.permille(500) {
                    kept.push((wish.file, file));
                }
            }
            40..80 => drop(file),
            80..97 if wish.by == By::Process && !self.options.no_late_duplicates => {
                drop(file.try_clone()?);
                kept.push((wish.file, file));
            }
            97..98 => {
                self.count(DIED);
                die();
            }
            _ => drop(file),
        }
        if kept.len() > 4 {
            // Of a process's own locks of that file none is left by now.
            kept.remove(0);
        }
        Ok(())
    }

    /// Parts of two files, in any order: two that do so may wait for each other.
    fn circle(&mut self) -> Result<()> {
        let first = MIXED + self.dice.below(FILES - MIXED);
        let mut open = Vec::new();
        for file in [first, FILES - 1 + MIXED - first] {
            let wish = Wish::random(&mut self.dice);
            let wish = Wish { by: By::Process, file, waits: true, ..wish };
            let file = self.open(file)?;
            let entered = self.enter(&wish, &file)?;
            open.push(file);
            if !entered {
                break;
            }
            self.pause(300);
        }
        self.leave();
        Ok(())
    }
}

/// As by `kill -9`.
fn die() -> ! {
    let _ = kill_process(rustix::process::getpid(), Signal::KILL);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Locks until all are to stop.
///
/// # Errors
/// A call that failed in a way that no lock explains.
pub fn worker(options: &Worker) -> Result<()> {
    let shared = map(&options.memory)?;
    let (me, dice) = (slot(options.number), Dice::new(options.seed));
    let mut inside = Inside { shared, me, options: options.clone(), dice };
    if options.heir {
        inside.pause(2000);
        inside.leave();
        return Ok(());
    }
    inside.word(PROCESS).store(u64::from(std::process::id()), SeqCst);
    let mut kept = Vec::new();
    while inside.shared.word(STOP).load(SeqCst) == 0 {
        if options.opener {
            let file = inside.dice.below(FILES);
            let open = inside.open(file)?;
            inside.pause(200);
            drop(open);
            inside.shared.word(OPENED).fetch_add(1, SeqCst);
        } else {
            inside.round(&mut kept)?;
        }
    }
    Ok(())
}
