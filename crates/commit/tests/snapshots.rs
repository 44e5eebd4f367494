//! Frozen snapshots of a guarded directory, against a model that is simply the tree at their begin:
//! beside random plain calls and commits, and beside threads. (With a kernel:
//! `crates/e2e/tests/snapshots.rs`.)

#![allow(clippy::unwrap_used)]

#[path = "../../vfs/tests/common/mod.rs"]
mod common;
mod place;

use common::*;
use place::{Place, chmod, meta};
use proptest::prelude::*;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use systx_base::{NodeId, TxnId};
use systx_commit::{Commit, Durable, Part};
use systx_guard::past::Size;
use systx_guard::plain::{Change, Gate, Order, STALL};
use systx_txn::{BeginOptions, Isolation};
use systx_vfs::api::*;
use systx_vfs::content::{Budget, Slot, Spill, Staging};
use systx_vfs::view::{Ids, View, ViewConfig};

/// Slots that are files of the host.
struct Files;

struct FileSlot(fs::File);

impl Spill for Files {
    fn stage(&self) -> std::io::Result<Slot> {
        Ok(Arc::new(FileSlot(tempfile::tempfile()?)))
    }
}

impl Staging for FileSlot {
    fn id(&self) -> systx_store::writeset::SlotId {
        systx_store::writeset::SlotId(0)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.0, buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.0, data, offset)
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }
    fn punch_hole(&self, offset: u64, len: u64) -> std::io::Result<()> {
        use rustix::fs::FallocateFlags as F;
        Ok(rustix::fs::fallocate(&self.0, F::PUNCH_HOLE | F::KEEP_SIZE, offset, len)?)
    }
}

impl Place {
    fn snapshot(&self) -> Twin {
        let txn = TxnId(self.id());
        let frozen = self.vol.snapshot(Arc::new(Files)).expect("something is guarded");
        let options = BeginOptions { read_only: true, ..BeginOptions::default() };
        self.vol.engine.begin(txn, options);
        let config = ViewConfig {
            txn,
            isolation: Isolation::Serializable,
            ids: Ids::Faithful,
            spill: Arc::new(NoSpill),
            budget: Budget::new(64 << 20),
            mount_points: Vec::new(),
            opaque: false,
        };
        Twin(Arc::new(View::of_snapshot(self.vol.clone(), frozen, config).expect("view")))
    }

    /// Ends a snapshot; nothing may have come between, so that it could commit.
    fn end(&self, snapshot: Twin) {
        assert_eq!(snapshot.0.validate(), []);
        assert_eq!(self.vol.engine.conflict(snapshot.0.txn()), None);
        assert!(!snapshot.0.is_given_up());
        self.vol.engine.abort(snapshot.0.txn());
    }

    /// The store drops what it keeps for undo; of how many transactions.
    fn forget(&self) -> usize {
        let store = self.site.store.lease().expect("store");
        store.checkpoint().expect("checkpoint");
        let none = systx_store::Keep { count: 0, ..systx_store::Keep::default() };
        store.gc(none).expect("gc").removed.len()
    }
}

/// Whether a random call can be made does not matter.
fn attempted(_: Result<(), Errno>) {}

#[derive(Clone, Debug)]
enum Step {
    Plain(Op),
    Commit(Vec<Op>),
    Begin,
    End(usize),
    Look(usize),
    /// One object only, so that the others are met later.
    Glance(usize, usize),
    /// The store forgets what it keeps for undo.
    Collect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => op().prop_map(Step::Plain),
        3 => proptest::collection::vec(op(), 1..8).prop_map(Step::Commit),
        3 => Just(Step::Begin),
        2 => (0usize..4).prop_map(Step::End),
        1 => (0usize..4).prop_map(Step::Look),
        3 => (0usize..4, 0..PATHS.len()).prop_map(|(s, p)| Step::Glance(s, p)),
        1 => Just(Step::Collect),
    ]
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: cases(300), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_snapshot_is_the_tree_at_its_begin(steps in proptest::collection::vec(step(), 1..60)) {
        prop_assume!(is_root());
        let backing = scratch();
        populate(backing.path()).expect("populate");
        let place = Place::open(backing.path(), ".");
        let outside = Twin(place.plain.clone());
        let mut open: Vec<(Twin, Tree)> = Vec::new();
        for step in &steps {
            match step {
                Step::Plain(op) => attempted(outside.run(op)),
                Step::Commit(ops) => {
                    let done = place.commit(|twin| ops.iter().for_each(|op| attempted(twin.run(op))));
                    prop_assert!(done, "nobody is in its way");
                }
                Step::Begin if open.len() < 4 => {
                    let tree = host_tree(backing.path());
                    open.push((place.snapshot(), tree));
                }
                Step::End(i) if *i < open.len() => {
                    let (snapshot, tree) = open.remove(*i);
                    prop_assert_eq!(difference(&tree, &view_tree(&snapshot.0)), None);
                    place.end(snapshot);
                }
                Step::Look(i) => {
                    if let Some((snapshot, tree)) = open.get(*i) {
                        prop_assert_eq!(difference(tree, &view_tree(&snapshot.0)), None);
                    }
                }
                Step::Glance(i, path) => {
                    if let Some((snapshot, tree)) = open.get(*i) {
                        let there = snapshot.walk(PATHS[*path]).ok().map(|e| e.attr.mode);
                        let want = tree.get(&format!("/{}", PATHS[*path])).map(|s| s.mode);
                        prop_assert_eq!(there, want);
                    }
                }
                Step::Collect => {
                    place.forget();
                }
                Step::Begin | Step::End(_) => {}
            }
        }
        for (snapshot, tree) in open {
            prop_assert_eq!(difference(&tree, &view_tree(&snapshot.0)), None);
            place.end(snapshot);
        }
        prop_assert_eq!(place.vol.past.size(), Size::default());
    }
}

fn read(view: &impl Requests, path: &str) -> Result<Vec<u8>, Errno> {
    let mut at = view.root()?;
    for name in path.split('/') {
        at = view.lookup(CALLER, at.node, name.as_bytes())?.ok_or(Errno::NOENT)?;
    }
    let mut buf = vec![0; usize::try_from(at.attr.size).unwrap()];
    let n = view.read(at.node, 0, &mut buf)?;
    assert_eq!(n, buf.len());
    Ok(buf)
}

/// A plain program writes a number into one file after the other, and moves another one on;
/// transactions write another number into two files at once. So at any moment the numbers form a
/// stair, and two are equal.
#[test]
fn every_snapshot_is_of_one_moment_beside_threads_that_never_pause() {
    const FILES: u64 = 6;
    let backing = scratch();
    let at = |name: &str| backing.path().join(name);
    fs::create_dir(at("d")).unwrap();
    for i in 0..FILES {
        fs::write(at(&format!("s{i}")), b"00000000").unwrap();
    }
    fs::write(at("d/at-00000000"), b"").unwrap();
    for name in ["a", "b"] {
        fs::write(at(name), b"00000000").unwrap();
    }
    let place = Place::open(backing.path(), ".");
    let stop = AtomicBool::new(false);
    let (rounds, commits) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let plain = Twin(place.plain.clone());
            let d = plain.walk("d").unwrap().node;
            let name = |n: u64| format!("at-{n:08}").into_bytes();
            for round in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (from, to) = (name(round - 1), name(round));
                plain.0.rename(CALLER, (d, &from), (d, &to), RenameHow::Replace).unwrap();
                for i in 0..FILES {
                    let path = format!("s{i}");
                    let text = format!("{round:08}");
                    // In place; by a new file; cut and written: a stair has them all.
                    match i % 3 {
                        0 => {
                            let node = plain.walk(&path).unwrap().node;
                            plain.0.write(node, 0, text.as_bytes(), false).unwrap();
                        }
                        1 => {
                            let new = NewAttr { mode: 0o644, umask: 0 };
                            let root = NodeId::ROOT;
                            let made = plain.0.create(CALLER, root, b"new", new, true).unwrap();
                            plain.0.write(made.node, 0, text.as_bytes(), false).unwrap();
                            let (from, to) = ((root, &b"new"[..]), (root, path.as_bytes()));
                            plain.0.rename(CALLER, from, to, RenameHow::Replace).unwrap();
                        }
                        _ => {
                            let node = plain.walk(&path).unwrap().node;
                            let long = [text.as_bytes(), &[b'x'; 9000]].concat();
                            plain.0.write(node, 0, &long, false).unwrap();
                        }
                    }
                }
                rounds.store(round, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            for n in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let done = place.commit(|twin| {
                    for name in ["a", "b"] {
                        let node = twin.walk(name).unwrap().node;
                        // Now a page, now the whole file.
                        if n % 2 == 0 {
                            let set = SetAttr { size: Some(0), ..SetAttr::default() };
                            twin.0.setattr(CALLER, node, set).unwrap();
                        }
                        twin.0.write(node, 0, format!("{n:08}").as_bytes(), false).unwrap();
                    }
                });
                assert!(done, "nobody else writes these");
                commits.store(n, Ordering::Relaxed);
            }
        });
        // Whatever fails in here, the threads must end.
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut older: Option<(Twin, Vec<Vec<u8>>)> = None;
            let look = |snapshot: &Twin| -> Vec<Vec<u8>> {
                let mut seen: Vec<Vec<u8>> = (0..FILES)
                    .rev()
                    .map(|i| read(&*snapshot.0, &format!("s{i}")).unwrap()[..8].to_vec())
                    .collect();
                seen.reverse();
                let d = snapshot.walk("d").unwrap().node;
                let mut names = Vec::new();
                let list = &mut |e: DirEntry<'_>| {
                    names.extend(e.name.starts_with(b"at-").then(|| e.name[3..].to_vec()));
                    true
                };
                snapshot.0.readdir(d, 0, true, list).unwrap();
                assert_eq!(names.len(), 1, "one name, whatever it is: {names:?}");
                seen.insert(0, names.remove(0));
                for stair in seen.windows(2) {
                    assert!(stair[0] >= stair[1], "not one moment: {seen:?}");
                }
                let ends: Vec<u64> = [0, seen.len() - 1]
                    .map(|i| String::from_utf8_lossy(&seen[i]).parse().unwrap())
                    .to_vec();
                assert!(ends[0] - ends[1] <= 1, "not one moment: {seen:?}");
                let pair = ["a", "b"].map(|name| read(&*snapshot.0, name).unwrap());
                assert_eq!(pair[0], pair[1], "half of a commit");
                seen.extend(pair);
                seen
            };
            let mut last = (0, 0);
            for _ in 0..60 {
                let snapshot = place.snapshot();
                let seen = look(&snapshot);
                if let Some((snapshot, before)) = older.take() {
                    assert_eq!(look(&snapshot), before, "it has changed");
                    place.end(snapshot);
                }
                older = Some((snapshot, seen));
                // Something has to happen between two of them.
                let now = || (rounds.load(Ordering::Relaxed), commits.load(Ordering::Relaxed));
                let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
                while now().0 == last.0 || now().1 == last.1 {
                    assert!(std::time::Instant::now() < until, "nothing happens");
                    std::thread::yield_now();
                }
                last = now();
            }
            place.end(older.unwrap().0);
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(place.vol.past.size(), Size::default(), "all is given back");
}

#[test]
fn what_is_cut_off_is_kept_once_and_beyond_memory_on_the_disk() {
    const LEN: usize = 40 << 20;
    let backing = scratch();
    let bytes: Vec<u8> = (0..LEN).map(|i| (i / 4096 + 1) as u8).collect();
    fs::write(backing.path().join("f"), &bytes).unwrap();
    let place = Place::open(backing.path(), ".");
    let [one, two] = [place.snapshot(), place.snapshot()];
    let plain = Twin(place.plain.clone());
    let file = plain.walk("f").unwrap().node;
    for size in [1000, LEN as u64 / 2] {
        plain.0.setattr(CALLER, file, SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    }
    let size = place.vol.past.size();
    assert!(size.memory <= 16 << 20, "{size:?}");
    let three = place.snapshot();
    plain.0.write(file, 5, b"later", false).unwrap();
    assert!(read(&*one.0, "f").unwrap() == bytes);
    place.end(one);
    assert!(read(&*two.0, "f").unwrap() == bytes, "what another one needed, too");
    let cut = read(&*three.0, "f").unwrap();
    assert!(cut.len() == LEN / 2 && cut[..1000] == bytes[..1000]);
    assert!(cut[1000..].iter().all(|b| *b == 0));
    place.end(two);
    place.end(three);
    assert_eq!(place.vol.past.size(), Size::default());
}

#[test]
fn a_removed_tree_can_be_read_and_nothing_of_it_is_held_afterwards() {
    let backing = scratch();
    let at = |name: &str| backing.path().join(name);
    fs::create_dir_all(at("d/e")).unwrap();
    fs::write(at("d/e/f"), b"there").unwrap();
    let place = Place::open(backing.path(), ".");
    let snapshot = place.snapshot();
    let plain = Twin(place.plain.clone());
    let (d, e) = (plain.walk("d").unwrap().node, plain.walk("d/e").unwrap().node);
    plain.0.unlink(CALLER, e, b"f").unwrap();
    plain.0.rmdir(CALLER, d, b"e").unwrap();
    plain.0.rmdir(CALLER, NodeId::ROOT, b"d").unwrap();
    fs::write(at("d"), b"another").unwrap();
    assert_eq!(read(&*snapshot.0, "d/e/f").unwrap(), b"there");
    assert_eq!(snapshot.walk("d").unwrap().attr.nlink, 3);
    let size = place.vol.past.size();
    assert_eq!((size.snapshots, size.pins), (1, 3), "{size:?}");
    place.end(snapshot);
    assert_eq!(place.vol.past.size(), Size::default());
}

#[test]
fn what_comes_from_below_the_mount_is_named_and_so_is_what_is_not_guarded() {
    let backing = scratch();
    let at = |name: &str| backing.path().join(name);
    for name in ["g", "h"] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("f"), b"old").unwrap();
        fs::write(at(name).join("other"), b"old").unwrap();
    }
    let place = Place::open(backing.path(), "g");
    let snapshot = place.snapshot();
    for path in ["g/f", "g/other", "h/f", "h/other"] {
        assert_eq!(read(&*snapshot.0, path).unwrap(), b"old");
    }
    let plain = Twin(place.plain.clone());
    let file = plain.walk("f").unwrap().node;
    plain.0.write(file, 0, b"new", false).unwrap();
    assert_eq!(snapshot.0.validate(), [], "by a plain program");
    fs::write(at("g/other"), b"by another way").unwrap();
    fs::write(at("h/f"), b"not guarded").unwrap();
    let mut named: Vec<_> = snapshot.0.validate().into_iter().map(|c| c.path).collect();
    named.sort();
    assert_eq!(named, [b"/g/other".to_vec(), b"/h/f".to_vec()]);
    place.vol.engine.abort(snapshot.0.txn());
}

#[test]
fn a_snapshot_is_in_nobodys_way_and_nobody_is_in_its() {
    let backing = scratch();
    fs::create_dir(backing.path().join("d")).unwrap();
    fs::write(backing.path().join("d/f"), b"old").unwrap();
    let place = Place::open(backing.path(), ".");
    let snapshot = place.snapshot();
    assert_eq!(read(&*snapshot.0, "d/f").unwrap(), b"old");
    snapshot.run(&Op::List(2)).unwrap();
    assert_eq!(place.vol.engine.stale_reads(snapshot.0.txn()), []);
    let done = place.commit(|twin| {
        let (d, f) = (twin.walk("d").unwrap().node, twin.walk("d/f").unwrap().node);
        twin.0.write(f, 0, b"new", false).unwrap();
        twin.0.create(CALLER, d, b"g", NewAttr { mode: 0o600, umask: 0 }, true).unwrap();
    });
    assert!(done);
    assert_eq!(place.vol.engine.stale_reads(snapshot.0.txn()), [], "it is not a reader");
    assert_eq!(read(&*snapshot.0, "d/f").unwrap(), b"old");
    assert_eq!(snapshot.walk("d/g").unwrap_err(), Errno::NOENT);
    // Its own changes are nobody's business.
    let f = snapshot.walk("d/f").unwrap().node;
    snapshot.0.write(f, 0, b"mine", false).unwrap();
    assert!(place.commit(|twin| {
        let f = twin.walk("d/f").unwrap().node;
        twin.0.write(f, 0, b"third", false).unwrap();
    }));
    assert_eq!(read(&*snapshot.0, "d/f").unwrap(), b"mine");
    let other = place.snapshot();
    assert_eq!(read(&*other.0, "d/f").unwrap(), b"third");
    let ino = fs::metadata(backing.path().join("d/f")).unwrap().ino();
    assert_eq!(other.walk("d/f").unwrap().attr.ino, ino);
    place.end(other);
    place.end(snapshot);
}

#[test]
fn a_tree_that_a_commit_removed_can_be_read_when_the_store_has_forgotten_it() {
    let backing = scratch();
    fs::create_dir_all(backing.path().join("d/e")).unwrap();
    fs::write(backing.path().join("d/e/f"), b"there").unwrap();
    let place = Place::open(backing.path(), ".");
    let snapshot = place.snapshot();
    assert!(place.commit(|twin| {
        let (d, e) = (twin.walk("d").unwrap().node, twin.walk("d/e").unwrap().node);
        twin.0.unlink(CALLER, e, b"f").unwrap();
        twin.0.rmdir(CALLER, d, b"e").unwrap();
        twin.0.rmdir(CALLER, NodeId::ROOT, b"d").unwrap();
    }));
    assert_eq!(place.forget(), 1);
    assert_eq!(read(&*snapshot.0, "d/e/f").unwrap(), b"there");
    place.end(snapshot);
    assert_eq!(place.vol.past.size(), Size::default());
}

/// Has a snapshot begin while something is going on, which is when `meanwhile` calls what it is
/// given: the snapshot has to wait until `meanwhile` is over.
fn begins_only_after(place: &Place, meanwhile: impl FnOnce(&dyn Fn())) {
    let begun = AtomicBool::new(false);
    let (go, gone) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let begun = &begun;
        scope.spawn(move || {
            gone.recv().unwrap();
            let snapshot = place.vol.snapshot(Arc::new(Files));
            begun.store(true, Ordering::SeqCst);
            drop(snapshot);
        });
        meanwhile(&|| {
            // The first time only: the snapshot waits from then on.
            let _ = go.send(());
            // Long enough for a thread to begin a snapshot if nothing holds it; too short shows
            // nothing wrong.
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert!(!begun.load(Ordering::SeqCst), "in the middle of a change");
        });
    });
    assert!(begun.load(Ordering::SeqCst), "it begins afterwards");
}

#[test]
fn a_snapshot_begins_neither_within_a_plain_request_nor_within_a_commit() {
    let backing = scratch();
    fs::write(backing.path().join("f"), b"old").unwrap();
    let place = Place::open(backing.path(), ".");
    let order = Order::new(place.vol.clone(), STALL);
    begins_only_after(&place, |stays_out| {
        let change = Change {
            by: CALLER,
            reads: &[],
            writes: &[],
            subject: None,
            places: &[],
            may_stall: false,
        };
        let act = &mut || {
            stays_out();
            Ok(())
        };
        order.mutate(change, act).unwrap();
    });
    begins_only_after(&place, |stays_out| {
        let mut publication =
            place.vol.publish(systx_base::TxnId(99), &systx_store::writeset::WriteSet::default());
        publication.decide(|| Ok::<(), ()>(())).unwrap();
        stays_out();
        // Nor while others may begin.
        publication.let_next();
        stays_out();
        assert_eq!(place.vol.try_snapshot(Arc::new(Files)).err(), Some(Errno::AGAIN));
        drop(publication);
    });
}

/// A file that is written in place, and loses the name by which an outsider has it open, is what it
/// was: there is no other version that the outsider could still write into.
#[test]
fn a_name_is_taken_of_a_file_that_is_written_to_and_open() {
    if !is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let backing = scratch();
    let place = Place::open(backing.path(), ".");
    let outside = Twin(place.plain.clone());
    let (a, b, other) = (0, 10, 1);
    outside.run(&Op::Create(b, 0o644)).unwrap();
    outside.run(&Op::Create(other, 0o644)).unwrap();
    let writer = fs::OpenOptions::new().write(true).open(backing.path().join(PATHS[b])).unwrap();
    assert!(place.commit(|twin| twin.run(&Op::Link(b, a)).unwrap()));
    // `commit` asserts that nothing of an outsider is reported.
    assert!(place.commit(|twin| {
        twin.run(&Op::Write(a, 0, vec![1])).unwrap();
        twin.run(&Op::Rename(other, b, RenameHow::Replace)).unwrap();
    }));
    drop(writer);
    assert_eq!(fs::read(backing.path().join(PATHS[a])).unwrap(), [1]);
}

/// The past is kept under the versions that are there when the commit is decided, not under those
/// that its transaction has met: another commit may have put another inode in their place.
#[test]
fn a_commit_over_two_file_systems_keeps_the_past_of_what_another_has_replaced() {
    if !is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let (backing, elsewhere) = (scratch(), scratch());
    let (program, file) = (backing.path().join(PATHS[0]), elsewhere.path().join("g"));
    for path in [&program, &file] {
        fs::write(path, b"old").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let places = [Place::open(backing.path(), "."), Place::open(elsewhere.path(), ".")];
    let sets = [chmod(&places[0], PATHS[0]), chmod(&places[1], "g")];
    let before = fs::metadata(&program).unwrap().ino();
    assert!(places[0].commit(|twin| {
        twin.run(&Op::Truncate(0, 0)).unwrap();
        twin.run(&Op::Write(0, 0, b"new".to_vec())).unwrap();
    }));
    assert_ne!(fs::metadata(&program).unwrap().ino(), before, "the case is not the one wanted");
    let snapshot = places[0].snapshot();
    let id = TxnId(1000);
    let parts = places.iter().zip(sets).map(|(place, writes)| {
        place.vol.engine.begin(id, BeginOptions::default());
        Part { site: place.site.clone(), writes, appended: Vec::new() }
    });
    let decided = Commit::new(id, meta(id), parts.collect()).reserve().and_then(|r| r.decide());
    let placed = decided.and_then(|decided| decided.durable()).and_then(Durable::place).unwrap();
    let _ = placed.release();
    for path in [&program, &file] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o600);
    }
    assert_eq!(snapshot.walk(PATHS[0]).unwrap().attr.mode & 0o7777, 0o755, "the snapshot is old");
    places[0].end(snapshot);
}

/// A collection takes a name of a file that has further ones.  What has met the file, or will, is
/// not concerned: neither a snapshot nor a transaction that read it.
#[test]
fn a_file_whose_other_name_is_collected_is_the_same_file() {
    let backing = scratch();
    let at = |name: &str| backing.path().join(name);
    fs::create_dir(at("gone")).unwrap();
    for name in ["met", "unmet"] {
        fs::write(at(name), b"there").unwrap();
        fs::hard_link(at(name), at("gone").join(name)).unwrap();
    }
    let place = Place::open(backing.path(), ".");
    assert!(place.commit(|twin| {
        let gone = twin.walk("gone").unwrap().node;
        for name in ["met", "unmet"] {
            twin.0.unlink(CALLER, gone, name.as_bytes()).unwrap();
        }
        twin.0.rmdir(CALLER, NodeId::ROOT, b"gone").unwrap();
    }));
    let snapshot = place.snapshot();
    let reader = place.begin(BeginOptions::default(), false);
    for view in [&snapshot, &reader] {
        assert_eq!(read(&*view.0, "met").unwrap(), b"there");
    }
    let before = fs::metadata(at("met")).unwrap();
    assert_eq!(place.forget(), 1);
    let after = fs::metadata(at("met")).unwrap();
    assert_eq!((before.nlink(), after.nlink()), (2, 1), "the case is not the one wanted");
    for name in ["met", "unmet"] {
        for view in [&snapshot, &reader] {
            assert_eq!(read(&*view.0, name).unwrap(), b"there");
        }
        assert_eq!(snapshot.walk(name).unwrap().attr.nlink, 2, "{name}");
    }
    reader.run(&Op::Create(0, 0o600)).unwrap();
    assert!(place.end_of(&reader), "nothing that it has read was changed");
    place.end(snapshot);
    assert_eq!(place.vol.past.size(), Size::default());
}
