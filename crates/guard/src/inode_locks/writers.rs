//! Who may be writing to a file of a guarded directory.
//!
//! How that is known is one value ([`Writers`]), chosen when the directory is guarded:
//! - [`told`]: each open makes a message;
//! - [`asked`]: opens make none (decision 0019), and the kernel is asked.

mod asked;
mod told;

use crate::publication::{Caches, Guarded, ViewZero};
use crate::shared::SharedVolume;
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use systx_base::{NodeId, Oid, TxnId};
use systx_store::io::{HostId, Openers};
use systx_store::lease::ReadLease;
use systx_txn::ObjectRef;
use systx_vfs::api::Reply;
use systx_vfs::neighbours::NotQuiet;
use systx_vfs::volume;

/// What the kernel says of a file in a mount where opens make no messages.
#[derive(Debug)]
pub enum Writing {
    /// Somebody has it open for writing.
    Open,
    /// Nobody has, and nobody will as long as this lives.
    Kept(ReadLease),
    /// The kernel has no such inode.
    Unknown,
}

impl Writing {
    /// Of a regular file that is open for reading.
    ///
    /// # Errors
    /// `EINVAL`: the kernel gives no leases on it.
    pub fn of(file: OwnedFd) -> Result<Writing, Errno> {
        let lease = ReadLease::take(file).map_err(volume::errno)?;
        Ok(lease.map_or(Writing::Open, Writing::Kept))
    }
}

/// How it is known who may be writing to the files of one guarded directory.
pub(crate) trait Writers: Send + Sync {
    /// The node of a file, if somebody has it open for writing.
    fn written_to(&self, id: HostId) -> Option<NodeId>;
    /// All files that somebody has open for writing.
    fn open_for_writing(&self) -> Vec<(NodeId, HostId)>;
    /// Who has a file open; `None`: nobody.
    fn openers(&self, id: HostId) -> Option<Openers>;
    /// The node whose lock keeps writers out of a file that an aged transaction is about to read.
    fn to_lock(&self, id: HostId) -> Option<NodeId>;
    /// Keeps everybody from opening a file for writing, beside what holds them at the opening;
    /// `None`: somebody has it open.
    fn keep_out(&self, id: HostId) -> Option<KeptOut>;
    /// The files that a transaction relies on and somebody has open for writing. Nobody opens the
    /// others for that as long as what is added to `kept` lives and is still so.
    ///
    /// # Errors
    /// To be tried again; or too many.
    fn keep_all_out(
        &self,
        relied: &Relied<'_>,
        kept: &mut KeptOut,
    ) -> Result<Vec<(NodeId, HostId)>, NotQuiet>;
    /// Whether nobody can be writing to what a transaction relies on, given what is `locked` and
    /// `kept`.
    fn are_kept_out(&self, relied: &Relied<'_>, locked: &HashSet<HostId>, kept: &KeptOut) -> bool;
    /// A file as programs see it below `path`, where the kernel itself keeps their locks. `None`:
    /// it keeps none, or has no such file there.
    ///
    /// # Errors
    /// The kernel's.
    fn shown(&self, id: HostId, path: &[u8]) -> Reply<Option<OwnedFd>>;
    /// Whether the kernel itself keeps the locks of programs.
    fn keeps_locks(&self) -> bool;
}

/// How it is known in a directory that `plain` is the view of.
pub(crate) fn of(plain: &Arc<dyn ViewZero>, caches: &Arc<dyn Caches>) -> Box<dyn Writers> {
    match Arc::clone(plain).opens() {
        Some(opens) => Box::new(told::Told { opens }),
        None => Box::new(asked::Asked { plain: Arc::clone(plain), caches: Arc::clone(caches) }),
    }
}

/// A file that the kernel did not have: the same is true as long as it was not looked up again.
pub(crate) struct Absent {
    plain: Arc<dyn ViewZero>,
    oid: Oid,
    /// How often it had been looked up; `None`: view 0 did not know it either.
    looked_up: Option<u64>,
}

impl Absent {
    fn of(plain: &Arc<dyn ViewZero>, oid: Oid, file: Option<FileAt>) -> Absent {
        Absent { plain: Arc::clone(plain), oid, looked_up: file.map(|file| file.looked_up) }
    }

    /// Whether nobody can have it open.
    fn is_still(&self) -> bool {
        self.plain.file_of(self.oid).map(|file| file.looked_up) == self.looked_up
    }
}

/// A file of view 0.
#[derive(Clone, Copy, Debug)]
pub struct FileAt {
    /// Its node.
    pub node: NodeId,
    /// Which object it is.
    pub id: HostId,
    /// How often the kernel was told of it.
    pub looked_up: u64,
    /// And when it was the last time.
    pub at: Instant,
}

/// Nobody opens these files for writing as long as this lives and [is still](KeptOut::is_still) so.
#[derive(Default)]
pub(crate) struct KeptOut {
    leases: Vec<ReadLease>,
    absent: Vec<Absent>,
    /// On which there is a lease.
    files: HashSet<HostId>,
}

impl KeptOut {
    /// Whether nobody can have opened one meanwhile.
    pub fn is_still(&self) -> bool {
        self.absent.iter().all(Absent::is_still)
    }

    /// Whether a lease keeps everybody out of a file.
    pub fn has(&self, file: HostId) -> bool {
        self.files.contains(&file)
    }

    fn lease(&mut self, file: HostId, lease: ReadLease) {
        self.leases.push(lease);
        self.files.insert(file);
    }

    /// These as well.
    pub fn add(&mut self, other: KeptOut) {
        self.leases.extend(other.leases);
        self.absent.extend(other.absent);
        self.files.extend(other.files);
    }
}

/// What a transaction relies on of the files of a guarded directory: the content that it has read
/// or `changed`, and the length of those with a write that may not have landed.
pub(crate) struct Relied<'a> {
    pub vol: &'a SharedVolume,
    pub guarded: &'a Guarded,
    pub owner: TxnId,
    pub changed: Option<&'a HashSet<Oid>>,
}

impl Relied<'_> {
    /// All of it.
    fn files(&self) -> Vec<Oid> {
        let mut all: HashSet<Oid> = self.changed.into_iter().flatten().copied().collect();
        all.extend(self.vol.engine.files_of(self.owner).into_iter().filter(|oid| {
            let node = self.guarded.plain.file_of(*oid).map(|file| file.node);
            self.vol.relies(self.owner, *oid, (self.guarded, node))
        }));
        all.into_iter().collect()
    }

    /// Whether a file that the kernel knows is of it.
    fn has(&self, node: NodeId, id: HostId) -> bool {
        let oid = id.oid();
        self.changed.is_some_and(|changed| changed.contains(&oid))
            || self.vol.relies(self.owner, oid, (self.guarded, Some(node)))
    }
}

impl SharedVolume {
    /// See [`Writers::shown`]. `dir`: the path below the volume's root of the directory where it
    /// has this name. `None`: it is in no such place, or not any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn shown(&self, id: HostId, dir: &[u8], name: &[u8]) -> Reply<Option<OwnedFd>> {
        let mut path = self.mount_path.clone();
        for part in [dir, name].into_iter().filter(|part| !part.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        for guarded in self.guarded_now() {
            if let Some(shown) = guarded.writers.shown(id, &path)? {
                return Ok(Some(shown));
            }
        }
        Ok(None)
    }

    /// Whether a transaction has read or written content of a file; or has seen its length, and a
    /// write that the daemon knows of may not have landed. `at`: where the file is guarded, and its
    /// node if the kernel knows it.
    pub(crate) fn relies(&self, owner: TxnId, oid: Oid, at: (&Guarded, Option<NodeId>)) -> bool {
        let (guarded, node) = at;
        let holds = |object| self.engine.holds(owner, object);
        holds(ObjectRef::Pages { oid, first: 0, last: u64::MAX })
            || holds(ObjectRef::Size(oid))
                && node.is_some_and(|node| guarded.caches.is_in_flight(node))
    }
}
