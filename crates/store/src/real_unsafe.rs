//! The few system calls of [`crate::real`] that `rustix` does not wrap: leases and locks that belong
//! to an open file description.  Nothing else in this crate is unsafe.

#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

/// What a write or read lease needs to be granted (fcntl(2), `F_SETLEASE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lease {
    /// Nobody else has the file open.
    Write,
    /// Nobody has the file open for writing.
    Read,
}

/// Asks for a lease and gives it back at once; `false` if somebody is in the way.
pub(crate) fn probe_lease(fd: BorrowedFd<'_>, lease: Lease) -> Result<bool> {
    let kind = match lease {
        Lease::Write => libc::F_WRLCK,
        Lease::Read => libc::F_RDLCK,
    };
    // SAFETY: F_SETLEASE takes an int and no pointer; `fd` is open for the whole call.
    let granted = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) };
    if granted == -1 {
        let error = Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EAGAIN) => Ok(false),
            _ => Err(error),
        };
    }
    // SAFETY: as above.  A failure leaves a lease that ends with the descriptor; there is nothing
    // better to do about it.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    Ok(true)
}

/// Takes the write lock of the whole file for this open file description; `false` if another
/// description has it.
pub(crate) fn lock_description(fd: BorrowedFd<'_>) -> Result<bool> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads one `struct flock`, which lives for the whole call; `fd` is open.
    let taken = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if taken == 0 {
        return Ok(true);
    }
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}
