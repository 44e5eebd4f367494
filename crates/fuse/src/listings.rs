//! What the kernel keeps of a directory while its names change: of its listing, and of its
//! attributes.  Whoever begins to look after a change has to see it, and the kernel (Linux 6.18)
//! does not see to that alone.
//!
//! **Listings.**  Names that the kernel is told it collects, whoever asks for them, and an empty
//! answer at the place where the collection stops makes it the whole listing.  Whether the
//! directory has changed since the collection began, it looks for those only that are at their
//! start.  So who began after a change, and is in the middle when somebody else comes to the end of
//! a listing from before it, would go on with that older one.  Before such an end is answered, the
//! kernel's pages of the collection are dropped: it finds one missing, and asks
//! ([`Listings::ends`]).
//!
//! The first listing after a change would lose its pages so as well, if nobody had told that what
//! was there before it is of no use any more.  That is done at its start, where no other listing is
//! under way ([`Listings::begins`]).  If one was all the same, whose end somebody else seemed to
//! be, the kernel is left with a collection that it never completes: it asks for each listing.
//!
//! **Attributes.**  When a name has changed, the kernel doubts the attributes of the directory, but
//! believes those that it is told afterwards, also if they were asked for before.  They may be on
//! their way, answered before the change was performed.  So the kernel is told to doubt them before
//! the change is answered, by the one way that makes it refuse what is on its way
//! ([`Listings::changed`]).
//!
//! That costs up to a fifth of the change, and mostly nothing is on its way: a thread that asks for
//! something has had its last answer.  So it is left out where nobody was told of the directory
//! since the last change but the thread that changes it.  Then an answer that began before that
//! change may follow it, so the kernel is told before such an answer ([`Listings::tells`]).
//!
//! **Why this suffices.**  The kernel has a directory locked while one of its names changes, and
//! shared while a listing is asked for; so no listing is asked for or told while a name changes.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};

use crate::mapped::Pages;

/// See the module.
pub(crate) struct Listings {
    pages: Arc<dyn Pages>,
    known: Mutex<HashMap<NodeId, Dir>>,
    /// How many names have changed. It moves with `known` locked.
    now: AtomicU64,
}

/// A moment, by the changes before it.
#[derive(Clone, Copy)]
pub(crate) struct Moment(u64);

/// To whose requests attributes of a directory were answered since it changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asker {
    Nobody,
    /// A thread, by its number in its requests.
    One(u32),
    Many,
}

impl Asker {
    fn and(self, tid: u32) -> Asker {
        match self {
            // The kernel's own threads, and those of some PID namespaces, have no number.
            _ if tid == 0 => Asker::Many,
            Asker::Nobody => Asker::One(tid),
            Asker::One(other) if other == tid => self,
            Asker::One(_) | Asker::Many => Asker::Many,
        }
    }
}

/// A directory that was listed, asked about or changed.
struct Dir {
    /// The last change of its names, as a [`Moment`].
    changed: u64,
    asker: Asker,
    /// If it was listed.
    listing: Option<Listing>,
}

#[derive(Default)]
struct Listing {
    /// Changes of the directory's names since it was listed first.
    changes: u64,
    /// After how many of them all was told, or later, that the kernel has of its listing.
    kept: u64,
    /// A listing has begun, and none has ended since.
    under_way: bool,
}

impl Listings {
    pub fn new(pages: Arc<dyn Pages>) -> Listings {
        let known = Mutex::new(rank::LEAF, HashMap::new());
        Listings { pages, known, now: AtomicU64::new(0) }
    }

    /// A directory is about to be read from its start.
    pub fn begins(&self, dir: NodeId) {
        self.drop_old(dir, |listing| !std::mem::replace(&mut listing.under_way, true));
    }

    /// It is about to be answered that a listing ends here.
    pub fn ends(&self, dir: NodeId) {
        self.drop_old(dir, |listing| {
            listing.under_way = false;
            true
        });
    }

    /// Has what is older than the last change dropped, if it is wanted now.
    fn drop_old(&self, dir: NodeId, wanted: impl FnOnce(&mut Listing) -> bool) {
        let listed = self.with(dir, |known| {
            let listing = known.listing.get_or_insert_default();
            (wanted(listing) && listing.kept != listing.changes).then_some(listing.changes)
        });
        let Some(changes) = listed else { return };
        noted(dir, self.pages.write_back(dir, 0..u64::MAX));
        // Not before: another end must not be told meanwhile without doing the same.
        if let Some(known) = self.known.lock().get_mut(&dir)
            && let Some(listing) = &mut known.listing
        {
            listing.kept = changes;
        }
    }

    /// Everything that is looked at from here on is from after all changes until now.
    pub fn now(&self) -> Moment {
        // Acquire: the effects of a change that is counted are seen.
        Moment(self.now.load(Acquire))
    }

    /// A name of a directory was changed by this thread, and nobody has been told.
    pub fn changed(&self, dir: NodeId, tid: u32) {
        let asker = self.with(dir, |known| {
            known.changed = self.now.fetch_add(1, Release) + 1;
            if let Some(listing) = &mut known.listing {
                listing.changes += 1;
            }
            std::mem::replace(&mut known.asker, Asker::Nobody)
        });
        if asker != Asker::Nobody && asker != Asker::One(tid) {
            noted(dir, self.pages.forget_attributes(dir));
        }
    }

    /// Attributes of a directory are about to be answered to a request of this thread that was
    /// `begun` then.
    pub fn tells(&self, dir: NodeId, tid: u32, begun: Moment) {
        let is_old = self.with(dir, |known| {
            known.asker = known.asker.and(tid);
            known.changed > begun.0
        });
        if is_old {
            noted(dir, self.pages.forget_attributes(dir));
        }
    }

    /// Looks at the record of a directory. One without a record may have been forgotten just now,
    /// while it was looked up anew: so anybody may have asked, and any change may have been one of
    /// it.
    fn with<T>(&self, dir: NodeId, of: impl FnOnce(&mut Dir) -> T) -> T {
        let mut all = self.known.lock();
        let now = self.now.load(Relaxed);
        let new = || Dir { changed: now, asker: Asker::Many, listing: None };
        of(all.entry(dir).or_insert_with(new))
    }

    pub fn forget(&self, dir: NodeId) {
        self.known.lock().remove(&dir);
    }
}

fn noted(dir: NodeId, told: io::Result<()>) {
    // An error: the kernel does not know it, as a rule.
    if let Err(error) = told {
        tracing::debug!(dir = dir.0, %error, "the kernel was not told of a change");
    }
}

#[cfg(test)]
mod tests;
