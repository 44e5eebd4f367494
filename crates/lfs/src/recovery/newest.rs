//! Which checkpoint is the newest.
//!
//! Regions are used in turn, and no power cut leaves a region without a whole copy.  If none of a
//! region can be read, it is damaged, and may have had the newest checkpoint.  The older one does
//! not make up for it: the checkpoint had what was not in the log, such as the name of a snapshot,
//! and the log since then may lie in segments that the older one takes for used.

use super::read_checkpoints;
use crate::entry::{BlobOf, Entry};
use crate::error::{Error, Result, Structure};
use crate::format::{COPIES, Checkpoint};
use crate::piece::{self, Purpose};
use crate::tree::Env;

/// The newest checkpoint that can be read.
///
/// # Errors
/// [`Error::Corrupt`] if there is none.
pub fn readable(env: &Env) -> Result<Checkpoint> {
    let mut error = Error::corrupt(Structure::Checkpoint, 1, "no checkpoint");
    let mut newest: Option<Checkpoint> = None;
    for found in read_checkpoints(env) {
        match found {
            Ok(c) if newest.as_ref().is_none_or(|n| n.sequence < c.sequence) => newest = Some(c),
            Ok(_) => {}
            Err(e) => error = e,
        }
    }
    newest.ok_or(error)
}

/// Says whether the newest checkpoint that can be read is the newest that there was.
///
/// It is if the other region can be read.  Otherwise the log decides: the root record of a
/// checkpoint is written before its region, and stays until a later checkpoint is done.
///
/// # Errors
/// [`Error::Corrupt`] if there may have been a newer one, or none can be read; [`Error::Io`].
pub fn prove(env: &Env) -> Result<()> {
    let newest = readable(env)?;
    let other = newest.sequence + 1;
    let first = Checkpoint::region(other);
    let copies = read_checkpoints(env);
    if copies.iter().skip(first as usize - 1).take(COPIES as usize).any(Result::is_ok) {
        return Ok(());
    }
    let Some(at) = later_root(env, &newest)? else { return Ok(()) };
    let why = format!(
        "neither this block nor its copy in block {} can be read, and block {at} of the log \
         belongs to checkpoint {other}, which would lie here: the older checkpoint {} lacks what \
         was committed since",
        first + 1,
        newest.sequence
    );
    Err(Error::corrupt(Structure::Checkpoint, first, why))
}

/// The first piece of the log that has the root record of a checkpoint after this one.
fn later_root(env: &Env, than: &Checkpoint) -> Result<Option<u64>> {
    for segment in 0..env.geometry.segments {
        let mut offset = 0;
        while let Some(piece) = piece::read(&*env.dev, &env.geometry, &env.id, segment, offset)? {
            let h = &piece.header;
            let is_root = |e: &Entry| matches!(e, Entry::Blob(BlobOf::Root, _));
            // What an earlier opening left behind its end may have any number.
            if h.purpose == Purpose::Checkpoint
                && h.epoch >= than.head.epoch
                && h.lsn > than.head.lsn
                && piece.entries.iter().any(is_root)
            {
                return Ok(Some(env.geometry.first(segment) + u64::from(offset)));
            }
            offset += piece.blocks();
        }
    }
    Ok(None)
}
