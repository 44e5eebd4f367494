//! What the engine is asked, and what it answers.

use crate::inject::Inject;
use crate::policy::{Choice, Follows};
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
    /// How urgent it is: lower wins.
    pub priority: i32,
    /// Tells that anew at each conflict.
    pub follows: Follows,
    /// The rule that it contends by.
    pub choice: Choice,
    /// Attempts that lost so far.
    pub age: u32,
    /// Nothing will be committed: reads are only noted, writes are not recorded; it never loses.
    pub read_only: bool,
    /// The first attempt's timestamp, on a retry.
    pub timestamp: Option<u64>,
    /// It belongs to another user than the engine does, see [`crate::Contender`].
    pub guest: bool,
    /// For tests: where it loses without an opponent.  Not with `read_only`.
    pub inject: Option<Inject>,
}

/// Answer to a request for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Recorded; go ahead.
    Granted,
    /// This transaction has lost, see [`crate::Engine::conflict`]; or it has ended.
    Doomed,
    /// A decided commit that wrote the object is installing: call
    /// [`crate::Engine::wait_installed`], then ask again.  Nothing was recorded.
    Wait(TxnId),
}

/// Where in its life a transaction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Running.
    Active,
    /// Lost a conflict; only [`crate::Engine::abort`] is left.
    Doomed,
    /// Decided; cannot lose any more.
    Committing,
}

/// Size of a workset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Workset {
    /// Objects read; the pages of one file count as one.
    pub reads: u64,
    /// Objects written; the pages of one file count as one.
    pub writes: u64,
}

/// What a workset is made of: how many objects of each kind were read, and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Names.
    pub entries: (u64, u64),
    /// Sets of names; a write of a name counts there.
    pub lists: (u64, u64),
    /// Attributes.
    pub attributes: (u64, u64),
    /// Lengths.
    pub sizes: (u64, u64),
    /// Ranges of pages.
    pub pages: (u64, u64),
}

/// Numbers for `status` and tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Transactions that exist.
    pub transactions: u64,
    /// Inodes of which something is held.
    pub inodes: u64,
    /// Names that are held.
    pub entries: u64,
    /// Scopes in line, and of running transactions.
    pub scopes: u64,
    /// Attempts after a loss: in line, or running.
    pub again: u64,
    /// Conflicts between transactions since the engine was made.
    pub conflicts: u64,
    /// Accesses that were told to wait since the engine was made.
    pub waits: u64,
}

/// Whether a mutation may be held for an aged transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stall {
    /// It waited long enough, or waiting would hold a lock of the kernel that others need: a rename
    /// between directories, a change of a directory's own attributes.
    Never,
    /// If a transaction asks for it, see [`crate::Engine::reserve`].
    Bounded,
}
