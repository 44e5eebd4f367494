//! A shared mapping for tests: read and written by copying.
#![allow(unsafe_code, dead_code, missing_docs)]

use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
use std::fs::File;

pub struct Shared {
    at: *mut std::ffi::c_void,
    len: usize,
}

// SAFETY: the mapping belongs to this value, and is only touched by copying from or to it.
unsafe impl Send for Shared {}

impl Shared {
    pub fn new(file: &File, len: usize) -> std::io::Result<Shared> {
        Shared::map(file, len, ProtFlags::READ)
    }
    pub fn writable(file: &File, len: usize) -> std::io::Result<Shared> {
        Shared::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }
    /// Its pages stay in memory until the file's are dropped: reading it asks nobody.
    pub fn pinned(file: &File, len: usize) -> std::io::Result<Shared> {
        let mapping = Shared::new(file, len)?;
        // SAFETY: the mapping just made, which this does not change.
        unsafe { mlock(mapping.at, len) }?;
        Ok(mapping)
    }
    fn map(file: &File, len: usize, prot: ProtFlags) -> std::io::Result<Shared> {
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let at = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) }?;
        Ok(Shared { at, len })
    }
    /// The first bytes.
    pub fn read(&self, len: usize) -> Vec<u8> {
        assert!(len <= self.len);
        let from = self.at.cast::<u8>();
        // SAFETY: within the mapping, which lives as long as `self`; others may change the bytes
        // meanwhile, hence volatile.
        (0..len).map(|i| unsafe { from.add(i).read_volatile() }).collect()
    }
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: as above; the mapping is writable or this faults.
            unsafe { self.at.cast::<u8>().add(i).write_volatile(*byte) }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, which nobody refers to any more.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}
