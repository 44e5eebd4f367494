//! What a run has counted.

use crate::tx::Cause;

/// What a processor spends its cycles on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spent {
    /// Programs.
    User,
    /// The kernel, outside of sections.
    Kernel,
    /// In sections that count: with the lock, or in an attempt that commits.
    Section,
    /// Waiting for a lock.
    Spin,
    /// In attempts that were undone, and undoing them.
    Restart,
    /// Pauses after lost conflicts.
    Backoff,
    /// Handlers of interrupts.
    Interrupt,
    /// Changing threads.
    Switch,
    /// Nothing to do.
    Idle,
    /// In an attempt whose end is open.  Nothing stays here.
    Attempt,
}

impl Spent {
    /// All of them, but the open one.
    pub const ALL: [Spent; 9] = [
        Spent::User,
        Spent::Kernel,
        Spent::Section,
        Spent::Spin,
        Spent::Restart,
        Spent::Backoff,
        Spent::Interrupt,
        Spent::Switch,
        Spent::Idle,
    ];

    /// Place in [`Spent::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Of one lock.
#[derive(Clone, Default, Debug)]
pub struct LockStats {
    /// Times that it was taken, as a lock.
    pub acquired: u64,
    /// Transactions that committed below it in its place.
    pub transactions: u64,
    /// Looks at it while it was held.
    pub tests: u64,
    /// Attempts to take it that came too late.
    pub sets: u64,
}

/// Of one place in the code.
#[derive(Clone, Default, Debug)]
pub struct SiteStats {
    /// Threads that are inside as transactions.
    pub inside: u32,
    /// The most that ever were.
    pub most: u32,
    /// Sections that ended.
    pub executions: u64,
    /// Times that it had to be restarted for I/O.
    pub io_restarts: u64,
}

/// Conflicts between transactions.
#[derive(Clone, Default, Debug)]
pub struct Conflicts {
    /// Decided.
    pub all: u64,
    /// Won by the side that was less urgent when the processor was told.
    pub inverted: u64,
    /// Won by the side whose thread is less urgent now.
    pub inverted_now: u64,
    /// Won by an ordinary thread over one of a real-time class.
    pub policy: u64,
    /// Times that `xcas` was refused.
    pub refused: u64,
}

/// All that a run has counted.
#[derive(Clone, Default, Debug)]
pub struct Stats {
    /// Cycles until the last thread ended.
    pub end: u64,
    /// By [`Spent::index`], over all processors.
    pub spent: [u64; Spent::ALL.len()],
    /// By lock.
    pub locks: Vec<LockStats>,
    /// By place in the code.
    pub sites: Vec<SiteStats>,
    /// Between transactions.
    pub conflicts: Conflicts,
    /// Transactions that committed.
    pub commits: u64,
    /// Cycles of those.
    pub committed_cycles: u64,
    /// Attempts undone, by [`Cause::index`].
    pub restarts: [u64; Cause::ALL.len()],
    /// Cycles that attempts undone for I/O had taken.
    pub io_cycles: u64,
    /// Depth of nesting at such a restart, summed.
    pub io_depth: u64,
    /// The most attempts that one section lost before it ended.
    pub most_losses: u32,
}

impl Stats {
    /// Cycles spent on something, of all of all processors, in percent.
    #[must_use]
    pub fn percent(&self, of: &[Spent]) -> f64 {
        let all: u64 = self.spent.iter().sum();
        let part: u64 = of.iter().map(|s| self.spent[s.index()]).sum();
        if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 }
    }

    /// As [`Stats::percent`], of the time that the kernel has: neither of programs nor idle.
    #[must_use]
    pub fn percent_of_kernel(&self, of: &[Spent]) -> f64 {
        let outside = self.spent[Spent::User.index()] + self.spent[Spent::Idle.index()];
        let all = self.spent.iter().sum::<u64>() - outside;
        let part: u64 = of.iter().map(|s| self.spent[s.index()]).sum();
        if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 }
    }

    /// All attempts undone.
    #[must_use]
    pub fn all_restarts(&self) -> u64 {
        self.restarts.iter().sum()
    }
}
