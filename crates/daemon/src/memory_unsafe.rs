//! Memory that was freed, given back to the kernel, which no safe binding offers.
#![allow(unsafe_code)]

/// Gives back what is free.  The allocator keeps what lies between things that live on, and at the
/// end of each thread's own part: after much work, more than is in use.  It takes some milliseconds
/// for each hundred megabytes.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
