//! Bytes of regular files.

use crate::attrs::take_privileges;
use crate::base::refusal;
use crate::{VolumeView, ino_of};
use rustix::io::Errno;
use systx_base::NodeId;
use systx_lfs::format::{BLOCK, Ino};
use systx_lfs::{Ops, Result, SetAttrs};
use systx_vfs::api::{Answer, Fallocate, Reply, Request, Seek};
use systx_vfs::client;

/// Most that one request copies.
const COPY_MAX: u64 = 4 << 20;

/// Whether a change takes the set-id bits of a file, of which the kernel says nothing: it leaves
/// that to the view for calls that are performed here alone.
fn untold(ops: &mut Ops<'_>, ino: Ino) -> Result<bool> {
    Ok(ops.attrs(ino)?.mode & 0o6000 != 0 && !client::keeps_set_ids())
}

/// Writes, and takes away what a write does.  Returns how long the file was.
fn write(ops: &mut Ops<'_>, ino: Ino, at: u64, data: &[u8], kills: bool) -> Result<u64> {
    let before = ops.attrs(ino)?.size;
    ops.write(ino, at, data)?;
    take_privileges(ops, ino, kills, true)?;
    Ok(before)
}

impl VolumeView {
    pub(crate) fn serve_content(&self, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        Ok(match request {
            R::Read { node, offset, buf } => self.read_from(node, offset, buf)?.into(),
            R::Write { node, offset, data, kill_suidgid } => {
                let before =
                    self.change(|ops| write(ops, ino_of(node), offset, data, kill_suidgid))?;
                client::grew(before, offset);
                data.len().into()
            }
            R::Append { node, offset, data, kill_suidgid } => {
                let ino = ino_of(node);
                let at = self.change(|ops| {
                    let end = ops.attrs(ino)?.size;
                    write(ops, ino, end, data, kill_suidgid)
                })?;
                (data.len(), at != offset).into()
            }
            R::WriteBack { node, offset, data } => {
                self.write_back(ino_of(node), offset, data)?.into()
            }
            R::Fallocate { node, how, offset, len } => {
                self.fallocate_in(ino_of(node), how, (offset, len))?.into()
            }
            R::Lseek { node, offset, how } => self.seek_in(ino_of(node), offset, how)?.into(),
            R::Copy { from, to, len } => self.copy_between(from, to, len)?.into(),
            // Opens need no message, and the kernel keeps the locks.
            _ => return Err(Errno::NOSYS),
        })
    }

    fn read_from(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        let bytes = self.look(|ops| ops.read(ino_of(node), offset, buf.len()))?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// What was stored in a mapping takes nothing away, and makes no file longer.
    fn write_back(&self, ino: Ino, offset: u64, data: &[u8]) -> Reply<()> {
        self.change(|ops| {
            let left = ops.attrs(ino)?.size.saturating_sub(offset);
            let data = &data[..data.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            if data.is_empty() { Ok(()) } else { ops.write(ino, offset, data) }
        })
    }

    /// Nothing can be allocated ahead in a log: that there is as much room now is all that is
    /// promised.
    fn fallocate_in(&self, ino: Ino, how: Fallocate, (offset, len): (u64, u64)) -> Reply<()> {
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
        if allocates && len.div_ceil(BLOCK as u64) > self.base.free() {
            return Err(Errno::NOSPC);
        }
        let before = self.change(|ops| {
            let before = ops.attrs(ino)?.size;
            let kills = untold(ops, ino)?;
            if zeros {
                ops.punch(ino, offset, len)?;
            }
            if grows && end > before {
                ops.set_attrs(ino, &SetAttrs { size: Some(end), ..SetAttrs::default() })?;
            }
            take_privileges(ops, ino, kills, true)?;
            Ok(before)
        })?;
        if grows {
            client::grew(before, end);
        }
        Ok(())
    }

    fn seek_in(&self, ino: Ino, offset: u64, how: Seek) -> Reply<u64> {
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
    }

    fn copy_between(&self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Reply<u64> {
        let count = usize::try_from(len.min(COPY_MAX)).map_err(|_| Errno::INVAL)?;
        let (copied, before) = self.change(|ops| {
            let bytes = ops.read(ino_of(from.0), from.1, count)?;
            if bytes.is_empty() {
                return Ok((0, to.1));
            }
            let kills = untold(ops, ino_of(to.0))?;
            let before = write(ops, ino_of(to.0), to.1, &bytes, kills)?;
            Ok((bytes.len() as u64, before))
        })?;
        client::grew(before, to.1);
        Ok(copied)
    }
}
