//! Commits whose programs do not wait for the disk: one thread per volume finishes what is decided,
//! in the order in which it came, all that waits with one write of the journal.
//!
//! Atomic and isolated they are as any other: until such a commit is in place, requests about what
//! it changes are held.  What its program commits afterwards is not durable before it
//! ([`Decided::durable`]).

use crate::{Decided, Durable, Stopped, durable_all};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use systx_base::sync::{Event, Mutex, rank};

/// So many commits are decided and not in place: a thread that decides one more waits for the disk.
/// Each holds what it has written in memory, and every request of a plain program is compared with
/// it.
const MOST: usize = 64;

/// So long the thread waits for more.
const IDLE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone)]
pub struct Relaxed(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Item>,
    /// Of them, and of those that the thread is at.
    open: usize,
    working: bool,
}

/// What is to be done with a commit when its record is written, or cannot be.
pub type Then = Box<dyn FnOnce(Result<Durable, Stopped>) + Send>;

struct Item {
    decided: Decided,
    then: Then,
}

impl Default for Relaxed {
    fn default() -> Relaxed {
        Relaxed::new()
    }
}

impl Relaxed {
    /// With nothing to do.
    #[must_use]
    pub fn new() -> Relaxed {
        let state = Mutex::new(rank::LEAF, State::default());
        Relaxed(Arc::new(Shared { state, changed: Event::new() }))
    }

    /// Takes over a commit; `then` is called with its record written. Waits where there are too
    /// many.
    pub fn finish(&self, decided: Decided, then: Then) {
        let mut state = self.0.state.lock();
        while state.open >= MOST {
            self.0.changed.wait(&mut state);
        }
        state.open += 1;
        state.queue.push_back(Item { decided, then });
        let working = std::mem::replace(&mut state.working, true);
        drop(state);
        if working {
            self.0.changed.notify_all();
        } else {
            let this = self.clone();
            std::thread::spawn(move || this.work());
        }
    }

    fn work(&self) {
        // What is decided must not be left as it is: recovery does it then.
        let _all = EndsProcess;
        loop {
            let items = {
                let mut state = self.0.state.lock();
                if state.queue.is_empty() {
                    self.0.changed.wait_for(&mut state, IDLE);
                }
                if state.queue.is_empty() && state.open == 0 {
                    state.working = false;
                    return;
                }
                std::mem::take(&mut state.queue)
            };
            let count = items.len();
            let (decided, then): (Vec<_>, Vec<_>) =
                items.into_iter().map(|item| (item.decided, item.then)).unzip();
            for (durable, then) in durable_all(decided).into_iter().zip(then) {
                then(durable);
            }
            self.0.state.lock().open -= count;
            self.0.changed.notify_all();
        }
    }
}

/// Ends the process if it goes with a panic.
struct EndsProcess;

impl Drop for EndsProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests;
