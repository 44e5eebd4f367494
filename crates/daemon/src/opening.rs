//! Opening the volumes of further file systems, each by a thread of its own: one that is frozen
//! (fsfreeze(8)), or whose disk hangs, keeps in the kernel whoever opens something for writing
//! there, where not even SIGKILL reaches it. Who can do without it goes on.
//!
//! *Hangs* is not "takes long": a recovery may. A thread that was found in one and the same wait at
//! [`LOOKS`] looks does. Two waits are told apart by the number of times that the kernel has
//! switched it, which moves with every one that ends; a thread that runs, waits for a processor, or
//! is stopped, hangs in nothing.
//!
//! Looks, not time: while this process is stopped, the machine suspended, or nobody here gets a
//! processor, nobody looks.

use crate::protocol::{Failure, FailureKind, Place};
use crate::volume::OpenVolume;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::proc;
use systx_base::sync::{Event, Mutex, rank};

/// So many looks that find the same wait, and nobody waits for it any more.
const LOOKS: u32 = 50;

/// The time from one look to the next, at least.
const LOOK: Duration = Duration::from_millis(100);

type Opened = Result<Arc<OpenVolume>, Failure>;

/// The openings that are under way.
pub(crate) struct Openings {
    under_way: Mutex<HashMap<Place, Arc<Opening>>>,
}

/// One of them.
struct Opening {
    state: Mutex<Progress>,
    done: Event,
}

struct Progress {
    /// The thread that does it.
    tid: Option<u32>,
    /// The wait that somebody found it in for too long.
    hangs_in: Option<u64>,
    result: Option<Opened>,
}

/// What one thread that waits for an opening has seen of it.
#[derive(Default)]
struct Stillness {
    wait: Option<u64>,
    looks: u32,
}

impl Stillness {
    /// One more look, which found the opening in this wait, if in any; whether it hangs there.
    fn look(&mut self, wait: Option<u64>) -> bool {
        let same = wait.is_some() && wait == self.wait;
        self.looks = if same { self.looks + 1 } else { 0 };
        self.wait = wait;
        self.looks >= LOOKS
    }
}

impl Openings {
    /// None.
    pub fn new() -> Arc<Openings> {
        Arc::new(Openings { under_way: Mutex::new(rank::LEAF, HashMap::new()) })
    }

    /// None is under way.
    pub fn is_empty(&self) -> bool {
        self.under_way.lock().is_empty()
    }
}

impl Opening {
    /// What has come of it; `None` if it hangs. Whoever comes while it hangs already is told so at
    /// once.
    fn wait(&self) -> Option<Opened> {
        let mut seen = Stillness::default();
        let mut state = self.state.lock();
        loop {
            if let Some(result) = &state.result {
                return Some(result.clone());
            }
            let wait = state.tid.and_then(wait_of);
            if seen.look(wait) {
                state.hangs_in = wait;
            }
            if wait.is_some() && state.hangs_in == wait {
                return None;
            }
            let next = Instant::now() + LOOK;
            while state.result.is_none() && Instant::now() < next {
                self.done.wait_for(&mut state, LOOK);
            }
        }
    }
}

/// The wait that a thread of this process is in: how often the kernel has taken the processor from
/// it. `None` if it is in none.
fn wait_of(tid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).ok()?;
    wait_in(&status)
}

fn wait_in(status: &str) -> Option<u64> {
    let state = proc::status(status, "State")?;
    // Asleep, to be woken by signals or not; others run, wait for a processor, or are stopped.
    if !state.starts_with(['S', 'D']) {
        return None;
    }
    let counts = status.lines().filter(|line| line.contains("_ctxt_switches:"));
    Some(counts.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok()).sum())
}

impl Openings {
    /// The volumes of further file systems; for each, in their order.  All are opened side by side,
    /// by `open`.
    pub(crate) fn all(
        self: &Arc<Self>,
        places: Vec<Place>,
        open: impl Fn(&Place) -> Opened + Clone + Send + 'static,
    ) -> Vec<Opened> {
        let start = |place| self.start(place, open.clone());
        let started: Vec<_> = places.into_iter().map(start).collect();
        let wait = |opening: Result<Arc<Opening>, Failure>| {
            opening?.wait().unwrap_or_else(|| {
                let text = format!(
                    "its file system has not answered for {} seconds: it is frozen (fsfreeze), or its disk hangs",
                    (LOOK * LOOKS).as_secs()
                );
                Err(Failure::new(FailureKind::Busy, text))
            })
        };
        started.into_iter().map(wait).collect()
    }

    fn start(
        self: &Arc<Self>,
        place: Place,
        open: impl FnOnce(&Place) -> Opened + Send + 'static,
    ) -> Result<Arc<Opening>, Failure> {
        let mut under_way = self.under_way.lock();
        if let Some(opening) = under_way.get(&place) {
            return Ok(opening.clone());
        }
        let progress = Progress { tid: None, hangs_in: None, result: None };
        let opening =
            Arc::new(Opening { state: Mutex::new(rank::LEAF, progress), done: Event::new() });
        under_way.insert(place.clone(), opening.clone());
        drop(under_way);
        let work = {
            let (openings, opening, place) = (Arc::clone(self), opening.clone(), place.clone());
            move || {
                opening.state.lock().tid =
                    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok();
                // The daemon goes on without that file system if this panics, and so must whoever
                // waits.
                let volume = || open(&place);
                let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(volume));
                let opened = opened.unwrap_or_else(|_| {
                    Err(Failure::new(FailureKind::Internal, "a panic while it was opened"))
                });
                openings.under_way.lock().remove(&place);
                opening.state.lock().result = Some(opened);
                opening.done.notify_all();
            }
        };
        let named = std::thread::Builder::new().name("opener".into());
        named.spawn(work).map_err(|e| {
            self.under_way.lock().remove(&place);
            Failure::new(FailureKind::Internal, format!("no thread to open it: {e}"))
        })?;
        Ok(opening)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_hangs_when_it_was_looked_at_often_enough() {
        let mut seen = Stillness::default();
        let mut looks = |wait, count: u32| (0..count).filter(|_| seen.look(wait)).count();
        assert_eq!(looks(Some(7), LOOKS), 0, "the first one only begins it");
        assert_eq!(looks(Some(8), LOOKS), 0, "another wait");
        assert_eq!(looks(None, 10 * LOOKS), 0, "it runs, waits for a processor, or is stopped");
        assert_eq!(looks(Some(8), LOOKS), 0, "counted anew");
        assert_eq!(looks(Some(8), 1), 1);
    }

    #[test]
    fn only_who_sleeps_is_in_a_wait() {
        let status = |state: &str| {
            format!(
                "Name:\topener\nState:\t{state}\nvoluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t4\n"
            )
        };
        for state in ["S (sleeping)", "D (disk sleep)"] {
            assert_eq!(wait_in(&status(state)), Some(34));
        }
        for state in ["R (running)", "T (stopped)", "t (tracing stop)", "Z (zombie)"] {
            assert_eq!(wait_in(&status(state)), None);
        }
        assert_eq!(wait_in(""), None);
        // Of a thread that is there.
        let own = std::thread::spawn(|| {
            wait_of(u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap())
        });
        assert_eq!(own.join().unwrap(), None, "it runs");
    }
}
