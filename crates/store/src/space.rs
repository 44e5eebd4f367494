//! How much room a commit may need.

use crate::writeset::{Content, Data, Extent, Object, Origin, WriteSet};

/// An upper estimate of the bytes that a commit and its installation allocate.
pub(crate) fn space_needed(set: &WriteSet, inline_before: u64) -> u64 {
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
    let object = |o: &Object| {
        let old = match &o.origin {
            Origin::Host { stamp, .. } => stamp.size,
            _ => 0,
        };
        let content: u64 = match &o.content {
            Content::Keep | Content::Slot(_) if o.is_new() => 0,
            Content::Keep => 0,
            Content::Slot(_) => blocks(old),
            Content::Patch { extents, .. } => {
                let new: u64 = extents.iter().map(extent).fold(0, u64::saturating_add);
                new.saturating_mul(2).saturating_add(inline_before.min(old))
            }
            Content::Whole { extents, .. } => {
                let new: u64 = extents.iter().map(extent).fold(0, u64::saturating_add);
                if o.is_new() { new } else { new.saturating_add(blocks(old)) }
            }
        };
        content.saturating_add(if o.is_new() { BLOCK + 512 } else { 512 })
    };
    let objects = set.objects.iter().map(object).fold(0, u64::saturating_add);
    let names = set.binds.iter().map(|b| b.name.len() as u64 + 64).fold(0, u64::saturating_add);
    objects.saturating_add(names).saturating_add(16 * BLOCK)
}
