//! Where a store keeps what its transactions have displaced: what undo and a look back work with.

use crate::interface::InUse;
use crate::io::{Handle, HostId, Tree};
use crate::layout::grave_of;
use crate::writeset::{Origin, Slot, WriteSet};
use std::collections::{HashMap, HashSet};
use std::io::Result;
use std::sync::{Arc, OnceLock};
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};

/// Where what was displaced is.
#[derive(Clone, Copy)]
pub struct Graveyard<'a> {
    /// The committed tree.
    pub tree: &'a dyn Tree,
    /// The directory with what was displaced.
    pub dir: &'a Handle,
    /// The store's own directory.
    pub own: HostId,
    /// Whether the tree is an overlay file system, see [`crate::overlay`].
    pub overlay: bool,
    /// Whether an undo moves what a transaction has overwritten out of its before-file, which is
    /// empty then, instead of copying it.
    pub moves: bool,
}

/// Makes a staging slot with the first bytes of a before-file, as many as are said; `ENOENT` if
/// they were moved away.
pub type Stage<'a> = dyn Fn(&Handle, u64) -> std::io::Result<Slot> + 'a;

/// Keeps what transactions have displaced from being collected; `None` if that has begun.
pub type Hold<'a> = dyn Fn(Vec<TxnId>) -> Option<InUse> + 'a;

/// Transactions of which somebody needs what is in the graveyard, and such as are being collected.
pub struct Users(Arc<Mutex<Needs>>);

#[derive(Default)]
struct Needs {
    used: HashMap<TxnId, usize>,
    going: HashSet<TxnId>,
    /// Bytes in the graveyard, by transaction.  They change when something is taken out only.
    sizes: HashMap<TxnId, u64>,
}

/// What these transactions displaced is not collected, until it is dropped.
#[derive(Default)]
pub struct Held {
    of: Option<Arc<Mutex<Needs>>>,
    txns: Vec<TxnId>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Held").field(&self.txns).finish()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(of) = &self.of else { return };
        let mut needs = of.lock();
        for txn in &self.txns {
            if let Some(count) = needs.used.get_mut(txn) {
                *count -= 1;
            }
        }
        needs.used.retain(|_, count| *count > 0);
    }
}

impl Default for Users {
    fn default() -> Users {
        Users::new()
    }
}

impl Users {
    /// Nobody.
    pub fn new() -> Users {
        Users(Arc::new(Mutex::new(rank::LEAF, Needs::default())))
    }

    /// `None` if one of them is being collected.
    pub fn hold(&self, txns: Vec<TxnId>) -> Option<Held> {
        let mut needs = self.0.lock();
        if txns.iter().any(|txn| needs.going.contains(txn)) {
            return None;
        }
        for txn in &txns {
            *needs.used.entry(*txn).or_default() += 1;
        }
        Some(Held { of: Some(Arc::clone(&self.0)), txns })
    }

    /// Something was taken out of the graveyard.
    pub(crate) fn taken_out(&self) {
        self.0.lock().sizes.clear();
    }

    /// Bytes that it has in the graveyard, if they were counted.
    pub(crate) fn size(&self, txn: TxnId) -> Option<u64> {
        self.0.lock().sizes.get(&txn).copied()
    }

    /// They were.
    pub(crate) fn counted(&self, txn: TxnId, size: u64) {
        self.0.lock().sizes.insert(txn, size);
    }

    /// The right to collect it; nobody has it a second time.
    pub fn collect(&self, txn: TxnId) -> bool {
        let mut needs = self.0.lock();
        !needs.used.contains_key(&txn) && needs.going.insert(txn)
    }

    /// Whether somebody needs it.
    pub fn is_used(&self, txn: TxnId) -> bool {
        self.0.lock().used.contains_key(&txn)
    }

    /// It was collected.
    pub fn collected(&self, txn: TxnId) {
        let mut needs = self.0.lock();
        needs.going.remove(&txn);
        needs.sizes.remove(&txn);
    }
}

/// Keeps track of the versions of files beside the store.
pub trait Versions: Send + Sync {
    /// Runs `change`, which moves the version of a file without changing anything that counts.
    ///
    /// # Errors
    /// Those of `change`, which is made once in any case.
    fn moves(&self, file: &Handle, change: &dyn Fn() -> Result<()>) -> Result<()>;
}

/// Where the keeper of versions is named, once there is one: a store may be opened before.
#[derive(Clone, Default)]
pub struct Tracked(pub(crate) Arc<OnceLock<Arc<dyn Versions>>>);

impl Tracked {
    /// From now on `versions` keeps track, unless another one does.
    pub fn by(&self, versions: Arc<dyn Versions>) {
        let _ = self.0.set(versions);
    }
}

impl std::fmt::Debug for Tracked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracked").finish_non_exhaustive()
    }
}

/// The transactions whose displaced objects a write set brings back.
pub(crate) fn brought_back(set: &WriteSet) -> impl Iterator<Item = TxnId> {
    set.objects.iter().filter_map(|object| match &object.origin {
        Origin::Grave { name, .. } => grave_of(name),
        _ => None,
    })
}
