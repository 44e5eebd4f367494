//! What a commit needs before its record can be written: proof that what it changes is still what
//! it saw, before-images for undo, and the decision how rewritten files are replaced.
//!
//! Before-images are read from the tree, and the stamps are looked at again afterwards: an outsider
//! who wrote in between makes the commit fail while nothing has happened yet.  Small ones go into
//! the record itself, larger ones into a file in the graveyard that is synced with the slots.

use crate::content::copy_data_in;
use crate::env::Env;
use crate::error::shown;
use crate::history::{Before, OldContent, all_attrs};
use crate::io::{Handle, Open, Openers, Stat};
use crate::layout::{before_name, found};
use crate::origins::{Origins, is_gone};
use crate::space::overwritten;
use crate::writeset::index::Index;
use crate::writeset::{Attrs, Content, Data, Extent, Ix, Origin, WriteSet};
use std::io::{Error, ErrorKind, Result};
use systx_base::progress::{self, Phase};
use systx_base::{Kind, TxnId};

/// What was found out.
pub(crate) struct Prepared {
    pub befores: Vec<Before>,
    /// Paths of objects that are no longer what the transaction saw.
    pub changed: Vec<Vec<u8>>,
    /// Before-files in the graveyard that must be durable before the record.
    pub files: Vec<Handle>,
}

/// Nothing is committed: the before-files that were made for it go.
pub(crate) fn drop_files(env: Env<'_>, txn: TxnId, befores: &[Before]) {
    let in_file = |b: &&Before| matches!(b.content, OldContent::InPlace { file: true, .. });
    befores.iter().filter(in_file).for_each(|before| drop_file(env, txn, before.ix));
}

fn drop_file(env: Env<'_>, txn: TxnId, ix: Ix) {
    if let Err(error) = found(env.io.unlink(&env.layout.grave, &before_name(txn, ix.0))) {
        tracing::warn!(%error, "a before-file of what was not committed stays until the next gc");
    }
}

struct Prepare<'a> {
    env: Env<'a>,
    txn: TxnId,
    index: Index<'a>,
    origins: Origins<'a>,
    /// Owner of the store: who new inodes belong to at first.
    owner: (u32, u32),
    /// Bytes of before-images that still fit into the record.
    room: u64,
    out: Prepared,
}

/// Reads before-images; at most `room` bytes of them into memory.
pub(crate) fn prepare(env: Env<'_>, txn: TxnId, set: &WriteSet, room: u64) -> Result<Prepared> {
    let state = env.io.stat(&env.layout.state)?;
    let mut this = Prepare {
        env,
        txn,
        index: Index::new(set),
        origins: Origins::new(env, set),
        owner: (state.uid, state.gid),
        room,
        out: Prepared { befores: Vec::new(), changed: Vec::new(), files: Vec::new() },
    };
    progress::phase(Phase::Saving, || set.objects.len() as u64);
    for (i, object) in set.objects.iter().enumerate() {
        progress::step();
        let ix = Ix(i as u32);
        let removed = this.index.is_removed(ix) && object.kind() == Kind::File;
        if !object.is_new()
            && (object.is_changed() || removed)
            && let Err(error) = this.object(ix)
        {
            drop_files(env, txn, &this.out.befores);
            return Err(named(error, this.index.origin_path(ix)));
        }
    }
    if !this.out.changed.is_empty() {
        drop_files(env, txn, &this.out.befores);
    }
    Ok(this.out)
}

/// An error that is about one file says which.
fn named(error: Error, path: Option<Vec<u8>>) -> Error {
    match path {
        Some(path) if error.kind() == ErrorKind::PermissionDenied => {
            let text = format!("what undo needs of {} cannot be read: {error}", shown(&path));
            Error::new(error.kind(), text)
        }
        _ => error,
    }
}

impl<'a> Prepare<'a> {
    fn changed(&mut self, ix: Ix) {
        self.out.changed.push(self.index.origin_path(ix).unwrap_or_default());
    }

    fn object(&mut self, ix: Ix) -> Result<()> {
        let set = self.index.set;
        let object = set.object(ix);
        let stat = match self.origins.place(ix)? {
            None => None,
            Some((dir, name)) => match self.env.io.stat_at(&dir, name) {
                Ok(stat) => Some((dir, name, stat)),
                Err(e) if is_gone(&e) => None,
                Err(e) => return Err(e),
            },
        };
        let Some((dir, name, stat)) = stat.filter(|(_, _, s)| is_version(&object.origin, s)) else {
            self.changed(ix);
            return Ok(());
        };
        if !object.is_changed() {
            return Ok(());
        }
        let mut xattrs = Vec::new();
        for (key, _) in &object.xattrs {
            let old = match self.env.io.get_xattr(&dir, name, key) {
                Ok(value) => Some(value),
                Err(e) if e.raw_os_error() == Some(libc::ENODATA) => None,
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => None,
                Err(e) => return Err(e),
            };
            xattrs.push((key.clone(), old));
        }
        let content = match &object.content {
            Content::Keep => OldContent::Keep,
            content => self.content(ix, content, &dir, name, &stat)?,
        };
        let again = self.env.io.stat_at(&dir, name);
        if !again.is_ok_and(|s| s.stamp() == stat.stamp()) {
            self.changed(ix);
        }
        let attrs = restored(&object.attrs, &stat, object.content != Content::Keep);
        self.out.befores.push(Before { ix, attrs, xattrs, content });
        Ok(())
    }

    fn content(
        &mut self,
        ix: Ix,
        content: &Content,
        dir: &Handle,
        name: &[u8],
        stat: &Stat,
    ) -> Result<OldContent> {
        let file = match self.env.io.open_file(dir, name, Open::Read) {
            Err(e) if e.kind() != ErrorKind::PermissionDenied => return Err(e),
            opened => opened,
        };
        let whole = !matches!(content, Content::Patch { .. });
        if whole
            && let Ok(file) = &file
            && self.may_exchange(ix, stat, file)?
        {
            return Ok(OldContent::Exchanged);
        }
        let ranges = match content {
            Content::Patch { len, keep, extents } => overwritten(stat.size, *len, *keep, extents),
            _ => vec![(0, stat.size)],
        };
        let total: u64 = ranges.iter().map(|(from, to)| to - from).sum();
        let in_file = total > self.room;
        let extents = match total {
            // Its user may have given the right to write, and need not be able to read.
            0 => Vec::new(),
            _ if in_file => self.save(ix, &file?, stat.size, &ranges)?,
            _ => {
                self.room -= total;
                self.read(&file?, &ranges)?
            }
        };
        Ok(OldContent::InPlace { len: stat.size, file: in_file, extents, whole })
    }

    /// Whether a new inode may take the old one's place unnoticed.
    fn may_exchange(&self, ix: Ix, stat: &Stat, file: &Handle) -> Result<bool> {
        let (uid, gid) = self.owner;
        let can_own = uid == 0 || (uid, gid) == (stat.uid, stat.gid);
        Ok(stat.nlink == 1
            && can_own
            && matches!(self.index.set.object(ix).origin, Origin::Host { .. })
            && self.index.targets(ix).is_empty()
            && self.env.io.openers(file)? == Openers::None)
    }

    fn read(&self, file: &Handle, ranges: &[(u64, u64)]) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        for (from, to) in ranges {
            let size =
                usize::try_from(to - from).map_err(|_| Error::from_raw_os_error(libc::EFBIG))?;
            let mut bytes = vec![0; size];
            let got = self.env.io.read_at(file, &mut bytes, *from)?;
            bytes.truncate(got);
            extents.push(Extent { offset: *from, data: Data::Inline(bytes) });
        }
        Ok(extents)
    }

    /// Copies the data of ranges to a file in the graveyard, at the same offsets.
    fn save(
        &mut self,
        ix: Ix,
        file: &Handle,
        size: u64,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<Extent>> {
        let io = self.env.io;
        let name = before_name(self.txn, ix.0);
        let copy = crate::layout::ensure_file(io, &self.env.layout.grave, &name)?;
        let fill = || -> Result<()> {
            // An attempt that a crash ended may have left one.
            io.set_len(&copy, 0)?;
            for (from, to) in ranges {
                copy_data_in(io, file, &copy, *from..*to)?;
            }
            io.set_len(&copy, size)
        };
        if let Err(error) = fill() {
            drop_file(self.env, self.txn, ix);
            return Err(error);
        }
        self.out.files.push(copy);
        let hole =
            |(from, to): &(u64, u64)| Extent { offset: *from, data: Data::Hole { len: to - from } };
        Ok(ranges.iter().map(hole).collect())
    }
}

/// Whether an object is still what the transaction saw.  A directory's times move with every name
/// in it, which is nobody's conflict here.
pub(crate) fn is_version(origin: &Origin, stat: &Stat) -> bool {
    let now = stat.stamp();
    match origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } if stat.kind == Kind::Dir => {
            stamp.id == now.id
        }
        Origin::Host { stamp, .. } => *stamp == now,
        Origin::Grave { stamp, .. } => stamp.has_data_of(&now),
        _ => true,
    }
}

/// The old values of what changes; writing content moves the modification time and may clear bits
/// of the mode.
pub fn restored(attrs: &Attrs, stat: &Stat, content: bool) -> Attrs {
    let all = all_attrs(stat);
    Attrs {
        mode: all.mode.filter(|_| content || attrs.mode.is_some() || attrs.owner.is_some()),
        owner: all.owner.filter(|_| attrs.owner.is_some()),
        atime: all.atime.filter(|_| attrs.atime.is_some()),
        mtime: all.mtime.filter(|_| content || attrs.mtime.is_some()),
    }
}
