//! The client's end of the control connection.
//!
//! Single-threaded by design: `systx run` forks, and a process that forks should have one thread.
//! So whoever wants to be told how far a request is ([`Watcher`]) is told between two looks for the
//! answer.

use crate::call::{self, Call, Greeting, Hello, Reply, Request};
use crate::wire::{self, WireError};
use crate::{Content, Failure, FailureKind, Progress, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What is answered within this time needs no telling how far it is.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at how far a request is.
const LOOK: Duration = Duration::from_millis(100);

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    daemon: Greeting,
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

type Answer<T> = Result<T, Failure>;

/// Waits until the connection is readable, for so long at the most; false: its user does not want
/// to wait any more.
pub type Wait<'a> = dyn FnMut(BorrowedFd<'_>, Option<Duration>) -> bool + 'a;

impl From<WireError> for Failure {
    fn from(e: WireError) -> Failure {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match e {
            WireError::Closed => gone(),
            // Before it could be asked, or in the midst of its answer.
            WireError::Io(e)
                if matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) =>
            {
                gone()
            }
            e @ WireError::Io(_) => Failure::new(FailureKind::Io, e.to_string()),
            e => Failure::new(FailureKind::Internal, e.to_string()),
        }
    }
}

fn gone() -> Failure {
    Failure::new(FailureKind::Internal, "the daemon ended while it was asked").hint(
        "what it had decided is finished by the next command, and of the rest nothing is done: \
         `systx log` says what is committed or undone",
    )
}

impl Client {
    /// Says hello over a fresh connection.
    ///
    /// # Errors
    /// [`FailureKind::Version`] if the daemon is of another version; or the connection failed.
    pub fn new(stream: UnixStream) -> Answer<Client> {
        let daemon = Greeting::ours(0);
        let mut client = Client { stream, daemon, watcher: None };
        let daemon = client.ask(&Hello::ours())?;
        if daemon.version == VERSION {
            return Ok(Client { daemon, ..client });
        }
        let Greeting { version, release, pid, .. } = daemon;
        let text = format!(
            "the running daemon (pid {pid}, systx {release}) speaks protocol {version}, this systx \
             speaks {VERSION}"
        );
        Err(Failure::new(FailureKind::Version, text).hint(format!(
            "it ends by itself once its transactions have ended; or end it with: kill {pid}"
        )))
    }

    /// The daemon at the other end.
    pub fn daemon(&self) -> &Greeting {
        &self.daemon
    }

    /// Asks the daemon, and waits for its answer.
    ///
    /// # Errors
    /// What the daemon says instead of an answer, or the connection failed.
    pub fn ask<C: Call>(&mut self, call: &C) -> Answer<C::Answer> {
        self.ask_with(call, &[])
    }

    /// As [`Client::ask`]; copies of descriptors go to the daemon.
    ///
    /// # Errors
    /// As there.
    pub fn ask_with<C: Call>(&mut self, call: &C, fds: &[BorrowedFd<'_>]) -> Answer<C::Answer> {
        self.ask_while(call, fds, &mut for_ever)
    }

    /// As [`Client::ask_with`], as long as the user waits. Then the daemon is sent something before
    /// it has answered, by which it knows ([`crate::Asker::waits`]): if nothing is decided yet it
    /// ends what it waits for, and says so in its answer.
    ///
    /// # Errors
    /// As there.
    pub fn ask_while<C: Call>(
        &mut self,
        call: &C,
        fds: &[BorrowedFd<'_>],
        wait: &mut Wait<'_>,
    ) -> Answer<C::Answer> {
        self.exchange(call, fds, wait).map(|(answer, _)| answer)
    }

    /// As [`Client::ask`], with the bytes that travel beside the answer.
    ///
    /// # Errors
    /// As there.
    pub fn content(&mut self, call: &call::Content) -> Answer<Content> {
        self.exchange(call, &[], &mut for_ever).map(|(content, bytes)| Content { bytes, ..content })
    }

    fn exchange<C: Call>(
        &mut self,
        call: &C,
        fds: &[BorrowedFd<'_>],
        wait: &mut Wait<'_>,
    ) -> Answer<(C::Answer, Vec<u8>)> {
        wire::send(&self.stream, &Request::new(call)?, &[], fds)?;
        let progress = call::Progress { connection: self.daemon.connection };
        let (mut waiting, mut lost) = (true, None);
        let mut answered = |stream: &UnixStream, limit| {
            if !wait(stream.as_fd(), limit) && std::mem::take(&mut waiting) {
                // Any request will do.
                let any = Request::new(&progress);
                lost = any.and_then(|any| wire::send(stream, &any, &[], &[])).err();
            }
            is_readable(stream, Duration::ZERO)
        };
        self.tell_watcher(&progress, &mut answered);
        while !answered(&self.stream, None) {}
        let frame = wire::receive::<Reply>(&self.stream)?;
        if !waiting && lost.is_none() {
            // Of no interest; nor is its failure, which the next request meets as well.
            drop(wire::receive::<Reply>(&self.stream));
        }
        Ok((frame.message.read::<C>()?, frame.blob))
    }

    /// From now on `watcher` is told how far requests are.
    pub fn watch(&mut self, watcher: Box<dyn Watcher>) {
        self.watcher = Some(watcher);
    }

    /// Tells the watcher how far the request is, which `call` asks for, until there is an answer to
    /// receive.
    fn tell_watcher(
        &mut self,
        call: &impl Call<Answer = Option<Progress>>,
        answered: &mut dyn FnMut(&UnixStream, Option<Duration>) -> bool,
    ) {
        let Some(watcher) = &mut self.watcher else { return };
        if answered(&self.stream, Some(PATIENCE)) {
            return;
        }
        let Some(mut other) = watcher.connect() else { return };
        let mut told = false;
        // Where that connection fails the answer is waited for without.
        while let Ok(seen) = other.ask(call) {
            if let Some(progress) = seen {
                watcher.at(progress);
                told = true;
            }
            if answered(&self.stream, Some(LOOK)) {
                break;
            }
        }
        if told {
            watcher.over();
        }
    }
}

impl AsFd for Client {
    /// To poll for the daemon's end: between two requests it becomes readable only then.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A user who waits as long as it takes.
fn for_ever(stream: BorrowedFd<'_>, limit: Option<Duration>) -> bool {
    is_readable(stream, limit);
    true
}

/// Whether there is something to receive (the end included), now or within the time given.
pub(crate) fn is_readable(stream: impl AsFd, limit: impl Into<Option<Duration>>) -> bool {
    let limit = limit.into().map(|limit| Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    // An error, also an interruption, is no answer: whoever asks looks again.
    poll(&mut [PollFd::new(&stream, PollFlags::IN)], limit.as_ref()).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_daemon_that_ends_is_told_of_alike_however_far_it_was() {
        type Daemon = fn(UnixStream);
        let ends: [(&str, Daemon); 4] = [
            ("not asked", drop),
            ("not read", |stream| while !is_readable(&stream, None) {}),
            ("read", |stream| drop(wire::receive::<Request>(&stream))),
            ("answered by half", |mut stream| {
                drop(wire::receive::<Request>(&stream));
                stream.write_all(&[200, 0, 0, 0, 0, 0, 0, 0, b'{']).unwrap();
            }),
        ];
        for (how_far, daemon) in ends {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let asked = match how_far {
                "not asked" => {
                    daemon(theirs);
                    Client::new(ours)
                }
                _ => std::thread::scope(|threads| {
                    threads.spawn(|| daemon(theirs));
                    Client::new(ours)
                }),
            };
            let failure = asked.unwrap_err();
            assert_eq!(failure.message, "the daemon ended while it was asked", "{how_far}");
            assert!(failure.hint.is_some_and(|hint| hint.contains("systx log")), "{how_far}");
        }
    }
}
