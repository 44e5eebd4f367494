//! Opening the volumes of further file systems, each by a thread of its own: one that is frozen (fsfreeze(8)), or whose disk
//! hangs, keeps in the kernel whoever opens something for writing there, where not even SIGKILL reaches it.  Who can do without
//! it goes on.
//!
//! *Hangs* is not "takes long": a recovery may.  A thread that has not come back from one call for [`STILL`] does, and that is
//! told by the number of times that the kernel has switched it, which moves with every wait that ends.

use crate::protocol::{Failure, FailureKind, HostPath, Place};
use crate::transactions::Transactions;
use crate::volume::OpenVolume;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};

/// So long in one call, and nobody waits for it any more.
const STILL: Duration = Duration::from_secs(5);

/// How often it is looked whether it moves.
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
    /// What its switches were, when they were last seen to have moved.
    switches: Option<u64>,
    since: Instant,
    result: Option<Opened>,
}

impl Openings {
    /// None.
    pub fn new() -> Openings {
        Openings { under_way: Mutex::new(rank::LEAF, HashMap::new()) }
    }

    /// None is under way.
    pub fn is_empty(&self) -> bool {
        self.under_way.lock().is_empty()
    }
}

impl Opening {
    /// What has come of it; `None` if it hangs.  Whoever comes while it hangs already is told so at once.
    fn wait(&self) -> Option<Opened> {
        let mut state = self.state.lock();
        loop {
            if let Some(result) = &state.result {
                return Some(result.clone());
            }
            let switches = state.tid.and_then(switches);
            if switches != state.switches {
                (state.switches, state.since) = (switches, Instant::now());
            }
            if state.since.elapsed() >= STILL {
                return None;
            }
            self.done.wait_for(&mut state, LOOK);
        }
    }
}

/// How often the kernel has taken the processor from a thread of this process, and given it back.
fn switches(tid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).ok()?;
    let counts = status.lines().filter(|line| line.contains("_ctxt_switches:"));
    Some(counts.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok()).sum())
}

impl Transactions {
    /// The volumes of further file systems; for each, in their order.  All are opened side by side.
    pub(crate) fn volumes_that_answer(&self, places: Vec<Place>) -> Vec<Opened> {
        let started: Vec<_> = places.into_iter().map(|place| self.start_opening(place)).collect();
        let wait = |opening: Result<Arc<Opening>, Failure>| {
            opening?.wait().unwrap_or_else(|| {
                let text = format!(
                    "its file system has not answered for {} seconds: it is frozen (fsfreeze), or its disk hangs",
                    STILL.as_secs()
                );
                Err(Failure::new(FailureKind::Busy, text))
            })
        };
        started.into_iter().map(wait).collect()
    }

    fn start_opening(&self, place: Place) -> Result<Arc<Opening>, Failure> {
        let mut under_way = self.openings.under_way.lock();
        if let Some(opening) = under_way.get(&place) {
            return Ok(opening.clone());
        }
        let progress = Progress { tid: None, switches: None, since: Instant::now(), result: None };
        let opening =
            Arc::new(Opening { state: Mutex::new(rank::LEAF, progress), done: Event::new() });
        under_way.insert(place.clone(), opening.clone());
        drop(under_way);
        let work = {
            let (me, opening, place) = (self.me.clone(), opening.clone(), place.clone());
            move || {
                opening.state.lock().tid =
                    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok();
                let Some(table) = me.upgrade() else { return };
                // The daemon goes on without that file system if this panics, and so must whoever waits.
                let volume = || table.volume(&place);
                let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(volume));
                let opened = opened.unwrap_or_else(|_| {
                    Err(Failure::new(FailureKind::Internal, "a panic while it was opened"))
                });
                table.openings.under_way.lock().remove(&place);
                opening.state.lock().result = Some(opened);
                opening.done.notify_all();
            }
        };
        let named = std::thread::Builder::new().name("opener".into());
        named.spawn(work).map_err(|e| {
            self.openings.under_way.lock().remove(&place);
            Failure::new(FailureKind::Internal, format!("no thread to open it: {e}"))
        })?;
        Ok(opening)
    }

    /// Opens the volumes of further file systems, where that is possible; sentences for everybody, and for who
    /// wants details.
    pub(crate) fn further(
        &self,
        roots: &[HostPath],
        volumes: &mut Vec<Arc<OpenVolume>>,
    ) -> (Vec<String>, Vec<String>) {
        let (mut notes, mut details) = (Vec::new(), Vec::new());
        let place =
            |root: &HostPath| Place { cwd: root.clone(), root: Some(root.clone()), store: None };
        let opened = self.volumes_that_answer(roots.iter().map(place).collect());
        for (root, opened) in roots.iter().zip(opened) {
            match opened {
                Ok(volume) if volumes.iter().any(|v| Arc::ptr_eq(v, &volume)) => {}
                Ok(volume) => volumes.push(volume),
                Err(failure) => {
                    let text = format!("{root} is read-only in the transaction: {failure}");
                    let quiet = matches!(failure.kind, FailureKind::Unsupported | FailureKind::Io);
                    if quiet { &mut details } else { &mut notes }.push(text);
                }
            }
        }
        (notes, details)
    }
}
