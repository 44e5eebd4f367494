//! Sites over stores of each kind, and small commits, for the tests of this crate.

use crate::{Checkpoints, Commit, Part, Site};
use memory::Memory;
use std::collections::HashSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use systx_base::{Kind, TxnId};
use systx_guard::shared::SharedVolume;
use systx_store::real::RealIo;
use systx_store::writeset::{Attrs, Bind, Content, Ix, NewKind, Object, Origin, WriteSet};
use systx_store::{CommitMeta, Config, OnDemand, Store, TxnKind};
use systx_txn::BeginOptions;
use systx_vfs::volume::Volume;
use tempfile::TempDir;

#[path = "../../store/tests/memory/mod.rs"]
mod memory;
#[path = "../../lfs-store/tests/volume/mod.rs"]
mod volume;

/// A store with files of mode 0644 in its root.
pub struct Ground {
    pub site: Arc<Site>,
    /// Where it is, if it is on the host.
    _dir: Option<TempDir>,
}

impl Ground {
    /// One of plain files, one in memory, and one on a log-structured volume.
    pub fn all(files: &[impl AsRef<str>]) -> [Ground; 3] {
        [Ground::of_files(files), Ground::in_memory(files), Ground::on_a_volume(files)]
    }

    fn of_files(files: &[impl AsRef<str>]) -> Ground {
        let dir = tempfile::tempdir().unwrap();
        for name in files {
            let path = dir.path().join(name.as_ref());
            std::fs::write(&path, name.as_ref()).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        }
        let real = Arc::new(RealIo::open(dir.path()).unwrap());
        let config = Config { committer_applies: true, ..Config::new(b".systx") };
        let (store, _) = systx_store::open(config, real.clone()).unwrap();
        let hidden = HashSet::from_iter(store.own_object());
        let mount = dir.path().as_os_str().as_encoded_bytes().to_vec();
        let vol = Volume::new(real.clone(), mount, hidden).unwrap().with_locks(real);
        Ground { site: site(vol, store), _dir: Some(dir) }
    }

    fn on_a_volume(files: &[impl AsRef<str>]) -> Ground {
        let store = volume::fresh();
        volume::write(&store, TxnId(u64::MAX), with_files(files));
        let hidden = HashSet::from_iter(store.own_object());
        let vol = Volume::alone(store.tree(), b"/volume".to_vec(), hidden).unwrap();
        Ground { site: site(vol, store), _dir: None }
    }

    fn in_memory(files: &[impl AsRef<str>]) -> Ground {
        let memory = Memory::new();
        memory.write(TxnId(u64::MAX), with_files(files));
        let vol = Volume::alone(memory.clone(), b"/memory".to_vec(), HashSet::new()).unwrap();
        Ground { site: site(vol, memory), _dir: None }
    }

    /// Permission bits of a file.
    pub fn mode(&self, name: &str) -> u32 {
        let tree = &self.site.vol.tree;
        tree.stat_at(&tree.root(), name.as_bytes()).unwrap().mode
    }

    /// Transactions of tests that are in the history, in its order.
    pub fn history(&self) -> Vec<u64> {
        let all = self.site.store.lease().unwrap().history().unwrap();
        all.iter().map(|entry| entry.meta.txn.0).filter(|txn| *txn != u64::MAX).collect()
    }
}

/// What puts files of mode 0644 into an empty root.
fn with_files(files: &[impl AsRef<str>]) -> WriteSet {
    let mut set = WriteSet { objects: vec![object(Origin::Root, None)], ..WriteSet::default() };
    for (n, name) in (1..).zip(files) {
        set.objects.push(object(Origin::New(NewKind::File), Some(0o644)));
        let (name, target) = (name.as_ref().into(), Some(Ix(n)));
        set.binds.push(Bind { dir: Ix(0), name, target, displaces: None });
    }
    set
}

fn site(vol: Volume, store: Arc<dyn Store>) -> Arc<Site> {
    Arc::new(Site {
        vol: Arc::new(SharedVolume::over(vol)),
        class: store.class(),
        store: OnDemand::always(store),
        checkpoints: Checkpoints::new(),
        store_path: b"/store".to_vec(),
        is_root: false,
        is_image: false,
    })
}

fn object(origin: Origin, mode: Option<u32>) -> Object {
    let attrs = Attrs { mode, ..Attrs::default() };
    Object { origin, attrs, xattrs: vec![], content: Content::Keep }
}

/// A commit that gives one file of each root another mode; its transaction is begun.
pub fn commit_of(id: u64, files: &[(&Arc<Site>, &str)]) -> Commit {
    let part = |&(site, name): &(&Arc<Site>, &str)| {
        let tree = &site.vol.tree;
        let stamp = tree.stat_at(&tree.root(), name.as_bytes()).unwrap().stamp();
        let origin = Origin::Host { parent: Ix(0), name: name.into(), kind: Kind::File, stamp };
        let objects = vec![object(Origin::Root, None), object(origin, Some(0o600))];
        site.vol.engine.begin(TxnId(id), BeginOptions::default());
        let writes = WriteSet { objects, ..WriteSet::default() };
        Part { site: Arc::clone(site), writes, appended: Vec::new() }
    };
    let parts: Vec<Part> = files.iter().map(part).collect();
    let now = parts[0].site.vol.tree.now();
    let meta = CommitMeta {
        txn: TxnId(id),
        kind: TxnKind::Run,
        argv: vec![b"true".to_vec()],
        cwd: b"/".to_vec(),
        uid: 0,
        started: now,
        finished: now,
        told: None,
        order: None,
    };
    Commit::new(TxnId(id), meta, parts)
}
