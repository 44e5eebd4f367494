//! Locks of parts of files by fcntl(2), and memory that several processes share.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Calls fcntl(2) with a lock: the command, `F_RDLCK` or another type, the first byte and the
/// length.  What the call left of it: type, first byte, length, process.
///
/// # Errors
/// Those of the call.
pub fn record(
    fd: BorrowedFd<'_>,
    command: i32,
    (kind, start, len): (i32, i64, i64),
) -> io::Result<(i32, i64, i64, i32)> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: each of these commands reads and writes one `struct flock`, which lives for the
    // whole call and which nobody else has; the descriptor is open.
    if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok((i32::from(lock.l_type), lock.l_start, lock.l_len, lock.l_pid))
}

/// Numbers in a file without a name that several processes have.
pub struct Shared {
    at: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: all access is by atomics.
unsafe impl Sync for Shared {}
// SAFETY: as above; the mapping belongs to the process, not to a thread.
unsafe impl Send for Shared {}

impl Shared {
    /// Maps so many numbers; the file has as many.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn new(file: &File, words: usize) -> io::Result<Shared> {
        let how = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else is touched.
        let at = unsafe { mmap(std::ptr::null_mut(), words * 8, how, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Shared { at, words })
    }

    /// One of them.
    ///
    /// # Panics
    /// If it was not mapped.
    pub fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < self.words, "word {n} of {}", self.words);
        // SAFETY: within the mapping, which is aligned to pages and lives as long as `self`;
        // others only use it by atomics, too.
        unsafe { &*self.at.as_ptr().add(n) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.words * 8) };
    }
}
