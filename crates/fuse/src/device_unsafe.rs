//! What this crate needs of descriptors and no safe interface offers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The one ioctl of /dev/fuse: `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`.
const CLONE: libc::Ioctl = 0x8004_e500u32 as libc::Ioctl;

/// Connects `fresh`, newly opened from /dev/fuse, to the connection of `device`.
pub(crate) fn clone_onto(fresh: BorrowedFd<'_>, device: BorrowedFd<'_>) -> io::Result<()> {
    let raw = device.as_raw_fd() as u32; // descriptors are not negative
    // SAFETY: both descriptors are open for the call, and the kernel reads four bytes from `raw`,
    // which outlives it.
    let result = unsafe { libc::ioctl(fresh.as_raw_fd(), CLONE, &raw as *const u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the number of `old` mean what `new` is.  The file behind it is let go of, whoever still
/// uses the number.
pub(crate) fn replace(old: BorrowedFd<'_>, new: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both numbers are open descriptors of this process for the call; `old` stays one, and
    // stays owned by its owner, who closes it as before.
    let result = unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) };
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
