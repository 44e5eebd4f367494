//! What reached the outside besides files: connections of the command's processes, and devices that
//! they have open.
//!
//! The open descriptors of the tree are looked at:
//! - TCP and UDP sockets, in /proc/PID/net: connected ones count, and so do listeners;
//! - unix sockets whose other end is not in the tree ([`crate::unix_diag`]);
//! - devices, apart from terminals and the harmless ones (/dev/null and the like).
//!
//! What the client itself has open (its standard input may be a socket) does not count.
//!
//! There is a look when there may be something new to see: after the start, after a connect(2) or
//! listen(2) ([`crate::calls`]), after somebody opens one of the devices (inotify(7)).  Some more
//! follow, ever more rarely, since a connection takes its time; then no more, so a command that
//! sleeps costs nothing.  Where the kernel does not tell of calls or of devices, looks never end.
//! Of a device it tells whoever opens it: if nobody of the tree has run since the last look, it was
//! somebody else.
//!
//! Limits: what lives between two looks is not seen; neither are packets of unconnected UDP
//! sockets, nor signals to outside processes.  This is a help for the reader of a summary, not a
//! guard.

use crate::calls::Told;
use crate::processes;
use crate::unix_diag;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
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

/// From what is told to the look.
const FIRST: Duration = Duration::from_millis(30);
/// Between looks that new things are told for.
const OFTEN: Duration = Duration::from_secs(1);
/// After a pause of this length there is no further look, where the kernel tells of what is new.
const LAST: Duration = Duration::from_secs(60);
/// The longest pause where it does not.
const UNTOLD: Duration = Duration::from_secs(10);

/// Looks at the tree below this process.
pub(crate) struct Watcher {
    own: Open,
    seen: BTreeSet<Sighting>,
    next: Option<Instant>,
    pause: Duration,
    /// When the last look was over, and how long after it the next one may be at the earliest.
    last: Option<Instant>,
    rest: Duration,
    calls: Option<Arc<Told>>,
    devices: Devices,
    /// The next look is for a device alone, and when the one after it was due, with its pause.
    for_device: Option<(Option<Instant>, Duration)>,
    /// The tree at the last look, with how often each process had slept ([`processes::sleeps_of`]).
    slept: Vec<(u32, Option<u64>)>,
    /// As for [`processes::of_the_run`].
    others: Option<u64>,
}

/// What is left of a [`Watcher`].
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) sightings: Vec<Sighting>,
    /// What told of opened devices: the kernel takes some 20 ms to close it.
    pub(crate) devices: Option<OwnedFd>,
}

/// What tells of opened devices.
enum Devices {
    /// From the first look on.
    Later,
    /// This does.
    Told(OwnedFd),
    /// Nothing.
    Untold,
}

impl Watcher {
    pub(crate) fn new(calls: Option<Arc<Told>>, others: Option<u64>) -> Watcher {
        Watcher {
            own: open(std::process::id()),
            seen: BTreeSet::new(),
            next: Some(Instant::now() + FIRST),
            pause: FIRST,
            last: None,
            rest: FIRST,
            calls,
            devices: Devices::Later,
            for_device: None,
            slept: Vec::new(),
            others,
        }
    }

    /// When to call [`Watcher::look`] next.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// When one of these can be read, [`Watcher::hear`] is to be called.
    pub(crate) fn told(&self) -> Vec<BorrowedFd<'_>> {
        let calls = self.calls.as_ref().map(|calls| calls.something.as_fd());
        let devices = match &self.devices {
            // One that is due already looks at all of them.
            Devices::Told(devices) if self.for_device.is_none() => Some(devices.as_fd()),
            _ => None,
        };
        calls.into_iter().chain(devices).collect()
    }

    /// Something is new: looks soon, then ever more rarely.
    pub(crate) fn hear(&mut self) {
        let calls = self.calls.as_ref();
        let called =
            calls.is_some_and(|calls| rustix::io::read(&calls.something, &mut [0; 8]).is_ok());
        if let Devices::Told(told) = &self.devices
            && new_devices(told)
        {
            self.devices = Devices::Later;
        }
        self.for_device = match self.for_device {
            _ if called => None,
            // A look is due in any case.
            None if self.last.is_none() => None,
            None => Some((self.next, self.pause)),
            before => before,
        };
        let earliest = self.last.map(|last| last + self.rest);
        let soon = (Instant::now() + FIRST).max(earliest.unwrap_or_else(Instant::now));
        self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
        self.pause = FIRST;
    }

    /// Whether the kernel tells of everything that is a reason to look.
    fn is_told(&self) -> bool {
        let calls = self.calls.as_ref().is_some_and(|calls| !calls.rings.load(Relaxed));
        calls && matches!(self.devices, Devices::Told(_))
    }

    pub(crate) fn look(&mut self) {
        let (start, before) = (Instant::now(), worked());
        if matches!(self.devices, Devices::Later) {
            self.devices = tell_of_devices().map_or(Devices::Untold, Devices::Told);
        }
        if let Some((next, pause)) = self.for_device.take()
            && self.is_told()
            && self
                .slept
                .iter()
                .all(|(pid, then)| then.is_some() && processes::sleeps_of(*pid) == *then)
        {
            (self.next, self.pause, self.last) = (next, pause, Some(start));
            self.rest = (self.rest * 2).min(OFTEN);
            return;
        }
        let tree = processes::of_the_run(self.others);
        // Whoever runs from now on may have opened something by the next look.
        self.slept = tree.iter().map(|p| (p.pid, processes::sleeps_of(p.pid))).collect();
        let tree: Vec<(processes::Process, Open)> = tree
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
        // Never more than a hundredth of a processor, whatever the tree's size. The time that
        // others have had it meanwhile does not count: a busy machine is no reason not to look.
        let least = worked().saturating_sub(before) * 100;
        self.rest = (self.rest * 2).min(OFTEN).max(least);
        let is_told = self.is_told();
        let over = self.pause >= LAST && is_told;
        self.pause = (self.pause * 2).min(if is_told { LAST } else { UNTOLD }).max(least);
        let now = Instant::now();
        self.last = Some(now);
        self.next = (!over).then(|| now + self.pause);
    }

    /// Notes those connections that lead outside. The descriptors of a tree are not read at one
    /// moment: what one of its own processes (an agent, a server of a build) has accepted since it
    /// was looked at is not outside. So they are all looked at again, and what is still connected
    /// then to something that nobody in the tree has is.
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

    pub(crate) fn finish(self) -> Watched {
        let devices = match self.devices {
            Devices::Told(devices) => Some(devices),
            Devices::Later | Devices::Untold => None,
        };
        Watched { sightings: self.seen.into_iter().collect(), devices }
    }
}

/// How long this thread has had a processor.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().unwrap_or_default()
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

/// At most so many devices are watched, this deep below /dev.
const DEVICES: usize = 1000;
const DEEPEST: usize = 4;

/// What becomes readable when somebody opens a device, whoever it is, or a new one appears.
fn tell_of_devices() -> Option<OwnedFd> {
    let told = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let mut left = DEVICES;
    watch_devices(&told, Path::new("/dev"), DEEPEST, &mut left).then_some(told)
}

/// Takes what was told of devices; whether there are new ones.
fn new_devices(told: &OwnedFd) -> bool {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(told, &mut buffer);
    let new = ReadFlags::CREATE | ReadFlags::MOVED_TO | ReadFlags::QUEUE_OVERFLOW;
    let mut any = false;
    while let Ok(event) = events.next() {
        any |= event.events().intersects(new);
    }
    any
}

fn watch_devices(told: &OwnedFd, dir: &Path, deep: usize, left: &mut usize) -> bool {
    let appears = WatchFlags::CREATE | WatchFlags::MOVED_TO;
    if deep == 0 || inotify::add_watch(told, dir, appears).is_err() {
        return deep == 0;
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return true };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if path.to_str().is_none_or(harmless) {
            continue;
        }
        let device = kind.is_char_device() || kind.is_block_device();
        if kind.is_dir() && !watch_devices(told, &path, deep - 1, left) {
            return false;
        }
        if !device {
            continue;
        }
        // Gone since is as good.
        let watched = inotify::add_watch(told, &path, WatchFlags::OPEN);
        if *left == 0 || watched.is_err_and(|e| e != Errno::NOENT) {
            return false;
        }
        *left -= 1;
    }
    true
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

    /// It is slow to close, so whoever ends a run gives it on.
    #[test]
    fn what_watched_the_devices_is_left_open() {
        let mut watcher = Watcher::new(None, None);
        watcher.look();
        let devices = watcher.finish().devices;
        assert_eq!(devices.is_some(), tell_of_devices().is_some());
    }

    #[test]
    fn a_unix_socket_to_outside_is_seen() {
        use std::os::unix::net::{UnixListener, UnixStream};
        use std::process::{Command, Stdio};
        let path = std::env::temp_dir().join(format!("systx-watch-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let mut watcher = Watcher::new(None, None);
        let theirs = UnixStream::connect(&path).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut child = Command::new("cat")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        watcher.look();
        let seen = watcher.finish().sightings;
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
        let mut watcher = Watcher::new(None, None);
        (0..100).for_each(|_| watcher.look());
        let tree = processes::descendants(child.id());
        for pid in tree.iter().map(|p| p.pid).chain([child.id()]) {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        child.wait().unwrap();
        std::fs::remove_file(&dir).unwrap();
        let seen = watcher.finish().sightings;
        let of_it = seen.iter().filter(|s| s.what.contains("systx-agent"));
        assert_eq!(of_it.count(), 0, "{seen:?}");
    }

    #[test]
    fn a_connection_of_a_child_is_seen_and_our_own_is_not() {
        use std::process::{Command, Stdio};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mine = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut watcher = Watcher::new(None, None);
        let theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = theirs.peer_addr().unwrap();
        let mut child = Command::new("cat")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        watcher.look();
        let seen = watcher.finish().sightings;
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
