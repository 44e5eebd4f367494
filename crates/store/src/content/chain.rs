//! Records that change one file in place, one after the other, come to one change.
//!
//! Recovery makes that one, and not each record's in turn: between them the file would for a moment
//! be what it was before the later ones, cut off to another length perhaps. On a weak file system,
//! a power cut then leaves what was never in any of them (blocks that were freed and taken again),
//! and the next recovery could not tell it from an outsider's.

use crate::writeset::{Content, Data, Extent};
use std::borrow::Cow;

/// A change in place, see [`Content::Patch`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Patch<'c> {
    pub len: u64,
    pub keep: u64,
    pub extents: Cow<'c, [Extent]>,
}

impl<'c> Patch<'c> {
    /// `None` if the bytes stay as they are, or there is another file.
    pub fn of(content: &'c Content) -> Option<Patch<'c>> {
        let Content::Patch { len, keep, extents } = content else { return None };
        Some(Patch { len: *len, keep: *keep, extents: Cow::Borrowed(extents) })
    }

    /// The one that comes to the same as this one and then `next`.
    pub fn then(self, next: Patch<'c>) -> Patch<'c> {
        // What this one leaves counts below that.
        let counts = next.keep.min(next.len).min(self.len);
        let mut extents = Vec::new();
        for extent in &*self.extents {
            let (mut from, end) = (extent.offset, (extent.offset + extent.data.len()).min(counts));
            // Between those that come on top of it.
            let above = next.extents.partition_point(|e| e.offset + e.data.len() <= from);
            for over in &next.extents[above..] {
                if over.offset >= end {
                    break;
                }
                extents.extend(piece(extent, from, over.offset));
                from = over.offset + over.data.len();
            }
            extents.extend(piece(extent, from, end));
        }
        extents.extend(next.extents.iter().cloned());
        extents.sort_by_key(|e: &Extent| e.offset);
        Patch { len: next.len, keep: self.keep.min(counts), extents: Cow::Owned(extents) }
    }
}

/// What an extent, which begins at `from` or before, has between two offsets.
fn piece(extent: &Extent, from: u64, to: u64) -> Option<Extent> {
    let len = to.checked_sub(from).filter(|len| *len > 0)?;
    let skip = from - extent.offset;
    let data = match &extent.data {
        // Both within the bytes, whose count is a usize.
        Data::Inline(bytes) => Data::Inline(bytes[skip as usize..(skip + len) as usize].to_vec()),
        Data::Slot { slot, at, .. } => Data::Slot { slot: *slot, at: at + skip, len },
        Data::Hole { .. } => Data::Hole { len },
    };
    Some(Extent { offset: from, data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeset::SlotId;
    use proptest::prelude::*;

    /// Byte `i` of slot `n`.
    fn slot_byte(n: u64, i: u64) -> u8 {
        100 + ((n * 31 + i * 7) % 100) as u8
    }

    fn apply(file: &[u8], patch: &Patch<'_>) -> Vec<u8> {
        let mut out = file[..file.len().min(patch.keep as usize)].to_vec();
        out.resize(patch.len as usize, 0);
        for extent in &*patch.extents {
            for i in 0..extent.data.len() {
                out[(extent.offset + i) as usize] = match &extent.data {
                    Data::Inline(bytes) => bytes[i as usize],
                    Data::Slot { slot, at, .. } => slot_byte(slot.0, at + i),
                    Data::Hole { .. } => 0,
                };
            }
        }
        out
    }

    fn patch() -> impl Strategy<Value = Patch<'static>> {
        let extent = (0..6u64, 1..9u64, 0..3u8, 1..50u8);
        (0..12u64, 0..50u64, prop::collection::vec(extent, 0..4)).prop_map(|(more, keep, raw)| {
            let (mut at, mut extents) = (0, Vec::new());
            for (gap, len, kind, fill) in raw {
                let data = match kind {
                    0 => Data::Inline((0..len).map(|i| fill + i as u8).collect()),
                    1 => Data::Slot { slot: SlotId(fill.into()), at: gap, len },
                    _ => Data::Hole { len },
                };
                extents.push(Extent { offset: at + gap, data });
                at += gap + len;
            }
            Patch { len: at + more, keep, extents: Cow::Owned(extents) }
        })
    }

    proptest! {
        #[test]
        fn one_change_comes_to_the_same_as_several(
            file in prop::collection::vec(200..255u8, 0..40),
            patches in prop::collection::vec(patch(), 1..5),
        ) {
            let each = patches.iter().fold(file.clone(), |file, patch| apply(&file, patch));
            let one = patches.into_iter().reduce(Patch::then).unwrap();
            let ends = one.extents.iter().map(|e| e.offset + e.data.len());
            let begins = one.extents.iter().skip(1).map(|e| e.offset).chain([one.len]);
            prop_assert!(ends.zip(begins).all(|(end, next)| end <= next), "{one:?}");
            prop_assert_eq!(apply(&file, &one), each);
        }
    }
}
