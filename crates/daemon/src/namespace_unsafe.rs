//! What tells one mount namespace from another for good, which no safe binding offers.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// `NS_GET_MNTNS_ID` (Linux 6.11): `_IOR(0xb7, 5, u64)`.
const GET_IDENTITY: libc::Ioctl =
    (2 << 30) | ((size_of::<u64>() as libc::Ioctl) << 16) | (0xb7 << 8) | 5;

/// The identity of the mount namespace behind a file of /proc/PID/ns: no other has it until the
/// machine starts anew. `None`: this kernel keeps none.
pub(crate) fn identity(namespace: &File) -> Option<u64> {
    let mut identity = 0_u64;
    // SAFETY: the kernel writes as many bytes as the number says, which are those of `identity`.
    let done = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_IDENTITY, &raw mut identity) };
    (done == 0).then_some(identity)
}
