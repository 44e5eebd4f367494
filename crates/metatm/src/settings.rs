//! What a run of the model is made of: processors, costs, kernel, policy, scheduler.

use systx_txn::Choice;

/// One machine, one kernel, one seed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Processors, at most 64.
    pub processors: usize,
    /// Of all that is random.
    pub seed: u64,
    /// What becomes of the locks.
    pub kernel: Kernel,
    /// Who wins between transactions.
    pub contention: Contention,
    /// What the scheduler knows of transactions.
    pub scheduler: Scheduler,
    /// What things take.
    pub costs: Costs,
    /// Cycles after which a run that has not ended is said to make no progress.
    pub limit: u64,
    /// What a test breaks, to see that an invariant finds it.
    pub fault: Fault,
}

impl Settings {
    /// The machine of the paper with so many processors.
    #[must_use]
    pub fn new(processors: usize, kernel: Kernel, seed: u64) -> Self {
        Settings {
            processors,
            seed,
            kernel,
            contention: Contention::SizeMatters,
            scheduler: Scheduler::default(),
            costs: Costs::default(),
            limit: 2_000_000_000,
            fault: Fault::None,
        }
    }
}

/// What the locks of the kernel have become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Spinlocks and sequence locks.
    Linux,
    /// Locks of some subsystems, and all sequence locks, are plain transactions (TxLinux-SS).
    Subsystem,
    /// Nearly all locks are cxspinlocks (TxLinux-CX).
    Cooperative,
}

impl Kernel {
    /// A short name, for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Linux => "linux",
            Kernel::Subsystem => "ss",
            Kernel::Cooperative => "cx",
        }
    }
}

/// Who wins a conflict between two transactions.  Decided by the code that decides between the
/// transactions of systx ([`systx_txn::Chosen`]); what differs is what that code is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contention {
    /// The older one.
    Timestamp,
    /// The larger one, then the older one.
    SizeMatters,
    /// The more urgent one, then as `SizeMatters`.
    OsPrio,
    /// The one whose attempts did more work, then the older one.
    Polka,
    /// The usual policy of systx: urgency, then age; who lost three times goes first.
    Aging,
}

impl Contention {
    /// All of them.
    pub const ALL: [Contention; 5] = [
        Contention::Timestamp,
        Contention::SizeMatters,
        Contention::OsPrio,
        Contention::Polka,
        Contention::Aging,
    ];

    /// A short name, for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Contention::Timestamp => "timestamp",
            Contention::SizeMatters => "sizematters",
            Contention::OsPrio => "os_prio",
            Contention::Polka => "polka",
            Contention::Aging => "systx",
        }
    }

    /// The rule of systx that is asked.
    #[must_use]
    pub fn choice(self) -> Choice {
        match self {
            Contention::Timestamp => Choice::Timestamp,
            Contention::SizeMatters | Contention::OsPrio => Choice::SizeMatters,
            Contention::Polka => Choice::Karma,
            Contention::Aging => Choice::OsPrio,
        }
    }

    /// Whether the kernel tells the hardware how urgent threads are.
    #[must_use]
    pub fn is_told(self) -> bool {
        matches!(self, Contention::OsPrio | Contention::Aging)
    }

    /// Whether losses are counted.
    #[must_use]
    pub fn ages(self) -> bool {
        self == Contention::Aging
    }
}

/// What the scheduler makes of what it knows about transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scheduler {
    /// A thread that loses work to restarts gives its processor to another one.
    pub reactive: bool,
    /// Transactions change the dynamic priority.
    pub dynamic: bool,
}

impl Scheduler {
    /// The scheduler of TxLinux.
    pub const AWARE: Scheduler = Scheduler { reactive: true, dynamic: true };

    /// A short name, for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match (self.reactive, self.dynamic) {
            (false, false) => "default",
            (true, true) => "sched",
            (true, false) => "reactive",
            (false, true) => "dynamic",
        }
    }
}

/// Cycles.  Those of the paper are its machine's (§7.1, §7.4); the others are explained.
#[derive(Clone, Debug)]
pub struct Costs {
    /// A word in the first level cache (paper: 1).
    pub hit: u32,
    /// A word in the second level cache (paper: 16).
    pub second: u32,
    /// A word that is nowhere near (paper: 200), and every other use of the bus: the paper gives
    /// no figure for those.
    pub bus: u32,
    /// Instructions of `spin_lock` (paper: 3).
    pub spin_lock: u32,
    /// Instructions of `cx_optimistic` and `cx_exclusive` (paper: 21).
    pub cx: u32,
    /// `xbegin`, `xend`.
    pub begin: u32,
    /// `xpush`, `xpop`.
    pub push: u32,
    /// A restart, and each word that it puts back.
    pub restart: u32,
    /// Largest first pause after a lost conflict; it doubles with each further loss.
    pub backoff: u32,
    /// Doublings of the pause.
    pub doublings: u32,
    /// A look at a lock that is held, or at what `xcas` was refused.
    pub look: u32,
    /// Timing of the operating system.
    pub kernel: KernelCosts,
}

/// Cycles of the operating system.  Ticks are some twenty times as frequent as in the paper, as the
/// modelled work is that much shorter than its benchmarks.
#[derive(Clone, Debug)]
pub struct KernelCosts {
    /// Between ticks of a processor.
    pub tick: u64,
    /// Ticks that a thread may run in one go.
    pub quantum: u32,
    /// The handler of a tick, without its sections.
    pub handler: u32,
    /// A change of threads.
    pub switch: u32,
}

impl Default for Costs {
    fn default() -> Self {
        Costs {
            hit: 1,
            second: 16,
            bus: 200,
            spin_lock: 3,
            cx: 21,
            begin: 1,
            push: 10,
            restart: 10,
            backoff: 64,
            doublings: 8,
            look: 3,
            kernel: KernelCosts { tick: 50_000, quantum: 4, handler: 300, switch: 2_000 },
        }
    }
}

/// What a test breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Conflicts between transactions are not seen.
    NoConflicts,
    /// An abort does not put back what was written.
    NoUndo,
    /// A section with the lock does not abort the transactions inside.
    NoAsymmetric,
    /// Every other conflict is decided for the other side.
    WrongWinner,
    /// A change of threads takes time that is not written down.
    LostCycles,
    /// A section takes its lock without a look at it.
    NoLook,
}
