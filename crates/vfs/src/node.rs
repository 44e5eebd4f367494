//! Nodes: what one view knows of each object it has met.  A node lives until its view ends, so that
//! the table of nodes is also the list of everything that was read.

use crate::api::Attr;
use crate::content::Content;
use crate::listing::Listing;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use systx_base::sync::Mutex;
use systx_base::{Gid, NodeId, Oid, Uid};
use systx_store::io::{HostId, Stamp, Stat};

/// A name, shared between the directory's tables and the node.
pub(crate) type Name = Arc<[u8]>;

/// Changed extended attributes; `None` as a value: removed.
pub(crate) type Xattrs = BTreeMap<Box<[u8]>, Option<Vec<u8>>>;

/// An object of the backing file system.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    /// Its key in the conflict engine.
    pub oid: Oid,
    /// The version that was met first.
    pub stamp: Stamp,
    /// The backing directory and name under which it was met; `None` for the root.
    pub place: Option<(NodeId, Name)>,
    /// Another file system is mounted there: nothing in it belongs to the volume.
    pub foreign: bool,
}

/// Attributes that differ from the base.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Dirty {
    pub mode: bool,
    pub owner: bool,
    pub atime: bool,
    /// Set by a call, or moved by a change of the content; not the implicit time of a directory.
    pub mtime: bool,
}

/// Extended attributes as they were read; `None` as a value: absent.
pub(crate) type XattrsRead = Option<Box<BTreeMap<Box<[u8]>, Option<Vec<u8>>>>>;

/// One name of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Child {
    /// What the name means in this view.
    pub now: Option<NodeId>,
    /// What it means on the backing file system.
    pub base: Option<NodeId>,
}

/// A directory's names, as far as they were met.
#[derive(Default)]
pub(crate) struct DirState {
    /// Names that were looked up or changed.
    pub children: HashMap<Name, Child>,
    /// Order and cookies, once somebody listed.
    pub listing: Option<Listing>,
    /// All names of the backing directory, once they were read.
    pub base_names: Option<HashSet<Name>>,
    /// Names at which something is mounted on the host.
    pub covered: Option<Arc<HashSet<Name>>>,
    /// Mode, owner and group on the backing file system when it was met.  Kept apart, because a
    /// directory's time stamps move with every name in it and tell nothing about these.
    pub rights: (u32, Uid, Gid),
    /// Extended attributes that were read from the backing directory, for the same reason.
    pub read_xattrs: XattrsRead,
}

impl DirState {
    /// Of an existing directory.
    pub fn of(stat: &Stat) -> DirState {
        DirState { rights: (stat.mode, stat.uid, stat.gid), ..DirState::default() }
    }
    /// Names that differ from the backing directory.
    pub fn changes(&self) -> impl Iterator<Item = (&Name, Child)> {
        self.children.iter().filter(|(_, c)| c.now != c.base).map(|(n, c)| (n, *c))
    }
}

/// State by type.
pub(crate) enum Body {
    /// The private content, once a page was read or changed.
    File(Option<Arc<Mutex<Content>>>),
    Dir(Box<DirState>),
    /// The target, once known.
    Symlink(Option<Box<[u8]>>),
    Special,
}

/// One object of one view.
pub(crate) struct Node {
    pub base: Option<Base>,
    /// As the view shows it, but with the ids of the host.
    pub attr: Attr,
    pub dirty: Dirty,
    /// Where it is in this view (one of its known names); `None` if there is none, and for the root.
    pub place: Option<(NodeId, Name)>,
    pub xattrs: Option<Box<Xattrs>>,
    pub body: Body,
    /// Pages were handed out, or the target of a link.
    pub content_read: bool,
    /// `security.capability` was looked for and removed, or never there.
    pub caps_gone: bool,
    /// The names by which it was found are recorded as relied upon by a change.
    pub anchored: bool,
}

impl Node {
    pub fn dir(&self) -> Option<&DirState> {
        match &self.body {
            Body::Dir(dir) => Some(dir),
            _ => None,
        }
    }
    pub fn dir_mut(&mut self) -> Option<&mut DirState> {
        match &mut self.body {
            Body::Dir(dir) => Some(dir),
            _ => None,
        }
    }
    pub fn content(&self) -> Option<&Arc<Mutex<Content>>> {
        match &self.body {
            Body::File(content) => content.as_ref(),
            _ => None,
        }
    }
    /// Whether anything but its names differs from the base.
    pub fn is_changed(&self) -> bool {
        let d = &self.dirty;
        self.base.is_none()
            || d.mode
            || d.owner
            || d.atime
            || d.mtime
            || self.xattrs.is_some()
            || self.content().is_some_and(|c| c.lock().is_changed())
    }
}

/// The nodes of one view.
#[derive(Default)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    by_id: HashMap<HostId, NodeId>,
}

impl Nodes {
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }
    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }
    pub fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u64 + 1);
        // The root of another file system may have the identity of something here.
        if let Some(base) = node.base.as_ref().filter(|base| !base.foreign) {
            self.by_id.insert(base.stamp.id, id);
        }
        self.nodes.push(node);
        id
    }
    pub fn of_host(&self, id: HostId) -> Option<NodeId> {
        self.by_id.get(&id).copied()
    }
    /// A node became that of a backing object.
    pub fn identify(&mut self, id: HostId, node: NodeId) {
        self.by_id.insert(id, node);
    }
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u64 + 1), n))
    }
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

/// `stat` of a backing object.
pub(crate) fn attr_of(stat: &Stat) -> Attr {
    Attr {
        ino: stat.id.ino,
        kind: stat.kind,
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        blocks: stat.blocks,
        blksize: stat.blksize,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
    }
}
