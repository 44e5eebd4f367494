//! Threads that wait for each other's groups: each goes on, whatever becomes of the one before.

#![allow(clippy::unwrap_used)]

mod common;

use common::{BLOCKS, bytes, clock, commit, file, fresh};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use systx_lfs::device::Fault;
use systx_lfs::format::ROOT;
use systx_lfs::fsck::check;
use systx_lfs::{Error, Volume};

/// Of those that commit.
const THREADS: u64 = 8;
/// A hang, where a machine is busy.
const LIMIT: Duration = Duration::from_secs(300);

/// Threads that commit so often, or until they are told that nothing goes on; gives back how many
/// of each thread's commits were durable, as it was told.
fn commits(volume: &Arc<Volume>, each: u64) -> Vec<u64> {
    let (done, of_all) = mpsc::channel();
    for t in 0..THREADS {
        let (volume, done) = (Arc::clone(volume), done.clone());
        std::thread::spawn(move || {
            let one = |n| {
                commit(&volume, |ops| {
                    let name = format!("{t}");
                    let f = match ops.lookup(ROOT, name.as_bytes()) {
                        Err(Error::NotFound) => ops.create(ROOT, name.as_bytes(), &file())?,
                        found => found?.ino,
                    };
                    ops.write(f, 0, &bytes(n, 3000))
                })
            };
            let went = (0..each).take_while(|n| match one(*n) {
                Ok(()) => true,
                Err(Error::Io(_) | Error::Poisoned) => false,
                Err(other) => panic!("{other}"),
            });
            done.send(went.count() as u64).unwrap();
        });
    }
    let all = (0..THREADS).map(|_| of_all.recv_timeout(LIMIT).expect("a thread waits for ever"));
    all.collect()
}

#[test]
fn beside_checkpoints_that_make_durable_what_others_wait_for() {
    for _ in 0..common::budget() {
        let (disk, volume) = fresh(BLOCKS);
        let (volume, stop) = (Arc::new(volume), Arc::new(AtomicBool::new(false)));
        let checkpoints = std::thread::spawn({
            let (volume, stop) = (Arc::clone(&volume), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    volume.checkpoint().unwrap();
                }
            }
        });
        // The next commit would write for those that nobody has woken.
        for _ in 0..60 {
            assert_eq!(commits(&volume, 1), [1; THREADS as usize]);
        }
        stop.store(true, Ordering::Relaxed);
        checkpoints.join().unwrap();
        drop(volume);
        assert_eq!(check(disk, clock()).unwrap().findings, []);
    }
}

#[test]
fn all_are_told_when_the_medium_fails() {
    for fails in 1..=30 {
        let (disk, volume) = fresh(BLOCKS);
        disk.fault(Fault::Fails(fails));
        let went = commits(&Arc::new(volume), 60);
        // One of them wrote for each group, and each group has at least one commit.
        assert!(went.iter().all(|went| *went <= fails), "fails at {fails}: {went:?}");
    }
}
