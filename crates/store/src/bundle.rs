//! Bundles: the histories of many small commits in one file, see docs/FORMAT.md and decision 0016.
//!
//! To make a file for each commit, and to write back its inode, its name and its block, is a good
//! part of what a small commit costs. So a small history is appended to the open bundle, `h/bTXN`,
//! where TXN is its first one. It is written when a history file would be: before the mark that
//! calls the transaction installed, without a sync, and made durable by the checkpoint that lets
//! the journal forget the record.
//!
//! **What a reader may rely on.** Entries are written one after the other, each at the end of the
//! one before, and a bundle is appended to by the process that made it only. So what a crash leaves
//! is a row of entries of which the last ones may be anything, and those are of records that the
//! journal still has. An entry whose header is not valid ends the bundle; one whose body is not is
//! passed over.
//!
//! **The head** of a bundle lists its transactions once it is full: which of them there are is
//! asked at the first begin, and a bundle that has no list is short or was left by a crash, and
//! read.
//!
//! **A history is in one place.** Recovery, and whoever tries an installation again, write a file:
//! it counts, and not what an earlier attempt may have left in a bundle.
//!
//! **Letting go.** A word of the header says whether an entry still counts. A bundle goes when none
//! does.

use crate::io::{Handle, Io, Open};
use crate::layout::{bundle_name, found};
use std::collections::HashSet;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use systx_base::TxnId;
use systx_base::codec::{Decoder, Encoder};
use systx_base::sync::{Mutex, rank};

/// Histories that are longer have a file of their own.
pub(crate) const SMALL: usize = 16 << 10;
/// A bundle that would become longer is left, and another one begun.
const LONGEST: u64 = 1 << 20;
/// The file's length grows by so much at once: a write that moves it changes the inode as well.
const STEP: u64 = 64 << 10;
/// Where the first entry is.
const HEAD: u64 = 16 << 10;
/// The list in the head begins with its magic, its length, and its sum.
const LIST_AT: usize = 16;
/// As many are listed.
const MANY: usize = (HEAD as usize - LIST_AT) / 8;
const LIST: u32 = u32::from_le_bytes(*b"SXL1");
const HEADER: usize = 40;
/// Where the word is that says whether an entry still counts.
const STATE_AT: u64 = 4;
const MAGIC: u32 = u32::from_le_bytes(*b"SXB1");
const KEPT: u32 = 1;
const GONE: u32 = 0;

/// One history in a bundle's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub txn: TxnId,
    /// Where it begins.
    pub at: u64,
    /// Whether it still counts.
    pub kept: bool,
    /// Its history file's bytes.
    pub body: Range<usize>,
}

/// The word that says whether it counts is not in the sum: it changes later.
fn header(store: u64, bundle: TxnId, txn: TxnId, len: u32) -> [u8; HEADER] {
    let mut e = Encoder::new();
    e.u32(MAGIC);
    e.u32(KEPT);
    e.u64(store);
    e.u64(bundle.0);
    e.u64(txn.0);
    e.u32(len);
    let mut bytes = [0; HEADER];
    let fields = e.finish();
    bytes[..fields.len()].copy_from_slice(&fields);
    let sum = sum(&bytes);
    bytes[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn sum(header: &[u8]) -> u32 {
    let after = crc32c::crc32c(&header[..STATE_AT as usize]);
    crc32c::crc32c_append(after, &header[STATE_AT as usize + 4..HEADER - 4])
}

/// What an entry takes: the next one begins at a multiple of 8.
fn extent(len: usize) -> usize {
    (HEADER + len).next_multiple_of(8)
}

/// The entries in a bundle's bytes, up to the first that is none.
pub(crate) fn entries(bytes: &[u8], store: u64, bundle: TxnId) -> Vec<Entry> {
    let mut all = Vec::new();
    let mut at = HEAD as usize;
    while let Some(head) = bytes.get(at..).and_then(|rest| rest.first_chunk::<HEADER>()) {
        let Some((txn, kept, len)) = decode(head, store, bundle) else { break };
        let body = at + HEADER..at + HEADER + len;
        if body.end > bytes.len() {
            break;
        }
        all.push(Entry { txn, at: at as u64, kept, body });
        at += extent(len);
    }
    all
}

fn decode(head: &[u8; HEADER], store: u64, bundle: TxnId) -> Option<(TxnId, bool, usize)> {
    let mut d = Decoder::new(head);
    let (magic, state) = (d.u32().ok()?, d.u32().ok()?);
    let of = (d.u64().ok()?, d.u64().ok()?);
    let (txn, len, found) = (d.u64().ok()?, d.u32().ok()?, d.u32().ok()?);
    let valid = magic == MAGIC && of == (store, bundle.0) && found == sum(head);
    (valid && len as usize <= SMALL).then_some((TxnId(txn), state == KEPT, len as usize))
}

fn list(store: u64, txns: &[TxnId]) -> Vec<u8> {
    let mut e = Encoder::new();
    txns.iter().for_each(|txn| e.u64(txn.0));
    let all = e.finish();
    let mut e = Encoder::new();
    e.u32(LIST);
    e.u32(txns.len() as u32);
    e.u32(list_sum(store, &all));
    e.u32(0);
    let mut bytes = e.finish();
    bytes.extend_from_slice(&all);
    bytes
}

fn list_sum(store: u64, all: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&store.to_le_bytes()), all)
}

/// What the head lists; `None` if it was never written.
fn listed(head: &[u8], store: u64) -> Option<Vec<TxnId>> {
    let mut d = Decoder::new(head);
    let (magic, count, sum, _) = (d.u32().ok()?, d.u32().ok()?, d.u32().ok()?, d.u32().ok()?);
    let len = usize::try_from(count).ok().filter(|n| magic == LIST && *n <= MANY)? * 8;
    let all = head.get(LIST_AT..LIST_AT + len)?;
    (list_sum(store, all) == sum).then_some(())?;
    (0..count).map(|_| d.u64().ok().map(TxnId)).collect()
}

/// The bundle that is appended to.
pub(crate) struct Bundles(Mutex<Option<Current>>);

struct Current {
    /// All in it; the first gives it its name.
    txns: Vec<TxnId>,
    first: TxnId,
    file: Handle,
    /// Where the next entry begins.
    end: u64,
    /// The file's length.
    len: u64,
}

/// A bundle that was read.
pub(crate) struct Bundle {
    pub first: TxnId,
    pub bytes: Vec<u8>,
    pub entries: Vec<Entry>,
}

impl Bundles {
    pub fn new() -> Bundles {
        Bundles(Mutex::new(rank::LEAF, None))
    }

    /// Appends a history; false if it is not for a bundle. The lock is held for the write: so no
    /// entry comes behind one that was never written.
    pub fn append(
        &self,
        io: &dyn Io,
        dir: &Handle,
        store: u64,
        txn: TxnId,
        history: &[u8],
    ) -> Result<bool> {
        let len = match u32::try_from(history.len()) {
            Ok(len) if history.len() <= SMALL => len,
            _ => return Ok(false),
        };
        let takes = extent(history.len()) as u64;
        let mut current = self.0.lock();
        let full = |c: &&mut Current| c.end + takes > LONGEST || c.txns.len() == MANY;
        if let Some(full) = current.as_mut().filter(full) {
            // Without it the bundle is read when somebody wants to know.
            if let Err(error) = io.write_at(&full.file, &list(store, &full.txns), 0) {
                tracing::warn!(%error, "the list of a bundle of histories was not written");
            }
            *current = None;
        }
        let current = match &mut *current {
            Some(current) => current,
            none => {
                let file = match io.create_file(dir, &bundle_name(txn), 0o600) {
                    // Something that was never committed had this number.
                    Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(false),
                    other => other?,
                };
                none.insert(Current { txns: Vec::new(), first: txn, file, end: HEAD, len: 0 })
            }
        };
        let end = current.end + takes;
        if end > current.len {
            let len = end.next_multiple_of(STEP);
            io.set_len(&current.file, len)?;
            current.len = len;
        }
        let mut bytes = Vec::with_capacity(takes as usize);
        bytes.extend_from_slice(&header(store, current.first, txn, len));
        bytes.extend_from_slice(history);
        bytes.resize(takes as usize, 0);
        // After an error the next entry takes its place.
        io.write_at(&current.file, &bytes, current.end)?;
        current.end = end;
        current.txns.push(txn);
        Ok(true)
    }

    /// The next history begins another bundle, and this one can go when all in it have gone.
    pub fn close(&self) {
        *self.0.lock() = None;
    }

    /// Entries of a bundle, by where they begin, do not count any more, and it goes if none does.
    pub fn let_go(
        &self,
        io: &dyn Io,
        dir: &Handle,
        store: u64,
        bundle: &Bundle,
        which: &HashSet<u64>,
    ) -> Result<()> {
        let name = bundle_name(bundle.first);
        let left = bundle.entries.iter().any(|e| e.kept && !which.contains(&e.at));
        if !left && !self.is_current(bundle.first) {
            // From here on nothing is appended to it; but something may have been since it was
            // read.
            let now = load(io, dir, store, bundle.first)?;
            if now.is_none_or(|now| now.entries.len() == bundle.entries.len()) {
                return found(io.unlink(dir, &name)).map(drop);
            }
        }
        let Some(file) = found(io.open_to_write(dir, &name))? else { return Ok(()) };
        which.iter().try_for_each(|at| io.write_at(&file, &GONE.to_le_bytes(), at + STATE_AT))
    }

    fn is_current(&self, bundle: TxnId) -> bool {
        self.0.lock().as_ref().is_some_and(|current| current.first == bundle)
    }
}

/// Reads a bundle; `None` if there is none.
pub(crate) fn load(io: &dyn Io, dir: &Handle, store: u64, first: TxnId) -> Result<Option<Bundle>> {
    let Some(file) = found(io.open_file(dir, &bundle_name(first), Open::Read))? else {
        return Ok(None);
    };
    let len = io.stat(&file)?.size.min(LONGEST);
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| Error::other("too long"))?];
    let got = io.read_at(&file, &mut bytes, 0)?;
    bytes.truncate(got);
    let entries = entries(&bytes, store, first);
    Ok(Some(Bundle { first, bytes, entries }))
}

/// The transactions in a bundle; of a full one also such as do not count any more.
pub(crate) fn transactions(
    io: &dyn Io,
    dir: &Handle,
    store: u64,
    first: TxnId,
) -> Result<Vec<TxnId>> {
    let Some(file) = found(io.open_file(dir, &bundle_name(first), Open::Read))? else {
        return Ok(Vec::new());
    };
    let mut head = vec![0; HEAD as usize];
    let got = io.read_at(&file, &mut head, 0)?;
    if let Some(listed) = listed(&head[..got], store) {
        return Ok(listed);
    }
    let bundle = load(io, dir, store, first)?;
    let entries = bundle.iter().flat_map(|b| &b.entries);
    Ok(entries.filter(|e| e.kept).map(|e| e.txn).collect())
}

/// For the fuzz targets: entries whose headers' sums are right, with lengths and bytes that may be
/// anything.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_made_up(mut input: &[u8]) {
    let _ = listed(input, 1);
    let mut bytes = vec![0; HEAD as usize];
    while let Some((len, rest)) = input.split_first_chunk::<2>() {
        let len = u16::from_le_bytes(*len);
        let (body, rest) = rest.split_at(rest.len().min(usize::from(len % 64)));
        bytes.extend_from_slice(&header(1, TxnId(1), TxnId(len.into()), len.into()));
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        input = rest;
    }
    let mut end = HEAD as usize;
    for entry in entries(&bytes, 1, TxnId(1)) {
        assert!(entry.at as usize >= end && entry.body.end <= bytes.len());
        end = entry.body.end;
    }
}

#[cfg(test)]
mod tests;
