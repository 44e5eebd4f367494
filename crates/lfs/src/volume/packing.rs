//! Compressing what is cold, beside others: pages are read and compressed without the lock, and the
//! next flush writes those of them as packs that nobody has changed meanwhile.

use super::Volume;
use super::cleaning::{Packed, Tending};
use crate::cleaner::{self, Fetched, Known, Loose};
use crate::error::Result;
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
            let pieces = cleaner::pieces(&self.env, segment);
            let live = |pieces: Vec<_>| {
                cleaner::live(&mut self.state.lock(), (segment, generation), &pieces)
            };
            let loose = match pieces.and_then(live) {
                Err(e) if e.is_damage() => continue,
                other => other?,
            };
            let packs = self.compress(&loose, Known::default(), stop);
            if stop() {
                // Perhaps not all of it was tried.
                at.tried.remove(&segment);
            }
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
            Ok(loose) => Ok(self.compress(&loose, fetched.known(&self.env), stop)),
            // To move the rest says so.
            Err(e) if e.is_damage() => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Those of some pages that become smaller.  What cannot be read stays as it is.
    pub(super) fn compress(
        &self,
        loose: &[Loose],
        known: Known<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Vec<Moved> {
        let mut packs = Vec::new();
        let most = self.env.geometry.segment_blocks / 4;
        for (n, loose) in loose.iter().enumerate() {
            if stop() || n >= TRIED && packs.is_empty() {
                break;
            }
            packs.extend(cleaner::packed(&self.env, loose, known, most).ok().flatten());
        }
        packs
    }

    fn publish(&self, packs: Vec<Moved>) -> Result<Packed> {
        let mut state = self.state.lock();
        state.flow.goes_on()?;
        let done = put_all(&mut state, packs)?;
        state.flow.applied += 1;
        let ticket = state.flow.applied;
        drop(state);
        self.durable(ticket)?;
        Ok(done)
    }
}

/// Has the next flush write packs, as far as there is room.  Returns what these have.
pub(super) fn put_all(state: &mut State, packs: Vec<Moved>) -> Result<Packed> {
    let mut done = Packed::default();
    for pack in packs {
        let (pages, blocks) = (pack.pages.len() as u64, pack.blocks.len() as u64);
        if !cleaner::put(state, pack)? {
            break;
        }
        done.pages += pages;
        done.blocks += blocks;
    }
    Ok(done)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;
    use crate::format::ROOT;
    use crate::fsck::check;
    use crate::ops::Shape;
    use crate::state::Limits;
    use crate::volume::{Format, mkfs};
    use std::sync::Arc;
    use systx_base::{Kind, Time};

    const PAGES: u64 = 8;
    const PAGE: u64 = 4096;

    fn clock() -> crate::Clock {
        Arc::new(Time::default)
    }

    fn open(dev: &Arc<MemDevice>) -> Volume {
        Volume::open(dev.clone(), clock(), 1, Limits::default()).expect("it opens")
    }

    fn content(volume: &Volume) -> Vec<u8> {
        let read = |ops: &mut crate::Ops<'_>| {
            let ino = ops.lookup(ROOT, b"f")?.ino;
            ops.read(ino, 0, (PAGES * PAGE) as usize)
        };
        volume.look(read).expect("a file")
    }

    fn write(volume: &Volume, page: u64, with: u8) {
        let write = |ops: &mut crate::Ops<'_>| {
            let ino = ops.lookup(ROOT, b"f")?.ino;
            ops.write(ino, page * PAGE, &vec![with; PAGE as usize])
        };
        volume.plain(write).expect("it is written");
    }

    /// A volume with a cold file, and the pack that it could be, which nobody has put yet.
    fn cold() -> (Arc<MemDevice>, Volume, Vec<Moved>) {
        let dev = Arc::new(MemDevice::new(9 + 40 * 16));
        let (id, label, compression) = ([3; 16], String::new(), Compression::Zstd);
        let format =
            Format { segment_blocks: 16, cluster: 1, id, label, owner: (0, 0), compression };
        mkfs(dev.clone(), &format, clock()).expect("mkfs");
        let volume = open(&dev);
        let make =
            |ops: &mut crate::Ops<'_>| ops.create(ROOT, b"f", &Shape::new(Kind::File, 0o600));
        volume.plain(make).expect("a file");
        (0..PAGES).for_each(|page| write(&volume, page, page as u8));
        volume.checkpoint().expect("a checkpoint");
        let all = volume.with_state(|state| {
            let segments: Vec<_> = (0..).zip(state.usage.segments().iter().copied()).collect();
            let mut all = Vec::new();
            for (n, segment) in segments.into_iter().filter(|(_, s)| s.live > 0) {
                let env = state.tree.env.clone();
                let pieces = cleaner::pieces(&env, n)?;
                all.extend(cleaner::live(state, (n, segment.generation), &pieces)?);
            }
            Ok(all)
        });
        let packs = volume.compress(&all.expect("it is read"), Known::default(), &|| false);
        assert!(!packs.is_empty());
        (dev, volume, packs)
    }

    fn put(volume: &Volume, packs: Vec<Moved>) {
        let put = |state: &mut State| {
            packs.into_iter().try_for_each(|pack| cleaner::put(state, pack).map(drop))?;
            state.flow.applied += 1;
            Ok(())
        };
        volume.with_state(put).expect("there is room");
    }

    fn is(dev: &Arc<MemDevice>, volume: &Volume, wanted: &[u8]) {
        assert_eq!(content(volume), wanted);
        let copy = || Arc::new(MemDevice::from_bytes(dev.bytes()));
        assert_eq!(content(&open(&copy())), wanted, "opened again");
        assert_eq!(check(copy(), clock()).expect("a check").findings, []);
    }

    /// Before the pack is put, between that and its group, and after it: what somebody has written
    /// is what counts.
    #[test]
    fn what_is_written_meanwhile_counts() {
        for when in 0..3 {
            let (dev, volume, packs) = cold();
            let mut wanted = content(&volume);
            wanted[2 * PAGE as usize..3 * PAGE as usize].fill(99);
            if when == 0 {
                write(&volume, 2, 99);
                volume.sync().expect("it is durable");
            }
            put(&volume, packs);
            if when == 1 {
                write(&volume, 2, 99);
            }
            volume.sync().expect("it is durable");
            if when == 2 {
                write(&volume, 2, 99);
                volume.sync().expect("it is durable");
            }
            is(&dev, &volume, &wanted);
            volume.checkpoint().expect("a checkpoint");
            is(&dev, &volume, &wanted);
        }
    }

    /// The records of a checkpoint have what it writes itself.
    #[test]
    fn a_checkpoint_writes_what_was_put_before_it() {
        let (dev, volume, packs) = cold();
        let wanted = content(&volume);
        put(&volume, packs);
        for _ in 0..2 {
            volume.checkpoint().expect("a checkpoint");
            is(&dev, &volume, &wanted);
            assert!(volume.space().used < PAGES + 8, "{:?}", volume.space());
        }
    }
}
