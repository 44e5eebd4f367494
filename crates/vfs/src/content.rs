//! The private content of one regular file in a transaction: a copy-on-write overlay, exact to the
//! page, over the bytes that the file had before.
//!
//! **Where a byte comes from.**  For an offset below the length, in this order:
//! 1. its page is *private*: from memory or from the staging slot;
//! 2. its page is a *hole* cut by the transaction: zero;
//! 3. it lies below `keep`: from the base, the file as it was;
//! 4. else: zero.
//!
//! `keep` starts as the base's length and is the smallest length that the file ever had since, so
//! bytes that were cut off never come back.
//!
//! **Two forms.**  Private bytes start in memory ([`segments`]), where a small file costs its bytes
//! and little else.  When one file has more than [`SPILL`] of them, or the transaction's [`Budget`]
//! is used up, they all move to a staging slot, at the same offsets ([`spilled`]); from then on
//! writes go straight there.  A slot that holds all of a file becomes the file at the commit.
//!
//! **Invariants**
//! - C1 `keep <= len`, and `keep <=` the base's length.
//! - C2 holes lie in pages below `keep` and are not private.
//! - C3 a private page is complete: all of its bytes below the length were put there.
//! - C4 in memory nothing is stored at or behind the length; a slot that is not torn has the
//!   file's length and no data outside the private pages.
//!
//! **Errors.**  A call that fails leaves the content as it was, except that a failed write may have
//! changed some of the bytes in its range that were private already, as with write(2).
//!
//! **Locks**: none inside; the owner wraps it in a mutex of rank `CONTENT`. [`Base`], [`Spill`] and
//! [`Staging`] are called under that lock. **Crash**: nothing here is durable before the commit.

mod budget;
mod freeze;
mod pages;
mod ranges;
mod segments;
mod shape;
mod spilled;
#[cfg(test)]
mod tests;
mod times;

pub use budget::{Budget, Elsewhere};
pub use freeze::FrozenContent;
pub use systx_store::{Slot, Staging};
pub use times::Times;
pub(crate) use times::TimesHeld;

use budget::Charge;
use ranges::RangeSet;
use rustix::io::Errno;
use segments::Segments;
use spilled::Spilled;
use std::io;

/// Unit of copy-on-write and of conflicts.
pub const PAGE: u64 = 4096;

/// The part of `data` at `offset` that lies in a file of this length.
pub fn within(size: u64, offset: u64, data: &[u8]) -> &[u8] {
    let rest = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    &data[..data.len().min(rest)]
}

/// A file with more private bytes than this keeps them in a staging slot.
pub const SPILL: u64 = 256 << 10;

/// No file is longer (`MAX_LFS_FILESIZE`).
const MAX_LEN: u64 = i64::MAX as u64;

/// Where the unchanged bytes come from: a file of the backing directory.
pub trait Base: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads until `buf` is full or the file ends; returns the count.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// The next range of data at or after `offset`; `None` if only a hole follows.
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>>;
}

/// Where spilled bytes go.
pub trait Spill: Send + Sync {
    /// A new, empty slot.
    fn stage(&self) -> io::Result<Slot>;
    /// The longest file that the file system takes, as far as a length that is `wanted` may be
    /// beyond it: then calls fail with `EFBIG` at once instead of at the commit.
    fn max_len(&self, _wanted: u64) -> u64 {
        MAX_LEN
    }
    /// The times that files of the file system can have.
    fn times(&self) -> io::Result<Times> {
        Ok(Times::ALL)
    }
}

/// The private content of one file.
pub struct Content {
    len: u64,
    keep: u64,
    /// `None`: a new file.
    base_len: Option<u64>,
    base_allocated: u64,
    /// Pages cut out of the base.
    holes: RangeSet,
    /// Pages that fallocate(2) asked for; they only count in `st_blocks`.
    reserved: RangeSet,
    form: Form,
    charge: Charge,
}

/// Where the private pages are.
enum Form {
    Memory(Segments),
    Slot(Box<Spilled>),
}

/// Where a run of bytes comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Private,
    Base,
    Zero,
}

type OptBase<'a> = Option<&'a dyn Base>;

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content")
            .field("len", &self.len)
            .field("keep", &self.keep)
            .field("base_len", &self.base_len)
            .field("spilled", &self.is_spilled())
            .finish_non_exhaustive()
    }
}

impl Content {
    /// A new, empty file.
    pub fn new_file() -> Content {
        Content {
            len: 0,
            keep: 0,
            base_len: None,
            base_allocated: 0,
            holes: RangeSet::default(),
            reserved: RangeSet::default(),
            form: Form::Memory(Segments::default()),
            charge: Charge::default(),
        }
    }

    /// An existing file of this length, not changed yet.
    pub fn over(base_len: u64) -> Content {
        Content {
            len: base_len,
            keep: base_len,
            base_len: Some(base_len),
            base_allocated: u64::MAX,
            ..Content::new_file()
        }
    }

    /// Tells how many bytes the base has allocated (`st_blocks * 512`).  Without this it counts as
    /// having no holes.
    pub fn set_base_allocated(&mut self, bytes: u64) {
        self.base_allocated = bytes;
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether length or bytes may differ from the base's; for a new file, from an empty one's.
    pub fn is_changed(&self) -> bool {
        let base_len = self.base_len.unwrap_or(0);
        self.len != base_len
            || self.keep < base_len
            || !self.holes.is_empty()
            || match &self.form {
                Form::Memory(segments) => !segments.is_empty(),
                Form::Slot(spilled) => !spilled.valid.is_empty(),
            }
    }

    /// Whether the private bytes are in a staging slot.
    pub fn is_spilled(&self) -> bool {
        matches!(self.form, Form::Slot(_))
    }

    /// Lets go of the private bytes. What is read from now on means nothing.
    pub fn discard(&mut self) {
        self.form = Form::Memory(Segments::default());
        self.charge.clear();
    }

    /// Reads from `offset` until `buf` is full or the file ends; returns the count.  A base that is
    /// shorter than it was reads as zeros: its change is found when its stamp is compared.
    pub fn read(&self, base: OptBase<'_>, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let n = buf.len().min(left);
        self.fill(base, offset, &mut buf[..n])?;
        Ok(n)
    }

    /// Writes all of `data`, making the file longer where it ends behind the end.  `EFBIG` if it
    /// would become too long.
    pub fn write(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        data: &[u8],
    ) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let wanted = offset.saturating_add(data.len() as u64);
        let end = end_of(offset, data.len() as u64, spill.max_len(wanted))?;
        let (head, tail) = self.completion(base, offset, end)?;
        let first = offset - head.len() as u64;
        let pages = offset / PAGE..end.div_ceil(PAGE);
        if !self.fits(budget, pages.clone(), data.len() as u64) {
            self.spill(spill, budget)?;
        }
        match &mut self.form {
            Form::Memory(segments) => {
                segments.put(first, &head);
                segments.put(offset, data);
                segments.put(end, &tail);
                self.charge.set(budget, segments.capacity());
            }
            Form::Slot(spilled) => spilled.write(self.len, &head, offset, data, &tail)?,
        }
        self.holes.remove(pages);
        self.len = self.len.max(end);
        Ok(())
    }

    /// Sets the length.  What is cut off never comes back; what is added reads as zeros.
    pub fn truncate(
        &mut self,
        _base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        len: u64,
    ) -> io::Result<()> {
        if len > self.len {
            end_of(0, len, spill.max_len(len))?;
        }
        self.set_len(len)?;
        if let Form::Memory(segments) = &self.form {
            self.charge.set(budget, segments.capacity());
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        match &mut self.form {
            Form::Memory(segments) => segments.cut(len),
            Form::Slot(spilled) if len != self.len => spilled.set_len(self.len, len)?,
            Form::Slot(_) => {}
        }
        self.len = len;
        self.keep = self.keep.min(len);
        self.holes.remove(self.keep.div_ceil(PAGE)..u64::MAX);
        // Space asked for beyond the end goes with a truncation even to the same length.
        self.reserved.remove(len.div_ceil(PAGE)..u64::MAX);
        Ok(())
    }

    /// What a write of `offset..end` has to add so that the pages that it makes private are
    /// complete (C3): the bytes before it in its first page, and those after it in its last.
    fn completion(
        &self,
        base: OptBase<'_>,
        offset: u64,
        end: u64,
    ) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let bytes = |from: u64, to: u64| -> io::Result<Vec<u8>> {
            let mut buf = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
            self.fill(base, from, &mut buf)?;
            Ok(buf)
        };
        let mut head = Vec::new();
        if !self.is_private(offset / PAGE) {
            head = bytes(offset / PAGE * PAGE, offset)?;
        }
        let mut tail = Vec::new();
        if !self.is_private((end - 1) / PAGE) {
            tail = bytes(end, end.next_multiple_of(PAGE).min(self.len))?;
        }
        Ok((head, tail))
    }

    /// Whether a write of these pages, `bytes` long, may go where the private bytes are now.
    fn fits(&self, budget: &Budget, pages: std::ops::Range<u64>, bytes: u64) -> bool {
        let Form::Memory(segments) = &self.form else { return true };
        let covered: u64 = segments.pages().map(|run| run.end - run.start).sum();
        let both: u64 = segments
            .pages()
            .map(|run| run.end.min(pages.end).saturating_sub(run.start.max(pages.start)))
            .sum();
        let new = pages.end - pages.start - both;
        (covered + new) * PAGE <= SPILL && (new == 0 || budget.has_room(bytes))
    }

    /// Moves all private bytes to a new slot.
    fn spill(&mut self, spill: &dyn Spill, budget: &Budget) -> io::Result<()> {
        let Form::Memory(segments) = &self.form else { return Ok(()) };
        // They are not counted twice meanwhile.
        self.charge.clear();
        match self.spilled(spill, segments) {
            Ok(spilled) => {
                self.form = Form::Slot(Box::new(spilled));
                Ok(())
            }
            Err(e) => {
                self.charge.set(budget, segments.capacity());
                Err(e)
            }
        }
    }

    fn spilled(&self, spill: &dyn Spill, segments: &Segments) -> io::Result<Spilled> {
        let mut spilled = Spilled::new(spill.stage()?);
        for (start, bytes) in segments.iter() {
            spilled.write(0, &[], start, bytes, &[])?;
        }
        if self.len > 0 {
            // `Spilled::set_len` would drop nothing here, but the slot may be short or exact.
            spilled.set_len(0, self.len)?;
        }
        Ok(spilled)
    }

    fn is_private(&self, page: u64) -> bool {
        match &self.form {
            Form::Memory(segments) => segments.state(page).0,
            Form::Slot(spilled) => spilled.valid.contains(page),
        }
    }

    /// Fills `buf` with the bytes from `offset`, zeros behind the end.
    fn fill(&self, base: OptBase<'_>, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for (source, range) in self.walk(offset, offset.saturating_add(buf.len() as u64)) {
            let at = (range.start - offset) as usize;
            let part = &mut buf[at..at + (range.end - range.start) as usize];
            match (source, &self.form) {
                (Source::Zero, _) => part.fill(0),
                (Source::Private, Form::Memory(segments)) => segments.read(range.start, part),
                (Source::Private, Form::Slot(spilled)) => spilled.read(range.start, part)?,
                (Source::Base, _) => {
                    // A file that still shows old bytes was given without them: the caller's bug.
                    let base = base.ok_or(Errno::IO)?;
                    let n = base.read_at(part, range.start)?.min(part.len());
                    part[n..].fill(0);
                }
            }
        }
        Ok(())
    }

    /// The runs of one source between two offsets, ascending and without gaps; neighbours may have
    /// the same source.
    fn walk(
        &self,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (Source, std::ops::Range<u64>)> + '_ {
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (source, until) = self.source(at);
            let range = at..until.min(end);
            at = range.end;
            Some((source, range))
        })
    }

    /// Where the byte at `offset` comes from, and up to which offset that holds at least.
    fn source(&self, offset: u64) -> (Source, u64) {
        let page = offset / PAGE;
        let (private, end) = match &self.form {
            Form::Memory(segments) => segments.state(page),
            Form::Slot(spilled) => spilled.valid.state(page),
        };
        let end = end.saturating_mul(PAGE);
        if private {
            return (Source::Private, end);
        }
        if offset >= self.keep {
            return (Source::Zero, end);
        }
        let (hole, hole_end) = self.holes.state(page);
        let end = end.min(hole_end.saturating_mul(PAGE));
        if hole { (Source::Zero, end) } else { (Source::Base, end.min(self.keep)) }
    }
}

/// The end of a range that may be at most `max`.
fn end_of(offset: u64, len: u64, max: u64) -> io::Result<u64> {
    let end = offset.checked_add(len).filter(|end| *end <= max.min(MAX_LEN));
    end.ok_or_else(|| Errno::FBIG.into())
}
