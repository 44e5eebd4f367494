//! What the session looks at while it puts a view together: the places at which it mounts, and the
//! directories on the way there.  No program has asked for that, so it is no part of what the
//! transaction has read.
//!
//! The process that builds is known by its thread's number (`View::built_by`).  What it looks up
//! becomes a node that is only *glimpsed*: the engine is not told, and validation passes over it.
//! The kernel may keep nothing of these answers, so it asks again for the first program that comes
//! by. Only then is the node read, as it is at that moment, and it keeps its number: under a name
//! that suddenly means another node the kernel would take the session's mounts away.

use super::Below;
use crate::api::{Attr, Caller, Reply, Valid};
use crate::node::{Body, Child, Name};
use crate::state::State;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use systx_base::sync::Mutex;
use systx_base::{BUILT, NodeId};
use systx_store::io::Stat;

/// Nobody builds.
const NOBODY: u32 = 0;

/// The process that is putting the view together.
#[derive(Default)]
pub(crate) struct Builder(AtomicU32);

impl Builder {
    /// From now on this thread builds.
    pub fn begins(&self, tid: u32) {
        self.0.store(tid, Ordering::Release);
    }
    fn is(&self, caller: Caller) -> bool {
        caller.tid != NOBODY && self.0.load(Ordering::Acquire) == caller.tid
    }
    fn is_any(&self) -> bool {
        self.0.load(Ordering::Acquire) != NOBODY
    }
}

impl Below {
    /// A look-up by the process that builds.  `None`: it is a look-up like any other.
    pub fn looked_up_by_builder(
        &self,
        st: &mut State,
        caller: Caller,
        (parent, name): (NodeId, &[u8]),
    ) -> Option<Reply<Option<NodeId>>> {
        if !self.builder.is(caller) {
            return None;
        }
        if parent == NodeId::ROOT && name == BUILT.as_bytes() {
            self.builder.0.store(NOBODY, Ordering::Release);
            return Some(Ok(None));
        }
        if self.reach.work.is_snapshot() {
            // Loses to nobody, whatever it has read.
            return None;
        }
        self.glimpse(st, parent, name).transpose()
    }

    /// How long the kernel may believe what it is told: while somebody builds, only attributes of
    /// what is read either way (the root, which every walk asks for), and that something else is
    /// mounted there.
    pub fn validity(&self, state: &Mutex<State>, (dir, name): (NodeId, Option<&[u8]>)) -> Valid {
        if !self.builder.is_any() {
            return Valid::default();
        }
        let st = state.lock();
        if name.is_none() && !st.glimpsed.contains(&dir) {
            return Valid::default();
        }
        let covers = |name| {
            let covered = st.dir(dir).ok().and_then(|dir| dir.covered.as_ref());
            covered.is_some_and(|names| names.contains(name))
        };
        let now = Some(Duration::ZERO).filter(|_| !name.is_some_and(covers));
        Valid { name: now, attr: now, dir_attr: None }
    }

    /// `Ok(None)`: to be looked up as ever.
    fn glimpse(
        &self,
        st: &mut State,
        parent: NodeId,
        name: &[u8],
    ) -> Reply<Option<Option<NodeId>>> {
        let reach = &self.reach;
        reach.work.alive()?;
        let dir = st.dir(parent)?;
        if let Some(child) = dir.child(name) {
            return Ok(Some(child.now));
        }
        let covered = dir.covered.as_ref().is_some_and(|names| names.contains(name));
        let ours = st.node(parent)?.base.as_ref().filter(|base| !base.foreign);
        let Some(above) = ours.map(|base| base.stamp.id()) else { return Ok(None) };
        if dir.base_names.is_some() {
            return Ok(None);
        }
        self.taken.object(st.nodes.len())?;
        self.taken.names(1)?;
        // What is gone on the way there is not there.
        let Ok(handle) = reach.open_unrecorded(st, parent) else { return Ok(Some(None)) };
        let name = Name::from(name);
        let place = (parent, &name);
        let node = match reach.tree().stat_at(&handle, &name) {
            Ok(stat) if reach.vol.is_hidden(above, &name, stat.id) => None,
            // A place of another file system, which is not read either way.
            Ok(stat) if covered => Some(self.add_place(st, place, &stat, true)),
            Err(e) if Errno::from_io_error(&e) == Some(Errno::XDEV) => {
                self.meet_foreign(st, place, &handle)?
            }
            Err(_) => None,
            Ok(stat) if stat.dev != reach.vol.dev => Some(self.add_place(st, place, &stat, true)),
            // Met under another name.
            Ok(stat) if st.nodes.of_host(stat.id).is_some() => return Ok(None),
            Ok(stat) => {
                let node = self.add_place(st, place, &stat, false);
                st.glimpsed.insert(node);
                Some(node)
            }
        };
        if node.is_some() {
            st.dir_mut(parent)?.set_child(name, Child { now: node, base: node });
        }
        Ok(Some(node))
    }

    /// Before a program uses a node: from now on it is read, if so far it was glimpsed only.
    ///
    /// # Errors
    /// `ESTALE`: it is not where it was.
    pub fn take_up(&self, st: &mut State, node: NodeId) -> Reply<()> {
        if st.glimpsed.is_empty() {
            return Ok(());
        }
        let mut way = Vec::new();
        let mut at = node;
        while st.glimpsed.contains(&at) {
            let place = st.base(at)?.place.clone().ok_or(Errno::IO)?;
            let parent = place.0;
            way.push((at, place));
            at = parent;
        }
        for (node, (parent, name)) in way.into_iter().rev() {
            if self.find(st, parent, &name)? != Some(node) {
                return Err(Errno::STALE);
            }
        }
        Ok(())
    }

    /// As [`Below::take_up`], for what the process that builds may ask for as well.
    pub fn take_up_unless_building(&self, st: &mut State, node: NodeId) -> Reply<()> {
        if self.builder.is_any() { Ok(()) } else { self.take_up(st, node) }
    }

    /// What was glimpsed is read now, as it is now.
    pub fn read_glimpsed(
        &self,
        st: &mut State,
        id: NodeId,
        (dir, name): (NodeId, &Name),
        stat: &Stat,
    ) -> NodeId {
        st.glimpsed.remove(&id);
        let Some(node) = st.nodes.get_mut(id) else { return id };
        let place = (dir, name.clone());
        let before = node.place.replace(place.clone()).filter(|before| *before != place);
        if let Some(base) = &mut node.base {
            base.stamp = stat.stamp();
            base.place = Some(place);
        }
        node.attr = Attr::from(stat);
        if let Body::Dir(dir) = &mut node.body {
            dir.rights = (stat.mode, stat.uid, stat.gid);
            dir.read_xattrs = None;
        }
        // It was moved: what its old name means has not been read.
        if let Some((dir, name)) = before
            && let Ok(dir) = st.dir_mut(dir)
        {
            dir.forget_child(&name);
        }
        id
    }
}
