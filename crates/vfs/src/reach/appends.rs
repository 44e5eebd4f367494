//! What a view does about files that only grow: see [`crate::growing`].

use super::{Reach, is_gone};
use crate::api::Reply;
use crate::content::PAGE;
use crate::growing::tail_of;
use crate::node::{Name, Node};
use crate::state::State;
use crate::volume::errno;
use systx_base::{Kind, NodeId};
use systx_store::io::Stat;
use systx_txn::{Isolation, ObjectRef};

impl Reach {
    /// Something is about to be met in a directory: true if it grows, and so its length is not
    /// recorded.
    pub fn grows_in(&self, st: &mut State, dir: NodeId, name: &Name, stat: &Stat) -> bool {
        if stat.kind != Kind::File {
            return false;
        }
        let Some(may) = st.growing.may_grow.clone() else { return false };
        let any = match st.growing.dirs.get(&dir) {
            Some(any) => *any,
            None => {
                let any = may.any_in(&st.path_of(&self.vol, dir));
                st.growing.dirs.insert(dir, any);
                any
            }
        };
        any && self.work.isolation == Isolation::Serializable
            && !self.others.is_guarded()
            && may.is_one(&st.path_in(&self.vol, dir, name))
    }

    /// Before old bytes of a file are handed out, or changed: it must be as it was met, and is from
    /// now on a file like any other.
    pub fn stop_growing(&self, st: &mut State, node: NodeId) -> Reply<()> {
        if st.growing.files.remove(&node).is_none() {
            return Ok(());
        }
        let base = st.base(node)?.clone();
        let oid = base.oid();
        self.work.read_of(ObjectRef::Size(oid))?;
        if st.nodes.get(node).is_some_and(Node::is_changed) {
            let end = base.stamp.length() / PAGE;
            self.work.read_of(ObjectRef::Pages { oid, first: end, last: end })?;
            self.work.write_of(ObjectRef::Pages { oid, first: end, last: u64::MAX })?;
            self.work.write_of(ObjectRef::Size(oid))?;
        }
        // Who appended before that was recorded has not met this transaction.
        let (dir, name) = self.backing_place(st, node)?;
        let quiet = self.vol.quiesce();
        let now = self.tree().stat_at(&dir, &name);
        drop(quiet);
        match now {
            Ok(now) if now.stamp() == base.stamp => Ok(()),
            Err(e) if !is_gone(&e) => Err(errno(e)),
            _ => Err(self.work.outsider(ObjectRef::Size(oid))),
        }
    }

    /// Before a write at the end of a growing file: notes what stands there.
    pub fn append_to(&self, st: &mut State, node: NodeId) -> Reply<()> {
        if st.growing.files.get(&node).is_none_or(|file| file.tail.is_some()) {
            return Ok(());
        }
        let base = st.base(node)?.clone();
        let handle = self.file_handle(st, node)?;
        let tail = tail_of(&**self.tree(), &handle, base.stamp.length()).map_err(errno)?;
        let now = self.tree().stat(&handle).map_err(errno)?;
        let Some(file) = st.growing.files.get_mut(&node) else { return Ok(()) };
        if !file.has_grown_to(&base, &now) {
            return Err(self.work.outsider(ObjectRef::Size(base.oid())));
        }
        file.tail = Some(tail);
        Ok(())
    }
}
