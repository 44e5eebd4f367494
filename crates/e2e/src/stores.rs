//! Stores as others see them.

use crate::run::HANG;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Whether some process has a file locked as a store's lock is, or a slot.
pub fn is_locked(file: &Path) -> bool {
    let Ok(file) = std::fs::metadata(file) else { return false };
    // Two file systems have files of one number, and tests run side by side.
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    let held = format!(" {major:02x}:{minor:02x}:{} 0 0", file.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains(" OFDLCK ") && line.ends_with(&held))
}

/// Waits until what was committed in a store needs nothing more, and nobody has it open.
///
/// # Panics
/// It stays open.
#[track_caller]
pub fn wait_until_closed(store: &Path) {
    let until = Instant::now() + HANG;
    while is_locked(&store.join("lock")) {
        assert!(Instant::now() < until, "{} stays open", store.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}
