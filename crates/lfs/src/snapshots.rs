//! Snapshots: a checkpoint under a name.  What it refers to is kept by segment, so it costs
//! nothing to make and nothing to read, and the dead blocks of its segments stay with it.

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::object::NAME_MAX;
use crate::ops::Ops;
use crate::recovery::read_root;
use crate::root::{Naming, Origin, Snapshot};
use crate::state::State;
use crate::tree::{Env, Tree};
use crate::txn::Txn;
use std::sync::Arc;
use systx_base::Time;
use systx_base::sync::{Mutex, rank};

/// What is said of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// The checkpoint that it is: later ones have higher numbers.
    pub sequence: u64,
    /// When it was made.
    pub time: Time,
    /// Segments that it keeps.
    pub segments: u32,
    /// The volume and its checkpoint that it is a copy of.
    pub origin: Option<Origin>,
}

/// The tree of a snapshot, to be read.
pub struct View {
    tree: Mutex<Tree>,
    info: SnapshotInfo,
    /// As long as it is there, the snapshot cannot be removed.
    _open: Arc<()>,
}

impl View {
    pub(crate) fn new(env: &Env, snapshot: &Snapshot, open: Arc<()>) -> Result<View> {
        let root = read_root(env, &snapshot.root)?;
        let tree = Mutex::new(rank::LOG, Tree::new(env.clone(), root.chunks));
        Ok(View { tree, info: info(snapshot), _open: open })
    }

    /// Looks at the tree; whatever would change it says [`Error::ReadOnly`].
    ///
    /// # Errors
    /// What `look` says.
    pub fn look<T>(&self, look: impl FnOnce(&mut Ops<'_>) -> Result<T>) -> Result<T> {
        let mut tree = self.tree.lock();
        let now = (tree.env.clock)();
        look(&mut Ops { tree: &mut tree, txn: &mut Txn::new(), maker: None, now })
    }

    /// What it is.
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// The tree itself.
    pub(crate) fn tree<T>(&self, use_it: impl FnOnce(&mut Tree) -> T) -> T {
        use_it(&mut self.tree.lock())
    }

    /// The tree itself, beside that of a later snapshot.
    pub(crate) fn tree_beside<T>(&self, use_it: impl FnOnce(&mut Tree) -> T) -> T {
        use_it(&mut self.tree.lock_beside())
    }
}

fn info(s: &Snapshot) -> SnapshotInfo {
    SnapshotInfo {
        name: s.name.clone(),
        sequence: s.sequence,
        time: s.time,
        segments: s.pins.len() as u32,
        origin: s.origin,
    }
}

/// All of them.
pub fn list(state: &State) -> Vec<SnapshotInfo> {
    state.kept.snapshots.iter().map(info).collect()
}

/// The snapshot of a name.
///
/// # Errors
/// [`Error::NotFound`].
pub fn find<'a>(state: &'a State, name: &str) -> Result<&'a Snapshot> {
    state.kept.snapshots.iter().find(|s| s.name == name).ok_or(Error::NotFound)
}

/// Whether a snapshot may have this name.
///
/// # Errors
/// [`Error::Exists`], [`Error::NameTooLong`], [`Error::Invalid`].
pub fn check_name(state: &State, name: &str) -> Result<()> {
    if name.is_empty() || name.contains(['/', '\0']) {
        return Err(Error::Invalid("name of a snapshot"));
    }
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    match find(state, name) {
        Ok(_) => Err(Error::Exists),
        Err(_) => Ok(()),
    }
}

/// Whether a snapshot may have this name, and what it would keep leaves room for so many blocks.
///
/// # Errors
/// [`Error::NoSpace`]; as [`check_name`].
pub fn check(state: &State, name: &str, need: u64) -> Result<()> {
    check_name(state, name)?;
    let segment_blocks = state.tree.env.geometry.segment_blocks;
    let used = state.usage.segments().iter().filter(|s| s.live > 0 && s.pins == 0);
    let dead: u64 = used.map(|s| u64::from(segment_blocks - s.live)).sum();
    if state.has_capacity(dead + 16 + need) { Ok(()) } else { Err(Error::NoSpace) }
}

/// Makes a snapshot of the committed tree, or of what was received the copy of one, which is as
/// old as the original.  One checkpoint has both, the tree and its name.  Nobody may be writing a
/// group.
///
/// # Errors
/// [`Error::NoSpace`] if what it would keep leaves too little; as [`check_name`]; what the
/// device says.
pub fn take(state: &mut State, name: &str, copied: Option<(Origin, Time)>) -> Result<()> {
    check(state, name, 0)?;
    let (origin, time) = copied.unzip();
    state.kept.naming = Some(Naming { name: name.to_owned(), origin });
    checkpoint::write_as_of(state, time)?;
    state.keep_named();
    Ok(())
}

/// Removes a snapshot.  Nobody may be writing a group.
///
/// # Errors
/// [`Error::NotFound`]; what the device says.
pub fn remove(state: &mut State, name: &str) -> Result<()> {
    let pins = find(state, name)?.pins.clone();
    state.kept.snapshots.retain(|s| s.name != name);
    state.usage.unpin(&pins);
    checkpoint::write(state)
}
