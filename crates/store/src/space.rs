//! How much room a commit may need: bytes, and inodes.
//!
//! Free space is what the file system tells; a quota tells nobody. So where there may be one, room
//! is held by an allocation for every commit, in two parts: one for what comes before the record is
//! durable, one for the installation. Tree blocks count in a quota group of btrfs as well: a call
//! that changes names is charged, until the next transaction of the file system, with all that it
//! might touch, and refused if that is too much; and so is one that overwrites, for blocks are
//! never written in place.

use crate::error::ReserveError;
use crate::io::FsInfo;
use crate::writeset::{Content, Data, Extent, Ix, Object, Origin, WriteSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a store may make for itself with one commit: segments, history, a side log, directories.
const OWN_INODES: u64 = 16;
/// What several calls that change names at once, and small files, may be charged with beside the
/// bytes.
const TREE_BLOCKS: u64 = 1 << 20;
/// What always stays free.
pub(crate) const MARGIN: u64 = 4 << 20;
/// What is kept for super blocks and for recovery where a quota may be used up by others.
pub(crate) const SPARE: u64 = 1 << 20;

/// An upper estimate of the inodes that a commit and its installation take.
fn inodes_needed(set: &WriteSet) -> u64 {
    let takes = |o: &&Object| match o.content {
        // It is there already.
        Content::Slot(_) if o.is_new() => false,
        // A new inode in the place of the old one, or a copy of what is overwritten.
        _ => o.is_new() || o.content != Content::Keep,
    };
    set.objects.iter().filter(takes).count() as u64 + OWN_INODES
}

/// The inodes that commits under way were promised and may not have taken yet.
#[derive(Debug, Default)]
pub(crate) struct Inodes(AtomicU64);

/// A share of them, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Promise {
    of: Option<Arc<Inodes>>,
    count: u64,
}

impl Inodes {
    /// Promises what a commit needs, where the file system has a fixed number of inodes and not
    /// enough are taken.
    pub fn promise(
        self: &Arc<Self>,
        set: &WriteSet,
        info: &FsInfo,
    ) -> Result<Promise, ReserveError> {
        // A file system that makes them as they are needed says that it has none at all, or counts
        // what its free space would be enough for.
        if info.files == 0 {
            return Ok(Promise::default());
        }
        let count = inodes_needed(set);
        let promised = self.0.fetch_add(count, Relaxed);
        let promise = Promise { of: Some(Arc::clone(self)), count };
        let available = info.ffree.saturating_sub(promised);
        if available < count {
            return Err(ReserveError::NoInodes { needed: count, available });
        }
        Ok(promise)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(inodes) = &self.of {
            inodes.0.fetch_sub(self.count, Relaxed);
        }
    }
}

/// What has to be held for a commit that may need `needed` bytes: until its record is written, and
/// until it is installed. A record may enter a segment of the journal that is not made yet.
pub(crate) fn room_under_quota(needed: u64, segment: u64) -> [u64; 2] {
    [needed.saturating_add(segment + TREE_BLOCKS), needed.saturating_add(TREE_BLOCKS)]
}

/// What a file that is there takes at the most: an upper estimate without a look at it.
pub(crate) fn by_length(_: Ix, object: &Object) -> u64 {
    match &object.origin {
        Origin::Host { stamp, .. } => stamp.size,
        _ => 0,
    }
}

/// An upper estimate of the bytes that a commit and its installation allocate; `old` tells what a
/// file that is there takes.
pub(crate) fn space_needed(
    set: &WriteSet,
    inline_before: u64,
    mut old: impl FnMut(Ix, &Object) -> u64,
) -> u64 {
    const BLOCK: u64 = 4096;
    let blocks = |n: u64| n.div_ceil(BLOCK) * BLOCK;
    let extent = |e: &Extent| match &e.data {
        // In the journal or its side log, and in the file.
        Data::Inline(bytes) => {
            (bytes.len() as u64).saturating_add(blocks(bytes.len() as u64) + BLOCK)
        }
        Data::Slot { len, .. } => blocks(*len) + BLOCK,
        Data::Hole { .. } => BLOCK,
    };
    let object = |(i, o): (usize, &Object)| {
        let old = if o.content == Content::Keep { 0 } else { old(Ix(i as u32), o) };
        let content: u64 = match &o.content {
            Content::Keep | Content::Slot(_) if o.is_new() => 0,
            Content::Keep => 0,
            Content::Slot(_) => blocks(old),
            Content::Patch { len, keep, extents } => {
                let new: u64 = extents.iter().map(extent).fold(0, u64::saturating_add);
                // What is cleared or cut off is kept for undo, as what is overwritten.
                let size = by_length(Ix(i as u32), o);
                let lost = overwritten(size, *len, *keep, extents);
                let lost = lost.iter().map(|(from, to)| to - from + 2 * BLOCK);
                let lost = lost.fold(0, u64::saturating_add).min(blocks(old));
                new.saturating_add(lost).saturating_add(inline_before.min(old))
            }
            Content::Whole { extents, .. } => {
                let new: u64 = extents.iter().map(extent).fold(0, u64::saturating_add);
                if o.is_new() { new } else { new.saturating_add(blocks(old)) }
            }
        };
        let xattrs = o.xattrs.iter().filter_map(|(_, value)| value.as_ref());
        let xattrs: u64 = xattrs.map(|value| blocks(value.len() as u64) + BLOCK).sum();
        let inode = if o.is_new() { BLOCK + 512 } else { 512 };
        content.saturating_add(xattrs).saturating_add(inode)
    };
    let objects = set.objects.iter().enumerate().map(object).fold(0, u64::saturating_add);
    let names = set.binds.iter().map(|b| b.name.len() as u64 + 64).fold(0, u64::saturating_add);
    objects.saturating_add(names).saturating_add(16 * BLOCK)
}

/// The ranges of a file of `size` bytes whose bytes a patch destroys, ascending and disjoint.
pub fn overwritten(size: u64, len: u64, keep: u64, extents: &[Extent]) -> Vec<(u64, u64)> {
    let lost = keep.min(len).min(size);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let pieces = extents.iter().map(|e| (e.offset, e.offset + e.data.len()));
    for (from, to) in pieces {
        let to = to.min(lost);
        match ranges.last_mut() {
            _ if from >= to => {}
            Some(last) if last.1 == from => last.1 = to,
            _ => ranges.push((from, to)),
        }
    }
    if lost < size {
        match ranges.last_mut() {
            Some(last) if last.1 == lost => last.1 = size,
            _ => ranges.push((lost, size)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, len: u64) -> Extent {
        Extent { offset, data: Data::Hole { len } }
    }

    #[test]
    fn what_a_patch_destroys() {
        assert_eq!(overwritten(100, 100, 100, &[extent(10, 5), extent(15, 5)]), [(10, 20)]);
        assert_eq!(overwritten(100, 200, 100, &[extent(90, 50)]), [(90, 100)]);
        assert_eq!(overwritten(100, 40, 100, &[extent(10, 5)]), [(10, 15), (40, 100)]);
        assert_eq!(overwritten(100, 200, 30, &[extent(20, 20)]), [(20, 100)]);
        assert_eq!(overwritten(0, 50, 0, &[extent(0, 50)]), []);
    }
}
