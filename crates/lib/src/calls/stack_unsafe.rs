//! The alternate stack while calls are intercepted.
//!
//! The handler of SIGSYS runs on the alternate stack, since a call may be made on a stack that has
//! no room for it (Go). While a call waits, the program's own handlers run on top of it, among them
//! those that expect the ordinary stack and all its room. A runtime makes an alternate stack for
//! one handler that says a few words (8 KiB in Rust), of which the registers of a processor with
//! wide vectors take 3 to 11 KiB each time. So where it is small, the thread gets a larger one
//! until nothing is intercepted any more.

#![allow(unsafe_code)]

use super::gate;
use core::ptr::null_mut;

/// What a thread gets.  Only what is used of it takes memory.
const SIZE: usize = 256 << 10;
/// Below it nothing can be written: what outgrows it ends there.
const GUARD: usize = 4096;
/// Room for the frames of handlers themselves, beside the registers.
const FRAMES: usize = 16 << 10;
/// A flag of sigaltstack(2) that is kept.
const SS_AUTODISARM: i32 = 1 << 31;

/// The alternate stack of one thread.
pub struct SignalStack {
    /// The lowest address; 0: there is none yet.
    own: u64,
    /// What the program has, while the own one is in its place.
    replaced: Option<libc::stack_t>,
}

impl SignalStack {
    pub const fn new() -> SignalStack {
        SignalStack { own: 0, replaced: None }
    }

    /// Before calls are intercepted.
    pub fn enter(&mut self) {
        let Some(now) = exchange(None) else { return };
        // Without one, handlers run where the program is. The one that is in use cannot be
        // replaced.
        let fixed = now.ss_flags & (libc::SS_DISABLE | libc::SS_ONSTACK) != 0;
        if fixed || now.ss_size >= needed() || self.is_own(&now) {
            return;
        }
        if self.own == 0 {
            self.own = allocate();
        }
        let own =
            libc::stack_t { ss_sp: self.own as *mut libc::c_void, ss_flags: 0, ss_size: SIZE };
        if self.own != 0 && exchange(Some(&own)).is_some() {
            self.replaced = Some(now);
        }
    }

    /// When nothing is intercepted any more. A handler that runs on it keeps it, and the next time
    /// finds it.
    pub fn leave(&mut self) {
        let Some(before) = self.replaced else { return };
        // The program may have set another one meanwhile, which stays.
        let put_back = libc::stack_t { ss_flags: before.ss_flags & SS_AUTODISARM, ..before };
        match exchange(None) {
            Some(now) if self.is_own(&now) => {
                if exchange(Some(&put_back)).is_some() {
                    self.replaced = None;
                }
            }
            _ => self.replaced = None,
        }
    }

    fn is_own(&self, stack: &libc::stack_t) -> bool {
        self.own != 0 && stack.ss_sp as u64 == self.own
    }
}

/// Registers of two handlers, one on top of the other, and their frames.
fn needed() -> usize {
    // SAFETY: takes a number.  0 from kernels before 5.14, which have no registers of that size.
    let registers = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    FRAMES + 2 * registers.max(2048)
}

/// Sets the alternate stack of this thread; the one before.
fn exchange(new: Option<&libc::stack_t>) -> Option<libc::stack_t> {
    let mut old = libc::stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    let new = new.map_or(0, |new| std::ptr::from_ref(new) as u64);
    // SAFETY: both are such stacks, or null; the new one is the program's own or `allocate`d, and
    // stays.
    let result =
        unsafe { gate::raw(libc::SYS_sigaltstack, [new, &raw mut old as u64, 0, 0, 0, 0]) };
    (result == 0).then_some(old)
}

/// Memory that is never given back; 0 if there is none.
fn allocate() -> u64 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let args = [0, (GUARD + SIZE) as u64, protection, flags, !0, 0];
    // SAFETY: new memory, at an address of the kernel's choice.
    let at = unsafe { gate::raw(libc::SYS_mmap, args) };
    if at < 0 {
        return 0;
    }
    // SAFETY: the first page of it, which nobody uses.
    unsafe { gate::raw(libc::SYS_mprotect, [at as u64, GUARD as u64, 0, 0, 0, 0]) };
    at as u64 + GUARD as u64
}
