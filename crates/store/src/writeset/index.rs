//! Look-ups in a write set, so that nothing that walks it is quadratic.

use super::{Bind, Ix, Origin, WriteSet};
use std::collections::HashMap;
use systx_base::Kind;

/// A write set with its binds by target, place and displaced object.
pub(crate) struct Index<'a> {
    pub set: &'a WriteSet,
    targets: HashMap<Ix, Vec<usize>>,
    places: HashMap<(Ix, &'a [u8]), usize>,
    displaced: HashMap<Ix, usize>,
}

impl<'a> Index<'a> {
    pub fn new(set: &'a WriteSet) -> Index<'a> {
        let mut index = Index {
            set,
            targets: HashMap::new(),
            places: HashMap::with_capacity(set.binds.len()),
            displaced: HashMap::new(),
        };
        for (i, bind) in set.binds.iter().enumerate() {
            index.places.insert((bind.dir, &bind.name), i);
            if let Some(target) = bind.target {
                index.targets.entry(target).or_default().push(i);
            }
            if let Some(displaced) = bind.displaces {
                index.displaced.insert(displaced, i);
            }
        }
        index
    }

    /// The binds that name an object, as positions in `binds`.
    pub fn targets(&self, ix: Ix) -> &[usize] {
        self.targets.get(&ix).map_or(&[], Vec::as_slice)
    }

    /// The outcome of a name.
    pub fn at(&self, dir: Ix, name: &[u8]) -> Option<&'a Bind> {
        self.places.get(&(dir, name)).map(|i| &self.set.binds[*i])
    }

    /// Whether a name that the object had is bound to something else or nothing.
    pub fn is_displaced(&self, ix: Ix) -> bool {
        self.displaced.contains_key(&ix)
    }

    /// Whether the object loses a name and gets none.
    pub fn is_removed(&self, ix: Ix) -> bool {
        self.is_displaced(ix) && self.targets(ix).is_empty()
    }

    /// Whether the object was somewhere below a directory that is removed.
    pub fn inside_removed(&self, mut ix: Ix) -> bool {
        while let Origin::Host { parent, .. } = &self.set.object(ix).origin {
            ix = *parent;
            if self.set.object(ix).kind() == Kind::Dir && self.is_removed(ix) {
                return true;
            }
            if !self.targets(ix).is_empty() {
                return false;
            }
        }
        false
    }

    /// Where an object was before the transaction; `None` for what had no place.
    pub fn origin_path(&self, ix: Ix) -> Option<Vec<u8>> {
        match &self.set.object(ix).origin {
            Origin::Root => Some(Vec::new()),
            Origin::Host { parent, name, .. } => Some(join(self.origin_path(*parent)?, name)),
            _ => None,
        }
    }

    /// Where an object is after the transaction; `None` for what has no place then.
    pub fn final_path(&self, ix: Ix) -> Option<Vec<u8>> {
        self.walk(ix, self.set.objects.len() + 1)
    }

    /// The path of a changed name.
    pub fn bind_path(&self, bind: &Bind) -> Option<Vec<u8>> {
        Some(join(self.final_path(bind.dir)?, &bind.name))
    }

    /// `left` bounds the walk, should the set have a cycle.
    fn walk(&self, ix: Ix, left: usize) -> Option<Vec<u8>> {
        let left = left.checked_sub(1)?;
        if let Some(i) = self.targets(ix).first() {
            let bind = &self.set.binds[*i];
            return Some(join(self.walk(bind.dir, left)?, &bind.name));
        }
        match &self.set.object(ix).origin {
            Origin::Root => Some(Vec::new()),
            Origin::Host { parent, name, .. } if self.at(*parent, name).is_none() => {
                Some(join(self.walk(*parent, left)?, name))
            }
            _ => None,
        }
    }
}

/// Appends a component to a path below the volume root.
pub(crate) fn join(dir: Vec<u8>, name: &[u8]) -> Vec<u8> {
    let mut path = dir;
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
