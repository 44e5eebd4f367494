//! What the daemon does from time to time, and only while there is something of the kind: a daemon
//! that serves an idle program wakes up for nothing.

use crate::descriptors::Descriptors;
use std::sync::{Arc, Weak};
use std::time::Duration;
use systx_base::sync::{Event, Mutex, rank};
use systx_vfs::locks::{Asker, Openings, Taken};

/// How long a process outside may wait for a lock that an owner in a view gave up by closing.
pub(crate) const SWEEP: Duration = Duration::from_millis(100);

/// Whether there is something to do.
pub(crate) struct Chores {
    state: Mutex<State>,
    changed: Event,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Nothing,
    Due,
    /// Nobody is left to do something for.
    Over,
}

/// Ends the thread, with the table that holds it.
pub(crate) struct Ending(pub(crate) Arc<Chores>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.become_(State::Over);
    }
}

/// [`Descriptors`], whose locks somebody has to look after from the first one on.
pub(crate) struct Noted(pub(crate) Arc<Chores>);

impl Openings for Noted {
    fn taken(&self, asker: &Asker, before: Option<Arc<dyn Taken>>) -> Arc<dyn Taken> {
        self.0.are_due();
        Descriptors.taken(asker, before)
    }
}

impl Chores {
    pub(crate) fn new() -> Arc<Chores> {
        Arc::new(Chores { state: Mutex::new(rank::LEAF, State::Nothing), changed: Event::new() })
    }

    /// There is something to do, from now on until it turns out that there is not.
    pub(crate) fn are_due(&self) {
        self.become_(State::Due);
    }

    fn become_(&self, new: State) {
        let mut state = self.state.lock();
        if *state != State::Over {
            *state = new;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for something to do; false at the end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            match *state {
                State::Due => return true,
                State::Over => return false,
                State::Nothing => self.changed.wait(&mut state),
            }
        }
    }

    /// Does what is due, in a thread of its own, until there is nothing to do it for.  `work` is
    /// told to do it, and says whether there is more.
    pub(crate) fn begin<T: Send + Sync + 'static>(
        self: Arc<Self>,
        of: Weak<T>,
        work: fn(&T) -> bool,
    ) {
        std::thread::spawn(move || {
            while self.wait() {
                std::thread::sleep(SWEEP);
                let Some(of) = of.upgrade() else { break };
                // Before the look: what is new after it makes them due again.
                self.become_(State::Nothing);
                if work(&of) {
                    self.are_due();
                }
            }
        });
    }
}
