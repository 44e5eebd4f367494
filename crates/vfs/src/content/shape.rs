//! fallocate(2): ranges that are emptied, allocated, taken out and put in.
//!
//! Taking out or putting in moves all that follows.  It is done on a second content, which takes
//! the place of the first when it is complete, so that a failure half-way changes nothing; from the
//! point of change on it keeps none of the base's bytes, as they are no longer where they were.

use super::{Budget, Content, Form, MAX_LEN, OptBase, PAGE, RangeSet, Source, Spill, end_of};
use rustix::io::Errno;
use std::io;
use std::ops::Range;

/// Bytes are moved in steps of this size.
const STEP: u64 = 256 << 10;

impl Content {
    /// Makes a range read as zeros without taking space, within the length.
    pub fn punch_hole(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        let end = range_end(offset, len, MAX_LEN)?;
        self.clear(base, spill, budget, offset, end)?;
        self.reserved.remove(offset.div_ceil(PAGE)..end / PAGE);
        Ok(())
    }

    /// Makes a range read as zeros and allocates it; the file grows to hold it unless `keep_size`.
    pub fn zero_range(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> io::Result<()> {
        let end = range_end(offset, len, spill.max_len(offset.saturating_add(len)))?;
        self.clear(base, spill, budget, offset, end)?;
        self.allocate(offset, len, keep_size)
    }

    /// Allocates a range; the file grows to hold it unless `keep_size`. No space is taken: only the
    /// length counts at the commit, and `st_blocks` until then.
    pub fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        let end = range_end(offset, len, MAX_LEN)?;
        if !keep_size && end > self.len {
            self.set_len(end)?;
        }
        self.reserved.insert(offset / PAGE..end.div_ceil(PAGE));
        Ok(())
    }

    /// Takes a range out; what follows moves down.  `EINVAL` unless both numbers are multiples of
    /// the page size and the range ends before the end of the file.
    pub fn collapse_range(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        let end = aligned_end(offset, len)?;
        if end >= self.len {
            return Err(Errno::INVAL.into());
        }
        self.shift(base, spill, budget, offset, end, offset)
    }

    /// Puts a hole in; what follows moves up. `EINVAL` unless both numbers are multiples of the
    /// page size and the range starts before the end of the file.
    pub fn insert_range(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        let end = aligned_end(offset, len)?;
        if offset >= self.len {
            return Err(Errno::INVAL.into());
        }
        end_of(self.len, len, spill.max_len(self.len.saturating_add(len)))?;
        self.shift(base, spill, budget, offset, offset, end)
    }

    /// Whole pages become holes, the parts of pages at both ends zeros.
    fn clear(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        end: u64,
    ) -> io::Result<()> {
        let end = end.min(self.len);
        if offset >= end {
            return Ok(());
        }
        let first = offset.div_ceil(PAGE);
        // The last page of the file is whole as far as it goes.
        let last = if end == self.len { end.div_ceil(PAGE) } else { end / PAGE };
        if first > last {
            return self.zero_part(base, spill, budget, offset..end);
        }
        // The parts first: they can fail.
        self.zero_part(base, spill, budget, offset..(first * PAGE).min(end))?;
        self.zero_part(base, spill, budget, (last * PAGE).min(end)..end)?;
        if first < last {
            match &mut self.form {
                Form::Memory(segments) => {
                    segments.remove(first..last);
                    self.charge.set(budget, segments.capacity());
                }
                Form::Slot(spilled) => spilled.remove(first..last),
            }
            self.holes.insert(first..last.min(self.keep.div_ceil(PAGE)));
        }
        Ok(())
    }

    /// Zeros a range within one page, unless it is zeros already.
    fn zero_part(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        range: Range<u64>,
    ) -> io::Result<()> {
        if self.walk(range.start, range.end).all(|(source, _)| source == Source::Zero) {
            return Ok(());
        }
        let zeros = [0; PAGE as usize];
        let n = ((range.end - range.start) as usize).min(zeros.len());
        self.write(base, spill, budget, range.start, &zeros[..n])
    }

    /// What starts at `from` starts at `to` afterwards; what lies before the smaller one stays.
    fn shift(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        from: u64,
        to: u64,
    ) -> io::Result<()> {
        let mut new = Content::new_file();
        new.base_len = self.base_len;
        new.base_allocated = self.base_allocated;
        new.len = offset;
        new.keep = self.keep.min(offset);
        new.holes = self.holes.clone();
        new.holes.remove(offset / PAGE..u64::MAX);
        for run in self.reserved.iter() {
            new.reserved.insert(run.start..run.end.min(offset / PAGE));
            let behind = run.start.max(from / PAGE);
            if behind < run.end {
                new.reserved
                    .insert(behind - from / PAGE + to / PAGE..run.end - from / PAGE + to / PAGE);
            }
        }
        let to_new = &mut Target { content: &mut new, base, spill, budget };
        for (source, range) in self.walk(0, offset) {
            if source == Source::Private {
                self.copy(to_new, range.clone(), range.start)?;
            }
        }
        for (source, range) in self.walk(from, self.len) {
            let at = range.start - from + to;
            match source {
                Source::Zero => {}
                Source::Private => self.copy(to_new, range, at)?,
                Source::Base => self.copy_base(to_new, range, at)?,
            }
        }
        new.set_len(self.len - from + to)?;
        *self = new;
        Ok(())
    }

    /// Copies a run of the base, leaving its holes out.
    fn copy_base(&self, target: &mut Target<'_>, range: Range<u64>, to: u64) -> io::Result<()> {
        let base = target.base.ok_or(Errno::IO)?;
        let mut at = range.start;
        while at < range.end {
            let Some((start, end)) = base.next_data(at)? else { return Ok(()) };
            let (start, end) = (start.max(at), end.min(range.end));
            if start >= end {
                return Ok(());
            }
            self.copy(target, start..end, start - range.start + to)?;
            at = end;
        }
        Ok(())
    }

    fn copy(&self, target: &mut Target<'_>, range: Range<u64>, to: u64) -> io::Result<()> {
        let mut buf = vec![0; STEP.min(range.end - range.start) as usize];
        let mut at = range.start;
        while at < range.end {
            let n = (range.end - at).min(STEP) as usize;
            self.fill(target.base, at, &mut buf[..n])?;
            let Target { content, base, spill, budget } = target;
            content.write(*base, *spill, budget, at - range.start + to, &buf[..n])?;
            at += n as u64;
        }
        Ok(())
    }
}

/// Where moved bytes go.
struct Target<'a> {
    content: &'a mut Content,
    base: OptBase<'a>,
    spill: &'a dyn Spill,
    budget: &'a Budget,
}

fn range_end(offset: u64, len: u64, max: u64) -> io::Result<u64> {
    if len == 0 {
        return Err(Errno::INVAL.into());
    }
    end_of(offset, len, max)
}

fn aligned_end(offset: u64, len: u64) -> io::Result<u64> {
    if !offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        return Err(Errno::INVAL.into());
    }
    range_end(offset, len, MAX_LEN)
}

impl Content {
    /// Allocated bytes, for `st_blocks`: whole pages of what is private, asked for, or still shown
    /// of the base.
    pub fn allocated(&self) -> u64 {
        let below = self.keep.div_ceil(PAGE);
        let (own, own_below) = if self.reserved.is_empty() {
            self.count_private(below)
        } else {
            let mut set = self.reserved.clone();
            self.each_private(|run| set.insert(run));
            // Holes are not taken from the base either.
            (set.count(), set.count_below(below))
        };
        let mut hidden = own_below;
        for hole in self.holes.iter() {
            hidden += (hole.end - hole.start) - self.reserved_within(&hole);
        }
        let base = (below.saturating_sub(hidden) * PAGE).min(self.base_allocated);
        own.saturating_mul(PAGE).saturating_add(base)
    }

    /// Bytes that are private: what a commit writes.
    pub fn written(&self) -> u64 {
        let mut bytes = 0;
        self.each_private(|run| {
            let end = run.end.saturating_mul(PAGE).min(self.len);
            bytes += end.saturating_sub(run.start.saturating_mul(PAGE));
        });
        bytes
    }

    fn reserved_within(&self, range: &Range<u64>) -> u64 {
        if self.reserved.is_empty() {
            return 0;
        }
        self.reserved.count_below(range.end) - self.reserved.count_below(range.start)
    }

    fn count_private(&self, below: u64) -> (u64, u64) {
        match &self.form {
            Form::Slot(spilled) => (spilled.valid.count(), spilled.valid.count_below(below)),
            Form::Memory(_) => {
                let (mut all, mut low) = (0, 0);
                self.each_private(|run| {
                    all += run.end - run.start;
                    low += run.end.min(below).saturating_sub(run.start);
                });
                (all, low)
            }
        }
    }

    /// Calls `each` with every run of private pages, ascending.
    pub(super) fn each_private(&self, each: impl FnMut(Range<u64>)) {
        match &self.form {
            Form::Memory(segments) => segments.pages().for_each(each),
            Form::Slot(spilled) => spilled.valid.iter().for_each(each),
        }
    }

    /// Pages whose bytes differ from the base's, or may.
    pub(super) fn changed_set(&self) -> RangeSet {
        let mut set = self.holes.clone();
        self.each_private(|run| set.insert(run));
        if let Some(base_len) = self.base_len
            && self.keep < base_len
        {
            set.insert(self.keep / PAGE..base_len.div_ceil(PAGE));
        }
        set
    }
}
