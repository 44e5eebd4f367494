//! TPC-B by the store's own interface: the third paper's embedded transaction manager.
//!
//! The commands, and what they print, are those of `bench/tpcb/main.c`:
//! `load|scan|check IMAGE ACCOUNTS CACHE`, `run IMAGE ACCOUNTS CACHE CLIENTS SECONDS SEED [N]`.
//! The B-trees have pages of the store's size, and their bytes are those of
//! `bench/tpcb/mounted.c`.  As in the paper (4.2) a transaction locks the pages that it changes,
//! until it is committed; it waits for the disk without its locks, since a commit that has read
//! what this one wrote is durable later.  All take locks in one order: nobody waits in a circle.
//! Pages are kept in a cache of CACHE bytes, as the paper's are in the kernel's.

#![allow(clippy::unwrap_used)]

mod common;

use common::clock;
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};
use systx_base::Kind;
use systx_lfs::device::{Device, FileDevice};
use systx_lfs::format::{BLOCK, Ino, ROOT};
use systx_lfs::{CleanerThread, CostBenefit, Format, Limits, Plan, Shape, Txn, Volume, mkfs};

const BRANCHES: u64 = 16;
const TELLERS: u64 = 160;
/// Bytes before the records of a page.
const HEAD: usize = 16;
const HISTORY: usize = 32;
/// Names, and bytes of a record: one teller or branch fills a page, since locks are of pages.
const TREES: [(&str, usize); 3] = [("accounts", 100), ("tellers", 4000), ("branches", 4000)];

type Page = Arc<Vec<u8>>;
type At = (Ino, u64);

fn get(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

fn put(page: &mut [u8], at: usize, value: u64) {
    page[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// The pages of a B-tree with the keys from 0 on: page 0 names the root, leaves, then the levels
/// above them.
fn pages(keys: u64, record: usize) -> impl Iterator<Item = Vec<u8>> {
    let (per, fan) = (((BLOCK - HEAD) / record) as u64, ((BLOCK - HEAD) / 16) as u64);
    // Pages of each level, the leaves first; and the keys below an entry of each.
    let mut levels = vec![(keys.div_ceil(per), 1, per)];
    while let Some((n, below, each)) = levels.last().copied().filter(|(n, ..)| *n > 1) {
        levels.push((n.div_ceil(fan), below * each, fan));
    }
    let all: u64 = levels.iter().map(|(n, ..)| n).sum();
    let mut top = vec![0; BLOCK];
    for (at, value) in [(0, all), (8, levels.len() as u64 - 1), (16, record as u64)] {
        put(&mut top, at, value);
    }
    let mut first_below = 0;
    let mut first = 1;
    let below = (0..).zip(levels).flat_map(move |(level, (n, below, each))| {
        let from = first_below;
        (first_below, first) = (first, first + n);
        (0..n).map(move |page| {
            let mut bytes = vec![0; BLOCK];
            let entries = (page * each..(page + 1) * each).take_while(|e| e * below < keys);
            let mut count = 0;
            for (i, entry) in (0..).zip(entries) {
                let at = HEAD + i * if level == 0 { record } else { 16 };
                put(&mut bytes, at, entry * below);
                if level > 0 {
                    put(&mut bytes, at + 8, from + entry);
                }
                count += 1;
            }
            put(&mut bytes, 0, count);
            bytes
        })
    });
    std::iter::once(top).chain(below)
}

/// Pages that were read or written last, in the order in which they came.
#[derive(Default)]
struct Cache {
    pages: HashMap<At, (Page, bool)>,
    order: VecDeque<At>,
    most: usize,
}

impl Cache {
    fn get(&mut self, at: At) -> Option<Page> {
        let (page, used) = self.pages.get_mut(&at)?;
        *used = true;
        Some(page.clone())
    }

    fn put(&mut self, at: At, page: Page) {
        if self.pages.insert(at, (page, true)).is_none() {
            self.order.push_back(at);
        }
        while self.order.len() > self.most
            && let Some(first) = self.order.pop_front()
        {
            let was_used = self.pages.get_mut(&first).is_some_and(|p| std::mem::take(&mut p.1));
            match was_used {
                true => self.order.push_back(first),
                false => drop(self.pages.remove(&first)),
            }
        }
    }
}

/// The volume with what is above it: the cache, and the locks of pages.
struct Bank {
    volume: Arc<Volume>,
    cleaner: Option<CleanerThread>,
    trees: [Ino; 3],
    cache: Mutex<Cache>,
    locked: Mutex<HashSet<At>>,
    unlocked: Condvar,
}

impl Bank {
    fn open(image: &str, cache: usize, cleans: bool) -> Bank {
        let device = Arc::new(FileDevice::open(Path::new(image)).unwrap());
        let volume = Volume::open(device, clock(), 1, Limits::default()).unwrap();
        let volume = Arc::new(volume);
        let find = |name: &str| volume.look(|ops| ops.lookup(ROOT, name.as_bytes())).unwrap().ino;
        let trees = TREES.map(|(name, _)| find(name));
        let (plan, policy) = (Plan::default(), Arc::new(CostBenefit));
        let start = || CleanerThread::start(volume.clone(), plan, policy).unwrap();
        let cleaner = cleans.then(start);
        let (locked, unlocked) = Default::default();
        let cache = Mutex::new(Cache { most: cache / BLOCK, ..Cache::default() });
        Bank { volume, cleaner, trees, cache, locked, unlocked }
    }

    fn close(mut self) {
        self.cleaner.take();
        Arc::into_inner(self.volume).unwrap().close().unwrap();
    }

    fn lock(&self, at: At) {
        let mut locked = self.locked.lock().unwrap();
        while !locked.insert(at) {
            locked = self.unlocked.wait(locked).unwrap();
        }
    }

    fn page(&self, at: At) -> Page {
        if let Some(page) = self.cache.lock().unwrap().get(at) {
            return page;
        }
        let read = self.volume.look(|ops| ops.read(at.0, at.1 * BLOCK as u64, BLOCK));
        let page = Arc::new(read.unwrap());
        self.cache.lock().unwrap().put(at, page.clone());
        page
    }

    /// The leaf that has a key.
    fn leaf(&self, tree: Ino, key: u64) -> At {
        let top = self.page((tree, 0));
        let mut at = get(&top, 0);
        for _ in 0..get(&top, 8) {
            let page = self.page((tree, at));
            let (mut low, mut high) = (0, get(&page, 0) as usize);
            while high - low > 1 {
                let middle = usize::midpoint(low, high);
                match get(&page, HEAD + middle * 16) <= key {
                    true => low = middle,
                    false => high = middle,
                }
            }
            at = get(&page, HEAD + low * 16 + 8);
        }
        (tree, at)
    }

    /// Adds to a balance.  The page is locked from here on.
    fn add(&self, n: usize, key: u64, delta: i64) -> (At, Page) {
        let at = self.leaf(self.trees[n], key);
        self.lock(at);
        let mut page = self.page(at).to_vec();
        let of = |i: usize| HEAD + i * TREES[n].1;
        let i = (0..get(&page, 0) as usize).find(|i| get(&page, of(*i)) == key).unwrap();
        let balance = get(&page, of(i) + 8).wrapping_add_signed(delta);
        put(&mut page, of(i) + 8, balance);
        (at, Arc::new(page))
    }

    /// One transaction, durable when this returns.
    fn transact(&self, client: &mut Client, account: u64, teller: u64, delta: i64) {
        let branch = teller / 10;
        let mut changed = vec![
            self.add(0, account, delta),
            self.add(1, teller, delta),
            self.add(2, branch, delta),
        ];
        changed.push((client.next(account, teller, delta), Arc::new(client.page.clone())));
        let mut txn = Txn::new();
        self.volume
            .within(&mut txn, |ops| {
                let mut each = changed.iter();
                each.try_for_each(|((ino, n), page)| ops.write(*ino, n * BLOCK as u64, page))
            })
            .unwrap();
        let ticket = self.volume.commit_relaxed(txn).unwrap();
        let locks: Vec<At> = changed[..3].iter().map(|(at, _)| *at).collect();
        let mut cache = self.cache.lock().unwrap();
        changed.into_iter().for_each(|(at, page)| cache.put(at, page));
        drop(cache);
        let mut locked = self.locked.lock().unwrap();
        locked.retain(|at| !locks.contains(at));
        self.unlocked.notify_all();
        drop(locked);
        self.volume.durable(ticket).unwrap();
    }

    fn sum(&self, n: usize) -> (u64, i64) {
        let (tree, record) = (self.trees[n], TREES[n].1);
        let (mut records, mut sum) = (0, 0i64);
        let mut first = 1;
        loop {
            let many = self.volume.look(|ops| ops.read(tree, first * BLOCK as u64, BLOCK * 32));
            for page in many.unwrap().chunks_exact(BLOCK) {
                // Leaves come first and have their keys in order.
                if get(page, HEAD) != records {
                    return (records, sum);
                }
                for i in 0..get(page, 0) as usize {
                    sum += get(page, HEAD + i * record + 8).cast_signed();
                    records += 1;
                }
                first += 1;
            }
        }
    }

    fn history(&self) -> (u64, i64) {
        let (mut records, mut sum) = (0, 0);
        for k in 0..64 {
            let name = format!("history-{k}");
            let Ok(link) = self.volume.look(|ops| ops.lookup(ROOT, name.as_bytes())) else {
                continue;
            };
            let size = self.volume.look(|ops| ops.attrs(link.ino)).unwrap().size;
            let bytes = self.volume.look(|ops| ops.read(link.ino, 0, size as usize)).unwrap();
            for record in bytes.chunks_exact(HISTORY).filter(|r| get(r, 0) > 0) {
                records += 1;
                sum += get(record, 24).cast_signed();
            }
        }
        (records, sum)
    }
}

/// A client has a part of the history for itself, whose last page it remembers.
struct Client {
    history: Ino,
    page: Vec<u8>,
    records: u64,
}

impl Client {
    fn open(bank: &Bank, k: usize) -> Client {
        let name = format!("history-{k}");
        let shape = Shape::new(Kind::File, 0o600);
        let history = bank
            .volume
            .plain(|ops| match ops.lookup(ROOT, name.as_bytes()) {
                Ok(link) => Ok(link.ino),
                Err(_) => ops.create(ROOT, name.as_bytes(), &shape),
            })
            .unwrap();
        // It begins a page: what is after the last record of a run stays empty.
        let size = bank.volume.look(|ops| ops.attrs(history)).unwrap().size;
        Client { history, page: vec![0; BLOCK], records: size / HISTORY as u64 }
    }

    /// Adds a record, and says which page it is in.
    fn next(&mut self, account: u64, teller: u64, delta: i64) -> At {
        let at = self.records as usize * HISTORY % BLOCK;
        if at == 0 {
            self.page.fill(0);
        }
        put(&mut self.page, at, self.records + 1);
        put(&mut self.page, at + 8, account);
        put(&mut self.page, at + 16, teller | (teller / 10) << 32);
        put(&mut self.page, at + 24, delta.cast_unsigned());
        self.records += 1;
        (self.history, (self.records - 1) * HISTORY as u64 / BLOCK as u64)
    }
}

fn load(image: &str, accounts: u64) {
    let dev: Arc<dyn Device> = Arc::new(FileDevice::open(Path::new(image)).unwrap());
    let label = "tpcb".to_owned();
    let segment_blocks = systx_lfs::fitting(dev.blocks(), 1).unwrap().segment_blocks;
    mkfs(
        dev.clone(),
        &Format {
            segment_blocks,
            cluster: 1,
            id: [8; 16],
            label,
            owner: (0, 0),
            compression: Default::default(),
        },
        clock(),
    )
    .unwrap();
    let volume = Volume::open(dev, clock(), 1, Limits::default()).unwrap();
    for ((name, record), keys) in TREES.into_iter().zip([accounts, TELLERS, BRANCHES]) {
        let shape = Shape::new(Kind::File, 0o600);
        let file = volume.plain(|ops| ops.create(ROOT, name.as_bytes(), &shape)).unwrap();
        let mut at = 0;
        let mut gathered = Vec::new();
        let mut all = pages(keys, record).peekable();
        while let Some(page) = all.next() {
            gathered.extend(page);
            if gathered.len() == BLOCK * 256 || all.peek().is_none() {
                volume.plain(|ops| ops.write(file, at, &gathered)).unwrap();
                at += gathered.len() as u64;
                gathered.clear();
            }
        }
    }
    volume.checkpoint().unwrap();
    volume.close().unwrap();
}

fn run(bank: &Bank, accounts: u64, args: &[String]) {
    let clients: usize = args[0].parse().unwrap();
    let length = args[1].parse::<f64>().unwrap() / 1.25;
    let seed: u64 = args[2].parse().unwrap();
    let most: Option<u64> = args.get(3).map(|n| n.parse().unwrap());
    let [all, counted] = [0; 2].map(AtomicU64::new);
    let ready = Barrier::new(clients);
    let begun = Instant::now();
    std::thread::scope(|s| {
        for k in 0..clients {
            let (ready, all, counted) = (&ready, &all, &counted);
            s.spawn(move || {
                let mut client = Client::open(bank, k);
                ready.wait();
                let start = Instant::now();
                let at = |part: f64| Duration::from_secs_f64(length * part);
                let mut state = seed + 1_000_003 * k as u64;
                for n in 0.. {
                    if most.map_or(start.elapsed() >= at(1.25), |m| n >= m / clients as u64) {
                        break;
                    }
                    let mut draw = || {
                        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                        systx_base::mix(state)
                    };
                    let (teller, account) = (draw() % TELLERS, draw() % accounts);
                    let delta = (draw() % 1_999_999).cast_signed() - 999_999;
                    bank.transact(&mut client, account, teller, delta);
                    let end = start.elapsed();
                    all.fetch_add(1, Ordering::Relaxed);
                    if most.is_some() || end >= at(0.25) && end < at(1.25) {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let took = if most.is_some() { begun.elapsed().as_secs_f64() } else { length };
    println!("{} {took:.6} {} 0", counted.into_inner(), all.into_inner());
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, image, accounts, cache, rest @ ..] = &args[..] else {
        panic!("bench_tpcb load|scan|check|run IMAGE ACCOUNTS CACHE [CLIENTS SECONDS SEED [N]]");
    };
    let (accounts, cache): (u64, usize) = (accounts.parse().unwrap(), cache.parse().unwrap());
    if what == "load" {
        return load(image, accounts);
    }
    let bank = Bank::open(image, cache, what == "run");
    match what.as_str() {
        "run" => run(&bank, accounts, rest),
        "scan" => {
            let begun = Instant::now();
            let (records, _) = bank.sum(0);
            assert_eq!(records, accounts, "all accounts are there");
            println!("{records} {:.6}", begun.elapsed().as_secs_f64());
        }
        _ => {
            let (records, sum) = bank.history();
            let of = [0, 1, 2].map(|n| bank.sum(n));
            assert_eq!(of, [(accounts, sum), (TELLERS, sum), (BRANCHES, sum)], "sums");
            println!("{records}");
        }
    }
    bank.close();
}
