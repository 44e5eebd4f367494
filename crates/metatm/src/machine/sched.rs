//! The scheduler: priorities, quanta, and what it makes of transactions (§6.3, §6.4).

use super::{Machine, Waiting};
use crate::settings::Fault;
use crate::stats::Spent;
use crate::thread::{SLEEP, State, average};

/// How far from a thread's priority one may be that takes its place.
const NEAR: i32 = 5;
/// Restarts in a tick that are many, whatever is usual.
const MANY: u32 = 3;
/// So many times as many restarts as usual are many.
const TIMES: f64 = 3.0;
/// Words of a transaction that is large.
const LARGE: f64 = 24.0;

impl Machine {
    /// A device has answered.
    pub(super) fn wake_up(&mut self, t: usize, slept: u64) {
        let thread = &mut self.threads[t];
        thread.slept = (thread.slept + slept).min(SLEEP);
        thread.state = State::Ready;
        let priority = thread.priority();
        let since = self.clock.ticket();
        self.ready.push(Waiting { thread: t, expired: false, since });
        if let Some(p) = self.processors.iter().position(|p| p.current.is_none()) {
            self.charge(p);
            return self.choose(p);
        }
        let least = self.processors.iter_mut().max_by_key(|p| {
            p.current
                .map_or(i32::MIN, |t| if p.change { i32::MIN } else { self.threads[t].priority() })
        });
        if let Some(processor) = least
            && processor.current.is_some_and(|t| self.threads[t].priority() > priority)
        {
            processor.change = true;
        }
    }

    /// The most urgent thread that could run, those first that have not used their time.
    fn best(&mut self) -> Option<usize> {
        if self.ready.iter().all(|w| w.expired) {
            self.ready.iter_mut().for_each(|w| w.expired = false);
        }
        let key = |w: &Waiting| (w.expired, self.threads[w.thread].priority(), w.since);
        (0..self.ready.len()).min_by_key(|at| key(&self.ready[*at]))
    }

    /// Gives a processor without a thread the next one.
    pub(super) fn choose(&mut self, p: usize) {
        match self.best() {
            Some(at) => self.dispatch(p, at),
            None => {
                let processor = &mut self.processors[p];
                processor.current = None;
                processor.number += 1;
                processor.doing = Spent::Idle;
                processor.change = false;
            }
        }
    }

    fn dispatch(&mut self, p: usize, at: usize) {
        let t = self.ready.swap_remove(at).thread;
        let thread = &mut self.threads[t];
        thread.state = State::Running(p);
        thread.told = thread.priority();
        let processor = &mut self.processors[p];
        processor.current = Some(t);
        processor.change = false;
        let costs = &self.settings.costs.kernel;
        if processor.next_tick <= self.clock.now {
            processor.next_tick = self.clock.now + costs.tick;
        }
        self.go(p, u64::from(costs.switch), Spent::Switch);
        if self.settings.fault == Fault::LostCycles {
            self.processors[p].accounted += u64::from(self.settings.costs.hit);
        }
    }

    /// Another thread comes in the place of the one that runs: `to`, or the best one.
    pub(super) fn change(&mut self, p: usize, to: Option<usize>, expired: bool) {
        let at = match to {
            Some(to) => self.ready.iter().position(|w| w.thread == to),
            None => self.best(),
        };
        self.processors[p].change = false;
        let (Some(at), Some(t)) = (at, self.processors[p].current) else {
            return self.go(p, 0, Spent::Switch);
        };
        self.threads[t].state = State::Ready;
        let since = self.clock.ticket();
        // At the end, so that `at` stays what it is; what is swapped into its place is this one.
        self.ready.push(Waiting { thread: t, expired, since });
        self.dispatch(p, at);
    }

    /// The end of a tick's handler, back in the thread (`xpop`).
    pub(super) fn tick(&mut self, p: usize, t: usize) {
        let kernel = self.settings.costs.kernel.clone();
        let thread = &mut self.threads[t];
        thread.slept = thread.slept.saturating_sub(kernel.tick);
        thread.quantum = thread.quantum.saturating_sub(1);
        let wasteful = self.examine(t);
        let over = self.threads[t].quantum == 0;
        if over {
            self.threads[t].quantum = kernel.quantum;
            self.adjust(t);
        }
        let priority = self.threads[t].priority();
        if self.threads[t].may_stop() {
            if over && !self.ready.is_empty() {
                return self.change(p, None, true);
            }
            // One with an active transaction has work in it, and would be in everybody's way.
            let active = self.threads[t].top().tx.is_some();
            if wasteful
                && !active
                && self.settings.scheduler.reactive
                && let Some(to) = self.replacement(priority)
            {
                return self.change(p, Some(to), false);
            }
            let urgent = |w: &Waiting| !w.expired && self.threads[w.thread].priority() < priority;
            if self.ready.iter().any(urgent) {
                return self.change(p, None, false);
            }
        } else if over {
            self.processors[p].change = true;
        }
        self.threads[t].told = priority;
        self.go(p, u64::from(self.settings.costs.push), Spent::Interrupt);
    }

    /// Whether a thread is likely to waste what comes until the next tick.  Counts from here.
    fn examine(&mut self, t: usize) -> bool {
        let cost = f64::from(self.settings.costs.kernel.switch);
        let paused = self.threads[t].top().paused as f64;
        let profile = &mut self.threads[t].profile;
        let restarts = std::mem::take(&mut profile.restarts);
        let burst = restarts >= MANY && f64::from(restarts) > TIMES * profile.usual;
        average(&mut profile.usual, f64::from(restarts));
        burst || profile.pauses.max(paused) > cost
    }

    /// A thread that can take the place of one, and is not likely to waste its time, too.
    fn replacement(&self, priority: i32) -> Option<usize> {
        let cost = f64::from(self.settings.costs.kernel.switch);
        let fits = |w: &&Waiting| {
            let thread = &self.threads[w.thread];
            let active = thread.contexts[0].tx.is_some();
            let near = (thread.priority() - priority).abs() <= NEAR;
            near && (active || thread.profile.pauses <= cost)
        };
        let best = |w: &&Waiting| (self.threads[w.thread].priority(), w.since);
        self.ready.iter().filter(fits).min_by_key(best).map(|w| w.thread)
    }

    /// What transactions do to the dynamic priority of a thread that has used its time.
    fn adjust(&mut self, t: usize) {
        if !self.settings.scheduler.dynamic {
            return;
        }
        let thread = &mut self.threads[t];
        let active = thread.contexts[0].tx.is_some();
        let profile = &thread.profile;
        thread.adjust = match () {
            () if active => -2,
            () if profile.usual >= f64::from(MANY) => 2,
            () if profile.size >= LARGE => -1,
            () => 0,
        };
    }
}
