//! A cleaner in a thread of its own.
//!
//! It is a client of the volume as anybody: it takes the lock as others do, its moves are commits,
//! and what it has not made durable when it dies has not happened.  So it can be stopped, or the
//! process killed, at any point.

use crate::cleaner::Policy;
use crate::error::Result;
use crate::volume::{Plan, Round, Tended, Tending, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use systx_base::sync::{Event, Mutex, rank};

/// What a cleaner has done since it was started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Rounds of cleaning.
    pub rounds: u64,
    /// Segments that were emptied.
    pub segments: u64,
    /// Blocks of files that were written again for it.
    pub moved: u64,
    /// Segments that became free beyond those that cleaning used.
    pub gained: u64,
    /// Files that were written again in order.
    pub coalesced: u64,
    /// Blocks of these.
    pub coalesced_blocks: u64,
    /// Pages that were compressed in idle times.
    pub packed: u64,
    /// Blocks that these became.
    pub packed_blocks: u64,
    /// Segments with damage in them, which are left as they are.
    pub damaged: u64,
    /// Why it has ended by itself: the volume can no longer be changed.
    pub failed: Option<String>,
}

impl Figures {
    fn add(&mut self, round: &Round) {
        self.rounds += 1;
        self.segments += u64::from(round.cleaned.segments);
        self.moved += round.cleaned.moved;
        self.gained += u64::from(round.gained);
        self.damaged += round.damaged.len() as u64;
    }

    fn add_file(&mut self, pages: u64) {
        self.coalesced += u64::from(pages > 0);
        self.coalesced_blocks += pages;
    }
}

struct Known {
    figures: Figures,
    policy: Arc<dyn Policy>,
    is_asleep: bool,
}

struct Shared {
    volume: Arc<Volume>,
    plan: Plan,
    stop: AtomicBool,
    known: Mutex<Known>,
    changed: Event,
}

/// A thread that cleans a volume.  Dropping it stops it.
pub struct CleanerThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl CleanerThread {
    /// Starts it.
    ///
    /// # Errors
    /// If no thread can be made.
    pub fn start(volume: Arc<Volume>, plan: Plan, policy: Arc<dyn Policy>) -> Result<Self> {
        let known = Known { figures: Figures::default(), policy, is_asleep: false };
        let known = Mutex::new(rank::LEAF, known);
        let (stop, changed) = Default::default();
        let shared = Arc::new(Shared { volume, plan, stop, known, changed });
        let theirs = shared.clone();
        let named = std::thread::Builder::new().name("lfs-cleaner".into());
        let thread = named.spawn(move || theirs.run())?;
        Ok(CleanerThread { shared, thread: Some(thread) })
    }

    /// What it has done so far.
    pub fn figures(&self) -> Figures {
        self.shared.known.lock().figures.clone()
    }

    /// From the next round on it chooses by this policy.
    pub fn set_policy(&self, policy: Arc<dyn Policy>) {
        self.shared.known.lock().policy = policy;
    }

    /// Waits until it has nothing to do before somebody commits, or has ended.
    pub fn settled(&self) {
        let mut known = self.shared.known.lock();
        while !known.is_asleep && known.figures.failed.is_none() {
            self.shared.changed.wait(&mut known);
        }
    }

    /// Stops it, after the step that it is at.  Returns what it has done.
    pub fn stop(mut self) -> Figures {
        self.end();
        self.figures()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.volume.wake_cleaner();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for CleanerThread {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn run(&self) {
        let stop = || self.stop.load(Ordering::Relaxed);
        let mut at = Tending::default();
        while !stop() {
            let policy = self.known.lock().policy.clone();
            let done = self.volume.tend(&self.plan, &*policy, &mut at, &stop);
            match self.note(done) {
                Some(true) => {}
                Some(false) => {
                    self.volume.await_work(&self.plan, &at, &stop, &|| self.sleeps(true));
                    self.sleeps(false);
                }
                None => break,
            }
        }
    }

    /// Whether it has done something; `None` if it cannot go on.
    fn note(&self, done: Result<Tended>) -> Option<bool> {
        let mut known = self.known.lock();
        match done {
            Ok(Tended::Cleaned(round)) => known.figures.add(&round),
            Ok(Tended::Coalesced(pages)) => known.figures.add_file(pages),
            Ok(Tended::Packed(packed)) => {
                known.figures.packed += packed.pages;
                known.figures.packed_blocks += packed.blocks;
            }
            Ok(Tended::Nothing) => return Some(false),
            Err(e) => {
                known.figures.failed = Some(e.to_string());
                self.changed.notify_all();
                return None;
            }
        }
        Some(true)
    }

    fn sleeps(&self, is_asleep: bool) {
        self.known.lock().is_asleep = is_asleep;
        self.changed.notify_all();
    }
}
