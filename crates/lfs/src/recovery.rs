//! Opening: the newest checkpoint, and what the log has after it.
//!
//! A group of the log counts if all of its pieces are there, and a piece is there if its sums are
//! right and it has the epoch, the generation, the number and the chain that come next.  Nothing
//! else decides.  Recovery writes nothing; the checkpoint of a new epoch that ends it leaves
//! everything that recovery has read where it is.

mod ended;
mod newest;
mod replay;
#[cfg(test)]
mod tests;

pub use ended::is_later;
pub use newest::prove;

use crate::device::{self, Device};
use crate::error::{Error, Result, Structure};
use crate::format::{BLOCK, COPIES, Checkpoint, Head, Super};
use crate::pack::Unpacked;
use crate::pending::Pending;
use crate::piece::{self, Piece, Purpose};
use crate::root::Root;
use crate::rules::{Rule, keeps};
use crate::state::{Flow, Limits, State};
use crate::superblock::read_super;
use crate::tree::{Clock, Env, Tree};
use crate::txn;
use crate::usage::Usage;
use std::collections::HashMap;
use std::sync::Arc;

/// What recovery has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Groups after the checkpoint.
    pub groups: u64,
    /// Pieces of a group that was not finished, or of a checkpoint that was not.
    pub left_over: u64,
}

/// All copies of checkpoints that can be read, and what is wrong with the others.
pub fn read_checkpoints(env: &Env) -> Vec<Result<Checkpoint>> {
    let read = |at: u64| {
        let mut block = vec![0; BLOCK];
        device::read(&*env.dev, at, &mut block)?;
        Checkpoint::decode(&block, &env.id, &env.geometry, at)
    };
    (1..=2 * COPIES).map(read).collect()
}

/// The state that a device has, by the newest checkpoint and the log after it.
///
/// # Errors
/// [`Error::NotAVolume`], [`Error::Io`]; [`Error::Corrupt`], also if the newest checkpoint may be
/// one that cannot be read, or the log breaks off before its end.
pub fn recover(dev: Arc<dyn Device>, clock: Clock) -> Result<(State, Report, Super)> {
    let (env, sup) = environment(dev, clock)?;
    newest::prove(&env)?;
    let (state, report, sup) = recover_to(env, sup, End::Whole)?;
    ended::prove(&state)?;
    Ok((state, report, sup))
}

/// As [`recover`], as far as the log can be read.
///
/// # Errors
/// As [`recover`], but for a log that breaks off.
pub fn recover_broken(dev: Arc<dyn Device>, clock: Clock) -> Result<(State, Report, Super)> {
    let (env, sup) = environment(dev, clock)?;
    newest::prove(&env)?;
    recover_unproven(env, sup)
}

/// Where the volume of a device lies.
///
/// # Errors
/// As [`read_super`].
pub fn environment(dev: Arc<dyn Device>, clock: Clock) -> Result<(Env, Super)> {
    let sup = read_super(&*dev)?;
    let (geometry, id, compression) = (sup.geometry, sup.id, sup.compression);
    let unpacked = Unpacked::default();
    Ok((Env { dev, geometry, id, clock, compression, unpacked }, sup))
}

/// As [`recover`], by the newest checkpoint that can be read, which may be an older one than the
/// volume has had, and as far as the log can be read: for a check, which only looks.
///
/// # Errors
/// As [`recover`].
pub fn recover_unproven(env: Env, sup: Super) -> Result<(State, Report, Super)> {
    recover_to(env, sup, End::Readable)
}

/// Where the log ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// What cannot be read may be a part of it.
    Whole,
    /// Where it cannot be read on.
    Readable,
}

fn recover_to(env: Env, sup: Super, end: End) -> Result<(State, Report, Super)> {
    let mut state = load(env.clone(), newest::readable(&env)?)?;
    let report = roll_forward(&mut state, end)?;
    for ino in std::mem::take(&mut state.orphans) {
        let names = state.tree.get(ino).map(|object| object.node.attrs.nlink);
        match names.and_then(|names| if names == 0 { state.delete(ino) } else { Ok(()) }) {
            // It has got a name again, or is gone already.
            Ok(()) | Err(Error::NotFound) => {}
            // It stays, as long as it cannot be read.
            Err(e) if e.is_damage() => {
                state.orphans.insert(ino);
            }
            Err(e) => return Err(e),
        }
    }
    // The checkpoint that follows has all of it.
    state.pending = Pending::default();
    Ok((state, report, sup))
}

/// The root record of a checkpoint.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Io`].
pub fn read_root(env: &Env, blob: &crate::format::Blob) -> Result<Root> {
    let at = blob.runs.first().map_or(0, |(at, _)| *at);
    Root::decode(&env.read_blob(blob, Structure::Root)?, at)
}

fn load(env: Env, last: Checkpoint) -> Result<State> {
    let root = read_root(&env, &last.root)?;
    let table = env.read_blob(&last.usage, Structure::Usage)?;
    let at = last.usage.runs.first().map_or(0, |(at, _)| *at);
    let mut usage = Usage::decode(&table, env.geometry).map_err(|e| match e {
        Error::Corrupt { what, why, .. } => Error::Corrupt { what, at, why },
        other => other,
    })?;
    usage.add_blob(&last.root)?;
    usage.add_blob(&last.usage)?;
    root.kept.snapshots.iter().for_each(|s| usage.pin(&s.pins));
    usage.hold(last.head.segment);
    usage.hold(last.head.next);
    let mut state = State {
        tree: Tree::with_strays(env, root.chunks, root.strays),
        usage,
        head: last.head,
        next_ino: root.next_ino,
        pending: Pending::default(),
        orphans: root.orphans,
        held: HashMap::new(),
        kept: root.kept,
        last,
        returned: txn::returned(),
        flow: Flow::default(),
        limits: Limits::default(),
    };
    state.keep_named();
    state.usage.reclaim();
    Ok(state)
}

/// A place in the log, and which segments have been taken on the way there.
struct Probe {
    head: Head,
    taken: Vec<u32>,
}

impl Probe {
    /// The next piece of the log and of its group, if it is there.
    fn next(&self, state: &State, first: bool) -> Result<Option<Piece>> {
        let head = &self.head;
        let here = self.piece(state, (head.segment, head.offset), first)?;
        if here.is_some() {
            return Ok(here);
        }
        self.piece(state, (head.next, 0), first)
    }

    fn piece(&self, state: &State, at: (u32, u32), first: bool) -> Result<Option<Piece>> {
        let env = &state.tree.env;
        let found = piece::read(&*env.dev, &env.geometry, &env.id, at.0, at.1)?;
        let Some(piece) = found.filter(|p| self.follows(state, p, first)) else {
            return Ok(None);
        };
        match piece::verify_payload(&*env.dev, &env.geometry, &piece) {
            Ok(()) => Ok(Some(piece)),
            Err(Error::Corrupt { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn follows(&self, state: &State, piece: &Piece, first: bool) -> bool {
        let (p, head) = (&piece.header, &self.head);
        let taken = self.taken.iter().filter(|s| **s == p.segment).count() as u32;
        let generation = state.usage.segment(p.segment).generation.wrapping_add(taken);
        let next = if p.segment == head.segment {
            p.next == head.next
        } else {
            state.usage.is_free(p.next) && !self.taken.contains(&p.next)
        };
        keeps(Rule::Epoch, p.epoch == head.epoch)
            && keeps(Rule::Generation, p.generation == generation)
            && keeps(Rule::Lsn, p.lsn == head.lsn + 1)
            && keeps(Rule::Chain, p.chain == head.chain)
            && keeps(Rule::Begin, p.begin == first)
            && keeps(Rule::Private, p.purpose != Purpose::Private)
            && keeps(Rule::Next, next)
    }

    fn advance(&mut self, piece: &Piece) {
        let p = &piece.header;
        if p.segment != self.head.segment {
            self.taken.push(p.next);
        }
        self.head = Head {
            segment: p.segment,
            offset: p.offset + piece.blocks(),
            next: p.next,
            lsn: p.lsn,
            chain: piece.crc,
            epoch: p.epoch,
        };
    }
}

fn roll_forward(state: &mut State, end: End) -> Result<Report> {
    let mut report = Report::default();
    loop {
        let mut probe = Probe { head: state.head, taken: Vec::new() };
        let mut group = Vec::new();
        let whole = loop {
            let next = match probe.next(state, group.is_empty()) {
                Err(Error::Unread { .. }) if end == End::Readable => None,
                other => other?,
            };
            let Some(piece) = next else { break false };
            probe.advance(&piece);
            group.push(piece);
            if group.last().is_some_and(|p| p.header.end) {
                break true;
            }
        };
        if !whole {
            report.left_over = group.len() as u64;
            return Ok(report);
        }
        for segment in &probe.taken {
            state.usage.take_this(*segment);
        }
        for piece in &group {
            replay::piece(state, piece)?;
            if piece.header.segment != state.head.segment {
                state.usage.release(state.head.segment);
                state.head.segment = piece.header.segment;
            }
            state.usage.touch(piece.header.segment, piece.header.lsn);
        }
        state.head = probe.head;
        report.groups += 1;
    }
}
