//! The scheduling class of a thread and its place in that, and whose thread it is, for which there
//! is no safe interface.
#![allow(unsafe_code)]

use std::sync::OnceLock;

/// Class of sched(7), nice value, and priority of a real-time class; `None`: there is no such
/// thread.
pub(crate) fn scheduling(thread: u32) -> Option<(i32, i32, u32)> {
    // SAFETY: all bytes zero is a value of this structure of numbers.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes into `attr`, which is that large.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attr, size, 0) };
    let class = i32::try_from(attr.sched_policy).ok()?;
    (done == 0).then_some((class, attr.sched_nice, attr.sched_priority))
}

/// Whether a thread is one of this process: asked by tgkill(2) without a signal, since each begin
/// of a transaction of a thread asks, and a look into `/proc` costs more than all else of the
/// answer.
pub(crate) fn is_ours(thread: u32) -> bool {
    // The daemon asks after it has become that, and nobody asks in a child of it.
    static OWN: OnceLock<u32> = OnceLock::new();
    let process = *OWN.get_or_init(std::process::id);
    // SAFETY: the signal 0 is none: the kernel looks for the thread and does nothing to it.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0 }
}
