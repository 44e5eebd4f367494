//! Frames on the control connection: two little-endian `u32` lengths, JSON, raw bytes.  Descriptors
//! ride on the first byte of a frame (`SCM_RIGHTS`) and arrive close-on-exec.
//!
//! Whatever arrives is bounded before it is allocated; a frame that breaks a bound ends the
//! connection, because the stream cannot be trusted to be in step afterwards.

use rustix::io::{Errno, IoSlice, IoSliceMut};
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

/// Longest JSON part.
pub const MAX_JSON: usize = 64 << 20;
/// Longest raw part.
pub const MAX_BLOB: usize = 64 << 20;
/// Most descriptors in one frame.
pub(crate) const MAX_FDS: usize = 4;
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
    let json = serde_json::to_vec(message)?;
    let mut bytes = Vec::with_capacity(HEADER + json.len());
    bytes.extend_from_slice(&length(json.len(), MAX_JSON)?);
    bytes.extend_from_slice(&length(blob.len(), MAX_BLOB)?);
    bytes.extend_from_slice(&json);
    // The descriptors go with the first byte that the kernel takes; the rest is a plain write.
    let sent = send_first(stream, &bytes, fds)?;
    let mut out = stream;
    out.write_all(&bytes[sent..])?;
    out.write_all(blob)?;
    Ok(())
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
    receive_bounded(stream, MAX_JSON, MAX_BLOB)
}

/// As [`receive`], of somebody who is not trusted: at most `max` bytes of JSON, and nothing raw.
///
/// # Errors
/// As [`receive`].
pub fn receive_within<T: DeserializeOwned>(
    stream: &UnixStream,
    max: usize,
) -> Result<Frame<T>, WireError> {
    receive_bounded(stream, max, 0)
}

fn receive_bounded<T: DeserializeOwned>(
    stream: &UnixStream,
    max_json: usize,
    max_blob: usize,
) -> Result<Frame<T>, WireError> {
    let mut fds = Vec::new();
    let mut header = [0u8; HEADER];
    let mut have = 0;
    while have < HEADER {
        let n = receive_some(stream, &mut header[have..], &mut fds)?;
        if n == 0 && have == 0 {
            return Err(WireError::Closed);
        }
        if n == 0 {
            return Err(WireError::Io(std::io::ErrorKind::UnexpectedEof.into()));
        }
        have += n;
    }
    let [a, b, c, d, e, f, g, h] = header;
    let json = checked(u32::from_le_bytes([a, b, c, d]), max_json)?;
    let blob = checked(u32::from_le_bytes([e, f, g, h]), max_blob)?;
    let message = serde_json::from_slice(&body(stream, json)?)?;
    Ok(Frame { message, blob: body(stream, blob)?, fds })
}

fn checked(len: u32, max: usize) -> Result<usize, WireError> {
    let len = len as usize;
    if len > max { Err(WireError::TooLong { len, max }) } else { Ok(len) }
}

fn body(stream: &UnixStream, len: usize) -> Result<Vec<u8>, WireError> {
    let mut bytes = Vec::new();
    // `take` + `read_to_end` grows with what really arrives: a length alone allocates nothing.
    Read::take(stream, len as u64).read_to_end(&mut bytes)?;
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
