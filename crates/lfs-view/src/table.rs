//! The nodes that the kernel knows, and the listings of directories among them.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, NodeId, Oid};
use systx_guard::inode_locks::writers::FileAt;
use systx_lfs::format::{Ino, ROOT};
use systx_store::io::HostId;
use systx_vfs::api::Reply;
use systx_vfs::listing::Listing;

struct Known {
    id: HostId,
    kind: Kind,
    lookups: u64,
    /// All that there ever were, and when the last one was.
    looked_up: (u64, Instant),
    /// A commit has put another object in its place since.
    superseded: bool,
    /// Only the store names it.
    is_unnamed: bool,
    /// The kernel does not believe what it was told of its attributes: its content was read or
    /// changed since.
    worn: bool,
    /// Of a directory that somebody has listed: as long as the kernel knows it, somebody may go on
    /// with a cookie of it.
    listing: Option<Box<Listing>>,
}

impl Known {
    fn new(id: HostId, kind: Kind) -> Known {
        let looked_up = (1, Instant::now());
        let (superseded, is_unnamed, worn, listing) = Default::default();
        Known { id, kind, lookups: 1, looked_up, superseded, is_unnamed, worn, listing }
    }

    fn file(&self) -> Option<FileAt> {
        let (looked_up, at) = self.looked_up;
        let file = FileAt { node: NodeId(self.id.number()), id: self.id, looked_up, at };
        (self.kind == Kind::File).then_some(file)
    }
}

/// What a lookup has gone by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    ByName,
    ByNumber,
}

struct State {
    known: HashMap<Ino, Known>,
    by_oid: HashMap<Oid, Ino>,
}

/// See the module.
pub(crate) struct Table(Mutex<State>);

impl Table {
    /// With the root, whose lookup nobody takes back.
    pub fn new(root: HostId) -> Table {
        let known = HashMap::from([(ROOT, Known::new(root, Kind::Dir))]);
        Table(Mutex::new(rank::VOLUME, State { known, by_oid: HashMap::new() }))
    }

    /// One more lookup; of a new one after `meet`, which tells what it is.  Which it is.
    ///
    /// # Errors
    /// That of `meet`.
    pub fn enter(
        &self,
        ino: Ino,
        found: Found,
        meet: impl FnOnce() -> Reply<(HostId, Kind)>,
    ) -> Reply<HostId> {
        let mut state = self.0.lock();
        if let Some(known) = state.known.get_mut(&ino) {
            known.lookups = known.lookups.saturating_add(1);
            known.looked_up = (known.looked_up.0 + 1, Instant::now());
            // It has a name: an undo may have brought it back.
            known.superseded &= found == Found::ByNumber;
            known.worn = false;
            return Ok(known.id);
        }
        let (id, kind) = meet()?;
        state.known.insert(ino, Known::new(id, kind));
        state.by_oid.insert(id.oid(), ino);
        Ok(id)
    }

    /// Takes lookups back; the object, if the kernel does not know it any longer, and whether only
    /// the store names it.
    pub fn forget(&self, ino: Ino, count: u64) -> Option<(Ino, bool)> {
        let mut state = self.0.lock();
        let known = state.known.get_mut(&ino).filter(|_| ino != ROOT)?;
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 {
            return None;
        }
        let (is_unnamed, oid) = (known.is_unnamed, known.id.oid());
        state.known.remove(&ino);
        state.by_oid.remove(&oid);
        Some((ino, is_unnamed))
    }

    /// Forgets everything; what was there, but for the root.
    pub fn clear(&self) -> Vec<(Ino, bool)> {
        let mut state = self.0.lock();
        state.by_oid.clear();
        let others = state.known.extract_if(|ino, _| *ino != ROOT);
        others.map(|(ino, known)| (ino, known.is_unnamed)).collect()
    }

    fn get<T>(&self, ino: Ino, of: impl FnOnce(&Known) -> T) -> Option<T> {
        self.0.lock().known.get(&ino).map(of)
    }

    /// Which object a node is, and its kind.
    pub fn id(&self, ino: Ino) -> Option<(HostId, Kind)> {
        self.get(ino, |known| (known.id, known.kind))
    }

    /// A regular file, by its key in the conflict engine.
    pub fn file_of(&self, oid: Oid) -> Option<FileAt> {
        let state = self.0.lock();
        state.known.get(state.by_oid.get(&oid)?)?.file()
    }

    /// All regular files.
    pub fn files(&self) -> Vec<(NodeId, HostId)> {
        let state = self.0.lock();
        let files = state.known.values().filter_map(Known::file);
        files.map(|file| (file.node, file.id)).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.lock().known.len()
    }

    /// Another object is in its place.
    pub fn supersede(&self, id: HostId) {
        let mut state = self.0.lock();
        if let Some(known) = state.known.get_mut(&id.number()).filter(|known| known.id == id) {
            known.superseded = true;
        }
    }

    /// Whether another object is in its place, and it was not looked up since.
    pub fn is_superseded(&self, ino: Ino) -> bool {
        self.get(ino, |known| known.superseded).unwrap_or(false)
    }

    /// Whether the kernel knows it, and believes what it was told of its attributes.
    pub fn has_told(&self, ino: Ino) -> bool {
        self.get(ino, |known| !known.worn).unwrap_or(false)
    }

    /// The kernel does not believe its attributes any more, or has just been told them.
    pub fn set_worn(&self, ino: Ino, worn: bool) {
        if let Some(known) = self.0.lock().known.get_mut(&ino) {
            known.worn = worn;
        }
    }

    /// Whether only the store names it.
    pub fn is_unnamed(&self, ino: Ino) -> bool {
        self.get(ino, |known| known.is_unnamed).unwrap_or(false)
    }

    /// Whether only the store names it, from now on.
    pub fn set_unnamed(&self, ino: Ino, is_unnamed: bool) {
        if let Some(known) = self.0.lock().known.get_mut(&ino) {
            known.is_unnamed = is_unnamed;
        }
    }

    /// A directory has this name now, or not any longer.
    pub fn renamed(&self, dir: Ino, name: &[u8], is_there: bool) {
        let mut state = self.0.lock();
        let known = state.known.get_mut(&dir);
        let Some(listing) = known.and_then(|known| known.listing.as_mut()) else { return };
        if is_there { listing.insert(name) } else { listing.remove(name) }
    }

    /// Names from a cookie on, at most `most`, each with the cookie after it; `None` if the
    /// directory was not listed yet.
    pub fn names(&self, dir: Ino, from: u64, most: usize) -> Option<Vec<(Vec<u8>, u64)>> {
        let state = self.0.lock();
        let listing = state.known.get(&dir)?.listing.as_ref()?;
        let mut at = from;
        let next = || {
            let (next, name) = listing.next(at)?;
            at = next;
            Some((name.to_vec(), next))
        };
        Some(std::iter::from_fn(next).take(most).collect())
    }

    /// A directory has these names.  Those that were there keep their places.
    pub fn list(&self, dir: Ino, names: Vec<Box<[u8]>>) {
        let mut state = self.0.lock();
        let Some(known) = state.known.get_mut(&dir) else { return };
        let Some(listing) = &mut known.listing else {
            known.listing = Some(Box::new(Listing::new(names)));
            return;
        };
        let now: BTreeSet<&[u8]> = names.iter().map(|name| &**name).collect();
        let mut at = 0;
        let mut gone = Vec::new();
        while let Some((next, name)) = listing.next(at) {
            at = next;
            if name != b"." && name != b".." && !now.contains(name) {
                gone.push(name.to_vec());
            }
        }
        gone.iter().for_each(|name| listing.remove(name));
        now.iter().for_each(|name| listing.insert(name));
    }
}
