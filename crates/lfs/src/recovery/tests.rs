//! Each rule that says whether a piece is the next one of the log, alone: a piece that is right
//! but for one of them does not count.

use super::{recover, recover_broken};
use crate::device::{Cuts, Device, MemDevice, SimDisk};
use crate::error::{Error, Result};
use crate::format::{BLOCK, Checkpoint, Geometry, ROOT};
use crate::ops::{SetXattr, Shape};
use crate::piece::{self, Piece, Purpose};
use crate::rules::{Rule, without};
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
    mkfs(
        dev.clone(),
        &Format {
            segment_blocks: SEGMENT,
            cluster: 1,
            id: ID,
            label,
            owner: (0, 0),
            compression: Default::default(),
        },
        clock(),
    )?;
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
        recover_broken(dev, clock()).expect("it opens").1.groups
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

/// A piece that breaks one rule does not count, and it is that rule alone which keeps it out.
#[test]
fn each_rule_of_what_counts_is_needed() {
    let case = case().expect("a volume");
    assert_eq!(case.with(|_| {}), 2, "as it was written");
    let wrong: [(&str, Option<Rule>, Change); 12] = [
        ("epoch before", Some(Rule::Epoch), |p| p.header.epoch -= 1),
        ("epoch after", Some(Rule::Epoch), |p| p.header.epoch += 1),
        ("generation", Some(Rule::Generation), |p| p.header.generation += 1),
        ("lsn", Some(Rule::Lsn), |p| p.header.lsn += 1),
        ("chain", Some(Rule::Chain), |p| p.header.chain ^= 1),
        ("next", Some(Rule::Next), |p| p.header.next += 1),
        ("begin", Some(Rule::Begin), |p| p.header.begin = false),
        ("private", Some(Rule::Private), |p| p.header.purpose = Purpose::Private),
        ("a block's sum", Some(Rule::BlockSum), |p| p.crcs[0] ^= 1),
        // Several rules keep these out.
        ("segment", None, |p| p.header.segment += 1),
        ("offset", None, |p| p.header.offset += 1),
        ("end", None, |p| p.header.end = false),
    ];
    for (what, rule, change) in wrong {
        assert_eq!(case.with(change), 1, "{what}");
        if rule.is_some() {
            assert_eq!(without(rule, || case.with(change)), 2, "{what}, without {rule:?}");
        }
    }
}

/// Power cuts in commits of several blocks: without the sums a torn one is taken for whole.
#[test]
fn a_sum_that_is_not_looked_at_is_missed() {
    let disk = Arc::new(SimDisk::new(9 + 90 * u64::from(SEGMENT)));
    let label = String::new();
    let format = Format {
        segment_blocks: SEGMENT,
        cluster: 1,
        id: ID,
        label,
        owner: (0, 0),
        compression: Default::default(),
    };
    mkfs(disk.clone(), &format, clock()).expect("mkfs");
    let disk = Arc::new(disk.copy());
    let volume = Volume::open(disk.clone(), clock(), 5, Limits::default()).expect("it opens");
    disk.mark(1);
    let mut txn = Txn::new();
    let made = volume.within(&mut txn, |ops| {
        let f = ops.create(ROOT, b"f", &Shape::new(Kind::File, 0o600))?;
        // Long enough that a part of the summary can be missing and the rest makes sense.
        ops.set_xattr(f, b"x", &[9; 3000], SetXattr::Any)?;
        ops.write(f, 0, &[7; 3 * BLOCK])
    });
    made.and_then(|()| volume.commit(txn)).expect("a commit");
    // All of it, or nothing.
    let is_right = |disk: SimDisk| {
        let volume = Volume::open(Arc::new(disk), clock(), 6, Limits::default())?;
        volume.look(|ops| match ops.lookup(ROOT, b"f") {
            Ok(f) => Ok(ops.read(f.ino, 0, 4 * BLOCK)? == vec![7; 3 * BLOCK]
                && ops.xattr(f.ino, b"x")? == vec![9; 3000]),
            Err(Error::NotFound) => Ok(true),
            Err(e) => Err(e),
        })
    };
    for rule in [None, Some(Rule::SummarySum), Some(Rule::BlockSum)] {
        let mut wrong = 0;
        disk.crashes(Cuts { each: 60, seed: 2 }, |crash| {
            if crash.mark == 1 {
                let found: Result<bool> = without(rule, || is_right(crash.disk));
                wrong += usize::from(!found.unwrap_or(false));
            }
        });
        assert_eq!(wrong > 0, rule.is_some(), "without {rule:?}: {wrong} crashes are wrong");
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
    let counts = |rule| without(Some(rule), || case.groups(at, &other, &case.payload));
    assert_eq!(counts(Rule::Volume), 2);
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
