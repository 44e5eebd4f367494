//! Which page cache this is: one *mount instance* of a file system, from its first mount to the end
//! of its last.
//!
//! What was written and not synced is there for exactly as long as the kernel's cache of that file
//! system is.  That cache does not end with the machine only: a disk that is pulled and put back, a
//! network disk that is lost and comes back, a file system that was shut down after an error, each
//! is mounted again by the same kernel, with what had reached the disk.  So an unsynced note
//! ([`crate::mark`]) says under which instance it was written.
//!
//! **What identifies one.**  The kernel keeps a directory in sysfs for each mounted ext4, xfs, f2fs
//! and btrfs, and never gives the inode number of such a directory twice while it runs.  All mounts
//! of the file system share it, and so do all mount namespaces.  Where there is none (vfat,
//! overlays), the 64-bit number of the mount serves, which is not given twice either: two mounts of
//! one file system then count as two instances, which costs work, never data.
//!
//! A subvolume of btrfs can be copied with all that is in it while it is mounted.  So its own
//! number is part of the identity.

use crate::class::{self, BTRFS};
use crate::io::Class;
use rustix::fs::{AtFlags, StatxFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use systx_base::mix;

/// One time that a file system is mounted, in one run of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Instance {
    /// Identifies this run of the kernel (`/proc/sys/kernel/random/boot_id`).  Zero: not known.
    pub boot: [u8; 16],
    /// Tells this time from all others in that run.  Zero: not known, and then equal to none.
    pub mount: u64,
}

impl Instance {
    /// That of the file system that a directory is on, which must be open on the mount itself: a
    /// copy of a mount, as open_tree(2) makes them, has another number.
    pub fn of(dir: BorrowedFd<'_>) -> Instance {
        Instance { boot: boot_id(), mount: mount_of(dir).unwrap_or(0) }
    }

    /// Whether this is the same run of the kernel as then.
    pub(crate) fn same_boot(&self, then: &Instance) -> bool {
        self.boot != [0; 16] && self.boot == then.boot
    }

    /// Whether everything that was written under `then`, synced or not, is still there to be read.
    pub(crate) fn still(&self, then: &Instance, class: Class) -> bool {
        // What is only in memory is gone as a whole, with every note about it.
        let same = class == Class::Memory || (self.mount != 0 && self.mount == then.mount);
        self.same_boot(then) && same
    }
}

/// Identity of this run of the kernel; zero if it does not tell.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

fn mount_of(dir: BorrowedFd<'_>) -> Option<u64> {
    let magic = rustix::fs::fstatfs(dir).ok()?.f_type as u64;
    let kept = kept_by_kernel(dir, magic).and_then(|dir| number_in_sysfs(&dir));
    let (kind, number) = match kept {
        Some(number) => (1, number),
        None => (2, mount_number(dir)?),
    };
    // Of a btrfs this has the number of the subvolume.
    let part = if magic == BTRFS { rustix::fs::fstatvfs(dir).ok()?.f_fsid } else { 0 };
    Some(mix(number ^ mix(part ^ mix(kind))).max(1))
}

/// The kernel's directory of the file system that a directory is on.
fn kept_by_kernel(dir: BorrowedFd<'_>, magic: u64) -> Option<PathBuf> {
    if magic == BTRFS {
        // Not O_PATH, for ioctl(2).
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let open = rustix::fs::openat(dir, c".", flags, rustix::fs::Mode::empty()).ok()?;
        return crate::quota::kept_of_btrfs(open.as_fd());
    }
    let flags = AtFlags::EMPTY_PATH;
    let stat = rustix::fs::statx(dir, c"", flags, StatxFlags::BASIC_STATS).ok()?;
    class::kept_by_kernel(magic, rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor))
}

/// The inode number of a directory in sysfs; `None` if it is not there, or not in the kernel's own
/// sysfs.
fn number_in_sysfs(dir: &Path) -> Option<u64> {
    const SYSFS: u64 = 0x6265_6572;
    let there = rustix::fs::statfs(dir).ok()?.f_type as u64 == SYSFS;
    there.then_some(std::fs::metadata(dir).ok()?.ino())
}

/// The number of the mount that a directory is open on, of those that are never given twice (Linux
/// 6.8).
fn mount_number(dir: BorrowedFd<'_>) -> Option<u64> {
    let unique = StatxFlags::from_bits_retain(0x4000);
    let stat = rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, unique).ok()?;
    (stat.stx_mask & unique.bits() != 0).then_some(stat.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Instance = Instance { boot: [1; 16], mount: 5 };

    #[test]
    fn only_what_is_known_to_be_the_same_is() {
        let still = |then: Instance, class| HERE.still(&then, class);
        for class in [Class::Strong, Class::Weak] {
            assert!(still(HERE, class));
            assert!(!still(Instance { mount: 6, ..HERE }, class), "mounted again");
            assert!(!still(Instance { boot: [2; 16], ..HERE }, class), "another run");
            let unknown = Instance { mount: 0, ..HERE };
            assert!(!unknown.still(&unknown, class), "not known is not the same");
        }
        let unknown = Instance { mount: 0, ..HERE };
        assert!(unknown.still(&unknown, Class::Memory));
        assert!(!Instance::default().still(&Instance::default(), Class::Memory));
    }

    #[test]
    fn a_file_system_tells_the_same_in_all_its_directories() {
        for place in crate::testing::bases() {
            let open = |path: &Path| std::fs::File::open(path).unwrap();
            let scratch = crate::testing::Scratch::on(&place);
            let (top, below) = (open(Path::new(&place)), open(&scratch.0));
            let [top, below] = [&top, &below].map(|dir| Instance::of(dir.as_fd()));
            assert_eq!(top, below, "{place}");
            assert_ne!((top.boot, top.mount), ([0; 16], 0), "{place}");
        }
    }
}
