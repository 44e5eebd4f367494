//! The private content of one regular file in a transaction.
#![allow(unused_variables, missing_docs)]

use std::io;
use std::ops::Range;
use std::sync::Arc;
use systx_store::writeset::{self, SlotId};

/// Unit of copy-on-write and of conflicts.
pub const PAGE: u64 = 4096;

/// Where the unchanged bytes come from: a file of the backing directory.
pub trait Base: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads until `buf` is full or the file ends; returns the count.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// The next range of data at or after `offset`; `None` if only a hole follows.
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>>;
}

/// An open, empty staging slot; given back to the store by whoever implements it when it is dropped
/// without having been committed.
pub trait Staging: Send + Sync {
    /// Its name in a write set.
    fn id(&self) -> SlotId;
    /// Reads until `buf` is full or the slot ends; returns the count.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `data`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Sets the length.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Deallocates a range inside the slot.
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()>;
}

/// A staging slot, kept open with the last clone.
pub type Slot = Arc<dyn Staging>;

/// Where spilled bytes go.
pub trait Spill: Send + Sync {
    /// A new, empty slot.
    fn stage(&self) -> io::Result<Slot>;
}

/// Memory for private content, shared by all files of a transaction.  Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budget {}

impl Budget {
    /// At most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        todo!()
    }
    /// Bytes in use.
    pub fn used(&self) -> u64 {
        todo!()
    }
}

/// What goes into the write set.
pub struct FrozenContent {
    /// The content as the store takes it.
    pub content: writeset::Content,
    /// The slots that it names: to be kept until the write set is committed.
    pub slots: Vec<Slot>,
}

/// The private content of one file.
pub struct Content {}

type OptBase<'a> = Option<&'a dyn Base>;

impl Content {
    pub fn new_file() -> Content {
        todo!()
    }
    pub fn over(base_len: u64) -> Content {
        todo!()
    }
    /// How many bytes the base has allocated (`st_blocks * 512`); without it, it counts as dense.
    pub fn set_base_allocated(&mut self, bytes: u64) {
        todo!()
    }
    pub fn len(&self) -> u64 {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn is_changed(&self) -> bool {
        todo!()
    }
    /// Bytes.
    pub fn allocated(&self) -> u64 {
        todo!()
    }
    pub fn read(&self, base: OptBase<'_>, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        todo!()
    }
    pub fn write(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        data: &[u8],
    ) -> io::Result<()> {
        todo!()
    }
    pub fn truncate(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        len: u64,
    ) -> io::Result<()> {
        todo!()
    }
    pub fn zero_range(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> io::Result<()> {
        todo!()
    }
    pub fn punch_hole(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        todo!()
    }
    pub fn collapse_range(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        todo!()
    }
    pub fn insert_range(
        &mut self,
        base: OptBase<'_>,
        spill: &dyn Spill,
        budget: &Budget,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        todo!()
    }
    pub fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        todo!()
    }
    /// First data at or after `offset`; `None`: none (ENXIO).
    pub fn seek_data(&self, base: OptBase<'_>, offset: u64) -> io::Result<Option<u64>> {
        todo!()
    }
    /// First hole at or after `offset`, the end of the file counts as one; `None`: beyond the end (ENXIO).
    pub fn seek_hole(&self, base: OptBase<'_>, offset: u64) -> io::Result<Option<u64>> {
        todo!()
    }
    /// Base pages that a read of this range takes from the base.
    pub fn base_pages_needed(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        todo!()
    }
    /// Base pages that a write of this range takes from the base: the partly overwritten ones only.
    pub fn base_pages_for_write(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        todo!()
    }
    pub fn changed_pages(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        Vec::new().into_iter()
    }
    pub fn freeze(&self) -> FrozenContent {
        todo!()
    }
}
