//! A view and a store together, the one of plain files, one in memory, and a log-structured volume:
//! what random calls in a view leave, frozen, committed and installed, is what the same calls leave
//! on the host; undone, it is as it was.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "../../store/tests/memory/mod.rs"]
mod memory;
#[path = "../../lfs-store/tests/volume/mod.rs"]
mod volume;

use common::*;
use memory::Memory;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systx_base::{Kind, Time, TxnId};
use systx_store::io::{Io, Stamp};
use systx_store::real::RealIo;
use systx_store::writeset::{
    Attrs, Bind, Content, Data, Extent, Ix, NewKind, Object, Origin, WriteSet,
};
use systx_store::{CommitMeta, Config, Store, TxnKind, UndoError};
use systx_txn::Isolation;
use systx_vfs::freeze::{Everything, Frozen};
use systx_vfs::volume::Volume;

/// A tree with a store, and a volume over both.
struct Place {
    store: Arc<dyn Store>,
    vol: Arc<Volume>,
    /// Where it is on the host, if it is there.
    root: Option<PathBuf>,
    /// Whether it keeps what undo needs.
    undoes: bool,
    commits: std::cell::Cell<u64>,
}

impl Place {
    /// The directory `root`, and places in memory and on a volume with the same in them.
    fn all(root: &Path) -> [Place; 3] {
        let memory = Memory::new();
        memory.write(TxnId(u64::MAX), as_write_set(&host_tree(root)));
        let alone = |tree, hidden| Volume::alone(tree, Vec::new(), hidden).expect("volume");
        let hidden = HashSet::from_iter(memory.own_object());
        let over = alone(memory.clone(), hidden);
        let memory = Place { undoes: false, ..Place::over(memory, over, None) };
        let volume = volume::fresh();
        volume::write(&volume, TxnId(u64::MAX), as_write_set(&host_tree(root)));
        let over = alone(volume.tree(), HashSet::from_iter(volume.own_object()));
        let volume = Place::over(volume, over, None);
        let io: Arc<dyn Io> = Arc::new(RealIo::open(root).expect("backing directory"));
        let config = Config { segment_bytes: 64 << 10, ..Config::new(STATE) };
        let (store, _) = systx_store::open(config, io.clone()).expect("store");
        let hidden = HashSet::from_iter(store.own_object());
        let over = Volume::new(io, Vec::new(), hidden).expect("volume");
        [Place::over(store, over, Some(root.to_path_buf())), memory, volume]
    }

    fn over(store: Arc<dyn Store>, vol: Volume, root: Option<PathBuf>) -> Place {
        let vol = Arc::new(vol);
        Place { store, vol, root, undoes: true, commits: std::cell::Cell::new(0) }
    }

    /// What is committed.
    fn now(&self) -> Tree {
        if let Some(root) = &self.root {
            return host_tree(root);
        }
        let hidden = HashSet::from_iter(self.store.own_object());
        let vol = Volume::alone(self.vol.tree.clone(), Vec::new(), hidden).expect("volume");
        view_tree(&open_view(&Arc::new(vol), 7, Isolation::Serializable))
    }

    /// As the daemon does it; the transaction is not ended.
    fn install(&self, writes: &WriteSet, kind: TxnKind) -> (TxnId, Vec<(Ix, Stamp)>) {
        let txn = TxnId(self.commits.get() + 1);
        self.commits.set(txn.0);
        let now = Time::default();
        let (argv, cwd) = (vec![b"test".to_vec()], b"/".to_vec());
        let (started, finished, told, order) = (now, now, None, None);
        let meta = CommitMeta { txn, kind, argv, cwd, uid: 0, started, finished, told, order };
        let before: Vec<Option<Stamp>> =
            writes.objects.iter().map(|o| stamp_of(&o.origin)).collect();
        let ids: Vec<_> = before.iter().flatten().map(|stamp| stamp.id()).collect();
        let report = self.vol.installing(ids, || {
            let room = self.store.reserve(writes).expect("reserve");
            let committed = self.store.commit(room, writes.clone(), meta).expect("commit");
            let report = self.store.apply(committed.lsn).expect("apply");
            let pairs = before.iter().zip(&report.stamps);
            let moves = pairs.filter_map(|(old, new)| Some(((*old)?, (*new)?))).collect();
            (report, moves)
        });
        assert_eq!(report.outside, [], "nobody else was there");
        let stamps = (0..).map(Ix).zip(report.stamps);
        (txn, stamps.filter_map(|(ix, stamp)| Some((ix, stamp?))).collect())
    }

    fn commit(&self, frozen: &Frozen) -> (TxnId, Vec<(Ix, Stamp)>) {
        self.install(&frozen.writes, TxnKind::Run)
    }
}

/// What makes a tree of an empty one.
fn as_write_set(tree: &Tree) -> WriteSet {
    let object = |origin, attrs, xattrs, content| Object { origin, attrs, xattrs, content };
    let root = object(Origin::Root, Attrs::default(), Vec::new(), Content::Keep);
    let mut set = WriteSet { objects: vec![root], ..WriteSet::default() };
    let mut known = BTreeMap::from([("", Ix(0))]);
    for (path, seen) in tree {
        let (dir, name) = path.rsplit_once('/').expect("paths begin with a slash");
        let made = Ix(set.objects.len() as u32);
        let ix = seen.twin.as_ref().and_then(|twin| known.get(twin.as_str())).copied();
        let (dir, target) = (known[dir], Some(ix.unwrap_or(made)));
        set.binds.push(Bind { dir, name: name.into(), target, displaces: None });
        known.insert(path, ix.unwrap_or(made));
        if ix.is_some() {
            continue;
        }
        let kind = match seen.kind {
            Kind::File => NewKind::File,
            Kind::Dir => NewKind::Dir,
            Kind::Symlink => NewKind::Symlink(seen.data.0.clone()),
            kind => NewKind::Special { kind, rdev: seen.rdev },
        };
        let (mode, owner) = (Some(seen.mode), Some((seen.uid, seen.gid)));
        let mtime = seen.mtime.map(|secs| Time { secs, nanos: 3 });
        let attrs = Attrs { mode, owner, atime: None, mtime };
        let xattrs = seen.xattrs.iter();
        let xattrs = xattrs.map(|(key, value)| (key.clone().into(), Some(value.0.clone())));
        let (len, offset) = (seen.data.0.len() as u64, 0);
        let extents = vec![Extent { offset, data: Data::Inline(seen.data.0.clone()) }];
        let content = match kind {
            NewKind::File if len > 0 => Content::Whole { len, extents },
            _ => Content::Keep,
        };
        set.objects.push(object(Origin::New(kind), attrs, xattrs.collect(), content));
    }
    set
}

fn stamp_of(origin: &Origin) -> Option<Stamp> {
    match origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    }
}

/// A tree as undo takes it back: not the times of directories.
fn without_dir_times(mut tree: Tree) -> Tree {
    tree.values_mut().filter(|s| s.kind == Kind::Dir).for_each(|s| s.mtime = None);
    without_counts(&tree)
}

/// A tree without link counts of files: the graveyard keeps a removed name of a file that has
/// others until it is emptied.
fn without_counts(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    tree.values_mut().filter(|s| s.kind != Kind::Dir).for_each(|s| s.nlink = 0);
    tree
}

/// As [`differ`]; an installation may also move the time of a directory, `from` so many seconds on,
/// by replacing a file in it.
fn installed(want: &Tree, got: &Tree, from: i64) -> Option<String> {
    let mut want = without_counts(want);
    let kept = |s: &&mut Seen| s.kind == Kind::Dir && s.mtime.is_some_and(|t| t >= from);
    want.values_mut().filter(kept).for_each(|s| s.mtime = None);
    differ(&want, &without_counts(got))
}

/// Whether a file is changed and then removed together with its directory, and so is left only
/// under names that the transaction never met: undo refuses that.
fn changes_what_it_cannot_find(writes: &WriteSet) -> bool {
    let bound = |ix: u32| writes.binds.iter().any(|b| b.target == Some(Ix(ix)));
    let displaced = |ix: u32| writes.binds.iter().any(|b| b.displaces == Some(Ix(ix)));
    (0..).zip(&writes.objects).any(|(i, object)| {
        let changed = object.content != Content::Keep
            || object.attrs != Attrs::default()
            || !object.xattrs.is_empty();
        let mut at = i;
        let mut gone = false;
        while !gone && !bound(at) {
            gone = displaced(at);
            let Origin::Host { parent, .. } = &writes.objects[at as usize].origin else { break };
            at = parent.0;
        }
        changed && gone
    })
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: cases(250), failure_persistence: None, ..ProptestConfig::default() }
}

fn commit_all(ops: &[Op], place: &Place) -> Result<(), TestCaseError> {
    let host = scratch();
    populate(host.path()).expect("populate");
    let before = without_dir_times(place.now());
    let host = Host(host.path().to_path_buf());
    let twin = Twin(open_view(&place.vol, 7, Isolation::Serializable));
    for op in ops {
        prop_assert_eq!(host.run(op), twin.run(op));
    }
    prop_assert_eq!(twin.0.validate(), []);
    let frozen = twin.0.freeze(&Everything);
    let (txn, _) = place.commit(&frozen);
    let (after, writes) = (place.now(), brief(&frozen.writes));
    prop_assert_eq!(installed(&host_tree(&host.0), &after, STARTED), None, "{}", writes);
    let undo = place.store.undo_set(txn);
    if undo.is_err() && changes_what_it_cannot_find(&frozen.writes) {
        return Ok(());
    }
    if !place.undoes {
        prop_assert!(matches!(undo, Err(UndoError::Forgotten(of)) if of == txn), "{:?}", undo);
        return Ok(());
    }
    prop_assert!(undo.is_ok(), "{:?}\n{}", undo, writes);
    let undo = undo.expect("checked");
    let (txn, _) = place.install(&undo.set, TxnKind::Undo { of: txn });
    let undone = without_dir_times(place.now());
    prop_assert_eq!(difference(&before, &undone), None, "{}undo {}", writes, brief(&undo.set));
    let (mut last, mut txn) = (undo, txn);
    // Each takes the one before it back.
    for want in [&after, &before, &after].map(|tree| without_dir_times(tree.clone())) {
        let next = place.store.undo_set(txn);
        prop_assert!(next.is_ok(), "{:?}\n{}", next, brief(&last.set));
        let next = next.expect("checked");
        (txn, _) = place.install(&next.set, TxnKind::Undo { of: txn });
        let now = without_dir_times(place.now());
        let sets = [brief(&last.set), brief(&next.set)];
        prop_assert_eq!(difference(&want, &now), None, "{:?}", sets);
        last = next;
    }
    Ok(())
}

/// A part is committed, the view goes on as if nothing had happened, and the rest follows.
fn commit_in_parts(
    (ops, more): (&[Op], &[Op]),
    picked: &BTreeSet<usize>,
    place: &Place,
) -> Result<(), TestCaseError> {
    let host = scratch();
    populate(host.path()).expect("populate");
    let host = Host(host.path().to_path_buf());
    let twin = Twin(open_view(&place.vol, 7, Isolation::Serializable));
    for op in ops {
        prop_assert_eq!(host.run(op), twin.run(op));
    }
    let part = twin.0.freeze(&Below(picked));
    let (_, stamps) = place.commit(&part);
    twin.0.rebase(&part, &stamps);
    let first = brief(&part.writes);
    prop_assert_eq!(twin.0.validate(), [], "after {}", first);
    for op in more {
        prop_assert_eq!(host.run(op), twin.run(op), "after {}", first);
    }
    let seen = view_tree(&twin.0);
    prop_assert_eq!(installed(&host_tree(&host.0), &seen, 0), None, "after {}", first);
    prop_assert_eq!(twin.0.validate(), [], "after {}", first);
    let rest = twin.0.freeze(&Everything);
    let (_, stamps) = place.commit(&rest);
    let second = brief(&rest.writes);
    let now = place.now();
    prop_assert_eq!(installed(&host_tree(&host.0), &now, 0), None, "{}then {}", first, second);
    twin.0.rebase(&rest, &stamps);
    prop_assert!(twin.0.freeze(&Everything).is_empty());
    prop_assert_eq!(twin.0.validate(), []);
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_commit_makes_the_directory_what_the_view_was(
        ops in prop_oneof![
            proptest::collection::vec(op(), 1..40),
            proptest::collection::vec(move_op(), 1..30),
        ],
    ) {
        prop_assume!(is_root());
        let backing = scratch();
        populate(backing.path()).expect("populate");
        for place in Place::all(backing.path()) {
            commit_all(&ops, &place)?;
        }
    }

    #[test]
    fn parts_add_up_to_the_whole(
        ops in proptest::collection::vec(prop_oneof![op(), move_op()], 1..25),
        more in proptest::collection::vec(op(), 0..10),
        picked in proptest::collection::btree_set(0..PATHS.len(), 1..4),
    ) {
        prop_assume!(is_root());
        let backing = scratch();
        populate(backing.path()).expect("populate");
        for place in Place::all(backing.path()) {
            commit_in_parts((&ops, &more), &picked, &place)?;
        }
    }
}

/// A part takes away the name under which a file was met, and the view then gives that name away:
/// the file is found under another.
#[test]
fn a_file_is_found_by_another_name_when_a_part_took_its_first() {
    if !is_root() {
        return;
    }
    let at = |path: &str| PATHS.iter().position(|p| *p == path).expect("a path of these tests");
    let backing = scratch();
    populate(backing.path()).expect("populate");
    for place in Place::all(backing.path()) {
        let twin = Twin(open_view(&place.vol, 7, Isolation::Serializable));
        assert_eq!(twin.run(&Op::Rmdir(at("e"))), Err(rustix::io::Errno::NOTEMPTY));
        twin.run(&Op::Unlink(at("e/f"))).expect("it has another name");
        assert_eq!(twin.run(&Op::Unlink(at("d/g"))), Err(rustix::io::Errno::NOENT));
        let part = twin.0.freeze(&Below(&HashSet::from([at("e")]).into_iter().collect()));
        let (_, stamps) = place.commit(&part);
        twin.0.rebase(&part, &stamps);
        twin.run(&Op::Unnamed(at("e/f"), 0o600, vec![0])).expect("free");
        twin.run(&Op::Rename(at("e/f"), at("f"), systx_vfs::api::RenameHow::Replace))
            .expect("files");
        assert!(view_tree(&twin.0).keys().any(|path| path.ends_with("d/f")));
        assert_eq!(twin.0.validate(), []);
    }
}
