//! Random sections of random threads on a model that aborts at random: the outcome is that of the
//! same sections one after the other, and no section ever sees anything else.
#![cfg(not(loom))]

use cxlock::{
    CxLock, ExclusiveFirst, Fair, Mode, Model, OptimisticFirst, Policy, Settings, TxCell,
};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::scope;

const CELLS: usize = 8;
/// The sum of the cells of both locks.
const ALL: u64 = CELLS as u64 * 10;
const CASES: u32 = if cfg!(miri) { 2 } else { 48 };

/// Moves an amount from one cell to another one, in some way.
#[derive(Clone, Debug)]
struct Move {
    from: usize,
    to: usize,
    amount: u64,
    how: How,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Optimistic,
    Exclusive,
    WithIo,
    Panics,
    /// To the second lock, as one section.
    Nested,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let how = prop_oneof![
        6 => Just(How::Optimistic),
        2 => Just(How::Exclusive),
        1 => Just(How::WithIo),
        1 => Just(How::Panics),
        2 => Just(How::Nested),
    ];
    let one = (0..CELLS, 0..CELLS, 0..5u64, how).prop_map(|(from, to, amount, how)| Move {
        from,
        to,
        amount,
        how,
    });
    prop::collection::vec(one, 1..if cfg!(miri) { 6 } else { 40 })
}

fn settings() -> impl Strategy<Value = Settings> {
    (prop_oneof![Just(8usize), Just(64)], 2..12usize, 0..8000u16, any::<u64>(), any::<bool>())
        .prop_map(|(line, room, interrupts, seed, scarce)| Settings {
            line,
            reads: if scarce { 2 * room } else { 4096 },
            writes: if scarce { room } else { 448 },
            interrupts,
            seed,
            present: true,
        })
}

type Cells = [TxCell<u64>; CELLS];
type Lock = CxLock<Cells, Model>;

fn sum(t: &cxlock::Tx<'_, '_, Model>, cells: &Cells) -> u64 {
    cells.iter().map(|cell| cell.get(t)).sum()
}

/// What a section saw is looked at after its end: one that panics starts again with the lock.
fn one_move(first: &Lock, second: &Lock, m: &Move) {
    let change = |t: &cxlock::Tx<'_, '_, Model>, cells: &Cells| {
        (m.amount.min(cells[m.from].get(t)), sum(t, cells))
    };
    let (before, after) = match m.how {
        How::Optimistic | How::WithIo | How::Panics => first.optimistic(|t, cells| {
            let (amount, before) = change(t, cells);
            cells[m.from].update(t, |n| n - amount);
            cells[m.to].update(t, |n| n + amount);
            match m.how {
                How::WithIo => t.io(|| assert_ne!(t.mode(), Mode::Optimistic)),
                How::Panics => resume_unwind(Box::new(())),
                _ => {}
            }
            (before, sum(t, cells))
        }),
        How::Exclusive => first.exclusive(|t, cells| {
            let (amount, before) = change(t, cells);
            cells[m.from].update(t, |n| n - amount);
            cells[m.to].update(t, |n| n + amount);
            (before, sum(t, cells))
        }),
        How::Nested => first.optimistic(|t, cells| {
            let (amount, mine) = change(t, cells);
            let before = second.optimistic_in(t, |t, others| {
                let before = mine + sum(t, others);
                cells[m.from].update(t, |n| n - amount);
                others[m.to].update(t, |n| n + amount);
                before
            });
            (before, ALL)
        }),
    };
    assert_eq!(before, after, "half of another section");
    assert!(!matches!(m.how, How::Nested) || before == ALL, "the two locks are seen together");
}

fn run(settings: Settings, policy: &'static dyn Policy, threads: &[Vec<Move>]) {
    let model = Model::new(settings);
    let cells = |n| std::array::from_fn(|_| TxCell::new(n));
    let first: Lock = CxLock::with(cells(10), model.clone(), policy);
    let second: Lock = CxLock::with(cells(0), model.clone(), policy);
    scope(|s| {
        let (first, second) = (&first, &second);
        for moves in threads {
            s.spawn(move || {
                for m in moves {
                    let done = catch_unwind(AssertUnwindSafe(|| one_move(first, second, m)));
                    let panics = matches!(m.how, How::Panics);
                    assert_eq!(done.is_err(), panics, "{m:?}");
                }
            });
        }
    });
    let stats = first.stats();
    let sections = threads.iter().map(Vec::len).sum::<usize>() as u64;
    let failed = threads.iter().flatten().filter(|m| matches!(m.how, How::Panics)).count() as u64;
    assert_eq!(stats.acquisitions, sections, "{stats:?}");
    assert!(stats.fallbacks >= failed, "{stats:?}");
    assert_eq!((first.look().optimistic, first.look().waiting, model.running()), (0, 0, 0));
    let rest = |lock: Lock| lock.into_inner().map(TxCell::into_inner).iter().sum::<u64>();
    assert_eq!(rest(first) + rest(second), ALL);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sections_are_as_if_one_after_the_other(
        settings in settings(),
        policy in 0..3usize,
        threads in prop::collection::vec(moves(), 1..4),
    ) {
        let policies: [&'static dyn Policy; 3] = [&Fair, &ExclusiveFirst, &OptimisticFirst];
        run(settings, policies[policy], &threads);
    }
}
