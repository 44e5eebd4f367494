//! One transaction's picture of a volume: the nodes it met, and what it changed about them.
//!
//! A view is made of values that know less than it does, from the bottom up:
//!
//! | value | what it has |
//! |---|---|
//! | [`State`] | nodes, names, numbers: what was met, and what was made of it; it asks nobody |
//! | [`Workset`] | what the conflict engine knows of it, and how the transaction stands |
//! | [`Reach`] | the way to backing objects that were met |
//! | [`Below`] | what is met for the first time |
//! | [`HostLocks`] | file locks |
//!
//! Reviewing, validating and freezing have the nodes and the way to them, so they can meet nothing.
//! Here is what requests are made of, and what the transaction's owner asks.
//!
//! **Lock order**: `state` (VIEW), a file's content (CONTENT), volume (VOLUME), engine (ENGINE),
//! handle caches (HANDLES).

use crate::api::{Attr, Caller, Entry, Reply};
use crate::below::Below;
use crate::changes::{Change, Review, Side};
use crate::content::{Budget, Spill};
use crate::freeze::{self, Selection};
use crate::growing::MayGrow;
use crate::host_locks::HostLocks;
pub use crate::ids::Ids;
use crate::limits::{Taken, ViewLimits};
use crate::locks::{Openings, Relocked};
use crate::neighbours::{Before, Neighbours, NotQuiet};
use crate::node::Node;
use crate::reach::Reach;
use crate::scope::{self, Claims, Declared};
use crate::snapshot::Frozen;
use crate::state::State;
use crate::validate::{self, OutsideChange, Quiet};
use crate::workset::Workset;
use std::sync::Arc;
use std::time::Duration;
use systx_base::sync::{Mutex, rank};
use systx_base::{NodeId, TxnId};
use systx_store::io::Stamp;
use systx_store::writeset::{Ix, WriteSet};
use systx_txn::{Conflict, Isolation, Object};

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
    pub(crate) below: Below,
    pub(crate) ids: Ids,
    pub(crate) spill: Arc<dyn Spill>,
    pub(crate) budget: Budget,
    pub(crate) opaque: bool,
    pub(crate) state: Mutex<State>,
    pub(crate) locks: HostLocks,
}

impl View {
    /// A view of the committed state.  The transaction must have begun in the volume's engine.
    pub fn new(others: Arc<dyn Neighbours>, config: ViewConfig) -> Reply<View> {
        View::over(others, None, config)
    }

    /// A view of a snapshot of the volume (`SharedVolume::snapshot`), for a transaction that
    /// commits nothing: below guarded directories the engine and outsiders' changes have nothing to
    /// say about it.
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
        let work = Workset::new(&others, frozen, (config.txn, config.isolation));
        let reach = Reach::new(others, work, &config.ids);
        let below = Below::new(reach, &config.mount_points);
        Ok(View {
            ids: config.ids,
            spill: config.spill,
            budget: config.budget,
            opaque: config.opaque,
            state: Mutex::new(rank::VIEW, below.root()?),
            locks: HostLocks::new(),
            below,
        })
    }

    /// What is there, as far as it was met.
    pub(crate) fn reach(&self) -> &Reach {
        &self.below.reach
    }

    /// The transaction that this is the view of.
    pub fn txn(&self) -> TxnId {
        self.reach().work.txn
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
        self.below.taken = Taken::new(limits);
    }

    /// How long a read of content may wait for a running transaction to which it would lose; before
    /// it is served.  Not where requests hold locks of the kernel that others need as well.
    pub fn set_patience(&mut self, patience: Duration) {
        self.below.reach.work.set_patience(patience);
    }

    /// From now on lookups and changes answer `ECANCELED`; pages can still be read, so that a
    /// program that waits for its end is not killed by a failing page fault.
    pub fn cancel(&self) {
        self.reach().work.cancel();
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
        self.reach().work.alive()
    }

    /// Whether it shows a snapshot of guarded directories.
    pub fn is_snapshot(&self) -> bool {
        self.reach().work.is_snapshot()
    }

    /// Whether the snapshot that it shows was given up, because there was no room to keep it.
    pub fn is_given_up(&self) -> bool {
        self.reach().work.is_given_up()
    }

    /// Records what a write set changes as written by transaction `id` (this one, or one that
    /// commits a part of it), and under snapshot isolation checks that nobody committed a change of
    /// it first.
    ///
    /// # Errors
    /// The conflict that it lost; `None` if the engine knows it.
    pub fn claim(&self, id: TxnId, set: &WriteSet) -> Result<(), Option<Conflict>> {
        self.reach().work.claim(id, set)
    }

    pub(crate) fn entry(&self, st: &State, node: NodeId) -> Reply<Entry> {
        Ok(Entry { node, generation: 0, attr: self.shown(st, st.node(node)?) })
    }

    /// Attributes of a node as the view's processes may see them.
    pub(crate) fn shown(&self, st: &State, node: &Node) -> Attr {
        let dir = node.place.as_ref().and_then(|(dir, _)| st.nodes.get(*dir));
        self.ids.shown(&node.attr, dir.map(|dir| &dir.attr))
    }

    /// As [`View::entry`], counted as one lookup.
    pub(crate) fn handed_out(&self, st: &mut State, node: NodeId) -> Reply<Entry> {
        st.count_lookup(node);
        self.entry(st, node)
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
            Some(name) => st.path_in(&self.reach().vol, node, name),
            None => st.path_of(&self.reach().vol, node),
        }
    }

    /// The path of a node on the host, for messages.
    pub fn path_of(&self, node: NodeId) -> Vec<u8> {
        self.state.lock().path_of(&self.reach().vol, node)
    }

    // ---- who lives in it --------------------------------------------------------------------

    /// Before a connection serves the view to a session: this thread, by the number that requests
    /// bear, builds its root until it looks up [`BUILT`](systx_base::BUILT).
    pub fn built_by(&self, tid: u32) {
        self.below.builder.begins(tid);
    }

    /// From now on files that are met at these paths may grow, see [`crate::growing`].
    pub fn let_grow(&mut self, may_grow: Arc<dyn MayGrow>) {
        self.state.lock().growing.may_grow = Some(may_grow);
    }

    /// The paths, on the host, of the files that grow and were appended to.
    pub fn appended_to(&self) -> Vec<Vec<u8>> {
        let st = self.state.lock();
        let files = st.growing.appended_to();
        files.map(|node| st.path_of(&self.reach().vol, node)).collect()
    }

    /// Tells who can say which files the processes of the view have open.  Without it, whoever
    /// serves the view tells of closes.
    pub fn set_openings(&self, openings: Arc<dyn Openings>) {
        self.locks.set_openings(openings);
    }

    /// Releases the locks of owners that have closed; returns how many did.
    pub fn sweep_locks(&self) -> usize {
        self.locks.all().sweep()
    }

    /// Whether any lock is held through this view.
    pub fn holds_locks(&self) -> bool {
        self.locks.all().count() > 0
    }

    /// Releases open files of the host, but not the locks: their owners live on.
    pub fn let_go_of_files(&self) {
        self.reach().close_files();
    }

    /// Releases locks and open files of the host: no process is in the view any more, and a file
    /// that nobody has open can be replaced in one step.
    pub fn let_go(&self) {
        self.locks.all().end();
        self.let_go_of_files();
    }

    /// Locks once more what programs of the view have had locked for writing, before its commit.
    /// `over`: no process is in the view any more.
    ///
    /// # Errors
    /// The path of a file that a program outside has locked.
    pub fn lock_again(&self, over: bool) -> Result<Relocked, Vec<u8>> {
        let again = self.locks.lock_again((self.reach(), &self.state), over);
        again.map_err(|node| self.state.lock().path_of(&self.reach().vol, node))
    }

    // ---- what it has met, and changed -------------------------------------------------------

    /// What the paths of a scope are in this view, which meets them by this.
    ///
    /// # Errors
    /// As [`Volume::claims`](crate::volume::Volume::claims); `ECANCELED`: it has lost.
    pub fn claims(&self, declared: &[Declared], who: Option<Caller>) -> Reply<Claims> {
        scope::claims_in(&self.below, &self.state, declared, who)
    }

    /// Makes known what plain programs have changed of names and attributes that were read, and
    /// what they are writing to the files that were: writes in flight land, and stores to mappings
    /// arrive as the writes that they are. To be called before [`View::validate`]; none begins
    /// while the answer lives.
    ///
    /// # Errors
    /// They cannot be kept from it.
    pub fn quiet_others(&self) -> Result<Quiet<'_>, NotQuiet> {
        Quiet::of(self.reach())
    }

    /// Waits until the kernel knows what the transaction has seen of plain changes of names,
    /// attributes and lengths: to be called before it ends without effect.
    pub fn land_seen(&self) {
        self.reach().work.land(Before::End);
    }

    /// Every difference between what was met and what is there; waits for an installation in
    /// progress to end and keeps others out meanwhile.
    pub fn validate(&self) -> Vec<OutsideChange> {
        validate::differences(self.reach(), &self.state.lock())
    }

    /// Whether anything changed; cheaper than to list it.
    pub fn is_changed(&self) -> bool {
        self.state.lock().is_changed()
    }

    /// All changes, sorted by path.
    pub fn changes(&self) -> Vec<Change> {
        Review { reach: self.reach(), st: &self.state.lock() }.changes()
    }

    /// What the transaction has met, by the host paths that it had before: of `true` it has read
    /// which names there are, of the others all else.
    pub fn met(&self) -> Vec<(Vec<u8>, bool)> {
        Review { reach: self.reach(), st: &self.state.lock() }.met()
    }

    /// The content of one side of a file, or the target of a link; at most `limit` bytes.  Nothing
    /// is recorded: reviewing is not reading.
    pub fn read_side(&self, side: &Side, limit: usize) -> Reply<Vec<u8>> {
        Review { reach: self.reach(), st: &self.state.lock() }.read_side(side, limit)
    }

    /// What this view would commit now.  The processes in the view must have ended, and the kernel
    /// must have written back what it held dirty.
    pub fn freeze(&self, selection: &dyn Selection) -> freeze::Frozen {
        freeze::freeze(self.reach(), &self.state.lock(), selection)
    }

    /// `Reach::stop_growing` of all files that a part of the changes appends to: what is committed
    /// of them is what the rest goes on from.
    ///
    /// # Errors
    /// The transaction has lost.
    pub fn stop_growing_in(&self, part: &freeze::Frozen) -> Reply<()> {
        let mut st = self.state.lock();
        part.appended_nodes().try_for_each(|node| self.reach().stop_growing(&mut st, node))
    }

    /// Existing files whose content would be changed and that a process outside has open for
    /// writing (or mapped so): what it writes from now on meets the committed content. Not those
    /// that are open in a guarded directory, where it is a write after the commit like any other,
    /// nor those that the view's programs have locked, since whoever locks them as well waits.
    pub fn open_elsewhere(&self, frozen: &freeze::Frozen) -> Vec<Vec<u8>> {
        let locked = |node| self.locks.have_locked(node);
        frozen.open_elsewhere(self.reach(), &self.state.lock(), &locked)
    }

    /// After a part of the changes was committed: what was committed is now the base of the rest.
    /// `stamps` are the versions after installation.
    pub fn rebase(&self, frozen: &freeze::Frozen, stamps: &[(Ix, Stamp)]) {
        let mut st = self.state.lock();
        st.rebase(frozen, stamps);
        self.reach().close();
    }
}
