//! Bytes of regular files.

use super::attrs::S_ISXID;
use super::identity::Acting;
use super::table::Node;
use super::{Change, Plain};
use crate::sys;
use rustix::fs::{self, FallocateFlags, SeekFrom};
use rustix::io::{self, Errno};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use systx_base::{Kind, NodeId};
use systx_txn::ObjectRef;
use systx_vfs::api::{Attr, Fallocate, Reply, Seek};
use systx_vfs::client;
use systx_vfs::content::within;

/// Longest file: what the kernel's signed offsets allow.
const FILE_MAX: u64 = i64::MAX as u64;

/// Most that one request copies: commits wait for what is being read.
const COPY_MAX: u64 = 16 << 20;

/// Writes as much as can be written, at least something.
fn write_all(fd: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Reply<usize> {
    let mut done = 0;
    while done < data.len() {
        match io::pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            // What is written is written.
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// What a change of content touches.
struct Extent {
    offset: u64,
    len: u64,
    /// Where the file ends at least, afterwards.
    end: u64,
    /// Up to here nobody has written what lies behind the old end.
    blank: u64,
    kill_suidgid: bool,
    /// It was stored through a mapping, which takes no privileges away.
    stored: bool,
    /// It is in the kernel's pages already.
    shows: bool,
    /// At the end of the file, wherever that is.
    append: bool,
}

impl Plain {
    pub(super) fn read_from(&self, id: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        let node = self.table.node(id)?;
        node.worn.store(true, Relaxed);
        let fd = self.table.reader(&node)?;
        let (oid, len) = (node.oid(), buf.len() as u64);
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        // Where it ends is read by who reads up to there.
        let at_end = end > sys::stat(&*fd)?.size;
        let reads = [ObjectRef::bytes_at(oid, offset, len), ObjectRef::Size(oid)];
        let reads = if at_end { &reads[..] } else { &reads[..1] };
        self.reading(reads, || {
            let mut done = 0;
            while done < buf.len() {
                match io::pread(&*fd, &mut buf[done..], offset + done as u64) {
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(done)
        })
    }

    pub(super) fn write_to(
        &self,
        id: NodeId,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Reply<usize> {
        let len = data.len() as u64;
        let end = offset.checked_add(len).filter(|e| *e <= FILE_MAX).ok_or(Errno::FBIG)?;
        let node = self.table.node(id)?;
        self.change(
            &node,
            &[],
            Extent {
                offset,
                len,
                end,
                blank: offset,
                kill_suidgid,
                stored: false,
                shows: true,
                append: false,
            },
            |fd| write_all(fd, offset, data),
        )
    }

    pub(super) fn write_back_to(&self, id: NodeId, offset: u64, data: &[u8]) -> Reply<()> {
        let node = self.table.node(id)?;
        let size = sys::stat(&*self.table.path(&node)?)?.size;
        let len = within(size, offset, data).len() as u64;
        if len == 0 {
            return Ok(());
        }
        let (end, blank) = (0, 0);
        let extent = Extent {
            offset,
            len,
            end,
            blank,
            kill_suidgid: false,
            stored: true,
            shows: true,
            append: false,
        };
        self.change(&node, &[], extent, |fd| {
            // A commit that it waited for may have cut the file off.
            let data = within(sys::stat(fd)?.size, offset, data);
            if data.is_empty() { Ok(()) } else { write_all(fd, offset, data).map(drop) }
        })
    }

    /// The kernel looks for the end of the file before it sends the request; a commit that the
    /// request waited for may have moved it.
    pub(super) fn append_to(
        &self,
        id: NodeId,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Reply<(usize, bool)> {
        let node = self.table.node(id)?;
        let len = data.len() as u64;
        loop {
            let at = sys::stat(&*self.table.path(&node)?)?.size;
            let end = at.checked_add(len).filter(|e| *e <= FILE_MAX).ok_or(Errno::FBIG)?;
            let blank = 0;
            let extent = Extent {
                offset: at,
                len,
                end,
                blank,
                kill_suidgid,
                stored: false,
                shows: true,
                append: true,
            };
            let written = self.change(&node, &[], extent, |fd| {
                let moved = sys::stat(fd)?.size != at;
                if moved { Ok(None) } else { write_all(fd, at, data).map(Some) }
            })?;
            if let Some(written) = written {
                let elsewhere = at != offset && !self.gate.appended_elsewhere(node.host);
                return Ok((written, elsewhere));
            }
        }
    }

    pub(super) fn fallocate_in(
        &self,
        id: NodeId,
        how: Fallocate,
        offset: u64,
        len: u64,
    ) -> Reply<()> {
        let end = offset.checked_add(len).filter(|e| *e <= FILE_MAX).ok_or(Errno::FBIG)?;
        let node = self.table.node(id)?;
        let (flags, touched, end) = match how {
            Fallocate::Allocate => (FallocateFlags::empty(), len, end),
            Fallocate::KeepSize => (FallocateFlags::KEEP_SIZE, len, 0),
            Fallocate::PunchHole => {
                (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, len, 0)
            }
            Fallocate::ZeroRange => (FallocateFlags::ZERO_RANGE, len, end),
            Fallocate::ZeroRangeKeepSize => {
                (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, len, 0)
            }
            // Everything behind a shift moves, and so does the end.
            Fallocate::CollapseRange => (FallocateFlags::COLLAPSE_RANGE, FILE_MAX, u64::MAX),
            Fallocate::InsertRange => (FallocateFlags::INSERT_RANGE, FILE_MAX, u64::MAX),
        };
        let blank = if end == u64::MAX { 0 } else { end };
        let change = Extent {
            offset,
            len: touched,
            end,
            blank,
            kill_suidgid: false,
            stored: false,
            shows: false,
            append: false,
        };
        self.change(&node, &[], change, |fd| fs::fallocate(fd, flags, offset, len))
    }

    pub(super) fn seek_in(&self, id: NodeId, offset: u64, how: Seek) -> Reply<u64> {
        let node = self.table.node(id)?;
        let fd = self.table.reader(&node)?;
        let to = match how {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        let oid = node.oid();
        let reads = [ObjectRef::bytes_from(oid, offset), ObjectRef::Size(oid)];
        // That the position moves does not matter: nothing uses it.
        self.reading(&reads, || fs::seek(&*fd, to))
    }

    pub(super) fn copy_between(
        &self,
        from: (NodeId, u64),
        to: (NodeId, u64),
        len: u64,
    ) -> Reply<u64> {
        let (source, target) = (self.table.node(from.0)?, self.table.node(to.0)?);
        let fd_in = self.table.reader(&source)?;
        // What lies beyond the end is not copied.
        let size = sys::stat(&*fd_in)?.size;
        let len = len.min(size.saturating_sub(from.1)).min(COPY_MAX);
        if len == 0 {
            return Ok(0);
        }
        let end = to.1.checked_add(len).filter(|e| *e <= FILE_MAX).ok_or(Errno::FBIG)?;
        let may_be_written = !self.told || source.files.lock().is_written();
        if source.id != target.id && may_be_written {
            // The caller may have seen what is being written there.
            self.gate.land(source.host);
        }
        let count = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let reads = [ObjectRef::bytes_at(source.oid(), from.1, len)];
        let (offset, blank) = (to.1, to.1);
        let change = Extent {
            offset,
            len,
            end,
            blank,
            kill_suidgid: false,
            stored: false,
            shows: false,
            append: false,
        };
        self.change(&target, &reads, change, |fd| {
            let (mut at_in, mut at_out) = (from.1, to.1);
            let n = fs::copy_file_range(&*fd_in, Some(&mut at_in), fd, Some(&mut at_out), count)?;
            Ok(n as u64)
        })
    }

    /// Changes content through the descriptor of whoever has the node open for that.
    fn change<T>(
        &self,
        node: &Node,
        reads: &[ObjectRef<'_>],
        extent: Extent,
        mut act: impl FnMut(BorrowedFd<'_>) -> Reply<T>,
    ) -> Reply<T> {
        let oid = node.oid();
        node.worn.store(true, Relaxed);
        loop {
            let (fd, by) = self.table.writer(node, extent.append, self.told)?;
            let now = sys::attr(&*fd)?;
            // Of calls that are performed here alone the kernel does not say that the bits have to
            // go: it leaves that to us.
            let untold = |mode| !extent.shows && mode & S_ISXID != 0 && !client::keeps_set_ids();
            let kills = |mode| extent.kill_suidgid || untold(mode);
            let beside = |now: &Attr| {
                let is_moved = extent.end > now.size;
                let loses = self.loses_privileges(node, now.mode, kills(now.mode));
                (is_moved, loses && !extent.stored)
            };
            let told = beside(&now);
            let mut writes = [ObjectRef::Size(oid); 3];
            let mut count = 1;
            writes[0] = ObjectRef::bytes_at(oid, extent.offset, extent.len);
            if told.0 {
                writes[count] = ObjectRef::Size(oid);
                count += 1;
            }
            if told.1 {
                writes[count] = ObjectRef::Attr(oid);
                count += 1;
            }
            let subject = Some(node.by(fd.as_fd()));
            // Who has seen what is held must not see the transaction that it is held for as if that
            // came later. What lies beyond the end is seen only when the call is over.
            let may_stall = !extent.shows || extent.offset >= now.size;
            let writes = &writes[..count];
            let change = Change { by, reads, writes, subject, places: &[], may_stall };
            let done = self.mutating(change, || {
                self.check_current(node)?;
                // A commit that it waited for may have cut the file off, so that it does more than
                // it has told.
                let now = sys::attr(&*fd)?;
                let needs = beside(&now);
                if (needs.0 && !told.0) || (needs.1 && !told.1) {
                    return Ok(None);
                }
                let _acting = Acting::writing(by, kills(now.mode))?;
                let caps = self.caps_of(node).filter(|_| extent.stored);
                let done = act(fd.as_fd())?;
                client::grew(now.size, extent.blank);
                match caps {
                    // The write below took them.
                    Some(caps) => self.give_caps(node, &caps)?,
                    None => node.no_caps.store(true, Relaxed),
                }
                Ok(Some(done))
            })?;
            if let Some(done) = done {
                if told.1 {
                    self.gate.changed_mode(node.host);
                }
                return Ok(done);
            }
        }
    }

    /// Durability is the backing file system's.
    pub(super) fn sync_node(&self, id: NodeId, data_only: bool) -> Reply<()> {
        let node = self.table.node(id)?;
        let sync = |fd: BorrowedFd<'_>| {
            if data_only { fs::fdatasync(fd) } else { fs::fsync(fd) }
        };
        match node.kind {
            Kind::Dir => sync(self.table.directory(&node)?.as_fd()),
            Kind::File => sync(self.table.reader(&node)?.as_fd()),
            _ => Err(Errno::INVAL),
        }
    }
}
