//! The root record of a checkpoint: the inode map, and what belongs to the volume as a whole.

use crate::error::{Error, Result, Structure};
use crate::format::{Blob, CHUNK, INO_MAX, Ino, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use systx_base::Time;
use systx_base::codec::{DecodeError, Decoder, Encoder};

/// A tree that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Its name, unique, 1 to 255 bytes.
    pub name: String,
    /// The checkpoint that it is.
    pub sequence: u64,
    /// When it was made.
    pub time: Time,
    /// The root record of that checkpoint.
    pub root: Blob,
    /// All segments that it refers to.
    pub pins: Vec<u32>,
    /// The volume and its checkpoint that this is a copy of, if it was received.
    pub origin: Option<Origin>,
}

/// A volume and one of its checkpoints.
pub type Origin = (VolumeId, u64);

/// This checkpoint is a snapshot of this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Naming {
    /// The name.
    pub name: String,
    /// What it is a copy of.
    pub origin: Option<Origin>,
}

/// What is kept of the past.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// Snapshots, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// The checkpoint itself becomes one.
    pub naming: Option<Naming>,
}

/// The root record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Root {
    /// The next number of an object.
    pub next_ino: Ino,
    /// The inode map: where each chunk lies.
    pub chunks: BTreeMap<u64, Blob>,
    /// Objects without a name that somebody held.
    pub orphans: BTreeSet<Ino>,
    /// Snapshots.
    pub kept: Kept,
    /// Files with pages of which the summary names another file.
    pub strays: BTreeSet<Ino>,
}

impl Root {
    /// The record.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u64(self.next_ino);
        e.u32(u32::try_from(self.chunks.len()).expect("limited by Geometry::chunks_max"));
        for (chunk, blob) in &self.chunks {
            e.u64(*chunk);
            blob.encode(&mut e);
        }
        let orphans: Vec<Ino> = self.orphans.iter().copied().collect();
        e.seq(&orphans, |e, ino| e.u64(*ino));
        e.seq(&self.kept.snapshots, |e, s| {
            e.bytes(s.name.as_bytes());
            e.u64(s.sequence);
            e.time(s.time);
            s.root.encode(e);
            e.seq(&s.pins, |e, segment| e.u32(*segment));
            e.option(s.origin, put_origin);
        });
        e.option(self.kept.naming.as_ref(), |e, naming| {
            e.bytes(naming.name.as_bytes());
            e.option(naming.origin, put_origin);
        });
        // Without any the record is as before there were such files.
        if !self.strays.is_empty() {
            let strays: Vec<Ino> = self.strays.iter().copied().collect();
            e.seq(&strays, |e, ino| e.u64(*ino));
        }
        e.finish()
    }

    /// Reads a record that lies at block `at`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes are not one.
    pub fn decode(bytes: &[u8], at: u64) -> Result<Root> {
        let mut d = Decoder::new(bytes);
        fields(&mut d).map_err(Error::undecodable(Structure::Root, at))
    }
}

fn fields(d: &mut Decoder<'_>) -> std::result::Result<Root, DecodeError> {
    let next_ino = d.u64()?;
    if next_ino > INO_MAX {
        return Err(d.invalid("next object", next_ino));
    }
    let chunks: BTreeMap<u64, Blob> =
        d.seq(|d| Ok((d.u64()?, Blob::decode(d)?)))?.into_iter().collect();
    if let Some((chunk, _)) = chunks.range(INO_MAX / CHUNK..).next() {
        return Err(d.invalid("chunk", *chunk));
    }
    let orphans = d.seq(|d| d.u64())?.into_iter().collect();
    let snapshots = d.seq(|d| {
        let name = String::from_utf8_lossy(d.bytes()?).into_owned();
        let (sequence, time, root) = (d.u64()?, d.time()?, Blob::decode(d)?);
        let pins = d.seq(|d| d.u32())?;
        let origin = d.option(get_origin)?;
        Ok(Snapshot { name, sequence, time, root, pins, origin })
    })?;
    let naming = d.option(|d| {
        let name = String::from_utf8_lossy(d.bytes()?).into_owned();
        Ok(Naming { name, origin: d.option(get_origin)? })
    })?;
    let mut strays = BTreeSet::new();
    if d.remaining() > 0 {
        strays.extend(d.seq(|d| d.u64())?);
    }
    Ok(Root { next_ino, chunks, orphans, kept: Kept { snapshots, naming }, strays })
}

/// Appends an origin.
pub fn put_origin(e: &mut Encoder, (id, sequence): Origin) {
    id.iter().for_each(|b| e.u8(*b));
    e.u64(sequence);
}

/// Reads an origin.
///
/// # Errors
/// If the bytes end.
pub fn get_origin(d: &mut Decoder<'_>) -> std::result::Result<Origin, DecodeError> {
    let mut id = [0; 16];
    for b in &mut id {
        *b = d.u8()?;
    }
    Ok((id, d.u64()?))
}
