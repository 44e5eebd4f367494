//! From the write set of a transaction, and what it has read, to what a certifier is offered: in
//! paths below its directory.

use crate::protocol::certify::{Content, Key, Offer, Run, Set, Source};
use crate::protocol::{Failure, FailureKind, HostPath};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use systx_base::TxnId;
use systx_store::writeset::{
    self, Attrs, Bind, Data, Extent, Ix, NewKind, Object, Origin, Slot, WriteSet,
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
    let make = Make::new(dir, frozen);
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
    /// Names that are not what they were.
    changed: HashSet<(Ix, &'a [u8])>,
    /// The name that an object gets, one of them.
    named: HashMap<Ix, &'a Bind>,
    /// Objects that lose a name and get none: directories that go, with what is in them.
    removed: HashSet<Ix>,
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

impl<'a> Make<'a> {
    fn new(dir: &Path, frozen: &'a Frozen) -> Make<'a> {
        let (dir, writes) = (HostPath::from(dir).0, &frozen.writes);
        let changed = writes.binds.iter().map(|bind| (bind.dir, &bind.name[..])).collect();
        let named = writes.binds.iter().filter_map(|bind| Some((bind.target?, bind)));
        let named: HashMap<Ix, &Bind> = named.collect();
        let gone = writes.binds.iter().filter_map(|bind| bind.displaces);
        let removed = gone.filter(|ix| !named.contains_key(ix)).collect();
        Make { dir, frozen, writes, changed, named, removed }
    }

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

    /// Whether what was met in this directory goes with one that is removed.
    fn goes(&self, mut dir: Ix) -> bool {
        loop {
            match self.object(dir).map(|o| &o.origin) {
                _ if self.removed.contains(&dir) => return true,
                Some(Origin::Host { parent, .. }) => dir = *parent,
                _ => return false,
            }
        }
    }

    /// The names from which objects go, and which object each was.
    fn taken(&self, host: &[Vec<u8>]) -> Result<(Vec<Vec<u8>>, Vec<Ix>), Failure> {
        let mut gone: Vec<(Vec<u8>, Ix)> = Vec::new();
        for bind in &self.writes.binds {
            let path = || join(&host[bind.dir.0 as usize], &bind.name);
            gone.extend(bind.displaces.map(|ix| (path(), ix)));
        }
        // What has left a directory that is removed, with all other names of that.
        let known: HashSet<Ix> = gone.iter().map(|(_, ix)| *ix).collect();
        for ix in self.named.keys().copied().filter(|ix| !known.contains(ix)) {
            let Some(Origin::Host { parent, .. }) = self.object(ix).map(|o| &o.origin) else {
                continue;
            };
            if self.goes(*parent) {
                gone.push((host[ix.0 as usize].clone(), ix));
            }
        }
        let depth = |path: &[u8]| path.iter().filter(|b| **b == b'/').count();
        gone.sort_by_cached_key(|(path, _)| (std::cmp::Reverse(depth(path)), path.clone()));
        let order = gone.iter().map(|(_, ix)| *ix).collect();
        let taken = gone.iter().map(|(path, _)| self.inside(path)).collect::<Result<_, _>>()?;
        Ok((taken, order))
    }

    /// A name that an existing object had, and keeps: where that is now.
    fn kept(&self, ix: Ix) -> Option<Vec<u8>> {
        let Origin::Host { parent, name, .. } = &self.object(ix)?.origin else { return None };
        let met = join(&self.frozen.paths[parent.0 as usize], name);
        if !self.changed.contains(&(*parent, name)) && !self.goes(*parent) {
            return Some(met);
        }
        // If it has another one that is known, the view calls it so.
        let now = &self.frozen.paths[ix.0 as usize];
        (*now != met).then(|| now.clone())
    }

    /// Where a name is, when all are placed.
    fn name(&self, bind: &Bind) -> Vec<u8> {
        join(&self.frozen.paths[bind.dir.0 as usize], &bind.name)
    }

    /// The names that are given, those of directories before what is in them, and second ones last.
    fn placed(&self, taken: &[Ix]) -> Result<Vec<(Vec<u8>, Source)>, Failure> {
        let mut at: HashMap<Ix, Vec<u32>> = HashMap::new();
        taken.iter().zip(0..).for_each(|(ix, n)| at.entry(*ix).or_default().push(n));
        let binds = self.writes.binds.iter();
        let named = binds.filter_map(|bind| Some((self.name(bind), bind.target?)));
        let mut named: Vec<(Vec<u8>, Ix)> = named.collect();
        named.sort_by(|(a, _), (b, _)| a.split(|c| *c == b'/').cmp(b.split(|c| *c == b'/')));
        let mut first: HashMap<Ix, Vec<u8>> = HashMap::new();
        let (mut placed, mut links) = (Vec::new(), Vec::new());
        for (path, target) in named {
            let inside = self.inside(&path)?;
            let source = match (at.get_mut(&target).and_then(Vec::pop), first.get(&target)) {
                (Some(n), _) => Source::Taken(n),
                (None, Some(first)) => Source::Link(first.clone()),
                (None, None) => self.source(target, &path)?,
            };
            match source {
                Source::Link(_) => links.push((inside, source)),
                _ => {
                    first.insert(target, inside.clone());
                    placed.push((inside, source));
                }
            }
        }
        placed.append(&mut links);
        Ok(placed)
    }

    /// What gets the name `path`, and has left none.
    fn source(&self, ix: Ix, path: &[u8]) -> Result<Source, Failure> {
        Ok(match self.object(ix).map(|o| &o.origin) {
            Some(Origin::New(NewKind::File)) => Source::File,
            Some(Origin::New(NewKind::Dir)) => Source::Dir,
            Some(Origin::New(NewKind::Symlink(to))) => Source::Symlink(to.clone()),
            Some(Origin::New(NewKind::Special { kind, rdev })) => {
                Source::Special { kind: *kind, rdev: *rdev }
            }
            _ => {
                let kept = self.kept(ix);
                let kept = kept.ok_or_else(|| no(path, "is another name of what has lost its own"));
                Source::Link(self.inside(&kept?)?)
            }
        })
    }

    /// A path of an object when all names are placed.
    fn path(&self, ix: Ix) -> Result<Vec<u8>, Failure> {
        let now = &self.frozen.paths[ix.0 as usize];
        if matches!(self.object(ix).map(|o| &o.origin), Some(Origin::Root)) {
            return self.inside(now);
        }
        let path = self.named.get(&ix).map(|bind| self.name(bind));
        let path = path.or_else(|| self.kept(ix));
        let lost = "has changed, and lost the only name by which it is known";
        self.inside(&path.ok_or_else(|| no(now, lost))?)
    }

    /// What objects are, beside their names.
    fn sets(&self) -> Result<Vec<Set>, Failure> {
        if let Some(first) = self.frozen.appended.first() {
            let path = &self.frozen.paths[first.ix.0 as usize];
            return Err(no(path, "is merged with what others append"));
        }
        let mut room = CONTENT_MAX;
        let mut sets = Vec::new();
        for (ix, object) in (0..).map(Ix).zip(&self.writes.objects) {
            let path = &self.frozen.paths[ix.0 as usize];
            let attrs = &object.attrs;
            let same = *attrs == Attrs::default() && object.xattrs.is_empty();
            if same && object.content == writeset::Content::Keep {
                continue;
            }
            sets.push(Set {
                path: self.path(ix)?,
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
