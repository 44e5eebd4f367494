//! Files that many programs append to (logs): what a transaction appends is put behind what others
//! have appended meanwhile, as `O_APPEND` would have done, instead of being a conflict.
//!
//! **What grows.** A regular file whose path the transaction's owner named (`View::let_grow`), as
//! long as the transaction has done nothing to its content but write at its end, and has not read
//! what was there before. Its length is then not isolated: neither looking it up nor appending is
//! recorded in the engine, and validation takes another version for the same if it has only grown.
//! The first read of old bytes, or any other change, ends that (`Reach::stop_growing`): from there
//! the file is like any other, and must still be the version that was met.
//!
//! **What "only grown" means**: the same inode with the same rights, not shorter than when it was
//! met, and before the old end the same bytes (up to [`TAIL`] of them) as when the transaction
//! first appended. A file that was replaced, cut, or cut and written anew is a conflict.
//!
//! **The commit.** The write set says what is appended to the file as it was met. Right before the
//! store takes it, with the transaction decided, [`Volume::rebase_appended`] moves that behind the
//! end of now; from there it is a patch like any other, with before-image, journal and recovery.
//! What others append in between is an outsider's change that meets an installation.
//!
//! **Not** in guarded directories, where plain programs are isolated anyway, not under snapshot
//! isolation, and not in views that live on.

use crate::content::PAGE;
use crate::node::{Base, Node};
use crate::volume::Volume;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use systx_base::{Gid, NodeId, Uid};
use systx_store::io::{Handle, Open, Stamp, Stat, Tree};
use systx_store::writeset::{Content, Data, Extent, Ix, Origin, WriteSet};

/// So many bytes before the old end are compared.
pub const TAIL: u64 = PAGE;

/// How often the end of a file is looked for that moves while it is looked at.
const TRIES: usize = 16;

/// Says which files may grow.
pub trait MayGrow: Send + Sync {
    /// Whether there may be any directly in the directory with this path on the host.
    fn any_in(&self, dir: &[u8]) -> bool;
    /// Whether the one with this path on the host is one.
    fn is_one(&self, path: &[u8]) -> bool;
}

/// The files of one view that grow.
#[derive(Default)]
pub(crate) struct Growing {
    /// Which may; without it none.
    pub may_grow: Option<Arc<dyn MayGrow>>,
    pub files: HashMap<NodeId, File>,
    /// What [`MayGrow::any_in`] said of directories.
    pub dirs: HashMap<NodeId, bool>,
}

/// What is remembered of one.
pub(crate) struct File {
    rights: (u32, Uid, Gid),
    /// The bytes before its end when the transaction first appended.
    pub tail: Option<Vec<u8>>,
}

impl File {
    /// Whether this can be the file, with more at its end.
    pub fn has_grown_to(&self, base: &Base, now: &Stat) -> bool {
        let stamp = now.stamp();
        stamp.id() == base.stamp.id()
            && stamp.length() >= base.stamp.length()
            && self.rights == (now.mode, now.uid, now.gid)
    }
}

/// What a write set appends to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The object.
    pub ix: Ix,
    /// Where the file ended when it was met.
    pub from: u64,
    /// What stood before that.
    pub tail: Vec<u8>,
}

/// A file in which something of others now stands before what was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Its path, below the volume's root.
    pub path: Vec<u8>,
    /// Bytes of others.
    pub between: u64,
}

impl Growing {
    pub(crate) fn add(&mut self, node: NodeId, stat: &Stat) {
        let rights = (stat.mode, stat.uid, stat.gid);
        self.files.insert(node, File { rights, tail: None });
    }

    /// The files that were appended to.
    pub(crate) fn appended_to(&self) -> impl Iterator<Item = NodeId> {
        self.files.iter().filter(|(_, file)| file.tail.is_some()).map(|(node, _)| *node)
    }

    /// Whether a file is growing, and another version of it is the same one, only longer.
    pub(crate) fn is_only_longer(&self, id: NodeId, node: Option<&Node>, now: &Stat) -> bool {
        let base = node.and_then(|node| node.base.as_ref());
        self.files.get(&id).zip(base).is_some_and(|(file, base)| file.has_grown_to(base, now))
    }

    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.files.contains_key(&node)
    }

    /// Leaves of the write set's content of a node nothing but what was appended; returns where,
    /// and what stood before that. `None`: it does not grow.
    pub(crate) fn appended(
        &self,
        id: NodeId,
        node: &Node,
        content: &mut Content,
    ) -> Option<(u64, Vec<u8>)> {
        let tail = self.files.get(&id)?.tail.clone()?;
        let from = node.base.as_ref()?.stamp.length();
        if let Content::Slot(slot) = content {
            // Nothing was there before: all of it is in the slot.
            let data = Data::Slot { slot: *slot, at: 0, len: node.attr.size };
            *content =
                Content::Whole { len: node.attr.size, extents: vec![Extent { offset: 0, data }] };
        }
        let (len, extents) = match content {
            Content::Patch { len, keep, extents } if *keep == from => (*len, extents),
            Content::Whole { len, extents } if from == 0 => (*len, extents),
            _ => return None,
        };
        let extents = std::mem::take(extents).into_iter().filter_map(|e| cut(e, from)).collect();
        *content = Content::Patch { len, keep: from, extents };
        Some((from, tail))
    }
}

/// What of an extent lies at or behind an offset.
fn cut(extent: Extent, from: u64) -> Option<Extent> {
    let skip = from.saturating_sub(extent.offset);
    let left = extent.data.len().checked_sub(skip).filter(|left| *left > 0)?;
    let data = match extent.data {
        Data::Inline(mut bytes) => {
            // Within the bytes: something is left of them.
            bytes.drain(..usize::try_from(skip).ok()?);
            Data::Inline(bytes)
        }
        Data::Slot { slot, at, .. } => Data::Slot { slot, at: at + skip, len: left },
        Data::Hole { .. } => Data::Hole { len: left },
    };
    Some(Extent { offset: extent.offset + skip, data })
}

/// The bytes of a file before an offset.
pub(crate) fn tail_of(io: &dyn Tree, file: &Handle, end: u64) -> io::Result<Vec<u8>> {
    let start = end.saturating_sub(TAIL);
    let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
    let got = io.read_at(file, &mut bytes, start)?;
    bytes.truncate(got);
    Ok(bytes)
}

impl Volume {
    /// Moves what a write set appends behind the ends that the files have now. To be called when
    /// the transaction is decided: until it is installed no other one changes these files.
    ///
    /// # Errors
    /// The paths, below the volume's root, of files that have not only grown.
    pub fn rebase_appended(
        &self,
        writes: &mut WriteSet,
        appended: &[Appended],
        is_guarded: bool,
    ) -> Result<Vec<Merged>, Vec<Vec<u8>>> {
        let (mut merged, mut changed) = (Vec::new(), Vec::new());
        for file in appended {
            match self.end_of(writes, file, is_guarded) {
                Some(now) => {
                    if let Some(between) = shift(writes, file, now) {
                        let path = origin_path(writes, file.ix);
                        merged.push(Merged { path, between });
                    }
                }
                None => changed.push(origin_path(writes, file.ix)),
            }
        }
        if changed.is_empty() { Ok(merged) } else { Err(changed) }
    }

    /// The version of the file now, if it has only grown.
    fn end_of(&self, writes: &WriteSet, file: &Appended, is_guarded: bool) -> Option<Stamp> {
        let Origin::Host { parent, name, stamp, .. } =
            &writes.objects.get(file.ix.0 as usize)?.origin
        else {
            return None;
        };
        let dir = self.dir_of(writes, *parent)?;
        for _ in 0..TRIES {
            let handle = self.tree.open_file(&dir, name, Open::Read).ok()?;
            let before = self.tree.stat(&handle).ok()?;
            let tail = tail_of(&*self.tree, &handle, file.from).ok()?;
            let now = self.tree.stat_at(&dir, name).ok()?.stamp();
            if now.id() != stamp.id() || now.length() < file.from || tail != file.tail {
                return None;
            }
            // In a guarded directory the pages behind the end that was met are not held.
            let same = now == *stamp && now.length() == file.from;
            if !same && is_guarded {
                return None;
            }
            if before.stamp() == now {
                return Some(now);
            }
        }
        None
    }

    fn dir_of(&self, writes: &WriteSet, ix: Ix) -> Option<Handle> {
        let mut names = Vec::new();
        let mut at = ix;
        while let Origin::Host { parent, name, .. } = &writes.objects.get(at.0 as usize)?.origin {
            names.push(name);
            at = *parent;
        }
        let mut dir = self.tree.root();
        for name in names.into_iter().rev() {
            dir = self.tree.open_dir(&dir, name).ok()?;
        }
        Some(dir)
    }
}

/// Below the volume's root.
fn origin_path(writes: &WriteSet, ix: Ix) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    let mut at = Some(ix);
    while let Some(object) = at.and_then(|ix| writes.objects.get(ix.0 as usize)) {
        let Origin::Host { parent, name, .. } = &object.origin else { break };
        names.push(name);
        at = Some(*parent);
    }
    names.reverse();
    names.join(&b'/')
}

/// Bytes of others that stand before what is appended now, if there are any.
fn shift(writes: &mut WriteSet, file: &Appended, now: Stamp) -> Option<u64> {
    let object = writes.objects.get_mut(file.ix.0 as usize)?;
    if let Origin::Host { stamp, .. } = &mut object.origin {
        *stamp = now;
    }
    let by = now.length() - file.from;
    if by == 0 {
        return None;
    }
    let Content::Patch { len, keep, extents } = &mut object.content else { return None };
    *len += by;
    *keep += by;
    for extent in extents {
        extent.offset += by;
    }
    // Who looks for the last change finds the last one.
    object.attrs.mtime = object.attrs.mtime.map(|mtime| mtime.max(now.modified()));
    Some(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_an_extent() {
        let inline = |offset, bytes: &[u8]| Extent { offset, data: Data::Inline(bytes.to_vec()) };
        assert_eq!(cut(inline(0, b"oldnew"), 3), Some(inline(3, b"new")));
        assert_eq!(cut(inline(3, b"new"), 3), Some(inline(3, b"new")));
        assert_eq!(cut(inline(0, b"old"), 3), None);
        let hole = |offset, len| Extent { offset, data: Data::Hole { len } };
        assert_eq!(cut(hole(4096, 4096), 5000), Some(hole(5000, 3192)));
    }
}
