//! Which transactions touch the same things.  Two whose installations could meet are never both in
//! the part of the journal that recovery would install: the earlier one is checkpointed first.  So
//! recovery can take each record for itself, and needs no order among them.
//!
//! The one exception are files that both change *in place*, content or attributes: such a file is
//! found by the same inode under the same name whatever is installed of either, so the earlier one
//! needs only be installed before the later one is committed, and recovery does both in their order
//! ([`crate::recovery`]). A small file that is changed again and again costs no checkpoint each
//! time. That is so only if the later one met the version that the earlier one left: doing the
//! earlier one again would undo what somebody else did in between.
//!
//! So are directories of which nothing but the times is set, beside names that change in them: a
//! server that keeps what it knows of a directory by that time does so in each transaction. One
//! that changes names there and sets no times meets those before it in full: to set theirs again
//! would take back the time at which the names have changed.

use crate::io::{HostId, Stamp};
use crate::writeset::index::Index;
use crate::writeset::{Attrs, Content, Extent, Ix, Object, Origin, WriteSet};
use std::collections::{HashMap, HashSet};
use systx_base::Kind;

/// Pages by which files are shared, in bytes.
const PAGE: u64 = 4096;

/// Write sets of which none touches what another one touches: they may be committed as one group.
pub struct Disjoint {
    root: HostId,
    by_pages: bool,
    footprints: Vec<Footprint>,
}

impl Disjoint {
    /// None yet, on the volume with this root.
    pub fn below(root: HostId) -> Disjoint {
        Disjoint { root, by_pages: false, footprints: Vec::new() }
    }

    /// As [`Disjoint::below`]; files are shared by pages, see [`Footprint::by_pages`].
    pub fn by_pages_below(root: HostId) -> Disjoint {
        Disjoint { by_pages: true, ..Disjoint::below(root) }
    }

    /// Adds a write set; false, and it is not added, if it touches what one of the others touches.
    pub fn add(&mut self, set: &WriteSet) -> bool {
        let footprint = match self.by_pages {
            true => Footprint::by_pages(set, self.root),
            false => Footprint::new(set, self.root),
        };
        let apart = |other: &Footprint| other.meets(&footprint) == Meeting::Apart;
        let fits = self.footprints.iter().all(apart);
        if fits {
            self.footprints.push(footprint);
        }
        fits
    }
}

/// A file that is changed in place, or a directory whose times are set.
#[derive(Debug)]
struct InPlace {
    is_dir: bool,
    /// The version that the transaction met.
    met: Stamp,
    /// The one that it left; `None`: it is not installed.
    left: Option<Stamp>,
    /// The pages that are overwritten, first and last, if that is all that happens to a file, and
    /// whoever overwrites others of it is not met ([`Footprint::by_pages`]).
    pages: Option<Vec<(u64, u64)>>,
}

/// What a transaction changes, and what it needs to find unchanged.
#[derive(Default, Debug)]
pub struct Footprint {
    /// Objects that are changed, made, moved or displaced, but for those that are changed in place.
    touched: HashSet<HostId>,
    /// Files that are changed in place, and directories whose times are set, under the name and
    /// with the inode that they have.
    in_place: HashMap<HostId, InPlace>,
    /// Objects that are referred to in any way.
    needed: HashSet<HostId>,
    /// Names that are changed.
    names: HashSet<(HostId, Vec<u8>)>,
}

impl Footprint {
    /// As [`Footprint::new`], on a store that takes commits which overwrite different pages of one
    /// file side by side ([`crate::io::Tree::shares_files`]).
    pub fn by_pages(set: &WriteSet, root: HostId) -> Footprint {
        let mut this = Footprint::new(set, root);
        for (i, object) in set.objects.iter().enumerate() {
            if let Some(id) = id_of(set, Ix(i as u32), root)
                && let Some(changed) = this.in_place.get_mut(&id)
            {
                changed.pages = overwritten_pages(object);
            }
        }
        this
    }

    /// Of a write set below a root.
    pub fn new(set: &WriteSet, root: HostId) -> Footprint {
        let index = Index::new(set);
        let mut this = Footprint::default();
        for (i, object) in set.objects.iter().enumerate() {
            let ix = Ix(i as u32);
            let Some(id) = id_of(set, ix, root) else { continue };
            this.needed.insert(id);
            let is_dir = is_timed_dir(&index, ix);
            if (is_dir || is_in_place(&index, ix))
                && let Origin::Host { stamp, .. } = &object.origin
            {
                this.in_place.insert(id, InPlace { is_dir, met: *stamp, left: None, pages: None });
            } else if object.is_changed() || index.is_displaced(ix) || !index.targets(ix).is_empty()
            {
                this.touched.insert(id);
            }
        }
        for bind in &set.binds {
            if let Some(dir) = id_of(set, bind.dir, root) {
                this.names.insert((dir, bind.name.clone()));
            }
        }
        this
    }

    /// Adds what the installation made.
    pub(crate) fn installed(&mut self, set: &WriteSet, stamps: &[Option<Stamp>], root: HostId) {
        for (i, stamp) in stamps.iter().enumerate() {
            let (Some(stamp), ix) = (stamp, Ix(i as u32)) else { continue };
            // Exchanged files have a new identity, too.
            if id_of(set, ix, root) != Some(stamp.id) {
                self.touched.insert(stamp.id);
            } else if let Some(file) = self.in_place.get_mut(&stamp.id) {
                file.left = Some(*stamp);
            }
        }
        for bind in &set.binds {
            if let Some(Some(dir)) = stamps.get(bind.dir.0 as usize) {
                self.names.insert((dir.id, bind.name.clone()));
            }
        }
    }

    /// What it changes has been copied up, which moves stamps and may give files other numbers.
    pub(crate) fn raised(&mut self, set: &WriteSet, root: HostId) {
        let now = Footprint::new(set, root);
        // Under their old numbers others may know them.
        self.touched.extend(self.in_place.keys().filter(|id| !now.in_place.contains_key(id)));
        self.touched.extend(now.touched);
        self.needed.extend(now.needed);
        self.in_place = now.in_place;
    }

    /// Whether, and how, `later` meets this one.
    pub fn meets(&self, later: &Footprint) -> Meeting {
        let any = |a: &HashSet<HostId>, b: &HashSet<HostId>| {
            let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
            few.iter().any(|id| many.contains(id))
        };
        if any(&self.touched, &later.needed)
            || any(&later.touched, &self.needed)
            || self.names.iter().any(|name| later.names.contains(name))
            || self.dirs().any(|id| later.needed.contains(id) && !later.in_place.contains_key(id))
        {
            Meeting::Full
        } else {
            self.meets_in_place(later)
        }
    }

    /// It was not committed after all: what it met is what is there.
    pub(crate) fn dropped(&mut self) {
        self.in_place.values_mut().for_each(|file| file.left = Some(file.met));
    }

    /// `later` has met what this one left, and is in the journal: for files that both change in
    /// place it is the one to be met from now on.
    pub(crate) fn followed_by(&mut self, later: &Footprint) {
        self.in_place.retain(|id, _| !later.in_place.contains_key(id));
    }

    /// Directories whose times are set.
    fn dirs(&self) -> impl Iterator<Item = &HostId> {
        self.in_place.iter().filter(|(_, changed)| changed.is_dir).map(|(id, _)| id)
    }

    fn meets_in_place(&self, later: &Footprint) -> Meeting {
        let mut meeting = Meeting::Apart;
        for (id, file) in &later.in_place {
            let earlier = self.in_place.get(id);
            if let (Some(mine), Some(theirs)) =
                (earlier.and_then(|e| e.pages.as_ref()), &file.pages)
                && !mine.iter().any(|a| theirs.iter().any(|b| a.0 <= b.1 && b.0 <= a.1))
            {
                continue;
            }
            match earlier.map(|earlier| earlier.left) {
                // Names that are installed there later would move the time on from what is set.
                None if file.is_dir && self.needed.contains(id) => meeting = Meeting::InPlace,
                None => {}
                Some(left) if left.is_none_or(|left| left == file.met) => {
                    meeting = Meeting::InPlace
                }
                Some(_) => return Meeting::Full,
            }
        }
        meeting
    }
}

/// How two transactions meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// They do not: their order means nothing.
    Apart,
    /// Only in what both change in place, nobody else in between, or in directories where the later
    /// one sets the times: it may be committed when the earlier one is installed.
    InPlace,
    /// The later one may be committed when the earlier one is installed for good.
    Full,
}

/// The pages of a file that a transaction overwrites, first and last, if it does nothing else to
/// it: the length stays, and the attributes but for the times that move by that.
#[must_use]
pub fn overwritten_pages(object: &Object) -> Option<Vec<(u64, u64)>> {
    let Origin::Host { stamp, kind: Kind::File, .. } = &object.origin else { return None };
    let Content::Patch { len, keep, extents } = &object.content else { return None };
    let stays = *len == stamp.size && keep >= len;
    if !stays || object.attrs != Attrs::default() || !object.xattrs.is_empty() {
        return None;
    }
    let of = |e: &Extent| (e.offset / PAGE, (e.offset + e.data.len().max(1) - 1) / PAGE);
    Some(extents.iter().map(of).collect())
}

/// Whether all that happens to an object is a change in place of a file.
pub(crate) fn is_in_place(index: &Index<'_>, ix: Ix) -> bool {
    let object = index.set.object(ix);
    let stays = matches!(object.origin, Origin::Host { kind: Kind::File, .. })
        && !index.is_displaced(ix)
        && index.targets(ix).is_empty();
    stays && object.is_changed() && matches!(object.content, Content::Keep | Content::Patch { .. })
}

/// Whether all that happens to an object is that times of a directory are set, the modification
/// time among them.
fn is_timed_dir(index: &Index<'_>, ix: Ix) -> bool {
    let object = index.set.object(ix);
    let Attrs { mode, owner, atime, mtime } = object.attrs;
    let stays = matches!(object.origin, Origin::Host { kind: Kind::Dir, .. })
        && !index.is_displaced(ix)
        && index.targets(ix).is_empty();
    // An access time alone would not be set by all that follow.
    let times = mtime.is_some() && atime.is_none() && mode.is_none() && owner.is_none();
    stays && times && object.xattrs.is_empty()
}

fn id_of(set: &WriteSet, ix: Ix, root: HostId) -> Option<HostId> {
    match &set.object(ix).origin {
        Origin::Root => Some(root),
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(stamp.id),
        Origin::New(_) => None,
    }
}
