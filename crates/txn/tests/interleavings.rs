//! Every interleaving of small programs: nobody ever waits in a circle, every schedule ends, somebody
//! commits, what commits is serializable, and the loser of a conflict is the one whom the policy
//! names.
//!
//! The engine cannot be copied, so that each schedule is run from its beginning; a search of all
//! schedules goes through them in the order of their choices.

mod history;

use history::{Cell, History, Random, Target, Unit};
use std::collections::{BTreeMap, BTreeSet};
use systx_base::TxnId;
use systx_txn::{Access, BeginOptions, Engine, Isolation, Opponent, Status};

type Op = (bool, Target);

const ALPHABET: [Op; 7] = [
    (false, Target::Entry(1, 0)),
    (true, Target::Entry(1, 0)),
    (true, Target::Entry(1, 1)),
    (false, Target::List(1)),
    (false, Target::Entry(1, 1)),
    (false, Target::Pages(2, 0, 1)),
    (true, Target::Pages(2, 1, 2)),
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    Accessing(usize),
    Waiting(usize, TxnId),
    Installing(usize),
    Committed,
    Lost,
}

struct Party<'a> {
    id: TxnId,
    ops: &'a [Op],
    stage: Stage,
    saw: BTreeMap<Cell, Unit>,
    wrote: BTreeSet<Cell>,
}

/// One schedule in the making.
struct Schedule<'a> {
    engine: Engine,
    history: History,
    parties: Vec<Party<'a>>,
    /// A commit takes a step for each cell; else one for all.
    by_cell: bool,
}

impl<'a> Schedule<'a> {
    fn new(programs: &[&'a [Op]], isolation: Isolation, by_cell: bool) -> Schedule<'a> {
        let engine = Engine::new();
        let party = |(at, ops): (usize, &&'a [Op])| {
            let id = TxnId(at as u64 + 1);
            engine.begin(id, BeginOptions { isolation, ..BeginOptions::default() });
            let (saw, wrote) = (BTreeMap::new(), BTreeSet::new());
            Party { id, ops, stage: Stage::Accessing(0), saw, wrote }
        };
        let parties = programs.iter().enumerate().map(party).collect();
        Schedule { engine, history: History::default(), parties, by_cell }
    }

    /// Those that can take a step.
    fn ready(&self) -> Vec<usize> {
        let ready = |p: &Party<'_>| match p.stage {
            Stage::Accessing(_) | Stage::Installing(_) => true,
            Stage::Waiting(_, winner) => self.engine.status(winner) != Some(Status::Committing),
            Stage::Committed | Stage::Lost => false,
        };
        (0..self.parties.len()).filter(|p| ready(&self.parties[*p])).collect()
    }

    fn step(&mut self, p: usize) {
        match self.parties[p].stage {
            Stage::Accessing(at) | Stage::Waiting(at, _) => self.access(p, at),
            Stage::Installing(next) => self.install(p, next),
            Stage::Committed | Stage::Lost => unreachable!("not ready"),
        }
    }

    fn access(&mut self, p: usize, at: usize) {
        let party = &mut self.parties[p];
        let Some((write, target)) = party.ops.get(at).copied() else {
            let stage = match self.engine.decide(party.id) {
                Ok(()) => Stage::Installing(0),
                Err(_) => self.lost(p),
            };
            self.parties[p].stage = stage;
            return;
        };
        let answer = target.with(|o| match write {
            true => self.engine.write(party.id, o),
            false => self.engine.read(party.id, o),
        });
        let stage = match answer {
            Access::Granted if write => {
                party.wrote.extend(target.written());
                Stage::Accessing(at + 1)
            }
            Access::Granted => {
                for cell in target.seen().into_iter().filter(|c| !party.wrote.contains(c)) {
                    party.saw.entry(cell).or_insert_with(|| self.history.value(cell));
                }
                Stage::Accessing(at + 1)
            }
            Access::Wait(winner) => {
                // No chain of waits is longer than one: the winner itself is not waiting.
                assert_eq!(self.engine.status(winner), Some(Status::Committing));
                Stage::Waiting(at, winner)
            }
            Access::Doomed => self.lost(p),
        };
        self.parties[p].stage = stage;
    }

    /// Under timestamp alone, only an older transaction or an earlier commit can have won.
    fn lost(&self, p: usize) -> Stage {
        let id = self.parties[p].id;
        let why = self.engine.conflict(id).expect("a loser knows its conflict");
        let Opponent::Txn(winner) = why.opponent else { panic!("there is no outsider: {why:?}") };
        let first = self.parties.iter().any(|x| x.id == winner && x.stage == Stage::Committed);
        assert!(winner < id || first, "{id} lost to {winner}: {why:?}");
        self.engine.abort(id);
        Stage::Lost
    }

    fn install(&mut self, p: usize, next: usize) {
        let party = &mut self.parties[p];
        let left = party.wrote.iter().skip(next);
        for cell in left.take(if self.by_cell { 1 } else { usize::MAX }) {
            self.history.write(*cell, party.id.0);
        }
        if self.by_cell && next < party.wrote.len() {
            party.stage = Stage::Installing(next + 1);
        } else {
            self.history.saw.insert(party.id.0, party.saw.clone());
            party.stage = Stage::Committed;
            self.engine.installed(party.id);
        }
    }

    fn judge(&self, isolation: Isolation) {
        for p in &self.parties {
            let ended = matches!(p.stage, Stage::Committed | Stage::Lost);
            // A loser may not have noticed; but nobody waits.
            assert!(ended, "{:?} is stuck", p.stage);
        }
        let oldest = &self.parties[0];
        if isolation == Isolation::Serializable {
            assert_eq!(oldest.stage, Stage::Committed, "the oldest cannot lose");
            let order = self.history.serial_order();
            assert!(order.is_ok(), "cycle among {order:?} in {:?}", self.history);
        }
        assert!(self.parties.iter().any(|p| p.stage == Stage::Committed), "nobody won");
        assert_eq!(self.history.lost_updates(), []);
        assert_eq!(self.engine.stats().inodes + self.engine.stats().entries, 0);
    }
}

/// Runs every schedule of some programs; returns how many there are.
fn explore(programs: &[&[Op]], isolation: Isolation, by_cell: bool) -> u64 {
    // Per step: which of how many ready parties was chosen.
    let mut choices: Vec<(usize, usize)> = Vec::new();
    let mut schedules = 0;
    loop {
        let mut schedule = Schedule::new(programs, isolation, by_cell);
        let mut depth = 0;
        loop {
            let ready = schedule.ready();
            if ready.is_empty() {
                break;
            }
            if depth == choices.len() {
                choices.push((0, ready.len()));
            }
            assert_eq!(choices[depth].1, ready.len(), "a schedule can be repeated");
            schedule.step(ready[choices[depth].0]);
            depth += 1;
        }
        schedule.judge(isolation);
        schedules += 1;
        while choices.last().is_some_and(|(chosen, of)| chosen + 1 == *of) {
            choices.pop();
        }
        match choices.last_mut() {
            Some(last) => last.0 += 1,
            None => return schedules,
        }
    }
}

#[test]
fn two_programs_of_two_accesses_each() {
    let mut programs = Vec::new();
    for a in ALPHABET {
        programs.extend(ALPHABET.map(|b| [a, b]));
    }
    let mut schedules = 0;
    for one in &programs {
        for two in &programs {
            for isolation in [Isolation::Serializable, Isolation::Snapshot] {
                schedules += explore(&[one, two], isolation, isolation == Isolation::Serializable);
            }
        }
    }
    println!("{schedules} schedules");
    assert!(schedules > 100_000);
}

#[test]
fn three_programs_of_one_access_each() {
    let mut schedules = 0;
    for one in &ALPHABET {
        for two in &ALPHABET {
            for three in &ALPHABET {
                let programs = [one, two, three].map(std::slice::from_ref);
                for isolation in [Isolation::Serializable, Isolation::Snapshot] {
                    schedules += explore(&programs, isolation, false);
                }
            }
        }
    }
    println!("{schedules} schedules");
}

/// Too many for all of them: some, chosen by a seed that the message names.
#[test]
fn three_programs_of_two_accesses_each() {
    let mut schedules = 0;
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut op = || ALPHABET[random.below(ALPHABET.len() as u64) as usize];
        let programs = [[op(), op()], [op(), op()], [op(), op()]];
        let programs = programs.each_ref().map(|p| &p[..]);
        schedules += explore(&programs, Isolation::Serializable, false);
    }
    println!("{schedules} schedules");
}
