//! chmod, chown, utimensat, truncate, and extended attributes; what a change takes away with it.

use crate::base::refusal;
use crate::{VolumeView, ino_of};
use rustix::io::Errno;
use systx_base::{Gid, Kind, NodeId};
use systx_guard::inode_locks::Ticket;
use systx_lfs::format::Ino;
use systx_lfs::{Error, Ops, Result, SetAttrs, SetXattr as How};
use systx_lfs_store::check_namespace;
use systx_txn::ObjectRef;
use systx_vfs::api::{Attr, Caller, Reply, SetAttr, SetTime, SetXattr};
use systx_vfs::content::PAGE;
use systx_vfs::{acl, client};

const S_ISUID: u32 = 0o4000;
pub(crate) const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;
const CAPS: &[u8] = b"security.capability";
/// Longest value (`XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 65_536;

/// The value of an extended attribute, if there is one.
pub(crate) fn value(ops: &mut Ops<'_>, ino: Ino, key: &[u8]) -> Result<Option<Vec<u8>>> {
    match ops.xattr(ino, key) {
        Ok(value) => Ok(Some(value)),
        Err(Error::NoAttr) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a change of the content takes set-id bits (if it `kills`) or capabilities away.
pub(crate) fn loses(ops: &mut Ops<'_>, ino: Ino, kills: bool) -> Result<bool> {
    let mode = ops.attrs(ino)?.mode;
    Ok(kills && mode & (S_ISUID | S_ISGID) != 0 || value(ops, ino, CAPS)?.is_some())
}

/// What a change of content or owner takes from a file: capabilities, and with `set_ids` the
/// set-id bits, the one of the group also where nobody of the group may execute the file if the
/// caller is `foreign` to it.
pub(crate) fn take_privileges(
    ops: &mut Ops<'_>,
    ino: Ino,
    set_ids: bool,
    foreign: bool,
) -> Result<()> {
    let attrs = ops.attrs(ino)?;
    if attrs.kind == Kind::File && value(ops, ino, CAPS)?.is_some() {
        ops.remove_xattr(ino, CAPS)?;
    }
    let mut mode = attrs.mode;
    if set_ids {
        mode &= !S_ISUID;
        if foreign || mode & S_IXGRP != 0 {
            mode &= !S_ISGID;
        }
    }
    if mode == attrs.mode {
        return Ok(());
    }
    ops.set_attrs(ino, &SetAttrs { mode: Some(mode), ..SetAttrs::default() })
}

/// chown(2) of anything but a directory drops the set-id bits, whoever asks.
fn change_owner(
    ops: &mut Ops<'_>,
    ino: Ino,
    caller: Caller,
    (uid, gid): (Option<u32>, Option<Gid>),
) -> Result<()> {
    let before = ops.attrs(ino)?;
    let foreign = caller.uid != 0 && caller.gid != before.gid;
    take_privileges(ops, ino, before.kind != Kind::Dir, foreign)?;
    ops.set_attrs(ino, &SetAttrs { uid, gid, ..SetAttrs::default() })
}

/// chmod(2): the access list, if there is one, says the same.
fn change_mode(ops: &mut Ops<'_>, ino: Ino, mode: u32) -> Result<()> {
    if let Some(access) = value(ops, ino, acl::ACCESS)? {
        let access = acl::chmod(&access, mode).map_err(refusal)?;
        ops.set_xattr(ino, acl::ACCESS, &access, How::Any)?;
    }
    ops.set_attrs(ino, &SetAttrs { mode: Some(mode & 0o7777), ..SetAttrs::default() })
}

impl VolumeView {
    pub(crate) fn set_attr(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Attr> {
        let (ino, object) = (ino_of(node), self.object(node)?);
        let oid = object.oid();
        let named = set.mode.is_some() || set.is_chown();
        let timed = set.atime.is_some() || set.mtime.is_some();
        let mut writes = Vec::with_capacity(3);
        if let Some(size) = set.size {
            let first = size.min(self.look(|ops| ops.attrs(ino))?.size) / PAGE;
            writes.push(ObjectRef::Size(oid));
            writes.push(ObjectRef::Pages { oid, first, last: u64::MAX });
        }
        if named || timed || set.size.is_some() && self.loses(ino, set.kill_suidgid)? {
            writes.push(ObjectRef::Attr(oid));
        }
        self.mutating(object.touched(caller, &writes), || {
            self.check_current(node)?;
            self.set_attr_now(caller, ino, &set)
        })
    }

    /// Whether a change of the content takes set-id bits or capabilities away, which is a change of
    /// the attributes.
    pub(crate) fn loses(&self, ino: Ino, kills: bool) -> Reply<bool> {
        self.look(|ops| loses(ops, ino, kills))
    }

    fn set_attr_now(&self, caller: Caller, ino: Ino, set: &SetAttr) -> Reply<Attr> {
        let before = self.change(|ops| {
            let before = ops.attrs(ino)?.size;
            if let Some(size) = set.size {
                ops.set_attrs(ino, &SetAttrs { size: Some(size), ..SetAttrs::default() })?;
                take_privileges(ops, ino, set.kill_suidgid, true)?;
            }
            if set.is_chown() {
                change_owner(ops, ino, caller, (set.uid, set.gid))?;
            }
            if let Some(mode) = set.mode {
                change_mode(ops, ino, mode)?;
            }
            let time = |to: Option<SetTime>| {
                to.map(|to| match to {
                    SetTime::Now => self.base.now(),
                    SetTime::To(time) => time,
                })
            };
            let (atime, mtime) = (time(set.atime), time(set.mtime));
            if atime.is_some() || mtime.is_some() {
                ops.set_attrs(ino, &SetAttrs { atime, mtime, ..SetAttrs::default() })?;
            }
            Ok(before)
        })?;
        if let Some(size) = set.size {
            client::grew(before, size);
        }
        self.attr(ino)
    }

    pub(crate) fn xattr(&self, node: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        let reads = [ObjectRef::Attr(self.oid(node)?)];
        let found = self.reading(&reads, || self.look(|ops| value(ops, ino_of(node), key)));
        match found? {
            Some(value) => Ok(value),
            None => check_namespace(key).and(Err(Errno::NODATA)),
        }
    }

    pub(crate) fn xattr_names(&self, node: NodeId) -> Reply<Vec<u8>> {
        let reads = [ObjectRef::Attr(self.oid(node)?)];
        let names = self.reading(&reads, || self.look(|ops| ops.xattrs(ino_of(node))))?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    pub(crate) fn set_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        key: &[u8],
        (given, how): (&[u8], SetXattr),
        kill_sgid: bool,
    ) -> Reply<()> {
        check_namespace(key)?;
        if given.len() > VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        let is_list = is_list(key);
        // Without entries it takes an existing one away.
        let given = if is_list { acl::normal(given)? } else { Some(given.to_vec()) };
        let object = self.object(node)?;
        let writes = [ObjectRef::Attr(object.oid())];
        self.mutating(object.touched(caller, &writes), || {
            self.check_current(node)?;
            self.set_xattr_now(ino_of(node), key, (&given, how), kill_sgid)
        })
    }

    fn set_xattr_now(
        &self,
        ino: Ino,
        key: &[u8],
        (given, how): (&Option<Vec<u8>>, SetXattr),
        kill_sgid: bool,
    ) -> Reply<()> {
        self.change(|ops| {
            check_kind(ops, ino, key)?;
            let is_there = value(ops, ino, key)?.is_some();
            match how {
                SetXattr::Create if is_there => return Err(Error::Exists),
                SetXattr::Replace if !is_there => return Err(Error::NoAttr),
                _ => {}
            }
            let mut kept = given.clone();
            if let (true, Some(access)) = (key == acl::ACCESS, given) {
                // An access list sets the mode; one that says no more than a mode is not kept.
                let nine = acl::mode(access).map_err(refusal)?;
                let mode = (ops.attrs(ino)?.mode & 0o7000) | (nine & 0o777);
                ops.set_attrs(ino, &SetAttrs { mode: Some(mode), ..SetAttrs::default() })?;
                if acl::equiv_mode(access).map_err(refusal)?.is_some() {
                    kept = None;
                }
            }
            match kept {
                Some(value) => ops.set_xattr(ino, key, &value, How::Any)?,
                None if is_there => ops.remove_xattr(ino, key)?,
                None => {}
            }
            if kill_sgid {
                let mode = Some(ops.attrs(ino)?.mode & !S_ISGID);
                ops.set_attrs(ino, &SetAttrs { mode, ..SetAttrs::default() })?;
            }
            Ok(())
        })
    }

    pub(crate) fn remove_xattr(&self, caller: Caller, node: NodeId, key: &[u8]) -> Reply<()> {
        if let Some(ticket) = Ticket::in_name(key) {
            self.gate.file_barrier(ticket);
            return Err(Errno::NODATA);
        }
        check_namespace(key)?;
        let (ino, object) = (ino_of(node), self.object(node)?);
        let writes = [ObjectRef::Attr(object.oid())];
        self.mutating(object.touched(caller, &writes), || {
            self.check_current(node)?;
            self.change(|ops| {
                check_kind(ops, ino, key)?;
                match ops.remove_xattr(ino, key) {
                    // Removing a list that is not there is no error on the file systems of Linux.
                    Err(Error::NoAttr) if is_list(key) => Ok(()),
                    other => other,
                }
            })
        })
    }
}

fn is_list(key: &[u8]) -> bool {
    key == acl::ACCESS || key == acl::DEFAULT
}

/// Only files and directories have attributes of users.
fn check_kind(ops: &mut Ops<'_>, ino: Ino, key: &[u8]) -> Result<()> {
    let kind = ops.attrs(ino)?.kind;
    let is_fine = !key.starts_with(b"user.") || matches!(kind, Kind::File | Kind::Dir);
    if is_fine { Ok(()) } else { Err(refusal(Errno::PERM)) }
}
