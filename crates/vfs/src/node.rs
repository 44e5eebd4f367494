//! Nodes: what one view knows of each object it has met.  A node lives until its view ends, so that
//! the table of nodes is also the list of everything that was read.

use crate::api::Attr;
use crate::content::Content;
use crate::listing::Listing;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use systx_base::sync::Mutex;
use systx_base::{Gid, Kind, NodeId, Oid, Time, Uid};
use systx_store::io::{Fixed, HostId, Project, Stamp, Stat};

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;

/// A name, shared between the directory's tables and the node.
pub(crate) type Name = Arc<[u8]>;

/// Changed extended attributes; `None` as a value: removed.
pub(crate) type Xattrs = BTreeMap<Box<[u8]>, Option<Vec<u8>>>;

/// An object of the backing file system.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    /// The version that was met first.
    pub stamp: Stamp,
    /// The backing directory and name under which it was met; `None` for the root.
    pub place: Option<(NodeId, Name)>,
    /// Another file system is mounted there: nothing in it belongs to the volume.
    pub foreign: bool,
    /// Whether it may be changed at all, once that was asked.
    pub fixed: Option<Fixed>,
}

impl Base {
    /// As it is met, in the place where it was found.
    pub fn met(stamp: Stamp, place: Option<(NodeId, Name)>) -> Base {
        Base { stamp, place, foreign: false, fixed: None }
    }

    /// Its key in the conflict engine.
    pub fn oid(&self) -> Oid {
        self.stamp.id().oid()
    }
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

/// A [`Child`] in a quarter of its space: a view may meet a hundred thousand names.
#[derive(Clone, Copy)]
struct Packed {
    now: Option<NonZeroU32>,
    base: Option<NonZeroU32>,
}

impl Packed {
    fn of(child: Child) -> Packed {
        // Four thousand million nodes do not fit into memory.
        let pack = |id: Option<NodeId>| NonZeroU32::new(u32::try_from(id?.0).ok()?);
        Packed { now: pack(child.now), base: pack(child.base) }
    }
    fn child(self) -> Child {
        let unpack = |id: Option<NonZeroU32>| Some(NodeId(u64::from(id?.get())));
        Child { now: unpack(self.now), base: unpack(self.base) }
    }
}

/// What a listing tells of a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed {
    /// The number of the object: what it was when the directory was listed.
    pub ino: u64,
    pub kind: Kind,
}

/// A directory's names, as far as they were met.
#[derive(Default)]
pub(crate) struct DirState {
    /// Names that were looked up or changed.
    children: HashMap<Name, Packed>,
    /// Order and cookies, once somebody listed.
    pub listing: Option<Listing>,
    /// Names that were handed out with attributes, in the listing that the kernel may have cached.
    pub handed_out: u32,
    /// Files of it that were read since.
    pub read_since: u32,
    /// All names of the backing directory, once they were read.
    pub base_names: Option<HashMap<Name, Listed>>,
    /// The thread that was last told some of them without attributes; 0: none was.
    pub lister: u32,
    /// Its project, once that was asked.
    pub project: Option<Project>,
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
    /// What a name means, if it was met.
    pub fn child(&self, name: &[u8]) -> Option<Child> {
        self.children.get(name).map(|c| c.child())
    }
    pub fn set_child(&mut self, name: Name, child: Child) {
        self.children.insert(name, Packed::of(child));
    }
    pub fn forget_child(&mut self, name: &[u8]) {
        self.children.remove(name);
    }
    /// All names that were met.
    pub fn children(&self) -> impl Iterator<Item = (&Name, Child)> {
        self.children.iter().map(|(name, c)| (name, c.child()))
    }
    /// Names that differ from the backing directory.
    pub fn changes(&self) -> impl Iterator<Item = (&Name, Child)> {
        self.children().filter(|(_, c)| c.now != c.base)
    }
    /// Nothing here is on the backing file system any more; returns what was.
    pub fn forget_base(&mut self) -> Vec<NodeId> {
        let gone = self.children().filter_map(|(_, c)| c.base).collect();
        for packed in self.children.values_mut() {
            *packed = Packed::of(Child { base: None, ..packed.child() });
        }
        self.base_names = self.base_names.is_some().then(HashMap::new);
        gone
    }
}

/// State by type.
pub(crate) enum Body {
    /// The private content, once a page was read or changed.
    File(Option<Arc<Mutex<Content>>>),
    Dir(Box<DirState>),
    /// The target, once known.
    Symlink(Option<Arc<Vec<u8>>>),
    Special,
}

/// One object of one view.
pub(crate) struct Node {
    pub base: Option<Base>,
    /// As the view shows it, but with the ids of the host.
    pub attr: Attr,
    pub dirty: Dirty,
    /// Where it is in this view (one of its known names); `None` if there is none, and for the
    /// root.
    pub place: Option<(NodeId, Name)>,
    pub xattrs: Option<Box<Xattrs>>,
    pub body: Body,
    /// `security.capability` was looked for and removed, or never there.
    pub caps_gone: bool,
    /// The names by which it was found are recorded as relied upon by a change.
    pub anchored: bool,
}

impl Node {
    /// Identity on the volume's backing file system.  The root of another file system may have the
    /// number of something here.
    fn host_id(&self) -> Option<HostId> {
        self.base.as_ref().filter(|base| !base.foreign).map(|base| base.stamp.id())
    }
    /// Where it was met on the backing file system; `None` for the root, and for what is new.
    pub fn met_at(&self) -> Option<&(NodeId, Name)> {
        self.base.as_ref()?.place.as_ref()
    }
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

impl Node {
    /// Clears the set-id bits as a change of owner, or a write by somebody without privilege, does.
    ///
    /// `foreign`: whether the caller is neither privileged nor in the file's group, who loses a
    /// set-group-id bit also where nobody of the group may execute the file (fs/attr.c
    /// `setattr_should_drop_sgid`).
    pub fn drop_setid(&mut self, foreign: bool) {
        let mut mode = self.attr.mode & !S_ISUID;
        if foreign || mode & S_IXGRP != 0 {
            mode &= !S_ISGID;
        }
        self.dirty.mode |= mode != self.attr.mode;
        self.attr.mode = mode;
    }

    /// Length and time stamps after a change of content.
    pub fn touch(&mut self, len: u64, allocated: u64, now: Time) {
        self.attr.size = len;
        self.attr.blocks = allocated.div_ceil(512);
        self.attr.mtime = now;
        self.attr.ctime = now;
        self.dirty.mtime = true;
    }
}

/// Nodes that are allocated together, so that a large table has no large part unused and never
/// moves.
const CHUNK: usize = 256;

/// The nodes of one view.
#[derive(Default)]
pub(crate) struct Nodes {
    chunks: Vec<Vec<Node>>,
    /// Hash table over the identities of backing objects: node numbers, 0 for a free slot.  Its
    /// length is a power of two.  A number is valid as long as its node has that identity.
    by_id: Vec<u32>,
    known: usize,
    /// The highest inode number among them.
    pub highest: u64,
}

impl Nodes {
    fn index(id: NodeId) -> Option<usize> {
        usize::try_from(id.0).ok()?.checked_sub(1)
    }
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        let at = Self::index(id)?;
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }
    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        let at = Self::index(id)?;
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }
    pub fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.len() as u64 + 1);
        let host = node.host_id();
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push(node),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(node);
                self.chunks.push(chunk);
            }
        }
        if let Some(host) = host {
            self.highest = self.highest.max(host.number());
            self.identify(host, id);
        }
        id
    }
    pub fn of_host(&self, host: HostId) -> Option<NodeId> {
        let mask = self.by_id.len().checked_sub(1)?;
        let mut at = hash(host) & mask;
        // There is always a free slot.
        while self.by_id[at] != 0 {
            let id = NodeId(u64::from(self.by_id[at]));
            if self.get(id).and_then(Node::host_id) == Some(host) {
                return Some(id);
            }
            at = (at + 1) & mask;
        }
        None
    }
    /// A node is that of a backing object, as its base says.
    pub fn identify(&mut self, host: HostId, node: NodeId) {
        if self.of_host(host) == Some(node) {
            return;
        }
        if (self.known + 1) * 4 > self.by_id.len() * 3 {
            let hosts: Vec<_> =
                self.iter().filter_map(|(id, n)| Some((n.host_id()?, id))).collect();
            self.by_id = vec![0; ((hosts.len() + 1) * 2).next_power_of_two().max(64)];
            self.known = 0;
            for (host, id) in hosts {
                self.place(host, id);
            }
        }
        if self.of_host(host) != Some(node) {
            self.place(host, node);
        }
    }
    fn place(&mut self, host: HostId, node: NodeId) {
        let mask = self.by_id.len() - 1;
        let mut at = hash(host) & mask;
        while self.by_id[at] != 0 {
            at = (at + 1) & mask;
        }
        self.by_id[at] = u32::try_from(node.0).unwrap_or(0);
        self.known += 1;
    }
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.chunks.iter().flatten().enumerate().map(|(i, n)| (NodeId(i as u64 + 1), n))
    }
    pub fn len(&self) -> usize {
        match self.chunks.split_last() {
            Some((last, full)) => full.len() * CHUNK + last.len(),
            None => 0,
        }
    }
}

/// Inode numbers are often dense: the multiplication spreads them.
fn hash(host: HostId) -> usize {
    (host.number().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}
