//! A disk that goes away with what it was not told to keep, and comes back, while the kernel runs
//! on.

#![allow(unsafe_code)]

use crate::random::Random;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// From here on nothing of the file system that is mounted at `dir`, an ext4 or xfs, reaches its
/// disk, not even what its journal has only in memory.  To be used again it has to be unmounted and
/// mounted.
///
/// # Panics
/// If the kernel refuses.
pub fn shut_down(dir: &Path) {
    // EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are one number, and so is "without flushing the log".
    const SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
    let no_log_flush: u32 = 2;
    let file = File::open(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    // SAFETY: the call reads one number, which lives for the whole call; the descriptor is open.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), SHUTDOWN, &raw const no_log_flush) };
    assert_eq!(done, 0, "{}: {}", dir.display(), std::io::Error::last_os_error());
}

/// Before a disk goes away it has some of what was written lately: of the store in `store` the mark
/// of what is installed, often; of the files in `tree` any.
pub fn reaches_the_disk(store: &Path, tree: &Path, random: &mut Random) {
    let sync = |path: &Path| {
        if let Ok(file) = File::open(path) {
            // The disk may be gone already.
            let _ = file.sync_all();
        }
    };
    if random.below(4) != 0 {
        sync(&store.join("applied"));
    }
    for entry in std::fs::read_dir(tree).into_iter().flatten().flatten() {
        if random.below(8) == 0 && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            sync(&entry.path());
        }
    }
}
