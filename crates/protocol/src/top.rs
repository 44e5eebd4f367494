//! What goes on: for `systx top`.

use super::{Conflict, HostPath, Isolation, State, id_text, time_parts};
use serde::{Deserialize, Serialize};
use systx_base::{Time, TxnId};

/// One volume and what goes on there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeActivity {
    /// Its root.
    pub volume: HostPath,
    /// Whether the daemon has it open: something works there, or has just done so.
    pub open: bool,
    /// Why nothing is committed in it any more, and what to do: a sentence.
    pub stopped: Option<String>,
    /// Since the daemon opened it first.
    pub counts: Counts,
    /// Its guarded directories.
    pub guarded: Vec<GuardedActivity>,
    /// Runs that have lost and try again: those that lost most first.
    pub runs: Vec<RunActivity>,
    /// The open transactions, the oldest first.
    pub transactions: Vec<Activity>,
    /// Who waits to begin with a scope, in the order of arrival.
    pub line: Vec<InLine>,
    /// What the daemon remembers.
    pub remembered: Remembered,
}

/// What the daemon remembers of a volume for those that are open.  Nothing of it is left when
/// nobody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Remembered {
    /// Inodes of which a transaction has read or written something.
    pub inodes: u64,
    /// Names that one has.
    pub names: u64,
    /// Frozen snapshots.
    pub snapshots: u64,
    /// Inodes and names as these began with them, since they are others now.
    pub past: u64,
}

/// One that waits to begin a transaction with a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InLine {
    /// 1 is the first.
    pub position: u64,
    /// Its process.
    pub pid: u32,
    /// The thread that begins.
    pub tid: u32,
    /// The command.
    pub argv: Vec<HostPath>,
    /// Since when it waits.
    #[serde(with = "time_parts")]
    pub since: Time,
    /// What is in its way; `None`: nothing any more, it is about to begin.
    pub behind: Option<Behind>,
}

/// What somebody in line waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// The path that it has declared and the other one has, too.
    pub path: HostPath,
    /// Who has it in a scope.
    #[serde(flatten)]
    pub by: Before,
}

/// Whom somebody in line waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Before {
    /// One that runs.
    Transaction(#[serde(with = "id_text")] TxnId),
    /// One at an earlier position.
    Position(u64),
}

/// A guarded directory, as far as it bears on what goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedActivity {
    /// Where.
    pub dir: HostPath,
    /// See [`super::Mount::stall_ms`].
    pub stall_ms: u64,
    /// Inodes that the kernel knows, but those of open transactions: it forgets them when it needs
    /// the room, or they are removed.
    pub nodes: u64,
    /// Threads that have had a transaction, and live.
    pub seats: u64,
    /// Transactions of threads that the kernel knows something of.  Those that are over: as long as
    /// something of them is in use, and a moment longer.
    pub members: u64,
    /// The threads that have had a transaction, and live: those that lost most first.
    pub threads: Vec<ThreadActivity>,
}

/// What has become of a thread's transactions.  *Lately*: a moving average, to which the last
/// attempt contributes a quarter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadActivity {
    /// Its process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The command.
    pub argv: Vec<HostPath>,
    /// Attempts that have ended.
    pub ended: u64,
    /// Those that lost.
    pub lost: u64,
    /// Those that had to wait before they began.
    pub held: u64,
    /// Losses among a thousand attempts, lately.
    pub losses_per_mille: u64,
    /// Objects that an attempt touched, lately.
    pub size: u64,
    /// How long an attempt had to wait before it began, lately, in microseconds.
    pub waited_us: u64,
    /// Its first attempts are held as well.
    pub keeps_losing: bool,
    /// It is held at this moment, for the end of this one.
    #[serde(with = "id_text::option")]
    pub held_for: Option<TxnId>,
}

/// What has become of the attempts of a run that has lost.  *Lately*: as in [`ThreadActivity`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunActivity {
    /// Its client.
    pub pid: u32,
    /// The command.
    pub argv: Vec<HostPath>,
    /// Attempts that lost.
    pub lost: u64,
    /// How long these took, together, in microseconds.
    pub lost_us: u64,
    /// Objects that one of them had touched, lately.
    pub size: u64,
    /// How long it waited between two attempts, lately, in microseconds.
    pub waited_us: u64,
    /// The attempt that is under way; `None`: it waits to try again.
    #[serde(with = "id_text::option")]
    pub tries: Option<TxnId>,
    /// Why the last one lost.
    pub over: Conflict,
}

/// Numbers that only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Transactions begun, undos and parts of others included.
    pub begun: u64,
    /// Committed.
    pub committed: u64,
    /// Ended without a commit, whatever the reason.
    pub aborted: u64,
    /// Lost a conflict; to be aborted, or aborted already.
    pub lost: u64,
    /// Conflicts between transactions that had to be arbitrated.
    pub conflicts: u64,
    /// Accesses that had to wait for the installation of a commit.
    pub waits: u64,
}

/// What one transaction has touched and whom it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Its id.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// What it does.
    pub state: State,
    /// The command.
    pub argv: Vec<HostPath>,
    /// When it began.
    #[serde(with = "time_parts")]
    pub begun: Time,
    /// How strongly it is isolated.
    pub isolation: Isolation,
    /// Nothing will be committed.
    pub read_only: bool,
    /// What it has touched, by kind.
    pub workset: WorksetSizes,
    /// A request of it waits until this one's commit is installed, or until it ends.
    #[serde(with = "id_text::option")]
    pub waits_for: Option<TxnId>,
    /// Why it lost, if it did.
    pub conflict: Option<Conflict>,
}

/// Sizes of a workset, by kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorksetSizes {
    /// Names.
    pub entries: Sides,
    /// Sets of names.
    pub lists: Sides,
    /// Attributes of objects.
    pub attributes: Sides,
    /// Lengths of files.
    pub sizes: Sides,
    /// Ranges of pages.
    pub pages: Sides,
}

/// How many were read and how many written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sides {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}
