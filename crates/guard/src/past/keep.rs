//! How old values are read, before they change.

use super::pages::Data;
use super::{Inode, Layer, Past, Pinned, Xattrs};
use crate::change::Change;
use crate::sys;
use rustix::fs::{self, SeekFrom};
use rustix::io::{self, Errno};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use systx_base::{Kind, Oid};
use systx_store::io::{HostId, Stat};
use systx_store::real::{RealIo, grown};
use systx_store::writeset::{Attrs, Content, Ix, Origin, WriteSet};
use systx_txn::ObjectRef;
use systx_vfs::api::Reply;
use systx_vfs::content::PAGE;

/// Pages are copied in pieces of this size.
const STEP: u64 = 256 << 10;

impl Past {
    /// Keeps what a plain request is about to change.  Only while [`Past::is_open`].
    pub(crate) fn keep(&self, change: &Change<'_>) {
        if let Err(errno) = self.try_keep(change) {
            self.give_up(&errno);
        }
    }

    /// Keeps the attributes of what is about to lose a name that no snapshot knows.
    pub(crate) fn keep_attributes(&self, fd: BorrowedFd<'_>) {
        if let Err(errno) = self.keep_inode(fd, false) {
            self.give_up(&errno);
        }
    }

    /// A plain request has made an object.
    pub(crate) fn born(&self, id: HostId) {
        self.newest(|layer| layer.items += usize::from(layer.born.insert(id)));
    }

    fn try_keep(&self, change: &Change<'_>) -> Reply<()> {
        if let Some((_, fd)) = change.subject {
            self.keep_inode(fd.descriptor()?, false)?;
        }
        let subject = |oid: Oid| {
            let subject = change.subject.filter(|(of, _)| *of == oid);
            subject.ok_or(Errno::IO)?.1.descriptor()
        };
        for object in change.writes {
            match *object {
                ObjectRef::Entry { dir, name } => {
                    let place = change.places.iter().find(|(oid, _)| *oid == dir);
                    let (_, fd) = place.ok_or(Errno::IO)?;
                    self.keep_name(fd.descriptor()?, name)?;
                }
                ObjectRef::Attr(oid) => drop(self.keep_inode(subject(oid)?, true)?),
                ObjectRef::Pages { oid, first, last } => {
                    self.keep_pages(subject(oid)?, first, last)?;
                }
                // Its names are what it is; and a length is kept with the subject.
                ObjectRef::List(_) | ObjectRef::Size(_) => {}
            }
        }
        Ok(())
    }

    /// Keeps what a commit is about to change on the volume with this root.
    pub(crate) fn keep_commit(&self, writes: &WriteSet, root: OwnedFd) {
        if let Err(errno) = self.try_keep_commit(writes, root) {
            self.give_up(&errno);
        }
    }

    fn try_keep_commit(&self, writes: &WriteSet, root: OwnedFd) -> Reply<()> {
        // Where each object is now; `None` where it is not what the transaction saw.
        let mut found: Vec<Option<OwnedFd>> = Vec::with_capacity(writes.objects.len());
        let mut root = Some(root);
        let targets: HashSet<Ix> = writes.binds.iter().filter_map(|bind| bind.target).collect();
        let removed: HashSet<Ix> = writes
            .binds
            .iter()
            .filter_map(|bind| bind.displaces)
            .filter(|ix| !targets.contains(ix))
            .collect();
        for (i, object) in writes.objects.iter().enumerate() {
            let ix = Ix(u32::try_from(i).unwrap_or(u32::MAX));
            let fd = match &object.origin {
                Origin::Root => root.take(),
                Origin::Host { parent, name, stamp, .. } => {
                    let dir = found.get(parent.0 as usize).and_then(Option::as_ref);
                    let there = dir.and_then(|dir| sys::child(dir, name).ok());
                    let same = |fd: &OwnedFd| sys::stat(fd).is_ok_and(|s| s.id == stamp.id());
                    // The installation may put another inode there.
                    let moves = targets.contains(&ix)
                        || removed.contains(&ix)
                        || matches!(object.content, Content::Whole { .. } | Content::Slot(_));
                    if let (true, Some(dir)) = (moves, dir) {
                        self.keep_name(dir.as_fd(), name)?;
                    }
                    there.filter(same)
                }
                Origin::Grave { .. } | Origin::New(_) => None,
            };
            if let Some(fd) = &fd {
                let rewritten = object.content != Content::Keep;
                let attrs = object.attrs != Attrs::default() || !object.xattrs.is_empty();
                self.keep_inode(fd.as_fd(), attrs || rewritten)?;
                self.keep_content(fd.as_fd(), &object.content)?;
                if removed.contains(&ix) {
                    self.keep_tree(fd.as_fd())?;
                }
            }
            found.push(fd);
        }
        for bind in &writes.binds {
            if let Some(dir) = found.get(bind.dir.0 as usize).and_then(Option::as_ref) {
                self.keep_name(dir.as_fd(), &bind.name)?;
            }
        }
        Ok(())
    }

    /// The pages that an installation overwrites or cuts off.
    fn keep_content(&self, fd: BorrowedFd<'_>, content: &Content) -> Reply<()> {
        match content {
            Content::Keep => {}
            Content::Patch { len, keep, extents } => {
                for extent in extents {
                    let last = extent.offset + extent.data.len().saturating_sub(1);
                    self.keep_pages(fd, extent.offset / PAGE, last / PAGE)?;
                }
                self.keep_pages(fd, *keep.min(len) / PAGE, u64::MAX)?;
            }
            // It may be written in place.
            Content::Whole { .. } | Content::Slot(_) => self.keep_pages(fd, 0, u64::MAX)?,
        }
        Ok(())
    }

    /// Everything below a directory that a commit removes: when the store drops what it keeps for
    /// undo, nobody is asked.
    fn keep_tree(&self, top: BorrowedFd<'_>) -> Reply<()> {
        if sys::stat(top)?.kind != Kind::Dir {
            return Ok(());
        }
        let mut todo = vec![io::fcntl_dupfd_cloexec(top, 0)?];
        while let Some(dir) = todo.pop() {
            let mut names = Vec::new();
            let list = fs::Dir::new(sys::open_dir(&dir)?)?;
            for entry in list {
                names.push(entry?.file_name().to_bytes().to_vec());
            }
            for name in names.iter().filter(|n| !matches!(&n[..], b"." | b"..")) {
                self.keep_name(dir.as_fd(), name)?;
                match sys::child(&dir, name) {
                    Ok(fd) if sys::stat(&fd)?.kind == Kind::Dir => todo.push(fd),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// What a name means, and the directory and the object as they are.
    fn keep_name(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Reply<()> {
        let Some(of) = self.keep_inode(dir, false)? else { return Ok(()) };
        let is_kept = |layer: &mut Layer| {
            layer.names.get(&of.id).is_some_and(|names| names.contains_key(name))
        };
        if self.newest(is_kept) != Some(false) {
            return Ok(());
        }
        let meaning = match sys::child(dir, name) {
            Ok(fd) => {
                if self.pins.load(Relaxed) >= self.pins_max {
                    return Err(Errno::MFILE);
                }
                self.keep_inode(fd.as_fd(), false)?;
                let seen = sys::stat(&fd)?;
                self.pins.fetch_add(1, Relaxed);
                let (id, kind, count) = (seen.id, seen.kind, Arc::clone(&self.pins));
                Some(Arc::new(Pinned { handle: RealIo::held(fd), id, kind, count }))
            }
            Err(Errno::NOENT) => None,
            // Something is mounted there, or the name cannot be: it will not change.
            Err(Errno::XDEV | Errno::NAMETOOLONG | Errno::INVAL | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let items = self.newest(|layer| {
            drop(layer.add_name(of.id, name, meaning));
            layer.items
        });
        self.check(items)
    }

    fn check(&self, items: Option<usize>) -> Reply<()> {
        if items.is_some_and(|items| items > self.items_max) { Err(Errno::NOMEM) } else { Ok(()) }
    }

    /// An inode as it is, its extended attributes only if they are asked for or may change with the
    /// mode. `None`: no snapshot knows it.
    fn keep_inode(&self, fd: BorrowedFd<'_>, with_xattrs: bool) -> Reply<Option<Stat>> {
        let stat = sys::stat(fd)?;
        // The store lets the owner into a directory that it moves or empties; an access ACL goes
        // with the mode.
        let with_xattrs = with_xattrs || (stat.kind == Kind::Dir && stat.mode & 0o700 != 0o700);
        let is_kept = |layer: &mut Layer| {
            if layer.born.contains(&stat.id) {
                return None;
            }
            let inode = layer.inodes.get(&stat.id);
            Some(inode.is_some_and(|inode| !with_xattrs || inode.xattrs.is_some()))
        };
        match self.newest(is_kept).flatten() {
            None => return Ok(None),
            Some(true) => return Ok(Some(stat)),
            Some(false) => {}
        }
        let xattrs = if with_xattrs { Some(Arc::new(xattrs_of(fd)?)) } else { None };
        let items = self.newest(|layer| {
            layer.add_inode(stat.id, Inode { stat, xattrs, pages: super::Extents::default() });
            layer.items
        });
        self.check(items)?;
        Ok(Some(stat))
    }

    /// Pages of a file as they are, up to its end.
    fn keep_pages(&self, fd: BorrowedFd<'_>, first: u64, last: u64) -> Reply<()> {
        let Some(stat) = self.keep_inode(fd, false)? else { return Ok(()) };
        let end = stat.size.div_ceil(PAGE).min(last.saturating_add(1));
        if stat.kind != Kind::File || first >= end {
            return Ok(());
        }
        let missing = self.newest(|layer| {
            layer.inodes.get(&stat.id).map(|inode| inode.pages.missing(first..end))
        });
        let missing = missing.flatten().unwrap_or_default();
        if missing.is_empty() {
            return Ok(());
        }
        let file = sys::reopen(fd, fs::OFlags::RDONLY)?;
        let add = |pages: std::ops::Range<u64>, data: &Data| {
            self.newest(|layer| {
                if let Some(inode) = layer.inodes.get_mut(&stat.id) {
                    inode.pages.add(pages, data, 0);
                }
            });
        };
        for gap in missing {
            let mut at = gap.start * PAGE;
            let end = gap.end * PAGE;
            while at < end {
                // Holes may be larger than anybody wants to read.
                let data = match fs::seek(&file, SeekFrom::Data(at)) {
                    Ok(data) => (data / PAGE * PAGE).clamp(at, end),
                    Err(Errno::NXIO) => end,
                    Err(_) => at,
                };
                if data > at {
                    add(at / PAGE..data / PAGE, &Data::Zeros);
                    at = data;
                    continue;
                }
                let mut buf = vec![0; usize::try_from(STEP.min(end - at)).unwrap_or(0)];
                let len = buf.len() as u64;
                read_up_to(&file, &mut buf, at)?;
                let data = self.room.keep(buf).map_err(systx_vfs::volume::errno)?;
                add(at / PAGE..(at + len) / PAGE, &data);
                at += len;
            }
        }
        Ok(())
    }
}

/// Reads as much as there is.
fn read_up_to(file: &OwnedFd, buf: &mut [u8], offset: u64) -> Reply<()> {
    let mut done = 0;
    while done < buf.len() {
        match io::pread(file, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn xattrs_of(fd: BorrowedFd<'_>) -> Reply<Xattrs> {
    let at = sys::path_of(fd);
    let names =
        grown(|buf| fs::listxattr(at.as_str(), rustix::buffer::spare_capacity(buf)).map(drop));
    let names = match names {
        Err(Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        other => other?,
    };
    let mut all = Xattrs::new();
    for key in names.split(|b| *b == 0).filter(|key| !key.is_empty()) {
        let value = grown(|buf| {
            fs::getxattr(at.as_str(), key, rustix::buffer::spare_capacity(buf)).map(drop)
        });
        match value {
            Ok(value) => drop(all.insert(key.to_vec(), value)),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(all)
}
