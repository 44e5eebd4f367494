//! Do real file systems keep to the crash model, and does the store survive on them? Runs the store
//! on a real file system over a loop device over a recording disk ([`disk`]), rebuilds what the
//! disk could hold after a power cut at random instants, mounts that, recovers, and compares with
//! the oracle.
//!
//! `loop-crash [--fs ext4|ext4-nojournal|xfs|btrfs] [--states N] [--txns N] [--seed N] [--lie yes]`
//!
//! `--lie yes` lets the disk ignore every flush: then the run must fail, or it shows nothing.
//!
//! Needs root, /dev/fuse, a free loop device, the file system's mkfs, and e2fsck. Takes everything
//! down again, also after a failure. *Limit*: only writes that the kernel did issue are left out or
//! kept; a hazard that needs other write-back timing stays hidden.

mod disk;

use disk::{BLOCK, Blocks, Disk, Event, put};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use systx_sim::model::{Draft, Model};
use systx_sim::suite::{self, Session};
use systx_sim::{Rng, tree, workload};
use systx_store::Instance;
use systx_store::io::Io;
use systx_store::real::RealIo;

type Res<T> = Result<T, String>;

struct Options {
    fs: String,
    states: usize,
    txns: usize,
    seed: u64,
    lie: bool,
}

fn options() -> Res<Options> {
    let mut o = Options { fs: "ext4".into(), states: 100, txns: 25, seed: 1, lie: false };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|e| format!("{name} {value}: {e}"));
        match &*name {
            "--fs" => o.fs = value,
            "--states" => o.states = number()? as usize,
            "--txns" => o.txns = number()? as usize,
            "--seed" => o.seed = number()?,
            "--lie" => o.lie = value == "yes",
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(o)
}

/// Runs a program; its standard output.
fn run(program: &str, args: &[&str]) -> Res<String> {
    let done = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    // e2fsck says 1 for "errors corrected".
    if done.status.success() || (program == "e2fsck" && done.status.code() == Some(1)) {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    Err(format!("{program} {args:?}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr)))
}

/// A directory for mount points and images, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Res<Scratch> {
        let path = std::env::temp_dir();
        let base = if Path::new("/dev/shm").is_dir() { Path::new("/dev/shm") } else { &path };
        let path = base.join(format!("systx-loop-crash-{}", std::process::id()));
        for dir in ["disk", "mnt"] {
            std::fs::create_dir_all(path.join(dir))
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for name in ["image", "disk", "mnt"] {
            let path = self.0.join(name);
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        }
        if let Err(e) = std::fs::remove_dir(&self.0) {
            eprintln!("cannot remove {}: {e}", self.0.display());
        }
    }
}

/// A loop device, given back at the end.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Res<Loop> {
        run("losetup", &["--find", "--show", &file.to_string_lossy()]).map(Loop)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(e) = run("losetup", &["--detach", &self.0]) {
            eprintln!("{e}");
        }
    }
}

/// A mounted file system, unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn of(device: &Loop, dir: PathBuf) -> Res<Mount> {
        run("mount", &[&device.0, &dir.to_string_lossy()])?;
        Ok(Mount(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(e) = run("umount", &[&self.0.to_string_lossy()]) {
            eprintln!("{e}");
        }
    }
}

fn mkfs(fs: &str, device: &str) -> Res<String> {
    match fs {
        "ext4" => run("mkfs.ext4", &["-q", "-F", device]),
        "ext4-nojournal" => run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", device]),
        "xfs" => run("mkfs.xfs", &["-q", "-f", device]),
        "btrfs" => run("mkfs.btrfs", &["-q", "-f", device]),
        other => Err(format!("no file system {other}")),
    }
}

fn size_of(fs: &str) -> u64 {
    match fs {
        "xfs" => 320 << 20,
        "btrfs" => 160 << 20,
        _ => 48 << 20,
    }
}

/// What the oracle knows about a recorded run.
struct Recorded {
    base: Blocks,
    log: Vec<Event>,
    models: Vec<Model>,
}

/// Runs the workload on the real file system.
fn record(o: &Options, scratch: &Scratch) -> Res<Recorded> {
    let text = |e: std::io::Error| e.to_string();
    let disk = Disk::mount(&scratch.0.join("disk"), size_of(&o.fs), None).map_err(text)?;
    let device = Loop::over(&disk.file())?;
    mkfs(&o.fs, &device.0)?;
    let mounted = Mount::of(&device, scratch.0.join("mnt"))?;
    let io: Arc<dyn Io> = Arc::new(RealIo::open(&mounted.0).map_err(text)?);
    workload::base(&*io).map_err(text)?;
    drop(Session::open(io.clone(), instance(&mounted)?)?);
    io.sync_fs().map_err(text)?;
    let base = Model::read(&*io, &suite::hidden).map_err(text)?;
    let work = workload::random(&base, o.txns, 4, o.seed);
    let drafts = workload::drafts(&base, &work).map_err(|_| "illegal workload")?;
    let blocks = disk.restart_log();
    let mut rng = Rng::new(o.seed);
    let mut session = Session::open(io.clone(), instance(&mounted)?)?;
    for (n, draft) in drafts.iter().enumerate() {
        disk.mark((n as u64) << 32 | (n as u64 + 1));
        let lsn = session.commit(draft, n as u64, 20_000)?;
        disk.mark((n as u64 + 1) << 32 | (n as u64 + 1));
        stray_sync(&*io, &mut rng);
        session.apply(lsn)?;
        stray_sync(&*io, &mut rng);
        if rng.below(3) == 0 {
            session.checkpoint()?;
        }
    }
    let log = disk.log();
    drop((session, io, mounted, device, disk));
    let models = std::iter::once(base).chain(drafts.iter().map(Draft::after).cloned()).collect();
    Ok(Recorded { base: blocks, log, models })
}

/// The kernel runs on over all power cuts: what was mounted again is told by this alone.
fn instance(mounted: &Mount) -> Res<Instance> {
    let dir = File::open(&mounted.0).map_err(|e| e.to_string())?;
    Ok(Instance::of(dir.as_fd()))
}

/// What other programs sync reaches the disk early.
fn stray_sync(io: &dyn Io, rng: &mut Rng) {
    let names = [&b"A"[..], b"B", b"C", b".systx"];
    if let Some(name) = names.get(rng.below(8))
        && let Ok(dir) = io.open_dir(&io.root(), name)
    {
        let _ = io.sync_all(&dir);
    }
}

/// The disk after a power cut at event `end`; with the transactions acknowledged and submitted.
fn cut(recorded: &Recorded, end: usize, lie: bool, rng: &mut Rng) -> (Blocks, u64) {
    let before = &recorded.log[..end];
    let flushed = before.iter().rposition(|e| matches!(e, Event::Flush)).map_or(0, |at| at + 1);
    let flushed = if lie { 0 } else { flushed };
    let mut blocks = recorded.base.clone();
    let mut mark = 0;
    let bias = rng.below(5);
    for (n, event) in before.iter().enumerate() {
        match event {
            Event::Mark(m) => mark = *m,
            Event::Flush => {}
            Event::Write(list) if n < flushed => put(&mut blocks, list),
            Event::Write(list) => {
                // Some of the unflushed writes arrive, and of those some in part.
                let whole = rng.below(4) < bias;
                let some: Vec<_> =
                    list.iter().filter(|_| whole || rng.below(2) == 0).cloned().collect();
                if whole || rng.below(2) == 0 {
                    put(&mut blocks, &some);
                }
            }
        }
    }
    (blocks, mark)
}

/// Mounts a state of the disk, recovers, compares.
fn check(
    o: &Options,
    scratch: &Scratch,
    recorded: &Recorded,
    blocks: &Blocks,
    mark: u64,
) -> Res<usize> {
    let text = |e: std::io::Error| e.to_string();
    let image = scratch.0.join("image");
    let mut file = File::create(&image).map_err(text)?;
    file.set_len(size_of(&o.fs)).map_err(text)?;
    for (n, block) in blocks {
        file.seek(SeekFrom::Start(n * BLOCK as u64)).map_err(text)?;
        file.write_all(&block[..]).map_err(text)?;
    }
    drop(file);
    let device = Loop::over(&image)?;
    if o.fs == "ext4-nojournal" {
        run("e2fsck", &["-fy", &device.0])?;
    }
    let mounted = Mount::of(&device, scratch.0.join("mnt"))?;
    let io: Arc<dyn Io> = Arc::new(RealIo::open(&mounted.0).map_err(text)?);
    let session = Session::open(io.clone(), instance(&mounted)?);
    let session = session.map_err(|e| format!("recovery: {e}"))?;
    let found = tree::read(&*io, &suite::hidden).map_err(text)?;
    let finished = session.finished();
    drop(session);
    let (acked, submitted) = ((mark >> 32) as usize, mark as u32 as usize);
    let trees: Vec<_> = recorded.models[acked..=submitted].iter().map(Model::tree).collect();
    if trees.contains(&found) {
        return Ok(finished);
    }
    let diffs: Vec<_> = trees.iter().map(|t| tree::diff(&found, t)).collect();
    Err(format!("neither {acked} nor {submitted}:\n{}", diffs.join("\n")))
}

fn all(o: &Options) -> Res<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("mounting needs root".into());
    }
    let scratch = Scratch::new()?;
    let recorded = record(o, &scratch)?;
    let flushes = recorded.log.iter().filter(|e| matches!(e, Event::Flush)).count();
    println!("{}: {} events, {flushes} flushes", o.fs, recorded.log.len());
    let mut rng = Rng::new(o.seed);
    let mut recovered = 0;
    for n in 0..o.states {
        let end = 1 + rng.below(recorded.log.len());
        let (blocks, mark) = cut(&recorded, end, o.lie, &mut rng);
        let finished = check(o, &scratch, &recorded, &blocks, mark)
            .map_err(|e| format!("seed {}, state {n}, cut at event {end}: {e}", o.seed))?;
        recovered += usize::from(finished > 0);
    }
    println!("{}: {} states survived, {recovered} of them by recovery", o.fs, o.states);
    Ok(())
}

/// Runs this program again in a mount namespace of its own: else a namespace that somebody else
/// makes meanwhile would keep our mounts, and a file system cannot be mounted twice.
fn in_own_namespace() -> Res<Option<ExitCode>> {
    const INSIDE: &str = "SYSTX_LOOP_CRASH_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return Ok(None);
    }
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(me)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .map_err(|e| format!("unshare: {e}"))?;
    Ok(Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

fn main() -> ExitCode {
    match in_own_namespace() {
        Ok(None) => {}
        Ok(Some(code)) => return code,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    }
    match options().and_then(|o| all(&o)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
