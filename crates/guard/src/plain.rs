//! The plain view of a guarded directory: every request is performed at once on the backing files,
//! by the system call that the program made, and the backing file system's errors are the answers.
//!
//! - `table`: nodes, which live as long as the kernel knows them; `files`: what is open of them;
//!   `locks`: what is locked;
//! - `names`, `attrs`, `data`, `list`: the requests; `identity`, `unnaming`: on whose behalf;
//! - `zero`: what commits ask of it; `gate`: where the order of these requests is decided,
//!   `order`: by the conflict engine, `sealed`: not at all, `echo`: of views beside view 0; `sys`:
//!   system calls.
//!
//! The directory is reached by a descriptor that was opened before FUSE was mounted over it, and
//! all else from there one name at a time, never through a symbolic link and never onto another
//! mount.
//!
//! The kernel serialises: requests that change one directory come one at a time, and so do those
//! that change one file's content through descriptors. What others do to the backing files
//! meanwhile is as it would be without this view.

mod attrs;
mod data;
mod echo;
pub(crate) mod files;
mod gate;
mod identity;
mod list;
mod locks;
mod names;
mod order;
mod sealed;

mod sys_unsafe;
mod table;
mod unnaming;
mod zero;

pub use crate::change::Change;
pub(crate) use echo::Echo;
pub use gate::{Gate, NoGate, mutating, reading};
pub use order::{Order, STALL};
pub use sealed::Sealed;

use crate::publication::BARRIER;
use crate::sys;
use files::Opens;
use locks::BackingLocks;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use systx_base::{Kind, NodeId};
use systx_store::host_locks::LockFiles;
use systx_store::io::HostId;
use systx_txn::ObjectRef;
use systx_vfs::api::*;
use systx_vfs::locks::Locks;

/// View 0 of a guarded directory.
pub struct Plain {
    table: table::Table,
    /// Device number of the backing file system.
    dev: u64,
    hidden: HashSet<HostId>,
    gate: Arc<dyn Gate>,
    /// Opens make messages.
    told: bool,
    locks: BackingLocks,
}

impl Plain {
    /// A view of the directory `root`. Objects in `hidden` (the store's own directory) have no
    /// names here, and every request passes `gate`.
    ///
    /// # Errors
    /// Those of the backing file system; `ENOTDIR`.
    pub fn new(root: OwnedFd, hidden: HashSet<HostId>, gate: Arc<dyn Gate>) -> Reply<Plain> {
        // The other half is for open files, locks and the rest of the process.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20) / 2;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(1 << 20);
        Plain::with_descriptors(root, hidden, gate, limit)
    }

    /// As [`Plain::new`]; nodes hold about `limit` descriptors at most.
    ///
    /// # Errors
    /// As [`Plain::new`].
    pub fn with_descriptors(
        root: OwnedFd,
        hidden: HashSet<HostId>,
        gate: Arc<dyn Gate>,
        limit: usize,
    ) -> Reply<Plain> {
        Ok(Plain {
            dev: sys::stat(&root)?.dev,
            table: table::Table::new(root, limit)?,
            hidden,
            gate,
            told: true,
            locks: BackingLocks::default(),
        })
    }

    /// The same, where opens make no messages: nobody knows who has what open.
    #[must_use]
    pub fn untold(self) -> Plain {
        Plain { told: false, ..self }
    }

    /// The same, where locks are on these and not on the backing files.
    #[must_use]
    pub(crate) fn locking(self, files: Option<Arc<LockFiles>>) -> Plain {
        Plain { locks: BackingLocks { files, ..self.locks }, ..self }
    }

    /// Whether opens make messages.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// Nodes that the kernel knows, and the descriptors that they hold.
    pub fn size(&self) -> (usize, usize) {
        self.table.size()
    }

    /// The last number that was given to a node, or kept for one.
    pub(crate) fn last_node(&self) -> NodeId {
        self.table.last()
    }

    // ---- taking over from another view ------------------------------------------------------

    /// Inodes get these numbers when they are met, and nothing else gets a number up to `last`.
    pub(crate) fn keep_numbers(&self, numbers: impl Iterator<Item = (HostId, NodeId)>, last: u64) {
        self.table.keep_numbers(numbers, last);
    }

    /// Whether the node is here already.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.table.has(id)
    }

    /// `fd` (`O_PATH`) is what the kernel knows as node `id` and has open in these ways. It is here
    /// until the kernel forgets it or closes the last of these opens.
    pub(crate) fn adopt(&self, id: NodeId, fd: OwnedFd, host: HostId, kind: Kind, opens: Opens) {
        self.table.adopt(id, fd, host, kind, opens);
    }

    /// See [`table::Table::open_at_once`].
    pub(crate) fn open_at_once(&self, id: NodeId) {
        self.table.open_at_once(id, self.told);
    }

    /// The locks of the view in whose place this one is go on.
    pub(crate) fn adopt_locks(&self, locks: Arc<Locks>) {
        self.locks.held.adopt(locks);
    }

    // ---- what requests have in common -------------------------------------------------------

    /// Whether a node is a directory.
    pub(crate) fn is_dir(&self, node: NodeId) -> bool {
        self.table.node(node).is_ok_and(|node| node.kind == Kind::Dir)
    }

    /// Fails if a commit has put another inode in the place of this one, and it is changed by who
    /// found it by its name before that: the kernel then walks the path once more. By a descriptor,
    /// an old inode is changed as it would be without us.
    fn check_current(&self, node: &table::Node) -> Reply<()> {
        let by_name = || !self.told || node.files.lock().openers().is_none();
        if node.superseded.load(Relaxed) && by_name() { Err(Errno::STALE) } else { Ok(()) }
    }

    /// This request has made an object.
    fn has_made(&self, entry: &Entry) {
        if let Ok(node) = self.table.node(entry.node) {
            self.gate.born(node.host);
        }
    }

    /// Passes the gate to read.
    fn reading<T>(&self, reads: &[ObjectRef<'_>], act: impl FnOnce() -> Reply<T>) -> Reply<T> {
        gate::reading(&*self.gate, reads, act)
    }

    /// Passes the gate to change something.
    fn mutating<T>(&self, change: Change<'_>, act: impl FnOnce() -> Reply<T>) -> Reply<T> {
        gate::mutating(&*self.gate, change, act)
    }
}

/// Whether an inode is more than what is stored of it.
pub(crate) fn is_special(kind: Kind) -> bool {
    matches!(kind, Kind::Socket | Kind::Fifo)
}

/// Which inode a descriptor refers to.
pub(crate) fn identity_of(fd: &OwnedFd) -> Reply<HostId> {
    Ok(sys::stat(fd)?.id)
}

impl Requests for Plain {
    fn root(&self) -> Reply<Entry> {
        let attr = self.getattr_of(NodeId::ROOT)?;
        Ok(Entry { node: NodeId::ROOT, generation: 0, attr })
    }
    fn serve(&self, caller: Caller, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        Ok(match request {
            R::Lookup { parent, name } => self.find(parent, name)?.into(),
            R::Getattr { node } => self.getattr_of(node)?.into(),
            R::Born { node } => self.birth_of(node)?.into(),
            R::Setattr { node, set } => self.setattr_of(caller, node, set)?.into(),
            R::Readlink { node } => self.readlink_of(node)?.into(),
            R::Mknod { parent, name, kind, new, rdev } => {
                self.make_node(caller, parent, name, kind, new, rdev)?.into()
            }
            R::Mkdir { parent, name, new } => self.make_dir(caller, parent, name, new)?.into(),
            R::Symlink { parent, name, target } => {
                self.make_symlink(caller, parent, name, target)?.into()
            }
            R::Link { node, parent, name } => self.link_to(caller, node, parent, name)?.into(),
            R::Unlink { parent, name } => self.remove_file(caller, parent, name)?.into(),
            R::Rmdir { parent, name } => self.remove_dir(caller, parent, name)?.into(),
            R::Rename { from, to, how } => self.move_name(caller, from, to, how)?.into(),
            R::Create { parent, name, new, exclusive } => {
                self.make_file(caller, parent, name, new, exclusive)?.into()
            }
            R::Tmpfile { parent, new } => self.make_unnamed(caller, parent, new)?.into(),
            R::Readdir { node, from, attributes, sink } => {
                self.list_dir(node, from, attributes, sink)?.into()
            }
            R::Getxattr { node, key } => self.xattr(node, key)?.into(),
            R::Listxattr { node } => self.xattr_names(node)?.into(),
            R::Setxattr { node, key, value, how, kill_sgid } => {
                self.set_xattr(caller, node, key, (value, how), kill_sgid)?.into()
            }
            R::Removexattr { node, key } => self.remove_xattr(caller, node, key)?.into(),
            R::Statfs => self.statfs_of()?.into(),
            R::Getlk { node, lock } => self.locks.test(&self.table, (node, lock))?.into(),
            R::Setlk { node, lock } => self.locks.set(&self.table, (node, lock), None)?.into(),
            R::Setlkw { node, lock, wait } => {
                self.locks.set(&self.table, (node, lock), Some(wait))?.into()
            }
            R::InodeFlags { node } => self.flags_of(node)?.into(),
            R::Control { .. } => return Err(Errno::NOTTY),
            R::Open { node, how } => self.open_told(caller, node, how)?.into(),
            content => return self.serve_content(content),
        })
    }
    fn forget(&self, node: NodeId, count: u64) {
        self.table.forget(node, count);
    }
    fn release(&self, node: NodeId, handle: u8) {
        self.table.release(node, handle);
    }
    fn land(&self, node: NodeId) -> bool {
        self.table.node(node).is_ok_and(|node| self.gate.land(node.host))
    }
    fn valid(&self, node: NodeId, name: Option<&[u8]>) -> Valid {
        if name == Some(BARRIER) {
            return Valid { name: Some(Duration::ZERO), ..Valid::default() };
        }
        if !self.gate.is_publishing() {
            return Valid::default();
        }
        self.table.node(node).map_or(Valid::default(), |node| self.gate.valid(node.oid(), name))
    }
}

impl Plain {
    /// Requests about what is in a file.
    fn serve_content(&self, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        Ok(match request {
            R::Read { node, offset, buf } => self.read_from(node, offset, buf)?.into(),
            R::Write { node, offset, data, kill_suidgid } => {
                self.write_to(node, offset, data, kill_suidgid)?.into()
            }
            R::Append { node, offset, data, kill_suidgid } => {
                self.append_to(node, offset, data, kill_suidgid)?.into()
            }
            R::WriteBack { node, offset, data } => self.write_back_to(node, offset, data)?.into(),
            R::Fallocate { node, how, offset, len } => {
                self.fallocate_in(node, how, offset, len)?.into()
            }
            R::Lseek { node, offset, how } => self.seek_in(node, offset, how)?.into(),
            R::Copy { from, to, len } => self.copy_between(from, to, len)?.into(),
            R::Fsync { node, data_only } => {
                // Whoever wants what it has done to be durable, wants that, too.
                self.gate.wait_durable();
                self.sync_node(node, data_only)?.into()
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    fn open_told(&self, caller: Caller, node: NodeId, how: OpenHow) -> Reply<Opened> {
        // Of a directory there is nothing to know: whoever lists it asks for its entries, and what
        // the kernel keeps of them is dropped by the publication of a commit, whoever has it open.
        // The kernel knows one answer for directories and one for everything else.
        if how.dir || !self.told {
            return Err(Errno::NOSYS);
        }
        // ENOSYS would mean something else.
        self.open_node(caller, node, how).map_err(|e| if e == Errno::NOSYS { Errno::IO } else { e })
    }

    /// Opens a node, also a directory, for a client whose closing of it will be told.
    pub(crate) fn open_node(&self, caller: Caller, id: NodeId, how: OpenHow) -> Reply<Opened> {
        let node = self.table.node(id)?;
        let oid = node.oid();
        let may_write = || if how.write { self.gate.before_writing(node.host) } else { Ok(()) };
        // Who waits here opens what is there afterwards.
        may_write()?;
        // Before the answer is made: a commit that begins meanwhile waits for it.
        let keeps = self.gate.may_keep(oid);
        let handle = self.reading(&[ObjectRef::Attr(oid), ObjectRef::Size(oid)], || {
            // The kernel then walks the path once more.
            if node.superseded.load(Relaxed) {
                Err(Errno::STALE)
            } else {
                self.table.enter_open(caller, &node, how)
            }
        })?;
        self.table.opened(id);
        // Who has read it since then, and found nobody that has it open for writing, does not keep
        // it locked.
        if let Err(killed) = may_write() {
            self.table.release(id, handle);
            return Err(killed);
        }
        // Pages go when the commit has them dropped, with nobody writing: not at a moment of the
        // opener's.
        let keep_cache = keeps || node.kind != Kind::Dir;
        Ok(Opened { handle, keep_cache, cache_listing: false })
    }
}
