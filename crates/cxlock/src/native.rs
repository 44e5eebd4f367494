//! The transactions of this machine's processor, if it has any.

use crate::cause::Cause;
use crate::hardware::{Hardware, Place, sealed};
use crate::sync::Ordering;
use std::any::Any;

/// This processor.  Without transactional memory every section takes its lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Native;

impl sealed::Sealed for Native {}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod rtm {
    pub(super) use crate::rtm_unsafe::{STARTED, abort, begin, end, test, ticks};
    use std::sync::atomic::{AtomicU8, Ordering};

    /// 0: not looked yet; 1: none; 2: some.
    static FOUND: AtomicU8 = AtomicU8::new(0);
    /// Transactions that are tried before one must have committed.
    const TRIALS: u32 = 64;

    #[inline]
    pub(super) fn present() -> bool {
        match FOUND.load(Ordering::Relaxed) {
            0 => look(),
            found => found == 2,
        }
    }

    /// A processor or an emulator may announce transactions none of which ever commits.
    #[cold]
    fn look() -> bool {
        let found = crate::rtm_unsafe::announced()
            && (0..TRIALS).any(|_| {
                let started = begin() == STARTED;
                if started {
                    end();
                }
                started
            });
        FOUND.store(1 + u8::from(found), Ordering::Relaxed);
        found
    }
}

/// Where there are no transactions: nothing here is reached but `present` and `ticks`.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod rtm {
    pub(super) const STARTED: u32 = u32::MAX;
    pub(super) fn present() -> bool {
        false
    }
    pub(super) fn begin() -> u32 {
        0
    }
    pub(super) fn end() {}
    pub(super) fn abort<const CODE: u8>() {}
    pub(super) fn test() -> bool {
        false
    }
    pub(super) fn ticks() -> u64 {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let start = START.get_or_init(std::time::Instant::now);
        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Aborts with the code of a cause.
fn abort(cause: Cause) {
    const fn code(cause: Cause) -> u8 {
        match cause.code() {
            Some(code) => code,
            None => 0xff,
        }
    }
    match cause {
        Cause::NeedExclusive => rtm::abort::<{ code(Cause::NeedExclusive) }>(),
        Cause::Nested => rtm::abort::<{ code(Cause::Nested) }>(),
        Cause::Locked => rtm::abort::<{ code(Cause::Locked) }>(),
        Cause::Panicked => rtm::abort::<{ code(Cause::Panicked) }>(),
        Cause::Conflict | Cause::Capacity | Cause::Other => rtm::abort::<0xff>(),
    }
}

impl Hardware for Native {
    const BUFFERS: bool = false;

    #[inline]
    fn present(&self) -> bool {
        rtm::present()
    }

    #[inline(always)]
    fn begin(&self) -> Result<(), Cause> {
        match rtm::begin() {
            rtm::STARTED => Ok(()),
            status => Err(Cause::of_status(status)),
        }
    }

    #[inline(always)]
    fn commit(&self, _: &[(Place<'_>, u64)]) {
        rtm::end();
    }

    #[cold]
    fn abort(&self, cause: Cause) -> ! {
        abort(cause);
        unreachable!("a transaction is aborted outside of one");
    }

    fn caught(&self, _: &(dyn Any + Send)) -> Option<Cause> {
        // The panic has not met the kernel: it is undone like the rest, and happens again under
        // the lock.
        if self.active() {
            self.abort(Cause::Panicked);
        }
        None
    }

    #[inline]
    fn active(&self) -> bool {
        rtm::present() && rtm::test()
    }

    #[inline(always)]
    fn load(&self, place: Place<'_>) -> u64 {
        place.0.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, place: Place<'_>, value: u64) {
        place.0.store(value, Ordering::Release);
    }

    #[inline]
    fn exchange(&self, place: Place<'_>, from: u64, to: u64) -> bool {
        place.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    #[inline]
    fn swap(&self, place: Place<'_>, to: u64) -> u64 {
        place.0.swap(to, Ordering::AcqRel)
    }

    #[inline]
    fn ticks(&self) -> u64 {
        rtm::ticks()
    }
}
