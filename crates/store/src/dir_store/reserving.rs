//! Room for a commit: reserved before the decision, and made, where it is short, by forgetting how
//! to undo the oldest transactions.
//!
//! The history has a bound as well, which is kept after commits ([`DirStore::bound_history`]): its
//! own is the share of the file system that it may take, and what is free, so that it is never the
//! larger part of why a disk is full.

use super::{BALLAST_FROM, DirStore, Room};
use crate::error::{ReserveError, is_full, is_over_quota};
use crate::history::History;
use crate::interface::{Forgotten, GcReport, Keep, Reservation};
use crate::io::{Class, Tree};
use crate::origins::{Origins, is_gone};
use crate::space::{MARGIN, by_length, room_under_quota, space_needed};
use crate::staging::Slot;
use crate::writeset::{Object, Origin, WriteSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use systx_base::{Kind, Time};

/// The history takes at most this part of a file system.
pub const SHARE: u64 = 10;
/// It reaches so far back, in seconds.
pub const AGE: i64 = 30 * 86_400;
/// So many of the newest transactions can be undone, also if they are old, or large.
pub const LEAST: usize = 1;
/// So many that cannot be undone any more are in the log.
pub const LOGGED: usize = 10_000;

/// The bound is looked at once this many bytes were displaced, or a part of what there may be.
const LOOK_FROM: u64 = 1 << 20;
const LOOK_PART: u64 = 64;
/// Or after so many seconds: what is too old.
const LOOK_AGAIN: i64 = 3600;
/// What a directory that was displaced counts for, until it is looked into.
const DIRECTORY: u64 = 1 << 20;

/// When the bound was looked at, for openings that follow.
#[derive(Clone, Default, Debug)]
pub struct Looked(pub(crate) Arc<Looks>);

/// See [`Looked`].
#[derive(Default, Debug)]
pub(crate) struct Looks {
    /// Bytes that were displaced since.
    displaced: AtomicU64,
    /// Seconds.
    last: AtomicI64,
    /// What was forgotten for content that is written, and nobody was told of: transactions and
    /// bytes.
    untold: (AtomicU64, AtomicU64),
}

/// The limits that hold without anybody's order, where histories hold `held` bytes.
pub fn usual_limits(tree: &dyn Tree, held: u64) -> std::io::Result<Keep> {
    let (info, now) = (tree.fs_info()?, tree.now());
    let share = info.blocks.saturating_mul(info.bsize) / SHARE;
    let free = info.bavail.saturating_mul(info.bsize);
    let since = Some(Time { secs: now.secs.saturating_sub(AGE), nanos: now.nanos });
    // What is given back is free then: half of both.
    let bytes = share.min(free.saturating_add(held) / 2);
    Ok(Keep { count: usize::MAX, since, bytes, least: LEAST, log: LOGGED })
}

impl DirStore {
    /// Makes sure that a commit of this write set, and its installation, will find room. Where
    /// there is not enough, the oldest transactions are forgotten until there is.
    pub fn reserve(&self, set: &WriteSet) -> Result<Reservation, ReserveError> {
        let mut forgotten = Forgotten::default();
        loop {
            let error = match self.reserve_once(set) {
                Ok(room) => {
                    let (transactions, bytes) = &self.config.looked.0.untold;
                    forgotten.transactions += transactions.swap(0, Relaxed);
                    forgotten.bytes = forgotten.bytes.saturating_add(bytes.swap(0, Relaxed));
                    return Ok(Reservation::new(room, forgotten));
                }
                Err(error) => error,
            };
            let report = match lacking(&error).map(|bytes| self.forget_for(bytes)) {
                Some(Ok(report)) if !report.removed.is_empty() => report,
                Some(Err(why)) => {
                    tracing::warn!(%why, "no room could be made by forgetting transactions");
                    return Err(error);
                }
                _ => return Err(error),
            };
            forgotten.transactions += report.removed.len() as u64;
            forgotten.bytes = forgotten.bytes.saturating_add(report.freed);
        }
    }

    /// As where a commit finds no room: for content of a transaction that goes to a staging slot.
    /// Whether there is more room now; the next commit tells of it.
    pub fn forget_for_content(&self, bytes: u64) -> bool {
        const STEP: u64 = 16 << 20;
        match self.forget_for(Lacking::Unknown(bytes.max(STEP))) {
            Ok(report) => {
                self.config.looked.0.untold.0.fetch_add(report.removed.len() as u64, Relaxed);
                self.config.looked.0.untold.1.fetch_add(report.freed, Relaxed);
                report.freed > 0
            }
            Err(error) => {
                tracing::warn!(%error, "no room could be made by forgetting transactions");
                false
            }
        }
    }

    /// Forgets the oldest transactions, until that gives so many bytes back; none if all together
    /// would not do.
    fn forget_for(&self, bytes: Lacking) -> std::io::Result<GcReport> {
        let all = Keep { count: LEAST, log: LOGGED, ..Keep::default() };
        let can = self.archive.would_gc(all)?;
        let wanted = match bytes {
            Lacking::Bytes(bytes) if can.freed < bytes => return Ok(GcReport::default()),
            Lacking::Bytes(bytes) | Lacking::Unknown(bytes) => bytes,
        };
        // In growing steps, where nobody says how much is enough.
        let left = can.removed.len() + can.left;
        let count = match bytes {
            Lacking::Bytes(_) => usize::MAX,
            Lacking::Unknown(_) => left - can.removed.len().div_ceil(4),
        };
        let keep = (can.freed + can.kept).saturating_sub(wanted);
        let report =
            self.archive.gc(Keep { count: count.max(LEAST), bytes: keep, least: LEAST, ..all })?;
        if !report.removed.is_empty() && self.ground.class != Class::Memory {
            // Until then some file systems do not give out what was freed.
            self.ground.io.sync_fs()?;
        }
        Ok(report)
    }

    /// The limits that hold without anybody's order.
    pub fn usual_limits(&self) -> std::io::Result<Keep> {
        usual_limits(&*self.ground.io, self.archive.would_gc(Keep::default())?.kept)
    }

    /// Forgets what is beyond the usual limits, if there may be something.
    pub fn bound_history(&self) -> std::io::Result<Option<GcReport>> {
        let now = self.ground.io.now();
        let displaced = self.config.looked.0.displaced.load(Relaxed);
        let late = now.secs.saturating_sub(self.config.looked.0.last.load(Relaxed)) >= LOOK_AGAIN;
        if displaced < LOOK_FROM && !late {
            return Ok(None);
        }
        let info = self.ground.io.fs_info()?;
        let bound = (info.blocks / SHARE).min(info.bavail).saturating_mul(info.bsize);
        if displaced < bound / LOOK_PART && !late {
            return Ok(None);
        }
        self.config.looked.0.displaced.fetch_sub(displaced, Relaxed);
        self.config.looked.0.last.store(now.secs, Relaxed);
        let keep = self.usual_limits()?;
        let needed = !self.archive.would_gc(keep)?.removed.is_empty();
        needed.then(|| self.archive.gc(keep)).transpose()
    }

    /// Notes what an installation has put into the graveyard.
    pub(super) fn displaced(&self, history: &History) {
        let graves = history.done.graves.iter();
        let size = |ix, size| match history.commit.set.object(ix).kind() {
            Kind::Dir => DIRECTORY,
            _ => size,
        };
        let mut bytes: u64 = graves.map(|(ix, stamp)| size(*ix, stamp.size)).sum();
        for before in &history.commit.befores {
            if let crate::history::OldContent::InPlace { file: true, extents, .. } = &before.content
            {
                bytes += extents.iter().map(|e| e.data.len()).sum::<u64>();
            }
        }
        self.config.looked.0.displaced.fetch_add(bytes, Relaxed);
        let brought_back = |o: &Object| matches!(o.origin, Origin::Grave { .. });
        if history.commit.set.objects.iter().any(brought_back) {
            self.archive.users.taken_out();
        }
    }

    /// The bytes that a commit may need, and whether far more than that is free.
    fn needed(&self, set: &WriteSet, free: u64) -> std::io::Result<(u64, bool)> {
        let plenty = |needed: u64| free > needed.saturating_mul(4).saturating_add(16 * MARGIN);
        let inline = self.config.inline_before;
        let most = space_needed(set, inline, by_length);
        if plenty(most) && most < BALLAST_FROM {
            return Ok((most, true));
        }
        // A file with holes takes less than its length.
        let mut origins = Origins::new(self.ground.env(), set);
        let mut failed = None;
        let needed = space_needed(set, inline, |ix, object| {
            let length = by_length(ix, object);
            let taken = match origins.place(ix) {
                Ok(Some((dir, name))) => self.ground.io.stat_at(&dir, name),
                Ok(None) => return length,
                Err(e) => Err(e),
            };
            match taken {
                Ok(stat) => length.min(stat.blocks.saturating_mul(512)),
                // The commit finds out.
                Err(e) if is_gone(&e) => length,
                Err(e) => {
                    failed = Some(e);
                    length
                }
            }
        });
        failed.map_or(Ok((needed, plenty(needed))), Err)
    }

    fn reserve_once(&self, set: &WriteSet) -> Result<Room, ReserveError> {
        set.check()?;
        drop(self.live().map_err(ReserveError::Poisoned)?);
        let info = self.ground.io.fs_info().map_err(ReserveError::Io)?;
        let free = info.bavail.saturating_mul(info.bsize);
        let (needed, plenty) = self.needed(set, free).map_err(ReserveError::Io)?;
        if free < needed.saturating_add(MARGIN) {
            return Err(ReserveError::NoSpace { needed, available: free });
        }
        let inodes = self.bounds.inodes.promise(set, &info)?;
        let segment = self.block().map_or(self.config.segment_bytes, |b| b.segment_bytes);
        let limits = self.ground.io.has_quota().then(|| room_under_quota(needed, segment));
        let held = limits.map_or(needed, |[ahead, after]| ahead.saturating_add(after));
        let no_room = |e: std::io::Error| match e {
            e if is_over_quota(&e) => ReserveError::Quota { needed: held },
            e if is_full(&e) => ReserveError::NoSpace { needed: held, available: free },
            e => ReserveError::Io(e),
        };
        match crate::xattrs::try_out(self.ground.env(), set) {
            Ok(None) => {}
            Ok(Some(refused)) if is_over_quota(&refused.source) => {
                return Err(no_room(refused.source));
            }
            Ok(Some(refused)) => return Err(ReserveError::Xattr(refused)),
            Err(e) => return Err(no_room(e)),
        }
        let hold = |bytes: u64| -> std::io::Result<Option<Slot>> {
            let slot = self.ground.pool.take()?;
            self.ground.io.allocate(slot.handle(), 0, bytes)?;
            Ok(Some(slot))
        };
        let room = |ahead, ballast, inodes| Room { ahead, ballast, _inodes: inodes };
        if let Some([ahead, after]) = limits {
            let hold_all = || -> std::io::Result<Room> {
                self.spare.keep(&*self.ground.io, &self.ground.layout)?;
                Ok(room(hold(ahead)?, hold(after)?, inodes))
            };
            return hold_all().map_err(no_room);
        }
        // In memory, holding blocks costs as much as writing them.
        if plenty && (needed < BALLAST_FROM || self.ground.class == Class::Memory) {
            return Ok(room(None, None, inodes));
        }
        let ballast = hold(needed).map_err(no_room)?;
        Ok(room(None, ballast, inodes))
    }
}

/// What there is too little of.
#[derive(Clone, Copy)]
enum Lacking {
    /// So many bytes.
    Bytes(u64),
    /// Nobody says how much is enough: of inodes, or within a quota; this is an upper estimate.
    Unknown(u64),
}

fn lacking(error: &ReserveError) -> Option<Lacking> {
    match error {
        ReserveError::NoSpace { needed, available }
            if *available < needed.saturating_add(MARGIN) =>
        {
            Some(Lacking::Bytes(needed.saturating_add(MARGIN) - available))
        }
        // There are blocks, but not for this.
        ReserveError::NoSpace { needed, .. } | ReserveError::Quota { needed } => {
            Some(Lacking::Unknown(*needed))
        }
        ReserveError::NoInodes { .. } => Some(Lacking::Unknown(0)),
        _ => None,
    }
}
