//! The journal: a ring of segments that are written once with zeros and then overwritten for ever.
//!
//! A record is one transaction: a header of 64 bytes and a body, padded to a multiple of 4 KiB,
//! never across two segments.  A body that is larger than a segment lies in a staging slot (a *side
//! log*), and the record says which.  Records that commit together form a group: they are written
//! with one durable write each run of neighbours.
//!
//! A record is valid if its header and body match their checksums and it is the next one: store,
//! epoch, log sequence number, and the checksum of the header before it (the chain). The end of the
//! log is the first place where no valid record follows; a record that does not fit into the rest
//! of a segment is at the start of the next.
//!
//! What a power cut may leave is a torn group: each of its records valid or not.  The prefix up to
//! the first invalid one counts; none of it was acknowledged, and any prefix is a legal outcome.  A
//! valid record of a *later* group after the end means that an acknowledged record was damaged:
//! that is refused, not cut off.

use crate::error::is_full;
use crate::io::{Class, Handle, Io, Open, Rename};

use crate::layout::{Layout, end_of_data, ensure_file, found, read_first};
use crate::writeset::SlotId;
use std::io::{Error, Result};
use systx_base::codec::{DecodeError, Decoder, Encoder};

/// Unit of the ring.
pub(crate) const BLOCK: u64 = 4096;
const HEADER: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"SYSTXJR1");
const SIDE: u32 = 1;

/// A place between two records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Head {
    /// Segment of the next record.
    pub segment: u32,
    /// Offset of the next record.
    pub offset: u64,
    /// Log sequence number of the next record.
    pub lsn: u64,
    /// Checksum of the header before it.
    pub chain: u32,
}

/// What tells this journal's records from any others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub store: u64,
    pub epoch: u64,
    pub segments: u32,
    pub segment_bytes: u64,
}

/// The fixed part of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub store: u64,
    pub epoch: u64,
    pub lsn: u64,
    /// First record of the group that this one was written in.
    pub group: u64,
    pub chain: u32,
    pub side: bool,
    pub body_len: u64,
    pub body_crc: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut e = Encoder::new();
        e.u64(MAGIC);
        e.u64(self.store);
        e.u64(self.epoch);
        e.u64(self.lsn);
        e.u64(self.group);
        e.u64(self.body_len);
        e.u32(self.chain);
        e.u32(if self.side { SIDE } else { 0 });
        e.u32(self.body_crc);
        let mut bytes = [0; HEADER];
        let fields = e.finish();
        bytes[..fields.len()].copy_from_slice(&fields);
        let crc = crc32c::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER)?;
        let (fields, crc) = bytes.split_last_chunk::<4>()?;
        let mut d = Decoder::new(fields);
        if d.u64() != Ok(MAGIC) || u32::from_le_bytes(*crc) != crc32c::crc32c(fields) {
            return None;
        }
        let mut get = || -> std::result::Result<Header, DecodeError> {
            let (store, epoch, lsn, group) = (d.u64()?, d.u64()?, d.u64()?, d.u64()?);
            let (body_len, chain, flags, body_crc) = (d.u64()?, d.u32()?, d.u32()?, d.u32()?);
            let side = flags & SIDE != 0;
            Ok(Header { store, epoch, lsn, group, chain, side, body_len, body_crc })
        };
        get().ok()
    }

    /// Bytes that the record takes in the ring; `None` if it cannot be one.
    fn extent(&self) -> Option<u64> {
        let inline = if self.side { 8 } else { self.body_len };
        inline.checked_add(HEADER as u64)?.checked_next_multiple_of(BLOCK)
    }

    fn checksum(bytes: &[u8; HEADER]) -> u32 {
        crc32c::crc32c(bytes)
    }
}

/// Where a record's body is.
#[derive(Debug)]
pub(crate) enum Body {
    /// In the ring.
    Inline(Vec<u8>),
    /// In a synced slot: length and checksum.
    Side { slot: SlotId, len: u64, crc: u32 },
}

impl Body {
    /// Bytes that the record takes in the ring.
    pub fn extent(&self) -> u64 {
        let inline = match self {
            Body::Inline(bytes) => bytes.len() as u64,
            Body::Side { .. } => 8,
        };
        (inline + HEADER as u64).next_multiple_of(BLOCK)
    }
}

/// A record that was read back.
#[derive(Debug)]
pub(crate) struct Record {
    pub lsn: u64,
    pub after: Head,
    pub side: Option<SlotId>,
    pub body: Vec<u8>,
}

/// How the log ends.
#[derive(Debug)]
pub(crate) struct Scan {
    pub records: Vec<Record>,
    /// Log sequence number of a record that was acknowledged and cannot be read.
    pub damaged: Option<u64>,
    /// Whether anything that looks like a record of this epoch follows the end.
    pub torn: bool,
}

/// The ring, as its one writer sees it.
pub(crate) struct Ring {
    identity: Identity,
    head: Head,
    files: Vec<Option<Handle>>,
}

fn segment_name(n: u32) -> Vec<u8> {
    format!("{n:02}").into_bytes()
}

impl Ring {
    pub fn new(identity: Identity, head: Head) -> Ring {
        Ring { identity, head, files: vec![None; identity.segments as usize] }
    }

    pub fn head(&self) -> Head {
        self.head
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Where a record of this size goes: here or at the start of the next segment.
    pub fn place(&self, extent: u64) -> (u32, u64) {
        if self.head.offset + extent <= self.identity.segment_bytes {
            (self.head.segment, self.head.offset)
        } else {
            ((self.head.segment + 1) % self.identity.segments, 0)
        }
    }

    /// The segment's file, written with zeros and durable.
    ///
    /// It gets its name only when its blocks are durable: a file of the right length may have holes
    /// after a power cut, and a record in a hole would need more than one write to survive.
    fn segment(&mut self, io: &dyn Io, layout: &Layout, class: Class, n: u32) -> Result<Handle> {
        if let Some(file) = &self.files[n as usize] {
            return Ok(file.clone());
        }
        let name = segment_name(n);
        let file = match found(io.open_to_write(&layout.journal, &name))? {
            Some(file) => file,
            None => {
                let new = [&name[..], b".new"].concat();
                let file = self.write_zeros(io, layout, &new)?;
                match class {
                    Class::Memory => {}
                    Class::Strong => io.sync_all(&file)?,
                    Class::Weak => io.sync_fs()?,
                }
                io.rename(&layout.journal, &new, &layout.journal, &name, Rename::Replace)?;
                match class {
                    Class::Memory => {}
                    Class::Strong => io.sync_all(&layout.journal)?,
                    Class::Weak => io.sync_fs()?,
                }
                file
            }
        };
        self.files[n as usize] = Some(file.clone());
        Ok(file)
    }

    fn write_zeros(&self, io: &dyn Io, layout: &Layout, name: &[u8]) -> Result<Handle> {
        let file = ensure_file(io, &layout.journal, name)?;
        let zeros = vec![0; 256 * 1024];
        let mut at = 0;
        while at < self.identity.segment_bytes {
            let n = (self.identity.segment_bytes - at).min(zeros.len() as u64);
            io.write_at(&file, &zeros[..n as usize], at)?;
            at += n;
        }
        Ok(file)
    }

    /// Makes the first segment of a new store, whatever an interrupted attempt left.  The caller
    /// syncs, and writes the first super block after that.
    pub fn prepare(&mut self, io: &dyn Io, layout: &Layout) -> Result<()> {
        let first = self.write_zeros(io, layout, &segment_name(0))?;
        self.files[0] = Some(first);
        for n in 1..self.identity.segments {
            found(io.unlink(&layout.journal, &segment_name(n)))?;
        }
        Ok(())
    }

    /// Writes a group; durable on return.  Returns the place after each record.
    ///
    /// # Errors
    /// `ENOSPC` and `EDQUOT`: nothing of it is in the journal, and it may be written again. After
    /// any other some of it may be.
    pub fn append(
        &mut self,
        io: &dyn Io,
        layout: &Layout,
        class: Class,
        bodies: &[Body],
    ) -> Result<Vec<Head>> {
        let before = self.head;
        let first = bodies.first().map_or(0, Body::extent);
        self.write_group(io, layout, class, bodies).map_err(|e| {
            if !is_full(&e) {
                return e;
            }
            // Also what was written in part, in a cache perhaps, would be found by its beginning.
            let (segment, offset) = {
                self.head = before;
                self.place(first)
            };
            match self.begins_at(io, layout, segment, offset) {
                Ok(false) => e,
                Ok(true) => Error::other(format!("a part of the record was written ({e})")),
                Err(error) => error,
            }
        })
    }

    /// Whether what is found at a place is the beginning of the next record.
    fn begins_at(&self, io: &dyn Io, layout: &Layout, segment: u32, offset: u64) -> Result<bool> {
        let open = io.open_file(&layout.journal, &segment_name(segment), Open::Read);
        let Some(file) = found(open)? else { return Ok(false) };
        let mut bytes = [0; HEADER];
        let got = io.read_at(&file, &mut bytes, offset)?;
        let ours = |h: Header| {
            (h.store, h.epoch, h.lsn) == (self.identity.store, self.identity.epoch, self.head.lsn)
        };
        Ok(Header::decode(&bytes[..got]).is_some_and(ours))
    }

    fn write_group(
        &mut self,
        io: &dyn Io,
        layout: &Layout,
        class: Class,
        bodies: &[Body],
    ) -> Result<Vec<Head>> {
        let group = self.head.lsn;
        let mut after = Vec::with_capacity(bodies.len());
        let mut run: Vec<u8> = Vec::new();
        let mut start = (self.head.segment, self.head.offset);
        for body in bodies {
            let extent = body.extent();
            let at = self.place(extent);
            if at.0 != self.head.segment {
                self.flush(io, layout, class, start, &mut run)?;
                start = at;
            }
            let header = self.header(group, body);
            let bytes = header.encode();
            run.extend_from_slice(&bytes);
            match body {
                Body::Inline(body) => run.extend_from_slice(body),
                Body::Side { slot, .. } => run.extend_from_slice(&slot.0.to_le_bytes()),
            }
            run.resize(run.len().next_multiple_of(BLOCK as usize), 0);
            self.head = Head {
                segment: at.0,
                offset: at.1 + extent,
                lsn: self.head.lsn + 1,
                chain: Header::checksum(&bytes),
            };
            after.push(self.head);
        }
        self.flush(io, layout, class, start, &mut run)?;
        Ok(after)
    }

    fn flush(
        &mut self,
        io: &dyn Io,
        layout: &Layout,
        class: Class,
        at: (u32, u64),
        run: &mut Vec<u8>,
    ) -> Result<()> {
        if !run.is_empty() {
            let file = self.segment(io, layout, class, at.0)?;
            io.write_durable(&file, run, at.1)?;
            run.clear();
        }
        Ok(())
    }

    fn header(&self, group: u64, body: &Body) -> Header {
        let (side, body_len, body_crc) = match body {
            Body::Inline(bytes) => (false, bytes.len() as u64, crc32c::crc32c(bytes)),
            Body::Side { len, crc, .. } => (true, *len, *crc),
        };
        Header {
            store: self.identity.store,
            epoch: self.identity.epoch,
            lsn: self.head.lsn,
            group,
            chain: self.head.chain,
            side,
            body_len,
            body_crc,
        }
    }
}

/// Reads the log from `head` on.
pub(crate) fn scan(io: &dyn Io, layout: &Layout, identity: Identity, head: Head) -> Result<Scan> {
    let mut segments = Vec::new();
    for n in 0..identity.segments {
        let open = io.open_file(&layout.journal, &segment_name(n), Open::Read);
        let mut bytes = Vec::new();
        if let Some(file) = found(open)? {
            // Where the file system keeps zeros as holes, or somebody made a file of nothing else,
            // there is no record.
            let end = end_of_data(io, &file)?.min(identity.segment_bytes);
            bytes.resize(usize::try_from(end).unwrap_or(0), 0);
            let got = io.read_at(&file, &mut bytes, 0)?;
            bytes.truncate(got);
        }
        segments.push(bytes);
    }
    let side = |slot: SlotId, len: u64| -> Result<Option<Vec<u8>>> {
        let open = io.open_file(&layout.slots, &crate::staging::slot_name(slot), Open::Read);
        let Some(file) = found(open)? else { return Ok(None) };
        Ok(read_first(io, &file, len)?.filter(|bytes| bytes.len() as u64 == len))
    };
    scan_bytes(identity, head, &segments, side)
}

/// Whether a record begins at `head`, in a log that had none when it was scanned last.
pub(crate) fn is_begun(
    io: &dyn Io,
    layout: &Layout,
    identity: Identity,
    head: Head,
) -> Result<bool> {
    let next = (head.segment + 1) % identity.segments;
    for (segment, offset) in [(head.segment, head.offset), (next, 0)] {
        let open = io.open_file(&layout.journal, &segment_name(segment), Open::Read);
        let Some(file) = found(open)? else { continue };
        let mut bytes = [0; HEADER];
        let got = io.read_at(&file, &mut bytes, offset)?;
        let header = Header::decode(&bytes[..got]);
        if header.is_some_and(|header| header.store == identity.store && header.lsn == head.lsn) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// [`scan`] of the segments' bytes; `side` reads a side log.
pub(crate) fn scan_bytes(
    identity: Identity,
    mut head: Head,
    segments: &[Vec<u8>],
    mut side: impl FnMut(SlotId, u64) -> Result<Option<Vec<u8>>>,
) -> Result<Scan> {
    let mut records = Vec::new();
    // Every record takes at least a block, so the ring bounds the walk.
    let limit = u64::from(identity.segments) * (identity.segment_bytes / BLOCK);
    while (records.len() as u64) < limit {
        let next = (head.segment + 1) % identity.segments;
        let mut read = read_record(identity, head, head.segment, head.offset, segments, &mut side)?;
        if read.is_none() && head.offset > 0 {
            read = read_record(identity, head, next, 0, segments, &mut side)?;
        }
        let Some(record) = read else { break };
        head = record.after;
        records.push(record);
    }
    let (damaged, torn) = look_beyond(identity, head, segments);
    Ok(Scan { records, damaged, torn })
}

fn read_record(
    identity: Identity,
    head: Head,
    segment: u32,
    offset: u64,
    segments: &[Vec<u8>],
    side: &mut impl FnMut(SlotId, u64) -> Result<Option<Vec<u8>>>,
) -> Result<Option<Record>> {
    let Some(bytes) = segments.get(segment as usize) else { return Ok(None) };
    let Some(bytes) = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)) else {
        return Ok(None);
    };
    let Some(header) = Header::decode(bytes) else { return Ok(None) };
    let expected = header.store == identity.store
        && header.epoch == identity.epoch
        && header.lsn == head.lsn
        && header.chain == head.chain;
    let extent = header.extent().filter(|n| *n <= bytes.len() as u64);
    let (true, Some(extent)) = (expected, extent) else { return Ok(None) };
    let rest = &bytes[HEADER..];
    let (slot, body) = if header.side {
        let slot = rest.first_chunk::<8>().map(|b| SlotId(u64::from_le_bytes(*b)));
        let Some(slot) = slot else { return Ok(None) };
        let Some(body) = side(slot, header.body_len)? else { return Ok(None) };
        (Some(slot), body)
    } else {
        // Within `extent`, which is within `bytes`.
        (None, rest[..header.body_len as usize].to_vec())
    };
    if crc32c::crc32c(&body) != header.body_crc {
        return Ok(None);
    }
    let mut raw = [0; HEADER];
    raw.copy_from_slice(&bytes[..HEADER]);
    let after =
        Head { segment, offset: offset + extent, lsn: head.lsn + 1, chain: Header::checksum(&raw) };
    Ok(Some(Record { lsn: header.lsn, after, side: slot, body }))
}

/// Looks for records after the end of the log: (an acknowledged one is missing, any).
fn look_beyond(identity: Identity, end: Head, segments: &[Vec<u8>]) -> (Option<u64>, bool) {
    let mut torn = false;
    for bytes in segments {
        for block in bytes.chunks(BLOCK as usize) {
            let Some(header) = Header::decode(block) else { continue };
            if header.store != identity.store || header.epoch != identity.epoch {
                continue;
            }
            torn |= header.lsn >= end.lsn;
            // Its group was only written after every group before it was acknowledged.
            if header.lsn > end.lsn && header.group > end.lsn && header.group <= header.lsn {
                return (Some(end.lsn), true);
            }
        }
    }
    (None, torn)
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
#[cfg(test)]
pub(crate) mod tests;
