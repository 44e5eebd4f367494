//! One commit over several stores, with one commit point.
//!
//! One of the stores is the *decider*. The others are prepared: their records are made durable
//! first, and say who decides. The decider's record, which lists all, is the commit point: a
//! prepared record counts if the decider has committed, and is as if it had never been written if
//! not.
//!
//! **Who remembers.** The decider's journal holds the decision until its checkpoint; from the
//! installation on it is also in a file `d/JOINT`, which stays until every other store has let go
//! of its prepared record. Where there is neither, nothing was committed. So no store's journal
//! waits for another's checkpoint, and stores may be recovered in any order.
//!
//! **Recovery.** A store that finds a prepared record asks the decider's files ([`outcome`]);
//! without an answer it is not opened and nothing in it is touched. Before the answer the decider's
//! file system is synced: a record that only the page cache has would be believed here and lost
//! there by a power cut.
//!
//! **Names.** A joint commit is known by a random number: transaction ids of what was aborted are
//! used again.
//!
//! **No deadlock.** One joint commit at a time is between its first claim and its decision
//! ([`Joiner`]), so a prepared record waits for nobody who waits for it.

use crate::dir_store::DirStore;
use crate::error::CommitError;
use crate::history::{Commit, CommitMeta};
use crate::interface::{Committed, Ready, Reservation, Store};
use crate::io::{Class, Io, Open};
use crate::journal::scan;
use crate::layout::{Layout, ensure_dir, ensure_file, found, names, read_first};
use crate::super_block::{Found, Super, read};
use crate::trust::{Owner, Refused};
use crate::writeset::WriteSet;
use std::io::Result;
use systx_base::TxnId;
use systx_base::codec::{DecodeError, Decoder, Encoder};
use systx_base::sync::{Event, Mutex, rank};
use thiserror::Error;

/// One store of a joint commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// What tells it from all other stores.
    pub store: u64,
    /// On a file system that does not outlive the kernel.
    pub memory: bool,
    /// Where its directory was: absolute, on the host.
    pub path: Vec<u8>,
}

/// What every record of a joint commit says about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joint {
    /// Random, the same in all of them.
    pub id: u64,
    /// All stores.
    pub members: Vec<Member>,
    /// Which of them decides.
    pub decider: u32,
    /// Which of them this is.
    pub me: u32,
}

impl Joint {
    /// Whether this store's record is the commit point.
    pub fn decides(&self) -> bool {
        self.me == self.decider
    }

    /// The store that decides.
    pub fn decider(&self) -> Option<&Member> {
        self.members.get(self.decider as usize)
    }

    /// All stores but this one.
    pub fn others(&self) -> impl Iterator<Item = &Member> {
        let me = self.me as usize;
        self.members.iter().enumerate().filter(move |(i, _)| *i != me).map(|(_, m)| m)
    }
}

/// What became of a joint commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It counts.
    Committed,
    /// It never happened.
    Aborted,
    /// The store that knows is not there, or cannot be read.
    Unknown,
}

/// Who knows what other stores decided.
pub trait Outcomes {
    /// What became of a commit that was prepared in the store that asks.
    fn outcome(&self, joint: &Joint) -> Outcome;
}

/// Knows no other stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Outcomes for Nobody {
    fn outcome(&self, _: &Joint) -> Outcome {
        Outcome::Unknown
    }
}

/// A decision that other stores may still ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Of which joint commit.
    pub id: u64,
    /// Its transaction.
    pub txn: TxnId,
    /// The other stores.
    pub others: Vec<Member>,
}

/// One store's share in a joint commit.
pub struct Part<'a> {
    /// The store.
    pub store: &'a dyn Store,
    /// Its directory, absolute, on the host: where it will be looked for.
    pub path: Vec<u8>,
    /// Room for it.
    pub reservation: Reservation,
    /// What changes there.
    pub set: WriteSet,
}

/// Why a joint commit was not made.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct JointError {
    /// Which part is the reason.
    pub part: usize,
    /// Why.
    pub error: CommitError,
}

/// Makes joint commits, one at a time.
#[derive(Debug)]
pub struct Joiner {
    busy: Mutex<bool>,
    free: Event,
}

impl Default for Joiner {
    fn default() -> Self {
        Joiner::new()
    }
}

struct Turn<'a>(&'a Joiner);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.busy.lock() = false;
        self.0.free.notify_all();
    }
}

/// Claims that are given back unless they were used.
struct Claims<'a, 'b>(&'a [Part<'b>], Vec<u64>, usize);

impl Drop for Claims<'_, '_> {
    fn drop(&mut self) {
        for (part, ticket) in self.0.iter().zip(&self.1).skip(self.2) {
            part.store.unclaim(*ticket);
        }
    }
}

impl Joiner {
    /// Of the stores of one process.
    pub const fn new() -> Joiner {
        Joiner { busy: Mutex::new(rank::LEAF, false), free: Event::new() }
    }

    fn turn(&self) -> Turn<'_> {
        let mut busy = self.busy.lock();
        while *busy {
            self.free.wait(&mut busy);
        }
        *busy = true;
        Turn(self)
    }

    /// Commits all parts, or none; the first one decides. When this returns all are durable; each
    /// is in its tree after [`Store::apply`]. `id` is a random number.
    ///
    /// # Errors
    /// Nothing was committed, except with [`CommitError::InDoubt`].
    pub fn commit(
        &self,
        id: u64,
        mut parts: Vec<Part<'_>>,
        meta: &CommitMeta,
    ) -> std::result::Result<Vec<Committed>, JointError> {
        let at = |part: usize| move |error: CommitError| JointError { part, error };
        let _turn = self.turn();
        let mut members = Vec::with_capacity(parts.len());
        for (n, part) in parts.iter().enumerate() {
            part.set.check().map_err(|e| at(n)(e.into()))?;
            let store = part.store.number().map_err(at(n))?;
            let memory = part.store.class() == Class::Memory;
            members.push(Member { store, memory, path: part.path.clone() });
        }
        let mut tickets = Vec::with_capacity(parts.len());
        {
            let mut claims = Claims(&parts, Vec::new(), 0);
            for (n, part) in parts.iter().enumerate() {
                claims.1.push(part.store.claim(&part.set).map_err(at(n))?);
            }
            tickets.append(&mut claims.1);
        }
        let joint = |me: usize| Joint { id, members: members.clone(), decider: 0, me: me as u32 };
        let mut lsns = vec![0; parts.len()];
        // The decider last.
        for n in (0..parts.len()).rev() {
            let part = &mut parts[n];
            let (reservation, set) =
                (std::mem::take(&mut part.reservation), std::mem::take(&mut part.set));
            let ready = Ready { reservation, set, meta: meta.clone() };
            match part.store.prepare(tickets[n], ready, joint(n)) {
                Ok(lsn) => lsns[n] = lsn,
                Err(error) => {
                    for (part, ticket) in parts[..n].iter().zip(&tickets) {
                        part.store.unclaim(*ticket);
                    }
                    for (part, lsn) in parts.iter().zip(&lsns).skip(n + 1) {
                        match &error {
                            CommitError::InDoubt(why) if n == 0 => part.store.in_doubt(why),
                            _ => part.store.decided(*lsn, false),
                        }
                    }
                    return Err(JointError { part: n, error });
                }
            }
        }
        for (part, lsn) in parts.iter().zip(&lsns).skip(1) {
            part.store.decided(*lsn, true);
        }
        Ok(lsns.into_iter().map(|lsn| Committed { lsn }).collect())
    }
}

impl DirStore {
    /// Decisions that other stores may still ask for.
    ///
    /// # Errors
    /// Of the file system.
    pub fn decisions(&self) -> Result<Vec<Decision>> {
        let Some(dir) = found(self.io.open_dir(&self.layout.state, DIR))? else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for name in names(&*self.io, &dir)? {
            let Some(kept) = Kept::load(&*self.io, &dir, &name)? else { continue };
            // What was in memory then is gone since.
            let rebooted =
                self.config.instance.boot != [0; 16] && self.config.instance.boot != kept.boot;
            let others = kept.joint.others().filter(|m| !(m.memory && rebooted)).cloned().collect();
            all.push(Decision { id: kept.joint.id, txn: kept.txn, others });
        }
        Ok(all)
    }

    /// Nobody will ask for this decision again: every other store's checkpoint has passed its part.
    ///
    /// # Errors
    /// Of the file system; then it is kept.
    pub fn forget_decision(&self, id: u64) -> Result<()> {
        match found(self.io.open_dir(&self.layout.state, DIR))? {
            Some(dir) => found(self.io.unlink(&dir, &name(id))).map(|_| ()),
            None => Ok(()),
        }
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

const DIR: &[u8] = b"d";
const MAGIC: u32 = u32::from_le_bytes(*b"SXD1");
/// More stores than that are not in one commit.
const MEMBERS: usize = 4096;

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
    fn load(io: &dyn Io, dir: &crate::io::Handle, name: &[u8]) -> Result<Option<Kept>> {
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

pub(crate) fn put_joint(e: &mut Encoder, joint: &Joint) {
    e.u64(joint.id);
    e.seq(&joint.members, |e, m| {
        e.u64(m.store);
        e.u8(m.memory.into());
        e.bytes(&m.path);
    });
    e.u32(joint.decider);
    e.u32(joint.me);
}

pub(crate) fn get_joint(d: &mut Decoder<'_>) -> std::result::Result<Joint, DecodeError> {
    let id = d.u64()?;
    let members = d.seq(|d| {
        let store = d.u64()?;
        let memory = match d.u8()? {
            0 => false,
            1 => true,
            other => return Err(d.invalid("flag", other.into())),
        };
        Ok(Member { store, memory, path: d.bytes()?.to_vec() })
    })?;
    let (decider, me) = (d.u32()?, d.u32()?);
    let known = |ix: u32| (ix as usize) < members.len();
    if members.len() > MEMBERS || !known(decider) || !known(me) {
        return Err(d.invalid("store of a joint commit", members.len() as u64));
    }
    Ok(Joint { id, members, decider, me })
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
