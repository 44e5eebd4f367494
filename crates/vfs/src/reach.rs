//! How a view reaches backing objects: by open directories, one name at a time, each verified to be
//! what was met.

use crate::api::Reply;
use crate::node::{Base, Name};
use crate::view::{Ids, State, View, is_gone, whole};
use crate::volume::errno;
use systx_base::NodeId;
use systx_store::io::{Handle, Open, Openers};
use systx_txn::ObjectRef;

impl View {
    /// The open backing directory of a node; verified to be the one that was met.
    pub(crate) fn dir_handle(&self, st: &State, node: NodeId) -> Reply<Handle> {
        let (mut handle, way) = self.way_to(st, node)?;
        for id in way.into_iter().rev() {
            let base = st.base(id)?;
            let Some((parent, name)) = &base.place else { continue };
            let parent_oid = st.base(*parent)?.oid();
            let gone = || self.work.outsider(ObjectRef::Entry { dir: parent_oid, name });
            handle = match self.tree().open_dir(&handle, name) {
                Ok(handle) => handle,
                Err(e) if is_gone(&e) => return Err(gone()),
                Err(e) => return Err(errno(e)),
            };
            if self.tree().stat(&handle).map_err(errno)?.id != base.stamp.id {
                return Err(gone());
            }
            self.dirs.put(id, handle.clone());
        }
        Ok(handle)
    }

    /// The nearest directory at or above `node` that is open, and those that are to be opened from
    /// there, the last one first.  Not by recursion: trees may be deeper than a stack.
    pub(crate) fn way_to(&self, st: &State, node: NodeId) -> Reply<(Handle, Vec<NodeId>)> {
        let mut way = Vec::new();
        let mut at = node;
        loop {
            if let Some(handle) = self.dirs.get(at) {
                return Ok((handle, way));
            }
            let Some((parent, _)) = &st.base(at)?.place else {
                return Ok((self.tree().root(), way));
            };
            way.push(at);
            at = *parent;
        }
    }

    /// The backing directory and name of a node with a base.
    pub(crate) fn backing_place(&self, st: &State, node: NodeId) -> Reply<(Handle, Name)> {
        match &st.base(node)?.place {
            Some((parent, name)) => Ok((self.dir_handle(st, *parent)?, name.clone())),
            // An empty name is the directory itself (see `Io`).
            None => Ok((self.tree().root(), Name::from(&b""[..]))),
        }
    }

    /// The open backing file of a node; verified to be the version that was met.
    pub(crate) fn file_handle(&self, st: &State, node: NodeId) -> Reply<Handle> {
        if let Some(handle) = self.files.get(node) {
            return Ok(handle);
        }
        let base = st.base(node)?;
        // What programs have stored in mappings of it comes first; that of a snapshot has come.
        let settled =
            self.work.is_frozen(base.oid()) || self.others.flush(self.work.txn, base.stamp.id);
        let (dir, name) = self.backing_place(st, node)?;
        let handle = match self.tree().open_file(&dir, &name, self.how_to_open(st, base)) {
            Ok(handle) => handle,
            Err(e) if is_gone(&e) => return Err(self.work.outsider(whole(base))),
            Err(e) => return Err(errno(e)),
        };
        // A page that another process changes through a mapping, and that was dirty already when
        // it was met, moves no time stamp.  Writing it back makes the next store fault, and that
        // moves the stamp.  A sync of everything since the last change has done so.
        if !settled
            && !self.tree().is_settled(base.stamp.ctime)
            && self.tree().openers(&handle).map_err(errno)? == Openers::Writers
        {
            self.tree().sync_data(&handle).map_err(errno)?;
        }
        self.files.put(node, handle.clone());
        Ok(handle)
    }

    /// How a backing file can be opened for reading, by who may change names in its directory.
    fn how_to_open(&self, st: &State, base: &Base) -> Open {
        let own = match self.ids {
            Ids::Faithful => 0,
            Ids::Single { uid, .. } => uid,
        };
        let dir = base.place.as_ref().and_then(|(parent, _)| st.nodes.get(*parent));
        // What this transaction made of mode and owner says nothing about the backing directory. An
        // access control list that lets others write shows in the group's bits.
        let safe = dir.is_some_and(|dir| {
            let (attr, dirty) = (&dir.attr, dir.dirty);
            let mine = attr.uid == own || attr.uid == 0;
            !dirty.mode && !dirty.owner && mine && attr.mode & 0o022 == 0
        });
        if safe { Open::ReadOwn } else { Open::Read }
    }
}
