//! A moment of guarded directories, as a view shows it.

use std::collections::HashSet;
use std::sync::Arc;
use systx_base::Oid;
use systx_base::sync::{Mutex, rank};
use systx_store::io::{self, Handle, HostId, Tree};

/// The moment that a snapshot shows, as who keeps it knows it.
pub trait Moment: Send + Sync {
    /// Whether it had to be given up: reads may have failed.
    fn is_given_up(&self) -> bool;
    /// The handle of the file system below that one of the snapshot stands for.
    fn bare<'h>(&self, handle: &'h Handle) -> &'h Handle;
}

/// A moment that the store keeps: it has handles of its own kind for it.
struct OfStore(Arc<dyn io::Moment>);

impl Moment for OfStore {
    fn is_given_up(&self) -> bool {
        self.0.is_given_up()
    }
    fn bare<'h>(&self, handle: &'h Handle) -> &'h Handle {
        handle
    }
}

/// What the view of a snapshot is made over.
pub struct Frozen {
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) moment: Box<dyn Moment>,
    roots: Arc<HashSet<HostId>>,
    /// What the view has met below guarded directories.
    met: Mutex<HashSet<Oid>>,
}

impl Frozen {
    /// `tree`: the file system as it was at that moment below the directories `roots`, and as it is
    /// elsewhere.
    pub fn new(
        tree: Arc<dyn Tree>,
        moment: Box<dyn Moment>,
        roots: Arc<HashSet<HostId>>,
    ) -> Frozen {
        Frozen { tree, moment, roots, met: Mutex::new(rank::LEAF, HashSet::new()) }
    }

    /// A moment that the store keeps; all of what is below the directories `roots`.
    pub fn of(moment: Arc<dyn io::Moment>, roots: Arc<HashSet<HostId>>) -> Frozen {
        Frozen::new(Arc::clone(&moment) as Arc<dyn Tree>, Box::new(OfStore(moment)), roots)
    }

    /// Whether it had to be given up: reads may have failed.
    pub(crate) fn is_given_up(&self) -> bool {
        self.moment.is_given_up()
    }

    /// Whether an object of the view is of the snapshot.
    pub(crate) fn covers(&self, oid: Oid) -> bool {
        self.met.lock().contains(&oid)
    }

    /// Whether an object that is found in a directory of the view (`None`: its root) is of the
    /// snapshot.
    pub(crate) fn covers_in(&self, dir: Option<Oid>, id: HostId) -> bool {
        self.roots.contains(&id) || dir.is_some_and(|dir| self.covers(dir))
    }

    /// The view has met an object of the snapshot.
    pub(crate) fn meet(&self, oid: Oid) {
        self.met.lock().insert(oid);
    }
}
