//! The one ioctl of /dev/fuse that this crate needs.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`.
const CLONE: libc::Ioctl = 0x8004_e500u32 as libc::Ioctl;

/// Connects `fresh`, newly opened from /dev/fuse, to the connection of `device`.
pub(crate) fn clone_onto(fresh: BorrowedFd<'_>, device: BorrowedFd<'_>) -> io::Result<()> {
    let raw = device.as_raw_fd() as u32; // descriptors are not negative
    // SAFETY: both descriptors are open for the call, and the kernel reads four bytes from `raw`,
    // which outlives it.
    let result = unsafe { libc::ioctl(fresh.as_raw_fd(), CLONE, &raw as *const u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
