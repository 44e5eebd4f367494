//! What a transaction leaves behind, as absolute outcomes: the final state of every object and
//! every name that it changed, never a list of operations. Installing a write set twice, or the
//! rest of one after a crash, gives the same tree.
//!
//! **Invariants** (checked by [`WriteSet::check`], relied upon by the store):
//! - W1 `objects[0]` is the volume's root directory, and only it is [`Origin::Root`].
//! - W2 the parent of a host object stands before it in `objects`, and is a directory.
//! - W3 every (directory, name) has at most one [`Bind`].
//! - W4 `displaces` is the host object that was found at that name; its origin names the same
//!   place.
//! - W5 every new object is the target of at least one bind, and following binds and origins
//!   upwards from it ends at the root: no cycles, nothing unreachable.
//! - W6 a directory is the target of at most one bind; if a host directory is bound elsewhere, its
//!   origin name is bound too (to something else or to nothing).
//! - W7 binds inside a removed directory are left out, except that an object that moved out of it
//!   is bound at its new place.

mod check;
pub(crate) mod codec;
pub(crate) mod index;

pub use check::CheckError;

use crate::io::{HostId, Stamp};
use std::collections::HashMap;
use systx_base::{Gid, Kind, Time, Uid};

/// Position in [`WriteSet::objects`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ix(pub u32);

/// The write set of one transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteSet {
    /// Every object that is changed, made, moved, displaced, or needed to name another; on an
    /// overlay also those that live on and have a name in a directory that is removed.
    pub objects: Vec<Object>,
    /// Every changed name.
    pub binds: Vec<Bind>,
    /// Further names that files keep, as far as they were met. Only where a change could part a
    /// file from them ([`crate::overlay`]), and not part of the record: they are seen to before it
    /// is made.
    pub kept: Vec<Kept>,
    /// The directories that go, with all that is to go with them. Not part of the record: an
    /// installation that a crash has interrupted is gone on with without.
    pub emptied: Vec<Emptied>,
}

/// A directory that is removed, and what it may have in it when it goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Emptied {
    /// Where it is before the transaction, below the volume's root.
    pub path: Vec<u8>,
    /// Its modification time when `names` was all that was in it.
    pub mtime: Time,
    /// What was in it; `None` where only the name is known.
    pub names: HashMap<Vec<u8>, Option<HostId>>,
}

impl WriteSet {
    /// That of a transaction that changes nothing and is committed all the same: the root only.
    #[must_use]
    pub fn nothing() -> WriteSet {
        let (attrs, xattrs, content) = (Attrs::default(), Vec::new(), Content::Keep);
        let root = Object { origin: Origin::Root, attrs, xattrs, content };
        WriteSet { objects: vec![root], ..WriteSet::default() }
    }

    /// Whether it is that.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == WriteSet::nothing()
    }
}

/// A name that a file keeps beside the one that its origin tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The file.
    pub file: Ix,
    /// The directory.
    pub dir: Ix,
    /// The name in it.
    pub name: Vec<u8>,
}

/// One file, directory, link or special file.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Where it comes from.
    pub origin: Origin,
    /// Changed attributes; for a new object all of them.
    pub attrs: Attrs,
    /// Changed extended attributes, POSIX ACLs and capabilities among them; `None` removes.
    pub xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Changed content (regular files only).
    pub content: Content,
}

/// Where an object comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// The volume's root directory.
    Root,
    /// It exists: under this name (one of its names) in `parent`, which is where `parent` itself
    /// was before the transaction.
    Host {
        /// The directory that holds it.
        parent: Ix,
        /// Its name there.
        name: Vec<u8>,
        /// Its type.
        kind: Kind,
        /// The version that the transaction saw.
        stamp: Stamp,
    },
    /// It exists in the store's graveyard (only undo brings such back).
    Grave {
        /// Its name in the graveyard.
        name: Vec<u8>,
        /// Its type.
        kind: Kind,
        /// The version that was put there.
        stamp: Stamp,
    },
    /// The transaction made it.
    New(NewKind),
}

/// What kind of object was made.
#[derive(Clone, Debug, PartialEq)]
pub enum NewKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A FIFO, socket or device node.
    Special {
        /// Which.
        kind: Kind,
        /// Device number, `makedev` encoding; 0 for the rest.
        rdev: u64,
    },
}

/// Changed attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Permission and set-id bits.
    pub mode: Option<u32>,
    /// Owner and group.
    pub owner: Option<(Uid, Gid)>,
    /// Access time.
    pub atime: Option<Time>,
    /// Modification time.
    pub mtime: Option<Time>,
}

/// Changed content of a regular file.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Content {
    /// As it was; empty for a new file.
    #[default]
    Keep,
    /// The same inode, with these ranges overwritten and the length set.  What lies beyond the old
    /// length and in no extent reads as zeros.
    Patch {
        /// New length in bytes.
        len: u64,
        /// The old content counts only below this offset (the file was once cut to it); what lies
        /// between it and `len` in no extent reads as zeros.
        keep: u64,
        /// Ascending, not overlapping, within `len`.
        extents: Vec<Extent>,
    },
    /// All of the content, for a new file or for one that was rewritten from empty: such a file is
    /// replaced by a new inode with all of the old one's attributes where nobody has it open and it
    /// has one name, else written in place.
    Whole {
        /// Length in bytes.
        len: u64,
        /// Ascending, not overlapping, within `len`; the rest is hole.
        extents: Vec<Extent>,
    },
    /// As `Whole`, and a staging slot already is the file: it is given the name, nothing is copied.
    /// The slot has its final length.
    Slot(SlotId),
}

/// A run of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Extent {
    /// Offset in the file.
    pub offset: u64,
    /// The bytes.
    pub data: Data,
}

/// Where the bytes of an extent are.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Here.
    Inline(Vec<u8>),
    /// In a staging slot, `len` bytes from `at`.
    Slot {
        /// Which slot.
        slot: SlotId,
        /// Offset in the slot.
        at: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Nowhere: `len` bytes of hole.
    Hole {
        /// Length in bytes.
        len: u64,
    },
}

impl Data {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Data::Inline(bytes) => bytes.len() as u64,
            Data::Slot { len, .. } | Data::Hole { len } => *len,
        }
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A staging slot of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u64);

/// A staging slot, at first empty. Dropping it gives it back to the store, unless it was committed.
pub trait Staging: std::any::Any + Send + Sync {
    /// Its name in a write set.
    fn id(&self) -> SlotId;
    /// Reads until `buf` is full or the slot ends; returns the count.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize>;
    /// Writes all of `data`.
    fn write_at(&self, data: &[u8], offset: u64) -> std::io::Result<()>;
    /// Sets the length.
    fn set_len(&self, len: u64) -> std::io::Result<()>;
    /// Deallocates a range; it reads as zeros, and the length stays.
    fn punch_hole(&self, offset: u64, len: u64) -> std::io::Result<()>;
}

/// A staging slot, open as long as one clone lives.
pub type Slot = std::sync::Arc<dyn Staging>;

/// The final state of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Bind {
    /// The directory.
    pub dir: Ix,
    /// The name in it.
    pub name: Vec<u8>,
    /// What it names after the commit; `None`: the name is gone.
    pub target: Option<Ix>,
    /// What it named before; `None`: nothing.
    pub displaces: Option<Ix>,
}
