//! Restricted transactional memory of x86-64, from stable Rust.
//!
//! An aborted transaction comes back to the instruction after `xbegin`, with the memory and all
//! registers but `eax` as they were there: the stack of frames that have returned since, too.  So
//! to the compiler the block is left once, as with any other instruction that fails.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};

/// What `xbegin` leaves in `eax` when the transaction runs.
pub(crate) const STARTED: u32 = u32::MAX;

/// Whether the processor says that it has the instructions, and does not abort all of them.
pub(crate) fn announced() -> bool {
    if cfg!(miri) || __cpuid(0).eax < 7 {
        return false;
    }
    let leaf = __cpuid_count(7, 0);
    // EBX bit 11: RTM.  EDX bit 11: RTM_ALWAYS_ABORT.
    leaf.ebx & (1 << 11) != 0 && leaf.edx & (1 << 11) == 0
}

/// Begins a transaction: [`STARTED`], or the status of its abort.  Needs [`announced`].
#[inline(always)]
pub(crate) fn begin() -> u32 {
    let mut status = STARTED;
    // SAFETY: callers have seen `announced`.  The block may touch all memory as far as the compiler
    // knows (no `nomem`), so nothing is moved across it; the module says why it is left once.
    unsafe { asm!("xbegin 2f", "2:", inout("eax") status, options(nostack)) };
    status
}

/// Commits the transaction of this thread.
#[inline(always)]
pub(crate) fn end() {
    // SAFETY: only called within a transaction (outside it would fault).
    unsafe { asm!("xend", options(nostack)) };
}

/// Aborts the transaction of this thread with a code; does nothing outside of one.
#[inline(always)]
pub(crate) fn abort<const CODE: u8>() {
    // SAFETY: outside of a transaction it is a no-op; inside, control goes back to `begin`.
    unsafe { asm!("xabort {code}", code = const CODE, options(nostack)) };
}

/// Whether this thread is in a transaction.  Needs [`announced`].
#[inline(always)]
pub(crate) fn test() -> bool {
    let inside: u8;
    // SAFETY: reads a flag of the processor; callers have seen `announced`.
    unsafe { asm!("xtest", "setnz {0}", out(reg_byte) inside, options(nostack)) };
    inside != 0
}

/// The time stamp counter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { _rdtsc() }
}
