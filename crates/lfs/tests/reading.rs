//! What reading asks of the medium.

#![allow(clippy::unwrap_used)]

mod common;

use common::{LIMITS, bytes, clock, commit, file, made};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use systx_lfs::device::{Device, MemDevice};
use systx_lfs::format::{BLOCK, Ino, ROOT};
use systx_lfs::{Result, Volume};

/// Counts requests, and how far the medium is told ahead.
struct Counting {
    inner: MemDevice,
    reads: AtomicU64,
    told: AtomicU64,
}

impl Device for Counting {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> std::io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read(at, to)
    }
    fn soon(&self, _: u64, blocks: u64) {
        self.told.fetch_add(blocks, Ordering::Relaxed);
    }
    fn write(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.inner.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.inner.write_durable(at, from)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.inner.sync()
    }
}

/// A file of so many pages that was written in order.
fn with_file(pages: usize) -> (Arc<Counting>, Volume, Ino) {
    let inner = MemDevice::new(9 + 300 * common::SEGMENT as usize);
    let dev = Arc::new(Counting { inner, reads: AtomicU64::new(0), told: AtomicU64::new(0) });
    made(dev.clone());
    let volume = Volume::open(dev.clone(), clock(), 42, LIMITS).unwrap();
    let mut ino = 0;
    commit(&volume, |ops| {
        ino = ops.create(ROOT, b"f", &file())?;
        ops.write(ino, 0, &bytes(1, pages * BLOCK))
    })
    .unwrap();
    volume.checkpoint().unwrap();
    let count = |_: &()| dev.reads.store(0, Ordering::Relaxed);
    volume.look(|ops| ops.read(ino, 0, 1)).map(|_| count(&())).unwrap();
    (dev, volume, ino)
}

fn read(volume: &Volume, ino: Ino, page: usize, pages: usize) -> Result<Vec<u8>> {
    volume.look(|ops| ops.read(ino, (page * BLOCK) as u64, pages * BLOCK))
}

#[test]
fn neighbours_are_read_by_one_request() {
    let (dev, volume, ino) = with_file(128);
    let content = bytes(1, 128 * BLOCK);
    assert_eq!(read(&volume, ino, 0, 128).unwrap(), content);
    // One for each segment of 16 blocks that they lie in.
    let reads = dev.reads.load(Ordering::Relaxed);
    assert!((8..=20).contains(&reads), "{reads} requests for 128 pages");
    // Parts of pages, a hole, and what is beyond the end.
    volume.plain(|ops| ops.punch(ino, 5 * BLOCK as u64, BLOCK as u64)).unwrap();
    volume.sync().unwrap();
    let mut wanted = content.clone();
    wanted[5 * BLOCK..6 * BLOCK].fill(0);
    let got = volume.look(|ops| ops.read(ino, 100, 128 * BLOCK)).unwrap();
    assert!(got == wanted[100..]);
    let mut buf = vec![9; 3 * BLOCK];
    let got = volume.look(|ops| ops.read_into(ino, 127 * BLOCK as u64 - 7, &mut buf)).unwrap();
    assert!(got == BLOCK + 7 && buf[..got] == wanted[127 * BLOCK - 7..]);
    assert!(buf[got..].iter().all(|b| *b == 9), "what is beyond the end is left");
}

#[test]
fn who_reads_in_order_has_the_medium_told_ahead() {
    let (dev, volume, ino) = with_file(1000);
    for n in 0..4 {
        read(&volume, ino, n * 8, 8).unwrap();
    }
    let told = dev.told.swap(0, Ordering::Relaxed);
    assert!(told >= 32 + 32, "of {told} blocks after 32");
    for n in 4..120 {
        read(&volume, ino, n * 8, 8).unwrap();
    }
    let all = told + dev.told.swap(0, Ordering::Relaxed);
    assert!((960..=1000).contains(&all), "each once: {all}");
    // Not who reads anywhere.
    for n in 0..40usize {
        read(&volume, ino, n * 379 % 990, 1).unwrap();
    }
    assert_eq!(dev.told.load(Ordering::Relaxed), 0);
}
