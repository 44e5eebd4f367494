//! One transaction as the kernel knows it: by the tag of its nodes.

use super::{Seat, joined};
use crate::retired::Lasting;
use crate::zero::Zero;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use systx_base::NodeId;
use systx_base::sync::Mutex;
use systx_vfs::api::*;

/// One transaction behind an alias root.
pub(super) struct Member {
    pub tag: u32,
    pub seat: Seat,
    /// The thread of the seat, and others that have asked for something.
    pub tid: u32,
    pub others: Mutex<HashSet<u32>>,
    pub lasting: Arc<Lasting>,
    /// The names that lead from the volume's root to the guarded directory.
    pub below: Arc<[Vec<u8>]>,
    /// The guarded directory in the view; it is looked up when it is needed first.
    pub root: OnceLock<NodeId>,
    /// How often the kernel holds nodes of this tag.
    pub held: AtomicU64,
    pub ended: AtomicBool,
    /// Names in the alias root that the kernel was told of.
    pub names: Mutex<HashSet<Box<[u8]>>>,
    /// Of a routed one: directories without tag, as the view knows them.
    pub routed: Option<Mutex<HashMap<NodeId, NodeId>>>,
    /// Nodes that the kernel was told of under names in these, as it knows them.
    pub loose: Mutex<HashSet<NodeId>>,
    /// Nodes of view 0 that it was told of under names of the transaction.
    pub shared: Mutex<HashSet<NodeId>>,
}

impl Member {
    pub fn root(&self) -> Reply<NodeId> {
        if let Some(root) = self.root.get() {
            return Ok(*root);
        }
        let nobody = Caller { uid: 0, gid: 0, tid: 0 };
        let mut at = NodeId::ROOT;
        for name in self.below.iter() {
            at = self.lasting.lookup(nobody, at, name)?.ok_or(Errno::STALE)?.node;
        }
        Ok(*self.root.get_or_init(|| at))
    }

    /// A directory of view 0 in the transaction.
    pub fn place_of(&self, dir: NodeId, zero: &dyn Zero) -> Reply<NodeId> {
        if dir == NodeId::ROOT {
            return self.root();
        }
        let known = |known: &Mutex<HashMap<NodeId, NodeId>>| known.lock().get(&dir).copied();
        if let Some(node) = self.routed.as_ref().and_then(known) {
            return Ok(node);
        }
        let nobody = Caller { uid: 0, gid: 0, tid: 0 };
        let (mut at, mut ino) = (self.root()?, None);
        for name in zero.names_of(dir)? {
            let entry = self.lasting.lookup(nobody, at, &name)?.ok_or(Errno::NOENT)?;
            (at, ino) = (entry.node, Some(entry.attr.ino));
        }
        // What has that name in the transaction may be another one.
        if ino != Some(zero.getattr(dir)?.ino) {
            return Err(Errno::NOENT);
        }
        if let Some(routed) = &self.routed {
            routed.lock().insert(dir, at);
        }
        Ok(at)
    }

    pub fn number(&self, node: NodeId) -> Reply<NodeId> {
        if self.root.get() == Some(&node) { Ok(self.seat.node()) } else { joined(self.tag, node) }
    }

    pub fn told(&self, entry: Entry) -> Reply<Entry> {
        let node = joined(self.tag, entry.node)?;
        self.held.fetch_add(1, SeqCst);
        Ok(Entry { node, ..entry })
    }
}
