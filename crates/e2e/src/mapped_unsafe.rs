//! A file mapped into memory.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// The beginning of a file, shared with everybody who has it mapped.
pub struct Mapped {
    at: NonNull<AtomicU8>,
    len: usize,
}

impl Mapped {
    /// Maps so many bytes of a file that is open for reading and writing.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn shared(file: &File, len: usize) -> Mapped {
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe {
            mmap(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        };
        let at = NonNull::new(at.expect("it can be mapped").cast()).expect("a place");
        Mapped { at, len }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.len);
        // SAFETY: within the mapping, which lives as long as `self`; any byte is an `AtomicU8`, and
        // others change it at any time.
        unsafe { self.at.add(at).as_ref() }
    }

    /// A byte.
    pub fn get(&self, at: usize) -> u8 {
        self.byte(at).load(SeqCst)
    }

    /// Stores one.
    pub fn set(&self, at: usize, value: u8) {
        self.byte(at).store(value, SeqCst);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which nobody has references any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}
