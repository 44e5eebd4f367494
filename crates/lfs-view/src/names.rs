//! Names come and go: lookup, create, link, unlink, rename.

use crate::attrs::{S_ISGID, value};
use crate::base::{Base, refusal};
use crate::order::{expect_free, renaming};
use crate::{VolumeView, ino_of};
use rustix::io::Errno;
use systx_base::{Kind, NodeId};
use systx_guard::change::Change;
use systx_guard::publication::BARRIER;
use systx_lfs::format::Ino;
use systx_lfs::{Error, Ops, Rename, Result, SetXattr, Shape};
use systx_txn::ObjectRef;
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

/// A name in a directory.
type At<'a> = (NodeId, &'a [u8]);

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
        if name == BARRIER {
            self.gate.barrier(self.oid(parent)?);
            return Ok(None);
        }
        if self.hides(parent, name) {
            return Ok(None);
        }
        if let Some(found) = self.numbers.as_ref().and_then(|n| n.find(self, parent, name)) {
            return found;
        }
        if name == b"." {
            return self.hand_out(ino_of(parent)).map(Some);
        }
        let reads = [ObjectRef::Entry { dir: self.oid(parent)?, name }];
        let found = self.reading(&reads, || self.look(|ops| ops.lookup(ino_of(parent), name)));
        match found.and_then(|link| self.hand_out(link.ino)) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn read_link(&self, node: NodeId) -> Reply<Vec<u8>> {
        let reads = [ObjectRef::Pages { oid: self.oid(node)?, first: 0, last: 0 }];
        self.reading(&reads, || self.look(|ops| ops.target(ino_of(node))))
    }

    pub(crate) fn make(
        &self,
        caller: Caller,
        (parent, name): (NodeId, &[u8]),
        what: New<'_>,
    ) -> Reply<Entry> {
        expect_free(name)?;
        let (dir, up) = (ino_of(parent), self.object(parent)?);
        let (writes, places) = (up.change_of(name), [up.place()]);
        self.mutating(renaming(caller, &writes, &places), || {
            let ino = self.change(|ops| make(ops, caller, (dir, Some(name)), what))?;
            self.table.renamed(dir, name, true);
            let entry = self.hand_out_new(ino)?;
            self.has_made(ino);
            Ok(entry)
        })
    }

    /// This request has made an object.
    fn has_made(&self, ino: Ino) {
        if let Some((id, _)) = self.table.id(ino) {
            self.gate.born(id);
        }
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
        // Nobody can know it: no object of others is touched.
        self.mutating(renaming(caller, &[], &[]), || {
            let ino = self.change(|ops| {
                let ino = make(ops, caller, (ino_of(parent), None), New::file(new))?;
                store.keep_unnamed(ops, ino)?;
                Ok(ino)
            })?;
            let entry = self.hand_out_new(ino)?;
            self.has_made(ino);
            self.table.set_unnamed(ino, true);
            Ok(Entry { attr: self.shown(entry.attr), ..entry })
        })
    }

    pub(crate) fn link_to(
        &self,
        caller: Caller,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Reply<Entry> {
        expect_free(name)?;
        let Base::Live(store) = &self.base else { return Err(Errno::ROFS) };
        let (ino, dir) = (ino_of(node), ino_of(parent));
        let (file, up) = (self.object(node)?, self.object(parent)?);
        let (writes, places) = (up.change_of(name), [up.place()]);
        let subject = Some(file.place());
        let change = Change { subject, ..renaming(caller, &writes, &places) };
        self.mutating(change, || {
            self.check_current(node)?;
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
            self.hand_out_new(ino)
        })
    }

    pub(crate) fn remove(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        is_dir: bool,
    ) -> Reply<()> {
        if self.hides(parent, name) {
            return Err(Errno::NOENT);
        }
        let (dir, up) = (ino_of(parent), self.object(parent)?);
        let (writes, places) = (up.change_of(name), [up.place()]);
        loop {
            let lost = self.named(parent, name)?.ok_or(Errno::NOENT)?;
            // That it is empty is something that the removal relies on.
            let emptied = Some(ObjectRef::List(lost.oid())).filter(|_| is_dir);
            let subject = Some(lost.place()).filter(|_| !lost.is_dir());
            let plain = renaming(caller, &writes, &places);
            let done =
                self.mutating(Change { reads: emptied.as_slice(), subject, ..plain }, || {
                    let removed = self.change(|ops| {
                        if ops.lookup(dir, name)?.ino != lost.id().number() {
                            return Ok(false);
                        }
                        if is_dir { ops.rmdir(dir, name) } else { ops.unlink(dir, name) }?;
                        Ok(true)
                    })?;
                    if removed {
                        self.table.renamed(dir, name, false);
                    }
                    Ok(removed)
                })?;
            // Else a commit that it has waited for has put something else there.
            if done {
                return Ok(());
            }
        }
    }

    pub(crate) fn move_name(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()> {
        expect_free(to.1)?;
        if self.hides(from.0, from.1) {
            return Err(Errno::NOENT);
        }
        if self.hides(to.0, to.1) {
            return Err(Errno::EXIST);
        }
        let (old_dir, new_dir) = (self.object(from.0)?, self.object(to.0)?);
        let ([a, b], [c, d]) = (old_dir.change_of(from.1), new_dir.change_of(to.1));
        let all = [a, b, c, d];
        // Within one directory its list is one object.
        let is_same = from.0 == to.0;
        let writes = if is_same { &all[..3] } else { &all[..] };
        let places = [old_dir.place(), new_dir.place()];
        let replaces = matches!(how, RenameHow::Replace | RenameHow::Whiteout);
        loop {
            let lost = self.named(to.0, to.1)?;
            let lost_ino = lost.as_ref().map(|lost| lost.id().number());
            let emptied = lost.filter(|lost| replaces && lost.is_dir());
            let emptied = emptied.map(|lost| ObjectRef::List(lost.oid()));
            // Between two directories it keeps the kernel's one lock on all such renames.
            let plain = Change { may_stall: is_same, ..renaming(caller, writes, &places) };
            let done = self.mutating(Change { reads: emptied.as_slice(), ..plain }, || {
                self.rename(caller, (from, to), how, lost_ino)
            })?;
            // Else a commit that it has waited for has put something else there.
            if done {
                return Ok(());
            }
        }
    }

    /// Renames, if the new name stands for this object or for nothing; whether it does.
    fn rename(
        &self,
        caller: Caller,
        (from, to): (At<'_>, At<'_>),
        how: RenameHow,
        lost: Option<Ino>,
    ) -> Reply<bool> {
        let (old, new) = ((ino_of(from.0), from.1), (ino_of(to.0), to.1));
        let kind = match how {
            RenameHow::Replace | RenameHow::Whiteout => Rename::Replace,
            RenameHow::NoReplace | RenameHow::WhiteoutNoReplace => Rename::NoReplace,
            RenameHow::Exchange => Rename::Exchange,
        };
        let is_one = self.change(|ops| {
            let source = ops.lookup(old.0, old.1)?;
            let target = match ops.lookup(new.0, new.1) {
                Ok(target) => Some(target.ino),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            };
            if target != lost {
                return Ok(None);
            }
            // rename(2): if both names are links to one file, nothing happens.
            let is_one = target == Some(source.ino);
            ops.rename(old, new, kind)?;
            if how.leaves_whiteout() && !is_one {
                let new = NewAttr { mode: 0, umask: 0 };
                let hole = New { kind: Kind::CharDev, new, rdev: 0, target: b"" };
                make(ops, caller, (old.0, Some(old.1)), hole)?;
            }
            Ok(Some(is_one))
        })?;
        let Some(is_one) = is_one else { return Ok(false) };
        if !is_one {
            let stays = how == RenameHow::Exchange || how.leaves_whiteout();
            self.table.renamed(old.0, old.1, stays);
            self.table.renamed(new.0, new.1, true);
        }
        Ok(true)
    }
}
