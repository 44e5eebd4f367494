//! A checkpoint: all that changed since the last one is written to the log, a checkpoint region
//! says where, and what only the checkpoint before needed becomes free.
//!
//! The order is the whole argument.  Blobs go to free blocks, so that the last checkpoint stays
//! readable.  A sync makes them durable before a region names them.  The region is not the one of
//! the last checkpoint.  Its copies are written one after the other, each durably, so that a power
//! cut damages one at most: a region without a whole copy is damage.  Nothing is freed before both
//! copies are durable.

use crate::entry::{BlobOf, Entry};
use crate::error::{Error, Result};
use crate::format::{BLOCK, Blob, CHUNK, Checkpoint, Head, Ino};
use crate::group::{Assembled, Group, Target};
use crate::piece::Purpose;
use crate::root::Root;
use crate::state::State;
use crate::tree::{Env, INLINE_MAX, Stored};
use crate::usage::Usage;
use std::collections::BTreeMap;
use systx_base::Time;
use systx_base::codec::Encoder;

/// Makes a checkpoint.  Nobody may be writing a group.
///
/// # Errors
/// What the device says; the volume is poisoned then.
pub fn write(state: &mut State) -> Result<()> {
    write_as_of(state, None)
}

/// As [`write`]; `time` is said to be when it was made, as of the snapshot that it is a copy of.
///
/// # Errors
/// As [`write`].
pub fn write_as_of(state: &mut State, time: Option<Time>) -> Result<()> {
    state.flow.goes_on()?;
    let done = write_all(state, time);
    match &done {
        // What was written since the one before may be compressed from here on.
        Ok(()) => state.flow.work.notify_all(),
        Err(error) => state.flow.poison(error),
    }
    done
}

fn write_all(state: &mut State, time: Option<Time>) -> Result<()> {
    let dev = state.tree.env.dev.clone();
    state.take_back();
    let mut flushed = Assembled::default();
    if !state.pending.is_empty() {
        // Nothing for roll-forward: the checkpoint has it, or nobody.  So a name that the
        // checkpoint gives to the tree is there with the tree.
        let group = state.assemble(Purpose::Checkpoint)?;
        group.write(&*dev)?;
        // Before records say where pages lie.
        state.settle_packs(&group)?;
        flushed = group;
    }
    let applied = state.flow.applied;
    state.note_price();
    let records = write_records(state)?;
    write_chunks(state, records)?;
    let old = (state.last.root.clone(), state.last.usage.clone());
    state.usage.remove_blob(&old.0);
    state.usage.remove_blob(&old.1);
    let next = write_root(state, time)?;
    dev.sync()?;
    let block = next.encode(&state.tree.env.id)?;
    for at in Checkpoint::copies(next.sequence) {
        dev.write_durable(at, &block)?;
    }
    state.usage.add_blob(&next.root)?;
    state.usage.add_blob(&next.usage)?;
    state.settle(&flushed)?;
    state.last = next;
    state.tree.settled();
    state.tree.moments.tidy(&mut state.usage);
    state.usage.reclaim();
    state.flow.since = 0;
    state.flow.durable = applied;
    Ok(())
}

/// Writes a copy of the last checkpoint again that is not there: a power cut came between the two,
/// or it is damaged.  Before the other region is written: until that is done only this one counts.
///
/// # Errors
/// What the device says.
pub fn mend(state: &State) -> Result<()> {
    let env = &state.tree.env;
    let block = state.last.encode(&env.id)?;
    for at in Checkpoint::copies(state.last.sequence) {
        let mut found = vec![0; BLOCK];
        // What cannot be read is written, and may then be.
        if env.dev.read(at, &mut found).is_err() || found != block {
            env.dev.write_durable(at, &block)?;
        }
    }
    Ok(())
}

/// Puts blobs into a group of a checkpoint.
fn assemble(
    (head, usage): (&mut Head, &mut Usage),
    env: &Env,
    now: Time,
    blobs: &[(BlobOf, Vec<u8>)],
) -> Result<(Assembled, Vec<Blob>)> {
    let ids = (env.geometry, env.id);
    let mut group = Group::new(head, usage, ids, Purpose::Checkpoint, now);
    for (n, (of, bytes)) in blobs.iter().enumerate() {
        for block in bytes.chunks(BLOCK) {
            let mut padded = block.to_vec();
            padded.resize(BLOCK, 0);
            group.block(Entry::Blob(*of, 1), padded.into(), Target::Blob(n))?;
        }
    }
    let done = group.finish();
    let mut placed: Vec<Blob> = (blobs.iter())
        .map(|(_, b)| Blob {
            len: u32::try_from(b.len()).unwrap_or(u32::MAX),
            crc: crc32c::crc32c(b),
            runs: Vec::new(),
        })
        .collect();
    for (target, place) in &done.placed {
        let Target::Blob(n) = target else { continue };
        let runs = &mut placed[*n].runs;
        match runs.last_mut() {
            Some((at, count)) if *at + u64::from(*count) == place.at => *count += 1,
            _ => runs.push((place.at, 1)),
        }
    }
    if blobs.iter().any(|(_, b)| u32::try_from(b.len()).is_err()) {
        return Err(Error::TooLarge);
    }
    Ok((done, placed))
}

fn write_blobs(state: &mut State, blobs: &[(BlobOf, Vec<u8>)]) -> Result<Vec<Blob>> {
    let env = &state.tree.env;
    let now = (env.clock)();
    let (done, placed) = assemble((&mut state.head, &mut state.usage), env, now, blobs)?;
    done.write(&*env.dev)?;
    Ok(placed)
}

/// Writes the records that are too long for their chunk.  Returns where each changed one is.
fn write_records(state: &mut State) -> Result<BTreeMap<Ino, Stored>> {
    let mut records = BTreeMap::new();
    let mut apart = Vec::new();
    for ino in state.tree.dirty.clone() {
        state.tree.settle_strays(ino);
        let Some(object) = state.tree.loaded(ino) else { continue };
        let mut e = Encoder::new();
        object.encode(&mut e);
        let bytes = e.finish();
        if let Some(old) = state.tree.stored.remove(&ino) {
            state.usage.remove_blob(&old);
        }
        if bytes.len() <= INLINE_MAX {
            records.insert(ino, Stored::Inline(bytes));
        } else {
            apart.push((BlobOf::Record(ino), bytes));
        }
    }
    let placed = write_blobs(state, &apart)?;
    for ((of, _), blob) in apart.into_iter().zip(placed) {
        state.usage.add_blob(&blob)?;
        if let BlobOf::Record(ino) = of {
            state.tree.stored.insert(ino, blob.clone());
            records.insert(ino, Stored::Apart(blob));
        }
    }
    Ok(records)
}

/// Writes the chunks of the inode map that have changed.
fn write_chunks(state: &mut State, records: BTreeMap<Ino, Stored>) -> Result<()> {
    let mut blobs = Vec::new();
    for chunk in state.tree.dirty_chunks.clone() {
        let mut all = match state.tree.chunks.remove(&chunk) {
            Some(old) => {
                let all = state.tree.env.read_chunk(chunk, &old)?;
                state.usage.remove_blob(&old);
                all
            }
            None => BTreeMap::new(),
        };
        all.retain(|ino, _| !state.tree.gone.contains(ino));
        let changed = records.range(chunk * CHUNK..(chunk + 1) * CHUNK);
        all.extend(changed.map(|(ino, stored)| (*ino, stored.clone())));
        if all.is_empty() {
            continue;
        }
        let mut e = Encoder::new();
        let all: Vec<_> = all.into_iter().collect();
        e.seq(&all, |e, (ino, stored)| {
            e.u64(*ino);
            stored.encode(e);
        });
        blobs.push((BlobOf::Chunk(chunk), e.finish()));
    }
    let placed = write_blobs(state, &blobs)?;
    for ((of, _), blob) in blobs.iter().zip(placed) {
        state.usage.add_blob(&blob)?;
        if let BlobOf::Chunk(chunk) = of {
            state.tree.chunks.insert(*chunk, blob);
        }
    }
    Ok(())
}

/// Writes the root record and the usage table.
fn write_root(state: &mut State, time: Option<Time>) -> Result<Checkpoint> {
    let env = state.tree.env.clone();
    let now = (env.clock)();
    let root = Root {
        next_ino: state.next_ino,
        chunks: state.tree.chunks.clone(),
        orphans: state.orphans.clone(),
        kept: state.kept.clone(),
        strays: state.tree.strays.inos(),
    };
    // The table says which segments were taken, also for itself.  Where a blob comes to lie
    // depends on its length alone: a rehearsal tells.
    let (mut head, mut usage) = (state.head, state.usage.clone());
    let table = vec![0; usage.encoded_len()];
    let mut blobs = [(BlobOf::Root, root.encode()), (BlobOf::Usage, table)];
    assemble((&mut head, &mut usage), &env, now, &blobs)?;
    blobs[1].1 = usage.encode();
    let placed = write_blobs(state, &blobs)?;
    let [root, usage] = <[Blob; 2]>::try_from(placed).map_err(|_| Error::TooLarge)?;
    let sequence = state.last.sequence + 1;
    let time = time.unwrap_or(now);
    Ok(Checkpoint { sequence, head: state.head, time, root, usage })
}
