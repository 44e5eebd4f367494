//! Whether somebody has locked a file's first byte (fcntl(2), `F_OFD_GETLK`): nothing is locked.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

/// Whether some description has a lock there.
///
/// # Errors
/// The file has no locks.
pub fn first_byte(file: &File) -> Result<bool> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: F_OFD_GETLK reads and writes one `struct flock`, which lives for the whole call and
    // is borrowed by nobody else; the file is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
        _ => Err(Error::last_os_error()),
    }
}
