//! The lock.

use crate::base::Base;
use crate::condvar::CxCondvar;
use crate::hardware::Hardware;
use crate::native::Native;
use crate::policy::{Fair, Policy};
use crate::stats::Stats;
use crate::tx::{Mode, Tx};
use std::fmt;
use std::panic::Location;

/// Data whose sections run as hardware transactions where they can, and take the lock where they
/// cannot.
///
/// The data is shared by all that are in a section, so what sections change is in
/// [`crate::TxCell`]s.  What a section changes elsewhere (an atomic, a `Mutex` in the data) is not
/// undone by the model, nor when the section panics.
///
/// A section may run several times before it counts.  It says what it did by what it returns.
///
/// # Panics
/// A section that is entered within an exclusive section of the same lock, without its `t`, would
/// wait for itself: that panics.  A section that panics leaves the data as it was before, lets the
/// lock go, and the panic goes on in the caller.
pub struct CxLock<T, H = Native> {
    base: Base<H>,
    data: T,
}

/// What a look at a lock from outside finds.  It may have changed when it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether an exclusive section is inside.
    pub exclusive: bool,
    /// Attempts of optimistic sections that are under way.
    pub optimistic: u64,
    /// Exclusive sections that want the lock.
    pub waiting: u64,
    /// Optimistic sections that wait until the exclusive one has ended.
    pub polling: u64,
}

impl<T> CxLock<T> {
    /// A lock on this processor, with the usual policy.
    #[must_use]
    pub fn new(data: T) -> Self {
        Self::with(data, Native, &Fair)
    }
}

impl<T, H: Hardware> CxLock<T, H> {
    /// A lock with such hardware and such a policy.
    pub fn with(data: T, hardware: H, policy: &'static dyn Policy) -> Self {
        Self { base: Base::new(hardware, policy), data }
    }

    /// Runs a section as a transaction of the processor; where that does not go, with the lock.
    ///
    /// Optimistic sections run at the same time as long as they touch different data.  What goes
    /// wrong is remembered for the place in the program from which this is called.
    ///
    /// Within a transaction of another lock it starts that section again, exclusively;
    /// [`CxLock::optimistic_in`] does not.
    #[track_caller]
    pub fn optimistic<'env, R>(
        &'env self,
        section: impl for<'t> Fn(&Tx<'t, 'env, H>, &'t T) -> R,
    ) -> R {
        self.optimistic_at(Location::caller(), section)
    }

    fn optimistic_at<'env, R>(
        &'env self,
        at: &'static Location<'static>,
        section: impl for<'t> Fn(&Tx<'t, 'env, H>, &'t T) -> R,
    ) -> R {
        self.base.optimistic(at, |mode| self.once(mode, &section))
    }

    /// Runs a section with the lock, once.
    ///
    /// Optimistic sections that are inside are waited for or aborted, as the policy says.  Within a
    /// transaction of another lock it starts that section again, exclusively.
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
        self.base.section(mode, || true, || (), |t| section(t, &self.data))
    }

    /// Runs a section as a part of another one: both are undone or stay as a whole.
    ///
    /// If the outer section is a transaction so is this one, in the same transaction.  If it has
    /// its lock, this one takes its own, and keeps it until the outermost section ends: locks that
    /// are nested are to be taken in one order everywhere.
    pub fn optimistic_in<'t, 'env, R>(
        &'t self,
        t: &Tx<'t, 'env, H>,
        section: impl FnOnce(&Tx<'t, 'env, H>, &'t T) -> R,
    ) -> R {
        t.enter(&self.base);
        section(t, &self.data)
    }

    /// As [`CxLock::optimistic_in`], with the locks of both: a transaction starts again first.
    pub fn exclusive_in<'t, 'env, R>(
        &'t self,
        t: &Tx<'t, 'env, H>,
        section: impl FnOnce(&Tx<'t, 'env, H>, &'t T) -> R,
    ) -> R {
        t.io(|| t.enter(&self.base));
        section(t, &self.data)
    }

    /// Runs a section until it gives something, and sleeps in between until there is a
    /// notification.
    ///
    /// What the section did is committed before it sleeps, as a condition variable lets its lock
    /// go.
    ///
    /// ```
    /// use cxlock::{CxCondvar, CxLock, TxCell};
    /// let (queue, filled) = (CxLock::new(TxCell::new(0u32)), CxCondvar::new());
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         queue.optimistic(|t, items| {
    ///             items.update(t, |n| n + 1);
    ///             filled.notify_all(t);
    ///         })
    ///     });
    ///     queue.wait(&filled, |t, items| {
    ///         let n = items.get(t).checked_sub(1)?;
    ///         items.set(t, n);
    ///         Some(())
    ///     });
    /// });
    /// ```
    #[track_caller]
    pub fn wait<'env, R>(
        &'env self,
        condition: &CxCondvar,
        section: impl for<'t> Fn(&Tx<'t, 'env, H>, &'t T) -> Option<R>,
    ) -> R {
        let at = Location::caller();
        loop {
            let (seen, done) =
                self.optimistic_at(at, |t, data| (condition.seen(t), section(t, data)));
            match done {
                Some(done) => return done,
                None => condition.sleep(&self.base.hardware, seen),
            }
        }
    }

    /// Looks at the lock from outside, in no transaction: what loops that poll want.
    ///
    /// In a transaction the lock word would join what it has read, and its change would abort it.
    /// Processors have no look that does not, so this promises less than the paper's `xtest`: what
    /// it says may be over.
    #[must_use]
    pub fn look(&self) -> Look {
        Look {
            exclusive: !self.base.is_free(),
            optimistic: self.base.counters.inside(),
            waiting: self.base.waiting(),
            polling: self.base.polling(),
        }
    }

    /// What the lock has gone through.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.base.counters.stats()
    }

    /// The data, for the only one who has the lock.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.data
    }

    /// The data.
    pub fn into_inner(self) -> T {
        self.data
    }
}

impl<T, H> fmt::Debug for CxLock<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CxLock").finish_non_exhaustive()
    }
}
