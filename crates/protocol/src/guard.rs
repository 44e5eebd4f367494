//! What is said about guarded directories.

use super::modes::{Way, chosen};
use super::{HostPath, Policy, Transport};
use serde::{Deserialize, Serialize};

/// Asks to guard a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Which, absolute.
    pub dir: HostPath,
    /// `--store DIR`, absolute.
    pub store: Option<HostPath>,
    /// Inode of the client's mount namespace: a mount is seen only in one.
    pub mnt_ns: u64,
    /// Also if processes hold something below it, which then goes past the guard.
    pub force: bool,
    /// How it is served.
    pub transport: Transport,
    /// How long a plain change may be held for an aged transaction, in milliseconds; 0: never.
    pub stall_ms: u64,
    /// Who wins among transactions of threads, and among runs and paths that say nothing else.
    #[serde(default)]
    pub policy: Policy,
    /// Transactions of threads are seen by routing their requests, not through roots of their own.
    pub routed: bool,
    /// Opens of plain programs make no messages; threads have no transactions there.
    #[serde(default)]
    pub fast_open: bool,
    /// The socket of who is asked before each commit there, absolute.
    #[serde(default)]
    pub certifier: Option<HostPath>,
}

impl Mount {
    /// How it is to be guarded.
    #[must_use]
    pub fn modes(&self) -> Vec<Way> {
        chosen([
            (true, Way::Guarded),
            (self.fast_open, Way::FastOpen),
            (self.routed, Way::Routed),
            (self.certifier.is_some(), Way::Certifier),
        ])
    }
}

/// Asks to end the guard of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Umount {
    /// Which, absolute.
    pub dir: HostPath,
    /// Also if processes use it: what they have open there then answers `ENOTCONN`.
    pub force: bool,
}

/// How a process holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeldAs {
    /// An open file.
    Descriptor,
    /// Its working directory.
    Directory,
    /// Its root directory.
    Root,
    /// The program that it runs.
    Program,
    /// A file mapped into its memory.
    Map,
}

/// Something that a process holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// How.
    #[serde(rename = "as")]
    pub how: HeldAs,
    /// What, as the kernel names it.
    pub path: HostPath,
}

/// A process that holds something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which.
    pub pid: u32,
    /// Its name.
    pub command: HostPath,
    /// What it holds.
    pub held: Vec<Held>,
}

/// A guarded directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedDir {
    /// Where.
    pub dir: HostPath,
    /// Root of the volume that it is a part of.
    pub volume: HostPath,
    /// Where that volume's store is.
    pub store: HostPath,
    /// `st_dev` of what is below it.
    pub dev: u64,
    /// How it is served.
    pub transport: Transport,
    /// As it was asked for, see [`Mount::stall_ms`].
    pub stall_ms: u64,
    /// See [`Mount::policy`].
    #[serde(default)]
    pub policy: Policy,
    /// See [`Mount::routed`].
    pub routed: bool,
    /// See [`Mount::fast_open`].
    pub fast_open: bool,
    /// See [`Mount::certifier`].
    #[serde(default)]
    pub certifier: Option<HostPath>,
    /// Processes that held something below it when it was mounted: that goes past the guard.
    pub past: Vec<Holder>,
    /// Sentences for the user.
    pub notes: Vec<String>,
}

/// The longest [`Mount::stall_ms`]: whoever is held that long must not seem to hang.
pub const STALL_MS_MAX: u64 = 60_000;

/// What became of a [`Mount`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Mounted {
    /// It is guarded now.
    Guarded(GuardedDir),
    /// Nothing was done, because of these.
    InUse {
        /// Who holds something below it.
        holders: Vec<Holder>,
    },
}

/// What became of an [`Umount`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Unmounted {
    /// It is an ordinary directory again.
    Done {
        /// Where it was.
        dir: HostPath,
        /// Whose descriptors were cut off.
        cut: Vec<Holder>,
        /// Sentences for the user.
        notes: Vec<String>,
    },
    /// Nothing was done, because of these.
    InUse {
        /// Who uses it; empty if that is the kernel itself (a mount inside it, a swap file).
        holders: Vec<Holder>,
        /// Mount points inside it, and where else it is mounted.
        mounts: Vec<HostPath>,
    },
}

/// A guarded directory of a volume, as a view's maker must know it: the view shows what lies below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedAt {
    /// Where it is.
    pub dir: HostPath,
    /// Id of its mount.
    pub mount: u64,
    /// `st_dev` of what is below it.
    pub dev: u64,
}
