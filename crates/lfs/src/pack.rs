//! Packs: cold pages of a file, compressed together.
//!
//! A pack is up to [`PACK_PAGES`] pages of one file, compressed as one and written as a few blocks
//! beside each other.  Each page says in which pack it lies and which one of it it is, and has the
//! sum of its own bytes, as any page.  So an overwrite, a cut or a take knows nothing of packs.
//!
//! Usage counts blocks.  A file with `m` pages of a pack of `k` blocks has the lesser of both in
//! use: so much does it cost to move them, one by one or as the pack.  So cleaning never needs more
//! than was counted.  Pages that went to another file ([`crate::Ops::take`]) are counted there.

use crate::error::{Error, Result, Structure};
use crate::format::{BLOCK, PACK_PAGES};
use crate::object::{Page, Place};
use crate::usage::Usage;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use systx_base::sync::{Mutex, rank};

/// Bytes before the compressed ones: how many these are.
const HEADER: usize = 4;
/// Packs that stay in memory as they were before they were compressed.
const CACHED: usize = 16;
/// How hard is tried: the fastest of zstd's usual levels, for a thread beside others' work.
const LEVEL: i32 = 1;

/// Pages beside each other as one pack: whole blocks, if these are fewer by an eighth at least.
/// What is not there is zeros.
pub fn pack(pages: &[Option<&[u8]>]) -> Option<Vec<u8>> {
    let mut raw = vec![0; pages.len() * BLOCK];
    for (to, page) in raw.chunks_exact_mut(BLOCK).zip(pages) {
        if let Some(page) = page {
            to.copy_from_slice(page);
        }
    }
    let there = pages.iter().flatten().count();
    let most = there.saturating_sub(there.div_ceil(8)) * BLOCK;
    let mut bytes = vec![0; most];
    let len = zstd::bulk::compress_to_buffer(&raw, bytes.get_mut(HEADER..)?, LEVEL).ok()?;
    bytes[..HEADER].copy_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
    bytes.truncate((HEADER + len).next_multiple_of(BLOCK));
    Some(bytes)
}

/// The pages of a pack.
fn unpack(blocks: &[u8], at: u64) -> Result<Vec<u8>> {
    let bad = |why: &str| Error::corrupt(Structure::Data, at, why);
    let header = blocks.first_chunk::<HEADER>().ok_or_else(|| bad("a pack without blocks"))?;
    let len = u32::from_le_bytes(*header) as usize;
    let packed = blocks[HEADER..].get(..len).ok_or_else(|| bad("a pack of a wrong length"))?;
    let raw = zstd::bulk::decompress(packed, PACK_PAGES * BLOCK);
    let raw = raw.map_err(|_| bad("a pack that cannot be decompressed"))?;
    if !raw.len().is_multiple_of(BLOCK) {
        return Err(bad("a pack of no whole pages"));
    }
    Ok(raw)
}

/// A page of a pack, of which these are the blocks.
///
/// # Errors
/// [`Error::Corrupt`] if it is not what was written.
pub fn page(blocks: &[u8], place: Place) -> Result<Vec<u8>> {
    Ok(of(&unpack(blocks, place.at)?, place)?.to_vec())
}

/// Whether all of some pages of a pack are what was written.
///
/// # Errors
/// As [`page`].
pub fn check(blocks: &[u8], mut places: impl Iterator<Item = Place>) -> Result<()> {
    let Some(first) = places.next() else { return Ok(()) };
    let raw = unpack(blocks, first.at)?;
    std::iter::once(first).chain(places).try_for_each(|place| of(&raw, place).map(drop))
}

/// A page of a pack that is decompressed.
fn of(raw: &[u8], place: Place) -> Result<&[u8]> {
    let within = usize::from(place.within.index) * BLOCK;
    let page = raw.get(within..within + BLOCK).filter(|page| crc32c::crc32c(page) == place.crc);
    page.ok_or_else(|| Error::corrupt(Structure::Data, place.at, "wrong sum"))
}

/// The packs that were read last.
#[derive(Clone, Default)]
pub struct Unpacked(Arc<Packs>);

struct Packs(Mutex<VecDeque<(u64, Arc<[u8]>)>>);

impl Default for Packs {
    fn default() -> Self {
        Packs(Mutex::new(rank::LEAF, VecDeque::new()))
    }
}

impl Unpacked {
    /// A page of a pack, of which `read` reads the blocks.  What lies there may be another pack
    /// than the last time: the sum of the page tells.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the page is not what was written; what `read` says.
    pub fn page(
        &self,
        place: Place,
        read: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let known = self.0.0.lock().iter().find(|(at, _)| *at == place.at).map(|(_, p)| p.clone());
        if let Some(page) = known.as_deref().and_then(|raw| of(raw, place).ok()) {
            return Ok(page.to_vec());
        }
        let mut blocks = vec![0; usize::from(place.within.blocks) * BLOCK];
        read(&mut blocks)?;
        let raw: Arc<[u8]> = unpack(&blocks, place.at)?.into();
        let page = of(&raw, place).map(<[u8]>::to_vec);
        let mut packs = self.0.0.lock();
        packs.retain(|(at, _)| *at != place.at);
        packs.truncate(CACHED - 1);
        packs.push_front((place.at, raw));
        page
    }
}

/// Pages of a file that lie in the same pack, as this one does, which is at `page`.
fn siblings(
    pages: &BTreeMap<u64, Page>,
    page: u64,
    place: Place,
) -> impl Iterator<Item = (u64, Place)> {
    // Where a pack's first page is, or would be: pages that went to a file elsewhere keep their
    // order, or count by themselves.
    let base = page.wrapping_sub(place.within.index.into());
    let low = page.saturating_sub(place.within.index.into());
    let all = pages.range(low..page.saturating_add(PACK_PAGES as u64));
    all.filter_map(|(n, page)| Some((*n, page.place?))).filter(move |(n, other)| {
        let same = (other.at, other.within.blocks) == (place.at, place.within.blocks);
        same && n.wrapping_sub(other.within.index.into()) == base
    })
}

/// The pages of a file that are moved at once with the one at `page`, if they are moved as a pack.
pub fn together(pages: &BTreeMap<u64, Page>, page: u64, place: Place) -> Option<Vec<(u64, Place)>> {
    if !place.is_packed() {
        return None;
    }
    let all: Vec<_> = siblings(pages, page, place).collect();
    (all.len() > place.within.blocks.into()).then_some(all)
}

/// Whether a page of a file is one of those of its pack that count as a block in use.
pub fn counts(pages: &BTreeMap<u64, Page>, page: u64, place: Place) -> bool {
    let before = siblings(pages, page, place).take_while(|(n, _)| *n < page).count();
    before < usize::from(place.within.blocks)
}

/// A page of a file came to lie there.
///
/// # Errors
/// [`Error::Corrupt`] if it is in no segment.
pub fn gained(
    usage: &mut Usage,
    pages: &BTreeMap<u64, Page>,
    page: u64,
    place: Place,
) -> Result<()> {
    let blocks = usize::from(place.within.blocks);
    if !place.is_packed() || siblings(pages, page, place).count() <= blocks {
        usage.add(place.at)?;
    }
    Ok(())
}

/// A page of a file does not lie there any longer.
pub fn lost(usage: &mut Usage, pages: &BTreeMap<u64, Page>, page: u64, place: Place) {
    let blocks = usize::from(place.within.blocks);
    if !place.is_packed() || siblings(pages, page, place).count() < blocks {
        usage.remove(place.at);
    }
}

/// Takes the pages from one on out of a file.
pub fn cut(usage: &mut Usage, pages: &mut BTreeMap<u64, Page>, first: u64) {
    while let Some(last) = pages.last_entry().filter(|last| *last.key() >= first) {
        let (page, gone) = last.remove_entry();
        if let Some(place) = gone.place {
            lost(usage, pages, page, place);
        }
    }
}
