//! What a view asks of everything else that works on its volume: plain programs, and commits on
//! their way to the kernel's caches.

use crate::api::Reply;
use crate::volume::Volume;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use systx_base::TxnId;
use systx_store::io::HostId;

/// What a transaction is about to do that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// To end.
    End,
    /// To end; it is a snapshot, which is in no conflict with anybody, and may have seen
    /// everything.
    EndOfSnapshot,
    /// To take the locks of the files that it relies on and that are open for writing: so these
    /// land in any case.
    Locks,
}

/// Why nobody could be kept from writing to what a transaction has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotQuiet {
    /// Somebody writes all the time: it may be tried again.
    Busy,
    /// So many files are open for writing, more than can be locked.
    Many(usize),
    /// So many files would have to be watched at once, more than this process may have descriptors
    /// for.
    Unwatched(usize),
    /// The daemon has no way into its mount: its user has taken the right to search the root.
    Shut,
}

/// Something that lasts as long as this lives.
pub trait Hold {}

impl<T> Hold for T {}

/// See the module.  On a volume where nothing is guarded there are none: [`Nobody`].
pub trait Neighbours: Send + Sync {
    /// The volume.
    fn volume(&self) -> &Arc<Volume>;
    /// Whether plain programs may work there otherwise than behind everybody's back.
    fn is_guarded(&self) -> bool;
    /// The directories where they do.
    fn guarded_roots(&self) -> HashSet<HostId>;
    /// Whether one of them has the object open.
    fn is_open(&self, id: HostId) -> bool;
    /// No plain request is under way from now on: a version that one moves says so only then.
    fn still(&self) -> Box<dyn Hold + '_>;
    /// Before a file is read for the first time: keeps plain writers out, if the transaction has
    /// the right to that, until [`Neighbours::recorded`].
    fn keep_writers_out(&self, owner: TxnId, id: HostId);
    /// The engine knows what was read.
    fn recorded(&self, owner: TxnId, id: HostId);
    /// The transaction keeps nobody out any more.
    fn let_writers_in(&self, owner: TxnId);
    /// Nobody writes to what the transaction relies on from now on, and what was stored in mappings
    /// of it is in the files.
    ///
    /// # Errors
    /// That could not be had, or not in time.
    fn quiet(&self, owner: TxnId) -> Result<Box<dyn Hold + '_>, NotQuiet>;
    /// Has what programs have stored in mappings of a file written to it; whether all of it is.
    fn flush(&self, owner: TxnId, id: HostId) -> bool;
    /// Waits until the kernel knows what the transaction has seen of plain changes.
    fn land_seen(&self, owner: TxnId, before: Before);
    /// A file as plain programs see it, where the kernel itself keeps their locks: `name` in the
    /// directory with this path below the volume's root.  `None`: it is in no such place.
    ///
    /// # Errors
    /// The kernel's.
    fn shown(&self, id: HostId, dir: &[u8], name: &[u8]) -> Reply<Option<OwnedFd>>;
    /// Whether the kernel itself keeps their locks anywhere.
    fn keeps_locks(&self) -> bool;
}

/// There are none.
pub struct Nobody(pub Arc<Volume>);

impl Neighbours for Nobody {
    fn volume(&self) -> &Arc<Volume> {
        &self.0
    }
    fn is_guarded(&self) -> bool {
        false
    }
    fn guarded_roots(&self) -> HashSet<HostId> {
        HashSet::new()
    }
    fn is_open(&self, _: HostId) -> bool {
        false
    }
    fn still(&self) -> Box<dyn Hold + '_> {
        Box::new(())
    }
    fn keep_writers_out(&self, _: TxnId, _: HostId) {}
    fn recorded(&self, _: TxnId, _: HostId) {}
    fn let_writers_in(&self, _: TxnId) {}
    fn quiet(&self, _: TxnId) -> Result<Box<dyn Hold + '_>, NotQuiet> {
        Ok(Box::new(()))
    }
    fn flush(&self, _: TxnId, _: HostId) -> bool {
        true
    }
    fn land_seen(&self, _: TxnId, _: Before) {}
    fn shown(&self, _: HostId, _: &[u8], _: &[u8]) -> Reply<Option<OwnedFd>> {
        Ok(None)
    }
    fn keeps_locks(&self) -> bool {
        false
    }
}
