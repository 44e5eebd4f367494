//! Log-structured volumes that are mounted.

use super::{HostPath, Transport};
use serde::{Deserialize, Serialize};

/// Asks to mount a log-structured volume.
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
}

/// A log-structured volume that is mounted.
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
}
