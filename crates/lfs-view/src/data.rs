//! Bytes of regular files.

use crate::attrs::{loses, take_privileges};
use crate::base::refusal;
use crate::{VolumeView, ino_of};
use rustix::io::Errno;
use systx_base::NodeId;
use systx_guard::change::Change;
use systx_lfs::format::{BLOCK, Ino};
use systx_lfs::{Ops, Result, SetAttrs};
use systx_txn::ObjectRef;
use systx_vfs::api::{Answer, Caller, Fallocate, Reply, Request, Seek};
use systx_vfs::client;

/// Most that one request copies.
const COPY_MAX: u64 = 4 << 20;

/// What a change of content touches.
#[derive(Clone, Copy)]
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
}

impl Extent {
    /// Of what write(2) writes.
    fn written(offset: u64, len: usize, kill_suidgid: bool) -> Reply<Extent> {
        let len = len as u64;
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        let (stored, shows) = (false, true);
        Ok(Extent { offset, len, end, blank: offset, kill_suidgid, stored, shows })
    }

    /// Whether it takes set-id bits.  Of calls that are performed here alone the kernel does not
    /// say that the bits have to go: it leaves that to the view.
    fn kills(&self) -> bool {
        self.kill_suidgid || !self.shows && !client::keeps_set_ids()
    }

    /// Whether it moves the end of a file, and takes privileges away.
    fn beside(&self, ops: &mut Ops<'_>, ino: Ino) -> Result<(bool, bool)> {
        let is_moved = self.end > ops.attrs(ino)?.size;
        Ok((is_moved, !self.stored && loses(ops, ino, self.kills())?))
    }
}

impl VolumeView {
    pub(crate) fn serve_content(&self, caller: Caller, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        Ok(match request {
            R::Read { node, offset, buf } => self.read_from(node, offset, buf)?.into(),
            R::Write { node, offset, data, kill_suidgid } => {
                let extent = Extent::written(offset, data.len(), kill_suidgid)?;
                self.change_content(caller, node, &[], extent, |ops, ino| {
                    ops.write(ino, offset, data)
                })?;
                data.len().into()
            }
            R::Append { node, offset, data, kill_suidgid } => {
                self.append_to(caller, node, offset, data, kill_suidgid)?.into()
            }
            R::WriteBack { node, offset, data } => self.write_back(node, offset, data)?.into(),
            R::Fallocate { node, how, offset, len } => {
                self.fallocate_in(caller, node, how, (offset, len))?.into()
            }
            R::Lseek { node, offset, how } => self.seek_in(node, offset, how)?.into(),
            R::Copy { from, to, len } => self.copy_between(caller, from, to, len)?.into(),
            _ => return Err(Errno::NOSYS),
        })
    }

    fn read_from(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        let (ino, oid, len) = (ino_of(node), self.oid(node)?, buf.len() as u64);
        self.table.set_worn(ino, true);
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        // Where it ends is read by who reads up to there.
        let at_end = end > self.look(|ops| ops.attrs(ino))?.size;
        let reads = [ObjectRef::bytes_at(oid, offset, len), ObjectRef::Size(oid)];
        let reads = if at_end { &reads[..] } else { &reads[..1] };
        self.reading(reads, || self.look(|ops| ops.read_into(ino, offset, buf)))
    }

    /// Changes content, and takes away what that takes.
    fn change_content<T>(
        &self,
        by: Caller,
        node: NodeId,
        reads: &[ObjectRef<'_>],
        extent: Extent,
        mut act: impl FnMut(&mut Ops<'_>, Ino) -> Result<T>,
    ) -> Reply<T> {
        let (ino, object) = (ino_of(node), self.object(node)?);
        let oid = object.oid();
        self.table.set_worn(ino, true);
        loop {
            let now = self.look(|ops| Ok((ops.attrs(ino)?.size, extent.beside(ops, ino)?)))?;
            let (size, told) = now;
            let mut writes = vec![ObjectRef::bytes_at(oid, extent.offset, extent.len)];
            writes.extend(told.0.then_some(ObjectRef::Size(oid)));
            writes.extend(told.1.then_some(ObjectRef::Attr(oid)));
            // Who has seen what is held must not see the transaction that it is held for as if that
            // came later. What lies beyond the end is seen only when the call is over.
            let may_stall = !extent.shows || extent.offset >= size;
            let change = Change { reads, may_stall, ..object.touched(by, &writes) };
            let done = self.mutating(change, || {
                self.check_current(node)?;
                self.change(|ops| {
                    // A commit that it waited for may have cut the file off, so that it does more
                    // than it has told.
                    let (before, needs) = (ops.attrs(ino)?.size, extent.beside(ops, ino)?);
                    if needs.0 && !told.0 || needs.1 && !told.1 {
                        return Ok(None);
                    }
                    let done = act(ops, ino)?;
                    if !extent.stored {
                        take_privileges(ops, ino, extent.kills(), true)?;
                    }
                    Ok(Some((before, done)))
                })
            })?;
            if let Some((before, done)) = done {
                client::grew(before, extent.blank);
                if told.1 {
                    self.gate.changed_mode(object.id());
                }
                return Ok(done);
            }
        }
    }

    /// The kernel looks for the end of the file before it sends the request; a commit that the
    /// request waited for may have moved it.
    fn append_to(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Reply<(usize, bool)> {
        let id = self.object(node)?.id();
        loop {
            let at = self.look(|ops| ops.attrs(ino_of(node)))?.size;
            let extent = Extent { blank: 0, ..Extent::written(at, data.len(), kill_suidgid)? };
            let written = self.change_content(caller, node, &[], extent, |ops, ino| {
                if ops.attrs(ino)?.size != at {
                    return Ok(false);
                }
                ops.write(ino, at, data)?;
                Ok(true)
            })?;
            if written {
                let elsewhere = at != offset && !self.gate.appended_elsewhere(id);
                return Ok((data.len(), elsewhere));
            }
        }
    }

    /// What was stored in a mapping takes nothing away, and makes no file longer.
    fn write_back(&self, node: NodeId, offset: u64, data: &[u8]) -> Reply<()> {
        let within = |size: u64| {
            let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            &data[..data.len().min(left)]
        };
        let size = self.look(|ops| ops.attrs(ino_of(node)))?.size;
        let len = within(size).len() as u64;
        if len == 0 {
            return Ok(());
        }
        let (end, blank, kill_suidgid) = (0, 0, false);
        let extent = Extent { offset, len, end, blank, kill_suidgid, stored: true, shows: true };
        // Whose it is the kernel does not say.
        let by = Caller { uid: 0, gid: 0, tid: 0 };
        self.change_content(by, node, &[], extent, |ops, ino| {
            let data = within(ops.attrs(ino)?.size);
            if data.is_empty() { Ok(()) } else { ops.write(ino, offset, data) }
        })
    }

    /// Nothing can be allocated ahead in a log: that there is as much room now is all that is
    /// promised.
    fn fallocate_in(
        &self,
        caller: Caller,
        node: NodeId,
        how: Fallocate,
        (offset, len): (u64, u64),
    ) -> Reply<()> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        let (allocates, zeros, grows) = match how {
            Fallocate::Allocate => (true, false, true),
            Fallocate::KeepSize => (true, false, false),
            Fallocate::PunchHole | Fallocate::ZeroRangeKeepSize => (false, true, false),
            Fallocate::ZeroRange => (false, true, true),
            Fallocate::CollapseRange | Fallocate::InsertRange => return Err(Errno::OPNOTSUPP),
        };
        // The blocks that it takes already are not counted where there is room for all of it.
        if allocates
            && len.div_ceil(BLOCK as u64) > self.base.free()
            && !self.base.has_room(self.holes(ino_of(node), offset, end)?)
        {
            return Err(Errno::NOSPC);
        }
        let told = if grows { end } else { 0 };
        let (kill_suidgid, stored, shows) = (false, false, false);
        let extent = Extent { offset, len, end: told, blank: told, kill_suidgid, stored, shows };
        self.change_content(caller, node, &[], extent, |ops, ino| {
            let before = ops.attrs(ino)?.size;
            if zeros {
                ops.punch(ino, offset, len)?;
            }
            if grows && end > before {
                ops.set_attrs(ino, &SetAttrs { size: Some(end), ..SetAttrs::default() })?;
            }
            Ok(())
        })
    }

    /// Blocks of a range that take no room.
    fn holes(&self, ino: Ino, offset: u64, end: u64) -> Reply<u64> {
        const PAGE: u64 = BLOCK as u64;
        self.look(|ops| {
            let (mut at, mut taken) = (offset, 0);
            while let Some((start, stop)) = ops.next_data(ino, at)?.filter(|(s, _)| *s < end) {
                taken += stop.min(end).div_ceil(PAGE) - start / PAGE;
                at = stop;
            }
            Ok((end.div_ceil(PAGE) - offset / PAGE).saturating_sub(taken))
        })
    }

    fn seek_in(&self, node: NodeId, offset: u64, how: Seek) -> Reply<u64> {
        let (ino, oid) = (ino_of(node), self.oid(node)?);
        let rest = ObjectRef::bytes_from(oid, offset);
        self.reading(&[rest, ObjectRef::Size(oid)], || {
            self.look(|ops| {
                if offset >= ops.attrs(ino)?.size {
                    return Err(refusal(Errno::NXIO));
                }
                let data = ops.next_data(ino, offset)?;
                match (how, data) {
                    (Seek::Data, Some((start, _))) => Ok(start),
                    (Seek::Data, None) => Err(refusal(Errno::NXIO)),
                    (Seek::Hole, Some((start, end))) if start <= offset => Ok(end),
                    (Seek::Hole, _) => Ok(offset),
                }
            })
        })
    }

    fn copy_between(
        &self,
        caller: Caller,
        from: (NodeId, u64),
        to: (NodeId, u64),
        len: u64,
    ) -> Reply<u64> {
        let source = self.object(from.0)?;
        // What lies beyond the end is not copied.
        let size = self.look(|ops| ops.attrs(ino_of(from.0)))?.size;
        let len = len.min(size.saturating_sub(from.1)).min(COPY_MAX);
        if len == 0 {
            return Ok(0);
        }
        if from.0 != to.0 {
            // The caller may have seen what is being written there.
            self.gate.land(source.id());
        }
        let count = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let reads = [ObjectRef::bytes_at(source.oid(), from.1, len)];
        let written = Extent::written(to.1, count, false)?;
        let extent = Extent { shows: false, ..written };
        self.change_content(caller, to.0, &reads, extent, |ops, ino| {
            let bytes = ops.read(ino_of(from.0), from.1, count)?;
            if !bytes.is_empty() {
                ops.write(ino, to.1, &bytes)?;
            }
            Ok(bytes.len() as u64)
        })
    }
}
