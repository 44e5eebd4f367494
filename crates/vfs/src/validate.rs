//! Validation: is everything that the transaction met still as it was? Changes of other
//! transactions of this daemon were found by the engine when they happened; here outsiders' changes
//! are found, by one `statx` per object that was met, and by a look into directories that changed.

use crate::neighbours::{Before, Hold, NotQuiet};
use crate::node::{Base, Listed, Name, Node};
use crate::view::{State, View};
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

impl View {
    /// Makes known what plain programs have changed of names and attributes that were read, and
    /// what they are writing to the files that were: writes in flight land, and stores to mappings
    /// arrive as the writes that they are. To be called before [`View::validate`]; none begins
    /// while the answer lives.
    ///
    /// # Errors
    /// They cannot be kept from it.
    pub fn quiet_others(&self) -> Result<Quiet<'_>, NotQuiet> {
        const TRIES: usize = 50;
        // First: a barrier would wait for the locks that are taken then.
        self.land(Before::Locks);
        let mut tries = 0;
        let locked = loop {
            match self.others.quiet(self.work.txn) {
                Err(NotQuiet::Busy) if tries < TRIES => tries += 1,
                done => break done?,
            }
        };
        Ok(Quiet { _locked: locked })
    }

    /// Waits until the kernel knows what the transaction has seen of plain changes of names,
    /// attributes and lengths: to be called before it ends without effect.
    pub fn land_seen(&self) {
        self.land(Before::End);
    }

    fn land(&self, before: Before) {
        let before = if self.work.frozen.is_some() { Before::EndOfSnapshot } else { before };
        self.others.land_seen(self.work.txn, before);
    }

    /// Every difference between what was met and what is there; waits for an installation in
    /// progress to end and keeps others out meanwhile.
    pub fn validate(&self) -> Vec<OutsideChange> {
        let st = self.state.lock();
        let found = self.differences(&st);
        if found.is_empty() {
            return found;
        }
        // A plain request under way moves a version, and says so only then: once more without any.
        let _nobody = self.others.still();
        self.differences(&st)
    }

    fn differences(&self, st: &State) -> Vec<OutsideChange> {
        let _quiet = self.vol.quiesce();
        let by_us = |(object, by): (Object, Opponent)| (by != Opponent::Outside).then_some(object);
        let stale: Stale =
            self.vol.engine.stale_reads(self.work.txn).into_iter().filter_map(by_us).collect();
        progress::phase(Phase::Checking, || {
            let names = |n: &Node| n.dir().map_or(0, |dir| dir.children().count() as u64);
            st.nodes.iter().map(|(_, node)| names(node)).sum()
        });
        let mut found = Vec::new();
        if let Some(what) = self.judge_root(st, &stale) {
            let path = st.path_of(&self.vol, NodeId::ROOT);
            let written = st.nodes.get(NodeId::ROOT).is_some_and(Node::is_changed);
            found.push(OutsideChange { path, what, written });
        }
        for (id, node) in st.nodes.iter() {
            let Some(base) = &node.base else { continue };
            if base.foreign || node.dir().is_none() {
                continue;
            }
            self.validate_dir(st, id, node, base, &stale, &mut found);
        }
        found
    }

    /// The names and objects met in one backing directory.
    fn validate_dir(
        &self,
        st: &State,
        id: NodeId,
        node: &Node,
        base: &Base,
        stale: &Stale,
        found: &mut Vec<OutsideChange>,
    ) {
        let Some(dir) = node.dir() else { return };
        if dir.children().next().is_none() && dir.base_names.is_none() {
            return;
        }
        // The object itself is judged with its own parent; if it is gone, so is what is in it.
        let Ok(handle) = self.open_unrecorded(st, id) else { return };
        // Not carried forward over our own installations: those note what the directory was when
        // they met it, and an outsider may have been there in between.
        let look = || self.tree().stat(&handle).is_ok_and(|stat| base.stamp == stat.stamp());
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
                    self.judge(st, (&handle, name), (met, named), stale)
                }
                None if same_names() => None,
                None => {
                    let there = self.tree().stat_at(&handle, name);
                    let hidden = |id| self.vol.is_hidden(base.stamp.id, name, id);
                    there.is_ok_and(|stat| !hidden(stat.id)).then_some(What::Appeared)
                }
            };
            let Some(what) = what else { continue };
            let entry = Object::Entry { dir: base.oid(), name: (&**name).into() };
            if what != What::Changed && stale.contains(&entry) {
                continue;
            }
            let met = child.base.and_then(|c| st.nodes.get(c));
            // What was changed below a directory relies on the directory's being there.
            let relied =
                met.is_some_and(|n| n.is_changed() || (what == What::Replaced && n.anchored));
            let path = self.base_path_at(st, id, name);
            found.push(OutsideChange { path, what, written: child.now != child.base || relied });
        }
        if let Some(names) = &dir.base_names
            && !same_names()
            && !stale.contains(&Object::List(base.oid()))
            && !self.lists((&handle, base.stamp.id), names)
        {
            let path = st.base_path_of(self, id);
            // A directory that was removed relies on its being empty.
            let written = node.attr.nlink == 0;
            found.push(OutsideChange { path, what: What::ListingChanged, written });
        }
    }

    /// Whether a backing directory has exactly these names, of objects of these types.
    fn lists(&self, (dir, id): (&Handle, HostId), names: &HashMap<Name, Listed>) -> bool {
        let mut missing = names.len();
        let mut extra = 0;
        let listed = self.tree().list(dir, &mut |item| {
            let told = names.get(item.name);
            if told.is_some_and(|told| item.kind.is_none_or(|kind| kind == told.kind)) {
                missing = missing.saturating_sub(1);
            } else if !self.vol.hides_ino(id, item.name, item.ino) {
                extra += 1;
            }
            true
        });
        listed.is_ok() && missing == 0 && extra == 0
    }

    /// What happened to what was met at a name; `named`: it has that name in this view, too.
    fn judge(
        &self,
        st: &State,
        (dir, name): (&Handle, &Name),
        (met, named): (NodeId, bool),
        stale: &Stale,
    ) -> Option<What> {
        let node = st.nodes.get(met)?;
        let base = node.base.as_ref()?;
        if base.foreign {
            return None;
        }
        match self.tree().stat_at(dir, name) {
            Err(_) => Some(What::Replaced),
            Ok(stat) if stat.id != base.stamp.id => Some(What::Replaced),
            Ok(stat) if stat.kind == Kind::Dir => {
                (!self.same_dir(node, base, &stat, stale, (dir, name))).then_some(What::Changed)
            }
            Ok(stat) if self.has_only_grown(st, met, &stat) && named => None,
            Ok(stat) => {
                let frozen = self.work.is_frozen(base.oid());
                let current = if frozen { base.stamp } else { self.vol.current(base.stamp) };
                (current != stat.stamp()).then_some(What::Changed)
            }
        }
    }

    fn judge_root(&self, st: &State, stale: &Stale) -> Option<What> {
        let node = st.nodes.get(NodeId::ROOT)?;
        let root = self.tree().root();
        let Ok(stat) = self.tree().stat(&root) else { return Some(What::Changed) };
        (!self.same_dir(node, node.base.as_ref()?, &stat, stale, (&root, b"")))
            .then_some(What::Changed)
    }

    /// Directories change their time stamps with every name; what counts as read of their
    /// attributes is who may do what, and the extended attributes that were read.
    fn same_dir(
        &self,
        node: &Node,
        base: &Base,
        stat: &Stat,
        stale: &Stale,
        (dir, name): (&Handle, &[u8]),
    ) -> bool {
        let Some(state) = node.dir() else { return false };
        if stat.stamp() == base.stamp || stale.contains(&Object::Attr(base.oid())) {
            return true;
        }
        let same =
            |key: &[u8], met: &Option<Vec<u8>>| self.tree().get_xattr(dir, name, key).ok() == *met;
        state.rights == (stat.mode, stat.uid, stat.gid)
            && state.read_xattrs.iter().flat_map(|x| x.iter()).all(|(key, met)| same(key, met))
    }

    /// A backing directory by the way it was met, without any record: validation must look even
    /// where the transaction has lost.
    pub(crate) fn open_unrecorded(&self, st: &State, id: NodeId) -> std::io::Result<Handle> {
        let gone = || std::io::Error::from(rustix::io::Errno::STALE);
        let (mut handle, way) = self.way_to(st, id).map_err(|_| gone())?;
        for id in way.into_iter().rev() {
            let base = st.base(id).map_err(|_| gone())?;
            let Some((_, name)) = &base.place else { continue };
            handle = self.tree().open_dir(&handle, name)?;
            if self.tree().stat(&handle)?.id != base.stamp.id {
                return Err(gone());
            }
            self.dirs.put(id, handle.clone());
        }
        Ok(handle)
    }
}
