//! What `systx` and its daemon say to each other: each request, its answer and the method of the
//! daemon that gives it stand in one table (in [`call`]).
//!
//! Transport: a unix stream socket; one connection per client process; request, then reply, in
//! turn ([`wire`] has the frames).  Nothing is pushed over the connection.  What the daemon
//! has to say unasked, "your transaction lost", is one ring of a [`Doorbell`], an eventfd that came
//! with [`Begin`]; the client then asks with [`call::Doom`].  So a daemon thread can ring with
//! any lock held, and the client's wait loop has one more descriptor to poll and nothing to parse.
//! How far a request is a client learns over a second connection ([`call::Progress`]): the
//! daemon never waits, with a commit half done, for somebody to read.
//!
//! Life of a run: `Begin` -> `Attach` (with the FUSE descriptor) -> CMD runs -> `Finish`.  A
//! connection that closes before `Finish` means that the client died: [`Control::client_gone`].
//! Life of a later visit to a kept transaction: `Enter` -> `Attach` -> `Leave`.
//! A transaction that was begun with `BeginOpen` has a path of its own and belongs to no
//! connection.
//!
//! Versions: both sides are the same binary, so there is one number, [`VERSION`], compared in the
//! first exchange; a daemon of another version answers that much and nothing else.

#![deny(unsafe_code)]

use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use systx_base::{Time, TxnId, Uid};

mod asker;
pub mod call;
pub mod certify;
mod classes;
pub mod client;
mod control;
mod deferred;
mod failure;
mod guard;
pub mod guests;
mod images;
pub mod modes;
mod open;
pub mod patterns;
pub mod places;
mod progress;
mod protection;
pub mod replaced;
pub mod runtime;
pub mod stores;
mod top;
pub mod wire;

pub use asker::{Asker, Doorbell, Peer};
pub use call::Call;
pub use classes::{Class, Rule, RuleInUse, Status};
pub use control::Control;
pub use deferred::{ACTIONS_MAX, Action, Deferred, Settle};
pub use failure::{Failure, FailureKind};
pub use guard::{
    GuardedAt, GuardedDir, Held, HeldAs, Holder, Mount, Mounted, STALL_MS_MAX, Umount, Unmounted,
};
pub use images::{
    ForThreads, MountVolume, MountedVolume, SnapshotChange, Snapshots, VolumeSnapshot,
};
pub use open::{BeginOpen, BegunOpen, Entered};
pub use progress::{Phase, Progress};
pub use protection::{Protect, Protection};
pub use top::{
    Activity, Before, Behind, Counts, GuardedActivity, InLine, Remembered, RunActivity, Sides,
    ThreadActivity, VolumeActivity, WorksetSizes,
};

/// Number of this protocol; changes whenever a message changes.
pub const VERSION: u32 = 21;

/// A path or an argument: bytes, since Linux names need not be UTF-8.  In JSON a string where it
/// is UTF-8, else an array of byte values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostPath(pub Vec<u8>);

impl HostPath {
    /// As the standard library's type.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
    /// For messages to persons, see [`systx_base::shown`].
    pub fn display(&self) -> std::borrow::Cow<'_, str> {
        systx_base::shown(&self.0)
    }
}

impl std::fmt::Debug for HostPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.display())
    }
}

impl std::fmt::Display for HostPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.display())
    }
}

impl From<&Path> for HostPath {
    fn from(p: &Path) -> Self {
        HostPath(p.as_os_str().as_bytes().to_vec())
    }
}
impl From<PathBuf> for HostPath {
    fn from(p: PathBuf) -> Self {
        HostPath(p.into_os_string().into_vec())
    }
}
impl From<OsString> for HostPath {
    fn from(p: OsString) -> Self {
        HostPath(p.into_vec())
    }
}
impl From<&[u8]> for HostPath {
    fn from(p: &[u8]) -> Self {
        HostPath(p.to_vec())
    }
}
impl From<&str> for HostPath {
    fn from(p: &str) -> Self {
        HostPath(p.as_bytes().to_vec())
    }
}

impl Serialize for HostPath {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => s.serialize_str(text),
            Err(_) => self.0.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for HostPath {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Text(String),
            Bytes(Vec<u8>),
        }
        Ok(match Either::deserialize(d)? {
            Either::Text(t) => HostPath(t.into_bytes()),
            Either::Bytes(b) => HostPath(b),
        })
    }
}

/// Whether `path` is `top` or lies below it; both absolute.
#[must_use]
pub fn is_below(path: &[u8], top: &[u8]) -> bool {
    top == b"/"
        || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// `TxnId` in JSON: the hexadecimal text that users see.
mod id_text {
    use super::TxnId;
    use serde::{Deserialize, Deserializer, Serializer};
    pub(super) fn serialize<S: Serializer>(id: &TxnId, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(id)
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<TxnId, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
    pub(super) mod option {
        use super::*;
        #[allow(clippy::ref_option)] // the signature is serde's
        pub fn serialize<S: Serializer>(id: &Option<TxnId>, s: S) -> Result<S::Ok, S::Error> {
            match id {
                Some(id) => s.collect_str(id),
                None => s.serialize_none(),
            }
        }
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<TxnId>, D::Error> {
            Option::<String>::deserialize(d)?
                .map(|t| t.parse().map_err(serde::de::Error::custom))
                .transpose()
        }
    }
}

/// `Time` in JSON: `{"secs":…,"nanos":…}`.
mod time_parts {
    use super::Time;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    #[derive(Serialize, Deserialize)]
    struct Parts {
        secs: i64,
        nanos: u32,
    }
    pub(super) fn serialize<S: Serializer>(t: &Time, s: S) -> Result<S::Ok, S::Error> {
        Parts { secs: t.secs, nanos: t.nanos }.serialize(s)
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Time, D::Error> {
        let p = Parts::deserialize(d)?;
        Ok(Time { secs: p.secs, nanos: p.nanos.min(999_999_999) })
    }
}

/// Which volume, and where its store is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The client's working directory, absolute.
    pub cwd: HostPath,
    /// `--root DIR`, absolute: the volume is the file system that holds DIR instead of that of
    /// `cwd`.
    pub root: Option<HostPath>,
    /// `--store DIR`, absolute: where the journal and the staging area are.
    pub store: Option<HostPath>,
}

/// The isolation level of a transaction (DESIGN A2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// As if the transactions had run one after the other.
    #[default]
    Serializable,
    /// First committer wins on what was written; stale reads are reported.
    Snapshot,
}

/// How requests travel between the kernel and the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// io_uring where the kernel has it, else /dev/fuse.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// /dev/fuse.
    Dev,
}

/// Who wins a conflict: what counts before the age of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Priority.
    #[default]
    Osprio,
    /// Nothing.
    Timestamp,
    /// Priority, then size.
    Size,
    /// Priority, then what all attempts have done.
    Karma,
    /// Nothing; and who comes to a page that another one has waits for its end.
    TwoPhase,
}

/// Asks for a new transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Where.
    pub place: Place,
    /// The command, for listings and conflict messages.
    pub argv: Vec<HostPath>,
    /// How strongly it is isolated.
    pub isolation: Isolation,
    /// Nothing will be committed; the reads are still validated.
    pub read_only: bool,
    /// Who wins; `None`: as the guarded directory says that it works in.
    pub policy: Option<Policy>,
    /// How many times this run already lost; the policy ages by it.
    pub losses: u32,
    /// [`Begun::timestamp`] of the first attempt, so that a retry keeps its seniority.
    pub timestamp: Option<u64>,
    /// Patterns of what is not committed, and of what others may append to meanwhile.
    pub rules: Vec<Rule>,
    /// Its new content may take so many bytes.
    pub limit_bytes: Option<u64>,
    /// How the view is served.
    pub transport: Transport,
    /// Roots of further file systems, which the transaction covers where that is possible.
    pub others: Vec<HostPath>,
}

/// What the client must know of the volume to build the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFacts {
    /// The directory on the host whose content the view's root shows.
    pub root: HostPath,
    /// `st_dev` of it.
    pub dev: u64,
    /// Where the store is, on the host (the view does not show it).
    pub store: HostPath,
    /// Its guarded directories: the view shows what lies below.
    pub guarded: Vec<GuardedAt>,
}

/// A transaction was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Its id.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// Its seniority: to be given back by a retry.
    pub timestamp: u64,
    /// The volume.
    pub volume: VolumeFacts,
    /// The further volumes that it covers.
    pub others: Vec<VolumeFacts>,
    /// Sentences for the user.
    pub notes: Vec<String>,
    /// Sentences for a user who asks for details.
    pub details: Vec<String>,
    /// What is not protected: the view shows the originals there.
    pub unprotected: Vec<HostPath>,
}

/// Goes with the descriptor of /dev/fuse, already mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The transaction.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// Of which volume: 0 for [`Begun::volume`], then [`Begun::others`].
    pub volume: u32,
    /// Process that is the first of the view, as the client numbers it.
    pub pid: u32,
    /// Inode of the view's mount namespace (`/proc/PID/ns/mnt`): if the client dies, the daemon
    /// ends every process that is in it.
    pub mnt_ns: u64,
    /// Minor number of the mount's `st_dev` = number of the connection in /sys/fs/fuse/connections;
    /// 0 if not known.
    pub connection: u64,
    /// With the first volume: what in the view is not the transaction's, and why.
    pub rules: Vec<Rule>,
}

/// The view is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// What is in use: `io_uring` or `dev`.
    pub transport: Transport,
}

/// What the client wants at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Commit, or fail with a conflict.
    Commit,
    /// Drop it.
    Abort,
    /// Keep it open for review.
    Keep,
}

/// The command and all its processes have ended, the view is synced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    /// The transaction.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// What to do.
    pub end: End,
    /// Exit code of the command as a shell would report it, if it ran.
    pub code: Option<i32>,
    /// What is to be done outside after the commit.
    pub deferred: Vec<Action>,
}

/// Which part of an object was in conflict (DESIGN §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A name in a directory.
    Entry,
    /// The set of names of a directory.
    List,
    /// Mode, owner, extended attributes, explicit times.
    Attr,
    /// The length.
    Size,
    /// Content.
    Data,
    /// A change made outside: which part cannot be told.
    Any,
}

/// Against whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "lowercase")]
pub enum Opponent {
    /// Another transaction.
    Transaction {
        /// Its id.
        #[serde(with = "id_text")]
        id: TxnId,
        /// Its command.
        argv: Vec<HostPath>,
        /// It has ended: waiting for it is pointless.
        ended: bool,
        /// Whose it is, within the daemon.
        #[serde(skip)]
        uid: Option<Uid>,
    },
    /// A process that runs outside every transaction.
    Outside {
        /// What was noticed, for instance `changed after it was read`.
        what: String,
        /// Which process, and whose, within the daemon; where it is known.
        #[serde(skip)]
        by: Option<(u32, Uid)>,
    },
}

impl Opponent {
    /// Nobody in particular.
    pub fn outside(what: impl Into<String>) -> Opponent {
        Opponent::Outside { what: what.into(), by: None }
    }
}

/// Why a transaction lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Where.
    pub path: HostPath,
    /// Which part of it.
    pub part: Part,
    /// Against whom.
    pub opponent: Opponent,
    /// Only reads were stale: `--isolation=snapshot` would have committed.
    pub stale_only: bool,
    /// Every stale path that is known, `path` among them.
    pub stale: Vec<HostPath>,
}

/// How much a transaction changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// New names.
    pub added: u64,
    /// Objects with another content.
    pub modified: u64,
    /// Names that are gone.
    pub deleted: u64,
    /// Names that moved.
    pub renamed: u64,
    /// Objects with other attributes only.
    pub attributes: u64,
    /// Bytes of private data.
    pub bytes: u64,
}

/// A change by someone else that was met while committing, and kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideChange {
    /// Where it was.
    pub path: HostPath,
    /// Where it is now, if it had to give way.
    pub saved: Option<HostPath>,
    /// What was noticed.
    pub what: String,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Outcome {
    /// Committed, durable, installed.
    Committed {
        /// The id under which `log`, `show` and `undo` know it.
        #[serde(with = "id_text")]
        id: TxnId,
        /// How much.
        summary: Summary,
        /// Changes by outsiders that were met while installing; empty nearly always.
        outside: Vec<OutsideChange>,
        /// Reads that were stale (snapshot isolation only).
        stale: Vec<HostPath>,
        /// Paths not committed because of a `no_commit` pattern.
        dropped: u64,
        /// Sentences for the user.
        notes: Vec<String>,
    },
    /// Dropped, as asked.
    Aborted {
        /// How much was dropped.
        summary: Summary,
    },
    /// Kept open, as asked.
    Kept {
        /// How much waits.
        summary: Summary,
    },
    /// Lost; nothing was committed.
    Conflict {
        /// Why.
        conflict: Conflict,
        /// The transaction still exists (it was a kept one).
        kept: bool,
    },
    /// Decided, but not in place, or not known to be durable: what is left is done later, or by
    /// recovery.
    Unfinished {
        /// The id under which `log`, `show` and `undo` will know it.
        #[serde(with = "id_text")]
        id: TxnId,
        /// What stopped it, and what to do.
        failure: Failure,
        /// A part of a transaction was committed: the rest still exists.
        kept: bool,
    },
    /// Cannot be committed for another reason (no space, a file in use, a limit); nothing was.
    Refused {
        /// Why.
        failure: Failure,
        /// The transaction still exists (it was a kept one).
        kept: bool,
    },
}

/// State of an open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its command runs.
    Running,
    /// It ended with `keep`.
    Kept,
    /// Nobody owns it: whoever may works below its path.
    Open,
    /// It lost a conflict and waits for its client.
    Doomed,
    /// It is being committed.
    Committing,
}

/// An open transaction, as `list` and `status` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its id.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// What it does.
    pub state: State,
    /// The command.
    pub argv: Vec<HostPath>,
    /// The client's working directory at its begin.
    pub cwd: HostPath,
    /// Root of its volume.
    pub volume: HostPath,
    /// When it began.
    #[serde(with = "time_parts")]
    pub begun: Time,
    /// Exit code of the command, once ended.
    pub code: Option<i32>,
    /// How strongly it is isolated.
    pub isolation: Isolation,
    /// Nothing will be committed.
    pub read_only: bool,
    /// The first process of its view, while one runs.
    pub pid: Option<u32>,
    /// Where its view is, if it has a path.
    pub view: Option<HostPath>,
    /// How much it changed so far.
    pub summary: Summary,
    /// Why it lost, if it did.
    pub conflict: Option<Conflict>,
    /// What is to be done outside after its commit.
    pub deferred: Vec<Action>,
    /// Writes were refused because of [`Begin::limit_bytes`].
    pub limited: bool,
    /// Writes were refused because the file system, or a quota, was full.
    pub full: bool,
}

/// How a name changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// A new name (`A`).
    Added,
    /// Another content (`M`).
    Modified,
    /// Gone (`D`).
    Deleted,
    /// Moved, perhaps changed as well (`R`).
    Renamed,
    /// Another type of file (`T`).
    Retyped,
    /// Only attributes (`M` with a mode, owner or xattr line).
    Attributes,
}

/// One side of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Type and permission bits, `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Modification time.
    #[serde(with = "time_parts")]
    pub mtime: Time,
    /// Target of a symbolic link.
    pub target: Option<HostPath>,
    /// Device number of a device node.
    pub rdev: u64,
}

/// One changed name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// How.
    pub kind: ChangeKind,
    /// Its path on the host (for a rename the new one).
    pub path: HostPath,
    /// For a rename, the old path.
    pub from: Option<HostPath>,
    /// Before; `None` for a new name.
    pub old: Option<Side>,
    /// After; `None` for a name that is gone.
    pub new: Option<Side>,
    /// The content differs.
    pub content: bool,
    /// Bytes of new content.
    pub bytes: u64,
    /// Names of extended attributes that differ.
    pub xattrs: Vec<HostPath>,
    /// Matches a `no_commit` pattern: will not be committed.
    pub dropped: bool,
}

/// What a diff is asked of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// An open transaction.
    Open {
        /// Its id.
        #[serde(with = "id_text")]
        id: TxnId,
    },
    /// A committed one, from the volume's history.
    Committed {
        /// Which volume.
        place: Place,
        /// Its id.
        #[serde(with = "id_text")]
        id: TxnId,
    },
}

/// Before or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// Before the transaction.
    Old,
    /// After it.
    New,
}

/// Content of one side of a change; the bytes travel beside the JSON.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Content {
    /// From the start of the file, at most as many as asked for.
    #[serde(skip)]
    pub bytes: Vec<u8>,
    /// Length of the file.
    pub total: u64,
    /// It cannot be told any more (history was trimmed).
    pub unknown: bool,
}

/// A committed transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Its id.
    #[serde(with = "id_text")]
    pub id: TxnId,
    /// When it was committed.
    #[serde(with = "time_parts")]
    pub time: Time,
    /// The command.
    pub argv: Vec<HostPath>,
    /// The client's working directory at its begin.
    pub cwd: HostPath,
    /// How much it changed.
    pub summary: Summary,
    /// It undid this one.
    #[serde(with = "id_text::option")]
    pub undoes: Option<TxnId>,
    /// It was undone by this one.
    #[serde(with = "id_text::option")]
    pub undone_by: Option<TxnId>,
    /// It can be undone: its before-images are still there.
    pub undoable: bool,
    /// What is still to be done outside.
    pub deferred: Vec<Action>,
}

/// Asks to undo (or redo) a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undo {
    /// Which volume.
    pub place: Place,
    /// Which transaction; `None`: the latest that can be of the directory of `place`.
    #[serde(with = "id_text::option")]
    pub id: Option<TxnId>,
    /// Only what it changed there, and below; everything, if there are none.
    pub paths: Vec<HostPath>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What an undo did or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// The transaction that was (or would be) undone or redone.
    #[serde(with = "id_text")]
    pub target: TxnId,
    /// Its command.
    pub argv: Vec<HostPath>,
    /// Where that was run.
    pub cwd: HostPath,
    /// The changes of the undo itself.
    pub changes: Vec<Change>,
    /// Sentences for the user.
    pub notes: Vec<String>,
    /// How it ended; `None` for a dry run.
    pub outcome: Option<Outcome>,
}

/// What recovery found.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Recovered {
    /// Where the store is.
    pub store: HostPath,
    /// Decided transactions whose installation was finished.
    pub finished: u64,
    /// Undecided remains that were discarded.
    pub discarded: u64,
    /// Changes by outsiders that were met, and kept.
    pub outside: Vec<OutsideChange>,
    /// Sentences for the user.
    pub notes: Vec<String>,
}

/// Bounds the space of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gc {
    /// Which volume.
    pub place: Place,
    /// Of at most this many transactions is it kept how to undo them.  Without any limit the usual
    /// ones hold.
    pub keep: Option<u64>,
    /// And at most this many bytes for that.
    pub max_bytes: Option<u64>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What gc did.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Collected {
    /// Transactions that can no longer be undone.
    pub transactions: u64,
    /// Bytes given back.
    pub bytes: u64,
    /// Bytes still in use.
    pub remaining: u64,
    /// Transactions that can still be undone.
    pub undoable: u64,
}

/// What `doctor` asks about one volume.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inspected {
    /// Root of the volume.
    pub root: HostPath,
    /// Where its store is.
    pub store: HostPath,
    /// File system type and durability class, in words.
    pub class: String,
    /// Committed transactions that wait for their installation.
    pub pending: u64,
    /// Bytes used by the store.
    pub bytes: u64,
    /// Sentences for the user.
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests;
