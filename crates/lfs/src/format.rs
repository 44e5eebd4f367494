//! What lies where on a volume, and the structures that lie at fixed places.

use crate::error::{Error, Result, Structure};
use systx_base::Time;
use systx_base::codec::{DecodeError, Decoder, Encoder};

/// Bytes of a block: the unit of addresses, of a file's pages and of checksums.
pub const BLOCK: usize = 4096;
/// Blocks before the first segment: the super block, two checkpoint regions of two copies, and
/// some that are kept free.
pub const FIXED: u64 = 8;
/// Fewest and most blocks of a segment.
pub const SEGMENT_BLOCKS: std::ops::RangeInclusive<u32> = 16..=16384;
/// Most pages of a cluster, which is a power of two, and a quarter of a segment at most.
pub const CLUSTER_MAX: u32 = 16;
/// Fewest segments of a volume.
pub const SEGMENTS_MIN: u32 = 24;
/// Versions of the format.  In the first one the region of even checkpoints was empty until there
/// was one, and a usage table had all segments.
const PLAIN: u32 = 2;
/// The one that may have packs.
const PACKED: u32 = 3;
/// The one that says how many pages are a cluster, and whether it may have packs.
const CLUSTERED: u32 = 4;
/// Copies of a checkpoint in its region: a damaged block alone does not cost a checkpoint.
pub const COPIES: u64 = 2;
/// Most runs of blocks of a blob that a checkpoint names.
const RUNS_MAX: usize = 150;

const SUPER_MAGIC: u64 = u64::from_le_bytes(*b"SYSTXLFS");
const CHECKPOINT_MAGIC: u64 = u64::from_le_bytes(*b"SYSTXLCP");

/// Pages of a pack at most; it has fewer blocks.
pub const PACK_PAGES: usize = 32;
/// Number of an object of a volume.  Never used again.
pub type Ino = u64;
/// Inodes of one chunk of the inode map.
pub const CHUNK: u64 = 32;
/// Numbers of objects are below this.
pub const INO_MAX: Ino = 1 << 48;
/// Numbers of checkpoints, openings and pieces are below this: nobody comes so far by counting.
const COUNT_MAX: u64 = 1 << 62;
/// The root directory.
pub const ROOT: Ino = 1;
/// Identity of a volume, random.
pub type VolumeId = [u8; 16];

/// How a device is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Blocks of one segment.
    pub segment_blocks: u32,
    /// Number of segments.
    pub segments: u32,
    /// Pages of a file that are written together: a cluster.  Clusters begin at multiples of it.
    pub cluster: u32,
}

impl Geometry {
    /// The geometry of a device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the size of a segment or of a cluster is out of range or the device
    /// too small.
    pub fn new(blocks: u64, segment_blocks: u32, cluster: u32) -> Result<Self> {
        if !SEGMENT_BLOCKS.contains(&segment_blocks) {
            return Err(Error::Invalid("segments have 16 to 16384 blocks"));
        }
        if !cluster.is_power_of_two() || cluster > CLUSTER_MAX.min(segment_blocks / 4) {
            return Err(Error::Invalid(
                "a page has 1 to 16 blocks, a quarter of a segment at most",
            ));
        }
        let segments = blocks.saturating_sub(FIXED + 1) / u64::from(segment_blocks);
        let segments = u32::try_from(segments).unwrap_or(u32::MAX);
        let geometry = Geometry { segment_blocks, segments, cluster };
        if segments < SEGMENTS_MIN {
            return Err(Error::Invalid("the device is too small: 24 segments are needed"));
        }
        // The usage table has to fit into what a checkpoint can name.
        if u64::from(segments) * 16 / BLOCK as u64
            > u64::from(geometry.usable()) * RUNS_MAX as u64 / 2
        {
            return Err(Error::Invalid("the device is too large for segments of this size"));
        }
        Ok(geometry)
    }

    /// The first block of a segment.
    pub fn first(&self, segment: u32) -> u64 {
        FIXED + u64::from(segment) * u64::from(self.segment_blocks)
    }

    /// The segment of a block and its place in it, if it is in one.
    pub fn locate(&self, block: u64) -> Option<(u32, u32)> {
        let at = block.checked_sub(FIXED)?;
        let segment = u32::try_from(at / u64::from(self.segment_blocks)).ok()?;
        let offset = (at % u64::from(self.segment_blocks)) as u32;
        (segment < self.segments).then_some((segment, offset))
    }

    /// Blocks of a segment that can be counted on: the rest are summaries and what is left over
    /// where a piece, or a cluster, did not fit.
    pub fn usable(&self) -> u32 {
        self.segment_blocks - 5 - self.segment_blocks / 32 - self.cluster
    }

    /// The pages of the cluster of a page.
    pub fn cluster_of(&self, page: u64) -> std::ops::Range<u64> {
        let cluster = u64::from(self.cluster);
        let first = page - page % cluster;
        first..first + cluster
    }

    /// Whether all of some blocks is in one segment.
    pub fn has(&self, blocks: std::ops::Range<u64>) -> bool {
        let segment = |block| Some(self.locate(block)?.0);
        let first = segment(blocks.start);
        first.is_some() && first == blocks.end.checked_sub(1).and_then(segment)
    }

    /// Most chunks of the inode map that the root record can name.
    pub fn chunks_max(&self) -> usize {
        RUNS_MAX / 2 * self.usable() as usize * BLOCK / 48
    }
}

/// Whether what is cold is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Nothing is.
    #[default]
    Off,
    /// By zstd.
    Zstd,
}

impl Compression {
    /// Whether anything is.
    pub fn is_on(self) -> bool {
        self != Compression::Off
    }

    /// As commands name it.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Off => "off",
            Compression::Zstd => "zstd",
        }
    }
}

/// The super block: what never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Super {
    /// Identity of the volume.
    pub id: VolumeId,
    /// How the device is divided.
    pub geometry: Geometry,
    /// Blocks of the device when the volume was made.
    pub blocks: u64,
    /// A name for persons, at most 255 bytes.
    pub label: String,
    /// Whether what is cold is compressed.
    pub compression: Compression,
}

impl Super {
    /// One block.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u64(SUPER_MAGIC);
        let format = match self.compression {
            _ if self.geometry.cluster > 1 => CLUSTERED,
            Compression::Off => PLAIN,
            Compression::Zstd => PACKED,
        };
        e.u32(format);
        put_id(&mut e, &self.id);
        e.u32(self.geometry.segment_blocks);
        e.u32(self.geometry.segments);
        e.u64(self.blocks);
        e.bytes(self.label.as_bytes());
        if format >= PACKED {
            e.u8(u8::from(self.compression.is_on()));
        }
        if format >= CLUSTERED {
            e.u8(self.geometry.cluster.ilog2() as u8);
        }
        sealed(e)
    }

    /// Reads a super block.
    ///
    /// # Errors
    /// [`Error::NotAVolume`] without the magic number, [`Error::Corrupt`] with a wrong sum or
    /// with values that cannot be.
    pub fn decode(block: &[u8], what: Structure, at: u64) -> Result<Super> {
        let mut d = Decoder::new(block);
        if d.u64().ok() != Some(SUPER_MAGIC) {
            return Err(Error::NotAVolume("no super block"));
        }
        unsealed(block, what, at)?;
        let bad = Error::undecodable(what, at);
        let format = d.u32().map_err(&bad)?;
        if !(1..=CLUSTERED).contains(&format) {
            return Err(Error::NotAVolume("an unknown version of the format"));
        }
        let id = get_id(&mut d).map_err(&bad)?;
        let segment_blocks = d.u32().map_err(&bad)?;
        let segments = d.u32().map_err(&bad)?;
        let blocks = d.u64().map_err(&bad)?;
        let label = String::from_utf8_lossy(d.bytes().map_err(&bad)?).into_owned();
        let compression = match format {
            PACKED.. => match d.u8().map_err(&bad)? {
                0 if format > PACKED => Compression::Off,
                1 => Compression::Zstd,
                _ => return Err(Error::NotAVolume("an unknown compression")),
            },
            _ => Compression::Off,
        };
        let cluster = match format {
            CLUSTERED => 1_u32.checked_shl(d.u8().map_err(&bad)?.into()).unwrap_or(0),
            _ => 1,
        };
        let geometry = Geometry { segment_blocks, segments, cluster };
        if Geometry::new(blocks, segment_blocks, cluster).ok() != Some(geometry) {
            return Err(Error::corrupt(what, at, "sizes that cannot be"));
        }
        Ok(Super { id, geometry, blocks, label, compression })
    }
}

/// Some bytes in runs of blocks of the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Blob {
    /// Number of bytes.
    pub len: u32,
    /// CRC-32C of the bytes.
    pub crc: u32,
    /// First block and number of blocks of each run.
    pub runs: Vec<(u64, u32)>,
}

impl Blob {
    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|(_, n)| u64::from(*n)).sum()
    }

    /// Appends the reference.
    pub fn encode(&self, e: &mut Encoder) {
        e.u32(self.len);
        e.u32(self.crc);
        e.seq(&self.runs, |e, (at, n)| {
            e.u64(*at);
            e.u32(*n);
        });
    }

    /// Reads a reference.
    ///
    /// # Errors
    /// If the runs do not have as many blocks as the bytes need.
    pub fn decode(d: &mut Decoder<'_>) -> std::result::Result<Blob, DecodeError> {
        let (len, crc) = (d.u32()?, d.u32()?);
        let runs = d.seq(|d| Ok((d.u64()?, d.u32()?)))?;
        let blob = Blob { len, crc, runs };
        if let Some((at, _)) =
            blob.runs.iter().find(|(at, n)| at.checked_add(u64::from(*n)).is_none())
        {
            return Err(d.invalid("block", *at));
        }
        if blob.blocks() != u64::from(len).div_ceil(BLOCK as u64) {
            return Err(d.invalid("number of blocks", blob.blocks()));
        }
        Ok(blob)
    }
}

/// Where the log goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The segment that is being written.
    pub segment: u32,
    /// The next block in it.
    pub offset: u32,
    /// The segment after it, taken already.
    pub next: u32,
    /// Sequence number of the last piece.
    pub lsn: u64,
    /// Sum of the last piece; the first piece after an opening follows a random one.
    pub chain: u32,
    /// Number of openings so far.
    pub epoch: u64,
}

/// A checkpoint: the tree as of one point of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Number of the checkpoint; its region is the number modulo two.
    pub sequence: u64,
    /// Where the log goes on.
    pub head: Head,
    /// When it was made.
    pub time: Time,
    /// The root record.
    pub root: Blob,
    /// The usage table.
    pub usage: Blob,
}

impl Checkpoint {
    /// The first block of the region of a checkpoint.
    pub fn region(sequence: u64) -> u64 {
        1 + sequence % 2 * COPIES
    }

    /// The blocks of a checkpoint's copies, in the order in which they are written.
    pub fn copies(sequence: u64) -> std::ops::Range<u64> {
        let first = Self::region(sequence);
        first..first + COPIES
    }

    /// One copy, one block.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the blobs are in too many runs.
    pub fn encode(&self, id: &VolumeId) -> Result<Vec<u8>> {
        if self.root.runs.len() > RUNS_MAX || self.usage.runs.len() > RUNS_MAX {
            return Err(Error::NoSpace);
        }
        let mut e = Encoder::new();
        e.u64(CHECKPOINT_MAGIC);
        put_id(&mut e, id);
        e.u64(self.sequence);
        let h = &self.head;
        for v in [h.segment, h.offset, h.next, h.chain] {
            e.u32(v);
        }
        e.u64(h.lsn);
        e.u64(h.epoch);
        e.time(self.time);
        self.root.encode(&mut e);
        self.usage.encode(&mut e);
        Ok(sealed(e))
    }

    /// Reads a copy.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not a checkpoint of this volume.
    pub fn decode(block: &[u8], id: &VolumeId, geometry: &Geometry, at: u64) -> Result<Self> {
        let what = Structure::Checkpoint;
        unsealed(block, what, at)?;
        let mut d = Decoder::new(block);
        let bad = Error::undecodable(what, at);
        let magic = d.u64().map_err(&bad)?;
        if magic != CHECKPOINT_MAGIC || get_id(&mut d).map_err(&bad)? != *id {
            return Err(Error::corrupt(what, at, "of another volume"));
        }
        let fields = |d: &mut Decoder<'_>| {
            let sequence = d.u64()?;
            let (segment, offset, next, chain) = (d.u32()?, d.u32()?, d.u32()?, d.u32()?);
            let head = Head { segment, offset, next, chain, lsn: d.u64()?, epoch: d.u64()? };
            let time = d.time()?;
            let (root, usage) = (Blob::decode(d)?, Blob::decode(d)?);
            Ok(Checkpoint { sequence, head, time, root, usage })
        };
        let checkpoint = fields(&mut d).map_err(&bad)?;
        let h = &checkpoint.head;
        let inside = h.segment < geometry.segments
            && h.next < geometry.segments
            && h.segment != h.next
            && [h.lsn, h.epoch, checkpoint.sequence].iter().all(|n| *n < COUNT_MAX)
            && h.offset <= geometry.segment_blocks;
        if !inside || Self::region(checkpoint.sequence) / COPIES != (at - 1) / COPIES {
            return Err(Error::corrupt(what, at, "values that cannot be"));
        }
        Ok(checkpoint)
    }
}

fn put_id(e: &mut Encoder, id: &VolumeId) {
    id.iter().for_each(|b| e.u8(*b));
}

fn get_id(d: &mut Decoder<'_>) -> std::result::Result<VolumeId, DecodeError> {
    let mut id = [0; 16];
    for b in &mut id {
        *b = d.u8()?;
    }
    Ok(id)
}

/// A block with its sum in the last four bytes.
fn sealed(e: Encoder) -> Vec<u8> {
    let mut block = e.finish();
    assert!(block.len() <= BLOCK - 4, "a fixed structure fits its block");
    block.resize(BLOCK - 4, 0);
    let crc = crc32c::crc32c(&block);
    block.extend_from_slice(&crc.to_le_bytes());
    block
}

fn unsealed(block: &[u8], what: Structure, at: u64) -> Result<()> {
    let (body, sum) = block.split_at(block.len().saturating_sub(4));
    if block.len() != BLOCK || crc32c::crc32c(body).to_le_bytes() != sum {
        return Err(Error::corrupt(what, at, "wrong sum"));
    }
    Ok(())
}
