//! Scopes: who declares before it begins what it will touch loses to no transaction there, whatever
//! the schedule. Thousands of schedules, each from a seed; `SYSTX_SEED=n` runs one,
//! `SYSTX_SCHEDULES=n` more.
//!
//! The programs write what they compute from what they read, so that a single read of a wrong
//! version shows in the end, which has to be that of running them one after another in the order of
//! their decisions. Some have a scope, of which some go beyond; others have none; plain mutations
//! come in between. They begin at any time, give up in line or when they run, and commits are put
//! in place one cell at a time.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;
use systx_base::{Oid, TxnId};
use systx_txn::{
    Access, Ahead, BeginOptions, Caller, Claim, Claimant, Engine, Isolation, ObjectRef, Opponent,
    Part, Plain, Stall, Status,
};

#[allow(dead_code)]
mod history;
use history::Random;

/// Two names of a directory, its list (which is only read), and the contents of two files.
const CELLS: u64 = 5;
const LIST: u64 = 2;
const DIR: Oid = Oid(1);

fn object<T>(cell: u64, with: impl FnOnce(ObjectRef<'_>) -> T) -> T {
    match cell {
        0 | 1 => with(ObjectRef::Entry { dir: DIR, name: &[cell as u8] }),
        LIST => with(ObjectRef::List(DIR)),
        _ => with(ObjectRef::Pages { oid: Oid(cell), first: 0, last: cell }),
    }
}

fn part(cell: u64) -> Part {
    match cell {
        0 | 1 => Part::Name { dir: DIR, name: [cell as u8].into() },
        LIST => Part::Names(DIR),
        _ => Part::Inode(Oid(cell)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Op {
    cell: u64,
    write: bool,
}

impl Op {
    /// A list is all of the names.
    fn conflicts(self, other: Op) -> bool {
        let one = |cell: u64| if cell == LIST { vec![0, 1] } else { vec![cell] };
        (self.write || other.write) && one(self.cell).iter().any(|c| one(other.cell).contains(c))
    }
}

type Cells = BTreeMap<u64, u64>;

/// A program's next value, from all that it read.
fn mixed(sum: u64, with: u64) -> u64 {
    (sum ^ with).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
}

fn value(cell: u64, cells: impl Fn(u64) -> u64) -> u64 {
    if cell == LIST { mixed(cells(0), cells(1)) } else { cells(cell) }
}

fn run_alone(number: u64, program: &[Op], cells: &mut Cells) {
    let mut sum = number;
    for op in program {
        if op.write {
            cells.insert(op.cell, mixed(sum, op.cell));
        } else {
            sum = mixed(sum, value(op.cell, |c| cells.get(&c).copied().unwrap_or(0)));
        }
    }
}

#[derive(PartialEq, Debug)]
enum Stage {
    Absent,
    InLine,
    Running(usize),
    Installing,
    Over,
}

struct Party {
    number: u64,
    program: Vec<Op>,
    /// What it declares.
    scope: Option<Vec<Op>>,
    /// It goes beyond that.
    strays: bool,
    isolation: Isolation,
    stage: Stage,
    id: TxnId,
    place: u64,
    first: Option<u64>,
    age: u32,
    sum: u64,
    private: Cells,
    /// How often it gives up of its own will.
    whims: u64,
}

impl Party {
    fn give_up(&mut self, engine: &Engine) {
        engine.abort(self.id);
        self.stage = Stage::Absent;
    }
}

struct Schedule {
    seed: u64,
    engine: Engine,
    cells: Cells,
    parties: Vec<Party>,
    ids: u64,
    /// What was decided, in that order: a program, or what a plain mutation wrote.
    decided: Vec<Result<usize, (u64, u64)>>,
    lost_in_scope_to_plain: u64,
}

impl Schedule {
    /// In line before `at`, or running, with a scope that conflicts.
    fn is_ahead(&self, at: usize) -> Vec<TxnId> {
        let me = &self.parties[at];
        let mine = me.scope.as_ref().unwrap();
        let others = self.parties.iter().enumerate().filter(|(other, p)| {
            let before = p.stage == Stage::InLine && p.place < me.place;
            let runs = matches!(p.stage, Stage::Running(_) | Stage::Installing)
                && self.engine.status(p.id) != Some(Status::Doomed);
            *other != at && (before || runs)
        });
        let meets = |theirs: &Vec<Op>| mine.iter().any(|a| theirs.iter().any(|b| a.conflicts(*b)));
        let others = others.filter(|(_, p)| p.scope.as_ref().is_some_and(meets));
        others.map(|(_, p)| p.id).collect()
    }

    fn lose(&mut self, at: usize) {
        let party = &mut self.parties[at];
        let why = self.engine.conflict(party.id).unwrap();
        let plain = matches!(why.opponent, Opponent::Plain(_));
        if party.scope.is_some() && !party.strays {
            assert!(plain, "SYSTX_SEED={}: lost within its scope: {why:?}", self.seed);
            self.lost_in_scope_to_plain += 1;
        }
        party.age += 1;
        party.give_up(&self.engine);
    }

    fn step(&mut self, at: usize, random: &mut Random) {
        let engine = &self.engine;
        let party = &mut self.parties[at];
        let running = matches!(party.stage, Stage::Running(_));
        if running && engine.status(party.id) == Some(Status::Doomed) {
            return self.lose(at);
        }
        match party.stage {
            Stage::Absent => {
                self.ids += 1;
                party.id = TxnId(self.ids);
                if let Some(scope) = &party.scope {
                    let claim = |op: &Op| Claim { part: part(op.cell), write: op.write };
                    let claims = scope.iter().map(claim).collect();
                    party.place = engine.line_up(claimant(party.id, at as u32), claims, None);
                    party.stage = Stage::InLine;
                } else {
                    self.begin(at, random);
                }
            }
            Stage::InLine if party.whims > 0 && random.below(3) == 0 => {
                party.whims -= 1;
                engine.leave_line(party.id);
                party.stage = Stage::Absent;
            }
            Stage::InLine => {
                let want = self.is_ahead(at);
                match self.engine.await_scope(self.parties[at].id, Duration::ZERO) {
                    Ok(()) => {
                        assert_eq!(want, [], "SYSTX_SEED={}", self.seed);
                        self.begin(at, random);
                    }
                    Err(Ahead { by, .. }) => {
                        assert!(want.contains(&by), "SYSTX_SEED={}", self.seed)
                    }
                }
            }
            Stage::Running(op) if op < party.program.len() => {
                let Op { cell, write } = party.program[op];
                let answer = object(cell, |o| match write {
                    true => engine.write(party.id, o),
                    false => engine.read(party.id, o),
                });
                match answer {
                    Access::Granted if write => {
                        party.private.insert(cell, mixed(party.sum, cell));
                    }
                    Access::Granted => {
                        let own = |cell| party.private.get(&cell).or(self.cells.get(&cell));
                        let seen = value(cell, |c| own(c).copied().unwrap_or(0));
                        party.sum = mixed(party.sum, seen);
                    }
                    Access::Wait(_) => return,
                    Access::Doomed => return self.lose(at),
                }
                party.stage = Stage::Running(op + 1);
            }
            Stage::Running(_) if party.whims > 0 => {
                party.whims -= 1;
                party.give_up(engine);
            }
            Stage::Running(_) => {
                engine.decide(party.id).unwrap();
                party.stage = Stage::Installing;
                self.decided.push(Ok(at));
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

    fn begin(&mut self, at: usize, random: &mut Random) {
        let party = &mut self.parties[at];
        let (timestamp, age, isolation) = (party.first, party.age, party.isolation);
        let priority = random.below(3) as i32;
        let options = BeginOptions { timestamp, age, isolation, priority, ..Default::default() };
        party.first = Some(self.engine.begin(party.id, options).0);
        assert_eq!(self.engine.reserve(party.id), party.scope.is_some() || party.age >= 3);
        party.sum = party.number;
        party.private.clear();
        party.stage = Stage::Running(0);
    }

    /// A plain program changes a cell, if it has not to wait.
    fn plain(&mut self, random: &mut Random) {
        let cell = [0, 1, 3, 4][random.below(4) as usize];
        let stall = if random.below(4) == 0 { Stall::Never } else { Stall::Bounded };
        let by = Caller::new(1, 0, b"plain");
        let entered = object(cell, |o| self.engine.plain_mutation(&[o], by, stall));
        if let Plain::Decided(mutation) = entered {
            let value = random.below(u64::MAX);
            self.cells.insert(cell, value);
            self.decided.push(Err((cell, value)));
            drop(mutation);
        }
    }
}

fn ops(random: &mut Random, from: &[Op], many: u64) -> Vec<Op> {
    let some = (0..1 + random.below(many)).map(|_| {
        let op = from[random.below(from.len() as u64) as usize];
        Op { write: op.write && random.below(3) > 0, ..op }
    });
    some.collect()
}

fn run(seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let all: Vec<Op> = (0..CELLS).map(|cell| Op { cell, write: cell != LIST }).collect();
    let party = |number: u64, random: &mut Random| {
        let kind = random.below(4);
        let scope = (kind > 0).then(|| ops(random, &all, 3));
        let strays = kind == 1;
        let within = scope.as_ref().filter(|_| !strays);
        let program = ops(random, within.unwrap_or(&all), 5);
        let soft = within.is_some() && random.below(3) == 0;
        let isolation = if soft { Isolation::Snapshot } else { Isolation::Serializable };
        let whims = random.below(6).saturating_sub(4);
        let (stage, id, private) = (Stage::Absent, TxnId(0), Cells::new());
        Party {
            number,
            program,
            scope,
            strays,
            isolation,
            stage,
            id,
            place: 0,
            first: None,
            age: 0,
            sum: 0,
            private,
            whims,
        }
    };
    let parties: Vec<_> = (1..3 + random.below(6)).map(|n| party(n, &mut random)).collect();
    let mut plain = random.below(12);
    let (engine, cells) = (Engine::new(), Cells::new());
    let (decided, lost_in_scope_to_plain) = (Vec::new(), 0);
    let mut s = Schedule { seed, engine, cells, parties, ids: 0, decided, lost_in_scope_to_plain };
    let mut steps = 0;
    while s.parties.iter().any(|p| p.stage != Stage::Over) {
        if plain > 0 && random.below(12) == 0 {
            plain -= 1;
            s.plain(&mut random);
        }
        let at = random.below(s.parties.len() as u64) as usize;
        s.step(at, &mut random);
        steps += 1;
        assert!(steps < 100_000, "SYSTX_SEED={seed}: no end, {:?}", s.engine.stats());
    }
    let mut want = Cells::new();
    for unit in &s.decided {
        match unit {
            Ok(at) => run_alone(s.parties[*at].number, &s.parties[*at].program, &mut want),
            Err((cell, value)) => drop(want.insert(*cell, *value)),
        }
    }
    assert_eq!(s.cells, want, "SYSTX_SEED={seed}");
    let stats = s.engine.stats();
    assert_eq!((stats.transactions, stats.inodes, stats.scopes), (0, 0, 0), "SYSTX_SEED={seed}");
    s.lost_in_scope_to_plain
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn who_stays_in_its_scope_loses_to_no_transaction_and_all_are_serializable() {
    let lost: u64 = match number("SYSTX_SEED") {
        Some(seed) => {
            run(seed);
            return;
        }
        None => (0..number("SYSTX_SCHEDULES").unwrap_or(10_000)).map(run).sum(),
    };
    // Plain programs are above it: the schedules have such cases.
    assert!(lost > 0);
}

fn claimant(id: TxnId, client: u32) -> Claimant {
    Claimant { id, client, guest: false }
}

fn claim(cell: u64, write: bool) -> Claim {
    Claim { part: part(cell), write }
}

fn begun(e: &Engine, id: u64, claims: Vec<Claim>) -> TxnId {
    let id = TxnId(id);
    e.line_up(claimant(id, 0), claims, None);
    e.await_scope(id, Duration::ZERO).unwrap();
    e.begin(id, BeginOptions::default());
    id
}

fn write(e: &Engine, id: TxnId, cell: u64) -> Access {
    object(cell, |o| e.write(id, o))
}

fn read(e: &Engine, id: TxnId, cell: u64) -> Access {
    object(cell, |o| e.read(id, o))
}

#[test]
fn an_older_more_urgent_aged_one_loses_where_somebody_declared() {
    let e = Engine::new();
    let strong = |id| {
        let options = BeginOptions { age: 9, priority: -20, ..Default::default() };
        e.begin(TxnId(id), options);
        TxnId(id)
    };
    let (holder, comer, reader) = (strong(1), strong(2), strong(3));
    assert_eq!(write(&e, holder, 3), Access::Granted);
    let scoped = begun(&e, 4, vec![claim(3, true), claim(0, true), claim(4, false)]);
    // Who has it goes on until the scoped one comes for it.
    assert_eq!(write(&e, holder, 3), Access::Granted);
    assert_eq!(read(&e, scoped, 3), Access::Granted);
    assert_eq!(e.status(holder), Some(Status::Doomed));
    // Who comes for it loses, though the scoped one has not touched it yet; reading what will be
    // read is free.
    assert_eq!(read(&e, comer, 4), Access::Granted);
    assert_eq!(read(&e, reader, LIST), Access::Granted);
    assert_eq!(read(&e, comer, 0), Access::Doomed);
    assert_eq!(e.conflict(comer).unwrap().opponent, Opponent::Txn(scoped));
    // A lister loses when one of the names is written.
    assert_eq!(write(&e, scoped, 0), Access::Granted);
    assert_eq!(e.status(reader), Some(Status::Doomed));
    let late = strong(5);
    assert_eq!(read(&e, late, LIST), Access::Doomed);
    // Beyond its scope it is one of the aged: an older one is stronger.
    let older = strong(6);
    e.abort(older);
    let options = BeginOptions { age: 3, timestamp: Some(1), ..Default::default() };
    e.begin(TxnId(7), options);
    assert_eq!(write(&e, TxnId(7), 1), Access::Granted);
    assert_eq!(write(&e, scoped, 1), Access::Doomed);
}

#[test]
fn a_line_is_left_by_its_place_and_nobody_passes() {
    let e = Engine::new();
    let first = begun(&e, 1, vec![claim(3, true)]);
    let line = |id, claims| e.line_up(claimant(TxnId(id), id as u32), claims, None);
    let turn = |id| e.await_scope(TxnId(id), Duration::ZERO).map_err(|ahead| ahead.by.0);
    let second = line(2, vec![claim(3, true), claim(4, true)]);
    // The third could run beside the first, and has to wait for the second all the same.
    line(3, vec![claim(4, false)]);
    line(4, vec![claim(0, true)]);
    assert_eq!((turn(2), turn(3), turn(4)), (Err(1), Err(2), Ok(())));
    let ahead = e.await_scope(TxnId(3), Duration::ZERO).unwrap_err();
    assert_eq!((ahead.client, ahead.runs, ahead.part), (2, false, part(4)));
    // Who runs is not shown in line, who has had its turn neither.
    let shown = e.in_line().into_iter().map(|w| (w.id.0, w.client, w.ahead.map(|a| a.by.0)));
    assert_eq!(shown.collect::<Vec<_>>(), [(2, 2, Some(1)), (3, 3, Some(2))]);
    // It comes again with other claims, and keeps its place.
    assert_eq!(e.line_up(claimant(TxnId(2), 2), vec![claim(4, true)], Some(second)), second);
    assert_eq!((turn(3), turn(2), turn(3)), (Err(2), Ok(()), Err(2)));
    // One that has had its turn and never begins can still leave.
    e.leave_line(TxnId(2));
    assert_eq!(turn(3), Ok(()));
    e.leave_line(first);
    assert_eq!(e.stats().scopes, 3, "what runs is not in line");
    e.abort(first);
    e.leave_line(TxnId(3));
    e.leave_line(TxnId(4));
    assert_eq!(e.stats().scopes, 0);
}

#[test]
fn who_is_in_line_is_woken_by_an_end_a_loss_and_a_leave() {
    let e = Engine::new();
    let limit = Duration::from_secs(600);
    for how in 0..3 {
        let id = |n| TxnId(10 * how + n);
        let holder = begun(&e, 10 * how + 1, vec![claim(3, true)]);
        if how == 2 {
            e.abort(holder);
            e.line_up(claimant(holder, 0), vec![claim(3, true)], None);
            e.await_scope(holder, limit).unwrap();
        }
        e.line_up(claimant(id(2), 0), vec![claim(3, false)], None);
        std::thread::scope(|s| {
            // Whether it sleeps already or not.
            let waits = s.spawn(|| e.await_scope(id(2), limit));
            match how {
                0 => {
                    e.decide(holder).unwrap();
                    e.installed(holder);
                }
                1 => {
                    write(&e, holder, 3);
                    drop(object(3, |o| e.plain_mutation(&[o], Caller::default(), Stall::Never)));
                    assert_eq!(e.status(holder), Some(Status::Doomed));
                }
                _ => e.leave_line(holder),
            }
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        e.leave_line(id(2));
        e.abort(holder);
    }
    assert_eq!(e.stats().scopes, 0);
}
