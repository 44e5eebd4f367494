//! Telling our own half-finished work from an outsider's, by content.

use super::{Install, Place, Step};
use crate::history::OldContent;
use crate::io::{Handle, Open, Stat};
use crate::layout::{before_name, found};
use crate::writeset::{Content, Data, Extent, Ix, NewKind, Origin};
use std::io::Result;
use systx_base::Kind;

/// What a power cut leaves is whole sectors.
const SECTOR: usize = 512;
/// How much is read at once.
const PIECE: u64 = 256 << 10;

fn sectors(bytes: &[u8]) -> std::slice::Chunks<'_, u8> {
    bytes.chunks(SECTOR)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

/// Whether a sector is the new one, the old one, zeros, or what a call that failed half-way leaves:
/// new up to some byte, old or zeros from there.
fn is_explained(have: &[u8], new: &[u8], old: &[u8]) -> bool {
    let same = have.iter().zip(new).take_while(|(h, n)| h == n).count();
    let rest = &have[same..];
    have == old || is_zero(have) || is_zero(rest) || old.get(same..) == Some(rest)
}

#[cfg(test)]
#[test]
fn half_written_sectors_are_told_from_strange_ones() {
    let explained = |have: &[u8]| is_explained(have, b"NEWNEW", b"oldold");
    for ours in [&b"NEWNEW"[..], b"oldold", b"\0\0\0\0\0\0", b"NEWold", b"NE\0\0\0\0", b"Nldold"] {
        assert!(explained(ours), "{ours:?}");
    }
    for strange in [&b"NEWxld"[..], b"oldNEW", b"other!"] {
        assert!(!explained(strange), "{strange:?}");
    }
}

/// Checks `buf`, which was read at `at`, from `skip` on: first the rest of that sector, then whole
/// ones.
fn check_from(
    buf: &[u8],
    skip: usize,
    at: u64,
    check: impl Fn(&[u8], u64) -> Result<bool>,
) -> Result<bool> {
    let first = skip.next_multiple_of(SECTOR).min(buf.len());
    if skip < first && !check(&buf[skip..first], at + skip as u64)? {
        return Ok(false);
    }
    Ok(first == buf.len() || check(&buf[first..], at + first as u64)?)
}

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
            let explained = self.each_piece(&file, start, end, |have, from| {
                let mut want = vec![0; have.len()];
                self.read_extents(extents, None, from, &mut want)?;
                Ok(sectors(have).zip(sectors(&want)).all(|(h, w)| is_explained(h, w, &[])))
            })?;
            if !explained {
                return Ok(false);
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
            let explained = self.each_piece(file, extent.offset, end, |have, from| {
                let (mut new, mut was) = (vec![0; have.len()], vec![0; have.len()]);
                self.read_extents(extents, None, from, &mut new)?;
                self.read_extents(old, old_file.as_ref(), from, &mut was)?;
                let known = sectors(&new).zip(sectors(&was));
                Ok(sectors(have).zip(known).all(|(h, (n, w))| is_explained(h, n, w)))
            })?;
            if !explained {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a range piece by piece, each beginning at a sector; false as soon as `check` says so.
    fn each_piece(
        &self,
        file: &Handle,
        from: u64,
        to: u64,
        check: impl Fn(&[u8], u64) -> Result<bool>,
    ) -> Result<bool> {
        let mut buf = vec![0; PIECE as usize];
        let mut at = from / SECTOR as u64 * SECTOR as u64;
        while at < to {
            let size = (to - at).min(PIECE) as usize;
            let got = self.env.io.read_at(file, &mut buf[..size], at)?;
            // The sector that the range begins in may hold bytes that are nobody's concern.
            let skip = from.saturating_sub(at) as usize;
            if skip < got && !check_from(&buf[..got], skip, at, &check)? {
                return Ok(false);
            }
            at += size as u64;
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
