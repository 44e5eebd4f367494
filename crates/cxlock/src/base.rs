//! What all kinds of locks here stand on: the protocol of attempts and of the way back to the lock.

use crate::cause::Cause;
use crate::hardware::Hardware;
use crate::policy::{Contest, Failed, Next, Policy, Verdict};
use crate::raw::Raw;
use crate::site::{self, Site};
use crate::stats::{Counters, Event};
use crate::sync::{AtomicU64, Ordering};
use crate::tx::{Mode, Tx};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

pub(crate) struct Base<H> {
    pub(crate) hardware: H,
    pub(crate) raw: Raw,
    policy: &'static dyn Policy,
    pub(crate) counters: Counters,
    /// Exclusive sections that want the lock.
    waiting: AtomicU64,
    /// Optimistic sections that wait until it is free.
    polling: AtomicU64,
}

impl<H: Hardware> Base<H> {
    pub(crate) fn new(hardware: H, policy: &'static dyn Policy) -> Self {
        Self {
            hardware,
            raw: Raw::default(),
            policy,
            counters: Counters::new(),
            waiting: AtomicU64::new(0),
            polling: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.raw.is_free(&self.hardware)
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn polling(&self) -> u64 {
        self.polling.load(Ordering::Relaxed)
    }

    /// Runs a section as a transaction, or with the lock where that does not go.
    ///
    /// `section` runs it once, as [`Base::section`] does.
    pub(crate) fn optimistic<R>(
        &self,
        at: &'static Location<'static>,
        section: impl Fn(Mode) -> R,
    ) -> R {
        if !self.hardware.present() {
            self.counters.add(Event::Fallback, 1);
            return section(Mode::Exclusive);
        }
        if self.hardware.active() {
            self.hardware.abort(Cause::Nested);
        }
        let site = site::of(at);
        if !site.skips()
            && let Some(done) = self.attempts(site, &section)
        {
            return done;
        }
        self.counters.add(Event::Fallback, 1);
        section(Mode::Exclusive)
    }

    /// Attempts until one commits; `None` if the lock is the better way.
    fn attempts<R>(&self, site: &Site, section: &impl Fn(Mode) -> R) -> Option<R> {
        let mut tries = [0; Cause::ALL.len()];
        loop {
            self.poll();
            let begun = self.hardware.ticks();
            self.counters.add(Event::Begun, 1);
            let cause = match self.attempt(section) {
                Ok(done) => {
                    site.note(None);
                    return Some(done);
                }
                Err(cause) => cause,
            };
            self.counters.add(Event::Restart(cause), 1);
            self.counters.add(Event::Wasted, self.hardware.ticks().saturating_sub(begun));
            site.note(Some(cause));
            tries[cause.index()] += 1;
            let failed = Failed { cause, tries, averages: site.averages() };
            match self.policy.after(&failed) {
                Next::Again(rounds) => (0..rounds).for_each(|round| self.hardware.pause(round)),
                Next::Exclusive => {
                    site.give_up(cause);
                    return None;
                }
            }
        }
    }

    /// One attempt.
    fn attempt<R>(&self, section: &impl Fn(Mode) -> R) -> Result<R, Cause> {
        let attempt = AssertUnwindSafe(|| {
            self.hardware.begin()?;
            Ok(section(Mode::Optimistic))
        });
        // Nothing of what the section saw is used after an unwinding: it starts again.
        catch_unwind(attempt).unwrap_or_else(|payload| {
            match self.hardware.caught(&*payload) {
                Some(cause) => Err(cause),
                // Not in a transaction any more: it is nobody's to start again.
                None => std::panic::resume_unwind(payload),
            }
        })
    }

    /// Looks at the lock from outside of a transaction until one may begin.
    fn poll(&self) {
        let mut begun = None;
        let mut rounds = 0;
        loop {
            if !self.is_free() || self.raw.has_heir() {
                begun.get_or_insert_with(|| self.hardware.ticks());
                self.not_mine();
                self.polling.fetch_add(1, Ordering::Relaxed);
                self.raw.wait_free(&self.hardware);
                self.polling.fetch_sub(1, Ordering::Relaxed);
            }
            if self.waiting() == 0 {
                break;
            }
            let contest =
                Contest { inside: self.counters.inside(), waiting: self.waiting(), rounds };
            if self.policy.optimistic(&contest) == Verdict::Proceed {
                break;
            }
            begun.get_or_insert_with(|| self.hardware.ticks());
            self.hardware.pause(rounds);
            rounds = rounds.saturating_add(1);
        }
        self.waited_since(begun);
    }

    fn waited_since(&self, begun: Option<u64>) {
        if let Some(begun) = begun {
            self.counters.add(Event::Waits, 1);
            self.counters.add(Event::Waited, self.hardware.ticks().saturating_sub(begun));
        }
    }

    /// Ends a thread that would wait for itself.
    fn not_mine(&self) {
        assert!(
            !self.raw.is_mine(&self.hardware),
            "a section of a lock was entered within an exclusive section of the same lock without \
             its transaction, and would wait for itself for ever: pass `t` on (`optimistic_in`, \
             `exclusive_in`)"
        );
    }

    /// A transaction that this thread is in starts again, exclusively.
    fn leave_transaction(&self) {
        if self.hardware.active() {
            self.hardware.abort(Cause::NeedExclusive);
        }
    }

    /// Before a section that was asked for as an exclusive one.
    pub(crate) fn begin_exclusive(&self) {
        self.leave_transaction();
        self.counters.add(Event::Exclusive, 1);
    }

    /// Takes the lock for an exclusive section, as the policy allows.
    pub(crate) fn take(&self) {
        self.leave_transaction();
        let begun = Cell::new(None);
        if !self.is_free() {
            self.not_mine();
            begun.set(Some(self.hardware.ticks()));
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = self.raw.take(&self.hardware, || self.arbitrate(&begun));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        match begun.get() {
            Some(_) => self.waited_since(begun.get()),
            None if waited => self.counters.add(Event::Waits, 1),
            None => {}
        }
    }

    /// Waits for optimistic sections inside as long as the policy says.
    fn arbitrate(&self, begun: &Cell<Option<u64>>) {
        if !self.hardware.present() {
            return;
        }
        let mut rounds = 0;
        loop {
            let inside = self.counters.inside();
            if inside == 0 || !self.is_free() {
                return;
            }
            let contest = Contest { inside, waiting: self.waiting(), rounds };
            if self.policy.exclusive(&contest) == Verdict::Proceed {
                return;
            }
            if begun.get().is_none() {
                begun.set(Some(self.hardware.ticks()));
            }
            self.hardware.pause(rounds);
            rounds = rounds.saturating_add(1);
        }
    }

    pub(crate) fn release(&self) {
        self.raw.release(&self.hardware);
    }

    /// Runs a section once.  `free` looks, in a transaction, whether it may run; `ready` waits,
    /// with the lock taken, until it may.
    pub(crate) fn section<'t, 'env: 't, R>(
        &'t self,
        mode: Mode,
        free: impl FnOnce() -> bool,
        ready: impl FnOnce(),
        body: impl FnOnce(&Tx<'t, 'env, H>) -> R,
    ) -> R {
        if mode == Mode::Optimistic {
            let tx = Tx::new(self, mode);
            if !self.is_free() || !free() {
                self.hardware.abort(Cause::Locked);
            }
            let done = body(&tx);
            tx.commit();
            self.counters.add(Event::Optimistic, 1);
            self.after(tx);
            return done;
        }
        self.take();
        let mut held = Held { base: self, tx: Some(Tx::new(self, mode)) };
        ready();
        let done = held.tx.as_ref().map(body);
        let tx = held.tx.take();
        if let Some(tx) = &tx {
            tx.let_go();
        }
        drop(held);
        if let Some(tx) = tx {
            self.after(tx);
        }
        done.unwrap_or_else(|| unreachable!("the section has its transaction"))
    }

    /// After the end of a section: what must not be in it.
    fn after(&self, tx: Tx<'_, '_, H>) {
        if tx.nested() > 0 {
            self.counters.add(Event::Nested, u64::from(tx.nested()));
        }
        for parking in tx.into_wakes() {
            parking.wake();
        }
    }
}

/// An exclusive section: lets the lock go however it ends, and undoes it if it panics.
struct Held<'a, 't, 'env, H: Hardware> {
    base: &'a Base<H>,
    /// Taken out when the section has ended well.
    tx: Option<Tx<'t, 'env, H>>,
}

impl<H: Hardware> Drop for Held<'_, '_, '_, H> {
    fn drop(&mut self) {
        if let Some(tx) = &self.tx {
            tx.undo();
            tx.let_go();
        }
        self.base.release();
    }
}
