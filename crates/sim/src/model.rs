//! The oracle: a tree of plain values that transactions change, and the write set that says how one
//! tree became another.  It knows nothing about journals; what a store leaves behind after a crash
//! must be one of its states.

use crate::tree::{self, Node, Path, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Result;
use systx_base::{Gid, Kind, Time, Uid};
use systx_store::io::{Handle, Io};
use systx_store::writeset::{
    Attrs, Bind, Content, Data, Emptied, Extent, Ix, NewKind, Object, Origin, SlotId, WriteSet,
};

/// An object of a model, for as long as the model and its descendants live.
pub type Id = u64;

/// The root directory.
pub const ROOT: Id = 0;

const PAGE: usize = 4096;

/// One object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Type.
    pub kind: Kind,
    /// Permission and set-id bits.
    pub mode: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Last change of data; zero for a directory.
    pub mtime: Time,
    /// Device number.
    pub rdev: u64,
    /// Bytes of a file, target of a symbolic link.
    pub bytes: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names in a directory.
    pub entries: BTreeMap<Vec<u8>, Id>,
}

/// One state of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    items: BTreeMap<Id, Item>,
    next: Id,
}

/// A system call inside a transaction.  Paths are relative to the root, without a leading slash.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Named after the calls and their arguments.
pub enum Op {
    Create(&'static str, usize),
    Mkdir(&'static str),
    Symlink(&'static str, &'static str),
    Fifo(&'static str),
    Link(&'static str, &'static str),
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    /// `Write(path, offset, length)`.
    Write(&'static str, usize, usize),
    /// Truncation to nothing, then so many bytes.
    Rewrite(&'static str, usize),
    Truncate(&'static str, usize),
    Chmod(&'static str, u32),
    Chown(&'static str, u32),
    Utimens(&'static str, i64),
    /// `SetXattr(path, key, length)`.
    SetXattr(&'static str, &'static str, usize),
    RemoveXattr(&'static str, &'static str),
}

/// The call would fail: the sequence that it is in is passed over.
#[derive(Debug)]
pub struct Illegal;

type Legal<T> = std::result::Result<T, Illegal>;

impl Model {
    /// The tree that `io` shows now.
    pub fn read(io: &dyn Io, skip: &dyn Fn(&[u8]) -> bool) -> Result<Model> {
        let tree = tree::read(io, skip)?;
        let mut ids: BTreeMap<Path, Id> = BTreeMap::new();
        let mut model = Model { items: BTreeMap::new(), next: 0 };
        for (path, node) in &tree {
            let id = match ids.get(&node.same_as) {
                Some(id) => *id,
                None => model.add(Item {
                    kind: node.kind,
                    mode: node.mode,
                    uid: node.uid,
                    gid: node.gid,
                    mtime: node.mtime,
                    rdev: node.rdev,
                    bytes: node.bytes.clone(),
                    xattrs: node.xattrs.clone(),
                    entries: BTreeMap::new(),
                }),
            };
            ids.insert(path.clone(), id);
            if path.is_empty() {
                continue;
            }
            let (dir, name) = split(path);
            if let Some(dir) = ids.get(dir).and_then(|d| model.items.get_mut(d)) {
                dir.entries.insert(name.to_vec(), id);
            }
        }
        Ok(model)
    }

    /// The objects, with what names each directory has.
    pub fn items(&mut self) -> &mut BTreeMap<Id, Item> {
        &mut self.items
    }

    /// Adds an object, which has no name yet.
    pub fn add(&mut self, item: Item) -> Id {
        let id = self.next;
        self.next += 1;
        self.items.insert(id, item);
        id
    }

    /// As a tree that can be compared with what an [`Io`] shows.
    pub fn tree(&self) -> Tree {
        let mut links: BTreeMap<Id, u32> = BTreeMap::new();
        for id in self.items.values().flat_map(|i| i.entries.values()) {
            *links.entry(*id).or_default() += 1;
        }
        let mut tree = Tree::new();
        let mut seen = BTreeMap::new();
        self.fill(ROOT, &Path::new(), &links, &mut seen, &mut tree);
        tree
    }

    fn fill(
        &self,
        id: Id,
        path: &Path,
        links: &BTreeMap<Id, u32>,
        seen: &mut BTreeMap<Id, Path>,
        tree: &mut Tree,
    ) {
        let Some(item) = self.items.get(&id) else { return };
        let is_dir = item.kind == Kind::Dir;
        let node = Node {
            kind: item.kind,
            mode: item.mode,
            uid: item.uid,
            gid: item.gid,
            mtime: if is_dir { Time::default() } else { item.mtime },
            nlink: if is_dir { 0 } else { links.get(&id).copied().unwrap_or(0) },
            rdev: item.rdev,
            bytes: item.bytes.clone(),
            xattrs: item.xattrs.clone(),
            same_as: seen.entry(id).or_insert_with(|| path.clone()).clone(),
        };
        tree.insert(path.clone(), node);
        for (name, child) in &item.entries {
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(name);
            self.fill(*child, &below, links, seen, tree);
        }
    }

    /// What a path names.
    pub fn find(&self, path: &str) -> Legal<Id> {
        let names = path.split('/').filter(|n| !n.is_empty());
        names.into_iter().try_fold(ROOT, |dir, name| {
            self.items[&dir].entries.get(name.as_bytes()).copied().ok_or(Illegal)
        })
    }

    fn place(&self, path: &'static str) -> Legal<(Id, Vec<u8>)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.find(dir)?;
        if self.items[&dir].kind == Kind::Dir { Ok((dir, name.into())) } else { Err(Illegal) }
    }

    fn item(&mut self, path: &str) -> Legal<&mut Item> {
        let id = self.find(path)?;
        self.items.get_mut(&id).ok_or(Illegal)
    }

    fn entries(&mut self, dir: Id) -> Legal<&mut BTreeMap<Vec<u8>, Id>> {
        self.items.get_mut(&dir).map(|i| &mut i.entries).ok_or(Illegal)
    }

    fn make(&mut self, path: &'static str, kind: Kind, mode: u32, now: Time) -> Legal<Id> {
        let (dir, name) = self.place(path)?;
        if self.items[&dir].entries.contains_key(&name) {
            return Err(Illegal);
        }
        let mtime = if kind == Kind::Dir { Time::default() } else { now };
        let id = self.add(Item {
            kind,
            mode,
            uid: 0,
            gid: 0,
            mtime,
            rdev: 0,
            bytes: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
        });
        self.entries(dir)?.insert(name, id);
        Ok(id)
    }

    fn below(&self, dir: Id, top: Id) -> bool {
        dir == top || self.items[&top].entries.values().any(|child| self.below(dir, *child))
    }

    fn rename(&mut self, from: &'static str, to: &'static str, exchange: bool) -> Legal<()> {
        let (source, old) = (self.find(from)?, self.find(to).ok());
        let ((from_dir, from_name), (to_dir, to_name)) = (self.place(from)?, self.place(to)?);
        if self.below(to_dir, source) || old == Some(source) {
            return Err(Illegal);
        }
        let is_dir = self.items[&source].kind == Kind::Dir;
        match old {
            None if exchange => return Err(Illegal),
            None => {}
            Some(old) if exchange => {
                if self.below(from_dir, old) {
                    return Err(Illegal);
                }
                self.entries(from_dir)?.insert(from_name, old);
                self.entries(to_dir)?.insert(to_name, source);
                return Ok(());
            }
            Some(old) => {
                let old = &self.items[&old];
                if (old.kind == Kind::Dir) != is_dir || !old.entries.is_empty() {
                    return Err(Illegal);
                }
            }
        }
        self.entries(from_dir)?.remove(&from_name);
        self.entries(to_dir)?.insert(to_name, source);
        Ok(())
    }

    fn prune(&mut self) {
        let named: BTreeSet<Id> =
            self.items.values().flat_map(|i| i.entries.values().copied()).collect();
        self.items.retain(|id, _| *id == ROOT || named.contains(id));
    }

    fn names_of(&self, id: Id) -> Option<(Id, &Vec<u8>)> {
        self.items.iter().find_map(|(dir, item)| {
            item.entries.iter().find(|(_, i)| **i == id).map(|(name, _)| (*dir, name))
        })
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// A transaction on a model, as a view would run it.
#[derive(Clone, Debug)]
pub struct Draft {
    before: Model,
    after: Model,
    /// How far the old content of a file still counts.
    keep: BTreeMap<Id, u64>,
    /// Files that were rewritten from empty.
    whole: BTreeSet<Id>,
    now: Time,
    fill: u8,
}

impl Draft {
    /// Begins at `before`.  `seq` sets the time and the bytes that are written.
    pub fn new(before: &Model, seq: u32) -> Draft {
        Draft {
            before: before.clone(),
            after: before.clone(),
            keep: BTreeMap::new(),
            whole: BTreeSet::new(),
            now: Time { secs: 1_000_000 + i64::from(seq), nanos: 7 },
            fill: (seq % 250) as u8 + 1,
        }
    }

    /// One that makes `after`, which has the objects of `before` and perhaps more.
    pub fn between(before: &Model, after: Model) -> Draft {
        let mut draft = Draft { after, ..Draft::new(before, 0) };
        draft.after.prune();
        draft
    }

    /// The tree after it.
    pub fn after(&self) -> &Model {
        &self.after
    }

    /// Makes a call.
    pub fn run(&mut self, op: &Op) -> Legal<()> {
        use Op::*;
        let now = self.now;
        self.now.nanos += 1;
        self.fill = self.fill % 250 + 1;
        let model = &mut self.after;
        match op {
            Create(path, len) => {
                let id = model.make(path, Kind::File, 0o644, now)?;
                self.write(id, 0, *len, now)?;
            }
            Mkdir(path) => drop(model.make(path, Kind::Dir, 0o755, now)?),
            Symlink(path, target) => {
                model.make(path, Kind::Symlink, 0o777, now)?;
                model.item(path)?.bytes = target.as_bytes().to_vec();
            }
            Fifo(path) => drop(model.make(path, Kind::Fifo, 0o600, now)?),
            Link(from, to) => {
                let id = model.find(from)?;
                let (dir, name) = model.place(to)?;
                if model.items[&id].kind == Kind::Dir || model.find(to).is_ok() {
                    return Err(Illegal);
                }
                model.entries(dir)?.insert(name, id);
            }
            Rename(from, to) => model.rename(from, to, false)?,
            Exchange(a, b) => model.rename(a, b, true)?,
            Unlink(path) | Rmdir(path) => {
                let (id, (dir, name)) = (model.find(path)?, model.place(path)?);
                let item = &model.items[&id];
                let right = (item.kind == Kind::Dir) == matches!(op, Rmdir(_));
                if !right || !item.entries.is_empty() {
                    return Err(Illegal);
                }
                model.entries(dir)?.remove(&name);
            }
            Write(path, offset, len) => {
                let id = model.find(path)?;
                self.write(id, *offset, *len, now)?;
            }
            Rewrite(path, len) => {
                let id = model.find(path)?;
                self.cut(id, 0, now)?;
                self.whole.insert(id);
                self.write(id, 0, *len, now)?;
            }
            Truncate(path, len) => {
                let id = model.find(path)?;
                self.cut(id, *len, now)?;
            }
            Chmod(path, mode) => {
                let item = model.item(path)?;
                if item.kind == Kind::Symlink {
                    return Err(Illegal);
                }
                item.mode = *mode;
            }
            Chown(path, uid) => (model.item(path)?.uid, model.item(path)?.gid) = (*uid, *uid),
            Utimens(path, secs) => {
                let item = model.item(path)?;
                if item.kind == Kind::Dir {
                    return Err(Illegal);
                }
                item.mtime = Time { secs: *secs, nanos: 0 };
            }
            SetXattr(path, key, len) => {
                let value = vec![self.fill; *len];
                let item = model.item(path)?;
                if !matches!(item.kind, Kind::File | Kind::Dir) {
                    return Err(Illegal);
                }
                item.xattrs.insert(key.as_bytes().to_vec(), value);
            }
            RemoveXattr(path, key) => {
                model.item(path)?.xattrs.remove(key.as_bytes()).ok_or(Illegal)?;
            }
        }
        self.after.prune();
        Ok(())
    }

    fn file(&mut self, id: Id) -> Legal<&mut Item> {
        self.after.items.get_mut(&id).filter(|i| i.kind == Kind::File).ok_or(Illegal)
    }

    fn write(&mut self, id: Id, offset: usize, len: usize, now: Time) -> Legal<()> {
        let fill = self.fill;
        let item = self.file(id)?;
        let end = offset + len;
        item.bytes.resize(item.bytes.len().max(end), 0);
        item.bytes[offset..end].fill(fill);
        item.mtime = now;
        Ok(())
    }

    fn cut(&mut self, id: Id, len: usize, now: Time) -> Legal<()> {
        let item = self.file(id)?;
        item.bytes.resize(len, 0);
        item.mtime = now;
        let keep = self.keep.entry(id).or_insert(u64::MAX);
        *keep = (*keep).min(len as u64);
        Ok(())
    }

    /// The write set.  `io` shows the tree before; content longer than `inline` goes to slots made
    /// by `stage`.
    pub fn write_set(
        &self,
        io: &dyn Io,
        inline: usize,
        stage: &mut dyn FnMut(&[u8]) -> Result<SlotId>,
    ) -> Result<WriteSet> {
        let mut build = Build {
            draft: self,
            io,
            inline,
            stage,
            set: WriteSet::default(),
            places: BTreeMap::new(),
        };
        build.object(ROOT)?;
        build.binds()?;
        build.changes()?;
        build.emptied()?;
        Ok(build.set)
    }
}

struct Build<'a> {
    draft: &'a Draft,
    io: &'a dyn Io,
    inline: usize,
    stage: &'a mut dyn FnMut(&[u8]) -> Result<SlotId>,
    set: WriteSet,
    places: BTreeMap<Id, Ix>,
}

impl Build<'_> {
    /// The index of an object; adds it, after its parents, if it is not there yet.
    fn object(&mut self, id: Id) -> Result<Ix> {
        if let Some(ix) = self.places.get(&id) {
            return Ok(*ix);
        }
        let origin = self.origin(id)?;
        let ix = Ix(self.set.objects.len() as u32);
        self.places.insert(id, ix);
        let new = matches!(origin, Origin::New(_));
        self.set.objects.push(Object {
            origin,
            attrs: Attrs::default(),
            xattrs: Vec::new(),
            content: Content::Keep,
        });
        if new {
            self.describe_new(id, ix)?;
        }
        Ok(ix)
    }

    fn origin(&mut self, id: Id) -> Result<Origin> {
        if id == ROOT {
            return Ok(Origin::Root);
        }
        if let Some(item) = self.draft.before.items.get(&id) {
            let (dir, name) = self.draft.before.names_of(id).ok_or_else(missing)?;
            let name = name.clone();
            let handle = self.open(dir)?;
            let stamp = self.io.stat_at(&handle, &name)?.stamp();
            let parent = self.object(dir)?;
            return Ok(Origin::Host { parent, name, kind: item.kind, stamp });
        }
        let item = &self.draft.after.items[&id];
        Ok(Origin::New(match item.kind {
            Kind::File => NewKind::File,
            Kind::Dir => NewKind::Dir,
            Kind::Symlink => NewKind::Symlink(item.bytes.clone()),
            kind => NewKind::Special { kind, rdev: item.rdev },
        }))
    }

    fn open(&self, dir: Id) -> Result<Handle> {
        if dir == ROOT {
            return Ok(self.io.root());
        }
        let (above, name) = self.draft.before.names_of(dir).ok_or_else(missing)?;
        self.io.open_dir(&self.open(above)?, name)
    }

    fn describe_new(&mut self, id: Id, ix: Ix) -> Result<()> {
        let item = &self.draft.after.items[&id];
        let (attrs, xattrs) = (
            Attrs {
                mode: (item.kind != Kind::Symlink).then_some(item.mode),
                owner: Some((item.uid, item.gid)),
                atime: Some(self.draft.now),
                mtime: Some(if item.kind == Kind::Dir { self.draft.now } else { item.mtime }),
            },
            item.xattrs.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect(),
        );
        let content =
            if item.kind == Kind::File { self.whole(&item.bytes)? } else { Content::Keep };
        let object = &mut self.set.objects[ix.0 as usize];
        (object.attrs, object.xattrs, object.content) = (attrs, xattrs, content);
        Ok(())
    }

    fn whole(&mut self, bytes: &[u8]) -> Result<Content> {
        if bytes.len() > self.inline {
            return Ok(Content::Slot((self.stage)(bytes)?));
        }
        let extents = self.extents(&vec![0; bytes.len()], bytes)?;
        Ok(Content::Whole { len: bytes.len() as u64, extents })
    }

    /// The runs of pages in which `after` differs from `before`, which is as long.
    fn extents(&mut self, before: &[u8], after: &[u8]) -> Result<Vec<Extent>> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for at in (0..after.len()).step_by(PAGE) {
            let end = (at + PAGE).min(after.len());
            if before[at..end] == after[at..end] {
                continue;
            }
            match runs.last_mut() {
                Some((_, last)) if *last == at => *last = end,
                _ => runs.push((at, end)),
            }
        }
        let mut extents = Vec::new();
        for (at, end) in runs {
            let bytes = &after[at..end];
            let data = if bytes.len() > self.inline {
                Data::Slot { slot: (self.stage)(bytes)?, at: 0, len: bytes.len() as u64 }
            } else {
                Data::Inline(bytes.to_vec())
            };
            extents.push(Extent { offset: at as u64, data });
        }
        Ok(extents)
    }

    /// What was in the directories that go.
    fn emptied(&mut self) -> Result<()> {
        let (before, after) = (&self.draft.before, &self.draft.after);
        let gone = |id: &Id| !after.items.contains_key(id);
        for (id, item) in before.items.iter().filter(|(id, i)| i.kind == Kind::Dir && gone(id)) {
            let dir = self.open(*id)?;
            let mut names = HashMap::new();
            for name in item.entries.keys() {
                names.insert(name.clone(), Some(self.io.stat_at(&dir, name)?.id));
            }
            let (mtime, path) = (self.io.stat(&dir)?.mtime, self.path_before(*id));
            self.set.emptied.push(Emptied { path, mtime, names });
        }
        Ok(())
    }

    fn path_before(&self, id: Id) -> Vec<u8> {
        let Some((above, name)) = self.draft.before.names_of(id) else { return Vec::new() };
        let above = self.path_before(above);
        if above.is_empty() { name.clone() } else { [&above[..], b"/", name].concat() }
    }

    fn binds(&mut self) -> Result<()> {
        let (before, after) = (&self.draft.before, &self.draft.after);
        for (dir, item) in after.items.iter().filter(|(_, i)| i.kind == Kind::Dir) {
            let old = before.items.get(dir).map(|i| &i.entries);
            let names: BTreeSet<&Vec<u8>> =
                item.entries.keys().chain(old.into_iter().flat_map(|o| o.keys())).collect();
            for name in names {
                let was = old.and_then(|o| o.get(name)).copied();
                let is = item.entries.get(name).copied();
                if was == is {
                    continue;
                }
                let dir = self.object(*dir)?;
                let displaces = was.map(|id| self.object(id)).transpose()?;
                let target = is.map(|id| self.object(id)).transpose()?;
                self.set.binds.push(Bind { dir, name: name.clone(), target, displaces });
            }
        }
        Ok(())
    }

    /// Attributes and content of what was there before and still is.
    fn changes(&mut self) -> Result<()> {
        let draft = self.draft;
        for (id, new) in &draft.after.items {
            let Some(old) = draft.before.items.get(id) else { continue };
            let mtime = (new.mtime != old.mtime).then_some(new.mtime);
            let owner = ((new.uid, new.gid) != (old.uid, old.gid)).then_some((new.uid, new.gid));
            let mode = (new.mode != old.mode).then_some(new.mode);
            let attrs = Attrs { mode, owner, atime: None, mtime };
            let xattrs = changed_xattrs(&old.xattrs, &new.xattrs);
            let content = self.changed_content(*id, old, new)?;
            if attrs == Attrs::default() && xattrs.is_empty() && content == Content::Keep {
                continue;
            }
            let ix = self.object(*id)?;
            let object = &mut self.set.objects[ix.0 as usize];
            (object.attrs, object.xattrs, object.content) = (attrs, xattrs, content);
        }
        Ok(())
    }

    fn changed_content(&mut self, id: Id, old: &Item, new: &Item) -> Result<Content> {
        if new.kind != Kind::File {
            return Ok(Content::Keep);
        }
        if self.draft.whole.contains(&id) {
            return self.whole(&new.bytes);
        }
        let cut = self.draft.keep.get(&id).copied();
        if cut.is_none() && old.bytes == new.bytes {
            return Ok(Content::Keep);
        }
        let size = old.bytes.len() as u64;
        let keep = cut.map_or(size, |cut| cut.min(size));
        let mut base = old.bytes[..keep as usize].to_vec();
        base.resize(new.bytes.len(), 0);
        let extents = self.extents(&base, &new.bytes)?;
        Ok(Content::Patch { len: new.bytes.len() as u64, keep, extents })
    }
}

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

fn changed_xattrs(old: &Values, new: &Values) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let gone = old.keys().filter(|k| !new.contains_key(*k)).map(|k| (k.clone(), None));
    let set = new.iter().filter(|(k, v)| old.get(*k) != Some(*v));
    gone.chain(set.map(|(k, v)| (k.clone(), Some(v.clone())))).collect()
}

fn missing() -> std::io::Error {
    rustix::io::Errno::NOENT.into()
}
