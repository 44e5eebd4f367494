//! A view that outlives its transaction: its processes are not ours to end, and what they have open
//! stays open.
//!
//! Three times in its life:
//! 1. While the transaction is open, all requests go to its [`View`].
//! 2. While it is being committed ([`Lasting::pause`]) requests wait, so that none is answered by
//!    something that is half there.  Those under way are waited for first.
//! 3. After a commit the same nodes are those of a [`Plain`] view of the volume: what is read is
//!    the committed state of that moment, what is written is a plain write, and the kernel may keep
//!    nothing.  A node is taken over when it is first asked for, by where it was committed; what is
//!    open at the commit is held by a descriptor, so it stays the same inode whatever happens to
//!    its name.  A file that is open but was not committed, because it had lost all its names, is
//!    copied to one without a name.
//!
//! After an abort all stays with the view, which answers `ECANCELED`, except that pages can be
//! read.
//!
//! Opens have messages here, else nobody would know what is open.
//!
//! **Lock order**: none of the two locks is held while a view is called.

use crate::behalf::ask_for;
use crate::ground::{Ground, Object};
use crate::plain::Plain;
use crate::plain::files::{Opens, handle_of};
use crate::shared::SharedVolume;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use systx_base::sync::{Event, Mutex, rank};
use systx_base::{Kind, NodeId};
use systx_store::io::HostId;
use systx_vfs::api::*;
use systx_vfs::client;
use systx_vfs::handover::Handover;
use systx_vfs::view::View;

/// See the module.
pub struct Lasting {
    /// Where it goes on.
    vol: Arc<SharedVolume>,
    passage: Mutex<Passage>,
    changed: Event,
    /// What is open of the view; after the commit the plain view keeps count.
    opens: Mutex<HashMap<NodeId, Opens>>,
}

/// What requests go through.
struct Passage {
    serving: Serving,
    closed: bool,
    /// Requests that are being performed.
    under_way: usize,
    /// Requests that found it closed, until they have been performed.
    late: usize,
}

#[derive(Clone)]
enum Serving {
    View(Arc<View>),
    Committed(Arc<Committed>),
}

/// A view after its commit.
struct Committed {
    view: Arc<View>,
    vol: Arc<SharedVolume>,
    /// Made when it is needed first: of most transactions nothing is asked any more.
    plain: OnceLock<Plain>,
    /// The last node that the view handed out.
    last: NodeId,
}

/// What the kernel has open, held over the commit.
struct Pinned {
    object: Object,
    id: HostId,
    kind: Kind,
    /// It will not be committed: this is a copy without a name.
    copy: bool,
}

impl Committed {
    /// The plain view of the volume in which the view's nodes keep their numbers.
    ///
    /// # Errors
    /// The volume's root is gone; the view then answers as after an abort.
    fn plain(&self) -> Reply<&Plain> {
        if let Some(plain) = self.plain.get() {
            return Ok(plain);
        }
        let made = plain_successor(&self.view, self.last, &self.vol).inspect_err(|errno| {
            tracing::error!(%errno, "what a committed view has open is lost");
            self.view.cancel();
        })?;
        Ok(self.plain.get_or_init(|| made))
    }

    /// Makes sure that the plain view has the node.
    fn ensure(&self, id: NodeId) -> Reply<()> {
        let plain = self.plain()?;
        if id > self.last || plain.has(id) {
            return Ok(());
        }
        let (object, host, kind) = committed_object(&self.view, id, &self.vol)?;
        let fd = Ground(&self.vol).reach(object, host, kind)?;
        plain.adopt(id, fd, host, kind, Opens::default());
        Ok(())
    }
}

/// A request on its way.
struct Pass<'a> {
    lasting: &'a Lasting,
    serving: Serving,
    late: bool,
}

impl Pass<'_> {
    fn requests(&self) -> &dyn Requests {
        match &self.serving {
            Serving::View(view) => &**view,
            Serving::Committed(committed) => match committed.plain() {
                Ok(plain) => plain,
                Err(_) => &*committed.view,
            },
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut passage = self.lasting.passage.lock();
        passage.under_way -= 1;
        passage.late -= usize::from(self.late);
        let wake = (passage.closed && passage.under_way == 0) || (self.late && passage.late == 0);
        drop(passage);
        if wake {
            self.lasting.changed.notify_all();
        }
    }
}

impl Lasting {
    /// Of an open transaction's view.
    pub fn new(view: Arc<View>, vol: Arc<SharedVolume>) -> Lasting {
        let passage =
            Passage { serving: Serving::View(view), closed: false, under_way: 0, late: 0 };
        Lasting {
            vol,
            passage: Mutex::new(rank::LEAF, passage),
            changed: Event::new(),
            opens: Mutex::new(rank::LEAF, HashMap::new()),
        }
    }

    /// Lets no request in any more and waits for those under way.  Hold no lock that one of them
    /// may need.  Requests go on when the pause is dropped.
    pub fn pause(self: &Arc<Self>) -> Pause {
        let mut passage = self.passage.lock();
        passage.closed = true;
        while passage.under_way > 0 {
            self.changed.wait(&mut passage);
        }
        drop(passage);
        Pause { lasting: Arc::clone(self), pinned: HashMap::new() }
    }

    /// Waits until every request that had to wait for a pause has been performed, so that what is
    /// invalidated next is not answered anew by one of them.
    pub fn settled(&self) {
        let mut passage = self.passage.lock();
        while passage.late > 0 {
            self.changed.wait(&mut passage);
        }
    }

    /// Whether it is a view of this volume.
    pub fn is_on(&self, vol: &Arc<SharedVolume>) -> bool {
        Arc::ptr_eq(&self.vol, vol)
    }

    /// Whether it is over, and each of its requests is one to the mount of the volume. Where it is
    /// seen in that mount itself, the kernel has a lock of all of it while it asks for a rename
    /// between directories.
    pub(crate) fn asks_the_mount(&self) -> bool {
        Ground(&self.vol).is_mount() && matches!(self.serving(), Serving::Committed(_))
    }

    /// Whether any file is open for writing.
    pub fn is_open_for_writing(&self) -> bool {
        self.opens.lock().values().any(Opens::writes)
    }

    /// Files that are open for writing.
    pub fn open_for_writing(&self) -> Vec<NodeId> {
        let opens = self.opens.lock();
        opens.iter().filter(|(_, opens)| opens.writes()).map(|(node, _)| *node).collect()
    }

    /// The last node that was handed out.
    pub(crate) fn last_node(&self) -> NodeId {
        match self.serving() {
            Serving::View(view) => NodeId(view.objects_met() as u64),
            Serving::Committed(committed) => {
                committed.plain.get().map_or(committed.last, Plain::last_node)
            }
        }
    }

    fn pass(&self) -> Pass<'_> {
        let Ok(pass) = self.pass_if::<Infallible>(|| Ok(()));
        pass
    }

    /// As [`Lasting::pass`]; gives up when `alive`, asked now and then without any lock, fails.
    fn pass_if<E>(&self, alive: impl Fn() -> Result<(), E>) -> Result<Pass<'_>, E> {
        let mut passage = self.passage.lock();
        let late = passage.closed;
        passage.late += usize::from(late);
        while passage.closed {
            self.changed.wait_for(&mut passage, client::LOOK);
            if passage.closed {
                drop(passage);
                let lives = alive();
                passage = self.passage.lock();
                if let Err(killed) = lives {
                    passage.late -= 1;
                    self.changed.notify_all();
                    return Err(killed);
                }
            }
        }
        passage.under_way += 1;
        Ok(Pass { lasting: self, serving: passage.serving.clone(), late })
    }

    /// A request about these nodes.
    fn about(&self, nodes: impl IntoIterator<Item = NodeId>) -> Reply<Pass<'_>> {
        let pass = self.pass_if(client::check)?;
        if let Serving::Committed(committed) = &pass.serving {
            for id in nodes {
                committed.ensure(id)?;
            }
        }
        Ok(pass)
    }

    /// What a node was before the transaction, if that is open and has not changed it; on a file
    /// system with a descriptor (`O_PATH`).
    pub(crate) fn untouched(&self, id: NodeId) -> Option<(Option<OwnedFd>, HostId)> {
        let Serving::View(view) = self.serving() else { return None };
        if Handover::of(&view).met(id).ok()?.is_changed {
            return None;
        }
        match committed_object(&view, id, &self.vol).ok()? {
            (Object::Reached(file), host, _) => Some((Some(file), host)),
            (Object::Held(_), host, _) => Some((None, host)),
        }
    }

    /// The node of an inode of the host that an open transaction has met.
    pub(crate) fn node_of(&self, id: HostId) -> Option<NodeId> {
        let Serving::View(view) = self.serving() else { return None };
        Handover::of(&view).node_of(id)
    }

    fn serving(&self) -> Serving {
        self.passage.lock().serving.clone()
    }
}

/// Something that the kernel has open over a commit.
pub struct StillOpen {
    /// As which node.
    pub node: NodeId,
    /// The committed file (`O_PATH`), if it is one that others can reach, and which that is.
    pub file: Option<(OwnedFd, HostId)>,
}

/// No request is under way.
pub struct Pause {
    lasting: Arc<Lasting>,
    pinned: HashMap<NodeId, Pinned>,
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.lasting.passage.lock().closed = false;
        self.lasting.changed.notify_all();
    }
}

impl Pause {
    fn view(&self) -> Option<Arc<View>> {
        match self.lasting.serving() {
            Serving::View(view) => Some(view),
            Serving::Committed(_) => None,
        }
    }

    /// Before a commit: holds what is open, and copies what will have no name.  `read_only`:
    /// nothing will be committed.
    pub fn pin(&mut self, read_only: bool) {
        let Some(view) = self.view() else { return };
        let open: Vec<NodeId> = self.lasting.opens.lock().keys().copied().collect();
        for id in open {
            match pinned(&view, id, read_only, &self.lasting.vol) {
                Ok(Some(pinned)) => drop(self.pinned.insert(id, pinned)),
                Ok(None) => {}
                Err(errno) => tracing::debug!(node = id.0, %errno, "an open file is not held"),
            }
        }
    }

    /// Right after an installation, while nobody else can touch what was written: holds what is
    /// open and is another inode now than before.  Locks of files that the transaction has made, or
    /// has put another inode in the place of, exclude programs outside from now on.
    pub fn landed(&mut self) {
        let Some(view) = self.view() else { return };
        let open: Vec<NodeId> = self.lasting.opens.lock().keys().copied().collect();
        for id in open {
            let held = self.pinned.get(&id).map(|p| (p.id, p.copy));
            let same = |(host, copy)| copy || Handover::of(&view).committed_as(id) == Some(host);
            if held.is_some_and(same) {
                continue;
            }
            // What is not there any more answers `ESTALE`: an outsider was faster.
            self.pinned.remove(&id);
            if let Ok((object, host, kind)) = committed_object(&view, id, &self.lasting.vol) {
                self.pinned.insert(id, Pinned { object, id: host, kind, copy: false });
            }
        }
        Handover::of(&view).move_locks(false);
    }

    /// What was held of a node: a descriptor, what it is, and whether it is a copy.
    fn reached(&mut self, id: NodeId) -> Option<(OwnedFd, HostId, Kind, bool)> {
        let Pinned { object, id: host, kind, copy } = self.pinned.remove(&id)?;
        match Ground(&self.lasting.vol).reach(object, host, kind) {
            Ok(fd) => Some((fd, host, kind, copy)),
            Err(errno) => {
                tracing::warn!(node = id.0, %errno, "an open file is lost");
                None
            }
        }
    }

    /// After the commit: from now on requests are plain ones.  Returns what the kernel has open, of
    /// which it has to drop all that it keeps, and again the pages of a file when that is changed.
    ///
    /// # Errors
    /// Something is open, and the volume's root is gone.
    pub fn retire(mut self) -> Reply<Vec<StillOpen>> {
        let Some(view) = self.view() else { return Ok(Vec::new()) };
        let vol = Arc::clone(&self.lasting.vol);
        let last = NodeId(view.objects_met() as u64);
        let committed = Committed { view: Arc::clone(&view), vol, plain: OnceLock::new(), last };
        let opens = std::mem::take(&mut *self.lasting.opens.lock());
        let mut open = Vec::new();
        for (id, opens) in opens {
            let mut still = StillOpen { node: id, file: None };
            if let Some((fd, host, kind, copy)) = self.reached(id) {
                if kind == Kind::File && !copy {
                    still.file = rustix::io::fcntl_dupfd_cloexec(&fd, 0).ok().map(|fd| (fd, host));
                }
                let plain = committed.plain()?;
                plain.adopt(id, fd, host, kind, opens);
                if Ground(&self.lasting.vol).is_mount() {
                    // Whoever replaces it asks the mount who has it open.
                    plain.open_at_once(id);
                }
            }
            open.push(still);
        }
        Handover::of(&view).move_locks(true);
        let locks = Handover::of(&view).take_locks();
        if locks.count() > 0 {
            committed.plain()?.adopt_locks(locks);
        }
        self.lasting.passage.lock().serving = Serving::Committed(Arc::new(committed));
        Ok(open)
    }
}

/// What the kernel has open as a node, if it is known on the backing file system; a copy if it will
/// not be there after the commit.
fn pinned(
    view: &View,
    id: NodeId,
    read_only: bool,
    vol: &Arc<SharedVolume>,
) -> Reply<Option<Pinned>> {
    let met = Handover::of(view).met(id)?;
    if if read_only { met.is_committed } else { met.is_committed && met.is_named } {
        let (object, host, kind) = committed_object(view, id, vol)?;
        return Ok(Some(Pinned { object, id: host, kind, copy: false }));
    }
    if met.kind != Kind::File || (met.is_named && !read_only) {
        return Ok(None);
    }
    let fd = copy_without_name(view, id, vol)?;
    let host = crate::plain::identity_of(&fd)?;
    Ok(Some(Pinned { object: Object::Reached(fd), id: host, kind: met.kind, copy: true }))
}

/// The committed object of a node.
fn committed_object(
    view: &View,
    id: NodeId,
    vol: &Arc<SharedVolume>,
) -> Reply<(Object, HostId, Kind)> {
    let (handle, host, kind) = Handover::of(view).committed(id)?;
    Ok((Ground(vol).hold(&handle)?, host, kind))
}

/// A copy of a file of a view, without a name, on the same file system.
fn copy_without_name(view: &View, id: NodeId, vol: &Arc<SharedVolume>) -> Reply<OwnedFd> {
    const STEP: u64 = 1 << 20;
    let root = Ground(vol).root()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let copy = rustix::fs::openat(&root, c".", flags, Mode::from_raw_mode(0o600))?;
    let attr = view.getattr(id)?;
    let mut buf = vec![0; usize::try_from(STEP.min(attr.size)).unwrap_or(0)];
    let mut at = 0;
    while at < attr.size {
        // Holes may be larger than anybody wants to read.
        at = match view.lseek(id, at, Seek::Data) {
            Err(Errno::NXIO) => break,
            found => found?,
        };
        let count = view.read(id, at, &mut buf)?;
        if count == 0 {
            break;
        }
        let mut done = 0;
        while done < count {
            done += rustix::io::pwrite(&copy, &buf[done..count], at + done as u64)?;
        }
        at += count as u64;
    }
    rustix::fs::ftruncate(&copy, attr.size)?;
    let owner = rustix::fs::Uid::from_raw(attr.uid);
    rustix::fs::fchown(&copy, Some(owner), Some(rustix::fs::Gid::from_raw(attr.gid)))?;
    rustix::fs::fchmod(&copy, Mode::from_raw_mode(attr.mode & 0o7777))?;
    Ok(copy)
}

/// A plain view of the volume, in which a view's nodes, up to the `last` one, keep their numbers.
fn plain_successor(view: &View, last: NodeId, vol: &Arc<SharedVolume>) -> Reply<Plain> {
    let plain = Plain::new(Ground(vol).root()?, vol.hidden(), Ground(vol).gate())?
        .locking(vol.lock_files().cloned());
    plain.keep_numbers(Handover::of(view).numbers().into_iter(), last.0);
    Ok(plain)
}

/// The kernel may believe this for no time at all.
const NOT_VALID: Valid =
    Valid { name: Some(Duration::ZERO), attr: Some(Duration::ZERO), dir_attr: None };

impl Requests for Lasting {
    fn root(&self) -> Reply<Entry> {
        self.about([NodeId::ROOT])?.requests().root()
    }
    fn serve(&self, caller: Caller, mut request: Request<'_>) -> Reply<Answer> {
        let pass = if request.unlocks() {
            // Also of a file that is gone.
            self.pass()
        } else {
            self.about(request.nodes().into_iter().flatten().map(|node| *node))?
        };
        let is_retired = matches!(pass.serving, Serving::Committed(_));
        let _behalf = (is_retired && Ground(&self.vol).is_mount()).then(|| ask_for(caller));
        match (&pass.serving, request) {
            (Serving::View(view), Request::Open { node, how }) => {
                view.alive()?;
                let handle = handle_of(caller, how);
                self.opens.lock().entry(node).or_default().add(caller, handle);
                Ok(Opened { handle, keep_cache: true, cache_listing: how.dir }.into())
            }
            (Serving::Committed(committed), Request::Open { node, how }) => {
                let opened = committed.plain()?.open_node(caller, node, how)?;
                Ok(Opened { keep_cache: false, cache_listing: false, ..opened }.into())
            }
            // Durability comes with the commit; but the kernel has to ask again after it.
            (Serving::View(_), Request::Fsync { .. }) => Ok(Answer::Done(())),
            (Serving::Committed(committed), request @ Request::Fsync { .. }) => {
                committed.plain()?.serve(caller, request)
            }
            (_, request) => pass.requests().serve(caller, request),
        }
    }
    fn forget(&self, node: NodeId, count: u64) {
        match self.serving() {
            Serving::View(view) => view.forget(node, count),
            Serving::Committed(committed) => {
                if let Some(plain) = committed.plain.get() {
                    plain.forget(node, count);
                }
            }
        }
    }
    fn worn_listing(&self, file: NodeId) -> Option<NodeId> {
        match self.serving() {
            Serving::View(view) => view.worn_listing(file),
            // The kernel keeps no listing.
            Serving::Committed(_) => None,
        }
    }
    fn release(&self, node: NodeId, handle: u8) {
        let pass = self.pass();
        if let Serving::Committed(committed) = &pass.serving {
            // What was open at the commit, it has.
            return committed.plain.get().map_or((), |plain| plain.release(node, handle));
        }
        let mut opens = self.opens.lock();
        if let Some(open) = opens.get_mut(&node) {
            open.remove(handle);
            if open.count() == 0 {
                opens.remove(&node);
            }
        }
    }
    fn waits(&self) -> bool {
        match self.serving() {
            Serving::View(view) => view.waits(),
            Serving::Committed(_) => false,
        }
    }
    fn valid(&self, _node: NodeId, _name: Option<&[u8]>) -> Valid {
        let mut passage = self.passage.lock();
        while passage.closed {
            self.changed.wait(&mut passage);
        }
        match passage.serving {
            Serving::View(_) => Valid::default(),
            Serving::Committed(_) => NOT_VALID,
        }
    }
}
