//! Which part of a transaction an undo of some paths takes back.

use crate::writeset::Ix;
use crate::writeset::index::Index;

/// Names and objects of a transaction's write set.
pub(super) struct Part {
    binds: Vec<bool>,
    objects: Vec<bool>,
}

impl Part {
    /// All of it.
    pub fn all(index: &Index<'_>) -> Part {
        let set = index.set;
        Part { binds: vec![true; set.binds.len()], objects: vec![true; set.objects.len()] }
    }

    /// What is at paths that are `wanted`. An object that moved has its old and its new name taken
    /// back together, whichever of them is wanted; and with a name goes what changed in the object.
    pub fn of(index: &Index<'_>, wanted: &dyn Fn(&[u8]) -> bool) -> Part {
        let set = index.set;
        let is = |path: Option<Vec<u8>>| path.is_some_and(|path| wanted(&path));
        let mut binds: Vec<bool> = set.binds.iter().map(|b| is(index.bind_path(b))).collect();
        let objects = (0..set.objects.len() as u32).map(Ix);
        let mut objects: Vec<bool> =
            objects.map(|ix| is(index.final_path(ix)) || is(index.origin_path(ix))).collect();
        let moved = |ix: Ix| !set.object(ix).is_new() && !index.targets(ix).is_empty();
        loop {
            let before = binds.iter().filter(|b| **b).count();
            for (bind, picked) in set.binds.iter().zip(&binds).filter(|(_, picked)| **picked) {
                debug_assert!(picked);
                for ix in [bind.target, bind.displaces].into_iter().flatten() {
                    objects[ix.0 as usize] |= moved(ix) || bind.target == Some(ix);
                }
            }
            for (bind, picked) in set.binds.iter().zip(&mut binds) {
                let ends = [bind.target, bind.displaces].into_iter().flatten();
                *picked |= ends.into_iter().any(|ix| moved(ix) && objects[ix.0 as usize]);
            }
            if binds.iter().filter(|b| **b).count() == before {
                return Part { binds, objects };
            }
        }
    }

    /// Whether the name with this position in the write set is taken back.
    pub fn has_bind(&self, bind: usize) -> bool {
        self.binds[bind]
    }

    /// Whether changes of an object are.
    pub fn has(&self, ix: Ix) -> bool {
        self.objects[ix.0 as usize]
    }
}
