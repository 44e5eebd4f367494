//! What a publication marks, and what becomes of requests about it until it is over.

use super::{HELD_MAX, PATIENCE, STUCK};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, Rank, rank};
use systx_base::{Kind, Oid};
use systx_store::io::HostId;
use systx_store::writeset::{Content, Ix, Origin, WriteSet};
use systx_store::{Footprint, Meeting};
use systx_txn::ObjectRef;
use systx_vfs::client;

/// A change that is held, or is being performed after it was.
pub(crate) struct Held(Arc<Marked>);

impl Held {
    /// Whether it is held by this one.
    pub fn is_of(&self, marked: &Arc<Marked>) -> bool {
        Arc::ptr_eq(&self.0, marked)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.phase.lock().held -= 1;
        self.0.changed.notify_all();
    }
}

/// Objects by what is to be invalidated of them.
#[derive(Default)]
pub(super) struct Objects {
    /// Directories with changed names.
    pub dirs: Vec<HostId>,
    pub attrs: Vec<HostId>,
    pub pages: Vec<HostId>,
}

/// What a publication marks.
pub(crate) struct Marked {
    /// What it must not meet while it is decided and not over.
    footprint: Footprint,
    pub(super) all: Objects,
    /// Changed names by directory; whether what has the name so far is a directory.
    pub(super) names: HashMap<Oid, HashMap<Box<[u8]>, bool>>,
    attrs: HashSet<Oid>,
    pub(super) pages: HashSet<Oid>,
    /// Names by which the installation finds what is there, by directory.
    places: HashMap<Oid, HashSet<Box<[u8]>>>,
    /// Taken after `marks`; the decision is made with it held.
    pub(super) phase: Mutex<Phase>,
    pub(super) changed: Event,
}

#[derive(Default)]
pub(super) struct Phase {
    pub decided: bool,
    /// Its program goes on before it is durable.
    pub relaxed: bool,
    /// Changes may go.
    released: bool,
    /// How many of them were held and are not yet done.
    held: usize,
    /// It can be seen: nobody is held any more.
    pub seen: bool,
    pub over: bool,
    /// What was answered old since its invalidation began.
    pub old: Old,
    /// READs are numbered as they come; those of a file below this number may go.
    arrivals: u64,
    let_go: HashMap<Oid, u64>,
    /// The file whose pages are being invalidated, and since when.
    invalidating: Option<(Oid, Instant)>,
    /// Directories to be locked; whether they are.
    pub locks: HashMap<Oid, bool>,
}

#[derive(Default)]
pub(super) struct Old {
    pub lists: HashSet<Oid>,
    /// Directories in which a name of a directory was looked up.
    pub names: HashSet<Oid>,
    pub pages: HashSet<Oid>,
}

impl Old {
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.names.is_empty() && self.pages.is_empty()
    }
}

/// What becomes of a plain read.
#[derive(PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It may be performed.
    Now,
    /// It has to wait: [`Marked::wait`], then ask again.
    Later,
}

/// When a read that has to wait came.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    number: u64,
    at: Instant,
}

fn footprint(writes: &WriteSet, root: Option<HostId>, by_pages: bool) -> Footprint {
    let of = if by_pages { Footprint::by_pages } else { Footprint::new };
    root.map_or_else(Footprint::default, |root| of(writes, root))
}

fn id_of(writes: &WriteSet, root: Option<HostId>, ix: Ix) -> Option<HostId> {
    match &writes.objects.get(ix.0 as usize)?.origin {
        Origin::Root => root,
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(stamp.id()),
        Origin::New(_) => None,
    }
}

impl Marked {
    /// `guarded`: whether there is a guarded directory, in which it could be seen; `by_pages`: what
    /// overwrites different pages of one file does not meet.
    pub(super) fn new(
        writes: &WriteSet,
        root: Option<HostId>,
        (guarded, by_pages): (bool, bool),
    ) -> Marked {
        let footprint = footprint(writes, root, by_pages);
        let nothing = WriteSet::default();
        let writes = if guarded { writes } else { &nothing };
        let id_of = |ix: Ix| id_of(writes, root, ix);
        let is_dir = |ix: Ix| {
            let origin = writes.objects.get(ix.0 as usize).map(|o| &o.origin);
            matches!(origin, Some(Origin::Host { kind: Kind::Dir, .. }))
        };
        let mut names: HashMap<Oid, HashMap<Box<[u8]>, bool>> = HashMap::new();
        let mut dirs = HashMap::new();
        let mut attrs = HashMap::new();
        let mut pages = HashMap::new();
        for bind in &writes.binds {
            if let Some(dir) = id_of(bind.dir) {
                let old_is_dir = bind.displaces.is_some_and(is_dir);
                names.entry(dir.oid()).or_default().insert((&*bind.name).into(), old_is_dir);
                dirs.insert(dir.oid(), dir);
            }
            for id in [Some(bind.dir), bind.target, bind.displaces].into_iter().flatten() {
                if let Some(id) = id_of(id) {
                    attrs.insert(id.oid(), id);
                }
            }
        }
        for (i, object) in writes.objects.iter().enumerate() {
            let Some(id) = id_of(Ix(i as u32)) else { continue };
            // It may be replaced by another inode, which its name then means.
            if let (Content::Whole { .. } | Content::Slot(_), Origin::Host { parent, name, .. }) =
                (&object.content, &object.origin)
                && let Some(dir) = id_of(*parent)
            {
                names.entry(dir.oid()).or_default().entry((&**name).into()).or_insert(false);
                dirs.insert(dir.oid(), dir);
            }
            let content = object.content != Content::Keep;
            if content {
                pages.insert(id.oid(), id);
            }
            if content || object.attrs != Default::default() || !object.xattrs.is_empty() {
                attrs.insert(id.oid(), id);
            }
        }
        let mut places: HashMap<Oid, HashSet<Box<[u8]>>> = HashMap::new();
        for object in &writes.objects {
            if let Origin::Host { parent, name, .. } = &object.origin
                && let Some(dir) = id_of(*parent)
            {
                places.entry(dir.oid()).or_default().insert((&**name).into());
            }
        }
        Marked {
            footprint,
            names,
            places,
            attrs: attrs.keys().copied().collect(),
            pages: pages.keys().copied().collect(),
            all: Objects {
                dirs: dirs.into_values().collect(),
                attrs: attrs.into_values().collect(),
                pages: pages.into_values().collect(),
            },
            phase: Mutex::new(Rank(rank::MARKS.0 + 1), Phase::default()),
            changed: Event::new(),
        }
    }

    pub(super) fn everything(&self) -> Objects {
        let Objects { dirs, attrs, pages } = &self.all;
        Objects { dirs: dirs.clone(), attrs: attrs.clone(), pages: pages.clone() }
    }

    pub(super) fn answered_old(&self) -> Objects {
        let phase = self.phase.lock();
        let old = &phase.old;
        let is_old = |id: &&HostId| {
            let oid = id.oid();
            old.lists.contains(&oid) || old.names.contains(&oid)
        };
        let dirs = self.all.dirs.iter().filter(is_old).copied().collect();
        let pages =
            self.all.pages.iter().filter(|id| old.pages.contains(&id.oid())).copied().collect();
        Objects { dirs, attrs: Vec::new(), pages }
    }

    /// Whether this name, or the listing, of a directory changes.
    pub fn has_name(&self, dir: Oid, name: Option<&[u8]>) -> bool {
        self.names.get(&dir).is_some_and(|names| name.is_none_or(|name| names.contains_key(name)))
    }

    fn has(&self, object: ObjectRef<'_>) -> bool {
        match object {
            ObjectRef::Entry { dir, name } => self.has_name(dir, Some(name)),
            ObjectRef::List(dir) => self.has_name(dir, None),
            ObjectRef::Attr(oid) | ObjectRef::Size(oid) => self.attrs.contains(&oid),
            ObjectRef::Pages { oid, .. } => self.pages.contains(&oid),
        }
    }

    /// Asks for a plain request, with `marks` shared. If the answer is now, the request is to be
    /// performed before that is given back.
    ///
    /// Of what it changes (`writes`, and the version of `subject`) the engine decides. But what is
    /// not in conflict is held after the decision, too, where the installation relies on it: it
    /// finds objects by the names that they had, and looks at their versions.
    pub fn admit(
        &self,
        reads: &[ObjectRef<'_>],
        (writes, subject): (&[ObjectRef<'_>], Option<Oid>),
        arrival: &mut Option<Arrival>,
    ) -> Admitted {
        let relied_upon = |o: &ObjectRef<'_>| match *o {
            ObjectRef::Entry { dir, name } => {
                self.places.get(&dir).is_some_and(|names| names.contains(name))
            }
            _ => false,
        };
        if !subject.is_some_and(|oid| self.attrs.contains(&oid))
            && !writes.iter().any(relied_upon)
            && !reads.iter().any(|o| self.has(*o))
        {
            return Admitted::Now;
        }
        let mut phase = self.phase.lock();
        if phase.seen {
            return Admitted::Now;
        }
        if phase.decided {
            let goes = phase.released && !writes.is_empty();
            return if goes { Admitted::Now } else { Admitted::Later };
        }
        let pages = reads.iter().find_map(|o| match o {
            ObjectRef::Pages { oid, .. } if self.pages.contains(oid) => Some(*oid),
            _ => None,
        });
        if let Some(oid) = pages {
            let came = *arrival.get_or_insert_with(|| {
                phase.arrivals += 1;
                Arrival { number: phase.arrivals, at: Instant::now() }
            });
            let before = phase.let_go.get(&oid).is_some_and(|limit| came.number < *limit);
            let stuck = phase
                .invalidating
                .is_some_and(|(of, since)| of == oid && since.max(came.at).elapsed() >= STUCK);
            if !before {
                if !stuck && came.at.elapsed() < PATIENCE {
                    return Admitted::Later;
                }
                phase.old.pages.insert(oid);
            }
        }
        for object in reads {
            match *object {
                ObjectRef::List(dir) if self.has_name(dir, None) => {
                    phase.old.lists.insert(dir);
                }
                ObjectRef::Entry { dir, name }
                    if self.names.get(&dir).and_then(|n| n.get(name)) == Some(&true) =>
                {
                    phase.old.names.insert(dir);
                }
                _ => {}
            }
        }
        Admitted::Now
    }

    /// Waits until it is worth asking again, for a change or a read, or whether the client lives.
    /// Nothing may be held.
    pub fn wait(&self, changes: bool) {
        let mut phase = self.phase.lock();
        if phase.seen || phase.over || changes && phase.released {
            return;
        }
        if phase.decided {
            self.changed.wait_for(&mut phase, client::LOOK);
        } else {
            self.changed.wait_for(&mut phase, STUCK);
        }
    }

    pub(super) fn wait_over(&self) {
        let mut phase = self.phase.lock();
        while !phase.over {
            self.changed.wait(&mut phase);
        }
    }

    /// Until it is in place, or given up.
    pub(super) fn wait_seen(&self) {
        let mut phase = self.phase.lock();
        while !phase.seen && !phase.over {
            self.changed.wait(&mut phase);
        }
    }

    /// Whether another one has to wait for the end of this one: they touch the same, or change
    /// names in one directory. There a barrier waits in any case: it needs the attributes of the
    /// directory, and these are held.
    pub(super) fn meets(&self, other: &Marked) -> bool {
        self.footprint.meets(&other.footprint) != Meeting::Apart
            || self.names.keys().any(|dir| other.names.contains_key(dir))
    }

    /// Whether both change the same objects; if they do not meet, different pages of files.
    pub(super) fn shares(&self, other: &Marked) -> bool {
        self.attrs.iter().any(|oid| other.attrs.contains(oid))
    }

    /// Whether it is decided, changes attributes of this object, and has yet to tell the kernel of
    /// them.
    pub(super) fn will_tell(&self, oid: Oid) -> bool {
        let phase = self.phase.lock();
        self.attrs.contains(&oid) && phase.decided && !phase.seen
    }

    /// A change has to wait: reads wait for it in turn, until the answer is dropped.
    pub fn hold(self: &Arc<Self>) -> Held {
        self.phase.lock().held += 1;
        Held(Arc::clone(self))
    }

    pub(super) fn let_changes_go(&self) {
        let begun = Instant::now();
        let mut phase = self.phase.lock();
        phase.released = true;
        self.changed.notify_all();
        while phase.held > 0 && begun.elapsed() < HELD_MAX {
            self.changed.wait_for(&mut phase, HELD_MAX);
        }
    }

    /// What was answered old in a directory so far does not count; whether a directory's name was.
    pub(super) fn forget_dir(&self, dir: Oid) -> bool {
        let mut phase = self.phase.lock();
        phase.old.lists.remove(&dir);
        phase.old.names.remove(&dir)
    }

    pub(super) fn begin_pages(&self, oid: Oid) {
        {
            let mut phase = self.phase.lock();
            phase.old.pages.remove(&oid);
            let limit = phase.arrivals + 1;
            phase.let_go.insert(oid, limit);
            phase.invalidating = Some((oid, Instant::now()));
        }
        self.changed.notify_all();
    }

    pub(super) fn end_pages(&self) {
        self.phase.lock().invalidating = None;
    }

    // ---- locked directories -----------------------------------------------------------------

    /// The next barrier in this directory is to stay.
    pub(super) fn lock(&self, dir: Oid) {
        self.phase.lock().locks.insert(dir, false);
    }

    /// A barrier has the directory's lock, and keeps it if that is wanted and `stay`.
    pub fn reached(&self, dir: Oid, stay: bool) {
        let mut phase = self.phase.lock();
        let Some(reached) = phase.locks.get_mut(&dir) else { return };
        *reached = true;
        self.changed.notify_all();
        while stay && !phase.over && phase.locks.contains_key(&dir) {
            self.changed.wait(&mut phase);
        }
    }

    pub(super) fn all_reached(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        let mut phase = self.phase.lock();
        loop {
            if phase.locks.values().all(|reached| *reached) {
                return true;
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut phase, left);
        }
    }
}
