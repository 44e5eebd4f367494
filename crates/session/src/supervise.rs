//! From CMD's start to the end of its last process.
//!
//! CMD runs in the client's process group, on its terminal.  The client waits in one poll loop over
//! a signalfd, the transaction's doorbell, the daemon's connection, and the clock:
//! - what the terminal sends to the whole group (`^C`, `^\`, `^Z`) CMD gets itself; the client only
//!   takes note;
//! - what is meant for the client alone is passed on to CMD: what a process outside sends, and what
//!   the kernel sends to the leader of a session whose terminal is gone (HUP);
//! - when CMD stops, the client stops by the same signal, so that the shell sees a stopped job;
//!   continued, it continues CMD;
//! - doorbell, time limit, and the daemon's end finish the whole tree.
//!
//! Afterwards the tree is brought to its end ([`Started::settle`]), dirty pages are sent to the
//! daemon ([`Started::sync`]), and what lies in private places is counted.

use crate::calls::Supervisor;
use crate::inherited_unsafe;
use crate::processes::{self, Process};
use crate::start::Started;
use crate::sys_unsafe;
use crate::terminal::Typed;
use crate::watch::{Sighting, Watcher};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, WaitStatus};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the loop listens to besides CMD.
#[derive(Default)]
pub struct Listen<'a> {
    /// Readable when the transaction has lost.
    pub doorbell: Option<BorrowedFd<'a>>,
    /// Readable when the daemon is gone.
    pub daemon: Option<BorrowedFd<'a>>,
    /// CMD and its tree must have ended by then.
    pub deadline: Option<Instant>,
    /// Look for connections to the outside from time to time.
    pub watch: bool,
}

/// How CMD ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// The transaction lost.
    Doomed,
    /// The time limit passed.
    TimedOut,
    /// The daemon is gone.
    DaemonGone,
}

impl Ended {
    /// As a shell reports it; `None` if it was us who ended it.
    pub fn code(self) -> Option<i32> {
        match self {
            Ended::Exited(code) => Some(code),
            Ended::Signaled(signal) => Some(128 + signal),
            Ended::Doomed | Ended::TimedOut | Ended::DaemonGone => None,
        }
    }
}

/// What happens to processes that CMD leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Leftovers {
    /// They get [`GRACE`] to end; then they are ended.
    #[default]
    Kill,
    /// The transaction goes on until they have ended.
    Wait,
    /// They get [`GRACE`] to end; then they are ended and the transaction aborts.
    Abort,
}

/// How long processes that outlive CMD may still end by themselves: a pipeline's last writers, a
/// compiler server that is just shutting down.
pub const GRACE: Duration = Duration::from_secs(1);
/// Between SIGTERM and SIGKILL.
const TERM_GRACE: Duration = Duration::from_millis(500);
/// After SIGKILL; a process that is still there hangs in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// What became of the processes that outlived CMD.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Settled {
    /// Those that had to be ended.
    pub ended: Vec<Process>,
    /// Those that did not end even then.
    pub stuck: Vec<Process>,
    /// While waiting for them, this happened instead of their end.
    pub interrupted: Option<Ended>,
}

/// Signals that ask for the end.
const ENDING: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

enum Event {
    Signal(SignalInfo),
    Doorbell,
    Daemon,
    Deadline,
    Tick,
    /// Something is to be read from this one of the further descriptors.
    Ready,
}

/// What somebody said who was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This.
    Line(String),
    /// Nothing, and will not.
    None,
    /// This happened instead.
    Instead(Ended),
}

struct SignalInfo {
    number: i32,
    /// Sent by a process, not by the terminal or the kernel.
    by_process: bool,
    /// That process, as far as this one can see it.
    sender: u32,
    /// What was sent along (sigqueue(3)).
    value: Option<u64>,
}

impl SignalInfo {
    /// Whether it asks for the end.
    fn ends(&self) -> bool {
        ENDING.contains(&self.number) && !inherited_unsafe::ignores(self.number)
    }
}

impl Started {
    /// Process id of CMD.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits for the end of CMD.
    ///
    /// # Errors
    /// The wait itself fails.
    pub fn wait(&mut self, listen: &Listen<'_>) -> Result<Ended, Errno> {
        let told = self.supervisor.as_ref().map(Supervisor::told);
        let mut watcher = listen.watch.then(|| Watcher::new(told, self.others));
        loop {
            if let Some(ended) = self.reap()? {
                self.watched = watcher.map(Watcher::finish).unwrap_or_default();
                if let Some(terminal) = &self.terminal {
                    terminal.put_back(matches!(ended, Ended::Signaled(_)));
                }
                return Ok(ended);
            }
            let tick = watcher.as_ref().and_then(Watcher::next);
            let told = watcher.as_ref().map(Watcher::told).unwrap_or_default();
            let event = next_event(&self.signals, listen, tick, &told)?;
            let ended = match event {
                Event::Signal(info) => {
                    self.pass_on(&info);
                    continue;
                }
                Event::Tick => {
                    if let Some(watcher) = &mut watcher {
                        watcher.look();
                    }
                    continue;
                }
                Event::Ready => {
                    if let Some(watcher) = &mut watcher {
                        watcher.hear();
                    }
                    continue;
                }
                Event::Doorbell => Ended::Doomed,
                Event::Daemon => Ended::DaemonGone,
                Event::Deadline => Ended::TimedOut,
            };
            self.watched = watcher.map(Watcher::finish).unwrap_or_default();
            // A transaction that cannot commit any more gains nothing from a gentle end; a command
            // that only took too long may want to tidy up outside (remove a lease, log out).
            let gentle = ended == Ended::TimedOut;
            let _ = self.end_tree(gentle)?;
            if let Some(terminal) = &self.terminal {
                terminal.put_back(true);
            }
            return Ok(ended);
        }
    }

    /// Waits for whoever ended, without blocking.  Stops when CMD does.
    fn reap(&mut self) -> Result<Option<Ended>, Errno> {
        let mut ended = None;
        loop {
            let status = match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.pid => status,
                Ok(Some(_)) => continue,
                Ok(None) | Err(Errno::CHILD) => return Ok(ended),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e),
            };
            if status.stopped() {
                self.stop_with_it(status.stopping_signal().unwrap_or(libc::SIGSTOP));
            } else {
                ended = Some(how(status));
            }
        }
    }

    /// CMD stopped: so does the client, so that its shell sees a stopped job.  Continued, it
    /// continues CMD (the shell continues the whole group; a plain `kill -CONT` does not).
    fn stop_with_it(&mut self, signal: i32) {
        inherited_unsafe::suffer(signal);
        // Here again after SIGCONT, or at once in a group that nobody could continue.
        if processes::look(self.pid()).is_some_and(|cmd| cmd.state == 'T') {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::CONT);
        }
        self.continued = true;
    }

    fn pass_on(&mut self, info: &SignalInfo) {
        // The leader of a session, and nobody else, is told that the terminal is gone; other such
        // signals of the kernel are sent to the whole group, CMD included.
        let leader = || rustix::process::getsid(None).ok() == Some(rustix::process::getpid());
        let for_client = match info.number {
            libc::SIGCONT if std::mem::take(&mut self.continued) => false,
            // Of children; of this process's own limits and writes.
            libc::SIGCHLD | libc::SIGXCPU | libc::SIGXFSZ | libc::SIGPIPE => {
                info.by_process && info.sender != std::process::id()
            }
            libc::SIGHUP | libc::SIGCONT => info.by_process || leader(),
            // Descriptors whose owner this process was before it was `systx`.
            libc::SIGIO | libc::SIGURG => true,
            _ => info.by_process,
        };
        if for_client && !(info.by_process && self.is_of_the_run(info.sender)) {
            let _ = sys_unsafe::send(self.pidfd.as_fd(), info.number, info.value);
        }
    }

    /// What a process of the run sends reaches the client because it is sent to the whole group
    /// (`kill 0`), and CMD has got it, too.
    fn is_of_the_run(&self, pid: u32) -> bool {
        pid == self.pid() || processes::of_the_run(self.others).iter().any(|p| p.pid == pid)
    }

    /// Brings what CMD left behind to its end.
    ///
    /// # Errors
    /// The wait itself fails.
    pub fn settle(&mut self, how: Leftovers, listen: &Listen<'_>) -> Result<Settled, Errno> {
        if self.nobody_left()? {
            return Ok(Settled::default());
        }
        let grace = match how {
            Leftovers::Wait => None,
            Leftovers::Kill | Leftovers::Abort => Some(Instant::now() + GRACE),
        };
        let deadline = match (grace, listen.deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let listen = Listen { deadline, ..Listen { watch: false, ..*listen } };
        let interrupted = loop {
            match next_event(&self.signals, &listen, None, &[])? {
                // Whoever wants the client gone now wants the leftovers gone. If they were to be
                // waited for, their work is part of the command's and is now incomplete.
                Event::Signal(info) if info.ends() => {
                    break (how == Leftovers::Wait).then_some(Ended::Signaled(info.number));
                }
                Event::Signal(_) => {}
                Event::Doorbell => break Some(Ended::Doomed),
                Event::Daemon => break Some(Ended::DaemonGone),
                Event::Deadline if grace.is_none_or(|g| Instant::now() < g) => {
                    break Some(Ended::TimedOut);
                }
                Event::Deadline => break None,
                Event::Tick | Event::Ready => {}
            }
            if self.nobody_left()? {
                return Ok(Settled::default());
            }
        };
        let mut settled = self.end_tree(true)?;
        settled.interrupted = interrupted;
        Ok(settled)
    }

    fn nobody_left(&self) -> Result<bool, Errno> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) if self.others.is_none() => return Ok(false),
                Ok(None) => return Ok(processes::of_the_run(self.others).is_empty()),
                Err(Errno::CHILD) => return Ok(true),
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends every process of the tree: SIGTERM first if `gentle`, then SIGKILL until nobody is
    /// left.
    ///
    /// # Errors
    /// The wait itself fails.
    pub fn end_tree(&self, gentle: bool) -> Result<Settled, Errno> {
        let mut settled = Settled::default();
        let start = Instant::now();
        let mut termed = false;
        loop {
            if self.nobody_left()? {
                return Ok(settled);
            }
            // Again in every round: a process may have forked between look and signal.
            let living = processes::of_the_run(self.others);
            for process in &living {
                if !settled.ended.iter().any(|p| p.pid == process.pid) {
                    settled.ended.push(process.clone());
                }
            }
            if gentle && start.elapsed() < TERM_GRACE {
                if !termed {
                    processes::signal_all(&living, Signal::TERM);
                    // A stopped process would not notice.
                    processes::signal_all(&living, Signal::CONT);
                    termed = true;
                }
            } else {
                processes::signal_all(&living, Signal::KILL);
            }
            if start.elapsed() > KILL_LIMIT {
                settled.stuck = living;
                return Ok(settled);
            }
            // Until the next SIGCHLD; or a moment, for those whose parents wait for them.
            let listen = Listen {
                deadline: Some(Instant::now() + Duration::from_millis(10)),
                ..Listen::default()
            };
            let _ = next_event(&self.signals, &listen, None, &[])?;
        }
    }

    /// Waits for a line from the terminal, which is this process's again.  A signal that asks for
    /// the end, and the end of the terminal, are no answer.
    ///
    /// # Errors
    /// The wait itself fails.
    pub fn ask(&self, listen: &Listen<'_>) -> Result<Answer, Errno> {
        let Ok(typed) = Typed::at(rustix::stdio::stdin()) else { return Ok(Answer::None) };
        loop {
            let ended = match next_event(&self.signals, listen, None, &[typed.as_fd()])? {
                Event::Ready => match typed.line() {
                    Ok(Some(line)) => return Ok(Answer::Line(line)),
                    Err(Errno::INTR | Errno::AGAIN) => continue,
                    Ok(None) | Err(_) => return Ok(Answer::None),
                },
                Event::Signal(SignalInfo { number, .. }) if ENDING.contains(&number) => {
                    return Ok(Answer::None);
                }
                Event::Signal(_) | Event::Tick => continue,
                Event::Doorbell => Ended::Doomed,
                Event::Daemon => Ended::DaemonGone,
                Event::Deadline => Ended::TimedOut,
            };
            return Ok(Answer::Instead(ended));
        }
    }

    /// What was meant for CMD while it ran has been passed on or come too late.
    pub fn forget_signals(&self) {
        while rustix::io::read(&self.signals, &mut [0u8; 128]).is_ok() {}
    }

    /// Waits until a descriptor is readable, at most so long; or for a signal that asks for the
    /// end, which it returns.
    pub fn wait_for(&self, fd: BorrowedFd<'_>, limit: Option<Duration>) -> Option<i32> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let listen = Listen { deadline, ..Listen::default() };
        loop {
            match next_event(&self.signals, &listen, None, &[fd]) {
                Ok(Event::Signal(info)) if info.ends() => return Some(info.number),
                Ok(Event::Signal(_)) => {}
                _ => return None,
            }
        }
    }

    /// Sends dirty pages of shared mappings, which the kernel may still hold, to the daemon.
    ///
    /// # Errors
    /// The view does not take them.
    pub fn sync(&self) -> Result<(), Errno> {
        self.views.iter().try_for_each(rustix::fs::syncfs)
    }

    /// What takes long to close, for somebody nobody waits for.  First what told of opened devices:
    /// the kernel waits until no processor looks at it.  Then, if `views`, a directory of each
    /// view: with the last of all that are open in it, the kernel frees what it knew of the view.
    pub fn slow_to_close(&mut self, views: bool) -> Vec<OwnedFd> {
        let views = if views { std::mem::take(&mut self.views) } else { Vec::new() };
        self.watched.devices.take().into_iter().chain(views).collect()
    }

    /// Closes the directories of the views that are left.
    pub fn close_views(&mut self) {
        self.views.clear();
    }

    /// Regular files and the like that lie in private places, apart from what they started with.
    pub fn private_remains(&self, known: &[PathBuf]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for (at, fd) in &self.private {
            if let Ok(fd) = fd.try_clone() {
                list(fd, at, known, &mut found, 0);
            }
        }
        found.sort();
        found
    }

    /// What was seen of the outside: by looking from time to time, and of the calls that the kernel
    /// asked about.
    pub fn sightings(&self) -> Vec<Sighting> {
        let asked = self.supervisor.as_ref().map(Supervisor::sightings).unwrap_or_default();
        // A connection that was looked at while it was open is told once.
        let again = |seen: &Sighting| {
            let path = seen.what.strip_prefix("connected to the unix socket ");
            path.is_some_and(|path| {
                asked
                    .iter()
                    .any(|a| a.what.split(' ').nth(2) == Some(path) && a.process == seen.process)
            })
        };
        let looked = self.watched.sightings.iter().filter(|s| !again(s)).cloned();
        let mut all: Vec<Sighting> = looked.chain(asked.iter().cloned()).collect();
        all.sort();
        all
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // They must not end the client now.
        self.forget_signals();
        sys_unsafe::restore(&self.mask);
    }
}

fn how(status: WaitStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, Some(signal)) => Ended::Signaled(signal),
        (None, None) => Ended::Exited(125),
    }
}

/// Bounds the listing of private places: names beyond are of no use to a reader.
const MOST: usize = 1000;
const DEEPEST: usize = 64;

fn list(
    dir: OwnedFd,
    at: &std::path::Path,
    known: &[PathBuf],
    found: &mut Vec<PathBuf>,
    depth: usize,
) {
    use std::os::unix::ffi::OsStrExt;
    let Ok(entries) = rustix::fs::Dir::new(dir) else { return };
    let mut below = Vec::new();
    let mut entries = entries;
    while let Some(Ok(entry)) = entries.read() {
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let path = at.join(std::ffi::OsStr::from_bytes(name));
        if entry.file_type() == rustix::fs::FileType::Directory {
            below.push((entry.file_name().to_owned(), path));
        } else if !known.contains(&path) {
            found.push(path);
        }
    }
    for (name, path) in below {
        if found.len() >= MOST || depth >= DEEPEST {
            return;
        }
        use rustix::fs::OFlags;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(dir) = entries.fd().and_then(|fd| {
            rustix::fs::openat(fd, name.as_c_str(), flags, rustix::fs::Mode::empty())
        }) else {
            continue;
        };
        list(dir, &path, known, found, depth + 1);
    }
}

fn timespec(d: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
    }
}

/// Waits for the next thing to happen.  CMD's end comes as SIGCHLD.
fn next_event(
    signals: &OwnedFd,
    listen: &Listen<'_>,
    tick: Option<Instant>,
    further: &[BorrowedFd<'_>],
) -> Result<Event, Errno> {
    loop {
        if let Some(info) = read_signal(signals)? {
            return Ok(Event::Signal(info));
        }
        let now = Instant::now();
        if listen.deadline.is_some_and(|d| d <= now) {
            return Ok(Event::Deadline);
        }
        if tick.is_some_and(|t| t <= now) {
            return Ok(Event::Tick);
        }
        let first = [listen.deadline, tick].into_iter().flatten().min();
        let timeout = first.map(|t| timespec(t.saturating_duration_since(now)));
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        let rest = further.iter().copied().chain(listen.doorbell).chain(listen.daemon);
        fds.extend(rest.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        let ready = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
        let at = 1 + further.len();
        if listen.doorbell.is_some() && ready(at) {
            return Ok(Event::Doorbell);
        }
        if listen.daemon.is_some() && ready(at + usize::from(listen.doorbell.is_some())) {
            return Ok(Event::Daemon);
        }
        if (1..at).any(ready) {
            return Ok(Event::Ready);
        }
    }
}

/// Next signal from a signalfd (`struct signalfd_siginfo`, signalfd(2)).
fn read_signal(fd: &OwnedFd) -> Result<Option<SignalInfo>, Errno> {
    let mut info = [0u8; 128];
    match rustix::io::read(fd, &mut info) {
        Ok(128) => {}
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(e) => return Err(e),
    }
    let word = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    // ssi_signo at 0, ssi_code at 8, ssi_pid at 12, ssi_ptr at 48; codes of what a process sent are
    // not positive.
    let code = word(8);
    let mut value = [0; 8];
    value.copy_from_slice(&info[48..56]);
    Ok(Some(SignalInfo {
        number: word(0),
        by_process: code <= 0,
        sender: word(12).unsigned_abs(),
        value: (code == libc::SI_QUEUE).then(|| u64::from_ne_bytes(value)),
    }))
}
