//! What a volume keeps: operations, commits, and the same after it was opened again.

#![allow(clippy::unwrap_used)]

mod common;

use common::{
    BLOCKS, LIMITS, SEGMENT, bytes, clock, commit, dir, dump, file, fresh, made, open, tree,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use systx_base::Kind;
use systx_lfs::device::{Device, FileDevice, MemDevice, SimDisk};
use systx_lfs::format::{BLOCK, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{Error, Format, Ops, Rename, SetAttrs, SetXattr, Shape, Txn, Volume, mkfs};

#[test]
fn a_new_volume_has_an_empty_root() {
    let (_, volume) = fresh(BLOCKS);
    let seen = tree(&volume);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[""].attrs.kind, seen[""].attrs.nlink), (Kind::Dir, 2));
}

#[test]
fn what_was_committed_is_there_after_opening_again() {
    let (disk, volume) = fresh(BLOCKS);
    commit(&volume, |ops| {
        let d = ops.create(ROOT, b"d", &dir())?;
        let f = ops.create(d, b"f", &file())?;
        ops.write(f, 4090, &bytes(1, 5000))?;
        ops.set_xattr(f, b"user.x", b"value", SetXattr::Create)?;
        ops.link(f, ROOT, b"second")?;
        ops.create(ROOT, b"s", &Shape::symlink(b"d/f"))?;
        let device = Shape { rdev: 0x103, ..Shape::new(Kind::CharDev, 0o600) };
        ops.create(ROOT, b"null", &device)?;
        Ok(())
    })
    .unwrap();
    let before = tree(&volume);
    assert_eq!(before["/d/f"].content[4090..], bytes(1, 5000));
    assert_eq!((before["/d/f"].attrs.nlink, before[""].attrs.nlink), (2, 3));
    drop(volume);
    let volume = open(disk.clone()).unwrap();
    assert_eq!(volume.report().groups, 1);
    assert_eq!(tree(&volume), before);
    volume.close().unwrap();
    let volume = open(disk).unwrap();
    assert_eq!((volume.report().groups, tree(&volume)), (0, before));
}

#[test]
fn a_transaction_is_seen_by_itself_alone_until_its_commit() {
    let (_, volume) = fresh(BLOCKS);
    let mut txn = Txn::new();
    let before = tree(&volume);
    let own = volume
        .within(&mut txn, |ops| {
            let f = ops.create(ROOT, b"f", &file())?;
            ops.write(f, 0, b"hello")?;
            dump(ops)
        })
        .unwrap();
    assert_eq!(own["/f"].content, b"hello");
    assert_eq!((own["/f"].attrs.nlink, tree(&volume)), (1, before));
    volume.commit(txn).unwrap();
    assert_eq!(tree(&volume)["/f"].content, b"hello");
}

#[test]
fn of_two_that_bind_one_name_the_first_wins() {
    let (_, volume) = fresh(BLOCKS);
    let (mut a, mut b) = (Txn::new(), Txn::new());
    volume.within(&mut a, |ops| ops.create(ROOT, b"name", &file())).unwrap();
    volume.within(&mut b, |ops| ops.create(ROOT, b"name", &dir())).unwrap();
    volume.commit(a).unwrap();
    assert!(matches!(volume.commit(b), Err(Error::Conflict { dir: ROOT, .. })));
    assert_eq!(tree(&volume)["/name"].attrs.kind, Kind::File);
}

/// Two directories that move into each other, each move fine alone.
#[test]
fn two_moves_make_no_circle() {
    let (_, volume) = fresh(BLOCKS);
    let (a, b) = volume
        .plain(|ops| Ok((ops.create(ROOT, b"a", &dir())?, ops.create(ROOT, b"b", &dir())?)))
        .unwrap();
    let (mut one, mut two) = (Txn::new(), Txn::new());
    let how = Rename::Replace;
    volume.within(&mut one, |ops| ops.rename((ROOT, b"a"), (b, b"a"), how)).unwrap();
    volume.within(&mut two, |ops| ops.rename((ROOT, b"b"), (a, b"b"), how)).unwrap();
    volume.commit(one).unwrap();
    assert!(matches!(volume.commit(two), Err(Error::Removed(_))));
    assert_eq!(tree(&volume).keys().collect::<Vec<_>>(), ["", "/b", "/b/a"]);
}

#[test]
fn a_directory_is_not_removed_from_under_a_new_name() {
    let (_, volume) = fresh(BLOCKS);
    let d = volume.plain(|ops| ops.create(ROOT, b"d", &dir())).unwrap();
    let mut txn = Txn::new();
    volume.within(&mut txn, |ops| ops.rmdir(ROOT, b"d")).unwrap();
    volume.plain(|ops| ops.create(d, b"new", &file())).unwrap();
    assert!(matches!(volume.commit(txn), Err(Error::Conflict { .. })));
    let mut txn = Txn::new();
    volume.within(&mut txn, |ops| ops.create(d, b"newer", &file())).unwrap();
    volume.plain(|ops| ops.unlink(d, b"new")).unwrap();
    volume.plain(|ops| ops.rmdir(ROOT, b"d")).unwrap();
    assert!(matches!(volume.commit(txn), Err(Error::Removed(_))));
}

#[test]
fn renames_do_what_their_flags_say() {
    let (_, volume) = fresh(BLOCKS);
    let all = |how| volume.plain(|ops| ops.rename((ROOT, b"a"), (ROOT, b"b"), how));
    volume.plain(|ops| ops.create(ROOT, b"a", &file())).unwrap();
    let d = volume.plain(|ops| ops.create(ROOT, b"b", &dir())).unwrap();
    assert!(matches!(all(Rename::NoReplace), Err(Error::Exists)));
    assert!(matches!(all(Rename::Replace), Err(Error::IsDir)));
    all(Rename::Exchange).unwrap();
    assert_eq!(tree(&volume)["/a"].ino, d);
    assert!(matches!(all(Rename::Replace), Err(Error::NotDir)));
    all(Rename::Exchange).unwrap();
    volume.plain(|ops| ops.rmdir(ROOT, b"b")).unwrap();
    all(Rename::Whiteout).unwrap();
    let seen = tree(&volume);
    assert_eq!((seen["/a"].attrs.kind, seen["/a"].attrs.rdev), (Kind::CharDev, 0));
    assert_eq!((seen["/b"].attrs.kind, seen[""].attrs.nlink), (Kind::File, 2));
    let below = volume.plain(|ops| {
        let x = ops.create(ROOT, b"x", &dir())?;
        let y = ops.create(x, b"y", &dir())?;
        ops.rename((ROOT, b"x"), (y, b"z"), Rename::Replace)
    });
    assert!(matches!(below, Err(Error::Invalid(_))));
}

#[test]
fn what_was_cut_off_and_what_is_a_hole_reads_as_zeros() {
    let (disk, volume) = fresh(BLOCKS);
    let f = volume.plain(|ops| ops.create(ROOT, b"f", &file())).unwrap();
    let size = |n| SetAttrs { size: Some(n), ..SetAttrs::default() };
    volume.plain(|ops| ops.write(f, 0, &bytes(3, 20_000))).unwrap();
    volume.plain(|ops| ops.set_attrs(f, &size(5_000))).unwrap();
    volume.plain(|ops| ops.set_attrs(f, &size(12_000))).unwrap();
    volume.plain(|ops| ops.punch(f, 100, 4_000)).unwrap();
    let mut expected = bytes(3, 5_000);
    expected.resize(12_000, 0);
    expected[100..4_100].fill(0);
    assert_eq!(tree(&volume)["/f"].content, expected);
    volume.sync().unwrap();
    volume.plain(|ops| ops.punch(f, 0, 20_000)).unwrap();
    volume.sync().unwrap();
    assert_eq!(tree(&volume)["/f"].content, vec![0; 12_000]);
    drop(volume);
    assert_eq!(tree(&open(disk).unwrap())["/f"].content, vec![0; 12_000]);
}

#[test]
fn an_object_that_is_held_stays_without_a_name() {
    let (disk, volume) = fresh(BLOCKS);
    let f = volume.plain(|ops| ops.create(ROOT, b"f", &file())).unwrap();
    volume.hold(f).unwrap();
    volume.plain(|ops| ops.write(f, 0, &bytes(1, 30_000))).unwrap();
    volume.plain(|ops| ops.unlink(ROOT, b"f")).unwrap();
    volume.plain(|ops| ops.write(f, 0, b"still")).unwrap();
    volume.checkpoint().unwrap();
    let read = volume.look(|ops| ops.read(f, 0, 5)).unwrap();
    let used = volume.space().used;
    assert_eq!(read, b"still");
    assert!(matches!(volume.plain(|ops| ops.link(f, ROOT, b"again")), Err(Error::NotFound)));
    drop(volume);
    // Nobody holds it after a crash.
    let volume = open(disk).unwrap();
    assert!(matches!(volume.look(|ops| ops.attrs(f)), Err(Error::NotFound)));
    assert!(volume.space().used + 8 <= used, "{} of {used}", volume.space().used);
}

#[test]
fn a_transaction_larger_than_memory_is_all_there_or_leaves_nothing() {
    let (disk, volume) = fresh(BLOCKS);
    let free = volume.space().free_segments;
    let mut txn = Txn::new();
    let content = bytes(9, 60 * 4096 + 5);
    volume
        .within(&mut txn, |ops| {
            let f = ops.create(ROOT, b"large", &file())?;
            ops.write(f, 0, &content)?;
            assert_eq!(ops.read(f, 0, content.len())?, content);
            Ok(())
        })
        .unwrap();
    assert!(volume.space().free_segments < free, "it spills");
    volume.checkpoint().unwrap();
    drop(txn);
    volume.checkpoint().unwrap();
    assert_eq!(volume.space().free_segments, free, "and gives back");
    commit(&volume, |ops| {
        let f = ops.create(ROOT, b"large", &file())?;
        ops.write(f, 0, &content)
    })
    .unwrap();
    drop(volume);
    let volume = open(disk).unwrap();
    assert_eq!(tree(&volume)["/large"].content, content);
}

/// Its pages lie in segments already when it is asked whether there is room for it.  They are in
/// use from the commit on, as those of any other: what the cleaner needs is not given away.
#[test]
fn a_transaction_larger_than_memory_gets_no_more_room_than_others() {
    let mut refused = 0;
    for pages in (200..600).step_by(3) {
        let (disk, volume) = fresh(BLOCKS);
        let done = commit(&volume, |ops| {
            let f = ops.create(ROOT, b"large", &file())?;
            ops.write(f, 0, &bytes(pages, pages as usize * BLOCK))
        });
        match done {
            Ok(()) => {}
            Err(Error::NoSpace) => refused += 1,
            Err(e) => panic!("{pages} pages: {e}"),
        }
        volume.checkpoint().unwrap();
        let space = volume.space();
        assert!(space.used <= space.total, "{pages} pages: {space:?}");
        if tree(&volume).contains_key("/large") {
            commit(&volume, |ops| ops.unlink(ROOT, b"large").map(drop)).unwrap();
        }
        commit(&volume, |ops| ops.create(ROOT, b"small", &file()).map(drop)).unwrap();
        drop(volume);
        assert_eq!(check(disk, clock()).unwrap().findings, [], "{pages} pages");
    }
    assert!(refused > 0);
}

#[test]
fn a_full_volume_refuses_before_it_decides_and_takes_deletions() {
    let (disk, volume) = fresh(BLOCKS);
    let mut made = 0;
    let full = loop {
        let done = commit(&volume, |ops| {
            let f = ops.create(ROOT, format!("f{made}").as_bytes(), &file())?;
            ops.write(f, 0, &bytes(made, 3 * 4096))
        });
        match done {
            Ok(()) => made += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full}");
    let space = volume.space();
    assert!(space.used * 100 >= space.total * 80, "{space:?}");
    let before = tree(&volume);
    assert_eq!(before.len() as u64, made + 1);
    for n in 0..made {
        commit(&volume, |ops| ops.unlink(ROOT, format!("f{n}").as_bytes()).map(drop))
            .unwrap_or_else(|e| panic!("deleting {n} of {made}: {e}"));
    }
    assert_eq!(tree(&volume).len(), 1);
    volume.checkpoint().unwrap();
    assert!(volume.space().used < 8, "{:?}", volume.space());
    drop(volume);
    assert_eq!(tree(&open(disk).unwrap()).len(), 1);
}

/// Records that grow out of the inode map take blocks of their own at the next checkpoint, many of
/// them by a transaction that takes few blocks itself, or by plain changes, which take none before.
#[test]
fn what_has_become_large_is_refused_or_can_be_written() {
    let long = vec![b'x'; 150];
    let name = |n: u32| format!("{}{n}", "n".repeat(40)).into_bytes();
    type Grow<'g> = &'g dyn Fn(&mut Ops<'_>, u64, u64) -> Result<(), Error>;
    let grows: [Grow<'_>; 2] =
        [&|ops, f, d| (0..10).try_for_each(|n| ops.link(f, d, &name(n))), &|ops, _, d| {
            (0..4).try_for_each(|n| ops.set_xattr(d, &name(n), &long, SetXattr::Any))
        }];
    for (how, plain) in (0..grows.len()).flat_map(|how| [(how, false), (how, true)]) {
        let grow = grows[how];
        let (disk, volume) = fresh(BLOCKS);
        let f = volume.plain(|ops| ops.create(ROOT, b"f", &file())).unwrap();
        let make = |n| volume.plain(|ops| ops.create(ROOT, &name(n), &dir())).unwrap();
        let made: Vec<u64> = (0..u32::try_from(volume.space().total).unwrap()).map(make).collect();
        volume.checkpoint().unwrap();
        // As many as it takes.
        let fits = |done: Result<(), Error>| {
            assert!(matches!(done, Ok(()) | Err(Error::NoSpace)), "{how}, {plain}: {done:?}");
            done.is_ok()
        };
        let many = if plain {
            made.iter().position(|d| !fits(volume.plain(|ops| grow(ops, f, *d))))
        } else {
            let all =
                |ops: &mut Ops<'_>, many| made[..many].iter().try_for_each(|d| grow(ops, f, *d));
            (0..made.len()).rev().find(|many| fits(commit(&volume, |ops| all(ops, *many))))
        };
        assert!((50..made.len() - 1).contains(&many.unwrap()), "{how}, {plain}: {many:?}");
        volume.checkpoint().unwrap_or_else(|e| panic!("{how}, {many:?}: {e}"));
        let space = volume.space();
        assert!(space.used <= space.total, "{how}: {space:?}");
        let before = tree(&volume);
        drop(volume);
        assert_eq!(check(disk.clone(), clock()).unwrap().findings, [], "{how}");
        assert_eq!(tree(&open(disk).unwrap()), before, "{how}");
    }
}

/// Objects that stand in one piece of the inode map pay for it once: else changing many of them at
/// once, as removing a tree does, asks for many times what it takes, and history goes for it.
#[test]
fn what_changes_of_many_objects_cost_covers_what_they_write_and_little_more() {
    let disk = Arc::new(Counted { inner: SimDisk::new(4 * BLOCKS), written: AtomicU64::new(0) });
    made(disk.clone());
    let volume = open(disk.clone()).unwrap();
    let name = |n: u32| format!("f{n}").into_bytes();
    let mut inos = BTreeSet::from([ROOT]);
    for n in 0..512 {
        inos.insert(volume.plain(|ops| ops.create(ROOT, &name(n), &file())).unwrap());
    }
    volume.checkpoint().unwrap();
    let (cost, each) = (volume.cost(&inos).unwrap(), volume.cost(&[ROOT + 1].into()).unwrap());
    let before = disk.written.load(Relaxed);
    let mode = SetAttrs { mode: Some(0o640), ..SetAttrs::default() };
    commit(&volume, |ops| inos.iter().try_for_each(|ino| ops.set_attrs(*ino, &mode))).unwrap();
    volume.checkpoint().unwrap();
    let written = disk.written.load(Relaxed) - before;
    assert!(written <= cost, "{written} blocks were written for {cost}");
    assert!(
        cost <= 3 * inos.len() as u64,
        "{cost} blocks for {} objects, {each} for one",
        inos.len()
    );
}

/// Counts the blocks that are written.
struct Counted {
    inner: SimDisk,
    written: AtomicU64,
}

impl Device for Counted {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> std::io::Result<()> {
        self.inner.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.written.fetch_add((from.len() / BLOCK) as u64, Relaxed);
        self.inner.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.written.fetch_add((from.len() / BLOCK) as u64, Relaxed);
        self.inner.write_durable(at, from)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.inner.sync()
    }
}

/// However it was filled: a write of one page uses no space that removing needs.
#[test]
fn a_file_that_fills_the_volume_can_be_cut_and_removed_also_while_it_is_open() {
    for blocks in [BLOCKS, 16_384, 65_536] {
        for is_open in [false, true] {
            let how = format!("{blocks} blocks, open: {is_open}");
            let (_, volume) = fresh(blocks);
            let f = volume.plain(|ops| ops.create(ROOT, b"f", &file())).unwrap();
            let mut page = 0;
            for many in [64, 1] {
                let data = bytes(1, many * 4096);
                while volume.plain(|ops| ops.write(f, page * 4096, &data)).is_ok() {
                    page += many as u64;
                }
            }
            let space = volume.space();
            assert!(space.used <= space.total, "{how}: {space:?}");
            volume.sync().unwrap();
            if is_open {
                volume.hold(f).unwrap();
            }
            let size = Some(page * 4096 - 100);
            let set = SetAttrs { size, ..SetAttrs::default() };
            volume.plain(|ops| ops.set_attrs(f, &set)).unwrap_or_else(|e| panic!("{how}: {e}"));
            volume
                .plain(|ops| ops.punch(f, 100, 4096 * 100))
                .unwrap_or_else(|e| panic!("{how}: {e}"));
            volume
                .plain(|ops| ops.unlink(ROOT, b"f").map(drop))
                .unwrap_or_else(|e| panic!("{how}: {e}, {:?}", volume.space()));
            if is_open {
                volume.release(f).unwrap();
            }
            volume.checkpoint().unwrap();
            assert!(volume.space().used < 40, "{how}: {:?}", volume.space());
        }
    }
}

/// Far more is written than fits: what is dead becomes free, by checkpoints and by cleaning.
#[test]
fn overwriting_goes_on_for_ever() {
    let (disk, volume) = fresh(BLOCKS);
    let files: Vec<_> = (0..20)
        .map(|n| {
            volume
                .plain(|ops| {
                    let f = ops.create(ROOT, format!("f{n}").as_bytes(), &file())?;
                    ops.write(f, 0, &bytes(n, 8 * 4096))?;
                    Ok(f)
                })
                .unwrap()
        })
        .collect();
    for round in 0..600u64 {
        let f = files[(systx_base::mix(round) % 20) as usize];
        let page = systx_base::mix(round + 7) % 8;
        commit(&volume, |ops| ops.write(f, page * 4096, &bytes(round, 4096)))
            .unwrap_or_else(|e| panic!("round {round}: {e}, {:?}", volume.space()));
    }
    let before = tree(&volume);
    drop(volume);
    assert_eq!(tree(&open(disk).unwrap()), before);
}

#[test]
fn many_commit_at_once() {
    let dev = Arc::new(MemDevice::new(BLOCKS as usize * 8));
    mkfs(dev.clone(), &common::format(), clock()).unwrap();
    let volume = Volume::open(dev.clone(), clock(), 1, LIMITS).unwrap();
    std::thread::scope(|s| {
        for t in 0..8 {
            let volume = &volume;
            s.spawn(move || {
                for n in 0..40 {
                    commit(volume, |ops| {
                        let name = format!("{t}.{n}");
                        let f = ops.create(ROOT, name.as_bytes(), &file())?;
                        ops.write(f, 0, name.as_bytes())
                    })
                    .unwrap();
                }
            });
        }
    });
    drop(volume);
    let volume = Volume::open(dev, clock(), 2, LIMITS).unwrap();
    let seen = tree(&volume);
    assert_eq!(seen.len(), 321);
    assert!(seen.iter().all(|(p, s)| p.is_empty() || p.as_bytes()[1..] == s.content));
}

#[test]
fn an_image_in_a_file_is_for_one_process() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    let dev = Arc::new(FileDevice::create(&path, 16 << 20).unwrap());
    mkfs(dev.clone(), &common::format(), clock()).unwrap();
    assert_eq!(FileDevice::open(&path).err().unwrap().kind(), std::io::ErrorKind::WouldBlock);
    let volume = Volume::open(dev.clone(), clock(), 3, LIMITS).unwrap();
    commit(&volume, |ops| {
        let f = ops.create(ROOT, b"f", &file())?;
        ops.write(f, 0, &bytes(5, 100_000))
    })
    .unwrap();
    let before = tree(&volume);
    drop((volume, dev));
    let dev = Arc::new(FileDevice::open(&path).unwrap());
    let volume = Volume::open(dev, clock(), 4, LIMITS).unwrap();
    assert_eq!(tree(&volume), before);
    assert_eq!(volume.label(), "test");
}

/// Everything that can be changed, hidden: names, attributes, content in memory and on the medium,
/// a file that is cut, one that is removed.
#[test]
fn a_hidden_commit_is_durable_and_seen_only_when_it_is_shown() {
    let (disk, volume) = fresh(BLOCKS);
    commit(&volume, |ops| {
        for name in [b"f", b"g", b"h"] {
            let f = ops.create(ROOT, name, &file())?;
            ops.write(f, 0, &bytes(1, 20_000))?;
        }
        let d = ops.create(ROOT, b"d", &dir())?;
        ops.create(d, b"below", &file()).map(drop)
    })
    .unwrap();
    volume.checkpoint().unwrap();
    let before = tree(&volume);
    let mut txn = Txn::new();
    volume
        .within(&mut txn, |ops| {
            let f = ops.lookup(ROOT, b"f")?.ino;
            ops.write(f, 4000, &bytes(2, 9000))?;
            ops.set_xattr(f, b"user.x", b"v", SetXattr::Any)?;
            let g = ops.lookup(ROOT, b"g")?.ino;
            ops.set_attrs(g, &SetAttrs { size: Some(5000), ..SetAttrs::default() })?;
            ops.unlink(ROOT, b"h")?;
            let d = ops.lookup(ROOT, b"d")?.ino;
            ops.rename((d, b"below"), (ROOT, b"above"), Rename::NoReplace)?;
            ops.rmdir(ROOT, b"d")?;
            ops.create(ROOT, b"new", &dir()).map(drop)
        })
        .unwrap();
    let hidden = volume.commit_hidden(txn, &mut None).unwrap();
    volume.durable(hidden.ticket()).unwrap();
    assert_eq!(tree(&volume), before);
    // What was overwritten is dead, and nothing is written over it: also when all else is used.
    for n in 0..60 {
        commit(&volume, |ops| {
            let f = match ops.lookup(ROOT, b"other") {
                Ok(link) => link.ino,
                Err(_) => ops.create(ROOT, b"other", &file())?,
            };
            ops.write(f, 0, &bytes(n, 60_000))
        })
        .unwrap();
        volume.checkpoint().unwrap();
        let mut now = tree(&volume);
        now.remove("/other");
        let root = before[""].clone();
        assert_eq!(now.insert(String::new(), root.clone()).unwrap().xattrs, root.xattrs);
        assert_eq!(now, before, "round {n}");
    }
    // A power cut: it is there.
    let after = tree(&open(Arc::new(disk.copy())).unwrap());
    assert_eq!(after["/f"].content[4000..13_000], bytes(2, 9000));
    assert!(!after.contains_key("/h") && !after.contains_key("/d"));
    volume.show(hidden).unwrap();
    assert_eq!(tree(&volume), after);
    volume.show(hidden).unwrap();
    volume.close().unwrap();
    let found = systx_lfs::fsck::check(disk, clock()).unwrap().findings;
    assert_eq!(found, []);
}

/// Whichever of them is shown first: its names are there, the other's are not, and the directory
/// has a version that it did not have before.
#[test]
fn hidden_commits_in_one_directory_are_shown_one_by_one() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let (_, volume) = fresh(BLOCKS);
        commit(&volume, |ops| ops.create(ROOT, b"n1", &dir()).map(drop)).unwrap();
        let hidden = [0, 1, 2].map(|n| {
            let mut txn = Txn::new();
            let name = format!("n{n}");
            volume
                .within(&mut txn, |ops| match n {
                    1 => ops.rmdir(ROOT, name.as_bytes()).map(drop),
                    _ => ops.create(ROOT, name.as_bytes(), &dir()).map(drop),
                })
                .unwrap();
            volume.commit_hidden(txn, &mut None).unwrap()
        });
        let mut want = std::collections::BTreeSet::from(["/n1".to_owned()]);
        let mut times = vec![tree(&volume)[""].attrs.ctime];
        for n in order {
            volume.show(hidden[n]).unwrap();
            if n == 1 {
                want.remove("/n1")
            } else {
                want.insert(format!("/n{n}"))
            };
            let now = tree(&volume);
            let names: std::collections::BTreeSet<String> = now.keys().skip(1).cloned().collect();
            assert_eq!(names, want, "{order:?}, {n}");
            assert_eq!(now[""].attrs.nlink as usize, 2 + want.len());
            assert!(times.iter().all(|time| *time < now[""].attrs.ctime), "{order:?}, {n}");
            times.push(now[""].attrs.ctime);
        }
        let mut all = Txn::new();
        let within = volume.within(&mut all, dump).unwrap();
        assert_eq!(within, tree(&volume));
    }
}

/// Whichever of them is shown first: its page is there, the others' are not, and the file has a
/// version that it did not have before.
#[test]
fn hidden_commits_that_overwrite_pages_of_one_file_are_shown_one_by_one() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let (disk, volume) = fresh(BLOCKS);
        commit(&volume, |ops| {
            let f = ops.create(ROOT, b"f", &file())?;
            ops.write(f, 0, &bytes(7, 3 * BLOCK))
        })
        .unwrap();
        volume.checkpoint().unwrap();
        let mut want = bytes(7, 3 * BLOCK);
        let hidden = [0, 1, 2].map(|n| {
            let mut txn = Txn::new();
            let write = |ops: &mut Ops<'_>| {
                let f = ops.lookup(ROOT, b"f")?.ino;
                ops.write(f, n * BLOCK as u64, &bytes(n, BLOCK))
            };
            volume.within(&mut txn, write).unwrap();
            volume.commit_hidden(txn, &mut None).unwrap()
        });
        hidden.iter().for_each(|hidden| volume.durable(hidden.ticket()).unwrap());
        let before = tree(&volume)["/f"].clone();
        assert_eq!(before.content, want, "nothing is shown yet");
        let mut times = vec![before.attrs.ctime];
        for n in order {
            volume.show(hidden[n]).unwrap();
            want[n * BLOCK..(n + 1) * BLOCK].copy_from_slice(&bytes(n as u64, BLOCK));
            let now = tree(&volume)["/f"].clone();
            assert_eq!(now.content, want, "{order:?}, {n}");
            assert!(times.iter().all(|time| *time < now.attrs.ctime), "{order:?}, {n}");
            times.push(now.attrs.ctime);
        }
        let shown = tree(&volume);
        volume.checkpoint().unwrap();
        assert_eq!(tree(&open(Arc::new(disk.copy())).unwrap()), shown, "{order:?}");
    }
}

/// The room is there also for pages that have spilled when the commit comes.
#[test]
fn what_is_promised_to_one_commit_nobody_else_gets() {
    for promised in 36..=76 {
        let (_, volume) = fresh(BLOCKS);
        let promise = volume.promise(promised).unwrap();
        let fill = |n: u64| {
            commit(&volume, |ops| {
                let f = ops.create(ROOT, format!("f{n}").as_bytes(), &file())?;
                ops.write(f, 0, &bytes(n, 4096))
            })
        };
        let full = (0..).map(fill).find_map(Result::err).unwrap();
        assert!(matches!(full, Error::NoSpace), "{full}");
        assert!(matches!(volume.promise(promised), Err(Error::NoSpace)));
        let mut txn = Txn::of(Some(&promise));
        volume
            .within(&mut txn, |ops| {
                let f = ops.create(ROOT, b"promised", &file())?;
                ops.write(f, 0, &bytes(7, 30 * 4096))
            })
            .unwrap();
        let hidden = volume.commit_hidden(txn, &mut Some(promise)).unwrap();
        volume.show(hidden).unwrap();
        assert_eq!(tree(&volume)["/promised"].content, bytes(7, 30 * 4096));
    }
}

/// Whole segments have nothing that is live but for the veil.
#[test]
fn what_a_hidden_commit_overwrites_is_not_written_over() {
    let (_, volume) = fresh(BLOCKS);
    let write = |name: &'static [u8], seed, len| {
        commit(&volume, |ops| {
            let f = match ops.lookup(ROOT, name) {
                Ok(link) => link.ino,
                Err(_) => ops.create(ROOT, name, &file())?,
            };
            ops.write(f, 0, &bytes(seed, len))
        })
        .unwrap();
        volume.checkpoint().unwrap();
    };
    write(b"f", 1, 60 * 4096);
    let mut txn = Txn::new();
    volume
        .within(&mut txn, |ops| {
            let f = ops.lookup(ROOT, b"f")?.ino;
            ops.write(f, 0, &bytes(2, 60 * 4096))
        })
        .unwrap();
    let hidden = volume.commit_hidden(txn, &mut None).unwrap();
    for n in 0..60 {
        write(b"other", n, 60_000);
        assert!(tree(&volume)["/f"].content == bytes(1, 60 * 4096), "round {n}");
    }
    volume.show(hidden).unwrap();
    assert!(tree(&volume)["/f"].content == bytes(2, 60 * 4096));
}

/// Commits of several segments, of all lengths of entries: some fill a segment to its last byte.
#[test]
fn a_commit_that_fills_segments_stays_in_them() {
    for len in 160..=255 {
        let (disk, volume) = fresh(BLOCKS);
        let names = 4 * SEGMENT as usize * 4096 / (len + 20);
        commit(&volume, |ops| {
            let f = ops.create(ROOT, b"f", &file())?;
            (0..names).try_for_each(|n| ops.link(f, ROOT, format!("{n:0len$}").as_bytes()))
        })
        .unwrap();
        let seen = tree(&volume);
        drop(volume);
        assert_eq!(check(disk.clone(), clock()).unwrap().findings, [], "{len}");
        let volume = open(disk.clone()).unwrap();
        assert!(tree(&volume) == seen && seen.len() == names + 2, "{len}");
        volume.close().unwrap();
        assert_eq!(check(disk, clock()).unwrap().findings, [], "{len}");
    }
}

/// Remembers what it was told would be read.
struct Told {
    inner: MemDevice,
    soon: Mutex<Vec<(u64, u64)>>,
}

impl Device for Told {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> std::io::Result<()> {
        self.inner.read(at, to)
    }
    fn soon(&self, at: u64, blocks: u64) {
        self.soon.lock().unwrap().push((at, blocks));
    }
    fn write(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.inner.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.inner.write_durable(at, from)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.inner.sync()
    }
}

#[test]
fn the_medium_is_told_of_all_that_a_read_of_several_pages_needs() {
    let inner = MemDevice::new(2048);
    let dev = Arc::new(Told { inner, soon: Mutex::default() });
    let label = String::new();
    let format = Format {
        segment_blocks: 64,
        cluster: 1,
        id: [7; 16],
        label,
        owner: (0, 0),
        compression: Default::default(),
    };
    mkfs(dev.clone(), &format, clock()).unwrap();
    let volume = Volume::open(dev.clone(), clock(), 1, LIMITS).unwrap();
    let mut f = ROOT;
    commit(&volume, |ops| {
        f = ops.create(ROOT, b"f", &file())?;
        ops.write(f, 0, &bytes(1, 8 * BLOCK))
    })
    .unwrap();
    let told = |offset: u64, len: usize| {
        dev.soon.lock().unwrap().clear();
        let read = volume.look(|ops| ops.read(f, offset, len)).unwrap();
        assert_eq!(read, bytes(1, 8 * BLOCK)[offset as usize..][..len]);
        let all = std::mem::take(&mut *dev.soon.lock().unwrap());
        all.into_iter().filter(|(_, blocks)| *blocks > 0).map(|(_, n)| n).collect::<Vec<_>>()
    };
    assert_eq!(told(0, 8 * BLOCK), [8]);
    assert_eq!(told(4000, 200), [2], "parts of two pages");
    assert_eq!(told(4096, 4096), [], "one read of one page needs no word before");
    let page = bytes(1, 8 * BLOCK)[2 * BLOCK..3 * BLOCK].to_vec();
    commit(&volume, |ops| ops.write(f, 2 * BLOCK as u64, &page)).unwrap();
    assert_eq!(told(0, 8 * BLOCK), [2, 1, 5], "one page lies elsewhere");
    assert_eq!(told(3 * 4096, 3 * BLOCK), [3]);
}

/// A page that is taken lies where it lay, in another file, and is zeros where it was, also after a
/// crash; one that this transaction has written itself is not taken, nor one twice.
#[test]
fn a_page_that_is_taken_is_in_one_file_only() {
    let (disk, volume) = fresh(BLOCKS);
    let volume = Arc::new(volume);
    let make = |name: &[u8]| volume.plain(|ops| ops.create(ROOT, name, &file())).unwrap();
    let (a, b) = (make(b"a"), make(b"b"));
    let content = bytes(1, 3 * 4096);
    commit(&volume, |ops| ops.write(a, 0, &content)).unwrap();
    let moment = volume.moment();
    commit(&volume, |ops| {
        let size = Some(3 * 4096);
        ops.set_attrs(b, &SetAttrs { size, ..SetAttrs::default() })?;
        assert!(ops.take((a, 0), (b, 2))? && !ops.take((a, 0), (b, 1))?);
        ops.write(a, 4096, b"own")?;
        assert!(!ops.take((a, 1), (b, 1))? && !ops.take((a, 7), (b, 1))?);
        assert!(ops.read(b, 2 * 4096, 4096)? == content[..4096]);
        Ok(())
    })
    .unwrap();
    let see = |volume: &Volume, ino| volume.look(|ops| ops.read(ino, 0, 3 * 4096)).unwrap();
    let zeros = vec![0; 4096];
    let expected = [zeros.clone(), b"own".to_vec(), content[4099..].to_vec()].concat();
    let moved = [zeros.clone(), zeros, content[..4096].to_vec()].concat();
    assert!(see(&volume, a) == expected && see(&volume, b) == moved);
    assert!(moment.look(|ops| ops.read(a, 0, 3 * 4096)).unwrap() == content);
    drop((moment, volume));
    let volume = open(disk.clone()).unwrap();
    assert!(see(&volume, a) == expected && see(&volume, b) == moved);
    // Also one that is newer in memory than where it lies.
    volume.plain(|ops| ops.write(b, 2 * 4096, b"newer")).unwrap();
    commit(&volume, |ops| ops.take((b, 2), (a, 0)).map(|taken| assert!(taken))).unwrap();
    assert!(see(&volume, a)[..4096] == [b"newer", &content[5..4096]].concat());
    volume.checkpoint().unwrap();
    drop(volume);
    assert_eq!(check(disk, clock()).unwrap().findings, []);
}
