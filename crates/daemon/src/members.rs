//! Who takes part in a thread's transaction beside the thread itself: threads and processes that
//! were made inside. They share its mount namespace, and that is how they are known.
//!
//! The kernel has no list of those in a namespace, and to look at every process would cost a
//! transaction that made none more than all the rest. But it gives out numbers in a row
//! (`/proc/loadavg` ends with the last one): if there was none since the transaction began, nobody
//! was made; if there were few, only these are looked at.
//!
//! How a process ended is told by its pidfd (Linux 6.15; before, as long as its parent has not
//! waited for it), so it has to be opened while the process lives: at its first request in the
//! transaction, which the kernel does not let it outlive, or when the end of the transaction finds
//! it. A process that ended earlier and asked for nothing has done nothing there.

use crate::pidfd_unsafe::wait_status;
use crate::processes::ids;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::time::Timespec;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use systx_base::proc::{self, Stat};
use systx_base::sync::{Mutex, rank};

/// `PIDFD_THREAD` (Linux 6.9).
pub const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(rustix::fs::OFlags::EXCL.bits());

/// Numbers are compared with those of the begin only so long, and when they are so few: they start
/// again at the end.
const ROW: (Duration, u32) = (Duration::from_millis(100), 256);

/// A member that leaves without ending says so to nobody.
const LOOK: Duration = Duration::from_millis(10);

/// Rounds of looking at those that were made while it was looked.
const ROUNDS: u32 = 64;

/// Of one transaction.
pub struct Members {
    tid: u32,
    /// Of the thread; looked up when it is first asked for, since that is a tenth of a transaction
    /// in which nothing is made.
    pid: OnceLock<u32>,
    namespace: u64,
    begun: Instant,
    /// The last number that the kernel had given out.
    first: Option<u32>,
    seen: Mutex<Vec<Member>>,
}

/// A process other than the thread's.
struct Member {
    pid: u32,
    fd: OwnedFd,
}

/// A thread that is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inside {
    pid: u32,
    tid: u32,
}

impl Members {
    /// Of a transaction that begins, of this thread, which enters this namespace.
    pub fn new(tid: u32, namespace: u64) -> Members {
        let seen = Mutex::new(rank::LEAF, Vec::new());
        let (begun, first) = (Instant::now(), last_number());
        Members { tid, pid: OnceLock::new(), namespace, begun, first, seen }
    }

    fn pid(&self) -> u32 {
        *self.pid.get_or_init(|| process_of(self.tid).unwrap_or(self.tid))
    }

    /// A thread asks for something in the transaction.  It cannot end before it is answered.
    pub fn met(&self, tid: u32) {
        if let Some(pid) = process_of(tid).filter(|_| namespace(tid) == Some(self.namespace)) {
            self.note(pid);
        }
    }

    fn note(&self, pid: u32) {
        if pid == self.pid() || self.seen.lock().iter().any(|m| m.pid == pid && !m.has_ended()) {
            return;
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        match number.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(fd)) => self.seen.lock().push(Member { pid, fd }),
            Some(Err(errno)) => tracing::debug!(pid, %errno, "a process that takes part"),
            None => {}
        }
    }

    /// Whether this thread is in the transaction's namespace.
    pub fn has(&self, tid: u32) -> bool {
        namespace(tid) == Some(self.namespace)
    }

    /// Whether anybody is inside.
    pub fn any(&self) -> bool {
        self.find().is_some()
    }

    /// Waits a while until nobody is inside; else one who is, in words.
    pub fn wait(&self, limit: Duration) -> Option<String> {
        let until = Instant::now() + limit;
        let mut inside = self.find()?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(format!("waits for {}, which is in the transaction", name(inside)));
            }
            self.sleep(inside, left.min(LOOK));
            // As long as this one is there, the others need no look.
            if !self.holds(inside) {
                inside = self.find()?;
            }
        }
    }

    /// Until it ends.
    fn sleep(&self, inside: Inside, limit: Duration) {
        let number = i32::try_from(inside.tid).ok().and_then(Pid::from_raw);
        let fd = number.and_then(|tid| pidfd_open(tid, PIDFD_THREAD).ok());
        let Some(fd) = fd else { return std::thread::sleep(limit) };
        let limit = Timespec::try_from(limit).unwrap_or_default();
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
    }

    /// Of a process that was killed: which one and how, in words.
    pub fn killed(&self) -> Option<String> {
        self.seen.lock().iter().find_map(|member| {
            let signal = member.wait_status()? & 0x7f;
            // The usual end of who writes to somebody who has read enough.
            if signal == 0 || signal == Signal::PIPE.as_raw() {
                return None;
            }
            let pid = member.pid;
            Some(format!(
                "process {pid}, which was in the transaction, was killed by signal {signal}"
            ))
        })
    }

    /// Whether this one is inside, or ends just now: then it has left its namespace, and may have
    /// been killed.
    fn holds(&self, inside: Inside) -> bool {
        match namespace(inside.tid) {
            Some(namespace) => namespace == self.namespace,
            None => self.seen.lock().iter().any(|m| m.pid == inside.pid && !m.has_ended()),
        }
    }

    fn find(&self) -> Option<Inside> {
        let seen = self.seen.lock().iter().map(|m| m.pid).collect::<Vec<_>>();
        let mut seen = seen.into_iter().map(|pid| Inside { pid, tid: pid });
        let found = self.search();
        found.iter().for_each(|inside| self.note(inside.pid));
        found.first().copied().or_else(|| seen.find(|inside| self.holds(*inside)))
    }

    /// All whose namespace it is.
    fn search(&self) -> Vec<Inside> {
        let mut from = self.first;
        let mut in_row = self.begun.elapsed() < ROW.0;
        for _ in 0..ROUNDS {
            let now = last_number();
            let row = from.zip(now).filter(|(from, now)| in_row && from <= now);
            let found = match row.filter(|(from, now)| now - from <= ROW.1) {
                Some((from, now)) => (from + 1..=now).filter_map(|tid| self.inside(tid)).collect(),
                None if from.is_some() && from == now => Vec::new(),
                None => self.search_all(),
            };
            if !found.is_empty() || now.is_none() || from == now {
                return found;
            }
            // Who was made meanwhile, by somebody who was not found and has ended.
            (from, in_row) = (now, true);
        }
        Vec::new()
    }

    fn search_all(&self) -> Vec<Inside> {
        // Of another process the first thread tells, if it is there.
        let may =
            |pid: &u32| *pid == self.pid() || namespace(*pid).is_none_or(|of| of == self.namespace);
        let threads = ids("/proc").filter(may).flat_map(|pid| ids(&format!("/proc/{pid}/task")));
        threads.filter_map(|tid| self.inside(tid)).collect()
    }

    fn inside(&self, tid: u32) -> Option<Inside> {
        if tid == self.tid || namespace(tid) != Some(self.namespace) {
            return None;
        }
        Some(Inside { pid: process_of(tid)?, tid })
    }
}

impl Member {
    fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
    }

    /// As wait(2) has it; `None`: it lives, or nobody knows.
    fn wait_status(&self) -> Option<i32> {
        if !self.has_ended() {
            return None;
        }
        // Its parent may wait for it between one look and the other.
        wait_status(&self.fd).or_else(|| zombie(self.pid)).or_else(|| wait_status(&self.fd))
    }
}

/// How a process ended for which its parent has not waited yet.
fn zombie(pid: u32) -> Option<i32> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = Stat::read(&text).filter(|stat| stat.state() == Some('Z'))?;
    stat.field(52)?.parse().ok()
}

fn name(inside: Inside) -> String {
    let Inside { pid, tid } = inside;
    let name = fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
    let name = name.trim_end();
    if pid == tid {
        format!("process {pid} ({name})")
    } else {
        format!("thread {tid} ({name}) of process {pid}")
    }
}

/// The mount namespace of a thread that has not ended.
fn namespace(tid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{tid}/ns/mnt")).ok()?.ino())
}

/// The process of a thread that has not ended.
pub(crate) fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    proc::status(&status, "Tgid")?.parse().ok()
}

/// The number of the last thread or process that was made.
fn last_number() -> Option<u32> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let file = FILE.get_or_init(|| File::open("/proc/loadavg").ok()).as_ref()?;
    let mut text = [0; 128];
    let len = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.split_whitespace().last()?.parse().ok()
}
