//! A volume with a store and a guarded directory, and commits of views of it.

#![allow(dead_code)] // Each test binary uses a part of this.

use crate::common::{STATE, Twin, view_beside};
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use systx_base::{Kind, NodeId, Time, TxnId};
use systx_commit::{Checkpoints, Commit, Durable, Part, Site, Stopped};
use systx_guard::inode_locks::Ticket;
use systx_guard::inode_locks::writers::Writing;
use systx_guard::plain::{Gate, Order, Plain, STALL};
use systx_guard::publication::{Caches, Guarded};
use systx_guard::shared::SharedVolume;
use systx_store::io::Io;
use systx_store::real::RealIo;
use systx_store::writeset::{Attrs, Content, Ix, Object, Origin, WriteSet};
use systx_store::{CommitMeta, Config, OnDemand, TxnKind};
use systx_txn::BeginOptions;
use systx_vfs::freeze::Everything;
use systx_vfs::volume::Volume;

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
    fn lock(&self, _: NodeId) -> Result<(), Errno> {
        Ok(())
    }
    fn file_barrier(&self, _: NodeId, _: Ticket) -> Result<(), Errno> {
        self.file_barriers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn keep_unwritten(&self, files: &[NodeId]) -> Result<Vec<Writing>, Errno> {
        Ok(files.iter().map(|_| Writing::Unknown).collect())
    }
    fn reach(&self, _: NodeId) -> Result<std::os::fd::OwnedFd, Errno> {
        Err(Errno::STALE)
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
    pub site: Arc<Site>,
    pub vol: Arc<SharedVolume>,
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
        let versions = config.versions.clone();
        let (store, _) = systx_store::open(config, real.clone()).expect("store");
        let hidden = HashSet::from_iter(store.own_object());
        let vol = Volume::new(io, Vec::new(), hidden.clone()).expect("volume").with_locks(real);
        let vol = Arc::new(SharedVolume::over(vol));
        versions.by(vol.clone());
        let dir = std::fs::File::open(root.join(guarded)).expect("guarded").into();
        let gate = gate(Order::new(vol.clone(), STALL));
        let plain = Arc::new(Plain::new(dir, hidden, gate).expect("view 0"));
        let caches = Arc::new(NoCaches::default());
        let told = caches.clone();
        let guarded = Arc::new(Guarded::new(plain.clone(), told, STALL));
        vol.guard(guarded.clone());
        let site = Site {
            vol: vol.clone(),
            class: store.class(),
            store: OnDemand::always(store),
            checkpoints: Checkpoints::new(),
            store_path: root.join("state").into_os_string().into_encoded_bytes(),
            is_root: false,
            is_image: false,
        };
        let (site, next) = (Arc::new(site), AtomicU64::new(1));
        Place { site, vol, plain, guarded, caches, next }
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
        Twin(view_beside(self.vol.clone(), self.id(), options, opaque))
    }

    /// Runs a transaction and commits it.  Whether it was committed.
    pub fn commit(&self, work: impl FnOnce(&Twin)) -> bool {
        let twin = self.begin(BeginOptions::default(), false);
        work(&twin);
        self.end_of(&twin)
    }

    /// Commits.  Whether it was committed.
    pub fn end_of(&self, twin: &Twin) -> bool {
        let id = twin.0.txn();
        let writes = twin.0.freeze(&Everything).writes;
        let lost = !twin.0.validate().is_empty() || twin.0.claim(id, &writes).is_err();
        if lost || self.vol.engine.conflict(id).is_some() {
            self.vol.engine.abort(id);
            return false;
        }
        let part = Part { site: self.site.clone(), writes, appended: Vec::new() };
        let decided = Commit::new(id, meta(id), vec![part]).reserve().and_then(|r| r.decide());
        let decided = match decided {
            Ok(decided) => decided,
            Err(Stopped::Lost { .. } | Stopped::NotPublished(_)) => {
                self.vol.engine.abort(id);
                return false;
            }
            Err(why) => panic!("{why}"),
        };
        let placed = decided.durable().and_then(Durable::place);
        let installed = placed.unwrap_or_else(|why| panic!("{why}")).release();
        assert!(installed.outside.is_empty(), "nobody else was there");
        true
    }
}

/// What the history says of a test's commit.
pub fn meta(txn: TxnId) -> CommitMeta {
    let (argv, cwd, now) = (vec![b"test".to_vec()], b"/".to_vec(), Time::default());
    CommitMeta {
        txn,
        kind: TxnKind::Run,
        argv,
        cwd,
        uid: 0,
        started: now,
        finished: now,
        told: None,
        order: None,
    }
}

/// An object of a write set that stays as it is.
pub fn object(origin: Origin) -> Object {
    Object { origin, attrs: Attrs::default(), xattrs: vec![], content: Content::Keep }
}

/// Gives a file of the root another mode.
pub fn chmod(place: &Place, name: &str) -> WriteSet {
    let stamp = place.vol.tree.stat_at(&place.vol.tree.root(), name.as_bytes()).unwrap().stamp();
    let origin = Origin::Host { parent: Ix(0), name: name.into(), kind: Kind::File, stamp };
    let attrs = Attrs { mode: Some(0o600), ..Attrs::default() };
    let changed = Object { attrs, ..object(origin) };
    WriteSet { objects: vec![object(Origin::Root), changed], ..WriteSet::default() }
}

/// The volume knows view 0, and view 0 the volume: without this the descriptors of each case would
/// stay open.
impl Drop for Place {
    fn drop(&mut self) {
        self.vol.unguard(&self.guarded);
    }
}
