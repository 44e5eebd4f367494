//! Names come and go: lookup, create, link, unlink, rename.

use super::identity::Acting;
use super::table::Node;
use super::unnaming::Unnaming;
use super::{Change, Plain};
use crate::change::Place;
use crate::publication::BARRIER;
use crate::sys;
use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use systx_base::{Kind, NodeId, Oid};
use systx_txn::ObjectRef;
use systx_vfs::api::{Attr, Caller, Entry, NewAttr, RenameHow, Reply};

/// What is held while a name goes away.
type Kept = Option<Arc<Node>>;

impl Plain {
    /// The two objects that every change of a name writes.
    fn change_of<'a>(dir: &Node, name: &'a [u8]) -> [ObjectRef<'a>; 2] {
        [ObjectRef::Entry { dir: dir.oid(), name }, ObjectRef::List(dir.oid())]
    }

    /// Refuses the name of barriers.
    fn expect_free(name: &[u8]) -> Reply<()> {
        if name == BARRIER { Err(Errno::PERM) } else { Ok(()) }
    }

    /// A change of names in one directory.
    fn renaming<'a>(
        by: Caller,
        writes: &'a [ObjectRef<'a>],
        places: &'a [(Oid, Place<'a>)],
    ) -> Change<'a> {
        Change { by, reads: &[], writes, subject: None, places, may_stall: true }
    }

    pub(super) fn find(&self, parent: NodeId, name: &[u8]) -> Reply<Option<Entry>> {
        let dir = self.dir(parent)?;
        if name == BARRIER {
            self.gate.barrier(dir.oid());
            return Ok(None);
        }
        let path = self.table.path(&dir)?;
        let fd =
            self.reading(&[ObjectRef::Entry { dir: dir.oid(), name }], || {
                match sys::child(&*path, name) {
                    Ok(fd) => Ok(Some(fd)),
                    Err(Errno::NOENT) => Ok(None),
                    Err(e) => Err(e),
                }
            })?;
        fd.map_or(Ok(None), |fd| self.hand_out(fd))
    }

    /// The entry of an object that was just opened, with one more lookup; `None` if it is hidden.
    pub(crate) fn hand_out(&self, fd: OwnedFd) -> Reply<Option<Entry>> {
        let seen = sys::stat(&fd)?;
        if self.hidden.contains(&seen.id) {
            return Ok(None);
        }
        let oid = seen.id.oid();
        // What it is does not change; what it looks like may, until the gate is passed.
        let node = self.table.enter(fd, seen.id, seen.kind);
        let attr = self.reading(&[ObjectRef::Attr(oid), ObjectRef::Size(oid)], || {
            sys::attr(&*self.table.path(&node)?)
        });
        match attr {
            Ok(attr) => Ok(Some(Entry { node: node.id, generation: 0, attr })),
            Err(errno) => {
                self.table.forget(node.id, 1);
                Err(errno)
            }
        }
    }

    /// The entry of an object that this request has made: nobody else has anything to say about it.
    fn hand_out_new(&self, fd: OwnedFd) -> Reply<Entry> {
        let seen = sys::stat(&fd)?;
        let node = self.table.enter(fd, seen.id, seen.kind);
        Ok(Entry { node: node.id, generation: 0, attr: Attr::from(&seen) })
    }

    fn dir(&self, id: NodeId) -> Reply<Arc<Node>> {
        let node = self.table.node(id)?;
        if node.kind == Kind::Dir { Ok(node) } else { Err(Errno::NOTDIR) }
    }

    /// Makes a name by one call on behalf of the caller.
    fn make(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        umask: u32,
        call: impl FnOnce(&super::table::PathFd) -> Reply<()>,
    ) -> Reply<Entry> {
        Self::expect_free(name)?;
        let dir = self.dir(parent)?;
        let path = self.table.path(&dir)?;
        let places = [dir.by(path.as_fd())];
        self.mutating(Self::renaming(caller, &Self::change_of(&dir, name), &places), || {
            {
                let _acting = Acting::creating(caller, umask)?;
                call(&path)?;
            }
            let entry = self.hand_out_new(sys::child(&*path, name)?)?;
            self.has_made(&entry);
            Ok(entry)
        })
    }

    pub(super) fn make_node(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        new: NewAttr,
        rdev: u64,
    ) -> Reply<Entry> {
        let mode = Mode::from_raw_mode(new.mode & 0o7777);
        self.make(caller, parent, name, new.umask, |dir| {
            fs::mknodat(dir, name, sys::file_type(kind), mode, rdev)
        })
    }

    pub(super) fn make_dir(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewAttr,
    ) -> Reply<Entry> {
        let mode = Mode::from_raw_mode(new.mode & 0o7777);
        self.make(caller, parent, name, new.umask, |dir| fs::mkdirat(dir, name, mode))
    }

    pub(super) fn make_symlink(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Reply<Entry> {
        self.make(caller, parent, name, 0, |dir| fs::symlinkat(target, dir, name))
    }

    pub(super) fn make_file(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewAttr,
        exclusive: bool,
    ) -> Reply<Entry> {
        Self::expect_free(name)?;
        let dir = self.dir(parent)?;
        let path = self.table.path(&dir)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(new.mode & 0o7777);
        let places = [dir.by(path.as_fd())];
        let writes = Self::change_of(&dir, name);
        let made = self.mutating(Self::renaming(caller, &writes, &places), || {
            let fd = {
                let _acting = Acting::creating(caller, new.umask)?;
                match fs::openat(&*path, name, flags, mode) {
                    Err(Errno::EXIST) if !exclusive => return Ok(None),
                    other => other?,
                }
            };
            self.hand_out_open(fd).map(Some)
        })?;
        match made {
            Some(entry) => Ok(entry),
            // An outsider was faster.
            None => {
                let entry = self.find(parent, name)?.ok_or(Errno::STALE)?;
                entry.opens_unchecked(caller).inspect_err(|_| self.table.forget(entry.node, 1))?;
                Ok(entry)
            }
        }
    }

    /// The entry of a new file that is open for writing already: the open that follows uses that.
    fn hand_out_open(&self, fd: OwnedFd) -> Reply<Entry> {
        let entry = self.hand_out_new(sys::reopen(&fd, OFlags::PATH)?)?;
        self.has_made(&entry);
        // Where opens are not told none follows, and nobody would say when it is over.
        if let Ok(node) = self.table.node(entry.node)
            && self.told
        {
            node.files.lock().write.get_or_insert(Arc::new(fd));
        }
        Ok(entry)
    }

    pub(super) fn make_unnamed(
        &self,
        caller: Caller,
        parent: NodeId,
        new: NewAttr,
    ) -> Reply<Entry> {
        let dir = self.dir(parent)?;
        let path = self.table.path(&dir)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(new.mode & 0o7777);
        // Nobody can know it: no object of others is touched.
        self.mutating(Self::renaming(caller, &[], &[]), || {
            let fd = {
                let _acting = Acting::creating(caller, new.umask)?;
                fs::openat(&*path, c".", flags, mode)?
            };
            self.hand_out_open(fd)
        })
    }

    pub(super) fn link_to(
        &self,
        caller: Caller,
        id: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Reply<Entry> {
        Self::expect_free(name)?;
        let (node, dir) = (self.table.node(id)?, self.dir(parent)?);
        let (file, path) = (self.table.path(&node)?, self.table.path(&dir)?);
        let writes = Self::change_of(&dir, name);
        let places = [dir.by(path.as_fd())];
        let subject = Some(node.by(file.as_fd()));
        let change = Change { subject, ..Self::renaming(caller, &writes, &places) };
        self.mutating(change, || {
            self.check_current(&node)?;
            match fs::linkat(&*file, c"", &*path, name, AtFlags::EMPTY_PATH) {
                // Without CAP_DAC_READ_SEARCH; or there is no link to be had.
                Err(Errno::NOENT) => {
                    let at = sys::path_of(&*file);
                    fs::linkat(fs::CWD, at, &*path, name, AtFlags::SYMLINK_FOLLOW)?;
                }
                other => other?,
            }
            // The name means this inode now, whatever an outsider does to it next.
            let attr = sys::attr(&*file)?;
            self.table.looked_up(node.id);
            Ok(Entry { node: node.id, generation: 0, attr })
        })
    }

    /// Before a name goes away: the node of a directory that has it, if `listed` is asked for, and
    /// a descriptor for a node that gave up its own, without which it could not be reached any
    /// more. `ENOENT` if the name is hidden.
    fn before_loss(&self, dir: &Node, name: &[u8], listed: bool) -> Reply<Loss> {
        let mut loss = Loss::default();
        let must_keep = self.table.gave_up_any();
        if self.hidden.is_empty() && !must_keep && !listed {
            return Ok(loss);
        }
        let path = self.table.path(dir)?;
        let seen = match sys::stat_at(&*path, name) {
            Ok(seen) => seen,
            // The call itself says it best.
            Err(_) => return Ok(loss),
        };
        if self.hidden.contains(&seen.id) {
            return Err(Errno::NOENT);
        }
        if seen.kind == Kind::Dir {
            loss.dir = Some(seen.id.oid());
        }
        if must_keep
            && seen.dev == self.dev
            && let Ok(fd) = sys::child(&*path, name)
        {
            loss.kept = Some(self.table.enter(fd, seen.id, seen.kind));
        }
        Ok(loss)
    }

    fn after_loss(&self, loss: Loss) {
        if let Some(node) = loss.kept {
            self.table.forget(node.id, 1);
        }
    }

    pub(super) fn remove_file(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        let dir = self.dir(parent)?;
        let path = self.table.path(&dir)?;
        let loss = self.before_loss(&dir, name, false)?;
        let places = [dir.by(path.as_fd())];
        let writes = Self::change_of(&dir, name);
        let done = self.mutating(Self::renaming(caller, &writes, &places), || {
            let lost = [(path.as_fd(), name)];
            let how = Unnaming { caller, lost: &lost, makes: false };
            how.act(|| fs::unlinkat(&*path, name, AtFlags::empty()))
        });
        self.after_loss(loss);
        done
    }

    pub(super) fn remove_dir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        let dir = self.dir(parent)?;
        let path = self.table.path(&dir)?;
        let loss = self.before_loss(&dir, name, true)?;
        // That it is empty is something that the removal relies on.
        let emptied = loss.dir.map(ObjectRef::List);
        let writes = Self::change_of(&dir, name);
        let places = [dir.by(path.as_fd())];
        let change =
            Change { reads: emptied.as_slice(), ..Self::renaming(caller, &writes, &places) };
        let done = self.mutating(change, || {
            let lost = [(path.as_fd(), name)];
            let how = Unnaming { caller, lost: &lost, makes: false };
            how.act(|| fs::unlinkat(&*path, name, AtFlags::REMOVEDIR))
        });
        self.after_loss(loss);
        done
    }

    pub(super) fn move_name(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()> {
        Self::expect_free(to.1)?;
        let (from_dir, to_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        let (from_path, to_path) = (self.table.path(&from_dir)?, self.table.path(&to_dir)?);
        let flags = match how {
            RenameHow::Replace => RenameFlags::empty(),
            RenameHow::NoReplace => RenameFlags::NOREPLACE,
            RenameHow::Exchange => RenameFlags::EXCHANGE,
            RenameHow::Whiteout => RenameFlags::WHITEOUT,
            RenameHow::WhiteoutNoReplace => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
        };
        if !self.hidden.is_empty() {
            self.before_loss(&from_dir, from.1, true).map(|loss| self.after_loss(loss))?;
        }
        let replaces = matches!(how, RenameHow::Replace | RenameHow::Whiteout);
        let loss = self.before_loss(&to_dir, to.1, replaces)?;
        let emptied = if replaces { loss.dir.map(ObjectRef::List) } else { None };
        let ([a, b], [c, d]) = (Self::change_of(&from_dir, from.1), Self::change_of(&to_dir, to.1));
        let all = [a, b, c, d];
        // Within one directory its list is one object.
        let writes = if from_dir.id == to_dir.id { &all[..3] } else { &all[..] };
        let reads = emptied.as_slice();
        // Between two directories it keeps the kernel's one lock on all such renames.
        let may_stall = from_dir.id == to_dir.id;
        let places = [from_dir.by(from_path.as_fd()), to_dir.by(to_path.as_fd())];
        let places = if from_dir.id == to_dir.id { &places[..1] } else { &places[..] };
        let change = Change { by: caller, reads, writes, subject: None, places, may_stall };
        let done = self.mutating(change, || {
            let lost = [(from_path.as_fd(), from.1), (to_path.as_fd(), to.1)];
            // A whiteout is a new object, and the caller's.
            let how = Unnaming { caller, lost: &lost, makes: how.leaves_whiteout() };
            how.act(|| fs::renameat_with(&*from_path, from.1, &*to_path, to.1, flags))
        });
        self.after_loss(loss);
        done
    }
}

/// What is known of a name that is about to go away.
#[derive(Default)]
struct Loss {
    /// It is this directory's.
    dir: Option<systx_base::Oid>,
    kept: Kept,
}
