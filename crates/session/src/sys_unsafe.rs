//! The system calls that rustix does not have, or has only as unsafe functions: fork, execve,
//! signal masks, signalfd, mount_setattr, unshare.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::process::Pid;
use std::ffi::{CStr, CString, c_char};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

type Result<T> = std::result::Result<T, Errno>;

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn check(r: libc::c_int) -> Result<libc::c_int> {
    if r < 0 { Err(last()) } else { Ok(r) }
}

/// What [`fork`] returns.
pub(crate) enum Forked {
    /// In the new process.
    Child,
    /// In the old one.
    Parent(Pid),
}

/// Forks.  Refuses (`EDEADLK`) in a process with several threads: the child would inherit locks
/// that nobody will ever release, and may therefore do nothing; ours does a lot.
pub(crate) fn fork() -> Result<Forked> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if threads.is_ok_and(|n| n > 1) {
        return Err(Errno::DEADLK);
    }
    // SAFETY: the process has one thread, so the child is a complete copy: every lock is either
    // free or held by the thread that goes on.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Forked::Child),
        pid => Pid::from_raw(pid).map(Forked::Parent).ok_or(Errno::IO),
    }
}

/// Forks a process that does what `act` says and ends; it is killed if the calling thread ends
/// before. For what cannot be done by one thread of a process: `act` must not wait for another
/// thread, nor take a lock that one may have, and what it makes is gone.
pub(crate) fn fork_for(act: impl FnOnce()) -> Result<Pid> {
    // SAFETY: the child has a copy of this thread only. The C library puts its own locks, those of
    // the allocator among them, in order for it, and `act` takes no others.
    match check(unsafe { libc::fork() })? {
        0 => {
            let _ = rustix::process::set_parent_process_death_signal(Some(
                rustix::process::Signal::KILL,
            ));
            act();
            // SAFETY: ends the process, without what the program has registered for its own end.
            unsafe { libc::_exit(0) }
        }
        pid => Pid::from_raw(pid).ok_or(Errno::IO),
    }
}

/// unshare(2) for a process with one thread.
pub(crate) fn unshare(flags: rustix::thread::UnshareFlags) -> Result<()> {
    // SAFETY: the descriptor table, which is what makes the call unsafe, is not unshared (callers
    // pass namespaces only).
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Switches the loopback interface of this network namespace on, which a new one has switched off.
pub(crate) fn raise_loopback() -> Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_flags: libc::IFF_UP as libc::c_short };
    let request = libc::ifreq { ifr_name: name, ifr_ifru };
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which lives until the call returns.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })?;
    Ok(())
}

/// execve(2): returns only to say why not.
pub(crate) fn execve(path: &CStr, argv: &[CString], envp: &[CString]) -> Errno {
    let list = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (list(argv), list(envp));
    // SAFETY: both arrays end with a null pointer, and they and the strings live until the call
    // returns, if it does.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    last()
}

/// A signal mask.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// Blocks these signals in the calling thread; returns the mask before.
pub(crate) fn block(signals: &[i32]) -> Result<Mask> {
    let set = set_of(signals);
    // SAFETY: an all-zero sigset_t is a valid value to be overwritten; both pointers live through
    // the call.
    unsafe {
        let mut old: libc::sigset_t = std::mem::zeroed();
        match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old) {
            0 => Ok(Mask(old)),
            e => Err(Errno::from_raw_os_error(e)),
        }
    }
}

/// Sets the calling thread's mask.
pub(crate) fn restore(mask: &Mask) {
    // SAFETY: the pointer lives through the call; the call fails only for a bad `how`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut()) };
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set before anything reads it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Whether this process has children, also ended ones that nobody has waited for.
pub(crate) fn has_children() -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, flags), Err(Errno::CHILD))
}

/// Sends a signal to the process that `pidfd` is for; with `value`, as sigqueue(3) does.
pub(crate) fn send(pidfd: BorrowedFd<'_>, signal: i32, value: Option<u64>) -> Result<()> {
    // SAFETY: an all-zero siginfo_t is a valid value; the kernel reads it, where it is passed,
    // until the call returns.
    let r = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = signal;
        info.si_code = libc::SI_QUEUE;
        if let Some(value) = value {
            // `si_pid`, `si_uid` and `si_value`, after three numbers and what they need to be
            // aligned.
            let fields = (&raw mut info).cast::<u8>().add(16);
            fields.cast::<u32>().write(libc::getpid().unsigned_abs());
            fields.add(4).cast::<u32>().write(libc::getuid());
            fields.add(8).cast::<u64>().write(value);
        }
        let info = if value.is_some() { &raw const info } else { std::ptr::null() };
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, 0)
    };
    if r < 0 { Err(last()) } else { Ok(()) }
}

/// A descriptor that reads the given blocked signals.
pub(crate) fn signalfd(signals: &[i32]) -> Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: the set lives through the call; the returned descriptor is new and owned by nobody.
    unsafe {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        Ok(OwnedFd::from_raw_fd(check(libc::signalfd(-1, &raw const set, flags))?))
    }
}

/// Takes from what the one mount that `fd` is the root of allows.
pub(crate) fn limit_mount(fd: BorrowedFd<'_>, limits: MountAttrFlags) -> Result<()> {
    // struct mount_attr, include/uapi/linux/mount.h, version 0.
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let set = u64::from(limits.bits());
    let attr = MountAttr { set, clear: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is a C string, the attribute block is of the length that is passed, and both
    // live through the call.
    let r = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if r < 0 { Err(last()) } else { Ok(()) }
}

/// Ends a forked child without running what the parent registered for its own exit.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes no memory and does not return.
    unsafe { libc::_exit(code) }
}
