//! Whether a quota may leave a process less room than the file system has: nothing tells how much,
//! but an attempt.
//!
//! Quotas of users, groups and projects are told by the options of the mount. Quota groups of btrfs
//! are no option, bind root as well, and can be switched on at any time; the kernel has a directory
//! for them while they are.

use crate::class::{BTRFS, OVERLAY};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use systx_base::proc::Mounted;

/// Where to look.
#[derive(Debug)]
pub(crate) enum Quotas {
    /// Known when it was opened.
    Fixed(bool),
    /// The kernel's directory of the file system, and that of its quota groups.
    Btrfs(PathBuf),
}

impl Quotas {
    /// Of the file system of type `magic`, on device `dev`, that a descriptor is on.
    pub fn of(fd: BorrowedFd<'_>, magic: u64, dev: u64) -> Quotas {
        match magic {
            BTRFS => kept_of_btrfs(fd).map_or(Quotas::Fixed(true), Quotas::Btrfs),
            // Nothing tells of the file system of the upper layer.
            OVERLAY => Quotas::Fixed(true),
            _ => {
                let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
                Quotas::Fixed(in_table(&table, dev))
            }
        }
    }

    /// Whether there may be one now.
    pub fn may_bind(&self) -> bool {
        match self {
            Quotas::Fixed(known) => *known,
            // Where the kernel shows nothing at all nobody can tell.
            Quotas::Btrfs(dir) => dir.join("qgroups").exists() || !dir.exists(),
        }
    }
}

/// The kernel's directory of the btrfs that a descriptor, which is not `O_PATH`, is on.
pub(crate) fn kept_of_btrfs(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let id = crate::real_unsafe::btrfs_id(fd)?;
    Some(PathBuf::from("/sys/fs/btrfs").join(uuid(id)))
}

fn uuid(id: [u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(id));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Whether any mount of a device keeps quotas, in a table as /proc/PID/mountinfo.
fn in_table(table: &[u8], dev: u64) -> bool {
    let dev = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let mut mounts = table.split(|b| *b == b'\n').filter_map(Mounted::read);
    mounts.any(|mount| mount.dev == dev && in_options(mount.of_all))
}

/// Whether options of a file system, as /proc/PID/mountinfo has them, say that it keeps quotas.
pub fn in_options(options: &[u8]) -> bool {
    options.split(|b| *b == b',').any(|option| {
        let name = option.split(|b| *b == b'=').next().unwrap_or_default();
        // The rest say that there are none.
        name.ends_with(b"quota") && !name.starts_with(b"no")
            || name.ends_with(b"jquota")
            || name.ends_with(b"qnoenforce")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_keeps_quotas_if_any_of_its_mounts_says_so() {
        let line =
            |options| format!("30 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 {options}");
        let two = format!("29 1 8:2 / /x rw - ext4 /dev/sdb usrquota\n{}\n", line("rw,prjquota"));
        let dev = |minor| rustix::fs::makedev(8, minor);
        assert!(in_table(two.as_bytes(), dev(1)) && in_table(two.as_bytes(), dev(2)));
        assert!(!in_table(two.as_bytes(), dev(3)));
        assert!(!in_table(line("rw,noquota").as_bytes(), dev(1)));
        assert!(!in_table(b"", dev(1)));
    }

    #[test]
    fn the_kernel_names_a_btrfs_by_its_id() {
        let id = [
            0x90, 0x1f, 0x75, 0xbb, 0xef, 0x50, 0x4e, 0x7a, 0xad, 0xb6, 0x8b, 0xd5, 0x4e, 0, 0x88,
            0x31,
        ];
        assert_eq!(uuid(id), "901f75bb-ef50-4e7a-adb6-8bd54e008831");
    }
}
