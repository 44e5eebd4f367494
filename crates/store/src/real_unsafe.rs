//! The few system calls of [`crate::real`] that `rustix` does not wrap, or not safely: leases and
//! locks that belong to an open file description, a thread's own umask, the number of a btrfs,
//! projects and encryption.
//! Nothing else in this crate is unsafe.

#![allow(unsafe_code)]

use crate::io::Project;
use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `<asm-generic/fcntl.h>`; missing in the libc crate.
const F_SETSIG: libc::c_int = 10;

/// What a write or read lease needs to be granted (fcntl(2), `F_SETLEASE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lease {
    /// Nobody else has the file open.
    Write,
    /// Nobody has the file open for writing.
    Read,
}

/// Asks for a lease and gives it back at once; `false` if somebody is in the way.
pub(crate) fn probe_lease(fd: BorrowedFd<'_>, lease: Lease) -> Result<bool> {
    let granted = take_lease(fd, lease)?;
    if granted {
        give_lease_back(fd);
    }
    Ok(granted)
}

/// Asks for a lease, which ends with the descriptor; `false` if somebody is in the way.
pub(crate) fn take_lease(fd: BorrowedFd<'_>, lease: Lease) -> Result<bool> {
    let kind = match lease {
        Lease::Write => libc::F_WRLCK,
        Lease::Read => libc::F_RDLCK,
    };
    // Whoever opens the file while the lease is ours makes the kernel signal us: by default with
    // SIGIO, which ends a process that does not expect it.  SIGURG does nothing.
    // SAFETY: F_SETSIG and F_SETLEASE take an int and no pointer; `fd` is open for both calls.
    let granted = unsafe {
        match libc::fcntl(fd.as_raw_fd(), F_SETSIG, libc::SIGURG) {
            -1 => -1,
            _ => libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind),
        }
    };
    if granted != -1 {
        return Ok(true);
    }
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Ok(false),
        _ => Err(error),
    }
}

/// Gives the lease back that a descriptor has.
pub(crate) fn give_lease_back(fd: BorrowedFd<'_>) {
    // SAFETY: F_SETLEASE takes an int and no pointer; `fd` is open for the whole call.  A failure
    // leaves a lease that ends with the descriptor; there is nothing better to do about it.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// The number that tells a btrfs file system from all others (`BTRFS_IOC_FS_INFO`); `None` if it
/// cannot be had.
pub(crate) fn btrfs_id(fd: BorrowedFd<'_>) -> Option<[u8; 16]> {
    const FS_INFO: libc::Ioctl = 0x8400_941f_u32 as libc::Ioctl;
    const AT: usize = 16;
    // `struct btrfs_ioctl_fs_info_args`; the alignment is that of its numbers.
    let mut args = [0u64; 128];
    // SAFETY: the call writes a structure of 1024 bytes, which `args` has and which lives for the
    // whole call; `fd` is open.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), FS_INFO, args.as_mut_ptr()) };
    let bytes: Vec<u8> = args.iter().flat_map(|n| n.to_ne_bytes()).collect();
    bytes.get(AT..)?.first_chunk().copied().filter(|_| done == 0)
}

/// How a directory is encrypted (fscrypt): `struct fscrypt_get_policy_ex_arg`, with the bytes that
/// the kernel told.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Policy {
    size: u64,
    bytes: [u8; 32],
}

impl Policy {
    /// Of an open directory; `None` where it is not encrypted, or that cannot be asked.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Option<Policy> {
        // The size of the call's number is that of the smallest argument.
        const GET_POLICY_EX: libc::Ioctl = 0xc009_6616_u32 as libc::Ioctl;
        let mut told = Policy { size: 32, bytes: [0; 32] };
        // SAFETY: the call writes at most `size` bytes behind the size, which `told` has and which
        // lives for the whole call; `fd` is open.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), GET_POLICY_EX, &raw mut told) };
        (done == 0).then_some(told)
    }
}

/// `struct file_attr` (linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct FileAttr {
    xflags: u64,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
}

/// `struct fsxattr` (linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

impl FileAttr {
    /// `FS_XFLAG_PROJINHERIT`.
    const GIVEN: u64 = 0x200;

    pub(crate) fn project(self) -> Project {
        Project { id: self.projid, given: self.xflags & FileAttr::GIVEN != 0 }
    }

    pub(crate) fn of_project(self, project: Project) -> FileAttr {
        let given = if project.given { FileAttr::GIVEN } else { 0 };
        FileAttr { projid: project.id, xflags: self.xflags | given, ..self }
    }

    /// Of an open file or directory.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Result<FileAttr> {
        const FSGETXATTR: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
        let mut told = FsXattr::default();
        // SAFETY: the call writes a structure of 28 bytes, which `told` is and which lives for the
        // whole call; `fd` is open.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), FSGETXATTR, &raw mut told) };
        let FsXattr { xflags, extsize, nextents, projid, cowextsize, .. } = told;
        let told = FileAttr { xflags: xflags.into(), extsize, nextents, projid, cowextsize };
        if done == 0 { Ok(told) } else { Err(Error::last_os_error()) }
    }

    /// For an open file or directory.
    pub(crate) fn set(self, fd: BorrowedFd<'_>) -> Result<()> {
        const FSSETXATTR: libc::Ioctl = 0x401c_5820_u32 as libc::Ioctl;
        let FileAttr { xflags, extsize, nextents, projid, cowextsize } = self;
        let xflags = xflags as u32;
        let wanted = FsXattr { xflags, extsize, nextents, projid, cowextsize, pad: [0; 8] };
        // SAFETY: the call reads a structure of 28 bytes, which `wanted` is and which lives for the
        // whole call; `fd` is open.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), FSSETXATTR, &raw const wanted) };
        if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    /// Of an object of any kind, from Linux 6.17 on.
    pub(crate) fn at(dir: BorrowedFd<'_>, name: &CStr) -> Result<FileAttr> {
        const FILE_GETATTR: libc::c_long = 468;
        let mut told = FileAttr::default();
        // SAFETY: the name is a C string, the structure is of the length that is passed, and both
        // live through the call; `dir` is open.
        let done = unsafe {
            libc::syscall(
                FILE_GETATTR,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw mut told,
                size_of::<FileAttr>(),
                libc::AT_SYMLINK_NOFOLLOW,
            )
        };
        if done == 0 { Ok(told) } else { Err(Error::last_os_error()) }
    }

    /// For an object of any kind, from Linux 6.17 on.
    pub(crate) fn set_at(self, dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        const FILE_SETATTR: libc::c_long = 469;
        // SAFETY: the name is a C string, the structure is of the length that is passed, and both
        // live through the call; `dir` is open.
        let done = unsafe {
            libc::syscall(
                FILE_SETATTR,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw const self,
                size_of::<FileAttr>(),
                libc::AT_SYMLINK_NOFOLLOW,
            )
        };
        if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }
}

/// Gives this thread a umask, working directory and root of its own, all as they are (unshare(2),
/// `CLONE_FS`).
pub(crate) fn own_umask() -> rustix::io::Result<()> {
    // SAFETY: what makes the call unsafe is to unshare the descriptor table; it stays shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn whoever_opens_a_file_under_probe_does_not_end_this_process() {
        let path = std::env::temp_dir().join(format!("systx-lease-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        assert!(take_lease(file.as_fd(), Lease::Write).unwrap());
        let mut open = std::fs::OpenOptions::new();
        let other = open.read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        assert_eq!(other.unwrap_err().raw_os_error(), Some(libc::EWOULDBLOCK));
        give_lease_back(file.as_fd());
        drop(open.open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
    /// Whether somebody waits for a write lease to be given back.
    fn is_wanted_back(fd: BorrowedFd<'_>) -> bool {
        // SAFETY: F_GETLEASE takes no pointer; `fd` is open for the whole call.
        let lease = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLEASE) };
        lease != libc::F_WRLCK
    }

    #[test]
    fn a_file_under_probe_is_opened_after_it() {
        use crate::io::{Io, Open, Tree};
        use crate::{host_locks::LockFile, real::RealIo};
        let dir = std::env::temp_dir().join(format!("systx-probe-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let file = std::fs::File::create(dir.join("f")).unwrap();
        let io = RealIo::open(&dir).unwrap();
        let opens: [&(dyn Fn() -> Result<()> + Sync); 4] = [
            &|| io.open_file(&io.root(), b"f", Open::ReadOwn).map(drop),
            &|| io.open_file(&io.root(), b"f", Open::Read).map(drop),
            &|| io.open_to_write(&io.root(), b"f").map(drop),
            &|| LockFile::of(&io, &io.root(), b"f").map(drop),
        ];
        for open in opens {
            assert!(take_lease(file.as_fd(), Lease::Write).unwrap());
            std::thread::scope(|s| {
                let opened = s.spawn(open);
                while !opened.is_finished() && !is_wanted_back(file.as_fd()) {
                    std::thread::yield_now();
                }
                give_lease_back(file.as_fd());
                opened.join().unwrap().unwrap();
            });
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
