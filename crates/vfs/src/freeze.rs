//! From a view to a write set: what the transaction leaves behind, as the store takes it.
//!
//! Every directory that is still in the tree and has changed names contributes its binds; every node
//! that is still in the tree and differs from its base contributes an object.  Parents of existing
//! objects are named by where they are on the backing file system, so the set can be installed (and
//! installed again after a crash) without knowing in which order things were done.

use crate::content::Slot;
use crate::node::{Base, Body, Child, Dirty, Name, Node};
use crate::view::{State, View};
use std::collections::{HashMap, HashSet};
use systx_base::{Kind, NodeId};
use systx_store::io::Stamp;
use systx_store::writeset::{Attrs, Bind, Content, Ix, NewKind, Object, Origin, WriteSet};

/// Which changes are committed.
pub trait Selection {
    /// Whether a change of this path (relative to the volume's root, no leading slash) is taken.
    fn takes(&self, path: &[u8]) -> bool;
}

/// Takes everything.
pub struct Everything;

impl Selection for Everything {
    fn takes(&self, _path: &[u8]) -> bool {
        true
    }
}

/// A write set, and what must stay alive until it is committed.
pub struct Frozen {
    /// The outcomes.
    pub writes: WriteSet,
    /// Staging slots that it names.
    pub slots: Vec<Slot>,
    /// The host path of each object, for reports.
    pub paths: Vec<Vec<u8>>,
    /// Changed paths that the selection left out.
    pub left_out: Vec<Vec<u8>>,
    /// The node of each object.
    nodes: Vec<NodeId>,
    /// The directory and name of each bind.
    places: Vec<(NodeId, Name)>,
}

impl Frozen {
    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        let changed = |o: &Object| {
            o.attrs != Attrs::default() || !o.xattrs.is_empty() || o.content != Content::Keep
        };
        self.writes.binds.is_empty() && !self.writes.objects.iter().any(changed)
    }
}

impl View {
    /// What this view would commit now.  The processes in the view must have ended, and the kernel
    /// must have written back what it held dirty.
    pub fn freeze(&self, selection: &dyn Selection) -> Frozen {
        let st = self.state.lock();
        let mut frost = Frost::new(self, &st);
        frost.collect(selection);
        frost.done()
    }
}

impl View {
    /// After a part of the changes was committed: what was committed is now the base of the rest.
    /// `stamps` are the versions after installation.
    pub fn rebase(&self, frozen: &Frozen, stamps: &[(Ix, Stamp)]) {
        let mut st = self.state.lock();
        for (ix, stamp) in stamps {
            let Some(id) = frozen.nodes.get(ix.0 as usize).copied() else { continue };
            let Some(node) = st.nodes.get_mut(id) else { continue };
            let place = node.place.clone();
            let oid = self.vol.oid(stamp.id);
            node.base = Some(Base { oid, stamp: *stamp, place, foreign: false });
            node.dirty = Dirty::default();
            node.xattrs = None;
            node.attr.ino = stamp.id.ino;
            if let Body::File(content) = &mut node.body {
                *content = None;
            }
            st.nodes.identify(stamp.id, id);
        }
        for (dir, name) in &frozen.places {
            if let Some(child) =
                st.nodes.get_mut(*dir).and_then(|n| n.dir_mut()).and_then(|d| d.children.get_mut(name))
            {
                child.base = child.now;
            }
        }
        self.dirs.clear();
        self.files.clear();
    }
}

struct Frost<'a> {
    view: &'a View,
    st: &'a State,
    ixs: HashMap<NodeId, Ix>,
    out: Frozen,
    /// Binds to make: (directory, name, change), in node order.
    binds: Vec<(NodeId, Name, Child)>,
}

impl<'a> Frost<'a> {
    fn new(view: &'a View, st: &'a State) -> Self {
        let out = Frozen {
            writes: WriteSet::default(),
            slots: Vec::new(),
            paths: Vec::new(),
            left_out: Vec::new(),
            nodes: Vec::new(),
            places: Vec::new(),
        };
        Frost { view, st, ixs: HashMap::new(), out, binds: Vec::new() }
    }

    fn collect(&mut self, selection: &dyn Selection) {
        self.object(NodeId::ROOT);
        self.choose_binds(selection);
        let binds = std::mem::take(&mut self.binds);
        for (dir, name, child) in binds {
            self.bind(dir, &name, child);
        }
        for (id, node) in self.st.nodes.iter() {
            if node.base.is_none() || !node.is_changed() || node.attr.nlink == 0 {
                continue;
            }
            if self.selects(selection, id) {
                self.object(id);
            }
        }
    }

    /// The changed names that are taken, with those that they need: a new directory above a chosen
    /// name, and the other half of a move.
    fn choose_binds(&mut self, selection: &dyn Selection) {
        let mut rest = Vec::new();
        for (dir, node) in self.st.nodes.iter() {
            let Some(state) = node.dir() else { continue };
            if node.attr.nlink == 0 {
                continue;
            }
            for (name, child) in state.changes() {
                let path = self.relative(dir, name);
                let entry = (dir, name.clone(), child);
                if selection.takes(&path) { self.binds.push(entry) } else { rest.push((path, entry)) }
            }
        }
        loop {
            let mut bound = HashSet::new();
            for (dir, _, child) in &self.binds {
                bound.extend(child.now);
                bound.extend(child.base);
                bound.insert(*dir);
            }
            let needed = |(_, (_, _, child)): &(Vec<u8>, (NodeId, Name, Child))| {
                let new_dir = |id: NodeId| {
                    self.st.nodes.get(id).is_some_and(|n| n.base.is_none() && n.dir().is_some())
                };
                let moved = |id: NodeId| {
                    self.st.nodes.get(id).is_some_and(|n| n.base.is_some())
                };
                child.now.is_some_and(|n| bound.contains(&n) && (new_dir(n) || moved(n)))
                    || child.base.is_some_and(|n| bound.contains(&n) && moved(n))
            };
            let (take, leave): (Vec<_>, Vec<_>) = rest.into_iter().partition(needed);
            rest = leave;
            if take.is_empty() {
                break;
            }
            self.binds.extend(take.into_iter().map(|(_, entry)| entry));
        }
        self.out.left_out = rest.into_iter().map(|(path, _)| self.absolute(&path)).collect();
        self.binds.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        self.drop_orphan_binds();
    }

    /// Binds in a new directory that is itself not bound (its name was left out) go with it.
    fn drop_orphan_binds(&mut self) {
        loop {
            let bound: HashSet<NodeId> = self.binds.iter().filter_map(|(_, _, c)| c.now).collect();
            let st = self.st;
            let before = self.binds.len();
            self.binds.retain(|(dir, _, _)| {
                let new = st.nodes.get(*dir).is_some_and(|n| n.base.is_none());
                !new || bound.contains(dir)
            });
            if self.binds.len() == before {
                return;
            }
        }
    }

    fn selects(&self, selection: &dyn Selection, id: NodeId) -> bool {
        match self.st.nodes.get(id).and_then(|n| n.place.as_ref()) {
            Some((dir, name)) => selection.takes(&self.relative(*dir, name)),
            None => selection.takes(b""),
        }
    }

    fn bind(&mut self, dir: NodeId, name: &Name, child: Child) {
        let dir_ix = self.object(dir);
        let displaces = child.base.map(|base| self.displaced(base, dir, name));
        let target = child.now.map(|now| self.object(now));
        let bind = Bind { dir: dir_ix, name: name.to_vec(), target, displaces };
        self.out.writes.binds.push(bind);
        self.out.places.push((dir, name.clone()));
    }

    /// The object that stands under a name on the backing file system.  For a file met under another
    /// of its names this is an object of its own, so that its origin names this place.
    fn displaced(&mut self, base: NodeId, dir: NodeId, name: &Name) -> Ix {
        let Some(node) = self.st.nodes.get(base) else { return Ix(0) };
        let at = node.base.as_ref().and_then(|b| b.place.as_ref());
        if at.is_some_and(|(d, n)| *d == dir && n == name) {
            return self.object(base);
        }
        let parent = self.object(dir);
        let Some(b) = &node.base else { return Ix(0) };
        let origin = Origin::Host {
            parent,
            name: name.to_vec(),
            kind: node.attr.kind,
            stamp: self.view.vol.current(b.stamp),
        };
        self.push(base, Object { origin, attrs: Attrs::default(), xattrs: vec![], content: Content::Keep })
    }

    fn push(&mut self, id: NodeId, object: Object) -> Ix {
        // Write sets of 2³² objects do not fit into memory.
        let ix = Ix(u32::try_from(self.out.writes.objects.len()).unwrap_or(u32::MAX));
        self.out.writes.objects.push(object);
        self.out.nodes.push(id);
        self.out.paths.push(self.st.path_of(&self.view.vol, id));
        ix
    }

    /// The object of a node, its parents first.
    fn object(&mut self, id: NodeId) -> Ix {
        if let Some(ix) = self.ixs.get(&id) {
            return *ix;
        }
        let Some(node) = self.st.nodes.get(id) else { return Ix(0) };
        let origin = match &node.base {
            None => Origin::New(new_kind(node)),
            Some(base) => match &base.place {
                None => Origin::Root,
                Some((parent, name)) => Origin::Host {
                    parent: self.object(*parent),
                    name: name.to_vec(),
                    kind: node.attr.kind,
                    stamp: self.view.vol.current(base.stamp),
                },
            },
        };
        let content = match node.content() {
            Some(content) if node.attr.nlink > 0 => {
                let frozen = content.lock().freeze();
                self.out.slots.extend(frozen.slots);
                frozen.content
            }
            _ => Content::Keep,
        };
        let removed = node.attr.nlink == 0;
        let xattrs = node.xattrs.iter().flat_map(|x| x.iter());
        let object = Object {
            origin,
            attrs: if removed { Attrs::default() } else { attrs(node) },
            xattrs: if removed {
                Vec::new()
            } else {
                let new = node.base.is_none();
                xattrs
                    .filter(|(_, v)| !new || v.is_some())
                    .map(|(k, v)| (k.to_vec(), v.clone()))
                    .collect()
            },
            content,
        };
        let ix = self.push(id, object);
        self.ixs.insert(id, ix);
        ix
    }

    fn relative(&self, dir: NodeId, name: &[u8]) -> Vec<u8> {
        let mut path = self.st.path_of(&self.view.vol, dir);
        path.push(b'/');
        path.extend_from_slice(name);
        let cut = self.view.vol.mount_path.len();
        let rest: &[u8] = path.get(cut..).unwrap_or(&[]);
        let start = rest.iter().position(|b| *b != b'/').unwrap_or(rest.len());
        rest[start..].to_vec()
    }

    fn absolute(&self, relative: &[u8]) -> Vec<u8> {
        let mut path = self.view.vol.mount_path.clone();
        path.push(b'/');
        path.extend_from_slice(relative);
        path
    }

    fn done(self) -> Frozen {
        self.out
    }
}

fn attrs(node: &Node) -> Attrs {
    let (a, d) = (&node.attr, &node.dirty);
    let new = node.base.is_none();
    Attrs {
        mode: ((new || d.mode) && a.kind != Kind::Symlink).then_some(a.mode),
        owner: (new || d.owner).then_some((a.uid, a.gid)),
        atime: (new || d.atime).then_some(a.atime),
        mtime: (new || d.mtime).then_some(a.mtime),
    }
}

fn new_kind(node: &Node) -> NewKind {
    match &node.body {
        Body::File(_) => NewKind::File,
        Body::Dir(_) => NewKind::Dir,
        Body::Symlink(target) => NewKind::Symlink(target.as_deref().unwrap_or(b"").to_vec()),
        Body::Special => NewKind::Special { kind: node.attr.kind, rdev: node.attr.rdev },
    }
}
