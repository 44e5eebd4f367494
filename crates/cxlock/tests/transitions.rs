//! The table of what happens to a lock that is free, in transactions or exclusive, when a section
//! begins, ends or does I/O ([`cxlock::table`]): the lock does nothing else, and each cell occurs.
#![cfg(not(loom))]

use cxlock::table::{Event, State, TABLE, allows};
use cxlock::{
    Cause, Contest, CxLock, ExclusiveFirst, Look, Mode, Model, Policy, Settings, TxCell, Verdict,
};
use std::cell::RefCell;
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
    /// Touches nothing.
    Idle,
    /// At a call site of its own, which remembers: the number tells them apart.
    DoesIo(usize),
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
                // Before it is told: a section that is restarted now has had no order yet.
                touch();
                report.send(mode).expect("the test listens");
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
                Kind::Idle => lock.optimistic(|t, _| section(t.mode(), &|| (), &|| ())),
                Kind::DoesIo(site) => {
                    macro_rules! at_a_site_of_its_own {
                        () => {
                            lock.optimistic(|t, n| {
                                section(t.mode(), &|| n.set(t, 2), &|| t.io(|| ()));
                            })
                        };
                    }
                    match site {
                        0 => at_a_site_of_its_own!(),
                        1 => at_a_site_of_its_own!(),
                        2 => at_a_site_of_its_own!(),
                        _ => at_a_site_of_its_own!(),
                    }
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

fn state(lock: &Lock) -> State {
    match lock.look() {
        Look { exclusive: true, .. } => State::Exclusive,
        Look { optimistic: 0, .. } => State::Free,
        _ => State::Transactional,
    }
}

thread_local! {
    static DRIVEN: RefCell<Vec<(State, Event, State)>> = const { RefCell::new(Vec::new()) };
}

/// A lock whose state is followed.
struct Watch<'a>(&'a Lock, State);

impl<'a> Watch<'a> {
    fn new(lock: &'a Lock) -> Self {
        assert_eq!(state(lock), State::Free, "that is where it begins");
        Watch(lock, State::Free)
    }

    /// These have happened since the last look, and the lock is now as they say.
    fn saw(&mut self, steps: &[(Event, State)]) {
        for (event, to) in steps {
            let cell = (self.1, *event, *to);
            assert!(allows(cell.0, cell.1, cell.2), "{cell:?} is not in the table");
            DRIVEN.with_borrow_mut(|driven| driven.push(cell));
            self.1 = *to;
        }
        assert_eq!(state(self.0), self.1, "{steps:?}");
    }
}

#[test]
fn free_and_exclusive_begins_it_proceeds() {
    let lock = lock(&Patient);
    let mut watch = Watch::new(&lock);
    std::thread::scope(|s| {
        let one = Worker::exclusive(s, &lock);
        one.enters(Mode::Exclusive);
        watch.saw(&[(Event::Exclusive, State::Exclusive)]);
        // Its end, with nobody waiting.
        one.leaves();
        watch.saw(&[(Event::End, State::Free)]);
    });
}

#[test]
fn free_and_optimistic_begins_it_proceeds() {
    let lock = lock(&Patient);
    let mut watch = Watch::new(&lock);
    std::thread::scope(|s| {
        let one = Worker::optimistic(s, &lock);
        one.enters(Mode::Optimistic);
        watch.saw(&[(Event::Optimistic, State::Transactional)]);
        one.leaves();
        watch.saw(&[(Event::End, State::Free)]);
    });
}

#[test]
fn transactional_and_optimistic_begins_it_proceeds_beside() {
    let lock = lock(&Patient);
    let mut watch = Watch::new(&lock);
    std::thread::scope(|s| {
        let (one, two) = (Worker::optimistic(s, &lock), Worker::optimistic(s, &lock));
        one.enters(Mode::Optimistic);
        two.enters(Mode::Optimistic);
        assert_eq!(lock.look().optimistic, 2);
        one.leaves();
        watch.saw(&[
            (Event::Optimistic, State::Transactional),
            (Event::Optimistic, State::Transactional),
            (Event::End, State::Transactional),
        ]);
        two.leaves();
        watch.saw(&[(Event::End, State::Free)]);
    });
    assert_eq!(lock.stats().all_restarts(), 0);
}

#[test]
fn transactional_and_exclusive_begins_it_waits_if_the_policy_says_so() {
    let lock = lock(&Patient);
    let mut watch = Watch::new(&lock);
    std::thread::scope(|s| {
        let one = Worker::optimistic(s, &lock);
        one.enters(Mode::Optimistic);
        let (two, three) = (Worker::exclusive(s, &lock), Worker::exclusive(s, &lock));
        until(&lock, |look| look.waiting == 2);
        two.has_not_entered();
        three.has_not_entered();
        watch.saw(&[
            (Event::Optimistic, State::Transactional),
            (Event::Exclusive, State::Transactional),
            (Event::Exclusive, State::Transactional),
        ]);
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
    watch.saw(&[
        (Event::End, State::Free),
        (Event::Exclusive, State::Exclusive),
        (Event::End, State::Free),
        (Event::Exclusive, State::Exclusive),
        (Event::End, State::Free),
    ]);
}

#[test]
fn transactional_and_exclusive_begins_the_transactions_restart_if_the_policy_says_so() {
    let lock = lock(&ExclusiveFirst);
    let mut watch = Watch::new(&lock);
    std::thread::scope(|s| {
        let one = Worker::optimistic(s, &lock);
        one.enters(Mode::Optimistic);
        let two = Worker::exclusive(s, &lock);
        two.enters(Mode::Exclusive);
        watch.saw(&[
            (Event::Optimistic, State::Transactional),
            (Event::Exclusive, State::Exclusive),
        ]);
        // The one that lost finds out at its next step, and waits.
        one.does(Do::Leave);
        until(&lock, |look| look.polling == 1);
        one.has_not_entered();
        two.leaves();
        one.enters(Mode::Optimistic);
        watch.saw(&[
            (Event::Optimistic, State::Exclusive),
            (Event::End, State::Free),
            (Event::Optimistic, State::Transactional),
        ]);
        one.leaves();
    });
    assert_eq!(lock.stats().restarts(Cause::Conflict), 1);
}

#[test]
fn transactional_and_io_it_restarts_with_the_lock() {
    io_restarts(0);
}

fn io_restarts(site: usize) {
    let lock = lock(&Patient);
    let mut watch = Watch::new(&lock);
    std::thread::scope(|s| {
        let one = Worker::start(s, &lock, Kind::DoesIo(site));
        one.enters(Mode::Optimistic);
        one.does(Do::Io);
        one.enters(Mode::Exclusive);
        watch.saw(&[
            (Event::Optimistic, State::Transactional),
            (Event::Io, State::Free),
            (Event::Exclusive, State::Exclusive),
        ]);
        // I/O in an exclusive section is nothing special.
        one.does(Do::Io);
        one.leaves();
        watch.saw(&[(Event::Io, State::Exclusive), (Event::End, State::Free)]);
    });
    assert_eq!(lock.stats().restarts(Cause::NeedExclusive), 1);
    assert_eq!(lock.stats().fallbacks, 1);
}

#[test]
fn exclusive_and_another_begins_it_waits_whatever_it_is() {
    let lock = lock(&Patient);
    let mut watch = Watch::new(&lock);
    std::thread::scope(|s| {
        let one = Worker::exclusive(s, &lock);
        one.enters(Mode::Exclusive);
        let two = Worker::exclusive(s, &lock);
        until(&lock, |look| look.waiting == 1);
        let three = Worker::optimistic(s, &lock);
        until(&lock, |look| look.polling == 1);
        two.has_not_entered();
        three.has_not_entered();
        watch.saw(&[
            (Event::Exclusive, State::Exclusive),
            (Event::Exclusive, State::Exclusive),
            (Event::Optimistic, State::Exclusive),
        ]);
        one.leaves();
        // Which of the two comes first is open; the other one follows.
        two.does(Do::Leave);
        three.does(Do::Leave);
        two.enters(Mode::Exclusive);
        two.thread.join().expect("it ends well");
        three.thread.join().expect("it ends well");
    });
    watch.saw(&[
        (Event::End, State::Free),
        (Event::Exclusive, State::Exclusive),
        (Event::End, State::Free),
        (Event::Optimistic, State::Transactional),
        (Event::End, State::Free),
    ]);
}

#[test]
fn exclusive_ends_and_all_waiting_optimistic_ones_enter() {
    let lock = lock(&Patient);
    let mut watch = Watch::new(&lock);
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
        watch.saw(&[
            (Event::Exclusive, State::Exclusive),
            (Event::Optimistic, State::Exclusive),
            (Event::Optimistic, State::Exclusive),
            (Event::Optimistic, State::Exclusive),
            (Event::End, State::Free),
            (Event::Optimistic, State::Transactional),
            (Event::Optimistic, State::Transactional),
            (Event::Optimistic, State::Transactional),
        ]);
        others.into_iter().for_each(Worker::leaves);
    });
    watch.saw(&[
        (Event::End, State::Transactional),
        (Event::End, State::Transactional),
        (Event::End, State::Free),
    ]);
}

#[test]
fn transactional_and_io_beside_others_it_waits_for_them_with_its_restart() {
    io_beside_others(2);
}

fn io_beside_others(site: usize) {
    let lock = lock(&Patient);
    let mut watch = Watch::new(&lock);
    std::thread::scope(|s| {
        let one = Worker::start(s, &lock, Kind::DoesIo(site));
        one.enters(Mode::Optimistic);
        let other = Worker::start(s, &lock, Kind::Idle);
        other.enters(Mode::Optimistic);
        one.does(Do::Io);
        until(&lock, |look| look.waiting == 1);
        watch.saw(&[
            (Event::Optimistic, State::Transactional),
            (Event::Optimistic, State::Transactional),
            (Event::Io, State::Transactional),
            (Event::Exclusive, State::Transactional),
        ]);
        one.has_not_entered();
        other.leaves();
        one.enters(Mode::Exclusive);
        watch.saw(&[(Event::End, State::Free), (Event::Exclusive, State::Exclusive)]);
        one.leaves();
    });
    watch.saw(&[(Event::End, State::Free)]);
}

#[test]
fn these_tests_drive_every_cell() {
    for test in [
        free_and_exclusive_begins_it_proceeds,
        free_and_optimistic_begins_it_proceeds,
        transactional_and_optimistic_begins_it_proceeds_beside,
        transactional_and_exclusive_begins_it_waits_if_the_policy_says_so,
        transactional_and_exclusive_begins_the_transactions_restart_if_the_policy_says_so,
        || io_restarts(1),
        exclusive_and_another_begins_it_waits_whatever_it_is,
        exclusive_ends_and_all_waiting_optimistic_ones_enter,
        || io_beside_others(3),
    ] {
        test();
    }
    let missing: Vec<_> =
        DRIVEN.with_borrow(|driven| TABLE.iter().filter(|c| !driven.contains(c)).collect());
    assert_eq!(missing, [&(State::Free, Event::Io, State::Free); 0]);
}
