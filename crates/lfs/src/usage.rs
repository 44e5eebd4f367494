//! The usage table: what is known of each segment.

use crate::error::{Error, Result, Structure};
use crate::format::{Geometry, PACK_PAGES};
use std::collections::BTreeSet;
use systx_base::codec::{Decoder, Encoder};

/// What is known of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// How often it was taken to be written.
    pub generation: u32,
    /// Blocks in it that the tree or the last checkpoint refers to.
    pub live: u32,
    /// The newest piece in it.
    pub newest: u64,
    /// Snapshots that refer to it: it is neither freed nor cleaned.
    pub pins: u32,
    /// Commits that are not shown yet and took pages in it away: it is not freed.
    pub veils: u32,
    /// The log, or a transaction, is about to write or has written it.
    pub taken: bool,
    /// Moments that need what is dead in it.
    pub kept: u32,
}

/// All segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage {
    geometry: Geometry,
    segments: Vec<Segment>,
    /// Those that may be written: nothing in them is needed by the tree, the last checkpoint, or
    /// a snapshot.
    free: BTreeSet<u32>,
    /// Those that are free but for moments: they are counted as free, and taken last.
    lent: BTreeSet<u32>,
    /// How often moments had to give them back.
    calls: u64,
    /// Blocks in use; of a segment that is pinned, all.
    occupied: u64,
}

impl Usage {
    /// The table of an empty volume.
    pub fn new(geometry: Geometry) -> Usage {
        let segments = vec![Segment::default(); geometry.segments as usize];
        let free = (0..geometry.segments).collect();
        Usage { geometry, segments, free, lent: BTreeSet::new(), calls: 0, occupied: 0 }
    }

    /// One segment.
    pub fn segment(&self, segment: u32) -> Segment {
        self.segments.get(segment as usize).copied().unwrap_or_default()
    }

    /// All segments, by number.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of segments that may be written, also if moments have to be given up for that.
    pub fn free(&self) -> u32 {
        self.idle() + self.lent.len() as u32
    }

    /// Number of segments that may be written, and that nobody needs.
    pub fn idle(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks in use, with the dead ones of pinned segments.
    pub fn occupied(&self) -> u64 {
        self.occupied
    }

    fn slot(&mut self, block: u64) -> Option<&mut Segment> {
        let (segment, _) = self.geometry.locate(block)?;
        self.segments.get_mut(segment as usize)
    }

    /// A block is referred to from here on.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is in no segment.
    pub fn add(&mut self, block: u64) -> Result<()> {
        let Some(slot) = self.slot(block) else {
            return Err(Error::corrupt(Structure::Data, block, "outside of the segments"));
        };
        slot.live = slot.live.saturating_add(1);
        if slot.pins == 0 {
            self.occupied += 1;
        }
        Ok(())
    }

    /// A block is referred to no longer.
    pub fn remove(&mut self, block: u64) {
        if let Some(slot) = self.slot(block) {
            let counted = slot.pins == 0 && slot.live > 0;
            slot.live = slot.live.saturating_sub(1);
            self.occupied -= u64::from(counted);
        }
    }

    /// All blocks of a blob are referred to.
    ///
    /// # Errors
    /// As [`Usage::add`].
    pub fn add_blob(&mut self, blob: &crate::format::Blob) -> Result<()> {
        blob.runs
            .iter()
            .flat_map(|(at, n)| *at..at.saturating_add((*n).into()))
            .try_for_each(|block| self.add(block))
    }

    /// No block of a blob is referred to.
    pub fn remove_blob(&mut self, blob: &crate::format::Blob) {
        let blocks = blob.runs.iter().flat_map(|(at, n)| *at..at.saturating_add((*n).into()));
        blocks.for_each(|block| self.remove(block));
    }

    /// A moment needs what is dead in a segment.
    pub fn keep(&mut self, segment: u32) {
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            slot.kept += 1;
        }
    }

    /// The opposite of [`Usage::keep`].
    pub fn let_go(&mut self, segment: u32) {
        let Some(slot) = self.segments.get_mut(segment as usize) else { return };
        slot.kept = slot.kept.saturating_sub(1);
        if slot.kept == 0 && self.lent.remove(&segment) {
            self.free.insert(segment);
        }
    }

    /// All moments are given up: what was kept for them may be written.
    pub fn call_in(&mut self) {
        self.calls += 1;
        self.segments.iter_mut().for_each(|slot| slot.kept = 0);
        self.free.append(&mut self.lent);
    }

    /// How often that was done.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Takes a free segment, the first after `after`, to be written.
    pub fn take(&mut self, after: u32) -> Option<u32> {
        if self.free.is_empty() && !self.lent.is_empty() {
            self.call_in();
        }
        let segment =
            self.free.range(after..).next().or_else(|| self.free.iter().next()).copied()?;
        self.take_this(segment);
        Some(segment)
    }

    /// Takes a segment that somebody names.
    pub fn take_this(&mut self, segment: u32) {
        self.free.remove(&segment);
        self.lent.remove(&segment);
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            slot.generation = slot.generation.wrapping_add(1);
            slot.taken = true;
        }
    }

    /// A segment with this generation is in use: of a transaction that spilled.
    pub fn adopt(&mut self, segment: u32, generation: u32) {
        self.free.remove(&segment);
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            slot.generation = generation;
        }
    }

    /// The segment stays taken, whoever has released it.
    pub fn hold(&mut self, segment: u32) {
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            slot.taken = true;
        }
    }

    /// Whether a segment may be written.
    pub fn is_free(&self, segment: u32) -> bool {
        self.free.contains(&segment) || self.lent.contains(&segment)
    }

    /// The segment is not being written any longer; a checkpoint may free it.
    pub fn release(&mut self, segment: u32) {
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            slot.taken = false;
        }
    }

    /// Notes the newest piece in a segment.
    pub fn touch(&mut self, segment: u32, lsn: u64) {
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            slot.newest = slot.newest.max(lsn);
        }
    }

    /// A checkpoint is durable: what nothing refers to may be written.  Returns how many segments
    /// became free.
    pub fn reclaim(&mut self) -> u32 {
        let before = self.free();
        for (n, s) in (0..).zip(&self.segments) {
            if s.live == 0 && s.pins + s.veils == 0 && !s.taken && !self.free.contains(&n) {
                let to = if s.kept == 0 { &mut self.free } else { &mut self.lent };
                to.insert(n);
            }
        }
        self.free() - before
    }

    /// A snapshot refers to these segments, which stay as they are.
    pub fn pin(&mut self, segments: &[u32]) {
        for n in segments {
            if let Some(slot) = self.segments.get_mut(*n as usize) {
                if slot.pins == 0 {
                    self.occupied += u64::from(self.geometry.segment_blocks);
                    self.occupied -= u64::from(slot.live);
                }
                slot.pins += 1;
                self.free.remove(n);
            }
        }
    }

    /// The opposite of [`Usage::pin`].
    pub fn unpin(&mut self, segments: &[u32]) {
        for n in segments {
            if let Some(slot) = self.segments.get_mut(*n as usize).filter(|s| s.pins > 0) {
                slot.pins -= 1;
                if slot.pins == 0 {
                    self.occupied += u64::from(slot.live);
                    self.occupied -= u64::from(self.geometry.segment_blocks);
                }
            }
        }
    }

    /// What is dead in a segment can still be read, until it was said so as often with -1.
    pub fn veil(&mut self, segment: u32, by: i32) {
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            slot.veils = slot.veils.saturating_add_signed(by);
        }
    }

    /// Bytes of the encoded table.
    pub fn encoded_len(&self) -> usize {
        self.segments.len() * 16
    }

    /// The table, without what is only known while the volume is open.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        for s in &self.segments {
            e.u32(s.generation);
            e.u32(s.live);
            e.u64(s.newest);
        }
        e.finish()
    }

    /// Reads a table.  Segments that it does not have came with the volume's growth and were never
    /// used.  Pins and what is free are for the caller to tell.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not one of this geometry.
    pub fn decode(bytes: &[u8], geometry: Geometry) -> Result<Usage> {
        let damaged = |why: &str| Error::corrupt(Structure::Usage, 0, why);
        let mut usage = Usage::new(geometry);
        if bytes.len() > usage.encoded_len() || !bytes.len().is_multiple_of(16) {
            return Err(damaged("its length is not that of the volume's table"));
        }
        usage.free.clear();
        let mut d = Decoder::new(bytes);
        for slot in usage.segments.iter_mut().take(bytes.len() / 16) {
            let bad = Error::undecodable(Structure::Usage, 0);
            slot.generation = d.u32().map_err(&bad)?;
            slot.live = d.u32().map_err(&bad)?;
            slot.newest = d.u64().map_err(&bad)?;
            // Pages of a pack that went to other files are counted in each.
            if u64::from(slot.live) > u64::from(geometry.segment_blocks) * PACK_PAGES as u64 {
                return Err(damaged("more blocks in use than a segment has"));
            }
            usage.occupied += u64::from(slot.live);
        }
        Ok(usage)
    }
}
