//! Cleaning of an open volume, in steps: nobody is locked out of a file, and between two steps the
//! cleaner can be stopped or killed.

use super::Volume;
use crate::checkpoint;
use crate::cleaner::{self, Cleaned, Policy, Scatter};
use crate::error::{Error, Result};
use crate::format::Ino;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Segments that one round empties at most.
const VICTIMS: usize = 4;
/// Objects that are looked at for scattered files at once.
const LOOK: usize = 1000;

/// When a cleaner works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Segments are cleaned when less than this part of them is free, in percent.
    pub below_percent: u32,
    /// And until this part is.
    pub until_percent: u32,
    /// How long nobody has to have committed before files are coalesced.
    pub idle: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Plan { below_percent: 15, until_percent: 20, idle: Duration::from_millis(100) }
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tending {
    /// It has begun to clean, and goes on beyond where it began.
    cleaning: bool,
    /// Nothing could be gained; not tried again before somebody has committed.
    is_stuck: bool,
    /// Commits when it last looked.
    seen: u64,
    /// Where to look for scattered files next; `None`: it has looked at all.
    next: Option<Ino>,
    /// The file that was coalesced last.  If it is the most scattered one again, nothing helps it.
    last: Option<Scatter>,
    /// Segments with damage in them.
    avoid: BTreeSet<u32>,
}

impl Default for Tending {
    fn default() -> Self {
        let (cleaning, is_stuck, seen, last, avoid) = Default::default();
        Tending { cleaning, is_stuck, seen, next: Some(0), last, avoid }
    }
}

/// What one step of a cleaner has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tended {
    /// Segments.
    Cleaned(Round),
    /// A file that was scattered.
    Coalesced(Scatter),
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
            let round = self.clean_some(policy, &avoid, &|| false)?;
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
    /// use of them, and makes a checkpoint, which frees them.  The lock is held to choose and to
    /// say what is written again, not to read.
    ///
    /// # Errors
    /// As [`Volume::durable`]; what reading says.
    pub fn clean_some(
        &self,
        policy: &dyn Policy,
        avoid: &BTreeSet<u32>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Round> {
        let mut round = Round::default();
        let state = self.state.lock();
        state.flow.goes_on()?;
        let before = state.usage.free();
        let ranked = cleaner::ranked(&state, policy).into_iter();
        let victims: Vec<(u32, u32)> = ranked
            .map(|c| c.segment)
            .filter(|segment| !avoid.contains(segment))
            .take(VICTIMS)
            .map(|segment| (segment, state.usage.segment(segment).generation))
            .collect();
        if victims.is_empty() && state.reclaimable() == 0 {
            return Ok(round);
        }
        drop(state);
        let mut emptied = Vec::new();
        for (segment, generation) in victims {
            if stop() {
                break;
            }
            let fetched = cleaner::fetch(&self.env, segment, generation)?;
            let mut state = self.state.lock();
            state.flow.goes_on()?;
            let begun = state.pending.page_count();
            match cleaner::publish(&mut state, &fetched) {
                Ok(true) => emptied.push((segment, generation)),
                Ok(false) => break,
                Err(Error::Corrupt { .. }) => round.damaged.push(segment),
                Err(e) => return Err(e),
            }
            round.cleaned.moved += state.pending.page_count().saturating_sub(begun);
            state.flow.applied += 1;
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
        let mut page = Some(0);
        while let Some(from) = page.filter(|_| !stop()) {
            let mut state = self.state.lock();
            self.wait_for_writer(&mut state)?;
            let (moved, more) = match cleaner::coalesce(&mut state, worst.ino, from, segment.into())
            {
                Err(Error::NotFound) => break,
                other => other?,
            };
            page = more;
            state.flow.applied += u64::from(moved > 0);
            let ticket = state.flow.applied;
            drop(state);
            self.durable(ticket)?;
        }
        Ok((Some(worst), next))
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
            (at.seen, at.is_stuck, at.next) = (commits, false, Some(0));
        }
        let percent = if at.cleaning { plan.until_percent } else { plan.below_percent };
        let (idle, mut avoid) = self.cleanable();
        at.cleaning = idle < self.segments_of(percent);
        if at.cleaning && !at.is_stuck {
            avoid.extend(&at.avoid);
            let round = self.clean_some(policy, &avoid, stop)?;
            at.is_stuck = round.gained == 0 && round.damaged.is_empty();
            at.avoid.extend(&round.damaged);
            return Ok(Tended::Cleaned(round));
        }
        // In a volume that cannot be cleaned nothing is moved for order's sake.
        while is_quiet
            && !at.cleaning
            && !stop()
            && let Some(from) = at.next
        {
            let come = || stop() || self.commits.load(Ordering::Relaxed) != at.seen;
            let (worst, next) = self.coalesce(from, LOOK, &come)?;
            match worst {
                Some(worst) if at.last != Some(worst) => {
                    at.last = Some(worst);
                    return Ok(Tended::Coalesced(worst));
                }
                _ => (at.next, at.last) = (next, None),
            }
        }
        Ok(Tended::Nothing)
    }

    /// How many segments nobody needs, and those that stay as long as moments need them: to clean
    /// these puts off nothing.
    fn cleanable(&self) -> (u32, BTreeSet<u32>) {
        let state = self.state.lock();
        let all = (0..).zip(state.usage.segments());
        let kept = all.filter(|(_, s)| s.kept > 0).map(|(n, _)| n).collect();
        (state.usage.idle(), kept)
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
        let is_low = if at.is_stuck { 0 } else { self.segments_of(plan.below_percent) };
        let has_seen_all = at.is_stuck || at.cleaning || at.next.is_none();
        if has_seen_all && self.commits.load(Ordering::Relaxed) == at.seen {
            // The first commit says that there is something again.
            state.flow.wake_below = u32::MAX;
            asleep();
            while self.commits.load(Ordering::Relaxed) == at.seen && !stop() {
                self.work.wait(&mut state);
            }
            if !at.is_stuck || stop() {
                state.flow.wake_below = is_low;
                return;
            }
        }
        // Until then commits need not wake anybody, unless they leave too little.
        state.flow.wake_below = is_low;
        self.work.wait_for(&mut state, plan.idle);
    }

    /// Wakes who waits in [`Volume::await_work`].
    pub fn wake_cleaner(&self) {
        let _state = self.state.lock();
        self.work.notify_all();
    }

    fn segments_of(&self, percent: u32) -> u32 {
        let all = u64::from(self.env.geometry.segments) * u64::from(percent);
        u32::try_from(all.div_ceil(100)).unwrap_or(u32::MAX)
    }
}
