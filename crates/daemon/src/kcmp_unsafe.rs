//! kcmp(2), which no safe binding offers.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::Pid;
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// `KCMP_EPOLL_TFD`.
const EPOLL_TFD: libc::c_int = 7;

/// `struct kcmp_epoll_slot`.
#[repr(C)]
struct Slot {
    epoll: u32,
    number: u32,
    /// Which one of those that were registered by that number.
    offset: u32,
}

/// What a descriptor of some process is, beside a description that was registered with epoll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compared {
    /// That description.
    Same,
    /// Another one.
    Other,
    /// There is no such descriptor, or no such process.
    Closed,
    /// The description that was registered has ended.
    Gone,
    /// The kernel does not tell: without `CONFIG_KCMP`, or since that process may not be looked at.
    Unknown,
}

/// Compares a descriptor of a process with the one description in an epoll instance of this
/// process, registered as `number`.
pub(crate) fn watched((pid, fd): (Pid, RawFd), (epoll, number): (&impl AsFd, RawFd)) -> Compared {
    let me = rustix::process::getpid();
    let (pid, me) = (pid.as_raw_nonzero().get(), me.as_raw_nonzero().get());
    let known = |fd: RawFd| u32::try_from(fd).unwrap_or(u32::MAX);
    let epoll = known(epoll.as_fd().as_raw_fd());
    let slot = Slot { epoll, number: known(number), offset: 0 };
    let fd = libc::c_ulong::from(known(fd));
    // SAFETY: kcmp(2) takes numbers here and the address of a slot, which it reads and which lives
    // for the whole call.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, pid, me, EPOLL_TFD, fd, &raw const slot) };
    match order {
        0 => Compared::Same,
        1.. => Compared::Other,
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::BADF | Errno::SRCH) => Compared::Closed,
            Some(Errno::NOENT) => Compared::Gone,
            _ => Compared::Unknown,
        },
    }
}
