//! What a transaction changed, for people: one entry per path, in the terms of a review (added,
//! modified, deleted, renamed, type changed), with both sides readable.

use crate::api::{Attr, Reply};
use crate::content::Base as BaseBytes;
use crate::node::{Body, Child, Node};
use crate::view::{State, View};
use crate::volume::errno;
use rustix::io::Errno;
use std::collections::HashSet;
use std::io;
use systx_base::NodeId;
use systx_store::io::{Handle, Io, Open};

/// What happened to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is new.
    Added,
    /// Content or attributes differ.
    Modified,
    /// It is gone.
    Deleted,
    /// It was at this path before.
    Renamed(Vec<u8>),
    /// It is a file of another type now.
    TypeChanged,
}

/// One changed path.
#[derive(Clone, Debug)]
pub struct Change {
    /// The path on the host after the transaction; of a deleted one, before it.
    pub path: Vec<u8>,
    /// What happened.
    pub status: Status,
    /// What was there before.
    pub old: Option<Side>,
    /// What is there after.
    pub new: Option<Side>,
    /// Whether the content (or a link's target) differs, not only attributes.
    pub content: bool,
}

/// One side of a change.
#[derive(Clone, Debug)]
pub struct Side {
    /// The node.
    pub node: NodeId,
    /// Attributes on this side.
    pub attr: Attr,
    /// Extended attributes that differ, with this side's values.
    pub xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    before: bool,
}

impl View {
    /// All changes, sorted by path.
    pub fn changes(&self) -> Vec<Change> {
        let st = self.state.lock();
        let mut out = Vec::new();
        let mut moved = HashSet::new();
        for (dir, node) in st.nodes.iter() {
            let Some(state) = node.dir() else { continue };
            for (name, child) in state.changes() {
                let mut path = if node.attr.nlink == 0 {
                    st.base_path_of(self, dir)
                } else {
                    st.path_of(&self.vol, dir)
                };
                if path.last() != Some(&b'/') {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                self.change_of_name(&st, path, child, &mut moved, &mut out);
            }
        }
        for (id, node) in st.nodes.iter() {
            let kept = node.base.is_some() && node.attr.nlink > 0;
            if kept && node.is_changed() && !moved.contains(&id) {
                let path = st.path_of(&self.vol, id);
                out.push(self.compared(&st, path, Status::Modified, id, id));
            }
        }
        out.sort_by(|a, b| a.path.cmp(&b.path));
        out
    }

    fn change_of_name(
        &self,
        st: &State,
        path: Vec<u8>,
        child: Child,
        moved: &mut HashSet<NodeId>,
        out: &mut Vec<Change>,
    ) {
        let lives = |id: NodeId| st.nodes.get(id).is_some_and(|n| n.attr.nlink > 0 && n.place.is_some());
        match (child.base, child.now) {
            (Some(base), None) => {
                let elsewhere = lives(base) && st.has_new_place(base);
                if !elsewhere {
                    let old = self.side(st, base, true);
                    out.push(Change { path, status: Status::Deleted, old, new: None, content: true });
                }
            }
            (base, Some(now)) => {
                let from = st.moved_from(self, now);
                match (from, base) {
                    (Some(from), _) if moved.insert(now) => {
                        out.push(self.compared(st, path, Status::Renamed(from), now, now));
                    }
                    (_, Some(base)) => {
                        let kind = |id| st.nodes.get(id).map(|n: &Node| n.attr.kind);
                        let same = kind(base) == kind(now);
                        let status = if same { Status::Modified } else { Status::TypeChanged };
                        out.push(self.compared(st, path, status, base, now));
                    }
                    (_, None) => {
                        let new = self.side(st, now, false);
                        out.push(Change { path, status: Status::Added, old: None, new, content: true });
                    }
                }
            }
            (None, None) => {}
        }
    }

    fn compared(&self, st: &State, path: Vec<u8>, status: Status, old: NodeId, new: NodeId) -> Change {
        let content = old != new
            || st
                .nodes
                .get(new)
                .and_then(Node::content)
                .is_some_and(|c| c.lock().is_changed());
        Change { path, status, old: self.side(st, old, true), new: self.side(st, new, false), content }
    }

    fn side(&self, st: &State, node: NodeId, before: bool) -> Option<Side> {
        let n = st.nodes.get(node)?;
        let mut attr = n.attr;
        let mut xattrs = Vec::new();
        let place = before.then(|| self.backing_place_unrecorded(st, node)).flatten();
        if let Some((dir, name)) = &place {
            if let Ok(stat) = self.io().stat_at(dir, name) {
                attr = crate::node::attr_of(&stat);
            }
        }
        for (key, value) in n.xattrs.iter().flat_map(|x| x.iter()) {
            let value = match &place {
                Some((dir, name)) => self.io().get_xattr(dir, name, key).ok(),
                None => value.clone(),
            };
            xattrs.push((key.to_vec(), value));
        }
        Some(Side { node, attr, xattrs, before })
    }

    fn backing_place_unrecorded(&self, st: &State, node: NodeId) -> Option<(Handle, Vec<u8>)> {
        let base = st.nodes.get(node)?.base.as_ref()?;
        match &base.place {
            Some((parent, name)) => {
                Some((self.open_unrecorded(st, *parent).ok()?, name.to_vec()))
            }
            None => Some((self.io().root(), Vec::new())),
        }
    }

    /// The content of one side of a file, or the target of a link; at most `limit` bytes.  Nothing
    /// is recorded: reviewing is not reading.
    pub fn read_side(&self, side: &Side, limit: usize) -> Reply<Vec<u8>> {
        let st = self.state.lock();
        let node = st.node(side.node)?;
        match &node.body {
            Body::Symlink(Some(target)) => return Ok(target.to_vec()),
            Body::Symlink(None) => {
                let (dir, name) =
                    self.backing_place_unrecorded(&st, side.node).ok_or(Errno::STALE)?;
                return self.io().read_link(&dir, &name).map_err(errno);
            }
            Body::File(_) => {}
            _ => return Ok(Vec::new()),
        }
        let backing = self.backing_place_unrecorded(&st, side.node);
        let base = match backing {
            Some((dir, name)) => {
                let handle = self.io().open_file(&dir, &name, Open::Read).map_err(errno)?;
                let len = self.io().stat(&handle).map_err(errno)?.size;
                Some(Raw { io: self.io(), handle, len })
            }
            None => None,
        };
        let content = node.content().cloned();
        let len = usize::try_from(side.attr.size).unwrap_or(usize::MAX).min(limit);
        let mut buf = vec![0; len];
        let count = match (side.before, content, &base) {
            (false, Some(content), base) => {
                let base = base.as_ref().map(|b| b as &dyn BaseBytes);
                content.lock().read(base, 0, &mut buf).map_err(errno)?
            }
            (_, _, Some(base)) => base.read_at(&mut buf, 0).map_err(errno)?,
            (_, _, None) => 0,
        };
        buf.truncate(count);
        Ok(buf)
    }
}

/// A backing file, read without a record.
struct Raw<'a> {
    io: &'a dyn Io,
    handle: Handle,
    len: u64,
}

impl BaseBytes for Raw<'_> {
    fn len(&self) -> u64 {
        self.len
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.io.read_at(&self.handle, buf, offset)
    }
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.io.next_data(&self.handle, offset)
    }
}

impl State {
    /// Where a node was on the host before the transaction.
    fn base_path_of(&self, view: &View, node: NodeId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = node;
        while let Some(n) = self.nodes.get(at) {
            let base = n.base.as_ref().and_then(|b| b.place.as_ref());
            let Some((parent, name)) = base.or(n.place.as_ref()) else { break };
            names.push(name.clone());
            at = *parent;
        }
        let mut path = view.vol.mount_path.clone();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path
    }

    /// Whether an existing object has a name that it did not have before.
    fn has_new_place(&self, node: NodeId) -> bool {
        let Some(n) = self.nodes.get(node) else { return false };
        n.place.as_ref() != n.base.as_ref().and_then(|b| b.place.as_ref())
    }

    /// The old path of an existing object whose old name is gone or names something else now.
    fn moved_from(&self, view: &View, node: NodeId) -> Option<Vec<u8>> {
        let base = self.nodes.get(node)?.base.as_ref()?;
        let (parent, name) = base.place.as_ref()?;
        let still = self.nodes.get(*parent)?.dir()?.children.get(name)?.now == Some(node);
        (!still).then(|| self.base_path_of(view, node))
    }
}
