//! Sites over directories, and small commits, for the tests of this crate.

use crate::{Checkpoints, Commit, Part, Site};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use systx_base::{Kind, TxnId};
use systx_store::io::Io;
use systx_store::real::RealIo;
use systx_store::writeset::{Attrs, Content, Ix, Object, Origin, WriteSet};
use systx_store::{CommitMeta, Config, DirStore, OnDemand, TxnKind};
use systx_txn::BeginOptions;
use systx_vfs::shared::SharedVolume;
use systx_vfs::volume::Volume;

/// A directory as the root of a file system with a store.
pub fn open(dir: &Path) -> Arc<Site> {
    let real = Arc::new(RealIo::open(dir).unwrap());
    site(dir, real.clone(), real)
}

/// As [`open`], with another way to the directory.
pub fn site(dir: &Path, io: Arc<dyn Io>, real: Arc<RealIo>) -> Arc<Site> {
    let config = Config { committer_applies: true, ..Config::new(b".systx") };
    let (store, _) = DirStore::open(config, io.clone()).unwrap();
    let hidden = HashSet::from([store.state_dir_id()]);
    let mount = dir.as_os_str().as_encoded_bytes().to_vec();
    let vol = Volume::new(io, mount, hidden).unwrap().with_locks(real);
    Arc::new(Site {
        vol: Arc::new(SharedVolume::over(vol)),
        class: store.class(),
        store: OnDemand::always(store),
        checkpoints: Checkpoints::new(),
        store_path: dir.join(".systx").as_os_str().as_encoded_bytes().to_vec(),
        is_root: false,
    })
}

/// A commit that gives one file of each root another mode; its transaction is begun.
pub fn commit_of(id: u64, files: &[(&Arc<Site>, &str)]) -> Commit {
    let part = |&(site, name): &(&Arc<Site>, &str)| {
        let io = &site.vol.tree;
        let stamp = io.stat_at(&io.root(), name.as_bytes()).unwrap().stamp();
        let origin = Origin::Host { parent: Ix(0), name: name.into(), kind: Kind::File, stamp };
        let attrs = Attrs { mode: Some(0o600), ..Attrs::default() };
        let object =
            |origin, attrs| Object { origin, attrs, xattrs: vec![], content: Content::Keep };
        let objects = vec![object(Origin::Root, Attrs::default()), object(origin, attrs)];
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
    };
    Commit::new(TxnId(id), meta, parts)
}
