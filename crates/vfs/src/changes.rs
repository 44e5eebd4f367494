//! What a transaction changed, for people: one entry per path, in the terms of a review (added,
//! modified, deleted, renamed, type changed), with both sides readable.

use crate::api::{Attr, Reply};
use crate::content::Base as BaseBytes;
use crate::node::{Body, Child, DirState, Name, Node};
use crate::reach::Reach;
use crate::state::State;
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

/// A view's changes, as they are looked at.  Nothing is recorded by that: reviewing is not reading.
pub(crate) struct Review<'a> {
    pub reach: &'a Reach,
    pub st: &'a State,
}

impl Review<'_> {
    /// See [`View::changes`](crate::view::View::changes).
    pub fn changes(&self) -> Vec<Change> {
        let st = self.st;
        let mut entries = Vec::new();
        for (dir, node) in st.nodes.iter() {
            let changes = node.dir().into_iter().flat_map(DirState::changes);
            entries.extend(changes.map(|(name, child)| Entry { dir, name, child }));
        }
        entries.sort_unstable_by(|a, b| (a.dir, a.name).cmp(&(b.dir, b.name)));
        let mut out = Vec::new();
        self.changed_names(&entries, &mut out);
        self.changed_nodes(&mut out);
        out.sort_by(|a, b| a.path.cmp(&b.path));
        merge(out)
    }

    /// Changes of names.  Each name that an existing object lost is paired with one that it got: a
    /// move; what is left over was deleted, or is one more name.
    fn changed_names(&self, entries: &[Entry<'_>], out: &mut Vec<Change>) {
        let st = self.st;
        let mut lost: HashMap<NodeId, Vec<&Entry<'_>>> = HashMap::new();
        for entry in entries {
            if let Some(base) = entry.child.base {
                lost.entry(base).or_default().push(entry);
            }
        }
        let mut moved: HashSet<(NodeId, &Name)> = HashSet::new();
        for entry in entries {
            let Some(now) = entry.child.now else { continue };
            let path = st.path_in(&self.reach.vol, entry.dir, entry.name);
            let from = lost.get_mut(&now).and_then(Vec::pop);
            let change = match (from, entry.child.base) {
                (Some(from), _) => {
                    moved.insert((from.dir, from.name));
                    let from = st.base_path_in(&self.reach.vol, from.dir, from.name);
                    let same = from == path;
                    let status = if same { Status::Modified } else { Status::Renamed(from) };
                    self.compared(path, status, now, now)
                }
                (None, Some(base)) => self.compared(path, replaced(st, base, now), base, now),
                (None, None) => {
                    let new = self.side(now, false);
                    let bytes = written(st, now);
                    Change { path, status: Status::Added, old: None, new, content: true, bytes }
                }
            };
            out.push(change);
        }
        for entry in entries {
            let (Some(base), None) = (entry.child.base, entry.child.now) else { continue };
            if !moved.contains(&(entry.dir, entry.name)) {
                let path = st.base_path_in(&self.reach.vol, entry.dir, entry.name);
                let old = self.side(base, true);
                let status = Status::Deleted;
                out.push(Change { path, status, old, new: None, content: true, bytes: 0 });
            }
        }
    }

    /// Changes of what kept its name.
    fn changed_nodes(&self, out: &mut Vec<Change>) {
        let st = self.st;
        for (id, node) in st.nodes.iter() {
            if node.base.is_none() || node.attr.nlink == 0 || !node.is_changed() {
                continue;
            }
            if id == NodeId::ROOT {
                let path = st.path_of(&self.reach.vol, id);
                out.push(self.compared(path, Status::Modified, id, id));
            }
            for (dir, name) in st.kept_names_of(id) {
                let path = st.path_in(&self.reach.vol, dir, name);
                out.push(self.compared(path, Status::Modified, id, id));
            }
        }
    }

    /// See [`View::met`](crate::view::View::met).
    pub fn met(&self) -> Vec<(Vec<u8>, bool)> {
        let objects = self.reach.vol.engine.workset_objects(self.reach.work.txn);
        let st = self.st;
        let of = |(id, node): (NodeId, &Node)| Some((node.base.as_ref()?.oid(), id));
        let known: HashMap<Oid, NodeId> = st.nodes.iter().filter_map(of).collect();
        let path = |(object, side): (Object, Access)| {
            let node = *known.get(&object.oid())?;
            Some(match object {
                Object::Entry { name, .. } => {
                    (st.base_path_in(&self.reach.vol, node, &name), false)
                }
                // Of one that writes a name it says nothing.
                Object::List(_) if side == Access::Write => return None,
                Object::List(_) => (st.base_path_of(&self.reach.vol, node), true),
                _ => (st.base_path_of(&self.reach.vol, node), false),
            })
        };
        objects.into_iter().filter_map(path).collect()
    }

    fn compared(&self, path: Vec<u8>, status: Status, old: NodeId, new: NodeId) -> Change {
        let st = self.st;
        let content = old != new
            || st.nodes.get(new).and_then(Node::content).is_some_and(|c| c.lock().is_changed());
        Change {
            path,
            status,
            old: self.side(old, true),
            new: self.side(new, false),
            content,
            bytes: if content { written(st, new) } else { 0 },
        }
    }

    fn side(&self, node: NodeId, before: bool) -> Option<Side> {
        let n = self.st.nodes.get(node)?;
        let mut attr = n.attr;
        let mut xattrs = Vec::new();
        let place = before.then(|| self.reach.place_unrecorded(self.st, node)).flatten();
        if let Some((dir, name)) = &place
            && let Ok(stat) = self.reach.tree().stat_at(dir, name)
        {
            attr = Attr::from(&stat);
        }
        for (key, value) in n.xattrs.iter().flat_map(|x| x.iter()) {
            let value = match &place {
                Some((dir, name)) => self.reach.tree().get_xattr(dir, name, key).ok(),
                None => value.clone(),
            };
            xattrs.push((key.to_vec(), value));
        }
        Some(Side { node, attr, xattrs, before })
    }

    /// See [`View::read_side`](crate::view::View::read_side).
    pub fn read_side(&self, side: &Side, limit: usize) -> Reply<Vec<u8>> {
        let node = self.st.node(side.node)?;
        match &node.body {
            Body::Symlink(Some(target)) => return Ok(target.to_vec()),
            Body::Symlink(None) => {
                let (dir, name) =
                    self.reach.place_unrecorded(self.st, side.node).ok_or(Errno::STALE)?;
                return self.reach.tree().read_link(&dir, &name).map_err(errno);
            }
            Body::File(_) => {}
            _ => return Ok(Vec::new()),
        }
        let backing = self.reach.place_unrecorded(self.st, side.node);
        let base = match backing {
            Some((dir, name)) => {
                let handle = self.reach.tree().open_file(&dir, &name, Open::Read).map_err(errno)?;
                let len = self.reach.tree().stat(&handle).map_err(errno)?.size;
                Some(Raw { io: &**self.reach.tree(), handle, len })
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
