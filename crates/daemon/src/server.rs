//! The daemon's end of the control connection: accepts, checks who it is, and has every request
//! answered by [`Control`].
//!
//! One thread accepts, one serves each connection.  A connection remembers the runs and visits it
//! began; when it ends, for whatever reason, those that it did not end itself go to
//! [`Control::client_gone`].  A panic in a request fails that request, not the daemon.
//!
//! The daemon ends when for [`Config::idle`] there was no connection and [`Control::idle`], on
//! [`Shutdown`], or when [`Config::stop`] becomes readable (SIGTERM).  It first closes
//! the socket, so that a client that comes too late is refused and starts the next daemon, and
//! leaves the socket's name alone: it may already be the next one's ([`crate::spawn`]).
//!
//! Locks: the table of connections is a leaf; no call of `Control` is made with it held.

use crate::protocol::call::{self, Greeting, Guarded, Hello, Reply, Request, Shutdown, Volumes};
use crate::protocol::{Asker, Call, Control, Failure, FailureKind, Peer};
use crate::wire::{self, WireError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
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
    /// [`Shutdown`].
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
        let asker = Asker::new(peer, &stream);
        let mut connection = Connection { stream, number, progress, shared: &theirs, asker };
        let end = connection.run();
        if let Err(e) = end {
            tracing::warn!(pid = peer.pid, "control connection ended: {e}");
        }
        for id in std::mem::take(&mut connection.asker.runs) {
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
    /// What the client calls it to another connection.
    number: u64,
    /// How far its request is.
    progress: Arc<Progress>,
    shared: &'a Shared,
    asker: Asker,
}

impl Connection<'_> {
    fn run(&mut self) -> Result<(), WireError> {
        let hello = wire::receive::<Request>(&self.stream)?.message;
        let ours = Reply::new::<Hello>(&Greeting::ours(self.number))?;
        wire::send(&self.stream, &ours, &[], &[])?;
        if !hello.is_ours() {
            return Ok(());
        }
        loop {
            let frame = match wire::receive::<Request>(&self.stream) {
                Ok(frame) => frame,
                Err(WireError::Closed) => return Ok(()),
                Err(WireError::Json(e)) => {
                    let text = format!("request not understood: {e}");
                    let failure = Failure::new(FailureKind::Invalid, text);
                    return self.reply(&Reply::failed(&failure)?, &[]);
                }
                Err(e) => return Err(e),
            };
            let request = frame.message;
            self.asker.fds = frame.fds;
            let answer = catch_unwind(AssertUnwindSafe(|| self.answer(&request)));
            self.asker.fds.clear();
            let reply = match answer {
                Ok(Ok(reply)) => reply,
                Ok(Err(failure)) => {
                    tracing::info!(request = request.name, "refused: {failure}");
                    Reply::failed(&failure)?
                }
                Err(_) => {
                    let text = format!("the daemon failed in {} (see its log)", request.name);
                    Reply::failed(&Failure::new(FailureKind::Internal, text))?
                }
            };
            let beside = std::mem::take(&mut self.asker.beside);
            self.reply(&reply, &beside)?;
        }
    }

    fn reply(&self, reply: &Reply, beside: &[u8]) -> Result<(), WireError> {
        match wire::send(&self.stream, reply, beside, &[]) {
            Err(e @ WireError::TooLong { .. }) => {
                // Nothing of it was sent: the stream is in step.
                let failure = Failure::new(FailureKind::Space, format!("the answer: {e}"))
                    .hint("ask for fewer paths");
                wire::send(&self.stream, &Reply::failed(&failure)?, &[], &[])
            }
            other => other,
        }
    }

    fn answer(&mut self, request: &Request) -> Result<Reply, Failure> {
        match request.name {
            call::Progress::NAME => request.answered(|call: call::Progress| {
                let table = self.shared.table.lock();
                let seen = table.progress.get(&call.connection).and_then(|theirs| theirs.seen());
                Ok(seen.map(Into::into))
            }),
            Shutdown::NAME => request.answered(|call| self.shutdown(&call)),
            _ => {
                let (control, asker) = (&self.shared.control, &mut self.asker);
                progress::watched(&self.progress, || control.answer(asker, request))
            }
        }
    }

    /// What the daemon answers itself.
    fn ask<C: Call>(&mut self, call: &C) -> Result<C::Answer, Failure> {
        self.shared.control.answer(&mut self.asker, &Request::new(call)?)?.read::<C>()
    }

    fn shutdown(&mut self, call: &Shutdown) -> Result<(), Failure> {
        if !call.force && !self.shared.control.idle() {
            let guarded = self.ask(&Guarded).unwrap_or_default();
            let volumes = self.ask(&Volumes).unwrap_or_default();
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
            return Err(failure);
        }
        self.shared.change(|t| t.asked_to_end = true);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
