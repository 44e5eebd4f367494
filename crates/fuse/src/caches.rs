//! What the kernel has cached of a mount, for who publishes changes in it
//! ([`systx_guard::publication`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, removexattr, statx, unlinkat,
};
use rustix::io::Errno;
use systx_base::NodeId;
use systx_guard::inode_locks::Ticket;
use systx_guard::inode_locks::writers::Writing;
use systx_guard::publication::{BARRIER, Caches};

use crate::connection::{Connection, Shared};
use crate::node_unsafe::{open_node, open_node_to_read};

/// See the module.
pub struct KernelCaches {
    /// Not kept alive: who serves the mount decides when that ends.
    shared: Weak<Shared>,
    way: Way,
}

type Root = Box<dyn Fn() -> Result<OwnedFd, Errno> + Send + Sync>;

/// How a node of the mount is reached.
enum Way {
    /// By its number, from the root: open_by_handle_at(2) is root's alone.
    Handles(Root),
    /// As who serves the mount does it.
    Own(Box<Reach<'static>>),
}

type Reach<'a> = dyn Fn(NodeId) -> Result<OwnedFd, Errno> + Send + Sync + 'a;

impl Way {
    fn root(&self) -> Result<OwnedFd, Errno> {
        match self {
            Way::Handles(root) => root(),
            Way::Own(reach) => reach(NodeId::ROOT),
        }
    }

    /// For several nodes.
    fn begin(&self) -> Result<Box<Reach<'_>>, Errno> {
        match self {
            Way::Handles(root) => {
                let root = root()?;
                Ok(Box::new(move |node| open_node(root.as_fd(), node)))
            }
            Way::Own(reach) => Ok(Box::new(reach)),
        }
    }

    fn reach(&self, node: NodeId) -> Result<OwnedFd, Errno> {
        self.begin()?(node)
    }
}

impl Connection {
    /// The kernel's caches of the mount that this connection serves. `root` opens the mount's root
    /// for reading (open_by_handle_at(2) takes no `O_PATH`): not once for all, because what is open
    /// keeps the mount busy.
    pub fn caches(
        &self,
        root: impl Fn() -> Result<OwnedFd, Errno> + Send + Sync + 'static,
    ) -> KernelCaches {
        KernelCaches { shared: Arc::downgrade(&self.shared), way: Way::Handles(Box::new(root)) }
    }

    /// The same for who may not open by handle, in a mount that tells of opens. `reach` opens a
    /// node (`O_PATH`); `EACCES`: a directory to which this user has taken away all ways.
    pub fn caches_reached(
        &self,
        reach: impl Fn(NodeId) -> Result<OwnedFd, Errno> + Send + Sync + 'static,
    ) -> KernelCaches {
        KernelCaches { shared: Arc::downgrade(&self.shared), way: Way::Own(Box::new(reach)) }
    }
}

impl KernelCaches {
    fn notify(&self, send: impl FnOnce(&Shared) -> io::Result<()>) -> Result<(), Errno> {
        // Of a mount that is not served any more, nobody sees anything.
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        match send(&shared).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
            Err(errno) if !is_gone(errno) => Err(errno),
            _ => Ok(()),
        }
    }

    /// Has a directory locked for as long as its server takes to look up [`BARRIER`] in it.
    fn ask_locked(&self, dir: NodeId) -> Result<(), Errno> {
        let dir = match self.way.reach(dir) {
            Ok(dir) => dir,
            Err(errno) if is_gone(errno) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        // rmdir(2) has the directory locked when it asks for the name, which nothing has.
        match unlinkat(&dir, BARRIER, AtFlags::REMOVEDIR) {
            Err(errno) if !is_gone(errno) => Err(errno),
            _ => Ok(()),
        }
    }
}

/// The kernel does not know the object, or the mount is gone.
fn is_gone(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::STALE | Errno::NOTCONN | Errno::NODEV | Errno::CONNABORTED
    )
}

impl Caches for KernelCaches {
    fn drop_name(&self, dir: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.notify(|shared| shared.invalidate_entry(dir, name, false))
    }

    fn drop_attributes(&self, node: NodeId) -> Result<(), Errno> {
        self.notify(|shared| shared.invalidate_inode(node, None))
    }

    fn store_attributes(&self, nodes: &[NodeId]) -> Result<(), Errno> {
        if nodes.is_empty() {
            return Ok(());
        }
        // Nobody looks at what the one user of the mount has shut off from everybody.
        let is_passed = |errno| is_gone(errno) || errno == Errno::ACCESS;
        let told = self.way.begin().and_then(|reach| {
            nodes.iter().try_for_each(|node| {
                let asked = reach(*node).and_then(|node| {
                    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
                    statx(node, "", flags, StatxFlags::BASIC_STATS)
                });
                asked.map(drop).or_else(|errno| if is_passed(errno) { Ok(()) } else { Err(errno) })
            })
        });
        told.or_else(|errno| if is_gone(errno) { Ok(()) } else { Err(errno) })
    }

    fn drop_listing(&self, dir: NodeId) -> Result<(), Errno> {
        self.notify(|shared| shared.invalidate_inode(dir, Some((0, 0))))
    }

    fn drop_pages(&self, node: NodeId) -> Result<(), Errno> {
        self.notify(|shared| shared.invalidate_inode(node, Some((0, 0))))
    }

    fn drop_all_names(&self) -> Result<(), Errno> {
        self.notify(Shared::invalidate_all_names)
    }

    fn barrier(&self, dir: NodeId) -> Result<(), Errno> {
        match self.way {
            Way::Handles(_) => self.ask_locked(dir),
            // The kernel takes the same lock to forget a name, also one that is not there, and
            // needs no way to the directory.
            Way::Own(_) => self.drop_name(dir, BARRIER),
        }
    }

    fn lock(&self, dir: NodeId) -> Result<(), Errno> {
        self.ask_locked(dir)
    }

    fn file_barrier(&self, file: NodeId, ticket: Ticket) -> Result<(), Errno> {
        let file = match self.way.reach(file) {
            Ok(file) => file,
            Err(errno) if is_gone(errno) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        // removexattr(2) has the inode locked when it asks; of attributes in this name space the
        // kernel itself wants to know nothing.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        match removexattr(path, ticket.name()) {
            Err(Errno::NODATA) => Ok(()),
            Err(errno) if !is_gone(errno) => Err(errno),
            _ => Ok(()),
        }
    }

    fn keep_unwritten(&self, files: &[NodeId]) -> Result<Vec<Writing>, Errno> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let root = match self.way.root() {
            // Of a mount that is not there nobody has anything open.
            Err(errno) if is_gone(errno) => {
                return Ok(files.iter().map(|_| Writing::Unknown).collect());
            }
            root => root?,
        };
        let ask = |node: &NodeId| {
            let file = match open_node_to_read(root.as_fd(), *node) {
                Err(errno) if is_gone(errno) => return Ok(Writing::Unknown),
                file => file?,
            };
            Writing::of(file)
        };
        files.iter().map(ask).collect()
    }

    fn reach(&self, node: NodeId) -> Result<OwnedFd, Errno> {
        self.way.reach(node)
    }

    fn find(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let device = |fd: &OwnedFd| {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            statx(fd, "", flags, StatxFlags::empty())
                .map(|seen| (seen.stx_dev_major, seen.stx_dev_minor))
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        if device(&found)? == device(&self.way.root()?)? { Ok(found) } else { Err(Errno::XDEV) }
    }

    fn is_in_flight(&self, file: NodeId) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.server.in_flight.is_any(file))
    }
}
