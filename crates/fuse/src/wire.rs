//! The FUSE wire protocol, version 7.36 to 7.45: every structure, opcode and flag that this crate
//! speaks, and nothing else.  Pure data: no I/O, no policy.
//!
//! Layouts are those of Linux's `include/uapi/linux/fuse.h`: host byte order, C alignment, no
//! hidden padding (every gap is a named field, which `zerocopy` checks at compile time).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol major version.
pub const MAJOR: u32 = 7;
/// The newest minor version whose structures are known here.
pub const MINOR: u32 = 45;
/// The oldest minor version that is served: 7.36 (Linux 5.17) brought `FUSE_INIT_EXT`.
pub const MINOR_OLDEST: u32 = 36;
/// The kernel refuses reads from /dev/fuse into smaller buffers.
pub const MIN_READ_BUFFER: usize = 8192;

macro_rules! wire {
    ($(#[$meta:meta] $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        #[$meta]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[allow(missing_docs)] // the fields carry the names of the kernel's documentation
        pub struct $name { $($(#[$fmeta])* pub $field: $type),* }
    )*};
}

wire! {
    /// Begins every request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        /// Length of the extensions in units of 8 bytes; none are negotiated.
        total_extlen: u16, padding: u16,
    }
    /// Begins every reply and notification.
    OutHeader {
        len: u32,
        /// 0 or a negated errno; the code of a notification.
        error: i32,
        unique: u64,
    }
    /// Attributes of a node.
    AttrWire {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    /// A node handed out.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: AttrWire,
    }
    /// Answer of GETATTR and SETATTR.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrWire }
    /// FORGET.
    ForgetIn { nlookup: u64 }
    /// One element of BATCH_FORGET.
    ForgetOne { nodeid: u64, nlookup: u64 }
    /// BATCH_FORGET.
    BatchForgetIn { count: u32, dummy: u32 }
    /// GETATTR.
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64 }
    /// STATX.
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// A time in the answer of STATX.
    StatxTime { secs: i64, nanos: u32, reserved: u32 }
    /// Answer of STATX.
    StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], mask: u32,
        blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime,
        btime: StatxTime, ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// SETATTR.
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    /// MKNOD; the name follows.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR; the name follows.
    MkdirIn { mode: u32, umask: u32 }
    /// RENAME; both names follow.
    RenameIn { newdir: u64 }
    /// RENAME2; both names follow.
    Rename2In { newdir: u64, flags: u32, padding: u32 }
    /// LINK; the new name follows.
    LinkIn { oldnodeid: u64 }
    /// OPEN and OPENDIR.
    OpenIn { flags: u32, open_flags: u32 }
    /// Answer of OPEN and OPENDIR, and the second part of CREATE's.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    /// CREATE and TMPFILE; the name follows.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// RELEASE and RELEASEDIR.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FSYNC and FSYNCDIR.
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    /// FLUSH.
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// READ, READDIR and READDIRPLUS.
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// WRITE; the data follow.
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// Answer of WRITE and COPY_FILE_RANGE.
    WriteOut { size: u32, padding: u32 }
    /// Answer of STATFS.
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// SETXATTR; name and value follow.
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// GETXATTR (the name follows) and LISTXATTR.
    GetxattrIn { size: u32, padding: u32 }
    /// Answer of GETXATTR and LISTXATTR to size 0.
    GetxattrOut { size: u32, padding: u32 }
    /// A lock.
    FileLock { start: u64, end: u64, kind: u32, pid: u32 }
    /// GETLK, SETLK and SETLKW.
    LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    /// Answer of GETLK.
    LkOut { lk: FileLock }
    /// INIT.
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    /// Answer of INIT.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    /// INTERRUPT.
    InterruptIn { unique: u64 }
    /// IOCTL; its input follows.
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// Answer of IOCTL; its output follows.
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// FALLOCATE.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// LSEEK.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// Answer of LSEEK.
    LseekOut { offset: u64 }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// Answer of COPY_FILE_RANGE_64.
    CopyOut { bytes_copied: u64 }
    /// One name of a listing; the name follows, padded to 8 bytes.
    DirentOut { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// NOTIFY_INVAL_INODE.
    NotifyInode { ino: u64, off: i64, len: i64 }
    /// NOTIFY_INVAL_ENTRY; the name and a NUL follow.
    NotifyEntry { parent: u64, namelen: u32, flags: u32 }
    /// NOTIFY_DELETE; the name and a NUL follow.
    NotifyDelete { parent: u64, child: u64, namelen: u32, padding: u32 }
    /// NOTIFY_STORE; the bytes follow.
    NotifyStore { nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// NOTIFY_RETRIEVE.
    NotifyRetrieve { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// NOTIFY_PRUNE; the node ids follow.
    NotifyPrune { count: u32, padding: u32, spare: u64 }
    /// `struct fsxattr`, the data of FS_IOC_FSGETXATTR.
    FsXattr {
        xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u8; 8],
    }
    /// Third part of the header buffer of an io_uring entry.
    RingEntry { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// The command area of an io_uring submission.
    RingCommand { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

/// Space for a fixed structure in the header buffer of an io_uring entry.
pub const RING_OP_LEN: usize = 128;

/// The header buffer of an io_uring entry.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RingHeader {
    /// [`InHeader`] on the way in, [`OutHeader`] on the way out.
    pub in_out: [u8; 128],
    /// The request's fixed structure.
    pub op_in: [u8; RING_OP_LEN],
    /// Commit id and length of the payload.
    pub entry: RingEntry,
}

macro_rules! opcodes {
    ($($name:ident = $value:literal),* $(,)?) => {
        /// What a request asks.
        #[allow(missing_docs)] // the kernel's names
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($name = $value),* }

        impl Opcode {
            /// Every opcode known here.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// `None` for one that is not known here.
            pub fn from_wire(value: u32) -> Option<Opcode> {
                match value { $($value => Some(Opcode::$name),)* _ => None }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, Getattr = 3, Setattr = 4, Readlink = 5, Symlink = 6, Mknod = 8,
    Mkdir = 9, Unlink = 10, Rmdir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16,
    Statfs = 17, Release = 18, Fsync = 20, Setxattr = 21, Getxattr = 22, Listxattr = 23,
    Removexattr = 24, Flush = 25, Init = 26, Opendir = 27, Readdir = 28, Releasedir = 29,
    Fsyncdir = 30, Getlk = 31, Setlk = 32, Setlkw = 33, Access = 34, Create = 35, Interrupt = 36,
    Bmap = 37, Destroy = 38, Ioctl = 39, Poll = 40, NotifyReply = 41, BatchForget = 42,
    Fallocate = 43, Readdirplus = 44, Rename2 = 45, Lseek = 46, CopyFileRange = 47,
    Setupmapping = 48, Removemapping = 49, Syncfs = 50, Tmpfile = 51, Statx = 52,
    CopyFileRange64 = 53,
}

/// Flags of INIT, both halves in one word as the kernel joins them.
pub mod init {
    #![allow(missing_docs)] // the kernel's names
    pub const ASYNC_READ: u64 = 1;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `SetattrIn::valid`.
pub mod fattr {
    #![allow(missing_docs)] // the kernel's names
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `STATX_BASIC_STATS`: what [`StatxOut`] always has.
pub const STATX_BASIC: u32 = 0x7ff;
/// `STATX_BTIME`.
pub const STATX_BTIME: u32 = 0x800;
/// `FOPEN_KEEP_CACHE`: opening does not drop cached pages.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// GETATTR by a descriptor.
pub const GETATTR_FH: u32 = 1 << 0;
/// `FOPEN_CACHE_DIR`: the kernel may keep the listing.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// `FOPEN_NOFLUSH`: closing asks nobody.
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
/// `FUSE_OPEN_KILL_SUIDGID`.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// `FUSE_WRITE_CACHE`: the kernel writes back a page.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `FUSE_WRITE_KILL_SUIDGID`.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_SETXATTR_ACL_KILL_SGID`.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// `FUSE_FSYNC_FDATASYNC`.
pub const FSYNC_FDATASYNC: u32 = 1;
/// `FUSE_LK_FLOCK`.
pub const LK_FLOCK: u32 = 1;
/// `FUSE_EXPIRE_ONLY` of [`NotifyEntry`].
pub const NOTIFY_EXPIRE_ONLY: u32 = 1;

/// Codes of notifications.
pub mod notify {
    #![allow(missing_docs)] // the kernel's names
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RETRIEVE: i32 = 5;
    pub const DELETE: i32 = 6;
    pub const INC_EPOCH: i32 = 8;
    pub const PRUNE: i32 = 9;
}

/// `FUSE_IO_URING_CMD_REGISTER`: offer a buffer and wait for a request.
pub const RING_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: answer a request and wait for the next.
pub const RING_COMMIT_AND_FETCH: u32 = 2;

/// `FS_IOC_GETFLAGS`, 64-bit.
pub const IOC_GETFLAGS: u32 = 0x8008_6601;
/// `FS_IOC_GETFLAGS`, as 32-bit programs call it.
pub const IOC32_GETFLAGS: u32 = 0x8004_6601;
/// `FS_IOC_FSGETXATTR`.
pub const IOC_FSGETXATTR: u32 = 0x801c_581f;

/// Length of the fixed structure with which a request's body begins.  Over io_uring it travels in
/// the header buffer, over /dev/fuse in front of the names and data.
pub fn fixed_len(opcode: Opcode) -> usize {
    use Opcode as O;
    match opcode {
        O::Lookup | O::Readlink | O::Symlink | O::Unlink | O::Rmdir | O::Statfs => 0,
        O::Removexattr | O::Destroy | O::NotifyReply => 0,
        O::Forget => size_of::<ForgetIn>(),
        O::BatchForget => size_of::<BatchForgetIn>(),
        O::Getattr => size_of::<GetattrIn>(),
        O::Setattr => size_of::<SetattrIn>(),
        O::Mknod => size_of::<MknodIn>(),
        O::Mkdir => size_of::<MkdirIn>(),
        O::Rename => size_of::<RenameIn>(),
        O::Rename2 => size_of::<Rename2In>(),
        O::Link => size_of::<LinkIn>(),
        O::Open | O::Opendir => size_of::<OpenIn>(),
        O::Create | O::Tmpfile => size_of::<CreateIn>(),
        O::Release | O::Releasedir => size_of::<ReleaseIn>(),
        O::Flush => size_of::<FlushIn>(),
        O::Read | O::Readdir | O::Readdirplus => size_of::<ReadIn>(),
        O::Write => size_of::<WriteIn>(),
        O::Fsync | O::Fsyncdir => size_of::<FsyncIn>(),
        O::Setxattr => size_of::<SetxattrIn>(),
        O::Getxattr | O::Listxattr => size_of::<GetxattrIn>(),
        O::Init => size_of::<InitIn>(),
        O::Getlk | O::Setlk | O::Setlkw => size_of::<LkIn>(),
        O::Access => 8,
        O::Interrupt => size_of::<InterruptIn>(),
        O::Bmap => 16,
        O::Ioctl => size_of::<IoctlIn>(),
        O::Poll => 24,
        O::Fallocate => size_of::<FallocateIn>(),
        O::Lseek => size_of::<LseekIn>(),
        O::CopyFileRange | O::CopyFileRange64 => size_of::<CopyIn>(),
        O::Setupmapping => 40,
        O::Removemapping => 4,
        O::Syncfs => 8,
        O::Statx => size_of::<StatxIn>(),
    }
}

#[cfg(test)]
mod tests;
