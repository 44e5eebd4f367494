use super::*;
use crate::dir_store::DirStore;
use crate::layout::{history_name, names};
use crate::testing::*;
use crate::{Keep, UndoError};

const STORE: u64 = 5;

/// A bundle of these histories; its transactions are numbered from 1.
fn written(histories: &[Vec<u8>]) -> Vec<u8> {
    let s = Scratch::new();
    let io = s.io();
    let bundles = Bundles::new();
    for (n, history) in histories.iter().enumerate() {
        let txn = TxnId(n as u64 + 1);
        assert!(bundles.append(&*io, &io.root(), STORE, txn, history).unwrap());
    }
    s.read(std::str::from_utf8(&bundle_name(TxnId(1))).unwrap())
}

/// Which entries are found, and what is in them.
fn found_in(bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let all = entries(bytes, STORE, TxnId(1)).into_iter();
    all.map(|e| (e.txn.0, &bytes[e.body])).collect()
}

#[test]
fn what_a_crash_left_at_the_end_hides_nothing_before_it() {
    let histories = [vec![1; 500], vec![2; 7], Vec::new(), vec![4; SMALL]];
    let bytes = written(&histories);
    let all: Vec<_> = histories.iter().enumerate().map(|(n, h)| (n as u64 + 1, &h[..])).collect();
    assert_eq!(found_in(&bytes), all);
    let row = entries(&bytes, STORE, TxnId(1));
    for (n, entry) in row.iter().enumerate() {
        // Cut off within the entry, or zeros from there on, or a header that is not the right one.
        let cuts = [entry.body.start - 1, entry.body.end - 1];
        assert!(cuts.iter().all(|cut| found_in(&bytes[..*cut]) == all[..n]));
        let mut zeros = bytes.clone();
        zeros[entry.at as usize..].fill(0);
        assert_eq!(found_in(&zeros), all[..n]);
        // But for the word that says whether it counts.
        for at in (0..HEADER).filter(|at| !(4..8).contains(at)) {
            let mut bad = bytes.clone();
            bad[entry.at as usize + at] ^= 0x10;
            assert_eq!(found_in(&bad), all[..n], "byte {at}");
        }
    }
    // What another bundle, or another store, has left in these blocks is no entry.
    assert!(entries(&bytes, STORE, TxnId(2)).is_empty());
    assert!(entries(&bytes, STORE + 1, TxnId(1)).is_empty());
}

#[test]
fn a_full_bundle_lists_what_is_in_it_and_is_left() {
    let s = Scratch::new();
    let io = s.io();
    let (bundles, dir) = (Bundles::new(), io.root());
    let history = vec![7; SMALL];
    let many = LONGEST / SMALL as u64 + 1;
    for txn in (1..=many).map(TxnId) {
        assert!(bundles.append(&*io, &dir, STORE, txn, &history).unwrap());
    }
    assert!(!bundles.append(&*io, &dir, STORE, TxnId(99), &vec![7; SMALL + 1]).unwrap());
    let firsts: Vec<TxnId> =
        names(&*io, &dir).unwrap().iter().filter_map(|n| crate::layout::bundle_of(n)).collect();
    let [one, two] = firsts[..] else { panic!("{firsts:?}") };
    let full = load(&*io, &dir, STORE, one).unwrap().unwrap();
    assert!(full.bytes.len() as u64 <= LONGEST);
    let txns: Vec<TxnId> = full.entries.iter().map(|e| e.txn).collect();
    assert_eq!(listed(&full.bytes, STORE), Some(txns.clone()));
    assert_eq!(listed(&full.bytes, STORE + 1), None);
    assert_eq!(transactions(&*io, &dir, STORE, one).unwrap(), txns);
    let open = load(&*io, &dir, STORE, two).unwrap().unwrap();
    assert_eq!(listed(&open.bytes, STORE), None);
    let rest = transactions(&*io, &dir, STORE, two).unwrap();
    assert_eq!([txns, rest].concat(), (1..=many).map(TxnId).collect::<Vec<_>>());
}

fn change(s: &Scratch, store: &DirStore, txn: u64, text: &[u8]) {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    let len = s.read("f").len().max(text.len()) as u64;
    ws.patch("f", len, len, &[(0, text)]);
    run(store, txn, ws.done());
}

/// The names in the history's directory.
fn kept(s: &Scratch) -> Vec<Vec<u8>> {
    let io = s.io();
    let state = io.open_dir(&io.root(), STATE.as_bytes()).unwrap();
    names(&*io, &io.open_dir(&state, b"h").unwrap()).unwrap()
}

fn log(store: &DirStore) -> Vec<u64> {
    store.history().unwrap().iter().map(|e| e.meta.txn.0).collect()
}

#[test]
fn small_commits_share_a_file_and_are_undone_from_it() {
    let s = Scratch::new();
    s.write("f", "0");
    let store = s.store();
    for n in 1..=9u8 {
        change(&s, &store, n.into(), &[b'0' + n]);
    }
    store.checkpoint().unwrap();
    assert_eq!(kept(&s), [bundle_name(TxnId(1))]);
    drop(store);
    // Another process begins another bundle.
    let store = s.store();
    assert!(store.has_history(TxnId(5)).unwrap() && !store.has_history(TxnId(10)).unwrap());
    assert_eq!(log(&store), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    undo(&store, 9, 10);
    assert_eq!(s.read("f"), b"8");
    assert_eq!(kept(&s), [bundle_name(TxnId(1)), bundle_name(TxnId(10))]);
    // A long before-image has a file of its own.
    s.write("f", vec![b'x'; 3 * SMALL]);
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.create(std::str::from_utf8(&[b'n'; 200]).unwrap(), "");
    for n in 0..200 {
        ws.create(&format!("{n}"), "");
    }
    run(&store, 11, ws.done());
    assert_eq!(kept(&s)[0], history_name(TxnId(11)));
    assert_eq!(log(&store).len(), 11);
}

#[test]
fn a_bundle_goes_when_all_in_it_was_let_go() {
    let s = Scratch::new();
    s.write("f", "0");
    let store = s.store();
    for n in 1..=4u8 {
        change(&s, &store, n.into(), &[b'0' + n]);
    }
    store.checkpoint().unwrap();
    let keep = |count| store.gc(Keep { count, ..Keep::default() }).unwrap().removed.len();
    assert_eq!(keep(1), 3);
    assert_eq!(log(&store), [4]);
    assert!(!store.has_history(TxnId(3)).unwrap());
    assert!(matches!(store.undo_set(TxnId(3)), Err(UndoError::Unknown(_))));
    // What is committed now goes elsewhere: the first can go, and what is in the other stays.
    change(&s, &store, 5, b"5");
    assert_eq!(kept(&s), [bundle_name(TxnId(1)), bundle_name(TxnId(5))]);
    assert_eq!(keep(1), 1);
    assert_eq!(kept(&s), [bundle_name(TxnId(5))]);
    // The one that the journal still needs is not let go.
    assert_eq!(keep(0), 0);
    store.checkpoint().unwrap();
    assert_eq!(keep(0), 1);
    assert!(kept(&s).is_empty());
    change(&s, &store, 6, b"6");
    drop(store);
    let store = s.store();
    assert_eq!(log(&store), [6]);
    undo(&store, 6, 7);
    assert_eq!(s.read("f"), b"5");
}

#[test]
fn what_is_appended_while_a_bundle_is_collected_stays() {
    let s = Scratch::new();
    let io = s.io();
    let (bundles, dir) = (Bundles::new(), io.root());
    let append = |txn| bundles.append(&*io, &dir, STORE, TxnId(txn), b"a history").unwrap();
    assert!(append(1) && append(2));
    let read = || load(&*io, &dir, STORE, TxnId(1)).unwrap().unwrap();
    let left = || found_kept(&read());
    let before = read();
    let which: HashSet<u64> = before.entries.iter().map(|e| e.at).collect();
    // It is still the one that is appended to.
    bundles.let_go(&*io, &dir, STORE, &before, &which).unwrap();
    assert!(left().is_empty() && append(3));
    assert_eq!(left(), [3]);
    // It no longer is, but was after it had been read.
    bundles.close();
    bundles.let_go(&*io, &dir, STORE, &before, &which).unwrap();
    assert_eq!(left(), [3]);
    bundles
        .let_go(&*io, &dir, STORE, &read(), &read().entries.iter().map(|e| e.at).collect())
        .unwrap();
    assert!(load(&*io, &dir, STORE, TxnId(1)).unwrap().is_none());
    // The number of one that was never committed may come again; then there is a file.
    io.create_file(&dir, &bundle_name(TxnId(4)), 0o600).unwrap();
    assert!(!append(4) && append(5));
}

#[test]
fn a_further_attempt_writes_a_file_which_counts() {
    let s = Scratch::new();
    s.write("f", "0");
    let store = s.store();
    change(&s, &store, 1, b"1");
    let mut history = store.archive.histories().unwrap().remove(0);
    history.done.outside = 7;
    store.archive.save(&history, true).unwrap();
    assert_eq!(kept(&s), [history_name(TxnId(1)), bundle_name(TxnId(1))]);
    let all = store.history().unwrap();
    assert_eq!((all.len(), all[0].outside), (1, 7));
}

fn found_kept(bundle: &Bundle) -> Vec<u64> {
    bundle.entries.iter().filter(|e| e.kept).map(|e| e.txn.0).collect()
}

#[test]
fn after_a_power_cut_the_file_counts_and_not_what_an_attempt_left_in_a_bundle() {
    let s = Scratch::new();
    s.write("f", "0");
    let store = s.store();
    change(&s, &store, 1, b"1");
    change(&s, &store, 2, b"2");
    drop(store);
    let (store, report) = DirStore::open(rebooted(), s.io()).unwrap();
    assert_eq!(report.finished, [TxnId(1), TxnId(2)]);
    let files = [history_name(TxnId(1)), history_name(TxnId(2))];
    assert_eq!(kept(&s), [&files[..], &[bundle_name(TxnId(1))]].concat());
    assert_eq!(log(&store), [1, 2]);
    undo(&store, 2, 3);
    undo(&store, 1, 4);
    assert_eq!(s.read("f"), b"0");
    store.checkpoint().unwrap();
    // What does not count is not there again when the file has gone.
    store.gc(Keep { count: 0, ..Keep::default() }).unwrap();
    assert!(kept(&s).is_empty() && log(&store).is_empty());
}

#[test]
fn a_store_of_the_version_before_is_read_and_has_bundles_only_once_it_says_so() {
    let s = Scratch::new();
    s.write("f", "0");
    let store = s.store();
    change(&s, &store, 1, b"1");
    store.checkpoint().unwrap();
    drop(store);
    // As that version has left it: a file, and both super blocks with its number.
    let bundle = s.path(STATE).join("h").join("b0000000000000001");
    let bytes = std::fs::read(&bundle).unwrap();
    let number = |name: &str| s.path(STATE).join(name);
    let block = std::fs::read(number("super.0")).unwrap();
    let store_id = u64::from_le_bytes(block[20..28].try_into().unwrap());
    let entry = entries(&bytes, store_id, TxnId(1)).remove(0);
    std::fs::write(s.path(STATE).join("h/0000000000000001"), &bytes[entry.body]).unwrap();
    std::fs::remove_file(&bundle).unwrap();
    for name in ["super.0", "super.1"] {
        let mut block = std::fs::read(number(name)).unwrap();
        block[8] = 2;
        let sum = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(number(name), block).unwrap();
    }
    let versions = || ["super.0", "super.1"].map(|name| std::fs::read(number(name)).unwrap()[8]);
    let (store, report) = s.open();
    assert_eq!((report.finished, log(&store)), (Vec::new(), vec![1]));
    change(&s, &store, 2, b"2");
    assert_eq!((versions(), kept(&s).len()), ([2, 2], 2));
    assert_eq!(kept(&s)[1], history_name(TxnId(2)));
    store.checkpoint().unwrap();
    assert_eq!(versions().iter().max(), Some(&4));
    change(&s, &store, 3, b"3");
    assert_eq!(kept(&s)[2], bundle_name(TxnId(3)));
    assert_eq!(log(&store), [1, 2, 3]);
    for (of, txn) in [(3, 4), (2, 5), (1, 6)] {
        undo(&store, of, txn);
    }
    assert_eq!(s.read("f"), b"0");
}
