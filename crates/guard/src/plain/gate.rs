//! Where the order of plain requests is decided: every request that reads or changes something
//! passes a [`Gate`], with the objects that it touches.

use crate::change::Change;
use crate::inode_locks::Ticket;
use rustix::io::Errno;
use systx_base::Oid;
use systx_store::io::HostId;
use systx_txn::ObjectRef;
use systx_vfs::api::{Reply, Valid};

/// Brackets the requests of a plain view. [`Gate::read`] and [`Gate::mutate`] call `act` once, or
/// fail without calling it; while `act` runs, nothing else changes what it touches.
pub trait Gate: Send + Sync {
    /// A request that reads these objects and changes nothing.
    ///
    /// # Errors
    /// Those of `act`.
    fn read(&self, reads: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()>;
    /// A request that changes something.
    ///
    /// # Errors
    /// Those of `act`.
    fn mutate(&self, change: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()>;
    /// A request that passes the gate at this moment has made an object, of which nobody can know
    /// yet.
    fn born(&self, _id: HostId) {}
    /// Whether [`Gate::valid`] may have anything to say at this moment: spares finding the object.
    fn is_publishing(&self) -> bool {
        false
    }
    /// How long the kernel may believe an answer about an object, or about a name in it.
    fn valid(&self, _oid: Oid, _name: Option<&[u8]>) -> Valid {
        Valid::default()
    }
    /// Whether opening an object may leave in place, and use, the names that the kernel has cached
    /// of it.
    fn may_keep(&self, _oid: Oid) -> bool {
        true
    }
    /// A barrier has arrived: returns when the directory's lock may be given back.
    fn barrier(&self, _dir: Oid) {}
    /// The same, of a file.
    fn file_barrier(&self, _ticket: Ticket) {}
    /// Waits until all that was committed without waiting for the disk is durable.
    fn wait_durable(&self) {}
    /// A change of a file's content has taken set-id bits or capabilities from it. The answer does
    /// not tell the kernel so, which would go on showing the old mode, and execute by it.
    fn changed_mode(&self, _file: HostId) {}
    /// Waits, not for long, until writes of a file that have been performed are in the kernel's
    /// caches, too. Whether they are.
    fn land(&self, _file: HostId) -> bool {
        false
    }
    /// A file is about to be opened for writing: it may be held for an aged transaction that has
    /// read it, or is about to.
    ///
    /// # Errors
    /// `EINTR`: who asks has been killed.
    fn before_writing(&self, _file: HostId) -> Reply<()> {
        Ok(())
    }
    /// The kernel has appended to a file's pages elsewhere than where its end was: it will forget
    /// them, if that is said here.
    fn appended_elsewhere(&self, _file: HostId) -> bool {
        false
    }
}

/// No order: there are no transactions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGate;

impl Gate for NoGate {
    fn read(&self, _: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        act()
    }
    fn mutate(&self, _: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        act()
    }
}

/// Passes a gate to read.
///
/// # Errors
/// Those of the gate, and of `act`.
pub fn reading<T>(
    gate: &dyn Gate,
    reads: &[ObjectRef<'_>],
    act: impl FnOnce() -> Reply<T>,
) -> Reply<T> {
    once(act, |act| gate.read(reads, act))
}

/// Passes a gate to change something.
///
/// # Errors
/// Those of the gate, and of `act`.
pub fn mutating<T>(
    gate: &dyn Gate,
    change: Change<'_>,
    act: impl FnOnce() -> Reply<T>,
) -> Reply<T> {
    once(act, |act| gate.mutate(change, act))
}

/// Lets `pass` call `act` once, and returns what that returned.
fn once<T>(
    act: impl FnOnce() -> Reply<T>,
    pass: impl FnOnce(&mut dyn FnMut() -> Reply<()>) -> Reply<()>,
) -> Reply<T> {
    let mut act = Some(act);
    let mut result = None;
    pass(&mut || {
        // A second call has nothing left to do.
        let Some(act) = act.take() else { return Ok(()) };
        let got = act();
        let told = got.as_ref().map(drop).map_err(|e| *e);
        result = Some(got);
        told
    })
    .and_then(|()| result.take().unwrap_or(Err(Errno::IO)))
}
