//! Listings.  The names of a backing directory are read once, at the first listing (or test for
//! emptiness), and are recorded as read with that. Names and types are all that a listing tells,
//! but of what a program has met already, and where it is known to use attributes (`habits.rs`):
//! what goes with a listing is read by that.

use crate::api::{Caller, DirEntry, Entry, Reply};
use crate::listing::Listing;
use crate::node::{Listed, Name};
use crate::state::State;
use crate::view::View;
use rustix::io::Errno;
use systx_base::{Kind, NodeId};

/// What a listing tells of a name.
struct Told {
    listed: Listed,
    entry: Option<Entry>,
    /// It is a file of which it tells nothing else.
    by_name: bool,
}

impl View {
    /// Makes the order and cookies of a listing.
    fn listing<'a>(&self, st: &'a mut State, dir: NodeId) -> Reply<&'a Listing> {
        self.below.read_names(st, dir)?;
        let state = st.dir_mut(dir)?;
        if state.listing.is_none() {
            let mut names: Vec<Box<[u8]>> = Vec::new();
            for name in state.base_names.iter().flat_map(|names| names.keys()) {
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

    /// What a listing tells of a name; `None`: it is gone.
    fn told(
        &self,
        st: &mut State,
        caller: Caller,
        (dir, name): (NodeId, &[u8]),
        attributes: bool,
    ) -> Reply<Option<Told>> {
        if matches!(name, b"." | b"..") {
            let listed = Listed { ino: self.dot_ino(st, dir, name)?, kind: Kind::Dir };
            return Ok(Some(Told { listed, entry: None, by_name: false }));
        }
        if let Some(listed) = st.only_listed(dir, name)? {
            // A snapshot loses to nobody, whatever it has read.
            let meets = self.reach().work.is_snapshot() || st.habits.takes(caller.tid, listed.kind);
            if !(attributes && meets) {
                let by_name = listed.kind != Kind::Dir;
                return Ok(Some(Told { listed, entry: None, by_name }));
            }
        }
        let Some(node) = self.below.find(st, dir, name)? else { return Ok(None) };
        let entry = self.entry(st, node)?;
        let listed = Listed { ino: entry.attr.ino, kind: entry.attr.kind };
        Ok(Some(Told { listed, entry: attributes.then_some(entry), by_name: false }))
    }

    pub(super) fn list_dir(
        &self,
        caller: Caller,
        dir: NodeId,
        (from, attributes): (u64, bool),
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
        st.habits.lists(caller.tid, from == 0);
        let mut cookie = from;
        while let Some((next, name)) = self.listing(&mut st, dir)?.next(cookie) {
            let name = Name::from(name);
            cookie = next;
            // Listed, but gone when it was looked at: an outsider was faster.
            let Some(told) = self.told(&mut st, caller, (dir, &name), attributes)? else {
                continue;
            };
            let (Listed { ino, kind }, entry) = (told.listed, told.entry);
            if !sink(DirEntry { name: &name, ino, kind, next, entry }) {
                break;
            }
            if let Some(entry) = entry {
                st.count_lookup(entry.node);
            }
            if told.by_name {
                st.habits.told_by_name(caller.tid);
                st.dir_mut(dir)?.lister = caller.tid;
            }
            if attributes && !matches!(&*name, b"." | b"..") {
                st.dir_mut(dir)?.handed_out += 1;
            }
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
