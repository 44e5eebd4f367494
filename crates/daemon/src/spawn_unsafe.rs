//! The system calls of a daemon's start that rustix does not have.
#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::os::fd::{FromRawFd, OwnedFd};

/// Marks every descriptor from 3 on close-on-exec.
pub(crate) fn close_on_exec_from_3() -> Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: close_range with this flag changes only descriptor flags; no memory is passed.
    let r = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3 as libc::c_uint,
            libc::c_uint::MAX,
            CLOSE_RANGE_CLOEXEC,
        )
    };
    if r == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// A write beyond a limit of this process (`RLIMIT_FSIZE`) is answered `EFBIG`, and nothing else:
/// by default, SIGXFSZ ends the process.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: no handler is installed, so nothing of ours runs in a signal; the call touches no
    // memory of this process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Blocks SIGTERM and SIGINT in this thread and in all that it starts from now on, and returns a
/// descriptor that becomes readable when one of them arrives.
pub(crate) fn termination_signals() -> Result<OwnedFd> {
    // SAFETY: the set is written by sigemptyset before it is read, and lives through the calls; the
    // descriptor that signalfd returns is new and owned by nobody else.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        let e = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        if e != 0 {
            return Err(Error::from_raw_os_error(e));
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
