//! The clock, the processors, and accesses to memory.

mod sched;
mod sections;
mod steps;

use crate::arbiter::{self, Side};
use crate::checks::Checks;
use crate::memory::{Memory, Rivals};
use crate::settings::{Fault, Kernel, Settings};
use crate::stats::{LockStats, SiteStats, Spent, Stats};
use crate::thread::{Context, Profile, State, Thread};
use crate::tx::{Cause, Key, Standing, Txs};
use crate::workload::{self, Addr, LINE, Lock, Op, Site, SiteId, ThreadSpec, Workload};
use cxlock::table;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What came out of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was counted.
    pub stats: Stats,
    /// What does not hold; empty in a run that counts.
    pub broken: Vec<String>,
    /// Transitions of cxspinlocks that occurred, with how often.
    pub transitions: Vec<((table::State, table::Event, table::State), u64)>,
    /// Sections that were checked.
    pub units: u64,
}

/// Runs a workload to its end.
///
/// # Panics
/// If the workload does not fit the machine, see [`Workload::check`].
#[must_use]
pub fn run(settings: &Settings, workload: Workload) -> Outcome {
    if let Err(why) = workload.check() {
        panic!("{}: {why}", workload.name);
    }
    let mut machine = Machine::new(settings, workload);
    machine.start();
    machine.go_on();
    machine.end()
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// What the processor does is over, unless something else has been decided since.
    Run(usize, u64),
    /// A device has answered a thread.
    Wake(usize, u64),
}

#[derive(Default)]
struct Clock {
    now: u64,
    /// A number that nothing else has: of events, transactions, written values.
    ticket: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
}

impl Clock {
    fn ticket(&mut self) -> u64 {
        self.ticket += 1;
        self.ticket
    }

    fn at(&mut self, time: u64, event: Event) {
        let ticket = self.ticket();
        self.events.push(Reverse((time, ticket, event)));
    }
}

struct Processor {
    current: Option<usize>,
    /// Events of an older number are void.
    number: u64,
    /// Cycles before this are accounted for.
    accounted: u64,
    doing: Spent,
    attempt: Option<Key>,
    /// The lock that is waited for, and whether it has become free since.
    waits: Option<usize>,
    woken: bool,
    next_tick: u64,
    change: bool,
    spent: [u64; Spent::ALL.len() + 1],
}

#[derive(Default)]
struct LockState {
    holder: Option<usize>,
    /// Transactions that have found it free.
    inside: Vec<Key>,
    waiters: Vec<(usize, u64)>,
}

/// The parts of the workload that do not change.
struct Code {
    locks: Vec<Lock>,
    sites: Vec<Site>,
    tick: [Vec<Op>; 2],
    words: u32,
}

impl Code {
    fn word_of(&self, lock: usize) -> Addr {
        (self.words.div_ceil(LINE) + lock as u32) * LINE
    }

    fn check(&self, ops: &[Op]) -> Result<(), String> {
        workload::check(&self.locks, &self.sites, self.words, ops)
    }

    fn site(&self, site: SiteId) -> &Site {
        &self.sites[usize::from(site)]
    }
}

/// A thread that could run.
struct Waiting {
    thread: usize,
    /// Has used what it may use before the others have.
    expired: bool,
    since: u64,
}

struct Machine {
    settings: Settings,
    code: Code,
    random: fastrand::Rng,
    clock: Clock,
    processors: Vec<Processor>,
    threads: Vec<Thread>,
    ready: Vec<Waiting>,
    memory: Memory,
    txs: Txs,
    locks: Vec<LockState>,
    checks: Checks,
    stats: Stats,
}

/// By which right a word is changed outside of transactions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Right {
    /// Transactions that are in the way lose.
    Plain,
    /// The contention manager is asked (`xcas`).
    Asks,
}

/// What became of an access.
#[derive(Clone, Copy)]
enum Touch {
    Done {
        cycles: u32,
        value: u64,
    },
    /// The own transaction is lost.
    Lost,
    /// `xcas` did not get the word.
    Refused,
}

impl Machine {
    fn new(settings: &Settings, workload: Workload) -> Self {
        let Workload { name: _, locks, sites, threads, words, tick } = workload;
        let code = Code { locks, sites, tick, words };
        let all = code.word_of(code.locks.len());
        let period = settings.costs.kernel.tick;
        let processors = (0..settings.processors).map(|p| Processor {
            current: None,
            number: 0,
            accounted: 0,
            doing: Spent::Idle,
            attempt: None,
            waits: None,
            woken: false,
            // Ticks of the processors are spread.
            next_tick: period + period * p as u64 / settings.processors as u64,
            change: false,
            spent: [0; Spent::ALL.len() + 1],
        });
        let stats = Stats {
            locks: vec![LockStats::default(); code.locks.len()],
            sites: vec![SiteStats::default(); code.sites.len()],
            ..Stats::default()
        };
        Machine {
            random: fastrand::Rng::with_seed(settings.seed),
            clock: Clock::default(),
            processors: processors.collect(),
            threads: threads.into_iter().map(|spec| thread(spec, settings)).collect(),
            ready: Vec::new(),
            memory: Memory::new(settings.processors, all),
            txs: Txs::default(),
            locks: code.locks.iter().map(|_| LockState::default()).collect(),
            checks: Checks::new(words),
            settings: settings.clone(),
            code,
            stats,
        }
    }

    fn start(&mut self) {
        for thread in 0..self.threads.len() {
            let since = self.clock.ticket();
            self.ready.push(Waiting { thread, expired: false, since });
        }
        for p in 0..self.processors.len() {
            self.choose(p);
        }
    }

    fn go_on(&mut self) {
        while self.threads.iter().any(|t| t.state != State::Done) {
            // A machine that stands still ends here, too.
            let Some(Reverse((time, _, event))) = self.clock.events.pop() else {
                self.checks.broken("no thread can go on".to_owned());
                return;
            };
            self.clock.now = time;
            if time > self.settings.limit {
                let left = self.threads.iter().filter(|t| t.state != State::Done).count();
                self.checks.broken(format!("{left} threads have not ended after {time} cycles"));
                return;
            }
            match event {
                Event::Run(p, number) if self.processors[p].number == number => {
                    if !self.step(p) {
                        return;
                    }
                }
                Event::Run(..) => {}
                Event::Wake(thread, slept) => self.wake_up(thread, slept),
            }
        }
    }

    fn end(mut self) -> Outcome {
        for p in 0..self.processors.len() {
            self.charge(p);
            let processor = &self.processors[p];
            self.checks.ledger(p, processor.spent.iter().sum(), self.clock.now);
            for (sum, of) in self.stats.spent.iter_mut().zip(processor.spent) {
                *sum += of;
            }
        }
        if self.checks.found().is_empty() {
            let open: u64 = self.processors.iter().map(|p| p.spent[Spent::Attempt as usize]).sum();
            if open != 0 || !self.txs.is_empty() {
                self.checks.broken(format!("{open} cycles are of attempts that never ended"));
            }
            self.checks.memory(|at| self.memory.value(at));
        }
        self.stats.end = self.clock.now;
        Outcome {
            broken: self.checks.found().to_vec(),
            transitions: self.checks.transitions,
            units: self.checks.units,
            stats: self.stats,
        }
    }

    /// Writes down what a processor has done until now.
    fn charge(&mut self, p: usize) {
        let processor = &mut self.processors[p];
        let cycles = self.clock.now - processor.accounted;
        processor.accounted = self.clock.now;
        processor.spent[processor.doing as usize] += cycles;
        if let (Spent::Attempt, Some(key)) = (processor.doing, processor.attempt) {
            self.txs.get_mut(key).charge(p, cycles);
        }
        if let (Spent::Spin, Some(lock)) = (processor.doing, processor.waits) {
            self.stats.locks[lock].tests += cycles / u64::from(self.settings.costs.look);
        }
    }

    /// The processor is busy for so many cycles.
    fn go(&mut self, p: usize, cycles: u64, doing: Spent) {
        let key = self.processors[p].current.and_then(|t| self.threads[t].top().tx);
        let processor = &mut self.processors[p];
        (processor.doing, processor.attempt) = (doing, key);
        (processor.waits, processor.woken) = (None, false);
        processor.number += 1;
        self.clock.at(self.clock.now + cycles, Event::Run(p, processor.number));
    }

    /// What a thread is charged for in a section, or outside.
    fn work(&mut self, t: usize) -> Spent {
        let interrupted = self.threads[t].interrupted();
        let context = self.threads[t].top();
        match () {
            () if context.tx.is_some() => Spent::Attempt,
            () if interrupted => Spent::Interrupt,
            () if context.frames.is_empty() => Spent::Kernel,
            () => Spent::Section,
        }
    }

    /// A thread on a processor reads a word, or writes a value.
    fn touch(&mut self, p: usize, t: usize, at: Addr, write: Option<u64>, right: Right) -> Touch {
        let own = self.threads[t].top().tx;
        let rivals = self.memory.rivals(at, write.is_some(), own);
        match own {
            Some(own) if !self.beats_all(own, &rivals) => {
                self.doom(own, Cause::Conflict, p);
                return Touch::Lost;
            }
            None if right == Right::Asks && !self.may_take(t, &rivals) => return Touch::Refused,
            _ => {}
        }
        let (cause, blind) = match own {
            Some(_) => (Cause::Conflict, Fault::NoConflicts),
            None => (Cause::Asymmetric, Fault::NoAsymmetric),
        };
        if self.settings.fault != blind {
            rivals.iter().for_each(|rival| self.doom(*rival, cause, p));
        }
        let took = self.memory.caches.access(p, at / LINE, write.is_some(), &self.settings.costs);
        let mut cycles = took.cycles;
        if cycles > self.settings.costs.hit {
            cycles += self.random.u32(0..=cycles / 8);
        }
        let Some(key) = own else {
            if let Some(value) = write {
                self.memory.set(at, value);
            }
            return Touch::Done { cycles, value: self.memory.value(at) };
        };
        let tx = self.txs.get_mut(key);
        if !tx.lines.contains(&(at / LINE)) {
            tx.lines.push(at / LINE);
        }
        let value = match write {
            Some(value) => {
                self.memory.write_in(at, value, key, tx);
                value
            }
            None => self.memory.read_in(at, key, tx),
        };
        if took.evicted.is_some_and(|line| tx.lines.contains(&line)) {
            if self.settings.kernel == Kernel::Cooperative {
                self.doom(key, Cause::Overflow, p);
                return Touch::Lost;
            }
            // The hardware keeps it elsewhere: it is written there, and looked up.
            cycles += 2 * self.settings.costs.bus;
        }
        Touch::Done { cycles, value }
    }

    fn side(&self, key: Key) -> Side {
        let tx = self.txs.get(key);
        Side { standing: tx.standing, size: tx.size(), id: tx.id }
    }

    /// Whether a transaction may go on against all that are in its way.
    fn beats_all(&mut self, own: Key, rivals: &Rivals) -> bool {
        if self.settings.fault == Fault::NoConflicts {
            return true;
        }
        let me = self.side(own);
        for rival in rivals {
            // One that is suspended below cannot go on before this one ends.
            if self.txs.get(*rival).thread == self.txs.get(own).thread {
                continue;
            }
            let it = self.side(*rival);
            let mut won = arbiter::wins(self.settings.contention, me, it);
            let odd = self.stats.conflicts.all % 2 == 1;
            won ^= self.settings.fault == Fault::WrongWinner && odd;
            let threads = (self.txs.get(own).thread, self.txs.get(*rival).thread);
            self.decided(threads, (me.standing, it.standing), won);
            if !won {
                return false;
            }
        }
        true
    }

    /// Whether a thread outside of transactions gets a lock that those have looked at.
    fn may_take(&mut self, t: usize, rivals: &Rivals) -> bool {
        if rivals.is_empty() {
            return true;
        }
        let standing = self.standing(t);
        let sides: Vec<Side> = rivals.iter().map(|key| self.side(*key)).collect();
        let rounds = self.threads[t].top().rounds;
        if !arbiter::may_take(self.settings.contention, standing, &sides, rounds) {
            self.stats.conflicts.refused += 1;
            return false;
        }
        for (key, side) in rivals.iter().zip(&sides) {
            let other = self.txs.get(*key).thread;
            self.decided((t, other), (standing, side.standing), true);
        }
        true
    }

    /// What a thread brings into conflicts about the section that it tries to enter.
    fn standing(&mut self, t: usize) -> Standing {
        let ticket = self.clock.ticket();
        let told = self.threads[t].told;
        let new = Standing { timestamp: ticket, losses: 0, karma: 0, priority: told };
        let standing = self.threads[t].top().standing.get_or_insert(new);
        standing.priority = told;
        *standing
    }

    /// A conflict is decided between two threads: that counts, and os_prio is held to its word.
    fn decided(&mut self, (a, b): (usize, usize), told: (Standing, Standing), a_won: bool) {
        let won_by_less = |a: i32, b: i32| if a_won { a > b } else { b > a };
        let inverted = won_by_less(told.0.priority, told.1.priority);
        let (now_a, now_b) = (&self.threads[a], &self.threads[b]);
        let conflicts = &mut self.stats.conflicts;
        conflicts.all += 1;
        conflicts.inverted += u64::from(inverted);
        conflicts.inverted_now += u64::from(won_by_less(now_a.priority(), now_b.priority()));
        let (winner, loser) = if a_won { (now_a, now_b) } else { (now_b, now_a) };
        let policy = winner.realtime.is_none() && loser.realtime.is_some();
        conflicts.policy += u64::from(policy);
        let contention = self.settings.contention;
        if inverted && contention.is_told() && !contention.ages() {
            self.checks.broken(format!("os_prio lets {told:?} be won by the less urgent one"));
        }
    }

    /// A transaction has lost: its words are as before, and free.
    fn doom(&mut self, key: Key, cause: Cause, by: usize) {
        let tx = self.txs.get_mut(key);
        if tx.doomed.is_some() {
            return;
        }
        tx.doomed = Some(cause);
        let thread = tx.thread;
        self.memory.release(key, tx, self.settings.fault != Fault::NoUndo);
        let event = match cause {
            Cause::NeedExclusive => table::Event::Io,
            _ => table::Event::End,
        };
        self.leave_locks(key, event);
        if let State::Running(p) = self.threads[thread].state
            && p != by
            && self.threads[thread].top().tx == Some(key)
        {
            // The processor hears of it at once.
            let processor = &mut self.processors[p];
            processor.number += 1;
            self.clock.at(self.clock.now + 1, Event::Run(p, processor.number));
        }
    }
}

fn thread(spec: ThreadSpec, settings: &Settings) -> Thread {
    Thread {
        contexts: vec![Context::default()],
        program: spec.program,
        state: State::Ready,
        nice: spec.nice,
        realtime: spec.realtime,
        told: 0,
        slept: 0,
        adjust: 0,
        quantum: settings.costs.kernel.quantum,
        profile: Profile::default(),
    }
}
