//! Objects: what an inode is, and how its record is encoded.

use crate::format::{BLOCK, Ino, PACK_PAGES};
use std::collections::BTreeMap;
use std::sync::Arc;
use systx_base::codec::{DecodeError, Decoder, Encoder};
use systx_base::{Gid, Kind, Time, Uid};

/// Longest name of an entry or of an extended attribute, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const TARGET_MAX: usize = 4095;
/// Most bytes of an object's extended attributes, names and values.
pub const XATTRS_MAX: usize = 16 << 10;
/// First page number that a file cannot have: 64 TiB.
pub const PAGES_MAX: u64 = 1 << 34;

/// Attributes of an object, as `statx` reports them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attrs {
    /// Type.
    pub kind: Kind,
    /// Permission bits and set-id bits, 07777.
    pub mode: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Number of names; of a directory two and its subdirectories.
    pub nlink: u32,
    /// Bytes of a file or of a link's target.
    pub size: u64,
    /// Number of a device.
    pub rdev: u64,
    /// Last access, as it was set.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// When it was made.
    pub btime: Time,
}

/// Extended attributes, by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// An object but for its pages or entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its attributes.
    pub attrs: Attrs,
    /// Its extended attributes.
    pub xattrs: Xattrs,
    /// Of a directory: the one that it is in; the root's is itself.
    pub parent: Ino,
    /// Of a symbolic link.
    pub target: Vec<u8>,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The object.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
}

/// Content of a page that is not on the medium yet, [`BLOCK`] bytes.
pub type Bytes = Arc<[u8]>;

/// Where in a pack ([`crate::pack`]) a page lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Within {
    /// Which page of the pack, below [`PACK_PAGES`].
    pub index: u8,
    /// Blocks of the pack, fewer than [`PACK_PAGES`]; 0: the page is a block and in no pack.
    pub blocks: u8,
}

/// Where a page lies, and the sum of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The block, or the first one of the pack.
    pub at: u64,
    /// CRC-32C of the page's bytes.
    pub crc: u32,
    /// Where in the pack, if it is one.
    pub within: Within,
}

/// Bits of a place's number that are the block; those of the page in a pack and of the pack's
/// blocks are above.
const BLOCK_BITS: u32 = 48;
const INDEX_BITS: u32 = 6;

impl Place {
    /// A page that is a block.
    pub fn block(at: u64, crc: u32) -> Place {
        Place { at, crc, within: Within::default() }
    }

    /// Whether the page lies in a pack.
    pub fn is_packed(&self) -> bool {
        self.within.blocks > 0
    }

    /// The blocks that have to be read for it.
    pub fn blocks(&self) -> std::ops::Range<u64> {
        self.at..self.at.saturating_add(self.within.blocks.max(1).into())
    }

    /// Whether the blocks of `next` are the same, or go on behind these.
    pub fn leads_to(&self, next: &Place) -> bool {
        next.at == self.blocks().end || self.is_packed() && next.at == self.at
    }

    /// Whether the page so many after this one would lie there.
    fn goes_on(&self, plus: usize, next: &Place) -> bool {
        let (at, within) = (self.at, self.within);
        match within.blocks {
            0 => !next.is_packed() && next.at == at + plus as u64,
            blocks => {
                (next.at, next.within.blocks) == (at, blocks)
                    && usize::from(next.within.index) == usize::from(within.index) + plus
            }
        }
    }

    /// Block and place in the pack in one number.
    pub fn number(&self) -> u64 {
        let within = u64::from(self.within.index) | u64::from(self.within.blocks) << INDEX_BITS;
        self.at | within << BLOCK_BITS
    }

    /// The opposite of [`Place::number`], of the page so many after that one.
    ///
    /// # Errors
    /// If there is no such place.
    fn numbered(d: &Decoder<'_>, number: u64, plus: u64, crc: u32) -> Result<Place, DecodeError> {
        let (at, within) = (number & ((1 << BLOCK_BITS) - 1), number >> BLOCK_BITS);
        let (index, blocks) = (within & ((1 << INDEX_BITS) - 1), within >> INDEX_BITS);
        let index = if blocks > 0 { index + plus } else { index };
        let at = if blocks > 0 { at } else { at + plus };
        let is_right = if blocks > 0 {
            index < PACK_PAGES as u64 && blocks < PACK_PAGES as u64
        } else {
            index == 0
        };
        match (u8::try_from(index), u8::try_from(blocks)) {
            (Ok(index), Ok(blocks)) if is_right && at < 1 << BLOCK_BITS => {
                Ok(Place { at, crc, within: Within { index, blocks } })
            }
            _ => Err(d.invalid("block", number)),
        }
    }

    /// Appends it.
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.number());
        e.u32(self.crc);
    }

    /// Reads one.
    ///
    /// # Errors
    /// If there is no such place.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Place, DecodeError> {
        let (number, crc) = (d.u64()?, d.u32()?);
        Place::numbered(d, number, 0, crc)
    }
}

/// One page of a file.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Where its last written version lies.
    pub place: Option<Place>,
    /// A version that is newer, or whose write has not ended.
    pub memory: Option<Bytes>,
}

/// Pages or entries.
#[derive(Clone, Debug)]
pub enum Body {
    /// Of a file.  Pages that are not there are zeros.
    Pages(BTreeMap<u64, Page>),
    /// Of a directory.
    Entries(BTreeMap<Vec<u8>, Link>),
    /// Of everything else.
    Nothing,
}

/// A whole object.
#[derive(Clone, Debug)]
pub struct Object {
    /// Attributes.
    pub node: Node,
    /// Content.
    pub body: Body,
}

impl Object {
    /// An object of this kind without content.
    pub fn new(node: Node) -> Object {
        let body = match node.attrs.kind {
            Kind::File => Body::Pages(BTreeMap::new()),
            Kind::Dir => Body::Entries(BTreeMap::new()),
            _ => Body::Nothing,
        };
        Object { node, body }
    }

    /// The pages of a file; none for anything else.
    pub fn pages(&self) -> Option<&BTreeMap<u64, Page>> {
        match &self.body {
            Body::Pages(pages) => Some(pages),
            _ => None,
        }
    }

    /// The entries of a directory; none for anything else.
    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Link>> {
        match &self.body {
            Body::Entries(entries) => Some(entries),
            _ => None,
        }
    }

    /// An upper bound of the bytes of its record.
    pub fn record_max(&self) -> u64 {
        let content = match &self.body {
            Body::Pages(pages) => pages.len() as u64 * PAGE_RECORD,
            Body::Entries(entries) => entries.keys().map(|n| entry_record(n)).sum(),
            Body::Nothing => 0,
        };
        node_record(&self.node) + content
    }

    /// Appends the record.
    pub fn encode(&self, e: &mut Encoder) {
        self.node.encode(e);
        match &self.body {
            Body::Pages(pages) => encode_pages(e, pages),
            Body::Entries(entries) => {
                e.u32(u32::try_from(entries.len()).expect("fewer than 2^32 entries"));
                for (name, link) in entries {
                    e.bytes(name);
                    link.encode(e);
                }
            }
            Body::Nothing => {}
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not one.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Object, DecodeError> {
        let mut object = Object::new(Node::decode(d)?);
        match &mut object.body {
            Body::Pages(pages) => *pages = decode_pages(d)?,
            Body::Entries(entries) => {
                for (name, link) in d.seq(|d| Ok((get_name(d)?, Link::decode(d)?)))? {
                    entries.insert(name, link);
                }
            }
            Body::Nothing => {}
        }
        Ok(object)
    }
}

/// Most bytes of a page in a record: a run of its own.
pub const PAGE_RECORD: u64 = 24;

/// Most bytes of an entry in a record.
pub fn entry_record(name: &[u8]) -> u64 {
    name.len() as u64 + 13
}

/// Most bytes of a node in a record.
pub fn node_record(node: &Node) -> u64 {
    let xattrs: usize = node.xattrs.iter().map(|(n, v)| n.len() + v.len() + 8).sum();
    (128 + xattrs + node.target.len()) as u64
}

/// A run: page, place, count and the sums.
fn encode_pages(e: &mut Encoder, pages: &BTreeMap<u64, Page>) {
    let mut runs: Vec<(u64, Place, Vec<u32>)> = Vec::new();
    for (page, place) in pages.iter().filter_map(|(n, p)| Some((*n, p.place?))) {
        match runs.last_mut() {
            Some((first, at, crcs))
                if page == *first + crcs.len() as u64 && at.goes_on(crcs.len(), &place) =>
            {
                crcs.push(place.crc);
            }
            _ => runs.push((page, place, vec![place.crc])),
        }
    }
    e.seq(&runs, |e, (page, at, crcs)| {
        e.u64(*page);
        e.u64(at.number());
        e.seq(crcs, |e, crc| e.u32(*crc));
    });
}

fn decode_pages(d: &mut Decoder<'_>) -> Result<BTreeMap<u64, Page>, DecodeError> {
    let mut pages = BTreeMap::new();
    let runs = d.seq(|d| Ok((d.u64()?, d.u64()?, d.seq(|d| d.u32())?)))?;
    for (page, at, crcs) in runs {
        check_pages(d, page, crcs.len())?;
        for (i, crc) in (0..).zip(crcs) {
            let place = Some(Place::numbered(d, at, i, crc)?);
            pages.insert(page + i, Page { place, memory: None });
        }
    }
    Ok(pages)
}

/// Whether a file may have these pages.
pub fn check_pages(d: &Decoder<'_>, page: u64, count: usize) -> Result<(), DecodeError> {
    match page.checked_add(count as u64) {
        Some(end) if end <= PAGES_MAX => Ok(()),
        _ => Err(d.invalid("page", page)),
    }
}

/// A name of an entry: one path component.
pub fn get_name(d: &mut Decoder<'_>) -> Result<Vec<u8>, DecodeError> {
    let name = d.bytes()?;
    if !is_component(name) {
        return Err(d.invalid("name of length", name.len() as u64));
    }
    Ok(name.to_vec())
}

/// Whether this can be the name of an entry.
pub fn is_component(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

impl Link {
    /// Appends it.
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.ino);
        e.u8(self.kind.dirent_type() as u8);
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is of no type.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Link, DecodeError> {
        let ino = d.u64()?;
        let kind = u32::from(d.u8()?);
        let kind = Kind::from_mode(kind << 12).filter(|k| k.dirent_type() == kind);
        match kind {
            Some(kind) => Ok(Link { ino, kind }),
            None => Err(d.invalid("type of", ino)),
        }
    }
}

impl Node {
    /// Appends it.
    pub fn encode(&self, e: &mut Encoder) {
        let a = &self.attrs;
        for v in [a.kind.mode_bits() | a.mode, a.uid, a.gid, a.nlink] {
            e.u32(v);
        }
        e.u64(a.size);
        e.u64(a.rdev);
        for t in [a.atime, a.mtime, a.ctime, a.btime] {
            e.time(t);
        }
        e.u64(self.parent);
        e.bytes(&self.target);
        e.u32(u32::try_from(self.xattrs.len()).expect("limited by XATTRS_MAX"));
        for (name, value) in &self.xattrs {
            e.bytes(name);
            e.bytes(value);
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// If a value is beyond its limits.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Node, DecodeError> {
        let mode = d.u32()?;
        let kind = Kind::from_mode(mode).ok_or_else(|| d.invalid("mode", mode.into()))?;
        if mode & !0o177_777 != 0 {
            return Err(d.invalid("mode", mode.into()));
        }
        let (uid, gid, nlink) = (d.u32()?, d.u32()?, d.u32()?);
        let (size, rdev) = (d.u64()?, d.u64()?);
        let (atime, mtime, ctime, btime) = (d.time()?, d.time()?, d.time()?, d.time()?);
        let mode = mode & 0o7777;
        let attrs = Attrs { kind, mode, uid, gid, nlink, size, rdev, atime, mtime, ctime, btime };
        let parent = d.u64()?;
        let target = d.bytes()?.to_vec();
        let xattrs: Xattrs =
            d.seq(|d| Ok((d.bytes()?.to_vec(), d.bytes()?.to_vec())))?.into_iter().collect();
        if size > PAGES_MAX * BLOCK as u64 {
            return Err(d.invalid("size", size));
        }
        if target.len() > TARGET_MAX || (kind == Kind::Symlink) == target.is_empty() {
            return Err(d.invalid("length of a target", target.len() as u64));
        }
        let bytes = xattrs_bytes(&xattrs);
        if bytes > XATTRS_MAX || xattrs.keys().any(|n| n.is_empty() || n.len() > NAME_MAX) {
            return Err(d.invalid("extended attributes of length", bytes as u64));
        }
        Ok(Node { attrs, xattrs, parent, target })
    }
}

/// Bytes of all names and values.
pub fn xattrs_bytes(xattrs: &Xattrs) -> usize {
    xattrs.iter().map(|(n, v)| n.len() + v.len()).sum()
}
