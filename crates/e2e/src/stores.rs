//! Stores as others see them.

use crate::locked::first_byte;
use crate::run::HANG;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Whether some process has a file locked as a store's lock is, or a slot.
pub fn is_locked(file: &Path) -> bool {
    // The list of all locks names a device that files on btrfs do not say that they are on.
    File::open(file).is_ok_and(|file| first_byte(&file).unwrap())
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
