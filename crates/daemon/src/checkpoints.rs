//! Checkpoints beside the answers to clients: one thread per volume while there is something to forget.

use std::sync::{Arc, Weak};
use std::time::Duration;
use systx_base::sync::{Mutex, rank};
use systx_store::DirStore;

/// From the end of a checkpoint to the next one.  Each is a `syncfs`, which the records of a stream of commits would
/// otherwise always wait behind.  Until one has passed, a power cut makes recovery install the
/// transaction again, and could only keep aside what others wrote since.
const PAUSE: Duration = Duration::from_millis(10);

/// Lets a journal forget what is installed.
#[derive(Clone)]
pub(crate) struct Checkpoints(Arc<Mutex<State>>);

enum State {
    /// No thread.
    Idle,
    /// A thread is at it, for all that was installed when it began.
    Busy,
    /// The same, and there is more.
    More,
}

impl Checkpoints {
    pub fn new() -> Checkpoints {
        Checkpoints(Arc::new(Mutex::new(rank::LEAF, State::Idle)))
    }

    /// Something was installed: it is forgotten soon.
    pub fn soon(&self, store: &Arc<DirStore>) {
        let mut state = self.0.lock();
        if !matches!(*state, State::Idle) {
            *state = State::More;
            return;
        }
        *state = State::Busy;
        drop(state);
        let (this, store) = (self.clone(), Arc::downgrade(store));
        std::thread::spawn(move || this.work(&store));
    }

    fn work(&self, store: &Weak<DirStore>) {
        loop {
            // Not kept in the pause: the volume may be closed meanwhile.
            let Some(store) = store.upgrade() else { return };
            if let Err(error) = store.checkpoint() {
                tracing::error!(%error, "checkpoint");
            }
            drop(store);
            std::thread::sleep(PAUSE);
            let mut state = self.0.lock();
            if matches!(*state, State::Busy) {
                *state = State::Idle;
                return;
            }
            *state = State::Busy;
        }
    }
}
