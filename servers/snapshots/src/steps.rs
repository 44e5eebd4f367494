//! Where a test stops an application that takes a snapshot.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Steps that were done.
static DONE: AtomicU64 = AtomicU64::new(0);
/// At which one to wait, and while which file is there.
static HOLD: OnceLock<Option<(u64, PathBuf)>> = OnceLock::new();

fn hold() -> Option<(u64, PathBuf)> {
    let said = std::env::var("SYSTX_HOLD").ok()?;
    let (number, path) = said.split_once(':')?;
    Some((number.parse().ok()?, path.into()))
}

/// One more step is about to be done. With `SYSTX_HOLD=N:PATH` the Nth one makes the file PATH and
/// waits until it is gone, so that a test can end this process, or another one, right there.
pub fn step() {
    let Some((number, path)) = HOLD.get_or_init(hold) else { return };
    if DONE.fetch_add(1, Ordering::Relaxed) + 1 != *number || fs::write(path, "").is_err() {
        return;
    }
    while path.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
