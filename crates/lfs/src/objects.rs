//! Objects in memory: those that have changed, and those that were needed last.

use crate::format::Ino;
use crate::object::{Body, Object};
use std::collections::HashMap;

/// What an object takes, and a page or an entry of it, in bytes: measured, of many small files and
/// of few large ones.
const OBJECT: u64 = 1500;
const PAGE: u64 = 92;
const ENTRY: u64 = 120;

/// Objects by their numbers.
#[derive(Default)]
pub struct Objects {
    /// Apart from the table, half of which is empty after it has grown.
    all: HashMap<Ino, Box<Kept>>,
    /// Bytes of those that could be forgotten since some were.
    came: u64,
}

struct Kept {
    object: Object,
    /// Since some were forgotten.
    used: bool,
}

impl Objects {
    /// Whether one is in memory.  It counts as used.
    pub fn is_there(&mut self, ino: Ino) -> bool {
        self.all.get_mut(&ino).map(|kept| kept.used = true).is_some()
    }

    /// One that is in memory.
    pub fn get(&self, ino: Ino) -> Option<&Object> {
        self.all.get(&ino).map(|kept| &kept.object)
    }

    /// As [`Objects::get`], to be changed.
    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut Object> {
        self.all.get_mut(&ino).map(|kept| &mut kept.object)
    }

    /// One comes, or takes the place of another.
    pub fn insert(&mut self, ino: Ino, object: Object) {
        self.all.insert(ino, Box::new(Kept { object, used: true }));
    }

    /// One goes.
    pub fn remove(&mut self, ino: Ino) -> Option<Object> {
        self.all.remove(&ino).map(|kept| kept.object)
    }

    /// One can be forgotten from here on: the medium has it.
    pub fn is_stored(&mut self, ino: Ino) {
        self.came += self.get(ino).map_or(0, bytes);
    }

    /// If those that could be forgotten have more than `most` bytes since some were: forgets all
    /// but those that were used since, and those that `stays` keeps.  So one that is used again and
    /// again stays however large it is, and no more than twice `most` are kept beside these.
    /// Returns whether it did.
    pub fn forget(&mut self, most: u64, stays: impl Fn(Ino, &Object) -> bool) -> bool {
        if self.came <= most {
            return false;
        }
        self.came = 0;
        self.all.retain(|ino, kept| std::mem::take(&mut kept.used) || stays(*ino, &kept.object));
        true
    }
}

/// What an object takes in memory, about.
fn bytes(object: &Object) -> u64 {
    OBJECT
        + match &object.body {
            Body::Pages(pages) => pages.len() as u64 * PAGE,
            Body::Entries(entries) => entries.len() as u64 * ENTRY,
            Body::Nothing => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Attrs, Node, Page};
    use std::collections::BTreeMap;
    use systx_base::{Kind, Time};

    fn file(pages: u64) -> Object {
        let pages: BTreeMap<u64, Page> = (0..pages).map(|n| (n, Page::default())).collect();
        let time = Time::default();
        let attrs = Attrs {
            kind: Kind::File,
            mode: 0o600,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let node = Node { attrs, xattrs: BTreeMap::new(), parent: 1, target: Vec::new() };
        Object { node, body: Body::Pages(pages) }
    }

    /// Objects of these numbers come, and are on the medium.
    fn come(objects: &mut Objects, inos: std::ops::Range<u64>, pages: u64) {
        for ino in inos {
            objects.insert(ino, file(pages));
            objects.is_stored(ino);
        }
    }

    fn there(objects: &Objects) -> Vec<Ino> {
        let mut all: Vec<Ino> = objects.all.keys().copied().collect();
        all.sort_unstable();
        all
    }

    const NONE: fn(Ino, &Object) -> bool = |_, _| false;

    #[test]
    fn what_was_used_since_stays_and_what_was_not_goes() {
        let mut objects = Objects::default();
        come(&mut objects, 0..10, 0);
        assert!(!objects.forget(10 * OBJECT, NONE));
        come(&mut objects, 10..11, 0);
        assert!(objects.forget(10 * OBJECT, NONE));
        assert_eq!(there(&objects).len(), 11, "all were used");
        assert!(objects.is_there(3) && !objects.is_there(99));
        come(&mut objects, 20..31, 0);
        assert!(objects.forget(10 * OBJECT, |ino, _| ino == 5));
        assert_eq!(there(&objects)[..2], [3, 5]);
        assert_eq!(there(&objects).len(), 13);
    }

    #[test]
    fn pages_count_so_that_few_large_files_are_forgotten_as_many_small_ones_are() {
        let mut objects = Objects::default();
        let most = 200 * PAGE + 2 * OBJECT;
        for n in 0..100 {
            come(&mut objects, n..n + 1, 100);
            objects.forget(most, NONE);
            assert!(there(&objects).len() <= 6, "{:?}", there(&objects));
            assert!(objects.is_there(n));
        }
        // One that is larger than all may be is there as long as it is used.
        come(&mut objects, 200..201, 1000);
        for n in 300..330 {
            come(&mut objects, n..n + 1, 100);
            assert!(objects.is_there(200));
            objects.forget(most, NONE);
        }
        assert!(objects.is_there(200));
    }
}
