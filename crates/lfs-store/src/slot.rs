//! Staging slots.
//!
//! A slot is a file of the volume, in a directory of the store's own, and is written as plain
//! programs write: what it has goes to the log when much has gathered.  To commit one as a file is
//! to move its name.

use crate::error::io_error;
use std::io::Result;
use std::sync::Arc;
use systx_lfs::format::Ino;
use systx_lfs::{SetAttrs, Volume};
use systx_store::Staging;
use systx_store::writeset::SlotId;

/// Most bytes that are copied at once.
pub(crate) const CHUNK: u64 = 1 << 20;

/// A slot.
pub(crate) struct VolumeSlot {
    pub volume: Arc<Volume>,
    /// What it is named by.
    pub id: Ino,
    /// The file; of a slot that stands for a before-file, that one.
    pub ino: Ino,
    pub dropped: Box<dyn Fn(Ino) + Send + Sync>,
}

impl Drop for VolumeSlot {
    fn drop(&mut self) {
        (self.dropped)(self.id);
    }
}

/// Its name among the slots.
pub(crate) fn slot_name(ino: Ino) -> Vec<u8> {
    format!("{ino:x}").into_bytes()
}

/// The slot that has a name.
pub(crate) fn slot_of(name: &[u8]) -> Option<Ino> {
    Ino::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}

impl VolumeSlot {
    /// What stands for a before-file is only read.
    fn own(&self) -> Result<Ino> {
        if self.id == self.ino { Ok(self.ino) } else { Err(rustix::io::Errno::ROFS.into()) }
    }
}

impl Staging for VolumeSlot {
    fn id(&self) -> SlotId {
        SlotId(self.id)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.volume.look(|ops| ops.read_into(self.ino, offset, buf)).map_err(io_error)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let ino = self.own()?;
        self.volume.plain(|ops| ops.write(ino, offset, data)).map_err(io_error)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        let ino = self.own()?;
        let set = SetAttrs { size: Some(len), ..SetAttrs::default() };
        self.volume.plain(|ops| ops.set_attrs(ino, &set)).map_err(io_error)
    }
    fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        let ino = self.own()?;
        self.volume.plain(|ops| ops.punch(ino, offset, len)).map_err(io_error)
    }
}
