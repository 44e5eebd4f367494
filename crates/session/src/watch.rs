//! What reached the outside besides files: connections of the command's processes, sampled.
//!
//! Every now and then (quickly after the start, then ever more rarely) the sockets that the tree
//! has open are looked up in /proc/PID/net/{tcp,tcp6,udp,udp6}: connected ones count, and so do
//! listeners.  Sockets that the client itself has (its standard input may be one) do not.
//!
//! Limits: a connection that lives between two samples is not seen; unix sockets and packets of
//! unconnected UDP sockets are not told from inside traffic.  This is a help for the reader of a
//! summary, not a guard.

use crate::processes;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// A connection that was seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sighting {
    /// Name of the process.
    pub process: String,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// The other end; `None`: it listened.
    pub peer: Option<SocketAddr>,
    /// Its own end.
    pub local: SocketAddr,
}

const FIRST: Duration = Duration::from_millis(30);
const SLOWEST: Duration = Duration::from_secs(1);

/// Samples the tree below this process.
pub(crate) struct Watcher {
    own: BTreeSet<u64>,
    seen: BTreeSet<Sighting>,
    next: Instant,
    pause: Duration,
}

impl Watcher {
    pub(crate) fn new() -> Watcher {
        let own = sockets(std::process::id());
        Watcher { own, seen: BTreeSet::new(), next: Instant::now() + FIRST, pause: FIRST }
    }

    /// When to call [`Watcher::look`] next.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    pub(crate) fn look(&mut self) {
        let start = Instant::now();
        for process in processes::descendants(std::process::id()) {
            let open: BTreeSet<u64> = sockets(process.pid).difference(&self.own).copied().collect();
            if open.is_empty() {
                continue;
            }
            for (inode, protocol, local, peer) in table(process.pid) {
                if open.contains(&inode) {
                    let process = process.name.clone();
                    self.seen.insert(Sighting { process, protocol, peer, local });
                }
            }
        }
        // Never more than a hundredth of the time, whatever the tree's size.
        self.pause = (self.pause * 2).min(SLOWEST).max(start.elapsed() * 100);
        self.next = Instant::now() + self.pause;
    }

    pub(crate) fn finish(self) -> Vec<Sighting> {
        // One line per process and peer; local ports of clients are chance.
        let mut lines: BTreeMap<(String, &str, Option<SocketAddr>, u16), Sighting> =
            BTreeMap::new();
        for s in self.seen {
            let port = if s.peer.is_none() { s.local.port() } else { 0 };
            lines.entry((s.process.clone(), s.protocol, s.peer, port)).or_insert(s);
        }
        lines.into_values().collect()
    }
}

/// Inodes of a process's sockets.
fn sockets(pid: u32) -> BTreeSet<u64> {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    fds.flatten()
        .filter_map(|fd| {
            let target = std::fs::read_link(fd.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect()
}

type Row = (u64, &'static str, SocketAddr, Option<SocketAddr>);

fn table(pid: u32) -> Vec<Row> {
    let files = [("tcp", "tcp"), ("tcp", "tcp6"), ("udp", "udp"), ("udp", "udp6")];
    files
        .iter()
        .filter_map(|(protocol, file)| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).ok()?;
            Some(text.lines().skip(1).filter_map(|l| row(protocol, l)).collect::<Vec<_>>())
        })
        .flatten()
        .collect()
}

/// One line of /proc/net/tcp: `sl local rem st tx:rx tr:when retr uid timeout inode …`.
fn row(protocol: &'static str, line: &str) -> Option<Row> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let local = address(fields.get(1)?)?;
    let peer = address(fields.get(2)?)?;
    let inode = fields.get(9)?.parse().ok()?;
    let connected = peer.port() != 0;
    if !connected && *fields.get(3)? != LISTEN {
        return None;
    }
    Some((inode, protocol, local, connected.then_some(peer)))
}

/// `0100007F:0016`: words in the machine's byte order, port in hexadecimal.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Vec<[u8; 4]> = ip
        .as_bytes()
        .chunks(8)
        .map(|w| Some(u32::from_str_radix(std::str::from_utf8(w).ok()?, 16).ok()?.to_ne_bytes()))
        .collect::<Option<_>>()?;
    let ip = match words.as_slice() {
        [v4] => IpAddr::V4(Ipv4Addr::from(*v4)),
        [a, b, c, d] => {
            let mut bytes = [0; 16];
            for (i, w) in [a, b, c, d].into_iter().enumerate() {
                bytes[i * 4..i * 4 + 4].copy_from_slice(w);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn rows_of_proc_net_are_understood() {
        let line =
            "   0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1";
        let listener = row("tcp", line).unwrap();
        assert_eq!(listener, (77, "tcp", "127.0.0.1:22".parse().unwrap(), None));
        let line =
            "   1: 0100007F:D2F0 0200A8C0:01BB 01 00000000:00000000 00:00000000 00000000 0 0 78 1";
        let (_, _, _, peer) = row("tcp", line).unwrap();
        assert_eq!(peer, Some("192.168.0.2:443".parse().unwrap()));
        let six = "0000000000000000FFFF00000100007F:0050";
        assert_eq!(address(six), Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(address("nonsense"), None);
        // An unconnected UDP socket says nothing.
        let line =
            "   1: 00000000:0044 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 79 2";
        assert_eq!(row("udp", line), None);
    }

    #[test]
    fn a_connection_of_a_child_is_seen_and_our_own_is_not() {
        use std::process::{Command, Stdio};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mine = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut watcher = Watcher::new();
        let theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = theirs.peer_addr().unwrap();
        let mut child = Command::new("cat")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        watcher.look();
        let seen = watcher.finish();
        drop(listener);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.iter().any(|s| s.peer == Some(peer)), "{seen:?}");
        assert!(seen.iter().all(|s| s.local != mine.local_addr().unwrap()), "{seen:?}");
    }
}
