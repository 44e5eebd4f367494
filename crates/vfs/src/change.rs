//! What a plain request changes, as everybody in its way has to know it.

use crate::api::Caller;
use std::os::fd::BorrowedFd;
use systx_base::Oid;
use systx_txn::ObjectRef;

/// A request that changes something.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Whose it is; of content, who opened the file for writing last, with `tid` 0 if nobody has.
    pub by: Caller,
    /// What it relies on.
    pub reads: &'a [ObjectRef<'a>],
    /// What it changes.
    pub writes: &'a [ObjectRef<'a>],
    /// The one existing inode whose version moves by it, if there is just one.
    pub subject: Option<(Oid, BorrowedFd<'a>)>,
    /// The directories in which it changes names.
    pub places: &'a [(Oid, BorrowedFd<'a>)],
    /// It may be held for an aged transaction: no lock of the kernel that spans directories is kept
    /// meanwhile.
    pub may_stall: bool,
}
