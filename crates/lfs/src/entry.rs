//! Entries of a summary: what a group changes, as absolute outcomes.  To apply one twice is to
//! apply it once.

use crate::format::{Ino, PACK_PAGES};
use crate::object::{Link, Node, PAGES_MAX, Place, Within, check_pages, get_name};
use systx_base::codec::{DecodeError, Decoder, Encoder};

/// One outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// An object exists and has these attributes; its pages and entries stay.
    Node(Ino, Node),
    /// An object is gone with its pages.
    Gone(Ino),
    /// A name in a directory and what it stands for.
    Bind(Ino, Vec<u8>, Option<Link>),
    /// A file has no pages from this one on.
    Cut(Ino, u64),
    /// So many pages from this one on are the next blocks of the piece.
    Data(Ino, u64, u32),
    /// So many pages from this one on are not there.
    Hole(Ino, u64, u32),
    /// Pages from this one on lie at these places of a private segment.
    Spilled(Ino, u64, Vec<Place>),
    /// A private segment, and its generation, belongs to the volume from here on.
    Adopted(u32, u32),
    /// So many next blocks of the piece are a part of a blob of a checkpoint.
    Blob(BlobOf, u32),
    /// These pages are a pack, which is so many next blocks of the piece.
    Packed(Ino, u8, Vec<PagePacked>),
}

/// One page of a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagePacked {
    /// Which page of its file.
    pub page: u64,
    /// Which one of the pack.
    pub index: u8,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

impl PagePacked {
    /// Where it lies in a pack.
    pub fn place(&self, at: u64, blocks: u8) -> Place {
        Place { at, crc: self.crc, within: Within { index: self.index, blocks } }
    }
}

/// What a blob of a checkpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlobOf {
    /// A chunk of the inode map.
    Chunk(u64),
    /// The record of an object.
    Record(Ino),
    /// The root record.
    Root,
    /// The usage table.
    Usage,
}

impl Entry {
    /// Number of the piece's blocks that belong to it.
    pub fn payload(&self) -> u32 {
        match self {
            Entry::Data(_, _, n) | Entry::Blob(_, n) => *n,
            Entry::Packed(_, n, _) => (*n).into(),
            _ => 0,
        }
    }

    /// Appends it.
    pub fn encode(&self, e: &mut Encoder) {
        match self {
            Entry::Node(ino, node) => {
                e.u8(1);
                e.u64(*ino);
                node.encode(e);
            }
            Entry::Gone(ino) => {
                e.u8(2);
                e.u64(*ino);
            }
            Entry::Bind(dir, name, link) => {
                e.u8(3);
                e.u64(*dir);
                e.bytes(name);
                e.option(*link, |e, link| link.encode(e));
            }
            Entry::Cut(ino, page) => {
                e.u8(4);
                e.u64(*ino);
                e.u64(*page);
            }
            Entry::Data(ino, page, n) | Entry::Hole(ino, page, n) => {
                e.u8(if matches!(self, Entry::Data(..)) { 5 } else { 6 });
                e.u64(*ino);
                e.u64(*page);
                e.u32(*n);
            }
            Entry::Spilled(ino, page, places) => {
                e.u8(7);
                e.u64(*ino);
                e.u64(*page);
                e.seq(places, |e, place| place.encode(e));
            }
            Entry::Adopted(segment, generation) => {
                e.u8(8);
                e.u32(*segment);
                e.u32(*generation);
            }
            Entry::Blob(of, n) => {
                let (tag, id) = match of {
                    BlobOf::Chunk(chunk) => (9, *chunk),
                    BlobOf::Record(ino) => (10, *ino),
                    BlobOf::Root => (11, 0),
                    BlobOf::Usage => (12, 0),
                };
                e.u8(tag);
                e.u64(id);
                e.u32(*n);
            }
            Entry::Packed(ino, n, pages) => {
                e.u8(13);
                e.u64(*ino);
                e.u8(*n);
                e.seq(pages, |e, packed| {
                    e.u64(packed.page);
                    e.u8(packed.index);
                    e.u32(packed.crc);
                });
            }
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes are not one.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Entry, DecodeError> {
        let tag = d.u8()?;
        Ok(match tag {
            1 => Entry::Node(d.u64()?, Node::decode(d)?),
            2 => Entry::Gone(d.u64()?),
            3 => Entry::Bind(d.u64()?, get_name(d)?, d.option(Link::decode)?),
            4 => Entry::Cut(d.u64()?, d.u64()?),
            5 | 6 => {
                let (ino, page, n) = (d.u64()?, d.u64()?, d.u32()?);
                check_pages(d, page, n as usize)?;
                if tag == 5 { Entry::Data(ino, page, n) } else { Entry::Hole(ino, page, n) }
            }
            7 => {
                let (ino, page) = (d.u64()?, d.u64()?);
                let places = d.seq(Place::decode)?;
                check_pages(d, page, places.len())?;
                Entry::Spilled(ino, page, places)
            }
            8 => Entry::Adopted(d.u32()?, d.u32()?),
            9 => Entry::Blob(BlobOf::Chunk(d.u64()?), d.u32()?),
            10 => Entry::Blob(BlobOf::Record(d.u64()?), d.u32()?),
            11 | 12 => {
                let of = if tag == 11 { BlobOf::Root } else { BlobOf::Usage };
                d.u64()?;
                Entry::Blob(of, d.u32()?)
            }
            13 => {
                let (ino, n) = (d.u64()?, d.u8()?);
                let pages =
                    d.seq(|d| Ok(PagePacked { page: d.u64()?, index: d.u8()?, crc: d.u32()? }))?;
                let most = PACK_PAGES as u8;
                if n == 0 || n >= most {
                    return Err(d.invalid("blocks of a pack", n.into()));
                }
                if let Some(bad) = pages.iter().find(|p| p.index >= most || p.page >= PAGES_MAX) {
                    return Err(d.invalid("page of a pack", bad.page));
                }
                Entry::Packed(ino, n, pages)
            }
            other => return Err(d.invalid("entry", other.into())),
        })
    }
}
