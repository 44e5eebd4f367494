//! What a plain request changes, as everybody in its way has to know it.

use crate::sys;
use rustix::io::Errno;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use systx_base::Oid;
use systx_store::io::{HostId, Stamp};
use systx_txn::ObjectRef;
use systx_vfs::api::{Caller, Reply};

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
    pub subject: Option<(Oid, Place<'a>)>,
    /// The directories in which it changes names.
    pub places: &'a [(Oid, Place<'a>)],
    /// It may be held for an aged transaction: no lock of the kernel that spans directories is kept
    /// meanwhile.
    pub may_stall: bool,
}

/// How a plain view reaches an object that it changes.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// This one, by a descriptor of the file system below.
    Fd(HostId, BorrowedFd<'a>),
    /// There is none below.
    Own(&'a dyn Versioned),
}

/// An object of a store that is its own file system.
pub trait Versioned: Debug + Sync {
    /// Which one.
    fn id(&self) -> HostId;
    /// Its version now.
    ///
    /// # Errors
    /// Those of the store.
    fn stamp(&self) -> Reply<Stamp>;
}

impl<'a> Place<'a> {
    /// Which object it is.
    pub(crate) fn id(self) -> HostId {
        match self {
            Place::Fd(id, _) => id,
            Place::Own(object) => object.id(),
        }
    }

    /// Its version now.
    pub(crate) fn stamp(self) -> Reply<Stamp> {
        match self {
            Place::Fd(_, fd) => Ok(sys::stat(fd)?.stamp()),
            Place::Own(object) => object.stamp(),
        }
    }

    /// The descriptor, by which a snapshot keeps what is there.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: there is none, and so there are no snapshots.
    pub(crate) fn descriptor(self) -> Reply<BorrowedFd<'a>> {
        match self {
            Place::Fd(_, fd) => Ok(fd),
            Place::Own(_) => Err(Errno::OPNOTSUPP),
        }
    }
}
