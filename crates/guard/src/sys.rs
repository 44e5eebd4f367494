//! The system calls of the plain view, on descriptors of the backing file system.

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use std::os::fd::{AsFd, OwnedFd};
use systx_base::Kind;
use systx_store::io::Stat;
use systx_vfs::api::{Attr, Reply};
pub(crate) use systx_vfs::paths::{path_below, path_of};

const NO_DETOUR: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);

/// Attributes of what a descriptor refers to.
pub(crate) fn stat(fd: impl AsFd) -> Reply<Stat> {
    Stat::told(&fs::statx(fd, c"", AtFlags::EMPTY_PATH | NO_DETOUR, Stat::WANTED)?)
}

/// The same, as a view shows them.
pub(crate) fn attr(fd: impl AsFd) -> Reply<Attr> {
    Ok(Attr::from(&stat(fd)?))
}

/// Attributes of a name, of what is mounted there if anything is.
pub(crate) fn stat_at(dir: impl AsFd, name: &[u8]) -> Reply<Stat> {
    Stat::told(&fs::statx(dir, name, NO_DETOUR, Stat::WANTED)?)
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
