//! Access, then open: a privileged program asks whether its user may read a file, and then opens it
//! by the same path. Meanwhile that user lets the path lead elsewhere. A maze of directories and
//! symbolic links, as Borisov, Johnson, Sastry and Wagner built them (USENIX Security 2005), makes
//! each walk of the path take long, and so the time between the two.

use crate::arena::{Arena, Transactions};
use crate::pair::{Busy, Middle, Other, Told};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, openat, statat};
use serde::Serialize;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// An empty directory, guarded if there are transactions
    #[arg(long)]
    dir: PathBuf,
    /// Attempts that count: the check said yes
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
    #[command(flatten)]
    transactions: Transactions,
    /// The transaction is a frozen snapshot
    #[arg(long)]
    read_only: bool,
    /// Microseconds between two flips
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// Each round waits between its check and its open until the link has changed
    #[arg(long)]
    meet: bool,
    /// How the victim asks
    #[arg(long, value_enum, default_value_t = Check::Access)]
    check: Check,
    /// Chains of directories, each entered by a symbolic link
    #[arg(long, default_value_t = 8)]
    chains: u32,
    /// Directories in a chain
    #[arg(long, default_value_t = 60)]
    depth: u32,
    /// The user who attacks
    #[arg(long, default_value_t = 12021)]
    attacker: u32,
}

/// How the victim asks whether its user may read the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Check {
    /// access(2), by the real user id, as set-id programs do.
    Access,
    /// stat(2): the file belongs to the user.
    Owner,
}

/// What was seen.
#[derive(Serialize, Debug, Default)]
pub struct Report {
    /// The check said yes, and the transaction, if there is one, committed.
    pub rounds: u64,
    /// Of these: the secret was read.
    pub stolen: u64,
    /// The check said no.
    pub refused: u64,
    /// Transactions that lost a conflict and were tried again.
    pub retries: u64,
    /// What the attacker did in all.
    pub flips: u64,
    /// What the attacker did in the middle of transactions, also of those in which the check said
    /// no.
    #[serde(flatten)]
    pub busy: Busy,
}

const SECRET: &str = "secret\n";
/// Below the attacker's directory: it leads to one of the two.
const SWITCH: &str = "switch";

/// The path through the maze, relative to the arena.
fn entrance() -> &'static str {
    "user/chain0"
}

/// Each chain ends with a link to the next one, the last with the switch.
fn build(options: &Options) -> Result<()> {
    let dir = &options.dir;
    let user = dir.join("user");
    fs::write(dir.join("private"), SECRET)?;
    fs::set_permissions(dir.join("private"), Permissions::from_mode(0o600))?;
    fs::create_dir(&user)?;
    chown(&user, Some(options.attacker), Some(options.attacker))?;
    fs::write(user.join("public"), "public\n")?;
    chown(user.join("public"), Some(options.attacker), Some(options.attacker))?;
    let mut up = String::new();
    for _ in 0..=options.depth {
        up.push_str("../");
    }
    for chain in 0..options.chains {
        let top = user.join(format!("dirs{chain}"));
        let mut path = top.clone();
        let mut inside = format!("dirs{chain}");
        for _ in 0..options.depth {
            path.push("d");
            inside.push_str("/d");
        }
        fs::create_dir_all(&path)?;
        let next = match chain + 1 {
            last if last == options.chains => format!("{up}{SWITCH}"),
            next => format!("{up}chain{next}"),
        };
        symlink(next, path.join("exit"))?;
        symlink(format!("{inside}/exit"), user.join(format!("chain{chain}")))?;
    }
    symlink("public", user.join(SWITCH))?;
    lchown(user.join(SWITCH), Some(options.attacker), Some(options.attacker))?;
    Ok(())
}

/// Builds the maze, lets the victim ask and open while the attacker flips, and says what was seen.
///
/// # Errors
/// What of it could not be done.
pub fn run(options: &Options) -> Result<Report> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root can play the privileged victim");
    }
    if options.chains == 0 || options.chains > 19 {
        bail!("from 1 to 19 chains: the kernel follows at most 40 symbolic links");
    }
    build(options).with_context(|| format!("cannot build a maze in {}", options.dir.display()))?;
    let me = std::env::current_exe()?;
    let attacker = options.attacker.to_string();
    let mut other = Command::new("setpriv");
    other.args([&format!("--reuid={attacker}"), &format!("--regid={attacker}")]);
    other.args(["--clear-groups", "--"]).arg(&me).arg("access-attacker");
    other.arg("--dir").arg(&options.dir).args(["--pause", &options.pause.to_string()]);
    let mut other = Other::start(other)?;
    let mut report = Report::default();
    let arena = Arena::new(options.dir.clone(), options.transactions.by());
    while report.rounds < options.rounds {
        if other.is_gone() {
            bail!("the attacker ended");
        }
        let got = arena.attempt(options.read_only, |dir| {
            report.busy.while_at(&other, options.meet, |middle| attempt(options, dir, middle))
        });
        match got.context("the victim failed")? {
            Some(None) => {
                report.refused += 1;
                report.busy.round();
            }
            Some(Some(content)) => {
                report.rounds += 1;
                report.busy.round();
                report.stolen += u64::from(content == SECRET);
            }
            None => report.retries += 1,
        }
    }
    report.flips = other.stop()?;
    Ok(report)
}

/// What the victim read after the check said yes.
fn attempt(options: &Options, dir: &Path, middle: Middle<'_>) -> std::io::Result<Option<String>> {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    // Only the maze is walked as the user: to the arena leads a path of ours.
    let dir = openat(CWD, dir, flags, Mode::empty())?;
    let may = match options.check {
        Check::Access => accessat(&dir, entrance(), Access::READ_OK, AtFlags::empty())
            .map(|()| true)
            .or_else(|e| if e == rustix::io::Errno::ACCESS { Ok(false) } else { Err(e) })?,
        Check::Owner => statat(&dir, entrance(), AtFlags::empty())?.st_uid == options.attacker,
    };
    if !may {
        return Ok(None);
    }
    middle()?;
    let file = openat(&dir, entrance(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut content = String::new();
    File::from(file).read_to_string(&mut content)?;
    Ok(Some(content))
}

/// The victim as a set-id program: the real user is the attacker, the effective one root.
///
/// # Errors
/// What of it could not be done.
pub fn start(options: &Options, args: &[std::ffi::OsString]) -> Result<i32> {
    let mut victim = Command::new("setpriv");
    victim.arg(format!("--ruid={}", options.attacker)).arg("--");
    victim.arg(std::env::current_exe()?).arg("access-victim").args(args);
    let status = victim.status().context("cannot start setpriv (package util-linux)")?;
    Ok(status.code().unwrap_or(1))
}

/// The attacker: lets the switch lead to the secret and back.
///
/// # Errors
/// A flip that failed: plain programs never do.
pub fn attacker(options: &Options) -> Result<()> {
    let user = options.dir.join("user");
    let (told, mut flips) = (Told::new()?, 0_u64);
    while !told.to_stop() {
        let target = if flips % 2 == 0 { "../private" } else { "public" };
        let (new, old) = (user.join("switch.new"), user.join(SWITCH));
        symlink(target, &new).context("cannot make a symbolic link")?;
        fs::rename(&new, &old).context("cannot flip the switch")?;
        flips += 1;
        told.done(flips)?;
        if options.pause > 0 {
            std::thread::sleep(Duration::from_micros(options.pause));
        }
    }
    println!("{flips}");
    Ok(())
}
