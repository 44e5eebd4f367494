//! What another user's request does: a filter before and after what everybody's does.

use super::Daemon;
use super::control::beside;
use crate::describe::for_user;
use crate::guests::{Answer, Guests};
use crate::mounts;
use crate::path_views::ForGuest;
use crate::protocol::call::{self, Calls, GuestCalls, Request};
use crate::protocol::{
    Asker, BeginOpen, BegunOpen, Change, Content, Failure, FailureKind, HostPath, Isolation,
    Listed, Outcome, Peer, Place, Status, Target,
};
use crate::transaction::Transaction;
use crate::volume::OpenVolume;
use crate::wire;
use rustix::fs::{AtFlags, StatxFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use systx_base::{TxnId, Uid};
use systx_protocol::is_below;
use systx_protocol::modes::{self, Way};

/// What the daemon answers to guests, each of whom has transactions of its own.
struct ToGuests<'a>(&'a Daemon);

impl GuestCalls for ToGuests<'_> {
    fn begin_open(&self, asker: &mut Asker, begin: BeginOpen) -> Result<BegunOpen, Failure> {
        let dir = asker.descriptor()?;
        self.0.begin_for_guest(asker.peer, begin, &dir)
    }

    fn list(&self, asker: &mut Asker, call: call::List) -> Result<Vec<Listed>, Failure> {
        let mut all = self.0.list(asker, call)?;
        let uid = asker.peer.uid;
        all.retain(|t| self.0.of_guest(t.id, uid).is_ok());
        Ok(all.into_iter().map(|t| listed(t, uid)).collect())
    }

    fn status(&self, asker: &mut Asker, call: call::Status) -> Result<Status, Failure> {
        self.0.of_guest(call.id, asker.peer.uid)?;
        let Status { listed: open, classes } = self.0.status(asker, call)?;
        Ok(Status { listed: listed(open, asker.peer.uid), classes })
    }

    fn diff(&self, asker: &mut Asker, call: call::Diff) -> Result<Vec<Change>, Failure> {
        self.of_target(asker, &call.target)?;
        self.0.diff(asker, call)
    }

    fn content(&self, asker: &mut Asker, call: call::Content) -> Result<Content, Failure> {
        let txn = self.of_target(asker, &call.target)?;
        // Of the guest's own files only: who may remove a file, or write it, may not always
        // read it. And of what is read, not of what had that name a moment before.
        let limit = call.limit.min(wire::MAX_BLOB as u64);
        let content = txn.content(&call.path, call.version, limit, Some(asker.peer.uid))?;
        Ok(beside(asker, content))
    }

    fn commit(&self, asker: &mut Asker, call: call::Commit) -> Result<Outcome, Failure> {
        self.0.of_guest(call.id, asker.peer.uid)?;
        Ok(outcome(self.0.commit(asker, call)?, asker.peer.uid))
    }

    fn abort(&self, asker: &mut Asker, call: call::Abort) -> Result<Outcome, Failure> {
        self.0.of_guest(call.id, asker.peer.uid)?;
        Ok(outcome(self.0.abort(asker, call)?, asker.peer.uid))
    }
}

impl ToGuests<'_> {
    /// A transaction of this guest that is open: what has been committed is everybody's.
    fn of_target(&self, asker: &Asker, target: &Target) -> Result<Arc<Transaction>, Failure> {
        match target {
            Target::Open { id } => self.0.of_guest(*id, asker.peer.uid),
            Target::Committed { .. } => Err(call::not_for_guests()),
        }
    }
}

/// Who else works there, and how, is nobody's business.
fn listed(mut t: Listed, uid: Uid) -> Listed {
    t.conflict = t.conflict.map(|conflict| for_user(conflict, uid));
    t
}

fn outcome(outcome: Outcome, uid: Uid) -> Outcome {
    match outcome {
        Outcome::Conflict { conflict, kept } => {
            Outcome::Conflict { conflict: for_user(conflict, uid), kept }
        }
        other => other,
    }
}

impl Daemon {
    /// A transaction of this guest.
    fn of_guest(&self, id: TxnId, uid: Uid) -> Result<Arc<Transaction>, Failure> {
        let not_there = || {
            Failure::new(FailureKind::NotFound, format!("there is no open transaction {id}"))
                .hint("`systx list` shows the open ones")
        };
        let txn = self.table.get(id).map_err(|_| not_there())?;
        if txn.terms.whose.uid == uid && txn.terms.whose.guest { Ok(txn) } else { Err(not_there()) }
    }

    fn begin_for_guest(
        &self,
        peer: Peer,
        begin: BeginOpen,
        dir: &OwnedFd,
    ) -> Result<BegunOpen, Failure> {
        let (volume, directory) = self.whereabouts(dir)?;
        let wanted = modes::chosen([
            (true, Way::Guest),
            (begin.isolation == Isolation::Snapshot, Way::Snapshot),
            (mounts::has_quotas(&volume.location.mount), Way::Quotas),
        ]);
        modes::check(&wanted, &directory).map_err(|failure| failure.path(directory.clone()))?;
        if let Some(before) = begin.retry {
            self.of_guest(before, peer.uid)?;
        }
        let place = Place { cwd: directory, root: None, store: None };
        let mut begun = self.begin_with_path(
            peer,
            BeginOpen { place, nice: begin.nice.map(|nice| nice.max(0)), ..begin },
            Some((volume, dir)),
        )?;
        begun.notes = Vec::new();
        begun.volume.guarded.retain(|g| is_below(&begun.directory.0, &g.dir.0));
        Ok(begun)
    }

    /// Where an open directory is: it must be of a guarded one.
    fn whereabouts(&self, dir: &OwnedFd) -> Result<(Arc<OpenVolume>, HostPath), Failure> {
        let no = || {
            Failure::new(FailureKind::Invalid, "that is not in a guarded directory of this daemon")
        };
        // Nothing here asks the mount, which this process serves.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let seen = rustix::fs::statx(dir, c"", flags, StatxFlags::MNT_ID | StatxFlags::TYPE)
            .map_err(|_| no())?;
        let is_dir = rustix::fs::FileType::from_raw_mode(seen.stx_mode.into()).is_dir();
        let all = self.table.volumes.all_guarded();
        let found = all.iter().find(|(_, g)| g.has(&seen)).filter(|_| is_dir);
        let (volume, guarded) = found.ok_or_else(no)?;
        let path =
            std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).map_err(|_| no())?;
        let there = path.starts_with(&guarded.dir);
        if there { Ok((Arc::clone(volume), HostPath::from(path))) } else { Err(no()) }
    }

    /// Where the path of a guest's next view is.
    pub(super) fn room_for<'a>(
        &self,
        uid: Uid,
        directory: &'a OwnedFd,
    ) -> Result<ForGuest<'a>, Failure> {
        let none = || Failure::new(FailureKind::Unsupported, "this daemon takes no guests");
        let guests = self.guests.get().ok_or_else(none)?;
        let seat = guests.seat(uid)?;
        let room = guests.room_of(uid).map_err(|e| {
            Failure::new(FailureKind::Io, format!("cannot make a place for your views: {e}"))
        })?;
        Ok(ForGuest { room, seat, directory })
    }

    /// Takes guests, once something is guarded.
    pub(super) fn take_guests(&self) {
        let Some((dir, namespace)) = self.guards.place() else { return };
        if !rustix::process::geteuid().is_root() || self.guests.get().is_some() {
            return;
        }
        let me = self.me.clone();
        let answer: Answer = Arc::new(move |asker: &mut Asker, request: &Request| {
            Some(ToGuests(&*me.upgrade()?).guest_call(asker, request))
        });
        match Guests::open(&dir, namespace, answer) {
            Ok(guests) => drop(self.guests.set(guests)),
            Err(e) => tracing::warn!("no guests: {e}"),
        }
    }
}
