//! Commits that survive before anybody sees them.
//!
//! Whoever commits for others may have to say when what is new becomes visible, which is not when
//! it is durable.  Until then the *veil* lies above the tree: what the commit has changed, as it
//! was.  It is made of the same outcomes as a transaction, so readers need nothing for it.
//!
//! What was overwritten is not copied: a page that was only in memory is shared, and one that lies
//! on the medium stays there, because its segment is not freed until the commit is shown.  A power
//! cut takes the veil away: the commit is in the log.
//!
//! Two commits under the veil may change names in one directory, or overwrite different pages of
//! one file, and change nothing else together: the layer above sees to that.  Its times then go on
//! by one commit each time that one is shown, whichever it is, so that its version moves each time.

use crate::format::Ino;
use crate::txn::Txn;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use systx_base::Time;

/// What a commit under the veil is known by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Hidden {
    pub(crate) ticket: u64,
}

impl Hidden {
    /// For [`crate::Volume::durable`].
    pub fn ticket(self) -> u64 {
        self.ticket
    }
}

/// What is between the tree and those who read it.
#[derive(Default)]
pub struct Veil {
    /// The tree as it was, where it has changed.
    pub above: Txn,
    /// What each commit hides, by its ticket.
    pub commits: HashMap<u64, Hides>,
    /// The times that an object gets one after the other, for each commit that changes it.
    pub times: BTreeMap<Ino, VecDeque<(Time, Time)>>,
}

/// What one commit hides.
#[derive(Default)]
pub struct Hides {
    /// Names, by directory.
    pub names: Vec<(Ino, Vec<u8>)>,
    /// By how much it changes the number of names of an object.
    pub links: BTreeMap<Ino, i64>,
    /// Objects with other attributes.
    pub objects: BTreeSet<Ino>,
    /// Pages that it has overwritten or cut off, by file.
    pub pages: BTreeMap<Ino, Vec<u64>>,
    /// Segments with these pages.
    pub segments: Vec<u32>,
    /// Objects that it holds.
    pub held: Vec<Ino>,
}
