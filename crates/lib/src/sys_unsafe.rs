//! The system calls that no safe function offers.

#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use zerocopy::{FromBytes, IntoBytes};

/// ioctl(2) with an argument that goes both ways, of the length that `cmd` says.
pub fn ioctl<T: FromBytes + IntoBytes>(fd: impl AsFd, cmd: u32, arg: &mut T) -> Result<(), Errno> {
    debug_assert_eq!((cmd >> 16) as usize & 0x3fff, size_of::<T>());
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads and writes as many bytes as the number says, which are those of
    // `arg`, and any bytes are a `T`.
    let result = unsafe { libc::ioctl(raw, libc::Ioctl::from(cmd), std::ptr::from_mut(arg)) };
    if result == 0 { Ok(()) } else { Err(last()) }
}

/// Gives this thread a working directory and a root of its own, and a mount namespace if `mounts`.
pub fn unshare(mounts: bool) -> Result<(), Errno> {
    let flags = if mounts { libc::CLONE_FS | libc::CLONE_NEWNS } else { libc::CLONE_FS };
    // SAFETY: changes what paths mean for this thread; no memory.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(last()) }
}

/// Moves this thread to a mount namespace.
pub fn enter(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    let fd = namespace.as_raw_fd();
    // SAFETY: as above.
    if unsafe { libc::setns(fd, libc::CLONE_NEWNS) } == 0 { Ok(()) } else { Err(last()) }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
