//! Blocks that the medium does not give back: who needs one is told which, and nobody else notices.
//! Nothing is lost that can be read again later, nothing wrong is read, and nothing ends for it.

#![allow(clippy::unwrap_used)]

mod common;

use common::power::{Step, record, take, workload};
use common::{
    BLOCKS, LIMITS, budget, bytes, clock, commit, dump, file, fresh, fresh_packing, open, tree,
};
use std::sync::Arc;
use systx_base::Kind;
use systx_lfs::device::SimDisk;
use systx_lfs::format::{BLOCK, Ino, ROOT};
use systx_lfs::fsck::{Finding, check};
use systx_lfs::{CleanerThread, Error, Greedy, Plan, Structure, Volume};

const PAGE: u64 = BLOCK as u64;

/// Where a page of a file lies: the block without which it cannot be read.
fn block_of(disk: &SimDisk, ino: Ino, page: u64) -> u64 {
    let is_needed = |at: &u64| {
        let copy = Arc::new(disk.copy());
        let volume = open(copy.clone()).unwrap();
        volume.look(|ops| ops.attrs(ino)).unwrap();
        copy.unreadable(*at);
        let read = volume.look(|ops| ops.read(ino, page * PAGE, BLOCK));
        matches!(read, Err(Error::Unread { at: said, .. }) if said == *at)
    };
    (8..BLOCKS - 1).find(is_needed).unwrap()
}

/// A volume of which half of what it had is dead, all of it in a checkpoint.
fn worn() -> (Arc<SimDisk>, Volume, Vec<Ino>) {
    let (disk, volume) = fresh(BLOCKS);
    let files: Vec<Ino> = (0..8u64)
        .map(|n| volume.plain(|ops| ops.create(ROOT, format!("f{n}").as_bytes(), &file())).unwrap())
        .collect();
    for page in 0..8 {
        commit(&volume, |ops| {
            files.iter().try_for_each(|f| ops.write(*f, page * PAGE, &bytes(page + f, BLOCK)))
        })
        .unwrap();
    }
    for f in files.iter().step_by(2) {
        volume.plain(|ops| ops.punch(*f, PAGE, 6 * PAGE)).unwrap();
    }
    volume.checkpoint().unwrap();
    (disk, volume, files)
}

#[test]
fn a_page_that_cannot_be_read_is_told_by_its_block() {
    let (disk, volume, files) = worn();
    let (f, before) = (files[1], tree(&volume));
    let at = block_of(&disk, f, 3);
    disk.unreadable(at);
    let is_told = |done: Result<(), Error>| {
        let e = done.unwrap_err();
        assert!(matches!(e, Error::Unread { at: said, .. } if said == at), "{e}");
        assert_eq!(e.errno(), rustix::io::Errno::IO);
        assert!(e.to_string().starts_with(&format!("block {at} cannot be read")), "{e}");
    };
    is_told(volume.look(|ops| ops.read(f, 0, 8 * BLOCK).map(drop)));
    is_told(commit(&volume, |ops| ops.write(f, 3 * PAGE + 7, b"a part of it")));
    // What lies beside it, and all else.
    let read = volume.look(|ops| ops.read(f, 4 * PAGE, 4 * BLOCK)).unwrap();
    assert_eq!(read, before["/f1"].content[4 * BLOCK..]);
    let named = check(disk.clone(), clock()).unwrap().findings;
    assert_eq!(named, [Finding::Unreadable { at }]);
    // The whole of it needs no old one.
    commit(&volume, |ops| ops.write(f, 3 * PAGE, &bytes(99, BLOCK))).unwrap();
    volume.checkpoint().unwrap();
    let now = tree(&volume);
    assert_eq!(now["/f1"].content[3 * BLOCK..4 * BLOCK], bytes(99, BLOCK));
    drop(volume);
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    assert_eq!(tree(&open(disk).unwrap()), now);
}

/// The cleaner leaves the segment and goes on, also as a thread, and in files that it writes in
/// order, and where it compresses.
#[test]
fn the_cleaner_leaves_what_cannot_be_read() {
    let (disk, volume, files) = worn();
    let (before, free) = (tree(&volume), volume.space().free_segments);
    let at = block_of(&disk, files[1], 3);
    disk.unreadable(at);
    volume.clean(&Greedy, u32::MAX).unwrap();
    assert!(volume.space().free_segments > free, "{:?} of {free}", volume.space());
    volume.coalesce(0, 100, &|| false).unwrap();
    let volume = Arc::new(volume);
    let plan = Plan { below_percent: 99, until_percent: 100, ..Plan::default() };
    let thread = CleanerThread::start(volume.clone(), plan, Arc::new(Greedy)).unwrap();
    commit(&volume, |ops| ops.write(files[0], 0, &bytes(5, BLOCK))).unwrap();
    thread.settled();
    let figures = thread.stop();
    assert!(figures.failed.is_none(), "{figures:?}");
    drop(volume);
    // When it can be read again nothing is missing.
    let again = tree(&open(Arc::new(disk.copy())).unwrap());
    assert_eq!(again["/f1"], before["/f1"]);
    assert_eq!(check(Arc::new(disk.copy()), clock()).unwrap().findings, []);

    let (disk, volume) = fresh_packing(BLOCKS);
    let f = volume.plain(|ops| ops.create(ROOT, b"f", &file())).unwrap();
    commit(&volume, |ops| ops.write(f, 0, &[7; 30 * BLOCK])).unwrap();
    volume.checkpoint().unwrap();
    let before = tree(&volume);
    disk.unreadable(block_of(&disk, f, 12));
    volume.pack().unwrap();
    volume.clean(&Greedy, u32::MAX).unwrap();
    drop(volume);
    assert_eq!(tree(&open(Arc::new(disk.copy())).unwrap()), before);
    assert_eq!(check(Arc::new(disk.copy()), clock()).unwrap().findings, []);
}

/// What an opening needs: of what there are two copies one suffices, and both are whole afterwards.
/// A log that cannot be read to its end is refused, and opened where somebody gives up the rest.
#[test]
fn an_opening_says_what_it_cannot_read() {
    let (disk, volume, files) = worn();
    commit(&volume, |ops| ops.write(files[1], 0, &bytes(50, BLOCK))).unwrap();
    commit(&volume, |ops| ops.write(files[3], 0, &bytes(51, BLOCK))).unwrap();
    let now = tree(&volume);
    drop(volume);
    for at in [0, 1, 2, 3, 4, BLOCKS - 1] {
        let bad = Arc::new(disk.copy());
        bad.unreadable(at);
        let found = check(bad.clone(), clock()).unwrap().findings;
        assert!(found.iter().any(|f| f.to_string().contains(&format!("block {at}"))), "{found:?}");
        assert_eq!(tree(&open(bad.clone()).unwrap()), now, "block {at}");
        assert_eq!(check(bad, clock()).unwrap().findings, [], "block {at}");
    }
    let (mut refused, mut cut) = (0, 0);
    for at in 8..BLOCKS - 1 {
        let bad = Arc::new(disk.copy());
        bad.unreadable(at);
        match open(bad.clone()) {
            Ok(volume) => {
                let seen = volume.look(dump);
                let is_right = match &seen {
                    Ok(seen) => *seen == now,
                    Err(e) => matches!(e, Error::Unread { at: said, .. } if *said == at),
                };
                assert!(is_right, "block {at}: {seen:?}");
            }
            Err(Error::Unread { at: said, .. }) if said == at => {
                refused += 1;
                let found = check(bad.clone(), clock()).unwrap().findings;
                assert!(found.contains(&Finding::Unreadable { at }), "block {at}: {found:?}");
                let given_up = Volume::open_broken(bad, clock(), 3, LIMITS);
                cut += u32::from(given_up.is_ok());
            }
            Err(e) => panic!("block {at}: {e}"),
        }
        // It was only for a while.
        assert_eq!(tree(&open(Arc::new(disk.copy())).unwrap()), now);
    }
    assert!(refused > 4 && cut > 1, "{refused} are refused, {cut} opened without the rest");
}

/// A checkpoint that cannot be made stops the volume, and costs nothing.
#[test]
fn a_checkpoint_that_cannot_read_costs_nothing() {
    let mut stopped = 0;
    let (disk, volume, files) = worn();
    drop(volume);
    let metadata = check(disk.clone(), clock()).unwrap().metadata;
    for (at, _) in metadata.into_iter().filter(|(_, what)| *what == Structure::Chunk) {
        let bad = Arc::new(disk.copy());
        let volume = open(bad.clone()).unwrap();
        let new = |name: &[u8]| volume.plain(|ops| ops.create(ROOT, name, &file()));
        commit(&volume, |ops| ops.write(files[0], 0, &bytes(8, BLOCK))).unwrap();
        new(b"new").unwrap();
        volume.sync().unwrap();
        let now = tree(&volume);
        // The opening has written it again elsewhere: all that there is.
        let now_at = check(bad.clone(), clock()).unwrap().metadata;
        for (at, _) in now_at.into_iter().filter(|(_, what)| *what == Structure::Chunk) {
            bad.unreadable(at);
        }
        bad.unreadable(at);
        match volume.checkpoint() {
            Ok(()) => {}
            Err(Error::Unread { .. }) => {
                stopped += 1;
                assert!(matches!(new(b"later"), Err(Error::Poisoned)));
                assert_eq!(tree(&volume), now, "reads go on");
            }
            Err(e) => panic!("{e}"),
        }
        drop(volume);
        assert_eq!(tree(&open(Arc::new(bad.copy())).unwrap()), now);
        assert_eq!(check(Arc::new(bad.copy()), clock()).unwrap().findings, []);
    }
    assert!(stopped > 0);
}

/// A chunk of the inode map that cannot be read costs its objects, and nobody else anything: they
/// are named, and are there again if it can be read one day; their numbers are nobody else's.
#[test]
fn a_chunk_that_cannot_be_read_costs_its_objects_alone() {
    let mut without = 0;
    let name = |n: u64| format!("f{n:02}");
    let (disk, volume) = fresh(4096);
    for n in 0..90 {
        let made = volume.plain(|ops| {
            let ino = ops.create(ROOT, name(n).as_bytes(), &file())?;
            ops.write(ino, 0, &bytes(n, 3000 + BLOCK * (n as usize % 3)))
        });
        made.unwrap();
    }
    volume.checkpoint().unwrap();
    let before = tree(&volume);
    drop(volume);
    let metadata = check(disk.clone(), clock()).unwrap().metadata;
    for (at, _) in metadata.into_iter().filter(|(_, what)| *what == Structure::Chunk) {
        let bad = Arc::new(disk.copy());
        bad.unreadable(at);
        let volume = open(bad.clone()).unwrap();
        if volume.look(|ops| ops.attrs(ROOT)).is_err() {
            // There is nothing without the root.
            continue;
        }
        without += 1;
        let lost = goes_on_without(&volume, at);
        volume.checkpoint().unwrap();
        drop(volume);
        let found = check(bad.clone(), clock()).unwrap().findings;
        assert!(found.contains(&Finding::Unreadable { at }), "{found:?}");
        for name in &lost {
            let name = name.clone().into_bytes();
            assert!(found.contains(&Finding::Unknown { dir: ROOT, name }), "{found:?}");
        }
        let volume = open(bad.clone()).unwrap();
        assert_eq!(goes_on_without(&volume, at), lost, "opened again");
        drop(volume);
        let whole = Arc::new(bad.copy());
        let volume = open(whole.clone()).unwrap();
        let after = tree(&volume);
        for name in &lost {
            let path = format!("/{name}");
            assert!(after[&path] == before[&path], "{name}");
        }
        drop(volume);
        assert_eq!(check(whole, clock()).unwrap().findings, []);
    }
    assert!(without >= 2, "{without}");
}

/// Does all that there is to do in a volume of which a block cannot be read; names of what nothing
/// is known of.
fn goes_on_without(volume: &Volume, at: u64) -> Vec<String> {
    let is_told = |done: Result<(), Error>| match done {
        Ok(()) => false,
        Err(Error::Unread { at: said, .. }) => {
            assert_eq!(said, at);
            true
        }
        Err(e) => panic!("{e}"),
    };
    let all = volume.look(|ops| ops.list(ROOT, None, 1000)).unwrap();
    let numbers: Vec<Ino> = all.iter().map(|(_, link)| link.ino).collect();
    let mut lost = Vec::new();
    for (name, link) in &all {
        let ino = link.ino;
        if is_told(volume.look(|ops| ops.attrs(ino)).map(drop)) {
            lost.push(String::from_utf8(name.clone()).unwrap());
            assert!(is_told(volume.plain(|ops| ops.write(ino, 0, b"new"))));
            assert!(is_told(volume.plain(|ops| ops.unlink(ROOT, name)).map(drop)));
        } else {
            volume.plain(|ops| ops.write(ino, 0, b"new")).unwrap();
        }
    }
    for n in 0..70 {
        let name = format!("new{}-{n}", numbers.len());
        let ino = volume.plain(|ops| ops.create(ROOT, name.as_bytes(), &file())).unwrap();
        assert!(!numbers.contains(&ino), "{ino}");
        commit(volume, |ops| ops.write(ino, 0, &bytes(n, BLOCK))).unwrap();
    }
    volume.checkpoint().unwrap();
    for (_, link) in all.iter().filter(|(name, _)| name.starts_with(b"new")).step_by(2) {
        volume.plain(|ops| ops.write(link.ino, PAGE, b"more")).unwrap();
    }
    volume.clean(&Greedy, u32::MAX).unwrap();
    volume.coalesce(ROOT, 1000, &|| false).unwrap();
    let snapshot = format!("s{}", numbers.len());
    volume.snapshot(&snapshot).unwrap();
    volume.remove_snapshot(&snapshot).unwrap();
    lost
}

/// Any blocks, by a seed, beside commits, the cleaner, checkpoints and snapshots.
#[test]
fn any_blocks_that_cannot_be_read_cost_nothing() {
    let (mut told, mut done) = (0, 0);
    for seed in 0..30 * budget() as u64 {
        let run = record(&workload(seed as u8, 12));
        let disk = Arc::new(run.disk.copy());
        let volume = open(disk.clone()).unwrap();
        let first = tree(&volume);
        let mut now = first.clone();
        let bad = disk.unreadable_by(seed, 12 + seed % 40);
        assert!(bad > 5);
        let mut in_doubt = None;
        for n in 0..30u64 {
            let step = match n % 10 {
                3 => Step::Clean(n % 20 == 3),
                4 => Step::Coalesce,
                5 => Step::Pack,
                6 => Step::Snapshot(2),
                7 => Step::Checkpoint,
                _ => Step::Sync,
            };
            let name = format!("new{}", n % 4);
            let written = commit(&volume, |ops| {
                let f = match ops.lookup(ROOT, name.as_bytes()) {
                    Ok(link) => link.ino,
                    Err(Error::NotFound) => ops.create(ROOT, name.as_bytes(), &file())?,
                    Err(e) => return Err(e),
                };
                ops.write(f, n * 1000, &bytes(n, 5000))
            });
            let mut after = now.clone();
            match written.and_then(|()| take(&volume, &step)) {
                Ok(_) => done += 1,
                Err(Error::Unread { at, .. }) => {
                    assert!(at < BLOCKS);
                    told += 1;
                }
                // It was stopped by an earlier one.
                Err(Error::Poisoned) => {}
                Err(Error::NoSpace) => {}
                Err(e) => panic!("seed {seed}, {n}: {e}"),
            }
            // What is there now is known by a disk that can be read.
            match volume.look(dump) {
                Ok(seen) => after = seen,
                Err(Error::Unread { .. }) => in_doubt = Some(n),
                Err(e) => panic!("seed {seed}, {n}: {e}"),
            }
            now = after;
        }
        drop(volume);
        let whole = Arc::new(disk.copy());
        let volume = open(whole.clone()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let found = tree(&volume);
        // Whoever was there before is as he was, and what could be seen is there.
        for (path, seen) in &first {
            if seen.attrs.kind == Kind::File {
                assert!(found[path].content == seen.content, "seed {seed}: {path}");
            }
        }
        if in_doubt.is_none() {
            assert!(found == now, "seed {seed}");
        }
        drop(volume);
        assert_eq!(check(whole, clock()).unwrap().findings, [], "seed {seed}");
    }
    println!("{told} told, {done} done");
    assert!(told > 10 && done > 100, "{told} told, {done} done");
}
