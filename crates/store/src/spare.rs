//! Room that is kept for what has no reservation: super blocks, and recovery after others have used
//! up a quota.
//!
//! Where blocks are never written in place, even a super block needs room. It is a file of the
//! store that is given up when there is none, and made again before the next decision.

use crate::io::Io;
use crate::layout::{Layout, ensure_file, found};
use crate::space::SPARE;
use std::io::Result;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const NAME: &[u8] = b"spare";

/// Whether it is there, as far as this process knows.
#[derive(Default)]
pub(crate) struct Spare(AtomicBool);

impl Spare {
    /// Makes it, if it is not there.
    pub fn keep(&self, io: &dyn Io, layout: &Layout) -> Result<()> {
        if self.0.load(Relaxed) {
            return Ok(());
        }
        let file = ensure_file(io, &layout.state, NAME)?;
        io.allocate(&file, 0, SPARE)?;
        self.0.store(true, Relaxed);
        Ok(())
    }

    /// Gives it up; false if there is none.
    pub fn give_up(&self, io: &dyn Io, layout: &Layout) -> bool {
        self.0.store(false, Relaxed);
        give_up(io, layout)
    }
}

/// As [`Spare::give_up`], of a store that is being opened.
pub(crate) fn give_up(io: &dyn Io, layout: &Layout) -> bool {
    match found(io.unlink(&layout.state, NAME)) {
        Ok(there) => there.is_some(),
        Err(error) => {
            tracing::warn!(%error, "the room that is kept could not be given up");
            false
        }
    }
}
