//! What is read of a real file system.

use super::*;
use crate::real_unsafe::FileAttr;
use std::ffi::CString;

/// Refuses what is no regular file.
fn is_file(opened: BorrowedFd<'_>) -> Result<()> {
    let mode = sys::fstat(opened)?.st_mode;
    if mode & 0o170000 == Kind::File.mode_bits() { Ok(()) } else { Err(errno(Errno::INVAL)) }
}

impl RealIo {
    /// Opens an entry that is looked at first.
    pub(super) fn open_checked(&self, at: &Handle, name: &[u8], writable: bool) -> Result<Handle> {
        let path = self.entry(at, name)?;
        let path = path.as_ref().map_or(fd(at), OwnedFd::as_fd);
        is_file(path)?;
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let opened = match open_again(path, access | OFlags::NOATIME) {
            Err(Errno::PERM) => open_again(path, access),
            other => other,
        }?;
        Ok(File::handle(opened, writable))
    }

    /// What is told of an entry, of which its project is a part.
    pub(super) fn file_attr(&self, at: &Handle, name: &[u8]) -> Result<FileAttr> {
        match self.opened_by_kind(at, name)? {
            Some(opened) => FileAttr::of(opened.as_fd()),
            None => FileAttr::at(fd(at), &CString::new(name)?),
        }
    }

    /// An open file or directory; `None` for any other kind, which has no descriptor of its own.
    pub(super) fn opened_by_kind(&self, at: &Handle, name: &[u8]) -> Result<Option<OwnedFd>> {
        let path = self.entry(at, name)?;
        let path = path.as_ref().map_or(fd(at), OwnedFd::as_fd);
        let mode = sys::fstat(path)?.st_mode & 0o170000;
        if mode != Kind::File.mode_bits() && mode != Kind::Dir.mode_bits() {
            return Ok(None);
        }
        Ok(Some(open_again(path, OFlags::RDONLY)?))
    }

    /// How an entry is encrypted. A directory is asked, in place of a file that of the file, which
    /// opens to nobody without the key. A file in a directory that is not encrypted has been moved
    /// there, and is like nothing else.
    fn policy_if_any(&self, at: &Handle, name: &[u8], seen: &Statx) -> Result<Option<Policy>> {
        if !seen.stx_attributes.contains(StatxAttributes::ENCRYPTED) {
            return Ok(None);
        }
        let is_dir = FileType::from_raw_mode(seen.stx_mode.into()) == FileType::Directory;
        let name = if is_dir && !name.is_empty() { name } else { b"." };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let asked = self.open_below(fd(at), name, flags)?;
        Ok(Some(Policy::of(asked.as_fd()).unwrap_or_default()))
    }
}

/// The file system keeps no projects, or this cannot be asked.
fn is_not_kept(e: &Error) -> bool {
    let errno = Errno::from_io_error(e);
    let none = [Errno::NOTTY, Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS];
    none.map(Some).contains(&errno) || [Errno::ACCESS, Errno::PERM].map(Some).contains(&errno)
}

impl Tree for RealIo {
    fn root(&self) -> Handle {
        self.root.clone()
    }

    fn open_dir(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        let opened = self.open_below(fd(at), name, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(File::handle(opened, false))
    }

    fn open_file(&self, at: &Handle, name: &[u8], how: Open) -> Result<Handle> {
        // Only the owner may ask not to move the access time.
        let refused = |e: &Error| e.raw_os_error() == Some(Errno::PERM.raw_os_error());
        if how == Open::ReadOwn {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let opened = match self.open_below(fd(at), name, flags | OFlags::NOATIME) {
                Err(e) if refused(&e) => self.open_below(fd(at), name, flags),
                other => other,
            };
            match opened {
                // A lease, see [`open_again`], which is how it is opened then.
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
                opened => {
                    let opened = opened?;
                    is_file(opened.as_fd())?;
                    return Ok(File::handle(opened, false));
                }
            }
        }
        self.open_checked(at, name, false)
    }

    fn pin(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        Ok(File::handle(self.open_below(fd(at), name, OFlags::PATH)?, false))
    }

    fn stat_at(&self, at: &Handle, name: &[u8]) -> Result<Stat> {
        let seen = statx(fd(at), name)?;
        if !name.is_empty() {
            self.same_mount(&seen)?;
        }
        self.told(&seen)
    }

    fn fixed(&self, at: &Handle, name: &[u8]) -> Result<Fixed> {
        let seen = statx(fd(at), name)?;
        let has = |flag| seen.stx_attributes.contains(flag);
        Ok(if has(StatxAttributes::IMMUTABLE) {
            Fixed::Immutable
        } else if has(StatxAttributes::APPEND) {
            Fixed::Append
        } else if self.policy_if_any(at, name, &seen)? != self.policy {
            Fixed::Encrypted
        } else {
            Fixed::No
        })
    }

    fn project(&self, at: &Handle, name: &[u8]) -> Result<Project> {
        match self.file_attr(at, name) {
            Ok(told) => Ok(told.project()),
            Err(e) if is_not_kept(&e) => Ok(Project::default()),
            Err(e) => Err(e),
        }
    }

    fn stat(&self, h: &Handle) -> Result<Stat> {
        self.told(&statx(fd(h), b"")?)
    }

    fn list(&self, dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<()> {
        let opened = self.readable_dir(dir)?;
        let mut buf = vec![MaybeUninit::uninit(); 32 * 1024];
        let mut entries = RawDir::new(&opened, &mut buf);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if !each(ListItem { name, ino: entry.ino(), kind: kind_of(entry.file_type()) }) {
                break;
            }
        }
        Ok(())
    }

    fn path_of(&self, _: &Handle) -> Result<Vec<u8>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn read_link(&self, at: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        Ok(sys::readlinkat(fd(at), name, Vec::with_capacity(256))?.into_bytes())
    }

    fn get_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<Vec<u8>> {
        let path = proc_path(fd(at), name);
        grown(|buf| {
            let spare = rustix::buffer::spare_capacity(buf);
            if name.is_empty() {
                sys::getxattr(&path[..], key, spare).map(|_| ())
            } else {
                sys::lgetxattr(&path[..], key, spare).map(|_| ())
            }
        })
        .map_err(errno)
    }

    fn list_xattr(&self, at: &Handle, name: &[u8]) -> Result<Vec<Vec<u8>>> {
        let path = proc_path(fd(at), name);
        let listed = grown(|buf| {
            let spare = rustix::buffer::spare_capacity(buf);
            if name.is_empty() {
                sys::listxattr(&path[..], spare).map(|_| ())
            } else {
                sys::llistxattr(&path[..], spare).map(|_| ())
            }
        })
        .map_err(errno);
        match listed {
            Ok(bytes) => Ok(bytes
                .split(|b| *b == 0)
                .filter(|key| !key.is_empty())
                .map(<[u8]>::to_vec)
                .collect()),
            // A file system without extended attributes has none.
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    fn read_at(&self, h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize> {
        read_full(h, buf, offset)
    }

    fn shares_files(&self) -> bool {
        false
    }
    fn longest_target(&self) -> usize {
        self.longest_target
    }

    fn next_data(&self, h: &Handle, offset: u64) -> Result<Option<(u64, u64)>> {
        let whole = |size: u64| (offset < size).then_some((offset, size));
        let start = match sys::seek(fd(h), SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // No SEEK_DATA here: all of it counts as data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(whole(self.stat(h)?.size)),
            Err(e) => return Err(errno(e)),
        };
        match sys::seek(fd(h), SeekFrom::Hole(start)) {
            Ok(end) => Ok(Some((start, end))),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(errno(e)),
        }
    }

    fn fs_info(&self) -> Result<FsInfo> {
        let s = sys::fstatfs(fd(&self.root))?;
        Ok(FsInfo {
            magic: s.f_type as u64,
            class: self.class,
            bsize: s.f_bsize as u64,
            blocks: s.f_blocks,
            bfree: s.f_bfree,
            bavail: s.f_bavail,
            files: s.f_files,
            ffree: s.f_ffree,
            namelen: s.f_namelen as u64,
        })
    }

    fn now(&self) -> Time {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Time { secs: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) }
    }
}

impl Outsiders for RealIo {
    fn sync_data(&self, h: &Handle) -> Result<()> {
        match self.syncable(h)? {
            Some(dir) => sys::fdatasync(dir).map_err(errno),
            None => sys::fdatasync(fd(h)).map_err(errno),
        }
    }

    fn is_settled(&self, version: &Stamp) -> bool {
        // A dirty page was dirtied at or before the last move of the change time; one that was
        // dirty when the sync began is clean since, and a later store has moved the time. A second,
        // as change times lag behind the clock by a tick.
        version.ctime.secs < self.synced.load(Ordering::Relaxed).saturating_sub(1)
    }

    fn openers(&self, h: &Handle) -> Result<Openers> {
        if let Some(known) = self.known.get()
            && let Some(openers) = known(&self.stat(h)?)
        {
            return Ok(openers);
        }
        let unknown = |e: &Error| {
            matches!(
                e.raw_os_error(),
                Some(libc::EACCES | libc::EPERM | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOLCK)
            )
        };
        match probe_lease(fd(h), Lease::Write) {
            Ok(true) => return Ok(Openers::None),
            Ok(false) => {}
            Err(e) if unknown(&e) => return Ok(Openers::Unknown),
            Err(e) => return Err(e),
        }
        if h.inner::<File>().writable {
            // A read lease is refused because of this very handle, so readers cannot be told from
            // writers: the answer is the one that is safe.
            return Ok(Openers::Writers);
        }
        match probe_lease(fd(h), Lease::Read) {
            Ok(true) => Ok(Openers::Readers),
            Ok(false) => Ok(Openers::Writers),
            Err(e) if unknown(&e) => Ok(Openers::Unknown),
            Err(e) => Err(e),
        }
    }
}
