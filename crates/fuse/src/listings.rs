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
//! **Why this suffices.**  The kernel has a directory locked while one of its names changes, and
//! shared while a listing is asked for; so no listing is asked for or told while a name changes.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};

use crate::mapped::Pages;

/// See the module.
pub(crate) struct Listings {
    pages: Arc<dyn Pages>,
    known: Mutex<HashMap<NodeId, Dir>>,
}

/// A directory that was listed.
#[derive(Default)]
struct Dir {
    /// Changes of its names since it was listed first.
    changes: u64,
    /// After how many of them all was told, or later, that the kernel has of its listing.
    kept: u64,
    /// A listing has begun, and none has ended since.
    under_way: bool,
}

impl Listings {
    pub fn new(pages: Arc<dyn Pages>) -> Listings {
        Listings { pages, known: Mutex::new(rank::LEAF, HashMap::new()) }
    }

    /// A directory is about to be read from its start.
    pub fn begins(&self, dir: NodeId) {
        self.drop_old(dir, |known| !std::mem::replace(&mut known.under_way, true));
    }

    /// It is about to be answered that a listing ends here.
    pub fn ends(&self, dir: NodeId) {
        self.drop_old(dir, |known| {
            known.under_way = false;
            true
        });
    }

    /// Has what is older than the last change dropped, if it is wanted now.
    fn drop_old(&self, dir: NodeId, wanted: impl FnOnce(&mut Dir) -> bool) {
        let changes = {
            let mut all = self.known.lock();
            let known = all.entry(dir).or_default();
            if !wanted(known) || known.kept == known.changes {
                return;
            }
            known.changes
        };
        noted(dir, self.pages.write_back(dir, 0..u64::MAX));
        // Not before: another end must not be told meanwhile without doing the same.
        if let Some(known) = self.known.lock().get_mut(&dir) {
            known.kept = changes;
        }
    }

    /// A name of a directory has changed, and nobody has been told.
    pub fn changed(&self, dir: NodeId) {
        if let Some(known) = self.known.lock().get_mut(&dir) {
            known.changes += 1;
        }
        noted(dir, self.pages.forget_attributes(dir));
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
