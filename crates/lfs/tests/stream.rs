//! Streams: a copy is as the original, difference by difference; what is damaged is refused.

#![allow(clippy::unwrap_used)]

mod common;

use common::acts::{act, run};
use common::{
    BLOCKS, budget, bytes, clock, cluster_of, commit, dir, dump, file, format, fresh, fresh_as,
    fresh_clusters, open, tree,
};
use proptest::prelude::*;
use std::sync::Arc;
use systx_lfs::device::{Cuts, SimDisk};
use systx_lfs::format::ROOT;
use systx_lfs::fsck::check;
use systx_lfs::{Error, Format, Greedy, Rename, Volume, mkfs, receive, send};

/// An empty volume of another identity.
fn other() -> (Arc<SimDisk>, Volume) {
    other_clusters(1)
}

fn other_clusters(cluster: u32) -> (Arc<SimDisk>, Volume) {
    let disk = Arc::new(SimDisk::new(BLOCKS * 2));
    mkfs(disk.clone(), &Format { id: [11; 16], cluster, ..format() }, clock()).unwrap();
    let volume = open(disk.clone()).unwrap();
    (disk, volume)
}

fn sent(volume: &Volume, name: &str, since: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    let n = send(volume, name, since, &mut stream).unwrap();
    assert_eq!(n, stream.len() as u64);
    stream
}

fn fill(volume: &Volume, seed: u64) {
    for n in 0..6u64 {
        commit(volume, |ops| {
            let name = format!("{seed} {n}");
            let f = ops.create(ROOT, name.as_bytes(), &file())?;
            ops.write(f, n * 5000, &bytes(seed + n, 9000))
        })
        .unwrap();
    }
}

#[test]
fn a_lost_device_is_the_last_full_stream_and_those_after_it() {
    let (_, volume) = fresh(BLOCKS);
    fill(&volume, 1);
    volume.snapshot("one").unwrap();
    let one = tree(&volume);
    fill(&volume, 2);
    volume.plain(|ops| ops.unlink(ROOT, b"1 3")).unwrap();
    volume.snapshot("two").unwrap();
    let two = tree(&volume);
    let (full, more) = (sent(&volume, "one", None), sent(&volume, "two", Some("one")));
    assert!(more.len() < sent(&volume, "two", None).len());
    let (disk, copy) = other();
    assert!(matches!(receive(&copy, &mut &more[..]), Err(Error::NotFound)));
    let header = receive(&copy, &mut &full[..]).unwrap();
    assert_eq!((header.name.as_str(), tree(&copy)), ("one", one.clone()));
    assert!(matches!(receive(&copy, &mut &full[..]), Err(Error::Exists)));
    receive(&copy, &mut &more[..]).unwrap();
    assert_eq!(tree(&copy), two);
    assert_eq!(copy.at("one").unwrap().look(dump).unwrap(), one);
    // A copy can be sent on, and goes on from what the original sends.
    let (_, third) = other();
    receive(&third, &mut &sent(&copy, "one", None)[..]).unwrap();
    receive(&third, &mut &more[..]).unwrap();
    assert_eq!(tree(&third), two);
    drop(copy);
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    assert_eq!(tree(&open(disk).unwrap()), two);
}

/// A copy has the states of the original under the same times: all streams of a month may be
/// received within a minute.
#[test]
fn the_snapshots_of_a_copy_are_as_old_as_those_of_the_original() {
    let times = |volume: &Volume| {
        let all = volume.snapshots().into_iter();
        all.map(|s| (s.name, s.time)).collect::<Vec<_>>()
    };
    let (_, volume) = fresh(BLOCKS);
    let (disk, copy) = other();
    let names = ["one", "two", "three"];
    for (n, name) in names.iter().enumerate() {
        fill(&volume, n as u64);
        volume.snapshot(name).unwrap();
    }
    for (n, name) in names.iter().enumerate() {
        let since = n.checked_sub(1).map(|n| names[n]);
        receive(&copy, &mut &sent(&volume, name, since)[..]).unwrap();
        assert_eq!(times(&copy), times(&volume)[..=n]);
    }
    // Also after a power cut right then, and in a copy of the copy.
    drop(copy);
    let copy = open(disk).unwrap();
    assert_eq!(times(&copy), times(&volume));
    let (_, third) = other();
    receive(&third, &mut &sent(&copy, "two", None)[..]).unwrap();
    assert_eq!(times(&third), times(&volume)[1..2]);
}

#[test]
fn a_copy_that_was_changed_takes_no_difference() {
    let (_, volume) = fresh(BLOCKS);
    fill(&volume, 1);
    volume.snapshot("one").unwrap();
    fill(&volume, 2);
    volume.snapshot("two").unwrap();
    let (_, copy) = other();
    receive(&copy, &mut &sent(&volume, "one", None)[..]).unwrap();
    // Cleaning is no change.
    copy.clean(&Greedy, u32::MAX).unwrap();
    copy.coalesce(0, 100, &|| false).unwrap();
    copy.plain(|ops| ops.create(ROOT, b"own", &file())).unwrap();
    let before = tree(&copy);
    let more = sent(&volume, "two", Some("one"));
    assert!(matches!(receive(&copy, &mut &more[..]), Err(Error::Unfit(_))));
    assert!(matches!(receive(&copy, &mut &sent(&volume, "two", None)[..]), Err(Error::Unfit(_))));
    assert_eq!(tree(&copy), before);
    let later = send(&volume, "one", Some("two"), &mut Vec::new());
    assert!(matches!(later, Err(Error::NotEarlier { .. })));
}

#[test]
fn a_stream_that_is_damaged_or_cut_off_changes_nothing() {
    let (_, volume) = fresh(BLOCKS);
    fill(&volume, 1);
    volume.snapshot("one").unwrap();
    let stream = sent(&volume, "one", None);
    let (_, copy) = other();
    let (before, free) = (tree(&copy), copy.space().free_segments);
    let refused = |stream: &[u8], what: &str| {
        let done = receive(&copy, &mut &stream[..]);
        assert!(matches!(done, Err(Error::Corrupt { .. })), "{what}: {done:?}");
        assert_eq!((tree(&copy), copy.snapshots().len()), (before.clone(), 0), "{what}");
    };
    for at in (0..stream.len()).step_by(stream.len() / 60) {
        let mut damaged = stream.clone();
        damaged[at] ^= 8;
        refused(&damaged, &format!("byte {at}"));
        refused(&stream[..at], &format!("cut at {at}"));
    }
    refused(&[&stream[..], b"x"].concat(), "a byte behind it");
    refused(&[&stream[..], &stream].concat(), "a stream behind it");
    copy.checkpoint().unwrap();
    assert_eq!(copy.space().free_segments, free, "what it spilled came back");
    receive(&copy, &mut &stream[..]).unwrap();
}

/// A stream is the tree and its snapshot.  Where there is room for the one and not for the other
/// there is neither, on the device and for who goes on with the volume.
#[test]
fn a_stream_that_does_not_fit_with_its_snapshot_changes_nothing() {
    let mut outcomes = [0, 0];
    for pages in (100..320).step_by(2) {
        let (_, volume) = fresh(BLOCKS * 2);
        commit(&volume, |ops| {
            let f = ops.create(ROOT, b"f", &file())?;
            ops.write(f, 0, &bytes(pages, pages as usize * 4096))
        })
        .unwrap();
        volume.snapshot("one").unwrap();
        let stream = sent(&volume, "one", None);
        let (disk, copy) = fresh_as(BLOCKS, &Format { id: [11; 16], ..format() });
        let before = tree(&copy);
        let done = receive(&copy, &mut &stream[..]);
        let (expected, snapshots) = match &done {
            Ok(_) => (tree(&volume), 1),
            Err(Error::NoSpace) => (before, 0),
            Err(e) => panic!("{pages} pages: {e}"),
        };
        outcomes[snapshots] += 1;
        for copy in [copy, open(disk).unwrap()] {
            assert!(tree(&copy) == expected, "{pages} pages: {done:?}");
            assert_eq!(copy.snapshots().len(), snapshots, "{pages} pages: {done:?}");
            copy.close().unwrap();
        }
    }
    assert!(outcomes.iter().all(|n| *n > 0), "{outcomes:?}");
}

/// What goes with a directory has no names any more; what was moved out of it before, or has a name
/// elsewhere, keeps those.
#[test]
fn a_difference_takes_directories_away_with_what_is_in_them() {
    let (_, volume) = fresh(BLOCKS);
    commit(&volume, |ops| {
        let d = ops.create(ROOT, b"d", &dir())?;
        let sub = ops.create(d, b"sub", &dir())?;
        for name in [&b"goes"[..], b"moves", b"linked"] {
            let f = ops.create(sub, name, &file())?;
            ops.write(f, 0, name)?;
        }
        let linked = ops.lookup(sub, b"linked")?.ino;
        ops.link(linked, ROOT, b"other").map(drop)
    })
    .unwrap();
    volume.snapshot("one").unwrap();
    let (disk, copy) = other();
    receive(&copy, &mut &sent(&volume, "one", None)[..]).unwrap();
    commit(&volume, |ops| {
        let d = ops.lookup(ROOT, b"d")?.ino;
        let sub = ops.lookup(d, b"sub")?.ino;
        ops.rename((sub, b"moves"), (ROOT, b"moved"), Rename::Replace)?;
        ops.unlink(sub, b"goes")?;
        ops.unlink(sub, b"linked")?;
        ops.rmdir(d, b"sub")?;
        ops.rmdir(ROOT, b"d").map(drop)
    })
    .unwrap();
    volume.snapshot("two").unwrap();
    receive(&copy, &mut &sent(&volume, "two", Some("one"))[..]).unwrap();
    assert_eq!(tree(&copy), tree(&volume));
    drop(copy);
    assert_eq!(check(disk, clock()).unwrap().findings, []);
}

/// The tree and the name of its snapshot are there, or neither.
#[test]
fn a_power_cut_while_receiving_leaves_all_or_nothing() {
    let (_, volume) = fresh(BLOCKS);
    fill(&volume, 1);
    volume.snapshot("one").unwrap();
    let one = tree(&volume);
    fill(&volume, 2);
    volume.snapshot("two").unwrap();
    let two = tree(&volume);
    let (disk, copy) = other();
    receive(&copy, &mut &sent(&volume, "one", None)[..]).unwrap();
    drop(copy);
    let disk = Arc::new(disk.copy());
    let copy = open(disk.clone()).unwrap();
    receive(&copy, &mut &sent(&volume, "two", Some("one"))[..]).unwrap();
    let mut kinds = [0; 2];
    disk.crashes(Cuts { each: 20 * budget(), seed: 3 }, |crash| {
        let found = open(Arc::new(crash.disk)).unwrap();
        let whole = found.snapshots().len() == 2;
        kinds[usize::from(whole)] += 1;
        assert_eq!(tree(&found), if whole { &two } else { &one }.clone(), "{}", crash.name);
    });
    assert!(kinds[0] > 0 && kinds[1] > 0, "{kinds:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600 * budget() as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn any_two_trees_are_one_difference_apart(
        first in prop::collection::vec(act(), 1..25),
        second in prop::collection::vec(act(), 0..25),
        seed in any::<u64>(),
    ) {
        // What is written together there and here are two things.
        let (_, volume) = fresh_clusters(BLOCKS, cluster_of(seed));
        let (disk, copy) = other_clusters(cluster_of(seed >> 8));
        for a in first {
            let _ = volume.plain(|ops| run(ops, a));
        }
        volume.snapshot("one").unwrap();
        receive(&copy, &mut &sent(&volume, "one", None)[..]).unwrap();
        prop_assert_eq!(tree(&copy), tree(&volume));
        for a in second {
            let _ = volume.plain(|ops| run(ops, a));
        }
        volume.clean(&Greedy, u32::MAX).unwrap();
        volume.snapshot("two").unwrap();
        receive(&copy, &mut &sent(&volume, "two", Some("one"))[..]).unwrap();
        prop_assert_eq!(tree(&copy), tree(&volume));
        drop(copy);
        prop_assert_eq!(check(disk, clock()).unwrap().findings, []);
    }
}
