//! One request from decoded bytes to answer: decode, call the view, encode.  Knows nothing of the
//! transport; each worker thread of either transport calls [`Server::serve`] for each request that
//! it fetched.
//!
//! Steps:
//! 1. decode (`decode.rs`); malformed requests are answered `EIO`, unknown ones `ENOSYS`;
//! 2. READ and listings fill the payload in place; everything else yields an [`Answer`], which is
//!    encoded after the borrow of the request's names and data has ended, because over io_uring
//!    both share the payload buffer;
//! 3. a panic of the view is answered `EIO` and logged; the worker lives on.
//!
//! Zero-message opens: OPEN, OPENDIR and FLUSH are answered `ENOSYS`, upon which the kernel never
//! sends them again. Not where the view opens files itself ([`Calls::open`]) or wants to be told of
//! closes: see `locks.rs`; directories never need that, as the kernel keeps their locks itself. The
//! kernel learns it at the first OPEN; for a view in which nothing is opened but what is created,
//! the mounter makes that happen: see [`FIRST_OPEN`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::io::Errno;
use systx_base::sync::{Mutex, rank};
use systx_base::{FIRST_OPEN, Kind, NodeId, Time};
use systx_vfs::api::{
    Attr, Caller, Calls, Entry, Lock, OpenHow, Opened, Reply, Requests, SetAttr, Valid,
};
use systx_vfs::client;
use zerocopy::FromBytes;

use crate::config::{Config, FileLocks, Users};
use crate::decode::{Create, Operation, Refusal, Window, decode};
use crate::in_flight::InFlight;
use crate::listings::Listings;
use crate::locks::{By, Locks};
use crate::mapped::{Mapped, Pages};
use crate::post::Post;
use crate::reply::{self, Answer, Listing, Ttls};
use crate::stats::Counters;
use crate::wire::{self, InHeader, Opcode};

/// What a worker does with its buffers after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Send a reply with this error (0 or a negated errno) and so many bytes of payload.
    Reply { error: i32, len: usize },
    /// FORGET, BATCH_FORGET and INTERRUPT have no reply.
    Silence,
}

/// What is known of opens.
struct Opens {
    /// Every close is told.
    told_of_close: bool,
    /// The number of the next one.
    next: AtomicU64,
    /// Nobody has looked up [`FIRST_OPEN`] yet.
    unknown: AtomicBool,
    /// This process opens files of the mount itself.
    has_own: bool,
}

/// The view behind one connection.
pub(crate) struct Server {
    view: Arc<dyn Requests>,
    ttls: Ttls,
    shared: bool,
    root: NodeId,
    pub locks: Locks,
    /// Kept where programs come and go that have nothing to do with each other.
    pub in_flight: InFlight,
    mapped: Mapped,
    listings: Listings,
    pub counters: Counters,
    opens: Opens,
    /// Files whose cached pages have appended data in the wrong place.
    misplaced: Mutex<Vec<NodeId>>,
    /// Whose call took a file's capabilities last, see [`Server::is_for_capabilities`].
    uncapped: Mutex<Option<(u32, NodeId)>>,
    /// Some regular files that the kernel knows, or knew a moment ago; 0: none.
    recent: [AtomicU64; RECENT],
}

/// What [`FIRST_OPEN`] stands for; no view has that many nodes.
const FIRST_NODE: NodeId = NodeId(u64::MAX - 1);

/// Few, as any of them will do; more than one, as the kernel may have forgotten some.
const RECENT: usize = 8;

impl Server {
    pub fn new(view: Arc<dyn Requests>, config: &Config, pages: Arc<dyn Pages>) -> Self {
        Server {
            view,
            ttls: config.into(),
            shared: config.users != Users::One || config.locks == FileLocks::ViewToldOfClose,
            root: config.root,
            locks: Locks::new(),
            in_flight: InFlight::new(),
            mapped: Mapped::new(Arc::clone(&pages)),
            listings: Listings::new(pages),
            counters: Counters::default(),
            opens: Opens {
                told_of_close: config.locks == FileLocks::ViewToldOfClose,
                next: AtomicU64::new(1),
                unknown: AtomicBool::new(true),
                has_own: config.users == Users::ManyByNumber,
            },
            misplaced: Mutex::new(rank::LEAF, Vec::new()),
            uncapped: Mutex::new(rank::LEAF, None),
            recent: [const { AtomicU64::new(0) }; RECENT],
        }
    }

    /// Regular files that the kernel was told of lately.
    pub fn recent_files(&self) -> impl Iterator<Item = NodeId> {
        self.recent.iter().map(|id| id.load(Relaxed)).filter(|id| *id != 0).map(NodeId)
    }

    /// Files whose pages are to be dropped, since the last call.
    pub fn misplaced(&self) -> Vec<NodeId> {
        std::mem::take(&mut *self.misplaced.lock())
    }

    /// See [`Requests::worn_listing`].
    pub fn worn_listing(&self, file: NodeId) -> Option<NodeId> {
        catch_unwind(AssertUnwindSafe(|| self.view.worn_listing(file))).ok().flatten()
    }

    /// See [`Requests::waits`].
    pub fn waits(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.view.waits())).unwrap_or(false)
    }

    /// The file that [`FIRST_OPEN`] stands for, once.
    fn first_open(&self, caller: Caller, dir: NodeId, name: &[u8]) -> Option<Answer> {
        let is_it = dir == self.root && name == FIRST_OPEN.as_bytes();
        if !is_it || self.opens.told_of_close || !self.opens.unknown.swap(false, Relaxed) {
            return None;
        }
        let (node, time) = (FIRST_NODE, Time::default());
        let attr = Attr {
            ino: node.0,
            kind: Kind::File,
            mode: 0o444,
            nlink: 1,
            uid: caller.uid,
            gid: caller.gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: time,
            mtime: time,
            ctime: time,
        };
        // The name is not to be believed any longer than it takes to open it.
        let ttls = self.ttls.but(Valid { name: Some(Duration::ZERO), ..Valid::default() });
        Some(Answer::Entry(ttls.entry(&Entry { node, generation: 0, attr })))
    }

    /// A node of the view, by the number that the kernel has for it.
    fn node(&self, number: u64) -> NodeId {
        if number == NodeId::ROOT.0 { self.root } else { NodeId(number) }
    }

    /// The number that the kernel has for a node.
    pub fn number(&self, node: NodeId) -> u64 {
        if node == self.root { NodeId::ROOT.0 } else { node.0 }
    }

    fn remember(&self, node: NodeId) {
        // Relaxed: a stale or mixed picture is as good as any.
        if let Some(place) = self.recent.get(node.0 as usize % RECENT) {
            place.store(node.0, Relaxed);
        }
    }

    /// Serves one request in the worker of `post`. `fixed`: its structure; its names and data are
    /// the first `data_len` bytes of `payload` from `data_at`. The reply's body is put at the start
    /// of `payload`.
    pub fn serve(
        &self,
        post: &Post,
        header: &InHeader,
        fixed: &[u8],
        payload: &mut [u8],
        data: std::ops::Range<usize>,
    ) -> Outcome {
        let opcode = Opcode::from_wire(header.opcode);
        self.counters.request(opcode);
        let served = catch_unwind(AssertUnwindSafe(|| {
            let opcode = opcode.ok_or(Refusal::Errno(Errno::NOSYS))?;
            self.run(post, opcode, header, fixed, payload, data)
        }));
        let result = served.unwrap_or_else(|_| {
            // The panic hook has printed where; this says what the program will see.
            let (unique, nodeid) = (header.unique, header.nodeid);
            tracing::error!(?opcode, unique, nodeid, "the view panicked: answered EIO");
            self.counters.panicked();
            Err(Refusal::Errno(Errno::IO))
        });
        if matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt)) {
            return Outcome::Silence;
        }
        match result {
            Ok(len) => Outcome::Reply { error: 0, len },
            Err(Refusal::Errno(errno)) => {
                self.counters.refused();
                Outcome::Reply { error: -errno.raw_os_error(), len: 0 }
            }
            Err(Refusal::Malformed(why)) => {
                tracing::error!(?opcode, unique = header.unique, why, "malformed request");
                self.counters.malformed();
                Outcome::Reply { error: -Errno::IO.raw_os_error(), len: 0 }
            }
        }
    }

    fn run(
        &self,
        post: &Post,
        opcode: Opcode,
        header: &InHeader,
        fixed: &[u8],
        payload: &mut [u8],
        data: std::ops::Range<usize>,
    ) -> Result<usize, Refusal> {
        let data = payload.get(data).ok_or(Refusal::Malformed("data beyond the buffer"))?;
        let node = self.node(header.nodeid);
        let operation = decode(opcode, fixed, data)?;
        // What the kernel writes back is not the business of who happens to be there.
        let back = matches!(operation, Operation::Write { back: true, .. });
        let tid = if back { 0 } else { header.pid };
        let _client = client::serving(Caller { uid: header.uid, gid: header.gid, tid });
        match operation {
            Operation::Read(window) => Ok(self.read(node, window, payload)?),
            Operation::List { window, attributes } => {
                Ok(self.list((node, header.pid), window, attributes, payload)?)
            }
            operation => {
                let changed = match &operation {
                    Operation::Copy { to, .. } => *to,
                    _ => node,
                };
                let by_write = matches!(operation, Operation::Write { .. });
                let alone =
                    matches!(operation, Operation::Fallocate { .. } | Operation::Copy { .. });
                let renames = operation.changes_names(NodeId(header.nodeid));
                let begun = self.listings.now();
                let answer = self.answer(post, header, operation)?;
                for dir in renames.into_iter().flatten() {
                    self.listings.changed(dir, header.pid);
                }
                if let Some(dir) = answer.directory(NodeId(header.nodeid)) {
                    self.listings.tells(dir, header.pid, begun);
                }
                if alone {
                    self.mapped.mode_may_have_changed(changed);
                }
                if let Some(gap) = client::gap() {
                    self.mapped.fill(changed, gap, by_write);
                }
                Ok(answer.encode(payload)?)
            }
        }
    }

    fn read(&self, node: NodeId, window: Window, payload: &mut [u8]) -> Reply<usize> {
        let size = (window.size as usize).min(payload.len());
        self.mapped.has(node, window.offset.saturating_add(size as u64));
        let n = self.view.read(node, window.offset, &mut payload[..size])?;
        // A view that claims more than it was given must not make us send stale memory.
        if n > size { Err(Errno::IO) } else { Ok(n) }
    }

    fn list(
        &self,
        (node, tid): (NodeId, u32),
        window: Window,
        attributes: bool,
        payload: &mut [u8],
    ) -> Reply<usize> {
        let size = (window.size as usize).min(payload.len());
        let number = NodeId(self.number(node));
        let begun = self.listings.now();
        if window.offset == 0 {
            self.listings.begins(number);
        }
        let ttls = attributes.then(|| self.ttls.but(self.view.valid(node, None)));
        let mut listing = Listing::new(&mut payload[..size], ttls);
        let mut refused = false;
        let mut told = Vec::new();
        let done = self.view.readdir(node, window.offset, attributes, &mut |entry| {
            let taken = listing.push(&entry);
            refused |= !taken;
            told.extend(entry.entry.filter(|_| taken).map(|e| (e.node, e.attr.kind)));
            taken
        });
        if let Err(errno) = done {
            // The kernel gets nothing of it, and so forgets nothing of it.
            for (node, _) in told {
                self.view.forget(node, 1);
            }
            return Err(errno);
        }
        for (dir, _) in told.into_iter().filter(|(_, kind)| *kind == Kind::Dir) {
            self.listings.tells(dir, tid, begun);
        }
        // An empty answer means the end of the directory: a name must not vanish that way.
        if refused && listing.len() == 0 {
            return Err(Errno::INVAL);
        }
        if listing.len() == 0 {
            self.listings.ends(number);
        }
        Ok(listing.len())
    }

    fn answer(&self, post: &Post, header: &InHeader, operation: Operation<'_>) -> Reply<Answer> {
        let view = &*self.view;
        let node = self.node(header.nodeid);
        let caller = Caller { uid: header.uid, gid: header.gid, tid: header.pid };
        use Operation as O;
        match operation {
            O::Lookup { name } => self.lookup(caller, node, name),
            O::Forget { count } => {
                self.forget(node, count);
                Ok(Answer::Empty)
            }
            O::BatchForget { list } => {
                self.forget_all(list);
                Ok(Answer::Empty)
            }
            O::Getattr { open, birth } => self.attributes(caller, node, (open, birth)),
            O::Setattr { set } => self.set_attributes(caller, node, set),
            O::Readlink => view.readlink(node).map(Answer::Bytes),
            O::Symlink { name, target } => {
                self.named(node, name, || view.symlink(caller, node, name, target))
            }
            O::Mknod { name, kind, new, rdev } => {
                self.named(node, name, || view.mknod(caller, node, name, kind, new, rdev))
            }
            O::Mkdir { name, new } => {
                self.named(node, name, || view.mkdir(caller, node, name, new))
            }
            O::Link { node: old, name } => {
                self.named(node, name, || view.link(caller, old, node, name))
            }
            O::Create(asked) => self.create(caller, node, asked),
            O::Tmpfile { new, how } => {
                let entry = view.tmpfile(caller, node, new)?;
                self.created(caller, self.ttls, entry, how)
            }
            O::Unlink { name } => view.unlink(caller, node, name).map(done),
            O::Rmdir { name } => view.rmdir(caller, node, name).map(done),
            O::Rename { name, to, to_name, how } => {
                let to = self.node(to.0);
                view.rename(caller, (node, name), (to, to_name), how).map(done)
            }
            O::Write { offset, data, back: true, .. } => {
                view.write_back(node, offset, &self.mapped.with_gaps(node, offset, data))?;
                Ok(Answer::Written(u32::try_from(data.len()).map_err(|_| Errno::IO)?))
            }
            O::Write { offset, data, kill, append, back: false } => {
                self.changing(node, caller);
                self.mapped.written(node, offset, data.len());
                let n = if append {
                    let (n, moved) = view.append(node, offset, data, kill)?;
                    if moved {
                        self.misplaced.lock().push(node);
                    }
                    n
                } else {
                    view.write(node, offset, data, kill)?
                };
                Ok(Answer::Written(u32::try_from(n).map_err(|_| Errno::IO)?))
            }
            other => self.answer_rest(post, header, caller, other),
        }
    }

    fn lookup(&self, caller: Caller, node: NodeId, name: &[u8]) -> Reply<Answer> {
        if let Some(answer) = self.first_open(caller, node, name) {
            return Ok(answer);
        }
        let ttls = self.ttls.but(self.view.valid(node, Some(name)));
        match self.view.lookup(caller, node, name)? {
            Some(entry) => self.entry(ttls, entry),
            None => Ok(Answer::Entry(ttls.absent())),
        }
    }

    fn set_attributes(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Answer> {
        if set.size.is_some() {
            self.changing(node, caller);
        }
        let ttls = self.ttls.but(self.view.valid(node, None));
        let attr = match self.is_for_capabilities(caller, node, &set) {
            true => self.mapped.shown(node, self.view.getattr(node)?),
            false => self.view.setattr(caller, node, set)?,
        };
        Ok(Answer::Attr(ttls.attr(&attr)))
    }

    /// Attributes; `open`: asked by a descriptor; `birth`: with the time of birth.
    fn attributes(
        &self,
        caller: Caller,
        node: NodeId,
        (open, birth): (bool, bool),
    ) -> Reply<Answer> {
        let view = &*self.view;
        let ttls = self.ttls.but(view.valid(node, None));
        let attr = self.mapped.shown(node, view.getattr(node)?);
        // Where the kernel asks by a descriptor it is for itself, and it may have the inode locked.
        if !open
            && attr.kind == Kind::File
            && let Some(call) = self.in_flight.of_another(node, caller)
            && view.land(node)
        {
            self.in_flight.landed(node, call);
        }
        if !birth {
            return Ok(Answer::Attr(ttls.attr(&attr)));
        }
        // What has attributes may have none of these: the root of a thread that rests.
        let born = view.born(node).unwrap_or_default();
        Ok(Answer::Statx(Box::new(ttls.statx(&attr, born))))
    }

    /// The operations on content and attributes, and those that this layer answers itself.
    fn answer_rest(
        &self,
        post: &Post,
        header: &InHeader,
        caller: Caller,
        operation: Operation<'_>,
    ) -> Reply<Answer> {
        let view = &*self.view;
        let node = self.node(header.nodeid);
        use Operation as O;
        match operation {
            O::Statfs => Ok(Answer::Statfs(reply::statfs(&view.statfs()?))),
            O::Setxattr { key, value, how, kill_sgid } => {
                view.setxattr(caller, node, key, value, how, kill_sgid).map(done)
            }
            O::Getxattr { key, size } => {
                Ok(Answer::Value { value: view.getxattr(node, key)?, space: size })
            }
            O::Listxattr { size } => {
                let value = client::visible_xattrs(view.listxattr(node)?);
                Ok(Answer::Value { value, space: size })
            }
            O::Removexattr { key } => {
                if key == b"security.capability" {
                    *self.uncapped.lock() = Some((caller.tid, node));
                }
                view.removexattr(caller, node, key).map(done)
            }
            O::Fallocate { how, offset, len } => {
                self.changing(node, caller);
                view.fallocate(node, how, offset, len).map(done)
            }
            O::Lseek { offset, how } => self.mapped.seek(view, node, offset, how).map(Answer::Seek),
            O::Copy { from, to, to_offset, len, wide } => {
                self.changing(to, caller);
                let n = view.copy_file_range((node, from), (to, to_offset), len)?;
                let narrow = || u32::try_from(n).map_err(|_| Errno::IO).map(Answer::Written);
                if wide { Ok(Answer::Copied(n)) } else { narrow() }
            }
            O::Ioctl { cmd, arg, out_size } => self.ioctl(caller, node, (cmd, arg), out_size),
            O::Getlk { handle, lock } => self.lock_in_the_way(post, header, (handle, lock)),
            O::Setlk { handle, lock, wait } => {
                self.remember(node);
                let unique = wait.then_some(header.unique);
                let by = By { tid: header.pid, handle };
                self.locks.set(view, post, node, (by, lock), unique).map(done)
            }
            O::Interrupt { unique } => {
                self.locks.interrupt(unique);
                Ok(Answer::Empty)
            }
            O::Open { how } => match view.open(caller, node, how) {
                Err(Errno::NOSYS) if self.opens.told_of_close && !how.dir => {
                    Ok(Answer::Open(self.told_out()))
                }
                opened => Ok(Answer::Open(self.open_out(opened?, self.is_own()))),
            },
            O::Flush { owner } if self.opens.told_of_close => self.closed(caller, node, owner),
            O::Release { handle } => {
                self.locks.end(view, node, handle);
                // The view's part of it, see `open_out`.
                view.release(node, handle as u8);
                Ok(Answer::Empty)
            }
            O::Fsync { data_only } => view.fsync(node, data_only).map(done),
            // Nothing is buffered between a request and the view.
            O::Syncfs | O::Destroy | O::NotifyReply => Ok(Answer::Empty),
            _ => Err(Errno::NOSYS),
        }
    }

    fn closed(&self, caller: Caller, node: NodeId, owner: u64) -> Reply<Answer> {
        self.in_flight.next_call(node, caller);
        self.view.closes(caller, node);
        self.locks.close(&*self.view, node, owner);
        self.locks.may_end(node);
        Ok(Answer::Empty)
    }

    fn lock_in_the_way(
        &self,
        post: &Post,
        header: &InHeader,
        (handle, lock): (u64, Lock),
    ) -> Reply<Answer> {
        let by = By { tid: header.pid, handle };
        let found = self.locks.get(&*self.view, post, NodeId(header.nodeid), (by, lock))?;
        Ok(Answer::Lock(reply::lock(found, &lock)))
    }

    /// A request that changes content: the kernel learns of it later than the view.
    fn changing(&self, node: NodeId, caller: Caller) {
        if self.shared {
            self.in_flight.begins(node, caller);
        }
    }

    /// Whether a change of nothing is no chown(2) ([`SetAttr::is_chown`]).  The kernel makes one
    /// also
    /// when a write takes file capabilities, right after it has removed them (fs/inode.c
    /// `file_remove_privs`); the set-id bits are the write's business then.
    fn is_for_capabilities(&self, caller: Caller, node: NodeId, set: &SetAttr) -> bool {
        *set == SetAttr::default()
            && self.uncapped.lock().take_if(|last| *last == (caller.tid, node)).is_some()
    }

    /// Answers with the node that `ask` gives to a name in `dir`.
    fn named(&self, dir: NodeId, name: &[u8], ask: impl FnOnce() -> Reply<Entry>) -> Reply<Answer> {
        let ttls = self.ttls.but(self.view.valid(dir, Some(name)));
        self.entry(ttls, ask()?)
    }

    fn entry(&self, ttls: Ttls, entry: Entry) -> Reply<Answer> {
        if entry.attr.kind == Kind::File {
            self.remember(entry.node);
        }
        Ok(Answer::Entry(ttls.entry(&entry)))
    }

    /// Answers CREATE.  The kernel takes it for a creation and leaves `O_TRUNC` to us, should the
    /// name have existed after all.
    fn create(&self, caller: Caller, dir: NodeId, asked: Create<'_>) -> Reply<Answer> {
        let ttls = self.ttls.but(self.view.valid(dir, Some(asked.name)));
        let mut entry = self.view.create(caller, dir, asked.name, asked.new, asked.exclusive)?;
        if asked.truncate && entry.attr.size > 0 {
            let kill_suidgid = asked.kill;
            let set = SetAttr { size: Some(0), kill_suidgid, ..SetAttr::default() };
            match self.view.setattr(caller, entry.node, set) {
                Ok(attr) => entry.attr = attr,
                Err(errno) => {
                    self.view.forget(entry.node, 1);
                    return Err(errno);
                }
            }
        }
        self.created(caller, ttls, entry, asked.how)
    }

    /// An open that is of no interest to the view, and has a number all the same: locks of
    /// descriptions end with it.
    fn told_out(&self) -> wire::OpenOut {
        let opened = Opened { handle: 0, keep_cache: true, cache_listing: true };
        self.open_out(opened, false)
    }

    /// The answer to an open. Each has a number of its own, never 0: locks of descriptions, which
    /// requests name by nothing else, end with theirs and with no other. What this process has
    /// opened itself (`own`) ends without a message: the kernel would wait for the answer also
    /// where it closes what a killed process had open, and over io_uring for ever (Linux 6.18),
    /// whatever becomes of the connection.
    fn open_out(&self, opened: Opened, own: bool) -> wire::OpenOut {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        let open_flags = flag(opened.keep_cache, wire::FOPEN_KEEP_CACHE)
            | flag(opened.cache_listing, wire::FOPEN_CACHE_DIR)
            | flag(own, wire::FOPEN_NOFLUSH);
        let fh = self.opens.next.fetch_add(1, Relaxed) << u8::BITS | u64::from(opened.handle);
        wire::OpenOut { fh, open_flags, backing_id: 0 }
    }

    /// Whether a thread of this process asks.
    fn is_own(&self) -> bool {
        self.opens.has_own && client::is_own()
    }

    /// Opens a file that was just handed out.
    fn created(&self, caller: Caller, ttls: Ttls, entry: Entry, how: OpenHow) -> Reply<Answer> {
        let open = match self.view.open(caller, entry.node, how) {
            Ok(opened) => self.open_out(opened, self.is_own()),
            Err(Errno::NOSYS) if self.opens.told_of_close => self.told_out(),
            Err(Errno::NOSYS) => {
                wire::OpenOut { open_flags: wire::FOPEN_KEEP_CACHE, ..Default::default() }
            }
            Err(errno) => {
                self.view.forget(entry.node, 1);
                return Err(errno);
            }
        };
        self.remember(entry.node);
        Ok(Answer::Create(ttls.entry(&entry), open))
    }

    fn forget(&self, node: NodeId, count: u64) {
        if node != FIRST_NODE {
            self.in_flight.forget(node);
            self.mapped.forget(node);
            self.listings.forget(node);
            self.view.forget(node, count);
        }
    }

    fn forget_all(&self, list: &[u8]) {
        for one in list.chunks_exact(size_of::<wire::ForgetOne>()) {
            if let Ok(one) = wire::ForgetOne::read_from_bytes(one) {
                self.forget(NodeId(one.nodeid), one.nlookup);
            }
        }
    }

    fn ioctl(
        &self,
        caller: Caller,
        node: NodeId,
        (cmd, arg): (u32, &[u8]),
        out_size: u32,
    ) -> Reply<Answer> {
        let fits = |n: usize| if (out_size as usize) < n { Err(Errno::INVAL) } else { Ok(()) };
        match cmd {
            wire::IOC_GETFLAGS | wire::IOC32_GETFLAGS => {
                fits(4)?;
                Ok(Answer::Ioctl(self.view.inode_flags(node)?))
            }
            wire::IOC_FSGETXATTR => {
                fits(size_of::<wire::FsXattr>())?;
                let xflags = reply::xflags(self.view.inode_flags(node)?);
                Ok(Answer::IoctlXattr(wire::FsXattr { xflags, ..Default::default() }))
            }
            _ => {
                let answer = self.view.control(caller, node, cmd, arg)?;
                fits(answer.len())?;
                Ok(Answer::IoctlBytes(answer))
            }
        }
    }
}

fn done((): ()) -> Answer {
    Answer::Empty
}
