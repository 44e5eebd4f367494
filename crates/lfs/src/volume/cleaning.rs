//! Cleaning of an open volume, in steps: nobody is locked out of a file, and between two steps the
//! cleaner can be stopped or killed.

use super::Volume;
use super::packing::put_all;
use crate::checkpoint;
use crate::cleaner::{self, Cleaned, Policy, Scatter};
use crate::error::{Error, Result};
use crate::format::Ino;
use crate::state::State;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Blocks that one round moves at most: they are in memory meanwhile.
const MOVES: u64 = 4096;

/// Blocks that are moved for a snapshot at most.
const GATHERED: u64 = 4 * MOVES;

/// When a cleaner works.  Percents are parts of what is free above the live data and the reserve:
/// so much of it lies in free segments, and the rest is dead in others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Segments are cleaned when less than this part lies in free ones.
    pub below_percent: u32,
    /// And until this part does.
    pub until_percent: u32,
    /// How long nobody has to have committed before files are coalesced.
    pub idle: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Plan { below_percent: 20, until_percent: 30, idle: Duration::from_millis(100) }
    }
}

/// What one round of cleaning has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// What was moved.
    pub cleaned: Cleaned,
    /// Segments that became free beyond those that the round used.
    pub gained: u32,
    /// Segments with damage in them, which are left as they are.
    pub damaged: Vec<u32>,
}

/// Where a cleaner is between two steps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tending {
    /// It has begun to clean, and goes on beyond where it began.
    cleaning: bool,
    /// Nothing could be gained; not tried again before somebody has committed.
    is_stuck: bool,
    /// Commits when it last looked.
    seen: u64,
    /// The file that is being written in order, and the page where that goes on.
    order: Option<(Ino, u64)>,
    /// Segments with damage in them.
    avoid: BTreeSet<u32>,
    /// Segments of which was tried to compress what is in them, and their generations.
    pub(super) tried: HashMap<u32, u32>,
    /// The checkpoint since which there is nothing more to try.
    pub(super) packed_at: Option<u64>,
}

/// What compressing has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Packed {
    /// Pages.
    pub pages: u64,
    /// Blocks that they became.
    pub blocks: u64,
}

/// What one step of a cleaner has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tended {
    /// Segments.
    Cleaned(Round),
    /// So many pages of a file that was scattered.
    Coalesced(u64),
    /// Pages that were cold.
    Packed(Packed),
    /// There is nothing to do before somebody commits, or is quiet for long enough.
    Nothing,
}

impl Volume {
    /// Cleans until so many segments are free, or no more can be gained.
    ///
    /// # Errors
    /// As [`Volume::durable`]; what reading says.  Segments with damage in them are left as they
    /// are.
    pub fn clean(&self, policy: &dyn Policy, until_free: u32) -> Result<Cleaned> {
        let mut all = Cleaned::default();
        let mut avoid = BTreeSet::new();
        while self.space().free_segments < until_free {
            let missing = until_free.saturating_sub(self.space().free_segments);
            let need = u64::from(missing) * u64::from(self.env.geometry.usable());
            let round = self.clean_some(policy, need, &avoid, &|| false)?;
            all.moved += round.cleaned.moved;
            all.segments += round.cleaned.segments;
            if round.gained == 0 && round.damaged.is_empty() {
                break;
            }
            avoid.extend(round.damaged);
        }
        Ok(all)
    }

    /// One round: reads some segments while others go on, has the next flush write again what is in
    /// use of them, and makes a checkpoint, which frees them: as many as leave so much room more.
    /// The lock is held to choose and to say what is written again, not to read.
    ///
    /// # Errors
    /// As [`Volume::durable`]; what reading says.
    pub fn clean_some(
        &self,
        policy: &dyn Policy,
        need: u64,
        avoid: &BTreeSet<u32>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Round> {
        let mut state = self.state.lock();
        state.flow.goes_on()?;
        state.flow.cleaning = true;
        drop(state);
        let round = self.clean_beside(policy, need, avoid, stop);
        self.state.lock().flow.cleaning = false;
        self.written.notify_all();
        round
    }

    fn clean_beside(
        &self,
        policy: &dyn Policy,
        need: u64,
        avoid: &BTreeSet<u32>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Round> {
        let mut round = Round::default();
        let state = self.state.lock();
        let (before, room) = (state.usage.free(), state.headroom().0);
        let (mut wanted, mut moves) = (cleaner::wanted(&state, need), MOVES);
        let mut victims = Vec::new();
        for candidate in cleaner::ranked(&state, policy) {
            if avoid.contains(&candidate.segment) {
                continue;
            }
            let dead = u64::from(cleaner::candidate_dead(&candidate));
            let generation = state.usage.segment(candidate.segment).generation;
            victims.push((candidate.segment, generation, dead));
            if dead >= wanted || u64::from(candidate.live) >= moves {
                break;
            }
            (wanted, moves) = (wanted - dead, moves - u64::from(candidate.live));
        }
        if victims.is_empty() && state.reclaimable() == 0 {
            return Ok(round);
        }
        drop(state);
        let (mut emptied, mut found) = (Vec::new(), 0);
        for (segment, generation, dead) in victims {
            if stop() {
                break;
            }
            let Some(fetched) = self.fetch(segment, generation, &mut round)? else { continue };
            let packs = self.survivors(&fetched, stop)?;
            let mut state = self.state.lock();
            state.flow.goes_on()?;
            let begun = state.pending.page_count();
            found += dead;
            round.cleaned.moved += put_all(&mut state, packs)?.blocks;
            match cleaner::publish(&mut state, &fetched) {
                Ok(true) => emptied.push((segment, generation)),
                Ok(false) => break,
                Err(e) if e.is_damage() => round.damaged.push(segment),
                Err(e) => return Err(e),
            }
            round.cleaned.moved += state.pending.page_count().saturating_sub(begun);
            state.flow.applied += 1;
            // Nobody who commits is to wait for what the round uses, if it is worth a checkpoint.
            if found >= 2 * state.price() && state.headroom().0 < room / 3 {
                break;
            }
        }
        self.sync()?;
        let mut state = self.state.lock();
        self.wait_for_writer(&mut state)?;
        checkpoint::write(&mut state)?;
        for (segment, generation) in emptied {
            let now = state.usage.segment(segment);
            // What no summary speaks of any more cannot be moved.
            let stays = now.generation == generation && now.live > 0;
            match stays {
                true => round.damaged.push(segment),
                false => round.cleaned.segments += 1,
            }
        }
        round.gained = state.usage.free().saturating_sub(before);
        Ok(round)
    }

    /// Reads a segment; one with damage in it is noted.
    fn fetch(
        &self,
        segment: u32,
        generation: u32,
        round: &mut Round,
    ) -> Result<Option<cleaner::Fetched>> {
        match cleaner::fetch(&self.env, segment, generation) {
            Err(e) if e.is_damage() => {
                round.damaged.push(segment);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Before a snapshot: moves what is live out of segments that are mostly dead, also out of
    /// those that older snapshots keep, as far as there is room. The new snapshot then keeps none
    /// of these. So what lies dead beside what a snapshot keeps is no more than that, and a segment
    /// is free again when the snapshots are deleted that were there when it was full.
    ///
    /// # Errors
    /// As [`Volume::durable`].
    pub(super) fn gather(&self) -> Result<()> {
        let sparse = cleaner::sparse(&self.state.lock());
        let (mut left, mut unwritten) = (GATHERED, 0);
        // The checkpoint writes the last of them.
        for (segment, generation, live) in sparse {
            let live = u64::from(live);
            let state = self.state.lock();
            state.flow.goes_on()?;
            let needs = 2 * live + state.price();
            if live > left || !state.has_capacity(needs) || state.headroom().0 / 2 < needs {
                break;
            }
            drop(state);
            let fetched = cleaner::fetch(&self.env, segment, generation);
            let mut state = self.state.lock();
            match fetched.and_then(|fetched| cleaner::publish_kept(&mut state, &fetched)) {
                Ok(true) => {}
                Ok(false) => break,
                // What cannot be read stays as it is, and the snapshot keeps it.
                Err(_) => continue,
            }
            state.flow.applied += 1;
            drop(state);
            (left, unwritten) = (left - live, unwritten + live);
            // They are in memory until then.
            if unwritten > MOVES {
                self.sync()?;
                unwritten = 0;
            }
        }
        Ok(())
    }

    /// For idle times: writes the most scattered of up to `max` files from inode `from` on again,
    /// in order, and says where to look next time.  It stops as soon as `stop` says so.
    ///
    /// # Errors
    /// As [`Volume::durable`]; what reading says.
    pub fn coalesce(
        &self,
        from: Ino,
        max: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Option<Scatter>, Option<Ino>)> {
        let mut state = self.state.lock();
        let (found, next) = cleaner::scattered(&mut state, from, max)?;
        let segment = self.env.geometry.segment_blocks;
        let Some(worst) = cleaner::worst(&found, segment) else { return Ok((None, next)) };
        drop(state);
        self.write_in_order(worst.ino, 0, stop)?;
        Ok((Some(worst), next))
    }

    /// Writes what is scattered of a file in order, from a page on.  Returns how many pages, and
    /// where to go on if `stop` said so.
    fn write_in_order(
        &self,
        ino: Ino,
        from: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(u64, Option<u64>)> {
        let (mut written, mut page) = (0, Some(from));
        while let Some(from) = page.filter(|_| !stop()) {
            let mut state = self.state.lock();
            self.wait_for_writer(&mut state)?;
            let most = self.env.geometry.segment_blocks.into();
            let (moved, more) = match cleaner::coalesce(&mut state, ino, from, most) {
                Err(Error::NotFound) => (0, None),
                Err(e) if e.is_damage() => (0, None),
                other => other?,
            };
            (written, page) = (written + moved, more);
            state.flow.applied += u64::from(moved > 0);
            let ticket = state.flow.applied;
            drop(state);
            self.durable(ticket)?;
        }
        Ok((written, page))
    }

    /// How scattered the files from an inode on are, up to `max`; and where to go on.
    ///
    /// # Errors
    /// What reading says.
    pub fn scattered(&self, from: Ino, max: usize) -> Result<(Vec<Scatter>, Option<Ino>)> {
        cleaner::scattered(&mut self.state.lock(), from, max)
    }

    /// One step of a cleaner that works beside others: segments if too few are free, else, if
    /// nobody has committed since it last looked, a scattered file.
    ///
    /// # Errors
    /// As [`Volume::clean_some`].
    pub fn tend(
        &self,
        plan: &Plan,
        policy: &dyn Policy,
        at: &mut Tending,
        stop: &dyn Fn() -> bool,
    ) -> Result<Tended> {
        let commits = self.commits.load(Ordering::Relaxed);
        let is_quiet = commits == at.seen;
        if !is_quiet {
            (at.seen, at.is_stuck) = (commits, false);
        }
        let percent = if at.cleaning { plan.until_percent } else { plan.below_percent };
        let (missing, mut avoid) = self.missing(percent, plan.until_percent);
        at.cleaning = missing > 0;
        if at.cleaning && !at.is_stuck {
            avoid.extend(&at.avoid);
            let round = self.clean_some(policy, missing, &avoid, stop)?;
            at.is_stuck = round.gained == 0 && round.damaged.is_empty();
            at.avoid.extend(&round.damaged);
            return Ok(Tended::Cleaned(round));
        }
        // In a volume that cannot be cleaned nothing is moved for order's sake.
        if !is_quiet || at.cleaning || stop() {
            return Ok(Tended::Nothing);
        }
        let due = || Some((self.state.lock().tree.reads.take_due()?, 0));
        let order = at.order.take().or_else(due);
        let seen = at.seen;
        let comes = || {
            stop()
                || self.commits.load(Ordering::Relaxed) != seen
                || self.state.lock().is_below(plan.below_percent)
        };
        let Some((ino, from)) = order else {
            let packed = self.pack_some(at, &comes)?;
            return Ok(packed.map_or(Tended::Nothing, Tended::Packed));
        };
        let (written, more) = self.write_in_order(ino, from, &comes)?;
        at.order = more.map(|page| (ino, page));
        Ok(Tended::Coalesced(written))
    }

    /// How many blocks commits have to be able to take beyond those that they can, until it is one
    /// part, if it is less than the other; and segments that stay as long as moments need them: to
    /// clean these puts off nothing.
    fn missing(&self, below_percent: u32, until_percent: u32) -> (u64, BTreeSet<u32>) {
        let state = self.state.lock();
        let all = (0..).zip(state.usage.segments());
        let kept = all.filter(|(_, s)| s.kept > 0).map(|(n, _)| n).collect();
        let (now, most) = state.headroom();
        let until = (most * u64::from(until_percent)).div_ceil(100);
        let missing = if state.is_below(below_percent) { until.saturating_sub(now) } else { 0 };
        (missing, kept)
    }

    /// Waits until [`Volume::tend`] may have something to do: somebody commits, and then is quiet
    /// or leaves too little.  `asleep` is called before it waits for longer than the plan's time.
    pub fn await_work(
        &self,
        plan: &Plan,
        at: &Tending,
        stop: &dyn Fn() -> bool,
        asleep: &dyn Fn(),
    ) {
        let mut state = self.state.lock();
        if stop() {
            return;
        }
        let is_low = if at.is_stuck { 0 } else { plan.below_percent };
        let commits = || self.commits.load(Ordering::Relaxed) != at.seen;
        let is_short = |state: &State| commits() && state.is_below(is_low);
        let is_due = |state: &State| {
            let order = at.order.is_some() || state.tree.reads.is_due();
            !at.cleaning && (order || self.may_pack(state, at)) || at.is_stuck && commits()
        };
        if !is_short(&state) && !is_due(&state) {
            state.flow.wake_below = if at.is_stuck { u32::MAX } else { is_low };
            asleep();
            while !is_short(&state) && !is_due(&state) && !stop() {
                self.work.wait(&mut state);
            }
        }
        state.flow.wake_below = is_low;
        if is_due(&state) && !stop() {
            self.work.wait_for(&mut state, plan.idle);
        }
    }

    /// Wakes who waits in [`Volume::await_work`].
    pub fn wake_cleaner(&self) {
        let _state = self.state.lock();
        self.work.notify_all();
    }
}
