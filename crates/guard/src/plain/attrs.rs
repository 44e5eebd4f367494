//! stat, chmod, chown, utimensat, truncate, readlink, extended attributes, statfs.

use super::identity::Acting;
use super::table::Node;
use super::{Change, Plain};
use crate::inode_locks::Ticket;
use crate::sys;
use rustix::fs::{self, AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use systx_base::{Kind, NodeId, Time};
use systx_store::real::grown;
use systx_txn::ObjectRef;
use systx_vfs::api::{Attr, Caller, Reply, SetAttr, SetTime, SetXattr, StatFs};
use systx_vfs::client;
use systx_vfs::content::PAGE;

const S_ISGID: u32 = 0o2000;
/// Set-user-id and set-group-id.
pub(super) const S_ISXID: u32 = 0o6000;
const CAPS: &[u8] = b"security.capability";

impl Plain {
    pub(super) fn getattr_of(&self, id: NodeId) -> Reply<Attr> {
        let node = self.table.node(id)?;
        let path = self.table.path(&node)?;
        let oid = node.oid();
        node.worn.store(false, Relaxed);
        self.reading(&[ObjectRef::Attr(oid), ObjectRef::Size(oid)], || sys::attr(&*path))
    }

    pub(super) fn birth_of(&self, id: NodeId) -> Reply<Option<Time>> {
        Ok(self.table.node(id)?.host.born())
    }

    pub(super) fn setattr_of(&self, caller: Caller, id: NodeId, set: SetAttr) -> Reply<Attr> {
        let node = self.table.node(id)?;
        let path = self.table.path(&node)?;
        let oid = node.oid();
        let mut writes = Vec::with_capacity(3);
        let named = set.mode.is_some() || set.is_chown();
        let timed = set.atime.is_some() || set.mtime.is_some();
        let mut attr_changes = named || timed;
        if let Some(size) = set.size {
            let now = sys::attr(&*path)?;
            let first = size.min(now.size) / PAGE;
            writes.push(ObjectRef::Size(oid));
            writes.push(ObjectRef::Pages { oid, first, last: u64::MAX });
            attr_changes |= self.loses_privileges(&node, now.mode, set.kill_suidgid);
        }
        if attr_changes {
            writes.push(ObjectRef::Attr(oid));
        }
        self.mutating(Self::touching(caller, &node, path.as_fd(), &writes), || {
            self.check_current(&node)?;
            if let Some(size) = set.size {
                let (fd, _) = self.table.writer(&node, false, self.told)?;
                let _acting = Acting::writing(caller, set.kill_suidgid)?;
                let before = sys::stat(&*fd)?.size;
                fs::ftruncate(&*fd, size)?;
                client::grew(before, size);
                node.no_caps.store(true, Relaxed);
            }
            self.change_attr(&node, caller, &*path, &set)?;
            sys::attr(&*path)
        })
    }

    /// A change of one inode.
    fn touching<'a>(
        by: Caller,
        node: &Node,
        fd: BorrowedFd<'a>,
        writes: &'a [ObjectRef<'a>],
    ) -> Change<'a> {
        // For a change of a directory the kernel keeps the lock that all its names need.
        let subject = Some(node.by(fd));
        Change { by, reads: &[], writes, subject, places: &[], may_stall: node.kind != Kind::Dir }
    }

    fn change_attr(&self, node: &Node, caller: Caller, fd: impl AsFd, set: &SetAttr) -> Reply<()> {
        if set.is_chown() {
            // A change of owner moves the blocks to another quota.
            let _acting = Acting::writing(caller, false)?;
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            let before = sys::attr(&fd)?;
            fs::chownat(&fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
            // A set-group-id bit without the right to execute goes only where the caller is not in
            // that group, and the kernel looks at the groups of this process.
            let foreign = caller.uid != 0 && caller.gid != before.gid;
            if node.kind == Kind::File && before.mode & S_ISGID != 0 && foreign {
                fs::chmod(sys::path_of(&fd), Mode::from_raw_mode(before.mode & 0o7777 & !S_ISXID))?;
            }
            node.no_caps.store(true, Relaxed);
        }
        if let Some(mode) = set.mode {
            fs::chmod(sys::path_of(&fd), Mode::from_raw_mode(mode & 0o7777))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            fs::utimensat(&fd, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    /// A file's capabilities.
    pub(super) fn caps_of(&self, node: &Node) -> Option<Vec<u8>> {
        if node.no_caps.load(Relaxed) { None } else { self.raw_xattr(node, CAPS).ok() }
    }

    /// Sets a file's capabilities.
    pub(super) fn give_caps(&self, node: &Node, caps: &[u8]) -> Reply<()> {
        let path = self.table.path(node)?;
        fs::setxattr(sys::path_of(&*path).as_str(), CAPS, caps, XattrFlags::empty())
    }

    /// Whether a change of the content takes set-id bits or file capabilities away, which is a
    /// change of the attributes.
    pub(super) fn loses_privileges(&self, node: &Node, mode: u32, kill_suidgid: bool) -> bool {
        if kill_suidgid && mode & S_ISXID != 0 {
            return true;
        }
        if node.no_caps.load(Relaxed) {
            return false;
        }
        let has_caps = self.raw_xattr(node, CAPS).is_ok();
        node.no_caps.store(!has_caps, Relaxed);
        has_caps
    }

    pub(super) fn readlink_of(&self, id: NodeId) -> Reply<Vec<u8>> {
        let node = self.table.node(id)?;
        let path = self.table.path(&node)?;
        self.reading(&[ObjectRef::Pages { oid: node.oid(), first: 0, last: 0 }], || {
            Ok(fs::readlinkat(&*path, c"", Vec::new())?.into_bytes())
        })
    }

    fn raw_xattr(&self, node: &Node, key: &[u8]) -> Reply<Vec<u8>> {
        let path = self.table.path(node)?;
        let at = sys::path_of(&*path);
        grown(|buf| fs::getxattr(at.as_str(), key, rustix::buffer::spare_capacity(buf)).map(drop))
    }

    pub(super) fn xattr(&self, id: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        let node = self.table.node(id)?;
        self.reading(&[ObjectRef::Attr(node.oid())], || self.raw_xattr(&node, key))
    }

    pub(super) fn xattr_names(&self, id: NodeId) -> Reply<Vec<u8>> {
        let node = self.table.node(id)?;
        let path = self.table.path(&node)?;
        self.reading(&[ObjectRef::Attr(node.oid())], || {
            let at = sys::path_of(&*path);
            grown(|buf| fs::listxattr(at.as_str(), rustix::buffer::spare_capacity(buf)).map(drop))
        })
    }

    pub(super) fn set_xattr(
        &self,
        caller: Caller,
        id: NodeId,
        key: &[u8],
        (value, how): (&[u8], SetXattr),
        kill_sgid: bool,
    ) -> Reply<()> {
        let node = self.table.node(id)?;
        let path = self.table.path(&node)?;
        let flags = match how {
            SetXattr::Any => XattrFlags::empty(),
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
        };
        let writes = [ObjectRef::Attr(node.oid())];
        self.mutating(Self::touching(caller, &node, path.as_fd(), &writes), || {
            if key == CAPS {
                node.no_caps.store(false, Relaxed);
            }
            self.check_current(&node)?;
            let at = sys::path_of(&*path);
            fs::setxattr(at.as_str(), key, value, flags)?;
            if kill_sgid {
                // The caller is not in the group; the call above did not know that.
                let mode = sys::stat(&*path)?.mode;
                if mode & S_ISGID != 0 {
                    fs::chmod(at, Mode::from_raw_mode(mode & !S_ISGID))?;
                }
            }
            Ok(())
        })
    }

    pub(super) fn remove_xattr(&self, caller: Caller, id: NodeId, key: &[u8]) -> Reply<()> {
        if let Some(ticket) = Ticket::in_name(key) {
            self.gate.file_barrier(ticket);
            return Err(Errno::NODATA);
        }
        let node = self.table.node(id)?;
        let path = self.table.path(&node)?;
        let writes = [ObjectRef::Attr(node.oid())];
        self.mutating(Self::touching(caller, &node, path.as_fd(), &writes), || {
            self.check_current(&node)?;
            fs::removexattr(sys::path_of(&*path), key)
        })
    }

    pub(super) fn statfs_of(&self) -> Reply<StatFs> {
        let root = self.table.node(NodeId::ROOT)?;
        let fs = fs::fstatfs(&*self.table.path(&root)?)?;
        let narrow = |v: i64| u32::try_from(v).unwrap_or(u32::MAX);
        Ok(StatFs {
            blocks: fs.f_blocks,
            bfree: fs.f_bfree,
            bavail: fs.f_bavail,
            files: fs.f_files,
            ffree: fs.f_ffree,
            bsize: narrow(fs.f_bsize),
            namelen: narrow(fs.f_namelen),
            frsize: narrow(fs.f_frsize),
        })
    }

    pub(super) fn flags_of(&self, id: NodeId) -> Reply<u32> {
        let node = self.table.node(id)?;
        self.reading(&[ObjectRef::Attr(node.oid())], || {
            let flags = match node.kind {
                Kind::File => fs::ioctl_getflags(&*self.table.reader(&node)?)?,
                Kind::Dir => fs::ioctl_getflags(&*self.table.lister(&node)?.lock())?,
                _ => return Err(Errno::NOTTY),
            };
            Ok(flags.bits())
        })
    }
}

fn timespec(to: Option<SetTime>) -> Timespec {
    match to {
        None => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Some(SetTime::To(t)) => Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() },
    }
}
