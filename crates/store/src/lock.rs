//! The lock of a store.

use crate::io::{Handle, Io};
use std::sync::Arc;

/// Held as long as it lives.
///
/// The lock belongs to the open file, not to the descriptor, and a child that this process is just
/// spawning has a copy of that until it executes its program.  So it is given back before the file
/// is closed: else whoever comes next finds the store in use, by nobody.
pub(crate) struct StoreLock {
    io: Arc<dyn Io>,
    file: Handle,
}

impl StoreLock {
    /// Of the lock of `file`, which this process has.
    pub(crate) fn of(io: &Arc<dyn Io>, file: Handle) -> StoreLock {
        StoreLock { io: Arc::clone(io), file }
    }

    /// The file.
    pub(crate) fn file(&self) -> &Handle {
        &self.file
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        // What cannot be given back ends with the file.
        let _ = self.io.hold(&self.file, false);
    }
}
