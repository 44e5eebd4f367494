//! From a view to a write set: what the transaction leaves behind, as the store takes it.
//!
//! Every directory that is still in the tree and has changed names contributes its binds; every
//! node that is still in the tree and differs from its base contributes an object. Parents of
//! existing objects are named by where they are on the backing file system, so the set can be
//! installed (and installed again after a crash) without knowing in which order things were done.

use crate::content::Slot;
use crate::growing::Appended;
use crate::node::{Base, Body, Child, DirState, Dirty, Listed, Name, Node};
use crate::reach::Reach;
use crate::state::State;
use std::collections::{HashMap, HashSet};
use systx_base::{Kind, NodeId};
use systx_store::io::{Open, Openers, Stamp};
use systx_store::writeset::{
    Attrs, Bind, Content, Emptied, Ix, Kept, NewKind, Object, Origin, WriteSet,
};

/// Files up to this length, bytes, before and after, are overwritten in guarded directories.
const IN_PLACE_MAX: u64 = 64 << 10;

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
    /// Which objects are files that are only appended to, see [`crate::growing`].
    pub appended: Vec<Appended>,
    /// The host path of each object, for reports.
    pub paths: Vec<Vec<u8>>,
    /// Changed paths that the selection left out.
    pub left_out: Vec<Vec<u8>>,
    /// The node of each object.
    nodes: Vec<NodeId>,
    /// Nodes whose own changes are in it.
    taken: HashSet<NodeId>,
    /// The directory and name of each bind.
    places: Vec<(NodeId, Name)>,
}

impl Frozen {
    /// The nodes of what is appended to.
    pub(crate) fn appended_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.appended.iter().filter_map(|file| self.nodes.get(file.ix.0 as usize).copied())
    }

    /// Existing files whose content would be changed and that a process outside has open for
    /// writing (or mapped so): what it writes from now on meets the committed content. Not those
    /// that are open in a guarded directory, where it is a write after the commit like any other.
    pub(crate) fn open_elsewhere(
        &self,
        reach: &Reach,
        st: &State,
        locked: &dyn Fn(NodeId) -> bool,
    ) -> Vec<Vec<u8>> {
        let is_open = |(i, object): (usize, &Object)| {
            if object.content == Content::Keep || !matches!(object.origin, Origin::Host { .. }) {
                return None;
            }
            // What appends to it goes on behind what was appended here.
            if self.appended.iter().any(|file| file.ix.0 as usize == i) {
                return None;
            }
            let node = *self.nodes.get(i)?;
            if locked(node) || reach.others.is_open(st.base(node).ok()?.stamp.id()) {
                return None;
            }
            let (dir, name) = reach.backing_place(st, node).ok()?;
            let file = reach.tree().open_file(&dir, &name, Open::Read).ok()?;
            let openers = reach.vol.outsiders.openers(reach.work.bare(&file)).ok()?;
            (openers == Openers::Writers).then(|| self.paths[i].clone())
        };
        self.writes.objects.iter().enumerate().filter_map(is_open).collect()
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        let changed = |o: &Object| {
            o.attrs != Attrs::default() || !o.xattrs.is_empty() || o.content != Content::Keep
        };
        self.writes.binds.is_empty() && !self.writes.objects.iter().any(changed)
    }
}

/// See [`View::freeze`](crate::view::View::freeze).
pub(crate) fn freeze(reach: &Reach, st: &State, selection: &dyn Selection) -> Frozen {
    let mut frost = Frost::new(reach, st);
    frost.collect(selection);
    frost.done()
}

impl State {
    /// See [`View::rebase`](crate::view::View::rebase).
    pub fn rebase(&mut self, frozen: &Frozen, stamps: &[(Ix, Stamp)]) {
        for (dir, name) in &frozen.places {
            if let Some(gone) = self.child_at(*dir, name).and_then(|c| c.base) {
                self.forget_removed(gone);
            }
            self.rebase_name(*dir, name);
        }
        for (ix, stamp) in stamps {
            let Some(id) = frozen.nodes.get(ix.0 as usize).copied() else { continue };
            let Some(node) = self.nodes.get_mut(id) else { continue };
            let old = node.base.take().and_then(|b| b.place);
            // What was made is there now under the name that the view knows.
            let place = old.or_else(|| node.place.clone());
            node.base = Some(Base::met(*stamp, place));
            node.attr.ino = stamp.id().number();
            if frozen.taken.contains(&id) {
                // The names that are still to come will move the time of their directory again.
                let again = node.dir().is_some_and(|dir| dir.changes().next().is_some());
                node.dirty = Dirty { mtime: again && node.dirty.mtime, ..Dirty::default() };
                node.xattrs = None;
                if let Body::File(content) = &mut node.body {
                    *content = None;
                }
            }
            let rights = (node.attr.mode, node.attr.uid, node.attr.gid);
            if let Some(dir) = node.dir_mut().filter(|_| frozen.taken.contains(&id)) {
                dir.rights = rights;
                dir.read_xattrs = None;
            }
            self.nodes.identify(stamp.id(), id);
        }
        self.rebase_places();
    }

    /// What a removed directory had on the backing file system went with it.
    fn forget_removed(&mut self, top: NodeId) {
        let mut todo = vec![top];
        while let Some(id) = todo.pop() {
            let Some(node) = self.nodes.get_mut(id).filter(|n| n.attr.nlink == 0) else { continue };
            let Some(dir) = node.dir_mut() else { continue };
            todo.extend(dir.forget_base());
        }
    }

    fn rebase_name(&mut self, dir: NodeId, name: &Name) {
        let Some(child) = self.child_at(dir, name) else { return };
        let node = child.now.and_then(|now| self.nodes.get(now));
        let listed = node.map(|node| Listed { ino: node.attr.ino, kind: node.attr.kind });
        let Some(dir) = self.nodes.get_mut(dir).and_then(|n| n.dir_mut()) else { return };
        dir.set_child(name.clone(), Child { base: child.now, ..child });
        match (&mut dir.base_names, listed) {
            (Some(names), Some(listed)) => drop(names.insert(name.clone(), listed)),
            (Some(names), None) => drop(names.remove(name)),
            (None, _) => {}
        }
    }

    /// Every existing object is from now on found under a name that it has there now, also one that
    /// the view has removed and the rest of the commit will.
    fn rebase_places(&mut self) {
        let stale = |(id, node): (NodeId, &Node)| {
            let (dir, name) = node.base.as_ref()?.place.as_ref()?;
            let there = self.child_at(*dir, name).is_some_and(|c| c.base == Some(id));
            (!there).then_some(id)
        };
        let stale: HashSet<NodeId> = self.nodes.iter().filter_map(stale).collect();
        if stale.is_empty() {
            return;
        }
        let mut places = Vec::new();
        for (dir, node) in self.nodes.iter() {
            let children = node.dir().into_iter().flat_map(DirState::children);
            for (name, id) in children.filter_map(|(name, c)| Some((name, c.base?))) {
                if stale.contains(&id) {
                    places.push((id, (dir, name.clone())));
                }
            }
        }
        for (id, place) in places {
            if let Some(base) = self.nodes.get_mut(id).and_then(|n| n.base.as_mut()) {
                base.place = Some(place);
            }
        }
    }
}

/// A changed name, and whether it is committed.
struct Candidate {
    dir: NodeId,
    name: Name,
    child: Child,
    path: Vec<u8>,
    taken: bool,
}

/// The changed names, found by what they name now and named before.
#[derive(Default)]
struct Candidates {
    all: Vec<Candidate>,
    now: HashMap<NodeId, Vec<usize>>,
    base: HashMap<NodeId, Vec<usize>>,
}

impl Candidates {
    fn add(&mut self, candidate: Candidate) {
        let at = self.all.len();
        if let Some(id) = candidate.child.now {
            self.now.entry(id).or_default().push(at);
        }
        if let Some(id) = candidate.child.base {
            self.base.entry(id).or_default().push(at);
        }
        self.all.push(candidate);
    }

    /// Takes all that were not taken yet; they are to be looked at in turn.
    fn take(&mut self, which: &[usize], todo: &mut Vec<usize>) {
        for at in which {
            if !std::mem::replace(&mut self.all[*at].taken, true) {
                todo.push(*at);
            }
        }
    }
}

struct Frost<'a> {
    reach: &'a Reach,
    st: &'a State,
    ixs: HashMap<NodeId, Ix>,
    /// The directories whose removal is taken, with those that were removed in them.
    removed: HashSet<NodeId>,
    /// What is found by another name than the one under which it was met.
    elsewhere: HashMap<NodeId, (NodeId, Name)>,
    out: Frozen,
}

impl<'a> Frost<'a> {
    fn new(reach: &'a Reach, st: &'a State) -> Self {
        let out = Frozen {
            writes: WriteSet::default(),
            slots: Vec::new(),
            appended: Vec::new(),
            paths: Vec::new(),
            left_out: Vec::new(),
            nodes: Vec::new(),
            taken: HashSet::new(),
            places: Vec::new(),
        };
        let (ixs, removed, elsewhere) = Default::default();
        Frost { reach, st, ixs, removed, elsewhere, out }
    }

    fn collect(&mut self, selection: &dyn Selection) {
        let mut binds = self.choose_binds(selection);
        self.choose_nodes(selection, &binds);
        self.object(NodeId::ROOT);
        binds.sort_by(|a, b| (a.dir, &a.name).cmp(&(b.dir, &b.name)));
        for bind in binds {
            self.bind(bind.dir, &bind.name, bind.child);
        }
        let mut changed: Vec<NodeId> = self.out.taken.iter().copied().collect();
        changed.sort_unstable();
        for id in changed {
            self.object(id);
        }
        if self.reach.vol.overlay.is_some() {
            self.keep_names();
            self.follow_names();
        }
    }

    /// Files that lose a name with a directory that is removed, and live on.  The directory may
    /// have to be carried, which moves their versions: the write set has them, so that these are
    /// told.
    fn follow_names(&mut self) {
        let st = self.st;
        let dirs = self.removed.iter().filter_map(|dir| st.nodes.get(*dir)?.dir());
        let children = dirs.flat_map(DirState::children).filter_map(|(_, child)| child.base);
        let lives = |id: &NodeId| {
            st.nodes.get(*id).is_some_and(|node| node.dir().is_none() && node.attr.nlink > 0)
        };
        let mut live: Vec<NodeId> = children.filter(lives).collect();
        live.sort_unstable();
        for id in live {
            if self.ixs.contains_key(&id) {
                continue;
            }
            if let Some((dir, name)) = st.kept_names_of(id).next() {
                self.elsewhere.insert(id, (dir, name.clone()));
            }
            self.object(id);
        }
    }

    /// Where a node is on the backing file system; `None` for the root, and for what is new.
    fn place_of(&self, id: NodeId) -> Option<&(NodeId, Name)> {
        self.elsewhere.get(&id).or_else(|| self.st.nodes.get(id)?.met_at())
    }

    /// The further names of existing files that are changed.
    fn keep_names(&mut self) {
        for (i, id) in self.out.nodes.clone().into_iter().enumerate() {
            let node = self.st.nodes.get(id);
            let Some((base, node)) = node.and_then(|n| Some((n.base.as_ref()?, n))) else {
                continue;
            };
            if node.dir().is_some() || !self.out.taken.contains(&id) {
                continue;
            }
            let (st, file) = (self.st, Ix(u32::try_from(i).unwrap_or(u32::MAX)));
            for (dir, name) in st.kept_names_of(id) {
                if base.place.as_ref().is_some_and(|(d, n)| (*d, n) == (dir, name)) {
                    continue;
                }
                let dir = self.object(dir);
                self.out.writes.kept.push(Kept { file, dir, name: name.to_vec() });
            }
        }
    }

    /// The changed names that are taken, with those that they need (see [`Frost::drag`]).
    fn choose_binds(&mut self, selection: &dyn Selection) -> Vec<Candidate> {
        let mut found = Candidates::default();
        for (dir, node) in self.st.nodes.iter() {
            let Some(state) = node.dir() else { continue };
            if node.attr.nlink == 0 && node.base.is_none() {
                continue;
            }
            for (name, child) in state.changes() {
                let mut path = self.relative(dir, name);
                let mut taken = selection.takes(&path);
                if child.now.is_none() {
                    // A name that is gone is known by where it was.
                    path = self.strip(self.st.base_path_in(&self.reach.vol, dir, name));
                    taken |= selection.takes(&path);
                }
                found.add(Candidate { dir, name: name.clone(), child, path, taken });
            }
        }
        let mut todo: Vec<usize> = (0..found.all.len()).filter(|at| found.all[*at].taken).collect();
        for (id, node) in self.st.nodes.iter() {
            if !is_changed(node) {
                continue;
            }
            for (dir, name) in self.st.names_of(id) {
                if selection.takes(&self.relative(dir, name)) {
                    self.drag_above(&mut found, dir, &mut todo);
                }
            }
        }
        while let Some(at) = todo.pop() {
            self.drag(&mut found, at, &mut todo);
        }
        self.removed = self.removed(&found.all);
        self.out.writes.emptied =
            self.removed.iter().filter_map(|dir| self.emptied(*dir)).collect();
        let (mut take, leave): (Vec<_>, Vec<_>) = found.all.into_iter().partition(|c| c.taken);
        self.out.left_out = leave.iter().map(|c| self.absolute(&c.path)).collect();
        // What a removed directory lost goes with it.
        take.retain(|c| !self.removed.contains(&c.dir));
        take
    }

    /// Takes what a taken name needs: the names of new and moved directories above it; where what
    /// it names now was before; where what it named before is now. So nothing that is alive is
    /// lost, no directory gets two names, and the name is found by its path afterwards.
    fn drag(&self, found: &mut Candidates, at: usize, todo: &mut Vec<usize>) {
        let Candidate { dir, child, .. } = found.all[at];
        self.drag_above(found, dir, todo);
        if let Some(now) = child.now {
            take_of(&found.base.get(&now).cloned(), found, todo);
        }
        let mut gone: Vec<NodeId> = child.base.into_iter().collect();
        while let Some(id) = gone.pop() {
            let Some(node) = self.st.nodes.get(id) else { continue };
            if node.attr.nlink > 0 {
                if self.st.kept_names_of(id).next().is_none() {
                    take_of(&found.now.get(&id).cloned(), found, todo);
                }
            } else if let Some(dir) = node.dir() {
                gone.extend(dir.children().filter_map(|(_, c)| c.base));
            }
        }
    }

    /// Takes the names of the new and moved directories on the way to `dir`.
    fn drag_above(&self, found: &mut Candidates, dir: NodeId, todo: &mut Vec<usize>) {
        let mut up = Some(dir);
        while let Some(id) = up {
            take_of(&found.now.get(&id).cloned(), found, todo);
            up = self.st.nodes.get(id).and_then(|n| n.place.as_ref()).map(|(dir, _)| *dir);
        }
    }

    /// The directories whose removal is taken, with those that were removed in them.
    fn removed(&self, all: &[Candidate]) -> HashSet<NodeId> {
        let dead = |id: &NodeId| {
            self.st.nodes.get(*id).is_some_and(|n| n.attr.nlink == 0 && n.dir().is_some())
        };
        let taken = all.iter().filter(|c| c.taken);
        let mut todo: Vec<NodeId> = taken.filter_map(|c| c.child.base).filter(dead).collect();
        let mut removed = HashSet::new();
        while let Some(id) = todo.pop() {
            if removed.insert(id) {
                let dir = self.st.nodes.get(id).and_then(Node::dir);
                let children = dir.into_iter().flat_map(DirState::children);
                todo.extend(children.filter_map(|(_, c)| c.base).filter(dead));
            }
        }
        removed
    }

    /// What a removed directory had in it on the backing file system.
    fn emptied(&self, dir: NodeId) -> Option<Emptied> {
        let node = self.st.nodes.get(dir)?;
        let base = node.base.as_ref()?;
        let (up, name) = base.place.as_ref()?;
        let id = |id| self.st.nodes.get(id)?.base.as_ref().map(|base| base.stamp.id());
        let had = |(name, child): (&Name, Child)| Some((name.to_vec(), id(child.base?)));
        Some(Emptied {
            path: self.strip(self.st.base_path_in(&self.reach.vol, *up, name)),
            mtime: self.reach.vol.current(base.stamp).modified(),
            names: node.dir()?.children().filter_map(had).collect(),
        })
    }

    /// The nodes whose own changes are taken: what gets a name, and what has a selected path.
    fn choose_nodes(&mut self, selection: &dyn Selection, binds: &[Candidate]) {
        self.out.taken = binds.iter().filter_map(|c| c.child.now).collect();
        for (id, node) in self.st.nodes.iter() {
            if !is_changed(node) || self.out.taken.contains(&id) {
                continue;
            }
            let mut paths: Vec<Vec<u8>> =
                self.st.names_of(id).map(|(dir, name)| self.relative(dir, name)).collect();
            if paths.is_empty() {
                // The root, or a file whose remaining names were never met.
                paths.push(self.strip(self.st.path_of(&self.reach.vol, id)));
            }
            // The last known name of a file that has others goes: it cannot be found later.
            let last =
                |c: &Candidate| c.child.base == Some(id) && self.st.names_of(id).next().is_none();
            if paths.iter().any(|path| selection.takes(path)) || binds.iter().any(last) {
                self.out.taken.insert(id);
            } else {
                let left = paths.iter().map(|path| self.absolute(path)).collect::<Vec<_>>();
                self.out.left_out.extend(left);
            }
        }
    }

    fn bind(&mut self, dir: NodeId, name: &Name, child: Child) {
        let dir_ix = self.object(dir);
        let displaces = child.base.map(|base| self.object(base));
        let target = child.now.map(|now| self.object(now));
        let bind = Bind { dir: dir_ix, name: name.to_vec(), target, displaces };
        self.out.writes.binds.push(bind);
        self.out.places.push((dir, name.clone()));
    }

    fn push(&mut self, id: NodeId, object: Object) -> Ix {
        // Write sets of 2³² objects do not fit into memory.
        let ix = Ix(u32::try_from(self.out.writes.objects.len()).unwrap_or(u32::MAX));
        self.out.writes.objects.push(object);
        self.out.nodes.push(id);
        self.out.paths.push(self.st.path_of(&self.reach.vol, id));
        ix
    }

    /// The object of a node, its parents first.
    fn object(&mut self, id: NodeId) -> Ix {
        // Not by recursion: trees may be deeper than a stack.
        let mut chain = Vec::new();
        let mut at = Some(id);
        while let Some(id) = at.filter(|id| !self.ixs.contains_key(id)) {
            chain.push(id);
            at = self.place_of(id).map(|(up, _)| *up);
        }
        for id in chain.into_iter().rev() {
            self.push_node(id);
        }
        self.ixs.get(&id).copied().unwrap_or(Ix(0))
    }

    /// Adds the object of a node whose parents have theirs.
    fn push_node(&mut self, id: NodeId) {
        let Some(node) = self.st.nodes.get(id) else { return };
        let origin = match node.base.as_ref().map(|base| (base, self.place_of(id))) {
            None => Origin::New(new_kind(node)),
            Some((_, None)) => Origin::Root,
            Some((base, Some((parent, name)))) => Origin::Host {
                parent: self.ixs.get(parent).copied().unwrap_or(Ix(0)),
                name: name.to_vec(),
                kind: node.attr.kind,
                stamp: self.reach.vol.current(base.stamp),
            },
        };
        let mut object =
            Object { origin, attrs: Attrs::default(), xattrs: Vec::new(), content: Content::Keep };
        if node.attr.nlink > 0 && self.out.taken.contains(&id) {
            self.fill(&mut object, node);
        }
        let appended = self.st.growing.appended(id, node, &mut object.content);
        let ix = self.push(id, object);
        self.out.appended.extend(appended.map(|(from, tail)| Appended { ix, from, tail }));
        self.ixs.insert(id, ix);
    }

    /// What differs from the base.
    fn fill(&mut self, object: &mut Object, node: &Node) {
        let new = node.base.is_none();
        object.attrs = attrs(node);
        let xattrs = node.xattrs.iter().flat_map(|x| x.iter()).filter(|(_, v)| !new || v.is_some());
        object.xattrs = xattrs.map(|(k, v)| (k.to_vec(), v.clone())).collect();
        if let Some(content) = node.content() {
            let frozen = content.lock().freeze();
            self.out.slots.extend(frozen.slots);
            object.content = frozen.content;
        }
    }

    fn relative(&self, dir: NodeId, name: &[u8]) -> Vec<u8> {
        let mut path = self.st.path_of(&self.reach.vol, dir);
        path.push(b'/');
        path.extend_from_slice(name);
        self.strip(path)
    }

    /// A host path as one below the volume's root.
    fn strip(&self, path: Vec<u8>) -> Vec<u8> {
        let cut = self.reach.vol.mount_path.len();
        let rest: &[u8] = path.get(cut..).unwrap_or(&[]);
        let start = rest.iter().position(|b| *b != b'/').unwrap_or(rest.len());
        rest[start..].to_vec()
    }

    fn absolute(&self, relative: &[u8]) -> Vec<u8> {
        let mut path = self.reach.vol.mount_path.clone();
        path.push(b'/');
        path.extend_from_slice(relative);
        path
    }

    fn done(mut self) -> Frozen {
        self.keep_inodes();
        self.out
    }

    /// Small files of guarded directories that were rewritten from empty are overwritten: nobody
    /// can see that half done there, the inode stays what it was, and neither names nor another
    /// inode have to be published. Not those that may be running as programs: these cannot be
    /// overwritten, and another inode needs its name published.
    fn keep_inodes(&mut self) {
        let roots = self.reach.others.guarded_roots();
        if roots.is_empty() {
            return;
        }
        let tree = self.reach.tree();
        let all = tree.stat(&tree.root()).is_ok_and(|stat| roots.contains(&stat.id));
        let writes = &mut self.out.writes;
        let named: HashSet<Ix> =
            writes.binds.iter().flat_map(|bind| [bind.target, bind.displaces]).flatten().collect();
        let mut inside: Vec<bool> = Vec::with_capacity(writes.objects.len());
        for (i, object) in writes.objects.iter_mut().enumerate() {
            let Origin::Host { parent, stamp, .. } = &object.origin else {
                inside.push(all && object.origin == Origin::Root);
                continue;
            };
            // Parents come first.
            let parent_is = inside.get(parent.0 as usize).copied().unwrap_or(false);
            inside.push(parent_is || roots.contains(&stamp.id()));
            let mode =
                self.out.nodes.get(i).and_then(|id| self.st.nodes.get(*id)).map(|n| n.attr.mode);
            let may_run = mode.is_none_or(|mode| mode & 0o111 != 0);
            let is_named = named.contains(&Ix(u32::try_from(i).unwrap_or(u32::MAX)));
            if parent_is
                && !is_named
                && !may_run
                && stamp.length() <= IN_PLACE_MAX
                && let Content::Whole { len, extents } = &mut object.content
                && *len <= IN_PLACE_MAX
            {
                let extents = std::mem::take(extents);
                object.content = Content::Patch { len: *len, keep: 0, extents };
            }
        }
    }
}

/// Whether an existing object that is still there differs from its base by more than its names.
fn is_changed(node: &Node) -> bool {
    node.base.is_some() && node.attr.nlink > 0 && node.is_changed()
}

fn take_of(which: &Option<Vec<usize>>, found: &mut Candidates, todo: &mut Vec<usize>) {
    found.take(which.as_deref().unwrap_or_default(), todo);
}

fn attrs(node: &Node) -> Attrs {
    let (a, d) = (&node.attr, &node.dirty);
    let new = node.base.is_none();
    Attrs {
        // A change of owner may clear bits of the mode: the outcome says which it leaves.
        mode: ((new || d.mode || d.owner) && a.kind != Kind::Symlink).then_some(a.mode),
        owner: (new || d.owner).then_some((a.uid, a.gid)),
        atime: (new || d.atime).then_some(a.atime),
        mtime: (new || d.mtime).then_some(a.mtime),
    }
}

fn new_kind(node: &Node) -> NewKind {
    match &node.body {
        Body::File(_) => NewKind::File,
        Body::Dir(_) => NewKind::Dir,
        Body::Symlink(target) => {
            NewKind::Symlink(target.as_ref().map(|t| t.to_vec()).unwrap_or_default())
        }
        Body::Special => NewKind::Special { kind: node.attr.kind, rdev: node.attr.rdev },
    }
}
