//! The client's end of the control connection: one method per request.
//!
//! Single-threaded by design: `systx run` forks, and a process that forks should have one thread.
//! So whoever wants to be told how far a request is ([`Watcher`]) is told between two looks for the
//! answer.

use crate::wire::{self, WireError};
use crate::{
    Attach, Attached, Begin, BeginOpen, Begun, BegunOpen, Change, Collected, Conflict, Content,
    Deferred, Entered, Failure, FailureKind, Finish, Gc, GuardedDir, HostPath, Inspected, Listed,
    LogEntry, Mount, MountVolume, Mounted, MountedVolume, Outcome, Place, Progress, Protect,
    Protection, Recovered, Reply, Request, Settle, Snapshots, Status, Target, Umount, Undo, Undone,
    Unmounted, VERSION, Version, VolumeActivity, VolumeSnapshot,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use systx_base::TxnId;

/// What is answered within this time needs no telling how far it is.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at how far a request is.
const LOOK: Duration = Duration::from_millis(100);

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    daemon: DaemonFacts,
    /// What the daemon calls this connection.
    connection: u64,
    watcher: Option<Box<dyn Watcher>>,
}

/// Is told how far a request is while its answer is waited for, if that takes long.
pub trait Watcher: std::fmt::Debug {
    /// Another connection to the same daemon; `None`: then nothing is told.
    fn connect(&mut self) -> Option<Client>;
    /// It is there now.
    fn at(&mut self, progress: Progress);
    /// The answer is there, after [`Watcher::at`] was called.
    fn over(&mut self);
}

/// What the daemon said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonFacts {
    /// Its protocol, equal to [`VERSION`].
    pub version: u32,
    /// Its release.
    pub release: String,
    /// Its process id.
    pub pid: u32,
}

type Answer<T> = Result<T, Failure>;

impl From<WireError> for Failure {
    fn from(e: WireError) -> Failure {
        match e {
            WireError::Closed => {
                Failure::new(FailureKind::Internal, "the daemon ended while it was asked")
            }
            e @ WireError::Io(_) => Failure::new(FailureKind::Io, e.to_string()),
            e => Failure::new(FailureKind::Internal, e.to_string()),
        }
    }
}

/// Takes the variant that answers the request out of a reply.
macro_rules! expect {
    ($reply:expr, $variant:pat => $value:expr) => {
        match $reply {
            ($variant, _) => Ok($value),
            other => Err(out_of_step(&other.0)),
        }
    };
}

impl Client {
    /// Says hello over a fresh connection.
    ///
    /// # Errors
    /// [`FailureKind::Version`] if the daemon is of another version; or the connection failed.
    pub fn new(stream: UnixStream) -> Answer<Client> {
        let none = DaemonFacts { version: 0, release: String::new(), pid: 0 };
        let mut client = Client { stream, daemon: none, connection: 0, watcher: None };
        let release = env!("CARGO_PKG_VERSION").to_owned();
        match client.call(&Request::Hello { version: VERSION, release }, &[])? {
            (Reply::Hello { version: VERSION, release, pid, connection }, _) => {
                client.connection = connection;
                client.daemon = DaemonFacts { version: VERSION, release, pid };
                Ok(client)
            }
            (Reply::Hello { version, release, pid, .. }, _) => Err(Failure::new(
                FailureKind::Version,
                format!(
                    "the running daemon (pid {pid}, systx {release}) speaks protocol {version}, \
                     this systx speaks {VERSION}"
                ),
            )
            .hint(format!(
                "it ends by itself once its transactions have ended; or end it with: kill {pid}"
            ))),
            (other, _) => Err(out_of_step(&other)),
        }
    }

    /// The daemon at the other end.
    pub fn daemon(&self) -> &DaemonFacts {
        &self.daemon
    }

    fn call(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Answer<(Reply, Vec<u8>)> {
        wire::send(&self.stream, request, &[], fds)?;
        self.tell_watcher();
        let frame = wire::receive::<Reply>(&self.stream)?;
        match frame.message {
            Reply::Failed(failure) => Err(failure),
            reply => Ok((reply, frame.blob)),
        }
    }

    /// From now on `watcher` is told how far requests are.
    pub fn watch(&mut self, watcher: Box<dyn Watcher>) {
        self.watcher = Some(watcher);
    }

    /// Tells the watcher how far the request is, until there is an answer to receive.
    fn tell_watcher(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        if is_readable(&self.stream, PATIENCE) {
            return;
        }
        let Some(mut other) = watcher.connect() else { return };
        let mut told = false;
        // Where that connection fails the answer is waited for without.
        while let Ok(seen) = other.progress(self.connection) {
            if let Some(progress) = seen {
                watcher.at(progress);
                told = true;
            }
            if is_readable(&self.stream, LOOK) {
                break;
            }
        }
        if told {
            watcher.over();
        }
    }

    /// How far the request is that another connection, of this number, waits for; `None`: nothing
    /// that takes long is under way.
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn progress(&mut self, connection: u64) -> Answer<Option<Progress>> {
        expect!(self.call(&Request::Progress { connection }, &[])?, Reply::Progress(v) => v)
    }

    /// [`crate::Control::begin`]; `doorbell` is an eventfd, a copy of which goes to the
    /// daemon.
    ///
    /// # Errors
    /// What the daemon answered, or the connection failed; so for every method.
    pub fn begin(&mut self, begin: Begin, doorbell: BorrowedFd<'_>) -> Answer<Begun> {
        expect!(self.call(&Request::Begin(begin), &[doorbell])?, Reply::Begun(v) => v)
    }
    /// [`crate::Control::begin_open`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn begin_open(&mut self, begin: BeginOpen) -> Answer<BegunOpen> {
        expect!(self.call(&Request::BeginOpen(begin), &[])?, Reply::BegunOpen(v) => v)
    }
    /// As [`Client::begin_open`], of another user's daemon: `directory` is what the transaction is
    /// to show.
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn begin_as_guest(
        &mut self,
        begin: BeginOpen,
        directory: BorrowedFd<'_>,
    ) -> Answer<BegunOpen> {
        expect!(self.call(&Request::BeginOpen(begin), &[directory])?, Reply::BegunOpen(v) => v)
    }
    /// [`crate::Control::attach`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn attach(&mut self, attach: Attach, fuse: OwnedFd) -> Answer<Attached> {
        expect!(self.call(&Request::Attach(attach), &[fuse.as_fd()])?, Reply::Attached(v) => v)
    }
    /// [`crate::Control::finish`].  `open`: what nobody needs any more and is slow to close (a
    /// directory of each of its views, a watch); the daemon closes it when this client is gone, so
    /// that it need not wait for the kernel.
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn finish(&mut self, finish: Finish, open: &[OwnedFd]) -> Answer<Outcome> {
        // Of more than fit, this process closes the rest itself.
        let open: Vec<_> = open.iter().take(wire::MAX_FDS).map(AsFd::as_fd).collect();
        expect!(self.call(&Request::Finish(finish), &open)?, Reply::Outcome(v) => v)
    }
    /// [`crate::Control::doom`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn doom(&mut self, id: TxnId) -> Answer<Option<Conflict>> {
        expect!(self.call(&Request::Doom { id }, &[])?, Reply::Doom(v) => v)
    }
    /// [`crate::Control::wait_for`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn wait_for(&mut self, id: TxnId, limit: Duration) -> Answer<bool> {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        expect!(self.call(&Request::WaitFor { id, limit_ms }, &[])?, Reply::Ended(v) => v)
    }
    /// [`crate::Control::list`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn list(&mut self) -> Answer<Vec<Listed>> {
        expect!(self.call(&Request::List, &[])?, Reply::List(v) => v)
    }
    /// [`crate::Control::top`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn top(&mut self) -> Answer<Vec<VolumeActivity>> {
        expect!(self.call(&Request::Top, &[])?, Reply::Top(v) => v)
    }
    /// [`crate::Control::status`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn status(&mut self, id: TxnId) -> Answer<Status> {
        expect!(self.call(&Request::Status { id }, &[])?, Reply::Status(v) => *v)
    }
    /// [`crate::Control::diff`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn diff(&mut self, target: Target, paths: Vec<HostPath>) -> Answer<Vec<Change>> {
        expect!(self.call(&Request::Diff { target, paths }, &[])?, Reply::Changes(v) => v)
    }
    /// [`crate::Control::content`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn content(
        &mut self,
        target: Target,
        path: HostPath,
        version: Version,
        limit: u64,
    ) -> Answer<Content> {
        match self.call(&Request::Content { target, path, version, limit }, &[])? {
            (Reply::Content { total, unknown }, bytes) => Ok(Content { bytes, total, unknown }),
            (other, _) => Err(out_of_step(&other)),
        }
    }
    /// [`crate::Control::commit`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn commit(&mut self, id: TxnId, paths: Vec<HostPath>) -> Answer<Outcome> {
        expect!(self.call(&Request::Commit { id, paths }, &[])?, Reply::Outcome(v) => v)
    }
    /// [`crate::Control::abort`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn abort(&mut self, id: TxnId) -> Answer<Outcome> {
        expect!(self.call(&Request::Abort { id }, &[])?, Reply::Outcome(v) => v)
    }
    /// [`crate::Control::enter`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn enter(&mut self, id: TxnId) -> Answer<Entered> {
        expect!(self.call(&Request::Enter { id }, &[])?, Reply::Entered(v) => v)
    }
    /// [`crate::Control::leave`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn leave(&mut self, id: TxnId) -> Answer<()> {
        expect!(self.call(&Request::Leave { id }, &[])?, Reply::Done => ())
    }
    /// [`crate::Control::log`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn log(
        &mut self,
        place: Place,
        limit: Option<u64>,
        paths: Vec<HostPath>,
    ) -> Answer<Vec<LogEntry>> {
        expect!(self.call(&Request::Log { place, limit, paths }, &[])?, Reply::Log(v) => v)
    }
    /// [`crate::Control::deferred`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn deferred(&mut self, place: Option<Place>) -> Answer<Vec<Deferred>> {
        expect!(self.call(&Request::Deferred(place), &[])?, Reply::Deferred(v) => v)
    }
    /// [`crate::Control::settle`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn settle(&mut self, settle: Settle) -> Answer<()> {
        expect!(self.call(&Request::Settle(settle), &[])?, Reply::Done => ())
    }
    /// [`crate::Control::undo`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn undo(&mut self, undo: Undo) -> Answer<Undone> {
        expect!(self.call(&Request::Undo(undo), &[])?, Reply::Undone(v) => v)
    }
    /// [`crate::Control::redo`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn redo(&mut self, undo: Undo) -> Answer<Undone> {
        expect!(self.call(&Request::Redo(undo), &[])?, Reply::Undone(v) => v)
    }
    /// [`crate::Control::recover`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn recover(&mut self, place: Place, trusted: bool) -> Answer<Recovered> {
        expect!(self.call(&Request::Recover { place, trusted }, &[])?, Reply::Recovered(v) => v)
    }
    /// [`crate::Control::gc`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn gc(&mut self, gc: Gc) -> Answer<Collected> {
        expect!(self.call(&Request::Gc(gc), &[])?, Reply::Collected(v) => v)
    }
    /// [`crate::Control::inspect`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn inspect(&mut self, place: Place) -> Answer<Inspected> {
        expect!(self.call(&Request::Inspect(place), &[])?, Reply::Inspected(v) => v)
    }
    /// [`crate::Control::mount`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn mount(&mut self, mount: Mount) -> Answer<Mounted> {
        expect!(self.call(&Request::Mount(mount), &[])?, Reply::Mounted(v) => v)
    }
    /// [`crate::Control::umount`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn umount(&mut self, umount: Umount) -> Answer<Unmounted> {
        expect!(self.call(&Request::Umount(umount), &[])?, Reply::Unmounted(v) => v)
    }
    /// [`crate::Control::guarded`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn guarded(&mut self) -> Answer<Vec<GuardedDir>> {
        expect!(self.call(&Request::Guarded, &[])?, Reply::Guarded(v) => v)
    }
    /// [`crate::Control::mount_volume`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn mount_volume(&mut self, mount: MountVolume) -> Answer<MountedVolume> {
        expect!(self.call(&Request::MountVolume(mount), &[])?, Reply::MountedVolume(v) => v)
    }
    /// [`crate::Control::volumes`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn volumes(&mut self) -> Answer<Vec<MountedVolume>> {
        expect!(self.call(&Request::Volumes, &[])?, Reply::Volumes(v) => v)
    }
    /// [`crate::Control::snapshots`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn snapshots(&mut self, snapshots: Snapshots) -> Answer<Vec<VolumeSnapshot>> {
        expect!(self.call(&Request::Snapshots(snapshots), &[])?, Reply::Snapshots(v) => v)
    }
    /// [`crate::Control::protect`].
    ///
    /// # Errors
    /// See [`Client::begin`].
    pub fn protect(&mut self, protect: Protect) -> Answer<Vec<Protection>> {
        expect!(self.call(&Request::Protect(protect), &[])?, Reply::Protection(v) => v)
    }
    /// Ends the daemon.
    ///
    /// # Errors
    /// Transactions are open or directories are guarded, and `force` is not set; see
    /// [`Client::begin`].
    pub fn shutdown(&mut self, force: bool) -> Answer<()> {
        expect!(self.call(&Request::Shutdown { force }, &[])?, Reply::Done => ())
    }
}

impl AsFd for Client {
    /// To poll for the daemon's end: between two requests it becomes readable only then.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Whether there is something to receive (the end included), now or within the time given.
fn is_readable(stream: &UnixStream, limit: Duration) -> bool {
    let nanos = limit.subsec_nanos().into();
    let limit = Timespec { tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: nanos };
    // An error, also an interruption, is no answer: whoever asks looks again.
    poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

fn out_of_step(reply: &Reply) -> Failure {
    let name = format!("{reply:?}");
    let name = name.split(['(', ' ', '{']).next().unwrap_or_default();
    Failure::new(FailureKind::Internal, format!("the daemon gave an answer out of step: {name}"))
}
