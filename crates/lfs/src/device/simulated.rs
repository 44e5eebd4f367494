//! A disk in memory that knows what a power cut may leave of it.
//!
//! The unit is a sector of 512 bytes.  Of a write that is not synced each sector may be there or
//! not, independently of all others.  A durable write is there when it has returned, and orders
//! nothing else.  A sync makes all writes before it durable.

use super::{Device, range};
use crate::format::BLOCK;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use systx_base::mix;
use systx_base::sync::{Mutex, rank};

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: usize = 512;

type Sector = Arc<[u8; SECTOR]>;
type Image = BTreeMap<u64, Sector>;

/// What happened to a disk.
#[derive(Clone)]
enum Op {
    Write { first: u64, sectors: Vec<Sector>, durable: bool },
    Sync,
    Mark(u64),
}

/// What a disk does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The n-th write or sync from here on fails, and so does every later one.
    Fails(u64),
    /// A sync does nothing.
    NoSync,
    /// A durable write is a write.
    NotDurable,
    /// The n-th sync from here on, counted from 0, does nothing.
    SkipsSync(u64),
    /// The n-th durable write from here on, counted from 0, is a write.
    SkipsDurable(u64),
}

struct Inner {
    blocks: u64,
    /// At the begin of the record.
    start: Image,
    now: Image,
    record: Vec<Op>,
    fault: Fault,
    calls: u64,
    syncs: u64,
    durable: u64,
    /// Blocks that cannot be read until they are written.
    unreadable: BTreeSet<u64>,
}

/// The disk.
pub struct SimDisk {
    inner: Mutex<Inner>,
}

/// What a power cut left.
pub struct Crash {
    /// The last mark before it.
    pub mark: u64,
    /// A disk with what is there.
    pub disk: SimDisk,
    /// Which one, for messages.
    pub name: String,
}

/// How many crashes are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// At each write or sync, at most.
    pub each: usize,
    /// Seed of those that are drawn.
    pub seed: u64,
}

impl SimDisk {
    /// A disk of zeros.
    pub fn new(blocks: u64) -> SimDisk {
        Self::from_image(blocks, Image::new())
    }

    fn from_image(blocks: u64, image: Image) -> SimDisk {
        let inner = Inner {
            blocks,
            start: image.clone(),
            now: image,
            record: Vec::new(),
            fault: Fault::None,
            calls: 0,
            syncs: 0,
            durable: 0,
            unreadable: BTreeSet::new(),
        };
        SimDisk { inner: Mutex::new(rank::LEAF, inner) }
    }

    /// A disk with what this one has, and nothing recorded: all is durable.
    pub fn copy(&self) -> SimDisk {
        let inner = self.inner.lock();
        Self::from_image(inner.blocks, inner.now.clone())
    }

    /// A bit of a block is not what was written, whatever else happens.
    pub fn damage(&self, block: u64, byte: usize) {
        let mut inner = self.inner.lock();
        let sector = block * (BLOCK / SECTOR) as u64 + (byte / SECTOR) as u64;
        let Inner { start, now, .. } = &mut *inner;
        for image in [start, now] {
            let old = image.entry(sector).or_insert_with(|| Arc::new([0; SECTOR]));
            Arc::make_mut(old)[byte % SECTOR] ^= 0x10;
        }
    }

    /// A block cannot be read, until it is written.  A copy of the disk can be read.
    pub fn unreadable(&self, block: u64) {
        self.inner.lock().unreadable.insert(block);
    }

    /// Blocks that cannot be read, by a seed: one of so many on the average.  Returns how many.
    pub fn unreadable_by(&self, seed: u64, one_of: u64) -> usize {
        let mut inner = self.inner.lock();
        let bad = (0..inner.blocks).filter(|at| mix(seed ^ mix(*at + 1)).is_multiple_of(one_of));
        inner.unreadable = bad.collect();
        inner.unreadable.len()
    }

    /// A disk with what this one has, and zeros up to `blocks` blocks.
    pub fn longer(&self, blocks: u64) -> SimDisk {
        Self::from_image(blocks, self.inner.lock().now.clone())
    }

    /// From here on the disk does this wrong.
    pub fn fault(&self, fault: Fault) {
        let mut inner = self.inner.lock();
        inner.fault = fault;
        inner.calls = 0;
        inner.syncs = 0;
        inner.durable = 0;
    }

    /// Syncs and durable writes since the last fault was set.
    pub fn barriers(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.syncs, inner.durable)
    }

    /// Notes in the record that the workload has come so far.
    pub fn mark(&self, mark: u64) {
        self.inner.lock().record.push(Op::Mark(mark));
    }

    /// Calls `look` with crashes at every write and sync of the record: nothing of what is not
    /// synced, all of it, each write left out or alone, the write under way torn at sectors, and
    /// subsets that are drawn.
    pub fn crashes(&self, cuts: Cuts, mut look: impl FnMut(Crash)) {
        let inner = self.inner.lock();
        let (blocks, record) = (inner.blocks, inner.record.clone());
        let mut durable = inner.start.clone();
        drop(inner);
        let mut open: Vec<(u64, Vec<Sector>)> = Vec::new();
        let mut mark = 0;
        for (n, op) in record.iter().enumerate() {
            match op {
                Op::Mark(m) => mark = *m,
                Op::Sync => {
                    for_each(&durable, &open, cuts, n, |image, name| {
                        look(Crash { mark, disk: Self::from_image(blocks, image), name });
                    });
                    open.drain(..).for_each(|(first, s)| put(&mut durable, first, &s));
                }
                Op::Write { first, sectors, durable: at_once } => {
                    open.push((*first, sectors.clone()));
                    for_each(&durable, &open, cuts, n, |image, name| {
                        look(Crash { mark, disk: Self::from_image(blocks, image), name });
                    });
                    if *at_once {
                        settle(&mut durable, &mut open);
                    }
                }
            }
        }
        let image = durable;
        let name = "at the end".to_owned();
        look(Crash { mark, disk: Self::from_image(blocks, image), name });
    }

    fn call(&self, first: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.fails()?;
        range(inner.blocks, first, bytes.len())?;
        inner.durable += u64::from(durable);
        for at in first..first + (bytes.len() / BLOCK) as u64 {
            inner.unreadable.remove(&at);
        }
        let lie = match inner.fault {
            Fault::NotDurable => true,
            Fault::SkipsDurable(n) => inner.durable == n + 1,
            _ => false,
        };
        let durable = durable && !lie;
        let first = first * (BLOCK / SECTOR) as u64;
        let sectors: Vec<Sector> = (bytes.chunks_exact(SECTOR))
            .map(|s| {
                let mut sector = [0; SECTOR];
                sector.copy_from_slice(s);
                Arc::new(sector)
            })
            .collect();
        put(&mut inner.now, first, &sectors);
        inner.record.push(Op::Write { first, sectors, durable });
        Ok(())
    }
}

impl Inner {
    fn fails(&mut self) -> io::Result<()> {
        self.calls += 1;
        match self.fault {
            Fault::Fails(from) if self.calls > from => Err(io::Error::other("it fails")),
            _ => Ok(()),
        }
    }
}

fn put(image: &mut Image, first: u64, sectors: &[Sector]) {
    image.extend((first..).zip(sectors.iter().cloned()));
}

/// The last write is durable: what other writes would have put into its sectors is history.
fn settle(durable: &mut Image, open: &mut Vec<(u64, Vec<Sector>)>) {
    let Some((first, sectors)) = open.pop() else { return };
    put(durable, first, &sectors);
    let written = first..first + sectors.len() as u64;
    let earlier = std::mem::take(open);
    for (first, sectors) in earlier {
        for (at, sector) in (first..).zip(sectors) {
            if !written.contains(&at) {
                open.push((at, vec![sector]));
            }
        }
    }
}

/// Which sectors of the open writes are there: by write and sector.
type Choice<'a> = Box<dyn Fn(usize, usize) -> bool + 'a>;

fn for_each(
    durable: &Image,
    open: &[(u64, Vec<Sector>)],
    cuts: Cuts,
    point: usize,
    mut look: impl FnMut(Image, String),
) {
    let mut seen = HashSet::new();
    let mut left = cuts.each;
    let mut visit = |name: String, choice: Choice<'_>| {
        let mut picked = Image::new();
        for (w, (first, sectors)) in open.iter().enumerate() {
            for (s, sector) in sectors.iter().enumerate().filter(|(s, _)| choice(w, *s)) {
                picked.insert(first + s as u64, sector.clone());
            }
        }
        let mut hasher = DefaultHasher::new();
        picked.hash(&mut hasher);
        if left > 0 && seen.insert(hasher.finish()) {
            left -= 1;
            let mut image = durable.clone();
            image.append(&mut picked);
            look(image, format!("call {point}: {name}"));
        }
    };
    let last = open.len().saturating_sub(1);
    let torn = open.last().map_or(0, |(_, s)| s.len());
    visit("nothing".into(), Box::new(|_, _| false));
    visit("everything".into(), Box::new(|_, _| true));
    visit("all but the last write".into(), Box::new(|w, _| w != last));
    visit("all but the first sector".into(), Box::new(|w, s| w != last || s != 0));
    visit("all but the last sector".into(), Box::new(|w, s| w != last || s + 1 != torn));
    for n in 0..open.len() {
        visit(format!("all but write {n}"), Box::new(move |w, _| w != n));
        visit(format!("only write {n}"), Box::new(move |w, _| w == n));
    }
    let mut seed = cuts.seed ^ (point as u64) << 20;
    let mut draw = move |below: usize| {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(seed) % below.max(1) as u64) as usize
    };
    for n in 0..cuts.each {
        let (at, salt) = (draw(torn + 1), draw(usize::MAX) as u64);
        match n % 4 {
            0 => visit(format!("torn at {at}"), Box::new(move |w, s| w != last || s < at)),
            1 => visit(format!("but sector {at}"), Box::new(move |w, s| w != last || s != at)),
            2 => visit(
                format!("writes of {salt:x}"),
                Box::new(move |w, _| mix(salt ^ (w as u64 + 1)) & 1 == 0),
            ),
            _ => visit(
                format!("sectors of {salt:x}"),
                Box::new(move |w, s| mix(salt ^ (((w as u64) << 32 | s as u64) + 1)) & 1 == 0),
            ),
        }
    }
}

impl Device for SimDisk {
    fn blocks(&self) -> u64 {
        self.inner.lock().blocks
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let inner = self.inner.lock();
        range(inner.blocks, at, to.len())?;
        let blocks = at..at + (to.len() / BLOCK) as u64;
        if inner.unreadable.range(blocks).next().is_some() {
            return Err(rustix::io::Errno::IO.into());
        }
        let first = at * (BLOCK / SECTOR) as u64;
        for (n, chunk) in (first..).zip(to.chunks_exact_mut(SECTOR)) {
            match inner.now.get(&n) {
                Some(sector) => chunk.copy_from_slice(&sector[..]),
                None => chunk.fill(0),
            }
        }
        Ok(())
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.call(at, from, false)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.call(at, from, true)
    }
    fn sync(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.fails()?;
        inner.syncs += 1;
        let lie = match inner.fault {
            Fault::NoSync => true,
            Fault::SkipsSync(n) => inner.syncs == n + 1,
            _ => false,
        };
        if !lie {
            inner.record.push(Op::Sync);
        }
        Ok(())
    }
}
