//! Guests: other users' transactions on the guarded directories of root's daemon.
//!
//! A second socket lets any user connect; who it is, the kernel says (`SO_PEERCRED`).  It offers what concerns a
//! guest's own transactions with a path, and nothing else: begin, list, status, diff, commit, abort.  To whom a
//! transaction does not belong, it does not exist.
//!
//! - A directory is named by a descriptor that the guest has opened: so the guest can reach it, and the kernel
//!   tells where it is ([`Guests::whereabouts`]).
//! - In the view the kernel checks permissions with the attributes of the files, for whoever works there.  All
//!   that these checks rest on is read by the transaction, so a commit fails if it has changed.
//! - Nothing of the way to a view belongs to the guest, so nothing can be put in its place: the directory is root's, and
//!   an access control list lets that one user through.
//! - A guest's use of the daemon is bounded: connections, transactions, the memory and the staged bytes of each.

use crate::describe::for_user;
use crate::path_views::{ForGuest, Seat, Seats};
use crate::protocol::{
    BeginOpen, BegunOpen, Control, Failure, FailureKind, HostPath, Listed, Outcome, Peer, Place,
    Reply, Request, Status, Target, VERSION,
};
use crate::transaction::Transaction;
use crate::transactions::{Transactions, is_below};
use crate::wire::{self, WireError};
use crate::{mounts, path_views};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use systx_base::{TxnId, Uid};

/// Connections of one guest, and of all.
const CONNECTIONS: (usize, usize) = (8, 64);
/// Open transactions, and views still in use, of one guest, and of all.
pub(crate) const VIEWS: (usize, usize) = (8, 64);
/// Longest request.
const REQUEST_MAX: usize = 64 << 10;
/// Answers of any length that one guest, and all, are being given at a time: each may be as long as
/// a frame.
const ANSWERS: (usize, usize) = (1, 8);
/// How long a guest may take to begin a request, to send it, and to take the whole answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The place of guests of root's daemon.
pub(crate) struct Guests {
    dir: PathBuf,
    seats: Arc<Seats>,
}

impl Guests {
    /// Opens the place, beside the runtime directory, and takes guests from now on.
    ///
    /// # Errors
    /// The place cannot be made safe.
    pub fn open(runtime: &Path, namespace: u64, table: Weak<Transactions>) -> io::Result<Guests> {
        let mut name = runtime.as_os_str().to_owned();
        name.push("-guests");
        let dir = PathBuf::from(name);
        match std::fs::DirBuilder::new().mode(0o755).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let meta = std::fs::symlink_metadata(&dir)?;
        if !meta.is_dir() || meta.uid() != 0 || meta.mode() & 0o022 != 0 {
            return Err(io::Error::other(format!("{} is not root's alone", dir.display())));
        }
        // Whatever the umask.
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755))?;
        path_views::sweep_below(&dir);
        let path = systx_protocol::guests::socket(&dir, namespace);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))?;
        let connections = Arc::new(Seats::new(CONNECTIONS));
        std::thread::Builder::new()
            .name("guests".into())
            .spawn(move || receive_all(&listener, &table, &connections))?;
        Ok(Guests { dir, seats: Arc::new(Seats::new(VIEWS)) })
    }

    /// The directory of a guest's views: nobody but that user and root gets in.
    ///
    /// # Errors
    /// The file system below has no access control lists.
    pub fn room_of(&self, uid: Uid) -> io::Result<PathBuf> {
        let dir = self.dir.join(uid.to_string());
        match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&dir, "system.posix_acl_access", &only_for(uid), flags)?;
        Ok(dir)
    }

    /// A place for one more view.
    ///
    /// # Errors
    /// There are enough.
    pub fn seat(&self, uid: Uid) -> Result<Seat, Failure> {
        self.seats.take(uid).ok_or_else(|| {
            let text = format!(
                "more than {} transactions of one user, or {} of all guests",
                VIEWS.0, VIEWS.1
            );
            Failure::new(FailureKind::Space, text)
                .hint("commit or abort some, and leave their directories: `systx list`")
        })
    }
}

/// The directory is root's; the user may list it and go through.
fn only_for(uid: Uid) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let (owner, user, group, mask, other) = (0x01u16, 0x02, 0x04, 0x10, 0x20);
    let entries = [
        (owner, 7u16, NOBODY),
        (user, 5, uid),
        (group, 0, NOBODY),
        (mask, 5, NOBODY),
        (other, 0, NOBODY),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&rights.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    list
}

fn receive_all(listener: &UnixListener, table: &Weak<Transactions>, seats: &Arc<Seats>) {
    let answers = Arc::new(Seats::new(ANSWERS));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // Out of descriptors or memory: others will give theirs back; do not spin meanwhile.
            Err(e) => {
                tracing::warn!("a guest's connection: {e}");
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let Ok(by) = socket_peercred(&stream) else { continue };
        let uid = by.uid.as_raw();
        let Some(seat) = seats.take(uid) else { continue };
        let (table, answers) = (table.clone(), Arc::clone(&answers));
        let pid = u32::try_from(by.pid.as_raw_nonzero().get()).unwrap_or(0);
        let guest = move || {
            let _seat = seat;
            if let Err(e) = serve(&stream, Peer { pid, uid }, &table, &answers) {
                tracing::info!(uid, "guest: {e}");
            }
        };
        if let Err(e) = std::thread::Builder::new().name("guest".into()).spawn(guest) {
            tracing::error!("no thread for a guest: {e}");
        }
    }
}

fn serve(
    stream: &UnixStream,
    peer: Peer,
    table: &Weak<Transactions>,
    answers: &Arc<Seats>,
) -> Result<(), WireError> {
    let send = |reply: &Reply, blob: &[u8]| wire::send_within(stream, reply, blob, PATIENCE);
    let receive = || wire::receive_within::<Request>(stream, REQUEST_MAX, PATIENCE);
    let hello = receive()?.message;
    let release = env!("CARGO_PKG_VERSION").to_owned();
    let mine = Reply::Hello { version: VERSION, release, pid: std::process::id(), connection: 0 };
    send(&mine, &[])?;
    if !matches!(hello, Request::Hello { version: VERSION, .. }) {
        return Ok(());
    }
    loop {
        let frame = match receive() {
            Ok(frame) => frame,
            Err(WireError::Closed) => return Ok(()),
            Err(e) => return Err(e),
        };
        let Some(table) = table.upgrade() else { return Ok(()) };
        // Whoever asks on many connections and does not read has one answer's memory here.
        let long = matches!(frame.message, Request::Diff { .. } | Request::Content { .. });
        let turn = long.then(|| answers.wait(peer.uid));
        let answer = AssertUnwindSafe(|| answer(&table, peer, frame.message, frame.fds));
        let (reply, blob) = match catch_unwind(answer) {
            Ok(Ok(answer)) => answer,
            Ok(Err(failure)) => (Reply::Failed(failure), Vec::new()),
            Err(_) => {
                let text = "the daemon failed (see its log)";
                (Reply::Failed(Failure::new(FailureKind::Internal, text)), Vec::new())
            }
        };
        drop(table);
        match send(&reply, &blob) {
            Err(e @ WireError::TooLong { .. }) => {
                let failure = Failure::new(FailureKind::Space, format!("the answer: {e}"));
                send(&Reply::Failed(failure), &[])?;
            }
            other => other?,
        }
        drop((reply, blob));
        drop(turn);
    }
}

/// All that a guest can ask for.
fn answer(
    table: &Transactions,
    peer: Peer,
    request: Request,
    mut fds: Vec<OwnedFd>,
) -> Result<(Reply, Vec<u8>), Failure> {
    let own = |id| table.of_guest(id, peer.uid);
    let reply = match request {
        Request::BeginOpen(begin) => {
            let one = fds.pop().filter(|_| fds.is_empty());
            let dir = one.ok_or_else(|| {
                Failure::new(FailureKind::Invalid, "exactly one descriptor is needed")
            })?;
            Reply::BegunOpen(table.begin_for_guest(peer, begin, &dir)?)
        }
        Request::List => {
            let mut all = table.list()?;
            all.retain(|t| own(t.id).is_ok());
            Reply::List(all.into_iter().map(|t| listed(t, peer.uid)).collect())
        }
        Request::Status { id } => {
            own(id)?;
            let Status { listed: open, classes } = table.status(id)?;
            Reply::Status(Box::new(Status { listed: listed(open, peer.uid), classes }))
        }
        Request::Diff { target: Target::Open { id }, paths } => {
            own(id)?;
            Reply::Changes(table.diff(Target::Open { id }, paths)?)
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
            Reply::Outcome(outcome(table.commit(id, paths)?, peer.uid))
        }
        Request::Abort { id } => {
            own(id)?;
            Reply::Outcome(outcome(table.abort(peer, id)?, peer.uid))
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

impl Transactions {
    /// A transaction of this guest.
    fn of_guest(&self, id: TxnId, uid: Uid) -> Result<Arc<Transaction>, Failure> {
        let not_there = || {
            Failure::new(FailureKind::NotFound, format!("there is no open transaction {id}"))
                .hint("`systx list` shows the open ones")
        };
        let txn = self.get(id).map_err(|_| not_there())?;
        if txn.terms.uid == uid && txn.terms.guest { Ok(txn) } else { Err(not_there()) }
    }

    fn begin_for_guest(
        &self,
        peer: Peer,
        begin: BeginOpen,
        dir: &OwnedFd,
    ) -> Result<BegunOpen, Failure> {
        let (volume, directory) = self.whereabouts(dir)?;
        if begin.isolation != crate::protocol::Isolation::Serializable {
            let text = "another user's daemon has serializable transactions only";
            return Err(Failure::new(FailureKind::Unsupported, text));
        }
        if mounts::has_quotas(&volume.location.mount) {
            let text = "quotas are switched on there, and a commit would not keep to yours";
            return Err(Failure::new(FailureKind::Unsupported, text).path(directory));
        }
        if let Some(before) = begin.retry {
            self.of_guest(before, peer.uid)?;
        }
        let place = Place { cwd: directory, root: None, store: None };
        let mut begun = self.begin_with_path(
            peer,
            BeginOpen { place, nice: begin.nice.max(0), ..begin },
            Some((volume, dir)),
        )?;
        begun.notes = Vec::new();
        begun.volume.guarded.retain(|g| is_below(&begun.directory.0, &g.dir.0));
        Ok(begun)
    }

    /// Where an open directory is: it must be of a guarded one.
    fn whereabouts(
        &self,
        dir: &OwnedFd,
    ) -> Result<(Arc<crate::volume::OpenVolume>, HostPath), Failure> {
        let no = || {
            Failure::new(FailureKind::Invalid, "that is not in a guarded directory of this daemon")
        };
        // Nothing here asks the mount, which this process serves.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let seen = rustix::fs::statx(dir, c"", flags, StatxFlags::MNT_ID | StatxFlags::TYPE)
            .map_err(|_| no())?;
        let is_dir = rustix::fs::FileType::from_raw_mode(seen.stx_mode.into()).is_dir();
        let all = self.all_guarded();
        let found = all.iter().find(|(_, g)| g.mount == seen.stx_mnt_id).filter(|_| is_dir);
        let (volume, guarded) = found.ok_or_else(no)?;
        let path =
            std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).map_err(|_| no())?;
        let there = path.starts_with(&guarded.dir);
        if there { Ok((Arc::clone(volume), HostPath::from(path))) } else { Err(no()) }
    }

    /// Where the path of a guest's next view is.
    pub(crate) fn room_for<'a>(
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
    pub(crate) fn take_guests(&self, runtime: &Path, namespace: u64) {
        if !rustix::process::geteuid().is_root() || self.guests.get().is_some() {
            return;
        }
        match Guests::open(runtime, namespace, self.me.clone()) {
            Ok(guests) => drop(self.guests.set(guests)),
            Err(e) => tracing::warn!("no guests: {e}"),
        }
    }
}
