//! What a view keeps of its nodes: names, look-ups, numbers, paths.

use super::State;
use crate::api::Reply;
use crate::node::{Base, Body, Child, DirState, Listed, Name, Node};
use crate::volume::Volume;
use rustix::io::Errno;
use std::collections::BTreeSet;
use systx_base::NodeId;

impl State {
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
    /// An inode number for an object that is not committed yet.
    pub fn new_ino(&mut self) -> u64 {
        self.new_numbers.next(self.nodes.highest)
    }
    /// The host path of a name in a directory.
    pub fn path_in(&self, vol: &Volume, dir: NodeId, name: &[u8]) -> Vec<u8> {
        let mut path = self.path_of(vol, dir);
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
    pub fn path_of(&self, vol: &Volume, node: NodeId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = node;
        // Bounded by the depth of the tree: places never form a cycle (rename into itself is
        // refused).
        while let Some(n) = self.nodes.get(at) {
            let place = n.place.as_ref().or(n.base.as_ref().and_then(|b| b.place.as_ref()));
            let Some((parent, name)) = place else { break };
            names.push(name.clone());
            at = *parent;
        }
        let mut path = vol.mount_path.clone();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }
}
