//! Workers that stand back for their clients while the machine has little else to do.
//!
//! An answer wakes the client on the CPU that it slept on, unless that one is busy and another one
//! is idle; and it is busy, with the worker that gives the answer. To wake an idle CPU costs more
//! than a whole message, several times so in a virtual machine. A CPU on which only threads of the
//! class `SCHED_IDLE` run counts as idle there (`sched_idle_cpu()`, kernel/sched/fair.c): the
//! client stays, and goes on at once. Calls take half of the time so (docs/decisions/0002).
//!
//! The price of the class: beside a busy thread of the same scheduling group such a worker gets
//! next to nothing of the CPU, with locks of the view in its hands. So the workers have it only
//! while there is traffic and much of the machine is idle. One thread per process, of the ordinary
//! class, looks every [`LOOK`] while that is so; `Judge` decides, from what it is shown. Workers
//! lose the class
//! - when the machine has had too little idle time over a [`WINDOW`], or
//! - when a worker was in service and ready to run for a whole look, but did not get done;
//!
//! and do not get it back for a while, which doubles each time.  Without traffic the thread sleeps.
//!
//! Threads inherit the class from those that start them; when workers lose it, so do all other
//! threads of the process. Where the way back is not allowed (no `CAP_SYS_NICE`), or the process
//! runs in another class than the ordinary one, everything stays as it is.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use systx_base::proc::Stat;
use systx_base::sync::{Event, Mutex, rank};

use crate::post::Post;
use crate::sched_unsafe::{Class, class, set_class};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Time over which idle time and traffic are summed up. The kernel tells idle time in steps of 10
/// ms.
const WINDOW: Duration = Duration::from_millis(40);
/// Fewer requests than this in a window are no traffic.
const TRAFFIC: u64 = 16;
/// A worker calls the thread that sleeps with every so many requests.
const CALL: u64 = 64;
/// How long the class is not taken again after it was lost; doubled up to the last.
const REST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(10);

/// What there is to be seen at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Time of a clock that never goes back.
    pub at: Duration,
    /// Idle time of all CPUs together since some moment.
    pub idle: Duration,
    /// Requests served since some moment.
    pub served: u64,
    /// A worker that is ready to run has been in service since the last look.
    pub starved: bool,
}

/// When to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Look(Duration),
    /// When there is traffic.
    Called,
}

/// Decides on the class, with no clock of its own.
#[derive(Debug)]
pub(crate) struct Judge {
    cpus: u32,
    class: Class,
    seen: VecDeque<Sample>,
    rest: Duration,
    /// When the class was taken.
    taken: Duration,
}

impl Judge {
    /// For a machine with so many CPUs.
    pub fn new(cpus: usize) -> Self {
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        let (class, seen, taken) = (Class::Normal, VecDeque::new(), Duration::ZERO);
        Judge { cpus, class, seen, rest: REST, taken }
    }

    /// The class that workers should have now.
    pub fn class(&self) -> Class {
        self.class
    }

    pub fn look(&mut self, sample: Sample) -> Next {
        self.seen.push_back(sample);
        if self.class == Class::Idle && sample.starved {
            return self.lose();
        }
        // The youngest one that is a window old, and all after it.
        while self.seen.get(1).is_some_and(|second| sample.at - second.at >= WINDOW) {
            self.seen.pop_front();
        }
        let first = self.seen.front().copied().unwrap_or(sample);
        let span = sample.at - first.at;
        if span < WINDOW {
            return Next::Look(LOOK);
        }
        if sample.served.saturating_sub(first.served) < TRAFFIC {
            self.class = Class::Normal;
            self.seen.clear();
            return Next::Called;
        }
        // Half of what there is beside the CPU of one client and its worker.
        let wanted = span * (self.cpus - 1) / 2;
        let idle = sample.idle.saturating_sub(first.idle);
        match self.class {
            _ if idle < wanted || self.cpus < 2 => self.lose(),
            Class::Normal => {
                (self.class, self.taken) = (Class::Idle, sample.at);
                Next::Look(LOOK)
            }
            Class::Idle => {
                if sample.at - self.taken >= self.rest * 8 {
                    self.rest = REST;
                }
                Next::Look(LOOK)
            }
        }
    }

    fn lose(&mut self) -> Next {
        self.seen.clear();
        let now = self.rest;
        if self.class == Class::Idle {
            self.class = Class::Normal;
            self.rest = (self.rest * 2).min(REST_MAX);
        }
        Next::Look(now)
    }
}

// ---- the thread --------------------------------------------------------------------------------

/// The workers of this process. Lock order: a leaf, held while classes are changed, so that the
/// number of a thread that has ended is never used.
struct Register {
    state: Mutex<State>,
    changed: Event,
    /// The thread sleeps until it is called.
    sleeps: AtomicBool,
}

struct State {
    workers: Vec<Arc<Post>>,
    class: Class,
    running: bool,
    /// The way back is not allowed.
    refused: bool,
}

static REGISTER: Register = Register {
    state: Mutex::new(
        rank::LEAF,
        State { workers: Vec::new(), class: Class::Normal, running: false, refused: false },
    ),
    changed: Event::new(),
    sleeps: AtomicBool::new(false),
};

/// A worker that takes part until this is dropped, by its own thread.
pub(crate) struct Enrolled(Arc<Post>);

/// The calling thread, a worker, takes part. Call it before the thread is pinned: it may start
/// another one.
pub(crate) fn enroll(post: &Arc<Post>) -> Enrolled {
    let mut state = REGISTER.state.lock();
    if !state.running && !state.refused {
        let started = std::thread::Builder::new().name("fuse-class".into()).spawn(run);
        state.running =
            started.inspect_err(|error| tracing::warn!(%error, "workers keep their class")).is_ok();
    }
    state.workers.push(Arc::clone(post));
    if state.class == Class::Idle {
        give(post.thread(), Class::Idle);
    }
    Enrolled(Arc::clone(post))
}

impl Enrolled {
    /// After a request.
    pub fn served(&self) {
        if self.0.served().is_multiple_of(CALL) && REGISTER.sleeps.load(Ordering::Relaxed) {
            REGISTER.sleeps.store(false, Ordering::Relaxed);
            // Taken so that the thread is not between its last look and its sleep.
            drop(REGISTER.state.lock());
            REGISTER.changed.notify_all();
        }
    }
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        let mut state = REGISTER.state.lock();
        state.workers.retain(|post| !Arc::ptr_eq(post, &self.0));
        if state.workers.is_empty() {
            REGISTER.changed.notify_all();
        }
    }
}

/// Ends with the last worker.
fn run() {
    let allowed = can_go_and_come_back();
    let begin = Instant::now();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut judge, mut watch) = (Judge::new(cpus), Turns::default());
    let mut state = REGISTER.state.lock();
    if let Err(why) = allowed {
        tracing::debug!(why, "workers keep their class");
        (state.running, state.refused) = (false, true);
        return;
    }
    // A thread that has just begun has seen no traffic.
    let mut next = Next::Called;
    loop {
        match next {
            Next::Called => {
                REGISTER.sleeps.store(true, Ordering::Relaxed);
                while REGISTER.sleeps.load(Ordering::Relaxed) && !state.workers.is_empty() {
                    REGISTER.changed.wait(&mut state);
                }
                REGISTER.sleeps.store(false, Ordering::Relaxed);
            }
            Next::Look(time) => {
                let until = Instant::now() + time;
                while let Some(left) = until.checked_duration_since(Instant::now())
                    && !left.is_zero()
                    && !state.workers.is_empty()
                {
                    REGISTER.changed.wait_for(&mut state, left);
                }
            }
        }
        if state.workers.is_empty() {
            change(&mut state, Class::Normal);
            state.running = false;
            return;
        }
        let (served, starved) = watch.look(&state.workers);
        // What cannot be read is no idle time.
        let idle = idle_time().unwrap_or_default();
        next = judge.look(Sample { at: begin.elapsed(), idle, served, starved });
        change(&mut state, judge.class());
    }
}

/// What workers had in service at the last look.
#[derive(Default)]
struct Turns(HashMap<i32, (u64, u64)>);

impl Turns {
    /// Requests served so far, and whether one has not come on though its worker is ready to run.
    fn look(&mut self, workers: &[Arc<Post>]) -> (u64, bool) {
        let (mut served, mut starved) = (0, false);
        let mut now = HashMap::new();
        for seen in workers.iter().filter_map(|post| post.see()) {
            served += seen.turn / 2;
            if seen.turn % 2 == 1 {
                let turn = (seen.turn, seen.beats);
                starved |= self.0.get(&seen.thread) == Some(&turn) && ready(seen.thread);
                now.insert(seen.thread, turn);
            }
        }
        self.0 = now;
        (served, starved)
    }
}

fn change(state: &mut State, to: Class) {
    if state.class == to {
        return;
    }
    tracing::debug!(?to, workers = state.workers.len(), "the workers' scheduling class changes");
    state.class = to;
    match to {
        Class::Idle => state.workers.iter().for_each(|post| give(post.thread(), to)),
        // Also those that were started by workers.
        Class::Normal => threads().for_each(|thread| give(thread, to)),
    }
}

/// Changes a thread of this process if it has the other class.
fn give(thread: i32, to: Class) {
    let from = match to {
        Class::Normal => Class::Idle,
        Class::Idle => Class::Normal,
    };
    if class(thread) == Some(from)
        && let Err(error) = set_class(thread, to)
    {
        // It has gone; or the capability has, which is the one thing that cannot be mended here.
        tracing::debug!(%error, thread, ?to, "a thread keeps its scheduling class");
    }
}

/// Tries it with the calling thread, which is of no use to others where that fails.
fn can_go_and_come_back() -> Result<(), String> {
    const SELF: i32 = 0;
    if class(SELF) != Some(Class::Normal) {
        return Err("the process does not run in the ordinary class".into());
    }
    let both = set_class(SELF, Class::Idle).and_then(|()| set_class(SELF, Class::Normal));
    both.map_err(|error| format!("no way from SCHED_IDLE to SCHED_OTHER: {error}"))
}

/// Numbers of this process's threads.
fn threads() -> impl Iterator<Item = i32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// A thread of this process that runs, or waits for nothing but a CPU.
fn ready(thread: i32) -> bool {
    let text = std::fs::read(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    Stat::read(&text).and_then(|stat| stat.state()) == Some('R')
}

/// Idle time of all CPUs together.
fn idle_time() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let idle = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    let idle = idle.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    idle.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
