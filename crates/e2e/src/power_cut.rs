//! A machine that loses its power while it commits.
//!
//! A small system boots once in QEMU, which records every write and every flush of its disk;
//! inside, `systx run` changes some hundred files and commits. Each trial takes the disk as it was
//! at first, replays the record up to a random request, and loses any part of what no flush had
//! covered ([`log`]). What is left is recovered: mostly by `systx recover` on this machine, over a
//! loop mount, and now and then by booting the system again, whose first service is what
//! `systx-recover.service` is. Then the whole tree must be the one from before, or the one that the
//! same work gives without systx; after the run has reported success only the latter.

pub mod log;
pub mod machine;

use crate::lab::{PREFIX, RUNTIME_VARIABLE};
use crate::lab::{base, chmod, end, find_program, processes_with, systx_binary, tool, unmount};
use crate::random::Random;
use crate::tree::Tree;
use log::{Log, Lost};
use machine::{DISK_SIZE, MARKS, Machine, make_image, tail};
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A result with a sentence for what is wrong.
pub type Res<T> = Result<T, String>;

/// The largest record that is read.
const LARGEST_LOG: u64 = 256 << 20;

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many power cuts.
    pub trials: usize,
    /// How many of them are recovered by booting: one of so many.
    pub boot_every: usize,
    /// For the choice of cuts.
    pub seed: u64,
    /// The disk ignores flushes: trials must fail.
    pub lie: bool,
    /// An unpacked kernel package.
    pub kernel: PathBuf,
    /// How long a machine may run.
    pub limit: Duration,
}

/// Which of the two trees it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    After,
    Between,
}

/// What the trials showed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests and flushes in the record.
    pub requests: (usize, usize),
    /// Cuts.
    pub trials: usize,
    /// Of those, recovered by booting.
    pub booted: usize,
    /// Cuts after the run had reported success.
    pub acknowledged: usize,
    /// What the disk showed before recovery: the tree from before.
    pub before: usize,
    /// The tree after the commit.
    pub after: usize,
    /// Neither.
    pub between: usize,
    /// Recoveries that finished a transaction.
    pub finished: usize,
    /// Trees that were from before the run once recovery was over.
    pub ended_before: usize,
    /// Trees that were after the commit once recovery was over.
    pub ended_after: usize,
    /// Cuts that lost at least a sector.
    pub lossy: usize,
    /// Sectors that were lost in all.
    pub sectors: usize,
    /// What is wrong, by trial.
    pub wrong: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self;
        writeln!(f, "{} requests, {} flushes recorded", r.requests.0, r.requests.1)?;
        writeln!(
            f,
            "{} power cuts, {} of them after success was reported; {} lost something ({} sectors)",
            r.trials, r.acknowledged, r.lossy, r.sectors
        )?;
        writeln!(
            f,
            "the disk showed: {} before, {} after, {} between",
            r.before, r.after, r.between
        )?;
        writeln!(
            f,
            "recovery, {} times by booting, finished {} transactions: {} before, {} after",
            r.booted, r.finished, r.ended_before, r.ended_after
        )?;
        for wrong in &r.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        write!(f, "{} wrong", r.wrong.len())
    }
}

/// A directory for images and mount points, removed at the end; the next end-to-end test removes
/// what a killed one left.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Res<Scratch> {
        let dir = base().join(format!("{PREFIX}{}.power", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        let scratch = Scratch(dir);
        for sub in ["mnt", "run", "image.d"] {
            fs::create_dir(scratch.path(sub)).map_err(|e| e.to_string())?;
        }
        chmod(&scratch.path("run"), 0o700);
        Ok(scratch)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn mount<'a>(&'a self, image: &Path, how: &str) -> Res<Mounted<'a>> {
        let mnt = self.path("mnt");
        tool(Command::new("mount").args(["-t", "ext4", "-o", how]).arg(image).arg(&mnt))?;
        Ok(Mounted(self))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {e}", self.0.display());
        }
    }
}

/// An image that is mounted, with a daemon of its own as soon as systx is asked.
struct Mounted<'a>(&'a Scratch);

impl Mounted<'_> {
    fn root(&self) -> PathBuf {
        self.0.path("mnt")
    }

    fn tree(&self) -> Res<Tree> {
        // A damaged file system cannot be read; that is what is wrong with it then.
        std::panic::catch_unwind(|| Tree::capture(self.root())).map_err(|panic| {
            let said = panic.downcast::<String>().map(|s| *s);
            format!("the tree cannot be read: {}", said.unwrap_or_default())
        })
    }

    /// Recovers, by a daemon that has not seen this yet; how many transactions were finished.
    fn recover(&self) -> Res<u64> {
        self.end_daemon();
        let run = self.0.path("run");
        let mut systx = Command::new(systx_binary());
        systx
            .args(["recover", "--json", "--root"])
            .arg(self.root())
            .current_dir("/")
            .env(RUNTIME_VARIABLE, &run)
            .env_remove("SYSTX_TXN");
        let done = systx.stdin(Stdio::null()).output().map_err(|e| format!("systx: {e}"))?;
        let [said, wrong] =
            [done.stdout, done.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        if !done.status.success() {
            return Err(format!("systx recover: {}: {said}{wrong}", done.status));
        }
        finished(&said)
    }

    fn end_daemon(&self) {
        end(&processes_with(&self.0.path("run")));
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        self.end_daemon();
        unmount(&self.root());
    }
}

/// How many transactions a recovery finished, as it tells in JSON; nothing else may have been met.
fn finished(said: &str) -> Res<u64> {
    let lines = said.lines().map(str::trim).filter(|l| l.starts_with('{'));
    let told = lines
        .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
        .find_map(|v| v.get("recovered").cloned())
        .ok_or_else(|| format!("no word of what was recovered: {}", tail(said)))?;
    let stores = match &told {
        serde_json::Value::Array(stores) => stores.clone(),
        one => vec![one.clone()],
    };
    let mut sum = 0;
    for store in &stores {
        if store["outside"].as_array().is_none_or(|o| !o.is_empty()) {
            return Err(format!("recovery met changes from outside: {store}"));
        }
        sum += store["finished"].as_u64().ok_or("no number of finished transactions")?;
    }
    Ok(sum)
}

/// What was recorded, and the two trees between which nothing may be.
struct Recorded {
    machine: Machine,
    image: Vec<u8>,
    log: Log,
    before: Tree,
    after: Tree,
    begins: usize,
    committed: usize,
}

impl Recorded {
    fn state(&self, tree: &Tree) -> State {
        if *tree == self.before {
            State::Before
        } else if *tree == self.after {
            State::After
        } else {
            State::Between
        }
    }
}

/// What is missing on this machine, if something is.
pub fn missing(kernel: &Path) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can mount the image".into());
    }
    let tools = ["qemu-system-x86_64", "busybox", "mkfs.ext4", "e2fsck", "ldd", "chroot"];
    let tool = tools.iter().find(|t| find_program(t).is_none());
    tool.map(|t| format!("there is no {t}")).or_else(|| {
        let boot = kernel.join("boot");
        (!boot.is_dir()).then(|| format!("there is no kernel in {}", boot.display()))
    })
}

/// Boots the machine once and records.
fn record(options: &Options, scratch: &Scratch) -> Res<Recorded> {
    let text = |e: std::io::Error| e.to_string();
    let (image, disk) = (scratch.path("image"), scratch.path("disk"));
    make_image(&scratch.path("image.d"), &image, &mut Random::new(1))?;
    let machine = Machine::new(&scratch.0, &options.kernel, options.limit)?;
    let log = scratch.path("log");
    fs::copy(&image, &disk).map_err(text)?;
    let before = scratch.mount(&image, "loop,ro")?.tree()?;
    let said = machine.boot(&disk, Some(&log), "run")?;
    for line in ["power: recovered 0", "power: committed", "power: off"] {
        if !said.lines().any(|l| l.trim() == line) {
            return Err(format!("the machine did not say \"{line}\" but\n  {}", tail(&said)));
        }
    }
    let seen = scratch.mount(&disk, "loop,ro")?.tree()?;
    let after = natively(scratch, &image, &disk)?;
    let wrong = after.differences(&seen);
    if !wrong.is_empty() {
        return Err(format!("a run gives other files than the same work without: {wrong:#?}"));
    }
    if fs::metadata(&log).map_err(text)?.len() > LARGEST_LOG {
        return Err("the record is too large".into());
    }
    let log = Log::parse(fs::read(&log).map_err(text)?, DISK_SIZE)?;
    let image = fs::read(&image).map_err(text)?;
    // The record is whole: it leads to the disk that the machine left.
    let mut replayed = image.clone();
    log.replay(&mut replayed);
    if replayed != fs::read(&disk).map_err(text)? {
        return Err("the record does not lead to what the machine left on its disk".into());
    }
    let place = |n: usize| {
        let (at, text) = MARKS[n];
        log.position(at, text).ok_or("the record has no mark of the run")
    };
    let (begins, committed) = (place(0)?, place(1)?);
    Ok(Recorded { machine, image, log, before, after, begins, committed })
}

/// The tree that the same work gives without systx.
fn natively(scratch: &Scratch, image: &Path, disk: &Path) -> Res<Tree> {
    let copy = disk.with_extension("native");
    fs::copy(image, &copy).map_err(|e| e.to_string())?;
    let mounted = scratch.mount(&copy, "loop")?;
    let mut change = Command::new("chroot");
    change.arg(mounted.root()).args(["/bin/sh", "/marks/change"]).env("PATH", "/bin:/usr/sbin");
    tool(&mut change)?;
    let tree = mounted.tree();
    drop(mounted);
    let _ = fs::remove_file(copy);
    tree
}

/// Writes a disk to a file, with holes where it has zeros.
fn write_disk(disk: &[u8], to: &Path) -> Res<()> {
    let text = |e: std::io::Error| format!("{}: {e}", to.display());
    let file = File::create(to).map_err(text)?;
    file.set_len(disk.len() as u64).map_err(text)?;
    const PIECE: usize = 1 << 16;
    for (n, piece) in disk.chunks(PIECE).enumerate() {
        if piece.iter().any(|b| *b != 0) {
            file.write_all_at(piece, (n * PIECE) as u64).map_err(text)?;
        }
    }
    Ok(())
}

/// What one trial showed.
struct Shown {
    state: State,
    finished: u64,
    end: State,
}

/// Recovers a disk after a power cut, and judges what is there then.
fn judge(
    recorded: &Recorded,
    scratch: &Scratch,
    disk: &[u8],
    acked: bool,
    boot: bool,
) -> Res<Shown> {
    let image = scratch.path("disk");
    write_disk(disk, &image)?;
    let mut mounted = scratch.mount(&image, "loop")?;
    let state = recorded.state(&mounted.tree()?);
    let finished = if boot {
        drop(mounted);
        // The machine gets the disk as the power cut left it.
        write_disk(disk, &image)?;
        let said = recorded.machine.boot(&image, None, "recover")?;
        for line in ["power: recovered 0", "power: off"] {
            if !said.lines().any(|l| l.trim() == line) {
                return Err(format!("the machine did not say \"{line}\" but\n  {}", tail(&said)));
            }
        }
        mounted = scratch.mount(&image, "loop")?;
        finished(&said)?
    } else {
        mounted.recover()?
    };
    if mounted.recover()? != 0 {
        return Err("a second recovery found something to finish".into());
    }
    let tree = mounted.tree()?;
    drop(mounted);
    tool(Command::new("e2fsck").arg("-fn").arg(&image))?;
    let end = recorded.state(&tree);
    if end == State::Between || (end == State::Before && (acked || state == State::After)) {
        let what = match end {
            State::Between => "neither before nor after the commit",
            _ if acked => "before the commit, after success was reported",
            _ => "before the commit, where all of it could be seen already",
        };
        let mut nearest = recorded.after.differences(&tree);
        if !acked && end == State::Between {
            let other = recorded.before.differences(&tree);
            if other.len() < nearest.len() {
                nearest = other;
            }
        }
        let some = nearest.iter().take(10).cloned().collect::<Vec<_>>().join("\n  ");
        return Err(format!("{what}: {} differences\n  {some}", nearest.len()));
    }
    Ok(Shown { state, finished, end })
}

/// Where the power goes: in one trial of eight anywhere, else between the begin of the run and the
/// end.
fn moment(recorded: &Recorded, dice: &mut Random) -> usize {
    let all = recorded.log.entries().len();
    let from = if dice.below(8) == 0 { 0 } else { recorded.begins };
    from + 1 + dice.below((all - from) as u64) as usize
}

/// Records, and cuts the power so many times; `tell` hears of each trial.
///
/// # Errors
/// Nothing could be recorded.
pub fn power_cuts(options: &Options, mut tell: impl FnMut(&str)) -> Res<Report> {
    let scratch = Scratch::new()?;
    let recorded = record(options, &scratch)?;
    let entries = recorded.log.entries();
    let flushes = entries.iter().filter(|e| e.flush).count();
    let mut report = Report { requests: (entries.len(), flushes), ..Report::default() };
    tell(&format!(
        "recorded: {} requests, {flushes} flushes; the run begins at {}, has committed at {}",
        entries.len(),
        recorded.begins,
        recorded.committed
    ));
    for trial in 0..options.trials {
        // Each trial has dice of its own; the first numbers of near seeds are alike.
        let mut dice = Random::new(options.seed << 21 | (trial as u64) << 1);
        let seed = (0..8).fold(0, |_, _| dice.word());
        let mut dice = Random::new(seed);
        let at = moment(&recorded, &mut dice);
        let mut disk = recorded.image.clone();
        let lost = recorded.log.cut(&mut disk, at, options.lie, &mut dice);
        let acked = at > recorded.committed;
        let boot = options.boot_every > 0 && trial % options.boot_every == options.boot_every - 1;
        let shown = judge(&recorded, &scratch, &disk, acked, boot);
        count(&mut report, &lost, acked, boot, &shown);
        let how = if boot { ", booted" } else { "" };
        let what = format!(
            "trial {trial}: cut after request {at}, {} of {} unflushed writes damaged{how}",
            lost.damaged, lost.volatile
        );
        match shown {
            Ok(s) => tell(&format!("{what}: {:?}, {} finished, {:?}", s.state, s.finished, s.end)),
            Err(why) => {
                tell(&format!("{what}: WRONG"));
                report.wrong.push(format!("{what}: {why}"));
            }
        }
    }
    Ok(report)
}

fn count(report: &mut Report, lost: &Lost, acked: bool, boot: bool, shown: &Res<Shown>) {
    report.trials += 1;
    report.booted += usize::from(boot);
    report.acknowledged += usize::from(acked);
    report.lossy += usize::from(lost.sectors > 0);
    report.sectors += lost.sectors;
    let Ok(shown) = shown else { return };
    match shown.state {
        State::Before => report.before += 1,
        State::After => report.after += 1,
        State::Between => report.between += 1,
    }
    report.finished += shown.finished as usize;
    match shown.end {
        State::After => report.ended_after += 1,
        _ => report.ended_before += 1,
    }
}

/// Runs this program again in a mount namespace of its own, unless it is in one: a namespace that
/// somebody makes meanwhile would keep our mounts. Nothing if it is.
///
/// # Errors
/// It cannot be started.
pub fn in_own_namespace() -> Res<Option<bool>> {
    const INSIDE: &str = "SYSTX_POWER_CUT_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return Ok(None);
    }
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(me)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .status()
        .map_err(|e| format!("unshare: {e}"))?;
    Ok(Some(status.success()))
}
