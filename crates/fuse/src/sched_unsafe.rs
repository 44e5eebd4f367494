//! The scheduling class of a thread, for which there is no safe interface.
#![allow(unsafe_code)]

use std::io;

/// A class of sched(7) without priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// `SCHED_OTHER`.
    Normal,
    /// `SCHED_IDLE`: a CPU on which nothing else runs counts as idle for threads that wake up.
    Idle,
}

/// The class of a thread; `None`: one that is not ours to change, or the thread has gone.
pub(crate) fn class(thread: i32) -> Option<Class> {
    // SAFETY: takes a number and touches no memory of ours.
    match unsafe { libc::sched_getscheduler(thread) } {
        libc::SCHED_OTHER => Some(Class::Normal),
        libc::SCHED_IDLE => Some(Class::Idle),
        _ => None,
    }
}

/// Changes it; the thread keeps its nice value.  From `Idle` to `Normal` is for `CAP_SYS_NICE`, or
/// where `RLIMIT_NICE` allows the nice value that the thread has.
pub(crate) fn set_class(thread: i32, class: Class) -> io::Result<()> {
    let policy = match class {
        Class::Normal => libc::SCHED_OTHER,
        Class::Idle => libc::SCHED_IDLE,
    };
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads `none`, which outlives the call, and touches no other memory.
    let result = unsafe { libc::sched_setscheduler(thread, policy, &none) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
