//! [`Io`] by Linux system calls, on the file system that one directory is on.
//!
//! Directories are `O_PATH` handles, opened one component at a time with
//! `openat2(RESOLVE_NO_XDEV | RESOLVE_BENEATH)`, so that nothing mounted below the root and no
//! symbolic link that an outsider swaps in can lead elsewhere. Regular files are looked at through
//! an `O_PATH` descriptor first and opened through it, so that opening never has a side effect on a
//! FIFO or a device that took the file's place (two walks and a look more, half of the time that a
//! first read of a small file takes on the host; [`Open::ReadOwn`] is for where nobody could have
//! put one there). What takes no descriptor (extended attributes of an entry, the mode of an entry)
//! goes through `/proc/self/fd/N/NAME`.
//!
//! The caller's umask applies to `create_file`, `mkdir` and `mknod`; who wants exact bits sets them
//! afterwards.  No locks, no state but a descriptor for `syncfs` that lives as long as the volume,
//! so that a write-back error is reported once and not lost.

use crate::class;
use crate::host_locks::LockRange;
use crate::io::{
    Fixed, FsInfo, Handle, HostId, Io, ListItem, Open, Openers, Outsiders, Project, Rename, Stamp,
    Stat, Tree,
};
use crate::quota::Quotas;
use crate::real_unsafe::{Lease, Policy, own_umask, probe_lease};
use by_hand::{copy_by_hand, fill_with_zeros};
use rustix::fs::{
    self as sys, AtFlags, FallocateFlags, FileType, Mode, OFlags, RawDir, RenameFlags,
    ResolveFlags, SeekFrom, Statx, StatxAttributes, StatxFlags, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, XattrFlags,
};
use rustix::io::Errno;
use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use systx_base::{Gid, Kind, Time, Uid};

/// What is inside a [`Handle`] of this implementation.
struct File {
    fd: OwnedFd,
    /// Only for files: whether it was opened for writing.
    writable: bool,
    /// A second descriptor with `O_DIRECT`, made at the first durable write; `None` where the file
    /// system refuses it.
    direct: OnceLock<Option<OwnedFd>>,
}

impl File {
    fn handle(fd: OwnedFd, writable: bool) -> Handle {
        Handle::new(File { fd, writable, direct: OnceLock::new() })
    }
}

/// A volume on the real file system.
pub struct RealIo {
    root: Handle,
    sync: OwnedFd,
    dev: u64,
    class: crate::io::Class,
    has_openat2: AtomicBool,
    /// Seconds at which the last successful `syncfs` began, where [`class::settles`].
    synced: AtomicI64,
    settles: bool,
    longest_target: usize,
    overlay: bool,
    quotas: Quotas,
    /// See [`RealIo::ask_first`].
    known: OnceLock<KnownOpeners>,
    /// See [`RealIo::has_store_in`].
    policy: Option<Policy>,
}

/// Who has a file open, if that is known otherwise than by asking the file system.
type KnownOpeners = Box<dyn Fn(&Stat) -> Option<Openers> + Send + Sync>;

fn fd(h: &Handle) -> BorrowedFd<'_> {
    systx_base::sync::record::io();
    h.inner::<File>().fd.as_fd()
}

/// `/proc/self/fd/N` or `/proc/self/fd/N/NAME`: names what a descriptor refers to, without a race.
fn proc_path(fd: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes();
    if !name.is_empty() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}

/// Opens what a descriptor refers to once more, without side effects on FIFOs and devices.
///
/// `EAGAIN` comes from a lease, which only regular files have: most likely that of a probe of ours
/// ([`Io::openers`]) in another thread, over in some microseconds. So it is waited for as any
/// program does that does not ask for `O_NONBLOCK`; others' leases are broken by the kernel in the
/// end (/proc/sys/fs/lease-break-time).
pub(crate) fn open_again(file: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let link = proc_path(file, b"");
    let flags = flags | OFlags::CLOEXEC;
    match sys::open(&link[..], flags | OFlags::NONBLOCK, Mode::empty()) {
        Err(Errno::AGAIN) => sys::open(&link[..], flags, Mode::empty()),
        other => other,
    }
}

fn errno(e: Errno) -> Error {
    e.into()
}

impl Stat {
    /// What statx(2) has to be asked for.
    pub const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

    /// What it told.
    ///
    /// # Errors
    /// `EIO`: an object of a kind that Linux does not have.
    pub fn told(s: &Statx) -> rustix::io::Result<Stat> {
        let time =
            |t: sys::StatxTimestamp| Time { secs: t.tv_sec, nanos: t.tv_nsec.min(999_999_999) };
        let is_known = s.stx_mask & StatxFlags::BTIME.bits() != 0;
        let btime = if is_known { time(s.stx_btime) } else { Time::default() };
        Ok(Stat {
            id: HostId { ino: s.stx_ino, btime },
            dev: sys::makedev(s.stx_dev_major, s.stx_dev_minor),
            kind: Kind::from_mode(s.stx_mode.into()).ok_or(Errno::IO)?,
            mode: u32::from(s.stx_mode) & 0o7777,
            uid: s.stx_uid,
            gid: s.stx_gid,
            nlink: s.stx_nlink,
            size: s.stx_size,
            blocks: s.stx_blocks,
            blksize: s.stx_blksize,
            rdev: sys::makedev(s.stx_rdev_major, s.stx_rdev_minor),
            atime: time(s.stx_atime),
            mtime: time(s.stx_mtime),
            ctime: time(s.stx_ctime),
        })
    }
}

fn statx(at: BorrowedFd<'_>, name: &[u8]) -> Result<Statx> {
    let flags = if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    sys::statx(at, name, flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, Stat::WANTED)
        .map_err(errno)
}

/// The type that a listing tells, if it tells any.
pub fn kind_of(t: FileType) -> Option<Kind> {
    Some(match t {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDev,
        FileType::BlockDevice => Kind::BlockDev,
        FileType::Unknown => return None,
    })
}

/// Calls again with a larger buffer until the value fits, whatever others do to it meanwhile.
///
/// # Errors
/// Those of the call; `ERANGE` if even a megabyte is too little.
pub fn grown(
    mut call: impl FnMut(&mut Vec<u8>) -> rustix::io::Result<()>,
) -> rustix::io::Result<Vec<u8>> {
    let mut buf = Vec::with_capacity(256);
    loop {
        match call(&mut buf) {
            Err(Errno::RANGE) if buf.capacity() < 1 << 20 => {
                buf = Vec::with_capacity(buf.capacity() * 8);
            }
            done => return done.map(|()| buf),
        }
    }
}

impl RealIo {
    /// From now on [`openers`](crate::io::Outsiders::openers) asks `known` first: programs that
    /// reach a file through a mount of ours have it open there, and the file system itself knows
    /// nothing of them. The first call counts.
    pub fn ask_first(&self, known: impl Fn(&Stat) -> Option<Openers> + Send + Sync + 'static) {
        let _ = self.known.set(Box::new(known));
    }

    /// The descriptor inside a handle of this implementation.
    pub fn descriptor<'h>(&self, h: &'h Handle) -> BorrowedFd<'h> {
        fd(h)
    }

    /// A handle for what a descriptor refers to (`O_PATH` is enough).
    pub fn held(fd: OwnedFd) -> Handle {
        File::handle(fd, false)
    }

    /// A descriptor of its own for what a handle of this implementation is open on.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn duplicate(&self, h: &Handle) -> Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(fd(h), 0).map_err(errno)
    }

    /// The volume whose root is the directory at `path`.
    pub fn open(path: impl AsRef<Path>) -> Result<RealIo> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        RealIo::from_dir(sys::open(path.as_ref(), flags, Mode::empty())?)
    }

    /// The volume whose root is an open directory (`O_PATH` is enough).
    pub fn from_dir(dir: OwnedFd) -> Result<RealIo> {
        let stat = Stat::told(&statx(dir.as_fd(), b"")?)?;
        if stat.kind != Kind::Dir {
            return Err(errno(Errno::NOTDIR));
        }
        // Not O_PATH: neither syncfs nor fsync takes such a descriptor.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let sync = sys::openat(&dir, c".", flags, Mode::empty())?;
        let info = sys::fstatfs(&dir)?;
        let class = class::of(info.f_type as u64, stat.dev);
        let quotas = Quotas::of(sync.as_fd(), info.f_type as u64, stat.dev);
        Ok(RealIo {
            root: File::handle(dir, false),
            sync,
            dev: stat.dev,
            class,
            has_openat2: AtomicBool::new(true),
            synced: AtomicI64::new(i64::MIN),
            settles: class::settles(info.f_type as u64),
            known: OnceLock::new(),
            longest_target: class::longest_target(info.f_type as u64, info.f_bsize as u64),
            overlay: info.f_type as u64 == class::OVERLAY,
            quotas,
            policy: None,
        })
    }

    /// The same, with its store in the directory `dir` or in one that is made there: what is
    /// encrypted otherwise than this cannot be changed by it ([`Fixed::Encrypted`]). A directory
    /// that the caller may not read counts as not encrypted.
    pub fn has_store_in(mut self, dir: &Path) -> RealIo {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = sys::open(dir, flags, Mode::empty()).ok();
        self.policy = opened.and_then(|dir| Policy::of(dir.as_fd()));
        self
    }

    /// What `statx` tells.  On an overlay the number alone identifies, see [`crate::overlay`].
    fn told(&self, s: &Statx) -> Result<Stat> {
        let mut stat = Stat::told(s)?;
        if self.overlay {
            stat.id.btime = Time::default();
        }
        Ok(stat)
    }

    /// Opens one component below `at`, never across a mount.
    fn open_below(&self, at: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.has_openat2.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
            match sys::openat2(at, name, flags, Mode::empty(), resolve) {
                // Seccomp profiles of containers answer EPERM for calls that they do not know.
                Err(Errno::NOSYS | Errno::PERM) => {}
                // BENEATH gives up when a rename races with it.
                Err(Errno::AGAIN) => {}
                other => return other.map_err(errno),
            }
        }
        let opened = sys::openat(at, name, flags, Mode::empty())?;
        let seen = statx(opened.as_fd(), b"")?;
        self.same_mount(&seen)?;
        // Only reached where openat2 is refused or lost a race; a refusal is for ever.
        if let Err(Errno::NOSYS | Errno::PERM) = sys::openat2(
            &self.sync,
            c".",
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH,
        ) {
            self.has_openat2.store(false, Ordering::Relaxed);
        }
        Ok(opened)
    }

    /// `EXDEV` for what another mount put over a name.
    fn same_mount(&self, s: &Statx) -> Result<()> {
        let dev = sys::makedev(s.stx_dev_major, s.stx_dev_minor);
        if dev != self.dev || s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Err(errno(Errno::XDEV));
        }
        Ok(())
    }

    /// An `O_PATH` descriptor of an entry, or `at` again for the empty name.
    fn entry(&self, at: &Handle, name: &[u8]) -> Result<Option<OwnedFd>> {
        if name.is_empty() {
            return Ok(None);
        }
        self.open_below(fd(at), name, OFlags::PATH).map(Some)
    }

    /// A second descriptor of an open directory that can be read and synced.
    fn readable_dir(&self, h: &Handle) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        sys::openat(fd(h), c".", flags, Mode::empty()).map_err(errno)
    }

    /// A descriptor that fsync takes.
    fn syncable(&self, h: &Handle) -> Result<Option<OwnedFd>> {
        let flags = sys::fcntl_getfl(fd(h))?;
        if flags.contains(OFlags::PATH) { self.readable_dir(h).map(Some) } else { Ok(None) }
    }
}

fn write_all(h: &Handle, data: &[u8], offset: u64) -> Result<()> {
    let mut rest = data;
    let mut at = offset;
    while !rest.is_empty() {
        match rustix::io::pwrite(fd(h), rest, at) {
            Ok(0) => return Err(errno(Errno::IO)),
            Ok(n) => {
                rest = &rest[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(errno(e)),
        }
    }
    Ok(())
}

fn read_full(h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(fd(h), &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(errno(e)),
        }
    }
    Ok(done)
}

/// The byte of a lock file, or of a slot, that whoever has it has locked.
const HELD: u64 = 0;
/// The byte that whoever waits for it has locked, shared.
const ASKED: u64 = 1;

impl Io for RealIo {
    fn open_to_write(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.open_checked(at, name, true)
    }

    fn create_file(&self, at: &Handle, name: &[u8], mode: u32) -> Result<Handle> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let opened = sys::openat(fd(at), name, flags | OFlags::CLOEXEC, Mode::from(mode))?;
        Ok(File::handle(opened, true))
    }

    fn write_at(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()> {
        write_all(h, data, offset)
    }

    fn write_durable(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()> {
        durable::write(h.inner::<File>(), data, offset).map_err(errno)
    }

    fn set_len(&self, h: &Handle, len: u64) -> Result<()> {
        sys::ftruncate(fd(h), len).map_err(errno)
    }

    fn punch_hole(&self, h: &Handle, offset: u64, len: u64) -> Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match sys::fallocate(fd(h), mode, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let size = self.stat(h)?.size;
                let end = offset.saturating_add(len).min(size);
                fill_with_zeros(h, offset, end.saturating_sub(offset))
            }
            other => other.map_err(errno),
        }
    }

    fn allocate(&self, h: &Handle, offset: u64, len: u64) -> Result<()> {
        match sys::fallocate(fd(h), FallocateFlags::KEEP_SIZE, offset, len) {
            // Nothing to hold space with: the write will tell.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => other.map_err(errno),
        }
    }

    fn max_len(&self, h: &Handle) -> u64 {
        // lseek(2) refuses what lies beyond, and nothing tells it otherwise.
        let fits = |len: u64| sys::seek(fd(h), SeekFrom::Start(len)).is_ok();
        let (mut fitting, mut beyond) = (0, i64::MAX as u64 + 1);
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            *(if fits(middle) { &mut fitting } else { &mut beyond }) = middle;
        }
        fitting
    }

    fn copy_range(
        &self,
        from: &Handle,
        from_at: u64,
        to: &Handle,
        to_at: u64,
        len: u64,
    ) -> Result<()> {
        let (mut src, mut dst) = (from_at, to_at);
        let end = from_at.checked_add(len).ok_or_else(|| errno(Errno::INVAL))?;
        while src < end {
            let wanted = usize::try_from((end - src).min(1 << 30)).unwrap_or(1 << 30);
            match sys::copy_file_range(fd(from), Some(&mut src), fd(to), Some(&mut dst), wanted) {
                Ok(0) => return Err(Error::from(std::io::ErrorKind::UnexpectedEof)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                    return copy_by_hand(from, src, to, dst, end - src);
                }
                Err(e) => return Err(errno(e)),
            }
        }
        Ok(())
    }

    fn mkdir(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()> {
        sys::mkdirat(fd(at), name, Mode::from(mode)).map_err(errno)
    }

    fn symlink(&self, target: &[u8], at: &Handle, name: &[u8]) -> Result<()> {
        sys::symlinkat(target, fd(at), name).map_err(errno)
    }

    fn mknod(&self, at: &Handle, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> Result<()> {
        let file_type = FileType::from_raw_mode(kind.mode_bits());
        sys::mknodat(fd(at), name, file_type, Mode::from(mode), rdev).map_err(errno)
    }

    fn link(&self, from: &Handle, from_name: &[u8], to: &Handle, to_name: &[u8]) -> Result<()> {
        sys::linkat(fd(from), from_name, fd(to), to_name, AtFlags::empty()).map_err(errno)
    }

    fn rename(
        &self,
        from: &Handle,
        from_name: &[u8],
        to: &Handle,
        to_name: &[u8],
        how: Rename,
    ) -> Result<()> {
        let (from, to) = ((fd(from), from_name), (fd(to), to_name));
        let ((from, from_name), (to, to_name), flags) = match how {
            Rename::Replace => (from, to, RenameFlags::empty()),
            Rename::NoReplace => (from, to, RenameFlags::NOREPLACE),
            // An exchange has no direction but for inotify: where it is told to go, something
            // comes first and goes then.  Watchers of `to` are to believe that it is there.
            Rename::Exchange => (to, from, RenameFlags::EXCHANGE),
        };
        sys::renameat_with(from, from_name, to, to_name, flags).map_err(errno)
    }

    fn unlink(&self, at: &Handle, name: &[u8]) -> Result<()> {
        sys::unlinkat(fd(at), name, AtFlags::empty()).map_err(errno)
    }

    fn rmdir(&self, at: &Handle, name: &[u8]) -> Result<()> {
        sys::unlinkat(fd(at), name, AtFlags::REMOVEDIR).map_err(errno)
    }

    fn set_mode(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()> {
        if name.is_empty() && at.inner::<File>().writable {
            return sys::fchmod(fd(at), Mode::from(mode)).map_err(errno);
        }
        // fchmodat follows a symbolic link, so the entry is pinned first; a link then answers
        // EOPNOTSUPP.
        let pinned = self.entry(at, name)?;
        let target = pinned.as_ref().map_or(fd(at), AsFd::as_fd);
        sys::chmod(&proc_path(target, b"")[..], Mode::from(mode)).map_err(errno)
    }

    fn set_owner(&self, at: &Handle, name: &[u8], uid: Uid, gid: Gid) -> Result<()> {
        let owner = Some(sys::Uid::from_raw(uid));
        let group = Some(sys::Gid::from_raw(gid));
        let flags = if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::SYMLINK_NOFOLLOW };
        sys::chownat(fd(at), name, owner, group, flags).map_err(errno)
    }

    fn set_project(&self, at: &Handle, name: &[u8], project: Project) -> Result<()> {
        let wanted = self.file_attr(at, name)?.of_project(project);
        match self.opened_by_kind(at, name)? {
            Some(opened) => wanted.set(opened.as_fd()),
            None => wanted.set_at(fd(at), &std::ffi::CString::new(name)?),
        }
    }

    fn set_times(
        &self,
        at: &Handle,
        name: &[u8],
        atime: Option<Time>,
        mtime: Option<Time>,
    ) -> Result<()> {
        let spec = |t: Option<Time>| match t {
            Some(t) => Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() },
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        let flags = if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::SYMLINK_NOFOLLOW };
        sys::utimensat(fd(at), name, &times, flags).map_err(errno)
    }

    fn touch(&self, at: &Handle, name: &[u8]) -> Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let flags = if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::SYMLINK_NOFOLLOW };
        sys::utimensat(fd(at), name, &times, flags).map_err(errno)
    }

    fn set_xattr(&self, at: &Handle, name: &[u8], key: &[u8], value: &[u8]) -> Result<()> {
        let path = proc_path(fd(at), name);
        if name.is_empty() {
            sys::setxattr(&path[..], key, value, XattrFlags::empty()).map_err(errno)
        } else {
            sys::lsetxattr(&path[..], key, value, XattrFlags::empty()).map_err(errno)
        }
    }

    fn remove_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<()> {
        let path = proc_path(fd(at), name);
        if name.is_empty() {
            sys::removexattr(&path[..], key).map_err(errno)
        } else {
            sys::lremovexattr(&path[..], key).map_err(errno)
        }
    }

    fn sync_all(&self, h: &Handle) -> Result<()> {
        match self.syncable(h)? {
            Some(dir) => sys::fsync(dir).map_err(errno),
            None => sys::fsync(fd(h)).map_err(errno),
        }
    }

    fn sync_fs(&self) -> Result<()> {
        let began = self.now().secs;
        sys::syncfs(&self.sync)?;
        if self.settles {
            self.synced.fetch_max(began, Ordering::Relaxed);
        }
        Ok(())
    }

    fn try_lock(&self, h: &Handle) -> Result<bool> {
        crate::host_locks_unsafe::set(fd(h), Some(true), HELD, HELD)
    }

    fn hold(&self, h: &Handle, hold: bool) -> Result<()> {
        crate::host_locks_unsafe::set(fd(h), hold.then_some(true), HELD, HELD).map(drop)
    }

    fn is_locked(&self, h: &Handle) -> Result<bool> {
        let held = LockRange { start: HELD, end: HELD, exclusive: true };
        Ok(crate::host_locks_unsafe::test(fd(h), held)?.is_some())
    }

    fn ask_for_lock(&self, h: &Handle, ask: bool) -> Result<()> {
        crate::host_locks_unsafe::set(fd(h), ask.then_some(false), ASKED, ASKED).map(drop)
    }

    fn is_lock_asked_for(&self, h: &Handle) -> Result<bool> {
        let asked = LockRange { start: ASKED, end: ASKED, exclusive: true };
        Ok(crate::host_locks_unsafe::test(fd(h), asked)?.is_some())
    }

    fn has_quota(&self) -> bool {
        self.quotas.may_bind()
    }

    fn makers(&self) -> usize {
        // More than a few stand in each other's way in the file system's journal.  Each thread asks
        // once, as it may be bound to a processor: five files are read for it, in each commit.
        thread_local!(static MAKERS: usize =
            std::thread::available_parallelism().map_or(1, |n| n.get().min(4)));
        MAKERS.with(|makers| *makers)
    }

    fn unmask(&self) {
        // The umask is the process's, unless the thread has its own: a container may refuse that.
        if own_umask().is_ok() {
            rustix::process::umask(Mode::empty());
        }
    }
}

mod by_hand;
mod durable;
mod reading;

#[cfg(test)]
mod tests;
