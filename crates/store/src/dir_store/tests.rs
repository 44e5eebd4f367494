use super::*;
use crate::error::{CommitError, ReserveError};
use crate::testing::*;
use crate::testing::{run_beside as run, undo_beside as undo};
use crate::writeset::Content;
use crate::writeset::{Data, Extent};
use crate::{Outside, Reservation, TxnKind, UndoError};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use systx_base::Time;

/// A tree with one of everything that a transaction may meet.
pub(crate) fn populate(s: &Scratch) {
    s.write("plain", "plain content");
    s.write("big", vec![b'B'; 70_000]);
    s.write("gone", "to be removed");
    s.write("old", "to be renamed");
    s.write("x", "was x");
    s.write("y", "was y");
    s.write("dir/a", "a");
    s.write("dir/sub/b", "b");
    s.write("doomed/deep/c", "c");
    s.write("doomed/d", "d");
    s.write("doomed/saved", "saved");
    s.write("moved/e", "e");
    s.write("link1", "two names");
    std::fs::hard_link(s.path("link1"), s.path("link2")).unwrap();
    std::os::unix::fs::symlink("plain", s.path("sym")).unwrap();
    let io = s.io();
    io.set_xattr(&io.root(), b"plain", b"user.old", b"1").unwrap();
    io.set_mode(&io.root(), b"plain", 0o640).unwrap();
    for name in [&b"plain"[..], b"big", b"gone", b"old", b"x", b"y", b"link1"] {
        io.set_times(&io.root(), name, None, Some(Time { secs: 500, nanos: 5 })).unwrap();
    }
}

/// Every feature of a write set at once. Returns what the tree must be afterwards, computed by
/// plain file operations on a twin.
pub(crate) fn everything(ws: &mut Ws<'_>) {
    ws.rewrite("plain", "rewritten");
    let plain = ws.host("plain");
    ws.obj(plain).attrs.mode = Some(0o4755);
    ws.obj(plain).xattrs =
        vec![(b"user.old".to_vec(), None), (b"user.new".to_vec(), Some(b"2".to_vec()))];
    ws.patch("big", 80_000, 60_000, &[(10, b"patched"), (75_000, b"tail")]);
    ws.remove("gone");
    ws.rename("old", "dir/new");
    let (x, y) = (ws.host("x"), ws.host("y"));
    ws.bind("x", Some(y));
    ws.bind("y", Some(x));
    let saved = ws.host("doomed/saved");
    ws.bind("doomed", None);
    ws.bind("saved", Some(saved));
    let link = ws.host("link1");
    ws.bind("link3", Some(link));
    ws.bind("link2", None);
    ws.patch("link1", 9, 9, &[(0, b"TWO")]);
    let sym = ws.symlink("dir/new");
    ws.bind("sym", Some(sym));
    let fifo = ws.fifo();
    ws.bind("fifo", Some(fifo));
    let top = ws.mkdir();
    ws.bind("made", Some(top));
    ws.obj(top).attrs.mode = Some(0o2555);
    ws.obj(top).xattrs = vec![(b"user.dir".to_vec(), Some(b"d".to_vec()))];
    let inner = ws.mkdir();
    ws.bind_in(top, "inner", inner);
    let f = ws.file("in a new directory");
    ws.bind_in(inner, "f", f);
    ws.bind_in(top, "f-too", f);
    let empty = ws.file("");
    ws.bind_in(inner, "empty", empty);
    let moved = ws.host("moved");
    ws.bind("moved", None);
    ws.bind_in(inner, "moved", moved);
    let d = ws.host("dir");
    ws.obj(d).attrs.mode = Some(0o711);
    ws.obj(d).attrs.mtime = Some(Time { secs: 4000, nanos: 0 });
    ws.create("dir/sub/fresh", "fresh");
}

fn check_everything(s: &Scratch) {
    assert_eq!(s.read("plain"), b"rewritten");
    let plain = std::fs::metadata(s.path("plain")).unwrap();
    assert_eq!((plain.mode() & 0o7777, plain.mtime()), (0o4755, 2000));
    let big = s.read("big");
    assert_eq!(big.len(), 80_000);
    assert_eq!(&big[8..19], b"BBpatchedBB");
    assert!(big[19..60_000].iter().all(|b| *b == b'B'));
    assert!(big[60_000..75_000].iter().all(|b| *b == 0));
    assert_eq!(&big[75_000..75_005], b"tail\0");
    assert!(!s.path("gone").exists() && !s.path("old").exists() && !s.path("doomed").exists());
    assert_eq!(s.read("dir/new"), b"to be renamed");
    assert_eq!((s.read("x"), s.read("y")), (b"was y".to_vec(), b"was x".to_vec()));
    assert_eq!(s.read("saved"), b"saved");
    assert_eq!((s.read("link1"), s.read("link3")), (b"TWO names".to_vec(), b"TWO names".to_vec()));
    assert!(!s.path("link2").exists());
    assert_eq!(std::fs::read_link(s.path("sym")).unwrap().to_str(), Some("dir/new"));
    assert_eq!(s.read("made/inner/f"), b"in a new directory");
    assert_eq!(s.read("made/inner/empty"), b"");
    assert_eq!(std::fs::metadata(s.path("made/f-too")).unwrap().nlink(), 2);
    assert_eq!(s.read("made/inner/moved/e"), b"e");
    let made = std::fs::metadata(s.path("made")).unwrap();
    assert_eq!((made.mode() & 0o7777, made.mtime()), (0o2555, 1000));
    let dir = std::fs::metadata(s.path("dir")).unwrap();
    assert_eq!((dir.mode() & 0o7777, dir.mtime()), (0o711, 4000));
    assert_eq!(s.read("dir/sub/fresh"), b"fresh");
}

#[test]
fn every_kind_of_change_is_installed_and_undone_and_redone() {
    for base in bases() {
        let s = Scratch::on(&base);
        populate(&s);
        let before = s.tree();
        let store = s.store();
        let io = s.io();
        let mut ws = Ws::new(&*io);
        everything(&mut ws);
        let report = run(&store, 1, ws.done());
        assert_eq!(report.outside, []);
        check_everything(&s);
        let after = s.tree();
        let report = undo(&store, 1, 2);
        assert_eq!(report.outside, []);
        pretty(&base, &s.tree(), &before);
        let report = undo(&store, 2, 3);
        assert_eq!(report.outside, []);
        pretty(&base, &s.tree(), &after);
        undo(&store, 3, 4);
        pretty(&base, &s.tree(), &before);
        let history = store.history().unwrap();
        assert_eq!(history.len(), 4);
        assert_eq!(history[1].meta.kind, TxnKind::Undo { of: TxnId(1) });
        assert!(history[0].changes.iter().any(|c| c.path == b"dir/new"));
    }
}

/// Compares trees line by line.
pub(crate) fn pretty(what: &str, now: &Tree, wanted: &Tree) {
    let mut wrong = Vec::new();
    for (path, text) in wanted {
        match now.get(path) {
            Some(found) if found == text => {}
            found => wrong.push(format!("{path}: wanted {text}, found {found:?}")),
        }
    }
    for path in now.keys().filter(|p| !wanted.contains_key(*p)) {
        wrong.push(format!("{path}: too much"));
    }
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

fn one(s: &Scratch, store: &DirStore, txn: u64, fill: impl FnOnce(&mut Ws<'_>)) -> ApplyReport {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    fill(&mut ws);
    run(store, txn, ws.done())
}

/// Commits, lets an outsider do something, installs.
fn meanwhile(
    s: &Scratch,
    store: &DirStore,
    fill: impl FnOnce(&mut Ws<'_>),
    outsider: impl FnOnce(),
) -> ApplyReport {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    fill(&mut ws);
    let set = ws.done();
    let committed = store.commit(store.reserve(&set).unwrap(), set, meta(9)).unwrap();
    outsider();
    store.apply(committed.lsn).unwrap()
}

/// The one collision of a report: path, what, and the bytes that were kept.
fn collision(s: &Scratch, report: &ApplyReport) -> (String, Outside, Option<Vec<u8>>) {
    let [change] = &report.outside[..] else { panic!("{:?}", report.outside) };
    let kept = change.kept_as.clone().map(|k| s.read(std::str::from_utf8(&k).unwrap()));
    (String::from_utf8(change.path.clone()).unwrap(), change.what.clone(), kept)
}

#[test]
fn what_an_outsider_did_before_the_installation_is_kept_and_reported() {
    for base in bases() {
        let fresh = || {
            let s = Scratch::on(&base);
            populate(&s);
            let store = s.store();
            (s, store)
        };
        // A new file appeared under our new name.
        let (s, store) = fresh();
        let r = meanwhile(&s, &store, |ws| _ = ws.create("n", "ours"), || s.write("n", "theirs"));
        assert_eq!(collision(&s, &r), ("n".into(), Outside::Appeared, Some(b"theirs".to_vec())));
        assert_eq!(s.read("n"), b"ours");
        // The file that is replaced was written to.
        let (s, store) = fresh();
        let r =
            meanwhile(&s, &store, |ws| ws.rewrite("plain", "ours"), || s.write("plain", "theirs"));
        assert_eq!(collision(&s, &r), ("plain".into(), Outside::Changed, Some(b"theirs".to_vec())));
        assert_eq!(s.read("plain"), b"ours");
        // The file that is patched was written to.
        let (s, store) = fresh();
        let patch = |ws: &mut Ws<'_>| ws.patch("plain", 13, 13, &[(0, b"OURS!")]);
        let r = meanwhile(&s, &store, patch, || s.write("plain", "their content"));
        let kept = Some(b"their content".to_vec());
        assert_eq!(collision(&s, &r), ("plain".into(), Outside::Changed, kept));
        assert_eq!(s.read("plain"), b"OURS! content");
        // The file that is removed was written to.
        let (s, store) = fresh();
        let r = meanwhile(&s, &store, |ws| ws.remove("gone"), || s.write("gone", "theirs"));
        assert_eq!(collision(&s, &r), ("gone".into(), Outside::Changed, Some(b"theirs".to_vec())));
        assert!(!s.path("gone").exists());
        // The file that is removed was replaced: theirs came after, and stays.
        let (s, store) = fresh();
        let r = meanwhile(
            &s,
            &store,
            |ws| ws.remove("gone"),
            || {
                s.write("other", "theirs");
                std::fs::rename(s.path("other"), s.path("gone")).unwrap();
            },
        );
        assert_eq!(collision(&s, &r), ("gone".into(), Outside::Appeared, None));
        assert_eq!(s.read("gone"), b"theirs");
        // A directory that is needed is gone: ours is kept aside.
        let (s, store) = fresh();
        let create = |ws: &mut Ws<'_>| _ = ws.create("dir/sub/n", "ours");
        let r = meanwhile(&s, &store, create, || {
            std::fs::remove_dir_all(s.path("dir/sub")).unwrap();
        });
        let (path, what, kept) = collision(&s, &r);
        assert_eq!((&path[..], what, kept), ("dir/sub/n", Outside::Gone, Some(b"ours".to_vec())));
        // A directory appeared where we make one: it is kept with all that is in it.
        let (s, store) = fresh();
        let r = meanwhile(
            &s,
            &store,
            |ws| {
                let d = ws.mkdir();
                ws.bind("fresh", Some(d));
                let f = ws.file("ours");
                ws.bind_in(d, "f", f);
            },
            || s.write("fresh/theirs", "theirs"),
        );
        let [change] = &r.outside[..] else { panic!("{:?}", r.outside) };
        let kept = String::from_utf8(change.kept_as.clone().unwrap()).unwrap();
        assert_eq!(s.read(&format!("{kept}/theirs")), b"theirs");
        assert_eq!(s.read("fresh/f"), b"ours");
        assert!(!s.path("fresh/theirs").exists());
    }
}

#[test]
fn a_change_between_validation_and_commit_refuses_the_commit() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.rewrite("plain", "ours");
    ws.remove("gone");
    let set = ws.done();
    s.write("plain", "theirs");
    let before = s.tree();
    let refused = store.commit(store.reserve(&set).unwrap(), set, meta(1));
    let Err(CommitError::Changed { paths }) = refused else { panic!("{refused:?}") };
    assert_eq!(paths, [b"plain".to_vec()]);
    assert_eq!(s.tree(), before);
    assert!(store.history().unwrap().is_empty());
}

#[test]
fn files_that_somebody_has_open_are_written_in_place_and_others_exchanged() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    let ino = |name: &str| std::fs::metadata(s.path(name)).unwrap().ino();
    let (plain, gone, linked) = (ino("plain"), ino("gone"), ino("link1"));
    let reader = std::fs::File::open(s.path("gone")).unwrap();
    one(&s, &store, 1, |ws| {
        ws.rewrite("plain", "1");
        ws.rewrite("gone", "2");
        ws.rewrite("link1", "3");
    });
    assert_ne!(ino("plain"), plain);
    assert_eq!((ino("gone"), ino("link1")), (gone, linked));
    assert_eq!(s.read("link2"), b"3");
    drop(reader);
    undo(&store, 1, 2);
    assert_eq!((s.read("plain"), ino("plain")), (b"plain content".to_vec(), plain));
    assert_eq!(s.read("gone"), b"to be removed");
    assert_eq!(s.read("link2"), b"two names");
}

#[test]
fn a_running_program_is_replaced_although_it_cannot_be_written() {
    let s = Scratch::new();
    std::fs::copy("/bin/sleep", s.path("prog")).unwrap();
    let mut child = std::process::Command::new(s.path("prog")).arg("60").spawn().unwrap();
    let store = s.store();
    let report = one(&s, &store, 1, |ws| ws.patch("prog", 20_000, 20_000, &[(1, b"X")]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(report.outside, []);
    assert_eq!(&s.read("prog")[..3], b"\x7fXL");
    assert_eq!(s.read("prog").len(), 20_000);
}

#[test]
fn chains_and_cycles_of_renames_end_where_they_should() {
    let s = Scratch::new();
    for name in ["a", "b", "c", "d", "p/q/r/f"] {
        s.write(name, name);
    }
    std::fs::create_dir(s.path("da")).unwrap();
    s.write("da/in-a", "");
    std::fs::create_dir(s.path("db")).unwrap();
    let before = s.tree();
    let store = s.store();
    one(&s, &store, 1, |ws| {
        // a -> b -> c -> a, d over nothing, two directories swap, a child becomes its parent's
        // parent.
        let (a, b, c) = (ws.host("a"), ws.host("b"), ws.host("c"));
        ws.bind("b", Some(a));
        ws.bind("c", Some(b));
        ws.bind("a", Some(c));
        ws.rename("d", "e");
        let (da, db) = (ws.host("da"), ws.host("db"));
        ws.bind("da", Some(db));
        ws.bind("db", Some(da));
        let (p, r) = (ws.host("p"), ws.host("p/q/r"));
        ws.bind("p/q/r", None);
        ws.bind("p", Some(r));
        ws.bind_in(r, "p", p);
    });
    assert_eq!((s.read("a"), s.read("b"), s.read("c")), (b"c".into(), b"a".into(), b"b".into()));
    assert_eq!(s.read("e"), b"d");
    assert!(s.path("db/in-a").exists() && !s.path("da/in-a").exists());
    assert_eq!(s.read("p/f"), b"p/q/r/f");
    assert!(s.path("p/p/q").exists());
    undo(&store, 1, 2);
    pretty("undone", &s.tree(), &before);
}

#[test]
fn undo_refuses_where_later_changes_overlap_and_names_them() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    one(&s, &store, 1, |ws| {
        ws.rewrite("plain", "1");
        ws.create("n", "n");
        ws.remove("gone");
        let d = ws.mkdir();
        ws.bind("made", Some(d));
        ws.patch("x", 5, 5, &[(0, b"W")]);
    });
    // Elsewhere, also in the same directory: no overlap.
    s.write("elsewhere", "");
    s.write("dir/a", "changed");
    assert!(store.undo_set(TxnId(1)).is_ok());
    s.write("plain", "later");
    s.write("gone", "again");
    s.write("made/stranger", "");
    std::fs::remove_file(s.path("n")).unwrap();
    let Err(UndoError::Overlap(paths)) = store.undo_set(TxnId(1)) else { panic!() };
    let paths: Vec<_> = paths.iter().map(|p| std::str::from_utf8(p).unwrap()).collect();
    assert_eq!(paths, ["gone", "made/stranger", "n", "plain"]);
    assert!(matches!(store.undo_set(TxnId(77)), Err(UndoError::Unknown(TxnId(77)))));
}

#[test]
fn undos_go_back_step_by_step() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    let mut trees = vec![s.tree()];
    for (n, size) in [(1, 5), (2, 90_000), (3, 7)] {
        one(&s, &store, n, |ws| {
            ws.rewrite("plain", vec![n as u8; size]);
            ws.patch("big", 70_000, 70_000, &[(n * 5000, b"patch")]);
            let y = ws.host("y");
            ws.obj(y).attrs.mode = Some(0o600 + n as u32);
            let d = ws.mkdir();
            ws.bind(format!("made{n}"), Some(d));
        });
        trees.push(s.tree());
    }
    for (of, txn) in [(3, 4), (2, 5)] {
        undo(&store, of, txn);
        pretty("undone", &s.tree(), &trees[of as usize - 1]);
    }
    // And forth: a redo is the undo of an undo.
    for (of, txn, tree) in [(5, 6, 2), (4, 7, 3)] {
        undo(&store, of, txn);
        pretty("redone", &s.tree(), &trees[tree]);
    }
    for (of, txn, tree) in [(7, 8, 2), (6, 9, 1), (1, 10, 0)] {
        undo(&store, of, txn);
        pretty("undone again", &s.tree(), &trees[tree]);
    }
    undo(&store, 10, 11);
    s.write("plain", "later");
    let Err(UndoError::Overlap(paths)) = store.undo_set(TxnId(11)) else { panic!() };
    assert_eq!(paths, [b"plain".to_vec()]);
}

#[test]
fn the_ring_wraps_and_large_commits_use_a_side_log() {
    let s = Scratch::new();
    let mut last = 0;
    {
        let store = s.store();
        for n in 1..=60u64 {
            // Every third is larger than a segment, the others a quarter of one.
            let size = if n % 3 == 0 { 300_000 } else { 30_000 };
            one(&s, &store, n, |ws| _ = ws.create(&format!("f{n}"), vec![n as u8; size]));
            last = n;
        }
    }
    let ring: u64 = std::fs::read_dir(s.path(STATE).join("j"))
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(ring, 4 * config().segment_bytes);
    let (store, report) = s.open();
    assert_eq!(report.outside, []);
    assert_eq!(store.highest_txn(), TxnId(last));
    for n in 1..=last {
        let size = if n % 3 == 0 { 300_000 } else { 30_000 };
        assert_eq!(s.read(&format!("f{n}")), vec![n as u8; size]);
    }
}

#[test]
fn transactions_that_meet_are_kept_apart_by_a_checkpoint() {
    let s = Scratch::new();
    {
        let store = s.store();
        let io = s.io();
        for n in 1..=20u64 {
            let mut ws = Ws::new(&*io);
            match n % 4 {
                1 => _ = ws.create("f", n.to_string()),
                2 => ws.rewrite("f", n.to_string()),
                3 => ws.rename("f", "g"),
                _ => ws.remove("g"),
            }
            let set = ws.done();
            let committed = store.commit(store.reserve(&set).unwrap(), set, meta(n)).unwrap();
            // Removing g and making f again do not meet.
            assert!(store.uncheckpointed().len() <= 2);
            store.apply(committed.lsn).unwrap();
        }
        assert!(!s.path("f").exists() && !s.path("g").exists());
    }
    // Power was lost: everything that the journal still has is looked at again.
    let (_, report) = DirStore::open(rebooted(), s.io()).unwrap();
    assert_eq!(report.outside, []);
    assert!(!s.path("f").exists() && !s.path("g").exists());
}

#[test]
fn concurrent_commits_share_writes_and_all_survive() {
    let s = Scratch::new();
    for n in 0..8 {
        std::fs::create_dir(s.path(&format!("d{n}"))).unwrap();
    }
    let store = s.store();
    let next = std::sync::atomic::AtomicU64::new(1);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (s, store, next) = (&s, &store, &next);
            scope.spawn(move || {
                for i in 0..40 {
                    let txn = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let report = one(s, store, txn, |ws| {
                        ws.create(&format!("d{n}/f{i}"), vec![i as u8; 3000]);
                    });
                    assert_eq!(report.outside, []);
                    if i % 16 == n {
                        store.checkpoint().unwrap();
                    }
                }
            });
        }
    });
    drop(store);
    let (store, report) = s.open();
    assert_eq!(report.outside, []);
    assert_eq!(store.history().unwrap().len(), 320);
    for n in 0..8 {
        for i in 0..40 {
            assert_eq!(s.read(&format!("d{n}/f{i}")), vec![i as u8; 3000]);
        }
    }
}

#[test]
fn slots_are_recycled_when_dropped_and_after_the_checkpoint() {
    let s = Scratch::new();
    let store = s.store();
    let count = || std::fs::read_dir(s.path(STATE).join("s")).unwrap().count();
    let slot = store.stage().unwrap();
    store.ground.io.write_at(slot.handle(), b"dropped", 0).unwrap();
    let first = slot.id();
    drop(slot);
    let slot = store.stage().unwrap();
    assert_eq!(slot.id(), first);
    assert_eq!(store.ground.io.stat(slot.handle()).unwrap().size, 0);
    store.ground.io.write_at(slot.handle(), b"becomes the file", 0).unwrap();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    let f = ws.slot_file(slot.id());
    ws.bind("f", Some(f));
    let inode = store.ground.io.stat(slot.handle()).unwrap().id;
    let set = ws.done();
    let report = run(&store, 1, set);
    drop(slot);
    // It is nobody's to write any more: the kernel executes no file that is open for that.
    std::fs::set_permissions(s.path("f"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let refused = std::process::Command::new(s.path("f")).status().err();
    assert_ne!(refused.and_then(|e| e.raw_os_error()), Some(libc::ETXTBSY));
    store.checkpoint().unwrap();
    assert_eq!(s.read("f"), b"becomes the file");
    assert_eq!(report.stamps.last().unwrap().unwrap().id, inode);
    assert_eq!(count(), 0);
    let again = store.stage().unwrap();
    assert_ne!(again.id(), first);
    assert_eq!(s.read("f"), b"becomes the file");
    let mut ws = Ws::new(&*io);
    let f = ws.slot_file(SlotId(999));
    ws.bind("g", Some(f));
    let refused = store.commit(Reservation::default(), ws.done(), meta(2));
    assert!(matches!(refused, Err(CommitError::UnknownSlot)));
}

#[test]
fn what_permission_bits_forbid_now_is_installed_all_the_same() {
    use std::os::unix::fs::PermissionsExt;
    for base in bases() {
        let s = Scratch::on(&base);
        s.write("closed/f", "old");
        s.write("closed/g", "old");
        let mode = |path: &str, mode| {
            std::fs::set_permissions(s.path(path), PermissionsExt::from_mode(mode)).unwrap();
        };
        mode("closed/f", 0o444);
        mode("closed", 0o555);
        let before = s.tree();
        let store = s.store();
        let report = one(&s, &store, 1, |ws| {
            ws.patch("closed/f", 3, 3, &[(0, b"new")]);
            let f = ws.host("closed/f");
            ws.obj(f).xattrs = vec![(b"user.k".to_vec(), Some(b"v".to_vec()))];
            ws.create("closed/h", "h");
            ws.remove("closed/g");
            let r = ws.create("readonly", "r");
            ws.obj(r).attrs.mode = Some(0o400);
            ws.obj(r).xattrs = vec![(b"user.k".to_vec(), Some(b"v".to_vec()))];
            let d = ws.mkdir();
            ws.obj(d).attrs.mode = Some(0o500);
            ws.bind("dir", Some(d));
            let inside = ws.file("inside");
            ws.bind_in(d, "inside", inside);
        });
        assert_eq!(report.outside, []);
        let bits = |path: &str| std::fs::metadata(s.path(path)).unwrap().mode() & 0o7777;
        assert_eq!((bits("closed"), bits("closed/f")), (0o555, 0o444));
        assert_eq!((bits("readonly"), bits("dir")), (0o400, 0o500));
        assert_eq!((s.read("closed/f"), s.read("closed/h")), (b"new".into(), b"h".into()));
        assert_eq!(s.read("dir/inside"), b"inside");
        assert!(!s.path("closed/g").exists());
        let report = undo(&store, 1, 2);
        assert_eq!(report.outside, []);
        pretty(&base, &s.tree(), &before);
        mode("closed", 0o755);
    }
}

#[test]
fn stamps_in_the_report_are_what_stat_says() {
    for base in bases() {
        let s = Scratch::on(&base);
        populate(&s);
        let store = s.store();
        let io = s.io();
        let mut ws = Ws::new(&*io);
        everything(&mut ws);
        let set = ws.done();
        let report = run(&store, 1, set.clone());
        let index = crate::writeset::index::Index::new(&set);
        let mut checked = 0;
        for (i, stamp) in report.stamps.iter().enumerate() {
            let path = index.final_path(crate::writeset::Ix(i as u32));
            let Some(path) = path else {
                let name = crate::layout::grave_name(TxnId(1), i as u32);
                let left = io.stat_at(&store.ground.layout.grave, &name).ok();
                assert_eq!(*stamp, left.map(|stat| stat.stamp()));
                continue;
            };
            let mut dir = io.root();
            let path = String::from_utf8(path).unwrap();
            let mut parts: Vec<&str> = path.split('/').collect();
            let last = parts.pop().unwrap();
            for part in parts {
                dir = io.open_dir(&dir, part.as_bytes()).unwrap();
            }
            assert_eq!(
                io.stat_at(&dir, last.as_bytes()).unwrap().stamp(),
                stamp.unwrap(),
                "{path}"
            );
            checked += 1;
        }
        assert!(checked > 15, "{checked}");
    }
}

#[test]
fn a_full_disk_is_reported_by_reserve_and_only_there() {
    let s = Scratch::new();
    let store = s.store();
    let free = crate::error::available(&*store.ground.io).unwrap();
    let mut ws = Ws::new(&*store.ground.io);
    let slot = store.stage().unwrap();
    let f = ws.file("");
    ws.obj(f).content = Content::Whole {
        len: free,
        extents: vec![Extent { offset: 0, data: Data::Slot { slot: slot.id(), at: 0, len: free } }],
    };
    ws.bind("huge", Some(f));
    let refused = store.reserve(&ws.done());
    assert!(matches!(refused, Err(ReserveError::NoSpace { .. })), "{refused:?}");
}

#[test]
fn a_write_set_that_breaks_an_invariant_is_refused() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    let io = s.io();
    let refuse = |fill: &dyn Fn(&mut Ws<'_>)| {
        let mut ws = Ws::new(&*io);
        fill(&mut ws);
        assert!(ws.set.check().is_err());
        assert!(matches!(store.reserve(&ws.set), Err(ReserveError::Invalid(_))));
        let refused = store.commit(Reservation::default(), ws.set, meta(1));
        assert!(matches!(refused, Err(CommitError::Invalid(_))));
    };
    refuse(&|ws| _ = ws.file("bound nowhere"));
    refuse(&|ws| {
        let f = ws.file("twice");
        ws.bind("n", Some(f));
        ws.bind("n", Some(f));
    });
    refuse(&|ws| {
        let (a, b) = (ws.mkdir(), ws.mkdir());
        ws.bind_in(a, "b", b);
        ws.bind_in(b, "a", a);
    });
    refuse(&|ws| {
        let f = ws.file("x");
        ws.bind("n", Some(f));
        ws.set.binds[0].name = b"../escape".to_vec();
    });
    refuse(&|ws| {
        let d = ws.host("dir");
        ws.bind("second", Some(d));
    });
    refuse(&|ws| {
        ws.bind("doomed", None);
        ws.create("doomed/inside", "");
    });
    refuse(&|ws| ws.patch("plain", 3, 3, &[(0, b"too long")]));
    refuse(&|ws| ws.set.objects.clear());
}

/// Prints what the steps cost; run with `--ignored --nocapture`, in release for numbers that mean
/// anything, and only ever compared with the native column of the same run.
#[test]
#[ignore = "a measurement"]
fn costs() {
    use std::time::Instant;
    for base in bases() {
        let s = Scratch::on(&base);
        std::fs::create_dir(s.path("native")).unwrap();
        let t = Instant::now();
        let store = s.store();
        println!("{base}: open new {:?}", t.elapsed());
        let t = Instant::now();
        one(&s, &store, 1, |ws| _ = ws.create("first", "x"));
        println!("  first commit {:?}", t.elapsed());
        for txn in 2..5 {
            let t = Instant::now();
            one(&s, &store, txn, |ws| _ = ws.create(&format!("n{txn}"), "x"));
            println!("  small commit {:?}", t.elapsed());
        }
        let t = Instant::now();
        store.checkpoint().unwrap();
        println!("  checkpoint {:?}", t.elapsed());
        let data = vec![7; 4096];
        let t = Instant::now();
        for n in 0..2000 {
            std::fs::write(s.path(&format!("native/{n}")), &data).unwrap();
        }
        println!("  native 2000 x 4 KiB {:?}", t.elapsed());
        let io = s.io();
        for (txn, hidden) in [(6, true), (7, false)] {
            let mut ws = Ws::new(&*io);
            let d = if hidden {
                let d = ws.mkdir();
                ws.bind(format!("d{txn}"), Some(d));
                d
            } else {
                std::fs::create_dir(s.path("d7")).unwrap();
                ws.host("d7")
            };
            for n in 0..2000 {
                let f = ws.file(&data);
                ws.bind_in(d, &n.to_string(), f);
            }
            let set = ws.done();
            let t = Instant::now();
            let reservation = store.reserve(&set).unwrap();
            let reserved = t.elapsed();
            let lsn = store.commit(reservation, set, meta(txn)).unwrap().lsn;
            let committed = t.elapsed();
            store.apply(lsn).unwrap();
            println!(
                "  2000 files, new directory {hidden}: reserve {reserved:?}, commit {:?}, apply {:?}",
                committed - reserved,
                t.elapsed() - committed
            );
            let t = Instant::now();
            store.checkpoint().unwrap();
            println!("  checkpoint {:?}", t.elapsed());
        }
        drop(store);
        let t = Instant::now();
        drop(s.store());
        println!("  open again {:?}", t.elapsed());
    }
}

/// Of a descriptor of this process, as a child has one that is being spawned.
fn copy_of(path: &std::path::Path) -> std::os::fd::OwnedFd {
    let me = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(me, rustix::process::PidfdFlags::empty()).unwrap();
    let mut open = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_it = |fd: &std::path::PathBuf| std::fs::read_link(fd).is_ok_and(|of| of == path);
    let fd = open.find(is_it).expect("it is open");
    let number = fd.file_name().unwrap().to_str().unwrap().parse().unwrap();
    rustix::process::pidfd_getfd(&pidfd, number, rustix::process::PidfdGetfdFlags::empty()).unwrap()
}

#[test]
fn a_copy_of_the_locks_descriptor_keeps_nobody_out() {
    let s = Scratch::new();
    let store = s.store();
    let copy = copy_of(&s.path(STATE).join("lock"));
    drop(store);
    DirStore::open(config(), s.io()).expect("nobody uses it");
    drop(copy);
}
