//! The commit step of the store by itself, without a mount, against raw durable writes.
//!
//! `bench_lfs IMAGE RAW CLIENTS MILLISECONDS ROUNDS`: in each round the clients commit
//! transactions of four pages in four files for so long; then one thread writes as many bytes as
//! a group had on average, durably, again and again, into the file RAW, before and after.  Prints
//! a line for each round: commits per second, groups, bytes of a group, microseconds of a group
//! and of the device's write in it, and of a raw write.  Both files are made if they are not
//! there.

#![allow(clippy::unwrap_used)]

mod common;

use common::clock;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use systx_base::Kind;
use systx_lfs::device::{Aligned, Device, FileDevice};
use systx_lfs::format::{BLOCK, Ino, ROOT};
use systx_lfs::{Format, Limits, Shape, Txn, Volume, mkfs};

const IMAGE: u64 = 768 << 20;
const PAGES: u64 = 1024;

/// Counts durable writes, and how long they take.
struct Counting {
    inner: FileDevice,
    writes: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
}

impl Device for Counting {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> std::io::Result<()> {
        self.inner.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.inner.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(from.len() as u64, Ordering::Relaxed);
        let begun = Instant::now();
        let done = self.inner.write_durable(at, from);
        self.nanos.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        done
    }
    fn sync(&self) -> std::io::Result<()> {
        self.inner.sync()
    }
}

fn device(path: &str) -> FileDevice {
    let path = Path::new(path);
    if path.exists() {
        FileDevice::open(path).unwrap()
    } else {
        FileDevice::create(path, IMAGE).unwrap()
    }
}

/// One transaction: a page in each of four files of the client.
fn commit(volume: &Volume, files: &[Ino], n: u64, content: &[u8]) {
    let mut txn = Txn::new();
    volume
        .within(&mut txn, |ops| {
            for (i, f) in (0..).zip(files) {
                let page = systx_base::mix(n * 4 + i + 1) % PAGES;
                ops.write(*f, page * BLOCK as u64, content)?;
            }
            Ok(())
        })
        .unwrap();
    volume.commit(txn).unwrap();
}

struct Groups {
    commits: u64,
    groups: u64,
    bytes: u64,
    nanos: u64,
    seconds: f64,
}

fn ours(volume: &Volume, dev: &Counting, files: &[Vec<Ino>], time: Duration) -> Groups {
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let figures = [&dev.writes, &dev.bytes, &dev.nanos];
    let before = figures.map(|f| f.load(Ordering::Relaxed));
    let begun = Instant::now();
    std::thread::scope(|s| {
        for (client, files) in files.iter().enumerate() {
            let (stop, commits) = (&stop, &commits);
            s.spawn(move || {
                let content = vec![client as u8 + 1; BLOCK];
                let mut n = (client as u64) << 32;
                while !stop.load(Ordering::Relaxed) {
                    commit(volume, files, n, &content);
                    commits.fetch_add(1, Ordering::Relaxed);
                    n += 1;
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    let seconds = begun.elapsed().as_secs_f64();
    let [groups, bytes, nanos] = figures.map(|f| f.load(Ordering::Relaxed));
    let (groups, bytes) = (groups - before[0], bytes - before[1]);
    Groups { commits: commits.into_inner(), groups, bytes, nanos: nanos - before[2], seconds }
}

/// Seconds of one durable write of so many blocks.
fn raw(dev: &FileDevice, at: &mut u64, blocks: u64, time: Duration) -> f64 {
    let mut bytes = Aligned::new(blocks as usize * BLOCK);
    bytes.fill(7);
    let (begun, mut writes) = (Instant::now(), 0u32);
    while begun.elapsed() < time {
        if *at + blocks > dev.blocks() {
            *at = 0;
        }
        dev.write_durable(*at, &bytes).unwrap();
        *at += blocks;
        writes += 1;
    }
    begun.elapsed().as_secs_f64() / f64::from(writes)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, beside, clients, milliseconds, rounds] = &args[..] else {
        panic!("bench_lfs IMAGE RAW CLIENTS MILLISECONDS ROUNDS");
    };
    let (clients, rounds): (usize, u64) = (clients.parse().unwrap(), rounds.parse().unwrap());
    let time = Duration::from_millis(milliseconds.parse().unwrap());
    let [writes, bytes, nanos] = [0; 3].map(AtomicU64::new);
    let dev = Arc::new(Counting { inner: device(image), writes, bytes, nanos });
    let beside = device(beside);
    let label = "bench".to_owned();
    let format = Format {
        segment_blocks: 256,
        cluster: 1,
        id: [8; 16],
        label,
        owner: (0, 0),
        compression: Default::default(),
    };
    mkfs(dev.clone(), &format, clock()).unwrap();
    let volume = Volume::open(dev.clone(), clock(), 1, Limits::default()).unwrap();
    let files: Vec<Vec<Ino>> = (0..clients * 4)
        .map(|n| {
            volume.plain(|ops| {
                let f =
                    ops.create(ROOT, format!("{n}").as_bytes(), &Shape::new(Kind::File, 0o600))?;
                ops.write(f, 0, &vec![1; PAGES as usize * BLOCK])?;
                Ok(f)
            })
        })
        .collect::<Result<Vec<_>, _>>()
        .unwrap()
        .chunks(4)
        .map(<[Ino]>::to_vec)
        .collect();
    volume.checkpoint().unwrap();
    let mut at = 0;
    let mut blocks = 5;
    ours(&volume, &dev, &files, time / 4);
    for round in 0..rounds {
        let before = raw(&beside, &mut at, blocks, time / 2);
        let done = ours(&volume, &dev, &files, time);
        blocks = (done.bytes as f64 / done.groups as f64 / BLOCK as f64).round() as u64;
        let after = raw(&beside, &mut at, blocks, time / 2);
        // The first round's raw write before was of a guessed length.
        let raw = if round == 0 { after } else { (before + after) / 2.0 };
        println!(
            "{:.0} {} {:.0} {:.1} {:.1} {:.1}",
            done.commits as f64 / done.seconds,
            done.groups,
            done.bytes as f64 / done.groups as f64,
            done.seconds / done.groups as f64 * 1e6,
            done.nanos as f64 / done.groups as f64 / 1e3,
            raw * 1e6
        );
    }
    // What was committed is there.
    let read = volume.look(|ops| ops.read(files[0][0], 0, PAGES as usize * BLOCK)).unwrap();
    assert!(read.iter().all(|b| *b == 1), "client 0 writes ones");
    volume.close().unwrap();
}
