//! Private bytes in memory: contiguous runs that start at a page boundary.
//!
//! A small file is one vector of exactly its length; a file that grows by appending stays one
//! vector; a scattered patch costs one vector per run of pages.  The form is used up to a few
//! hundred kilobytes per file (then the bytes go to a staging slot), so moving a vector is cheap.
//!
//! **Invariants**
//! - A segment starts at a multiple of the page size and is not empty.
//! - A segment *covers* all of the pages that it reaches into; what lies between its last byte and
//!   the end of its last page reads as zeros.  No two segments cover the same page.

use super::PAGE;
use std::collections::BTreeMap;
use std::ops::Range;

/// The runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    /// Offset in the file -> bytes.
    runs: BTreeMap<u64, Vec<u8>>,
}

/// Offset behind the last page that `bytes` at `start` reach into.
fn cover_end(start: u64, bytes: &[u8]) -> u64 {
    (start + bytes.len() as u64).next_multiple_of(PAGE)
}

impl Segments {
    /// Whether no page is covered.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Memory taken by the bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.runs.values().map(|bytes| bytes.capacity() as u64).sum()
    }

    /// The runs, ascending, as (offset, bytes).
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.runs.iter().map(|(&start, bytes)| (start, bytes.as_slice()))
    }

    /// The covered pages, ascending; neighbours may touch.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.iter().map(|(start, bytes)| start / PAGE..cover_end(start, bytes) / PAGE)
    }

    /// As [`super::ranges::RangeSet::state`], for the covered pages; the end of a covered run may
    /// be short of the true one.
    pub(crate) fn state(&self, page: u64) -> (bool, u64) {
        if let Some((&start, bytes)) = self.runs.range(..=page.saturating_mul(PAGE)).next_back() {
            let end = cover_end(start, bytes) / PAGE;
            if end > page {
                return (true, end);
            }
        }
        let next = self.runs.range(page.saturating_mul(PAGE)..).next();
        (false, next.map_or(u64::MAX, |(&start, _)| start / PAGE))
    }

    /// Where the stored bytes of the run that holds `offset` end; `offset` if none does.
    pub(crate) fn stored_until(&self, offset: u64) -> u64 {
        let run = self.runs.range(..=offset).next_back();
        run.map_or(offset, |(start, bytes)| offset.max(start + bytes.len() as u64))
    }

    /// Fills `buf` with the bytes from `offset`, all of which are covered.
    pub(crate) fn read(&self, mut offset: u64, mut buf: &mut [u8]) {
        while !buf.is_empty() {
            let Some((&start, bytes)) = self.runs.range(..=offset).next_back() else {
                buf.fill(0);
                return;
            };
            let room = cover_end(start, bytes).saturating_sub(offset);
            let n = if room == 0 { buf.len() } else { buf.len().min(room as usize) };
            let (now, rest) = buf.split_at_mut(n);
            let from = bytes.len().min((offset - start) as usize);
            let have = n.min(bytes.len() - from);
            now[..have].copy_from_slice(&bytes[from..from + have]);
            now[have..].fill(0);
            offset += n as u64;
            buf = rest;
        }
    }

    /// Stores bytes.  Each page that is not covered yet is entered at its first byte (the caller
    /// completes it), or right behind the last byte of a segment.
    pub(crate) fn put(&mut self, mut offset: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let next = self.runs.range(offset + 1..).next().map_or(u64::MAX, |(&start, _)| start);
            let n = data.len().min(usize::try_from(next - offset).unwrap_or(usize::MAX));
            let (now, rest) = data.split_at(n);
            match self.runs.range_mut(..=offset).next_back() {
                Some((&start, bytes))
                    if offset < cover_end(start, bytes) || offset == start + bytes.len() as u64 =>
                {
                    overwrite(bytes, (offset - start) as usize, now);
                }
                _ => {
                    debug_assert_eq!(offset % PAGE, 0, "an incomplete page was entered");
                    self.runs.insert(offset, now.to_vec());
                }
            }
            offset += n as u64;
            data = rest;
        }
    }

    /// Drops the covered pages within `pages`.
    pub(crate) fn remove(&mut self, pages: Range<u64>) {
        let (from, to) = (pages.start.saturating_mul(PAGE), pages.end.saturating_mul(PAGE));
        if from >= to {
            return;
        }
        if let Some((&start, bytes)) = self.runs.range_mut(..from).next_back()
            && start + bytes.len() as u64 > from
        {
            let tail = start + bytes.len() as u64;
            if tail > to {
                let behind = bytes[(to - start) as usize..].to_vec();
                self.runs.insert(to, behind);
            }
            if let Some(bytes) = self.runs.get_mut(&start) {
                bytes.truncate((from - start) as usize);
                bytes.shrink_to_fit();
            }
        }
        while let Some((&start, bytes)) = self.runs.range(from..to).next() {
            let behind =
                (start + bytes.len() as u64 > to).then(|| bytes[(to - start) as usize..].to_vec());
            self.runs.remove(&start);
            if let Some(behind) = behind {
                self.runs.insert(to, behind);
            }
        }
    }

    /// Drops every byte at and behind `len`.
    pub(crate) fn cut(&mut self, len: u64) {
        self.runs.split_off(&len);
        if let Some((&start, bytes)) = self.runs.iter_mut().next_back() {
            let room = usize::try_from(len - start).unwrap_or(usize::MAX);
            if room < bytes.len() {
                bytes.truncate(room);
                bytes.shrink_to_fit();
            }
        }
    }
}

/// Overwrites `bytes` from `at` with `data`, growing it; a gap becomes zeros.
fn overwrite(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    if at > bytes.len() {
        bytes.resize(at, 0);
    }
    let inside = data.len().min(bytes.len() - at);
    bytes[at..at + inside].copy_from_slice(&data[..inside]);
    bytes.extend_from_slice(&data[inside..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: usize = PAGE as usize;

    fn bytes_of(segments: &Segments, offset: u64, n: usize) -> Vec<u8> {
        let mut buf = vec![0xEE; n];
        segments.read(offset, &mut buf);
        buf
    }

    #[test]
    fn a_small_file_costs_its_bytes() {
        let mut s = Segments::default();
        s.put(0, &[7; 100]);
        assert_eq!(s.capacity(), 100);
        assert_eq!(s.state(0), (true, 1));
        assert_eq!(bytes_of(&s, 90, 20), [[7; 10], [0; 10]].concat());
    }

    #[test]
    fn appending_stays_one_run() {
        let mut s = Segments::default();
        for i in 0..50u64 {
            s.put(i * 1000, &[i as u8; 1000]);
        }
        assert_eq!(s.iter().count(), 1);
        assert_eq!(bytes_of(&s, 49_999, 1), [49]);
    }

    #[test]
    fn a_write_fills_the_gap_between_runs() {
        let mut s = Segments::default();
        s.put(0, &[1; 10]);
        s.put(3 * PAGE, &[2; P]);
        s.put(5, &vec![3; 4 * P]);
        assert_eq!(bytes_of(&s, 0, 5), [1; 5]);
        assert!(bytes_of(&s, 5, 4 * P).iter().all(|b| *b == 3));
        assert_eq!(s.pages().map(|r| r.end - r.start).sum::<u64>(), 5);
    }

    #[test]
    fn a_hole_in_the_middle_splits_a_run() {
        let mut s = Segments::default();
        s.put(0, &vec![9; 4 * P + 7]);
        s.remove(1..3);
        assert_eq!(s.pages().collect::<Vec<_>>(), vec![0..1, 3..5]);
        assert_eq!(s.state(1), (false, 3));
        assert_eq!(bytes_of(&s, 4 * PAGE, 8), [9, 9, 9, 9, 9, 9, 9, 0]);
        s.remove(0..u64::MAX);
        assert!(s.is_empty());
    }

    #[test]
    fn cutting_leaves_zeros() {
        let mut s = Segments::default();
        s.put(0, &vec![9; 2 * P]);
        s.cut(PAGE + 1);
        assert_eq!(bytes_of(&s, PAGE, 3), [9, 0, 0]);
        s.cut(PAGE);
        assert_eq!(s.pages().collect::<Vec<_>>(), vec![0..1]);
        s.cut(0);
        assert!(s.is_empty());
    }
}
