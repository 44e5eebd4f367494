//! Where the daemon listens, and how the first client starts it.
//!
//! One directory per user, 0700 and owned by the user (checked, never repaired), where nobody else
//! can take its name ([`crate::places`]); in it, per mount namespace N (a daemon sees the files of
//! the namespace it was started in; in a user namespace of its own, N is followed by a hyphen and
//! the number of that):
//! - `N.sock` the control socket;
//! - `N.lock` held (flock) by the daemon as long as it lives;
//! - `N.start` held by a client while it starts a daemon;
//! - `N.log` what the daemon has to say;
//! - `N.guarded` the list of guarded directories, for the daemon that comes after one that was
//!   killed.
//!
//! Starting ([`connect_or_start`]):
//! 1. connect and say hello; if that works, done.
//! 2. take `N.start`; try 1 again, because another client may have been first.
//! 3. run `systx daemon` (`systx_daemon::spawn::detach`): new session, nothing inherited but a
//!    pipe; it runs `systx daemon --serve` and exits, so that the daemon is nobody's child (a
//!    client that is a subreaper for its command must not find the daemon among the leftovers).
//! 4. `--serve` (`systx_daemon::spawn::serve`): waits for `N.lock`, that is for the daemon before
//!    it to be gone, replaces `N.sock`, and reports `ready` or what went wrong through the pipe.
//!    Another one may be faster, that of a keeper for instance: then it is ready, too, and ends.
//!
//! A daemon that ends leaves the files: removing `N.sock` could remove its successor's. A stale
//! socket refuses connections, which step 1 takes as "not running".

use crate::client::Client;
pub use crate::places::DIR_VARIABLE;
use crate::places::{self, io_failure, private_dir};
use crate::{Failure, FailureKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// For tests: where transactions of programs lose.
pub const INJECT_VARIABLE: &str = "SYSTX_INJECT_ABORTS";
/// A daemon recovers its stores before it is ready, so this is generous.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// How long a client waits for the first answer, for which a daemon has to do nothing else.
const HELLO_LIMIT: Duration = Duration::from_secs(30);
const LOG_LIMIT: u64 = 1 << 20;

/// The files of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    dir: PathBuf,
    namespace: u64,
    /// What the names of its files begin with.
    prefix: String,
}

impl Runtime {
    /// The files for this user and this mount namespace; makes the directory if need be.
    ///
    /// # Errors
    /// No directory that is private to the user can be had.
    pub fn find() -> Result<Runtime, Failure> {
        let named = std::env::var_os(DIR_VARIABLE).filter(|d| !d.is_empty());
        Runtime::at(&named.map_or_else(places::runtime, |dir| Ok(PathBuf::from(dir)))?)
    }

    /// The files in this directory, for this mount namespace.
    ///
    /// # Errors
    /// The directory is not private to the user.
    pub fn at(dir: &Path) -> Result<Runtime, Failure> {
        private_dir(dir)?;
        let namespace = namespace("mnt")?;
        let users = namespace_of_users();
        let prefix = users.map_or(namespace.to_string(), |users| format!("{namespace}-{users}"));
        Ok(Runtime { dir: dir.to_owned(), namespace, prefix })
    }

    /// Inode of the mount namespace that they are for.
    pub fn namespace(&self) -> u64 {
        self.namespace
    }
    /// Directories were guarded when the last daemon died, and wait for the next.
    pub fn has_guarded(&self) -> bool {
        self.roster().exists()
    }
    /// The list of guarded directories.
    pub fn roster(&self) -> PathBuf {
        self.file("guarded")
    }
    /// The directory that all of them are in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.file("sock")
    }
    /// What the daemon has to say.
    pub fn log(&self) -> PathBuf {
        self.file("log")
    }
    /// The path of one of them.
    pub fn file(&self, suffix: &str) -> PathBuf {
        self.dir.join(format!("{}.{suffix}", self.prefix))
    }

    /// Connects to a running daemon; `None` if there is none.
    ///
    /// # Errors
    /// There is one, but of another version, or it does not answer.
    pub fn connect(&self) -> Result<Option<Client>, Failure> {
        let stream = match UnixStream::connect(self.socket()) {
            Ok(stream) => stream,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(e) => return Err(io_failure(&self.socket(), "connect to", &e)),
        };
        let by =
            socket_peercred(&stream).map_err(|e| io_failure(&self.socket(), "ask", &e.into()))?;
        if by.uid != rustix::process::geteuid() {
            let text = format!("{} is served by user {}", self.socket().display(), by.uid.as_raw());
            return Err(Failure::new(FailureKind::Invalid, text).path(self.socket()));
        }
        // A daemon that was killed and hangs in the kernel still has its socket, and answers
        // nobody.
        let failed = |e: Errno| io_failure(&self.socket(), "wait on", &e.into());
        set_socket_timeout(&stream, Timeout::Recv, Some(HELLO_LIMIT)).map_err(failed)?;
        match Client::new(stream) {
            Ok(client) => {
                set_socket_timeout(&client, Timeout::Recv, None).map_err(failed)?;
                Ok(Some(client))
            }
            // It closed its socket after we connected: it was about to end.
            Err(f) if f.kind == FailureKind::Internal || f.kind == FailureKind::Io => Ok(None),
            Err(f) => Err(f),
        }
    }

    /// Keeps daemons from starting, if none runs, as long as the result lives.
    pub fn try_lock(&self) -> Option<OwnedFd> {
        let lock = self.open("lock").ok()?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(lock)
    }

    /// Opens one of them, which is made if need be.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(&self, suffix: &str) -> Result<OwnedFd, Failure> {
        let path = self.file(suffix);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .map_err(|e| io_failure(&path, "open", &e.into()))
    }
}

fn namespace(kind: &str) -> Result<u64, Failure> {
    let path = Path::new("/proc/self/ns").join(kind);
    std::fs::metadata(&path)
        .map(|m| m.ino())
        .map_err(|e| io_failure(&path, "look at", &e).hint("systx needs /proc to be mounted"))
}

/// The user namespace, if it is not the first one: a user has other numbers there, so it has a
/// daemon of its own.
fn namespace_of_users() -> Option<u64> {
    /// The kernel's `PROC_USER_INIT_INO`.
    const FIRST: u64 = 0xefff_fffd;
    // A kernel without them has no such file.
    namespace("user").ok().filter(|n| *n != FIRST)
}

/// A client of the daemon of this user, which is started if it is not running.
///
/// # Errors
/// It cannot be started, or one of another version is running.
pub fn connect_or_start() -> Result<Client, Failure> {
    start_in(&Runtime::find()?)
}

/// As [`connect_or_start`], with these files.
///
/// # Errors
/// As there.
pub fn start_in(runtime: &Runtime) -> Result<Client, Failure> {
    if let Some(client) = runtime.connect()? {
        return Ok(client);
    }
    let start = runtime.open("start")?;
    loop {
        match rustix::fs::flock(&start, FlockOperation::LockExclusive) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(io_failure(&runtime.file("start"), "lock", &e.into())),
        }
    }
    for _ in 0..STARTS {
        if let Some(client) = runtime.connect()? {
            return Ok(client);
        }
        launch(runtime)?;
    }
    runtime.connect()?.ok_or_else(|| {
        Failure::new(FailureKind::Internal, "the daemon ended right after its start")
            .hint(format!("its log: {}", runtime.log().display()))
    })
}

/// One that starts goes home if another one serves, which may end in the same moment.
const STARTS: u32 = 3;

/// Steps 3 and 4, from the client's side.
fn launch(runtime: &Runtime) -> Result<(), Failure> {
    let (ready, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| Failure::new(FailureKind::Io, format!("pipe: {e}")))?;
    let log = open_log(&runtime.log())?;
    let mut command = command();
    command.arg("--dir").arg(&runtime.dir);
    command.stdin(Stdio::null()).stdout(theirs).stderr(log);
    let status = command.status();
    // The pipe's end in `command` must go, or its end is never seen.
    drop(command);
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            return Err(Failure::new(
                FailureKind::Internal,
                format!("the daemon did not start ({status})"),
            )
            .hint(format!("its log: {}", runtime.log().display())));
        }
        Err(e) => return Err(io_failure(Path::new("/proc/self/exe"), "run", &e)),
    }
    let said = read_until_end(ready, READY_LIMIT)
        .map_err(|e| Failure::new(FailureKind::Io, format!("waiting for the daemon: {e}")))?;
    match said.strip_prefix("failed ") {
        None if said == "ready\n" => Ok(()),
        Some(json) => Err(serde_json::from_str(json.trim_end()).unwrap_or_else(|_| {
            Failure::new(FailureKind::Internal, format!("the daemon did not start: {json}"))
        })),
        None => Err(Failure::new(FailureKind::Internal, "the daemon did not become ready")
            .hint(format!("its log: {}", runtime.log().display()))),
    }
}

fn open_log(path: &Path) -> Result<std::fs::File, Failure> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let log = options.open(path).map_err(|e| io_failure(path, "open", &e))?;
    // Whoever writes here appends.
    if log.metadata().is_ok_and(|m| m.len() > LOG_LIMIT) {
        let _ = log.set_len(0);
    }
    Ok(log)
}

/// This very program, as `daemon`, with an environment that says nothing about the client.
pub fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("systx").arg("daemon").env_clear();
    let ours = [DIR_VARIABLE, INJECT_VARIABLE, places::STATE_VARIABLE];
    for name in
        ["PATH", "HOME", "SYSTX_LOG", "SYSTX_IDLE", "RUST_BACKTRACE"].into_iter().chain(ours)
    {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Calls this process `systx` in lists of processes: the kernel takes the name from the path that
/// was executed, and /proc/self/exe makes it `exe`.
pub fn take_name() {
    // Of the first thread, by which the process is known; the only one so far.
    let _ = rustix::thread::set_name(c"systx");
}

/// This very program as the keeper of the daemon that is running here.
///
/// # Errors
/// The log cannot be opened.
pub fn keeper_command(runtime: &Runtime) -> std::io::Result<Command> {
    let log = open_log(&runtime.log()).map_err(|f| std::io::Error::other(f.message))?;
    let mut command = command();
    command.arg("--keep").arg("--dir").arg(&runtime.dir).current_dir("/");
    command.stdout(Stdio::null()).stderr(log);
    Ok(command)
}

fn read_until_end(pipe: OwnedFd, limit: Duration) -> std::io::Result<String> {
    let deadline = Instant::now() + limit;
    let mut pipe = std::fs::File::from(pipe);
    let mut said = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => {}
        }
        let mut buf = [0; 4096];
        match pipe.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => said.extend_from_slice(&buf[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Which part of the daemon's life a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It leaves its client and starts the next part.
    Detach,
    /// It is the daemon.
    Serve,
    /// It brings the daemon back, see `systx_daemon::keeper`.
    Keep,
}

/// Parses the arguments of the hidden subcommand: `daemon [--serve|--keep] --dir DIR`.  Here, so
/// that what
/// `command` writes and what is read stand side by side.
///
/// # Errors
/// Other arguments.
pub fn arguments(args: impl Iterator<Item = OsString>) -> Result<(Part, PathBuf), Failure> {
    let args: Vec<OsString> = args.collect();
    let (part, rest) = match args.split_first() {
        Some((first, rest)) if first == "--serve" => (Part::Serve, rest),
        Some((first, rest)) if first == "--keep" => (Part::Keep, rest),
        _ => (Part::Detach, args.as_slice()),
    };
    match rest {
        [flag, dir] if flag == "--dir" => Ok((part, dir.into())),
        _ => {
            let usage = "usage: systx daemon [--serve|--keep] --dir DIR";
            Err(Failure::new(FailureKind::Invalid, usage))
        }
    }
}
