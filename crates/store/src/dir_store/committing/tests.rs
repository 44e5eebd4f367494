use super::*;
use crate::dir_store::Config;
use crate::testing::*;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Long enough to show who does not wait; too short shows nothing wrong.
const A_WHILE: Duration = Duration::from_millis(100);

/// The second of two that meet, committed by another thread while the first one is not installed: whether it comes to
/// its end meanwhile.
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
