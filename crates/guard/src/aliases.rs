//! Alias roots: in the mount of a guarded directory, further roots under hidden names, by which
//! threads see their transactions. Everything is in one superblock, so `(st_dev, st_ino)` are the
//! true ones in all of them.
//!
//! - A *seat* is one alias root, for one thread. It shows the transaction that is attached to it,
//!   and answers `ECANCELED` while none is.
//! - Each transaction has a *tag* of its own, which its node numbers carry in their upper half; the
//!   seat's root alone keeps its number. So the kernel's inodes, with their pages, attributes and
//!   listings, belong to one transaction and are never seen by the next one. All that is shared
//!   from one to the next is the root's own attributes, the names in it and its listing: who ends a
//!   transaction has the kernel forget them ([`Left::names`]). A listing of the root gives the
//!   kernel no names.
//! - When a transaction has ended, its nodes are served until the kernel has forgotten them: what
//!   stays open over a commit is the committed file (`retired.rs`).
//!
//! View 0 has the numbers without tag.
//!
//! **Routing** (decision 0017): in a mount of which [`Aliases::routed`] was asked, a transaction
//! has no root of its own. Requests of its thread about *directories* without tag go to it, and the
//! names that it is told of there have its tag. So the kernel may believe nothing about these
//! directories that another thread was told: no name, no listing, none of their attributes. Below
//! them tagged nodes belong to one transaction, as ever. A directory without tag is one inode for
//! all of them, whose owner and mode the kernel checks: they are those of view 0 for everybody, and
//! can be changed by its path from above only, in a directory.
//!
//! **Lock order**: the table and the routes are leaves; nothing is called under them.

mod member;
mod routes;
mod seats;
mod serving;
mod special;

pub use routes::Rider;
pub use seats::{Left, Tag};

use crate::zero::Zero;
use member::Member;
use routes::Routes;
use rustix::io::Errno;
use seats::Table;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, NodeId};
use systx_vfs::api::*;
use systx_vfs::client;

/// How names of alias roots begin; the rest is the seat's number.
const HIDDEN: &[u8] = b".systx\x01seat-";

/// Set in the numbers of all nodes but those of view 0.
const TAGGED: u64 = 1 << 63;
/// Tags end here: the numbers above are used by the layer that speaks to the kernel.
const TAGS: u32 = 0x7fff_ff00;
/// The file of a seat by which it is controlled: opens of directories make no messages in this
/// mount, those of files do.
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
    /// Another thread than the seat's asks for something in the transaction that is attached; once
    /// for each.
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
    zero: Arc<dyn Zero>,
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
    pub fn new(zero: Arc<dyn Zero>) -> Aliases {
        let table = Mutex::new(rank::LEAF, Table::default());
        Aliases { zero, table, control: OnceLock::new(), routes: None }
    }

    /// The same, where transactions are seen by routing.
    pub fn routed(zero: Arc<dyn Zero>) -> Aliases {
        Aliases { routes: Some(Routes::new()), ..Aliases::new(zero) }
    }

    /// Whether opens make messages, without which nothing here can be used.
    pub fn tells(&self) -> bool {
        self.zero.is_told()
    }

    /// How many nodes of view 0 the kernel knows.
    pub fn known(&self) -> usize {
        self.zero.known()
    }

    /// Whether transactions are seen by routing.
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
            Some(_) if !self.zero.is_dir(id) => Ok(At::Zero(id)),
            Some(Ok(Some(member))) => {
                let node = member.place_of(id, &*self.zero)?;
                Ok(At::In(member, node))
            }
            Some(Err(errno)) => Err(errno),
        }
    }

    /// The same for what is looked at before anything is done in a directory: who has not been told
    /// of the end of its transaction has to be able to ask.
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

    /// The kernel is going to know this name.
    fn note(&self, member: &Member, dir: NodeId, name: &[u8]) {
        if dir == member.seat.node() {
            let mut names = member.names.lock();
            if !names.contains(name) {
                names.insert(name.into());
            }
        }
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
        let attr = self.zero.root()?.attr;
        Ok(Some(Entry { node: seat.node(), generation: 0, attr }))
    }

    /// Nothing that is on any disk; who may open it is decided when it is looked up.
    fn control_attr(&self, seat: Seat) -> Reply<Attr> {
        let root = self.zero.root()?.attr;
        let (ino, kind, mode) = (seat.control().0, Kind::File, 0o444);
        Ok(Attr { ino, kind, mode, nlink: 1, size: 0, blocks: 0, rdev: 0, ..root })
    }
}
