use super::*;
use crate::host_locks::LockRange;
use crate::testing::*;

fn of(s: &Scratch) -> Arc<OnDemand> {
    let io = s.io();
    let open = Arc::clone(&io);
    OnDemand::new(io, STATE.as_bytes(), move || {
        crate::open(config(), Arc::clone(&open)).map(|(store, _)| store)
    })
}

fn nothing(_: u64) -> bool {
    false
}

fn commit(s: &Scratch, store: &(dyn Store + 'static), txn: u64, path: &str) -> u64 {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.create(path, path);
    let set = ws.done();
    store.commit(store.reserve(&set).unwrap(), set, meta(txn)).unwrap().lsn
}

#[test]
fn where_nothing_was_committed_nothing_is_left() {
    let s = Scratch::new();
    let store = of(&s);
    assert!(store.finish_left(nothing).unwrap().is_none());
    assert!(store.existing().unwrap().is_none() && !s.path(STATE).exists());
    let lease = store.lease().unwrap();
    let (slot, second) = (lease.stage().unwrap(), lease.clone());
    assert!(s.path(STATE).exists());
    drop((slot, lease));
    assert!(s.path(STATE).exists(), "there is one more lease");
    drop(second);
    assert!(!s.path(STATE).exists());
}

#[test]
fn the_lock_goes_with_the_last_lease_and_what_the_other_left_is_read() {
    let s = Scratch::new();
    let (one, two) = (of(&s), of(&s));
    for (n, [mine, other]) in [[&one, &two], [&two, &one], [&one, &two]].into_iter().enumerate() {
        let txn = n as u64 + 1;
        let lease = mine.lease().unwrap();
        assert!(matches!(other.lease_within(Duration::ZERO, false), Err(OpenError::Locked { .. })));
        let lsn = commit(&s, &*lease, txn, &format!("f{txn}"));
        lease.apply(lsn).unwrap();
        lease.checkpoint().unwrap();
        drop(lease);
        assert!(other.finish_left(nothing).unwrap().is_none(), "nothing is left");
        let all = other.existing().unwrap().unwrap().history().unwrap();
        assert_eq!(all.len() as u64, txn);
    }
}

#[test]
fn what_is_not_at_rest_keeps_its_lock() {
    let s = Scratch::new();
    let (one, two) = (of(&s), of(&s));
    let lease = one.lease().unwrap();
    let lsn = commit(&s, &*lease, 1, "f");
    drop(lease);
    assert!(matches!(two.lease_within(Duration::ZERO, false), Err(OpenError::Locked { .. })));
    let lease = one.if_open().unwrap();
    lease.apply(lsn).unwrap();
    lease.checkpoint().unwrap();
    drop(lease);
    assert!(one.if_open().is_none() && two.lease_within(Duration::ZERO, false).is_ok());
}

#[test]
fn whatever_a_process_left_is_finished_by_a_look() {
    let s = Scratch::new();
    let looker = of(&s);
    for txn in 1..4 {
        // Killed after the commit point.
        let (store, _) = s.open();
        commit(&s, &store, txn, &format!("f{txn}"));
        drop(store);
        assert!(!s.path(&format!("f{txn}")).exists());
        let lease = looker.finish_left(nothing).unwrap();
        assert!(s.path(&format!("f{txn}")).exists() && lease.is_some());
        drop(lease);
        assert!(looker.if_open().is_none() && looker.finish_left(nothing).unwrap().is_none());
    }
    let known = looker.known_as();
    assert!(known.is_some());
    assert!(looker.finish_left(|store| Some(store) == known).unwrap().is_some(), "for a list");
}

#[test]
fn many_that_come_and_go_commit_all_that_they_have() {
    let s = Scratch::new();
    let daemons = [of(&s), of(&s)];
    std::thread::scope(|scope| {
        for n in 0..4_u64 {
            let (store, s) = (&daemons[(n % 2) as usize], &s);
            scope.spawn(move || {
                for round in 0..10 {
                    let lease = store.lease().unwrap();
                    let txn = n * 100 + round + 1;
                    let lsn = commit(s, &*lease, txn, &format!("f{txn}"));
                    lease.apply(lsn).unwrap();
                    lease.checkpoint().unwrap();
                }
            });
        }
    });
    assert_eq!(daemons[0].existing().unwrap().unwrap().history().unwrap().len(), 40);
}

#[test]
fn whoever_commits_without_a_pause_lets_those_in_that_wait() {
    let s = Scratch::new();
    let (busy, other) = (of(&s), of(&s));
    let first = busy.turn().unwrap();
    let lsn = commit(&s, &*first, 1, "f");
    first.apply(lsn).unwrap();
    first.checkpoint().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| other.lease().map(|_| ()));
        let mut held = Some(first);
        for round in 0.. {
            assert!(round < 200, "it does not come in");
            if waits.is_finished() {
                break;
            }
            // There is always one more before the last one ends, unless it is made to wait.
            let (got, gets) = std::sync::mpsc::channel();
            let next = scope.spawn({
                let busy = &busy;
                move || {
                    let lease = busy.turn().unwrap();
                    let _ = got.send(());
                    lease
                }
            });
            let _ = gets.recv_timeout(Duration::from_millis(20));
            drop(held.take());
            held = Some(next.join().unwrap());
        }
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn nobody_waits_for_one_that_has_no_end() {
    let s = Scratch::new();
    let (one, two) = (of(&s), of(&s));
    let endless = one.lasting().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| two.lease_within(Duration::from_millis(600), false).map(|_| ()));
        while !endless.is_asked_for() {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        drop(one.turn().unwrap());
        assert!(begun.elapsed() < DRAINED / 2);
        assert!(matches!(waits.join().unwrap(), Err(OpenError::Locked { .. })));
    });
    drop(endless);
    assert!(two.lease().is_ok());
}

#[test]
fn what_others_have_put_into_a_store_that_is_given_up_stays() {
    let s = Scratch::new();
    let store = of(&s);
    let lease = store.lease().unwrap();
    std::fs::write(s.path(STATE).join("mine"), "mine").unwrap();
    drop(lease);
    assert_eq!(std::fs::read(s.path(STATE).join("mine")).unwrap(), b"mine");
    assert!(store.lease().is_ok(), "it goes on");
}

#[test]
fn a_slot_outlives_its_opening_and_belongs_to_nobody_else() {
    let s = Scratch::new();
    let (one, two) = (of(&s), of(&s));
    let end = |lease: &Lease, lsn| {
        lease.apply(lsn).unwrap();
        lease.checkpoint().unwrap();
    };
    let slot = one.lease().unwrap().stage().unwrap();
    assert!(one.if_open().is_none() && s.path(STATE).exists(), "somebody has content there");
    slot.write_at(b"content", 0).unwrap();
    for txn in 1..3 {
        let lease = two.lease().unwrap();
        assert_ne!(lease.stage().unwrap().id(), slot.id());
        let lsn = commit(&s, &*lease, txn, &format!("f{txn}"));
        end(&lease, lsn);
    }
    let lease = one.lease().unwrap();
    lease.adopt(&*slot);
    let io = s.io();
    let mut ws = Ws::new(&*io);
    let file = ws.slot_file(slot.id());
    ws.bind("g", Some(file));
    let set = ws.done();
    let lsn = lease.commit(lease.reserve(&set).unwrap(), set, meta(9)).unwrap().lsn;
    end(&lease, lsn);
    drop(lease);
    // It is a file of the tree now, whoever still has the slot.
    let free = |path: &str| {
        let file = std::fs::File::open(s.path(path)).unwrap();
        let test = LockRange { start: 0, end: u64::MAX, exclusive: true };
        crate::host_locks_unsafe::test(std::os::fd::AsFd::as_fd(&file), test).unwrap().is_none()
    };
    assert!(free("g"));
    let again = one.lease().unwrap();
    again.adopt(&*slot);
    drop(slot);
    drop(again);
    drop(two.lease().unwrap());
    assert_eq!(std::fs::read(s.path("g")).unwrap(), b"content");
}

#[test]
fn of_content_that_is_not_committed_nothing_is_left() {
    let s = Scratch::new();
    let store = of(&s);
    let slot = store.lease().unwrap().stage().unwrap();
    drop(store.lease().unwrap());
    assert!(s.path(STATE).exists());
    drop(slot);
    store.tidy();
    assert!(!s.path(STATE).exists());
    // Of one that was used only the content goes.
    let lease = store.lease().unwrap();
    let lsn = commit(&s, &*lease, 1, "f");
    lease.apply(lsn).unwrap();
    lease.checkpoint().unwrap();
    let slot = lease.stage().unwrap();
    slot.write_at(b"content", 0).unwrap();
    drop(lease);
    drop(slot);
    store.tidy();
    assert_eq!(store.existing().unwrap().unwrap().history().unwrap().len(), 1);
    let kept = std::fs::read_dir(s.path(STATE).join("s")).unwrap().flatten();
    assert_eq!(kept.filter(|slot| slot.metadata().unwrap().len() > 0).count(), 0);
}
