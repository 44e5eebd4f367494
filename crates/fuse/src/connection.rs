//! One connection: set-up, life and end.
//!
//! Steps of [`serve`]: read INIT; if io_uring is wanted and offered, set up the rings (so that we
//! never promise what we cannot do); answer INIT; start the workers.  The kernel holds all requests
//! back until every queue has an entry, which is when the last ring worker has registered.
//!
//! End: after umount(2) or an abort every worker is told by the kernel and leaves.
//! [`Connection:: stop`] ends them from this side. A worker that fails unexpectedly, or panics,
//! cuts the connection off: one that is served by half of its workers would hang clients, and so
//! would one that nobody serves while its descriptors are open. So does the watchdog with one whose
//! workers do not come back from a request.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};
use systx_vfs::api::Requests;
use zerocopy::{FromBytes, IntoBytes};

use crate::config::{Config, Transport};
use crate::control::Control;
use crate::cpu::Cpus;
use crate::crew::{Crew, Pool, most_workers};
use crate::dev;
use crate::device::{Device, Fetched};
use crate::init::{Agreement, negotiate};
use crate::post::Posts;
use crate::server::Server;
use crate::stats::{Counters, Stats};
use crate::uring::{self, Queues};
use crate::watchdog::{self, Finding, Judge, Picture};
use crate::wire::{self, InHeader, Opcode, init};

/// The kernel queues INIT inside mount(2), so it is there already or the device is not mounted.
const INIT_TIMEOUT: Duration = Duration::from_secs(10);

/// What the threads of a connection share.
pub(crate) struct Shared {
    pub device: Device,
    pub server: Server,
    pub crew: Arc<Crew>,
    pub queues: Queues,
    pub dev_pool: Pool,
    pub start: uring::Start,
    /// What the workers are doing.
    pub posts: Posts,
    watch: Mutex<Watch>,
    /// Why the connection was cut off.
    cut: OnceLock<String>,
    /// Descriptors of the connection beside `device`.
    clones: Mutex<Vec<Device>>,
    agreement: Agreement,
    over_io_uring: AtomicBool,
    /// Readers of /dev/fuse when it is the transport.
    dev_workers: usize,
}

/// What the watchdog remembers of a connection.
struct Watch {
    judge: Judge,
    /// The mount's number as the mounter told it.
    number: Option<u32>,
    /// Opened when it is needed first.
    control: Option<io::Result<Control>>,
}

impl Watch {
    fn control(&mut self, device: &Device) -> io::Result<&Control> {
        let number = self.number;
        let opened = self.control.get_or_insert_with(|| {
            Control::open(device, number).inspect_err(|error| {
                tracing::info!(%error, "a watchdog without the kernel's switches");
            })
        });
        opened.as_ref().map_err(|e| io::Error::new(e.kind(), e.to_string()))
    }
}

impl Shared {
    /// Size of payload buffers.
    pub fn payload(&self) -> usize {
        self.agreement.payload as usize
    }

    pub fn over_io_uring(&self) -> bool {
        self.over_io_uring.load(Ordering::Acquire)
    }

    pub fn counters(&self) -> &Counters {
        &self.server.counters
    }

    /// The kernel refused io_uring and sends requests over /dev/fuse instead.
    pub fn fall_back(self: &Arc<Self>) -> io::Result<()> {
        tracing::warn!("the kernel refused io_uring, using /dev/fuse");
        self.over_io_uring.store(false, Ordering::Release);
        self.hire_dev_workers()
    }

    fn hire_dev_workers(self: &Arc<Self>) -> io::Result<()> {
        (0..self.dev_workers).try_for_each(|_| dev::hire(self))
    }

    /// Called after a request was served: rids the kernel of a listing that costs more than it
    /// saves, see [`Requests::worn_listing`]. Waits for nothing but pages of that listing, which
    /// nobody keeps while waiting for us.
    ///
    /// And drops pages with appended data in the wrong place, see
    /// [`systx_vfs::api::Calls::append`]: in a thread of its own, since that waits for other
    /// requests.
    pub fn tidy(self: &Arc<Self>, request: &InHeader, fixed: &[u8]) {
        if request.opcode == Opcode::Write as u32 {
            let misplaced = self.server.misplaced();
            if !misplaced.is_empty() {
                let shared = Arc::downgrade(self);
                std::thread::spawn(move || {
                    let Some(shared) = shared.upgrade() else { return };
                    for node in misplaced {
                        if let Err(error) = shared.invalidate_inode(node, Some((0, 0))) {
                            tracing::debug!(node = node.0, %error, "pages not dropped");
                        }
                    }
                });
            }
        }
        if request.opcode != Opcode::Read as u32 {
            return;
        }
        let begins = wire::ReadIn::read_from_prefix(fixed).is_ok_and(|(read, _)| read.offset == 0);
        let worn = begins.then(|| self.server.worn_listing(NodeId(request.nodeid))).flatten();
        if let Some(dir) = worn
            && let Err(error) = self.invalidate_inode(dir, Some((0, 0)))
        {
            // Forgotten in the meantime, as a rule.
            tracing::debug!(dir = dir.0, %error, "listing not invalidated");
        }
    }

    /// See [`Connection::invalidate_inode`].
    pub fn invalidate_inode(&self, node: NodeId, range: Option<(i64, i64)>) -> io::Result<()> {
        let (off, len) = range.unwrap_or((-1, 0));
        let body = wire::NotifyInode { ino: self.server.number(node), off, len };
        self.device.notify(wire::notify::INVAL_INODE, &[body.as_bytes()])
    }

    /// See [`Connection::invalidate_entry`].
    pub fn invalidate_entry(
        &self,
        parent: NodeId,
        name: &[u8],
        expire_only: bool,
    ) -> io::Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = if expire_only { wire::NOTIFY_EXPIRE_ONLY } else { 0 };
        let parent = self.server.number(parent);
        let body = wire::NotifyEntry { parent, namelen, flags };
        let name = [name, b"\0"].concat();
        self.device.notify(wire::notify::INVAL_ENTRY, &[body.as_bytes(), &name])
    }

    /// See [`Connection::invalidate_all_names`].
    pub fn invalidate_all_names(&self) -> io::Result<()> {
        self.device.notify(wire::notify::INC_EPOCH, &[])
    }

    /// The work of a worker, from its first request to its end: nobody else would answer what is
    /// asked of it afterwards.
    pub fn worker(&self, work: impl FnOnce() -> io::Result<()>) {
        let ended = catch_unwind(AssertUnwindSafe(work));
        let Err(error) = ended.unwrap_or_else(|_| Err(io::Error::other("it panicked"))) else {
            return;
        };
        // Whoever ends a connection takes it away from its workers.
        if self.crew.stopping() {
            tracing::debug!(%error, "a worker failed at the end of its connection");
            return;
        }
        self.cut_off(&format!("a worker failed: {error}"));
    }

    fn dismiss(&self) {
        self.crew.dismiss();
        self.server.locks.stop();
    }

    /// A further descriptor of this connection, see [`Device::another`].
    pub fn another_device(&self) -> Device {
        let device = self.device.another();
        self.clones.lock().push(device.clone());
        device
    }

    /// The watchdog looks, `passed` after the last time.
    pub fn look(&self, passed: Duration) -> Vec<Finding> {
        if self.cut.get().is_some() {
            // The kernel ends the connection when the last ring is closed, where it was not
            // aborted.
            self.crew.reap();
            return Vec::new();
        }
        if self.crew.stopping() {
            return Vec::new();
        }
        let posts = self.posts.see();
        let idle = posts.iter().all(|seen| seen.is_some_and(|seen| seen.turn % 2 == 0));
        // Asked before anything is locked: a view has locks of its own.
        let waits = self.server.waits();
        let findings = {
            let mut watch = self.watch.lock();
            let ask = |c: &Control| c.waiting(&self.device);
            let unanswered =
                if idle { watch.control(&self.device).and_then(ask).ok() } else { None };
            let picture = Picture { posts, waits, unanswered };
            watch.judge.look(passed, &picture)
        };
        for finding in &findings {
            match finding {
                Finding::Slow(slow) => tracing::warn!("a request takes long: {slow}"),
                Finding::Over(slow) => tracing::warn!("it is over: {slow}"),
                Finding::Unserved(time) => {
                    let seconds = time.as_secs();
                    tracing::error!(seconds, "requests wait while every worker is idle");
                    uring::nudge_all(self);
                }
                Finding::Cut(reason) => self.cut_off(&reason.to_string()),
            }
        }
        findings
    }

    /// Ends the connection for its clients' sake.
    fn cut_off(&self, reason: &str) {
        if self.cut.set(reason.to_owned()).is_err() {
            return;
        }
        tracing::error!("the connection is cut off: {reason}");
        let abort = |c: &Control| c.abort(&self.device);
        let aborted = self.watch.lock().control(&self.device).and_then(abort);
        if let Err(error) = aborted {
            tracing::error!(%error, "not aborted: its descriptors are closed instead");
            self.let_go();
        }
        self.dismiss();
        self.crew.abandon();
    }

    /// Closes every descriptor of the connection, also where a stuck thread still has its number.
    /// The kernel then ends the connection, unless such a thread is inside a call on one.
    pub fn let_go(&self) {
        let replaced = crate::device::nothing().and_then(|nothing| {
            let clones = self.clones.lock().clone();
            clones.iter().chain([&self.device]).try_for_each(|d| d.replace(&nothing))
        });
        if let Err(error) = replaced {
            tracing::error!(%error, "descriptors of /dev/fuse stay open");
        }
    }
}

/// A served view.  Dropping it stops serving.
pub struct Connection {
    pub(crate) shared: Arc<Shared>,
}

/// Serves a view on a descriptor of /dev/fuse with which mount(2) has been called already, perhaps
/// in another namespace.  Returns when the threads that answer requests have been started.
///
/// The mount needs the options `default_permissions` (the view does not check permissions) and
/// normally `allow_other`.  To end the connection by [`Connection::stop`] or by the death of this
/// process, nobody else may keep a copy of the descriptor.
///
/// # Errors
/// `PermissionDenied`: the descriptor is not mounted.  `Unsupported`: the kernel is too old, or
/// `Transport::IoUring` was asked for and is not to be had.  Others: no threads, no memory.
pub fn serve(dev: OwnedFd, view: Arc<dyn Requests>, config: Config) -> io::Result<Connection> {
    serve_on(dev, view, &config, &Cpus::detect())
}

fn serve_on(
    dev: OwnedFd,
    view: Arc<dyn Requests>,
    config: &Config,
    cpus: &Cpus,
) -> io::Result<Connection> {
    let device = Device::new(dev)?;
    let (unique, offer) = read_init(&device)?;
    let payload = config.payload(cpus.online.len()) as usize;
    let rings = prepare_rings(&device, &offer, config, cpus, payload)?;
    let (agreement, answer) = negotiate(&offer, config, cpus.online.len(), rings.is_some())
        .map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))?;
    let pages = Arc::new(device.clone());
    let shared = Arc::new(Shared {
        device,
        server: Server::new(view, config, pages),
        crew: Arc::new(Crew::new()?),
        queues: Queues::new(cpus),
        dev_pool: Pool::new(most_workers()),
        start: uring::Start::new(rings.as_ref()),
        posts: Posts::new(),
        watch: Mutex::new(
            rank::LEAF,
            Watch { judge: Judge::new(config.patience), number: config.number, control: None },
        ),
        cut: OnceLock::new(),
        clones: Mutex::new(rank::LEAF, Vec::new()),
        agreement,
        over_io_uring: AtomicBool::new(agreement.over_io_uring()),
        dev_workers: match config.workers {
            0 => cpus.online.len().clamp(2, 4),
            n => n.min(most_workers()),
        },
    });
    // From here on dropping the connection ends what has been started.
    let connection = Connection { shared };
    connection.shared.device.reply(unique, 0, answer.as_bytes())?;
    connection.start(rings)?;
    watchdog::watch(&connection.shared)?;
    Ok(connection)
}

fn read_init(device: &Device) -> io::Result<(u64, wire::InitIn)> {
    let mut buffer = vec![0; wire::MIN_READ_BUFFER];
    let limit = Timespec::try_from(INIT_TIMEOUT).map_err(|_| io::ErrorKind::InvalidInput)?;
    let len = loop {
        match device.read(&mut buffer) {
            Ok(Fetched::Request(len)) => break len,
            Ok(Fetched::Ended) => return Err(io::ErrorKind::NotConnected.into()),
            Ok(Fetched::Nothing) => {}
            Err(e) => return Err(e),
        }
        let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
    };
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "the first request is not INIT");
    let message = buffer.get(..len).ok_or_else(bad)?;
    let (header, body) = InHeader::read_from_prefix(message).map_err(|_| bad())?;
    if header.opcode != Opcode::Init as u32 {
        return Err(bad());
    }
    let (offer, _) = wire::InitIn::read_from_prefix(body).map_err(|_| bad())?;
    Ok((header.unique, offer))
}

fn prepare_rings(
    device: &Device,
    offer: &wire::InitIn,
    config: &Config,
    cpus: &Cpus,
    payload: usize,
) -> io::Result<Option<uring::Rings>> {
    let offered = u64::from(offer.flags2) << 32 & init::OVER_IO_URING != 0;
    let must = config.transport == Transport::IoUring;
    if config.transport == Transport::DevFuse {
        return Ok(None);
    }
    if !offered {
        let why = "this kernel does not offer FUSE over io_uring (fuse.enable_uring)";
        return if must { Err(io::Error::new(io::ErrorKind::Unsupported, why)) } else { Ok(None) };
    }
    match uring::prepare(device, cpus, payload, config.workers) {
        Ok(rings) => Ok(Some(rings)),
        Err(error) if must => Err(error),
        Err(error) => {
            tracing::info!(%error, "no io_uring, using /dev/fuse");
            Ok(None)
        }
    }
}

impl Connection {
    fn start(&self, rings: Option<uring::Rings>) -> io::Result<()> {
        match rings.filter(|_| self.shared.over_io_uring()) {
            Some(rings) => {
                // INTERRUPT and FORGET.
                dev::hire(&self.shared)?;
                uring::start(&self.shared, rings)
            }
            None => self.shared.hire_dev_workers(),
        }
    }

    /// Why the watchdog has cut this connection off, if it has.  Clients may have lost what they
    /// wrote: pages of shared mappings that had not arrived.
    pub fn cut_off(&self) -> Option<&str> {
        self.shared.cut.get().map(String::as_str)
    }

    /// Waits until the file system is unmounted, aborted or stopped, and all threads are gone.
    pub fn wait(&self) {
        self.shared.crew.wait();
    }

    /// Stops serving and waits for the requests at hand.  Clients get `ENOTCONN` once no copy of
    /// the descriptor is left.
    pub fn stop(&self) {
        watchdog::unwatch(&self.shared);
        self.shared.dismiss();
        self.shared.crew.wait();
    }

    /// The transport in use.  Waits for the kernel's decision.
    pub fn transport(&self) -> Transport {
        self.shared.start.wait();
        if self.shared.over_io_uring() { Transport::IoUring } else { Transport::DevFuse }
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.shared.counters().snapshot(self.shared.crew.live())
    }

    /// Drops the kernel's attributes of a node and, with `Some((offset, length))`, the cached pages
    /// in that range (length 0: to the end); dirty ones are written back first.
    ///
    /// All notifications: `NotFound` means that the kernel does not know the object, which is fine.
    /// Without a range this never blocks.  With one it waits for READ and WRITE of those pages.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn invalidate_inode(&self, node: NodeId, range: Option<(i64, i64)>) -> io::Result<()> {
        self.shared.invalidate_inode(node, range)
    }

    /// Makes the kernel forget a name, or (`expire_only`) ask again at its next use.
    ///
    /// Blocks until no directory operation or lookup in `parent` is under way: call it from a
    /// thread of its own, hold no lock, and never make an answer to a request wait for it.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn invalidate_entry(
        &self,
        parent: NodeId,
        name: &[u8],
        expire_only: bool,
    ) -> io::Result<()> {
        self.shared.invalidate_entry(parent, name, expire_only)
    }

    /// Tells that `child` has been deleted under `name`, so that watchers hear of it.  Blocks as
    /// [`Connection::invalidate_entry`], for operations on the child too.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn notify_delete(&self, parent: NodeId, child: NodeId, name: &[u8]) -> io::Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let parent = self.shared.server.number(parent);
        let body = wire::NotifyDelete { parent, child: child.0, namelen, padding: 0 };
        let name = [name, b"\0"].concat();
        self.shared.device.notify(wire::notify::DELETE, &[body.as_bytes(), &name])
    }

    /// Makes every name of the mount stale at once.  Never blocks; Linux 6.16.
    ///
    /// # Errors
    /// `InvalidInput` on older kernels.
    pub fn invalidate_all_names(&self) -> io::Result<()> {
        self.shared.invalidate_all_names()
    }

    /// Asks the kernel to drop unused names of these nodes, so that it forgets them.  Linux 6.18.
    ///
    /// # Errors
    /// `InvalidInput` on older kernels.
    pub fn prune(&self, nodes: &[NodeId]) -> io::Result<()> {
        let count = u32::try_from(nodes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let body = wire::NotifyPrune { count, ..Default::default() };
        let ids: Vec<u64> = nodes.iter().map(|n| n.0).collect();
        self.shared.device.notify(wire::notify::PRUNE, &[body.as_bytes(), ids.as_bytes()])
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
