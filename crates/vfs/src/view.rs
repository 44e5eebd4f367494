//! One transaction's picture of a volume: the nodes it met, and what it changed about them.
//!
//! Every access to something of the backing file system is first recorded in the conflict engine
//! and then performed, so that a conflicting access of another transaction finds the record. What
//! was handed out is remembered in the node, so that a second access never asks the backing file
//! system: reads are repeatable, and the kernel's caches need no invalidation.
//!
//! **Invariants**
//! - V1 a name is in `children` with the backing object it had (`base`) before it is changed.
//! - V2 a node with a base was recorded as read (entry, attributes, size) before it was handed out.
//! - V3 only objects with a base have keys in the engine; what a transaction made is its own.
//!
//! **Lock order**: `state` (VIEW), a file's content (CONTENT), volume (VOLUME), engine (ENGINE),
//! handle caches (HANDLES).

use crate::api::{Attr, Entry, Reply};
use crate::content::{Budget, Spill};
use crate::glimpse::{Builder, Glimpsed};
use crate::growing::{Growing, MayGrow};
use crate::habits::Habits;
use crate::handles::HandleCache;
use crate::limits::{Taken, ViewLimits};
use crate::locks::{Locks, Openings};
use crate::neighbours::Neighbours;
use crate::node::{Base, Body, Child, DirState, Dirty, Name, Node, Nodes, attr_of};
use crate::numbers::NewNumbers;
use crate::snapshot::Frozen;
use crate::volume::{Volume, errno};
use crate::workset::Workset;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use systx_base::sync::{Mutex, Rank, rank};
use systx_base::{Gid, Kind, NodeId, Time, TxnId, Uid};
use systx_store::io::{Handle, HostId, ListItem, Stamp, Stat, Tree};
use systx_store::writeset::WriteSet;
use systx_txn::{Conflict, Isolation, Object, ObjectRef};

mod state;

/// Open directories, and open files, that one view keeps at the most.
const HANDLES_MAX: usize = 512;

/// Longest name on every file system that can be below.
pub(crate) const NAME_MAX: usize = 255;

/// How owners of the host appear in the view.
#[derive(Clone, Debug)]
pub enum Ids {
    /// As they are.
    Faithful,
    /// The view lives in a user namespace that has only this user and group: everything else would
    /// be an unmapped id, on which the kernel refuses every write.  What the user may write because
    /// of other permissions (a sticky /tmp, a directory of a supplementary group) is shown as the
    /// user's own.
    Single {
        /// The user.
        uid: Uid,
        /// The primary group.
        gid: Gid,
        /// Supplementary groups.
        groups: Vec<Gid>,
    },
}

/// What a view is made with.
pub struct ViewConfig {
    /// The transaction, which the engine knows already.
    pub txn: TxnId,
    /// How its reads are protected.
    pub isolation: Isolation,
    /// How owners appear.
    pub ids: Ids,
    /// Where private data goes that is too much for memory.
    pub spill: Arc<dyn Spill>,
    /// Memory for private data.
    pub budget: Budget,
    /// Absolute paths at which other file systems are mounted on the host.  The session mounts them
    /// in the view as well, so nobody ever sees what lies beneath: such a place is neither read nor
    /// can it be changed.
    pub mount_points: Vec<Vec<u8>>,
    /// Having lost, it refuses pages of files that are not as they were met: its programs go on and
    /// must not see two moments. Else they are shown, so that no page fault fails in what only
    /// waits for its end.
    pub opaque: bool,
}

/// See the module.
pub struct View {
    pub(crate) vol: Arc<Volume>,
    /// Who else works on it.
    pub(crate) others: Arc<dyn Neighbours>,
    pub(crate) work: Workset,
    pub(crate) ids: Ids,
    pub(crate) spill: Arc<dyn Spill>,
    pub(crate) budget: Budget,
    pub(crate) opaque: bool,
    pub(crate) may_grow: Option<Arc<dyn MayGrow>>,
    /// Names of mount points, by the path of their directory.
    covered: HashMap<Vec<u8>, Arc<HashSet<Name>>>,
    pub(crate) state: Mutex<State>,
    pub(crate) builder: Builder,
    pub(crate) dirs: HandleCache,
    pub(crate) files: HandleCache,
    pub(crate) locks: Mutex<Arc<Locks>>,
    pub(crate) taken: Taken,
    pub(crate) openings: Mutex<Option<Arc<dyn Openings>>>,
}

pub(crate) struct State {
    pub nodes: Nodes,
    pub growing: Growing,
    pub glimpsed: Glimpsed,
    pub habits: Habits,
    /// Path of the object at whose first touch the transaction lost, if it did so.
    lost_at: Vec<u8>,
    /// Names, in this view, of nodes that have several known ones, beyond `Node::place`.
    more_names: HashMap<NodeId, BTreeSet<(NodeId, Name)>>,
    /// How often the kernel holds each file that the transaction made.
    lookups: HashMap<NodeId, u64>,
    new_numbers: NewNumbers,
    /// When objects were made that the transaction made.
    pub births: HashMap<NodeId, Time>,
}

impl View {
    /// A view of the committed state.  The transaction must have begun in the volume's engine.
    pub fn new(others: Arc<dyn Neighbours>, config: ViewConfig) -> Reply<View> {
        View::over(others, None, config)
    }

    /// A view of a snapshot of the volume (`SharedVolume::snapshot`), for a transaction that
    /// commits nothing: below
    /// guarded directories the engine and outsiders' changes have nothing to say about it.
    pub fn of_snapshot(
        others: Arc<dyn Neighbours>,
        frozen: Frozen,
        config: ViewConfig,
    ) -> Reply<View> {
        View::over(others, Some(frozen), config)
    }

    fn over(
        others: Arc<dyn Neighbours>,
        frozen: Option<Frozen>,
        config: ViewConfig,
    ) -> Reply<View> {
        let vol = Arc::clone(others.volume());
        let tree = frozen.as_ref().map_or(&vol.tree, |frozen| &frozen.tree);
        let stat = tree.stat(&tree.root()).map_err(errno)?;
        if let Some(frozen) = frozen.as_ref().filter(|frozen| frozen.covers_in(None, stat.id)) {
            frozen.meet(vol.oid(stat.id));
        }
        let covered = by_directory(&config.mount_points);
        let root_path: &[u8] = if vol.mount_path.is_empty() { b"/" } else { &vol.mount_path };
        let mut root = DirState::of(&stat);
        root.covered = covered.get(root_path).cloned();
        let born = stat.id.born().is_some();
        let new_numbers = NewNumbers::on(Arc::clone(&vol.tree), born);
        let mut nodes = Nodes::default();
        nodes.add(Node {
            base: Some(Base { stamp: stat.stamp(), place: None, foreign: false, fixed: None }),
            attr: attr_of(&stat),
            dirty: Dirty::default(),
            place: None,
            xattrs: None,
            body: Body::Dir(Box::new(root)),
            caps_gone: true,
            anchored: true,
        });
        Ok(View {
            work: Workset::new(&others, frozen, (config.txn, config.isolation)),
            ids: config.ids,
            spill: config.spill,
            budget: config.budget,
            opaque: config.opaque,
            may_grow: None,
            covered,
            state: Mutex::new(
                rank::VIEW,
                State {
                    nodes,
                    growing: Growing::default(),
                    glimpsed: Glimpsed::default(),
                    habits: Habits::default(),
                    lost_at: Vec::new(),
                    more_names: HashMap::new(),
                    lookups: HashMap::new(),
                    new_numbers,
                    births: HashMap::new(),
                },
            ),
            builder: Builder::default(),
            dirs: HandleCache::new(rank::HANDLES, HANDLES_MAX),
            files: HandleCache::new(Rank(rank::HANDLES.0 + 1), HANDLES_MAX),
            locks: Mutex::new(rank::LEAF, Locks::new()),
            taken: Taken::new(ViewLimits::NONE),
            openings: Mutex::new(rank::LEAF, None),
            vol,
            others,
        })
    }

    /// The transaction that this is the view of.
    pub fn txn(&self) -> TxnId {
        self.work.txn
    }

    /// Number of objects met.
    pub fn objects_met(&self) -> usize {
        self.state.lock().nodes.len()
    }

    /// Every name that the kernel may have been told of, also that there is nothing of it.
    pub fn names(&self) -> Vec<(NodeId, Vec<u8>)> {
        let st = self.state.lock();
        let dirs = st.nodes.iter().filter_map(|(id, node)| Some((id, node.dir()?)));
        dirs.flat_map(|(id, dir)| dir.children().map(move |(name, _)| (id, name.to_vec())))
            .collect()
    }

    /// From now on it takes at most so much; before it is served.
    pub fn set_limits(&mut self, limits: ViewLimits) {
        self.taken = Taken::new(limits);
    }

    /// How long a read of content may wait for a running transaction to which it would lose; before
    /// it is served.  Not where requests hold locks of the kernel that others need as well.
    pub fn set_patience(&mut self, patience: Duration) {
        self.work.set_patience(patience);
    }

    /// From now on lookups and changes answer `ECANCELED`; pages can still be read, so that a
    /// program that waits for its end is not killed by a failing page fault.
    pub fn cancel(&self) {
        self.work.cancel();
    }

    /// After the end of a transaction that nobody lives in any more: gives back the memory and the
    /// room that it has used. The kernel may keep its mount for a moment, and with it the view.
    pub fn discard(&self) {
        let st = self.state.lock();
        let contents: Vec<_> = st.nodes.iter().filter_map(|(_, n)| n.content().cloned()).collect();
        drop(st);
        for content in contents {
            content.lock().discard();
        }
    }

    /// Whether the transaction goes on.
    ///
    /// # Errors
    /// `ECANCELED`: it has lost, or is over.
    pub fn alive(&self) -> Reply<()> {
        self.work.alive()
    }

    /// Whether it shows a snapshot of guarded directories.
    pub fn is_snapshot(&self) -> bool {
        self.work.is_snapshot()
    }

    /// Whether the snapshot that it shows was given up, because there was no room to keep it.
    pub fn is_given_up(&self) -> bool {
        self.work.is_given_up()
    }

    /// Records what a write set changes as written by transaction `id` (this one, or one that
    /// commits a part of it), and under snapshot isolation checks that nobody committed a change of
    /// it first.
    ///
    /// # Errors
    /// The conflict that it lost; `None` if the engine knows it.
    pub fn claim(&self, id: TxnId, set: &WriteSet) -> Result<(), Option<Conflict>> {
        self.work.claim(id, set)
    }

    /// The backing file system as this view shows it.
    pub(crate) fn tree(&self) -> &Arc<dyn Tree> {
        self.work.tree()
    }

    pub(crate) fn now(&self) -> Time {
        self.vol.tree.now()
    }

    /// After a look at the backing file system: what was seen is of the moment that the view shows.
    /// Who makes this transaction lose does so before it changes anything, so as long as it has not
    /// lost, all that it has looked at is of one moment; what it sees afterwards may be of another.
    pub(crate) fn still_one_moment(&self) -> Reply<()> {
        self.alive()
    }

    // ---- what is recorded -------------------------------------------------------------------

    /// Records a change of `name` in `parent`.
    pub(crate) fn write_entry(&self, st: &mut State, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.alive()?;
        self.depend_on_place(st, parent)?;
        match &st.node(parent)?.base {
            Some(base) => self.work.write_of(ObjectRef::Entry { dir: base.oid(), name }),
            None => Ok(()),
        }
    }

    /// Records a change of a node's attributes.
    pub(crate) fn write_attr(&self, st: &mut State, node: NodeId) -> Reply<()> {
        self.alive()?;
        self.take_up(st, node)?;
        self.depend_on_place(st, node)?;
        match &st.node(node)?.base {
            Some(base) => self.work.write_of(ObjectRef::Attr(base.oid())),
            None => Ok(()),
        }
    }

    /// Before a change of an existing object: under snapshot isolation the change still relies on
    /// the names by which the object was found.
    pub(crate) fn depend_on_place(&self, st: &mut State, node: NodeId) -> Reply<()> {
        let mut at = node;
        while let Some(n) = st.nodes.get_mut(at) {
            if std::mem::replace(&mut n.anchored, true) {
                break;
            }
            let Some((parent, name)) = n.base.as_ref().and_then(|b| b.place.clone()) else { break };
            let dir = st.base(parent)?.oid();
            let object = ObjectRef::Entry { dir, name: &name };
            self.work.depend_on(object)?;
            at = parent;
        }
        Ok(())
    }

    // ---- backing objects --------------------------------------------------------------------

    /// Whether the backing object is still the version that was met, own commits aside: by what was
    /// seen, or else by looking again.
    pub(crate) fn is_current(
        &self,
        base: &Base,
        seen: &Stat,
        look: impl Fn() -> std::io::Result<Stat>,
    ) -> bool {
        if self.work.is_frozen(base.oid()) {
            return base.stamp == seen.stamp();
        }
        let same = |now: Stamp| self.vol.is_own(base.stamp, now);
        if same(seen.stamp()) {
            return true;
        }
        // The difference may come from a plain request that has yet to say so, and was perhaps half
        // done; or from a commit that is installing, or did so between the two looks.
        let _nobody = self.others.still();
        let again = || look().is_ok_and(|now| same(now.stamp()));
        if again() {
            return true;
        }
        if !self.vol.is_installing(base.stamp.id) && self.vol.current(base.stamp) == base.stamp {
            return false;
        }
        let _quiet = self.vol.quiesce();
        again()
    }

    /// Looks at an object of which this transaction has recorded attributes and length.
    fn look_whole(&self, look: impl Fn() -> std::io::Result<Stat>) -> Reply<Stat> {
        let engine = &self.vol.engine;
        let moment = engine.moment();
        let quiet = self.vol.quiesce();
        let seen = look().map_err(errno)?;
        drop(quiet);
        if !engine.is_changing(self.vol.oid(seen.id)) && engine.moment() == moment {
            return Ok(seen);
        }
        // A plain write leaves alone what was recorded, and moves the version.
        let _nobody = self.others.still();
        let _quiet = self.vol.quiesce();
        look().map_err(errno)
    }

    // ---- names ------------------------------------------------------------------------------

    /// What `name` means in `parent`, here and on the backing file system; recorded as read.
    pub(crate) fn child(&self, st: &mut State, parent: NodeId, name: &[u8]) -> Reply<Child> {
        const NOTHING: Child = Child { now: None, base: None };
        self.alive()?;
        self.take_up(st, parent)?;
        if let Some(child) = st.dir(parent)?.child(name) {
            if !st.is_glimpsed(child) {
                return Ok(child);
            }
            st.dir_mut(parent)?.forget_child(name);
        }
        let dir = st.dir(parent)?;
        let moment = self.vol.engine.moment();
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
            self.work.read_of(ObjectRef::Entry { dir: base.oid(), name })?;
        }
        let handle = self.dir_handle(st, parent)?;
        let above = base.stamp.id;
        let listed_name = dir.base_names.as_ref().and_then(|names| names.get_key_value(name));
        let name = listed_name.map(|(name, _)| name.clone()).unwrap_or_else(|| Name::from(name));
        let found = match self.tree().stat_at(&handle, &name) {
            Ok(stat) if self.vol.is_hidden(above, &name, stat.id) => None,
            Ok(stat) if covered => Some(self.add_place(st, (parent, &name), &stat, true)),
            Ok(stat) => Some(self.meet(st, (parent, &name), &handle, (stat, moment))?),
            Err(e) if is_gone(&e) => None,
            Err(e) if Errno::from_io_error(&e) == Some(Errno::XDEV) => {
                self.meet_foreign(st, (parent, &name), &handle)?
            }
            Err(e) => return Err(errno(e)),
        };
        self.still_one_moment()?;
        let child = Child { now: found, base: found };
        st.dir_mut(parent)?.set_child(name, child);
        Ok(child)
    }

    /// As [`View::child`], in this view only.
    pub(crate) fn find(
        &self,
        st: &mut State,
        parent: NodeId,
        name: &[u8],
    ) -> Reply<Option<NodeId>> {
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
        let foreign = stat.dev != self.vol.dev;
        let known = st.nodes.of_host(stat.id).filter(|_| !foreign);
        let glimpsed = known.filter(|known| st.glimpsed.contains(known));
        if let Some(known) = known.filter(|_| glimpsed.is_none()) {
            let base = st.base(known)?;
            if !self.is_current(base, &stat, || self.tree().stat_at(dir, place.1))
                && stat.kind != Kind::Dir
                && !self.has_only_grown(st, known, &stat)
            {
                // Snapshot isolation goes on with what was met first.
                self.work.lose_unless_snapshot(whole(base))?;
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
        if !foreign && !self.work.meet_frozen(st.base(place.0).ok(), stat.id) {
            grows = self.grows_in(st, place.0, place.1, &stat);
            let oid = self.vol.oid(stat.id);
            let read = || -> Reply<bool> {
                let again = self.work.read_of(ObjectRef::Attr(oid))?;
                let sized = stat.kind == Kind::File && !grows;
                let size = sized && self.work.read_of(ObjectRef::Size(oid))?;
                Ok(again || size)
            };
            let again = read().inspect_err(|_| {
                st.lost_at = st.path_in(&self.vol, place.0, place.1);
            })?;
            // Which object this is was seen before it could be recorded; who has changed it in
            // between did not meet the record, and own changes are no outsider's: what was seen
            // would pass for what is there.
            let moving = self.vol.is_installing(stat.id) || self.vol.engine.is_changing(oid);
            let now = self.vol.engine.moment();
            if again || moving || now != moment {
                let recorded = stat.id;
                stat = self.look_whole(|| self.tree().stat_at(dir, place.1))?;
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

    pub(crate) fn add_place(
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
                    let path = st.path_in(&self.vol, place.0, place.1);
                    dir.covered = self.covered.get(&path).cloned();
                }
                Body::Dir(Box::new(dir))
            }
            Kind::Symlink => Body::Symlink(None),
            _ => Body::Special,
        };
        let place = (place.0, place.1.clone());
        st.nodes.add(Node {
            base: Some(Base {
                stamp: stat.stamp(),
                place: Some(place.clone()),
                foreign,
                fixed: None,
            }),
            attr: attr_of(stat),
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
    pub(crate) fn meet_foreign(
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
        self.tree().list(dir, look).map_err(errno)?;
        let Some((ino, kind)) = found else { return Ok(None) };
        let time = Time::default();
        let is_dir = kind == Kind::Dir;
        let stat = Stat {
            id: HostId { ino, btime: time },
            dev: 0,
            kind,
            mode: if is_dir { 0o755 } else { 0o444 },
            uid: 0,
            gid: 0,
            nlink: if is_dir { 2 } else { 1 },
            size: 0,
            blocks: 0,
            blksize: 4096,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
        };
        Ok(Some(self.add_place(st, place, &stat, true)))
    }

    // ---- answers ----------------------------------------------------------------------------

    pub(crate) fn entry(&self, st: &State, node: NodeId) -> Reply<Entry> {
        Ok(Entry { node, generation: 0, attr: self.shown(&st.node(node)?.attr) })
    }

    /// As [`View::entry`], counted as one lookup.
    pub(crate) fn handed_out(&self, st: &mut State, node: NodeId) -> Reply<Entry> {
        st.count_lookup(node);
        self.entry(st, node)
    }

    /// Attributes as this view's processes may see them.
    pub(crate) fn shown(&self, attr: &Attr) -> Attr {
        let Ids::Single { uid, gid, groups } = &self.ids else { return *attr };
        let mut shown = *attr;
        let mine = attr.uid == *uid;
        let in_group = attr.gid == *gid || groups.contains(&attr.gid);
        if in_group {
            shown.gid = *gid;
        }
        let class = if in_group { attr.mode >> 3 } else { attr.mode };
        if !mine && class & 0o2 != 0 && attr.kind != Kind::Symlink {
            shown.uid = *uid;
        }
        if shown.uid == *uid {
            // The kernel refuses to write an inode with any unmapped id.
            shown.gid = *gid;
        }
        shown
    }

    /// The host path of an object of the conflict engine that this view has met, for messages.
    pub fn path_of_object(&self, object: &Object) -> Vec<u8> {
        let (oid, name) = match object {
            Object::Entry { dir, name } => (*dir, Some(name)),
            Object::List(oid) | Object::Attr(oid) | Object::Size(oid) => (*oid, None),
            Object::Pages { oid, .. } => (*oid, None),
        };
        let st = self.state.lock();
        let is_it = |(_, n): &(NodeId, &Node)| n.base.as_ref().is_some_and(|b| b.oid() == oid);
        let Some((node, _)) = st.nodes.iter().find(is_it) else {
            // Lost at the first touch: the object never became a node.
            return st.lost_at.clone();
        };
        match name {
            Some(name) => st.path_in(&self.vol, node, name),
            None => st.path_of(&self.vol, node),
        }
    }

    /// The path of a node on the host, for messages.
    pub fn path_of(&self, node: NodeId) -> Vec<u8> {
        self.state.lock().path_of(&self.vol, node)
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

/// The object of the engine that stands for "this version of this file".
pub(crate) fn whole(base: &Base) -> ObjectRef<'static> {
    ObjectRef::Attr(base.oid())
}

pub(crate) fn is_gone(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::INVAL)
    )
}
