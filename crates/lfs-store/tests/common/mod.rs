//! Write sets by path, and what a tree is.

#![allow(dead_code, reason = "each suite uses a part of it")]

#[path = "../volume/mod.rs"]
pub mod volume;

use std::collections::BTreeMap;
use systx_base::Kind;
use systx_lfs_store::VolumeStore;
use systx_store::Store;
use systx_store::io::{Handle, Open, Tree};
use systx_store::writeset::{
    Attrs, Bind, Content, Data, Extent, Ix, NewKind, Object, Origin, WriteSet,
};

/// What is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub mode: u32,
    pub content: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A whole tree.
pub type Dump = BTreeMap<String, Seen>;

/// All that is in the tree, but the store's own.
pub fn dump(store: &VolumeStore) -> Dump {
    let tree = store.tree();
    let mut all = Dump::new();
    let mut todo = vec![(String::new(), tree.root())];
    while let Some((path, dir)) = todo.pop() {
        for (name, _) in list(&*tree, &dir) {
            let stat = tree.stat_at(&dir, &name).unwrap();
            if Some(stat.id) == store.own_object() {
                continue;
            }
            let below = format!("{path}/{}", String::from_utf8_lossy(&name));
            let mut xattrs = BTreeMap::new();
            for key in tree.list_xattr(&dir, &name).unwrap() {
                xattrs.insert(key.clone(), tree.get_xattr(&dir, &name, &key).unwrap());
            }
            let content = match stat.kind {
                Kind::File => {
                    let mut bytes = vec![0; stat.size as usize];
                    let file = tree.open_file(&dir, &name, Open::Read).unwrap();
                    assert_eq!(tree.read_at(&file, &mut bytes, 0).unwrap(), bytes.len());
                    bytes
                }
                Kind::Symlink => tree.read_link(&dir, &name).unwrap(),
                _ => Vec::new(),
            };
            if stat.kind == Kind::Dir {
                todo.push((below.clone(), tree.open_dir(&dir, &name).unwrap()));
            }
            all.insert(below, Seen { kind: stat.kind, mode: stat.mode, content, xattrs });
        }
    }
    all
}

/// Names and numbers in a directory.
pub fn list(tree: &dyn Tree, dir: &Handle) -> Vec<(Vec<u8>, u64)> {
    let mut all = Vec::new();
    tree.list(dir, &mut |item| {
        all.push((item.name.to_vec(), item.ino));
        true
    })
    .unwrap();
    all
}

/// A write set in the making, of paths that are there.
pub struct Sets<'a> {
    store: &'a VolumeStore,
    pub set: WriteSet,
    known: BTreeMap<String, Ix>,
}

impl<'a> Sets<'a> {
    pub fn new(store: &'a VolumeStore) -> Sets<'a> {
        let root = object(Origin::Root);
        let set = WriteSet { objects: vec![root], ..WriteSet::default() };
        Sets { store, set, known: BTreeMap::from([(String::new(), Ix(0))]) }
    }

    fn push(&mut self, path: &str, object: Object) -> Ix {
        let ix = Ix(self.set.objects.len() as u32);
        self.set.objects.push(object);
        self.known.insert(path.to_owned(), ix);
        ix
    }

    /// What is at a path.
    pub fn at(&mut self, path: &str) -> Ix {
        if let Some(known) = self.known.get(path) {
            return *known;
        }
        let (above, name) = path.rsplit_once('/').unwrap();
        let (parent, tree) = (self.at(above), self.store.tree());
        let mut dir = tree.root();
        for part in above.split('/').filter(|part| !part.is_empty()) {
            dir = tree.open_dir(&dir, part.as_bytes()).unwrap();
        }
        let stat = tree.stat_at(&dir, name.as_bytes()).unwrap();
        let (name, kind, stamp) = (name.into(), stat.kind, stat.stamp());
        self.push(path, object(Origin::Host { parent, name, kind, stamp }))
    }

    pub fn object(&mut self, path: &str) -> &mut Object {
        let ix = self.at(path);
        &mut self.set.objects[ix.0 as usize]
    }

    pub fn bind(&mut self, path: &str, target: Option<Ix>, displaces: Option<Ix>) {
        let (above, name) = path.rsplit_once('/').unwrap();
        let dir = self.at(above);
        self.set.binds.push(Bind { dir, name: name.into(), target, displaces });
    }

    /// Something new at a path where nothing is.
    pub fn make(&mut self, path: &str, kind: NewKind) -> &mut Object {
        let mut new = object(Origin::New(kind));
        new.attrs = Attrs { mode: Some(0o750), owner: Some((0, 0)), ..Attrs::default() };
        let ix = self.push(path, new);
        self.bind(path, Some(ix), None);
        &mut self.set.objects[ix.0 as usize]
    }

    pub fn file(&mut self, path: &str, bytes: &[u8]) {
        self.make(path, NewKind::File).content = whole(bytes);
    }

    pub fn remove(&mut self, path: &str) {
        let gone = self.at(path);
        self.bind(path, None, Some(gone));
    }

    /// A new name, whether or not something else has it.
    pub fn rename(&mut self, from: &str, to: &str, is_there: bool) {
        let moved = self.at(from);
        let displaced = is_there.then(|| self.at(to));
        self.bind(from, None, Some(moved));
        self.bind(to, Some(moved), displaced);
    }

    pub fn link(&mut self, from: &str, to: &str) {
        let file = self.at(from);
        self.bind(to, Some(file), None);
    }
}

pub fn object(origin: Origin) -> Object {
    Object { origin, attrs: Attrs::default(), xattrs: Vec::new(), content: Content::Keep }
}

/// All of a file's content.
pub fn whole(bytes: &[u8]) -> Content {
    let extent = Extent { offset: 0, data: Data::Inline(bytes.to_vec()) };
    Content::Whole { len: bytes.len() as u64, extents: vec![extent] }
}

/// Some of it, in place; the old content counts up to the new length.
pub fn patch(len: u64, offset: u64, bytes: &[u8]) -> Content {
    let extent = Extent { offset, data: Data::Inline(bytes.to_vec()) };
    Content::Patch { len, keep: len, extents: vec![extent] }
}

/// Bytes that say where they are from.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let word = |i: u64| systx_base::mix(seed.wrapping_mul(1_000_003).wrapping_add(i / 8));
    (0..len as u64).map(|i| (word(i) >> (i % 8)) as u8).collect()
}
