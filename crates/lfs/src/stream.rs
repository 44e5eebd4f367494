//! A snapshot, or what is between two, as a stream of checked frames: backup, and recovery of a
//! lost device.
//!
//! A frame is a length, a sum and bytes; the sum goes on from frame to frame, so that a frame that
//! is missing, doubled or out of order is noticed.  A stream without its last frame is nothing.
//! The receiver has all of a stream or none of it: its tree changes, and gets the snapshot's name,
//! with one checkpoint.

mod diff;
mod receive;

pub use receive::receive;

use crate::entry::Entry;
use crate::error::{Error, Result, Structure};
use crate::format::VolumeId;
use crate::object::Bytes;
use crate::volume::Volume;
use std::io::{Read, Write};
use systx_base::Time;
use systx_base::codec::{DecodeError, Decoder, Encoder};

const MAGIC: u64 = u64::from_le_bytes(*b"SYSTXLST");
const VERSION: u32 = 1;
/// Most bytes of a frame.
const FRAME_MAX: usize = 1 << 20;
/// Bytes of entries and blocks after which a frame is sent.
const FRAME: usize = 256 << 10;

/// What a stream says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamHeader {
    /// The volume that sent it.
    pub id: VolumeId,
    /// The checkpoint that the snapshot is.
    pub sequence: u64,
    /// The name of the snapshot.
    pub name: String,
    /// When it was made.
    pub time: Time,
    /// The checkpoint that the stream is a difference to.
    pub since: Option<u64>,
}

impl StreamHeader {
    fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u64(MAGIC);
        e.u32(VERSION);
        crate::root::put_origin(&mut e, (self.id, self.sequence));
        e.bytes(self.name.as_bytes());
        e.time(self.time);
        e.option(self.since, Encoder::u64);
        e.finish()
    }

    fn decode(bytes: &[u8]) -> std::result::Result<StreamHeader, DecodeError> {
        let mut d = Decoder::new(bytes);
        let magic = d.u64()?;
        if magic != MAGIC {
            return Err(d.invalid("magic number", magic));
        }
        let version = d.u32()?;
        if version != VERSION {
            return Err(d.invalid("version", version.into()));
        }
        let (id, sequence) = crate::root::get_origin(&mut d)?;
        let name = String::from_utf8_lossy(d.bytes()?).into_owned();
        let (time, since) = (d.time()?, d.option(|d| d.u64())?);
        Ok(StreamHeader { id, sequence, name, time, since })
    }
}

/// One frame.
enum Frame {
    /// Outcomes, and the blocks that they speak of.
    Entries(Vec<Entry>, Vec<u8>),
    /// Nothing follows.  So many frames came before.
    End(u64),
}

impl Frame {
    fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        match self {
            Frame::Entries(entries, blocks) => {
                e.u8(0);
                e.seq(entries, |e, entry| entry.encode(e));
                e.bytes(blocks);
            }
            Frame::End(frames) => {
                e.u8(1);
                e.u64(*frames);
            }
        }
        e.finish()
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Frame, DecodeError> {
        let mut d = Decoder::new(bytes);
        match d.u8()? {
            0 => {
                let entries = d.seq(Entry::decode)?;
                let blocks = d.bytes()?.to_vec();
                let named: u64 = entries.iter().map(|e| u64::from(e.payload())).sum();
                if blocks.len() as u64 != named * crate::format::BLOCK as u64 {
                    return Err(d.invalid("bytes of blocks", blocks.len() as u64));
                }
                Ok(Frame::Entries(entries, blocks))
            }
            1 => Ok(Frame::End(d.u64()?)),
            other => Err(d.invalid("frame", other.into())),
        }
    }
}

/// Writes frames.
struct Sender<'a> {
    out: &'a mut dyn Write,
    chain: u32,
    frames: u64,
    bytes: u64,
    entries: Vec<Entry>,
    blocks: Vec<u8>,
}

impl Sender<'_> {
    fn frame(&mut self, payload: &[u8]) -> Result<()> {
        self.chain = crc32c::crc32c_append(self.chain, payload);
        let len = u32::try_from(payload.len()).map_err(|_| Error::TooLarge)?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&self.chain.to_le_bytes())?;
        self.out.write_all(payload)?;
        self.frames += 1;
        self.bytes += payload.len() as u64 + 8;
        Ok(())
    }

    fn push(&mut self, entry: Entry, block: Option<Bytes>) -> Result<()> {
        match (self.entries.last_mut(), &entry) {
            (Some(Entry::Data(ino, page, n)), Entry::Data(other, next, _))
                if ino == other && *page + u64::from(*n) == *next =>
            {
                *n += 1;
            }
            _ => self.entries.push(entry),
        }
        if let Some(block) = block {
            self.blocks.extend_from_slice(&block);
        }
        // An entry has at most the attributes of one object.
        let bytes = self.entries.len() * 512 + self.blocks.len();
        if bytes > FRAME || matches!(self.entries.last(), Some(Entry::Node(..))) && bytes > 16 << 10
        {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let (entries, blocks) =
            (std::mem::take(&mut self.entries), std::mem::take(&mut self.blocks));
        self.frame(&Frame::Entries(entries, blocks).encode())
    }
}

/// Reads frames.
struct Receiver<'a> {
    input: &'a mut dyn Read,
    chain: u32,
    frames: u64,
}

impl Receiver<'_> {
    fn frame(&mut self) -> Result<Vec<u8>> {
        let mut head = [0; 8];
        self.input.read_exact(&mut head).map_err(|e| self.ended(e))?;
        let [a, b, c, d, rest @ ..] = head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > FRAME_MAX {
            return Err(self.damaged("a frame that is too long"));
        }
        let mut payload = vec![0; len];
        self.input.read_exact(&mut payload).map_err(|e| self.ended(e))?;
        self.chain = crc32c::crc32c_append(self.chain, &payload);
        if self.chain != u32::from_le_bytes(rest) {
            return Err(self.damaged("wrong sum"));
        }
        self.frames += 1;
        Ok(payload)
    }

    /// Nothing follows the last frame.  A second stream behind this one would be lost unnoticed.
    fn end(&mut self) -> Result<()> {
        let mut more = Vec::new();
        (&mut *self.input).take(1).read_to_end(&mut more)?;
        match more.is_empty() {
            true => Ok(()),
            false => Err(self.damaged("it goes on behind its end: one stream at a time")),
        }
    }

    fn ended(&self, e: std::io::Error) -> Error {
        match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.damaged("it ends before its end"),
            _ => Error::Io(e),
        }
    }

    fn damaged(&self, why: impl Into<String>) -> Error {
        Error::corrupt(Structure::Stream, self.frames, why)
    }
}

/// Sends a snapshot, or what has changed from an earlier one to it.  Returns the number of bytes.
/// Nobody is locked out: a snapshot does not change.
///
/// # Errors
/// [`Error::NotFound`] if there is no such snapshot; [`Error::NotEarlier`] if `since` is not the
/// earlier one; what reading and `out` say.
pub fn send(volume: &Volume, name: &str, since: Option<&str>, out: &mut dyn Write) -> Result<u64> {
    let to = volume.at(name)?;
    let from = since.map(|since| volume.at(since)).transpose()?;
    let info = to.info();
    let base = from.as_ref().map(|view| view.info().sequence);
    if base.is_some_and(|base| base >= info.sequence) {
        let (since, name) = (since.unwrap_or_default().to_owned(), name.to_owned());
        return Err(Error::NotEarlier { since, name });
    }
    // A copy is known by what it is a copy of, so that copies can be sent on.
    let known = |info: &crate::snapshots::SnapshotInfo| {
        info.origin.unwrap_or((volume.identity().0, info.sequence))
    };
    let (id, sequence) = known(info);
    let since = match from.as_ref().map(|view| known(view.info())) {
        Some((other, sequence)) if other == id => Some(sequence),
        Some(_) => return Err(Error::Invalid("the snapshots are of different volumes")),
        None => None,
    };
    let header = StreamHeader { id, sequence, name: name.to_owned(), time: info.time, since };
    let (entries, blocks) = Default::default();
    let mut sender = Sender { out, chain: 0, frames: 0, bytes: 0, entries, blocks };
    sender.frame(&header.encode())?;
    to.tree(|to| match &from {
        Some(from) => from.tree_beside(|from| {
            diff::difference(Some(from), to, &mut |entry, block| sender.push(entry, block))
        }),
        None => diff::difference(None, to, &mut |entry, block| sender.push(entry, block)),
    })?;
    sender.flush()?;
    let frames = sender.frames;
    sender.frame(&Frame::End(frames).encode())?;
    sender.out.flush()?;
    Ok(sender.bytes)
}
