//! Ways in for `fuzz/`: any bytes where a device has structures, with sums that are right.

use crate::checkpoint;
use crate::device::{Device, MemDevice};
use crate::entry::Entry;
use crate::format::{BLOCK, Blob, Checkpoint, Geometry, Super};
use crate::fsck;
use crate::object::Object;
use crate::piece;
use crate::recovery::recover;
use crate::root::Root;
use crate::state::{Limits, State};
use crate::tree::{Clock, Stored};
use crate::usage::Usage;
use crate::volume::{Format, Volume, mkfs};
use std::sync::Arc;
use systx_base::Time;
use systx_base::codec::{Decoder, Encoder};

const ID: [u8; 16] = [5; 16];

fn clock() -> Clock {
    Arc::new(Time::default)
}

fn made() -> Option<(Arc<MemDevice>, State)> {
    let dev = Arc::new(MemDevice::new(9 + 24 * 16));
    let format = Format {
        segment_blocks: 16,
        cluster: 1,
        id: ID,
        label: String::new(),
        owner: (0, 0),
        compression: Default::default(),
    };
    mkfs(dev.clone(), &format, clock()).ok()?;
    let (state, ..) = recover(dev.clone(), clock()).ok()?;
    Some((dev, state))
}

/// Any bytes as each structure by itself.
pub fn structures(bytes: &[u8]) {
    let mut d = Decoder::new(bytes);
    let _ = Entry::decode(&mut d.clone());
    let _ = Object::decode(&mut d.clone());
    let _ = Stored::decode(&mut d.clone());
    let _ = Blob::decode(&mut d);
    let _ = Root::decode(bytes, 0);
    let geometry = Geometry { segment_blocks: 16, segments: 24, cluster: 1 };
    let mut table = bytes.to_vec();
    table.resize(24 * 16, 0);
    let _ = Usage::decode(&table, geometry);
    let mut block = bytes.to_vec();
    block.resize(BLOCK - 4, 0);
    block.extend(crc32c::crc32c(&block).to_le_bytes());
    let _ = Super::decode(&block, crate::error::Structure::Super, 0);
    let _ = Checkpoint::decode(&block, &ID, &geometry, 1);
    let mut summary = bytes.to_vec();
    summary.resize(bytes.len().max(1).next_multiple_of(BLOCK), 0);
    let sum = piece::sum(&summary).to_le_bytes();
    summary[4..8].copy_from_slice(&sum);
    let _ = piece::decode(&summary, &ID);
}

/// Any entries as the next piece of a log, with everything else right: recovery and the check
/// refuse them or follow them.
pub fn log(bytes: &[u8]) {
    let mut entries = Vec::new();
    let mut d = Decoder::new(bytes);
    while let Ok(entry) = Entry::decode(&mut d) {
        entries.push(entry);
    }
    let Some((dev, state)) = made() else { return };
    let head = state.head;
    let payload: u64 = entries.iter().map(|e| u64::from(e.payload())).sum();
    if payload > 8 {
        return;
    }
    let sum = crc32c::crc32c(&[0; BLOCK]);
    let crcs = vec![sum; payload as usize];
    let header = piece::Header {
        epoch: head.epoch,
        lsn: head.lsn + 1,
        segment: head.segment,
        generation: state.usage.segment(head.segment).generation,
        offset: head.offset,
        chain: head.chain,
        next: head.next,
        begin: true,
        end: true,
        purpose: piece::Purpose::Commit,
        time: Time::default(),
    };
    let summary = piece::encode(&header, &ID, &entries, &crcs);
    let blocks = summary.len() / BLOCK + crcs.len();
    if blocks > (state.tree.env.geometry.segment_blocks - head.offset) as usize {
        return;
    }
    let at = state.tree.env.geometry.first(head.segment) + u64::from(head.offset);
    let zeros = vec![0; crcs.len() * BLOCK];
    let rest = at + (summary.len() / BLOCK) as u64;
    if dev.write(at, &summary).and_then(|()| dev.write(rest, &zeros)).is_err() {
        return;
    }
    exercise(&dev);
}

/// Any bytes as the root record of a checkpoint, with a sum that is right.
pub fn root(bytes: &[u8]) {
    let Some((dev, mut state)) = made() else { return };
    let Ok(root) = Root::decode(bytes, 0) else { return };
    // What it was is what it means.
    let again = Root::decode(&root.encode(), 0).expect("own encoding");
    assert_eq!(root, again);
    state.next_ino = root.next_ino;
    state.tree.chunks = root.chunks;
    state.orphans = root.orphans;
    state.kept = root.kept;
    state.head.epoch += 1;
    if checkpoint::write(&mut state).is_ok() {
        exercise(&dev);
    }
}

/// The newest checkpoint and the super block, which differ from right ones by any bytes, with sums
/// that are right.
pub fn fixed(bytes: &[u8]) {
    let Some((dev, state)) = made() else { return };
    let [one, other] = [0, 1].map(|copy| Checkpoint::region(state.last.sequence) + copy);
    let (checkpoint, sup) = bytes.split_at(bytes.len() / 2);
    for (at, by) in [(one, checkpoint), (other, checkpoint), (0, sup), (dev.blocks() - 1, sup)] {
        let mut block = vec![0; BLOCK];
        if dev.read(at, &mut block).is_err() {
            return;
        }
        block.iter_mut().zip(by).for_each(|(byte, by)| *byte ^= by);
        let sum = crc32c::crc32c(&block[..BLOCK - 4]).to_le_bytes();
        block[BLOCK - 4..].copy_from_slice(&sum);
        if dev.write(at, &block).is_err() {
            return;
        }
    }
    exercise(&dev);
    let _ = crate::superblock::grow(&*dev);
    exercise(&dev);
}

fn exercise(dev: &Arc<MemDevice>) {
    let _ = fsck::check(dev.clone(), clock());
    if let Ok(volume) = Volume::open(dev.clone(), clock(), 1, Limits::default()) {
        let shape = crate::ops::Shape::new(systx_base::Kind::File, 0o600);
        let made = volume.plain(|ops| ops.create(crate::format::ROOT, b"new", &shape));
        if let Ok(ino) = made {
            let _ = volume.plain(|ops| ops.write(ino, 0, b"content"));
        }
        let _ = volume.close();
    }
}

/// Bytes of some entries, for who looks for others.
pub fn sample() -> Vec<u8> {
    let mut e = Encoder::new();
    for entry in [
        Entry::Gone(7),
        Entry::Cut(2, 1),
        Entry::Data(2, 0, 1),
        Entry::Hole(2, 3, 4),
        Entry::Adopted(9, 1),
        Entry::Bind(1, b"x".to_vec(), None),
    ] {
        entry.encode(&mut e);
    }
    e.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 400, failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            super::structures(&bytes);
            super::log(&bytes);
            super::root(&bytes);
        }

        #[test]
        fn flipped_fixed_structures_are_followed_or_refused(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
        ) {
            let mut bytes = vec![0; 320];
            for (at, with) in flips {
                let at = at.index(bytes.len());
                bytes[at] = with;
            }
            super::fixed(&bytes);
        }

        #[test]
        fn flipped_entries_are_followed_or_refused(
            at in any::<prop::sample::Index>(), with in any::<u8>()
        ) {
            let mut bytes = super::sample();
            let at = at.index(bytes.len());
            bytes[at] ^= with;
            super::log(&bytes);
        }
    }
}
