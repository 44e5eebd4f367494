//! The transactions of this machine's processor.
#![cfg(not(loom))]

use cxlock::{Cause, CxLock, Hardware, Mode, Native, TxCell};
use std::hint::black_box;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::scope;

fn skipped() -> bool {
    let skipped = !Native.present();
    if skipped {
        println!("SKIPPED: this processor has no RTM");
    }
    skipped
}

/// Runs the section until it ends as a transaction: any one may meet an interrupt.
fn ends_as_a_transaction<R>(section: impl Fn() -> (Mode, R)) -> R {
    (0..10_000)
        .find_map(|_| Some(section()).filter(|(mode, _)| *mode == Mode::Optimistic))
        .expect("a transaction that commits")
        .1
}

#[test]
fn without_transactions_sections_take_the_lock() {
    if Native.present() {
        return; // the other tests look at this processor
    }
    let lock = CxLock::new(TxCell::new(0u64));
    assert!(!Native.active());
    assert_eq!(lock.optimistic(|t, n| (t.mode(), n.update(t, |n| n + 1))), (Mode::Exclusive, 1));
    assert_eq!(lock.stats().fallbacks, 1);
}

#[test]
fn a_section_commits_as_a_transaction() {
    if skipped() {
        return;
    }
    let lock = CxLock::new(TxCell::new(0u64));
    let active = ends_as_a_transaction(|| {
        lock.optimistic(|t, n| {
            n.update(t, |n| n + 1);
            (t.mode(), Native.active())
        })
    });
    assert!(active && !Native.active());
    let stats = lock.stats();
    assert_eq!(lock.into_inner().into_inner(), stats.acquisitions);
}

#[test]
fn io_restarts_with_the_lock_and_happens_once() {
    if skipped() {
        return;
    }
    let (lock, out) = (CxLock::new(TxCell::new(0u64)), &std::io::sink());
    for _ in 0..100 {
        lock.optimistic(|t, n| {
            n.update(t, |n| n + 1);
            t.io(|| (&mut { out }).write_all(b"x")).expect("a sink takes all");
        });
    }
    assert!(lock.stats().restarts(Cause::NeedExclusive) >= 1);
    assert_eq!(lock.into_inner().into_inner(), 100);
}

#[test]
fn too_much_for_the_cache_takes_the_lock() {
    if skipped() {
        return;
    }
    let lock = CxLock::new((0..1 << 18).map(|_| TxCell::new(0u64)).collect::<Vec<_>>());
    let mode = lock.optimistic(|t, cells| {
        cells.iter().for_each(|cell| cell.set(t, 1));
        t.mode()
    });
    assert_eq!(mode, Mode::Exclusive);
    assert!(lock.into_inner().into_iter().all(|cell| cell.into_inner() == 1));
}

#[test]
fn a_panic_is_undone_and_comes_to_the_caller() {
    if skipped() {
        return;
    }
    let lock = CxLock::new(TxCell::new(1u64));
    let half = || {
        lock.optimistic(|t, n| {
            n.set(t, 2);
            resume_unwind(Box::new(black_box(7u8)))
        })
    };
    let caught = catch_unwind(AssertUnwindSafe(half));
    assert_eq!(caught.expect_err("it panics").downcast_ref(), Some(&7u8));
    assert_eq!(lock.into_inner().into_inner(), 1);
}

#[test]
fn threads_lose_nothing_whatever_the_mix() {
    // Without RTM too: then it is a test of the lock.
    if !Native.present() {
        println!("this processor has no RTM: all sections take the lock");
    }
    let rounds: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let lock = CxLock::new([TxCell::new(0u64), TxCell::new(0)]);
    scope(|s| {
        for thread in 0..4 {
            let lock = &lock;
            s.spawn(move || {
                for i in 0..rounds {
                    if (i + thread) % 16 == 0 {
                        lock.exclusive(|t, [a, b]| b.set(t, a.update(t, |n| n + 1)));
                    } else {
                        let seen = lock.optimistic(|t, [a, b]| {
                            let seen = (a.get(t), b.get(t));
                            b.set(t, a.update(t, |n| n + 1));
                            seen
                        });
                        assert_eq!(seen.0, seen.1);
                    }
                }
            });
        }
    });
    let stats = lock.stats();
    assert_eq!(stats.acquisitions, 4 * rounds);
    assert_eq!(lock.into_inner().map(TxCell::into_inner), [4 * rounds; 2]);
}
