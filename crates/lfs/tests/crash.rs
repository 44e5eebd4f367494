//! Power cuts: at every write and sync of a workload, with what a disk may leave of it.  What is
//! found afterwards is the tree after some of the steps, all of those that were durable among
//! them; it is found again the second time; and the volume can be used.

#![allow(clippy::unwrap_used)]

mod common;

use common::acts::{Act, act, run};
use common::{BLOCKS, Dump, budget, bytes, commit, dump, file, format, fresh, made, open, tree};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::sync::Arc;
use systx_base::Kind;
use systx_lfs::device::{Cuts, Fault, SimDisk};
use systx_lfs::format::ROOT;
use systx_lfs::fsck::check;
use systx_lfs::{CostBenefit, Error, Greedy, Policy, Txn, Volume, read_super};

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Act>),
    Plain(Act),
    Sync,
    Checkpoint,
    /// A transaction that spills.
    Large(u64),
    Clean(bool),
    Coalesce,
    Snapshot(u8),
    Forget(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => prop::collection::vec(act(), 1..6).prop_map(Step::Commit),
        4 => act().prop_map(Step::Plain),
        1 => Just(Step::Sync),
        1 => Just(Step::Checkpoint),
        1 => any::<u64>().prop_map(|s| Step::Large(s >> 20)),
        1 => any::<bool>().prop_map(Step::Clean),
        1 => Just(Step::Coalesce),
        1 => (0..3u8).prop_map(Step::Snapshot),
        1 => (0..3u8).prop_map(Step::Forget),
    ]
}

fn workload(seed: u8, len: usize) -> Vec<Step> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let mut steps = prop::collection::vec(step(), len).new_tree(&mut runner).unwrap().current();
    // Something to act on.
    let make = |path, kind| Act::Make(path, kind);
    let first =
        vec![make(0, Kind::Dir), make(1, Kind::Dir), make(2, Kind::File), make(7, Kind::Dir)];
    steps.insert(0, Step::Commit(first));
    steps
}

fn large(volume: &Volume, seed: u64) -> Result<(), Error> {
    commit(volume, |ops| {
        let name = b"large";
        let f = match ops.lookup(ROOT, name) {
            Ok(link) => link.ino,
            Err(_) => ops.create(ROOT, name, &file())?,
        };
        ops.write(f, seed % 5 * 4096, &bytes(seed, 30 * 4096))
    })
}

/// Does a step.  Returns whether it, and all before it, are durable now.
fn take(volume: &Volume, step: &Step) -> Result<bool, Error> {
    match step {
        Step::Commit(acts) => {
            let mut txn = Txn::new();
            for act in acts {
                // What is refused is left out.
                let _ = volume.within(&mut txn, |ops| run(ops, *act));
            }
            volume.commit(txn).map(|()| true)
        }
        Step::Plain(act) => {
            let _ = volume.plain(|ops| run(ops, *act));
            Ok(false)
        }
        Step::Sync => volume.sync().map(|()| true),
        Step::Checkpoint => volume.checkpoint().map(|()| true),
        Step::Large(seed) => large(volume, *seed).map(|()| true),
        Step::Clean(greedy) => {
            let policy: &dyn Policy = if *greedy { &Greedy } else { &CostBenefit };
            let free = volume.space().free_segments;
            volume.clean(policy, free + 2).map(|_| false)
        }
        Step::Coalesce => volume.coalesce(0, 100, &|| false).map(|_| false),
        Step::Snapshot(n) => match volume.snapshot(&n.to_string()) {
            Err(Error::Exists | Error::NoSpace) => Ok(false),
            other => other.map(|()| true),
        },
        Step::Forget(n) => match volume.remove_snapshot(&n.to_string()) {
            Err(Error::NotFound) => Ok(false),
            other => other.map(|()| true),
        },
    }
}

/// The record of a workload: a disk, and the tree after each step.
struct Run {
    disk: Arc<SimDisk>,
    trees: Vec<Dump>,
}

/// A mark says how many steps were begun and how many are durable.
fn mark(begun: usize, durable: usize) -> u64 {
    (begun as u64) << 32 | durable as u64
}

fn record(steps: &[Step]) -> Run {
    let (disk, volume) = fresh(BLOCKS);
    drop(volume);
    let disk = Arc::new(disk.copy());
    let volume = open(disk.clone()).unwrap();
    let mut trees = vec![tree(&volume)];
    let mut durable = 0;
    for (n, step) in steps.iter().enumerate() {
        disk.mark(mark(n + 1, durable));
        if take(&volume, step).unwrap_or_else(|e| panic!("{step:?}: {e}")) {
            durable = n + 1;
        }
        trees.push(tree(&volume));
        disk.mark(mark(n + 1, durable));
    }
    Run { disk, trees }
}

/// Whether what a disk has is one of those trees, again and again.
fn judge(disk: SimDisk, allowed: &[Dump], past: &[Dump]) -> Result<Dump, String> {
    let disk = Arc::new(disk);
    let opened = |disk: &Arc<SimDisk>| open(disk.clone()).map_err(|e| format!("opening: {e}"));
    let volume = opened(&disk)?;
    let found = volume.look(dump).map_err(|e| format!("reading: {e}"))?;
    if !allowed.contains(&found) {
        let names: Vec<_> = found.keys().collect();
        return Err(format!("a tree that never was, of {names:?}"));
    }
    for snapshot in volume.snapshots() {
        let view = volume.at(&snapshot.name).map_err(|e| format!("{}: {e}", snapshot.name))?;
        let kept = view.look(dump).map_err(|e| format!("{}: {e}", snapshot.name))?;
        if !past.contains(&kept) {
            return Err(format!("snapshot {} is of a tree that never was", snapshot.name));
        }
    }
    drop(volume);
    let volume = opened(&disk)?;
    let again = volume.look(dump).map_err(|e| format!("reading again: {e}"))?;
    if again != found {
        return Err("opened twice, it has two trees".into());
    }
    commit(&volume, |ops| {
        let f = ops.create(ROOT, b"after", &file())?;
        ops.write(f, 0, &bytes(1, 20_000))
    })
    .map_err(|e| format!("a commit afterwards: {e}"))?;
    let after = tree(&volume);
    volume.close().map_err(|e| format!("closing: {e}"))?;
    let checked = check(disk.clone(), common::clock()).map_err(|e| format!("fsck: {e}"))?;
    if let Some(finding) = checked.findings.first() {
        return Err(format!("fsck: {finding}"));
    }
    if tree(&opened(&disk)?) != after {
        return Err("what was committed afterwards is not there".into());
    }
    Ok(found)
}

/// All crashes of a record, the trees they left, or the first that is wrong.
fn crashes(run: &Run, cuts: Cuts) -> Result<usize, String> {
    let mut wrong = Ok(0);
    run.disk.crashes(cuts, |crash| {
        let Ok(seen) = wrong else { return };
        let (begun, durable) = ((crash.mark >> 32) as usize, (crash.mark & 0xffff_ffff) as usize);
        wrong = judge(crash.disk, &run.trees[durable..=begun], &run.trees)
            .map(|_| seen + 1)
            .map_err(|e| format!("{}, {durable} of {begun} durable: {e}", crash.name));
    });
    wrong
}

fn cuts(each: usize) -> Cuts {
    Cuts { each: each * budget(), seed: 1 }
}

#[test]
fn a_power_cut_leaves_what_was_durable_and_whole_steps() {
    let mut seen = 0;
    for seed in 0..10 * budget() as u8 {
        let steps = workload(seed, 14);
        seen += crashes(&record(&steps), cuts(14)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{seen} crashes");
    assert!(seen > 1000, "{seen}");
}

/// Commits, checkpoints and cleaning on a volume that is nearly full.
#[test]
fn a_power_cut_while_cleaning_loses_nothing() {
    let mut steps = vec![Step::Large(0), Step::Large(30), Step::Large(60)];
    for n in 0..60u64 {
        let make = Act::Make((n % 3) as usize, Kind::File);
        steps.push(Step::Commit(vec![
            make,
            Act::Write((n % 3) as usize, n * 700 % 40_000, 9_000, n),
        ]));
    }
    let run = record(&steps);
    let seen = crashes(&run, cuts(4)).unwrap_or_else(|e| panic!("{e}"));
    println!("{seen} crashes");
}

#[test]
fn a_power_cut_while_recovering_changes_nothing() {
    let run = record(&workload(3, 10));
    let mut disks = Vec::new();
    run.disk.crashes(cuts(3), |crash| disks.push(crash));
    let step = (disks.len() / (40 * budget())).max(1);
    for crash in disks.into_iter().step_by(step) {
        let disk = Arc::new(crash.disk);
        let volume = open(Arc::new(disk.copy())).unwrap();
        let found = tree(&volume);
        drop(open(disk.clone()).unwrap());
        disk.crashes(cuts(8), |again| {
            judge(again.disk, std::slice::from_ref(&found), &run.trees)
                .unwrap_or_else(|e| panic!("{}, then {}: {e}", crash.name, again.name));
        });
    }
}

/// Either what was there before, or nothing, or a new volume; never a mixture.
#[test]
fn a_power_cut_while_a_volume_is_made_leaves_no_half() {
    let old = record(&workload(5, 6));
    for before in [SimDisk::new(BLOCKS), old.disk.copy()] {
        let disk = Arc::new(before);
        let other = systx_lfs::Format { id: [9; 16], ..format() };
        systx_lfs::mkfs(disk.clone(), &other, common::clock()).unwrap();
        let mut kinds = [0; 3];
        disk.crashes(cuts(40), |crash| match open(Arc::new(crash.disk)) {
            Ok(volume) if volume.identity().0 == [7; 16] => {
                assert_eq!(tree(&volume), *old.trees.last().unwrap(), "{}", crash.name);
                kinds[0] += 1;
            }
            Ok(volume) => {
                assert_eq!(tree(&volume).len(), 1, "{}", crash.name);
                kinds[1] += 1;
            }
            Err(Error::NotAVolume(_) | Error::Corrupt { .. }) => kinds[2] += 1,
            Err(e) => panic!("{}: {e}", crash.name),
        });
        assert!(kinds[1] > 0 && kinds[2] > 0, "{kinds:?}");
    }
}

/// Every write and sync fails once, and from then on.
#[test]
fn a_device_that_fails_costs_nothing_that_was_durable() {
    let steps = workload(7, 30);
    for fails in 0.. {
        let (disk, volume) = fresh(BLOCKS);
        disk.fault(Fault::Fails(fails));
        let (mut trees, mut durable) = (vec![tree(&volume)], 0);
        let mut failed = false;
        for (n, step) in steps.iter().enumerate() {
            match take(&volume, step) {
                Ok(true) if !failed => durable = n + 1,
                Ok(_) => {}
                Err(_) => failed = true,
            }
            // Reads go on.
            trees.push(tree(&volume));
        }
        drop(volume);
        judge(disk.copy(), &trees[durable..], &trees)
            .unwrap_or_else(|e| panic!("call {fails}: {e}"));
        if !failed {
            assert!(fails > 20, "{fails} calls");
            break;
        }
    }
}

/// Does steps on a disk that lies about a barrier, and counts those that there are.
fn lied(steps: &[Step], fault: Fault) -> (Result<usize, String>, (u64, u64)) {
    let (disk, volume) = fresh(BLOCKS);
    drop(volume);
    let disk = Arc::new(disk.copy());
    let volume = open(disk.clone()).unwrap();
    disk.fault(fault);
    let (mut trees, mut durable) = (vec![tree(&volume)], 0);
    for (n, step) in steps.iter().enumerate() {
        disk.mark(mark(n + 1, durable));
        if take(&volume, step).unwrap() {
            durable = n + 1;
        }
        trees.push(tree(&volume));
        disk.mark(mark(n + 1, durable));
    }
    let barriers = disk.barriers();
    (crashes(&Run { disk, trees }, cuts(40)), barriers)
}

/// A suite that passes with a barrier missing would prove nothing about it.
#[test]
fn each_barrier_that_is_taken_away_is_noticed() {
    let make = Step::Commit(vec![Act::Make(2, Kind::File), Act::Write(2, 0, 9000, 1)]);
    // A commit of one piece; one that spills; one of several pieces; a checkpoint that has what
    // nobody else has.
    let several = (0..5).map(|n| Step::Plain(Act::Write(2, n * 16_384, 16_384, n))).collect();
    let workloads: [Vec<Step>; 4] = [
        vec![make.clone()],
        vec![Step::Large(1)],
        [vec![make.clone()], several, vec![Step::Sync]].concat(),
        vec![make, Step::Plain(Act::Chmod(2, 0o600)), Step::Checkpoint],
    ];
    for (w, steps) in workloads.iter().enumerate() {
        let (fine, (syncs, durable)) = lied(steps, Fault::None);
        fine.unwrap_or_else(|e| panic!("workload {w}: {e}"));
        assert!(syncs + durable > 0, "workload {w} has no barrier");
        for fault in (0..syncs).map(Fault::SkipsSync).chain((0..durable).map(Fault::SkipsDurable)) {
            let noticed = lied(steps, fault).0.expect_err(&format!("workload {w}, {fault:?}"));
            println!("workload {w}, {fault:?}: {noticed}");
        }
    }
}

/// As above, where a volume is made over another one.
#[test]
fn each_barrier_of_making_a_volume_is_noticed() {
    let make = |path| Act::Make(path, Kind::File);
    let old = record(&[Step::Commit(vec![make(0), make(1)])]).disk.copy();
    let before = tree(&open(Arc::new(old.copy())).unwrap());
    let found = |fault| {
        let disk = Arc::new(old.copy());
        disk.fault(fault);
        // Nothing of it is what happens to lie there already.
        let other = systx_lfs::Format { id: [9; 16], owner: (5, 5), ..format() };
        systx_lfs::mkfs(disk.clone(), &other, common::clock()).unwrap();
        disk.mark(1);
        let barriers = disk.barriers();
        let mut wrong = 0;
        disk.crashes(cuts(300), |crash| {
            let disk = Arc::new(crash.disk);
            let is_right = match open(disk.clone()) {
                Ok(volume) if volume.identity().0 == [7; 16] => {
                    crash.mark == 0 && volume.look(dump).is_ok_and(|tree| tree == before)
                }
                Ok(volume) => volume.look(dump).is_ok_and(|tree| tree.len() == 1),
                // Neither of both, and it does not say that it is the new one.
                Err(_) => {
                    let says = read_super(&*disk).map(|sup| sup.id);
                    crash.mark == 0 && !says.is_ok_and(|id| id == [9; 16])
                }
            };
            wrong += usize::from(!is_right);
        });
        (wrong, barriers)
    };
    let (wrong, (syncs, durable)) = found(Fault::None);
    assert_eq!(wrong, 0);
    for fault in (0..syncs).map(Fault::SkipsSync).chain((0..durable).map(Fault::SkipsDurable)) {
        let wrong = found(fault).0;
        println!("{fault:?}: {wrong} crashes are wrong");
        assert!(wrong > 0, "{fault:?} is not noticed");
    }
}

/// Operations at random on the smallest volume: whatever is refused is refused before it is
/// decided, and the volume never ends up with a commit that it cannot write.
#[test]
fn a_volume_that_is_always_full_never_fails() {
    for seed in 0..3 * budget() as u64 {
        let (disk, volume) = fresh(9 + 24 * u64::from(common::SEGMENT));
        let (mut refused, mut done) = (0, 0);
        for n in 0..700u64 {
            let draw = systx_base::mix(seed << 32 | (n + 1));
            let name = format!("f{}", draw % 30);
            let took = match draw >> 8 & 15 {
                0 => volume.snapshot(&format!("s{}", draw >> 16 & 1)),
                1 => volume.remove_snapshot(&format!("s{}", draw >> 16 & 1)),
                2..=5 => volume.plain(|ops| ops.unlink(ROOT, name.as_bytes()).map(drop)),
                6 => volume.clean(&Greedy, 12).map(drop),
                7 => volume.coalesce(0, 100, &|| false).map(drop),
                _ => commit(&volume, |ops| {
                    let f = match ops.lookup(ROOT, name.as_bytes()) {
                        Ok(link) => link.ino,
                        Err(_) => ops.create(ROOT, name.as_bytes(), &file())?,
                    };
                    let len = 1 + (draw >> 24) as usize % 60_000;
                    ops.write(f, draw >> 50 & 0xffff, &bytes(n, len))
                }),
            };
            match took {
                Ok(()) => done += 1,
                Err(Error::NoSpace) => refused += 1,
                Err(Error::NotFound | Error::Exists) => {}
                Err(e) => panic!("seed {seed}, operation {n}: {e}"),
            }
        }
        assert!(refused > 20 && done > 100, "{refused} refused, {done} done");
        volume.sync().unwrap();
        let before = tree(&volume);
        drop(volume);
        let found = check(disk.clone(), common::clock()).unwrap().findings;
        assert_eq!(found, [], "seed {seed}");
        assert_eq!(tree(&open(disk).unwrap()), before);
    }
}

#[test]
fn a_volume_that_is_made_twice_has_only_the_second() {
    let disk = Arc::new(SimDisk::new(BLOCKS));
    made(disk.clone());
    let volume = open(disk.clone()).unwrap();
    commit(&volume, |ops| ops.create(ROOT, b"old", &file()).map(drop)).unwrap();
    drop(volume);
    made(disk.clone());
    assert_eq!(tree(&open(disk).unwrap()).len(), 1);
}
