//! Private bytes in a staging slot, each at its own offset in the file.
//!
//! **Invariants**
//! - The pages in `valid` hold private bytes, up to the file's length; all other pages of the slot
//!   count for nothing, and unless the slot is torn they are holes.
//! - Unless the slot is torn, its length is the file's.
//!
//! A failed write or punch leaves the slot *torn*: stray bytes may lie outside the valid pages or
//! behind the end.  Reading is not affected, since only valid pages are read.  A torn slot can no
//! longer become the file itself; its valid pages are copied at the commit instead.
//!
//! A crash leaves the slot to the store, which empties it when it opens.

use super::ranges::RangeSet;
use super::{PAGE, Slot};
use std::io;
use std::ops::Range;

/// Up to this size a write that needs its pages completed is put together in memory, to reach the
/// slot in one call.
const JOIN: usize = 64 << 10;

/// A slot and what of it counts.
pub(crate) struct Spilled {
    pub(crate) slot: Slot,
    pub(crate) valid: RangeSet,
    pub(crate) torn: bool,
}

impl Spilled {
    /// Nothing valid yet; `slot` is new and empty.
    pub(crate) fn new(slot: Slot) -> Self {
        Spilled { slot, valid: RangeSet::default(), torn: false }
    }

    /// Fills `buf` from valid pages; what lies behind the slot's end is zeros.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let n = self.slot.read_at(buf, offset)?.min(buf.len());
        buf[n..].fill(0);
        Ok(())
    }

    /// Writes `head`, `data` and `tail`, which follow each other and of which `data` stands at
    /// `offset`; together they complete every page that was not valid.  `len` is the file's length
    /// before.
    pub(crate) fn write(
        &mut self,
        len: u64,
        head: &[u8],
        offset: u64,
        data: &[u8],
        tail: &[u8],
    ) -> io::Result<()> {
        self.cut_stray(len)?;
        let start = offset - head.len() as u64;
        let end = offset + data.len() as u64;
        let done = if head.is_empty() && tail.is_empty() {
            self.slot.write_at(data, offset)
        } else if data.len() <= JOIN {
            self.slot.write_at(&[head, data, tail].concat(), start)
        } else {
            self.write_parts(&[(start, head), (offset, data), (end, tail)])
        };
        if let Err(e) = done {
            self.torn = true;
            return Err(e);
        }
        self.valid.insert(start / PAGE..end.div_ceil(PAGE));
        Ok(())
    }

    fn write_parts(&self, parts: &[(u64, &[u8])]) -> io::Result<()> {
        for (at, bytes) in parts {
            if !bytes.is_empty() {
                self.slot.write_at(bytes, *at)?;
            }
        }
        Ok(())
    }

    /// The file changes its length from `from` to `to`.
    pub(crate) fn set_len(&mut self, from: u64, to: u64) -> io::Result<()> {
        self.cut_stray(from)?;
        self.slot.set_len(to)?;
        self.valid.remove(to.div_ceil(PAGE)..u64::MAX);
        Ok(())
    }

    /// The pages no longer hold private bytes and read as zeros wherever the slot is the file.
    pub(crate) fn remove(&mut self, pages: Range<u64>) {
        self.valid.remove(pages.clone());
        let bytes = (pages.end - pages.start).saturating_mul(PAGE);
        // Not every file system can do it; the bytes are stray then, which is no error.
        if self.slot.punch_hole(pages.start.saturating_mul(PAGE), bytes).is_err() {
            self.torn = true;
        }
    }

    /// Before the file grows, what a failed write left behind its end has to go: it would show up.
    fn cut_stray(&self, len: u64) -> io::Result<()> {
        if self.torn { self.slot.set_len(len) } else { Ok(()) }
    }
}
