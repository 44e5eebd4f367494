//! Compressing what is cold, beside others: pages are read and compressed without the lock, and the
//! next flush writes those of them as packs that nobody has changed meanwhile.

use super::Volume;
use super::cleaning::{Packed, Tending};
use crate::cleaner::{self, Fetched, Loose};
use crate::error::{Error, Result};
use crate::format::Compression;
use crate::group::Moved;
use crate::state::State;

/// Packs of a segment that are tried before it counts as one that does not become smaller.
const TRIED: usize = 4;

impl Volume {
    /// Whether cold pages are compressed.
    pub fn compression(&self) -> Compression {
        self.env.compression
    }

    /// Compresses all that is not of the time since the last checkpoint, for whoever does not want
    /// to wait for idle times.  Returns what was done.
    ///
    /// # Errors
    /// As [`Volume::durable`]; what reading says.
    pub fn pack(&self) -> Result<Packed> {
        let (mut at, mut all) = (Tending::default(), Packed::default());
        while let Some(some) = self.pack_some(&mut at, &|| false)? {
            all.pages += some.pages;
            all.blocks += some.blocks;
        }
        Ok(all)
    }

    /// Whether there may be something to compress: a checkpoint was made since the last look.
    pub(super) fn may_pack(&self, state: &State, at: &Tending) -> bool {
        self.env.compression.is_on() && at.packed_at != Some(state.last.sequence)
    }

    /// Compresses pages of the segment that has been quiet for longest, if some become smaller.
    /// `None` if there is nothing more to try before the next checkpoint.
    pub(super) fn pack_some(
        &self,
        at: &mut Tending,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Packed>> {
        while !stop() {
            let state = self.state.lock();
            state.flow.goes_on()?;
            if !self.may_pack(&state, at) {
                return Ok(None);
            }
            let Some((segment, generation)) = coldest(&state, at) else {
                at.packed_at = Some(state.last.sequence);
                return Ok(None);
            };
            drop(state);
            at.tried.insert(segment, generation);
            let loose = cleaner::loose(&self.env, segment, |pieces| {
                cleaner::live(&mut self.state.lock(), (segment, generation), pieces)
            });
            let loose = match loose {
                Err(Error::Corrupt { .. }) => continue,
                other => other?,
            };
            let packs = self.compress(&loose, stop);
            if packs.is_empty() {
                continue;
            }
            return self.publish(packs).map(Some);
        }
        Ok(Some(Packed::default()))
    }

    /// What is live of a segment that is cleaned is cold: what of it becomes smaller.
    pub(super) fn survivors(
        &self,
        fetched: &Fetched,
        stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Moved>> {
        if !self.env.compression.is_on() {
            return Ok(Vec::new());
        }
        let loose = fetched.loose(&mut self.state.lock());
        match loose {
            Ok(loose) => Ok(self.compress(&loose, stop)),
            // To move the rest says so.
            Err(Error::Corrupt { .. }) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Those of some pages that become smaller.  What cannot be read stays as it is.
    pub(super) fn compress(&self, loose: &[Loose], stop: &dyn Fn() -> bool) -> Vec<Moved> {
        let mut packs = Vec::new();
        let most = self.env.geometry.segment_blocks / 4;
        for (n, loose) in loose.iter().enumerate() {
            if stop() || n >= TRIED && packs.is_empty() {
                break;
            }
            packs.extend(cleaner::packed(&self.env, loose, most).ok().flatten());
        }
        packs
    }

    fn publish(&self, packs: Vec<Moved>) -> Result<Packed> {
        let mut state = self.state.lock();
        state.flow.goes_on()?;
        let mut done = Packed::default();
        for pack in packs {
            let (pages, blocks) = (pack.pages.len() as u64, pack.blocks.len() as u64);
            if !cleaner::put(&mut state, pack)? {
                break;
            }
            done.pages += pages;
            done.blocks += blocks;
        }
        state.flow.applied += 1;
        let ticket = state.flow.applied;
        drop(state);
        self.durable(ticket)?;
        Ok(done)
    }
}

/// A segment in which nothing was written since the last checkpoint, the oldest first.  To write
/// again what a snapshot or a moment keeps would need room, and give none.
fn coldest(state: &State, at: &Tending) -> Option<(u32, u32)> {
    let all = (0..).zip(state.usage.segments());
    let cold = all.filter(|(n, s)| {
        let is_old = s.newest <= state.last.head.lsn && !s.taken && s.live > 0;
        is_old && s.pins + s.veils + s.kept == 0 && at.tried.get(n) != Some(&s.generation)
    });
    let oldest = cold.min_by_key(|(_, s)| s.newest);
    oldest.map(|(n, s)| (n, s.generation))
}
