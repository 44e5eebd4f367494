//! History: listing it, and bounding what it keeps.
//!
//! A transaction's history is its file in `h/` or its entry in a bundle ([`crate::bundle`]), its displaced objects and
//! before-files in `g/`.  Collecting removes the graveyard part first and the file or entry last, so that an interrupted
//! collection is found again by that.  What is in `conflict/` belongs to outsiders and is never collected.

use crate::bundle::{self, Bundle, Entry};
use crate::dir_store::DirStore;
use crate::history::{History, HistoryEntry, changes};
use crate::io::{Handle, Io};
use crate::layout::{bundle_of, grave_prefix, history_name, names, remove_all};
use std::collections::HashSet;
use std::io::Result;
use systx_base::{Kind, Time, TxnId};

/// What [`DirStore::gc`] leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// At most this many transactions.
    pub count: usize,
    /// None that was committed before this time.
    pub since: Option<Time>,
    /// At most this many bytes in the graveyard.
    pub bytes: u64,
}

impl Default for Keep {
    fn default() -> Self {
        Keep { count: usize::MAX, since: None, bytes: u64::MAX }
    }
}

/// What [`DirStore::gc`] did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GcReport {
    /// Transactions that can no longer be undone.
    pub removed: Vec<TxnId>,
    /// Bytes that were freed.
    pub freed: u64,
    /// Bytes that the graveyard still holds.
    pub kept: u64,
}

/// What is kept of transactions.
#[derive(Default)]
struct Histories {
    all: Vec<History>,
    /// Those of them that have a file of their own, which counts where there is an entry in a bundle as well.
    files: HashSet<TxnId>,
    /// Where the others are.
    bundles: Vec<Bundle>,
}

impl DirStore {
    /// Every transaction that is kept, oldest first.
    pub fn history(&self) -> Result<Vec<HistoryEntry>> {
        let mut entries: Vec<HistoryEntry> = self
            .histories()?
            .into_iter()
            .map(|h| HistoryEntry {
                lsn: h.done.lsn,
                changes: changes(&h.commit.set),
                outside: h.done.outside,
                joint: h.commit.joint,
                meta: h.commit.meta,
            })
            .collect();
        entries.sort_by_key(|e| e.lsn);
        Ok(entries)
    }

    /// Whether a transaction is kept.
    pub fn has_history(&self, txn: TxnId) -> Result<bool> {
        self.kept.has(&*self.io, &self.layout.history, self.number_of_bundles(), txn)
    }

    /// All that can be read.
    pub(crate) fn histories(&self) -> Result<Vec<History>> {
        Ok(self.read_histories()?.all)
    }

    fn read_histories(&self) -> Result<Histories> {
        let (io, dir) = (&*self.io, &self.layout.history);
        let mut read = Histories::default();
        let names = names(io, dir)?;
        for name in names.iter().filter(|name| bundle_of(name).is_none()) {
            match History::load(io, &self.layout, name)? {
                Some(history) => {
                    read.files.insert(history.commit.meta.txn);
                    read.all.push(history);
                }
                None => tracing::warn!(
                    name = %String::from_utf8_lossy(name),
                    "a history file cannot be read"
                ),
            }
        }
        let store = self.number_of_bundles();
        for first in names.iter().filter_map(|name| bundle_of(name)) {
            let Some(bundle) = bundle::load(io, dir, store, first)? else { continue };
            for entry in bundle.entries.iter().filter(|e| e.kept && !read.files.contains(&e.txn)) {
                match History::decode(&bundle.bytes[entry.body.clone()]) {
                    Ok(history) if history.commit.meta.txn == entry.txn => read.all.push(history),
                    _ => tracing::warn!(txn = %entry.txn, "a history in a bundle cannot be read"),
                }
            }
            read.bundles.push(bundle);
        }
        Ok(read)
    }

    /// What tells this store's bundles from another one's.
    pub(crate) fn number_of_bundles(&self) -> u64 {
        self.block().map_or(0, |block| block.store)
    }

    /// Drops the oldest history until the rest is within the limits.
    pub fn gc(&self, keep: Keep) -> Result<GcReport> {
        let mut report = GcReport::default();
        let busy: HashSet<TxnId> = self.uncheckpointed().into_iter().collect();
        // So that this one can go as well.
        self.bundles.close();
        let Histories { mut all, files, bundles } = self.read_histories()?;
        all.sort_by_key(|h| std::cmp::Reverse(h.done.lsn));
        let grave = names(&*self.io, &self.layout.grave)?;
        let (mut bytes, mut gone) = (0u64, HashSet::new());
        for (n, history) in all.iter().enumerate() {
            let meta = &history.commit.meta;
            let prefix = grave_prefix(meta.txn);
            let mine: Vec<&Vec<u8>> = grave.iter().filter(|g| g.starts_with(&prefix)).collect();
            let mut size = 0;
            for name in &mine {
                size += disk_usage(&*self.io, &self.layout.grave, name)?;
            }
            let old = keep.since.is_some_and(|since| meta.finished < since);
            let over = n >= keep.count || old || bytes.saturating_add(size) > keep.bytes;
            if !over || busy.contains(&meta.txn) {
                bytes = bytes.saturating_add(size);
                continue;
            }
            for name in mine {
                remove_all(&*self.io, &self.layout.grave, name)?;
            }
            if files.contains(&meta.txn) {
                self.io.unlink(&self.layout.history, &history_name(meta.txn))?;
            }
            gone.insert(meta.txn);
            report.removed.push(meta.txn);
            report.freed = report.freed.saturating_add(size);
        }
        let store = self.number_of_bundles();
        for bundle in &bundles {
            // Also one that a file counted for.
            let went = |e: &&Entry| e.kept && gone.contains(&e.txn);
            let which = bundle.entries.iter().filter(went).map(|e| e.at).collect();
            self.bundles.let_go(&*self.io, &self.layout.history, store, bundle, &which)?;
        }
        gone.into_iter().for_each(|txn| self.kept.went(txn));
        report.kept = bytes;
        report.removed.reverse();
        Ok(report)
    }
}

/// Allocated bytes of an entry and all below it.
fn disk_usage(io: &dyn Io, at: &Handle, name: &[u8]) -> Result<u64> {
    let stat = io.stat_at(at, name)?;
    let mut total = stat.blocks.saturating_mul(512);
    if stat.kind == Kind::Dir {
        let dir = io.open_dir(at, name)?;
        for child in names(io, &dir)? {
            total = total.saturating_add(disk_usage(io, &dir, &child)?);
        }
    }
    Ok(total)
}
