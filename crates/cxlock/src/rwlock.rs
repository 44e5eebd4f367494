//! A lock for readers and writers.

use crate::base::Base;
use crate::hardware::{Hardware, Place};
use crate::native::Native;
use crate::policy::{Fair, Policy};
use crate::stats::Stats;
use crate::sync::{Apart, AtomicU64};
use crate::tx::{Mode, Reader, Tx};
use std::fmt;
use std::panic::Location;

/// Data that sections read or write.  Sections of both kinds run as transactions where they can;
/// where not, readers share the lock and a writer has it alone.
///
/// A waiting writer keeps new readers out.
pub struct CxRwLock<T, H = Native> {
    base: Base<H>,
    /// Readers that hold the lock.
    readers: Apart<AtomicU64>,
    data: T,
}

impl<T> CxRwLock<T> {
    /// A lock on this processor, with the usual policy.
    #[must_use]
    pub fn new(data: T) -> Self {
        Self::with(data, Native, &Fair)
    }
}

impl<T, H: Hardware> CxRwLock<T, H> {
    /// A lock with such hardware and such a policy.
    pub fn with(data: T, hardware: H, policy: &'static dyn Policy) -> Self {
        Self { base: Base::new(hardware, policy), readers: Apart::default(), data }
    }

    /// Runs a section that reads.
    #[track_caller]
    pub fn read<'env, R>(&'env self, section: impl for<'t> Fn(&Reader<'t, H>, &'t T) -> R) -> R {
        self.base.optimistic(Location::caller(), |mode| match mode {
            // Who reads does not care for others who do: not a look at their count.
            Mode::Optimistic => self.base.section(mode, || true, || (), |t| section(t, &self.data)),
            Mode::Exclusive | Mode::Shared => self.shared(&section),
        })
    }

    fn shared<'t, R>(&'t self, section: impl FnOnce(&Reader<'t, H>, &'t T) -> R) -> R {
        // Through the gate of writers, so that a writer who waits is not passed for ever.
        self.base.take();
        self.count(1);
        self.base.release();
        let _leaves = Leaves(self);
        section(&Reader::new(&self.base.hardware, Mode::Shared), &self.data)
    }

    fn count(&self, by: i64) -> u64 {
        let (hardware, place) = (&self.base.hardware, Place(&self.readers.0));
        loop {
            let before = hardware.load(place);
            let after = before.wrapping_add_signed(by);
            if hardware.exchange(place, before, after) {
                return after;
            }
        }
    }

    /// Runs a section that writes.
    #[track_caller]
    pub fn write<'env, R>(&'env self, section: impl for<'t> Fn(&Tx<'t, 'env, H>, &'t T) -> R) -> R {
        self.base.optimistic(Location::caller(), |mode| self.once(mode, &section))
    }

    /// Runs a section that writes, alone, once.
    pub fn exclusive<'env, R>(
        &'env self,
        section: impl for<'t> FnOnce(&Tx<'t, 'env, H>, &'t T) -> R,
    ) -> R {
        self.base.begin_exclusive();
        self.once(Mode::Exclusive, section)
    }

    fn once<'env, R>(
        &'env self,
        mode: Mode,
        section: impl for<'t> FnOnce(&Tx<'t, 'env, H>, &'t T) -> R,
    ) -> R {
        let alone = || self.base.hardware.load(Place(&self.readers.0)) == 0;
        let wait = || {
            if !alone() {
                self.base.raw.wait_until(&self.base.hardware, alone);
            }
        };
        self.base.section(mode, alone, wait, |t| section(t, &self.data))
    }

    /// What the lock has gone through.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.base.counters.stats()
    }

    /// The data.
    pub fn into_inner(self) -> T {
        self.data
    }
}

/// A reader that has the lock until it is dropped.
struct Leaves<'a, T, H: Hardware>(&'a CxRwLock<T, H>);

impl<T, H: Hardware> Drop for Leaves<'_, T, H> {
    fn drop(&mut self) {
        if self.0.count(-1) == 0 {
            self.0.base.raw.wake();
        }
    }
}

impl<T, H> fmt::Debug for CxRwLock<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CxRwLock").finish_non_exhaustive()
    }
}
