//! `F_OFD_SETLK` and `F_OFD_GETLK`, which `rustix` does not wrap for ranges.

#![allow(unsafe_code)]

use crate::host_locks::LockRange;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct flock` for bytes `start..=end`; length 0 means to the end of the file.
fn flock(kind: i32, start: u64, end: u64) -> libc::flock {
    let start = i64::try_from(start).unwrap_or(i64::MAX);
    let len = match i64::try_from(end) {
        Ok(end) if end < i64::MAX => (end - start).saturating_add(1).max(0),
        _ => 0,
    };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Sets (`Some(exclusive)`) or clears a lock; `false` if somebody is in the way.
pub(crate) fn set(fd: BorrowedFd<'_>, to: Option<bool>, start: u64, end: u64) -> Result<bool> {
    let kind = match to {
        Some(true) => libc::F_WRLCK,
        Some(false) => libc::F_RDLCK,
        None => libc::F_UNLCK,
    };
    let lock = flock(kind, start, end);
    // SAFETY: F_OFD_SETLK reads one `struct flock`, which lives for the whole call; `fd` is open.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// The first lock in the way of `range`, with its process.
pub(crate) fn test(fd: BorrowedFd<'_>, range: LockRange) -> Result<Option<(LockRange, u32)>> {
    let kind = if range.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    let mut lock = flock(kind, range.start, range.end);
    // SAFETY: F_OFD_GETLK reads and writes one `struct flock`, which lives for the whole call and
    // is borrowed by nobody else; `fd` is open.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(Error::last_os_error());
    }
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = u64::try_from(lock.l_start).unwrap_or(0);
    let end = match lock.l_len {
        0 => u64::MAX,
        len => start.saturating_add(u64::try_from(len).unwrap_or(1)) - 1,
    };
    let exclusive = i32::from(lock.l_type) == libc::F_WRLCK;
    Ok(Some((LockRange { start, end, exclusive }, u32::try_from(lock.l_pid).unwrap_or(0))))
}
