//! Frames on the control connection: two little-endian `u32` lengths, JSON, raw bytes.  Descriptors
//! ride on the first byte of a frame (`SCM_RIGHTS`) and arrive close-on-exec.
//!
//! Whatever arrives is bounded before it is allocated; a frame that breaks a bound ends the
//! connection, because the stream cannot be trusted to be in step afterwards.

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest JSON part.
pub const MAX_JSON: usize = 64 << 20;
/// Longest raw part.
pub const MAX_BLOB: usize = 64 << 20;
/// Most descriptors in one frame.
pub const MAX_FDS: usize = 4;
const HEADER: usize = 8;

/// A frame could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side closed the connection between two frames.
    #[error("the connection was closed")]
    Closed,
    /// The other side went away, or the system call failed.
    #[error("control connection: {0}")]
    Io(#[from] std::io::Error),
    /// A part is longer than its bound.
    #[error("a message of {len} bytes is over the bound of {max}")]
    TooLong {
        /// How long.
        len: usize,
        /// [`MAX_JSON`] or [`MAX_BLOB`].
        max: usize,
    },
    /// The JSON part is not what was expected.
    #[error("message not understood: {0}")]
    Json(#[from] serde_json::Error),
}

/// One frame as received.
#[derive(Debug)]
pub struct Frame<T> {
    /// The JSON part.
    pub message: T,
    /// The raw part.
    pub blob: Vec<u8>,
    /// Descriptors.
    pub fds: Vec<OwnedFd>,
}

/// Sends one frame.
///
/// # Errors
/// A bound is broken, or the connection is.
pub fn send<T: Serialize>(
    stream: &UnixStream,
    message: &T,
    blob: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), WireError> {
    let bytes = head(message, blob)?;
    // The descriptors go with the first byte that the kernel takes; the rest is a plain write.
    let sent = send_first(stream, &bytes, fds)?;
    let mut out = stream;
    out.write_all(&bytes[sent..])?;
    out.write_all(blob)?;
    Ok(())
}

/// As [`send`], to somebody who is not trusted, and has so long to take all of it.
///
/// # Errors
/// As [`send`]; also if that was not long enough.
pub fn send_within<T: Serialize>(
    stream: &UnixStream,
    message: &T,
    blob: &[u8],
    patience: Duration,
) -> Result<(), WireError> {
    let bytes = head(message, blob)?;
    let mut out = Patient { stream, until: Instant::now() + patience };
    out.write_all(&bytes)?;
    out.write_all(blob)?;
    Ok(())
}

/// All of a frame but its raw part.
fn head<T: Serialize>(message: &T, blob: &[u8]) -> Result<Vec<u8>, WireError> {
    let json = serde_json::to_vec(message)?;
    let mut bytes = Vec::with_capacity(HEADER + json.len());
    bytes.extend_from_slice(&length(json.len(), MAX_JSON)?);
    bytes.extend_from_slice(&length(blob.len(), MAX_BLOB)?);
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

/// A stream up to a moment.  The kernel's own limit is one for each piece: who takes or sends a
/// byte now and then would never reach it.
struct Patient<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Patient<'_> {
    /// What the kernel takes as one piece, at least.
    const PIECE: usize = 16 << 10;

    fn limit(&self, way: Timeout) -> std::io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        // Rounded up by the kernel; zero would be for ever.
        Ok(set_socket_timeout(self.stream, way, Some(left.max(Duration::from_micros(1))))?)
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Recv)?;
        self.stream.read(buf)
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Send)?;
        self.stream.write(&buf[..buf.len().min(Self::PIECE)])
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn length(len: usize, max: usize) -> Result<[u8; 4], WireError> {
    u32::try_from(len)
        .ok()
        .filter(|_| len <= max)
        .map(u32::to_le_bytes)
        .ok_or(WireError::TooLong { len, max })
}

fn send_first(
    stream: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, WireError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(WireError::TooLong { len: fds.len(), max: MAX_FDS });
    }
    loop {
        match sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(WireError::Io(e.into())),
            Ok(n) => return Ok(n),
        }
    }
}

/// Receives one frame; waits for it.
///
/// # Errors
/// [`WireError::Closed`] if the connection ended between two frames; else a broken frame or
/// connection.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> Result<Frame<T>, WireError> {
    receive_bounded(stream, MAX_JSON, MAX_BLOB, None)
}

/// As [`receive`], of somebody who is not trusted: at most `max` bytes of JSON, and nothing raw.
/// It may take so long to begin, and as long again to send the rest.
///
/// # Errors
/// As [`receive`]; also if that was not long enough.
pub fn receive_within<T: DeserializeOwned>(
    stream: &UnixStream,
    max: usize,
    patience: Duration,
) -> Result<Frame<T>, WireError> {
    receive_bounded(stream, max, 0, Some(patience))
}

fn receive_bounded<T: DeserializeOwned>(
    stream: &UnixStream,
    max_json: usize,
    max_blob: usize,
    patience: Option<Duration>,
) -> Result<Frame<T>, WireError> {
    let mut fds = Vec::new();
    let mut header = [0u8; HEADER];
    let mut have = 0;
    let from_now = || patience.map(|long| Patient { stream, until: Instant::now() + long });
    let mut patient = from_now();
    while have < HEADER {
        if let Some(patient) = &patient {
            patient.limit(Timeout::Recv)?;
        }
        let n = receive_some(stream, &mut header[have..], &mut fds)?;
        if n == 0 && have == 0 {
            return Err(WireError::Closed);
        }
        if n == 0 {
            return Err(WireError::Io(std::io::ErrorKind::UnexpectedEof.into()));
        }
        if have == 0 {
            patient = from_now();
        }
        have += n;
    }
    let [a, b, c, d, e, f, g, h] = header;
    let json = checked(u32::from_le_bytes([a, b, c, d]), max_json)?;
    let blob = checked(u32::from_le_bytes([e, f, g, h]), max_blob)?;
    let read = |len| match patient {
        Some(Patient { stream, until }) => body(Patient { stream, until }, len),
        None => body(stream, len),
    };
    let message = serde_json::from_slice(&read(json)?)?;
    Ok(Frame { message, blob: read(blob)?, fds })
}

fn checked(len: u32, max: usize) -> Result<usize, WireError> {
    let len = len as usize;
    if len > max { Err(WireError::TooLong { len, max }) } else { Ok(len) }
}

fn body(stream: impl Read, len: usize) -> Result<Vec<u8>, WireError> {
    let mut bytes = Vec::new();
    // `take` + `read_to_end` grows with what really arrives: a length alone allocates nothing.
    stream.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(WireError::Io(std::io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(bytes)
}

fn receive_some(
    stream: &UnixStream,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<usize, WireError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let got = recvmsg(
            stream.as_fd(),
            &mut [IoSliceMut::new(buf)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        match got {
            Err(Errno::INTR) => {}
            // A peer that closed with data of ours unread is a peer that closed.
            Err(Errno::CONNRESET) => return Ok(0),
            Err(e) => return Err(WireError::Io(e.into())),
            Ok(got) => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        fds.extend(received);
                    }
                }
                return Ok(got.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests;
