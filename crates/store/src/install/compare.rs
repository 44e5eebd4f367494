//! Telling our own half-finished work from an outsider's, by content.

use super::{Install, Place, Step};
use crate::history::OldContent;
use crate::io::{Handle, Open, Stat};
use crate::layout::{before_name, found};
use crate::writeset::{Content, Data, Extent, Ix, NewKind, Origin};
use std::io::Result;
use systx_base::Kind;

/// Comparison goes by pieces of this size: what a power cut leaves is whole pages.
const PIECE: u64 = 4096;

impl Install<'_> {
    /// Whether what is at `place` can only be the object `ix` as this transaction makes it, complete
    /// or as a power cut left it.
    pub(super) fn is_ours(&mut self, ix: Ix, place: &Place, stat: &Stat) -> Step<bool> {
        let object = self.object(ix);
        if self.id(ix) == Some(stat.id) {
            return Ok(true);
        }
        if stat.kind != object.kind() {
            return Ok(false);
        }
        let result = match (&object.origin, &object.content) {
            (_, Content::Slot(slot)) => {
                Ok(self.commit.slots.iter().any(|(s, id)| s == slot && *id == stat.id))
            }
            (Origin::New(NewKind::Dir), _) => Ok(!self.is_old(stat.id)),
            (Origin::New(NewKind::Symlink(target)), _) => {
                self.env.io.read_link(&place.dir, &place.name).map(|t| t == *target)
            }
            (Origin::New(NewKind::Special { rdev, .. }), _) => Ok(stat.rdev == *rdev),
            (_, Content::Whole { len, extents }) => self.is_whole(place, stat, *len, extents),
            (Origin::New(NewKind::File), _) => Ok(stat.size == 0),
            _ => Ok(false),
        };
        result.map_err(|e| self.stop(place.name.clone(), e))
    }

    fn is_whole(&self, place: &Place, stat: &Stat, len: u64, extents: &[Extent]) -> Result<bool> {
        if stat.size > len || stat.kind != Kind::File {
            return Ok(false);
        }
        let file = self.env.io.open_file(&place.dir, &place.name, Open::Read)?;
        let mut at = 0;
        while let Some((start, end)) = self.env.io.next_data(&file, at)? {
            let mut piece = start;
            while piece < end {
                let next = ((piece / PIECE + 1) * PIECE).min(end);
                let size = usize::try_from(next - piece).unwrap_or(PIECE as usize);
                let (mut have, mut want) = (vec![0; size], vec![0; size]);
                let got = self.env.io.read_at(&file, &mut have, piece)?;
                self.read_extents(extents, None, piece, &mut want)?;
                if have[..got] != want[..got] && have[..got].iter().any(|b| *b != 0) {
                    return Ok(false);
                }
                piece = next;
            }
            at = end;
        }
        Ok(true)
    }

    /// For resuming a change in place: whether every byte that is about to be overwritten is the new
    /// one, the old one, or zero.
    pub(super) fn only_ours_or_old(&self, ix: Ix, file: &Handle) -> Result<bool> {
        let extents = match &self.object(ix).content {
            Content::Patch { extents, .. } | Content::Whole { extents, .. } => extents,
            _ => return Ok(true),
        };
        let (old, old_file) = self.old_content(ix)?;
        for extent in extents {
            let end = extent.offset + extent.data.len();
            let mut at = extent.offset;
            while at < end {
                let next = ((at / PIECE + 1) * PIECE).min(end);
                let size = usize::try_from(next - at).unwrap_or(PIECE as usize);
                let (mut have, mut new, mut was) = (vec![0; size], vec![0; size], vec![0; size]);
                let got = self.env.io.read_at(file, &mut have, at)?;
                self.read_extents(extents, None, at, &mut new)?;
                self.read_extents(old, old_file.as_ref(), at, &mut was)?;
                let same = |other: &[u8]| have[..got] == other[..got];
                if !same(&new) && !same(&was) && have[..got].iter().any(|b| *b != 0) {
                    return Ok(false);
                }
                at = next;
            }
        }
        Ok(true)
    }

    /// The old bytes of what is overwritten in place.
    fn old_content(&self, ix: Ix) -> Result<(&[Extent], Option<Handle>)> {
        let Some(before) = self.befores.get(&ix) else { return Ok((&[], None)) };
        let OldContent::InPlace { file, extents, .. } = &before.content else {
            return Ok((&[], None));
        };
        let name = before_name(self.txn(), ix.0);
        let open = || self.env.io.open_file(&self.env.layout.grave, &name, Open::Read);
        let handle = if *file { found(open())? } else { None };
        Ok((extents, handle))
    }

    /// Reads what extents say at `offset`; zeros where they say nothing.  `file` holds the bytes of
    /// hole extents, if it is given.
    fn read_extents(
        &self,
        extents: &[Extent],
        file: Option<&Handle>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        buf.fill(0);
        let end = offset + buf.len() as u64;
        let first = extents.partition_point(|e| e.offset + e.data.len() <= offset);
        for extent in &extents[first..] {
            if extent.offset >= end {
                break;
            }
            let from = extent.offset.max(offset);
            let to = (extent.offset + extent.data.len()).min(end);
            // Both within `buf`, whose length is a usize.
            let target = &mut buf[(from - offset) as usize..(to - offset) as usize];
            let skip = from - extent.offset;
            match &extent.data {
                Data::Inline(bytes) => {
                    let skip = skip as usize;
                    target.copy_from_slice(&bytes[skip..skip + target.len()]);
                }
                Data::Slot { slot, at, .. } => {
                    if let Some(handle) = self.env.pool.handle(*slot) {
                        self.env.io.read_at(&handle, target, at + skip)?;
                    }
                }
                Data::Hole { .. } => {
                    if let Some(file) = file {
                        self.env.io.read_at(file, target, from)?;
                    }
                }
            }
        }
        Ok(())
    }
}
