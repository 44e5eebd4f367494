//! Listings.  A name keeps its place among the others as long as the kernel knows the directory.

use crate::{VolumeView, id_of, ino_of, stored_attr};
use rustix::io::Errno;
use systx_base::{Kind, NodeId};
use systx_lfs::format::Ino;
use systx_lfs::{Error, Link};
use systx_store::io::HostId;
use systx_txn::ObjectRef;
use systx_vfs::api::{Attr, DirEntry, Entry, Reply, Requests, Sink};

/// What is looked up at once.  The kernel takes some 30 names with attributes in a request.
const CHUNK: usize = 32;

/// A name, where the listing goes on after it, and what it is.
type Item = (Vec<u8>, u64, Option<(Link, HostId)>);

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
            let attrs = if attributes { self.attrs_of(&items)? } else { Vec::new() };
            let mut attrs = attrs.into_iter();
            for (name, next, seen) in items {
                let attr = attrs.next().flatten();
                // Gone since.
                let Some((link, _)) = seen else { continue };
                let is_dot = name == b"." || name == b"..";
                let attr = attr.filter(|_| !is_dot);
                let entry = attr.and_then(|attr| self.listed(link.ino, attr));
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
        self.enter(ino).ok()?;
        Some(Entry { node: NodeId(ino), generation: 0, attr: self.shown(attr) })
    }

    /// The next names of a directory.
    fn chunk(&self, node: NodeId, from: u64) -> Reply<Vec<Item>> {
        let (dir, oid) = (ino_of(node), self.oid(node)?);
        let kept = if from == 0 { None } else { self.table.names(dir, from, CHUNK) };
        let names = match kept {
            Some(names) => names,
            // From its beginning on a listing shows what commits have changed meanwhile.
            None => {
                let all = self.reading(&[ObjectRef::List(oid)], || {
                    self.look(|ops| ops.list(dir, None, usize::MAX))
                })?;
                let seen = all.into_iter().map(|(name, _)| name);
                let seen = seen.filter(|name| !self.hides(node, name));
                self.table.list(dir, seen.map(Vec::into_boxed_slice).collect());
                self.table.names(dir, from, CHUNK).ok_or(Errno::STALE)?
            }
        };
        let entry = |(name, _): &'_ (Vec<u8>, u64)| name != b"." && name != b"..";
        let named = names.iter().filter(|item| entry(item));
        let mut reads: Vec<_> =
            named.map(|(name, _)| ObjectRef::Entry { dir: oid, name }).collect();
        reads.push(ObjectRef::List(oid));
        self.reading(&reads, || {
            self.look(|ops| {
                let mut items = Vec::with_capacity(names.len());
                for (name, next) in &names {
                    let link = match &**name {
                        b"." => Ok(Link { ino: dir, kind: Kind::Dir }),
                        b".." => ops.parent(dir).map(|ino| Link { ino, kind: Kind::Dir }),
                        name => ops.lookup(dir, name),
                    };
                    let seen = match link {
                        Ok(link) => Some((link, id_of(ops, link.ino)?)),
                        Err(Error::NotFound) => None,
                        Err(error) => return Err(error),
                    };
                    items.push((name.clone(), *next, seen));
                }
                Ok(items)
            })
        })
    }

    /// The attributes of what was listed, one for each name; none where what the kernel has of
    /// them is good.
    fn attrs_of(&self, items: &[Item]) -> Reply<Vec<Option<Attr>>> {
        let asked = |(_, _, seen): &Item| seen.filter(|(link, _)| !self.table.has_told(link.ino));
        let asked: Vec<_> = items.iter().map(asked).collect();
        let ids = asked.iter().flatten().map(|(_, id)| id.oid());
        let reads: Vec<_> =
            ids.flat_map(|oid| [ObjectRef::Attr(oid), ObjectRef::Size(oid)]).collect();
        self.reading(&reads, || {
            self.look(|ops| {
                let attr = |seen: &Option<(Link, HostId)>| {
                    let Some((link, _)) = seen else { return Ok(None) };
                    match stored_attr(ops, link.ino) {
                        Ok(attr) => Ok(Some(attr)),
                        Err(Error::NotFound) => Ok(None),
                        Err(error) => Err(error),
                    }
                };
                asked.iter().map(attr).collect()
            })
        })
    }
}
