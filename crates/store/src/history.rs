//! What a commit was, what it overwrote, and what it left: the bytes of a journal record's body and
//! of a history file.
//!
//! A journal record holds the [`Commit`]: who and what, the write set with its data, the
//! before-images of what is changed in place, and the identity of every slot that becomes a file.
//! When it is installed, a history file takes its place for undo: the same without the new data,
//! and with the stamps that the installation left ([`Done`]). Small ones share a file
//! ([`crate::bundle`]). They are written without a sync; the checkpoint that lets the journal
//! forget the record makes them durable.

use crate::io::{HostId, Io, Open, Stamp, Stat};
use crate::joint::{Joint, get_joint, put_joint};
use crate::layout::{Layout, found, history_name, read_first};
use crate::writeset::codec::{
    Xattrs, get_attrs, get_extent, get_id, get_order, get_stamp, get_xattrs, put_attrs, put_extent,
    put_id, put_order, put_stamp, put_xattrs,
};
use crate::writeset::index::Index;
use crate::writeset::{Attrs, Content, Extent, Ix, Object, SlotId, WriteSet};
use std::io::{ErrorKind, Result};
use systx_base::codec::{DecodeError, Decoder, Encoder};
use systx_base::{OrderStep, Time, TxnId, Uid};

type Decoded<T> = std::result::Result<T, DecodeError>;

/// Why a transaction was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxnKind {
    /// A command ran.
    Run,
    /// Part of a kept transaction was committed.
    Partial,
    /// It takes another one back.
    Undo {
        /// Which.
        of: TxnId,
    },
    /// It takes a part of another one back.
    UndoPart {
        /// Of which.
        of: TxnId,
    },
    /// It takes an undo back.
    Redo {
        /// Which undo.
        of: TxnId,
    },
}

/// How much a transaction changed, as its user was told when it was committed. It cannot be counted
/// afterwards: a directory that was removed with all that is in it is one name of the write set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// New names.
    pub added: u64,
    /// Objects with another content.
    pub modified: u64,
    /// Names that are gone.
    pub deleted: u64,
    /// Names that moved.
    pub renamed: u64,
    /// Objects with other attributes only.
    pub attributes: u64,
    /// Bytes of new content.
    pub bytes: u64,
}

/// Who committed what, as `systx log` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitMeta {
    /// The transaction.
    pub txn: TxnId,
    /// Why it was made.
    pub kind: TxnKind,
    /// The command.
    pub argv: Vec<Vec<u8>>,
    /// Where it ran.
    pub cwd: Vec<u8>,
    /// Who ran it.
    pub uid: Uid,
    /// When the transaction began.
    pub started: Time,
    /// When it was committed.
    pub finished: Time,
    /// How much it changed, on all file systems; `None` in records of older versions.
    pub told: Option<Told>,
    /// The order that it is in, and which number comes next in it; the history does not keep that.
    pub order: Option<OrderStep>,
}

/// How an object's content was before.
#[derive(Clone, PartialEq, Debug)]
pub enum OldContent {
    /// Not changed.
    Keep,
    /// Overwritten in place; these ranges held this, and the file had this length.  With `file` the
    /// ranges are in the graveyard's before-file, at the same offsets.
    InPlace {
        /// Length of the file.
        len: u64,
        /// Whether the bytes are in the graveyard.
        file: bool,
        /// What was overwritten.
        extents: Vec<Extent>,
        /// All of it was rewritten.
        whole: bool,
    },
    /// A new inode replaces the old one, which goes to the graveyard.
    Exchanged,
}

/// The before-image of a changed host object.
#[derive(Clone, PartialEq, Debug)]
pub struct Before {
    /// Which.
    pub ix: Ix,
    /// Attributes that are changed, as they were.
    pub attrs: Attrs,
    /// Extended attributes that are changed, as they were.
    pub xattrs: Xattrs,
    /// The content.
    pub content: OldContent,
}

/// The body of a journal record.
#[derive(Clone, PartialEq, Debug)]
pub struct Commit {
    /// Who and what.
    pub meta: CommitMeta,
    /// What it changes.
    pub set: WriteSet,
    /// What was there before.
    pub befores: Vec<Before>,
    /// Slots that become files.
    pub slots: Vec<(SlotId, HostId)>,
    /// The other stores, if it is part of a commit over several.
    pub joint: Option<Joint>,
}

/// What an installation left.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Done {
    /// Position in the order of commits.
    pub lsn: u64,
    /// For each object of the write set, what it is now; `None` if it has no place any more.
    pub stamps: Vec<Option<Stamp>>,
    /// What is in the graveyard, and its version there.
    pub graves: Vec<(Ix, Stamp)>,
    /// How much was found changed by outsiders.
    pub outside: u32,
}

/// A history file.
#[derive(Clone, PartialEq, Debug)]
pub struct History {
    /// What was committed, without the new data.
    pub commit: Commit,
    /// What it left.
    pub done: Done,
    /// It is only for the log: what an undo needs was given back, and the write set is empty.
    pub forgotten: bool,
}

/// Longest command in the log of a transaction that was forgotten, in bytes.
const SHORT: usize = 4096;

/// Format of a history file, after its checksum.
const MAGIC: u32 = u32::from_le_bytes(*b"SXH2");

fn put_meta(e: &mut Encoder, m: &CommitMeta) {
    e.u64(m.txn.0);
    match m.kind {
        TxnKind::Run => e.u8(0),
        TxnKind::Partial => e.u8(1),
        TxnKind::Undo { of } => {
            e.u8(2);
            e.u64(of.0);
        }
        TxnKind::Redo { of } => {
            e.u8(3);
            e.u64(of.0);
        }
        TxnKind::UndoPart { of } => {
            e.u8(4);
            e.u64(of.0);
        }
    }
    e.seq(&m.argv, |e, arg| e.bytes(arg));
    e.bytes(&m.cwd);
    e.u32(m.uid);
    e.time(m.started);
    e.time(m.finished);
}

fn get_meta(d: &mut Decoder<'_>) -> Decoded<CommitMeta> {
    let txn = TxnId(d.u64()?);
    let kind = match d.u8()? {
        0 => TxnKind::Run,
        1 => TxnKind::Partial,
        2 => TxnKind::Undo { of: TxnId(d.u64()?) },
        3 => TxnKind::Redo { of: TxnId(d.u64()?) },
        4 => TxnKind::UndoPart { of: TxnId(d.u64()?) },
        other => return Err(d.invalid("kind of transaction", other.into())),
    };
    Ok(CommitMeta {
        txn,
        kind,
        argv: d.seq(|d| Ok(d.bytes()?.to_vec()))?,
        cwd: d.bytes()?.to_vec(),
        uid: d.u32()?,
        started: d.time()?,
        finished: d.time()?,
        told: None,
        order: None,
    })
}

fn put_told(e: &mut Encoder, told: &Told) {
    let Told { added, modified, deleted, renamed, attributes, bytes } = *told;
    [added, modified, deleted, renamed, attributes, bytes].iter().for_each(|n| e.u64(*n));
}

fn get_told(d: &mut Decoder<'_>) -> Decoded<Told> {
    Ok(Told {
        added: d.u64()?,
        modified: d.u64()?,
        deleted: d.u64()?,
        renamed: d.u64()?,
        attributes: d.u64()?,
        bytes: d.u64()?,
    })
}

fn put_before(e: &mut Encoder, b: &Before) {
    e.u32(b.ix.0);
    put_attrs(e, &b.attrs);
    put_xattrs(e, &b.xattrs);
    match &b.content {
        OldContent::Keep => e.u8(0),
        OldContent::InPlace { len, file, extents, whole } => {
            e.u8(1);
            e.u64(*len);
            e.u8((*file).into());
            e.u8((*whole).into());
            e.seq(extents, put_extent);
        }
        OldContent::Exchanged => e.u8(2),
    }
}

fn get_bool(d: &mut Decoder<'_>) -> Decoded<bool> {
    match d.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(d.invalid("flag", other.into())),
    }
}

fn get_before(d: &mut Decoder<'_>) -> Decoded<Before> {
    Ok(Before {
        ix: Ix(d.u32()?),
        attrs: get_attrs(d)?,
        xattrs: get_xattrs(d)?,
        content: match d.u8()? {
            0 => OldContent::Keep,
            1 => OldContent::InPlace {
                len: d.u64()?,
                file: get_bool(d)?,
                whole: get_bool(d)?,
                extents: d.seq(get_extent)?,
            },
            2 => OldContent::Exchanged,
            other => return Err(d.invalid("before-image", other.into())),
        },
    })
}

impl Commit {
    /// Appends it.
    pub fn encode(&self, e: &mut Encoder) {
        put_meta(e, &self.meta);
        self.set.encode(e);
        e.seq(&self.befores, put_before);
        e.seq(&self.slots, |e, (slot, id)| {
            e.u64(slot.0);
            put_id(e, *id);
        });
        e.option(self.joint.as_ref(), put_joint);
        e.option(self.meta.told.as_ref(), put_told);
    }

    /// The body of its record.
    pub fn encode_record(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        self.encode(&mut e);
        // Records of commits that are in no order are as before there were any.
        if let Some(step) = &self.meta.order {
            e.option(Some(step), put_order);
        }
        e.finish()
    }

    /// Reads the body of a record.
    pub fn decode_record(body: &[u8]) -> Decoded<Commit> {
        let mut d = Decoder::new(body);
        let mut commit = Commit::decode(&mut d)?;
        if d.remaining() > 0 {
            commit.meta.order = d.option(get_order)?;
        }
        Ok(commit)
    }

    /// What it says of an order; one over several stores is in none.
    pub fn ordered(&self) -> Option<&OrderStep> {
        self.meta.order.as_ref().filter(|_| self.joint.is_none())
    }

    /// Whether there is nothing to be installed, and nothing to be undone: it uses a number up.
    pub fn is_bare(&self) -> bool {
        self.meta.order.is_some() && self.set.is_nothing()
    }

    /// Reads a commit back and checks that it can be installed.
    ///
    /// # Errors
    /// If the bytes are not one, or it breaks an invariant.
    pub fn decode(d: &mut Decoder<'_>) -> Decoded<Commit> {
        let mut commit = Commit {
            meta: get_meta(d)?,
            set: WriteSet::decode(d)?,
            befores: d.seq(get_before)?,
            slots: d.seq(|d| Ok((SlotId(d.u64()?), get_id(d)?)))?,
            joint: d.option(get_joint)?,
        };
        // Older versions end here.
        if d.remaining() > 0 {
            commit.meta.told = d.option(get_told)?;
        }
        if commit.set.check().is_err() {
            return Err(d.invalid("write set", 0));
        }
        let objects = commit.set.objects.len();
        if let Some(b) = commit.befores.iter().find(|b| b.ix.0 as usize >= objects) {
            return Err(d.invalid("index", b.ix.0.into()));
        }
        Ok(commit)
    }
}

impl History {
    /// From a commit and its outcome; the new data is left out.
    pub fn new(commit: &Commit, done: Done) -> History {
        // The data may be large: it is not copied first.
        let without_data = |object: &Object| Object {
            origin: object.origin.clone(),
            attrs: object.attrs,
            xattrs: object.xattrs.clone(),
            content: match &object.content {
                Content::Keep => Content::Keep,
                Content::Patch { len, keep, .. } => {
                    Content::Patch { len: *len, keep: *keep, extents: Vec::new() }
                }
                Content::Whole { len, .. } => Content::Whole { len: *len, extents: Vec::new() },
                Content::Slot(_) => Content::Whole { len: 0, extents: Vec::new() },
            },
        };
        let set = WriteSet {
            objects: commit.set.objects.iter().map(without_data).collect(),
            binds: commit.set.binds.clone(),
            kept: Vec::new(),
            emptied: Vec::new(),
        };
        let commit = Commit {
            meta: CommitMeta { order: None, ..commit.meta.clone() },
            set,
            befores: commit.befores.clone(),
            slots: commit.slots.clone(),
            joint: commit.joint.clone(),
        };
        History { commit, done, forgotten: false }
    }

    /// What stays of it in the log when it cannot be undone any more: short enough for a bundle.
    pub fn forget(&self) -> History {
        let mut meta = self.commit.meta.clone();
        let mut room = SHORT;
        meta.argv.retain(|word| {
            let fits = word.len() < room;
            room = if fits { room - word.len() - 1 } else { 0 };
            fits
        });
        let joint = self.commit.joint.clone();
        let set = WriteSet::nothing();
        let commit = Commit { meta, set, befores: Vec::new(), slots: Vec::new(), joint };
        let Done { lsn, outside, .. } = self.done;
        let done = Done { lsn, outside, stamps: vec![None], graves: Vec::new() };
        History { commit, done, forgotten: true }
    }

    /// The bytes of a history file.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u32(MAGIC);
        e.u64(self.done.lsn);
        e.u32(self.done.outside);
        e.seq(&self.done.stamps, |e, s| e.option(s.as_ref(), put_stamp));
        e.seq(&self.done.graves, |e, (ix, s)| {
            e.u32(ix.0);
            put_stamp(e, s);
        });
        self.commit.encode(&mut e);
        e.u8(self.forgotten.into());
        let mut bytes = e.finish();
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a history file.
    ///
    /// # Errors
    /// If the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Decoded<History> {
        let split = bytes.split_last_chunk::<4>();
        let valid = split.filter(|(body, crc)| u32::from_le_bytes(**crc) == crc32c::crc32c(body));
        let Some((body, _)) = valid else {
            return Err(DecodeError::Invalid { what: "history checksum", at: 0, found: 0 });
        };
        let mut d = Decoder::new(body);
        let magic = d.u32()?;
        if magic != MAGIC {
            return Err(d.invalid("history format", magic.into()));
        }
        let done = Done {
            lsn: d.u64()?,
            outside: d.u32()?,
            stamps: d.seq(|d| d.option(get_stamp))?,
            graves: d.seq(|d| Ok((Ix(d.u32()?), get_stamp(d)?)))?,
        };
        let commit = Commit::decode(&mut d)?;
        if done.stamps.len() != commit.set.objects.len() {
            return Err(d.invalid("number of stamps", done.stamps.len() as u64));
        }
        // Older versions end here.
        let forgotten = d.remaining() > 0 && get_bool(&mut d)?;
        Ok(History { commit, done, forgotten })
    }

    /// Writes the history file; durable with the next checkpoint.
    pub(crate) fn save(&self, io: &dyn Io, layout: &Layout) -> Result<()> {
        save(io, layout, self.commit.meta.txn, &self.encode())
    }

    /// Reads a history file; `None` if there is none or it was torn by a power cut.
    pub(crate) fn load(io: &dyn Io, layout: &Layout, name: &[u8]) -> Result<Option<History>> {
        let Some(file) = found(io.open_file(&layout.history, name, Open::Read))? else {
            return Ok(None);
        };
        let bytes = read_first(io, &file, u64::MAX)?;
        Ok(bytes.and_then(|bytes| History::decode(&bytes).ok()))
    }
}

/// Writes a history file.
pub(crate) fn save(io: &dyn Io, layout: &Layout, txn: TxnId, bytes: &[u8]) -> Result<()> {
    let name = history_name(txn);
    // It is there only if an earlier attempt was stopped.
    let file = match io.create_file(&layout.history, &name, 0o600) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => io.open_to_write(&layout.history, &name),
        other => other,
    }?;
    io.write_at(&file, bytes, 0)?;
    io.set_len(&file, bytes.len() as u64)
}

/// All attributes that a write set could restore.
pub(crate) fn all_attrs(stat: &Stat) -> Attrs {
    Attrs {
        mode: Some(stat.mode),
        owner: Some((stat.uid, stat.gid)),
        atime: Some(stat.atime),
        mtime: Some(stat.mtime),
    }
}

/// What kind of change an entry of [`HistoryEntry::changes`] is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// The name is new.
    Created,
    /// The name is gone.
    Removed,
    /// The name now belongs to another, new object.
    Replaced,
    /// The object moved here (or got a further name).
    Renamed {
        /// Where it was.
        from: Vec<u8>,
    },
    /// Content or attributes of the object changed.
    Modified,
}

/// One changed path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Path below the volume root.
    pub path: Vec<u8>,
    /// What happened.
    pub kind: ChangeKind,
}

/// One committed transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryEntry {
    /// Who and what.
    pub meta: CommitMeta,
    /// Position in the order of commits.
    pub lsn: u64,
    /// What it changed.
    pub changes: Vec<Change>,
    /// How much outsiders had changed meanwhile.
    pub outside: u32,
    /// The other stores, if it is part of a commit over several.
    pub joint: Option<Joint>,
    /// It cannot be undone any more, and what it changed is not known any more.
    pub forgotten: bool,
}

impl HistoryEntry {
    /// What is told of histories, oldest first.
    pub fn of_all(histories: Vec<History>) -> Vec<HistoryEntry> {
        let told = |history: History| HistoryEntry {
            lsn: history.done.lsn,
            changes: changes(&history.commit.set),
            outside: history.done.outside,
            joint: history.commit.joint,
            meta: history.commit.meta,
            forgotten: history.forgotten,
        };
        let mut all: Vec<_> = histories.into_iter().map(told).collect();
        all.sort_by_key(|entry| entry.lsn);
        all
    }
}

/// The changes of a write set, by path.
pub fn changes(set: &WriteSet) -> Vec<Change> {
    let index = Index::new(set);
    let mut out = Vec::new();
    for bind in &set.binds {
        let Some(path) = index.bind_path(bind) else { continue };
        let kind = match (bind.target, bind.displaces) {
            (None, None) => continue,
            (None, Some(moved)) if !index.targets(moved).is_empty() => continue,
            (None, Some(_)) => ChangeKind::Removed,
            (Some(t), displaced) if !set.object(t).is_new() => match index.origin_path(t) {
                Some(from) if from != path => ChangeKind::Renamed { from },
                // What an undo gives back.
                _ if displaced.is_some() => ChangeKind::Replaced,
                _ => ChangeKind::Created,
            },
            (Some(_), Some(_)) => ChangeKind::Replaced,
            (Some(_), None) => ChangeKind::Created,
        };
        out.push(Change { path, kind });
    }
    for (i, object) in set.objects.iter().enumerate() {
        if object.is_changed()
            && !object.is_new()
            && let Some(path) = index.final_path(Ix(i as u32))
        {
            out.push(Change { path, kind: ChangeKind::Modified });
        }
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}
