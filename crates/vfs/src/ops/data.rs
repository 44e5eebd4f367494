//! Bytes of regular files. The pages that a request takes from the backing file are recorded and
//! the file's lock is taken under the view's lock; the transfer itself runs without the view's
//! lock.

use crate::api::{Answer, Fallocate, Reply, Request, Seek};
use crate::client;
use crate::content::{Base as BaseBytes, Content, PAGE, within};
use crate::node::{Base, Body};
use crate::view::{State, View, whole};
use crate::volume::errno;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};
use systx_store::io::{Fixed, Handle, Tree};
use systx_txn::{Isolation, ObjectRef};

/// Set-user-id and set-group-id.
const S_ISXID: u32 = 0o6000;

/// Longest file: what the kernel's signed offsets allow.
const FILE_MAX: u64 = i64::MAX as u64;

/// The backing file of a node.
struct Backing {
    io: Arc<dyn Tree>,
    handle: Handle,
    base: Base,
}

impl BaseBytes for Backing {
    fn len(&self) -> u64 {
        self.base.stamp.size
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // What an outsider appended is not part of the version that was met.
        let end = self.len().saturating_sub(offset);
        let n = usize::try_from(end).map_or(buf.len(), |end| end.min(buf.len()));
        self.io.read_at(&self.handle, &mut buf[..n], offset)
    }
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.io.next_data(&self.handle, offset)
    }
}

/// The backing file for a change, which must not take over bytes of another moment: a loser would
/// read its own bytes in a page of them.
struct StillOneMoment<'a> {
    view: &'a View,
    backing: &'a Backing,
}

impl BaseBytes for StillOneMoment<'_> {
    fn len(&self) -> u64 {
        self.backing.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.backing.read_at(buf, offset)?;
        self.view.still_one_moment()?;
        Ok(n)
    }
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.backing.next_data(offset)
    }
}

/// Which bytes of the backing file a change takes over.
#[derive(Clone, Copy)]
enum Reads {
    /// The partly overwritten pages at its ends.
    Edges,
    /// Everything from its start on.
    Rest,
    /// None.
    Nothing,
}

/// What a change of the content takes from the file beside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Nothing: a store through a mapping asks nobody.
    Nothing,
    /// File capabilities.
    Capabilities,
    /// The set-id bits as well.
    SetIds,
}

impl Takes {
    /// By a call.
    fn by_call(kill_suidgid: bool) -> Takes {
        if kill_suidgid { Takes::SetIds } else { Takes::Capabilities }
    }
}

/// How long a file was before a change, and is after it.
struct Lens {
    before: u64,
    after: u64,
}

/// A file's content, ready for a transfer.
struct Opened {
    content: Arc<Mutex<Content>>,
    backing: Option<Backing>,
}

impl Opened {
    fn base(&self) -> Option<&dyn BaseBytes> {
        self.backing.as_ref().map(|b| b as &dyn BaseBytes)
    }
}

impl View {
    /// Requests about what is in a file.
    pub(super) fn serve_content(&self, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        Ok(match request {
            R::Read { node, offset, buf } => self.read_from(node, offset, buf)?.into(),
            R::Write { node, offset, data, kill_suidgid } => {
                self.write_to(node, offset, data, kill_suidgid)?.into()
            }
            // The kernel knows the length of what nobody else changes.
            R::Append { node, offset, data, kill_suidgid } => {
                (self.write_to(node, offset, data, kill_suidgid)?, false).into()
            }
            R::WriteBack { node, offset, data } => self.write_back_to(node, offset, data)?.into(),
            R::Fallocate { node, how, offset, len } => {
                self.fallocate_in(node, how, offset, len)?.into()
            }
            R::Lseek { node, offset, how } => self.seek_in(node, offset, how)?.into(),
            R::Copy { from, to, len } => self.copy_between(from, to, len)?.into(),
            _ => return Err(Errno::NOSYS),
        })
    }

    /// Before anything is locked, since it may take a while.  Nothing of it is recorded.
    fn let_the_winner_end(&self, node: NodeId, offset: u64, len: u64) -> Reply<()> {
        if !self.work.is_patient() {
            return Ok(());
        }
        let mut st = self.state.lock();
        let content = self.content_of(&mut st, node)?;
        let needed = content.lock().base_pages_needed(offset, len);
        let base = st.node(node)?.base.as_ref().map(Base::oid);
        drop(st);
        match base.filter(|oid| !self.work.is_frozen(*oid)) {
            Some(oid) => {
                needed.into_iter().try_for_each(|pages| self.work.stall(oid, pages, false))
            }
            None => Ok(()),
        }
    }

    /// As [`View::let_the_winner_end`], for who has the pages that are to be written.
    fn let_the_holder_end(&self, node: NodeId, offset: u64, len: u64) -> Reply<()> {
        if !self.work.is_patient() || !self.vol.engine.locks(self.work.txn) {
            return Ok(());
        }
        let base = self.state.lock().node(node)?.base.as_ref().map(Base::oid);
        let end = offset.saturating_add(len);
        match base.filter(|oid| !self.work.is_frozen(*oid)) {
            Some(oid) => self.work.stall(oid, offset / PAGE..end.div_ceil(PAGE), true),
            None => Ok(()),
        }
    }

    pub(super) fn read_from(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        self.let_the_winner_end(node, offset, buf.len() as u64)?;
        let mut st = self.state.lock();
        let content = self.content_of(&mut st, node)?;
        let len = buf.len() as u64;
        let needed = content.lock().base_pages_needed(offset, len);
        // Also where the old bytes are private by now, beside what was appended.
        let old = st.node(node)?.base.as_ref().is_some_and(|base| offset < base.stamp.size);
        let recorded = if old { self.stop_growing(&mut st, node) } else { Ok(()) };
        match recorded.and_then(|()| self.record_pages(&st, node, &needed)) {
            // Pages are served to the end: a page fault that fails would kill a program that only
            // waits to be ended.
            Ok(()) | Err(Errno::CANCELED) => {}
            Err(e) => return Err(e),
        }
        let opened = self.open_backing(&mut st, node, content, &needed)?;
        drop(st);
        let count = opened.content.lock().read(opened.base(), offset, buf).map_err(errno)?;
        if self.alive().is_ok() {
            self.verify(&opened)?;
        } else if let (true, Some(backing)) = (self.opaque, &opened.backing) {
            let stat = self.tree().stat(&backing.handle).map_err(errno)?;
            if stat.stamp() != backing.base.stamp {
                return Err(Errno::CANCELED);
            }
        }
        Ok(count)
    }

    pub(super) fn write_to(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Reply<usize> {
        let lens = self.put(node, offset, data, Takes::by_call(kill_suidgid))?;
        client::grew(lens.before, offset);
        Ok(data.len())
    }

    fn put(&self, node: NodeId, offset: u64, data: &[u8], takes: Takes) -> Reply<Lens> {
        let len = data.len() as u64;
        self.let_the_holder_end(node, offset, len)?;
        let change = |view: &View, content: &mut Content, base: Option<&dyn BaseBytes>| {
            content.write(base, &*view.spill, &view.budget, offset, data)
        };
        self.change(node, takes, Reads::Edges, offset, len, change)
    }

    /// The kernel changes no length as long as it writes back.
    pub(super) fn write_back_to(&self, node: NodeId, offset: u64, data: &[u8]) -> Reply<()> {
        let size = self.state.lock().node(node)?.attr.size;
        let data = within(size, offset, data);
        if data.is_empty() {
            return Ok(());
        }
        let lens = self.put(node, offset, data, Takes::Nothing)?;
        client::grew(lens.before, offset);
        Ok(())
    }

    pub(super) fn truncate_to(&self, node: NodeId, len: u64, kill_suidgid: bool) -> Reply<()> {
        self.stop_growing(&mut self.state.lock(), node)?;
        let from = self.state.lock().node(node)?.attr.size.min(len);
        // Everything from the cut on changes, up to whatever end other transactions see.
        let rest = FILE_MAX - from.min(FILE_MAX);
        let change = |view: &View, content: &mut Content, base: Option<&dyn BaseBytes>| {
            content.truncate(base, &*view.spill, &view.budget, len)
        };
        let takes = Takes::by_call(kill_suidgid);
        let lens = self.change(node, takes, Reads::Nothing, from, rest, change)?;
        client::grew(lens.before, lens.after);
        Ok(())
    }

    pub(super) fn fallocate_in(
        &self,
        node: NodeId,
        how: Fallocate,
        offset: u64,
        len: u64,
    ) -> Reply<()> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_MAX) {
            return Err(Errno::FBIG);
        }
        if offset + len > self.spill.max_len(offset + len) {
            return Err(Errno::FBIG);
        }
        self.stop_growing(&mut self.state.lock(), node)?;
        // Everything behind a shift moves.
        let shifts = matches!(how, Fallocate::CollapseRange | Fallocate::InsertRange);
        let touched = if shifts { FILE_MAX - offset } else { len };
        let reads = if shifts { Reads::Rest } else { Reads::Edges };
        let takes = Takes::by_call(self.loses_set_ids(node)?);
        let change = |view: &View, content: &mut Content, base: Option<&dyn BaseBytes>| {
            let (spill, budget) = (&*view.spill, &view.budget);
            match how {
                Fallocate::Allocate => content.allocate(offset, len, false),
                Fallocate::KeepSize => content.allocate(offset, len, true),
                Fallocate::PunchHole => content.punch_hole(base, spill, budget, offset, len),
                Fallocate::ZeroRange => content.zero_range(base, spill, budget, offset, len, false),
                Fallocate::ZeroRangeKeepSize => {
                    content.zero_range(base, spill, budget, offset, len, true)
                }
                Fallocate::CollapseRange => {
                    content.collapse_range(base, spill, budget, offset, len)
                }
                Fallocate::InsertRange => content.insert_range(base, spill, budget, offset, len),
            }
        };
        let lens = self.change(node, takes, reads, offset, touched, change)?;
        client::grew(lens.before, lens.after);
        Ok(())
    }

    pub(super) fn seek_in(&self, node: NodeId, offset: u64, how: Seek) -> Reply<u64> {
        let mut st = self.state.lock();
        let content = self.content_of(&mut st, node)?;
        let all = 0..u64::MAX / PAGE;
        self.stop_growing(&mut st, node)?;
        self.record_pages(&st, node, std::slice::from_ref(&all))?;
        let opened = self.open_backing(&mut st, node, content, std::slice::from_ref(&all))?;
        drop(st);
        let content = opened.content.lock();
        let found = match how {
            Seek::Data => content.seek_data(opened.base(), offset),
            Seek::Hole => content.seek_hole(opened.base(), offset),
        };
        found.map_err(errno)?.ok_or(Errno::NXIO)
    }

    pub(super) fn copy_between(
        &self,
        from: (NodeId, u64),
        to: (NodeId, u64),
        len: u64,
    ) -> Reply<u64> {
        const STEP: u64 = 1 << 20;
        let mut buf = vec![0; usize::try_from(len.min(STEP)).map_err(|_| Errno::INVAL)?];
        let kill_suidgid = self.loses_set_ids(to.0)?;
        let mut done = 0;
        while done < len {
            let want = usize::try_from((len - done).min(STEP)).map_err(|_| Errno::INVAL)?;
            let count = self.read_from(from.0, from.1 + done, &mut buf[..want])?;
            if count == 0 {
                break;
            }
            self.write_to(to.0, to.1 + done, &buf[..count], kill_suidgid)?;
            done += count as u64;
        }
        Ok(done)
    }

    /// Whether a change takes a file's set-id bits, of which the kernel says nothing: it leaves
    /// that to us for calls that are performed here alone.
    fn loses_set_ids(&self, node: NodeId) -> Reply<bool> {
        let mode = self.state.lock().node(node)?.attr.mode;
        Ok(mode & S_ISXID != 0 && !client::keeps_set_ids())
    }

    /// Runs a change of `len` bytes from `offset`, with everything that goes with it: records,
    /// privileges lost, times.  Returns the file's lengths.
    fn change(
        &self,
        node: NodeId,
        takes: Takes,
        reads: Reads,
        offset: u64,
        len: u64,
        run: impl FnOnce(&View, &mut Content, Option<&dyn BaseBytes>) -> io::Result<()>,
    ) -> Reply<Lens> {
        let end = offset.checked_add(len).filter(|end| *end <= FILE_MAX).ok_or(Errno::FBIG)?;
        let mut st = self.state.lock();
        self.check_writable(&st, node)?;
        self.check_fixed(&mut st, node, Fixed::No)?;
        self.depend_on_place(&mut st, node)?;
        let content = self.content_of(&mut st, node)?;
        let (needed, old_len) = {
            let content = content.lock();
            let needed = match reads {
                Reads::Edges => content.base_pages_for_write(offset, len),
                Reads::Rest => content.base_pages_needed(offset, u64::MAX - offset),
                Reads::Nothing => Vec::new(),
            };
            (needed, content.len())
        };
        if offset == old_len {
            self.append_to(&mut st, node)?;
        } else {
            self.stop_growing(&mut st, node)?;
        }
        // Nobody's concern before the commit, which appends at the end of then.
        let grows = st.growing.has(node);
        if let Some(base) = st.node(node)?.base.as_ref().filter(|_| !grows) {
            let oid = base.oid();
            let last = end.saturating_sub(1) / PAGE;
            self.work.write_of(ObjectRef::Pages { oid, first: offset / PAGE, last })?;
            if end > old_len {
                self.work.write_of(ObjectRef::Size(oid))?;
            } else {
                // The write set carries the length: another transaction's truncation must not be
                // undone by it.
                self.work.depend_on(ObjectRef::Size(oid))?;
            }
        }
        if !grows {
            self.record_pages(&st, node, &needed)?;
        }
        let opened = self.open_backing(&mut st, node, content, &needed)?;
        match takes {
            Takes::Nothing => self.hold_caps(&mut st, node)?,
            _ => self.drop_caps(&mut st, node)?,
        }
        if takes == Takes::SetIds {
            // Of who is privileged the kernel does not ask it; the group is not known, the bit
            // goes.
            self.drop_setid(&mut st, node, true)?;
        }
        drop(st);
        let (before, len, allocated) = {
            let backing = opened.backing.as_ref();
            let base = backing.map(|backing| StillOneMoment { view: self, backing });
            let mut content = opened.content.lock();
            let before = content.len();
            run(self, &mut content, base.as_ref().map(|base| base as &dyn BaseBytes))
                .map_err(errno)?;
            (before, content.len(), content.allocated())
        };
        if !grows {
            self.verify(&opened)?;
        }
        self.touch(&mut self.state.lock(), node, len, allocated)?;
        Ok(Lens { before, after: len })
    }

    /// The private content of a file.
    pub(crate) fn content_of(&self, st: &mut State, node: NodeId) -> Reply<Arc<Mutex<Content>>> {
        let n = st.node_mut(node)?;
        let Body::File(content) = &mut n.body else { return Err(Errno::INVAL) };
        let attr = &n.attr;
        Ok(content
            .get_or_insert_with(|| {
                let mut over = Content::over(attr.size);
                over.set_base_allocated(attr.blocks * 512);
                Arc::new(Mutex::new(rank::CONTENT, over))
            })
            .clone())
    }

    /// Records pages of the backing file as read. The one place where content is read from there:
    /// an aged transaction keeps plain writers out first, since a write that came before the record
    /// is nothing to it, and one that is held after it is in the kernel's pages already.
    fn record_pages(&self, st: &State, node: NodeId, needed: &[Range<u64>]) -> Reply<()> {
        let Some(base) = &st.node(node)?.base else { return Ok(()) };
        let shared = !self.work.is_frozen(base.oid());
        let first_read = shared && !needed.is_empty() && self.files.get(node).is_none();
        if first_read {
            self.others.keep_writers_out(self.work.txn, base.stamp.id);
        }
        for pages in needed {
            let (first, last) = (pages.start, pages.end.saturating_sub(1));
            self.work.read_of(ObjectRef::Pages { oid: base.oid(), first, last })?;
        }
        if first_read {
            self.others.recorded(self.work.txn, base.stamp.id);
        }
        Ok(())
    }

    /// Opens the backing file if pages of it are needed.
    fn open_backing(
        &self,
        st: &mut State,
        node: NodeId,
        content: Arc<Mutex<Content>>,
        needed: &[Range<u64>],
    ) -> Reply<Opened> {
        let (Some(base), false) = (st.node(node)?.base.clone(), needed.is_empty()) else {
            return Ok(Opened { content, backing: None });
        };
        let handle = self.file_handle(st, node)?;
        Ok(Opened { content, backing: Some(Backing { io: Arc::clone(self.tree()), handle, base }) })
    }

    /// After a transfer: what was read was the version that was met.
    fn verify(&self, opened: &Opened) -> Reply<()> {
        let Some(backing) = &opened.backing else { return Ok(()) };
        let stat = self.tree().stat(&backing.handle).map_err(errno)?;
        // What was recorded is the inode that was met: one that has replaced it is another object,
        // of which this transaction does not hear if it changes.
        let recorded =
            self.work.isolation == Isolation::Snapshot || stat.id == backing.base.stamp.id;
        let again = || self.tree().stat(&backing.handle);
        if recorded && self.is_current(&backing.base, &stat, again) {
            return Ok(());
        }
        match self.work.outsider(whole(&backing.base)) {
            Errno::CANCELED => Err(Errno::CANCELED),
            // Snapshot isolation goes on with what is there; the stale read is reported by name.
            _ => Ok(()),
        }
    }
}
