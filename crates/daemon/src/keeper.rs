//! The keeper: a small process beside a daemon that has guarded directories. If the daemon dies,
//! the keeper starts the next one, which mounts them again ([`crate::guards`]) and has a keeper of
//! its own.
//!
//! The two know of each other by a pipe that ends with the daemon, however it dies, and by the
//! daemon being the keeper's parent: a keeper that dies is replaced. A daemon that ends on purpose
//! says so through the pipe. If both die, the next `systx` that starts a daemon has the same
//! effect.
//!
//! A killed process lets go of its descriptors when its last thread has ended, and a thread may
//! hang in the kernel: on a disk, or on an answer of its own daemon. Until then the kernel goes on
//! waiting for the daemon's answers, and so do programs. So the keeper also watches a thread of the
//! daemon that does nothing but wait for the keeper, and cuts the mounts off if the others do not
//! follow.
//!
//! If no daemon can be started, after some attempts, the dead mounts of guarded directories are
//! taken away, so that programs find the plain directories and not `ENOTCONN` for ever. Those of
//! volumes stay, and stay on the list: below them is nothing of what programs mean, and what they
//! would write there would be hidden by the next mount.

use crate::path_views;
use crate::protocol::{Failure, FailureKind};
use crate::roster::Roster;
use crate::served;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};
use systx_protocol::runtime::{self, Runtime};

/// What a daemon says that ends on purpose.
const BYE: &[u8] = b".";
/// Before each attempt to start a daemon.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// A keeper that lived shorter than this is replaced only after a pause.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// How long the rest of a killed daemon may outlive the first thread that ended.
const HANG_LIMIT: Duration = Duration::from_secs(2);
/// How long the keeper waits for a killed daemon that hangs: no other can open its stores.
const HUNG_LIMIT: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The daemon's hold on its keeper.  Dropping it sends the keeper home.
pub struct Keeper {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    dismissed: Event,
}

struct State {
    wanted: bool,
    /// Ends with this process.
    pipe: Option<OwnedFd>,
}

impl Keeper {
    /// Starts one.
    ///
    /// # Errors
    /// No process or thread can be had.
    pub fn start(runtime: &Runtime) -> std::io::Result<Keeper> {
        let state = State { wanted: true, pipe: None };
        let shared =
            Arc::new(Shared { state: Mutex::new(rank::LEAF, state), dismissed: Event::new() });
        let keeper = Keeper { shared: Arc::clone(&shared) };
        let (tell, told) = channel();
        let runtime = runtime.clone();
        std::thread::Builder::new().name("keeper".into()).spawn(move || {
            let first = shared.hire(&runtime);
            let (child, result) = match first {
                Ok(child) => (Some(child), Ok(())),
                Err(e) => (None, Err(e)),
            };
            let _ = tell.send(result);
            if let Some(child) = child {
                shared.replace_when_gone(child, &runtime);
            }
        })?;
        told.recv().map_err(std::io::Error::other)??;
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.wanted = false;
        if let Some(pipe) = state.pipe.take() {
            // If it is gone there is nobody to be told.
            let _ = rustix::io::write(&pipe, BYE);
        }
        self.shared.dismissed.notify_all();
    }
}

impl Shared {
    /// Starts the process; if it is not wanted any more, it goes home at once. Called by the one
    /// thread that lives as long as the keeper is wanted.
    fn hire(&self, runtime: &Runtime) -> std::io::Result<Child> {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (theirs, ours) = rustix::pipe::pipe_with(flags)?;
        let mut state = self.state.lock();
        let child = runtime::keeper_command(runtime)?.stdin(theirs).spawn()?;
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // The pipe is empty: this neither blocks nor stops half-way.
        let _ = rustix::io::write(&ours, &thread.to_ne_bytes());
        if state.wanted {
            state.pipe = Some(ours);
        } else {
            let _ = rustix::io::write(&ours, BYE);
        }
        Ok(child)
    }

    fn replace_when_gone(&self, mut child: Child, runtime: &Runtime) {
        let mut pause = Duration::ZERO;
        loop {
            let begun = Instant::now();
            let ended = child.wait();
            if !self.state.lock().wanted {
                return;
            }
            tracing::warn!("the keeper is gone ({ended:?}): starting another");
            pause = match begun.elapsed() < SHORT_LIFE {
                true => (pause * 2).clamp(Duration::from_millis(100), LONGEST_PAUSE),
                false => Duration::ZERO,
            };
            child = loop {
                if !self.rest(pause) {
                    return;
                }
                match self.hire(runtime) {
                    Ok(child) => break child,
                    Err(e) => {
                        tracing::error!("no keeper: {e}");
                        pause = (pause * 2).clamp(Duration::from_secs(1), LONGEST_PAUSE);
                    }
                }
            };
        }
    }

    /// Waits; false if no keeper is wanted any more.
    fn rest(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut state = self.state.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !state.wanted || left.is_zero() {
                return state.wanted;
            }
            self.dismissed.wait_for(&mut state, left);
        }
    }
}

/// The keeper itself (`systx daemon --keep`): returns when it is not needed any more. Its standard
/// input is the pipe, its standard error the daemon's log.
///
/// # Errors
/// No daemon could be started: the dead mounts of guarded directories were taken away.
pub fn keep(dir: &Path) -> Result<(), Failure> {
    // What ends the daemon's session must not end its keeper.
    let _ = rustix::process::setsid();
    let runtime = Runtime::at(dir)?;
    match watch(&runtime) {
        End::Dismissed => return Ok(()),
        End::Died => {}
        End::Hung => {
            give_up(&runtime, true);
            let text = "the killed daemon hangs, and with it the stores that it had open";
            return Err(Failure::new(FailureKind::Busy, text));
        }
    }
    say(&runtime, "the daemon is gone: starting another");
    let mut last = None;
    for pause in PAUSES {
        std::thread::sleep(pause);
        match runtime::start_in(&runtime) {
            Ok(client) => {
                say(&runtime, &format!("daemon {} has taken over", client.daemon().pid));
                return Ok(());
            }
            Err(failure) => {
                say(&runtime, &format!("no daemon: {failure}"));
                last = Some(failure);
            }
        }
    }
    give_up(&runtime, false);
    last.map_or(Ok(()), Err)
}

/// How a daemon ended.
enum End {
    /// On purpose.
    Dismissed,
    Died,
    /// It died, and does not let go of anything: it was cut off from its mounts.
    Hung,
}

/// Waits for the daemon's end.
fn watch(runtime: &Runtime) -> End {
    let mut pipe = PipeEnd(rustix::stdio::stdin());
    let mut number = [0; size_of::<i32>()];
    if pipe.read_exact(&mut number).is_err() {
        return End::Died;
    }
    if let Ok(thread) = thread(i32::from_ne_bytes(number)) {
        let end = PollFd::new(&pipe.0, PollFlags::IN);
        wait_for(&mut [end.clone(), PollFd::new(&thread, PollFlags::IN)], None);
        if !wait_for(&mut [end.clone()], Some(HANG_LIMIT)) {
            say(runtime, "the killed daemon hangs: its mounts are cut off");
            cut_off(runtime);
            if !wait_for(&mut [end], Some(HUNG_LIMIT)) {
                return End::Hung;
            }
        }
    }
    match pipe.read_exact(&mut [0; BYE.len()]) {
        Ok(()) => End::Dismissed,
        Err(_) => End::Died,
    }
}

/// Standard input without the buffer of the standard library, which could hide what has come.
struct PipeEnd(BorrowedFd<'static>);

impl Read for PipeEnd {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::read(self.0, buf)?)
    }
}

/// A descriptor that becomes readable when a thread has ended (Linux 6.9). (The first thread of a
/// process would not do: it counts as ended when all others are.)
fn thread(number: i32) -> Result<OwnedFd, Errno> {
    // PIDFD_THREAD, which is O_EXCL.
    let thread = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    rustix::process::pidfd_open(Pid::from_raw(number).ok_or(Errno::SRCH)?, thread)
}

/// Waits for any of these; false if `limit` passed.
fn wait_for(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> bool {
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(0) => return false,
            Ok(_) | Err(_) => return true,
        }
    }
}

/// Ends the connections of all guarded directories and of all views, so that whoever waits for an
/// answer gets an error: programs, and threads of the dead daemon itself, which would keep all of
/// them alive. The mounts stay, dead, so that nobody gets past the guard.
pub(crate) fn cut_off(runtime: &Runtime) {
    let roster = Roster::load(&runtime.roster());
    let guarded = roster.dirs().map(Path::to_owned);
    let guarded = guarded.filter(|dir| served::is_ours_at(dir));
    let views = path_views::mounted(&path_views::place(runtime.dir()));
    for dir in views.iter().cloned().chain(guarded) {
        let dir = dir.as_path();
        if let Err(e) = served::cut_off(dir) {
            say(runtime, &format!("{}: {e}", dir.display()));
        }
    }
}

/// Takes the dead mounts of guarded directories away, unless a daemon lives after all. (One that
/// hangs has its lock still.)
fn give_up(runtime: &Runtime, hung: bool) {
    let alone = runtime.try_lock();
    if alone.is_none() && !hung {
        return;
    }
    let file = runtime.roster();
    let mut roster = Roster::load(&file);
    for entry in std::mem::take(&mut roster.entries) {
        let (dir, shown) = (entry.dir.as_path(), entry.dir.as_path().display());
        match served::clear_away(dir, 0) {
            Ok(()) => {
                let why = "no daemon could be started for it";
                say(runtime, &format!("{shown} is not guarded any more: {why}"));
            }
            Err(e) => say(runtime, &format!("cannot unmount {shown}: {e}")),
        }
    }
    roster.volumes.retain(|entry| served::is_ours_at(entry.dir.as_path()));
    for entry in &roster.volumes {
        let shown = entry.dir.as_path().display();
        let next = "the next daemon mounts it again, `systx umount` takes the dead mount away";
        say(runtime, &format!("nobody serves the volume on {shown} any more: {next}"));
    }
    if let Err(failure) = roster.save(&file) {
        say(runtime, &failure.to_string());
    }
}

/// A line in the daemon's log.  The keeper has no other use for a logger, and stays small.
fn say(runtime: &Runtime, text: &str) {
    if let Ok(mut log) = std::fs::OpenOptions::new().append(true).open(runtime.log()) {
        let _ = log.write_all(format!("keeper {}: {text}\n", std::process::id()).as_bytes());
    }
}
