//! What a transaction has done so far: outcomes beside the tree, which nobody else sees.

use crate::format::{Head, Ino};
use crate::object::{Attrs, Bytes, Link, Node, Place};
use crate::promise::Promise;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systx_base::sync::{Mutex, rank};
use systx_base::{Gid, Time, Uid};

/// Changes of one object's attributes.  What is not named stays.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<Uid>,
    /// Group.
    pub gid: Option<Gid>,
    /// Bytes of a file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the content.
    pub mtime: Option<Time>,
    /// Last change of anything.
    pub ctime: Option<Time>,
    /// Directory that a directory is in.
    pub parent: Option<Ino>,
    /// Extended attributes: values, or that there is none.
    pub xattrs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Patch {
    /// Makes the changes.
    pub fn apply(&self, node: &mut Node) {
        let Attrs { mode, uid, gid, size, atime, mtime, ctime, .. } = &mut node.attrs;
        set(mode, self.mode);
        set(uid, self.uid);
        set(gid, self.gid);
        set(size, self.size);
        set(atime, self.atime);
        set(mtime, self.mtime);
        set(ctime, self.ctime);
        set(&mut node.parent, self.parent);
        for (name, value) in &self.xattrs {
            match value {
                Some(value) => drop(node.xattrs.insert(name.clone(), value.clone())),
                None => drop(node.xattrs.remove(name)),
            }
        }
    }
}

fn set<T: Copy>(to: &mut T, from: Option<T>) {
    if let Some(from) = from {
        *to = from;
    }
}

/// A name that changes its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Rebind {
    /// What it stood for when the transaction first changed it.
    pub old: Option<Link>,
    /// What it stands for afterwards.
    pub new: Option<Link>,
}

/// A page's new content.
#[derive(Clone, Debug)]
pub enum Staged {
    /// In memory.
    Memory(Bytes),
    /// In a private segment.
    Spilled(Place),
    /// Zeros that take no space.
    Hole,
    /// What is this page of another file until the commit, which takes it out of there.
    Taken(Ino, u64),
}

impl Staged {
    pub(crate) fn is_hole(&self) -> bool {
        matches!(self, Staged::Hole)
    }
}

/// Private segments that their transactions have given up.
pub type Returned = Arc<Mutex<Vec<u32>>>;

/// Place for returned segments.
pub fn returned() -> Returned {
    Arc::new(Mutex::new(rank::LEAF, Vec::new()))
}

/// Private segments of a transaction that was too large for memory.
#[derive(Debug)]
pub struct Private {
    /// Where the next pages go.
    pub head: Head,
    /// Segments with pages of it.
    pub segments: Vec<u32>,
    /// Where they go if the transaction ends without a commit.
    pub returned: Returned,
}

impl Drop for Private {
    fn drop(&mut self) {
        let mut returned = self.returned.lock();
        returned.append(&mut self.segments);
        returned.push(self.head.next);
    }
}

/// A transaction.  Dropping it is its abort.
#[derive(Debug, Default)]
pub struct Txn {
    /// New objects.
    pub(crate) created: BTreeMap<Ino, Node>,
    /// Changed attributes of objects that were there.
    pub(crate) patches: BTreeMap<Ino, Patch>,
    /// Names, by directory.
    pub(crate) entries: BTreeMap<Ino, BTreeMap<Vec<u8>, Rebind>>,
    /// Pages, by file.
    pub(crate) pages: BTreeMap<Ino, BTreeMap<u64, Staged>>,
    /// Files of which the pages from one on were cut off before those above were written.
    pub(crate) cuts: BTreeMap<Ino, u64>,
    /// Pages of files that go to others.
    pub(crate) taken: BTreeSet<(Ino, u64)>,
    /// By how much the number of names of an object changes.
    pub(crate) links: BTreeMap<Ino, i64>,
    /// Pages in memory.
    pub(crate) in_memory: u64,
    /// As many were in memory when room was last made for the next spill.
    pub(crate) asked: u64,
    /// Blocks that were promised to it.
    pub(crate) own: u64,
    /// Pages elsewhere.
    pub(crate) private: Option<Private>,
}

impl Txn {
    /// A transaction that has done nothing yet.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// A transaction that a promise was made for, and that is committed by it.
    pub fn of(promise: Option<&Promise>) -> Txn {
        Txn { own: promise.map_or(0, Promise::blocks), ..Txn::default() }
    }

    /// Whether it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.created.is_empty()
            && self.patches.is_empty()
            && self.entries.is_empty()
            && self.pages.is_empty()
            && self.cuts.is_empty()
    }

    /// Whether it only takes away, if the pages that it writes are there already
    /// ([`Txn::written`]): such a transaction may use space that others may not. What it writes are
    /// the pages at the two ends of what it takes away. A write of a page that takes nothing away
    /// is none of these, or writes of one page each would use all of that space up.
    pub fn only_removes(&self) -> bool {
        let takes = !self.cuts.is_empty() || self.staged().any(|(_, _, s)| s.is_hole());
        let written = self.written().count();
        self.created.is_empty()
            && self.entries.values().flat_map(BTreeMap::values).all(|r| r.new.is_none())
            && self.patches.values().all(|p| p.xattrs.values().all(Option::is_none))
            && (written == 0 || takes && written <= 2)
    }

    fn staged(&self) -> impl Iterator<Item = (Ino, u64, &Staged)> {
        self.pages.iter().flat_map(|(ino, pages)| pages.iter().map(|(page, s)| (*ino, *page, s)))
    }

    /// The pages that take space.
    pub(crate) fn written(&self) -> impl Iterator<Item = (Ino, u64)> {
        self.staged().filter(|(_, _, s)| !s.is_hole()).map(|(ino, page, _)| (ino, page))
    }

    /// Blocks that its commit needs at most, without the pages that were spilled.
    pub(crate) fn blocks(&self) -> u64 {
        let xattrs = |x: usize| x as u64 + 64;
        let nodes: u64 = self.created.values().map(crate::object::node_record).sum();
        let patches: u64 = (self.patches.values())
            .flat_map(|p| p.xattrs.iter())
            .map(|(n, v)| xattrs(n.len() + v.as_ref().map_or(0, Vec::len)))
            .sum();
        let count = self.patches.len() + self.links.len() + self.entries.len() + self.cuts.len();
        let names: u64 =
            (self.entries.values().flat_map(BTreeMap::keys)).map(|n| n.len() as u64 + 32).sum();
        let pages: u64 = self.pages.values().map(|p| p.len() as u64).sum();
        // Attributes of an object that was there: its extended ones are written with them.
        let bytes = nodes + patches + names + count as u64 * 160 + pages * 32;
        self.in_memory + bytes.div_ceil(4096) + 2
    }

    /// Pages that were spilled.
    pub(crate) fn spilled(&self) -> u64 {
        self.staged().filter(|(_, _, s)| matches!(s, Staged::Spilled(_))).count() as u64
    }

    /// Segments with pages that were spilled.
    pub(crate) fn private_segments(&self) -> usize {
        self.private.as_ref().map_or(0, |private| private.segments.len())
    }

    /// The changes of an object's attributes.
    pub(crate) fn patch(&mut self, ino: Ino) -> &mut Patch {
        self.patches.entry(ino).or_default()
    }
}
