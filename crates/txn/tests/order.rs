//! Ordered transactions: whatever the timing, the result is that of running them one after another
//! in the order of their numbers. Ten thousand schedules, each from a seed; `SYSTX_SEED=n` runs
//! one, `SYSTX_SCHEDULES=n` more.
//!
//! The programs write what they compute from what they read, so that a single read of a wrong
//! version shows in the end. They begin at any time, give up, lose, and try again; transactions
//! without a number get in their way and never commit; commits are put in place one cell at a time.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use systx_base::{Oid, OrderName, OrderStep, Orders, Time, TxnId};
use systx_txn::{
    Access, BeginOptions, Engine, Isolation, ObjectRef, Order, OrderError, Status, Turn,
};

#[allow(dead_code)]
mod history;
use history::Random;

/// What programs read and write: pages of one file, and names of one directory.
const CELLS: u64 = 5;

fn object<T>(cell: u64, with: impl FnOnce(ObjectRef<'_>) -> T) -> T {
    match cell {
        0 | 1 => with(ObjectRef::Entry { dir: Oid(1), name: &[cell as u8] }),
        _ => with(ObjectRef::Pages { oid: Oid(2), first: cell, last: cell }),
    }
}

fn group(name: &str) -> OrderName {
    OrderName { owner: 7, name: name.as_bytes().into() }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Read(u64),
    Write(u64),
}

/// A program's next value, from all that it read.
fn mixed(sum: u64, with: u64) -> u64 {
    (sum ^ with).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
}

type Cells = BTreeMap<u64, u64>;

/// One after another.
fn replay(programs: &[Vec<Op>]) -> Cells {
    let mut cells = Cells::new();
    for (number, program) in (1..).zip(programs) {
        let mut sum = number;
        for op in program {
            match op {
                Op::Read(cell) => sum = mixed(sum, cells.get(cell).copied().unwrap_or(0)),
                Op::Write(cell) => drop(cells.insert(*cell, mixed(sum, *cell))),
            }
        }
    }
    cells
}

#[derive(PartialEq, Debug)]
enum Stage {
    Absent,
    Running(usize),
    Decided,
    Installing,
    Over,
}

struct Party {
    number: Option<u64>,
    program: Vec<Op>,
    stage: Stage,
    id: TxnId,
    first: Option<u64>,
    age: u32,
    sum: u64,
    private: Cells,
    /// Attempts that it gives up of its own will.
    whims: u64,
}

struct Schedule {
    engine: Engine,
    numbers: Arc<Orders>,
    cells: Cells,
    parties: Vec<Party>,
    ids: u64,
    isolation: Isolation,
}

impl Schedule {
    fn step(&mut self, at: usize, random: &mut Random) {
        let party = &mut self.parties[at];
        let engine = &self.engine;
        if party.stage != Stage::Absent && engine.status(party.id) == Some(Status::Doomed) {
            let decided = matches!(party.stage, Stage::Decided | Stage::Installing);
            assert!(!decided, "decided, and lost");
            party.age += 1;
            return party.give_up(engine);
        }
        match party.stage {
            Stage::Absent => {
                self.ids += 1;
                party.id = TxnId(self.ids);
                let (timestamp, age, isolation) = (party.first, party.age, self.isolation);
                let priority = random.below(3) as i32;
                let options =
                    BeginOptions { timestamp, age, isolation, priority, ..Default::default() };
                party.first = Some(engine.begin(party.id, options).0);
                if let Some(number) = party.number {
                    let order = Order { group: group("g"), number };
                    let enlist = || engine.enlist(party.id, &order, &self.numbers);
                    enlist().unwrap();
                    assert_eq!(enlist(), Err(OrderError::NotFree));
                }
                party.sum = party.number.unwrap_or(99) + 1;
                party.private.clear();
                party.stage = Stage::Running(0);
            }
            Stage::Running(op) if op < party.program.len() => {
                let (cell, write) = match party.program[op] {
                    Op::Read(cell) => (cell, false),
                    Op::Write(cell) => (cell, true),
                };
                let answer = object(cell, |o| match write {
                    true => engine.write(party.id, o),
                    false => engine.read(party.id, o),
                });
                match answer {
                    Access::Granted if write => {
                        party.private.insert(cell, mixed(party.sum, cell));
                    }
                    Access::Granted => {
                        let own = party.private.get(&cell).or(self.cells.get(&cell));
                        party.sum = mixed(party.sum, own.copied().unwrap_or(0));
                    }
                    Access::Wait(_) => return,
                    Access::Doomed => {
                        party.age += 1;
                        return party.give_up(engine);
                    }
                }
                party.stage = Stage::Running(op + 1);
            }
            Stage::Running(_) if party.whims > 0 => {
                party.whims -= 1;
                party.give_up(engine);
            }
            Stage::Running(_) if party.number.is_none() => {
                engine.abort(party.id);
                party.stage = Stage::Over;
            }
            Stage::Running(_) => match engine.wait_turn(party.id, Duration::ZERO) {
                Turn::Now => {
                    engine.decide(party.id).unwrap();
                    party.stage = Stage::Decided;
                }
                Turn::After { number, by } => {
                    assert!(Some(number) < party.number);
                    let has = self.parties.iter().find(|p| p.number == Some(number)).unwrap();
                    assert_eq!(by, (has.stage != Stage::Absent).then_some(has.id));
                }
                Turn::Lost => unreachable!("it has not lost"),
            },
            // The record is not written after all, or it is durable.
            Stage::Decided if random.below(8) == 0 => party.give_up(engine),
            Stage::Decided => {
                let place = engine.place_in_order(party.id).unwrap();
                assert_eq!((Some(place.number), &place.group), (party.number, &group("g")));
                self.numbers.take(&place.step(), Time::default());
                party.stage = Stage::Installing;
            }
            Stage::Installing => match party.private.pop_first() {
                Some((cell, value)) => drop(self.cells.insert(cell, value)),
                None => {
                    engine.installed(party.id);
                    party.stage = Stage::Over;
                }
            },
            Stage::Over => {}
        }
    }
}

impl Party {
    fn give_up(&mut self, engine: &Engine) {
        engine.abort(self.id);
        self.stage = Stage::Absent;
    }
}

fn program(random: &mut Random) -> Vec<Op> {
    let op = |random: &mut Random| match (random.below(2), random.below(CELLS)) {
        (0, cell) => Op::Read(cell),
        (_, cell) => Op::Write(cell),
    };
    (0..random.below(6)).map(|_| op(random)).collect()
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let ordered = 2 + random.below(5);
    let noise = random.below(3);
    let programs: Vec<_> = (0..ordered).map(|_| program(&mut random)).collect();
    let noises: Vec<_> = (0..noise).map(|_| program(&mut random)).collect();
    let party = |number: Option<u64>, program: &Vec<Op>, random: &mut Random| Party {
        number,
        program: program.clone(),
        stage: Stage::Absent,
        id: TxnId(0),
        first: None,
        age: 0,
        sum: 0,
        private: Cells::new(),
        whims: random.below(6).saturating_sub(4),
    };
    let numbered = (0..).zip(&programs).map(|(n, p)| party(Some(n), p, &mut random));
    let mut parties: Vec<_> = numbered.collect();
    parties.extend(noises.iter().map(|p| party(None, p, &mut random)));
    let isolation = Isolation::Serializable;
    let (engine, cells) = (Engine::new(), Cells::new());
    let numbers = Arc::default();
    let mut s = Schedule { engine, numbers, cells, parties, ids: 0, isolation };
    let mut steps = 0;
    while s.parties.iter().any(|p| p.stage != Stage::Over) {
        let at = random.below(s.parties.len() as u64) as usize;
        s.step(at, &mut random);
        steps += 1;
        assert!(steps < 100_000, "SYSTX_SEED={seed}: no end, {:?}", s.engine.stats());
    }
    assert_eq!(s.cells, replay(&programs), "SYSTX_SEED={seed}: {programs:?}");
    let stats = s.engine.stats();
    assert_eq!((stats.transactions, stats.inodes), (0, 0), "SYSTX_SEED={seed}");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn any_schedule_of_an_order_ends_as_the_serial_one() {
    match number("SYSTX_SEED") {
        Some(seed) => run(seed),
        None => (0..number("SYSTX_SCHEDULES").unwrap_or(10_000)).for_each(run),
    }
}

/// An engine and the table of its store.
#[derive(Default)]
struct World {
    e: Engine,
    numbers: Arc<Orders>,
}

impl World {
    fn begun(&self, id: u64, name: &str, number: u64) -> Result<TxnId, OrderError> {
        let id = TxnId(id);
        self.e.begin(id, BeginOptions::default());
        let order = Order { group: group(name), number };
        let joined = self.e.enlist(id, &order, &self.numbers);
        joined.inspect_err(|_| self.e.abort(id)).map(|()| id)
    }

    /// What waits for the disk.
    fn durable(&self, id: TxnId) {
        self.e.decide(id).unwrap();
        let place = self.e.place_in_order(id).unwrap();
        self.numbers.take(&place.step(), Time::default());
    }

    fn commit(&self, id: TxnId) {
        self.durable(id);
        self.e.installed(id);
    }

    fn reset(&self, order: OrderName, next: u64) -> Result<(), OrderError> {
        let _seized = self.e.seize_order(TxnId(1000), &order, &self.numbers)?;
        self.numbers.take(&OrderStep { order, next }, Time::default());
        Ok(())
    }

    fn write(&self, id: TxnId, cell: u64) -> Access {
        object(cell, |o| self.e.write(id, o))
    }
}

#[test]
fn the_lower_number_of_an_order_wins_and_what_is_used_up_stays_so() {
    let w = World::default();
    let e = &w.e;
    let second = w.begun(1, "g", 1).unwrap();
    assert_eq!(w.begun(2, "g", 1), Err(OrderError::Taken(second)));
    assert_eq!(e.turn(second), Turn::After { number: 0, by: None });
    let first = w.begun(3, "g", 0).unwrap();
    assert_eq!(e.turn(second), Turn::After { number: 0, by: Some(first) });
    // The younger one, which comes last.
    assert_eq!(w.write(second, 0), Access::Granted);
    assert_eq!(w.write(first, 0), Access::Granted);
    assert_eq!(e.turn(second), Turn::Lost);
    e.abort(second);
    // An end without effect leaves the number.
    e.abort(first);
    let first = w.begun(4, "g", 0).unwrap();
    assert_eq!(w.reset(group("g"), 5), Err(OrderError::Taken(first)));
    w.commit(first);
    assert_eq!(w.begun(5, "g", 0), Err(OrderError::Over(1)));
    let other = w.begun(6, "another", 0).unwrap();
    assert_eq!(e.turn(other), Turn::Now);
    w.commit(other);
    assert_eq!(w.begun(7, "another", 0), Err(OrderError::Over(1)));
    // A reset goes in both directions.
    w.reset(group("g"), 0).unwrap();
    let first = w.begun(8, "g", 0).unwrap();
    e.abort(first);
    w.reset(group("g"), 12).unwrap();
    assert_eq!(w.begun(9, "g", 11), Err(OrderError::Over(12)));
    assert_eq!(w.begun(10, "g", 12).map(|t| e.turn(t)), Ok(Turn::Now));
}

#[test]
fn an_order_goes_on_where_the_table_of_the_store_is() {
    let w = World::default();
    let first = w.begun(1, "g", 0).unwrap();
    w.commit(first);
    // Another daemon, the same store.
    let w = World { e: Engine::new(), numbers: w.numbers };
    assert_eq!(w.begun(2, "g", 0), Err(OrderError::Over(1)));
    let second = w.begun(3, "g", 1).unwrap();
    assert_eq!(w.e.turn(second), Turn::Now);
}

#[test]
fn a_number_that_is_durable_is_used_up_also_if_it_is_not_in_place() {
    let w = World::default();
    let (first, second) = (w.begun(1, "g", 0).unwrap(), w.begun(2, "g", 1).unwrap());
    w.durable(first);
    // The next one comes when it is in its place, or will not be there in this process.
    assert_eq!(w.e.turn(second), Turn::After { number: 0, by: Some(first) });
    assert_eq!(w.begun(3, "g", 0), Err(OrderError::Over(1)));
    w.e.abort(first);
    assert_eq!(w.e.turn(second), Turn::Now);
    assert_eq!(w.begun(4, "g", 0), Err(OrderError::Over(1)));
}

#[test]
fn nobody_joins_an_order_while_it_is_reset() {
    let w = World::default();
    let seized = w.e.seize_order(TxnId(1000), &group("g"), &w.numbers).unwrap();
    assert_eq!(w.begun(1, "g", 0), Err(OrderError::Taken(TxnId(1000))));
    assert_eq!(w.reset(group("g"), 5), Err(OrderError::Taken(TxnId(1000))));
    assert!(w.begun(2, "another", 0).is_ok());
    drop(seized);
    assert!(w.begun(3, "g", 0).is_ok());
}

#[test]
fn members_of_an_order_contend_with_others_as_the_first_of_them() {
    let w = World::default();
    let e = &w.e;
    let between = |id| {
        e.begin(TxnId(id), BeginOptions::default());
        TxnId(id)
    };
    let (second, middle) = (w.begun(1, "g", 1).unwrap(), between(2));
    let first = w.begun(3, "g", 0).unwrap();
    // Without that, each of the three would beat the next one: second, middle, first.
    assert_eq!(w.write(middle, 1), Access::Granted);
    assert_eq!(w.write(second, 1), Access::Doomed);
    assert_eq!(w.write(first, 1), Access::Doomed);
    assert_eq!(e.status(middle), Some(Status::Active));
}

#[test]
fn who_waits_in_an_order_is_woken_by_the_end_before_it_and_by_its_own_loss() {
    let w = World::default();
    let e = &w.e;
    let (first, second) = (w.begun(1, "g", 0).unwrap(), w.begun(2, "g", 1).unwrap());
    let third = w.begun(3, "g", 2).unwrap();
    w.write(first, 0);
    w.write(third, 1);
    std::thread::scope(|s| {
        let limit = Duration::from_secs(600);
        let [a, b] = [second, third].map(|t| s.spawn(move || e.wait_turn(t, limit)));
        // Whether they sleep already or not.
        w.write(first, 1);
        assert_eq!(b.join().unwrap(), Turn::Lost);
        w.durable(first);
        assert_eq!(e.turn(second), Turn::After { number: 0, by: Some(first) });
        e.installed(first);
        assert_eq!(a.join().unwrap(), Turn::Now);
    });
}

#[test]
fn an_owner_of_orders_has_a_bounded_number_of_them() {
    let w = World::default();
    let name = |n: u64| OrderName { owner: 1, name: n.to_string().as_bytes().into() };
    let open = |id: u64| {
        w.e.begin(TxnId(id), BeginOptions::default());
        let order = Order { group: name(id), number: 0 };
        w.e.enlist(TxnId(id), &order, &w.numbers).inspect_err(|_| w.e.abort(TxnId(id)))
    };
    // Those that are open count, and once only.
    open(0).unwrap();
    open(2000).unwrap();
    w.commit(TxnId(0));
    let made = (1..).take_while(|n| w.reset(name(*n), 1).is_ok()).count();
    assert_eq!(made, 1022);
    assert_eq!(open(2001), Err(OrderError::Full));
    assert_eq!(w.reset(name(2001), 1), Err(OrderError::Full));
    // Others have their own, and what is at 0 and empty is forgotten.
    w.reset(group("g"), 1).unwrap();
    w.reset(name(5), 0).unwrap();
    open(2001).unwrap();
    assert_eq!(open(2002), Err(OrderError::Full));
    w.e.abort(TxnId(2000));
    open(2002).unwrap();
}
