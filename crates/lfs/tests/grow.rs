//! A volume that becomes as large as its device: what it has stays, at each power cut, and the new
//! space is used.

#![allow(clippy::unwrap_used)]

mod common;

use common::power::{Run, Step, cuts, judge, record, take, workload};
use common::{BLOCKS, SEGMENT, budget, bytes, clock, commit, dump, file, fresh, open, tree};
use std::sync::Arc;
use systx_lfs::device::{Device, Fault, SimDisk};
use systx_lfs::format::{BLOCK, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{Error, Volume, grow, read_super};

/// Blocks that it grows to.
const MORE: u64 = BLOCKS + 17 * SEGMENT as u64 + 5;

/// A disk with some content that its volume does not fill yet.
fn longer() -> (SimDisk, Run) {
    let run = record(&workload(9, 12));
    (run.disk.longer(MORE), run)
}

fn fill(volume: &Volume) -> u64 {
    let mut made = 0;
    loop {
        let done = commit(volume, |ops| {
            let f = ops.create(ROOT, format!("fill{made}").as_bytes(), &file())?;
            ops.write(f, 0, &bytes(made, 3 * BLOCK))
        });
        match done {
            Ok(()) => made += 1,
            Err(Error::NoSpace) => return made,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn new_space_is_used_and_the_old_content_stays() {
    let (disk, volume) = fresh(BLOCKS);
    let full = fill(&volume);
    let (before, space) = (tree(&volume), volume.space());
    volume.snapshot("full").unwrap_or_else(|e| assert!(matches!(e, Error::NoSpace)));
    drop(volume);
    let disk = Arc::new(disk.longer(MORE));
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, [], "a longer device is fine");
    let (was, is) = grow(&*disk).unwrap();
    assert_eq!((was.geometry.segments, is.geometry.segments), (40, 57));
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    let volume = open(disk.clone()).unwrap();
    assert_eq!(tree(&volume), before);
    assert!(volume.space().total > space.total, "{:?}", volume.space());
    let mut more = 0;
    while commit(&volume, |ops| {
        let f = ops.create(ROOT, format!("more{more}").as_bytes(), &file())?;
        ops.write(f, 0, &bytes(more, 3 * BLOCK))
    })
    .is_ok()
    {
        more += 1;
    }
    assert!(more * 5 > full, "{more} beside {full}");
    let after = tree(&volume);
    volume.close().unwrap();
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    assert_eq!(grow(&*disk).unwrap().1, read_super(&*disk).unwrap(), "once more is nothing");
    assert_eq!(tree(&open(disk).unwrap()), after);
}

/// The volume is as it was, in its old size or the new one; when growing is done, the new one.
#[test]
fn a_power_cut_while_growing_leaves_the_volume() {
    let (before, run) = longer();
    let now = std::slice::from_ref(run.trees.last().unwrap());
    let cut = |fault| {
        let disk = before.copy();
        disk.fault(fault);
        grow(&disk).unwrap();
        disk.mark(1);
        let (mut wrong, mut kinds) = (Vec::new(), [0; 2]);
        disk.crashes(cuts(60), |crash| {
            let is_new = read_super(&crash.disk).is_ok_and(|sup| sup.blocks == MORE);
            kinds[usize::from(is_new)] += 1;
            let judged = judge(crash.disk, now, &run.trees);
            if judged.is_err() || crash.mark == 1 && !is_new {
                wrong.push(format!("{}: {judged:?}", crash.name));
            }
        });
        (wrong, kinds, disk.barriers())
    };
    let (wrong, kinds, (syncs, durable)) = cut(Fault::None);
    assert!(wrong.is_empty(), "{}", wrong[0]);
    assert!(kinds.iter().all(|n| *n > 0), "{kinds:?}");
    assert_eq!((syncs, durable), (1, 1));
    for fault in [Fault::SkipsSync(0), Fault::SkipsDurable(0)] {
        assert!(!cut(fault).0.is_empty(), "{fault:?} is not noticed");
    }
}

/// The first checkpoints after it, and commits that reach what is new.
#[test]
fn a_power_cut_after_growing_leaves_what_was_durable() {
    let (disk, run) = longer();
    grow(&disk).unwrap();
    let disk = Arc::new(disk.copy());
    let volume = open(disk.clone()).unwrap();
    let steps = [Step::Large(1), Step::Checkpoint, Step::Snapshot(7), Step::Large(9), Step::Sync];
    let mut trees = vec![run.trees.last().unwrap().clone()];
    for (n, step) in steps.iter().enumerate() {
        let n = n as u64;
        disk.mark((n + 1) << 32 | n);
        assert!(take(&volume, step).unwrap());
        trees.push(tree(&volume));
        disk.mark((n + 1) << 32 | (n + 1));
    }
    // Snapshots of before, too.
    let past: Vec<_> = run.trees.iter().chain(&trees).cloned().collect();
    drop(volume);
    disk.crashes(cuts(6 * budget()), |crash| {
        let (begun, durable) = ((crash.mark >> 32) as usize, (crash.mark & 0xffff) as usize);
        judge(crash.disk, &trees[durable..=begun], &past)
            .unwrap_or_else(|e| panic!("{}: {e}", crash.name));
    });
}

#[test]
fn a_damaged_super_block_is_made_whole_by_the_next_opening() {
    let (disk, run) = longer();
    grow(&disk).unwrap();
    for at in [0, MORE - 1] {
        let damaged = Arc::new(disk.copy());
        damaged.damage(at, 20);
        assert_eq!(check(damaged.clone(), clock()).unwrap().findings.len(), 1);
        let volume = open(damaged.clone()).unwrap();
        assert_eq!(volume.look(dump).unwrap(), *run.trees.last().unwrap());
        volume.close().unwrap();
        assert_eq!(check(damaged, clock()).unwrap().findings, [], "block {at}");
    }
}

#[test]
fn what_cannot_grow_says_so_and_stays() {
    let (disk, _) = longer();
    assert!(matches!(grow(&SimDisk::new(MORE)), Err(Error::NotAVolume(_))));
    disk.fault(Fault::Fails(0));
    assert!(matches!(grow(&disk), Err(Error::Io(_))));
    disk.fault(Fault::None);
    assert_eq!(read_super(&disk).unwrap().blocks, BLOCKS);
    // The usage table of so many segments is more than a checkpoint can name.
    assert!(matches!(grow(&SimDiskOf(disk, 1 << 40)), Err(Error::Invalid(_))));
}

/// A disk that says that it is larger.
struct SimDiskOf(SimDisk, u64);

impl Device for SimDiskOf {
    fn blocks(&self) -> u64 {
        self.1
    }
    fn read(&self, at: u64, to: &mut [u8]) -> std::io::Result<()> {
        self.0.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.0.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.0.write_durable(at, from)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
}

/// A volume that is only read is not written to, and says so.
#[test]
fn a_volume_that_is_opened_to_be_read_changes_nothing() {
    let run = record(&workload(4, 10));
    let disk = Arc::new(run.disk.copy());
    let before = (0..disk.blocks()).map(|at| block(&disk, at)).collect::<Vec<_>>();
    let volume = Volume::open_to_read(disk.clone(), clock()).unwrap();
    assert_eq!(tree(&volume), *run.trees.last().unwrap());
    let refused = commit(&volume, |ops| ops.create(ROOT, b"new", &file()).map(drop));
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
    assert!(matches!(volume.snapshot("new"), Err(Error::ReadOnly)));
    assert!(matches!(volume.checkpoint(), Err(Error::ReadOnly)));
    drop(volume);
    assert!((0..disk.blocks()).map(|at| block(&disk, at)).eq(before));
}

fn block(disk: &SimDisk, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    disk.read(at, &mut bytes).unwrap();
    bytes
}

/// Every size between the smallest and the largest has a geometry, which leaves most of it.
#[test]
fn a_device_of_any_size_is_divided() {
    let mib = 256;
    for (blocks, segment) in [(2 * mib, 16), (8 * mib, 32), (10 << 10 << 8, 256), (1 << 32, 512)] {
        let geometry = systx_lfs::fitting(blocks, 1).unwrap();
        assert_eq!(geometry.segment_blocks, segment, "{blocks} blocks");
    }
    assert!(matches!(systx_lfs::fitting(mib, 1), Err(Error::Invalid(_))));
    assert!(matches!(systx_lfs::fitting(1 << 50, 1), Err(Error::Invalid(_))));
}
