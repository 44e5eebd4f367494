//! The steps of threads, and interrupts.

use super::{Event, Machine, Right, Touch};
use crate::stats::Spent;
use crate::thread::{Context, Held, State};
use crate::tx::{Cause, Key, Unit};
use crate::workload::{Addr, Op};

impl Machine {
    /// What a processor did is over: the next step.  False at the end of everything.
    pub(super) fn step(&mut self, p: usize) -> bool {
        self.charge(p);
        let Some(t) = self.processors[p].current else {
            self.choose(p);
            return true;
        };
        if self.interrupt(p, t) {
            return true;
        }
        if self.processors[p].change && self.threads[t].may_stop() {
            self.change(p, None, false);
            return true;
        }
        let tx = self.threads[t].top().tx;
        if tx.is_some_and(|key| self.txs.get(key).doomed.is_some()) {
            self.restart(p, t);
            return true;
        }
        let pause = self.threads[t].top().pause;
        if pause > self.clock.now {
            let cycles = self.until_tick(p, pause - self.clock.now);
            self.go(p, cycles, Spent::Backoff);
            return true;
        }
        let context = self.threads[t].top();
        match context.ops.get(context.pc).copied() {
            Some(op) => self.perform(p, t, op),
            None => return self.finished(p, t),
        }
        true
    }

    /// The part of some cycles that comes before the next tick.
    pub(super) fn until_tick(&self, p: usize, cycles: u64) -> u64 {
        match self.processors[p].next_tick.checked_sub(self.clock.now) {
            None | Some(0) => cycles.min(self.settings.costs.kernel.tick),
            Some(left) => cycles.min(left),
        }
    }

    fn perform(&mut self, p: usize, t: usize, op: Op) {
        match op {
            Op::User(cycles) => self.busy(p, t, cycles, Spent::User),
            Op::Work(cycles) => {
                let spent = self.work(t);
                self.busy(p, t, cycles, spent);
            }
            Op::Sleep(cycles) => {
                self.threads[t].top().pc += 1;
                self.threads[t].state = State::Asleep;
                let time = self.clock.now + u64::from(cycles);
                self.clock.at(time, Event::Wake(t, u64::from(cycles)));
                self.choose(p);
            }
            Op::Read(at) => self.data(p, t, at, false),
            Op::Write(at) => self.data(p, t, at, true),
            Op::Io(cycles) => self.io(p, t, cycles),
            Op::Enter(site) => self.enter(p, t, site),
            Op::Exit => self.exit(p, t),
        }
    }

    fn busy(&mut self, p: usize, t: usize, cycles: u32, spent: Spent) {
        let context = self.threads[t].top();
        let left = if context.left == 0 { cycles } else { context.left };
        let slice = self.until_tick(p, u64::from(left));
        let context = self.threads[t].top();
        context.left = left - slice as u32;
        context.pc += usize::from(context.left == 0);
        self.go(p, slice, spent);
    }

    fn data(&mut self, p: usize, t: usize, at: Addr, write: bool) {
        let value = write.then(|| self.clock.ticket());
        let Touch::Done { cycles, value } = self.touch(p, t, at, value, Right::Plain) else {
            let spent = self.work(t);
            return self.go(p, 1, spent);
        };
        let note = |unit: &mut Unit| match write {
            true => unit.wrote(at, value),
            false => unit.read(at, value),
        };
        let context = self.threads[t].contexts.last_mut().expect("a thread has its own");
        context.pc += 1;
        if let Some(key) = context.tx {
            note(&mut self.txs.get_mut(key).unit);
        } else if let Some(frame) = context.frames.last_mut() {
            match &mut frame.held {
                Held::Lock(unit) | Held::Sequence(_, unit) => note(unit),
                Held::LockIn | Held::Transaction => unreachable!("outside of transactions"),
            }
        } else {
            // An access outside of sections is one of its own.
            let mut unit = Unit::default();
            note(&mut unit);
            self.checks.unit("an access", &unit);
        }
        let spent = self.work(t);
        self.go(p, u64::from(cycles), spent);
    }

    fn io(&mut self, p: usize, t: usize, cycles: u32) {
        let context = self.threads[t].top();
        if let Some(key) = context.tx {
            self.note_restart_for_io(t, key);
            self.doom(key, Cause::NeedExclusive, p);
            return self.go(p, 1, Spent::Attempt);
        }
        context.pc += 1;
        let holds: Vec<usize> = context.frames.iter().map(|f| usize::from(f.site)).collect();
        for site in holds {
            self.note_io(site);
        }
        let spent = self.work(t);
        self.go(p, u64::from(cycles), spent);
    }

    /// A transaction has to begin again with its lock: the sections that it is in are noted.
    pub(super) fn note_restart_for_io(&mut self, t: usize, key: Key) {
        let start = self.txs.get(key).start.1;
        let context = self.threads[t].top();
        let inside: Vec<_> = context.frames[start..].iter().map(|f| f.site).collect();
        for site in &inside {
            self.stats.sites[usize::from(*site)].io_restarts += 1;
        }
        self.stats.io_depth += inside.len() as u64;
    }

    /// A tick is due, and interrupts are on: the handler runs above the thread (`xpush`).
    fn interrupt(&mut self, p: usize, t: usize) -> bool {
        let (now, period) = (self.clock.now, self.settings.costs.kernel.tick);
        let thread = &self.threads[t];
        let off = |context: &Context| context.frames.iter().any(|f| self.code.site(f.site).irq_off);
        if now < self.processors[p].next_tick || thread.interrupted() || off(&thread.contexts[0]) {
            return false;
        }
        self.processors[p].next_tick = now + period;
        let ops = self.code.tick[usize::from(p != 0)].clone();
        self.threads[t].contexts.push(Context { ops, ..Context::default() });
        let costs = &self.settings.costs;
        let cycles = costs.push + costs.kernel.handler;
        self.go(p, u64::from(cycles), Spent::Interrupt);
        true
    }

    /// A handler or a piece of a program is over.
    fn finished(&mut self, p: usize, t: usize) -> bool {
        if self.threads[t].interrupted() {
            self.threads[t].contexts.pop();
            self.tick(p, t);
            return true;
        }
        match self.threads[t].program.next() {
            Some(ops) => {
                if let Err(why) = self.code.check(&ops) {
                    panic!("a program that does not fit: {why}");
                }
                *self.threads[t].top() = Context { ops, ..Context::default() };
                self.go(p, 0, Spent::Kernel);
            }
            None => {
                self.threads[t].state = State::Done;
                if self.threads.iter().all(|t| t.state == State::Done) {
                    return false;
                }
                self.choose(p);
            }
        }
        true
    }
}
