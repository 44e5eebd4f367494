//! One tree: that its names, counts and blocks agree.

use super::{Check, Finding};
use crate::entry::Entry;
use crate::error::{Error, Result, Structure};
use crate::format::{BLOCK, Blob, Ino, ROOT};
use crate::object::{Object, Place};
use crate::pack;
use crate::piece::Piece;
use crate::tree::{Stored, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use systx_base::Kind;

/// What the walk knows of an object.
struct Known {
    kind: Kind,
    nlink: u32,
    parent: Ino,
    /// Names and subdirectories that were seen.
    names: u32,
    subdirs: u32,
    parents: Vec<Ino>,
}

/// Who owns which block.
#[derive(Default)]
pub struct Owners {
    /// How many own a block, of all but packs.
    single: BTreeMap<u64, u32>,
    /// By first block.
    packs: BTreeMap<u64, Pack>,
    /// The block of each page of a file, or the first one of its pack.
    pages: Vec<(u64, Ino, u64)>,
}

/// What is known of a pack.
struct Pack {
    blocks: u64,
    /// How many of these count as in use.
    used: u64,
    /// Which of its pages some file has, by bits.
    pages: u32,
}

impl Owners {
    /// All blocks that anything refers to.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        let packs = self.packs.iter().flat_map(|(at, pack)| *at..*at + pack.blocks);
        self.single.keys().copied().chain(packs)
    }

    /// The last of some blocks that anything refers to.
    pub fn last(&self, within: Range<u64>) -> Option<u64> {
        let single = self.single.range(within.clone()).next_back().map(|(at, _)| *at);
        let pack = self.packs.range(within).next_back().map(|(at, pack)| at + pack.blocks - 1);
        single.max(pack)
    }

    /// The pages of files that lie there, after [`walk`].
    pub fn pages(&self, within: Range<u64>) -> impl Iterator<Item = (u64, Ino, u64)> + '_ {
        let from = self.pages.partition_point(|(at, ..)| *at < within.start);
        let pages = self.pages[from..].iter().copied();
        pages.take_while(move |(at, ..)| *at < within.end)
    }

    /// How many of some blocks are in use.
    pub fn count(&self, within: Range<u64>) -> u64 {
        let packs: u64 = self.packs.range(within.clone()).map(|(_, pack)| pack.used).sum();
        self.single.range(within).count() as u64 + packs
    }

    /// Notes a page of a pack, and whether it counts as a block.  Returns whether nobody else has
    /// it, and the others say the same of their pack.
    fn has_packed(&mut self, place: Place, counts: bool) -> bool {
        let (blocks, page) = (u64::from(place.within.blocks), 1 << place.within.index);
        let pack = self.packs.entry(place.at).or_insert(Pack { blocks, used: 0, pages: 0 });
        let is_alone = pack.blocks == blocks && pack.pages & page == 0;
        pack.used += u64::from(counts);
        pack.pages |= page;
        is_alone
    }

    /// Finds packs that something else lies in.
    fn overlaps(&self) -> Vec<u64> {
        let mut end = 0;
        let mut found = Vec::new();
        for (at, pack) in &self.packs {
            let after = *at + pack.blocks;
            if *at < end || self.single.range(*at..after).next().is_some() {
                found.push(*at);
            }
            end = end.max(after);
        }
        found
    }
}

/// Checks a tree, and counts who owns which block.
pub fn walk(check: &mut Check, tree: &mut Tree, owners: &mut Owners) -> Result<()> {
    let mut known = BTreeMap::new();
    let mut names = Vec::new();
    let inos = inodes(check, tree, owners)?;
    for ino in inos {
        let blob = match tree.load(ino) {
            Ok(()) => tree.stored.get(&ino).cloned(),
            Err(e) => {
                check.note(e)?;
                continue;
            }
        };
        if let Some(blob) = blob {
            own(check, owners, blocks(&blob));
        }
        let Some(object) = tree.loaded(ino) else { continue };
        let a = &object.node.attrs;
        let parent = object.node.parent;
        let nothing = Known {
            kind: a.kind,
            nlink: a.nlink,
            parent,
            names: 0,
            subdirs: 0,
            parents: Vec::new(),
        };
        known.insert(ino, nothing);
        for (name, link) in object.entries().into_iter().flatten() {
            names.push((ino, name.clone(), *link));
        }
        let object = object.clone();
        pages(check, tree, ino, &object, owners)?;
    }
    check.objects += known.len() as u64;
    for (dir, name, link) in names {
        let Some(object) = known.get_mut(&link.ino) else {
            check.findings.push(match tree.load(link.ino) {
                Err(e) if e.is_damage() => Finding::Unknown { dir, name },
                _ => Finding::Dangling { dir, name },
            });
            continue;
        };
        if object.kind != link.kind {
            check.findings.push(Finding::WrongType { dir, name });
        }
        object.names += 1;
        if object.kind == Kind::Dir {
            object.parents.push(dir);
            if let Some(dir) = known.get_mut(&dir) {
                dir.subdirs += 1;
            }
        }
    }
    agree(check, &known);
    owners.pages.sort_unstable();
    let shared = owners.overlaps().into_iter().map(|at| Finding::Shared { at });
    check.findings.extend(shared);
    Ok(())
}

/// All objects, from all chunks that can be read.
fn inodes(check: &mut Check, tree: &Tree, owners: &mut Owners) -> Result<BTreeSet<Ino>> {
    let mut inos = BTreeSet::new();
    for (chunk, blob) in &tree.chunks {
        own(check, owners, blocks(blob));
        check.blob(blob, Structure::Chunk);
        match tree.env.read_chunk(*chunk, blob) {
            Ok(all) => {
                for (ino, stored) in all {
                    if !tree.gone.contains(&ino) {
                        inos.insert(ino);
                    }
                    if let Stored::Apart(blob) = stored {
                        check.blob(&blob, Structure::Record);
                    }
                }
            }
            Err(e) => check.note(e)?,
        }
    }
    inos.extend(&tree.dirty);
    Ok(inos)
}

fn blocks(blob: &Blob) -> impl Iterator<Item = u64> + '_ {
    blob.runs.iter().flat_map(|(at, n)| *at..at.saturating_add(u64::from(*n)))
}

/// Counts an owner of each block.
pub fn own(check: &mut Check, owners: &mut Owners, blocks: impl Iterator<Item = u64>) {
    for at in blocks {
        let count = owners.single.entry(at).or_insert(0);
        *count += 1;
        if *count == 2 {
            check.findings.push(Finding::Shared { at });
        }
    }
}

fn pages(
    check: &mut Check,
    tree: &Tree,
    ino: Ino,
    object: &Object,
    owners: &mut Owners,
) -> Result<()> {
    let end = object.node.attrs.size.div_ceil(BLOCK as u64);
    for (page, known) in object.pages().into_iter().flatten() {
        let Some(place) = known.place else { continue };
        check.pages += 1;
        owners.pages.push((place.at, ino, *page));
        if place.is_packed() {
            let all = object.pages().expect("it has this page");
            let counts = pack::counts(all, *page, place);
            if !owners.has_packed(place, counts) {
                check.findings.push(Finding::Shared { at: place.at });
            }
        } else {
            own(check, owners, std::iter::once(place.at));
        }
        if *page >= end {
            check.findings.push(Finding::BeyondEnd { ino, page: *page });
        }
        match tree.env.read_page(place) {
            Err(Error::Corrupt { what, at, .. }) => {
                let why = format!("page {page} of inode {ino} has a wrong sum");
                check.findings.push(Finding::Damaged { what, at, why });
            }
            Err(e) => check.note(e)?,
            Ok(_) => {}
        }
    }
    Ok(())
}

/// The pages that a piece at a block speaks of, as [`Owners::pages`] has them.
pub fn name(piece: &Piece, at: u64, named: &mut BTreeSet<(u64, Ino, u64)>) {
    let mut at = at + u64::from(piece.summary);
    for entry in &piece.entries {
        match entry {
            Entry::Data(ino, first, n) => {
                named.extend((0..u64::from(*n)).map(|i| (at + i, *ino, first + i)));
            }
            Entry::Packed(ino, _, pages) => {
                named.extend(pages.iter().map(|packed| (at, *ino, packed.page)));
            }
            _ => {}
        }
        at += u64::from(entry.payload());
    }
}

fn agree(check: &mut Check, known: &BTreeMap<Ino, Known>) {
    for (ino, object) in known {
        let dir = object.kind == Kind::Dir;
        let counted = if dir { 2 + object.subdirs } else { object.names };
        if object.names == 0 && *ino != ROOT {
            // Without a name it is deleted when the volume is opened.
            if object.nlink > 0 {
                check.findings.push(Finding::Unreachable(*ino));
            }
            continue;
        }
        if counted != object.nlink {
            let says = object.nlink;
            check.findings.push(Finding::LinkCount { ino: *ino, says, counted });
        }
        let right = if *ino == ROOT {
            object.parents.is_empty() && object.parent == ROOT
        } else {
            object.parents == [object.parent] && leads_to_root(known, *ino)
        };
        if dir && !right {
            check.findings.push(Finding::WrongParent(*ino));
        }
    }
    if known.get(&ROOT).is_none_or(|root| root.kind != Kind::Dir) {
        check.findings.push(Finding::Unreachable(ROOT));
    }
}

fn leads_to_root(known: &BTreeMap<Ino, Known>, dir: Ino) -> bool {
    let mut at = dir;
    let mut seen = BTreeSet::new();
    while at != ROOT && seen.insert(at) {
        let Some(object) = known.get(&at) else { return false };
        at = object.parent;
    }
    at == ROOT
}
