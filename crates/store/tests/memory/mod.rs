//! A store in memory: the second implementation of [`Store`] and [`Tree`], made of nothing but what
//! the store crate shows to everybody.  It keeps what is committed, and nothing of before.

#![allow(dead_code, reason = "each suite uses a part of it")]

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systx_base::{Kind, Orders, Time, TxnId};
use systx_store::io::{Class, Fixed, FsInfo, Handle, HostId, ListItem, Open, Project, Stat, Tree};
use systx_store::writeset::{Content, Data, Extent, NewKind, Object, Origin, SlotId, WriteSet};
use systx_store::{
    ApplyError, ApplyReport, CheckpointError, CommitError, CommitMeta, Committed, Decision,
    Disjoint, Forgotten, GcReport, HistoryEntry, Joint, Keep, Late, Past, PastSide, Ready,
    Reservation, ReserveError, Slot, Staging, Store, Times, Undo, UndoError, Wanted,
};

/// The number of the root directory.
const ROOT: u64 = 1;
/// What tells the store from others; there is one of these in a process of tests, or a few.
static STORES: AtomicU64 = AtomicU64::new(1);

#[derive(Clone)]
struct Node {
    stat: Stat,
    data: Vec<u8>,
    link: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    names: BTreeMap<Vec<u8>, u64>,
}

/// A transaction, from its record to its installation and after.
struct Record {
    meta: CommitMeta,
    set: WriteSet,
    joint: Option<Joint>,
    /// It counts: all but prepared ones do at once.
    counts: bool,
    report: Option<ApplyReport>,
}

#[derive(Default)]
struct World {
    /// By number.  What has lost its last name stays: somebody may have it open.
    nodes: BTreeMap<u64, Node>,
    records: BTreeMap<u64, Record>,
    slots: BTreeMap<u64, Vec<u8>>,
    /// What is between its claim and its record.
    claims: BTreeMap<u64, WriteSet>,
    last: u64,
    tick: u32,
}

/// The store, and its tree.
pub struct Memory {
    number: u64,
    world: Arc<Mutex<World>>,
    orders: Arc<Orders>,
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Later than every time before.
    fn time(&mut self) -> Time {
        self.tick += 1;
        Time { secs: 1_700_000_000 + i64::from(self.tick), nanos: 0 }
    }

    fn node(&self, ino: u64) -> Result<&Node> {
        self.nodes.get(&ino).ok_or_else(|| Errno::STALE.into())
    }

    fn change(&mut self, ino: u64) -> Result<&mut Node> {
        let now = self.time();
        let node = self.nodes.get_mut(&ino).ok_or(Errno::STALE)?;
        node.stat.ctime = now;
        Ok(node)
    }

    fn make(&mut self, kind: Kind) -> u64 {
        let (ino, now) = (self.next(), self.time());
        let stat = Stat {
            id: HostId::new(ino, now),
            dev: 77,
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            nlink: if kind == Kind::Dir { 2 } else { 0 },
            size: 0,
            blocks: 0,
            blksize: 4096,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
        };
        let (xattrs, names) = (BTreeMap::new(), BTreeMap::new());
        let node = Node { stat, data: Vec::new(), link: Vec::new(), xattrs, names };
        self.nodes.insert(ino, node);
        ino
    }

    fn find(&self, at: &Handle, name: &[u8]) -> Result<u64> {
        let at = *at.inner::<u64>();
        if name.is_empty() {
            return Ok(at);
        }
        let node = self.node(at)?;
        if node.stat.kind != Kind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        node.names.get(name).copied().ok_or_else(|| Errno::NOENT.into())
    }

    /// Takes a name away.  What is in a directory without a name keeps its names there: nothing
    /// moves its version but what the write set names.
    fn unname(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let now = self.time();
        let at = self.change(dir)?;
        let Some(ino) = at.names.remove(name) else { return Ok(()) };
        at.stat.mtime = now;
        let node = self.change(ino)?;
        if node.stat.kind == Kind::Dir {
            self.change(dir)?.stat.nlink -= 1;
        } else {
            node.stat.nlink -= 1;
        }
        Ok(())
    }

    fn name(&mut self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        let (now, kind) = (self.time(), self.node(ino)?.stat.kind);
        let at = self.change(dir)?;
        at.names.insert(name.to_vec(), ino);
        at.stat.mtime = now;
        at.stat.nlink += u32::from(kind == Kind::Dir);
        let node = self.change(ino)?;
        node.stat.nlink += u32::from(kind != Kind::Dir);
        Ok(())
    }

    fn slot(&self, slot: SlotId) -> Vec<u8> {
        self.slots.get(&slot.0).cloned().unwrap_or_default()
    }

    fn fill(&self, data: &mut [u8], extents: &[Extent]) {
        for extent in extents {
            let from = extent.offset as usize;
            let place = &mut data[from..from + extent.data.len() as usize];
            match &extent.data {
                Data::Inline(bytes) => place.copy_from_slice(bytes),
                Data::Slot { slot, at, len } => {
                    let at = *at as usize;
                    place.copy_from_slice(&self.slot(*slot)[at..at + *len as usize]);
                }
                Data::Hole { .. } => place.fill(0),
            }
        }
    }

    fn content(&mut self, ino: u64, content: &Content) -> Result<()> {
        let mut data = std::mem::take(&mut self.change(ino)?.data);
        match content {
            Content::Keep => {}
            Content::Patch { len, keep, extents } => {
                data.truncate(*keep as usize);
                data.resize(*len as usize, 0);
                self.fill(&mut data, extents);
            }
            Content::Whole { len, extents } => {
                data = vec![0; *len as usize];
                self.fill(&mut data, extents);
            }
            Content::Slot(slot) => data = self.slot(*slot),
        }
        let now = self.time();
        let node = self.change(ino)?;
        let size = data.len() as u64;
        (node.stat.size, node.stat.blocks) = (size, size.div_ceil(512));
        if *content != Content::Keep {
            node.stat.mtime = now;
        }
        node.data = data;
        Ok(())
    }

    fn attributes(&mut self, ino: u64, object: &Object) -> Result<()> {
        let node = self.change(ino)?;
        let (stat, attrs) = (&mut node.stat, &object.attrs);
        stat.mode = attrs.mode.unwrap_or(stat.mode);
        (stat.uid, stat.gid) = attrs.owner.unwrap_or((stat.uid, stat.gid));
        stat.atime = attrs.atime.unwrap_or(stat.atime);
        stat.mtime = attrs.mtime.unwrap_or(stat.mtime);
        for (key, value) in &object.xattrs {
            match value {
                Some(value) => drop(node.xattrs.insert(key.clone(), value.clone())),
                None => drop(node.xattrs.remove(key)),
            }
        }
        Ok(())
    }

    /// The number of an object of a write set; a new one is made.
    fn place(&mut self, object: &Object) -> Result<u64> {
        match &object.origin {
            Origin::Root => Ok(ROOT),
            Origin::Host { stamp, .. } => Ok(stamp.id().number()),
            // Nothing is ever brought back.
            Origin::Grave { .. } => Err(Errno::NOENT.into()),
            Origin::New(kind) => Ok(match kind {
                NewKind::File => self.make(Kind::File),
                NewKind::Dir => self.make(Kind::Dir),
                NewKind::Symlink(target) => {
                    let ino = self.make(Kind::Symlink);
                    let node = self.change(ino)?;
                    (node.stat.size, node.stat.mode) = (target.len() as u64, 0o777);
                    node.link.clone_from(target);
                    ino
                }
                NewKind::Special { kind, rdev } => {
                    let ino = self.make(*kind);
                    self.change(ino)?.stat.rdev = *rdev;
                    ino
                }
            }),
        }
    }

    fn install(&mut self, lsn: u64, txn: TxnId, set: &WriteSet) -> Result<ApplyReport> {
        let mut inos = Vec::with_capacity(set.objects.len());
        for object in &set.objects {
            inos.push(self.place(object)?);
        }
        for (object, ino) in set.objects.iter().zip(&inos) {
            if object.content != Content::Keep {
                self.content(*ino, &object.content)?;
            }
        }
        let of = |ix: systx_store::writeset::Ix| inos[ix.0 as usize];
        for bind in &set.binds {
            self.unname(of(bind.dir), &bind.name)?;
        }
        for bind in &set.binds {
            if let Some(target) = bind.target {
                self.name(of(bind.dir), &bind.name, of(target))?;
            }
        }
        // What names have moved of times is set last.
        for (object, ino) in set.objects.iter().zip(&inos) {
            if object.attrs != Default::default() || !object.xattrs.is_empty() {
                self.attributes(*ino, object)?;
            }
        }
        let stamp = |ino: &u64| self.nodes.get(ino).map(|node| node.stat.stamp());
        let (stamps, outside) = (inos.iter().map(stamp).collect(), Vec::new());
        Ok(ApplyReport { txn, lsn, stamps, outside })
    }
}

impl Memory {
    /// An empty one.
    pub fn new() -> Arc<Memory> {
        let mut world = World::default();
        assert_eq!(world.make(Kind::Dir), ROOT);
        world.nodes.get_mut(&ROOT).expect("just made").stat.mode = 0o755;
        let number = STORES.fetch_add(1, Ordering::Relaxed);
        Arc::new(Memory { number, world: Arc::new(Mutex::new(world)), orders: Arc::default() })
    }

    /// Commits and installs a write set by the way of every commit.
    pub fn write(&self, txn: TxnId, set: WriteSet) {
        let now = Time::default();
        let (argv, cwd, kind) = (Vec::new(), b"/".to_vec(), systx_store::TxnKind::Run);
        let (started, finished, told, order) = (now, now, None, None);
        let meta = CommitMeta { txn, kind, argv, cwd, uid: 0, started, finished, told, order };
        let this: &dyn Store = self;
        let done = this.commit(Reservation::default(), set, meta).expect("a commit");
        self.apply(done.lsn).expect("an installation");
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    fn look<T>(
        &self,
        at: &Handle,
        name: &[u8],
        look: impl FnOnce(&Node) -> Result<T>,
    ) -> Result<T> {
        let world = self.world();
        look(world.node(world.find(at, name)?)?)
    }

    fn open(&self, at: &Handle, name: &[u8], may: impl Fn(Kind) -> Result<()>) -> Result<Handle> {
        let world = self.world();
        let ino = world.find(at, name)?;
        may(world.node(ino)?.stat.kind)?;
        Ok(Handle::new(ino))
    }

    fn record(&self, ready: Ready, joint: Option<Joint>) -> u64 {
        let mut world = self.world();
        let lsn = world.next();
        let Ready { set, meta, .. } = ready;
        if let Some(step) = meta.order.as_ref().filter(|_| joint.is_none()) {
            self.orders.take(step, meta.finished);
        }
        let counts = joint.as_ref().is_none_or(Joint::decides);
        world.records.insert(lsn, Record { meta, set, joint, counts, report: None });
        lsn
    }
}

fn must(is: bool, errno: Errno) -> Result<()> {
    if is { Ok(()) } else { Err(errno.into()) }
}

impl Tree for Memory {
    fn root(&self) -> Handle {
        Handle::new(ROOT)
    }
    fn open_dir(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.open(at, name, |kind| must(kind == Kind::Dir, Errno::NOTDIR))
    }
    fn open_file(&self, at: &Handle, name: &[u8], _: Open) -> Result<Handle> {
        self.open(at, name, |kind| must(kind == Kind::File, Errno::INVAL))
    }
    fn pin(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.open(at, name, |_| Ok(()))
    }
    fn stat_at(&self, at: &Handle, name: &[u8]) -> Result<Stat> {
        self.look(at, name, |node| Ok(node.stat))
    }
    fn stat(&self, h: &Handle) -> Result<Stat> {
        self.stat_at(h, b"")
    }
    fn fixed(&self, at: &Handle, name: &[u8]) -> Result<Fixed> {
        self.look(at, name, |_| Ok(Fixed::No))
    }
    fn project(&self, at: &Handle, name: &[u8]) -> Result<Project> {
        self.look(at, name, |_| Ok(Project::default()))
    }
    fn list(&self, dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<()> {
        let node = self.look(dir, b"", |node| Ok(node.clone()))?;
        for (name, ino) in &node.names {
            let kind = Some(self.world().node(*ino)?.stat.kind);
            if !each(ListItem { name, ino: *ino, kind }) {
                break;
            }
        }
        Ok(())
    }
    fn path_of(&self, _: &Handle) -> Result<Vec<u8>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn read_link(&self, at: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        self.look(at, name, |node| {
            must(node.stat.kind == Kind::Symlink, Errno::INVAL).map(|()| node.link.clone())
        })
    }
    fn get_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<Vec<u8>> {
        let no = || Errno::NODATA.into();
        self.look(at, name, |node| node.xattrs.get(key).cloned().ok_or_else(no))
    }
    fn list_xattr(&self, at: &Handle, name: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.look(at, name, |node| Ok(node.xattrs.keys().cloned().collect()))
    }
    fn read_at(&self, h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.look(h, b"", |node| {
            let from = node.data.len().min(offset as usize);
            let len = buf.len().min(node.data.len() - from);
            buf[..len].copy_from_slice(&node.data[from..from + len]);
            Ok(len)
        })
    }
    fn next_data(&self, h: &Handle, offset: u64) -> Result<Option<(u64, u64)>> {
        self.look(h, b"", |node| Ok((offset < node.stat.size).then_some((offset, node.stat.size))))
    }
    fn fs_info(&self) -> Result<FsInfo> {
        let many = 1 << 40;
        let (class, namelen) = (Class::Memory, 255);
        let (blocks, bfree, bavail, files, ffree) = (many, many, many, many, many);
        let (magic, bsize) = (0x0102_1994, 4096);
        Ok(FsInfo { magic, class, bsize, blocks, bfree, bavail, files, ffree, namelen })
    }
    fn shares_files(&self) -> bool {
        false
    }
    fn longest_target(&self) -> usize {
        4095
    }
    fn now(&self) -> Time {
        self.world().time()
    }
}

/// A slot gives its bytes back when nobody has it and no record refers to it.
struct Held {
    id: u64,
    world: Arc<Mutex<World>>,
}

impl Held {
    fn change<T>(&self, change: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T> {
        let mut world = lock(&self.world);
        Ok(change(world.slots.get_mut(&self.id).ok_or(Errno::STALE)?))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut world = lock(&self.world);
        let waits = |record: &Record| record.report.is_none();
        if !world.records.values().any(waits) {
            world.slots.remove(&self.id);
        }
    }
}

impl Staging for Held {
    fn id(&self) -> SlotId {
        SlotId(self.id)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.change(|data| {
            let from = data.len().min(offset as usize);
            let len = buf.len().min(data.len() - from);
            buf[..len].copy_from_slice(&data[from..from + len]);
            len
        })
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.change(|data| {
            let end = offset as usize + bytes.len();
            data.resize(data.len().max(end), 0);
            data[offset as usize..end].copy_from_slice(bytes);
        })
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.change(|data| data.resize(len as usize, 0))
    }
    fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.change(|data| {
            let (from, to) = (offset as usize, (offset.saturating_add(len)) as usize);
            let end = data.len();
            data[from.min(end)..to.min(end)].fill(0);
        })
    }
}

impl Store for Memory {
    fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.orders)
    }
    fn class(&self) -> Class {
        Class::Memory
    }
    fn own_object(&self) -> Option<HostId> {
        None
    }
    fn known_as(&self) -> Option<u64> {
        (!self.is_unused()).then_some(self.number)
    }
    fn number(&self) -> std::result::Result<u64, CommitError> {
        Ok(self.number)
    }
    fn max_len(&self) -> u64 {
        i64::MAX as u64
    }
    fn times(&self) -> Result<Times> {
        Ok(Times::ALL)
    }
    fn stage(&self) -> Result<Slot> {
        let mut world = self.world();
        let id = world.next();
        world.slots.insert(id, Vec::new());
        Ok(Arc::new(Held { id, world: Arc::clone(&self.world) }))
    }
    fn adopt(&self, _: &dyn Staging) {}
    fn forget_for_content(&self, _: u64) -> bool {
        false
    }
    fn reserve(&self, set: &WriteSet) -> std::result::Result<Reservation, ReserveError> {
        set.check()?;
        Ok(Reservation::new((), Forgotten::default()))
    }
    fn disjoint(&self) -> Disjoint {
        let root = self.world().nodes[&ROOT].stat.id;
        Disjoint::below(root)
    }
    fn commit_group(
        &self,
        members: Vec<Ready>,
    ) -> Vec<std::result::Result<Committed, CommitError>> {
        let mut apart = self.disjoint();
        let commit = |ready: Ready| {
            ready.set.check()?;
            if !apart.add(&ready.set) {
                return Err(CommitError::Overlaps);
            }
            Ok(Committed { lsn: self.record(ready, None) })
        };
        members.into_iter().map(commit).collect()
    }
    fn apply(&self, lsn: u64) -> std::result::Result<ApplyReport, ApplyError> {
        let mut world = self.world();
        let record = world.records.get(&lsn).filter(|record| record.counts);
        let record = record.ok_or(ApplyError::Unknown(lsn))?;
        if let Some(report) = &record.report {
            return Ok(report.clone());
        }
        let (txn, set) = (record.meta.txn, record.set.clone());
        let failed = |source| ApplyError::Io { path: txn.to_string(), source };
        let report = world.install(lsn, txn, &set).map_err(failed)?;
        if let Some(record) = world.records.get_mut(&lsn) {
            record.report = Some(report.clone());
        }
        Ok(report)
    }
    fn late(&self) -> Vec<Late> {
        Vec::new()
    }
    fn checkpoint(&self) -> std::result::Result<(), CheckpointError> {
        Ok(())
    }
    fn has_let_go(&self, committed: Committed) -> bool {
        self.world().records.get(&committed.lsn).is_none_or(|record| record.report.is_some())
    }

    fn claim(&self, set: &WriteSet) -> std::result::Result<u64, CommitError> {
        let mut world = self.world();
        let claim = world.next();
        world.claims.insert(claim, set.clone());
        Ok(claim)
    }
    fn unclaim(&self, claim: u64) {
        self.world().claims.remove(&claim);
    }
    fn prepare(
        &self,
        claim: u64,
        ready: Ready,
        joint: Joint,
    ) -> std::result::Result<u64, CommitError> {
        self.unclaim(claim);
        Ok(self.record(ready, Some(joint)))
    }
    fn decided(&self, lsn: u64, committed: bool) {
        let mut world = self.world();
        match world.records.get_mut(&lsn).filter(|_| committed) {
            Some(record) => record.counts = true,
            None => drop(world.records.remove(&lsn)),
        }
    }
    fn in_doubt(&self, _: &str) {}
    fn stopped(&self) -> Option<String> {
        None
    }
    fn decisions(&self) -> Result<Vec<Decision>> {
        Ok(Vec::new())
    }
    fn forget_decision(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn history(&self) -> Result<Vec<HistoryEntry>> {
        let entry = |(lsn, record): (&u64, &Record)| HistoryEntry {
            meta: record.meta.clone(),
            lsn: *lsn,
            changes: systx_store::changes(&record.set),
            outside: 0,
            joint: record.joint.clone(),
            forgotten: true,
        };
        Ok(self.world().records.iter().filter(|(_, record)| record.counts).map(entry).collect())
    }
    fn has_history(&self, txn: TxnId) -> Result<bool> {
        Ok(self.world().records.values().any(|record| record.counts && record.meta.txn == txn))
    }
    fn undo_set(&self, txn: TxnId) -> std::result::Result<Undo, UndoError> {
        match self.has_history(txn) {
            Ok(true) => Err(UndoError::Forgotten(txn)),
            _ => Err(UndoError::Unknown(txn)),
        }
    }
    fn undo_part(&self, txn: TxnId, _: Wanted<'_>) -> std::result::Result<Undo, UndoError> {
        self.undo_set(txn)
    }
    fn look_back(&self, _: TxnId) -> Result<Option<Vec<Past>>> {
        Ok(None)
    }
    fn read_back(&self, _: &PastSide, _: usize) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
    fn would_gc(&self, _: Keep) -> Result<GcReport> {
        Ok(GcReport::default())
    }
    fn gc(&self, keep: Keep) -> Result<GcReport> {
        self.would_gc(keep)
    }
    fn usual_limits(&self) -> Result<Keep> {
        Ok(Keep::default())
    }
    fn bound_history(&self) -> Result<Option<GcReport>> {
        Ok(None)
    }

    fn is_at_rest(&self) -> bool {
        let world = self.world();
        world.claims.is_empty() && world.records.values().all(|record| record.report.is_some())
    }
    fn is_asked_for(&self) -> bool {
        false
    }
    fn is_unused(&self) -> bool {
        self.world().records.is_empty()
    }
    fn remove(&self) {}
}
