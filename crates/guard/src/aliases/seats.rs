//! Seats: how they are made, and what is attached to them.

use super::member::Member;
use super::{Aliases, Rider, Seat, TAGS, joined};
use crate::retired::Lasting;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};
use systx_vfs::api::*;

pub(super) struct Chair {
    /// The thread that may open it.
    pub tid: u32,
    pub opens: u32,
    pub now: Option<Arc<Member>>,
    /// The kernel may have attributes of its root, from when that was made or of what is attached.
    /// Said before they are asked for: who detaches either knows of it or is there first.
    pub known: bool,
}

#[derive(Default)]
pub(super) struct Table {
    pub seats: HashMap<u32, Chair>,
    pub members: HashMap<u32, Arc<Member>>,
    /// Those that are over.
    pub over: HashMap<u32, Over>,
    pub last: u32,
}

/// A transaction that is over while the kernel holds something of it: when it is to be asked to let
/// go the next time.
pub(super) struct Over {
    next: Instant,
    pause: Duration,
}

/// How long after the end of a transaction, or the close of a file of it, the kernel is first
/// asked, and how long at most it is not. In between twice as long each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

impl Over {
    pub fn soon() -> Over {
        Over { next: Instant::now() + PAUSE.0, pause: PAUSE.0 }
    }
}

impl Table {
    pub fn tag(&mut self) -> u32 {
        loop {
            self.last = if self.last >= TAGS { 1 } else { self.last + 1 };
            let tag = self.last;
            if !self.seats.contains_key(&tag) && !self.members.contains_key(&tag) {
                return tag;
            }
        }
    }
}

/// A transaction that is not attached any more.
#[derive(Debug, Default)]
pub struct Left {
    /// The names in the alias root that the kernel may remember.
    pub names: Vec<Vec<u8>>,
    /// Whether it may remember attributes and the listing of the alias root.
    pub root: bool,
    /// Nodes, as the kernel knows them, that it has under names which mean others now: it need not
    /// keep them.
    pub loose: Vec<NodeId>,
    /// Of its nodes.
    pub tag: Tag,
}

/// What the numbers of all nodes of a transaction have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tag(u32);

impl Tag {
    /// A node of the transaction as the kernel knows it.
    pub fn node(self, node: NodeId) -> Option<NodeId> {
        joined(self.0, node).ok()
    }
}

impl Aliases {
    /// A new alias root, which the thread `tid` may open.
    pub fn seat(&self, tid: u32) -> Seat {
        let mut table = self.table.lock();
        let tag = table.tag();
        table.seats.insert(tag, Chair { tid, opens: 0, now: None, known: true });
        Seat(tag)
    }

    /// Ends an alias root.
    pub fn remove(&self, seat: Seat) {
        self.table.lock().seats.remove(&seat.0);
    }

    /// From now on the seat shows `lasting`, of which it shows the directory `below` the volume's
    /// root.
    ///
    /// In a mount that routes, requests of the thread `rider` go there from now on.
    ///
    /// # Errors
    /// `ENOENT`: the seat is gone; `EBUSY`: another one is attached, or is the thread's.
    pub fn attach(
        &self,
        seat: Seat,
        lasting: Arc<Lasting>,
        below: Arc<[Vec<u8>]>,
        rider: Option<Rider>,
    ) -> Reply<()> {
        if let (Some(routes), Some(rider)) = (&self.routes, &rider)
            && !routes.is_free(rider.tid)
        {
            return Err(Errno::BUSY);
        }
        let member = self.seated(seat, lasting, below)?;
        if let (Some(routes), Some(rider)) = (&self.routes, rider) {
            routes.add(rider, Some(member));
        }
        Ok(())
    }

    fn seated(
        &self,
        seat: Seat,
        lasting: Arc<Lasting>,
        below: Arc<[Vec<u8>]>,
    ) -> Reply<Arc<Member>> {
        let mut table = self.table.lock();
        let tag = table.tag();
        let chair = table.seats.get_mut(&seat.0).ok_or(Errno::NOENT)?;
        if chair.now.is_some() {
            return Err(Errno::BUSY);
        }
        let member = Arc::new(Member {
            tag,
            seat,
            tid: chair.tid,
            others: Mutex::new(rank::LEAF, HashSet::new()),
            lasting,
            root: OnceLock::new(),
            below,
            held: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            names: Mutex::new(rank::LEAF, HashSet::new()),
            routed: self.routes.as_ref().map(|_| Mutex::new(rank::LEAF, HashMap::new())),
            loose: Mutex::new(rank::LEAF, HashSet::new()),
            shared: Mutex::new(rank::LEAF, HashSet::new()),
        });
        chair.now = Some(Arc::clone(&member));
        table.members.insert(tag, Arc::clone(&member));
        Ok(member)
    }

    /// Whether requests of the seat's thread are routed to what is attached; they are at first.
    pub fn switch(&self, seat: Seat, on: bool) {
        let now = self.table.lock().seats.get(&seat.0).and_then(|chair| chair.now.clone());
        if let (Some(routes), Some(member)) = (&self.routes, now) {
            routes.switch(&member, on);
        }
    }

    /// A thread was in a transaction that ended with the daemon before this one: until it is told,
    /// it gets `ENOTCONN`.
    pub fn strand(&self, rider: Rider) {
        if let Some(routes) = &self.routes {
            routes.add(rider, None);
        }
    }

    /// A thread knows that.
    pub fn is_told(&self, tid: u32) {
        if let Some(routes) = &self.routes {
            routes.is_told(tid);
        }
    }

    /// The seat shows nothing any more. Until the kernel has been made to forget the names that are
    /// returned, nothing else may be attached.
    pub fn detach(&self, seat: Seat) -> Left {
        let left = {
            let mut table = self.table.lock();
            let chair = table.seats.get_mut(&seat.0);
            chair.and_then(|chair| Some((chair.now.take()?, std::mem::take(&mut chair.known))))
        };
        let Some((member, root)) = left else { return Left::default() };
        member.ended.store(true, SeqCst);
        if let Some(routes) = &self.routes {
            routes.leave(&member);
        }
        {
            let mut table = self.table.lock();
            if member.held.load(SeqCst) == 0 {
                table.members.remove(&member.tag);
            } else {
                table.over.insert(member.tag, Over::soon());
            }
        }
        let names = std::mem::take(&mut *member.names.lock());
        let loose = std::mem::take(&mut *member.loose.lock()).into_iter().collect();
        Left {
            names: names.into_iter().map(Vec::from).collect(),
            root,
            loose,
            tag: Tag(member.tag),
        }
    }

    /// Nodes of transactions that are over, as the kernel knows them, if it is time to ask it to
    /// let go of those that nobody uses.
    ///
    /// What was in use at the end, by a descriptor or as a working directory, it keeps under names
    /// in directories that cannot be reached any more: without being asked, until it needs the
    /// memory, long after the last use. For directories it does not tell that, so it is asked again
    /// and again, ever more rarely.
    pub fn unreachable(&self) -> Vec<NodeId> {
        let now = Instant::now();
        let due: Vec<Arc<Member>> = {
            let mut guard = self.table.lock();
            let Table { members, over, .. } = &mut *guard;
            over.retain(|tag, _| members.contains_key(tag));
            let due = over.iter_mut().filter(|(_, over)| over.next <= now);
            due.filter_map(|(tag, over)| {
                over.pause = (over.pause * 2).min(PAUSE.1);
                over.next = now + over.pause;
                members.get(tag).cloned()
            })
            .collect()
        };
        // A directory goes when nothing in it is left.
        let nodes = |member: &Arc<Member>| {
            let (tag, last) = (member.tag, member.lasting.last_node().0);
            let shared: Vec<NodeId> = member.shared.lock().iter().copied().collect();
            let own = (1..=last).filter_map(move |node| joined(tag, NodeId(node)).ok());
            shared.into_iter().chain(own)
        };
        due.iter().flat_map(nodes).collect()
    }

    /// Nobody uses anything of the transactions that are over: what the kernel remembers of them is
    /// nothing any more (`ESTALE`).
    pub fn drop_over(&self) {
        let gone: Vec<Arc<Member>> = {
            let mut guard = self.table.lock();
            let Table { members, over, .. } = &mut *guard;
            over.drain().filter_map(|(tag, _)| members.remove(&tag)).collect()
        };
        // Closes what they have open.
        drop(gone);
    }

    /// A node of what is attached to a seat, as the kernel knows it.
    pub fn node_of(&self, seat: Seat, node: NodeId) -> Option<NodeId> {
        let now = self.table.lock().seats.get(&seat.0)?.now.clone();
        now?.number(node).ok()
    }

    /// The names in an alias root that the kernel may remember, also those of nothing.
    pub fn names(&self, seat: Seat) -> Vec<Vec<u8>> {
        let now = self.table.lock().seats.get(&seat.0).and_then(|chair| chair.now.clone());
        now.map_or_else(Vec::new, |member| {
            member.names.lock().iter().map(|name| name.to_vec()).collect()
        })
    }

    /// Alias roots, and transactions of which the kernel still holds something.
    pub fn size(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.seats.len(), table.members.len())
    }
}
