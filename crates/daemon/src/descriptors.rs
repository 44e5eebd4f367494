//! What processes have open of the files that they have locked, where opens and closes make no
//! messages: see `systx_vfs::locks`.
//!
//! A descriptor is a number in a process.  An open file description is known by a place in an
//! epoll instance, which holds no reference to it: the kernel takes it out at the end of the
//! description, be that in any process, in a mapping, or in a message on its way.  kcmp(2) tells
//! whether a descriptor is still that description.

use crate::kcmp_unsafe::{self, Compared};
use crate::processes;
use rustix::event::epoll;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use systx_vfs::locks::{Asker, Class, Openings, Taken};

/// So many descriptors of one file are remembered beside the one by which it was locked.  The
/// close of another one ends no lock, then.
const OTHERS: usize = 8;

/// An open file description of another process.
struct Description {
    epoll: OwnedFd,
    /// What it was to this process when it was registered; it has been closed since.
    number: RawFd,
}

impl Description {
    /// Whatever a process has as a descriptor.
    fn of(asker: &Asker, fd: RawFd) -> rustix::io::Result<Description> {
        let file = get(asker, fd)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let nothing = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &file, nothing, epoll::EventFlags::empty())?;
        let number = file.as_raw_fd();
        Ok(Description { epoll, number })
    }

    fn compare(&self, pid: Pid, fd: RawFd) -> Compared {
        kcmp_unsafe::watched((pid, fd), (&self.epoll, self.number))
    }

    /// Whether it has not ended.
    fn lives(&self) -> bool {
        let me = rustix::process::getpid();
        self.compare(me, self.epoll.as_raw_fd()) != Compared::Gone
    }

    /// Whether a process still has it as this descriptor.  What cannot be told counts as yes.
    fn is(&self, asker: (u32, u32), fd: RawFd) -> bool {
        let (tid, pid) = asker;
        let told = |tid| Pid::from_raw(i32::try_from(tid).ok()?).map(|t| self.compare(t, fd));
        match told(tid) {
            Some(Compared::Same) => true,
            Some(Compared::Gone) => false,
            Some(Compared::Unknown) => self.lives(),
            // The thread has ended, perhaps, and its process goes on.
            _ => threads(pid).any(|tid| told(tid) == Some(Compared::Same)),
        }
    }
}

fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let list = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    list.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A duplicate of somebody's descriptor.
fn get(asker: &Asker, fd: RawFd) -> rustix::io::Result<OwnedFd> {
    /// `PIDFD_THREAD` (Linux 6.9): a thread may have descriptors of its own.
    const THREAD: u32 = libc::O_EXCL.unsigned_abs();
    let number = |id: u32| i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH);
    let thread = pidfd_open(number(asker.tid)?, PidfdFlags::from_bits_retain(THREAD));
    let process = match thread {
        Err(Errno::INVAL) => pidfd_open(number(asker.pid)?, PidfdFlags::empty()),
        thread => thread,
    }?;
    pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())
}

/// The file of a descriptor, without asking who serves it: device and inode.  In a view of an
/// ordinary user, which is a mount of another user namespace, the kernel tells the inode alone.
fn file_of(tid: u32, fd: RawFd) -> Option<(Option<(u32, u32)>, u64)> {
    let path = format!("/proc/{tid}/fd/{fd}");
    if let Ok(seen) = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) {
        return Some((Some((seen.stx_dev_major, seen.stx_dev_minor)), seen.stx_ino));
    }
    let text = std::fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("ino:"))?;
    Some((None, number.trim().parse().ok()?))
}

fn descriptors(tid: u32) -> impl Iterator<Item = RawFd> {
    let list = std::fs::read_dir(format!("/proc/{tid}/fd")).into_iter().flatten().flatten();
    list.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What was seen of an owner when it got a lock.
struct Seen {
    class: Option<Class>,
    tid: u32,
    pid: u32,
    /// The process that had that number.
    started: Option<u64>,
    /// It had closed the file already.
    closed: bool,
    /// What the lock depends on; empty where nothing could be seen.
    held: Vec<(RawFd, Arc<Description>)>,
}

impl Taken for Seen {
    fn lives(&self) -> bool {
        if self.closed {
            return false;
        }
        let who = (self.tid, self.pid);
        match self.class {
            // As long as the process; a second look would see no more than the first.
            _ if self.held.is_empty() => {
                processes::is_alive(self.pid) && processes::started(self.pid) == self.started
            }
            Some(Class::Process) => self.held.iter().all(|(fd, it)| it.is(who, *fd)),
            _ => self.held.iter().any(|(_, it)| it.lives()),
        }
    }

    fn class(&self) -> Option<Class> {
        self.class
    }
}

/// All processes.
pub struct Descriptors;

impl Openings for Descriptors {
    fn taken(&self, asker: &Asker, before: Option<Arc<dyn Taken>>) -> Arc<dyn Taken> {
        let before = before.map(|before| before as Arc<dyn Any + Send + Sync>);
        let before = before.and_then(|before| before.downcast::<Seen>().ok());
        let known = |fd: RawFd| {
            let mut held = before.iter().flat_map(|before| &before.held);
            let is = |it: &Description| it.is((asker.tid, asker.pid), fd);
            held.find(|(number, it)| *number == fd && is(it)).map(|(_, it)| Arc::clone(it))
        };
        let description = |fd| match known(fd) {
            Some(it) => Ok(it),
            None => Description::of(asker, fd).map(Arc::new),
        };
        let mut seen = Seen {
            class: asker.class(),
            tid: asker.tid,
            pid: asker.pid,
            started: processes::started(asker.pid),
            closed: false,
            held: Vec::new(),
        };
        let file = asker.call.and_then(|call| file_of(asker.tid, call.fd));
        if let Some(call) = asker.call {
            match description(call.fd) {
                Ok(it) => seen.held.push((call.fd, it)),
                Err(Errno::BADF | Errno::SRCH) => seen.closed = true,
                Err(errno) => tracing::debug!(pid = asker.pid, %errno, "a lock's open is not seen"),
            }
            if seen.held.is_empty() || seen.class != Some(Class::Process) {
                return Arc::new(seen);
            }
        }
        // All of its descriptors of the file: the close of any ends a process's lock.  Where the
        // call is not known, one of them is what it was made by.
        let by = asker.call.map(|call| call.fd);
        let same = |fd: &RawFd| match (file, file_of(asker.tid, *fd)) {
            (Some(file), other) => other == Some(file),
            (None, other) => other.is_some_and(|(_, ino)| ino == asker.ino),
        };
        let others = descriptors(asker.tid).filter(|fd| Some(*fd) != by).filter(same);
        seen.held.extend(others.take(OTHERS).filter_map(|fd| Some((fd, description(fd).ok()?))));
        Arc::new(seen)
    }
}

/// Whether what a process has open can be told: the filters of container engines forbid the system
/// calls for that, some kernels do not have them, and a user's daemon may not look at every
/// process of its user (`ptrace_scope`).
pub fn can_be_seen(pid: u32) -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    let own = std::process::id();
    let here = || {
        let (reader, _writer) = rustix::pipe::pipe().ok()?;
        let asker = Asker { tid: own, pid: own, flock: false, call: None, ino: 0 };
        let it = Description::of(&asker, reader.as_raw_fd()).ok()?;
        let me = rustix::process::getpid();
        let known = it.compare(me, reader.as_raw_fd()) == Compared::Same;
        drop(reader);
        Some(known && !it.lives())
    };
    if !HERE.get_or_init(|| here() == Some(true)) {
        return false;
    }
    let asker = Asker { tid: pid, pid, flock: false, call: None, ino: 0 };
    // One that has ended has nothing open.
    match descriptors(pid).next() {
        Some(fd) => get(&asker, fd).is_ok(),
        None => !processes::is_alive(pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use systx_vfs::client::LockCall;

    /// What has no place in an epoll instance, as a plain file, cannot stand for a file of a view:
    /// this does.
    fn stream() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a pair")
    }

    fn asker(fd: RawFd, class: Class) -> Asker {
        let own = std::process::id();
        let call = LockCall { fd, description: class == Class::Description };
        let flock = class == Class::Whole;
        Asker { tid: own, pid: own, flock, call: Some(call), ino: 0 }
    }

    fn seen() -> bool {
        let seen = can_be_seen(std::process::id());
        if !seen {
            println!("SKIPPED: what a process has open cannot be told here");
        }
        seen
    }

    #[test]
    fn a_process_keeps_its_lock_until_it_closes_any_of_its_descriptors() {
        if !seen() {
            return;
        }
        let (file, _other) = stream();
        let second = file.try_clone().expect("a duplicate");
        let who = asker(file.as_raw_fd(), Class::Process);
        let taken = Descriptors.taken(&who, None);
        assert!(taken.lives());
        let third = file.try_clone().expect("a duplicate");
        drop(third);
        assert!(taken.lives(), "it was not there");
        drop(second);
        assert!(!taken.lives(), "though the one by which it was locked is open");
        assert_eq!(taken.class(), Some(Class::Process));
    }

    #[test]
    fn what_has_the_number_of_a_closed_descriptor_is_another_one() {
        if !seen() {
            return;
        }
        let (file, other) = stream();
        let number = file.as_raw_fd();
        let taken = Descriptors.taken(&asker(number, Class::Process), None);
        // Over it, as dup2(2) does: it is closed and open in one step.
        let mut place = OwnedFd::from(file);
        rustix::io::dup2(&other, &mut place).expect("dup2");
        assert_eq!(place.as_raw_fd(), number);
        assert!(!taken.lives());
        let again = asker(number, Class::Process);
        assert!(Descriptors.taken(&again, Some(taken)).lives(), "what is there now");
    }

    #[test]
    fn a_description_keeps_its_lock_until_its_last_descriptor_is_closed_anywhere() {
        if !seen() {
            return;
        }
        for class in [Class::Description, Class::Whole] {
            let (file, _other) = stream();
            let taken = Descriptors.taken(&asker(file.as_raw_fd(), class), None);
            let (_keep, end) = stream();
            let mut sh = Command::new("sh");
            sh.args(["-c", "echo ready; read line <&2"]);
            sh.stdin(OwnedFd::from(file.try_clone().expect("a duplicate")));
            sh.stderr(OwnedFd::from(end)).stdout(Stdio::piped());
            let mut child = sh.spawn().expect("sh");
            drop(sh);
            let mut line = String::new();
            let out = child.stdout.take().expect("piped");
            BufReader::new(out).read_line(&mut line).expect("ready");
            drop(file);
            assert!(taken.lives(), "the child has it");
            child.kill().expect("kill");
            child.wait().expect("wait");
            // A child that another test is just spawning has a copy until it executes its program.
            let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while taken.lives() {
                assert!(std::time::Instant::now() < until, "nobody has it");
                std::thread::yield_now();
            }
        }
    }
}
