//! Checkpoints beside the answers to clients: one thread per volume while there is something to
//! forget, of the journal and of the history.

use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::sync::{Mutex, rank};
use systx_store::{Lease, Store};

/// From the end of a checkpoint to the next one, at the least and at the most.  Until one has
/// passed, a power cut makes recovery install the transaction again, and could only keep aside what
/// others wrote since.
///
/// A record that is written beside a checkpoint waits for all that the `syncfs` writes: 3 ms in
/// place of 0.5 where no disk is slow.  With a pause of some milliseconds that is each record of a
/// client that works on its own.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// How often a pause is looked at: another process may wait for the store.
const LOOK: Duration = Duration::from_millis(10);

/// How many times as long as a checkpoint the pause after it is: each is a `syncfs` and a write of
/// the super block, three flushes, and the records of a stream of commits wait behind these, on a
/// slow disk always.
const REST: u32 = 9;

fn pause_after(checkpoint: Duration) -> Duration {
    (checkpoint * REST).clamp(PAUSE.0, PAUSE.1)
}

/// Lets a journal forget what is installed.
#[derive(Clone)]
pub struct Checkpoints(Arc<Mutex<State>>);

enum State {
    /// No thread.
    Idle,
    /// A thread is at it, for all that was installed when it began.
    Busy,
    /// The same, and there is more.
    More,
}

impl Default for Checkpoints {
    fn default() -> Checkpoints {
        Checkpoints::new()
    }
}

impl Checkpoints {
    /// Nothing to forget yet.
    #[must_use]
    pub fn new() -> Checkpoints {
        Checkpoints(Arc::new(Mutex::new(rank::LEAF, State::Idle)))
    }

    /// Something was installed: it is forgotten soon.
    pub fn soon(&self, store: &Lease) {
        let mut state = self.0.lock();
        if !matches!(*state, State::Idle) {
            *state = State::More;
            return;
        }
        *state = State::Busy;
        drop(state);
        let (this, store) = (self.clone(), store.clone());
        std::thread::spawn(move || this.work(&store, true));
    }

    /// The store is needed again soon, and stays open for a pause.  Nothing is to be forgotten.
    pub fn linger(&self, store: &Lease) {
        let mut state = self.0.lock();
        if matches!(*state, State::Idle) {
            *state = State::Busy;
            drop(state);
            let (this, store) = (self.clone(), store.clone());
            std::thread::spawn(move || this.work(&store, false));
        }
    }

    /// The store stays open until nothing has been committed for a pause, or another process asks
    /// for it: the next of a stream of commits finds it so.
    fn work(&self, store: &Lease, mut due: bool) {
        loop {
            let begun = Instant::now();
            if std::mem::replace(&mut due, true) {
                if let Err(error) = store.checkpoint() {
                    tracing::error!(%error, "checkpoint");
                }
                bound_history(&**store);
            }
            let until = Instant::now() + pause_after(begun.elapsed());
            while !store.is_asked_for() {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                std::thread::sleep(left.min(LOOK));
            }
            let mut state = self.0.lock();
            if matches!(*state, State::Busy) {
                *state = State::Idle;
                return;
            }
            *state = State::Busy;
        }
    }
}

/// After a checkpoint: what the journal needs cannot be forgotten.
pub(crate) fn bound_history(store: &dyn Store) {
    match store.bound_history() {
        Ok(Some(report)) => tracing::info!(
            transactions = report.removed.len(),
            bytes = report.freed,
            "forgotten, to bound the history"
        ),
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "the history was not bounded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_is_left_to_the_commits_nine_tenths_of_the_time() {
        let pause = |ms| pause_after(Duration::from_millis(ms)).as_millis();
        assert_eq!([16, 60].map(pause), [144, 500]);
    }

    #[test]
    fn of_a_stream_of_commits_ten_in_a_second_meet_a_checkpoint_on_a_fast_disk() {
        let pause = |ms| pause_after(Duration::from_millis(ms)).as_millis();
        assert_eq!([0, 1, 3].map(pause), [100, 100, 100]);
    }
}
