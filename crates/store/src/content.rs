//! Writing the content of files: as a write set has it, and from one to another.

use crate::env::Env;
use crate::io::{Handle, Io, Tree};
use crate::writeset::{Data, Extent, SlotId};
use std::io::{Error, Result};
use std::ops::Range;

mod chain;
pub(crate) use chain::Patch;

impl Env<'_> {
    /// Writes data and holes; `fresh` says that the file is empty.
    pub fn write_whole(
        &self,
        file: &Handle,
        len: u64,
        extents: &[Extent],
        fresh: bool,
    ) -> Result<()> {
        let io = self.io;
        let old = if fresh { 0 } else { io.stat(file)?.size };
        let mut at = 0;
        for extent in extents {
            self.clear(file, at, extent.offset, old)?;
            self.write_extent(file, extent, old)?;
            at = extent.offset + extent.data.len();
        }
        self.clear(file, at, len, old)?;
        if fresh {
            // It ends where the last bytes were written.
            let is_data = |e: &&Extent| !e.data.is_empty() && !matches!(e.data, Data::Hole { .. });
            let end = extents.iter().rfind(is_data);
            let end = end.map_or(0, |e| e.offset + e.data.len());
            return if end != len { io.set_len(file, len) } else { Ok(()) };
        }
        if io.stat(file)?.size != len { io.set_len(file, len) } else { Ok(()) }
    }

    /// Makes a range read as zeros, as far as it lies within the old length.
    fn clear(&self, file: &Handle, from: u64, to: u64, old: u64) -> Result<()> {
        let to = to.min(old);
        if from < to { self.io.punch_hole(file, from, to - from) } else { Ok(()) }
    }

    fn write_extent(&self, file: &Handle, extent: &Extent, old: u64) -> Result<()> {
        match &extent.data {
            Data::Inline(bytes) => self.io.write_at(file, bytes, extent.offset),
            Data::Hole { len } => self.clear(file, extent.offset, extent.offset + len, old),
            Data::Slot { slot, at, len } => {
                let from = self.pool.handle(*slot);
                let from = from.ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))?;
                self.io.copy_range(&from, *at, file, extent.offset, *len)
            }
        }
    }

    /// Makes a file what a slot is.
    pub fn copy_slot(&self, slot: SlotId, file: &Handle) -> Result<()> {
        let from = self.pool.handle(slot);
        let from = from.ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))?;
        let len = self.io.stat(&from)?.size;
        self.clear(file, 0, len, self.io.stat(file)?.size)?;
        copy_data(self.io, &from, file, len)?;
        self.io.set_len(file, len)
    }

    /// Overwrites part of a file.
    pub fn write_patch(&self, file: &Handle, patch: &Patch<'_>) -> Result<()> {
        let io = self.io;
        let Patch { len, keep, ref extents } = *patch;
        let old = io.stat(file)?.size;
        let mut at = 0;
        for extent in &**extents {
            self.clear(file, keep.max(at), extent.offset, old)?;
            self.write_extent(file, extent, old)?;
            at = extent.offset + extent.data.len();
        }
        self.clear(file, keep.max(at), len, old)?;
        if io.stat(file)?.size != len { io.set_len(file, len) } else { Ok(()) }
    }
}

/// Copies the data of the first `len` bytes, leaving holes as holes.
pub(crate) fn copy_data(io: &dyn Io, from: &Handle, to: &Handle, len: u64) -> Result<()> {
    copy_data_in(io, from, to, 0..len)
}

/// Copies the data of a range to the same offsets, leaving holes as holes.
pub(crate) fn copy_data_in(
    io: &dyn Io,
    from: &Handle,
    to: &Handle,
    range: Range<u64>,
) -> Result<()> {
    let copy = |r: Range<u64>| io.copy_range(from, r.start, to, r.start, r.end - r.start);
    data_in(io, from, range)?.into_iter().try_for_each(copy)
}

/// The parts of a range that are data, ascending; the rest of it are holes.
pub(crate) fn data_in(io: &dyn Tree, file: &Handle, range: Range<u64>) -> Result<Vec<Range<u64>>> {
    let (mut at, mut data) = (range.start, Vec::new());
    while at < range.end
        && let Some((start, end)) = io.next_data(file, at)?
    {
        let (start, end) = (start.max(at), end.min(range.end));
        if start < end {
            data.push(start..end);
        }
        at = end.max(start).max(at + 1);
    }
    Ok(data)
}
