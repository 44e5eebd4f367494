//! Media that say they have much: what a store takes of memory goes by what is there.

use super::*;
use crate::allocations::most_held;
use crate::testing::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use systx_base::codec::Decoder;

const MEGABYTE: usize = 1 << 20;

/// A store with one transaction, and its super block.
fn one() -> (Scratch, Super) {
    let s = Scratch::new();
    s.write("f", "old");
    let store = s.store();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.patch("f", 3, 3, &[(0, b"new")]);
    let set = ws.done();
    let done = store.commit(store.reserve(&set).unwrap(), set, meta(1)).unwrap();
    store.apply(done.lsn).unwrap();
    store.checkpoint().unwrap();
    let block = store.block().unwrap();
    (s, block)
}

fn in_store(s: &Scratch, name: &str) -> File {
    File::options().write(true).create(true).truncate(false).open(s.path(STATE).join(name)).unwrap()
}

fn open(s: &Scratch) -> (std::result::Result<RecoveryReport, OpenError>, usize) {
    let io = s.io();
    most_held(|| DirStore::open(config(), io).map(|(_, report)| report))
}

fn write_super(s: &Scratch, block: &Super) {
    for name in ["super.0", "super.1"] {
        in_store(s, name).write_all_at(&block.encode(), 0).unwrap();
    }
}

#[test]
fn a_sparse_ring_takes_what_is_in_it() {
    let (s, block) = one();
    // The longest ring that there is, of holes with one block at the front.
    let block = Super { segments: 64, segment_bytes: MEGABYTE as u64, ..block };
    write_super(&s, &block);
    for n in 0..block.segments {
        let file = in_store(&s, &format!("j/{n:02}"));
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
    }
    let (opened, held) = open(&s);
    opened.unwrap();
    assert!(held < 4 * MEGABYTE, "{held}");
    // All of it written: the ring, and nothing beyond.
    for n in 0..block.segments {
        in_store(&s, &format!("j/{n:02}")).write_all_at(&vec![1; MEGABYTE], 0).unwrap();
    }
    let (opened, held) = open(&s);
    opened.unwrap();
    assert!((60 * MEGABYTE..70 * MEGABYTE).contains(&held), "{held}");
    // A longer one is none.
    let block = Super { segments: 4096, segment_bytes: 1 << 30, ..block };
    write_super(&s, &block);
    let (opened, held) = open(&s);
    assert!(matches!(opened, Err(OpenError::Damaged { .. })), "{opened:?}");
    assert!(held < MEGABYTE, "{held}");
}

#[test]
fn a_side_log_takes_what_is_in_it() {
    let (s, block) = one();
    let side = |len: u64| {
        let store = crate::journal::tests::side_record(block.identity(), block.head, 7, len);
        let name = format!("j/{:02}", block.head.segment);
        in_store(&s, &name).write_all_at(&store, block.head.offset).unwrap();
    };
    let slot = in_store(&s, "s/7");
    for len in [1 << 40, u64::MAX, 1 << 30] {
        side(len);
        slot.set_len(len.min(1 << 40)).unwrap();
        slot.write_all_at(&[1; 8192], 4096).unwrap();
        let (opened, held) = open(&s);
        assert!(opened.is_ok(), "{len}: {opened:?}");
        assert!(held < 12 * MEGABYTE, "{len}: {held}");
        // A recovery has begun a new epoch.
        write_super(&s, &block);
    }
}

#[test]
fn histories_and_decisions_take_what_is_in_them() {
    let (s, _) = one();
    std::fs::create_dir_all(s.path(STATE).join("d")).unwrap();
    for name in ["h/0000000000000009", "h/b000000000000000a", "d/000000000000000b"] {
        let file = in_store(&s, name);
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
    }
    let store = s.store();
    let (read, held) = most_held(|| {
        let log: Vec<_> = store.history().unwrap().iter().map(|e| e.meta.txn).collect();
        (log, store.decisions().unwrap())
    });
    assert_eq!((read.0, read.1), (vec![TxnId(1)], Vec::new()));
    assert!(held < 8 * MEGABYTE, "{held}");
}

mod decoders {
    use super::*;
    use crate::writeset::WriteSet;
    use proptest::prelude::*;

    /// Of a decoder: no more than some times what it reads, and some more.
    fn bounded(len: usize, held: usize) -> std::result::Result<(), TestCaseError> {
        prop_assert!(held <= 2 * MEGABYTE + 200 * len, "{held} bytes for {len}");
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// Counts and lengths that claim much.
        #[test]
        fn what_is_decoded_takes_memory_by_its_length(
            bytes in prop::collection::vec(
                prop_oneof![4 => Just(0_u8), 2 => Just(0xff), 3 => any::<u8>()],
                0..3000,
            ),
        ) {
            let mut summed = bytes.clone();
            summed.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
            let (_, held) = most_held(|| drop(WriteSet::decode(&mut Decoder::new(&bytes))));
            bounded(bytes.len(), held)?;
            let (_, held) = most_held(|| drop(Commit::decode(&mut Decoder::new(&bytes))));
            bounded(bytes.len(), held)?;
            let (_, held) = most_held(|| drop(History::decode(&summed)));
            bounded(bytes.len(), held)?;
            let (_, held) = most_held(|| drop(crate::joint::get_joint(&mut Decoder::new(&bytes))));
            bounded(bytes.len(), held)?;
            let (_, held) = most_held(|| crate::bundle::entries(&bytes, 1, TxnId(1)).len());
            bounded(bytes.len(), held)?;
        }
    }
}
