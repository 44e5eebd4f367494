//! What was changed and nobody has asked to be durable becomes so after a while, by a thread that
//! sleeps while nothing has changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};
use systx_lfs::Volume;

struct State {
    /// There is something to be written since then.
    since: Option<Instant>,
    ends: bool,
}

struct Shared {
    volume: Arc<Volume>,
    patience: Duration,
    /// A hint that spares the lock: something is to be written already.
    is_due: AtomicBool,
    state: Mutex<State>,
    changed: Event,
}

/// The thread.  Dropping it ends it; it writes nothing then.
pub(crate) struct Writeback {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writeback {
    /// Starts it.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(volume: Arc<Volume>, patience: Duration) -> std::io::Result<Writeback> {
        let state = Mutex::new(rank::LEAF, State { since: None, ends: false });
        let (is_due, changed) = Default::default();
        let shared = Arc::new(Shared { volume, patience, is_due, state, changed });
        let theirs = Arc::clone(&shared);
        let named = std::thread::Builder::new().name("lfs-writeback".into());
        let thread = Some(named.spawn(move || theirs.run())?);
        Ok(Writeback { shared, thread })
    }

    /// Something is to be written.
    pub fn has_changed(&self) {
        if !self.shared.is_due.swap(true, Ordering::AcqRel) {
            self.shared.state.lock().since = Some(Instant::now());
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.shared.state.lock().ends = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while self.wait() {
            // What changes from here on is written the next time.
            self.is_due.store(false, Ordering::Release);
            if let Err(error) = self.volume.sync() {
                // Whoever changes something or asks for fsync(2) is told so, too.
                tracing::error!(%error, "what was written to a volume cannot be made durable");
            }
        }
    }

    /// Waits until something has waited long enough; false at the end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.ends {
                return false;
            }
            match state.since {
                None => self.changed.wait(&mut state),
                Some(since) => {
                    let left = self.patience.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        state.since = None;
                        return true;
                    }
                    self.changed.wait_for(&mut state, left);
                }
            }
        }
    }
}
