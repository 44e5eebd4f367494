//! Sockets of the host in a view: connections to them are made in the place of the program.
//!
//! The kernel knows a socket that somebody listens on by its inode, and a view has inodes of its
//! own. So a program of the run that connects to a name there (an agent's below /tmp, a database's
//! below /var) would be refused, although nothing is different about that socket and the one who
//! listens is there. The client is asked about each connect(2) anyway (`calls`). Where there is
//! such a socket, a process of its own ([`Wanted::connect`]) enters the program's user namespace,
//! takes on its ids and capabilities, looks whether the path leads to that socket for the program,
//! and connects a duplicate of the program's socket (pidfd_getfd(2)) to the inode of the host.
//! Whoever listens is told the program's user and group, and the number of that process.

use crate::seccomp_unsafe;
use crate::sys_unsafe;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::{
    Gid, Pid, PidfdFlags, PidfdGetfdFlags, Signal, Uid, kill_process, pidfd_getfd, pidfd_open,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, capabilities, move_into_link_name_space,
    set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How long is waited for an answer until it is looked whether the program still waits.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// What `path` leads to in a directory that stands for the root, without opening it.
pub(crate) fn find(root: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let below = path.strip_prefix("/").unwrap_or(path);
    loop {
        match rustix::fs::openat2(&root, below, flags, Mode::empty(), how) {
            // Something was renamed or mounted, anywhere, while it passed a `..`.
            Err(Errno::AGAIN) => {}
            found => return found,
        }
    }
}

/// The root directory of a thread.
pub(crate) fn root_of(thread: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{thread}/root"), flags, Mode::empty())
}

/// An inode, as stat(2) tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    device: (u32, u32),
    number: u64,
    kind: FileType,
}

impl Identity {
    /// Of what is open.
    pub(crate) fn of(file: impl AsFd) -> Option<Identity> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let s = rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS).ok()?;
        let kind = FileType::from_raw_mode(u32::from(s.stx_mode));
        Some(Identity { device: (s.stx_dev_major, s.stx_dev_minor), number: s.stx_ino, kind })
    }

    pub(crate) fn is_socket(&self) -> bool {
        self.kind == FileType::Socket
    }

    /// Whether a view shows that inode as this one: with its number, on another device. What a run
    /// has made has numbers that no inode has.
    pub(crate) fn shows(&self, host: &Identity) -> bool {
        self.device != host.device && (self.number, self.kind) == (host.number, host.kind)
    }
}

/// A socket of the host.
pub(crate) struct Host {
    /// It, without being open.
    pub(crate) file: OwnedFd,
    /// Which inode it is.
    pub(crate) id: Identity,
}

/// A connection that a program of the run wants.
pub(crate) struct Wanted {
    host: Host,
    path: PathBuf,
    root: OwnedFd,
    socket: OwnedFd,
    rights: Rights,
    /// If it is another one than the client's.
    user_namespace: Option<OwnedFd>,
}

/// What a thread may do, by its ids and capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    effective: CapabilitySet,
}

impl Wanted {
    /// Of the thread that waits in the call, for its descriptor `socket`, to what is at `path` for
    /// it, if that is `host`.
    pub(crate) fn new(thread: u32, socket: u64, path: &Path, host: Host) -> Option<Wanted> {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let (process, rights) = parse(&status)?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).ok()?;
        let number = i32::try_from(socket).ok()?;
        let socket = pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()).ok()?;
        let namespace = |of: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open(format!("/proc/{of}/ns/user"), flags, Mode::empty()).ok()
        };
        let theirs = namespace(&thread.to_string())?;
        let is_other = Identity::of(&theirs) != Identity::of(&namespace("self")?);
        Some(Wanted {
            host,
            path: path.to_owned(),
            root: root_of(thread).ok()?,
            socket,
            rights,
            user_namespace: Some(theirs).filter(|_| is_other),
        })
    }

    /// Makes it, for as long as somebody waits for it. `None`: this is not for us, and the kernel
    /// knows what to tell the program.
    pub(crate) fn connect(&self, waits: impl Fn() -> bool) -> Option<Result<(), Errno>> {
        let (told, tells) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
        // A descriptor of this process is one of its child, too.
        let at = format!("/proc/self/fd/{}", self.host.file.as_raw_fd());
        let at = SocketAddrUnix::new(at).ok()?;
        let own = std::fs::read_to_string("/proc/thread-self/status").ok()?;
        let own = parse(&own)?.1;
        let child = sys_unsafe::fork_for(|| {
            let done = self.as_the_program(&own, &at);
            if let Some(done) = done {
                let errno = done.err().map_or(0, Errno::raw_os_error);
                let _ = rustix::io::write(&tells, &errno.to_ne_bytes());
            }
        });
        drop(tells);
        let child = child.ok()?;
        // Whoever waits for all children of the client buries this one.
        loop {
            match poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&LOOK)) {
                Ok(0) if !waits() => {
                    let _ = kill_process(child, Signal::KILL);
                    return None;
                }
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(_) => return None,
            }
        }
        let mut errno = [0; 4];
        match rustix::io::read(&told, &mut errno) {
            Ok(4) => match i32::from_ne_bytes(errno) {
                0 => Some(Ok(())),
                errno => Some(Err(Errno::from_raw_os_error(errno))),
            },
            _ => None,
        }
    }

    /// In a process of its own.
    fn as_the_program(&self, own: &Rights, at: &SocketAddrUnix) -> Option<Result<(), Errno>> {
        if let Some(namespace) = &self.user_namespace {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User)).ok()?;
        }
        self.rights.take_on(own).ok()?;
        // With these rights, so that no directory is passed that the program may not pass.
        let found = find(&self.root, &self.path).ok()?;
        if !Identity::of(&found)?.shows(&self.host.id) {
            return None;
        }
        Some(rustix::net::connect(&self.socket, at))
    }
}

/// Ends the call `id` with what came of the connection; whether there is one.
pub(crate) fn serve(
    wanted: &Wanted,
    listener: &OwnedFd,
    id: u64,
    goes_on: impl Fn() -> bool,
) -> bool {
    let done = wanted.connect(|| goes_on() && seccomp_unsafe::waits(listener.as_fd(), id));
    let is_made = matches!(done, Some(Ok(())));
    match done {
        Some(done) => seccomp_unsafe::answer(listener.as_fd(), id, done),
        None => seccomp_unsafe::go_on(listener.as_fd(), id),
    }
    is_made
}

/// The process and the rights in the text of /proc/TID/status.
fn parse(status: &str) -> Option<(Pid, Rights)> {
    let text = |key: &str| systx_base::proc::status(status, key);
    let numbers = |key: &str| {
        let numbers = text(key)?.split_ascii_whitespace().map(|n| n.parse::<u32>().ok());
        numbers.collect::<Option<Vec<u32>>>()
    };
    let process = Pid::from_raw(i32::try_from(*numbers("Tgid")?.first()?).ok()?)?;
    let rights = Rights {
        uid: Uid::from_raw(*numbers("Uid")?.get(1)?),
        gid: Gid::from_raw(*numbers("Gid")?.get(1)?),
        groups: numbers("Groups")?.into_iter().map(Gid::from_raw).collect(),
        effective: CapabilitySet::from_bits_retain(
            u64::from_str_radix(text("CapEff")?.trim(), 16).ok()?,
        ),
    };
    Some((process, rights))
}

impl Rights {
    /// This process, which has one thread and the ids of `own`, has them from now on.
    fn take_on(&self, own: &Rights) -> Result<(), Errno> {
        if self.groups != own.groups {
            set_thread_groups(&self.groups)?;
        }
        if self.gid != own.gid {
            set_thread_res_gid(None, self.gid, None)?;
        }
        if self.uid != own.uid {
            set_thread_res_uid(None, self.uid, None)?;
        }
        let had = capabilities(None)?;
        let effective = self.effective & had.permitted;
        set_capabilities(None, CapabilitySets { effective, ..had })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_from_what_the_kernel_tells() {
        let status = "Name:\tx\nTgid:\t7\nPid:\t9\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t10 11 \nCapEff:\t0000000000000003\n";
        let (process, rights) = parse(status).unwrap();
        assert_eq!(process.as_raw_nonzero().get(), 7);
        assert_eq!((rights.uid.as_raw(), rights.gid.as_raw()), (2, 6));
        assert_eq!(rights.groups, [10, 11].map(Gid::from_raw));
        assert_eq!(rights.effective, CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE);
        assert_eq!(parse(&status.replace("10 11", "")).unwrap().1.groups, []);
        assert_eq!(parse("Tgid:\tx\n"), None);
    }

    #[test]
    fn a_view_shows_an_inode_by_its_number_only() {
        let host = Identity { device: (1, 2), number: 3, kind: FileType::Socket };
        let shown = Identity { device: (1, 9), ..host };
        assert!(shown.shows(&host) && shown.is_socket());
        assert!(!host.shows(&host), "that is the inode itself");
        assert!(!Identity { number: 4, ..shown }.shows(&host));
        assert!(!Identity { kind: FileType::Fifo, ..shown }.shows(&host));
    }
}
