//! Locks on files of the host on behalf of owners inside a view, so that a lock taken in a view
//! excludes the same programs outside, as it ever did.
//!
//! Each owner gets an open file description of its own; locks belong to that description (fcntl(2)
//! `F_OFD_SETLK`, flock(2)), so the kernel's own table decides between owners of views and
//! processes of the host alike. Files that exist in a view only get an unnamed file of their own to
//! lock.

use crate::host_locks_unsafe;
use crate::io::Handle;
use crate::real::{RealIo, open_again};
use rustix::fs::{AtFlags, FlockOperation, MemfdFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};
use systx_base::Kind;

/// An open file description that can hold locks; they end with it.
pub struct LockFile {
    fd: OwnedFd,
}

/// Bytes `start..=end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; `i64::MAX` or more: to the end of the file, wherever that will be.
    pub end: u64,
    /// For writing.
    pub exclusive: bool,
}

impl LockFile {
    /// Of an existing file.  Opened for reading and writing where the caller may, else for reading,
    /// which is enough for shared locks and for flock(2).
    ///
    /// # Errors
    /// Those of open(2).
    pub fn of(io: &RealIo, dir: &Handle, name: &[u8]) -> Result<LockFile> {
        let name = if name.is_empty() { b"." } else { name };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(io.descriptor(dir), name, flags, Mode::empty())?;
        if rustix::fs::fstat(&file)?.st_mode & 0o170_000 == Kind::Symlink.mode_bits() {
            return Err(Errno::LOOP.into());
        }
        LockFile::over(file)
    }

    /// Of a file that does not exist on the host: the first description.
    ///
    /// # Errors
    /// Those of memfd_create(2).
    pub fn unnamed() -> Result<LockFile> {
        let fd = rustix::fs::memfd_create("systx-lock", MemfdFlags::CLOEXEC)?;
        Ok(LockFile { fd })
    }

    /// Of the file that a descriptor refers to, an `O_PATH` one too, by the rules of
    /// [`LockFile::of`].
    ///
    /// # Errors
    /// Those of open(2).
    pub fn over(file: impl AsFd) -> Result<LockFile> {
        let fd = match open_again(file.as_fd(), OFlags::RDWR) {
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY | Errno::ISDIR) => {
                open_again(file.as_fd(), OFlags::RDONLY)?
            }
            other => other?,
        };
        Ok(LockFile { fd })
    }

    /// Device and inode: no other file has them while this one is open.  Nobody who serves the file
    /// is asked.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn identity(&self) -> Result<(u64, u64)> {
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let seen = rustix::fs::statx(&self.fd, c"", how, StatxFlags::INO)?;
        Ok((rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor), seen.stx_ino))
    }

    /// Another description of the same file.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn another(&self) -> Result<LockFile> {
        Ok(LockFile { fd: open_again(self.fd.as_fd(), OFlags::RDWR)? })
    }

    /// Takes a range lock, replacing what this description holds there; `false` if another
    /// description or process is in the way.
    ///
    /// # Errors
    /// Those of fcntl(2) but `EAGAIN`; `EBADF` for an exclusive lock on a description for reading.
    pub fn set(&self, range: LockRange) -> Result<bool> {
        host_locks_unsafe::set(self.fd.as_fd(), Some(range.exclusive), range.start, range.end)
    }

    /// Gives up a range.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn clear(&self, start: u64, end: u64) -> Result<()> {
        host_locks_unsafe::set(self.fd.as_fd(), None, start, end).map(drop)
    }

    /// Gives up all that this description holds, now: it may live on for a moment elsewhere, for
    /// instance in a process that is about to execute a program.
    pub fn release(&self) {
        // Both kinds cannot fail on a descriptor that has locks; where there are none, nothing is
        // lost.
        let _ = self.flock(None);
        let _ = self.clear(0, i64::MAX as u64);
    }

    /// The first lock of others that is in the way, and the process that holds it (0: none known,
    /// as for locks of other owners in views).
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn test(&self, range: LockRange) -> Result<Option<(LockRange, u32)>> {
        host_locks_unsafe::test(self.fd.as_fd(), range)
    }

    /// flock(2) without waiting; `None` unlocks.  `false` if another description is in the way.
    ///
    /// # Errors
    /// Those of flock(2) but `EWOULDBLOCK`.
    pub fn flock(&self, exclusive: Option<bool>) -> Result<bool> {
        let operation = match exclusive {
            Some(true) => FlockOperation::NonBlockingLockExclusive,
            Some(false) => FlockOperation::NonBlockingLockShared,
            None => FlockOperation::NonBlockingUnlock,
        };
        match rustix::fs::flock(&self.fd, operation) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_exclude_each_other_by_range() {
        let a = LockFile::unnamed().expect("memfd");
        let b = a.another().expect("reopen");
        let range = |start, end, exclusive| LockRange { start, end, exclusive };
        assert!(a.set(range(0, 9, true)).expect("lock"));
        assert!(!b.set(range(5, 20, false)).expect("in the way"));
        assert!(b.set(range(10, 20, true)).expect("beside"));
        let found = b.test(range(0, 3, false)).expect("test").expect("a lock");
        assert_eq!(found.0, range(0, 9, true));
        a.clear(0, u64::MAX).expect("clear");
        assert!(b.set(range(0, 9, false)).expect("free"));
        assert!(a.set(range(0, 3, false)).expect("shared"));
    }

    #[test]
    fn whole_file_locks_end_with_the_description() {
        let a = LockFile::unnamed().expect("memfd");
        let b = a.another().expect("reopen");
        assert!(b.flock(Some(true)).expect("lock"));
        assert!(!a.flock(Some(false)).expect("in the way"));
        drop(b);
        assert!(a.flock(Some(true)).expect("free"));
    }
}
