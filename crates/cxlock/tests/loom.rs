//! Every interleaving, up to a bound of preemptions, of the protocol between transactions and the
//! lock: `RUSTFLAGS='--cfg loom' cargo test -p cxlock --release --test loom`.
#![cfg(loom)]

use cxlock::{CxCondvar, CxLock, CxSeqLock, ExclusiveFirst, Fair, Model, Policy, Settings, TxCell};
use loom::sync::Arc;
use loom::thread::spawn;

fn explore(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 100_000;
    model.check(f);
}

fn hardware(present: bool) -> Model {
    Model::new(Settings { present, ..Settings::default() })
}

type Pair = [TxCell<u64>; 2];

fn pair(present: bool, policy: &'static dyn Policy) -> Arc<CxLock<Pair, Model>> {
    Arc::new(CxLock::with([TxCell::new(0), TxCell::new(0)], hardware(present), policy))
}

/// A section whose assertion fails starts again: what it saw is looked at after its end.
fn optimistic(lock: &CxLock<Pair, Model>) {
    let (a, b) = lock.optimistic(|t, [a, b]| (a.update(t, |n| n + 1), b.update(t, |n| n + 1)));
    assert_eq!(a, b, "half of another section");
}

fn exclusive(lock: &CxLock<Pair, Model>) {
    let (a, b) = lock.exclusive(|t, [a, b]| (a.update(t, |n| n + 1), b.update(t, |n| n + 1)));
    assert_eq!(a, b, "half of another section");
}

fn both(
    lock: Arc<CxLock<Pair, Model>>,
    one: fn(&CxLock<Pair, Model>),
    two: fn(&CxLock<Pair, Model>),
) {
    let other = Arc::clone(&lock);
    let thread = spawn(move || one(&other));
    two(&lock);
    thread.join().expect("it ends");
    lock.exclusive(|t, [a, b]| assert_eq!((a.get(t), b.get(t)), (2, 2)));
    assert_eq!(lock.look().optimistic, 0);
}

#[test]
fn a_transaction_beside_an_exclusive_section() {
    explore(2, || both(pair(true, &ExclusiveFirst), exclusive, optimistic));
}

#[test]
fn a_transaction_beside_another_one() {
    explore(2, || both(pair(true, &Fair), optimistic, optimistic));
}

#[test]
fn an_exclusive_section_beside_another_one() {
    explore(3, || both(pair(false, &Fair), exclusive, exclusive));
}

/// Sleepers and heirs: nobody is forgotten.
#[test]
fn three_exclusive_sections() {
    explore(2, || {
        let lock = pair(false, &Fair);
        let threads = [(); 2].map(|()| {
            let lock = Arc::clone(&lock);
            spawn(move || exclusive(&lock))
        });
        exclusive(&lock);
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    });
}

/// Whoever only looks whether the lock is free is not the only one to be woken.
#[test]
fn a_sleeper_beside_one_that_polls() {
    explore(2, || {
        let lock = Arc::new(CxLock::with(TxCell::new(0u64), hardware(true), &ExclusiveFirst));
        let threads = [false, true].map(|exclusive| {
            let lock = Arc::clone(&lock);
            spawn(move || match exclusive {
                true => lock.exclusive(|_, _| ()),
                false => lock.optimistic(|_, _| ()),
            })
        });
        lock.exclusive(|_, _| ());
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    });
}

#[test]
fn no_notification_is_lost() {
    explore(2, || {
        let lock = Arc::new(CxLock::with(TxCell::new(false), hardware(false), &Fair));
        let changed = Arc::new(CxCondvar::new());
        let (other, condition) = (Arc::clone(&lock), Arc::clone(&changed));
        let thread = spawn(move || other.wait(&condition, |t, set| set.get(t).then_some(())));
        lock.optimistic(|t, set| {
            set.set(t, true);
            changed.notify_all(t);
        });
        thread.join().expect("it ends");
    });
}

#[test]
fn a_reader_of_a_sequence_beside_a_writer() {
    explore(3, || {
        let words = Arc::new(CxSeqLock::with([0u64, 0], hardware(false), &Fair));
        let other = Arc::clone(&words);
        let thread = spawn(move || other.exclusive(|[a, b]| [a + 1, b + 1]));
        let [a, b] = words.read();
        assert_eq!(a, b);
        thread.join().expect("it ends");
    });
}
