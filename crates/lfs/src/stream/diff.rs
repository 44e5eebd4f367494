//! What is different between two trees.

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::format::Ino;
use crate::object::{Bytes, Object, Page};
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of objects in memory, of each tree.
const OBJECTS: u64 = 4 << 20;

/// Takes the outcomes that make one tree the other, nodes before names, and gone objects last.
pub type Sink<'a> = dyn FnMut(Entry, Option<Bytes>) -> Result<()> + 'a;

/// Tells what makes `from`, or nothing, `to`.  What was written to the same place is the same, so
/// only changed chunks of the inode maps are read.
///
/// # Errors
/// What reading says; what `sink` says.
pub fn difference(mut from: Option<&mut Tree>, to: &mut Tree, sink: &mut Sink<'_>) -> Result<()> {
    let inos = changed(from.as_deref(), to)?;
    let mut gone = Vec::new();
    for ino in &inos {
        let (old, new) = (old_of(&mut from, *ino)?, named(to, *ino)?);
        match (old, new) {
            (Some(old), Some(new)) if old.node == new.node => {}
            (_, Some(new)) => sink(Entry::Node(*ino, new.node), None)?,
            (Some(_), None) => gone.push(*ino),
            (None, None) => {}
        }
        trim(&mut from, to);
    }
    for ino in &inos {
        let (old, new) = (old_of(&mut from, *ino)?, named(to, *ino)?);
        names(*ino, old.as_ref(), new.as_ref(), sink)?;
        if let Some(new) = new {
            pages(*ino, old.as_ref(), &new, to, sink)?;
        }
        trim(&mut from, to);
    }
    gone.into_iter().try_for_each(|ino| sink(Entry::Gone(ino), None))
}

fn trim(from: &mut Option<&mut Tree>, to: &mut Tree) {
    to.trim(OBJECTS);
    if let Some(from) = from {
        from.trim(OBJECTS);
    }
}

/// Objects whose records are not the same bytes at the same place.
fn changed(from: Option<&Tree>, to: &Tree) -> Result<BTreeSet<Ino>> {
    let none = BTreeMap::new();
    let before = from.map_or(&none, |tree| &tree.chunks);
    let chunks: BTreeSet<u64> = before.keys().chain(to.chunks.keys()).copied().collect();
    let mut inos = BTreeSet::new();
    for chunk in chunks {
        let (old, new) = (before.get(&chunk), to.chunks.get(&chunk));
        if old == new {
            continue;
        }
        let read = |blob: Option<_>| match blob {
            Some(blob) => to.env.read_chunk(chunk, blob),
            None => Ok(BTreeMap::new()),
        };
        let (old, new) = (read(old)?, read(new)?);
        let all = old.keys().chain(new.keys()).copied();
        inos.extend(all.filter(|ino| old.get(ino) != new.get(ino)));
    }
    Ok(inos)
}

/// An object that has a name.
fn named(tree: &mut Tree, ino: Ino) -> Result<Option<Object>> {
    match tree.get(ino) {
        Ok(object) if object.node.attrs.nlink > 0 => Ok(Some(object.clone())),
        Ok(_) | Err(Error::NotFound) => Ok(None),
        Err(e) => Err(e),
    }
}

fn old_of(from: &mut Option<&mut Tree>, ino: Ino) -> Result<Option<Object>> {
    match from {
        Some(tree) => named(tree, ino),
        None => Ok(None),
    }
}

/// The names of a directory; one that is gone has lost all that it had, for what has other names
/// has fewer now.
fn names(ino: Ino, old: Option<&Object>, new: Option<&Object>, sink: &mut Sink<'_>) -> Result<()> {
    let none = BTreeMap::new();
    let before = old.and_then(Object::entries).unwrap_or(&none);
    let entries = new.and_then(Object::entries).unwrap_or(&none);
    for name in before.keys().filter(|name| !entries.contains_key(*name)) {
        sink(Entry::Bind(ino, name.clone(), None), None)?;
    }
    for (name, link) in entries.iter().filter(|(name, link)| before.get(*name) != Some(link)) {
        sink(Entry::Bind(ino, name.clone(), Some(*link)), None)?;
    }
    Ok(())
}

fn pages(
    ino: Ino,
    old: Option<&Object>,
    new: &Object,
    tree: &Tree,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let Some(pages) = new.pages() else { return Ok(()) };
    let none = BTreeMap::new();
    let before: &BTreeMap<u64, Page> = old.and_then(Object::pages).unwrap_or(&none);
    for page in before.keys().filter(|page| !pages.contains_key(page)) {
        sink(Entry::Hole(ino, *page, 1), None)?;
    }
    for (page, now) in pages {
        let (Some(place), then) = (now.place, before.get(page).and_then(|p| p.place)) else {
            continue;
        };
        if then == Some(place) {
            continue;
        }
        let bytes = tree.env.read_page(place)?;
        // The cleaner may have moved what did not change.
        let moved = match then.filter(|then| then.crc == place.crc) {
            Some(then) => tree.env.read_page(then)? == bytes,
            None => false,
        };
        if !moved {
            sink(Entry::Data(ino, *page, 1), Some(bytes.into()))?;
        }
    }
    Ok(())
}
