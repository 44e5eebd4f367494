//! Which transactions touch the same things.  Two whose installations could meet are never both in
//! the part of the journal that recovery would install: the earlier one is checkpointed first.  So
//! recovery can take each record for itself, and needs no order among them.

use crate::io::{HostId, Stamp};
use crate::writeset::index::Index;
use crate::writeset::{Ix, Origin, WriteSet};
use std::collections::HashSet;

/// What a transaction changes, and what it needs to find unchanged.
#[derive(Default, Debug)]
pub struct Footprint {
    /// Objects that are changed, made, moved or displaced.
    touched: HashSet<HostId>,
    /// Objects that are referred to in any way.
    needed: HashSet<HostId>,
    /// Names that are changed.
    names: HashSet<(HostId, Vec<u8>)>,
}

impl Footprint {
    /// Of a write set below a root.
    pub fn new(set: &WriteSet, root: HostId) -> Footprint {
        let index = Index::new(set);
        let mut this = Footprint::default();
        for (i, object) in set.objects.iter().enumerate() {
            let ix = Ix(i as u32);
            let Some(id) = id_of(set, ix, root) else { continue };
            this.needed.insert(id);
            if object.is_changed() || index.is_displaced(ix) || !index.targets(ix).is_empty() {
                this.touched.insert(id);
            }
        }
        for bind in &set.binds {
            if let Some(dir) = id_of(set, bind.dir, root) {
                this.names.insert((dir, bind.name.clone()));
            }
        }
        this
    }

    /// Adds what the installation made.
    pub(crate) fn installed(&mut self, set: &WriteSet, stamps: &[Option<Stamp>], root: HostId) {
        for (i, stamp) in stamps.iter().enumerate() {
            let (Some(stamp), ix) = (stamp, Ix(i as u32)) else { continue };
            // Exchanged files have a new identity, too.
            if id_of(set, ix, root) != Some(stamp.id) {
                self.touched.insert(stamp.id);
            }
        }
        for bind in &set.binds {
            if let Some(Some(dir)) = stamps.get(bind.dir.0 as usize) {
                self.names.insert((dir.id, bind.name.clone()));
            }
        }
    }

    /// Whether `later` meets this one.
    pub fn meets(&self, later: &Footprint) -> bool {
        let (few, many) = if self.touched.len() < later.needed.len() {
            (&self.touched, &later.needed)
        } else {
            (&later.needed, &self.touched)
        };
        few.iter().any(|id| many.contains(id))
            || later.touched.iter().any(|id| self.needed.contains(id))
            || self.names.iter().any(|name| later.names.contains(name))
    }
}

fn id_of(set: &WriteSet, ix: Ix, root: HostId) -> Option<HostId> {
    match &set.object(ix).origin {
        Origin::Root => Some(root),
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(stamp.id),
        Origin::New(_) => None,
    }
}
