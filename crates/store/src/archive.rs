//! What a store of plain files keeps of committed transactions: it is listed, looked back at, taken
//! back, and forgotten ([`gc`]).

use crate::bundle::{self, Bundle, Bundles};
use crate::content::copy_data;
use crate::env::Ground;
use crate::error::UndoError;
use crate::graveyard::{Graveyard, Tracked, Users};
use crate::history::{History, HistoryEntry};
use crate::interface::{InUse, Past, PastSide, Undo, Wanted};
use crate::io::{Handle, Tree};
use crate::kept::Kept;
use crate::layout::{bundle_of, history_of, names};
use crate::look_back::look_back;
use crate::super_block::Super;
use crate::undo::undo;
use crate::writeset::Slot;
use std::collections::{HashMap, HashSet};
use std::io::Result;
use std::sync::Arc;
use systx_base::TxnId;

mod gc;

/// What the journal has to say about it.
pub(crate) trait Journal: Send + Sync {
    /// The super block, once something was committed.
    fn block(&self) -> Option<Super>;
    /// Transactions whose record it still needs, and those whose displaced objects such a record
    /// brings back.
    fn needed(&self) -> HashSet<TxnId>;
}

/// See the module.
pub(crate) struct Archive {
    pub ground: Arc<Ground>,
    /// Told of the versions that a collection moves.
    pub versions: Tracked,
    pub kept: Kept,
    pub bundles: Bundles,
    pub users: Users,
    pub journal: Arc<dyn Journal>,
}

/// What was read of transactions.
#[derive(Default)]
struct Histories {
    all: Vec<History>,
    /// Those of them that have a file of their own, which counts where there is an entry in a
    /// bundle as well.
    files: HashSet<TxnId>,
    /// All that have something, also such as cannot be read.
    known: HashSet<TxnId>,
    /// Those.
    torn: HashSet<TxnId>,
    /// Where the others are.
    bundles: Vec<Bundle>,
}

impl Archive {
    /// Every transaction that is kept, oldest first.
    pub fn entries(&self) -> Result<Vec<HistoryEntry>> {
        Ok(HistoryEntry::of_all(self.histories()?))
    }

    /// Whether a transaction is kept.
    pub fn has(&self, txn: TxnId) -> Result<bool> {
        self.kept.has(&*self.ground.io, &self.ground.layout.history, self.number(), txn)
    }

    /// All that can be read.
    pub fn histories(&self) -> Result<Vec<History>> {
        Ok(self.read_histories()?.all)
    }

    fn read_histories(&self) -> Result<Histories> {
        let (io, dir) = (&*self.ground.io, &self.ground.layout.history);
        let mut read = Histories::default();
        let names = names(io, dir)?;
        for name in names.iter().filter(|name| bundle_of(name).is_none()) {
            read.known.extend(history_of(name));
            match History::load(io, &self.ground.layout, name)? {
                Some(history) => {
                    read.files.insert(history.commit.meta.txn);
                    read.all.push(history);
                }
                None => {
                    read.torn.extend(history_of(name));
                    tracing::warn!(
                        name = %String::from_utf8_lossy(name),
                        "a history file cannot be read"
                    );
                }
            }
        }
        let store = self.number();
        let mut in_bundles: HashMap<TxnId, History> = HashMap::new();
        for first in names.iter().filter_map(|name| bundle_of(name)) {
            let Some(bundle) = bundle::load(io, dir, store, first)? else { continue };
            for entry in bundle.entries.iter().filter(|e| e.kept && !read.files.contains(&e.txn)) {
                read.known.insert(entry.txn);
                match History::decode(&bundle.bytes[entry.body.clone()]) {
                    Ok(history) if history.commit.meta.txn == entry.txn => {
                        // Of two a collection that was cut off has left one.
                        let known = in_bundles.get(&entry.txn);
                        if known.is_none_or(|known| !known.forgotten) {
                            in_bundles.insert(entry.txn, history);
                        }
                    }
                    _ => {
                        read.torn.insert(entry.txn);
                        tracing::warn!(txn = %entry.txn, "a history in a bundle cannot be read");
                    }
                }
            }
            read.bundles.push(bundle);
        }
        read.all.extend(in_bundles.into_values());
        Ok(read)
    }

    /// What tells this store's bundles from another one's.
    fn number(&self) -> u64 {
        self.journal.block().map_or(0, |block| block.store)
    }

    /// Writes a history; durable with the next checkpoint. `redo`: an earlier attempt may have
    /// written it.
    pub fn save(&self, history: &History, redo: bool) -> Result<()> {
        let (txn, bytes) = (history.commit.meta.txn, history.encode());
        if !redo && self.save_in_bundle(txn, &bytes)? {
            return Ok(());
        }
        crate::history::save(&*self.ground.io, &self.ground.layout, txn, &bytes)
    }

    /// Whether it fits, and there are bundles.
    fn save_in_bundle(&self, txn: TxnId, bytes: &[u8]) -> Result<bool> {
        let Some(block) = self.journal.block().filter(Super::has_bundles) else { return Ok(false) };
        self.bundles.append(&*self.ground.io, &self.ground.layout.history, block.store, txn, bytes)
    }

    /// See [`crate::Store::undo_set`]; or of what is `wanted`.
    pub fn undo(
        &self,
        txn: TxnId,
        wanted: Option<Wanted<'_>>,
    ) -> std::result::Result<Undo, UndoError> {
        let stage = |file: &Handle, len: u64| -> Result<Slot> {
            let slot = self.ground.pool.take()?;
            copy_data(&*self.ground.io, file, slot.handle(), len)?;
            self.ground.io.set_len(slot.handle(), len)?;
            Ok(Arc::new(slot))
        };
        let hold = |txns| -> Option<InUse> { Some(Box::new(self.users.hold(txns)?)) };
        undo(self.graveyard(), &stage, &hold, || self.histories(), txn, wanted)
    }

    /// See [`crate::Store::look_back`].
    pub fn look_back(&self, txn: TxnId) -> Result<Option<Vec<Past>>> {
        look_back(self.graveyard(), self.histories()?, txn)
    }

    /// See [`crate::Store::read_back`].
    pub fn read_back(&self, side: &PastSide, limit: usize) -> Result<Option<Vec<u8>>> {
        self.graveyard().read_back(side, limit)
    }

    /// Where it keeps what was displaced.
    fn graveyard(&self) -> Graveyard<'_> {
        let (tree, overlay): (&dyn Tree, _) = (&*self.ground.io, self.ground.overlay);
        Graveyard {
            tree,
            dir: &self.ground.layout.grave,
            own: self.ground.layout.id,
            overlay,
            moves: false,
        }
    }
}
