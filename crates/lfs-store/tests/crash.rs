//! Power cuts at every write and sync of commits, on a disk that keeps any part of what was not
//! synced: the tree is as after some of the commits, all of those that were acknowledged among
//! them; the history is of the same ones, and the last can be undone.

#![allow(clippy::unwrap_used)]

mod common;

use common::volume::{meta, open, open_among};
use common::{Dump, Sets, bytes, dump, patch, whole};
use std::sync::Arc;
use systx_base::{Kind, TxnId, mix};
use systx_lfs::Greedy;
use systx_lfs::device::{Cuts, Fault, SimDisk};
use systx_lfs::format::BLOCK;
use systx_lfs::fsck::check;
use systx_lfs_store::VolumeStore;
use systx_store::writeset::{NewKind, WriteSet};
use systx_store::{
    CommitError, Committed, Joint, Keep, Member, Outcome, Outcomes, Ready, Store, TxnKind,
};

const BLOCKS: u64 = 4096;

fn budget() -> u64 {
    std::env::var("SYSTX_SIM_BUDGET").ok().and_then(|b| b.parse().ok()).unwrap_or(1)
}

/// A disk with a volume, and nothing recorded of how it was made.
fn fresh() -> (Arc<SimDisk>, Arc<VolumeStore>) {
    fresh_clusters(1)
}

/// That writes so many pages of a file together.
fn fresh_clusters(cluster: u32) -> (Arc<SimDisk>, Arc<VolumeStore>) {
    let disk = Arc::new(SimDisk::new(BLOCKS));
    common::volume::make_clusters(disk.clone(), cluster);
    drop(open(disk.clone()));
    let disk = Arc::new(disk.copy());
    let store = open(disk.clone());
    (disk, store)
}

fn ready(store: &VolumeStore, txn: u64, kind: TxnKind, set: WriteSet) -> Ready {
    let reservation = store.reserve(&set).unwrap();
    let meta = systx_store::CommitMeta { kind, ..meta(TxnId(txn)) };
    Ready { reservation, set, meta }
}

/// One change of a tree, by a draw; `None` if it would not fit.
fn change<'a>(store: &'a VolumeStore, now: &Dump, draw: u64) -> Option<Sets<'a>> {
    let mut sets = Sets::new(store);
    let of = |kind: Kind| now.iter().filter(move |(_, seen)| seen.kind == kind);
    let pick = |kind: Kind, draw: u64| {
        let all: Vec<&String> = of(kind).map(|(path, _)| path).collect();
        (!all.is_empty()).then(|| all[(draw % all.len() as u64) as usize].clone())
    };
    let dir = pick(Kind::Dir, draw >> 8).filter(|_| draw & 0x80 != 0).unwrap_or_default();
    let new = format!("{dir}/n{}", draw >> 16 & 15);
    let is_there = now.contains_key(&new);
    let (seed, len) = (draw >> 20, (draw >> 24 & 0x3fff) as usize);
    match draw & 15 {
        0..=2 if !is_there => sets.file(&new, &bytes(seed, len)),
        3 if !is_there => drop(sets.make(&new, NewKind::Dir)),
        4 if !is_there => drop(sets.make(&new, NewKind::Symlink(b"target".into()))),
        5 | 6 => {
            let path = pick(Kind::File, draw >> 16)?;
            let (at, size) = (draw >> 40 & 0xfff, now[&path].content.len() as u64);
            let long = bytes(seed, 1 + len / 4);
            sets.object(&path).content = patch(size.max(at + long.len() as u64), at, &long);
        }
        7 => sets.object(&pick(Kind::File, draw >> 16)?).content = whole(&bytes(seed, len)),
        8 => {
            let path = pick(Kind::File, draw >> 16)?;
            let half = now[&path].content.len() as u64 / 2;
            sets.object(&path).content = patch(half, 0, b"");
        }
        9 => sets.remove(&pick(Kind::File, draw >> 16)?),
        10 => sets.remove(&pick(Kind::Dir, draw >> 16)?),
        11 | 12 => {
            let from = pick(Kind::File, draw >> 16)?;
            let replaces = now.get(&new).is_some_and(|seen| seen.kind == Kind::File);
            if from == new || is_there && !replaces {
                return None;
            }
            sets.rename(&from, &new, is_there);
        }
        13 if !is_there => sets.link(&pick(Kind::File, draw >> 16)?, &new),
        14 => {
            let object = sets.object(&pick(Kind::File, draw >> 16)?);
            object.attrs.mode = Some(0o600 + (draw >> 40 & 7) as u32);
            object.xattrs = vec![(b"user.x".to_vec(), Some(bytes(seed, 40)))];
        }
        _ => return None,
    }
    sets.set.check().ok().map(|()| sets)
}

/// What was done on a disk, and the trees after each commit.
struct Run {
    disk: Arc<SimDisk>,
    trees: Vec<Dump>,
}

/// How many commits had begun, and how many were acknowledged.
fn mark(disk: &SimDisk, begun: usize, durable: usize) {
    disk.mark((begun as u64) << 32 | durable as u64);
}

fn workload(seed: u64, count: usize, fault: Fault) -> Run {
    let (disk, store) = fresh_clusters([1, 4, 16][(seed % 3) as usize]);
    disk.fault(fault);
    let mut trees = vec![dump(&store)];
    let mut draw = mix(seed + 1);
    while trees.len() <= count {
        draw = mix(draw.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let (n, now) = (trees.len(), trees.last().unwrap().clone());
        let (kind, set) = if draw >> 60 == 0 && n > 1 {
            // What was done last is taken back.
            let of = TxnId(n as u64 - 1);
            (TxnKind::Undo { of }, store.undo_set(of).unwrap())
        } else {
            let Some(sets) = change(&store, &now, draw) else { continue };
            let (set, slots, in_use) = (sets.set, Vec::new(), Box::new(()) as _);
            (TxnKind::Run, systx_store::Undo { set, slots, in_use })
        };
        mark(&disk, n, n - 1);
        let one = ready(&store, n as u64, kind, set.set.clone());
        let done = store.commit_group(vec![one]).pop().unwrap().unwrap();
        mark(&disk, n, n);
        assert_eq!(dump(&store), now, "seed {seed}, commit {n} is seen before it is applied");
        store.apply(done.lsn).unwrap();
        trees.push(dump(&store));
        if draw >> 56 & 7 == 0 {
            store.checkpoint().unwrap();
        }
    }
    Run { disk, trees }
}

/// Looks at what a power cut has left.
fn judge(disk: SimDisk, run: &Run, (begun, durable): (usize, usize)) -> Result<(), String> {
    let disk = Arc::new(disk);
    let store = open(disk.clone());
    let found = dump(&store);
    let history: Vec<u64> = store.history().unwrap().iter().map(|entry| entry.meta.txn.0).collect();
    let n = history.len();
    let all: Vec<u64> = (1..=n as u64).collect();
    if history != all || n < durable || n > begun {
        return Err(format!("{history:?} in the history of {durable} to {begun}"));
    }
    if found != run.trees[n] {
        return Err(format!("{n} in the history, and another tree"));
    }
    if n > 0 {
        let of = TxnId(n as u64);
        let undo = store.undo_set(of).map_err(|error| format!("undo: {error}"))?;
        let one = ready(&store, 1_000_000, TxnKind::Undo { of }, undo.set.clone());
        let done = store.commit_group(vec![one]).pop().unwrap().map_err(|e| e.to_string())?;
        store.apply(done.lsn).map_err(|e| e.to_string())?;
        if dump(&store) != run.trees[n - 1] {
            return Err(format!("undo of {n} leaves another tree"));
        }
    }
    store.close().map_err(|e| e.to_string())?;
    drop(store);
    match check(disk, common::volume::clock()) {
        Ok(report) if report.findings.is_empty() => Ok(()),
        Ok(report) => Err(format!("{:?}", report.findings)),
        Err(error) => Err(error.to_string()),
    }
}

fn crashes(run: &Run, cuts: Cuts) -> Result<usize, String> {
    let (mut seen, mut wrong) = (0, None);
    run.disk.crashes(cuts, |crash| {
        let at = ((crash.mark >> 32) as usize, (crash.mark & 0xffff_ffff) as usize);
        seen += 1;
        if wrong.is_none()
            && let Err(error) = judge(crash.disk, run, at)
        {
            wrong = Some(format!("{} after {at:?}: {error}", crash.name));
        }
    });
    wrong.map_or(Ok(seen), Err)
}

#[test]
fn a_power_cut_leaves_the_acknowledged_commits_and_whole_ones() {
    let mut seen = 0;
    for seed in 0..4 * budget() {
        let run = workload(seed, 16, Fault::None);
        let cuts = Cuts { each: 6, seed };
        seen += crashes(&run, cuts).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{seen} crashes");
    assert!(seen > 300, "{seen}");
}

/// Undos of undos of a file that is too large for its record, so that blocks go to and fro between
/// it and what is kept of it; with checkpoints and cleaning in between.
fn to_and_fro(cluster: u32) -> Run {
    let (disk, store) = fresh_clusters(cluster);
    let mut trees = vec![dump(&store)];
    for (n, of) in (1..).zip([0, 0, 2, 3, 2, 0, 6, 5, 2]) {
        let (kind, undo) = match of {
            0 if n == 1 => {
                let mut sets = Sets::new(&store);
                sets.file("/f", &bytes(n, 80_000));
                (TxnKind::Run, Ok(sets.set))
            }
            0 => {
                let mut sets = Sets::new(&store);
                sets.object("/f").content = patch(78_000, 100, &bytes(n, 60_000));
                (TxnKind::Run, Ok(sets.set))
            }
            of => (TxnKind::Undo { of: TxnId(of) }, Err(store.undo_set(TxnId(of)).unwrap())),
        };
        let set = undo.as_ref().map_or_else(|undo| undo.set.clone(), Clone::clone);
        mark(&disk, n as usize, n as usize - 1);
        let done = store.commit_group(vec![ready(&store, n, kind, set)]).pop().unwrap().unwrap();
        mark(&disk, n as usize, n as usize);
        store.apply(done.lsn).unwrap();
        trees.push(dump(&store));
        match n % 4 {
            1 => store.checkpoint().unwrap(),
            3 => {
                let free = store.volume().space().free_segments;
                store.volume().clean(&Greedy, free + 1).map(drop).unwrap();
            }
            _ => {}
        }
    }
    Run { disk, trees }
}

#[test]
fn a_power_cut_leaves_all_of_what_an_undo_moves_or_nothing() {
    for cluster in [1, 8] {
        let run = to_and_fro(cluster);
        let seen = crashes(&run, Cuts { each: 12, seed: 7 });
        let seen = seen.unwrap_or_else(|e| panic!("{cluster}: {e}"));
        println!("{seen} crashes");
        assert!(seen > 100, "{seen}");
    }
}

/// Commits that overwrite different pages of one file, two in a group and a third one before they
/// are applied, which are then applied in any order.
fn side_by_side(cluster: u32) -> Run {
    let (disk, store) = fresh_clusters(cluster);
    let len = 9 * BLOCK as u64 - 500;
    let mut trees = vec![dump(&store)];
    let mut sets = Sets::new(&store);
    sets.file("/f", &bytes(1, len as usize));
    mark(&disk, 1, 0);
    let done = store.commit_group(vec![ready(&store, 1, TxnKind::Run, sets.set)]).remove(0);
    mark(&disk, 1, 1);
    store.apply(done.unwrap().lsn).unwrap();
    trees.push(dump(&store));
    for (round, shown) in [[2, 1, 0], [0, 2, 1], [1, 0, 2]].into_iter().enumerate() {
        let first = trees.len();
        let mut all = Vec::new();
        for n in first..first + 3 {
            let (at, new) = ((n * 4 % 9) * BLOCK + 3 * round, bytes(n as u64, BLOCK - 500));
            let mut next = trees.last().unwrap().clone();
            next.get_mut("/f").unwrap().content[at..at + new.len()].copy_from_slice(&new);
            trees.push(next);
            let mut sets = Sets::new(&store);
            sets.object("/f").content = patch(len, at as u64, &new);
            all.push(ready(&store, n as u64, TxnKind::Run, sets.set));
        }
        let late = all.pop().unwrap();
        mark(&disk, first + 1, first - 1);
        let mut done = store.commit_group(all);
        mark(&disk, first + 2, first + 1);
        done.extend(store.commit_group(vec![late]));
        mark(&disk, first + 2, first + 2);
        let lsns: Vec<u64> = done.into_iter().map(|done| done.unwrap().lsn).collect();
        for (step, n) in shown.into_iter().enumerate() {
            store.apply(lsns[n]).unwrap();
            if step == round {
                store.checkpoint().unwrap();
            }
        }
        assert_eq!(dump(&store), *trees.last().unwrap());
    }
    Run { disk, trees }
}

#[test]
fn a_power_cut_leaves_whole_ones_of_commits_that_share_a_file() {
    for cluster in [1, 4] {
        let run = side_by_side(cluster);
        let seen = crashes(&run, Cuts { each: 12, seed: 3 });
        let seen = seen.unwrap_or_else(|e| panic!("{cluster}: {e}"));
        println!("{seen} crashes");
        assert!(seen > 100, "{seen}");
    }
}

/// A suite that passes with the barrier missing would prove nothing about it.
#[test]
fn a_disk_that_lies_about_a_commit_is_noticed() {
    for n in 0..3 {
        let run = workload(1, 4, Fault::SkipsDurable(n));
        crashes(&run, Cuts { each: 20, seed: 1 }).expect_err("a write that is not durable");
    }
}

/// Always the same.
struct Always(Outcome);

impl Outcomes for Always {
    fn outcome(&self, _: &Joint) -> Outcome {
        self.0
    }
}

fn joint(me: u32) -> Joint {
    let member = |store| Member { store, memory: false, path: b"/x".to_vec() };
    Joint { id: 77, members: vec![member(1), member(2)], decider: 0, me }
}

/// A part that another store decides: it counts if that one says so, whenever the power goes.
#[test]
fn a_prepared_part_counts_after_a_power_cut_if_its_decider_says_so() {
    let (disk, store) = fresh();
    let before = dump(&store);
    let slot = store.stage().unwrap();
    slot.write_at(&bytes(3, 5000), 0).unwrap();
    let mut sets = Sets::new(&store);
    sets.make("/n", NewKind::File).content = systx_store::writeset::Content::Slot(slot.id());
    let one = ready(&store, 1, TxnKind::Run, sets.set.clone());
    let claim = store.claim(&sets.set).unwrap();
    mark(&disk, 1, 0);
    let lsn = store.prepare(claim, one, joint(1)).unwrap();
    mark(&disk, 1, 1);
    drop(slot);
    store.checkpoint().unwrap();
    store.decided(lsn, true);
    assert_eq!(dump(&store), before);
    store.apply(lsn).unwrap();
    let after = dump(&store);
    assert_eq!(after["/n"].content, bytes(3, 5000));
    mark(&disk, 1, 2);
    store.checkpoint().unwrap();
    assert!(store.has_let_go(Committed { lsn }));
    let mut seen = [0; 3];
    disk.crashes(Cuts { each: 12, seed: 5 }, |crash| {
        let prepared = crash.mark & 0xffff_ffff;
        let other = Arc::new(crash.disk.copy());
        let disk = Arc::new(crash.disk);
        let found = dump(&open_among(disk.clone(), &Always(Outcome::Committed)));
        assert!(found == after || prepared == 0 && found == before, "{}", crash.name);
        // Once it says so it never says anything else, but it need not be asked.
        let asked =
            systx_lfs_store::open(other, common::volume::config(), &Always(Outcome::Unknown));
        match asked {
            Err(systx_store::OpenError::Waits { txn: TxnId(1), .. }) => seen[0] += 1,
            Err(error) => panic!("{}: {error}", crash.name),
            Ok(store) if dump(&store) == after => seen[1] += 1,
            Ok(store) => {
                assert_eq!((prepared, dump(&store)), (0, before.clone()), "{}", crash.name);
                seen[2] += 1;
            }
        }
        assert_eq!(dump(&open(disk)), found, "{}", crash.name);
    });
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
    let run = |outcome| {
        let (disk, store) = fresh();
        let mut sets = Sets::new(&store);
        sets.file("/n", b"n");
        let one = ready(&store, 1, TxnKind::Run, sets.set.clone());
        let claim = store.claim(&sets.set).unwrap();
        store.prepare(claim, one, joint(1)).unwrap();
        drop(store);
        dump(&open_among(disk, &Always(outcome))).len()
    };
    assert_eq!([run(Outcome::Committed), run(Outcome::Aborted)], [1, 0]);
}

/// What is forgotten is given back in steps; none of them costs anything that is committed.
#[test]
fn a_power_cut_while_forgetting_costs_no_commit() {
    let mut run = workload(9, 12, Fault::None);
    let disk = Arc::new(run.disk.copy());
    let store = open(disk.clone());
    let keep = Keep { count: 1, log: 100, ..Keep::default() };
    assert_eq!(store.gc(keep).unwrap().removed.len(), 11);
    store.checkpoint().unwrap();
    run.disk = disk;
    let mut seen = 0;
    run.disk.clone().crashes(Cuts { each: 12, seed: 2 }, |crash| {
        seen += 1;
        judge(crash.disk, &run, (12, 12)).unwrap_or_else(|e| panic!("{}: {e}", crash.name));
    });
    assert!(seen > 10, "{seen}");
}

/// A write that fails: the commit says that it is in doubt, nothing more is taken, and what was
/// acknowledged is there.
#[test]
fn a_failed_write_leaves_a_commit_in_doubt_and_stops_the_store() {
    let (disk, store) = fresh();
    let mut sets = Sets::new(&store);
    sets.file("/a", b"a");
    common::volume::write(&store, TxnId(1), sets.set);
    let (before, mut sets) = (dump(&store), Sets::new(&store));
    sets.file("/b", b"b");
    let one = ready(&store, 2, TxnKind::Run, sets.set.clone());
    disk.fault(Fault::Fails(0));
    let done = store.commit_group(vec![one]).pop().unwrap();
    assert!(matches!(done, Err(CommitError::InDoubt(_))), "{done:?}");
    assert!(store.reserve(&sets.set).is_err());
    assert_eq!(dump(&store), before, "reads go on");
    drop(store);
    assert_eq!(dump(&open(Arc::new(disk.copy())))["/a"].content, b"a");
}
