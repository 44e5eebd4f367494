//! What is cold is compressed: it takes less, is read as before, and nobody notices.

#![allow(clippy::unwrap_used)]

mod common;

use common::{BLOCKS, SEGMENT, bytes, clock, commit, file, fresh, fresh_packing, open, some, tree};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use systx_base::sync::{Mutex, rank};
use systx_lfs::device::{Device, SimDisk};
use systx_lfs::format::{Ino, ROOT};
use systx_lfs::fsck::{Check, check};
use systx_lfs::{CleanerThread, Error, Greedy, Limits, Packed, Plan, Tended, Tending, Volume};

const PAGE: u64 = 4096;
/// Of each file.
const PAGES: u64 = 30;

fn write(volume: &Volume, name: &str, content: &[u8]) -> Ino {
    let mut made = 0;
    commit(volume, |ops| {
        made = ops.create(ROOT, name.as_bytes(), &file())?;
        ops.write(made, 0, content)
    })
    .unwrap();
    made
}

/// Makes all of it cold, and packs it.
fn pack(volume: &Volume) -> Packed {
    volume.checkpoint().unwrap();
    let packed = volume.pack().unwrap();
    volume.checkpoint().unwrap();
    packed
}

/// A volume with files in packs, and what it uses.
fn packed(files: u64) -> (Arc<SimDisk>, Volume, Vec<Ino>) {
    let (disk, volume) = fresh_packing(BLOCKS);
    let content = |n: u64| some(2 * n, (PAGES * PAGE) as usize);
    let files = (0..files).map(|n| write(&volume, &format!("f{n}"), &content(n))).collect();
    pack(&volume);
    (disk, volume, files)
}

fn checked(disk: &Arc<SimDisk>) -> Check {
    check(disk.clone(), clock()).unwrap()
}

fn used(volume: &Volume) -> u64 {
    volume.space().used
}

#[test]
fn what_is_cold_takes_less_and_is_as_it_was() {
    let (disk, volume) = fresh_packing(BLOCKS);
    for n in 0..4 {
        write(&volume, &format!("f{n}"), &some(2 * n, (PAGES * PAGE) as usize));
    }
    let (before, full) = (tree(&volume), used(&volume));
    let done = pack(&volume);
    assert!(done.pages > 3 * PAGES && done.blocks * 4 < done.pages, "{done:?}");
    assert!(used(&volume) + 3 * PAGES * 2 / 3 < full, "{} of {full}", used(&volume));
    assert_eq!(tree(&volume), before);
    // What was in the segment that was being written is tried, too; then there is nothing more.
    while pack(&volume) != Packed::default() {}
    assert_eq!(tree(&volume), before);
    drop(volume);
    assert_eq!(checked(&disk).findings, []);
    let volume = open(disk.clone()).unwrap();
    assert_eq!(tree(&volume), before);
    volume.clean(&Greedy, u32::MAX).unwrap();
    assert_eq!(tree(&volume), before);
    drop(volume);
    assert_eq!(checked(&disk).findings, []);
}

#[test]
fn without_the_option_and_where_nothing_is_gained_all_stays() {
    for (seed, (disk, volume)) in [(2, fresh(BLOCKS)), (3, fresh_packing(BLOCKS))] {
        write(&volume, "f", &some(seed, (PAGES * PAGE) as usize));
        let before = used(&volume);
        assert_eq!(pack(&volume), Packed::default());
        assert!(used(&volume) <= before);
        drop(volume);
        assert_eq!(checked(&disk).findings, []);
    }
}

/// Each of these changes takes pages out of packs, one by one or many; usage is right after each.
#[test]
fn pages_leave_their_packs() {
    let (disk, volume, files) = packed(3);
    let (f, g, h) = (files[0], files[1], files[2]);
    let right = |what: &str| {
        volume.checkpoint().unwrap();
        let before = tree(&volume);
        assert_eq!(checked(&disk).findings, [], "{what}");
        assert_eq!(tree(&open(Arc::new(disk.copy())).unwrap()), before, "{what}");
    };
    for page in [0, 5, 6, 7, 29] {
        commit(&volume, |ops| ops.write(f, page * PAGE, &bytes(page, 4096))).unwrap();
        right("overwritten");
    }
    commit(&volume, |ops| ops.write(f, 10 * PAGE + 17, &bytes(9, 9000))).unwrap();
    right("overwritten in part");
    commit(&volume, |ops| ops.punch(g, 3 * PAGE, 9 * PAGE)).unwrap();
    right("punched");
    volume
        .plain(|ops| {
            let size = systx_lfs::SetAttrs { size: Some(20 * PAGE + 5), ..Default::default() };
            ops.set_attrs(g, &size)
        })
        .unwrap();
    right("cut");
    for page in 0..PAGES {
        commit(&volume, |ops| ops.write(f, page * PAGE, &bytes(page, 4096))).unwrap();
    }
    right("all overwritten");
    volume.plain(|ops| ops.unlink(ROOT, b"f2").map(drop)).unwrap();
    right("removed");
    assert!(volume.look(|ops| ops.attrs(h)).is_err());
}

/// A page goes to another file and stays in its pack: to the same place, and to another one.
#[test]
fn pages_that_are_taken_stay_in_their_packs() {
    let (disk, volume, files) = packed(2);
    let (f, g) = (files[0], files[1]);
    let to = write(&volume, "to", &[]);
    let of = |ino, page: u64| volume.look(|ops| ops.read(ino, page * PAGE, 4096)).unwrap();
    let expected: Vec<_> = (0..PAGES).map(|page| of(f, page)).collect();
    let before = volume.space().used;
    for (n, page) in (0..PAGES).rev().enumerate() {
        commit(&volume, |ops| {
            assert!(ops.take((f, page), (to, page + 100 * (page % 2)))?);
            let size = Some(PAGES * PAGE + 100 * PAGE);
            ops.set_attrs(to, &systx_lfs::SetAttrs { size, ..Default::default() })
        })
        .unwrap();
        if n % 7 == 0 {
            volume.checkpoint().unwrap();
            assert_eq!(checked(&disk).findings, [], "{page}");
        }
    }
    // The cleaner finds them, also where only the taker knows of them.
    volume.checkpoint().unwrap();
    volume.plain(|ops| ops.unlink(ROOT, b"f1").map(drop)).unwrap();
    volume.clean(&Greedy, u32::MAX).unwrap();
    for page in 0..PAGES {
        assert_eq!(of(to, page + 100 * (page % 2)), expected[page as usize]);
    }
    assert!(volume.space().used <= before + 8, "{} of {before}", volume.space().used);
    let _ = g;
    drop(volume);
    assert_eq!(checked(&disk).findings, []);
}

/// Moving what is left of packs never takes more than it did.
#[test]
fn cleaning_never_makes_it_more() {
    for left in [1, 2, 4, 9, 20] {
        let (disk, volume, files) = packed(6);
        for f in &files {
            volume.plain(|ops| ops.punch(*f, left * PAGE, (PAGES - left) * PAGE)).unwrap();
        }
        volume.checkpoint().unwrap();
        let (before, full) = (tree(&volume), used(&volume));
        volume.clean(&Greedy, u32::MAX).unwrap();
        volume.checkpoint().unwrap();
        assert!(used(&volume) <= full + 2, "{left}: {} of {full}", used(&volume));
        assert_eq!(tree(&volume), before, "{left}");
        drop(volume);
        assert_eq!(checked(&disk).findings, [], "{left}");
        assert_eq!(tree(&open(disk).unwrap()), before, "{left}");
    }
}

/// Packs that lie in as many segments are gathered.
#[test]
fn packs_do_not_keep_segments_that_are_mostly_dead() {
    let (disk, volume) = fresh_packing(BLOCKS);
    for n in 0..10u64 {
        write(&volume, &format!("f{n}"), &some(2 * n, (PAGES * PAGE) as usize));
        pack(&volume);
    }
    let (before, had) = (tree(&volume), volume.space().free_segments);
    volume.clean(&Greedy, u32::MAX).unwrap();
    let has = volume.space().free_segments;
    assert!(40 - had > 8 && 40 - has <= 6, "{had} segments were free, {has} are");
    assert_eq!(tree(&volume), before);
    drop(volume);
    assert_eq!(checked(&disk).findings, []);
}

/// A device of which one write waits until somebody lets it, when it is told to.
struct Gate {
    disk: Arc<SimDisk>,
    closed: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Gate {
    fn wait(&self) {
        let closed = self.closed.lock().take();
        if let Some((here, go)) = closed {
            here.send(()).unwrap();
            go.recv().unwrap();
        }
    }
}

impl Device for Gate {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.disk.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.wait();
        self.disk.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.wait();
        self.disk.write_durable(at, from)
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

/// While the group with a pack is on its way to the medium its pages are read, overwritten, punched
/// and removed, and all of that counts.  (A commit that takes pages waits for the write.)
#[test]
fn pages_are_used_while_their_pack_is_written() {
    let (disk, volume) = fresh_packing(9 + 100 * u64::from(SEGMENT));
    drop(volume);
    let gate = Arc::new(Gate { disk: disk.clone(), closed: Mutex::new(rank::LEAF, None) });
    let limits = Limits::default();
    let volume = Arc::new(Volume::open(gate.clone(), clock(), 3, limits).unwrap());
    let content = |n: u64| some(2 * n, (PAGES * PAGE) as usize);
    let files: Vec<Ino> = (0..3).map(|n| write(&volume, &format!("f{n}"), &content(n))).collect();
    volume.checkpoint().unwrap();
    let (here, arrived) = channel();
    let (go, wait) = channel();
    *gate.closed.lock() = Some((here, wait));
    let packing = std::thread::spawn({
        let volume = volume.clone();
        move || volume.pack().unwrap()
    });
    arrived.recv().unwrap();
    for (n, f) in (0..).zip(&files) {
        let read = volume.look(|ops| ops.read(*f, 0, (PAGES * PAGE) as usize)).unwrap();
        assert_eq!(read, content(n), "{n}");
    }
    volume
        .plain(|ops| {
            ops.write(files[0], 2 * PAGE, &bytes(1, 4096))?;
            ops.punch(files[1], 8 * PAGE, 2 * PAGE)?;
            ops.unlink(ROOT, b"f2").map(drop)
        })
        .unwrap();
    let now = tree(&volume);
    go.send(()).unwrap();
    assert!(packing.join().unwrap().pages > 0);
    assert_eq!(tree(&volume), now);
    volume.sync().unwrap();
    assert_eq!(tree(&open(Arc::new(disk.copy())).unwrap()), now, "by the log");
    volume.checkpoint().unwrap();
    assert_eq!(checked(&disk).findings, []);
    assert_eq!(tree(&open(Arc::new(disk.copy())).unwrap()), now, "by the checkpoint");
}

#[test]
fn a_damaged_pack_is_told_by_name_and_stays() {
    let (disk, volume, files) = packed(1);
    let before = used(&volume);
    drop(volume);
    // All that a file has is in few blocks: find one whose damage costs several pages.
    let costs = |at: u64| {
        let damaged = disk.copy();
        damaged.damage(at, 20);
        check(Arc::new(damaged), clock()).unwrap().findings.len()
    };
    let at = (8..BLOCKS - 1).find(|at| costs(*at) > 5).expect("a pack");
    let damaged = Arc::new(disk.copy());
    damaged.damage(at, 20);
    let found = check(damaged.clone(), clock()).unwrap().findings;
    assert!(found.iter().all(|f| f.to_string().contains("of inode")), "{found:?}");
    let volume = open(damaged.clone()).unwrap();
    let read = volume.look(|ops| ops.read(files[0], 0, (PAGES * PAGE) as usize));
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    volume.clean(&Greedy, u32::MAX).unwrap();
    assert!(volume.space().used + PAGES >= before);
}

#[test]
fn snapshots_moments_and_streams_have_what_is_packed() {
    let (disk, volume, files) = packed(2);
    let all = tree(&volume);
    volume.snapshot("packed").unwrap();
    let volume = Arc::new(volume);
    let moment = volume.moment();
    for f in &files {
        commit(&volume, |ops| ops.write(*f, 0, &bytes(3, (PAGES * PAGE) as usize))).unwrap();
    }
    assert_eq!(moment.look(common::dump).unwrap(), all);
    drop(moment);
    volume.checkpoint().unwrap();
    volume.clean(&Greedy, u32::MAX).unwrap();
    assert_eq!(volume.at("packed").unwrap().look(common::dump).unwrap(), all);
    let mut stream = Vec::new();
    systx_lfs::send(&volume, "packed", None, &mut stream).unwrap();
    drop(volume);
    assert_eq!(checked(&disk).findings, []);
    // Into one that does not compress: it is the content that is sent.
    let (_, copy) = fresh(BLOCKS);
    systx_lfs::receive(&copy, &mut stream.as_slice()).unwrap();
    let plain = |dump: common::Dump| -> Vec<_> {
        dump.into_iter().map(|(path, seen)| (path, seen.content)).collect()
    };
    assert_eq!(plain(tree(&copy)), plain(all));
}

/// The cleaner's thread does it when nobody commits, and rests when nothing is left to try.
#[test]
fn in_idle_times() {
    let (disk, volume) = fresh_packing(9 + 100 * u64::from(SEGMENT));
    let volume = Arc::new(volume);
    for n in 0..6 {
        write(&volume, &format!("f{n}"), &some(n, (PAGES * PAGE) as usize));
    }
    volume.checkpoint().unwrap();
    let before = tree(&volume);
    let thread = CleanerThread::start(volume.clone(), Plan::default(), Arc::new(Greedy)).unwrap();
    thread.settled();
    let figures = thread.stop();
    // Every second file becomes smaller.
    assert!(figures.packed > 2 * PAGES && figures.packed <= 3 * PAGES, "{figures:?}");
    assert!(figures.packed_blocks * 4 < figures.packed, "{figures:?}");
    assert_eq!(tree(&volume), before);
    drop(volume);
    assert_eq!(checked(&disk).findings, []);
}

/// Counts how often each block is read.
struct Reads {
    disk: Arc<SimDisk>,
    of: Mutex<BTreeMap<u64, u32>>,
}

impl Device for Reads {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        for block in at..at + to.len() as u64 / PAGE {
            *self.of.lock().entry(block).or_default() += 1;
        }
        self.disk.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.disk.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.disk.write_durable(at, from)
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

/// A commit ends each idle time, at any moment of it.  A segment that was looked at then is tried
/// again: it had counted as one that does not become smaller, for ever.
#[test]
fn idle_times_that_are_cut_short_are_made_up_for() {
    let filled = || {
        let (_, volume) = fresh_packing(BLOCKS);
        for n in 0..4 {
            write(&volume, &format!("f{n}"), &some(n, (PAGES * PAGE) as usize));
        }
        volume.checkpoint().unwrap();
        volume
    };
    let at_once = filled().pack().unwrap().pages;
    let (volume, mut at) = (filled(), Tending::default());
    let mut packed = 0;
    let mut tend = |most: u32| {
        let asked = Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) >= most;
        match volume.tend(&Plan::default(), &Greedy, &mut at, &stop).unwrap() {
            Tended::Packed(some) => packed += some.pages,
            Tended::Nothing => return false,
            other => panic!("{other:?}"),
        }
        true
    };
    for most in 0..20 {
        tend(most);
    }
    while tend(u32::MAX) {}
    assert_eq!(packed, at_once);
}

/// A checkpoint is what there may be something to compress after: it wakes the cleaner, also if
/// nobody reads, and nobody leaves too little free; whatever it is made for.
#[test]
fn a_checkpoint_wakes_the_cleaner() {
    let (_, volume) = fresh_packing(BLOCKS);
    volume.snapshot("first").unwrap();
    write(&volume, "f", &some(1, (PAGES * PAGE) as usize));
    volume.snapshot("second").unwrap();
    let mut stream = Vec::new();
    systx_lfs::send(&volume, "second", Some("first"), &mut stream).unwrap();
    volume.remove_snapshot("second").unwrap();
    let ways: [(&str, &dyn Fn()); 4] = [
        ("asked for", &|| volume.checkpoint().unwrap()),
        ("a snapshot", &|| volume.snapshot("third").unwrap()),
        ("the end of a snapshot", &|| volume.remove_snapshot("third").unwrap()),
        ("a look at what a stream starts from", &|| {
            let done = systx_lfs::receive(&volume, &mut &stream[..]);
            assert!(matches!(done, Err(Error::Unfit(_))), "{done:?}");
        }),
    ];
    for (n, (way, makes_one)) in ways.into_iter().enumerate() {
        write(&volume, &format!("f{n}"), &some(1, (PAGES * PAGE) as usize));
        assert!(wakes(&volume, makes_one), "{way}");
    }
}

/// Whether this wakes a cleaner that has nothing to do.
fn wakes(volume: &Volume, act: &dyn Fn()) -> bool {
    let (plan, mut at) = (Plan::default(), Tending::default());
    // It sees what was committed first, and that nothing came since.
    volume.tend(&plan, &Greedy, &mut at, &|| false).unwrap();
    while !matches!(volume.tend(&plan, &Greedy, &mut at, &|| false).unwrap(), Tended::Nothing) {}
    let (sleeps, slept) = channel();
    let (wakes, woken) = channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (at, plan, stop) = (&at, &plan, &stop);
        scope.spawn(move || {
            let asleep = || sleeps.send(()).unwrap();
            volume.await_work(plan, at, &|| stop.load(Relaxed), &asleep);
            wakes.send(()).unwrap();
        });
        slept.recv().unwrap();
        act();
        let woken = woken.recv_timeout(Duration::from_secs(20));
        stop.store(true, Relaxed);
        volume.wake_cleaner();
        woken.is_ok()
    })
}

/// A round reads what it moves once, also what it compresses, and packs that stay as they are.
#[test]
fn a_round_of_cleaning_reads_what_it_moves_once() {
    for is_packed in [false, true] {
        let (disk, volume) = fresh_packing(BLOCKS);
        drop(volume);
        let dev =
            Arc::new(Reads { disk: disk.clone(), of: Mutex::new(rank::LEAF, BTreeMap::new()) });
        let volume = Volume::open(dev.clone(), clock(), 3, Limits::default()).unwrap();
        let content = |n: u64| some(2 * n, (PAGES * PAGE) as usize);
        let files: Vec<Ino> =
            (0..5).map(|n| write(&volume, &format!("f{n}"), &content(n))).collect();
        volume.checkpoint().unwrap();
        if is_packed {
            assert!(pack(&volume).pages > 0);
        }
        // What a file has at its end goes, so that each segment has something dead.
        for f in &files {
            volume.plain(|ops| ops.punch(*f, 26 * PAGE, 2 * PAGE)).unwrap();
            volume.plain(|ops| ops.punch(*f, 9 * PAGE, 3 * PAGE)).unwrap();
        }
        volume.plain(|ops| ops.unlink(ROOT, b"f2").map(drop)).unwrap();
        volume.checkpoint().unwrap();
        let (before, metadata) = (tree(&volume), checked(&disk).metadata);
        dev.of.lock().clear();
        let done = volume.clean(&Greedy, volume.space().free_segments + 1).unwrap();
        assert!(done.segments > 0, "{done:?}");
        let reads = dev.of.lock().clone();
        let data = reads.iter().filter(|(at, _)| **at >= 8 && !metadata.contains_key(at));
        let twice: Vec<_> = data.filter(|(_, n)| **n > 1).collect();
        assert!(twice.is_empty(), "{is_packed}: {twice:?}");
        assert_eq!(tree(&volume), before);
    }
}

/// Several packs of more than one block in one piece, of which nothing but the log knows.
#[test]
fn packs_of_the_log_lie_behind_each_other() {
    let (disk, volume) = fresh_packing(BLOCKS);
    for n in 0..8u64 {
        // They become half as many blocks.
        let page = |k: u64| [&bytes(n << 8 | k, 1500)[..], &[0; 4096 - 1500][..]].concat();
        write(&volume, &format!("f{n}"), &(0..5).flat_map(page).collect::<Vec<u8>>());
    }
    volume.checkpoint().unwrap();
    let before = tree(&volume);
    let packed = volume.pack().unwrap();
    assert!(packed.pages >= 20 && packed.blocks * 5 >= packed.pages * 2, "{packed:?}");
    drop(volume);
    assert_eq!(checked(&disk).findings, []);
    assert_eq!(tree(&open(disk).unwrap()), before);
}
