//! What sections rely on: whole, isolated, undone if they panic, remembered if they do I/O.
#![cfg(not(loom))]

use cxlock::{Cause, CxLock, ExclusiveFirst, Fair, Mode, Model, Settings, TxCell};
use std::cell::Cell;
use std::io::{Read, Seek, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::channel;
use std::thread::scope;

fn model() -> Model {
    Model::new(Settings::default())
}

fn one(n: u64) -> CxLock<TxCell<u64>, Model> {
    CxLock::with(TxCell::new(n), model(), &Fair)
}

/// Without the noise of a panic that is expected.
fn fails<R>(f: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(f)).is_err());
}

#[test]
fn a_section_sees_its_own_writes_and_nobody_else_does_until_it_ends() {
    let lock = one(1);
    let (inside, entered) = channel();
    let (go, on) = channel();
    scope(|s| {
        let lock = &lock;
        s.spawn(move || {
            lock.optimistic(|t, n| {
                n.set(t, 7);
                assert_eq!(n.get(t), 7);
                n.set(t, 8);
                assert_eq!(n.get(t), 8);
                inside.send(()).expect("somebody listens");
                on.recv().expect("an order")
            })
        });
        entered.recv().expect("it is inside");
        assert_eq!(lock.stats().optimistic, 0);
        go.send(()).expect("it listens");
    });
    assert_eq!(lock.into_inner().into_inner(), 8);
}

#[test]
fn who_asks_for_a_line_takes_it_and_the_other_one_starts_again() {
    let lock = one(0);
    let (inside, entered) = channel();
    let (go, on) = channel::<()>();
    scope(|s| {
        let lock = &lock;
        s.spawn(move || {
            lock.optimistic(|t, n| {
                let before = n.get(t);
                inside.send(before).expect("somebody listens");
                let _ = on.recv();
                n.set(t, before + 10);
            })
        });
        assert_eq!(entered.recv(), Ok(0));
        lock.optimistic(|t, n| n.update(t, |n| n + 1));
        drop(go);
        assert_eq!(entered.recv(), Ok(1), "it has started again, with what is there now");
    });
    assert_eq!(lock.stats().restarts(Cause::Conflict), 1);
    assert_eq!(lock.into_inner().into_inner(), 11);
}

#[test]
fn what_does_not_fit_into_the_processor_takes_the_lock() {
    let small = Settings { writes: 4, ..Settings::default() };
    let cells: Vec<_> = (0..64).map(|_| TxCell::new(0u32)).collect();
    let lock = CxLock::with(cells, Model::new(small), &Fair);
    let mode = lock.optimistic(|t, cells| {
        cells.iter().for_each(|cell| cell.set(t, 1));
        t.mode()
    });
    assert_eq!(mode, Mode::Exclusive);
    assert!(lock.stats().restarts(Cause::Capacity) >= 1);
    assert!(lock.into_inner().into_iter().all(|cell| cell.into_inner() == 1));
}

#[test]
fn a_processor_that_aborts_everything_costs_a_few_attempts() {
    let broken = Settings { interrupts: u16::MAX, ..Settings::default() };
    let lock = CxLock::with(TxCell::new(0u64), Model::new(broken), &Fair);
    for _ in 0..1000 {
        lock.optimistic(|t, n| n.update(t, |n| n + 1));
    }
    let stats = lock.stats();
    assert!(stats.all_restarts() < 100, "{stats:?}");
    assert_eq!((stats.acquisitions, stats.fallbacks), (1000, 1000));
    assert_eq!(lock.into_inner().into_inner(), 1000);
}

#[test]
fn without_transactions_every_section_takes_the_lock() {
    let none = Settings { present: false, ..Settings::default() };
    let lock = CxLock::with(TxCell::new(0u64), Model::new(none), &Fair);
    assert_eq!(lock.optimistic(|t, _| t.mode()), Mode::Exclusive);
    assert_eq!(lock.stats().all_restarts(), 0);
}

#[test]
fn io_happens_once_and_its_site_takes_the_lock_at_once_for_a_while() {
    let mut file = tempfile();
    let lock = one(0);
    let attempts = Cell::new(0);
    for i in 0..100u64 {
        lock.optimistic(|t, n| {
            attempts.set(attempts.get() + 1);
            n.update(t, |n| n + 1);
            t.io(|| (&file).write_all(&[i as u8])).expect("room in a temporary file");
        });
    }
    let mut written = Vec::new();
    file.rewind().expect("a file can");
    file.read_to_end(&mut written).expect("it can be read");
    assert_eq!(written, (0..100).collect::<Vec<u8>>(), "each once, in order");
    let stats = lock.stats();
    assert_eq!(stats.fallbacks, 100);
    assert_eq!(attempts.get(), 100 + stats.restarts(Cause::NeedExclusive));
    assert!((2..20).contains(&stats.restarts(Cause::NeedExclusive)), "{stats:?}");
    assert_eq!(lock.into_inner().into_inner(), 100, "what was counted before the abort is undone");
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("cxlock.{}", std::process::id()));
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(path).expect("its name goes");
    file
}

#[test]
fn a_site_that_stops_doing_io_becomes_optimistic_again() {
    let lock = one(0);
    let section = |io: bool| {
        lock.optimistic(|t, _| {
            if io {
                t.io(|| ());
            }
            t.mode()
        })
    };
    (0..50).for_each(|_| assert_eq!(section(true), Mode::Exclusive));
    let until = (0..).find(|_| section(false) == Mode::Optimistic).expect("some time");
    assert!(until <= 256, "{until}");
    (0..100).for_each(|_| assert_eq!(section(false), Mode::Optimistic));
    // Rare I/O makes few others pay.
    section(true);
    let until = (0..).find(|_| section(false) == Mode::Optimistic).expect("some time");
    assert!(until <= 4, "{until}");
}

#[test]
fn a_panic_leaves_the_data_as_before_and_the_lock_free() {
    for exclusive in [false, true] {
        let lock = CxLock::with([TxCell::new(1u64), TxCell::new(2)], model(), &Fair);
        let section = |t: &cxlock::Tx<'_, '_, Model>, moves: &dyn Fn()| {
            moves();
            if t.mode() == Mode::Exclusive || !exclusive {
                resume_unwind(Box::new("half done"));
            }
        };
        fails(|| {
            if exclusive {
                lock.exclusive(|t, [a, b]| section(t, &|| a.set(t, b.get(t) + a.get(t))));
            } else {
                lock.optimistic(|t, [a, b]| section(t, &|| a.set(t, b.get(t) + a.get(t))));
            }
        });
        assert!(!lock.look().exclusive);
        assert_eq!(lock.optimistic(|t, [a, b]| (a.get(t), b.get(t))), (1, 2));
        if !exclusive {
            assert_eq!(lock.stats().restarts(Cause::Panicked), 1);
        }
    }
}

#[test]
fn a_panic_comes_to_the_caller_as_it_was() {
    let lock = one(1);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        lock.optimistic(|_, _| resume_unwind(Box::new(42u8)));
    }));
    assert_eq!(caught.expect_err("it panicked").downcast_ref(), Some(&42u8));
}

#[test]
fn nested_sections_are_one_and_fail_as_one() {
    let m = model();
    let a = CxLock::with(TxCell::new(5u64), m.clone(), &Fair);
    let b = CxLock::with(TxCell::new(0u64), m.clone(), &Fair);
    let moves = |fails: bool| {
        a.optimistic(|t, from| {
            from.update(t, |n| n - 1);
            b.optimistic_in(t, |t, to| to.update(t, |n| n + 1));
            if fails {
                resume_unwind(Box::new(()));
            }
            t.mode()
        })
    };
    assert_eq!(moves(false), Mode::Optimistic);
    assert_eq!(a.stats().nested, 1);
    fails(|| moves(true));
    assert!(!a.look().exclusive && !b.look().exclusive);
    assert_eq!(m.running(), 0);
    assert_eq!((a.into_inner().into_inner(), b.into_inner().into_inner()), (4, 1));
}

#[test]
fn the_inner_lock_is_held_until_the_outermost_section_ends() {
    let m = model();
    let a = CxLock::with(TxCell::new(0u64), m.clone(), &Fair);
    let b = CxLock::with(TxCell::new(0u64), m, &Fair);
    a.exclusive(|t, _| {
        b.optimistic_in(t, |t, n| n.set(t, 1));
        assert!(b.look().exclusive);
        b.exclusive_in(t, |t, n| n.set(t, 2));
        a.optimistic_in(t, |t, n| n.set(t, 3));
    });
    assert!(!a.look().exclusive && !b.look().exclusive);
}

#[test]
fn a_transaction_that_enters_a_held_lock_waits_with_nothing_done() {
    let m = model();
    let a = CxLock::with(TxCell::new(0u64), m.clone(), &Fair);
    let b = CxLock::with(TxCell::new(0u64), m, &Fair);
    let (inside, entered) = channel();
    let (go, on) = channel::<()>();
    scope(|s| {
        let (a, b) = (&a, &b);
        let on = s.spawn(move || {
            b.exclusive(|_, _| {
                inside.send(()).expect("somebody listens");
                on.recv()
            })
        });
        entered.recv().expect("it is inside");
        s.spawn(move || {
            a.optimistic(|t, n| {
                n.update(t, |n| n + 1);
                b.optimistic_in(t, |t, m| m.set(t, n.get(t)));
            })
        });
        while a.stats().restarts(Cause::Locked) == 0 {
            std::thread::yield_now();
        }
        go.send(()).expect("it listens");
        on.join().expect("it ends").expect("it was told");
    });
    assert_eq!((a.into_inner().into_inner(), b.into_inner().into_inner()), (1, 1));
}

#[test]
fn sections_that_hide_their_nesting_get_their_locks() {
    let m = model();
    let a = CxLock::with(TxCell::new(0u64), m.clone(), &ExclusiveFirst);
    let b = CxLock::with(TxCell::new(0u64), m, &ExclusiveFirst);
    let outer = |exclusive: bool| {
        a.optimistic(|t, n| {
            n.update(t, |n| n + 1);
            if exclusive {
                b.exclusive(|t, n| n.update(t, |n| n + 1));
            } else {
                b.optimistic(|t, n| n.update(t, |n| n + 1));
            }
            t.mode()
        })
    };
    assert_eq!(outer(false), Mode::Exclusive);
    assert_eq!(a.stats().restarts(Cause::Nested), 1);
    // The site remembers for some sections, then it tries again.
    while a.stats().restarts(Cause::NeedExclusive) == 0 {
        assert_eq!(outer(true), Mode::Exclusive);
    }
    let n = a.stats().acquisitions;
    assert_eq!((a.into_inner().into_inner(), b.into_inner().into_inner()), (n, n));
}

#[test]
fn a_thread_that_would_wait_for_itself_is_told() {
    for inner_exclusive in [false, true] {
        let lock = one(3);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            lock.exclusive(|t, n| {
                n.set(t, 4);
                if inner_exclusive {
                    lock.exclusive(|_, _| ());
                } else {
                    lock.optimistic(|_, _| ());
                }
            });
        }));
        let said = caught.expect_err("it panics");
        let said = said.downcast_ref::<&str>().expect("words");
        assert!(said.contains("optimistic_in"), "{said}");
        assert!(!lock.look().exclusive);
        assert_eq!(lock.into_inner().into_inner(), 3);
    }
}

/// Runs something when it is dropped.
struct Last<F: FnMut()>(F);

impl<F: FnMut()> Drop for Last<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn sections_of_destructors_count_while_a_panic_unwinds() {
    let m = model();
    let lock = CxLock::with(TxCell::new(0u64), m.clone(), &Fair);
    let interrupted = Cell::new(0);
    fails(|| {
        let _last = Last(|| {
            lock.optimistic(|t, n| {
                n.update(t, |n| n + 1);
                if interrupted.replace(1) == 0 {
                    m.interrupt();
                }
            })
        });
        resume_unwind(Box::new(()));
    });
    assert_eq!(lock.stats().restarts(Cause::Other), 1);
    assert_eq!(lock.into_inner().into_inner(), 1, "the attempt that lost was made again");
}

#[test]
fn destructors_of_a_section_that_is_left_may_look_at_cells() {
    let m = model();
    let lock = CxLock::with(TxCell::new(0u64), m.clone(), &Fair);
    let (attempts, looks) = (Cell::new(0), Cell::new(0));
    lock.optimistic(|t, n| {
        let _last = Last(|| {
            n.get(t);
            looks.set(looks.get() + 1);
        });
        if attempts.replace(1) == 0 {
            m.interrupt();
        }
        n.update(t, |n| n + 1);
    });
    assert_eq!(looks.get(), 2);
    assert_eq!(lock.into_inner().into_inner(), 1);
}

#[test]
fn a_section_that_holds_an_abort_back_does_not_commit() {
    let m = model();
    let lock = CxLock::with([TxCell::new(0u64), TxCell::new(0)], m.clone(), &Fair);
    let attempts = Cell::new(0);
    lock.optimistic(|t, [a, b]| {
        a.update(t, |n| n + 1);
        if attempts.replace(attempts.get() + 1) == 0 {
            m.interrupt();
            assert!(m.is_doomed());
            let _ = catch_unwind(AssertUnwindSafe(|| b.update(t, |n| n + 1)));
        } else {
            b.update(t, |n| n + 1);
        }
    });
    assert_eq!(attempts.get(), 2);
    assert_eq!(lock.into_inner().map(TxCell::into_inner), [1, 1]);
}
