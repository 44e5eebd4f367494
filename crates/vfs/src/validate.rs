//! Validation: is everything that the transaction met still as it was?  Changes of other transactions
//! of this daemon were found by the engine when they happened; here outsiders' changes are found, by
//! one `statx` per object that was met, and by a look into directories that changed.

use crate::node::{Base, Name, Node};
use crate::view::{State, View};
use systx_base::{Kind, NodeId};
use systx_store::io::{Handle, Stat};

/// What an outsider did to something that a transaction had met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideChange {
    /// The path on the host.
    pub path: Vec<u8>,
    /// What happened to it.
    pub what: What,
    /// Whether the transaction also changed it, so that even snapshot isolation must give way.
    pub written: bool,
}

/// See [`OutsideChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Content or attributes differ.
    Changed,
    /// The name is gone, or names something else.
    Replaced,
    /// There was nothing of that name; now there is.
    Appeared,
    /// A directory that was listed has other names now.
    ListingChanged,
}

impl View {
    /// Every difference between what was met and what is there; waits for an installation in progress
    /// to end and keeps others out meanwhile.
    pub fn validate(&self) -> Vec<OutsideChange> {
        let st = self.state.lock();
        let _quiet = self.vol.quiesce();
        let mut found = Vec::new();
        for (id, node) in st.nodes.iter() {
            let Some(base) = &node.base else { continue };
            if base.foreign || node.dir().is_none() {
                continue;
            }
            self.validate_dir(&st, id, node, base, &mut found);
        }
        found
    }

    /// The names and objects met in one backing directory.
    fn validate_dir(
        &self,
        st: &State,
        id: NodeId,
        node: &Node,
        base: &Base,
        found: &mut Vec<OutsideChange>,
    ) {
        let Some(dir) = node.dir() else { return };
        if dir.children.is_empty() && dir.base_names.is_none() {
            return;
        }
        // The object itself is judged with its own parent; if it is gone, so is what is in it.
        let Ok(handle) = self.open_unrecorded(st, id) else { return };
        let same_names = self
            .io()
            .stat(&handle)
            .is_ok_and(|stat| self.vol.current(base.stamp) == stat.stamp());
        for (name, child) in &dir.children {
            let written = child.now != child.base;
            let what = match child.base {
                Some(met) => self.judge(st, &handle, name, met),
                None if same_names => None,
                None => self.io().stat_at(&handle, name).is_ok().then_some(What::Appeared),
            };
            if let Some(what) = what {
                let changed = child.base.and_then(|c| st.nodes.get(c)).is_some_and(Node::is_changed);
                let path = self.path_in(st, id, name);
                found.push(OutsideChange { path, what, written: written || changed });
            }
        }
        if let (false, Some(names)) = (same_names, &dir.base_names) {
            let mut missing = names.len();
            let mut extra = 0;
            let listed = self.io().list(&handle, &mut |item| {
                if names.contains(item.name) {
                    missing -= 1;
                } else if !self.vol.hides_ino(item.ino) {
                    extra += 1;
                }
                true
            });
            if listed.is_err() || missing + extra > 0 {
                let path = st.path_of(&self.vol, id);
                found.push(OutsideChange { path, what: What::ListingChanged, written: false });
            }
        }
    }

    fn judge(&self, st: &State, dir: &Handle, name: &Name, met: NodeId) -> Option<What> {
        let node = st.nodes.get(met)?;
        let base = node.base.as_ref()?;
        if base.foreign {
            return None;
        }
        match self.io().stat_at(dir, name) {
            Err(_) => Some(What::Replaced),
            Ok(stat) if stat.id != base.stamp.id => Some(What::Replaced),
            Ok(stat) if stat.kind == Kind::Dir => {
                let same = node.dirty.mode || node.dirty.owner || same_rights(node, &stat);
                (!same).then_some(What::Changed)
            }
            Ok(stat) => (self.vol.current(base.stamp) != stat.stamp()).then_some(What::Changed),
        }
    }

    /// A backing directory by the way it was met, without any record: validation must look even
    /// where the transaction has lost.
    pub(crate) fn open_unrecorded(&self, st: &State, id: NodeId) -> std::io::Result<Handle> {
        if let Some(handle) = self.dirs.get(id) {
            return Ok(handle);
        }
        let gone = || std::io::Error::from(rustix::io::Errno::STALE);
        let base = st.base(id).map_err(|_| gone())?;
        let Some((parent, name)) = &base.place else { return Ok(self.io().root()) };
        let handle = self.io().open_dir(&self.open_unrecorded(st, *parent)?, name)?;
        if self.io().stat(&handle)?.id != base.stamp.id {
            return Err(gone());
        }
        self.dirs.put(id, handle.clone());
        Ok(handle)
    }

    fn path_in(&self, st: &State, dir: NodeId, name: &[u8]) -> Vec<u8> {
        let mut path = st.path_of(&self.vol, dir);
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}

/// Directories change their time stamps with every name; what counts as read of their attributes is
/// who may do what.
fn same_rights(node: &Node, stat: &Stat) -> bool {
    (node.attr.mode, node.attr.uid, node.attr.gid) == (stat.mode, stat.uid, stat.gid)
}
