//! What each request does.

use super::Daemon;
use super::paths::as_on_the_host;
use crate::chores::Noted;
use crate::classes::of_class;
use crate::patterns::Patterns;
use crate::processes::Visitor;
use crate::protocol::call::{self, Calls, Reply, Request};
use crate::protocol::*;
use crate::transaction::{Ended, Lives, Terms, Transaction, Whose, engine_isolation};
use crate::urgency::{self, LastThread, OfLast};
use crate::wire;
use crate::{deferred, descriptors, history, processes, runs, stopped, top, transports};
use std::collections::HashSet;
use std::sync::Arc;
use systx_base::TxnId;
use systx_fuse::FileLocks;
use systx_txn::BeginOptions;

impl Calls for Daemon {
    fn begin(&self, asker: &mut Asker, begin: Begin) -> Result<Begun, Failure> {
        let (peer, doorbell) = (asker.peer, asker.begins()?);
        let volume = self.table.volumes.at(&begin.place)?;
        let patterns = Patterns::compile(&of_class(&begin.rules, Class::NoCommit))?;
        let merged = Patterns::compile(&of_class(&begin.rules, Class::AppendMerge))?;
        let choice = urgency::policy(begin.policy, &volume, &begin.place.cwd);
        let patience = urgency::patience(&volume, &begin.place.cwd);
        let mut volumes = vec![volume];
        let (mut notes, mut details) = self.table.volumes.further(&begin.others, &mut volumes);
        if !begin.read_only {
            volumes.iter().for_each(|volume| volume.make_way());
        }
        let locations = volumes.iter().map(|volume| &volume.location);
        let (unprotected, more) = self.table.volumes.unprotected.beside(locations)?;
        notes.extend(more);
        details.extend(unprotected.iter().map(|path| format!("not protected: {path}")));
        let id = self.table.new_id_in(&volumes)?;
        let thread = LastThread::new(peer.pid.into());
        let options = BeginOptions {
            isolation: engine_isolation(begin.isolation),
            follows: Some(Arc::new(OfLast(Arc::clone(&thread)))),
            choice,
            age: begin.losses,
            read_only: begin.read_only,
            timestamp: begin.timestamp,
            inject: self.table.inject(),
            ..BeginOptions::default()
        };
        let whose = Whose { uid: peer.uid, client: peer.pid, thread, guest: false };
        let terms = Terms {
            isolation: begin.isolation,
            read_only: begin.read_only,
            patterns,
            merged,
            transport: begin.transport,
            limit_bytes: begin.limit_bytes,
            patience,
            ..Terms::new(Lives::Command, begin.argv, begin.place.cwd.clone(), whose)
        };
        let seen = (&self.table.ids(), &*unprotected);
        let txn = Transaction::begin_several(id, &volumes, &terms, &options, seen, doorbell)?;
        let timestamp = txn.timestamp;
        txn.told.patterns(begin.rules, &unprotected);
        self.table.runs.begins(peer.pid, begin.losses, id);
        self.table.add(txn);
        let mut notes =
            [notes, volumes.iter().flat_map(|v| v.tell_recovered().notes).collect()].concat();
        notes.dedup();
        let mut facts = volumes.iter().map(|v| v.facts());
        let volume = facts
            .next()
            .ok_or_else(|| Failure::new(FailureKind::Internal, "a transaction without a volume"))?;
        asker.runs.insert(id);
        Ok(Begun { id, timestamp, volume, others: facts.collect(), notes, details, unprotected })
    }

    fn begin_open(&self, asker: &mut Asker, begin: BeginOpen) -> Result<BegunOpen, Failure> {
        self.begin_with_path(asker.peer, begin, None)
    }

    fn attach(&self, asker: &mut Asker, attach: Attach) -> Result<Attached, Failure> {
        let fuse = asker.descriptor()?;
        let txn = self.table.get(attach.id)?;
        let part = txn.part(attach.volume).ok_or_else(|| {
            let text = format!("transaction {} has no volume {}", attach.id, attach.volume);
            Failure::new(FailureKind::Invalid, text)
        })?;
        let looks = descriptors::can_be_seen(attach.pid);
        let config = systx_fuse::Config {
            transport: transports::of_server(txn.terms.transport),
            locks: if looks { FileLocks::View } else { FileLocks::ViewToldOfClose },
            number: u32::try_from(attach.connection).ok().filter(|n| *n != 0),
            ..systx_fuse::Config::default()
        };
        part.told.passed_through(&attach.rules);
        if looks {
            part.view.set_openings(Arc::new(Noted(self.table.chores.clone())));
        }
        part.view.built_by(attach.pid);
        let view = urgency::Followed::over(part.view.clone(), &txn.terms.whose.thread);
        let connection = systx_fuse::serve(fuse, view, config).map_err(|e| {
            Failure::new(FailureKind::Unsupported, format!("cannot serve the view: {e}"))
                .hint("`systx doctor` shows what this kernel offers")
        })?;
        let transport = transports::of(&connection);
        if attach.volume == 0 {
            txn.told.places(attach.rules);
        }
        part.attached(connection, Visitor::new(attach.pid, attach.mnt_ns, attach.connection));
        Ok(Attached { transport })
    }

    fn finish(&self, asker: &mut Asker, finish: Finish) -> Result<Outcome, Failure> {
        asker.ends();
        let txn = self.table.get(finish.id)?;
        let _turn = self.table.turn(&txn)?;
        let size = runs::size_of(&txn);
        let outcome = self.end_run(asker, &txn, finish);
        self.table.runs.ends(&txn, size, &outcome);
        asker.runs.remove(&txn.id);
        Ok(outcome)
    }

    fn doom(&self, _: &mut Asker, call: call::Doom) -> Result<Option<Conflict>, Failure> {
        let txn = self.table.get(call.id)?;
        let _turn = self.table.turn(&txn)?;
        Ok(txn.lost_by_now(&*self.table))
    }

    fn wait_for(&self, _: &mut Asker, call: call::WaitFor) -> Result<bool, Failure> {
        Ok(self.table.wait_for(call.id, call.limit_ms))
    }

    fn list(&self, _: &mut Asker, _: call::List) -> Result<Vec<Listed>, Failure> {
        let open = self.table.open();
        let mut listed: Vec<_> = open.iter().map(|t| t.listed(&*self.table)).collect();
        listed.sort_by_key(|t| (t.begun, t.id));
        Ok(listed)
    }

    fn top(&self, _: &mut Asker, _: call::Top) -> Result<Vec<VolumeActivity>, Failure> {
        Ok(top::activity(&self.table))
    }

    fn status(&self, _: &mut Asker, call: call::Status) -> Result<Status, Failure> {
        let txn = self.table.get(call.id)?;
        Ok(Status { listed: txn.listed(&*self.table), classes: txn.classes() })
    }

    fn diff(&self, _: &mut Asker, call: call::Diff) -> Result<Vec<Change>, Failure> {
        let mut paths = call.paths;
        let mut changes = match call.target {
            Target::Open { id } => {
                let txn = self.table.get(id)?;
                paths = as_on_the_host(&txn, paths);
                txn.changes()
            }
            Target::Committed { place, id } => {
                let volume = history::that_has(&self.table.volumes, &place, id)?;
                history::changes(&self.table, &volume, id)?
            }
        };
        if !paths.is_empty() {
            changes.retain(|c| paths.iter().any(|p| is_below(&c.path.0, &p.0)));
        }
        Ok(changes)
    }

    fn content(&self, asker: &mut Asker, call: call::Content) -> Result<Content, Failure> {
        let call::Content { target, path, version, limit } = call;
        let limit = limit.min(wire::MAX_BLOB as u64);
        let content = match target {
            Target::Open { id } => self.table.get(id)?.content(&path, version, limit, None)?,
            Target::Committed { place, id } => {
                let volume = history::that_has(&self.table.volumes, &place, id)?;
                history::content(&self.table, &volume, id, &path, version, limit)?
            }
        };
        Ok(beside(asker, content))
    }

    fn commit(&self, asker: &mut Asker, call: call::Commit) -> Result<Outcome, Failure> {
        let call::Commit { id, paths } = call;
        let txn = self.table.get(id)?;
        if txn.state() == State::Running {
            return Err(Failure::new(
                FailureKind::State,
                format!("transaction {id} is still running"),
            )
            .hint("it is committed when its command ends"));
        }
        if let Some(visitor) = txn.visitor() {
            return Err(Failure::new(
                FailureKind::State,
                format!("somebody is in transaction {id} (process {})", visitor.pid),
            )
            .hint("leave what `systx enter` started, then commit"));
        }
        let paths = as_on_the_host(&txn, paths);
        let with_path = txn.path_view().is_some();
        if paths.is_empty() && with_path {
            return self.commit_open(asker, &txn, &paths);
        }
        if paths.is_empty() {
            let _turn = self.table.turn(&txn)?;
            let ended = txn.commit(asker, &*self.table);
            return Ok(self.table.end_kept(&txn, ended));
        }
        let changes = txn.changes();
        for path in &paths {
            if !changes.iter().any(|c| is_below(&c.path.0, &path.0)) {
                return Err(Failure::new(
                    FailureKind::Invalid,
                    format!("transaction {id} changed nothing at {path}"),
                )
                .path(path.clone()));
            }
        }
        if with_path {
            return self.commit_open(asker, &txn, &paths);
        }
        let _turn = self.table.turn(&txn)?;
        let _locked = match txn.lock_again(true, asker) {
            Ok(locked) => locked,
            Err(failure) => return Ok(Outcome::Refused { failure, kept: true }),
        };
        let part = self.table.new_id(&txn.volume)?;
        let ended = txn.commit_part(part, &paths, &*self.table);
        txn.settle();
        Ok(match ended {
            Ended::Committed(outcome) | Ended::Refused(outcome) => outcome,
        })
    }

    fn abort(&self, asker: &mut Asker, call: call::Abort) -> Result<Outcome, Failure> {
        self.drop_open(asker.peer, call.id)
    }

    fn enter(&self, asker: &mut Asker, call: call::Enter) -> Result<Entered, Failure> {
        let id = call.id;
        let txn = self.table.get(id)?;
        match txn.state() {
            State::Running | State::Kept | State::Open => {}
            state => {
                return Err(Failure::new(
                    FailureKind::State,
                    format!("transaction {id} cannot be entered: it is {state:?}").to_lowercase(),
                ));
            }
        }
        let mounted = txn.path_view().map(|view| HostPath::from(view.whole.as_path()));
        let live = match txn.visitor() {
            None => None,
            // The number of the first process may be another's by now.
            Some(v) => Some(v.somebody().ok_or_else(|| {
                let text = format!("the processes of transaction {id} have just ended");
                Failure::new(FailureKind::State, text).hint("systx list tells what became of it")
            })?),
        };
        let others = txn.others().iter().map(|o| o.volume.facts()).collect();
        let unprotected = txn.told.unprotected();
        if live.is_none() && mounted.is_none() {
            asker.runs.insert(id);
        }
        Ok(Entered { volume: txn.volume.facts(), others, live, mounted, unprotected })
    }

    fn leave(&self, asker: &mut Asker, call: call::Leave) -> Result<(), Failure> {
        self.table.get(call.id)?.vacated();
        asker.runs.remove(&call.id);
        Ok(())
    }

    fn log(&self, _: &mut Asker, call: call::Log) -> Result<Vec<LogEntry>, Failure> {
        history::log(&self.table, &call.place, call.limit, &call.paths)
    }

    fn deferred(&self, _: &mut Asker, call: call::Deferred) -> Result<Vec<Deferred>, Failure> {
        let volumes = &self.table.volumes;
        let volume = call.0.map(|place| volumes.at(&place)).transpose()?;
        deferred::listed(volumes.ledger(), volume.as_deref())
    }

    fn settle(&self, _: &mut Asker, settle: Settle) -> Result<(), Failure> {
        let volumes = &self.table.volumes;
        let volume = settle.place.map(|place| volumes.at(&place)).transpose()?;
        deferred::settle(volumes.ledger(), volume.as_deref(), settle.id, &settle.left)
    }

    fn undo(&self, asker: &mut Asker, undo: Undo) -> Result<Undone, Failure> {
        history::undo(&self.table, asker.peer, &undo, history::Direction::Undo)
    }

    fn redo(&self, asker: &mut Asker, redo: call::Redo) -> Result<Undone, Failure> {
        history::undo(&self.table, asker.peer, &redo.0, history::Direction::Redo)
    }

    fn recover(&self, _: &mut Asker, call: call::Recover) -> Result<Recovered, Failure> {
        // Opening a store recovers it.  In an open one, what a dead client left behind is either
        // being committed or about to be aborted: wait for that, so that the tree is at rest.
        let volume = self.table.volumes.open_place(&call.place, call.trusted)?;
        let _store = volume.existing()?;
        self.table.wait_for_the_dead(&volume);
        let finished = systx_commit::finish_late(&volume.site, &mut HashSet::new())
            .map_err(stopped::failure)?;
        let mut recovered = volume.tell_recovered();
        recovered.finished += finished.len() as u64;
        recovered.notes.extend(finished.iter().map(|id| format!("installed transaction {id}")));
        let (others, failed) = self.table.volumes.recover_others(&volume);
        for other in others.iter().map(|other| other.tell_recovered()) {
            recovered.notes.extend(other.notes);
            recovered.outside.extend(other.outside);
        }
        recovered.notes.extend(failed);
        recovered.notes.dedup();
        recovered.notes.extend(volume.waiting_notes());
        Ok(recovered)
    }

    fn gc(&self, _: &mut Asker, gc: Gc) -> Result<Collected, Failure> {
        history::gc(&*self.table.volumes.at(&gc.place)?, &gc)
    }

    fn inspect(&self, _: &mut Asker, call: call::Inspect) -> Result<Inspected, Failure> {
        Ok(self.table.volumes.at(&call.0)?.inspected())
    }

    fn mount(&self, asker: &mut Asker, mount: Mount) -> Result<Mounted, Failure> {
        let mounted = self.guards.guard(asker.peer, &mount);
        self.table.chores.are_due();
        if matches!(mounted, Ok(Mounted::Guarded(_))) {
            self.take_guests();
        }
        mounted
    }

    fn umount(&self, asker: &mut Asker, umount: Umount) -> Result<Unmounted, Failure> {
        self.guards.unguard(asker.peer, &umount)
    }

    fn guarded(&self, _: &mut Asker, _: call::Guarded) -> Result<Vec<GuardedDir>, Failure> {
        Ok(self.guards.listed())
    }

    fn mount_volume(&self, _: &mut Asker, mount: MountVolume) -> Result<MountedVolume, Failure> {
        self.guards.mount_volume(&mount)
    }

    fn volumes(&self, _: &mut Asker, _: call::Volumes) -> Result<Vec<MountedVolume>, Failure> {
        Ok(self.guards.volumes())
    }

    fn snapshots(&self, _: &mut Asker, about: Snapshots) -> Result<Vec<VolumeSnapshot>, Failure> {
        self.guards.snapshots(&about)
    }

    fn protect(&self, asker: &mut Asker, about: Protect) -> Result<Vec<Protection>, Failure> {
        self.protection(asker.peer, &about)
    }
}

impl Control for Daemon {
    fn answer(&self, asker: &mut Asker, request: &Request) -> Result<Reply, Failure> {
        self.call(asker, request)
    }

    fn client_gone(&self, id: TxnId) {
        let Ok(txn) = self.table.get(id) else { return };
        if let Some(visitor) = txn.visitor() {
            visitor.end_all();
        }
        if txn.state() == State::Kept {
            txn.vacated();
        } else {
            let Ok(_turn) = self.table.turn(&txn) else { return };
            tracing::warn!(%id, "client is gone, transaction aborted");
            txn.abort();
            self.table.retire(&txn, false);
        }
    }

    fn idle(&self) -> bool {
        let volumes = &self.table.volumes;
        let views = volumes.path_views.lingering();
        self.table.is_empty()
            && volumes.all_have_answered()
            && volumes.all_guarded().is_empty()
            && !self.guards.has_volumes()
            && views == 0
    }

    fn shutdown(&self) {
        let open = self.table.open();
        for txn in open {
            if let Some(visitor) = txn.visitor() {
                visitor.end_all();
            }
            // What somebody is committing is decided, or recovery finds that it was not.
            if let Ok(_turn) = self.table.turn(&txn) {
                txn.abort();
                self.table.retire(&txn, false);
            }
        }
        self.guards.end();
        self.table.volumes.close();
    }
}

/// Has the bytes of a content travel beside it.
pub(super) fn beside(asker: &mut Asker, content: Content) -> Content {
    asker.beside = content.bytes;
    Content { bytes: Vec::new(), ..content }
}

impl Daemon {
    /// Drops an open transaction, for `peer`.
    pub(super) fn drop_open(&self, peer: Peer, id: TxnId) -> Result<Outcome, Failure> {
        let txn = self.table.get(id)?;
        if txn.state() == State::Committing {
            return Err(Failure::new(
                FailureKind::State,
                format!("transaction {id} is decided and cannot be aborted any more"),
            ));
        }
        let _turn = self.table.turn(&txn)?;
        let running = txn.visitor();
        // Before anybody can notice: the processes that end now have a client that asks why.
        self.table.note_abort(id, processes::described(peer.pid, peer.uid));
        let summary = txn.abort();
        if let Some(visitor) = running {
            visitor.end_all();
        }
        self.table.retire(&txn, false);
        Ok(Outcome::Aborted { summary })
    }

    /// Ends a transaction whose command has ended.
    fn end_run(&self, asker: &Asker, txn: &Transaction, finish: Finish) -> Outcome {
        if finish.end != End::Commit
            && let Some(conflict) = txn.conflict(&*self.table)
        {
            // The command saw its calls cancelled: what it did then, and its exit code, mean
            // nothing.
            txn.abort();
            self.table.retire(txn, false);
            return Outcome::Conflict { conflict, kept: false };
        }
        txn.deferred.set(finish.deferred);
        match finish.end {
            End::Commit => {
                let ended = txn.commit(asker, &*self.table);
                self.table.end(txn, ended)
            }
            End::Abort => {
                let summary = txn.abort();
                self.table.retire(txn, false);
                Outcome::Aborted { summary }
            }
            End::Keep => {
                let summary = txn.keep(finish.code);
                txn.vacated();
                Outcome::Kept { summary }
            }
        }
    }
}
