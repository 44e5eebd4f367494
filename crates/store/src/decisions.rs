//! What the decider of a joint commit ([`crate::joint`]) remembers for the other stores, and how
//! they ask it.

use crate::history::Commit;
use crate::io::{Class, Handle, Io, Open};
use crate::joint::{Decision, Joint, MEMBERS, Outcome, get_joint, put_joint};
use crate::journal::scan;
use crate::layout::{Layout, ensure_dir, ensure_file, found, names, read_first};
use crate::super_block::{Found, Super, read};
use crate::trust::{Owner, Refused};
use std::io::Result;
use systx_base::TxnId;
use systx_base::codec::{DecodeError, Decoder, Encoder};

const DIR: &[u8] = b"d";
const MAGIC: u32 = u32::from_le_bytes(*b"SXD1");

/// Decisions that other stores may still ask for.
///
/// # Errors
/// Of the file system.
pub(crate) fn all(io: &dyn Io, layout: &Layout, boot: [u8; 16]) -> Result<Vec<Decision>> {
    let Some(dir) = found(io.open_dir(&layout.state, DIR))? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for name in names(io, &dir)? {
        let Some(kept) = Kept::load(io, &dir, &name)? else { continue };
        // What was in memory then is gone since.
        let rebooted = boot != [0; 16] && boot != kept.boot;
        let others = kept.joint.others().filter(|m| !(m.memory && rebooted)).cloned().collect();
        all.push(Decision { id: kept.joint.id, txn: kept.txn, others });
    }
    Ok(all)
}

/// Nobody will ask for this decision again: every other store's checkpoint has passed its part.
///
/// # Errors
/// Of the file system; then it is kept.
pub(crate) fn forget(io: &dyn Io, layout: &Layout, id: u64) -> Result<()> {
    match found(io.open_dir(&layout.state, DIR))? {
        Some(dir) => found(io.unlink(&dir, &name(id))).map(|_| ()),
        None => Ok(()),
    }
}

/// What the decider of a joint commit, in the directory `path` below the root of `io`, decided
/// about it.  It may be open in another process.
pub fn outcome(io: &dyn Io, path: &[u8], owner: Option<Owner>, joint: &Joint) -> Outcome {
    let look = || -> Result<Outcome> {
        let Some(decider) = joint.decider() else { return Ok(Outcome::Unknown) };
        let Some((layout, block)) = open(io, path, owner, decider.store)? else {
            return Ok(Outcome::Unknown);
        };
        // Noted on both sides: it names the store that asks, as that names it.
        let same = |j: &Joint| j.id == joint.id && j.members == joint.members;
        let decides = |j: &Joint| same(j) && j.decides();
        match in_journal(io, &layout, &block, decides)? {
            Some(true) => return Ok(Outcome::Committed),
            Some(false) => {}
            None => return Ok(Outcome::Unknown),
        }
        // After the journal: a checkpoint writes this before it lets go of that.
        let Some(dir) = found(io.open_dir(&layout.state, DIR))? else {
            return Ok(Outcome::Aborted);
        };
        let kept = Kept::load(io, &dir, &name(joint.id))?;
        let committed = kept.is_some_and(|kept| same(&kept.joint));
        Ok(if committed { Outcome::Committed } else { Outcome::Aborted })
    };
    look().unwrap_or_else(|error| {
        tracing::warn!(%error, path = %String::from_utf8_lossy(path), "a decision cannot be looked up");
        Outcome::Unknown
    })
}

/// Whether the store numbered `store` is in the directory `path` below the root of `io`.
pub fn is_there(io: &dyn Io, path: &[u8], owner: Option<Owner>, store: u64) -> bool {
    open(io, path, owner, store).is_ok_and(|found| found.is_some())
}

/// Whether the store numbered `store`, in the directory `path` below the root of `io`, may still
/// ask for the decision about the joint commit `id`: it has a prepared record of it, or cannot be
/// read.
pub fn is_undecided(io: &dyn Io, path: &[u8], owner: Option<Owner>, store: u64, id: u64) -> bool {
    let look = || -> Result<bool> {
        let Some((layout, block)) = open(io, path, owner, store)? else { return Ok(true) };
        Ok(in_journal(io, &layout, &block, |j| j.id == id)?.unwrap_or(true))
    };
    look().unwrap_or(true)
}

/// The files of a store, if it is the one that is meant.  What they say is durable from here on.
fn open(
    io: &dyn Io,
    path: &[u8],
    owner: Option<Owner>,
    store: u64,
) -> Result<Option<(Layout, Super)>> {
    let layout = match Layout::look(io, path, owner) {
        Ok(Some(layout)) => layout,
        Err(Refused::Io(error)) => return Err(error),
        Ok(None) | Err(_) => return Ok(None),
    };
    if io.fs_info()?.class != Class::Memory
        && let Err(error) = io.sync_fs()
    {
        // The kernel tells each error once, and this one was for that store as well.
        crate::mark::withdraw(io, &layout);
        return Err(error);
    }
    match read(io, &layout)? {
        Found::Valid(block) if block.store == store => Ok(Some((layout, block))),
        _ => Ok(None),
    }
}

/// Whether a record in the journal is wanted; `None` if it cannot be read.
fn in_journal(
    io: &dyn Io,
    layout: &Layout,
    block: &Super,
    wanted: impl Fn(&Joint) -> bool,
) -> Result<Option<bool>> {
    let scan = scan(io, layout, block.identity(), block.head)?;
    if scan.damaged.is_some() {
        return Ok(None);
    }
    for record in &scan.records {
        match Commit::decode_record(&record.body) {
            Ok(commit) if commit.joint.as_ref().is_some_and(&wanted) => return Ok(Some(true)),
            Ok(_) => {}
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(false))
}

/// Whether the store keeps decisions, which other stores may not know.
pub(crate) fn has_decisions(io: &dyn Io, layout: &Layout) -> Result<bool> {
    let Some(dir) = found(io.open_dir(&layout.state, DIR))? else { return Ok(false) };
    Ok(!names(io, &dir)?.is_empty())
}

fn name(id: u64) -> Vec<u8> {
    format!("{id:016x}").into_bytes()
}

/// A file in `d/`.
struct Kept {
    txn: TxnId,
    boot: [u8; 16],
    joint: Joint,
}

/// Notes what this store decided for others. Durable with the checkpoint that lets the journal
/// forget it.
pub(crate) fn note(io: &dyn Io, layout: &Layout, commit: &Commit, boot: [u8; 16]) -> Result<()> {
    let Some(joint) = commit.joint.as_ref().filter(|j| j.decides() && j.members.len() > 1) else {
        return Ok(());
    };
    let mut e = Encoder::new();
    e.u32(MAGIC);
    e.u64(commit.meta.txn.0);
    boot.iter().for_each(|b| e.u8(*b));
    put_joint(&mut e, joint);
    let mut bytes = e.finish();
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    let dir = ensure_dir(io, &layout.state, DIR)?;
    let file = ensure_file(io, &dir, &name(joint.id))?;
    io.write_at(&file, &bytes, 0)?;
    io.set_len(&file, bytes.len() as u64)
}

impl Kept {
    fn load(io: &dyn Io, dir: &Handle, name: &[u8]) -> Result<Option<Kept>> {
        let Some(file) = found(io.open_file(dir, name, Open::Read))? else { return Ok(None) };
        let bytes = read_first(io, &file, MEMBERS as u64 * 5000)?;
        Ok(bytes.and_then(|bytes| Kept::decode(&bytes).ok()))
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Kept, DecodeError> {
        let split = bytes.split_last_chunk::<4>();
        let valid = split.filter(|(body, crc)| u32::from_le_bytes(**crc) == crc32c::crc32c(body));
        let Some((body, _)) = valid else {
            return Err(DecodeError::Invalid { what: "checksum of a decision", at: 0, found: 0 });
        };
        let mut d = Decoder::new(body);
        let magic = d.u32()?;
        if magic != MAGIC {
            return Err(d.invalid("format of a decision", magic.into()));
        }
        let txn = TxnId(d.u64()?);
        let mut boot = [0; 16];
        for byte in &mut boot {
            *byte = d.u8()?;
        }
        Ok(Kept { txn, boot, joint: get_joint(&mut d)? })
    }
}

/// For the fuzz targets: what is read as a decision means the same when it is written again.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_made_up(bytes: &[u8]) {
    let Ok(kept) = Kept::decode(bytes) else { return };
    let mut e = Encoder::new();
    put_joint(&mut e, &kept.joint);
    let again = get_joint(&mut Decoder::new(&e.finish())).expect("own encoding");
    assert_eq!(again, kept.joint);
    assert!(again.decider().is_some() && again.others().count() + 1 == again.members.len());
}
