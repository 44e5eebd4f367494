//! Unix sockets and their peers, from the kernel's sock_diag(7): /proc/net/unix names sockets, but
//! only this tells who is connected to whom.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::HashMap;

/// One socket.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct UnixSocket {
    /// Inode of the socket at the other end.
    pub(crate) peer: Option<u64>,
    /// Its path; an abstract one begins with `@`.
    pub(crate) name: Option<String>,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;

/// Every unix socket of this network namespace by inode; empty if the kernel does not tell.
pub(crate) fn sockets() -> HashMap<u64, UnixSocket> {
    dump().unwrap_or_default()
}

fn dump() -> rustix::io::Result<HashMap<u64, UnixSocket>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(rustix::net::netlink::SOCK_DIAG),
    )?;
    rustix::net::send(&socket, &request(), SendFlags::empty())?;
    let mut found = HashMap::new();
    let mut buf = vec![0u8; 64 << 10];
    loop {
        let (n, _) = rustix::net::recv(&socket, &mut buf, RecvFlags::empty())?;
        if n == 0 || !take(&buf[..n.min(buf.len())], &mut found) {
            return Ok(found);
        }
    }
}

/// `struct nlmsghdr` and `struct unix_diag_req`: all sockets, with name and peer.
fn request() -> Vec<u8> {
    const REQUEST_DUMP: u16 = 0x301;
    const SHOW_NAME_PEER: u32 = 1 | 4;
    let mut m = Vec::with_capacity(HEADER + 24);
    m.extend(40u32.to_ne_bytes());
    m.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    m.extend(REQUEST_DUMP.to_ne_bytes());
    m.extend([0; 8]); // sequence, port
    m.extend([1, 0, 0, 0]); // AF_UNIX, protocol, padding
    m.extend(u32::MAX.to_ne_bytes()); // states
    m.extend([0; 4]); // inode
    m.extend(SHOW_NAME_PEER.to_ne_bytes());
    m.extend([0; 8]); // cookie
    m
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}
fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// Takes the messages of one datagram; false after the last.
fn take(mut datagram: &[u8], found: &mut HashMap<u64, UnixSocket>) -> bool {
    while let (Some(len), Some(kind)) = (u32_at(datagram, 0), u16_at(datagram, 4)) {
        if kind == NLMSG_DONE || kind == NLMSG_ERROR {
            return false;
        }
        let len = len as usize;
        let Some(message) = datagram.get(HEADER..len) else { return false };
        if let Some((inode, socket)) = parse(message) {
            found.insert(inode, socket);
        }
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

/// `struct unix_diag_msg`, then attributes.
fn parse(message: &[u8]) -> Option<(u64, UnixSocket)> {
    const NAME: u16 = 0;
    const PEER: u16 = 2;
    let inode = u32_at(message, 4)?;
    let mut socket = UnixSocket::default();
    let mut rest = message.get(16..)?;
    while let (Some(len), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let len = usize::from(len);
        let value = rest.get(4..len)?;
        match kind {
            NAME if !value.is_empty() => {
                let (mark, bytes) = match value.split_first() {
                    Some((0, rest)) => ("@", rest),
                    _ => ("", value),
                };
                let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
                socket.name = Some(format!("{mark}{}", String::from_utf8_lossy(bytes)));
            }
            PEER => socket.peer = u32_at(value, 0).filter(|p| *p != 0).map(u64::from),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((inode.into(), socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_connection_is_found_with_the_listeners_name() {
        let path = std::env::temp_dir().join(format!("systx-diag-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        let inode = |fd: rustix::fd::BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        let all = sockets();
        if all.is_empty() {
            eprintln!("SKIPPED: this kernel has no unix_diag");
            return;
        }
        let ours = &all[&inode(client.as_fd())];
        assert_eq!(ours.peer, Some(inode(accepted.as_fd())));
        let theirs = &all[&inode(accepted.as_fd())];
        assert_eq!(theirs.name.as_deref(), path.to_str());
    }

    #[test]
    fn hostile_bytes_end_the_parse() {
        let mut found = HashMap::new();
        for bytes in [&[][..], &[0; 3], &[0; 16], &[0xff; 64], &[4, 0, 0, 0, 20, 0, 0, 0]] {
            take(bytes, &mut found);
        }
        assert!(found.is_empty());
        assert_eq!(parse(&[0; 7]), None);
        let mut message = vec![0; 16];
        message.extend([0xff, 0xff, 0, 0]);
        assert_eq!(parse(&message), None);
    }
}
