//! Inode numbers of what is new in a view.

use std::sync::Arc;
use systx_store::io::{FsInfo, Tree};

/// `statfs.f_type`.
mod magic {
    pub const EXT4: u64 = 0xef53;
    pub const XFS: u64 = 0x5846_5342;
    pub const BTRFS: u64 = 0x9123_683e;
    pub const TMPFS: u64 = 0x0102_1994;
    pub const F2FS: u64 = 0xf2f5_2010;
}

/// Inode numbers of objects that are not committed yet: such as the file system does not use.
/// Where its own have 32 bits these have, too: to programs that were built without large files
/// others are an error (`EOVERFLOW`).
pub(crate) struct NewNumbers {
    given: u64,
    /// Numbers up to this are the file system's; asked with the first number.
    used: Option<u64>,
    ask: Box<dyn Fn() -> u64 + Send>,
}

/// Above what file systems use.
const HIGH: u64 = 1 << 48;
/// The least inode of xfs in version 5 of its format.
const XFS_INODE: u64 = 512;

/// Up to which number a file system's may be.
fn used(fs: &FsInfo, born: bool) -> u64 {
    match fs.magic {
        magic::EXT4 | magic::F2FS => fs.files,
        // A number is a place, with up to twice the bits that the places need.
        magic::XFS if born => fs.blocks.saturating_mul(fs.bsize) / XFS_INODE * 2,
        // One after the other.
        magic::BTRFS | magic::TMPFS => i32::MAX as u64,
        _ => u64::MAX,
    }
}

impl NewNumbers {
    /// Of what is new on the file system of a tree; `born`: it knows when files were made.
    pub fn on(tree: Arc<dyn Tree>, born: bool) -> NewNumbers {
        // A file system that does not say how many it has may have any.
        NewNumbers::above(move || tree.fs_info().map_or(u64::MAX, |fs| used(&fs, born)))
    }

    fn above(ask: impl Fn() -> u64 + Send + 'static) -> NewNumbers {
        NewNumbers { given: 0, used: None, ask: Box::new(ask) }
    }

    /// A number for a new object; `highest`: of the file system's that were met.
    pub fn next(&mut self, highest: u64) -> u64 {
        self.given += 1;
        let used = self.used.get_or_insert_with(&self.ask);
        // One that has come so far may come further.
        if highest > *used {
            *used = u64::MAX;
        }
        let low = u64::from(u32::MAX).saturating_sub(self.given);
        if low > *used { low } else { HIGH + self.given }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_store::io::Class;

    #[test]
    fn new_numbers_are_none_of_the_file_system_s() {
        let fs = |magic, blocks, files| FsInfo {
            magic,
            class: Class::Strong,
            bsize: 4096,
            blocks,
            bfree: 0,
            bavail: 0,
            files,
            ffree: 0,
            namelen: 255,
        };
        let on = |fs: FsInfo, born| NewNumbers::above(move || used(&fs, born));
        let mut ext4 = on(fs(magic::EXT4, 1, u64::from(u32::MAX) - 3), true);
        let four: Vec<u64> = (0..4).map(|_| ext4.next(1000)).collect();
        assert_eq!(four, [0xffff_fffe, 0xffff_fffd, HIGH + 3, HIGH + 4]);
        let tib = (1 << 40) / 4096;
        assert!(on(fs(magic::XFS, tib / 2, 0), true).next(1) < 1 << 32);
        assert!(on(fs(magic::XFS, tib, 0), true).next(1) > HIGH);
        assert!(on(fs(magic::XFS, 1, 0), false).next(1) > HIGH);
        assert!(on(fs(0, 1, 1), true).next(1) > HIGH);
        let mut btrfs = on(fs(magic::BTRFS, tib, 0), true);
        assert!(btrfs.next(1 << 30) < 1 << 32);
        assert!(btrfs.next(1 << 31) > HIGH && btrfs.next(1 << 31) > HIGH);
    }
}
