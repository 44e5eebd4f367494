//! A group in the making: entries and blocks are put into pieces, pieces into segments.

use crate::device::{Aligned, Device};
use crate::entry::{Entry, PagePacked};
use crate::error::{Error, Result};
use crate::format::{Geometry, Head, Ino, VolumeId};
use crate::object::{Bytes, Object, Place};
use crate::piece::{Builder, Header, Purpose};
use crate::tree::Tree;
use crate::usage::Usage;
use std::ops::Range;
use systx_base::Time;
use systx_base::codec::Encoder;

/// What a block of a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A page of a file.
    Page(Ino, u64),
    /// The n-th block of the m-th pack.
    Pack(usize, usize),
    /// A block of the n-th blob.
    Blob(usize),
}

/// A pack that is to be written, of pages that lie elsewhere so far.
pub struct Moved {
    /// The file.
    pub ino: Ino,
    /// The blocks of the pack.
    pub blocks: Vec<Bytes>,
    /// Its pages, and where each has been.
    pub pages: Vec<(PagePacked, Place)>,
}

impl Moved {
    /// The pages that are still where they have been: nobody has written, cut off or moved them.
    pub fn stays<'a>(&'a self, tree: &'a Tree) -> impl Iterator<Item = PagePacked> + 'a {
        let all = tree.loaded(self.ino).and_then(Object::pages);
        let stays = move |packed: &PagePacked, was: &Place| {
            let now = all.and_then(|all| all.get(&packed.page));
            now.is_some_and(|now| now.memory.is_none() && now.place == Some(*was))
        };
        let all = self.pages.iter();
        all.filter(move |(packed, was)| stays(packed, was)).map(|(packed, _)| *packed)
    }
}

/// A group in the making.
pub struct Group<'a> {
    head: &'a mut Head,
    usage: &'a mut Usage,
    geometry: Geometry,
    id: VolumeId,
    purpose: Purpose,
    time: Time,
    builder: Builder,
    targets: Vec<Target>,
    /// That of the last page.
    cluster: Option<(Ino, u64)>,
    first: bool,
    done: Assembled,
}

/// A group that can be written.
#[derive(Default)]
pub struct Assembled {
    /// Bytes and where they go.
    pub writes: Vec<(u64, Aligned)>,
    /// Where each block comes to lie.
    pub placed: Vec<(Target, Place)>,
    /// Segments that were begun.
    pub entered: Vec<u32>,
    /// The packs among them.
    pub packs: Vec<Moved>,
    /// The group refers to blocks that were written before and are not synced.
    pub after_sync: bool,
}

impl<'a> Group<'a> {
    /// A group that goes on at `head`.
    pub fn new(
        head: &'a mut Head,
        usage: &'a mut Usage,
        (geometry, id): (Geometry, VolumeId),
        purpose: Purpose,
        time: Time,
    ) -> Group<'a> {
        let (builder, targets, cluster, done) = Default::default();
        let first = true;
        Group { head, usage, geometry, id, purpose, time, builder, targets, cluster, first, done }
    }

    /// Appends an entry without blocks.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no segment is free, [`Error::TooLarge`] if it fits no segment.
    pub fn entry(&mut self, entry: Entry) -> Result<()> {
        let bytes = encoded(&entry);
        self.make_room(bytes, 0)?;
        self.builder.push(entry, bytes);
        Ok(())
    }

    /// Appends a block with its entry, which joins the one before where they go together.
    ///
    /// # Errors
    /// As [`Group::entry`].
    pub fn block(&mut self, entry: Entry, block: Bytes, target: Target) -> Result<()> {
        let bytes = encoded(&entry);
        self.make_room(bytes, 1)?;
        self.builder.push_block(entry, bytes, block);
        self.targets.push(target);
        Ok(())
    }

    /// Appends a page of a file.  `blocks` says how many pages of a range will be appended: those
    /// of one cluster come to lie beside each other.
    ///
    /// # Errors
    /// As [`Group::entry`].
    pub fn page(
        &mut self,
        ino: Ino,
        page: u64,
        block: Bytes,
        blocks: impl FnOnce(Range<u64>) -> usize,
    ) -> Result<()> {
        let (entry, cluster) = (Entry::Data(ino, page, 1), self.geometry.cluster_of(page));
        let this = Some((ino, cluster.start));
        if self.geometry.cluster > 1 && std::mem::replace(&mut self.cluster, this) != this {
            let blocks = blocks(cluster);
            // With what is said of holes between them.
            self.make_room(2 * blocks * encoded(&entry), blocks)?;
        }
        self.block(entry, block, Target::Page(ino, page))
    }

    /// Appends the blocks of a pack, which lie beside each other, with their entry.
    ///
    /// # Errors
    /// As [`Group::entry`].
    pub fn pack(&mut self, entry: Entry, blocks: &[Bytes], number: usize) -> Result<()> {
        let bytes = encoded(&entry);
        self.make_room(bytes, blocks.len())?;
        self.builder.push(entry, bytes);
        for (n, block) in blocks.iter().enumerate() {
            self.builder.push_payload(block.clone());
            self.targets.push(Target::Pack(number, n));
        }
        Ok(())
    }

    fn make_room(&mut self, bytes: usize, blocks: usize) -> Result<()> {
        loop {
            let room = (self.geometry.segment_blocks - self.head.offset) as usize;
            if self.builder.blocks_with(bytes, blocks) <= room {
                return Ok(());
            }
            if self.builder.is_empty() {
                if self.head.offset == 0 {
                    return Err(Error::TooLarge);
                }
                self.enter_next()?;
            } else {
                self.close(false);
            }
        }
    }

    fn enter_next(&mut self) -> Result<()> {
        let next = self.usage.take(self.head.next).ok_or(Error::NoSpace)?;
        self.usage.release(self.head.segment);
        self.head.segment = self.head.next;
        self.head.next = next;
        self.head.offset = 0;
        self.done.entered.push(self.head.segment);
        Ok(())
    }

    fn close(&mut self, end: bool) {
        let head = &mut *self.head;
        head.lsn += 1;
        let header = Header {
            epoch: head.epoch,
            lsn: head.lsn,
            segment: head.segment,
            generation: self.usage.segment(head.segment).generation,
            offset: head.offset,
            chain: head.chain,
            next: head.next,
            begin: self.first,
            end,
            purpose: self.purpose,
            time: self.time,
        };
        let written = std::mem::take(&mut self.builder).finish(&header, &self.id);
        let at = self.geometry.first(head.segment) + u64::from(head.offset);
        let payload = at + u64::from(written.summary);
        let places = (payload..).zip(&written.crcs).map(|(at, crc)| Place::block(at, *crc));
        self.done.placed.extend(self.targets.drain(..).zip(places));
        head.offset += written.summary + written.crcs.len() as u32;
        // Nothing of it is on the device yet: better no daemon than somebody else's blocks lost.
        assert!(head.offset <= self.geometry.segment_blocks, "a piece lies in its segment");
        head.chain = written.crc;
        self.first = false;
        self.usage.touch(head.segment, head.lsn);
        self.done.writes.push((at, written.bytes));
    }

    /// Ends the group.
    pub fn finish(mut self) -> Assembled {
        if !self.builder.is_empty() {
            self.close(true);
        }
        self.done
    }
}

impl Assembled {
    /// Writes the group; it is durable afterwards.  One piece is one durable write; several are
    /// in flight together, with one sync after them.
    ///
    /// # Errors
    /// What the device says.
    pub fn write_durable(&self, dev: &dyn Device) -> Result<()> {
        if self.after_sync {
            dev.sync()?;
        }
        match self.writes.as_slice() {
            [] => Ok(()),
            [(at, bytes)] => Ok(dev.write_durable(*at, bytes)?),
            _ => {
                self.write(dev)?;
                Ok(dev.sync()?)
            }
        }
    }

    /// Writes the group; a sync makes it durable.
    ///
    /// # Errors
    /// What the device says.
    pub fn write(&self, dev: &dyn Device) -> Result<()> {
        self.writes.iter().try_for_each(|(at, bytes)| Ok(dev.write(*at, bytes)?))
    }
}

fn encoded(entry: &Entry) -> usize {
    let mut e = Encoder::new();
    entry.encode(&mut e);
    e.len()
}
