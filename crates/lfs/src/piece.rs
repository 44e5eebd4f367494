//! Pieces: what is written at once into a segment.  A piece is a summary, one block or several,
//! and the blocks that the summary speaks of.  A group is one piece or several; it is valid as a
//! whole or not at all.

use crate::device::{self, Aligned, Device};
use crate::entry::Entry;
use crate::error::{Error, Result, Structure};
use crate::format::{BLOCK, Geometry, VolumeId};
use crate::object::Bytes;
use crate::rules::{Rule, keeps};
use systx_base::Time;
use systx_base::codec::{DecodeError, Decoder, Encoder};

const MAGIC: u32 = u32::from_le_bytes(*b"SXPC");
/// Bytes of a summary before its body.
const HEADER: usize = 88;
/// Bytes of the body before its entries: how many they are.
const COUNT: usize = 4;

/// What a piece is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Changes of the tree.
    Commit,
    /// Blobs of a checkpoint: nothing for roll-forward.
    Checkpoint,
    /// Pages of a transaction that is not decided, in a segment of its own.  Never part of the
    /// log.
    Private,
}

/// A summary without its entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The opening of the volume in which it was written.
    pub epoch: u64,
    /// Position in the log.
    pub lsn: u64,
    /// The segment.
    pub segment: u32,
    /// How often the segment had been taken.
    pub generation: u32,
    /// First block of the piece in the segment.
    pub offset: u32,
    /// Sum of the piece before it.
    pub chain: u32,
    /// The segment that follows this one.
    pub next: u32,
    /// First piece of its group.
    pub begin: bool,
    /// Last piece of its group.
    pub end: bool,
    /// What it is for.
    pub purpose: Purpose,
    /// When it was made.
    pub time: Time,
}

/// A piece as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The summary.
    pub header: Header,
    /// Its entries.
    pub entries: Vec<Entry>,
    /// The sum of each block that follows the summary.
    pub crcs: Vec<u32>,
    /// Blocks of the summary.
    pub summary: u32,
    /// Sum of the summary: what the next piece is chained to.
    pub crc: u32,
}

impl Piece {
    /// Blocks of all of it.
    pub fn blocks(&self) -> u32 {
        self.summary + self.crcs.len() as u32
    }
}

/// A piece in the making.
#[derive(Default)]
pub struct Builder {
    entries: Vec<Entry>,
    bytes: usize,
    payload: Vec<Bytes>,
}

impl Builder {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn total(bytes: usize, payload: usize) -> usize {
        (HEADER + COUNT + bytes + 4 * payload).div_ceil(BLOCK) + payload
    }

    /// Blocks that it would have with one more entry of `bytes` bytes and `payload` blocks.
    pub fn blocks_with(&self, bytes: usize, payload: usize) -> usize {
        Self::total(self.bytes + bytes, self.payload.len() + payload)
    }

    /// Appends an entry without blocks.
    pub fn push(&mut self, entry: Entry, bytes: usize) {
        self.entries.push(entry);
        self.bytes += bytes;
    }

    /// Appends a block, to the last entry if that goes on with `joined`.  Returns which block of
    /// the piece's payload it is.
    pub fn push_block(&mut self, entry: Entry, bytes: usize, block: Bytes) -> usize {
        let joined = match (self.entries.last_mut(), &entry) {
            (Some(Entry::Data(ino, page, n)), Entry::Data(other, next, _))
                if ino == other && *page + u64::from(*n) == *next =>
            {
                *n += 1;
                true
            }
            (Some(Entry::Blob(of, n)), Entry::Blob(other, _)) if of == other => {
                *n += 1;
                true
            }
            _ => false,
        };
        if !joined {
            self.push(entry, bytes);
        }
        self.push_payload(block);
        self.payload.len() - 1
    }

    /// Appends a block of the last entry.
    pub fn push_payload(&mut self, block: Bytes) {
        self.payload.push(block);
    }

    /// The piece's bytes, its sum, the sums of its blocks, and the blocks of its summary.
    pub fn finish(self, header: &Header, id: &VolumeId) -> Written {
        let crcs: Vec<u32> = self.payload.iter().map(|b| crc32c::crc32c(b)).collect();
        let summary = encode(header, id, &self.entries, &crcs);
        let blocks = summary.len() / BLOCK;
        let mut bytes = Aligned::new(summary.len() + crcs.len() * BLOCK);
        bytes[..summary.len()].copy_from_slice(&summary);
        for (i, block) in self.payload.iter().enumerate() {
            let at = (blocks + i) * BLOCK;
            bytes[at..at + BLOCK].copy_from_slice(block);
        }
        let crc = sum(&summary);
        Written { bytes, crc, crcs, summary: blocks as u32 }
    }
}

/// A piece as it will be written.
pub struct Written {
    /// All of it.
    pub bytes: Aligned,
    /// Sum of the summary.
    pub crc: u32,
    /// Sums of its blocks.
    pub crcs: Vec<u32>,
    /// Blocks of the summary.
    pub summary: u32,
}

/// The whole blocks of a summary, with its sum.
pub fn encode(header: &Header, id: &VolumeId, entries: &[Entry], crcs: &[u32]) -> Vec<u8> {
    let mut body = Encoder::new();
    body.seq(entries, |e, entry| entry.encode(e));
    crcs.iter().for_each(|crc| body.u32(*crc));
    let body = body.finish();
    let len = (HEADER + body.len()).next_multiple_of(BLOCK);
    let mut e = Encoder::new();
    e.u32(MAGIC);
    e.u32(0);
    for half in id.chunks_exact(8) {
        half.iter().for_each(|b| e.u8(*b));
    }
    e.u64(header.epoch);
    e.u64(header.lsn);
    for v in [header.segment, header.generation, header.offset, header.chain, header.next] {
        e.u32(v);
    }
    e.u32((len / BLOCK) as u32);
    e.u32(crcs.len() as u32);
    e.u8(u8::from(header.begin) | u8::from(header.end) << 1);
    e.u8(header.purpose as u8);
    e.time(header.time);
    let mut bytes = e.finish();
    assert!(bytes.len() <= HEADER, "{} bytes of header", bytes.len());
    bytes.resize(HEADER, 0);
    bytes.extend_from_slice(&body);
    bytes.resize(len, 0);
    let crc = sum(&bytes).to_le_bytes();
    bytes[4..8].copy_from_slice(&crc);
    bytes
}

/// The sum of a summary, of which the field of the sum is no part.
pub fn sum(summary: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&summary[..4]);
    crc32c::crc32c_append(crc, &summary[8..])
}

/// Blocks of the summary and of the payload, if this is the first block of one that fits `room`.
fn sizes(block: &[u8], room: u32) -> Option<(u32, u32)> {
    let mut d = Decoder::new(block);
    if d.u32().ok()? != MAGIC {
        return None;
    }
    let mut d = Decoder::new(&block[60..]);
    let (summary, payload) = (d.u32().ok()?, d.u32().ok()?);
    let total = summary.checked_add(payload)?;
    (summary >= 1 && total <= room).then_some((summary, payload))
}

/// Reads what stands at a place of a segment.  `None` if there is no summary with a right sum
/// that says of itself that it belongs there; whether it is the next one of the log is for the
/// caller to say.  The blocks after the summary are not looked at.
///
/// # Errors
/// If the device cannot be read.
pub fn read(
    dev: &dyn Device,
    geometry: &Geometry,
    id: &VolumeId,
    segment: u32,
    offset: u32,
) -> Result<Option<Piece>> {
    let room = geometry.segment_blocks.saturating_sub(offset);
    if room == 0 || segment >= geometry.segments {
        return Ok(None);
    }
    let at = geometry.first(segment) + u64::from(offset);
    let mut bytes = vec![0; BLOCK];
    device::read(dev, at, &mut bytes)?;
    let Some((summary, _)) = sizes(&bytes, room) else { return Ok(None) };
    if summary > 1 {
        bytes.resize(summary as usize * BLOCK, 0);
        device::read(dev, at + 1, &mut bytes[BLOCK..])?;
    }
    Ok(of(&bytes, id, segment, offset))
}

fn of(summary: &[u8], id: &VolumeId, segment: u32, offset: u32) -> Option<Piece> {
    let piece = decode(summary, id).ok();
    piece.filter(|p| p.header.segment == segment && p.header.offset == offset)
}

/// As [`read`], all of a segment that was read as a whole: one after the other, from its start.
pub fn all(blocks: &[u8], id: &VolumeId, segment: u32) -> Vec<Piece> {
    let (mut all, mut rest) = (Vec::new(), blocks);
    while rest.len() >= BLOCK {
        let (offset, room) = ((blocks.len() - rest.len()) / BLOCK, rest.len() / BLOCK);
        let Some((summary, payload)) = sizes(&rest[..BLOCK], room as u32) else { break };
        let summarized = &rest[..summary as usize * BLOCK];
        let Some(piece) = of(summarized, id, segment, offset as u32) else { break };
        rest = &rest[(summary + payload) as usize * BLOCK..];
        all.push(piece);
    }
    all
}

/// Decodes a summary of whole blocks.
///
/// # Errors
/// If it is of another volume, its sum is wrong, or its parts do not agree.
pub fn decode(bytes: &[u8], id: &VolumeId) -> std::result::Result<Piece, DecodeError> {
    let mut d = Decoder::new(bytes);
    let magic = d.u32()?;
    let crc = d.u32()?;
    if magic != MAGIC || !keeps(Rule::SummarySum, sum(bytes) == crc) {
        return Err(d.invalid("sum", crc.into()));
    }
    for b in id {
        let found = d.u8()?;
        if !keeps(Rule::Volume, found == *b) {
            return Err(d.invalid("volume", found.into()));
        }
    }
    let (epoch, lsn) = (d.u64()?, d.u64()?);
    let (segment, generation, offset) = (d.u32()?, d.u32()?, d.u32()?);
    let (chain, next, summary, payload) = (d.u32()?, d.u32()?, d.u32()?, d.u32()?);
    if summary as usize * BLOCK != bytes.len() {
        return Err(d.invalid("length", summary.into()));
    }
    let flags = d.u8()?;
    let purpose = match d.u8()? {
        0 => Purpose::Commit,
        1 => Purpose::Checkpoint,
        2 => Purpose::Private,
        other => return Err(d.invalid("purpose", other.into())),
    };
    let time = d.time()?;
    let (begin, end) = (flags & 1 != 0, flags & 2 != 0);
    let header =
        Header { epoch, lsn, segment, generation, offset, chain, next, begin, end, purpose, time };
    let mut d = Decoder::new(&bytes[HEADER..]);
    let entries = d.seq(Entry::decode)?;
    let named: u64 = entries.iter().map(|e| u64::from(e.payload())).sum();
    if named != u64::from(payload) || d.remaining() / 4 < payload as usize {
        return Err(d.invalid("number of blocks", payload.into()));
    }
    let crcs = (0..payload).map(|_| d.u32()).collect::<std::result::Result<_, _>>()?;
    Ok(Piece { header, entries, crcs, summary, crc })
}

/// Whether all blocks after the summary are what was written.
///
/// # Errors
/// [`Error::Corrupt`] with the first block that is not; [`Error::Io`].
pub fn verify_payload(dev: &dyn Device, geometry: &Geometry, piece: &Piece) -> Result<()> {
    let first = geometry.first(piece.header.segment)
        + u64::from(piece.header.offset)
        + u64::from(piece.summary);
    let mut bytes = vec![0; piece.crcs.len() * BLOCK];
    device::read(dev, first, &mut bytes)?;
    for ((block, crc), at) in bytes.chunks_exact(BLOCK).zip(&piece.crcs).zip(first..) {
        if !keeps(Rule::BlockSum, crc32c::crc32c(block) == *crc) {
            return Err(Error::corrupt(Structure::Data, at, "wrong sum"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a piece is said to need is what it takes, wherever its summary ends in a block: a
    /// group that fills a segment goes by it.
    #[test]
    fn a_piece_takes_as_many_blocks_as_it_was_said_to_need() {
        let block: Bytes = vec![7; BLOCK].into();
        let header = Header {
            epoch: 1,
            lsn: 1,
            segment: 1,
            generation: 1,
            offset: 0,
            chain: 1,
            next: 2,
            begin: true,
            end: true,
            purpose: Purpose::Commit,
            time: Time::default(),
        };
        for (len, payload) in (3800..4100).flat_map(|len| [(len, 0), (len, 1), (len, 9)]) {
            let mut builder = Builder::default();
            let mut needed = 0;
            let name = Entry::Bind(1, vec![b'n'; len], None);
            let data = (0..payload).map(|page| Entry::Data(2, page * 2, 1));
            for entry in std::iter::once(name).chain(data) {
                let mut e = Encoder::new();
                entry.encode(&mut e);
                let blocks = usize::from(matches!(entry, Entry::Data(..)));
                needed = builder.blocks_with(e.len(), blocks);
                match blocks {
                    0 => builder.push(entry, e.len()),
                    _ => drop(builder.push_block(entry, e.len(), block.clone())),
                }
            }
            let written = builder.finish(&header, &[1; 16]);
            assert_eq!(written.bytes.len() / BLOCK, needed, "{len} bytes, {payload} blocks");
        }
    }
}
