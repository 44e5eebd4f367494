//! Who is asked before a commit in a guarded directory (decision 0049): the question on its way.
//! What is asked is made of a write set by [`crate::offer`].

use crate::members::process_of;
use crate::protocol::certify::{self, Offer, READY, Verdict};
use crate::protocol::{
    self, Conflict, Failure, FailureKind, HostPath, Opponent, Outcome, Part, Summary,
};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use systx_base::TxnId;
use systx_protocol::modes::{self, Way};

/// How long a certifier may take to see that it is asked.
const GREETING: Duration = Duration::from_secs(30);

/// How long a run waits for a verdict: longer than a certifier waits for its order. A thread waits
/// as long as its patience.
pub const VERDICT: Duration = Duration::from_secs(150);

/// The certifier of one directory.
#[derive(Debug)]
pub struct Certifier {
    /// The directory.
    pub dir: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
}

/// A question that the certifier has seen.
pub struct Asking(UnixStream);

/// An offer whose verdict is to come.
pub struct Awaited {
    stream: UnixStream,
    got: Vec<u8>,
}

impl Certifier {
    /// Whether a path is the directory's, or below it.
    pub fn has(&self, path: &HostPath) -> bool {
        path.as_path().starts_with(&self.dir)
    }

    /// Whether a thread is one of the certifier's.
    pub fn is_asked_by(&self, tid: u32) -> bool {
        let Ok(stream) = UnixStream::connect(&self.socket) else { return false };
        let listens = socket_peercred(&stream).ok().map(|peer| peer.pid.as_raw_nonzero().get());
        let group = process_of(tid).and_then(|group| i32::try_from(group).ok());
        group.is_some() && group == listens
    }

    /// Asks: what it says of versions is as of the moment of the return at the latest.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn approach(&self) -> Result<Asking, Failure> {
        let greeted = || -> io::Result<UnixStream> {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(GREETING))?;
            stream.set_write_timeout(Some(GREETING))?;
            let mut ready = [0];
            stream.read_exact(&mut ready)?;
            if ready != [READY] {
                return Err(ErrorKind::InvalidData.into());
            }
            Ok(stream)
        };
        greeted().map(Asking).map_err(|error| self.is_away(&error))
    }

    fn is_away(&self, error: &io::Error) -> Failure {
        let text = format!("the certifier of {} is not there: {error}", self.dir.display());
        Failure::new(FailureKind::State, text)
            .path(self.socket.as_path())
            .hint("nothing was committed; start it, and try again")
    }

    /// A commit that it is not asked about is refused.
    pub fn not_asked(&self, of: Way) -> Failure {
        let dir = self.dir.as_path();
        modes::refusal(Way::Certifier, of, dir.display()).path(dir)
    }

    /// What a transaction is told whose verdict did not come in time.
    pub fn unknown(&self, id: TxnId) -> Outcome {
        let text = format!("no verdict of the certifier of {} yet", self.dir.display());
        let failure = Failure::new(FailureKind::Io, text)
            .hint("it may be committed: look whether it is there");
        Outcome::Unfinished { id, failure, kept: false }
    }

    /// What a transaction is told.
    pub fn outcome(&self, id: TxnId, summary: Summary, verdict: io::Result<Verdict>) -> Outcome {
        let shown = self.dir.display();
        match verdict {
            Ok(Verdict::Committed) => Outcome::Committed {
                id,
                summary,
                outside: Vec::new(),
                stale: Vec::new(),
                dropped: 0,
                notes: Vec::new(),
            },
            Ok(Verdict::Conflict { path, words }) => {
                let path = HostPath::from(self.dir.join(HostPath(path).as_path()));
                let opponent = Opponent::outside(&words);
                let stale = vec![path.clone()];
                let conflict =
                    Conflict { path, part: Part::Any, opponent, stale_only: false, stale };
                Outcome::Conflict { conflict, kept: false }
            }
            Ok(Verdict::Refused { words }) => {
                let text = format!("the certifier of {shown} refuses it: {words}");
                Outcome::Refused { failure: Failure::new(FailureKind::Invalid, text), kept: false }
            }
            Err(error) => {
                let text = format!("the certifier of {shown} went away: {error}");
                let failure = Failure::new(FailureKind::Io, text)
                    .hint("it may be committed: look whether it is there");
                Outcome::Unfinished { id, failure, kept: false }
            }
        }
    }
}

impl Asking {
    /// Says what is to be committed.
    ///
    /// # Errors
    /// The certifier is gone.
    pub fn offer(mut self, offer: &Offer) -> io::Result<Awaited> {
        certify::send(&mut self.0, &offer.encode())?;
        Ok(Awaited { stream: self.0, got: Vec::new() })
    }
}

impl Awaited {
    /// Waits for the verdict, at most so long; `None`: not yet.
    pub fn wait(&mut self, limit: Option<Duration>) -> Option<io::Result<Verdict>> {
        if let Err(error) = self.stream.set_read_timeout(limit) {
            return Some(Err(error));
        }
        loop {
            let mut rest = &self.got[..];
            if let Ok(frame) = certify::receive(&mut rest) {
                return Some(Verdict::decode(&frame).map_err(io::Error::other));
            }
            let mut some = [0; 4096];
            match self.stream.read(&mut some) {
                Ok(0) => return Some(Err(ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.got.extend_from_slice(&some[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return None;
                }
                Err(e) => return Some(Err(e)),
            }
        }
    }
}

/// The certifier of a directory in which one of these paths is.
pub fn of_paths<'p>(
    certifiers: impl IntoIterator<Item = std::sync::Arc<Certifier>>,
    changes: &'p [protocol::Change],
) -> Option<std::sync::Arc<Certifier>> {
    let touches = |c: &Certifier, change: &'p protocol::Change| {
        c.has(&change.path) || change.from.as_ref().is_some_and(|from| c.has(from))
    };
    certifiers.into_iter().find(|c| changes.iter().any(|change| touches(c, change)))
}

/// One that is asked at a socket, if there is any.
pub fn at(dir: &Path, socket: Option<&HostPath>) -> Option<std::sync::Arc<Certifier>> {
    let socket = socket?.as_path().to_owned();
    Some(std::sync::Arc::new(Certifier { dir: dir.to_owned(), socket }))
}
