//! Aborts for tests: they strike where they say, look like lost conflicts, and spare a transaction
//! in the end.

use super::*;
use crate::Inject;

/// One attempt of a transaction that writes these pages: how many it could before it lost, or that
/// it committed.
fn attempt(e: &Engine, id: u64, age: u32, objects: u64, inject: Inject) -> Result<(), u64> {
    let id = TxnId(id);
    e.begin(id, BeginOptions { age, inject: Some(inject), ..BeginOptions::default() });
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    e.on_doom(id, move |_, _| tell.store(true, Ordering::Relaxed));
    for n in 0..objects {
        let page = pages(n * 3, n * 3);
        if e.write(id, page) == Access::Doomed {
            assert_eq!(
                lost(e, id),
                (page.to_object(), Opponent::Injected, Side::Write, Side::Write)
            );
            assert_eq!(e.decide(id), Err(e.conflict(id).unwrap()));
            assert!(told.load(Ordering::Relaxed));
            check(e);
            e.abort(id);
            return Err(n);
        }
        // What it has already is no new object.
        assert_eq!(e.read(id, page), Access::Granted);
    }
    match e.decide(id) {
        Ok(()) => e.installed(id),
        Err(why) => {
            assert_eq!((why.opponent, e.status(id)), (Opponent::Injected, Some(Status::Doomed)));
            assert!(told.load(Ordering::Relaxed));
            e.abort(id);
            return Err(objects);
        }
    }
    check(e);
    Ok(())
}

#[test]
fn once_is_at_the_end_of_the_first_attempt() {
    let e = Engine::new();
    assert_eq!(attempt(&e, 1, 0, 3, Inject::Once), Err(3));
    assert_eq!(attempt(&e, 2, 1, 3, Inject::Once), Ok(()));
    assert_eq!(attempt(&e, 3, 0, 0, Inject::Once), Ok(()), "it holds nothing");
    assert_eq!(e.stats().inodes, 0);
}

#[test]
fn each_is_at_one_object_after_the_other() {
    let e = Engine::new();
    for age in 0..5 {
        assert_eq!(attempt(&e, 1, age, 5, Inject::Each), Err(u64::from(age)));
    }
    assert_eq!(attempt(&e, 1, 5, 5, Inject::Each), Ok(()));
    assert_eq!(e.stats().inodes, 0);
}

#[test]
fn by_chance_everything_ends_and_a_seed_is_always_the_same() {
    let run = |seed| {
        let e = Engine::new();
        let tries = |n: u64| {
            let fails = |age: &u32| {
                attempt(&e, n * 100 + u64::from(*age), *age, 500, Inject::Random(seed)).is_err()
            };
            (0..70).take_while(fails).count()
        };
        let all: Vec<usize> = (0..20).map(tries).collect();
        assert!(all.iter().all(|n| *n < 60), "{all:?}");
        assert!(all.iter().any(|n| *n > 0), "{all:?}");
        all
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn who_only_looks_is_spared() {
    let e = Engine::new();
    let inject = Some(Inject::Each);
    e.begin(A, BeginOptions { read_only: true, inject, ..BeginOptions::default() });
    assert_eq!(e.read(A, pages(0, 9)), Access::Granted);
    assert_eq!(e.decide(A), Ok(()));
}

#[test]
fn what_is_asked_for_is_read_as_it_is_written() {
    for (text, means) in [("once", Inject::Once), ("each", Inject::Each), ("7", Inject::Random(7))]
    {
        assert_eq!(text.parse(), Ok(means));
    }
    for text in ["", "Once", "-1", "1.5", "18446744073709551616"] {
        assert_eq!(text.parse::<Inject>(), Err(crate::NoInject), "{text}");
    }
}
