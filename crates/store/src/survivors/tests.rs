use crate::UndoError;
use crate::testing::*;
use crate::writeset::{Bind, WriteSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use systx_base::TxnId;

/// A file with these names.
fn linked(s: &Scratch, names: &[&str]) {
    s.write(names[0], "content");
    for name in &names[1..] {
        std::fs::create_dir_all(s.path(name).parent().unwrap()).unwrap();
        std::fs::hard_link(s.path(names[0]), s.path(name)).unwrap();
    }
}

/// Removes names of one file, which was met under the first of them.
fn removal(s: &Scratch, names: &[&str]) -> WriteSet {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    let file = ws.host(names[0]);
    for name in names.iter().map(Path::new) {
        let dir = ws.host(name.parent().unwrap());
        let name = name.file_name().unwrap().as_bytes().to_vec();
        ws.set.binds.push(Bind { dir, name, target: None, displaces: Some(file) });
    }
    ws.done()
}

fn links(s: &Scratch, name: &str) -> u64 {
    std::fs::symlink_metadata(s.path(name)).unwrap().nlink()
}

#[test]
fn a_file_that_lost_a_name_counts_the_ones_that_are_left() {
    for base in bases() {
        let s = Scratch::on(&base);
        linked(&s, &["d/one", "e/f/two", "three"]);
        let before = s.tree();
        let store = s.store();
        run(&store, 1, removal(&s, &["d/one"]));
        assert_eq!(links(&s, "three"), 2);
        undo(&store, 1, 2);
        assert_eq!(s.tree(), before);
        undo(&store, 2, 3);
        assert_eq!(links(&s, "e/f/two"), 2);
        assert!(!s.path("d/one").exists());
        undo(&store, 3, 4);
        assert_eq!(s.tree(), before);
    }
}

#[test]
fn a_replaced_name_is_linked_again() {
    let s = Scratch::new();
    linked(&s, &["one", "dir/two"]);
    let before = s.tree();
    let store = s.store();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    let new = ws.file("another");
    ws.bind("one", Some(new));
    run(&store, 1, ws.done());
    assert_eq!((links(&s, "dir/two"), s.read("one")), (1, b"another".to_vec()));
    undo(&store, 1, 2);
    assert_eq!(s.tree(), before);
    undo(&store, 2, 3);
    assert_eq!((links(&s, "dir/two"), s.read("one")), (1, b"another".to_vec()));
}

#[test]
fn all_names_at_once_are_kept_once() {
    let s = Scratch::new();
    linked(&s, &["one", "two", "d/three"]);
    let before = s.tree();
    let store = s.store();
    run(&store, 1, removal(&s, &["one", "two", "d/three"]));
    undo(&store, 1, 2);
    assert_eq!(s.tree(), before);
}

#[test]
fn the_last_name_is_kept_and_gives_back_the_others() {
    for order in [[1, 2], [2, 1]] {
        let s = Scratch::new();
        linked(&s, &["one", "two"]);
        let before = s.tree();
        let store = s.store();
        run(&store, 1, removal(&s, &["one"]));
        run(&store, 2, removal(&s, &["two"]));
        undo(&store, order[0], 3);
        let back = if order[0] == 1 { "one" } else { "two" };
        assert_eq!(links(&s, back), 1);
        undo(&store, order[1], 4);
        assert_eq!(s.tree(), before, "{order:?}");
    }
}

#[test]
fn a_change_is_undone_under_another_name_unless_it_was_changed_again() {
    for later in [false, true] {
        let s = Scratch::new();
        linked(&s, &["one", "two"]);
        let before = s.tree();
        let store = s.store();
        let io = s.io();
        let mut ws = Ws::new(&*io);
        ws.patch("one", 7, 7, &[(0, b"CON")]);
        ws.bind("one", None);
        run(&store, 1, ws.done());
        assert_eq!((links(&s, "two"), s.read("two")), (1, b"CONtent".to_vec()));
        if later {
            s.write("two", "later");
            assert!(matches!(store.undo_set(TxnId(1)), Err(UndoError::Overlap(_))));
        } else {
            undo(&store, 1, 2);
            assert_eq!(s.tree(), before);
        }
    }
}

#[test]
fn a_change_of_what_went_with_its_directory_is_undone_under_another_name() {
    for base in bases() {
        for later in [false, true] {
            let s = Scratch::on(&base);
            linked(&s, &["d/one", "two"]);
            let before = s.tree();
            let store = s.store();
            let io = s.io();
            let mut ws = Ws::new(&*io);
            ws.patch("d/one", 7, 7, &[(0, b"CON")]);
            ws.bind("d", None);
            run(&store, 1, ws.done());
            assert_eq!(s.read("two"), b"CONtent");
            if later {
                s.write("two", "later");
                assert!(matches!(store.undo_set(TxnId(1)), Err(UndoError::Overlap(_))));
                continue;
            }
            undo(&store, 1, 2);
            assert_eq!(s.tree(), before, "{base}");
            undo(&store, 2, 3);
            assert!(!s.path("d").exists() && s.read("two") == b"CONtent", "{base}");
            undo(&store, 3, 4);
            assert_eq!(s.tree(), before, "{base}");
        }
    }
}

#[test]
fn a_change_is_undone_and_redone_of_what_has_all_its_names_in_removed_directories() {
    for base in bases() {
        let s = Scratch::on(&base);
        linked(&s, &["d/one", "e/two"]);
        let store = s.store();
        let io = s.io();
        let mut ws = Ws::new(&*io);
        ws.bind("d", None);
        run(&store, 1, ws.done());
        let before = s.tree();
        let mut ws = Ws::new(&*io);
        ws.patch("e/two", 7, 7, &[(0, b"CON")]);
        ws.bind("e", None);
        run(&store, 2, ws.done());
        for txn in [2, 4] {
            undo(&store, txn, txn + 1);
            assert_eq!(s.tree(), before, "{base}");
            undo(&store, txn + 1, txn + 2);
            assert!(!s.path("e").exists(), "{base}");
        }
        undo(&store, 6, 7);
        undo(&store, 1, 8);
        assert_eq!(s.read("d/one"), b"content", "{base}");
    }
}

#[test]
fn without_a_name_left_undo_says_so() {
    let s = Scratch::new();
    linked(&s, &["one", "two"]);
    let store = s.store();
    run(&store, 1, removal(&s, &["one"]));
    std::fs::remove_file(s.path("two")).unwrap();
    s.write("two", "content");
    assert!(matches!(store.undo_set(TxnId(1)), Err(UndoError::Gone { .. })));
}
