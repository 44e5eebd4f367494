//! Where random cases run, and how many.

use std::path::Path;

/// Number of random cases: `SYSTX_CASES`, or what keeps the suite quick.
pub fn cases(default: u32) -> u32 {
    std::env::var("SYSTX_CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(default)
}

pub fn scratch() -> tempfile::TempDir {
    // Ownership and device nodes need root; tmpfs keeps it quick.
    let base = ["/dev/shm", "/tmp"].into_iter().find(|d| Path::new(d).is_dir()).expect("one");
    tempfile::Builder::new().prefix("systx-twin-").tempdir_in(base).expect("scratch directory")
}
