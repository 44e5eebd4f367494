//! The daemon's end of the control connection: accepts, checks who it is, and turns every request
//! into a call of [`Control`].
//!
//! One thread accepts, one serves each connection.  A connection remembers the runs and visits it
//! began; when it ends, for whatever reason, those that it did not end itself go to
//! [`Control::client_gone`].  A panic in a request fails that request, not the daemon.
//!
//! The daemon ends when for [`Config::idle`] there was no connection and [`Control::idle`], on
//! [`Request::Shutdown`], or when [`Config::stop`] becomes readable (SIGTERM).  It first closes
//! the socket, so that a client that comes too late is refused and starts the next daemon, and
//! leaves the socket's name alone: it may already be the next one's ([`crate::spawn`]).
//!
//! Locks: the table of connections is a leaf; no call of `Control` is made with it held.

use crate::protocol::{
    Begin, Control, Doorbell, Failure, FailureKind, Peer, Reply, Request, VERSION,
};
use crate::wire::{self, WireError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::TxnId;
use systx_base::progress::{self, Progress};
use systx_base::sync::{Mutex, rank};

/// How long the daemon outlives its last use.
pub const IDLE: Duration = Duration::from_secs(10);

/// How a server runs.
#[derive(Debug)]
pub struct Config {
    /// How long it outlives its last use.
    pub idle: Duration,
    /// Ends the server when it becomes readable.
    pub stop: Option<OwnedFd>,
}

impl Default for Config {
    fn default() -> Self {
        Config { idle: IDLE, stop: None }
    }
}

/// Why a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nobody used it.
    Idle,
    /// [`Request::Shutdown`].
    Asked,
    /// [`Config::stop`].
    Stopped,
    /// It never served: another daemon does.
    Spare,
}

struct Shared {
    control: Arc<dyn Control>,
    table: Mutex<Table>,
    /// Rung whenever `table` changed, so that the accepting thread looks again.
    changed: OwnedFd,
}

#[derive(Default)]
struct Table {
    connections: usize,
    /// How far the request is that a connection waits for, by the connection's number.
    progress: BTreeMap<u64, Arc<Progress>>,
    /// The last number that was given.
    number: u64,
    asked_to_end: bool,
}

impl Shared {
    fn change(&self, f: impl FnOnce(&mut Table)) {
        f(&mut self.table.lock());
        // Full counter: the thread is going to look anyway.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }
}

/// Serves until the daemon may end; then calls [`Control::shutdown`].
///
/// # Errors
/// The listening socket itself fails.
pub fn serve(
    listener: UnixListener,
    control: Arc<dyn Control>,
    config: &Config,
) -> std::io::Result<Ended> {
    listener.set_nonblocking(true)?;
    let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared =
        Arc::new(Shared { control, table: Mutex::new(rank::LEAF, Table::default()), changed });
    let mut idle_since: Option<Instant> = None;
    let ended = loop {
        let (connections, asked) = {
            let table = shared.table.lock();
            (table.connections, table.asked_to_end)
        };
        if asked {
            break Ended::Asked;
        }
        let left = if connections == 0 && shared.control.idle() {
            let since = *idle_since.get_or_insert_with(Instant::now);
            let left = config.idle.saturating_sub(since.elapsed());
            if left.is_zero() {
                break Ended::Idle;
            }
            Some(left)
        } else {
            idle_since = None;
            // Views that outlive their transactions end without a connection: look again.
            (connections == 0).then_some(config.idle)
        };
        match wait(&listener, &shared.changed, config.stop.as_ref(), left)? {
            Woken::Stop => break Ended::Stopped,
            Woken::Connection => {
                if accept(&listener, &shared)? {
                    idle_since = None;
                }
            }
            Woken::Other => {}
        }
    };
    drop(listener);
    shared.control.shutdown();
    Ok(ended)
}

enum Woken {
    Connection,
    Stop,
    Other,
}

fn wait(
    listener: &UnixListener,
    changed: &OwnedFd,
    stop: Option<&OwnedFd>,
    left: Option<Duration>,
) -> std::io::Result<Woken> {
    let mut fds = vec![PollFd::new(listener, PollFlags::IN), PollFd::new(changed, PollFlags::IN)];
    if let Some(stop) = stop {
        fds.push(PollFd::new(stop, PollFlags::IN));
    }
    let timeout = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    let ready = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
    let (connection, change, stopped) = (ready(0), ready(1), ready(2));
    drop(fds);
    if change {
        // Nonblocking; empties the counter.
        let _ = rustix::io::read(changed, &mut [0u8; 8]);
    }
    Ok(if stopped {
        Woken::Stop
    } else if connection {
        Woken::Connection
    } else {
        Woken::Other
    })
}

/// Takes one connection; true if somebody with the right to it was there.
fn accept(listener: &UnixListener, shared: &Arc<Shared>) -> std::io::Result<bool> {
    use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    let stream = match listener.accept() {
        Ok((stream, _)) => stream,
        Err(e) if matches!(e.kind(), WouldBlock | Interrupted | ConnectionAborted) => {
            return Ok(false);
        }
        // Out of descriptors or memory: others will give theirs back; do not spin meanwhile.
        Err(e) if matches!(e.raw_os_error(), Some(23 | 24 | 12 | 105)) => {
            tracing::warn!("accept: {e}");
            std::thread::sleep(Duration::from_millis(50));
            return Ok(false);
        }
        Err(e) => return Err(e),
    };
    stream.set_nonblocking(false)?;
    let Some(peer) = peer(&stream) else {
        return Ok(false);
    };
    let progress = Arc::new(Progress::default());
    let mut number = 0;
    shared.change(|t| {
        t.connections += 1;
        t.number += 1;
        number = t.number;
        t.progress.insert(number, Arc::clone(&progress));
    });
    let gone = move |t: &mut Table| {
        t.connections -= 1;
        t.progress.remove(&number);
    };
    let theirs = shared.clone();
    let spawned = std::thread::Builder::new().name("control".into()).spawn(move || {
        let control = &theirs.control;
        let runs = BTreeSet::new();
        let views = Vec::new();
        let mut connection = Connection { stream, peer, number, progress, control, runs, views };
        let end = connection.run(&theirs);
        if let Err(e) = end {
            tracing::warn!(pid = peer.pid, "control connection ended: {e}");
        }
        for id in std::mem::take(&mut connection.runs) {
            tracing::info!(%id, pid = peer.pid, "client gone");
            if catch_unwind(AssertUnwindSafe(|| theirs.control.client_gone(id))).is_err() {
                tracing::error!(%id, "client_gone panicked");
            }
        }
        drop(connection);
        theirs.change(gone);
    });
    if let Err(e) = spawned {
        tracing::error!("no thread for a connection: {e}");
        shared.change(gone);
    }
    Ok(true)
}

/// Who is at the other end, if it is the user whose daemon this is.
fn peer(stream: &UnixStream) -> Option<Peer> {
    let cred = match rustix::net::sockopt::socket_peercred(stream) {
        Ok(cred) => cred,
        Err(e) => {
            tracing::warn!("peer credentials: {e}");
            return None;
        }
    };
    let uid = cred.uid.as_raw();
    if uid != rustix::process::geteuid().as_raw() {
        tracing::warn!(uid, "connection of another user refused");
        return None;
    }
    let pid = u32::try_from(cred.pid.as_raw_nonzero().get()).unwrap_or(0);
    Some(Peer { pid, uid })
}

struct Connection<'a> {
    stream: UnixStream,
    peer: Peer,
    /// What the client calls it to another connection.
    number: u64,
    /// How far its request is.
    progress: Arc<Progress>,
    control: &'a Arc<dyn Control>,
    /// Runs and visits that were begun here and are not yet ended.
    runs: BTreeSet<TxnId>,
    /// A directory of each view of a run that has ended, and its watch, given along with the end.
    /// The kernel frees what it knew of a view with the last of them, some microseconds for each
    /// file: here nobody waits for that. Not before the client is gone, or it would be the last.
    views: Vec<OwnedFd>,
}

impl Connection<'_> {
    fn run(&mut self, shared: &Shared) -> Result<(), WireError> {
        let hello = wire::receive::<Request>(&self.stream)?.message;
        let mine = Reply::Hello {
            version: VERSION,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            connection: self.number,
        };
        wire::send(&self.stream, &mine, &[], &[])?;
        if !matches!(hello, Request::Hello { version: VERSION, .. }) {
            return Ok(());
        }
        loop {
            let frame = match wire::receive::<Request>(&self.stream) {
                Ok(frame) => frame,
                Err(WireError::Closed) => return Ok(()),
                Err(WireError::Json(e)) => {
                    let text = format!("request not understood: {e}");
                    self.reply(&Reply::Failed(Failure::new(FailureKind::Invalid, text)), &[])?;
                    return Ok(());
                }
                Err(e) => return Err(e),
            };
            if let Request::Shutdown { force } = frame.message {
                let done = self.shutdown(shared, force);
                self.reply(&done, &[])?;
                continue;
            }
            if let Request::Progress { connection } = frame.message {
                let theirs = shared.table.lock().progress.get(&connection).cloned();
                let seen = theirs.and_then(|progress| progress.seen());
                self.reply(&Reply::Progress(seen.map(Into::into)), &[])?;
                continue;
            }
            let name = name_of(&frame.message);
            let progress = Arc::clone(&self.progress);
            let answer = catch_unwind(AssertUnwindSafe(|| {
                progress::watched(&progress, || self.dispatch(frame.message, frame.fds))
            }));
            let (reply, blob) = match answer {
                Ok(Ok(answer)) => answer,
                Ok(Err(failure)) => {
                    tracing::info!(request = name, "refused: {failure}");
                    (Reply::Failed(failure), Vec::new())
                }
                Err(_) => {
                    let text = format!("the daemon failed in {name} (see its log)");
                    (Reply::Failed(Failure::new(FailureKind::Internal, text)), Vec::new())
                }
            };
            self.reply(&reply, &blob)?;
        }
    }

    fn reply(&self, reply: &Reply, blob: &[u8]) -> Result<(), WireError> {
        match wire::send(&self.stream, reply, blob, &[]) {
            Err(e @ WireError::TooLong { .. }) => {
                // Nothing of it was sent: the stream is in step.
                let failure = Failure::new(FailureKind::Space, format!("the answer: {e}"))
                    .hint("ask for fewer paths");
                wire::send(&self.stream, &Reply::Failed(failure), &[], &[])
            }
            other => other,
        }
    }

    fn shutdown(&self, shared: &Shared, force: bool) -> Reply {
        if !force && !self.control.idle() {
            let guarded = self.control.guarded().unwrap_or_default();
            let volumes = self.control.volumes().unwrap_or_default();
            let (what, hint) = match (guarded.as_slice(), volumes.as_slice()) {
                ([], []) => {
                    ("transactions are open", "systx list; or force the end, which aborts them")
                }
                _ => (
                    "directories are guarded, or volumes are mounted",
                    "systx mount lists them, systx umount ends that; or force the end, which \
                     unmounts them",
                ),
            };
            let mut failure = Failure::new(FailureKind::State, what).hint(hint);
            let volumes = volumes.into_iter().map(|v| v.dir);
            failure.paths = guarded.into_iter().map(|g| g.dir).chain(volumes).collect();
            return Reply::Failed(failure);
        }
        shared.change(|t| t.asked_to_end = true);
        Reply::Done
    }

    fn dispatch(
        &mut self,
        request: Request,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(Reply, Vec<u8>), Failure> {
        let c = self.control;
        let reply = match request {
            Request::Begin(begin) => self.begin(begin, descriptor(&mut fds)?)?,
            Request::BeginOpen(begin) => Reply::BegunOpen(c.begin_open(self.peer, begin)?),
            Request::Attach(attach) => Reply::Attached(c.attach(attach, descriptor(&mut fds)?)?),
            Request::Finish(finish) => {
                let id = finish.id;
                // What takes longest comes first, and is closed last.
                self.views.extend(fds.drain(..).rev());
                let outcome = c.finish(finish)?;
                self.runs.remove(&id);
                Reply::Outcome(outcome)
            }
            Request::Enter { id } => {
                let entered = c.enter(self.peer, id)?;
                if entered.live.is_none() && entered.mounted.is_none() {
                    self.runs.insert(id);
                }
                Reply::Entered(entered)
            }
            Request::Leave { id } => {
                c.leave(id)?;
                self.runs.remove(&id);
                Reply::Done
            }
            Request::Doom { id } => Reply::Doom(c.doom(id)?),
            Request::WaitFor { id, limit_ms } => Reply::Ended(c.wait_for(id, limit_ms)?),
            Request::List => Reply::List(c.list()?),
            Request::Top => Reply::Top(c.top()?),
            Request::Status { id } => Reply::Status(Box::new(c.status(id)?)),
            Request::Diff { target, paths } => Reply::Changes(c.diff(target, paths)?),
            Request::Content { target, path, version, limit } => {
                let limit = limit.min(wire::MAX_BLOB as u64);
                let content = c.content(target, path, version, limit)?;
                let reply = Reply::Content { total: content.total, unknown: content.unknown };
                return Ok((reply, content.bytes));
            }
            Request::Commit { id, paths } => Reply::Outcome(c.commit(id, paths)?),
            Request::Abort { id } => Reply::Outcome(c.abort(self.peer, id)?),
            Request::Log { place, limit, paths } => Reply::Log(c.log(place, limit, paths)?),
            Request::Deferred(place) => Reply::Deferred(c.deferred(place)?),
            Request::Settle(settle) => {
                c.settle(settle)?;
                Reply::Done
            }
            Request::Undo(undo) => Reply::Undone(c.undo(self.peer, undo)?),
            Request::Redo(undo) => Reply::Undone(c.redo(self.peer, undo)?),
            Request::Recover { place, trusted } => Reply::Recovered(c.recover(place, trusted)?),
            Request::Gc(gc) => Reply::Collected(c.gc(gc)?),
            Request::Inspect(place) => Reply::Inspected(c.inspect(place)?),
            Request::Mount(mount) => Reply::Mounted(c.mount(self.peer, mount)?),
            Request::Umount(umount) => Reply::Unmounted(c.umount(self.peer, umount)?),
            Request::Guarded => Reply::Guarded(c.guarded()?),
            Request::MountVolume(mount) => Reply::MountedVolume(c.mount_volume(self.peer, mount)?),
            Request::Volumes => Reply::Volumes(c.volumes()?),
            Request::Snapshots(about) => Reply::Snapshots(c.snapshots(about)?),
            Request::Protect(about) => Reply::Protection(c.protect(self.peer, about)?),
            Request::Hello { .. } | Request::Shutdown { .. } | Request::Progress { .. } => {
                return Err(Failure::new(FailureKind::Invalid, "request out of step"));
            }
        };
        Ok((reply, Vec::new()))
    }

    fn begin(&mut self, begin: Begin, doorbell: OwnedFd) -> Result<Reply, Failure> {
        // Of the attempt before.
        self.views.clear();
        // The daemon rings with locks held: whatever descriptor the client sent must not block it.
        let flags = rustix::fs::fcntl_getfl(&doorbell).and_then(|flags| {
            rustix::fs::fcntl_setfl(doorbell.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)
        });
        flags.map_err(|e| Failure::new(FailureKind::Invalid, format!("doorbell: {e}")))?;
        let begun = self.control.begin(self.peer, begin, Doorbell(doorbell))?;
        self.runs.insert(begun.id);
        Ok(Reply::Begun(begun))
    }
}

fn descriptor(fds: &mut Vec<OwnedFd>) -> Result<OwnedFd, Failure> {
    fds.pop()
        .filter(|_| fds.is_empty())
        .ok_or_else(|| Failure::new(FailureKind::Invalid, "exactly one descriptor is needed"))
}

fn name_of(request: &Request) -> &'static str {
    match request {
        Request::Hello { .. } => "hello",
        Request::Begin(_) => "begin",
        Request::BeginOpen(_) => "begin_open",
        Request::Attach(_) => "attach",
        Request::Finish(_) => "finish",
        Request::Doom { .. } => "doom",
        Request::WaitFor { .. } => "wait_for",
        Request::List => "list",
        Request::Top => "top",
        Request::Status { .. } => "status",
        Request::Diff { .. } => "diff",
        Request::Content { .. } => "content",
        Request::Commit { .. } => "commit",
        Request::Abort { .. } => "abort",
        Request::Enter { .. } => "enter",
        Request::Leave { .. } => "leave",
        Request::Log { .. } => "log",
        Request::Deferred(_) => "deferred",
        Request::Settle(_) => "settle",
        Request::Undo(_) => "undo",
        Request::Redo(_) => "redo",
        Request::Recover { .. } => "recover",
        Request::Gc(_) => "gc",
        Request::Inspect(_) => "inspect",
        Request::Mount(_) => "mount",
        Request::Umount(_) => "umount",
        Request::Guarded => "guarded",
        Request::MountVolume(_) => "mount_volume",
        Request::Volumes => "volumes",
        Request::Snapshots(_) => "snapshots",
        Request::Protect(_) => "protect",
        Request::Progress { .. } => "progress",
        Request::Shutdown { .. } => "shutdown",
    }
}

#[cfg(test)]
mod tests;
