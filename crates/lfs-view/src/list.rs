//! Listings.  A name keeps its place among the others as long as the kernel knows the directory.

use crate::{VolumeView, ino_of, stored_attr};
use rustix::io::Errno;
use systx_base::{Kind, NodeId};
use systx_lfs::format::Ino;
use systx_lfs::{Error, Link};
use systx_vfs::api::{Attr, DirEntry, Entry, Reply, Requests, Sink};

/// What is looked up at once.  The kernel takes some 30 names with attributes in a request.
const CHUNK: usize = 32;

/// A name, where the listing goes on after it, and what it is.
type Item = (Vec<u8>, u64, Option<(Link, Attr)>);

impl VolumeView {
    pub(crate) fn list_dir(
        &self,
        node: NodeId,
        from: u64,
        attributes: bool,
        sink: &mut Sink<'_>,
    ) -> Reply<()> {
        let mut at = from;
        loop {
            let items = self.chunk(node, at)?;
            let Some((_, last, _)) = items.last() else { return Ok(()) };
            at = *last;
            for (name, next, seen) in items {
                // Gone since.
                let Some((link, attr)) = seen else { continue };
                let is_dot = name == b"." || name == b"..";
                let entry = if attributes && !is_dot { self.listed(link.ino, attr) } else { None };
                let taken =
                    sink(DirEntry { name: &name, ino: link.ino, kind: link.kind, next, entry });
                if !taken {
                    if let Some(entry) = entry {
                        self.forget(entry.node, 1);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Hands out what was listed; `None` if it is gone since.
    fn listed(&self, ino: Ino, attr: Attr) -> Option<Entry> {
        self.table.enter(ino, || self.base.hold(ino)).ok()?;
        Some(Entry { node: NodeId(ino), generation: 0, attr: self.shown(attr) })
    }

    /// The next names of a directory.
    fn chunk(&self, node: NodeId, from: u64) -> Reply<Vec<Item>> {
        let dir = ino_of(node);
        let names = match self.table.names(dir, from, CHUNK) {
            Some(names) => names,
            None => {
                let all = self.look(|ops| ops.list(dir, None, usize::MAX))?;
                let seen = all.into_iter().map(|(name, _)| name);
                let seen = seen.filter(|name| !self.hides(node, name));
                self.table.list(dir, seen.map(Vec::into_boxed_slice).collect());
                self.table.names(dir, from, CHUNK).ok_or(Errno::STALE)?
            }
        };
        self.look(|ops| {
            let mut items = Vec::with_capacity(names.len());
            for (name, next) in names {
                let link = match &*name {
                    b"." => Ok(Link { ino: dir, kind: Kind::Dir }),
                    b".." => ops.parent(dir).map(|ino| Link { ino, kind: Kind::Dir }),
                    name => ops.lookup(dir, name),
                };
                let seen = match link {
                    Ok(link) => Some((link, stored_attr(ops, link.ino)?)),
                    Err(Error::NotFound) => None,
                    Err(error) => return Err(error),
                };
                items.push((name, next, seen));
            }
            Ok(items)
        })
    }
}
