//! How far a long piece of work is, for whoever waits for it.
//!
//! The work of a commit passes through every crate on one thread, and only its two ends care: who
//! begins it ([`watched`]) and who counts ([`phase`], [`step`]). So the place where it is counted
//! belongs to the thread, not to the signatures in between. Counting costs nothing where nobody
//! watches, never waits, and decides nothing.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What is being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Is everything that was met as it was?  Counts objects.
    Checking,
    /// What will be overwritten is read for undo.  Counts objects.
    Saving,
    /// Waits for the disk.  Counts nothing.
    Syncing,
    /// The outcomes are put in place.  Counts names and changed objects.
    Installing,
}

const PHASES: [Phase; 4] = [Phase::Checking, Phase::Saving, Phase::Syncing, Phase::Installing];

/// How far a piece of work is.
#[derive(Debug, Default)]
pub struct Progress {
    /// Position in [`PHASES`], plus one; 0: in none.
    phase: AtomicU8,
    /// One for each phase, so that a reader never sees a count of another one.
    counts: [Counts; PHASES.len()],
}

#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    total: AtomicU64,
}

/// What a look at a [`Progress`] finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// What is being done.
    pub phase: Phase,
    /// So many are done, at most `total`.
    pub done: u64,
    /// Of so many; 0 if they are not counted.
    pub total: u64,
}

impl Progress {
    /// Where the work is; `None` if it has not begun, or has ended.
    pub fn seen(&self) -> Option<Seen> {
        let at = usize::from(self.phase.load(Ordering::Acquire).checked_sub(1)?);
        let (phase, counts) = (*PHASES.get(at)?, self.counts.get(at)?);
        let total = counts.total.load(Ordering::Relaxed);
        Some(Seen { phase, done: counts.done.load(Ordering::Relaxed).min(total), total })
    }

    fn enter(&self, phase: Phase, total: u64) {
        let counts = &self.counts[phase as usize];
        counts.done.store(0, Ordering::Relaxed);
        counts.total.store(total, Ordering::Relaxed);
        self.phase.store(phase as u8 + 1, Ordering::Release);
    }

    fn step(&self) {
        let at = usize::from(self.phase.load(Ordering::Relaxed));
        if let Some(counts) = at.checked_sub(1).and_then(|at| self.counts.get(at)) {
            counts.done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

thread_local!(static WATCHED: RefCell<Option<Arc<Progress>>> = const { RefCell::new(None) });

/// Ends what [`watched`] began, also when the work panics.
struct Until<'a>(&'a Progress, Option<Arc<Progress>>);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.phase.store(0, Ordering::Release);
        WATCHED.set(self.1.take());
    }
}

/// Does some work; what it counts on this thread is to be seen in `progress` meanwhile.
pub fn watched<T>(progress: &Arc<Progress>, work: impl FnOnce() -> T) -> T {
    let _until = Until(progress, WATCHED.replace(Some(Arc::clone(progress))));
    work()
}

/// The work of this thread enters a phase, of `total` steps (0: not counted; asked for only if
/// somebody watches).
pub fn phase(phase: Phase, total: impl FnOnce() -> u64) {
    // Not asked with the cell borrowed: it may count something itself.
    if let Some(progress) = WATCHED.with_borrow(Clone::clone) {
        progress.enter(phase, total());
    }
}

/// One step of the phase is done.
pub fn step() {
    WATCHED.with_borrow(|watched| {
        if let Some(progress) = watched {
            progress.step();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_to_who_watches() {
        let progress = Arc::new(Progress::default());
        phase(Phase::Checking, || unreachable!("nobody watches"));
        step();
        watched(&progress, || {
            assert_eq!(progress.seen(), None);
            phase(Phase::Checking, || 2);
            step();
            assert_eq!(progress.seen(), Some(Seen { phase: Phase::Checking, done: 1, total: 2 }));
            phase(Phase::Installing, || 3);
            assert_eq!(progress.seen(), Some(Seen { phase: Phase::Installing, done: 0, total: 3 }));
            std::thread::scope(|s| s.spawn(step).join()).expect("another thread counts nothing");
            (0..5).for_each(|_| step());
            assert_eq!(progress.seen(), Some(Seen { phase: Phase::Installing, done: 3, total: 3 }));
        });
        assert_eq!(progress.seen(), None);
        phase(Phase::Syncing, || unreachable!("nobody watches any more"));
    }

    #[test]
    fn a_panic_ends_it() {
        let progress = Arc::new(Progress::default());
        let theirs = Arc::clone(&progress);
        let work = std::panic::AssertUnwindSafe(|| {
            watched(&theirs, || {
                phase(Phase::Saving, || 1);
                panic!("as if there were a bug");
            })
        });
        assert!(std::panic::catch_unwind(work).is_err());
        assert_eq!(progress.seen(), None);
    }
}
