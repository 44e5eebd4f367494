//! Transactions that no client owns: begun by one command, worked in by any program below their path,
//! ended by another command.
//!
//! A commit, in order: nobody may have a shared writable mapping; the kernel writes back what is dirty;
//! requests wait ([`systx_vfs::retired`]); what is open is held; the transaction commits as any other;
//! from then on requests are plain ones, the kernel drops what it keeps, and the path goes.  Where it
//! is refused, requests go on as before.

use crate::patterns::Patterns;
use crate::protocol::*;
use crate::top::Counts;
use crate::transaction::{Ended, Rest, Step, Terms, Transaction, engine_isolation};
use crate::transactions::{ENDED_MAX, Tables};
use crate::transactions::{Transactions, facts};
use crate::volume::OpenVolume;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use systx_base::TxnId;
use systx_commit::Decided;
use systx_txn::BeginOptions;
use systx_vfs::retired::{Lasting, Pause, StillOpen};

impl Transactions {
    pub(crate) fn begin_with_path(
        &self,
        peer: Peer,
        begin: BeginOpen,
        guest: Option<(Arc<OpenVolume>, &OwnedFd)>,
    ) -> Result<BegunOpen, Failure> {
        let volume = match &guest {
            Some((volume, _)) => Arc::clone(volume),
            None => self.volume(&begin.place)?,
        };
        volume.check_lasting()?;
        let directory = begin.place.cwd.clone();
        let below = directory.as_path().strip_prefix(&volume.location.mount).map_err(|_| {
            let root = volume.location.mount.display();
            let text = format!("{directory} is not in the volume {root}");
            Failure::new(FailureKind::Invalid, text).path(directory.clone())
        })?;
        let before = begin.retry.map(|id| self.get(id)).transpose()?;
        if let Some(before) = &before
            && before.path_view().is_none()
        {
            let text = format!("transaction {} was not begun by systx begin", before.id);
            return Err(Failure::new(FailureKind::Invalid, text)
                .hint("name the one that this is another attempt of"));
        }
        if let Some(before) = &before {
            Control::abort(self, peer, before.id)?;
        }
        let guest = guest.map(|(_, directory)| self.room_for(peer.uid, directory)).transpose()?;
        let id = self.new_id(&volume)?;
        let options = BeginOptions {
            isolation: engine_isolation(begin.isolation),
            priority: begin.nice,
            age: before.as_ref().map_or(0, |t| t.age.saturating_add(1)),
            read_only: begin.read_only,
            timestamp: before.as_ref().map(|t| t.timestamp),
            guest: guest.is_some(),
            inject: self.inject(),
        };
        let argv = ["systx", "begin"].map(HostPath::from).into_iter().chain([directory.clone()]);
        let terms = Terms {
            argv: argv.collect(),
            cwd: directory.clone(),
            isolation: begin.isolation,
            read_only: begin.read_only,
            patterns: Patterns::compile(&[])?,
            merged: Patterns::default(),
            uid: peer.uid,
            // Nobody whose end would mean anything.
            client: 0,
            transport: begin.transport,
            lives_on: true,
            // A page that cannot be read ends a program that has it mapped.
            opaque: false,
            guest: guest.is_some(),
            limit_bytes: None,
            at_once: false,
        };
        let txn = Transaction::begin(id, volume.clone(), terms, options, self.ids(), None)?;
        let place = (directory.clone(), below);
        let mounted = self.path_views.mount(id, txn.view.clone(), place, begin.transport, guest);
        let path_view = mounted.inspect_err(|_| {
            txn.abort();
            Counts::count(&volume.counts.aborted);
        })?;
        let path = HostPath::from(path_view.path.as_path());
        txn.opened(Arc::new(path_view));
        self.add(txn);
        Ok(BegunOpen {
            id,
            path,
            directory,
            volume: facts(&volume),
            notes: volume.tell_recovered().notes,
        })
    }

    /// Commits an open transaction, or what lies below `paths`.
    pub(crate) fn commit_open(
        &self,
        txn: &Transaction,
        paths: &[HostPath],
    ) -> Result<Outcome, Failure> {
        let Some(path_view) = txn.path_view() else {
            return Err(Failure::new(
                FailureKind::State,
                format!("transaction {} has no view any more", txn.id),
            ));
        };
        let _turn = self.turn(txn)?;
        if let Some(conflict) = txn.conflict(self) {
            return Ok(Outcome::Conflict { conflict, kept: true });
        }
        let mappings = path_view.writable_mappings();
        if !mappings.is_empty() {
            return Err(in_use(txn, &mappings));
        }
        if let Err(error) = path_view.flush() {
            if let Some(conflict) = txn.conflict(self) {
                return Ok(Outcome::Conflict { conflict, kept: true });
            }
            let text = format!("cannot write back {}: {error}", path_view.path.display());
            return Err(Failure::new(FailureKind::Io, text)
                .hint("nothing was committed")
                .path(path_view.path.as_path()));
        }
        if !paths.is_empty() {
            let pause = path_view.lasting.pause();
            let part = self.new_id(&txn.volume)?;
            let ended = txn.commit_part(part, paths, self);
            drop(pause);
            txn.settle();
            // What was made has other inode numbers now.
            path_view.forget(&[]);
            let (Ended::Committed(outcome) | Ended::Refused(outcome)) = ended;
            return Ok(outcome);
        }
        let (ended, open) = self.commit_lasting(txn, &path_view.lasting);
        if let Some(open) = open {
            path_view.retired(&open);
        } else if matches!(ended, Ended::Committed(_)) {
            path_view.lost();
        }
        Ok(self.end_kept(txn, ended))
    }

    /// Commits a transaction whose view goes on as a plain one.  Requests wait meanwhile.  Also what is still
    /// open of it, if it is committed.
    pub(crate) fn commit_lasting(
        &self,
        txn: &Transaction,
        lasting: &Arc<Lasting>,
    ) -> (Ended, Option<Vec<StillOpen>>) {
        let mut pause = lasting.pause();
        if txn.view.is_snapshot() {
            // What is open of a moment that is over cannot become a plain view of another one.
            let ended = txn.commit_and(self, || ());
            if matches!(ended, Ended::Committed(_)) {
                txn.view.cancel();
            }
            return (ended, None);
        }
        pause.pin(txn.terms.read_only);
        let ended = txn.commit_and(self, || pause.landed());
        let open = retire(pause, &ended);
        (ended, open)
    }

    /// As [`Transactions::commit_lasting`], of a transaction whose program does not wait for the disk.
    pub(crate) fn commit_relaxed(
        &self,
        txn: &Arc<Transaction>,
        lasting: &Arc<Lasting>,
    ) -> Relaxing {
        let mut pause = lasting.pause();
        pause.pin(txn.terms.read_only);
        let step = txn.decide(self);
        txn.let_writers_in();
        match step {
            Step::Decided(half) => {
                let (decided, rest) = half.relax();
                Relaxing::Decided(Box::new(Tail { txn: Arc::clone(txn), decided, rest, pause }))
            }
            Step::Nothing(outcome) => {
                pause.landed();
                txn.pass();
                let ended = Ended::Committed(outcome);
                let open = retire(pause, &ended);
                Relaxing::Ended(ended, open)
            }
            Step::Refused(outcome) => Relaxing::Ended(Ended::Refused(outcome), None),
        }
    }

    /// Has the kernel forget the names of views that have lost: to be called from time to time, since
    /// whoever makes a transaction lose cannot wait for that.
    pub(crate) fn cut_off_losers(&self) {
        let (_, open) = self.everything();
        let views = open.iter().filter_map(|txn| Some((txn, txn.path_view()?)));
        for (_, view) in views.filter(|(txn, _)| txn.state() == State::Doomed) {
            view.lost();
        }
        for (_, guarded) in self.all_guarded() {
            guarded.desk_looks_round();
        }
    }

    /// Whether there is something that takes a look from time to time.
    pub(crate) fn has_chores(&self) -> bool {
        let (_, open) = self.everything();
        let takes_looks = |txn: &Arc<Transaction>| {
            txn.path_view().is_some() || txn.parts().any(|part| part.view.holds_locks())
        };
        open.iter().any(takes_looks) || !self.all_guarded().is_empty()
    }

    /// Paths that a user may have given as they are in the view.
    pub(crate) fn as_on_the_host(&self, txn: &Transaction, paths: Vec<HostPath>) -> Vec<HostPath> {
        match txn.path_view() {
            Some(view) => paths.into_iter().map(|path| view.to_host(path)).collect(),
            None => paths,
        }
    }

    /// A place that is in a view is in no volume.
    pub(crate) fn not_in_a_view(&self, place: &Place) -> Result<(), Failure> {
        for dir in place.root.iter().chain([&place.cwd]) {
            if self.path_views.has(dir.as_path()) {
                let text = format!("{dir} is in the view of a transaction");
                return Err(Failure::new(FailureKind::Invalid, text)
                    .hint("name the directory itself: `systx status` shows it (-C DIR)")
                    .path(dir.clone()));
            }
        }
        Ok(())
    }
}

/// What the kernel has open of a view, which goes on as a plain one if it is committed.
fn retire(pause: Pause, ended: &Ended) -> Option<Vec<StillOpen>> {
    let Ended::Committed(_) = ended else { return None };
    let open = pause.retire().inspect_err(|errno| {
        tracing::error!(%errno, "open files of a committed view are lost");
    });
    open.ok()
}

/// How far a commit has come when its program may go on.
pub(crate) enum Relaxing {
    /// It is decided, and this is left to do.
    Decided(Box<Tail>),
    /// To its end.
    Ended(Ended, Option<Vec<StillOpen>>),
}

/// What is left of a commit after its decision.
pub(crate) struct Tail {
    txn: Arc<Transaction>,
    decided: Decided,
    rest: Rest,
    pause: Pause,
}

impl Tail {
    /// Has it done by the volume's own thread; `then` is called with how it ended, and what is still open.
    pub(crate) fn finish(
        self,
        table: &Arc<Transactions>,
        then: impl FnOnce(Outcome, Option<Vec<StillOpen>>) + Send + 'static,
    ) {
        let Tail { txn, decided, rest, mut pause } = self;
        let (table, volume) = (Arc::clone(table), Arc::clone(&txn.volume));
        let end = move |durable| {
            let ended = rest.finish(&txn, &*table, durable, || pause.landed());
            let open = retire(pause, &ended);
            then(table.end(&txn, ended), open);
        };
        volume.relaxed.finish(decided, Box::new(end));
    }
}

fn in_use(txn: &Transaction, mappings: &[(u32, String)]) -> Failure {
    let names: Vec<String> = mappings.iter().map(|(pid, name)| format!("{name} ({pid})")).collect();
    let text = format!(
        "transaction {} cannot be committed while files of its view are mapped for writing, by {}",
        txn.id,
        names.join(", ")
    );
    Failure::new(FailureKind::Busy, text)
        .hint("end the program, or have it unmap them; then commit")
}

impl Tables {
    /// Notes who aborts a transaction.
    pub(crate) fn note_abort(&mut self, id: TxnId, by: String) {
        self.aborted.truncate(ENDED_MAX);
        self.aborted.push_front((id, by));
    }
    /// Who has aborted, or is aborting, a transaction.
    pub(crate) fn who_aborted(&self, id: TxnId) -> Option<Failure> {
        let (_, by) = self.aborted.iter().find(|(aborted, _)| *aborted == id)?;
        let text = format!("transaction {id} was aborted by {by}");
        Some(Failure::new(FailureKind::NotFound, text))
    }
}
