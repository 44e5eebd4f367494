//! Moments: the committed tree as it was, for whoever reads while others go on.
//!
//! A moment is known in memory alone.  What others change from its begin on, as it was, lies above
//! the tree for it: outcomes, as those of a transaction or of the veil, so reading it needs nothing
//! of its own.  What nobody has changed is read where it is, also if the cleaner has moved it.
//!
//! Nothing is copied: a page that was only in memory is shared, and one that lies on the medium
//! stays there.  A segment that only moments need counts as free, so nobody is refused anything for
//! their sake.  It is taken when there is no other one, and then all moments are given up
//! ([`crate::usage`]).  A power cut leaves nothing of them.

use crate::error::{Error, Result};
use crate::format::{Geometry, Ino};
use crate::object::{Body, Object};
use crate::txn::{Staged, Txn};
use crate::usage::Usage;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use systx_base::sync::{Mutex, rank};

/// What a moment has of its own.
pub struct Layer {
    /// What has been changed since, as it was.
    above: Mutex<Txn>,
    /// How often all moments had been given up when it began.
    calls: u64,
    /// Objects from this number on were made later.
    next_ino: Ino,
}

/// A moment that somebody may be reading.
struct Known {
    layer: Weak<Layer>,
    /// As the layer has it.
    calls: u64,
    /// What it would have to see has been changed.
    is_touched: bool,
    /// Old values that it keeps: names, objects and pages.
    items: u64,
    /// Segments that it needs.
    segments: BTreeSet<u32>,
}

/// All moments of a volume.
#[derive(Default)]
pub struct Moments {
    known: Vec<Known>,
}

/// What is about to be changed, as it is.
pub struct Old {
    /// Names, attributes and pages.
    pub above: Txn,
    /// By how much the number of names of an object changes.
    pub links: BTreeMap<Ino, i64>,
}

impl Layer {
    /// Whether it was given up.
    pub fn is_given_up(&self, usage: &Usage) -> bool {
        self.calls != usage.calls()
    }

    /// Reads by `read`, which gets what lies above the tree.
    ///
    /// # Errors
    /// [`Error::GivenUp`]; what `read` says.
    pub fn read<T>(&self, usage: &Usage, read: impl FnOnce(&mut Txn) -> Result<T>) -> Result<T> {
        if self.is_given_up(usage) {
            return Err(Error::GivenUp);
        }
        // Whoever reads has the volume's lock, and other locks may be taken meanwhile.
        let mut above = std::mem::take(&mut *self.above.lock());
        let seen = read(&mut above);
        *self.above.lock() = above;
        seen
    }

    fn is_of(&self, ino: Ino) -> bool {
        ino < self.next_ino
    }
}

/// What one layer takes of what is changed.
struct Taking<'a> {
    above: &'a mut Txn,
    known: &'a mut Known,
    usage: &'a mut Usage,
    geometry: &'a Geometry,
}

impl Taking<'_> {
    fn page(&mut self, ino: Ino, page: u64, old: Staged) {
        let pages = self.above.pages.entry(ino).or_default();
        let std::collections::btree_map::Entry::Vacant(place) = pages.entry(page) else { return };
        if let Staged::Spilled(at) = &old
            && let Some((segment, _)) = self.geometry.locate(at.at)
            && self.known.segments.insert(segment)
        {
            self.usage.keep(segment);
        }
        place.insert(old);
        self.known.items += 1;
    }

    fn changed(&mut self, layer: &Layer, old: &Old) {
        self.known.is_touched = true;
        for (ino, patch) in old.above.patches.iter().filter(|(ino, _)| layer.is_of(**ino)) {
            let older = self.above.patches.entry(*ino).or_insert_with(|| {
                self.known.items += 1;
                patch.clone()
            });
            for (name, value) in &patch.xattrs {
                older.xattrs.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        for (dir, names) in old.above.entries.iter().filter(|(dir, _)| layer.is_of(**dir)) {
            let older = self.above.entries.entry(*dir).or_default();
            for (name, was) in names {
                older.entry(name.clone()).or_insert_with(|| {
                    self.known.items += 1;
                    *was
                });
            }
        }
        for (ino, delta) in old.links.iter().filter(|(ino, _)| layer.is_of(**ino)) {
            *self.above.links.entry(*ino).or_insert(0) -= delta;
        }
        for (ino, pages) in old.above.pages.iter().filter(|(ino, _)| layer.is_of(**ino)) {
            pages.iter().for_each(|(page, was)| self.page(*ino, *page, was.clone()));
        }
    }

    fn removed(&mut self, ino: Ino, object: &Object) {
        self.known.is_touched = true;
        self.above.created.entry(ino).or_insert_with(|| object.node.clone());
        self.known.items += 1;
        let Body::Pages(pages) = &object.body else { return };
        for (page, found) in pages {
            let old = match (&found.memory, found.place) {
                (Some(bytes), _) => Staged::Memory(bytes.clone()),
                (None, Some(place)) => Staged::Spilled(place),
                (None, None) => continue,
            };
            self.page(ino, *page, old);
        }
    }
}

impl Moments {
    /// The tree as it is shown now, with what is hidden by the veil.
    pub fn begin(
        &mut self,
        veil: &Txn,
        next_ino: Ino,
        (usage, geometry): (&mut Usage, &Geometry),
    ) -> Arc<Layer> {
        self.tidy(usage);
        if let Some(last) = self.known.last().filter(|last| !last.is_touched)
            && let Some(layer) = last.layer.upgrade()
        {
            return layer;
        }
        let mut above = Txn {
            patches: veil.patches.clone(),
            entries: veil.entries.clone(),
            links: veil.links.clone(),
            ..Txn::new()
        };
        // What is hidden goes on to be shown: nobody else can have the same.
        let is_touched = !veil.is_empty();
        let calls = usage.calls();
        let (layer, items, segments) = (Weak::new(), 0, BTreeSet::new());
        let mut known = Known { layer, calls, is_touched, items, segments };
        let mut taking = Taking { above: &mut above, known: &mut known, usage, geometry };
        for (ino, pages) in &veil.pages {
            pages.iter().for_each(|(page, was)| taking.page(*ino, *page, was.clone()));
        }
        let above = Mutex::new(rank::LEAF, above);
        let layer = Arc::new(Layer { above, calls, next_ino });
        self.known.push(Known { layer: Arc::downgrade(&layer), ..known });
        layer
    }

    /// Whether somebody may be reading one.
    pub fn is_open(&self) -> bool {
        !self.known.is_empty()
    }

    /// Lets go of what ended moments have needed, and those that were given up.
    pub fn tidy(&mut self, usage: &mut Usage) {
        self.known.retain(|known| {
            let (layer, is_given_up) = (known.layer.upgrade(), known.calls != usage.calls());
            match layer {
                Some(_) if !is_given_up => return true,
                Some(layer) => *layer.above.lock() = Txn::new(),
                // Those of a moment that was given up are everybody's already.
                None if !is_given_up => known.segments.iter().for_each(|s| usage.let_go(*s)),
                None => {}
            }
            false
        });
    }

    /// Before something is changed.  If they then have more than `most` old values, all are given
    /// up.
    pub fn change(&mut self, old: &Old, most: u64, at: (&mut Usage, &Geometry)) {
        self.each(most, at, |taking, layer| taking.changed(layer, old));
    }

    /// Before an object is deleted.
    pub fn remove(&mut self, ino: Ino, object: &Object, most: u64, at: (&mut Usage, &Geometry)) {
        self.each(most, at, |taking, layer| {
            if layer.is_of(ino) {
                taking.removed(ino, object);
            }
        });
    }

    fn each(
        &mut self,
        most: u64,
        (usage, geometry): (&mut Usage, &Geometry),
        mut take: impl FnMut(&mut Taking<'_>, &Layer),
    ) {
        for known in &mut self.known {
            let Some(layer) = known.layer.upgrade().filter(|l| !l.is_given_up(usage)) else {
                continue;
            };
            let mut above = layer.above.lock();
            take(&mut Taking { above: &mut above, known, usage, geometry }, &layer);
        }
        if self.known.iter().map(|known| known.items).sum::<u64>() > most {
            usage.call_in();
        }
    }
}
