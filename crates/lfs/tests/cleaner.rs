//! Cleaning: what it gains, and that nobody notices it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{BLOCKS, bytes, clock, commit, file, fresh, open, tree};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use systx_lfs::device::SimDisk;
use systx_lfs::format::{Ino, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{CostBenefit, Error, Greedy, Policy, Volume};

/// A volume whose segments are half dead.
fn worn() -> (Arc<SimDisk>, Volume, Vec<Ino>) {
    let (disk, volume) = fresh(BLOCKS);
    let files: Vec<Ino> = (0..12u64)
        .map(|n| volume.plain(|ops| ops.create(ROOT, format!("f{n}").as_bytes(), &file())))
        .collect::<Result<_, _>>()
        .unwrap();
    // Pages of all files lie beside each other.
    for page in 0..12u64 {
        commit(&volume, |ops| {
            files.iter().try_for_each(|f| ops.write(*f, page * 4096, &bytes(page + f, 4096)))
        })
        .unwrap();
    }
    for f in files.iter().step_by(2) {
        volume.plain(|ops| ops.punch(*f, 4096, 10 * 4096)).unwrap();
    }
    volume.checkpoint().unwrap();
    (disk, volume, files)
}

#[test]
fn each_policy_frees_segments_and_changes_nothing() {
    for policy in [&Greedy as &dyn Policy, &CostBenefit] {
        let (disk, volume, _) = worn();
        let (before, free) = (tree(&volume), volume.space().free_segments);
        let done = volume.clean(policy, free + 4).unwrap();
        assert!(volume.space().free_segments >= free + 4, "{:?} of {free}", volume.space());
        assert!(done.segments >= 4 && done.moved > 0, "{done:?}");
        assert_eq!(tree(&volume), before);
        drop(volume);
        assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
        assert_eq!(tree(&open(disk).unwrap()), before);
    }
}

#[test]
fn cleaning_ends_when_nothing_more_can_be_gained() {
    let (_, volume, _) = worn();
    volume.clean(&Greedy, u32::MAX).unwrap();
    let free = volume.space().free_segments;
    volume.clean(&CostBenefit, u32::MAX).unwrap();
    assert!(volume.space().free_segments >= free);
}

#[test]
fn a_scattered_file_lies_in_order_after_coalescing() {
    let (disk, volume, files) = worn();
    let before = tree(&volume);
    let runs = |volume: &Volume, f: Ino| {
        let (found, _) = volume.scattered(f, 1).unwrap();
        (found[0].runs, found[0].pages)
    };
    let f = files[1];
    assert_eq!(runs(&volume, f), (12, 12));
    let (done, next) = volume.coalesce(f, 1, &|| false).unwrap();
    assert_eq!((done.unwrap().ino, next), (f, Some(f + 1)));
    assert!(runs(&volume, f).0 <= 3, "{:?}", runs(&volume, f));
    // There is nothing left to do there.
    assert_eq!(volume.coalesce(f, 1, &|| false).unwrap().0, None);
    assert_eq!(tree(&volume), before);
    // Somebody came before it could begin.
    let g = files[3];
    volume.coalesce(g, 1, &|| true).unwrap();
    assert_eq!(runs(&volume, g), (12, 12));
    drop(volume);
    assert_eq!(check(disk, clock()).unwrap().findings, []);
}

/// Writers, readers and a cleaner at once: no commit is lost, none fails, and each reader sees
/// its own writes.
#[test]
fn nobody_notices_the_cleaner() {
    let (disk, volume, files) = worn();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (volume, files, stop) = (&volume, &files, &stop);
        s.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let free = volume.space().free_segments;
                volume.clean(&Greedy, free + 1).unwrap();
                volume.coalesce(0, 100, &|| stop.load(Ordering::Relaxed)).unwrap();
            }
        });
        let writers: Vec<_> = (0..3u64)
            .map(|t| {
                s.spawn(move || {
                    for n in 0..60u64 {
                        let f = files[(t * 4 + n % 4) as usize];
                        let content = bytes(t * 1000 + n, 4096);
                        commit(volume, |ops| ops.write(f, n % 12 * 4096, &content)).unwrap();
                        let read = volume.look(|ops| ops.read(f, n % 12 * 4096, 4096)).unwrap();
                        assert_eq!(read, content);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    let before = tree(&volume);
    drop(volume);
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    assert_eq!(tree(&open(disk).unwrap()), before);
}

/// On a volume that is four fifths full every commit pays a little, and none has to wait for
/// much: the free segments do not run out.
#[test]
fn commits_pay_for_the_space_that_they_use() {
    let (_, volume) = fresh(BLOCKS);
    let mut files = Vec::new();
    while volume.space().used * 100 < volume.space().total * 80 {
        let n = files.len() as u64;
        files.push(
            volume
                .plain(|ops| {
                    let f = ops.create(ROOT, format!("f{n}").as_bytes(), &file())?;
                    ops.write(f, 0, &bytes(n, 4 * 4096))?;
                    Ok(f)
                })
                .unwrap(),
        );
    }
    let mut least = u32::MAX;
    for n in 0..500u64 {
        let f = files[(systx_base::mix(n + 1) % files.len() as u64) as usize];
        commit(&volume, |ops| ops.write(f, n % 4 * 4096, &bytes(n, 4096))).unwrap();
        least = least.min(volume.space().free_segments);
    }
    assert!(least >= 4, "the reserve was given away: {least} segments");
}

#[test]
fn a_snapshot_keeps_what_it_has_until_it_is_removed() {
    let (disk, volume, files) = worn();
    let then = tree(&volume);
    volume.snapshot("then").unwrap();
    assert!(matches!(volume.snapshot("then"), Err(Error::Exists)));
    for n in 0..150u64 {
        let f = files[(n % 12) as usize];
        commit(&volume, |ops| ops.write(f, n % 7 * 4096, &bytes(n + 99, 4096))).unwrap();
    }
    volume.plain(|ops| ops.unlink(ROOT, b"f1")).unwrap();
    volume.clean(&Greedy, u32::MAX).unwrap();
    let view = volume.at("then").unwrap();
    assert_eq!(view.look(common::dump).unwrap(), then);
    let refused = view.look(|ops| ops.unlink(ROOT, b"f1"));
    assert!(matches!(refused, Err(Error::ReadOnly)));
    assert!(matches!(volume.remove_snapshot("then"), Err(Error::Busy(_))));
    drop(view);
    let now = tree(&volume);
    drop(volume);
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    let volume = open(disk.clone()).unwrap();
    assert_eq!(volume.at("then").unwrap().look(common::dump).unwrap(), then);
    assert_eq!(volume.snapshots()[0].name, "then");
    let used = volume.space().used;
    volume.remove_snapshot("then").unwrap();
    assert!(volume.space().used < used, "what it kept is free");
    assert!(matches!(volume.at("then"), Err(Error::NotFound)));
    drop(volume);
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    assert_eq!(tree(&open(disk).unwrap()), now);
}
