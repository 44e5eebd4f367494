//! /dev/fuse: reading requests, writing replies and notifications.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::device_unsafe;
use crate::wire::OutHeader;

/// A descriptor of /dev/fuse that does not block.
#[derive(Clone, Debug)]
pub(crate) struct Device(Arc<OwnedFd>);

/// What a read found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// So many bytes of a request.
    Request(usize),
    /// Nothing at the moment.
    Nothing,
    /// The connection is over: unmounted or aborted.
    Ended,
}

impl Device {
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Device(Arc::new(fd)))
    }

    /// Another descriptor of the same connection with its own list of requests under way; the same
    /// one where /dev/fuse cannot be opened from here.
    pub fn another(&self) -> Device {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let cloned =
            open("/dev/fuse", flags, Mode::empty()).map_err(io::Error::from).and_then(|fresh| {
                device_unsafe::clone_onto(fresh.as_fd(), self.as_fd()).map(|()| fresh)
            });
        match cloned {
            Ok(fresh) => Device(Arc::new(fresh)),
            Err(error) => {
                tracing::debug!(%error, "/dev/fuse cannot be cloned");
                self.clone()
            }
        }
    }

    /// From here on the descriptor is one of `other`, for everybody who uses it.
    pub fn replace(&self, other: &OwnedFd) -> io::Result<()> {
        device_unsafe::replace(self.as_fd(), other.as_fd())
    }

    /// The descriptor's number, valid while `self` lives.
    pub fn as_raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Fetched> {
        match rustix::io::read(&*self.0, buffer) {
            // Not /dev/fuse any more, see `replace`.
            Ok(0) => Ok(Fetched::Ended),
            Ok(n) => Ok(Fetched::Request(n)),
            // ENOENT: the request was withdrawn while it was being read.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => Ok(Fetched::Nothing),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Fetched::Ended),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a reply.
    pub fn reply(&self, unique: u64, error: i32, payload: &[u8]) -> io::Result<()> {
        match self.write(OutHeader { len: 0, error, unique }, &[payload]) {
            // ENOENT: nobody waits for it any more (aborted).
            Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(()),
            other => other,
        }
    }

    /// Sends a notification.  May block for as long as a request of the same directory or page is
    /// under way.
    pub fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.write(OutHeader { len: 0, error: code, unique: 0 }, parts)
    }

    fn write(&self, header: OutHeader, parts: &[&[u8]]) -> io::Result<()> {
        let body: usize = parts.iter().map(|p| p.len()).sum();
        let total = body + size_of::<OutHeader>();
        let len = u32::try_from(total).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = OutHeader { len, ..header };
        // Header and at most two parts: replies have one, notifications a structure and a name.
        let mut slices = [IoSlice::new(header.as_bytes()), IoSlice::new(&[]), IoSlice::new(&[])];
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        rustix::io::writev(&*self.0, &slices[..=parts.len().min(2)])?;
        Ok(())
    }
}

/// A descriptor that stands in for one that must not be used any more: reading it says "over".
pub(crate) fn nothing() -> io::Result<OwnedFd> {
    Ok(open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
