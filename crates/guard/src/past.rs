//! The past of a volume: what open snapshots need of objects that have been changed since they
//! began.
//!
//! A snapshot sees the state at its begin and is in nobody's way: while it is open, whoever changes
//! something that it could see first keeps the old value here ([`Past::keep`],
//! [`Past::keep_commit`]): a plain request of a guarded directory after the conflict engine has let
//! it pass, a commit between its decision and its installation. What has not been changed is read
//! where it is.
//!
//! - `keep`: how old values are read; `pages`: content; `frozen`: the file system as a snapshot
//!   sees it; `views`: views over that.
//!
//! **Layers.** Each snapshot has a layer; old values go to the newest one, once. A snapshot finds
//! an old value in its own layer or, if nothing was changed while that was the newest, in the first
//! later one. When a snapshot ends, what its layer has and the one before has not moves there; the
//! first layer is dropped. So a value is kept once, for all snapshots between two changes.
//!
//! **Order.** To keep comes before to change. A snapshot reads what is there *first* and looks here
//! *afterwards*: if there is nothing, the change had not begun when it read. So neither waits for
//! the other. A snapshot begins while nothing is being changed (`SharedVolume::snapshot`): whoever
//! changes something either finds the layer, or is done.
//!
//! **Bounds.** Old pages beyond a few megabytes go to a staging slot. Removed objects are held by
//! descriptors. Where there is no room for an old value, changes go on, and the snapshots that
//! would need it are given up: they answer `ECANCELED`.

mod frozen;
mod keep;
mod pages;

pub(crate) use frozen::frozen;

use pages::{Data, Extents, Piece, Room};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use systx_base::Kind;
use systx_base::sync::{Mutex, rank};
use systx_store::io::{Handle, HostId, Stat};
use systx_vfs::api::Reply;
use systx_vfs::content::{PAGE, Spill};

/// Most old values (names and inodes) of a volume: some 300 bytes each.
const ITEMS_MAX: usize = 1 << 20;

/// See the module.
pub struct Past {
    /// How many layers there are.
    open: AtomicUsize,
    state: Mutex<State>,
    room: Room,
    pins: Arc<AtomicUsize>,
    pins_max: usize,
    items_max: usize,
}

#[derive(Default)]
struct State {
    /// The number of the last snapshot that began.
    last: u64,
    /// Snapshots up to this one were given up.
    given_up: u64,
    /// By the number of their snapshot.
    layers: BTreeMap<u64, Layer>,
}

/// What has been changed between the begin of one snapshot and that of the next.
#[derive(Default)]
struct Layer {
    inodes: HashMap<HostId, Inode>,
    /// Names by directory.
    names: HashMap<HostId, BTreeMap<Box<[u8]>, Meaning>>,
    /// Objects that were made since: no snapshot can have seen them.
    born: HashSet<HostId>,
    items: usize,
}

/// An inode as it was.
struct Inode {
    stat: Stat,
    xattrs: Option<Arc<Xattrs>>,
    pages: Extents,
}

/// All extended attributes that the daemon may see.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a name meant; `None`: nothing.
type Meaning = Option<Arc<Pinned>>;

/// An object, held by a descriptor (`O_PATH`): it stays what it is when its last name goes.
#[derive(Debug)]
struct Pinned {
    handle: Handle,
    id: HostId,
    kind: Kind,
    count: Arc<AtomicUsize>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

/// What a volume keeps for its snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Snapshots that are open and have not been given up.
    pub snapshots: usize,
    /// Old names and inodes.
    pub items: usize,
    /// Descriptors.
    pub pins: usize,
    /// Bytes of old pages in memory.
    pub memory: u64,
}

impl Past {
    pub(crate) fn new() -> Past {
        // View 0 may have a half; the rest is for open files and the rest of the process.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20) / 4;
        Past::with_limits(usize::try_from(limit).unwrap_or(usize::MAX), ITEMS_MAX)
    }

    fn with_limits(pins_max: usize, items_max: usize) -> Past {
        Past {
            open: AtomicUsize::new(0),
            state: Mutex::new(rank::LEAF, State::default()),
            room: Room::new(),
            pins: Arc::default(),
            pins_max,
            items_max,
        }
    }

    /// Whether old values are wanted. Begins are ordered with changes by other means, see the
    /// module.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed) > 0
    }

    /// How much is kept.
    pub fn size(&self) -> Size {
        let state = self.state.lock();
        Size {
            snapshots: state.layers.len(),
            items: state.layers.values().map(|layer| layer.items).sum(),
            pins: self.pins.load(Relaxed),
            memory: self.room.memory(),
        }
    }

    /// A snapshot of this moment: nothing may be changing.
    pub(crate) fn begin(self: &Arc<Self>, spill: Arc<dyn Spill>) -> Snapshot {
        self.room.use_slots_of(spill);
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.layers.insert(number, Layer::default());
        self.open.store(state.layers.len(), Relaxed);
        Snapshot { past: Arc::clone(self), number }
    }

    fn end(&self, number: u64) {
        let mut state = self.state.lock();
        let Some(layer) = state.layers.remove(&number) else { return };
        self.open.store(state.layers.len(), Relaxed);
        let rest = match state.layers.range_mut(..number).next_back() {
            Some((_, before)) => before.take_in(layer),
            None => layer,
        };
        let is_last = state.layers.is_empty();
        drop(state);
        // Descriptors are closed and pages punched out here, with no lock held.
        drop(rest);
        if is_last {
            self.room.clear();
        }
    }

    /// There is no room for an old value, or it cannot be read: nobody may rely on what is kept.
    pub(crate) fn give_up(&self, why: &dyn std::fmt::Display) {
        let mut state = self.state.lock();
        let layers = std::mem::take(&mut state.layers);
        state.given_up = state.last;
        self.open.store(0, Relaxed);
        drop(state);
        if !layers.is_empty() {
            tracing::warn!("{} snapshots given up: {why}", layers.len());
        }
        drop(layers);
        self.room.clear();
    }

    /// Works on the newest layer, if there is one.
    fn newest<T>(&self, act: impl FnOnce(&mut Layer) -> T) -> Option<T> {
        self.state.lock().layers.values_mut().next_back().map(act)
    }
}

impl Layer {
    /// Takes over what a later layer has and this one has not; returns the rest.
    fn take_in(&mut self, later: Layer) -> Layer {
        let mut rest = Layer::default();
        for (id, inode) in later.inodes {
            if self.born.contains(&id) {
                rest.inodes.insert(id, inode);
            } else {
                self.add_inode(id, inode);
            }
        }
        for (dir, names) in later.names {
            if self.born.contains(&dir) {
                rest.names.insert(dir, names);
                continue;
            }
            for (name, meaning) in names {
                if let Some(meaning) = self.add_name(dir, &name, meaning) {
                    rest.names.entry(dir).or_default().insert(name, meaning);
                }
            }
        }
        self.items += later.born.len();
        self.born.extend(later.born);
        rest
    }

    fn add_inode(&mut self, id: HostId, new: Inode) {
        match self.inodes.entry(id) {
            std::collections::hash_map::Entry::Vacant(place) => {
                self.items += 1;
                place.insert(new);
            }
            std::collections::hash_map::Entry::Occupied(mut place) => {
                let inode = place.get_mut();
                if inode.xattrs.is_none() {
                    inode.xattrs = new.xattrs;
                }
                inode.pages.add_all(new.pages);
            }
        }
    }

    /// What is here already stays; what was not taken comes back.
    fn add_name(&mut self, dir: HostId, name: &[u8], meaning: Meaning) -> Option<Meaning> {
        let names = self.names.entry(dir).or_default();
        if names.contains_key(name) {
            return Some(meaning);
        }
        names.insert(name.into(), meaning);
        self.items += 1;
        None
    }
}

/// One moment of a volume.  What is kept for it goes when it is dropped.
pub struct Snapshot {
    past: Arc<Past>,
    number: u64,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.past.end(self.number);
    }
}

impl Snapshot {
    /// Whether it had to be given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.past.state.lock().given_up >= self.number
    }

    /// Looks through what is kept, the value that was current at this moment first. To be called
    /// when what is there has been read.
    ///
    /// # Errors
    /// `ECANCELED` if the snapshot was given up.
    fn look<T>(&self, mut find: impl FnMut(&Layer) -> Option<T>) -> Reply<Option<T>> {
        let state = self.past.state.lock();
        if state.given_up >= self.number {
            return Err(Errno::CANCELED);
        }
        Ok(state.layers.range(self.number..).find_map(|(_, layer)| find(layer)))
    }

    /// What a name meant, if that was changed.
    fn meaning(&self, dir: HostId, name: &[u8]) -> Reply<Option<Meaning>> {
        self.look(|layer| layer.names.get(&dir)?.get(name).cloned())
    }

    /// All names of a directory that were changed.
    fn meanings(&self, dir: HostId) -> Reply<BTreeMap<Box<[u8]>, Meaning>> {
        let mut all = BTreeMap::new();
        self.look(|layer| {
            for (name, meaning) in layer.names.get(&dir).into_iter().flatten() {
                all.entry(name.clone()).or_insert_with(|| meaning.clone());
            }
            None::<()>
        })?;
        Ok(all)
    }

    fn stat(&self, id: HostId) -> Reply<Option<Stat>> {
        self.look(|layer| layer.inodes.get(&id).map(|inode| inode.stat))
    }

    fn xattrs(&self, id: HostId) -> Reply<Option<Arc<Xattrs>>> {
        self.look(|layer| layer.inodes.get(&id)?.xattrs.clone())
    }

    /// The changed pages of `range`.
    fn pages(&self, id: HostId, range: Range<u64>) -> Reply<Vec<Piece>> {
        let mut gaps = vec![range];
        let mut found = Vec::new();
        self.look(|layer| {
            let inode = layer.inodes.get(&id)?;
            let missing = std::mem::take(&mut gaps);
            for gap in missing {
                gaps.extend(inode.pages.missing(gap.clone()));
                found.extend(inode.pages.pieces(gap));
            }
            None::<()>
        })?;
        Ok(found)
    }

    /// Whether the content of a file was changed.
    fn has_pages(&self, id: HostId) -> Reply<bool> {
        let has = |layer: &Layer| {
            layer.inodes.get(&id).is_some_and(|inode| !inode.pages.is_empty()).then_some(())
        };
        self.look(has).map(|found| found.is_some())
    }
}

/// The pages that hold these bytes.
fn pages_of(offset: u64, len: u64) -> Range<u64> {
    offset / PAGE..offset.saturating_add(len).div_ceil(PAGE)
}

/// Copies into `buf`, which holds a file from `offset` on, what of a piece is in it.
fn overlay(buf: &mut [u8], offset: u64, piece: &Piece) -> std::io::Result<()> {
    let (from, until) = (piece.pages.start * PAGE, piece.pages.end * PAGE);
    let end = offset + buf.len() as u64;
    let (start, end) = (from.max(offset), until.min(end));
    if start >= end {
        return Ok(());
    }
    let at = usize::try_from(start - offset).unwrap_or(usize::MAX);
    let n = usize::try_from(end - start).unwrap_or(usize::MAX);
    let part = buf.get_mut(at..).and_then(|b| b.get_mut(..n)).ok_or(Errno::IO)?;
    Data::read(&piece.data, part, piece.offset + (start - from))
}

#[cfg(test)]
mod tests;
