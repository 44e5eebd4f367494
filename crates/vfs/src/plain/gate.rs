//! Where the order of plain requests is decided: every request that reads or changes something passes
//! a [`Gate`], with the objects that it touches.

use crate::api::{Caller, Reply};
use systx_txn::ObjectRef;

/// Brackets the requests of a plain view.  Every method calls `act` once, or fails without calling
/// it; while `act` runs, nothing else changes what it touches.
pub trait Gate: Send + Sync {
    /// A request that reads these objects and changes nothing.
    fn read(&self, reads: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()>;
    /// A request that changes `writes`, and relies on `reads` in doing so.  `by`: whose it is; of
    /// content, who opened the file for writing last, with `tid` 0 if nobody has.
    fn mutate(
        &self,
        by: Caller,
        reads: &[ObjectRef<'_>],
        writes: &[ObjectRef<'_>],
        act: &mut dyn FnMut() -> Reply<()>,
    ) -> Reply<()>;
}

/// No order: there are no transactions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGate;

impl Gate for NoGate {
    fn read(&self, _: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        act()
    }
    fn mutate(
        &self,
        _: Caller,
        _: &[ObjectRef<'_>],
        _: &[ObjectRef<'_>],
        act: &mut dyn FnMut() -> Reply<()>,
    ) -> Reply<()> {
        act()
    }
}
