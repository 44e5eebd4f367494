//! The cleaner: moves what is live out of segments, so that a checkpoint frees them.
//!
//! It is a client of the store like any other.  To move a page is to write it again, as it is; to
//! move a record is to have the next checkpoint write it.  So nothing in the format, in recovery
//! or in the crash model knows of cleaning.

use crate::checkpoint;
use crate::entry::{BlobOf, Entry};
use crate::error::{Error, Result};
use crate::format::{Blob, Ino};
use crate::object::Place;
use crate::piece::{self, Piece};
use crate::state::State;
use crate::usage::Segment;

/// Moves what is live out of the emptiest segments, and frees them.  Returns whether there are
/// more free ones than before.  Nobody may be writing a group.
///
/// # Errors
/// What the device says.
pub fn round(state: &mut State) -> Result<bool> {
    let before = state.usage.free();
    let mut victims: Vec<(u32, Segment)> = candidates(state);
    victims.sort_by_key(|(n, s)| (s.live, *n));
    for (segment, _) in victims {
        if !empty(state, segment)? {
            break;
        }
    }
    checkpoint::write(state)?;
    Ok(state.usage.free() > before)
}

/// Segments that can be cleaned: with something dead in them, written to their end, and not kept
/// by a snapshot.
pub fn candidates(state: &State) -> Vec<(u32, Segment)> {
    let geometry = &state.tree.env.geometry;
    let all = (0..).zip(state.usage.segments().iter().copied());
    all.filter(|(_, s)| s.live > 0 && s.live < geometry.usable() && s.pins == 0 && !s.taken)
        .collect()
}

/// Moves what is live out of a segment, as long as the free segments suffice for it and for the
/// checkpoint.  Returns whether all of it has been moved.
///
/// # Errors
/// What reading says.
pub fn empty(state: &mut State, segment: u32) -> Result<bool> {
    for piece in pieces(state, segment)? {
        let geometry = state.tree.env.geometry;
        let first = geometry.first(segment) + u64::from(piece.header.offset);
        let mut at = first + u64::from(piece.summary);
        for entry in &piece.entries {
            let blocks = u64::from(entry.payload());
            let moved = match entry {
                Entry::Data(ino, page, n) => pages(state, *ino, *page, *n, at)?,
                Entry::Blob(of, _) => blob(state, *of, at..at + blocks)?,
                _ => true,
            };
            if !moved {
                return Ok(false);
            }
            at += blocks;
        }
    }
    Ok(true)
}

/// The pieces of a segment, of the log or of a transaction.
fn pieces(state: &State, segment: u32) -> Result<Vec<Piece>> {
    let env = &state.tree.env;
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

fn pages(state: &mut State, ino: Ino, first: u64, n: u32, at: u64) -> Result<bool> {
    for (page, at) in (first..first + u64::from(n)).zip(at..) {
        let object = match state.tree.get(ino) {
            Ok(object) => object,
            Err(Error::NotFound) => return Ok(true),
            Err(e) => return Err(e),
        };
        let live = object.pages().and_then(|p| p.get(&page));
        let Some(place) = live.and_then(|p| p.place).filter(|place| place.at == at) else {
            continue;
        };
        if !state.pending.has_page(ino, page) && !rewrite(state, ino, page, place)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Has the next flush write a page again, as it is.
fn rewrite(state: &mut State, ino: Ino, page: u64, place: Place) -> Result<bool> {
    let records = state.dirtied(&[ino].into())?;
    if !room(state) || state.left(1) <= state.obligations() + records + 2 {
        return Ok(false);
    }
    let bytes = state.tree.env.read_page(place)?;
    state.tree.change(ino)?;
    if let Some(slot) = state.tree.page_mut(ino, page) {
        slot.memory = Some(bytes.into());
        state.pending.page(ino, page);
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
