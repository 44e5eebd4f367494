//! Starts a command in every state that a process can be in when it executes a program, and tells
//! how it ended as its parent sees it.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::Error;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the new process does before it executes the program, one after the other.
#[derive(Clone, Debug)]
pub enum Step {
    /// close(2).
    Close(RawFd),
    /// dup2(2) of a descriptor of the caller.
    Dup(RawFd, RawFd),
    /// Opens a path at this number.
    Open(CString, libc::c_int, RawFd),
    /// Ignores a signal.
    Ignore(i32),
    /// Blocks a signal.
    Block(i32),
    /// Sends itself a signal.
    Raise(i32),
    /// Soft and hard limit.
    Limit(i32, u64, u64),
    /// umask(2).
    Umask(u32),
    /// setpriority(2).
    Nice(i32),
    /// A scheduling policy without a priority.
    Policy(i32),
    /// Only this processor.
    Processor(usize),
    /// A new session.
    Session,
    /// A new process group.
    Group,
    /// This terminal controls the session, and is descriptor 0, 1 and 2.
    Terminal(RawFd),
    /// Its group is in the foreground of descriptor 0.
    Foreground,
    /// chdir(2).
    Directory(CString),
    /// rmdir(2).
    Remove(CString),
    /// chmod(2).
    Mode(CString, u32),
    /// chroot(2), and into it.
    Root(CString),
    /// unshare(2), everything private from there on.
    Unshare(libc::c_int),
    /// umount2(2), detached.
    Unmount(CString),
    /// A tmpfs on a directory.
    Mount(CString),
    /// Another user and group, no other groups.
    User(u32),
    /// prctl(2) with one argument.
    Prctl(i32, libc::c_ulong),
    /// ITIMER_REAL, in microseconds.
    Timer(i64),
    /// A child that stays until its standard input, descriptor 102, ends, and then writes a line to
    /// the report.
    Child,
    /// Writes a text to a file.
    Write(CString, CString),
}

/// The descriptor over which a program reports.
pub const REPORT: RawFd = 100;
/// The descriptor that a [`Step::Child`] reads.
pub const LEASH: RawFd = 102;

/// A path for the kernel.
pub fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).expect("no zero in it")
}

fn last() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Does one step; between fork and exec, so it allocates nothing.  0 or an errno.
fn take(step: &Step) -> i32 {
    if take_file(step) < 0 { last() } else { 0 }
}

/// What is about files and mounts.
fn take_file(step: &Step) -> i32 {
    // SAFETY: each is one system call or a few, on memory that was made before the fork.
    unsafe {
        match step {
            Step::Close(fd) => libc::close(*fd),
            Step::Dup(from, to) => libc::dup2(*from, *to),
            Step::Open(path, flags, at) => {
                let fd = libc::open(path.as_ptr(), *flags, 0o600);
                if fd < 0 || fd == *at { fd } else { libc::dup2(fd, *at) | libc::close(fd) }
            }
            Step::Terminal(fd) => {
                let controls = libc::ioctl(*fd, libc::TIOCSCTTY, 0);
                (0..3).fold(controls, |done, to| done | libc::dup2(*fd, to))
            }
            Step::Directory(path) => libc::chdir(path.as_ptr()),
            Step::Remove(path) => libc::rmdir(path.as_ptr()),
            Step::Mode(path, mode) => libc::chmod(path.as_ptr(), *mode),
            Step::Root(path) => libc::chroot(path.as_ptr()) | libc::chdir(c"/".as_ptr()),
            Step::Unshare(flags) => {
                let null = std::ptr::null();
                let private = libc::MS_REC | libc::MS_PRIVATE;
                let done = libc::unshare(*flags);
                if flags & libc::CLONE_NEWUSER == 0 {
                    libc::mount(null, c"/".as_ptr(), null, private, null.cast());
                }
                done
            }
            Step::Unmount(path) => libc::umount2(path.as_ptr(), libc::MNT_DETACH),
            Step::Mount(path) => {
                let kind = c"tmpfs".as_ptr();
                libc::mount(kind, path.as_ptr(), kind, 0, std::ptr::null())
            }
            Step::Write(path, text) => {
                let fd = libc::open(path.as_ptr(), libc::O_WRONLY);
                let done = libc::write(fd, text.as_ptr().cast(), text.count_bytes());
                libc::close(fd);
                if done < 0 { -1 } else { 0 }
            }
            _ => take_other(step),
        }
    }
}

/// Everything else.
fn take_other(step: &Step) -> i32 {
    // SAFETY: each is one system call or a few, on memory that was made before the fork.
    unsafe {
        match step {
            Step::Ignore(signal) => {
                i32::from(libc::signal(*signal, libc::SIG_IGN) == libc::SIG_ERR)
            }
            Step::Block(signal) => {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, *signal);
                libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())
            }
            Step::Raise(signal) => libc::kill(libc::getpid(), *signal),
            Step::Limit(resource, soft, hard) => {
                let limit = libc::rlimit { rlim_cur: *soft, rlim_max: *hard };
                libc::setrlimit(*resource as _, &raw const limit)
            }
            Step::Umask(mask) => {
                libc::umask(*mask);
                0
            }
            Step::Nice(nice) => libc::setpriority(libc::PRIO_PROCESS, 0, *nice),
            Step::Policy(policy) => {
                let none: libc::sched_param = std::mem::zeroed();
                libc::sched_setscheduler(0, *policy, &raw const none)
            }
            Step::Processor(n) => {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(*n, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
            }
            Step::Session => libc::setsid(),
            Step::Group => libc::setpgid(0, 0),
            Step::Foreground => foreground(),
            Step::User(uid) => {
                libc::setgroups(0, std::ptr::null()) | libc::setgid(*uid) | libc::setuid(*uid)
            }
            Step::Prctl(option, value) => libc::prctl(*option, *value, 0, 0, 0),
            Step::Timer(micros) => {
                let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
                let value =
                    libc::timeval { tv_sec: micros / 1_000_000, tv_usec: micros % 1_000_000 };
                let timer = libc::itimerval { it_interval: zero, it_value: value };
                libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut())
            }
            Step::Child => child(),
            _ => 0,
        }
    }
}

/// This group to the foreground; a process of the background may not without a mask.
fn foreground() -> i32 {
    // SAFETY: the sets live as long as the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGTTOU);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        let done = libc::tcsetpgrp(0, libc::getpgrp());
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        done
    }
}

fn child() -> i32 {
    // SAFETY: the child makes system calls only, and ends.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            // Ends of pipes of the tester's, which are waited for.
            let [report, leash] = [REPORT, LEASH].map(i32::unsigned_abs);
            for (first, last) in [(3, report - 1), (report + 1, leash - 1), (leash + 1, u32::MAX)] {
                libc::syscall(libc::SYS_close_range, first, last, 0);
            }
            let mut byte = 0u8;
            while libc::read(LEASH, (&raw mut byte).cast(), 1) > 0 {}
            let line = c"child=lived\n";
            libc::write(REPORT, line.as_ptr().cast(), line.count_bytes());
            libc::_exit(0);
        }
        // The program has its own end of nothing.
        libc::close(LEASH);
        pid
    }
}

/// A started command, whose end somebody has to wait for.
#[derive(Debug)]
pub struct Begun {
    pid: libc::pid_t,
}

/// How a command is, as its parent is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It exited.
    Exited(i32),
    /// A signal ended it, with or without a core.
    Signaled(i32, bool),
    /// A signal stopped it.
    Stopped(i32),
    /// It was continued.
    Continued,
}

/// Starts a program; with the signals, and without the descriptors from 3 on, of none of its
/// caller's making.  Whoever gets here writes a line to descriptor [`REPORT`] if a step cannot be
/// taken.
pub fn begin(steps: &[Step], program: &CString, argv: &[CString], env: &[CString]) -> Begun {
    let list = |all: &[CString]| -> Vec<*const libc::c_char> {
        all.iter().map(|one| one.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (list(argv), list(env));
    // SAFETY: the child only makes system calls, on memory that was made before, and executes or
    // ends.
    let pid = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            for signal in 1..=64 {
                libc::signal(signal, libc::SIG_DFL);
            }
            let none: libc::sigset_t = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            // What this process has open is not for the new one: closed at the execution.
            const CLOEXEC: libc::c_uint = 4;
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOEXEC);
            for (n, step) in steps.iter().enumerate() {
                let errno = take(step);
                if errno != 0 {
                    tell(n, errno);
                    libc::_exit(99);
                }
            }
            libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr());
            tell(999, last());
            libc::_exit(98);
        }
        pid
    };
    assert!(pid > 0, "{}", Error::last_os_error());
    Begun { pid }
}

/// `step N failed: E`, without allocating.
fn tell(step: usize, errno: i32) {
    let mut line = *b"step=000 errno 000\n";
    for (at, mut number) in [(7, step), (17, errno.unsigned_abs() as usize)] {
        for place in (at - 2..=at).rev() {
            line[place] = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
    // SAFETY: writes that array.
    unsafe { libc::write(REPORT, line.as_ptr().cast(), line.len()) };
}

impl Begun {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: no memory; it has not been waited for.
        unsafe { libc::kill(self.pid, signal) };
    }

    /// Sends it a signal with a value.
    pub fn queue(&self, signal: i32, value: usize) {
        let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
        // SAFETY: no memory; it has not been waited for.
        unsafe { libc::sigqueue(self.pid, signal, value) };
    }

    /// Sends its group a signal.
    pub fn signal_group(&self, signal: i32) {
        // SAFETY: no memory.
        unsafe { libc::kill(-self.pid, signal) };
    }

    /// What has become of it, if something has; with [`Change::Exited`] or [`Change::Signaled`] it
    /// is gone.
    pub fn look(&self) -> Option<Change> {
        self.wait(libc::WUNTRACED | libc::WCONTINUED | libc::WNOHANG)
    }

    /// As [`Begun::look`], when something has.
    pub fn next(&self) -> Change {
        self.wait(libc::WUNTRACED | libc::WCONTINUED).expect("waited for")
    }

    fn wait(&self, flags: i32) -> Option<Change> {
        let mut status = 0;
        loop {
            // SAFETY: writes to the status.
            match unsafe { libc::waitpid(self.pid, &raw mut status, flags) } {
                0 => return None,
                pid if pid == self.pid => break,
                _ => assert_eq!(last(), libc::EINTR),
            }
        }
        Some(if libc::WIFSTOPPED(status) {
            Change::Stopped(libc::WSTOPSIG(status))
        } else if libc::WIFCONTINUED(status) {
            Change::Continued
        } else if libc::WIFSIGNALED(status) {
            Change::Signaled(libc::WTERMSIG(status), libc::WCOREDUMP(status))
        } else {
            Change::Exited(libc::WEXITSTATUS(status))
        })
    }
}
