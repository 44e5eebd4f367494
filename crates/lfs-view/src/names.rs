//! Names come and go: lookup, create, link, unlink, rename.

use crate::attrs::{S_ISGID, value};
use crate::base::{Base, refusal};
use crate::{VolumeView, ino_of};
use rustix::io::Errno;
use systx_base::{Kind, NodeId};
use systx_lfs::format::Ino;
use systx_lfs::{Error, Ops, Rename, Result, SetXattr, Shape};
use systx_vfs::acl;
use systx_vfs::api::{Caller, Entry, NewAttr, RenameHow, Reply};

/// Most names that one file may have; what ext4 allows.
const LINKS_MAX: u32 = 65_000;

/// What is made.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    pub kind: Kind,
    pub new: NewAttr,
    pub rdev: u64,
    pub target: &'a [u8],
}

impl<'a> New<'a> {
    /// A symbolic link, whose mode means nothing.
    pub fn symlink(target: &'a [u8]) -> New<'a> {
        New { kind: Kind::Symlink, new: NewAttr { mode: 0o777, umask: 0 }, rdev: 0, target }
    }

    fn file(new: NewAttr) -> New<'static> {
        New { kind: Kind::File, new, rdev: 0, target: b"" }
    }
}

/// The lists that a new object starts with.
type Lists = Vec<(&'static [u8], Vec<u8>)>;

/// Owner, mode and ACLs of a new object as Linux derives them from the directory (fs/inode.c
/// `inode_init_owner`, fs/posix_acl.c `posix_acl_create`).
fn shape(ops: &mut Ops<'_>, caller: Caller, dir: Ino, what: New<'_>) -> Result<(Shape, Lists)> {
    let up = ops.attrs(dir)?;
    let inherits_group = up.mode & S_ISGID != 0;
    let mut mode = what.new.mode & 0o7777;
    if inherits_group && what.kind == Kind::Dir {
        mode |= S_ISGID;
    }
    let mut lists = Lists::new();
    let default = match what.kind {
        Kind::Symlink => None,
        _ => value(ops, dir, acl::DEFAULT)?,
    };
    match default {
        Some(default) => {
            let inherited = acl::inherit(&default, mode, what.kind == Kind::Dir);
            let inherited = inherited.map_err(refusal)?;
            mode = (mode & 0o7000) | (inherited.mode & 0o777);
            lists.extend(inherited.access.map(|list| (acl::ACCESS, list)));
            lists.extend(inherited.default.map(|list| (acl::DEFAULT, list)));
        }
        None => mode &= !what.new.umask,
    }
    let (uid, gid) = (caller.uid, if inherits_group { up.gid } else { caller.gid });
    let (kind, rdev, target) = (what.kind, what.rdev, what.target.to_vec());
    Ok((Shape { kind, mode, uid, gid, rdev, target }, lists))
}

/// Makes an object, with a name or without.
fn make(
    ops: &mut Ops<'_>,
    caller: Caller,
    (dir, name): (Ino, Option<&[u8]>),
    what: New<'_>,
) -> Result<Ino> {
    let (shape, lists) = shape(ops, caller, dir, what)?;
    let ino = match name {
        Some(name) => ops.create(dir, name, &shape)?,
        None => ops.make(&shape)?,
    };
    for (key, list) in lists {
        ops.set_xattr(ino, key, &list, SetXattr::Any)?;
    }
    Ok(ino)
}

impl VolumeView {
    pub(crate) fn find(&self, parent: NodeId, name: &[u8]) -> Reply<Option<Entry>> {
        if self.hides(parent, name) {
            return Ok(None);
        }
        let found = self.look(|ops| ops.lookup(ino_of(parent), name));
        match found.and_then(|link| self.hand_out(link.ino)) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn make(
        &self,
        caller: Caller,
        (parent, name): (NodeId, &[u8]),
        what: New<'_>,
    ) -> Reply<Entry> {
        let dir = ino_of(parent);
        let ino = self.change(|ops| make(ops, caller, (dir, Some(name)), what))?;
        self.table.renamed(dir, name, true);
        self.hand_out(ino)
    }

    pub(crate) fn make_file(
        &self,
        caller: Caller,
        (parent, name): (NodeId, &[u8]),
        new: NewAttr,
        exclusive: bool,
    ) -> Reply<Entry> {
        match self.make(caller, (parent, name), New::file(new)) {
            // Somebody was faster.
            Err(Errno::EXIST) if !exclusive => {
                let entry = self.find(parent, name)?.ok_or(Errno::EXIST)?;
                entry.opens_unchecked(caller).inspect_err(|_| {
                    systx_vfs::api::Requests::forget(self, entry.node, 1);
                })?;
                Ok(entry)
            }
            made => made,
        }
    }

    pub(crate) fn make_unnamed(
        &self,
        caller: Caller,
        parent: NodeId,
        new: NewAttr,
    ) -> Reply<Entry> {
        let Base::Live(store) = &self.base else { return Err(Errno::ROFS) };
        let ino = self.change(|ops| {
            let ino = make(ops, caller, (ino_of(parent), None), New::file(new))?;
            store.keep_unnamed(ops, ino)?;
            Ok(ino)
        })?;
        let entry = self.hand_out(ino)?;
        self.table.set_unnamed(ino, true);
        Ok(Entry { attr: self.shown(entry.attr), ..entry })
    }

    pub(crate) fn link_to(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        let Base::Live(store) = &self.base else { return Err(Errno::ROFS) };
        let (ino, dir) = (ino_of(node), ino_of(parent));
        let is_unnamed = self.table.is_unnamed(ino);
        self.change(|ops| {
            match ops.attrs(ino)? {
                attrs if attrs.kind == Kind::Dir => return Err(refusal(Errno::PERM)),
                attrs if attrs.nlink >= LINKS_MAX => return Err(refusal(Errno::MLINK)),
                _ => {}
            }
            ops.link(ino, dir, name)?;
            if is_unnamed { store.forget_unnamed(ops, ino) } else { Ok(()) }
        })?;
        self.table.set_unnamed(ino, false);
        self.table.renamed(dir, name, true);
        self.hand_out(ino)
    }

    pub(crate) fn remove(&self, parent: NodeId, name: &[u8], is_dir: bool) -> Reply<()> {
        if self.hides(parent, name) {
            return Err(Errno::NOENT);
        }
        let dir = ino_of(parent);
        self.change(|ops| if is_dir { ops.rmdir(dir, name) } else { ops.unlink(dir, name) })?;
        self.table.renamed(dir, name, false);
        Ok(())
    }

    pub(crate) fn move_name(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()> {
        if self.hides(from.0, from.1) {
            return Err(Errno::NOENT);
        }
        if self.hides(to.0, to.1) {
            return Err(Errno::EXIST);
        }
        let (old, new) = ((ino_of(from.0), from.1), (ino_of(to.0), to.1));
        let kind = match how {
            RenameHow::Replace | RenameHow::Whiteout => Rename::Replace,
            RenameHow::NoReplace | RenameHow::WhiteoutNoReplace => Rename::NoReplace,
            RenameHow::Exchange => Rename::Exchange,
        };
        let is_one = self.change(|ops| {
            let source = ops.lookup(old.0, old.1)?;
            // rename(2): if both names are links to one file, nothing happens.
            let is_one = match ops.lookup(new.0, new.1) {
                Ok(target) => target.ino == source.ino,
                Err(Error::NotFound) => false,
                Err(error) => return Err(error),
            };
            ops.rename(old, new, kind)?;
            if how.leaves_whiteout() && !is_one {
                let new = NewAttr { mode: 0, umask: 0 };
                let hole = New { kind: Kind::CharDev, new, rdev: 0, target: b"" };
                make(ops, caller, (old.0, Some(old.1)), hole)?;
            }
            Ok(is_one)
        })?;
        if !is_one {
            let stays = how == RenameHow::Exchange || how.leaves_whiteout();
            self.table.renamed(old.0, old.1, stays);
            self.table.renamed(new.0, new.1, true);
        }
        Ok(())
    }
}
