//! How urgent the thread is that works for a transaction, at the moment of a conflict
//! ([`systx_txn::Urgency`]).
//!
//! The thread is the one whose request came last: of a run one of many, of a transaction of a
//! thread always the same. A number that was given to another thread since tells of that one;
//! nothing but the order among equals hangs on it.
//!
//! | class of sched(7) | urgency |
//! |---|---|
//! | `SCHED_DEADLINE` | -200 |
//! | `SCHED_FIFO`, `SCHED_RR` | -100, less the priority (1 to 99) |
//! | `SCHED_OTHER`, `SCHED_BATCH`, others | the nice value, -20 to 19 |
//! | `SCHED_IDLE` | 40 |

use crate::hall::Conflicts;
use crate::protocol::{HostPath, Policy};
use crate::urgency_unsafe::{is_ours, scheduling};
use crate::volume::OpenVolume;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use systx_base::NodeId;
use systx_txn::{Choice, Urgency};
use systx_vfs::api::{Answer, Caller, Entry, Reply, Request, Requests, Valid};

/// More urgent than every thread with a priority.
const DEADLINE: i32 = -200;
/// More urgent than every nice value.
const REAL_TIME: i32 = -100;
/// Less urgent than every nice value.
const IDLE: i32 = 40;

/// The thread that a transaction's last request came from; 0: none is known.
pub type LastThread = Arc<AtomicU32>;

/// Tells of the last thread of a transaction.
#[derive(Debug)]
pub(crate) struct OfLast(pub(crate) LastThread);

impl Urgency for OfLast {
    fn now(&self) -> Option<i32> {
        self.of(self.0.load(Relaxed))
    }

    fn of(&self, thread: u32) -> Option<i32> {
        of(thread)
    }
}

/// Tells of the one thread that a transaction is of, which does not end before it.
#[derive(Debug)]
pub(crate) struct OfThread(pub(crate) u32);

impl Urgency for OfThread {
    fn now(&self) -> Option<i32> {
        (self.0 != 0).then(|| scheduling(self.0)).flatten().map(urgency)
    }

    fn first(&self) -> Option<i32> {
        None
    }

    fn of(&self, thread: u32) -> Option<i32> {
        of(thread)
    }
}

fn of(thread: u32) -> Option<i32> {
    // 0 would be the one that asks, and what the daemon itself does in a view, at a commit for
    // instance, tells nothing of the program.
    let theirs = thread != 0 && !is_ours(thread);
    theirs.then(|| scheduling(thread)).flatten().map(urgency)
}

/// A view that notes whom each request comes from; what the kernel writes back comes from nobody.
pub(crate) struct Followed {
    view: Arc<dyn Requests>,
    last: LastThread,
}

impl Followed {
    pub(crate) fn over(view: Arc<dyn Requests>, last: &LastThread) -> Arc<Followed> {
        Arc::new(Followed { view, last: Arc::clone(last) })
    }
}

impl Requests for Followed {
    fn root(&self) -> Reply<Entry> {
        self.view.root()
    }
    fn serve(&self, caller: Caller, request: Request<'_>) -> Reply<Answer> {
        if caller.tid != 0 {
            self.last.store(caller.tid, Relaxed);
        }
        self.view.serve(caller, request)
    }
    fn forget(&self, node: NodeId, count: u64) {
        self.view.forget(node, count);
    }
    fn release(&self, node: NodeId, handle: u8) {
        self.view.release(node, handle);
    }
    fn closes(&self, caller: Caller, node: NodeId) {
        self.view.closes(caller, node);
    }
    fn worn_listing(&self, file: NodeId) -> Option<NodeId> {
        self.view.worn_listing(file)
    }
    fn land(&self, node: NodeId) -> bool {
        self.view.land(node)
    }
    fn waits(&self) -> bool {
        self.view.waits()
    }
    fn valid(&self, node: NodeId, name: Option<&[u8]>) -> Valid {
        self.view.valid(node, name)
    }
}

/// By which policy a transaction contends that works in `cwd`: the one that is `asked` for, or that
/// of the guarded directory, or of the volume.
pub(crate) fn policy(asked: Option<Policy>, volume: &OpenVolume, cwd: &HostPath) -> Choice {
    by(asked.or_else(|| conflicts(volume, cwd).map(|c| c.policy)).unwrap_or_default())
}

/// How long an access of a transaction that works in `cwd` may wait for one that is in its way.
pub(crate) fn patience(volume: &OpenVolume, cwd: &HostPath) -> Duration {
    conflicts(volume, cwd).map_or(systx_guard::plain::STALL, |c| c.stall)
}

fn conflicts(volume: &OpenVolume, cwd: &HostPath) -> Option<Conflicts> {
    let hall = volume.halls().into_iter().find(|hall| cwd.as_path().starts_with(&hall.dir));
    hall.map(|hall| hall.conflicts.clone())
}

/// The engine's word for a policy.
pub(crate) fn by(policy: Policy) -> Choice {
    match policy {
        Policy::Osprio => Choice::OsPrio,
        Policy::Timestamp => Choice::Timestamp,
        Policy::Size => Choice::SizeMatters,
        Policy::Karma => Choice::Karma,
        Policy::TwoPhase => Choice::TwoPhase,
    }
}

fn urgency((class, nice, priority): (i32, i32, u32)) -> i32 {
    match class {
        libc::SCHED_DEADLINE => DEADLINE,
        // The kernel's are 1 to 99.
        libc::SCHED_FIFO | libc::SCHED_RR => REAL_TIME - priority.min(99) as i32,
        libc::SCHED_IDLE => IDLE,
        _ => nice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Pid;
    use std::process::{Command, Stdio};

    #[test]
    fn real_time_is_before_nice_values_and_idle_behind() {
        let told = [
            (libc::SCHED_DEADLINE, 0, 0),
            (libc::SCHED_FIFO, 0, 99),
            (libc::SCHED_RR, 0, 50),
            (libc::SCHED_FIFO, 0, 1),
            (libc::SCHED_OTHER, -20, 0),
            (libc::SCHED_BATCH, 0, 0),
            (libc::SCHED_OTHER, 19, 0),
            (libc::SCHED_IDLE, -20, 0),
        ];
        assert!(told.map(urgency).is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_thread_that_has_gone_tells_nothing_and_one_that_changes_is_believed() {
        let last = LastThread::default();
        let of_last = OfLast(Arc::clone(&last));
        assert_eq!(of_last.now(), None);
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        last.store(child.id(), Relaxed);
        assert!(of_last.now().is_some_and(|nice| nice < 19));
        rustix::process::setpriority_process(Some(Pid::from_child(&child)), 19).unwrap();
        assert_eq!((of_last.now(), OfThread(child.id()).now()), (Some(19), Some(19)));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!((of_last.now(), OfThread(child.id()).now()), (None, None));
        let ours = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        last.store(ours, Relaxed);
        assert_eq!(of_last.now(), None, "what the daemon does is nobody's urgency");
    }
}
