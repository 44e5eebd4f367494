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
    fetched: Fetched,
    /// Entries of its summaries that are done.
    done: usize,
    /// Blocks that were live, and dead, when it was chosen.
    live: u64,
    dead: u64,
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
        if payments.checkpoint != state.last.sequence {
            *payments = Payments { checkpoint: state.last.sequence, ..Payments::default() };
        }
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
            payments.under_way = Some(UnderWay { fetched, done: 0, live, dead });
        }
        true
    }

    /// Pays a part of what is due, or all, and returns the rest.
    fn pay_with(&self, payments: &mut Payments, mut at: UnderWay, due: u64) -> u64 {
        let mut state = self.state.lock();
        let begun = state.pending.blocks();
        let most = begun + (due * at.live).div_ceil(at.dead);
        let part = cleaner::publish_some(&mut state, &at.fetched, &mut at.done, most);
        match part {
            Ok(Part::All) => {
                payments.gained += at.live + at.dead;
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
