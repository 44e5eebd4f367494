//! Room for a commit, before it is decided.

use crate::error::io_error;
use crate::install::ROOM;
use crate::open::VolumeStore;
use crate::slot::slot_name;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use systx_lfs::format::{BLOCK, Ino, ROOT};
use systx_lfs::{Error, Ops, Promise, XATTRS_MAX};
use systx_store::record::overwritten;
use systx_store::writeset::{Attrs, Content, Data, Extent, NewKind, Object, Origin, WriteSet};
use systx_store::{Forgotten, Keep, LEAST, LOGGED, Refused, Reservation, ReserveError};

/// Room for one commit.
pub(crate) struct Room {
    pub promise: Option<Promise>,
    /// Whether what is displaced is kept, and a record: not on a full volume, of what only removes.
    pub keep: bool,
}

impl Default for Room {
    fn default() -> Room {
        Room { promise: None, keep: true }
    }
}

/// Blocks that each commit may need beside what it names: its record, and the store's directories.
const EACH: u64 = 40;

fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK as u64)
}

/// Whether a write set takes names away and does nothing else.
fn only_removes(set: &WriteSet) -> bool {
    let removes = set.binds.iter().all(|bind| bind.target.is_none());
    let changes = |object: &Object| {
        let Attrs { mode, owner, atime: _, mtime: _ } = object.attrs;
        let is_dir = object.kind() == systx_base::Kind::Dir;
        let times_only = is_dir && mode.is_none() && owner.is_none();
        object.content != Content::Keep
            || !object.xattrs.is_empty()
            || !(times_only || object.attrs == Attrs::default())
    };
    removes && !set.binds.is_empty() && !set.objects.iter().any(changes)
}

/// Blocks of a file that a commit writes, and those that it moves as they lie.
#[derive(Clone, Copy, Default)]
struct Blocks {
    written: u64,
    moved: u64,
}

impl std::ops::Add for Blocks {
    type Output = Blocks;
    fn add(self, other: Blocks) -> Blocks {
        let (written, moved) = (self.written + other.written, self.moved + other.moved);
        Blocks { written, moved }
    }
}

/// What a range needs that is moved: its two ends are written.
fn moved(len: u64) -> Blocks {
    Blocks { written: blocks(len).min(2), moved: blocks(len) }
}

fn written(written: u64) -> Blocks {
    Blocks { written, moved: 0 }
}

impl VolumeStore {
    /// Blocks for the new content of an object.
    fn new_blocks(&self, ops: &mut Ops<'_>, extents: &[Extent]) -> systx_lfs::Result<Blocks> {
        let mut sum = Blocks::default();
        for extent in extents {
            let len = extent.data.len();
            sum = sum
                + match extent.data {
                    Data::Hole { .. } => written(2),
                    Data::Slot { slot, .. } if self.lent(ops, slot.0)?.is_some() => moved(len),
                    _ => written(blocks(len) + 2),
                };
        }
        Ok(sum)
    }

    /// The before-file that a slot stands for.
    fn lent(&self, ops: &mut Ops<'_>, slot: Ino) -> systx_lfs::Result<Option<Ino>> {
        match ops.lookup(self.own.slots, &slot_name(slot)) {
            Ok(link) => Ok(Some(link.ino).filter(|ino| *ino != slot)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Blocks for the content of an object, and for what is kept of the old one.
    fn content_blocks(&self, ops: &mut Ops<'_>, object: &Object) -> systx_lfs::Result<Blocks> {
        let (size, takes) = match &object.origin {
            Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => {
                (stamp.length(), taken(ops, stamp.id().number())?)
            }
            Origin::Root | Origin::New(_) => (0, 0),
        };
        Ok(match &object.content {
            Content::Keep => Blocks::default(),
            Content::Patch { len, keep, extents } => {
                let lost = overwritten(size, *len, *keep, extents);
                // Holes are not kept.
                let (ends, all) = (2 * lost.len() as u64, lost.iter().map(|(a, b)| blocks(b - a)));
                let kept = Blocks { written: ends, moved: all.sum::<u64>().min(takes) };
                self.new_blocks(ops, extents)? + kept + written(2)
            }
            Content::Whole { extents, .. } => {
                self.new_blocks(ops, extents)? + Blocks { written: 4, moved: takes }
            }
            Content::Slot(_) if object.is_new() => written(2),
            Content::Slot(slot) => {
                written(taken(ops, slot.0)?) + Blocks { written: 4, moved: takes }
            }
        })
    }
}

/// Blocks that an object takes.
fn taken(ops: &mut Ops<'_>, ino: Ino) -> systx_lfs::Result<u64> {
    match ops.blocks(ino) {
        Err(Error::NotFound) => Ok(0),
        taken => taken,
    }
}

/// What a write set needs: existing objects whose records change, and blocks.
fn needed(
    store: &VolumeStore,
    ops: &mut Ops<'_>,
    set: &WriteSet,
) -> systx_lfs::Result<(BTreeSet<Ino>, u64)> {
    let mut inos = BTreeSet::from([ROOT]);
    let (mut sum, mut bytes, mut new) = (EACH, ROOM, 0_u64);
    for object in &set.objects {
        match &object.origin {
            Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => {
                inos.insert(stamp.id().number());
            }
            Origin::New(kind) => {
                new += 1;
                bytes += if let NewKind::Symlink(target) = kind { target.len() as u64 } else { 0 };
            }
            Origin::Root => {}
        }
        let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let xattrs = object.xattrs.iter().map(|(key, v)| key.len() + value(v) + 64);
        // In the attributes, and as they were in the record.
        bytes += 2 * xattrs.sum::<usize>() as u64 + 700;
        let content = store.content_blocks(ops, object)?;
        sum += content.written + blocks((content.written + 2 * content.moved) * 80);
    }
    for slot in set.slots() {
        inos.extend(store.lent(ops, slot.0)?);
    }
    let names: usize = set.binds.iter().map(|bind| bind.name.len() + 200).sum();
    bytes += names as u64;
    Ok((inos, sum + 2 * blocks(bytes) + (new / 32 + 3) * 8))
}

impl VolumeStore {
    /// See [`systx_store::Store::reserve`].
    pub(crate) fn reserve_for(&self, set: &WriteSet) -> Result<Reservation, ReserveError> {
        set.check()?;
        self.flow.goes_on().map_err(ReserveError::Poisoned)?;
        self.tidy().map_err(ReserveError::Io)?;
        if let Some(refused) = self.refused(set).map_err(ReserveError::Io)? {
            return Err(ReserveError::Xattr(refused));
        }
        let failed = |error| ReserveError::Io(io_error(error));
        let own = [self.own.grave, self.own.history, self.own.slots];
        let (mut inos, blocks) =
            self.tree.look(|ops| needed(self, ops, set)).map_err(ReserveError::Io)?;
        inos.extend(own);
        let blocks = blocks + self.volume.cost(&inos).map_err(failed)?;
        let mut forgotten = Forgotten::default();
        // What nobody needs any longer comes before history.
        let mut promise = self.with_room(|| self.volume.promise(blocks));
        loop {
            match promise {
                Ok(promise) => {
                    let (transactions, bytes) = &self.looks.untold;
                    forgotten.transactions += transactions.swap(0, Relaxed);
                    forgotten.bytes += bytes.swap(0, Relaxed);
                    let room = Room { promise: Some(promise), keep: true };
                    return Ok(Reservation::new(room, forgotten));
                }
                Err(Error::NoSpace) => {}
                Err(Error::Poisoned) => {
                    return Err(ReserveError::Poisoned(crate::error::poisoned()));
                }
                Err(error) => return Err(failed(error)),
            }
            let report = self.forget_one().map_err(ReserveError::Io)?;
            if report.transactions == 0 && only_removes(set) {
                forgotten.itself = true;
                return Ok(Reservation::new(Room { promise: None, keep: false }, forgotten));
            }
            if report.transactions == 0 {
                let available = self.volume.space().free() * BLOCK as u64;
                return Err(ReserveError::NoSpace { needed: blocks * BLOCK as u64, available });
            }
            forgotten.transactions += report.transactions;
            forgotten.bytes += report.bytes;
            promise = self.volume.promise(blocks);
        }
    }

    /// Forgets the oldest transaction, if that is not the only one.
    fn forget_one(&self) -> io::Result<Forgotten> {
        let left = self.would(Keep { log: usize::MAX, ..Keep::default() })?.left;
        let count = left.saturating_sub(1).max(LEAST);
        let done = self.collect(Keep { count, least: LEAST, log: LOGGED, ..Keep::default() })?;
        let transactions = done.removed.len() as u64;
        Ok(Forgotten { transactions, bytes: done.freed, itself: false })
    }

    /// See [`systx_store::Store::forget_for_content`].
    pub(crate) fn forget_for(&self, bytes: u64) -> bool {
        // Nothing is forgotten for room that nobody uses.
        let before = self.volume.space().used;
        let is_free = || self.volume.space().free() * BLOCK as u64 >= bytes;
        let _ = self.give_back();
        let _ = self.with_room(|| if is_free() { Ok(()) } else { Err(Error::NoSpace) });
        let mut freed = before.saturating_sub(self.volume.space().used) * BLOCK as u64;
        while freed < bytes {
            match self.forget_one() {
                Ok(done) if done.transactions > 0 => {
                    freed += done.bytes;
                    self.looks.untold.0.fetch_add(done.transactions, Relaxed);
                    self.looks.untold.1.fetch_add(done.bytes, Relaxed);
                }
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "no room could be made by forgetting transactions");
                    break;
                }
            }
        }
        freed > 0
    }

    /// An extended attribute for which an object has no room.
    fn refused(&self, set: &WriteSet) -> io::Result<Option<Refused>> {
        for object in set.objects.iter().filter(|object| !object.xattrs.is_empty()) {
            let mut all = match &object.origin {
                Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => {
                    self.xattr_sizes(stamp.id().number())?
                }
                Origin::Root => self.xattr_sizes(ROOT)?,
                Origin::New(_) => Default::default(),
            };
            for (key, value) in &object.xattrs {
                match value {
                    Some(value) => drop(all.insert(key.clone(), value.len())),
                    None => drop(all.remove(key)),
                }
            }
            let sum: usize = all.iter().map(|(key, value)| key.len() + value).sum();
            if sum > XATTRS_MAX {
                let longest = object.xattrs.iter().max_by_key(|(_, v)| v.as_ref().map(Vec::len));
                let (key, value) = longest.cloned().unwrap_or_default();
                let path = match &object.origin {
                    Origin::Host { name, .. } => name.clone(),
                    _ => Vec::new(),
                };
                let (bytes, source) = (value.map_or(0, |v| v.len()), Error::NoSpace);
                return Ok(Some(Refused { path, key, bytes, source: io_error(source) }));
            }
        }
        Ok(None)
    }

    fn xattr_sizes(&self, ino: Ino) -> io::Result<std::collections::BTreeMap<Vec<u8>, usize>> {
        self.tree.look(|ops| {
            let mut all = std::collections::BTreeMap::new();
            let keys = match ops.xattrs(ino) {
                Err(Error::NotFound) => Vec::new(),
                keys => keys?,
            };
            for key in keys {
                let len = ops.xattr(ino, &key)?.len();
                all.insert(key, len);
            }
            Ok(all)
        })
    }
}
