//! The store's directory: where it is, what is in it, and how its entries are named.
//!
//! ```text
//! lock                     locked for as long as a store is open
//! super.0 super.1          where the journal begins; written in turn
//! applied                  how far installing went; a hint, never synced
//! j/NN                     segments of the journal ring, written once with zeros, then recycled
//! s/SLOT                   staging slots
//! t/TXN.EPOCH.xIX          objects on their way into or out of the tree
//! p/p                      on overlays: never empty, so nothing is renamed onto it
//! g/TXN.IX  g/TXN.IX.b     the graveyard: displaced objects, and overwritten content
//! h/TXN                    history
//! h/bTXN                   histories of small commits, TXN the first of them
//! d/JOINT                  what this store decided for others, until all of them know
//! conflict/TXN/N-NAME      what outsiders did and a commit would have destroyed
//! ```
//! All of it is on the volume's own file system, so that everything enters and leaves the tree by
//! link and rename.

use crate::io::{Handle, HostId, Io, Stat, Tree};
use crate::trust::{self, Owner, Refused};
use std::io::{Error, ErrorKind, Result};
use systx_base::TxnId;

/// Open directories of the store.
pub(crate) struct Layout {
    /// Path of the directory below the volume root.
    pub path: Vec<u8>,
    pub state: Handle,
    pub journal: Handle,
    pub slots: Handle,
    pub temp: Handle,
    pub grave: Handle,
    pub history: Handle,
    pub id: HostId,
}

/// Opens a directory, making it first if it is not there.
pub(crate) fn ensure_dir(io: &dyn Io, at: &Handle, name: &[u8]) -> Result<Handle> {
    match io.open_dir(at, name) {
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        other => return other,
    }
    match io.mkdir(at, name, 0o700) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
        _ => io.open_dir(at, name),
    }
}

/// Opens a file for writing, making it first if it is not there.
pub(crate) fn ensure_file(io: &dyn Io, at: &Handle, name: &[u8]) -> Result<Handle> {
    // Looked up before it is opened for writing: the kernel asks leave to write for a name that it
    // does not know yet, and on a frozen file system that waits.
    if found(io.stat_at(at, name))?.is_some() {
        match io.open_to_write(at, name) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            other => return other,
        }
    }
    match io.create_file(at, name, 0o600) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => io.open_to_write(at, name),
        other => other,
    }
}

/// A directory on the way to the store that is not there.
pub(crate) struct Missing<'a> {
    at: Handle,
    names: Vec<&'a [u8]>,
}

/// Goes to the store's directory as far as it is there; `owner`: only over what nobody else could
/// have put there.
pub(crate) fn walk<'a>(
    io: &dyn Io,
    path: &'a [u8],
    owner: Option<Owner>,
) -> std::result::Result<std::result::Result<Handle, Missing<'a>>, Refused> {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() || parts.iter().any(|part| [&b"."[..], b".."].contains(part)) {
        return Err(Error::from(ErrorKind::InvalidInput).into());
    }
    let mut at = io.root();
    let top = io.stat(&at)?.uid;
    let mut so_far: Vec<u8> = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        if let Some(owner) = owner {
            trust::way(&so_far, &io.stat(&at)?, top, owner)?;
        }
        so_far = if n == 0 { part.to_vec() } else { [&so_far, &b"/"[..], part].concat() };
        let below = match io.open_dir(&at, part) {
            Err(e) if e.kind() == ErrorKind::NotADirectory => {
                return Err(Refused::Unsafe(so_far, "is a link, or no directory".into()));
            }
            other => found(other)?,
        };
        match below {
            Some(below) => at = below,
            None => return Ok(Err(Missing { at, names: parts[n..].to_vec() })),
        }
    }
    if let Some(owner) = owner {
        trust::store(io, path, &at, owner)?;
    }
    Ok(Ok(at))
}

impl Layout {
    /// Opens the store's directory, `path` below the volume root, and makes it if it is missing.
    /// `owner`: whose it has to be, else it is refused and nothing is changed.
    pub fn make(
        io: &dyn Io,
        path: &[u8],
        owner: Option<Owner>,
    ) -> std::result::Result<Handle, Refused> {
        let state = match walk(io, path, owner)? {
            Ok(state) => state,
            Err(Missing { at, names }) => {
                let make = |at, name: &&[u8]| ensure_dir(io, &at, name);
                let state = names.iter().try_fold(at, make)?;
                // Somebody may have been faster.
                if let Some(owner) = owner {
                    trust::store(io, path, &state, owner)?;
                }
                state
            }
        };
        let stat = io.stat(&state)?;
        // Objects in staging are made as if nothing surrounded them.
        let acl = b"system.posix_acl_default";
        if io.get_xattr(&state, b"", acl).is_ok() {
            let _ = io.remove_xattr(&state, b"", acl);
        }
        // Displaced files lie in here with the permissions that they had, below directories that
        // may have kept them private.
        if stat.mode & 0o077 != 0 {
            io.set_mode(&state, b"", 0o700)?;
        }
        Ok(state)
    }

    /// Makes the directories that the store's own will be in, not that one.  Made by the first
    /// commit, they would be a change from outside to a transaction that has found them absent.
    pub fn make_way(
        io: &dyn Io,
        path: &[u8],
        owner: Option<Owner>,
    ) -> std::result::Result<(), Refused> {
        if let Err(Missing { at, names }) = walk(io, path, owner)? {
            let (_store, above) = names.split_last().unwrap_or((&&b""[..], &[]));
            above.iter().try_fold(at, |at, name| ensure_dir(io, &at, name))?;
        }
        Ok(())
    }

    /// Makes what is missing in a store's directory, which is `state`.
    pub fn complete(io: &dyn Io, path: &[u8], state: Handle) -> Result<Layout> {
        let id = io.stat(&state)?.id;
        Ok(Layout {
            path: path.to_vec(),
            journal: ensure_dir(io, &state, b"j")?,
            slots: ensure_dir(io, &state, b"s")?,
            temp: ensure_dir(io, &state, b"t")?,
            grave: ensure_dir(io, &state, b"g")?,
            history: ensure_dir(io, &state, b"h")?,
            id,
            state,
        })
    }

    /// Opens the store's directory if it is there and `owner`'s; makes nothing.
    pub fn look(
        io: &dyn Io,
        path: &[u8],
        owner: Option<Owner>,
    ) -> std::result::Result<Option<Layout>, Refused> {
        let Ok(state) = walk(io, path, owner)? else { return Ok(None) };
        let stat = io.stat(&state)?;
        let open = |name: &[u8]| found(io.open_dir(&state, name));
        let parts = (open(b"j")?, open(b"s")?, open(b"t")?, open(b"g")?, open(b"h")?);
        let (Some(journal), Some(slots), Some(temp), Some(grave), Some(history)) = parts else {
            return Ok(None);
        };
        let (id, path) = (stat.id, path.to_vec());
        Ok(Some(Layout { path, state, journal, slots, temp, grave, history, id }))
    }

    /// Path below the volume root of something in the store's directory.
    pub fn path_of(&self, below: &[u8]) -> Vec<u8> {
        [&self.path[..], b"/", below].concat()
    }
}

/// Name of a history file.
pub fn history_name(txn: TxnId) -> Vec<u8> {
    format!("{:016x}", txn.0).into_bytes()
}

/// The transaction whose history a file of this name is.
pub fn history_of(name: &[u8]) -> Option<TxnId> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.len() == 16)?;
    u64::from_str_radix(text, 16).ok().map(TxnId)
}

/// Name of the bundle of histories that begins with this one.
pub(crate) fn bundle_name(first: TxnId) -> Vec<u8> {
    format!("b{:016x}", first.0).into_bytes()
}

/// The first transaction in a bundle of this name.
pub(crate) fn bundle_of(name: &[u8]) -> Option<TxnId> {
    history_of(name.strip_prefix(b"b")?)
}

/// Name in the graveyard of what `txn` displaced.
pub fn grave_name(txn: TxnId, ix: u32) -> Vec<u8> {
    format!("{:016x}.{ix}", txn.0).into_bytes()
}

/// Name in the graveyard of the content that `txn` overwrote.
pub fn before_name(txn: TxnId, ix: u32) -> Vec<u8> {
    format!("{:016x}.{ix}.b", txn.0).into_bytes()
}

/// The transaction that a name in the graveyard belongs to.
pub fn grave_of(name: &[u8]) -> Option<TxnId> {
    history_of(name.split(|byte| *byte == b'.').next()?)
}

/// Name of a staged object: `role` is `b` for built, `p` for parked, with the object's index; or
/// `l` for a link, with that of the bind.
pub(crate) fn temp_name(txn: TxnId, epoch: u64, role: char, ix: u32) -> Vec<u8> {
    format!("{:016x}.{epoch:x}.{role}{ix}", txn.0).into_bytes()
}

/// The transaction, epoch, role and index in a staged object's name.
pub(crate) fn parse_temp(name: &[u8]) -> Option<(TxnId, u64, char, u32)> {
    let mut parts = std::str::from_utf8(name).ok()?.split('.');
    let txn = u64::from_str_radix(parts.next()?, 16).ok()?;
    let epoch = u64::from_str_radix(parts.next()?, 16).ok()?;
    let last = parts.next()?;
    let role = last.chars().next()?;
    let ix = last.get(1..)?.parse().ok()?;
    parts.next().is_none().then_some((TxnId(txn), epoch, role, ix))
}

/// All names in a directory.
pub(crate) fn names(io: &dyn Tree, dir: &Handle) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    io.list(dir, &mut |item| {
        names.push(item.name.to_vec());
        true
    })?;
    names.sort();
    Ok(names)
}

/// Removes an entry with all that is below it.
pub(crate) fn remove_all(io: &dyn Io, at: &Handle, name: &[u8]) -> Result<()> {
    remove_all_by(io, at, name, &|at, name, _| io.unlink(at, name))
}

/// Removes what has this name in this directory, and these attributes.
pub(crate) type Unlink<'a> = dyn Fn(&Handle, &[u8], &Stat) -> Result<()> + 'a;

/// As [`remove_all`]; `unlink` removes what is not a directory.  Not by recursion, and with few
/// descriptors: trees may be deeper than a stack, and than the process may open files.
pub(crate) fn remove_all_by(
    io: &dyn Io,
    at: &Handle,
    name: &[u8],
    unlink: &Unlink<'_>,
) -> Result<()> {
    let mut way = Way { io, top: at, levels: Vec::new() };
    way.meet(name.to_vec(), unlink)?;
    while let Some(level) = way.levels.last_mut() {
        match level.left.pop() {
            Some(child) => way.meet(child, unlink)?,
            None => way.leave()?,
        }
    }
    Ok(())
}

/// So many directories on the way down are open at once.
const OPEN_MAX: usize = 64;

/// The directories that are being removed, each in the one before.
struct Way<'a> {
    io: &'a dyn Io,
    top: &'a Handle,
    levels: Vec<Level>,
}

/// A directory on the way: its name, what is left in it, and it open, of the last ones.
struct Level {
    name: Vec<u8>,
    left: Vec<Vec<u8>>,
    dir: Option<Handle>,
}

impl Way<'_> {
    /// The directory in which the way ends, open.
    fn end(&mut self) -> Result<Handle> {
        let Some(last) = self.levels.last() else { return Ok(self.top.clone()) };
        if let Some(dir) = &last.dir {
            return Ok(dir.clone());
        }
        let mut dir = self.top.clone();
        let first = self.levels.len().saturating_sub(OPEN_MAX);
        for (i, level) in self.levels.iter_mut().enumerate() {
            dir = self.io.open_dir(&dir, &level.name)?;
            level.dir = (i >= first).then(|| dir.clone());
        }
        Ok(dir)
    }

    /// Removes what has a name where the way ends, or goes on into it.
    fn meet(&mut self, name: Vec<u8>, unlink: &Unlink<'_>) -> Result<()> {
        let (io, at) = (self.io, self.end()?);
        let stat = match io.stat_at(&at, &name) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if stat.kind != systx_base::Kind::Dir {
            return unlink(&at, &name, &stat);
        }
        if stat.mode & 0o700 != 0o700 {
            io.set_mode(&at, &name, 0o700)?;
        }
        let dir = io.open_dir(&at, &name)?;
        let mut left = names(io, &dir)?;
        left.reverse();
        if let Some(far) = self.levels.len().checked_sub(OPEN_MAX) {
            self.levels[far].dir = None;
        }
        self.levels.push(Level { name, left, dir: Some(dir) });
        Ok(())
    }

    /// Goes back from a directory that has become empty, and removes it.
    fn leave(&mut self) -> Result<()> {
        let Some(empty) = self.levels.pop() else { return Ok(()) };
        let at = self.end()?;
        self.io.rmdir(&at, &empty.name)
    }
}

/// Where a file's last byte of data ends; behind it are only zeros.
pub(crate) fn end_of_data(io: &dyn Io, file: &Handle) -> Result<u64> {
    let mut end = 0;
    while let Some((_, to)) = io.next_data(file, end)? {
        end = to;
    }
    Ok(end)
}

/// The first `len` bytes of a file, or all if it is shorter; `None` if it has so little data for
/// that length that a store has not written it.  So a medium takes memory by what is on it, and not
/// by what it says.
pub(crate) fn read_first(io: &dyn Io, file: &Handle, len: u64) -> Result<Option<Vec<u8>>> {
    let len = len.min(io.stat(file)?.size);
    let (mut data, mut at) = (0_u64, 0);
    while data.saturating_mul(SPARSE).saturating_add(SMALL) < len {
        match io.next_data(file, at)? {
            Some((from, to)) if from < len => (data, at) = (data + (to.min(len) - from), to),
            _ => return Ok(None),
        }
    }
    let Ok(size) = usize::try_from(len) else { return Ok(None) };
    let mut bytes = vec![0; size];
    let got = io.read_at(file, &mut bytes, 0)?;
    bytes.truncate(got);
    Ok(Some(bytes))
}

/// What is written with zeros may be kept as a hole (ZFS), and records of files of zeros have many;
/// not so many.
const SPARSE: u64 = 1024;
/// Files up to this length are read whatever they have.
const SMALL: u64 = 1 << 20;

/// The result, or `None` where the error is `ENOENT`.
pub(crate) fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_names_round_trip() {
        let name = temp_name(TxnId(0xabc), 7, 'p', 12);
        assert_eq!(parse_temp(&name), Some((TxnId(0xabc), 7, 'p', 12)));
        for bad in [&b""[..], b"x", b"1.2", b"1.2.", b"1.2.p", b"1.2.p3.4", b"1.2.\xff3"] {
            assert_eq!(parse_temp(bad), None);
        }
    }
}
