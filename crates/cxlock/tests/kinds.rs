//! Reader-writer locks, sequence locks and conditions on the same base.
#![cfg(not(loom))]

use cxlock::{CxCondvar, CxLock, CxRwLock, CxSeqLock, Fair, Mode, Model, Native, Settings, TxCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::scope;

const ROUNDS: u64 = if cfg!(miri) { 2 } else { 300 };

fn models() -> Vec<Model> {
    let [there, none, flaky] = [Settings::default(); 3];
    [there, Settings { present: false, ..none }, Settings { interrupts: 3000, ..flaky }]
        .map(Model::new)
        .into()
}

#[test]
fn readers_never_see_half_of_a_write() {
    for model in models() {
        let lock = CxRwLock::with([TxCell::new(0u64), TxCell::new(0)], model.clone(), &Fair);
        scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for i in 0..ROUNDS {
                        let write = |t: &cxlock::Tx<'_, '_, Model>| t.mode();
                        if i % 3 == 0 {
                            lock.exclusive(|t, [a, b]| {
                                b.set(t, a.update(t, |n| n + 1));
                                write(t)
                            });
                        } else {
                            lock.write(|t, [a, b]| {
                                b.set(t, a.update(t, |n| n + 1));
                                write(t)
                            });
                        }
                    }
                });
                s.spawn(|| {
                    for i in 0..ROUNDS {
                        let (a, b) = lock.read(|t, [a, b]| {
                            if i % 5 == 0 {
                                t.io(std::thread::yield_now);
                            }
                            (a.get(t), b.get(t))
                        });
                        assert_eq!(a, b);
                    }
                });
            }
        });
        assert_eq!(model.running(), 0);
        let [a, b] = lock.into_inner().map(TxCell::into_inner);
        assert_eq!((a, b), (2 * ROUNDS, 2 * ROUNDS));
    }
}

#[test]
fn readers_with_the_lock_are_in_it_together_and_keep_writers_out() {
    let none = Settings { present: false, ..Settings::default() };
    let lock = CxRwLock::with(TxCell::new(0u64), Model::new(none), &Fair);
    let (inside, entered) = channel();
    scope(|s| {
        let lock = &lock;
        let stay: Vec<_> = (0..2)
            .map(|_| {
                let (go, on) = channel::<()>();
                let inside = inside.clone();
                s.spawn(move || {
                    lock.read(|t, n| {
                        inside.send(t.mode()).expect("somebody listens");
                        let _ = on.recv();
                        assert_eq!(n.get(t), 0);
                    })
                });
                go
            })
            .collect();
        for _ in 0..2 {
            assert_eq!(entered.recv(), Ok(Mode::Shared));
        }
        let writer = s.spawn(|| lock.write(|t, n| n.set(t, 1)));
        while lock.stats().fallbacks < 3 {
            std::thread::yield_now();
        }
        assert!(!writer.is_finished());
        drop(stay);
    });
    assert_eq!(lock.into_inner().into_inner(), 1);
}

#[test]
fn a_reader_that_panics_leaves_the_lock() {
    for model in models() {
        let lock = CxRwLock::with(TxCell::new(0u64), model, &Fair);
        let read = || lock.read(|_, _| resume_unwind(Box::new(())));
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
        lock.write(|t, n| n.set(t, 1));
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
        assert_eq!(lock.into_inner().into_inner(), 1);
    }
}

#[test]
fn words_of_a_sequence_lock_belong_together() {
    for model in models() {
        let lock = CxSeqLock::with([0u64; 3], model, &Fair);
        let done = AtomicBool::new(false);
        scope(|s| {
            s.spawn(|| {
                for i in 0..ROUNDS {
                    let next = |[a, _, _]: [u64; 3]| [a + 1, (a + 1) * 2, (a + 1) * 3];
                    let words = if i % 2 == 0 { lock.write(next) } else { lock.exclusive(next) };
                    assert_eq!(words[0], i + 1);
                }
                done.store(true, Ordering::Release);
            });
            s.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Acquire) {
                    let [a, b, c] = lock.read();
                    assert_eq!((b, c), (2 * a, 3 * a));
                    assert!(a >= last, "time goes back");
                    last = a;
                }
            });
        });
        let half = || lock.exclusive(|_| resume_unwind(Box::new(())));
        assert!(catch_unwind(AssertUnwindSafe(half)).is_err());
        assert_eq!(lock.read()[0], ROUNDS);
    }
}

#[test]
fn sequence_and_reader_writer_locks_work_on_this_processor() {
    let (words, lock) = (CxSeqLock::new([1u32, 2]), CxRwLock::new(TxCell::new(1u8)));
    assert_eq!(words.write(|[a, b]| [a + 1, b + 1]), [2, 3]);
    assert_eq!(words.read(), [2, 3]);
    lock.write(|t, n| n.update(t, |n| n + 1));
    assert_eq!(lock.read(|t, n| n.get(t)), 2);
    assert_eq!(lock.stats().acquisitions, 2);
}

struct Queue {
    items: [TxCell<u64>; 2],
    from: TxCell<u64>,
    to: TxCell<u64>,
    /// Written by sections before they sleep.
    waited: TxCell<u64>,
}

/// A bounded queue between threads: nothing is lost, and nobody sleeps for ever.
fn passes_everything_on<H: cxlock::Hardware>(hardware: H) {
    let queue = Queue {
        items: [TxCell::new(0), TxCell::new(0)],
        from: TxCell::new(0),
        to: TxCell::new(0),
        waited: TxCell::new(0),
    };
    let (lock, changed) = (CxLock::with(queue, hardware, &Fair), CxCondvar::new());
    let put = |item: u64| {
        lock.wait(&changed, |t, q| {
            let to = q.to.get(t);
            if to - q.from.get(t) == 2 {
                q.waited.update(t, |n| n + 1);
                return None;
            }
            q.items[(to % 2) as usize].set(t, item);
            q.to.set(t, to + 1);
            changed.notify_all(t);
            Some(())
        });
    };
    let take = || {
        lock.wait(&changed, |t, q| {
            let from = q.from.get(t);
            if from == q.to.get(t) {
                q.waited.update(t, |n| n + 1);
                return None;
            }
            q.from.set(t, from + 1);
            changed.notify_all(t);
            Some(q.items[(from % 2) as usize].get(t))
        })
    };
    let mut got = BTreeSet::new();
    scope(|s| {
        for half in 0..2 {
            s.spawn(move || (0..ROUNDS).for_each(|i| put(2 * i + half)));
        }
        let takers = [(); 2].map(|()| s.spawn(|| (0..ROUNDS).map(|_| take()).collect::<Vec<_>>()));
        for taker in takers {
            got.extend(taker.join().expect("it ends"));
        }
    });
    assert_eq!(got, (0..2 * ROUNDS).collect());
}

#[test]
fn conditions_lose_nothing() {
    models().into_iter().for_each(passes_everything_on);
    passes_everything_on(Native);
}

#[test]
fn what_a_section_did_is_committed_before_it_sleeps() {
    for model in models() {
        let (lock, changed) = (CxLock::with(TxCell::new(0u64), model, &Fair), CxCondvar::new());
        scope(|s| {
            s.spawn(|| {
                lock.wait(&changed, |t, n| {
                    let now = n.get(t);
                    n.set(t, now.max(1));
                    (now == 2).then_some(())
                });
            });
            while lock.optimistic(|t, n| n.get(t)) == 0 {
                std::thread::yield_now();
            }
            lock.optimistic(|t, n| {
                n.set(t, 2);
                changed.notify_all(t);
            });
        });
    }
}
