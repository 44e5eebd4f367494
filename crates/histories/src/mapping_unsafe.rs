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

impl Mapping {
    /// The same, but what would be SIGBUS is an error: a page that a transaction which has lost
    /// reads for the first time is refused. The kernel reads it in the place of the program,
    /// through the same mapping.
    ///
    /// # Errors
    /// EFAULT: the page cannot be had.
    ///
    /// # Panics
    /// If it was not mapped.
    pub fn fetch(&self, n: usize) -> io::Result<u64> {
        assert!(n < self.words, "word {n} of {}", self.words);
        let mut bytes = [0_u8; 8];
        let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 };
        let there = libc::iovec { iov_base: self.at.as_ptr().wrapping_add(n).cast(), iov_len: 8 };
        let me = rustix::process::getpid().as_raw_nonzero().get();
        // SAFETY: the first is eight bytes of our own, which nobody else uses; the second is only
        // read, and by the kernel, to which no address can do harm.
        let read = unsafe { libc::process_vm_readv(me, &here, 1, &there, 1, 0) };
        match read {
            8 => Ok(u64::from_le_bytes(bytes)),
            -1 => Err(io::Error::last_os_error()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.words * 8) };
    }
}
