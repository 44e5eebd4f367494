//! What a pidfd tells of a process that has ended, which no safe binding offers.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

/// `struct pidfd_info`, as long as its first version.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT` (Linux 6.15).
const EXIT: u64 = 1 << 3;

/// `PIDFD_GET_INFO` (Linux 6.13): `_IOWR(0xFF, 11, struct pidfd_info)`.
const GET_INFO: libc::Ioctl =
    (3 << 30) | ((size_of::<Info>() as libc::Ioctl) << 16) | (0xff << 8) | 11;

/// As wait(2) has it, of a process that its parent has waited for; `None`: not yet, or the kernel
/// keeps none.
pub(crate) fn wait_status(pidfd: impl AsFd) -> Option<i32> {
    let mut info = Info { mask: EXIT, ..Info::default() };
    // SAFETY: the kernel reads and writes as many bytes as the number says, which are those of
    // `info`, and any bytes are one.
    let done = unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), GET_INFO, &raw mut info) };
    (done == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
}
