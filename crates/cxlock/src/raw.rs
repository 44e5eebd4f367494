//! The lock word: who has it, who sleeps for it, who comes next.
//!
//! The word is 0, or the token of the thread in the exclusive section times two, plus one if
//! somebody may sleep.  Whoever takes the lock after having slept says that somebody may, so no
//! sleeper is forgotten.  A thread that has been overtaken often becomes the *heir*: until it has
//! had the lock nobody else takes it.

use crate::hardware::{Hardware, Place};
use crate::sync::{Apart, AtomicU64, Condvar, Mutex, Ordering, lock, token, wait};
use std::collections::VecDeque;

const FREE: u64 = 0;
const ASLEEP: u64 = 1;
/// Looks at a held lock before sleep.
const SPINS: u32 = if cfg!(loom) { 1 } else { 40 };
/// Times that a sleeper wakes up for nothing before it becomes the heir.
const LOSSES: u32 = if cfg!(loom) { 1 } else { 4 };

#[derive(Debug, Default)]
pub(crate) struct Raw {
    word: Apart<AtomicU64>,
    /// The token of the thread that is next, or 0.
    heir: Apart<AtomicU64>,
    /// Also the lock of whoever is about to sleep.
    line: Mutex<Line>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    /// Heirs in turn.
    heirs: VecDeque<u64>,
    /// Sleepers that wait until the lock is free, but do not take it.
    watchers: u32,
}

impl Raw {
    /// Whether nobody is in an exclusive section.  In a transaction: and that it stays so.
    #[inline]
    pub(crate) fn is_free(&self, hardware: &impl Hardware) -> bool {
        hardware.load(Place(&self.word.0)) == FREE
    }

    /// Whether this thread is in the exclusive section.
    pub(crate) fn is_mine(&self, hardware: &impl Hardware) -> bool {
        hardware.load(Place(&self.word.0)) >> 1 == token()
    }

    /// Whether a thread has been overtaken so often that others let it pass.
    pub(crate) fn has_heir(&self) -> bool {
        self.heir.0.load(Ordering::Relaxed) != 0
    }

    fn try_take(&self, hardware: &impl Hardware, flag: u64) -> bool {
        let heir = self.heir.0.load(Ordering::Acquire);
        (heir == 0 || heir == token())
            && hardware.exchange(Place(&self.word.0), FREE, token() << 1 | flag)
    }

    /// Takes the lock; `true` if it had to wait.  `may` is asked before each attempt.
    pub(crate) fn take(&self, hardware: &impl Hardware, may: impl Fn()) -> bool {
        may();
        if self.try_take(hardware, 0) {
            return false;
        }
        for round in 0..SPINS {
            hardware.pause(round);
            if self.is_free(hardware) && !self.has_heir() {
                may();
                if self.try_take(hardware, 0) {
                    return true;
                }
            }
        }
        self.take_slowly(hardware, may);
        true
    }

    #[cold]
    fn take_slowly(&self, hardware: &impl Hardware, may: impl Fn()) {
        let mut losses = 0;
        loop {
            // Policies may wait; never with the mutex of the line.
            may();
            let mut line = lock(&self.line);
            if self.try_take(hardware, ASLEEP) {
                if self.heir.0.load(Ordering::Relaxed) == token() {
                    line.heirs.pop_front();
                    self.heir.0.store(line.heirs.front().copied().unwrap_or(0), Ordering::Release);
                }
                return;
            }
            if losses == LOSSES {
                line.heirs.push_back(token());
                if line.heirs.len() == 1 {
                    self.heir.0.store(token(), Ordering::Release);
                    losses += 1;
                    continue;
                }
            }
            losses += 1;
            if self.say_asleep(hardware) {
                drop(wait(&self.changed, line));
            }
        }
    }

    /// Waits until the lock is free; it may be taken again when this comes back.
    pub(crate) fn wait_free(&self, hardware: &impl Hardware) {
        for round in 0..SPINS {
            if self.is_free(hardware) && !self.has_heir() {
                return;
            }
            hardware.pause(round);
        }
        self.wait_until(hardware, || self.is_free(hardware) && !self.has_heir());
    }

    /// Sleeps until something holds that changes with the end of an exclusive section, or with
    /// [`Raw::wake`].
    #[cold]
    pub(crate) fn wait_until(&self, hardware: &impl Hardware, holds: impl Fn() -> bool) {
        let mut line = lock(&self.line);
        line.watchers += 1;
        while !holds() {
            // An heir changes under the mutex only: it is still to take the lock, and its end
            // wakes.
            if self.has_heir() || self.say_asleep(hardware) {
                line = wait(&self.changed, line);
            }
        }
        line.watchers -= 1;
    }

    /// Sees to it that the end of the exclusive section wakes; `false` if it may have ended.
    fn say_asleep(&self, hardware: &impl Hardware) -> bool {
        let seen = hardware.load(Place(&self.word.0));
        if seen == FREE {
            // Free, and kept for the heir, who takes it with the flag: its end wakes.
            let heir = self.heir.0.load(Ordering::Acquire);
            return heir != 0 && heir != token();
        }
        seen & ASLEEP != 0 || hardware.exchange(Place(&self.word.0), seen, seen | ASLEEP)
    }

    /// Lets the lock go.
    pub(crate) fn release(&self, hardware: &impl Hardware) {
        if hardware.swap(Place(&self.word.0), FREE) & ASLEEP != 0 {
            self.wake();
        }
    }

    /// Wakes one sleeper, or all where a certain one has to be among them.
    #[cold]
    pub(crate) fn wake(&self) {
        let line = lock(&self.line);
        if line.heirs.is_empty() && line.watchers == 0 {
            self.changed.notify_one();
        } else {
            self.changed.notify_all();
        }
    }
}
