//! Look-ups in a write set, so that nothing that walks it is quadratic.

use super::{Bind, Emptied, Ix, Origin, WriteSet};
use crate::io::HostId;
use systx_base::Kind;

/// A write set with its binds by target, place and displaced object.  Built several times for each
/// commit, so it is tables and not maps.
pub struct Index<'a> {
    /// The write set.
    pub set: &'a WriteSet,
    /// Binds with a target, those of each object together.
    targets: Vec<usize>,
    /// Where those of each object begin in `targets`, and one more.
    starts: Vec<usize>,
    /// Binds by directory and name.
    places: Vec<usize>,
    /// Whether an object is displaced.
    displaced: Vec<bool>,
    /// Directories that go, by the directory that they are in and their name.
    emptied: Vec<&'a Emptied>,
}

impl<'a> Index<'a> {
    /// Of a write set whose indices are in range.
    pub fn new(set: &'a WriteSet) -> Index<'a> {
        let mut starts = vec![0; set.objects.len() + 1];
        let mut displaced = vec![false; set.objects.len()];
        for bind in &set.binds {
            if let Some(target) = bind.target {
                starts[target.0 as usize + 1] += 1;
            }
            if let Some(old) = bind.displaces {
                displaced[old.0 as usize] = true;
            }
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut targets = vec![0; starts.last().copied().unwrap_or(0)];
        for (i, bind) in set.binds.iter().enumerate() {
            if let Some(target) = bind.target {
                let at = &mut next[target.0 as usize];
                targets[*at] = i;
                *at += 1;
            }
        }
        let mut places: Vec<usize> = (0..set.binds.len()).collect();
        // Mostly in order already; of two outcomes for a name the later one counts.
        places.sort_by_key(|i| (set.binds[*i].dir, &set.binds[*i].name));
        let mut emptied: Vec<&Emptied> = set.emptied.iter().collect();
        emptied.sort_by_key(|dir| split(&dir.path));
        Index { set, targets, starts, places, displaced, emptied }
    }

    /// What is known of a directory that goes, by where it was.
    pub(crate) fn emptied(&self, path: &[u8]) -> Option<&'a Emptied> {
        let at = self.emptied.partition_point(|dir| split(&dir.path) < split(path));
        self.emptied.get(at).copied().filter(|dir| dir.path == path)
    }

    /// Those that go with the directory that they are in.
    pub(crate) fn emptied_in(&self, parent: &[u8]) -> &[&'a Emptied] {
        let from = self.emptied.partition_point(|dir| split(&dir.path).0 < parent);
        let count = self.emptied[from..].partition_point(|dir| split(&dir.path).0 == parent);
        &self.emptied[from..from + count]
    }

    /// The binds that name an object, as positions in `binds`.
    pub fn targets(&self, ix: Ix) -> &[usize] {
        let i = ix.0 as usize;
        &self.targets[self.starts[i]..self.starts[i + 1]]
    }

    /// The outcome of a name.
    pub fn at(&self, dir: Ix, name: &[u8]) -> Option<&'a Bind> {
        self.position(dir, name).map(|i| &self.set.binds[i])
    }

    /// The outcomes of all names in a directory.
    pub(crate) fn binds_in(&self, dir: Ix) -> impl Iterator<Item = &'a Bind> {
        let binds = &self.set.binds;
        let from = self.places.partition_point(|i| binds[*i].dir < dir);
        self.places[from..].iter().map(|i| &binds[*i]).take_while(move |bind| bind.dir == dir)
    }

    /// The outcome of a name, as a position in `binds`.
    pub fn position(&self, dir: Ix, name: &[u8]) -> Option<usize> {
        let key = |i: &usize| (self.set.binds[*i].dir, &self.set.binds[*i].name[..]);
        let end = self.places.partition_point(|i| key(i) <= (dir, name));
        self.places[..end].last().filter(|i| key(i) == (dir, name)).copied()
    }

    /// Two outcomes for one name, if there are.
    pub fn twice(&self) -> Option<&'a Bind> {
        let bind = |i: usize| &self.set.binds[i];
        let mut pairs = self.places.windows(2).map(|pair| (bind(pair[0]), bind(pair[1])));
        pairs.find(|(a, b)| a.dir == b.dir && a.name == b.name).map(|p| p.0)
    }

    /// Whether a name that the object had is bound to something else or nothing.
    pub fn is_displaced(&self, ix: Ix) -> bool {
        self.displaced[ix.0 as usize]
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

    /// Whether an object that has this name in a directory with this identity, which is removed, is
    /// to have another place, and is looked for by this name.  Other names that a file has in there
    /// go with the directory, and come back with it.
    pub(crate) fn leaves(&self, ix: Ix, dir: HostId, name: &[u8]) -> bool {
        let id_of = |ix: Ix| match &self.set.object(ix).origin {
            Origin::Host { stamp, .. } => Some(stamp.id),
            _ => None,
        };
        let known_here = match &self.set.object(ix).origin {
            Origin::Host { kind: Kind::Dir, .. } => true,
            Origin::Host { parent, name: known, .. } => {
                id_of(*parent) == Some(dir) && known == name
            }
            _ => false,
        };
        known_here && !self.targets(ix).is_empty()
    }

    /// Whether an object is there only for its version to be followed: what becomes of others moves
    /// it.
    pub(crate) fn is_followed(&self, ix: Ix) -> bool {
        let object = self.set.object(ix);
        matches!(object.origin, Origin::Host { kind, .. } if kind != Kind::Dir)
            && !object.is_changed()
            && !self.is_displaced(ix)
            && self.targets(ix).is_empty()
    }

    /// Where an object was before the transaction; `None` for what had no place.
    pub fn origin_path(&self, ix: Ix) -> Option<Vec<u8>> {
        self.path(ix, |ix| match &self.set.object(ix).origin {
            Origin::Host { parent, name, .. } => Some((*parent, name)),
            _ => None,
        })
    }

    /// Where an object is after the transaction; `None` for what has no place then.
    pub fn final_path(&self, ix: Ix) -> Option<Vec<u8>> {
        self.path(ix, |ix| match (self.targets(ix).first(), &self.set.object(ix).origin) {
            (Some(i), _) => Some(&self.set.binds[*i]).map(|bind| (bind.dir, &bind.name)),
            (None, Origin::Host { parent, name, .. }) if self.at(*parent, name).is_none() => {
                Some((*parent, name))
            }
            _ => None,
        })
    }

    /// The path of a changed name.
    pub fn bind_path(&self, bind: &Bind) -> Option<Vec<u8>> {
        Some(join(self.final_path(bind.dir)?, &bind.name))
    }

    /// The path of an object by the directory and the name that `above` tells of each on the way;
    /// `None` where that does not lead to the root.  Not by recursion: trees may be deeper than a
    /// stack.
    fn path<'n>(
        &self,
        mut ix: Ix,
        above: impl Fn(Ix) -> Option<(Ix, &'n Vec<u8>)>,
    ) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        while let Some((dir, name)) = above(ix) {
            // The set may have a circle.
            if names.len() > self.set.objects.len() {
                return None;
            }
            names.push(name);
            ix = dir;
        }
        let root = (self.set.object(ix).origin == Origin::Root).then(Vec::new)?;
        Some(names.into_iter().rev().fold(root, |path, name| join(path, name)))
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

/// A path without its last name, and that.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
