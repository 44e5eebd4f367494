//! The contract between a view and whatever brings requests to it (FUSE; later the library): one
//! value per request ([`Request`]), typed, without a word of the wire. The contract follows fs/fuse
//! of Linux: names are single components (never empty, `.`, `..`, or with `/` or NUL), the caller's
//! right to do it was checked by the kernel (`default_permissions`), file types are right for the
//! call. For a name, the kernel has checked what it knew under it; another object that a view finds
//! there counts as unchecked.

use rustix::io::Errno;
use std::time::Duration;
use systx_base::{Gid, Kind, NodeId, Time, Uid};
use systx_store::io::Stat;

pub use crate::request::{Answer, Answers, Calls, Request, Requests, Sink};

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

impl From<&Stat> for Attr {
    fn from(stat: &Stat) -> Attr {
        Attr {
            ino: stat.id.number(),
            kind: stat.kind,
            mode: stat.mode,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
            size: stat.size,
            blocks: stat.blocks,
            blksize: stat.blksize,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
        }
    }
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

impl SetAttr {
    /// Whether the owner is set, perhaps to what it was: chown(2) with (-1, -1) comes as a change
    /// of
    /// nothing, since the kernel leaves what goes with it to us (fs/fuse/dir.c `fuse_setattr`).
    pub fn is_chown(&self) -> bool {
        self.uid.is_some() || self.gid.is_some() || *self == SetAttr::default()
    }
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
    /// `RENAME_WHITEOUT | RENAME_NOREPLACE`.
    WhiteoutNoReplace,
}

impl RenameHow {
    /// Whether an existing target is an error.
    pub fn keeps_target(self) -> bool {
        matches!(self, RenameHow::NoReplace | RenameHow::WhiteoutNoReplace)
    }
    /// Whether something is left behind.
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameHow::Whiteout | RenameHow::WhiteoutNoReplace)
    }
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
    /// What the release has to know of it. Not what tells opens from each other: the layer above
    /// numbers them.
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
