//! A request as a value, and its answer: what a view serves, and what stands before a view hands
//! on.
//!
//! A view has one method for all requests, [`Requests::serve`]. So a layer that only routes (a view
//! after its commit, the alias roots of threads) looks at the nodes of a request and hands it on
//! whole, and a tracer or a recorder is one wrapper. Who makes requests uses [`Calls`], a typed
//! method for each.

use crate::api::*;
use crate::client;
use crate::locks::Wait;
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::{Kind, NodeId, Time};

/// Takes the names of a listing; false: this one is not taken, and no more are wanted.
pub type Sink<'a> = dyn FnMut(DirEntry<'_>) -> bool + 'a;

/// What is asked of a view.  Each is described with its method of [`Calls`], whose parameters are
/// the fields.
#[allow(missing_docs)] // the fields are those of `Calls`
pub enum Request<'a> {
    Lookup { parent: NodeId, name: &'a [u8] },
    Getattr { node: NodeId },
    Born { node: NodeId },
    Setattr { node: NodeId, set: SetAttr },
    Readlink { node: NodeId },
    Mknod { parent: NodeId, name: &'a [u8], kind: Kind, new: NewAttr, rdev: u64 },
    Mkdir { parent: NodeId, name: &'a [u8], new: NewAttr },
    Symlink { parent: NodeId, name: &'a [u8], target: &'a [u8] },
    Link { node: NodeId, parent: NodeId, name: &'a [u8] },
    Unlink { parent: NodeId, name: &'a [u8] },
    Rmdir { parent: NodeId, name: &'a [u8] },
    Rename { from: (NodeId, &'a [u8]), to: (NodeId, &'a [u8]), how: RenameHow },
    Create { parent: NodeId, name: &'a [u8], new: NewAttr, exclusive: bool },
    Tmpfile { parent: NodeId, new: NewAttr },
    Read { node: NodeId, offset: u64, buf: &'a mut [u8] },
    Write { node: NodeId, offset: u64, data: &'a [u8], kill_suidgid: bool },
    Append { node: NodeId, offset: u64, data: &'a [u8], kill_suidgid: bool },
    WriteBack { node: NodeId, offset: u64, data: &'a [u8] },
    Fallocate { node: NodeId, how: Fallocate, offset: u64, len: u64 },
    Lseek { node: NodeId, offset: u64, how: Seek },
    Copy { from: (NodeId, u64), to: (NodeId, u64), len: u64 },
    Readdir { node: NodeId, from: u64, attributes: bool, sink: &'a mut Sink<'a> },
    Getxattr { node: NodeId, key: &'a [u8] },
    Listxattr { node: NodeId },
    Setxattr { node: NodeId, key: &'a [u8], value: &'a [u8], how: SetXattr, kill_sgid: bool },
    Removexattr { node: NodeId, key: &'a [u8] },
    Statfs,
    Getlk { node: NodeId, lock: Lock },
    Setlk { node: NodeId, lock: Lock },
    Setlkw { node: NodeId, lock: Lock, wait: &'a Arc<Wait> },
    InodeFlags { node: NodeId },
    Control { node: NodeId, cmd: u32, arg: &'a [u8] },
    Open { node: NodeId, how: OpenHow },
    Fsync { node: NodeId, data_only: bool },
}

impl Request<'_> {
    /// The nodes that it is about, in the order of its fields.  Whoever gives a node another number
    /// changes it here.
    pub fn nodes(&mut self) -> [Option<&mut NodeId>; 2] {
        use Request as R;
        match self {
            R::Statfs => [None, None],
            R::Link { node, parent, .. } => [Some(node), Some(parent)],
            R::Rename { from: (one, _), to: (two, _), .. } => [Some(one), Some(two)],
            R::Copy { from: (one, _), to: (two, _), .. } => [Some(one), Some(two)],
            R::Lookup { parent: node, .. }
            | R::Mknod { parent: node, .. }
            | R::Mkdir { parent: node, .. }
            | R::Symlink { parent: node, .. }
            | R::Unlink { parent: node, .. }
            | R::Rmdir { parent: node, .. }
            | R::Create { parent: node, .. }
            | R::Tmpfile { parent: node, .. }
            | R::Getattr { node }
            | R::Born { node }
            | R::Setattr { node, .. }
            | R::Readlink { node }
            | R::Read { node, .. }
            | R::Write { node, .. }
            | R::Append { node, .. }
            | R::WriteBack { node, .. }
            | R::Fallocate { node, .. }
            | R::Lseek { node, .. }
            | R::Readdir { node, .. }
            | R::Getxattr { node, .. }
            | R::Listxattr { node }
            | R::Setxattr { node, .. }
            | R::Removexattr { node, .. }
            | R::Getlk { node, .. }
            | R::Setlk { node, .. }
            | R::Setlkw { node, .. }
            | R::InodeFlags { node }
            | R::Control { node, .. }
            | R::Open { node, .. }
            | R::Fsync { node, .. } => [Some(node), None],
        }
    }

    /// Whether it gives a lock back.
    pub fn unlocks(&self) -> bool {
        matches!(self, Request::Setlk { lock, .. } if lock.kind == LockKind::Unlock)
    }
}

/// A type that answers have.
pub trait Answers: Sized {
    /// What a request was answered with; `None`: that was of another type.
    fn of(answer: Answer) -> Option<Self>;
}

macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident($what:ty),)*) => {
        /// What a request is answered with.  Each request has one type of answer, see [`Calls`].
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Answer { $($(#[$doc])* $name($what),)* }
        $(
            impl From<$what> for Answer {
                fn from(what: $what) -> Answer { Answer::$name(what) }
            }
            impl Answers for $what {
                fn of(answer: Answer) -> Option<$what> {
                    match answer { Answer::$name(what) => Some(what), _ => None }
                }
            }
        )*
    };
}

answers! {
    /// It is done.
    Done(()),
    /// A node, handed out.
    Entry(Entry),
    /// The node of a name, handed out, or that there is none.
    Found(Option<Entry>),
    /// Attributes.
    Attr(Attr),
    /// When it was made, where that is known.
    Born(Option<Time>),
    /// A target, a value, or names.
    Bytes(Vec<u8>),
    /// Bytes read or written.
    Length(usize),
    /// Bytes appended, and whether elsewhere than the kernel believed.
    Appended((usize, bool)),
    /// A place in a file, or bytes copied.
    Offset(u64),
    /// Of the file system.
    StatFs(StatFs),
    /// The lock in the way.
    Lock(Option<Lock>),
    /// Flags of an inode.
    Flags(u32),
    /// An open file or directory.
    Opened(Opened),
}

/// What serves requests.  All methods may be called from several threads at once.  None may
/// block for a running transaction (docs/SEMANTICS.md, waiting); they block for the disk, and for
/// the end of a commit that has already been decided.
pub trait Requests: Send + Sync {
    /// The attributes of the root, before any request: fails if the volume is gone.
    fn root(&self) -> Reply<Entry>;
    /// Performs a request.  The caller is also the thread's client, see [`client::serving`].
    fn serve(&self, caller: Caller, request: Request<'_>) -> Reply<Answer>;
    /// Takes back `count` lookups of a node.  The node may still be used by other names.
    fn forget(&self, node: NodeId, count: u64);
    /// The last descriptor of an open is closed and its mappings are gone.
    fn release(&self, node: NodeId, handle: u8);
    /// A descriptor is being closed by this thread; perhaps not the last one.
    fn closes(&self, _caller: Caller, _node: NodeId) {}
    /// A directory of whose cached listing the kernel is to be rid, asked after the beginning of a
    /// file was read.
    ///
    /// Each READ makes the kernel doubt the access time, and the next stat(2) of the file costs a
    /// message (fs/fuse: `fuse_invalidate_atime`). A new listing with attributes settles it for all
    /// files of a directory at once, but the kernel only asks for one if it does not have the
    /// listing any more.
    fn worn_listing(&self, _file: NodeId) -> Option<NodeId> {
        None
    }
    /// Waits, not for long, until the calls that have changed a file's content are over: asked
    /// before attributes are told, while one may not be.  The kernel learns a new length only as
    /// such a call ends.  Whether they are over.
    fn land(&self, _node: NodeId) -> bool {
        false
    }
    /// True while a request waits for something that is nobody's fault and may take its time, such
    /// as a commit that is being installed: the watchdog of the connection is then more patient.
    /// Called at any time, waits for no request.
    fn waits(&self) -> bool {
        false
    }
    /// How long the kernel may believe the answer to a request about `node`, or about `name` in it.
    /// Asked *before* the request is performed: who lowers it waits for the answers under way.
    fn valid(&self, _node: NodeId, _name: Option<&[u8]>) -> Valid {
        Valid::default()
    }
}

/// The requests of a view, one typed method for each.  Where a call has no caller, the request is
/// made for the thread's client.
pub trait Calls: Requests {
    /// Performs a request whose answer has this type.
    ///
    /// # Errors
    /// The request's; `EIO` for an answer of another type.
    fn call<T: Answers>(&self, caller: Caller, request: Request<'_>) -> Reply<T> {
        T::of(self.serve(caller, request)?).ok_or(Errno::IO)
    }
    /// Finds a name.  `Ok(None)`: there is none, and the answer may be cached.
    fn lookup(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<Option<Entry>> {
        self.call(caller, Request::Lookup { parent, name })
    }
    /// stat(2).
    fn getattr(&self, node: NodeId) -> Reply<Attr> {
        self.call(client::asking(), Request::Getattr { node })
    }
    /// statx(2) with `STATX_BTIME`: when it was made, where the file system knows.
    fn born(&self, node: NodeId) -> Reply<Option<Time>> {
        self.call(client::asking(), Request::Born { node })
    }
    /// chmod(2), chown(2), utimensat(2), truncate(2).
    fn setattr(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Attr> {
        self.call(caller, Request::Setattr { node, set })
    }
    /// readlink(2).
    fn readlink(&self, node: NodeId) -> Reply<Vec<u8>> {
        self.call(client::asking(), Request::Readlink { node })
    }
    /// mknod(2), also of regular files.
    fn mknod(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        new: NewAttr,
        rdev: u64,
    ) -> Reply<Entry> {
        self.call(caller, Request::Mknod { parent, name, kind, new, rdev })
    }
    /// mkdir(2).
    fn mkdir(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewAttr) -> Reply<Entry> {
        self.call(caller, Request::Mkdir { parent, name, new })
    }
    /// symlink(2).
    fn symlink(&self, caller: Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Reply<Entry> {
        self.call(caller, Request::Symlink { parent, name, target })
    }
    /// link(2): gives `node` another name.
    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        self.call(caller, Request::Link { node, parent, name })
    }
    /// unlink(2).  The node stays usable while the kernel holds it.
    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.call(caller, Request::Unlink { parent, name })
    }
    /// rmdir(2).
    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.call(caller, Request::Rmdir { parent, name })
    }
    /// renameat2(2).
    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()> {
        self.call(caller, Request::Rename { from, to, how })
    }
    /// open(2) with `O_CREAT` of a name the kernel believes absent; `exclusive`: `EEXIST` if it is
    /// not.  Else an existing object is an answer only if [`Entry::opens_unchecked`].
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewAttr,
        exclusive: bool,
    ) -> Reply<Entry> {
        self.call(caller, Request::Create { parent, name, new, exclusive })
    }
    /// open(2) with `O_TMPFILE`: a file without a name.
    fn tmpfile(&self, caller: Caller, parent: NodeId, new: NewAttr) -> Reply<Entry> {
        self.call(caller, Request::Tmpfile { parent, new })
    }
    /// Fills `buf` from `offset`; fewer bytes only at the end of the file.
    fn read(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        self.call(client::asking(), Request::Read { node, offset, buf })
    }
    /// Writes all of `data`; `kill_suidgid`: `FUSE_WRITE_KILL_SUIDGID`.
    fn write(&self, node: NodeId, offset: u64, data: &[u8], kill_suidgid: bool) -> Reply<usize> {
        self.call(client::asking(), Request::Write { node, offset, data, kill_suidgid })
    }
    /// As [`Calls::write`], by a descriptor with `O_APPEND`: at the end of the file, wherever the
    /// kernel believes that to be. Also whether that was elsewhere than at `offset`: then the pages
    /// that the kernel has now are wrong.
    fn append(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Reply<(usize, bool)> {
        self.call(client::asking(), Request::Append { node, offset, data, kill_suidgid })
    }
    /// What the kernel writes back of its pages, which were stored to by mappings. It makes no file
    /// longer: what lies behind the end is no part of the file.
    fn write_back(&self, node: NodeId, offset: u64, data: &[u8]) -> Reply<()> {
        self.call(client::asking(), Request::WriteBack { node, offset, data })
    }
    /// fallocate(2).
    fn fallocate(&self, node: NodeId, how: Fallocate, offset: u64, len: u64) -> Reply<()> {
        self.call(client::asking(), Request::Fallocate { node, how, offset, len })
    }
    /// lseek(2) for data and holes.
    fn lseek(&self, node: NodeId, offset: u64, how: Seek) -> Reply<u64> {
        self.call(client::asking(), Request::Lseek { node, offset, how })
    }
    /// copy_file_range(2) within the view; may copy less.
    fn copy_file_range(&self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Reply<u64> {
        self.call(client::asking(), Request::Copy { from, to, len })
    }
    /// Lists from cookie `from` (0: the start) until the sink returns false, which refuses that
    /// entry.  `attributes`: hand out nodes as well (READDIRPLUS).
    fn readdir(&self, node: NodeId, from: u64, attributes: bool, sink: &mut Sink<'_>) -> Reply<()> {
        // The sink behind a reference may live longer than the reference, and a request has one
        // lifetime.
        let mut take = |entry: DirEntry<'_>| sink(entry);
        let request = Request::Readdir { node, from, attributes, sink: &mut take };
        self.call(client::asking(), request)
    }
    /// getxattr(2), whole value; `ENODATA` if there is none.
    fn getxattr(&self, node: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        self.call(client::asking(), Request::Getxattr { node, key })
    }
    /// listxattr(2): names, each ended by NUL.
    fn listxattr(&self, node: NodeId) -> Reply<Vec<u8>> {
        self.call(client::asking(), Request::Listxattr { node })
    }
    /// setxattr(2).
    fn setxattr(
        &self,
        caller: Caller,
        node: NodeId,
        key: &[u8],
        value: &[u8],
        how: SetXattr,
        kill_sgid: bool,
    ) -> Reply<()> {
        self.call(caller, Request::Setxattr { node, key, value, how, kill_sgid })
    }
    /// removexattr(2).
    fn removexattr(&self, caller: Caller, node: NodeId, key: &[u8]) -> Reply<()> {
        self.call(caller, Request::Removexattr { node, key })
    }
    /// statfs(2).
    fn statfs(&self) -> Reply<StatFs> {
        self.call(client::asking(), Request::Statfs)
    }
    /// `F_GETLK`: the first lock that is in the way, if any.
    fn getlk(&self, node: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        self.call(client::asking(), Request::Getlk { node, lock })
    }
    /// `F_SETLK`, `flock` with `LOCK_NB`: `EAGAIN` if another lock is in the way.  A blocking
    /// request is brought as repeated calls by the layer above, which knows about interruption.
    fn setlk(&self, node: NodeId, lock: Lock) -> Reply<()> {
        self.call(client::asking(), Request::Setlk { node, lock })
    }
    /// One try of a blocking request, `F_SETLKW` or `flock`: `EAGAIN` if another lock is in the
    /// way, and `wait` is woken when that may have changed; `EDEADLK` if it would wait for ever.
    /// Who is not ours wakes nobody.
    fn setlkw(&self, node: NodeId, lock: Lock, wait: &Arc<Wait>) -> Reply<()> {
        self.call(client::asking(), Request::Setlkw { node, lock, wait })
    }
    /// `FS_IOC_GETFLAGS` and its siblings: `ENOTTY` where there is nothing to tell.
    fn inode_flags(&self, node: NodeId) -> Reply<u32> {
        self.call(client::asking(), Request::InodeFlags { node })
    }
    /// An ioctl of this program, see `systx-abi`: `ENOTTY` for what is none.  The answer is as long
    /// as the argument.
    fn control(&self, caller: Caller, node: NodeId, cmd: u32, arg: &[u8]) -> Reply<Vec<u8>> {
        self.call(caller, Request::Control { node, cmd, arg })
    }
    /// open(2) and opendir(3) of a node, also right after it was created.  `ENOSYS` says that opens
    /// need no message: the kernel then never asks again, and nobody is told who has what open.  A
    /// view says so always or never, of directories and of files separately.  `O_TRUNC` does not
    /// come here but as a change of the length.
    fn open(&self, caller: Caller, node: NodeId, how: OpenHow) -> Reply<Opened> {
        self.call(caller, Request::Open { node, how })
    }
    /// fsync(2), and fdatasync(2) with `data_only`. `ENOSYS`: it succeeds and the kernel never asks
    /// again, because durability comes otherwise.
    fn fsync(&self, node: NodeId, data_only: bool) -> Reply<()> {
        self.call(client::asking(), Request::Fsync { node, data_only })
    }
}

impl<T: Requests + ?Sized> Calls for T {}
