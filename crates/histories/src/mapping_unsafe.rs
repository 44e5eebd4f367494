//! Reads of a file through a shared mapping.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first bytes of a file, mapped.
pub struct Mapping {
    at: NonNull<AtomicU64>,
    words: usize,
}

impl Mapping {
    /// Maps so many words of eight bytes.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn new(file: &File, words: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else is touched.
        let at = unsafe {
            mmap(std::ptr::null_mut(), words * 8, ProtFlags::READ, MapFlags::SHARED, file, 0)
        }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { at, words })
    }

    /// One word, as it is now.  If the file has become shorter than that, the process gets SIGBUS:
    /// in a program that tests isolation, an answer like any other.
    ///
    /// # Panics
    /// If it was not mapped.
    pub fn word(&self, n: usize) -> u64 {
        assert!(n < self.words, "word {n} of {}", self.words);
        // SAFETY: the mapping has so many words, is aligned to pages, and lives as long as `self`;
        // others change it, so it is read as an atomic, which needs no exclusive access.
        let word = unsafe { &*self.at.as_ptr().add(n) };
        u64::from_le(word.load(Ordering::Acquire))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.words * 8) };
    }
}
