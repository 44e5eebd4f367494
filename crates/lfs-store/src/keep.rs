//! What is kept of transactions: listing it, taking one back, and letting go of it.

use crate::error::io_error;
use crate::open::VolumeStore;
use crate::own::{self, clear};
use crate::slot::{VolumeSlot, slot_name};
use crate::tree::ino_of;
use std::collections::HashMap;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use systx_base::sync::Mutex;
use systx_base::{Kind, Time, TxnId};
use systx_lfs::format::{BLOCK, Ino};
use systx_lfs::{Error, Shape};
use systx_store::io::{Handle, Tree};
use systx_store::record::{Commit, Graveyard, History, grave_of, history_name, undo};
use systx_store::{GcReport, InUse, Keep, Slot, Undo, UndoError, Wanted, usual_limits};

/// The bound is looked at once so many bytes were displaced, or after so many seconds.
const LOOK_FROM: u64 = 1 << 20;
const LOOK_AGAIN: i64 = 3600;

/// Each entry of the log that cannot be undone any more is a file here, of two blocks with its
/// record; together they take a 32nd of the volume at most.
const BLOCKS_OF_AN_ENTRY: u64 = 64;

/// What a collection needs to know of a history.  A file of the history is written once, so this
/// is true as long as there is that object.
#[derive(Clone, Copy)]
pub(crate) struct Short {
    txn: TxnId,
    lsn: u64,
    finished: Time,
    forgotten: bool,
}

/// What is known of histories without reading them, by the object of the volume.
pub(crate) type Shorts = Mutex<HashMap<Ino, Short>>;

/// What a collection is about to do.
struct Plan {
    forget: Vec<(TxnId, u64)>,
    drop: Vec<TxnId>,
    graves: HashMap<TxnId, Vec<Vec<u8>>>,
    report: GcReport,
}

fn unreadable(name: &[u8], error: &dyn std::fmt::Display) {
    let name = String::from_utf8_lossy(name);
    tracing::warn!(%name, %error, "a history file cannot be read");
}

impl VolumeStore {
    /// All that is kept, in no order.
    pub(crate) fn histories(&self) -> Result<Vec<History>> {
        self.tree.look(|ops| {
            let mut all = Vec::new();
            for (name, link) in ops.list(self.own.history, None, usize::MAX)? {
                match History::decode(&own::read(ops, link.ino)?) {
                    Ok(history) => all.push(history),
                    Err(error) => unreadable(&name, &error),
                }
            }
            Ok(all)
        })
    }

    /// As [`VolumeStore::histories`], as far as a collection needs it: only what was not read
    /// before is read.
    fn shorts(&self) -> Result<Vec<Short>> {
        let known = std::mem::take(&mut *self.shorts.lock());
        let now = self.tree.look(|ops| {
            let mut now = HashMap::new();
            for (name, link) in ops.list(self.own.history, None, usize::MAX)? {
                if let Some(short) = known.get(&link.ino) {
                    now.insert(link.ino, *short);
                    continue;
                }
                match History::decode(&own::read(ops, link.ino)?) {
                    Ok(History { commit: Commit { meta, .. }, done, forgotten }) => {
                        let (txn, lsn, finished) = (meta.txn, done.lsn, meta.finished);
                        now.insert(link.ino, Short { txn, lsn, finished, forgotten });
                    }
                    Err(error) => unreadable(&name, &error),
                }
            }
            Ok(now)
        })?;
        let all = now.values().copied().collect();
        *self.shorts.lock() = now;
        Ok(all)
    }

    /// Whether a transaction is kept.
    pub(crate) fn is_kept(&self, txn: TxnId) -> Result<bool> {
        self.tree.look(|ops| match ops.lookup(self.own.history, &history_name(txn)) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error),
        })
    }

    /// Where what was displaced is.
    pub(crate) fn graveyard(&self) -> Graveyard<'_> {
        let (dir, own, overlay, moves) = (&self.grave, self.own_id, false, true);
        Graveyard { tree: &*self.tree, dir, own, overlay, moves }
    }

    /// A staging slot.
    pub(crate) fn slot(&self) -> Result<Arc<VolumeSlot>> {
        self.tidy()?;
        let made = self.volume.plain(|ops| {
            let ino = ops.make(&Shape::new(Kind::File, 0o600))?;
            ops.set_name(self.own.slots, &slot_name(ino), Some(ino))?;
            Ok(ino)
        });
        let dropped = Box::new(self.tree.slot_dropped());
        let volume = Arc::clone(&self.volume);
        let ino = made.map_err(io_error)?;
        Ok(Arc::new(VolumeSlot { volume, id: ino, ino, dropped }))
    }

    /// A slot that stands for a before-file: one more name of it, which keeps it whatever is
    /// forgotten.  The commit that uses it takes the pages out of it.
    fn lend(&self, file: &Handle) -> Result<Slot> {
        self.tidy()?;
        let ino = ino_of(file);
        if self.tree.stat(file)?.size == 0 {
            return Err(rustix::io::Errno::NOENT.into());
        }
        let lent = self.volume.plain(|ops| {
            let id = ops.make(&Shape::new(Kind::File, 0o600))?;
            ops.set_name(self.own.slots, &slot_name(id), Some(ino))?;
            Ok(id)
        });
        let dropped = Box::new(self.tree.slot_dropped());
        let volume = Arc::clone(&self.volume);
        Ok(Arc::new(VolumeSlot { volume, id: lent.map_err(io_error)?, ino, dropped }))
    }

    /// See [`systx_store::Store::undo_set`].
    pub(crate) fn undo_some(
        &self,
        txn: TxnId,
        wanted: Option<Wanted<'_>>,
    ) -> std::result::Result<Undo, UndoError> {
        let stage = |file: &Handle, _len: u64| self.lend(file);
        let hold = |txns| -> Option<InUse> { Some(Box::new(self.users.hold(txns)?)) };
        undo(self.graveyard(), &stage, &hold, || self.histories(), txn, wanted)
    }

    fn plan(&self, keep: Keep) -> Result<Plan> {
        let (mut all, mut graves) = (self.shorts()?, HashMap::new());
        let mut sizes: HashMap<TxnId, u64> = HashMap::new();
        self.tree.look(|ops| {
            for (name, link) in ops.list(self.own.grave, None, usize::MAX)? {
                let Some(txn) = grave_of(&name) else { continue };
                let size = own::blocks(ops, link.ino)? * BLOCK as u64;
                *sizes.entry(txn).or_default() += size;
                graves.entry(txn).or_insert_with(Vec::new).push(name);
            }
            Ok(())
        })?;
        all.sort_by_key(|history| std::cmp::Reverse(history.lsn));
        let mut report = GcReport::default();
        let (mut forget, mut drop) = (Vec::new(), Vec::new());
        let (mut counted, mut logged) = (0, 0);
        let most = self.volume.space().total / BLOCKS_OF_AN_ENTRY;
        let log = keep.log.min(usize::try_from(most).unwrap_or(usize::MAX));
        for history in all {
            let Short { txn, finished, forgotten, .. } = history;
            let size = sizes.get(&txn).copied().unwrap_or(0);
            if forgotten && !graves.contains_key(&txn) {
                logged += 1;
                if logged > log {
                    drop.push(txn);
                }
                continue;
            }
            let n = counted;
            counted += 1;
            let old = keep.since.is_some_and(|since| finished < since);
            let large = report.kept.saturating_add(size) > keep.bytes;
            let over = n >= keep.least && (n >= keep.count || old || large);
            if !over || self.users.is_used(txn) {
                report.kept = report.kept.saturating_add(size);
                report.left += 1;
                continue;
            }
            logged += 1;
            report.removed.push(txn);
            report.freed = report.freed.saturating_add(size);
            forget.push((txn, size));
        }
        report.removed.reverse();
        Ok(Plan { forget, drop, graves, report })
    }

    /// What [`VolumeStore::collect`] would do.
    pub(crate) fn would(&self, keep: Keep) -> Result<GcReport> {
        Ok(self.plan(keep)?.report)
    }

    /// See [`systx_store::Store::gc`].
    pub(crate) fn collect(&self, keep: Keep) -> Result<GcReport> {
        let Plan { forget, drop, graves, mut report } = self.plan(keep)?;
        report.kept = report.kept.saturating_add(report.freed);
        (report.freed, report.removed) = (0, Vec::new());
        for (txn, size) in forget {
            if !self.users.collect(txn) {
                continue;
            }
            let names = graves.get(&txn).map_or(&[][..], Vec::as_slice);
            let done = self.forget(txn, names, keep.log > 0);
            self.users.collected(txn);
            done?;
            report.removed.push(txn);
            report.freed = report.freed.saturating_add(size);
            report.kept = report.kept.saturating_sub(size);
        }
        for txn in drop {
            let name = history_name(txn);
            let gone = self.volume.plain(|ops| clear(ops, self.own.history, &name));
            gone.map_err(io_error)?;
        }
        report.removed.reverse();
        Ok(report)
    }

    /// Gives back what the undo of a transaction needs.  The graveyard's part goes first, and
    /// alone: what only removes finds room on a full volume, too.
    fn forget(&self, txn: TxnId, graves: &[Vec<u8>], log: bool) -> Result<()> {
        let bury = self
            .volume
            .plain(|ops| graves.iter().try_for_each(|name| clear(ops, self.own.grave, name)));
        bury.map_err(io_error)?;
        let name = history_name(txn);
        let history = self.tree.look(|ops| match ops.lookup(self.own.history, &name) {
            Ok(link) if log => own::read(ops, link.ino).map(Some),
            Ok(_) | Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        })?;
        let history = history.and_then(|bytes| History::decode(&bytes).ok());
        if let Some(history) = history.as_ref().filter(|history| !history.forgotten) {
            let short = history.forget().encode();
            let written =
                self.volume.plain(|ops| own::write(ops, self.own.history, &name, &short).map(drop));
            match written {
                Err(Error::NoSpace) => {}
                written => return written.map_err(io_error),
            }
        } else if history.is_some() {
            return Ok(());
        }
        self.volume.plain(|ops| clear(ops, self.own.history, &name)).map_err(io_error)
    }

    /// See [`systx_store::Store::usual_limits`].
    pub(crate) fn limits(&self) -> Result<Keep> {
        usual_limits(&*self.tree, self.would(Keep::default())?.kept)
    }

    /// See [`systx_store::Store::bound_history`].
    pub(crate) fn bound(&self) -> Result<Option<GcReport>> {
        let now = self.tree.now();
        let displaced = self.looks.displaced.load(Relaxed);
        let late = now.secs.saturating_sub(self.looks.last.load(Relaxed)) >= LOOK_AGAIN;
        if displaced < LOOK_FROM && !late {
            return Ok(None);
        }
        self.looks.displaced.fetch_sub(displaced, Relaxed);
        self.looks.last.store(now.secs, Relaxed);
        let keep = self.limits()?;
        let needed = !self.would(keep)?.removed.is_empty();
        needed.then(|| self.collect(keep)).transpose()
    }
}
