//! What the log does not have yet, by key: a flush writes the outcome of each, however often it
//! changed.

use crate::entry::{Entry, PagePacked};
use crate::error::Result;
use crate::format::Ino;
use crate::group::{Group, Moved};
use crate::object::{Page, Place};
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Most places in one entry.
const PLACES: usize = 64;

/// Keys of outcomes.
#[derive(Default)]
pub struct Pending {
    /// Objects that are new or have other attributes.
    pub nodes: BTreeSet<Ino>,
    /// Objects that are gone.
    pub gone: BTreeSet<Ino>,
    /// Names, by directory.
    pub names: BTreeMap<Ino, BTreeSet<Vec<u8>>>,
    /// Files that were cut, and the first page that was.
    pub cuts: BTreeMap<Ino, u64>,
    /// Pages, by file, and whether each has to be written.  The others are holes or lie somewhere
    /// already: an entry says so.
    pages: BTreeMap<Ino, BTreeMap<u64, bool>>,
    /// Number of pages that have to be written.
    page_count: u64,
    /// Number of the others.
    light_count: u64,
    /// Bytes that the entries of names and attributes take at most.
    pub bytes: u64,
    /// Private segments that became the volume's, and their generations.
    pub adopted: Vec<(u32, u32)>,
    /// Packs that the cleaner has made, or moves.
    pub packs: Vec<Moved>,
    /// The pages of these.
    packed: BTreeSet<(Ino, u64)>,
    /// Pages that are written as they are, since others of their cluster are written.
    along: BTreeSet<(Ino, u64)>,
}

impl Pending {
    /// Whether the log has everything.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.gone.is_empty()
            && self.names.is_empty()
            && self.cuts.is_empty()
            && self.pages.is_empty()
            && self.adopted.is_empty()
            && self.packs.is_empty()
    }

    /// Pages that have to be written.
    pub fn page_count(&self) -> u64 {
        self.page_count
    }

    /// Blocks that a flush writes at most.
    pub fn blocks(&self) -> u64 {
        let packs: usize = self.packs.iter().map(|moved| moved.blocks.len()).sum();
        let packed: usize = self.packs.iter().map(|moved| 64 + moved.pages.len() * 13).sum();
        let entries = self.bytes + (self.page_count + self.light_count) * 32 + packed as u64;
        self.page_count + packs as u64 + entries.div_ceil(4096) + 2
    }

    /// A page has changed; whether it has to be written.
    pub fn page(&mut self, ino: Ino, page: u64, is_block: bool) {
        let old = self.pages.entry(ino).or_default().insert(page, is_block);
        self.count(is_block, 1);
        old.into_iter().for_each(|old| self.count(old, -1));
    }

    fn count(&mut self, is_block: bool, by: i64) {
        let count = if is_block { &mut self.page_count } else { &mut self.light_count };
        *count = count.saturating_add_signed(by);
    }

    /// Whether a page waits to be written.
    pub fn has_page(&self, ino: Ino, page: u64) -> bool {
        self.pages.get(&ino).is_some_and(|pages| pages.get(&page) == Some(&true))
    }

    /// Whether anything about a page waits.
    pub fn waits(&self, ino: Ino, page: u64) -> bool {
        self.pages.get(&ino).is_some_and(|pages| pages.contains_key(&page))
    }

    /// A page of which nothing waits is written as it is.
    pub fn along(&mut self, ino: Ino, page: u64) {
        self.page(ino, page, true);
        self.along.insert((ino, page));
    }

    /// Number of these.
    pub fn along_count(&self) -> u64 {
        self.along.len() as u64
    }

    /// These, of which some may have been changed or be gone by now.
    pub fn take_along(&mut self) -> BTreeSet<(Ino, u64)> {
        std::mem::take(&mut self.along)
    }

    /// The opposite of [`Pending::along`].
    pub fn leave(&mut self, ino: Ino, page: u64) {
        let was = self.pages.get_mut(&ino).and_then(|pages| pages.remove(&page));
        was.into_iter().for_each(|is_block| self.count(is_block, -1));
    }

    /// Pages are written as a pack, those of them that nobody changes before.
    pub fn pack(&mut self, moved: Moved) {
        self.packed.extend(moved.pages.iter().map(|(packed, _)| (moved.ino, packed.page)));
        self.packs.push(moved);
    }

    /// Whether the next flush writes a page anyway.
    pub fn writes(&self, ino: Ino, page: u64) -> bool {
        self.has_page(ino, page) || self.packed.contains(&(ino, page))
    }

    /// A file was cut: what was written beyond before does not matter any longer.
    pub fn cut(&mut self, ino: Ino, first: u64) {
        let cut = self.cuts.entry(ino).or_insert(first);
        *cut = first.min(*cut);
        self.bytes += 32;
        let off = self.pages.get_mut(&ino).map(|pages| pages.split_off(&first));
        off.into_iter().flatten().for_each(|(_, is_block)| self.count(is_block, -1));
    }

    /// An object is gone: nothing else about it matters any longer.
    pub fn removed(&mut self, ino: Ino) {
        self.nodes.remove(&ino);
        self.names.remove(&ino);
        self.cuts.remove(&ino);
        let pages = self.pages.remove(&ino).unwrap_or_default();
        pages.into_values().for_each(|is_block| self.count(is_block, -1));
        self.gone.insert(ino);
        self.bytes += 16;
    }

    /// Puts all outcomes into a group.
    ///
    /// # Errors
    /// As [`Group::entry`].
    pub fn write(&self, tree: &Tree, group: &mut Group<'_>) -> Result<()> {
        for (segment, generation) in &self.adopted {
            group.entry(Entry::Adopted(*segment, *generation))?;
        }
        for ino in &self.nodes {
            if let Some(object) = tree.loaded(*ino) {
                group.entry(Entry::Node(*ino, object.node.clone()))?;
            }
        }
        for (dir, names) in &self.names {
            let Some(entries) = tree.loaded(*dir).and_then(|o| o.entries()) else { continue };
            for name in names {
                group.entry(Entry::Bind(*dir, name.clone(), entries.get(name).copied()))?;
            }
        }
        for (ino, first) in &self.cuts {
            group.entry(Entry::Cut(*ino, *first))?;
        }
        for (ino, pages) in &self.pages {
            let Some(all) = tree.loaded(*ino).and_then(|o| o.pages()) else { continue };
            write_pages(*ino, pages, all, group)?;
        }
        for (number, moved) in self.packs.iter().enumerate() {
            let pages: Vec<PagePacked> = moved.stays(tree).collect();
            if !pages.is_empty() {
                let entry = Entry::Packed(moved.ino, moved.blocks.len() as u8, pages);
                group.pack(entry, &moved.blocks, number)?;
            }
        }
        self.gone.iter().try_for_each(|ino| group.entry(Entry::Gone(*ino)))
    }
}

fn write_pages(
    ino: Ino,
    pages: &BTreeMap<u64, bool>,
    all: &BTreeMap<u64, Page>,
    group: &mut Group<'_>,
) -> Result<()> {
    let mut spilled: Option<(u64, Vec<Place>)> = None;
    let mut hole: Option<(u64, u32)> = None;
    let blocks = |of: Range<u64>| pages.range(of).filter(|(_, is_block)| **is_block).count();
    for page in pages.keys() {
        let found = all.get(page);
        let place = found.filter(|p| p.memory.is_none()).and_then(|p| p.place);
        if let Some((first, places)) = &mut spilled {
            let goes_on = *first + places.len() as u64 == *page && places.len() < PLACES;
            if let Some(place) = place.filter(|_| goes_on) {
                places.push(place);
                continue;
            }
            let places = std::mem::take(places);
            group.entry(Entry::Spilled(ino, *first, places))?;
            spilled = None;
        }
        if let Some((first, n)) = &mut hole {
            if found.is_none() && *first + u64::from(*n) == *page && *n < u32::MAX {
                *n += 1;
                continue;
            }
            group.entry(Entry::Hole(ino, *first, *n))?;
            hole = None;
        }
        match (found, place) {
            (None, _) => hole = Some((*page, 1)),
            (Some(_), Some(place)) => spilled = Some((*page, vec![place])),
            (Some(found), None) => {
                if let Some(bytes) = &found.memory {
                    group.page(ino, *page, bytes.clone(), blocks)?;
                }
            }
        }
    }
    if let Some((first, places)) = spilled {
        group.entry(Entry::Spilled(ino, first, places))?;
    }
    if let Some((first, n)) = hole {
        group.entry(Entry::Hole(ino, first, n))?;
    }
    Ok(())
}
