//! Alias roots: in the mount of a guarded directory, further roots under hidden names, by which threads
//! see their transactions.  Everything is in one superblock, so `(st_dev, st_ino)` are the true ones in all
//! of them.
//!
//! - A *seat* is one alias root, for one thread.  It shows the transaction that is attached to it, and
//!   answers `ECANCELED` while none is.
//! - Each transaction has a *tag* of its own, which its node numbers carry in their upper half; the seat's
//!   root alone keeps its number.  So the kernel's inodes, with their pages, attributes and listings, belong
//!   to one transaction and are never seen by the next one.  All that is shared from one to the next is the
//!   root's own attributes, the names in it and its listing: who ends a transaction has the kernel forget
//!   them ([`Left::names`]).  A listing of the root gives the kernel no names.
//! - When a transaction has ended, its nodes are served until the kernel has forgotten them: what stays open
//!   over a commit is the committed file (`retired.rs`).
//!
//! View 0 has the numbers without tag.
//!
//! **Routing** (decision 0017): in a mount of which [`Aliases::routed`] was asked, a transaction has no root of its own.
//! Requests of its thread about *directories* without tag go to it, and the names that it is told of there have its tag.
//! So the kernel may believe nothing about these directories that another thread was told: no name, no listing, none
//! of their attributes.  Below them tagged nodes belong to one transaction, as ever.  A directory without tag is one inode
//! for all of them, whose owner and mode the kernel checks: they are those of view 0 for everybody, and can be
//! changed by its path from above only, in a directory.
//!
//! **Lock order**: the table and the routes are leaves; nothing is called under them.

mod member;
mod routes;
mod seats;
mod special;

pub use routes::Rider;
pub use seats::{Left, Tag};

use crate::acl;
use crate::api::*;
use crate::client;
use crate::locks::Wait;
use crate::plain::{Plain, is_special};
use member::Member;
use routes::Routes;
use rustix::io::Errno;
use seats::{Over, Table};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, NodeId};

/// How names of alias roots begin; the rest is the seat's number.
const HIDDEN: &[u8] = b".systx\x01seat-";

/// Set in the numbers of all nodes but those of view 0.
const TAGGED: u64 = 1 << 63;
/// Tags end here: the numbers above are used by the layer that speaks to the kernel.
const TAGS: u32 = 0x7fff_ff00;
/// The file of a seat by which it is controlled: opens of directories make no messages in this mount, those
/// of files do.
const CONTROL: NodeId = NodeId(2);
/// What the name of that file has more.
const CONTROL_SUFFIX: &str = ".control";

/// The handle of an open directory, which nobody asks for.
const DIRECTORY: u8 = u8::MAX;

/// The tag of a node, 0 for view 0, and its number in its view.
fn split(id: NodeId) -> (u32, NodeId) {
    match id.0 & TAGGED {
        0 => (0, id),
        _ => (((id.0 & !TAGGED) >> 32) as u32, NodeId(id.0 & 0xffff_ffff)),
    }
}

fn joined(tag: u32, node: NodeId) -> Reply<NodeId> {
    // No view meets that many objects.
    if node.0 >> 32 != 0 {
        return Err(Errno::NOMEM);
    }
    Ok(NodeId(TAGGED | u64::from(tag) << 32 | node.0))
}

/// An alias root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat(u32);

impl Seat {
    /// As the kernel knows it.
    pub fn node(self) -> NodeId {
        NodeId(TAGGED | u64::from(self.0) << 32 | NodeId::ROOT.0)
    }

    /// The file by which it is controlled, as the kernel knows it.
    fn control(self) -> NodeId {
        NodeId(TAGGED | u64::from(self.0) << 32 | CONTROL.0)
    }

    /// Its name in the root of the mount.  That of its control file ends in `.control`.
    pub fn name(self) -> Vec<u8> {
        [HIDDEN, self.0.to_string().as_bytes()].concat()
    }
}

/// Who begins and ends the transactions of threads.
pub trait Control: Send + Sync {
    /// An ioctl, on an alias root or on something of view 0.
    ///
    /// # Errors
    /// Those of the ioctl; `ENOTTY` if it is none of theirs.
    fn control(&self, caller: Caller, seat: Option<Seat>, cmd: u32, arg: &[u8]) -> Reply<Vec<u8>>;
    /// Another thread than the seat's asks for something in the transaction that is attached; once for each.
    fn met(&self, seat: Seat, tid: u32);
    /// The last control descriptor of a seat is closed.
    fn vacated(&self, seat: Seat);
    /// This thread closes one of them.
    fn closes(&self, seat: Seat, tid: u32);
    /// Whether a thread is in a transaction of this directory, by a root of its own.
    fn is_inside(&self, tid: u32) -> bool;
}

/// View 0 with alias roots.  See the module.
pub struct Aliases {
    plain: Arc<Plain>,
    table: Mutex<Table>,
    control: OnceLock<Arc<dyn Control>>,
    /// Of a mount that routes by thread number.
    routes: Option<Routes>,
}

/// Whose a node is.
enum At {
    Zero(NodeId),
    In(Arc<Member>, NodeId),
    /// An alias root to which nothing is attached.
    Idle,
    /// The control file of a seat.
    Control(Seat),
}

impl Aliases {
    /// View 0, without seats.
    pub fn new(plain: Arc<Plain>) -> Aliases {
        let table = Mutex::new(rank::LEAF, Table::default());
        Aliases { plain, table, control: OnceLock::new(), routes: None }
    }

    /// The same, where transactions are seen by routing.
    pub fn routed(plain: Arc<Plain>) -> Aliases {
        Aliases { routes: Some(Routes::new()), ..Aliases::new(plain) }
    }

    /// Whether they are.
    pub fn routes(&self) -> bool {
        self.routes.is_some()
    }

    /// Who answers the ioctls; the first call counts.
    pub fn set_control(&self, control: Arc<dyn Control>) {
        let _ = self.control.set(control);
    }

    fn at(&self, id: NodeId) -> Reply<At> {
        let (tag, node) = split(id);
        if tag == 0 {
            return self.route(id);
        }
        let mut table = self.table.lock();
        if node == CONTROL && table.seats.contains_key(&tag) {
            return Ok(At::Control(Seat(tag)));
        }
        if node != NodeId::ROOT {
            let member = table.members.get(&tag).map(Arc::clone).ok_or(Errno::STALE)?;
            drop(table);
            self.meet(&member);
            return Ok(At::In(member, node));
        }
        // Who was left behind in a seat that is gone finds what it would find in an empty one.
        let chair = table.seats.get_mut(&tag);
        let Some((chair, member)) = chair.and_then(|c| c.now.clone().map(|now| (c, now))) else {
            return Ok(At::Idle);
        };
        chair.known = true;
        drop(table);
        self.meet(&member);
        let root = member.root()?;
        Ok(At::In(member, root))
    }

    /// Whose a node without tag is for the thread that asks.
    fn route(&self, id: NodeId) -> Reply<At> {
        match self.routes.as_ref().map(Routes::find) {
            None | Some(Ok(None)) => Ok(At::Zero(id)),
            Some(_) if !self.plain.is_dir(id) => Ok(At::Zero(id)),
            Some(Ok(Some(member))) => {
                let node = member.place_of(id, &self.plain)?;
                Ok(At::In(member, node))
            }
            Some(Err(errno)) => Err(errno),
        }
    }

    /// The same for what is looked at before anything is done in a directory: who has not been told of the end of its
    /// transaction has to be able to ask.
    fn at_or_plain(&self, id: NodeId) -> Reply<At> {
        match self.at(id) {
            Err(Errno::NOTCONN) => Ok(At::Zero(id)),
            at => at,
        }
    }

    /// A directory that several transactions share.
    fn is_shared(&self, id: NodeId) -> bool {
        self.routes.is_some() && split(id).0 == 0
    }

    /// Tells of who takes part in a transaction beside its own thread.
    fn meet(&self, member: &Member) {
        let tid = client::thread();
        if tid == 0 || tid == member.tid || member.ended.load(SeqCst) {
            return;
        }
        if member.others.lock().insert(tid)
            && let Some(control) = self.control.get()
        {
            control.met(member.seat, tid);
        }
    }

    /// A request about one node, which answers with no other.
    fn about<T>(
        &self,
        id: NodeId,
        ask: impl FnOnce(&dyn Requests, NodeId) -> Reply<T>,
    ) -> Reply<T> {
        match self.at(id)? {
            At::Zero(node) => ask(&*self.plain, node),
            At::In(member, node) => ask(&*member.lasting, node),
            At::Idle | At::Control(_) => Err(Errno::CANCELED),
        }
    }

    /// A request about two nodes, which have to belong together.
    fn both<T>(
        &self,
        (one, two): (NodeId, NodeId),
        ask: impl FnOnce(&dyn Requests, NodeId, NodeId) -> Reply<T>,
    ) -> Reply<T> {
        match (self.at(one)?, self.at(two)?) {
            (At::Zero(one), At::Zero(two)) => ask(&*self.plain, one, two),
            (At::In(a, one), At::In(b, two)) if Arc::ptr_eq(&a, &b) => ask(&*a.lasting, one, two),
            _ => Err(Errno::XDEV),
        }
    }

    /// A request about a name, which answers with the node that has it.
    fn named(
        &self,
        dir: NodeId,
        name: &[u8],
        ask: impl FnOnce(&dyn Requests, NodeId) -> Reply<Option<Entry>>,
    ) -> Reply<Option<Entry>> {
        match self.at(dir)? {
            At::Zero(NodeId::ROOT) if name.starts_with(HIDDEN) => Err(Errno::PERM),
            At::Zero(node) => ask(&*self.plain, node),
            At::In(member, node) => {
                self.note(&member, dir, name);
                let told = ask(&*member.lasting, node)?.map(|entry| self.told(&member, entry));
                let told = told.transpose()?;
                let loose = |entry: &Entry| self.is_shared(dir) && split(entry.node).0 != 0;
                if let Some(entry) = told.filter(loose) {
                    member.loose.lock().insert(entry.node);
                }
                Ok(told)
            }
            At::Idle | At::Control(_) => Err(Errno::CANCELED),
        }
    }

    fn made(
        &self,
        dir: NodeId,
        name: &[u8],
        ask: impl FnOnce(&dyn Requests, NodeId) -> Reply<Entry>,
    ) -> Reply<Entry> {
        self.named(dir, name, |view, dir| ask(view, dir).map(Some))?.ok_or(Errno::IO)
    }

    /// The kernel is going to know this name.
    fn note(&self, member: &Member, dir: NodeId, name: &[u8]) {
        if dir == member.seat.node() {
            let mut names = member.names.lock();
            if !names.contains(name) {
                names.insert(name.into());
            }
        }
    }

    /// What everybody's rights in a shared directory rest on is not changed by a transaction.
    fn check_shared(&self, node: NodeId, key: &[u8]) -> Reply<()> {
        let shared = is_acl(key) && self.is_shared(node) && matches!(self.at(node)?, At::In(..));
        if shared { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }

    /// The alias root of a hidden name, for the thread that it was made for.
    fn find_seat(&self, caller: Caller, name: &[u8]) -> Reply<Option<Entry>> {
        let rest = name.get(HIDDEN.len()..).unwrap_or_default();
        let text = std::str::from_utf8(rest).unwrap_or_default();
        let (digits, control) = match text.strip_suffix(CONTROL_SUFFIX) {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        let number = digits.parse().ok();
        let table = self.table.lock();
        let chair = number.and_then(|n| table.seats.get(&n));
        let Some(number) = chair.filter(|c| c.tid == caller.tid).and(number) else {
            return Ok(None);
        };
        drop(table);
        let seat = Seat(number);
        if control {
            let attr = self.control_attr(seat)?;
            return Ok(Some(Entry { node: seat.control(), generation: 0, attr }));
        }
        let attr = self.plain.root()?.attr;
        Ok(Some(Entry { node: seat.node(), generation: 0, attr }))
    }

    /// Nothing that is on any disk; who may open it is decided when it is looked up.
    fn control_attr(&self, seat: Seat) -> Reply<Attr> {
        let root = self.plain.root()?.attr;
        let (ino, kind, mode) = (seat.control().0, Kind::File, 0o444);
        Ok(Attr { ino, kind, mode, nlink: 1, size: 0, blocks: 0, rdev: 0, ..root })
    }
}

fn is_acl(key: &[u8]) -> bool {
    key == acl::ACCESS || key == acl::DEFAULT
}

impl Requests for Aliases {
    fn root(&self) -> Reply<Entry> {
        self.plain.root()
    }
    fn lookup(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<Option<Entry>> {
        if parent == NodeId::ROOT && name.starts_with(HIDDEN) {
            return self.find_seat(caller, name);
        }
        self.named(parent, name, |view, dir| view.lookup(caller, dir, name))
    }
    fn forget(&self, id: NodeId, count: u64) {
        let (tag, node) = split(id);
        if tag == 0 {
            return self.plain.forget(id, count);
        }
        let Some(member) = self.table.lock().members.get(&tag).cloned() else { return };
        member.lasting.forget(node, count);
        let left = |held: u64| Some(held.saturating_sub(count));
        let before = member.held.fetch_update(SeqCst, SeqCst, left).unwrap_or(0);
        if before <= count && member.ended.load(SeqCst) {
            let gone = self.table.lock().members.remove(&tag);
            // A view may be large.
            drop(gone);
        }
    }
    fn getattr(&self, node: NodeId) -> Reply<Attr> {
        match self.at_or_plain(node)? {
            At::Zero(node) => self.plain.getattr(node),
            At::In(member, at) if self.is_shared(node) => {
                let Attr { mode, uid, gid, .. } = self.plain.getattr(node)?;
                Ok(Attr { mode, uid, gid, ..member.lasting.getattr(at)? })
            }
            At::In(member, node) => member.lasting.getattr(node),
            At::Idle => Ok(self.plain.root()?.attr),
            At::Control(seat) => self.control_attr(seat),
        }
    }
    fn setattr(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Attr> {
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let at = self.at(node)?;
        self.check_special(&at)?;
        match at {
            At::In(..) if rights && self.is_shared(node) => Err(Errno::OPNOTSUPP),
            At::In(member, at) if self.is_shared(node) => {
                member.lasting.setattr(caller, at, set)?;
                self.getattr(node)
            }
            _ => self.about(node, |view, node| view.setattr(caller, node, set)),
        }
    }
    fn readlink(&self, node: NodeId) -> Reply<Vec<u8>> {
        self.about(node, |view, node| view.readlink(node))
    }
    fn mknod(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        new: NewAttr,
        rdev: u64,
    ) -> Reply<Entry> {
        self.made(parent, name, |view, dir| view.mknod(caller, dir, name, kind, new, rdev))
    }
    fn mkdir(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewAttr) -> Reply<Entry> {
        self.made(parent, name, |view, dir| view.mkdir(caller, dir, name, new))
    }
    fn symlink(&self, caller: Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Reply<Entry> {
        self.made(parent, name, |view, dir| view.symlink(caller, dir, name, target))
    }
    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        match (self.at(node)?, self.at(parent)?) {
            (At::Zero(node), At::Zero(dir)) => self.plain.link(caller, node, dir, name),
            (At::In(a, node), At::In(b, dir)) if Arc::ptr_eq(&a, &b) => {
                self.note(&a, parent, name);
                self.told(&a, a.lasting.link(caller, node, dir, name)?)
            }
            (At::Zero(node), At::In(member, dir)) => {
                let node = self.in_member(&member, node).ok_or(Errno::XDEV)?;
                self.note(&member, parent, name);
                self.told(&member, member.lasting.link(caller, node, dir, name)?)
            }
            _ => Err(Errno::XDEV),
        }
    }
    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.about(parent, |view, dir| view.unlink(caller, dir, name))
    }
    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.about(parent, |view, dir| view.rmdir(caller, dir, name))
    }
    fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
    ) -> Reply<()> {
        for (dir, name) in [from, to] {
            if let At::In(member, _) = self.at(dir)? {
                self.note(&member, dir, name);
            }
        }
        self.both((from.0, to.0), |view, a, b| view.rename(caller, (a, from.1), (b, to.1), how))
    }
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewAttr,
        exclusive: bool,
    ) -> Reply<Entry> {
        self.made(parent, name, |view, dir| view.create(caller, dir, name, new, exclusive))
    }
    fn tmpfile(&self, caller: Caller, parent: NodeId, new: NewAttr) -> Reply<Entry> {
        match self.at(parent)? {
            At::Zero(dir) => self.plain.tmpfile(caller, dir, new),
            At::In(member, dir) => member.told(member.lasting.tmpfile(caller, dir, new)?),
            At::Idle | At::Control(_) => Err(Errno::CANCELED),
        }
    }
    fn worn_listing(&self, file: NodeId) -> Option<NodeId> {
        match self.at(file).ok()? {
            At::Zero(file) => self.plain.worn_listing(file),
            At::In(member, file) => {
                let dir = member.lasting.worn_listing(file)?;
                // Of what has no root of its own the kernel keeps no listing there.
                let root = member.routed.is_some() && member.root.get() == Some(&dir);
                if root { None } else { member.number(dir).ok() }
            }
            At::Idle | At::Control(_) => None,
        }
    }
    fn read(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        self.about(node, |view, node| view.read(node, offset, buf))
    }
    fn write(&self, node: NodeId, offset: u64, data: &[u8], kill_suidgid: bool) -> Reply<usize> {
        self.about(node, |view, node| view.write(node, offset, data, kill_suidgid))
    }
    fn append(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Reply<(usize, bool)> {
        self.about(node, |view, node| view.append(node, offset, data, kill_suidgid))
    }
    fn write_back(&self, node: NodeId, offset: u64, data: &[u8]) -> Reply<()> {
        self.about(node, |view, node| view.write_back(node, offset, data))
    }
    fn fallocate(&self, node: NodeId, how: Fallocate, offset: u64, len: u64) -> Reply<()> {
        self.about(node, |view, node| view.fallocate(node, how, offset, len))
    }
    fn lseek(&self, node: NodeId, offset: u64, how: Seek) -> Reply<u64> {
        self.about(node, |view, node| view.lseek(node, offset, how))
    }
    fn copy_file_range(&self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Reply<u64> {
        self.both((from.0, to.0), |view, a, b| view.copy_file_range((a, from.1), (b, to.1), len))
    }
    fn readdir(
        &self,
        id: NodeId,
        from: u64,
        attributes: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Reply<()> {
        let (member, node) = match self.at(id)? {
            // Where the kernel believes no name it need not be told of any.
            At::Zero(node) => {
                let attributes = attributes && self.routes.is_none();
                return self.plain.readdir(node, from, attributes, sink);
            }
            At::In(member, node) => (member, node),
            At::Idle | At::Control(_) => return Err(Errno::CANCELED),
        };
        let at_root = id == member.seat.node() || self.is_shared(id);
        // What may have to be told as something else is looked up by itself.
        let mut left_out = Vec::new();
        let done = member.lasting.readdir(node, from, attributes && !at_root, &mut |entry| {
            let special = entry.entry.filter(|e| is_special(e.attr.kind));
            let told = entry.entry.filter(|_| special.is_none());
            let told = told.map(|e| member.told(e)).transpose();
            let Ok(told) = told else { return false };
            let taken = sink(DirEntry { entry: told, ..entry });
            if told.is_some() && !taken {
                member.held.fetch_sub(1, SeqCst);
            }
            left_out.extend(special.filter(|_| taken).map(|e| e.node));
            taken
        });
        left_out.into_iter().for_each(|node| member.lasting.forget(node, 1));
        done
    }
    fn getxattr(&self, node: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        match self.at_or_plain(node)? {
            At::Zero(node) => self.plain.getxattr(node, key),
            At::In(member, at) if self.is_shared(node) && is_acl(key) => {
                // The transaction relies on its own all the same.
                let _ = member.lasting.getxattr(at, key);
                self.plain.getxattr(node, key)
            }
            At::In(member, node) => member.lasting.getxattr(node, key),
            // Before others than the directory's owner may open it, the kernel asks for its access control list.
            At::Control(_) => Err(Errno::NODATA),
            At::Idle => Err(Errno::CANCELED),
        }
    }
    fn listxattr(&self, node: NodeId) -> Reply<Vec<u8>> {
        self.about(node, |view, node| view.listxattr(node))
    }
    fn setxattr(
        &self,
        caller: Caller,
        node: NodeId,
        key: &[u8],
        value: &[u8],
        how: SetXattr,
        kill_sgid: bool,
    ) -> Reply<()> {
        self.check_shared(node, key)?;
        self.check_special(&self.at(node)?)?;
        self.about(node, |view, node| view.setxattr(caller, node, key, value, how, kill_sgid))
    }
    fn removexattr(&self, caller: Caller, node: NodeId, key: &[u8]) -> Reply<()> {
        self.check_shared(node, key)?;
        self.check_special(&self.at(node)?)?;
        self.about(node, |view, node| view.removexattr(caller, node, key))
    }
    fn statfs(&self) -> Reply<StatFs> {
        self.plain.statfs()
    }
    fn getlk(&self, node: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        self.about(node, |view, node| view.getlk(node, lock))
    }
    fn setlk(&self, node: NodeId, lock: Lock) -> Reply<()> {
        match self.about(node, |view, node| view.setlk(node, lock)) {
            // Nothing is locked of what is gone.
            Err(Errno::STALE | Errno::CANCELED) if lock.kind == LockKind::Unlock => Ok(()),
            done => done,
        }
    }
    fn setlkw(&self, node: NodeId, lock: Lock, wait: &Arc<Wait>) -> Reply<()> {
        self.about(node, |view, node| view.setlkw(node, lock, wait))
    }
    fn inode_flags(&self, node: NodeId) -> Reply<u32> {
        self.about(node, |view, node| view.inode_flags(node))
    }
    fn control(&self, caller: Caller, node: NodeId, cmd: u32, arg: &[u8]) -> Reply<Vec<u8>> {
        let control = self.control.get().ok_or(Errno::NOTTY)?;
        let seat = match split(node) {
            (0, _) => None,
            (tag, NodeId::ROOT | CONTROL) if self.table.lock().seats.contains_key(&tag) => {
                Some(Seat(tag))
            }
            (tag, _) => self.table.lock().members.get(&tag).map(|member| member.seat),
        };
        control.control(caller, seat, cmd, arg)
    }
    fn open(&self, caller: Caller, id: NodeId, how: OpenHow) -> Reply<Opened> {
        if how.dir {
            // As view 0 says, and one answer holds for the mount.
            if self.routes.is_none() {
                return Err(Errno::NOSYS);
            }
            let own = split(id).0 != 0;
            return Ok(Opened { handle: DIRECTORY, keep_cache: own, cache_listing: own });
        }
        // One answer for the mount, and nobody has another root in it.
        if !self.plain.is_told() {
            return Err(Errno::NOSYS);
        }
        match self.at(id)? {
            At::Zero(node) => self.plain.open(caller, node, how),
            At::In(member, node) => member.lasting.open(caller, node, how),
            At::Idle => Err(Errno::CANCELED),
            At::Control(seat) => {
                let mut table = self.table.lock();
                let chair = table.seats.get_mut(&seat.0).ok_or(Errno::STALE)?;
                chair.opens += 1;
                Ok(Opened { handle: 1, keep_cache: false, cache_listing: false })
            }
        }
    }
    fn closes(&self, caller: Caller, node: NodeId) {
        if let (tag @ 1.., CONTROL) = split(node)
            && self.table.lock().seats.contains_key(&tag)
            && let Some(control) = self.control.get()
        {
            control.closes(Seat(tag), caller.tid);
        }
    }
    fn release(&self, id: NodeId, handle: u8) {
        if handle == DIRECTORY {
            return;
        }
        let (tag, node) = split(id);
        if tag == 0 {
            return self.plain.release(id, handle);
        }
        let mut table = self.table.lock();
        if let Some(chair) = table.seats.get_mut(&tag).filter(|_| node == CONTROL) {
            chair.opens = chair.opens.saturating_sub(1);
            let last = chair.opens == 0;
            drop(table);
            if let (true, Some(control)) = (last, self.control.get()) {
                control.vacated(Seat(tag));
            }
            return;
        }
        let Some(member) = table.members.get(&tag).cloned() else { return };
        if let Some(over) = table.over.get_mut(&tag) {
            *over = Over::soon();
        }
        drop(table);
        member.lasting.release(node, handle);
    }
    fn fsync(&self, node: NodeId, data_only: bool) -> Reply<()> {
        self.about(node, |view, node| view.fsync(node, data_only))
    }
    fn land(&self, node: NodeId) -> bool {
        match self.at(node) {
            Ok(At::Zero(node)) => self.plain.land(node),
            _ => false,
        }
    }
    fn waits(&self) -> bool {
        let members: Vec<_> = self.table.lock().members.values().cloned().collect();
        self.plain.waits() || members.iter().any(|member| member.lasting.waits())
    }
    fn valid(&self, node: NodeId, name: Option<&[u8]>) -> Valid {
        const ZERO: Option<Duration> = Some(Duration::ZERO);
        const NO: Valid = Valid { name: ZERO, attr: ZERO, dir_attr: ZERO };
        if self.is_shared(node) {
            // Whoever asks: the next one may be another one.
            let valid = self.plain.valid(node, name);
            return Valid { name: ZERO, attr: valid.attr, dir_attr: ZERO };
        }
        match self.at(node) {
            Ok(At::Zero(NodeId::ROOT)) if name.is_some_and(|n| n.starts_with(HIDDEN)) => NO,
            Ok(At::Zero(node)) => self.plain.valid(node, name),
            Ok(At::In(member, node)) => member.lasting.valid(node, name),
            Ok(At::Idle | At::Control(_)) | Err(_) => NO,
        }
    }
}
