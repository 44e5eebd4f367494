//! The requests of a view, by what they are about.

mod attrs;
mod data;
mod list;
mod names;

use crate::api::*;
use crate::view::View;
use names::Making;
use rustix::io::Errno;
use systx_base::{Kind, NodeId};

impl Requests for View {
    fn root(&self) -> Reply<Entry> {
        let st = self.state.lock();
        self.entry(&st, NodeId::ROOT)
    }
    fn serve(&self, caller: Caller, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        let here = (&self.below, &self.state);
        Ok(match request {
            R::Lookup { parent, name } => self.find_name(caller, parent, name)?.into(),
            R::Getattr { node } => self.getattr_of(node)?.into(),
            R::Born { node } => self.birth_of(node)?.into(),
            R::Setattr { node, set } => self.setattr_of(caller, node, set)?.into(),
            R::Readlink { node } => self.readlink_of(node)?.into(),
            R::Mknod { parent, name, kind, new, rdev } => {
                self.make(caller, parent, name, Making::plain(kind, rdev), new)?.into()
            }
            R::Mkdir { parent, name, new } => {
                self.make(caller, parent, name, Making::plain(Kind::Dir, 0), new)?.into()
            }
            R::Symlink { parent, name, target } => {
                let new = NewAttr { mode: 0o777, umask: 0 };
                self.make(caller, parent, name, Making::link_to(target), new)?.into()
            }
            R::Link { node, parent, name } => self.link_to(node, parent, name)?.into(),
            R::Unlink { parent, name } => self.remove(caller, parent, name, false)?.into(),
            R::Rmdir { parent, name } => self.remove(caller, parent, name, true)?.into(),
            R::Rename { from, to, how } => self.rename_to(caller, from, to, how)?.into(),
            R::Create { parent, name, new, exclusive } => {
                self.make_file(caller, parent, name, new, exclusive)?.into()
            }
            R::Tmpfile { parent, new } => self.make_unnamed(caller, parent, new)?.into(),
            R::Readdir { node, from, attributes, sink } => {
                self.list_dir(caller, node, (from, attributes), sink)?.into()
            }
            R::Getxattr { node, key } => self.xattr_of(node, key)?.into(),
            R::Listxattr { node } => self.xattr_names(node)?.into(),
            R::Setxattr { node, key, value, how, kill_sgid } => {
                self.change_xattr(node, key, Some((value, how)), kill_sgid)?.into()
            }
            R::Removexattr { node, key } => self.change_xattr(node, key, None, false)?.into(),
            R::Statfs => self.statfs_of()?.into(),
            R::Getlk { node, lock } => {
                self.locks.test(self.reach(), &self.state, (node, lock))?.into()
            }
            R::Setlk { node, lock } => self.locks.set(here, (node, lock), None)?.into(),
            R::Setlkw { node, lock, wait } => {
                self.locks.set(here, (node, lock), Some(wait))?.into()
            }
            // Flags like append-only or no-copy-on-write are not carried into views; none are set.
            R::InodeFlags { .. } => Answer::Flags(0),
            R::Control { .. } => return Err(Errno::NOTTY),
            // Opens need no message, and durability comes with the commit.
            R::Open { .. } | R::Fsync { .. } => return Err(Errno::NOSYS),
            content => return self.serve_content(content),
        })
    }
    fn forget(&self, node: NodeId, count: u64) {
        // Nodes are the record of what was read: they live until the transaction ends.
        self.state.lock().forget_lookups(node, count);
    }
    fn release(&self, _node: NodeId, _handle: u8) {}
    fn valid(&self, node: NodeId, name: Option<&[u8]>) -> Valid {
        self.below.validity(&self.state, (node, name))
    }
    fn waits(&self) -> bool {
        self.reach().work.waits_for_commit()
    }
    fn worn_listing(&self, file: NodeId) -> Option<NodeId> {
        self.worn_listing_of(file)
    }
}
