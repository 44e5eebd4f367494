//! First version of the interface; bodies follow.
use crate::object::{Conflict, Object, ObjectRef, Opponent, Side};
use crate::policy::ContentionPolicy;
use systx_base::TxnId;

/// How a transaction's reads are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Isolation {
    /// As if transactions ran one after another.
    #[default]
    Serializable,
    /// Reads do not conflict; stale ones are listed.  First committer wins on what is written.
    Snapshot,
}

/// Logical time of the engine; lower is older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(pub u64);

/// How a transaction begins.
#[derive(Clone, Debug, Default)]
pub struct BeginOptions {
    /// Protection of reads.
    pub isolation: Isolation,
    /// Nice value: lower wins.
    pub priority: i32,
    /// Attempts that lost so far.
    pub age: u32,
    /// Nothing will be committed: reads are only noted, writes are not recorded; never loses.
    pub read_only: bool,
    /// The first attempt's timestamp, on a retry.
    pub timestamp: Option<u64>,
}

/// Answer to a request for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Recorded; go ahead.
    Granted,
    /// This transaction has lost, see [`Engine::conflict`]; or it is not active any more.
    Doomed,
    /// A decided commit that wrote the object is installing: [`Engine::wait_installed`], ask again.
    Wait(TxnId),
}

/// Where in its life a transaction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Running.
    Active,
    /// Lost a conflict; only `abort` is left.
    Doomed,
    /// Decided; cannot lose any more.
    Committing,
}

/// Size of a workset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Workset {
    /// Objects read (a page range counts once for each file).
    pub reads: u64,
    /// Objects written.
    pub writes: u64,
}

/// Counters since the engine was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Transactions that exist.
    pub transactions: u64,
    /// Conflicts decided.
    pub conflicts: u64,
}

/// One volume's conflict table and the transactions that use it.
pub struct Engine {}

impl Engine {
    /// With the default policy.
    #[expect(clippy::new_without_default)]
    pub fn new() -> Engine {
        Engine {}
    }
    /// With another policy.
    pub fn with_policy(_policy: Box<dyn ContentionPolicy>) -> Engine {
        Engine {}
    }
    /// Registers a transaction.
    pub fn begin(&self, _id: TxnId, _o: BeginOptions) -> Timestamp {
        Timestamp(0)
    }
    /// Records a read, before it is performed.
    pub fn read(&self, _t: TxnId, _o: ObjectRef<'_>) -> Access {
        Access::Granted
    }
    /// As `read`, and conflicts even under [`Isolation::Snapshot`]: for what a write relies on, as
    /// the emptiness of a directory that is removed, or the name under which a changed file stands.
    pub fn depend(&self, _t: TxnId, _o: ObjectRef<'_>) -> Access {
        Access::Granted
    }
    /// Records a write, before it is performed.
    pub fn write(&self, _t: TxnId, _o: ObjectRef<'_>) -> Access {
        Access::Granted
    }
    /// Blocks until a decided transaction is installed or aborted.
    pub fn wait_installed(&self, _id: TxnId) {}
    /// An outsider changed an object.
    pub fn outside_change(&self, _o: ObjectRef<'_>) -> Vec<TxnId> {
        Vec::new()
    }
    /// Makes an active transaction lose; false if it was not active.
    pub fn doom(&self, _t: TxnId, _why: Conflict) -> bool {
        false
    }
    /// The conflict that killed a transaction.
    pub fn conflict(&self, _t: TxnId) -> Option<Conflict> {
        None
    }
    /// Snapshot reads that are out of date.
    pub fn stale_reads(&self, _t: TxnId) -> Vec<(Object, Opponent)> {
        Vec::new()
    }
    /// Active → Committing.
    pub fn decide(&self, _t: TxnId) -> Result<(), Conflict> {
        Ok(())
    }
    /// End of a commit.
    pub fn installed(&self, _t: TxnId) {}
    /// Ends a transaction without effect.
    pub fn abort(&self, _t: TxnId) {}
    /// Where a transaction is; `None` if it has ended or never was.
    pub fn status(&self, _t: TxnId) -> Option<Status> {
        None
    }
    /// Calls `f` once when `t` loses, on the thread that made it lose, without the engine's lock.
    pub fn on_doom(&self, _t: TxnId, _f: impl FnOnce(TxnId, &Conflict) + Send + 'static) {}
    /// Changes the nice value of a running transaction.
    pub fn set_priority(&self, _t: TxnId, _priority: i32) {}
    /// Gives `into` the read set of `from`; the two do not conflict with each other.
    pub fn merge_reads(&self, _from: TxnId, _into: TxnId) -> Access {
        Access::Granted
    }
    /// The size of a workset.
    pub fn workset(&self, _t: TxnId) -> Option<Workset> {
        None
    }
    /// What a transaction touched, and how.
    pub fn workset_objects(&self, _t: TxnId) -> Vec<(Object, Side)> {
        Vec::new()
    }
    /// Counters.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
