//! Journals that a fuzzer makes up: records whose sums are right, so that what lies behind the sums
//! is reached, with fields that may be anything.

use super::{BLOCK, HEADER, Head, Header, Identity, scan_bytes};
use crate::history::Commit;
use systx_base::codec::Decoder;

const IDENTITY: Identity = Identity { store: 77, epoch: 3, segments: 3, segment_bytes: 65536 };
const START: Head = Head { segment: 1, offset: 0, lsn: 10, chain: 5 };

/// Takes a byte off the front; 0 where there is none.
fn take(bytes: &mut &[u8]) -> u8 {
    let (first, rest) = bytes.split_first().map_or((0, *bytes), |(b, rest)| (*b, rest));
    *bytes = rest;
    first
}

pub(crate) fn scan_made_up(mut input: &[u8]) {
    let mut segments = vec![vec![0u8; IDENTITY.segment_bytes as usize]; 3];
    let (mut lsn, mut chain) = (START.lsn, START.chain);
    while !input.is_empty() {
        let place = usize::from(take(&mut input)) * BLOCK as usize;
        let odd = take(&mut input);
        let len = usize::from(take(&mut input)) * 16;
        let (body, rest) = input.split_at(len.min(input.len()));
        input = rest;
        let wild = u64::from(take(&mut input)) << (take(&mut input) % 57);
        let pick = |bit: u8, value: u64| if odd & bit == 0 { value } else { wild };
        let header = Header {
            store: pick(1, IDENTITY.store),
            epoch: pick(2, IDENTITY.epoch),
            lsn: pick(4, lsn),
            group: pick(8, lsn),
            chain: pick(16, chain.into()) as u32,
            side: odd & 32 != 0,
            body_len: pick(64, body.len() as u64),
            body_crc: pick(128, crc32c::crc32c(body).into()) as u32,
        };
        let bytes = header.encode();
        let segment = &mut segments[1 + place / IDENTITY.segment_bytes as usize % 2];
        let at = place % segment.len();
        let record: Vec<u8> = bytes.iter().chain(body).copied().collect();
        let room = record.len().min(segment.len() - at);
        segment[at..at + room].copy_from_slice(&record[..room]);
        lsn += 1;
        chain = Header::checksum(&bytes);
    }
    let side = |_, len: u64| Ok((len < 1 << 16).then(|| vec![0; len as usize]));
    let Ok(scan) = scan_bytes(IDENTITY, START, &segments, side) else { return };
    for record in scan.records {
        assert!(record.after.offset <= IDENTITY.segment_bytes && record.after.offset > 0);
        assert!(
            record.side.is_some() || record.body.len() + HEADER <= record.after.offset as usize
        );
        let _ = Commit::decode(&mut Decoder::new(&record.body));
    }
}
