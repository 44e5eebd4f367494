use crate::dir_store::DirStore;
use crate::history::{CommitMeta, TxnKind};
use crate::testing::*;
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
