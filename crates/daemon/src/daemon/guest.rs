//! What another user's request does: a filter before and after what everybody's does.

use super::Daemon;
use crate::describe::for_user;
use crate::guests::{Answer, Guests};
use crate::mounts;
use crate::path_views::ForGuest;
use crate::protocol::{
    BeginOpen, BegunOpen, Control, Failure, FailureKind, HostPath, Isolation, Listed, Outcome,
    Peer, Place, Reply, Request, Status, Target,
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

/// All that a guest can ask for.
fn answer(
    daemon: &Daemon,
    peer: Peer,
    request: Request,
    mut fds: Vec<OwnedFd>,
) -> Result<(Reply, Vec<u8>), Failure> {
    let own = |id| daemon.of_guest(id, peer.uid);
    let reply = match request {
        Request::BeginOpen(begin) => {
            let one = fds.pop().filter(|_| fds.is_empty());
            let dir = one.ok_or_else(|| {
                Failure::new(FailureKind::Invalid, "exactly one descriptor is needed")
            })?;
            Reply::BegunOpen(daemon.begin_for_guest(peer, begin, &dir)?)
        }
        Request::List => {
            let mut all = daemon.list()?;
            all.retain(|t| own(t.id).is_ok());
            Reply::List(all.into_iter().map(|t| listed(t, peer.uid)).collect())
        }
        Request::Status { id } => {
            own(id)?;
            let Status { listed: open, classes } = daemon.status(id)?;
            Reply::Status(Box::new(Status { listed: listed(open, peer.uid), classes }))
        }
        Request::Diff { target: Target::Open { id }, paths } => {
            own(id)?;
            Reply::Changes(daemon.diff(Target::Open { id }, paths)?)
        }
        Request::Content { target: Target::Open { id }, path, version, limit } => {
            // Of the guest's own files only: who may remove a file, or write it, may not always
            // read it. And of what is read, not of what had that name a moment before.
            let limit = limit.min(wire::MAX_BLOB as u64);
            let content = own(id)?.content(&path, version, limit, Some(peer.uid))?;
            let reply = Reply::Content { total: content.total, unknown: content.unknown };
            return Ok((reply, content.bytes));
        }
        Request::Commit { id, paths } => {
            own(id)?;
            Reply::Outcome(outcome(daemon.commit(id, paths)?, peer.uid))
        }
        Request::Abort { id } => {
            own(id)?;
            Reply::Outcome(outcome(daemon.abort(peer, id)?, peer.uid))
        }
        _ => {
            let text = "another user's daemon does not do that for you";
            return Err(Failure::new(FailureKind::Unsupported, text));
        }
    };
    Ok((reply, Vec::new()))
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
        let found = all.iter().find(|(_, g)| g.mount == seen.stx_mnt_id).filter(|_| is_dir);
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
        let answer: Answer =
            Arc::new(move |peer, request, fds| Some(answer(&*me.upgrade()?, peer, request, fds)));
        match Guests::open(&dir, namespace, answer) {
            Ok(guests) => drop(self.guests.set(guests)),
            Err(e) => tracing::warn!("no guests: {e}"),
        }
    }
}
