//! Nodes of the plain view: one for each backing inode that the kernel knows, for as long as it
//! does.
//!
//! A node holds an `O_PATH` descriptor, so that its inode number cannot be used again while the
//! node lives: the number (with the birth time) then identifies the inode, and a second name of it
//! finds the same node. Beyond a limit, the descriptors of nodes that were not used for a while are
//! given up for file handles (name_to_handle_at(2)), which name the inode too: a recycled number
//! has another handle. Opening by handle was measured (ext4, 6.18) at 3 to 6 us, once per node that
//! comes back; opening by name costs the same, but needs a parent that has a descriptor, and a name
//! that is still the right one. Where the file system has no handles, or the rights are missing,
//! descriptors are kept.
//!
//! **Lock order**: the table, then a node's descriptor.

use super::sys_unsafe::FileHandle;
use crate::change;
use crate::inode_locks::writers::FileAt;
use crate::sys;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;
use systx_base::sync::{Mutex, Rank, rank};
use systx_base::{Kind, NodeId, Oid};
use systx_store::io::HostId;
use systx_vfs::api::Reply;

use super::files::{Files, Listers, Opens};

/// A descriptor that is counted.
pub(super) struct PathFd {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl AsFd for PathFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PathFd {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

/// How a node reaches its inode.
enum Place {
    Open(Arc<PathFd>),
    Handle(Box<FileHandle>),
}

/// One backing inode.
pub(super) struct Node {
    pub id: NodeId,
    pub host: HostId,
    pub kind: Kind,
    place: Mutex<Place>,
    used: AtomicU64,
    /// What is open.
    pub files: Mutex<Files>,
    /// It certainly has no file capabilities.
    pub no_caps: AtomicBool,
    /// A commit has replaced it.
    pub superseded: AtomicBool,
    /// The kernel does not believe what it was told of its attributes: its content was read or
    /// changed since (`fuse_invalidate_atime`, `fuse_write_update_attr`).
    pub worn: AtomicBool,
}

/// Of what is open of a node.
const FILES: Rank = Rank(rank::HANDLES.0 + 1);

impl Node {
    /// Its key in the conflict engine.
    pub fn oid(&self) -> Oid {
        self.host.oid()
    }

    /// It as what a change is about, reached by this descriptor.
    pub fn by<'a>(&self, fd: BorrowedFd<'a>) -> (Oid, change::Place<'a>) {
        (self.oid(), change::Place::Fd(self.host, fd))
    }

    /// Whether `fd`, which shows the same number and birth time, is this inode.  If so, and if the
    /// node had no descriptor, it has one now.
    fn is(&self, fd: &Arc<PathFd>) -> bool {
        let mut place = self.place.lock();
        match &*place {
            Place::Open(_) => true,
            Place::Handle(handle) => {
                let same = FileHandle::of(fd.as_fd()).is_ok_and(|h| h == **handle);
                if same {
                    *place = Place::Open(Arc::clone(fd));
                }
                same
            }
        }
    }
}

struct Slot {
    node: Arc<Node>,
    lookups: u64,
    /// All that there ever were, and when the last one was.
    looked_up: (u64, Instant),
    opens: u64,
}

impl Slot {
    fn look_up(&mut self) {
        self.lookups += 1;
        self.looked_up = (self.looked_up.0 + 1, Instant::now());
        // It has a name: an undo may have brought it back.
        self.node.superseded.store(false, Relaxed);
        self.node.worn.store(false, Relaxed);
    }
}

#[derive(Default)]
struct State {
    nodes: HashMap<NodeId, Slot>,
    by_host: HashMap<HostId, NodeId>,
    /// The last one with this inode number.
    by_ino: HashMap<u64, NodeId>,
    /// The last one with this number.
    by_oid: HashMap<Oid, NodeId>,
    last: u64,
}

impl State {
    /// A node that was looked up once, with the number that is kept for it or the next one.
    fn add(
        &mut self,
        id: Option<NodeId>,
        (fd, host, kind): (Arc<PathFd>, HostId, Kind),
        tick: u64,
    ) -> Arc<Node> {
        let id = id.unwrap_or_else(|| {
            self.last += 1;
            NodeId(self.last)
        });
        let node = Arc::new(Node {
            id,
            host,
            kind,
            place: Mutex::new(rank::LEAF, Place::Open(fd)),
            used: AtomicU64::new(tick),
            files: Mutex::new(FILES, Files::default()),
            no_caps: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            worn: AtomicBool::new(false),
        });
        let slot =
            Slot { node: Arc::clone(&node), lookups: 1, looked_up: (1, Instant::now()), opens: 0 };
        self.nodes.insert(id, slot);
        self.by_host.insert(host, id);
        self.by_ino.insert(host.number(), id);
        self.by_oid.insert(node.oid(), id);
        node
    }
}

/// All nodes of a view.
pub(super) struct Table {
    state: Mutex<State>,
    /// Descriptors of nodes that are open.
    open: Arc<AtomicUsize>,
    limit: AtomicUsize,
    tick: AtomicU64,
    /// Where handles are opened.
    mount: OwnedFd,
    pub listers: Mutex<Listers>,
}

impl Table {
    /// With the root as its first node.
    pub fn new(root: OwnedFd, limit: usize) -> Reply<Table> {
        let seen = sys::stat(&root)?;
        if seen.kind != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        let table = Table {
            state: Mutex::new(rank::VOLUME, State::default()),
            open: Arc::default(),
            limit: AtomicUsize::new(limit.max(2)),
            tick: AtomicU64::new(0),
            mount: sys::open_dir(&root)?,
            listers: Mutex::new(rank::LEAF, Listers::default()),
        };
        // The first node gets number 1, `NodeId::ROOT`; nothing ever takes its lookup back.
        table.enter(root, seen.id, Kind::Dir);
        Ok(table)
    }

    /// A node of this view.  `ESTALE` for a number that the kernel cannot know.
    pub fn node(&self, id: NodeId) -> Reply<Arc<Node>> {
        let state = self.state.lock();
        let slot = state.nodes.get(&id).ok_or(Errno::STALE)?;
        slot.node.used.store(self.tick.fetch_add(1, Relaxed), Relaxed);
        Ok(Arc::clone(&slot.node))
    }

    /// The node of an inode, new or known; counts as one lookup.
    pub fn enter(&self, fd: OwnedFd, host: HostId, kind: Kind) -> Arc<Node> {
        let held = self.open.fetch_add(1, Relaxed) + 1;
        let fd = Arc::new(PathFd { fd, count: Arc::clone(&self.open) });
        let node = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let known = state.by_host.get(&host).and_then(|id| state.nodes.get_mut(id));
            match known {
                Some(slot) if slot.node.is(&fd) => {
                    slot.look_up();
                    Arc::clone(&slot.node)
                }
                // The number was used again meanwhile: the old node is left without a key.
                Some(_) => state.add(None, (fd, host, kind), self.tick.fetch_add(1, Relaxed)),
                None => {
                    let id = state.by_host.get(&host).copied();
                    state.add(id, (fd, host, kind), self.tick.fetch_add(1, Relaxed))
                }
            }
        };
        if held > self.limit.load(Relaxed) {
            self.give_up_some();
        }
        node
    }

    /// Keeps numbers for inodes that the kernel knows by them already: they get these when they are
    /// met.  Numbers up to `last` are given to nothing else.
    pub fn keep_numbers(&self, numbers: impl Iterator<Item = (HostId, NodeId)>, last: u64) {
        let mut state = self.state.lock();
        state.last = state.last.max(last);
        for (host, id) in numbers {
            state.by_host.entry(host).or_insert(id);
        }
    }

    /// A node with a number that the kernel knows already, and no lookup to take back, that is open
    /// in these ways; the one that has the number, if there is one.
    pub fn adopt(&self, id: NodeId, fd: OwnedFd, host: HostId, kind: Kind, opens: Opens) {
        self.adopted(id, fd, host, kind).files.lock().adopt(opens);
        for _ in 0..opens.count() {
            self.opened(id);
        }
    }

    fn adopted(&self, id: NodeId, fd: OwnedFd, host: HostId, kind: Kind) -> Arc<Node> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(slot) = state.nodes.get(&id) {
            return Arc::clone(&slot.node);
        }
        self.open.fetch_add(1, Relaxed);
        let fd = Arc::new(PathFd { fd, count: Arc::clone(&self.open) });
        let known = state.by_host.get(&host).copied();
        let node = state.add(Some(id), (fd, host, kind), self.tick.fetch_add(1, Relaxed));
        if let Some(known) = known.filter(|known| state.nodes.contains_key(known)) {
            state.by_host.insert(host, known);
        }
        if let Some(slot) = state.nodes.get_mut(&id) {
            slot.lookups = 0;
        }
        node
    }

    /// Whether a number has a node.
    pub fn has(&self, id: NodeId) -> bool {
        self.state.lock().nodes.contains_key(&id)
    }

    /// The node of an inode if it is known for certain; counts as one lookup.
    pub fn enter_known(&self, host: HostId) -> Option<Arc<Node>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let slot = state.nodes.get_mut(state.by_host.get(&host)?)?;
        if !matches!(*slot.node.place.lock(), Place::Open(_)) {
            return None;
        }
        slot.look_up();
        Some(Arc::clone(&slot.node))
    }

    /// Whether the kernel knows an inode of this number, mostly the one that has the number now,
    /// and believes what it was told of its attributes.
    pub fn has_told(&self, ino: u64) -> bool {
        let state = self.state.lock();
        let slot = state.by_ino.get(&ino).and_then(|id| state.nodes.get(id));
        slot.is_some_and(|slot| !slot.node.worn.load(Relaxed))
    }

    /// The node of an inode, if the kernel knows it.
    pub fn of_host(&self, host: HostId) -> Option<Arc<Node>> {
        let state = self.state.lock();
        state
            .by_host
            .get(&host)
            .and_then(|id| state.nodes.get(id))
            .map(|slot| Arc::clone(&slot.node))
    }

    /// A regular file, by its key in the conflict engine.
    pub fn of_oid(&self, oid: Oid) -> Option<FileAt> {
        let state = self.state.lock();
        let slot = state.by_oid.get(&oid).and_then(|id| state.nodes.get(id))?;
        let node = &slot.node;
        let (looked_up, at) = slot.looked_up;
        let file = FileAt { node: node.id, id: node.host, looked_up, at };
        (node.kind == Kind::File).then_some(file)
    }

    /// All regular files.
    pub fn files(&self) -> Vec<(NodeId, HostId)> {
        let state = self.state.lock();
        let files = state.nodes.values().filter(|slot| slot.node.kind == Kind::File);
        files.map(|slot| (slot.node.id, slot.node.host)).collect()
    }

    /// All nodes that are open.
    pub fn open_nodes(&self) -> Vec<Arc<Node>> {
        let state = self.state.lock();
        state.nodes.values().filter(|s| s.opens > 0).map(|s| Arc::clone(&s.node)).collect()
    }

    /// One more lookup of a node that the kernel knows.
    pub fn looked_up(&self, id: NodeId) {
        self.change(id, Slot::look_up);
    }

    /// Takes lookups back.
    pub fn forget(&self, id: NodeId, count: u64) {
        self.change(id, |slot| slot.lookups = slot.lookups.saturating_sub(count));
    }

    /// One more open.
    pub fn opened(&self, id: NodeId) {
        self.change(id, |slot| slot.opens += 1);
    }

    /// One less.
    pub fn closed(&self, id: NodeId) {
        self.change(id, |slot| slot.opens = slot.opens.saturating_sub(1));
    }

    fn change(&self, id: NodeId, change: impl FnOnce(&mut Slot)) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(slot) = state.nodes.get_mut(&id) else { return };
        change(slot);
        if slot.lookups > 0 || slot.opens > 0 || id == NodeId::ROOT {
            return;
        }
        let Some(gone) = state.nodes.remove(&id) else { return };
        if state.by_host.get(&gone.node.host) == Some(&id) {
            state.by_host.remove(&gone.node.host);
        }
        if state.by_ino.get(&gone.node.host.number()) == Some(&id) {
            state.by_ino.remove(&gone.node.host.number());
        }
        if state.by_oid.get(&gone.node.oid()) == Some(&id) {
            state.by_oid.remove(&gone.node.oid());
        }
        drop(guard);
        // Closing descriptors may be the end of an unlinked file, which takes its time.
        drop(gone);
    }

    /// The descriptor of a node.
    pub fn path(&self, node: &Node) -> Reply<Arc<PathFd>> {
        let mut place = node.place.lock();
        match &*place {
            Place::Open(fd) => Ok(Arc::clone(fd)),
            Place::Handle(handle) => {
                let fd = handle.open(self.mount.as_fd())?;
                self.open.fetch_add(1, Relaxed);
                let fd = Arc::new(PathFd { fd, count: Arc::clone(&self.open) });
                *place = Place::Open(Arc::clone(&fd));
                Ok(fd)
            }
        }
    }

    /// Gives up the descriptors of the half of the nodes that were used least lately.
    fn give_up_some(&self) {
        let mut nodes: Vec<(u64, Arc<Node>)> = {
            let state = self.state.lock();
            let holds = |s: &&Slot| {
                let idle = s.opens == 0 && s.node.id != NodeId::ROOT;
                idle && matches!(*s.node.place.lock(), Place::Open(_))
            };
            let idle = state.nodes.values().filter(holds);
            idle.map(|s| (s.node.used.load(Relaxed), Arc::clone(&s.node))).collect()
        };
        if nodes.len() < 2 {
            return;
        }
        let middle = nodes.len() / 2;
        nodes.select_nth_unstable_by_key(middle, |(used, _)| *used);
        nodes.truncate(middle);
        let mut given_up = 0;
        for (_, node) in &nodes {
            let mut place = node.place.lock();
            let Place::Open(fd) = &*place else { continue };
            // A removed object can only be reached by what holds it.
            if sys::stat(fd).map_or(true, |seen| seen.nlink == 0) {
                continue;
            }
            match FileHandle::of(fd.as_fd()) {
                Ok(handle) if handle.open(self.mount.as_fd()).is_ok() => {
                    *place = Place::Handle(Box::new(handle));
                    given_up += 1;
                }
                // No handles here, or no right to open them.
                _ => break,
            }
        }
        if given_up * 4 < middle {
            // Do not try again with every lookup.
            let limit = self.limit.load(Relaxed);
            self.limit.store(limit.saturating_mul(2), Relaxed);
        }
    }

    /// Whether some nodes have no descriptor, so that what is about to lose its name must be held.
    pub fn gave_up_any(&self) -> bool {
        self.state.lock().nodes.len() > self.open.load(Relaxed)
    }

    /// The last number.
    pub fn last(&self) -> NodeId {
        NodeId(self.state.lock().last)
    }

    /// Nodes that the kernel knows, and descriptors that they hold.
    pub fn size(&self) -> (usize, usize) {
        (self.state.lock().nodes.len(), self.open.load(Relaxed))
    }
}
