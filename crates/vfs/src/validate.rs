//! Validation: is everything that the transaction met still as it was? Changes of other
//! transactions of this daemon were found by the engine when they happened; here outsiders' changes
//! are found, by one `statx` per object that was met, and by a look into directories that changed.

use crate::neighbours::{Before, Hold, NotQuiet};
use crate::node::{Base, Listed, Name, Node};
use crate::reach::Reach;
use crate::state::State;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use systx_base::progress::{self, Phase};
use systx_base::{Kind, NodeId};
use systx_store::io::{Handle, HostId, Stat};
use systx_txn::{Object, Opponent};

/// What an outsider did to something that a transaction had met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideChange {
    /// The path on the host.
    pub path: Vec<u8>,
    /// What happened to it.
    pub what: What,
    /// Whether the transaction also changed it, so that even snapshot isolation must give way.
    pub written: bool,
}

/// See [`OutsideChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Content or attributes differ.
    Changed,
    /// The name is gone, or names something else.
    Replaced,
    /// There was nothing of that name; now there is.
    Appeared,
    /// A directory that was listed has other names now.
    ListingChanged,
}

/// Nobody writes to files that a transaction has read.
pub struct Quiet<'v> {
    _locked: Box<dyn Hold + 'v>,
}

/// Reads that the engine lists as stale already: another transaction committed what makes them so.
type Stale = HashSet<Object>;

impl<'v> Quiet<'v> {
    /// See [`View::quiet_others`](crate::view::View::quiet_others).
    pub(crate) fn of(reach: &'v Reach) -> Result<Quiet<'v>, NotQuiet> {
        const TRIES: usize = 50;
        // First: a barrier would wait for the locks that are taken then.
        reach.work.land(Before::Locks);
        let mut tries = 0;
        let locked = loop {
            match reach.others.quiet(reach.work.txn) {
                Err(NotQuiet::Busy) if tries < TRIES => tries += 1,
                done => break done?,
            }
        };
        Ok(Quiet { _locked: locked })
    }
}

/// See [`View::validate`](crate::view::View::validate).
pub(crate) fn differences(reach: &Reach, st: &State) -> Vec<OutsideChange> {
    let found = Validation::of(reach, st);
    if found.is_empty() {
        return found;
    }
    // A plain request under way moves a version, and says so only then: once more without any.
    let _nobody = reach.others.still();
    Validation::of(reach, st)
}

/// A look at everything that was met.
struct Validation<'a> {
    reach: &'a Reach,
    st: &'a State,
    stale: Stale,
    found: Vec<OutsideChange>,
}

impl Validation<'_> {
    fn of(reach: &Reach, st: &State) -> Vec<OutsideChange> {
        let _quiet = reach.vol.quiesce();
        let by_us = |(object, by): (Object, Opponent)| (by != Opponent::Outside).then_some(object);
        let stale = reach.vol.engine.stale_reads(reach.work.txn).into_iter().filter_map(by_us);
        progress::phase(Phase::Checking, || {
            let names = |n: &Node| n.dir().map_or(0, |dir| dir.children().count() as u64);
            st.nodes.iter().map(|(_, node)| names(node)).sum()
        });
        let mut look = Validation { reach, st, stale: stale.collect(), found: Vec::new() };
        if let Some(what) = look.judge_root() {
            let path = st.path_of(&reach.vol, NodeId::ROOT);
            let written = st.nodes.get(NodeId::ROOT).is_some_and(Node::is_changed);
            look.found.push(OutsideChange { path, what, written });
        }
        for (id, node) in st.nodes.iter() {
            let Some(base) = &node.base else { continue };
            if base.foreign || node.dir().is_none() {
                continue;
            }
            look.validate_dir(id, node, base);
        }
        look.found
    }

    /// The names and objects met in one backing directory.
    fn validate_dir(&mut self, id: NodeId, node: &Node, base: &Base) {
        let (reach, st) = (self.reach, self.st);
        let Some(dir) = node.dir() else { return };
        if dir.children().next().is_none() && dir.base_names.is_none() {
            return;
        }
        // The object itself is judged with its own parent; if it is gone, so is what is in it.
        let Ok(handle) = reach.open_unrecorded(st, id) else { return };
        // Not carried forward over our own installations: those note what the directory was when
        // they met it, and an outsider may have been there in between.
        let look = || reach.tree().stat(&handle).is_ok_and(|stat| base.stamp == stat.stamp());
        // Asked only if names that were not there, or all names, were met.
        let looked = OnceCell::new();
        let same_names = || *looked.get_or_init(look);
        for (name, child) in dir.children() {
            progress::step();
            if st.is_glimpsed(child) {
                continue;
            }
            let what = match child.base {
                Some(met) => {
                    let named = child.now == child.base;
                    self.judge((&handle, name), (met, named))
                }
                None if same_names() => None,
                None => {
                    let there = reach.tree().stat_at(&handle, name);
                    let hidden = |id| reach.vol.is_hidden(base.stamp.id(), name, id);
                    there.is_ok_and(|stat| !hidden(stat.id)).then_some(What::Appeared)
                }
            };
            let Some(what) = what else { continue };
            let entry = Object::Entry { dir: base.oid(), name: (&**name).into() };
            if what != What::Changed && self.stale.contains(&entry) {
                continue;
            }
            let met = child.base.and_then(|c| st.nodes.get(c));
            // What was changed below a directory relies on the directory's being there.
            let relied =
                met.is_some_and(|n| n.is_changed() || (what == What::Replaced && n.anchored));
            let path = st.base_path_in(&reach.vol, id, name);
            self.found.push(OutsideChange {
                path,
                what,
                written: child.now != child.base || relied,
            });
        }
        if let Some(names) = &dir.base_names
            && !same_names()
            && !self.stale.contains(&Object::List(base.oid()))
            && !self.lists((&handle, base.stamp.id()), names)
        {
            let path = st.base_path_of(&reach.vol, id);
            // A directory that was removed relies on its being empty.
            let written = node.attr.nlink == 0;
            self.found.push(OutsideChange { path, what: What::ListingChanged, written });
        }
    }

    /// Whether a backing directory has exactly these names, of objects of these types.
    fn lists(&self, (dir, id): (&Handle, HostId), names: &HashMap<Name, Listed>) -> bool {
        let mut missing = names.len();
        let mut extra = 0;
        let listed = self.reach.tree().list(dir, &mut |item| {
            let told = names.get(item.name);
            if told.is_some_and(|told| item.kind.is_none_or(|kind| kind == told.kind)) {
                missing = missing.saturating_sub(1);
            } else if !self.reach.vol.hides_ino(id, item.name, item.ino) {
                extra += 1;
            }
            true
        });
        listed.is_ok() && missing == 0 && extra == 0
    }

    /// What happened to what was met at a name; `named`: it has that name in this view, too.
    fn judge(&self, (dir, name): (&Handle, &Name), (met, named): (NodeId, bool)) -> Option<What> {
        let reach = &self.reach;
        let node = self.st.nodes.get(met)?;
        let base = node.base.as_ref()?;
        if base.foreign {
            return None;
        }
        match reach.tree().stat_at(dir, name) {
            Err(_) => Some(What::Replaced),
            Ok(stat) if stat.id != base.stamp.id() => Some(What::Replaced),
            Ok(stat) if stat.kind == Kind::Dir => {
                (!self.same_dir(node, base, &stat, (dir, name))).then_some(What::Changed)
            }
            Ok(stat) if self.st.has_only_grown(met, &stat) && named => None,
            Ok(stat) => {
                let frozen = reach.work.is_frozen(base.oid());
                let current = if frozen { base.stamp } else { reach.vol.current(base.stamp) };
                (current != stat.stamp()).then_some(What::Changed)
            }
        }
    }

    fn judge_root(&self) -> Option<What> {
        let node = self.st.nodes.get(NodeId::ROOT)?;
        let root = self.reach.tree().root();
        let Ok(stat) = self.reach.tree().stat(&root) else { return Some(What::Changed) };
        (!self.same_dir(node, node.base.as_ref()?, &stat, (&root, b""))).then_some(What::Changed)
    }

    /// Directories change their time stamps with every name; what counts as read of their
    /// attributes is who may do what, and the extended attributes that were read.
    fn same_dir(
        &self,
        node: &Node,
        base: &Base,
        stat: &Stat,
        (dir, name): (&Handle, &[u8]),
    ) -> bool {
        let Some(state) = node.dir() else { return false };
        if stat.stamp() == base.stamp || self.stale.contains(&Object::Attr(base.oid())) {
            return true;
        }
        let same = |key: &[u8], met: &Option<Vec<u8>>| {
            self.reach.tree().get_xattr(dir, name, key).ok() == *met
        };
        state.rights == (stat.mode, stat.uid, stat.gid)
            && state.read_xattrs.iter().flat_map(|x| x.iter()).all(|(key, met)| same(key, met))
    }
}
