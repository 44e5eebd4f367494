//! What the suites share: a clock, a volume on a small disk, and the whole of a tree.

#![allow(dead_code)]

pub mod acts;
pub mod power;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use systx_base::{Kind, Time};
use systx_lfs::device::{Device, SimDisk};
use systx_lfs::format::{Compression, Ino, ROOT};
use systx_lfs::{Attrs, Clock, Format, Limits, Ops, Result, Shape, Txn, Volume, mkfs};

/// Blocks of a segment: the smallest.
pub const SEGMENT: u32 = 16;
/// Blocks of a disk.
pub const BLOCKS: u64 = 9 + 40 * SEGMENT as u64;
/// Small enough that a test reaches them.
pub const LIMITS: Limits =
    Limits { txn_pages_max: 12, dirty_pages_max: 24, pay_below_percent: 10, kept_max: 4 << 20 };

/// A clock that counts its questions.
pub fn clock() -> Clock {
    let now = AtomicI64::new(1_000);
    Arc::new(move || Time { secs: now.fetch_add(1, Ordering::Relaxed), nanos: 7 })
}

pub fn format() -> Format {
    let (id, label) = ([7; 16], "test".to_owned());
    Format {
        segment_blocks: SEGMENT,
        cluster: 1,
        id,
        label,
        owner: (0, 0),
        compression: Compression::Off,
    }
}

/// Makes a volume on a disk.
pub fn made(dev: Arc<dyn Device>) {
    mkfs(dev, &format(), clock()).expect("mkfs");
}

pub fn open(dev: Arc<dyn Device>) -> Result<Volume> {
    Volume::open(dev, clock(), 42, LIMITS)
}

/// A fresh volume with nothing recorded of how it was made.
pub fn fresh(blocks: u64) -> (Arc<SimDisk>, Volume) {
    fresh_as(blocks, &format())
}

/// A fresh volume that compresses what is cold.
pub fn fresh_packing(blocks: u64) -> (Arc<SimDisk>, Volume) {
    fresh_clusters(blocks, 1)
}

/// As [`fresh_packing`], that writes so many pages of a file together.
pub fn fresh_clusters(blocks: u64, cluster: u32) -> (Arc<SimDisk>, Volume) {
    fresh_as(blocks, &Format { compression: Compression::Zstd, cluster, ..format() })
}

/// Those that are small enough for [`SEGMENT`], in turn.
pub fn cluster_of(seed: u64) -> u32 {
    1 << (seed % 3)
}

pub fn fresh_as(blocks: u64, format: &Format) -> (Arc<SimDisk>, Volume) {
    let disk = SimDisk::new(blocks);
    let disk = Arc::new(disk);
    mkfs(disk.clone(), format, clock()).expect("mkfs");
    let disk = Arc::new(disk.copy());
    let volume = open(disk.clone()).expect("it opens");
    (disk, volume)
}

/// One object with its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub ino: Ino,
    pub attrs: Attrs,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub content: Vec<u8>,
}

/// A whole tree, by path.
pub type Dump = BTreeMap<String, Seen>;

pub fn dump(ops: &mut Ops<'_>) -> Result<Dump> {
    let mut all = Dump::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let attrs = ops.attrs(ino)?;
        let mut xattrs = BTreeMap::new();
        for name in ops.xattrs(ino)? {
            let value = ops.xattr(ino, &name)?;
            xattrs.insert(name, value);
        }
        let content = match attrs.kind {
            Kind::File => ops.read(ino, 0, attrs.size as usize)?,
            Kind::Symlink => ops.target(ino)?,
            _ => Vec::new(),
        };
        if attrs.kind == Kind::Dir {
            for (name, link) in ops.list(ino, None, usize::MAX)? {
                todo.push((format!("{path}/{}", String::from_utf8_lossy(&name)), link.ino));
            }
        }
        all.insert(path, Seen { ino, attrs, xattrs, content });
    }
    Ok(all)
}

pub fn tree(volume: &Volume) -> Dump {
    volume.look(dump).expect("the tree can be read")
}

pub fn file() -> Shape {
    Shape::new(Kind::File, 0o644)
}

pub fn dir() -> Shape {
    Shape::new(Kind::Dir, 0o755)
}

/// Bytes that say where they are from.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            (systx_base::mix(seed.wrapping_mul(1_000_003).wrapping_add(i / 8)) >> (i % 8)) as u8
        })
        .collect()
}

/// As [`bytes`], of which every second seed gives what becomes smaller when it is compressed.
pub fn some(seed: u64, len: usize) -> Vec<u8> {
    match seed % 2 {
        0 => bytes(seed, 64).into_iter().cycle().take(len).collect(),
        _ => bytes(seed, len),
    }
}

/// One durable transaction.
pub fn commit(volume: &Volume, act: impl FnOnce(&mut Ops<'_>) -> Result<()>) -> Result<()> {
    let mut txn = Txn::new();
    volume.within(&mut txn, act)?;
    volume.commit(txn)
}

/// By how much the suites look further than they do by default.
pub fn budget() -> usize {
    let told = std::env::var("SYSTX_SIM_BUDGET").ok();
    told.and_then(|b| b.parse().ok()).unwrap_or(1)
}
