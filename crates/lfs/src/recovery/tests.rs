//! Each rule that says whether a piece is the next one of the log, alone: a piece that is right
//! but for one of them does not count.

use super::recover;
use crate::device::{Device, MemDevice};
use crate::error::Result;
use crate::format::{BLOCK, Checkpoint, Geometry, ROOT};
use crate::ops::Shape;
use crate::piece::{self, Piece, Purpose};
use crate::state::Limits;
use crate::txn::Txn;
use crate::volume::{Format, Volume, mkfs};
use std::sync::Arc;
use systx_base::{Kind, Time};

const ID: [u8; 16] = [3; 16];
const SEGMENT: u32 = 16;

fn clock() -> crate::tree::Clock {
    Arc::new(Time::default)
}

/// A disk before the last commit, and that commit's piece.
struct Case {
    before: Vec<u8>,
    piece: Piece,
    payload: Vec<u8>,
    geometry: Geometry,
}

fn case() -> Result<Case> {
    let dev = Arc::new(MemDevice::new(9 + 30 * SEGMENT as usize));
    let label = String::new();
    mkfs(dev.clone(), &Format { segment_blocks: SEGMENT, id: ID, label, owner: (0, 0) }, clock())?;
    let volume = Volume::open(dev.clone(), clock(), 5, Limits::default())?;
    let commit = |name: &[u8]| {
        let mut txn = Txn::new();
        volume.within(&mut txn, |ops| {
            let f = ops.create(ROOT, name, &Shape::new(Kind::File, 0o600))?;
            ops.write(f, 0, name)
        })?;
        volume.commit(txn)
    };
    commit(b"a")?;
    let before = dev.bytes();
    let (state, ..) = recover(dev.clone(), clock())?;
    commit(b"b")?;
    let geometry = state.tree.env.geometry;
    let (segment, offset) = (state.head.segment, state.head.offset);
    let piece = piece::read(&*dev, &geometry, &ID, segment, offset)?.expect("the last commit");
    let first = geometry.first(segment) + u64::from(offset + piece.summary);
    let mut payload = vec![0; piece.crcs.len() * BLOCK];
    dev.read(first, &mut payload)?;
    Ok(Case { before, piece, payload, geometry })
}

impl Case {
    /// How many groups recovery finds with these blocks as the next piece.
    fn groups(&self, at: (u32, u32), summary: &[u8], payload: &[u8]) -> u64 {
        let dev = Arc::new(MemDevice::from_bytes(self.before.clone()));
        let first = self.geometry.first(at.0) + u64::from(at.1);
        dev.write(first, summary).expect("memory");
        dev.write(first + (summary.len() / BLOCK) as u64, payload).expect("memory");
        recover(dev, clock()).expect("it opens").1.groups
    }

    fn with(&self, change: impl FnOnce(&mut Piece)) -> u64 {
        let mut piece = self.piece.clone();
        change(&mut piece);
        let h = &piece.header;
        let summary = piece::encode(h, &ID, &piece.entries, &piece.crcs);
        self.groups((self.piece.header.segment, self.piece.header.offset), &summary, &self.payload)
    }
}

type Change = fn(&mut Piece);

#[test]
fn each_rule_of_what_counts_is_needed() {
    let case = case().expect("a volume");
    assert_eq!(case.with(|_| {}), 2, "as it was written");
    let wrong: [(&str, Change); 12] = [
        ("epoch before", |p| p.header.epoch -= 1),
        ("epoch after", |p| p.header.epoch += 1),
        ("generation", |p| p.header.generation += 1),
        ("lsn", |p| p.header.lsn += 1),
        ("chain", |p| p.header.chain ^= 1),
        ("next", |p| p.header.next += 1),
        ("segment", |p| p.header.segment += 1),
        ("offset", |p| p.header.offset += 1),
        ("begin", |p| p.header.begin = false),
        ("end", |p| p.header.end = false),
        ("private", |p| p.header.purpose = Purpose::Private),
        ("a block's sum", |p| p.crcs[0] ^= 1),
    ];
    for (what, change) in wrong {
        assert_eq!(case.with(change), 1, "{what}");
    }
}

#[test]
fn every_bit_of_a_piece_is_under_a_sum() {
    let case = case().expect("a volume");
    let h = &case.piece.header;
    let at = (h.segment, h.offset);
    let summary = piece::encode(h, &ID, &case.piece.entries, &case.piece.crcs);
    assert_eq!(case.groups(at, &summary, &case.payload), 2);
    let other = piece::encode(h, &[4; 16], &case.piece.entries, &case.piece.crcs);
    assert_eq!(case.groups(at, &other, &case.payload), 1, "of another volume");
    for bit in (0..summary.len() * 8).step_by(131) {
        let mut summary = summary.clone();
        summary[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(case.groups(at, &summary, &case.payload), 1, "bit {bit} of the summary");
    }
    for bit in (0..case.payload.len() * 8).step_by(997) {
        let mut payload = case.payload.clone();
        payload[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(case.groups(at, &summary, &payload), 1, "bit {bit} of the blocks");
    }
}

/// The piece counts where the log goes on, and nowhere else: not in a segment that is merely free.
#[test]
fn a_piece_counts_only_where_the_log_goes_on() {
    let case = case().expect("a volume");
    let mut piece = case.piece.clone();
    piece.header.offset = 0;
    for segment in 0..case.geometry.segments {
        if segment == case.piece.header.segment {
            continue;
        }
        piece.header.segment = segment;
        piece.header.generation = 0;
        let summary = piece::encode(&piece.header, &ID, &piece.entries, &piece.crcs);
        let free = |s: u32| s != case.piece.header.next && s > 3;
        if free(segment) {
            assert_eq!(case.groups((segment, 0), &summary, &case.payload), 1, "{segment}");
        }
    }
}

#[test]
fn a_damaged_copy_of_a_checkpoint_costs_nothing() {
    let case = case().expect("a volume");
    let groups = |damaged: &[u64]| {
        let mut bytes = case.before.clone();
        for at in damaged {
            bytes[*at as usize * BLOCK + 30] ^= 4;
        }
        recover(Arc::new(MemDevice::from_bytes(bytes)), clock()).map(|(_, report, _)| report.groups)
    };
    let newest = Checkpoint::region(2);
    for copy in [newest, newest + 1, 0, case.before.len() as u64 / BLOCK as u64 - 1] {
        assert_eq!(groups(&[copy]).expect("it opens"), 1, "block {copy}");
    }
    let older = Checkpoint::region(1);
    assert_eq!(groups(&[older, older + 1]).expect("the log has none after the newest"), 1);
    let lost = groups(&[newest, newest + 1]).expect_err("the older one lacks a commit");
    assert!(lost.to_string().starts_with("damaged Checkpoint at block 1: neither"), "{lost}");
    assert!(groups(&[1, 2, 3, 4]).is_err(), "no checkpoint at all");
}
