//! Who has what open, and what is locked, where the mount tells of opens.

use crate::order::Object;
use crate::{VolumeView, ino_of};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};
use systx_guard::publication::Opens;
use systx_lfs::format::Ino;
use systx_store::host_locks::{LockFile, LockFiles};
use systx_store::io::{HostId, Openers};
use systx_txn::ObjectRef;
use systx_vfs::api::{Lock, OpenHow, Opened, Reply};
use systx_vfs::locks::{PlainLocks, Wait};

/// The bits of [`Opened::handle`]; never all clear.
const OPEN: u8 = 1;
const WRITES: u8 = 2;

#[derive(Clone, Copy)]
struct Count {
    id: HostId,
    readers: u32,
    writers: u32,
}

/// See the module.
pub(crate) struct Told {
    open: Mutex<HashMap<Ino, Count>>,
    locks: PlainLocks,
    files: Arc<LockFiles>,
}

impl Told {
    /// Nothing is open; locks are on `files`.
    pub fn new(files: Arc<LockFiles>) -> Told {
        let (open, locks) = (Mutex::new(rank::LEAF, HashMap::new()), PlainLocks::default());
        Told { open, locks, files }
    }

    fn add(&self, id: HostId, writes: bool) -> u8 {
        let mut open = self.open.lock();
        let count = open.entry(id.number()).or_insert(Count { id, readers: 0, writers: 0 });
        let of = if writes { &mut count.writers } else { &mut count.readers };
        *of = of.saturating_add(1);
        if writes { OPEN | WRITES } else { OPEN }
    }

    /// One of the opens ends.
    pub fn remove(&self, ino: Ino, handle: u8) {
        let mut open = self.open.lock();
        let Some(count) = open.get_mut(&ino).filter(|_| handle & OPEN != 0) else { return };
        let of = if handle & WRITES != 0 { &mut count.writers } else { &mut count.readers };
        *of = of.saturating_sub(1);
        if count.readers == 0 && count.writers == 0 {
            open.remove(&ino);
        }
    }

    fn count(&self, id: HostId) -> Option<Count> {
        self.open.lock().get(&id.number()).filter(|count| count.id == id).copied()
    }
}

impl Opens for Told {
    fn written_to(&self, id: HostId) -> Option<NodeId> {
        self.count(id).filter(|count| count.writers > 0).map(|_| NodeId(id.number()))
    }
    fn openers(&self, id: HostId) -> Option<Openers> {
        let writers = self.count(id)?.writers > 0;
        Some(if writers { Openers::Writers } else { Openers::Readers })
    }
    fn open_for_writing(&self) -> Vec<(NodeId, HostId)> {
        let open = self.open.lock();
        let written = open.values().filter(|count| count.writers > 0);
        written.map(|count| (NodeId(count.id.number()), count.id)).collect()
    }
}

impl Told {
    /// Opens a file for a client whose closing of it will be told.
    pub fn open(&self, view: &VolumeView, node: NodeId, how: OpenHow) -> Reply<Opened> {
        // ENOSYS would mean something else.
        self.open_file(view, node, how).map_err(|e| if e == Errno::NOSYS { Errno::IO } else { e })
    }

    fn open_file(&self, view: &VolumeView, node: NodeId, how: OpenHow) -> Reply<Opened> {
        let object = view.object(node)?;
        let (id, oid) = (object.id(), object.oid());
        let may_write = || if how.write { view.gate.before_writing(id) } else { Ok(()) };
        // Who waits here opens what is there afterwards.
        may_write()?;
        let handle = view.reading(&[ObjectRef::Attr(oid), ObjectRef::Size(oid)], || {
            // The kernel then walks the path once more.
            if view.table.is_superseded(ino_of(node)) {
                return Err(Errno::STALE);
            }
            Ok(self.add(id, how.write))
        })?;
        // Who has read it since then, and found nobody that has it open for writing, does not keep
        // it locked.
        if let Err(killed) = may_write() {
            self.remove(id.number(), handle);
            return Err(killed);
        }
        // Pages go when a commit has them dropped, with nobody writing.
        Ok(Opened { handle, keep_cache: true, cache_listing: false })
    }

    /// Whether somebody is known to have an object open.
    pub fn is_open(&self, id: HostId) -> bool {
        self.openers(id).is_some()
    }

    /// Sets or gives up a lock.
    pub fn lock(&self, at: Object<'_>, lock: Lock, wait: Option<&Arc<Wait>>) -> Reply<()> {
        self.locks.set(NodeId(at.id.number()), lock, wait, &|| self.lock_file(at.id))
    }

    /// The first lock in the way.
    pub fn test(&self, at: Object<'_>, lock: Lock) -> Reply<Option<Lock>> {
        self.locks.test(NodeId(at.id.number()), lock, &|| self.lock_file(at.id))
    }

    fn lock_file(&self, id: HostId) -> Reply<LockFile> {
        self.files.of(id).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }
}
