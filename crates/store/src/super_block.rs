//! The super block: which journal is valid and where recovery begins.  Two copies are written in
//! turn, so that a torn write leaves the older one; the higher sequence number wins.  Both are
//! 4 KiB files that were written before, so that an update changes no metadata.

use crate::io::{Handle, Io};
use crate::journal::Head;
use crate::layout::{Layout, ensure_file, found};
use std::io::Result;
use systx_base::codec::{DecodeError, Decoder, Encoder};

/// Size of one copy.
pub(crate) const BYTES: usize = 4096;
/// "SYSTXSB" and the major number of the format's family.
const MAGIC: u64 = u64::from_le_bytes(*b"SYSTXSB1");
/// The version of every on-disk format of this store.
pub const FORMAT: u32 = 4;
/// From this version on there are bundles ([`crate::bundle`]).
const BUNDLES: u32 = 3;
/// From this version on records tell of orders.
const ORDERS: u32 = 4;
/// The oldest version that is read. A store of an older version becomes one of this with the next
/// super block that is written.
const OLDEST: u32 = 2;
/// Recovery holds the whole ring in memory, and a medium may say anything.
const LONGEST_RING: u64 = 64 << 20;
const NAMES: [&[u8]; 2] = [b"super.0", b"super.1"];

/// What a super block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Super {
    /// Which version the store has.
    pub format: u32,
    /// Rises with every write.
    pub seq: u64,
    /// Tells this store's journal blocks from any other's.
    pub store: u64,
    /// Rises with every recovery, so that a tail that was given up can never become valid.
    pub epoch: u64,
    /// Where the first record after the checkpoint is or will be.
    pub head: Head,
    /// Highest transaction id that was committed up to `head`.
    pub txn: u64,
    /// Number of journal segments.
    pub segments: u32,
    /// Size of each.
    pub segment_bytes: u64,
    /// The version of the file of orders that counts; 0: none does.
    pub orders: u64,
}

/// What the two files told.
#[derive(Debug)]
pub(crate) enum Found {
    /// There is none, or one whose making was interrupted.
    Nothing,
    /// The newest valid one.
    Valid(Super),
    /// Written by another version.
    Version(u32),
    /// Neither copy is valid, and at least one once was.
    Damaged,
}

impl Super {
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u64(MAGIC);
        e.u32(self.format);
        e.u64(self.seq);
        e.u64(self.store);
        e.u64(self.epoch);
        e.u32(self.head.segment);
        e.u64(self.head.offset);
        e.u64(self.head.lsn);
        e.u32(self.head.chain);
        e.u64(self.txn);
        e.u32(self.segments);
        e.u64(self.segment_bytes);
        e.u64(self.orders);
        let mut bytes = e.finish();
        bytes.resize(BYTES - 4, 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode_fields(format: u32, d: &mut Decoder<'_>) -> std::result::Result<Super, DecodeError> {
        let found = Super {
            format,
            seq: d.u64()?,
            store: d.u64()?,
            epoch: d.u64()?,
            head: Head { segment: d.u32()?, offset: d.u64()?, lsn: d.u64()?, chain: d.u32()? },
            txn: d.u64()?,
            segments: d.u32()?,
            segment_bytes: d.u64()?,
            // Older versions have zeros there.
            orders: d.u64()?,
        };
        let ring = found.segment_bytes.checked_mul(found.segments.into());
        let geometry_ok = found.segments >= 2
            && found.segment_bytes.is_multiple_of(4096)
            && found.segment_bytes >= 65536
            && ring.is_some_and(|bytes| bytes <= LONGEST_RING)
            && found.head.segment < found.segments
            && found.head.offset <= found.segment_bytes
            && found.head.offset.is_multiple_of(4096);
        if geometry_ok { Ok(found) } else { Err(d.invalid("geometry", found.segment_bytes)) }
    }

    /// Whether histories may be in bundles.
    pub fn has_bundles(&self) -> bool {
        self.format >= BUNDLES
    }

    /// Whether records may tell of orders.
    pub fn has_orders(&self) -> bool {
        self.format >= ORDERS
    }

    /// Reads one copy.
    pub fn decode(bytes: &[u8]) -> Found {
        if bytes.iter().all(|b| *b == 0) {
            return Found::Nothing;
        }
        let Some((body, crc)) = bytes.split_last_chunk::<4>().filter(|_| bytes.len() == BYTES)
        else {
            return Found::Damaged;
        };
        if u32::from_le_bytes(*crc) != crc32c::crc32c(body) {
            return Found::Damaged;
        }
        let mut d = Decoder::new(body);
        let format = match (d.u64(), d.u32()) {
            (Ok(MAGIC), Ok(known @ OLDEST..=FORMAT)) => known,
            (Ok(MAGIC), Ok(other)) => return Found::Version(other),
            _ => return Found::Damaged,
        };
        Super::decode_fields(format, &mut d).map_or(Found::Damaged, Found::Valid)
    }
}

/// Reads both copies.
pub(crate) fn read(io: &dyn Io, layout: &Layout) -> Result<Found> {
    let mut best = Found::Nothing;
    let mut damaged = 0;
    for name in NAMES {
        let open = io.open_file(&layout.state, name, crate::io::Open::Read);
        let Some(file) = found(open)? else { continue };
        let mut bytes = vec![0; BYTES];
        let n = io.read_at(&file, &mut bytes, 0)?;
        let this = Super::decode(&bytes[..n]);
        best = match (best, this) {
            (Found::Version(v), _) | (_, Found::Version(v)) => Found::Version(v),
            (Found::Valid(a), Found::Valid(b)) => Found::Valid(if a.seq >= b.seq { a } else { b }),
            (Found::Valid(a), _) | (_, Found::Valid(a)) => Found::Valid(a),
            (a, b) => {
                damaged += [&a, &b].into_iter().filter(|f| matches!(f, Found::Damaged)).count();
                Found::Nothing
            }
        };
    }
    // A store is made with two valid copies before its first commit: where one was never written,
    // the other is what is left of an interrupted making.
    match best {
        Found::Nothing if damaged == NAMES.len() => Ok(Found::Damaged),
        best => Ok(best),
    }
}

/// The two files, open for writing.
pub(crate) struct Supers {
    files: [Handle; 2],
}

impl Supers {
    /// Makes the files, zeroed, whatever an interrupted attempt left.  The caller syncs.
    pub fn create(io: &dyn Io, layout: &Layout) -> Result<Supers> {
        let make = |name| -> Result<Handle> {
            let file = ensure_file(io, &layout.state, name)?;
            io.write_at(&file, &[0; BYTES], 0)?;
            Ok(file)
        };
        Ok(Supers { files: [make(NAMES[0])?, make(NAMES[1])?] })
    }

    /// Opens the files of a store that was made before.
    pub fn open(io: &dyn Io, layout: &Layout) -> Result<Supers> {
        let open = |name| io.open_to_write(&layout.state, name);
        Ok(Supers { files: [open(NAMES[0])?, open(NAMES[1])?] })
    }

    /// Writes the copy whose turn it is; durable on return.
    pub fn write(&self, io: &dyn Io, block: &Super) -> Result<()> {
        io.write_durable(&self.files[(block.seq % 2) as usize], &block.encode(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Super {
        let head = Head { segment: 1, offset: 8192, lsn: 17, chain: 99 };
        Super {
            format: FORMAT,
            seq: 5,
            store: 3,
            epoch: 2,
            head,
            txn: 40,
            segments: 4,
            segment_bytes: 1 << 20,
            orders: 7,
        }
    }

    #[test]
    fn a_super_block_round_trips_and_any_flipped_byte_is_seen() {
        let bytes = sample().encode();
        assert!(matches!(Super::decode(&bytes), Found::Valid(s) if s == sample()));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(matches!(Super::decode(&bad), Found::Damaged), "byte {at}");
        }
        assert!(matches!(Super::decode(&bytes[..100]), Found::Damaged));
        assert!(matches!(Super::decode(&[0; BYTES]), Found::Nothing));
        assert!(matches!(Super::decode(&[]), Found::Nothing));
    }

    #[test]
    fn a_ring_is_no_longer_than_memory_is_made_for() {
        let with = |segments, segment_bytes| {
            let block = Super { segments, segment_bytes, ..sample() };
            matches!(Super::decode(&block.encode()), Found::Valid(_))
        };
        assert!(with(4, 1 << 20) && with(64, 1 << 20) && with(2, 32 << 20) && with(1024, 65536));
        assert!(!with(65, 1 << 20) && !with(2, (32 << 20) + 4096) && !with(1025, 65536));
        assert!(!with(u32::MAX, u64::MAX - 4095) && !with(4096, 1 << 30));
        assert!(!with(1, 1 << 20) && !with(4, 4096) && !with(4, (1 << 20) + 1));
    }

    #[test]
    fn another_version_is_told_apart_from_damage() {
        let mut bytes = sample().encode();
        bytes[8] = 9;
        let crc = crc32c::crc32c(&bytes[..BYTES - 4]);
        bytes[BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(Super::decode(&bytes), Found::Version(9)));
    }
}
