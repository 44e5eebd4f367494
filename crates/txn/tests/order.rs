//! Ordered transactions: whatever the timing, the result is that of running them one after another
//! in the order of their numbers. Ten thousand schedules, each from a seed; `SYSTX_SEED=n` runs
//! one, `SYSTX_SCHEDULES=n` more.
//!
//! The programs write what they compute from what they read, so that a single read of a wrong
//! version shows in the end. They begin at any time, give up, lose, and try again; transactions
//! without a number get in their way and never commit; commits are put in place one cell at a time.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;
use systx_base::{Oid, TxnId};
use systx_txn::{
    Access, BeginOptions, Engine, GroupName, Isolation, ObjectRef, Order, OrderError, Status, Turn,
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

fn group(name: &str) -> GroupName {
    GroupName { owner: 7, name: name.as_bytes().into() }
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
            assert!(party.stage != Stage::Installing, "decided, and lost");
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
                    engine.enlist(party.id, &order).unwrap();
                    assert_eq!(engine.enlist(party.id, &order), Err(OrderError::NotFree));
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
                Turn::Now if party.private.is_empty() => {
                    engine.pass(party.id);
                    party.stage = Stage::Over;
                }
                Turn::Now => {
                    engine.decide(party.id).unwrap();
                    party.stage = Stage::Installing;
                }
                Turn::After { number, by } => {
                    assert!(Some(number) < party.number);
                    let has = self.parties.iter().find(|p| p.number == Some(number)).unwrap();
                    assert_eq!(by, (has.stage != Stage::Absent).then_some(has.id));
                }
                Turn::Lost => unreachable!("it has not lost"),
            },
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
    let mut s = Schedule { engine, cells, parties, ids: 0, isolation };
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

fn begun(engine: &Engine, id: u64, name: &str, number: u64) -> Result<TxnId, OrderError> {
    let id = TxnId(id);
    engine.begin(id, BeginOptions::default());
    let order = Order { group: group(name), number };
    engine.enlist(id, &order).inspect_err(|_| engine.abort(id)).map(|()| id)
}

fn write(engine: &Engine, id: TxnId, cell: u64) -> Access {
    object(cell, |o| engine.write(id, o))
}

#[test]
fn the_lower_number_of_an_order_wins_and_what_is_used_up_stays_so() {
    let e = Engine::new();
    let second = begun(&e, 1, "g", 1).unwrap();
    assert_eq!(begun(&e, 2, "g", 1), Err(OrderError::Taken(second)));
    assert_eq!(e.turn(second), Turn::After { number: 0, by: None });
    let first = begun(&e, 3, "g", 0).unwrap();
    assert_eq!(e.turn(second), Turn::After { number: 0, by: Some(first) });
    // The younger one, which comes last.
    assert_eq!(write(&e, second, 0), Access::Granted);
    assert_eq!(write(&e, first, 0), Access::Granted);
    assert_eq!(e.turn(second), Turn::Lost);
    e.abort(second);
    // An end without effect leaves the number.
    e.abort(first);
    let first = begun(&e, 4, "g", 0).unwrap();
    assert_eq!(e.reset_order(&group("g"), 5), Err(OrderError::Taken(first)));
    e.pass(first);
    assert_eq!(begun(&e, 5, "g", 0), Err(OrderError::Over(1)));
    let other = begun(&e, 6, "another", 0).unwrap();
    assert_eq!(e.turn(other), Turn::Now);
    e.decide(other).unwrap();
    e.installed(other);
    assert_eq!(begun(&e, 7, "another", 0), Err(OrderError::Over(1)));
    // A reset goes in both directions.
    e.reset_order(&group("g"), 0).unwrap();
    let first = begun(&e, 8, "g", 0).unwrap();
    e.abort(first);
    e.reset_order(&group("g"), 12).unwrap();
    assert_eq!(begun(&e, 9, "g", 11), Err(OrderError::Over(12)));
    assert_eq!(begun(&e, 10, "g", 12).map(|t| e.turn(t)), Ok(Turn::Now));
}

#[test]
fn members_of_an_order_contend_with_others_as_the_first_of_them() {
    let e = Engine::new();
    let between = |id| {
        e.begin(TxnId(id), BeginOptions::default());
        TxnId(id)
    };
    let (second, middle) = (begun(&e, 1, "g", 1).unwrap(), between(2));
    let first = begun(&e, 3, "g", 0).unwrap();
    // Without that, each of the three would beat the next one: second, middle, first.
    assert_eq!(write(&e, middle, 1), Access::Granted);
    assert_eq!(write(&e, second, 1), Access::Doomed);
    assert_eq!(write(&e, first, 1), Access::Doomed);
    assert_eq!(e.status(middle), Some(Status::Active));
}

#[test]
fn who_waits_in_an_order_is_woken_by_the_end_before_it_and_by_its_own_loss() {
    let e = Engine::new();
    let (first, second) = (begun(&e, 1, "g", 0).unwrap(), begun(&e, 2, "g", 1).unwrap());
    let third = begun(&e, 3, "g", 2).unwrap();
    write(&e, first, 0);
    write(&e, third, 1);
    std::thread::scope(|s| {
        let limit = Duration::from_secs(600);
        let [a, b] = [second, third].map(|t| {
            let e = &e;
            s.spawn(move || e.wait_turn(t, limit))
        });
        // Whether they sleep already or not.
        write(&e, first, 1);
        assert_eq!(b.join().unwrap(), Turn::Lost);
        e.decide(first).unwrap();
        assert_eq!(e.turn(second), Turn::After { number: 0, by: Some(first) });
        e.installed(first);
        assert_eq!(a.join().unwrap(), Turn::Now);
    });
}

#[test]
fn an_owner_of_orders_has_a_bounded_number_of_them() {
    let e = Engine::new();
    let name = |n: u64| GroupName { owner: 1, name: n.to_string().as_bytes().into() };
    let made = (0..).take_while(|n| e.reset_order(&name(*n), 1).is_ok()).count();
    assert_eq!(made, 1024);
    assert_eq!(e.reset_order(&name(2000), 1), Err(OrderError::Full));
    // Others have their own, and what is at 0 and empty is forgotten.
    e.reset_order(&group("g"), 1).unwrap();
    e.reset_order(&name(5), 0).unwrap();
    e.reset_order(&name(2000), 1).unwrap();
}
