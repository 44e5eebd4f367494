//! A few words that are read without writing to memory.

use crate::base::Base;
use crate::cell::Word;
use crate::hardware::{Hardware, Place};
use crate::native::Native;
use crate::policy::{Fair, Policy};
use crate::stats::Stats;
use crate::sync::{Apart, AtomicU64};
use crate::tx::{Mode, Tx};
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

/// `N` words that belong together.  Readers copy them out and look at a number before and after;
/// writers run as transactions where they can, so that a reader seldom meets one half done.
pub struct CxSeqLock<W, const N: usize, H = Native> {
    base: Base<H>,
    /// Odd while a writer with the lock is at work; another one after each change.
    sequence: Apart<AtomicU64>,
    words: [AtomicU64; N],
    holds: PhantomData<fn(W) -> W>,
}

impl<W: Word, const N: usize> CxSeqLock<W, N> {
    /// Words on this processor, with the usual policy.
    #[must_use]
    pub fn new(words: [W; N]) -> Self {
        Self::with(words, Native, &Fair)
    }
}

impl<W: Word, const N: usize, H: Hardware> CxSeqLock<W, N, H> {
    /// Words with such hardware and such a policy.
    pub fn with(words: [W; N], hardware: H, policy: &'static dyn Policy) -> Self {
        Self {
            base: Base::new(hardware, policy),
            sequence: Apart::default(),
            words: words.map(|word| AtomicU64::new(word.to_bits())),
            holds: PhantomData,
        }
    }

    /// The words, as some writer has left them.
    pub fn read(&self) -> [W; N] {
        let hardware = &self.base.hardware;
        let sequence = Place(&self.sequence.0);
        let mut round = 0;
        loop {
            // Each load acquires, so none moves before an earlier one; each store of a writer
            // releases, so a word that is new comes with a sequence that is.
            let before = hardware.load(sequence);
            if before % 2 == 0 {
                let words = self.words.each_ref().map(|word| hardware.load(Place(word)));
                if hardware.load(sequence) == before {
                    return words.map(W::from_bits);
                }
            }
            hardware.pause(round);
            round = round.saturating_add(1);
        }
    }

    /// Sets the words to what becomes of them, and returns that.
    #[track_caller]
    pub fn write(&self, change: impl Fn([W; N]) -> [W; N]) -> [W; N] {
        self.base.optimistic(Location::caller(), |mode| self.once(mode, &change))
    }

    /// As [`CxSeqLock::write`], with the lock, once.
    pub fn exclusive(&self, change: impl FnOnce([W; N]) -> [W; N]) -> [W; N] {
        self.base.begin_exclusive();
        self.once(Mode::Exclusive, change)
    }

    fn once(&self, mode: Mode, change: impl FnOnce([W; N]) -> [W; N]) -> [W; N] {
        self.base.section(mode, || true, || (), |t| self.change(t, change))
    }

    fn change<'t>(&'t self, t: &Tx<'t, '_, H>, change: impl FnOnce([W; N]) -> [W; N]) -> [W; N] {
        let sequence = &self.sequence.0;
        let before = t.load(sequence);
        // The caller's code runs before anything is written: it may panic.
        let words = change(self.words.each_ref().map(|word| W::from_bits(t.load(word))));
        if t.mode() != Mode::Optimistic {
            t.store(sequence, before.wrapping_add(1));
        }
        for (word, to) in self.words.iter().zip(words) {
            t.store(word, to.to_bits());
        }
        t.store(sequence, before.wrapping_add(2));
        words
    }

    /// What the lock of the writers has gone through.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.base.counters.stats()
    }
}

impl<W, const N: usize, H> fmt::Debug for CxSeqLock<W, N, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CxSeqLock").finish_non_exhaustive()
    }
}
