//! The daemon's own half of its start: it leaves everything that ties it to the client that started
//! it, waits for the daemon before it to be gone, and serves ([`systx_protocol::runtime`] has the
//! other half, and the files).

use crate::keeper;
use crate::processes;
use crate::protocol::{Control, Failure, FailureKind};
use crate::server;
use crate::spawn_unsafe;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_protocol::places::io_failure;
use systx_protocol::runtime::{INJECT_VARIABLE, Runtime, command};
use systx_txn::Inject;

/// How long a starting daemon waits for the one before it to be gone.
const SUCCESSION_LIMIT: Duration = Duration::from_secs(30);
/// After so long it looks whether that one has died, and hangs.
const HANG_LIMIT: Duration = Duration::from_secs(3);
/// So often it asks whether that is one that serves.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The first half of `systx daemon`: leaves everything that ties it to the client and starts the
/// second half.  The caller exits when it returns.
///
/// # Errors
/// The second half cannot be started.
pub fn detach(dir: &Path) -> std::io::Result<()> {
    // Fails only for the leader of a process group, which a spawned child is not.
    let _ = rustix::process::setsid();
    spawn_unsafe::close_on_exec_from_3()?;
    own_limits();
    own_cgroup();
    let mut command = command();
    command.arg("--serve").arg("--dir").arg(dir).current_dir("/");
    command.spawn().map(drop)
}

/// Soft limits that a shell set for its commands (`ulimit -f`, `-t`, `-v`), and its niceness, are
/// not meant for a daemon that others use as well.
fn own_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    for resource in [Resource::Nofile, Resource::Fsize, Resource::Cpu, Resource::As, Resource::Data]
    {
        let hard = getrlimit(resource).maximum;
        let _ = setrlimit(resource, Rlimit { current: hard, maximum: hard });
    }
    // `ulimit -f` sets both limits. Root may have none.
    let _ = setrlimit(Resource::Fsize, Rlimit { current: None, maximum: None });
    let _ = rustix::process::setpriority_process(None, 0);
}

/// Leaves the client's cgroup where that is allowed (root): stopping the unit that happened to
/// start the daemon must not stop it.
fn own_cgroup() {
    for path in ["/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"] {
        if let Ok(mut file) = std::fs::OpenOptions::new().write(true).open(path) {
            let _ = file.write_all(b"0");
        }
    }
}

/// The second half of `systx daemon`: becomes the daemon of `dir`, and returns when it may end.
/// `control` is called once the process is the only daemon of its user and namespace.
///
/// # Errors
/// It could not become ready (the client was told), or the socket failed later.
pub fn serve(
    dir: &Path,
    control: impl FnOnce(Runtime) -> Result<Arc<dyn Control>, Failure>,
) -> Result<server::Ended, Failure> {
    // What it writes for somebody fails, then, and only that.
    spawn_unsafe::ignore_file_size_signal();
    let mut ready = std::fs::File::from(
        rustix::stdio::stdout()
            .try_clone_to_owned()
            .map_err(|e| Failure::new(FailureKind::Io, format!("stdout: {e}")))?,
    );
    match prepare(dir, control) {
        Ok(None) => {
            let _ = ready.write_all(b"ready\n");
            Ok(server::Ended::Spare)
        }
        Ok(Some((listener, control, config, lock))) => {
            let _ = ready.write_all(b"ready\n");
            drop(ready);
            if let Err(e) = forget_stdout() {
                tracing::warn!("stdout: {e}");
            }
            tracing::info!(pid = std::process::id(), dir = %dir.display(), "serving");
            let ended = server::serve(listener, control, &config)
                .map_err(|e| Failure::new(FailureKind::Io, format!("control socket: {e}")))?;
            tracing::info!(?ended, "ended");
            #[cfg(feature = "record")]
            crate::recorded::write(&dir.join("sections.csv"));
            drop(lock);
            Ok(ended)
        }
        Err(failure) => {
            let json = serde_json::to_string(&failure).unwrap_or_default();
            let _ = ready.write_all(format!("failed {json}\n").as_bytes());
            Err(failure)
        }
    }
}

type Prepared = (UnixListener, Arc<dyn Control>, server::Config, OwnedFd);

fn prepare(
    dir: &Path,
    control: impl FnOnce(Runtime) -> Result<Arc<dyn Control>, Failure>,
) -> Result<Option<Prepared>, Failure> {
    let runtime = Runtime::at(dir)?;
    // What the daemon makes it opens to others explicitly, never by omission.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let lock = runtime.open("lock")?;
    if !succeed(&lock, &runtime)? {
        return Ok(None);
    }
    let stop = spawn_unsafe::termination_signals()
        .map_err(|e| Failure::new(FailureKind::Io, format!("signals: {e}")))?;
    let socket = runtime.socket();
    match std::fs::remove_file(&socket) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            return Err(io_failure(&socket, "remove", &e));
        }
        _ => {}
    }
    let control = control(runtime)?;
    let listener = UnixListener::bind(&socket).map_err(|e| io_failure(&socket, "bind", &e))?;
    let idle = idle_limit().unwrap_or(server::IDLE);
    Ok(Some((listener, control, server::Config { idle, stop: Some(stop) }, lock)))
}

/// Seconds, from `SYSTX_IDLE` of the client that started this daemon; for tests.
fn idle_limit() -> Option<Duration> {
    std::env::var("SYSTX_IDLE").ok()?.parse().ok().map(Duration::from_secs)
}

/// Aborts for tests, from [`INJECT_VARIABLE`] of the client that started this daemon.
///
/// # Errors
/// The variable says something else.
pub fn inject() -> Result<Option<Inject>, Failure> {
    let Some(value) = std::env::var_os(INJECT_VARIABLE).filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    let inject = value.to_str().and_then(|v| v.parse().ok()).ok_or_else(|| {
        let text = format!("{INJECT_VARIABLE}={}: no such aborts", value.display());
        Failure::new(FailureKind::Invalid, text)
            .hint("once, each, or a number as a seed; or unset it")
    })?;
    tracing::warn!("{INJECT_VARIABLE} is set: transactions lose without an opponent");
    Ok(Some(inject))
}

/// Waits for the daemon before this one to be gone. A thread of it may wait in the kernel for an
/// answer of its own, which its keeper puts an end to; if that was killed as well, this does.
///
/// False: another daemon, that a keeper or another client has started, was faster and serves.
fn succeed(lock: &OwnedFd, runtime: &Runtime) -> Result<bool, Failure> {
    let begun = Instant::now();
    let (deadline, mut look) = (begun + SUCCESSION_LIMIT, Some(begun + HANG_LIMIT));
    let mut ask = begun + ASK_AGAIN;
    let has_died =
        || processes::has_locked(lock.as_fd()).is_some_and(|pid| !processes::is_alive(pid));
    loop {
        if look.take_if(|at| *at <= Instant::now()).is_some() && has_died() {
            tracing::warn!(
                "the daemon before this one was killed, and hangs: its mounts are cut off"
            );
            keeper::cut_off(runtime);
        }
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                if ask <= Instant::now() {
                    // One that answers otherwise may be the one before, which is waited for.
                    if matches!(runtime.connect(), Ok(Some(_))) {
                        return Ok(false);
                    }
                    ask = Instant::now() + ASK_AGAIN;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(Failure::new(
                    FailureKind::Busy,
                    "another daemon runs but does not answer",
                )
                .hint(format!(
                    "find it with: fuser {}; its log: {}",
                    runtime.file("lock").display(),
                    runtime.log().display()
                )));
            }
            Err(e) => return Err(io_failure(&runtime.file("lock"), "lock", &e.into())),
        }
    }
}

fn forget_stdout() -> rustix::io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdout(null.as_fd())
}
