//! What the processes of one transaction have in common, from the moment that its thread makes the
//! first one.
//!
//! - Memory: signals that wait for the commit, and whether somebody made a call for which the
//!   transaction has to be dropped.
//! - The shadows that any of them has made, as a row that everybody can look at and nobody takes
//!   anything out of: a socket that is written to, and looked at with `MSG_PEEK`. So an open file
//!   has one shadow, and one offset, in whichever process it is used first.
//!
//! Who looks and adds to the row has a lock that the kernel gives back if its process ends.

#![allow(unsafe_code)]

use super::gate::raw;
use super::kernel;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::c_int;

/// Signals that wait, at most.
const MOST: usize = 128;
/// Words for each.
pub const WORDS: usize = 27;

/// All zero at first, as the kernel gives it.
struct Memory {
    /// A number of a call, and 1; 0: none.
    doomed: AtomicU64,
    /// Places that were given out.
    taken: AtomicU64,
    sent: [Sent; MOST],
}

struct Sent {
    /// It is whole.
    ready: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// See the module.
pub struct Family {
    /// Null: none yet.
    memory: *mut Memory,
    /// Two ends of a socket, and a file that is nothing but a lock; -1: none yet.
    fds: [c_int; 3],
    /// How much of the row this process has seen.
    seen: u64,
}

// SAFETY: the memory is of atomics only.
unsafe impl Send for Family {}

impl Family {
    pub const fn new() -> Family {
        Family { memory: std::ptr::null_mut(), fds: [-1; 3], seen: 0 }
    }

    /// Before the first process is made; `row`: descriptors matter.
    pub fn found(&mut self, row: bool) -> Result<(), c_int> {
        self.memory()?;
        if row && self.fds[0] < 0 {
            self.fds = kernel::row().map_err(|e| -e as c_int)?;
        }
        Ok(())
    }

    fn memory(&mut self) -> Result<&Memory, c_int> {
        if self.memory.is_null() {
            let (prot, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            let args = [0, size_of::<Memory>() as u64, prot as u64, flags as u64, u64::MAX, 0];
            // SAFETY: new memory, at an address of the kernel's choice.
            let at = unsafe { raw(libc::SYS_mmap, args) };
            if at < 0 {
                return Err(-at as c_int);
            }
            self.memory = at as *mut Memory;
        }
        // SAFETY: it is of that size, and zero is a value of it; it is there until `end`.
        Ok(unsafe { &*self.memory })
    }

    fn known(&self) -> Option<&Memory> {
        // SAFETY: null, or as above.
        unsafe { self.memory.as_ref() }
    }

    /// Somebody made this call, for which the transaction can only be dropped.
    pub fn doom(&self, number: u64) {
        if let Some(memory) = self.known() {
            memory.doomed.store(number + 1, Ordering::SeqCst);
        }
    }

    /// Whether somebody did.
    pub fn is_doomed(&self) -> bool {
        self.known().is_some_and(|memory| memory.doomed.load(Ordering::SeqCst) != 0)
    }

    /// Notes down a signal.
    pub fn push(&mut self, words: &[u64; WORDS]) -> Result<(), c_int> {
        let memory = self.memory()?;
        let at = memory.taken.fetch_add(1, Ordering::SeqCst);
        let place = usize::try_from(at).ok().and_then(|at| memory.sent.get(at));
        let place = place.ok_or(libc::EAGAIN)?;
        for (to, from) in place.words.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        place.ready.store(1, Ordering::Release);
        Ok(())
    }

    /// Those that were noted down, in their order.
    pub fn each(&self, mut each: impl FnMut([u64; WORDS])) {
        for place in self.known().iter().flat_map(|memory| &memory.sent) {
            if place.ready.load(Ordering::Acquire) != 0 {
                each(std::array::from_fn(|n| place.words[n].load(Ordering::Relaxed)));
            }
        }
    }

    /// Whether a descriptor is one of its own.
    pub fn has(&self, fd: c_int) -> bool {
        self.fds.contains(&fd)
    }

    /// Its own.
    pub fn fds(&self) -> [c_int; 3] {
        self.fds
    }

    /// Nobody else adds to the row until [`Family::unlock`]; whether there is one.
    pub fn lock(&self) -> Result<bool, c_int> {
        match self.fds[2] {
            -1 => Ok(false),
            fd => match kernel::lock(fd, true) {
                0 => Ok(true),
                e => Err(-e as c_int),
            },
        }
    }

    pub fn unlock(&self) {
        kernel::lock(self.fds[2], false);
    }

    /// The next open file and its shadow in the row, as new descriptors.
    pub fn next(&mut self) -> Option<[c_int; 2]> {
        let found = (self.fds[1] >= 0).then(|| kernel::look_at(self.fds[1], self.seen))?.ok()?;
        self.seen += 1;
        Some(found)
    }

    /// Adds one; all others have been seen.
    pub fn add(&mut self, pair: [c_int; 2]) -> Result<(), c_int> {
        match kernel::add_to(self.fds[0], pair) {
            e if e < 0 => Err(-e as c_int),
            _ => {
                self.seen += 1;
                Ok(())
            }
        }
    }

    /// What of the row has been seen, to go back there.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    pub fn see_from(&mut self, seen: u64) {
        self.seen = seen;
    }

    /// It is over, for this process.
    pub fn end(&mut self) {
        if !self.memory.is_null() {
            let args = [self.memory as u64, size_of::<Memory>() as u64, 0, 0, 0, 0];
            // SAFETY: nobody has a reference to it.
            unsafe { raw(libc::SYS_munmap, args) };
        }
        self.fds.iter().filter(|fd| **fd >= 0).for_each(|fd| {
            kernel::close(*fd);
        });
        *self = Family::new();
    }
}
