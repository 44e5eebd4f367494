//! A Maildir: every message is one file, its flags are in its name.  A reader lists while another
//! program renames.  A message must be there once; a plain listing of several getdents(2) may
//! meet it under both names, or under none.

use crate::arena::{Arena, Transactions};
use crate::dice::Dice;
use crate::pair::{Busy, Middle, Other, Told};
use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// An empty directory, guarded if there are transactions
    #[arg(long)]
    dir: PathBuf,
    /// Listings that count
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
    /// Messages in the Maildir; so many that a listing takes several getdents
    #[arg(long, default_value_t = 2000)]
    messages: u32,
    /// Bytes that one getdents may give; 32 KiB, some 700 messages, is what the C library asks for
    #[arg(long, default_value_t = 32 << 10)]
    buffer: usize,
    #[command(flatten)]
    transactions: Transactions,
    /// The transaction is a frozen snapshot
    #[arg(long)]
    read_only: bool,
    /// Microseconds between two renames
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// Each round waits after its first getdents until a name has changed
    #[arg(long)]
    meet: bool,
}

/// What was seen.
#[derive(Serialize, Debug, Default)]
pub struct Report {
    /// Listings that count: all, or those whose transaction committed.
    pub rounds: u64,
    /// Of these: with a message that was not there.
    pub missing: u64,
    /// Of these: with a message that was there twice.
    pub twice: u64,
    /// Transactions that lost a conflict and were tried again.
    pub retries: u64,
    /// What the other program did in all.
    pub renames: u64,
    /// What it did in the middle of transactions.
    #[serde(flatten)]
    pub busy: Busy,
}

const FLAGS: [&str; 8] = ["", "S", "RS", "FRS", "F", "FS", "DS", "DFRST"];

fn name(message: u32, flags: usize) -> String {
    format!("{message:010}.host:2,{}", FLAGS[flags])
}

fn number(name: &[u8]) -> Option<u32> {
    std::str::from_utf8(name.get(..10)?).ok()?.parse().ok()
}

/// Fills the Maildir, lists it, and says what was seen.
///
/// # Errors
/// What of it could not be done.
pub fn run(options: &Options) -> Result<Report> {
    let cur = options.dir.join("cur");
    fs::create_dir_all(&cur).with_context(|| format!("cannot make {}", cur.display()))?;
    for message in 0..options.messages {
        let path = cur.join(name(message, 0));
        fs::write(&path, "message\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut other = Command::new(std::env::current_exe()?);
    other.arg("maildir-renamer").arg("--dir").arg(&options.dir);
    other.args(["--messages", &options.messages.to_string()]);
    other.args(["--pause", &options.pause.to_string()]);
    let mut other = Other::start(other)?;
    let arena = Arena::new(options.dir.clone(), options.transactions.by());
    let mut report = Report::default();
    while report.rounds < options.rounds {
        if other.is_gone() {
            bail!("the renaming program ended");
        }
        let list = |dir: &Path| {
            let cur = dir.join("cur");
            report.busy.while_at(&other, options.meet, |middle| list(&cur, options, middle))
        };
        let seen = arena.attempt(options.read_only, list).context("cannot list the Maildir")?;
        match seen {
            Some(seen) => {
                report.rounds += 1;
                report.busy.round();
                report.missing += u64::from(seen.contains(&0));
                report.twice += u64::from(seen.iter().any(|n| *n > 1));
            }
            None => report.retries += 1,
        }
    }
    report.renames = other.stop()?;
    Ok(report)
}

/// How often each message is there.
fn list(cur: &Path, options: &Options, middle: Middle<'_>) -> io::Result<Vec<u8>> {
    let mut seen = vec![0_u8; options.messages as usize];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, cur, flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(options.buffer);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut before = true;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if std::mem::take(&mut before) {
            middle()?;
        }
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let message = number(name).filter(|m| *m < options.messages);
        let message = message.ok_or_else(|| {
            let name = entry.file_name();
            io::Error::new(io::ErrorKind::InvalidData, format!("a stranger is there: {name:?}"))
        })?;
        seen[message as usize] = seen[message as usize].saturating_add(1);
    }
    Ok(seen)
}

/// The other program: changes the flags of one message after the other.
///
/// # Errors
/// A rename that failed: plain programs never do.
pub fn renamer(options: &Options) -> Result<()> {
    let cur = options.dir.join("cur");
    let mut flags = vec![0; options.messages as usize];
    let mut dice = Dice::new(1);
    let (told, mut renames) = (Told::new()?, 0);
    while !told.to_stop() {
        let message = dice.below(u64::from(options.messages)) as u32;
        let now: &mut usize = &mut flags[message as usize];
        let next = (*now + 1 + dice.below(FLAGS.len() as u64 - 1) as usize) % FLAGS.len();
        let (from, to) = (cur.join(name(message, *now)), cur.join(name(message, next)));
        fs::rename(&from, &to).with_context(|| format!("cannot rename {}", from.display()))?;
        *now = next;
        renames += 1;
        told.done(renames)?;
        if options.pause > 0 {
            std::thread::sleep(Duration::from_micros(options.pause));
        }
    }
    println!("{renames}");
    Ok(())
}
