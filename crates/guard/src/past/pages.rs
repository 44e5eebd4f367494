//! Pages of files as they were: runs of pages by their position, and where the bytes of a run are
//! kept.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use systx_base::sync::{Mutex, rank};
use systx_vfs::content::{PAGE, Slot, Spill};

/// Bytes of old pages in memory; what is more goes to a staging slot.
const MEMORY_MAX: u64 = 16 << 20;

/// Where the bytes of old pages are.
pub(super) struct Room {
    memory: Arc<AtomicU64>,
    limit: u64,
    disk: Mutex<Disk>,
}

#[derive(Default)]
struct Disk {
    spill: Option<Arc<dyn Spill>>,
    slot: Option<Slot>,
    /// Where the next bytes go: space that is given back is punched out, not used again.
    end: u64,
}

impl Room {
    pub fn new() -> Room {
        Room::with_memory(MEMORY_MAX)
    }

    fn with_memory(limit: u64) -> Room {
        Room { memory: Arc::default(), limit, disk: Mutex::new(rank::LEAF, Disk::default()) }
    }

    /// Where slots come from, from now on.
    pub fn use_slots_of(&self, spill: Arc<dyn Spill>) {
        self.disk.lock().spill = Some(spill);
    }

    /// Gives the slot back; what is still kept in it stays until it is dropped.
    pub fn clear(&self) {
        let disk = std::mem::take(&mut *self.disk.lock());
        drop(disk);
    }

    /// Bytes in memory.
    pub fn memory(&self) -> u64 {
        self.memory.load(Relaxed)
    }

    /// Keeps whole pages.
    ///
    /// # Errors
    /// There is no room on the disk.
    pub fn keep(&self, bytes: Vec<u8>) -> io::Result<Data> {
        if bytes.iter().all(|b| *b == 0) {
            return Ok(Data::Zeros);
        }
        let len = bytes.len() as u64;
        if self.memory.fetch_add(len, Relaxed) + len <= self.limit {
            let bytes = bytes.into_boxed_slice();
            return Ok(Data::Memory(Arc::new(Memory { bytes, used: Arc::clone(&self.memory) })));
        }
        self.memory.fetch_sub(len, Relaxed);
        let run = Arc::new(self.reserve(len)?);
        run.slot.write_at(&bytes, run.at)?;
        Ok(Data::Slot(run))
    }

    fn reserve(&self, len: u64) -> io::Result<Run> {
        let spill = {
            let mut disk = self.disk.lock();
            if let Some(run) = disk.reserve(len) {
                return Ok(run);
            }
            disk.spill.clone().ok_or(rustix::io::Errno::NOSPC)?
        };
        // The store has locks of its own.
        let slot = spill.stage()?;
        let mut disk = self.disk.lock();
        if disk.slot.is_none() {
            (disk.slot, disk.end) = (Some(slot), 0);
        }
        disk.reserve(len).ok_or_else(|| rustix::io::Errno::IO.into())
    }
}

impl Disk {
    fn reserve(&mut self, len: u64) -> Option<Run> {
        let slot = Arc::clone(self.slot.as_ref()?);
        let at = self.end;
        self.end += len;
        Some(Run { slot, at, len })
    }
}

/// Bytes of some pages; a clone is the same bytes.
#[derive(Clone)]
pub(super) enum Data {
    Zeros,
    Memory(Arc<Memory>),
    Slot(Arc<Run>),
}

pub(super) struct Memory {
    bytes: Box<[u8]>,
    used: Arc<AtomicU64>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes.len() as u64, Relaxed);
    }
}

pub(super) struct Run {
    slot: Slot,
    at: u64,
    len: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(error) = self.slot.punch_hole(self.at, self.len) {
            tracing::debug!(%error, "old pages keep their space until the last snapshot ends");
        }
    }
}

impl Data {
    /// Fills `buf` from `offset` of these bytes.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Data::Zeros => buf.fill(0),
            Data::Memory(memory) => {
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let from = memory.bytes.get(at..).and_then(|b| b.get(..buf.len()));
                buf.copy_from_slice(from.ok_or(rustix::io::Errno::IO)?);
            }
            Data::Slot(run) => {
                if run.slot.read_at(buf, run.at + offset)? < buf.len() {
                    return Err(rustix::io::Errno::IO.into());
                }
            }
        }
        Ok(())
    }
}

/// A run of pages.
#[derive(Clone)]
struct Extent {
    pages: u64,
    /// Pages of `data` before its first one.
    skip: u64,
    data: Data,
}

/// Part of a run that was asked for.
pub(super) struct Piece {
    pub pages: Range<u64>,
    /// Offset of the first page in `data`.
    pub offset: u64,
    pub data: Data,
}

/// Pages of one file, by the number of the first one; runs do not overlap.
#[derive(Clone, Default)]
pub(super) struct Extents(BTreeMap<u64, Extent>);

impl Extents {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pages of `range` that are not here.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut at = range.start;
        let mut missing = Vec::new();
        for piece in self.pieces(range.clone()) {
            if at < piece.pages.start {
                missing.push(at..piece.pages.start);
            }
            at = piece.pages.end;
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// What is here of `range`, ascending.
    pub fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let before = self.0.range(..range.start).next_back().map(|(first, _)| *first);
        let runs = self.0.range(before.unwrap_or(range.start)..range.end.max(range.start));
        runs.filter_map(|(first, extent)| {
            let start = (*first).max(range.start);
            let end = (first + extent.pages).min(range.end);
            let offset = (start.saturating_sub(*first) + extent.skip) * PAGE;
            (start < end).then(|| Piece { pages: start..end, offset, data: extent.data.clone() })
        })
        .collect()
    }

    /// Adds pages, but what is here already stays.
    pub fn add(&mut self, pages: Range<u64>, data: &Data, offset: u64) {
        for gap in self.missing(pages.clone()) {
            let skip = gap.start - pages.start + offset / PAGE;
            let extent = Extent { pages: gap.end - gap.start, skip, data: data.clone() };
            self.0.insert(gap.start, extent);
        }
    }

    /// Adds all that another one has and this one has not.
    pub fn add_all(&mut self, other: Extents) {
        for (first, extent) in other.0 {
            self.add(first..first + extent.pages, &extent.data, extent.skip * PAGE);
        }
    }
}

#[cfg(test)]
mod tests;
