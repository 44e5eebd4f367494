//! System calls of the plain view that `rustix` does not wrap: the thread's file system identity
//! and file handles.

#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use systx_base::{Gid, Uid};

/// `MAX_HANDLE_SZ`.
const HANDLE_MAX: usize = 128;

/// `struct file_handle`: names an inode for as long as it exists, whether it is open or not.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_MAX],
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl FileHandle {
    /// Of what a descriptor refers to, an `O_PATH` one too.
    pub fn of(fd: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
        let mut handle = FileHandle { len: HANDLE_MAX as u32, kind: 0, bytes: [0; HANDLE_MAX] };
        let mut mount = 0;
        // SAFETY: the structure has the kernel's layout with room for `len` bytes behind the two
        // numbers; it, `mount` and the empty path live for the whole call.
        let done = unsafe {
            libc::name_to_handle_at(
                fd.as_raw_fd(),
                c"".as_ptr(),
                (&raw mut handle).cast(),
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if done == 0 { Ok(handle) } else { Err(last_error()) }
    }

    /// An `O_PATH` descriptor; `mount`: any descriptor on the same mount.
    pub fn open(mut self, mount: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        let flags = libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: as above; the kernel only reads `len` bytes behind the two numbers, and `len` is
        // what it wrote itself.
        let fd =
            unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut self).cast(), flags) };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Sets the calling thread's `fsuid` and returns the one before. There is no error: who wants to
/// know asks again.
pub(super) fn set_fsuid(uid: Uid) -> Uid {
    // SAFETY: takes and returns a number; glibc calls the kernel for this thread only.
    unsafe { libc::setfsuid(uid) }.cast_unsigned()
}

/// As [`set_fsuid`], the group.
pub(super) fn set_fsgid(gid: Gid) -> Gid {
    // SAFETY: as above.
    unsafe { libc::setfsgid(gid) }.cast_unsigned()
}

/// Gives the calling thread a umask (and working directory) of its own.
pub(super) fn own_umask() -> Result<(), Errno> {
    // SAFETY: `CLONE_FS` does not touch the descriptor table; the umask, root and working directory
    // of the thread stay what they are.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
}
