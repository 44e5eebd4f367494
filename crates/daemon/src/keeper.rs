//! The keeper: a small process beside a daemon that has guarded directories.  If the daemon dies, the
//! keeper starts the next one, which mounts them again ([`crate::guards`]) and has a keeper of its own.
//!
//! The two know of each other by a pipe that ends with the daemon, however it dies, and by the daemon
//! being the keeper's parent: a keeper that dies is replaced.  A daemon that ends on purpose says so through
//! the pipe.  If both die, the next `systx` that starts a daemon has the same effect.
//!
//! If no daemon can be started, after some attempts, the dead mounts are taken away, so that programs find
//! the plain directories and not `ENOTCONN` for ever.

use crate::guarded;
use crate::roster::Roster;
use crate::spawn::{self, Runtime};
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};

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
        let child = shared.hire(runtime)?;
        let (theirs, runtime) = (Arc::clone(&shared), runtime.clone());
        // If this fails, dropping `keeper` sends the child home.
        let keeper = Keeper { shared };
        std::thread::Builder::new()
            .name("keeper".into())
            .spawn(move || theirs.replace_when_gone(child, &runtime))?;
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
    /// Starts the process, unless it is not wanted any more: then the child goes home at once.
    fn hire(&self, runtime: &Runtime) -> std::io::Result<Child> {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (theirs, ours) = rustix::pipe::pipe_with(flags)?;
        let mut state = self.state.lock();
        let child = spawn::keeper_command(runtime)?.stdin(theirs).spawn()?;
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

/// The keeper itself (`systx daemon --keep`): returns when it is not needed any more.  Its standard input
/// is the pipe, its standard error the daemon's log.
///
/// # Errors
/// No daemon could be started: the dead mounts were taken away.
pub fn keep(dir: &Path) -> Result<(), crate::protocol::Failure> {
    // What ends the daemon's session must not end its keeper.
    let _ = rustix::process::setsid();
    if dismissed() {
        return Ok(());
    }
    let runtime = Runtime::at(dir)?;
    say(&runtime, "the daemon is gone: starting another");
    let mut last = None;
    for pause in PAUSES {
        std::thread::sleep(pause);
        match spawn::start_in(&runtime) {
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
    give_up(&runtime);
    last.map_or(Ok(()), Err)
}

/// Waits for the daemon's end; whether it ended on purpose.
fn dismissed() -> bool {
    let mut byte = [0];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut byte) {
            Err(Errno::INTR) => {}
            Ok(1..) => return true,
            Ok(0) | Err(_) => return false,
        }
    }
}

/// Takes the dead mounts away, unless a daemon lives after all.
fn give_up(runtime: &Runtime) {
    let Some(_alone) = runtime.try_lock() else { return };
    let file = runtime.roster();
    let mut roster = Roster::load(&file);
    for entry in std::mem::take(&mut roster.entries) {
        let dir = entry.dir.as_path();
        match guarded::clear_away(dir, 0) {
            Ok(()) => say(
                runtime,
                &format!(
                    "{} is not guarded any more: no daemon could be started for it",
                    dir.display()
                ),
            ),
            Err(e) => say(runtime, &format!("cannot unmount {}: {e}", dir.display())),
        }
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
