//! What a commit can wait for beside the cleaner, in blocks: one group and one checkpoint.  While
//! the cleaner reads, commits go through.

#![allow(clippy::unwrap_used)]

mod common;

use common::{LIMITS, SEGMENT, clock, commit, file, format, fresh_as, open, some, tree};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use systx_base::sync::{is_held, rank};
use systx_lfs::device::{Device, SimDisk};
use systx_lfs::format::{BLOCK, Compression, Ino, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{Format, Greedy, Limits, Txn, Volume};

/// A device at each call of which, by one thread, others commit, unless that thread has the lock.
struct Beside {
    disk: Arc<SimDisk>,
    watched: ThreadId,
    volume: OnceLock<Arc<Volume>>,
    own: AtomicU64,
    is_on: AtomicBool,
    /// So many segments are in use that commits clean.
    is_full: bool,
    /// Blocks that were read and written while the others could do nothing.
    read: AtomicU64,
    written: AtomicU64,
    /// The most that was written at once, while the others could commit and not be durable.
    group: AtomicU64,
    /// Commits that were durable, and visible, meanwhile.
    durable: AtomicU64,
    visible: AtomicU64,
}

impl Beside {
    fn call(&self, blocks: usize, is_read: bool) {
        let blocks = (blocks / BLOCK) as u64;
        if thread::current().id() != self.watched || !self.is_on.load(Relaxed) {
            return;
        }
        if is_held(rank::LOG) {
            let all = if is_read { &self.read } else { &self.written };
            all.fetch_add(blocks, Relaxed);
            return;
        }
        if !is_read {
            self.group.fetch_max(blocks, Relaxed);
        }
        // Without room the others would wait for the writer.
        if !is_read && self.is_full {
            return;
        }
        let volume = self.volume.get().unwrap();
        let own = self.own.load(Relaxed);
        // While it reads nobody waits for it; while it writes a group the next one has to.
        let goes = thread::scope(|s| {
            let committed = s.spawn(|| {
                let mut txn = Txn::new();
                volume.within(&mut txn, |ops| ops.write(own, 0, &[blocks as u8; 100])).unwrap();
                let ticket = volume.commit_relaxed(txn).unwrap();
                if is_read {
                    volume.durable(ticket).unwrap();
                }
            });
            committed.join()
        });
        goes.unwrap();
        let all = if is_read { &self.durable } else { &self.visible };
        all.fetch_add(1, Relaxed);
    }
}

impl Device for Beside {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.call(to.len(), true);
        self.disk.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.call(from.len(), false);
        self.disk.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.call(from.len(), false);
        self.disk.write_durable(at, from)
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

/// Pages of each file.
const PAGES: u64 = 30;

/// What a round did to others, and how many pages it moved.
struct Waited {
    read: u64,
    written: u64,
    group: u64,
    moved: u64,
}

/// A volume on such a device.
fn watched(format: &Format, limits: Limits, is_full: bool) -> (Arc<Beside>, Arc<Volume>) {
    let blocks = 9 + 200 * u64::from(format.segment_blocks);
    let (disk, volume) = fresh_as(blocks, format);
    drop(volume);
    let dev = Arc::new(Beside {
        disk,
        watched: thread::current().id(),
        volume: OnceLock::new(),
        own: AtomicU64::new(0),
        is_on: AtomicBool::new(false),
        is_full,
        read: AtomicU64::new(0),
        written: AtomicU64::new(0),
        group: AtomicU64::new(0),
        durable: AtomicU64::new(0),
        visible: AtomicU64::new(0),
    });
    let volume = Arc::new(Volume::open(dev.clone(), clock(), 3, limits).unwrap());
    dev.own.store(make(&volume, "own", b"own"), Relaxed);
    (dev, volume)
}

fn make(volume: &Volume, name: &str, content: &[u8]) -> Ino {
    let make = |ops: &mut systx_lfs::Ops<'_>| {
        let f = ops.create(ROOT, name.as_bytes(), &file())?;
        ops.write(f, 0, content)?;
        Ok(f)
    };
    volume.plain(make).unwrap()
}

fn round(files: u64, compression: Compression) -> Waited {
    let limits = Limits { pay_below_percent: 0, dirty_pages_max: 10_000, ..LIMITS };
    let (dev, volume) = watched(&Format { compression, ..format() }, limits, false);
    for n in 0..files {
        let f = make(&volume, &format!("f{n}"), &some(n, (PAGES * 4096) as usize));
        volume.sync().unwrap();
        for at in 0..PAGES / 3 {
            commit(&volume, |ops| ops.punch(f, at * 3 * 4096, 4096)).unwrap();
        }
    }
    volume.checkpoint().unwrap();
    let before = tree(&volume);
    assert!(dev.volume.set(volume.clone()).is_ok());
    dev.is_on.store(true, Relaxed);
    let need = files * PAGES / 6;
    let round = volume.clean_some(&Greedy, need, &Default::default(), &|| false).unwrap();
    dev.is_on.store(false, Relaxed);
    assert!(round.cleaned.segments > 0 && round.damaged.is_empty(), "{round:?}");
    let (durable, visible) = (dev.durable.load(Relaxed), dev.visible.load(Relaxed));
    assert!(durable >= round.cleaned.segments.into() && visible > 0, "{durable}, {visible}");
    let now = tree(&volume);
    for (path, seen) in before.iter().filter(|(path, _)| path.starts_with("/f")) {
        assert_eq!(now[path].content, seen.content, "{path}");
    }
    let waited = Waited {
        read: dev.read.load(Relaxed),
        written: dev.written.load(Relaxed),
        group: dev.group.load(Relaxed),
        moved: round.cleaned.moved,
    };
    volume.sync().unwrap();
    assert_eq!(check(dev.disk.clone(), clock()).unwrap().findings, []);
    assert_eq!(tree(&open(Arc::new(dev.disk.copy())).unwrap()), now);
    waited
}

#[test]
fn a_commit_waits_for_one_group_and_one_checkpoint() {
    for compression in [Compression::Off, Compression::Zstd] {
        let mut all = Vec::new();
        for files in [8, 40] {
            let waited = round(files, compression);
            let Waited { read, written, group, moved } = waited;
            println!("{files} files: {moved} moved, {read} read, {written} written, group {group}");
            // What is read with the lock are parts of the inode map that the checkpoint changes.
            assert!(read <= 2 + files / 8, "{files} files: {read} blocks read");
            // The checkpoint: a record and its part of the map for each file, and what each has.
            assert!(written <= 2 * files + 30, "{files} files: {written} blocks written");
            // A piece of the group, which is a segment at most.
            assert!(group <= SEGMENT.into(), "{files} files: {group} blocks at once");
            all.push(moved);
        }
        assert!(all[1] > all[0], "{all:?}");
    }
}

/// Without a thread that cleans, those who commit do: each a part, and nobody waits while a segment
/// is read, nor for all that is moved out of one.
#[test]
fn a_commit_pays_for_its_part_only() {
    let format = Format { segment_blocks: 64, compression: Compression::Off, ..format() };
    let limits = Limits { dirty_pages_max: 10_000, txn_pages_max: 10_000, ..LIMITS };
    let (dev, volume) = watched(&format, limits, true);
    let mut files = Vec::new();
    while volume.space().used * 2 < volume.space().total {
        let name = format!("f{}", files.len());
        files.push(make(&volume, &name, &some(files.len() as u64, (PAGES * 4096) as usize)));
        volume.sync().unwrap();
    }
    assert!(dev.volume.set(volume.clone()).is_ok());
    let overwrite = |n: u64| {
        let drawn = systx_base::mix(n);
        let (f, page) = (files[drawn as usize % files.len()], (drawn >> 32) % PAGES);
        commit(&volume, |ops| ops.write(f, page * 4096, &some(n, 4096))).unwrap();
    };
    let written = 2 * volume.space().total;
    (0..written).for_each(overwrite);
    dev.is_on.store(true, Relaxed);
    let watched = 500;
    (written..written + watched).for_each(overwrite);
    dev.is_on.store(false, Relaxed);
    let (read, group) = (dev.read.load(Relaxed), dev.group.load(Relaxed));
    println!("{read} read with the lock, {group} blocks at once");
    assert!(read <= watched, "{read} blocks read");
    assert!(group <= u64::from(format.segment_blocks) / 4, "{group} blocks at once");
    volume.sync().unwrap();
    assert_eq!(check(dev.disk.clone(), clock()).unwrap().findings, []);
}
