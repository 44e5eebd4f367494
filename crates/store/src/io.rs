//! The store's only way to a disk: one mounted file system, seen from one directory (the volume's
//! root).  Implementations: [`crate::real::RealIo`] (system calls), the crash simulator and the
//! fault injector of `systx-sim`.
//!
//! Rules for every implementation: no call follows a symbolic link in its last component, none
//! leaves the file system that the root is on (`EXDEV` instead), and errors are `std::io::Error`s
//! with the errno that Linux would give.
//!
//! Where a call takes `at` and `name` and makes or removes nothing (`stat_at`, the `xattr` and
//! `set_` calls), the empty name means what `at` itself is open on, a file or a directory. New
//! objects are made with the mode given less the process's umask; `set_mode` is exact.

use std::any::Any;
use std::io::Result;
use std::sync::Arc;
use systx_base::{Gid, Kind, Oid, Time, Uid, mix};

/// An open file or directory.  Cheap to clone; closed with the last clone.  What is inside belongs
/// to the [`Tree`] that made it.
#[derive(Clone)]
pub struct Handle(Arc<dyn Any + Send + Sync>);

impl Handle {
    /// Wraps an implementation's own descriptor.
    pub fn new<T: Any + Send + Sync>(inner: T) -> Self {
        Handle(Arc::new(inner))
    }
    /// The implementation's own descriptor.
    ///
    /// # Panics
    /// If the handle was made by another implementation: a programming error.
    pub fn inner<T: Any>(&self) -> &T {
        self.0.downcast_ref().expect("a handle is used with the Io that made it")
    }
    /// Tells whether it is still open.
    #[cfg(test)]
    pub(crate) fn weak(&self) -> std::sync::Weak<dyn Any + Send + Sync> {
        Arc::downgrade(&self.0)
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

/// Identity of an object for as long as it exists.  The default is that of none.
///
/// Only stores make one and look into it (`systx-structure`): the inode number, and the birth time,
/// which tells a recycled number from the old file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct HostId {
    pub(crate) ino: u64,
    /// Zero where the file system keeps none.
    pub(crate) btime: Time,
}

impl HostId {
    /// What a store says of an object: its number, and its birth time or zero.
    pub const fn new(number: u64, born: Time) -> HostId {
        HostId { ino: number, btime: born }
    }

    /// The number that `stat` and listings show: of one existing object at a time.
    pub fn number(self) -> u64 {
        self.ino
    }

    /// When it was made, where the store knows.
    pub fn born(self) -> Option<Time> {
        Some(self.btime).filter(|born| *born != Time::default())
    }

    /// The key in the conflict engine.  A number is used again while transactions still remember
    /// the old file.  Where the file system keeps no birth times, that can at worst make two
    /// transactions conflict that need not, and the one that remembers loses at its validation in
    /// any case.
    ///
    /// Births are spread over all bits, so that two objects have the same key by chance once in
    /// 2^64.
    pub fn oid(self) -> Oid {
        let Time { secs, nanos } = self.btime;
        let born = secs.wrapping_mul(1_000_000_000).wrapping_add(i64::from(nanos));
        Oid(self.ino ^ mix(born.cast_unsigned()))
    }
}

/// What keeps everybody from changing something (chattr(1)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fixed {
    /// Nothing does.
    #[default]
    No,
    /// A file may only grow, a directory only get names.
    Append,
    /// Nothing of it may change.
    Immutable,
    /// It and the store are not encrypted alike (fscrypt). The file system takes nothing into an
    /// encrypted directory that was not made under its policy, and the store's copies of it could
    /// be read without the key.
    Encrypted,
}

/// The project that an object belongs to, where a file system keeps such (for quotas of trees).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Project {
    /// Its number; 0: none.
    pub id: u32,
    /// Of a directory: what is made in it belongs to it as well, and nothing of another project is
    /// linked or moved into it (`EXDEV`).
    pub given: bool,
}

/// What one `statx` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Which inode.
    pub id: HostId,
    /// Device number of the file system, `makedev` encoding.
    pub dev: u64,
    /// File type.
    pub kind: Kind,
    /// Permission bits, set-id bits and sticky bit: `st_mode & 0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Number of names.
    pub nlink: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Device number of a device node, `makedev` encoding.
    pub rdev: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
}

/// What must not have changed for a version to still be the one that was read.  As with [`HostId`],
/// only stores make one and look into it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp {
    pub(crate) id: HostId,
    /// Last change of data or attributes: from Linux 6.13 on it moves with every change that a
    /// `statx` could have separated.
    pub(crate) ctime: Time,
    /// Last change of the data.
    pub(crate) mtime: Time,
    pub(crate) size: u64,
}

impl Stamp {
    /// What a store says of an object: which one, its change and modification time, its length.
    pub fn new(id: HostId, ctime: Time, mtime: Time, size: u64) -> Stamp {
        Stamp { id, ctime, mtime, size }
    }

    /// Which object it is a version of.
    pub fn id(&self) -> HostId {
        self.id
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.size
    }

    /// Last change of the data.
    pub fn modified(&self) -> Time {
        self.mtime
    }

    /// Whether object and data are those of another version; its attributes may differ.
    pub fn has_data_of(&self, other: &Stamp) -> bool {
        (self.id, self.mtime, self.size) == (other.id, other.mtime, other.size)
    }
}

impl Stat {
    /// Stands for an entry of which nothing is known but what a listing tells.
    pub fn unseen(number: u64, kind: Kind) -> Stat {
        let time = Time::default();
        let is_dir = kind == Kind::Dir;
        Stat {
            id: HostId::new(number, time),
            dev: 0,
            kind,
            mode: if is_dir { 0o755 } else { 0o444 },
            uid: 0,
            gid: 0,
            nlink: if is_dir { 2 } else { 1 },
            size: 0,
            blocks: 0,
            blksize: 4096,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    /// The part that identifies a version.
    pub fn stamp(&self) -> Stamp {
        Stamp { id: self.id, ctime: self.ctime, mtime: self.mtime, size: self.size }
    }
}

/// One name in a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct ListItem<'a> {
    /// The name, without `/` and NUL; never `.` or `..`.
    pub name: &'a [u8],
    /// `d_ino`.
    pub ino: u64,
    /// `d_type`; `None` where the file system does not tell.
    pub kind: Option<Kind>,
}

/// How a file is opened for reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// For reading.
    Read,
    /// For reading, where nobody but root and the caller itself may change names in the directory:
    /// a FIFO or a device cannot have been slipped in, and need not be looked for before opening.
    ReadOwn,
}

/// What a rename does with an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rename {
    /// Replaces it, as rename(2).
    Replace,
    /// Fails with `EEXIST`.
    NoReplace,
    /// Swaps the two names; both must exist.
    Exchange,
}

/// Who else has a file open (probed with a lease, fcntl(2) `F_SETLEASE`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Openers {
    /// Nobody.
    None,
    /// Others, for reading only.
    Readers,
    /// At least one for writing, or with a writable shared mapping.
    Writers,
    /// The file system or the caller's rights do not allow to tell.
    Unknown,
}

/// How far the file system keeps order across a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Journaled or copy-on-write: a rename, link or unlink is atomic, and they persist in order
    /// (ext4 with a journal, xfs, btrfs, f2fs).
    Strong,
    /// Nothing but an explicit sync persists anything, in any order (ext4 without a journal, ext2,
    /// vfat, unknown).
    Weak,
    /// Nothing survives a power cut (tmpfs, ramfs).
    Memory,
}

/// What `statfs` tells about the volume, and what was found out about it.
#[derive(Clone, Copy, Debug)]
pub struct FsInfo {
    /// `f_type`.
    pub magic: u64,
    /// Crash behaviour.
    pub class: Class,
    /// Block size in bytes.
    pub bsize: u64,
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// Total inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namelen: u64,
}

/// The committed tree, as whatever reads it sees it: a file system as it is, or as it was.
/// `at`/`name` name an entry of an open directory.
pub trait Tree: Send + Sync {
    /// The volume's root directory.
    fn root(&self) -> Handle;

    /// Opens a directory for use as `at`.  `ENOTDIR` for anything else, also for a symbolic link;
    /// `EXDEV` if another file system is mounted there.
    fn open_dir(&self, at: &Handle, name: &[u8]) -> Result<Handle>;
    /// Opens a regular file for reading, without waiting (`O_NONBLOCK`) and without moving its
    /// access time where the caller may ask for that.  `EINVAL` for anything but a regular file.
    /// With the empty name, what `at` is open on, or was pinned for.
    fn open_file(&self, at: &Handle, name: &[u8], how: Open) -> Result<Handle>;
    /// Holds an entry of any type (never through a symbolic link) for [`Tree::stat`], without
    /// opening it and without a right to.
    fn pin(&self, at: &Handle, name: &[u8]) -> Result<Handle>;

    /// Attributes of an entry.
    fn stat_at(&self, at: &Handle, name: &[u8]) -> Result<Stat>;
    /// Attributes of an open file or directory.
    fn stat(&self, h: &Handle) -> Result<Stat>;
    /// Whether an entry is kept from being changed, whoever wants to, or for the store; of a file
    /// system that knows nothing of it nothing is.
    fn fixed(&self, at: &Handle, name: &[u8]) -> Result<Fixed>;
    /// The project of an entry; none also where that cannot be asked.
    fn project(&self, at: &Handle, name: &[u8]) -> Result<Project>;
    /// Calls `each` for every name, in the file system's order, until it returns false.
    fn list(&self, dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<()>;
    /// The path of a directory below the root, where the tree itself knows it; `Unsupported` where
    /// the kernel is to be asked.
    fn path_of(&self, dir: &Handle) -> Result<Vec<u8>>;
    /// Target of a symbolic link; with the empty name, of the one that `at` was pinned for.
    fn read_link(&self, at: &Handle, name: &[u8]) -> Result<Vec<u8>>;
    /// Value of an extended attribute; `ENODATA` if there is none.
    fn get_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<Vec<u8>>;
    /// Names of all extended attributes that the caller may see.
    fn list_xattr(&self, at: &Handle, name: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Reads until `buf` is full or the file ends; returns the count.
    fn read_at(&self, h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// The next range of data at or after `offset` as (start, end); `None` if only a hole follows.
    fn next_data(&self, h: &Handle, offset: u64) -> Result<Option<(u64, u64)>>;

    /// Space, limits and crash behaviour.
    fn fs_info(&self) -> Result<FsInfo>;
    /// Longest target of a symbolic link, in bytes.
    fn longest_target(&self) -> usize;
    /// Whether commits that overwrite different pages of one file, and do nothing else to it, need
    /// not wait for each other ([`crate::Footprint::by_pages`]).
    fn shares_files(&self) -> bool;
    /// Wall clock.
    fn now(&self) -> Time;
}

/// A tree as it was at some moment.
pub trait Moment: Tree {
    /// Whether it had to be given up, since others needed the room of what was kept for it: reads
    /// answer `ECANCELED`.
    fn is_given_up(&self) -> bool;
}

/// A tree that can show any moment of itself, because of which nobody waits or is refused anything.
pub trait Moments: Send + Sync {
    /// The tree as it is now, whatever is changed afterwards.
    fn moment(&self) -> Arc<dyn Moment>;
}

/// What a file system knows of programs that work in it behind the back of everything above.
pub trait Outsiders: Send + Sync {
    /// Makes a file's data and what is needed to read it back durable.  What programs have stored
    /// in mappings is written back with that, so the next such store moves the change time.
    fn sync_data(&self, h: &Handle) -> Result<()>;
    /// True only if no page of a file of which this is the version can be dirty in somebody's
    /// mapping, so that the next store through one is another version.  `false`: not known.
    fn is_settled(&self, version: &Stamp) -> bool;
    /// Who else has this open file open.
    fn openers(&self, h: &Handle) -> Result<Openers>;
}

/// There are none: nobody reaches the files but through the store.
pub struct Alone;

impl Outsiders for Alone {
    fn sync_data(&self, _: &Handle) -> Result<()> {
        Ok(())
    }
    fn is_settled(&self, _: &Stamp) -> bool {
        true
    }
    fn openers(&self, _: &Handle) -> Result<Openers> {
        Ok(Openers::None)
    }
}

/// A tree, and the calls that change it.
pub trait Io: Tree + Outsiders {
    /// As [`Tree::open_file`], for reading and writing.
    fn open_to_write(&self, at: &Handle, name: &[u8]) -> Result<Handle>;
    /// Makes a regular file that must not exist, opened for reading and writing.
    fn create_file(&self, at: &Handle, name: &[u8], mode: u32) -> Result<Handle>;
    /// Writes all of `data`.
    fn write_at(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()>;
    /// Writes all of `data` so that it is durable when the call returns, with one flush of the
    /// device at most and no change of metadata: for files whose blocks were all written before.
    /// Offset and length are multiples of 4096.  `ENOSPC` and `EDQUOT`: nothing was written.
    fn write_durable(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()>;
    /// Sets the length.
    fn set_len(&self, h: &Handle, len: u64) -> Result<()>;
    /// Deallocates a range inside the file; it reads as zeros.
    fn punch_hole(&self, h: &Handle, offset: u64, len: u64) -> Result<()>;
    /// Allocates blocks for a range without changing the length; `ENOSPC` is reported here.
    fn allocate(&self, h: &Handle, offset: u64, len: u64) -> Result<()>;
    /// The longest that the file system lets an open file become.
    fn max_len(&self, h: &Handle) -> u64;
    /// Copies a range, sharing blocks where the file system can.
    fn copy_range(
        &self,
        from: &Handle,
        from_at: u64,
        to: &Handle,
        to_at: u64,
        len: u64,
    ) -> Result<()>;

    /// Makes a directory.
    fn mkdir(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()>;
    /// Makes a symbolic link.
    fn symlink(&self, target: &[u8], at: &Handle, name: &[u8]) -> Result<()>;
    /// Makes a FIFO, socket or device node.
    fn mknod(&self, at: &Handle, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> Result<()>;
    /// Gives an entry (never through a symbolic link) a second name; `EEXIST` if it is taken.
    fn link(&self, from: &Handle, from_name: &[u8], to: &Handle, to_name: &[u8]) -> Result<()>;
    /// Renames.
    fn rename(
        &self,
        from: &Handle,
        from_name: &[u8],
        to: &Handle,
        to_name: &[u8],
        how: Rename,
    ) -> Result<()>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, at: &Handle, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, at: &Handle, name: &[u8]) -> Result<()>;

    /// Sets permission bits (not of a symbolic link).
    fn set_mode(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()>;
    /// Sets owner and group.
    fn set_owner(&self, at: &Handle, name: &[u8], uid: Uid, gid: Gid) -> Result<()>;
    /// Has a file or directory belong to a project.
    fn set_project(&self, at: &Handle, name: &[u8], project: Project) -> Result<()>;
    /// Sets access and modification time; `None` leaves one alone.
    fn set_times(
        &self,
        at: &Handle,
        name: &[u8],
        atime: Option<Time>,
        mtime: Option<Time>,
    ) -> Result<()>;
    /// Sets both times to now, as whoever may write the file can.
    fn touch(&self, at: &Handle, name: &[u8]) -> Result<()>;
    /// Sets an extended attribute.
    fn set_xattr(&self, at: &Handle, name: &[u8], key: &[u8], value: &[u8]) -> Result<()>;
    /// Removes an extended attribute; `ENODATA` if there is none.
    fn remove_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<()>;

    /// Makes a file's, or a directory's own, data and attributes durable.
    fn sync_all(&self, h: &Handle) -> Result<()>;
    /// Makes everything on the file system durable.
    fn sync_fs(&self) -> Result<()>;

    /// Takes the exclusive lock of a store's lock file for this process; `false` if another process
    /// has it.  Released with the handle.
    fn try_lock(&self, h: &Handle) -> Result<bool>;
    /// Whether another handle has the lock that [`Io::try_lock`] takes.
    fn is_locked(&self, h: &Handle) -> Result<bool>;
    /// Takes the lock that [`Io::is_locked`] tells of, of a file that no other process has; or
    /// gives it back.  It ends with the handle.
    fn hold(&self, h: &Handle, hold: bool) -> Result<()>;
    /// Says, for as long as this handle lives or until it is said otherwise, that this process
    /// waits for the lock of the file.
    fn ask_for_lock(&self, h: &Handle, ask: bool) -> Result<()>;
    /// Whether somebody with another handle has said so.
    fn is_lock_asked_for(&self, h: &Handle) -> Result<bool>;

    /// Whether a quota may leave this process less room than [`Tree::fs_info`] tells.  May change
    /// at any time.
    fn has_quota(&self) -> bool;
    /// How many threads are worth making many files with.  1 where calls come one at a time, as in
    /// a simulator.
    fn makers(&self) -> usize;
    /// Has the modes with which *this thread* makes something count in full, whatever the process's
    /// umask, where that can be had.  For a thread that does nothing else.
    fn unmask(&self);
}
