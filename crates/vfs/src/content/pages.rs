//! Questions about pages: which ones come from the base, which ones changed, where data and holes
//! are.

use super::{Content, OptBase, PAGE, Source};
use rustix::io::Errno;
use std::io;
use std::ops::Range;

impl Content {
    /// Pages of the base that a read of this range takes bytes from, ascending.
    pub fn base_pages_needed(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let end = offset.saturating_add(len).min(self.len);
        let base = self.walk(offset, end).filter(|(source, _)| *source == Source::Base);
        join(base.map(|(_, range)| range.start / PAGE..range.end.div_ceil(PAGE)))
    }

    /// Pages of the base that a write, or the zeroing, of this range takes bytes from: the first
    /// and the last, where they are not overwritten whole.
    pub fn base_pages_for_write(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let end = offset.saturating_add(len);
        if offset >= end {
            return Vec::new();
        }
        let head = offset / PAGE * PAGE..offset;
        let last = (end - 1) / PAGE * PAGE;
        let tail = end..last.saturating_add(PAGE).min(self.len);
        let taken = [head, tail].into_iter().filter(|part| {
            self.walk(part.start, part.end).any(|(source, _)| source == Source::Base)
        });
        join(taken.map(|part| part.start / PAGE..part.end.div_ceil(PAGE)))
    }

    /// Runs of pages whose bytes differ from the base's, or may, ascending: the private ones, the
    /// holes that were cut, and those that were cut off at the end.
    pub fn changed_pages(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        self.changed_set().into_runs()
    }

    /// First data at or after `offset`; `None` if there is none (`ENXIO`).
    pub fn seek_data(&self, base: OptBase<'_>, offset: u64) -> io::Result<Option<u64>> {
        for (source, range) in self.walk(offset, self.len) {
            match source {
                Source::Zero => {}
                Source::Private => return Ok(Some(range.start)),
                Source::Base => {
                    let next = base.ok_or(Errno::IO)?.next_data(range.start)?;
                    if let Some((start, _)) = next.filter(|(start, _)| *start < range.end) {
                        return Ok(Some(start.max(range.start)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// First hole at or after `offset`; the end of the file counts as one.  `None` if `offset` is
    /// not before the end (`ENXIO`).
    pub fn seek_hole(&self, base: OptBase<'_>, offset: u64) -> io::Result<Option<u64>> {
        if offset >= self.len {
            return Ok(None);
        }
        for (source, range) in self.walk(offset, self.len) {
            match source {
                Source::Zero => return Ok(Some(range.start)),
                Source::Private => {}
                Source::Base => {
                    let base = base.ok_or(Errno::IO)?;
                    let mut at = range.start;
                    while at < range.end {
                        match base.next_data(at)? {
                            Some((start, end)) if start <= at && end > at => at = end,
                            _ => return Ok(Some(at)),
                        }
                    }
                }
            }
        }
        Ok(Some(self.len))
    }
}

/// Joins ascending runs that touch or overlap.
fn join(runs: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end >= run.start => last.end = last.end.max(run.end),
            _ => joined.push(run),
        }
    }
    joined
}
