//! The one door to the processor's transactions.

use crate::cause::Cause;
use crate::sync::AtomicU64;
use std::any::Any;
use std::fmt::Debug;

pub(crate) mod sealed {
    /// Keeps the trait to the implementations of this crate: the locks rest on what they promise.
    pub trait Sealed {}
}

/// A word of memory as sections see it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a>(pub(crate) &'a AtomicU64);

impl Place<'_> {
    pub(crate) fn address(self) -> usize {
        std::ptr::from_ref(self.0) as usize
    }
}

/// Transactions of the processor: [`crate::Native`], or the software model [`crate::Model`].
///
/// Within a transaction of this thread `load` and `store` belong to it.  Outside, they take effect
/// at once, and transactions of other threads that conflict with them abort (strong isolation).
/// Not to be implemented elsewhere.
pub trait Hardware: sealed::Sealed + Debug + Send + Sync {
    /// Whether writes of a transaction are kept beside the memory until its commit.
    const BUFFERS: bool;

    /// Whether transactions can commit here at all.
    fn present(&self) -> bool;

    /// Begins a transaction in this thread.
    ///
    /// # Errors
    /// The cause of an abort.  On the processor that is the second return of the same call, with
    /// everything since the first one undone; the model unwinds to [`Hardware::caught`] instead.
    fn begin(&self) -> Result<(), Cause>;

    /// Commits, with the writes that were buffered; may abort instead of coming back.
    fn commit(&self, writes: &[(Place<'_>, u64)]);

    /// Ends the transaction of this thread without effect.  Does not come back.
    fn abort(&self, cause: Cause) -> !;

    /// An unwinding has left the section of an attempt: undoes the attempt and says its cause.
    /// `None` if there is no attempt to undo.
    fn caught(&self, payload: &(dyn Any + Send)) -> Option<Cause>;

    /// Whether this thread is in a transaction.
    fn active(&self) -> bool;

    /// Reads a word.
    fn load(&self, place: Place<'_>) -> u64;

    /// Writes a word; in a transaction whose writes are buffered only the intent to.
    fn store(&self, place: Place<'_>, value: u64);

    /// Exchanges a word if it has a value.  Outside of transactions only.
    fn exchange(&self, place: Place<'_>, from: u64, to: u64) -> bool;

    /// Sets a word and returns what it had.  Outside of transactions only.
    fn swap(&self, place: Place<'_>, to: u64) -> u64;

    /// A clock that never goes back.  Its unit is the hardware's own.
    fn ticks(&self) -> u64;

    /// Lets others go on, in a loop that waits; longer in later rounds.
    fn pause(&self, round: u32) {
        if cfg!(loom) || round >= 64 {
            crate::sync::yield_now();
        } else {
            for _ in 0..1 << (round / 8).min(5) {
                crate::sync::spin_loop();
            }
        }
    }
}
