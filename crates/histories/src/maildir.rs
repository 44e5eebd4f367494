//! A Maildir: every message is one file, its flags are in its name.  A reader lists while another
//! program renames.  A message must be there once; a plain listing of several getdents(2) may
//! meet it under both names, or under none.

use crate::arena::Arena;
use crate::dice::Dice;
use crate::pair::{Other, until_told};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// An empty directory, guarded if there is a --transaction
    #[arg(long)]
    dir: PathBuf,
    /// Listings that count
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
    /// Messages in the Maildir; so many that a listing takes several getdents
    #[arg(long, default_value_t = 2000)]
    messages: u32,
    /// The systx command: each listing is a transaction
    #[arg(long, value_name = "SYSTX")]
    transaction: Option<PathBuf>,
    /// The transaction is a frozen snapshot
    #[arg(long)]
    read_only: bool,
    /// Microseconds between two renames
    #[arg(long, default_value_t = 0)]
    pause: u64,
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
    /// What the other program did meanwhile.
    pub renames: u64,
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
    let arena = Arena::new(options.dir.clone(), options.transaction.clone());
    let mut report = Report::default();
    while report.rounds < options.rounds {
        if other.is_gone() {
            bail!("the renaming program ended");
        }
        let list = |dir: &Path| list(&dir.join("cur"), options.messages);
        let seen = arena.attempt(options.read_only, list).context("cannot list the Maildir")?;
        match seen {
            Some(seen) => {
                report.rounds += 1;
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
fn list(cur: &Path, messages: u32) -> std::io::Result<Vec<u8>> {
    let mut seen = vec![0_u8; messages as usize];
    for entry in fs::read_dir(cur)? {
        let entry = entry?.file_name();
        let message = number(entry.as_bytes()).filter(|m| *m < messages);
        let message = message.ok_or_else(|| {
            std::io::Error::new(ErrorKind::InvalidData, format!("a stranger is there: {entry:?}"))
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
    let (stop, mut renames) = (until_told(), 0);
    while !stop.load(Ordering::Relaxed) {
        let message = dice.below(u64::from(options.messages)) as u32;
        let now: &mut usize = &mut flags[message as usize];
        let next = (*now + 1 + dice.below(FLAGS.len() as u64 - 1) as usize) % FLAGS.len();
        let (from, to) = (cur.join(name(message, *now)), cur.join(name(message, next)));
        fs::rename(&from, &to).with_context(|| format!("cannot rename {}", from.display()))?;
        *now = next;
        renames += 1;
        if options.pause > 0 {
            std::thread::sleep(Duration::from_micros(options.pause));
        }
    }
    println!("{renames}");
    Ok(())
}
