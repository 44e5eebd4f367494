//! Directories that are moved into what was below them, and undo of such, whatever the order of the
//! names in the write set.

use crate::dir_store::DirStore;
use crate::dir_store::tests::pretty;
use crate::io::{Class, Io};
use crate::testing::*;
use crate::writeset::{Bind, Content, Ix, WriteSet};
use crate::{ApplyReport, CommitMeta, Keep, TxnKind};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use systx_base::TxnId;

fn run(store: &DirStore, txn: u64, set: WriteSet, kind: TxnKind) -> ApplyReport {
    let reservation = store.reserve(&set).unwrap();
    let committed =
        store.commit(reservation, set, CommitMeta { kind, ..meta(txn) }).expect("commit");
    store.apply(committed.lsn).expect("apply")
}

fn undo(store: &DirStore, of: u64, txn: u64) -> ApplyReport {
    let undo = store.undo_set(TxnId(of)).expect("nothing came later");
    run(store, txn, undo.set, TxnKind::Undo { of: TxnId(of) })
}

/// A tree before, the renames of a transaction, one after the other, and what it removes before
/// them.
struct Case {
    name: &'static str,
    files: &'static [&'static str],
    moves: &'static [(&'static str, &'static str)],
}

const CASES: &[Case] = &[
    Case { name: "down one", files: &["a/b/f"], moves: &[("a/b", "b"), ("a", "b/a")] },
    Case {
        name: "down one, where something was",
        files: &["a/b/a", "a/f"],
        moves: &[("a/b", "b"), ("b/a", ""), ("a", "b/a")],
    },
    Case {
        name: "down one, where a directory was that moved",
        files: &["a/b/a/deep", "a/f"],
        moves: &[("a/b", "b"), ("b/a", "other"), ("a", "b/a")],
    },
    Case {
        name: "down two, where something was",
        files: &["a/b/c/a", "a/b/g", "a/f"],
        moves: &[("a/b/c", "c"), ("c/a", ""), ("a", "c/a")],
    },
    Case {
        name: "turned upside down",
        files: &["a/b/c/f", "a/b/g", "a/h"],
        moves: &[("a/b/c", "t"), ("a/b", "t/b"), ("a", "t/b/a"), ("t", "a")],
    },
    Case {
        name: "parent and child swap names and places",
        files: &["a/a/a", "a/f"],
        moves: &[("a/a", "t"), ("t/a", ""), ("a", "t/a"), ("t", "a")],
    },
    Case {
        name: "two that hang on each other's children",
        files: &["a/x/b", "b/y/a", "a/f", "b/g"],
        moves: &[
            ("a/x", "x"),
            ("b/y", "y"),
            ("x/b", ""),
            ("y/a", ""),
            ("a", "y/a"),
            ("b", "x/b"),
            ("x", "a"),
            ("y", "b"),
        ],
    },
];

fn play(root: &Path, case: &Case) {
    for (from, to) in case.moves {
        if to.is_empty() {
            std::fs::remove_file(root.join(from)).unwrap();
        } else {
            std::fs::rename(root.join(from), root.join(to)).unwrap();
        }
    }
}

fn set_up(case: &Case) -> Scratch {
    let s = Scratch::new();
    for file in case.files {
        s.write(file, file);
    }
    s
}

/// The write set of a case.
fn write_set(s: &Scratch, case: &Case) -> WriteSet {
    // Every path before, with the one after.
    let mut after: BTreeMap<String, Option<String>> = BTreeMap::new();
    for file in case.files {
        for (slash, _) in file.match_indices('/').chain([(file.len(), "")]) {
            after.insert(file[..slash].to_owned(), Some(file[..slash].to_owned()));
        }
    }
    for (from, to) in case.moves {
        for at in after.values_mut() {
            let Some(path) = at.as_deref() else { continue };
            let Some(rest) = path.strip_prefix(from) else { continue };
            if rest.is_empty() || rest.starts_with('/') {
                *at = (!to.is_empty()).then(|| format!("{to}{rest}"));
            }
        }
    }
    let split = |path: &str| {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (dir.to_owned(), name.as_bytes().to_vec())
    };
    let io = s.io();
    let mut ws = Ws::new(&*io);
    // By directory and name, what is there after and before.
    type Names = BTreeMap<(Ix, Vec<u8>), (Option<Ix>, Option<Ix>)>;
    let mut names = Names::new();
    for (old, new) in &after {
        let (ix, (dir, name)) = (ws.host(old), split(old));
        names.entry((ws.host(dir), name)).or_default().1 = Some(ix);
        let Some((dir, name)) = new.as_deref().map(split) else { continue };
        let who = after.iter().find(|(_, at)| at.as_deref() == Some(&dir));
        let dir = ws.host(who.map_or("", |(before, _)| before));
        names.entry((dir, name)).or_default().0 = Some(ix);
    }
    names.retain(|_, (target, displaces)| target != displaces);
    let bind = |((dir, name), (target, displaces))| Bind { dir, name, target, displaces };
    ws.set.binds = names.into_iter().map(bind).collect();
    ws.done()
}

/// Rotations there and back.
fn orders(binds: &[Bind]) -> Vec<Vec<Bind>> {
    let mut out = Vec::new();
    for turn in 0..binds.len() {
        let mut one = binds.to_vec();
        one.rotate_left(turn);
        out.push(one.clone());
        one.reverse();
        out.push(one);
    }
    out
}

#[test]
fn directories_move_into_what_was_below_them() {
    for case in CASES {
        let twin = set_up(case);
        play(&twin.0, case);
        let want = twin.tree();
        let first = set_up(case);
        for binds in orders(&write_set(&first, case).binds) {
            let s = set_up(case);
            let before = s.tree();
            let set = WriteSet { binds, ..write_set(&s, case) };
            set.check().unwrap();
            let store = s.store();
            let order = format!("{}: {:?}", case.name, set.binds);
            let report = run(&store, 1, set, TxnKind::Run);
            assert_eq!(report.outside, [], "{order}");
            assert_eq!(s.tree(), want, "{order}");
            for (of, want) in (1..=4).zip([&before, &want, &before, &want]) {
                assert_eq!(undo(&store, of, of + 1).outside, [], "{order}");
                assert_eq!(&s.tree(), want, "undo of {of}: {order}");
            }
        }
    }
}

/// What had moved out of a directory that was removed, or into one that is new, is in it each time
/// that it comes back.
#[test]
fn what_was_in_a_directory_that_comes_and_goes_comes_and_goes_with_it() {
    let s = Scratch::new();
    s.write("d/x/f", "was deep in d");
    s.write("m/inside", "went deep into n");
    let before = s.tree();
    let store = s.store();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    let (file, moved) = (ws.host("d/x/f"), ws.host("m"));
    let (top, below) = (ws.mkdir(), ws.mkdir());
    ws.bind("d", Some(file));
    ws.bind("n", Some(top));
    ws.bind_in(top, "k", below);
    ws.bind_in(below, "m", moved);
    ws.bind("m", None);
    run(&store, 1, ws.done(), TxnKind::Run);
    let after = s.tree();
    assert_eq!((s.read("d"), s.read("n/k/m/inside").len()), (b"was deep in d".to_vec(), 16));
    for of in 1..=6 {
        assert_eq!(undo(&store, of, of + 1).outside, []);
        assert_eq!(s.tree(), if of % 2 == 1 { &before } else { &after }.clone(), "undo of {of}");
    }
}

/// One file takes two names from another that was changed and lives on under a name that the
/// transaction has not met, and from a third. What gives way is still in staging when the next one
/// does.
#[test]
fn a_file_takes_several_names() {
    let looks = |s: &Scratch| ["f", "d/f", "d/s/f", "e/f"].map(|path| s.read(path));
    for class in [Class::Memory, Class::Strong, Class::Weak] {
        let s = Scratch::new();
        s.write("f", "first");
        s.write("d/f", [b'x'; 9000]);
        s.write("d/s/f", "third");
        s.write("e/other", "");
        std::fs::hard_link(s.path("d/f"), s.path("e/f")).unwrap();
        let before = looks(&s);
        let io: Arc<dyn Io> = Dying::of_class(s.io(), u64::MAX, class);
        let (store, _) = DirStore::open(config(), io.clone()).unwrap();
        let mut ws = Ws::new(&*io);
        let (file, changed) = (ws.host("f"), ws.host("e/f"));
        ws.obj(changed).content =
            Content::Patch { len: 9000, keep: 9000, extents: vec![inline(0, b"0")] };
        ws.bind("e/f", Some(file));
        ws.bind("d/s/f", Some(file));
        assert_eq!(run(&store, 1, ws.done(), TxnKind::Run).outside, []);
        let after = looks(&s);
        assert_eq!(after, [&b"first"[..], &[b"0", &[b'x'; 8999][..]].concat(), b"first", b"first"]);
        for of in 1..=4 {
            assert_eq!(undo(&store, of, of + 1).outside, [], "undo of {of}");
            assert_eq!(&looks(&s), if of % 2 == 1 { &before } else { &after }, "undo of {of}");
        }
    }
}

/// The undo removes the directory in which the file got a further name; a redo finds it by the
/// other.
#[test]
fn a_changed_file_with_a_further_name_in_a_new_directory_is_undone_and_redone() {
    let s = Scratch::new();
    s.write("d/f", "before");
    s.write("d/g", "beside");
    let before = s.tree();
    let store = s.store();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.patch("d/f", 6, 6, &[(0, b"after ")]);
    let (file, made) = (ws.host("d/f"), ws.mkdir());
    ws.bind("n", Some(made));
    ws.bind_in(made, "f", file);
    run(&store, 1, ws.done(), TxnKind::Run);
    let after = s.tree();
    for (of, want) in [(1, &before), (2, &after), (3, &before)] {
        assert_eq!(undo(&store, of, of + 1).outside, []);
        for (path, looks) in want {
            let without_count = |s: &str| s.split(" =").next().unwrap().to_owned();
            assert_eq!(s.tree().get(path).map(|s| without_count(s)), Some(without_count(looks)));
        }
    }
}

/// More files than are made at a time, in new directories and in one that is there, with one that
/// gives way and one that has two names.
fn many(ws: &mut Ws<'_>) {
    let modes = [0o644, 0o666, 0o600, 0o444, 0o4755, 0o777];
    let tops = [ws.mkdir(), ws.mkdir()];
    ws.bind("new", Some(tops[0]));
    ws.bind("other", Some(tops[1]));
    for n in 0..1200usize {
        let file = ws.file(if n % 7 == 0 { String::new() } else { format!("content of {n}") });
        ws.obj(file).attrs.mode = Some(modes[n % modes.len()]);
        match n % 4 {
            3 => ws.bind(format!("dir/f{n}"), Some(file)),
            top => ws.bind_in(tops[top % 2], &format!("f{n}"), file),
        }
        if n == 100 {
            ws.bind_in(tops[1], "also 100", file);
        }
    }
}

fn populate(s: &Scratch) {
    s.write("dir/f3", "gives way");
    s.write("dir/beside", "stays");
}

fn staged(s: &Scratch) -> Vec<String> {
    let names = std::fs::read_dir(s.path(STATE).join("t"));
    names.unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn many_files_made_by_several_threads_are_what_they_should_be() {
    let s = Scratch::new();
    populate(&s);
    let before = s.tree();
    let (store, _) = DirStore::open(config(), Dying::after(s.io(), u64::MAX)).unwrap();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    many(&mut ws);
    assert_eq!(run(&store, 1, ws.done(), TxnKind::Run).outside, []);
    for (path, mode, content) in [
        ("new/f4", 0o4755, "content of 4"),
        ("other/f1", 0o666, "content of 1"),
        ("other/f1193", 0o777, "content of 1193"),
        ("dir/f3", 0o444, "content of 3"),
        ("dir/f1195", 0o666, "content of 1195"),
        ("new/f0", 0o644, ""),
        ("other/also 100", 0o4755, "content of 100"),
        ("dir/beside", 0o644, "stays"),
    ] {
        let seen = std::fs::metadata(s.path(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(seen, mode, "{path}");
        assert_eq!(s.read(path), content.as_bytes(), "{path}");
    }
    let after = s.tree();
    assert_eq!(after.len(), before.len() + 1202);
    assert_eq!(staged(&s), [""; 0]);
    assert_eq!(undo(&store, 1, 2).outside, []);
    assert_eq!(s.tree(), before);
    assert_eq!(undo(&store, 2, 3).outside, []);
    assert_eq!(s.tree(), after);
}

#[test]
fn a_death_while_many_files_are_made_leaves_all_or_nothing() {
    let whole = Scratch::new();
    populate(&whole);
    let before = whole.tree();
    let life = |s: &Scratch, io: Arc<Dying>| -> Option<()> {
        let (store, _) = DirStore::open(config(), io).ok()?;
        let io = s.io();
        let mut ws = Ws::new(&*io);
        many(&mut ws);
        let set = ws.done();
        let reservation = store.reserve(&set).ok()?;
        let committed = store.commit(reservation, set, meta(1)).ok()?;
        store.apply(committed.lsn).ok().map(drop)
    };
    let counted = Dying::after(whole.io(), u64::MAX);
    life(&whole, Arc::clone(&counted)).unwrap();
    let (after, calls) = (whole.tree(), counted.calls());
    let mut outcomes = [0, 0];
    for n in (0..20).map(|part| calls * part / 20 + part) {
        let s = Scratch::new();
        populate(&s);
        assert_eq!(life(&s, Dying::after(s.io(), n)), None, "there are more than {n} calls");
        let (store, report) = s.open();
        assert_eq!(report.outside, [], "after {n} calls");
        let all = s.tree() == after;
        outcomes[usize::from(all)] += 1;
        assert!(all || s.tree() == before, "after {n} calls");
        drop(store);
        s.store();
        assert_eq!(staged(&s), [""; 0], "after {n} calls");
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 5, "{outcomes:?}");
}

/// What is resumed makes each file in its turn: who dies again and again leaves no more behind than
/// who dies once.
#[test]
fn a_resumed_installation_makes_nothing_ahead() {
    let committed = |s: &Scratch| {
        populate(s);
        let store = s.store();
        let io = s.io();
        let mut ws = Ws::new(&*io);
        many(&mut ws);
        let set = ws.done();
        let reservation = store.reserve(&set).unwrap();
        store.commit(reservation, set, meta(1)).unwrap();
    };
    let whole = Scratch::new();
    committed(&whole);
    let counted = Dying::after(whole.io(), u64::MAX);
    DirStore::open(config(), counted.clone()).unwrap();
    let (after, calls) = (whole.tree(), counted.calls());
    for n in (1..20).map(|part| calls * part / 20) {
        let s = Scratch::new();
        committed(&s);
        assert!(DirStore::open(config(), Dying::after(s.io(), n)).is_err(), "after {n} calls");
        // The new directories, and what was just being made.
        assert!(staged(&s).len() <= 4, "after {n} calls: {:?}", staged(&s));
        s.store();
        assert_eq!((s.tree(), staged(&s)), (after.clone(), vec![]), "after {n} calls");
    }
}

/// On a weak file system a slot keeps its own name until the new one is durable, and losing it
/// moves the file's change time.
#[test]
fn a_slot_in_a_new_directory_is_undone_on_every_class_of_file_system() {
    for class in [Class::Memory, Class::Strong, Class::Weak] {
        let s = Scratch::new();
        populate(&s);
        let before = s.tree();
        let io = Dying::of_class(s.io(), u64::MAX, class);
        let (store, _) = DirStore::open(config(), io).unwrap();
        let slot = store.stage().unwrap();
        store.ground.io.write_at(slot.handle(), &[b's'; 9000], 0).unwrap();
        let io = s.io();
        let mut ws = Ws::new(&*io);
        let top = ws.mkdir();
        ws.bind("made", Some(top));
        let file = ws.slot_file(slot.id());
        ws.bind_in(top, "slot", file);
        assert_eq!(run(&store, 1, ws.done(), TxnKind::Run).outside, []);
        drop(slot);
        assert_eq!(s.read("made/slot").len(), 9000);
        undo(&store, 1, 2);
        pretty(&format!("{class:?}"), &s.tree(), &before);
    }
}

/// Each new directory is made in the next one of the write set, on a stack that has no room for a
/// frame of each.
#[test]
fn trees_may_be_deeper_than_a_stack() {
    const DEEP: usize = 3000;
    let work = || {
        let s = Scratch::new();
        let (store, io) = (s.store(), s.io());
        let mut ws = Ws::new(&*io);
        let dirs: Vec<Ix> = (0..DEEP).map(|_| ws.mkdir()).collect();
        let file = ws.file("leaf");
        ws.bind_in(dirs[0], "leaf", file);
        for pair in dirs.windows(2) {
            ws.bind_in(pair[1], "d", pair[0]);
        }
        ws.bind("top", dirs.last().copied());
        run(&store, 1, ws.done(), TxnKind::Run);
        let mut dir = io.open_dir(&io.root(), b"top").unwrap();
        for _ in 1..DEEP {
            dir = io.open_dir(&dir, b"d").unwrap();
        }
        assert_eq!(io.stat_at(&dir, b"leaf").unwrap().size, 4);
        drop(dir);
        let mut ws = Ws::new(&*io);
        ws.remove("top");
        run(&store, 2, ws.done(), TxnKind::Run);
        // What came back goes again.
        for of in 2..=3 {
            assert_eq!(undo(&store, of, of + 1).outside, []);
        }
        store.gc(Keep { count: 0, ..Keep::default() }).unwrap();
        assert_eq!(s.tree(), BTreeMap::default());
        // What the journal still needs is as deep.
        drop(store);
        crate::layout::remove_all(&*io, &io.root(), STATE.as_bytes()).unwrap();
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
}

const MANY: usize = 900;

fn many_made(io: &dyn Io) -> WriteSet {
    let mut ws = Ws::new(io);
    let top = ws.mkdir();
    ws.bind("top", Some(top));
    for n in 0..MANY {
        let (dir, file) = (ws.mkdir(), ws.file(n.to_string()));
        ws.bind_in(top, &n.to_string(), dir);
        ws.bind_in(dir, "file", file);
    }
    ws.done()
}

fn many_changed(io: &dyn Io) -> WriteSet {
    let mut ws = Ws::new(io);
    for n in 0..MANY {
        ws.rewrite(&format!("top/{n}/file"), "changed");
        ws.rename(&format!("top/{n}/file"), &format!("top/{}/moved", (n + 1) % MANY));
        ws.create(&format!("top/{n}/new"), "new");
        let dir = ws.host(format!("top/{n}"));
        ws.obj(dir).attrs.mode = Some(0o700);
    }
    ws.done()
}

fn many_removed(io: &dyn Io) -> WriteSet {
    let mut ws = Ws::new(io);
    ws.remove("top");
    ws.done()
}

fn with_few(s: &Scratch) -> (DirStore, Arc<Dying>) {
    let io = Dying::with_few(s.io(), MANY * 2 / 3);
    let (store, report) = DirStore::open(config(), Arc::clone(&io) as Arc<dyn Io>).unwrap();
    assert_eq!(report.outside, []);
    (store, io)
}

/// Each directory of a tree is made, changed, left and removed, with fewer of them open at a time
/// than there are.
#[test]
fn trees_may_have_more_directories_than_a_process_descriptors() {
    let s = Scratch::new();
    let (store, _) = with_few(&s);
    let mut txn = 0;
    for set in [many_made, many_changed, many_removed] {
        let before = s.tree();
        txn += 1;
        run(&store, txn, set(&*s.io()), TxnKind::Run);
        let after = s.tree();
        assert!(store.look_back(TxnId(txn)).unwrap().is_some());
        for (of, left) in [(txn, &before), (txn + 1, &after)] {
            assert_eq!(undo_beside(&store, of, of + 1).outside, []);
            pretty(&format!("undo of {of}"), &s.tree(), left);
        }
        txn += 2;
    }
    store.gc(Keep { count: 0, ..Keep::default() }).unwrap();
    assert_eq!(s.tree(), BTreeMap::default());
}

/// The same of an installation that was cut off.
#[test]
fn a_recovery_needs_few_directories() {
    let sets: [fn(&dyn Io) -> WriteSet; 3] = [many_made, many_changed, many_removed];
    for (n, set) in sets.iter().enumerate() {
        let earlier = &sets[..n];
        let (mut whole, mut calls) = (None, 0);
        for part in [4, 1, 2, 3] {
            let s = Scratch::new();
            let (store, io) = with_few(&s);
            for (txn, set) in (1..).zip(earlier) {
                run(&store, txn, set(&*s.io()), TxnKind::Run);
            }
            let set = set(&*s.io());
            let reservation = store.reserve(&set).unwrap();
            let committed = store.commit(reservation, set, meta(9)).unwrap();
            let before = io.calls();
            if part < 4 {
                io.dies_after(calls * part / 4);
                store.apply(committed.lsn).unwrap_err();
                drop(store);
                drop(with_few(&s));
            } else {
                store.apply(committed.lsn).unwrap();
                calls = io.calls() - before;
            }
            let tree = s.tree();
            pretty(&format!("{part} of 4"), &tree, whole.get_or_insert(tree.clone()));
        }
    }
}
