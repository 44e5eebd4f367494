//! Locks on files of the host on behalf of owners inside a view, so that a lock taken in a view
//! excludes the same programs outside, as it ever did.
//!
//! Each owner gets an open file description of its own; locks belong to that description (fcntl(2)
//! `F_OFD_SETLK`, flock(2)), so the kernel's own table decides between owners of views and
//! processes of the host alike. Files that exist in a view only get an unnamed file of their own to
//! lock, and so do all files of a log-structured volume whose mount tells the daemon of locks
//! ([`LockFiles`]): below it there are none.

use crate::host_locks_unsafe;
use crate::io::{Handle, HostId};
use crate::real::{RealIo, open_again};
use rustix::fs::{AtFlags, FlockOperation, MemfdFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use systx_base::Kind;
use systx_base::sync::{Mutex, rank};

/// An open file description that can hold locks; they end with it.
pub struct LockFile {
    fd: OwnedFd,
    /// What it was opened from, if that is to stay the same as long as anybody has it.
    _from: Option<Arc<OwnedFd>>,
}

impl From<OwnedFd> for LockFile {
    fn from(fd: OwnedFd) -> LockFile {
        LockFile { fd, _from: None }
    }
}

/// What is locked for objects of which there is no file on the host: a file without a name for
/// each, as long as anybody has a description of it.
pub struct LockFiles(Mutex<Files>);

struct Files {
    of: HashMap<HostId, Weak<OwnedFd>>,
    /// With so many, those are taken out that nobody has any more.
    crowd: usize,
}

/// As few as are never looked through.
const CROWD: usize = 64;

impl Default for LockFiles {
    fn default() -> LockFiles {
        LockFiles(Mutex::new(rank::LEAF, Files { of: HashMap::new(), crowd: CROWD }))
    }
}

impl LockFiles {
    /// A new description of what stands for an object.
    ///
    /// # Errors
    /// Those of memfd_create(2) and open(2).
    pub fn of(&self, id: HostId) -> Result<LockFile> {
        let from = self.first(id)?;
        let fd = open_again(from.as_fd(), OFlags::RDWR)?;
        Ok(LockFile { fd, _from: Some(from) })
    }

    fn first(&self, id: HostId) -> Result<Arc<OwnedFd>> {
        let mut files = self.0.lock();
        if let Some(first) = files.of.get(&id).and_then(Weak::upgrade) {
            return Ok(first);
        }
        if files.of.len() >= files.crowd {
            files.of.retain(|_, first| first.strong_count() > 0);
            files.crowd = (2 * files.of.len()).max(CROWD);
        }
        let first = Arc::new(memory()?);
        files.of.insert(id, Arc::downgrade(&first));
        Ok(first)
    }
}

fn memory() -> Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("systx-lock", MemfdFlags::CLOEXEC)?)
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
        Ok(memory()?.into())
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
        Ok(fd.into())
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
        Ok(open_again(self.fd.as_fd(), OFlags::RDWR)?.into())
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
    fn what_stands_for_an_object_is_the_same_as_long_as_anybody_has_it() {
        let files = LockFiles::default();
        let id = |ino| HostId { ino, btime: systx_base::Time::default() };
        let a = files.of(id(1)).expect("memfd");
        let b = files.of(id(1)).expect("the same");
        assert_eq!(a.identity().expect("statx"), b.identity().expect("statx"));
        assert!(a.flock(Some(true)).expect("lock"));
        assert!(!b.flock(Some(true)).expect("in the way"));
        assert!(files.of(id(2)).expect("another").flock(Some(true)).expect("lock"));
        drop(a);
        assert!(b.flock(Some(true)).expect("free"));
        for ino in 0..10 * CROWD as u64 {
            files.of(id(ino)).expect("memfd");
        }
        assert!(files.0.lock().of.len() <= CROWD, "what nobody has is kept");
        assert!(!files.of(id(1)).expect("the same").flock(Some(false)).expect("in the way"));
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
