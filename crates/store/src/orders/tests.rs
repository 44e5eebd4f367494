use super::*;
use crate::Store;
use crate::dir_store::DirStore;
use crate::history::CommitMeta;
use crate::super_block::{Super, Supers};
use crate::testing::{Scratch, Ws, meta};
use crate::writeset::WriteSet;
use systx_base::{OrderName, OrderStep, Time};

fn order(name: &str) -> OrderName {
    OrderName { owner: 7, name: name.as_bytes().into() }
}

/// Commits and installs as transaction `txn`; `next` comes next in the order.
fn step(store: &DirStore, txn: u64, set: WriteSet, name: &str, next: u64) {
    let order = Some(OrderStep { order: order(name), next });
    let meta = CommitMeta { order, ..meta(txn) };
    let committed = store.commit(store.reserve(&set).unwrap(), set, meta).unwrap();
    assert_eq!(store.apply(committed.lsn).unwrap().outside, []);
}

fn created(s: &Scratch, name: &str) -> WriteSet {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    let f = ws.file(name.as_bytes());
    ws.bind(name, Some(f));
    ws.done()
}

fn next(store: &DirStore, name: &str) -> u64 {
    store.numbers.table.next(&order(name))
}

#[test]
fn a_number_outlives_the_process_and_the_journal() {
    let s = Scratch::new();
    let store = s.open().0;
    assert_eq!(next(&store, "a"), 0);
    step(&store, 1, created(&s, "one"), "a", 1);
    step(&store, 2, created(&s, "two"), "b", 5);
    // In the journal, in the file, and in both.
    let store = reopened(&s, store);
    assert_eq!((next(&store, "a"), next(&store, "b")), (1, 5));
    step(&store, 3, created(&s, "three"), "a", 2);
    store.checkpoint().unwrap();
    let store = reopened(&s, store);
    assert_eq!((next(&store, "a"), next(&store, "b")), (2, 5));
    step(&store, 4, created(&s, "four"), "a", 3);
    let store = reopened(&s, store);
    assert_eq!((next(&store, "a"), next(&store, "b")), (3, 5));
    // Its owner goes on elsewhere, or ends it.
    step(&store, 5, WriteSet::nothing(), "a", 1000);
    step(&store, 6, WriteSet::nothing(), "b", 0);
    store.checkpoint().unwrap();
    let store = reopened(&s, store);
    assert_eq!((next(&store, "a"), next(&store, "b")), (1000, 0));
    assert_eq!(store.numbers.table.all().1.len(), 1);
}

fn reopened(s: &Scratch, store: DirStore) -> DirStore {
    drop(store);
    s.open().0
}

#[test]
fn a_commit_of_nothing_uses_a_number_up_and_leaves_no_history() {
    let s = Scratch::new();
    let store = s.open().0;
    for n in 1..=300 {
        step(&store, n, WriteSet::nothing(), "a", n);
    }
    drop(store);
    let (store, report) = s.open();
    assert_eq!((next(&store, "a"), report.finished), (300, Vec::new()));
    assert_eq!(store.history().unwrap(), []);
    step(&store, 301, created(&s, "one"), "a", 301);
    assert_eq!(store.history().unwrap().len(), 1);
}

#[test]
fn an_undo_gives_no_number_back() {
    let s = Scratch::new();
    let store = s.open().0;
    step(&store, 1, created(&s, "one"), "a", 1);
    crate::testing::undo(&store, 1, 2);
    assert_eq!(next(&reopened(&s, store), "a"), 1);
}

#[test]
fn the_file_that_counts_is_never_written_over_and_its_loss_is_told() {
    let s = Scratch::new();
    let store = s.open().0;
    let files = || NAMES.map(|name| std::fs::read(s.path(".systx").join(shown(name))).ok());
    step(&store, 1, created(&s, "f1"), "a", 1);
    store.checkpoint().unwrap();
    let mut before = files();
    for n in 2..9 {
        step(&store, n, created(&s, &format!("f{n}")), "a", n);
        store.checkpoint().unwrap();
        let now = files();
        // The one that counted until now is as it was.
        let counted = ((store.block().unwrap().orders - 1) % 2) as usize;
        assert_eq!(before[counted], now[counted], "{n}");
        assert_ne!(before[1 - counted], now[1 - counted], "{n}");
        before = now;
    }
    // What is in no order writes none.
    crate::testing::run(&store, 20, created(&s, "g"));
    store.checkpoint().unwrap();
    assert_eq!(files(), before);
    let counts = store.block().unwrap().orders;
    drop(store);
    std::fs::write(s.path(".systx").join(shown(NAMES[(counts % 2) as usize])), "").unwrap();
    let refused = DirStore::open(crate::testing::config(), s.io()).err().unwrap();
    assert!(refused.to_string().contains("the numbers of the orders"), "{refused}");
}

#[test]
fn any_flipped_byte_of_the_file_is_seen() {
    let at = Time { secs: 3, nanos: 4 };
    let all =
        ["a", "b"].map(|name| Remembered { step: OrderStep { order: order(name), next: 9 }, at });
    let bytes = encode(1, 2, &all);
    assert_eq!(decode(&bytes).unwrap(), (1, 2, all.to_vec()));
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        assert!(decode(&bad).is_err(), "byte {at}");
        assert!(decode(&bytes[..at]).is_err(), "{at} bytes");
    }
}

#[test]
fn a_store_of_an_older_format_is_raised_before_the_first_number() {
    let s = Scratch::new();
    let store = s.open().0;
    crate::testing::run(&store, 1, created(&s, "one"));
    store.checkpoint().unwrap();
    // As an older version has left it.
    let block = Super { format: 3, seq: 90, ..store.block().unwrap() };
    Supers::open(&*store.ground.io, &store.ground.layout)
        .unwrap()
        .write(&*store.ground.io, &block)
        .unwrap();
    let store = reopened(&s, store);
    let format =
        |store: &DirStore| match crate::super_block::read(&*store.ground.io, &store.ground.layout)
            .unwrap()
        {
            crate::super_block::Found::Valid(block) => block.format,
            other => panic!("{other:?}"),
        };
    crate::testing::run(&store, 2, created(&s, "two"));
    assert_eq!(format(&store), 3);
    step(&store, 3, WriteSet::nothing(), "a", 1);
    assert_eq!(format(&store), crate::super_block::FORMAT);
    assert_eq!(next(&reopened(&s, store), "a"), 1);
}
