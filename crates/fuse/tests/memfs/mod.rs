//! A file system in memory behind [`Requests`], and [`Mount`], which mounts it for real. Slow and
//! plain on purpose: one lock, vectors for content. Names that begin with `gate` make operations on
//! them wait, `panic` makes them panic, so that tests can hold requests; answers about names that
//! begin with `brief` are good for no time.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use systx_base::{Kind, NodeId, Time};
use systx_vfs::api::*;

/// Keeps a senseless offset from taking all memory.
const SIZE_MAX: u64 = 64 << 20;

pub struct Memfs {
    state: Mutex<State>,
    pub gate: Gate,
    /// The next question for attributes passes the gate after it was looked what to answer.
    pub slow: AtomicBool,
    /// Lookups handed out minus those taken back, over all nodes but the root.
    pub lookups: AtomicU64,
    /// What the next question for a worn listing is answered with.
    pub worn: Mutex<Option<NodeId>>,
    /// Whether it says that it waits; behind the lock that comes first of all, so it must be asked
    /// with none held.
    pub waiting: systx_base::sync::Mutex<bool>,
}

/// Holds those who pass it while it is closed.
#[derive(Default)]
pub struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }
    pub fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            state = self.changed.wait(state).unwrap();
        }
        state.1 -= 1;
    }
    /// Waits until `n` requests are held.
    pub fn wait_held(&self, n: usize) {
        let mut state = self.state.lock().unwrap();
        while state.1 < n {
            state = self.changed.wait(state).unwrap();
        }
    }
}

struct State {
    nodes: HashMap<u64, Node>,
    next: u64,
    locks: Vec<(u64, Lock)>,
}

#[derive(Clone)]
struct Node {
    attr: Attr,
    data: Vec<u8>,
    /// Name to (node, cookie).
    names: BTreeMap<Vec<u8>, (u64, u64)>,
    cookie: u64,
    parent: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
}

fn now() -> Time {
    let d = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time { secs: d.as_secs() as i64, nanos: d.subsec_nanos() }
}

fn node(ino: u64, kind: Kind, mode: u32, caller: Caller) -> Node {
    let t = now();
    Node {
        attr: Attr {
            ino,
            kind,
            mode,
            nlink: if kind == Kind::Dir { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: t,
            mtime: t,
            ctime: t,
        },
        data: Vec::new(),
        names: BTreeMap::new(),
        cookie: 2,
        parent: ino,
        xattrs: BTreeMap::new(),
        lookups: 0,
    }
}

impl State {
    fn get(&mut self, id: NodeId) -> Reply<&mut Node> {
        self.nodes.get_mut(&id.0).ok_or(Errno::STALE)
    }
    fn find(&mut self, parent: NodeId, name: &[u8]) -> Reply<Option<u64>> {
        Ok(self.get(parent)?.names.get(name).map(|(id, _)| *id))
    }
    fn bind(&mut self, parent: NodeId, name: &[u8], id: u64) -> Reply<()> {
        let dir = self.get(parent)?;
        dir.cookie += 1;
        let cookie = dir.cookie;
        dir.names.insert(name.to_vec(), (id, cookie));
        dir.attr.mtime = now();
        dir.attr.ctime = dir.attr.mtime;
        Ok(())
    }
    fn add(&mut self, parent: NodeId, name: &[u8], mut node: Node) -> Reply<u64> {
        if self.find(parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.next += 1;
        let id = self.next;
        node.attr.ino = id;
        node.parent = parent.0;
        if node.attr.kind == Kind::Dir {
            self.get(parent)?.attr.nlink += 1;
        }
        self.nodes.insert(id, node);
        self.bind(parent, name, id)?;
        Ok(id)
    }
    fn unbind(&mut self, parent: NodeId, name: &[u8]) -> Reply<()> {
        let dir = self.get(parent)?;
        let (id, _) = dir.names.remove(name).ok_or(Errno::NOENT)?;
        dir.attr.mtime = now();
        dir.attr.ctime = dir.attr.mtime;
        let child = self.get(NodeId(id))?;
        child.attr.ctime = now();
        if child.attr.kind == Kind::Dir {
            child.attr.nlink = 0;
            self.get(parent)?.attr.nlink -= 1;
        } else {
            child.attr.nlink -= 1;
        }
        self.collect(id);
        Ok(())
    }
    fn collect(&mut self, id: u64) {
        if self.nodes.get(&id).is_some_and(|n| n.attr.nlink == 0 && n.lookups == 0) {
            self.nodes.remove(&id);
        }
    }
    fn dir_empty(&mut self, id: u64) -> Reply<()> {
        if self.get(NodeId(id))?.names.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }
}

impl Default for Memfs {
    fn default() -> Self {
        let root = Caller { uid: 0, gid: 0, tid: 0 };
        let nodes = HashMap::from([(1, node(1, Kind::Dir, 0o755, root))]);
        Memfs {
            state: Mutex::new(State { nodes, next: 1, locks: Vec::new() }),
            gate: Gate::default(),
            slow: AtomicBool::new(false),
            lookups: AtomicU64::new(0),
            worn: Mutex::default(),
            waiting: systx_base::sync::Mutex::new(systx_base::sync::rank::GUARDS, false),
        }
    }
}

impl Memfs {
    fn hand_out(&self, state: &mut State, id: u64) -> Reply<Entry> {
        let node = state.get(NodeId(id))?;
        node.lookups += 1;
        self.lookups.fetch_add(1, Ordering::SeqCst);
        Ok(Entry { node: NodeId(id), generation: 0, attr: node.attr })
    }
    fn make(&self, parent: NodeId, name: &[u8], node: Node) -> Reply<Entry> {
        let mut s = self.state.lock().unwrap();
        let id = s.add(parent, name, node)?;
        self.hand_out(&mut s, id)
    }
    fn hooks(&self, name: &[u8]) {
        if name.starts_with(b"gate") {
            self.gate.pass();
        }
        assert!(!name.starts_with(b"panic"), "as the test asked");
    }
    pub fn nodes(&self) -> usize {
        self.state.lock().unwrap().nodes.len()
    }
    /// As a process outside the view would.
    pub fn lock_outside(&self, node: u64, lock: Lock) -> Reply<()> {
        self.setlk(NodeId(node), lock)
    }
}

fn masked(new: NewAttr) -> u32 {
    new.mode & !new.umask
}

impl Requests for Memfs {
    fn serve(&self, c: Caller, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        Ok(match request {
            R::Lookup { parent, name } => self.lookup(c, parent, name)?.into(),
            R::Getattr { node } => self.slow_getattr(node)?.into(),
            R::Born { .. } => Answer::Born(None),
            R::Setattr { node, set } => self.setattr(c, node, set)?.into(),
            R::Readlink { node } => self.readlink(node)?.into(),
            R::Mknod { parent, name, kind, new, rdev } => {
                self.mknod(c, parent, name, kind, new, rdev)?.into()
            }
            R::Mkdir { parent, name, new } => self.mkdir(c, parent, name, new)?.into(),
            R::Symlink { parent, name, target } => self.symlink(c, parent, name, target)?.into(),
            R::Link { node, parent, name } => self.link(c, node, parent, name)?.into(),
            R::Unlink { parent, name } => self.unlink(c, parent, name)?.into(),
            R::Rmdir { parent, name } => self.rmdir(c, parent, name)?.into(),
            R::Rename { from, to, how } => self.rename(c, from, to, how)?.into(),
            R::Create { parent, name, new, exclusive } => {
                self.create(c, parent, name, new, exclusive)?.into()
            }
            R::Tmpfile { parent, new } => self.tmpfile(c, parent, new)?.into(),
            R::Read { node, offset, buf } => self.read(node, offset, buf)?.into(),
            R::Write { node, offset, data, kill_suidgid } => {
                self.write(node, offset, data, kill_suidgid)?.into()
            }
            R::Append { node, offset, data, kill_suidgid } => {
                (self.write(node, offset, data, kill_suidgid)?, false).into()
            }
            R::WriteBack { node, offset, data } => self.write_back(node, offset, data)?.into(),
            R::Fallocate { node, how, offset, len } => {
                self.fallocate(node, how, offset, len)?.into()
            }
            R::Lseek { node, offset, how } => self.lseek(node, offset, how)?.into(),
            R::Copy { from, to, len } => self.copy_file_range(from, to, len)?.into(),
            R::Readdir { node, from, attributes, sink } => {
                self.readdir(node, from, attributes, sink)?.into()
            }
            R::Getxattr { node, key } => self.getxattr(node, key)?.into(),
            R::Listxattr { node } => self.listxattr(node)?.into(),
            R::Setxattr { node, key, value, how, kill_sgid } => {
                self.setxattr(c, node, key, value, how, kill_sgid)?.into()
            }
            R::Removexattr { node, key } => self.removexattr(c, node, key)?.into(),
            R::Statfs => self.statfs()?.into(),
            R::Getlk { node, lock } => self.getlk(node, lock)?.into(),
            R::Setlk { node, lock } | R::Setlkw { node, lock, .. } => {
                self.setlk(node, lock)?.into()
            }
            R::InodeFlags { node } => self.inode_flags(node)?.into(),
            R::Control { .. } => return Err(Errno::NOTTY),
            R::Open { .. } | R::Fsync { .. } => return Err(Errno::NOSYS),
        })
    }
    fn release(&self, _: NodeId, _: u8) {}
    fn worn_listing(&self, _file: NodeId) -> Option<NodeId> {
        self.worn.lock().unwrap().take()
    }
    fn waits(&self) -> bool {
        *self.waiting.lock()
    }
    fn root(&self) -> Reply<Entry> {
        let attr = self.state.lock().unwrap().get(NodeId::ROOT)?.attr;
        Ok(Entry { node: NodeId::ROOT, generation: 0, attr })
    }
    fn forget(&self, id: NodeId, count: u64) {
        let mut s = self.state.lock().unwrap();
        self.lookups.fetch_sub(count, Ordering::SeqCst);
        let node = s.get(id).unwrap();
        node.lookups = node.lookups.checked_sub(count).expect("more forgets than lookups");
        s.collect(id.0);
    }
    fn valid(&self, _: NodeId, name: Option<&[u8]>) -> Valid {
        let brief = name.is_some_and(|n| n.starts_with(b"brief"));
        let limit = brief.then_some(std::time::Duration::ZERO);
        Valid { name: limit, attr: limit, dir_attr: None }
    }
}

impl Memfs {
    fn lookup(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<Option<Entry>> {
        self.hooks(name);
        let mut s = self.state.lock().unwrap();
        match s.find(parent, name)? {
            Some(id) => self.hand_out(&mut s, id).map(Some),
            None => Ok(None),
        }
    }
    fn slow_getattr(&self, id: NodeId) -> Reply<Attr> {
        let attr = self.getattr(id);
        if self.slow.swap(false, Ordering::SeqCst) {
            self.gate.pass();
        }
        attr
    }
    fn getattr(&self, id: NodeId) -> Reply<Attr> {
        Ok(self.state.lock().unwrap().get(id)?.attr)
    }
    fn setattr(&self, _: Caller, id: NodeId, set: SetAttr) -> Reply<Attr> {
        let mut s = self.state.lock().unwrap();
        let n = s.get(id)?;
        let stamp = |t| match t {
            SetTime::Now => now(),
            SetTime::To(t) => t,
        };
        n.attr.mode = set.mode.unwrap_or(n.attr.mode);
        n.attr.uid = set.uid.unwrap_or(n.attr.uid);
        n.attr.gid = set.gid.unwrap_or(n.attr.gid);
        n.attr.atime = set.atime.map_or(n.attr.atime, stamp);
        n.attr.mtime = set.mtime.map_or(n.attr.mtime, stamp);
        if let Some(size) = set.size {
            if size > SIZE_MAX {
                return Err(Errno::FBIG);
            }
            n.data.resize(size as usize, 0);
            n.attr.size = size;
            n.attr.mtime = now();
        }
        n.attr.ctime = now();
        Ok(n.attr)
    }
    fn readlink(&self, id: NodeId) -> Reply<Vec<u8>> {
        Ok(self.state.lock().unwrap().get(id)?.data.clone())
    }
    fn mknod(
        &self,
        c: Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        new: NewAttr,
        rdev: u64,
    ) -> Reply<Entry> {
        let mut n = node(0, kind, masked(new), c);
        n.attr.rdev = rdev;
        self.make(parent, name, n)
    }
    fn mkdir(&self, c: Caller, parent: NodeId, name: &[u8], new: NewAttr) -> Reply<Entry> {
        self.hooks(name);
        self.make(parent, name, node(0, Kind::Dir, masked(new), c))
    }
    fn symlink(&self, c: Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Reply<Entry> {
        let mut n = node(0, Kind::Symlink, 0o777, c);
        n.attr.size = target.len() as u64;
        n.data = target.to_vec();
        self.make(parent, name, n)
    }
    fn link(&self, _: Caller, id: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        let mut s = self.state.lock().unwrap();
        if s.find(parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        s.get(id)?.attr.nlink += 1;
        s.bind(parent, name, id.0)?;
        self.hand_out(&mut s, id.0)
    }
    fn unlink(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.state.lock().unwrap().unbind(parent, name)
    }
    fn rmdir(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        let mut s = self.state.lock().unwrap();
        let id = s.find(parent, name)?.ok_or(Errno::NOENT)?;
        s.dir_empty(id)?;
        s.unbind(parent, name)
    }
    fn rename(
        &self,
        _: Caller,
        (from, name): (NodeId, &[u8]),
        (to, to_name): (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()> {
        let mut s = self.state.lock().unwrap();
        let id = s.find(from, name)?.ok_or(Errno::NOENT)?;
        let target = s.find(to, to_name)?;
        match (how, target) {
            (RenameHow::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameHow::Whiteout | RenameHow::WhiteoutNoReplace, _) => return Err(Errno::INVAL),
            (RenameHow::Exchange, None) => return Err(Errno::NOENT),
            (RenameHow::Exchange, Some(other)) => {
                s.bind(from, name, other)?;
                return s.bind(to, to_name, id);
            }
            (_, Some(other)) if other == id => return Ok(()),
            (_, Some(other)) => {
                s.dir_empty(other)?;
                s.unbind(to, to_name)?;
            }
            (_, None) => {}
        }
        s.get(from)?.names.remove(name);
        s.get(NodeId(id))?.parent = to.0;
        if s.get(NodeId(id))?.attr.kind == Kind::Dir {
            s.get(from)?.attr.nlink -= 1;
            s.get(to)?.attr.nlink += 1;
        }
        s.bind(to, to_name, id)
    }
    fn create(
        &self,
        c: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewAttr,
        exclusive: bool,
    ) -> Reply<Entry> {
        let mut s = self.state.lock().unwrap();
        let id = match s.find(parent, name)? {
            Some(_) if exclusive => return Err(Errno::EXIST),
            Some(id) => id,
            None => s.add(parent, name, node(0, Kind::File, masked(new), c))?,
        };
        self.hand_out(&mut s, id)
    }
    fn tmpfile(&self, c: Caller, _: NodeId, new: NewAttr) -> Reply<Entry> {
        let mut s = self.state.lock().unwrap();
        s.next += 1;
        let id = s.next;
        let mut n = node(id, Kind::File, masked(new), c);
        n.attr.nlink = 0;
        s.nodes.insert(id, n);
        self.hand_out(&mut s, id)
    }
    fn read(&self, id: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        let mut s = self.state.lock().unwrap();
        let data = &s.get(id)?.data;
        let from = data.get(offset as usize..).unwrap_or(&[]);
        let n = from.len().min(buf.len());
        buf[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }
    fn write_back(&self, id: NodeId, offset: u64, data: &[u8]) -> Reply<()> {
        let end = self.getattr(id)?.size.saturating_sub(offset);
        let len = data.len().min(usize::try_from(end).unwrap_or(usize::MAX));
        self.write(id, offset, &data[..len], false).map(drop)
    }
    fn write(&self, id: NodeId, offset: u64, data: &[u8], _: bool) -> Reply<usize> {
        let mut s = self.state.lock().unwrap();
        let n = s.get(id)?;
        if offset + data.len() as u64 > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let end = offset as usize + data.len();
        if n.data.len() < end {
            n.data.resize(end, 0);
        }
        n.data[offset as usize..end].copy_from_slice(data);
        n.attr.size = n.data.len() as u64;
        n.attr.blocks = n.attr.size.div_ceil(512);
        n.attr.mtime = now();
        n.attr.ctime = n.attr.mtime;
        Ok(data.len())
    }
    fn fallocate(&self, id: NodeId, how: Fallocate, offset: u64, len: u64) -> Reply<()> {
        let mut s = self.state.lock().unwrap();
        let n = s.get(id)?;
        if offset + len > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let end = (offset + len) as usize;
        match how {
            Fallocate::Allocate if n.data.len() < end => n.data.resize(end, 0),
            Fallocate::Allocate | Fallocate::KeepSize => {}
            Fallocate::PunchHole => {
                let end = end.min(n.data.len());
                n.data[(offset as usize).min(end)..end].fill(0);
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        n.attr.size = n.data.len() as u64;
        Ok(())
    }
    fn lseek(&self, id: NodeId, offset: u64, how: Seek) -> Reply<u64> {
        let mut s = self.state.lock().unwrap();
        let data = &s.get(id)?.data;
        if offset >= data.len() as u64 {
            return Err(Errno::NXIO);
        }
        // A page of zeros is a hole.
        let first = offset as usize / 4096;
        let is_hole = |page: &[u8]| page.iter().all(|b| *b == 0);
        let mut pages = data.chunks(4096).enumerate().skip(first);
        let found = pages.find(|(_, page)| is_hole(page) == (how == Seek::Hole));
        match (how, found) {
            (Seek::Data, None) => Err(Errno::NXIO),
            (Seek::Hole, None) => Ok(data.len() as u64),
            (_, Some((at, _))) => Ok(offset.max(at as u64 * 4096)),
        }
    }
    fn copy_file_range(&self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Reply<u64> {
        let mut buf = vec![0; len.min(1 << 20) as usize];
        let n = self.read(from.0, from.1, &mut buf)?;
        Ok(self.write(to.0, to.1, &buf[..n], false)? as u64)
    }
    fn readdir(&self, id: NodeId, from: u64, attributes: bool, sink: &mut Sink<'_>) -> Reply<()> {
        let mut s = self.state.lock().unwrap();
        let dir = s.get(id)?.clone();
        let mut all: Vec<(Vec<u8>, u64, u64)> =
            vec![(b".".to_vec(), id.0, 1), (b"..".to_vec(), dir.parent, 2)];
        let mut names: Vec<_> = dir.names.into_iter().map(|(n, (i, c))| (n, i, c)).collect();
        names.sort_by_key(|n| n.2);
        all.extend(names);
        for (name, ino, next) in all.into_iter().filter(|e| e.2 > from) {
            if name.starts_with(b"unlisted") {
                return Err(Errno::CANCELED);
            }
            let child = s.get(NodeId(ino))?.attr;
            let dots = name == b"." || name == b"..";
            let entry = (attributes && !dots).then_some(Entry {
                node: NodeId(ino),
                generation: 0,
                attr: child,
            });
            if !sink(DirEntry { name: &name, ino, kind: child.kind, next, entry }) {
                break;
            }
            if entry.is_some() {
                self.hand_out(&mut s, ino)?;
            }
        }
        Ok(())
    }
    fn getxattr(&self, id: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        let mut s = self.state.lock().unwrap();
        s.get(id)?.xattrs.get(key).cloned().ok_or(Errno::NODATA)
    }
    fn listxattr(&self, id: NodeId) -> Reply<Vec<u8>> {
        let mut s = self.state.lock().unwrap();
        Ok(s.get(id)?.xattrs.keys().flat_map(|k| [k.as_slice(), b"\0"].concat()).collect())
    }
    fn setxattr(
        &self,
        _: Caller,
        id: NodeId,
        key: &[u8],
        value: &[u8],
        how: SetXattr,
        _: bool,
    ) -> Reply<()> {
        let mut s = self.state.lock().unwrap();
        let xattrs = &mut s.get(id)?.xattrs;
        match (how, xattrs.contains_key(key)) {
            (SetXattr::Create, true) => Err(Errno::EXIST),
            (SetXattr::Replace, false) => Err(Errno::NODATA),
            _ => {
                xattrs.insert(key.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }
    fn removexattr(&self, _: Caller, id: NodeId, key: &[u8]) -> Reply<()> {
        let mut s = self.state.lock().unwrap();
        s.get(id)?.xattrs.remove(key).map(|_| ()).ok_or(Errno::NODATA)
    }
    fn statfs(&self) -> Reply<StatFs> {
        Ok(StatFs {
            blocks: 1 << 20,
            bfree: 1 << 19,
            bsize: 4096,
            namelen: 255,
            frsize: 4096,
            ..Default::default()
        })
    }
    fn getlk(&self, id: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        let s = self.state.lock().unwrap();
        Ok(s.locks.iter().find(|(n, l)| *n == id.0 && conflict(l, &lock)).map(|(_, l)| *l))
    }
    /// Only whole locks: a range must be unlocked as it was locked, or by a range around it.
    fn setlk(&self, id: NodeId, lock: Lock) -> Reply<()> {
        let mut s = self.state.lock().unwrap();
        if lock.kind != LockKind::Unlock
            && s.locks.iter().any(|(n, l)| *n == id.0 && conflict(l, &lock))
        {
            return Err(Errno::AGAIN);
        }
        s.locks.retain(|(n, l)| {
            !(*n == id.0
                && l.owner == lock.owner
                && l.flock == lock.flock
                && lock.start <= l.start
                && l.end <= lock.end)
        });
        if lock.kind != LockKind::Unlock {
            s.locks.push((id.0, lock));
        }
        Ok(())
    }
    fn inode_flags(&self, id: NodeId) -> Reply<u32> {
        self.getattr(id).map(|_| 0x10) // FS_IMMUTABLE_FL
    }
}

fn conflict(a: &Lock, b: &Lock) -> bool {
    let exclusive = a.kind == LockKind::Exclusive || b.kind == LockKind::Exclusive;
    a.flock == b.flock && a.owner != b.owner && exclusive && a.start <= b.end && b.start <= a.end
}

/// A mounted memfs; unmounted at the end, also of a failing test.
pub struct Mount {
    pub dir: PathBuf,
    pub fs: Arc<Memfs>,
    pub connection: Option<systx_fuse::Connection>,
    /// Dropped at the end; see [`watch`].
    _alive: std::sync::mpsc::Sender<()>,
}

/// A process that waits for a file system that it serves itself cannot even be killed.  So a test
/// that hangs loses its mount after a while, and fails.
fn watch(dir: PathBuf) -> std::sync::mpsc::Sender<()> {
    let (alive, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let limit = std::time::Duration::from_secs(300);
        if ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{}: the test hangs, its mount is aborted", dir.display());
            let _ = rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::FORCE);
        }
    });
    alive
}

/// Why nothing can be mounted here.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .err()
        .map(|e| format!("/dev/fuse: {e}"))
}

static COUNT: AtomicU64 = AtomicU64::new(0);

impl Mount {
    pub fn new(config: systx_fuse::Config) -> std::io::Result<Mount> {
        Mount::with(Arc::new(Memfs::default()), config)
    }

    pub fn with(fs: Arc<Memfs>, config: systx_fuse::Config) -> std::io::Result<Mount> {
        Mount::served(fs, |dev, fs| systx_fuse::serve(dev, fs, config))
    }

    /// Mounts, and has `serve` serve it.
    pub fn served(
        fs: Arc<Memfs>,
        serve: impl FnOnce(OwnedFd, Arc<Memfs>) -> std::io::Result<systx_fuse::Connection>,
    ) -> std::io::Result<Mount> {
        let n = COUNT.fetch_add(1, Ordering::SeqCst);
        let dir = std::env::temp_dir().join(format!("systx-memfs-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let dev = mount(&dir)?;
        let alive = watch(dir.clone());
        let mut mounted = Mount { dir, fs, connection: None, _alive: alive };
        mounted.connection = Some(serve(dev, mounted.fs.clone())?);
        Ok(mounted)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn connection(&self) -> &systx_fuse::Connection {
        self.connection.as_ref().unwrap()
    }
}

/// Mounts a new connection and returns its descriptor.
pub fn mount(dir: &Path) -> std::io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    use rustix::mount::{MountFlags, mount};
    use std::os::fd::AsRawFd;
    let dev = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        dev.as_raw_fd()
    );
    let options = std::ffi::CString::new(options)?;
    mount("memfs", dir, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?;
    Ok(dev)
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.fs.gate.open();
        let flags = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(&self.dir, flags);
        self.connection = None;
        let _ = std::fs::remove_dir(&self.dir);
    }
}
