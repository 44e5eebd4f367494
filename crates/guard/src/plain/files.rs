//! Open files: one descriptor for reading and one for writing serve everybody who has a node open.

use super::table::{Node, Table};
use crate::sys;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, NodeId};
use systx_store::io::Openers;
use systx_vfs::api::{Caller, OpenHow, Reply};
use systx_vfs::client;

/// What is open of one node.
#[derive(Default)]
pub(super) struct Files {
    readers: u32,
    writers: u32,
    /// Of the writers, those that no quota binds.
    privileged: u32,
    /// Who opened it for writing last.
    writer: Option<Caller>,
    pub read: Option<Arc<OwnedFd>>,
    pub write: Option<Arc<OwnedFd>>,
    /// With which a directory is listed, see [`Listers`].
    dir: Option<Arc<Mutex<OwnedFd>>>,
}

/// Directories of which a listing has begun and not ended, the last ones: each keeps its
/// descriptor. The kernel does not tell who has a directory open, so a listing that nobody goes on
/// with looks like a slow one.
#[derive(Default)]
pub(super) struct Listers(VecDeque<NodeId>);

/// Most listings under way whose descriptors are kept; others open the directory again for each
/// request.
const LISTERS: usize = 64;

impl Files {
    /// On whose behalf a write is made: whoever opened the file for writing last, but the superuser
    /// as long as he is among the writers, whom no quota binds; and without any writer, since that
    /// is the kernel's own write-back, which must not be lost.
    fn writes_as(&self) -> Caller {
        let superuser = Caller { uid: 0, gid: 0, tid: 0 };
        match self.writer {
            Some(caller) if self.privileged == 0 => caller,
            Some(caller) => Caller { tid: caller.tid, ..superuser },
            None => superuser,
        }
    }

    pub fn is_written(&self) -> bool {
        self.writers > 0
    }

    /// Who has it open; `None`: nobody.
    pub fn openers(&self) -> Option<Openers> {
        match (self.writers, self.readers) {
            (0, 0) => None,
            (0, _) => Some(Openers::Readers),
            _ => Some(Openers::Writers),
        }
    }

    /// Closes what nobody needs.
    fn tidy(&mut self) {
        if self.writers == 0 {
            self.write = None;
            self.writer = None;
            if self.readers == 0 {
                self.read = None;
            }
        }
    }
}

/// The bits of the handle of an open; never all clear.
const OPEN: u8 = 1;
const WRITES: u8 = 2;
const PRIVILEGED: u8 = 4;

/// What the handle of an open says; nothing else is remembered of it.
pub(crate) fn handle_of(caller: Caller, how: OpenHow) -> u8 {
    match (how.write, caller.uid) {
        (false, _) => OPEN,
        (true, 0) => OPEN | WRITES | PRIVILEGED,
        (true, _) => OPEN | WRITES,
    }
}

/// Opens of one node, by what their handles say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opens {
    readers: u32,
    writers: u32,
    privileged: u32,
    writer: Option<Caller>,
}

impl Opens {
    pub fn add(&mut self, caller: Caller, handle: u8) {
        if handle & WRITES == 0 {
            self.readers = self.readers.saturating_add(1);
            return;
        }
        self.writers = self.writers.saturating_add(1);
        self.writer = Some(caller);
        self.privileged = self.privileged.saturating_add(u32::from(handle & PRIVILEGED != 0));
    }
    pub fn remove(&mut self, handle: u8) {
        if handle & WRITES == 0 {
            self.readers = self.readers.saturating_sub(1);
            return;
        }
        self.writers = self.writers.saturating_sub(1);
        self.privileged = self.privileged.saturating_sub(u32::from(handle & PRIVILEGED != 0));
    }
    pub fn writes(&self) -> bool {
        self.writers > 0
    }
    pub fn count(&self) -> u64 {
        u64::from(self.readers) + u64::from(self.writers)
    }
}

impl Files {
    /// Takes over opens that were answered by somebody else.
    pub fn adopt(&mut self, opens: Opens) {
        self.readers = self.readers.saturating_add(opens.readers);
        self.writers = self.writers.saturating_add(opens.writers);
        self.privileged = self.privileged.saturating_add(opens.privileged);
        self.writer = opens.writer.or(self.writer);
    }
}

impl Table {
    /// A node is open to one more, whose handle is returned; see [`Table::opened`].
    pub fn enter_open(&self, caller: Caller, node: &Node, how: OpenHow) -> Reply<u8> {
        let mut handle = OPEN;
        {
            let mut files = node.files.lock();
            match node.kind {
                Kind::File if how.write => drop(self.write_of(node, &mut files, how.append)?),
                // Opened below when something is read: mostly the kernel has the pages. That it may
                // be opened, the kernel has checked.
                Kind::File | Kind::Dir => {}
                // The kernel opens these itself.
                _ => return Err(Errno::NXIO),
            }
            if how.write {
                handle |= WRITES;
                files.writers = files.writers.saturating_add(1);
                files.writer = Some(caller);
                if caller.uid == 0 {
                    handle |= PRIVILEGED;
                    files.privileged = files.privileged.saturating_add(1);
                }
            } else {
                files.readers = files.readers.saturating_add(1);
            }
        }
        Ok(handle)
    }

    /// Somebody has closed a node.
    pub fn release(&self, id: NodeId, handle: u8) {
        let Ok(node) = self.node(id) else { return };
        if handle & OPEN == 0 {
            return;
        }
        {
            let mut files = node.files.lock();
            if handle & WRITES != 0 {
                files.writers = files.writers.saturating_sub(1);
            } else {
                files.readers = files.readers.saturating_sub(1);
            }
            if handle & PRIVILEGED != 0 {
                files.privileged = files.privileged.saturating_sub(1);
            }
            files.tidy();
        }
        self.closed(id);
    }

    /// Opens below what is open of a file, which is done with the first request as a rule.
    pub fn open_at_once(&self, id: NodeId, told: bool) {
        let Ok(node) = self.node(id) else { return };
        if node.kind != Kind::File {
            return;
        }
        let is_written = node.files.lock().is_written();
        let opened = if is_written {
            self.writer(&node, false, told).map(drop)
        } else {
            self.reader(&node).map(drop)
        };
        if let Err(errno) = opened {
            tracing::debug!(%errno, ?id, "not opened");
        }
    }

    /// A descriptor for reading, kept while the node is open.
    pub fn reader(&self, node: &Node) -> Reply<Arc<OwnedFd>> {
        let mut files = node.files.lock();
        if let Some(fd) = &files.write {
            return Ok(Arc::clone(fd));
        }
        let fd = self.read_of(node, &mut files)?;
        files.tidy();
        Ok(fd)
    }

    /// A descriptor for writing, kept while somebody has the node open for that, and who writes.
    ///
    /// `told`: opens make messages.
    pub fn writer(&self, node: &Node, append: bool, told: bool) -> Reply<(Arc<OwnedFd>, Caller)> {
        let mut files = node.files.lock();
        let by = if told { files.writes_as() } else { client::asking() };
        // Where opens are told, it was opened so.
        let fd = self.write_of(node, &mut files, append && !told)?;
        files.tidy();
        Ok((fd, by))
    }

    /// The descriptor with which a directory is listed, kept until [`Table::listed_to_end`], or
    /// until many others are listed.
    pub fn lister(&self, node: &Node) -> Reply<Arc<Mutex<OwnedFd>>> {
        if let Some(fd) = &node.files.lock().dir {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(Mutex::new(rank::LEAF, self.directory(node)?));
        node.files.lock().dir = Some(Arc::clone(&fd));
        let displaced = {
            let mut listers = self.listers.lock();
            listers.0.push_back(node.id);
            if listers.0.len() > LISTERS { listers.0.pop_front() } else { None }
        };
        if let Some(Ok(other)) = displaced.map(|id| self.node(id)) {
            other.files.lock().dir = None;
        }
        Ok(fd)
    }

    /// A listing has come to its end.
    pub fn listed_to_end(&self, node: &Node) {
        node.files.lock().dir = None;
        self.listers.lock().0.retain(|id| *id != node.id);
    }

    /// A directory, opened.
    pub fn directory(&self, node: &Node) -> Reply<OwnedFd> {
        if node.kind != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        sys::open_dir(&*self.path(node)?)
    }

    fn read_of(&self, node: &Node, files: &mut Files) -> Reply<Arc<OwnedFd>> {
        if let Some(fd) = &files.read {
            return Ok(Arc::clone(fd));
        }
        expect_file(node)?;
        let fd = Arc::new(sys::reopen(&*self.path(node)?, OFlags::RDONLY)?);
        files.read = Some(Arc::clone(&fd));
        Ok(fd)
    }

    fn write_of(&self, node: &Node, files: &mut Files, append: bool) -> Reply<Arc<OwnedFd>> {
        if let Some(fd) = &files.write {
            return Ok(Arc::clone(fd));
        }
        expect_file(node)?;
        let path = self.path(node)?;
        let fd = match sys::reopen(&*path, OFlags::RDWR) {
            // An append-only file (chattr +a) wants to hear it.
            Err(Errno::PERM) if append => sys::reopen(&*path, OFlags::RDWR | OFlags::APPEND)?,
            other => other?,
        };
        let fd = Arc::new(fd);
        files.write = Some(Arc::clone(&fd));
        Ok(fd)
    }
}

/// Only regular files are opened: anything else would do something in answer to that.
fn expect_file(node: &Node) -> Reply<()> {
    match node.kind {
        Kind::File => Ok(()),
        Kind::Dir => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}
