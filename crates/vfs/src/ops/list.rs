//! Listings.  The names of a backing directory are read once, at the first listing (or test for
//! emptiness), and are recorded as read with that; their attributes when they are handed out.

use crate::api::{DirEntry, Reply};
use crate::listing::Listing;
use crate::node::Name;
use crate::view::{State, View};
use crate::volume::errno;
use rustix::io::Errno;
use std::collections::HashSet;
use systx_base::{Kind, NodeId};

impl View {
    /// Makes sure that all names of the backing directory are known.
    pub(crate) fn read_names(&self, st: &mut State, dir: NodeId) -> Reply<()> {
        self.alive()?;
        self.take_up(st, dir)?;
        self.take_up_names(st, dir)?;
        self.read_list(st, dir)?;
        if st.dir(dir)?.base_names.is_some() {
            return Ok(());
        }
        let mut names = HashSet::new();
        let node = st.node(dir)?;
        if let Some(above) = node.base.as_ref().filter(|b| !b.foreign).map(|b| b.stamp.id) {
            let handle = self.dir_handle(st, dir)?;
            self.tree()
                .list(&handle, &mut |item| {
                    if !self.vol.hides_ino(above, item.name, item.ino) {
                        names.insert(Name::from(item.name));
                    }
                    true
                })
                .map_err(errno)?;
        }
        self.taken.names(names.len())?;
        st.dir_mut(dir)?.base_names = Some(names);
        Ok(())
    }

    /// Makes the order and cookies of a listing.
    fn listing<'a>(&self, st: &'a mut State, dir: NodeId) -> Reply<&'a Listing> {
        self.read_names(st, dir)?;
        let state = st.dir_mut(dir)?;
        if state.listing.is_none() {
            let mut names: Vec<Box<[u8]>> = Vec::new();
            for name in state.base_names.iter().flatten() {
                if state.child(name).is_none_or(|c| c.now.is_some()) {
                    names.push(Box::from(&**name));
                }
            }
            for (name, child) in state.children() {
                if child.now.is_some() && child.base.is_none() {
                    names.push(Box::from(&**name));
                }
            }
            names.sort_unstable();
            state.listing = Some(Listing::new(names));
        }
        st.dir(dir)?.listing.as_ref().ok_or(Errno::IO)
    }

    pub(super) fn list_dir(
        &self,
        dir: NodeId,
        from: u64,
        attributes: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Reply<()> {
        let mut st = self.state.lock();
        if st.node(dir)?.attr.nlink == 0 {
            // A removed directory that somebody has still open lists nothing, not even itself.
            return Ok(());
        }
        if from == 0 && attributes {
            let state = st.dir_mut(dir)?;
            (state.handed_out, state.read_since) = (0, 0);
        }
        let mut cookie = from;
        while let Some((next, name)) = self.listing(&mut st, dir)?.next(cookie) {
            let name = Name::from(name);
            let goes_on = match &*name {
                b"." | b".." => {
                    let ino = self.dot_ino(&st, dir, &name)?;
                    sink(DirEntry { name: &name, ino, kind: Kind::Dir, next, entry: None })
                }
                _ => match self.find(&mut st, dir, &name)? {
                    Some(node) => {
                        let entry = self.entry(&st, node)?;
                        let (ino, kind) = (entry.attr.ino, entry.attr.kind);
                        let entry = attributes.then_some(entry);
                        let taken = sink(DirEntry { name: &name, ino, kind, next, entry });
                        if taken && attributes {
                            st.count_lookup(node);
                            st.dir_mut(dir)?.handed_out += 1;
                        }
                        taken
                    }
                    // Listed, but gone when it was looked at: an outsider was faster.
                    None => true,
                },
            };
            if !goes_on {
                break;
            }
            cookie = next;
        }
        Ok(())
    }

    /// See [`crate::api::Requests::worn_listing`]. A new listing costs something for every name, so
    /// that it must be worth it: an eighth of the files must have been read.
    pub(super) fn worn_listing_of(&self, file: NodeId) -> Option<NodeId> {
        const WORTH: u32 = 8;
        let mut st = self.state.lock();
        let dir = st.node(file).ok()?.place.as_ref()?.0;
        let state = st.dir_mut(dir).ok()?;
        state.read_since += 1;
        if state.handed_out == 0 || state.read_since < state.handed_out.div_ceil(WORTH) {
            return None;
        }
        (state.handed_out, state.read_since) = (0, 0);
        Some(dir)
    }

    fn dot_ino(&self, st: &State, dir: NodeId, name: &[u8]) -> Reply<u64> {
        let node = st.node(dir)?;
        match &node.place {
            Some((parent, _)) if name == b".." => Ok(st.node(*parent)?.attr.ino),
            _ => Ok(node.attr.ino),
        }
    }
}
