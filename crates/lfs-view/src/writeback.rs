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
    /// It was written then, and nothing has changed since.
    written: Option<Instant>,
    ends: bool,
}

/// What the thread is to do.
enum Due {
    Write,
    Rest,
    End,
}

struct Shared {
    volume: Arc<Volume>,
    patience: Duration,
    rest: fn(),
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
    /// Starts it.  `rest` is called when nothing was changed for `patience` after it has written.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(
        volume: Arc<Volume>,
        patience: Duration,
        rest: fn(),
    ) -> std::io::Result<Writeback> {
        let state = State { since: None, written: None, ends: false };
        let state = Mutex::new(rank::LEAF, state);
        let (is_due, changed) = Default::default();
        let shared = Arc::new(Shared { volume, patience, rest, is_due, state, changed });
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
        loop {
            match self.wait() {
                Due::Write => self.write(),
                Due::Rest => (self.rest)(),
                Due::End => return,
            }
        }
    }

    fn write(&self) {
        // What changes from here on is written the next time.
        self.is_due.store(false, Ordering::Release);
        if let Err(error) = self.volume.sync() {
            // Whoever changes something or asks for fsync(2) is told so, too.
            tracing::error!(%error, "what was written to a volume cannot be made durable");
        }
        self.state.lock().written = Some(Instant::now());
    }

    /// Waits until something has waited long enough, or nothing has changed for as long.
    fn wait(&self) -> Due {
        let mut state = self.state.lock();
        loop {
            let (from, due) = match (state.since, state.written) {
                _ if state.ends => return Due::End,
                (Some(since), _) => (since, Due::Write),
                (None, Some(written)) => (written, Due::Rest),
                (None, None) => {
                    self.changed.wait(&mut state);
                    continue;
                }
            };
            let left = self.patience.saturating_sub(from.elapsed());
            if left.is_zero() {
                (state.since, state.written) = (None, None);
                return due;
            }
            self.changed.wait_for(&mut state, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use systx_lfs::device::MemDevice;
    use systx_lfs::{Format, Limits, mkfs};

    static RESTS: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn each_work_is_followed_by_one_rest() {
        let (dev, clock) = (Arc::new(MemDevice::new(600)), Arc::new(systx_base::Time::default));
        let format = Format {
            segment_blocks: 16,
            cluster: 1,
            id: [3; 16],
            label: String::new(),
            owner: (0, 0),
            compression: Default::default(),
        };
        mkfs(dev.clone(), &format, clock.clone()).unwrap();
        let volume = Arc::new(Volume::open(dev, clock, 5, Limits::default()).unwrap());
        let rest = || {
            RESTS.fetch_add(1, Ordering::SeqCst);
        };
        let writeback = Writeback::start(volume, Duration::from_millis(1), rest).unwrap();
        for n in 1..=3 {
            writeback.has_changed();
            while RESTS.load(Ordering::SeqCst) < n {
                std::thread::yield_now();
            }
            assert_eq!(RESTS.load(Ordering::SeqCst), n);
        }
    }
}
