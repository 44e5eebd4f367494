//! Transport 2: FUSE over io_uring.
//!
//! The kernel has one queue per possible CPU and puts each request into the queue of the CPU that
//! its client runs on.  A queue hands requests to entries that this side has registered; the answer
//! and the wait for the next request are one system call.
//!
//! One thread per entry, pinned to the queue's CPU: a request that blocks in the view blocks its
//! own entry and nothing else.  The kernel prefers the entry used last, so that a thread that is
//! still warm serves the next request, and the others cost nothing.
//!
//! Rules that keep a connection alive (found by experiment on Linux 6.18):
//! - every possible queue needs an entry before the kernel uses any: queues of absent CPUs share
//!   the *keeper*, one thread with one entry each;
//! - the worker that takes the last free entry of a queue starts another worker *before* it serves
//!   its request.  Requests that arrived meanwhile are not given to an entry that registers late;
//!   so the new worker nudges its queue: it has the kernel send a message that nobody needs
//!   (NOTIFY_RETRIEVE of no bytes of some regular file), whose commit makes the kernel look at the
//!   waiting ones;
//! - if a first registration fails, the kernel switches the connection to /dev/fuse, and so does
//!   the last worker to report ([`Start`]); nobody waits for that, since the kernel holds requests
//!   back.
//!
//! A worker of the keeper never waits for a file lock, since its other entries would wait with it:
//! `ENOLCK`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use systx_base::sync::{Event as Condition, Mutex, rank};
use zerocopy::{FromBytes, IntoBytes};

use crate::connection::Shared;
use crate::cpu::{Cpus, pin};
use crate::crew::{Pool, Remains, most_workers};
use crate::device::Device;
use crate::idle_class::{self, Enrolled};
use crate::post::{Group, Post};
use crate::ring_unsafe::{Event, Ring};
use crate::server::Outcome;
use crate::wire::{self, InHeader, Opcode, OutHeader, RING_OP_LEN};

/// The rings of one connection, by queue.
pub(crate) struct Queues {
    pools: Vec<Pool>,
    nudges: AtomicU64,
}

impl Queues {
    pub fn new(cpus: &Cpus) -> Self {
        let most = most_workers();
        let pools = (0..cpus.possible).map(|_| Pool::new(most)).collect();
        Queues { pools, nudges: AtomicU64::new(1) }
    }
}

/// Rings that are set up but not yet registered.
pub(crate) struct Rings(Vec<Setup>);

struct Setup {
    ring: Ring,
    cpu: Option<usize>,
}

/// Sets up the rings of the first workers.  Fails where io_uring is not to be had.
pub(crate) fn prepare(
    device: &Device,
    cpus: &Cpus,
    payload: usize,
    workers: usize,
) -> io::Result<Rings> {
    let depth = match workers {
        // A second one is started with the first request of its CPU.
        0 => 1,
        n => n.min(most_workers()),
    };
    let mut rings = Vec::new();
    let (mut present, mut absent) = (Vec::new(), Vec::new());
    for queue in 0..cpus.possible {
        let id = u16::try_from(queue).map_err(|_| io::ErrorKind::Unsupported)?;
        // Queues are numbered as CPUs are.
        if cpus.online.contains(&queue) { present.push(id) } else { absent.push(id) }
    }
    for id in present {
        for _ in 0..depth {
            let ring = Ring::new(device.clone(), &[id], payload)?;
            rings.push(Setup { ring, cpu: Some(usize::from(id)) });
        }
    }
    if !absent.is_empty() {
        rings.push(Setup { ring: Ring::new(device.clone(), &absent, payload)?, cpu: None });
    }
    Ok(Rings(rings))
}

/// Starts the first workers.  They tell [`Start`] whether the kernel accepted their entries.
pub(crate) fn start(shared: &Arc<Shared>, rings: Rings) -> io::Result<()> {
    for setup in rings.0 {
        hire(shared, setup, true)?;
    }
    Ok(())
}

/// Whether the kernel took to io_uring: known when every first worker has registered.
pub(crate) struct Start {
    state: Mutex<(usize, bool)>,
    decided: Condition,
}

impl Start {
    /// Waits for the reports of so many workers.
    pub fn new(rings: Option<&Rings>) -> Self {
        let workers = rings.map_or(0, |rings| rings.0.len());
        Start { state: Mutex::new(rank::LEAF, (workers, true)), decided: Condition::new() }
    }

    /// One worker's report; the last one after a refusal does `fall_back` before `wait` returns.
    fn report(&self, accepted: bool, fall_back: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let refused = {
            let mut state = self.state.lock();
            state.1 &= accepted;
            if state.0 > 1 {
                state.0 -= 1;
                return Ok(());
            }
            !state.1
        };
        let result = if refused { fall_back() } else { Ok(()) };
        self.state.lock().0 = 0;
        self.decided.notify_all();
        result
    }

    /// Waits for the last report.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        while state.0 > 0 {
            self.decided.wait(&mut state);
        }
    }
}

fn hire(shared: &Arc<Shared>, setup: Setup, first: bool) -> io::Result<()> {
    let mine = Arc::clone(shared);
    let name = setup.cpu.map_or("fuse-keep".into(), |cpu| format!("fuse-cpu{cpu}"));
    shared.crew.hire(name, move || {
        let Setup { mut ring, cpu } = setup;
        let mut reported = !first;
        mine.worker(|| {
            let post = mine.posts.take(cpu.map_or(Group::Alone, Group::Queue));
            let enrolled = idle_class::enroll(&post);
            cpu.into_iter().for_each(pin);
            let (shared, ring) = (&mine, &mut ring);
            let mut worker = Worker { shared, post, enrolled, ring, live: 0, stop: false };
            worker.run(first, &mut reported)
        });
        if !reported {
            // It panicked before it could say so itself; somebody waits for the last report.
            let _ = mine.start.report(false, || Ok(()));
        }
        Remains::Some(Box::new(ring))
    })
}

/// Starts one more worker for a queue that has no free entry left.
fn grow(shared: &Arc<Shared>, queue: u16) {
    shared.counters().grown();
    let hired = Ring::new(shared.device.clone(), &[queue], shared.payload())
        .and_then(|ring| hire(shared, Setup { ring, cpu: Some(usize::from(queue)) }, false));
    if let Err(error) = hired {
        tracing::warn!(queue, %error, "no further ring entry");
        if let Some(pool) = shared.queues.pools.get(usize::from(queue)) {
            pool.started();
        }
    }
}

/// Makes the kernel look at requests that wait in the queue of the CPU that this thread is on.
fn nudge(shared: &Shared) {
    for file in shared.server.recent_files() {
        // Even, as all ids of requests, and far above those that the kernel counts up from 0.
        let count = shared.queues.nudges.fetch_add(1, Ordering::Relaxed);
        let notify_unique = 1 << 62 | count << 1;
        let body = wire::NotifyRetrieve { notify_unique, nodeid: file.0, ..Default::default() };
        match shared.device.notify(wire::notify::RETRIEVE, &[body.as_bytes()]) {
            Ok(()) => return,
            // Forgotten in the meantime: the next one.
            Err(error) => tracing::debug!(file = file.0, %error, "no nudge"),
        }
    }
}

/// As [`nudge`], for every queue.
pub(crate) fn nudge_all(shared: &Shared) {
    if !shared.over_io_uring() {
        return;
    }
    let here = rustix::thread::sched_getaffinity(None);
    for cpu in 0..shared.queues.pools.len() {
        pin(cpu);
        nudge(shared);
    }
    if let Ok(set) = here {
        // Fails only if all of these CPUs have gone, and then the kernel has chosen others.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    post: Arc<Post>,
    enrolled: Enrolled,
    ring: &'a mut Ring,
    /// Entries that the kernel has not taken back for good.
    live: usize,
    stop: bool,
}

impl Worker<'_> {
    fn run(&mut self, first: bool, reported: &mut bool) -> io::Result<()> {
        if !first {
            (0..self.ring.len()).filter_map(|slot| self.pool(slot)).for_each(Pool::started);
        }
        let registered = self.register();
        if first {
            let accepted = matches!(registered, Ok(true));
            *reported = true;
            self.shared.start.report(accepted, || self.shared.fall_back())?;
        }
        if !registered? {
            return Ok(());
        }
        if !first {
            nudge(self.shared);
        }
        while self.live > 0 && !self.stop {
            while let Some(event) = self.ring.next() {
                self.event(event)?;
            }
            if self.live > 0 && !self.stop {
                self.ring.submit(1)?;
            }
        }
        Ok(())
    }

    /// Registers all entries.  False: the kernel does not want them.
    fn register(&mut self) -> io::Result<bool> {
        self.ring.adopt()?;
        self.ring.watch(self.shared.crew.stop_fd())?;
        for slot in 0..self.ring.len() {
            self.ring.register(slot)?;
            self.live += 1;
            if let Some(pool) = self.pool(slot) {
                pool.enter();
            }
        }
        self.ring.submit(0)?;
        // A refusal completes at once; a request that is already there does, too.
        while let Some(event) = self.ring.next() {
            match event {
                Event::Slot(slot, Err(errno)) if !ended(errno) => {
                    tracing::debug!(errno, slot, "the kernel refused a ring entry");
                    self.gone(slot);
                    return Ok(false);
                }
                event => self.event(event)?,
            }
        }
        Ok(true)
    }

    fn pool(&self, slot: usize) -> Option<&Pool> {
        self.shared.queues.pools.get(usize::from(self.ring.queue(slot)?))
    }

    fn gone(&mut self, slot: usize) {
        self.live -= 1;
        if let Some(pool) = self.pool(slot) {
            pool.leave();
        }
    }

    fn event(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Stop => {
                self.stop = true;
                Ok(())
            }
            Event::Slot(slot, Ok(())) => self.request(slot),
            Event::Slot(slot, Err(errno)) if ended(errno) => {
                self.gone(slot);
                Ok(())
            }
            Event::Slot(slot, Err(errno)) => {
                self.gone(slot);
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    fn request(&mut self, slot: usize) -> io::Result<()> {
        let shares = self.ring.len() > 1;
        let lent = || io::Error::other("a completion for an entry that was not lent");
        let (header, _) = self.ring.parts(slot).ok_or_else(lent)?;
        // Cannot fail: 128 bytes hold a header.
        let request = InHeader::read_from_prefix(&header.in_out)
            .map_or_else(|_| InHeader::default(), |(h, _)| h);
        // A nudge is over at once, and must not bring forth more workers and more nudges.
        let counts = request.opcode != Opcode::NotifyReply as u32;
        if let (true, Some(queue)) = (counts && self.take(slot), self.ring.queue(slot)) {
            grow(self.shared, queue);
        }
        let (header, payload) = self.ring.parts(slot).ok_or_else(lent)?;
        let commit_id = header.entry.commit_id;
        let serving = self.post.serve(&request);
        let reply = serve(self.shared, &self.post, &request, header, payload, shares);
        drop(serving);
        self.enrolled.served();
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(reply.as_bytes());
        header.entry.payload_sz = reply.len - size_of::<OutHeader>() as u32;
        self.ring.commit(slot, commit_id)?;
        if let (true, Some(pool)) = (counts, self.pool(slot)) {
            pool.give();
        }
        Ok(())
    }

    fn take(&self, slot: usize) -> bool {
        self.pool(slot).is_some_and(Pool::take)
    }
}

fn serve(
    shared: &Arc<Shared>,
    post: &Post,
    request: &InHeader,
    header: &wire::RingHeader,
    payload: &mut [u8],
    shares: bool,
) -> OutHeader {
    let op = &header.op_in;
    let (error, len) = match Opcode::from_wire(request.opcode) {
        // A worker with several entries must not wait.
        Some(Opcode::Setlkw) if shares => (-libc::ENOLCK, 0),
        opcode => match fixed_part(opcode, request, header.entry.payload_sz, op) {
            Some(fixed) => {
                let data = 0..header.entry.payload_sz as usize;
                let outcome = shared.server.serve(post, request, fixed, payload, data);
                shared.tidy(request, fixed);
                match outcome {
                    Outcome::Reply { error, len } => (error, len),
                    Outcome::Silence => (0, 0),
                }
            }
            None => {
                tracing::error!(?opcode, request.unique, "lengths of a request disagree");
                (-libc::EIO, 0)
            }
        },
    };
    // The payload buffer is at most 1 MiB.
    let len = (size_of::<OutHeader>() + len) as u32;
    OutHeader { len, error, unique: request.unique }
}

/// The part of the header buffer that this request filled; the rest is left from earlier ones.
/// `None` if the lengths disagree.
fn fixed_part<'a>(
    opcode: Option<Opcode>,
    request: &InHeader,
    payload: u32,
    op: &'a [u8; RING_OP_LEN],
) -> Option<&'a [u8]> {
    let body = (request.len as usize).checked_sub(size_of::<InHeader>())?;
    let filled = body.checked_sub(payload as usize)?;
    let wanted = opcode.map_or(0, wire::fixed_len);
    op.get(..filled.min(wanted))
}

/// How the kernel says that a connection is over.
fn ended(errno: i32) -> bool {
    matches!(errno, libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV)
}

#[cfg(test)]
mod tests;
