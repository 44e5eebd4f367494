//! Extended attributes; POSIX ACLs are the ones that have a meaning of their own here.

use crate::acl;
use crate::api::{Reply, SetXattr};
use crate::view::{State, View};
use crate::volume::errno;
use rustix::io::Errno;
use std::collections::BTreeSet;
use systx_base::{Kind, NodeId};
use systx_store::io::Fixed;

/// Longest value (`XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 65_536;

impl View {
    pub(super) fn xattr_of(&self, node: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        let mut st = self.state.lock();
        match self.xattr(&mut st, node, key)? {
            Some(value) => Ok(value),
            None => self.check_namespace(key).and(Err(Errno::NODATA)),
        }
    }

    /// The value in this view.
    pub(super) fn xattr(&self, st: &mut State, node: NodeId, key: &[u8]) -> Reply<Option<Vec<u8>>> {
        self.take_up_unless_building(st, node)?;
        let n = st.node(node)?;
        if let Some(changed) = n.xattrs.as_ref().and_then(|x| x.get(key)) {
            return Ok(changed.clone());
        }
        match &n.base {
            Some(base) if !base.foreign => {}
            _ => return Ok(None),
        }
        if let Some(read) = n.dir().and_then(|d| d.read_xattrs.as_ref()).and_then(|x| x.get(key)) {
            return Ok(read.clone());
        }
        let (dir, name) = self.backing_place(st, node)?;
        let value = match self.tree().get_xattr(&dir, &name, key) {
            Ok(value) => Some(value),
            Err(e) => match errno(e) {
                Errno::NODATA | Errno::OPNOTSUPP => None,
                other => return Err(other),
            },
        };
        self.still_one_moment()?;
        if let Some(dir) = st.node_mut(node)?.dir_mut() {
            dir.read_xattrs.get_or_insert_default().insert(Box::from(key), value.clone());
        }
        Ok(value)
    }

    /// That the file system has attributes of that kind: what it could not store does not exist in
    /// a view either.
    fn check_namespace(&self, key: &[u8]) -> Reply<()> {
        let io = &self.vol.tree;
        match io.get_xattr(&io.root(), b"", key).map_err(errno) {
            // No such namespace, or only the name of one.
            Err(refused @ (Errno::OPNOTSUPP | Errno::INVAL)) => Err(refused),
            _ => Ok(()),
        }
    }

    pub(super) fn xattr_names(&self, node: NodeId) -> Reply<Vec<u8>> {
        let mut st = self.state.lock();
        self.take_up(&mut st, node)?;
        let n = st.node(node)?;
        let mut names = BTreeSet::new();
        if n.base.as_ref().is_some_and(|b| !b.foreign) {
            let (dir, name) = self.backing_place(&st, node)?;
            match self.tree().list_xattr(&dir, &name) {
                Ok(list) => names.extend(list),
                Err(e) => match errno(e) {
                    Errno::OPNOTSUPP => {}
                    other => return Err(other),
                },
            }
            self.still_one_moment()?;
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
        let mut st = self.state.lock();
        self.check_writable(&st, node)?;
        self.check_fixed(&mut st, node, Fixed::No)?;
        let kind = st.node(node)?.attr.kind;
        if key.starts_with(b"user.") && !matches!(kind, Kind::File | Kind::Dir) {
            return Err(Errno::PERM);
        }
        if (key == acl::ACCESS || key == acl::DEFAULT) && self.is_of_another(&st, node)? {
            return Err(Errno::PERM);
        }
        let exists = self.xattr(&mut st, node, key)?.is_some();
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
        self.taken.bytes(key.len() + value.as_ref().map_or(0, Vec::len))?;
        self.write_attr(&mut st, node)?;
        let value = match value {
            Some(acl) if key == acl::ACCESS || key == acl::DEFAULT => acl::normal(&acl)?,
            value => value,
        };
        let value = match (key == acl::ACCESS, value) {
            (true, Some(acl)) => self.set_access_acl(&mut st, node, acl)?,
            (_, value) => value,
        };
        let now = self.now();
        let n = st.node_mut(node)?;
        if kill_sgid {
            n.attr.mode &= !0o2000;
            n.dirty.mode = true;
        }
        n.attr.ctime = now;
        if key == b"security.capability" {
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
