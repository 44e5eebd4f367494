//! Objects that have no name.
//!
//! **Files that have none yet** (`O_TMPFILE`). An object without a name is gone with the commit
//! that makes it, and one that has lost its last name gets none again.  So such a file has a name
//! among the slots, until it gets one that is seen, or nobody has it any longer; opening removes
//! what is there.
//!
//! **Room that comes back a moment late.** An object without a name lives as long as somebody
//! holds it, and the server of a mount holds all that the kernel knows. The kernel tells of what it
//! has forgotten (FORGET), but no program waits until that is heard: one that has removed a file,
//! and then wants the room that it took, may be faster. So a moment is given to those who hold
//! something before room is refused. Ext4 does the same with room that its journal still has
//! (fs/ext4/balloc.c `ext4_should_retry_alloc`).

use crate::open::VolumeStore;
use crate::slot::{slot_name, slot_of};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::sync::{Mutex, rank};
use systx_lfs::format::Ino;
use systx_lfs::{Error, Ops, Result, Volume};

/// For what has lost its name lately: a loaded machine may need so long to tell.
const LATELY: Duration = Duration::from_secs(1);

/// For what never had a name, or was waited for before: probably a program has it open. Whether it
/// has closed it just now is not known. The thread that hears it may get no processor for some
/// dozens of milliseconds, as it stands back for programs (`idle_class` of the `fuse` crate).
const AGAIN: Duration = Duration::from_millis(100);

/// What has lost its name and was waited for in vain.
pub(crate) struct Belated(Mutex<BTreeSet<Ino>>);

impl Default for Belated {
    fn default() -> Belated {
        Belated(Mutex::new(rank::LEAF, BTreeSet::new()))
    }
}

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

    /// Runs `act`; again if there was no room, and more may have come: of what transactions have
    /// dropped, and of what was held without a name.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn with_room<T>(&self, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        match act() {
            Err(Error::NoSpace) => {}
            done => return done,
        }
        let mut until = None;
        loop {
            // Before it is tried: what is released from here on is noticed.
            let lost = self.volume.held_unnamed(&[]);
            let awaited = self.volume.held_unnamed(&self.never_named());
            match act() {
                Err(Error::NoSpace) => {}
                done => return done,
            }
            let until = *until.get_or_insert_with(|| Instant::now() + self.patience(&lost));
            let left = until.saturating_duration_since(Instant::now());
            if self.give_back().is_ok_and(|room| room > 0) {
                continue;
            }
            if !self.volume.wait_for_release(&awaited, left) {
                *self.belated.0.lock() = lost;
                return Err(Error::NoSpace);
            }
        }
    }

    /// Files that have no name yet; and what transactions have staged, which no view holds.
    fn never_named(&self) -> Vec<Ino> {
        let slots = self.volume.look(|ops| ops.list(self.own.slots, None, usize::MAX));
        let slots = slots.unwrap_or_default();
        slots.iter().filter_map(|(name, _)| slot_of(name)).collect()
    }

    fn patience(&self, lost: &BTreeSet<Ino>) -> Duration {
        if lost.is_subset(&self.belated.0.lock()) { AGAIN } else { LATELY }
    }
}
