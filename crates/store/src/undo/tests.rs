use crate::UndoError;
use crate::dir_store::DirStore;
use crate::history::{CommitMeta, TxnKind};
use crate::testing::*;
use crate::writeset::{Content, Data, Extent};
use std::os::unix::fs::FileExt;
use systx_base::TxnId;

/// Takes what transaction `of` changed at one path back, as transaction `txn`.
fn undo_at(store: &DirStore, of: u64, path: &str, txn: u64) {
    let below = |p: &[u8]| p == path.as_bytes() || p.starts_with(format!("{path}/").as_bytes());
    let undo = store.undo_part(TxnId(of), &below).unwrap();
    undo.set.check().unwrap();
    let reservation = store.reserve(&undo.set).unwrap();
    let meta = CommitMeta { kind: TxnKind::UndoPart { of: TxnId(of) }, ..meta(txn) };
    let done = store.commit(reservation, undo.set, meta).unwrap();
    assert_eq!(store.apply(done.lsn).unwrap().outside, []);
}

const ALL: [&str; 9] =
    ["changed", "gone", "new", "new/a", "new/deep", "new/deep/b", "from", "to", "dir/b"];

/// What is at each path: a file's content, or that it is a directory.
fn look(s: &Scratch) -> Vec<Option<Vec<u8>>> {
    let at = |path: &&str| match std::fs::symlink_metadata(s.path(path)) {
        Err(_) => None,
        Ok(meta) if meta.is_dir() => Some(b"a directory".to_vec()),
        Ok(_) => Some(s.read(path)),
    };
    ALL.iter().map(at).collect()
}

#[test]
fn each_part_of_a_transaction_can_be_taken_back_and_no_other_is_touched() {
    for part in ["changed", "gone", "new", "new/deep", "new/a", "from", "to", "dir", "dir/b"] {
        let s = Scratch::new();
        for file in ["changed", "gone", "from", "dir/b"] {
            s.write(file, file);
        }
        let store = s.store();
        let before = look(&s);
        let io = s.io();
        let mut ws = Ws::new(&*io);
        ws.rewrite("changed", "anew");
        ws.remove("gone");
        let (new, deep) = (ws.mkdir(), ws.mkdir());
        ws.bind("new", Some(new));
        ws.bind_in(new, "deep", deep);
        let (a, b) = (ws.file("a"), ws.file("b"));
        ws.bind_in(new, "a", a);
        ws.bind_in(deep, "b", b);
        ws.rename("from", "to");
        ws.rewrite("dir/b", "anew");
        run(&store, 1, ws.done());
        let after = look(&s);
        undo_at(&store, 1, part, 2);
        // A move is taken back as a whole, whichever of its names is meant.
        let tops: &[&str] = if ["from", "to"].contains(&part) { &["from", "to"] } else { &[part] };
        for (i, now) in look(&s).iter().enumerate() {
            let path = ALL[i];
            let below = |top: &&str| path == *top || path.starts_with(&format!("{top}/"));
            let wanted = if tops.iter().any(below) { &before[i] } else { &after[i] };
            assert_eq!(now, wanted, "{path}, after the undo of {part}");
        }
        // The part that was taken back can come again.
        undo(&store, 2, 3);
        assert_eq!(look(&s), after, "and again, of {part}");
    }
}

/// What the store, and a file, take of the disk, in bytes.
fn taken(s: &Scratch, path: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::symlink_metadata(s.path(path)).unwrap();
    let below = if meta.is_dir() {
        std::fs::read_dir(s.path(path)).unwrap()
    } else {
        return meta.blocks() * 512;
    };
    below.map(|e| taken(s, &format!("{path}/{}", e.unwrap().file_name().display()))).sum()
}

#[test]
fn holes_take_no_room_when_they_are_cut_off_cleared_or_replaced_and_come_back_as_holes() {
    const LEN: u64 = 1 << 42;
    const AT: u64 = LEN / 2;
    let cut = |ws: &mut Ws<'_>| ws.patch("sparse", 100, 100, &[]);
    let clear = |ws: &mut Ws<'_>| {
        let ix = ws.host("sparse");
        let hole = Extent { offset: 4096, data: Data::Hole { len: LEN - 8192 } };
        ws.obj(ix).content = Content::Patch { len: LEN, keep: LEN, extents: vec![hole] };
    };
    // In place: it has two names.
    let replace = |ws: &mut Ws<'_>| ws.rewrite("sparse", "short");
    type Change<'a> = &'a dyn Fn(&mut Ws<'_>);
    let all: [(&str, Change<'_>); 3] = [("cut", &cut), ("cleared", &clear), ("replaced", &replace)];
    for base in bases() {
        for (how, change) in all {
            let s = Scratch::on(&base);
            let io = s.io();
            let file = std::fs::File::create(s.path("sparse")).unwrap();
            file.set_len(LEN).unwrap();
            file.write_all_at(b"here", AT).unwrap();
            drop(file);
            std::fs::hard_link(s.path("sparse"), s.path("second")).unwrap();
            let store = s.store();
            let mut ws = Ws::new(&*io);
            change(&mut ws);
            run(&store, 1, ws.done());
            assert!(taken(&s, ".systx/g") < 1 << 20, "{base}, {how}");
            undo(&store, 1, 2);
            let file = std::fs::File::open(s.path("sparse")).unwrap();
            assert_eq!(file.metadata().unwrap().len(), LEN, "{base}, {how}");
            let mut was = [0; 4];
            file.read_exact_at(&mut was, AT).unwrap();
            assert_eq!(&was, b"here", "{base}, {how}");
            assert!(taken(&s, "sparse") < 1 << 20, "{base}, {how}");
        }
    }
}

/// Waits until what is changed from now on has a later time than what was changed before.
fn tick(s: &Scratch) {
    use std::os::unix::fs::MetadataExt;
    let time = || {
        s.write("clock", "");
        let meta = std::fs::metadata(s.path("clock")).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let before = time();
    while time() == before {}
    std::fs::remove_file(s.path("clock")).unwrap();
}

#[test]
fn a_directory_that_came_back_goes_again_unless_changes_in_it_were_not_taken_back() {
    for base in bases() {
        let s = Scratch::on(&base);
        let (store, io) = (s.store(), s.io());
        let before = s.tree();
        let mut ws = Ws::new(&*io);
        let (dir, deep) = (ws.mkdir(), ws.mkdir());
        ws.bind("d", Some(dir));
        ws.bind_in(dir, "deep", deep);
        let file = ws.file("content");
        ws.bind_in(dir, "file", file);
        run(&store, 1, ws.done());
        let made = s.tree();
        let mut ws = Ws::new(&*io);
        ws.patch("d/file", 7, 7, &[(0, b"CON")]);
        ws.create("d/deep/more", "more");
        run(&store, 2, ws.done());
        let changed = s.tree();
        // Back to nothing, to all again, and back once more: 5 brings the directory back.
        let way = [(2, &made), (1, &before), (4, &made), (3, &changed), (6, &made), (5, &before)];
        for ((of, want), txn) in way.into_iter().zip(3..) {
            tick(&s);
            undo(&store, of, txn);
            assert_eq!(&s.tree(), want, "{base}, undo of {of}");
        }
        // 9 brings it back, and what is changed then stays: also at that very moment.
        undo(&store, 8, 9);
        let mut ws = Ws::new(&*io);
        ws.patch("d/file", 7, 7, &[(0, b"con")]);
        run(&store, 10, ws.done());
        let later = s.tree();
        assert!(matches!(store.undo_set(TxnId(9)), Err(UndoError::Overlap(_))), "{base}");
        assert_eq!(s.tree(), later);
        undo(&store, 10, 11);
        undo(&store, 9, 12);
        assert_eq!(s.tree(), before, "{base}");
    }
}

#[test]
fn a_change_is_undone_after_a_further_name_came_and_went_with_its_directory() {
    for base in bases() {
        let s = Scratch::on(&base);
        let (store, io) = (s.store(), s.io());
        s.write("one", "content");
        let mut ws = Ws::new(&*io);
        ws.patch("one", 7, 7, &[(0, b"CON")]);
        run(&store, 1, ws.done());
        let mut ws = Ws::new(&*io);
        let (dir, file) = (ws.mkdir(), ws.host("one"));
        ws.bind("d", Some(dir));
        ws.bind_in(dir, "two", file);
        tick(&s);
        run(&store, 2, ws.done());
        let linked = s.tree();
        for (of, want, txn) in [(2, "CONtent", 3), (1, "content", 4), (4, "CONtent", 5)] {
            tick(&s);
            undo(&store, of, txn);
            assert!(!s.path("d").exists(), "{base}, undo of {of}");
            assert_eq!(s.read("one"), want.as_bytes(), "{base}, undo of {of}");
        }
        undo(&store, 3, 6);
        assert_eq!(s.tree(), linked, "{base}");
    }
}
