//! Conditions that sections wait for: what a section did is committed before it sleeps.

use crate::hardware::{Hardware, Place};
use crate::sync::{AtomicU64, Condvar, Mutex, lock, wait};
use crate::tx::{Reader, Tx};

/// Where sections wait until others have changed something ([`crate::CxLock::wait`]).
///
/// A notification is a part of the section that makes it: it takes effect if that commits.
#[derive(Debug, Default)]
pub struct CxCondvar {
    parking: Parking,
}

#[derive(Debug, Default)]
pub(crate) struct Parking {
    /// Counts notifications.
    sequence: AtomicU64,
    sleep: Mutex<()>,
    changed: Condvar,
}

impl CxCondvar {
    /// A condition that nobody waits for.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all that wait, once the section has committed.
    pub fn notify_all<'t, H: Hardware>(&'t self, t: &Tx<'t, '_, H>) {
        let next = t.load(&self.parking.sequence).wrapping_add(1);
        t.store(&self.parking.sequence, next);
        t.wake_later(&self.parking);
    }

    /// Notifications so far.  Looked at in the section, so that none comes between it and sleep.
    pub(crate) fn seen<H: Hardware>(&self, t: &Reader<'_, H>) -> u64 {
        t.load(&self.parking.sequence)
    }

    /// Sleeps until there are others than those seen.
    pub(crate) fn sleep(&self, hardware: &impl Hardware, seen: u64) {
        let mut guard = lock(&self.parking.sleep);
        while hardware.load(Place(&self.parking.sequence)) == seen {
            guard = wait(&self.parking.changed, guard);
        }
    }
}

impl Parking {
    pub(crate) fn wake(&self) {
        // Who has looked at the sequence before it changed is asleep once this has the mutex.
        drop(lock(&self.sleep));
        self.changed.notify_all();
    }
}
