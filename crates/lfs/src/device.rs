//! Where a volume lies: an array of blocks, and three promises about writes.

mod cached;
mod file;
mod simulated;

pub use cached::Cached;
pub use file::FileDevice;
pub use simulated::{Crash, Cuts, Fault, SECTOR, SimDisk};

use crate::error::{Error, Result};
use crate::format::BLOCK;
use std::io;
use systx_base::sync::{Mutex, rank};

/// An array of blocks of [`BLOCK`] bytes.
///
/// A write that is not synced may reach the medium in part, in any order, or not at all, until
/// [`Device::sync`] returns.  Nothing is promised for more than 512 bytes at a time.
pub trait Device: Send + Sync {
    /// Number of blocks.
    fn blocks(&self) -> u64;
    /// Fills `to`, whole blocks, from block `at` on.
    ///
    /// # Errors
    /// If the medium cannot be read, or the range is not inside of it.
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()>;
    /// So many blocks from block `at` on will be read soon.  The medium may begin; nobody waits,
    /// and what goes wrong is told by the read.
    fn soon(&self, _at: u64, _blocks: u64) {}
    /// Writes whole blocks from block `at` on.
    ///
    /// # Errors
    /// If the medium does not take them; then some may have been written.
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()>;
    /// As [`Device::write`], and these blocks are on the medium when it returns.  It orders
    /// nothing else.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()>;
    /// All that was written before is on the medium when this returns.
    ///
    /// # Errors
    /// If that cannot be said.
    fn sync(&self) -> io::Result<()>;
}

/// Reads as [`Device::read`], and says which block cannot be read.
///
/// # Errors
/// [`Error::Unread`].
pub(crate) fn read(dev: &dyn Device, at: u64, to: &mut [u8]) -> Result<()> {
    if dev.read(at, to).is_ok() {
        return Ok(());
    }
    // One after the other: perhaps it was only for a moment.
    let mut each = (at..).zip(to.chunks_exact_mut(BLOCK));
    each.try_for_each(|(at, to)| dev.read(at, to).map_err(|source| Error::Unread { at, source }))
}

/// The byte range of `len` bytes at block `at` on a device of `blocks` blocks.
pub(crate) fn range(blocks: u64, at: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
    let end = at.checked_add((len / BLOCK) as u64).filter(|end| *end <= blocks);
    let start = usize::try_from(at).ok().and_then(|at| at.checked_mul(BLOCK));
    match (end, start) {
        (Some(_), Some(start)) if len.is_multiple_of(BLOCK) => Ok(start..start + len),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "outside of the device")),
    }
}

/// A device in memory.  It lasts as long as the process.
pub struct MemDevice {
    bytes: Mutex<Vec<u8>>,
}

impl MemDevice {
    /// A device of `blocks` blocks of zeros.
    pub fn new(blocks: usize) -> Self {
        Self::from_bytes(vec![0; blocks * BLOCK])
    }

    /// A device with this content; a part of a block at the end is cut off.
    pub fn from_bytes(mut bytes: Vec<u8>) -> Self {
        bytes.truncate(bytes.len() / BLOCK * BLOCK);
        MemDevice { bytes: Mutex::new(rank::LEAF, bytes) }
    }

    /// A copy of the content.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }
}

impl Device for MemDevice {
    fn blocks(&self) -> u64 {
        (self.bytes.lock().len() / BLOCK) as u64
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let range = range(self.blocks(), at, to.len())?;
        to.copy_from_slice(&self.bytes.lock()[range]);
        Ok(())
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let range = range(self.blocks(), at, from.len())?;
        self.bytes.lock()[range].copy_from_slice(from);
        Ok(())
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.write(at, from)
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A buffer at a multiple of [`BLOCK`], as `O_DIRECT` needs it.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0u8; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        // `align_offset` may decline; then the device copies once more.
        let start = if start <= BLOCK { start } else { 0 };
        Aligned { bytes, start, len }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
