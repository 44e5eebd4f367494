//! The requests of a view, by what they are about.

mod attrs;
mod data;
mod list;
pub(crate) mod locks;
mod names;
mod xattrs;

use crate::api::*;
use crate::locks::Wait;
use crate::view::View;
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::{Kind, NodeId};

impl Requests for View {
    fn root(&self) -> Reply<Entry> {
        let st = self.state.lock();
        self.entry(&st, NodeId::ROOT)
    }
    fn lookup(&self, _caller: Caller, parent: NodeId, name: &[u8]) -> Reply<Option<Entry>> {
        let mut st = self.state.lock();
        match self.find(&mut st, parent, name)? {
            Some(node) => self.handed_out(&mut st, node).map(Some),
            None => Ok(None),
        }
    }
    fn forget(&self, node: NodeId, count: u64) {
        // Nodes are the record of what was read: they live until the transaction ends.
        self.state.lock().forget_lookups(node, count);
    }
    fn getattr(&self, node: NodeId) -> Reply<Attr> {
        self.getattr_of(node)
    }
    fn setattr(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Attr> {
        self.setattr_of(caller, node, set)
    }
    fn readlink(&self, node: NodeId) -> Reply<Vec<u8>> {
        self.readlink_of(node)
    }
    fn mknod(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        new: NewAttr,
        rdev: u64,
    ) -> Reply<Entry> {
        self.make(caller, parent, name, names::Making::plain(kind, rdev), new)
    }
    fn mkdir(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewAttr) -> Reply<Entry> {
        self.make(caller, parent, name, names::Making::plain(Kind::Dir, 0), new)
    }
    fn symlink(&self, caller: Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Reply<Entry> {
        let new = NewAttr { mode: 0o777, umask: 0 };
        self.make(caller, parent, name, names::Making::link_to(target), new)
    }
    fn link(&self, _caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        self.link_to(node, parent, name)
    }
    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.remove(caller, parent, name, false)
    }
    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.remove(caller, parent, name, true)
    }
    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()> {
        self.rename_to(caller, from, to, how)
    }
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewAttr,
        exclusive: bool,
    ) -> Reply<Entry> {
        if !exclusive {
            let mut st = self.state.lock();
            if let Some(node) = self.find(&mut st, parent, name)? {
                self.entry(&st, node)?.opens_unchecked(caller)?;
                return self.handed_out(&mut st, node);
            }
        }
        self.make(caller, parent, name, names::Making::plain(Kind::File, 0), new)
    }
    fn tmpfile(&self, caller: Caller, parent: NodeId, new: NewAttr) -> Reply<Entry> {
        self.make_unnamed(caller, parent, new)
    }
    fn waits(&self) -> bool {
        self.waits_for_commit()
    }
    fn worn_listing(&self, file: NodeId) -> Option<NodeId> {
        self.worn_listing_of(file)
    }
    fn read(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        self.read_from(node, offset, buf)
    }
    fn write(&self, node: NodeId, offset: u64, data: &[u8], kill_suidgid: bool) -> Reply<usize> {
        self.write_to(node, offset, data, kill_suidgid)
    }
    fn write_back(&self, node: NodeId, offset: u64, data: &[u8]) -> Reply<()> {
        self.write_back_to(node, offset, data)
    }
    fn fallocate(&self, node: NodeId, how: Fallocate, offset: u64, len: u64) -> Reply<()> {
        self.fallocate_in(node, how, offset, len)
    }
    fn lseek(&self, node: NodeId, offset: u64, how: Seek) -> Reply<u64> {
        self.seek_in(node, offset, how)
    }
    fn copy_file_range(&self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Reply<u64> {
        self.copy_between(from, to, len)
    }
    fn readdir(
        &self,
        node: NodeId,
        from: u64,
        attributes: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Reply<()> {
        self.list_dir(node, from, attributes, sink)
    }
    fn getxattr(&self, node: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        let mut st = self.state.lock();
        self.xattr(&mut st, node, key)?.ok_or(Errno::NODATA)
    }
    fn listxattr(&self, node: NodeId) -> Reply<Vec<u8>> {
        self.xattr_names(node)
    }
    fn setxattr(
        &self,
        _caller: Caller,
        node: NodeId,
        key: &[u8],
        value: &[u8],
        how: SetXattr,
        kill_sgid: bool,
    ) -> Reply<()> {
        self.change_xattr(node, key, Some((value, how)), kill_sgid)
    }
    fn removexattr(&self, _caller: Caller, node: NodeId, key: &[u8]) -> Reply<()> {
        self.change_xattr(node, key, None, false)
    }
    fn statfs(&self) -> Reply<StatFs> {
        let fs = self.io().fs_info().map_err(crate::volume::errno)?;
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
    fn getlk(&self, node: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        self.test_lock(node, lock)
    }
    fn setlk(&self, node: NodeId, lock: Lock) -> Reply<()> {
        self.set_lock(node, lock, None)
    }
    fn setlkw(&self, node: NodeId, lock: Lock, wait: &Arc<Wait>) -> Reply<()> {
        self.set_lock(node, lock, Some(wait))
    }
    fn inode_flags(&self, _node: NodeId) -> Reply<u32> {
        // Flags like append-only or no-copy-on-write are not carried into views; none are set.
        Ok(0)
    }
}
