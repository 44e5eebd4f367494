//! Who is at the other end of a control connection, as the daemon sees it.

use super::client::is_readable;
use super::{Failure, FailureKind};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use systx_base::TxnId;

/// The process at the other end, as the kernel vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id, in the daemon's pid namespace; 0 if it is not in it.
    pub pid: u32,
    /// User id: the daemon's own, or that of a guest (`crate::guests`).
    pub uid: u32,
}

/// Tells a client that its transaction lost.
#[derive(Debug)]
pub struct Doorbell(pub OwnedFd);

impl Doorbell {
    /// Rings.  Never blocks, may be called with any lock held, any number of times.
    pub fn ring(&self) {
        // An eventfd refuses only when its counter is full: then it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Who asks, over one connection; and what travels beside requests and answers.
#[derive(Debug)]
pub struct Asker {
    /// Who.
    pub peer: Peer,
    /// Descriptors that came with the request.
    pub fds: Vec<OwnedFd>,
    /// Bytes that go with the answer.
    pub beside: Vec<u8>,
    /// Runs and visits that were begun here and are not yet ended.
    pub runs: BTreeSet<TxnId>,
    /// A directory of each view of a run that has ended, and its watch, given along with the end.
    /// The kernel frees what it knew of a view with the last of them, some microseconds for each
    /// file: here nobody waits for that. Not before the client is gone, or it would be the last.
    pub views: Vec<OwnedFd>,
    /// The connection, if it can be looked at.
    connection: Option<OwnedFd>,
}

impl Asker {
    /// Has not asked yet.
    #[must_use]
    pub fn new(peer: Peer, connection: impl AsFd) -> Asker {
        let (fds, beside, runs, views) = Default::default();
        let connection = connection.as_fd().try_clone_to_owned().ok();
        Asker { peer, fds, beside, runs, views, connection }
    }

    /// Waits for so long; false if the answer is waited for no more: the client is gone, or has
    /// sent something before it was answered ([`crate::client::Client::ask_while`]).
    pub fn waits(&self, limit: Duration) -> bool {
        let Some(connection) = &self.connection else {
            std::thread::sleep(limit);
            return true;
        };
        !is_readable(connection, limit)
    }

    /// The descriptor that came with the request.
    ///
    /// # Errors
    /// It is not exactly one.
    pub fn descriptor(&mut self) -> Result<OwnedFd, Failure> {
        let one = self.fds.pop().filter(|_| self.fds.is_empty());
        one.ok_or_else(|| Failure::new(FailureKind::Invalid, "exactly one descriptor is needed"))
    }

    /// A run begins: its doorbell, which came with the request.
    ///
    /// # Errors
    /// As [`Asker::descriptor`].
    pub fn begins(&mut self) -> Result<Doorbell, Failure> {
        // Of the attempt before.
        self.views.clear();
        let bell = self.descriptor()?;
        // The daemon rings with locks held: whatever descriptor the client sent must not block it.
        fcntl_getfl(&bell)
            .and_then(|flags| fcntl_setfl(&bell, flags | OFlags::NONBLOCK))
            .map_err(|e| Failure::new(FailureKind::Invalid, format!("doorbell: {e}")))?;
        Ok(Doorbell(bell))
    }

    /// A run ends, and what came with the request is closed when the client is gone.
    pub fn ends(&mut self) {
        // What takes longest comes first, and is closed last.
        self.views.extend(self.fds.drain(..).rev());
    }
}
