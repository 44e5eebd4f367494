//! Names come and go: create, link, unlink, rename.
//!
//! Each change is: resolve the old meaning of every name involved (which records it as read and
//! remembers what the backing directory has there), record the write, then change the table.  All
//! of it happens under the view's lock, so that a request is atomic within the view.

use crate::acl;
use crate::api::{Attr, Caller, Entry, NewAttr, RenameHow, Reply};
use crate::below::NAME_MAX;
use crate::client;
use crate::content::Content;
use crate::node::{Body, Dirty, Node};
use crate::state::State;
use crate::view::View;
use crate::volume::errno;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, NodeId};
use systx_store::io::Fixed;

const S_ISGID: u32 = 0o2000;
/// Most names that one file may have; what ext4 allows, the smallest of the common file systems.
const LINKS_MAX: u32 = 65_000;

/// What is made.
pub(super) struct Making<'a> {
    kind: Kind,
    rdev: u64,
    target: &'a [u8],
}

impl<'a> Making<'a> {
    pub fn plain(kind: Kind, rdev: u64) -> Making<'static> {
        Making { kind, rdev, target: b"" }
    }
    pub fn link_to(target: &'a [u8]) -> Making<'a> {
        Making { kind: Kind::Symlink, rdev: 0, target }
    }

    fn body(&self) -> Body {
        match self.kind {
            Kind::File => {
                Body::File(Some(Arc::new(Mutex::new(rank::CONTENT, Content::new_file()))))
            }
            Kind::Dir => Body::Dir(Box::default()),
            Kind::Symlink => Body::Symlink(Some(Arc::new(self.target.to_vec()))),
            _ => Body::Special,
        }
    }
}

impl View {
    pub(super) fn find_name(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
    ) -> Reply<Option<Entry>> {
        let mut st = self.state.lock();
        let glimpsed = self.below.looked_up_by_builder(&mut st, caller, (parent, name));
        let found = glimpsed.unwrap_or_else(|| {
            self.note_use(&mut st, caller, (parent, name));
            self.below.find(&mut st, parent, name)
        })?;
        found.map(|node| self.handed_out(&mut st, node)).transpose()
    }

    /// Before a look-up: whether it asks for a file that its process was told by name only.
    fn note_use(&self, st: &mut State, caller: Caller, (dir, name): (NodeId, &[u8])) {
        let Ok(Some(listed)) = st.only_listed(dir, name) else { return };
        let lister = st.dir(dir).map_or(0, |dir| dir.lister);
        if listed.kind != Kind::Dir && client::are_of_one_process(lister, caller.tid) {
            st.habits.asked(lister);
        }
    }

    pub(super) fn make_file(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewAttr,
        exclusive: bool,
    ) -> Reply<Entry> {
        if !exclusive {
            let mut st = self.state.lock();
            if let Some(node) = self.below.find(&mut st, parent, name)? {
                self.entry(&st, node)?.opens_unchecked(caller)?;
                return self.handed_out(&mut st, node);
            }
        }
        self.make(caller, parent, name, Making::plain(Kind::File, 0), new)
    }

    pub(super) fn make(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        what: Making<'_>,
        new: NewAttr,
    ) -> Reply<Entry> {
        let reach = self.reach();
        let mut st = self.state.lock();
        self.check_name(&st, parent, name)?;
        let child = self.below.child(&mut st, parent, name)?;
        if child.now.is_some() {
            return Err(Errno::EXIST);
        }
        if reach.vol.overlay.is_some() && what.kind == Kind::CharDev && what.rdev == 0 {
            // What an overlay takes for a whiteout.
            return Err(Errno::PERM);
        }
        if what.target.len() > reach.vol.tree.longest_target() {
            // Or the commit could not make it.
            return Err(Errno::NAMETOOLONG);
        }
        reach.check_names(&mut st, parent, false)?;
        self.below.write_entry(&mut st, parent, name)?;
        let node = self.new_node(&mut st, caller, parent, &what, new)?;
        st.bind((parent, name), Some(node), reach.now())?;
        if what.kind == Kind::Dir {
            st.count_subdir(parent, 1)?;
        }
        self.handed_out(&mut st, node)
    }

    pub(super) fn make_unnamed(
        &self,
        caller: Caller,
        parent: NodeId,
        new: NewAttr,
    ) -> Reply<Entry> {
        let mut st = self.state.lock();
        self.reach().work.alive()?;
        let what = Making::plain(Kind::File, 0);
        let node = self.new_node(&mut st, caller, parent, &what, new)?;
        st.node_mut(node)?.attr.nlink = 0;
        self.handed_out(&mut st, node)
    }

    /// The object itself, without a name: owner, mode and ACLs as Linux derives them from the
    /// directory (fs/inode.c `inode_init_owner`, fs/posix_acl.c `posix_acl_create`).
    fn new_node(
        &self,
        st: &mut State,
        caller: Caller,
        parent: NodeId,
        what: &Making<'_>,
        new: NewAttr,
    ) -> Reply<NodeId> {
        self.below.taken.object(st.nodes.len())?;
        self.below.taken.bytes(what.target.len())?;
        let up = st.node(parent)?.attr;
        let is_dir = what.kind == Kind::Dir;
        let inherits_group = up.mode & S_ISGID != 0;
        let mut mode = new.mode & 0o7777;
        if inherits_group && is_dir {
            mode |= S_ISGID;
        }
        let mut xattrs = BTreeMap::new();
        let default = match what.kind {
            Kind::Symlink => None,
            _ => self.below.xattr(st, parent, acl::DEFAULT)?,
        };
        match default {
            Some(default) => {
                let inherited = acl::inherit(&default, mode, is_dir)?;
                mode = (mode & 0o7000) | (inherited.mode & 0o777);
                let mut put = |key: &[u8], value: Option<Vec<u8>>| {
                    if let Some(value) = value {
                        xattrs.insert(Box::from(key), Some(value));
                    }
                };
                put(acl::ACCESS, inherited.access);
                put(acl::DEFAULT, inherited.default);
            }
            None => mode &= !new.umask,
        }
        let now = self.reach().now();
        let attr = Attr {
            ino: st.new_ino(),
            kind: what.kind,
            mode,
            nlink: if is_dir { 2 } else { 1 },
            uid: caller.uid,
            gid: if inherits_group { up.gid } else { caller.gid },
            rdev: what.rdev,
            size: what.target.len() as u64,
            blocks: 0,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
        };
        let node = st.nodes.add(Node {
            base: None,
            attr,
            dirty: Dirty { mode: true, owner: true, atime: true, mtime: !is_dir },
            place: None,
            xattrs: (!xattrs.is_empty()).then(|| Box::new(xattrs)),
            body: what.body(),
            caps_gone: true,
            anchored: true,
        });
        st.births.insert(node, now);
        Ok(node)
    }

    pub(super) fn link_to(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        let reach = self.reach();
        let mut st = self.state.lock();
        self.check_name(&st, parent, name)?;
        let attr = st.node(node)?.attr;
        // Of others' files the kernel lets link what may be written (`protected_hardlinks`), and
        // has been shown other owners than the real ones.
        let others = self.ids.are_of_another(&attr);
        let barred = others && (attr.kind != Kind::File || !self.ids.may_write(&attr));
        if attr.kind == Kind::Dir || barred {
            return Err(Errno::PERM);
        }
        if attr.nlink >= LINKS_MAX {
            return Err(Errno::MLINK);
        }
        if self.below.child(&mut st, parent, name)?.now.is_some() {
            return Err(Errno::EXIST);
        }
        reach.check_names(&mut st, parent, false)?;
        reach.check_fixed(&mut st, node, Fixed::No)?;
        reach.check_project(&mut st, node, parent)?;
        self.below.write_entry(&mut st, parent, name)?;
        let now = reach.now();
        st.bind((parent, name), Some(node), now)?;
        let attr = &mut st.node_mut(node)?.attr;
        attr.nlink += 1;
        attr.ctime = now;
        self.handed_out(&mut st, node)
    }

    pub(super) fn remove(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        dir: bool,
    ) -> Reply<()> {
        let reach = self.reach();
        let mut st = self.state.lock();
        let node = self.below.find(&mut st, parent, name)?.ok_or(Errno::NOENT)?;
        let is_dir = st.node(node)?.attr.kind == Kind::Dir;
        match (dir, is_dir) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            _ => {}
        }
        self.ids.check_sticky(caller, &st.node(parent)?.attr, &st.node(node)?.attr)?;
        self.check_local(&st, node)?;
        reach.check_names(&mut st, parent, true)?;
        reach.check_fixed(&mut st, node, Fixed::No)?;
        if is_dir && !self.below.is_empty(&mut st, node)? {
            return Err(Errno::NOTEMPTY);
        }
        self.below.write_entry(&mut st, parent, name)?;
        let now = reach.now();
        st.bind((parent, name), None, now)?;
        st.lose_name(node, parent, now)
    }

    pub(super) fn rename_to(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()> {
        let reach = self.reach();
        let mut st = self.state.lock();
        self.check_name(&st, to.0, to.1)?;
        let node = self.below.find(&mut st, from.0, from.1)?.ok_or(Errno::NOENT)?;
        let target = self.below.find(&mut st, to.0, to.1)?;
        match (how, target) {
            (how, Some(_)) if how.keeps_target() => return Err(Errno::EXIST),
            (RenameHow::Exchange, None) => return Err(Errno::NOENT),
            // rename(2): if both names are hard links to one file, nothing happens.
            (_, Some(t)) if t == node => return Ok(()),
            _ => {}
        }
        if st.is_above(node, to.0)? {
            return Err(Errno::INVAL);
        }
        self.ids.check_sticky(caller, &st.node(from.0)?.attr, &st.node(node)?.attr)?;
        self.check_local(&st, node)?;
        reach.check_names(&mut st, from.0, true)?;
        reach.check_names(&mut st, to.0, target.is_some())?;
        reach.check_fixed(&mut st, node, Fixed::No)?;
        if let Some(target) = target {
            reach.check_fixed(&mut st, target, Fixed::No)?;
            if st.is_above(target, from.0)? {
                let exchange = how == RenameHow::Exchange;
                return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
            }
            self.ids.check_sticky(caller, &st.node(to.0)?.attr, &st.node(target)?.attr)?;
            self.check_local(&st, target)?;
            if how != RenameHow::Exchange {
                self.check_replace(&mut st, node, target, how)?;
            }
        }
        self.check_movable(&mut st, (node, from.0), to.0, how)?;
        if let (RenameHow::Exchange, Some(target)) = (how, target) {
            self.check_movable(&mut st, (target, to.0), from.0, how)?;
        }
        self.below.write_entry(&mut st, from.0, from.1)?;
        self.below.write_entry(&mut st, to.0, to.1)?;
        let now = reach.now();
        if how == RenameHow::Exchange {
            let target = target.ok_or(Errno::NOENT)?;
            st.bind(from, Some(target), now)?;
            st.bind(to, Some(node), now)?;
            st.count_move(node, from.0, to.0)?;
            st.count_move(target, to.0, from.0)?;
        } else {
            st.bind(from, None, now)?;
            st.bind(to, Some(node), now)?;
            if let Some(target) = target {
                st.lose_name(target, to.0, now)?;
            }
            st.count_move(node, from.0, to.0)?;
        }
        st.node_mut(node)?.attr.ctime = now;
        if how.leaves_whiteout() {
            let what = Making::plain(Kind::CharDev, 0);
            let hole =
                self.new_node(&mut st, caller, from.0, &what, NewAttr { mode: 0, umask: 0 })?;
            st.bind(from, Some(hole), now)?;
        }
        Ok(())
    }

    // ---- rules ------------------------------------------------------------------------------

    fn check_name(&self, st: &State, parent: NodeId, name: &[u8]) -> Reply<()> {
        let up = st.node(parent)?;
        if up.attr.kind != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        if up.attr.nlink == 0 {
            return Err(Errno::NOENT);
        }
        if up.base.as_ref().is_some_and(|b| b.foreign) {
            return Err(Errno::ROFS);
        }
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Errno::INVAL);
        }
        if name.len() > NAME_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    /// A place where another file system is mounted is not the volume's to remove or move.
    fn check_local(&self, st: &State, node: NodeId) -> Reply<()> {
        let foreign = st.node(node)?.base.as_ref().is_some_and(|b| b.foreign);
        if foreign || node == NodeId::ROOT { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// What the file system does not move from one directory to another.
    fn check_movable(
        &self,
        st: &mut State,
        (node, from): (NodeId, NodeId),
        to: NodeId,
        how: RenameHow,
    ) -> Reply<()> {
        if from != to {
            self.reach().check_project(st, node, to)?;
        }
        self.check_renamed(st, node, how)
    }

    /// What an overlay file system does not rename.
    fn check_renamed(&self, st: &State, node: NodeId, how: RenameHow) -> Reply<()> {
        let reach = self.reach();
        let Some(overlay) = &reach.vol.overlay else { return Ok(()) };
        if how.leaves_whiteout() {
            return Err(Errno::INVAL);
        }
        let is_old_dir = |n: &Node| n.base.is_some() && n.attr.kind == Kind::Dir;
        if !is_old_dir(st.node(node)?) {
            return Ok(());
        }
        let (dir, name) = reach.backing_place(st, node)?;
        let movable = overlay.is_movable(reach.work.bare(&dir), &name).map_err(errno)?;
        if movable { Ok(()) } else { Err(Errno::XDEV) }
    }

    fn check_replace(
        &self,
        st: &mut State,
        node: NodeId,
        target: NodeId,
        how: RenameHow,
    ) -> Reply<()> {
        let from_dir = st.node(node)?.attr.kind == Kind::Dir;
        let to_dir = st.node(target)?.attr.kind == Kind::Dir;
        match (from_dir, to_dir) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) => {
                // An overlay looks at that first.
                self.check_renamed(st, node, how)?;
                if self.below.is_empty(st, target)? { Ok(()) } else { Err(Errno::NOTEMPTY) }
            }
            _ => Ok(()),
        }
    }
}
