//! The directories of a write set that are open, which are few: it may name more of them than a
//! process may have descriptors, and each in the next one, deeper than a stack.

use crate::io::Handle;
use crate::writeset::Ix;
use std::collections::{HashMap, HashSet, VecDeque};

/// So many are open at once.
pub(crate) const OPEN_MAX: usize = 256;

/// See the module.  One that is not open any more is opened again by its name.
#[derive(Default)]
pub(crate) struct OpenDirs {
    open: HashMap<Ix, Handle>,
    /// In the order in which they were opened.
    order: VecDeque<Ix>,
}

impl OpenDirs {
    pub fn get(&self, ix: Ix) -> Option<Handle> {
        self.open.get(&ix).cloned()
    }

    /// Adds one; the one that has been open for longest goes.
    pub fn put(&mut self, ix: Ix, dir: Handle) {
        if self.open.insert(ix, dir).is_none() {
            self.order.push_back(ix);
        }
        while self.order.len() > OPEN_MAX {
            self.order.pop_front().map(|first| self.open.remove(&first));
        }
    }

    /// The directories above this one that have to be opened before it, its own first; `above` is
    /// the directory that one is in.
    pub fn closed_above(&self, mut ix: Ix, above: impl Fn(Ix) -> Option<Ix>) -> Vec<Ix> {
        let mut met = HashSet::from([ix]);
        let mut closed = Vec::new();
        while let Some(dir) = above(ix) {
            // What is known may be a circle.
            if self.open.contains_key(&dir) || !met.insert(dir) {
                break;
            }
            closed.push(dir);
            ix = dir;
        }
        closed
    }
}
