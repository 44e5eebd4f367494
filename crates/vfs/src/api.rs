//! The contract between a view and whatever brings requests to it (FUSE; later the library): one
//! method per request, typed, without a word of the wire.  The contract follows fs/fuse of Linux:
//! names are single components (never empty, `.`, `..`, or with `/` or NUL), the caller's right to
//! do it was checked by the kernel (`default_permissions`), file types are right for the call.  For
//! a name, the kernel has checked what it knew under it; another object that a view finds there
//! counts as unchecked.

use crate::locks::Wait;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use systx_base::{Gid, Kind, NodeId, Time, Uid};

/// What every request returns.
pub type Reply<T> = Result<T, Errno>;

/// On whose behalf a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// `fsuid`.
    pub uid: Uid,
    /// `fsgid`.
    pub gid: Gid,
    /// Thread id in the daemon's pid namespace; 0 where the kernel does not know (writeback).
    pub tid: u32,
}

/// Attributes as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// `st_ino`.
    pub ino: u64,
    /// File type.
    pub kind: Kind,
    /// `st_mode & 0o7777`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Device number of a device node, `makedev` encoding.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
}

/// A node handed to the kernel.  Each one counts as one lookup, taken back by
/// [`Requests::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node.
    pub node: NodeId,
    /// Distinguishes two uses of one node id; constant here.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
}

impl Entry {
    /// Whether an existing object may answer a CREATE, after which the kernel checks nothing any
    /// more: only the caller's own regular file, which its owner may read and write.
    ///
    /// # Errors
    /// `ESTALE`: upon which the kernel walks the path once more, finds the object, and checks it.
    pub fn opens_unchecked(&self, caller: Caller) -> Reply<()> {
        const OWNER_RW: u32 = 0o600;
        let Attr { kind, mode, uid, .. } = self.attr;
        let own = uid == caller.uid && mode & OWNER_RW == OWNER_RW;
        if kind == Kind::File && own { Ok(()) } else { Err(Errno::STALE) }
    }
}

/// A new time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    To(Time),
}

/// Attributes to change; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission and set-id bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<Uid>,
    /// Group.
    pub gid: Option<Gid>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time (only sent by the kernel with writeback cache).
    pub ctime: Option<Time>,
    /// `FATTR_KILL_SUIDGID`: clear the set-id bits as a write by an unprivileged caller does.
    pub kill_suidgid: bool,
}

/// What a new object starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAttr {
    /// Permission and set-id bits as the caller asked for, before the umask.
    pub mode: u32,
    /// The caller's umask; ignored where the directory has a default ACL.
    pub umask: u32,
}

/// What rename does with an existing target (renameat2(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameHow {
    /// Replace it.
    Replace,
    /// `RENAME_NOREPLACE`.
    NoReplace,
    /// `RENAME_EXCHANGE`.
    Exchange,
    /// `RENAME_WHITEOUT`: leave a 0/0 character device behind.
    Whiteout,
}

/// fallocate(2) modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Mode 0: allocate and extend.
    Allocate,
    /// `KEEP_SIZE`.
    KeepSize,
    /// `PUNCH_HOLE | KEEP_SIZE`.
    PunchHole,
    /// `ZERO_RANGE`.
    ZeroRange,
    /// `ZERO_RANGE | KEEP_SIZE`.
    ZeroRangeKeepSize,
    /// `COLLAPSE_RANGE`.
    CollapseRange,
    /// `INSERT_RANGE`.
    InsertRange,
}

/// lseek(2) beyond what the kernel can answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// setxattr(2) flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Create or replace.
    Any,
    /// `XATTR_CREATE`: `EEXIST` if it exists.
    Create,
    /// `XATTR_REPLACE`: `ENODATA` if it does not.
    Replace,
}

/// One name of a listing.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name; `.` and `..` are included.
    pub name: &'a [u8],
    /// `d_ino`.
    pub ino: u64,
    /// File type.
    pub kind: Kind,
    /// Where the listing goes on after this name: an opaque cookie, never 0, stable while the
    /// directory is changed.
    pub next: u64,
    /// For a listing with attributes: the node, counted as looked up if the sink took the entry.
    /// `None` for `.` and `..`, and where attributes could not be read.
    pub entry: Option<Entry>,
}

/// What statfs(2) shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Total blocks of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// Total inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred I/O size in bytes.
    pub bsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Block size in bytes.
    pub frsize: u32,
}

/// Type of a byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `F_RDLCK`, `LOCK_SH`.
    Shared,
    /// `F_WRLCK`, `LOCK_EX`.
    Exclusive,
    /// `F_UNLCK`, `LOCK_UN`.
    Unlock,
}

/// A lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The kernel's name for the owner.
    pub owner: u64,
    /// Process that asks.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` (or `i64::MAX`) for the end of the file.
    pub end: u64,
    /// What is asked.
    pub kind: LockKind,
    /// flock(2) rather than fcntl(2).
    pub flock: bool,
    /// By fcntl(2) for the open file description (`F_OFD_SETLK`) and not for the process, as far as
    /// is known.
    pub description: bool,
}

/// How a file or directory is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// For reading; also `O_EXEC`.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// `O_APPEND`.
    pub append: bool,
    /// A directory, to be listed.
    pub dir: bool,
}

/// An open file or directory, until [`Requests::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What the release has to know of it.  Not what tells opens from each other: the layer above numbers them.
    pub handle: u8,
    /// Opening does not drop the pages, or the listing, that the kernel has cached.
    pub keep_cache: bool,
    /// The kernel may keep the listing of a directory.
    pub cache_listing: bool,
}

/// How long the kernel may believe an answer; `None`: as the connection is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Valid {
    /// That the name means this node, or that there is no such name.
    pub name: Option<Duration>,
    /// The attributes.
    pub attr: Option<Duration>,
    /// Those of a directory, if that is not the same.
    pub dir_attr: Option<Duration>,
}

/// The requests of one view.  All methods may be called from several threads at once.  None may
/// block for a running transaction (docs/SEMANTICS.md, waiting); they block for the disk, and for
/// the end of a commit that has already been decided.
pub trait Requests: Send + Sync {
    /// The attributes of the root, before any request: fails if the volume is gone.
    fn root(&self) -> Reply<Entry>;
    /// Finds a name.  `Ok(None)`: there is none, and the answer may be cached.
    fn lookup(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<Option<Entry>>;
    /// Takes back `count` lookups of a node.  The node may still be used by other names.
    fn forget(&self, node: NodeId, count: u64);
    /// stat(2).
    fn getattr(&self, node: NodeId) -> Reply<Attr>;
    /// chmod(2), chown(2), utimensat(2), truncate(2).
    fn setattr(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Attr>;
    /// readlink(2).
    fn readlink(&self, node: NodeId) -> Reply<Vec<u8>>;
    /// mknod(2), also of regular files.
    fn mknod(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        new: NewAttr,
        rdev: u64,
    ) -> Reply<Entry>;
    /// mkdir(2).
    fn mkdir(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewAttr) -> Reply<Entry>;
    /// symlink(2).
    fn symlink(&self, caller: Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Reply<Entry>;
    /// link(2): gives `node` another name.
    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry>;
    /// unlink(2).  The node stays usable while the kernel holds it.
    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()>;
    /// rmdir(2).
    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()>;
    /// renameat2(2).
    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()>;
    /// open(2) with `O_CREAT` of a name the kernel believes absent; `exclusive`: `EEXIST` if it is
    /// not.  Else an existing object is an answer only if [`Entry::opens_unchecked`].
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewAttr,
        exclusive: bool,
    ) -> Reply<Entry>;
    /// open(2) with `O_TMPFILE`: a file without a name.
    fn tmpfile(&self, caller: Caller, parent: NodeId, new: NewAttr) -> Reply<Entry>;
    /// A directory of whose cached listing the kernel is to be rid, asked after the beginning of a file
    /// was read.
    ///
    /// Each READ makes the kernel doubt the access time, and the next stat(2) of the file costs a message
    /// (fs/fuse: `fuse_invalidate_atime`).  A new listing with attributes settles it for all files of
    /// a directory at once, but the kernel only asks for one if it does not have the listing any more.
    fn worn_listing(&self, _file: NodeId) -> Option<NodeId> {
        None
    }
    /// Fills `buf` from `offset`; fewer bytes only at the end of the file.
    fn read(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize>;
    /// Writes all of `data`; `kill_suidgid`: `FUSE_WRITE_KILL_SUIDGID`.
    fn write(&self, node: NodeId, offset: u64, data: &[u8], kill_suidgid: bool) -> Reply<usize>;
    /// As [`Requests::write`], by a descriptor with `O_APPEND`: at the end of the file, wherever the
    /// kernel believes that to be.  Also whether that was elsewhere than at `offset`: then the pages that
    /// the kernel has now are wrong.
    fn append(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Reply<(usize, bool)> {
        Ok((self.write(node, offset, data, kill_suidgid)?, false))
    }
    /// What the kernel writes back of its pages, which were stored to by mappings.  It makes no file longer: what lies
    /// behind the end is no part of the file.
    fn write_back(&self, node: NodeId, offset: u64, data: &[u8]) -> Reply<()>;
    /// fallocate(2).
    fn fallocate(&self, node: NodeId, how: Fallocate, offset: u64, len: u64) -> Reply<()>;
    /// lseek(2) for data and holes.
    fn lseek(&self, node: NodeId, offset: u64, how: Seek) -> Reply<u64>;
    /// copy_file_range(2) within the view; may copy less.
    fn copy_file_range(&self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Reply<u64>;
    /// Lists from cookie `from` (0: the start) until the sink returns false, which refuses that
    /// entry.  `attributes`: hand out nodes as well (READDIRPLUS).
    fn readdir(
        &self,
        node: NodeId,
        from: u64,
        attributes: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Reply<()>;
    /// getxattr(2), whole value; `ENODATA` if there is none.
    fn getxattr(&self, node: NodeId, key: &[u8]) -> Reply<Vec<u8>>;
    /// listxattr(2): names, each ended by NUL.
    fn listxattr(&self, node: NodeId) -> Reply<Vec<u8>>;
    /// setxattr(2).
    fn setxattr(
        &self,
        caller: Caller,
        node: NodeId,
        key: &[u8],
        value: &[u8],
        how: SetXattr,
        kill_sgid: bool,
    ) -> Reply<()>;
    /// removexattr(2).
    fn removexattr(&self, caller: Caller, node: NodeId, key: &[u8]) -> Reply<()>;
    /// statfs(2).
    fn statfs(&self) -> Reply<StatFs>;
    /// `F_GETLK`: the first lock that is in the way, if any.
    fn getlk(&self, node: NodeId, lock: Lock) -> Reply<Option<Lock>>;
    /// `F_SETLK`, `flock` with `LOCK_NB`: `EAGAIN` if another lock is in the way.  A blocking
    /// request is brought as repeated calls by the layer above, which knows about interruption.
    fn setlk(&self, node: NodeId, lock: Lock) -> Reply<()>;
    /// One try of a blocking request, `F_SETLKW` or `flock`: `EAGAIN` if another lock is in the way,
    /// and `wait` is woken when that may have changed; `EDEADLK` if it would wait for ever.  Who is
    /// not ours wakes nobody.
    fn setlkw(&self, node: NodeId, lock: Lock, _wait: &Arc<Wait>) -> Reply<()> {
        self.setlk(node, lock)
    }
    /// `FS_IOC_GETFLAGS` and its siblings: `ENOTTY` where there is nothing to tell.
    fn inode_flags(&self, node: NodeId) -> Reply<u32>;

    /// An ioctl of this program, see `systx-abi`: `ENOTTY` for what is none.  The answer is as long as the
    /// argument.
    fn control(&self, _caller: Caller, _node: NodeId, _cmd: u32, _arg: &[u8]) -> Reply<Vec<u8>> {
        Err(Errno::NOTTY)
    }

    /// open(2) and opendir(3) of a node, also right after it was created.  `ENOSYS`, the default,
    /// says that opens need no message: the kernel then never asks again, and nobody is told who
    /// has what open.  An implementation says so always or never, of directories and of
    /// files separately.  `O_TRUNC` does not come here but
    /// as a change of the length.
    fn open(&self, _caller: Caller, _node: NodeId, _how: OpenHow) -> Reply<Opened> {
        Err(Errno::NOSYS)
    }
    /// The last descriptor of an open is closed and its mappings are gone.
    fn release(&self, _node: NodeId, _handle: u8) {}
    /// A descriptor is being closed by this thread; perhaps not the last one.
    fn closes(&self, _caller: Caller, _node: NodeId) {}
    /// fsync(2), and fdatasync(2) with `data_only`.  `ENOSYS`, the default: it succeeds and the kernel
    /// never asks again, because durability comes otherwise.
    fn fsync(&self, _node: NodeId, _data_only: bool) -> Reply<()> {
        Err(Errno::NOSYS)
    }
    /// Waits, not for long, until the calls that have changed a file's content are over: asked before attributes
    /// are told, while one may not be.  The kernel learns a new length only as such a call ends.  Whether they
    /// are over.
    fn land(&self, _node: NodeId) -> bool {
        false
    }
    /// True while a request waits for something that is nobody's fault and may take its time, such as a
    /// commit that is being installed: the watchdog of the connection is then more patient.  Called at
    /// any time, waits for no request.
    fn waits(&self) -> bool {
        false
    }
    /// How long the kernel may believe the answer to a request about `node`, or about `name` in it.
    /// Asked *before* the request is performed: who lowers it waits for the answers under way.
    fn valid(&self, _node: NodeId, _name: Option<&[u8]>) -> Valid {
        Valid::default()
    }
}
