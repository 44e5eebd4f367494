//! Directories that change while others look: who begins to look after a change is over sees it,
//! in listings of many calls, by name, and in the times of the directory.
//!
//! One process makes, links, renames and removes names in two directories, others list them, look
//! names up and ask for times. Each notes when it began and when it was over, and in the end all is
//! compared: a name of which nothing was under way while somebody looked is there once, or is not
//! there. That is what Linux promises beyond POSIX, also of a listing that goes back to where it
//! was ([`seekdir`]), and to programs such as mail servers, which know by the times of a directory
//! that they need not list it again.
//!
//! [`seekdir`]: https://man7.org/linux/man-pages/man3/seekdir.3.html

use crate::dice::Dice;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::fs::{RawDir, SeekFrom};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

mod judge;

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// An empty directory
    #[arg(long)]
    dir: PathBuf,
    /// Changes of names
    #[arg(long, default_value_t = 3000)]
    changes: u64,
    /// Processes that look
    #[arg(long, default_value_t = 3)]
    readers: u64,
    /// Names that there may be in each of the two directories
    #[arg(long, default_value_t = 400)]
    names: u32,
    /// The first number of the dice
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What was seen.
#[derive(Serialize, Debug, Default)]
pub struct Report {
    /// Changes of names.
    pub changes: u64,
    /// Listings.
    pub listings: u64,
    /// Of these: with a change in the middle.
    pub disturbed: u64,
    /// Names looked up.
    pub looks: u64,
    /// Times looked at.
    pub stats: u64,
    /// What nobody can have seen, in words: the first ones.
    pub wrong: Vec<String>,
}

/// Nanoseconds of a clock that all processes have.
type Moment = u64;

fn now() -> Moment {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The directories, and a name in one of them.
const DIRS: [&str; 2] = ["one", "two"];
type Name = (usize, u32);

fn path(top: &Path, (dir, number): Name) -> PathBuf {
    top.join(DIRS[dir]).join(format!("{number:06}.a-name-as-long-as-that-of-a-message:2,"))
}

/// What is there at first.
fn is_first(number: u32) -> bool {
    number.is_multiple_of(2)
}

/// A change of names: what has become of each.
#[derive(Serialize, Deserialize, Debug)]
struct Change {
    begun: Moment,
    over: Moment,
    names: Vec<(Name, bool)>,
}

/// Something that was seen of a directory.
#[derive(Serialize, Deserialize, Debug)]
struct Seen {
    dir: usize,
    begun: Moment,
    over: Moment,
    what: What,
}

#[derive(Serialize, Deserialize, Debug)]
enum What {
    Listing(Vec<u32>),
    Look(u32, bool),
    /// Times of change, of the names and of the inode.
    Times(i64, i64),
}

/// Fills the directories, has them changed and looked at, and compares.
///
/// # Errors
/// What of it could not be done.
pub fn run(options: &Options) -> Result<Report> {
    let tick = if has_a_time_for_each(&options.dir)? { 0 } else { TICK };
    for (dir, name) in DIRS.iter().enumerate() {
        fs::create_dir_all(options.dir.join(name))?;
        for number in (0..options.names).filter(|number| is_first(*number)) {
            let path = path(&options.dir, (dir, number));
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
    }
    let readers = (0..options.readers).map(|n| Reader::start(options, n));
    let readers = readers.collect::<Result<Vec<_>>>()?;
    let changes = Changer::new(options).run(options.changes)?;
    let mut seen = Vec::new();
    for reader in readers {
        seen.extend(reader.stop()?);
    }
    Ok(judge::compare(options.names, tick, changes, &seen))
}

/// Changes within so many nanoseconds may have one time where the file system goes by a clock that
/// ticks.
const TICK: Moment = 20_000_000;

/// Whether each change that is looked at has a time of its own (Linux 6.13, on some file systems).
fn has_a_time_for_each(dir: &Path) -> Result<bool> {
    let probe = dir.join("probe");
    let mut last = times(dir)?;
    for _ in 0..20 {
        File::create(&probe)?;
        let made = times(dir)?;
        fs::remove_file(&probe)?;
        let removed = times(dir)?;
        if last.0 >= made.0 || made.0 >= removed.0 {
            return Ok(false);
        }
        last = removed;
    }
    Ok(true)
}

/// When the names of a directory, and when it itself has changed.
fn times(dir: &Path) -> Result<(i64, i64)> {
    let seen = rustix::fs::stat(dir)?;
    let nanos = |secs: i64, nanos: u64| secs * 1_000_000_000 + nanos as i64;
    let mtime = nanos(seen.st_mtime, seen.st_mtime_nsec);
    Ok((mtime, nanos(seen.st_ctime, seen.st_ctime_nsec)))
}

/// A process that looks.
struct Reader(Child);

impl Reader {
    fn start(options: &Options, number: u64) -> Result<Reader> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("listings-reader").arg("--dir").arg(&options.dir);
        command.args(["--names", &options.names.to_string()]);
        command.args(["--seed", &(options.seed * 1000 + number).to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Reader(command.spawn().with_context(|| format!("cannot start {command:?}"))?))
    }

    /// What it has seen.
    fn stop(mut self) -> Result<Vec<Seen>> {
        drop(self.0.stdin.take());
        let output = self.0.stdout.take().context("it has an output")?;
        let seen = serde_json::from_reader(BufReader::new(output)).context("a reader failed")?;
        ensure!(self.0.wait()?.success(), "a reader failed");
        Ok(seen)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Who changes names.
struct Changer<'a> {
    options: &'a Options,
    dice: Dice,
    /// The file that each name stands for.
    files: [Vec<Option<u64>>; 2],
    made: u64,
}

impl Changer<'_> {
    fn new(options: &Options) -> Changer<'_> {
        let file = |n: u32| is_first(n).then_some(u64::from(n));
        let one: Vec<_> = (0..options.names).map(file).collect();
        // No name of the second directory is one of a file of the first.
        let files = |by: u64| one.iter().map(|f| f.map(|f| f * 2 + by)).collect();
        let made = u64::from(options.names) * 2;
        Changer { options, dice: Dice::new(options.seed), files: [files(0), files(1)], made }
    }

    fn run(mut self, changes: u64) -> Result<Vec<Change>> {
        let mut done = Vec::new();
        while (done.len() as u64) < changes {
            done.push(self.change()?);
            if self.dice.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(self.dice.below(500)));
            }
        }
        Ok(done)
    }

    fn any(&mut self) -> Name {
        (self.dice.below(2) as usize, self.dice.below(u64::from(self.options.names)) as u32)
    }

    fn file(&mut self, (dir, number): Name) -> &mut Option<u64> {
        &mut self.files[dir][number as usize]
    }

    fn change(&mut self) -> Result<Change> {
        let (name, other) = (self.any(), self.any());
        let (here, there) = (*self.file(name), *self.file(other));
        let (at, to) = (path(&self.options.dir, name), path(&self.options.dir, other));
        let begun = now();
        let (what, done, names) = match (here, there) {
            (Some(_), None) if self.dice.below(3) == 0 => {
                *self.file(other) = here;
                ("link", fs::hard_link(&at, &to), vec![(other, true)])
            }
            // A rename onto another name of the same file does nothing.
            (Some(_), _) if here != there && self.dice.below(3) > 0 => {
                *self.file(name) = None;
                *self.file(other) = here;
                ("rename", fs::rename(&at, &to), vec![(name, false), (other, true)])
            }
            (Some(_), _) => {
                *self.file(name) = None;
                ("remove", fs::remove_file(&at), vec![(name, false)])
            }
            (None, _) => {
                self.made += 1;
                *self.file(name) = Some(self.made);
                ("make", File::create_new(&at).map(drop), vec![(name, true)])
            }
        };
        done.with_context(|| format!("cannot {what} {}", at.display()))?;
        Ok(Change { begun, over: now(), names })
    }
}

/// A process that looks until its input ends, and prints what it has seen.
///
/// # Errors
/// Something that it could not look at.
pub fn reader(options: &Options) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    let mut dice = Dice::new(options.seed);
    let slow = dice.below(2) == 0;
    let mut open: [Option<File>; 2] = [None, None];
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let dir = dice.below(2) as usize;
        let at = options.dir.join(DIRS[dir]);
        let begun = now();
        let what = match dice.below(6) {
            0..3 => {
                let again = open[dir].take().filter(|_| dice.below(3) == 0);
                let file = again.map_or_else(|| File::open(&at), Ok)?;
                let listed = list(&file, &mut dice, slow)?;
                open[dir] = Some(file);
                What::Listing(listed)
            }
            3 => {
                let number = dice.below(u64::from(options.names)) as u32;
                What::Look(number, path(&options.dir, (dir, number)).try_exists()?)
            }
            _ => {
                let (mtime, ctime) = times(&at)?;
                What::Times(mtime, ctime)
            }
        };
        seen.push(Seen { dir, begun, over: now(), what });
    }
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &seen)?;
    Ok(out.flush()?)
}

/// The names of a directory from its start, by calls of some size; once it may go back to where it
/// was.
fn list(dir: &File, dice: &mut Dice, slow: bool) -> Result<Vec<u32>> {
    let mut buffer = vec![MaybeUninit::uninit(); 1024 << dice.below(6)];
    let mut names = Vec::new();
    // Where it was after each call, with so many names.
    let mut marks = vec![(0, 0)];
    let mut back = dice.below(3) == 0;
    rustix::fs::seek(dir, SeekFrom::Start(0))?;
    loop {
        let mut raw = RawDir::new(dir, &mut buffer);
        let mut last = None;
        while let Some(entry) = raw.next() {
            let entry = entry?;
            last = Some(entry.next_entry_cookie());
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                let number = std::str::from_utf8(&name[..name.len().min(6)])?.parse();
                names.push(number.with_context(|| format!("a stranger: {:?}", entry.file_name()))?);
            }
            if raw.is_buffer_empty() {
                break;
            }
        }
        let Some(last) = last else { return Ok(names) };
        marks.push((last, names.len()));
        if slow || dice.below(20) == 0 {
            std::thread::sleep(Duration::from_micros(dice.below(1000)));
        }
        if back && dice.below(4) == 0 {
            back = false;
            let (cookie, len) = marks[dice.below(marks.len() as u64) as usize];
            names.truncate(len);
            marks.retain(|(_, so_far)| *so_far <= len);
            rustix::fs::seek(dir, SeekFrom::Start(cookie))?;
        }
        if names.len() > 100_000 {
            bail!("a listing without end");
        }
    }
}
