//! stat, chmod, chown, utimens, truncate, readlink; extended attributes, of which POSIX ACLs have a
//! meaning of their own here.

use crate::acl;
use crate::api::{Attr, Caller, Reply, Seek, SetAttr, SetTime, SetXattr, StatFs};
use crate::node::Body;
use crate::state::State;
use crate::view::View;
use crate::volume::errno;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::Arc;
use systx_base::{Kind, NodeId, Time};
use systx_store::io::Fixed;
use systx_txn::ObjectRef;

/// Longest value of an extended attribute (`XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 65_536;
/// File capabilities.
const CAPS: &[u8] = b"security.capability";

impl View {
    pub(super) fn statfs_of(&self) -> Reply<StatFs> {
        let fs = self.reach().tree().fs_info().map_err(errno)?;
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
            self.below.take_up_unless_building(&mut st, node)?;
            let node = st.node(node)?;
            (self.shown(&st, node), node.base.is_some())
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
            Some(base) => base.stamp.id().born(),
            // Told of new objects where it is told of others.
            None => st.base(NodeId::ROOT)?.stamp.id().born().and(st.births.get(&node).copied()),
        })
    }

    pub(super) fn setattr_of(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Attr> {
        let reach = self.reach();
        let now = reach.now();
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::To(t) => reach.vol.times.nearest(&*self.spill, t),
        };
        let (atime, mtime) = (set.atime.map(time), set.mtime.map(time));
        let mut st = self.state.lock();
        reach.check_writable(&st, node)?;
        self.check_owner(&st, node, &set)?;
        let named = set.mode.is_some() || set.is_chown();
        if named || set.atime.is_some() || set.mtime.is_some() {
            reach.check_fixed(&mut st, node, Fixed::No)?;
            self.below.write_attr(&mut st, node)?;
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
        Ok(self.shown(&st, st.node(node)?))
    }

    /// What only the owner may do, of a file of another that a user may write: the view shows it as
    /// the user's own ([`Ids::shown`](crate::ids::Ids::shown)), so the kernel has not refused it.
    fn check_owner(&self, st: &State, node: NodeId, set: &SetAttr) -> Reply<()> {
        let now = Some(SetTime::Now);
        let timed = set.atime.is_some() || set.mtime.is_some();
        // touch(1), and what opening with `O_TRUNC` brings along.
        let touched = set.size.is_some() || (set.atime, set.mtime) == (now, now);
        let owners = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let owners = owners || (timed && !touched);
        if owners && self.ids.are_of_another(&st.node(node)?.attr) {
            Err(Errno::PERM)
        } else {
            Ok(())
        }
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
            n.drop_setid(foreign);
        }
        Ok(())
    }

    fn change_mode(&self, st: &mut State, node: NodeId, mode: u32) -> Reply<()> {
        let access = self.below.xattr(st, node, acl::ACCESS)?;
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

    /// Removes file capabilities, as every change of content or owner does.
    pub(super) fn drop_caps(&self, st: &mut State, node: NodeId) -> Reply<()> {
        let n = st.node(node)?;
        if n.caps_gone || n.attr.kind != Kind::File {
            return Ok(());
        }
        if self.below.xattr(st, node, CAPS)?.is_some() {
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
        match self.below.xattr(st, node, CAPS)? {
            None => st.node_mut(node)?.caps_gone = true,
            caps => {
                let n = st.node_mut(node)?;
                n.xattrs.get_or_insert_default().insert(Box::from(CAPS), caps);
            }
        }
        Ok(())
    }

    pub(super) fn readlink_of(&self, node: NodeId) -> Reply<Vec<u8>> {
        let reach = self.reach();
        let mut st = self.state.lock();
        if let Body::Symlink(Some(target)) = &st.node(node)?.body {
            return Ok(target.to_vec());
        }
        let (dir, name) = reach.backing_place(&st, node)?;
        let oid = st.base(node)?.oid();
        reach.work.read_of(ObjectRef::Pages { oid, first: 0, last: 0 })?;
        let target = reach.tree().read_link(&dir, &name).map_err(errno)?;
        reach.still_one_moment()?;
        st.node_mut(node)?.body = Body::Symlink(Some(Arc::new(target.clone())));
        Ok(target)
    }

    // ---- extended attributes ----------------------------------------------------------------

    pub(super) fn xattr_of(&self, node: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        let mut st = self.state.lock();
        match self.below.xattr(&mut st, node, key)? {
            Some(value) => Ok(value),
            None => self.check_namespace(key).and(Err(Errno::NODATA)),
        }
    }

    /// That the file system has attributes of that kind: what it could not store does not exist in
    /// a view either.
    fn check_namespace(&self, key: &[u8]) -> Reply<()> {
        let io = &self.reach().vol.tree;
        match io.get_xattr(&io.root(), b"", key).map_err(errno) {
            // No such namespace, or only the name of one.
            Err(refused @ (Errno::OPNOTSUPP | Errno::INVAL)) => Err(refused),
            _ => Ok(()),
        }
    }

    pub(super) fn xattr_names(&self, node: NodeId) -> Reply<Vec<u8>> {
        let reach = self.reach();
        let mut st = self.state.lock();
        self.below.take_up(&mut st, node)?;
        let n = st.node(node)?;
        let mut names = BTreeSet::new();
        if n.base.as_ref().is_some_and(|b| !b.foreign) {
            let (dir, name) = reach.backing_place(&st, node)?;
            match reach.tree().list_xattr(&dir, &name) {
                Ok(list) => names.extend(list),
                Err(e) => match errno(e) {
                    Errno::OPNOTSUPP => {}
                    other => return Err(other),
                },
            }
            reach.still_one_moment()?;
        }
        for (key, value) in n.xattrs.iter().flat_map(|x| x.iter()) {
            if value.is_some() {
                names.insert(key.to_vec());
            } else {
                names.remove(&**key);
            }
        }
        let mut out = Vec::new();
        for name in names {
            out.extend_from_slice(&name);
            out.push(0);
        }
        Ok(out)
    }

    pub(super) fn change_xattr(
        &self,
        node: NodeId,
        key: &[u8],
        set: Option<(&[u8], SetXattr)>,
        kill_sgid: bool,
    ) -> Reply<()> {
        let reach = self.reach();
        let mut st = self.state.lock();
        reach.check_writable(&st, node)?;
        reach.check_fixed(&mut st, node, Fixed::No)?;
        let kind = st.node(node)?.attr.kind;
        if key.starts_with(b"user.") && !matches!(kind, Kind::File | Kind::Dir) {
            return Err(Errno::PERM);
        }
        if (key == acl::ACCESS || key == acl::DEFAULT)
            && self.ids.are_of_another(&st.node(node)?.attr)
        {
            return Err(Errno::PERM);
        }
        let exists = self.below.xattr(&mut st, node, key)?.is_some();
        if !exists {
            self.check_namespace(key)?;
        }
        let value = match set {
            Some((_, SetXattr::Create)) if exists => return Err(Errno::EXIST),
            Some((_, SetXattr::Replace)) if !exists => return Err(Errno::NODATA),
            Some((value, _)) if value.len() > VALUE_MAX => return Err(Errno::TOOBIG),
            Some((value, _)) => Some(value.to_vec()),
            // Removing a list that is not there is no error on the file systems of Linux.
            None if !exists && (key == acl::ACCESS || key == acl::DEFAULT) => return Ok(()),
            None if !exists => return Err(Errno::NODATA),
            None => None,
        };
        self.below.taken.bytes(key.len() + value.as_ref().map_or(0, Vec::len))?;
        self.below.write_attr(&mut st, node)?;
        let value = match value {
            Some(acl) if key == acl::ACCESS || key == acl::DEFAULT => acl::normal(&acl)?,
            value => value,
        };
        let value = match (key == acl::ACCESS, value) {
            (true, Some(acl)) => self.set_access_acl(&mut st, node, acl)?,
            (_, value) => value,
        };
        let now = reach.now();
        let n = st.node_mut(node)?;
        if kill_sgid {
            n.attr.mode &= !0o2000;
            n.dirty.mode = true;
        }
        n.attr.ctime = now;
        if key == CAPS {
            n.caps_gone = value.is_none();
        }
        n.xattrs.get_or_insert_default().insert(Box::from(key), value);
        Ok(())
    }

    /// An access ACL sets the mode; one that says no more than a mode is not kept.
    fn set_access_acl(&self, st: &mut State, node: NodeId, acl: Vec<u8>) -> Reply<Option<Vec<u8>>> {
        let n = st.node_mut(node)?;
        let mode = acl::mode(&acl)?;
        n.attr.mode = (n.attr.mode & 0o7000) | (mode & 0o777);
        n.dirty.mode = true;
        Ok(if acl::equiv_mode(&acl)?.is_some() { None } else { Some(acl) })
    }
}
