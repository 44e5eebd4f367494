//! What a transaction changed, for people: one entry per path, in the terms of a review (added,
//! modified, deleted, renamed, type changed), with both sides readable.

use crate::api::{Attr, Reply};
use crate::content::Base as BaseBytes;
use crate::node::{Body, Child, DirState, Name, Node};
use crate::view::{State, View};
use crate::volume::errno;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use systx_base::{NodeId, Oid};
use systx_store::io::{Handle, Open, Tree};
use systx_txn::{Object, Side as Access};

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
    /// Bytes of new content: whole pages of what was written, not what stays of the old.
    pub bytes: u64,
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

/// A changed name.
struct Entry<'a> {
    dir: NodeId,
    name: &'a Name,
    child: Child,
}

impl View {
    /// Whether anything changed; cheaper than to list it.
    pub fn is_changed(&self) -> bool {
        let st = self.state.lock();
        let renamed = |node: &Node| node.dir().is_some_and(|dir| dir.changes().next().is_some());
        st.nodes.iter().any(|(_, node)| node.is_changed() || renamed(node))
    }

    /// All changes, sorted by path.
    pub fn changes(&self) -> Vec<Change> {
        let st = self.state.lock();
        let mut entries = Vec::new();
        for (dir, node) in st.nodes.iter() {
            let changes = node.dir().into_iter().flat_map(DirState::changes);
            entries.extend(changes.map(|(name, child)| Entry { dir, name, child }));
        }
        entries.sort_unstable_by(|a, b| (a.dir, a.name).cmp(&(b.dir, b.name)));
        let mut out = Vec::new();
        self.changed_names(&st, &entries, &mut out);
        self.changed_nodes(&st, &mut out);
        out.sort_by(|a, b| a.path.cmp(&b.path));
        merge(out)
    }

    /// Changes of names.  Each name that an existing object lost is paired with one that it got: a
    /// move; what is left over was deleted, or is one more name.
    fn changed_names(&self, st: &State, entries: &[Entry<'_>], out: &mut Vec<Change>) {
        let mut lost: HashMap<NodeId, Vec<&Entry<'_>>> = HashMap::new();
        for entry in entries {
            if let Some(base) = entry.child.base {
                lost.entry(base).or_default().push(entry);
            }
        }
        let mut moved: HashSet<(NodeId, &Name)> = HashSet::new();
        for entry in entries {
            let Some(now) = entry.child.now else { continue };
            let path = self.path_at(st, entry.dir, entry.name);
            let from = lost.get_mut(&now).and_then(Vec::pop);
            let change = match (from, entry.child.base) {
                (Some(from), _) => {
                    moved.insert((from.dir, from.name));
                    let from = self.base_path_at(st, from.dir, from.name);
                    let same = from == path;
                    let status = if same { Status::Modified } else { Status::Renamed(from) };
                    self.compared(st, path, status, now, now)
                }
                (None, Some(base)) => self.compared(st, path, replaced(st, base, now), base, now),
                (None, None) => {
                    let new = self.side(st, now, false);
                    let bytes = written(st, now);
                    Change { path, status: Status::Added, old: None, new, content: true, bytes }
                }
            };
            out.push(change);
        }
        for entry in entries {
            let (Some(base), None) = (entry.child.base, entry.child.now) else { continue };
            if !moved.contains(&(entry.dir, entry.name)) {
                let path = self.base_path_at(st, entry.dir, entry.name);
                let old = self.side(st, base, true);
                let status = Status::Deleted;
                out.push(Change { path, status, old, new: None, content: true, bytes: 0 });
            }
        }
    }

    /// Changes of what kept its name.
    fn changed_nodes(&self, st: &State, out: &mut Vec<Change>) {
        for (id, node) in st.nodes.iter() {
            if node.base.is_none() || node.attr.nlink == 0 || !node.is_changed() {
                continue;
            }
            if id == NodeId::ROOT {
                let path = st.path_of(&self.vol, id);
                out.push(self.compared(st, path, Status::Modified, id, id));
            }
            for (dir, name) in st.kept_names_of(id) {
                let path = self.path_at(st, dir, name);
                out.push(self.compared(st, path, Status::Modified, id, id));
            }
        }
    }

    fn path_at(&self, st: &State, dir: NodeId, name: &[u8]) -> Vec<u8> {
        below(st.path_of(&self.vol, dir), name)
    }

    /// The path of a name before the transaction.
    pub(crate) fn base_path_at(&self, st: &State, dir: NodeId, name: &[u8]) -> Vec<u8> {
        below(st.base_path_of(self, dir), name)
    }

    /// What the transaction has met, by the host paths that it had before: of `true` it has read
    /// which names there are, of the others all else.
    pub fn met(&self) -> Vec<(Vec<u8>, bool)> {
        let objects = self.vol.engine.workset_objects(self.work.txn);
        let st = self.state.lock();
        let of = |(id, node): (NodeId, &Node)| Some((node.base.as_ref()?.oid(), id));
        let known: HashMap<Oid, NodeId> = st.nodes.iter().filter_map(of).collect();
        let path = |(object, side): (Object, Access)| {
            let node = *known.get(&object.oid())?;
            Some(match object {
                Object::Entry { name, .. } => (self.base_path_at(&st, node, &name), false),
                // Of one that writes a name it says nothing.
                Object::List(_) if side == Access::Write => return None,
                Object::List(_) => (st.base_path_of(self, node), true),
                _ => (st.base_path_of(self, node), false),
            })
        };
        objects.into_iter().filter_map(path).collect()
    }

    fn compared(
        &self,
        st: &State,
        path: Vec<u8>,
        status: Status,
        old: NodeId,
        new: NodeId,
    ) -> Change {
        let content = old != new
            || st.nodes.get(new).and_then(Node::content).is_some_and(|c| c.lock().is_changed());
        Change {
            path,
            status,
            old: self.side(st, old, true),
            new: self.side(st, new, false),
            content,
            bytes: if content { written(st, new) } else { 0 },
        }
    }

    fn side(&self, st: &State, node: NodeId, before: bool) -> Option<Side> {
        let n = st.nodes.get(node)?;
        let mut attr = n.attr;
        let mut xattrs = Vec::new();
        let place = before.then(|| self.backing_place_unrecorded(st, node)).flatten();
        if let Some((dir, name)) = &place
            && let Ok(stat) = self.tree().stat_at(dir, name)
        {
            attr = crate::node::attr_of(&stat);
        }
        for (key, value) in n.xattrs.iter().flat_map(|x| x.iter()) {
            let value = match &place {
                Some((dir, name)) => self.tree().get_xattr(dir, name, key).ok(),
                None => value.clone(),
            };
            xattrs.push((key.to_vec(), value));
        }
        Some(Side { node, attr, xattrs, before })
    }

    fn backing_place_unrecorded(&self, st: &State, node: NodeId) -> Option<(Handle, Vec<u8>)> {
        let base = st.nodes.get(node)?.base.as_ref()?;
        match &base.place {
            Some((parent, name)) => Some((self.open_unrecorded(st, *parent).ok()?, name.to_vec())),
            None => Some((self.tree().root(), Vec::new())),
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
                return self.tree().read_link(&dir, &name).map_err(errno);
            }
            Body::File(_) => {}
            _ => return Ok(Vec::new()),
        }
        let backing = self.backing_place_unrecorded(&st, side.node);
        let base = match backing {
            Some((dir, name)) => {
                let handle = self.tree().open_file(&dir, &name, Open::Read).map_err(errno)?;
                let len = self.tree().stat(&handle).map_err(errno)?.size;
                Some(Raw { io: &**self.tree(), handle, len })
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
    io: &'a dyn Tree,
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
    pub(crate) fn base_path_of(&self, view: &View, node: NodeId) -> Vec<u8> {
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
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }
}

fn below(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Bytes of a node's content that are the transaction's own.
fn written(st: &State, node: NodeId) -> u64 {
    let Some(node) = st.nodes.get(node) else { return 0 };
    match node.content() {
        Some(content) => content.lock().written(),
        None if node.base.is_none() => node.attr.size,
        None => 0,
    }
}

fn replaced(st: &State, base: NodeId, now: NodeId) -> Status {
    let kind = |id| st.nodes.get(id).map(|n: &Node| n.attr.kind);
    if kind(base) == kind(now) { Status::Modified } else { Status::TypeChanged }
}

/// One change per path: what was deleted with a removed directory and is there again in a new one
/// was changed; what a moved object replaces is told by the move.
fn merge(changes: Vec<Change>) -> Vec<Change> {
    let mut out: Vec<Change> = Vec::with_capacity(changes.len());
    for change in changes {
        let Some(last) = out.last_mut().filter(|last| last.path == change.path) else {
            out.push(change);
            continue;
        };
        let (gone, here) = match (&last.status, &change.status) {
            (_, Status::Deleted) => (change, last.clone()),
            _ => (std::mem::replace(last, change.clone()), change),
        };
        *last = here;
        if last.status == Status::Added {
            let kind = |side: &Option<Side>| side.as_ref().map(|s| s.attr.kind);
            let same = kind(&gone.old) == kind(&last.new);
            last.status = if same { Status::Modified } else { Status::TypeChanged };
            last.old = gone.old;
        }
    }
    out
}
