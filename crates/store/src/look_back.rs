//! What a committed transaction changed, with both sides, from what undo keeps.
//!
//! The bytes of an old version are nowhere as such. They are what its inode holds now, less what
//! later transactions changed in place, from the latest back: each of those has kept what it
//! overwrote. The inode is in the tree, or in the graveyard of whoever displaced it, also below a
//! directory that was removed as a whole, and the histories say where. What no transaction has left
//! as it is now was changed by somebody outside: of such a version only the attributes that the
//! history has are told.

use crate::graveyard::Graveyard;
use crate::history::{Before, ChangeKind, History, OldContent};
use crate::interface::{self, Past, PastSide};
use crate::io::{Handle, HostId, Open, Stamp, Stat};
use crate::layout::{before_name, found, grave_name, names};
use crate::versions::{Befores, Versions, met};
use crate::writeset::index::{Index, join};
use crate::writeset::{Attrs, Content, Data, Extent, Ix, NewKind, Object, Origin};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::Result;
use std::sync::Arc;
use systx_base::{Kind, TxnId};

/// An inode, and what has to be taken back of it.
#[derive(Clone, Debug)]
struct Seat {
    /// By its path: what changed may be in more directories than the process may have open.
    place: Place,
    now: Stamp,
    /// The latest first.
    patches: Vec<Patch>,
}

/// As whoever asks for its bytes later holds it.
fn seat(seat: Seat) -> interface::Seat {
    Arc::new(seat)
}

/// What a later transaction has overwritten in place.
#[derive(Clone, Debug)]
struct Patch {
    len: u64,
    /// The before-file in the graveyard, if the bytes are there.
    file: Option<Vec<u8>>,
    extents: Vec<Extent>,
}

/// Where something may be: the path from there.
#[derive(Clone, Debug)]
struct Place {
    top: Top,
    path: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Top {
    Root,
    Graveyard,
}

/// The way to the directory that was looked into last: most are close to the one before.
struct Way {
    top: Top,
    /// The names from there, and the last ones of these directories, open.
    levels: Vec<(Vec<u8>, Option<Handle>)>,
}

/// So many directories of a way are open at once.
const OPEN_MAX: usize = 64;

impl Place {
    fn with(&self, name: &[u8]) -> Place {
        Place { top: self.top, path: join(self.path.clone(), name) }
    }
}

impl Way {
    fn new() -> Way {
        Way { top: Top::Root, levels: Vec::new() }
    }

    /// The directory that a place is in, and its name there; `None` if that is gone.
    fn to(&mut self, ground: &Graveyard<'_>, place: &Place) -> Result<Option<(Handle, Vec<u8>)>> {
        let mut parts: Vec<&[u8]> =
            place.path.split(|b| *b == b'/').filter(|p| !p.is_empty()).collect();
        let name = parts.pop().unwrap_or_default().to_vec();
        let known = self.levels.iter().zip(&parts).take_while(|((l, _), part)| l == *part).count();
        self.levels.truncate(if self.top == place.top { known } else { 0 });
        self.top = place.top;
        let open = self.levels.iter().rposition(|(_, dir)| dir.is_some()).map_or(0, |i| i + 1);
        self.levels.truncate(open);
        let mut dir = match (self.levels.last(), self.top) {
            (Some((_, Some(dir))), _) => dir.clone(),
            (_, Top::Root) => ground.tree.root(),
            (_, Top::Graveyard) => ground.dir.clone(),
        };
        for part in parts.drain(open..) {
            let Some(below) = gone(ground.tree.open_dir(&dir, part))? else { return Ok(None) };
            dir = below.clone();
            if let Some(far) = self.levels.len().checked_sub(OPEN_MAX) {
                self.levels[far].1 = None;
            }
            self.levels.push((part.to_vec(), Some(below)));
        }
        Ok(Some((dir, name)))
    }
}

struct Finder<'a> {
    ground: Graveyard<'a>,
    befores: Befores<'a>,
    way: RefCell<Way>,
    /// Paths below the root at which an inode was.
    paths: HashMap<HostId, Vec<Vec<u8>>>,
    /// Where it is in the graveyard.
    graves: HashMap<HostId, Vec<u8>>,
    /// Directories that were removed as a whole: their paths, and what they are called in the
    /// graveyard.
    removed: Vec<(Vec<u8>, Vec<u8>)>,
    /// The latest version that a transaction has left of an inode.
    left: HashMap<HostId, Stamp>,
}

/// What a committed transaction changed; `None` if it is not among `all`, or was forgotten.
///
/// # Errors
/// What reading the tree or the graveyard says.
pub fn look_back(
    ground: Graveyard<'_>,
    mut all: Vec<History>,
    txn: TxnId,
) -> Result<Option<Vec<Past>>> {
    all.sort_by_key(|h| h.done.lsn);
    let Some(history) = all.iter().find(|h| h.commit.meta.txn == txn && !h.forgotten) else {
        return Ok(None);
    };
    let mut finder = Finder::new(ground, &all);
    finder.changes(history).map(Some)
}

impl Graveyard<'_> {
    /// As [`crate::Store::read_back`], of what [`look_back`] has told.
    ///
    /// # Errors
    /// As there.
    pub fn read_back(&self, side: &PastSide, limit: usize) -> Result<Option<Vec<u8>>> {
        let seat = side.seat.as_ref().and_then(|seat| seat.downcast_ref::<Seat>());
        let Some(seat) = seat else { return Ok(None) };
        let io = self.tree;
        let Some((dir, name)) = Way::new().to(self, &seat.place)? else { return Ok(None) };
        if side.kind == Kind::Symlink {
            return found(io.read_link(&dir, &name));
        }
        let Some(file) = found(io.open_file(&dir, &name, Open::Read))? else {
            return Ok(None);
        };
        let now = io.stat(&file)?;
        if !now.stamp().has_data_of(&seat.now) {
            return Ok(None);
        }
        let longest = seat.patches.iter().map(|p| p.len).fold(now.size, u64::max);
        let len = usize::try_from(longest).unwrap_or(usize::MAX).min(limit);
        let mut bytes = vec![0; len];
        let mut end = io.read_at(&file, &mut bytes, 0)? as u64;
        for patch in &seat.patches {
            if !self.take_back(patch, &mut bytes, &mut end)? {
                return Ok(None);
            }
        }
        bytes.truncate(usize::try_from(end).unwrap_or(usize::MAX).min(limit));
        Ok(Some(bytes))
    }

    /// Returns whether it could: what an undo has moved away is not there.
    fn take_back(&self, patch: &Patch, bytes: &mut [u8], end: &mut u64) -> Result<bool> {
        let io = self.tree;
        let file = match &patch.file {
            Some(name) => Some(io.open_file(self.dir, name, Open::Read)?),
            None => None,
        };
        if let Some(file) = file.as_ref().filter(|_| self.moves)
            && io.stat(file)?.size == 0
        {
            return Ok(false);
        }
        // What it had beyond the present end is in the extents, or was a hole.
        let cut = usize::try_from(*end).unwrap_or(usize::MAX).min(bytes.len());
        bytes[cut..].fill(0);
        for extent in &patch.extents {
            let Ok(from) = usize::try_from(extent.offset) else { continue };
            let len = usize::try_from(extent.data.len()).unwrap_or(usize::MAX);
            let to = from.saturating_add(len).min(bytes.len());
            let Some(place) = bytes.get_mut(from..to) else { continue };
            match (&extent.data, &file) {
                (Data::Inline(old), _) => place.copy_from_slice(&old[..place.len()]),
                // A file has all of them at their own offsets, whatever the record says there.
                (_, Some(file)) => {
                    let got = io.read_at(file, place, extent.offset)?;
                    place[got..].fill(0);
                }
                (_, None) => place.fill(0),
            }
        }
        *end = patch.len;
        Ok(true)
    }
}

impl<'a> Finder<'a> {
    fn new(ground: Graveyard<'a>, all: &'a [History]) -> Finder<'a> {
        let mut finder = Finder {
            ground,
            befores: Befores::new(all),
            way: RefCell::new(Way::new()),
            paths: HashMap::new(),
            graves: HashMap::new(),
            removed: Vec::new(),
            left: HashMap::new(),
        };
        for history in all {
            let index = Index::new(&history.commit.set);
            let txn = history.commit.meta.txn;
            for (ix, stamp) in (0..).map(Ix).zip(&history.done.stamps) {
                let Some(stamp) = stamp else { continue };
                if let Some(path) = index.final_path(ix) {
                    finder.paths.entry(stamp.id).or_default().push(path);
                }
                finder.left.insert(stamp.id, *stamp);
            }
            for (ix, stamp) in &history.done.graves {
                finder.graves.insert(stamp.id, grave_name(txn, ix.0));
                finder.left.insert(stamp.id, *stamp);
                if let Some(path) = index
                    .origin_path(*ix)
                    .filter(|_| history.commit.set.object(*ix).kind() == Kind::Dir)
                {
                    finder.removed.push((path, grave_name(txn, ix.0)));
                }
            }
        }
        finder
    }

    /// Where an inode is now; `hint` is a path at which it was.
    fn find(&self, id: HostId, hint: Option<&[u8]>) -> Result<Option<(Place, Stat)>> {
        let mut places: Vec<Place> = Vec::new();
        let paths = self.paths.get(&id).into_iter().flatten().map(Vec::as_slice).chain(hint);
        for path in paths {
            places.push(Place { top: Top::Root, path: path.to_vec() });
            for (top, grave) in &self.removed {
                let rest = path.strip_prefix(&top[..]).and_then(|rest| rest.strip_prefix(b"/"));
                if let Some(rest) = rest {
                    places.push(Place { top: Top::Graveyard, path: join(grave.clone(), rest) });
                }
            }
        }
        let grave = |name: &Vec<u8>| Place { top: Top::Graveyard, path: name.clone() };
        places.extend(self.graves.get(&id).map(grave));
        for place in places.into_iter().rev() {
            let Some((dir, name)) = self.to(&place)? else { continue };
            let Some(stat) = gone(self.ground.tree.stat_at(&dir, &name))? else { continue };
            if stat.id == id {
                return Ok(Some((place, stat)));
            }
        }
        Ok(None)
    }

    fn to(&self, place: &Place) -> Result<Option<(Handle, Vec<u8>)>> {
        self.way.borrow_mut().to(&self.ground, place)
    }

    /// An inode as it was before the transaction with number `lsn`, and those after it, changed it.
    fn side(
        &self,
        was: Option<Stamp>,
        id: HostId,
        lsn: u64,
        hint: Option<&[u8]>,
    ) -> Result<Option<PastSide>> {
        let Some((place, now)) = self.find(id, hint)? else { return Ok(None) };
        let left = self.left.get(&id).copied().or(was);
        // An inode that no transaction has left differently is as it was met.
        let known = left.is_none_or(|left| (left.mtime, left.size) == (now.mtime, now.size));
        let mut side = PastSide {
            kind: now.kind,
            mode: now.mode,
            uid: now.uid,
            gid: now.gid,
            size: was.map_or(now.size, |was| was.size),
            mtime: was.map_or(now.mtime, |was| was.mtime),
            rdev: now.rdev,
            seat: None,
        };
        let mut patches = Vec::new();
        let befores = self.befores.of(id).iter().rev();
        for (_, before) in befores.take_while(|(history, _)| history.done.lsn >= lsn) {
            let Attrs { mode, owner, .. } = before.attrs;
            side.mode = mode.unwrap_or(side.mode);
            (side.uid, side.gid) = owner.unwrap_or((side.uid, side.gid));
        }
        for (history, before) in Versions::of(&self.befores, id).back_to(lsn) {
            if let OldContent::InPlace { len, file, extents, .. } = &before.content {
                let txn = history.commit.meta.txn;
                let file = file.then(|| before_name(txn, before.ix.0));
                patches.push(Patch { len: *len, file, extents: extents.clone() });
            }
        }
        side.seat = known.then(|| seat(Seat { place, now: now.stamp(), patches }));
        Ok(Some(side))
    }

    /// What an object was before the transaction.
    fn old(&self, history: &History, index: &Index<'_>, ix: Ix) -> Result<Option<PastSide>> {
        let Some(stamp) = met(history, ix) else { return Ok(None) };
        let path = index.origin_path(ix);
        let side = self.side(Some(stamp), stamp.id, history.done.lsn, path.as_deref())?;
        Ok(side.or_else(|| Some(unknown(history.commit.set.object(ix).kind(), stamp))))
    }

    /// What an object was after it.
    fn new_side(&self, history: &History, ix: Ix) -> Result<Option<PastSide>> {
        let object = history.commit.set.object(ix);
        let stamp = history.done.stamps.get(ix.0 as usize).copied().flatten();
        let Some(stamp) = stamp else { return Ok(None) };
        let side = self.side(Some(stamp), stamp.id, history.done.lsn + 1, None)?;
        let mut side = side.unwrap_or_else(|| unknown(object.kind(), stamp));
        if let Origin::New(NewKind::Special { rdev, .. }) = &object.origin {
            side.rdev = *rdev;
        }
        side.mode = object.attrs.mode.unwrap_or(side.mode);
        (side.uid, side.gid) = object.attrs.owner.unwrap_or((side.uid, side.gid));
        Ok(Some(side))
    }

    fn changes(&mut self, history: &History) -> Result<Vec<Past>> {
        let set = &history.commit.set;
        let index = Index::new(set);
        let befores: HashMap<Ix, &Before> =
            history.commit.befores.iter().map(|before| (before.ix, before)).collect();
        let mut told: HashSet<Ix> = HashSet::new();
        let mut out = Vec::new();
        for bind in &set.binds {
            let Some(path) = index.bind_path(bind) else { continue };
            let moved = |ix: Ix| !index.targets(ix).is_empty();
            let displaced = bind.displaces.filter(|old| !moved(*old));
            let old = match displaced {
                Some(old) => self.old(history, &index, old)?,
                None => None,
            };
            let Some(target) = bind.target else {
                let (Some(gone), Some(old)) = (displaced, old) else { continue };
                let was = (index.origin_path(gone), met(history, gone));
                if let (true, (_, Some(stamp))) = (old.kind == Kind::Dir, &was) {
                    let hint = was.0.as_deref();
                    self.inside(history, stamp.id, hint, &path, ChangeKind::Removed, &mut out)?;
                }
                out.push(Past::new(path, ChangeKind::Removed, Some(old), None));
                continue;
            };
            let new = self.new_side(history, target)?;
            let object = set.object(target);
            let from = index.origin_path(target).filter(|from| *from != path);
            told.insert(target);
            let xattrs = keys(object);
            match from {
                Some(from) => {
                    let old = self.old(history, &index, target)?;
                    let kind = ChangeKind::Renamed { from };
                    let content = object.content != Content::Keep;
                    let bytes = written(history, &befores, target);
                    out.push(Past { content, xattrs, bytes, ..Past::new(path, kind, old, new) });
                }
                None if matches!(object.origin, Origin::Grave { .. }) && old.is_none() => {
                    if let (Some(Kind::Dir), Some(stamp)) = (
                        new.as_ref().map(|n| n.kind),
                        history.done.stamps.get(target.0 as usize).copied().flatten(),
                    ) {
                        self.inside(history, stamp.id, None, &path, ChangeKind::Created, &mut out)?;
                    }
                    out.push(Past::new(path, ChangeKind::Created, None, new));
                }
                None => {
                    // Of what was replaced they are not looked at: those may be the same.
                    let (kind, xattrs) = match old {
                        Some(_) => (ChangeKind::Replaced, Vec::new()),
                        None => (ChangeKind::Created, xattrs),
                    };
                    out.push(Past { xattrs, ..Past::new(path, kind, old, new) });
                }
            }
        }
        self.modified(history, (&index, &befores), &told, &mut out)?;
        out.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(out)
    }

    /// Objects that kept their names.
    fn modified(
        &self,
        history: &History,
        (index, befores): (&Index<'_>, &HashMap<Ix, &Before>),
        told: &HashSet<Ix>,
        out: &mut Vec<Past>,
    ) -> Result<()> {
        let set = &history.commit.set;
        for (ix, object) in (0..).map(Ix).zip(&set.objects) {
            if !object.is_changed() || object.is_new() || told.contains(&ix) {
                continue;
            }
            let Some(path) = index.final_path(ix) else { continue };
            let content = object.content != Content::Keep;
            let (old, new) = (self.old(history, index, ix)?, self.new_side(history, ix)?);
            let xattrs = keys(object);
            let past = Past::new(path, ChangeKind::Modified, old, new);
            out.push(Past { content, xattrs, bytes: written(history, befores, ix), ..past });
        }
        Ok(())
    }

    /// What is in a directory that went, or came, as a whole.
    fn inside(
        &self,
        history: &History,
        dir: HostId,
        hint: Option<&[u8]>,
        path: &[u8],
        kind: ChangeKind,
        out: &mut Vec<Past>,
    ) -> Result<()> {
        let Some((top, _)) = self.find(dir, hint)? else { return Ok(()) };
        let io = self.ground.tree;
        let mut todo = vec![(top, path.to_vec())];
        while let Some((at, path)) = todo.pop() {
            let Some((above, name)) = self.to(&at)? else { continue };
            let Some(dir) = gone(io.open_dir(&above, &name))? else { continue };
            for name in names(io, &dir)? {
                let Some(stat) = gone(io.stat_at(&dir, &name))? else { continue };
                let (place, below) = (at.with(&name), join(path.clone(), &name));
                if stat.kind == Kind::Dir {
                    todo.push((place.clone(), below.clone()));
                }
                let known = self.left.get(&stat.id).is_none_or(|left| {
                    (left.mtime, left.size) == (stat.mtime, stat.size) || left.id != stat.id
                });
                let mut side = unknown(stat.kind, stat.stamp());
                (side.mode, side.uid, side.gid) = (stat.mode, stat.uid, stat.gid);
                side.rdev = stat.rdev;
                let after = history.done.lsn + 1;
                let untouched = self.befores.of(stat.id).iter().all(|(h, _)| h.done.lsn < after);
                side.seat = (known && untouched)
                    .then(|| seat(Seat { place, now: stat.stamp(), patches: Vec::new() }));
                let (old, new) = match kind {
                    ChangeKind::Removed => (Some(side), None),
                    _ => (None, Some(side)),
                };
                out.push(Past::new(below, kind.clone(), old, new));
            }
        }
        Ok(())
    }
}

impl Past {
    fn new(path: Vec<u8>, kind: ChangeKind, old: Option<PastSide>, new: Option<PastSide>) -> Past {
        let bytes = new.as_ref().filter(|new| new.kind != Kind::Dir).map_or(0, |new| new.size);
        Past { path, kind, old, new, content: true, bytes, xattrs: Vec::new() }
    }
}

/// The extended attributes that a transaction has set or removed.
fn keys(object: &Object) -> Vec<Vec<u8>> {
    object.xattrs.iter().map(|(key, _)| key.clone()).collect()
}

/// Bytes that a transaction has written into an object that was there before.
fn written(history: &History, befores: &HashMap<Ix, &Before>, ix: Ix) -> u64 {
    let now = history.done.stamps.get(ix.0 as usize).copied().flatten().map_or(0, |s| s.size);
    let before = befores.get(&ix).map(|before| &before.content);
    match (&history.commit.set.object(ix).content, before) {
        (Content::Keep, _) => 0,
        (Content::Patch { .. }, Some(OldContent::InPlace { len, extents, .. })) => {
            let over: u64 = extents.iter().map(|e| e.data.len()).sum();
            over.min(now).saturating_add(now.saturating_sub(*len))
        }
        _ => now,
    }
}

/// All that the history says of something that is nowhere any more.
fn unknown(kind: Kind, stamp: Stamp) -> PastSide {
    let (size, mtime) = (stamp.size, stamp.mtime);
    PastSide { kind, mode: 0, uid: 0, gid: 0, size, mtime, rdev: 0, seat: None }
}

/// `None` if there is nothing at a path any more.
fn gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(e) if crate::origins::is_gone(&e) => Ok(None),
        other => other.map(Some),
    }
}
