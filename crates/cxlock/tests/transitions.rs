//! The table of what happens to a lock that is free, in transactions or exclusive, when a section
//! begins, ends or does I/O.
#![cfg(not(loom))]

use cxlock::{
    Cause, Contest, CxLock, ExclusiveFirst, Look, Mode, Model, Policy, Settings, TxCell, Verdict,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle, yield_now};

type Lock = CxLock<TxCell<u64>, Model>;

/// An exclusive section waits for as long as transactions are inside.
#[derive(Debug)]
struct Patient;

impl Policy for Patient {
    fn exclusive(&self, contest: &Contest) -> Verdict {
        if contest.inside > 0 { Verdict::Wait } else { Verdict::Proceed }
    }
    fn optimistic(&self, _: &Contest) -> Verdict {
        Verdict::Proceed
    }
}

enum Do {
    Io,
    Leave,
}

#[derive(Clone, Copy)]
enum Kind {
    Exclusive,
    Optimistic,
    /// At a call site of its own, which remembers.
    DoesIo,
}

/// A thread in a section, which does what it is told.
struct Worker<'s> {
    orders: Sender<Do>,
    entered: Receiver<Mode>,
    thread: ScopedJoinHandle<'s, ()>,
}

impl<'s> Worker<'s> {
    fn start<'e>(scope: &'s Scope<'s, 'e>, lock: &'e Lock, kind: Kind) -> Self {
        let (orders, told) = channel();
        let (report, entered) = channel();
        let thread = scope.spawn(move || {
            let section = |mode, touch: &dyn Fn(), io: &dyn Fn()| {
                report.send(mode).expect("the test listens");
                touch();
                loop {
                    match told.recv().expect("an order") {
                        Do::Io => io(),
                        Do::Leave => return,
                    }
                }
            };
            match kind {
                Kind::Exclusive => {
                    lock.exclusive(|t, n| section(t.mode(), &|| n.set(t, 1), &|| t.io(|| ())));
                }
                Kind::Optimistic => {
                    lock.optimistic(|t, n| section(t.mode(), &|| assert!(n.get(t) < 2), &|| ()));
                }
                Kind::DoesIo => {
                    lock.optimistic(|t, n| section(t.mode(), &|| n.set(t, 2), &|| t.io(|| ())));
                }
            }
        });
        Self { orders, entered, thread }
    }

    fn optimistic<'e>(scope: &'s Scope<'s, 'e>, lock: &'e Lock) -> Self {
        Self::start(scope, lock, Kind::Optimistic)
    }

    fn exclusive<'e>(scope: &'s Scope<'s, 'e>, lock: &'e Lock) -> Self {
        Self::start(scope, lock, Kind::Exclusive)
    }

    fn enters(&self, mode: Mode) {
        assert_eq!(self.entered.recv().expect("it enters"), mode);
    }

    fn does(&self, what: Do) {
        self.orders.send(what).expect("it listens");
    }

    fn leaves(self) {
        self.does(Do::Leave);
        self.thread.join().expect("it ends well");
    }

    fn has_not_entered(&self) {
        assert!(self.entered.try_recv().is_err(), "it is inside");
    }
}

fn lock(policy: &'static dyn Policy) -> Lock {
    CxLock::with(TxCell::new(0), Model::new(Settings::default()), policy)
}

fn until(lock: &Lock, holds: impl Fn(Look) -> bool) {
    while !holds(lock.look()) {
        yield_now();
    }
}

#[derive(Debug, PartialEq)]
enum State {
    Free,
    Transactional,
    Exclusive,
}

fn state(lock: &Lock) -> State {
    match lock.look() {
        Look { exclusive: true, .. } => State::Exclusive,
        Look { optimistic: 0, .. } => State::Free,
        _ => State::Transactional,
    }
}

#[test]
fn free_and_exclusive_begins_it_proceeds() {
    let lock = lock(&Patient);
    assert_eq!(state(&lock), State::Free);
    std::thread::scope(|s| {
        let one = Worker::exclusive(s, &lock);
        one.enters(Mode::Exclusive);
        assert_eq!(state(&lock), State::Exclusive);
        // Its end, with nobody waiting.
        one.leaves();
        assert_eq!(state(&lock), State::Free);
    });
}

#[test]
fn free_and_optimistic_begins_it_proceeds() {
    let lock = lock(&Patient);
    std::thread::scope(|s| {
        let one = Worker::optimistic(s, &lock);
        one.enters(Mode::Optimistic);
        assert_eq!(state(&lock), State::Transactional);
        one.leaves();
        assert_eq!(state(&lock), State::Free);
    });
}

#[test]
fn transactional_and_optimistic_begins_it_proceeds_beside() {
    let lock = lock(&Patient);
    std::thread::scope(|s| {
        let (one, two) = (Worker::optimistic(s, &lock), Worker::optimistic(s, &lock));
        one.enters(Mode::Optimistic);
        two.enters(Mode::Optimistic);
        assert_eq!(lock.look().optimistic, 2);
        one.leaves();
        assert_eq!(state(&lock), State::Transactional);
        two.leaves();
        assert_eq!(state(&lock), State::Free);
    });
    assert_eq!(lock.stats().all_restarts(), 0);
}

#[test]
fn transactional_and_exclusive_begins_it_waits_if_the_policy_says_so() {
    let lock = lock(&Patient);
    std::thread::scope(|s| {
        let one = Worker::optimistic(s, &lock);
        one.enters(Mode::Optimistic);
        let (two, three) = (Worker::exclusive(s, &lock), Worker::exclusive(s, &lock));
        until(&lock, |look| look.waiting == 2);
        two.has_not_entered();
        three.has_not_entered();
        assert_eq!(state(&lock), State::Transactional);
        // The end of the transaction releases one of those that wait.
        one.leaves();
        until(&lock, |look| look.exclusive);
        let first = loop {
            if let Ok(mode) = two.entered.try_recv() {
                assert_eq!(mode, Mode::Exclusive);
                break true;
            }
            if let Ok(mode) = three.entered.try_recv() {
                assert_eq!(mode, Mode::Exclusive);
                break false;
            }
            yield_now();
        };
        let (now, then) = if first { (two, three) } else { (three, two) };
        then.has_not_entered();
        now.leaves();
        then.enters(Mode::Exclusive);
        then.leaves();
    });
    assert_eq!(lock.stats().all_restarts(), 0);
    assert_eq!(state(&lock), State::Free);
}

#[test]
fn transactional_and_exclusive_begins_the_transactions_restart_if_the_policy_says_so() {
    let lock = lock(&ExclusiveFirst);
    std::thread::scope(|s| {
        let one = Worker::optimistic(s, &lock);
        one.enters(Mode::Optimistic);
        let two = Worker::exclusive(s, &lock);
        two.enters(Mode::Exclusive);
        assert_eq!(state(&lock), State::Exclusive);
        // The one that lost finds out at its next step, and waits.
        one.does(Do::Leave);
        until(&lock, |look| look.polling == 1);
        one.has_not_entered();
        two.leaves();
        one.enters(Mode::Optimistic);
        assert_eq!(state(&lock), State::Transactional);
        one.leaves();
    });
    assert_eq!(lock.stats().restarts(Cause::Conflict), 1);
}

#[test]
fn transactional_and_io_it_restarts_with_the_lock() {
    let lock = lock(&Patient);
    std::thread::scope(|s| {
        let one = Worker::start(s, &lock, Kind::DoesIo);
        one.enters(Mode::Optimistic);
        one.does(Do::Io);
        one.enters(Mode::Exclusive);
        assert_eq!(state(&lock), State::Exclusive);
        // I/O in an exclusive section is nothing special.
        one.does(Do::Io);
        one.leaves();
        assert_eq!(state(&lock), State::Free);
    });
    assert_eq!(lock.stats().restarts(Cause::NeedExclusive), 1);
    assert_eq!(lock.stats().fallbacks, 1);
}

#[test]
fn exclusive_and_another_begins_it_waits_whatever_it_is() {
    let lock = lock(&Patient);
    std::thread::scope(|s| {
        let one = Worker::exclusive(s, &lock);
        one.enters(Mode::Exclusive);
        let two = Worker::exclusive(s, &lock);
        until(&lock, |look| look.waiting == 1);
        let three = Worker::optimistic(s, &lock);
        until(&lock, |look| look.polling == 1);
        two.has_not_entered();
        three.has_not_entered();
        assert_eq!(state(&lock), State::Exclusive);
        one.leaves();
        // Which of the two comes first is open; the other one follows.
        two.does(Do::Leave);
        three.does(Do::Leave);
        two.enters(Mode::Exclusive);
        two.thread.join().expect("it ends well");
        three.thread.join().expect("it ends well");
    });
    assert_eq!(state(&lock), State::Free);
}

#[test]
fn exclusive_ends_and_all_waiting_optimistic_ones_enter() {
    let lock = lock(&Patient);
    std::thread::scope(|s| {
        let one = Worker::exclusive(s, &lock);
        one.enters(Mode::Exclusive);
        let others = [(); 3].map(|()| Worker::optimistic(s, &lock));
        until(&lock, |look| look.polling == 3);
        one.leaves();
        for other in &others {
            other.enters(Mode::Optimistic);
        }
        assert_eq!(lock.look().optimistic, 3);
        others.into_iter().for_each(Worker::leaves);
    });
    assert_eq!(state(&lock), State::Free);
}
