//! The system calls of the plain view, on descriptors of the backing file system.

use rustix::fs::{
    self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use systx_base::{Kind, Time};
use systx_store::io::HostId;
use systx_vfs::api::{Attr, Reply};
pub(crate) use systx_vfs::paths::{path_below, path_of};

/// What one statx(2) tells.
pub(crate) struct Seen {
    pub id: HostId,
    pub dev: u64,
    pub attr: Attr,
}

fn time(t: StatxTimestamp) -> Time {
    Time { secs: t.tv_sec, nanos: t.tv_nsec.min(999_999_999) }
}

fn seen(s: &Statx) -> Reply<Seen> {
    let has_btime = s.stx_mask & StatxFlags::BTIME.bits() != 0;
    let btime = if has_btime { time(s.stx_btime) } else { Time::default() };
    Ok(Seen {
        id: HostId { ino: s.stx_ino, btime },
        dev: fs::makedev(s.stx_dev_major, s.stx_dev_minor),
        attr: Attr {
            ino: s.stx_ino,
            kind: Kind::from_mode(s.stx_mode.into()).ok_or(Errno::IO)?,
            mode: u32::from(s.stx_mode) & 0o7777,
            nlink: s.stx_nlink,
            uid: s.stx_uid,
            gid: s.stx_gid,
            rdev: fs::makedev(s.stx_rdev_major, s.stx_rdev_minor),
            size: s.stx_size,
            blocks: s.stx_blocks,
            blksize: s.stx_blksize,
            atime: time(s.stx_atime),
            mtime: time(s.stx_mtime),
            ctime: time(s.stx_ctime),
        },
    })
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);
const NO_DETOUR: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);

/// Attributes of what a descriptor refers to.
pub(crate) fn stat(fd: impl AsFd) -> Reply<Seen> {
    seen(&fs::statx(fd, c"", AtFlags::EMPTY_PATH | NO_DETOUR, WANTED)?)
}

/// Attributes of a name, of what is mounted there if anything is.
pub(crate) fn stat_at(dir: impl AsFd, name: &[u8]) -> Reply<Seen> {
    seen(&fs::statx(dir, name, NO_DETOUR, WANTED)?)
}

/// An `O_PATH` descriptor of a name.  `EXDEV` if something is mounted there: a guarded directory
/// does not span file systems, and what lies below the mount is nobody's business.
pub(crate) fn child(dir: impl AsFd, name: &[u8]) -> Reply<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::NO_XDEV | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    fs::openat2(dir, name, flags, Mode::empty(), within)
}

/// Opens what a descriptor refers to once more.
pub(crate) fn reopen(fd: impl AsFd, flags: OFlags) -> Reply<OwnedFd> {
    fs::open(path_of(fd), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a directory for listing, or as the place of a file without a name.
pub(crate) fn open_dir(fd: impl AsFd) -> Reply<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::openat(fd, c".", flags, Mode::empty())
}

/// The type by which mknod(2) knows it.
pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDev => FileType::CharacterDevice,
        Kind::BlockDev => FileType::BlockDevice,
    }
}
