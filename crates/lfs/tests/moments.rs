//! Moments: whoever reads one sees the tree as it was at its begin, whatever is done beside it; and
//! whoever does that is refused nothing for their sake.

#![allow(clippy::unwrap_used)]

mod common;

use common::acts::{act, plain};
use common::power::{Run, Step, crashes, cuts, record_clusters, step, take, workload};
use common::{
    BLOCKS, Dump, LIMITS, SEGMENT, budget, bytes, clock, cluster_of, commit, dir, dump, file,
    fresh_clusters, open, tree,
};
use proptest::prelude::*;
use std::sync::Arc;
use systx_lfs::device::SimDisk;
use systx_lfs::format::ROOT;
use systx_lfs::fsck::check;
use systx_lfs::{Error, Greedy, Limits, Moment, Ops, SetAttrs, SetXattr, Txn, Volume};

fn shared(blocks: u64) -> (Arc<SimDisk>, Arc<Volume>) {
    shared_clusters(blocks, 1)
}

fn shared_clusters(blocks: u64, cluster: u32) -> (Arc<SimDisk>, Arc<Volume>) {
    let (disk, volume) = fresh_clusters(blocks, cluster);
    (disk, Arc::new(volume))
}

/// Names of the files that the tests by hand work on, with their content.
fn some_files(volume: &Volume) {
    commit(volume, |ops| {
        for (seed, name) in (0..).zip([b"f", b"g", b"h", b"i"]) {
            let f = ops.create(ROOT, name, &file())?;
            ops.write(f, 0, &bytes(seed, 20_000))?;
            ops.set_xattr(f, b"user.x", b"before", SetXattr::Any)?;
        }
        let d = ops.create(ROOT, b"d", &dir())?;
        let e = ops.create(d, b"e", &dir())?;
        ops.create(e, b"below", &file()).map(drop)
    })
    .unwrap();
}

fn ino(ops: &mut Ops<'_>, name: &[u8]) -> u64 {
    ops.lookup(ROOT, name).unwrap().ino
}

/// One of everything.
fn change(ops: &mut Ops<'_>) -> Result<(), Error> {
    let [f, g, i] = [b"f", b"g", b"i"].map(|name| ino(ops, name));
    ops.write(f, 4000, &bytes(9, 9000))?;
    ops.write(f, 50_000, b"behind the end")?;
    ops.set_xattr(f, b"user.x", b"after", SetXattr::Any)?;
    ops.set_xattr(f, b"user.y", b"new", SetXattr::Any)?;
    ops.set_attrs(g, &SetAttrs { size: Some(5000), mode: Some(0o600), ..SetAttrs::default() })?;
    ops.set_attrs(g, &SetAttrs { size: Some(30_000), uid: Some(7), ..SetAttrs::default() })?;
    ops.punch(i, 0, 8192)?;
    ops.link(i, ROOT, b"second")?;
    ops.unlink(ROOT, b"h")?;
    let d = ino(ops, b"d");
    let e = ops.lookup(d, b"e")?.ino;
    ops.unlink(e, b"below")?;
    ops.rmdir(d, b"e")?;
    ops.rmdir(ROOT, b"d")?;
    let d = ops.create(ROOT, b"d", &dir())?;
    ops.create(d, b"another", &file()).map(drop)
}

/// Writes until all of the log has been written over many times.
fn churn(volume: &Volume, rounds: u64) {
    for n in 0..rounds {
        let done = commit(volume, |ops| {
            let f = match ops.lookup(ROOT, b"churn") {
                Ok(link) => link.ino,
                Err(_) => ops.create(ROOT, b"churn", &file())?,
            };
            ops.write(f, 0, &bytes(n, 40_000))
        });
        done.unwrap();
        volume.checkpoint().unwrap();
    }
}

fn blocks(ops: &mut Ops<'_>) -> Result<Vec<u64>, Error> {
    [b"f", b"g", b"h", b"i"]
        .iter()
        .map(|name| {
            let ino = ops.lookup(ROOT, *name)?.ino;
            ops.blocks(ino)
        })
        .collect()
}

#[test]
fn a_moment_stays_as_it_was_and_the_next_one_is_another() {
    // What is only in memory, what is in the log, what is in a checkpoint.
    for stage in 0..3 {
        let (disk, volume) = shared(BLOCKS);
        some_files(&volume);
        let unwritten = |ops: &mut Ops<'_>| {
            let i = ino(ops, b"i");
            ops.write(i, 100, b"not written yet")
        };
        volume.plain(unwritten).unwrap();
        match stage {
            0 => {}
            1 => volume.sync().unwrap(),
            _ => volume.checkpoint().unwrap(),
        }
        let (first, room) = (tree(&volume), volume.look(blocks).unwrap());
        let moment = volume.moment();
        assert_eq!(moment.look(dump).unwrap(), first);
        commit(&volume, change).unwrap();
        let (second, again) = (tree(&volume), volume.moment());
        assert_ne!(first, second);
        let both = || {
            assert_eq!(moment.look(dump).unwrap(), first, "{stage}");
            assert_eq!(moment.look(blocks).unwrap(), room, "{stage}");
            assert_eq!(again.look(dump).unwrap(), second, "{stage}");
        };
        both();
        volume.checkpoint().unwrap();
        volume.plain(|ops| ops.unlink(ROOT, b"f").map(drop)).unwrap();
        volume.plain(|ops| ops.unlink(ROOT, b"second").map(drop)).unwrap();
        both();
        let until = volume.space().free_segments + 3;
        volume.clean(&Greedy, until).unwrap();
        volume.coalesce(0, 100, &|| false).unwrap();
        volume.snapshot("s").unwrap();
        both();
        churn(&volume, 20);
        both();
        assert!(matches!(moment.look(|ops| ops.unlink(ROOT, b"f")), Err(Error::ReadOnly)));
        // Nothing of them is on the medium.
        let cut = open(Arc::new(disk.copy())).unwrap();
        assert_eq!(tree(&cut), tree(&volume));
        drop((moment, again));
        drop(volume);
        assert_eq!(check(disk, clock()).unwrap().findings, []);
    }
}

#[test]
fn what_is_held_or_hidden_is_as_it_was_shown() {
    let (_, volume) = shared(BLOCKS);
    some_files(&volume);
    volume.checkpoint().unwrap();
    let first = tree(&volume);
    let before = volume.moment();
    // Somebody has it open when it is removed, and lets go of it later.
    let h = volume.look(|ops| Ok(ino(ops, b"h"))).unwrap();
    volume.hold(h).unwrap();
    let mut txn = Txn::new();
    volume.within(&mut txn, change).unwrap();
    let hidden = volume.commit_hidden(txn, &mut None).unwrap();
    volume.durable(hidden.ticket()).unwrap();
    // Not shown yet: not seen by it, also afterwards.
    let beside = volume.moment();
    let all = |shown: &Dump| {
        for moment in [&before, &beside] {
            assert_eq!(moment.look(dump).unwrap(), first);
        }
        assert_eq!(tree(&volume), *shown);
    };
    all(&first);
    volume.show(hidden).unwrap();
    let second = tree(&volume);
    let after = volume.moment();
    all(&second);
    volume.release(h).unwrap();
    all(&second);
    churn(&volume, 20);
    all(&tree(&volume));
    let seen = after.look(dump).unwrap();
    assert_eq!(seen, second);
}

#[test]
fn what_nobody_reads_any_longer_is_nobodys() {
    let (_, volume) = shared(BLOCKS);
    some_files(&volume);
    // As many as there are segments, each after the other: none has to be given up.
    for n in 0..60 {
        let seen = tree(&volume);
        let moment = volume.moment();
        commit(&volume, |ops| {
            let f = ino(ops, b"f");
            ops.write(f, 0, &bytes(n, 60_000))
        })
        .unwrap();
        churn(&volume, 2);
        assert_eq!(moment.look(dump).unwrap(), seen, "{n}");
    }
    // Of what was made since its begin it keeps nothing.
    let (seen, moment) = (tree(&volume), volume.moment());
    for n in 0..200 {
        volume.plain(|ops| ops.create(ROOT, b"new", &file())).unwrap();
        commit(&volume, |ops| {
            let f = ino(ops, b"new");
            ops.write(f, 0, &bytes(n, 40_000))
        })
        .unwrap();
        volume.plain(|ops| ops.unlink(ROOT, b"new").map(drop)).unwrap();
    }
    assert_eq!(moment.look(dump).unwrap(), seen);
}

#[test]
fn a_moment_that_needs_too_much_is_given_up_and_says_so() {
    for limit in [None, Some(10)] {
        let disk = Arc::new(SimDisk::new(BLOCKS));
        common::made(disk.clone());
        let limits = Limits { kept_max: limit.unwrap_or(LIMITS.kept_max), ..LIMITS };
        let volume = Arc::new(Volume::open(disk, clock(), 42, limits).unwrap());
        commit(&volume, |ops| {
            let f = ops.create(ROOT, b"f", &file())?;
            ops.write(f, 0, &bytes(0, 900_000))
        })
        .unwrap();
        volume.checkpoint().unwrap();
        let (seen, moment, other) = (tree(&volume), volume.moment(), volume.moment());
        assert!(!moment.is_given_up());
        let mut written = 0;
        for n in 0..400u64 {
            let f = volume.look(|ops| Ok(ino(ops, b"f"))).unwrap();
            commit(&volume, |ops| ops.write(f, n * 20_000 % 900_000, &bytes(n, 20_000))).unwrap();
            if !moment.is_given_up() {
                assert_eq!(moment.look(dump).unwrap(), seen);
                written += 1;
            }
        }
        // The whole of the file and its past do not fit; a good part of it does.
        let most = if limit.is_some() { 3 } else { 60 };
        assert!(written < most && (limit.is_some() || written > 10), "{written}");
        for moment in [moment, other] {
            assert!(moment.is_given_up());
            assert!(matches!(moment.look(dump), Err(Error::GivenUp)));
        }
        // The next one is none of theirs.
        let (seen, next) = (tree(&volume), volume.moment());
        let f = volume.look(|ops| Ok(ino(ops, b"f"))).unwrap();
        commit(&volume, |ops| ops.write(f, 0, &bytes(1, 10_000))).unwrap();
        assert_eq!(next.look(dump).unwrap(), seen);
    }
}

/// What is done with moments beside what others do.
#[derive(Clone, Debug)]
enum Beside {
    Step(Step),
    Begin,
    End(usize),
    Look(usize),
}

fn beside() -> impl Strategy<Value = Beside> {
    prop_oneof![
        12 => step().prop_map(Beside::Step),
        3 => act().prop_map(|act| Beside::Step(Step::Plain(act))),
        3 => Just(Beside::Begin),
        1 => any::<usize>().prop_map(Beside::End),
        1 => any::<usize>().prop_map(Beside::Look),
    ]
}

fn compare(all: &[(Moment, Dump)]) -> usize {
    let seen = |(moment, then): &&(Moment, Dump)| match moment.look(dump) {
        Ok(now) => {
            assert!(now == *then, "not as it was:\n{now:?}\n{then:?}");
            true
        }
        Err(Error::GivenUp) => {
            assert!(moment.is_given_up());
            false
        }
        Err(e) => panic!("{e}"),
    };
    all.iter().filter(seen).count()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200 * budget() as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn moments_are_of_their_begin(
        all in prop::collection::vec(beside(), 1..80), seed in any::<u64>()
    ) {
        let (disk, volume) = shared_clusters(BLOCKS, cluster_of(seed));
        let first = workload(0, 1).remove(0);
        take(&volume, &first).unwrap();
        let mut moments: Vec<(Moment, Dump)> = Vec::new();
        for beside in all {
            match beside {
                Beside::Step(step) => {
                    let before = tree(&volume);
                    match take(&volume, &step) {
                        // Large clusters leave little of so small a volume.
                        Err(Error::NoSpace) => assert!(tree(&volume) == before, "{step:?}"),
                        done => drop(done.unwrap()),
                    }
                }
                Beside::Begin => moments.push((volume.moment(), tree(&volume))),
                Beside::End(n) if !moments.is_empty() => {
                    drop(moments.remove(n % moments.len()));
                }
                Beside::Look(n) if !moments.is_empty() => {
                    compare(&moments[n % moments.len()..][..1]);
                }
                _ => {}
            }
        }
        compare(&moments);
        volume.sync().unwrap();
        drop((moments, volume));
        assert_eq!(check(disk, clock()).unwrap().findings, []);
    }
}

/// As `record`, with a moment that is begun before each step, and read after each.
fn record_beside(steps: &[Step], cluster: u32) -> Run {
    let (disk, volume) = shared_clusters(BLOCKS, cluster);
    drop(volume);
    let disk = Arc::new(disk.copy());
    let volume = Arc::new(open(disk.clone()).unwrap());
    let (mut trees, mut moments) = (vec![tree(&volume)], Vec::new());
    let mut durable = 0;
    for (n, step) in steps.iter().enumerate() {
        moments.push((volume.moment(), trees[n].clone()));
        let mark = |durable: usize| disk.mark((n as u64 + 1) << 32 | durable as u64);
        mark(durable);
        if take(&volume, step).unwrap_or_else(|e| panic!("{step:?}: {e}")) {
            durable = n + 1;
        }
        trees.push(tree(&volume));
        mark(durable);
        assert_eq!(compare(&moments), moments.len(), "{step:?}");
        if n % 5 == 4 {
            drop(moments.remove(n % 3));
        }
    }
    Run { disk, trees }
}

#[test]
fn a_power_cut_leaves_nothing_of_moments() {
    let mut seen = 0;
    for seed in 0..10 * budget() as u8 {
        let steps = workload(seed, 14);
        let cluster = cluster_of(seed.into());
        let run = record_beside(&steps, cluster);
        // But for times: what the cleaner's thread does beside moments is its own affair.
        let same = |(a, b): (&Dump, &Dump)| plain(a) == plain(b);
        let alone = record_clusters(&steps, cluster);
        assert!(run.trees.iter().zip(&alone.trees).all(same), "seed {seed}");
        seen += crashes(&run, cuts(14)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{seen} crashes");
    assert!(seen > 1000, "{seen}");
}

/// One operation on a volume that is always full.
fn crowd(volume: &Volume, draw: u64, n: u64) -> Result<(), Error> {
    let name = format!("f{}", draw % 30);
    match draw >> 8 & 15 {
        0 => volume.snapshot(&format!("s{}", draw >> 16 & 1)),
        1 => volume.remove_snapshot(&format!("s{}", draw >> 16 & 1)),
        2..=5 => volume.plain(|ops| ops.unlink(ROOT, name.as_bytes()).map(drop)),
        6 => volume.clean(&Greedy, 12).map(drop),
        7 => volume.coalesce(0, 100, &|| false).map(drop),
        _ => commit(volume, |ops| {
            let f = match ops.lookup(ROOT, name.as_bytes()) {
                Ok(link) => link.ino,
                Err(_) => ops.create(ROOT, name.as_bytes(), &file())?,
            };
            let len = 1 + (draw >> 24) as usize % 60_000;
            ops.write(f, draw >> 50 & 0xffff, &bytes(n, len))
        }),
    }
}

/// What a full volume refuses beside moments it refuses without, too.
#[test]
fn nobody_is_refused_anything_for_the_sake_of_moments() {
    let (mut refused, mut given_up, mut read) = (0, 0, 0);
    for seed in 0..8 * budget() as u64 {
        let blocks = 9 + 24 * u64::from(SEGMENT);
        let (disk, volume) = shared(blocks);
        let mut moments: Vec<(Moment, Dump)> = Vec::new();
        for n in 0..700u64 {
            let draw = systx_base::mix(seed << 32 | (n + 1));
            if let Err(Error::NoSpace) = crowd(&volume, draw, n) {
                refused += 1;
                if draw >> 59 == 0 {
                    // Nor when there are none any more.
                    moments.clear();
                    let again = crowd(&volume, draw, n);
                    let same = matches!(again, Err(Error::NoSpace));
                    assert!(same, "seed {seed}, operation {n}: {again:?}");
                }
            }
            if n % 4 == 0 {
                let gone = moments.len();
                moments.retain(|(moment, _)| !moment.is_given_up());
                given_up += gone - moments.len();
                read += compare(&moments);
                if moments.len() < 6 {
                    moments.push((volume.moment(), tree(&volume)));
                }
            }
        }
        volume.sync().unwrap();
        let before = tree(&volume);
        drop((moments, volume));
        assert_eq!(check(disk.clone(), clock()).unwrap().findings, [], "seed {seed}");
        assert!(tree(&open(disk).unwrap()) == before);
    }
    println!("{refused} refused, {given_up} moments given up, {read} read");
    assert!(refused > 50 && given_up > 5 && read > 200, "{refused} {given_up} {read}");
}

#[test]
fn deleting_works_on_a_full_volume_beside_a_moment() {
    let (_, volume) = shared(9 + 24 * u64::from(SEGMENT));
    let mut n = 0;
    while commit(&volume, |ops| {
        let f = ops.create(ROOT, format!("f{n}").as_bytes(), &file())?;
        ops.write(f, 0, &bytes(n, 20_000))
    })
    .is_ok()
    {
        n += 1;
    }
    let _moment = volume.moment();
    for name in 0..n {
        volume.plain(|ops| ops.unlink(ROOT, format!("f{name}").as_bytes()).map(drop)).unwrap();
        volume.sync().unwrap();
    }
    assert_eq!(tree(&volume).len(), 1);
}
