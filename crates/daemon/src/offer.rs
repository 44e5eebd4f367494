//! From the write set of a transaction, and what it has read, to what a certifier is offered: in
//! paths below its directory.

use crate::protocol::certify::{Content, Key, Offer, Run, Set, Source};
use crate::protocol::{Failure, FailureKind, HostPath};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use systx_base::TxnId;
use systx_store::writeset::{
    self, Attrs, Data, Extent, Ix, NewKind, Object, Origin, Slot, WriteSet,
};
use systx_vfs::freeze::Frozen;
use systx_vfs::view::View;

/// Most bytes of content that are offered.
const CONTENT_MAX: u64 = 16 << 20;

/// What a transaction offers.
///
/// # Errors
/// It cannot be offered: it changes something elsewhere, or what has no place in an offer.
pub fn of(txn: TxnId, dir: &Path, view: &View, frozen: &Frozen) -> Result<Offer, Failure> {
    let make = Make { dir: HostPath::from(dir).0, frozen, writes: &frozen.writes };
    let host = make.host_paths()?;
    let (taken, order) = make.taken(&host)?;
    let placed = make.placed(&order)?;
    let met = view.met().into_iter();
    let keys = met.filter_map(|(path, names)| {
        let path = below(&make.dir, &path)?;
        Some(if names { Key::Names(path) } else { Key::At(path) })
    });
    let mut reads: Vec<Key> = keys.collect();
    reads.sort();
    reads.dedup();
    Ok(Offer { txn: txn.0, reads, taken, placed, set: make.sets()? })
}

struct Make<'a> {
    dir: Vec<u8>,
    frozen: &'a Frozen,
    writes: &'a WriteSet,
}

/// A path below a directory, without the slash; empty for the directory itself.
fn below(dir: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    match path.strip_prefix(dir)? {
        [] => Some(Vec::new()),
        [b'/', rest @ ..] => Some(rest.to_vec()),
        _ => None,
    }
}

fn no(path: &[u8], what: &str) -> Failure {
    let path = HostPath(path.to_vec());
    let text = format!("{path} {what}, which cannot be offered to a certifier");
    Failure::new(FailureKind::Invalid, text).path(path)
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

impl Make<'_> {
    /// As a path below the directory.
    fn inside(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        let inside = below(&self.dir, path).filter(|inside| !inside.is_empty());
        inside.ok_or_else(|| no(path, "is changed, and is not below the directory"))
    }

    fn object(&self, ix: Ix) -> Option<&Object> {
        self.writes.objects.get(ix.0 as usize)
    }

    /// Where each existing object was; parents come first.
    fn host_paths(&self) -> Result<Vec<Vec<u8>>, Failure> {
        let mut paths: Vec<Vec<u8>> = Vec::with_capacity(self.writes.objects.len());
        for (object, now) in self.writes.objects.iter().zip(&self.frozen.paths) {
            let path = match &object.origin {
                // It is on the way to all others, and has no name.
                Origin::Root => now.clone(),
                Origin::Host { parent, name, .. } => join(&paths[parent.0 as usize], name),
                Origin::New(_) => Vec::new(),
                Origin::Grave { .. } => return Err(no(now, "comes back")),
            };
            paths.push(path);
        }
        Ok(paths)
    }

    /// The paths from which objects go, and which object each was.
    fn taken(&self, host: &[Vec<u8>]) -> Result<(Vec<Vec<u8>>, Vec<Ix>), Failure> {
        let binds = &self.writes.binds;
        let named: HashSet<Ix> = binds.iter().filter_map(|bind| bind.target).collect();
        let mut gone: HashSet<Ix> = binds.iter().filter_map(|bind| bind.displaces).collect();
        let removed: HashSet<Ix> = gone.difference(&named).copied().collect();
        for ix in &named {
            let Some(Object { origin: Origin::Host { .. }, .. }) = self.object(*ix) else {
                continue;
            };
            if gone.contains(ix) {
                continue;
            }
            // It has left a directory that is removed, with all other names of that.
            let mut above = *ix;
            while let Some(Origin::Host { parent, .. }) = self.object(above).map(|o| &o.origin)
                && !removed.contains(&above)
            {
                above = *parent;
            }
            if !removed.contains(&above) {
                return Err(no(&host[ix.0 as usize], "has a second name"));
            }
            gone.insert(*ix);
        }
        let mut order: Vec<Ix> = gone.into_iter().collect();
        let depth = |ix: &Ix| host[ix.0 as usize].iter().filter(|b| **b == b'/').count();
        order.sort_by_key(|ix| (std::cmp::Reverse(depth(ix)), host[ix.0 as usize].clone()));
        let inside = |ix: &Ix| self.inside(&host[ix.0 as usize]);
        let taken = order.iter().map(inside).collect::<Result<_, _>>()?;
        Ok((taken, order))
    }

    /// The names that are given, those of directories before what is in them.
    fn placed(&self, taken: &[Ix]) -> Result<Vec<(Vec<u8>, Source)>, Failure> {
        let at: HashMap<Ix, u32> = taken.iter().copied().zip(0..).collect();
        let mut seen = HashSet::new();
        let mut placed = Vec::new();
        for bind in &self.writes.binds {
            let Some(target) = bind.target else { continue };
            let path = join(&self.frozen.paths[bind.dir.0 as usize], &bind.name);
            if !seen.insert(target) {
                return Err(no(&path, "is a second name"));
            }
            let source = match (at.get(&target), self.object(target).map(|o| &o.origin)) {
                (Some(n), _) => Source::Taken(*n),
                (None, Some(Origin::New(NewKind::File))) => Source::File,
                (None, Some(Origin::New(NewKind::Dir))) => Source::Dir,
                (None, Some(Origin::New(NewKind::Symlink(to)))) => Source::Symlink(to.clone()),
                _ => return Err(no(&path, "is a special file")),
            };
            placed.push((self.inside(&path)?, source));
        }
        placed.sort_by(|(a, _), (b, _)| a.split(|c| *c == b'/').cmp(b.split(|c| *c == b'/')));
        Ok(placed)
    }

    /// What objects are, beside their names.
    fn sets(&self) -> Result<Vec<Set>, Failure> {
        if let Some(first) = self.frozen.appended.first() {
            let path = &self.frozen.paths[first.ix.0 as usize];
            return Err(no(path, "is merged with what others append"));
        }
        let mut room = CONTENT_MAX;
        let mut sets = Vec::new();
        for (object, path) in self.writes.objects.iter().zip(&self.frozen.paths) {
            let attrs = &object.attrs;
            let same = *attrs == Attrs::default() && object.xattrs.is_empty();
            if same && object.content == writeset::Content::Keep {
                continue;
            }
            sets.push(Set {
                path: self.inside(path)?,
                mode: attrs.mode,
                owner: attrs.owner,
                mtime: attrs.mtime,
                xattrs: object.xattrs.clone(),
                content: self.content(path, &object.content, &mut room)?,
            });
        }
        sets.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(sets)
    }

    fn content(
        &self,
        path: &[u8],
        content: &writeset::Content,
        room: &mut u64,
    ) -> Result<Option<Content>, Failure> {
        let (len, keep, extents) = match content {
            writeset::Content::Keep => return Ok(None),
            writeset::Content::Patch { len, keep, extents } => (*len, *keep, extents.clone()),
            writeset::Content::Whole { len, extents } => (*len, 0, extents.clone()),
            writeset::Content::Slot(slot) => {
                let len = self.length(path, *slot, *room)?;
                let data = Data::Slot { slot: *slot, at: 0, len };
                (len, 0, vec![Extent { offset: 0, data }])
            }
        };
        let mut runs = Vec::with_capacity(extents.len());
        for Extent { offset, data } in extents {
            let left = room.checked_sub(data.len());
            *room = left.ok_or_else(|| no(path, "has more content than 16 MiB"))?;
            let bytes = match data {
                Data::Inline(bytes) => bytes,
                // Below `keep` the zeros have to be said.
                Data::Hole { len } => vec![0; usize::try_from(len).unwrap_or(usize::MAX)],
                Data::Slot { slot, at, len } => self.read(path, slot, at, len)?,
            };
            runs.push(Run { offset, bytes });
        }
        Ok(Some(Content { len, keep, runs }))
    }

    fn slot(&self, path: &[u8], id: writeset::SlotId) -> Result<&Slot, Failure> {
        let found = self.frozen.slots.iter().find(|slot| slot.id() == id);
        found.ok_or_else(|| no(path, "has content that is not there"))
    }

    /// How long a slot is, which says so only by its end.
    fn length(&self, path: &[u8], id: writeset::SlotId, room: u64) -> Result<u64, Failure> {
        let slot = self.slot(path, id)?;
        let (mut len, mut some) = (0, vec![0; 1 << 16]);
        while len <= room {
            match slot.read_at(&mut some, len).map_err(|_| no(path, "cannot be read"))? {
                0 => break,
                n => len += n as u64,
            }
        }
        Ok(len)
    }

    fn read(
        &self,
        path: &[u8],
        id: writeset::SlotId,
        at: u64,
        len: u64,
    ) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = self.slot(path, id)?.read_at(&mut bytes, at);
        read.map_err(|_| no(path, "cannot be read"))?;
        Ok(bytes)
    }
}
