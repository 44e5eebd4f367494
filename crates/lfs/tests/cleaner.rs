//! Cleaning: what it gains, and that nobody notices it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{BLOCKS, bytes, clock, commit, file, fresh, open, tree};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use systx_lfs::device::{Cuts, SimDisk};
use systx_lfs::format::{Ino, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{CleanerThread, CostBenefit, Error, Greedy, Plan, Policy, Tended, Tending, Volume};

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

/// There is always one that keeps a segment with anything live in it; what is dead there comes back
/// all the same, when those are gone that were made before it died.
#[test]
fn snapshots_that_follow_each_other_keep_little_more_than_they_show() {
    const PAGES: u64 = 256;
    const CHANGED: u64 = 32;
    let (disk, volume) = fresh(9 + 600 * u64::from(common::SEGMENT));
    let f = volume.plain(|ops| ops.create(ROOT, b"f", &file())).unwrap();
    commit(&volume, |ops| ops.write(f, 0, &bytes(1, (PAGES * 4096) as usize))).unwrap();
    let (mut draw, mut shown, mut most) = (7u64, std::collections::VecDeque::new(), 0);
    for round in 0..60u64 {
        commit(&volume, |ops| {
            (0..CHANGED).try_for_each(|n| {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ops.write(f, (draw >> 33) % PAGES * 4096, &bytes(round << 8 | n, 4096))
            })
        })
        .unwrap();
        volume.snapshot(&round.to_string()).unwrap();
        shown.push_back((round, tree(&volume)));
        if shown.len() > 3 {
            let (oldest, then) = shown.pop_front().unwrap();
            let view = volume.at(&oldest.to_string()).unwrap();
            assert_eq!(view.look(common::dump).unwrap(), then);
            drop(view);
            volume.remove_snapshot(&oldest.to_string()).unwrap();
        }
        most = most.max(volume.space().used);
    }
    // As much again is dead at most, and what checkpoints have written since.
    assert!(most < 2 * (PAGES + 3 * CHANGED) + 128, "{most}");
    drop(volume);
    assert_eq!(check(disk, clock()).unwrap().findings, []);
}

#[test]
fn a_snapshot_keeps_what_it_has_until_it_is_removed() {
    let (disk, volume, files) = worn();
    let then = tree(&volume);
    volume.snapshot("then").unwrap();
    assert!(matches!(volume.snapshot("then"), Err(Error::Exists)));
    // What is overwritten takes space twice from here on, and there is little.
    for n in 0..150u64 {
        let f = files[(n % 3) as usize];
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

fn plan(below_percent: u32, until_percent: u32) -> Plan {
    Plan { below_percent, until_percent, idle: Duration::ZERO }
}

/// The thread begins by itself when little is free, says what it has done, and then sleeps.
#[test]
fn a_thread_cleans_when_little_is_free_and_rests_when_enough_is() {
    let (disk, volume, _) = worn();
    let before = tree(&volume);
    let volume = Arc::new(volume);
    let cleaner =
        CleanerThread::start(volume.clone(), plan(90, 90), Arc::new(CostBenefit)).unwrap();
    cleaner.settled();
    let figures = cleaner.figures();
    assert!(figures.segments >= 4 && figures.gained >= 3 && figures.moved > 0, "{figures:?}");
    assert!(figures.coalesced > 0, "and brings what is scattered in order: {figures:?}");
    // It sleeps: nothing changes until somebody commits, or reads what is scattered.
    assert_eq!(cleaner.figures(), figures);
    cleaner.set_policy(Arc::new(Greedy));
    assert_eq!(cleaner.stop(), figures);
    assert_eq!(tree(&volume), before);
    drop(volume);
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    assert_eq!(tree(&open(disk).unwrap()), before);
}

/// Order is for those who read in order: what nobody reads is not written again for it.
#[test]
fn a_thread_brings_in_order_what_is_read_in_order() {
    let (_, volume, files) = worn();
    let volume = Arc::new(volume);
    let cleaner = CleanerThread::start(volume.clone(), plan(0, 0), Arc::new(Greedy)).unwrap();
    cleaner.settled();
    commit(&volume, |ops| ops.write(files[3], 0, b"new")).unwrap();
    cleaner.settled();
    assert_eq!(cleaner.figures().coalesced, 0, "{:?}", cleaner.figures());
    let read = |f: Ino| volume.look(|ops| ops.read(f, 0, 12 * 4096)).unwrap();
    let runs = |f: Ino| volume.scattered(f, 1).unwrap().0[0].runs;
    let content = read(files[1]);
    let begun = Instant::now();
    while cleaner.figures().coalesced == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", cleaner.figures());
        std::thread::yield_now();
    }
    cleaner.settled();
    assert!(runs(files[1]) <= 3 && runs(files[3]) > 9, "{}, {}", runs(files[1]), runs(files[3]));
    let figures = cleaner.stop();
    assert_eq!((figures.coalesced, figures.coalesced_blocks), (1, 12), "{figures:?}");
    assert_eq!(read(files[1]), content);
}

/// Pages drawn at random, on a volume that is four fifths full: segments are let empty out before
/// they are cleaned, so that what is moved stays near what the space allows.
#[test]
fn a_volume_that_is_rather_full_is_cleaned_late() {
    let (disk, volume) = fresh(9 + 400 * u64::from(common::SEGMENT));
    let mut files = Vec::new();
    while volume.space().used * 100 < volume.space().total * 80 {
        let name = files.len().to_string();
        files.push(
            volume
                .plain(|ops| {
                    let f = ops.create(ROOT, name.as_bytes(), &file())?;
                    ops.write(f, 0, &bytes(7, 64 * 4096))?;
                    Ok(f)
                })
                .unwrap(),
        );
    }
    volume.checkpoint().unwrap();
    let (plan, mut at) = (Plan::default(), Tending::default());
    let (mut moved, mut new) = (0, 0);
    for n in 0..2500u64 {
        commit(&volume, |ops| {
            (n * 4..n * 4 + 4).try_for_each(|i| {
                let f = files[systx_base::mix(i) as usize % files.len()];
                ops.write(f, systx_base::mix(!i) % 64 * 4096, &bytes(i, 4096))
            })
        })
        .unwrap();
        // Not a quiet time: it is asked once after each commit.
        if let Tended::Cleaned(round) = volume.tend(&plan, &Greedy, &mut at, &|| false).unwrap()
            && n >= 1250
        {
            moved += round.cleaned.moved;
        }
        new += if n >= 1250 { 4 } else { 0 };
    }
    let cost = moved as f64 / f64::from(new);
    println!("moved for each new page: {cost:.2}");
    // With thresholds that are parts of the whole volume it is twice as much.
    assert!(cost > 0.2 && cost < 0.9, "{cost}");
    drop(volume);
    assert_eq!(check(disk, clock()).unwrap().findings, []);
}

/// A full volume that nothing can be gained of is tried once, and again only after a commit.
#[test]
fn a_thread_does_not_try_for_ever() {
    let (_, volume) = fresh(BLOCKS);
    let mut n = 0;
    while commit(&volume, |ops| {
        let f = ops.create(ROOT, format!("f{n}").as_bytes(), &file())?;
        ops.write(f, 0, &bytes(n, 4 * 4096))
    })
    .is_ok()
    {
        n += 1;
    }
    let volume = Arc::new(volume);
    // More than could ever be free.
    let cleaner = CleanerThread::start(volume.clone(), plan(200, 200), Arc::new(Greedy)).unwrap();
    cleaner.settled();
    let before = cleaner.figures();
    assert!(before.rounds > 0 && before.failed.is_none(), "{before:?}");
    // It may look at what a commit leaves before that is durable, and gain nothing of it yet.
    let gains = (0..n).any(|n| {
        let rounds = cleaner.figures().rounds;
        commit(&volume, |ops| ops.unlink(ROOT, format!("f{n}").as_bytes()).map(drop)).unwrap();
        while cleaner.figures().rounds == rounds {
            std::thread::yield_now();
        }
        cleaner.settled();
        cleaner.figures().gained > before.gained
    });
    assert!(gains, "what was deleted is free: {:?}", cleaner.stop());
}

/// A segment with damage in it is named and left alone; the others are cleaned.
#[test]
fn a_damaged_segment_does_not_keep_the_cleaner_from_the_others() {
    for byte in [70, 4096 * 2 + 9] {
        let (disk, volume, _) = worn();
        let free = volume.space().free_segments;
        // The first segment after those of mkfs that the cleaner would choose.
        let victim = (0..40)
            .map(|n| 8 + n * u64::from(common::SEGMENT))
            .find(|at| {
                let disk = Arc::new(disk.copy());
                disk.damage(*at, byte % 4096);
                let found = check(disk, clock()).unwrap().findings;
                !found.is_empty() && *at > 8 + 2 * u64::from(common::SEGMENT)
            })
            .expect("a segment in use");
        disk.damage(victim + (byte / 4096) as u64, byte % 4096);
        let volume = Arc::new(volume);
        let plan = plan(100, 100);
        let cleaner = CleanerThread::start(volume.clone(), plan, Arc::new(Greedy)).unwrap();
        cleaner.settled();
        let figures = cleaner.stop();
        assert_eq!(figures.failed, None, "byte {byte}");
        assert!(volume.space().free_segments > free, "byte {byte}: {figures:?}");
    }
}

/// Commits beside the thread, at random, on a volume that is nearly full: each is durable or
/// refused for want of space, and deleting always works.
#[test]
fn space_is_as_without_the_thread() {
    for seed in 0..2 * common::budget() as u64 {
        let (disk, volume) = fresh(9 + 24 * u64::from(common::SEGMENT));
        let volume = Arc::new(volume);
        let cleaner =
            CleanerThread::start(volume.clone(), plan(200, 200), Arc::new(Greedy)).unwrap();
        let refused = std::thread::scope(|s| {
            let writers: Vec<_> = (0..3u64)
                .map(|t| {
                    let volume = &volume;
                    s.spawn(move || work(volume, seed << 8 | t, 250))
                })
                .collect();
            writers.into_iter().map(|w| w.join().unwrap()).sum::<u64>()
        });
        assert!(refused > 0, "it was full");
        let figures = cleaner.stop();
        assert!(figures.rounds > 0 && figures.failed.is_none(), "{figures:?}");
        for (name, _) in volume.look(|ops| ops.list(ROOT, None, usize::MAX)).unwrap() {
            commit(&volume, |ops| ops.unlink(ROOT, &name).map(drop)).unwrap();
        }
        volume.checkpoint().unwrap();
        assert!(volume.space().used < 8, "{:?}", volume.space());
        drop(volume);
        assert_eq!(check(disk, clock()).unwrap().findings, [], "seed {seed}");
    }
}

/// Operations of one thread on files of its own.  Returns how many were refused for want of space.
fn work(volume: &Volume, seed: u64, operations: u64) -> u64 {
    let mut refused = 0;
    for n in 1..=operations {
        let draw = systx_base::mix(seed << 32 | n);
        let name = format!("{}.{}", seed & 0xff, draw % 10);
        let done = if draw >> 8 & 3 == 0 {
            match volume.plain(|ops| ops.unlink(ROOT, name.as_bytes()).map(drop)) {
                Err(Error::NotFound) => Ok(()),
                other => other,
            }
        } else {
            commit(volume, |ops| {
                let f = match ops.lookup(ROOT, name.as_bytes()) {
                    Ok(link) => link.ino,
                    Err(_) => ops.create(ROOT, name.as_bytes(), &file())?,
                };
                ops.write(f, draw >> 50 & 0xffff, &bytes(n, 1 + (draw >> 24) as usize % 30_000))
            })
        };
        match done {
            Ok(()) => {}
            Err(Error::NoSpace) => refused += 1,
            Err(e) => panic!("seed {seed}, operation {n}: {e}"),
        }
    }
    refused
}

/// The process is killed at any write: of each thread what was durable is there, whole transactions
/// only, whatever the cleaner was doing.
#[test]
fn a_power_cut_beside_the_thread_leaves_what_was_durable() {
    let (disk, volume, _) = worn();
    let names = |t: u64| [format!("a{t}"), format!("b{t}")];
    for t in 0..3 {
        commit(&volume, |ops| {
            names(t).iter().try_for_each(|n| {
                let f = ops.create(ROOT, n.as_bytes(), &file())?;
                ops.write(f, 0, &0u64.to_le_bytes())
            })
        })
        .unwrap();
    }
    let before = tree(&volume);
    volume.close().unwrap();
    let disk = Arc::new(disk.copy());
    let volume = Arc::new(open(disk.clone()).unwrap());
    let (cleaner, done) = (
        CleanerThread::start(volume.clone(), plan(95, 100), Arc::new(CostBenefit)).unwrap(),
        systx_base::sync::Mutex::new(systx_base::sync::rank::ENGINE, [0u64; 3]),
    );
    disk.mark(0);
    std::thread::scope(|s| {
        for t in 0..3u64 {
            let (volume, done, disk) = (&volume, &done, &disk);
            s.spawn(move || {
                for n in 1..=10u64 {
                    commit(volume, |ops| {
                        names(t).iter().try_for_each(|name| {
                            let f = ops.lookup(ROOT, name.as_bytes())?.ino;
                            ops.write(f, 0, &n.to_le_bytes())?;
                            ops.write(f, n % 7 * 4096, &[n as u8; 4096])?;
                            ops.write(f, 0, &n.to_le_bytes())
                        })
                    })
                    .unwrap();
                    let mut done = done.lock();
                    done[t as usize] = n;
                    disk.mark(done.iter().fold(0, |all, n| all << 16 | n));
                }
            });
        }
    });
    cleaner.settled();
    let figures = cleaner.stop();
    assert!(figures.moved > 0, "{figures:?}");
    drop(volume);
    let mut seen = 0;
    disk.crashes(Cuts { each: 2 * common::budget(), seed: 11 }, |crash| {
        let volume = open(Arc::new(crash.disk)).unwrap_or_else(|e| panic!("{}: {e}", crash.name));
        let found = tree(&volume);
        for t in 0..3u64 {
            let durable = crash.mark >> (16 * (2 - t)) & 0xffff;
            let number = |name: &String| {
                let content = &found[&format!("/{name}")].content;
                u64::from_le_bytes(content[..8].try_into().unwrap())
            };
            let [a, b] = names(t).map(|n| number(&n));
            assert!(a == b && a >= durable, "{}: {a} and {b}, {durable} durable", crash.name);
        }
        let others = |path: &&String| path.starts_with("/f");
        for path in before.keys().filter(others) {
            assert_eq!(found[path], before[path], "{}: {path}", crash.name);
        }
        seen += 1;
    });
    println!("{seen} crashes, {figures:?}");
}
