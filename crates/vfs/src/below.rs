//! The backing file system, as a view meets it: what is looked at for the first time is recorded in
//! the conflict engine and becomes a node.
//!
//! Every access is first recorded and then performed, so that a conflicting access of another
//! transaction finds the record. What was handed out is remembered in the node, so that a second
//! access never asks the backing file system.
//!
//! **Invariants**
//! - V1 a name is in `children` with the backing object it had (`base`) before it is changed.
//! - V2 a node with a base was recorded as read (entry, attributes, size) before it was handed out.
//! - V3 only objects with a base have keys in the engine; what a transaction made is its own.

use crate::api::{Attr, Reply};
use crate::limits::{Taken, ViewLimits};
use crate::node::{Base, Body, Child, DirState, Dirty, Listed, Name, Node};
use crate::numbers::NewNumbers;
use crate::reach::{Reach, is_gone, whole};
use crate::state::State;
use crate::volume::errno;
use glimpse::Builder;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systx_base::{Kind, NodeId};
use systx_store::io::{Handle, ListItem, Stat};
use systx_txn::ObjectRef;

mod glimpse;

/// Longest name on every file system that can be below.
pub(crate) const NAME_MAX: usize = 255;

/// See the module.
pub(crate) struct Below {
    pub reach: Reach,
    /// Names of mount points, by the path of their directory.
    covered: HashMap<Vec<u8>, Arc<HashSet<Name>>>,
    pub builder: Builder,
    pub taken: Taken,
}

impl Below {
    /// Met by nobody. `mount_points`: as in [`ViewConfig`](crate::view::ViewConfig).
    pub fn new(reach: Reach, mount_points: &[Vec<u8>]) -> Below {
        Below {
            reach,
            covered: by_directory(mount_points),
            builder: Builder::default(),
            taken: Taken::new(ViewLimits::NONE),
        }
    }

    /// What a view has met: the root, as it is.
    pub fn root(&self) -> Reply<State> {
        let reach = &self.reach;
        let (tree, vol) = (reach.tree(), &reach.vol);
        let stat = tree.stat(&tree.root()).map_err(errno)?;
        reach.work.meet_frozen(None, stat.id);
        let path: &[u8] = if vol.mount_path.is_empty() { b"/" } else { &vol.mount_path };
        let mut root = DirState::of(&stat);
        root.covered = self.covered.get(path).cloned();
        let root = Node {
            base: Some(Base::met(stat.stamp(), None)),
            attr: Attr::from(&stat),
            dirty: Dirty::default(),
            place: None,
            xattrs: None,
            body: Body::Dir(Box::new(root)),
            caps_gone: true,
            anchored: true,
        };
        let numbers = NewNumbers::on(Arc::clone(&vol.tree), stat.id.born().is_some());
        Ok(State::new(root, numbers))
    }

    // ---- what is recorded -------------------------------------------------------------------

    /// Records a change of `name` in `parent`.
    pub fn write_entry(&self, st: &mut State, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.reach.work.alive()?;
        self.depend_on_place(st, parent)?;
        match &st.node(parent)?.base {
            Some(base) => self.reach.work.write_of(ObjectRef::Entry { dir: base.oid(), name }),
            None => Ok(()),
        }
    }

    /// Records a change of a node's attributes.
    pub fn write_attr(&self, st: &mut State, node: NodeId) -> Reply<()> {
        self.reach.work.alive()?;
        self.take_up(st, node)?;
        self.depend_on_place(st, node)?;
        match &st.node(node)?.base {
            Some(base) => self.reach.work.write_of(ObjectRef::Attr(base.oid())),
            None => Ok(()),
        }
    }

    /// Before a change of an existing object: under snapshot isolation the change still relies on
    /// the names by which the object was found.
    pub fn depend_on_place(&self, st: &mut State, node: NodeId) -> Reply<()> {
        let mut at = node;
        while let Some(n) = st.nodes.get_mut(at) {
            if std::mem::replace(&mut n.anchored, true) {
                break;
            }
            let Some((parent, name)) = n.base.as_ref().and_then(|b| b.place.clone()) else { break };
            let dir = st.base(parent)?.oid();
            let object = ObjectRef::Entry { dir, name: &name };
            self.reach.work.depend_on(object)?;
            at = parent;
        }
        Ok(())
    }

    /// Records that the set of names of a directory was read.
    fn read_list(&self, st: &State, dir: NodeId) -> Reply<()> {
        match &st.node(dir)?.base {
            Some(base) if !base.foreign => {
                self.reach.work.read_of(ObjectRef::List(base.oid())).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    // ---- names ------------------------------------------------------------------------------

    /// What `name` means in `parent`, here and on the backing file system; recorded as read.
    pub fn child(&self, st: &mut State, parent: NodeId, name: &[u8]) -> Reply<Child> {
        const NOTHING: Child = Child { now: None, base: None };
        let reach = &self.reach;
        reach.work.alive()?;
        self.take_up(st, parent)?;
        if let Some(child) = st.dir(parent)?.child(name) {
            if !st.is_glimpsed(child) {
                return Ok(child);
            }
            st.dir_mut(parent)?.forget_child(name);
        }
        let dir = st.dir(parent)?;
        let moment = reach.vol.engine.moment();
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.taken.object(st.nodes.len())?;
        self.taken.names(1)?;
        let listed = dir.base_names.as_ref().map(|names| names.contains_key(name));
        let Some(base) = &st.node(parent)?.base else { return Ok(NOTHING) };
        if base.foreign || listed == Some(false) {
            return Ok(NOTHING);
        }
        let covered = dir.covered.as_ref().is_some_and(|names| names.contains(name));
        if listed.is_none() && !covered {
            // A listing is a read of all names, and was recorded as that.
            reach.work.read_of(ObjectRef::Entry { dir: base.oid(), name })?;
        }
        let handle = reach.dir_handle(st, parent)?;
        let above = base.stamp.id();
        let listed_name = dir.base_names.as_ref().and_then(|names| names.get_key_value(name));
        let name = listed_name.map(|(name, _)| name.clone()).unwrap_or_else(|| Name::from(name));
        let found = match reach.tree().stat_at(&handle, &name) {
            Ok(stat) if reach.vol.is_hidden(above, &name, stat.id) => None,
            Ok(stat) if covered => Some(self.add_place(st, (parent, &name), &stat, true)),
            Ok(stat) => Some(self.meet(st, (parent, &name), &handle, (stat, moment))?),
            Err(e) if is_gone(&e) => None,
            Err(e) if Errno::from_io_error(&e) == Some(Errno::XDEV) => {
                self.meet_foreign(st, (parent, &name), &handle)?
            }
            Err(e) => return Err(errno(e)),
        };
        reach.still_one_moment()?;
        let child = Child { now: found, base: found };
        st.dir_mut(parent)?.set_child(name, child);
        Ok(child)
    }

    /// As [`Below::child`], in this view only.
    pub fn find(&self, st: &mut State, parent: NodeId, name: &[u8]) -> Reply<Option<NodeId>> {
        Ok(self.child(st, parent, name)?.now)
    }

    /// Makes a node for a backing object, or finds the one that it has already (another hard link).
    ///
    /// `seen`: what was seen under its name, and the engine's moment before that look.
    fn meet(
        &self,
        st: &mut State,
        place: (NodeId, &Name),
        dir: &Handle,
        (mut stat, moment): (Stat, u64),
    ) -> Reply<NodeId> {
        let reach = &self.reach;
        let foreign = stat.dev != reach.vol.dev;
        let known = st.nodes.of_host(stat.id).filter(|_| !foreign);
        let glimpsed = known.filter(|known| st.glimpsed.contains(known));
        if let Some(known) = known.filter(|_| glimpsed.is_none()) {
            let base = st.base(known)?;
            if !reach.is_current(base, &stat, || reach.tree().stat_at(dir, place.1))
                && stat.kind != Kind::Dir
                && !st.has_only_grown(known, &stat)
            {
                // Snapshot isolation goes on with what was met first.
                reach.work.lose_unless_snapshot(whole(base))?;
            }
            st.add_name(known, place.0, place.1);
            // A partial commit may have taken away the name under which it was met.
            let old = st.base(known)?.place.clone();
            if let Some((dir, name)) = old
                && st.child_at(dir, &name).is_none_or(|c| c.base != Some(known))
                && let Some(base) = st.node_mut(known)?.base.as_mut()
            {
                base.place = Some((place.0, place.1.clone()));
            }
            return Ok(known);
        }
        let mut grows = false;
        if !foreign && !reach.work.meet_frozen(st.base(place.0).ok(), stat.id) {
            grows = reach.grows_in(st, place.0, place.1, &stat);
            let oid = stat.id.oid();
            let read = || -> Reply<bool> {
                let again = reach.work.read_of(ObjectRef::Attr(oid))?;
                let sized = stat.kind == Kind::File && !grows;
                let size = sized && reach.work.read_of(ObjectRef::Size(oid))?;
                Ok(again || size)
            };
            let again = read().inspect_err(|_| {
                st.lost_at = st.path_in(&reach.vol, place.0, place.1);
            })?;
            // Which object this is was seen before it could be recorded; who has changed it in
            // between did not meet the record, and own changes are no outsider's: what was seen
            // would pass for what is there.
            let moving = reach.vol.is_installing(stat.id) || reach.vol.engine.is_changing(oid);
            let now = reach.vol.engine.moment();
            if again || moving || now != moment {
                let recorded = stat.id;
                stat = reach.look_whole(|| reach.tree().stat_at(dir, place.1))?;
                if stat.id != recorded {
                    // Another inode by now, of which nothing is recorded: who changes it must meet
                    // us.
                    return self.meet(st, place, dir, (stat, now));
                }
            }
        }
        let node = match glimpsed {
            Some(node) => self.read_glimpsed(st, node, place, &stat),
            None => self.add_place(st, place, &stat, foreign),
        };
        if grows && stat.kind == Kind::File {
            st.growing.add(node, &stat);
        }
        Ok(node)
    }

    fn add_place(
        &self,
        st: &mut State,
        place: (NodeId, &Name),
        stat: &Stat,
        foreign: bool,
    ) -> NodeId {
        let body = match stat.kind {
            Kind::File => Body::File(None),
            Kind::Dir => {
                let mut dir = DirState::of(stat);
                if !self.covered.is_empty() {
                    let path = st.path_in(&self.reach.vol, place.0, place.1);
                    dir.covered = self.covered.get(&path).cloned();
                }
                Body::Dir(Box::new(dir))
            }
            Kind::Symlink => Body::Symlink(None),
            _ => Body::Special,
        };
        let place = (place.0, place.1.clone());
        st.nodes.add(Node {
            base: Some(Base { foreign, ..Base::met(stat.stamp(), Some(place.clone())) }),
            attr: Attr::from(stat),
            dirty: Dirty::default(),
            place: Some(place),
            xattrs: None,
            body,
            caps_gone: false,
            anchored: false,
        })
    }

    /// Makes a node for a place where another file system is mounted, which this process cannot
    /// look beneath (it could with privilege): the session mounts over it, so all that matters is
    /// its type, which the listing of its directory tells.
    fn meet_foreign(
        &self,
        st: &mut State,
        place: (NodeId, &Name),
        dir: &Handle,
    ) -> Reply<Option<NodeId>> {
        let mut found = None;
        let look = &mut |item: ListItem<'_>| {
            if item.name == &**place.1 {
                found = Some((item.ino, item.kind.unwrap_or(Kind::Dir)));
            }
            found.is_none()
        };
        self.reach.tree().list(dir, look).map_err(errno)?;
        let Some((ino, kind)) = found else { return Ok(None) };
        Ok(Some(self.add_place(st, place, &Stat::unseen(ino, kind), true)))
    }

    /// Makes sure that all names of the backing directory are known.
    pub fn read_names(&self, st: &mut State, dir: NodeId) -> Reply<()> {
        let reach = &self.reach;
        reach.work.alive()?;
        self.take_up(st, dir)?;
        self.read_list(st, dir)?;
        if st.dir(dir)?.base_names.is_some() {
            return Ok(());
        }
        let mut names = HashMap::new();
        let node = st.node(dir)?;
        if let Some(above) = node.base.as_ref().filter(|b| !b.foreign).map(|b| b.stamp.id()) {
            let handle = reach.dir_handle(st, dir)?;
            reach
                .tree()
                .list(&handle, &mut |item| {
                    if !reach.vol.hides_ino(above, item.name, item.ino) {
                        let kind = item.kind.or_else(|| self.kind_at(&handle, item.name));
                        let listed = Listed { ino: item.ino, kind: kind.unwrap_or(Kind::Dir) };
                        names.insert(Name::from(item.name), listed);
                    }
                    true
                })
                .map_err(errno)?;
            reach.still_one_moment()?;
        }
        self.taken.names(names.len())?;
        st.dir_mut(dir)?.base_names = Some(names);
        Ok(())
    }

    /// The type of what a listing does not tell the type of; `None`: nothing is to be seen of it.
    fn kind_at(&self, dir: &Handle, name: &[u8]) -> Option<Kind> {
        self.reach.tree().stat_at(dir, name).ok().map(|stat| stat.kind)
    }

    /// Whether a directory has no names; recorded as a listing.
    pub fn is_empty(&self, st: &mut State, dir: NodeId) -> Reply<bool> {
        self.read_names(st, dir)?;
        if let Some(base) = &st.node(dir)?.base {
            // A removal relies on it even where reads are not protected.
            self.reach.work.depend_on(ObjectRef::List(base.oid()))?;
        }
        let state = st.dir(dir)?;
        let mut names = state.base_names.iter().flat_map(|names| names.keys());
        let is_there = |child: Child| child.now.is_some() && !st.is_glimpsed(child);
        Ok(!state.children().any(|(_, child)| is_there(child))
            && !names.any(|name| state.child(name).is_none_or(|child| st.is_glimpsed(child))))
    }

    // ---- what else is read ------------------------------------------------------------------

    /// The value of an extended attribute in this view.
    pub fn xattr(&self, st: &mut State, node: NodeId, key: &[u8]) -> Reply<Option<Vec<u8>>> {
        let reach = &self.reach;
        self.take_up_unless_building(st, node)?;
        let n = st.node(node)?;
        if let Some(changed) = n.xattrs.as_ref().and_then(|x| x.get(key)) {
            return Ok(changed.clone());
        }
        match &n.base {
            Some(base) if !base.foreign => {}
            _ => return Ok(None),
        }
        if let Some(read) = n.dir().and_then(|d| d.read_xattrs.as_ref()).and_then(|x| x.get(key)) {
            return Ok(read.clone());
        }
        let (dir, name) = reach.backing_place(st, node)?;
        let value = match reach.tree().get_xattr(&dir, &name, key) {
            Ok(value) => Some(value),
            Err(e) => match errno(e) {
                Errno::NODATA | Errno::OPNOTSUPP => None,
                other => return Err(other),
            },
        };
        reach.still_one_moment()?;
        if let Some(dir) = st.node_mut(node)?.dir_mut() {
            dir.read_xattrs.get_or_insert_default().insert(Box::from(key), value.clone());
        }
        Ok(value)
    }
}

/// The names at the end of absolute paths, by the directories that they are in.
fn by_directory(paths: &[Vec<u8>]) -> HashMap<Vec<u8>, Arc<HashSet<Name>>> {
    let mut names: HashMap<Vec<u8>, HashSet<Name>> = HashMap::new();
    for path in paths {
        if let Some(slash) = path.iter().rposition(|b| *b == b'/') {
            let dir = if slash == 0 { b"/".to_vec() } else { path[..slash].to_vec() };
            names.entry(dir).or_default().insert(Name::from(&path[slash + 1..]));
        }
    }
    names.into_iter().map(|(dir, names)| (dir, Arc::new(names))).collect()
}
