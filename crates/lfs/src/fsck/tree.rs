//! One tree: that its names, counts and blocks agree.

use super::{Check, Finding};
use crate::error::{Error, Result, Structure};
use crate::format::{BLOCK, Blob, Ino, ROOT};
use crate::object::Object;
use crate::tree::{Stored, Tree};
use std::collections::{BTreeMap, BTreeSet};
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

/// Checks a tree, and counts who owns which block.
pub fn walk(check: &mut Check, tree: &mut Tree, owners: &mut BTreeMap<u64, u32>) -> Result<()> {
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
            check.findings.push(Finding::Dangling { dir, name });
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
    Ok(())
}

/// All objects, from all chunks that can be read.
fn inodes(
    check: &mut Check,
    tree: &Tree,
    owners: &mut BTreeMap<u64, u32>,
) -> Result<BTreeSet<Ino>> {
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
pub fn own(check: &mut Check, owners: &mut BTreeMap<u64, u32>, blocks: impl Iterator<Item = u64>) {
    for at in blocks {
        let count = owners.entry(at).or_insert(0);
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
    owners: &mut BTreeMap<u64, u32>,
) -> Result<()> {
    let end = object.node.attrs.size.div_ceil(BLOCK as u64);
    for (page, known) in object.pages().into_iter().flatten() {
        let Some(place) = known.place else { continue };
        check.pages += 1;
        own(check, owners, std::iter::once(place.at));
        if *page >= end {
            check.findings.push(Finding::BeyondEnd { ino, page: *page });
        }
        match tree.env.read_page(place) {
            Err(Error::Corrupt { what, at, .. }) => {
                let why = format!("page {page} of inode {ino} has a wrong sum");
                check.findings.push(Finding::Damaged { what, at, why });
            }
            other => drop(other?),
        }
    }
    Ok(())
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
