//! Threads: what they are doing, and what the scheduler knows about them.

use crate::tx::{Cause, Key, Standing, Unit};
use crate::workload::{Op, SiteId};

/// How a section is held.
#[derive(Clone, Debug)]
pub enum Held {
    /// With its lock.
    Lock(Unit),
    /// With its lock, which a transaction has written.
    LockIn,
    /// By a transaction.
    Transaction,
    /// A sequence lock that had this number.
    Sequence(u64, Unit),
}

/// A section that a thread is in.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The place in the code.
    pub site: SiteId,
    /// The step that began it.
    pub start: usize,
    /// How it is held.
    pub held: Held,
}

/// A flow of control: a thread's own, or that of a handler above it.
#[derive(Debug, Default)]
pub struct Context {
    /// What it does.
    pub ops: Vec<Op>,
    /// The next step.
    pub pc: usize,
    /// What is left of a step that takes long.
    pub left: u32,
    /// Sections, outermost first.
    pub frames: Vec<Frame>,
    /// The transaction; of a context below another one it is suspended (`xpush`).
    pub tx: Option<Key>,
    /// The status word: why the section that begins at this step was restarted.
    pub status: Option<(usize, Cause)>,
    /// Of the section that is being tried.
    pub standing: Option<Standing>,
    /// Nothing happens until then.
    pub pause: u64,
    /// How long such pauses have been, for this section.
    pub paused: u64,
    /// How often `xcas` was refused.
    pub rounds: u32,
}

/// What the scheduler remembers of a thread's transactions (§6.4).
#[derive(Clone, Default, Debug)]
pub struct Profile {
    /// Restarts since the last tick.
    pub restarts: u32,
    /// Pauses since the last tick, in cycles.
    pub backoff: u64,
    /// Moving average of restarts in a tick.
    pub usual: f64,
    /// Moving average of the pauses of a transaction.
    pub pauses: f64,
    /// Moving average of the words of a transaction.
    pub size: f64,
}

/// Weight of what is new in a moving average.
pub const WEIGHT: f64 = 0.25;

/// Moves an average.
pub fn average(old: &mut f64, new: f64) {
    *old += WEIGHT * (new - *old);
}

/// Where a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It could run.
    Ready,
    /// On this processor.
    Running(usize),
    /// Waits for a device.
    Asleep,
    /// Has nothing left to do.
    Done,
}

/// A thread.
pub struct Thread {
    /// Its own flow of control, and handlers above it.
    pub contexts: Vec<Context>,
    /// What comes after.
    pub program: Box<dyn Iterator<Item = Vec<Op>>>,
    /// Where it is.
    pub state: State,
    /// Its nice value.
    pub nice: i32,
    /// Scheduled before all ordinary ones.
    pub realtime: Option<u8>,
    /// What the processor was told.
    pub told: i32,
    /// What it has slept lately, less what it has run: 0 to [`SLEEP`].
    pub slept: u64,
    /// What its transactions add.
    pub adjust: i32,
    /// Ticks left.
    pub quantum: u32,
    /// Of its transactions.
    pub profile: Profile,
}

/// Cycles of sleep that make a thread as interactive as one can be.
pub const SLEEP: u64 = 400_000;

impl Thread {
    /// How urgent it is now; lower is more urgent.  Real-time threads are below all others.
    #[must_use]
    pub fn priority(&self) -> i32 {
        match self.realtime {
            Some(level) => -1_000 - i32::from(level),
            None => {
                let interactive = (10 * self.slept.min(SLEEP) / SLEEP) as i32;
                self.nice + 5 - interactive + self.adjust
            }
        }
    }

    /// The flow of control that goes on.
    pub fn top(&mut self) -> &mut Context {
        self.contexts.last_mut().expect("a thread has its own")
    }

    /// A handler is running.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.contexts.len() > 1
    }

    /// Whether it may lose its processor: with a lock it may not.
    #[must_use]
    pub fn may_stop(&self) -> bool {
        !self.interrupted()
            && self.contexts[0].frames.iter().all(|f| !matches!(f.held, Held::Lock(_)))
    }
}
