//! What a view keeps of its nodes: names, look-ups, numbers, paths.  Nothing here asks anybody:
//! what is to be known has been met ([`crate::below`]).

use crate::api::Reply;
use crate::content::Content;
use crate::growing::Growing;
use crate::habits::Habits;
use crate::node::{Base, Body, Child, DirState, Listed, Name, Node, Nodes};
use crate::numbers::NewNumbers;
use crate::volume::Volume;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, NodeId, Time};
use systx_store::io::Stat;

/// See the module.
pub(crate) struct State {
    pub nodes: Nodes,
    pub growing: Growing,
    /// Nodes that were met by nobody but the session.
    pub glimpsed: HashSet<NodeId>,
    pub habits: Habits,
    /// Path of the object at whose first touch the transaction lost, if it did so.
    pub lost_at: Vec<u8>,
    /// Names, in this view, of nodes that have several known ones, beyond `Node::place`.
    more_names: HashMap<NodeId, BTreeSet<(NodeId, Name)>>,
    /// How often the kernel holds each file that the transaction made.
    lookups: HashMap<NodeId, u64>,
    new_numbers: NewNumbers,
    /// When objects were made that the transaction made.
    pub births: HashMap<NodeId, Time>,
}

impl State {
    /// Only the root is met; what is made gets its number from these.
    pub fn new(root: Node, new_numbers: NewNumbers) -> State {
        let mut nodes = Nodes::default();
        nodes.add(root);
        State {
            nodes,
            growing: Growing::default(),
            glimpsed: HashSet::new(),
            habits: Habits::default(),
            lost_at: Vec::new(),
            more_names: HashMap::new(),
            lookups: HashMap::new(),
            new_numbers,
            births: HashMap::new(),
        }
    }
    pub fn node(&self, id: NodeId) -> Reply<&Node> {
        self.nodes.get(id).ok_or(Errno::STALE)
    }
    pub fn node_mut(&mut self, id: NodeId) -> Reply<&mut Node> {
        self.nodes.get_mut(id).ok_or(Errno::STALE)
    }
    pub fn base(&self, id: NodeId) -> Reply<&Base> {
        self.node(id)?.base.as_ref().ok_or(Errno::IO)
    }
    pub fn dir(&self, id: NodeId) -> Reply<&DirState> {
        self.node(id)?.dir().ok_or(Errno::NOTDIR)
    }
    pub fn dir_mut(&mut self, id: NodeId) -> Reply<&mut DirState> {
        self.node_mut(id)?.dir_mut().ok_or(Errno::NOTDIR)
    }
    /// What a name means; it was met before.
    pub fn child_at(&self, dir: NodeId, name: &Name) -> Option<Child> {
        self.nodes.get(dir)?.dir()?.child(name)
    }
    /// Whether what a name means was met by nobody but the session.
    pub fn is_glimpsed(&self, child: Child) -> bool {
        child.base.is_some_and(|met| self.glimpsed.contains(&met))
    }
    /// What a listing tells of a name of a backing directory that was listed, if no program has met
    /// more of it than that.
    pub fn only_listed(&self, dir: NodeId, name: &[u8]) -> Reply<Option<Listed>> {
        let dir = self.dir(dir)?;
        let met = dir.child(name).is_some_and(|child| !self.is_glimpsed(child));
        let names = dir.base_names.as_ref().filter(|_| !met);
        Ok(names.and_then(|names| names.get(name)).copied())
    }
    /// All known names of a node in this view.
    pub fn names_of(&self, node: NodeId) -> impl Iterator<Item = (NodeId, &Name)> {
        let first = self.nodes.get(node).and_then(|n| n.place.as_ref());
        let more = self.more_names.get(&node).into_iter().flatten();
        first.into_iter().chain(more).map(|(dir, name)| (*dir, name))
    }
    /// All known names that a node has in this view and had on the backing file system.
    pub fn kept_names_of(&self, node: NodeId) -> impl Iterator<Item = (NodeId, &Name)> {
        self.names_of(node).filter(move |(dir, name)| {
            self.child_at(*dir, name).is_some_and(|c| c.base == Some(node))
        })
    }
    pub fn add_name(&mut self, node: NodeId, dir: NodeId, name: &Name) {
        let Some(n) = self.nodes.get_mut(node) else { return };
        let place = (dir, name.clone());
        match &n.place {
            None => n.place = Some(place),
            Some(first) if *first == place => {}
            Some(_) => drop(self.more_names.entry(node).or_default().insert(place)),
        }
    }
    pub fn drop_name(&mut self, node: NodeId, dir: NodeId, name: &Name) {
        let Some(n) = self.nodes.get_mut(node) else { return };
        let place = (dir, name.clone());
        let more = self.more_names.get_mut(&node);
        if n.place.as_ref() == Some(&place) {
            n.place = more.and_then(BTreeSet::pop_first);
        } else if let Some(more) = more {
            more.remove(&place);
        }
        if self.more_names.get(&node).is_some_and(BTreeSet::is_empty) {
            self.more_names.remove(&node);
        }
    }
    /// The kernel was given this node once more.
    pub fn count_lookup(&mut self, node: NodeId) {
        let made = |n: &&Node| n.base.is_none() && matches!(n.body, Body::File(_));
        if self.nodes.get(node).as_ref().is_some_and(made) {
            *self.lookups.entry(node).or_default() += 1;
        }
    }
    /// The kernel gave a node back.  Nobody can ever reach a file that has neither names nor
    /// lookups: its content goes, which a command that works with large temporary files needs.
    pub fn forget_lookups(&mut self, node: NodeId, count: u64) {
        let Some(left) = self.lookups.get_mut(&node) else { return };
        *left = left.saturating_sub(count);
        if *left > 0 {
            return;
        }
        self.lookups.remove(&node);
        if let Some(n) = self.nodes.get_mut(node).filter(|n| n.base.is_none() && n.attr.nlink == 0)
        {
            n.attr.size = 0;
            n.body = Body::File(None);
        }
    }
    /// Whether a file is growing, and another version of it is the same one, only longer.
    pub fn has_only_grown(&self, node: NodeId, now: &Stat) -> bool {
        self.growing.is_only_longer(node, self.nodes.get(node), now)
    }
    /// Whether anything was changed.
    pub fn is_changed(&self) -> bool {
        let renamed = |node: &Node| node.dir().is_some_and(|dir| dir.changes().next().is_some());
        self.nodes.iter().any(|(_, node)| node.is_changed() || renamed(node))
    }
    /// An inode number for an object that is not committed yet.
    pub fn new_ino(&mut self) -> u64 {
        self.new_numbers.next(self.nodes.highest)
    }
    /// The host path of a name in a directory.
    pub fn path_in(&self, vol: &Volume, dir: NodeId, name: &[u8]) -> Vec<u8> {
        joined(self.path_of(vol, dir), name)
    }
    /// The host path of a node; of what has no name any more, where it was before.
    pub fn path_of(&self, vol: &Volume, node: NodeId) -> Vec<u8> {
        self.path_by(vol, node, |n| n.place.as_ref().or_else(|| n.met_at()))
    }
    /// Where a node was on the host before the transaction.
    pub fn base_path_of(&self, vol: &Volume, node: NodeId) -> Vec<u8> {
        self.path_by(vol, node, |n| n.met_at().or(n.place.as_ref()))
    }
    /// The path of a name before the transaction.
    pub fn base_path_in(&self, vol: &Volume, dir: NodeId, name: &[u8]) -> Vec<u8> {
        joined(self.base_path_of(vol, dir), name)
    }
    fn path_by(
        &self,
        vol: &Volume,
        node: NodeId,
        place: impl Fn(&Node) -> Option<&(NodeId, Name)>,
    ) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = self.nodes.get(node);
        // Bounded by the depth of the tree: places never form a cycle (rename into itself is
        // refused).
        while let Some((parent, name)) = at.and_then(&place) {
            names.push(name);
            at = self.nodes.get(*parent);
        }
        let mut path = vol.mount_path.clone();
        for name in names.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// The private content of a file.
    pub fn content_of(&mut self, node: NodeId) -> Reply<Arc<Mutex<Content>>> {
        let n = self.node_mut(node)?;
        let Body::File(content) = &mut n.body else { return Err(Errno::INVAL) };
        let attr = &n.attr;
        Ok(content
            .get_or_insert_with(|| {
                let mut over = Content::over(attr.size);
                over.set_base_allocated(attr.blocks * 512);
                Arc::new(Mutex::new(rank::CONTENT, over))
            })
            .clone())
    }

    // ---- changes of names -------------------------------------------------------------------

    /// Whether `dir` is `top` or lies below it.
    pub fn is_above(&self, top: NodeId, dir: NodeId) -> Reply<bool> {
        let mut at = Some(dir);
        while let Some(node) = at {
            if node == top {
                return Ok(true);
            }
            at = self.node(node)?.place.as_ref().map(|(up, _)| *up);
        }
        Ok(false)
    }

    /// Gives a name its new meaning, and the directory its new times.  The old meaning must have
    /// been resolved (invariant V1).
    pub fn bind(
        &mut self,
        (parent, name): (NodeId, &[u8]),
        to: Option<NodeId>,
        now: Time,
    ) -> Reply<()> {
        let name = Name::from(name);
        let up = self.node_mut(parent)?;
        up.attr.mtime = now;
        up.attr.ctime = now;
        up.dirty.mtime = false;
        let up_is_new = up.base.is_none();
        let dir = up.dir_mut().ok_or(Errno::NOTDIR)?;
        let before = dir.child(&name);
        let base = before.and_then(|c| c.base);
        let was = before.and_then(|c| c.now);
        // That the backing directory had nothing there was read, and must stay known, unless a
        // listing or the directory's being new says so anyway.
        let known =
            up_is_new || dir.base_names.as_ref().is_some_and(|names| !names.contains_key(&name));
        if to.is_none() && base.is_none() && known {
            dir.forget_child(&name);
        } else {
            dir.set_child(name.clone(), Child { now: to, base });
        }
        if let Some(listing) = &mut dir.listing {
            if was.is_some() && to.is_none() {
                listing.remove(&name);
            } else if was.is_none() && to.is_some() {
                listing.insert(&name);
            }
        }
        if let Some(node) = was {
            self.drop_name(node, parent, &name);
        }
        if let Some(node) = to {
            self.add_name(node, parent, &name);
        }
        Ok(())
    }

    /// A node lost a name in `parent`: fewer names, perhaps none.
    pub fn lose_name(&mut self, node: NodeId, parent: NodeId, now: Time) -> Reply<()> {
        let n = self.node_mut(node)?;
        n.attr.ctime = now;
        let was_dir = n.attr.kind == Kind::Dir;
        n.attr.nlink = if was_dir { 0 } else { n.attr.nlink.saturating_sub(1) };
        if was_dir {
            self.count_subdir(parent, -1)?;
        }
        Ok(())
    }

    pub fn count_move(&mut self, node: NodeId, from: NodeId, to: NodeId) -> Reply<()> {
        if from != to && self.node(node)?.attr.kind == Kind::Dir {
            self.count_subdir(from, -1)?;
            self.count_subdir(to, 1)?;
        }
        Ok(())
    }

    /// Link counts of directories, on file systems that count subdirectories (a count of 1 says
    /// that this one does not).
    pub fn count_subdir(&mut self, parent: NodeId, by: i32) -> Reply<()> {
        let attr = &mut self.node_mut(parent)?.attr;
        if attr.nlink >= 2 {
            attr.nlink = attr.nlink.saturating_add_signed(by).max(2);
        }
        Ok(())
    }
}

fn joined(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
