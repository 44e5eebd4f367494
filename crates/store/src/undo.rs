//! The write set that takes a transaction back.
//!
//! It is built from the history file and from what is in the tree now.  Every name that the
//! transaction changed must still be as it left it, and every object that it made, changed or put
//! somewhere must still be the version that it left, or that version again after later changes were
//! undone; otherwise later work would be lost, and the
//! paths are named instead.  The result is an ordinary write set: committing it as a transaction of
//! kind `Undo` leaves a history of its own, and undoing that is a redo.
//!
//! What it does not take back: times of directories that only had names added or removed.

use crate::content::data_in;
use crate::error::UndoError;
use crate::graveyard::{Graveyard, Hold, Stage, brought_back};
use crate::history::{Before, History, OldContent};
use crate::interface::{Undo, Wanted};
use crate::io::{Handle, HostId, Open, Stamp, Stat};
use crate::layout::{before_name, grave_name, names};
use crate::open_dirs::OpenDirs;
use crate::origins::is_gone;
use crate::returned::Returned;
use crate::survivors::{Search, Survivor, Way};
use crate::versions::{Befores, Versions, met};
use crate::writeset::index::{Index, join};
use crate::writeset::{
    Attrs, Bind, Content, Data, Emptied, Extent, Ix, Object, Origin, Slot, SlotId, WriteSet,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use systx_base::progress::{self, Phase};
use systx_base::{Kind, Time, TxnId};

type Result<T> = std::result::Result<T, UndoError>;

/// Where an object is now.
#[derive(Clone)]
struct Here {
    parent: Ix,
    name: Vec<u8>,
}

mod part;
use part::Part;

/// Slots with what was overwritten.
struct Slots<'a> {
    stage: &'a Stage<'a>,
    /// Says who has kept that.
    befores: Befores<'a>,
    made: Vec<Slot>,
}

/// Directories that are open, by the objects of the transaction.
#[derive(Default)]
struct Dirs {
    tree: OpenDirs,
    /// Those in the graveyard.
    grave: OpenDirs,
}

struct Builder<'a> {
    ground: Graveyard<'a>,
    part: Part,
    history: &'a History,
    index: Index<'a>,
    graves: HashMap<Ix, Stamp>,
    /// Objects of the result, by those of the transaction; none for what is gone.
    made: HashMap<Ix, Option<Ix>>,
    dirs: Dirs,
    /// Objects of the result that exist, by identity.
    known: HashMap<HostId, Ix>,
    out: WriteSet,
    slots: Slots<'a>,
    overlap: BTreeSet<Vec<u8>>,
    returned: Returned,
}

/// The write set that takes a transaction back, all of it or what is `wanted`; see
/// [`crate::Store::undo_set`].  `hold` keeps what transactions displaced from being collected;
/// `all` is what is known of them, once that is so.
///
/// # Errors
/// As there.
pub fn undo(
    ground: Graveyard<'_>,
    stage: &Stage<'_>,
    hold: &Hold<'_>,
    all: impl FnOnce() -> std::io::Result<Vec<History>>,
    txn: TxnId,
    wanted: Option<Wanted<'_>>,
) -> Result<Undo> {
    let in_use = hold(vec![txn]).ok_or(UndoError::Forgotten(txn))?;
    let mut all = all()?;
    all.sort_by_key(|h| h.done.lsn);
    let history = all.iter().find(|h| h.commit.meta.txn == txn);
    let history = history.ok_or(UndoError::Unknown(txn))?;
    if history.forgotten {
        return Err(UndoError::Forgotten(txn));
    }
    let index = Index::new(&history.commit.set);
    let mut builder = Builder {
        ground,
        part: wanted.map_or_else(|| Part::all(&index), |wanted| Part::of(&index, wanted)),
        history,
        index,
        graves: history.done.graves.iter().copied().collect(),
        made: HashMap::new(),
        dirs: Dirs::default(),
        known: HashMap::new(),
        out: WriteSet::default(),
        slots: Slots { stage, befores: Befores::new(&all), made: Vec::new() },
        overlap: BTreeSet::new(),
        returned: Returned::of(&all, history.done.lsn),
    };
    builder.build()?;
    if !builder.overlap.is_empty() {
        return Err(UndoError::Overlap(builder.overlap.into_iter().collect()));
    }
    // An object of another transaction's part of the graveyard may be among them.
    let others = brought_back(&builder.out).collect();
    let others = hold(others).ok_or(UndoError::Forgotten(txn))?;
    Ok(Undo { set: builder.out, slots: builder.slots.made, in_use: Box::new((in_use, others)) })
}

impl<'a> Builder<'a> {
    fn set(&self) -> &'a WriteSet {
        self.index.set
    }

    fn txn(&self) -> TxnId {
        self.history.commit.meta.txn
    }

    fn path(&self, ix: Ix) -> Vec<u8> {
        self.index.final_path(ix).or_else(|| self.index.origin_path(ix)).unwrap_or_default()
    }

    fn build(&mut self) -> Result<()> {
        self.out.objects.push(Object {
            origin: Origin::Root,
            attrs: Attrs::default(),
            xattrs: Vec::new(),
            content: Content::Keep,
        });
        self.made.insert(Ix(0), Some(Ix(0)));
        progress::phase(Phase::Checking, || {
            (self.set().binds.len() + self.history.commit.befores.len()) as u64
        });
        for (i, bind) in self.set().binds.iter().enumerate() {
            if self.part.has_bind(i) {
                self.reverse(bind)?;
            }
            progress::step();
        }
        for ix in (0..self.set().objects.len() as u32).map(Ix) {
            if self.part.has(ix) {
                self.back_inside(ix)?;
            }
        }
        let befores: Vec<&Before> =
            self.history.commit.befores.iter().filter(|b| self.part.has(b.ix)).collect();
        for before in befores {
            self.restore(before)?;
            progress::step();
        }
        Ok(())
    }

    /// Where the transaction left an object, in all names that are known; none for the root and for
    /// what has no place. A name that it had all the time comes first: the others go with the undo,
    /// and a redo would look for the object in vain there.
    fn heres(&self, ix: Ix) -> Vec<Here> {
        let mut heres = Vec::new();
        if let Origin::Host { parent, name, .. } = &self.set().object(ix).origin
            && self.index.at(*parent, name).is_none()
            && !self.index.inside_removed(ix)
        {
            heres.push(Here { parent: *parent, name: name.clone() });
        }
        for i in self.index.targets(ix) {
            let bind = &self.set().binds[*i];
            heres.push(Here { parent: bind.dir, name: bind.name.clone() });
        }
        heres
    }

    /// The open directory of an object, as it is now.
    fn dir(&mut self, ix: Ix) -> Result<Option<Handle>> {
        let above = |ix| self.heres(ix).first().map(|here| here.parent);
        let above = self.dirs.tree.closed_above(ix, above);
        for dir in above.into_iter().rev().chain([ix]) {
            if self.opened(dir).is_some() {
                continue;
            }
            let Some(here) = self.heres(dir).into_iter().next() else { return Ok(None) };
            let Some(parent) = self.opened(here.parent) else { return Ok(None) };
            match self.ground.tree.open_dir(&parent, &here.name) {
                Ok(open) => self.dirs.tree.put(dir, open),
                Err(e) if is_gone(&e) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.opened(ix))
    }

    fn opened(&self, ix: Ix) -> Option<Handle> {
        if ix.0 == 0 { Some(self.ground.tree.root()) } else { self.dirs.tree.get(ix) }
    }

    fn stat_in(&mut self, dir: Ix, name: &[u8]) -> Result<Option<Stat>> {
        let Some(dir) = self.dir(dir)? else { return Ok(None) };
        match self.ground.tree.stat_at(&dir, name) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// An object as it is now, as an object of the result.  Those above it come first, and not by
    /// recursion: trees may be deeper than a stack.
    fn host(&mut self, ix: Ix) -> Result<Option<Ix>> {
        let (mut way, mut met) = (vec![ix], HashSet::from([ix]));
        while let Some(here) = way.last().and_then(|ix| self.heres(*ix).into_iter().next())
            && !self.made.contains_key(&here.parent)
            && met.insert(here.parent)
        {
            way.push(here.parent);
        }
        let mut host = None;
        for ix in way.into_iter().rev() {
            host = self.host_below(ix)?;
        }
        Ok(host)
    }

    /// The same, where what is above was looked for.
    fn host_below(&mut self, ix: Ix) -> Result<Option<Ix>> {
        if let Some(made) = self.made.get(&ix) {
            return Ok(*made);
        }
        // Until it is found: its names may be a circle.
        self.made.insert(ix, None);
        let left = self.history.done.stamps.get(ix.0 as usize).copied().flatten();
        let mut found = None;
        for here in self.heres(ix) {
            let Some(parent) = self.host(here.parent)? else { continue };
            let Some(stat) = self.stat_in(here.parent, &here.name)? else { continue };
            let same = left.is_none_or(|left| left.id == stat.id);
            if same || found.is_none() {
                found = Some((parent, here, stat));
            }
            if same {
                break;
            }
        }
        let Some((parent, here, stat)) = found else { return Ok(None) };
        self.check_version(ix, &stat)?;
        let made = self.in_tree(parent, here.name, &stat);
        self.made.insert(ix, Some(made));
        Ok(Some(made))
    }

    /// What is at a name now, as an object of the result: the same one for each of its names.
    fn in_tree(&mut self, parent: Ix, name: Vec<u8>, stat: &Stat) -> Ix {
        if let Some(known) = self.known.get(&stat.id) {
            return *known;
        }
        self.push(Origin::Host { parent, name, kind: stat.kind, stamp: stat.stamp() })
    }

    /// What is in the graveyard, as an object of the result.
    fn in_grave(&mut self, name: Vec<u8>, stat: &Stat) -> Ix {
        if let Some(known) = self.known.get(&stat.id) {
            return *known;
        }
        self.push(Origin::Grave { name, kind: stat.kind, stamp: stat.stamp() })
    }

    fn push(&mut self, origin: Origin) -> Ix {
        let made = Ix(self.out.objects.len() as u32);
        if let Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } = &origin {
            self.known.insert(stamp.id, made);
        }
        self.out.objects.push(Object {
            origin,
            attrs: Attrs::default(),
            xattrs: Vec::new(),
            content: Content::Keep,
        });
        made
    }

    /// Notes an overlap if an object is not what the transaction left.
    fn check_version(&mut self, ix: Ix, now: &Stat) -> Result<()> {
        let object = self.set().object(ix);
        let left = self.history.done.stamps.get(ix.0 as usize).copied().flatten();
        let Some(left) = left else { return Ok(()) };
        let moved = !self.index.targets(ix).is_empty();
        let same = if now.kind == Kind::Dir {
            let attrs = object.attrs;
            self.is_dir_left(left, now)
                && attrs.mode.is_none_or(|m| m == now.mode)
                && attrs.owner.is_none_or(|o| o == (now.uid, now.gid))
        } else if object.is_changed() || moved {
            self.returned.is_same(left, now.stamp())
        } else {
            left.id == now.id
        };
        if !same {
            let path = self.path(ix);
            self.overlap.insert(path);
        }
        if now.kind == Kind::Dir && object.is_new() && self.goes(ix) {
            self.check_inside(ix)?;
        } else if now.kind == Kind::Dir
            && self.goes(ix)
            && let Some(dir) = self.dir(ix)?
        {
            let path = self.path(ix);
            // Moving things into it was part of the transaction.
            let stamps = self.history.done.stamps.iter().flatten();
            let since = stamps.map(|s| s.ctime).fold(left.ctime, Time::max);
            self.check_below(&dir, &path, since)?;
        }
        Ok(())
    }

    /// Whether a directory is the one that was left. On an overlay it is known by its path: one
    /// that was removed in between and brought back has another number ([`crate::overlay`]).
    fn is_dir_left(&self, left: Stamp, now: &Stat) -> bool {
        left.id == now.id || self.ground.overlay && now.kind == Kind::Dir
    }

    /// Whether an object goes with the undo because the directory does that it came with.
    fn goes(&self, mut ix: Ix) -> bool {
        loop {
            match self.set().object(ix).origin {
                Origin::New(_) | Origin::Grave { .. } => {
                    return self.index.targets(ix).iter().any(|i| self.part.has_bind(*i));
                }
                Origin::Host { parent, .. } => ix = parent,
                Origin::Root => return false,
            }
        }
    }

    /// A directory that the transaction brought back goes again with all that is in it: nothing
    /// below it may have changed since, but for changes that were taken back.
    fn check_below(&mut self, top: &Handle, path: &[u8], since: Time) -> Result<()> {
        // By a list and not by recursion: trees may be deeper than a stack.  Each is opened in its
        // turn: they may be many.
        let mut todo = vec![(top.clone(), None::<Vec<u8>>, path.to_vec())];
        while let Some((at, name, path)) = todo.pop() {
            let dir = match name {
                Some(name) => self.ground.tree.open_dir(&at, &name)?,
                None => at,
            };
            let mut emptied = self.emptied(&dir, &path)?;
            for name in names(self.ground.tree, &dir)? {
                let below = join(path.clone(), &name);
                let stat = self.ground.tree.stat_at(&dir, &name)?;
                emptied.names.insert(name.clone(), Some(stat.id));
                // An overlay moves the change time of a directory that has lost what was copied up
                // when it is listed.
                let by_listing = self.ground.overlay && stat.kind == Kind::Dir;
                if !self.returned.is_untouched(since, stat.stamp(), by_listing) {
                    self.overlap.insert(below);
                } else if stat.kind == Kind::Dir {
                    todo.push((dir.clone(), Some(name), below));
                }
            }
            self.out.emptied.push(emptied);
        }
        Ok(())
    }

    /// A directory that goes, before what is in it is noted.
    fn emptied(&self, dir: &Handle, path: &[u8]) -> Result<Emptied> {
        let mtime = self.ground.tree.stat(dir)?.mtime;
        Ok(Emptied { path: path.to_vec(), mtime, names: HashMap::new() })
    }

    /// A directory that the transaction made is removed by the undo: it may only hold what the
    /// transaction put there.
    fn check_inside(&mut self, ix: Ix) -> Result<()> {
        let Some(dir) = self.dir(ix)? else { return Ok(()) };
        let expected = self.index.binds_in(ix).filter(|bind| bind.target.is_some());
        let expected: HashSet<&Vec<u8>> = expected.map(|bind| &bind.name).collect();
        let path = self.path(ix);
        let mut emptied = self.emptied(&dir, &path)?;
        for name in names(self.ground.tree, &dir)? {
            if !expected.contains(&name) {
                self.overlap.insert(join(path.clone(), &name));
            }
            let stat = self.stat_in(ix, &name)?;
            emptied.names.insert(name, stat.map(|stat| stat.id));
        }
        self.out.emptied.push(emptied);
        Ok(())
    }

    /// Takes one name back.
    fn reverse(&mut self, bind: &Bind) -> Result<()> {
        let path = self.index.bind_path(bind).unwrap_or_default();
        let now = self.stat_in(bind.dir, &bind.name)?;
        let left =
            bind.target.and_then(|t| self.history.done.stamps.get(t.0 as usize).copied().flatten());
        let as_left = match (&now, left, bind.target) {
            (None, _, None) => true,
            (Some(now), Some(left), Some(_)) => now.id == left.id || self.is_dir_left(left, now),
            _ => false,
        };
        if !as_left {
            self.overlap.insert(path);
            return Ok(());
        }
        let displaces = match bind.target {
            Some(target) => self.host(target)?,
            None => None,
        };
        // Names inside a directory that the transaction made or brought back go away with it; what
        // moved into it moves out by its own name.
        let Some(dir) = self.host(bind.dir)?.filter(|_| !self.goes(bind.dir)) else {
            return Ok(());
        };
        let target = match bind.displaces {
            Some(old) => self.old_object(old)?,
            None => None,
        };
        if target.is_none() && displaces.is_none() {
            return Ok(());
        }
        self.out.binds.push(Bind { dir, name: bind.name.clone(), target, displaces });
        Ok(())
    }

    /// An object that lost a name: it is elsewhere in the tree or in the graveyard.
    fn old_object(&mut self, ix: Ix) -> Result<Option<Ix>> {
        if let Some(here) = self.host(ix)? {
            return Ok(Some(here));
        }
        if self.index.inside_removed(ix) {
            return self.inside_grave(ix);
        }
        let name = grave_name(self.txn(), ix.0);
        let path = self.index.origin_path(ix).unwrap_or_default();
        let lost = UndoError::Gone { txn: self.txn(), path };
        let stat = match self.ground.tree.stat_at(self.ground.dir, &name) {
            Ok(stat) => Some(stat),
            Err(e) if is_gone(&e) => None,
            Err(e) => return Err(e.into()),
        };
        let left = self.graves.get(&ix).copied();
        let Some(stat) = stat.filter(|s| left.is_some_and(|left| left.id == s.id)) else {
            return self.survivor(ix)?.map(Some).ok_or(lost);
        };
        let made = self.in_grave(name, &stat);
        self.made.insert(ix, Some(made));
        Ok(Some(made))
    }

    /// An object that lost its name and is not in this transaction's part of the graveyard: it had
    /// other names, of which one may be left.
    fn survivor(&mut self, ix: Ix) -> Result<Option<Ix>> {
        let object = self.set().object(ix);
        let (Origin::Host { kind, stamp, .. } | Origin::Grave { kind, stamp, .. }) = &object.origin
        else {
            return Ok(None);
        };
        if *kind == Kind::Dir {
            return Ok(None);
        }
        let left = self.history.done.stamps.get(ix.0 as usize).copied().flatten();
        // Recovery may have met it no more; then it is what it was.
        let left = left.or(Some(*stamp).filter(|_| !object.is_changed()));
        let Graveyard { tree, dir: grave, own, overlay, .. } = self.ground;
        let search = Search { tree, grave, own, id: stamp.id, kind: *kind, overlay };
        let found = search.find(self.near(ix))?;
        let found = match found {
            None => None,
            Some(Survivor::Tree(way)) => self.along(self.ground.tree.root(), Some(Ix(0)), &way)?,
            Some(Survivor::Grave(way)) => self.along(grave.clone(), None, &way)?,
        };
        let Some((made, now)) = found.filter(|(_, now)| now.id == stamp.id) else {
            return Ok(None);
        };
        // Where the file system keeps no time of birth, a number may have been given again.
        let told_apart = stamp.id.btime != Time::default();
        let same = left.is_some_and(|l| (l.mtime, l.size) == (now.mtime, now.size));
        if !told_apart && !same {
            return Ok(None);
        }
        // Other names were no business of the transaction, but what it changed must be as it left
        // it.
        let attrs = object.attrs;
        let as_left = same
            && attrs.mode.is_none_or(|m| m == now.mode)
            && attrs.owner.is_none_or(|o| o == (now.uid, now.gid))
            && (object.xattrs.is_empty()
                || left.is_some_and(|l| self.returned.is_same(l, now.stamp())));
        if object.is_changed() && !as_left {
            let path = self.index.origin_path(ix).unwrap_or_default();
            self.overlap.insert(path);
        }
        self.made.insert(ix, Some(made));
        Ok(Some(made))
    }

    /// Whether the transaction has changed it where an earlier one has put it, as the only place
    /// that it has.
    fn is_in_grave(&self, mut ix: Ix) -> bool {
        while self.index.targets(ix).is_empty() {
            match &self.set().object(ix).origin {
                Origin::Grave { .. } => return true,
                Origin::Host { parent, .. } => ix = *parent,
                Origin::Root | Origin::New(_) => return false,
            }
        }
        false
    }

    /// Where to look first: the directory that the object was in, where it is now.
    fn near(&self, ix: Ix) -> Option<Way> {
        let Origin::Host { parent, .. } = &self.set().object(ix).origin else { return None };
        let path = self.index.final_path(*parent)?;
        Some(path.split(|b| *b == b'/').filter(|p| !p.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// The objects of the result on the way down from the root, or (`at` is `None`) from the
    /// graveyard; the last one.
    fn along(
        &mut self,
        mut dir: Handle,
        mut at: Option<Ix>,
        way: &[Vec<u8>],
    ) -> Result<Option<(Ix, Stat)>> {
        let mut last = None;
        for name in way {
            let stat = match self.ground.tree.stat_at(&dir, name) {
                Ok(stat) => stat,
                Err(e) if is_gone(&e) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            let here = match at {
                Some(parent) => self.in_tree(parent, name.clone(), &stat),
                None => self.in_grave(name.clone(), &stat),
            };
            if stat.kind == Kind::Dir {
                dir = self.ground.tree.open_dir(&dir, name)?;
            }
            at = Some(here);
            last = Some((here, stat));
        }
        Ok(last)
    }

    /// A directory that went to the graveyard with the one that it was in.  Those above it come
    /// first.
    fn inside_grave(&mut self, ix: Ix) -> Result<Option<Ix>> {
        let (mut way, mut at) = (Vec::new(), ix);
        while let Some((parent, _)) = self.old_above(at)
            && self.made.get(&parent).copied().flatten().is_none()
        {
            way.push(parent);
            at = parent;
        }
        for ix in way.into_iter().rev() {
            self.old_object(ix)?;
        }
        let Origin::Host { parent, name, kind, .. } = &self.set().object(ix).origin else {
            return Ok(None);
        };
        let lost = UndoError::Gone {
            txn: self.txn(),
            path: self.index.origin_path(ix).unwrap_or_default(),
        };
        let (Some(above), Some(dir)) = (self.old_object(*parent)?, self.old_dir(*parent)?) else {
            return Err(lost);
        };
        let stat = match self.ground.tree.stat_at(&dir, name) {
            Ok(stat) if stat.kind == *kind => stat,
            Ok(_) => return Err(lost),
            Err(e) if is_gone(&e) => return Err(lost),
            Err(e) => return Err(e.into()),
        };
        let made = self.in_tree(above, name.clone(), &stat);
        self.made.insert(ix, Some(made));
        Ok(Some(made))
    }

    /// The directory that an object was in when that went to the graveyard, and its name there.
    fn old_above(&self, ix: Ix) -> Option<(Ix, &'a Vec<u8>)> {
        match &self.set().object(ix).origin {
            Origin::Host { parent, name, .. } if self.index.inside_removed(ix) => {
                Some((*parent, name))
            }
            _ => None,
        }
    }

    /// The open directory of an object that is in the graveyard.
    fn old_dir(&mut self, ix: Ix) -> Result<Option<Handle>> {
        let above = |ix| self.old_above(ix).map(|(parent, _)| parent);
        let above = self.dirs.grave.closed_above(ix, above);
        for dir in above.into_iter().rev().chain([ix]) {
            if self.dirs.grave.get(dir).is_some() {
                continue;
            }
            let (parent, name) = match self.old_above(dir) {
                Some((parent, name)) => (self.dirs.grave.get(parent), name.clone()),
                None => (Some(self.ground.dir.clone()), grave_name(self.txn(), dir.0)),
            };
            let Some(parent) = parent else { return Ok(None) };
            match self.ground.tree.open_dir(&parent, &name) {
                Ok(open) => self.dirs.grave.put(dir, open),
                Err(e) if is_gone(&e) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.dirs.grave.get(ix))
    }

    /// What moved out of a directory that was removed moves back into it.
    fn back_inside(&mut self, ix: Ix) -> Result<()> {
        let Origin::Host { parent, name, .. } = &self.set().object(ix).origin else {
            return Ok(());
        };
        if self.index.targets(ix).is_empty()
            || self.index.at(*parent, name).is_some()
            || !self.index.inside_removed(ix)
        {
            return Ok(());
        }
        let (Some(target), Some(dir)) = (self.host(ix)?, self.old_object(*parent)?) else {
            return Ok(());
        };
        let name = name.clone();
        self.out.binds.push(Bind { dir, name, target: Some(target), displaces: None });
        Ok(())
    }

    /// Takes changes of an existing object back.
    fn restore(&mut self, before: &'a Before) -> Result<()> {
        let ix = before.ix;
        if before.content == OldContent::Exchanged {
            return self.restore_exchanged(ix);
        }
        let now = match self.host(ix)? {
            // It was met by a name that went with its directory, and was changed by another one.
            None if self.index.inside_removed(ix) || self.is_in_grave(ix) => self.survivor(ix)?,
            found => found,
        };
        let Some(now) = now else {
            let path = self.path(ix);
            self.overlap.insert(path);
            return Ok(());
        };
        // What is refused needs no content.
        let content = match &before.content {
            OldContent::InPlace { .. } if self.overlap.is_empty() => self.old_content(before)?,
            _ => Content::Keep,
        };
        let object = &mut self.out.objects[now.0 as usize];
        object.attrs = before.attrs;
        object.xattrs = before.xattrs.clone();
        object.content = content;
        Ok(())
    }

    /// The old inode comes back from the graveyard with all that it had.
    fn restore_exchanged(&mut self, ix: Ix) -> Result<()> {
        let here = self.heres(ix).into_iter().next();
        let (Some(here), Some(displaces)) = (here, self.host(ix)?) else {
            let path = self.path(ix);
            self.overlap.insert(path);
            return Ok(());
        };
        self.made.remove(&ix);
        // In the graveyard it must be: its place in the tree is taken by the new one.
        let name = grave_name(self.txn(), ix.0);
        let stat = match self.ground.tree.stat_at(self.ground.dir, &name) {
            Ok(stat) if self.graves.get(&ix).is_some_and(|left| left.id == stat.id) => stat,
            Ok(_) => return Err(UndoError::Gone { txn: self.txn(), path: self.path(ix) }),
            Err(e) if is_gone(&e) => {
                return Err(UndoError::Gone { txn: self.txn(), path: self.path(ix) });
            }
            Err(e) => return Err(e.into()),
        };
        let target = self.push(Origin::Grave { name, kind: stat.kind, stamp: stat.stamp() });
        self.made.insert(ix, Some(displaces));
        let Some(dir) = self.host(here.parent)? else { return Ok(()) };
        self.out.binds.push(Bind {
            dir,
            name: here.name,
            target: Some(target),
            displaces: Some(displaces),
        });
        Ok(())
    }

    /// The content before the transaction, from what leads back to it now.
    fn old_content(&mut self, before: &'a Before) -> Result<Content> {
        let (id, path) = (met(self.history, before.ix).map(|s| s.id), self.path(before.ix));
        let back =
            id.map(|id| Versions::of(&self.slots.befores, id).back_to(self.history.done.lsn));
        let (history, before) = match back.as_deref() {
            Some([last]) => *last,
            _ => (self.history, before),
        };
        let OldContent::InPlace { len, file, extents, whole } = &before.content else {
            return Ok(Content::Keep);
        };
        let new_len = match &history.commit.set.object(before.ix).content {
            Content::Patch { len, .. } => *len,
            _ => *len,
        };
        let (len, whole) = (*len, *whole);
        let lost = UndoError::Gone { txn: self.txn(), path };
        let extents = match file {
            true => {
                let name = before_name(history.commit.meta.txn, before.ix.0);
                self.stage_before((&name, len), extents)?.ok_or(lost)?
            }
            false => extents.clone(),
        };
        if whole {
            return Ok(Content::Whole { len, extents });
        }
        Ok(Content::Patch { len, keep: new_len.min(len), extents })
    }

    /// A staging slot with what a before-file has: the history keeps its own until the commit.
    /// `None` if that is not there any more.
    fn stage_before(
        &mut self,
        (name, len): (&[u8], u64),
        extents: &[Extent],
    ) -> Result<Option<Vec<Extent>>> {
        let (tree, grave) = (self.ground.tree, self.ground.dir);
        let staged = tree
            .open_file(grave, name, Open::Read)
            .and_then(|file| Ok(((self.slots.stage)(&file, len)?, file)));
        let (slot, file) = match staged {
            Ok(staged) => staged,
            Err(e) if is_gone(&e) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let id: SlotId = slot.id();
        self.slots.made.push(slot);
        let mut all = Vec::new();
        for extent in extents {
            let (mut from, end) = (extent.offset, extent.offset + extent.data.len());
            // What was a hole is one again: it takes no room.
            for data in data_in(self.ground.tree, &file, from..end)? {
                if from < data.start {
                    all.push(Extent { offset: from, data: Data::Hole { len: data.start - from } });
                }
                let len = data.end - data.start;
                let slot = Data::Slot { slot: id, at: data.start, len };
                all.push(Extent { offset: data.start, data: slot });
                from = data.end;
            }
            if from < end {
                all.push(Extent { offset: from, data: Data::Hole { len: end - from } });
            }
        }
        Ok(Some(all))
    }
}

#[cfg(test)]
mod tests;
