//! What an open volume knows: the committed tree, what of it the log does not have yet, and the
//! space.

mod along;
mod apply;
mod cover;
mod past;

pub use cover::Cover;

use crate::entry::PagePacked;
use crate::error::{Error, Result};
use crate::format::{CHUNK, Checkpoint, Geometry, Head, Ino};
use crate::group::{Assembled, Group, Target};
use crate::object::{Body, Object, Place};
use crate::ops::{Maker, Ops};
use crate::pack;
use crate::pending::Pending;
use crate::piece::Purpose;
use crate::promise::Promises;
use crate::root::{Kept, Snapshot};
use crate::tree::Tree;
use crate::turns::Turns;
use crate::txn::{Returned, Txn};
use crate::usage::Usage;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::Thread;
use systx_base::sync::Event;

/// Segments that only those may take who make space.
pub const RESERVE: u32 = 7;
/// Segments of these that a commit which only removes leaves: the cleaner's.
pub const CLEANERS: u32 = 4;
/// Segments beyond the reserve that are never full: what the cleaner gains.
const SLACK: u32 = 3;
/// Bytes of objects in memory before those that have not changed, nor were used, are forgotten.
const OBJECTS: u64 = 160 << 20;

/// How far writing is.
#[derive(Default, Debug)]
pub struct Flow {
    /// Commits so far.
    pub applied: u64,
    /// Those that are durable: a prefix.
    pub durable: u64,
    /// Somebody writes a group, without the lock.
    pub writing: bool,
    /// Nothing can be changed any longer.
    pub stopped: Option<Stopped>,
    /// Blocks of the log since the last checkpoint.
    pub since: u64,
    /// A commit wakes the cleaner while less than this part of what is free, in percent, lies in
    /// free segments; beyond 100: always.
    pub wake_below: u32,
    /// Room for commits that are yet to come.
    pub promised: Promises,
    /// A round of cleaning is under way beside those who commit.
    pub cleaning: bool,
    /// Blocks that the last checkpoint has written at most, but for what waited.
    pub checkpoint: u64,
    /// Threads that wait for their commits.
    pub turns: Turns,
    /// There is something to clean.
    pub work: Arc<Event>,
    /// An object is not held any longer.
    pub released: Arc<Event>,
}

/// Room that somebody asks for.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Blocks that are to be written.
    pub blocks: u64,
    /// Blocks that are written, and not in use yet: of a transaction that has spilled.
    pub spilled: u64,
    /// Blocks that have been promised for this very purpose.
    pub own: u64,
    /// It goes to a commit that only takes away.
    pub removes: bool,
}

impl Need {
    /// So many blocks, for anything.
    pub fn of(blocks: u64) -> Need {
        Need { blocks, spilled: 0, own: 0, removes: false }
    }
}

/// Why nothing can be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// The volume was opened to be read.
    ReadOnly,
    /// A write failed: what the medium has is unknown. What it said.
    Poisoned(String),
}

impl Flow {
    /// Whether changes are possible.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`].
    pub fn goes_on(&self) -> Result<()> {
        match &self.stopped {
            None => Ok(()),
            Some(Stopped::ReadOnly) => Err(Error::ReadOnly),
            Some(Stopped::Poisoned(_)) => Err(Error::Poisoned),
        }
    }

    /// This write has failed.  The first one that did is the reason of all that fails from then on.
    pub fn poison(&mut self, error: &Error) {
        self.stopped.get_or_insert_with(|| Stopped::Poisoned(error.to_string()));
    }

    /// Who has a reason to go on; to be called by a thread that has written, or that was to write.
    #[must_use]
    pub fn hand_on(&mut self) -> Vec<Thread> {
        match self.stopped {
            _ if self.writing => Vec::new(),
            Some(_) => self.turns.all(),
            None => self.turns.next(self.durable),
        }
    }
}

/// What a volume may use of memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Pages that one transaction has in memory before it spills.
    pub txn_pages_max: u64,
    /// Pages of plain writes that wait before they are flushed.
    pub dirty_pages_max: u64,
    /// Commits pay for cleaning while less than this part of what is free above the live data and
    /// the reserve lies in free segments; 0: never.
    pub pay_below_percent: u32,
    /// Old values (names, objects and pages) that are kept for moments; beyond, all are given up.
    pub kept_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            txn_pages_max: 16 << 10,
            dirty_pages_max: 8 << 10,
            pay_below_percent: 10,
            kept_max: 4 << 20,
        }
    }
}

/// An open volume.
pub struct State {
    /// The committed tree.
    pub tree: Tree,
    /// Segments.
    pub usage: Usage,
    /// Where the log goes on.
    pub head: Head,
    /// The next number of an object.
    pub next_ino: Ino,
    /// What the log does not have yet.
    pub pending: Pending,
    /// Objects without a name that somebody holds.
    pub orphans: BTreeSet<Ino>,
    /// How often an object is held.
    pub held: HashMap<Ino, u32>,
    /// Snapshots.
    pub kept: Kept,
    /// The last checkpoint.
    pub last: Checkpoint,
    /// Private segments that were given up.
    pub returned: Returned,
    /// How far writing is.
    pub flow: Flow,
    /// Memory.
    pub limits: Limits,
}

/// Blocks that may be in use of a volume.
pub fn capacity(geometry: &Geometry) -> u64 {
    let segments = geometry.segments.saturating_sub(RESERVE + SLACK);
    u64::from(segments) * u64::from(geometry.usable()) * 15 / 16
}

impl State {
    /// The operations of a transaction.
    pub fn ops<'a>(&'a mut self, txn: &'a mut Txn) -> Ops<'a> {
        self.tree.trim(OBJECTS);
        let now = (self.tree.env.clock)();
        let others = self.flow.promised.blocks().saturating_sub(txn.own);
        let reserved = self.obligations() + others;
        let reserved = reserved.div_ceil(u64::from(self.tree.env.geometry.usable()));
        let maker = Maker {
            next_ino: &mut self.next_ino,
            usage: &mut self.usage,
            head: &self.head,
            returned: &self.returned,
            pages_max: self.limits.txn_pages_max,
            reserve: RESERVE.saturating_add(u32::try_from(reserved).unwrap_or(u32::MAX)),
        };
        Ops { tree: &mut self.tree, txn, maker: Some(maker), now }
    }

    /// Whether the log could take what is needed and the checkpoint after it, and still leave
    /// what it must.
    pub fn has_room(&self, need: Need) -> bool {
        if need.removes {
            return self.has_segments(need.blocks, CLEANERS);
        }
        let others = self.flow.promised.blocks().saturating_sub(need.own);
        let written = need.blocks + others;
        self.has_segments(written, RESERVE) && self.has_capacity(written + need.spilled)
    }

    /// Blocks that commits can still take before somebody has to make room; and as many as there
    /// would be if no segment had anything dead in it.  It is a part of the latter that says when
    /// to clean: a volume that is nearly full has little to gain, and what lies dead in segments is
    /// better left to grow there.
    pub fn headroom(&self) -> (u64, u64) {
        let geometry = &self.tree.env.geometry;
        let held = u64::from(RESERVE) * u64::from(geometry.usable()) + self.obligations();
        let blocks = |segments: u32| u64::from(segments) * u64::from(geometry.usable());
        let now = blocks(self.usage.idle()).saturating_sub(held);
        let most = blocks(geometry.segments).saturating_sub(self.usage.occupied() + held);
        (now, most)
    }

    /// Whether commits can take less than this part of what would be free if nothing were dead.
    pub fn is_below(&self, percent: u32) -> bool {
        let (now, most) = self.headroom();
        now * 100 < most * u64::from(percent)
    }

    /// Blocks that have to become free before commits need not pay for cleaning.
    pub fn shortage(&self) -> u64 {
        let (now, most) = self.headroom();
        let percent = u64::from(self.limits.pay_below_percent);
        let part = most * percent / 100;
        let least = match percent {
            0 => 0,
            _ if self.has_cleaner() => part,
            // They pay for all, and a checkpoint for each few segments would cost more than these.
            _ => part.max(5 * self.price()) + self.price(),
        };
        least.saturating_sub(now)
    }

    /// Whether a checkpoint is worth it, since little is free: without a cleaner's thread those who
    /// commit empty segments as long as they can before it.
    pub fn frees(&self) -> bool {
        let is_short = match self.has_cleaner() {
            true => self.shortage() > 0,
            false => self.headroom().0 < self.price(),
        };
        is_short && self.reclaimable() >= 3 * self.price()
    }

    /// Whether a thread cleans, or has.
    fn has_cleaner(&self) -> bool {
        self.flow.wake_below > 0
    }

    /// Blocks of the segments that the next checkpoint would free.
    pub fn reclaimable(&self) -> u64 {
        let dead = |n: u32| {
            let s = self.usage.segment(n);
            s.live == 0 && s.pins + s.veils == 0 && !s.taken && !self.usage.is_free(n)
        };
        let geometry = &self.tree.env.geometry;
        let count = (0..geometry.segments).filter(|n| dead(*n)).count() as u64;
        count * u64::from(geometry.usable())
    }

    /// Whether the free segments suffice.
    fn has_segments(&self, need: u64, keep: u32) -> bool {
        self.left(keep) >= need + self.obligations()
    }

    /// Blocks of all free segments but `keep`.
    pub fn left(&self, keep: u32) -> u64 {
        let free = self.usage.free().saturating_sub(keep);
        u64::from(free) * u64::from(self.tree.env.geometry.usable())
    }

    /// Blocks that the next checkpoint writes at most, with what waits.
    pub fn obligations(&self) -> u64 {
        self.pending.blocks() + self.tree.debt() + self.fixed()
    }

    /// Blocks that the next checkpoint may well write, judging by the last one.
    pub fn price(&self) -> u64 {
        self.flow.checkpoint.max(self.obligations())
    }

    /// What the next checkpoint would cost beyond what waits is noted: it is made now.
    pub fn note_price(&mut self) {
        self.flow.checkpoint = self.tree.debt() + self.fixed();
    }

    /// Blocks that each checkpoint writes.
    fn fixed(&self) -> u64 {
        let root = self.tree.chunks.len() * 40
            + self.tree.strays.len() * 8
            + self.kept.snapshots.iter().map(|s| 400 + 4 * s.pins.len()).sum::<usize>();
        let bytes = root + self.usage.encoded_len();
        (bytes as u64).div_ceil(4096) + 8
    }

    /// Whether so much fits beside what is in use, so that the cleaner always finds enough that
    /// is not.
    pub fn has_capacity(&self, need: u64) -> bool {
        let waits = self.pending.blocks() + self.tree.growth() + self.fixed();
        let used = self.usage.occupied() + waits;
        used + need <= self.capacity()
    }

    /// Blocks that may be in use.
    pub fn capacity(&self) -> u64 {
        capacity(&self.tree.env.geometry)
    }

    /// Whether a transaction takes no more space than was taken before.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn only_removes(&mut self, txn: &Txn) -> Result<bool> {
        if !txn.only_removes() {
            return Ok(false);
        }
        for (ino, page) in txn.written() {
            let there = match self.tree.get(ino) {
                Ok(object) => object.pages().is_some_and(|pages| pages.contains_key(&page)),
                Err(Error::NotFound) => false,
                Err(e) => return Err(e),
            };
            if !there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What the commit of a transaction and the records that it changes need at most.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn need(&mut self, txn: &Txn) -> Result<Need> {
        let mut inos: BTreeSet<Ino> = txn.patches.keys().copied().collect();
        inos.extend(txn.links.keys());
        inos.extend(txn.entries.keys());
        inos.extend(txn.pages.keys());
        let mut blocks = txn.blocks() + self.dirtied(&inos)?;
        blocks += (txn.created.len() as u64 / 32 + 2) * (crate::tree::CHUNK_BLOCKS + 1);
        let pages: u64 = txn.pages.values().map(|p| p.len() as u64).sum();
        blocks += (pages * crate::object::PAGE_RECORD).div_ceil(4096) * 2;
        // A page that is taken out of a pack may count as a block in its new file.
        blocks += txn.taken.len() as u64 * u64::from(self.tree.env.compression.is_on());
        if self.tree.chunks.len() + txn.created.len() / 32 + 2 > self.tree.env.geometry.chunks_max()
        {
            return Err(Error::NoSpace);
        }
        Ok(Need { spilled: txn.spilled(), ..Need::of(blocks) })
    }

    /// Blocks of the records of those that the next checkpoint would not write yet.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn dirtied(&mut self, inos: &BTreeSet<Ino>) -> Result<u64> {
        let (mut blocks, mut chunk) = (0, None);
        for ino in inos {
            if self.tree.dirty.contains(ino) {
                continue;
            }
            // They come in order, and those of one chunk are written with it once.
            if chunk.replace(*ino / CHUNK) != Some(*ino / CHUNK) {
                self.tree.check_chunk(*ino / CHUNK)?;
                blocks += crate::tree::CHUNK_BLOCKS + 1;
            }
            match self.tree.get(*ino) {
                Ok(object) => blocks += object.record_max().div_ceil(4096) + 1,
                Err(Error::NotFound) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(blocks)
    }

    /// Takes an object out of the tree, with its pages.
    pub fn delete(&mut self, ino: Ino) -> Result<()> {
        self.tree.load(ino)?;
        self.tree.check_chunk(ino / CHUNK)?;
        let Some(mut object) = self.tree.remove(ino) else { return Ok(()) };
        self.keep_removed(ino, &object);
        if let Body::Pages(pages) = &mut object.body {
            pack::cut(&mut self.usage, pages, 0);
        }
        if let Some(blob) = self.tree.stored.remove(&ino) {
            self.usage.remove_blob(&blob);
        }
        self.orphans.remove(&ino);
        self.tree.strays.forget(ino);
        self.pending.removed(ino);
        Ok(())
    }

    /// The last checkpoint was given a name: it is a snapshot from here on.
    pub fn keep_named(&mut self) {
        let Some(naming) = self.kept.naming.take() else { return };
        let used = (0..).zip(self.usage.segments()).filter(|(_, s)| s.live > 0);
        let pins: Vec<u32> = used.map(|(n, _)| n).collect();
        self.usage.pin(&pins);
        let (name, origin) = (naming.name, naming.origin);
        let (sequence, time, root) = (self.last.sequence, self.last.time, self.last.root.clone());
        self.kept.snapshots.push(Snapshot { name, sequence, time, root, pins, origin });
        // The root record changes with it.
        self.flow.since += 1;
    }

    /// Makes a group of all that waits.  It has to be written next, before any other.
    ///
    /// # Errors
    /// [`Error::NoSpace`] although space was reserved; then the volume is poisoned.
    pub fn assemble(&mut self, purpose: Purpose) -> Result<Assembled> {
        self.read_along();
        let now = (self.tree.env.clock)();
        let ids = (self.tree.env.geometry, self.tree.env.id);
        let pending = std::mem::take(&mut self.pending);
        let mut group = Group::new(&mut self.head, &mut self.usage, ids, purpose, now);
        let written = pending.write(&self.tree, &mut group);
        let mut done = group.finish();
        done.after_sync = !pending.adopted.is_empty();
        if let Err(e) = written {
            self.flow.poison(&e);
            return Err(e);
        }
        for (target, place) in &done.placed {
            if let Target::Page(ino, page) = target {
                self.replace(*ino, *page, *place)?;
            }
        }
        done.packs = pending.packs;
        let blocks: usize = done.writes.iter().map(|(_, b)| b.len() / crate::format::BLOCK).sum();
        self.flow.since += blocks as u64;
        Ok(done)
    }

    /// A page lies somewhere else from here on.
    fn replace(&mut self, ino: Ino, page: u64, place: Place) -> Result<()> {
        let Some(slot) = self.tree.page_mut(ino, page) else { return Ok(()) };
        let old = slot.place.replace(place);
        let Some(pages) = self.tree.loaded(ino).and_then(Object::pages) else { return Ok(()) };
        if let Some(old) = old {
            pack::lost(&mut self.usage, pages, page, old);
        }
        pack::gained(&mut self.usage, pages, page, place)
    }

    /// The packs of a group are on the medium: their pages lie there from here on.  Not before, as
    /// they are not in memory.  Those that somebody has changed meanwhile are in the next group.
    ///
    /// # Errors
    /// What an invariant says.
    pub fn settle_packs(&mut self, done: &Assembled) -> Result<()> {
        for (target, place) in &done.placed {
            let Target::Pack(n, 0) = target else { continue };
            let moved = &done.packs[*n];
            let pages: Vec<PagePacked> = moved.stays(&self.tree).collect();
            for packed in pages {
                let place = packed.place(place.at, moved.blocks.len() as u8);
                self.tree.change(moved.ino)?;
                self.replace(moved.ino, packed.page, place)?;
            }
        }
        Ok(())
    }

    /// A group is on the medium: what it wrote need not be in memory any longer.
    ///
    /// # Errors
    /// As [`State::settle_packs`].
    pub fn settle(&mut self, done: &Assembled) -> Result<()> {
        self.settle_packs(done)?;
        for (target, place) in &done.placed {
            let Target::Page(ino, page) = target else { continue };
            if self.pending.has_page(*ino, *page) {
                continue;
            }
            if let Some(slot) = self.tree.page_mut(*ino, *page)
                && slot.place == Some(*place)
            {
                slot.memory = None;
            }
        }
        Ok(())
    }

    /// Segments that transactions have given up are nobody's.
    pub fn take_back(&mut self) {
        let returned = std::mem::take(&mut *self.returned.lock());
        returned.iter().for_each(|segment| self.usage.release(*segment));
    }
}
