//! Bytes of regular files. The pages that a request takes from the backing file are recorded and
//! the file's lock is taken under the view's lock; the transfer itself runs without the view's
//! lock.

use crate::api::{Answer, Fallocate, Reply, Request, Seek};
use crate::client;
use crate::content::{Base as BaseBytes, Content, PAGE, within};
use crate::node::Base;
use crate::reach::StillOneMoment;
use crate::view::View;
use crate::volume::errno;
use rustix::io::Errno;
use std::io;
use systx_base::NodeId;
use systx_store::io::Fixed;
use systx_txn::ObjectRef;

/// Set-user-id and set-group-id.
const S_ISXID: u32 = 0o6000;

/// Longest file: what the kernel's signed offsets allow.
const FILE_MAX: u64 = i64::MAX as u64;

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
        let reach = self.reach();
        if !reach.work.is_patient() {
            return Ok(());
        }
        let mut st = self.state.lock();
        let content = st.content_of(node)?;
        let needed = content.lock().base_pages_needed(offset, len);
        let base = st.node(node)?.base.as_ref().map(Base::oid);
        drop(st);
        match base.filter(|oid| !reach.work.is_frozen(*oid)) {
            Some(oid) => {
                needed.into_iter().try_for_each(|pages| reach.work.stall(oid, pages, false))
            }
            None => Ok(()),
        }
    }

    /// As [`View::let_the_winner_end`], for who has the pages that are to be written.
    fn let_the_holder_end(&self, node: NodeId, offset: u64, len: u64) -> Reply<()> {
        let reach = self.reach();
        if !reach.work.is_patient() || !reach.vol.engine.locks(reach.work.txn) {
            return Ok(());
        }
        let base = self.state.lock().node(node)?.base.as_ref().map(Base::oid);
        let end = offset.saturating_add(len);
        match base.filter(|oid| !reach.work.is_frozen(*oid)) {
            Some(oid) => reach.work.stall(oid, offset / PAGE..end.div_ceil(PAGE), true),
            None => Ok(()),
        }
    }

    pub(super) fn read_from(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        let reach = self.reach();
        self.let_the_winner_end(node, offset, buf.len() as u64)?;
        let mut st = self.state.lock();
        let content = st.content_of(node)?;
        let len = buf.len() as u64;
        let needed = content.lock().base_pages_needed(offset, len);
        // Also where the old bytes are private by now, beside what was appended.
        let old = st.node(node)?.base.as_ref().is_some_and(|base| offset < base.stamp.length());
        let recorded = if old { reach.stop_growing(&mut st, node) } else { Ok(()) };
        match recorded.and_then(|()| reach.record_pages(&st, node, &needed)) {
            // Pages are served to the end: a page fault that fails would kill a program that only
            // waits to be ended.
            Ok(()) | Err(Errno::CANCELED) => {}
            Err(e) => return Err(e),
        }
        let opened = reach.open_backing(&st, node, content, &needed)?;
        drop(st);
        let count = opened.content.lock().read(opened.base(), offset, buf).map_err(errno)?;
        if reach.work.alive().is_ok() {
            reach.verify(&opened)?;
        } else if self.opaque && !opened.is_as_met()? {
            return Err(Errno::CANCELED);
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
        self.reach().stop_growing(&mut self.state.lock(), node)?;
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
        self.reach().stop_growing(&mut self.state.lock(), node)?;
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
        let reach = self.reach();
        let mut st = self.state.lock();
        let content = st.content_of(node)?;
        let all = 0..u64::MAX / PAGE;
        reach.stop_growing(&mut st, node)?;
        reach.record_pages(&st, node, std::slice::from_ref(&all))?;
        let opened = reach.open_backing(&st, node, content, std::slice::from_ref(&all))?;
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
        let reach = self.reach();
        let end = offset.checked_add(len).filter(|end| *end <= FILE_MAX).ok_or(Errno::FBIG)?;
        let mut st = self.state.lock();
        reach.check_writable(&st, node)?;
        reach.check_fixed(&mut st, node, Fixed::No)?;
        self.below.depend_on_place(&mut st, node)?;
        let content = st.content_of(node)?;
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
            reach.append_to(&mut st, node)?;
        } else {
            reach.stop_growing(&mut st, node)?;
        }
        // Nobody's concern before the commit, which appends at the end of then.
        let grows = st.growing.has(node);
        if let Some(base) = st.node(node)?.base.as_ref().filter(|_| !grows) {
            let oid = base.oid();
            let last = end.saturating_sub(1) / PAGE;
            reach.work.write_of(ObjectRef::Pages { oid, first: offset / PAGE, last })?;
            if end > old_len {
                reach.work.write_of(ObjectRef::Size(oid))?;
            } else {
                // The write set carries the length: another transaction's truncation must not be
                // undone by it.
                reach.work.depend_on(ObjectRef::Size(oid))?;
            }
        }
        if !grows {
            reach.record_pages(&st, node, &needed)?;
        }
        let opened = reach.open_backing(&st, node, content, &needed)?;
        match takes {
            Takes::Nothing => self.hold_caps(&mut st, node)?,
            _ => self.drop_caps(&mut st, node)?,
        }
        if takes == Takes::SetIds {
            // Of who is privileged the kernel does not ask it; the group is not known, the bit
            // goes.
            st.node_mut(node)?.drop_setid(true);
        }
        drop(st);
        let (before, len, allocated) = {
            let backing = opened.backing.as_ref();
            let base = backing.map(|backing| StillOneMoment { reach, backing });
            let mut content = opened.content.lock();
            let before = content.len();
            run(self, &mut content, base.as_ref().map(|base| base as &dyn BaseBytes))
                .map_err(errno)?;
            (before, content.len(), content.allocated())
        };
        if !grows {
            reach.verify(&opened)?;
        }
        let now = reach.now();
        self.state.lock().node_mut(node)?.touch(len, allocated, now);
        Ok(Lens { before, after: len })
    }
}
