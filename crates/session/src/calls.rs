//! Who a run talks to outside, and whose rights it wanted: calls of its processes that the kernel
//! asks about.
//!
//! A filter ([`crate::seccomp_unsafe`]) that the first process installs before it executes CMD has
//! the kernel ask about connect(2), about two other calls that are a reason to look at what is open
//! ([`crate::watch`]), and, in an ordinary user's run, about execve(2).  A thread of the client
//! answers: to go on, but for sockets of the host that the view shows, to which the client connects
//! the program (`sockets`).  What it looks at otherwise is for the summary only, so nothing rests
//! on it: memory that changes between the look and the call makes the summary wrong, no more.
//!
//! Every other call passes the filter in the kernel, where the verdict on it is a bit in a table.
//! A signal ends a call that waits only until the client has fetched the question: the kernel has
//! no way to keep it out of that moment, so the client is woken as fast as it can be.
//! If the client dies, the kernel fails the calls that wait, and those that come later, with
//! ENOSYS: nobody hangs; CMD is killed then anyway.
//!
//! The thread ends with the last process that has the filter, or when it is told to.

use crate::seccomp_unsafe::{self, Call};
use crate::sockets::{self, Host, Identity, Wanted};
use crate::watch::Sighting;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use systx_base::sync::{Mutex, rank};

/// What is noted at most.
const MOST: usize = 200;
const LONGEST_PATH: usize = 4096;

/// The calls that are asked about.
pub(crate) fn wanted(privileged: bool) -> Vec<u32> {
    let mut calls = vec![libc::SYS_connect, libc::SYS_listen, libc::SYS_io_uring_setup];
    if !privileged {
        calls.extend([libc::SYS_execve, libc::SYS_execveat]);
    }
    calls.into_iter().filter_map(|c| u32::try_from(c).ok()).collect()
}

/// What the thread that answers has been asked, as far as it is a reason to look.
pub(crate) struct Told {
    /// Readable when there was something.
    pub(crate) something: OwnedFd,
    /// Connections may be made without a call from now on.
    pub(crate) rings: AtomicBool,
}

impl Told {
    fn tell(&self) {
        let _ = rustix::io::write(&self.something, &1u64.to_ne_bytes());
    }
}

/// The thread that answers, and what it has seen.
pub(crate) struct Supervisor {
    seen: Arc<Mutex<BTreeSet<Sighting>>>,
    stop: Arc<OwnedFd>,
    told: Arc<Told>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Supervisor {
    /// Starts it.
    ///
    /// # Errors
    /// There is no thread or descriptor for it.
    pub(crate) fn start(listener: OwnedFd) -> Result<Supervisor, Errno> {
        let seen = Arc::new(Mutex::new(rank::LEAF, BTreeSet::new()));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let something = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let told = Arc::new(Told { something, rings: AtomicBool::new(false) });
        let (theirs, stopped, tells) = (Arc::clone(&seen), Arc::clone(&stop), Arc::clone(&told));
        let thread = std::thread::Builder::new()
            .name("calls".into())
            .spawn(move || answer(&listener, &stopped, &theirs, &tells))
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
        Ok(Supervisor { seen, stop, told, thread: Some(thread) })
    }

    /// What it tells of.
    pub(crate) fn told(&self) -> Arc<Told> {
        Arc::clone(&self.told)
    }

    /// What was seen so far.
    pub(crate) fn sightings(&self) -> Vec<Sighting> {
        self.seen.lock().iter().cloned().collect()
    }
}

impl Drop for Supervisor {
    /// Afterwards the client has one thread again, as it must have before its next fork.
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(listener: &OwnedFd, stop: &OwnedFd, seen: &Mutex<BTreeSet<Sighting>>, tells: &Told) {
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|threads| {
        while next(listener, stop) {
            let call = match seccomp_unsafe::receive(listener.as_fd()) {
                Ok(call) => call,
                // Who asked is gone.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                Err(_) => break,
            };
            let Found { told, wanted } = look(listener, &call);
            match libc::c_long::from(call.number) {
                libc::SYS_io_uring_setup => {
                    tells.rings.store(true, Relaxed);
                    tells.tell();
                }
                libc::SYS_execve | libc::SYS_execveat => {}
                // A unix socket that is told of here needs no look.
                libc::SYS_connect if told.is_some() || wanted.is_some() => {}
                _ => tells.tell(),
            }
            let Some(wanted) = wanted else {
                seccomp_unsafe::go_on(listener.as_fd(), call.id);
                note(seen, told);
                continue;
            };
            let goes_on = &goes_on;
            let connect = move || {
                if sockets::serve(&wanted, listener, call.id, || goes_on.load(Relaxed)) {
                    note(seen, told);
                }
            };
            if std::thread::Builder::new()
                .name("connect".into())
                .spawn_scoped(threads, connect)
                .is_err()
            {
                seccomp_unsafe::go_on(listener.as_fd(), call.id);
            }
        }
        goes_on.store(false, Relaxed);
    });
}

/// Waits for a call to be asked about; whether there will be one.
fn next(listener: &OwnedFd, stop: &OwnedFd) -> bool {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        let [asked, stopped] = fds.map(|fd| fd.revents());
        if asked.contains(PollFlags::IN) {
            return true;
        }
        if stopped.contains(PollFlags::IN) || asked.intersects(PollFlags::HUP | PollFlags::ERR) {
            return false;
        }
    }
}

fn note(seen: &Mutex<BTreeSet<Sighting>>, told: Option<Sighting>) {
    let mut seen = seen.lock();
    if seen.len() < MOST {
        seen.extend(told);
    }
}

/// What there is to a call.
#[derive(Default)]
struct Found {
    /// What is worth telling.
    told: Option<Sighting>,
    /// A connection that the kernel would refuse.
    wanted: Option<Wanted>,
}

/// What a call is about.
fn look(listener: &OwnedFd, call: &Call) -> Found {
    let still = || seccomp_unsafe::waits(listener.as_fd(), call.id);
    let told = |what, reached| Some(Sighting { process: name(call.thread), what, reached });
    let number = libc::c_long::from(call.number);
    let found = if [libc::SYS_listen, libc::SYS_io_uring_setup].contains(&number) {
        None
    } else if number == libc::SYS_connect {
        let path = address(call.thread, call.args[1], call.args[2]);
        let path = path.and_then(|path| absolute(call.thread, path)).filter(|_| still());
        path.map(|path| match socket(call.thread, &path) {
            Met::Nothing => Found::default(),
            Met::Hidden(what) => Found { told: told(what, false), wanted: None },
            Met::Itself(what) => {
                Found { told: what.and_then(|what| told(what, true)), wanted: None }
            }
            Met::Shown { what, host } => Found {
                told: what.and_then(|what| told(what, true)),
                wanted: Wanted::new(call.thread, call.args[0], &path, host),
            },
        })
    } else {
        let execve = number == libc::SYS_execve;
        let path = text(call.thread, if execve { call.args[0] } else { call.args[1] });
        let path = path.filter(|_| still()).and_then(|path| absolute(call.thread, path));
        path.map(|path| Found {
            told: rights(&path).and_then(|what| told(what, true)),
            wanted: None,
        })
    };
    // What was read from /proc since is of the thread that asked.
    found.filter(|_| still()).unwrap_or_default()
}

/// The path in a `sockaddr_un`; of no other address.
fn address(thread: u32, at: u64, len: u64) -> Option<PathBuf> {
    let mut bytes = [0u8; 2 + 108];
    let len = usize::try_from(len).ok()?.min(bytes.len());
    let got = seccomp_unsafe::read_memory(thread, at, bytes.get_mut(..len)?);
    path_of(bytes.get(..got)?)
}

fn path_of(sockaddr: &[u8]) -> Option<PathBuf> {
    let (family, path) = sockaddr.split_first_chunk::<2>()?;
    if i32::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX {
        return None;
    }
    let path = path.split(|b| *b == 0).next().filter(|p| !p.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

/// A string in a process's memory.
fn text(thread: u32, mut at: u64) -> Option<PathBuf> {
    const PAGE: u64 = 4096;
    let mut bytes = Vec::new();
    // Not beyond the page: the next one may not be there.
    while bytes.len() < LONGEST_PATH {
        let mut buf = [0u8; PAGE as usize];
        let len = usize::try_from(PAGE - at % PAGE).ok()?;
        let got = seccomp_unsafe::read_memory(thread, at, buf.get_mut(..len)?);
        let part = buf.get(..got).filter(|p| !p.is_empty())?;
        if let Some(end) = part.iter().position(|b| *b == 0) {
            bytes.extend_from_slice(part.get(..end)?);
            return Some(PathBuf::from(OsStr::from_bytes(&bytes))).filter(|_| !bytes.is_empty());
        }
        bytes.extend_from_slice(part);
        at += got as u64;
    }
    None
}

fn absolute(thread: u32, path: PathBuf) -> Option<PathBuf> {
    if path.is_absolute() {
        return Some(path);
    }
    let cwd = std::fs::read_link(format!("/proc/{thread}/cwd")).ok()?;
    // Without `.`; what `..` leads to depends on links.
    Some(cwd.join(path).components().collect::<PathBuf>()).filter(|p| p.is_absolute())
}

fn name(thread: u32) -> String {
    let name = std::fs::read(format!("/proc/{thread}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// What a program of the run finds where the host has a socket.
enum Met {
    /// Nothing that concerns the host.
    Nothing,
    /// Nothing, since its place is private to the run.  With what is told of it.
    Hidden(String),
    /// The socket of the host itself, with what is told of a connection to it.
    Itself(Option<String>),
    /// It may be the same, as a view shows it.
    Shown {
        /// What is told of a connection to it.
        what: Option<String>,
        /// The socket of the host.
        host: Host,
    },
}

/// What a thread finds at a path. On the host it is looked at first: most sockets are made by the
/// run itself, and the view is not asked about them.
fn socket(thread: u32, at: &Path) -> Met {
    let open = || {
        let path = std::fs::canonicalize(at).ok()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, &path, flags, Mode::empty()).ok()?;
        let id = Identity::of(&file).filter(Identity::is_socket)?;
        Some((path, Host { file, id }))
    };
    let Some((path, host)) = open() else { return Met::Nothing };
    let known = known(&path);
    let explained = |means: bool| {
        let words = match known {
            Some(k) if k.unimportant => return None,
            Some(k) if means => format!("{} ({}: {})", path.display(), k.name, k.means),
            Some(k) => format!("{} ({})", path.display(), k.name),
            None => path.display().to_string(),
        };
        Some(words)
    };
    let talked = || explained(true).map(|words| format!("talked to {words}"));
    // As the process sees it: links lead to where they lead inside.
    match sockets::root_of(thread).and_then(|root| sockets::find(root, &path)) {
        Ok(inside) => match Identity::of(&inside) {
            Some(inside) if inside == host.id => Met::Itself(talked()),
            Some(inside) if inside.shows(&host.id) => Met::Shown { what: talked(), host },
            _ => Met::Nothing,
        },
        // Nobody looks into an ordinary user's view who is not in its user namespace.
        Err(Errno::ACCESS) => Met::Shown { what: talked(), host },
        Err(Errno::NOENT | Errno::NOTDIR) => match explained(false) {
            Some(words) => Met::Hidden(format!("wanted {words}")),
            None => Met::Nothing,
        },
        Err(_) => Met::Nothing,
    }
}

/// What is told of executing a program that gives its owner's rights, in a view where it does not.
fn rights(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let bits = libc::S_ISUID | libc::S_ISGID;
    // Set-group-id without the right to execute means locking.
    if meta.mode() & bits == 0 || meta.mode() & 0o111 == 0 || meta.uid() == own_uid() {
        return None;
    }
    Some(format!(
        "ran {} with the user's own rights (set-id has no effect here; for root's: sudo systx run -- CMD)",
        path.display()
    ))
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A socket that many programs talk to.
struct Known {
    /// Where: the path begins with the first and ends with the second.
    at: (&'static str, &'static str),
    name: &'static str,
    means: &'static str,
    /// Programs ask it in passing, and do without.
    unimportant: bool,
}

const fn tell(at: (&'static str, &'static str), name: &'static str, means: &'static str) -> Known {
    Known { at, name, means, unimportant: false }
}

const fn passing(at: (&'static str, &'static str)) -> Known {
    Known { at, name: "", means: "", unimportant: true }
}

const KNOWN: &[Known] = &[
    passing(("/run/nscd/", "")),
    passing(("/run/systemd/userdb/", "")),
    passing(("/run/systemd/resolve/", "")),
    passing(("/var/lib/sss/pipes/", "")),
    tell(
        ("/run/docker.sock", ""),
        "docker",
        "containers, images and volumes are not part of the transaction",
    ),
    tell(("/run/podman/", ""), "podman", "containers and images are not part of the transaction"),
    tell(
        ("/run/containerd/", ""),
        "containerd",
        "containers and images are not part of the transaction",
    ),
    tell(("/run/systemd/private", ""), "systemd", "units are started and stopped at once"),
    tell(("/run/systemd/journal/", ""), "journal", "what is logged stays"),
    tell(("/run/systemd/notify", ""), "systemd", "readiness is told at once"),
    tell(("/run/dbus/system_bus_socket", ""), "system bus", "what services do when asked stays"),
    tell(("/run/user/", "/bus"), "session bus", "what services do when asked stays"),
    tell(
        ("/run/user/", "/systemd/private"),
        "systemd of the user",
        "units are started and stopped at once",
    ),
    tell(("/run/user/", "/keyring/"), "keyring", "stored secrets are not part of the transaction"),
    tell(("", "/S.gpg-agent"), "gpg-agent", "it reads and writes keys outside of the run"),
    tell(("", "/S.keyboxd"), "gpg keybox", "it writes keys outside of the run"),
    tell(("/run/snapd", ".socket"), "snapd", "packages change at once"),
    tell(("/run/cups/", ""), "printing", "jobs are not part of the transaction"),
    tell(("/run/mysqld/", ""), "MySQL", "the database is not part of the transaction"),
    tell(("/run/postgresql/", ""), "PostgreSQL", "the database is not part of the transaction"),
    tell(("/run/libvirt/", ""), "libvirt", "virtual machines are not part of the transaction"),
    tell(("/tmp/.X11-unix/", ""), "X11", "what is shown and copied stays"),
];

fn known(path: &Path) -> Option<&'static Known> {
    let path = path.as_os_str().as_bytes();
    KNOWN.iter().find(|k| path.starts_with(k.at.0.as_bytes()) && path.ends_with(k.at.1.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_care() {
        let un = |path: &[u8]| [&(libc::AF_UNIX as u16).to_ne_bytes()[..], path].concat();
        assert_eq!(path_of(&un(b"/run/x\0junk")), Some("/run/x".into()));
        assert_eq!(path_of(&un(b"/run/x")), Some("/run/x".into()));
        for none in [&b""[..], b"\x01", &un(b""), &un(b"\0abstract"), b"\x02\0/run/x"] {
            assert_eq!(path_of(none), None);
        }
    }

    #[test]
    fn sockets_are_known_by_their_place() {
        let name = |p: &str| known(Path::new(p)).map(|k| k.name);
        assert_eq!(name("/run/docker.sock"), Some("docker"));
        assert_eq!(name("/home/a/.gnupg/S.gpg-agent"), Some("gpg-agent"));
        assert_eq!(name("/run/user/1000/bus"), Some("session bus"));
        assert_eq!(name("/srv/app.sock"), None);
        assert!(known(Path::new("/run/nscd/socket")).unwrap().unimportant);
    }
}
