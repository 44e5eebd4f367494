//! What the layers above rely on, beside what the suites of every store show (`vfs/tests/store.rs`,
//! the tests of `commit`).

#![allow(clippy::unwrap_used)]

mod common;

use common::volume::{commit, fresh, make, meta, open, open_among, write};
use common::{Sets, bytes, dump, list, patch, whole};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use systx_base::{Kind, TxnId};
use systx_lfs::Shape;
use systx_lfs::device::{Device, MemDevice};
use systx_lfs::format::ROOT;
use systx_lfs_store::VolumeStore;
use systx_store::io::{Open, Tree};
use systx_store::writeset::{Content, Data, Extent, NewKind, WriteSet};
use systx_store::{ApplyError, CommitError, Keep, Ready, ReserveError, Store, UndoError};

fn file(store: &VolumeStore, path: &str, content: &[u8]) -> WriteSet {
    let mut sets = Sets::new(store);
    sets.file(path, content);
    sets.set
}

fn ready(store: &VolumeStore, txn: u64, set: WriteSet) -> Ready {
    Ready { reservation: store.reserve(&set).unwrap(), set, meta: meta(TxnId(txn)) }
}

/// Counts what is written.
struct Counting {
    dev: MemDevice,
    durable: AtomicUsize,
    others: AtomicUsize,
}

impl Device for Counting {
    fn blocks(&self) -> u64 {
        self.dev.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.dev.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.others.fetch_add(1, Ordering::Relaxed);
        self.dev.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.durable.fetch_add(1, Ordering::Relaxed);
        self.dev.write_durable(at, from)
    }
    fn sync(&self) -> io::Result<()> {
        self.others.fetch_add(1, Ordering::Relaxed);
        self.dev.sync()
    }
}

#[test]
fn a_commit_is_one_write_and_so_is_a_group_and_applying_is_none() {
    let (durable, others) = Default::default();
    let dev = Arc::new(Counting { dev: MemDevice::new(8192), durable, others });
    make(dev.clone());
    let store = open(dev.clone());
    write(&store, TxnId(1), file(&store, "/a", b"a"));
    store.checkpoint().unwrap();
    let count = || (dev.durable.load(Ordering::Relaxed), dev.others.load(Ordering::Relaxed));
    let before = count();
    let mut sets = Sets::new(&store);
    sets.object("/a").content = patch(9000, 0, &bytes(1, 9000));
    sets.make("/d", NewKind::Dir);
    let done = commit(&store, TxnId(2), sets.set);
    assert_eq!(count(), (before.0 + 1, before.1));
    store.apply(done.lsn).unwrap();
    store.checkpoint().unwrap();
    assert_eq!(count(), (before.0 + 1, before.1));
    let members = (3..8).map(|n| ready(&store, n, file(&store, &format!("/n{n}"), b"n")));
    let done = store.commit_group(members.collect());
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    assert_eq!(count(), (before.0 + 2, before.1));
}

#[test]
fn a_commit_is_in_the_tree_when_it_is_applied_and_not_before() {
    let dev = Arc::new(MemDevice::new(8192));
    make(dev.clone());
    let store = open(dev.clone());
    let before = dump(&store);
    let done = commit(&store, TxnId(1), file(&store, "/a", b"a"));
    assert_eq!((dump(&store), store.has_history(TxnId(1)).unwrap()), (before, false));
    assert!(!store.is_at_rest() && !store.has_let_go(done));
    // It is durable all the same.
    let copy = open(Arc::new(MemDevice::from_bytes(dev.bytes())));
    assert_eq!(dump(&copy)["/a"].content, b"a");
    let report = store.apply(done.lsn).unwrap();
    assert_eq!(dump(&store)["/a"].content, b"a");
    assert_eq!(store.apply(done.lsn).unwrap(), report);
    store.checkpoint().unwrap();
    assert!(store.has_let_go(done) && store.is_at_rest());
    assert!(matches!(store.apply(done.lsn), Err(ApplyError::Unknown(_))));
    let tree = store.tree();
    let stamps = [tree.stat(&tree.root()), tree.stat_at(&tree.root(), b"a")];
    assert_eq!(report.stamps, stamps.map(|stat| Some(stat.unwrap().stamp())));
}

#[test]
fn who_meets_what_is_not_applied_has_it_applied_and_in_a_group_is_refused() {
    let store = fresh();
    write(&store, TxnId(1), file(&store, "/a", &bytes(1, 5000)));
    let change = |len| {
        let mut sets = Sets::new(&store);
        sets.object("/a").content = patch(len, 0, b"x");
        sets.set
    };
    let first = commit(&store, TxnId(2), change(5000));
    let mut stale = change(3000);
    let refused = store.commit_group(vec![ready(&store, 3, stale.clone())]).pop().unwrap();
    // The one before it is in the tree by now, and so the version that this one met is not.
    assert!(matches!(refused, Err(CommitError::Changed { .. })), "{refused:?}");
    assert_eq!(dump(&store)["/a"].content[..2], [b'x', bytes(1, 2)[1]]);
    store.apply(first.lsn).unwrap();
    stale = change(3000);
    let group = vec![ready(&store, 4, stale.clone()), ready(&store, 5, stale)];
    let done = store.commit_group(group);
    assert!(matches!(done[..], [Ok(_), Err(CommitError::Overlaps)]), "{done:?}");
    store.apply(done[0].as_ref().unwrap().lsn).unwrap();
    assert_eq!(dump(&store)["/a"].content.len(), 3000);
}

/// Commits that have met the same version of a file, and overwrite different pages of it, are one
/// write, and are applied in any order; who overwrites one of these pages as well has to wait.
#[test]
fn commits_that_overwrite_different_pages_of_one_file_need_not_wait_for_each_other() {
    let (durable, others) = Default::default();
    let dev = Arc::new(Counting { dev: MemDevice::new(8192), durable, others });
    make(dev.clone());
    let store = open(dev.clone());
    let mut want = bytes(1, 12_000);
    write(&store, TxnId(1), file(&store, "/a", &want));
    let change = |page: usize| {
        let mut sets = Sets::new(&store);
        let data = Data::Inline(bytes(50 + page as u64, 100));
        let extents = vec![Extent { offset: page as u64 * 4096 + 9, data }];
        sets.object("/a").content = Content::Patch { len: 12_000, keep: 12_000, extents };
        sets.set
    };
    let members = (0..2).map(|n| ready(&store, 2 + n as u64, change(n))).collect();
    let late = ready(&store, 4, change(2));
    let again = ready(&store, 5, change(2));
    let before = dev.durable.load(Ordering::Relaxed);
    let done: Vec<_> = store.commit_group(members).into_iter().map(Result::unwrap).collect();
    assert_eq!(dev.durable.load(Ordering::Relaxed), before + 1);
    let last = store.commit_group(vec![late]).remove(0).unwrap();
    assert!(!store.has_let_go(done[0]) && !store.has_let_go(last), "none is applied");
    assert_eq!(dump(&store)["/a"].content, want);
    for (page, done) in [(2, last), (0, done[0]), (1, done[1])] {
        let at = page * 4096 + 9;
        want[at..at + 100].copy_from_slice(&bytes(50 + page as u64, 100));
        let report = store.apply(done.lsn).unwrap();
        assert_eq!(dump(&store)["/a"].content, want, "page {page}");
        let now = store.tree().stat_at(&store.tree().root(), b"a").unwrap().stamp();
        assert!(report.stamps.contains(&Some(now)), "page {page}");
    }
    assert_eq!(dump(&open(Arc::new(MemDevice::from_bytes(dev.dev.bytes())))), dump(&store));
    // The same page: what has it is applied first.
    let over = ready(&store, 6, change(2));
    let met = store.commit_group(vec![again]).remove(0).unwrap();
    let next = store.commit_group(vec![over]).remove(0).unwrap();
    let twice = store.commit_group(vec![ready(&store, 7, change(0)), ready(&store, 8, change(0))]);
    assert!(matches!(twice[1], Err(CommitError::Overlaps)), "{twice:?}");
    assert_eq!(store.apply(met.lsn).unwrap().txn, TxnId(5), "before the next one was committed");
    store.apply(next.lsn).unwrap();
}

#[test]
fn what_somebody_holds_stays_and_what_is_wrong_has_the_right_error() {
    let store = fresh();
    let mut sets = Sets::new(&store);
    sets.file("/a", b"content");
    sets.make("/d", NewKind::Dir);
    sets.make("/p", NewKind::Special { kind: Kind::Fifo, rdev: 0 });
    write(&store, TxnId(1), sets.set);
    let (tree, root) = (store.tree(), store.tree().root());
    let code = |result: io::Result<_>| result.map(|_: ()| ()).unwrap_err().raw_os_error().unwrap();
    let unit = |result: io::Result<systx_store::io::Handle>| result.map(drop);
    let errnos = [
        code(unit(tree.open_dir(&root, b"a"))),
        code(unit(tree.open_file(&root, b"d", Open::Read))),
        code(unit(tree.open_file(&root, b"p", Open::Read))),
        code(unit(tree.pin(&root, b"none"))),
        code(unit(tree.pin(&root, &[b'x'; 256]))),
        code(tree.get_xattr(&root, b"a", b"user.x").map(drop)),
        code(tree.get_xattr(&root, b"a", b"none.x").map(drop)),
        code(tree.get_xattr(&root, b"a", b"user.").map(drop)),
        code(tree.read_link(&root, b"a").map(drop)),
    ];
    assert_eq!(errnos, [20, 22, 22, 2, 36, 61, 95, 22, 22]);
    let (one, two) =
        (tree.open_file(&root, b"a", Open::Read), tree.open_file(&root, b"a", Open::Read));
    let (one, two) = (one.unwrap(), two.unwrap());
    drop(two);
    let mut sets = Sets::new(&store);
    sets.remove("/a");
    write(&store, TxnId(2), sets.set);
    store.gc(Keep { count: 0, ..Keep::default() }).unwrap();
    let mut buf = [0; 20];
    assert_eq!(tree.read_at(&one, &mut buf, 0).unwrap(), 7);
    assert_eq!((&buf[..7], tree.stat(&one).unwrap().nlink), (&b"content"[..], 0));
}

#[test]
fn holes_are_told_as_holes() {
    let store = fresh();
    let extent = |offset, bytes: &[u8]| Extent { offset, data: Data::Inline(bytes.to_vec()) };
    let mut sets = Sets::new(&store);
    let extents = vec![extent(10_000, b"one"), extent(100_000, &bytes(1, 5000))];
    sets.make("/a", NewKind::File).content = Content::Whole { len: 1 << 20, extents };
    write(&store, TxnId(1), sets.set);
    let tree = store.tree();
    let file = tree.open_file(&tree.root(), b"a", Open::Read).unwrap();
    let mut ranges = Vec::new();
    let mut at = 0_u64;
    while let Some(range) = tree.next_data(&file, at).unwrap() {
        ranges.push(range);
        at = range.1;
    }
    assert_eq!(ranges, [(8192, 12_288), (98_304, 106_496)]);
    assert_eq!(tree.next_data(&file, 11_000).unwrap(), Some((11_000, 12_288)));
    assert_eq!(tree.stat(&file).unwrap().blocks, 3 * 8);
}

#[test]
fn a_slot_that_nobody_has_any_longer_takes_no_space() {
    let dev = Arc::new(MemDevice::new(8192));
    make(dev.clone());
    let store = open(dev.clone());
    let slots = |store: &VolumeStore| {
        let (tree, root) = (store.tree(), store.tree().root());
        let own = tree.open_dir(&root, b".systx").unwrap();
        list(&*tree, &tree.open_dir(&own, b"s").unwrap()).len()
    };
    let (one, two, three) =
        (store.stage().unwrap(), store.stage().unwrap(), store.stage().unwrap());
    one.write_at(&bytes(1, 70_000), 5).unwrap();
    two.write_at(&bytes(2, 30), 0).unwrap();
    assert_eq!(slots(&store), 3);
    let mut sets = Sets::new(&store);
    sets.make("/a", NewKind::File).content = Content::Slot(one.id());
    let data = Data::Slot { slot: two.id(), at: 10, len: 20 };
    let extents = vec![Extent { offset: 4090, data }];
    sets.make("/b", NewKind::File).content = Content::Whole { len: 5000, extents };
    write(&store, TxnId(1), sets.set);
    drop((one, two));
    store.checkpoint().unwrap();
    assert_eq!(slots(&store), 1);
    let seen = dump(&store);
    assert_eq!(seen["/a"].content[5..], bytes(1, 70_000));
    assert_eq!(
        (&seen["/b"].content[4090..4110], seen["/b"].content.len()),
        (&bytes(2, 30)[10..], 5000)
    );
    let mut sets = Sets::new(&store);
    sets.make("/c", NewKind::File).content = Content::Slot(systx_store::writeset::SlotId(99_999));
    let unknown = store.commit_group(vec![ready(&store, 2, sets.set)]).pop().unwrap();
    assert!(matches!(unknown, Err(CommitError::UnknownSlot)), "{unknown:?}");
    store.close().unwrap();
    drop((store, three));
    assert_eq!(slots(&open(dev)), 0);
}

/// Everything that is displaced comes back, what came later stands in the way, and what is
/// forgotten does not come back.
#[test]
fn undo_takes_back_what_nobody_has_changed_since() {
    let store = fresh();
    let mut sets = Sets::new(&store);
    sets.make("/d", NewKind::Dir);
    sets.file("/d/x", &bytes(1, 100_000));
    sets.file("/d/y", b"y");
    sets.file("/e", &bytes(2, 60_000));
    write(&store, TxnId(1), sets.set);
    let before = dump(&store);
    let mut sets = Sets::new(&store);
    sets.object("/e").content = patch(50_000, 100, &bytes(3, 45_000));
    let moved = sets.at("/d/y");
    sets.bind("/y", Some(moved), None);
    sets.remove("/d");
    write(&store, TxnId(2), sets.set);
    let past = store.look_back(TxnId(2)).unwrap().unwrap();
    let paths: Vec<_> = past.iter().map(|p| String::from_utf8_lossy(&p.path)).collect();
    assert_eq!(paths, ["d", "d/x", "e", "y"]);
    let old = past[2].old.as_ref().unwrap();
    assert_eq!(store.read_back(old, usize::MAX).unwrap().unwrap(), bytes(2, 60_000));
    let undo = store.undo_set(TxnId(2)).unwrap();
    write(&store, TxnId(3), undo.set.clone());
    // What somebody takes back is not collected.
    assert_eq!(store.gc(Keep { count: 1, log: 9, ..Keep::default() }).unwrap().removed, [TxnId(1)]);
    drop(undo);
    assert_eq!(dump(&store), before);
    let mut sets = Sets::new(&store);
    sets.object("/e").content = whole(b"later");
    write(&store, TxnId(4), sets.set);
    assert!(matches!(store.undo_set(TxnId(3)), Err(UndoError::Overlap(_))));
    assert!(matches!(store.undo_set(TxnId(9)), Err(UndoError::Unknown(_))));
    let would = store.would_gc(Keep { count: 1, log: 2, ..Keep::default() }).unwrap();
    let did = store.gc(Keep { count: 1, log: 2, ..Keep::default() }).unwrap();
    assert_eq!((would.removed.len(), did), (2, would));
    assert!(matches!(store.undo_set(TxnId(3)), Err(UndoError::Forgotten(_))));
    store.gc(Keep { count: 1, log: 2, ..Keep::default() }).unwrap();
    assert_eq!(store.history().unwrap().len(), 3);
    let undo = store.undo_set(TxnId(4)).unwrap();
    write(&store, TxnId(5), undo.set);
    assert_eq!(dump(&store), before);
}

/// What a small volume remembers of transactions is bounded by its size, and not by their number
/// alone.
#[test]
fn the_log_of_a_small_volume_is_short() {
    let dev = Arc::new(MemDevice::new(2048));
    make(dev.clone());
    let store = open(dev.clone());
    let mut used = Vec::new();
    for n in 1..=150 {
        let text = n.to_string();
        let set = match n {
            1 => file(&store, "/f", text.as_bytes()),
            _ => {
                let mut sets = Sets::new(&store);
                sets.object("/f").content = whole(text.as_bytes());
                sets.set
            }
        };
        write(&store, TxnId(n), set);
        if n % 50 == 0 {
            // The second one drops what the first one has forgotten.
            for _ in 0..2 {
                store.gc(Keep { count: 1, log: 10_000, ..Keep::default() }).unwrap();
            }
            used.push(store.volume().space().used);
        }
    }
    let kept = store.history().unwrap();
    assert!((20..40).contains(&kept.len()), "{}", kept.len());
    assert!(kept.iter().any(|kept| kept.meta.txn == TxnId(150)), "the last one is there");
    assert!(used[2] <= used[1] + 8, "{used:?}");
}

/// The history makes room for commits, oldest first; when there is nothing left to forget a commit
/// is refused before it is decided, and one that only removes is not.
#[test]
fn a_full_volume_forgets_then_refuses_and_takes_deletions() {
    let dev = Arc::new(MemDevice::new(2048));
    make(dev.clone());
    let store = open(dev.clone());
    let (mut n, mut forgotten, mut refused) = (0, 0, None);
    while refused.is_none() {
        n += 1;
        // Each is rewritten once, so that there is something to forget.
        for round in 0..2 {
            let mut sets = Sets::new(&store);
            let path = format!("/f{n}");
            match round {
                0 => sets.file(&path, &bytes(n, 100_000)),
                _ => sets.object(&path).content = whole(&bytes(n + 1, 100_000)),
            }
            match store.reserve(&sets.set) {
                Ok(room) => {
                    forgotten += room.forgotten().transactions;
                    let one = Ready {
                        reservation: room,
                        set: sets.set,
                        meta: meta(TxnId(n * 2 + round)),
                    };
                    let done = store.commit_group(vec![one]).pop().unwrap().unwrap();
                    store.apply(done.lsn).unwrap();
                }
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        assert!(n < 1000);
    }
    assert!(matches!(refused, Some(ReserveError::NoSpace { .. })), "{refused:?}");
    assert!(forgotten > 5 && n > 20, "{forgotten} forgotten, {n} files");
    for n in 1..n {
        let mut sets = Sets::new(&store);
        sets.remove(&format!("/f{n}"));
        write(&store, TxnId(100_000 + n), sets.set);
    }
    write(&store, TxnId(1_000_000), file(&store, "/again", &bytes(7, 1_000_000)));
    store.close().unwrap();
    let found = systx_lfs::fsck::check(dev, common::volume::clock()).unwrap().findings;
    assert_eq!(found, []);
}

/// What an aborted transaction has written takes all room: the volume can be closed, opened and
/// written again all the same, whether the slot is dropped before that or only found by opening.
#[test]
fn a_slot_that_fills_the_volume_can_always_be_removed() {
    for blocks in [2048_u64, 4096, 16_384] {
        for pages in [1, 32, 200] {
            for is_dropped in [true, false] {
                let dev = Arc::new(MemDevice::new(blocks as usize));
                make(dev.clone());
                let store = open(dev.clone());
                write(&store, TxnId(1), file(&store, "/kept", &bytes(1, 100_000)));
                let slot = store.stage().unwrap();
                let data = bytes(2, 4096 * pages as usize);
                let mut at = 0_u64;
                while slot.write_at(&data, at).is_ok() {
                    at += data.len() as u64;
                }
                let how = format!("{blocks} blocks, {pages} at once, dropped: {is_dropped}");
                assert!(at > blocks * 4096 / 3, "{how}: {at}");
                if is_dropped {
                    drop(slot);
                } else {
                    std::mem::forget(slot);
                }
                store.close().unwrap_or_else(|e| panic!("{how}: {e}"));
                drop(store);
                let store = open(dev.clone());
                write(&store, TxnId(2), file(&store, "/again", &bytes(3, 1_000_000)));
                store.close().unwrap();
                let found = systx_lfs::fsck::check(dev, common::volume::clock()).unwrap().findings;
                assert_eq!(found, [], "{how}");
            }
        }
    }
}

/// Room that nobody uses any more comes before history.
#[test]
fn what_was_dropped_makes_room_and_nothing_is_forgotten_for_it() {
    let store = fresh();
    write(&store, TxnId(1), file(&store, "/a", &bytes(1, 100_000)));
    let mut sets = Sets::new(&store);
    sets.object("/a").content = whole(&bytes(2, 100_000));
    write(&store, TxnId(2), sets.set);
    let slot = store.stage().unwrap();
    slot.write_at(&bytes(3, 200_000), 0).unwrap();
    drop(slot);
    assert!(store.forget_for_content(100_000));
    assert_eq!(store.history().unwrap().len(), 2);
}

/// So does what was removed, once those who hold it have let go of it: for plain changes, for
/// commits, and for what a transaction writes before its commit.
#[test]
fn what_is_let_go_of_makes_room_and_nothing_is_forgotten_for_it() {
    for way in 0..3 {
        let store = fresh();
        write(&store, TxnId(1), file(&store, "/a", &bytes(1, 100_000)));
        let mut sets = Sets::new(&store);
        sets.object("/a").content = whole(&bytes(2, 100_000));
        write(&store, TxnId(2), sets.set);
        let volume = store.volume();
        let shape = Shape::new(Kind::File, 0o644);
        let ino = volume.plain(|ops| ops.create(ROOT, b"full", &shape)).unwrap();
        let mut at = 0;
        while volume.plain(|ops| ops.write(ino, at, &[7; 4096])).is_ok() {
            at += 4096;
        }
        assert!(at > 4_000_000, "{at}");
        volume.hold(ino).unwrap();
        volume.plain(|ops| ops.unlink(ROOT, b"full")).unwrap();
        // It has not been heard yet that nobody has it any longer.
        let (tried, is_tried) = std::sync::mpsc::channel();
        let held = Arc::clone(volume);
        let later = std::thread::spawn(move || {
            // Where it cannot be seen from here that it was tried, either may come first.
            let () = is_tried.recv().unwrap();
            held.release(ino).unwrap();
        });
        if way > 0 {
            tried.send(()).unwrap();
        }
        match way {
            0 => {
                let write = || {
                    let done = volume.plain(|ops| {
                        let ino = ops.create(ROOT, b"next", &shape)?;
                        ops.write(ino, 0, &bytes(3, 1_000_000))
                    });
                    let _ = tried.send(());
                    done
                };
                store.with_room(write).unwrap();
            }
            1 => drop(store.reserve(&file(&store, "/next", &bytes(3, 1_000_000))).unwrap()),
            _ => assert!(store.forget_for_content(1_000_000)),
        }
        later.join().unwrap();
        assert_eq!(store.history().unwrap().len(), 2, "{way}");
        assert!(store.history().unwrap().iter().all(|one| !one.forgotten), "{way}");
    }
}

/// What a program has open is not waited for again and again.
#[test]
fn what_is_not_let_go_of_is_waited_for_once() {
    let store = fresh();
    let volume = store.volume();
    let shape = Shape::new(Kind::File, 0o644);
    let ino = volume.plain(|ops| ops.create(ROOT, b"open", &shape)).unwrap();
    volume.hold(ino).unwrap();
    volume.plain(|ops| ops.unlink(ROOT, b"open")).unwrap();
    let none = || Err::<(), _>(systx_lfs::Error::NoSpace);
    let begun = std::time::Instant::now();
    assert!(store.with_room(none).is_err());
    let first = begun.elapsed();
    let begun = std::time::Instant::now();
    for _ in 0..2 {
        assert!(store.with_room(none).is_err());
    }
    assert!(begun.elapsed() < first, "{:?} after {first:?}", begun.elapsed());
    volume.release(ino).unwrap();
    assert!(store.with_room(none).is_err());
}

/// A sparse file that is larger than the volume: what is kept of it is its data.
#[test]
fn holes_take_no_room_and_come_back_as_holes() {
    let store = fresh();
    let mut sets = Sets::new(&store);
    let data = Data::Inline(bytes(1, 100_000));
    let extents = vec![Extent { offset: 1 << 39, data }];
    sets.make("/a", NewKind::File).content = Content::Whole { len: 1 << 40, extents };
    write(&store, TxnId(1), sets.set);
    let mut sets = Sets::new(&store);
    sets.object("/a").content = patch(10, 0, b"short");
    write(&store, TxnId(2), sets.set);
    write(&store, TxnId(3), store.undo_set(TxnId(2)).unwrap().set);
    let tree = store.tree();
    let file = tree.open_file(&tree.root(), b"a", Open::Read).unwrap();
    let (mut back, stat) = (vec![0; 100_000], tree.stat(&file).unwrap());
    assert_eq!(tree.read_at(&file, &mut back, 1 << 39).unwrap(), back.len());
    assert_eq!((back, stat.size), (bytes(1, 100_000), 1 << 40));
    assert!(stat.blocks <= 27 * 8, "{} blocks", stat.blocks);
}

/// The number of an order is used up by the write that commits, also where nothing else changes.
#[test]
fn the_numbers_of_orders_are_in_the_commit_that_uses_them_up() {
    let dev = Arc::new(MemDevice::new(8192));
    make(dev.clone());
    let store = open(dev.clone());
    let order = systx_base::OrderName { owner: 7, name: b"a/b".as_slice().into() };
    let commit = |txn, next, set: WriteSet| {
        let step = systx_base::OrderStep { order: order.clone(), next };
        let mut one = ready(&store, txn, set);
        one.meta.order = Some(step);
        store.commit_group(vec![one]).pop().unwrap().unwrap()
    };
    let after = || {
        let again = open(Arc::new(MemDevice::from_bytes(dev.bytes())));
        (again.orders().next(&order), again.history().unwrap().len())
    };
    let done = commit(1, 3, file(&store, "/a", b"a"));
    assert_eq!((store.orders().next(&order), after()), (3, (3, 1)));
    store.apply(done.lsn).unwrap();
    let done = commit(2, 4, Sets::new(&store).set);
    assert_eq!((store.orders().next(&order), after()), (4, (4, 1)));
    store.apply(done.lsn).unwrap();
    commit(3, 0, Sets::new(&store).set);
    assert_eq!((store.orders().next(&order), after()), (0, (0, 1)));
}

/// A joint commit of this store, which is number `me`, and another one, of which the first decides.
fn joint(store: &VolumeStore, me: u32) -> systx_store::Joint {
    let member = |store| systx_store::Member { store, memory: false, path: b"/x".to_vec() };
    let mut members = vec![member(store.number().unwrap()), member(2)];
    members.rotate_left(me as usize);
    systx_store::Joint { id: 9, members, decider: 0, me }
}

/// A decider notes its decision with its commit, until nobody asks any longer.
#[test]
fn a_decision_is_kept_until_it_is_forgotten() {
    let dev = Arc::new(MemDevice::new(8192));
    make(dev.clone());
    let store = open(dev.clone());
    let set = file(&store, "/a", b"a");
    let claim = store.claim(&set).unwrap();
    let lsn = store.prepare(claim, ready(&store, 1, set), joint(&store, 0)).unwrap();
    let store = open(Arc::new(MemDevice::from_bytes(dev.bytes())));
    assert!(dump(&store).contains_key("/a") && lsn > 0);
    let all = store.decisions().unwrap();
    assert_eq!((all.len(), all[0].id, all[0].txn, all[0].others.len()), (1, 9, TxnId(1), 1));
    store.forget_decision(9).unwrap();
    assert_eq!(store.decisions().unwrap(), []);
    assert!(store.history().unwrap()[0].joint.is_some());
}

/// An undo of a part has to take back those of the others.
#[test]
fn a_part_that_another_decides_is_known_to_be_one() {
    for crashes in [false, true] {
        let dev = Arc::new(MemDevice::new(8192));
        make(dev.clone());
        let store = open(dev.clone());
        let set = file(&store, "/a", b"a");
        let claim = store.claim(&set).unwrap();
        let lsn = store.prepare(claim, ready(&store, 1, set), joint(&store, 1)).unwrap();
        let store = if crashes {
            open_among(Arc::new(MemDevice::from_bytes(dev.bytes())), &Yes)
        } else {
            store.decided(lsn, true);
            store.apply(lsn).unwrap();
            store
        };
        let all = store.history().unwrap();
        let others: Vec<u64> =
            all[0].joint.iter().flat_map(|j| j.others()).map(|m| m.store).collect();
        assert_eq!((all.len(), &others[..]), (1, &[2][..]), "crash: {crashes}");
    }
}

/// Others fill the volume between the vote and the decision: the part that counts has the room that
/// it was promised, at once and after a crash.
#[test]
fn a_decided_part_has_room_on_a_full_volume() {
    for content in [1000, 30_000, 600_000, 1_500_000] {
        for crashes in [false, true] {
            let dev = Arc::new(MemDevice::new(4096));
            make(dev.clone());
            let store = open(dev.clone());
            write(&store, TxnId(1), file(&store, "/old", &bytes(1, content)));
            let mut sets = Sets::new(&store);
            sets.object("/old").content = whole(&bytes(2, content));
            sets.file("/new", &bytes(3, content));
            let claim = store.claim(&sets.set).unwrap();
            let one = ready(&store, 2, sets.set);
            let lsn = store.prepare(claim, one, joint(&store, 1)).unwrap();
            let slot = store.stage().unwrap();
            let mut at = 0;
            while slot.write_at(&[7; 4096], at).is_ok() {
                at += 4096;
            }
            let store = if crashes {
                // What the slot had is lost with it, but for the log's sake it may be there.
                let dev = Arc::new(MemDevice::from_bytes(dev.bytes()));
                open_among(dev, &Yes)
            } else {
                store.decided(lsn, true);
                store.apply(lsn).unwrap_or_else(|e| panic!("{content} bytes: {e}"));
                store
            };
            let seen = dump(&store);
            let how = format!("{content} bytes, crash: {crashes}");
            assert!(seen["/old"].content == bytes(2, content), "{how}");
            assert!(seen["/new"].content == bytes(3, content), "{how}");
        }
    }
}

/// Each part has been decided for.
struct Yes;

impl systx_store::Outcomes for Yes {
    fn outcome(&self, _: &systx_store::Joint) -> systx_store::Outcome {
        systx_store::Outcome::Committed
    }
}

#[test]
fn what_a_transaction_has_dropped_is_free_for_whoever_asks() {
    let store = fresh();
    let before = store.space().used;
    let slot = store.stage().unwrap();
    slot.write_at(&bytes(3, 2 << 20), 0).unwrap();
    assert!(store.space().used >= before + 512);
    drop(slot);
    // The directory of slots has been written again.
    assert!(store.space().used < before + 16);
}
