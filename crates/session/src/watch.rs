//! What reached the outside besides files, sampled: connections of the command's processes, and
//! devices that they have open.
//!
//! Every now and then (quickly after the start, then ever more rarely) the open descriptors of the
//! tree are looked at:
//! - TCP and UDP sockets, in /proc/PID/net: connected ones count, and so do listeners;
//! - unix sockets whose other end is not in the tree ([`crate::unix_diag`]);
//! - devices, apart from terminals and the harmless ones (/dev/null and the like).
//!
//! What the client itself has open (its standard input may be a socket) does not count.
//!
//! Limits: what lives between two samples is not seen; neither are packets of unconnected UDP
//! sockets, nor signals to outside processes.  This is a help for the reader of a summary, not a
//! guard.

use crate::processes;
use crate::unix_diag;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Something that reached the outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sighting {
    /// Name of the process.
    pub process: String,
    /// What it did, for instance `connected to tcp 192.0.2.1:443`.
    pub what: String,
    /// It was reached; else it was wanted and is not to be seen inside.
    pub reached: bool,
}

const FIRST: Duration = Duration::from_millis(30);
const SLOWEST: Duration = Duration::from_secs(1);

/// Samples the tree below this process.
pub(crate) struct Watcher {
    own: Open,
    seen: BTreeSet<Sighting>,
    next: Instant,
    pause: Duration,
}

impl Watcher {
    pub(crate) fn new() -> Watcher {
        let own = open(std::process::id());
        Watcher { own, seen: BTreeSet::new(), next: Instant::now() + FIRST, pause: FIRST }
    }

    /// When to call [`Watcher::look`] next.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    pub(crate) fn look(&mut self) {
        let start = Instant::now();
        let tree: Vec<(processes::Process, Open)> = processes::descendants(std::process::id())
            .into_iter()
            .map(|p| {
                let open = open(p.pid);
                (p, open)
            })
            .collect();
        let inside: BTreeSet<u64> =
            tree.iter().flat_map(|(_, open)| open.sockets.iter().copied()).collect();
        let (mut unix, mut suspects) = (None, Vec::new());
        for (process, open) in &tree {
            let mut note = |what: String| {
                self.seen.insert(Sighting { process: process.name.clone(), what, reached: true });
            };
            open.devices.difference(&self.own.devices).for_each(|d| note(format!("opened {d}")));
            let mut left: BTreeSet<u64> =
                open.sockets.difference(&self.own.sockets).copied().collect();
            if left.is_empty() {
                continue;
            }
            for (inode, protocol, local, peer) in table(process.pid) {
                if left.remove(&inode) {
                    note(match peer {
                        Some(peer) => format!("connected to {protocol} {peer}"),
                        None => format!("listened on {protocol} {local}"),
                    });
                }
            }
            if left.is_empty() {
                continue;
            }
            let unix = unix.get_or_insert_with(unix_diag::sockets);
            let outside = left.iter().filter(|i| outside_peer(**i, unix, &inside).is_some());
            suspects.extend(outside.map(|inode| (process.name.clone(), *inode)));
        }
        self.confirm(&suspects);
        // Never more than a hundredth of the time, whatever the tree's size.
        self.pause = (self.pause * 2).min(SLOWEST).max(start.elapsed() * 100);
        self.next = Instant::now() + self.pause;
    }

    /// Notes those connections that lead outside.  The descriptors of a tree are not read at one moment: what one of its own
    /// processes (an agent, a server of a build) has accepted since it was looked at is not outside.  So they are all looked
    /// at again, and what is still connected then to something that nobody in the tree has is.
    fn confirm(&mut self, suspects: &[(String, u64)]) {
        if suspects.is_empty() {
            return;
        }
        let tree = processes::descendants(std::process::id());
        let inside: BTreeSet<u64> = tree.iter().flat_map(|p| open(p.pid).sockets).collect();
        let unix = unix_diag::sockets();
        for (process, inode) in suspects {
            if let Some(name) = outside_peer(*inode, &unix, &inside) {
                let what = format!("connected to the unix socket {name}");
                let process = process.clone();
                self.seen.insert(Sighting { process, what, reached: true });
            }
        }
    }

    pub(crate) fn finish(self) -> Vec<Sighting> {
        self.seen.into_iter().collect()
    }
}

/// The name of the other end of a unix socket, if it is not in the tree.  (One without a name is
/// half of a pair, whose other half was made, and perhaps handed over, inside.)
fn outside_peer(
    inode: u64,
    unix: &std::collections::HashMap<u64, unix_diag::UnixSocket>,
    inside: &BTreeSet<u64>,
) -> Option<String> {
    let peer = unix.get(&inode)?.peer.filter(|p| !inside.contains(p))?;
    unix.get(&peer)?.name.clone()
}

/// What of a process's descriptors matters here.
#[derive(Default)]
struct Open {
    /// Inodes.
    sockets: BTreeSet<u64>,
    /// Paths.
    devices: BTreeSet<String>,
}

fn open(pid: u32) -> Open {
    let mut open = Open::default();
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return open };
    for fd in fds.flatten() {
        let Ok(target) = std::fs::read_link(fd.path()) else { continue };
        let Some(target) = target.to_str() else { continue };
        if let Some(inode) = target.strip_prefix("socket:[") {
            open.sockets.extend(inode.strip_suffix(']').and_then(|i| i.parse::<u64>().ok()));
        } else if target.starts_with("/dev/") && !harmless(target) {
            open.devices.insert(target.to_owned());
        }
    }
    open
}

/// Devices that lead nowhere, terminals, and what is not a device.
fn harmless(path: &str) -> bool {
    let name = path.strip_prefix("/dev/").unwrap_or(path);
    ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"].contains(&name)
        || ["pts", "pts/", "shm", "mqueue", "fd"].iter().any(|p| name.starts_with(p))
        || name.strip_prefix("tty").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
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
    fn devices_that_matter_are_told_from_those_that_do_not() {
        for path in ["/dev/null", "/dev/pts/3", "/dev/tty", "/dev/tty1", "/dev/shm/x"] {
            assert!(harmless(path), "{path}");
        }
        for path in ["/dev/sda", "/dev/ttyUSB0", "/dev/fuse", "/dev/snd/seq", "/dev/kmsg"] {
            assert!(!harmless(path), "{path}");
        }
    }

    #[test]
    fn a_unix_socket_to_outside_is_seen() {
        use std::os::unix::net::{UnixListener, UnixStream};
        use std::process::{Command, Stdio};
        let path = std::env::temp_dir().join(format!("systx-watch-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let mut watcher = Watcher::new();
        let theirs = UnixStream::connect(&path).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut child = Command::new("cat")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        watcher.look();
        let seen = watcher.finish();
        child.kill().unwrap();
        child.wait().unwrap();
        let wanted = format!("connected to the unix socket {}", path.display());
        assert!(seen.iter().any(|s| s.process == "cat" && s.what == wanted), "{seen:?}");
    }

    #[test]
    fn a_server_of_the_tree_is_not_outside_whenever_it_accepts() {
        use std::process::{Command, Stdio};
        let dir = std::env::temp_dir().join(format!("systx-agent-{}", std::process::id()));
        let script = "
import os, socket, sys
path = sys.argv[1]
server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen(64)
print('up', flush=True)
if os.fork() == 0:
    for _ in range(4):
        if os.fork() == 0: break
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path); client.recv(1)
while True:
    one, _ = server.accept(); one.send(b'x'); one.recv(1); one.close()
";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(&dir)
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
        let mut watcher = Watcher::new();
        (0..100).for_each(|_| watcher.look());
        let tree = processes::descendants(child.id());
        for pid in tree.iter().map(|p| p.pid).chain([child.id()]) {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        child.wait().unwrap();
        std::fs::remove_file(&dir).unwrap();
        let seen = watcher.finish();
        let of_it = seen.iter().filter(|s| s.what.contains("systx-agent"));
        assert_eq!(of_it.count(), 0, "{seen:?}");
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
        assert!(seen.iter().any(|s| s.what == format!("connected to tcp {peer}")), "{seen:?}");
        // Our own connection has the same peer; it must not count as the child's.
        // (Another test's child of this name has a unix socket.)
        let tcp = seen.iter().filter(|s| s.process == "cat" && s.what.contains(" tcp "));
        assert_eq!(tcp.count(), 1, "{seen:?}");
        drop(mine);
    }
}
