//! Power cuts: at every write and sync of a workload, with what a disk may leave of it.  What is
//! found afterwards is the tree after some of the steps, all of those that were durable among
//! them; it is found again the second time; and the volume can be used.

#![allow(clippy::unwrap_used)]

mod common;

use common::acts::Act;
use common::power::{
    Step, crashes, cuts, damaged, judge, lied, newest, record, record_clusters, take, workload,
};
use common::{
    BLOCKS, budget, bytes, cluster_of, commit, dump, file, format, fresh, fresh_as, made, open,
    tree,
};
use std::sync::Arc;
use systx_base::Kind;
use systx_lfs::device::{Device, Fault, SimDisk};
use systx_lfs::format::{BLOCK, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{Error, Format, Greedy, read_super};

#[test]
fn a_power_cut_leaves_what_was_durable_and_whole_steps() {
    let mut seen = 0;
    for seed in 0..10 * budget() as u8 {
        let steps = workload(seed, 14);
        let run = record_clusters(&steps, cluster_of(seed.into()));
        seen += crashes(&run, cuts(14)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
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
    for cluster in [1, 2] {
        let run = record_clusters(&steps, cluster);
        let seen = crashes(&run, cuts(4)).unwrap_or_else(|e| panic!("{cluster}: {e}"));
        println!("{seen} crashes");
    }
}

#[test]
fn a_power_cut_while_recovering_changes_nothing() {
    let run = record_clusters(&workload(3, 10), 2);
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

/// No block of a checkpoint that is damaged, alone or with another one, costs a commit in silence.
#[test]
fn damaged_checkpoints_are_made_up_for_or_refused() {
    let (mut opened, mut refused) = (0, 0);
    for seed in 20..20 + 4 * budget() as u8 {
        let run = record(&workload(seed, 8));
        let seen = damaged(&run, cuts(4), 2).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        (opened, refused) = (opened + seen.0, refused + seen.1);
        // One alone is always made up for when nothing has been cut off.
        let disk = run.disk.copy();
        let last = [tree(&open(Arc::new(disk.copy())).unwrap())];
        for at in 1..=4 {
            assert_eq!(newest(&disk, &[at], &last), Ok(true), "seed {seed}, block {at}");
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 3 * refused && refused > 10, "{opened} opened, {refused} refused");
}

/// A power cut between the copies of a checkpoint, one more while the volume is opened, and then
/// damage.  An opening that has come to its end has made every copy whole.
#[test]
fn an_opening_relies_on_no_single_copy() {
    let make = Act::Make(2, Kind::File);
    let first = Step::Commit(vec![make, Act::Write(2, 0, 9000, 1)]);
    let run = record(&[first, Step::Plain(Act::Chmod(2, 0o600)), Step::Checkpoint]);
    let mut disks = Vec::new();
    run.disk.crashes(cuts(12), |crash| disks.push(crash));
    for crash in disks.into_iter().rev().take(30 * budget()) {
        let (begun, durable) = ((crash.mark >> 32) as usize, (crash.mark & 0xffff_ffff) as usize);
        let disk = Arc::new(crash.disk);
        drop(open(disk.clone()).unwrap());
        for first in [1, 3] {
            let mut region = vec![0; 2 * BLOCK];
            disk.read(first, &mut region).unwrap();
            assert!(region[..BLOCK] == region[BLOCK..], "{}: block {first}", crash.name);
        }
        disk.crashes(cuts(8), |again| {
            for at in 1..=4 {
                let seen = newest(&again.disk, &[at], &run.trees[durable..=begun]);
                seen.unwrap_or_else(|e| panic!("{}, then {}: {e}", crash.name, again.name));
            }
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
        let is_right = |mark, disk: Arc<SimDisk>| {
            match open(disk.clone()) {
                Ok(volume) if volume.identity().0 == [7; 16] => {
                    mark == 0 && volume.look(dump).is_ok_and(|tree| tree == before)
                }
                Ok(volume) => volume.look(dump).is_ok_and(|tree| tree.len() == 1),
                // Neither of both, and it does not say that it is the new one.
                Err(_) => {
                    let says = read_super(&*disk).map(|sup| sup.id);
                    mark == 0 && !says.is_ok_and(|id| id == [9; 16])
                }
            }
        };
        disk.crashes(cuts(300), |crash| {
            // A damaged copy of the checkpoint costs nothing.
            for damaged in [None, Some(3), Some(4)] {
                let disk = Arc::new(crash.disk.copy());
                damaged.into_iter().for_each(|at| disk.damage(at, 77));
                wrong += usize::from(!is_right(crash.mark, disk));
            }
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
    for seed in 0..6 * budget() as u64 {
        let format = Format { cluster: cluster_of(seed), ..format() };
        let (disk, volume) = fresh_as(9 + 24 * u64::from(common::SEGMENT), &format);
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
