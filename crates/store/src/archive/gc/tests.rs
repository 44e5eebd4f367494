use super::*;
use crate::UndoError;
use crate::dir_store::DirStore;
use crate::dir_store::tests::populate;
use crate::history::{CommitMeta, TxnKind};
use crate::testing::*;
use systx_base::Time;

fn one(s: &Scratch, store: &DirStore, txn: u64, fill: impl FnOnce(&mut Ws<'_>)) {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    fill(&mut ws);
    run(store, txn, ws.done());
}

#[test]
fn gc_bounds_the_history() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    for n in 1..=5 {
        one(&s, &store, n, |ws| ws.rewrite("big", vec![n as u8; 70_000]));
    }
    store.checkpoint().unwrap();
    let all = store.gc(Keep::default()).unwrap();
    assert_eq!(all.removed, []);
    let report = store.gc(Keep { count: 3, ..Default::default() }).unwrap();
    assert_eq!(report.removed, [TxnId(1), TxnId(2)]);
    assert!(report.freed >= 140_000);
    let report = store.gc(Keep { bytes: 80_000, ..Default::default() }).unwrap();
    assert_eq!(report.removed, [TxnId(3), TxnId(4)]);
    let since = Some(Time { secs: 100, nanos: 0 });
    let report = store.gc(Keep { since, ..Default::default() }).unwrap();
    assert_eq!(report.removed, [TxnId(5)]);
    assert_eq!(report.kept, 0);
    assert!(std::fs::read_dir(s.path(STATE).join("g")).unwrap().next().is_none());
    assert!(matches!(store.undo_set(TxnId(5)), Err(UndoError::Unknown(_))));
    drop(store);
    assert_eq!(s.store().highest_txn(), TxnId(5));
}

#[test]
fn a_forgotten_transaction_stays_in_the_log_and_the_newest_can_be_undone() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    for n in 1..=4 {
        one(&s, &store, n, |ws| ws.rewrite("big", vec![n as u8; 70_000]));
    }
    let log = |store: &DirStore| -> Vec<(u64, bool)> {
        store.history().unwrap().iter().map(|e| (e.meta.txn.0, e.forgotten)).collect()
    };
    let keep = Keep { bytes: 0, least: 1, log: 2, ..Keep::default() };
    store.checkpoint().unwrap();
    let would = store.would_gc(keep).unwrap();
    assert_eq!(log(&store).iter().filter(|(_, forgotten)| *forgotten).count(), 0);
    let report = store.gc(keep).unwrap();
    assert_eq!(report, would);
    assert_eq!(report.removed, [TxnId(1), TxnId(2), TxnId(3)]);
    assert!(report.freed >= 210_000 && report.kept >= 70_000 && report.left == 1);
    assert_eq!(log(&store), [(1, true), (2, true), (3, true), (4, false)]);
    assert!(matches!(store.undo_set(TxnId(2)), Err(UndoError::Forgotten(_))));
    assert!(store.has_history(TxnId(2)).unwrap());
    // Once more: the log has its own limit.
    assert_eq!(store.gc(keep).unwrap().removed, []);
    assert_eq!(log(&store), [(2, true), (3, true), (4, false)]);
    drop(store);
    let store = s.store();
    assert_eq!(log(&store), [(2, true), (3, true), (4, false)]);
    assert_eq!(store.history().unwrap()[0].meta.argv, [b"make".to_vec()]);
    undo(&store, 4, 5);
    assert_eq!(s.read("big"), vec![3; 70_000]);
}

#[test]
fn what_somebody_takes_back_is_not_collected() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    for n in 1..=2 {
        one(&s, &store, n, |ws| ws.rewrite("big", vec![n as u8; 70_000]));
    }
    store.checkpoint().unwrap();
    let held = store.undo_set(TxnId(2)).unwrap();
    let none = Keep { count: 0, ..Keep::default() };
    assert_eq!(store.gc(none).unwrap().removed, [TxnId(1)]);
    let reservation = store.reserve(&held.set).unwrap();
    let meta = CommitMeta { kind: TxnKind::Undo { of: TxnId(2) }, ..meta(3) };
    let done = store.commit(reservation, held.set, meta).unwrap();
    store.apply(done.lsn).unwrap();
    assert_eq!(s.read("big"), vec![1; 70_000]);
    // Not dropped yet.
    assert_eq!(store.gc(none).unwrap().removed, []);
    drop(held.in_use);
    assert_eq!(store.gc(none).unwrap().removed, [TxnId(2)]);
}

#[test]
fn what_a_collection_that_was_cut_off_has_left_goes_with_the_next() {
    let s = Scratch::new();
    populate(&s);
    let store = s.store();
    for n in 1..=2 {
        one(&s, &store, n, |ws| ws.rewrite("big", vec![n as u8; 70_000]));
    }
    store.checkpoint().unwrap();
    // Before its last step: the short entry is there beside the full one.
    let full = store.archive.histories().unwrap().into_iter().find(|h| h.done.lsn == 1).unwrap();
    store.archive.save(&full.forget(), false).unwrap();
    assert_eq!(store.history().unwrap().len(), 2);
    // Of another one a power cut has left what it displaced, and no history.
    let nameless = s.path(STATE).join("g/00000000000000aa.1");
    std::fs::create_dir(&nameless).unwrap();
    std::fs::write(nameless.join("x"), "x").unwrap();
    store.gc(Keep { least: 1, log: 9, bytes: 0, ..Keep::default() }).unwrap();
    assert!(!nameless.exists());
    let left: Vec<_> = store.history().unwrap().iter().map(|e| e.forgotten).collect();
    assert_eq!(left, [true, false]);
    assert_eq!(std::fs::read_dir(s.path(STATE).join("g")).unwrap().count(), 1);
}
