//! The plain view of a log-structured volume: every request is performed at once on the volume, as
//! one transaction of it that is seen when it is answered and durable with the next fsync(2).
//!
//! The volume has no outsiders: what the kernel was told stays true until it asks for a change
//! itself, or a transaction commits.  So it may believe everything until a commit takes it back,
//! opens make no messages, and the kernel keeps the file locks of the mount, unless that is for
//! threads, whose transactions have to know of both ([`VolumeView::told_of`]). Every request passes
//! a [`Gate`], as those of a guarded directory do.
//!
//! From the bottom up: `base` (the live tree, or that of a snapshot), `table` (nodes that the
//! kernel knows), `writeback`, `order` (what passes the gate, and what commits ask), `numbers`,
//! then the requests: `attrs`, `names`, `list`, `data`, `opens`.

#![forbid(unsafe_code)]

mod attrs;
mod base;
mod data;
mod list;
mod names;
mod numbers;
mod opens;
mod order;
mod table;
mod writeback;

use base::Base;
use numbers::Numbers;
pub use numbers::Way;
use opens::Told;
use order::Object;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use systx_base::{Gid, Kind, NodeId, Oid, Uid};
use systx_guard::change::Change;
use systx_guard::plain::{Gate, NoGate, mutating, reading};
use systx_guard::publication::BARRIER;
use systx_lfs::format::BLOCK;
use systx_lfs::format::{Ino, ROOT};
use systx_lfs::{Ops, View as Snapshot, Volume};
use systx_lfs_store::{OWN_DIRECTORY, VolumeStore, path_of};
use systx_store::host_locks::LockFiles;
use systx_store::io::HostId;
use systx_txn::ObjectRef;
use systx_vfs::api::{Answer, Attr, Caller, Entry, Lock, OpenHow, Reply, Request, Requests, Valid};
use systx_vfs::locks::Wait;
use table::{Found, Table};
use writeback::Writeback;

/// Bytes of a block as stat(2) counts them.
const SECTOR: u64 = 512;

/// A plain view.
pub struct VolumeView {
    base: Base,
    table: Table,
    writeback: Option<Writeback>,
    gate: Arc<dyn Gate>,
    /// Of a mount that tells of opens.
    told: Option<Arc<Told>>,
    /// Of a mount whose server may not open by handle.
    numbers: Option<Numbers>,
}

/// An object's number is its node's: a number is never given twice.
fn ino_of(node: NodeId) -> Ino {
    node.0
}

/// Which object a number is.
fn id_of(ops: &mut Ops<'_>, ino: Ino) -> systx_lfs::Result<HostId> {
    Ok(systx_lfs_store::id_of(ino, &ops.attrs(ino)?))
}

/// The attributes of an object, as the volume has them.
fn stored_attr(ops: &mut Ops<'_>, ino: Ino) -> systx_lfs::Result<Attr> {
    let attrs = ops.attrs(ino)?;
    let blocks = if attrs.kind == Kind::File { ops.blocks(ino)? } else { 0 };
    Ok(Attr {
        ino,
        kind: attrs.kind,
        mode: attrs.mode,
        nlink: attrs.nlink,
        uid: attrs.uid,
        gid: attrs.gid,
        rdev: attrs.rdev,
        size: attrs.size,
        blocks: blocks * (BLOCK as u64 / SECTOR),
        blksize: BLOCK as u32,
        atime: attrs.atime,
        mtime: attrs.mtime,
        ctime: attrs.ctime,
    })
}

impl VolumeView {
    /// Of a volume.  What was changed is durable after `patience` at the latest, and `rest` is
    /// called when nothing was changed for as long again.  Every request passes `gate`.
    ///
    /// # Errors
    /// No thread can be had; the volume cannot be read.
    pub fn live(
        store: Arc<VolumeStore>,
        (patience, rest): (Duration, fn()),
        gate: Arc<dyn Gate>,
    ) -> std::io::Result<VolumeView> {
        let writeback = Writeback::start(Arc::clone(store.volume()), patience, rest)?;
        Ok(VolumeView::over(Base::Live(store), Some(writeback), gate)?)
    }

    fn over(base: Base, writeback: Option<Writeback>, gate: Arc<dyn Gate>) -> Reply<VolumeView> {
        let table = Table::new(base.look(|ops| id_of(ops, ROOT))?);
        Ok(VolumeView { base, table, writeback, gate, told: None, numbers: None })
    }

    /// The same view, in a mount that tells of opens and of locks, which are taken on `files`.
    #[must_use]
    pub fn told_of(self, files: Arc<LockFiles>) -> VolumeView {
        VolumeView { told: Some(Arc::new(Told::new(files))), ..self }
    }

    /// The same view, whose server may not open by handle, see `numbers`; `key`: what nobody else
    /// can guess, `owner`: who that is.
    #[must_use]
    pub fn with_numbers(self, key: u64, owner: (Uid, Gid)) -> VolumeView {
        VolumeView { numbers: Some(Numbers::new(key, owner)), ..self }
    }

    /// The way to a node, for who serves the mount.
    ///
    /// # Errors
    /// `ENOENT`: there is no such object, or a directory that has no name.
    pub fn way_to(&self, node: NodeId) -> Reply<Way> {
        let ino = ino_of(node);
        self.look(|ops| match (&self.numbers, ops.attrs(ino)?.kind) {
            (Some(numbers), Kind::File | Kind::Symlink | Kind::Fifo | Kind::Socket) => {
                Ok(numbers.way_to(node))
            }
            _ => path_of(ops, ino).map(|path| Way { path, forget: None }),
        })
    }

    /// Of a snapshot of a volume; nothing in it can be changed.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn of_snapshot(volume: Arc<Volume>, snapshot: Snapshot) -> std::io::Result<VolumeView> {
        let base = Base::Past(volume, Box::new(snapshot));
        Ok(VolumeView::over(base, None, Arc::new(NoGate))?)
    }

    /// No request comes any longer: lets go of what the kernel has known.
    pub fn end(&self) {
        for (ino, is_unnamed) in self.table.clear() {
            self.let_go(ino, is_unnamed);
        }
    }

    /// Looks at the tree.
    fn look<T>(&self, look: impl FnOnce(&mut Ops<'_>) -> systx_lfs::Result<T>) -> Reply<T> {
        self.base.look(look)
    }

    /// Changes the tree.  `act` may run more than once, each time on a clean slate.
    fn change<T>(&self, act: impl FnMut(&mut Ops<'_>) -> systx_lfs::Result<T>) -> Reply<T> {
        let done = self.base.change(act)?;
        if let Some(writeback) = &self.writeback {
            writeback.has_changed();
        }
        Ok(done)
    }

    /// Whether a name is the store's own, which nobody sees.
    fn hides(&self, dir: NodeId, name: &[u8]) -> bool {
        dir == NodeId::ROOT && name == OWN_DIRECTORY
    }

    /// The attributes of an object, where the gate has been passed.
    fn attr(&self, ino: Ino) -> Reply<Attr> {
        let attr = self.look(|ops| stored_attr(ops, ino))?;
        Ok(self.shown(attr))
    }

    /// The attributes of an object.
    fn read_attr(&self, node: NodeId) -> Reply<Attr> {
        if let Some(attr) = self.numbers.as_ref().and_then(|numbers| numbers.attr_of(node)) {
            return Ok(attr);
        }
        let oid = self.oid(node)?;
        let reads = [ObjectRef::Attr(oid), ObjectRef::Size(oid)];
        self.reading(&reads, || self.attr(ino_of(node)))
    }

    /// As stat(2) shows them.
    fn shown(&self, attr: Attr) -> Attr {
        // The store's own directory counts as one of its names; and it names what has no name.
        let hidden = attr.ino == ROOT || self.table.is_unnamed(attr.ino);
        Attr { nlink: attr.nlink.saturating_sub(hidden.into()), ..attr }
    }

    /// One more lookup of an object's node, which the kernel may have found by its number.
    fn enter(&self, ino: Ino) -> Reply<HostId> {
        self.enter_as(ino, Found::ByName)
    }

    /// The same, by who serves the mount: what its name means now has not been looked at.
    fn enter_by_number(&self, ino: Ino) -> Reply<HostId> {
        self.enter_as(ino, Found::ByNumber)
    }

    fn enter_as(&self, ino: Ino, found: Found) -> Reply<HostId> {
        self.table.enter(ino, found, || {
            self.base.hold(ino)?;
            self.look(|ops| Ok((id_of(ops, ino)?, ops.attrs(ino)?.kind))).inspect_err(|_| {
                let _ = self.base.release(ino);
            })
        })
    }

    /// Hands an object out that was found: one more lookup of its node.
    fn hand_out(&self, ino: Ino) -> Reply<Entry> {
        let oid = self.enter(ino)?.oid();
        let reads = [ObjectRef::Attr(oid), ObjectRef::Size(oid)];
        self.entry(ino, self.reading(&reads, || self.attr(ino)))
    }

    /// The same where the gate has been passed: of what this request has made.
    fn hand_out_new(&self, ino: Ino) -> Reply<Entry> {
        self.enter(ino)?;
        self.entry(ino, self.attr(ino))
    }

    fn entry(&self, ino: Ino, attr: Reply<Attr>) -> Reply<Entry> {
        match attr {
            Ok(attr) => Ok(Entry { node: NodeId(ino), generation: 0, attr }),
            Err(errno) => {
                self.forget(NodeId(ino), 1);
                Err(errno)
            }
        }
    }

    /// The kernel does not know an object any longer.
    fn let_go(&self, ino: Ino, is_unnamed: bool) {
        let gone = match (&self.base, is_unnamed) {
            (Base::Live(store), true) => self.change(|ops| store.forget_unnamed(ops, ino)),
            _ => Ok(()),
        };
        if let Err(errno) = gone.and_then(|()| self.base.release(ino)) {
            // Opening the volume again deletes it.
            tracing::warn!(ino, %errno, "an unnamed object stays for now");
        }
    }

    /// What the kernel knows by a node.
    ///
    /// # Errors
    /// `ESTALE`: nothing.
    pub(crate) fn object(&self, node: NodeId) -> Reply<Object<'_>> {
        let (id, kind) = self.table.id(ino_of(node)).ok_or(Errno::STALE)?;
        Ok(Object { view: self, id, kind })
    }

    /// What has a name in a directory now: which object, and its kind.
    pub(crate) fn named(&self, dir: NodeId, name: &[u8]) -> Reply<Option<Object<'_>>> {
        let found = self.look(|ops| {
            let link = ops.lookup(ino_of(dir), name)?;
            Ok((id_of(ops, link.ino)?, link.kind))
        });
        match found {
            Ok((id, kind)) => Ok(Some(Object { view: self, id, kind })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The key of a node in the conflict engine.
    pub(crate) fn oid(&self, node: NodeId) -> Reply<Oid> {
        Ok(self.object(node)?.oid())
    }

    /// Passes the gate to read.
    pub(crate) fn reading<T>(
        &self,
        reads: &[ObjectRef<'_>],
        act: impl FnOnce() -> Reply<T>,
    ) -> Reply<T> {
        reading(&*self.gate, reads, act)
    }

    /// Passes the gate to change something.
    pub(crate) fn mutating<T>(
        &self,
        change: Change<'_>,
        act: impl FnOnce() -> Reply<T>,
    ) -> Reply<T> {
        mutating(&*self.gate, change, act)
    }

    /// Fails if a commit has put another object in the place of this one, and it is changed by who
    /// found it by its name before that: the kernel then walks the path once more. By a descriptor,
    /// where that is known, the old one is changed as it would be without us.
    pub(crate) fn check_current(&self, node: NodeId) -> Reply<()> {
        let is_open = || Some(self.told.as_ref()?.is_open(self.table.id(ino_of(node))?.0));
        let is_old = self.table.is_superseded(ino_of(node)) && is_open() != Some(true);
        if is_old { Err(Errno::STALE) } else { Ok(()) }
    }

    /// Sets or gives up a lock.
    fn set_lock(&self, node: NodeId, lock: Lock, wait: Option<&Arc<Wait>>) -> Reply<()> {
        self.told()?.lock(self.object(node)?, lock, wait)
    }

    /// Who knows of opens and locks, where the mount tells of them.
    fn told(&self) -> Reply<&Told> {
        self.told.as_deref().ok_or(Errno::NOSYS)
    }
}

impl Requests for VolumeView {
    fn root(&self) -> Reply<Entry> {
        let attr = self.attr(ROOT)?;
        Ok(Entry { node: NodeId::ROOT, generation: 0, attr })
    }

    fn serve(&self, caller: Caller, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        Ok(match request {
            R::Lookup { parent, name } => self.find(parent, name)?.into(),
            R::Getattr { node } => {
                self.table.set_worn(ino_of(node), false);
                self.read_attr(node)?.into()
            }
            R::Born { node } => self.look(|ops| Ok(Some(ops.attrs(ino_of(node))?.btime)))?.into(),
            R::Setattr { node, set } => self.set_attr(caller, node, set)?.into(),
            R::Readlink { node } => self.read_link(node)?.into(),
            R::Mknod { parent, name, kind, new, rdev } => self
                .make(caller, (parent, name), names::New { kind, new, rdev, target: b"" })?
                .into(),
            R::Mkdir { parent, name, new } => {
                let new = names::New { kind: Kind::Dir, new, rdev: 0, target: b"" };
                self.make(caller, (parent, name), new)?.into()
            }
            R::Symlink { parent, name, target } => {
                self.make(caller, (parent, name), names::New::symlink(target))?.into()
            }
            R::Link { node, parent, name } => self.link_to(caller, node, parent, name)?.into(),
            R::Unlink { parent, name } => self.remove(caller, parent, name, false)?.into(),
            R::Rmdir { parent, name } => self.remove(caller, parent, name, true)?.into(),
            R::Rename { from, to, how } => self.move_name(caller, from, to, how)?.into(),
            R::Create { parent, name, new, exclusive } => {
                self.make_file(caller, (parent, name), new, exclusive)?.into()
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
            R::Statfs => self.base.statfs().into(),
            // One answer for directories and one for everything else, see `guard::plain`.
            R::Open { how: OpenHow { dir: true, .. }, .. } => return Err(Errno::NOSYS),
            R::Open { node, how } => self.told()?.open(self, node, how)?.into(),
            R::Getlk { node, lock } => self.told()?.test(self.object(node)?, lock)?.into(),
            R::Setlk { node, lock } => self.set_lock(node, lock, None)?.into(),
            R::Setlkw { node, lock, wait } => self.set_lock(node, lock, Some(wait))?.into(),
            // Asked where nobody answers for threads: who mounts the volume has not said so.
            R::Control { cmd: systx_abi::ATTACH, .. } => return Err(Errno::OPNOTSUPP),
            R::InodeFlags { .. } | R::Control { .. } => return Err(Errno::NOTTY),
            R::Fsync { .. } => {
                // Whoever wants what it has done to be durable, wants that, too.
                self.gate.wait_durable();
                self.base.sync()?.into()
            }
            content => return self.serve_content(caller, content),
        })
    }

    fn forget(&self, node: NodeId, count: u64) {
        if let Some((ino, is_unnamed)) = self.table.forget(ino_of(node), count) {
            self.let_go(ino, is_unnamed);
        }
    }

    fn release(&self, node: NodeId, handle: u8) {
        if let Some(told) = &self.told {
            told.remove(ino_of(node), handle);
        }
    }

    fn land(&self, node: NodeId) -> bool {
        self.table.id(ino_of(node)).is_some_and(|(id, _)| self.gate.land(id))
    }

    fn valid(&self, node: NodeId, name: Option<&[u8]>) -> Valid {
        if name == Some(BARRIER) {
            return Valid { name: Some(Duration::ZERO), ..Valid::default() };
        }
        if let Some(valid) = self.numbers.as_ref().and_then(|numbers| numbers.valid(node, name)) {
            return valid;
        }
        if !self.gate.is_publishing() {
            return Valid::default();
        }
        let known = self.table.id(ino_of(node));
        known.map_or(Valid::default(), |(id, _)| self.gate.valid(id.oid(), name))
    }
}
