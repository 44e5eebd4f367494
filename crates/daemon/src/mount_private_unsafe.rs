//! mount_setattr(2), for which there is no safe binding.

#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Has the mount that `fd` is the root of neither give nor get what is mounted in it.
///
/// # Errors
/// The kernel's.
pub(crate) fn make_private(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // struct mount_attr, include/uapi/linux/mount.h, version 0.
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let attr = MountAttr { set: 0, clear: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
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

fn last() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
