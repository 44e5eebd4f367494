//! Files that have no name yet (`O_TMPFILE`).
//!
//! An object without a name is gone with the commit that makes it, and one that has lost its last
//! name gets none again.  So such a file has a name among the slots, until it gets one that is
//! seen, or nobody has it any longer; opening removes what is there.

use crate::open::VolumeStore;
use crate::slot::slot_name;
use std::sync::Arc;
use systx_lfs::format::Ino;
use systx_lfs::{Ops, Result, Volume};

impl VolumeStore {
    /// The volume itself.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// An object that was just made, and has no name, stays.
    ///
    /// # Errors
    /// What reading the volume says.
    pub fn keep_unnamed(&self, ops: &mut Ops<'_>, ino: Ino) -> Result<()> {
        ops.set_name(self.own.slots, &slot_name(ino), Some(ino))
    }

    /// It does not stay for that any longer.
    ///
    /// # Errors
    /// What reading the volume says.
    pub fn forget_unnamed(&self, ops: &mut Ops<'_>, ino: Ino) -> Result<()> {
        ops.forget_name(self.own.slots, &slot_name(ino))
    }
}
