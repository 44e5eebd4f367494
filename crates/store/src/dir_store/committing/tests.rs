use super::*;
use crate::dir_store::Config;
use crate::testing::*;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Long enough to show who does not wait; too short shows nothing wrong.
const A_WHILE: Duration = Duration::from_millis(100);

/// The second of two that meet, committed by another thread while the first one is not installed:
/// whether it comes to its end meanwhile.
fn ends_before_the_first_is_applied(committer_applies: bool) -> bool {
    let s = Scratch::new();
    s.write("f", "old");
    let config = Config { committer_applies, ..config() };
    let (store, _) = DirStore::open(config, s.io()).unwrap();
    let set = |how: &dyn Fn(&mut Ws<'_>)| {
        let io = s.io();
        let mut ws = Ws::new(&*io);
        how(&mut ws);
        ws.done()
    };
    let (first, second) = (set(&|ws| ws.rewrite("f", "first")), set(&|ws| ws.remove("f")));
    let done = store.commit(store.reserve(&first).unwrap(), first, meta(1)).unwrap();
    let (end, ends) = channel();
    std::thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || {
            let met = store.commit(store.reserve(&second).unwrap(), second, meta(2));
            end.send(met.map(drop)).unwrap();
        });
        let early = ends.recv_timeout(A_WHILE);
        store.apply(done.lsn).unwrap();
        let (early, met) = match early {
            Ok(met) => (true, met),
            Err(_) => (false, ends.recv().unwrap()),
        };
        // It saw the file as it was before the first one.
        assert!(matches!(met, Err(CommitError::Changed { .. })), "{met:?}");
        assert_eq!(s.read("f"), b"first");
        early
    })
}

#[test]
fn who_needs_what_is_committed_installs_it_or_waits_for_the_committer() {
    // A slow machine may let the first one seem to wait: that shows nothing wrong.
    ends_before_the_first_is_applied(false);
    assert!(!ends_before_the_first_is_applied(true));
}

/// A store with a commit in it, on a file system with a quota.
fn limited(s: &Scratch) -> (Arc<Dying>, DirStore) {
    s.write("f", "old");
    let io = Dying::limited(s.io());
    let (store, _) = DirStore::open(config(), io.clone()).unwrap();
    run(&store, 1, created(s, "first"));
    (io, store)
}

fn created(s: &Scratch, name: &str) -> WriteSet {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.create(name, name);
    ws.done()
}

fn has_spare(s: &Scratch) -> bool {
    s.path(".systx/spare").exists()
}

#[test]
fn a_record_that_a_quota_has_no_room_for_is_no_commit_and_no_end_of_the_store() {
    let s = Scratch::new();
    let (io, store) = limited(&s);
    let commit = |txn| {
        let set = created(&s, "made");
        store.commit(store.reserve(&set).unwrap(), set, meta(txn))
    };
    // The store gives up what it has first.
    assert!(has_spare(&s));
    io.is_beyond(1);
    let done = commit(2).unwrap();
    assert!(!has_spare(&s));
    store.apply(done.lsn).unwrap();
    std::fs::remove_file(s.path("made")).unwrap();
    io.is_beyond(2);
    let refused = commit(3);
    assert!(
        matches!(&refused, Err(CommitError::Io(e)) if e.raw_os_error() == Some(libc::EDQUOT)),
        "{refused:?}"
    );
    let done = commit(4).unwrap();
    assert!(has_spare(&s), "made again before a decision");
    store.apply(done.lsn).unwrap();
    drop(store);
    let (store, report) = s.open();
    assert!(!report.discarded);
    let known: Vec<_> = store.history().unwrap().iter().map(|h| h.meta.txn.0).collect();
    assert_eq!(known, [1, 2, 4]);
    assert_eq!(s.read("made"), b"made");
}

#[test]
fn a_staged_file_of_a_refused_record_is_its_holders_still() {
    let s = Scratch::new();
    let (io, store) = limited(&s);
    let slot = store.stage().unwrap();
    store.ground.io.write_at(slot.handle(), b"staged", 0).unwrap();
    let set = || {
        let io = s.io();
        let mut ws = Ws::new(&*io);
        let f = ws.slot_file(slot.id());
        ws.bind("staged", Some(f));
        ws.done()
    };
    io.is_beyond(2);
    store.commit(store.reserve(&set()).unwrap(), set(), meta(2)).unwrap_err();
    run(&store, 3, set());
    assert_eq!(s.read("staged"), b"staged");
}

#[test]
fn a_checkpoint_without_room_comes_later() {
    let s = Scratch::new();
    let (io, store) = limited(&s);
    io.is_beyond(2);
    let refused = store.checkpoint();
    assert!(matches!(refused, Err(CheckpointError::NoRoom(_))), "{refused:?}");
    assert_eq!(store.uncheckpointed(), [TxnId(1)]);
    run(&store, 2, created(&s, "second"));
    store.checkpoint().unwrap();
    assert!(store.uncheckpointed().is_empty());
    // Nobody but the spare has room at the next opening.
    run(&store, 3, created(&s, "third"));
    drop(store);
    assert!(has_spare(&s));
    io.is_beyond(1);
    let (_, report) = DirStore::open(config(), io).unwrap();
    assert_eq!(report.outside, []);
    assert!(!has_spare(&s));
    assert_eq!(s.read("third"), b"third");
}

#[test]
fn what_was_saved_for_undo_goes_with_a_commit_that_fails() {
    let s = Scratch::new();
    let (io, store) = limited(&s);
    s.write("cut", [7; 50_000]);
    s.write("other", "seen");
    let saved = || std::fs::read_dir(s.path(".systx/g")).unwrap().count();
    let set = || {
        let io = s.io();
        let mut ws = Ws::new(&*io);
        ws.patch("cut", 10, 10, &[]);
        ws.patch("other", 4, 4, &[(0, b"S")]);
        ws.done()
    };
    io.is_beyond(2);
    store.commit(store.reserve(&set()).unwrap(), set(), meta(2)).unwrap_err();
    assert_eq!(saved(), 0, "its record found no room");
    let late = set();
    let reservation = store.reserve(&late).unwrap();
    s.write("other", "changed");
    let refused = store.commit(reservation, late, meta(3));
    assert!(matches!(refused, Err(CommitError::Changed { .. })), "{refused:?}");
    assert_eq!(saved(), 0, "others had changed something");
    run(&store, 4, set());
    assert_eq!(saved(), 1);
}
