//! Crash behaviour of the file system below a volume: told from its type and, for ext4, from
//! whether it has a journal. What is not known to keep order counts as [`Class::Weak`]: that costs
//! syncs, never data.

use crate::io::Class;
use std::path::{Path, PathBuf};
use systx_base::proc::Mounted;

const EXT: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
/// `BTRFS_SUPER_MAGIC`.
pub(crate) const BTRFS: u64 = 0x9123_683e;
const F2FS: u64 = 0xf2f5_2010;
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
/// `OVERLAYFS_SUPER_MAGIC`.
pub(crate) const OVERLAY: u64 = 0x794c_7630;

/// Names of the file systems whose files live on another machine: renames, locks and stamps there
/// do not mean what the store relies on.
const NETWORK: [(u64, &str); 9] = [
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "afs"),
    (0x00c3_6400, "ceph"),
    (0x7375_7245, "coda"),
    (0x0bd0_0bd0, "lustre"),
];

/// Name of a network file system; `None` for local ones.
pub(crate) fn network(magic: u64) -> Option<&'static str> {
    NETWORK.iter().find(|(m, _)| *m == magic).map(|(_, name)| *name)
}

/// Whether `syncfs` writes back and write-protects what is dirty in mappings, and the store after
/// that moves the change time: known of these.
pub(crate) fn settles(magic: u64) -> bool {
    matches!(magic, EXT | XFS | BTRFS)
}

/// The class of the file system of type `magic` on device `dev`.
pub(crate) fn of(magic: u64, dev: u64) -> Class {
    match magic {
        XFS | BTRFS | F2FS => Class::Strong,
        TMPFS | RAMFS => Class::Memory,
        EXT if has_journal(dev) => Class::Strong,
        // Which file system the upper layer is on cannot be told from the mount.
        OVERLAY if is_volatile(dev) => Class::Memory,
        _ => Class::Weak,
    }
}

/// Longest target of a symbolic link, in bytes, which no call tells: Linux takes up to 4095, XFS
/// less, ext2 to ext4 and F2FS what a block has room for beside the NUL.
pub(crate) fn longest_target(magic: u64, block: u64) -> usize {
    const MAX: usize = 4095;
    match magic {
        XFS => 1023,
        EXT | F2FS => {
            usize::try_from(block.saturating_sub(1)).map_or(MAX, |room| room.clamp(59, MAX))
        }
        _ => MAX,
    }
}

/// Whether the ext4 file system on `dev` has a journal: its sysfs file then names the journal's
/// thread, and `<none>` otherwise.  The ext2 driver has no such file.
fn has_journal(dev: u64) -> bool {
    let Some(kept) = kept_by_kernel(EXT, dev) else { return false };
    let task = std::fs::read_to_string(kept.join("journal_task"));
    task.is_ok_and(|task| task.trim() != "<none>")
}

/// The directory in sysfs that the kernel keeps for a mounted file system of type `magic` on block
/// device `dev`, if it keeps one for that type.
pub(crate) fn kept_by_kernel(magic: u64, dev: u64) -> Option<PathBuf> {
    let kind = match magic {
        EXT => "ext4",
        XFS => "xfs",
        F2FS => "f2fs",
        _ => return None,
    };
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(Path::new("/sys/fs").join(kind).join(link.file_name()?))
}

/// The options with which the file system on `dev` was mounted, as the mount table has them.
pub(crate) fn options(dev: u64) -> Vec<String> {
    let dev = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts = table.split(|b| *b == b'\n').filter_map(Mounted::read);
    let of_all = mounts.find(|mount| mount.dev == dev).map_or(&b""[..], |mount| mount.of_all);
    String::from_utf8_lossy(of_all).split(',').map(str::to_owned).collect()
}

/// Whether nothing of the overlay on `dev` is ever synced.
fn is_volatile(dev: u64) -> bool {
    says_volatile(&options(dev))
}

pub(crate) fn says_volatile(options: &[String]) -> bool {
    options.iter().any(|o| o == "volatile" || o == "fsync=volatile")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_as_long_as_the_file_system_takes_them() {
        let told =
            [(XFS, 4096), (EXT, 1024), (EXT, 4096), (EXT, 65536), (BTRFS, 4096), (TMPFS, 4096)];
        let longest = told.map(|(magic, block)| longest_target(magic, block));
        assert_eq!(longest, [1023, 1023, 4095, 4095, 4095, 4095]);
    }

    #[test]
    fn unknown_file_systems_are_weak_and_network_ones_are_named() {
        assert_eq!(of(0x1234_5678, 0), Class::Weak);
        assert_eq!(of(TMPFS, 0), Class::Memory);
        assert_eq!(of(XFS, 0), Class::Strong);
        // No such device: nothing says that there is a journal.
        assert_eq!(of(EXT, 0), Class::Weak);
        assert_eq!(network(0x6969), Some("nfs"));
        assert_eq!(network(EXT), None);
    }
}
