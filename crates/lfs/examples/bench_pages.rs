//! What the size of a volume's pages and segments costs and gives.
//!
//! `bench_pages IMAGE PAGE SEGMENT MIB COMMITS`: makes a volume in the image with pages and
//! segments of so many KiB, writes one file of so many MiB in order, and overwrites 4 blocks of
//! 4096 bytes of it, drawn at random, in each of so many durable transactions, with the cleaner's
//! thread beside them.  Then the file is read in order by 128 KiB, with nothing of it in memory.
//! Prints commits per second, bytes to the medium for each byte of new data, places where the next
//! block of the file lies elsewhere for each MiB, and MiB per second of the reading.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Counting, clock};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use systx_base::Kind;
use systx_lfs::device::FileDevice;
use systx_lfs::format::{BLOCK, Ino, ROOT};
use systx_lfs::{CleanerThread, Format, Greedy, Limits, Ops, Plan, Shape, Txn, Volume, mkfs};

/// Blocks of a transaction.
const EACH: u64 = 4;
const MIB: usize = 1 << 20;

fn open(image: &Path) -> (Arc<Counting>, Arc<Volume>) {
    let inner = FileDevice::open(image).unwrap();
    let dev = Arc::new(Counting { inner, bytes: AtomicU64::new(0) });
    let volume = Volume::open(dev.clone(), clock(), 1, Limits::default()).unwrap();
    (dev, Arc::new(volume))
}

fn file(ops: &mut Ops<'_>) -> systx_lfs::Result<Ino> {
    Ok(ops.lookup(ROOT, b"f")?.ino)
}

/// Overwrites blocks; returns commits per second and bytes written for each of new data.
fn overwrite(image: &Path, pages: u64, commits: u64) -> (f64, f64) {
    let (dev, volume) = open(image);
    let cleaner = CleanerThread::start(volume.clone(), Plan::default(), Arc::new(Greedy)).unwrap();
    let (begun, before) = (Instant::now(), dev.bytes.load(Ordering::Relaxed));
    for n in 0..commits {
        let mut txn = Txn::new();
        let write = |ops: &mut Ops<'_>| {
            let f = file(ops)?;
            (n * EACH..(n + 1) * EACH).try_for_each(|i| {
                let page = systx_base::mix(!i) % pages;
                ops.write(f, page * BLOCK as u64, &vec![n as u8; BLOCK])
            })
        };
        volume.within(&mut txn, write).unwrap();
        volume.commit(txn).unwrap();
    }
    let rate = commits as f64 / begun.elapsed().as_secs_f64();
    let written = dev.bytes.load(Ordering::Relaxed) - before;
    drop(cleaner.stop());
    Arc::into_inner(volume).unwrap().close().unwrap();
    (rate, written as f64 / (commits * EACH * BLOCK as u64) as f64)
}

/// Reads the file; returns jumps for each MiB, and MiB per second.
fn scan(image: &Path, mib: usize) -> (f64, f64) {
    let cold = File::open(image).unwrap();
    rustix::fs::fadvise(&cold, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let (_, volume) = open(image);
    let f = volume.look(file).unwrap();
    let runs = volume.scattered(f, 1).unwrap().0[0].runs;
    let begun = Instant::now();
    let mut to = vec![0; 128 << 10];
    for at in (0..(mib * MIB) as u64).step_by(to.len()) {
        let read = volume.look(|ops| ops.read_into(f, at, &mut to)).unwrap();
        assert_eq!(read, to.len());
        assert!(to.chunks_exact(BLOCK).all(|page| page.iter().all(|b| *b == page[0])));
    }
    (runs as f64 / mib as f64, mib as f64 / begun.elapsed().as_secs_f64())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, page, segment, mib, commits] = &args[..] else {
        panic!("bench_pages IMAGE PAGE SEGMENT MIB COMMITS");
    };
    let (image, mib): (&Path, usize) = (Path::new(image), mib.parse().unwrap());
    let blocks = |kib: &String| kib.parse::<u32>().unwrap() / 4;
    let label = "bench".to_owned();
    let format = Format {
        segment_blocks: blocks(segment),
        cluster: blocks(page),
        id: [8; 16],
        label,
        owner: (0, 0),
        compression: Default::default(),
    };
    mkfs(Arc::new(FileDevice::open(image).unwrap()), &format, clock()).unwrap();
    let (_, volume) = open(image);
    let f = volume.plain(|ops| ops.create(ROOT, b"f", &Shape::new(Kind::File, 0o600))).unwrap();
    for at in 0..mib as u64 {
        let offset = at * MIB as u64;
        volume.plain(|ops| ops.write(f, offset, &vec![1; MIB])).unwrap();
    }
    Arc::into_inner(volume).unwrap().close().unwrap();
    let pages = (mib * MIB / BLOCK) as u64;
    let (rate, cost) = overwrite(image, pages, commits.parse().unwrap());
    let (jumps, speed) = scan(image, mib);
    println!("{rate:.0} {cost:.2} {jumps:.1} {speed:.0}");
}
