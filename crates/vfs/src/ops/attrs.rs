//! stat, chmod, chown, utimens, truncate, readlink.

use crate::acl;
use crate::api::{Attr, Caller, Reply, Seek, SetAttr, SetTime, StatFs};
use crate::node::Body;
use crate::view::{Ids, State, View};
use crate::volume::errno;
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::{Kind, NodeId, Time};
use systx_store::io::Fixed;
use systx_txn::ObjectRef;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;
/// File capabilities.
const CAPS: &[u8] = b"security.capability";

impl View {
    pub(super) fn statfs_of(&self) -> Reply<StatFs> {
        let fs = self.tree().fs_info().map_err(errno)?;
        let narrow = |v: u64| u32::try_from(v).unwrap_or(u32::MAX);
        Ok(StatFs {
            blocks: fs.blocks,
            bfree: fs.bfree,
            bavail: fs.bavail,
            files: fs.files,
            ffree: fs.ffree,
            bsize: narrow(fs.bsize),
            namelen: narrow(fs.namelen),
            frsize: narrow(fs.bsize),
        })
    }

    pub(super) fn getattr_of(&self, node: NodeId) -> Reply<Attr> {
        let (attr, known) = {
            let mut st = self.state.lock();
            self.take_up_unless_building(&mut st, node)?;
            let node = st.node(node)?;
            (self.shown(&node.attr), node.base.is_some())
        };
        if known && attr.kind == Kind::File && attr.size > 0 && attr.blocks == 0 {
            // Whoever is told that takes it for empty without reading it. So it counts as read, as
            // far as that is possible: plain programs may have stored something in a mapping, and
            // then this transaction loses.
            let _ = self.seek_in(node, 0, Seek::Data);
        }
        Ok(attr)
    }

    pub(super) fn birth_of(&self, node: NodeId) -> Reply<Option<Time>> {
        let st = self.state.lock();
        Ok(match &st.node(node)?.base {
            Some(base) => base.stamp.id.born(),
            // Told of new objects where it is told of others.
            None => st.base(NodeId::ROOT)?.stamp.id.born().and(st.births.get(&node).copied()),
        })
    }

    pub(super) fn setattr_of(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Attr> {
        let now = self.now();
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::To(t) => self.vol.times.nearest(&*self.spill, t),
        };
        let (atime, mtime) = (set.atime.map(time), set.mtime.map(time));
        let mut st = self.state.lock();
        self.check_writable(&st, node)?;
        self.check_owner(&st, node, &set)?;
        let named = set.mode.is_some() || set.is_chown();
        if named || set.atime.is_some() || set.mtime.is_some() {
            self.check_fixed(&mut st, node, Fixed::No)?;
            self.write_attr(&mut st, node)?;
        }
        if let Some(size) = set.size {
            drop(st);
            self.truncate_to(node, size, set.kill_suidgid)?;
            st = self.state.lock();
        }
        if set.is_chown() {
            self.change_owner(&mut st, caller, node, set)?;
        }
        if let Some(mode) = set.mode {
            self.change_mode(&mut st, node, mode)?;
        }
        let n = st.node_mut(node)?;
        if let Some(t) = atime {
            n.attr.atime = t;
            n.dirty.atime = true;
        }
        if let Some(t) = mtime {
            n.attr.mtime = t;
            n.dirty.mtime = true;
        }
        n.attr.ctime = now;
        Ok(self.shown(&n.attr))
    }

    /// What only the owner may do, of a file of another that a user may write: the view shows it as
    /// the
    /// user's own ([`View::shown`]), so the kernel has not refused it.
    fn check_owner(&self, st: &State, node: NodeId, set: &SetAttr) -> Reply<()> {
        let now = Some(SetTime::Now);
        let timed = set.atime.is_some() || set.mtime.is_some();
        // touch(1), and what opening with `O_TRUNC` brings along.
        let touched = set.size.is_some() || (set.atime, set.mtime) == (now, now);
        let owners = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let owners = owners || (timed && !touched);
        if owners && self.is_of_another(st, node)? { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Whether it is another user's, in the view of an ordinary one.
    pub(super) fn is_of_another(&self, st: &State, node: NodeId) -> Reply<bool> {
        let owner = st.node(node)?.attr.uid;
        Ok(matches!(self.ids, Ids::Single { uid, .. } if uid != owner))
    }

    fn change_owner(
        &self,
        st: &mut State,
        caller: Caller,
        node: NodeId,
        set: SetAttr,
    ) -> Reply<()> {
        self.drop_caps(st, node)?;
        let n = st.node_mut(node)?;
        let foreign = caller.uid != 0 && caller.gid != n.attr.gid;
        n.attr.uid = set.uid.unwrap_or(n.attr.uid);
        n.attr.gid = set.gid.unwrap_or(n.attr.gid);
        n.dirty.owner = true;
        // chown(2) of anything but a directory drops the set-id bits, whoever asks
        // (fs/open.c `chown_common`).
        if n.attr.kind != Kind::Dir {
            self.drop_setid(st, node, foreign)?;
        }
        Ok(())
    }

    fn change_mode(&self, st: &mut State, node: NodeId, mode: u32) -> Reply<()> {
        let access = self.xattr(st, node, acl::ACCESS)?;
        let n = st.node_mut(node)?;
        n.attr.mode = mode & 0o7777;
        n.dirty.mode = true;
        if let Some(access) = access {
            let value = acl::chmod(&access, mode)?;
            let xattrs = n.xattrs.get_or_insert_default();
            xattrs.insert(Box::from(acl::ACCESS), Some(value));
        }
        Ok(())
    }

    /// Clears the set-id bits as a change of owner, or a write by somebody without privilege, does.
    ///
    /// `foreign`: whether the caller is neither privileged nor in the file's group, who loses a
    /// set-group-id bit also where nobody of the group may execute the file (fs/attr.c
    /// `setattr_should_drop_sgid`).
    pub(super) fn drop_setid(&self, st: &mut State, node: NodeId, foreign: bool) -> Reply<()> {
        let n = st.node_mut(node)?;
        let mut mode = n.attr.mode & !S_ISUID;
        if foreign || mode & S_IXGRP != 0 {
            mode &= !S_ISGID;
        }
        if mode != n.attr.mode {
            n.attr.mode = mode;
            n.dirty.mode = true;
        }
        Ok(())
    }

    /// Removes file capabilities, as every change of content or owner does.
    pub(super) fn drop_caps(&self, st: &mut State, node: NodeId) -> Reply<()> {
        let n = st.node(node)?;
        if n.caps_gone || n.attr.kind != Kind::File {
            return Ok(());
        }
        if self.xattr(st, node, CAPS)?.is_some() {
            let n = st.node_mut(node)?;
            n.xattrs.get_or_insert_default().insert(Box::from(CAPS), None);
        }
        st.node_mut(node)?.caps_gone = true;
        Ok(())
    }

    /// Has the commit set the file capabilities that are there: it writes as any program does,
    /// which
    /// takes them away.
    pub(super) fn hold_caps(&self, st: &mut State, node: NodeId) -> Reply<()> {
        let n = st.node(node)?;
        let said = n.xattrs.as_ref().is_some_and(|x| x.contains_key(CAPS));
        if said || n.caps_gone || n.attr.kind != Kind::File {
            return Ok(());
        }
        match self.xattr(st, node, CAPS)? {
            None => st.node_mut(node)?.caps_gone = true,
            caps => {
                let n = st.node_mut(node)?;
                n.xattrs.get_or_insert_default().insert(Box::from(CAPS), caps);
            }
        }
        Ok(())
    }

    /// Time stamps after a change of content.
    pub(super) fn touch(
        &self,
        st: &mut State,
        node: NodeId,
        len: u64,
        allocated: u64,
    ) -> Reply<()> {
        let now: Time = self.now();
        let n = st.node_mut(node)?;
        n.attr.size = len;
        n.attr.blocks = allocated.div_ceil(512);
        n.attr.mtime = now;
        n.attr.ctime = now;
        n.dirty.mtime = true;
        Ok(())
    }

    /// Objects of other file systems show through as places, not to be changed.
    pub(super) fn check_writable(&self, st: &State, node: NodeId) -> Reply<()> {
        self.alive()?;
        match &st.node(node)?.base {
            Some(base) if base.foreign => Err(Errno::ROFS),
            _ => Ok(()),
        }
    }

    /// That nothing keeps an object from being changed: at most `bearable` does.
    pub(super) fn check_fixed(&self, st: &mut State, node: NodeId, bearable: Fixed) -> Reply<()> {
        let Some(base) = &st.node(node)?.base else { return Ok(()) };
        let fixed = match base.fixed {
            Some(fixed) => fixed,
            None => {
                let (dir, name) = self.backing_place(st, node)?;
                let fixed = match self.tree().fixed(&dir, &name) {
                    Ok(fixed) => fixed,
                    // It is found at the commit what has become of it.
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Fixed::No,
                    Err(e) => return Err(errno(e)),
                };
                if let Some(base) = &mut st.node_mut(node)?.base {
                    base.fixed = Some(fixed);
                }
                fixed
            }
        };
        if fixed == Fixed::No || fixed == bearable { Ok(()) } else { Err(Errno::PERM) }
    }

    /// That a name in a directory may be made; with `goes`, that one may go.
    pub(super) fn check_names(&self, st: &mut State, dir: NodeId, goes: bool) -> Reply<()> {
        let bearable = if goes { Fixed::No } else { Fixed::Append };
        self.check_fixed(st, dir, bearable)
    }

    pub(super) fn readlink_of(&self, node: NodeId) -> Reply<Vec<u8>> {
        let mut st = self.state.lock();
        if let Body::Symlink(Some(target)) = &st.node(node)?.body {
            return Ok(target.to_vec());
        }
        let (dir, name) = self.backing_place(&st, node)?;
        let oid = st.base(node)?.oid();
        self.work.read_of(ObjectRef::Pages { oid, first: 0, last: 0 })?;
        let target = self.tree().read_link(&dir, &name).map_err(errno)?;
        self.still_one_moment()?;
        st.node_mut(node)?.body = Body::Symlink(Some(Arc::new(target.clone())));
        Ok(target)
    }
}
