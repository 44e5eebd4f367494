//! Plain memory beside the cells: what is done in a section with the lock, or before a section, is
//! seen by the sections after it.  The sums tell little on a processor with strong orders; under
//! ThreadSanitizer (`scripts/tsan`) a lock word whose orders are too weak is a race here.
#![cfg(not(loom))]

use cxlock::{
    CxCondvar, CxLock, CxRwLock, ExclusiveFirst, Fair, Hardware, Model, Native, Settings, TxCell,
};
use std::cell::UnsafeCell;
use std::thread::{scope, yield_now};

const THREADS: u64 = 3;
const ROUNDS: u64 = if cfg!(miri) { 5 } else { 200 };

/// A number that nothing protects but what a test does.
#[derive(Default)]
struct Plain(UnsafeCell<u64>);

// SAFETY: each test but `a_race_that_is_planted`, which is not run, touches it in one thread after
// the other.
unsafe impl Sync for Plain {}

impl Plain {
    fn add(&self) {
        // SAFETY: as above.
        unsafe { *self.0.get() += 1 };
    }

    fn get(&self) -> u64 {
        // SAFETY: as above.
        unsafe { *self.0.get() }
    }
}

fn models() -> [Model; 2] {
    [true, false].map(|present| Model::new(Settings { present, ..Settings::default() }))
}

fn in_threads(work: impl Fn(u64) + Sync) {
    let work = &work;
    scope(|s| (0..THREADS).for_each(|thread| drop(s.spawn(move || work(thread)))));
}

fn sections_with_the_lock<H: Hardware>(hardware: H) {
    let (lock, plain) =
        (CxLock::with(TxCell::new(0u64), hardware, &ExclusiveFirst), Plain::default());
    in_threads(|thread| {
        for round in 0..ROUNDS {
            match (thread + round) % 2 {
                0 => lock.exclusive(|_, _| plain.add()),
                _ => lock.optimistic(|t, _| t.io(|| plain.add())),
            }
        }
    });
    assert_eq!(plain.get(), THREADS * ROUNDS);
}

#[test]
fn a_section_with_the_lock_sees_what_those_before_it_did() {
    models().into_iter().for_each(sections_with_the_lock);
    sections_with_the_lock(Native);
}

#[test]
fn readers_with_the_lock_see_what_writers_did_and_writers_come_after_readers() {
    for model in models() {
        let (lock, plain) = (CxRwLock::with(TxCell::new(0u64), model, &Fair), Plain::default());
        in_threads(|thread| {
            for round in 0..ROUNDS {
                if (thread + round) % 3 == 0 {
                    lock.exclusive(|t, n| {
                        plain.add();
                        n.set(t, plain.get());
                    });
                } else {
                    let (n, seen) = lock.read(|t, n| t.io(|| (n.get(t), plain.get())));
                    assert_eq!(n, seen);
                }
            }
        });
        assert_eq!(plain.get(), ROUNDS * THREADS / 3);
    }
}

/// Of sections that are transactions, too: one that says so has committed after what came before.
fn hand_over<H: Hardware>(hardware: H) {
    let (turn, plain) = (CxLock::with(TxCell::new(0u64), hardware, &Fair), Plain::default());
    in_threads(|thread| {
        for round in 0..ROUNDS {
            let mine = round * THREADS + thread;
            while turn.optimistic(|t, turn| turn.get(t)) != mine {
                yield_now();
            }
            plain.add();
            turn.optimistic(|t, turn| turn.set(t, mine + 1));
        }
    });
    assert_eq!(plain.get(), THREADS * ROUNDS);
}

#[test]
fn what_came_before_a_section_is_seen_after_one_that_saw_it() {
    models().into_iter().for_each(hand_over);
    hand_over(Native);
}

#[test]
fn who_was_notified_sees_what_came_before() {
    for model in models() {
        let (turn, plain) = (CxLock::with(TxCell::new(0u64), model, &Fair), Plain::default());
        let changed = CxCondvar::new();
        in_threads(|thread| {
            for round in 0..ROUNDS {
                let mine = round * THREADS + thread;
                turn.wait(&changed, |t, turn| (turn.get(t) == mine).then_some(()));
                plain.add();
                turn.optimistic(|t, turn| {
                    turn.set(t, mine + 1);
                    changed.notify_all(t);
                });
            }
        });
        assert_eq!(plain.get(), THREADS * ROUNDS);
    }
}

/// Nothing keeps these threads apart.
#[test]
#[ignore = "a race: shows that scripts/tsan would see one"]
fn a_race_that_is_planted() {
    let plain = Plain::default();
    in_threads(|_| plain.add());
    println!("{}", plain.get());
}
