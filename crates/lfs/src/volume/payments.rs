//! What commits pay with while little is free: they clean a part of a segment each, as the paper's
//! kernel might (5.4), so that the free segments stop becoming fewer.  Nobody stops for a whole
//! segment, and the lock is not held while one is read.

use super::Volume;
use crate::cleaner::{self, Fetched, Part};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Blocks that are paid for at once at most: what is moved for them is in memory until it is
/// written.  Of more than that, whoever makes room moves the rest.
const MOST: u64 = 1024;

/// What those who commit clean.
#[derive(Default)]
pub(super) struct Payments {
    under_way: Option<UnderWay>,
    /// The last checkpoint.  The next one frees what was cleaned since.
    checkpoint: u64,
    /// Segments that were chosen since, and their generations.
    chosen: BTreeMap<u32, u32>,
    /// Blocks of those of them that are empty.
    gained: u64,
}

/// A segment of which a part has been moved.
struct UnderWay {
    segment: u32,
    generation: u32,
    fetched: Fetched,
    /// Entries of its summaries that are done.
    done: usize,
    /// Blocks that were live, and dead, when it was chosen.
    live: u64,
    dead: u64,
}

impl Payments {
    /// Forgets what a checkpoint since has freed.
    fn renew(&mut self, checkpoint: u64) {
        if self.checkpoint != checkpoint {
            *self = Payments { checkpoint, ..Payments::default() };
        }
    }
}

impl Volume {
    /// What a commit of `blocks` blocks pays when little is free: as many moves as free twice as
    /// many.  If somebody pays already, that one pays for this commit, too.
    ///
    /// The commit is decided: what goes wrong here is no error of it, and is found again by whoever
    /// makes room.
    pub(super) fn pay(&self, blocks: u64) {
        self.owed.fetch_add(blocks, Ordering::Relaxed);
        let Some(mut payments) = self.payments.try_lock() else { return };
        // Summaries and the next checkpoint take their part of what becomes free.
        let mut due = MOST.min(2 * self.owed.swap(0, Ordering::Relaxed));
        while due > 0 {
            let Some(under_way) = payments.under_way.take() else {
                if !self.choose(&mut payments) {
                    return;
                }
                continue;
            };
            due = self.pay_with(&mut payments, under_way, due);
        }
    }

    /// Reads the segment with the least in use, when none is under way; `false` if there is none
    /// that could be cleaned, or enough will be free.
    fn choose(&self, payments: &mut Payments) -> bool {
        let state = self.state.lock();
        payments.renew(state.last.sequence);
        if payments.gained >= state.shortage() {
            return false;
        }
        let candidates = cleaner::candidates(&state).into_iter();
        let new = candidates.filter(|(n, s)| payments.chosen.get(n) != Some(&s.generation));
        let Some((segment, found)) = new.min_by_key(|(_, s)| s.live) else { return false };
        drop(state);
        payments.chosen.insert(segment, found.generation);
        // One that cannot be read stays as it is.
        if let Ok(fetched) = cleaner::fetch(&self.env, segment, found.generation) {
            let live = u64::from(found.live);
            let dead = u64::from(self.env.geometry.segment_blocks).saturating_sub(live).max(1);
            let generation = found.generation;
            payments.under_way =
                Some(UnderWay { segment, generation, fetched, done: 0, live, dead });
        }
        true
    }

    /// Pays a part of what is due, or all, and returns the rest.
    fn pay_with(&self, payments: &mut Payments, mut at: UnderWay, due: u64) -> u64 {
        let mut state = self.state.lock();
        payments.renew(state.last.sequence);
        payments.chosen.insert(at.segment, at.generation);
        let begun = state.pending.blocks();
        let most = begun + (due * at.live).div_ceil(at.dead);
        let part = cleaner::publish_some(&mut state, &at.fetched, &mut at.done, most);
        match part {
            Ok(Part::All) => {
                // What is free by now, or kept by a snapshot, the next checkpoint does not free.
                let now = state.usage.segment(at.segment);
                let is_freed = (now.generation, now.pins) == (at.generation, 0);
                if is_freed && !state.usage.is_free(at.segment) {
                    payments.gained += at.live + at.dead;
                }
                let moved = state.pending.blocks().saturating_sub(begun);
                let freed = moved * at.dead / at.live.max(1);
                due.saturating_sub(freed.max(1))
            }
            Ok(Part::Some) => {
                payments.under_way = Some(at);
                0
            }
            Ok(Part::NoRoom) | Err(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;
    use crate::format::{Compression, Ino, ROOT};
    use crate::ops::Shape;
    use crate::state::Limits;
    use crate::volume::{Format, mkfs};
    use std::sync::Arc;
    use systx_base::{Kind, Time, mix};

    const PAGE: u64 = 4096;
    const PAGES: u64 = 20;

    /// A volume on which commits pay from the start, and its files.
    fn volume() -> (Volume, Vec<Ino>) {
        let dev = Arc::new(MemDevice::new(9 + 60 * 32));
        let (id, label, compression) = ([3; 16], String::new(), Compression::Off);
        let format =
            Format { segment_blocks: 32, cluster: 1, id, label, owner: (0, 0), compression };
        let clock: crate::Clock = Arc::new(Time::default);
        mkfs(dev.clone(), &format, clock.clone()).expect("mkfs");
        let limits = Limits { pay_below_percent: 90, ..Limits::default() };
        let volume = Volume::open(dev, clock, 1, limits).expect("it opens");
        let mut files = Vec::new();
        while volume.space().used * 2 < volume.space().total {
            let name = format!("f{}", files.len());
            let make = |ops: &mut crate::Ops<'_>| {
                let f = ops.create(ROOT, name.as_bytes(), &Shape::new(Kind::File, 0o600))?;
                ops.write(f, 0, &vec![1; (PAGES * PAGE) as usize])?;
                Ok(f)
            };
            files.push(volume.plain(make).expect("there is room"));
            volume.sync().expect("it is durable");
        }
        (volume, files)
    }

    /// What is known to be gained, and what the next checkpoint frees of what was chosen.
    fn gained(volume: &Volume) -> (u64, u64) {
        let mut payments = volume.payments.lock();
        payments.renew(volume.state.lock().last.sequence);
        let state = volume.state.lock();
        let chosen: Vec<(u32, u32)> = (payments.chosen.iter().map(|(n, g)| (*n, *g)))
            .filter(|(n, _)| !state.usage.is_free(*n))
            .collect();
        drop(state);
        volume.checkpoint().expect("a checkpoint");
        let state = volume.state.lock();
        // The next that is written may be one of them.
        let is_free = |n: u32, generation: u32| {
            state.usage.is_free(n) || state.usage.segment(n).generation != generation
        };
        let freed = chosen.iter().filter(|(n, g)| is_free(*n, *g)).count();
        (payments.gained, 32 * freed as u64)
    }

    /// Whatever comes while a segment is cleaned: a checkpoint, which frees those before it and not
    /// that one, or a snapshot, which keeps it.
    #[test]
    fn what_counts_as_gained_is_what_the_next_checkpoint_frees() {
        let happen = [
            |_: &Volume| (),
            |volume: &Volume| volume.checkpoint().expect("a checkpoint"),
            |volume: &Volume| {
                let _ = volume.remove_snapshot("one");
                // There may be no room for one.
                let _ = volume.snapshot("one");
            },
        ];
        for (what, happens) in happen.into_iter().enumerate() {
            let (volume, files) = volume();
            let (mut midway, mut most) = (0, 0);
            for n in 0..600 {
                let (f, page) = (files[mix(n) as usize % files.len()], mix(n + 7777) % PAGES);
                let write =
                    |ops: &mut crate::Ops<'_>| ops.write(f, page * PAGE, &[2; PAGE as usize]);
                volume.plain(write).expect("there is room");
                if n % 40 == 19 && volume.payments.lock().under_way.is_some() {
                    midway += 1;
                    happens(&volume);
                }
                if n % 40 == 39 {
                    let (known, freed) = gained(&volume);
                    assert_eq!(known, freed, "{what}, after {n}");
                    most = most.max(known);
                }
            }
            assert!(midway > 2 && most > 0, "{what}: {midway}, {most}");
        }
    }
}
