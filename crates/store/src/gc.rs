//! History: listing it, and bounding what it keeps.
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
//! **Beside others.** What somebody takes back is in use ([`InUse`]) from the look at its history
//! to the end of its installation, and is not collected; what is being collected cannot be taken
//! back any more. What the journal still needs, and what such records take out of the graveyard,
//! stays as well.

use crate::bundle::{self, Bundle, Entry};
use crate::dir_store::DirStore;
use crate::history::{History, HistoryEntry};
use crate::interface::{GcReport, Keep};
use crate::io::{Handle, Io};
use crate::layout::{bundle_of, found, grave_of, history_name, history_of, names, remove_all_by};
use crate::writeset::{Origin, WriteSet};
use std::collections::{HashMap, HashSet};
use std::io::Result;
use std::sync::{Arc, OnceLock};
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, TxnId};

/// What is kept of transactions.
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
pub struct InUse {
    of: Option<Arc<Mutex<Needs>>>,
    txns: Vec<TxnId>,
}

impl std::fmt::Debug for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InUse").field(&self.txns).finish()
    }
}

impl Drop for InUse {
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
    pub fn hold(&self, txns: Vec<TxnId>) -> Option<InUse> {
        let mut needs = self.0.lock();
        if txns.iter().any(|txn| needs.going.contains(txn)) {
            return None;
        }
        for txn in &txns {
            *needs.used.entry(*txn).or_default() += 1;
        }
        Some(InUse { of: Some(Arc::clone(&self.0)), txns })
    }

    /// Something was taken out of the graveyard.
    pub(crate) fn taken_out(&self) {
        self.0.lock().sizes.clear();
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

impl DirStore {
    /// Every transaction that is kept, oldest first.
    pub fn history(&self) -> Result<Vec<HistoryEntry>> {
        Ok(HistoryEntry::of_all(self.histories()?))
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
            read.known.extend(history_of(name));
            match History::load(io, &self.layout, name)? {
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
        let store = self.number_of_bundles();
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
    pub(crate) fn number_of_bundles(&self) -> u64 {
        self.block().map_or(0, |block| block.store)
    }

    /// What [`DirStore::gc`] with these limits would do.
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
            if self.needed_by_journal().contains(&txn) || !self.users.collect(txn) {
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
                self.io.unlink(&self.layout.history, &history_name(txn))?;
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
        let needed = self.needed_by_journal();
        let again = self.read_histories()?;
        let whole: HashSet<TxnId> = again.all.iter().map(|h| h.commit.meta.txn).collect();
        for txn in torn.iter().filter(|txn| !needed.contains(txn) && again.torn.contains(txn)) {
            let dir = &self.layout.history;
            if !again.files.contains(txn) {
                found(self.io.unlink(dir, &history_name(*txn)))?;
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
        let store = self.number_of_bundles();
        for bundle in &read.bundles {
            let went = |e: &&Entry| e.kept && (gone.contains(&e.txn) || forgotten.contains(&e.txn));
            let which = bundle.entries.iter().filter(went).map(|e| e.at).collect();
            self.bundles.let_go(&*self.io, &self.layout.history, store, bundle, &which)?;
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
        let (dir, own) = (&self.layout.history, read.files.contains(&txn));
        if !log {
            if own {
                self.io.unlink(dir, &history_name(txn))?;
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
        let store = self.number_of_bundles();
        let bundles = self.block().is_some_and(|block| block.has_bundles());
        let kept = bundles && self.bundles.append(&*self.io, dir, store, txn, &bytes)?;
        self.io.unlink(dir, &history_name(txn))?;
        Ok(!kept)
    }

    /// Removes something from the graveyard.  A file in there may have further names, and who has
    /// met it by one of them takes its times for its version.
    fn bury(&self, name: &[u8]) -> Result<()> {
        remove_all_by(&*self.io, &self.layout.grave, name, &|at, name, stat| {
            let remove = || self.io.unlink(at, name);
            match self.config.versions.0.get() {
                Some(versions) if stat.nlink > 1 => {
                    versions.moves(&self.io.pin(at, name)?, &remove)
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
        self.users.is_used(txn) || self.needed_by_journal().contains(&txn)
    }

    fn plan(&self, keep: Keep) -> Result<Plan> {
        // In this order: what an installation puts into the graveyard is the journal's until its
        // history is written.
        let mut graves: HashMap<TxnId, Vec<Vec<u8>>> = HashMap::new();
        for name in names(&*self.io, &self.layout.grave)? {
            if let Some(txn) = grave_of(&name) {
                graves.entry(txn).or_default().push(name);
            }
        }
        let busy = self.needed_by_journal();
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
        if let Some(size) = self.users.0.lock().sizes.get(&txn) {
            return Ok(*size);
        }
        let mut size = 0u64;
        for name in names {
            size = size.saturating_add(disk_usage(&*self.io, &self.layout.grave, name)?);
        }
        if remember {
            self.users.0.lock().sizes.insert(txn, size);
        }
        Ok(size)
    }
}

/// The transactions whose displaced objects a write set brings back.
pub(crate) fn brought_back(set: &WriteSet) -> impl Iterator<Item = TxnId> {
    set.objects.iter().filter_map(|object| match &object.origin {
        Origin::Grave { name, .. } => grave_of(name),
        _ => None,
    })
}

/// Allocated bytes of an entry and all below it; none if it is gone.
fn disk_usage(io: &dyn Io, at: &Handle, name: &[u8]) -> Result<u64> {
    let Some(stat) = found(io.stat_at(at, name))? else { return Ok(0) };
    let mut total = stat.blocks.saturating_mul(512);
    if stat.kind == Kind::Dir {
        let Some(dir) = found(io.open_dir(at, name))? else { return Ok(0) };
        for child in names(io, &dir)? {
            total = total.saturating_add(disk_usage(io, &dir, &child)?);
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests;
