//! Commits: a write set becomes one transaction of the volume, durable and hidden, and is shown
//! when it is applied. Also what other stores ask about joint commits.

use crate::error::{io_error, not_committed};
use crate::flow::{Part, Shown, Stage, Way};
use crate::install::{Failed, Installed, install};
use crate::open::VolumeStore;
use crate::orders;
use crate::own;
use crate::reserve::Room;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use systx_base::TxnId;
use systx_base::codec::{Decoder, Encoder};
use systx_lfs::format::Ino;
use systx_lfs::{Error, Hidden, Ops, Txn};
use systx_store::io::Stamp;
use systx_store::record::{Commit, History, OldContent, history_name};
use systx_store::writeset::{Origin, WriteSet};
use systx_store::{
    ApplyError, ApplyReport, CommitError, CommitMeta, Committed, Joint, Outcome, Ready,
    overwritten_pages,
};

/// What is done in the transaction of a commit beside it.
type Beside<'a> = dyn Fn(&mut Ops<'_>) -> systx_lfs::Result<()> + 'a;

/// The name of a part of a joint commit that is prepared.
pub(crate) fn prepared_name(lsn: u64) -> Vec<u8> {
    format!("{lsn:016x}").into_bytes()
}

/// The name of a decision.
pub(crate) fn decision_name(id: u64) -> Vec<u8> {
    format!("{id:016x}").into_bytes()
}

fn commit_error(failed: Failed) -> CommitError {
    match failed {
        Failed::Changed(paths) => CommitError::Changed { paths },
        Failed::UnknownSlot => CommitError::UnknownSlot,
        // Only a name that the write set gives can have met another commit.
        Failed::Volume(Error::Conflict { name, .. }) => CommitError::Changed { paths: vec![name] },
        Failed::Volume(Error::Removed(_)) => CommitError::Changed { paths: Vec::new() },
        Failed::Volume(error) => not_committed(error),
    }
}

impl VolumeStore {
    /// As [`crate::flow::Flow::enter`]; what is met and only waits for it is applied.
    pub(crate) fn enter(&self, sets: &[&WriteSet]) -> Result<Vec<u64>, CommitError> {
        loop {
            match self.flow.enter(sets)? {
                Way::Free(places) => return Ok(places),
                Way::After(lsn) => match self.apply_one(lsn) {
                    Ok(_) | Err(ApplyError::Unknown(_)) => {}
                    Err(source) => {
                        let txn = self.flow.lock().txn_of(lsn).unwrap_or(TxnId(0));
                        return Err(CommitError::Blocked { txn, source: Box::new(source) });
                    }
                },
            }
        }
    }

    /// Puts a write set into the log, with its record, where nobody sees it yet.
    fn hide(
        &self,
        lsn: u64,
        room: &mut Room,
        commit: Commit,
        beside: &Beside<'_>,
    ) -> Result<(Hidden, Installed), Failed> {
        // Before its turn: the kernel may ask the volume.
        let open = self.tree.open_elsewhere(&commit.set);
        let _turn = self.flow.turn();
        let (work, installed) = self.translate(lsn, (room, &open), commit, beside)?;
        Ok((self.volume.commit_hidden(work, &mut room.promise)?, installed))
    }

    /// The transaction of the volume that a write set is, with its record.
    fn translate(
        &self,
        lsn: u64,
        (room, open): (&Room, &HashSet<Ino>),
        commit: Commit,
        beside: &Beside<'_>,
    ) -> Result<(Txn, Installed), Failed> {
        let (keep, mut txn) = (room.keep, Txn::of(room.promise.as_ref()));
        let mut failed = None;
        let mut commit = commit;
        let done = self.volume.within(&mut txn, |ops| {
            self.met_now(ops, &mut commit.set);
            let (of, id) = ((&*self.tree, &self.own), (commit.meta.txn, lsn));
            let mut installed = match install(ops, of, &commit.set, id, (keep, open)) {
                Ok(installed) => installed,
                Err(Failed::Volume(error)) => return Err(error),
                Err(other) => {
                    failed = Some(other);
                    return Ok(None);
                }
            };
            if keep && !commit.is_bare() {
                commit.befores = std::mem::take(&mut installed.befores);
                let history = History::new(&commit, installed.done.clone());
                self.displaced(&history);
                let name = history_name(commit.meta.txn);
                own::write(ops, self.own.history, &name, &history.encode())?;
            }
            beside(ops)?;
            Ok(Some(installed))
        })?;
        match (done, failed) {
            (Some(installed), _) => Ok((txn, installed)),
            (None, Some(failed)) => Err(failed),
            (None, None) => Err(Failed::UnknownSlot),
        }
    }

    /// Of files of which others may have overwritten other pages meanwhile, the versions that the
    /// last one before has left.  By them undo knows what lies above what.
    fn met_now(&self, ops: &mut Ops<'_>, set: &mut WriteSet) {
        for object in &mut set.objects {
            let shares = overwritten_pages(object).is_some();
            if let (true, Origin::Host { stamp, .. }) = (shares, &mut object.origin)
                && let Ok(stat) = self.tree.stat_of(ops, stamp.id().number())
                && (stat.id, stat.size) == (stamp.id(), stamp.length())
            {
                *stamp = stat.stamp();
            }
        }
    }

    /// Counts what is kept of a commit.
    fn displaced(&self, history: &History) {
        let graves: u64 = history.done.graves.iter().map(|(_, stamp)| stamp.length()).sum();
        let files = history.commit.befores.iter().map(|before| match &before.content {
            OldContent::InPlace { file: true, extents, .. } => {
                extents.iter().map(|e| e.data.len()).sum()
            }
            _ => 0,
        });
        self.looks.displaced.fetch_add(graves + files.sum::<u64>() + 4096, Relaxed);
    }

    fn commit_one(
        &self,
        lsn: u64,
        ready: Ready,
        joint: Option<Joint>,
    ) -> Result<Shown, CommitError> {
        let Ready { reservation, set, meta } = ready;
        let mut room = reservation.into_room::<Room>().unwrap_or_default();
        let txn = meta.txn;
        let order = meta.order.clone().filter(|_| joint.is_none());
        let order = order.map(|step| (step, meta.finished));
        let decision = joint.as_ref().filter(|joint| joint.members.len() > 1);
        let decision = decision.map(|joint| (joint.id, decision_bytes(&meta, joint)));
        let commit = Commit { meta, set, befores: Vec::new(), slots: Vec::new(), joint };
        let beside = |ops: &mut Ops<'_>| {
            if let Some((id, bytes)) = &decision {
                own::write(ops, self.own.decisions, &decision_name(*id), bytes)?;
            }
            match &order {
                Some((step, at)) => orders::put(ops, &self.own, step, *at),
                None => Ok(()),
            }
        };
        let (hidden, installed) =
            self.hide(lsn, &mut room, commit, &beside).map_err(commit_error)?;
        Ok(Shown { txn, hidden, inos: installed.inos, order })
    }

    /// See [`systx_store::Store::commit_group`].
    pub(crate) fn commit_all(&self, members: Vec<Ready>) -> Vec<Result<Committed, CommitError>> {
        let mut apart = systx_store::Disjoint::by_pages_below(self.root);
        let mut out: Vec<Result<Committed, CommitError>> = Vec::with_capacity(members.len());
        let mut fit: Vec<(usize, Ready)> = Vec::new();
        for (n, ready) in members.into_iter().enumerate() {
            let fits = match ready.set.check() {
                Err(error) => Err(error.into()),
                Ok(()) if !apart.add(&ready.set) => Err(CommitError::Overlaps),
                Ok(()) => Ok(Committed { lsn: 0 }),
            };
            if fits.is_ok() {
                fit.push((n, ready));
            }
            out.push(fits);
        }
        let sets: Vec<&WriteSet> = fit.iter().map(|(_, ready)| &ready.set).collect();
        let places = match self.enter(&sets) {
            Ok(places) => places,
            Err(error) => {
                let mut error = Some(error);
                for (n, _) in fit {
                    out[n] = Err(error.take().unwrap_or_else(|| not_committed(Error::Poisoned)));
                }
                return out;
            }
        };
        let mut shown: Vec<(usize, u64, Shown)> = Vec::new();
        for ((n, ready), lsn) in fit.into_iter().zip(places) {
            match self.commit_one(lsn, ready, None) {
                Ok(one) => shown.push((n, lsn, one)),
                Err(error) => {
                    self.flow.leave(lsn, None);
                    out[n] = Err(error);
                }
            }
        }
        let last = shown.iter().map(|(_, _, one)| one.hidden.ticket()).max();
        let durable = last.map_or(Ok(()), |last| self.volume.durable(last));
        if let Err(error) = &durable {
            self.flow.stop(Some(&error.to_string()));
        }
        for (n, lsn, one) in shown {
            out[n] = match &durable {
                Ok(()) => {
                    if let Some((step, at)) = &one.order {
                        self.orders.take(step, *at);
                    }
                    self.flow.is_at(lsn, Stage::Committed(one));
                    Ok(Committed { lsn })
                }
                Err(error) => Err(CommitError::InDoubt(error.to_string())),
            };
        }
        out
    }

    /// See [`systx_store::Store::prepare`].
    pub(crate) fn prepare_one(
        &self,
        lsn: u64,
        ready: Ready,
        joint: Joint,
    ) -> Result<u64, CommitError> {
        if joint.decides() {
            let one = self.commit_one(lsn, ready, Some(joint));
            let one = one.inspect_err(|_| self.flow.leave(lsn, None))?;
            self.durable(one.hidden.ticket())?;
            self.flow.is_at(lsn, Stage::Committed(one));
            return Ok(lsn);
        }
        let Ready { reservation, set, meta } = ready;
        let (befores, slots) = Default::default();
        let commit = Commit { meta, set, befores, slots, joint: Some(joint.clone()) };
        let mut e = Encoder::new();
        commit.encode(&mut e);
        let (bytes, name) = (e.finish(), prepared_name(lsn));
        // The promise is for putting it in place: the record has to find room of its own.
        let write = || {
            let mut work = Txn::new();
            (self.volume)
                .within(&mut work, |ops| {
                    own::write(ops, self.own.prepared, &name, &bytes).map(drop)
                })
                .and_then(|()| self.volume.commit_relaxed(work))
        };
        let written = loop {
            match write() {
                Err(Error::NoSpace) if self.forget_for(bytes.len() as u64) => {}
                written => break written,
            }
        };
        let ticket = written.map_err(|error| {
            self.flow.leave(lsn, None);
            not_committed(error)
        })?;
        self.durable(ticket)?;
        let Commit { meta, set, .. } = commit;
        let ready = Ready { reservation, set, meta };
        self.flow.is_at(lsn, Stage::Prepared(Box::new(Part { ready, joint })));
        Ok(lsn)
    }

    fn durable(&self, ticket: u64) -> Result<(), CommitError> {
        self.volume.durable(ticket).map_err(|error| {
            self.flow.stop(Some(&error.to_string()));
            CommitError::InDoubt(error.to_string())
        })
    }

    /// See [`systx_store::Store::decided`].
    pub(crate) fn decide(&self, lsn: u64, committed: bool) {
        let Some(part) = self.flow.prepared(lsn) else { return };
        if committed {
            self.flow.is_at(lsn, Stage::Decided(part));
            return;
        }
        // If it stays: its decider has not committed, so the next opening takes it away.
        if let Err(error) = self.unname_prepared(&prepared_name(lsn)) {
            tracing::warn!(%error, "the record of an aborted transaction stays");
        }
        self.flow.leave(lsn, None);
    }

    /// See [`systx_store::Store::apply`].
    pub(crate) fn apply_one(&self, lsn: u64) -> Result<ApplyReport, ApplyError> {
        let stage = match self.flow.apply(lsn) {
            None => return Err(ApplyError::Unknown(lsn)),
            Some(Ok(report)) => return Ok(report),
            Some(Err(stage)) => stage,
        };
        let failed = |path: String, source| ApplyError::Io { path, source };
        match stage {
            Stage::Committed(one) => match self.show(lsn, &one) {
                Ok(report) => {
                    self.flow.leave(lsn, Some(report.clone()));
                    Ok(report)
                }
                Err(source) => {
                    let path = one.txn.to_string();
                    self.flow.is_late(lsn, Stage::Committed(one));
                    Err(failed(path, source))
                }
            },
            Stage::Decided(mut part) => {
                let placed = self.place_decided(lsn, &prepared_name(lsn), &mut part);
                match placed {
                    Ok(report) => {
                        self.flow.leave(lsn, Some(report.clone()));
                        Ok(report)
                    }
                    Err(source) => {
                        let path = part.ready.meta.txn.to_string();
                        self.flow.is_late(lsn, Stage::Decided(part));
                        Err(failed(path, source))
                    }
                }
            }
            other => {
                self.flow.is_at(lsn, other);
                Err(ApplyError::Unknown(lsn))
            }
        }
    }

    fn show(&self, lsn: u64, one: &Shown) -> io::Result<ApplyReport> {
        self.volume.show(one.hidden).map_err(io_error)?;
        let stamps = self.tree.look(|ops| {
            let mut stamps: Vec<Option<Stamp>> = Vec::with_capacity(one.inos.len());
            for ino in &one.inos {
                stamps.push(match self.tree.stat_of(ops, *ino) {
                    Ok(stat) => Some(stat.stamp()).filter(|_| stat.nlink > 0),
                    Err(Error::NotFound) => None,
                    Err(error) => return Err(error),
                });
            }
            Ok(stamps)
        })?;
        Ok(ApplyReport { txn: one.txn, lsn, stamps, outside: Vec::new() })
    }

    /// Puts a part that counts into the tree, and takes its record away, in one. Its room was
    /// promised before the decision, and is kept if this fails and is tried again.
    pub(crate) fn place_decided(
        &self,
        lsn: u64,
        name: &[u8],
        Part { ready, joint }: &mut Part,
    ) -> io::Result<ApplyReport> {
        let mut without = Room::default();
        let joint = Some(joint.clone());
        let room = ready.reservation.room_mut::<Room>().unwrap_or(&mut without);
        let (meta, set): (CommitMeta, WriteSet) = (ready.meta.clone(), ready.set.clone());
        let txn = meta.txn;
        let commit = Commit { meta, set, befores: Vec::new(), slots: Vec::new(), joint };
        let beside = |ops: &mut Ops<'_>| own::clear(ops, self.own.prepared, name);
        let failed = |failed| match commit_error(failed) {
            CommitError::Io(error) => error,
            error => io::Error::other(error.to_string()),
        };
        let (hidden, installed) = self.hide(lsn, room, commit, &beside).map_err(failed)?;
        self.show(lsn, &Shown { txn, hidden, inos: installed.inos, order: None })
    }

    /// What became of a joint commit for which this volume decides; not of one that is under way.
    ///
    /// # Errors
    /// What reading the volume says.
    pub fn outcome(&self, joint: &Joint) -> io::Result<Outcome> {
        let decided = self.volume.look(|ops| {
            match ops.lookup(self.own.decisions, &decision_name(joint.id)) {
                Ok(link) => Ok(Some(own::read(ops, link.ino)?)),
                Err(Error::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let Some(bytes) = decided.map_err(io_error)? else { return Ok(Outcome::Aborted) };
        let commit = Commit::decode(&mut Decoder::new(&bytes)).map_err(io::Error::other)?;
        // Noted on both sides: it names the store that asks, as that names it.
        let same = |j: Joint| j.decides() && j.id == joint.id && j.members == joint.members;
        let is_it = commit.joint.is_some_and(same);
        Ok(if is_it { Outcome::Committed } else { Outcome::Aborted })
    }

    /// Whether this volume may still ask for the decision about a joint commit: it has a prepared
    /// part of it.
    ///
    /// # Errors
    /// What reading the volume says.
    pub fn is_undecided(&self, id: u64) -> io::Result<bool> {
        let prepared = self.volume.look(|ops| {
            let all = ops.list(self.own.prepared, None, usize::MAX)?;
            all.into_iter().map(|(_, link)| own::read(ops, link.ino)).collect::<Result<Vec<_>, _>>()
        });
        for bytes in prepared.map_err(io_error)? {
            let commit = Commit::decode(&mut Decoder::new(&bytes)).map_err(io::Error::other)?;
            if commit.joint.is_some_and(|joint| joint.id == id) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What is kept of a joint commit for the other stores: a record without changes.
fn decision_bytes(meta: &CommitMeta, joint: &Joint) -> Vec<u8> {
    use systx_store::writeset::{Attrs, Content, Object, Origin};
    let (attrs, xattrs, content) = (Attrs::default(), Vec::new(), Content::Keep);
    let root = Object { origin: Origin::Root, attrs, xattrs, content };
    let set = WriteSet { objects: vec![root], ..WriteSet::default() };
    let meta = CommitMeta { argv: Vec::new(), ..meta.clone() };
    let (befores, slots, joint) = (Vec::new(), Vec::new(), Some(joint.clone()));
    let mut e = Encoder::new();
    Commit { meta, set, befores, slots, joint }.encode(&mut e);
    e.finish()
}
