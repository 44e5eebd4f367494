//! The gate of plain views beside view 0: what they change, the kernel has to forget of view 0.
//!
//! A view that outlives its transaction is a mount, or a root, of its own, and so are its inodes in
//! the kernel. A write through a descriptor from there reaches the file, and not what the kernel
//! has cached of the file by its path.

use super::gate::Gate;
use super::order::Order;
use crate::change::{Change, Place};
use crate::inode_locks::Ticket;
use crate::publication::Guarded;
use crate::shared::SharedVolume;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use systx_base::{NodeId, Oid};
use systx_store::io::HostId;
use systx_txn::ObjectRef;
use systx_vfs::api::{Reply, Valid};

/// How long an answer waits until the kernel has forgotten. An invalidation may wait for somebody
/// who waits for this very worker; it goes on by itself then.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Echo {
    order: Order,
    vol: Arc<SharedVolume>,
}

/// What the kernel is to forget of a node.
#[derive(Debug, PartialEq, Eq)]
enum Stale {
    /// What lookups and listings of a directory that are under way are about to tell it.
    UnderWay,
    Attributes,
    Pages(HostId),
    Name(Box<[u8]>),
    Listing,
}

impl Echo {
    pub(crate) fn new(vol: Arc<SharedVolume>, stall: Duration) -> Echo {
        Echo { order: Order::aside(Arc::clone(&vol), stall), vol }
    }

    /// What a change makes stale of what view 0 knows.
    fn stale(guarded: &Guarded, change: &Change<'_>) -> Vec<(NodeId, Stale)> {
        let known = |place: Place<'_>| {
            let host = place.id();
            Some((guarded.plain.node_of(host)?, host))
        };
        let subject = change.subject.and_then(|(_, fd)| known(fd));
        let places: HashMap<Oid, NodeId> =
            change.places.iter().filter_map(|(dir, fd)| Some((*dir, known(*fd)?.0))).collect();
        let mut stale: Vec<_> = places.values().map(|dir| (*dir, Stale::UnderWay)).collect();
        // Whatever is done to an inode moves its change time.
        stale.extend(subject.map(|(file, _)| (file, Stale::Attributes)));
        for object in change.writes {
            match *object {
                ObjectRef::Pages { .. } => {
                    stale.extend(subject.map(|(f, id)| (f, Stale::Pages(id))))
                }
                ObjectRef::Entry { dir, name } => {
                    stale.extend(places.get(&dir).map(|dir| (*dir, Stale::Name(name.into()))));
                }
                // The directory's times go with it.
                ObjectRef::List(dir) => {
                    stale.extend(places.get(&dir).map(|dir| (*dir, Stale::Listing)));
                }
                ObjectRef::Attr(_) | ObjectRef::Size(_) => {}
            }
        }
        stale
    }

    /// Has the kernel forget what a change has made stale.
    fn tell(&self, change: &Change<'_>) {
        let stale = |guarded: Arc<Guarded>| {
            let nodes = Echo::stale(&guarded, change);
            if nodes.is_empty() { None } else { Some((guarded, nodes)) }
        };
        let all: Vec<_> = self.vol.guarded_now().into_iter().filter_map(stale).collect();
        if all.is_empty() {
            return;
        }
        let (done, is_done) = mpsc::channel::<()>();
        let vol = Arc::clone(&self.vol);
        let forget = move || {
            for (guarded, nodes) in all {
                for (node, what) in nodes {
                    if let Err(errno) = drop_one(&vol, &guarded, node, &what) {
                        tracing::warn!(%errno, ?node, ?what, "not invalidated");
                    }
                }
            }
            drop(done);
        };
        match std::thread::Builder::new().name("systx-echo".into()).spawn(forget) {
            // It ends by dropping its side.
            Ok(_) => _ = is_done.recv_timeout(PATIENCE),
            Err(error) => tracing::warn!(%error, "no thread: caches not invalidated"),
        }
    }
}

fn drop_one(
    vol: &SharedVolume,
    guarded: &Guarded,
    node: NodeId,
    what: &Stale,
) -> Result<(), Errno> {
    match what {
        Stale::UnderWay => guarded.caches.barrier(node),
        Stale::Attributes => guarded.caches.drop_attributes(node),
        Stale::Pages(file) => {
            vol.drop_changed(*file);
            Ok(())
        }
        Stale::Name(name) => guarded.caches.drop_name(node, name),
        Stale::Listing => guarded.caches.drop_listing(node),
    }
}

impl Gate for Echo {
    fn read(&self, reads: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        self.order.read(reads, act)
    }
    fn mutate(&self, change: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        let done = self.order.mutate(change, act);
        // Also of what has failed: it may have been done in part.
        self.tell(&change);
        done
    }
    fn born(&self, id: HostId) {
        self.order.born(id);
    }
    fn is_publishing(&self) -> bool {
        self.order.is_publishing()
    }
    fn valid(&self, oid: Oid, name: Option<&[u8]>) -> Valid {
        self.order.valid(oid, name)
    }
    fn may_keep(&self, oid: Oid) -> bool {
        self.order.may_keep(oid)
    }
    fn barrier(&self, dir: Oid) {
        self.order.barrier(dir);
    }
    fn file_barrier(&self, ticket: Ticket) {
        self.order.file_barrier(ticket);
    }
    fn wait_durable(&self) {
        self.order.wait_durable();
    }
    fn land(&self, file: HostId) -> bool {
        self.order.land(file)
    }
    fn before_writing(&self, file: HostId) -> Reply<()> {
        self.order.before_writing(file)
    }
}
