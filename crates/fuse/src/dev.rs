//! Transport 1: read(2) and write(2) on /dev/fuse.
//!
//! Each worker loops: read without blocking; if there is nothing, sleep in epoll until there is a
//! request (`EPOLLEXCLUSIVE`: one request wakes one worker) or the crew is dismissed.
//!
//! Workers do not look for requests without sleeping: on a busy machine the time is stolen from the
//! clients (measured with 20 us: a lookup took 35 us instead of 14), and the threads float, since
//! the scheduler then wakes them where the client runs.
//!
//! Beside io_uring one such worker serves INTERRUPT and FORGET, which the kernel sends only here.
//! Nobody waits for an answer to these, and each would wake it, on another processor as a rule,
//! while the client that causes them is in the middle of its work. So after a FORGET it rests for
//! [`REST`] and then takes all that have come meanwhile.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::time::Timespec;
use zerocopy::FromBytes;

use crate::connection::Shared;
use crate::crew::Remains;
use crate::device::{Device, Fetched};
use crate::idle_class::{self, Enrolled};
use crate::post::{Group, Post};
use crate::server::Outcome;
use crate::wire::{self, InHeader, Opcode, OutHeader};

const REQUEST: u64 = 0;
const STOP: u64 = 1;

/// How long FORGETs wait for others to come beside io_uring. As long an object that was removed may
/// keep its space, and a signal may take to reach a request that waits for a file lock.
const REST: Duration = Duration::from_millis(2);

/// Starts a worker.
pub(crate) fn hire(shared: &Arc<Shared>) -> io::Result<()> {
    let mine = Arc::clone(shared);
    shared.dev_pool.enter();
    let group = if shared.over_io_uring() { Group::Alone } else { Group::Device };
    let hired = shared.crew.hire("fuse-dev".into(), move || {
        mine.worker(|| Worker::new(&mine, group)?.run());
        mine.dev_pool.leave();
        Remains::None
    });
    if hired.is_err() {
        shared.dev_pool.leave();
    }
    hired
}

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    post: Arc<Post>,
    /// Not beside io_uring, where no client waits for this one.
    enrolled: Option<Enrolled>,
    device: Device,
    epoll: std::os::fd::OwnedFd,
    buffer: Vec<u8>,
    /// A FORGET came since it slept or rested.
    forgot: bool,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Arc<Shared>, group: Group) -> io::Result<Self> {
        let device = shared.another_device();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let incoming = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&epoll, &device, epoll::EventData::new_u64(REQUEST), incoming)?;
        let stop = shared.crew.stop_fd();
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let buffer = vec![0; buffer_len(shared.payload())];
        let post = shared.posts.take(group);
        let enrolled = (group == Group::Device).then(|| idle_class::enroll(&post));
        Ok(Worker { shared, post, enrolled, device, epoll, buffer, forgot: false })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            match self.device.read(&mut self.buffer)? {
                Fetched::Request(len) => {
                    self.request(len)?;
                    if self.shared.crew.stopping() {
                        return Ok(());
                    }
                }
                Fetched::Ended => return Ok(()),
                Fetched::Nothing => {
                    // Where everything comes this way, clients wait.
                    let rests = std::mem::take(&mut self.forgot) && self.shared.over_io_uring();
                    let over = if rests { self.rest()? } else { self.sleep()? };
                    if over {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Lets FORGETs gather.  True: stop.
    fn rest(&self) -> io::Result<bool> {
        let mut stop = [PollFd::from_borrowed_fd(self.shared.crew.stop_fd(), PollFlags::IN)];
        let time = Timespec { tv_sec: 0, tv_nsec: REST.subsec_nanos().into() };
        match poll(&mut stop, Some(&time)) {
            Ok(n) => Ok(n > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sleeps until there may be a request.  True: stop.
    fn sleep(&self) -> io::Result<bool> {
        let mut events = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 2];
        let n = match epoll::wait(&self.epoll, &mut events, None) {
            Ok(n) => n,
            Err(rustix::io::Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        Ok(events[..n].iter().any(|e| e.data.u64() == STOP))
    }

    fn request(&mut self, len: usize) -> io::Result<()> {
        if self.shared.dev_pool.take() {
            // The new one counts from the moment at which it is hired.
            self.shared.dev_pool.started();
            // Beside io_uring nothing blocks here, and one worker is enough.
            if !self.shared.over_io_uring() {
                self.shared.counters().grown();
                if let Err(error) = hire(self.shared) {
                    tracing::warn!(%error, "no further worker thread");
                }
            }
        }
        let result = self.answer(len);
        self.shared.dev_pool.give();
        result
    }

    fn answer(&mut self, len: usize) -> io::Result<()> {
        let Some(Split { header, fixed, fixed_len, data }) = split(&self.buffer, len) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a request without header"));
        };
        let opcode = Opcode::from_wire(header.opcode);
        self.forgot |= matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget));
        // The body of the reply begins where its header would end.
        let payload = &mut self.buffer[size_of::<OutHeader>()..];
        let serving = self.post.serve(&header);
        let server = &self.shared.server;
        let outcome = server.serve(&self.post, &header, &fixed[..fixed_len], payload, data);
        self.shared.tidy(&header, &fixed[..fixed_len]);
        // Before the answer: when the client goes on, it is over.
        drop(serving);
        self.enrolled.iter().for_each(Enrolled::served);
        match outcome {
            Outcome::Silence => Ok(()),
            Outcome::Reply { error, len } => {
                let sent = self.device.reply(header.unique, error, &payload[..len]);
                match sent {
                    // The kernel found our answer senseless: the client got EIO.
                    Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                        let (opcode, unique) = (header.opcode, header.unique);
                        tracing::error!(opcode, unique, error, len, "the kernel refused a reply");
                        Ok(())
                    }
                    Err(e) if over(&e) => Ok(()),
                    other => other,
                }
            }
        }
    }
}

/// The connection ended under our hands; the next read will say so too.
fn over(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ECONNABORTED | libc::EPERM))
}

/// Room for the largest WRITE, which the kernel demands for every read.
pub(crate) fn buffer_len(payload: usize) -> usize {
    let write = size_of::<InHeader>() + size_of::<wire::WriteIn>() + payload;
    write.max(wire::MIN_READ_BUFFER) + 4096
}

/// A message taken apart.
pub(crate) struct Split {
    pub header: InHeader,
    pub fixed: [u8; wire::RING_OP_LEN],
    /// Less than the opcode's structure if the message is cut short.
    pub fixed_len: usize,
    /// Names and data, counted from where an `OutHeader` would end.
    pub data: std::ops::Range<usize>,
}

/// Takes apart a message of `len` bytes; `None` if that is not even a header.
pub(crate) fn split(buffer: &[u8], len: usize) -> Option<Split> {
    const BASE: usize = size_of::<InHeader>() - size_of::<OutHeader>();
    let message = buffer.get(..len)?;
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    if header.len as usize != len {
        return None;
    }
    let wanted = Opcode::from_wire(header.opcode).map_or(0, wire::fixed_len);
    let mut fixed = [0; wire::RING_OP_LEN];
    let fixed_len = wanted.min(body.len());
    fixed[..fixed_len].copy_from_slice(&body[..fixed_len]);
    let data = BASE + fixed_len..len - size_of::<OutHeader>();
    Some(Split { header, fixed, fixed_len, data })
}
