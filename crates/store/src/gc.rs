//! History: listing it, and bounding what it keeps.
//!
//! A transaction's history is its file in `h/`, its displaced objects and before-files in `g/`.
//! Collecting removes the graveyard part first and the file last, so that an interrupted collection
//! is found again by the file.  What is in `conflict/` belongs to outsiders and is never collected.

use crate::dir_store::DirStore;
use crate::history::{History, HistoryEntry, changes};
use crate::io::{Handle, Io};
use crate::layout::{grave_prefix, history_name, names, remove_all};
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
        self.kept.has(&*self.io, &self.layout.history, txn)
    }

    pub(crate) fn histories(&self) -> Result<Vec<History>> {
        let mut all = Vec::new();
        for name in names(&*self.io, &self.layout.history)? {
            match History::load(&*self.io, &self.layout, &name)? {
                Some(history) => all.push(history),
                None => tracing::warn!(
                    name = %String::from_utf8_lossy(&name),
                    "a history file cannot be read"
                ),
            }
        }
        Ok(all)
    }

    /// Drops the oldest history until the rest is within the limits.
    pub fn gc(&self, keep: Keep) -> Result<GcReport> {
        let mut report = GcReport::default();
        let busy: HashSet<TxnId> = self.uncheckpointed().into_iter().collect();
        let mut all = self.histories()?;
        all.sort_by_key(|h| std::cmp::Reverse(h.done.lsn));
        let grave = names(&*self.io, &self.layout.grave)?;
        let mut bytes = 0u64;
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
            self.io.unlink(&self.layout.history, &history_name(meta.txn))?;
            self.kept.went(meta.txn);
            report.removed.push(meta.txn);
            report.freed = report.freed.saturating_add(size);
        }
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
