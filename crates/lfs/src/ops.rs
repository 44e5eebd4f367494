//! Operations on a tree as a transaction sees it: what is committed, and its own changes above.
//! An operation either stages all of its outcomes or fails and stages none.

mod content;
mod names;
mod outcomes;

pub use names::{Rename, Shape};

use crate::error::{Error, Result};
use crate::format::{Head, Ino};
use crate::object::{Attrs, Bytes, Link, NAME_MAX, Node, XATTRS_MAX, xattrs_bytes};
use crate::tree::Tree;
use crate::txn::{Patch, Returned, Txn};
use crate::usage::Usage;
use systx_base::{Gid, Kind, Time, Uid};

/// What new objects and spilled pages are made from.
pub(crate) struct Maker<'a> {
    /// The next number of an object.
    pub next_ino: &'a mut Ino,
    /// Private segments are taken from here.
    pub usage: &'a mut Usage,
    /// The log's head, for its epoch.
    pub head: &'a Head,
    /// Where private segments go back to.
    pub returned: &'a Returned,
    /// Pages that a transaction may have in memory.
    pub pages_max: u64,
    /// Segments that no transaction may take: of the cleaner, of what waits to be written and of
    /// what is promised to others.
    pub reserve: u32,
}

/// A tree as a transaction sees it.
pub struct Ops<'a> {
    pub(crate) tree: &'a mut Tree,
    pub(crate) txn: &'a mut Txn,
    pub(crate) maker: Option<Maker<'a>>,
    pub(crate) now: Time,
}

/// Attributes to set; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct SetAttrs {
    /// Permission bits, 07777.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<Uid>,
    /// Group.
    pub gid: Option<Gid>,
    /// Bytes of a file: cut off, or extended by zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the content.
    pub mtime: Option<Time>,
}

/// How an extended attribute is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetXattr {
    /// Made or replaced.
    Any,
    /// It must not be there (`XATTR_CREATE`).
    Create,
    /// It must be there (`XATTR_REPLACE`).
    Replace,
}

impl Ops<'_> {
    /// An object but for its content.
    pub(crate) fn node(&mut self, ino: Ino) -> Result<Node> {
        let mut node = match self.txn.created.get(&ino) {
            Some(node) => node.clone(),
            None => self.tree.get(ino)?.node.clone(),
        };
        if let Some(patch) = self.txn.patches.get(&ino) {
            patch.apply(&mut node);
        }
        let delta = self.txn.links.get(&ino).copied().unwrap_or(0);
        node.attrs.nlink = changed(node.attrs.nlink, delta);
        Ok(node)
    }

    /// The attributes of an object.
    ///
    /// # Errors
    /// [`Error::NotFound`]; what reading the volume can say.
    pub fn attrs(&mut self, ino: Ino) -> Result<Attrs> {
        Ok(self.node(ino)?.attrs)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none; as [`Ops::attrs`].
    pub fn target(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        match node.attrs.kind {
            Kind::Symlink => Ok(node.target),
            _ => Err(Error::Invalid("not a symbolic link")),
        }
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttr`]; as [`Ops::attrs`].
    pub fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.node(ino)?.xattrs.remove(name).ok_or(Error::NoAttr)
    }

    /// The names of all extended attributes, in order.
    ///
    /// # Errors
    /// As [`Ops::attrs`].
    pub fn xattrs(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.node(ino)?.xattrs.into_keys().collect())
    }

    /// The directory that a directory is in.
    ///
    /// # Errors
    /// [`Error::NotDir`]; as [`Ops::attrs`].
    pub fn parent(&mut self, dir: Ino) -> Result<Ino> {
        let node = self.node(dir)?;
        if node.attrs.kind == Kind::Dir { Ok(node.parent) } else { Err(Error::NotDir) }
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// [`Error::IsDir`] or [`Error::Invalid`] for the size of what is no file,
    /// [`Error::TooLarge`]; as [`Ops::attrs`].
    pub fn set_attrs(&mut self, ino: Ino, set: &SetAttrs) -> Result<()> {
        self.writable()?;
        let node = self.node(ino)?;
        if set.mode.is_some_and(|mode| mode & !0o7777 != 0) {
            return Err(Error::Invalid("bits of a mode"));
        }
        if [set.atime, set.mtime].iter().flatten().any(|t| t.nanos >= 1_000_000_000) {
            return Err(Error::Invalid("nanoseconds"));
        }
        if let Some(size) = set.size {
            self.truncate(ino, &node, size)?;
        }
        let now = self.now;
        let patch = self.txn.patch(ino);
        patch.mode = set.mode.or(patch.mode);
        patch.uid = set.uid.or(patch.uid);
        patch.gid = set.gid.or(patch.gid);
        patch.atime = set.atime.or(patch.atime);
        patch.mtime = set.mtime.or(patch.mtime);
        patch.ctime = Some(now);
        Ok(())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`Error::Exists`] or [`Error::NoAttr`] by `how`; [`Error::NameTooLong`];
    /// [`Error::NoSpace`] if the object would have more than [`XATTRS_MAX`] bytes of them; as
    /// [`Ops::attrs`].
    pub fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.writable()?;
        if name.is_empty() || name.contains(&0) {
            return Err(Error::Invalid("name of an extended attribute"));
        }
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let mut node = self.node(ino)?;
        match (how, node.xattrs.insert(name.to_vec(), value.to_vec())) {
            (SetXattr::Create, Some(_)) => return Err(Error::Exists),
            (SetXattr::Replace, None) => return Err(Error::NoAttr),
            _ => {}
        }
        if xattrs_bytes(&node.xattrs) > XATTRS_MAX {
            return Err(Error::NoSpace);
        }
        let now = self.now;
        let patch = self.txn.patch(ino);
        patch.xattrs.insert(name.to_vec(), Some(value.to_vec()));
        patch.ctime = Some(now);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttr`]; as [`Ops::attrs`].
    pub fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        self.xattr(ino, name)?;
        let now = self.now;
        let patch = self.txn.patch(ino);
        patch.xattrs.insert(name.to_vec(), None);
        patch.ctime = Some(now);
        Ok(())
    }

    pub(crate) fn writable(&self) -> Result<()> {
        if self.maker.is_none() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    fn patch(&mut self, ino: Ino) -> &mut Patch {
        self.txn.patch(ino)
    }
}

/// A number of names after a change.
pub(crate) fn changed(nlink: u32, delta: i64) -> u32 {
    u32::try_from((i64::from(nlink) + delta).max(0)).unwrap_or(u32::MAX)
}

/// A page of zeros.
pub(crate) fn zeros() -> Bytes {
    Bytes::from(vec![0; crate::format::BLOCK])
}

/// An object's entry.
pub(crate) fn link_to(ino: Ino, kind: Kind) -> Link {
    Link { ino, kind }
}
