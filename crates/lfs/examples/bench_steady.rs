//! What a volume writes for each byte of new data once it is full, and how fast that goes.
//!
//! `bench_steady IMAGE POLICY PERCENT CLIENTS NEW`: makes a volume in the image, fills it so far
//! with files, and overwrites pages drawn at random, four in a transaction, until NEW times the
//! volume has been written; the second half of that is measured.  Prints commits per second,
//! bytes to the medium for each byte of new data while clients work, the same with what is written
//! while they pause, bytes that the cleaner moved for each of these, the part of the segments that
//! is free at the end, and the longest commit in milliseconds.
//!
//! Policies: `greedy` and `cost-benefit` are those of a cleaner's thread, `active` is paid by those
//! who commit and has no thread, and `idle` is a thread that is there while nobody commits: clients
//! pause after each twentieth of the volume until it has nothing to do.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Counting, clock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use systx_base::Kind;
use systx_lfs::device::{Device, FileDevice};
use systx_lfs::format::{BLOCK, Ino, ROOT};
use systx_lfs::{
    CleanerThread, CostBenefit, Figures, Format, Greedy, Limits, Plan, Policy, Shape, Txn, Volume,
    mkfs,
};

/// Pages of each file.
const PAGES: u64 = 1024;
/// Pages of a transaction.
const EACH: u64 = 4;

struct Bench {
    volume: Arc<Volume>,
    dev: Arc<Counting>,
    files: Vec<Ino>,
    policy: String,
    clients: u64,
}

/// What a part of the work took.
#[derive(Default)]
struct Took {
    commits: u64,
    seconds: f64,
    /// The longest commit, in microseconds.
    longest: u64,
    /// Written while clients work, and while they pause.
    busy: u64,
    paused: u64,
    moved: u64,
}

impl Bench {
    fn open(image: &str, policy: &str, percent: u64, clients: u64) -> Bench {
        let inner = FileDevice::open(Path::new(image)).unwrap();
        let dev = Arc::new(Counting { inner, bytes: AtomicU64::new(0) });
        let segment_blocks = systx_lfs::fitting(dev.blocks(), 1).unwrap().segment_blocks;
        let label = "bench".to_owned();
        let format = Format {
            segment_blocks,
            cluster: 1,
            id: [8; 16],
            label,
            owner: (0, 0),
            compression: Default::default(),
        };
        mkfs(dev.clone(), &format, clock()).unwrap();
        let pay = if policy == "active" { Limits::default().pay_below_percent } else { 0 };
        let limits = Limits { pay_below_percent: pay, ..Limits::default() };
        let volume = Arc::new(Volume::open(dev.clone(), clock(), 1, limits).unwrap());
        let mut files = Vec::new();
        while volume.space().used * 100 < volume.space().total * percent {
            let name = format!("{}", files.len());
            let made = volume.plain(|ops| {
                let f = ops.create(ROOT, name.as_bytes(), &Shape::new(Kind::File, 0o600))?;
                ops.write(f, 0, &vec![1; PAGES as usize * BLOCK])?;
                Ok(f)
            });
            files.push(made.unwrap());
        }
        volume.checkpoint().unwrap();
        Bench { volume, dev, files, policy: policy.to_owned(), clients }
    }

    fn cleaner(&self) -> Option<CleanerThread> {
        let policy: Arc<dyn Policy> = match self.policy.as_str() {
            "greedy" => Arc::new(Greedy),
            "cost-benefit" | "idle" => Arc::new(CostBenefit),
            "active" => return None,
            other => panic!("no policy {other:?}"),
        };
        Some(CleanerThread::start(self.volume.clone(), Plan::default(), policy).unwrap())
    }

    fn commit(&self, n: u64) {
        let mut txn = Txn::new();
        let content = vec![n as u8; BLOCK];
        let file = |n: u64| self.files[systx_base::mix(n) as usize % self.files.len()];
        self.volume
            .within(&mut txn, |ops| {
                for i in n * EACH..(n + 1) * EACH {
                    let page = systx_base::mix(!i) % PAGES;
                    ops.write(file(i), page * BLOCK as u64, &content)?;
                }
                Ok(())
            })
            .unwrap();
        self.volume.commit(txn).unwrap();
    }

    /// So many commits, after so many others, by all clients.
    fn burst(&self, from: u64, commits: u64, took: &mut Took) {
        let (begun, before) = (Instant::now(), self.dev.bytes.load(Ordering::Relaxed));
        let (next, longest) = (AtomicU64::new(from), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..self.clients {
                s.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= from + commits {
                            break;
                        }
                        let begun = Instant::now();
                        self.commit(n);
                        let took = begun.elapsed().as_micros() as u64;
                        longest.fetch_max(took, Ordering::Relaxed);
                    }
                });
            }
        });
        took.commits += commits;
        took.longest = took.longest.max(longest.into_inner());
        took.seconds += begun.elapsed().as_secs_f64();
        took.busy += self.dev.bytes.load(Ordering::Relaxed) - before;
    }

    fn pause(&self, took: &mut Took) {
        let before = self.dev.bytes.load(Ordering::Relaxed);
        let cleaner = self.cleaner().unwrap();
        std::thread::sleep(Plan::default().idle + Duration::from_millis(10));
        cleaner.settled();
        took.moved += moved(&cleaner.stop());
        took.paused += self.dev.bytes.load(Ordering::Relaxed) - before;
    }

    fn work(&self, from: u64, commits: u64) -> Took {
        let mut took = Took::default();
        if self.policy == "idle" {
            let each = self.dev.blocks() / 20 / EACH;
            for at in (from..from + commits).step_by(each as usize) {
                self.burst(at, each.min(from + commits - at), &mut took);
                self.pause(&mut took);
            }
            return took;
        }
        let cleaner = self.cleaner();
        self.burst(from, commits, &mut took);
        took.moved = cleaner.map_or(0, |cleaner| moved(&cleaner.stop()));
        took
    }
}

/// Bytes.
fn moved(figures: &Figures) -> u64 {
    assert!(figures.failed.is_none(), "the cleaner goes on");
    (figures.moved + figures.coalesced_blocks) * BLOCK as u64
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, policy, percent, clients, new] = &args[..] else {
        panic!("bench_steady IMAGE POLICY PERCENT CLIENTS NEW");
    };
    let (percent, clients) = (percent.parse().unwrap(), clients.parse().unwrap());
    let bench = Bench::open(image, policy, percent, clients);
    let half = (bench.dev.blocks() as f64 * new.parse::<f64>().unwrap() / 2.0) as u64 / EACH;
    bench.work(0, half);
    let took = bench.work(half, half);
    let data = (took.commits * EACH * BLOCK as u64) as f64;
    let space = bench.volume.space();
    let (_, geometry) = bench.volume.identity();
    println!(
        "{:.0} {:.3} {:.3} {:.3} {:.3} {:.1}",
        took.commits as f64 / took.seconds,
        took.busy as f64 / data,
        (took.busy + took.paused) as f64 / data,
        took.moved as f64 / data,
        f64::from(space.free_segments) / f64::from(geometry.segments),
        took.longest as f64 / 1000.0
    );
    // All pages are there, whatever was moved.
    for file in &bench.files {
        let read = bench.volume.look(|ops| ops.read(*file, 0, PAGES as usize * BLOCK)).unwrap();
        assert_eq!(read.len(), PAGES as usize * BLOCK);
        assert!(read.chunks_exact(BLOCK).all(|page| page.iter().all(|b| *b == page[0])));
    }
    Arc::into_inner(bench.volume).unwrap().close().unwrap();
}
