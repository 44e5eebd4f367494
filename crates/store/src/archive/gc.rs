//! Bounding what is kept.
//!
//! A transaction's history is its file in `h/` or its entry in a bundle ([`crate::bundle`]), its
//! displaced objects and before-files in `g/`. To *forget* a transaction is to give back what only
//! its undo needs: it stays in the log, as an entry without a write set ([`History::forgotten`]).
//! What is in `conflict/` belongs to outsiders and is never collected.
//!
//! **Order.** The graveyard part goes first, then the short entry is written, and the full one goes
//! last. So a collection that was cut off is found again by the full one, and one that lost its
//! last step in a power cut is as well. What is in the graveyard without any history (a power cut
//! reordered the two) goes with the next collection.
//!
//! **Beside others.** What somebody takes back is in use ([`crate::graveyard::Users`]) from the
//! look at its history to the end of its installation, and is not collected; what is being
//! collected cannot be taken back any more. What the journal still needs, and what such records
//! take out of the graveyard, stays as well.

use super::{Archive, Histories};
use crate::bundle::Entry;
use crate::history::History;
use crate::interface::{GcReport, Keep};
use crate::io::{Handle, Io};
use crate::layout::{found, grave_of, history_name, names, remove_all_by};
use std::collections::{HashMap, HashSet};
use std::io::Result;
use systx_base::{Kind, TxnId};

/// What a collection is about to do.
struct Plan {
    read: Histories,
    /// What is in the graveyard.
    graves: HashMap<TxnId, Vec<Vec<u8>>>,
    /// To be forgotten, newest first: where in `read.all`, and bytes.
    forget: Vec<(usize, u64)>,
    /// Forgotten earlier, and to leave the log.
    drop: Vec<usize>,
    report: GcReport,
}

impl Archive {
    /// What [`Archive::gc`] with these limits would do.
    pub fn would_gc(&self, keep: Keep) -> Result<GcReport> {
        Ok(self.plan(keep)?.report)
    }

    /// Forgets the oldest transactions until the rest is within the limits.
    pub fn gc(&self, keep: Keep) -> Result<GcReport> {
        // So that the one that is appended to can go as well.
        self.bundles.close();
        let Plan { mut read, graves, forget, drop, mut report } = self.plan(keep)?;
        report.kept = report.kept.saturating_add(report.freed);
        (report.freed, report.removed) = (0, Vec::new());
        let mut gone = HashSet::new();
        for (at, size) in forget {
            let history = &read.all[at];
            let txn = history.commit.meta.txn;
            if self.journal.needed().contains(&txn) || !self.users.collect(txn) {
                continue;
            }
            let done = self.forget(history, graves.get(&txn), &read, keep.log > 0);
            self.users.collected(txn);
            if done? {
                gone.insert(txn);
            }
            report.removed.push(txn);
            report.freed = report.freed.saturating_add(size);
            report.kept = report.kept.saturating_sub(size);
        }
        for at in drop {
            let txn = read.all[at].commit.meta.txn;
            if read.files.contains(&txn) {
                self.ground.io.unlink(&self.ground.layout.history, &history_name(txn))?;
            }
            gone.insert(txn);
        }
        self.drop_torn(&read.torn, &mut gone)?;
        self.let_go(&read, &gone, &report.removed)?;
        read.known.retain(|txn| !gone.contains(txn));
        self.bury_the_nameless(&graves, &read.known)?;
        report.removed.reverse();
        Ok(report)
    }

    /// Lets what cannot be read go: a power cut has torn it, and it counts as absent. One that was
    /// being written when it was read is the journal's until it is whole, so it is looked at once
    /// more.
    fn drop_torn(&self, torn: &HashSet<TxnId>, gone: &mut HashSet<TxnId>) -> Result<()> {
        if torn.is_empty() {
            return Ok(());
        }
        let needed = self.journal.needed();
        let again = self.read_histories()?;
        let whole: HashSet<TxnId> = again.all.iter().map(|h| h.commit.meta.txn).collect();
        for txn in torn.iter().filter(|txn| !needed.contains(txn) && again.torn.contains(txn)) {
            let dir = &self.ground.layout.history;
            if !again.files.contains(txn) {
                found(self.ground.io.unlink(dir, &history_name(*txn)))?;
            }
            if !whole.contains(txn) {
                gone.insert(*txn);
            }
        }
        Ok(())
    }

    /// Lets entries of bundles go: all of those that are `gone`, the full ones of those that were
    /// `forgotten`.
    fn let_go(&self, read: &Histories, gone: &HashSet<TxnId>, forgotten: &[TxnId]) -> Result<()> {
        let forgotten: HashSet<&TxnId> = forgotten.iter().collect();
        let store = self.number();
        for bundle in &read.bundles {
            let went = |e: &&Entry| e.kept && (gone.contains(&e.txn) || forgotten.contains(&e.txn));
            let which = bundle.entries.iter().filter(went).map(|e| e.at).collect();
            self.bundles.let_go(
                &*self.ground.io,
                &self.ground.layout.history,
                store,
                bundle,
                &which,
            )?;
        }
        gone.iter().for_each(|txn| self.kept.went(*txn));
        Ok(())
    }

    /// Gives back what the undo of a transaction needs; whether nothing of it is left in the log
    /// either.
    fn forget(
        &self,
        history: &History,
        graves: Option<&Vec<Vec<u8>>>,
        read: &Histories,
        log: bool,
    ) -> Result<bool> {
        let txn = history.commit.meta.txn;
        for name in graves.into_iter().flatten() {
            self.bury(name)?;
        }
        let (dir, own) = (&self.ground.layout.history, read.files.contains(&txn));
        if !log {
            if own {
                self.ground.io.unlink(dir, &history_name(txn))?;
            }
            return Ok(true);
        }
        let short = history.forget();
        if !own {
            // If it cannot be in a bundle it has a file, which counts.
            self.save(&short, false)?;
            return Ok(false);
        }
        let bytes = short.encode();
        let kept = self.save_in_bundle(txn, &bytes)?;
        self.ground.io.unlink(dir, &history_name(txn))?;
        Ok(!kept)
    }

    /// Removes something from the graveyard.  A file in there may have further names, and who has
    /// met it by one of them takes its times for its version.
    fn bury(&self, name: &[u8]) -> Result<()> {
        remove_all_by(&*self.ground.io, &self.ground.layout.grave, name, &|at, name, stat| {
            let remove = || self.ground.io.unlink(at, name);
            match self.versions.0.get() {
                Some(versions) if stat.nlink > 1 => {
                    versions.moves(&self.ground.io.pin(at, name)?, &remove)
                }
                _ => remove(),
            }
        })
    }

    /// Removes what is in the graveyard and belongs to no history.
    fn bury_the_nameless(
        &self,
        graves: &HashMap<TxnId, Vec<Vec<u8>>>,
        known: &HashSet<TxnId>,
    ) -> Result<()> {
        for (txn, names) in graves.iter().filter(|(txn, _)| !known.contains(txn)) {
            if self.is_needed(*txn) || !self.users.collect(*txn) {
                continue;
            }
            let removed = names.iter().try_for_each(|n| self.bury(n));
            self.users.collected(*txn);
            removed?;
        }
        Ok(())
    }

    /// Whether the journal or an undo under way needs it.
    fn is_needed(&self, txn: TxnId) -> bool {
        self.users.is_used(txn) || self.journal.needed().contains(&txn)
    }

    fn plan(&self, keep: Keep) -> Result<Plan> {
        // In this order: what an installation puts into the graveyard is the journal's until its
        // history is written.
        let mut graves: HashMap<TxnId, Vec<Vec<u8>>> = HashMap::new();
        for name in names(&*self.ground.io, &self.ground.layout.grave)? {
            if let Some(txn) = grave_of(&name) {
                graves.entry(txn).or_default().push(name);
            }
        }
        let busy = self.journal.needed();
        let mut read = self.read_histories()?;
        read.known.extend(&busy);
        read.all.sort_by_key(|h| std::cmp::Reverse(h.done.lsn));
        let mut report = GcReport::default();
        let (mut forget, mut drop, mut logged) = (Vec::new(), Vec::new(), 0);
        let mut counted = 0;
        for (at, history) in read.all.iter().enumerate() {
            let meta = &history.commit.meta;
            let still = busy.contains(&meta.txn);
            let size = self.size_of(meta.txn, graves.get(&meta.txn), !still)?;
            if history.forgotten && size == 0 {
                logged += 1;
                if logged > keep.log {
                    drop.push(at);
                }
                continue;
            }
            let n = counted;
            counted += 1;
            let old = keep.since.is_some_and(|since| meta.finished < since);
            let large = report.kept.saturating_add(size) > keep.bytes;
            let over = n >= keep.least && (n >= keep.count || old || large);
            if !over || still || self.users.is_used(meta.txn) {
                report.kept = report.kept.saturating_add(size);
                report.left += 1;
                continue;
            }
            logged += 1;
            forget.push((at, size));
            report.removed.push(meta.txn);
            report.freed = report.freed.saturating_add(size);
        }
        report.removed.reverse();
        Ok(Plan { read, graves, forget, drop, report })
    }

    /// Bytes that a transaction has in the graveyard.
    fn size_of(&self, txn: TxnId, names: Option<&Vec<Vec<u8>>>, remember: bool) -> Result<u64> {
        let Some(names) = names else { return Ok(0) };
        if let Some(size) = self.users.size(txn) {
            return Ok(size);
        }
        let mut size = 0u64;
        for name in names {
            size =
                size.saturating_add(disk_usage(&*self.ground.io, &self.ground.layout.grave, name)?);
        }
        if remember {
            self.users.counted(txn, size);
        }
        Ok(size)
    }
}

/// Allocated bytes of an entry and all below it; none if it is gone.  Not by recursion: trees may
/// be deeper than a stack.
fn disk_usage(io: &dyn Io, at: &Handle, name: &[u8]) -> Result<u64> {
    let mut total = 0u64;
    let mut todo = vec![(at.clone(), name.to_vec())];
    while let Some((at, name)) = todo.pop() {
        let Some(stat) = found(io.stat_at(&at, &name))? else { continue };
        total = total.saturating_add(stat.blocks.saturating_mul(512));
        if stat.kind == Kind::Dir
            && let Some(dir) = found(io.open_dir(&at, &name))?
        {
            todo.extend(names(io, &dir)?.into_iter().map(|child| (dir.clone(), child)));
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests;
