//! How sections begin and end: spinlocks, sequence locks, transactions, cxspinlocks (§4).

use super::{Machine, Right, Touch};
use crate::settings::{Fault, Kernel};
use crate::stats::Spent;
use crate::thread::{Frame, Held, average};
use crate::tx::{Cause, Key, Tx, Unit};
use crate::workload::{Kind, SiteId};
use cxlock::table::{Event, State};

/// How a place in the code enters its section.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// `spin_lock`.
    Spin,
    /// A reader of a sequence lock.
    Sequence,
    /// `xbegin`.
    Bare,
    /// `cx_optimistic`.
    Optimistic,
    /// `cx_exclusive`.
    Exclusive,
}

impl Machine {
    fn how(&self, site: SiteId) -> How {
        let site = self.code.site(site);
        let lock = &self.code.locks[site.lock];
        match (self.settings.kernel, lock.kind) {
            (Kernel::Linux, Kind::Sequence) if site.reads => How::Sequence,
            (Kernel::Linux, _) | (Kernel::Subsystem, Kind::Raw) => How::Spin,
            (_, Kind::Sequence) => How::Bare,
            (Kernel::Subsystem, Kind::Spin) if lock.converted => How::Bare,
            (Kernel::Subsystem, Kind::Spin) => How::Spin,
            (Kernel::Cooperative, Kind::Raw) => How::Exclusive,
            (Kernel::Cooperative, Kind::Spin) if site.exclusive => How::Exclusive,
            (Kernel::Cooperative, Kind::Spin) => How::Optimistic,
        }
    }

    /// Whether the table of cxspinlocks is about this lock.
    fn cooperates(&self, lock: usize) -> bool {
        self.settings.kernel == Kernel::Cooperative && self.code.locks[lock].kind != Kind::Sequence
    }

    fn lock_state(&self, lock: usize) -> State {
        let state = &self.locks[lock];
        match () {
            () if state.holder.is_some() => State::Exclusive,
            () if !state.inside.is_empty() => State::Transactional,
            () => State::Free,
        }
    }

    fn transition(&mut self, lock: usize, from: State, event: Event) {
        if self.cooperates(lock) {
            let to = self.lock_state(lock);
            self.checks.transition(&self.code.locks[lock].name, from, event, to);
        }
    }

    /// A section with its lock does I/O.
    pub(super) fn note_io(&mut self, site: usize) {
        let lock = self.code.sites[site].lock;
        let state = self.lock_state(lock);
        self.transition(lock, state, Event::Io);
    }

    pub(super) fn enter(&mut self, p: usize, t: usize, site: SiteId) {
        let context = self.threads[t].top();
        let (pc, inside) = (context.pc, context.tx);
        let status = context.status.filter(|(at, _)| *at == pc).map(|(_, cause)| cause);
        let alone = matches!(status, Some(Cause::NeedExclusive | Cause::Overflow));
        match (self.how(site), inside) {
            (How::Bare, _) => {
                self.begin(t);
                self.go_in(p, t, site, Held::Transaction, self.settings.costs.begin);
            }
            (How::Optimistic, None) if alone => self.exclusive(p, t, site),
            (How::Optimistic, _) => {
                self.begin(t);
                self.optimistic(p, t, site);
            }
            (How::Exclusive, Some(key)) => {
                // The outermost section begins again, with its lock.
                self.note_restart_for_io(t, key);
                self.doom(key, Cause::NeedExclusive, p);
                self.go(p, u64::from(self.settings.costs.cx), Spent::Attempt);
            }
            (How::Exclusive, None) => self.exclusive(p, t, site),
            (How::Spin, None) => self.spin_lock(p, t, site),
            (How::Spin, Some(_)) => self.spin_lock_inside(p, t, site),
            (How::Sequence, _) => self.sequence(p, t, site),
        }
    }

    /// `xbegin`, unless there is a transaction.
    fn begin(&mut self, t: usize) {
        if self.threads[t].top().tx.is_some() {
            return;
        }
        let standing = self.standing(t);
        let id = self.clock.ticket();
        let context = self.threads[t].top();
        let start = (context.pc, context.frames.len());
        let key = self.txs.add(Tx {
            id,
            thread: t,
            standing,
            reads: Vec::new(),
            undo: Vec::new(),
            lines: Vec::new(),
            doomed: None,
            unit: Unit::default(),
            cost: smallvec::SmallVec::new(),
            locks: smallvec::SmallVec::new(),
            start,
        });
        self.threads[t].top().tx = Some(key);
    }

    /// A section has begun.
    fn go_in(&mut self, p: usize, t: usize, site: SiteId, held: Held, cycles: u32) {
        let context = self.threads[t].top();
        if matches!(held, Held::Transaction) {
            let stats = &mut self.stats.sites[usize::from(site)];
            stats.inside += 1;
            stats.most = stats.most.max(stats.inside);
        }
        context.frames.push(Frame { site, start: context.pc, held });
        context.pc += 1;
        context.rounds = 0;
        let spent = self.work(t);
        self.go(p, u64::from(cycles), spent);
    }

    /// The own transaction has been lost in an access.
    fn lost(&mut self, p: usize) {
        self.go(p, 1, Spent::Attempt);
    }

    /// Waits until a lock becomes free.
    fn wait(&mut self, p: usize, t: usize, lock: usize) {
        let state = self.lock_state(lock);
        if self.cooperates(lock) {
            let event = match self.threads[t].top().tx {
                Some(_) => Event::Optimistic,
                None => Event::Exclusive,
            };
            self.transition(lock, state, event);
        }
        let late = self.processors[p].woken;
        self.stats.locks[lock].sets += u64::from(late);
        let cycles = self.until_tick(p, u64::MAX);
        self.go(p, cycles, Spent::Spin);
        self.processors[p].waits = Some(lock);
        self.locks[lock].waiters.push((p, self.processors[p].number));
    }

    /// A lock has become free: those that wait see it, one after the other.
    fn wake(&mut self, lock: usize) {
        for (p, number) in std::mem::take(&mut self.locks[lock].waiters) {
            if self.processors[p].number != number {
                continue;
            }
            let bus = self.settings.costs.bus;
            let cycles = u64::from(bus + self.random.u32(0..=bus / 4));
            // Waiting goes on until then.
            let processor = &mut self.processors[p];
            processor.number += 1;
            processor.woken = true;
            let (number, time) = (processor.number, self.clock.now + cycles);
            self.clock.at(time, super::Event::Run(p, number));
        }
    }

    fn is_held(&self, lock: usize) -> bool {
        self.memory.value(self.code.word_of(lock)) % 2 == 1 && self.settings.fault != Fault::NoLook
    }

    /// `cx_optimistic` in a transaction: `xtest` adds the lock to the read set once it is free.
    fn optimistic(&mut self, p: usize, t: usize, site: SiteId) {
        let lock = self.code.site(site).lock;
        if self.is_held(lock) {
            return self.wait(p, t, lock);
        }
        let word = self.code.word_of(lock);
        let Touch::Done { cycles, .. } = self.touch(p, t, word, None, Right::Plain) else {
            return self.lost(p);
        };
        let from = self.lock_state(lock);
        let key = self.threads[t].top().tx.expect("it has begun");
        let tx = self.txs.get_mut(key);
        if !tx.locks.contains(&lock) {
            tx.locks.push(lock);
            self.locks[lock].inside.push(key);
        }
        self.transition(lock, from, Event::Optimistic);
        if self.locks[lock].holder.is_some() {
            let name = &self.code.locks[lock].name;
            self.checks.broken(format!("{name}: a transaction begins beside a holder"));
        }
        self.go_in(p, t, site, Held::Transaction, self.settings.costs.cx + cycles);
    }

    /// `cx_exclusive` outside of transactions.
    fn exclusive(&mut self, p: usize, t: usize, site: SiteId) {
        self.take(p, t, site, Right::Asks, self.settings.costs.cx);
    }

    fn spin_lock(&mut self, p: usize, t: usize, site: SiteId) {
        self.take(p, t, site, Right::Plain, self.settings.costs.spin_lock);
    }

    fn take(&mut self, p: usize, t: usize, site: SiteId, right: Right, cost: u32) {
        let lock = self.code.site(site).lock;
        if self.is_held(lock) {
            return self.wait(p, t, lock);
        }
        let (word, from) = (self.code.word_of(lock), self.lock_state(lock));
        let value = self.memory.value(word) + 1;
        match self.touch(p, t, word, Some(value), right) {
            Touch::Done { cycles, .. } => {
                self.hold(lock, t);
                self.transition(lock, from, Event::Exclusive);
                self.stats.locks[lock].acquired += 1;
                self.go_in(p, t, site, Held::Lock(Unit::default()), cost + cycles);
            }
            Touch::Refused => {
                self.transition(lock, from, Event::Exclusive);
                self.threads[t].top().rounds += 1;
                self.go(p, 20, Spent::Spin);
                self.processors[p].waits = Some(lock);
            }
            Touch::Lost => unreachable!("there is no transaction to lose"),
        }
    }

    fn hold(&mut self, lock: usize, t: usize) {
        let state = &mut self.locks[lock];
        let (before, inside) = (state.holder.replace(t), state.inside.len());
        let name = &self.code.locks[lock].name;
        if let Some(other) = before {
            self.checks.broken(format!("{name}: held by threads {other} and {t}"));
        }
        if inside > 0 {
            self.checks.broken(format!("{name}: held with {inside} transactions inside"));
        }
    }

    /// `spin_lock` in a transaction writes the lock (Table 2): only one is inside.
    fn spin_lock_inside(&mut self, p: usize, t: usize, site: SiteId) {
        let lock = self.code.site(site).lock;
        let word = self.code.word_of(lock);
        let Touch::Done { value, .. } = self.touch(p, t, word, None, Right::Plain) else {
            return self.lost(p);
        };
        if value % 2 == 1 {
            return self.wait(p, t, lock);
        }
        let Touch::Done { cycles, .. } = self.touch(p, t, word, Some(value + 1), Right::Plain)
        else {
            return self.lost(p);
        };
        self.stats.locks[lock].acquired += 1;
        self.go_in(p, t, site, Held::LockIn, self.settings.costs.spin_lock + cycles);
    }

    fn sequence(&mut self, p: usize, t: usize, site: SiteId) {
        let lock = self.code.site(site).lock;
        if self.is_held(lock) {
            return self.wait(p, t, lock);
        }
        let word = self.code.word_of(lock);
        let Touch::Done { cycles, value } = self.touch(p, t, word, None, Right::Plain) else {
            unreachable!("there is no transaction to lose");
        };
        // Several read at once.
        let stats = &mut self.stats.sites[usize::from(site)];
        stats.inside += 1;
        stats.most = stats.most.max(stats.inside);
        self.go_in(p, t, site, Held::Sequence(value, Unit::default()), cycles);
    }

    pub(super) fn exit(&mut self, p: usize, t: usize) {
        let frame = self.threads[t].top().frames.pop().expect("a section that ends has begun");
        let site = usize::from(frame.site);
        match frame.held {
            Held::Lock(unit) => self.unlock(p, t, site, frame.start, &unit),
            Held::LockIn => {
                let word = self.code.word_of(self.code.sites[site].lock);
                let free = self.memory.value(word) + 1;
                match self.touch(p, t, word, Some(free), Right::Plain) {
                    Touch::Done { cycles, .. } => self.leave(p, t, site, cycles),
                    Touch::Lost | Touch::Refused => self.lost(p),
                }
            }
            Held::Transaction => {
                self.stats.sites[site].inside -= 1;
                let context = self.threads[t].top();
                let key = context.tx.expect("a section of a transaction");
                if self.txs.get(key).start.1 == context.frames.len() {
                    self.commit(p, t, key, site);
                }
                self.leave(p, t, site, self.settings.costs.begin);
            }
            Held::Sequence(number, unit) => {
                self.stats.sites[site].inside -= 1;
                let word = self.code.word_of(self.code.sites[site].lock);
                let touched = self.touch(p, t, word, None, Right::Plain);
                let Touch::Done { cycles, value } = touched else {
                    unreachable!("there is no transaction to lose");
                };
                if value != number {
                    self.threads[t].top().pc = frame.start;
                    return self.go(p, u64::from(cycles), Spent::Spin);
                }
                self.checks.unit(&self.code.sites[site].name, &unit);
                self.leave(p, t, site, cycles);
            }
        }
    }

    /// The step after the end of a section.
    fn leave(&mut self, p: usize, t: usize, site: usize, cycles: u32) {
        self.stats.sites[site].executions += 1;
        let context = self.threads[t].top();
        context.pc += 1;
        if context.tx.is_none() && context.frames.is_empty() {
            (context.standing, context.status, context.paused) = (None, None, 0);
        }
        let spent = self.work(t);
        let spent = if spent == Spent::Kernel { Spent::Section } else { spent };
        self.go(p, u64::from(cycles), spent);
    }

    fn unlock(&mut self, p: usize, t: usize, site: usize, start: usize, unit: &Unit) {
        let lock = self.code.sites[site].lock;
        self.checks.unit(&self.code.sites[site].name, unit);
        let word = self.code.word_of(lock);
        let value = self.memory.value(word) + 1;
        let cycles = match self.touch(p, t, word, Some(value), Right::Plain) {
            Touch::Done { cycles, .. } => cycles,
            Touch::Lost | Touch::Refused => unreachable!("there is no transaction to lose"),
        };
        let from = self.lock_state(lock);
        self.locks[lock].holder = None;
        self.transition(lock, from, Event::End);
        self.wake(lock);
        let context = self.threads[t].top();
        context.status = context.status.filter(|(at, _)| *at != start);
        self.leave(p, t, site, cycles);
    }

    /// `xend` of the outermost section.
    fn commit(&mut self, _p: usize, t: usize, key: Key, site: usize) {
        let tx = self.txs.remove(key);
        self.memory.release(key, &tx, false);
        self.checks.unit(&self.code.sites[site].name, &tx.unit);
        self.leave_locks_of(key, &tx, Event::End);
        self.resolve(&tx, Spent::Section);
        self.stats.commits += 1;
        self.stats.locks[self.code.sites[site].lock].transactions += 1;
        self.stats.committed_cycles += tx.cost.iter().map(|(_, n)| n).sum::<u64>();
        self.stats.most_losses = self.stats.most_losses.max(tx.standing.losses);
        let paused = self.threads[t].top().paused;
        self.threads[t].top().tx = None;
        let profile = &mut self.threads[t].profile;
        average(&mut profile.pauses, paused as f64);
        average(&mut profile.size, tx.size() as f64);
    }

    /// What an attempt took is known to count, or to be lost.
    fn resolve(&mut self, tx: &Tx, as_what: Spent) {
        for (p, cycles) in &tx.cost {
            let spent = &mut self.processors[*p].spent;
            spent[Spent::Attempt as usize] -= cycles;
            spent[as_what as usize] += cycles;
        }
        // What is under way there is of an attempt that is no more.
        for processor in &mut self.processors {
            if processor.current == Some(tx.thread) {
                processor.attempt = None;
            }
        }
    }

    /// A transaction is out of the locks that it had found free.
    pub(super) fn leave_locks(&mut self, key: Key, event: Event) {
        let tx = self.txs.get(key);
        let (locks, undo) = (tx.locks.clone(), tx.undo.iter().map(|(at, _)| *at).collect());
        self.leave_each(key, &locks, undo, event);
    }

    fn leave_locks_of(&mut self, key: Key, tx: &Tx, event: Event) {
        let written = tx.undo.iter().map(|(at, _)| *at).collect();
        self.leave_each(key, &tx.locks, written, event);
    }

    fn leave_each(&mut self, key: Key, locks: &[usize], written: Vec<u32>, event: Event) {
        for lock in locks {
            let from = self.lock_state(*lock);
            self.locks[*lock].inside.retain(|k| *k != key);
            self.transition(*lock, from, event);
        }
        // Locks that it had written are free as well.
        for lock in 0..self.locks.len() {
            if !self.locks[lock].waiters.is_empty() && written.contains(&self.code.word_of(lock)) {
                self.wake(lock);
            }
        }
    }

    /// An attempt is undone: back to where the section began.
    pub(super) fn restart(&mut self, p: usize, t: usize) {
        let key = self.threads[t].top().tx.take().expect("a transaction was lost");
        let tx = self.txs.remove(key);
        let cause = tx.doomed.expect("it was lost");
        let cycles: u64 = tx.cost.iter().map(|(_, n)| n).sum();
        self.resolve(&tx, Spent::Restart);
        self.stats.restarts[cause.index()] += 1;
        if cause == Cause::NeedExclusive {
            self.stats.io_cycles += cycles;
        }
        let contended = matches!(cause, Cause::Conflict | Cause::Asymmetric);
        let costs = &self.settings.costs;
        let context = self.threads[t].contexts.last_mut().expect("a thread has its own");
        for frame in context.frames.drain(tx.start.1..) {
            if matches!(frame.held, Held::Transaction) {
                self.stats.sites[usize::from(frame.site)].inside -= 1;
            }
        }
        (context.pc, context.left) = (tx.start.0, 0);
        context.status = Some((tx.start.0, cause));
        if let (true, Some(standing)) = (contended, &mut context.standing) {
            standing.losses += 1;
            standing.karma += tx.size();
            let most = u64::from(costs.backoff) << standing.losses.min(costs.doublings);
            let pause = self.random.u64(0..most);
            context.pause = self.clock.now + pause;
            context.paused += pause;
            self.threads[t].profile.restarts += 1;
            self.threads[t].profile.backoff += pause;
        }
        let cycles = u64::from(costs.restart) + tx.undo.len() as u64;
        self.go(p, cycles, Spent::Restart);
    }
}
