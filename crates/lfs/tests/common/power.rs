//! Workloads on a disk that has a record of what it did: the crashes that can follow, and what is
//! found after them.

use super::acts::{Act, act, run};
use super::{
    BLOCKS, Dump, budget, bytes, commit, dump, file, fresh_clusters, fresh_packing, open, some,
    tree,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::sync::Arc;
use systx_base::Kind;
use systx_lfs::device::{Cuts, Fault, SimDisk};
use systx_lfs::format::{COPIES, ROOT};
use systx_lfs::fsck::{Finding, check};
use systx_lfs::{CostBenefit, Error, Greedy, Plan, Policy, Structure, Tending, Txn, Volume};

#[derive(Clone, Debug)]
pub enum Step {
    Commit(Vec<Act>),
    Plain(Act),
    Sync,
    Checkpoint,
    /// A transaction that spills.
    Large(u64),
    Clean(bool),
    /// What a cleaner's thread would do next.
    Tend,
    Coalesce,
    /// Whatever lies there is cold.
    Pack,
    Snapshot(u8),
    Forget(u8),
}

pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => prop::collection::vec(act(), 1..6).prop_map(Step::Commit),
        4 => act().prop_map(Step::Plain),
        1 => Just(Step::Sync),
        1 => Just(Step::Checkpoint),
        1 => any::<u64>().prop_map(|s| Step::Large(s >> 20)),
        1 => any::<bool>().prop_map(Step::Clean),
        1 => Just(Step::Tend),
        1 => Just(Step::Coalesce),
        2 => Just(Step::Pack),
        1 => (0..3u8).prop_map(Step::Snapshot),
        1 => (0..3u8).prop_map(Step::Forget),
    ]
}

/// Steps by a seed.
pub fn workload(seed: u8, len: usize) -> Vec<Step> {
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
        ops.write(f, seed % 5 * 4096, &some(seed, 30 * 4096))
    })
}

/// Does a step.  Returns whether it, and all before it, are durable now.
pub fn take(volume: &Volume, step: &Step) -> Result<bool, Error> {
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
        Step::Tend => {
            let plan = Plan { below_percent: 90, until_percent: 95, ..Plan::default() };
            let mut at = Tending::default();
            volume.tend(&plan, &CostBenefit, &mut at, &|| false).map(|_| false)
        }
        Step::Coalesce => volume.coalesce(0, 100, &|| false).map(|_| false),
        Step::Pack => {
            volume.checkpoint()?;
            volume.pack().map(|_| true)
        }
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
pub struct Run {
    pub disk: Arc<SimDisk>,
    pub trees: Vec<Dump>,
}

/// A mark says how many steps were begun and how many are durable.
fn mark(begun: usize, durable: usize) -> u64 {
    (begun as u64) << 32 | durable as u64
}

pub fn record(steps: &[Step]) -> Run {
    record_clusters(steps, 1)
}

/// As [`record`], on a volume that writes so many pages together.
pub fn record_clusters(steps: &[Step], cluster: u32) -> Run {
    let (disk, volume) = fresh_clusters(BLOCKS, cluster);
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
pub fn judge(disk: SimDisk, allowed: &[Dump], past: &[Dump]) -> Result<Dump, String> {
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
    let checked = check(disk.clone(), super::clock()).map_err(|e| format!("fsck: {e}"))?;
    if let Some(finding) = checked.findings.first() {
        return Err(format!("fsck: {finding}"));
    }
    if tree(&opened(&disk)?) != after {
        return Err("what was committed afterwards is not there".into());
    }
    Ok(found)
}

/// All crashes of a record, the trees they left, or the first that is wrong.
pub fn crashes(run: &Run, cuts: Cuts) -> Result<usize, String> {
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

pub fn cuts(each: usize) -> Cuts {
    Cuts { each: each * budget(), seed: 1 }
}

/// All sets of up to two of the blocks that have checkpoints, and at least one.
fn damages(most: usize) -> Vec<Vec<u64>> {
    let blocks = 1..=2 * COPIES;
    let mut sets: Vec<Vec<u64>> = blocks.clone().map(|at| vec![at]).collect();
    if most > 1 {
        sets.extend(blocks.clone().flat_map(|a| blocks.clone().map(move |b| vec![a, b])));
    }
    sets.retain(|set| set.is_sorted_by(|a, b| a < b));
    sets
}

/// All crashes of a record, each with up to `most` of the blocks damaged that have checkpoints:
/// what opens has the newest state, and what does not says so.  Returns how many of both.
pub fn damaged(run: &Run, cuts: Cuts, most: usize) -> Result<(usize, usize), String> {
    let mut wrong = Ok((0, 0));
    run.disk.crashes(cuts, |crash| {
        let (begun, durable) = ((crash.mark >> 32) as usize, (crash.mark & 0xffff_ffff) as usize);
        for set in damages(most) {
            let Ok((opened, refused)) = wrong else { return };
            wrong = match newest(&crash.disk, &set, &run.trees[durable..=begun]) {
                Ok(true) => Ok((opened + 1, refused)),
                Ok(false) => Ok((opened, refused + 1)),
                Err(e) => Err(format!("{}, {durable} of {begun} durable: {e}", crash.name)),
            };
        }
    });
    wrong
}

/// Whether a disk with these blocks damaged opens with one of these trees, or does not open.
pub fn newest(disk: &SimDisk, damaged: &[u64], allowed: &[Dump]) -> Result<bool, String> {
    let disk = Arc::new(disk.copy());
    damaged.iter().for_each(|at| disk.damage(*at, 1 + 40 * *at as usize));
    match open(disk.clone()) {
        Ok(volume) if allowed.contains(&tree(&volume)) => Ok(true),
        Ok(_) => Err(format!("with blocks {damaged:?} damaged it has an older tree")),
        Err(Error::Corrupt { what: Structure::Checkpoint, .. }) => {
            let found = check(disk, super::clock()).map_err(|e| format!("fsck: {e}"))?;
            let is_named = |f: &Finding| {
                matches!(f, Finding::Damaged { what: Structure::Checkpoint, at, .. }
                    if damaged.contains(at))
            };
            match found.findings.iter().any(is_named) {
                true => Ok(false),
                false => Err(format!("fsck does not name one of blocks {damaged:?}")),
            }
        }
        Err(e) => Err(format!("with blocks {damaged:?} damaged: {e}")),
    }
}

/// Does steps on a disk that lies about a barrier, and counts those that there are.
pub fn lied(steps: &[Step], fault: Fault) -> (Result<usize, String>, (u64, u64)) {
    let (disk, volume) = fresh_packing(BLOCKS);
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
    let run = Run { disk, trees };
    (crashes(&run, cuts(40)).and_then(|seen| Ok(seen + damaged(&run, cuts(40), 1)?.0)), barriers)
}
