//! A write set as operations on the volume, all in one transaction of it: what it changes, what of
//! before is kept, and the record of it.

use crate::own::{Own, clear};
use crate::slot::{CHUNK, slot_name};
use crate::tree::{VolumeTree, stamp_of};
use std::collections::{HashMap, HashSet};
use systx_base::{Kind, TxnId};
use systx_lfs::format::{BLOCK, Ino};
use systx_lfs::{Error, Ops, SetAttrs, SetXattr, Shape};
use systx_store::io::{Stamp, Stat};
use systx_store::overwritten_pages;
use systx_store::record::{Before, Done, Index, OldContent, before_name, grave_name};
use systx_store::record::{overwritten, restored};
use systx_store::writeset::{Content, Data, Extent, Ix, NewKind, Object, Origin, SlotId, WriteSet};

const PAGE: u64 = BLOCK as u64;

/// Bytes of what was overwritten that the record itself has; more is in a file.
pub(crate) const ROOM: u64 = 32 << 10;

/// Why a write set cannot be installed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// These are no longer what the transaction saw.
    Changed(Vec<Vec<u8>>),
    /// There is no such slot.
    UnknownSlot,
    /// The volume says so.
    Volume(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Volume(error)
    }
}

type Result<T> = std::result::Result<T, Failed>;

/// What an installation has made of a write set.
pub(crate) struct Installed {
    /// The object of the volume for each one of the write set.
    pub inos: Vec<Ino>,
    pub befores: Vec<Before>,
    pub done: Done,
}

pub(crate) struct Install<'a, 'o> {
    ops: &'a mut Ops<'o>,
    tree: &'a VolumeTree,
    own: &'a Own,
    index: Index<'a>,
    txn: TxnId,
    /// Whether what is displaced is kept.
    keep: bool,
    /// What somebody has open where the volume is mounted.
    open: &'a HashSet<Ino>,
    inos: Vec<Ino>,
    graves: Vec<(Ix, Ino)>,
    befores: Vec<Before>,
    room: u64,
    /// Times that were set: they hold whatever else was done.
    changed: Vec<Vec<u8>>,
}

/// Installs a write set.
pub(crate) fn install(
    ops: &mut Ops<'_>,
    (tree, own): (&VolumeTree, &Own),
    set: &WriteSet,
    (txn, lsn): (TxnId, u64),
    (keep, open): (bool, &HashSet<Ino>),
) -> Result<Installed> {
    let mut this = Install {
        ops,
        tree,
        own,
        index: Index::new(set),
        txn,
        keep,
        open,
        inos: Vec::with_capacity(set.objects.len()),
        graves: Vec::new(),
        befores: Vec::new(),
        room: ROOM,
        changed: Vec::new(),
    };
    this.locate()?;
    for ix in this.all() {
        this.content(ix)?;
    }
    this.emptied()?;
    this.names()?;
    this.displaced()?;
    for ix in this.all() {
        this.attributes(ix)?;
    }
    let done = this.done(lsn)?;
    Ok(Installed { inos: this.inos, befores: this.befores, done })
}

fn origin_stamp(object: &Object) -> Option<Stamp> {
    match &object.origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    }
}

fn shape_of(kind: &NewKind) -> Shape {
    match kind {
        NewKind::File => Shape::new(Kind::File, 0o600),
        NewKind::Dir => Shape::new(Kind::Dir, 0o700),
        NewKind::Symlink(target) => Shape::symlink(target),
        NewKind::Special { kind, rdev } => Shape { rdev: *rdev, ..Shape::new(*kind, 0o600) },
    }
}

impl Install<'_, '_> {
    fn all(&self) -> impl Iterator<Item = Ix> + use<> {
        (0..self.index.set.objects.len() as u32).map(Ix)
    }

    fn ino(&self, ix: Ix) -> Ino {
        self.inos[ix.0 as usize]
    }

    fn grave(&self, ix: Ix) -> Vec<u8> {
        grave_name(self.txn, ix.0)
    }

    /// The objects that are meant, which must be what the transaction saw; new ones are made.
    fn locate(&mut self) -> Result<()> {
        let set = self.index.set;
        for ix in self.all() {
            let object = set.object(ix);
            let ino = match &object.origin {
                Origin::Root => systx_lfs::format::ROOT,
                Origin::Host { stamp, .. } => stamp.id().number(),
                Origin::Grave { name, .. } => match self.ops.lookup(self.own.grave, name) {
                    Ok(link) => link.ino,
                    Err(Error::NotFound) => 0,
                    Err(error) => return Err(error.into()),
                },
                Origin::New(kind) => self.new_object(kind, &object.content)?,
            };
            self.inos.push(ino);
            if !self.is_version(ix, ino)? {
                self.changed.push(self.index.origin_path(ix).unwrap_or_default());
            }
        }
        let changed = std::mem::take(&mut self.changed);
        if changed.is_empty() { Ok(()) } else { Err(Failed::Changed(changed)) }
    }

    fn new_object(&mut self, kind: &NewKind, content: &Content) -> Result<Ino> {
        let Content::Slot(slot) = content else { return Ok(self.ops.make(&shape_of(kind))?) };
        self.take_slot(*slot)
    }

    /// A slot becomes a file.
    fn take_slot(&mut self, slot: SlotId) -> Result<Ino> {
        let name = slot_name(slot.0);
        match self.ops.lookup(self.own.slots, &name) {
            Ok(link) if link.ino == slot.0 => {
                self.ops.set_name(self.own.slots, &name, None)?;
                Ok(link.ino)
            }
            // A before-file becomes no file of the tree.
            Ok(_) | Err(Error::NotFound) => Err(Failed::UnknownSlot),
            Err(error) => Err(error.into()),
        }
    }

    /// Before-files that slots stand for have nothing any more: this has taken it, and keeps what
    /// was in the place of that.
    fn emptied(&mut self) -> Result<()> {
        for slot in self.index.set.slots() {
            match self.ops.lookup(self.own.slots, &slot_name(slot.0)) {
                Ok(link) if link.ino != slot.0 => self.resize(link.ino, 0)?,
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether an object is what the transaction saw.  A directory's times move with every name in
    /// it, and a file's with every page, which is nobody's conflict here.
    fn is_version(&mut self, ix: Ix, ino: Ino) -> Result<bool> {
        let object = self.index.set.object(ix);
        let Some(met) = origin_stamp(object) else { return Ok(true) };
        let attrs = match self.ops.attrs(ino) {
            Ok(attrs) => attrs,
            Err(Error::NotFound) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let now = stamp_of(ino, &attrs);
        if now.id() != met.id() {
            return Ok(false);
        }
        let counts = object.is_changed() || self.index.is_removed(ix);
        if overwritten_pages(object).is_some() && !self.index.is_removed(ix) {
            // Others may have overwritten other pages since it was met, which moves its times.
            return Ok(now.length() == met.length());
        }
        Ok(attrs.kind == Kind::Dir
            || !counts
            || match &object.origin {
                Origin::Grave { .. } => now.has_data_of(&met),
                _ => now == met,
            })
    }

    fn stat(&mut self, ino: Ino) -> Result<Stat> {
        Ok(self.tree.stat_of(self.ops, ino)?)
    }

    /// Keeps what of an object is about to change, and gives it its content.
    fn content(&mut self, ix: Ix) -> Result<()> {
        let object = self.index.set.object(ix);
        let ino = self.ino(ix);
        if object.is_new() {
            return match &object.content {
                Content::Keep | Content::Slot(_) => Ok(()),
                content => self.write(ino, content),
            };
        }
        if !object.is_changed() {
            return Ok(());
        }
        let stat = self.stat(ino)?;
        let mut xattrs = Vec::new();
        for (key, _) in &object.xattrs {
            let old = match self.ops.xattr(ino, key) {
                Ok(value) => Some(value),
                Err(Error::NoAttr) => None,
                Err(error) => return Err(error.into()),
            };
            xattrs.push((key.clone(), old));
        }
        let has = object.content != Content::Keep;
        let content = match &object.content {
            Content::Keep => OldContent::Keep,
            content if self.may_exchange(ix, &stat) => self.exchange(ix, &stat, content)?,
            content => self.overwrite(ix, &stat, content)?,
        };
        let attrs = restored(&object.attrs, &stat, has);
        self.befores.push(Before { ix, attrs, xattrs, content });
        Ok(())
    }

    /// Whether a new object may take the old one's place unnoticed.
    fn may_exchange(&self, ix: Ix, stat: &Stat) -> bool {
        let object = self.index.set.object(ix);
        self.keep
            && !matches!(object.content, Content::Patch { .. })
            && stat.nlink == 1
            && matches!(object.origin, Origin::Host { .. })
            && self.index.targets(ix).is_empty()
            && !self.index.is_displaced(ix)
            && !self.index.inside_removed(ix)
            && !self.tree.is_open(stat.id.number())
            && !self.open.contains(&stat.id.number())
    }

    /// A new object, with all attributes of the old one, takes its name; the old one is displaced.
    fn exchange(&mut self, ix: Ix, stat: &Stat, content: &Content) -> Result<OldContent> {
        let object = self.index.set.object(ix);
        let Origin::Host { parent, name, .. } = &object.origin else {
            return Ok(OldContent::Keep);
        };
        let old = self.ino(ix);
        let new = match content {
            Content::Slot(slot) => self.take_slot(*slot)?,
            content => {
                let new = self.ops.make(&Shape::new(Kind::File, 0o600))?;
                self.write(new, content)?;
                new
            }
        };
        for key in self.ops.xattrs(old)? {
            let value = self.ops.xattr(old, &key)?;
            self.ops.set_xattr(new, &key, &value, SetXattr::Any)?;
        }
        let mode = Some(stat.mode);
        let (uid, gid, atime) = (Some(stat.uid), Some(stat.gid), Some(stat.atime));
        self.ops.set_attrs(new, &SetAttrs { mode, uid, gid, atime, ..SetAttrs::default() })?;
        self.ops.set_name(self.ino(*parent), name, Some(new))?;
        self.ops.set_name(self.own.grave, &self.grave(ix), Some(old))?;
        self.graves.push((ix, old));
        self.inos[ix.0 as usize] = new;
        Ok(OldContent::Exchanged)
    }

    fn overwrite(&mut self, ix: Ix, stat: &Stat, content: &Content) -> Result<OldContent> {
        let whole = !matches!(content, Content::Patch { .. });
        let ranges = match content {
            Content::Patch { len, keep, extents } => overwritten(stat.size, *len, *keep, extents),
            _ => vec![(0, stat.size)],
        };
        let total: u64 = ranges.iter().map(|(from, to)| to - from).sum();
        let (ino, len) = (stat.id.number(), stat.size);
        let mut extents = Vec::new();
        let file = self.keep && total > self.room;
        if file {
            let before = self.ops.make(&Shape::new(Kind::File, 0o600))?;
            self.ops.set_name(self.own.grave, &before_name(self.txn, ix.0), Some(before))?;
            for (from, to) in ranges {
                self.take((ino, from), (before, from), to - from)?;
                extents.push(Extent { offset: from, data: Data::Hole { len: to - from } });
            }
            self.resize(before, len)?;
        } else if self.keep {
            self.room -= total;
            for (from, to) in ranges {
                let bytes = self.ops.read(ino, from, (to - from) as usize)?;
                extents.push(Extent { offset: from, data: Data::Inline(bytes) });
            }
        }
        self.write(ino, content)?;
        Ok(OldContent::InPlace { len, file, extents, whole })
    }

    fn resize(&mut self, ino: Ino, len: u64) -> Result<()> {
        Ok(self.ops.set_attrs(ino, &SetAttrs { size: Some(len), ..SetAttrs::default() })?)
    }

    /// Moves what is data of a range, at the same offsets: whole pages go over as they lie in the
    /// log, and the rest is copied.  What is left behind is for whoever writes there.
    fn take(&mut self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        let end = from.1.saturating_add(len);
        let (first, last) = (from.1.div_ceil(PAGE), end / PAGE);
        if from.1 != to.1 || first >= last {
            return self.copy(from, to, len);
        }
        let (head, tail) = (first * PAGE - from.1, end - last * PAGE);
        self.copy(from, to, head)?;
        let mut at = first * PAGE;
        while let Some((data, data_end)) = self.ops.next_data(from.0, at)? {
            let (page, stop) = (data / PAGE, data_end.div_ceil(PAGE).min(last));
            if page >= stop {
                break;
            }
            for page in page..stop {
                if !self.ops.take((from.0, page), (to.0, page))? {
                    self.copy((from.0, page * PAGE), (to.0, page * PAGE), PAGE)?;
                }
            }
            at = stop * PAGE;
        }
        self.copy((from.0, last * PAGE), (to.0, last * PAGE), tail)
    }

    /// Copies what is data of a range; the rest of it must be zeros there.
    fn copy(&mut self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        let end = from.1.saturating_add(len);
        let mut at = from.1;
        while let Some((first, last)) = self.ops.next_data(from.0, at)?.filter(|d| d.0 < end) {
            at = first;
            while at < last.min(end) {
                let len = (last.min(end) - at).min(CHUNK);
                let bytes = self.ops.read(from.0, at, len as usize)?;
                self.ops.write(to.0, to.1 + (at - from.1), &bytes)?;
                at += len;
            }
            at = last;
        }
        Ok(())
    }

    fn write(&mut self, ino: Ino, content: &Content) -> Result<()> {
        let (len, keep, extents) = match content {
            Content::Keep => return Ok(()),
            Content::Patch { len, keep, extents } => (*len, *keep, extents),
            Content::Whole { len, extents } => (*len, 0, extents),
            Content::Slot(slot) => {
                let size = match self.ops.lookup(self.own.slots, &slot_name(slot.0)) {
                    Ok(link) => self.ops.attrs(link.ino)?.size,
                    Err(Error::NotFound) => return Err(Failed::UnknownSlot),
                    Err(error) => return Err(error.into()),
                };
                self.resize(ino, 0)?;
                self.copy((slot.0, 0), (ino, 0), size)?;
                return self.resize(ino, size);
            }
        };
        if keep < self.ops.attrs(ino)?.size {
            self.resize(ino, keep)?;
        }
        self.resize(ino, len)?;
        for Extent { offset, data } in extents {
            match data {
                Data::Inline(bytes) => self.ops.write(ino, *offset, bytes)?,
                Data::Hole { len } => self.ops.punch(ino, *offset, *len)?,
                Data::Slot { slot, at, len } => {
                    let Ok(link) = self.ops.lookup(self.own.slots, &slot_name(slot.0)) else {
                        return Err(Failed::UnknownSlot);
                    };
                    self.ops.punch(ino, *offset, *len)?;
                    if link.ino == slot.0 {
                        self.copy((slot.0, *at), (ino, *offset), *len)?;
                    } else {
                        self.take((link.ino, *at), (ino, *offset), *len)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Every changed name.
    fn names(&mut self) -> Result<()> {
        let set = self.index.set;
        for bind in &set.binds {
            let target = bind.target.map(|target| self.ino(target));
            self.ops.set_name(self.ino(bind.dir), &bind.name, target)?;
        }
        for ix in self.all() {
            let moves = !self.index.targets(ix).is_empty();
            match &set.object(ix).origin {
                // What moves out of a directory that is removed leaves no name there.
                Origin::Host { parent, name, .. }
                    if moves
                        && self.index.at(*parent, name).is_none()
                        && self.index.inside_removed(ix) =>
                {
                    let dir = self.ino(*parent);
                    match self.ops.lookup(dir, name) {
                        Ok(link) if link.ino == self.ino(ix) => {
                            self.ops.set_name(dir, name, None)?;
                        }
                        Ok(_) | Err(Error::NotFound) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Origin::Grave { name, .. } if moves => {
                    self.ops.set_name(self.own.grave, name, None)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What has lost its last name goes to the graveyard as it is, or is gone.
    fn displaced(&mut self) -> Result<()> {
        for ix in self.all().filter(|ix| self.index.is_removed(*ix)).collect::<Vec<_>>() {
            let ino = self.ino(ix);
            if self.ops.attrs(ino)?.nlink > 0 && self.index.set.object(ix).kind() != Kind::Dir {
                continue;
            }
            if self.keep {
                self.ops.set_name(self.own.grave, &self.grave(ix), Some(ino))?;
                self.graves.push((ix, ino));
                continue;
            }
            if self.index.set.object(ix).kind() == Kind::Dir {
                for (name, _) in self.ops.list(ino, None, usize::MAX)? {
                    clear(self.ops, ino, &name)?;
                }
            }
        }
        Ok(())
    }

    /// Attributes last: names and content have moved times on the way.
    fn attributes(&mut self, ix: Ix) -> Result<()> {
        let object = self.index.set.object(ix);
        let (ino, attrs) = (self.ino(ix), object.attrs);
        let (uid, gid) = attrs.owner.map_or((None, None), |(uid, gid)| (Some(uid), Some(gid)));
        if attrs != Default::default() {
            let (mode, atime, mtime) = (attrs.mode, attrs.atime, attrs.mtime);
            let mode = mode.map(|mode| mode & 0o7777);
            self.ops.set_attrs(ino, &SetAttrs { mode, uid, gid, atime, mtime, size: None })?;
        }
        for (key, value) in &object.xattrs {
            match value {
                Some(value) => self.ops.set_xattr(ino, key, value, SetXattr::Any)?,
                None => match self.ops.remove_xattr(ino, key) {
                    Ok(()) | Err(Error::NoAttr) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
        Ok(())
    }

    fn stamp(&mut self, ino: Ino) -> Result<Option<Stamp>> {
        match self.ops.attrs(ino) {
            Ok(attrs) if attrs.nlink > 0 => Ok(Some(stamp_of(ino, &attrs))),
            Ok(_) | Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn done(&mut self, lsn: u64) -> Result<Done> {
        let mut graves = Vec::new();
        for (ix, ino) in std::mem::take(&mut self.graves) {
            graves.extend(self.stamp(ino)?.map(|stamp| (ix, stamp)));
        }
        graves.sort_by_key(|(ix, _)| *ix);
        let gone: HashMap<Ix, Stamp> = graves.iter().copied().collect();
        let mut stamps = Vec::with_capacity(self.inos.len());
        for ix in self.all() {
            let here = self.stamp(self.ino(ix))?;
            let is_gone =
                here.is_some_and(|here| gone.get(&ix).is_some_and(|g| g.id() == here.id()));
            stamps.push(here.filter(|_| !is_gone));
        }
        Ok(Done { lsn, stamps, graves, outside: 0 })
    }
}
