//! What the new process and its parent say to each other before CMD starts: packets over a socket
//! pair that closes by itself when CMD is executed.
//!
//! 0. child -> parent [`Packet::Nobody`], if it waits for its ids ([`crate::ids`]); answered
//!    likewise.
//! 1. child -> parent, for each volume, [`Packet::Mounted`] with the FUSE descriptor; the parent
//!    has it served and answers one byte ([`go`]); if the parent gives up or dies the child reads
//!    the end.
//! 2. child -> parent [`Packet::Built`] with descriptors that the parent keeps.
//! 3. child -> parent [`Packet::Watched`] with the descriptor over which calls are asked about.
//! 4. The socket closes: CMD runs.  Or [`Packet::Failed`] at any time.

use crate::error::Failed;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use systx_base::codec::{DecodeError, Decoder, Encoder};

const MAX_FDS: usize = 32;
const MAX_PACKET: usize = 64 << 10;

/// What the child says.
#[derive(Debug)]
pub(crate) enum Packet {
    /// The process is in a user namespace without any ids, and waits for them.
    Nobody,
    /// The view is mounted and wants to be served.
    Mounted {
        /// Of which volume.
        volume: u32,
        /// Inode of the mount namespace.
        mnt_ns: u64,
        /// Minor number of the mount's device.
        connection: u64,
        /// /dev/fuse.
        fuse: OwnedFd,
    },
    /// The root is complete.
    Built {
        /// A directory of each view, for syncfs.
        views: Vec<OwnedFd>,
        /// Roots of the private places.
        private: Vec<(PathBuf, OwnedFd)>,
        /// Sentences for the user.
        notes: Vec<String>,
    },
    /// The process has a filter now, and waits for answers.
    Watched(OwnedFd),
    /// It went wrong.
    Failed(Failed),
}

/// Both ends: parent's, child's.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends a packet.
pub(crate) fn send(socket: BorrowedFd<'_>, packet: &Packet) -> Result<(), Errno> {
    let mut e = Encoder::new();
    let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
    match packet {
        Packet::Mounted { volume, mnt_ns, connection, fuse } => {
            e.u8(1);
            e.u32(*volume);
            e.u64(*mnt_ns);
            e.u64(*connection);
            fds.push(fuse.as_fd());
        }
        Packet::Built { views, private, notes } => {
            e.u8(2);
            let views = views.get(..views.len().min(MAX_FDS)).unwrap_or_default();
            e.u32(u32::try_from(views.len()).unwrap_or_default());
            fds.extend(views.iter().map(AsFd::as_fd));
            let room = MAX_FDS - views.len();
            let kept = private.get(..private.len().min(room)).unwrap_or_default();
            e.seq(kept, |e, (path, _)| e.bytes(path.as_os_str().as_bytes()));
            fds.extend(kept.iter().map(|(_, fd)| fd.as_fd()));
            e.seq(notes, |e, note| e.bytes(note.as_bytes()));
        }
        Packet::Nobody => e.u8(5),
        Packet::Watched(listener) => {
            e.u8(4);
            fds.push(listener.as_fd());
        }
        Packet::Failed(Failed { step, path, errno }) => {
            e.u8(3);
            e.bytes(step.as_bytes());
            e.option(path.as_ref(), |e, p| e.bytes(p.as_os_str().as_bytes()));
            e.u32(errno.raw_os_error().unsigned_abs());
        }
    }
    let bytes = e.finish();
    let bytes = bytes.get(..MAX_PACKET).unwrap_or(&bytes);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// The next packet; `None` when the other end is closed.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<Option<Packet>, Errno> {
    let mut bytes = vec![0u8; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let n = loop {
        let iov = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            other => break other?.bytes,
        }
    };
    if n == 0 {
        return Ok(None);
    }
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    decode(&bytes[..n], fds).map(Some).map_err(|_| Errno::PROTO)
}

fn decode(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Packet, DecodeError> {
    let mut d = Decoder::new(bytes);
    let mut fds = fds.into_iter();
    let missing = |d: &Decoder<'_>| d.invalid("descriptor", 0);
    let path = |b: &[u8]| PathBuf::from(OsString::from_vec(b.to_vec()));
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    match d.u8()? {
        1 => {
            let (volume, mnt_ns, connection) = (d.u32()?, d.u64()?, d.u64()?);
            let fuse = fds.next().ok_or_else(|| missing(&d))?;
            Ok(Packet::Mounted { volume, mnt_ns, connection, fuse })
        }
        2 => {
            let mut views = Vec::new();
            for _ in 0..d.u32()? {
                views.push(fds.next().ok_or_else(|| missing(&d))?);
            }
            let paths = d.seq(|d| d.bytes().map(path))?;
            let private = paths.into_iter().zip(fds).collect();
            let notes = d.seq(|d| d.bytes().map(text))?;
            Ok(Packet::Built { views, private, notes })
        }
        5 => Ok(Packet::Nobody),
        4 => Ok(Packet::Watched(fds.next().ok_or_else(|| missing(&d))?)),
        3 => {
            let step = text(d.bytes()?);
            let path = d.option(|d| d.bytes().map(path))?;
            let errno = d.u32()?;
            let errno = i32::try_from(errno).unwrap_or(libc::EIO);
            Ok(Packet::Failed(Failed { step, path, errno: Errno::from_raw_os_error(errno) }))
        }
        other => Err(d.invalid("packet", other.into())),
    }
}

/// Tells the child that what it waits for is done.
pub(crate) fn go(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    loop {
        match rustix::net::send(socket, b"g", SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Waits for [`go`]; false if the parent gave up.
pub(crate) fn wait_for_go(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0u8; 1];
    loop {
        match rustix::io::read(socket, &mut byte) {
            Err(Errno::INTR) => {}
            other => return other == Ok(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_descriptors_travel() {
        let (a, b) = pair().unwrap();
        let file = || rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        let mounted =
            Packet::Mounted { volume: 1, mnt_ns: 5, connection: 6, fuse: file().unwrap() };
        send(b.as_fd(), &mounted).unwrap();
        send(
            b.as_fd(),
            &Packet::Built {
                views: vec![file().unwrap(), file().unwrap()],
                private: vec![("/run".into(), file().unwrap())],
                notes: vec!["n".into()],
            },
        )
        .unwrap();
        let failed = Failed { step: "mount".into(), path: Some("/x".into()), errno: Errno::PERM };
        send(b.as_fd(), &Packet::Failed(failed.clone())).unwrap();
        drop(b);
        let first = receive(a.as_fd()).unwrap();
        assert!(matches!(first, Some(Packet::Mounted { volume: 1, mnt_ns: 5, connection: 6, .. })));
        let Some(Packet::Built { views, private, notes }) = receive(a.as_fd()).unwrap() else {
            panic!("built")
        };
        assert_eq!(
            (views.len(), private.len(), private[0].0.as_path()),
            (2, 1, std::path::Path::new("/run"))
        );
        assert_eq!(notes, ["n"]);
        assert!(matches!(receive(a.as_fd()).unwrap(), Some(Packet::Failed(f)) if f == failed));
        assert!(receive(a.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_packet_without_its_descriptor_is_refused() {
        let mut e = Encoder::new();
        e.u8(1);
        e.u32(0);
        e.u64(1);
        e.u64(1);
        assert!(decode(&e.finish(), vec![]).is_err());
        assert!(decode(&[2, 1, 0, 0, 0], vec![]).is_err());
        assert!(decode(&[9], vec![]).is_err());
    }
}
