//! The primitives of the hardware (Table 1) and what is built of them (Tables 2, 3, §5.3), one by
//! one, in programs made for them.

use systx_metatm::settings::{Kernel, Settings};
use systx_metatm::stats::{Spent, Stats};
use systx_metatm::tx::Cause;
use systx_metatm::workload::{Kind, Lock, Op, Site, ThreadSpec, Workload};
use systx_metatm::{Outcome, run};

use Op::{Enter, Exit, Io, Read, User, Work, Write};

/// Threads that each run some steps, over locks of which some are converted.  Site `n` is an
/// optimistic place of lock `n`, site `n + 10` an exclusive one.
fn workload(converted: &[bool], programs: Vec<Vec<Vec<Op>>>, tick: Vec<Op>) -> Workload {
    let lock = |(n, converted): (usize, &bool)| {
        let kind = if n == 9 { Kind::Raw } else { Kind::Spin };
        Lock { name: format!("lock {n}"), kind, converted: *converted }
    };
    let site = |n: usize| Site {
        name: format!("site {n}"),
        lock: (n % 10).min(converted.len() - 1),
        reads: false,
        exclusive: n >= 10,
        irq_off: false,
    };
    let thread = |program: Vec<Vec<Op>>| ThreadSpec {
        nice: 0,
        realtime: None,
        program: Box::new(program.into_iter()),
    };
    Workload {
        name: "test".to_owned(),
        locks: converted.iter().enumerate().map(lock).collect(),
        sites: (0..20).map(site).collect(),
        threads: programs.into_iter().map(thread).collect(),
        words: 4096,
        tick: [tick.clone(), tick],
    }
}

fn settings(kernel: Kernel, processors: usize) -> Settings {
    Settings { limit: 50_000_000, ..Settings::new(processors, kernel, 7) }
}

fn result(settings: &Settings, workload: Workload) -> Outcome {
    let outcome = run(settings, workload);
    assert_eq!(outcome.broken, [""; 0]);
    outcome
}

fn restarts(stats: &Stats, cause: Cause) -> u64 {
    stats.restarts[cause.index()]
}

#[test]
fn xpush_lets_a_handler_have_transactions_and_xpop_continues_the_one_below() {
    // Far longer than a tick.
    let long = vec![Enter(0), Write(0), Work(400_000), Read(0), Write(1), Exit];
    let tick = vec![Enter(1), Read(800), Write(800), Exit];
    let work = workload(&[true, true], vec![vec![long]], tick);
    let stats = result(&settings(Kernel::Subsystem, 1), work).stats;
    assert_eq!(stats.locks[0].transactions, 1);
    assert!(stats.locks[1].transactions >= 7, "{:?}", stats.locks);
    assert_eq!(stats.all_restarts(), 0, "the one below went on");
}

#[test]
fn a_handler_wins_over_the_transaction_that_it_has_suspended() {
    let long = vec![Enter(0), Read(800), Work(60_000), Exit];
    let tick = vec![Enter(1), Write(800), Exit];
    let work = workload(&[true, true], vec![vec![long]], tick);
    let settings = settings(Kernel::Subsystem, 1);
    let limited = Settings { limit: 2_000_000, ..settings };
    // Each tick writes what the section has read, and there is one in each attempt.
    let outcome = run(&limited, work);
    assert!(outcome.stats.restarts[Cause::Conflict.index()] > 10);
    assert!(outcome.broken[0].contains("1 threads have not ended"), "{:?}", outcome.broken);
}

#[test]
fn xtest_polls_without_losing_the_work_of_the_section_around_it() {
    let inner = |spin: u32| {
        let holder = vec![Enter(11), Work(30_000), Exit];
        let nested =
            vec![User(2_000), Enter(0), Write(100), Enter(1), Write(900), Exit, Exit, User(spin)];
        vec![vec![holder], vec![nested]]
    };
    let polls = result(&settings(Kernel::Cooperative, 2), workload(&[true; 2], inner(1), vec![]));
    assert_eq!(polls.stats.all_restarts(), 0);
    assert!(polls.stats.spent[Spent::Spin.index()] > 20_000, "{:?}", polls.stats.spent);
    // A spinlock in a transaction has been read: its release ends the transaction.
    let locks = workload(&[true, false], inner(1), vec![]);
    let locks = result(&settings(Kernel::Subsystem, 2), locks);
    assert_eq!(restarts(&locks.stats, Cause::Asymmetric), 1);
}

#[test]
fn a_spinlock_in_a_transaction_lets_one_in_at_a_time() {
    // Lock 0 is a transaction, lock 1 inside of it a spinlock; the data does not meet.
    let program = |n: u32| {
        let section = vec![Enter(0), Enter(1), Write(64 * n), Work(3_000), Exit, Exit];
        vec![section; 20]
    };
    let programs = || (0..4).map(program).collect::<Vec<_>>();
    let mixed =
        result(&settings(Kernel::Subsystem, 4), workload(&[true, false], programs(), vec![]));
    assert!(restarts(&mixed.stats, Cause::Conflict) > 0);
    assert_eq!(mixed.stats.commits, 80);
    let together =
        result(&settings(Kernel::Cooperative, 4), workload(&[true; 2], programs(), vec![]));
    assert_eq!(together.stats.all_restarts(), 0);
    assert!(2 * together.stats.end < mixed.stats.end);
}

#[test]
fn io_restarts_the_section_with_its_lock_and_each_nested_one_once() {
    let nested = vec![Enter(0), Write(1), Enter(1), Write(101), Io(500), Exit, Exit];
    let work = workload(&[false; 2], vec![vec![nested; 5]], vec![]);
    let stats = result(&settings(Kernel::Cooperative, 1), work).stats;
    // One for the outer section, then one for the inner one.
    assert_eq!(restarts(&stats, Cause::NeedExclusive), 10);
    assert_eq!((stats.io_depth, stats.commits), (15, 0));
    assert_eq!((stats.locks[0].acquired, stats.locks[1].acquired), (5, 5));
}

#[test]
fn an_exclusive_section_in_a_transaction_makes_the_outermost_one_exclusive() {
    let nested = vec![Enter(0), Write(1), Enter(11), Write(101), Exit, Exit];
    let work = workload(&[false; 2], vec![vec![nested; 5]], vec![]);
    let stats = result(&settings(Kernel::Cooperative, 1), work).stats;
    assert_eq!(restarts(&stats, Cause::NeedExclusive), 5);
    assert_eq!((stats.locks[0].acquired, stats.locks[1].acquired), (5, 5));
}

#[test]
fn too_many_lines_take_the_lock_in_one_kernel_and_time_in_the_other() {
    let large = |from: u32| {
        let touch = (0..400).map(move |n| Write((from + 8 * n) % 4096));
        std::iter::once(Enter(0)).chain(touch).chain([Exit]).collect::<Vec<_>>()
    };
    let work = || workload(&[true], vec![vec![large(0)]], vec![]);
    let cooperative = result(&settings(Kernel::Cooperative, 1), work()).stats;
    assert_eq!(restarts(&cooperative, Cause::Overflow), 1);
    assert_eq!((cooperative.locks[0].acquired, cooperative.commits), (1, 0));
    let subsystem = result(&settings(Kernel::Subsystem, 1), work()).stats;
    assert_eq!((subsystem.all_restarts(), subsystem.commits), (0, 1));
}

#[test]
fn the_deadlock_of_a_left_nested_section_and_an_exclusive_one_ends() {
    // One has been in lock 0 as a nested section, and wants lock 1; the other one has lock 1 and
    // wants lock 0 exclusively.
    let one =
        vec![Enter(2), Enter(0), Write(1), Exit, Work(5_000), Enter(1), Write(801), Exit, Exit];
    let other = vec![User(1_500), Enter(11), Work(2_000), Enter(10), Write(2), Exit, Exit];
    let work = workload(&[false; 3], vec![vec![one; 3], vec![other; 3]], vec![]);
    let stats = result(&settings(Kernel::Cooperative, 2), work).stats;
    assert!(stats.conflicts.refused > 0, "the lock was contended for: {:?}", stats.conflicts);
    assert!(restarts(&stats, Cause::Asymmetric) > 0, "and taken in the end");
}

#[test]
#[should_panic(expected = "I/O below lock 0")]
fn a_plain_transaction_with_io_is_no_workload() {
    let work = workload(&[true], vec![vec![vec![Enter(0), Io(1), Exit]]], vec![]);
    let _ = run(&settings(Kernel::Subsystem, 1), work);
}
