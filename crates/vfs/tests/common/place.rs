//! A volume with a store and a guarded directory, and commits as the daemon makes them.

use super::{STATE, Twin, new_view};
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use systx_base::{NodeId, Time};
use systx_store::io::{HostId, Io, Stamp};
use systx_store::real::RealIo;
use systx_store::writeset::Origin;
use systx_store::{CommitMeta, Config, DirStore, TxnKind};
use systx_txn::BeginOptions;
use systx_vfs::freeze::Everything;
use systx_vfs::inode_locks::Ticket;
use systx_vfs::plain::{Gate, Order, Plain, STALL};
use systx_vfs::publication::{Caches, Guarded};
use systx_vfs::volume::Volume;
use systx_vfs::writers::Writing;

/// Nothing is cached: requests are made directly.
#[derive(Default)]
struct NoCaches {
    /// Locks of files that were asked for.
    file_barriers: AtomicUsize,
}

impl Caches for NoCaches {
    fn store_attributes(&self, _: &[NodeId]) -> Result<(), Errno> {
        Ok(())
    }
    fn drop_name(&self, _: NodeId, _: &[u8]) -> Result<(), Errno> {
        Ok(())
    }
    fn drop_attributes(&self, _: NodeId) -> Result<(), Errno> {
        Ok(())
    }
    fn drop_listing(&self, _: NodeId) -> Result<(), Errno> {
        Ok(())
    }
    fn drop_pages(&self, _: NodeId) -> Result<(), Errno> {
        Ok(())
    }
    fn drop_all_names(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn barrier(&self, _: NodeId) -> Result<(), Errno> {
        Ok(())
    }
    fn file_barrier(&self, _: NodeId, _: Ticket) -> Result<(), Errno> {
        self.file_barriers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn keep_unwritten(&self, files: &[NodeId]) -> Result<Vec<Writing>, Errno> {
        Ok(files.iter().map(|_| Writing::Unknown).collect())
    }
    fn find(&self, _: &[u8]) -> Result<std::os::fd::OwnedFd, Errno> {
        Err(Errno::XDEV)
    }
    fn is_in_flight(&self, _: NodeId) -> bool {
        false
    }
}

/// A volume with a store, of which one directory is guarded.
pub struct Place {
    pub store: DirStore,
    pub vol: Arc<Volume>,
    pub plain: Arc<Plain>,
    guarded: Arc<Guarded>,
    caches: Arc<NoCaches>,
    next: AtomicU64,
}

impl Place {
    pub fn open(root: &Path, guarded: &str) -> Place {
        let real = Arc::new(RealIo::open(root).expect("backing directory"));
        Place::open_over(root, guarded, real.clone(), real)
    }

    /// With another way to the backing directory than the usual one.
    pub fn open_over(root: &Path, guarded: &str, io: Arc<dyn Io>, real: Arc<RealIo>) -> Place {
        Place::open_through(root, guarded, (io, real), |order| Arc::new(order))
    }

    /// With something around the order of plain requests as well.
    pub fn open_through(
        root: &Path,
        guarded: &str,
        (io, real): (Arc<dyn Io>, Arc<RealIo>),
        gate: impl FnOnce(Order) -> Arc<dyn Gate>,
    ) -> Place {
        let config =
            Config { segment_bytes: 64 << 10, committer_applies: true, ..Config::new(STATE) };
        let (store, _) = DirStore::open(config, real.clone()).expect("store");
        let hidden = HashSet::from([store.state_dir_id()]);
        let vol = Volume::new(io, Vec::new(), hidden.clone()).expect("volume").with_locks(real);
        let vol = Arc::new(vol);
        let dir = std::fs::File::open(root.join(guarded)).expect("guarded").into();
        let gate = gate(Order::new(vol.clone(), STALL));
        let plain = Arc::new(Plain::new(dir, hidden, gate).expect("view 0"));
        let caches = Arc::new(NoCaches::default());
        let told = caches.clone();
        let guarded = Arc::new(Guarded { plain: plain.clone(), caches: told, stall: STALL });
        vol.guard(guarded.clone());
        Place { store, vol, plain, guarded, caches, next: AtomicU64::new(1) }
    }

    /// How often the lock of a file was asked for.
    pub fn file_barriers(&self) -> usize {
        self.caches.file_barriers.load(Ordering::Relaxed)
    }

    pub fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A view of a new transaction.
    pub fn begin(&self, options: BeginOptions, opaque: bool) -> Twin {
        Twin(new_view(&self.vol, self.id(), options, opaque))
    }

    /// Runs a transaction and commits it.  Whether it was committed.
    pub fn commit(&self, work: impl FnOnce(&Twin)) -> bool {
        let twin = self.begin(BeginOptions::default(), false);
        work(&twin);
        self.end_of(&twin)
    }

    /// Commits as the daemon does.  Whether it was committed.
    pub fn end_of(&self, twin: &Twin) -> bool {
        let id = twin.0.txn();
        let writes = twin.0.freeze(&Everything).writes;
        let lost = !twin.0.validate().is_empty() || twin.0.claim(id, &writes).is_err();
        if lost || self.vol.engine.conflict(id).is_some() {
            self.vol.engine.abort(id);
            return false;
        }
        let mut publication = self.vol.publish(id, &writes);
        if publication.decide(|| self.vol.engine.decide(id)).is_err() {
            self.vol.engine.abort(id);
            return false;
        }
        let mut writes = writes;
        for object in &mut writes.objects {
            if let Origin::Host { stamp, .. } = &mut object.origin {
                *stamp = self.vol.current(*stamp);
            }
        }
        self.vol.keep_past(&writes);
        publication.let_next();
        let now = Time::default();
        let (argv, cwd) = (vec![b"test".to_vec()], b"/".to_vec());
        let (txn, kind) = (id, TxnKind::Run);
        let meta = CommitMeta { txn, kind, argv, cwd, uid: 0, started: now, finished: now };
        let origins: Vec<_> = writes.objects.iter().map(|o| stamp_of(&o.origin)).collect();
        let ids: Vec<HostId> = origins.iter().flatten().map(|stamp| stamp.id).collect();
        let room = self.store.reserve(&writes).expect("reserve");
        let committed = self.store.commit(room, writes, meta).expect("commit");
        self.vol.installing(ids, || {
            let current = |stamp: &Option<Stamp>| stamp.map(|stamp| self.vol.current(stamp));
            let before: Vec<_> = origins.iter().map(current).collect();
            let report = self.store.apply(committed.lsn).expect("apply");
            assert_eq!(report.outside, [], "nobody else was there");
            let pairs = before.iter().zip(&report.stamps);
            let moves = pairs.filter_map(|(old, new)| Some(((*old)?, (*new)?))).collect::<Vec<_>>();
            publication.replaced(&moves);
            ((), moves)
        });
        self.vol.engine.installed(id);
        true
    }
}

fn stamp_of(origin: &Origin) -> Option<Stamp> {
    match origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    }
}

/// The volume knows view 0, and view 0 the volume: without this the descriptors of each case would stay open.
impl Drop for Place {
    fn drop(&mut self) {
        self.vol.unguard(&self.guarded);
    }
}
