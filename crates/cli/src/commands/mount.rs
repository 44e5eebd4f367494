//! `systx mount` and `systx umount`: guarded directories, and log-structured volumes.

use crate::args::{Mount, TransportArg, Umount};
use crate::commands::snapshots;
use crate::context;
use crate::output::{self, Out};
use crate::problem::{CONFLICT, Problem, USAGE};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use systx_protocol::call;
use systx_protocol::modes;
use systx_protocol::runtime::Runtime;
use systx_protocol::{
    FailureKind, ForThreads, GuardedDir, Holder, HostPath, MountVolume, Mounted, MountedVolume,
    Policy, Transport, Unmounted,
};
use systx_session::mountinfo;

/// How long a change may be held if nobody says so.
const STALL_MS: u64 = 500;

/// Holders that are named one by one, and notes that are told.
const MOST: usize = 5;

/// Guards a directory, or lists the guarded ones.
///
/// # Errors
/// It cannot be guarded, or processes hold something in it.
pub fn mount(args: &Mount, out: Out) -> Result<i32, Problem> {
    let Some(dir) = &args.dir else { return list(out) };
    modes::check(&args.modes(), dir.display()).map_err(|f| Problem::from(f).code(USAGE))?;
    if let Some(on) = &args.on {
        return mount_volume(dir, on, args, out);
    }
    if std::fs::metadata(dir).is_ok_and(|found| !found.is_dir()) {
        return Err(Problem::new(format!("{} is not a directory", dir.display()))
            .hint("systx mount FILE DIR mounts a log-structured volume on a directory"));
    }
    let dir = resolved(dir)?;
    let request = systx_protocol::Mount {
        dir: HostPath::from(dir.as_path()),
        store: args.store.as_deref().map(absolute).transpose()?.map(HostPath::from),
        mnt_ns: namespace()?,
        force: args.force,
        transport: transport(args.transport),
        stall_ms: args.stall.unwrap_or(STALL_MS),
        policy: args.policy.map(Policy::from).unwrap_or_default(),
        routed: args.routed,
        fast_open: args.fast_open,
        certifier: args.certifier.as_deref().map(absolute).transpose()?.map(HostPath::from),
    };
    let guarded = match context::connect()?.ask(&request)? {
        Mounted::Guarded(guarded) => guarded,
        Mounted::InUse { holders } => {
            let text = format!(
                "{} is not guarded: processes hold something in it, which they could change past \
                 the guard",
                dir.display()
            );
            return Err(in_use(text, holders).hint("end them, or --force: the rest is guarded"));
        }
    };
    if out.json {
        out.json("mounted", &guarded);
        return Ok(0);
    }
    tell_holders(out, "past the guard", &guarded.past);
    for note in guarded.notes.iter().take(MOST) {
        out.warn(note);
    }
    if let more @ 1.. = guarded.notes.len().saturating_sub(MOST) {
        out.warn(&format!("and {more} more ways past the guard (--json names them)"));
    }
    out.say(&format!("{} is guarded", guarded.dir));
    Ok(0)
}

fn transport(how: TransportArg) -> Transport {
    match how {
        TransportArg::Auto => Transport::Auto,
        TransportArg::IoUring => Transport::IoUring,
        TransportArg::Dev => Transport::Dev,
    }
}

/// Mounts a log-structured volume.
fn mount_volume(file: &Path, on: &Path, args: &Mount, out: Out) -> Result<i32, Problem> {
    let threads = for_threads(args)?;
    let snapshot = match &args.at {
        Some(at) => Some(snapshots::find(file, at)?),
        None => None,
    };
    let request = MountVolume {
        file: HostPath::from(absolute(file)?),
        dir: HostPath::from(absolute(on)?),
        mnt_ns: namespace()?,
        transport: transport(args.transport),
        snapshot,
        threads,
    };
    let mounted = context::connect()?.ask(&request)?;
    if out.json {
        out.json("mounted", &mounted);
    } else {
        out.say(&format!("{} is mounted on {}", shown(&mounted), mounted.dir));
    }
    Ok(0)
}

/// Whether, and how, threads are to have transactions in a volume.
fn for_threads(args: &Mount) -> Result<Option<ForThreads>, Problem> {
    if !args.threads {
        let alone = args.stall.is_some() || args.policy.is_some() || args.certifier.is_some();
        return match alone {
            false => Ok(None),
            true => {
                Err(Problem::new("--stall, --policy and --certifier need --threads in a volume")
                    .hint("systx mount --threads FILE DIR"))
            }
        };
    }
    Ok(Some(ForThreads {
        stall_ms: args.stall.unwrap_or(STALL_MS),
        policy: args.policy.map(Policy::from).unwrap_or_default(),
        certifier: args.certifier.as_deref().map(absolute).transpose()?.map(HostPath::from),
    }))
}

/// What a mount shows.
fn shown(volume: &MountedVolume) -> String {
    match &volume.snapshot {
        Some(name) => format!("snapshot {name:?} of {}", volume.file),
        None => volume.file.to_string(),
    }
}

/// Ends a guard, or the mount of a volume.
///
/// # Errors
/// The directory is not guarded, or in use.
pub fn umount(args: &Umount, out: Out) -> Result<i32, Problem> {
    let dir = resolved(&args.dir).or_else(|_| entry(&args.dir))?;
    let request = systx_protocol::Umount { dir: HostPath::from(dir.as_path()), force: args.force };
    match context::connect()?.ask(&request)? {
        Unmounted::Done { dir, cut, notes } => {
            if out.json {
                let done = Unmounted::Done { dir, cut, notes };
                out.json("unmounted", &done);
                return Ok(0);
            }
            tell_holders(out, "cut off", &cut);
            for note in notes.iter().take(MOST) {
                out.say(note);
            }
            if let more @ 1.. = notes.len().saturating_sub(MOST) {
                out.say(&format!("and {more} more notes (--json has them)"));
            }
            out.say(&format!("{dir} is an ordinary directory again"));
            Ok(0)
        }
        Unmounted::InUse { holders, mounts } => {
            let text = match (holders.is_empty(), mounts.first()) {
                (false, _) => format!("{} is in use", dir.display()),
                (true, Some(mount)) if mount.as_path().starts_with(&dir) => {
                    format!("{} is in use: {mount} is mounted in it", dir.display())
                }
                (true, Some(mount)) => {
                    format!("{} is in use: it is also mounted at {mount}", dir.display())
                }
                (true, None) => format!(
                    "{} is in use, by the kernel itself or by programs that come and go",
                    dir.display()
                ),
            };
            Err(Problem { paths: mounts, ..in_use(text, holders) }
                .hint("end that, or --force: what is open there answers with an error then"))
        }
    }
}

fn in_use(text: String, holders: Vec<Holder>) -> Problem {
    Problem { kind: Some(FailureKind::Busy), holders, ..Problem::new(text).code(CONFLICT) }
}

fn tell_holders(out: Out, what: &str, holders: &[Holder]) {
    for holder in holders.iter().take(MOST) {
        out.warn(&format!("{what}: {}", output::holder(holder)));
    }
    if let more @ 1.. = holders.len().saturating_sub(MOST) {
        out.warn(&format!("{what}: {more} more processes (--json names them)"));
    }
}

fn list(out: Out) -> Result<i32, Problem> {
    let (guarded, volumes) = mounted()?;
    if out.json {
        out.json_both(("guarded", &guarded), ("volumes", &volumes));
        return Ok(0);
    }
    if guarded.is_empty() && volumes.is_empty() {
        out.say("no guarded directories, and no mounted volumes");
        return Ok(0);
    }
    let mut text = String::new();
    let mounts = std::fs::read("/proc/self/mountinfo").ok();
    let mounts = mounts.and_then(|text| mountinfo::parse(&text).ok());
    for v in &volumes {
        let label = if v.label.is_empty() { String::new() } else { format!("  {:?}", v.label) };
        let at = v.snapshot.as_ref().map_or(String::new(), |name| format!("  snapshot {name:?}"));
        let how = v.threads.as_ref().map_or(String::new(), |how| {
            let (stall, policy) = (how.stall_ms, policy(how.policy));
            let asks = certifier(how.certifier.as_ref());
            format!("  threads  stall {stall} ms{policy}{asks}")
        });
        let dead = if v.dead { "  dead: systx umount takes it away" } else { "" };
        let stopped = v.stopped.as_ref().map_or(String::new(), |why| format!("  stopped: {why}"));
        let elsewhere = match &mounts {
            Some(mounts) if !v.dead && !mounts.iter().any(|m| m.has(v.dev)) => {
                "  not mounted in this mount namespace: systx umount ends it"
            }
            _ => "",
        };
        let (dir, file) = (&v.dir, &v.file);
        text.push_str(&format!(
            "{dir}  volume in {file}{label}{at}{how}{dead}{elsewhere}{stopped}\n"
        ));
    }
    for g in &guarded {
        let routed = if g.routed { "  routed" } else { "" };
        let fast = if g.fast_open { "  fast-open" } else { "" };
        let (dir, volume, stall) = (&g.dir, &g.volume, g.stall_ms);
        let (policy, asks) = (policy(g.policy), certifier(g.certifier.as_ref()));
        text.push_str(&format!(
            "{dir}  on {volume}  stall {stall} ms{policy}{routed}{fast}{asks}\n"
        ));
    }
    output::print(&text);
    Ok(0)
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Osprio => "",
        Policy::Timestamp => "  policy timestamp",
        Policy::Size => "  policy size",
        Policy::Karma => "  policy karma",
        Policy::TwoPhase => "  policy two-phase",
    }
}

fn certifier(at: Option<&HostPath>) -> String {
    at.map_or(String::new(), |at| format!("  certifier {at}"))
}

/// The guarded directories, and the mounted volumes. A daemon is not started to say that there are
/// none, but it is for those that a dead one has left.
pub(crate) fn mounted() -> Result<(Vec<GuardedDir>, Vec<MountedVolume>), Problem> {
    let runtime = Runtime::find()?;
    if context::inside().is_none() && !runtime.has_guarded() {
        return Ok(match runtime.connect()? {
            Some(mut client) => (client.ask(&call::Guarded)?, client.ask(&call::Volumes)?),
            None => (Vec::new(), Vec::new()),
        });
    }
    let mut client = context::connect()?;
    Ok((client.ask(&call::Guarded)?, client.ask(&call::Volumes)?))
}

/// Without symbolic links.
fn resolved(dir: &Path) -> Result<PathBuf, Problem> {
    std::fs::canonicalize(dir).map_err(|e| Problem::new(format!("{}: {e}", dir.display())))
}

/// The same of a path whose end cannot be looked at, as that of a dead mount.
fn entry(dir: &Path) -> Result<PathBuf, Problem> {
    let path = absolute(dir)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(resolved(parent)?.join(name)),
        _ => Ok(path),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Problem> {
    std::path::absolute(path).map_err(|e| Problem::new(format!("{}: {e}", path.display())))
}

pub(super) fn namespace() -> Result<u64, Problem> {
    let meta = std::fs::metadata("/proc/self/ns/mnt")
        .map_err(|e| Problem::new(format!("cannot look at /proc/self/ns/mnt: {e}")))?;
    Ok(meta.ino())
}
