//! Log-structured volumes that are mounted.

use super::{HostPath, Policy, Transport, time_parts};
use serde::{Deserialize, Serialize};
use systx_base::Time;

/// Asks to mount a log-structured volume, or a snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountVolume {
    /// The image or the block device, absolute.
    pub file: HostPath,
    /// Where, absolute.
    pub dir: HostPath,
    /// Inode of the client's mount namespace: a mount is seen only in one.
    pub mnt_ns: u64,
    /// How it is served.
    pub transport: Transport,
    /// The snapshot that is to be shown, read-only; `None`: the live tree.
    pub snapshot: Option<String>,
    /// Threads have transactions in it.
    #[serde(default)]
    pub threads: Option<ForThreads>,
}

/// How a volume is mounted in which threads have transactions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForThreads {
    /// See [`super::Mount::stall_ms`].
    pub stall_ms: u64,
    /// See [`super::Mount::policy`].
    pub policy: Policy,
    /// See [`super::Mount::certifier`].
    pub certifier: Option<HostPath>,
}

/// A log-structured volume, or a snapshot of one, that is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedVolume {
    /// The image or the block device.
    pub file: HostPath,
    /// Where.
    pub dir: HostPath,
    /// Its name for persons.
    pub label: String,
    /// `st_dev` of what is in it.
    pub dev: u64,
    /// How it is served.
    pub transport: Transport,
    /// The snapshot that is shown, read-only; `None`: the live tree.
    pub snapshot: Option<String>,
    /// Whether, and how, threads have transactions in it.
    pub threads: Option<ForThreads>,
    /// Which file the image is, whatever its path is now: `st_dev` and `st_ino`; of a block device
    /// `st_rdev` and 0.
    pub which: (u64, u64),
    /// Nobody serves it any more, and it could not be brought back: what is in it answers
    /// `ENOTCONN`.
    pub dead: bool,
    /// Why nothing in it can be changed any more, and what to do: a sentence.
    pub stopped: Option<String>,
}

/// About the snapshots of a volume that is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshots {
    /// Its image or block device, or a directory that it, or a snapshot of it, is mounted on.
    pub volume: HostPath,
    /// What becomes of them.
    pub change: SnapshotChange,
}

/// What becomes of the snapshots of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotChange {
    /// Nothing: they are listed.
    Nothing,
    /// Nothing: the last one is told that is from before the transaction whose id begins like this.
    Before(String),
    /// The tree is kept as it is, under this name.
    Make(String),
    /// The one of this name is kept no longer.
    Remove(String),
}

/// A snapshot of a log-structured volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSnapshot {
    /// Its name.
    pub name: String,
    /// When it was made.
    #[serde(with = "time_parts")]
    pub time: Time,
    /// Bytes of the segments that it keeps, with others or alone.
    pub keeps: u64,
    /// The volume that it was received from: its number in hexadecimal digits.
    pub of: Option<String>,
}
