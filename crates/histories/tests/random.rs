//! The checker against executions whose order is known, and against a checker that tries
//! everything.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use systx_histories::check;
use systx_histories::history::{Atom, Cell, History, Kind, Outcome, Step, Unit, token};
use systx_histories::world::World;

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// An atom that the world allows now, with what it sees there.
fn atom(dice: &mut Dice, world: &World, process: u32, number: &mut u32) -> Atom {
    *number += 1;
    let value = token(process, *number);
    let slot = Cell::Slot(dice.below(3) as u32, dice.below(2) as u32);
    let name = |dice: &mut Dice| Cell::Entry(0, dice.below(4) as u32);
    let file = 5;
    match dice.below(12) {
        0..=2 => Atom::Is(slot, world.get(slot)),
        3 => {
            let size = world.get(Cell::Size(file));
            match dice.below(size + 1) {
                0 => Atom::Is(Cell::Size(file), size),
                n => Atom::Is(
                    Cell::Slot(file, n as u32 - 1),
                    world.get(Cell::Slot(file, n as u32 - 1)),
                ),
            }
        }
        4 => Atom::Is(Cell::Mode(1), world.get(Cell::Mode(1))),
        5 => {
            let name = name(dice);
            Atom::Is(name, world.get(name))
        }
        6 | 7 => Atom::Set(slot, value),
        8 => match world.get(Cell::Size(file)) < 6 {
            true => Atom::Append(file, value),
            false => Atom::Truncate(file, dice.below(3) as u32),
        },
        9 => Atom::Set(Cell::Mode(1), dice.below(8) + 1),
        _ => {
            let (from, to) = (name(dice), name(dice));
            match (world.get(from), dice.below(3)) {
                (0, _) => Atom::Set(from, value),
                (_, 0) => Atom::Set(from, 0),
                _ => Atom::Rename(from, to),
            }
        }
    }
}

/// Units of some processes, each at one instant (plain calls: each of their requests), stretched
/// around it as far as the process's other units allow.
fn serial(seed: u64, processes: u64, units: usize) -> History {
    let mut dice = Dice(seed | 1);
    let mut world = World::default();
    let mut numbers = vec![0; processes as usize];
    let mut out: Vec<(u64, Unit)> = Vec::new();
    let mut open: Vec<Option<usize>> = vec![None; processes as usize];
    let mut now = 0;
    let mut last = vec![0; processes as usize];
    while out.len() < units || open.iter().any(Option::is_some) {
        now += 10;
        let process = dice.below(processes) as usize;
        let (p, number) = (process as u32, &mut numbers[process]);
        if let Some(call) = open[process] {
            // A further request of a call that goes on.
            let atom = atom(&mut dice, &world, p, number);
            world.perform(atom, &mut 0).expect("chosen so");
            let unit = &mut out[call].1;
            unit.steps.push(Step { atoms: vec![atom], how: String::new() });
            unit.end = now;
            if unit.steps.len() == 3 || dice.one_in(2) {
                open[process] = None;
                last[process] = now;
            }
            continue;
        }
        if out.len() >= units {
            continue;
        }
        let kind = if dice.one_in(2) { Kind::Transaction } else { Kind::Call };
        let aborted = kind == Kind::Transaction && dice.one_in(4);
        let mark = world.mark();
        let n = if kind == Kind::Transaction { 1 + dice.below(5) } else { 1 };
        let mut steps = Vec::new();
        for _ in 0..n {
            let atom = atom(&mut dice, &world, p, number);
            world.perform(atom, &mut 0).expect("chosen so");
            steps.push(Step { atoms: vec![atom], how: String::new() });
        }
        if aborted {
            world.back_to(mark);
        } else if kind == Kind::Call && dice.one_in(3) {
            open[process] = Some(out.len());
        }
        let outcome = if aborted { Outcome::Aborted } else { Outcome::Done };
        let begin = last[process] + 1 + dice.below(now - last[process] - 1);
        out.push((now, Unit { process: p, kind, outcome, begin, end: now, steps }));
        last[process] = now;
    }
    // Ends, up to the next unit's begin.
    let mut result: Vec<Unit> = out.into_iter().map(|(_, u)| u).collect();
    for i in 0..result.len() {
        let next = result[i + 1..].iter().find(|u| u.process == result[i].process);
        let limit = next.map_or(now + 50, |u| u.begin);
        let room = limit.saturating_sub(result[i].end);
        if room > 1 {
            result[i].end += dice.below(room);
        }
    }
    History { initial: Default::default(), units: result }
}

/// Tries all orders of all requests, without a thought.
fn everything(history: &History) -> bool {
    fn go(h: &History, done: &mut Vec<usize>, world: &mut World, held: &mut Vec<u64>) -> bool {
        let steps = |u: usize| match h.units[u].kind {
            Kind::Transaction => 1,
            _ => h.units[u].steps.len(),
        };
        if (0..h.units.len()).all(|u| done[u] == steps(u)) {
            return true;
        }
        for u in 0..h.units.len() {
            let early = |v: usize| done[v] < steps(v) && h.units[v].end < h.units[u].begin;
            if done[u] == steps(u) || (0..h.units.len()).any(early) {
                continue;
            }
            let unit = &h.units[u];
            let range = match unit.kind {
                Kind::Transaction => 0..unit.steps.len(),
                _ => done[u]..done[u] + 1,
            };
            let (mark, was) = (world.mark(), held[u]);
            let mut atoms = unit.steps[range].iter().flat_map(|s| &s.atoms);
            let fits = atoms.all(|a| world.perform(*a, &mut held[u]).is_ok());
            if fits {
                if unit.outcome == Outcome::Aborted {
                    world.back_to(mark);
                }
                done[u] += 1;
                if go(h, done, world, held) {
                    return true;
                }
                done[u] -= 1;
            }
            world.back_to(mark);
            held[u] = was;
        }
        false
    }
    let n = history.units.len();
    go(history, &mut vec![0; n], &mut World::new(&history.initial), &mut vec![0; n])
}

/// Another observation: of a value that was once written to the same cell, or of one that never
/// was.
fn mutated(history: &History, dice: &mut Dice) -> Option<History> {
    let mut places = Vec::new();
    for (u, unit) in history.units.iter().enumerate() {
        for (s, step) in unit.steps.iter().enumerate() {
            for (a, atom) in step.atoms.iter().enumerate() {
                if let Atom::Is(cell, value) = atom {
                    places.push((u, s, a, *cell, *value));
                }
            }
        }
    }
    if places.is_empty() {
        return None;
    }
    let (u, s, a, cell, value) = places[dice.below(places.len() as u64) as usize];
    let mut others: Vec<u64> = vec![0, token(99, 1)];
    others.extend(places.iter().filter(|p| p.3 == cell).map(|p| p.4));
    for unit in &history.units {
        for atom in unit.steps.iter().flat_map(|s| &s.atoms) {
            match atom {
                Atom::Set(at, other) if *at == cell => others.push(*other),
                _ => {}
            }
        }
    }
    others.retain(|v| *v != value);
    let mut out = history.clone();
    let other = others[dice.below(others.len() as u64) as usize];
    out.units[u].steps[s].atoms[a] = Atom::Is(cell, other);
    Some(out)
}

fn cases(n: u32) -> Config {
    let given = std::env::var("SYSTX_CASES").ok().and_then(|c| c.parse().ok());
    Config { failure_persistence: None, ..Config::with_cases(given.unwrap_or(n)) }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn what_has_an_order_is_accepted(seed: u64, processes in 1..7_u64, units in 1..300_usize) {
        let history = serial(seed, processes, units);
        prop_assert!(check(&history).is_serializable(), "{:?}", check(&history));
    }

    #[test]
    fn small_histories_are_judged_as_by_trying_everything(seed: u64, units in 1..8_usize) {
        let mut dice = Dice(seed | 1);
        let mut history = serial(seed, 3, units);
        for _ in 0..dice.below(3) {
            history = mutated(&history, &mut dice).unwrap_or(history);
        }
        prop_assert_eq!(check(&history).is_serializable(), everything(&history), "{:?}", history);
    }

    #[test]
    fn a_reduced_anomaly_is_one(seed: u64) {
        let mut dice = Dice(seed | 1);
        let history = serial(seed, 4, 60);
        let Some(mutant) = mutated(&history, &mut dice) else { return Ok(()) };
        if let Some(reduced) = systx_histories::explain::reduce(&mutant) {
            prop_assert!(check(&reduced).is_anomaly());
            prop_assert!(reduced.units.len() <= mutant.units.len());
        } else {
            prop_assert!(check(&mutant).is_serializable());
        }
    }
}

/// How often one wrong observation is noticed.  Not always: beside a concurrent writer, the other
/// value may be as right.
#[test]
fn one_wrong_observation_is_noticed() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(cases(400), rng);
    let counts = std::cell::Cell::new((0, 0));
    let seeds = (any::<u64>(), 2..6_u64);
    let judged = runner.run(&seeds, |(seed, processes)| {
        let history = serial(seed, processes, 100);
        let Some(mutant) = mutated(&history, &mut Dice(seed | 1)) else { return Ok(()) };
        let (noticed, all) = counts.get();
        counts.set((noticed + usize::from(check(&mutant).is_anomaly()), all + 1));
        Ok(())
    });
    judged.expect("nothing to fail");
    let (noticed, all) = counts.get();
    println!("{noticed} of {all} histories with one wrong observation were rejected");
    assert!(noticed * 100 >= all * 85, "{noticed} of {all}");
}
