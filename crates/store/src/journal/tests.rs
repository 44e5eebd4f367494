use super::*;
use crate::history::{Commit, History};
use crate::writeset::WriteSet;
use proptest::prelude::*;

const IDENTITY: Identity = Identity { store: 77, epoch: 3, segments: 3, segment_bytes: 65536 };
const START: Head = Head { segment: 1, offset: 0, lsn: 10, chain: 5 };

/// Writes records the way [`Ring::append`] does; a group for each inner list.
fn written(groups: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    let mut segments = vec![vec![0; 65536]; 3];
    let mut ring = Ring::new(IDENTITY, START);
    for group in groups {
        let first = ring.head.lsn;
        for body in group {
            let body = Body::Inline(body.clone());
            let at = ring.place(body.extent());
            let bytes = ring.header(first, &body).encode();
            let Body::Inline(data) = &body else { unreachable!() };
            let start = at.1 as usize;
            segments[at.0 as usize][start..start + 64].copy_from_slice(&bytes);
            segments[at.0 as usize][start + 64..start + 64 + data.len()].copy_from_slice(data);
            ring.head = Head {
                segment: at.0,
                offset: at.1 + body.extent(),
                lsn: ring.head.lsn + 1,
                chain: Header::checksum(&bytes),
            };
        }
    }
    segments
}

/// The next record, whose body of `len` bytes is in a slot.
pub(crate) fn side_record(identity: Identity, head: Head, slot: u64, len: u64) -> Vec<u8> {
    let body = Body::Side { slot: SlotId(slot), len, crc: 0 };
    let header = Ring::new(identity, head).header(head.lsn, &body).encode();
    [&header[..], &slot.to_le_bytes()].concat()
}

fn no_side(_: SlotId, _: u64) -> Result<Option<Vec<u8>>> {
    Ok(None)
}

fn read(segments: &[Vec<u8>]) -> Scan {
    scan_bytes(IDENTITY, START, segments, no_side).unwrap()
}

#[test]
fn records_are_read_back_across_segments() {
    let groups: Vec<Vec<Vec<u8>>> =
        (0..9u8).map(|n| vec![vec![n; 9000], vec![n; usize::from(n)]]).collect();
    let scan = read(&written(&groups));
    let bodies: Vec<Vec<u8>> = scan.records.into_iter().map(|r| r.body).collect();
    assert_eq!(bodies, groups.concat());
    assert_eq!((scan.damaged, scan.torn), (None, false));
}

#[test]
fn a_torn_last_group_ends_the_log_and_a_hole_before_another_group_is_damage() {
    let groups = vec![vec![vec![1; 100]], vec![vec![2; 100], vec![3; 100]], vec![vec![4; 100]]];
    // Record 2 of the last group that is there is torn: the one before it counts, the one after
    // not.
    let mut segments = written(&groups[..2]);
    segments[1][4096 + 70] ^= 1;
    let scan = read(&segments);
    assert_eq!((scan.records.len(), scan.damaged, scan.torn), (1, None, true));
    // The same with a later group: that one was only written after the acknowledgement.
    let mut segments = written(&groups);
    segments[1][4096 + 70] ^= 1;
    assert_eq!(read(&segments).damaged, Some(11));
}

#[test]
fn another_epoch_or_store_is_not_read() {
    let segments = written(&[vec![vec![1; 100]]]);
    for identity in [Identity { epoch: 4, ..IDENTITY }, Identity { store: 78, ..IDENTITY }] {
        let scan = scan_bytes(identity, START, &segments, no_side).unwrap();
        assert_eq!((scan.records.len(), scan.damaged, scan.torn), (0, None, false));
    }
    let other = Head { chain: 6, ..START };
    assert_eq!(scan_bytes(IDENTITY, other, &segments, no_side).unwrap().records.len(), 0);
}

fn sample() -> Commit {
    use crate::testing::{Scratch, Ws, meta};
    let s = Scratch::new();
    s.write("f", "content");
    s.write("d/g", "content");
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.patch("f", 9, 4, &[(2, b"abc")]);
    ws.rename("d/g", "h");
    let d = ws.mkdir();
    ws.bind("n", Some(d));
    let l = ws.symlink("target");
    ws.bind_in(d, "l", l);
    let before = crate::history::Before {
        ix: crate::writeset::Ix(1),
        attrs: Default::default(),
        xattrs: vec![(b"user.x".to_vec(), None)],
        content: crate::history::OldContent::InPlace {
            len: 7,
            file: false,
            extents: vec![crate::testing::inline(2, b"nte")],
            whole: false,
        },
    };
    let id = crate::io::HostId { ino: 4, btime: Default::default() };
    Commit {
        meta: meta(5),
        set: ws.done(),
        befores: vec![before],
        slots: vec![(SlotId(3), id)],
        joint: None,
    }
}

#[test]
fn commits_and_histories_round_trip() {
    let commit = sample();
    let mut e = Encoder::new();
    commit.encode(&mut e);
    let bytes = e.finish();
    assert_eq!(Commit::decode(&mut Decoder::new(&bytes)).unwrap(), commit);
    let stamps = vec![None; commit.set.objects.len()];
    let done = crate::history::Done { lsn: 3, stamps, graves: Vec::new(), outside: 2 };
    let history = History::new(&commit, done);
    assert_eq!(History::decode(&history.encode()).unwrap(), history);
    for at in 0..history.encode().len() {
        let mut bad = history.encode();
        bad[at] ^= 0x40;
        assert!(History::decode(&bad).is_err(), "byte {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever the bytes, decoding ends without a panic, and what comes out can be installed.
    #[test]
    fn random_bytes_never_panic_the_decoders(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = WriteSet::decode(&mut Decoder::new(&bytes)).map(|set| set.check());
        let _ = Commit::decode(&mut Decoder::new(&bytes));
        let _ = History::decode(&bytes);
        let mut segments = vec![bytes.clone(), bytes.clone(), bytes];
        segments[0].resize(65536, 7);
        let _ = read(&segments);
    }

    /// The same for bytes that are nearly right, which get further.
    #[test]
    fn flipped_bytes_never_panic_the_decoders(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut e = Encoder::new();
        sample().encode(&mut e);
        let mut bytes = e.finish();
        for (at, value) in &flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        let _ = Commit::decode(&mut Decoder::new(&bytes));
        // A body with a wrong sum is not read, whatever is in it.
        let mut segments = written(&[vec![vec![9; 500]], vec![vec![8; 5000]]]);
        for (at, value) in &flips {
            let at = at.index(16384);
            segments[1][at] ^= value;
        }
        for record in read(&segments).records {
            prop_assert!(record.body == vec![9; 500] || record.body == vec![8; 5000]);
        }
    }
}
