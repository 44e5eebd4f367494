//! What a piece of the log changes.  Its sums are right, which says who wrote it and not that
//! it makes sense: what does not is damage, and the volume is not opened.

use crate::entry::Entry;
use crate::error::{Error, Result, Structure};
use crate::format::{INO_MAX, Ino};
use crate::object::{Body, Node, Object, PAGE_RECORD, Page, Place, entry_record, node_record};
use crate::pack;
use crate::piece::{Piece, Purpose};
use crate::state::State;
use crate::usage::Usage;
use std::collections::BTreeMap;

/// Applies the entries of a piece.
pub fn piece(state: &mut State, piece: &Piece) -> Result<()> {
    if piece.header.purpose != Purpose::Commit {
        return Ok(());
    }
    let geometry = state.tree.env.geometry;
    let at = geometry.first(piece.header.segment) + u64::from(piece.header.offset);
    let first = at + u64::from(piece.summary);
    let mut blocks = (first..).zip(&piece.crcs).map(|(at, crc)| Place::block(at, *crc));
    for entry in &piece.entries {
        apply(state, entry, &mut blocks).map_err(|e| match e {
            Error::NotFound => {
                Error::corrupt(Structure::Summary, at, format!("{entry:?}: no such object"))
            }
            other => other,
        })?;
    }
    Ok(())
}

fn nonsense<T>(why: &str) -> Result<T> {
    Err(Error::corrupt(Structure::Summary, 0, why))
}

fn apply(state: &mut State, entry: &Entry, blocks: &mut impl Iterator<Item = Place>) -> Result<()> {
    match entry {
        Entry::Node(ino, node) => set_node(state, *ino, node),
        Entry::Gone(ino) => match state.delete(*ino) {
            Err(Error::NotFound) => Ok(()),
            other => other,
        },
        Entry::Bind(dir, name, link) => {
            if let Some(link) = link {
                state.tree.load(link.ino)?;
            }
            let Body::Entries(entries) = &mut state.tree.change(*dir)?.body else {
                return nonsense("a name in what is no directory");
            };
            match link {
                Some(link) => drop(entries.insert(name.clone(), *link)),
                None => drop(entries.remove(name)),
            }
            state.tree.grow(*dir, entry_record(name));
            Ok(())
        }
        Entry::Cut(ino, first) => {
            let (pages, usage) = pages(state, *ino)?;
            pack::cut(usage, pages, *first);
            Ok(())
        }
        Entry::Data(ino, page, n) => {
            let places: Vec<Place> = blocks.take(*n as usize).collect();
            set_pages(state, *ino, (*page..).zip(places))
        }
        Entry::Packed(ino, n, pages) => {
            let mut own = blocks.take((*n).into());
            let first = own.next();
            // The next entry speaks of what is behind all of them.
            own.for_each(drop);
            let Some(Place { at, .. }) = first else { return nonsense("a pack without blocks") };
            set_pages(state, *ino, pages.iter().map(|packed| (packed.page, packed.place(at, *n))))
        }
        Entry::Spilled(ino, page, places) => {
            set_pages(state, *ino, (*page..).zip(places.iter().copied()))?;
            // They may be those of a private segment, which names their file.  That is no harm.
            places.iter().for_each(|place| state.tree.note_stray(*ino, *place));
            Ok(())
        }
        Entry::Hole(ino, page, n) => {
            let (pages, usage) = pages(state, *ino)?;
            let within = *page..*page + u64::from(*n);
            let off: Vec<u64> = pages.range(within).map(|(page, _)| *page).collect();
            for page in off {
                if let Some(place) = pages.remove(&page).and_then(|gone| gone.place) {
                    pack::lost(usage, pages, page, place);
                }
            }
            Ok(())
        }
        Entry::Adopted(segment, generation) => {
            let known = state.usage.segment(*segment);
            if known.live > 0 || known.taken || *segment >= state.tree.env.geometry.segments {
                return nonsense("a private segment that is in use");
            }
            state.usage.adopt(*segment, *generation);
            Ok(())
        }
        Entry::Blob(..) => nonsense("a blob of a checkpoint in a commit"),
    }
}

fn set_node(state: &mut State, ino: Ino, node: &Node) -> Result<()> {
    match state.tree.load(ino) {
        Ok(()) => {
            let object = state.tree.change(ino)?;
            if object.node.attrs.kind != node.attrs.kind {
                return nonsense("an object that changes its type");
            }
            object.node = node.clone();
        }
        Err(Error::NotFound) if ino >= INO_MAX => return nonsense("number of an object"),
        Err(Error::NotFound) => state.tree.insert(ino, Object::new(node.clone())),
        Err(e) => return Err(e),
    }
    state.tree.added(node_record(node));
    state.next_ino = state.next_ino.max(ino.saturating_add(1));
    if node.attrs.nlink == 0 {
        state.orphans.insert(ino);
    } else {
        state.orphans.remove(&ino);
    }
    Ok(())
}

fn pages(state: &mut State, ino: Ino) -> Result<(&mut BTreeMap<u64, Page>, &mut Usage)> {
    match &mut state.tree.change(ino)?.body {
        Body::Pages(pages) => Ok((pages, &mut state.usage)),
        _ => nonsense("pages of what is no file"),
    }
}

fn set_pages(
    state: &mut State,
    ino: Ino,
    places: impl IntoIterator<Item = (u64, Place)>,
) -> Result<()> {
    let geometry = state.tree.env.geometry;
    let (pages, usage) = pages(state, ino)?;
    let mut count = 0;
    for (page, place) in places {
        if !geometry.has(place.blocks()) {
            return nonsense("a page outside of the segments");
        }
        let new = Page { place: Some(place), memory: None };
        let old = pages.insert(page, new);
        pack::gained(usage, pages, page, place)?;
        if let Some(old) = old.and_then(|p| p.place) {
            pack::lost(usage, pages, page, old);
        }
        count += PAGE_RECORD;
    }
    state.tree.grow(ino, count);
    Ok(())
}
