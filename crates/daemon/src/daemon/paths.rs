//! Transactions that no client owns: begun by one command, worked in by any program below their
//! path, ended by another command.
//!
//! A commit, in order: nobody may have a shared writable mapping; the kernel writes back what is
//! dirty; then it is that of any view that goes on ([`crate::lasting`]); the kernel drops what it
//! keeps, and the path goes.

use super::Daemon;
use crate::counts::Counts;
use crate::protocol::{Asker, BeginOpen, BegunOpen, Failure, FailureKind, HostPath, Outcome, Peer};
use crate::transaction::{Ended, Lives, Terms, Transaction, Whose, engine_isolation};
use crate::unprotected;
use crate::urgency::{self, LastThread, OfLast};
use crate::volume::OpenVolume;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use systx_protocol::modes::{self, Way};
use systx_txn::{BeginOptions, Urgency};

impl Daemon {
    pub(super) fn begin_with_path(
        &self,
        peer: Peer,
        begin: BeginOpen,
        guest: Option<(Arc<OpenVolume>, &OwnedFd)>,
    ) -> Result<BegunOpen, Failure> {
        let volume = match &guest {
            Some((volume, _)) => Arc::clone(volume),
            None => self.table.volumes.at(&begin.place)?,
        };
        volume.check(&[Way::Path])?;
        let directory = begin.place.cwd.clone();
        let below = directory.as_path().strip_prefix(&volume.location.mount).map_err(|_| {
            let root = volume.location.mount.display();
            let text = format!("{directory} is not in the volume {root}");
            Failure::new(FailureKind::Invalid, text).path(directory.clone())
        })?;
        let before = begin.retry.map(|id| self.table.get(id)).transpose()?;
        if let Some(before) = &before
            && before.path_view().is_none()
        {
            let text = format!("transaction {} was not begun by systx begin", before.id);
            return Err(Failure::new(FailureKind::Invalid, text)
                .hint("name the one that this is another attempt of"));
        }
        if let Some(before) = &before {
            self.drop_open(peer, before.id)?;
        }
        let guest = guest.map(|(_, directory)| self.room_for(peer.uid, directory)).transpose()?;
        if !begin.read_only {
            volume.make_way();
        }
        let (unprotected, mut notes) = self.unprotected_in(&directory, &volume, guest.is_some())?;
        let id = self.table.new_id(&volume)?;
        let terms = terms_of(&begin, &volume, peer, guest.is_some());
        let follows: Arc<dyn Urgency> = Arc::new(OfLast(Arc::clone(&terms.whose.thread)));
        let options = BeginOptions {
            isolation: engine_isolation(begin.isolation),
            priority: begin.nice.unwrap_or(0),
            follows: begin.nice.is_none().then_some(follows),
            choice: urgency::policy(begin.policy, &volume, &directory),
            age: before.as_ref().map_or(0, |t| t.age.saturating_add(1)),
            read_only: begin.read_only,
            timestamp: before.as_ref().map(|t| t.timestamp),
            guest: guest.is_some(),
            inject: self.table.inject(),
        };
        let seen = (self.table.ids(), &*unprotected);
        let txn = Transaction::begin(id, volume.clone(), terms, options, seen, None)?;
        txn.told.patterns(Vec::new(), &unprotected);
        let place = (directory.clone(), below);
        let mounted = self.table.volumes.path_views.mount(
            id,
            (txn.view.clone(), volume.vol.clone()),
            place,
            (begin.transport, Arc::clone(&txn.terms.whose.thread)),
            guest,
        );
        let shown = mounted.and_then(|view| view.with_originals(&unprotected));
        let path_view = shown.inspect_err(|_| {
            txn.abort();
            Counts::count(&volume.counts().aborted);
        })?;
        let path = HostPath::from(path_view.path.as_path());
        txn.opened(Arc::new(path_view));
        self.table.add(txn);
        notes.extend(volume.tell_recovered().notes);
        Ok(BegunOpen { id, path, directory, volume: volume.facts(), notes })
    }

    /// What is not protected in a directory for which a transaction is to begin.
    fn unprotected_in(
        &self,
        directory: &HostPath,
        volume: &OpenVolume,
        for_guest: bool,
    ) -> Result<(Vec<HostPath>, Vec<String>), Failure> {
        let all = &self.table.volumes.unprotected;
        let (mut now, notes) = all.beside(std::iter::once(&volume.location))?;
        // Where nothing is marked the list is not read once more.
        let mark = (!now.is_empty()).then(|| all.mark_of(directory.as_path())).flatten();
        if let Some(mark) = mark {
            return Err(unprotected::not_protected(directory.as_path(), &mark));
        }
        now.retain(|path| path.as_path().starts_with(directory.as_path()));
        match now.first() {
            // In the list of mounts, which is everybody's, they would be to be read.
            Some(path) if for_guest => {
                Err(modes::refusal(Way::Guest, Way::Unprotected, path).path(path.clone()))
            }
            _ => Ok((now, notes)),
        }
    }

    /// Commits an open transaction, or what lies below `paths`.
    pub(super) fn commit_open(
        &self,
        asker: &Asker,
        txn: &Transaction,
        paths: &[HostPath],
    ) -> Result<Outcome, Failure> {
        let Some(path_view) = txn.path_view() else {
            return Err(Failure::new(
                FailureKind::State,
                format!("transaction {} has no view any more", txn.id),
            ));
        };
        let _turn = self.table.turn(txn)?;
        if let Some(conflict) = txn.conflict(&*self.table) {
            return Ok(Outcome::Conflict { conflict, kept: true });
        }
        let mappings = path_view.writable_mappings();
        if !mappings.is_empty() {
            return Err(in_use(txn, &mappings));
        }
        if let Err(error) = path_view.flush() {
            if let Some(conflict) = txn.conflict(&*self.table) {
                return Ok(Outcome::Conflict { conflict, kept: true });
            }
            let text = format!("cannot write back {}: {error}", path_view.path.display());
            return Err(Failure::new(FailureKind::Io, text)
                .hint("nothing was committed")
                .path(path_view.path.as_path()));
        }
        // Before requests are paused: who is waited for may wait for somebody who works below it.
        let _locked = txn.lock_again(false, asker)?;
        if !paths.is_empty() {
            let pause = path_view.lasting.pause();
            let part = self.table.new_id(&txn.volume)?;
            let ended = txn.commit_part(part, paths, &*self.table);
            drop(pause);
            txn.settle();
            // What was made has other inode numbers now.
            path_view.forget(&[]);
            let (Ended::Committed(outcome) | Ended::Refused(outcome)) = ended;
            return Ok(outcome);
        }
        let (ended, open) = self.table.commit_lasting(txn, &path_view.lasting);
        if let Some(open) = open {
            path_view.retired(&open);
        } else if matches!(ended, Ended::Committed(_)) {
            path_view.lost();
        }
        Ok(self.table.end_kept(txn, ended))
    }
}

/// Paths that a user may have given as they are in the view.
pub(super) fn as_on_the_host(txn: &Transaction, paths: Vec<HostPath>) -> Vec<HostPath> {
    match txn.path_view() {
        Some(view) => paths.into_iter().map(|path| view.to_host(path)).collect(),
        None => paths,
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

fn terms_of(begin: &BeginOpen, volume: &OpenVolume, peer: Peer, guest: bool) -> Terms {
    let directory = &begin.place.cwd;
    let argv = ["systx", "begin"].map(HostPath::from).into_iter().chain([directory.clone()]);
    // Nobody whose end would mean anything.
    let whose = Whose { uid: peer.uid, client: 0, thread: LastThread::new(peer.pid.into()), guest };
    Terms {
        isolation: begin.isolation,
        read_only: begin.read_only,
        transport: begin.transport,
        patience: urgency::patience(volume, directory),
        ..Terms::new(Lives::AtPath, argv.collect(), directory.clone(), whose)
    }
}
