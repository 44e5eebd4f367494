//! A volume in memory as a store, for the suites of several crates.

#![allow(dead_code, reason = "each suite uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use systx_base::{Time, TxnId};
use systx_lfs::device::{Device, MemDevice};
use systx_lfs::{Clock, Format, Limits, fitting, mkfs};
use systx_lfs_store::{Config, VolumeStore};
use systx_store::writeset::WriteSet;
use systx_store::{CommitMeta, Committed, Nobody, Outcomes, Store, TxnKind};

/// Volumes of one process are told apart by it.
static VOLUMES: AtomicU8 = AtomicU8::new(1);

/// A clock that counts its questions.
pub fn clock() -> Clock {
    let now = AtomicI64::new(1_700_000_000);
    Arc::new(move || Time { secs: now.fetch_add(1, Ordering::Relaxed), nanos: 7 })
}

/// Makes a volume on a device.
pub fn make(dev: Arc<dyn Device>) {
    make_clusters(dev, 1);
}

/// As [`make`], that writes so many pages of a file together.
pub fn make_clusters(dev: Arc<dyn Device>, cluster: u32) {
    let segment_blocks = fitting(dev.blocks(), cluster).expect("room for it").segment_blocks;
    let id = [VOLUMES.fetch_add(1, Ordering::Relaxed); 16];
    let format = Format {
        segment_blocks,
        cluster,
        id,
        label: "test".to_owned(),
        owner: (0, 0),
        compression: Default::default(),
    };
    mkfs(dev, &format, clock()).expect("a volume");
}

/// How the suites open volumes.
pub fn config() -> Config {
    let (path, salt, limits) = ("volume".to_owned(), 42, Limits::default());
    Config { path, clock: clock(), salt, limits }
}

/// Opens a volume of which nobody else decides anything.
pub fn open(dev: Arc<dyn Device>) -> Arc<VolumeStore> {
    open_among(dev, &Nobody)
}

/// Opens a volume.
pub fn open_among(dev: Arc<dyn Device>, outcomes: &dyn Outcomes) -> Arc<VolumeStore> {
    systx_lfs_store::open(dev, config(), outcomes).expect("it opens")
}

/// A fresh one of 32 MiB.
pub fn fresh() -> Arc<VolumeStore> {
    let dev = Arc::new(MemDevice::new(8192));
    make(dev.clone());
    open(dev)
}

/// What a history says of a transaction of a test.
pub fn meta(txn: TxnId) -> CommitMeta {
    let (now, kind) = (Time::default(), TxnKind::Run);
    let (argv, cwd) = (vec![b"test".to_vec()], b"/".to_vec());
    CommitMeta {
        txn,
        kind,
        argv,
        cwd,
        uid: 0,
        started: now,
        finished: now,
        told: None,
        order: None,
    }
}

/// Commits a write set.
pub fn commit(store: &VolumeStore, txn: TxnId, set: WriteSet) -> Committed {
    let room = store.reserve(&set).expect("room");
    let store: &dyn Store = store;
    store.commit(room, set, meta(txn)).expect("a commit")
}

/// Commits a write set and applies it.
pub fn write(store: &VolumeStore, txn: TxnId, set: WriteSet) {
    let done = commit(store, txn, set);
    store.apply(done.lsn).expect("an installation");
}
