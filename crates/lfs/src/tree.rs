//! The tree as of one point of the log: the inode map, and the objects that were needed so far.

use crate::device::{self, Device};
use crate::error::{Error, Result, Structure};
use crate::format::{BLOCK, Blob, CHUNK, Compression, Geometry, Ino, VolumeId};
use crate::moments::Moments;
use crate::object::{Object, Page, Place};
use crate::objects::Objects;
use crate::pack::Unpacked;
use crate::reads::Reads;
use crate::strays::Strays;
use crate::veil::Veil;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use systx_base::Time;
use systx_base::codec::{DecodeError, Decoder, Encoder};

/// Longest record that stands in its chunk, in bytes.
pub const INLINE_MAX: usize = 512;
/// Most blocks of a chunk.
pub const CHUNK_BLOCKS: u64 = (CHUNK * (INLINE_MAX as u64 + 16) + 4).div_ceil(BLOCK as u64);

/// Where the current time comes from.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// What a volume works with.
#[derive(Clone)]
pub struct Env {
    /// Where it lies.
    pub dev: Arc<dyn Device>,
    /// How that is divided.
    pub geometry: Geometry,
    /// Which volume it is.
    pub id: VolumeId,
    /// The time.
    pub clock: Clock,
    /// Whether cold pages are compressed.
    pub compression: Compression,
    /// The packs that were read last.
    pub unpacked: Unpacked,
}

impl Env {
    /// Reads a blob.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it lies outside of the segments or its bytes are not what was
    /// written; [`Error::Io`].
    pub fn read_blob(&self, blob: &Blob, what: Structure) -> Result<Vec<u8>> {
        let first = blob.runs.first().map_or(0, |(at, _)| *at);
        let total = u64::from(self.geometry.segments) * u64::from(self.geometry.segment_blocks);
        if blob.blocks() > total {
            return Err(Error::corrupt(what, first, "longer than the volume"));
        }
        let mut bytes = Vec::with_capacity(blob.blocks() as usize * BLOCK);
        for (at, n) in &blob.runs {
            let last = at.checked_add(u64::from(*n)).and_then(|end| end.checked_sub(1));
            let inside = last.and_then(|last| self.geometry.locate(last)).is_some();
            if self.geometry.locate(*at).is_none() || !inside {
                return Err(Error::corrupt(what, *at, "outside of the segments"));
            }
            let start = bytes.len();
            bytes.resize(start + *n as usize * BLOCK, 0);
            device::read(&*self.dev, *at, &mut bytes[start..])?;
        }
        bytes.truncate(blob.len as usize);
        if crc32c::crc32c(&bytes) != blob.crc {
            return Err(Error::corrupt(what, first, "wrong sum"));
        }
        Ok(bytes)
    }

    /// Reads a page.
    ///
    /// # Errors
    /// As [`Env::read_blob`].
    pub fn read_page(&self, place: Place) -> Result<Vec<u8>> {
        if place.is_packed() {
            return self.unpacked.page(place, |to| device::read(&*self.dev, place.at, to));
        }
        let mut bytes = vec![0; BLOCK];
        self.read_pages(place.at, &[place.crc], &mut bytes)?;
        Ok(bytes)
    }

    /// Reads pages that lie beside each other from a block on, with these sums.
    ///
    /// # Errors
    /// As [`Env::read_blob`].
    pub fn read_pages(&self, first: u64, sums: &[u32], to: &mut [u8]) -> Result<()> {
        device::read(&*self.dev, first, to)?;
        for ((at, page), sum) in (first..).zip(to.chunks_exact(BLOCK)).zip(sums) {
            if crc32c::crc32c(page) != *sum {
                return Err(Error::corrupt(Structure::Data, at, "wrong sum"));
            }
        }
        Ok(())
    }

    /// Reads a chunk of the inode map.
    ///
    /// # Errors
    /// As [`Env::read_blob`]; also if it has inodes of another chunk.
    pub fn read_chunk(&self, chunk: u64, blob: &Blob) -> Result<BTreeMap<Ino, Stored>> {
        let bytes = self.read_blob(blob, Structure::Chunk)?;
        let at = blob.runs.first().map_or(0, |(at, _)| *at);
        let bad = Error::undecodable(Structure::Chunk, at);
        let mut d = Decoder::new(&bytes);
        let all = d.seq(|d| Ok((d.u64()?, Stored::decode(d)?))).map_err(bad)?;
        if all.iter().any(|(ino, _)| ino / CHUNK != chunk) {
            return Err(Error::corrupt(Structure::Chunk, at, "an inode of another chunk"));
        }
        Ok(all.into_iter().collect())
    }

    /// Reads the record of an object.
    ///
    /// # Errors
    /// As [`Env::read_blob`].
    pub fn read_record(&self, stored: &Stored, chunk_at: u64) -> Result<Object> {
        let (bytes, what, at) = match stored {
            Stored::Inline(bytes) => (bytes.clone(), Structure::Chunk, chunk_at),
            Stored::Apart(blob) => {
                let at = blob.runs.first().map_or(0, |(at, _)| *at);
                (self.read_blob(blob, Structure::Record)?, Structure::Record, at)
            }
        };
        let object =
            Object::decode(&mut Decoder::new(&bytes)).map_err(Error::undecodable(what, at))?;
        let places = object.pages().into_iter().flat_map(BTreeMap::values);
        for place in places.filter_map(|p| p.place) {
            if !self.geometry.has(place.blocks()) {
                return Err(Error::corrupt(what, at, "a page outside of the segments"));
            }
        }
        Ok(object)
    }
}

/// Where a record is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stored {
    /// In the chunk.
    Inline(Vec<u8>),
    /// In a blob of its own.
    Apart(Blob),
}

impl Stored {
    /// Appends it.
    pub fn encode(&self, e: &mut Encoder) {
        match self {
            Stored::Inline(bytes) => {
                e.u8(0);
                e.bytes(bytes);
            }
            Stored::Apart(blob) => {
                e.u8(1);
                blob.encode(e);
            }
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes are not one.
    pub fn decode(d: &mut Decoder<'_>) -> std::result::Result<Stored, DecodeError> {
        match d.u8()? {
            0 => Ok(Stored::Inline(d.bytes()?.to_vec())),
            1 => Ok(Stored::Apart(Blob::decode(d)?)),
            other => Err(d.invalid("place of a record", other.into())),
        }
    }
}

/// What a checkpoint has to write.
#[derive(Default)]
struct Debt {
    /// An upper bound of the blocks of what was dirty when it became so.
    blocks: u64,
    /// Bytes that were added to dirty objects since.
    grown: u64,
    /// Chunks that could be read, as it will have to.
    readable: BTreeSet<u64>,
    /// An upper bound of the bytes of each dirty record that goes into its chunk.
    small: HashMap<Ino, u64>,
    /// Records that have become larger than that: each takes a block of its own.
    large: u64,
}

/// A tree.
pub struct Tree {
    /// What it works with.
    pub env: Env,
    /// The inode map: where each chunk was written last.
    pub chunks: BTreeMap<u64, Blob>,
    objects: Objects,
    /// Records outside of their chunks, of the objects above.
    pub stored: HashMap<Ino, Blob>,
    /// What the next checkpoint has to write: changed objects.
    pub dirty: BTreeSet<Ino>,
    /// Removed since the last checkpoint, which still has them.
    pub gone: BTreeSet<Ino>,
    /// Chunks with any of them.
    pub dirty_chunks: BTreeSet<u64>,
    /// What the next checkpoint writes for all of that.
    debt: Debt,
    /// What of it is not to be seen yet.
    pub veil: Veil,
    /// What of before is still to be seen.
    pub moments: Moments,
    /// Where files have pages that summaries say are another file's.
    pub strays: Strays,
    /// What is known of those who read.
    pub reads: Reads,
}

impl Tree {
    /// A tree that is on the medium.
    pub fn new(env: Env, chunks: BTreeMap<u64, Blob>) -> Tree {
        Tree {
            env,
            chunks,
            objects: Objects::default(),
            stored: HashMap::new(),
            dirty: BTreeSet::new(),
            gone: BTreeSet::new(),
            dirty_chunks: BTreeSet::new(),
            debt: Debt::default(),
            veil: Veil::default(),
            moments: Moments::default(),
            strays: Strays::default(),
            reads: Reads::default(),
        }
    }

    /// As [`Tree::new`], with files that have pages of which the summary names another file.
    pub fn with_strays(
        env: Env,
        chunks: BTreeMap<u64, Blob>,
        strays: impl IntoIterator<Item = Ino>,
    ) -> Tree {
        Tree { strays: Strays::of(strays), ..Tree::new(env, chunks) }
    }

    /// A page has come to a file from another one.
    pub fn note_stray(&mut self, ino: Ino, place: Place) {
        if let Some((segment, _)) = self.env.geometry.locate(place.at) {
            self.strays.note(ino, segment);
        }
    }

    /// A file that may have such pages is about to be recorded: what is known of it becomes exact.
    pub fn settle_strays(&mut self, ino: Ino) {
        if self.strays.has(ino) {
            let segments = self.segments_of(ino);
            self.strays.set(ino, segments);
        }
    }

    fn segments_of(&self, ino: Ino) -> BTreeSet<u32> {
        let pages = self.loaded(ino).and_then(Object::pages).into_iter().flatten();
        let places = pages.filter_map(|(_, page)| page.place);
        places.filter_map(|place| Some(self.env.geometry.locate(place.at)?.0)).collect()
    }

    /// Files that may have such pages in a segment.
    ///
    /// # Errors
    /// What reading says.
    pub fn strays_in(&mut self, segment: u32) -> Result<Vec<Ino>> {
        for ino in self.strays.unknown() {
            match self.load(ino) {
                // A segment with damaged pages of it is not freed: they are counted.
                Ok(()) | Err(Error::NotFound) => {}
                Err(e) if e.is_damage() => {}
                Err(e) => return Err(e),
            }
            let segments = self.segments_of(ino);
            self.strays.set(ino, segments);
        }
        Ok(self.strays.of_segment(segment))
    }

    /// Brings an object into memory.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none; what reading it can say.
    pub fn load(&mut self, ino: Ino) -> Result<()> {
        if self.objects.is_there(ino) {
            return Ok(());
        }
        let chunk = ino / CHUNK;
        let blob = self.chunks.get(&chunk).filter(|_| !self.gone.contains(&ino));
        let Some(blob) = blob else { return Err(Error::NotFound) };
        let at = blob.runs.first().map_or(0, |(at, _)| *at);
        let mut all = self.env.read_chunk(chunk, blob)?;
        let Some(stored) = all.remove(&ino) else { return Err(Error::NotFound) };
        let object = self.env.read_record(&stored, at)?;
        if let Stored::Apart(blob) = stored {
            self.stored.insert(ino, blob);
        }
        self.objects.insert(ino, object);
        self.objects.is_stored(ino);
        Ok(())
    }

    /// An object.
    ///
    /// # Errors
    /// As [`Tree::load`].
    pub fn get(&mut self, ino: Ino) -> Result<&Object> {
        self.load(ino)?;
        self.loaded(ino).ok_or(Error::NotFound)
    }

    /// An object that is in memory.
    pub fn loaded(&self, ino: Ino) -> Option<&Object> {
        self.objects.get(ino)
    }

    /// An object, to be changed: the next checkpoint writes it.
    ///
    /// # Errors
    /// As [`Tree::load`].
    pub fn change(&mut self, ino: Ino) -> Result<&mut Object> {
        self.load(ino)?;
        self.check_chunk(ino / CHUNK)?;
        self.mark(ino);
        self.objects.get_mut(ino).ok_or(Error::NotFound)
    }

    /// A page, to be changed in what is known of where it lies.
    pub fn page_mut(&mut self, ino: Ino, page: u64) -> Option<&mut Page> {
        match &mut self.objects.get_mut(ino)?.body {
            crate::object::Body::Pages(pages) => pages.get_mut(&page),
            _ => None,
        }
    }

    fn mark(&mut self, ino: Ino) {
        if self.dirty.insert(ino) {
            let bytes = self.loaded(ino).map_or(0, Object::record_max);
            if bytes > INLINE_MAX as u64 {
                self.debt.blocks += bytes.div_ceil(BLOCK as u64) + 1;
            } else {
                self.debt.small.insert(ino, bytes);
            }
            self.mark_chunk(ino / CHUNK);
        }
    }

    /// Whether the next checkpoint can write a chunk, of which it reads the unchanged part. To be
    /// asked before something of it changes.  In one that cannot be read nothing changes any more,
    /// and it stays where it is, for anybody who can read it one day.
    ///
    /// # Errors
    /// As [`Env::read_blob`].
    pub fn check_chunk(&mut self, chunk: u64) -> Result<()> {
        let Some(blob) = self.chunks.get(&chunk) else { return Ok(()) };
        if !self.dirty_chunks.contains(&chunk) && !self.debt.readable.contains(&chunk) {
            self.env.read_blob(blob, Structure::Chunk)?;
            self.debt.readable.insert(chunk);
        }
        Ok(())
    }

    /// The next checkpoint writes this chunk.
    pub fn mark_chunk(&mut self, chunk: u64) {
        if self.dirty_chunks.insert(chunk) {
            self.debt.blocks += CHUNK_BLOCKS + 1;
        }
    }

    /// A record was added, or replaced: so many bytes.
    pub fn added(&mut self, bytes: u64) {
        self.debt.grown += bytes;
    }

    /// So many bytes were added to the record of an object that was changed.
    pub fn grow(&mut self, ino: Ino, bytes: u64) {
        self.debt.grown += bytes;
        let Some(small) = self.debt.small.get_mut(&ino) else { return };
        *small += bytes;
        if *small > INLINE_MAX as u64 {
            self.debt.small.remove(&ino);
            self.debt.large += 1;
        }
    }

    /// Blocks by which the next checkpoint makes records longer, at most.
    pub fn growth(&self) -> u64 {
        self.debt.grown.div_ceil(BLOCK as u64) + self.debt.large
    }

    /// An upper bound of the blocks that a checkpoint would write for what has changed.
    pub fn debt(&self) -> u64 {
        self.debt.blocks + self.growth() + self.debt.grown.div_ceil(BLOCK as u64)
    }

    /// Puts an object into the tree.
    pub fn insert(&mut self, ino: Ino, object: Object) {
        self.gone.remove(&ino);
        self.objects.insert(ino, object);
        self.mark(ino);
    }

    /// Takes an object, which is in memory, out of the tree.
    pub fn remove(&mut self, ino: Ino) -> Option<Object> {
        let object = self.objects.remove(ino)?;
        self.reads.forget(ino);
        self.dirty.remove(&ino);
        self.gone.insert(ino);
        self.mark_chunk(ino / CHUNK);
        Some(object)
    }

    /// A checkpoint has written all that was changed.
    pub fn settled(&mut self) {
        for ino in std::mem::take(&mut self.dirty) {
            self.objects.is_stored(ino);
        }
        self.gone.clear();
        self.dirty_chunks.clear();
        self.debt = Debt::default();
    }

    /// Forgets objects that are as the last checkpoint has them, if more than `most` bytes of these
    /// have come since it did: those that were not used since.
    pub fn trim(&mut self, most: u64) {
        let dirty = &self.dirty;
        let waits =
            |o: &Object| o.pages().is_some_and(|pages| pages.values().any(|p| p.memory.is_some()));
        if self.objects.forget(most, |ino, object| dirty.contains(&ino) || waits(object)) {
            let objects = &self.objects;
            self.stored.retain(|ino, _| objects.get(*ino).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;
    use crate::format::ROOT;
    use crate::state::Limits;
    use crate::volume::{Format, Volume, mkfs};

    /// They stay until the next checkpoint, however many they are. Else each call would look at
    /// all of them, and read again what the call before has read.
    #[test]
    fn objects_that_have_changed_are_no_reason_to_forget_others() -> Result<()> {
        let (dev, clock) = (Arc::new(MemDevice::new(600)), Arc::new(Time::default));
        let format = Format {
            segment_blocks: 16,
            cluster: 1,
            id: [3; 16],
            label: String::new(),
            owner: (0, 0),
            compression: Default::default(),
        };
        mkfs(dev.clone(), &format, clock.clone())?;
        let volume = Volume::open(dev, clock, 5, Limits::default())?;
        volume.with_state(|state| {
            let tree = &mut state.tree;
            let node = tree.get(ROOT)?.node.clone();
            let come = |tree: &mut Tree, from: Ino| {
                (from..from + 20).for_each(|n| tree.insert(n, Object::new(node.clone())));
            };
            come(tree, 1000);
            for _ in 0..3 {
                tree.trim(10_000);
                assert!(tree.loaded(ROOT).is_some());
            }
            for from in [2000, 3000] {
                tree.settled();
                tree.trim(10_000);
                come(tree, from);
            }
            assert!(tree.loaded(ROOT).is_none());
            assert!(tree.loaded(1000).is_none() && tree.loaded(2000).is_some());
            Ok(())
        })
    }
}
