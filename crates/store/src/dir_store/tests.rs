use super::*;
use crate::testing::*;
use crate::{Outside, TxnKind, UndoError};
use std::os::unix::fs::MetadataExt;
use systx_base::Time;

fn run(store: &DirStore, txn: u64, set: WriteSet) -> ApplyReport {
    let reservation = store.reserve(&set).unwrap();
    let committed = store.commit(reservation, set, meta(txn)).unwrap();
    store.apply(committed.lsn).unwrap()
}

fn undo(store: &DirStore, of: u64, txn: u64) -> ApplyReport {
    let undo = store.undo_set(TxnId(of)).unwrap();
    undo.set.check().unwrap();
    let reservation = store.reserve(&undo.set).unwrap();
    let meta = CommitMeta { kind: TxnKind::Undo { of: TxnId(of) }, ..meta(txn) };
    let committed = store.commit(reservation, undo.set, meta).unwrap();
    drop(undo.slots);
    store.apply(committed.lsn).unwrap()
}

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

/// Every feature of a write set at once.  Returns what the tree must be afterwards, computed by plain
/// file operations on a twin.
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

const BASES: [&str; 2] = ["/dev/shm", "/tmp"];

#[test]
fn every_kind_of_change_is_installed_and_undone_and_redone() {
    for base in BASES {
        let s = Scratch::on(base);
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
        pretty(base, &s.tree(), &before);
        let report = undo(&store, 2, 3);
        assert_eq!(report.outside, []);
        pretty(base, &s.tree(), &after);
        undo(&store, 3, 4);
        pretty(base, &s.tree(), &before);
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
