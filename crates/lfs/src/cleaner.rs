//! The cleaner: moves what is live out of segments, so that a checkpoint frees them.
//!
//! It is a client of the store like any other.  To move a page is to write it again, as it is; to
//! move a record is to have the next checkpoint write it.  So nothing in the format, in recovery
//! or in the crash model knows of cleaning.

use crate::checkpoint;
use crate::device;
use crate::entry::{BlobOf, Entry, PagePacked};
use crate::error::{Error, Result};
use crate::format::{BLOCK, Blob, Ino, PACK_PAGES};
use crate::group::Moved;
use crate::object::{Bytes, Object, Place};
use crate::pack;
use crate::piece::{self, Piece};
use crate::reads::TOGETHER;
use crate::state::State;
use crate::tree::Env;
use crate::usage::Segment;
use std::collections::BTreeMap;

/// A segment that could be cleaned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its number.
    pub segment: u32,
    /// Blocks in use.
    pub live: u32,
    /// Blocks that it has.
    pub blocks: u32,
    /// Pieces of the log since it was written.
    pub age: u64,
}

/// Which segment to clean next.
pub trait Policy: Send + Sync {
    /// The worth of cleaning a segment: the highest is cleaned first.
    fn worth(&self, candidate: &Candidate) -> f64;
}

/// The emptiest first: most space at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Greedy;

impl Policy for Greedy {
    fn worth(&self, candidate: &Candidate) -> f64 {
        -f64::from(candidate.live)
    }
}

/// Space times age, by what it costs: what has been quiet for long will stay so, and is worth
/// moving even if it is rather full.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostBenefit;

impl Policy for CostBenefit {
    fn worth(&self, candidate: &Candidate) -> f64 {
        let used = f64::from(candidate.live) / f64::from(candidate.blocks);
        (1.0 - used) * candidate.age as f64 / (1.0 + used)
    }
}

/// What cleaning has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleaned {
    /// Segments that were emptied.
    pub segments: u32,
    /// Blocks of files that were moved.
    pub moved: u64,
}

/// Candidates, the most worthy first.
pub fn ranked(state: &State, policy: &dyn Policy) -> Vec<Candidate> {
    let blocks = state.tree.env.geometry.segment_blocks;
    let mut all: Vec<Candidate> = candidates(state)
        .into_iter()
        .map(|(segment, s)| {
            let age = state.head.lsn.saturating_sub(s.newest) + 1;
            Candidate { segment, live: s.live, blocks, age }
        })
        .collect();
    all.sort_by(|a, b| policy.worth(b).total_cmp(&policy.worth(a)));
    all
}

/// Blocks that are free when it has been emptied.
pub fn candidate_dead(candidate: &Candidate) -> u32 {
    candidate.blocks - candidate.live.min(candidate.blocks)
}

/// How scattered a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scatter {
    /// The file.
    pub ino: Ino,
    /// Pages that it has.
    pub pages: u64,
    /// Runs of blocks that they lie in.
    pub runs: u64,
}

impl Scatter {
    /// Runs beyond those that the segments alone make, for each page.
    fn badness(&self, segment: u64) -> f64 {
        let least = self.pages.div_ceil(segment.max(1));
        self.runs.saturating_sub(least) as f64 / self.pages.max(1) as f64
    }
}

/// How scattered the files from an inode on are, up to `max` objects; and where to go on.
///
/// # Errors
/// What reading says.
pub fn scattered(state: &mut State, from: Ino, max: usize) -> Result<(Vec<Scatter>, Option<Ino>)> {
    let mut found = Vec::new();
    for ino in from..from.saturating_add(max as u64) {
        if ino >= state.next_ino {
            return Ok((found, None));
        }
        let object = match state.tree.get(ino) {
            Ok(object) => object,
            Err(Error::NotFound) => continue,
            Err(e) if e.is_damage() => continue,
            Err(e) => return Err(e),
        };
        let mut scatter = Scatter { ino, pages: 0, runs: 0 };
        let mut last = None;
        for place in object.pages().into_iter().flat_map(|p| p.values()).filter_map(|p| p.place) {
            scatter.pages += 1;
            scatter.runs += u64::from(!last.is_some_and(|last: Place| last.leads_to(&place)));
            last = Some(place);
        }
        if scatter.pages > 0 {
            found.push(scatter);
        }
    }
    Ok((found, Some(from.saturating_add(max as u64))))
}

/// The most scattered of some files, if one is worth writing again in order.
pub fn worst(found: &[Scatter], segment_blocks: u32) -> Option<Scatter> {
    let badness = |s: &Scatter| s.badness(u64::from(segment_blocks) / 2);
    let bad = found.iter().filter(|s| badness(s) > 0.1);
    bad.max_by(|a, b| badness(a).total_cmp(&badness(b))).copied()
}

/// Has the next flush write up to `max` pages of a file again, in order, from a page on, if they
/// are not in order.  Returns how many, and the page after the last, if there are more.  Pages that
/// snapshots keep are written, too: those of the snapshot stay where they are.
///
/// # Errors
/// What reading says.
pub fn coalesce(state: &mut State, ino: Ino, from: u64, max: u64) -> Result<(u64, Option<u64>)> {
    let mut pages: Vec<(u64, Place)> = match state.tree.get(ino)?.pages() {
        Some(pages) => {
            let range = pages.range(from..).take(max as usize);
            range.filter_map(|(n, p)| Some((*n, p.place?))).collect()
        }
        None => return Ok((0, None)),
    };
    let mut more = pages.last().filter(|_| pages.len() as u64 == max).map(|(page, _)| page + 1);
    if let Some(next) = &mut more {
        // A cluster is written at once.
        let first = state.tree.env.geometry.cluster_of(*next).start;
        let whole = pages.partition_point(|(page, _)| *page < first);
        if whole > 0 {
            pages.truncate(whole);
            *next = first;
        }
    }
    let count = pages.len() as u64;
    let jumps = pages.windows(2).filter(|two| !two[0].1.leads_to(&two[1].1)).count() as u64;
    if jumps <= count / TOGETHER {
        return Ok((0, more));
    }
    let mut moved = 0;
    for (page, place) in &pages {
        // What is packed has been cold for long.
        if place.is_packed() || state.pending.writes(ino, *page) {
            continue;
        }
        if !state.has_capacity(2) {
            return Ok((moved, None));
        }
        match rewrite(state, ino, *page, *place, Known::default()) {
            Ok(true) => moved += 1,
            Ok(false) => return Ok((moved, None)),
            // It stays where it is.
            Err(e) if e.is_damage() => {}
            Err(e) => return Err(e),
        }
    }
    Ok((moved, more))
}

/// Moves what is live out of the emptiest segments, and frees them: as many as leave so much room
/// more, if there are.  Returns whether there are more free ones than before.  Nobody may be
/// writing a group.
///
/// # Errors
/// What the device says.
pub fn round(state: &mut State, need: u64) -> Result<bool> {
    let before = state.usage.free();
    let wanted = wanted(state, need);
    let mut dead = 0;
    for candidate in ranked(state, &Greedy) {
        if dead >= wanted {
            break;
        }
        let generation = state.usage.segment(candidate.segment).generation;
        let fetched = fetch(&state.tree.env, candidate.segment, generation);
        match fetched.and_then(|fetched| publish(state, &fetched)) {
            Ok(true) => dead += u64::from(candidate_dead(&candidate)),
            Ok(false) => break,
            Err(e) if e.is_damage() => {}
            Err(e) => return Err(e),
        }
    }
    checkpoint::write(state)?;
    Ok(state.usage.free() > before)
}

/// Checkpoints that a round frees the room of, at least: so much less does the one after it weigh.
const CHECKPOINTS: u64 = 4;

/// Dead blocks that a round has to find, to leave so much room more: the checkpoint after it takes
/// its part.
pub fn wanted(state: &State, need: u64) -> u64 {
    let least = CHECKPOINTS * state.price();
    need.max(least) + state.price() + u64::from(state.tree.env.geometry.usable())
}

/// Segments that can be cleaned: with something dead in them, written to their end, and not kept
/// by a snapshot.
pub fn candidates(state: &State) -> Vec<(u32, Segment)> {
    let geometry = &state.tree.env.geometry;
    let all = (0..).zip(state.usage.segments().iter().copied());
    all.filter(|(_, s)| s.live > 0 && s.live < geometry.usable() && s.pins == 0 && !s.taken)
        .collect()
}

/// Segments of which less than half is live, whoever keeps the rest: with the generation of each
/// and what is live, the emptiest first.
pub fn sparse(state: &State) -> Vec<(u32, u32, u32)> {
    let usable = state.tree.env.geometry.usable();
    let all = (0..).zip(state.usage.segments());
    let all = all.filter(|(_, s)| s.live > 0 && s.live < usable / 2 && !s.taken);
    let mut all: Vec<_> = all.map(|(n, s)| (n, s.generation, s.live)).collect();
    all.sort_by_key(|(_, _, live)| *live);
    all
}

/// Blocks that were read before, if any were.
#[derive(Clone, Copy, Default)]
pub struct Known<'a> {
    first: u64,
    bytes: &'a [u8],
}

impl Known<'_> {
    fn of(&self, blocks: std::ops::Range<u64>) -> Option<&[u8]> {
        let from = blocks.start.checked_sub(self.first)? as usize * BLOCK;
        let len = blocks.end.saturating_sub(blocks.start) as usize * BLOCK;
        self.bytes.get(from..from.checked_add(len)?)
    }

    /// The blocks of a place.
    fn blocks(&self, env: &Env, place: Place) -> Result<Vec<u8>> {
        if let Some(known) = self.of(place.blocks()) {
            return Ok(known.to_vec());
        }
        let mut bytes = vec![0; usize::from(place.within.blocks.max(1)) * BLOCK];
        device::read(&*env.dev, place.at, &mut bytes)?;
        Ok(bytes)
    }

    /// The page of a place.
    fn page(&self, env: &Env, place: Place) -> Result<Vec<u8>> {
        let known = self.of(place.blocks()).and_then(|blocks| match place.is_packed() {
            true => pack::page(blocks, place).ok(),
            false => (crc32c::crc32c(blocks) == place.crc).then(|| blocks.to_vec()),
        });
        known.map_or_else(|| env.read_page(place), Ok)
    }
}

/// A segment that was read while others went on.
pub struct Fetched {
    segment: u32,
    generation: u32,
    pieces: Vec<Piece>,
    blocks: Vec<u8>,
}

impl Fetched {
    /// Its blocks.
    pub fn known(&self, env: &Env) -> Known<'_> {
        Known { first: env.geometry.first(self.segment), bytes: &self.blocks }
    }

    /// What of it is live and in no pack.
    ///
    /// # Errors
    /// What reading says.
    pub fn loose(&self, state: &mut State) -> Result<Vec<Loose>> {
        live(state, (self.segment, self.generation), &self.pieces)
    }
}

/// Reads a segment, by one call.  Meanwhile it may be freed and written again:
/// [`publish`] finds out.
///
/// # Errors
/// [`Error::Io`].
pub fn fetch(env: &Env, segment: u32, generation: u32) -> Result<Fetched> {
    let mut blocks = vec![0; env.geometry.segment_blocks as usize * BLOCK];
    device::read(&*env.dev, env.geometry.first(segment), &mut blocks)?;
    let pieces = piece::all(&blocks, &env.id, segment);
    Ok(Fetched { segment, generation, pieces, blocks })
}

/// Moves what is live out of a segment that was read, as long as the free segments suffice for it
/// and for the checkpoint, if that frees it: nothing is moved out of one that a snapshot keeps.
/// Returns whether all of it has been moved.
///
/// # Errors
/// [`Error::Corrupt`] if what is live is not what was written; what reading says.
pub fn publish(state: &mut State, fetched: &Fetched) -> Result<bool> {
    match state.usage.segment(fetched.segment).pins {
        0 => publish_kept(state, fetched),
        _ => Ok(true),
    }
}

/// As [`publish`], also if a snapshot keeps the segment.
///
/// # Errors
/// As [`publish`].
pub fn publish_kept(state: &mut State, fetched: &Fetched) -> Result<bool> {
    match is_same(state, fetched) {
        true => Ok(move_some(state, fetched, &mut 0, u64::MAX)? == Part::All),
        false => Ok(true),
    }
}

/// Whether a segment is still what was read, and has something live in it.
fn is_same(state: &State, fetched: &Fetched) -> bool {
    let now = state.usage.segment(fetched.segment);
    now.generation == fetched.generation && now.live > 0 && !now.taken
}

/// How far moving has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All is moved.
    All,
    /// As much as was asked for.
    Some,
    /// The free segments do not suffice for more.
    NoRoom,
}

impl Part {
    fn all(moved: bool) -> Part {
        if moved { Part::All } else { Part::NoRoom }
    }
}

/// As [`publish`], but of entries before `done` nothing, and no more when `most` blocks wait to be
/// written.  `done` says then where to go on.
///
/// # Errors
/// As [`publish`].
pub fn publish_some(
    state: &mut State,
    fetched: &Fetched,
    done: &mut usize,
    most: u64,
) -> Result<Part> {
    match state.usage.segment(fetched.segment).pins == 0 && is_same(state, fetched) {
        true => move_some(state, fetched, done, most),
        false => Ok(Part::All),
    }
}

fn move_some(state: &mut State, fetched: &Fetched, done: &mut usize, most: u64) -> Result<Part> {
    let known = fetched.known(&state.tree.env);
    let start = state.tree.env.geometry.first(fetched.segment);
    let mut number = 0;
    for piece in &fetched.pieces {
        let mut at = start + u64::from(piece.header.offset) + u64::from(piece.summary);
        for entry in &piece.entries {
            if number >= *done {
                match move_entry(state, entry, at, known, most)? {
                    Part::All => *done = number + 1,
                    part => return Ok(part),
                }
            }
            number += 1;
            at += u64::from(entry.payload());
        }
    }
    strays(state, fetched.segment, known).map(Part::all)
}

/// Moves what is live of an entry, whose blocks begin at `at`.
fn move_entry(
    state: &mut State,
    entry: &Entry,
    at: u64,
    known: Known<'_>,
    most: u64,
) -> Result<Part> {
    let is_enough = |state: &State| most < u64::MAX && state.pending.blocks() >= most;
    if is_enough(state) {
        return Ok(Part::Some);
    }
    let moved = match entry {
        Entry::Data(ino, page, n) => {
            for (page, at) in (*page..*page + u64::from(*n)).zip(at..) {
                if is_enough(state) {
                    return Ok(Part::Some);
                }
                if !single(state, (*ino, page), at, known)? {
                    return Ok(Part::NoRoom);
                }
            }
            true
        }
        Entry::Packed(ino, _, packed) => {
            let pages: Vec<u64> = packed.iter().map(|packed| packed.page).collect();
            packs(state, *ino, &pages, &|place| place.at == at, known)?
        }
        Entry::Blob(of, _) => blob(state, *of, at..at + u64::from(entry.payload()))?,
        _ => true,
    };
    Ok(Part::all(moved))
}

/// What has come to other files than those that the summaries name.
fn strays(state: &mut State, segment: u32, known: Known<'_>) -> Result<bool> {
    let geometry = state.tree.env.geometry;
    for ino in state.tree.strays_in(segment)? {
        let within = |place: &Place| geometry.locate(place.at).is_some_and(|(s, _)| s == segment);
        let pages = state.tree.get(ino)?.pages().into_iter().flatten();
        let pages = pages.filter_map(|(n, page)| Some((*n, page.place.filter(within)?)));
        let (packed, single): (Vec<_>, Vec<_>) = pages.partition(|(_, place)| place.is_packed());
        for (page, place) in single {
            if !state.pending.writes(ino, page) && !rewrite(state, ino, page, place, known)? {
                return Ok(false);
            }
        }
        let packed: Vec<u64> = packed.into_iter().map(|(page, _)| page).collect();
        if !packs(state, ino, &packed, &within, known)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Live pages of a file that lie as blocks, near enough to each other for one pack.
pub struct Loose {
    ino: Ino,
    pages: Vec<(u64, Place)>,
}

/// What of a segment, which is still the same, is live and in no pack.
///
/// # Errors
/// What reading says.
pub fn live(
    state: &mut State,
    (segment, generation): (u32, u32),
    pieces: &[Piece],
) -> Result<Vec<Loose>> {
    let mut files: BTreeMap<Ino, BTreeMap<u64, Place>> = BTreeMap::new();
    if state.usage.segment(segment).generation != generation {
        return Ok(Vec::new());
    }
    for piece in pieces {
        let offset = u64::from(piece.header.offset) + u64::from(piece.summary);
        let mut at = state.tree.env.geometry.first(segment) + offset;
        for entry in &piece.entries {
            if let Entry::Data(ino, first, n) = entry {
                let object = match state.tree.get(*ino) {
                    Err(Error::NotFound) => None,
                    other => Some(other?),
                };
                let all = object.and_then(Object::pages);
                for (page, at) in (*first..*first + u64::from(*n)).zip(at..) {
                    let found = all.and_then(|all| all.get(&page));
                    let place = found.filter(|found| found.memory.is_none()).and_then(|p| p.place);
                    let is_here = |place: &Place| place.at == at && !place.is_packed();
                    if let Some(place) = place.filter(is_here)
                        && !state.pending.writes(*ino, page)
                    {
                        files.entry(*ino).or_default().insert(page, place);
                    }
                }
            }
            at += u64::from(entry.payload());
        }
    }
    // No cluster lies in two packs.
    let (geometry, pack) = (state.tree.env.geometry, PACK_PAGES as u64);
    let within = |page: u64| geometry.cluster_of(page).end;
    let mut all: Vec<Loose> = Vec::new();
    for (ino, pages) in files {
        for (page, place) in pages {
            match all.last_mut() {
                Some(last) if last.ino == ino && within(page) - last.pages[0].0 <= pack => {
                    last.pages.push((page, place));
                }
                _ => all.push(Loose { ino, pages: vec![(page, place)] }),
            }
        }
    }
    Ok(all)
}

/// Pages as a pack, if they become smaller and it has no more than `most` blocks.
///
/// # Errors
/// What reading says.
pub fn packed(env: &Env, loose: &Loose, known: Known<'_>, most: u32) -> Result<Option<Moved>> {
    let Some((first, last)) = loose.pages.first().zip(loose.pages.last()) else { return Ok(None) };
    let base = first.0;
    let mut raw: Vec<Option<Vec<u8>>> = vec![None; (last.0 - base + 1) as usize];
    let mut pages = Vec::new();
    for (page, place) in &loose.pages {
        let index = (page - base) as usize;
        raw[index] = Some(known.page(env, *place)?);
        let packed = PagePacked { page: *page, index: index as u8, crc: place.crc };
        pages.push((packed, *place));
    }
    let raw: Vec<Option<&[u8]>> = raw.iter().map(Option::as_deref).collect();
    let Some(bytes) = pack::pack(&raw) else { return Ok(None) };
    let blocks: Vec<Bytes> = bytes.chunks_exact(BLOCK).map(Into::into).collect();
    let fits = blocks.len() <= most as usize;
    Ok(fits.then_some(Moved { ino: loose.ino, blocks, pages }))
}

/// Has the next flush write a pack, if there is room for it.
///
/// # Errors
/// What reading says.
pub fn put(state: &mut State, pack: Moved) -> Result<bool> {
    let records = match state.dirtied(&[pack.ino].into()) {
        Err(Error::NotFound) => return Ok(true),
        // It stays where it is.
        Err(e) if e.is_damage() => return Ok(true),
        other => other? + pack.blocks.len() as u64,
    };
    if !room(state) || state.left(1) <= state.obligations() + records + 2 {
        return Ok(false);
    }
    match state.tree.change(pack.ino) {
        Err(Error::NotFound) => return Ok(true),
        other => drop(other?),
    }
    state.pending.pack(pack);
    Ok(true)
}

/// The pieces of a segment, of the log or of a transaction.
///
/// # Errors
/// [`Error::Io`].
pub fn pieces(env: &Env, segment: u32) -> Result<Vec<Piece>> {
    let mut all = Vec::new();
    let mut offset = 0;
    while let Some(piece) = piece::read(&*env.dev, &env.geometry, &env.id, segment, offset)? {
        offset += piece.blocks();
        all.push(piece);
    }
    Ok(all)
}

/// Whether one more block could be moved.
fn room(state: &State) -> bool {
    state.left(1) > state.obligations() + 2
}

/// Moves a page of a file that lies as a block, if it is the one at `at`.
fn single(state: &mut State, (ino, page): (Ino, u64), at: u64, known: Known<'_>) -> Result<bool> {
    let object = match state.tree.get(ino) {
        Ok(object) => object,
        Err(Error::NotFound) => return Ok(true),
        Err(e) => return Err(e),
    };
    let live = object.pages().and_then(|p| p.get(&page));
    let is_here = |place: &Place| place.at == at && !place.is_packed();
    match live.and_then(|p| p.place).filter(is_here) {
        Some(place) if !state.pending.writes(ino, page) => rewrite(state, ino, page, place, known),
        _ => Ok(true),
    }
}

/// Moves pages of a file that lie in packs: as the pack where that has fewer blocks.
fn packs(
    state: &mut State,
    ino: Ino,
    pages: &[u64],
    is_here: &dyn Fn(&Place) -> bool,
    known: Known<'_>,
) -> Result<bool> {
    for page in pages {
        let object = match state.tree.get(ino) {
            Ok(object) => object,
            Err(Error::NotFound) => return Ok(true),
            Err(e) => return Err(e),
        };
        let Some(all) = object.pages() else { return Ok(true) };
        let place = all.get(page).and_then(|found| found.place);
        let is_here = |place: &Place| place.is_packed() && is_here(place);
        let Some(place) = place.filter(is_here).filter(|_| !state.pending.writes(ino, *page))
        else {
            continue;
        };
        let moved = match pack::together(all, *page, place) {
            Some(together) => carry(state, ino, place, &together, known)?,
            None => rewrite(state, ino, *page, place, known)?,
        };
        if !moved {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Has the next flush write a pack again, as it is.
fn carry(
    state: &mut State,
    ino: Ino,
    place: Place,
    pages: &[(u64, Place)],
    known: Known<'_>,
) -> Result<bool> {
    let bytes = known.blocks(&state.tree.env, place)?;
    // A damaged pack is not moved: its blocks would get a sum that is right.
    pack::check(&bytes, pages.iter().map(|(_, place)| *place))?;
    let blocks = bytes.chunks_exact(BLOCK).map(Into::into).collect();
    let packed = |(page, place): &(u64, Place)| {
        let (index, crc) = (place.within.index, place.crc);
        (PagePacked { page: *page, index, crc }, *place)
    };
    let moved = Moved { ino, blocks, pages: pages.iter().map(packed).collect() };
    put(state, moved)
}

/// Has the next flush write a page again, as it is.
fn rewrite(state: &mut State, ino: Ino, page: u64, place: Place, known: Known<'_>) -> Result<bool> {
    let records = state.dirtied(&[ino].into())?;
    if !room(state) || state.left(1) <= state.obligations() + records + 2 {
        return Ok(false);
    }
    let bytes: Bytes = known.page(&state.tree.env, place)?.into();
    state.tree.change(ino)?;
    if let Some(slot) = state.tree.page_mut(ino, page) {
        slot.memory = Some(bytes);
        state.pending.page(ino, page, true);
    }
    Ok(true)
}

fn blob(state: &mut State, of: BlobOf, blocks: std::ops::Range<u64>) -> Result<bool> {
    let inside = |blob: &Blob| {
        blob.runs.iter().any(|(at, n)| *at < blocks.end && blocks.start < *at + u64::from(*n))
    };
    match of {
        BlobOf::Chunk(chunk) => {
            if state.tree.chunks.get(&chunk).is_some_and(inside) {
                if !room(state) {
                    return Ok(false);
                }
                state.tree.check_chunk(chunk)?;
                state.tree.mark_chunk(chunk);
            }
        }
        BlobOf::Record(ino) => match state.tree.load(ino) {
            Ok(()) => {
                if state.tree.stored.get(&ino).is_some_and(inside) {
                    let records = state.dirtied(&[ino].into())?;
                    if state.left(1) <= state.obligations() + records {
                        return Ok(false);
                    }
                    state.tree.change(ino)?;
                }
            }
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        },
        // Every checkpoint writes these.
        BlobOf::Root | BlobOf::Usage => {}
    }
    Ok(true)
}
