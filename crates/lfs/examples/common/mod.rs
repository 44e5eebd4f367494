//! What the benchmarks of a volume share.

#![allow(dead_code, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use systx_base::Time;
use systx_lfs::Clock;
use systx_lfs::device::{Device, FileDevice};

/// Counts what is written.
pub struct Counting {
    /// Where it is written to.
    pub inner: FileDevice,
    /// How many bytes were.
    pub bytes: AtomicU64,
}

impl Device for Counting {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> std::io::Result<()> {
        self.inner.read(at, to)
    }
    fn soon(&self, at: u64, blocks: u64) {
        self.inner.soon(at, blocks);
    }
    fn write(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.bytes.fetch_add(from.len() as u64, Ordering::Relaxed);
        self.inner.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.bytes.fetch_add(from.len() as u64, Ordering::Relaxed);
        self.inner.write_durable(at, from)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.inner.sync()
    }
}

/// The machine's.
pub fn clock() -> Clock {
    Arc::new(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Time { secs: now.as_secs() as i64, nanos: now.subsec_nanos() }
    })
}
