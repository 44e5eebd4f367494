//! Telling our own half-finished work from an outsider's, by content.

use super::Place;
use crate::env::Env;
use crate::history::{Commit, OldContent};
use crate::io::{Handle, Open, Stat, Tree};
use crate::layout::{before_name, found};
use crate::writeset::{Content, Data, Extent, Ix};
use std::io::Result;
use std::ops::Range;
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

/// What one record makes of a file that it changes in place.
struct Version<'c> {
    new: &'c [Extent],
    /// The old bytes of what is overwritten, where they are holes in `file`.
    old: &'c [Extent],
    file: Option<Handle>,
    /// What is cut off or made a hole of what there was.
    cleared: Vec<Range<u64>>,
    /// The longer one of the lengths before and after, bytes.
    longest: u64,
}

/// What writing `extents` (of a file that counts up to `keep` and is to have the length `len`) does
/// not keep of `was` bytes and does not overwrite, see [`Env::write_patch`].
fn cleared(len: u64, keep: u64, extents: &[Extent], was: u64) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut at = keep;
    for extent in extents {
        let end = extent.offset + extent.data.len();
        ranges.push(at..extent.offset);
        if matches!(extent.data, Data::Hole { .. }) {
            ranges.push(extent.offset..end);
        }
        at = at.max(end);
    }
    ranges.extend([at..len, len..was]);
    ranges.into_iter().map(|r| r.start..r.end.min(was)).filter(|r| !r.is_empty()).collect()
}

#[cfg(test)]
#[test]
fn what_a_change_in_place_clears() {
    let extent = |offset, len, hole| {
        let data = if hole { Data::Hole { len } } else { Data::Inline(vec![1; len as usize]) };
        Extent { offset, data }
    };
    fn check(len: u64, keep: u64, extents: &[Extent], wanted: &[(u64, u64)]) {
        let ranges = cleared(len, keep, extents, 80);
        let ranges: Vec<_> = ranges.iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(ranges, wanted);
    }
    check(50, 0, &[extent(0, 50, false)], &[(50, 80)]);
    check(90, 30, &[extent(20, 20, false), extent(60, 10, false)], &[(40, 60), (70, 80)]);
    check(80, 80, &[extent(20, 20, true)], &[(20, 40)]);
    check(200, 80, &[extent(100, 20, false)], &[]);
}

/// Whether what is at `place` can only be a new file of this content, complete or as a power cut
/// left it.
pub(super) fn is_whole(
    env: Env<'_>,
    place: &Place,
    stat: &Stat,
    len: u64,
    extents: &[Extent],
) -> Result<bool> {
    if stat.size > len || stat.kind != Kind::File {
        return Ok(false);
    }
    let file = env.io.open_file(&place.dir, &place.name, Open::Read)?;
    let mut at = 0;
    while let Some((start, end)) = env.io.next_data(&file, at)? {
        let explained = each_piece(env.io, &file, start, end, |have, from| {
            let mut want = vec![0; have.len()];
            read_extents(env, extents, None, from, &mut want)?;
            Ok(sectors(have).zip(sectors(&want)).all(|(h, w)| is_explained(h, w, &[])))
        })?;
        if !explained {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

/// For resuming a change in place: whether every byte that is about to be overwritten is a new
/// one, an old one, or zero, by any record that changes the file; and nothing lies beyond what
/// any of them had.
pub(super) fn only_ours_or_old(
    env: Env<'_>,
    records: &[(&Commit, Ix)],
    file: &Handle,
) -> Result<bool> {
    let versions =
        records.iter().map(|(commit, ix)| version(env, commit, *ix)).collect::<Result<Vec<_>>>()?;
    let versions: Vec<Version<'_>> = versions.into_iter().flatten().collect();
    let Some(longest) = versions.iter().map(|v| v.longest).max() else { return Ok(true) };
    if env.io.stat(file)?.size > longest {
        return Ok(false);
    }
    for (n, extent) in
        versions.iter().enumerate().flat_map(|(n, v)| v.new.iter().map(move |e| (n, e)))
    {
        let end = extent.offset + extent.data.len();
        // What another record cuts off or clears may be anything until that is done again.
        let others = versions.iter().enumerate().filter(|(other, _)| *other != n);
        let cleared: Vec<&Range<u64>> = others.flat_map(|(_, v)| &v.cleared).collect();
        let explained = each_piece(env.io, file, extent.offset, end, |have, from| {
            let blank = |mut bytes: Vec<u8>| {
                for range in &cleared {
                    let at = |offset: u64| offset.clamp(from, from + bytes.len() as u64) - from;
                    let (start, end) = (at(range.start) as usize, at(range.end) as usize);
                    bytes[start..end].fill(0);
                }
                bytes
            };
            let mut images = Vec::with_capacity(versions.len());
            for version in &versions {
                let (mut new, mut was) = (vec![0; have.len()], vec![0; have.len()]);
                read_extents(env, version.new, None, from, &mut new)?;
                read_extents(env, version.old, version.file.as_ref(), from, &mut was)?;
                images.push((blank(new), blank(was)));
            }
            let have = blank(have.to_vec());
            Ok(sectors(&have).enumerate().all(|(n, h)| {
                let at = n * SECTOR..n * SECTOR + h.len();
                let is_of = |(new, was): &(Vec<u8>, Vec<u8>)| {
                    is_explained(h, &new[at.clone()], &was[at.clone()])
                };
                images.iter().any(is_of)
            }))
        })?;
        if !explained {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a record makes of a file in place; `None` if not its bytes.
fn version<'c>(env: Env<'_>, commit: &'c Commit, ix: Ix) -> Result<Option<Version<'c>>> {
    let (len, keep, new) = match &commit.set.object(ix).content {
        Content::Patch { len, keep, extents } => (*len, *keep, extents),
        Content::Whole { len, extents } => (*len, 0, extents),
        _ => return Ok(None),
    };
    let before = commit.befores.iter().find(|before| before.ix == ix);
    let Some(OldContent::InPlace { len: was, file, extents: old, .. }) = before.map(|b| &b.content)
    else {
        let (old, file, cleared) = (&[][..], None, Vec::new());
        return Ok(Some(Version { new, old, file, cleared, longest: u64::MAX }));
    };
    let name = before_name(commit.meta.txn, ix.0);
    let open = || env.io.open_file(&env.layout.grave, &name, Open::Read);
    let file = if *file { found(open())? } else { None };
    let cleared = cleared(len, keep, new, *was);
    Ok(Some(Version { new, old, file, cleared, longest: len.max(*was) }))
}

/// Reads a range piece by piece, each beginning at a sector; false as soon as `check` says so.
fn each_piece(
    io: &dyn Tree,
    file: &Handle,
    from: u64,
    to: u64,
    check: impl Fn(&[u8], u64) -> Result<bool>,
) -> Result<bool> {
    let mut buf = vec![0; PIECE as usize];
    let mut at = from / SECTOR as u64 * SECTOR as u64;
    // What is a hole is zeros, which whoever asks takes from every version.
    while at < to
        && let Some((data, _)) = io.next_data(file, at)?
        && data < to
    {
        at = at.max(data / SECTOR as u64 * SECTOR as u64);
        let size = (to - at).min(PIECE) as usize;
        let got = io.read_at(file, &mut buf[..size], at)?;
        // The sector that the range begins in may hold bytes that are nobody's concern.
        let skip = from.saturating_sub(at) as usize;
        if skip < got && !check_from(&buf[..got], skip, at, &check)? {
            return Ok(false);
        }
        at += size as u64;
    }
    Ok(true)
}

/// Reads what extents say at `offset`; zeros where they say nothing.  `file` holds the bytes of
/// hole extents, if it is given.
fn read_extents(
    env: Env<'_>,
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
                if let Some(handle) = env.pool.handle(*slot) {
                    env.io.read_at(&handle, target, at + skip)?;
                }
            }
            Data::Hole { .. } => {
                if let Some(file) = file {
                    env.io.read_at(file, target, from)?;
                }
            }
        }
    }
    Ok(())
}
